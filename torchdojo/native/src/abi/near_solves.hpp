// Solves of the environments of a block, with the terms of their slots (near_steps.hpp): those with about the same slots together.
#pragma once

#include "abi/near_looks.hpp"

namespace torchdojo {

// The slots of an environment that have terms, and its points that are near.
inline void NearSteps::list(int64_t n) {
    std::vector<int32_t> &ranks = compact.filled[n];
    const int64_t *keys = chosen.data() + n * pairs.size();
    ranks.clear();
    for (size_t p = 0; p < pairs.pairs.size(); ++p) {
        if (!busy[n * marks() + p]) continue;
        const NearPairs::Pair &pair = pairs.pairs[p];
        for (int32_t k = pair.first; k < pair.first + pair.count; ++k)
            if (keys[k]) ranks.push_back(handle.ranks[k]);
    }
    for (const int64_t k : broken[n])
        if (!keys[k]) ranks.push_back(handle.ranks[k]);
    ranks.insert(ranks.end(), touching[n].begin(), touching[n].end());
    std::sort(ranks.begin(), ranks.end());
}

// Solves a step of these environments, with the terms of their slots.
inline void NearSteps::solve(const std::vector<int64_t> &which, int64_t t, double fading, bool from_warm) {
    for (const int64_t n : which) list(n);
    ordered = which;
    compact.sort(ordered);
    for (size_t start = 0, end; start < ordered.size(); start = end) {
        end = compact.choose(ordered, start);
        solve_together(&ordered[start], int64_t(end - start), t, fading, from_warm);
    }
}

// Solves environments that share a part of the mechanism.
inline void NearSteps::solve_together(int64_t *which, int64_t size, int64_t t, double fading, bool from_warm) {
    const std::shared_ptr<Handle> part = handle.part(compact.kept);
    const int64_t nu = m.num_inputs, nb6 = 6 * m.num_bodies, part_ni = part->table.num_impulses, part_nw = part->table.num_unknowns;
    const int64_t part_width = part->table.num_parameters + part->table.num_samples, far = points.size();
    // Steps that took many iterations do so again: if they begin first, no lane is left with one while the others are idle.
    std::stable_sort(which, which + size, [&](int64_t i, int64_t j) { return iterations[i] > iterations[j]; });
    const auto need = [](auto &numbers, int64_t wanted) {  // vectors that grow again would be cleared each time
        if (int64_t(numbers.size()) < wanted) numbers.resize(wanted);
    };
    need(some_rows, size * part_width);
    need(some_warm, size * part_nw);
    need(out_w, size * part_nw);
    need(some_z, size * states);
    need(some_u, size * nu);
    need(some_wrench, size * nb6);
    need(some_weights, size * far);
    need(out_z, size * states);
    need(out_impulses, size * part_ni);
    need(out_counts, 3 * size);
    PartCall &call_of_part = points.call;
    call_of_part.weights = some_weights.data();
    call_of_part.parameters = some_rows.data();
    call_of_part.alike = r.parameter_stride ? 0 : compact.num_rest();
    if (r.parameter_stride && far) {
        need(some_values, size * far * PartCall::size);
        for (int64_t i = 0; i < size; ++i)
            std::copy_n(points.numbers(which[i]), far * PartCall::size, &some_values[i * far * PartCall::size]);
        call_of_part.values = some_values.data();
        call_of_part.value_stride = far * PartCall::size;
    }
    for (int64_t i = 0; i < size; ++i) {
        const int64_t n = which[i], in_call = first + n;
        compact.arrange(n);
        compact.weigh(n, some_weights.data() + i * far);
        compact.gather_parameters(row(n), &some_rows[i * part_width], i ? call_of_part.alike : 0, [&](int32_t rank, double *term) {
            put_term(in_slot(n, handle.near_of[rank]), term);
            term[parameter::slot::fading] = fading;
        });
        some_rows[i * part_width + parameter::timestep] = environments[n].timestep;
        std::copy_n(&from[n * states], states, &some_z[i * states]);
        if (r.u) std::copy_n(r.u + (in_call * r.steps + t) * nu, nu, some_u.data() + i * nu);
        if (r.wrench) std::copy_n(r.wrench + in_call * nb6, nb6, &some_wrench[i * nb6]);
        if (from_warm)
            compact.gather_start(row(n), options.kappa, environments[n].from_call ? r.warm + in_call * m.num_unknowns : last_of(n),
                                 &some_warm[i * part_nw]);
    }
    TdRollout one = call(some_rows.data(), size, some_z.data(), r.u ? some_u.data() : nullptr);
    one.parameter_stride = part_width;
    if (r.wrench) one.wrench = some_wrench.data();
    if (from_warm) one.warm = some_warm.data();
    one.z = out_z.data();
    one.impulses = out_impulses.data();
    one.w = out_w.data();
    one.status = &out_counts[0];
    one.iterations = &out_counts[size];
    one.substeps = &out_counts[2 * size];
    part->forward(many, fading > 0 ? options : of_starts, one, 0, size, &call_of_part);
    for (int64_t i = 0; i < size; ++i) {
        const int64_t n = which[i];
        std::copy_n(&out_z[i * states], states, &z[n * states]);
        status[n] = out_counts[i];
        iterations[n] = out_counts[size + i];
        substeps[n] = out_counts[2 * size + i];
        const bool solved = status[n] == success;
        environments[n].made += iterations[n];
        if (!solved && !pairs.size()) continue;  // the mechanism with all points starts where this one did
        compact.arrange(n);
        compact.scatter(n, &out_w[i * part_nw], out_impulses.data() + i * part_ni, w_of(n, t), impulses_of(n, t));
        points.keep(n, row(n), some_weights.data() + i * far, solved ? &z[n * states] : nullptr, environments[n].timestep, options.kappa,
                    w_of(n, t), impulses_of(n, t));
        environments[n].from_call = false;
    }
}

// A call of one step, with the solutions and counts of all environments.
inline TdRollout NearSteps::call(const double *parameters, int64_t size, const double *start, const double *u) {
    TdRollout one = {};
    one.environments = size;
    one.steps = one.repeat = one.every = one.w_steps = 1;
    one.parameters = parameters;
    one.parameter_stride = width;
    one.z0 = start;
    one.z0_stride = one.z_stride = states;
    one.u = u;
    one.w = w.data();
    one.impulses = impulses.data();
    one.status = status.data();
    one.iterations = iterations.data();
    one.substeps = substeps.data();
    return one;
}

}  // namespace torchdojo
