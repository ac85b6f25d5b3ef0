"""Joints that close loops: the rows that such a joint keeps, which state/redundancy.py finds, and its switch.

A joint that is switched off (active = 0) has the rows h λ = 0 in the place of its equations, and no impulses.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from torchdojo.elements.ball_cones import ConedJoint
from torchdojo.parameters import require

__all__ = ["SWITCH", "KeptRows", "LoopJoint"]

SWITCH = "active"


class KeptRows(NamedTuple):
    """Projections P of the held rows of a joint onto the rows that act: of translations, then of rotations (state/redundancy.py)."""

    translations: tuple[tuple[float, ...], ...]
    rotations: tuple[tuple[float, ...], ...]

    def matrices(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Both P, in the dtype and on the device of `like`."""
        t, r = (torch.tensor(p, dtype=like.dtype, device=like.device).reshape(len(p), len(p)) for p in self)
        return t, r

    def left_out(self, like: Tensor) -> Tensor:
        """I − P P of all rows, (num_rows, num_rows), in the dtype and on the device of `like`."""
        p = torch.block_diag(*self.matrices(like))
        return torch.eye(len(p)).to(p) - p @ p


class LoopJoint(ConedJoint):
    """The part of a `StandardJoint` that has to do with closed loops."""

    optional: ClassVar[dict[str, int]] = {SWITCH: 0, **ConedJoint.optional}
    kept_rows: KeptRows | None = None  #: of a joint that repeats others of its loop; a mechanism sets it when it is built
    active: Tensor | None
    axis: Tensor

    def check_field(self, name: str, value: Tensor) -> Tensor:
        value = super().check_field(name, value)
        if name == SWITCH:
            require((value == 0) | (value == 1), self.label(name), value, "1, where the joint holds, and 0, where it is switched off")
        return value

    @property
    def leaves_out(self) -> bool:
        """Whether it has rows that may not act."""
        return self.kept_rows is not None or self.active is not None

    def kept(self, held: tuple[Tensor | None, Tensor | None]) -> tuple[Tensor | None, Tensor | None]:
        """The rows that act among held directions, translations and rotations, (..., m, 3) each; None stands for all three axes."""
        if not self.leaves_out:
            return held
        counts = (3 if rows is None else rows.shape[-2] for rows in held)
        projections = (torch.eye(count).to(self.axis) for count in counts) if self.kept_rows is None else self.kept_rows.matrices(self.axis)
        on = None if self.active is None else self.active[..., None, None]
        t, r = (p if rows is None else p @ rows for p, rows in zip(projections, held, strict=True))
        return (t, r) if on is None else (on * t, on * r)

    def left_out(self, impulse: Tensor) -> Tensor:
        """(I − P P) λ for impulses λ (..., num_rows) of a joint that `leaves_out` rows; P is zero where it is switched off."""
        rest = impulse.new_zeros(()) if self.kept_rows is None else impulse @ self.kept_rows.left_out(impulse)
        if self.active is None:
            return rest
        on = self.active[..., None] ** 2
        return impulse - on * (impulse - rest)
