// Gradients of parameters: products of the multipliers with the derivatives of the residual by the packed parameters of an environment
// (their places are those of `parameter` in mechanism.hpp; program.py takes these gradients on to what users give).
//
// V = −λᵀr is differentiated at fixed z, u and w. It depends on the parameters directly, and on the timestep h also through the poses that
// steps lead to: dx⁺/dh = v⁺, dφ⁺/dh = ω⁺/c with the next orientation q ⊗ (c, a), and for poses one step back (of dampers, with the next
// velocities, and of armature, with those that led here) dx/dh = −v, dφ/dh = −ω/c. A half of a split step has its own h, a fixed fraction
// of the one in the parameters.
#pragma once

#include "adjoint_contact.hpp"

namespace torchdojo {

// V by where and how two surfaces touch, in the world frame: the distance φ⁺, the contact frame, and the lever on each body.
template <class T>
struct TouchGradient {
    T distance;
    Vec3<T> n, t1, t2, lever[2];
};

template <class T>
class ParameterGradient {
public:
    explicit ParameterGradient(const MechanismTable &m) : mechanism(m), sum(m.num_parameters) {}

    // Adds the gradient of a step at w: the one of `problem`, whose multipliers and derivatives by the next poses are those of `adjoint`.
    // carried: what the timestep changes of the next state, seen from later steps. factor: of the timestep in the parameters.
    void add(const Problem<T> &problem, const Adjoint<T, T> &adjoint, const T *w, const T &carried, const T &factor) {
        by_timestep = carried;
        for (int i = 0; i < mechanism.num_bodies; ++i) body_product(problem, adjoint, i, w);
        for (int j = 0; j < mechanism.num_joints; ++j) joint_product(problem, adjoint, mechanism.joints[j], problem.joints[j], w);
        for (int c = 0; c < mechanism.num_contacts; ++c) contact_product(problem, adjoint, c, w);
        sum[parameter::timestep] += factor * by_timestep;
    }

    // Lane by lane, the rows (num_parameters numbers each) that gradients are added to; null for lanes that do not count. Several lanes may
    // share a row. Sums of lanes that keep their rows reach them at the next `flush` only.
    void direct(double *const *rows) {
        if (std::equal(rows, rows + lanes<T>, row)) return;
        flush();
        std::copy_n(rows, lanes<T>, row);
    }

    void flush() {
        bool used = false;
        for (int lane = 0; lane < lanes<T>; ++lane) {
            if (!row[lane]) continue;
            used = true;
            for (int k = 0; k < mechanism.num_parameters; ++k) row[lane][k] += get(sum[k], lane);
            row[lane] = nullptr;
        }
        if (used) std::fill(sum.begin(), sum.end(), T{});
    }

private:
    const MechanismTable &mechanism;
    std::vector<T> sum;
    double *row[lanes<T>] = {};
    T by_timestep;

    // Known momentum less the new one: m (v − v⁺ + h g) + h f, and c Jω − a × Jω − (c⁺ Jω⁺ + a⁺ × Jω⁺) + h τ with a = (h/2) ω and
    // c = √(1 − |a|²), before and after.
    void body_product(const Problem<T> &problem, const Adjoint<T, T> &adjoint, int i, const T *w) {
        const T h = problem.timestep();
        const T *p = problem.body_parameters(i), *state = &problem.z[state_size * i], *wrench = &problem.wrench[6 * i];
        T *out = &sum[parameter::bodies + parameter::body_size * i];
        const Vec3<T> linear = load3(&adjoint.multiplier[6 * i]), angular = load3(&adjoint.multiplier[6 * i + 3]);
        const Vec3<T> g = load3(&problem.parameters[parameter::gravity]), v = load3(w + 6 * i);
        const T mass = p[parameter::mass];
        out[parameter::mass] += dot(linear, load3(state + 3) - v + h * g);
        add3(&sum[parameter::gravity], (h * mass) * linear);
        by_timestep += dot(linear, mass * g + load3(wrench)) + dot(angular, load3(wrench + 3));

        const Mat3<T> J = load33(p + parameter::inertia);
        for (const double sign : {1.0, -1.0}) {  // before, after
            const Vec3<T> omega = sign > 0 ? load3(state + 10) : load3(w + 6 * i + 3), a = (0.5 * h) * omega, spin = J * omega;
            const T c = sqrt(1.0 - dot(a, a)), slope = -0.25 * h * dot(omega, omega) / c;  // ∂c/∂h
            const Vec3<T> u = (sign * c) * angular - cross(angular, a);
            for (int r = 0; r < 3; ++r) add3(out + parameter::inertia + 3 * r, u[r] * omega);
            by_timestep += (sign * slope) * dot(angular, spin) - 0.5 * dot(angular, cross(omega, spin));
        }
        const BodyData<T> &body = problem.bodies[i];
        by_timestep += dot(adjoint.x_next[i], v) + dot(adjoint.phi_next[i], load3(w + 6 * i + 3)) / body.increment.w;
    }

