// The C ABI of the step. The build generates its prototypes and structures from calls.py; `program.py` and `kernel.py` call it.
#include <algorithm>
#include <cstring>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "abi/far_steps.hpp"
#include "abi/pages.hpp"
#include "base/subnormals.hpp"
#include "base/threads.hpp"

namespace torchdojo {
namespace {

Options native_options(const TdOptions &o) {
    Options options;
    options.kappa = o.kappa;
    options.residual_tol = o.residual_tol;
    options.path_tol = o.path_tol;
    options.max_iterations = o.max_iterations;
    options.min_iterations = o.min_iterations;
    options.max_halvings = o.max_halvings;
    options.warm_iterations = o.warm_iterations;
    options.depenetration_speed = o.depenetration_speed;
    options.complementarity_aware = o.gradient_mode == complementarity_aware;
    options.limit = o.gradient_mode == exact || options.complementarity_aware;
    return options;
}

int64_t num_blocks(int64_t environments, int64_t most, int64_t lanes) {
    return std::max<int64_t>(1, std::min(most, (environments + lanes - 1) / lanes));
}

// Sums over environments are taken in this many blocks, or fewer, for any number of threads: equal bits for all of them.
constexpr int64_t sum_blocks = 16;

// Calls part(first, last, many, block) on blocks of environments that fill vector registers; `many`: whether there is more than one environment.
template <class F>
void in_blocks(int64_t environments, int64_t threads, int64_t blocks, int64_t lanes, F &&part) {
    const int64_t registers = (environments + lanes - 1) / lanes;
    for_each_block(blocks, threads, [&](int64_t block) {
        const int64_t first = registers * block / blocks * lanes, last = std::min(registers * (block + 1) / blocks * lanes, environments);
        const SubnormalsAreZero flush;
        if (first < last) part(first, last, environments > 1, block);
    });
}

// One block per thread.
template <class F>
void in_parallel(int64_t environments, int64_t threads, F &&part, int64_t lanes = pack_lanes) {
    in_blocks(environments, threads, num_blocks(environments, threads, lanes), lanes, part);
}

// The same for environments that share parts of a mechanism, in blocks that do not depend on the threads, for equal bits: which part an
// environment is solved in depends on the others of its block. Few environments leave lanes idle while one of them takes many iterations, and
// many leave the caches. Beside 32, 64 and 128 cost 0.9 and 0.85 times as much for an A1 that falls, and 1.0 for one at rest.
template <class F>
void in_near_blocks(int64_t environments, int64_t threads, F &&part) {
    constexpr int64_t most = 64, least_blocks = 4;
    const int64_t blocks = std::max((environments + most - 1) / most, num_blocks(environments, least_blocks, pack_lanes));
    in_blocks(environments, threads, blocks, pack_lanes, part);
}

// Asks for pages of 2 MB for memory that results will fill. Otherwise, Linux supplies new memory in pages of 4 kB at the first write.
// For the Jacobian of ten bodies, page faults would take 40 of 105 µs. NumPy asks from the same size on.
void expect([[maybe_unused]] const double *memory, [[maybe_unused]] int64_t count) {
#if defined(MADV_HUGEPAGE)
    constexpr uintptr_t page = 4096, large = uintptr_t(1) << 22;
    const uintptr_t bytes = uintptr_t(count) * sizeof(double), start = (uintptr_t(memory) + page - 1) / page * page;
    if (memory && bytes >= large)
        madvise(reinterpret_cast<void *>(start), bytes - page, MADV_HUGEPAGE);  // advice only: a failure changes no result
#endif
}

}  // namespace

extern "C" {

// Null, unless layout and lengths are as `expected`, which is set.
void *td_mechanism_create(uint64_t layout, const int32_t *table, int64_t length, const int32_t *schedule, int64_t schedule_length,
                          uint64_t *expected) {
    expected[0] = table_layout;
    expected[1] = table_length(table, length);
    expected[2] = Schedule::length(schedule, schedule_length);
    const bool same = layout == expected[0] && uint64_t(length) == expected[1] && uint64_t(schedule_length) == expected[2];
    return same ? new Handle(table, schedule) : nullptr;
}
void td_mechanism_destroy(void *handle) { delete static_cast<Handle *>(handle); }
int64_t td_lanes(const void *handle) { return static_cast<const Handle *>(handle)->lanes(); }

// Whether `count` tensors of `bytes` each still have their data at `arrays`, and these hold what `copy` holds, one after the other. `address`
// is PyTorch's aoti_torch_get_data_ptr, whose handle of a tensor is a pointer to a pointer to its implementation.
int64_t td_same(int64_t count, const void *const *tensors, const void *address, const void *const *arrays, const int64_t *bytes,
                const char *copy) {
    const auto data = reinterpret_cast<int32_t (*)(const void *, const void **)>(reinterpret_cast<uintptr_t>(address));
    for (int64_t i = 0; i < count; copy += bytes[i++]) {
        const void *current = nullptr;
        if (data(&tensors[i], &current) || current != arrays[i]) return 0;
        if (bytes[i] && std::memcmp(current, copy, size_t(bytes[i]))) return 0;  // an empty array may be a null pointer
    }
    return 1;
}

// Whether a method of PyTorch's TensorImpl without arguments, given by its address, is true of any of `count` tensors.
int64_t td_any(int64_t count, const void *const *tensors, const void *method) {
    const auto holds = reinterpret_cast<bool (*)(const void *)>(reinterpret_cast<uintptr_t>(method));
    return std::any_of(tensors, tensors + count, holds);
}

int64_t td_clear(void *memory, int64_t bytes) { return clear_written(static_cast<char *>(memory), bytes); }

void td_rollout(void *handle, const TdOptions *o, const TdRollout *r) {
    Handle &h = *static_cast<Handle *>(handle);
    Options options = native_options(*o);
    // Derivatives have no bound: they solve substeps again that are known to have a solution.
    options.max_total_iterations = o->max_total_iterations;
    if (o->budget) {
        options.max_total_iterations = std::min(o->budget, o->max_total_iterations);
        options.give_up = true;
        options.max_halvings = 0;
    }
    expect(r->z, (r->environments - 1) * r->z_stride + r->steps / r->every * state_size * h.table.num_bodies);
    expect(r->impulses, r->environments * (r->steps / r->repeat) * h.table.num_impulses);
    expect(r->w, r->environments * r->w_steps * h.table.num_unknowns);
    if (!o->budget && h.leaves_points_out(*r)) {
        const TdNearSteps without = {};
        return in_near_blocks(r->environments, o->threads,
                              [&](int64_t first, int64_t last, bool, int64_t) { NearSteps(h, options, *r, without, first, last).run(); });
    }
    const auto part = [&](int64_t first, int64_t last, bool many, int64_t) { h.forward(many, options, *r, first, last); };
    in_parallel(r->environments, o->threads, part, h.lanes());
}

void td_rollout_adjoint(void *handle, const TdOptions *o, const TdRollout *r, const TdGradient *g) {
    Handle &h = *static_cast<Handle *>(handle);
    const Options options = native_options(*o);
    // Shared parameters have one sum per block. The sums are added in the order of the blocks, which do not depend on the threads.
    const bool partial = g->grad_parameters && !r->parameter_stride;
    const int64_t size = h.table.num_parameters + h.table.num_samples, lanes = h.lanes();
    const int64_t blocks = num_blocks(r->environments, partial ? sum_blocks : o->threads, lanes);
    std::vector<double> sums(partial ? size_t(blocks * size) : 0);
    if (!r->law && !r->drives) expect(g->grad_u, r->environments * r->steps * h.table.num_inputs);
    const auto part = [&](int64_t first, int64_t last, bool many, int64_t block) {
        double *grad_parameters = partial ? &sums[block * size] : g->grad_parameters;
        h.backward(many, options, o->grad_kappa, *r, *g, grad_parameters, first, last);
    };
    in_blocks(r->environments, o->threads, blocks, lanes, part);
    for (size_t k = 0; k < sums.size(); ++k) g->grad_parameters[k % size] += sums[k];
}

// Takes w, (N, T, n), to the κ at which contacts are classified for hard gradients. Solutions that do not get there stay unchanged.
void td_near_limit(void *handle, const TdOptions *o, const TdRollout *r, double *w) {
    Handle &h = *static_cast<Handle *>(handle);
    const Options options = native_options(*o);
    in_parallel(r->environments, o->threads, [&](int64_t first, int64_t last, bool many, int64_t) {
        h.near_limit(many, options, *r, w + first * r->steps * h.table.num_unknowns, first, last);
    });
}

// out: (N, 12 nb, 12 nb + nu) of rollouts of one step; zero where a step failed.
void td_jacobian(void *handle, const TdOptions *o, const TdRollout *r, double *out) {
    Handle &h = *static_cast<Handle *>(handle);
    const Options options = native_options(*o);
    const int64_t rows = int64_t(tangent_size) * h.table.num_bodies;
    expect(out, r->environments * rows * (rows + h.table.num_inputs));
    in_parallel(r->environments, o->threads,
                [&](int64_t first, int64_t last, bool many, int64_t) { h.jacobian(many, options, o->grad_kappa, *r, out, first, last); });
}

// out: (N, 2n, 2n + nu) of rollouts of one step from the states of x = (q, q̇), (N, 2n); zero where a step failed or was split.
void td_minimal_jacobian(void *handle, const TdOptions *o, const TdRollout *r, const double *x, double *out) {
    Handle &h = *static_cast<Handle *>(handle);
    const Options options = native_options(*o);
    const int64_t n = h.table.num_coordinates;
    expect(out, r->environments * 2 * n * (2 * n + h.table.num_inputs));
    in_parallel(r->environments, o->threads, [&](int64_t first, int64_t last, bool many, int64_t) {
        h.minimal_jacobian(many, options, o->grad_kappa, *r, x, out, first, last);
    });
}

void td_linearize(void *handle, const TdOptions *o, const TdRollout *r, const double *x, double *out) {
    td_rollout(handle, o, r);
    if (x) td_minimal_jacobian(handle, o, r, x, out);
    else td_jacobian(handle, o, r, out);
}

void td_map(void *handle, const TdMap *m) {
    Handle &h = *static_cast<Handle *>(handle);
    in_parallel(m->environments, m->threads, [&](int64_t first, int64_t last, bool many, int64_t) { h.map(many, *m, first, last); });
}

// The numbers of sensors (N, size), or gradients by what they read.
void td_sense(void *handle, const TdSensors *s) {
    Handle &h = *static_cast<Handle *>(handle);
    in_parallel(s->environments, s->threads, [&](int64_t first, int64_t last, bool many, int64_t) { h.sense(many, *s, first, last); });
}

void td_near_terms(void *handle, const TdNear *near) {
    const MechanismTable &m = static_cast<Handle *>(handle)->table;
    const auto contact = std::find_if(m.contacts.begin(), m.contacts.end(), [&](const auto &each) { return each.number == near->contact; });
    const PairTable &pair = m.pairs[contact->pair];
    in_parallel(near->environments, near->threads, [&](int64_t first, int64_t last, bool, int64_t) {
        NearSearch search;
        NearStart start;
        for (int64_t n = first; n < last; ++n) {
            Vec3<double> x[2] = {};
            Mat3<double> R[2] = {{{1, 0, 0, 0, 1, 0, 0, 0, 1}}, {{1, 0, 0, 0, 1, 0, 0, 0, 1}}};
            const int bodies[2] = {contact->body, pair.other};
            for (int k = 0; k < 2; ++k) {
                if (bodies[k] == m.num_bodies) continue;
                const double *state = near->z + (n * m.num_bodies + bodies[k]) * state_size;
                x[k] = load3(state);
                R[k] = rotation_matrix(load4(state + 6));
            }
            near->counts[n] = search(*pair.cores[0], *pair.cores[1], x, R, near->reach[n], near->capacity,
                                     near->terms + 3 * n * near->capacity, near->gaps + n * near->capacity, start);
        }
    });
}

// Rollouts of mechanisms with near contacts: steps of periods of one step, without a law. Their terms go into `near`.
void td_near_rollout(void *handle, const TdOptions *o, const TdRollout *r, const TdNearSteps *near) {
    Handle &h = *static_cast<Handle *>(handle);
    Options options = native_options(*o);
    options.max_total_iterations = o->max_total_iterations;
    in_near_blocks(r->environments, o->threads,
                   [&](int64_t first, int64_t last, bool, int64_t) { NearSteps(h, options, *r, *near, first, last).run(); });
}

// Gradients through `td_near_rollout`, of which the terms, states and solutions of all steps are kept.
void td_near_adjoint(void *handle, const TdOptions *o, const TdRollout *r, const TdNearSteps *near, const TdGradient *g) {
    Handle &h = *static_cast<Handle *>(handle);
    Options options = native_options(*o);
    options.max_total_iterations = o->max_total_iterations;  // for parts that are solved again
    in_near_blocks(r->environments, o->threads, [&](int64_t first, int64_t last, bool, int64_t) {
        NearSteps(h, options, *r, *near, first, last).backward(o->grad_kappa, *g);
    });
}

}  // extern "C"
}  // namespace torchdojo
