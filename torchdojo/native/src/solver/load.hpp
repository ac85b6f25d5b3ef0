// Members of `Stepper` that copy the numbers of a job into a lane.
#pragma once

#include "solver/solver.hpp"

namespace torchdojo {

// Copies a job's data into a lane: `invalid_input`, `crooked_quaternion`, `too_fast`, or `max_iterations` where none are left to it.
// Functions that run once a step or less are not inlined. Otherwise one more condition in them lays out the loop over iterations anew, which
// has cost a tenth of a free body's step.
template <class T>
__attribute__((noinline)) Status Stepper<T>::load(int lane, const Job &job) {
    const MechanismTable &m = mechanism;
    bool fine = true;
    auto copy = [&](T *to, const double *from, int64_t count) {
        fine &= !from || all_finite(from, count);
        if (from) put_lane(to, lane, from, int(count));
        for (int64_t k = 0; !from && k < count; ++k) set(to[k], lane, 0.0);
    };
    copy(problem.z.data(), job.z, state_size * m.num_bodies);
    copy(problem.u.data(), job.u, m.num_inputs);
    copy(problem.wrench.data(), job.wrench, 6 * m.num_bodies);
    if (shared_parameters) {
        set(problem.parameters[parameter::timestep], lane, shared_parameters[parameter::timestep]);
    } else {
        int64_t alike = 0;
        problem.samples[lane] = job.parameters;
        if (const PartCall *part = job.part) {
            if (problem.far.call != part) load_part(*part);
            const int64_t count = int64_t(part->points.size());
            put_lane(problem.far.weights.data(), lane, part->weights + job.in_part * count, int(count));
            if (part->value_stride) {
                const double *values = part->values + job.in_part * part->value_stride;
                put_lane(problem.far.values.data(), lane, values, int(PartCall::size * count));
                set(problem.far.reach, lane, far_reach(values, count));
            }
            alike = part->alike;
            if (alike) problem.samples[lane] = part->parameters;
            fine &= finite_part;
        }
        copy(problem.parameters.data() + alike, job.parameters + alike, m.num_parameters - alike);
        copy(&problem.parameters[parameter::timestep], job.parameters + parameter::timestep, 1);
    }
    const double whole = get(problem.parameters[parameter::timestep], lane), h = whole * job.timestep_factor;
    const double shortest = whole * shortest_factor;
    set(problem.parameters[parameter::timestep], lane, h);
    may_split[lane] = !options.warm_only && !options.interior && h > 1.5 * shortest;
    if (!fine) return invalid_input;
    double square = 0.0;  // of the fastest angular velocity
    constexpr double low = 1.0 - constant::unit_tolerance, high = 1.0 + constant::unit_tolerance;
    for (const double *s = job.z, *end = s + state_size * m.num_bodies; s != end; s += state_size) {
        const double norm = s[6] * s[6] + s[7] * s[7] + s[8] * s[8] + s[9] * s[9];
        if (!(norm >= low * low && norm <= high * high)) return crooked_quaternion;
        square = std::max(square, s[10] * s[10] + s[11] * s[11] + s[12] * s[12]);
    }
    fastest[lane] = 0.5 * h * std::sqrt(square);
    if (!(constant::largest_sine * h > shortest * fastest[lane])) return invalid_input;
    if (job.spent && iterations_left(options, job) <= 0) return max_iterations;
    return fastest[lane] > constant::largest_sine && may_split[lane] ? too_fast : success;
}

template <class T>
double Stepper<T>::far_reach(const double *values, int64_t count) {
    double reach = 0.0;
    for (int64_t k = 0; k < count; ++k) reach = std::max(reach, FarPoints<T>::reach_of(values + k * PartCall::size));
    return reach;
}

// Takes up what the environments of a part share.
template <class T>
__attribute__((noinline)) void Stepper<T>::load_part(const PartCall &part) {
    const size_t count = part.points.size();
    problem.far.call = &part;
    problem.far.weights.resize(count);
    if (part.value_stride) problem.far.values.resize(PartCall::size * count);
    else problem.far.reach = broadcast<T>(far_reach(part.values, int64_t(count)));
    finite_part = all_finite(part.parameters, part.alike);
    for (int64_t k = 0; k < part.alike; ++k) problem.parameters[k] = broadcast<T>(part.parameters[k]);
}

}  // namespace torchdojo
