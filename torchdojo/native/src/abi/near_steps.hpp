// Steps of mechanisms whose bodies touch at near terms (torchdojo/engine/near_set.py, which says why). near_gradients.hpp has their gradients,
// and far_steps.hpp the steps of mechanisms with many points and no near contacts.
//
// Each environment chooses the terms of its slots by itself. Environments that are solved together are one call of the step. A step without
// a solution, or with another one than the motion, is taken in halves, each with terms of its own.
#pragma once

#include "abi/near_bounces.hpp"
#include "abi/near_checks.hpp"
#include "abi/near_points.hpp"
#include "abi/near_rows.hpp"

namespace torchdojo {

// The steps of one block of environments.
class NearSteps {
public:
    NearSteps(Handle &handle, const Options &options, const TdRollout &r, const TdNearSteps &near, int64_t first, int64_t last)
        : handle(handle), m(handle.table), pairs(handle.near), options(whole_steps(options, !handle.near.size())), of_starts(options),
          halvings(options.max_halvings), r(r), near(near), first(first), count(last - first), width(m.num_parameters + m.num_samples),
          states(state_size * m.num_bodies), bouncing(pairs.any_bounces ? size_t(count * pairs.size()) : 0),
          near_terms(size_t(count * pairs.size())), chosen(near_terms.size()), environments(count), broad(pairs, m.num_bodies),
          starts(size_t(count) * pairs.pairs.size()), busy(size_t(count) * marks()), compact(handle, count),
          points(handle.slots, m, row(0), r.parameter_stride, count), touching(count), next_touching(count), found(count),
          next_terms(near_terms.size()), path(pairs, m.num_bodies), distances(count, Distances(pairs, m.num_bodies)), broken(count) {
        for (const NearPairs::Pair &pair : pairs.pairs) most = std::max(most, pair.count);
        all.resize(most);
        terms.resize(3 * most);
        gaps.resize(most);
        ranks.resize(most);
        slots_before.resize(most);
        from.resize(count * states);
        ahead_of.resize(count * states);
        z.resize(count * states);
        status.resize(count);
        iterations.resize(count);
        substeps.resize(count);
    }

    void run() {
        for (int64_t n = 0; n < count; ++n) {
            int64_t *keys = chosen.data() + n * pairs.size();
            const int64_t *known = near.known ? near.known + (first + n) * pairs.size() : nullptr;
            for (int64_t k = 0; known && k < pairs.size(); ++k) keys[k] = plain(known[pairs.place[k]]);
            for (size_t k = 0; k < pairs.pairs.size(); ++k) mark(n, k);
            if (near.overflow) near.overflow[2 * (first + n)] = -1;
            find_broken(n);
            environments[n].warm = environments[n].from_call = r.warm != nullptr;
            environments[n].looked_ahead = 0.0;
        }
        for (int64_t t = 0; t < r.steps; ++t) pairs.size() ? step(t) : step_without_pairs(t);
    }

    // Gradients through the steps, from the last to the first. The terms, states and solutions of all steps are kept.
    void backward(double kappa, const TdGradient &g);  // near_gradients.hpp

private:
    static constexpr int passes = constant::near_terms::passes;
    static constexpr int64_t base = int64_t(1) << 20;  // more than a shape has features

