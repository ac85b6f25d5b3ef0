// Linear couplings of joint coordinates (JointCoupling in couplings.py): c_follower⁺ − ratio c_leader⁺ − offset = 0, one row each. The row
// is a node of its own in the condensed matrix, linked to the bodies of both joints.
//
// The multiplier λ acts along the follower's coordinate, −ratio λ along the leader's. Both act at the current configuration, as limits do,
// through the transposed Jacobian of the coordinate. The full turns that close the coupling of two angles depend on data only and have no
// derivative.
#pragma once

#include "elements/joint_geometry.hpp"
#include "elements/joint_impulse.hpp"

namespace torchdojo {

// One end of a coupling: its joint, and the direction of its coordinate in the joint frame.
template <class T>
struct CouplingEnd {
    const JointTable &joint;
    const JointData<T> &data;
    bool translation;
    Vec3<T> f;

    CouplingEnd(const Problem<T> &problem, const CouplingTable &coupling, int which)
        : joint(problem.mechanism.joints[coupling.joint[which]]), data(problem.joints[coupling.joint[which]]) {
        f = joint_direction(problem, joint, joint.held() + coupling.coordinate[which], translation);
    }

    bool turns() const { return !translation && joint.free_r() == 1; }

    // The coordinate, which becomes a vector `angle` for several rotations. An angle is the one next to `near`, where this is given.
    TD_INLINE T coordinate(const Problem<T> &problem, const Relative<T> &at, const T *near, RotationVector<T> &angle) const {
        if (translation) return dot(f, problem.displacement(joint, data, at));
        if (turns()) return near ? angle_near(at.p, f, *near) : angle_about(at.p, f);
        angle = rotation_vector(at.p);
        return dot(f, angle.theta);
    }

