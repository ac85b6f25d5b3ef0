"""Gauss-Newton with Levenberg's and Marquardt's damping on windows of recorded samples, and what its Hessian says of the result.

Minimizes F(θ) = ½ Σ ρ(|r|²) over windows and samples, θ the unconstrained vector of a `ParametricMechanism`. With J = ∂r/∂θ and the weights
w = ρ'(|r|²) of iteratively reweighted least squares, H = Σ w JᵀJ and g = Σ w Jᵀr; a trial step solves (H + μ diag H) δ = −g, and its gain
over the prediction of the quadratic model decides about μ (Marquardt 1963; Nielsen 1999; Madsen, Nielsen and Tingleff 2004, alg. 3.16).

H is P × P and is summed over chunks of windows, so J is never held as a whole. This is why the loop is our own: scipy.optimize.least_squares
and torchmin take the whole J (565,000 × 26 for the cube's triplets) and factor it once per trial, pypose and theseus build J themselves from
a cost module in autograd, without a place for Jacobians of a simulator, and none reports the directions that data cannot see.

Directions of θ whose singular value of J is below `rank_tol` of the largest get no step: data say nothing of them, and a fit must not
invent it. `Identifiability` names them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from torchdojo.identification.parameters import ParametricMechanism
from torchdojo.identification.residuals import RobustLoss, WindowResidual, batches

__all__ = ["Fit", "GaussNewtonOptions", "Identifiability", "LeastSquares", "NormalEquations", "gauss_newton", "multi_start"]


class NormalEquations(NamedTuple):
    """At one θ: cost F (), gradient g (P,), Gauss-Newton Hessian H (P, P), scatter Σ g_c g_cᵀ over throws (P, P), weighted Σ w|r|² (),
    count of residuals that took part."""

    cost: Tensor
    gradient: Tensor
    hessian: Tensor
    scatter: Tensor
    squares: Tensor
    count: int


class LeastSquares:
    """The problem: residuals of windows, and a robust loss.

    Args:
        residual: of windows. windows: (N, T + 1, width). robust: default the squared norm.
        groups: (N,) number of the throw of each window: residuals of one throw are not independent. Default: all windows differ.
    """

    def __init__(self, residual: WindowResidual, windows: Tensor, robust: RobustLoss | None = None, groups: Tensor | None = None) -> None:
        self.residual, self.windows, self.robust = residual, windows, robust or RobustLoss()
        self.groups = torch.arange(len(windows)) if groups is None else groups.unique(return_inverse=True)[1]

    @property
    def model(self) -> ParametricMechanism:
        return self.residual.model

    def cost(self, raw: Tensor) -> Tensor:
        """F, ()."""
        with torch.no_grad():
            parts = [self.robust(self.residual(w, raw).square().sum(-1)).sum() for w in batches(self.windows, self.residual.substeps)]
        return 0.5 * torch.stack(parts).sum()

    def normal_equations(self, raw: Tensor) -> NormalEquations:
        """F, g and H at `raw` (P,)."""
        P = len(raw)
        cost, squares = raw.new_zeros(()), raw.new_zeros(())
        hessian, by_group = raw.new_zeros(P, P), raw.new_zeros(int(self.groups.max()) + 1, P)
        count, start = 0, 0
        for windows in batches(self.windows, self.residual.substeps):
            r, J, solved = self.residual.linearize(windows, raw)
            squared = r.square().sum(-1)
            weight = self.robust.weight(squared)
            cost = cost + 0.5 * self.robust(squared).sum()
            squares = squares + (weight * squared).sum()
            weighted = (weight[..., None, None] * J).flatten(1, 2)
            hessian = hessian + weighted.flatten(0, 1).T @ J.flatten(0, 2)
            by_group.index_add_(0, self.groups[start : start + len(windows)], (weighted * r.flatten(1)[..., None]).sum(1))
            start += len(windows)
            count += int(solved.sum()) * self.residual.size
        return NormalEquations(cost, by_group.sum(0), hessian, by_group.T @ by_group, squares, count)


@dataclass(frozen=True, kw_only=True)
class GaussNewtonOptions:
    """max_iterations: linearizations. damping: μ to begin with. step_tol: largest entry of a step, in units of `raw` (relative changes
    where there are bounds), below which the fit has converged; cost_tol: the same for the predicted relative decrease of the cost.
    rank_tol: singular values of J, relative to the largest, below which a direction counts as unseen."""

    max_iterations: int = 30
    damping: float = 1e-3
    step_tol: float = 1e-7
    cost_tol: float = 1e-9
    rank_tol: float = 1e-4

    def __post_init__(self) -> None:
        for name in ("damping", "step_tol", "cost_tol", "rank_tol"):
            if not getattr(self, name) > 0:
                raise ValueError(f"GaussNewtonOptions.{name}: got {getattr(self, name)}; allowed: positive numbers")
        if self.max_iterations < 1:
            raise ValueError(f"GaussNewtonOptions.max_iterations: got {self.max_iterations}; allowed: 1 or more")


class Identifiability(NamedTuple):
    """What the data see of θ, from the singular value decomposition of J at the result.

    singular_values (P,) of J, descending, in residuals per unit of `raw`; directions (P, P): row i is the unit combination of parameters
    that belongs to singular value i; seen (P,): above the tolerance; identifiable: name of each entry -> whether no unseen combination
    takes part in it.
    """

    singular_values: Tensor
    directions: Tensor
    seen: Tensor
    identifiable: dict[str, bool]

    def unseen(self, labels: Sequence[str]) -> list[str]:
        """The combinations of parameters that data do not determine, in words: "0.71 mass + 0.71 inertia"."""
        result = []
        for row in self.directions[~self.seen]:
            parts = [f"{float(x):+.2g} {label}" for x, label in zip(row, labels, strict=True) if abs(float(x)) > 0.05]
            result.append(" ".join(parts).removeprefix("+"))
        return result


class Fit(NamedTuple):
    """Result of `gauss_newton`.

    raw (P,), values in physical units, cost F; covariance (P, P) of `raw` from the Hessian, σ² H⁻¹ with σ² = Σ w|r|²/(residuals − P), and
    covariance_by_throw (P, P), H⁻¹ (Σ g_c gᵀ_c) H⁻¹ over throws c, which holds where residuals of a throw go together or the model is wrong
    (Huber 1967; White 1982). Of identifiable parameters: std and std_by_throw, in physical units, to first order (infinite for others).
    iterations: linearizations; history: cost before each, and at the end; converged, reason; seconds.
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
    begin = time.perf_counter()
    raw = (problem.model.raw if raw is None else raw).detach().clone()
    mu, growth, reason, converged = options.damping, 2.0, f"{options.max_iterations} iterations", False
    system = problem.normal_equations(raw)
    history, iterations = [float(system.cost)], 1
    while True:
        step, predicted = _damped_step(system, mu, options.rank_tol)
        if float(step.abs().max()) <= options.step_tol or predicted <= options.cost_tol * float(system.cost) or not float(system.cost) > 0:
            converged, reason = True, "the step or the predicted decrease is below its tolerance"
            break
        cost = float(problem.cost(raw + step))
        gain = (float(system.cost) - cost) / predicted
        if math.isfinite(cost) and gain > 0:
            if iterations >= options.max_iterations:
                break
            raw = raw + step
            mu, growth = mu * max(1 / 3, 1 - (2 * gain - 1) ** 3), 2.0
            system = problem.normal_equations(raw)
            iterations += 1
            history.append(float(system.cost))
            if callback is not None:
                callback(iterations, history[-1], raw)
        else:
            mu, growth = mu * growth, 2 * growth
            if mu > 1e12:
                converged, reason = True, "no step, however short, decreases the cost"
                break
    return _report(problem, raw, system, options, iterations, history, converged, reason, time.perf_counter() - begin)


