"""The adjoint of a return, clipped in each environment at each control step.

Of 32 ants over 16 control steps, the median of |dReturn/dz| is 370 and the largest 5e4: a few environments, in which a foot is about to hit
the ground, decide the whole gradient. A bound on the norm of the summed gradient shrinks all environments alike. A bound on the adjoint of
each environment, inside the backward pass, takes out those that explode and leaves the others as they are.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["BROKEN", "CLIPPED", "LENGTH", "RunningBound", "bounded", "clip_adjoint"]


#: columns of what clipping reports: whether a row was longer than the bound, whether it was not finite, and its length before
CLIPPED, BROKEN, LENGTH = range(3)


class _ClipAdjoint(torch.autograd.Function):
    """Identity; backward scales the rows of the adjoint, and reports through the gradient of `tally` what it did."""

    @staticmethod
    def forward(z: Tensor, tally: Tensor, bound: float | Tensor) -> Tensor:
        return z.view_as(z)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, float | Tensor], output: Tensor) -> None:
        ctx.bound = inputs[2]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        return *bounded(grad, ctx.bound), None


def bounded(grad: Tensor, bound: float | Tensor) -> tuple[Tensor, Tensor]:
    """An adjoint (B, n) with rows no longer than `bound`, and zeros for rows that are not finite; and a report (B, 3).

    The columns of the report are `CLIPPED`, `BROKEN` and `LENGTH`; a row that is not finite has length zero.
    """
    norm = grad.norm(dim=-1, keepdim=True)
    finite = norm - norm == 0.0  # like isfinite, in two operations instead of four
    scaled = torch.where(finite, grad * (bound / norm.clamp_min(bound)), 0.0)
    return scaled, torch.cat(((norm > bound).to(grad.dtype), (~finite).to(grad.dtype), torch.where(finite, norm, 0.0)), -1)


def clip_adjoint(z: Tensor, tally: Tensor, bound: float | Tensor) -> Tensor:
    """z unchanged; in backward, its adjoint with rows no longer than `bound`, and rows that are not finite set to zero.

    Args:
        z: (B, n). tally: (B, 3) of zeros that requires grad. Its gradient is the report of `bounded`, summed over all states that were
            given it. So the report comes out of compiled graphs too, where a hook could keep no record.
        bound: largest 2-norm of a row. A tensor () must keep its value until the backward pass.
    """
    clipped: Tensor = _ClipAdjoint.apply(z, tally, bound)
    return clipped


class RunningBound:
    """A bound of adjoints that follows their median, so that it fits every robot, reward and stage of training.

    The bound is `FACTOR` times the geometric running mean of the medians of segments, after AutoClip (Seetharaman et al. 2020), which does
    so with norms of whole gradients. It begins without a bound, and the first segment sets it.

    Attributes:
        value: (), float64, changed in place.
    """

    FACTOR = 3.0
    KEEP = 0.9  # weight of the past in the running mean
    FIRST = 1e30

    def __init__(self) -> None:
        self.value = torch.full((), self.FIRST, dtype=torch.float64)

    def update(self, median: float) -> None:
        """Take in the median length of the adjoints of a segment, before they were clipped; one of zero says nothing."""
        if not 0.0 < median < self.FIRST:
            return
        bound = float(self.value)
        new = self.FACTOR * median
        self.value.fill_(new if bound >= self.FIRST else bound**self.KEEP * new ** (1.0 - self.KEEP))
