"""Convex shapes as sums of three parts: a hull of corners, an ellipsoid (or a disc) around every point of it, and a ball around these.

A sphere is a corner and a ball, a capsule two corners and a ball, a box eight corners, a cylinder two corners and a disc. So one search
(geometry/closest.py) finds the exact distances of all of them.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from torchdojo.geometry.hulls import Hull
from torchdojo.geometry.polytopes import Polytope
from torchdojo.geometry.shapes import Box, Capsule, Cylinder, Ellipsoid, Mesh, Shape, Sphere
from torchdojo.quaternion import rotate, rotation_matrix

__all__ = ["Convex", "Placed", "convex_of"]


class Convex(NamedTuple):
    """The points v + axes y + r: v in the hull of the vertices, y in the unit ball, |r| <= radius, in the frame of a body.

    vertices: (..., n, 3) [m]. axes: (..., 3, 3) semi-axes as columns [m], or None. radius: (...,) [m]. flat: whether the third axis is
    zero, and the others make a disc.
    """

    vertices: Tensor
    axes: Tensor | None
    radius: Tensor
    flat: bool = False


def convex_of(shape: Shape | Convex | Polytope) -> Convex:
    """A shape or core in the frame of its body.

    Raises:
        ValueError: a shape that is not convex, or not known to be.
    """
    if isinstance(shape, Convex):
        return shape
    if isinstance(shape, Polytope):
        axes = None
        if shape.semi_axes is not None and shape.orientation is not None:
            axes = rotation_matrix(shape.orientation) * shape.semi_axes
        return Convex(shape.vertices, axes, shape.vertices.new_tensor(shape.radius))
    position, orientation = shape.position, shape.orientation
    sharp = position.new_zeros(())

    def placed(points: Tensor) -> Tensor:
        return position[..., None, :] + rotate(orientation[..., None, :], points)

    if isinstance(shape, Sphere):
        return Convex(position[..., None, :], None, shape.radius)
    if isinstance(shape, Capsule | Cylinder):
        ends = placed(0.5 * shape.length[..., None, None] * position.new_tensor([[0, 0, -1.0], [0, 0, 1.0]]))
        if isinstance(shape, Capsule):
            return Convex(ends, None, shape.radius)
        disc = shape.radius[..., None] * position.new_tensor([1.0, 1.0, 0.0])
        return Convex(ends, rotation_matrix(orientation) * disc[..., None, :], sharp, True)
    if isinstance(shape, Box):
        return Convex(shape.contact_points()[0], None, sharp)
    if isinstance(shape, Ellipsoid):
        return Convex(position[..., None, :], rotation_matrix(orientation) * shape.semi_axes[..., None, :], sharp)
    if isinstance(shape, Hull):
        return Convex(placed(shape.vertices), None, sharp)
    remedy = "td.Hull(mesh.vertices) is its convex hull" if isinstance(shape, Mesh) else "td.Hull takes points"
    raise ValueError(f"distance: got {type(shape).__name__}; allowed: Sphere, Capsule, Box, Cylinder, Ellipsoid, Hull and Plane; {remedy}")


class Placed(NamedTuple):
    """N poses of a shape without its ball: positions x (N, 3), rotations R (N, 3, 3), vertices (n, 3) or (N, n, 3), axes (N, 3, 3)."""

    x: Tensor
    R: Tensor
    vertices: Tensor
    axes: Tensor | None

    @classmethod
    def of(cls, shape: Convex, x: Tensor, q: Tensor, batch: torch.Size) -> Placed:
        """At poses of a batch, flat."""

        def flat(value: Tensor, ndim: int) -> Tensor:
            value = value.double()
            return value.expand(*batch, *value.shape[value.ndim - ndim :]).reshape(-1, *value.shape[value.ndim - ndim :])

        vertices = shape.vertices.double() if shape.vertices.ndim == 2 else flat(shape.vertices, 2)
        axes = None if shape.axes is None else flat(shape.axes, 2)
        return cls(flat(x, 1), rotation_matrix(flat(q, 1)), vertices, axes)

    def detach(self) -> Placed:
        return Placed(self.x.detach(), self.R.detach(), self.vertices.detach(), None if self.axes is None else self.axes.detach())

    def at(self, index: Tensor | slice) -> Placed:
        """Some of the poses."""
        vertices = self.vertices if self.vertices.ndim == 2 else self.vertices[index]
        return Placed(self.x[index], self.R[index], vertices, None if self.axes is None else self.axes[index])

    def corners(self, number: Tensor) -> Tensor:
        """The corners (N, k, 3) of these numbers (N, k)."""
        local = self.vertices[number] if self.vertices.ndim == 2 else torch.take_along_dim(self.vertices, number[..., None], 1)
        return self.x[:, None] + local @ self.R.mT

    def world_axes(self) -> Tensor:
        return torch.zeros_like(self.R) if self.axes is None else self.R @ self.axes

    def support(self, direction: Tensor) -> tuple[Tensor, Tensor]:
        """Number (N,) of the corner that is farthest along directions (N, 3), and the farthest point (N, 3)."""
        local = (direction[:, None, :] @ self.R).squeeze(1)
        heights = local @ self.vertices.T if self.vertices.ndim == 2 else (self.vertices @ local[..., None]).squeeze(-1)
        number = heights.argmax(-1)
        point = self.corners(number[:, None]).squeeze(1)
        if self.axes is not None:
            axes = self.world_axes()
            along = (direction[:, None, :] @ axes).squeeze(1)
            length = torch.linalg.vector_norm(along, dim=-1, keepdim=True)
            point = point + (axes @ (along / torch.where(length > 0, length, 1.0))[..., None]).squeeze(-1)
        return number, point
