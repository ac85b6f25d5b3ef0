// The numbers of environments as a part of their mechanism has them (slots.hpp), where it is known which slots have terms, and points are near.
//
// Robots have thousands of slots, a few of which have terms, so nothing passes through all slots: the rows of results are zero at first.
#pragma once

#include "abi/handle.hpp"

namespace torchdojo {

class NearRows {
public:
    std::vector<std::vector<int32_t>> filled;  // ranks of the slots with terms, for each environment
    std::vector<int32_t> kept;  // slots of each group in the part

    NearRows(const Handle &handle, int64_t environments)
        : filled(environments), kept(handle.slots.num_groups()), slots(handle.slots), samples(handle.table.num_parameters),
          num_samples(handle.table.num_samples), written(environments), rows(environments) {}

    // Orders environments by the groups of their terms, so that those in the lanes of one register have use for the same slots: without it, an
    // A1 that lies down had 2.7 times as many slots as terms, and a fallen H1 8 times as many.
    void sort(std::vector<int64_t> &which) const {
        const auto before = [&](int32_t a, int32_t b) { return slots.group_of(a) < slots.group_of(b); };
        std::stable_sort(which.begin(), which.end(), [&](int64_t i, int64_t j) {
            return std::lexicographical_compare(filled[i].begin(), filled[i].end(), filled[j].begin(), filled[j].end(), before);
        });
    }

