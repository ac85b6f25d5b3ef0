// Attempts for one environment whose warm and cold start both fail: two half steps, which may split again, then continuation of the whole
// step along the central path. solver/continuation.py and gradients/reference_step.py have the methods and their constants.
#pragma once

#include <memory>

#include "solver/halves.hpp"

namespace torchdojo {

struct SingleJob {
    const Job *job;
    bool solved = false;
    bool next(int, Job &to) {
        if (!job) return false;
        to = *job;
        job = nullptr;
        return true;
    }
    void finished(int, const Job &, bool success) { solved = success; }
};

class Recovery {
public:
    explicit Recovery(const MechanismTable &m) : stepper(m), mechanism(m), start(m.num_unknowns) {
        for (std::vector<double> *v : {&w, &dw, &rate, &metric, &predicted, &trial, &newton, &slope, &residual}) v->resize(m.num_unknowns);
        scratch_z.resize(state_size * m.num_bodies);
        scratch_impulses.resize(m.num_impulses);
        scratch_w.resize(m.num_unknowns);
        again_z = scratch_z;
        again_impulses = scratch_impulses;
        again_w = scratch_w;
        is_product.assign(m.num_unknowns, 0);
        for (const auto &[impulse, slack] : stepper.cones.pairs) is_product[slack] = 1;
        for (const auto &[impulse, slack, c] : stepper.cones.discs) std::fill_n(&is_product[slack], 3, 1);
    }

    Stepper<double> stepper;

    // The ladder of attempts from the start in the job. It is a template because worker_one.cpp alone compiles it.
    template <class Feed = SingleJob>
    bool solve(const Job &job, const Options &options, const double *shared, int64_t depth);

    // The attempts after the cold start. On failure the job's outputs stay as the solver leaves them.
    template <class Feed = SingleJob>
    bool recover(const Job &job, const Options &options, const double *shared, int64_t depth = 0);

    Halves &halves(int64_t depth) {
        while (int64_t(levels.size()) <= depth) levels.emplace_back(std::make_unique<Halves>(mechanism));
        return *levels[depth];
    }

    // The halves of a step that was split, with all numbers of then, or null. An attempt that was cut for want of iterations would have
    // ended the step, so the attempts need no bound here. The job's outputs stay as they are.
    Halves *split_again(const Job &job, const Options &options, const double *shared, int64_t depth) {
        Options unbounded = options;
        unbounded.max_total_iterations = 0;
        Job again = job;
        again.z_next = again_z.data();
        again.impulses = again_impulses.data();
        again.w = again_w.data();
        again.status = &again_status;
        again.iterations = &again_iterations;
        again.substeps = &again_substeps;
        if (!solve(again, unbounded, shared, depth)) return nullptr;
        if (again_substeps > 1) return &halves(depth);
        // Lanes round otherwise than one environment, so an attempt that failed there may succeed here by a hair.
        return rescue(again, unbounded, shared, depth) ? &halves(depth) : nullptr;
    }

private:
    const MechanismTable &mechanism;
    std::vector<double> start, w, dw, rate, metric, predicted, trial, newton, slope, residual;
    std::vector<double> scratch_z, scratch_impulses, scratch_w, again_z, again_impulses, again_w;
    int64_t again_status = 0, again_iterations = 0, again_substeps = 1;
    std::vector<char> is_product;  // complementarity rows, which have the places of the slacks
    std::vector<std::unique_ptr<Halves>> levels;

    bool halve(const Job &job, const Options &options, const double *shared, int64_t depth) {
        Halves &level = halves(depth);
        level.whole = job;
        bool solved = true;
        for (int which = 0; which < 2 && solved; ++which) solved = solve(level.half(which), options, shared, depth + 1);
        level.finish(mechanism, solved);
        return solved;
    }

    // Half steps in place of a step whose attempts have failed.
    bool rescue(const Job &job, const Options &options, const double *shared, int64_t depth) {
        Job cold = job;
        cold.warm = nullptr;  // a failed step may have overwritten it
        cold.rescue = true;
        return halve(cold, options, shared, depth);
    }

