// The C ABI of the step: `program.py` fills these structures, `ops.py` calls them.
//
// A workspace belongs to one thread for the length of a call and goes back to its mechanism's pool, so steps allocate nothing.
#include <cstring>
#include <memory>
#include <mutex>

#if defined(_OPENMP)
#include <omp.h>
#endif
#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "impacts.hpp"
#include "jacobian.hpp"
#include "minimal_jacobian.hpp"
#include "subnormals.hpp"

namespace torchdojo {

template <class Workspace>
class Pool {
public:
    explicit Pool(const MechanismTable &m) : mechanism(m) {}
    struct Return {
        Pool *pool;
        void operator()(Workspace *workspace) const {
            std::lock_guard<std::mutex> lock(pool->mutex);
            pool->idle.emplace_back(workspace);
        }
    };
    std::unique_ptr<Workspace, Return> take() {
        std::lock_guard<std::mutex> lock(mutex);
        if (idle.empty()) return {new Workspace(mechanism), Return{this}};
        Workspace *workspace = idle.back().release();
        idle.pop_back();
        return {workspace, Return{this}};
    }

private:
    const MechanismTable &mechanism;
    std::mutex mutex;
    std::vector<std::unique_ptr<Workspace>> idle;
};

template <class T>
struct ForwardWorkspace {
    Stepper<T> stepper;
    Recovery recovery;
    explicit ForwardWorkspace(const MechanismTable &m) : stepper(m), recovery(m) {}
};

template <class T>
struct BackwardWorkspace {
    StepGradient<T> gradient;
    SplitGradient split;
    std::vector<double> grad_z, carried, grad_wrench, near_limit;
    explicit BackwardWorkspace(const MechanismTable &m)
        : gradient(m), split(m), grad_z(size_t(lanes<T>) * state_size * m.num_bodies), carried(grad_z),
          grad_wrench(size_t(lanes<T>) * 6 * m.num_bodies) {}
};

template <class T>
struct JacobianWorkspace {
    StepGradient<T> gradient;
    StepJacobian<T> jacobian;
    explicit JacobianWorkspace(const MechanismTable &m) : gradient(m), jacobian(m) {}
};

template <class T, class R>
struct MinimalWorkspace {
    StepGradient<T> gradient;
    MinimalJacobian<T, R> jacobian;
    explicit MinimalWorkspace(const MechanismTable &m) : gradient(m), jacobian(m) {}
};

struct Handle {
    MechanismTable table;
    Pool<ForwardWorkspace<double>> forward_one{table};
    Pool<ForwardWorkspace<Pack>> forward_many{table};
    Pool<BackwardWorkspace<double>> backward_one{table};
    Pool<BackwardWorkspace<Pack>> backward_many{table};
    Pool<JacobianWorkspace<double>> jacobian_one{table};
    Pool<JacobianWorkspace<Pack>> jacobian_many{table};
    Pool<MinimalWorkspace<double, Pack>> minimal_one{table};
    Pool<MinimalWorkspace<Pack, Pack>> minimal_many{table};
    Pool<TreeStates<double>> states_one{table};
    Pool<TreeStates<Pack>> states_many{table};

    Handle(const int32_t *table_, const int32_t *schedule) : table(table_, schedule) {}

    template <class T>
    auto &forward() {
        if constexpr (lanes<T> == 1) return forward_one;
        else return forward_many;
    }
    template <class T>
    auto &backward() {
        if constexpr (lanes<T> == 1) return backward_one;
        else return backward_many;
    }
};

}  // namespace torchdojo

using namespace torchdojo;

