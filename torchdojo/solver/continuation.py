"""Pseudo-arclength continuation along the infeasible central path: the solver's last resort.

Any interior start w₀ whose products are about κ₀ lies on a path of its own, along which every row of the residual shrinks in proportion,

    r(w) = (κ/κ₀) r(w₀),

and which leads to the solution as κ comes down. Contact with friction is not a monotone problem, and such a path can fold: the branch turns
back to larger κ before it turns down again. Quadrupeds dropped in random poses have such folds, and no other method converges there.
Newton's method at decreasing κ cannot pass a fold. It can with κ as one more unknown and the distance along the path as the parameter
(Keller 1977; Allgower and Georg 2003, chapter 6). Lengths are measured relative to each cone variable, and in log κ.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from torchdojo.dynamics import cones
from torchdojo.dynamics.residual import StepProblem
from torchdojo.solver.kkt import KKT

__all__ = ["trace_central_path"]

MAX_STEPS = 100
CORRECTIONS = 6
EASY = 3  # corrections after which the next step may be longer
LONGEST, SHORTEST = 100.0, 1e-4


class PathPoint(NamedTuple):
    """A point of the path r(w) = κ·rate, with τ = log κ, the unit tangent (dw, dτ) at the point, and the weights of the metric."""

    w: Tensor
    tau: Tensor
    rate: Tensor
    dw: Tensor
    dtau: Tensor
    metric: Tensor


def trace_central_path(
    problem: StepProblem, start: Tensor, level: float | Tensor, goal: float, left: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Follow the path of `start` (N, n), whose products are about `level` (N,), until κ first reaches `goal`.

    An environment makes at most `left` (N,) iterations.

    Returns:
        The end points (N, n), just past `goal`; whether the path reached the goal (N,); Newton iterations (N,).
    """
    result, reached = start.clone(), torch.zeros(len(start), dtype=torch.bool, device=start.device)
    iterations = torch.zeros(len(start), dtype=torch.int64, device=start.device)
    index = torch.arange(len(start), device=start.device)
    left = torch.full_like(iterations, torch.iinfo(torch.int64).max) if left is None else left
    level = torch.as_tensor(level, dtype=start.dtype, device=start.device).expand(len(start))
    tau, down = start.new_tensor([math.log(product) for product in level.tolist()]), torch.full_like(level, -1.0)
    point = _tangent(
        problem, PathPoint(start, tau, problem.residual(start) / level[:, None], torch.zeros_like(start), down, torch.zeros_like(start))
    )
    length = torch.ones_like(tau)
    for _ in range(MAX_STEPS):
        moved, good, steps = _advance(problem, point, length, (left - iterations)[index])
        iterations[index] += steps
        point = PathPoint(*(torch.where(good.reshape(-1, *(1,) * (new.ndim - 1)), new, old) for new, old in zip(moved, point, strict=True)))
        length = torch.where(good, torch.where(steps <= EASY, 2 * length, length), length / 4).clamp_max(LONGEST)
        arrived = point.tau <= math.log(goal)
        result[index[arrived]], reached[index[arrived]] = point.w[arrived], True
        going = ~arrived & (length > SHORTEST) & (iterations < left)[index]
        if not bool(going.all()):
            index, length, point = index[going], length[going], PathPoint(*(part[going] for part in point))
            if not len(index):
                break
            problem = problem.select(going.nonzero().squeeze(-1))
    return result, reached, iterations


def _metric(problem: StepProblem, w: Tensor) -> Tensor:
    """Weights of a displacement of w: relative for cone variables, absolute for velocities, none for joint multipliers."""
    system = problem.system
    weights = torch.zeros_like(w)
    weights[:, : 6 * system.num_bodies] = 1
    pairs, triples = system.orthant_index.flatten(), system.second_order_index.flatten(0, 1)
    weights[:, pairs] = 1 / w[:, pairs]
    weights[:, triples.flatten()] = (1 / w[:, triples[:, 0]]).repeat_interleave(3, dim=1)
    return weights


def _tangent(problem: StepProblem, point: PathPoint) -> PathPoint:
    """The point with its tangent and metric computed; the sign of the tangent follows the tangent that the point carries."""
    kappa = point.tau.exp()
    slope = KKT(problem, point.w).solve(kappa[:, None] * point.rate)
    metric = _metric(problem, point.w)
    size = torch.sqrt(1 + ((metric * slope) ** 2).sum(-1))
    along = (metric * metric * slope * point.dw).sum(-1) + point.dtau
    sign = torch.where(along < 0, -1.0, 1.0) / size
    return point._replace(dw=sign[:, None] * slope, dtau=sign, metric=metric)


def _advance(problem: StepProblem, point: PathPoint, length: Tensor, most: Tensor) -> tuple[PathPoint, Tensor, Tensor]:
    """Make one predictor step along the tangent and at most `most` (N,) corrections across it.

    Returns:
        The point, whether it converged, and the number of corrections.
    """
    system = problem.system
    rows = cones.product_rows(system, point.w)
    weights = point.metric**2
    length = torch.minimum(length, 0.7 * cones.max_step(system, point.w, point.dw))
    predicted, tau_predicted = point.w + length[:, None] * point.dw, point.tau + length * point.dtau
    w, tau = predicted, tau_predicted
    steps = torch.zeros(len(tau), dtype=torch.int64, device=tau.device)
    for correction in range(CORRECTIONS + 1):
        kappa = tau.exp()
        r = problem.residual(w) - kappa[:, None] * point.rate
        equality, products = (r * (1 - rows)).abs().amax(-1), (r * rows).abs().amax(-1)
        good = (equality < 1e-7) & (products < 1e-2 * kappa)
        over = good | ~torch.isfinite(equality + products) | (steps >= most)
        if correction == CORRECTIONS or bool(over.all()):
            break
        steps = torch.where(over, steps, steps + 1)
        kkt = KKT(problem, w)
        newton, slope = kkt.solve(torch.stack((-r, kappa[:, None] * point.rate), dim=-1)).unbind(-1)
        normal = weights * point.dw
        offset = (normal * (w + newton - predicted)).sum(-1) + point.dtau * (tau - tau_predicted)
        dtau = -offset / ((normal * slope).sum(-1) + point.dtau)
        dw = newton + dtau[:, None] * slope
        fraction = (0.9 * cones.max_step(system, w, dw)).clamp_max(1)
        step = torch.where(over, torch.zeros_like(fraction), fraction)
        w, tau = w + step[:, None] * dw, tau + step * dtau
    w = torch.where(good[:, None], w, point.w)
    return _tangent(problem, point._replace(w=w, tau=torch.where(good, tau, point.tau))), good, steps