def multi_start(problem: LeastSquares, starts: Tensor, options: GaussNewtonOptions | None = None) -> list[Fit]:
    """Fits from each row of `starts` (S, P), best first; starts from which no step can be taken (a cost that is not finite) come last."""
    fits = [gauss_newton(problem, start, options) for start in starts]
    return sorted(fits, key=lambda fit: fit.cost if math.isfinite(fit.cost) else math.inf)


def _damped_step(system: NormalEquations, mu: float, rank_tol: float) -> tuple[Tensor, float]:
    """δ in the directions that the data see, and the decrease of the cost that the quadratic model predicts, −gᵀδ − ½ δᵀHδ."""
    basis = _seen_directions(system.hessian, rank_tol)
    if not basis.shape[1]:
        return torch.zeros_like(system.gradient), 0.0
    hessian, gradient = basis.T @ system.hessian @ basis, basis.T @ system.gradient
    damped = hessian + mu * basis.T @ torch.diag(system.hessian.diagonal()) @ basis
    factor = torch.linalg.cholesky(damped)
    step = -torch.cholesky_solve(gradient[:, None], factor)[:, 0]
    return basis @ step, float(-gradient @ step - 0.5 * step @ hessian @ step)


def _seen_directions(hessian: Tensor, rank_tol: float) -> Tensor:
    """Orthonormal basis (P, K) of the directions with singular values of J above the tolerance."""
    eigenvalues, vectors = torch.linalg.eigh(hessian)
    return vectors[:, eigenvalues > rank_tol**2 * eigenvalues[-1].clamp_min(1e-300)]


