"""Products from which attempts start: smaller for mechanisms of tiny weight.

Impulses and gaps of a start have a product of `START_LEVEL` or another level, in N·s·m. Such a product suits a mechanism whose weight gives
an impulse of `LEAST_WEIGHT` or more in a step. A lighter one is thrown far away by it: dm_control's fruit fly, whose weight gives 9e-5 in
the file's units, finds no solution from there. Its levels are smaller in proportion to the weight.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchdojo.dynamics.residual import StepProblem

__all__ = ["LEAST_WEIGHT", "start_level"]

# [N·s] impulse of the weight in a step, from which on levels are absolute. That of 1 kg is above it in the shortest part of 0.01 s, 1/32.
LEAST_WEIGHT = 3e-3


def start_level(problem: StepProblem, level: float, kappa: float) -> Tensor:
    """The product `level` times min(1, Σ m |g| h / LEAST_WEIGHT), and at least κ, (N,) [N·s·m].

    The sum is over the bodies, and h is the timestep of this problem: a half of a split step has its own. Without weight, the factor is 1.
    """
    weight = problem.mass.sum(-1) * torch.linalg.vector_norm(problem.gravity, dim=-1) * problem.timestep
    scale = torch.where(weight > 0, (weight / LEAST_WEIGHT).clamp_max(1), 1.0)
    return (scale.detach() * level).clamp_min(kappa).expand(len(problem.z))
