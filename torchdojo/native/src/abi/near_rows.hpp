// The numbers of environments as a part of their mechanism has them (slots.hpp), where it is known which slots have terms, and points are near.
//
// Robots have thousands of slots, a few of which have terms. So only the first solution, and solutions after a failed one, pass through all
// slots.
#pragma once

#include "abi/handle.hpp"

namespace torchdojo {

class NearRows {
public:
    std::vector<std::vector<int32_t>> filled;  // ranks of the slots with terms, for each environment
    std::vector<int32_t> kept;  // slots of each group in the part

    NearRows(const Handle &handle, int64_t environments)
        : filled(environments), kept(handle.slots.num_groups()), slots(handle.slots), samples(handle.table.num_parameters),
          num_samples(handle.table.num_samples), written(environments), at_rest(environments) {}

    // Orders environments by the groups of their terms, so that those in the lanes of one register have use for the same slots: without it, an
    // A1 that lies down had 2.7 times as many slots as terms, and a fallen H1 8 times as many.
    void sort(std::vector<int64_t> &which) const {
        const auto before = [&](int32_t a, int32_t b) { return slots.group_of(a) < slots.group_of(b); };
        std::stable_sort(which.begin(), which.end(), [&](int64_t i, int64_t j) {
            return std::lexicographical_compare(filled[i].begin(), filled[i].end(), filled[j].begin(), filled[j].end(), before);
        });
    }

    // Chooses the part for the environments which[first], ...: those that fill the lanes, and further ones that it fits about as well.
    // Returns the first index that needs another part.
    size_t choose(const std::vector<int64_t> &which, size_t first) {
        for (const int32_t g : used) kept[g] = 0;
        used.clear();
        int64_t total = 0;
        size_t end = first;
        while (end < which.size()) {
            const size_t next = std::min(end + pack_lanes, which.size());
            int64_t wanted = 0;
            bool fits = true;
            find_rooms(which, end, next);
            for (const auto &[g, room] : rooms) {
                wanted += room;
                fits &= room <= kept[g];
            }
            if (end == first) {
                for (const auto &[g, room] : rooms) {
                    used.push_back(g);
                    kept[g] = room;
                }
                total = wanted;
            } else if (!fits || 4 * wanted < 3 * total) {
                break;
            }
            end = next;
        }
        return end;
    }

    // Takes up an environment: its slots with terms come first in each group, then empty ones.
    void arrange(int64_t n) {
        order.clear();
        const int32_t *next = filled[n].data(), *end = next + filled[n].size();
        for (const int32_t g : used) {
            const size_t until = order.size() + kept[g];
            const int32_t *first_rank = next;
            while (next != end && slots.group_of(*next) == g) order.push_back(*next++);
            for (int32_t rank = slots.first_of(g); order.size() < until; ++rank)
                if (!std::binary_search(first_rank, next, rank)) order.push_back(rank);
        }
    }

    // Numbers of the environment that `arrange` took up, as the part has them.
    void gather(Slots::Vector v, const double *from, double *to) const {
        each(v, [&](int32_t start, int32_t count) { to = copied(from + start, count, to); });
    }
    // The same for its parameters. Calls put(rank, place of the term) for each slot.
    // skipped: numbers before those of slots that stand elsewhere, and samples with them.
    template <class F>
    void gather_parameters(const double *from, double *to, int64_t skipped, F &&put) const {
        to += skipped;
        if (!skipped)
            for (const Slots::Run &run : slots.rest(Slots::parameters)) to = std::copy_n(from + run.from, run.count, to);
        for (const int32_t rank : order) {
            const Slots::Run &run = slots.ranked(rank).runs[2];
            std::copy_n(from + run.from, run.count, to);
            if (rank < slots.size_near()) put(rank, to + (slots.ranked(rank).term - run.from));
            to += run.count;
        }
        if (!skipped) std::copy_n(from + samples, num_samples, to);
    }
    int64_t num_rest() const {  // numbers before those of slots
        int64_t sum = 0;
        for (const Slots::Run &run : slots.rest(Slots::parameters)) sum += run.count;
        return sum;
    }
    // Sets the weights of far points: 1, or 0 where they are in the part.
    void weigh(double *weights) const {
        std::fill_n(weights, slots.size() - slots.size_near(), 1.0);
        for (const int32_t rank : order)
            if (rank >= slots.size_near()) weights[rank - slots.size_near()] = 0.0;
    }

