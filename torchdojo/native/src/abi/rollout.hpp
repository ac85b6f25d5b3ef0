// The places of the numbers of a step among the numbers of a rollout.
#pragma once

#include "solver/job.hpp"

namespace torchdojo {

// The period of step t. A division would cost a tenth of a free body's step.
TD_INLINE int64_t period_of(const TdRollout &r, int64_t t) { return r.repeat == 1 ? t : t / r.repeat; }

// Step t of environment n. The job is written in place. A copy in wider registers would wait for the pointers just written, a tenth of
// the time of a free body's step. If only the ends of periods are stored, a step may end where it starts.
TD_INLINE void describe(const MechanismTable &m, const TdRollout &r, int64_t n, int64_t t, Job &job) {
    const int64_t nz = state_size * m.num_bodies, nw = m.num_unknowns;
    int64_t index = n * r.steps + t, period = index, place = t, last = t - 1;  // places of the results of this step and of the one before
    if (r.repeat > 1) {
        period = index / r.repeat;  // periods are whole
        if (r.every > 1) {
            index = period;
            place = t / r.every;
            last = (t - 1) / r.every;
        }
    }
    job.timestep_factor = 1.0;
    job.spent = 0;
    job.rescue = false;
    job.parameters = r.parameters + n * r.parameter_stride;
    job.z = t ? r.z + n * r.z_stride + last * nz : r.z0 + n * r.z0_stride;
    job.u = r.u ? r.u + period * m.num_inputs : nullptr;
    job.wrench = r.wrench ? r.wrench + n * 6 * m.num_bodies : nullptr;
    auto solution = [&](int64_t place) { return r.w + (n * r.w_steps + (r.w_steps > 1 ? place : 0)) * nw; };
    job.warm = t ? solution(last) : r.warm ? r.warm + n * nw : nullptr;
    job.z_next = r.z + n * r.z_stride + place * nz;
    job.impulses = r.impulses + period * m.num_impulses;
    job.w = solution(place);
    job.status = r.status + index;
    job.iterations = r.iterations + index;
    job.substeps = r.substeps + index;
}

// The place of the controls of step t, and of their gradients, where a law turns them into inputs.
TD_INLINE int64_t control_of(const TdRollout &r, int64_t n, int64_t t) {
    return (n * period_of(r, r.steps) + period_of(r, t)) * r.law->actuators;
}

}  // namespace torchdojo
