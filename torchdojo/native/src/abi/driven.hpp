// Drives in rollouts: activations that follow environments from step to step, forwards and back (elements/drives.hpp has the laws).
#pragma once

#include "abi/rollout.hpp"
#include "elements/drives.hpp"
#include "gradient/gradient.hpp"

namespace torchdojo {

// The place of the controls of step t, and of their gradients.
inline int64_t controls_of(const TdRollout &r, int64_t n, int64_t t) {
    return (n * period_of(r, r.steps) + period_of(r, t)) * r.drives->drives;
}

// Drives in the forward pass, where each lane follows an environment of its own.
template <class T>
class DrivenForward {
public:
    explicit DrivenForward(const MechanismTable &m) : m(m), forces(m), wrenches(size_t(lanes<T>) * 6 * m.num_bodies) {}

    void begin(const TdRollout &r) {
        forces.begin(*r.drives, r.parameter_stride ? nullptr : r.parameters);
        act.assign(size_t(lanes<T>) * r.drives->activations, 0.0);
        moved = act;
        std::fill_n(steps, lanes<T>, -1);
    }

    // The next run is for step t of environment n in this lane.
    void want(int lane, int64_t n, int64_t t) {
        driven_lanes.active[lane] = true;
        driven_lanes.environment[lane] = n;
        steps[lane] = t;
    }

    // Whether tendons are measured.
    bool pulls() const { return forces.pulled().active; }

    // inputs: a row per lane. The problem gets the lengths and pulls of tendons in these lanes.
    void run(const TdRollout &r, Problem<T> &problem, double *inputs) {
        const TdDrives &d = *r.drives;
        const double *given_wrenches[lanes<T>] = {};
        double *out[lanes<T>] = {};
        for (int lane = 0; lane < lanes<T>; ++lane) {
            if (!driven_lanes.active[lane]) continue;
            const int64_t n = driven_lanes.environment[lane], t = steps[lane], place = controls_of(r, n, t);
            Job job;
            describe(m, r, n, t, job);
            driven_lanes.parameters[lane] = job.parameters;
            driven_lanes.z[lane] = job.z;
            given_wrenches[lane] = job.wrench;
            driven_lanes.ctrl[lane] = r.u + place;
            driven_lanes.act[lane] = t ? &act[lane * d.activations] : d.start + n * d.activations;
            if (t % r.repeat == 0) out[lane] = d.force + place;
            environment[lane] = n;
        }
        driven_lanes.fill();
        forces.step(driven_lanes, given_wrenches, inputs, wrenches.data(), moved.data(), out);
        Mask<T> active{};
        for (int lane = 0; lane < lanes<T>; ++lane) set_mask(active, lane, driven_lanes.active[lane]);
        forces.pulled().keep(active, problem);
        std::fill_n(driven_lanes.active, lanes<T>, false);
    }

    // Sets input and wrench of the job, moves the activations of the lane, and stores them.
    void set(const TdRollout &r, Problem<T> &problem, int lane, int64_t n, int64_t t, double *inputs, Job &job) {
        const TdDrives &d = *r.drives;
        const int64_t na = d.activations, nu = m.num_inputs, nf = 6 * m.num_bodies, at_step = n * r.steps + t;
        if (steps[lane] != t || environment[lane] != n) {
            want(lane, n, t);
            run(r, problem, inputs);
        }
        steps[lane] = -1;
        std::copy_n(moved.data() + lane * na, na, act.data() + lane * na);
        if ((t + 1) % r.every == 0) std::copy_n(act.data() + lane * na, na, d.act + (n * (r.steps / r.every) + t / r.every) * na);
        job.u = inputs + lane * nu;
        if (d.inputs) std::copy_n(job.u, nu, d.inputs + at_step * nu);
        if (!d.pushes) return;
        job.wrench = wrenches.data() + lane * nf;
        if (d.wrenches) std::copy_n(job.wrench, nf, d.wrenches + at_step * nf);
    }

private:
    const MechanismTable &m;
    DriveForces<T> forces;
    DrivenLanes<T> driven_lanes;
    int64_t steps[lanes<T>], environment[lanes<T>];  // which inputs the rows have, or are to get
    std::vector<double> act, moved, wrenches;  // rows of lanes: activations before and after a step
};

// Drives in the backward pass, where all lanes are at the same step.
template <class T>
class DrivenBackward {
public:
    explicit DrivenBackward(const MechanismTable &m) : m(m), forces(m) {}