extern "C" {

struct TdOptions {
    double kappa, grad_kappa, residual_tol, path_tol;
    int64_t max_iterations, min_iterations, max_halvings, warm_iterations, threads;
    int64_t gradient_mode;            // number in the order of `GradientMode`
};

// N environments, T steps. Strides are in numbers; a stride of zero shares the array. Arrays are contiguous otherwise.
struct TdRollout {
    int64_t environments, steps;
    const double *parameters;         // (N or 1, P)
    int64_t parameter_stride;
    const double *z0;                 // (N, 13 nb)
    int64_t z0_stride;
    const double *u;                  // (N, T, nu), or null
    const double *wrench;             // (N, 6 nb), or null
    const double *warm;               // (N, n), or null
    const double *grad_kappa;         // (N,), or null: that of the options
    double *z;                        // (N, T, 13 nb), environments `z_stride` apart
    int64_t z_stride;
    double *impulses;                 // (N, T, ni)
    double *w;                        // (N, T, n), or (N, n) where w_steps is 1: the last solution only
    int64_t w_steps;
    int64_t *status, *iterations, *substeps;  // (N, T)
};

struct TdGradient {
    const double *grad_z;             // (N, T, 13 nb) of the states after each step, environments `grad_z_stride` apart
    int64_t grad_z_stride;
    const double *grad_impulses;      // (N, T, ni), or null
    double *grad_z0;                  // (N, 13 nb)
    double *grad_u;                   // (N, T, nu), or null
    double *grad_wrench;              // (N, 6 nb), or null
    double *grad_parameters;          // (N, P), or (P) where parameters are shared, or null: added to what is there
    const TdImpacts *impacts;         // or null
};

void *td_mechanism_create(const int32_t *table, const int32_t *schedule) { return new Handle(table, schedule); }
void td_mechanism_destroy(void *handle) { delete static_cast<Handle *>(handle); }
int64_t td_lanes() { return pack_lanes; }

// Whether `count` arrays of `bytes` each hold what `copy` holds, one after the other.
int64_t td_same(int64_t count, const void *const *arrays, const int64_t *bytes, const char *copy) {
    for (int64_t i = 0; i < count; copy += bytes[i++])
        if (bytes[i] && std::memcmp(arrays[i], copy, size_t(bytes[i]))) return 0;  // (an empty array may be a null pointer)
    return 1;
}

}  // extern "C"

namespace {

enum GradientMode : int64_t { central_path, exact, complementarity_aware, randomized };

Options native_options(const TdOptions &o) {
    Options options;
    options.kappa = o.kappa, options.residual_tol = o.residual_tol, options.path_tol = o.path_tol;
    options.max_iterations = o.max_iterations, options.min_iterations = o.min_iterations;
    options.max_halvings = o.max_halvings, options.warm_iterations = o.warm_iterations;
    options.complementarity_aware = o.gradient_mode == complementarity_aware;
    options.limit = o.gradient_mode == exact || options.complementarity_aware;
    return options;
}

// Step t of environment n. (Written in place: to copy a job just after its pointers were written, in wider registers, waits for them, which
// took a tenth of the time of a free body's step.)
TD_INLINE void describe(const MechanismTable &m, const TdRollout &r, int64_t n, int64_t t, Job &job) {
    const int64_t nz = state_size * m.num_bodies, nw = m.num_unknowns, at = n * r.steps + t;
    job.timestep_factor = 1.0;
    job.parameters = r.parameters + n * r.parameter_stride;
    job.z = t ? r.z + n * r.z_stride + (t - 1) * nz : r.z0 + n * r.z0_stride;
    job.u = r.u ? r.u + at * m.num_inputs : nullptr;
    job.wrench = r.wrench ? r.wrench + n * 6 * m.num_bodies : nullptr;
    auto solution = [&](int64_t step) { return r.w + (n * r.w_steps + (r.w_steps > 1 ? step : 0)) * nw; };
    job.warm = t ? solution(t - 1) : r.warm ? r.warm + n * nw : nullptr;
    job.z_next = r.z + n * r.z_stride + t * nz;
    job.impulses = r.impulses + at * m.num_impulses;
    job.w = solution(t);
    job.status = r.status + at, job.iterations = r.iterations + at, job.substeps = r.substeps + at;
}

const double *shared_parameters(const TdRollout &r) { return r.parameter_stride ? nullptr : r.parameters; }

// Environments first … last: each lane follows one of them through all its steps, then takes the next one.
template <class T>
struct RolloutFeed {
    const MechanismTable &mechanism;
    const TdRollout &rollout;
    const Options &options;
    Recovery &recovery;
    int64_t next_environment, last, environment[lanes<T>] = {}, step[lanes<T>];

