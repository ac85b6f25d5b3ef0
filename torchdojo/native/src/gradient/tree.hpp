// Minimal coordinates (q, q̇) of a tree of joints: the state from coordinates, and its derivative (state/minimal.py, minimal_jacobians.py).
// The way back, coordinates of a state, is in elements/joint_motion.hpp.
//
// Between a parent a and a child b, p is the relative orientation and e the displacement of the anchors in the parent's frame. With the
// free axes in the rows of A, coordinates are (A_t e, A_r log p). Rates are their backward differences over the step that led here,
//
//     q̇ = (A_t (e − e⁻), A_r log(p p⁻⁻¹)) / h.
//
// A state is assembled at both configurations: p = exp(A_rᵀ q), and p⁻ = exp(−τ) p with τ = h A_rᵀ q̇. For two free rotations, τ includes a
// turn about the held axis that keeps the joint assembled. The velocities are v = (x − x⁻)/h and (h/2) ω = vec(q⁻⁻¹ q).
//
// A coordinate moves all bodies beyond its joint as one rigid body. A motion is a row S = (v_o, ω) in the world frame, where v_o
// is the velocity of the point o that moves with the body. A gradient of a body's pose (g_x, g_φ) is a force g_x in its center
// of mass and a torque R g_φ. All gradients together are a force F and a torque N about o, and S·(F, N) is the gradient by the coordinate.
// So products with the derivative of the map sum forces and torques over subtrees, leaves first. Featherstone 2008, "Rigid Body Dynamics
// Algorithms", section 5.3, has this recursion with the joints in the place of o.
#pragma once

#include "elements/joint_motion.hpp"
#include "gradient/adjoint.hpp"

namespace torchdojo {

// The rotation about a vector θ, and the Jacobians of exp there: exp(θ + δ) = exp(θ) exp(J_r δ) = exp(J_l δ) exp(θ).
template <class T>
struct Exponential {
    Vec3<T> theta;
    T cosine, sine;  // cos(|θ|/2), sin(|θ|/2)/|θ|
    T first, second;  // (1 − cos|θ|)/|θ|², (|θ| − sin|θ|)/|θ|³

    TD_INLINE explicit Exponential(const Vec3<T> &theta) : theta(theta) {
        const T squared = dot(theta, theta);
        const Mask<T> small = squared < broadcast<T>(1e-8);  // the next terms of the series are below 1e-18
        const T angle = sqrt(select(small, broadcast<T>(1.0), squared)), half = 0.5 * angle, cube = angle * angle * angle;
        const T c = each_lane<T>([](double x) { return std::cos(x); }, half), s = each_lane<T>([](double x) { return std::sin(x); }, half);
        cosine = select(small, 1.0 - squared / 8.0, c);
        sine = select(small, 0.5 - squared / 48.0, s / angle);
        first = 2.0 * sine * sine;
        second = select(small, 1.0 / 6.0 - squared / 120.0, (angle - 2.0 * s * c) / cube);
    }
    TD_INLINE Quat<T> quaternion() const { return {cosine, sine * theta}; }
    TD_INLINE Vec3<T> right_jacobian(const Vec3<T> &v) const {
        const Vec3<T> t = cross(theta, v);
        return v - first * t + second * cross(theta, t);
    }
    TD_INLINE Vec3<T> left_jacobian(const Vec3<T> &v) const {
        const Vec3<T> t = cross(theta, v);
        return v + first * t + second * cross(theta, t);
    }
};

// τ, the turn of a joint in the step that led to p: t = h A_rᵀ q̇. Two free rotations add k n, with the axis n across both. For them
// n·vec p = 0 holds at both ends of the step, which gives k = n·(p⃗ × t)/p₀ (state/minimal.py).
template <class T>
struct StepTurn {
    const bool held;
    Vec3<T> n, t, vector;
    T scalar, k;

