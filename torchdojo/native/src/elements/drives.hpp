// Drives: from controls and activations to inputs and wrenches at a state, and the product with the derivative (engine/drives.py has the
// order). With a control c, an activation a, a length l and a velocity v of what a drive acts on,
//
//     a⁺ = clip(advance(clip(c), a)),   f = clip(G(l, v) x + B(l, v)),   x = a, a⁺ or clip(c).
//
// A joint has l = l₀ + g q, v = g q̇, a tendon l = g L, v = g L̇, and both get u = g f. A site has l = 0, v = p·(v, ω), and gets the wrench f p:
// its pull p is a force and a torque, fixed in the axes of the body. A clipped value has no derivative.
//
// The environments of several lanes are taken together. One whose control or activation is not finite has inputs that are no numbers, keeps
// its activations, and has no gradients.
#pragma once

#include "base/interleave.hpp"
#include "elements/drive_laws.hpp"
#include "elements/tendon_path.hpp"

namespace torchdojo {

// One step of the environments in the lanes that are `active`.
template <class T>
struct DrivenLanes {
    bool active[lanes<T>] = {};
    int64_t environment[lanes<T>] = {};
    const double *parameters[lanes<T>], *z[lanes<T>], *ctrl[lanes<T>], *act[lanes<T>];

    // The other lanes repeat the numbers of an active one.
    void fill() {
        int from = 0;
        while (!active[from]) ++from;
        for (int lane = 0; lane < lanes<T>; ++lane)
            if (!active[lane]) {
                environment[lane] = environment[from];
                parameters[lane] = parameters[from], z[lane] = z[from], ctrl[lane] = ctrl[from], act[lane] = act[from];
            }
    }
};

template <class T>
class DriveForces {
public:
    explicit DriveForces(const MechanismTable &m)
        : m(m), bodies(m.num_bodies + 1, MovingBody<T>::world()), gradients(m.num_bodies + 1), z(state_size * m.num_bodies),
          parameters(m.num_parameters), u(m.num_inputs), wrench(6 * m.num_bodies) {}

    // For a call of the kernel. shared: the parameters of all environments, or null.
    void begin(const TdDrives &drives, const double *shared) {
        d = &drives, common = shared;
        rates = std::any_of(rows_begin(), rows_end(), [](const rows::Drive &row) { return row.target == drive_target::joint; });
        ctrl.resize(drives.drives), act.resize(drives.activations), next.resize(drives.activations), force.resize(drives.drives);
        numbers.resize(size_t(drives.drives) * drive_number::size);
        for (int k = 0; shared && k < m.num_parameters; ++k) parameters[k] = broadcast<T>(shared[k]);
        for (size_t k = 0; !drives.stride && k < numbers.size(); ++k) numbers[k] = broadcast<T>(drives.values[k]);
    }

    // Inputs, wrenches (with those `given`, null: zero) and activations after the step, one row per lane; forces where they are wanted.
    void step(const DrivenLanes<T> &at, const double *const *given, double *inputs, double *wrenches, double *moved,
              double *const *forces) {
        load(at);
        std::fill(u.begin(), u.end(), T{}), std::fill(wrench.begin(), wrench.end(), T{});
        next = act;
        each([&](const rows::Drive &row, const T *p, const Law &law) {
            force[row.number] = law.force;
            if (row.activation >= 0) next[row.activation] = law.clipped;
            if (row.target == drive_target::site) {
                add3(&wrench[6 * row.body], law.force * law.pull),
                    add3(&wrench[6 * row.body + 3], law.force * load3(p + drive_number::turn));
            } else {
                u[row.input] += p[drive_number::gear] * law.force;
            }
        });
        const int nf = 6 * m.num_bodies;
        constexpr double nan = std::numeric_limits<double>::quiet_NaN();
        for (int lane = 0; lane < lanes<T>; ++lane) {
            if (!at.active[lane]) continue;
            const bool fine = get_mask(good, lane);
            for (int k = 0; k < m.num_inputs; ++k) inputs[lane * m.num_inputs + k] = fine ? get(u[k], lane) : nan;
            for (int k = 0; d->pushes && k < nf; ++k) {
                const double own = fine ? get(wrench[k], lane) : m.num_inputs ? 0.0 : nan;
                wrenches[lane * nf + k] = own + (given[lane] ? given[lane][k] : 0.0);
            }
            for (int64_t k = 0; k < d->activations; ++k) moved[lane * d->activations + k] = fine ? get(next[k], lane) : at.act[lane][k];
            for (int64_t k = 0; forces[lane] && k < d->drives; ++k) forces[lane][k] = fine ? get(force[k], lane) : nan;
        }
    }

