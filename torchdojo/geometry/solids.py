"""Pairs of shapes as callers give them, and the results (pairs.py, ellipsoids.py, closest.py)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from torchdojo import quaternion as quat

__all__ = ["Solid", "Witness"]


class Solid(NamedTuple):
    """A shape in space: position of its center (..., 3) [m], orientation (..., 4), rounding radius (...,) [m] and extent [m].

    The extent is the length (...,) of a capsule's segment along its z axis, the edges (..., 3) of a box, or the semi-axes (..., 3) of an
    ellipsoid. A sphere does not use it.
    """

    position: Tensor
    orientation: Tensor
    radius: Tensor
    extent: Tensor

    @property
    def half_vector(self) -> Tensor:
        """Vector from the center to an end of a capsule's segment, (..., 3)."""
        along = torch.zeros_like(self.position)
        along[..., 2] = 1
        return 0.5 * self.extent[..., None] * quat.rotate(self.orientation, along)

    def to_local(self, point: Tensor) -> Tensor:
        return quat.inverse_rotate(self.orientation, point - self.position)


class Witness(NamedTuple):
    """Signed distance φ (...,) [m] of two shapes, unit normal (..., 3) from b to a, and the nearest point (..., 3) on the surface of a."""

    distance: Tensor
    normal: Tensor
    point: Tensor

    @property
    def other_point(self) -> Tensor:
        """The nearest point (..., 3) on the surface of b: `point` − φ `normal`."""
        return self.point - self.distance[..., None] * self.normal
