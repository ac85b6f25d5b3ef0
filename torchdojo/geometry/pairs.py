"""Pairs of shapes: signed distance, unit normal and nearest point of spheres, capsules, boxes and ellipsoids, smooth in poses and sizes.

Autograd differentiates these closed forms; only pairs with an ellipsoid iterate (ellipsoids.py). Where nearest points are not unique
(parallel capsules, boxes face to face), a small regularization decides, so that they move continuously.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from torchdojo import quaternion as quat
from torchdojo.geometry.distance import point_box, segment_box, segment_point, segment_segment, separation
from torchdojo.geometry.ellipsoids import ellipsoid_nearest
from torchdojo.geometry.solids import Solid, Witness

__all__ = ["KINDS", "Solid", "Witness", "nearest"]

KINDS = ("sphere", "capsule", "box", "ellipsoid")
# Two boxes: |cos| between an axis and an edge below which the edge counts as lying across the axis. Below it, the nearest point moves from
# one end of the edge to the other. The distance is rounded to match, by at most a quarter of FLAT times the edge (50 µm for 10 cm). Boxes
# that come to lie flat take 3 to 9 iterations per step from 1e-3 on, and hundreds at 1e-4.
FLAT = 2e-3
PARALLEL_EDGES = 1e-6  # sin² of the angle between two edges below which their cross product is no axis: faces separate parallel edges
PREFER_FACES = 1e-9  # [m] by which an axis across two edges must beat a face; the smaller box's face must beat the other's by half of it


def nearest(kind_a: str, kind_b: str, a: Solid, b: Solid) -> Witness:
    """Nearest points of two solids of `KINDS`, all in the same frame.

    Distances are Euclidean and signed, with a negative sign where shapes overlap. The depth is exact until a sphere's center, or a
    capsule's segment, enters the other shape. The distance of two boxes is the separation along the best of 15 axes. Where corners or ends
    of edges are nearest, the separation is less than the Euclidean distance, but it always has the same sign. Beside
    ellipsoids, boxes have rounded edges.
    """
    if KINDS.index(kind_a) > KINDS.index(kind_b):
        flipped = nearest(kind_b, kind_a, b, a)
        return Witness(flipped.distance, -flipped.normal, flipped.point - flipped.distance[..., None] * flipped.normal)
    return _PAIRS[kind_a, kind_b](a, b)


def _between_points(p: Tensor, q: Tensor, a: Solid, b: Solid) -> Witness:
    """Witness of the balls around the points p of a and q of b."""
    length, normal = separation(p - q)
    return Witness(length - a.radius - b.radius, normal, p - a.radius[..., None] * normal)


def _sphere_sphere(a: Solid, b: Solid) -> Witness:
    return _between_points(a.position, b.position, a, b)


def _sphere_capsule(a: Solid, b: Solid) -> Witness:
    u = b.half_vector
    s = segment_point(u, a.position - b.position)
    return _between_points(a.position, b.position + s[..., None] * u, a, b)


def _capsule_capsule(a: Solid, b: Solid) -> Witness:
    u, v = a.half_vector, b.half_vector
    s, t = segment_segment(u, v, a.position - b.position)
    return _between_points(a.position + s[..., None] * u, b.position + t[..., None] * v, a, b)


def _ball_box(center: Tensor, a: Solid, b: Solid) -> Witness:
    distance, normal = point_box(b.to_local(center), 0.5 * b.extent)
    normal = quat.rotate(b.orientation, normal)
    return Witness(distance - a.radius - b.radius, normal, center - a.radius[..., None] * normal)


def _sphere_box(a: Solid, b: Solid) -> Witness:
    return _ball_box(a.position, a, b)


def _capsule_box(a: Solid, b: Solid) -> Witness:
    u = a.half_vector
    s = segment_box(b.to_local(a.position), quat.inverse_rotate(b.orientation, u), 0.5 * b.extent)
    return _ball_box(a.position + s[..., None] * u, a, b)


def _box_box(a: Solid, b: Solid) -> Witness:
    """Witness of two boxes by separating axes (Gottschalk, Lin and Manocha 1996).

    The width of a box along an axis, Σ h_i |n·e_i|, is rounded where the axis is across an edge. The support point is the derivative of the
    width: the middle of a face that lies flat.
    """
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
    # Two faces that lie flat on each other tie: the face of the larger box counts, and the other box gives the support point.
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
    # For an axis across two edges, go from the middles of both edges to the points where they cross.
    edges = (best - 6).clamp_min(0)
    edge_a = torch.take_along_dim(rotation_a, (edges // 3)[..., None, None], dim=-2).squeeze(-2)
    edge_b = torch.take_along_dim(rotation_b, (edges % 3)[..., None, None], dim=-2).squeeze(-2)
    length_a = torch.gather(half_a.squeeze(-2).expand(edge_a.shape), -1, (edges // 3)[..., None])
    length_b = torch.gather(half_b.squeeze(-2).expand(edge_b.shape), -1, (edges % 3)[..., None])
    s, _ = segment_segment(length_a * edge_a, length_b * edge_b, support_a - support_b)
    crossing = support_a + s[..., None] * length_a * edge_a
    point = torch.where((best < 3)[..., None], support_b + distance[..., None] * normal, support_a)
    return Witness(distance, normal, torch.where((best >= 6)[..., None], crossing, point))


def _with_ellipsoid(kind: str) -> Callable[[Solid, Solid], Witness]:
    return lambda a, b: Witness(*ellipsoid_nearest(kind, a, b))


def _rounded(cosine: Tensor) -> Tensor:
    """|cosine| with a parabola in place of the kink, scaled so that 1 stays 1. Its derivative is `_slope`, up to that scale."""
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
    **{(kind, "ellipsoid"): _with_ellipsoid(kind) for kind in KINDS},
}
