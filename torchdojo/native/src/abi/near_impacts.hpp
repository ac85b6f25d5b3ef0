// Near terms that bounce in a step (torchdojo/engine/near_bounces.py).
#pragma once

#include "abi/near_steps.hpp"

namespace torchdojo {

// Notes the terms of an environment that bounce, after a step without bounces. Returns whether there are some.
inline bool NearSteps::begin_to_bounce(int64_t n) {
    if (!pairs.any_bounces || environments[n].bounced) return false;
    environments[n].bounced = true;
    bool any = false;
    for (size_t p = 0; p < pairs.pairs.size(); ++p) {
        const NearPairs::Pair &pair = pairs.pairs[p];
        if (!pair.bounces || !busy[n * marks() + p]) continue;
        double largest = 0;
        for (const bool compares : {true, false})
            for (int64_t k = pair.first; k < pair.first + pair.count; ++k) {
                const int64_t key = chosen[n * pairs.size() + k];
                const double gamma = w_of(n)[pairs.impulse[k]];
                if (key < 0 || !pairs.bounces[k] || !(gamma >= constant::near_terms::bearing * largest)) continue;
                double term[3];
                put_term(key, term);
                if (!arrives(pair, m.num_bodies, &from[n * states], environments[n].timestep, term)) continue;
                if (compares) largest = std::max(largest, gamma);
                else bouncing[n * pairs.size() + k] = key;
                any = true;
            }
    }
    return any;
}

// Keeps the terms that acted in the first half of a step, so that its impulses can be read after the second one, in which bodies may be
// beyond the reach.
inline void NearSteps::keep_acting(int64_t n, const std::vector<int64_t> &first_terms, const std::vector<double> &first_sum) {
    const double least = constant::near_terms::outside * options.kappa / (2 * constant::near_terms::reach);
    for (int64_t k = 0; k < pairs.size(); ++k) {
        int64_t &key = chosen[n * pairs.size() + k];
        if (!pairs.bounces[k] || first_terms[k] < 0 || !(first_sum[pairs.output[k]] > least)) continue;
        if (key < 0) key = first_terms[k];
        if (key == first_terms[k]) bouncing[n * pairs.size() + k] = key;
    }
}

}  // namespace torchdojo
