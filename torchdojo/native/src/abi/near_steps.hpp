// Steps of mechanisms whose bodies touch at near terms (torchdojo/engine/near_set.py, which says why), and their gradients.
//
// Each environment chooses the terms of its slots by itself. Those that are to be solved together are one call of the step. A step without
// a solution, or with another one than the motion, is taken in halves, each with terms of its own.
#pragma once

#include "abi/handle.hpp"
#include "base/separation.hpp"

namespace torchdojo {

// The steps of one block of environments.
class NearSteps {
public:
    NearSteps(Handle &handle, const Options &options, const TdRollout &r, const TdNearSteps &near, int64_t first, int64_t last)
        : handle(handle), m(handle.table), pairs(handle.near), options(whole_steps(options)), of_starts(options),
          halvings(options.max_halvings), r(r), near(near), first(first), count(last - first), width(m.num_parameters + m.num_samples),
          states(state_size * m.num_bodies), rows(size_t(count * width)), all(size_t(count * pairs.size())), found(all.size(), -1),
          chosen(all.size()), environments(count), broad(pairs, m.num_bodies), starts(size_t(count) * pairs.pairs.size()),
          busy(size_t(count) * marks()) {
        for (int64_t n = 0; n < count; ++n) std::copy_n(r.parameters + (first + n) * r.parameter_stride, width, row(n));
        for (const NearPairs::Pair &pair : pairs.pairs) {
            most = std::max(most, pair.count);
            thickness.push_back(torchdojo::thickness(*pair.cores[0]) + torchdojo::thickness(*pair.cores[1]));
        }
        terms.resize(3 * most), gaps.resize(most), ranks.resize(most), before.resize(most);
        from.resize(count * states), z.resize(count * states), impulses.resize(count * m.num_impulses), w.resize(count * m.num_unknowns);
        status.resize(count), iterations.resize(count), substeps.resize(count);
        warm.resize(w.size());
    }

    void run() {
        for (int64_t n = 0; n < count; ++n) {
            int64_t *known = &chosen[n * pairs.size()];
            for (int64_t k = 0; k < pairs.size(); ++k) known[k] = near.known ? key_of(row(n) + pairs.term[k]) : -1;
            for (size_t k = 0; k < pairs.pairs.size(); ++k) mark(n, k);
            near.overflow[2 * (first + n)] = -1;
            if (r.warm) std::copy_n(r.warm + (first + n) * m.num_unknowns, m.num_unknowns, warm_of(n));
            environments[n].warm = r.warm != nullptr;
        }
        for (int64_t t = 0; t < r.steps; ++t) step(t);
    }