    // Solution for κ = `kappa` from `from`, into `to`.
    bool follow(const Job &job, const Options &options, const double *shared, double kappa, const double *from, double *to, bool keep) {
        Options follow_options = options;
        follow_options.kappa = kappa;
        follow_options.interior = true;
        int64_t status, iterations, substeps;
        Job same = job;
        same.spent += *job.iterations;
        same.warm = from;
        same.w = scratch_w.data();
        if (!keep) {
            same.z_next = scratch_z.data();
            same.impulses = scratch_impulses.data();
        }
        same.status = &status;
        same.iterations = &iterations;
        same.substeps = &substeps;
        SingleJob feed{&same};
        stepper.run(feed, follow_options, shared);
        *job.iterations += iterations;
        if (feed.solved) std::copy(scratch_w.begin(), scratch_w.end(), to);
        return feed.solved;
    }

    bool continuation(const Job &job, const Options &options, const double *shared) {
        for (const double highest : constant::continuation_levels) {
            if (iterations_left(options, job) <= 0) return false;
            stepper.bind(options, shared);
            stepper.load(0, job);
            const double level = start_level(stepper.problem, 0, highest, options.kappa);
            if (level <= options.kappa) continue;
            prepare_step(stepper.problem);
            cold_start(level, start.data());
            follow(job, options, shared, level, start.data(), start.data(), false);
            std::copy(start.begin(), start.end(), w.begin());
            stepper.bind(options, shared);
            stepper.load(0, job);
            prepare_step(stepper.problem);
            if (trace(level, options, job) && follow(job, options, shared, options.kappa, w.data(), job.w, true)) return true;
        }
        return false;
    }

    void cold_start(double level, double *to) {
        std::fill_n(to, mechanism.num_unknowns, 0.0);
        for (int i = 0; i < mechanism.num_bodies; ++i)
            for (int k = 0; k < 3; ++k) {
                to[6 * i + k] = stepper.problem.z[state_size * i + 3 + k];
                to[6 * i + 3 + k] = stepper.problem.z[state_size * i + 10 + k];
            }
        if (stepper.problem.overlaps) RecoverySpeed<double>::leave(stepper.problem, to, true);
        stepper.cones.start(stepper.problem, to, level, true);
    }

    // r(v) in the places of w, products included, and the derivative there, factored.
    void evaluate(const double *v, double *r, bool factored) {
        Problem<double> &problem = stepper.problem;
        stepper.cones.condense(problem, v);
        linearize_step(problem, v);
        std::copy(problem.residual.begin(), problem.residual.end(), r);
        for (const auto &[impulse, slack] : stepper.cones.pairs) r[slack] = v[impulse] * v[slack];
        for (const auto &[impulse, slack, c] : stepper.cones.discs) store3(r + slack, cone_product(load3(v + impulse), load3(v + slack)));
        if (!factored) return;
        Stepper<double>::regularize(mechanism, problem);
        ldu_factor(mechanism.schedule, problem.values.data());
    }

    // δ with (∂r/∂w at v) δ = −scale·b
    void solve_linear(const double *v, const double *right, double scale, double *delta) {
        Cones<double> &cones = stepper.cones;
        for (int k = 0; k < mechanism.num_unknowns; ++k) delta[k] = scale * right[k];
        cones.aim_at(v, delta);
        cones.solve(stepper.problem, v, delta, true);
        std::copy(cones.direction.begin(), cones.direction.end(), delta);
    }

    double limit(const double *v, const double *delta) {  // largest step in the cones
        std::copy_n(delta, mechanism.num_unknowns, stepper.cones.direction.begin());
        return 1.0 / stepper.cones.inverse_step(v);
    }

    // The unit tangent (dw, dτ) and the metric at w, oriented along the present tangent.
    void tangent(double tau, double &dtau) {
        evaluate(w.data(), residual.data(), true);
        solve_linear(w.data(), rate.data(), -std::exp(tau), slope.data());
        std::fill(metric.begin(), metric.end(), 0.0);
        std::fill_n(metric.begin(), 6 * mechanism.num_bodies, 1.0);
        for (const auto &[impulse, slack] : stepper.cones.pairs) {
            metric[impulse] = 1.0 / w[impulse];
            metric[slack] = 1.0 / w[slack];
        }
        for (const auto &[impulse, slack, c] : stepper.cones.discs)
            for (const int place : {impulse, slack}) std::fill_n(&metric[place], 3, 1.0 / w[place]);
        double size = 1.0, along = dtau;
        for (size_t k = 0; k < w.size(); ++k) {
            const double m = metric[k] * metric[k];
            size += m * slope[k] * slope[k];
            along += m * slope[k] * dw[k];
        }
        dtau = (along < 0 ? -1.0 : 1.0) / std::sqrt(size);
        for (size_t k = 0; k < w.size(); ++k) dw[k] = dtau * slope[k];
    }

