// Members of `Stepper` that compute Newton's directions for all lanes (solver/path_newton.py, solver/interior_point.py).
#pragma once

#include "solver/solver.hpp"

namespace torchdojo {

// The violation of the equations; in lanes that begin a cold start it is without impulses of tendons (path_newton.py, `_unloaded`).
template <class T>
__attribute__((noinline)) T Stepper<T>::unloaded(const T &equality) {
    Mask<T> begins{};
    for (int lane = 0; lane < lanes<T>; ++lane)
        set_mask(begins, lane, attempt[lane] == lowered && iteration[lane] == 1 && !jobs[lane].warm);
    if (!any(begins)) return equality;
    unused = problem.residual;
    for (int i = 0; i < mechanism.num_tendons; ++i) {
        const T lambda = tendon_impulse(problem, i, trial.data());
        each_pull(problem, mechanism.tendons[i], [&](int body, const Pull<T> &pull) {
            add3(&problem.residual[6 * body], lambda * pull.force);
            add3(&problem.residual[6 * body + 3], lambda * pull.torque);
        });
    }
    T without{};
    for (const int32_t row : mechanism.equations) without = max(without, abs(problem.residual[row]));
    for (int k = 0; k < 6 * mechanism.num_bodies; ++k) without = max(without, abs(problem.residual[k]));
    problem.residual.swap(unused);
    return select(begins, without, equality);
}

// Predictor and corrector in the lanes of `mask`, whose point is w = trial, just linearized.
template <class T>
inline void Stepper<T>::advance_lanes(const Mask<T> &mask, const T &equality) {
    const T kappa = broadcast<T>(options.kappa), one = broadcast<T>(1.0);
    const T *point = trial.data();
    regularize(mechanism, problem);
    bool factored = false;
    auto solve = [&](const T *residual) {
        if (on_tree) cones.solve(problem, tree, point, residual, factored);
        else cones.solve(problem, point, residual, factored);
        factored = true;
    };
    Mask<T> inside{};  // lanes of the interior-point method
    for (int lane = 0; lane < lanes<T>; ++lane)
        set_mask(inside, lane, get_mask(mask, lane) && !on_path(attempt[lane]) && mechanism.num_cones);
    T goal = kappa, inverse{}, mean{}, weight{};
    if (any(inside)) {
        cones.aim(point, T{}, nullptr);
        solve(problem.residual.data());
        const T step = one / max(cones.inverse_step(point), one);
        mean = cones.mean_product(point, nullptr);
        const T ratio = min(max(cones.mean_product(point, &step) / mean, T{}), one);
        const T centered = ratio * ratio * ratio * mean;
        goal = select(inside, max(centered, kappa), kappa);
        // Newton on the κ-problem, without the second-order term, makes the end point exact.
        weight = select(inside, select(centered > kappa, one, T{}), T{});
    }
    const T near = mechanism.num_tendons ? unloaded(equality) : equality;
    for (int lane = 0; lane < lanes<T>; ++lane)
        if (get_mask(mask, lane) && on_path(attempt[lane])) {
            const double previous = get(path_kappa, lane);
            if (get(near, lane) < constant::path_residual) set(path_kappa, lane, std::max(options.kappa, constant::path_shrink * previous));
            set(goal, lane, get(path_kappa, lane));
        }
    cones.aim(point, goal, any(inside) ? &weight : nullptr);
    solve(problem.residual.data());
    store_direction(mask);
    if (any(inside)) inverse = select(inside, cones.inverse_step(point), T{});
    Mask<T> wide = inverse > broadcast<T>(1.0 / constant::short_step);
    for (int lane = 0; lane < lanes<T>; ++lane) set_mask(wide, lane, get_mask(inside, lane) && (get_mask(wide, lane) || stuck[lane]));
    if (any(wide)) {
        // Some pair is near the boundary and far from the others: center, or the iteration would jam there. If the step is short
        // although all products are alike, they are too small for the equations still violated: back up along the path.
        T product = max(mean, kappa);
        const Mask<T> alike = cones.spread(point, mean) < 0.1 * mean;
        product = select(alike, min(constant::raise * product, broadcast<T>(constant::max_level)), product);
        cones.aim(point, product, nullptr);
        solve(nullptr);
        store_direction(wide);
        inverse = select(wide, cones.inverse_step(point), inverse);
        goal = select(wide, product, goal);
    }
    T unused{};
    target = select(mask, goal, target);
    if (any(inside)) reference = select(inside, cones.violation(point, goal, unused), reference);
    allowed = select(mask, max(equality, select(inside, max(mean, broadcast<T>(options.residual_tol)), T{})), allowed);
    // A direction that is not a number gives a trial that is not a number, which the line search handles.
    const T inner = constant::step_to_boundary / max(inverse, broadcast<T>(constant::step_to_boundary));
    const T step = min(until_turning(problem, point, direction.data()), inner);
    alpha = select(mask, step, alpha);
    for (int lane = 0; lane < lanes<T>; ++lane) halvings[lane] = get_mask(mask, lane) ? 0 : halvings[lane];
}

template <class T>
inline void Stepper<T>::store_direction(const Mask<T> &mask) {
    bool all = !any(cones.scaled);  // whether no lane needs an earlier direction
    for (int lane = 0; lane < lanes<T>; ++lane) all &= phase[lane] <= finished || get_mask(mask, lane);
    if (all) return direction.swap(cones.direction);
    for (int k = 0; k < mechanism.num_unknowns; ++k) direction[k] = select(mask, cones.direction[k], direction[k]);
}

}  // namespace torchdojo