    // Gradients through the steps, from the last to the first. The terms, states and solutions of all steps are kept.
    void backward(double kappa, const TdGradient &g) {
        const int64_t nu = m.num_inputs, ni = m.num_impulses, nw = m.num_unknowns, nb6 = 6 * m.num_bodies;
        std::vector<double> start(count * states), end(start.size()), along(start.size()), by_z(start.size()), by_u(count * nu),
            by_wrench(g.grad_wrench ? count * nb6 : 0), by_impulses(g.grad_impulses ? count * ni : 0), inputs(r.u ? count * nu : 0);
        if (g.grad_wrench) std::fill_n(g.grad_wrench + first * nb6, count * nb6, 0.0);
        for (int64_t t = r.steps - 1; t >= 0; --t) {
            for (int64_t n = 0; n < count; ++n) {
                const int64_t at = first + n;
                const double *kept = near.terms + (at * near.stored + t) * 3 * pairs.size();
                for (int64_t k = 0; k < pairs.size(); ++k) {
                    std::copy_n(kept + 3 * pairs.place[k], 3, row(n) + pairs.term[k]);
                    row(n)[pairs.term[k] + parameter::slot::fading] = 1.0;
                }
                std::copy_n(before_step(at, t), states, &start[n * states]);
                std::copy_n(r.z + at * r.z_stride + t * states, states, &end[n * states]);
                std::copy_n(r.w + (at * r.w_steps + t) * nw, nw, &w[n * nw]);
                const int64_t place = at * r.steps + t;
                // Halves follow below. In this call they count as steps that failed, whose gradients are zero.
                status[n] = r.substeps[place] > 1 ? int64_t(max_iterations) : r.status[place];
                iterations[n] = r.iterations[place], substeps[n] = 1;
                if (r.u) std::copy_n(r.u + place * nu, nu, &inputs[n * nu]);
                if (g.grad_impulses) std::copy_n(g.grad_impulses + place * ni, ni, &by_impulses[n * ni]);
                const double *own = g.grad_z + at * g.grad_z_stride + t * states;
                for (int64_t k = 0; k < states; ++k) along[n * states + k] = own[k] + (t + 1 < r.steps ? by_z[n * states + k] : 0.0);
            }
            TdRollout one = call(rows.data(), count, start.data(), r.u ? inputs.data() : nullptr);
            if (r.wrench) one.wrench = r.wrench + first * nb6;
            one.z = end.data();
            TdGradient of = {};
            of.grad_z = along.data(), of.grad_z_stride = states;
            of.grad_impulses = g.grad_impulses ? by_impulses.data() : nullptr;
            of.grad_z0 = by_z.data(), of.grad_u = g.grad_u ? by_u.data() : nullptr;
            of.grad_wrench = g.grad_wrench ? by_wrench.data() : nullptr;
            handle.backward(many, options, kappa, one, of, nullptr, 0, count);
            for (int64_t n = 0; n < count; ++n)
                if (r.substeps[(first + n) * r.steps + t] > 1) through_halves(n, t, kappa, along.data() + n * states, of);
            for (int64_t n = 0; n < count && g.grad_u; ++n) std::copy_n(&by_u[n * nu], nu, g.grad_u + ((first + n) * r.steps + t) * nu);
            for (size_t k = 0; k < by_wrench.size(); ++k) g.grad_wrench[first * nb6 + k] += by_wrench[k];
        }
        std::copy_n(by_z.data(), by_z.size(), g.grad_z0 + first * states);
    }

private:
    static constexpr int passes = constant::near_terms::passes;
    static constexpr int64_t base = int64_t(1) << 20;  // more than a shape has features

    struct Environment {
        bool warm, cold, fresh, restarted, bad, sound, overflows;
        int64_t made, most;  // iterations of all solves of the step, and how many begin no other one
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
    std::vector<double> rows;  // parameters of each environment, with the terms of its slots
    std::vector<int64_t> all, found, chosen;  // terms as numbers (`key`): those near at the start, and those of the slots
    std::vector<Environment> environments;
    const bool many = r.environments > 1;  // lanes for all solves, also of one: bits do not depend on the others of a block
    BroadPhase broad;
    NearSearch near_search;
    std::vector<NearStart> starts;  // of each environment and pair
    std::vector<uint8_t> busy;  // of each environment and pair: whether it has terms, near ones or in slots
    std::vector<double> from;  // the states before the step, or before a part of it
    std::vector<double> z, impulses, w, warm, terms, gaps, thickness;
    std::vector<int64_t> status, iterations, substeps, active, cold, before;
    std::vector<int32_t> ranks;
    int32_t most = 1;
    // of some of the environments, which a call takes
    std::vector<double> some_rows, some_z, some_u, some_wrench, some_warm, out_z, out_impulses, out_w;
    std::vector<int64_t> out_counts;

