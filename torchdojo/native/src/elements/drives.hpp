// Drives: from controls and activations to inputs and wrenches at a state, and the product with the derivative (engine/drives.py has the
// order). With a control c, an activation a, a length l and a velocity v of what a drive acts on,
//
//     a⁺ = clip(advance(clip(c), a)),   f = clip(G(l, v) x + B(l, v)),   x = a, a⁺ or clip(c).
//
// A joint has l = l₀ + g q, v = g q̇, a tendon l = g L, v = g L̇, and both get u = g f. A site has l = 0, v = p·(v, ω), and gets the wrench f p:
// its pull p is a force and a torque, fixed in the axes of the body. Two sites, and a crank with its slider, have a pull on each of their bodies
// (drive_frames.hpp), and adhesion has one on all bodies that its body touches (drive_adhesion.hpp). A clipped value has no derivative.
//
// With a delay of k steps, c is the last of k controls on their way. These are among the activations, newest first, and move by one place with
// each step.
//
// The environments of several lanes are taken together. One whose control or activation is not finite has inputs that are no numbers, keeps
// its activations, and has no gradients.
#pragma once

#include "base/interleave.hpp"
#include "elements/drive_adhesion.hpp"
#include "elements/drive_frames.hpp"
#include "elements/drive_laws.hpp"
#include "elements/drive_tendons.hpp"

namespace torchdojo {

// Data of one step of the environments in the lanes that are `active`.
template <class T>
struct DrivenLanes {
    bool active[lanes<T>] = {};
    int row[lanes<T>] = {};  // of arrays with a row per environment
    int64_t environment[lanes<T>] = {};
    const double *parameters[lanes<T>], *z[lanes<T>], *ctrl[lanes<T>], *act[lanes<T>];

    // The other lanes repeat the numbers of an active one.
    void fill() {
        int from = 0;
        while (!active[from]) ++from;
        for (int lane = 0; lane < lanes<T>; ++lane)
            if (!active[lane]) {
                row[lane] = row[from];
                environment[lane] = environment[from];
                parameters[lane] = parameters[from];
                z[lane] = z[from];
                ctrl[lane] = ctrl[from];
                act[lane] = act[from];
            }
    }
};

template <class T>
class DriveForces {
public:
    explicit DriveForces(const MechanismTable &m)
        : m(m), bodies(m.num_bodies + 1, MovingBody<T>::world()), gradients(m.num_bodies + 1), z(state_size * m.num_bodies),
          parameters(m.num_parameters), u(m.num_inputs), wrench(6 * m.num_bodies), separated(lanes<T> * z.size()),
          tendons(m, bodies, z, parameters, gradients) {}

    // Begins a call of the kernel. shared: the parameters of all environments, or null.
    void begin(const TdDrives &drives, const double *shared) {
        d = &drives;
        common = shared;
        needs.assign(m.num_bodies, 0);
        tendons.active = false;
        const auto need = [&](int body, uint8_t what) {
            if (body < m.num_bodies) needs[body] |= what;
        };
        for (const rows::Drive *row = rows_begin(); row != rows_end(); ++row) {
            if (row->target == drive_target::site) {
                need(row->body, frame);
            } else if (row->target == drive_target::body) {
                Adhesion<T>::each_pair(m, row->body, [&](int body, int other) { need(body, frame), need(other, frame); });
                held.resize(m.num_bodies + 1);
                along.resize(m.num_bodies + 1);
            } else if (between(*row)) {
                for (int32_t body : {row->body, row->other, row->carrier})
                    if (body >= 0) need(body, frame);
            } else if (row->target == drive_target::tendon) {
                tendons.active = true;
            } else {
                const JointTable &joint = m.joints[row->joint];
                need(joint.parent, hinge(joint) ? turns : moves);
                need(joint.child, hinge(joint) ? turns : moves);
            }
        }
        for (const TendonTable &tendon : m.tendons)
            for (int k = 0; tendons.active && k < tendon.num_bodies; ++k) need(m.tendon_bodies[tendon.first_body + k], frame);
        ctrl.resize(drives.drives);
        act.resize(drives.activations);
        next.resize(drives.activations);
        force.resize(drives.drives);
        if (drives.stride) numbers.resize(size_t(drives.drives) * drive_number::size);
        for (int k = 0; shared && k < m.num_parameters; ++k) parameters[k] = broadcast<T>(shared[k]);
    }

