"""The numbers of cores as functions of the sizes of their shapes, where these are differentiated.

A core is made once, of numbers (polytopes.py). While sizes change a little, its edges and faces join the same corners. So derivatives by
sizes are those of the places of its corners. Those of a hull are the points where its planes meet, moved inwards by the radius.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from torchdojo.geometry.hulls import Hull, convex_hull
from torchdojo.geometry.polytopes import ROUNDING, CoreSizes, Polytope
from torchdojo.geometry.shapes import Box, Capsule, Cylinder, Ellipsoid, Mesh
from torchdojo.quaternion import inverse_rotate, rotate

__all__ = ["CoreNumbers", "differentiable", "numbers_of", "with_numbers"]

SAME = 1e-9  # of the extent of a core: numbers that differ by less are those that it was made of
MEETING = 1e-7  # of the extent: planes that are nearer to a corner meet there; Qhull finds corners to 1e-12


class CoreNumbers(NamedTuple):
    """The numbers of a core: vertices (V, 3) [m] and radius () [m]; of an ellipsoid also semi_axes (3,) [m] and orientation (4,)."""

    vertices: Tensor
    radius: Tensor
    semi_axes: Tensor | None = None
    orientation: Tensor | None = None


def numbers_of(core: Polytope, sizes: CoreSizes) -> CoreNumbers:
    """The numbers of a core, with their graph.

    Raises:
        RuntimeError: sizes that were changed in place since.
    """
    shape = sizes.shape
    position, orientation = shape.position.double(), shape.orientation.double()
    if isinstance(shape, Ellipsoid):
        numbers = CoreNumbers(position[None], position.new_tensor(core.radius), shape.semi_axes.double(), orientation)
    else:
        local = inverse_rotate(orientation.detach(), core.vertices - position.detach())
        points, radius = _points(sizes, local)
        numbers = CoreNumbers(position + rotate(orientation, points), radius)
    same = float((numbers.vertices - core.vertices).detach().abs().max()) <= SAME * core.extent
    same = same and abs(float(numbers.radius.detach()) - core.radius) <= SAME * core.extent
    if numbers.semi_axes is not None and core.semi_axes is not None:
        same = same and torch.equal(numbers.semi_axes.detach(), core.semi_axes.double())
    if not same:
        raise RuntimeError(
            f"near contacts: got a {type(shape).__name__} whose numbers have changed since its contacts were made; shapes are values: "
            "make shapes, contacts and mechanism anew after each step of an optimizer"
        )
    return numbers


def _points(sizes: CoreSizes, corners: Tensor) -> tuple[Tensor, Tensor]:
    """The corners (V, 3) of a core in the frame of its shape [m], and its radius, with their graph. corners: their numbers."""
    shape = sizes.shape
    if isinstance(shape, Box):
        size = shape.size.double()
        radius = _rounding(sizes, size.min())
        return corners.sign() * (0.5 * size - radius), radius
    if isinstance(shape, Cylinder):
        size, length = shape.radius.double(), shape.length.double()
        radius = _rounding(sizes, torch.minimum(2 * size, length))
        turns = corners[:, :2] / torch.linalg.vector_norm(corners[:, :2], dim=-1, keepdim=True)
        return torch.cat(((size - radius) * turns, (0.5 * length - radius) * corners[:, 2:].sign()), -1), radius
    if isinstance(shape, Hull | Mesh):
        points = shape.vertices.double()
        extents = points.amax(0) - points.amin(0)
        radius = _rounding(sizes, extents.min())
        return _meeting(points[_triangles(sizes)], radius, corners), radius
    length = shape.length.double() if isinstance(shape, Capsule) else corners.new_zeros(())
    round_radius: Tensor = shape.radius.double()  # type: ignore[attr-defined]  # a capsule or a sphere
    return torch.cat((torch.zeros_like(corners[:, :2]), 0.5 * length * corners[:, 2:].sign()), -1), round_radius


def _rounding(sizes: CoreSizes, extent: Tensor) -> Tensor:
    share, least, most = ROUNDING
    return (share * extent).clamp(least, most) if sizes.radius is None else extent.new_tensor(sizes.radius)


@functools.lru_cache(maxsize=256)
def _triangles(sizes: CoreSizes) -> Tensor:
    """Numbers (m, 3) of the points of a hull or a mesh that are corners of the triangles of its hull, wound outward."""
    vertices: Tensor = sizes.shape.vertices  # type: ignore[attr-defined]  # a hull or a mesh
    numbers, triangles = convex_hull(vertices.detach().double().numpy())
    return torch.as_tensor(numbers)[torch.as_tensor(triangles)]


def _meeting(triangles: Tensor, depth: Tensor, corners: Tensor) -> Tensor:
    """The points (V, 3) near `corners` where planes meet, which have moved inwards by `depth` from triangles (m, 3, 3) of a hull."""
    a, b, c = triangles.unbind(1)
    normals = torch.linalg.cross(b - a, c - a)
    normals = normals / torch.linalg.vector_norm(normals, dim=-1, keepdim=True)
    offsets = (normals * a).sum(-1) - depth
    extent = float((a.amax(0) - a.amin(0)).detach().max())
    meets = ((corners @ normals.mT - offsets).detach().abs() <= MEETING * extent).to(normals)
    # Least squares: three planes meet at one point, also where a plane counts as often as it has triangles.
    matrix = torch.einsum("vp,pi,pj->vij", meets, normals, normals)
    return torch.linalg.solve(matrix, (meets * offsets) @ normals)


def differentiable(core: Polytope) -> Polytope:
    """A core with the graph of its sizes, where these are differentiated."""
    return core if core.sizes is None else with_numbers(core, numbers_of(core, core.sizes))


def with_numbers(core: Polytope, numbers: CoreNumbers) -> Polytope:
    """A core with other numbers in place of its own, with their graph."""
    vertices = numbers.vertices
    moved = replace(core, vertices=vertices, radius=numbers.radius, sizes=None)  # type: ignore[arg-type]  # a tensor in place of a float
    if numbers.semi_axes is not None:
        return replace(moved, radius=0.0, semi_axes=numbers.semi_axes, orientation=numbers.orientation)
    if not len(core.normals):
        return moved
    a, b, c = vertices[_spanning(core)].unbind(1)
    normals = torch.linalg.cross(b - a, c - a)
    normals = normals / torch.linalg.vector_norm(normals, dim=-1, keepdim=True)
    normals = normals * (normals.detach() * core.normals.to(normals)).sum(-1, keepdim=True).sign()
    along = vertices[core.edges[:, 1]] - vertices[core.edges[:, 0]]
    inward = torch.linalg.cross(along[:, None].expand(-1, 2, 3), normals[core.faces])
    inward = inward / torch.linalg.vector_norm(inward, dim=-1, keepdim=True)
    inward = inward * (inward.detach() * core.inward.to(inward)).sum(-1, keepdim=True).sign()
    outward = normals[core.faces].sum(1)
    return replace(moved, normals=normals, offsets=(normals * a).sum(-1), inward=inward, outward=outward)


@functools.lru_cache(maxsize=256)
def _spanning(core: Polytope) -> Tensor:
    """Three corners (F, 3) of each face: both ends of an edge, and the corner of the face that is farthest from it."""
    ends = torch.stack([core.edges[(core.faces == face).any(-1)][0] for face in range(len(core.normals))])
    a, b = core.vertices[ends].unbind(1)
    members = torch.zeros(len(core.normals), len(core.vertices), dtype=torch.bool)
    for side in (0, 1):
        for end in (0, 1):
            members[core.faces[:, side], core.edges[:, end]] = True
    offsets = core.vertices[None] - a[:, None]
    apart = torch.linalg.vector_norm(torch.linalg.cross(offsets, (b - a)[:, None].expand_as(offsets)), dim=-1)
    third = torch.where(members, apart, -1.0).argmax(-1)
    return torch.cat((ends, third[:, None]), -1)
