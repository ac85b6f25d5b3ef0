// Members of `Worker`, for the files that compile it.
#pragma once

#include <mutex>

#include "abi/backward_pass.hpp"
#include "abi/forward_pass.hpp"
#include "abi/worker.hpp"
#include "gradient/jacobian.hpp"
#include "gradient/joint_jacobian.hpp"
#include "gradient/minimal_jacobian.hpp"
#include "gradient/split_jacobian.hpp"
#include "maps/sensors.hpp"
#include "maps/state_maps.hpp"

namespace torchdojo {

// A workspace belongs to one thread for the length of a call and goes back to its mechanism's pool, so steps allocate nothing.
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
struct JacobianWorkspace {
    StepGradient<T> gradient;
    StepJacobian<T> jacobian;
    std::unique_ptr<SplitJacobian> split;  // made for the first split step
    explicit JacobianWorkspace(const MechanismTable &m) : gradient(m), jacobian(m) {}
};

template <class T>
struct MinimalWorkspace {
    StepGradient<T> gradient;
    std::unique_ptr<JointJacobian<T>> on_tree;  // each is made when it is needed first
    std::unique_ptr<MinimalJacobian<T, Pack>> transposed;
    explicit MinimalWorkspace(const MechanismTable &m) : gradient(m) {}
};

template <class T>
struct Worker<T>::Pools {
    Pool<ForwardWorkspace<T>> forward;
    Pool<BackwardWorkspace<T>> backward;
    Pool<JacobianWorkspace<T>> jacobian;
    Pool<MinimalWorkspace<T>> minimal;
    Pool<StateMaps<T>> maps;
    explicit Pools(const MechanismTable &m) : forward(m), backward(m), jacobian(m), minimal(m), maps(m) {}
};

#if TD_NARROW
// Jacobians and maps are left to the other two workers.
template <>
struct Worker<Narrow>::Pools {
    Pool<ForwardWorkspace<Narrow>> forward;
    Pool<BackwardWorkspace<Narrow>> backward;
    explicit Pools(const MechanismTable &m) : forward(m), backward(m) {}
};
#endif

template <class T>
Worker<T>::Worker(const MechanismTable &m) : mechanism(m), pools(std::make_unique<Pools>(m)) {}
template <class T>
Worker<T>::~Worker() = default;

template <class T>
void Worker<T>::forward(const Options &options, const TdRollout &r, int64_t first, int64_t last, const PartCall *part) {
    auto workspace = pools->forward.take();
    RolloutFeed<T> feed(mechanism, r, options, *workspace, first, last);
    feed.part = part;
    workspace->stepper.run(feed, options, shared_parameters(r));
}

template <class T>
void Worker<T>::near_limit(const Options &options, const TdRollout &r, double *to, int64_t first, int64_t last) {
    auto workspace = pools->backward.take();
    std::copy_n(r.w + first * r.steps * mechanism.num_unknowns, (last - first) * r.steps * mechanism.num_unknowns, to);
    LimitFeed<T> feed(mechanism, r, first, last, to);
    workspace->gradient.stepper.run(feed, limit_options(options), shared_parameters(r));
}

template <class T>
void Worker<T>::backward(const Options &options, double grad_kappa, const TdRollout &r, const TdGradient &g, double *grad_parameters,
                         int64_t first, int64_t last) {
    auto workspace = pools->backward.take();
    BackwardPass<T>(mechanism, options, grad_kappa, r, g, grad_parameters, *workspace).run(first, last);
}

// Calls run(environments, jobs, count) on environments first … last whose step is solved and not split, up to `lanes<T>` at a time, and
// run_split(job, out) on environments whose step is split. The results of other environments, `size` numbers each, are zero.
template <class T, class F, class G>
void each_solved(const MechanismTable &m, double grad_kappa, const TdRollout &r, double *out, int64_t size, int64_t first, int64_t last,
                 F &&run, G &&run_split) {
    GradientJob jobs[lanes<T>];
    int64_t environments[lanes<T>];
    int count = 0;
    for (int64_t n = first; n < last; ++n) {
        if (r.status[n] == success) {
            GradientJob &job = jobs[count];
            job = GradientJob{};
            describe(m, r, n, 0, job.step);
            job.w = job.step.w;
            job.grad_kappa = r.grad_kappa ? r.grad_kappa[n] : grad_kappa;
            if (r.substeps[n] > 1) run_split(job, out + n * size);
            else environments[count++] = n;
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
void Worker<T>::jacobian(const Options &options, double grad_kappa, const TdRollout &r, double *out, int64_t first, int64_t last) {
    const MechanismTable &m = mechanism;
    auto workspace = pools->jacobian.take();
    const int64_t size = int64_t(tangent_size) * m.num_bodies * (tangent_size * m.num_bodies + m.num_inputs);
    const auto run = [&](const int64_t *environments, const GradientJob *jobs, int count) {
        double *to[lanes<T>];
        for (int j = 0; j < count; ++j) to[j] = out + environments[j] * size;
        workspace->jacobian.run(jobs, count, to, options, shared_parameters(r), workspace->gradient);
    };
    each_solved<T>(m, grad_kappa, r, out, size, first, last, run, [&](const GradientJob &job, double *to) {
        if (!workspace->split) workspace->split = std::make_unique<SplitJacobian>(m);
        workspace->split->run(job, to, options, shared_parameters(r));
    });
}

template <class T>
void Worker<T>::minimal_jacobian(const Options &options, double grad_kappa, const TdRollout &r, const double *x, double *out, int64_t first,
                                 int64_t last) {
    const MechanismTable &m = mechanism;
    auto workspace = pools->minimal.take();
    const int64_t n = m.num_coordinates, size = 2 * n * (2 * n + m.num_inputs);
    const bool tree = JointJacobian<T>::covers(m, options);
    const auto take = [&](auto &jacobian, const MinimalJob *jobs, int count) {
        if (!count) return;
        if (!jacobian) jacobian = std::make_unique<std::decay_t<decltype(*jacobian)>>(m);
        jacobian->run(jobs, count, options, shared_parameters(r), workspace->gradient);
    };
    const auto run = [&](const int64_t *environments, const GradientJob *steps, int count) {
        MinimalJob jobs[lanes<T>], smoothed[lanes<T>];
        int on_tree = 0, others = 0;
        for (int j = 0; j < count; ++j) {
            const int64_t environment = environments[j];
            const MinimalJob job{steps[j], x + 2 * environment * n, x + (2 * environment + 1) * n, out + environment * size};
            if (tree && job.step.grad_kappa == options.kappa) jobs[on_tree++] = job;
            else smoothed[others++] = job;
        }
        take(workspace->on_tree, jobs, on_tree);
        take(workspace->transposed, smoothed, others);
    };
    each_solved<T>(m, grad_kappa, r, out, size, first, last, run, [&](const GradientJob &, double *to) { std::fill_n(to, size, 0.0); });
}

template <class T>
void Worker<T>::map(const TdMap &map, int64_t first, int64_t last) {
    auto workspace = pools->maps.take();
    const int64_t in_size = StateMaps<T>::in_size(mechanism, map.map), out_size = StateMaps<T>::out_size(mechanism, map.map);
    const int64_t sizes[3] = {in_size, map.derivative == maps::pull ? out_size : in_size,
                              map.derivative == maps::pull ? in_size : out_size};
    std::vector<T> &in = workspace->in, &along = workspace->along, &out = workspace->out;
    in.resize(sizes[0]);
    along.resize(sizes[1]);
    out.resize(sizes[2]);
    auto load = [&](std::vector<T> &to, const double *from, int64_t stride, int64_t start) {
        for (int lane = 0; lane < lanes<T>; ++lane) {
            const double *row = from + std::min(start + lane, last - 1) * stride;
            for (size_t k = 0; k < to.size(); ++k) set(to[k], lane, row[k]);
        }
    };
    const auto load_parameters = [&](int64_t start) {
        load(workspace->parameters, map.parameters, map.parameter_stride, start);
        for (int lane = 0; lane < lanes<T>; ++lane)
            workspace->samples[lane] = map.parameters + std::min(start + lane, last - 1) * map.parameter_stride;
    };
    load_parameters(first);
    for (int64_t start = first; start < last; start += lanes<T>) {
        if (map.parameter_stride && start > first) load_parameters(start);
        load(in, map.in, sizes[0], start);
        if (map.along) load(along, map.along, sizes[1], start);
        if (map.derivative == maps::pull) workspace->pull(map.map, in.data(), along.data(), out.data());
        else if (map.derivative == maps::push) workspace->push(map.map, in.data(), along.data(), out.data());
        else workspace->value(map.map, in.data(), out.data());
        for (int lane = 0; lane < lanes<T> && start + lane < last; ++lane) {
            double *row = map.out + (start + lane) * sizes[2];
            for (size_t k = 0; k < out.size(); ++k) row[k] = get(out[k], lane);
        }
    }
}

template <class T>
void Worker<T>::sense(const TdSensors &sensors, int64_t first, int64_t last) {
    Sensors<T>(mechanism, sensors).run(first, last);
}

}  // namespace torchdojo