    // V by the parameters of a joint. A rotation ψ of the joint frame in itself, R_off ← R_off (I + [ψ]×), changes what depends on p alone as
    // a rotation R_off ψ of the parent does. The quaternion changes by ½ q_off ⊗ (0, ψ), so its gradient is 2 q_off ⊗ (0, ∂V/∂ψ).
    struct JointGradient {
        const JointTable &joint;
        const JointData<T> &data;
        T *out;                           // its packed parameters
        Vec3<T> along, about;             // per force and torque in the joint frame, which act at the current configuration
        Vec3<T> parent_anchor, child_anchor, psi;

        // Of weight·d for d = R_offᵀ (R_aᵀ (x_b + R_b p_b − x_a) − p_a).
        void add_displacement(const BodyPose<T> &parent, const BodyPose<T> &child, const Vec3<T> &weight, const Vec3<T> &d) {
            const Vec3<T> in_parent = data.offset * weight;
            parent_anchor = parent_anchor - in_parent;
            child_anchor = child_anchor + transposed_times(child.R, parent.R * in_parent);
            psi = psi + cross(weight, d);
        }
        void add_free(int i, const Vec3<T> &by_f) {
            const bool translation = i < joint.free_t();
            const int place = translation ? parameter::translations + 3 * (joint.held_t + i)
                                          : parameter::rotations + 3 * (joint.held_r + i - joint.free_t());
            add3(out + place, by_f);
        }
    };

    // Impulses act at the current configuration, where V = f·along + τ·about (see Adjoint::joint_product), and rows hold at the next one.
    void joint_product(const Problem<T> &problem, const Adjoint<T, T> &adjoint, const JointTable &joint, const JointData<T> &data,
                       const T *w) {
        const T *p = &problem.parameters[joint.parameters], *lambda = adjoint.multiplier.data();
        const BodyData<T> &parent = problem.bodies[joint.parent], &child = problem.bodies[joint.child];
        const bool world = joint.parent == mechanism.num_bodies;
        const Vec3<T> anchor = load3(p + parameter::child_anchor), zero{};
        const Vec3<T> a_v = world ? zero : load3(lambda + 6 * joint.parent), a_w = world ? zero : load3(lambda + 6 * joint.parent + 3);
        const Vec3<T> b_v = load3(lambda + 6 * joint.child), b_w = load3(lambda + 6 * joint.child + 3);
        const Vec3<T> swing = transposed_times(parent.pose.R, b_v - a_v + child.pose.R * cross(b_w, anchor));
        const Vec3<T> turning = transposed_times(parent.pose.R, child.pose.R * b_w);
        JointGradient g{joint, data, &sum[joint.parameters], transposed_times(data.offset, swing - cross(a_w, data.now.y_parent)),
                        transposed_times(data.offset, turning - a_w)};

        const JointImpulse<T> impulse = adjoint.joint_impulse(problem, joint, data, w);
        const Vec3<T> force = data.offset * impulse.force;
        auto to_child = [&](const Vec3<T> &v) { return transposed_times(child.pose.R, parent.pose.R * v); };
        g.child_anchor = cross(to_child(force), b_w) - to_child(cross(force, a_w));
        g.psi = cross(impulse.force, g.along) + cross(impulse.torque, g.about);
        // The torque of held rotations is ½ (p_w m + p_v × m).
        const Quat<T> &now = data.now.p, &next = data.next.p;
        const T s = 0.5 * dot(impulse.held, g.about);
        const Vec3<T> v = 0.5 * cross(impulse.held, g.about);
        g.psi = g.psi + 0.5 * (s * now.v - now.w * v - cross(now.v, v));
        if (joint.extra) {
            const RotationVector<T> &angle = problem.free[joint.free_data].now;
            g.psi = g.psi - right_jacobian_inverse(angle, adjoint.push_gradient(angle, impulse.pushes, g.about));
        }

        if (joint.held()) {
            Vec3<T> weight{}, mu{};
            const Vec3<T> d = problem.displacement(joint, data, data.next);
            for (int k = 0; k < joint.held(); ++k) {
                bool translation;
                const Vec3<T> c = adjoint.direction(problem, joint, k, translation);
                const T m = lambda[joint.row + k], x = w[joint.row + k];
                if (translation) {
                    weight = weight - m * c;
                    add3(g.out + parameter::translations + 3 * k, x * g.along - m * d);
                } else {
                    mu = mu + m * c;
                    add3(g.out + parameter::rotations + 3 * (k - joint.held_t),
                         (0.5 * x) * (now.w * g.about + cross(g.about, now.v)) - m * next.v);
                }
            }
            g.add_displacement(parent.next, child.next, weight, d);
            g.psi = g.psi + 0.5 * (next.w * mu + cross(next.v, mu));
        }
        if (joint.free()) free_product(problem, adjoint, g, w);
        if (joint.free_data >= 0) moving_product(problem, adjoint, g, problem.free[joint.free_data]);

        add3(g.out + parameter::parent_anchor, g.parent_anchor);
        add3(g.out + parameter::child_anchor, g.child_anchor);
        const Quat<T> by_q = data.offset_quaternion * Quat<T>{T{}, 2.0 * g.psi};
        g.out[parameter::orientation] += by_q.w;
        add3(g.out + parameter::orientation + 1, by_q.v);
    }