    TD_INLINE StepTurn(const FreeAxes<T> &axes, const Quat<T> &p, const Vec3<T> &t)
        : held(axes.joint.free_r() == 2), n(load3(axes.p + parameter::rotations)), t(t), vector(p.v), scalar(p.w),
          k(held ? dot(n, cross(p.v, t)) / p.w : T{}) {}
    TD_INLINE Vec3<T> tau() const { return held ? t + k * n : t; }
    // dτ by δ, the change of p (dp₀ = −p⃗·δ/2, dp⃗ = (p₀ δ + p⃗ × δ)/2), and by dt.
    TD_INLINE Vec3<T> by_p(const Vec3<T> &delta) const {
        if (!held) return Vec3<T>{};
        const Vec3<T> side = cross(t, n);
        return (0.5 * dot((1.0 / scalar) * (k * vector + cross(side, vector)) + side, delta)) * n;
    }
    TD_INLINE Vec3<T> by_t(const Vec3<T> &dt) const { return held ? dt + (dot(cross(n, vector), dt) / scalar) * n : dt; }
};

// The map from (q, q̇) to z.
template <class T>
class TreeStates {
public:
    explicit TreeStates(const MechanismTable &m) : mechanism(m), now(m.num_bodies + 1), before(now) {
        BodyPose<T> &origin = now[m.num_bodies];
        origin = BodyPose<T>{};
        origin.q.w = broadcast<T>(1.0);
        origin.R = rotation_matrix(origin.q);
        before[m.num_bodies] = origin;
    }

    // parameters: the packed ones. z: (13 nb), the result.
    void run(const T *parameters, const T *q, const T *qd, T *z) {
        const T h = parameters[parameter::timestep], inverse = 1.0 / h;
        for (const TreeTable &link : mechanism.tree) {
            const JointTable &joint = mechanism.joints[link.joint];
            const FreeAxes<T> axes(joint, parameters);
            const T *coordinates = q + link.coordinate, *rate = qd + link.coordinate;
            const Quat<T> p = Exponential<T>(axes.rotations(coordinates)).quaternion();
            const Vec3<T> tau = StepTurn<T>(axes, p, h * axes.rotations(rate)).tau(), shift = axes.translations(coordinates);
            place(joint, axes, now, p, shift);
            place(joint, axes, before, conjugate(Exponential<T>(tau).quaternion()) * p, shift - h * axes.translations(rate));
        }
        for (int i = 0; i < mechanism.num_bodies; ++i) {
            const BodyPose<T> &a = before[i], &b = now[i];
            const Quat<T> step = conjugate(a.q) * b.q;
            T *state = &z[state_size * i];
            store3(state, b.x);
            store3(state + 3, inverse * (b.x - a.x));
            state[6] = b.q.w;
            store3(state + 7, b.q.v);
            store3(state + 10, select(step.w < T{}, -2.0 * inverse, 2.0 * inverse) * step.v);
        }
    }

private:
    const MechanismTable &mechanism;
    std::vector<BodyPose<T>> now, before;  // of the bodies; the world is the last

    TD_INLINE static void place(const JointTable &joint, const FreeAxes<T> &axes, std::vector<BodyPose<T>> &poses, const Quat<T> &p,
                                const Vec3<T> &shift) {
        const BodyPose<T> &parent = poses[joint.parent];
        BodyPose<T> &child = poses[joint.child];
        child.q = parent.q * axes.offset_quaternion * p;
        child.R = rotation_matrix(child.q);
        child.x = parent.x + parent.R * (axes.parent_anchor() + shift) - child.R * axes.child_anchor();
    }
};

// Products of gradients of z with the derivative of z by (q, q̇). With g the gradient of z = (x, v, φ, ω) of a body, v = (x − x⁻)/h and
// dω = M⁻¹ (dφ − R(increment)ᵀ dφ⁻), M⁻¹ = (c I + [a]×)/h, the gradients of its poses are
//
//     now:     force g_x + g_v/h,  torque R (g_φ + m)                  m = M⁻ᵀ g_ω = (c g_ω − a × g_ω)/h
//     before:  force −g_v/h,       torque −R m
//
// Summed over subtrees, −h times the gradient before is D. The sum of both gradients is P, in which 1/h cancels:
//
//     P = (g_x, R g_φ + (x − o) × g_x + v × g_v),     D = (g_v, h R m + (x⁻ − o) × g_v),
//     g_q = S·P + (S − S⁻)/h·D,                       g_q̇ = S⁻'·D
//
// Here S and S⁻ are the motions of both configurations by q, and −h S⁻' is the motion of the configuration before by q̇.
template <class T, class R>
class TreeProduct {
public:
    explicit TreeProduct(const MechanismTable &m)
        : q(m.num_coordinates), qd(q), by_q(m.num_coordinates), by_qd(by_q), mechanism(m), bodies(m.num_bodies + 1),
          motions(m.num_coordinates), sums(m.num_bodies + 1) {}

