"""How far Newton's method may step before the friction of a tendon changes its sign."""

from __future__ import annotations

import torch
from torch import Tensor

from torchdojo.dynamics.residual import StepProblem
from torchdojo.elements.element import Pose
from torchdojo.elements.tendon import Tendon
from torchdojo.state.layout import split_twists

__all__ = ["until_turning"]


def until_turning(problem: StepProblem, w: Tensor, direction: Tensor) -> Tensor:
    """The fraction (N,) of a step `direction` from w, (N, n) each, that ends where the first rate passes zero (`Tendon.turning`)."""
    fraction = torch.ones_like(w[:, 0])
    for group, element in zip(problem.system.groups, problem.elements, strict=True):
        if isinstance(element, Tendon) and element.friction is not None:
            pose, *_ = problem.gather(group, w, problem.body_twists(w))
            path = element.path(*[Pose(x, q) for x, q in zip(pose.x.unbind(-2), pose.q.unbind(-2), strict=True)])
            rates = (
                path.rate([split_twists(twist) for twist in problem.body_twists(point)[:, group.body_index].unbind(-2)])
                for point in (w, direction)
            )
            fraction = torch.minimum(fraction, element.turning(*rates).amin(-1))
    return fraction