    RolloutFeed(const MechanismTable &m, const TdRollout &r, const Options &o, Recovery &recovery, int64_t first, int64_t last)
        : mechanism(m), rollout(r), options(o), recovery(recovery), next_environment(first), last(last) {
        for (int lane = 0; lane < lanes<T>; ++lane) step[lane] = r.steps;
    }
    bool next(int lane, Job &job) {
        if (step[lane] == rollout.steps) {
            if (next_environment == last) return false;
            environment[lane] = next_environment++;
            step[lane] = 0;
        }
        describe(mechanism, rollout, environment[lane], step[lane]++, job);
        return true;
    }
    void finished(int, const Job &job, bool solved) {
        if (!solved && *job.status == max_iterations) recovery.recover(job, options, shared_parameters(rollout));
    }
};

template <class T>
void forward(Handle &handle, const Options &options, const TdRollout &r, int64_t first, int64_t last) {
    auto workspace = handle.forward<T>().take();
    RolloutFeed<T> feed(handle.table, r, options, workspace->recovery, first, last);
    workspace->stepper.run(feed, options, shared_parameters(r));
}

// grad_parameters: as in TdGradient, but shared ones for these environments alone.
// Solutions of all steps of environments first … last on the way to the limit, (last - first, T, n): all at once, so that no lane waits for
// the slowest of a few. Those that do not get there stay what they are.
template <class T>
struct LimitFeed {
    const MechanismTable &mechanism;
    const TdRollout &rollout;
    double *to;
    int64_t first, at, end, from[lanes<T>] = {}, status[lanes<T>], iterations[lanes<T>], substeps[lanes<T>];
    std::vector<double> z, impulses;