    std::vector<T> q, qd;
    std::vector<R> by_q, by_qd;  // products

    // At q, q̇ and their state in `problem`: a Problem, or another object with bodies, joints, z and parameters.
    template <class At>
    void prepare(const At &problem) {
        // o lies near the robot, so that no digits are lost to the robot's distance from the origin.
        const Vec3<T> o = problem.bodies[mechanism.joints[mechanism.tree[0].joint].child].pose.x;
        prepare(problem, [&](int) -> const Vec3<T> & { return o; });
    }

    // The same with o as a function of the body: one point for each branch from the world. Then only `motion` is of use.
    template <class At, class Origin>
    void prepare(const At &problem, const Origin &origin) {
        const T h = problem.timestep(), inverse = 1.0 / h;
        for (int i = 0; i <= mechanism.num_bodies; ++i) {
            const BodyPose<T> &pose = problem.bodies[i].pose;
            const Vec3<T> o = origin(i);
            Body &body = bodies[i];
            body = Body{pose.R, pose.R, pose.x - o, pose.x - o, Vec3<T>{}, Vec3<T>{}, broadcast<T>(1.0)};
            if (i == mechanism.num_bodies) continue;
            const T *state = &problem.z[state_size * i];
            body.v = load3(state + 3);
            body.a = (0.5 * h) * load3(state + 10);
            body.c = sqrt(1.0 - dot(body.a, body.a));
            body.arm_before = body.arm - h * body.v;
            body.turn_before = rotation_matrix(pose.q * Quat<T>{body.c, -body.a});
        }
        for (const TreeTable &link : mechanism.tree) {
            const JointTable &joint = mechanism.joints[link.joint];
            const FreeAxes<T> axes(joint, problem.parameters.data());
            const Body &parent = bodies[joint.parent], &child = bodies[joint.child];
            Motion *motion = &motions[link.coordinate];
            for (int i = 0; i < joint.free_t(); ++i, ++motion) {
                const Vec3<T> f = axes.translation(i), f_now = parent.turn * f, f_before = parent.turn_before * f;
                *motion = {{f_now, Vec3<T>{}}, {inverse * (f_now - f_before), Vec3<T>{}}, {f_before, Vec3<T>{}}};
            }
            if (!joint.free_r()) continue;
            const Vec3<T> anchor = axes.child_anchor();
            const Vec3<T> place = child.arm + child.turn * anchor, place_before = child.arm_before + child.turn_before * anchor;
            auto about = [](const Vec3<T> &omega, const Vec3<T> &point) { return Row{cross(point, omega), omega}; };
            auto store = [&](const Vec3<T> &axis_now, const Vec3<T> &axis_before, const Vec3<T> &speed) {
                const Row s = about(child.turn * axis_now, place), b = about(child.turn_before * axis_before, place_before);
                const Row change{inverse * (s.linear - b.linear), inverse * (s.angular - b.angular)};
                *motion++ = {s, change, about(child.turn_before * speed, place_before)};
            };
            if (joint.free_r() == 1) {  // rotations about one axis commute
                const Vec3<T> f = axes.rotation(0);
                store(f, f, f);
                continue;
            }
            // p = exp(φ) turns by δ = J_r(φ) f, and p⁻ = exp(−τ) p by δ − R(p)ᵀ J_l(τ) dτ.
            const Exponential<T> phi(axes.rotations(&q[link.coordinate]));
            const StepTurn<T> turn(axes, problem.joints[link.joint].now.p, h * axes.rotations(&qd[link.coordinate]));
            const Exponential<T> tau(turn.tau());
            const Mat3<T> relative = rotation_matrix(problem.joints[link.joint].now.p);
            auto turned = [&](const Vec3<T> &dtau) { return transposed_times(relative, tau.left_jacobian(dtau)); };
            for (int i = 0; i < joint.free_r(); ++i) {
                const Vec3<T> f = axes.rotation(i), delta = phi.right_jacobian(f);
                store(delta, delta - turned(turn.by_p(delta)), turned(turn.by_t(f)));
            }
        }
    }