    // Writes a solution and impulses of the part. Empty slots are at rest, as `SlotRows::scatter` says, and their impulses stay zero. Points
    // that are not in the part are left to `NearPoints::keep`.
    void scatter(int64_t n, const double *parameters, double kappa, bool solved, const double *w, const double *impulses, double *all_w,
                 double *all_impulses) {
        if (solved && at_rest[n]) {
            for (const int32_t rank : written[n])
                if (rank < slots.size_near()) rest(slots.ranked(rank), parameters, kappa, 1.0, all_w);
        } else if (solved) {
            rest_everywhere(parameters, kappa, all_w);
        } else {
            for (int32_t rank = 0; rank < slots.size_near(); ++rank) rest(slots.ranked(rank), parameters, kappa, 0.0, all_w);
        }
        clear(n, all_impulses);
        at_rest[n] = solved;
        written[n] = filled[n];
        put(Slots::unknowns, n, w, all_w);
        put(Slots::impulses, n, impulses, all_impulses);
    }

    void forget(int64_t n) { at_rest[n] = false; }  // the solution of an environment was written elsewhere

    // Sets impulses to zero that `scatter` wrote.
    void clear(int64_t n, double *impulses) const {
        for (const int32_t rank : written[n]) {
            if (rank >= slots.size_near()) continue;
            const Slots::Run &run = slots.ranked(rank).runs[3];
            for (int32_t k = 0; k < run.count; ++k) impulses[run.from + k] = 0.0;
        }
    }

private:
    const Slots &slots;
    const int32_t samples, num_samples;
    std::vector<std::vector<int32_t>> written;  // slots that are not at rest, for each environment
    std::vector<char> at_rest;  // whether all other slots are at rest, for each environment
    std::vector<int32_t> used, order;  // groups of the part; ranks of the slots of an environment in it
    std::vector<std::pair<int32_t, int32_t>> rooms;  // groups, in ascending order, and their slots in a part
    SlotAtRest values;  // values of an empty slot
    std::vector<double> row_at_rest;  // a solution with all slots at rest
    const double *rested = nullptr;  // its parameters

    // Copies numbers. Contacts with a disc have four, which a call of memmove would take longer for.
    static TD_INLINE double *copied(const double *from, int32_t count, double *to) {
        if (count != 4) return std::copy_n(from, count, to);
        std::memcpy(to, from, 4 * sizeof(double));
        return to + 4;
    }

    // The least slots that the environments which[first], ..., which[end − 1] have in common.
    void find_rooms(const std::vector<int64_t> &which, size_t first, size_t end) {
        rooms.clear();
        for (size_t i = first; i < end; ++i) {
            const std::vector<int32_t> &ranks = filled[which[i]];
            for (size_t k = 0, next; k < ranks.size(); k = next) {
                const int32_t g = slots.group_of(ranks[k]);
                for (next = k + 1; next < ranks.size() && slots.group_of(ranks[next]) == g;) ++next;
                rooms.push_back({g, slots.room(g, int32_t(next - k))});
            }
        }
        std::sort(rooms.begin(), rooms.end());
        size_t last = 0;  // the largest room of each group stays
        for (size_t k = 0; k < rooms.size(); ++k)
            if (k + 1 == rooms.size() || rooms[k + 1].first != rooms[k].first) rooms[last++] = rooms[k];
        rooms.resize(last);
    }

    template <class F>
    void each(Slots::Vector v, F &&f) const {
        for (const Slots::Run &run : slots.rest(v)) f(run.from, run.count);
        for (const int32_t rank : order)
            for (const Slots::Run &run : slots.ranked(rank).in(v)) f(run.from, run.count);
    }

    // Empty slots of the part are left out.
    void put(Slots::Vector v, int64_t n, const double *from, double *to) const {
        for (const Slots::Run &run : slots.rest(v)) {
            copied(from, run.count, to + run.from);
            from += run.count;
        }
        for (const int32_t rank : order) {
            const bool has_term = rank >= slots.size_near() || std::binary_search(filled[n].begin(), filled[n].end(), rank);
            for (const Slots::Run &run : slots.ranked(rank).in(v)) {
                if (has_term) copied(from, run.count, to + run.from);
                from += run.count;
            }
        }
    }

    // Writes all slots at rest, and with them other numbers, which a solution has of its own. Environments mostly share their parameters.
    void rest_everywhere(const double *parameters, double kappa, double *w) {
        const MechanismTable &m = slots.mechanism();
        if (parameters != rested) {
            row_at_rest.resize(m.num_unknowns);
            for (int32_t rank = 0; rank < slots.size_near(); ++rank) rest(slots.ranked(rank), parameters, kappa, 1.0, row_at_rest.data());
            rested = parameters;
        }
        std::copy(row_at_rest.begin(), row_at_rest.end(), w);
    }

    void rest(const Slots::Slot &slot, const double *parameters, double kappa, double scale, double *w) {
        const MechanismTable &m = slots.mechanism();
        values.put(m, m.contacts[slot.contact], parameters, kappa);
        const auto fill = [&](const Slots::Run &run, const double *numbers) {
            for (int32_t k = 0; k < run.count; ++k) w[run.from + k] = scale * numbers[k];
        };
        fill(slot.runs[0], values.impulse);
        fill(slot.runs[1], values.slack);
    }
};

}  // namespace torchdojo
