// The numbers of environments as a part of their mechanism has them (slots.hpp), and the way back.
#pragma once

#include <algorithm>

#include "abi/slots.hpp"

namespace torchdojo {

// Environments first … last of a call, which share a part, whose kernel counts them from zero.
class SlotRows {
public:
    const int64_t first;
    int64_t last;
    std::vector<int32_t> kept;  // slots of each group in the part: room for the most terms of any environment

    // Takes environments from `first` on that fill the lanes, and further ones while a part that is not much larger is enough: a new part
    // costs as much as some steps.
    // kappa: of the solutions.
    SlotRows(const MechanismTable &m, const Slots &slots, double kappa, const TdRollout &r, int64_t first, int64_t end)
        : first(first), last(first), kept(slots.num_groups()), table(m), slots(slots), kappa(kappa), whole(r) {
        const int groups = slots.num_groups();
        std::vector<int32_t> wider(groups);
        int64_t most = 0;
        for (int64_t n = first; n < end; last = ++n) {
            if (!r.parameter_stride && n > first) continue;
            order.resize(order.size() + slots.size());
            counts.resize(counts.size() + groups);
            int32_t *count = &counts[counts.size() - groups];
            slots.sort(r.parameters + n * r.parameter_stride, &order[order.size() - slots.size()], count);
            int64_t total = 0;
            for (int g = 0; g < groups; ++g) {
                wider[g] = std::max(kept[g], slots.room(g, count[g]));
                if (slots.first_of(g) < slots.size_near()) total += wider[g];  // all parts have all points
            }
            if (n - first < pack_lanes) most = total + total / 2 + 4;
            else if (total > most) break;
            kept = wider;
        }
    }

    int64_t size() const { return last - first; }

    // The call for these environments, as the part takes it: warm starts and parameters are copied, and solutions and impulses have memory.
    const TdRollout &rollout() {
        part_rollout = whole;
        const int64_t periods = whole.steps / whole.repeat, stored = whole.steps / whole.every;
        const auto skip = [&](auto *&pointer, int64_t stride) {
            if (pointer) pointer += first * stride;
        };
        part_rollout.environments = size();
        skip(part_rollout.z0, whole.z0_stride);
        skip(part_rollout.z, whole.z_stride);
        skip(part_rollout.u, periods * (whole.law ? whole.law->actuators : table.num_inputs));
        skip(part_rollout.wrench, 6 * table.num_bodies);
        skip(part_rollout.grad_kappa, 1);
        skip(part_rollout.status, stored);
        skip(part_rollout.iterations, stored);
        skip(part_rollout.substeps, stored);
        if (whole.law) {
            law = *whole.law;
            law.values += first * law.stride;
            part_rollout.law = &law;
        }
        parameters = gather(Slots::parameters, 1, whole.parameters, whole.parameter_stride ? size() : 1);
        if (whole.parameter_stride) part_rollout.parameter_stride = width(Slots::parameters);
        part_rollout.parameters = parameters.data();
        if (whole.warm) {
            warm = gather(Slots::unknowns, 1, whole.warm, size());
            part_rollout.warm = warm.data();
        }
        w.resize(size_t(size() * whole.w_steps) * width(Slots::unknowns));
        part_rollout.w = w.data();
        impulses.resize(size_t(size() * periods) * width(Slots::impulses));
        part_rollout.impulses = impulses.data();
        return part_rollout;
    }

    // The rollout with the solutions of a call that was made.
    const TdRollout &solved() {
        rollout();
        w = gather(Slots::unknowns, whole.w_steps, whole.w, size());
        part_rollout.w = w.data();
        return part_rollout;
    }

    TdGradient gradient(const TdGradient &g) {
        TdGradient to = g;
        const int64_t periods = whole.steps / whole.repeat;
        to.grad_z += first * g.grad_z_stride;
        to.grad_z0 += first * state_size * table.num_bodies;
        if (g.grad_u) to.grad_u += first * (whole.law ? periods * whole.law->actuators : whole.steps * table.num_inputs);
        if (g.grad_wrench) to.grad_wrench += first * 6 * table.num_bodies;
        if (g.grad_impulses) {
            grad_impulses = gather(Slots::impulses, periods, g.grad_impulses, size());
            to.grad_impulses = grad_impulses.data();
        }
        if (g.impacts) {
            impacts = *g.impacts;
            impacts.step += first * whole.steps;
            to.impacts = &impacts;
        }
        return to;
    }

    // Memory for the gradients of parameters, which start at zero, and their way back.
    double *sums() {
        sum.assign(size_t(whole.parameter_stride ? size() : 1) * width(Slots::parameters), 0.0);
        return sum.data();
    }
    void add_sums(double *to) const {
        const double *from = sum.data();
        const int64_t own_size = width(Slots::parameters);
        for (int64_t n = 0; n < (whole.parameter_stride ? size() : 1); ++n, from += own_size) {
            double *row = to + (first + n) * whole.parameter_stride;
            slots.each(Slots::parameters, kept, order_of(n), [&](int32_t in_whole, int32_t in_part, int32_t count) {
                for (int32_t k = 0; k < count; ++k) row[in_whole + k] += from[in_part + k];
            });
        }
    }