    struct Environment {
        bool warm, cold, fresh, restarted, bounced, bad, sound, overflows, from_call;  // from_call: the call gives its start
        int64_t made, most;  // iterations of all solves of the step, and the number after which no other solve begins
        double timestep;  // timestep of the step, or of a part of it
        double looked_ahead;  // the timestep for which the state in `ahead_of` was searched
    };
    // A pair of which terms were found that may be near in the next step, and how many are near at its start. More than its slots: it overflows.
    struct Found {
        int32_t pair;
        int64_t near;
    };
    // A shorter step in place of a whole one: states before and after it, its solution, and its parameters with terms.
    struct Part {
        std::vector<double> start, end, w, row;
    };
    Handle &handle;
    const MechanismTable &m;
    const NearPairs &pairs;
    const Options options, of_starts;
    const int64_t halvings;
    const TdRollout &r;
    const TdNearSteps &near;
    const int64_t first, count, width, states;
    std::vector<int64_t> bouncing;  // terms in slots that bounce
    std::vector<int64_t> all, near_terms,
        chosen;  // terms as numbers (`key`), 0 for none. all: terms of one pair. near_terms: near ones at the start. chosen: terms in slots
    std::vector<Environment> environments;
    const bool many = r.environments > 1;  // then all solves are in lanes, also of one environment
    BroadPhase broad;
    NearSearch near_search;
    std::vector<NearStart> starts;  // starts of searches, for each environment and pair
    std::vector<uint8_t> busy;  // whether there are terms, near ones or in slots, for each environment and pair
    NearRows compact;
    NearPoints points;
    std::vector<std::vector<int32_t>> touching, next_touching;  // ranks of points that are near half-spaces, for each environment
    std::vector<std::vector<Found>> found;  // for each environment, at the end of its step
    std::vector<int64_t> next_terms;  // their terms
    std::vector<double> ahead_of;
    PathCheck path;
    std::vector<Distances> distances;  // of each environment
    std::vector<std::vector<int64_t>> broken;  // slots with numbers that are not finite, for each environment
    std::vector<double> from;  // the states before the step, or before a part of it
    std::vector<double> z, impulses, w, terms, gaps, starts_kept;
    bool again = false;  // whether steps are taken once more, for their gradients
    std::vector<int64_t> status, iterations, substeps, active, cold, narrowing, ordered, slots_before;
    std::vector<int32_t> ranks;
    int32_t most = 1;
    // rows of the environments that one call takes
    std::vector<double> some_rows, some_z, some_u, some_wrench, some_warm, some_weights, some_values, out_z, out_impulses, out_w;
    std::vector<int64_t> out_counts;

    // The parameters of an environment as the call has them. The present terms, fading and timestep stand elsewhere.
    const double *row(int64_t n) const { return r.parameters + (first + n) * r.parameter_stride; }
    // The solution and the impulses of a step, in the memory of the results, which is zero at first; and the last solution.
    double *w_of(int64_t n, int64_t t) {
        if (again) return &w[n * m.num_unknowns];
        return r.w + ((first + n) * r.w_steps + (r.w_steps > 1 ? t : 0)) * m.num_unknowns;
    }
    double *last_of(int64_t n) { return compact.last(n); }
    double *impulses_of(int64_t n, int64_t t) {
        return again ? &impulses[n * m.num_impulses] : r.impulses + ((first + n) * r.steps + t) * m.num_impulses;
    }
    const double *before_step(int64_t in_call, int64_t t) const {
        return t ? r.z + in_call * r.z_stride + (t - 1) * states : r.z0 + in_call * r.z0_stride;
    }
    // `numbers` of torchdojo/engine/near_slots.py. Terms have no negative kind; that of none is −1.
    static int64_t key_of(const double *term) {
        return term[0] < 0 ? 0 : 1 + (int64_t(term[0]) * base + int64_t(term[1])) * base + int64_t(term[2]);
    }
    static constexpr int64_t bounce = constant::near_terms::bouncing * base * base;  // added to the number of a term that bounces
    static int64_t plain(int64_t key) { return key > bounce ? key - bounce : key; }
    static void put_term(int64_t key, double *to) {
        to[0] = key ? double((key - 1) / (base * base)) : -1.0;
        to[1] = key ? double((key - 1) / base % base) : 0.0;
        to[2] = key ? double((key - 1) % base) : 0.0;
    }
    // The term of slot k. Terms that bounce say so.
    int64_t in_slot(int64_t n, int64_t k) const {
        const int64_t key = chosen[n * pairs.size() + k];
        if (!key || !pairs.bounces[k]) return key;
        const NearPairs::Pair &pair = pairs.pairs[pairs.owner[k]];
        return has(bouncing.data() + n * pairs.size() + pair.first, pair.count, key) ? key + bounce : key;
    }
    bool begin_to_bounce(int64_t n);  // near_impacts.hpp
    void keep_acting(int64_t n, const std::vector<int64_t> &first_terms, const std::vector<double> &first_sum);
    size_t marks() const { return BroadPhase::padded(pairs.pairs.size()); }
    // Marks a pair with terms, near ones or in slots.
    void mark(int64_t n, int64_t pair) {
        const int64_t from = n * pairs.size() + pairs.pairs[pair].first, to = from + pairs.pairs[pair].count;
        const bool empty = std::all_of(chosen.data() + from, chosen.data() + to, [](int64_t key) { return !key; });
        busy[n * marks() + pair] = near_terms[from] || !empty;
    }
    static bool has(const int64_t *keys, int64_t size, int64_t key) { return std::find(keys, keys + size, key) != keys + size; }

