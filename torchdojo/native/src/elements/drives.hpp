// Drives: from controls and activations to inputs and wrenches at a state, and the product with the derivative (engine/drives.py has the
// order). With a control c, an activation a, a length l and a velocity v of what a drive acts on,
//
//     a⁺ = clip(advance(clip(c), a)),   f = clip(G(l, v) x + B(l, v)),   x = a, a⁺ or clip(c).
//
// A joint has l = l₀ + g q, v = g q̇, and gets u = g f. A site has l = 0, v = p·(v, ω), and gets the wrench f p: its pull p is a force and a
// torque, fixed in the axes of the body. A tendon has l = g L, v = g L̇ and gets
// u = g f. A clipped value has no derivative.
//
// Environments are taken one at a time, between the steps of their lanes.
#pragma once

#include "elements/drive_laws.hpp"
#include "elements/tendon_path.hpp"

namespace torchdojo {

class DriveForces {
public:
    explicit DriveForces(const MechanismTable &m)
        : mechanism(m), bodies(m.num_bodies + 1, MovingBody<double>::world()), gradients(m.num_bodies + 1) {}

    // Activations that follow the environment in each lane, and wrenches with those of sites.
    std::vector<double> activations, wrenches;
    void resize(const TdDrives &d, int lanes) {
        activations.assign(size_t(lanes) * d.activations, 0.0);
        if (d.pushes) wrenches.resize(size_t(lanes) * 6 * mechanism.num_bodies);
    }

    // Sets u, the wrench, which includes the `given` one, and the forces, which may be null. They are no numbers where a control or an
    // activation is none.
    void inputs(const TdDrives &d, const double *parameters, int64_t n, const double *z, const double *ctrl, const double *act,
                const double *given, double *u, double *wrench, double *force) {
        const int nf = 6 * mechanism.num_bodies;
        std::fill_n(u, mechanism.num_inputs, 0.0);
        if (d.pushes) given ? std::copy_n(given, nf, wrench) : std::fill_n(wrench, nf, 0.0);
        if (!good(d, ctrl, act)) {
            constexpr double nan = std::numeric_limits<double>::quiet_NaN();
            std::fill_n(u, mechanism.num_inputs, nan);
            if (!mechanism.num_inputs) std::fill_n(wrench, nf, nan);
            if (force) std::fill_n(force, d.drives, nan);
            return;
        }
        load(parameters, z);
        each(d, parameters, n, z, ctrl, act, [&](const rows::Drive &row, const double *p, const Law &law) {
            if (force) force[row.number] = law.force;
            if (row.target == drive_target::site) {
                add3(wrench + 6 * row.body, law.force * law.pull),
                    add3(wrench + 6 * row.body + 3, law.force * load3(p + drive_number::turn));
            } else {
                u[row.input] += p[drive_number::gear] * law.force;
            }
        });
    }

    // The activations after a step, in place.
    void advance(const TdDrives &d, int64_t n, double h, const double *ctrl, double *act) const {
        if (!good(d, ctrl, act)) return;
        for (int64_t k = 0; k < d.drives; ++k) {
            const rows::Drive &row = rows_of(d)[k];
            if (row.activation < 0) continue;
            const double *p = numbers_of(d, n) + drive_number::size * row.number;
            act[row.activation] = drive_laws::clip(moved(row, p, ctrl, act, h).value, p + drive_number::actrange);
        }
    }

