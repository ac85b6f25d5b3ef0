// Terms that impacts add to the backward pass of a step. gradients/impacts.py derives them:
//
//   dz⁺ = D (dz + f⁻ dτ) − f⁺ dτ,   dτ = slope · dz
//
// For a gradient g of z⁺ and y = Dᵀ g, this gives   grad_z = y + slope (f⁻ · y − f⁺ · g).
//
// The terms apply body by body, with one dτ for all bodies of a component.
#pragma once

#include "abi/mechanism.hpp"

namespace torchdojo {

// grad_z is y on entry, and has the terms of the impact k on return.
inline void add_impact(const TdImpacts &impacts, int64_t k, int num_bodies, const double *g, double *grad_z) {
    const int64_t first = k * num_bodies;
    const double *before = impacts.before + state_size * first, *after = impacts.after + state_size * first;
    const double *slope = impacts.slope + state_size * first;
    const int64_t *component = impacts.component + first;
    double *by_time = impacts.by_time + first;
    std::fill_n(by_time, num_bodies, 0.0);
    for (int i = 0; i < state_size * num_bodies; ++i) by_time[component[i / state_size]] += before[i] * grad_z[i] - after[i] * g[i];
    for (int i = 0; i < state_size * num_bodies; ++i) grad_z[i] += slope[i] * by_time[component[i / state_size]];
}

}  // namespace torchdojo
