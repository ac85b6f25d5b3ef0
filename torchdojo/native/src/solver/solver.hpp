// The method of solver/path_newton.py and, where it fails, of solver/interior_point.py, for the lanes of one scalar. The files have the
// reasons and the constants.
//
// Lanes work independently of each other: each has its own step of its own environment, at its own iteration. A lane that has converged
// stores its result and takes the next job while the others go on, so that no lane waits for the slowest. Lanes wait only for one
// evaluation at the end of steps with equally many iterations in all lanes: it then needs no derivatives, and the lanes stay in step. One
// `tick` evaluates the trial points of all lanes and, where they are accepted, computes the next directions; `place` sets the next trial
// points.
#pragma once

#include <algorithm>

#include "solver/feed.hpp"
#include "solver/cones.hpp"
#include "solver/equations.hpp"
#include "solver/foresight.hpp"
#include "solver/job.hpp"
#include "solver/rounding.hpp"
#include "solver/speed.hpp"

namespace torchdojo {

template <class T>
class Stepper {
public:
    explicit Stepper(const MechanismTable &m)
        : mechanism(m), problem(m), cones(m), tree(m), foresight(m), rounding(m), speed(m, problem), w(m.num_unknowns),
          trial(m.num_unknowns), direction(m.num_unknowns), newton(m.num_unknowns), unused(m.num_unknowns) {}

    // Runs jobs until the feed has no more. feed.next(lane, job) -> bool; feed.finished(lane, job, solved).
    // `shared` has the parameters of all environments, or is null if each job has its own.
    template <class Feed>
    void run(Feed &feed, const Options &options, const double *shared) {
        bind(options, shared);
        std::fill_n(phase, lanes<T>, finished);
        expect(feed, phase, finished);
        for (int lane = 0; lane < lanes<T>; ++lane) take(feed, lane);
        place(feed);
        while (any_active()) {
            tick(feed);
            place(feed);
        }
    }

    void bind(const Options &options, const double *shared) {
        this->options = options;
        problem.depenetration_speed = options.depenetration_speed;
        problem.kappa = options.kappa;
        problem.measured = Mask<T>{};
        on_tree = tree.usable && options.kappa >= constant::tree_kappa;
        shortest_factor = std::ldexp(1.0, -int(options.max_halvings));
        shared_parameters = shared;
        problem.far.call = nullptr;
        std::fill_n(problem.samples, lanes<T>, shared);
        if (shared)
            for (int k = 0; k < mechanism.num_parameters; ++k) problem.parameters[k] = broadcast<T>(shared[k]);
    }

    const MechanismTable &mechanism;
    Problem<T> problem;
    Cones<T> cones;
    Tree<T> tree;

    // In kinematic loops, multipliers of held directions carry a little compliance, so that rows can be solved that depend on each other
    // (kkt.py).
    static void regularize(const MechanismTable &m, Problem<T> &problem) {
        if (!m.has_loops) return;
        const T value = constant::regularization * problem.timestep();
        for (const MultiplierTable &multiplier : m.multipliers) problem.values[multiplier.diagonal] += value;
    }

    Status load(int lane, const Job &job);  // load.hpp

private:
    enum Phase : uint8_t { idle, finished, evaluate, searching };
    // Attempts: Newton on the path from a warm start at κ, then from a larger κ; the interior-point method from a warm or a cold start.
    enum Attempt : uint8_t { warm, lowered, warm_interior, cold };
    static bool on_path(Attempt attempt) { return attempt <= lowered; }

    Options options;
    bool on_tree = false;  // whether the tree solves for directions
    Foresight<T> foresight;
    Rounding<T> rounding;
    SpeedLooks<T> speed;
    const double *shared_parameters = nullptr;
    bool finite_part = true;  // whether the numbers that all environments of a part share are finite
    double shortest_factor = 1.0;  // factor of the timestep after all halvings
    std::vector<T> w, trial, direction;
    std::vector<T> newton, unused;  // the last trials before their projection; for starts, which need none, a place to write
    Job jobs[lanes<T>];
    Phase phase[lanes<T>];
    Attempt attempt[lanes<T>];
    bool stuck[lanes<T>], loaded = false;
    bool polished[lanes<T>];  // whether rounding explains the residual of the point before: Newton's step then leaves only rounding
    bool may_split[lanes<T>];  // whether shorter steps may replace the step
    double fastest[lanes<T>];  // largest sine |a| of a body before the step (solver/speed.py)
    bool resting[lanes<T>]{};  // whether the last step takes no iteration
    int iteration[lanes<T>], halvings[lanes<T>], waits = 0;
    T path_kappa{}, alpha{}, target{}, allowed{}, reference{}, level{};
    Mask<T> accepted{};  // lanes whose trial becomes the next point w
    Mask<T> restart{}, lifted{}, forecast{}, from_rest{};  // from_rest: lanes that begin a cold start