    void begin(const TdRollout &r) {
        forces.begin(*r.drives, r.parameter_stride ? nullptr : r.parameters);
        by_act.assign(size_t(lanes<T>) * r.drives->activations, 0.0);
    }

    // Sets input and wrench of the job, as the forward pass has stored them.
    void set(const TdRollout &r, int64_t n, int64_t t, Job &job) const {
        const int64_t step_index = n * r.steps + t;
        job.u = r.drives->inputs + step_index * m.num_inputs;
        if (r.drives->pushes) job.wrench = r.drives->wrenches + step_index * 6 * m.num_bodies;
    }

    // Whether tendons are measured, whose gradients may wait for those of drives.
    bool pulls() const { return forces.pulled().active; }

    // Goes from after the last step to before it.
    void start() { std::fill(by_act.begin(), by_act.end(), 0.0); }

    // Step t of environments first + rows[0], … first + rows[count − 1], lane by lane: the gradient by activations goes from after the step to
    // before it, and those by controls and states are added. z: where the steps started, in rows, as are gradients by inputs, wrenches and
    // states. stepped: null, or the gradient of the steps in the same lanes, whose problem has measured the tendons, and whose gradients by
    // their lengths and pulls wait.
    void pull_back(const TdRollout &r, int64_t first, const int *rows, int count, int64_t t, const double *const *z,
                   const double *grad_inputs, const double *grad_wrenches, double *grad_controls, double *grad_z,
                   StepGradient<T> *stepped) {
        const TdDrives &d = *r.drives;
        const int64_t na = d.activations;
        DrivenLanes<T> driven_lanes;
        const double *by_force[lanes<T>] = {};
        double *by_ctrl[lanes<T>] = {};
        for (int lane = 0; lane < count; ++lane) {
            const int row = rows[lane];
            const int64_t n = first + row, place = controls_of(r, n, t);
            driven_lanes.active[lane] = true;
            driven_lanes.row[lane] = row;
            driven_lanes.environment[lane] = n;
            driven_lanes.parameters[lane] = r.parameters + n * r.parameter_stride;
            driven_lanes.z[lane] = z[row];
            driven_lanes.ctrl[lane] = r.u + place;
            driven_lanes.act[lane] = t ? d.act + (n * r.steps + t - 1) * na : d.start + n * na;
            for (int64_t k = 0; d.grad_act && k < na; ++k) by_act[row * na + k] += d.grad_act[(n * r.steps + t) * na + k];
            if (d.grad_force && t % r.repeat == 0) by_force[lane] = d.grad_force + place;
            by_ctrl[lane] = grad_controls + place;
        }
        driven_lanes.fill();
        const Problem<T> *problem = stepped ? &stepped->stepper.problem : nullptr;
        TendonGradient<T> *waiting = stepped ? &stepped->adjoint.tendons : nullptr;
        forces.adjoint(driven_lanes, problem, waiting, grad_inputs, grad_wrenches, by_force, by_act.data(), by_ctrl, grad_z);
        for (int lane = 0; t == 0 && lane < count; ++lane)
            std::copy_n(&by_act[rows[lane] * na], na, d.by_start + (first + rows[lane]) * na);
    }

private:
    const MechanismTable &m;
    DriveForces<T> forces;
    std::vector<double> by_act;  // rows of lanes
};

}  // namespace torchdojo
