// Actuators: from controls to the input u at a state, and the product with the derivative (elements/actuators.py has the law).
//
//     f = clip(G clip(c) + B),   G = gain · (1, l, l̇),   B = bias · (1, l, l̇),   l = l₀ + g q,   l̇ = g q̇
//     u = clip(Σ g f) + Σ d q̇
//
// A clipped value has no derivative. The gradient of u gives, actuator by actuator,
//
//     by f = g by u,   by c = G by f,   by q = g (gain₁ c + bias₁) by f,   by q̇ = g (gain₂ c + bias₂) by f + d by u.
//
// Rotors (elements/rotors.py) have thrusts t = clip(gain₀ clip(c) + bias₀) along axes of a body, whose wrench (f, τ) = Σ t w turns with it:
//
//     u = (R f, R τ),    by t = w · Rᵀ(by u),    by φ = f × Rᵀ(by u_f) + τ × Rᵀ(by u_τ).
//
// Environments are taken one at a time, between the steps of their lanes.
#pragma once

#include "elements/joint_motion.hpp"

namespace torchdojo {

class Actuation {
public:
    explicit Actuation(const MechanismTable &m)
        : mechanism(m), bodies(m.num_bodies + 1, MovingBody<double>::world()), gradients(m.num_bodies + 1), sums(m.num_inputs) {}

    // u of environment n with these packed parameters, at the state z.
    void inputs(const TdLaw &law, const double *parameters, int64_t n, const double *z, const double *ctrl, double *u) {
        if (law.per_thrust) {
            const MovingBody<double> &body = thrust(law, n, z, ctrl);
            std::fill_n(u, mechanism.num_inputs, 0.0);
            store3(u + law.first, body.pose.R * force);
            store3(u + law.first + 3, body.pose.R * torque);
            return;
        }
        evaluate(law, parameters, n, z, ctrl);
        const double *ranges = of_environment(law, n) + law.actuators * actuator::size;
        for (int i = 0; i < mechanism.num_inputs; ++i) u[i] = clip(sums[i], ranges + 2 * i);
        for (const Drive &drive : drives) u[drive.row->input] += drive.p[actuator::carried_damping] * drive.rate;
    }

    // Adds the gradients by ctrl and z for a gradient of u.
    void adjoint(const TdLaw &law, const double *parameters, int64_t n, const double *z, const double *ctrl, const double *grad_u,
                 double *grad_ctrl, double *grad_z) {
        if (law.per_thrust) return adjoint_of_rotors(law, n, z, ctrl, grad_u, grad_ctrl, grad_z);
        evaluate(law, parameters, n, z, ctrl);
        const double *ranges = of_environment(law, n) + law.actuators * actuator::size;
        std::fill(gradients.begin(), gradients.end(), StateGradient<double>{});
        double by_q[6] = {};
        double by_qd[6] = {};
        for (size_t k = 0; k < drives.size(); ++k) {
            const Drive &drive = drives[k];
            const double *p = drive.p;
            const double g = grad_u[drive.row->input];
            const double gear = p[actuator::gear];
            const bool free =
                inside(sums[drive.row->input], ranges + 2 * drive.row->input) && inside(drive.force, p + actuator::forcerange);
            const double by_force = free ? g * gear : 0.0;
            const double control = ctrl[drive.row->number];
            if (inside(control, p + actuator::ctrlrange)) grad_ctrl[drive.row->number] += by_force * drive.gain;
            if (!law.measures) continue;
            const double c = clip(control, p + actuator::ctrlrange);
            by_q[drive.row->coordinate] += by_force * gear * (p[actuator::gain + 1] * c + p[actuator::bias + 1]);
            by_qd[drive.row->coordinate] +=
                by_force * gear * (p[actuator::gain + 2] * c + p[actuator::bias + 2]) + g * p[actuator::carried_damping];
            if (k + 1 < drives.size() && drives[k + 1].row->joint == drive.row->joint) continue;
            const JointTable &joint = mechanism.joints[drive.row->joint];
            const JointMotion<double> motion(joint, parameters, bodies[joint.parent], bodies[joint.child]);
            motion.add_coordinates(by_q, gradients[joint.parent], gradients[joint.child]);
            motion.add_rates(by_qd, gradients[joint.parent], gradients[joint.child]);
            std::fill_n(by_q, 6, 0.0);
            std::fill_n(by_qd, 6, 0.0);
        }
        double own[state_size];
        for (int i = 0; law.measures && i < mechanism.num_bodies; ++i) {
            bodies[i].store(gradients[i], own);
            for (int k = 0; k < state_size; ++k) grad_z[state_size * i + k] += own[k];
        }
    }

private:
    struct Drive {
        const rows::Actuator *row;
        const double *p;
        double rate, gain, force;  // q̇, G, and G c + B before it is clipped
    };
    const MechanismTable &mechanism;
    std::vector<MovingBody<double>> bodies;  // the world is the last
    std::vector<StateGradient<double>> gradients;
    std::vector<double> sums;  // Σ g f of each input
    std::vector<Drive> drives;
    Vec3<double> force, torque;  // of all rotors, in axes of their body