    // Torque along a rotational coordinate, in the joint frame, per unit: J_l⁻ᵀ f.
    TD_INLINE Vec3<T> torque(const RotationVector<T> &angle) const { return turns() ? f : right_jacobian_inverse(angle, f); }
};

// Turns of leader and follower that cancel the `gap` of their coordinates: 2π (n_f − ratio n_l). Where both are angles and no n_l cancels
// the gap, the state is not on the coupling, and n_l = 0 (_unwrapped in couplings.py).
inline void coupling_turns(double gap, double ratio, bool leading, bool following, double &leader, double &follower) {
    constexpr double turn = full_turn;
    leader = follower = 0.0;
    if (leading && following) {
        auto number = [](int k) { return double((k % 2 ? 1 : -1) * ((k + 1) / 2)); };
        auto rest = [&](int k) {
            const double left = gap - turn * ratio * number(k);
            return std::fabs(left - turn * std::nearbyint(left / turn));
        };
        int best = 0;
        for (int k = 1; k <= 2 * constant::most_turns; ++k)
            if (rest(k) < rest(best)) best = k;
        // Several numbers may fit equally well. The smallest one wins, because the ratio separates the others.
        const double enough = rest(best) + constant::alike;
        for (best = 0; rest(best) > enough;) ++best;
        if (rest(best) <= constant::satisfied) leader = number(best);
    } else if (leading && ratio != 0.0) {
        leader = std::nearbyint(gap / (turn * ratio));
    }
    if (following) follower = -std::nearbyint((gap - turn * ratio * leader) / turn);
}

// Numbers that stay the same during the step: turns, and wrenches.
template <class T>
void prepare_coupling(Problem<T> &problem, const CouplingTable &coupling, CouplingData<T> &data) {
    const T *p = &problem.parameters[coupling.parameters];
    const T ratio = p[parameter::coupling::ratio], offset = p[parameter::coupling::offset];
    data.weight[0] = -ratio, data.weight[1] = broadcast<T>(1.0);
    T *value = data.coordinate;
    bool turns[2];
    for (const int e : {0, 1}) {
        const CouplingEnd<T> end(problem, coupling, e);
        turns[e] = end.turns();
        value[e] = end.coordinate(problem, end.data.now, nullptr, data.angle[e]);
    }
    const T gap = value[1] - ratio * value[0] - offset;
    for (int lane = 0; lane < lanes<T>; ++lane) {
        double number[2];
        coupling_turns(get(gap, lane), get(ratio, lane), turns[0], turns[1], number[0], number[1]);
        for (const int e : {0, 1}) set(data.turns[e], lane, full_turn * number[e]);
    }
}

template <class T>
void linearize_coupling(Problem<T> &problem, const CouplingTable &coupling, CouplingData<T> &data, const T *w) {
    const T h = problem.timestep(), lambda = w[coupling.row];
    const int world = problem.mechanism.num_bodies;
    T &row = problem.residual[coupling.row];
    row = -problem.parameters[coupling.parameters + parameter::coupling::offset];
    problem.values[coupling.diagonal] = T{};
    for (const int e : {0, 1}) {
        const CouplingEnd<T> end(problem, coupling, e);
        const BodyData<T> &parent = problem.bodies[end.joint.parent], &child = problem.bodies[end.joint.child];
        const Vec3<T> anchor = load3(&problem.parameters[end.joint.parameters] + parameter::child_anchor);
        const Relative<T> next = problem.relative(end.joint, parent.next, child.next, end.data.offset_quaternion);
        RotationVector<T> angle;
        row += data.weight[e] * (end.coordinate(problem, next, &data.coordinate[e], angle) + data.turns[e]);
        // Wrench of λ on child and parent, and the row. The force on the parent is minus the force on the child.
        RowGradient<T, T> now, &after = data.next[e];
        if (end.translation) {
            now = translation_gradient(parent.pose, child.pose, end.data.offset, end.data.now, anchor, end.f);
            after = translation_gradient(parent.next, child.next, end.data.offset, next, anchor, end.f);
        } else {
            const Vec3<T> in_parent = end.data.offset * end.torque(data.angle[e]);
            now = {Vec3<T>{}, transposed_times(child.pose.R, parent.pose.R * in_parent), -in_parent};
            after = angle_gradient(end.joint, end.data.offset, next.p, angle, end.f);
        }
        after = {data.weight[e] * after.x_child, data.weight[e] * after.phi_child, data.weight[e] * after.phi_parent};
        for (const int which : {0, 1}) {
            const BodyData<T> &body = which ? child : parent;
            const int number = which ? end.joint.child : end.joint.parent, place = 2 * e + which;
            if (number == world) continue;
            const T sign = broadcast<T>(which ? 1.0 : -1.0), scale = sign * data.weight[e];
            const Vec3<T> push[2] = {scale * now.x_child, data.weight[e] * (which ? now.phi_child : now.phi_parent)};
            T *column = &problem.values[coupling.body_coupling[place]], *entries = &problem.values[coupling.coupling_body[place]];
            add3(entries, (sign * h) * after.x_child);
            add3(entries + 3, transposed_times(body.M, which ? after.phi_child : after.phi_parent));
            for (const int k : {0, 1}) {
                add3(column + 3 * k, -push[k]);
                add3(&problem.residual[6 * number + 3 * k], -(lambda * push[k]));
            }
        }
    }
}

// Impulse of a coupling's multiplier λ at one of the two ends.
template <class T>
TD_INLINE JointImpulse<T> coupling_impulse(const CouplingEnd<T> &end, const CouplingData<T> &data, int which, const T &lambda) {
    JointImpulse<T> impulse{};
    (end.translation ? impulse.force : end.turns() ? impulse.turned : impulse.pushes) = (data.weight[which] * lambda) * end.f;
    if (!end.translation && !end.turns()) impulse.angle = &data.angle[which];
    return impulse;
}

template <class T>
struct Couplings {
    static void prepare(Problem<T> &problem) {
        for (int c = 0; c < problem.mechanism.num_couplings; ++c)
            prepare_coupling(problem, problem.mechanism.couplings[c], problem.couplings[c]);
    }

