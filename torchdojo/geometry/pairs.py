"""Pairs of shapes: signed distance, unit normal and nearest point of spheres, capsules and boxes, smooth in their poses and sizes.

Derivatives are those of autograd through closed forms. Nothing iterates, and where nearest points are not unique (parallel capsules, boxes
face to face) a small regularization decides, so that they move continuously.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from torchdojo import quaternion as quat
from torchdojo.geometry.distance import point_box, segment_box, segment_point, segment_segment, separation

__all__ = ["KINDS", "Solid", "Witness", "nearest"]

KINDS = ("sphere", "capsule", "box")
# Of two boxes: |cos| between an axis and an edge below which the edge counts as lying across it, and the nearest point moves from one of
# its ends to the other. The distance is rounded to match, by a quarter of this times the edge at most (50 µm for 10 cm). In collisions of
# boxes that come to lie flat, a step takes 3 to 9 iterations from 1e-3 on, and hundreds at 1e-4.
FLAT = 2e-3
PARALLEL_EDGES = 1e-6  # sin² of the angle between two edges below which their cross product is no axis: faces separate parallel edges
PREFER_FACES = 1e-9  # [m] by which an axis across two edges must beat a face; half of it, the smaller box's face the other's


class Solid(NamedTuple):
    """A shape in space: position of its centre (..., 3) [m], orientation (..., 4), rounding radius (...,) [m], and its extent: nothing for
    a sphere, the length (...,) of a capsule's segment along its z, the edges (..., 3) of a box [m]."""

    position: Tensor
    orientation: Tensor
    radius: Tensor
    extent: Tensor

    @property
    def half_vector(self) -> Tensor:
        """From the centre to an end of a capsule's segment, (..., 3)."""
        along = torch.zeros_like(self.position)
        along[..., 2] = 1
        return 0.5 * self.extent[..., None] * quat.rotate(self.orientation, along)

    def to_local(self, point: Tensor) -> Tensor:
        return quat.inverse_rotate(self.orientation, point - self.position)


class Witness(NamedTuple):
    """Where two shapes are nearest: signed distance φ (...,) [m], unit normal (..., 3) from b to a, and the point on the surface of a
    (..., 3). The point on b is φ along the normal behind it."""

    distance: Tensor
    normal: Tensor
    point: Tensor


def nearest(kind_a: str, kind_b: str, a: Solid, b: Solid) -> Witness:
    """Nearest points of two solids of `KINDS`, the same frame for all.

    Distances are Euclidean and signed, with a negative sign where shapes overlap; the depth is exact until a sphere's centre, or a
    capsule's segment, enters the other shape. That of two boxes is the separation along the best of 15 axes: where corners or ends of edges
    are nearest, less than the Euclidean one, but never of another sign.
    """
    if KINDS.index(kind_a) > KINDS.index(kind_b):
        flipped = nearest(kind_b, kind_a, b, a)
        return Witness(flipped.distance, -flipped.normal, flipped.point - flipped.distance[..., None] * flipped.normal)
    return _PAIRS[kind_a, kind_b](a, b)


def _of_points(p: Tensor, q: Tensor, a: Solid, b: Solid) -> Witness:
    """Balls around the points p of a and q of b."""
    length, normal = separation(p - q)
    return Witness(length - a.radius - b.radius, normal, p - a.radius[..., None] * normal)


def _sphere_sphere(a: Solid, b: Solid) -> Witness:
    return _of_points(a.position, b.position, a, b)


def _sphere_capsule(a: Solid, b: Solid) -> Witness:
    u = b.half_vector
    s = segment_point(u, a.position - b.position)
    return _of_points(a.position, b.position + s[..., None] * u, a, b)


def _capsule_capsule(a: Solid, b: Solid) -> Witness:
    u, v = a.half_vector, b.half_vector
    s, t = segment_segment(u, v, a.position - b.position)
    return _of_points(a.position + s[..., None] * u, b.position + t[..., None] * v, a, b)


def _ball_box(centre: Tensor, a: Solid, b: Solid) -> Witness:
    distance, normal = point_box(b.to_local(centre), 0.5 * b.extent)
    normal = quat.rotate(b.orientation, normal)
    return Witness(distance - a.radius - b.radius, normal, centre - a.radius[..., None] * normal)


def _sphere_box(a: Solid, b: Solid) -> Witness:
    return _ball_box(a.position, a, b)


def _capsule_box(a: Solid, b: Solid) -> Witness:
    u = a.half_vector
    s = segment_box(b.to_local(a.position), quat.inverse_rotate(b.orientation, u), 0.5 * b.extent)
    return _ball_box(a.position + s[..., None] * u, a, b)


