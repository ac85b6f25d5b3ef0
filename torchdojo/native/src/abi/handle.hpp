// A mechanism with its workers. One with slots of near contacts leaves its steps to its parts (slots.hpp).
#pragma once

#include <list>
#include <mutex>

#if defined(__linux__)
#include <unistd.h>
#endif

#include "abi/near_pairs.hpp"
#include "abi/slot_rows.hpp"
#include "abi/worker.hpp"
#include "gradient/joint_jacobian.hpp"

namespace torchdojo {

// Bytes of the second cache of a core; 1 MB where the system does not tell.
inline int64_t second_cache() {
    int64_t bytes = 0;
#if defined(_SC_LEVEL2_CACHE_SIZE)
    bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
#endif
    return bytes > 0 ? bytes : int64_t(1) << 20;
}

// Whether half the lanes are faster. Each iteration passes through all numbers several times, so numbers that leave the second cache come
// from the third one several times. On an Intel Xeon with 2 MB, half the lanes cost 1.02 times as much for 50 balls and 0.95, 0.78 and 0.70
// times for 60, 75 and 100 (`scripts/bench_chains.py`).
inline bool is_narrow(const MechanismTable &m) {
    constexpr double multiple = 1.25;  // threshold, in sizes of the second cache
    return TD_NARROW && double(sizeof(Pack)) * double(m.numbers_in_use()) > multiple * double(second_cache());
}

class Handle {
public:
    const MechanismTable table;
    const NearPairs near;
    const Slots slots;
    const std::vector<int32_t> ranks, near_of;  // ranks of the slots of the pairs, in their order; the slot of each rank

    Handle(const int32_t *table, const int32_t *schedule)
        : table(Tables(table), schedule), near(this->table), slots(this->table), ranks(slots.ranks(near.term)), near_of(inverse(ranks)),
          narrower(is_narrow(this->table)) {}

    // Whether rollouts leave out far points of a mechanism without near contacts (near_steps.hpp).
    bool leaves_points_out(const TdRollout &r) const {
        return slots.some() && !slots.size_near() && !r.feedback && !r.law && !r.drives && r.repeat == 1 && r.every == 1;
    }

    int64_t lanes() const { return narrower ? torchdojo::lanes<Narrow> : pack_lanes; }

    // part_call: what a part has beside the rollout.
    void forward(bool in_lanes, const Options &o, const TdRollout &r, int64_t first, int64_t last, const PartCall *part_call = nullptr) {
        if (has_parts(r))
            return each_part(o, r, first, last, [&](Handle &part, SlotRows &rows) {
                part.forward(rows.size() > 1, o, rows.rollout(), 0, rows.size());
                rows.scatter();
            });
        with_rollout_worker(in_lanes, [&](auto &worker) { worker.forward(o, r, first, last, part_call); });
    }
    void backward(bool in_lanes, const Options &o, double kappa, const TdRollout &r, const TdGradient &g, double *sum, int64_t first,
                  int64_t last) {
        if (has_parts(r))
            return each_part(o, r, first, last, [&](Handle &part, SlotRows &rows) {
                const TdGradient part_gradient = rows.gradient(g);
                part.backward(rows.size() > 1, o, kappa, rows.solved(), part_gradient, sum ? rows.sums() : nullptr, 0, rows.size());
                if (sum) rows.add_sums(sum);
            });
        with_rollout_worker(in_lanes, [&](auto &worker) { worker.backward(o, kappa, r, g, sum, first, last); });
    }
    void near_limit(bool in_lanes, const Options &o, const TdRollout &r, double *w, int64_t first, int64_t last) {
        if (has_parts(r)) {
            std::copy_n(r.w + first * r.steps * table.num_unknowns, (last - first) * r.steps * table.num_unknowns, w);
            return each_part(o, r, first, last, [&](Handle &part, SlotRows &rows) {
                std::vector<double> to(size_t(rows.size() * r.steps) * part.table.num_unknowns);
                part.near_limit(rows.size() > 1, o, rows.solved(), to.data(), 0, rows.size());
                rows.put(Slots::unknowns, r.steps, to.data(), w + (rows.first - first) * r.steps * table.num_unknowns);
            });
        }
        with_worker(in_lanes, [&](auto &worker) { worker.near_limit(o, r, w, first, last); });
    }
    void jacobian(bool in_lanes, const Options &o, double kappa, const TdRollout &r, double *out, int64_t first, int64_t last) {
        const int64_t side = int64_t(tangent_size) * table.num_bodies, size = side * (side + table.num_inputs);
        if (has_parts(r))
            return each_part(o, r, first, last, [&](Handle &part, SlotRows &rows) {
                part.jacobian(rows.size() > 1, o, kappa, rows.solved(), out + rows.first * size, 0, rows.size());
            });
        const bool few_rows = table.num_bodies < 3;
        with_worker(in_lanes && few_rows, [&](auto &worker) { worker.jacobian(o, kappa, r, out, first, last); });
    }
    void minimal_jacobian(bool in_lanes, const Options &o, double kappa, const TdRollout &r, const double *x, double *out, int64_t first,
                          int64_t last) {
        const int64_t n = table.num_coordinates, size = 2 * n * (2 * n + table.num_inputs);
        if (has_parts(r))
            return each_part(o, r, first, last, [&](Handle &part, SlotRows &rows) {
                part.minimal_jacobian(rows.size() > 1, o, kappa, rows.solved(), x + 2 * n * rows.first, out + rows.first * size, 0,
                                      rows.size());
            });
        // On the tree, lanes are environments. Elsewhere they are where the matrices and factors of several fit into the cache of about
        // 1 MB, and rows of one environment otherwise. A small mechanism has too few rows to fill the lanes.
        const bool on_tree = JointJacobian<Pack>::covers(table, o) && (r.grad_kappa || kappa == o.kappa);
        const bool in_cache = on_tree || 2 * sizeof(Pack) * size_t(table.schedule.num_values) < (size_t(1) << 19);
        with_worker(in_lanes && in_cache, [&](auto &worker) { worker.minimal_jacobian(o, kappa, r, x, out, first, last); });
    }
    void sense(bool in_lanes, const TdSensors &s, int64_t first, int64_t last) {
        with_worker(in_lanes, [&](auto &worker) { worker.sense(s, first, last); });
    }
    void map(bool in_lanes, const TdMap &m, int64_t first, int64_t last) {
        with_worker(in_lanes, [&](auto &worker) { worker.map(m, first, last); });
    }

