"""Products from which attempts start: smaller for mechanisms of tiny weight.

Impulses and gaps of a start have a product of `START_LEVEL` or another level, in N·s·m. Such a product suits a mechanism whose weight gives
an impulse of `LEAST_WEIGHT` or more in a step. A lighter one is thrown far away by it: dm_control's fruit fly, whose weight gives 9e-5 in
the file's units, finds no solution from there. Its levels are smaller in proportion to the weight.

Impulses of near contacts fade with the gap. Products of 1e-2 hold bodies centimetres apart, where no near term acts. So attempts on the
path start from the product m d²/h of gaps d that the step can close. Solves in which nothing fades yet start from it, too: their solutions
are starts of those in which it does. With the total mass in place of the mean, 9 of 150 steps of dominoes were taken in halves; with the
mean, 3; and with it in both kinds of solves, 1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchdojo.dynamics.residual import StepProblem
from torchdojo.geometry.near_terms import REACH

__all__ = ["LEAST_WEIGHT", "fading_level", "start_level"]

# [N·s] impulse of the weight in a step, from which on levels are absolute. That of 1 kg is above it in the shortest part of 0.01 s, 1/32.
LEAST_WEIGHT = 3e-3


def start_level(problem: StepProblem, level: float, kappa: float) -> Tensor:
    """The product `level` times min(1, Σ m |g| h / LEAST_WEIGHT), and at least κ, (N,) [N·s·m].

    The sum is over the bodies, and h is the timestep of this problem: a half of a split step has its own. Without weight, the factor is 1.
    """
    weight = problem.mass.sum(-1) * torch.linalg.vector_norm(problem.gravity, dim=-1) * problem.timestep
    scale = torch.where(weight > 0, (weight / LEAST_WEIGHT).clamp_max(1), 1.0)
    return (scale.detach() * level).clamp_min(kappa).expand(len(problem.z))


def fading_level(problem: StepProblem, level: Tensor, kappa: float) -> Tensor:
    """The products `level` (N,), at most m (R/2 + h |v|)²/h and at least κ where impulses of some element fade, (N,) [N·s·m].

    m is the mean mass of the bodies, |v| the speed of the fastest one before the step, and R/2 the gap from which on impulses fade.
    """
    fades = [element.fades for element in problem.elements]
    near = [fade.any(-1) for fade in fades if fade is not None]
    if not near or not len(problem.z):
        return level
    speed = torch.linalg.vector_norm(problem.state.twist.v, dim=-1).amax(-1)
    gap = 0.5 * REACH + problem.timestep * speed
    inertial = (problem.mass.mean(-1) * gap * gap / problem.timestep).detach().clamp_min(kappa)
    some = torch.stack([fade.expand(len(problem.z)) for fade in near]).any(0)
    return torch.where(some, torch.minimum(level, inertial), level)
