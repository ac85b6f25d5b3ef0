"""The answer of every method of the solver, and the measure of how far a point is from one."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from torchdojo.dynamics import cones
from torchdojo.dynamics.system import System

__all__ = ["Solution", "violations"]


class Solution(NamedTuple):
    """w (N, num_unknowns); status (N,) of `Status` values; iterations (N,), all attempts counted."""

    w: Tensor
    status: Tensor
    iterations: Tensor


def violations(system: System, r: Tensor, kappa: Tensor) -> tuple[Tensor, Tensor]:
    """Largest absolute violation of the equations and of the complementarity rows of a residual r (N, n), each (N,)."""
    rows = torch.cat((system.orthant_index[:, 1], system.second_order_index[:, 1].flatten()))
    gap = r[:, rows] - kappa[:, None] * cones.identity_rows(system, r)[rows]
    mask = torch.ones(system.num_unknowns, dtype=torch.bool, device=r.device)
    mask[rows] = False
    complementarity = gap.abs().amax(-1) if len(rows) else r.new_zeros(len(r))
    return r[:, mask].abs().amax(-1), complementarity