    // Solves take whole steps, since halves have terms of their own. Halves come before continuation, which holds on to the terms. Solves
    // that only give others a start may split: without that, 19 of 161 steps of a stack were taken in halves. Without near contacts, the
    // mechanism with all points takes the steps for which the path is not enough.
    static Options whole_steps(Options options, bool without_pairs) {
        options.path_only = without_pairs;
        options.max_halvings = 0;
        options.give_up = true;
        return options;
    }

    void step(int64_t t) {
        active.clear();
        for (int64_t n = 0; n < count; ++n) {
            std::copy_n(before_step(first + n, t), states, &from[n * states]);
            allow(n);
            active.push_back(n);
        }
        attempt(t);
        for (int64_t n = 0; n < count; ++n) {
            if (environments[n].bad) halve(n, t, 0, nullptr);
            store(n, t);
        }
    }

    void step_without_pairs(int64_t t);  // far_steps.hpp
    void solve_whole(int64_t n, int64_t t);

    void allow(int64_t n) {
        environments[n].made = 0;
        environments[n].most = passes * options.max_total_iterations;
        environments[n].timestep = row(n)[parameter::timestep];
    }

    // Steps of the environments that are active, from their states in `from`, with the timestep of their parameters.
    void attempt(int64_t t) {
        for (const int64_t n : active) {
            Environment &environment = environments[n];
            environment.cold = environment.fresh = !environment.warm;
            environment.restarted = environment.bounced = environment.overflows = false;
            if (pairs.any_bounces) std::fill_n(bouncing.data() + n * pairs.size(), pairs.size(), 0);
            environment.bad = true;
            look(n);
        }
        for (int pass = 0; pass < passes && !active.empty(); ++pass) {
            cold.clear();
            for (const int64_t n : active)
                if (environments[n].cold) cold.push_back(n);
            // Without a start, impulses begin at gaps wider than the reach, where they would act on nothing.
            solve(cold, t, 0.0, false);
            narrow(t);
            solve(active, t, 1.0, true);
            size_t num_active = 0;
            for (const int64_t n : active)
                if (goes_on(n, t) && environments[n].made < environments[n].most) active[num_active++] = n;
            active.resize(num_active);
        }
    }

    void narrow(int64_t t);  // near_impacts.hpp

    // Two steps of half the length in place of one, and so on. Steps that succeed are put into `parts`, if wanted.
    bool halve(int64_t n, int64_t t, int64_t depth, std::vector<Part> *parts) {
        Environment &environment = environments[n];
        if (depth == halvings || environment.overflows || (depth && environment.made >= environment.most)) return false;
        if (!depth) environment.most = environment.made + constant::near_terms::halves * options.max_total_iterations;
        const std::vector<double> start(&from[n * states], &from[n * states] + states);
        std::vector<double> sum(m.num_impulses), first_sum;
        std::vector<int64_t> first_terms;
        const double whole = environment.timestep;
        environment.timestep = 0.5 * whole;
        std::fill_n(chosen.data() + n * pairs.size(), pairs.size(), 0);
        environment.warm = false;
        bool solved = true;
        int64_t num_steps = 0;
        for (int half = 0; half < 2 && solved; ++half) {
            active.assign(1, n);
            std::fill_n(impulses_of(n, t), m.num_impulses, 0.0);  // of halves before, some of whose slots this one has no terms for
            attempt(t);
            if (!environment.bad && parts) {
                const auto copy = [](const double *p, int64_t size) { return std::vector<double>(p, p + size); };
                parts->push_back(
                    {copy(&from[n * states], states), copy(&z[n * states], states), copy(last_of(n), m.num_unknowns), row_with_terms(n)});
            }
            solved = !environment.bad || halve(n, t, depth + 1, parts);
            num_steps += substeps[n];
            for (int64_t k = 0; k < m.num_impulses; ++k) sum[k] += impulses_of(n, t)[k];
            if (half && pairs.any_bounces) keep_acting(n, first_terms, first_sum);
            first_terms.assign(chosen.data() + n * pairs.size(), chosen.data() + n * pairs.size() + pairs.size());
            first_sum = sum;
            std::copy_n(&z[n * states], states, &from[n * states]);
            environment.warm = true;
        }
        environment.timestep = whole;
        std::copy(start.begin(), start.end(), &from[n * states]);
        std::copy(sum.begin(), sum.end(), impulses_of(n, t));
        substeps[n] = solved ? num_steps : 1;
        environment.bad = !solved;
        return solved;
    }