    // Adds the gradients by controls and states, for those of inputs and wrenches (a row per lane) and of forces, where they are given.
    // `by_act` (a row per lane) goes from the gradient by the activations after the step to that by those before.
    void adjoint(const DrivenLanes<T> &at, const double *grad_inputs, const double *grad_wrenches, const double *const *grad_forces,
                 double *by_act, double *const *grad_ctrl, double *grad_z) {
        load(at);
        std::fill(gradients.begin(), gradients.end(), StateGradient<T>{});
        const int nf = 6 * m.num_bodies;
        gather(u, grad_inputs, m.num_inputs);
        if (d->pushes) gather(wrench, grad_wrenches, nf);
        gather(next, by_act, int(d->activations));
        for (int64_t k = 0; k < d->drives; ++k)
            for (int lane = 0; lane < lanes<T>; ++lane) set(force[k], lane, grad_forces[lane] ? grad_forces[lane][k] : 0.0);
        T by_q[6] = {}, by_qd[6] = {};
        each([&](const rows::Drive &row, const T *p, const Law &law) {
            const Vec3<T> turn = load3(p + drive_number::turn), push = load3(p + drive_number::push);
            const T &gear = p[drive_number::gear];
            const bool site = row.target == drive_target::site;
            T by_force = force[row.number];
            if (site) {
                const Vec3<T> g = load3(&wrench[6 * row.body]);
                by_force += dot(g, law.pull) + dot(load3(&wrench[6 * row.body + 3]), turn);
                StateGradient<T> &to = gradients[row.body];
                to.phi = to.phi + law.force * cross(push, transposed_times(bodies[row.body].pose.R, g));
            } else {
                by_force += gear * u[row.input];
            }
            by_force = by_force * law.free;
            const T by_length = by_force * (law.gain.first * law.input + law.bias.first);
            const T by_velocity = by_force * (law.gain.second * law.input + law.bias.second);
            force[row.number] = pass(row, law, by_force * law.gain.value);
            if (site) {
                StateGradient<T> &to = gradients[row.body];
                to.v = to.v + by_velocity * law.pull, to.omega = to.omega + by_velocity * turn;
                to.phi = to.phi + by_velocity * cross(push, transposed_times(bodies[row.body].pose.R, bodies[row.body].v));
            } else if (row.target == drive_target::tendon) {
                pull_back_tendon(row.tendon, gear * by_length, gear * by_velocity);
            } else {
                by_q[row.coordinate] += gear * by_length, by_qd[row.coordinate] += gear * by_velocity;
                const rows::Drive *other = &row + 1 < rows_end() ? &row + 1 : nullptr;
                if (other && other->target == drive_target::joint && other->joint == row.joint) return;
                const JointTable &joint = m.joints[row.joint];
                const JointMotion<T> motion(joint, parameters.data(), bodies[joint.parent], bodies[joint.child]);
                motion.add_coordinates(by_q, gradients[joint.parent], gradients[joint.child]);
                motion.add_rates(by_qd, gradients[joint.parent], gradients[joint.child]);
                std::fill_n(by_q, 6, T{}), std::fill_n(by_qd, 6, T{});
            }
        });
        for (int i = 0; i < m.num_bodies; ++i) bodies[i].store(gradients[i], &z[state_size * i]);
        const int nz = state_size * m.num_bodies;
        for (int lane = 0; lane < lanes<T>; ++lane) {
            if (!at.active[lane] || !get_mask(good, lane)) continue;
            for (int k = 0; k < nz; ++k) grad_z[lane * nz + k] += get(z[k], lane);
            for (int64_t k = 0; k < d->drives; ++k) grad_ctrl[lane][k] += get(force[k], lane);
            for (int64_t k = 0; k < d->activations; ++k) by_act[lane * d->activations + k] = get(next[k], lane);
        }
    }

private:
    using Slopes = drive_laws::Slopes<T>;
    using Range = drive_laws::Range<T>;
    // A drive at a state: gain, bias, what the gain is multiplied with, and the force; 1 where it is not clipped; the pull of a site, whose
    // torque is in body axes. Where there is an activation: the next one, and 1 where that is not clipped. 1 where the control is not.
    struct Law {
        Slopes gain, bias, moved;
        T input, force, free, clipped, free_act, free_ctrl;
        Vec3<T> pull;
    };
    const MechanismTable &m;
    const TdDrives *d = nullptr;
    const double *common = nullptr;
    std::vector<MovingBody<T>> bodies;  // the world is the last
    std::vector<StateGradient<T>> gradients;
    std::vector<T> z, parameters, u, wrench, ctrl, act, next, force, numbers;
    Pull<T> pulls[most_tendon_bodies] = {};  // of the tendon that was measured last
    Mask<T> good{};  // lanes whose controls and activations are all finite
    bool rates = false;  // whether some drive acts on a joint