    // Writes solutions and impulses. Empty slots are at rest. A failed step has zeros.
    void scatter() const {
        const int64_t periods = whole.steps / whole.repeat, stored = whole.steps / whole.every;
        const int64_t nw = table.num_unknowns, ni = table.num_impulses;
        double *to = whole.w + first * whole.w_steps * nw, *out = whole.impulses + first * periods * ni;
        put(Slots::unknowns, whole.w_steps, w.data(), to);
        put(Slots::impulses, periods, impulses.data(), out);
        SlotAtRest rest;
        for (int64_t n = 0; n < size(); ++n) {
            const double *p = whole.parameters + (first + n) * whole.parameter_stride;
            const int64_t *status = whole.status + (first + n) * stored;
            slots.each_empty(order_of(n), count_of(n), [&](const Slots::Slot &slot) {
                const Slots::Run *run = slot.runs.data();
                rest.put(table, table.contacts[slot.contact], p, kappa);
                const auto fill = [&](double *to, const double *values, double scale) {
                    for (int32_t k = 0; k < run[0].count; ++k) to[k] = scale * values[k];
                };
                for (int64_t t = 0; t < whole.w_steps; ++t) {
                    const bool fine = status[whole.w_steps > 1 ? t : stored - 1] == success;
                    double *row = to + (n * whole.w_steps + t) * nw;
                    fill(row + run[0].from, rest.impulse, fine);
                    fill(row + run[1].from, rest.slack, fine);
                }
                for (int64_t t = 0; t < periods; ++t)
                    fill(out + (n * periods + t) * ni + run[3].from, rest.impulse,
                         status[whole.every > 1 ? t : (t + 1) * whole.repeat - 1] == success ? double(whole.repeat) : 0.0);
            });
        }
    }

    // Puts rows of the part, `steps` of each environment, into rows of the whole, from its first environment on.
    void put(Slots::Vector v, int64_t steps, const double *from, double *to) const {
        const int64_t from_size = width(v), to_size = full(v);
        for (int64_t n = 0; n < size(); ++n)
            for (int64_t t = 0; t < steps; ++t, from += from_size, to += to_size)
                slots.each(v, kept, order_of(n),
                           [&](int32_t in_whole, int32_t in_part, int32_t count) { std::copy_n(from + in_part, count, to + in_whole); });
    }

private:
    const MechanismTable &table;
    const Slots &slots;
    const double kappa;
    const TdRollout &whole;
    TdRollout part_rollout;
    TdLaw law;
    TdImpacts impacts;
    std::vector<int32_t> order, counts;  // for each environment: see Slots::sort
    std::vector<double> parameters, warm, w, impulses, grad_impulses, sum;

    const int32_t *order_of(int64_t n) const { return &order[whole.parameter_stride ? size_t(n) * slots.size() : 0]; }
    const int32_t *count_of(int64_t n) const { return &counts[whole.parameter_stride ? size_t(n) * slots.num_groups() : 0]; }
    int64_t full(Slots::Vector v) const {
        return v == Slots::unknowns     ? table.num_unknowns
               : v == Slots::parameters ? table.num_parameters + table.num_samples
                                        : table.num_impulses;
    }
    int64_t width(Slots::Vector v) const {
        int64_t count = 0;
        slots.each(v, kept, order.data(), [&](int32_t, int32_t, int32_t length) { count += length; });
        return count;
    }

    // Rows of the part from `steps` rows each of `environments`. Unknowns of empty slots start at rest: solutions may have zeros for them.
    std::vector<double> gather(Slots::Vector v, int64_t steps, const double *from, int64_t environments) const {
        const int64_t to_size = width(v), from_size = full(v);
        std::vector<double> to(size_t(environments * steps * to_size));
        const double *row = from + first * (v == Slots::parameters ? whole.parameter_stride : steps * from_size);
        double *place = to.data();
        for (int64_t n = 0; n < environments; ++n)
            for (int64_t t = 0; t < steps; ++t, row += from_size, place += to_size) {
                slots.each(v, kept, order_of(n),
                           [&](int32_t in_whole, int32_t in_part, int32_t count) { std::copy_n(row + in_whole, count, place + in_part); });
                if (v == Slots::unknowns) rest_in_part(n, row, place);
            }
        return to;
    }

    // row: a solution of the whole, which is zero where a step failed. place: the same in the part.
    void rest_in_part(int64_t n, const double *row, double *place) const {
        if (std::all_of(row, row + 6 * table.num_bodies, [](double number) { return number == 0.0; })) return;
        SlotAtRest rest;
        slots.each_slot(kept, order_of(n), [&](const Slots::Slot &slot, int32_t impulse, int32_t slack) {
            if (row[slot.runs[1].from] != 0.0 || slot.term < 0) return;
            rest.put(table, table.contacts[slot.contact], whole.parameters + (first + n) * whole.parameter_stride, kappa);
            std::copy_n(rest.impulse, slot.runs[0].count, place + impulse);
            std::copy_n(rest.slack, slot.runs[1].count, place + slack);
        });
    }
};

}  // namespace torchdojo