    // Impulses along the free directions f, and what springs and dampers depend on: for translations the displacements now and one step back,
    // for rotations the rotation vectors of p and from p one step back to p. Springs and dampers that are zero everywhere are left out of the
    // step, but not of its gradient.
    void free_product(const Problem<T> &problem, const Adjoint<T, T> &adjoint, JointGradient &g, const T *w) {
        const JointTable &joint = g.joint;
        const JointData<T> &data = g.data;
        const T h = problem.timestep();
        const int free = joint.free();
        const bool acts = adjoint.free_acts(joint), implicit = joint.has_damper || joint.free_data >= 0;
        const BodyData<T> &parent = problem.bodies[joint.parent], &child = problem.bodies[joint.child];
        const BodyPose<T> parent_back = joint.has_damper ? parent.before : one_step_back(parent);
        const BodyPose<T> child_back = joint.has_damper ? child.before : one_step_back(child);
        const Relative<T> back = joint.has_damper ? data.before : problem.relative(joint, parent_back, child_back, data.offset_quaternion);
        const Vec3<T> d = problem.displacement(joint, data, data.now), d_back = problem.displacement(joint, data, back);
        RotationVector<T> angle{}, turn{};
        if (joint.free_r()) {
            angle = joint.has_spring ? data.angle : rotation_vector(data.now.p);
            turn = joint.has_damper ? data.turn : rotation_vector(conjugate(back.p) * data.now.p);
        }
        const T *spring = &problem.parameters[joint.parameters] + parameter::free_values, *damper = spring + free, *rest = damper + free;
        T *by_spring = g.out + parameter::free_values, *by_damper = by_spring + free, *by_rest = by_damper + free;
        Vec3<T> spring_weight{}, spring_turn{}, damper_weight{}, damper_turn{};
        for (int i = 0; i < free; ++i) {
            bool translation;
            const Vec3<T> f = adjoint.direction(problem, joint, joint.held() + i, translation);
            const Vec3<T> position = translation ? d : angle.theta, change = translation ? d - d_back : turn.theta;
            const Vec3<T> &sigma = translation ? g.along : g.about;
            const T power = dot(f, sigma), pull = h * spring[i] * power, drag = damper[i] * power;
            by_spring[i] += h * power * (rest[i] - dot(f, position));  // h k (rest − coordinate)
            by_rest[i] += pull;
            by_damper[i] -= power * dot(f, change);                    // −damper f·change
            Vec3<T> by_f = -pull * position - drag * change;
            if (acts) {
                by_f = by_f + (implicit ? data.free_force[i] + data.impulse[i] : data.free_force[i]) * sigma;
                by_timestep += data.free_force[i] * power / h;
            }
            g.add_free(i, by_f);
            (translation ? spring_weight : spring_turn) = (translation ? spring_weight : spring_turn) - pull * f;
            (translation ? damper_weight : damper_turn) = (translation ? damper_weight : damper_turn) - drag * f;
        }
        if (joint.has_spring || joint.has_damper)
            g.add_displacement(parent.pose, child.pose, spring_weight + damper_weight, d);
        if (joint.has_spring) g.psi = g.psi - right_jacobian_inverse(angle, spring_turn);
        if (!joint.has_damper) return;
        g.add_displacement(parent_back, child_back, -damper_weight, d_back);
        const Vec3<T> anchor = load3(&problem.parameters[joint.parameters] + parameter::child_anchor);
        auto by_back = translation_gradient(parent_back, child_back, data.offset, back, anchor, -damper_weight);
        const Vec3<T> turned = right_jacobian_inverse(turn, damper_turn);
        by_back.phi_child = by_back.phi_child - turned;
        by_back.phi_parent = by_back.phi_parent + data.offset * (rotation_matrix(back.p) * turned);
        step_back(problem, joint, by_back, [&](int b) { return w + 6 * b; }, [&](int b) { return w + 6 * b + 3; });
    }

