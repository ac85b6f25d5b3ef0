"""Gauss-Newton with Levenberg's and Marquardt's damping on windows of recorded samples, and the uncertainty of the result.

The loop minimizes F(θ) = ½ Σ ρ(|r|²) over windows and samples, with the misfit r and the unconstrained vector θ of a
`ParametricMechanism`. With J = ∂r/∂θ and the weights w = ρ'(|r|²) of iteratively reweighted least squares, H = Σ w JᵀJ and g = Σ w Jᵀr. A
trial step solves (H + μ diag H) δ = −g, and the ratio of actual to predicted decrease sets μ. The method follows Marquardt 1963, Nielsen
1999, and Madsen, Nielsen and Tingleff 2004, alg. 3.16.

H is P × P and is summed over chunks of windows, so J is never held as a whole. The loops of other libraries need all of J, which has
283,000 × 25 entries for the cube's triplets: `scipy.optimize.least_squares` and torchmin factor J. In pypose and theseus, autograd builds J
from a cost module, which takes no Jacobians of a simulator. None reports the directions that data cannot see.

A direction of θ whose singular value of J is below `rank_tol` times the largest gets no step. Data say nothing about such a direction, and
a fit must not invent a value. `Identifiability` names these directions.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from torchdojo.identification.misfit import RobustLoss, WindowResidual, batch_size
from torchdojo.identification.parameters import ParametricMechanism
from torchdojo.runs.description import check_whole
from torchdojo.solver.least_squares import Problems, QuadraticModel, Trial, levenberg_marquardt, possible_decrease

__all__ = [
    "Fit",
    "GaussNewtonOptions",
    "GaussNewtonState",
    "Identifiability",
    "LeastSquares",
    "NormalEquations",
    "descend",
    "fit_starts",
    "gauss_newton",
    "multi_start",
    "report",
]


#: Least damping of a parameter, relative to the damping of the parameter that the data see best.
DAMPING_FLOOR = 1e-4


class NormalEquations(NamedTuple):
    """The quadratic model at one θ.

    cost, gradient, hessian: F (), g (P,) and H (P, P).
    start_gradient, start_hessian, mixed: by changes of the first samples, where these are free, (N, D), (N, D, D), (N, D, P).
    by_throw: gradients of each throw (C, P).
    squares: Σ w|r|² ().
    entries: number of entries of the misfit minus the number of changes.
    reached: number of samples before any failed step.
    """

    cost: Tensor
    gradient: Tensor
    hessian: Tensor
    start_gradient: Tensor | None
    start_hessian: Tensor | None
    mixed: Tensor | None
    by_throw: Tensor
    squares: Tensor
    entries: int
    reached: int

    def reduced(self, mu: float = 0.0) -> tuple[Tensor, Tensor]:
        """Hessian (P, P) and gradient (P,) with changes of first samples eliminated (Schur complement), these damped by μ."""
        if self.mixed is None:
            return self.hessian, self.gradient
        solved = torch.linalg.solve(self.damped_start(mu), torch.cat((self.mixed, self.start_gradient[..., None]), dim=-1))  # type: ignore[index]
        products = torch.einsum("ndp,ndq->pq", self.mixed, solved)
        return self.hessian - products[:, :-1], self.gradient - products[:, -1]

    def damped_start(self, mu: float) -> Tensor:
        """Hessian of changes of first samples plus μ times its diagonal, (N, D, D). Entries that no misfit depends on stay in place."""
        assert self.start_hessian is not None
        diagonal = self.start_hessian.diagonal(dim1=-2, dim2=-1)
        floor = 1e-9 * diagonal.amax(-1, keepdim=True)
        return self.start_hessian + torch.diag_embed(mu * diagonal + floor)


class LeastSquares:
    """The problem: the misfit of windows, and a robust loss.

    Args:
        residual: the misfit. windows: (N, T + 1, width). robust: default the squared norm.
        groups: (N,) number of the throw of each window: misfits of one throw are not independent. Default: all windows differ.
        free_start: whether the state at the start of a window is an unknown, too, in the place of the recorded first sample. Recorded
            velocities are differences of noisy poses; their errors would bias the parameters. A tensor: samples (N, width) to begin with,
            such as `Fit.start` of shorter windows.
    """

    def __init__(
        self,
        residual: WindowResidual,
        windows: Tensor,
        robust: RobustLoss | None = None,
        groups: Tensor | None = None,
        *,
        free_start: bool | Tensor = False,
    ) -> None:
        self.residual, self.windows, self.robust = residual, windows, robust or RobustLoss()
        self.groups = torch.arange(len(windows)) if groups is None else groups.unique(return_inverse=True)[1]
        self.start = free_start.clone() if isinstance(free_start, Tensor) else windows[:, 0].clone() if free_start else None

    @property
    def model(self) -> ParametricMechanism:
        return self.residual.model

    def _pieces(self, start: Tensor | None) -> Iterator[tuple[slice, Tensor, Tensor | None]]:
        size = batch_size(self.windows, self.residual.substeps)
        for first in range(0, len(self.windows), size):
            piece = slice(first, first + size)
            yield piece, self.windows[piece], None if start is None else start[piece]

    def cost(self, raw: Tensor, start: Tensor | None = None) -> tuple[Tensor, int]:
        """F, (), and the number of samples reached. Samples behind a failed step add nothing, which must not count as a gain."""
        costs, reached = self.window_costs(raw, start)
        return costs.sum(), int(reached.sum())

    def window_costs(self, raw: Tensor, start: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Contribution of each window to F, (N,), and the number of its samples that were reached, (N,)."""
        costs, reached = [], []
        with torch.no_grad():
            for _, windows, first in self._pieces(start):
                misfit, solved = self.residual.evaluate(windows, raw, first)
                costs.append(0.5 * self.robust(misfit.square().sum(-1)).sum(-1))
                reached.append(solved.sum(-1))
        return torch.cat(costs), torch.cat(reached)

    def normal_equations(self, raw: Tensor, start: Tensor | None = None) -> NormalEquations:
        """F, g and H at `raw` (P,)."""
        P, N, D = len(raw), len(self.windows), self.residual.start_size
        cost, squares = raw.new_zeros(()), raw.new_zeros(())
        hessian, by_throw, count, reached = raw.new_zeros(P, P), raw.new_zeros(int(self.groups.max()) + 1, P), 0, 0
        gradient = raw.new_zeros(P)
        blocks = [] if start is None else [raw.new_zeros(N, D), raw.new_zeros(N, D, D), raw.new_zeros(N, D, P)]
        for piece, windows, first in self._pieces(start):
            r, J, by_start, solved = self.residual.linearize(windows, raw, first)
            squared = r.square().sum(-1)
            weight = self.robust.weight(squared)
            cost = cost + 0.5 * self.robust(squared).sum()
            squares = squares + (weight * squared).sum()
            reached += int(solved.sum())
            count += int(solved.sum()) * self.residual.size
            J, weighted, r = J.flatten(1, 2), (weight[..., None, None] * J).flatten(1, 2), r.flatten(1)[..., None]
            hessian = hessian + weighted.flatten(0, 1).T @ J.flatten(0, 1)
            each = (weighted * r).sum(1)
            gradient = gradient + each.sum(0)
            if by_start is not None:
                free = (weight[..., None, None] * by_start).flatten(1, 2).mT
                values = ((free @ r)[..., 0], free @ by_start.flatten(1, 2), free @ J)
                for block, value in zip(blocks, values, strict=True):
                    block[piece] = value
                count -= D * len(windows)
            by_throw.index_add_(0, self.groups[piece], each)
        return NormalEquations(
            cost=cost,
            gradient=gradient,
            hessian=hessian,
            start_gradient=blocks[0] if blocks else None,
            start_hessian=blocks[1] if blocks else None,
            mixed=blocks[2] if blocks else None,
            by_throw=by_throw,
            squares=squares,
            entries=count,
            reached=reached,
        )