    // The parameters of an environment with the terms that its slots have.
    std::vector<double> row_with_terms(int64_t n) {
        std::vector<double> result(row(n), row(n) + width);
        result[parameter::timestep] = environments[n].timestep;
        for (int64_t k = 0; k < pairs.size(); ++k) {
            put_term(in_slot(n, k), &result[pairs.term[k]]);
            result[pairs.term[k] + parameter::slot::fading] = 1.0;
        }
        return result;
    }

    // Gradients of an environment through the parts of its step, which are solved again, to the same bits.
    void through_halves(int64_t n, int64_t t, double kappa, const double *along, const TdGradient &gradient);  // near_gradients.hpp

    // Whether the solution of an environment is not the end of its step.
    bool goes_on(int64_t n, int64_t t) {
        Environment &environment = environments[n];
        const double *start = &from[n * states];
        int64_t *slots = chosen.data() + n * pairs.size();
        const bool free = is_free(first + n, t);
        const double most_after = (free ? 1.0 : 100.0) * most_energy(m, row(n), start, environment.timestep, options.depenetration_speed);
        environment.sound = !(kinetic_energy(m, row(n), &z[n * states]) > most_after);
        const bool solved = status[n] == success;
        look_ahead(n);
        const bool pierced = solved && environment.sound &&
                             path.pierces(start, &z[n * states], environment.timestep, broad, starts.data() + n * pairs.pairs.size(),
                                          [&](size_t k) { return distances[n].apart(k); });
        if ((!solved || !environment.sound || pierced) && !(environment.cold && environment.fresh)) {
            // The start led astray: once more without it, and without the terms that were near before. Terms that a pass has added since
            // such a restart stay.
            if (!environment.restarted)
                for (const NearPairs::Pair &pair : pairs.pairs)
                    merge(pair.count, near_terms.data() + n * pairs.size() + pair.first, slots + pair.first, false);
            environment.cold = environment.fresh = environment.restarted = true;
            return true;
        }
        bool lacks = false, overflows = false;
        for (const Found &of_pair : found[n]) {
            const NearPairs::Pair &pair = pairs.pairs[of_pair.pair];
            if (!of_pair.near) continue;
            if (of_pair.near > pair.count) {
                overflows = true;
                near.overflow[2 * (first + n)] = pair.contact;
                near.overflow[2 * (first + n) + 1] = of_pair.near;
            }
            int64_t *to = all.data();
            std::fill_n(to, pair.count, 0);
            std::copy_n(next_terms.data() + n * pairs.size() + pair.first, std::min<int64_t>(of_pair.near, pair.count), to);
            bool lacking = false;
            for (int32_t k = 0; k < pair.count && to[k]; ++k) lacking |= !has(slots + pair.first, pair.count, to[k]);
            if (lacking && solved) {
                merge(pair.count, to, slots + pair.first, true);
                mark(n, of_pair.pair);
                lacks = true;
            }
        }
        lacks |= solved && points.add_missing(n, row(n), broad.x.data(), broad.R.data(), environment.timestep, options.kappa, touching[n]);
        environment.bad = !solved || lacks || overflows || pierced || (!environment.sound && free);
        environment.overflows = overflows;
        if (!environment.bad && begin_to_bounce(n)) environment.bad = lacks = true;  // solved once more, with the law of restitution
        if (!lacks || overflows) return false;
        environment.cold = false;
        return true;
    }