    template <bool condensed, bool derived>
    static void linearize(Problem<T> &problem, const T *w) {
        for (int c = 0; c < problem.mechanism.num_couplings; ++c)
            linearize_coupling(problem, problem.mechanism.couplings[c], problem.couplings[c], w);
    }

    static void condense(Problem<T> &) {}

    template <class R>
    static void differentiate(AdjointState<T, R> &adjoint, const Problem<T> &problem, const T *w) {
        for (int c = 0; c < problem.mechanism.num_couplings; ++c)
            for (const int e : {0, 1}) {
                const CouplingTable &coupling = problem.mechanism.couplings[c];
                const CouplingEnd<T> end(problem, coupling, e);
                const JointImpulse<T> impulse = coupling_impulse(end, problem.couplings[c], e, w[coupling.row]);
                adjoint.coupling_impulses[2 * c + e].set(problem, end.joint, end.data, impulse);
            }
    }

    template <class R>
    static void multiply(AdjointState<T, R> &adjoint, const Problem<T> &problem, const T *) {
        for (int c = 0; c < problem.mechanism.num_couplings; ++c) multiply(adjoint, problem, c);
    }

    static void add_parameters(ParameterSum<T> &to, const Problem<T> &problem, const AdjointState<T, T> &adjoint, const T *w) {
        for (int c = 0; c < problem.mechanism.num_couplings; ++c) add_parameters(to, problem, adjoint, c, w);
    }

private:
    // Rows of the coordinates −μ c⁺, and the impulses along them at the current configuration.
    template <class R>
    static void multiply(AdjointState<T, R> &adjoint, const Problem<T> &problem, int c) {
        const CouplingTable &coupling = problem.mechanism.couplings[c];
        const CouplingData<T> &data = problem.couplings[c];
        const R mu = adjoint.multiplier[coupling.row];
        for (const int e : {0, 1}) {
            const CouplingEnd<T> end(problem, coupling, e);
            const RowGradient<T, T> &g = data.next[e];
            adjoint.subtract(adjoint.x_next, end.joint, mu * g.x_child, -(mu * g.x_child));
            adjoint.subtract(adjoint.phi_next, end.joint, mu * g.phi_child, mu * g.phi_parent);
            impulse_product(adjoint, problem, end.joint, end.data, adjoint.coupling_impulses[2 * c + e]);
        }
    }

    // Couplings: −μ (c_follower⁺ − ratio c_leader⁺ − offset), and the multiplier along the coordinates now.
    static void add_parameters(ParameterSum<T> &to, const Problem<T> &problem, const AdjointState<T, T> &adjoint, int number, const T *w) {
        const CouplingTable &coupling = problem.mechanism.couplings[number];
        const CouplingData<T> &data = problem.couplings[number];
        const T mu = adjoint.multiplier[coupling.row], lambda = w[coupling.row];
        to.sum[coupling.parameters + parameter::coupling::offset] += mu;
        for (const int e : {0, 1}) {
            const CouplingEnd<T> end(problem, coupling, e);
            const BodyPose<T> &parent = problem.bodies[end.joint.parent].next, &child = problem.bodies[end.joint.child].next;
            const Relative<T> next = problem.relative(end.joint, parent, child, end.data.offset_quaternion);
            RotationVector<T> angle{};
            const T coordinate = end.coordinate(problem, next, &data.coordinate[e], angle) + data.turns[e];
            JointGradient<T> g(problem, adjoint.multiplier.data(), end.joint, end.data, &to.sum[end.joint.parameters]);
            g.add_impulse(coupling_impulse(end, data, e, lambda));
            const Vec3<T> push = end.translation ? g.along : end.turns() ? g.about : left_jacobian_inverse(data.angle[e], g.about);
            if (e == 0) to.sum[coupling.parameters + parameter::coupling::ratio] += mu * coordinate - lambda * dot(end.f, push);
            g.add_free(coupling.coordinate[e], (lambda * data.weight[e]) * push);
            g.add_coordinate(coupling.coordinate[e], -mu * data.weight[e], next, angle);
            g.finish();
        }
    }
};

}  // namespace torchdojo