    const rows::Drive *rows_begin() const { return reinterpret_cast<const rows::Drive *>(d->table); }
    const rows::Drive *rows_end() const { return rows_begin() + d->drives; }
    // Numbers of all lanes, a row each, side by side.
    static void gather(std::vector<T> &to, const double *rows, int count) {
        const double *from[lanes<T>];
        for (int lane = 0; lane < lanes<T>; ++lane) from[lane] = rows + lane * count;
        interleave(from, size_t(count), to.data());
    }

    void load(const DrivenLanes<T> &at) {
        interleave(at.z, z.size(), z.data()), interleave(at.ctrl, ctrl.size(), ctrl.data()), interleave(at.act, act.size(), act.data());
        if (!common) interleave(at.parameters, parameters.size(), parameters.data());
        if (d->stride) {
            const double *from[lanes<T>];
            for (int lane = 0; lane < lanes<T>; ++lane) from[lane] = d->values + at.environment[lane] * d->stride;
            interleave(from, numbers.size(), numbers.data());
        }
        T gaps{};  // x − x is zero for finite numbers alone
        for (const T &x : ctrl) gaps += x - x;
        for (const T &x : act) gaps += x - x;
        good = gaps == T{};
        for (int i = 0; i < m.num_bodies; ++i) {
            const T *own = &z[state_size * i];
            if (rates) bodies[i].load(own, parameters[parameter::timestep]);
            else bodies[i].load_pose(own), bodies[i].v = load3(own + 3);
        }
    }

    Vec3<T> omega(int body) const { return body == m.num_bodies ? Vec3<T>{} : load3(&z[state_size * body + 10]); }
    TendonPath<T> path_of(int tendon) const {
        return {m, m.tendons[tendon], parameters.data(), [&](int body) -> const BodyPose<T> & { return bodies[body].pose; }};
    }

    // Adds the gradient of by_length · L + by_velocity · L̇ for the tendon whose pulls were set last.
    void pull_back_tendon(int tendon, const T &by_length, const T &by_velocity) {
        const TendonPath<T> path = path_of(tendon);
        Pull<T> along[most_tendon_bodies];
        for (int i = 0; i < path.places(); ++i) {
            const int body = path.body(i);
            StateGradient<T> &to = gradients[body];
            along[i].force = by_velocity * bodies[body].v, along[i].torque = by_velocity * omega(body);
            to.v = to.v + by_velocity * pulls[i].force, to.omega = to.omega + by_velocity * pulls[i].torque;
        }
        path.pull_back(pulls, by_length, along, [&](int place, const Vec3<T> &x, const Vec3<T> &phi) {
            StateGradient<T> &to = gradients[path.body(place)];
            to.x = to.x + x, to.phi = to.phi + phi;
        });
    }