    double *row(int64_t n) { return &rows[n * width]; }
    double *warm_of(int64_t n) { return &warm[n * m.num_unknowns]; }
    const double *before_step(int64_t at, int64_t t) const {
        return t ? r.z + at * r.z_stride + (t - 1) * states : r.z0 + at * r.z0_stride;
    }
    static int64_t key(double kind, double i, double j) { return kind < 0 ? -1 : (int64_t(kind) * base + int64_t(i)) * base + int64_t(j); }
    static int64_t key_of(const double *term) { return key(term[0], term[1], term[2]); }
    static int kind_of(int64_t key) { return key < 0 ? -1 : int(key / (base * base)); }
    static void put_term(int64_t key, double *to) {
        to[0] = double(kind_of(key));
        to[1] = key < 0 ? 0.0 : double(key / base % base), to[2] = key < 0 ? 0.0 : double(key % base);
    }
    size_t marks() const { return BroadPhase::padded(pairs.pairs.size()); }
    // Marks a pair with terms, near ones or in slots.
    void mark(int64_t n, int64_t pair) {
        const int64_t from = n * pairs.size() + pairs.pairs[pair].first, to = from + pairs.pairs[pair].count;
        const bool empty = std::all_of(&chosen[from], chosen.data() + to, [](int64_t key) { return key < 0; });
        busy[n * marks() + pair] = found[from] >= 0 || !empty;
    }
    static bool has(const int64_t *keys, int64_t size, int64_t key) { return std::find(keys, keys + size, key) != keys + size; }