    // Tendons at which drives pull.
    const DriveTendons<T> &pulled() const { return tendons; }

    // Inputs, wrenches (with those `given`, null: zero) and activations after the step, one row per lane; forces where they are wanted.
    void step(const DrivenLanes<T> &driven, const double *const *given, double *inputs, double *wrenches, double *moved,
              double *const *forces) {
        load<false>(driven);
        tendons.measure();
        std::fill(u.begin(), u.end(), T{});
        std::fill(wrench.begin(), wrench.end(), T{});
        next = act;
        each([&](const rows::Drive &row, const auto &p, const Law &law) {
            force[row.number] = law.force;
            if (row.activation >= 0) next[row.activation] = law.clipped;
            if (row.steps) {
                std::copy_n(&act[row.delay], row.steps - 1, &next[row.delay] + 1);
                next[row.delay] = ctrl[row.number];
            }
            if (row.target == drive_target::site) {
                add3(&wrench[6 * row.body], law.force * law.pull);
                add3(&wrench[6 * row.body + 3], law.force * p.vector(drive_number::turn));
            } else if (row.target == drive_target::body) {
                for (int i = 0; i < m.num_bodies; ++i) {
                    add3(&wrench[6 * i], law.force * held[i].force);
                    add3(&wrench[6 * i + 3], law.force * held[i].torque);
                }
            } else if (between(row)) {
                each_place(row, [&](int place, int body) {
                    add3(&wrench[6 * body], law.force * pulls[place].force);
                    add3(&wrench[6 * body + 3], law.force * pulls[place].torque);
                });
            } else {
                u[row.input] += p[drive_number::gear] * law.force;
            }
        });
        const int nf = 6 * m.num_bodies;
        constexpr double nan = std::numeric_limits<double>::quiet_NaN();
        for (int lane = 0; lane < lanes<T>; ++lane) {
            if (!driven.active[lane]) continue;
            const bool fine = get_mask(good, lane);
            for (int k = 0; k < m.num_inputs; ++k) inputs[lane * m.num_inputs + k] = fine ? get(u[k], lane) : nan;
            for (int k = 0; d->pushes && k < nf; ++k) {
                const double own = fine ? get(wrench[k], lane) : m.num_inputs ? 0.0 : nan;
                wrenches[lane * nf + k] = own + (given[lane] ? given[lane][k] : 0.0);
            }
            for (int64_t k = 0; k < d->activations; ++k) moved[lane * d->activations + k] = fine ? get(next[k], lane) : driven.act[lane][k];
            for (int64_t k = 0; forces[lane] && k < d->drives; ++k) forces[lane][k] = fine ? get(force[k], lane) : nan;
        }
    }