    // Adds the gradients by controls and state. `by_act` goes from the gradient by the activations after the step to that by those before.
    void adjoint(const TdDrives &d, const double *parameters, int64_t n, const double *z, const double *ctrl, const double *act,
                 const double *grad_u, const double *grad_wrench, const double *grad_force, double *by_act, double *grad_ctrl,
                 double *grad_z) {
        if (!good(d, ctrl, act)) return;
        const double h = parameters[parameter::timestep];
        load(parameters, z);
        std::fill(gradients.begin(), gradients.end(), StateGradient<double>{});
        double by_q[6] = {}, by_qd[6] = {};
        int64_t k = 0;
        each(d, parameters, n, z, ctrl, act, [&](const rows::Drive &row, const double *p, const Law &law) {
            const Vec3<double> turn = load3(p + drive_number::turn);
            double by_force = grad_force ? grad_force[row.number] : 0.0;
            if (row.target == drive_target::site) {
                const MovingBody<double> &body = bodies[row.body];
                const Vec3<double> g = load3(grad_wrench + 6 * row.body);
                by_force += dot(g, law.pull) + dot(load3(grad_wrench + 6 * row.body + 3), turn);
                gradients[row.body].phi =
                    gradients[row.body].phi + law.force * cross(load3(p + drive_number::push), transposed_times(body.pose.R, g));
            } else {
                by_force += p[drive_number::gear] * grad_u[row.input];
            }
            if (!law.free) by_force = 0.0;
            const double by_length = by_force * (law.gain.first * law.input + law.bias.first);
            const double by_velocity = by_force * (law.gain.second * law.input + law.bias.second);
            pass(row, p, ctrl, act, h, by_force * law.gain.value, by_act, grad_ctrl);
            if (row.target == drive_target::site) {
                const MovingBody<double> &body = bodies[row.body];
                StateGradient<double> &to = gradients[row.body];
                to.v = to.v + by_velocity * law.pull, to.omega = to.omega + by_velocity * turn;
                to.phi = to.phi + by_velocity * cross(load3(p + drive_number::push), transposed_times(body.pose.R, body.v));
            } else if (row.target == drive_target::tendon) {
                pull_back_tendon(row.tendon, parameters, z, p[drive_number::gear] * by_length, p[drive_number::gear] * by_velocity);
            } else {
                by_q[row.coordinate] += p[drive_number::gear] * by_length, by_qd[row.coordinate] += p[drive_number::gear] * by_velocity;
                const rows::Drive *next = k + 1 < d.drives ? &row + 1 : nullptr;
                if (!next || next->target != drive_target::joint || next->joint != row.joint) {
                    const JointTable &joint = mechanism.joints[row.joint];
                    const JointMotion<double> motion(joint, parameters, bodies[joint.parent], bodies[joint.child]);
                    motion.add_coordinates(by_q, gradients[joint.parent], gradients[joint.child]);
                    motion.add_rates(by_qd, gradients[joint.parent], gradients[joint.child]);
                    std::fill_n(by_q, 6, 0.0), std::fill_n(by_qd, 6, 0.0);
                }
            }
            ++k;
        });
        double own[state_size];
        for (int i = 0; i < mechanism.num_bodies; ++i) {
            bodies[i].store(gradients[i], own);
            for (int j = 0; j < state_size; ++j) grad_z[state_size * i + j] += own[j];
        }
    }

private:
    using Slopes = drive_laws::Slopes;
    // A drive at a state: gain, bias, what the gain is multiplied with, and the force; whether it is not clipped; the pull of a site, whose
    // torque is in body axes.
    struct Law {
        Slopes gain, bias;
        double input, force;
        bool free;
        Vec3<double> pull;
    };
    const MechanismTable &mechanism;
    std::vector<MovingBody<double>> bodies;  // the world is the last
    std::vector<StateGradient<double>> gradients;
    Pull<double> pulls[most_tendon_bodies] = {};  // of the tendon that was measured last

    static const double *numbers_of(const TdDrives &d, int64_t n) { return d.values + n * d.stride; }
    static const rows::Drive *rows_of(const TdDrives &d) { return reinterpret_cast<const rows::Drive *>(d.table); }
    static bool good(const TdDrives &d, const double *ctrl, const double *act) {
        return all_finite(ctrl, int(d.drives)) && all_finite(act, int(d.activations));
    }

    void load(const double *parameters, const double *z) {
        for (int i = 0; i < mechanism.num_bodies; ++i) bodies[i].load(z + state_size * i, parameters[parameter::timestep]);
    }

    Vec3<double> omega(const double *z, int body) const {
        return body == mechanism.num_bodies ? Vec3<double>{} : load3(z + state_size * body + 10);
    }
    TendonPath<double> path_of(int tendon, const double *parameters) const {
        return {mechanism, mechanism.tendons[tendon], parameters, [&](int body) -> const BodyPose<double> & { return bodies[body].pose; }};
    }
    // Adds the gradient of by_length · L + by_velocity · L̇ for the tendon whose pulls were set last.
    void pull_back_tendon(int tendon, const double *parameters, const double *z, double by_length, double by_velocity) {
        const TendonPath<double> path = path_of(tendon, parameters);
        Pull<double> along[most_tendon_bodies];
        for (int i = 0; i < path.places(); ++i) {
            const int body = path.body(i);
            StateGradient<double> &to = gradients[body];
            along[i] = {by_velocity * bodies[body].v, by_velocity * omega(z, body)};
            to.v = to.v + by_velocity * pulls[i].force, to.omega = to.omega + by_velocity * pulls[i].torque;
        }
        path.pull_back(pulls, by_length, along, [&](int place, const Vec3<double> &x, const Vec3<double> &phi) {
            StateGradient<double> &to = gradients[path.body(place)];
            to.x = to.x + x, to.phi = to.phi + phi;
        });
    }