    // The mechanism with `kept` slots of each group.
    std::shared_ptr<Handle> part(const std::vector<int32_t> &kept) {
        std::lock_guard<std::mutex> lock(mutex);
        auto place = std::find_if(parts.begin(), parts.end(), [&](const Part &part) { return part.kept == kept; });
        if (place == parts.end()) {
            if (parts.size() == most_parts) parts.pop_back();
            place = parts.insert(parts.begin(), {kept, std::shared_ptr<Handle>(new Handle(slots, kept))});
        }
        parts.splice(parts.begin(), parts, place);
        return parts.front().handle;
    }

private:
    Worker<double> one{table};
    Worker<Pack> many{table};
    Worker<Narrow> narrow{table};
    // Parts never do: their size depends on neighbors.
    const bool narrower;  // whether rollouts and their gradients use `narrow` in place of `many`

    static constexpr size_t most_parts = 64;  // most parts that are kept; each has memory of its own
    struct Part {
        std::vector<int32_t> kept;
        std::shared_ptr<Handle> handle;
    };
    std::mutex mutex;
    std::list<Part> parts;  // the last one used comes first

    Handle(const Slots &whole, const std::vector<int32_t> &kept)
        : table(whole.part(kept)), near(table, false), slots(this->table, false), narrower(false) {}

    static std::vector<int32_t> inverse(const std::vector<int32_t> &order) {
        std::vector<int32_t> result(order.size());
        for (size_t k = 0; k < order.size(); ++k) result[order[k]] = int32_t(k);
        return result;
    }

    // Calls f with the worker for environments in lanes, or with the one for single environments.
    template <class F>
    void with_worker(bool in_lanes, const F &f) {
        if (in_lanes) f(many);
        else f(one);
    }
    // The same for rollouts and their gradients, which may use half the lanes.
    template <class F>
    void with_rollout_worker(bool in_lanes, const F &f) {
        if (in_lanes && narrower) f(narrow);
        else with_worker(in_lanes, f);
    }

    // Solutions that a law of feedback starts from have numbers of all slots.
    bool has_parts(const TdRollout &r) const { return slots.size_near() && !r.feedback; }

    // Calls f(part, rows of environments) for environments first … last, as many at a time as fit into one part.
    template <class F>
    void each_part(const Options &o, const TdRollout &r, int64_t first, int64_t last, F &&f) {
        for (int64_t start = first; start < last;) {
            SlotRows rows(table, slots, o.kappa, r, start, last);
            f(*part(rows.kept), rows);
            start = rows.last;
        }
    }
};

}  // namespace torchdojo