    // Adds the gradients by controls and states, for those of inputs and wrenches (in rows) and of forces, where they are given. `by_act` (in
    // rows) goes from the gradient by the activations after the step to that by those before. problem: null, or one that has measured the
    // tendons in the same lanes; then the gradients by tendons that wait are pulled back, too.
    void adjoint(const DrivenLanes<T> &driven, const Problem<T> *problem, TendonGradient<T> *waiting, const double *grad_inputs,
                 const double *grad_wrenches, const double *const *grad_forces, double *by_act, double *const *grad_ctrl, double *grad_z) {
        load<true>(driven);
        tendons.begin_gradients(problem, waiting);
        std::fill(gradients.begin(), gradients.end(), StateGradient<T>{});
        const int nf = 6 * m.num_bodies;
        gather(driven, u, grad_inputs, m.num_inputs);
        if (d->pushes) gather(driven, wrench, grad_wrenches, nf);
        gather(driven, next, by_act, int(d->activations));
        for (int64_t k = 0; k < d->drives; ++k)
            for (int lane = 0; lane < lanes<T>; ++lane) set(force[k], lane, grad_forces[lane] ? grad_forces[lane][k] : 0.0);
        T by_q[6] = {};
        T by_qd[6] = {};
        each([&](const rows::Drive &row, const auto &p, const Law &law) {
            const Vec3<T> turn = p.vector(drive_number::turn);
            const Vec3<T> push = p.vector(drive_number::push);
            const T gear = p[drive_number::gear];
            const bool site = row.target == drive_target::site;
            T by_force = force[row.number];
            if (site) {
                const Vec3<T> g = load3(&wrench[6 * row.body]);
                by_force += dot(g, law.pull) + dot(load3(&wrench[6 * row.body + 3]), turn);
                StateGradient<T> &to = gradients[row.body];
                to.phi = to.phi + law.force * cross(push, transposed_times(bodies[row.body].pose.R, g));
            } else if (row.target == drive_target::body) {
                for (int i = 0; i < m.num_bodies; ++i) by_force += by_wrench(i, held[i]);
            } else if (between(row)) {
                each_place(row, [&](int place, int body) { by_force += by_wrench(body, pulls[place]); });
            } else {
                by_force += gear * u[row.input];
            }
            by_force = by_force * law.free;
            const T by_length = by_force * (law.gain.first * law.input + law.bias.first);
            const T by_velocity = by_force * (law.gain.second * law.input + law.bias.second);
            force[row.number] = arrive(row, pass(row, law, by_force * law.gain.value));
            if (site) {
                StateGradient<T> &to = gradients[row.body];
                to.v = to.v + by_velocity * law.pull;
                to.omega = to.omega + by_velocity * turn;
                to.phi = to.phi + by_velocity * cross(push, transposed_times(bodies[row.body].pose.R, bodies[row.body].v));
            } else if (row.target == drive_target::body) {
                pull_back_adhesion(row, p, law.force, by_velocity);
            } else if (between(row)) {
                pull_back_frames(row, p, law.force, by_length, by_velocity);
            } else if (row.target == drive_target::tendon) {
                tendons.add_gradient(row.tendon, gear * by_length, gear * by_velocity);
            } else {
                by_q[row.coordinate] += gear * by_length;
                by_qd[row.coordinate] += gear * by_velocity;
                const rows::Drive *other = &row + 1 < rows_end() ? &row + 1 : nullptr;
                if (other && other->target == drive_target::joint && other->joint == row.joint) return;
                const JointTable &joint = m.joints[row.joint];
                const JointMotion<T> motion(joint, parameters.data(), bodies[joint.parent], bodies[joint.child]);
                motion.add_coordinates(by_q, gradients[joint.parent], gradients[joint.child]);
                motion.add_rates(by_qd, gradients[joint.parent], gradients[joint.child]);
                std::fill_n(by_q, 6, T{});
                std::fill_n(by_qd, 6, T{});
            }
        });
        tendons.pull_back();
        add_gradients(driven, by_act, grad_ctrl, grad_z);
    }

private:
    using Slopes = drive_laws::Slopes<T>;
    // Parts of a body that drives need: its attitude and turn in the step before, its frame, or also that one step before.
    enum Need : uint8_t { turns = 1, frame = 2, moves = 4 };
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
    std::vector<T> z, parameters, u, wrench, ctrl, act, next, force;
    std::vector<T> numbers;  // of the drives, where environments have their own
    std::vector<double> separated;  // gradients by states, in rows of lanes
    DriveTendons<T> tendons;
    Pull<T> pulls[3] = {};  // of the frames that were measured last
    std::vector<Pull<T>> held, along;  // of all bodies, of the adhesion that was measured last, and what its pulls are multiplied with
    const double *samples[lanes<T>] = {};  // of height fields, behind the parameters
    Mask<T> good{};  // lanes whose controls and activations are all finite
    std::vector<uint8_t> needs;  // per body

    const rows::Drive *rows_begin() const { return reinterpret_cast<const rows::Drive *>(d->table); }
    const rows::Drive *rows_end() const { return rows_begin() + d->drives; }
    // Numbers of all lanes, a row each, side by side.
    static void gather(const DrivenLanes<T> &driven, std::vector<T> &to, const double *rows, int count) {
        const double *from[lanes<T>];
        for (int lane = 0; lane < lanes<T>; ++lane) from[lane] = rows + driven.row[lane] * count;
        interleave(from, size_t(count), to.data());
    }

