// Searches for near terms and near points, for the environments of a block (near_steps.hpp).
//
// A search at the end of a step reaches as far as the next one may travel: so it says which terms the step lacks, and which ones the next
// one begins with.
#pragma once

#include "abi/near_steps.hpp"

namespace torchdojo {

// Chooses the terms and points with which an environment begins a step.
inline void NearSteps::look(int64_t n) {
    const Environment &environment = environments[n];
    int64_t *near_keys = near_terms.data() + n * pairs.size(), *slots = chosen.data() + n * pairs.size();
    const auto take_up = [&](size_t k) {
        const NearPairs::Pair &pair = pairs.pairs[k];
        merge(pair.count, near_keys + pair.first, slots + pair.first, false);
        mark(n, int64_t(k));
    };
    const bool known = environment.looked_ahead == environment.timestep &&
                       !std::memcmp(&from[n * states], &ahead_of[n * states], size_t(states) * sizeof(double));
    if (!known) {
        search(n, &from[n * states], busy.data() + n * marks(), [&](const NearPairs::Pair &pair, int64_t terms_found) {
            take(pair, terms_found, near_keys + pair.first);
            take_up(size_t(&pair - pairs.pairs.data()));
        });
        points.find(n, row(n), broad.x.data(), broad.R.data(), broad.moves.data(), environment.timestep, options.kappa, touching[n]);
        return;
    }
    auto next = found[n].begin();
    for (size_t k = 0; k < pairs.pairs.size(); ++k) {
        const bool has_terms = next != found[n].end() && size_t(next->pair) == k;
        if (!has_terms && !busy[n * marks() + k]) continue;
        const NearPairs::Pair &pair = pairs.pairs[k];
        if (has_terms) std::copy_n(next_terms.data() + n * pairs.size() + pair.first, pair.count, near_keys + pair.first);
        else std::fill_n(near_keys + pair.first, pair.count, 0);
        if (has_terms) ++next;
        take_up(k);
    }
    touching[n] = next_touching[n];
}

// Looks for terms and points at the end of a step that may be near in the next one.
inline void NearSteps::look_ahead(int64_t n) {
    Environment &environment = environments[n];
    found[n].clear();
    search(n, &z[n * states], nullptr, [&](const NearPairs::Pair &pair, int64_t terms_found) {
        if (!terms_found) return;
        take(pair, terms_found, next_terms.data() + n * pairs.size() + pair.first);
        const auto end = gaps.begin() + std::min<int64_t>(terms_found, pair.count);
        int64_t near = std::lower_bound(gaps.begin(), end, constant::near_terms::reach) - gaps.begin();
        const auto number = int32_t(&pair - pairs.pairs.data());
        if (near == pair.count && terms_found > near) near = search_pair(n, number, constant::near_terms::reach);
        found[n].push_back({number, near});
    });
    points.find(n, row(n), broad.x.data(), broad.R.data(), broad.moves.data(), environment.timestep, options.kappa, next_touching[n]);
    environment.looked_ahead = environment.timestep;
    std::copy_n(&z[n * states], states, &ahead_of[n * states]);
}

// The number of terms of a pair with gaps below `reach`, the nearest of which are in `terms`, where `broad` has been placed.
inline int64_t NearSteps::search_pair(int64_t n, size_t number, double reach) {
    const NearPairs::Pair &pair = pairs.pairs[number];
    const Vec3<double> x[2] = {broad.x[pair.body], broad.x[pair.other]};
    const Mat3<double> R[2] = {broad.R[pair.body], broad.R[pair.other]};
    NearStart &start = starts[n * pairs.pairs.size() + number];
    return near_search(*pair.cores[0], *pair.cores[1], x, R, reach, pair.count, terms.data(), gaps.data(), start);
}

// Calls f(pair, number of terms that may be near in a step from a state, the nearest of which are in `terms`) for pairs whose balls meet, and
// for marked ones. The reach grows by the distance that the step may close.
template <class F>
void NearSteps::search(int64_t n, const double *state, const uint8_t *marked, F &&f) {
    const double h = environments[n].timestep;
    broad.reach = reach_at_rest(pairs.any_bounces, h);
    broad.place(state, h);
    Distances &apart = distances[n];
    apart.move_to(state);
    const NearStart *start = starts.data() + n * pairs.pairs.size();
    broad.each(marked, [&](size_t k) {
        const NearPairs::Pair &pair = pairs.pairs[k];
        int64_t terms_found = 0;
        if (broad.may_be_near(k)) {
            const bool fixed = pair.other == m.num_bodies;
            const Vec3<double> still = {0, 0, 0}, other = fixed ? still : load3(state + state_size * pair.other + 3);
            const Vec3<double> speed = load3(state + state_size * pair.body + 3) - other;
            const double turns = pair.extent[0] * broad.moves[2 * pair.body + 1] + pair.extent[1] * broad.moves[2 * pair.other + 1];
            const double reach = reach_at_rest(pair.bounces, h) + h * std::sqrt(dot(speed, speed)) + turns;
            if (!(apart.apart(k) > NearSearch::width(*pair.cores[0], *pair.cores[1], reach))) {
                terms_found = search_pair(n, k, reach);
                apart.keep(k, start[k].apart);
            }
        }
        f(pair, terms_found);
    });
}

}  // namespace torchdojo
