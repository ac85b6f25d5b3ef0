// Gradients of rollouts: environments side by side in lanes go back step by step.
#pragma once

#include "abi/forward_pass.hpp"
#include "gradient/impacts.hpp"
#include "gradient/split_gradient.hpp"

namespace torchdojo {

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

// Fetches the numbers that the gradient of step t − 1 reads.
inline void fetch_before(const MechanismTable &m, const TdRollout &r, const TdGradient &g, int64_t n, int64_t t) {
    Job job;
    describe(m, r, n, t - 1, job);
    fetch(job.w, m.num_unknowns);
    fetch(job.z, state_size * m.num_bodies);
    fetch(g.grad_z + n * g.grad_z_stride + (t - 1) * state_size * m.num_bodies, state_size * m.num_bodies);
}

// The gradients of a call's rollouts. Solved steps of the environments in the lanes are differentiated side by side, split ones each alone.
template <class T>
class BackwardPass {
public:
    // grad_parameters: null, or where the gradients of parameters are added.
    BackwardPass(const MechanismTable &m, const Options &options, double grad_kappa, const TdRollout &r, const TdGradient &g,
                 double *grad_parameters, BackwardWorkspace<T> &workspace)
        : m(m), options(options), grad_kappa(grad_kappa), r(r), g(g), grad_parameters(grad_parameters), workspace(workspace),
          controlled(r.law || r.drives), pushed(g.grad_wrench || (r.drives && r.drives->pushes)),
          continued(options.limit && options.kappa > constant::limit_kappa), nz(state_size * m.num_bodies), nf(6 * m.num_bodies) {}

    // Environments first … last.
    void run(int64_t first, int64_t last) {
        if (r.drives) workspace.drives.begin(r);
        const int64_t block = lanes<T> * std::max<int64_t>(1, 16 / r.steps);  // environments: about sixteen steps per lane or more
        for (start = first; start < last; start += lanes<T>) {
            count = int(std::min<int64_t>(lanes<T>, last - start));
            if (continued && (start - first) % block == 0) continue_solutions(std::min(start + block, last));
            std::fill(workspace.carried.begin(), workspace.carried.end(), 0.0);
            if (g.grad_wrench) std::fill_n(g.grad_wrench + start * nf, count * nf, 0.0);
            for (int64_t t = r.steps - 1; t >= 0; --t) go_back(t);
            std::copy_n(workspace.carried.begin(), count * nz, g.grad_z0 + start * nz);
        }
        workspace.gradient.flush();
        workspace.split.flush();
    }

private:
    const MechanismTable &m;
    const Options &options;
    const double grad_kappa;
    const TdRollout &r;
    const TdGradient &g;
    double *const grad_parameters;
    BackwardWorkspace<T> &workspace;
    const bool controlled, pushed, continued;  // gradients of inputs and wrenches are wanted; solutions are continued to a smaller κ
    const int64_t nz, nf;
    int64_t start = 0, block_start = 0;  // first environment in the lanes, and among the continued solutions
    int count = 0;  // environments in the lanes
    int active = 0, alone = 0, steps[lanes<T>],
        other_steps[lanes<T>];  // environments whose steps are differentiated side by side, and each alone
    GradientJob jobs[lanes<T>];
    const double *from[lanes<T>];  // the state of each step

    // Continues the solutions of the environments from `start` on to the κ at which contacts are classified.
    void continue_solutions(int64_t end) {
        block_start = start;
        workspace.near_limit.resize(size_t(end - start) * r.steps * m.num_unknowns);
        LimitFeed<T> feed(m, r, start, end, workspace.near_limit.data());
        workspace.gradient.stepper.run(feed, limit_options(options), shared_parameters(r));
    }