    // Whether a drive acts between frames of two bodies.
    static bool between(const rows::Drive &row) { return row.target >= drive_target::sites && row.target != drive_target::body; }
    // Calls f(place, body) for the bodies that such a drive pulls, but for the world.
    template <class F>
    TD_INLINE void each_place(const rows::Drive &row, F &&f) const {
        const int32_t places[] = {row.body, row.other, row.carrier};
        for (int i = 0; i < (row.target == drive_target::crank ? 2 : 3); ++i)
            if (places[i] < m.num_bodies) f(i, places[i]);
    }
    // The result of f for the frames of such a drive.
    template <class P, class F>
    TD_INLINE auto with_frames(const rows::Drive &row, const P &p, F &&f) const {
        const MovingBody<T> &own = bodies[row.body], &other = bodies[row.other];
        if (row.target == drive_target::crank) return f(SliderCrank<T>(own, other, p));
        return f(SitePair<T>(own, other, bodies[row.carrier], p));
    }
    TD_INLINE T by_wrench(int body, const Pull<T> &pull) const {
        return dot(load3(&wrench[6 * body]), pull.force) + dot(load3(&wrench[6 * body + 3]), pull.torque);
    }

    // Adds the gradients by controls and states, and stores those by activations, in the lanes that have some.
    void add_gradients(const DrivenLanes<T> &driven, double *by_act, double *const *grad_ctrl, double *grad_z) {
        for (int i = 0; i < m.num_bodies; ++i) {
            if (needs[i]) bodies[i].store(gradients[i], &z[state_size * i]);
            else std::fill_n(&z[state_size * i], state_size, T{});
        }
        const int nz = state_size * m.num_bodies;
        double *to[lanes<T>];
        for (int lane = 0; lane < lanes<T>; ++lane) to[lane] = &separated[lane * nz];
        separate(z.data(), z.size(), to, lanes<T>);
        for (int lane = 0; lane < lanes<T>; ++lane) {
            if (!driven.active[lane] || !get_mask(good, lane)) continue;
            const int row = driven.row[lane];
            for (int k = 0; k < nz; ++k) grad_z[row * nz + k] += separated[lane * nz + k];
            for (int64_t k = 0; k < d->drives; ++k) grad_ctrl[lane][k] += get(force[k], lane);
            for (int64_t k = 0; k < d->activations; ++k) by_act[row * d->activations + k] = get(next[k], lane);
        }
    }

    static bool hinge(const JointTable &joint) { return joint.free_t() == 0 && joint.free_r() == 1; }

    // derived: for derivatives, too.
    template <bool derived>
    void load(const DrivenLanes<T> &driven) {
        interleave(driven.z, z.size(), z.data());
        interleave(driven.ctrl, ctrl.size(), ctrl.data());
        interleave(driven.act, act.size(), act.data());
        std::copy_n(driven.parameters, lanes<T>, samples);
        if (!common) interleave(driven.parameters, parameters.size(), parameters.data());
        if (d->stride) {
            const double *from[lanes<T>];
            for (int lane = 0; lane < lanes<T>; ++lane) from[lane] = d->values + driven.environment[lane] * d->stride;
            interleave(from, numbers.size(), numbers.data());
        }
        T gaps{};  // x − x is zero for finite numbers alone
        for (const T &x : ctrl) gaps += x - x;
        for (const T &x : act) gaps += x - x;
        good = gaps == T{};
        for (int i = 0; i < m.num_bodies; ++i) {
            const T *own = &z[state_size * i];
            const T &h = parameters[parameter::timestep];
            if (!needs[i]) continue;
            if (needs[i] & moves || (derived && needs[i] & turns)) {
                bodies[i].load(own, h);
                continue;
            }
            if (needs[i] & frame) {
                bodies[i].load_pose(own);
                bodies[i].v = load3(own + 3);
            } else bodies[i].load_attitude(own);
            if (needs[i] & turns) bodies[i].load_turn(own, h);
        }
    }