@dataclass(frozen=True, kw_only=True)
class GaussNewtonOptions:
    """Options of `gauss_newton`.

    Args:
        max_iterations: number of linearizations. damping: first μ.
        max_step: largest entry of a step, in units of `raw` (for a bounded parameter, a factor e).
        cost_tol: the fit has converged where the quadratic model promises less than this relative decrease of the cost.
        refit: iterations of `fit_starts` with which free starts follow every trial step. Impacts that move to another time step then do not
            stand in its way.
        rank_tol: a direction counts as unseen where its singular value of J is below this part of the largest.
    """

    max_iterations: int = 30
    damping: float = 1e-3
    max_step: float = 1.0
    cost_tol: float = 1e-9
    refit: int = 0
    rank_tol: float = 1e-4

    def __post_init__(self) -> None:
        for name in ("damping", "max_step", "cost_tol", "rank_tol"):
            if not getattr(self, name) > 0:
                raise ValueError(f"GaussNewtonOptions.{name}: got {getattr(self, name)}; allowed: positive numbers")
        check_whole(self, ("max_iterations",), label="GaussNewtonOptions.")
        check_whole(self, ("refit",), least=0, label="GaussNewtonOptions.")


class Identifiability(NamedTuple):
    """The directions of θ that the data see, from the singular value decomposition of J at the result.

    singular_values: of J, descending, in units of the misfit per unit of `raw`, (P,).
    directions: row i is the unit combination of parameters that belongs to singular value i, (P, P).
    seen: whether a singular value is above the tolerance, (P,).
    identifiable: name of each entry -> whether the entry is zero in all unseen combinations.
    """

    singular_values: Tensor
    directions: Tensor
    seen: Tensor
    identifiable: dict[str, bool]

    def unseen(self, labels: Sequence[str]) -> list[str]:
        """The combinations of parameters that data do not determine, in words: "0.71 mass +0.71 inertia"."""
        result = []
        for row in self.directions[~self.seen]:
            parts = [f"{float(x):+.2g} {label}" for x, label in zip(row, labels, strict=True) if abs(float(x)) > 0.05]
            result.append(" ".join(parts).removeprefix("+"))
        return result