    bool any_active() const {
        for (int lane = 0; lane < lanes<T>; ++lane)
            if (phase[lane] > finished) return true;
        return false;
    }

    // The next job with valid input for a lane; jobs with invalid input are finished at once.
    template <class Feed>
    void take(Feed &feed, int lane) {
        Job &job = jobs[lane];
        while (feed.next(lane, job)) {
            *job.iterations = 0;
            *job.substeps = 1;
            loaded = true;
            *job.status = load(lane, job);
            set_mask(problem.measured, lane, is_measured(feed, lane, 0));
            if (*job.status == success) return begin(lane);
            if (*job.status != too_fast) keep_state(mechanism, job);
            feed.finished(lane, job, false);
        }
        phase[lane] = idle;
    }

    void begin(int lane) {
        const double *start = jobs[lane].warm;
        phase[lane] = evaluate;
        iteration[lane] = 0;
        polished[lane] = false;
        stuck[lane] = false;
        if (!start || !interior(start)) return begin_lowered(lane, false);
        attempt[lane] = options.interior ? warm_interior : warm;
        put_lane(trial.data(), lane, start, mechanism.num_unknowns);
        lift(lane, options.kappa);
    }

    // Brings the start in the trial onto the path at κ = `value`.
    void lift(int lane, double value) {
        set(path_kappa, lane, std::max(options.kappa, value));
        set_mask(lifted, lane, on_path(attempt[lane]) && mechanism.num_cones);
        set_mask(forecast, lane, attempt[lane] == warm);
    }

    // Starts from a larger κ: the warm start brought to its path, or a cold start.
    __attribute__((noinline)) void begin_lowered(int lane, bool from_warm) {
        if (options.interior) return begin_cold(lane);
        phase[lane] = evaluate;
        attempt[lane] = lowered;
        iteration[lane] = 0;
        polished[lane] = false;
        const double path_level = jobs[lane].rescue ? constant::rescue_level : constant::path_level;
        const double first = fading_level(problem, lane, path_level, options.kappa);
        if (from_warm) {
            put_lane(trial.data(), lane, jobs[lane].warm, mechanism.num_unknowns);
            lift(lane, first);
        } else {
            from_zero(lane, first);
            set(path_kappa, lane, first);
        }
    }

    int64_t limit(int lane, double residual) const {
        const Attempt attempt = this->attempt[lane];
        if (attempt == cold && !options.interior && !(residual < constant::near_residual))
            return std::min<int64_t>(constant::cold_iterations, options.max_iterations);
        if (!on_path(attempt)) return options.max_iterations;
        const int64_t lowered_iterations = jobs[lane].rescue ? constant::rescue_iterations : constant::path_iterations;
        const int64_t most = attempt == lowered                   ? lowered_iterations
                             : residual < constant::near_residual ? constant::near_iterations
                                                                  : options.warm_iterations;
        return std::min(most, options.max_iterations);
    }

    bool spent(int lane) const { return iterations_left(options, jobs[lane]) <= 0; }

    // Bounds of the line search on the path from a larger κ: the number of halvings, and the violation of an equation that ends it before.
    int path_halvings(int lane) const {
        return iteration[lane] <= constant::patient_iterations ? constant::path_halvings : constant::patient_halvings;
    }
    double path_limit(int lane) const {
        const double before = get(allowed, lane);
        if (iteration[lane] > constant::path_free_iterations) return std::max(before, options.residual_tol);
        return constant::path_growth * std::max(before, constant::path_residual);
    }