    LimitFeed(const MechanismTable &m, const TdRollout &r, int64_t first, int64_t last, double *to)
        : mechanism(m), rollout(r), to(to), first(first), at(first * r.steps), end(last * r.steps),
          z(size_t(lanes<T>) * state_size * m.num_bodies), impulses(size_t(lanes<T>) * m.num_impulses) {}
    bool next(int lane, Job &job) {
        while (at < end && (rollout.status[at] != success || rollout.substeps[at] > 1)) ++at;
        if (at == end) return false;
        from[lane] = at++;
        describe(mechanism, rollout, from[lane] / rollout.steps, from[lane] % rollout.steps, job);
        job.warm = job.w;
        job.w = to + (from[lane] - first * rollout.steps) * mechanism.num_unknowns;
        job.z_next = &z[size_t(lane) * state_size * mechanism.num_bodies], job.impulses = &impulses[size_t(lane) * mechanism.num_impulses];
        job.status = &status[lane], job.iterations = &iterations[lane], job.substeps = &substeps[lane];
        return true;
    }
    void finished(int, const Job &job, bool solved) {
        if (!solved) std::copy_n(job.warm, mechanism.num_unknowns, job.w);
    }
};

template <class T>
void near_limit(Handle &handle, const Options &options, const TdRollout &r, double *to, int64_t first, int64_t last) {
    auto workspace = handle.backward<T>().take();
    std::copy_n(r.w + first * r.steps * handle.table.num_unknowns, (last - first) * r.steps * handle.table.num_unknowns, to);
    LimitFeed<T> feed(handle.table, r, first, last, to);
    workspace->gradient.stepper.run(feed, limit_options(options), shared_parameters(r));
}

template <class T>
void backward(Handle &handle, const Options &options, double grad_kappa, const TdRollout &r, const TdGradient &g, double *grad_parameters,
              int64_t first, int64_t last) {
    auto workspace = handle.backward<T>().take();
    const MechanismTable &m = handle.table;
    const int64_t nz = state_size * m.num_bodies, nf = 6 * m.num_bodies, nu = m.num_inputs;
    GradientJob jobs[lanes<T>];
    const bool continued = options.limit && options.kappa > constant::limit_kappa;
    const int64_t block = lanes<T> * std::max<int64_t>(1, 16 / r.steps);  // of environments: about sixteen steps per lane or more
    int64_t block_start = first;
    for (int64_t start = first; start < last; start += lanes<T>) {
        const int count = int(std::min<int64_t>(lanes<T>, last - start));
        if (continued && (start - first) % block == 0) {
            block_start = start;
            const int64_t end = std::min(start + block, last);
            workspace->near_limit.resize(size_t(end - start) * r.steps * m.num_unknowns);
            LimitFeed<T> feed(m, r, start, end, workspace->near_limit.data());
            workspace->gradient.stepper.run(feed, limit_options(options), shared_parameters(r));
        }
        std::fill(workspace->carried.begin(), workspace->carried.end(), 0.0);
        if (g.grad_wrench) std::fill_n(g.grad_wrench + start * nf, count * nf, 0.0);
        for (int64_t t = r.steps - 1; t >= 0; --t) {
            int active = 0;
            for (int j = 0; j < count; ++j) {
                const int64_t n = start + j, at = n * r.steps + t;
                double *carried = &workspace->carried[j * nz];
                const double *upstream = g.grad_z + n * g.grad_z_stride + t * nz;
                for (int64_t k = 0; k < nz; ++k) carried[k] += upstream[k];
                GradientJob &job = jobs[active];
                job = GradientJob{};
                describe(m, r, n, t, job.step);
                job.w = job.step.w;
                job.grad_z_next = carried;
                job.grad_impulses = g.grad_impulses ? g.grad_impulses + at * m.num_impulses : nullptr;
                job.grad_z = &workspace->grad_z[j * nz];
                job.grad_u = g.grad_u ? g.grad_u + at * nu : nullptr;
                job.grad_wrench = g.grad_wrench ? &workspace->grad_wrench[j * nf] : nullptr;
                job.grad_parameters = grad_parameters ? grad_parameters + n * r.parameter_stride : nullptr;
                job.grad_kappa = r.grad_kappa ? r.grad_kappa[n] : grad_kappa;
                if (r.status[at] == success && r.substeps[at] == 1) {
                    if (continued) job.near_limit = &workspace->near_limit[size_t(at - block_start * r.steps) * m.num_unknowns];
                    ++active;
                    continue;
                }
                std::fill_n(job.grad_z, nz, 0.0);
                if (job.grad_wrench) std::fill_n(job.grad_wrench, nf, 0.0);
                if (r.status[at] == success) {
                    workspace->split.run(job, options, shared_parameters(r));
                } else if (job.grad_u) {
                    std::fill_n(job.grad_u, nu, 0.0);
                }
            }
            if (active) workspace->gradient.run(jobs, active, options, shared_parameters(r));
            for (int j = 0; j < count && g.impacts; ++j) {
                const int64_t k = g.impacts->step[(start + j) * r.steps + t];
                if (k >= 0) add_impact(*g.impacts, k, m.num_bodies, &workspace->carried[j * nz], &workspace->grad_z[j * nz]);
            }
            std::copy_n(workspace->grad_z.begin(), count * nz, workspace->carried.begin());
            if (g.grad_wrench)
                for (int64_t k = 0; k < count * nf; ++k) g.grad_wrench[start * nf + k] += workspace->grad_wrench[k];
        }
        std::copy_n(workspace->carried.begin(), count * nz, g.grad_z0 + start * nz);
    }
    workspace->gradient.flush();
    workspace->split.flush();
}

// The jobs of environments first … last whose step was solved whole, up to `lanes<T>` of them at a time: run(environments, jobs, count).
// The results of others, `size` numbers each, are zero.
template <class T, class F>
void each_solved(const MechanismTable &m, double grad_kappa, const TdRollout &r, double *out, int64_t size, int64_t first, int64_t last,
                 F &&run) {
    GradientJob jobs[lanes<T>];
    int64_t environments[lanes<T>];
    int count = 0;
    for (int64_t n = first; n < last; ++n) {
        if (r.status[n] == success && r.substeps[n] == 1) {
            jobs[count] = GradientJob{};
            describe(m, r, n, 0, jobs[count].step);
            jobs[count].w = jobs[count].step.w;
            jobs[count].grad_kappa = r.grad_kappa ? r.grad_kappa[n] : grad_kappa;
            environments[count++] = n;
        } else {
            std::fill_n(out + n * size, size, 0.0);
        }
        if (count == lanes<T> || (n + 1 == last && count)) {
            run(environments, jobs, count);
            count = 0;
        }
    }
}

template <class T>
void jacobian(Pool<JacobianWorkspace<T>> &pool, const MechanismTable &m, const Options &options, double grad_kappa, const TdRollout &r,
              double *out, int64_t first, int64_t last) {
    auto workspace = pool.take();
    const int64_t size = int64_t(tangent_size) * m.num_bodies * (tangent_size * m.num_bodies + m.num_inputs);
    each_solved<T>(m, grad_kappa, r, out, size, first, last, [&](const int64_t *environments, const GradientJob *jobs, int count) {
        double *to[lanes<T>];
        for (int j = 0; j < count; ++j) to[j] = out + environments[j] * size;
        workspace->jacobian.run(jobs, count, to, options, shared_parameters(r), workspace->gradient);
    });
}

template <class T, class R>
void minimal_jacobian(Pool<MinimalWorkspace<T, R>> &pool, const MechanismTable &m, const Options &options, double grad_kappa,
                      const TdRollout &r, const double *q, const double *qd, double *out, int64_t first, int64_t last) {
    auto workspace = pool.take();
    const int64_t n = m.num_coordinates, size = 2 * n * (2 * n + m.num_inputs);
    each_solved<T>(m, grad_kappa, r, out, size, first, last, [&](const int64_t *environments, const GradientJob *steps, int count) {
        MinimalJob jobs[lanes<T>];
        for (int j = 0; j < count; ++j)
            jobs[j] = {steps[j], q + environments[j] * n, qd + environments[j] * n, out + environments[j] * size};
        workspace->jacobian.run(jobs, count, options, shared_parameters(r), workspace->gradient);
    });
}

template <class T>
void states(Pool<TreeStates<T>> &pool, const MechanismTable &m, const double *parameters, int64_t stride, const double *q, const double *qd,
            double *z, int64_t first, int64_t last) {
    auto tree = pool.take();
    auto load = [&](std::vector<T> &to, const double *from, int lane) {
        for (size_t k = 0; k < to.size(); ++k) set(to[k], lane, from[k]);
    };
    for (int lane = 0; lane < lanes<T>; ++lane) load(tree->parameters, parameters + first * stride, lane);
    for (int64_t start = first; start < last; start += lanes<T>) {
        for (int lane = 0; lane < lanes<T>; ++lane) {
            const int64_t n = std::min(start + lane, last - 1);
            if (stride) load(tree->parameters, parameters + n * stride, lane);
            load(tree->q, q + n * m.num_coordinates, lane), load(tree->qd, qd + n * m.num_coordinates, lane);
        }
        tree->run();
        for (int lane = 0; lane < lanes<T> && start + lane < last; ++lane)
            for (size_t k = 0; k < tree->z.size(); ++k) z[(start + lane) * int64_t(tree->z.size()) + k] = get(tree->z[k], lane);
    }
}

int64_t num_blocks(int64_t environments, int64_t threads) {
    return std::max<int64_t>(1, std::min(threads, (environments + pack_lanes - 1) / pack_lanes));
}

// Calls part(first, last, many, block) on blocks of environments, one per thread; `many`: whether the block is worth a vector register.
template <class F>
void in_parallel(int64_t environments, int64_t threads, F &&part) {
    const int64_t blocks = num_blocks(environments, threads);
    auto run = [&](int64_t block) {
        const int64_t first = environments * block / blocks, last = environments * (block + 1) / blocks;
        const SubnormalsAreZero flush;
        if (first < last) part(first, last, last - first > 1, block);
    };
#if defined(_OPENMP)
    if (blocks > 1) {
#pragma omp parallel for num_threads(int(blocks)) schedule(static, 1)
        for (int64_t block = 0; block < blocks; ++block) run(block);
        return;
    }
#endif
    for (int64_t block = 0; block < blocks; ++block) run(block);
}

// Memory that results will fill: where much of it is new, Linux finds it in pages of 2 MB, if asked, and not 4 kB by 4 kB as it is touched
// (which took 40 of 105 µs of the Jacobian of ten bodies). NumPy asks from the same size on.
void expect([[maybe_unused]] const double *memory, [[maybe_unused]] int64_t count) {
#if defined(MADV_HUGEPAGE)
    constexpr uintptr_t page = 4096, large = uintptr_t(1) << 22;
    const uintptr_t bytes = uintptr_t(count) * sizeof(double), start = (uintptr_t(memory) + page - 1) / page * page;
    if (memory && bytes >= large) madvise(reinterpret_cast<void *>(start), bytes - page, MADV_HUGEPAGE);  // (advice: nothing lost if it fails)
#endif
}

}  // namespace