class Fit(NamedTuple):
    """Result of `gauss_newton`.

    raw: unconstrained vector (P,).
    values: parameters in physical units.
    cost: F.
    covariance: of `raw` from the Hessian, σ² H⁻¹ with σ² = Σ w|r|²/(entries of the misfit − P), (P, P).
    covariance_by_throw: H⁻¹ (Σ g_c gᵀ_c) H⁻¹ over throws c, (P, P). It also holds for correlated misfits within a throw and for wrong
    models (Huber 1967; White 1982).
    std, std_by_throw: deviations in physical units, to first order; infinite for parameters that are not identifiable.
    iterations: number of linearizations.
    history: the cost before each linearization, and at the end.
    converged, reason: why the fit ended.
    seconds: duration.
    start: last values of free first samples, (N, width).
    """

    raw: Tensor
    values: dict[str, Tensor]
    cost: float
    covariance: Tensor
    covariance_by_throw: Tensor
    std: dict[str, Tensor]
    std_by_throw: dict[str, Tensor]
    identifiability: Identifiability
    iterations: int
    history: list[float]
    converged: bool
    reason: str
    seconds: float
    start: Tensor | None


class GaussNewtonState(NamedTuple):
    """The state of a descent, on which its continuation depends, bit for bit.

    raw (P,). damping: μ. history: cost at each linearization, the last one at `raw`. start: free first samples (N, width). converged,
    reason: why the descent ends here; "" where it goes on. seconds: spent so far.
    """

    raw: Tensor
    damping: float
    history: tuple[float, ...] = ()
    start: Tensor | None = None
    converged: bool = False
    reason: str = ""
    seconds: float = 0.0


def descend(
    problem: LeastSquares, options: GaussNewtonOptions, state: GaussNewtonState | None = None
) -> Iterator[tuple[GaussNewtonState, NormalEquations]]:
    """Minimize the cost of `problem`: yields the first state and the state after every accepted step, each with its linearization.

    The last state has a `reason`. Where no step decreases the cost, the last state comes once more, with that reason.

    Args:
        state: a state of this function, to go on from; default: the model's own parameters.
    """
    begin = time.perf_counter()
    raw, mu, history, start, *_, before = state or GaussNewtonState(
        problem.model.raw.detach().clone(), options.damping, start=problem.start
    )
    system = problem.normal_equations(raw, start)
    history = history or (float(system.cost),)
    while True:
        converged = _possible_decrease(system, options.rank_tol) <= options.cost_tol * history[-1]
        reason = f"{options.max_iterations} iterations" if len(history) >= options.max_iterations else ""
        if converged:
            reason = "the quadratic model promises a relative decrease below cost_tol"
        state = GaussNewtonState(raw, mu, history, start, converged, reason, before + time.perf_counter() - begin)
        yield state, system
        if reason:
            return
        growth = 2.0
        while True:
            step, change, predicted = damped_step(system, mu, options.rank_tol)
            if float(step.abs().max()) > options.max_step:
                mu, growth = mu * growth, 2 * growth
                continue
            moved = None if start is None or change is None else problem.residual.correct(start, change)
            if moved is not None and options.refit:
                moved = fit_starts(problem, raw + step, options.refit, moved)
            trial, reached = problem.cost(raw + step, moved)
            gain = (history[-1] - float(trial)) / predicted
            if math.isfinite(gain) and gain > 0 and reached >= system.reached:
                break
            mu, growth = mu * growth, 2 * growth
            if mu > 1e12:
                yield state._replace(converged=True, reason="no step, however short, decreases the cost"), system
                return
        raw, start, mu = raw + step, moved, mu * max(1 / 3, 1 - (2 * gain - 1) ** 3)
        system = problem.normal_equations(raw, start)
        history = (*history, float(system.cost))


