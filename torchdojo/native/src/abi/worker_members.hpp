// Members of `Worker`, for the files that compile it.
#pragma once

#include <mutex>

#include "abi/driven.hpp"
#include "abi/worker.hpp"
#include "elements/actuation.hpp"
#include "elements/feedback.hpp"
#include "gradient/jacobian.hpp"
#include "gradient/joint_jacobian.hpp"
#include "gradient/minimal_jacobian.hpp"
#include "gradient/split_gradient.hpp"
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
struct ForwardWorkspace {
    Stepper<T> stepper;
    Recovery recovery;
    SplitSteps<T> splits;
    Actuation actuation;
    DrivenForward<T> drives;
    Feedback feedback;
    std::vector<double> impulses, inputs;  // one step in each lane: impulses that a period sums, and inputs by a law
    explicit ForwardWorkspace(const MechanismTable &m)
        : stepper(m), recovery(m), splits(m), actuation(m), drives(m), feedback(m), impulses(size_t(lanes<T>) * m.num_impulses),
          inputs(size_t(lanes<T>) * m.num_inputs) {}
};

template <class T>
struct BackwardWorkspace {
    StepGradient<T> gradient;
    SplitGradient split;
    Actuation actuation;
    DrivenBackward<T> drives;
    std::vector<double> grad_z, carried, grad_wrench, near_limit, inputs, grad_inputs;
    explicit BackwardWorkspace(const MechanismTable &m)
        : gradient(m), split(m), actuation(m), drives(m), grad_z(size_t(lanes<T>) * state_size * m.num_bodies), carried(grad_z),
          grad_wrench(size_t(lanes<T>) * 6 * m.num_bodies), inputs(size_t(lanes<T>) * m.num_inputs), grad_inputs(inputs) {}
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

// Sets the input of step t of environment n, which is computed into `inputs`, where there is a law.
inline void actuate(const TdRollout &r, int64_t n, int64_t t, Actuation &actuation, double *inputs, Job &job) {
    if (!r.law) return;
    actuation.inputs(*r.law, job.parameters, n, job.z, r.u + control_of(r, n, t), inputs);
    job.u = inputs;
}

inline const double *shared_parameters(const TdRollout &r) { return r.parameter_stride ? nullptr : r.parameters; }

// Environments first … last: each lane follows one of them through all its steps, then takes the next one.
template <class T>
struct RolloutFeed {
    const MechanismTable &mechanism;
    const TdRollout &rollout;
    const Options &options;
    ForwardWorkspace<T> &workspace;
    int64_t next_environment, last, environment[lanes<T>] = {}, step[lanes<T>];
    int64_t status[lanes<T>], iterations[lanes<T>], substeps[lanes<T>];  // results of one step, where a period gathers them
    int64_t given_up[lanes<T>];  // the status of the step that has used up its budget, or `success`

    RolloutFeed(const MechanismTable &m, const TdRollout &r, const Options &o, ForwardWorkspace<T> &workspace, int64_t first, int64_t last)
        : mechanism(m), rollout(r), options(o), workspace(workspace), next_environment(first), last(last) {
        for (int lane = 0; lane < lanes<T>; ++lane) step[lane] = r.steps;
        if (r.drives) workspace.drives.begin(r);
    }
    // With contacts, steps have unlike numbers of iterations, and waiting costs 4 to 8 % (quadruped, humanoid), more than drives.
    bool patient() const { return rollout.drives && !mechanism.num_contacts; }
    // Takes the drives of the steps that these lanes get next, all at once.
    void expect(const bool *wanted) {
        if (!rollout.drives) return;
        int64_t upcoming = next_environment;
        bool any_wanted = false;
        for (int lane = 0; lane < lanes<T>; ++lane) {
            const bool begins = step[lane] == rollout.steps;
            if (!wanted[lane] || workspace.splits.depth(lane) || (begins && upcoming == last)) continue;
            workspace.drives.want(lane, begins ? upcoming++ : environment[lane], begins ? 0 : step[lane]);
            any_wanted = true;
        }
        if (any_wanted) workspace.drives.run(rollout, workspace.inputs.data());
    }
    bool next(int lane, Job &job) {
        if (workspace.splits.next(lane, job)) return true;
        while (true) {
            if (step[lane] == rollout.steps) {
                if (next_environment == last) return false;
                environment[lane] = next_environment++;
                step[lane] = 0;
                given_up[lane] = success;
            }
            const int64_t n = environment[lane], t = step[lane]++;
            describe(mechanism, rollout, n, t, job);
            if (rollout.feedback && t % rollout.repeat == 0) apply(*rollout.feedback, n, t, job);
            double *inputs = workspace.inputs.data() + size_t(lane) * mechanism.num_inputs;
            actuate(rollout, n, t, workspace.actuation, inputs, job);
            if (rollout.drives) workspace.drives.set(rollout, lane, n, t, workspace.inputs.data(), job);
            if (rollout.repeat > 1) {
                job.impulses = &workspace.impulses[size_t(lane) * mechanism.num_impulses];
                if (rollout.every > 1) {
                    job.status = &status[lane];
                    job.iterations = &iterations[lane];
                    job.substeps = &substeps[lane];
                }
            }
            if (given_up[lane] == success) return true;
            skip(lane, job);
        }
    }
    TD_INLINE void finished(int lane, const Job &job, bool solved) {
        if (!solved || rollout.repeat > 1 || workspace.splits.depth(lane)) settle(lane, job, solved);
    }

private:
    // Sets the input of step t of environment n by the law, and the start of its iterations.
    void apply(const TdFeedback &law, int64_t n, int64_t t, Job &job) {
        const int64_t period = period_of(rollout, t), periods = period_of(rollout, rollout.steps);
        workspace.feedback.apply(law, job.parameters, n, period, periods, job.z);
        if (law.solution) job.warm = law.solution + (law.solution_row[n] * periods + period) * mechanism.num_unknowns;
    }

