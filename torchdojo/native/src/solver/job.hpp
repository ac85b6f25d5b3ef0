// One step of one environment, and the options of its solver.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "base/interleave.hpp"
#include "elements/tendon_impulse.hpp"
#include "solver/problem.hpp"

namespace torchdojo {

struct Options {
    double kappa, residual_tol, path_tol;
    int64_t max_iterations, min_iterations, max_halvings;
    double depenetration_speed = 0.0;  // speed of contacts without a law of overlap of their own; 0: none
    int64_t warm_iterations;  // iterations of an attempt from a warm start
    bool limit = false;  // derivatives are taken in the hard limit κ → 0
    bool complementarity_aware = false;  // derivatives may take pressed contacts for open ones
    bool warm_only = false;  // no attempts after the one from the warm start
    bool path_only = false;  // no attempt by the interior-point method after those on the path: its means are over all cones of a part
    bool interior = false;  // the interior-point method from the warm start, and no cold one after it
    int64_t max_total_iterations = 0;  // iterations of a step in all attempts, shorter steps included (see Halves); 0: no bound
    bool give_up = false;  // a step that fails has no further attempts, and its environment no further steps
};

// Pointers into the caller's arrays for one step of one environment. Null means not given or not wanted.
struct Job {
    const double *parameters, *z, *u, *wrench, *warm;
    double *z_next, *impulses, *w;
    int64_t *status, *iterations, *substeps;
    double timestep_factor = 1.0;  // factor of the timestep in `parameters`: shorter steps replace a step without a solution
    int64_t spent = 0;             // iterations of earlier attempts, which count against the same bound
    bool rescue = false;           // whether this is a part of a step whose attempts have failed
    const PartCall *part = nullptr;  // of a mechanism; null: the job has the whole mechanism
    int64_t in_part = 0;           // the environment in the call of the part
};

// Iterations that are left to a step.
inline int64_t iterations_left(const Options &options, const Job &job) {
    if (!options.max_total_iterations) return std::numeric_limits<int64_t>::max();
    return options.max_total_iterations - job.spent - *job.iterations;
}

// The outputs of a step with the solution w, whose next poses the problem has.
template <class T>
void keep_solution(const Problem<T> &problem, const T *w, int lane, const Job &job) {
    const MechanismTable &m = problem.mechanism;
    take_lane(w, lane, job.w, m.num_unknowns);
    for (int k = 0; k < m.num_tendons; ++k)
        job.w[m.tendons[k].row] = get(m.tendons[k].damped ? tendon_impulse(problem, k, w) : problem.tendons[k].given, lane);
    for (int k = 0; k < m.num_impulses; ++k) job.impulses[k] = job.w[m.impulses[k]];
    for (int i = 0; i < m.num_bodies; ++i) {
        const BodyPose<T> &next = problem.bodies[i].next;
        double *out = job.z_next + state_size * i;
        for (int k = 0; k < 3; ++k) {
            out[k] = get(next.x[k], lane);
            out[3 + k] = get(w[6 * i + k], lane);
            out[7 + k] = get(next.q.v[k], lane);
            out[10 + k] = get(w[6 * i + 3 + k], lane);
        }
        out[6] = get(next.q.w, lane);
    }
}

// The outputs of a failed step.
inline void keep_state(const MechanismTable &m, const Job &job) {
    std::copy_n(job.z, state_size * m.num_bodies, job.z_next);
    std::fill_n(job.impulses, m.num_impulses, 0.0);
    std::fill_n(job.w, m.num_unknowns, 0.0);
}

}  // namespace torchdojo