def gauss_newton(
    problem: LeastSquares,
    raw: Tensor | None = None,
    options: GaussNewtonOptions | None = None,
    callback: Callable[[int, float, Tensor], None] | None = None,
) -> Fit:
    """Minimize the cost of `problem` from `raw` (P,), by default the model's own, which is left as it is.

    Args:
        callback: called with the number of the iteration, the cost and `raw` after every accepted step.
    """
    options = options or GaussNewtonOptions()
    descent = descend(
        problem, options, None if raw is None else GaussNewtonState(raw.detach().clone(), options.damping, start=problem.start)
    )
    state, system = next(descent)
    for after, system in descent:  # noqa: B007 (the last one is used)
        if callback is not None and len(after.history) > len(state.history):
            callback(len(after.history), after.history[-1], after.raw)
        state = after
    return report(problem, state, system, options.rank_tol)


def fit_starts(problem: LeastSquares, raw: Tensor | None = None, iterations: int = 10, start: Tensor | None = None) -> Tensor:
    """Free first samples (N, width) that fit each window best with fixed parameters: damped Gauss-Newton for every window by itself.

    These samples are a good beginning for `gauss_newton` where recorded velocities are noisy. Windows that are mostly flight then agree
    with the data for any parameters, and cannot drive the parameters away.

    Raises:
        ValueError: a problem without free starts.
    """
    begin = problem.start if start is None else start
    if begin is None:
        raise ValueError("fit_starts: the problem has no free starts; make it with free_start=True")
    raw = (problem.model.raw if raw is None else raw).detach()
    fitted = []
    for _, windows, first in problem._pieces(begin):
        assert first is not None
        starts = _Starts(problem, windows, raw)
        fitted.append(levenberg_marquardt(starts, first, iterations=iterations).x)
    return torch.cat(fitted)


class _Starts(Problems):
    """The misfit of each window (N, T + 1, width) by its first sample alone, for fixed parameters. data: number of samples reached (N,)."""

    def __init__(self, problem: LeastSquares, windows: Tensor, raw: Tensor) -> None:
        self.residual, self.robust, self.windows, self.raw = problem.residual, problem.robust, windows, raw

    def evaluate(self, x: Tensor, data: tuple[Tensor, ...] | None, rows: Tensor) -> Trial:
        with torch.no_grad():
            misfit, solved = self.residual.evaluate(self.windows[rows], self.raw, x[:, 0])
        cost, reached = 0.5 * self.robust(misfit.square().sum(-1)).sum(-1)[:, None], solved.sum(-1)[:, None]
        # Samples behind a failed step add nothing, which must not count as a gain.
        if data is not None:
            cost = torch.where(reached >= data[0][:, None], cost, torch.inf)
        return Trial(cost, cost, (reached,))

    def linearize(self, x: Tensor, data: tuple[Tensor, ...], rows: Tensor) -> QuadraticModel:
        r, _, by_start, _ = self.residual.linearize(self.windows[rows], self.raw, x)
        assert by_start is not None
        weight = self.robust.weight(r.square().sum(-1))
        weighted = (weight[..., None, None] * by_start).flatten(1, 2).mT
        return QuadraticModel((weighted @ r.flatten(1)[..., None]).mT, (weighted @ by_start.flatten(1, 2))[:, None])

    def retract(self, x: Tensor, step: Tensor, rows: Tensor) -> Tensor:
        return self.residual.correct(x, step[:, 0])[:, None]


def multi_start(problem: LeastSquares, starts: Tensor, options: GaussNewtonOptions | None = None) -> list[Fit]:
    """Fits from each row of `starts` (S, P), best first. Starts with a cost that is not finite allow no step and come last."""
    fits = [gauss_newton(problem, start, options) for start in starts]
    return sorted(fits, key=lambda fit: fit.cost if math.isfinite(fit.cost) else math.inf)