    // The rest of the work after steps that fail, belong to a period, or are parts of a split step.
    __attribute__((noinline)) void settle(int lane, const Job &job, bool solved) {
        if (*job.status == too_fast) return workspace.splits.begin(lane, job);
        if (!solved && options.give_up) given_up[lane] = *job.status;
        else if (*job.status == max_iterations)
            solved = workspace.recovery.recover(job, options, shared_parameters(rollout), workspace.splits.depth(lane));
        const Job *whole = workspace.splits.finish(lane, job, solved);
        if (whole && rollout.repeat > 1) gather(environment[lane], step[lane] - 1, *whole);
    }

    // The results of a step that is not taken, because its environment has been given up.
    __attribute__((noinline)) void skip(int lane, const Job &job) {
        *job.status = given_up[lane];
        *job.iterations = 0;
        *job.substeps = 1;
        keep_state(mechanism, job);
        if (rollout.repeat > 1) gather(environment[lane], step[lane] - 1, job);
    }

    // Adds the results of step t of environment n to the results of its period.
    void gather(int64_t n, int64_t t, const Job &job) {
        const bool first = t % rollout.repeat == 0;
        const int64_t period = n * period_of(rollout, rollout.steps) + period_of(rollout, t);
        double *impulses = rollout.impulses + period * mechanism.num_impulses;
        for (int k = 0; k < mechanism.num_impulses; ++k) impulses[k] = first ? job.impulses[k] : impulses[k] + job.impulses[k];
        if (rollout.every == 1) return;
        int64_t &worst = rollout.status[period], &count = rollout.iterations[period], &parts = rollout.substeps[period];
        worst = first ? *job.status : std::max(worst, *job.status);
        count = first ? *job.iterations : count + *job.iterations;
        parts = first ? *job.substeps : parts + *job.substeps;
    }
};

template <class T>
void Worker<T>::forward(const Options &options, const TdRollout &r, int64_t first, int64_t last) {
    auto workspace = pools->forward.take();
    RolloutFeed<T> feed(mechanism, r, options, *workspace, first, last);
    workspace->stepper.run(feed, options, shared_parameters(r));
}

// Takes the solutions of all steps of environments first … last, (last - first, T, n), to the κ at which contacts are classified.
// All steps run in one feed, so that no lane waits for the slowest step of a small group. Solutions that do not get there stay unchanged.
template <class T>
struct LimitFeed {
    const MechanismTable &mechanism;
    const TdRollout &rollout;
    double *to;
    int64_t first, upcoming, end, from[lanes<T>] = {}, status[lanes<T>], iterations[lanes<T>], substeps[lanes<T>];
    std::vector<double> z, impulses;