    void store(int64_t n, int64_t t) {
        const int64_t in_call = first + n, place = in_call * r.steps + t;
        Environment &environment = environments[n];
        if (environment.bad) {
            std::copy_n(before_step(in_call, t), states, &z[n * states]);
            std::fill_n(impulses_of(n, t), m.num_impulses, 0.0);
            status[n] = std::max<int64_t>(status[n], max_iterations);
        }
        std::copy_n(&z[n * states], states, r.z + in_call * r.z_stride + t * states);
        r.status[place] = status[n];
        r.iterations[place] = environment.made;
        r.substeps[place] = substeps[n];
        environment.warm = true;
        if (!near.terms || (near.stored == 1 && t + 1 < r.steps)) return;
        int64_t *to = near.terms + (in_call * near.stored + (near.stored > 1 ? t : 0)) * pairs.size();
        std::fill_n(to, pairs.size(), 0);
        for (size_t p = 0; p < pairs.pairs.size(); ++p) {
            const NearPairs::Pair &pair = pairs.pairs[p];
            if (!busy[n * marks() + p]) continue;
            for (int64_t k = pair.first; k < pair.first + pair.count; ++k) to[pairs.place[k]] = in_slot(n, k);
        }
    }

    // Slots with numbers that are not finite count as slots with terms.
    void find_broken(int64_t n) {
        if (n && !r.parameter_stride) {
            broken[n] = broken[0];
            return;
        }
        if (all_finite(row(n), width)) return;
        for (int64_t k = 0; k < pairs.size(); ++k)
            if (handle.slots.is_broken(row(n), handle.slots.ranked(handle.ranks[k]))) broken[n].push_back(k);
    }

    // Members of near_solves.hpp.
    void list(int64_t n);
    void solve(const std::vector<int64_t> &which, int64_t t, double fading, bool from_warm);
    void solve_together(int64_t *which, int64_t size, int64_t t, double fading, bool from_warm);
    TdRollout call(const double *parameters, int64_t size, const double *start, const double *u);

    // Members of near_looks.hpp.
    void look(int64_t n);
    void look_ahead(int64_t n);
    int64_t search_pair(int64_t n, size_t number, double reach);
    template <class F>
    void search(int64_t n, const double *state, const uint8_t *marked, F &&f);

    // The terms of the last search as numbers.
    void take(const NearPairs::Pair &pair, int64_t terms_found, int64_t *to) const {
        for (int32_t k = 0; k < pair.count; ++k) to[k] = k < terms_found ? key_of(&terms[3 * k]) : 0;
    }

    // Puts the terms of a search into slots. A slot that has such a term keeps it: `merge` of near_slots.py.
    void merge(int32_t size, const int64_t *found_now, int64_t *slots, bool keep) {
        std::copy_n(slots, size, slots_before.data());
        int32_t *order = ranks.data(), end = 0;  // slots, empty ones first, then slots with other terms
        for (int32_t k = 0; k < size; ++k)
            if (!slots_before[k]) order[end++] = k;
        for (int32_t k = 0; k < size; ++k)
            if (slots_before[k] && !has(found_now, size, slots_before[k])) {
                order[end++] = k;
                if (!keep) slots[k] = 0;
            }
        int32_t next = 0;
        for (int32_t k = 0; k < size && next < end; ++k)
            if (found_now[k] && !has(slots_before.data(), size, found_now[k])) slots[order[next++]] = found_now[k];
    }

    // Whether gravity alone gives bodies energy.
    bool is_free(int64_t in_call, int64_t t) const {
        if (!near.free || r.wrench) return false;
        const double *u = r.u + (in_call * r.steps + t) * m.num_inputs;
        return !r.u || std::all_of(u, u + m.num_inputs, [](double x) { return x == 0.0; });
    }
};

}  // namespace torchdojo
