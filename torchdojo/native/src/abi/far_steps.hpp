// Steps of mechanisms with many points of bodies on half-spaces and no near contacts: far points are left out (elements/far_points.hpp).
#pragma once

#include "abi/near_gradients.hpp"

namespace torchdojo {

// A step of all environments. Those that it does not take at once, on the path, are taken by the mechanism with all points.
inline void NearSteps::step_without_pairs(int64_t t) {
    cold.clear();
    active.clear();
    for (int64_t n = 0; n < count; ++n) {
        std::copy_n(before_step(first + n, t), states, &from[n * states]);
        allow(n);
        environments[n].bad = false;
        broad.place(&from[n * states], environments[n].timestep);
        points.find(n, row(n), broad.x.data(), broad.R.data(), broad.moves.data(), environments[n].timestep, options.kappa, touching[n]);
        (environments[n].warm ? active : cold).push_back(n);
    }
    solve(cold, t, 1.0, false);
    solve(active, t, 1.0, true);
    active.insert(active.end(), cold.begin(), cold.end());
    for (int pass = 0; !active.empty(); ++pass) {
        size_t num_active = 0;
        for (const int64_t n : active) {
            bool taken = status[n] == success && pass < passes;
            if (taken) {
                broad.place(&z[n * states]);
                if (points.add_missing(n, row(n), broad.x.data(), broad.R.data(), environments[n].timestep, options.kappa, touching[n])) {
                    active[num_active++] = n;
                    continue;
                }
            }
            if (!taken) solve_whole(n, t);
        }
        active.resize(num_active);
        solve(active, t, 1.0, true);
    }
    for (int64_t n = 0; n < count; ++n) store(n, t);
}

// A step with all points.
inline void NearSteps::solve_whole(int64_t n, int64_t t) {
    const int64_t in_call = first + n;
    TdRollout one = call(row(n), 1, &from[n * states], r.u ? r.u + (in_call * r.steps + t) * m.num_inputs : nullptr);
    if (r.wrench) one.wrench = r.wrench + in_call * 6 * m.num_bodies;
    std::vector<double> start;
    if (environments[n].from_call) one.warm = r.warm + in_call * m.num_unknowns;
    else if (const double *last = last_of(n)) {
        start.assign(last, last + m.num_unknowns);
        one.warm = start.data();
    }
    one.z = &z[n * states];
    one.w = w_of(n, t);
    one.impulses = impulses_of(n, t);
    one.status = &status[n];
    one.iterations = &iterations[n];
    one.substeps = &substeps[n];
    handle.forward(many, of_starts, one, 0, 1);
    compact.wrote(n, one.w, one.impulses);
    environments[n].made += iterations[n];
    environments[n].from_call = false;
}

}  // namespace torchdojo