    // Armature, limits and friction: rates ċ⁺ of the step and ċ of the one before, and coordinates c⁺ (see Adjoint::moving_product).
    void moving_product(const Problem<T> &problem, const Adjoint<T, T> &adjoint, JointGradient &g, const FreeData<T> &from) {
        const JointTable &joint = g.joint;
        const JointData<T> &data = g.data;
        const BodyData<T> &parent = problem.bodies[joint.parent], &child = problem.bodies[joint.child];
        const T inverse = 1.0 / problem.timestep();
        const bool armature = joint.armature >= 0, limited_vector = joint.limited_r && joint.free_r() > 1;
        const Vec3<T> d = problem.displacement(joint, data, data.now), d_next = problem.displacement(joint, data, data.next);
        const Vec3<T> d_before = armature ? problem.displacement(joint, data, from.incoming) : d;
        T rate[6] = {}, coordinate[6] = {};  // weights of h ċ⁺ and c⁺; then those of d and of the rotation vectors
        cone_product(problem, adjoint, joint, from, rate, coordinate);
        Vec3<T> next{}, now{}, before{}, rate_turn{}, before_turn{}, limit_turn{};
        for (int i = 0; i < joint.free(); ++i) {
            bool translation;
            const Vec3<T> f = adjoint.direction(problem, joint, joint.held() + i, translation);
            T reflected{};
            if (armature) {  // −a (ċ⁺ − ċ)
                const T power = dot(f, translation ? g.along : g.about), difference = from.rate[i] - from.incoming_rate[i];
                const T a = problem.parameters[joint.armature + i];
                sum[joint.armature + i] -= power * difference;
                by_timestep += inverse * a * power * difference;
                reflected = inverse * a * power;
                rate[i] -= reflected;
            }
            if (translation) {
                next = next + (rate[i] + coordinate[i]) * f;
                now = now + (reflected - rate[i]) * f;
                before = before - reflected * f;
                g.add_free(i, rate[i] * (d_next - d) + reflected * (d - d_before) + coordinate[i] * d_next);
                continue;
            }
            rate_turn = rate_turn + rate[i] * f;
            Vec3<T> by_f = rate[i] * from.turn.theta;
            if (armature) {
                before_turn = before_turn + reflected * f;
                by_f = by_f + reflected * from.incoming_turn.theta;
            }
            if (limited_vector) {
                limit_turn = limit_turn + coordinate[i] * f;
                by_f = by_f + coordinate[i] * from.next.theta;
            } else if (joint.limited_r) {  // 2 atan2(f·p_v, p_w)
                const Quat<T> &p = data.next.p;
                const T s = dot(f, p.v);
                by_f = by_f + (2.0 * coordinate[i] * p.w / (p.w * p.w + s * s)) * p.v;
                const Vec3<T> by_parent = angle_gradient(joint, data.offset, p, from.next, f).phi_parent;
                g.psi = g.psi + coordinate[i] * transposed_times(data.offset, by_parent);
            }
            g.add_free(i, by_f);
        }
        for (int e = 0; e < joint.extra; ++e)
            g.add_free(joint.free_t() + e, from.extra_impulse[e] * left_jacobian_inverse(from.now, g.about));
        g.add_displacement(parent.next, child.next, next, d_next);
        g.add_displacement(parent.pose, child.pose, now, d);
        if (joint.free_r()) g.psi = g.psi + cross(rate_turn, from.turn.theta);
        if (limited_vector) g.psi = g.psi - right_jacobian_inverse(from.next, limit_turn);
        if (!armature) return;
        const BodyPose<T> &a = from.incoming_parent, &b = from.incoming_child;
        g.add_displacement(a, b, before, d_before);
        const Vec3<T> anchor = load3(&problem.parameters[joint.parameters] + parameter::child_anchor);
        auto by_before = translation_gradient(a, b, data.offset, from.incoming, anchor, before);
        if (joint.free_r()) {
            g.psi = g.psi + cross(before_turn, from.incoming_turn.theta);
            const auto after = turn_gradient(data.offset, from.incoming.p, from.incoming_turn, before_turn);
            by_before.phi_child = by_before.phi_child - after.phi_child;
            by_before.phi_parent = by_before.phi_parent + data.offset * left_jacobian_inverse(from.incoming_turn, before_turn);
        }
        const T *z = problem.z.data();
        step_back(problem, joint, by_before, [&](int b) { return z + state_size * b + 3; }, [&](int b) { return z + state_size * b + 10; });
    }