def identifiability(hessian: Tensor, labels: Sequence[str], rank_tol: float = 1e-4) -> Identifiability:
    """What a Hessian H = JᵀJ (P, P) says of the parameters `labels`. An entry is identifiable where unseen directions have less than a
    hundredth of it (in squares)."""
    eigenvalues, vectors = torch.linalg.eigh(hessian)
    order = eigenvalues.argsort(descending=True)
    singular, directions = eigenvalues[order].clamp_min(0).sqrt(), vectors[:, order].T
    seen = singular > rank_tol * singular[0].clamp_min(1e-150)
    blind = directions[~seen].square().sum(0)
    return Identifiability(singular, directions, seen, {label: bool(b < 0.01) for label, b in zip(labels, blind, strict=True)})


def _report(
    problem: LeastSquares,
    raw: Tensor,
    system: NormalEquations,
    options: GaussNewtonOptions,
    iterations: int,
    history: list[float],
    converged: bool,
    reason: str,
    seconds: float,
) -> Fit:
    model = problem.model
    seen = identifiability(system.hessian, model.labels, options.rank_tol)
    basis = _seen_directions(system.hessian, options.rank_tol)
    inverse = basis @ torch.linalg.inv(basis.T @ system.hessian @ basis) @ basis.T if basis.shape[1] else torch.zeros_like(system.hessian)
    covariance = inverse * system.squares / max(1, system.count - len(raw))
    by_throw = inverse @ system.scatter @ inverse
    known = torch.tensor(list(seen.identifiable.values()))
    # Values depend on raw entry by entry, so one backward pass gives all derivatives.
    leaf = raw.clone().requires_grad_()
    with torch.enable_grad():
        total = torch.cat([value.reshape(-1) for value in model.values(leaf).values()]).sum()
    slope = torch.autograd.grad(total, leaf)[0].abs()
    stds = []
    for matrix in (covariance, by_throw):
        flat = torch.where(known, matrix.diagonal().clamp_min(0).sqrt() * slope, torch.inf)
        stds.append({name: flat[piece].reshape(model.parameters_by_name[name].value.shape) for name, piece in model.layout.items()})
    with torch.no_grad():
        values = {name: value.clone() for name, value in model.values(raw).items()}
    return Fit(raw, values, history[-1], covariance, by_throw, stds[0], stds[1], seen, iterations, history, converged, reason, seconds)