    // Takes the gradients of all lanes from after step t to before it.
    void go_back(int64_t t) {
        active = alone = 0;
        for (int j = 0; j < count; ++j) {
            const int64_t index = (start + j) * r.steps + t;
            GradientJob &job = jobs[active];
            describe_job(j, t, job);
            if (r.status[index] != success || r.substeps[index] != 1) {
                differentiate_alone(job, r.status[index] == success);
                other_steps[alone++] = j;
                continue;
            }
            if (continued) job.near_limit = &workspace.near_limit[size_t(index - block_start * r.steps) * m.num_unknowns];
            steps[active++] = j;
        }
        workspace.gradient.adjoint.tendons.later = r.drives && workspace.drives.pulls();
        if (active) workspace.gradient.run(jobs, active, options, shared_parameters(r));
        add_others(t);
        std::copy_n(workspace.grad_z.begin(), count * nz, workspace.carried.begin());
        if (g.grad_wrench)
            for (int64_t k = 0; k < count * nf; ++k) g.grad_wrench[start * nf + k] += workspace.grad_wrench[k];
    }

    // The job for step t of lane j. Its gradient of the next state is the one that later steps carry, and the one of the step's own output.
    void describe_job(int j, int64_t t, GradientJob &job) {
        const int64_t n = start + j, nu = m.num_inputs;
        double *carried = &workspace.carried[j * nz];
        const double *upstream = g.grad_z + n * g.grad_z_stride + t * nz;
        for (int64_t k = 0; k < nz; ++k) carried[k] += upstream[k];
        if (t) fetch_before(m, r, g, n, t);
        job = GradientJob{};
        describe(m, r, n, t, job.step);
        actuate(r, n, t, workspace.actuation, workspace.inputs.data() + j * nu, job.step);
        if (r.drives) workspace.drives.set(r, n, t, job.step);
        from[j] = job.step.z;
        job.w = job.step.w;
        job.grad_z_next = carried;
        const int64_t period = n * period_of(r, r.steps) + period_of(r, t);
        job.grad_impulses = g.grad_impulses ? g.grad_impulses + period * m.num_impulses : nullptr;
        job.grad_z = &workspace.grad_z[j * nz];
        job.grad_u = g.grad_u ? g.grad_u + (n * r.steps + t) * nu : nullptr;
        if (controlled) job.grad_u = workspace.grad_inputs.data() + j * nu;
        job.grad_wrench = pushed ? &workspace.grad_wrench[j * nf] : nullptr;
        job.grad_parameters = grad_parameters ? grad_parameters + n * r.parameter_stride : nullptr;
        job.grad_kappa = r.grad_kappa ? r.grad_kappa[n] : grad_kappa;
    }

    // A step that is split, or has failed: the gradients of a failed one are zero.
    void differentiate_alone(const GradientJob &job, bool solved) {
        std::fill_n(job.grad_z, nz, 0.0);
        if (job.grad_wrench) std::fill_n(job.grad_wrench, nf, 0.0);
        if (solved) workspace.split.run(job, options, shared_parameters(r));
        else if (job.grad_u) std::fill_n(job.grad_u, m.num_inputs, 0.0);
    }

    // Terms of impacts, and the gradients through the law or the drives that gave the inputs of step t.
    void add_others(int64_t t) {
        for (int j = 0; j < count && g.impacts; ++j) {
            const int64_t k = g.impacts->step[(start + j) * r.steps + t];
            if (k >= 0) add_impact(*g.impacts, k, m.num_bodies, &workspace.carried[j * nz], &workspace.grad_z[j * nz]);
        }
        for (int j = 0; j < count && r.law; ++j) {
            const int64_t n = start + j, place = control_of(r, n, t);
            if (r.status[n * r.steps + t] == success)
                workspace.actuation.adjoint(*r.law, r.parameters + n * r.parameter_stride, n, from[j], r.u + place,
                                            &workspace.grad_inputs[j * m.num_inputs], g.grad_u + place, &workspace.grad_z[j * nz]);
        }
        if (!r.drives) return;
        if (t == r.steps - 1) workspace.drives.start();
        const auto pull_back = [&](const int *rows, int count, StepGradient<T> *stepped) {
            if (count)
                workspace.drives.pull_back(r, start, rows, count, t, from, workspace.grad_inputs.data(), workspace.grad_wrench.data(),
                                           g.grad_u, workspace.grad_z.data(), stepped);
        };
        pull_back(steps, active, &workspace.gradient);
        pull_back(other_steps, alone, nullptr);
    }
};

}  // namespace torchdojo