def _box_box(a: Solid, b: Solid) -> Witness:
    """Separating axes (Gottschalk, Lin and Manocha 1996). The width of a box along an axis, Σ h_i |n·e_i|, is rounded where the axis is
    across an edge, and the support point is its derivative: the middle of a face that lies flat."""
    rotation_a, rotation_b = quat.rotation_matrix(a.orientation).mT, quat.rotation_matrix(b.orientation).mT
    rotation_a, rotation_b = torch.broadcast_tensors(rotation_a, rotation_b)
    across = torch.linalg.cross(rotation_a[..., :, None, :], rotation_b[..., None, :, :], dim=-1).flatten(-3, -2)
    squared = (across * across).sum(-1)
    real = squared > PARALLEL_EDGES
    crossed = across / torch.sqrt(torch.where(real, squared, torch.ones_like(squared)))[..., None]
    axes = torch.cat((rotation_a, rotation_b, crossed), dim=-2)  # (..., 15, 3), unit
    difference = a.position - b.position
    along = (axes * difference[..., None, :]).sum(-1)
    axes = torch.where((along < 0)[..., None], -axes, axes)
    half_a, half_b = 0.5 * a.extent[..., None, :], 0.5 * b.extent[..., None, :]
    cosine_a, cosine_b = axes @ rotation_a.mT, axes @ rotation_b.mT
    gaps = along.abs() - (half_a * _rounded(cosine_a)).sum(-1) - (half_b * _rounded(cosine_b)).sum(-1)
    preferred = gaps.detach().clone()
    # Flat on each other, two faces tie: that of the larger box stands, and the other box supports it.
    smaller = (half_a.sum((-1, -2)) < half_b.sum((-1, -2)))[..., None].detach()
    preferred[..., :3] -= 0.5 * PREFER_FACES * smaller
    preferred[..., 3:6] -= 0.5 * PREFER_FACES * ~smaller
    preferred[..., 6:] -= PREFER_FACES
    preferred[..., 6:] = torch.where(real, preferred[..., 6:], -torch.inf)
    best = preferred.argmax(-1, keepdim=True)
    normal = torch.take_along_dim(axes, best[..., None], dim=-2).squeeze(-2)
    distance = torch.gather(gaps, -1, best).squeeze(-1) - a.radius - b.radius

    slope_a, slope_b = (_slope((normal[..., None, :] * r).sum(-1)) for r in (rotation_a, rotation_b))
    support_a = a.position - (rotation_a * (slope_a * half_a.squeeze(-2))[..., None]).sum(-2) - a.radius[..., None] * normal
    support_b = b.position + (rotation_b * (slope_b * half_b.squeeze(-2))[..., None]).sum(-2) + b.radius[..., None] * normal
    best = best.squeeze(-1)
    # Two edges: from the middles of both to the points where they cross.
    edges = (best - 6).clamp_min(0)
    edge_a = torch.take_along_dim(rotation_a, (edges // 3)[..., None, None], dim=-2).squeeze(-2)
    edge_b = torch.take_along_dim(rotation_b, (edges % 3)[..., None, None], dim=-2).squeeze(-2)
    length_a = torch.gather(half_a.squeeze(-2).expand(edge_a.shape), -1, (edges // 3)[..., None])
    length_b = torch.gather(half_b.squeeze(-2).expand(edge_b.shape), -1, (edges % 3)[..., None])
    s, _ = segment_segment(length_a * edge_a, length_b * edge_b, support_a - support_b)
    crossing = support_a + s[..., None] * length_a * edge_a
    point = torch.where((best < 3)[..., None], support_b + distance[..., None] * normal, support_a)
    return Witness(distance, normal, torch.where((best >= 6)[..., None], crossing, point))


def _rounded(cosine: Tensor) -> Tensor:
    """|cosine|, with a parabola in place of the kink, scaled so that 1 stays 1. Its derivative is `_slope`, but for that scale."""
    size = cosine.abs()
    return torch.where(size < FLAT, size * size / (2 * FLAT), size - 0.5 * FLAT) / (1 - 0.5 * FLAT)


def _slope(cosine: Tensor) -> Tensor:
    return (cosine / FLAT).clamp(-1, 1)


_PAIRS: dict[tuple[str, str], Callable[[Solid, Solid], Witness]] = {
    ("sphere", "sphere"): _sphere_sphere,
    ("sphere", "capsule"): _sphere_capsule,
    ("sphere", "box"): _sphere_box,
    ("capsule", "capsule"): _capsule_capsule,
    ("capsule", "box"): _capsule_box,
    ("box", "box"): _box_box,
}
