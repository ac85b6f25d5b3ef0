// Rollouts: the steps of environments, fed to the lanes of the solver.
#pragma once

#include <memory>

#include "abi/driven.hpp"
#include "elements/actuation.hpp"
#include "elements/feedback.hpp"
#include "solver/recovery.hpp"

namespace torchdojo {

template <class T>
struct ForwardWorkspace {
    Stepper<T> stepper;
    std::unique_ptr<Recovery> recovery;  // made for the first step that needs it
    SplitSteps<T> splits;
    Actuation actuation;
    DrivenForward<T> drives;
    Feedback feedback;
    std::vector<double> impulses, inputs;  // one step in each lane: impulses that a period sums, and inputs by a law
    explicit ForwardWorkspace(const MechanismTable &m)
        : stepper(m), splits(m), actuation(m), drives(m), feedback(m), impulses(size_t(lanes<T>) * m.num_impulses),
          inputs(size_t(lanes<T>) * m.num_inputs) {}
};

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
    const PartCall *part = nullptr;  // what a part of a mechanism has beside the rollout
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
    // Drives measure the tendons of whole steps.
    bool measured(int lane) const { return rollout.drives && workspace.drives.pulls() && !workspace.splits.depth(lane); }
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
        if (any_wanted) workspace.drives.run(rollout, workspace.stepper.problem, workspace.inputs.data());
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
            job.part = part;
            job.in_part = n;
            if (rollout.feedback && t % rollout.repeat == 0) apply(*rollout.feedback, n, t, job);
            double *inputs = workspace.inputs.data() + size_t(lane) * mechanism.num_inputs;
            actuate(rollout, n, t, workspace.actuation, inputs, job);
            if (rollout.drives) workspace.drives.set(rollout, workspace.stepper.problem, lane, n, t, workspace.inputs.data(), job);
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
    Recovery &recovery() {
        if (!workspace.recovery) workspace.recovery = std::make_unique<Recovery>(mechanism);
        return *workspace.recovery;
    }

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
            solved = recovery().recover(job, options, shared_parameters(rollout), workspace.splits.depth(lane));
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

}  // namespace torchdojo