    void multiply(const DataGradient<R> &g) {
        for (int i = 0; i < mechanism.num_bodies; ++i) {
            const Body &body = bodies[i];
            const Vec3<R> &force = g.x[i], &push = g.v[i];
            sums[i] = {force, body.turn * g.phi[i] + cross(body.arm, force) + cross(body.v, push), push,
                       body.turn * (body.c * g.omega[i] - cross(body.a, g.omega[i])) + cross(body.arm_before, push)};
        }
        for (auto link = mechanism.tree.rbegin(); link != mechanism.tree.rend(); ++link) {
            const JointTable &joint = mechanism.joints[link->joint];
            const Sum &sum = sums[joint.child];
            for (int k = link->coordinate; k < link->coordinate + joint.free(); ++k) {
                const Motion &motion = motions[k];
                by_q[k] = motion.now.times(sum.force, sum.torque) + motion.change.times(sum.push, sum.spin);
                by_qd[k] = motion.speed.times(sum.push, sum.spin);
            }
            Sum &to = sums[joint.parent];
            to = {to.force + sum.force, to.torque + sum.torque, to.push + sum.push, to.spin + sum.spin};
        }
    }

    // The tangents of the bodies for changes of q and q̇: the transpose of `multiply`.
    void push(const R *dq, const R *dqd, std::vector<StateGradient<R>> &tangents) {
        sums[mechanism.num_bodies] = Sum{};
        for (const TreeTable &link : mechanism.tree) {
            const JointTable &joint = mechanism.joints[link.joint];
            Sum &sum = sums[joint.child];
            sum = sums[joint.parent];
            for (int k = link.coordinate; k < link.coordinate + joint.free(); ++k) {
                const Motion &motion = motions[k];
                sum.force = sum.force + dq[k] * motion.now.linear;
                sum.torque = sum.torque + dq[k] * motion.now.angular;
                sum.push = sum.push + dq[k] * motion.change.linear + dqd[k] * motion.speed.linear;
                sum.spin = sum.spin + dq[k] * motion.change.angular + dqd[k] * motion.speed.angular;
            }
        }
        for (int i = 0; i < mechanism.num_bodies; ++i) {
            const Body &body = bodies[i];
            const Sum &sum = sums[i];
            const Vec3<R> spin = transposed_times(body.turn, sum.spin);
            tangents[i] = {sum.force + cross(sum.torque, body.arm), cross(sum.torque, body.v) + sum.push + cross(sum.spin, body.arm_before),
                           transposed_times(body.turn, sum.torque), body.c * spin + cross(body.a, spin)};
        }
    }

    struct Row {
        Vec3<T> linear, angular;
        TD_INLINE R times(const Vec3<R> &force, const Vec3<R> &torque) const { return dot(linear, force) + dot(angular, torque); }
    };
    struct Motion {
        Row now, change, speed;  // S, (S − S⁻)/h, S⁻'
    };
    const Motion &motion(int coordinate) const { return motions[coordinate]; }

private:
    struct Body {
        Mat3<T> turn, turn_before;  // orientation
        Vec3<T> arm, arm_before, v, a;  // center of mass from o, now and before; a = (h/2) ω
        T c;
    };
    struct Sum {
        Vec3<R> force, torque, push, spin;  // P and D; in `push` the velocities that they multiply
    };
    const MechanismTable &mechanism;
    std::vector<Body> bodies;  // the world is the last
    std::vector<Motion> motions;
    std::vector<Sum> sums;
};

}  // namespace torchdojo
