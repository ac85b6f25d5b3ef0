"""Levenberg-Marquardt on many small least-squares problems at once, each with its own damping and its own end.

Problem i minimizes F_i(x_i) = ½ |r_i|². A model of it has the gradient g = Jᵀr and the Hessian H = JᵀJ, and a candidate solves
(H + μ diag H) δ = −g (Marquardt 1963). Every iteration tries several μ in one batch, and several models where the derivative can be
smoothed. The best candidate decides the next μ: a fifth of its own, or ten times the old one where no candidate is better. Inverse
problems of planning use this loop, and identification for the states at the start of recorded windows (`fit_starts`).
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

__all__ = ["Descent", "Outcome", "Problems", "QuadraticModel", "Trial", "levenberg_marquardt", "possible_decrease"]

#: Damping above which no candidate is expected to decrease the cost. Its steps are too short to matter.
LARGEST_DAMPING = 1e10


class QuadraticModel(NamedTuple):
    """Models of B problems from G derivatives, the sharpest last: gradient (B, G, P), hessian (B, G, P, P)."""

    gradient: Tensor
    hessian: Tensor


class Trial(NamedTuple):
    """Values of M candidates of B problems.

    cost: (B, M), infinite or NaN where the candidate is no solution at all. error: (B, M), what `tolerance` bounds.
    data: what the problem wants to keep with an accepted candidate, each (B, M, ...).
    """

    cost: Tensor
    error: Tensor
    data: tuple[Tensor, ...]


class Problems(Protocol):
    """A batch of problems. `rows` (B,) says which of them a call is about; `data` is that of the iterate, each (B, ...)."""

    def evaluate(self, x: Tensor, data: tuple[Tensor, ...] | None, rows: Tensor) -> Trial:
        """Values at candidates x (B, M, ...). The first call has no data."""

    def linearize(self, x: Tensor, data: tuple[Tensor, ...], rows: Tensor) -> QuadraticModel:
        """Models at x (B, ...)."""

    def retract(self, x: Tensor, step: Tensor, rows: Tensor) -> Tensor:
        """Candidates (B, M, ...) from steps (B, M, P)."""


class Outcome(enum.IntEnum):
    """How the descent of a problem ended."""

    LIMIT = 0  # of iterations
    CONVERGED = 1  # the error is within its tolerance
    STATIONARY = 2  # the sharpest model promises no decrease
    STUCK = 3  # no candidate decreases the cost, at any damping
    INVALID = 4  # the first iterate has no finite cost


class Descent(NamedTuple):
    """The best iterates x (N, ...), their cost and error (N,) and data, the number of linearizations and the `Outcome` (N,)."""

    x: Tensor
    cost: Tensor
    error: Tensor
    data: tuple[Tensor, ...]
    iterations: Tensor
    outcome: Tensor


def levenberg_marquardt(
    problems: Problems,
    x: Tensor,
    *,
    iterations: int,
    tolerance: float = -1.0,
    decrease_tol: float = 0.0,
    factors: Sequence[float] = (1.0,),
    damping: float = 1e-3,
    rank_tol: float = 1e-8,
    floor: float = 1e-9,
    patience: int | None = None,
) -> Descent:
    """Descend from x (N, ...). Problems that end leave the batch, so each has the same iterates as alone.

    Args:
        iterations: largest number of linearizations. tolerance: a problem has converged where its error is not larger.
        decrease_tol: a problem is stationary where its sharpest model promises less than this part of the cost; 0: never.
        factors: of μ, tried at once. damping: first μ.
        rank_tol: directions with singular values below this part of the largest promise nothing.
        floor: least damping of an unknown, relative to that of the unknown that the residual sees best.
        patience: a problem is stuck where so many iterations together do not halve its cost; None: never.
    """
    every = torch.arange(len(x))
    first = problems.evaluate(x[:, None], None, every)
    cost, error, data = first.cost[:, 0].clone(), first.error[:, 0].clone(), tuple(entry[:, 0].clone() for entry in first.data)
    x, mu = x.clone(), cost.new_full((len(x),), damping)
    tried = cost.new_tensor(factors)
    mark, slow = cost.clone(), torch.zeros_like(every)
    count, outcome = torch.zeros_like(every), torch.full_like(every, int(Outcome.LIMIT))
    outcome[~cost.isfinite()] = int(Outcome.INVALID)
    outcome[cost.isfinite() & (error <= tolerance)] = int(Outcome.CONVERGED)
    for _ in range(iterations):
        rows = (outcome == int(Outcome.LIMIT)).nonzero()[:, 0]
        if not len(rows):
            break
        before, kept = cost[rows], tuple(entry[rows] for entry in data)
        model = problems.linearize(x[rows], kept, rows)
        count[rows] += 1
        step = damped_steps(model, mu[rows, None] * tried, floor)
        candidates = problems.retract(x[rows], step, rows)
        trial = problems.evaluate(candidates, kept, rows)
        costs = torch.where(trial.cost.isfinite(), trial.cost, torch.inf)
        best, each = costs.argmin(-1), torch.arange(len(rows))
        better = costs[each, best] < before
        chosen, picked = rows[better], (each[better], best[better])
        x[chosen], cost[chosen], error[chosen] = candidates[picked], costs[picked], trial.error[picked]
        for entry, value in zip(data, trial.data, strict=True):
            entry[chosen] = value[picked]
        mu[rows] *= torch.where(better, tried.repeat(model.gradient.shape[1])[best] / 5, 10.0)
        halved = cost[rows] < 0.5 * mark[rows]
        mark[rows] = torch.where(halved, cost[rows], mark[rows])
        slow[rows] = torch.where(halved, 0, slow[rows] + 1)
        if patience is not None:
            outcome[rows[slow[rows] >= patience]] = int(Outcome.STUCK)
        outcome[rows[~better & (mu[rows] > LARGEST_DAMPING)]] = int(Outcome.STUCK)
        if decrease_tol > 0:
            promise = possible_decrease(model.hessian[:, -1], model.gradient[:, -1], rank_tol)
            outcome[rows[promise <= decrease_tol * before]] = int(Outcome.STATIONARY)
        outcome[chosen[error[chosen] <= tolerance]] = int(Outcome.CONVERGED)
    return Descent(x, cost, error, data, count, outcome)


def damped_steps(model: QuadraticModel, mu: Tensor, floor: float) -> Tensor:
    """−(H + μ (diag H + floor max diag H))⁻¹ g for each model and each μ (B, M): steps (B, G M, P), the M of the first model first.

    Singular systems give NaN.
    """
    diagonal = model.hessian.diagonal(dim1=-2, dim2=-1)
    scale = torch.diag_embed(diagonal + floor * diagonal.amax(-1, keepdim=True))
    damped = model.hessian[:, :, None] + mu[:, None, :, None, None] * scale[:, :, None]
    gradient = model.gradient[:, :, None, :, None].expand(*damped.shape[:-1], 1)
    step, info = torch.linalg.solve_ex(damped, -gradient)
    return torch.where((info == 0)[..., None, None], step, torch.nan).flatten(1, 2)[..., 0]


def possible_decrease(hessian: Tensor, gradient: Tensor, rank_tol: float) -> Tensor:
    """Decrease that the quadratic model predicts for its minimum in the directions that the residual sees, ½ gᵀ H⁺ g, (...,).

    A direction is seen where its singular value of J is above `rank_tol` times the largest. Models that are not finite promise NaN.
    """
    finite = hessian.isfinite().all(-1).all(-1)
    eigenvalues, vectors = torch.linalg.eigh(torch.where(finite[..., None, None], hessian, 0.0))
    seen = eigenvalues > rank_tol**2 * eigenvalues[..., -1:].clamp_min(1e-300)
    pull = (vectors.mT @ gradient[..., None])[..., 0]
    promise = 0.5 * torch.where(seen, pull.square() / eigenvalues, 0.0).sum(-1)
    return torch.where(finite, promise, torch.nan)