    static BodyPose<T> one_step_back(const BodyData<T> &body) {
        const Quat<T> q = body.pose.q * conjugate(body.increment);
        return {2.0 * body.pose.x - body.next.x, q, rotation_matrix(q)};
    }

    // Limits and friction of a joint: −ν (±(c⁺ − bound)), and −ν ċ⁺ and 2 λ max(h friction, least) of the pairs' rows.
    void cone_product(const Problem<T> &problem, const Adjoint<T, T> &adjoint, const JointTable &joint, const FreeData<T> &from, T *rate,
                      T *coordinate) {
        const T h = problem.timestep(), inverse = 1.0 / h;
        for (int c = joint.first_cone; c < joint.first_cone + joint.num_cones; ++c) {
            const JointConeTable &cone = mechanism.joint_cones[c];
            if (cone.kind == JointConeTable::friction) {
                const T nu = inverse * adjoint.multiplier[cone.impulse + cone.stride], friction = problem.parameters[cone.parameter];
                const T twice = select(h * friction > broadcast<T>(constant::least_height), 2.0 * adjoint.multiplier[cone.impulse], T{});
                rate[cone.coordinate] -= nu;
                sum[cone.parameter] += h * twice;
                by_timestep += nu * from.rate[cone.coordinate] + friction * twice;
            } else {
                const T nu = cone.sign() * adjoint.multiplier[cone.impulse];
                coordinate[cone.coordinate] -= nu;
                sum[cone.parameter] += nu;
            }
        }
    }

    // What the timestep does to V by the poses one step back, from the velocities of bodies.
    template <class Linear, class Angular>
    void step_back(const Problem<T> &problem, const JointTable &joint, const RowGradient<T, T> &g, const Linear &linear,
                   const Angular &angular) {
        auto subtract = [&](int body, const Vec3<T> &x, const Vec3<T> &phi) {
            if (body == mechanism.num_bodies) return;
            const Vec3<T> omega = load3(angular(body)), a = (0.5 * problem.timestep()) * omega;
            by_timestep -= dot(x, load3(linear(body))) + dot(phi, omega) / sqrt(1.0 - dot(a, a));
        };
        subtract(joint.child, g.x_child, g.phi_child);
        subtract(joint.parent, -g.x_child, g.phi_parent);
    }