    // Solves take whole steps, since halves have terms of their own. Halves come before continuation, which holds on to the terms. Solves
    // that only give a start to others may split: where they might not, 19 of 161 steps of a stack were taken in halves.
    static Options whole_steps(Options options) {
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

    void allow(int64_t n) { environments[n].made = 0, environments[n].most = passes * options.max_total_iterations; }

    // Steps of the environments that are active, from their states in `from`, with the timestep of their parameters.
    void attempt(int64_t t) {
        for (const int64_t n : active) {
            Environment &e = environments[n];
            e.cold = e.fresh = !e.warm, e.restarted = e.overflows = false, e.bad = true;
            int64_t *own = &found[n * pairs.size()], *slots = &chosen[n * pairs.size()];
            search(n, &from[n * states], true, [&](const NearPairs::Pair &pair, int64_t terms_found) {
                int64_t *to = own + pair.first;
                take(pair, terms_found, to);
                begin(pair, to, slots + pair.first, e.cold);
                mark(n, &pair - pairs.pairs.data());
            });
        }
        for (int pass = 0; pass < passes && !active.empty(); ++pass) {
            cold.clear();
            for (const int64_t n : active)
                if (environments[n].cold) cold.push_back(n);
            // Without a start, impulses begin at gaps wider than the reach, where they would act on nothing.
            solve(cold, t, 0.0, false);
            for (const int64_t n : cold) std::copy_n(&w[n * m.num_unknowns], m.num_unknowns, warm_of(n));
            solve(active, t, 1.0, true);
            size_t left = 0;
            for (const int64_t n : active)
                if (goes_on(n, t) && environments[n].made < environments[n].most) active[left++] = n;
            active.resize(left);
        }
    }

    // Two steps of half the length in place of one, and so on. Those that succeed are put into `parts`, if wanted.
    bool halve(int64_t n, int64_t t, int64_t depth, std::vector<Part> *parts) {
        Environment &e = environments[n];
        if (depth == halvings || e.overflows || (depth && e.made >= e.most)) return false;
        if (!depth) e.most = e.made + passes * options.max_total_iterations;
        const std::vector<double> start(&from[n * states], &from[n * states] + states);
        std::vector<double> sum(m.num_impulses);
        const double whole = row(n)[parameter::timestep];
        row(n)[parameter::timestep] = 0.5 * whole;
        std::fill_n(&chosen[n * pairs.size()], pairs.size(), -1);
        e.warm = false;
        bool solved = true;
        int64_t taken = 0;
        for (int which = 0; which < 2 && solved; ++which) {
            active.assign(1, n);
            attempt(t);
            if (!e.bad && parts) {
                const auto copy = [](const double *p, int64_t size) { return std::vector<double>(p, p + size); };
                parts->push_back({copy(&from[n * states], states), copy(&z[n * states], states),
                                  copy(&w[n * m.num_unknowns], m.num_unknowns), copy(row(n), width)});
            }
            solved = !e.bad || halve(n, t, depth + 1, parts);
            taken += substeps[n];
            for (int64_t k = 0; k < m.num_impulses; ++k) sum[k] += impulses[n * m.num_impulses + k];
            std::copy_n(&z[n * states], states, &from[n * states]);
            std::copy_n(&w[n * m.num_unknowns], m.num_unknowns, warm_of(n));
            e.warm = true;
        }
        row(n)[parameter::timestep] = whole;
        std::copy(start.begin(), start.end(), &from[n * states]);
        std::copy(sum.begin(), sum.end(), impulses.data() + n * m.num_impulses);
        substeps[n] = solved ? taken : 1, e.bad = !solved;
        return solved;
    }

    // Gradients of an environment through the parts of its step, which are solved again, to the same bits.
    void through_halves(int64_t n, int64_t t, double kappa, const double *along, const TdGradient &of) {
        const int64_t at = first + n, nu = m.num_inputs, ni = m.num_impulses, nb6 = 6 * m.num_bodies;
        std::copy_n(before_step(at, t), states, &from[n * states]);
        allow(n), environments[n].overflows = false;
        std::vector<Part> parts;
        double *by_z = of.grad_z0 + n * states, *by_u = of.grad_u ? of.grad_u + n * nu : nullptr;
        double *by_wrench = of.grad_wrench ? of.grad_wrench + n * nb6 : nullptr;
        if (!halve(n, t, 0, &parts)) return;
        std::vector<double> carried(along, along + states), own_u(nu), own_wrench(nb6), before(states);
        int64_t counts[] = {success, 0, 1};
        for (size_t k = parts.size(); k-- > 0;) {
            const Part &part = parts[k];
            TdRollout one = call(part.row.data(), 1, part.start.data(), r.u ? r.u + (at * r.steps + t) * nu : nullptr);
            if (r.wrench) one.wrench = r.wrench + at * nb6;
            one.z = const_cast<double *>(part.end.data()), one.w = const_cast<double *>(part.w.data());
            one.status = &counts[0], one.iterations = &counts[1], one.substeps = &counts[2];
            TdGradient own = {};
            own.grad_z = carried.data(), own.grad_z_stride = states;
            own.grad_impulses = of.grad_impulses ? of.grad_impulses + n * ni : nullptr;
            own.grad_z0 = before.data(), own.grad_u = by_u ? own_u.data() : nullptr;
            own.grad_wrench = by_wrench ? own_wrench.data() : nullptr;
            handle.backward(false, options, kappa, one, own, nullptr, 0, 1);
            carried = before;
            for (int64_t i = 0; by_u && i < nu; ++i) by_u[i] += own_u[i];
            for (int64_t i = 0; by_wrench && i < nb6; ++i) by_wrench[i] += own_wrench[i];
        }
        std::copy(carried.begin(), carried.end(), by_z);
    }

    // Whether the solution of an environment is not the end of its step.
    bool goes_on(int64_t n, int64_t t) {
        Environment &e = environments[n];
        const double *start = &from[n * states];
        int64_t *own = &chosen[n * pairs.size()];
        const bool free = is_free(first + n, t);
        e.sound = !(energy(row(n), &z[n * states]) > (free ? 1.0 : 100.0) * bound(row(n), start));
        const bool solved = status[n] == success, pierced = solved && e.sound && is_pierced(n);
        if ((!solved || !e.sound || pierced) && !(e.cold && e.fresh)) {
            // The start led astray: once more without it, and without the terms that were near before. Terms that a pass has added since
            // such a restart stay.
            if (!e.restarted)
                for (const NearPairs::Pair &pair : pairs.pairs)
                    merge(pair.count, &found[n * pairs.size() + pair.first], own + pair.first, false);
            e.cold = e.fresh = e.restarted = true;
            return true;
        }
        bool lacks = false, overflows = false;
        search(n, &z[n * states], false, [&](const NearPairs::Pair &pair, int64_t terms_found) {
            if (!terms_found) return;
            if (terms_found > pair.count) {
                overflows = true;
                near.overflow[2 * (first + n)] = pair.contact, near.overflow[2 * (first + n) + 1] = terms_found;
            }
            int64_t *to = &all[n * pairs.size() + pair.first];
            take(pair, terms_found, to);
            bool lacking = false;
            for (int32_t k = 0; k < pair.count && to[k] >= 0; ++k) lacking |= !has(own + pair.first, pair.count, to[k]);
            if (lacking && solved) merge(pair.count, to, own + pair.first, true), mark(n, &pair - pairs.pairs.data()), lacks = true;
        });
        e.bad = !solved || lacks || overflows || pierced || (!e.sound && free);
        e.overflows = overflows;
        if (!lacks || overflows) return false;
        e.cold = false;
        std::copy_n(&w[n * m.num_unknowns], m.num_unknowns, warm_of(n));
        return true;
    }

    void store(int64_t n, int64_t t) {
        const int64_t at = first + n, place = at * r.steps + t, ni = m.num_impulses, nw = m.num_unknowns;
        Environment &e = environments[n];
        if (e.bad) {
            std::copy_n(before_step(at, t), states, &z[n * states]);
            std::fill_n(&impulses[n * ni], ni, 0.0);
            status[n] = std::max<int64_t>(status[n], max_iterations);
        }
        std::copy_n(&z[n * states], states, r.z + at * r.z_stride + t * states);
        std::copy_n(impulses.data() + n * ni, ni, r.impulses + place * ni);
        std::copy_n(&w[n * nw], nw, r.w + (at * r.w_steps + (r.w_steps > 1 ? t : 0)) * nw);
        r.status[place] = status[n], r.iterations[place] = e.made, r.substeps[place] = substeps[n];
        double *to = near.terms + (at * near.stored + (near.stored > 1 ? t : 0)) * 3 * pairs.size();
        for (int64_t k = 0; k < pairs.size(); ++k) std::copy_n(row(n) + pairs.term[k], 3, to + 3 * pairs.place[k]);
        if (t + 1 < r.steps) std::copy_n(&w[n * nw], nw, warm_of(n));
        e.warm = true;
    }

    // Solves a step of these environments, with the terms of their slots.
    void solve(const std::vector<int64_t> &which, int64_t t, double fading, bool from_warm) {
        const int64_t size = int64_t(which.size()), nu = m.num_inputs, nb6 = 6 * m.num_bodies, ni = m.num_impulses, nw = m.num_unknowns;
        if (!size) return;
        const bool whole = size == count;
        if (!whole) some_rows.resize(size * width);
        some_z.resize(size * states), some_u.resize(size * nu), some_wrench.resize(size * nb6);
        if (!whole) some_warm.resize(size * nw), out_w.resize(size * nw);
        out_z.resize(size * states), out_impulses.resize(size * ni), out_counts.resize(3 * size);
        for (int64_t i = 0; i < size; ++i) {
            const int64_t n = which[i], at = first + n;
            for (int64_t k = 0; k < pairs.size(); ++k) {
                double *slot = row(n) + pairs.term[k];
                const int64_t own = chosen[n * pairs.size() + k];
                if (own >= 0 || slot[0] >= 0) put_term(own, slot);
                slot[parameter::slot::fading] = fading;
            }
            if (!whole) std::copy_n(row(n), width, &some_rows[i * width]);
            std::copy_n(&from[n * states], states, &some_z[i * states]);
            if (r.u) std::copy_n(r.u + (at * r.steps + t) * nu, nu, some_u.data() + i * nu);
            if (r.wrench) std::copy_n(r.wrench + at * nb6, nb6, &some_wrench[i * nb6]);
            if (from_warm && !whole) std::copy_n(warm_of(n), nw, &some_warm[i * nw]);
        }
        TdRollout one = call(whole ? rows.data() : some_rows.data(), size, some_z.data(), r.u ? some_u.data() : nullptr);
        if (r.wrench) one.wrench = some_wrench.data();
        if (from_warm) one.warm = whole ? warm.data() : some_warm.data();
        one.z = out_z.data(), one.impulses = out_impulses.data(), one.w = whole ? w.data() : out_w.data();
        one.status = &out_counts[0], one.iterations = &out_counts[size], one.substeps = &out_counts[2 * size];
        handle.forward(many, fading > 0 ? options : of_starts, one, 0, size);
        for (int64_t i = 0; i < size; ++i) {
            const int64_t n = which[i];
            std::copy_n(&out_z[i * states], states, &z[n * states]);
            std::copy_n(out_impulses.data() + i * ni, ni, impulses.data() + n * ni);
            if (!whole) std::copy_n(&out_w[i * nw], nw, &w[n * nw]);
            status[n] = out_counts[i], iterations[n] = out_counts[size + i], substeps[n] = out_counts[2 * size + i];
            environments[n].made += iterations[n];
        }
    }

    // A call of one step, with the solutions and counts of all environments.
    TdRollout call(const double *parameters, int64_t size, const double *start, const double *u) {
        TdRollout one = {};
        one.environments = size, one.steps = one.repeat = one.every = one.w_steps = 1;
        one.parameters = parameters, one.parameter_stride = width;
        one.z0 = start, one.z0_stride = one.z_stride = states, one.u = u;
        one.w = w.data(), one.impulses = impulses.data();
        one.status = status.data(), one.iterations = iterations.data(), one.substeps = substeps.data();
        return one;
    }

    // Calls f(pair, how many terms are near, the nearest of which are in `terms`) for pairs that have some, and at the start of a step for
    // those that had some. travels: within what a step may close, at its start.
    template <class F>
    void search(int64_t n, const double *state, bool travels, F &&f) {
        const double h = travels ? row(n)[parameter::timestep] : 0.0;
        broad.place(state, h);
        NearStart *start = &starts[n * pairs.pairs.size()];
        broad.each(travels ? &busy[n * marks()] : nullptr, [&](size_t k) {
            const NearPairs::Pair &pair = pairs.pairs[k];
            int64_t terms_found = 0;
            if (broad.may_be_near(k)) {
                const bool fixed = pair.other == m.num_bodies;
                const Vec3<double> still = {0, 0, 0}, x[2] = {broad.x[pair.body], broad.x[pair.other]};
                const Mat3<double> R[2] = {broad.R[pair.body], broad.R[pair.other]};
                const Vec3<double> other = fixed ? still : load3(state + state_size * pair.other + 3);
                const Vec3<double> speed = load3(state + state_size * pair.body + 3) - other;
                const double turns = pair.extent[0] * broad.moves[2 * pair.body + 1] + pair.extent[1] * broad.moves[2 * pair.other + 1];
                const double reach = constant::near_terms::reach + (travels ? h * std::sqrt(dot(speed, speed)) + turns : 0.0);
                terms_found = near_search(*pair.cores[0], *pair.cores[1], x, R, reach, pair.count, terms.data(), gaps.data(), start[k]);
            }
            f(pair, terms_found);
        });
    }

    // Whether the cores of a pair overlap after the step or on its way, and did not before: `pierced` of near_overlap.py.
    bool is_pierced(int64_t n) {
        const double *start = &from[n * states], *end = &z[n * states], h = row(n)[parameter::timestep];
        for (size_t p = 0; p < pairs.pairs.size(); ++p) {
            const NearPairs::Pair &pair = pairs.pairs[p];
            const int bodies[2] = {pair.body, pair.other};
            Vec3<double> x[2] = {}, move[2] = {}, turn[2] = {};
            Quat<double> q[2] = {{1, {0, 0, 0}}, {1, {0, 0, 0}}};
            double way = 0.0;
            for (int k = 0; k < 2 && bodies[k] < m.num_bodies; ++k) {
                const double *a = start + state_size * bodies[k], *b = end + state_size * bodies[k];
                x[k] = load3(a), q[k] = load4(a + 6), move[k] = load3(b) - load3(a), turn[k] = (0.5 * h) * load3(b + 10);
                way += 2 * pair.extent[k] * std::sqrt(dot(turn[k], turn[k]));
            }
            const Vec3<double> gone = move[0] - move[1], apart = x[0] - x[1];
            way += std::sqrt(dot(gone, gone));
            const double reach = pair.extent[0] + pair.extent[1] + way;
            if (dot(apart, apart) > reach * reach) continue;
            const double margin = 0.5 * (pair.cores[0]->radius + pair.cores[1]->radius);
            const auto are_apart_at = [&](double part) {
                Vec3<double> place[2];
                Mat3<double> R[2];
                for (int k = 0; k < 2; ++k) {
                    const Vec3<double> a = part * turn[k];
                    place[k] = x[k] + part * move[k];
                    R[k] = rotation_matrix(q[k] * Quat<double>{std::sqrt(std::max(0.0, 1.0 - dot(a, a))), a});
                }
                return are_apart(*pair.cores[0], *pair.cores[1], place, R, margin);
            };
            const int looks = int(std::min(double(constant::near_terms::looks), std::ceil(std::max(1.0, 2 * way / thickness[p]))));
            for (int k = looks; k > 0; --k)
                if (!are_apart_at(double(k) / looks)) {
                    if (are_apart_at(0.0)) return true;
                    break;
                }
        }
        return false;
    }

    // The terms of the last search as numbers.
    void take(const NearPairs::Pair &pair, int64_t terms_found, int64_t *to) const {
        for (int32_t k = 0; k < pair.count; ++k) to[k] = k < terms_found ? key_of(&terms[3 * k]) : -1;
    }

    // The slots at the start of a step: `begin` of near_slots.py.
    void begin(const NearPairs::Pair &pair, const int64_t *found_now, int64_t *slots, bool without_start) {
        bool changes = without_start;
        for (int32_t k = 0; k < pair.count && !changes; ++k) {
            changes = found_now[k] >= 0 && !has(slots, pair.count, found_now[k]);
            changes |= kind_of(slots[k]) == crossing_term && !has(found_now, pair.count, slots[k]);
        }
        if (changes) merge(pair.count, found_now, slots, false);
    }

    // Puts the terms found into slots, those that had them before if any: `merge` of near_slots.py.
    void merge(int32_t size, const int64_t *found_now, int64_t *slots, bool keep) {
        std::copy_n(slots, size, before.data());
        int32_t *order = ranks.data(), end = 0;  // slots, empty ones first, then those of other terms
        for (int32_t k = 0; k < size; ++k)
            if (before[k] < 0) order[end++] = k;
        for (int32_t k = 0; k < size; ++k)
            if (before[k] >= 0 && !has(found_now, size, before[k])) {
                order[end++] = k;
                if (!keep) slots[k] = -1;
            }
        int32_t next = 0;
        for (int32_t k = 0; k < size && next < end; ++k)
            if (found_now[k] >= 0 && !has(before.data(), size, found_now[k])) slots[order[next++]] = found_now[k];
    }

    // Whether gravity alone gives bodies energy.
    bool is_free(int64_t at, int64_t t) const {
        if (!near.free || r.wrench) return false;
        const double *u = r.u + (at * r.steps + t) * m.num_inputs;
        return !r.u || std::all_of(u, u + m.num_inputs, [](double x) { return x == 0.0; });
    }
    double energy(const double *p, const double *state) const {
        double sum = 0.0;
        for (int i = 0; i < m.num_bodies; ++i) {
            const double *body = p + parameter::bodies + parameter::body_size * i;
            const Vec3<double> v = load3(state + state_size * i + 3), omega = load3(state + state_size * i + 10);
            sum += 0.5 * (body[parameter::mass] * dot(v, v) + dot(omega, load33(body + parameter::inertia) * omega));
        }
        return sum;
    }
    double bound(const double *p, const double *state) const {
        double mass = 0.0;
        for (int i = 0; i < m.num_bodies; ++i) mass += p[parameter::bodies + parameter::body_size * i + parameter::mass];
        const Vec3<double> g = load3(p + parameter::gravity);
        const double h = p[parameter::timestep], leaving = options.depenetration_speed;
        return 4 * energy(p, state) + mass * (8 * dot(g, g) * h * h + 2 * leaving * leaving + 1e-3);
    }
};

}  // namespace torchdojo