    LimitFeed(const MechanismTable &m, const TdRollout &r, int64_t first, int64_t last, double *to)
        : mechanism(m), rollout(r), to(to), first(first), upcoming(first * r.steps), end(last * r.steps),
          z(size_t(lanes<T>) * state_size * m.num_bodies), impulses(size_t(lanes<T>) * m.num_impulses) {}
    bool next(int lane, Job &job) {
        while (upcoming < end && (rollout.status[upcoming] != success || rollout.substeps[upcoming] > 1)) ++upcoming;
        if (upcoming == end) return false;
        from[lane] = upcoming++;
        describe(mechanism, rollout, from[lane] / rollout.steps, from[lane] % rollout.steps, job);
        job.warm = job.w;
        job.w = to + (from[lane] - first * rollout.steps) * mechanism.num_unknowns;
        job.z_next = &z[size_t(lane) * state_size * mechanism.num_bodies];
        job.impulses = &impulses[size_t(lane) * mechanism.num_impulses];
        job.status = &status[lane];
        job.iterations = &iterations[lane];
        job.substeps = &substeps[lane];
        return true;
    }
    void finished(int, const Job &job, bool solved) {
        if (!solved) std::copy_n(job.warm, mechanism.num_unknowns, job.w);
    }
};

template <class T>
void Worker<T>::near_limit(const Options &options, const TdRollout &r, double *to, int64_t first, int64_t last) {
    auto workspace = pools->backward.take();
    std::copy_n(r.w + first * r.steps * mechanism.num_unknowns, (last - first) * r.steps * mechanism.num_unknowns, to);
    LimitFeed<T> feed(mechanism, r, first, last, to);
    workspace->gradient.stepper.run(feed, limit_options(options), shared_parameters(r));
}

// Fetches the numbers that the gradient of step t − 1 reads.
inline void fetch_before(const MechanismTable &m, const TdRollout &r, const TdGradient &g, int64_t n, int64_t t) {
    Job job;
    describe(m, r, n, t - 1, job);
    fetch(job.w, m.num_unknowns);
    fetch(job.z, state_size * m.num_bodies);
    fetch(g.grad_z + n * g.grad_z_stride + (t - 1) * state_size * m.num_bodies, state_size * m.num_bodies);
}

template <class T>
void Worker<T>::backward(const Options &options, double grad_kappa, const TdRollout &r, const TdGradient &g, double *grad_parameters,
                         int64_t first, int64_t last) {
    auto workspace = pools->backward.take();
    const MechanismTable &m = mechanism;
    if (r.drives) workspace->drives.begin(r);
    const bool controlled = r.law || r.drives, pushed = g.grad_wrench || (r.drives && r.drives->pushes);
    const int64_t nz = state_size * m.num_bodies, nf = 6 * m.num_bodies, nu = m.num_inputs;
    GradientJob jobs[lanes<T>];
    const double *from[lanes<T>];  // the state of each step
    const bool continued = options.limit && options.kappa > constant::limit_kappa;
    const int64_t block = lanes<T> * std::max<int64_t>(1, 16 / r.steps);  // environments: about sixteen steps per lane or more
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
                const int64_t n = start + j, index = n * r.steps + t;
                double *carried = &workspace->carried[j * nz];
                const double *upstream = g.grad_z + n * g.grad_z_stride + t * nz;
                for (int64_t k = 0; k < nz; ++k) carried[k] += upstream[k];
                if (t) fetch_before(m, r, g, n, t);
                GradientJob &job = jobs[active];
                job = GradientJob{};
                describe(m, r, n, t, job.step);
                actuate(r, n, t, workspace->actuation, workspace->inputs.data() + j * nu, job.step);
                if (r.drives) workspace->drives.set(r, n, t, job.step);
                from[j] = job.step.z;
                job.w = job.step.w;
                job.grad_z_next = carried;
                const int64_t period = n * period_of(r, r.steps) + period_of(r, t);
                job.grad_impulses = g.grad_impulses ? g.grad_impulses + period * m.num_impulses : nullptr;
                job.grad_z = &workspace->grad_z[j * nz];
                job.grad_u = controlled ? workspace->grad_inputs.data() + j * nu : g.grad_u ? g.grad_u + index * nu : nullptr;
                job.grad_wrench = pushed ? &workspace->grad_wrench[j * nf] : nullptr;
                job.grad_parameters = grad_parameters ? grad_parameters + n * r.parameter_stride : nullptr;
                job.grad_kappa = r.grad_kappa ? r.grad_kappa[n] : grad_kappa;
                if (r.status[index] == success && r.substeps[index] == 1) {
                    if (continued) job.near_limit = &workspace->near_limit[size_t(index - block_start * r.steps) * m.num_unknowns];
                    ++active;
                    continue;
                }
                std::fill_n(job.grad_z, nz, 0.0);
                if (job.grad_wrench) std::fill_n(job.grad_wrench, nf, 0.0);
                if (r.status[index] == success) {
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
            for (int j = 0; j < count && r.law; ++j) {
                const int64_t n = start + j, place = control_of(r, n, t);
                if (r.status[n * r.steps + t] == success)
                    workspace->actuation.adjoint(*r.law, r.parameters + n * r.parameter_stride, n, from[j], r.u + place,
                                                 &workspace->grad_inputs[j * nu], g.grad_u + place, &workspace->grad_z[j * nz]);
            }
            if (r.drives)
                workspace->drives.pull_back(r, start, count, t, from, workspace->grad_inputs.data(), workspace->grad_wrench.data(),
                                            g.grad_u, workspace->grad_z.data());
            std::copy_n(workspace->grad_z.begin(), count * nz, workspace->carried.begin());
            if (g.grad_wrench)
                for (int64_t k = 0; k < count * nf; ++k) g.grad_wrench[start * nf + k] += workspace->grad_wrench[k];
        }
        std::copy_n(workspace->carried.begin(), count * nz, g.grad_z0 + start * nz);
    }
    workspace->gradient.flush();
    workspace->split.flush();
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
            GradientJob &job = jobs[count] = GradientJob{};
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