    // With P = γ n + Tᵀβ, and ± for the body and the other one, V is
    //     Σ ± (α_v·P + F α_ω·(l × P)) − ν_φ gap − ν_tᵀ T u,    u = Σ ± (v + F ω × l),
    // where the gap is φ⁺ + shift + softness γ, or h n·(u + e u⁻) of an impact that bounces, and F turns from body frames into the world's.
    void contact_product(const Problem<T> &problem, const Adjoint<T, T> &adjoint, int number, const T *w) {
        const ContactTable &contact = mechanism.contacts[number];
        const ContactData<T> &data = problem.contacts[number];
        const Vec3<T> &nu = adjoint.touching[number];
        const T *p = &problem.parameters[contact.parameters];
        const T gamma = w[contact.impulse], h = problem.timestep();
        T *out = &sum[contact.parameters];
        if (contact.friction)  // the rows ξ₁ − μγ, or μγ − 1ᵀβ − sψ
            out[parameter::friction] += (contact.is_pyramid() ? -gamma : gamma) * adjoint.multiplier[contact.impulse + 1];

        const bool plain = contact.pair < 0;
        const PairTable *pair = plain ? nullptr : &mechanism.pairs[contact.pair];
        const BodyData<T> &body = problem.bodies[contact.body];
        Vec3<T> n, t1, t2, force, levers[2];
        if (plain) {
            n = load3(p + parameter::normal), t1 = load3(p + parameter::tangents), t2 = load3(p + parameter::tangents + 3);
            levers[0] = body.next.R * data.lever;
            force = gamma * n;
            if (contact.friction) force = force + data.beta[0] * t1 + data.beta[1] * t2;
        } else {
            const PairData<T> &from = problem.pairs[contact.pair];
            n = from.n, t1 = from.t1, t2 = from.t2, force = from.force;
            levers[0] = from.lever[0], levers[1] = from.lever[1];
        }
        const bool alone = plain || pair->other == mechanism.num_bodies;
        const Vec3<T> slip = contact.friction ? nu.y * t1 + nu.z * t2 : Vec3<T>{};

        TouchGradient<T> g{};
        Vec3<T> test{}, velocity{}, arriving{};  // Σ ± (α_v + F α_ω × l), u and u⁻
        T bounce{}, e{};
        if (contact.restitution >= 0) {
            bounce = select(problem.laws[contact.law].bouncing, h * nu.x, T{});
            e = problem.parameters[contact.restitution];
        }
        for (int i = 0; i < (alone ? 1 : 2); ++i) {
            const int b = i ? pair->other : contact.body;
            const double sign = i ? -1.0 : 1.0;
            const Vec3<T> &lever = levers[i];
            const Mat3<T> &frame = alone ? problem.bodies[b].next.R : problem.bodies[b].pose.R;
            const Vec3<T> alpha = frame * load3(&adjoint.multiplier[6 * b + 3]), omega = frame * load3(w + 6 * b + 3);
            test = test + sign * (load3(&adjoint.multiplier[6 * b]) + cross(alpha, lever));
            velocity = velocity + sign * (load3(w + 6 * b) + cross(omega, lever));
            Vec3<T> turning = omega;
            if (contact.restitution >= 0) {
                const Vec3<T> spin = problem.bodies[b].pose.R * load3(&problem.z[state_size * b + 10]);
                arriving = arriving + sign * (load3(&problem.z[state_size * b + 3]) + cross(spin, lever));
                turning = turning + e * spin;
            }
            g.lever[i] = sign * (cross(force, alpha) - cross(slip, omega) - bounce * cross(n, turning));
        }
        g.n = gamma * test;
        if (contact.friction) g.t1 = data.beta[0] * test - nu.y * velocity, g.t2 = data.beta[1] * test - nu.z * velocity;
        g.distance = -nu.x;
        if (contact.restitution >= 0) {
            const Vec3<T> leaving = velocity + e * arriving;
            g.n = g.n - bounce * leaving;
            g.distance = select(problem.laws[contact.law].bouncing, T{}, g.distance);
            sum[contact.restitution] -= bounce * dot(n, arriving);
            by_timestep -= (bounce / h) * dot(n, leaving);
        }
        if (!plain) return pair_product(problem, contact, *pair, g);

        // φ⁺ = n·(x⁺ + R⁺c) − o − r,  l = R⁺c − r n
        const Vec3<T> point = load3(p + parameter::point);
        Vec3<T> by_point = transposed_times(body.next.R, g.lever[0] + g.distance * n);
        Vec3<T> by_normal = g.n - p[parameter::radius] * g.lever[0] + g.distance * (body.next.x + body.next.R * point);
        T by_distance = g.distance;
        if (contact.recovery >= 0 || contact.stiffness >= 0) {
            const T weight = law_product(problem, contact, g.distance, gamma);  // of the current distance
            by_point = by_point + weight * transposed_times(body.pose.R, n);
            by_normal = by_normal + weight * (body.pose.x + body.pose.R * point);
            by_distance += weight;
        }
        add3(out + parameter::point, by_point);
        out[parameter::radius] -= by_distance + dot(n, g.lever[0]);
        out[parameter::offset] -= by_distance;
        add3(out + parameter::normal, by_normal);
        if (contact.friction) add3(out + parameter::tangents, g.t1), add3(out + parameter::tangents + 3, g.t2);
    }