    __attribute__((noinline, cold)) void begin_cold(int lane) {
        phase[lane] = evaluate;
        attempt[lane] = cold;
        iteration[lane] = 0;
        polished[lane] = false;
        stuck[lane] = false;
        from_zero(lane, start_level(problem, lane, constant::start_level, options.kappa));
    }

    // Puts velocities of the step before, and products `first`, into the trial.
    void from_zero(int lane, double first) {
        for (int k = 6 * mechanism.num_bodies; k < mechanism.num_unknowns; ++k) set(trial[k], lane, 0.0);
        for (int i = 0; i < mechanism.num_bodies; ++i)
            for (int k = 0; k < 6; ++k) set(trial[6 * i + k], lane, get(problem.z[state_size * i + (k < 3 ? 3 : 7) + k], lane));
        set_mask(restart, lane, true);
        set_mask(from_rest, lane, true);
        set(level, lane, first);
    }

    bool interior(const double *start) const { return all_finite(start, mechanism.num_unknowns) && cones.interior(start); }

    // Sets the trials of lanes that go on along their directions and of lanes that begin, and brings trials of attempts on the path onto
    // it.
    template <class Feed>
    void place(Feed &feed) {
        Mask<T> onto{}, moved{}, known{};  // known: lanes whose last trial is a point of this attempt, too
        for (int lane = 0; lane < lanes<T>; ++lane) {
            const bool goes_on = phase[lane] == searching;
            set_mask(moved, lane, goes_on);
            if (goes_on && on_path(attempt[lane]) && mechanism.num_cones) set_mask(onto, lane, true);
            set_mask(known, lane, goes_on && iteration[lane] > 1 && !halvings[lane]);
            set_mask(cones.early, lane, iteration[lane] <= constant::squeezing_iterations);
        }
        const T step = alpha;  // members would be read anew after every store
        const Mask<T> kept = accepted;
        for (int k = 0; k < mechanism.num_unknowns; ++k) {
            const T from = select(kept, trial[k], w[k]);
            w[k] = from;
            trial[k] = select(moved, from + step * direction[k], trial[k]);
        }
        if (any(onto)) cones.project(problem, path_kappa, onto, trial.data(), newton.data(), known);
        if (on_tree && !mechanism.num_pairs && !rounding.some && !options.interior) finish_surely(feed);
        if (loaded) prepare();
        if (problem.overlaps && any(from_rest)) RecoverySpeed<T>::leave(problem, trial.data(), from_rest);
        if (any(restart)) cones.start(problem, trial.data(), level, restart);
        Mask<T> flying{};
        if (any(forecast)) flying = cones.forecast(problem, trial.data(), path_kappa, forecast);
        if (any(lifted)) {
            // Starts from a solution are on the path already. A forecast has the products, but not the heights of discs.
            const Mask<T> off = cones.distance(trial.data(), path_kappa) > broadcast<T>(constant::lifted);
            lifted = select_mask(off, lifted, select_mask(flying, lifted, Mask<T>{}));
            if (any(lifted)) cones.project(problem, path_kappa, lifted, trial.data(), unused.data(), Mask<T>{});
        }
        restart = lifted = forecast = from_rest = Mask<T>{};
    }

    void prepare() {
        prepare_step(problem, !on_tree);
        problem.measured = negate(Mask<T>{});  // until the next load
        rounding.prepare(problem, options.residual_tol);
        if (on_tree) {
            tree.prepare(problem);
            foresight.prepare(problem);
        }
        loaded = false;
    }

    // Finishes lanes whose trial surely solves the equations.
    template <class Feed>
    void finish_surely(Feed &feed) {
        Mask<T> sure{};
        for (int lane = 0; lane < lanes<T>; ++lane)
            set_mask(sure, lane,
                     phase[lane] == searching && get_mask(accepted, lane) && on_path(attempt[lane]) && get(alpha, lane) == 1.0 &&
                         get(path_kappa, lane) == options.kappa && iteration[lane] >= options.min_iterations &&
                         get(allowed, lane) < constant::sure_residual);
        if (!any(sure)) return;
        const T bound = foresight.bound(problem, cones, direction.data(), newton.data(), trial.data()) + constant::sure_rounding * allowed;
        sure = select_mask(bound <= broadcast<T>(constant::sure * options.residual_tol), sure, Mask<T>{});
        if (!any(sure)) return;
        T poses{};
        for (int i = 0; i < mechanism.num_bodies; ++i) {
            problem.place_body(i, trial.data());
            poses += problem.bodies[i].increment.w;
        }
        for (int lane = 0; lane < lanes<T>; ++lane)
            if (get_mask(sure, lane) && std::isfinite(get(poses, lane))) finish(feed, lane);
        take_next(feed);
    }

