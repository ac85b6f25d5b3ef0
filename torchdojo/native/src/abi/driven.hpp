// Drives in rollouts: activations that follow an environment from step to step, forwards and back (elements/drives.hpp has the laws).
#pragma once

#include "elements/drives.hpp"
#include "solver/job.hpp"

namespace torchdojo {

// Step t of environment n of a rollout with drives.
struct DrivenStep {
    const TdRollout &r;
    const TdDrives &d;
    const MechanismTable &mechanism;
    int64_t n, t, period, periods;  // periods of a rollout

    DrivenStep(const TdRollout &r, const MechanismTable &m, int64_t n, int64_t t)
        : r(r), d(*r.drives), mechanism(m), n(n), t(t), period(t / r.repeat), periods(r.steps / r.repeat) {}

    const double *controls() const { return r.u + controls_at(); }
    int64_t controls_at() const { return (n * periods + period) * d.drives; }
    bool first() const { return t % r.repeat == 0; }

    // Sets input and wrench of the job, and moves the activations of its lane, which are stored.
    void run(DriveForces &forces, int lane, double *inputs, Job &job) const {
        double *act = forces.activations.data() + lane * d.activations, *wrench = wrench_of(forces, lane);
        if (t == 0) std::copy_n(d.start + n * d.activations, d.activations, act);
        apply(forces, act, inputs, wrench, first() ? d.force + controls_at() : nullptr, job);
        if (d.inputs) std::copy_n(inputs, mechanism.num_inputs, stored_inputs());
        forces.advance(d, n, job.parameters[parameter::timestep], controls(), act);
        if ((t + 1) % r.every == 0) std::copy_n(act, d.activations, d.act + (n * (r.steps / r.every) + t / r.every) * d.activations);
    }

    // Sets input and wrench of the job once more, for its gradient. The inputs and the activations of all steps are known.
    void again(DriveForces &forces, int lane, double *inputs, Job &job) const {
        if (d.pushes) apply(forces, before(), inputs, wrench_of(forces, lane), nullptr, job);
        job.u = stored_inputs();
    }

    // Takes the gradient by activations from after the step to before it, and adds those by controls and state.
    void adjoint(DriveForces &forces, int lane, const double *z, const double *grad_inputs, const double *grad_wrench,
                 double *grad_controls, double *grad_z) const {
        double *by_act = forces.activations.data() + lane * d.activations;
        if (t == r.steps - 1) std::fill_n(by_act, d.activations, 0.0);
        for (int64_t k = 0; d.grad_act && k < d.activations; ++k) by_act[k] += d.grad_act[(n * r.steps + t) * d.activations + k];
        const double *by_force = d.grad_force && first() ? d.grad_force + controls_at() : nullptr;
        forces.adjoint(d, r.parameters + n * r.parameter_stride, n, z, controls(), before(), grad_inputs, grad_wrench, by_force, by_act,
                       grad_controls + controls_at(), grad_z);
        if (t == 0) std::copy_n(by_act, d.activations, d.by_start + n * d.activations);
    }

private:
    double *stored_inputs() const { return d.inputs + (n * r.steps + t) * mechanism.num_inputs; }
    const double *before() const { return t ? d.act + (n * r.steps + t - 1) * d.activations : d.start + n * d.activations; }
    double *wrench_of(DriveForces &forces, int lane) const {
        return d.pushes ? forces.wrenches.data() + size_t(lane) * 6 * mechanism.num_bodies : nullptr;
    }
    void apply(DriveForces &forces, const double *act, double *inputs, double *wrench, double *force, Job &job) const {
        forces.inputs(d, job.parameters, n, job.z, controls(), act, job.wrench, inputs, wrench, force);
        job.u = inputs;
        if (d.pushes) job.wrench = wrench;
    }
};

}  // namespace torchdojo