    Vec3<T> omega(int body) const { return body == m.num_bodies ? Vec3<T>{} : load3(&z[state_size * body + 10]); }
    // Adds the gradient of by_length · l + by_velocity · v + by wrench · force · pulls for the frames whose pulls were set last.
    template <class P>
    TD_INLINE void pull_back_frames(const rows::Drive &row, const P &p, const T &force, const T &by_length, const T &by_velocity) {
        Pull<T> along[3] = {}, by[3];
        each_place(row, [&](int place, int body) {
            along[place].force = force * load3(&wrench[6 * body]) + by_velocity * bodies[body].v;
            along[place].torque = force * load3(&wrench[6 * body + 3]) + by_velocity * omega(body);
        });
        const T measured = row.target == drive_target::floating ? T{} : by_length;
        with_frames(row, p, [&](const auto &frames) { frames.pull_back(measured, along, by); });
        each_place(row, [&](int place, int body) {
            StateGradient<T> &to = gradients[body];
            to.x = to.x + by[place].force;
            to.phi = to.phi + by[place].torque;
            to.v = to.v + by_velocity * pulls[place].force;
            to.omega = to.omega + by_velocity * pulls[place].torque;
        });
    }

    // The same for an adhesion whose pulls were set last.
    template <class P>
    TD_INLINE void pull_back_adhesion(const rows::Drive &row, const P &p, const T &force, const T &by_velocity) {
        const T gear = p[drive_number::gear];
        along[m.num_bodies] = Pull<T>{};
        for (int i = 0; i < m.num_bodies; ++i) {
            along[i].force = gear * (force * load3(&wrench[6 * i]) + by_velocity * bodies[i].v);
            along[i].torque = gear * (force * load3(&wrench[6 * i + 3]) + by_velocity * omega(i));
            gradients[i].v = gradients[i].v + by_velocity * held[i].force;
            gradients[i].omega = gradients[i].omega + by_velocity * held[i].torque;
        }
        adhesion(row).pull_back(p[drive_number::reach], along.data(), [&](int body, const Vec3<T> &x, const Vec3<T> &phi) {
            gradients[body].x = gradients[body].x + x;
            gradients[body].phi = gradients[body].phi + phi;
        });
    }
    Adhesion<T> adhesion(const rows::Drive &row) const { return {m, bodies, parameters.data(), samples, row.body}; }

    // Carries the gradient by the control that a drive takes, and those by the controls on their way after the step, to those before it; the
    // result is the gradient by the control that is given.
    T arrive(const rows::Drive &row, const T &by_control) {
        if (!row.steps) return by_control;
        T *by = &next[row.delay];
        const T by_given = by[0];
        std::copy_n(by + 1, row.steps - 1, by);
        by[row.steps - 1] = by_control;
        return by_given;
    }

    // Carries the gradient by the input of the force, and that by the activation after the step, to activation and control.
    T pass(const rows::Drive &row, const Law &law, const T &by_input) {
        if (row.activation < 0) return by_input * law.free_ctrl;
        const T by_next = (row.early ? next[row.activation] + by_input : next[row.activation]) * law.free_act;
        next[row.activation] = row.early ? by_next * law.moved.second : by_next * law.moved.second + by_input;
        return by_next * law.moved.first * law.free_ctrl;
    }

    // Coordinate and rate of a joint with one rotation, as `JointMotion` has them. With the attitudes R of the bodies and their turns
    // (c, a) in the step before, p p⁻⁻¹ is the rotation (c_b, R_aᵀ R_b a_b) (c_a, −a_a) in the frame of the parent.
    TD_INLINE void measure_hinge(const JointTable &joint, T &q, T &qd) const {
        const MovingBody<T> &parent = bodies[joint.parent], &child = bodies[joint.child];
        const T *p = parameters.data() + joint.parameters;
        const Vec3<T> axis = load3(p + parameter::rotations + 3 * joint.held_r);
        const Quat<T> offset = load4(p + parameter::orientation);
        const Vec3<T> in_parent = rotate(offset, axis);
        Vec3<T> turn = rotate(child.pose.q, child.a);
        T cosine = child.c, along;
        if (joint.parent == m.num_bodies) {
            q = angle_about(conjugate(offset) * child.pose.q, axis);
            along = dot(in_parent, turn);
        } else {
            q = angle_about(conjugate(parent.pose.q * offset) * child.pose.q, axis);
            turn = rotate(conjugate(parent.pose.q), turn);
            const Quat<T> both = Quat<T>{cosine, turn} * Quat<T>{parent.c, -parent.a};
            cosine = both.w;
            turn = both.v;
            along = dot(in_parent, turn);
        }
        T scale, curvature;
        turn_scale(cosine, dot(turn, turn), scale, curvature);
        qd = scale * along * inverse_of(child.h);
    }