    // The next jobs of lanes that have finished. They wait for lanes that are about to: together they need no derivatives and are prepared
    // at once.
    template <class Feed>
    void take_next(Feed &feed) {
        if (any_active() && (all_nearly_there() || lanes_wait(feed, phase, finished, waits))) return;
        expect(feed, phase, finished);
        for (int lane = 0; lane < lanes<T>; ++lane)
            if (phase[lane] == finished) take(feed, lane);
    }

    template <class Feed>
    void tick(Feed &feed) {
        Mask<T> inside{};  // lanes of the interior-point method
        for (int lane = 0; lane < lanes<T>; ++lane) set_mask(inside, lane, phase[lane] > finished && !on_path(attempt[lane]));
        Residuals residuals = evaluate_trials(inside);
        const T off_target = any(inside) ? cones.violation(trial.data(), target, residuals.sum) : T{};
        const Mask<T> sound = finite(residuals.sum);

        Mask<T> advance{};
        accepted = Mask<T>{};
        for (int lane = 0; lane < lanes<T>; ++lane) {
            if (phase[lane] <= finished) continue;
            const double e = get(residuals.equality, lane);
            const bool ok = get_mask(sound, lane);
            if (phase[lane] == searching && !accept(lane, ok, e, get(off_target, lane))) continue;
            set_mask(accepted, lane, true);
            phase[lane] = searching;
            if (converged(residuals, lane, options.residual_tol)) {
                finish(feed, lane);
            } else if (!ok || iteration[lane] >= limit(lane, e) || spent(lane)) {
                fail(feed, lane);
            } else {
                ++iteration[lane];
                polished[lane] = e <= options.residual_tol;
                ++*jobs[lane].iterations;
                set_mask(advance, lane, true);
            }
        }
        if (any(restart)) raise_levels();
        if (any(advance)) {
            advance_lanes(advance, residuals.equality);
            split_fast(feed, advance);
        }
        take_next(feed);
    }

    // Residuals at the trial points: of the equations with the factors of rounding and without, and of the products; and the sum of all, which
    // is not finite if one is not.
    struct Residuals {
        T equality, plain, off_path, sum;
    };

    // Evaluates the residuals at the trial points and, where some lane needs them, the derivatives.
    TD_INLINE Residuals evaluate_trials(const Mask<T> &inside) {
        // Derivatives at points that turn out to be solutions would be useless. Without derivatives, residuals may round differently. No
        // lane may depend on whether others want derivatives, so only residuals clearly below the tolerance count as converged here.
        if (all_nearly_there()) {
            if (on_tree) {
                tree.place(problem, trial.data());
                tree.template linearize<false>(problem, trial.data());
            } else {
                linearize_step<false, false>(problem, trial.data());
            }
            const Residuals residuals = measure();
            bool all = true;
            for (int lane = 0; lane < lanes<T>; ++lane)
                all &= phase[lane] <= finished || converged(residuals, lane, constant::clearly * options.residual_tol);
            if (all) return residuals;
        }
        cones.condense(problem, trial.data(), inside);
        if (on_tree) {
            tree.place(problem, trial.data());
            tree.template linearize<true>(problem, trial.data());
        } else {
            linearize_step(problem, trial.data());
        }
        return measure();
    }

    Residuals measure() const {
        Residuals r;
        r.sum = T{};
        rounding.measure(problem, r.equality, r.plain, r.sum);
        r.off_path = cones.violation(trial.data(), broadcast<T>(options.kappa), r.sum);
        return r;
    }

    TD_INLINE bool converged(const Residuals &r, int lane, double tolerance) const {
        return get_mask(finite(r.sum), lane) && get(r.equality, lane) <= tolerance &&
               (!rounding.some || polished[lane] || get(r.plain, lane) <= tolerance) &&
               get(r.off_path, lane) <= options.path_tol * options.kappa && iteration[lane] >= options.min_iterations;
    }