extern "C" {

void td_rollout(void *handle, const TdOptions *o, const TdRollout *r) {
    Handle &h = *static_cast<Handle *>(handle);
    const Options options = native_options(*o);
    expect(r->z, (r->environments - 1) * r->z_stride + r->steps * state_size * h.table.num_bodies);
    expect(r->impulses, r->environments * r->steps * h.table.num_impulses);
    expect(r->w, r->environments * r->w_steps * h.table.num_unknowns);
    in_parallel(r->environments, o->threads, [&](int64_t first, int64_t last, bool many, int64_t) {
        many ? forward<Pack>(h, options, *r, first, last) : forward<double>(h, options, *r, first, last);
    });
}

void td_rollout_adjoint(void *handle, const TdOptions *o, const TdRollout *r, const TdGradient *g) {
    Handle &h = *static_cast<Handle *>(handle);
    const Options options = native_options(*o);
    // Parameters that are shared: one sum per block, added up in their order.
    const bool partial = g->grad_parameters && !r->parameter_stride;
    const int64_t size = h.table.num_parameters, blocks = num_blocks(r->environments, o->threads);
    std::vector<double> sums(partial ? size_t(blocks * size) : 0);
    expect(g->grad_u, r->environments * r->steps * h.table.num_inputs);
    in_parallel(r->environments, o->threads, [&](int64_t first, int64_t last, bool many, int64_t block) {
        double *grad_parameters = partial ? &sums[block * size] : g->grad_parameters;
        many ? backward<Pack>(h, options, o->grad_kappa, *r, *g, grad_parameters, first, last)
             : backward<double>(h, options, o->grad_kappa, *r, *g, grad_parameters, first, last);
    });
    for (size_t k = 0; k < sums.size(); ++k) g->grad_parameters[k % size] += sums[k];
}

// w: (N, T, n), the solutions on the way to the limit κ → 0; those that do not get there stay what they are.
void td_near_limit(void *handle, const TdOptions *o, const TdRollout *r, double *w) {
    Handle &h = *static_cast<Handle *>(handle);
    const Options options = native_options(*o);
    in_parallel(r->environments, o->threads, [&](int64_t first, int64_t last, bool many, int64_t) {
        double *to = w + first * r->steps * h.table.num_unknowns;
        many ? near_limit<Pack>(h, options, *r, to, first, last) : near_limit<double>(h, options, *r, to, first, last);
    });
}

// out: (N, 12 nb, 12 nb + nu) of rollouts of one step; zero where a step failed or was split.
void td_jacobian(void *handle, const TdOptions *o, const TdRollout *r, double *out) {
    Handle &h = *static_cast<Handle *>(handle);
    const Options options = native_options(*o);
    const int64_t rows = int64_t(tangent_size) * h.table.num_bodies;
    expect(out, r->environments * rows * (rows + h.table.num_inputs));
    const bool few_rows = h.table.num_bodies < 3;
    in_parallel(r->environments, o->threads, [&](int64_t first, int64_t last, bool many, int64_t) {
        many && few_rows ? jacobian(h.jacobian_many, h.table, options, o->grad_kappa, *r, out, first, last)
                         : jacobian(h.jacobian_one, h.table, options, o->grad_kappa, *r, out, first, last);
    });
}

// out: (N, 2n, 2n + nu) of rollouts of one step from the states of (q, q̇), (N, n) each; zero where a step failed or was split.
void td_minimal_jacobian(void *handle, const TdOptions *o, const TdRollout *r, const double *q, const double *qd, double *out) {
    Handle &h = *static_cast<Handle *>(handle);
    const Options options = native_options(*o);
    // Lanes are environments, where their matrices and factors side by side leave room in the cache (of 1 MB, say), else rows of one: of
    // the few rows of a small mechanism many lanes would be idle (one core: half-cheetah 13 and 23 µs per environment, Atlas 122 and 97).
    const int64_t n = h.table.num_coordinates;
    expect(out, r->environments * 2 * n * (2 * n + h.table.num_inputs));
    const bool in_cache = 2 * sizeof(Pack) * size_t(h.table.schedule.num_values) < (size_t(1) << 19);
    in_parallel(r->environments, o->threads, [&](int64_t first, int64_t last, bool many, int64_t) {
        many && in_cache ? minimal_jacobian(h.minimal_many, h.table, options, o->grad_kappa, *r, q, qd, out, first, last)
                         : minimal_jacobian(h.minimal_one, h.table, options, o->grad_kappa, *r, q, qd, out, first, last);
    });
}

// z: (N, 13 nb) of the states of (q, q̇), (N, n) each.
void td_states(void *handle, int64_t environments, int64_t threads, const double *parameters, int64_t stride, const double *q,
               const double *qd, double *z) {
    Handle &h = *static_cast<Handle *>(handle);
    in_parallel(environments, threads, [&](int64_t first, int64_t last, bool many, int64_t) {
        many ? states(h.states_many, h.table, parameters, stride, q, qd, z, first, last)
             : states(h.states_one, h.table, parameters, stride, q, qd, z, first, last);
    });
}

}  // extern "C"
