"""The law of linear feedback around a nominal trajectory, of `Mechanism.rollout_feedback`: as it is given, and checked.

The kernel has it inside the rollout (native/feedback.py). Other backends ask `Law.at` before each period.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchdojo.native.feedback import Feedback, rows_of
from torchdojo.state import minimal
from torchdojo.state.layout import TANGENT_SIZE
from torchdojo.structure import Structure

__all__ = ["Given", "Law", "law_of_feedback"]


class Given(NamedTuple):
    """The law of `Mechanism.rollout_feedback` as it is given."""

    nominal: Tensor | Sequence[Tensor] | None
    gain: Tensor | None
    feedforward: Tensor | None
    solution: Tensor | None
    scale: float | Tensor
    bounds: Sequence[Any] | None


class Law(NamedTuple):
    """u = clip(ū + α k + K (x ⊖ x̄)), checked. The tensors have their own batch dimensions.

    minimal: whether x are minimal coordinates and rates. nominal: (..., P or P + 1, 13 nb or 2n), or None without a gain.
    inputs: (..., P, m). feedforward: (..., P, m). gain: (..., P, m, 12 nb or 2n). solution: (..., P, num_unknowns), where the
    iterations of the steps start. scale: (...,). lower, upper: (P, m). error: (states, nominal ones of a period) -> x ⊖ x̄.
    """

    minimal: bool
    nominal: Tensor | None
    inputs: Tensor
    feedforward: Tensor | None
    gain: Tensor | None
    solution: Tensor | None
    scale: Tensor
    lower: Tensor
    upper: Tensor
    error: Callable[[Tensor, Tensor], Tensor]

    def at(self, t: int, z: Tensor) -> Tensor:
        """u of period t at the states z, (..., m)."""
        u = self.inputs[..., t, :]
        if self.feedforward is not None:
            u = u + self.scale[..., None] * self.feedforward[..., t, :]
        if self.gain is not None and self.nominal is not None:
            u = u + (self.gain[..., t, :, :] @ self.error(z, self.nominal[..., t, :])[..., None]).squeeze(-1)
        u = torch.maximum(torch.minimum(u, self.upper[t]), self.lower[t])
        return u.expand(*z.shape[:-1], u.shape[-1])

    def batch(self) -> list[torch.Size]:
        """Batch dimensions of all tensors."""
        series = [t.shape[:-2] for t in (self.nominal, self.inputs, self.feedforward, self.solution) if t is not None]
        return [*series, self.scale.shape, *([] if self.gain is None else [self.gain.shape[:-3]])]

    def native(self, batch: torch.Size) -> Feedback:
        """The law as the kernel takes it."""

        def rows(tensor: Tensor | None, ndim: int = 2) -> Any:
            return None if tensor is None else rows_of(tensor, ndim, batch)

        scale = self.scale.expand(batch).reshape(-1).contiguous()
        series = rows(self.nominal), rows(self.inputs), rows(self.feedforward), rows(self.gain, 3), rows(self.solution)
        return Feedback(batch, self.minimal, *series, scale, self.lower, self.upper)


def law_of_feedback(structure: Structure, inputs: Tensor, given: Given, coordinates: Callable[[Tensor], Tensor]) -> Law:
    """The law of these tensors. The last dimension of `inputs` is right already.

    coordinates: from states to coordinates and rates (..., 2n).

    Raises:
        ValueError: shapes that do not fit, a gain without a nominal trajectory, bounds that cross. TypeError: wrong dtypes.
    """
    steps, size = inputs.shape[-2:]
    nominal, gain, feedforward, solution, scale, bounds = given
    pair = nominal is not None and not isinstance(nominal, Tensor)
    with torch.no_grad():
        x: Tensor | None = None
        columns = 2 * structure.num_coordinates if pair else TANGENT_SIZE * structure.num_bodies
        if pair:
            both = [_double(value) for value in nominal or ()]
            if len(both) != 2:
                raise ValueError(f"nominal: got {len(both)} tensors; allowed: states (..., T, 13 nb), or the pair (q, qd)")
            for name, value in zip(("nominal q", "nominal qd"), both, strict=True):
                structure.check_tensor(name, value, structure.num_coordinates)
            x = torch.cat(torch.broadcast_tensors(*both), dim=-1)
        elif isinstance(nominal, Tensor):
            x = _double(nominal)
            structure.check_state(x, "nominal")
        if x is not None and (x.ndim < 2 or x.shape[-2] not in (steps, steps + 1)):
            raise ValueError(f"nominal: got shape {tuple(x.shape)}; allowed: (..., {steps} or {steps + 1}, ·), as long as the inputs")
        if gain is not None:
            gain = _double(gain)
            if x is None:
                raise ValueError("gain: got one without a nominal trajectory to compare the state with; give nominal=")
            if gain.ndim < 3 or gain.shape[-3:] != (steps, size, columns):
                space = "minimal coordinates" if pair else "states"
                raise ValueError(f"gain: got shape {tuple(gain.shape)}; allowed for nominal {space}: (..., {steps}, {size}, {columns})")
        if feedforward is not None:
            feedforward = _double(feedforward)
            if feedforward.ndim < 2 or feedforward.shape[-2:] != (steps, size):
                raise ValueError(f"feedforward: got shape {tuple(feedforward.shape)}; allowed: (..., {steps}, {size}), as the inputs")
        if solution is not None:
            solution = _double(solution)
            unknowns = structure.layout.num_unknowns
            if solution.ndim < 2 or solution.shape[-2:] != (steps, unknowns):
                raise ValueError(
                    f"solution: got shape {tuple(solution.shape)}; allowed: (..., {steps}, {unknowns}), from keep_solutions=True"
                )
        length = torch.as_tensor(scale, dtype=torch.float64)
        lower, upper = _bounds(bounds, steps, size)

    def error(z: Tensor, reference: Tensor) -> Tensor:
        return minimal.difference(structure.tree_order(), coordinates(z), reference) if pair else structure.difference(z, reference)

    device = inputs.device
    length, lower, upper = (t.detach().to(device) for t in (length, lower, upper))
    return Law(pair, None if gain is None else x, inputs.detach(), feedforward, gain, solution, length, lower, upper, error)


def _bounds(bounds: Sequence[Any] | None, steps: int, size: int) -> tuple[Tensor, Tensor]:
    if bounds is None:
        infinite = torch.full((steps, size), torch.inf, dtype=torch.float64)
        return -infinite, infinite
    allowed = f"a number, ({size},) or ({steps}, {size})"
    if not isinstance(bounds, (tuple, list)) or len(bounds) != 2:
        raise ValueError(f"bounds: got {type(bounds).__name__}; allowed: a pair (lower, upper), each {allowed}")
    sides = []
    for name, side in zip(("lower", "upper"), bounds, strict=True):
        value = torch.as_tensor(side, dtype=torch.float64).detach()
        try:
            sides.append(value.expand(steps, size).contiguous())
        except RuntimeError:
            raise ValueError(f"bounds: got a {name} one of shape {tuple(value.shape)}; allowed: {allowed}") from None
    if not bool((sides[0] <= sides[1]).all()):
        raise ValueError("bounds: got lower ones above the upper ones, or ones that are not numbers; allowed: lower <= upper")
    return sides[0], sides[1]


def _double(value: Tensor) -> Tensor:
    if not isinstance(value, Tensor):
        raise TypeError(f"rollout_feedback: got {type(value).__name__} for a tensor; convert it: torch.as_tensor(...)")
    return value.detach().double()
