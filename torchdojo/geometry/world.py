"""Shapes that stand still in a scene: planes, height fields, and shapes fixed in the world."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchdojo.geometry.grids import DistanceGrid
from torchdojo.geometry.heights import HeightField
from torchdojo.geometry.shapes import Shape
from torchdojo.parameters import as_tensor, require

__all__ = ["Plane", "World"]

ALIKE = 1e-9  # of unit normals, and [m] of offsets: rounding


@dataclass(frozen=True, eq=False)
class Plane:
    """A half-space of the world, a part of `td.combine`: points x with normal·x <= offset are inside.

    normal: (..., 3), of any positive length; offset: along the unit normal [m], (...,). The default is the ground z = 0.

    Raises:
        ValueError: a normal of length zero or of another shape, numbers that are not finite.
    """

    normal: Any = (0.0, 0.0, 1.0)
    offset: Any = 0.0

    def __post_init__(self) -> None:
        normal, offset = as_tensor(self.normal, "Plane.normal"), as_tensor(self.offset, "Plane.offset")
        if normal.shape[-1:] != (3,):
            raise ValueError(f"Plane.normal: got shape {tuple(normal.shape)}; allowed: (..., 3)")
        require(torch.isfinite(normal), "Plane.normal", normal, "finite numbers")
        require(torch.isfinite(offset), "Plane.offset", offset, "finite numbers")
        require(torch.linalg.vector_norm(normal, dim=-1) > 0, "Plane.normal", normal, "vectors of positive length")
        object.__setattr__(self, "normal", normal)
        object.__setattr__(self, "offset", offset)

    def is_that_of(self, normal: Tensor, offset: Tensor) -> bool:
        """Whether the half-space of a contact, with a normal of any length, is this one."""
        mine, theirs = (
            vector.detach() / torch.linalg.vector_norm(vector.detach(), dim=-1, keepdim=True) for vector in (self.normal, normal)
        )
        return bool((mine - theirs).abs().max() < ALIKE) and bool((self.offset - offset).detach().abs().max() < ALIKE)


World = Plane | HeightField | DistanceGrid | Shape