def damped_step(system: NormalEquations, mu: float, rank_tol: float) -> tuple[Tensor, Tensor | None, float]:
    """Step δ of the parameters in the directions that the data see, change of the starts, and predicted decrease of the cost.

    The quadratic model predicts −gᵀδ − ½ δᵀHδ.
    """
    basis = _seen_directions(system.reduced()[0], rank_tol)
    hessian, gradient = system.reduced(mu)
    step = torch.zeros_like(gradient)
    if basis.shape[1]:
        diagonal = system.hessian.diagonal()
        # The floor keeps parameters that data hardly see from long steps, which Marquardt's scaling alone would allow.
        damped = basis.T @ (hessian + mu * torch.diag(diagonal.clamp_min(DAMPING_FLOOR * float(diagonal.max())))) @ basis
        step = basis @ torch.linalg.solve(damped, -basis.T @ gradient)
    predicted = -system.gradient @ step - 0.5 * step @ system.hessian @ step
    if system.mixed is None or system.start_gradient is None or system.start_hessian is None:
        return step, None, float(predicted)
    forced = system.start_gradient + system.mixed @ step
    change = torch.linalg.solve(system.damped_start(mu), -forced[..., None])[..., 0]
    quadratic = (change[..., None, :] @ system.start_hessian @ change[..., None])[..., 0, 0]
    return step, change, float(predicted - (forced * change).sum() - 0.5 * quadratic.sum())


def _possible_decrease(system: NormalEquations, rank_tol: float) -> float:
    """Decrease of the cost that the quadratic model predicts for its minimum in the directions that the data see: ½ gᵀ H⁻¹ g."""
    (hessian, gradient), eliminated = system.reduced(), 0.0
    if system.start_gradient is not None:
        solved = torch.linalg.solve(system.damped_start(0.0), system.start_gradient[..., None])[..., 0]
        eliminated = 0.5 * float((system.start_gradient * solved).sum())
    return eliminated + float(possible_decrease(hessian, gradient, rank_tol))


def _seen_directions(hessian: Tensor, rank_tol: float) -> Tensor:
    """Orthonormal basis (P, K) of the directions with singular values of J above the tolerance."""
    eigenvalues, vectors = torch.linalg.eigh(hessian)
    return vectors[:, eigenvalues > rank_tol**2 * eigenvalues[-1:].clamp_min(1e-300)]


def identifiability(hessian: Tensor, labels: Sequence[str], rank_tol: float = 1e-4) -> Identifiability:
    """Identifiability of the parameters `labels` from a Hessian H = JᵀJ (P, P).

    An entry is identifiable where unseen directions have less than a hundredth of it, in squares.
    """
    eigenvalues, vectors = torch.linalg.eigh(hessian)
    order = eigenvalues.argsort(descending=True)
    singular, directions = eigenvalues[order].clamp_min(0).sqrt(), vectors[:, order].T
    seen = singular > rank_tol * singular[:1].clamp_min(1e-150)
    blind = directions[~seen].square().sum(0)
    return Identifiability(singular, directions, seen, {label: bool(b < 0.01) for label, b in zip(labels, blind, strict=True)})


def report(problem: LeastSquares, state: GaussNewtonState, system: NormalEquations, rank_tol: float = 1e-4) -> Fit:
    """The result at a state, with deviations from its normal equations."""
    raw, model, history = state.raw, problem.model, list(state.history)
    hessian = system.reduced()[0]
    seen = identifiability(hessian, model.labels, rank_tol)
    basis = _seen_directions(hessian, rank_tol)
    inverse = basis @ torch.linalg.inv(basis.T @ hessian @ basis) @ basis.T if basis.shape[1] else torch.zeros_like(hessian)
    covariance = inverse * system.squares / max(1, system.entries - len(raw))
    scatter = system.by_throw.T @ system.by_throw
    by_throw = inverse @ scatter @ inverse
    identifiable = torch.tensor(list(seen.identifiable.values()), dtype=torch.bool)
    # Values depend on raw entry by entry, so one backward pass gives all derivatives.
    leaf = raw.clone().requires_grad_()
    with torch.enable_grad():
        total = torch.stack([0 * leaf.sum(), *(value.sum() for value in model.values(leaf).values())]).sum()
    slope = torch.autograd.grad(total, leaf)[0].abs()
    stds = []
    for matrix in (covariance, by_throw):
        flat = torch.where(identifiable, matrix.diagonal().clamp_min(0).sqrt() * slope, torch.inf)
        stds.append({name: flat[piece].reshape(model.parameters_by_name[name].value.shape) for name, piece in model.layout.items()})
    with torch.no_grad():
        values = {name: value.clone() for name, value in model.values(raw).items()}
    cost, end = float(system.cost), (state.converged, state.reason, state.seconds, state.start)
    return Fit(raw, values, cost, covariance, by_throw, stds[0], stds[1], seen, len(history), history, *end)