    static const double *of_environment(const TdLaw &law, int64_t n) { return law.values + n * law.stride; }
    static double clip(double x, const double *range) { return x < range[0] ? range[0] : x > range[1] ? range[1] : x; }
    static bool inside(double x, const double *range) { return x >= range[0] && x <= range[1]; }

    // Sets the wrench of the rotors, and gives their body.
    __attribute__((noinline)) const MovingBody<double> &thrust(const TdLaw &law, int64_t n, const double *z, const double *ctrl) {
        force = torque = Vec3<double>{};
        for (int64_t k = 0; k < law.actuators; ++k) {
            const double *p = of_environment(law, n) + actuator::size * k;
            const double *wrench = law.per_thrust + 6 * k;
            const double t = clip(p[actuator::gain] * clip(ctrl[k], p + actuator::ctrlrange) + p[actuator::bias], p + actuator::forcerange);
            force = force + t * load3(wrench);
            torque = torque + t * load3(wrench + 3);
        }
        bodies[law.body].load_pose(z + state_size * law.body);
        return bodies[law.body];
    }

    __attribute__((noinline)) void adjoint_of_rotors(const TdLaw &law, int64_t n, const double *z, const double *ctrl, const double *grad_u,
                                                     double *grad_ctrl, double *grad_z) {
        const MovingBody<double> &body = thrust(law, n, z, ctrl);
        const Vec3<double> by_force = transposed_times(body.pose.R, load3(grad_u + law.first));
        const Vec3<double> by_torque = transposed_times(body.pose.R, load3(grad_u + law.first + 3));
        for (int64_t k = 0; k < law.actuators; ++k) {
            const double *p = of_environment(law, n) + actuator::size * k;
            const double *wrench = law.per_thrust + 6 * k;
            const double t = p[actuator::gain] * clip(ctrl[k], p + actuator::ctrlrange) + p[actuator::bias];
            if (!inside(ctrl[k], p + actuator::ctrlrange) || !inside(t, p + actuator::forcerange)) continue;
            grad_ctrl[k] += p[actuator::gain] * (dot(by_force, load3(wrench)) + dot(by_torque, load3(wrench + 3)));
        }
        StateGradient<double> gradient{};
        gradient.phi = cross(force, by_force) + cross(torque, by_torque);
        double own[state_size];
        body.store(gradient, own);
        for (int k = 0; k < state_size; ++k) grad_z[state_size * law.body + k] += own[k];
    }

    void evaluate(const TdLaw &law, const double *parameters, int64_t n, const double *z, const double *ctrl) {
        const rows::Actuator *rows = reinterpret_cast<const rows::Actuator *>(law.table);
        if (law.measures)
            for (int i = 0; i < mechanism.num_bodies; ++i) bodies[i].load(z + state_size * i, parameters[parameter::timestep]);
        std::fill(sums.begin(), sums.end(), 0.0);
        drives.resize(size_t(law.actuators));
        double q[6] = {};
        double qd[6] = {};
        int measured = -1;  // the joint whose q and q̇ these are
        for (size_t k = 0; k < drives.size(); ++k) {
            Drive &drive = drives[k];
            drive.row = rows + k;
            drive.p = of_environment(law, n) + actuator::size * drive.row->number;
            if (law.measures && drive.row->joint != measured) {
                measured = drive.row->joint;
                const JointTable &joint = mechanism.joints[measured];
                const JointMotion<double> motion(joint, parameters, bodies[joint.parent], bodies[joint.child]);
                motion.coordinates(q);
                motion.rates(qd);
            }
            const double *p = drive.p;
            const double gear = p[actuator::gear];
            drive.rate = qd[drive.row->coordinate];
            const double length = p[actuator::length0] + gear * q[drive.row->coordinate];
            const double velocity = gear * drive.rate;
            auto affine = [&](const double *c) { return c[0] + c[1] * length + c[2] * velocity; };
            drive.gain = affine(p + actuator::gain);
            drive.force = drive.gain * clip(ctrl[drive.row->number], p + actuator::ctrlrange) + affine(p + actuator::bias);
            sums[drive.row->input] += gear * clip(drive.force, p + actuator::forcerange);
        }
    }
};

}  // namespace torchdojo
