"""Cones of joints with three free rotations, as of balls: a limit of the angle of the whole rotation.

With the rotation vector θ of the joint and the largest angle R [rad], the room of the limit is

    r = (R² − |θ|²) / (2 R) >= 0            |θ| <= R, exactly

At the limit, r is R − |θ| to first order, and its gradient is minus the axis of the rotation, as that of MuJoCo's limit of a ball. At zero,
where the axis jumps, r is smooth, so the central path has no cusp there. The impulse γ acts with the torque −γ θ/R: the transposed inverse
Jacobian of SO(3) leaves θ as it is.

The angle R is the upper limit of the first rotation, whose own component has no limit then. So it is a field, `upper`, as other limits are.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor

from torchdojo.elements.curves import CurvedJoint
from torchdojo.parameters import as_tensor, broadcast_shapes, require

__all__ = ["ConedJoint"]


class ConedJoint(CurvedJoint):
    """The part of a `StandardJoint` that has to do with a cone."""

    structural: ClassVar[frozenset[str]] = CurvedJoint.structural | {"coned"}
    coned: bool = False  #: whether the upper limit of the first rotation is one of the whole rotation

    def with_cone(self, limits: tuple[Any, Any] | None, cone: Any) -> tuple[Any, Any] | None:
        """Limits (lower, upper) with those of a cone. limits: of translations; None: none. cone: the angle R, (...); None: no cone."""
        if cone is None:
            return limits
        if self.free_rotations != 3:
            raise ValueError(
                f"{self.label('cone')}: got {cone!r} for a joint with {self.free_rotations} free rotation(s); allowed: for three, "
                "limits= for others"
            )
        angle = as_tensor(cone, self.label("cone"))
        require(angle > 0, self.label("cone"), angle, "angles above 0 [rad]")
        free = angle.new_full((self.num_coordinates,), math.inf)
        lower, upper = (sign * free if bound is None else bound for sign, bound in zip((-1.0, 1.0), limits or (None, None), strict=True))
        lower, upper = (as_tensor(bound, self.label("limits")).expand(self.num_coordinates) for bound in (lower, upper))
        turns = torch.cat([bound[..., self.free_translations :].flatten() for bound in (lower, upper)])
        require(torch.isinf(turns), self.label("limits"), turns, "infinite numbers for rotations beside cone=")
        self.coned = True
        shape = *angle.shape, self.num_coordinates
        first = torch.arange(self.num_coordinates, device=angle.device) == self.free_translations
        return lower, torch.where(first, angle[..., None], upper.expand(shape))

    def check_field(self, name: str, value: Tensor) -> Tensor:
        value = super().check_field(name, value)
        if name == "upper" and self.coned:
            angle = value[..., self.free_translations]
            require(angle > 0, self.label("cone"), angle, "angles above 0 [rad]")
        return value

    @property
    def cone(self) -> Tensor | None:
        """The largest angle of the whole rotation [rad], (...); None: there is no cone. Assign a number to change it."""
        upper: Tensor | None = getattr(self, "upper", None)
        return upper[..., self.free_translations] if self.coned and upper is not None else None

    @cone.setter
    def cone(self, angle: Any) -> None:
        if not self.coned:
            raise ValueError(f"{self.label('cone')}: got {angle!r} for a joint built without cone; build it with cone=")
        limits = self.limits
        assert limits is not None  # a cone is one
        angle = as_tensor(angle, self.label("cone"))
        first = torch.arange(self.num_coordinates, device=angle.device) == self.free_translations
        self.limits = limits[0].detach(), torch.where(first, angle[..., None], limits[1].detach())

    @property
    def inner_limits(self) -> tuple[Tensor, Tensor] | None:
        """Limits (lower, upper) of the coordinates, of a cone the largest box inside of it, ±R/√3; None: no limits."""
        limits, angle = self.limits, self.cone
        if limits is None or angle is None:
            return limits
        turns = torch.arange(self.num_coordinates, device=angle.device) >= self.free_translations
        half = (angle / math.sqrt(3.0))[..., None]
        return torch.where(turns, -half, limits[0]), torch.where(turns, half, limits[1])

    def measured(self, coordinates: Tensor) -> Tensor:
        """Coordinates (..., num_coordinates) with what the limit of the cone sees, R − r, in the place of the first rotation."""
        angle = self.cone
        if angle is None:
            return coordinates
        square = (coordinates[..., self.free_translations :] ** 2).sum(-1)
        seen = 0.5 * (square / angle + angle)[..., None]
        head, tail = coordinates[..., : self.free_translations], coordinates[..., self.free_translations + 1 :]
        shape = broadcast_shapes(coordinates.shape[:-1], seen.shape[:-1])
        return torch.cat([part.expand(*shape, -1) for part in (head, seen, tail)], dim=-1)

    def along_cone(self, coordinates: Tensor) -> Tensor:
        """The gradient of what the limit of the cone sees by the coordinates: (0, θ/R), (..., num_coordinates)."""
        angle = self.cone
        assert angle is not None
        turns = torch.arange(self.num_coordinates, device=angle.device) >= self.free_translations
        return torch.where(turns, coordinates, 0.0) / angle[..., None]
