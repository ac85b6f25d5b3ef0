// A bound of the residual at the end of Newton's full step, so that a lane that surely converges needs no evaluation to see that.
//
// Newton's step solves the linear equations. Their second-order terms are left, and the change by the projection onto the central path after
// the step. With the largest turn θ = h|δω| and way X = h|δv| of a body, the longest lever ℓ of joints and contacts, and the sums J of
// inertias, d of dampers and m of armatures, the triangle inequality bounds them by:
//
//     displacements of joints and gaps     u = 4 θ (X + ℓ θ + θ)
//     slips and rates                      u/h + 2 |ω| ℓ θ²
//     momentum, dampers, armature          2 (J/h) θ² + (d + m/h) u
//     torques of contacts                  2 ℓ θ (P θ + |δP|), P the sum of their impulses
//     far points                           4 (1 + ℓ)(X + ℓθ) Σ (κ/φ² + ξ₁/(hη₁)): Newton's method leaves out their derivatives
//     projection                           (1 + ℓ) Σ |change of a cone variable|
//
// Multipliers enter with directions that stay the same during the step. Third-order terms are below these where θ is small.
#pragma once

#include "solver/cones.hpp"

namespace torchdojo {

namespace constant {
constexpr double lifted = 1e-8;  // relative deviation from the path below which a start is on it: a projection would only round
constexpr double sure = 0.8;  // fraction of the tolerance below which the bound must be: the rest is for third-order terms
constexpr double sure_residual = 1e-3;  // residual before the step from which on steps are looked at
constexpr double sure_rounding = 1e-8;  // residual that rounding in the linear system leaves, relative to the residual before the step
}  // namespace constant

template <class T>
class Foresight {
public:
    explicit Foresight(const MechanismTable &m) : mechanism(m) {
        has_rates = std::any_of(m.contacts.begin(), m.contacts.end(), [](const ContactTable &contact) { return contact.friction; }) ||
                    std::any_of(m.joint_cones.begin(), m.joint_cones.end(), [](const JointConeTable &cone) { return cone.on_rate(); });
    }

    // Computes levers and sums. `problem` is prepared.
    void prepare(const Problem<T> &problem) {
        const auto length = [](const Vec3<T> &v) { return abs(v.x) + abs(v.y) + abs(v.z); };
        reach = inertia = damping = armature = T{};
        for (int i = 0; i < mechanism.num_bodies; ++i) {
            const T *J = problem.body_parameters(i) + parameter::inertia;
            inertia = max(inertia, J[0] + J[4] + J[8]);
        }
        for (int j = 0; j < mechanism.num_joints; ++j) {
            const JointTable &joint = mechanism.joints[j];
            if (!joint.size) continue;
            const JointData<T> &data = problem.joints[j];
            const T lever = length(data.now.y) + length(load3(&problem.parameters[joint.parameters] + parameter::child_anchor));
            reach = max(reach, lever);
            if (joint.has_damper)
                for (int k = 0; k < joint.free(); ++k) damping += problem.damping(joint, data)[k];
            if (joint.curve >= 0) damping += broadcast<T>(1e300);  // no bound: curves have second-order terms of their own
            if (joint.armature >= 0)
                for (int k = 0; k < joint.free(); ++k) armature += problem.parameters[joint.armature + k];
        }
        const auto touches = [&](const T *p) { reach = max(reach, length(load3(p + parameter::point)) + p[parameter::radius]); };
        for (const ContactTable &contact : mechanism.contacts) touches(&problem.parameters[contact.parameters]);
        if (problem.far.call) reach = max(reach, problem.far.reach);
    }

    // The bound, for the step `direction` to w, whose cone variables Newton's method had at `newton`.
    T bound(const Problem<T> &problem, const Cones<T> &cones, const T *direction, const T *newton, const T *w) const {
        const T h = problem.timestep(), inverse_h = 1.0 / h;
        T turn{}, way{}, speed{}, moved{}, pressed{}, pressing{};
        for (int i = 0; i < mechanism.num_bodies; ++i) {
            const Vec3<T> v = load3(direction + 6 * i), omega = load3(direction + 6 * i + 3), spin = load3(w + 6 * i + 3);
            way = max(way, dot(v, v));
            turn = max(turn, dot(omega, omega));
            speed = max(speed, dot(spin, spin));
        }
        const auto move = [&](int place) { moved += abs(newton[place] - w[place]); };
        for (const auto &[impulse, slack] : cones.pairs) {
            move(impulse);
            move(slack);
        }
        for (const auto &[impulse, slack, c] : cones.discs) {
            move(impulse + 1);
            move(impulse + 2);
            move(slack + 1);
            move(slack + 2);
        }
        for (const ContactTable &contact : mechanism.contacts)
            for (int k = 0; k < contact.size(); ++k) {
                pressed += abs(w[contact.impulse + k]);
                pressing += abs(direction[contact.impulse + k]);
            }
        turn = h * sqrt(turn);
        way = h * sqrt(way);
        const T displaced = 4.0 * turn * (way + (1.0 + reach) * turn);
        T sum = displaced * (1.0 + damping + inverse_h * armature) + (2.0 * inverse_h * inertia) * (turn * turn);
        if (has_rates) sum += inverse_h * displaced + (2.0 * reach) * sqrt(speed) * (turn * turn);
        if (problem.far.call) sum += 4.0 * problem.far.slope * (1.0 + reach) * (way + reach * turn);
        return sum + (2.0 * reach) * turn * (pressed * turn + pressing) + (1.0 + reach) * moved;
    }

private:
    const MechanismTable &mechanism;
    bool has_rates;
    T reach{}, inertia{}, damping{}, armature{};
};

}  // namespace torchdojo