    // The line search of a lane, whose trial has the residual e: whether the lane goes on from the trial. Otherwise its step is halved, or
    // the lane has jammed and starts anew.
    TD_INLINE bool accept(int lane, bool sound, double e, double off_target) {
        const double step = get(alpha, lane);
        // Near the path, the next Newton step removes errors of the order of the products themselves.
        const bool better =
            sound && (on_path(attempt[lane]) ? attempt[lane] == warm || halvings[lane] >= path_halvings(lane) || e <= path_limit(lane)
                                             : e <= get(allowed, lane) || off_target <= get(reference, lane));
        if (!better && ++halvings[lane] < constant::line_search_halvings) {
            set(alpha, lane, 0.5 * step);
            return false;
        }
        set_mask(accepted, lane, true);
        stuck[lane] = step < constant::stuck_step;
        const bool jammed = !on_path(attempt[lane]) && step < constant::jammed_step && mechanism.num_contacts;
        if (jammed) {
            phase[lane] = evaluate;
            set_mask(restart, lane, true);
        }
        return !jammed;
    }

    // Raises the products from which jammed lanes start anew.
    void raise_levels() {
        const T mean = constant::raise * cones.mean_product(trial.data(), nullptr);
        for (int lane = 0; lane < lanes<T>; ++lane)
            if (get_mask(restart, lane) && iteration[lane] > 0)
                set(level, lane, std::min(std::max(get(mean, lane), options.kappa), constant::max_level));
    }

    // Splits the steps whose new directions lead beyond what a step represents.
    template <class Feed>
    TD_INLINE void split_fast(Feed &feed, const Mask<T> &advance) {
        for (int lane = 0; lane < lanes<T>; ++lane)
            if (get_mask(advance, lane) && may_split[lane] && on_path(attempt[lane]) &&
                speed.leads_beyond(lane, trial.data(), direction.data(), iteration[lane], fastest[lane]))
                split(feed, lane);
    }

    // Whether all unfinished lanes probably converge with the next evaluation: from a residual that Newton's step squares away, or at the
    // start, as in the step before.
    bool all_nearly_there() const {
        for (int lane = 0; lane < lanes<T>; ++lane) {
            const double e = get(allowed, lane);
            if (phase[lane] == searching && (!(e * e < options.residual_tol) || halvings[lane])) return false;
            if (phase[lane] == evaluate && !resting[lane]) return false;
        }
        return true;
    }

    void load_part(const PartCall &part);  // load.hpp
    static double far_reach(const double *values, int64_t count);

    // Members of directions.hpp.
    T unloaded(const T &equality);
    void advance_lanes(const Mask<T> &mask, const T &equality);
    void store_direction(const Mask<T> &mask);

    template <class Feed>
    void finish(Feed &feed, int lane) {
        const Job &job = jobs[lane];
        *job.status = success;
        resting[lane] = iteration[lane] == 0;
        keep_solution(problem, trial.data(), lane, job);
        feed.finished(lane, job, true);
        phase[lane] = finished;
    }

    template <class Feed>
    __attribute__((noinline, cold)) void fail(Feed &feed, int lane) {
        if (may_split[lane] && on_path(attempt[lane]) && iteration[lane] &&
            speed.failed_beyond(lane, w.data(), direction.data(), attempt[lane] == lowered))
            return split(feed, lane);
        if (attempt[lane] == warm && !options.warm_only && !spent(lane)) return begin_lowered(lane, true);
        if (attempt[lane] == lowered && !spent(lane) && !jobs[lane].rescue && !options.path_only) return begin_cold(lane);
        *jobs[lane].status = max_iterations;
        keep_state(mechanism, jobs[lane]);
        feed.finished(lane, jobs[lane], false);
        phase[lane] = finished;
    }

    // Gives up a step that is too fast for its timestep, without further attempts.
    template <class Feed>
    __attribute__((noinline, cold)) void split(Feed &feed, int lane) {
        *jobs[lane].status = too_fast;
        feed.finished(lane, jobs[lane], false);
        phase[lane] = finished;
    }
};

}  // namespace torchdojo

#include "solver/directions.hpp"
#include "solver/load.hpp"
