"""The health of a run of SHAC: four numbers for each epoch, and what to change where one of them is off.

    adjoint      dReturn/dz of one environment at one control step, before it is clipped (adjoint.py)
    clipped      share of adjoints that were clipped
    growth       by which factor adjoints grow backwards through a segment, had none been clipped: the geometric mean over environments
                 and control steps of |adjoint(t)| / |clipped adjoint(t + 1)|, to the power of the horizon
    explained    1 − Var(target − value) / Var(target), with the values that the critics gave the states of a segment before they saw it
    saturated    share of actions beyond ±0.99, where tanh passes 2 % of a gradient

`CAUSES` is the table of signs and remedies. The page my_robot_does_not_learn.md explains them, and `torchdojo train --check` uses the same
names.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from torchdojo.learning.adjoint import BROKEN, LENGTH

__all__ = [
    "CAUSES",
    "COLUMNS",
    "Cause",
    "Health",
    "advice",
    "diagnosis",
    "explained_variance",
    "findings",
    "growth",
    "log_growth",
    "saturated_share",
]

#: columns of metrics.csv, in the order of `Health`; "falls" has its own
COLUMNS = ("health_clipped", "health_growth", "health_explained", "health_saturated")

SATURATED = 0.99  # an action beyond is saturated
LEAST = 1e-30  # lengths below count as this


class Health(NamedTuple):
    """Numbers of an epoch, see the head of this file. falls: share of control steps that ended in a fall."""

    clipped: float
    growth: float
    explained: float
    saturated: float
    falls: float

    def line(self) -> str:
        """The numbers in one line."""
        return (
            f"clipped {self.clipped:.0%}, growth {self.growth:.2g}, explained {self.explained:.2f}, saturated {self.saturated:.0%}, "
            f"falls {self.falls:.2%}"
        )


class Cause(NamedTuple):
    """Why a robot does not learn.

    name: as in my_robot_does_not_learn.md. sign: whether the numbers of an epoch show it. advice: what to change, in words.
    """

    name: str
    sign: Callable[[Health], bool]
    advice: str


#: In the order in which they are to be cured: each of them spoils the numbers of those below.
CAUSES: tuple[Cause, ...] = (
    Cause(
        "exploding adjoints",
        lambda health: not health.growth < 1e3,
        "shorten horizon, harden no contact (kappa 1e-4 or more), soften servos, or lengthen the control step; run train --check",
    ),
    Cause("clipped adjoints", lambda health: health.clipped > 0.6, "raise adjoint_clip, or leave it out so that it adapts"),
    Cause(
        "saturated actions",
        lambda health: health.saturated > 0.3,
        "set saturation: 0.2, lower lr or std, or give the actuators a wider reach",
    ),
    Cause(
        "blind critic",
        lambda health: health.explained < 0.3,
        "observe what the reward depends on (height, speed, time, command), or raise critic_epochs; scale rewards by reward_scale",
    ),
    Cause(
        "early falls",
        lambda health: health.falls > 0.05,
        "start from poses that stand, reward what keeps it upright, lower std, or shorten horizon",
    ),
)


def findings(health: Health) -> list[Cause]:
    """The causes whose sign shows."""
    return [cause for cause in CAUSES if cause.sign(health)]


def diagnosis(health: Health) -> str:
    """The name of the first cause that shows, or "healthy"."""
    return next((cause.name for cause in findings(health)), "healthy")


def advice(health: Health) -> str:
    """The first cause that shows and what to change, or "healthy"."""
    return next((f"{cause.name}: {cause.advice}" for cause in findings(health)), "healthy")


def log_growth(reports: Tensor, bound: float | Tensor) -> Tensor:
    """Mean over environments and control steps of log(|adjoint(t)| / |clipped adjoint(t + 1)|); zero for a horizon of one. Returns ().

    Args:
        reports: (H, B, 3) of `bounded`. bound: of the clipping.
    """
    lengths = reports[..., LENGTH].clamp_min(LEAST)
    pairs = (reports[1:, :, BROKEN] + reports[:-1, :, BROKEN] == 0) & (reports[1:, :, LENGTH] > 0) & (reports[:-1, :, LENGTH] > 0)
    ratios = lengths[:-1].log() - torch.minimum(lengths[1:], torch.as_tensor(bound, dtype=lengths.dtype)).log()
    return torch.where(pairs, ratios, 0.0).sum() / pairs.sum().clamp_min(1)


def explained_variance(values: Tensor, targets: Tensor) -> Tensor:
    """1 − Var(targets − values) / Var(targets), of tensors of one shape; zero where all targets are equal. Returns ()."""
    spread = targets.var(correction=0)
    share = 1.0 - (targets - values).var(correction=0) / spread.clamp_min(LEAST)
    return torch.where(spread > LEAST, share, 0.0)


def saturated_share(actions: Tensor) -> Tensor:
    """Share of actions beyond ±0.99. Returns ()."""
    return (actions.abs() > SATURATED).to(torch.get_default_dtype()).mean()


def growth(log: float, horizon: int) -> float:
    """The factor of a whole segment, of the logarithm of that of a control step."""
    return math.exp(min(log * (horizon - 1), 700.0))