    // Carries the gradient by the input of the force, and that by the activation after the step, to activation and control.
    T pass(const rows::Drive &row, const Law &law, const T &by_input) {
        if (row.activation < 0) return by_input * law.free_ctrl;
        const T by_next = (row.early ? next[row.activation] + by_input : next[row.activation]) * law.free_act;
        next[row.activation] = row.early ? by_next * law.moved.second : by_next * law.moved.second + by_input;
        return by_next * law.moved.first * law.free_ctrl;
    }

    // Length and velocity of what a drive acts on. at, q, q̇: the joint measured last, with its coordinates and rates.
    void measure(const rows::Drive &row, const T *p, Law &law, int &at, T *q, T *qd, T &length, T &velocity) {
        const T &gear = p[drive_number::gear];
        if (row.target == drive_target::site) {
            law.pull = bodies[row.body].pose.R * load3(p + drive_number::push);
            length = T{}, velocity = dot(law.pull, bodies[row.body].v) + dot(load3(p + drive_number::turn), omega(row.body));
        } else if (row.target == drive_target::tendon) {
            const TendonPath<T> path = path_of(row.tendon);
            length = gear * path.length(pulls);
            T rate{};
            for (int i = 0; i < path.places(); ++i)
                rate += dot(pulls[i].force, bodies[path.body(i)].v) + dot(pulls[i].torque, omega(path.body(i)));
            velocity = gear * rate;
        } else {
            if (row.joint != at) {
                at = row.joint;
                const JointTable &joint = m.joints[at];
                const JointMotion<T> motion(joint, parameters.data(), bodies[joint.parent], bodies[joint.child]);
                motion.coordinates(q), motion.rates(qd);
            }
            length = p[drive_number::length0] + gear * q[row.coordinate], velocity = gear * qd[row.coordinate];
        }
    }

    // Calls f(row, numbers, law) for every drive.
    template <class F>
    void each(F &&f) {
        using namespace drive_laws;
        T q[6] = {}, qd[6] = {};
        int at = -1;
        for (const rows::Drive *entry = rows_begin(); entry != rows_end(); ++entry) {
            const rows::Drive &row = *entry;
            const T *p = &numbers[size_t(row.number) * drive_number::size];
            const auto range = [&](int place) { return Range{p[place], p[place + 1]}; };
            Law law;
            T length, velocity;
            measure(row, p, law, at, q, qd, length, velocity);
            const T *gain = p + drive_number::gain, *bias = p + drive_number::bias;
            law.gain = row.muscle_gain ? muscle_gain_of(length, velocity, gain) : affine(length, velocity, gain);
            law.bias = row.muscle_bias ? muscle_bias_of(length, bias) : affine(length, velocity, bias);
            const Range controls = range(drive_number::ctrlrange), forces = range(drive_number::forcerange);
            const T control = controls.clip(ctrl[row.number]);
            law.free_ctrl = controls.inside(ctrl[row.number]), law.input = control;
            if (row.activation >= 0) {
                const Range acts = range(drive_number::actrange);
                law.moved = drive_laws::advance(row.dynamics, control, act[row.activation], p + drive_number::dynamics,
                                                parameters[parameter::timestep]);
                law.clipped = acts.clip(law.moved.value), law.free_act = acts.inside(law.moved.value);
                law.input = row.early ? law.clipped : act[row.activation];
            }
            const T whole = law.gain.value * law.input + law.bias.value;
            law.free = forces.inside(whole), law.force = forces.clip(whole);
            f(row, p, law);
        }
    }
};

}  // namespace torchdojo