    // Chooses the part for the environments which[first], ...: those that fill the lanes, and further ones that it fits about as well.
    // Returns the first index that needs another part. Environments without any slots have one without cones, and those without terms one
    // without pairs, which other methods solve.
    size_t choose(const std::vector<int64_t> &which, size_t first) {
        for (const int32_t g : used) kept[g] = 0;
        used.clear();
        int64_t total = 0;
        size_t end = first;
        size_t alike = first;
        while (alike < which.size() && most_of(which[alike]) == most_of(which[first])) ++alike;
        while (end < alike) {
            const size_t next = std::min(end + pack_lanes, alike);
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
        own.clear();
        const int32_t *next = filled[n].data(), *end = next + filled[n].size();
        for (const int32_t g : used) {
            const size_t until = order.size() + kept[g];
            const int32_t *first_rank = next;
            while (next != end && slots.group_of(*next) == g) order.push_back(*next++);
            own.resize(order.size(), 1);
            for (int32_t rank = slots.first_of(g); order.size() < until; ++rank)
                if (!std::binary_search(first_rank, next, rank)) order.push_back(rank);
            own.resize(order.size(), 0);
        }
    }

    // Parameters of the environment that `arrange` took up, as the part has them. Calls put(rank, place of the term) for each slot.
    // skipped: numbers before those of slots that stand elsewhere, and samples with them.
    template <class F>
    void gather_parameters(const double *from, double *to, int64_t skipped, F &&put) const {
        to += skipped;
        if (!skipped)
            for (const Slots::Run &run : slots.rest(Slots::parameters)) to = std::copy_n(from + run.from, run.count, to);
        for (size_t k = 0; k < order.size(); ++k) {
            const int32_t rank = order[k];
            const Slots::Run &run = slots.ranked(rank).runs[2];
            if (own[k] || rank < slots.size_near()) std::copy_n(from + run.from, run.count, to);
            else NobodysPoint::put(run.count, to);
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
    // Sets the weights of an environment's points: 1 where they are far, or 0 where they are in the part.
    void weigh(int64_t n, double *weights) const {
        std::fill_n(weights, slots.size() - slots.size_near(), 1.0);
        for (size_t k = filled[n].size(); k-- > 0 && filled[n][k] >= slots.size_near();) weights[filled[n][k] - slots.size_near()] = 0.0;
    }

    // The start that a solution of the whole gives the part. Slots that were empty then start at rest (`SlotAtRest`). A failed step left zeros,
    // also for the velocities, and gives no start.
    void gather_start(const double *parameters, double kappa, const double *from, double *to) {
        const MechanismTable &m = slots.mechanism();
        const bool failed = std::all_of(from, from + 6 * m.num_bodies, [](double number) { return number == 0.0; });
        for (const Slots::Run &run : slots.rest(Slots::unknowns)) to = copied(from + run.from, run.count, to);
        for (size_t k = 0; k < order.size(); ++k) {
            const int32_t rank = order[k];
            const Slots::Slot &slot = slots.ranked(rank);
            const Slots::Run &impulse = slot.runs[0], &slack = slot.runs[1];
            if (rank >= slots.size_near() && !own[k] && !failed) {
                NobodysPoint::start(impulse.count, kappa, to);
                to += impulse.count + slack.count;
            } else if (rank < slots.size_near() && !failed && from[slack.from] == 0.0) {
                values.put(m, m.contacts[slot.contact], parameters, kappa);
                to = std::copy_n(values.impulse, impulse.count, to);
                to = std::copy_n(values.slack, slack.count, to);
            } else {
                to = copied(from + impulse.from, impulse.count, to);
                to = copied(from + slack.from, slack.count, to);
            }
        }
    }

    double *last(int64_t n) const { return rows[n].w; }  // the solution written last
    void wrote(int64_t n, double *all_w, double *all_impulses) { rows[n] = {all_w, all_impulses}; }  // all numbers, elsewhere

    // Writes a solution and impulses of the part into rows that have zeros, but for what was written there before. Empty slots have zeros.
    // Points that are not in the part are left to `NearPoints::keep`.
    void scatter(int64_t n, const double *w, const double *impulses, double *all_w, double *all_impulses) {
        if (all_w == rows[n].w) clear(n, Slots::unknowns, all_w);
        if (all_impulses == rows[n].impulses) clear(n, Slots::impulses, all_impulses);
        rows[n] = {all_w, all_impulses};
        written[n] = filled[n];
        put(Slots::unknowns, w, all_w);
        put(Slots::impulses, impulses, all_impulses);
    }

private:
    const Slots &slots;
    const int32_t samples, num_samples;
    struct Written {
        double *w = nullptr, *impulses = nullptr;
    };
    std::vector<std::vector<int32_t>> written;  // slots that have numbers in the rows written last, for each environment
    std::vector<Written> rows;  // these rows
    std::vector<int32_t> used, order;  // groups of the part; ranks of the slots of an environment in it
    std::vector<char> own;  // whether the environment has a term in each of these slots, or a near point
    std::vector<std::pair<int32_t, int32_t>> rooms;  // groups, in ascending order, and their slots in a part
    SlotAtRest values;  // values of an empty slot

    // Copies numbers. Contacts with a disc have four, which a call of memmove would take longer for.
    static TD_INLINE double *copied(const double *from, int32_t count, double *to) {
        if (count != 4) return std::copy_n(from, count, to);
        std::memcpy(to, from, 4 * sizeof(double));
        return to + 4;
    }

    // What an environment has at most: nothing (0), near points (1), or terms (2).
    int most_of(int64_t n) const { return filled[n].empty() ? 0 : filled[n].front() < slots.size_near() ? 2 : 1; }

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

    // Sets numbers of slots to zero that `scatter` wrote.
    void clear(int64_t n, Slots::Vector v, double *to) const {
        for (const int32_t rank : written[n])
            for (const Slots::Run &run : slots.ranked(rank).in(v))
                if (rank < slots.size_near()) std::fill_n(to + run.from, run.count, 0.0);
    }

    // Slots of the part that are not the environment's own are left out.
    void put(Slots::Vector v, const double *from, double *to) const {
        for (const Slots::Run &run : slots.rest(v)) {
            copied(from, run.count, to + run.from);
            from += run.count;
        }
        for (size_t k = 0; k < order.size(); ++k)
            for (const Slots::Run &run : slots.ranked(order[k]).in(v)) {
                if (own[k]) copied(from, run.count, to + run.from);
                from += run.count;
            }
    }
};

}  // namespace torchdojo