    // Follows the path of w, whose products are about `level`, until κ first reaches its goal; w becomes the end of the path.
    bool trace(double level, const Options &options, const Job &job) {
        const double goal = options.kappa;
        double tau = std::log(level), dtau = -1.0, length = 1.0;
        evaluate(w.data(), rate.data(), false);
        for (double &r : rate) r /= level;
        std::fill(dw.begin(), dw.end(), 0.0);
        tangent(tau, dtau);
        for (int step = 0; step < constant::continuation_steps; ++step) {
            int corrections = 0;
            const bool good = correct(tau, dtau, length, corrections, iterations_left(options, job));
            *job.iterations += corrections;
            length = std::min(good ? (corrections <= constant::continuation_easy ? 2 * length : length) : length / 4,
                              constant::continuation_longest);
            if (good) tangent(tau, dtau);
            if (tau <= std::log(goal)) return true;
            if (!(length > constant::continuation_shortest) || iterations_left(options, job) <= 0) return false;
        }
        return false;
    }

    // Makes one predictor step along the tangent and corrections across it, `most` at most. w and τ move only if these converge.
    bool correct(double &tau, double dtau, double length, int &corrections, int64_t most) {
        const size_t n = w.size();
        const double reach = 0.7 * limit(w.data(), dw.data());
        length = std::min(length, reach);
        for (size_t k = 0; k < n; ++k) trial[k] = predicted[k] = w[k] + length * dw[k];
        const double tau_predicted = tau + length * dtau;
        double tau_trial = tau_predicted;
        for (int correction = 0;; ++correction) {
            evaluate(trial.data(), residual.data(), correction < constant::continuation_corrections);
            const double kappa = std::exp(tau_trial);
            double equality = 0.0, products = 0.0;
            bool sound = true;
            for (size_t k = 0; k < n; ++k) {
                residual[k] -= kappa * rate[k];
                sound = sound && std::isfinite(residual[k]);
            }
            for (size_t k = 0; k < n; ++k) {
                double &worst = is_product[k] ? products : equality;
                worst = std::max(worst, std::fabs(residual[k]));
            }
            if (sound && equality < 1e-7 && products < 1e-2 * kappa) {
                w = trial;
                tau = tau_trial;
                return true;
            }
            if (!sound || correction == constant::continuation_corrections || corrections >= most) return false;
            ++corrections;
            solve_linear(trial.data(), residual.data(), 1.0, newton.data());
            solve_linear(trial.data(), rate.data(), -kappa, slope.data());
            double offset = dtau * (tau_trial - tau_predicted), normal = dtau;
            for (size_t k = 0; k < n; ++k) {
                const double m = metric[k] * metric[k] * dw[k];
                offset += m * (trial[k] + newton[k] - predicted[k]);
                normal += m * slope[k];
            }
            const double change = -offset / normal;
            for (size_t k = 0; k < n; ++k) newton[k] += change * slope[k];
            const double fraction = std::min(1.0, 0.9 * limit(trial.data(), newton.data()));
            for (size_t k = 0; k < n; ++k) trial[k] += fraction * newton[k];
            tau_trial += fraction * change;
        }
    }
};

template <class Feed>
bool Recovery::solve(const Job &job, const Options &options, const double *shared, int64_t depth) {
    Feed feed{&job};
    stepper.run(feed, options, shared);
    if (feed.solved) return true;
    if (*job.status == too_fast) return halve(job, options, shared, depth);
    return *job.status == max_iterations && recover(job, options, shared, depth);
}

template <class Feed>
bool Recovery::recover(const Job &job, const Options &options, const double *shared, int64_t depth) {
    const bool may_split = depth < options.max_halvings;
    if (may_split && iterations_left(options, job) > 0 && rescue(job, options, shared, depth)) return true;
    if ((job.rescue && may_split) || !continuation(job, options, shared)) return false;
    *job.status = success;
    return true;
}

extern template bool Recovery::solve(const Job &, const Options &, const double *, int64_t);
extern template bool Recovery::recover(const Job &, const Options &, const double *, int64_t);

}  // namespace torchdojo
