// Near terms that bounce (torchdojo/engine/near_bounces.py), and solves with longer reaches (`_narrow` of near_set.py).
#pragma once

#include "abi/near_solves.hpp"

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
                const double gamma = last_of(n)[pairs.impulse[k]];
                if (!key || !pairs.bounces[k] || !(gamma >= constant::near_terms::bearing * largest)) continue;
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
        if (!pairs.bounces[k] || !first_terms[k] || !(first_sum[pairs.output[k]] > least)) continue;
        if (!key) key = first_terms[k];
        busy[n * marks() + pairs.owner[k]] = 1;
        if (key == first_terms[k]) bouncing[n * pairs.size() + k] = key;
    }
}

// Between the solve without fading and that with it, environments that started again take two with longer reaches, from the solution
// before. Where one fails, that solution stays the start.
inline void NearSteps::narrow(int64_t t) {
    narrowing.clear();
    for (const int64_t n : cold)
        if (environments[n].restarted && status[n] == success) narrowing.push_back(n);
    for (const double fading : {constant::near_terms::wide_fading, constant::near_terms::less_wide_fading}) {
        starts_kept.clear();
        for (const int64_t n : narrowing) starts_kept.insert(starts_kept.end(), last_of(n), last_of(n) + m.num_unknowns);
        solve(narrowing, t, fading, true);
        size_t left = 0;
        for (size_t i = 0; i < narrowing.size(); ++i) {
            const int64_t n = narrowing[i];
            if (status[n] == success) narrowing[left++] = n;
            else std::copy_n(&starts_kept[i * m.num_unknowns], m.num_unknowns, last_of(n));
        }
        narrowing.resize(left);
    }
}

}  // namespace torchdojo
