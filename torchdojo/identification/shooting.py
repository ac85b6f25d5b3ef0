"""Multiple shooting through impacts: windows that grow, free starts that are also drawn, and the worst windows left out.

With a law of restitution, a trajectory jumps where an impact falls into another time step. The jump is the way of a body in one step: a
centimeter for a thrown cube at 148 Hz. The cost of a fit is then smooth only for a given sequence of impacts, and a descent method stops at
the first wall. Multiple shooting gets past walls in four ways:

- Throws are cut into windows whose starts are unknowns (Bock and Plitt 1984). Short windows have few impacts, and so few sequences to
  choose from. Windows grow as parameters get better, and each begins at the fitted start of a shorter one at the same sample.
- Starts are fitted window by window. They are also drawn from an approximate posterior: a Student distribution about the best start so
  far, with the covariance of Gauss-Newton. A draw on the other side of a wall comes by luck, as in particle filters.
- The worst windows are left out (least trimmed squares, Rousseeuw 1984; with concentration steps, Rousseeuw and Van Driessen 1999). Their
  sequences are still wrong, and a wrong sequence says nothing about the parameters.
- Steps of the parameters are taken in full, not only where the cost decreases, since walls decide about the decrease.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdojo.identification.gauss_newton import Fit, GaussNewtonState, LeastSquares, damped_step, fit_starts, report
from torchdojo.identification.misfit import RobustLoss, WindowResidual
from torchdojo.identification.recordings import WindowDataset
from torchdojo.runs.description import check_whole

__all__ = ["ShootingOptions", "ShootingStage", "multiple_shooting"]

#: Degrees of freedom of the Student distribution of draws. Its tails reach other sequences of impacts, many deviations away.
DRAW_FREEDOM = 2.0
#: Longest draw in deviations. The sample itself refutes a pose farther away.
LONGEST_DRAW = 20.0
#: Deviations of the cost of a window beyond which noise does not explain it.
OUTLYING = 4.0


@dataclass(frozen=True, kw_only=True)
class ShootingStage:
    """One length of windows.

    Args:
        horizon: steps of a window, and distance between windows. trim: part of the windows to leave out, the worst ones. Windows that fit
            as well as noise alone would explain stay. iterations: most steps of the parameters.
    """

    horizon: int
    trim: float = 0.2
    iterations: int = 8

    def __post_init__(self) -> None:
        check_whole(self, ("horizon", "iterations"), label="ShootingStage.")
        if not 0 <= self.trim < 1:
            raise ValueError(f"ShootingStage.trim: got {self.trim}; allowed: from 0 to less than 1")


@dataclass(frozen=True, kw_only=True)
class ShootingOptions:
    """Options of `multiple_shooting`.

    Args:
        draws: number of starts to draw per window, each time.
        refit: iterations of `fit_starts` after a step of the parameters.
        damping: μ.
        max_step: largest entry of a step, in units of `raw`; longer steps are shortened.
        step_tol: a stage ends with a step smaller than this.
        rank_tol: see `GaussNewtonOptions`.
        seed: for the draws.
    """

    draws: int = 8
    refit: int = 3
    damping: float = 1e-4
    max_step: float = 0.3
    step_tol: float = 1e-3
    rank_tol: float = 1e-4
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("damping", "max_step", "step_tol", "rank_tol"):
            if not getattr(self, name) > 0:
                raise ValueError(f"ShootingOptions.{name}: got {getattr(self, name)}; allowed: positive numbers")
        check_whole(self, ("draws", "seed"), least=0, label="ShootingOptions.")
        check_whole(self, ("refit",), label="ShootingOptions.")


def multiple_shooting(
    residual: WindowResidual,
    stages: Sequence[ShootingStage],
    raw: Tensor | None = None,
    *,
    robust: RobustLoss | None = None,
    options: ShootingOptions | None = None,
    callback: Callable[[int, float, Tensor], None] | None = None,
) -> Fit:
    """Fit the parameters of `residual.model` to all of `residual.recordings`, from `raw` (P,), by default the model's own.

    Args:
        stages: usually with ever longer windows. robust: loss of samples; default the squared norm, as whole windows are left out.
        callback: called with the number of the iteration, the mean cost of the kept windows, and `raw` after every step.

    Returns:
        a `Fit` as from `gauss_newton`, with deviations from the windows that the last stage kept. `start` has the starts of all its
        windows, `history` the mean cost of a kept window before each step.

    Raises:
        ValueError: no stages. DataError: windows longer than any trajectory.
    """
    if not stages:
        raise ValueError("multiple_shooting needs at least one stage")
    options, begin = options or ShootingOptions(), time.perf_counter()
    model, recordings = residual.model, residual.recordings
    raw = (model.raw if raw is None else raw).detach().clone()
    generator = torch.Generator().manual_seed(options.seed)
    smoothed = recordings.samples.clone()  # recorded samples, each replaced by a fitted start as soon as there is one
    throws = torch.repeat_interleave(recordings.throw_id, recordings.lengths)
    history: list[float] = []
    for stage in stages:
        windows = WindowDataset(recordings, stage.horizon, stage.horizon)
        problem = LeastSquares(residual, windows.stack(), robust, throws[windows.starts], free_start=smoothed[windows.starts])
        least = max(1, round((1 - stage.trim) * len(windows)))
        start = _search(problem, raw, smoothed[windows.starts], options, generator, rounds=2)
        converged = False
        for iteration in range(stage.iterations):
            kept, cost = _kept(problem, raw, start, least)
            history.append(cost)
            system = _subset(problem, kept).normal_equations(raw, start[kept])
            step, change, _ = damped_step(system, options.damping, options.rank_tol)
            assert change is not None
            factor = min(1.0, options.max_step / max(float(step.abs().max()), 1e-300))
            raw, moved = raw + factor * step, start.clone()
            moved[kept] = residual.correct(start[kept], factor * change)
            start = fit_starts(problem, raw, options.refit, _better(problem, raw, start, moved))
            if iteration % 2 == 0:
                start = _search(problem, raw, start, options, generator, rounds=1)
            if callback is not None:
                callback(len(history), cost, raw)
            converged = factor == 1 and float(step.abs().max()) < options.step_tol
            if converged:
                break
        smoothed[windows.starts] = start
    kept, cost = _kept(problem, raw, start, least)
    history.append(cost)
    inliers = _subset(problem, kept)
    system = inliers.normal_equations(raw, start[kept])
    reason = "the last step is below step_tol" if converged else f"{stages[-1].iterations} iterations of the last stage"
    state = GaussNewtonState(raw, options.damping, tuple(history), start, converged, reason, time.perf_counter() - begin)
    return report(inliers, state, system, options.rank_tol)


def _search(problem: LeastSquares, raw: Tensor, start: Tensor, options: ShootingOptions, generator: torch.Generator, rounds: int) -> Tensor:
    """Starts drawn and fitted by turns."""
    for _ in range(rounds):
        if options.draws:
            start = _draw(problem, raw, start, options.draws, generator)
        start = fit_starts(problem, raw, 2 * options.refit, start)
    return start


def _draw(problem: LeastSquares, raw: Tensor, start: Tensor, draws: int, generator: torch.Generator) -> Tensor:
    """The best of `start` (N, width) and of draws from a Student distribution about it, window by window."""
    system = problem.normal_equations(raw, start)
    covariance = torch.linalg.inv(system.damped_start(1e-6))
    factor = torch.linalg.cholesky(0.5 * (covariance + covariance.mT))
    best = start
    for _ in range(draws):
        normal = torch.randn(*factor.shape[:2], 1, generator=generator, dtype=start.dtype)
        # χ² with two degrees of freedom is exponential.
        squared = -2 * torch.rand(len(start), 1, 1, generator=generator, dtype=start.dtype).clamp_min(1e-300).log()
        stretch = (DRAW_FREEDOM / squared).sqrt().clamp_max(LONGEST_DRAW)
        best = _better(problem, raw, best, problem.residual.correct(start, (factor @ (stretch * normal))[..., 0]))
    return best


def _better(problem: LeastSquares, raw: Tensor, one: Tensor, other: Tensor) -> Tensor:
    """The better one of two sets of starts (N, width), window by window."""
    return torch.where((_costs(problem, raw, other) < _costs(problem, raw, one))[:, None], other, one)


def _kept(problem: LeastSquares, raw: Tensor, start: Tensor, least: int) -> tuple[Tensor, float]:
    """Numbers of the windows that take part, and their mean cost.

    The `least` best windows take part, and all windows as good as the better quarter. A χ² variable of f degrees of freedom has the
    relative deviation √(2/f).
    """
    costs, order = _costs(problem, raw, start).sort()
    freedom = (problem.windows.shape[1] - 1) * problem.residual.size
    explained = costs[len(costs) // 4] * (1 + OUTLYING * (2 / freedom) ** 0.5)
    count = max(least, int((costs <= explained).sum()))
    return order[:count], float(costs[:count].mean())


def _costs(problem: LeastSquares, raw: Tensor, start: Tensor) -> Tensor:
    """Costs of windows (N,), infinite where a step failed."""
    costs, reached = problem.window_costs(raw, start)
    return torch.where(reached < reached.max(), torch.inf, costs)


def _subset(problem: LeastSquares, chosen: Tensor) -> LeastSquares:
    assert problem.start is not None
    return LeastSquares(problem.residual, problem.windows[chosen], problem.robust, problem.groups[chosen], free_start=problem.start[chosen])