    // Recovery speed v and compliance, with V changing by `direct` times the gap:
    //     gap = φ⁺ − min(φ + h v, 0) + softness (γ − damping min(φ, 0)),   softness = 1/(h stiffness + damping).
    // Returns the weight of the current distance φ.
    T law_product(const Problem<T> &problem, const ContactTable &contact, const T &direct, const T &gamma) {
        const LawData<T> &law = problem.laws[contact.law];
        const T h = problem.timestep();
        if (contact.recovery >= 0) {
            const T speed = problem.parameters[contact.recovery];
            const T weight = select(law.distance + h * speed < T{}, direct, T{});
            sum[contact.recovery] -= h * weight;
            by_timestep -= speed * weight;
        }
        if (contact.stiffness >= 0) {
            const T overlap = min(law.distance, T{}), damping = problem.parameters[contact.stiffness + 1];
            const T weight = -(direct * law.softness * law.softness) * (gamma - damping * overlap);  // of h stiffness + damping
            sum[contact.stiffness] += h * weight;
            sum[contact.stiffness + 1] += weight - direct * law.softness * overlap;
            by_timestep += weight * problem.parameters[contact.stiffness];
        }
        return -direct * shift_slope(problem, contact);
    }

    // The geometry of shapes by forward derivatives with respect to their numbers, first those of the body, then those of the other.
    void pair_product(const Problem<T> &problem, const ContactTable &contact, const PairTable &pair, const TouchGradient<T> &g) {
        using S = Dual<T>;
        const BodyPose<T> &a = problem.bodies[contact.body].next, &b = problem.bodies[pair.other].next;
        const int kinds[2] = {pair.kind_a, pair.kind_b}, places[2] = {pair.shape_a, pair.shape_b};
        S shapes[2][geometry::most_numbers];
        auto load = [&](int i) {
            for (int k = 0; k < geometry::numbers(kinds[i]); ++k) shapes[i][k] = S(problem.parameters[places[i] + k]);
        };
        load(0), load(1);
        for (const int i : {0, 1}) {
            for (int k = 0; k < geometry::numbers(kinds[i]); ++k) shapes[i][k].d[k] = broadcast<T>(1.0);
            const Touch<S> touching =
                touch<T, S, S>(problem, pair, contact.body, lift<S>(a.x), lift<S>(a.R), lift<S>(b.x), lift<S>(b.R), shapes[0], shapes[1]);
            Vec3<S> t1, t2;
            tangents<T, S>(touching.n, t1, t2);
            S total = g.distance * touching.distance;
            for (int r = 0; r < 3; ++r) {
                total = total + g.n[r] * touching.n[r] + g.lever[0][r] * touching.lever_a[r] + g.lever[1][r] * touching.lever_b[r];
                if (contact.friction) total = total + g.t1[r] * t1[r] + g.t2[r] * t2[r];
            }
            for (int k = 0; k < geometry::numbers(kinds[i]); ++k) sum[places[i] + k] += total.d[k];
            load(i);
        }
    }
};

}  // namespace torchdojo