    // Length and velocity of what a drive acts on, and its pull at a site. measured, q, q̇: the joint measured last, with its coordinates and
    // rates.
    template <class P>
    TD_INLINE void measure(const rows::Drive &row, const P &p, Vec3<T> &pull, int &measured, T *q, T *qd, T &length, T &velocity) {
        const T gear = p[drive_number::gear];
        if (row.target == drive_target::site) {
            pull = bodies[row.body].pose.R * p.vector(drive_number::push);
            length = T{};
            velocity = dot(pull, bodies[row.body].v) + dot(p.vector(drive_number::turn), omega(row.body));
        } else if (row.target == drive_target::body) {
            adhesion(row).measure(p[drive_number::reach], held.data());
            length = velocity = T{};
            for (int i = 0; i < m.num_bodies; ++i) {
                held[i] = {gear * held[i].force, gear * held[i].torque};
                velocity += dot(held[i].force, bodies[i].v) + dot(held[i].torque, omega(i));
            }
        } else if (between(row)) {
            length = with_frames(row, p, [&](const auto &frames) { return frames.length(pulls); });
            if (row.target == drive_target::floating) length = T{};
            velocity = T{};
            each_place(row, [&](int place, int body) {
                velocity += dot(pulls[place].force, bodies[body].v) + dot(pulls[place].torque, omega(body));
            });
        } else if (row.target == drive_target::tendon) {
            length = gear * tendons.length(row.tendon);
            velocity = gear * tendons.rate(row.tendon);
        } else {
            if (row.joint != measured) {
                measured = row.joint;
                const JointTable &joint = m.joints[measured];
                if (hinge(joint)) measure_hinge(joint, q[0], qd[0]);
                else measure_joint(joint, q, qd);
            }
            length = p[drive_number::length0] + gear * q[row.coordinate];
            velocity = gear * qd[row.coordinate];
        }
    }
    void measure_joint(const JointTable &joint, T *q, T *qd) const {
        const JointMotion<T> motion(joint, parameters.data(), bodies[joint.parent], bodies[joint.child]);
        motion.coordinates(q);
        motion.rates(qd);
    }
    // Calls f(row, numbers, law) for every drive.
    template <class F>
    TD_INLINE void each(F &&f) {
        if (d->stride) each_with(f, numbers.data());
        else each_with(f, d->values);
    }
    template <class F, class N>
    TD_INLINE void each_with(F &&f, const N *values) {
        using namespace drive_laws;
        T q[6] = {};
        T qd[6] = {};
        int measured = -1;  // the joint measured last
        for (const rows::Drive *entry = rows_begin(); entry != rows_end(); ++entry) {
            const rows::Drive &row = *entry;
            const Numbers<T, N> p{values + size_t(row.number) * drive_number::size};
            Law law;
            T length, velocity;
            measure(row, p, law.pull, measured, q, qd, length, velocity);
            const auto gain = p.from(drive_number::gain);
            const auto bias = p.from(drive_number::bias);
            law.gain = row.muscle_gain ? muscle_gain_of(length, velocity, gain) : affine(length, velocity, gain);
            law.bias = row.muscle_bias ? muscle_bias_of(length, bias) : affine(length, velocity, bias);
            const auto controls = p.range(drive_number::ctrlrange);
            const auto forces = p.range(drive_number::forcerange);
            const T &given = row.steps ? act[row.delay + row.steps - 1] : ctrl[row.number];
            const T control = controls.clip(given);
            law.free_ctrl = controls.inside(given);
            law.input = control;
            if (row.activation >= 0) {
                const auto acts = p.range(drive_number::actrange);
                law.moved = drive_laws::advance(row.dynamics, control, act[row.activation], p.from(drive_number::dynamics),
                                                parameters[parameter::timestep]);
                law.clipped = acts.clip(law.moved.value);
                law.free_act = acts.inside(law.moved.value);
                law.input = row.early ? law.clipped : act[row.activation];
            }
            const T whole = law.gain.value * law.input + law.bias.value;
            law.free = forces.inside(whole);
            law.force = forces.clip(whole);
            f(row, p, law);
        }
    }
};

}  // namespace torchdojo