    static Slopes moved(const rows::Drive &row, const double *p, const double *ctrl, const double *act, double h) {
        const double control = drive_laws::clip(ctrl[row.number], p + drive_number::ctrlrange);
        return drive_laws::advance(row.dynamics, control, act[row.activation], p + drive_number::dynamics, h);
    }

    // Carries the gradient by the input of the force, and that by the activation after the step, to control and activation.
    static void pass(const rows::Drive &row, const double *p, const double *ctrl, const double *act, double h, double by_input,
                     double *by_act, double *grad_ctrl) {
        double by_control = by_input;
        if (row.activation >= 0) {
            const Slopes next = moved(row, p, ctrl, act, h);
            double by_next = by_act[row.activation] + (row.early ? by_input : 0.0);
            if (!drive_laws::inside(next.value, p + drive_number::actrange)) by_next = 0.0;
            by_control = by_next * next.first;
            by_act[row.activation] = by_next * next.second + (row.early ? 0.0 : by_input);
        }
        if (drive_laws::inside(ctrl[row.number], p + drive_number::ctrlrange)) grad_ctrl[row.number] += by_control;
    }

    // Calls f(row, numbers, law) for every drive.
    template <class F>
    void each(const TdDrives &d, const double *parameters, int64_t n, const double *z, const double *ctrl, const double *act, F &&f) {
        using namespace drive_laws;
        double q[6] = {}, qd[6] = {};
        int at = -1;  // the joint whose q and q̇ these are
        for (int64_t k = 0; k < d.drives; ++k) {
            const rows::Drive &row = rows_of(d)[k];
            const double *p = numbers_of(d, n) + drive_number::size * row.number;
            Law law{};
            double length = 0.0, velocity = 0.0;
            if (row.target == drive_target::site) {
                const MovingBody<double> &body = bodies[row.body];
                law.pull = body.pose.R * load3(p + drive_number::push);
                velocity = dot(law.pull, body.v) + dot(load3(p + drive_number::turn), omega(z, row.body));
            } else if (row.target == drive_target::tendon) {
                const TendonPath<double> path = path_of(row.tendon, parameters);
                length = p[drive_number::gear] * path.length(pulls);
                for (int i = 0; i < path.places(); ++i)
                    velocity += dot(pulls[i].force, bodies[path.body(i)].v) + dot(pulls[i].torque, omega(z, path.body(i)));
                velocity *= p[drive_number::gear];
            } else {
                if (row.joint != at) {
                    at = row.joint;
                    const JointTable &joint = mechanism.joints[at];
                    const JointMotion<double> motion(joint, parameters, bodies[joint.parent], bodies[joint.child]);
                    motion.coordinates(q), motion.rates(qd);
                }
                length = p[drive_number::length0] + p[drive_number::gear] * q[row.coordinate];
                velocity = p[drive_number::gear] * qd[row.coordinate];
            }
            const double *gain = p + drive_number::gain, *bias = p + drive_number::bias;
            law.gain = row.muscle_gain ? muscle_gain_of(length, velocity, gain) : affine(length, velocity, gain);
            law.bias = row.muscle_bias ? muscle_bias_of(length, bias) : affine(length, velocity, bias);
            if (row.activation < 0) law.input = clip(ctrl[row.number], p + drive_number::ctrlrange);
            else if (row.early)
                law.input = clip(moved(row, p, ctrl, act, parameters[parameter::timestep]).value, p + drive_number::actrange);
            else law.input = act[row.activation];
            const double force = law.gain.value * law.input + law.bias.value;
            law.free = inside(force, p + drive_number::forcerange), law.force = clip(force, p + drive_number::forcerange);
            f(row, p, law);
        }
    }
};

}  // namespace torchdojo
