"""Near terms of two convex shapes: all pairs (corner of a, b), (corner of b, a) and (edge of a, edge of b) that are close.

Two bodies that lie on each other touch in many places at once, and which places these are changes along the motion. A term is one possible
place, with its gap, normal and point, evaluated on the features that are nearest at the poses given. Its impulse counts by a weight, C² and
exactly zero beyond `REACH`. So the step is one continuous function of its inputs, whichever terms were considered besides the near ones.

An ellipsoid has one place that is nearest to another shape, so such a pair has one term.

A crossing of edges is a place of contact only between the ends of both edges, where they are not parallel, and where its normal is one of
both edges. Elsewhere its gap is blended to 2 `REACH`, where nothing acts.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from torchdojo import quaternion as quat
from torchdojo.geometry.ellipsoids import ellipsoid_nearest
from torchdojo.geometry.near_ellipsoids import core_and_ellipsoid
from torchdojo.geometry.polytopes import Polytope
from torchdojo.geometry.solids import Solid
from torchdojo.parameters import broadcast_shapes

__all__ = ["REACH", "Term", "all_terms", "near_term"]

REACH = 1e-3  # [m]: impulses fade between half of it and all of it
ENDS = 1e-3  # [m] over which a crossing fades beyond the end of an edge
PARALLEL = (2e-3, 1e-2)  # sine of the angle between two edges below which their crossing fades, from the second on
CONE = (0.1, 0.3)  # sine by which the normal of a crossing leaves the normals of an edge, over which it fades
PAST = 1.5  # radii by which cores may overlap where edges cross: lines that are farther past each other belong to no nearest points
PASSES = 8  # solves of a step at most, with terms that the one before has found
HALVES = 3  # multiple of `max_total_iterations` after which no half of a step begins. With 8, links held in each other took 4 s a step
# Reaches of the solves between one without fading and that with REACH: REACH / fading. Of 240 steps in which 14 to 20 hulls are poured at
# 4 m/s, 99 were taken in halves without them, and 49 with them.
FADINGS = (0.05, 0.3)
LOOKS = 8  # poses of a pair at most at which a step looks for overlaps, the last one included
NOTHING, CORNER, OTHER_CORNER, CROSSING = -1, 0, 1, 2  # kinds of terms
BEARING = 1e-2  # share of the largest impulse of a pair from which on a term bears an impact
OUTSIDE = 1.5  # times κ over twice the reach, the impulse of a slot without a term: an impulse above it acts within the reach
BOUNCING = 4  # added to the kind of a term that bounces in this step (near_contact.py): its impulse does not fade


class Term(NamedTuple):
    """Gap (...,) [m], unit normal from b to a (..., 3), point on a (..., 3) and weight of the impulse (...,) of a term.

    possible: (...,) whether it may be a place of contact: a crossing that counts, and whose edges are not past each other.
    line: (...,) gap of the lines of two edges, before it is blended [m]; of corners their gap.
    """

    gap: Tensor
    normal: Tensor
    point: Tensor
    weight: Tensor
    possible: Tensor
    line: Tensor


def fade(t: Tensor) -> Tensor:
    """1 below 0, 0 above 1, C² between."""
    t = t.clamp(0, 1)
    return 1 - t * t * t * (10 + t * (6 * t - 15))


def all_terms(a: Polytope, b: Polytope) -> Tensor:
    """Kinds and features (n, 3) of all terms of a pair."""
    if a.semi_axes is not None or b.semi_axes is not None:
        return torch.tensor([[CORNER, 0, 0]])
    corners = [[CORNER, i, 0] for i in range(len(a.vertices))]
    others = [[OTHER_CORNER, i, 0] for i in range(len(b.vertices))]
    crossings = [[CROSSING, i, j] for i in range(len(a.edges)) for j in range(len(b.edges))]
    if len(a.vertices) == len(b.vertices) == 1:
        others = []  # two balls have one term
    return torch.tensor(corners + others + crossings)


def near_term(
    a: Polytope, b: Polytope, pose_a: tuple[Tensor, Tensor], pose_b: tuple[Tensor, Tensor], term: Tensor, fading: float | Tensor = 1.0
) -> Term:
    """The terms (..., 3) of two shapes at poses (x (..., 3), q (..., 4)). `NOTHING` is 2 `REACH` apart, and weighs nothing.

    Args:
        fading: impulses fade over the second half of REACH / fading; with 0 they do not, but at crossings that are no places of contact.
    """
    lead = broadcast_shapes(term.shape[:-1], pose_a[0].shape[:-1], pose_b[0].shape[:-1])
    kind, first, second = term.expand(*lead, 3).long().unbind(-1)
    bounces = kind >= BOUNCING
    kind, fading = torch.where(bounces, kind - BOUNCING, kind), torch.where(bounces, 0.0, torch.as_tensor(fading, dtype=pose_a[0].dtype))
    if a.semi_axes is not None or b.semi_axes is not None:
        return _faded(_smooth(a, b, pose_a, pose_b, kind == CORNER), fading)
    corner = _corner(a, b, pose_a, pose_b, first.clamp_max(len(a.vertices) - 1), kind == CORNER)
    flipped = _corner(b, a, pose_b, pose_a, first.clamp_max(len(b.vertices) - 1), kind == OTHER_CORNER)
    other = flipped._replace(normal=-flipped.normal, point=flipped.point - flipped.gap[..., None] * flipped.normal)
    result = _choose(kind == CORNER, corner, other)
    if len(a.edges) and len(b.edges):
        i, j = first.clamp_max(len(a.edges) - 1), second.clamp_max(len(b.edges) - 1)
        result = _choose(kind == CROSSING, _crossing(a, b, pose_a, pose_b, i, j, kind == CROSSING), result)
    return _faded(result, fading)


def _faded(term: Term, fading: Tensor) -> Term:
    return term._replace(weight=term.weight * torch.where(fading > 0, fade(2 * fading * term.gap / REACH - 1), 1.0))


def _choose(condition: Tensor, first: Term, second: Term) -> Term:
    pairs = zip(first, second, strict=True)
    return Term(*(torch.where(condition[..., None] if x.ndim > condition.ndim else condition, x, y) for x, y in pairs))


def _smooth(a: Polytope, b: Polytope, pose_a: tuple[Tensor, Tensor], pose_b: tuple[Tensor, Tensor], asked: Tensor) -> Term:
    """The nearest points of two cores, of which one or both are ellipsoids; where they are not asked for, nothing."""
    if b.semi_axes is None:
        flipped = _smooth(b, a, pose_b, pose_a, asked)
        return flipped._replace(normal=-flipped.normal, point=flipped.point - flipped.gap[..., None] * flipped.normal)
    ellipsoid = _solid(b, pose_b)
    if a.semi_axes is None:
        gap, normal, point = core_and_ellipsoid(a, pose_a, ellipsoid)
    else:
        gap, normal, point = ellipsoid_nearest("ellipsoid", _solid(a, pose_a), ellipsoid)
    gap = torch.where(asked, gap, 2 * REACH)
    return Term(gap, normal, point, torch.where(asked, torch.ones_like(gap), 0.0), asked, gap)


def _solid(core: Polytope, pose: tuple[Tensor, Tensor]) -> Solid:
    """An ellipsoid at a pose of its body."""
    assert core.semi_axes is not None and core.orientation is not None
    x, q = pose
    position, orientation = x + quat.rotate(q, core.center.to(x)), quat.multiply(q, core.orientation.to(q))
    return Solid(position, orientation, x.new_tensor(core.radius), core.semi_axes.to(x))


def _corner(a: Polytope, b: Polytope, pose_a: tuple[Tensor, Tensor], pose_b: tuple[Tensor, Tensor], i: Tensor, asked: Tensor) -> Term:
    """Corners of a against b; where they are not asked for, nothing."""
    (xa, qa), (xb, qb) = pose_a, pose_b
    place = xa + quat.rotate(qa, a.vertices.to(xa)[i])
    distance, local = b.distance(quat.inverse_rotate(qb, place - xb))
    normal = quat.rotate(qb, local)
    gap = distance - a.radius - b.radius
    gap, weight = torch.where(asked, gap, 2 * REACH), torch.ones_like(gap)
    return Term(gap, normal, place - a.radius * normal, torch.where(asked, weight, 0.0), asked, gap)


def _crossing(
    a: Polytope, b: Polytope, pose_a: tuple[Tensor, Tensor], pose_b: tuple[Tensor, Tensor], i: Tensor, j: Tensor, asked: Tensor
) -> Term:
    """Edges i of a and j of b, on the common normal of their lines."""
    (xa, qa), (xb, qb) = pose_a, pose_b
    start_a, start_b = a.vertices.to(xa)[a.edges[i, 0]], b.vertices.to(xa)[b.edges[j, 0]]
    u = quat.rotate(qa, a.vertices.to(xa)[a.edges[i, 1]] - start_a)
    v = quat.rotate(qb, b.vertices.to(xa)[b.edges[j, 1]] - start_b)
    from_a = xa + quat.rotate(qa, start_a)
    apart = from_a - xb - quat.rotate(qb, start_b)
    uu, vv, uv, ud, vd = ((p * q).sum(-1) for p, q in ((u, u), (v, v), (u, v), (u, apart), (v, apart)))
    across = torch.linalg.cross(u, v)
    square = (across * across).sum(-1)
    sine2 = square / (uu * vv)
    real = asked & (sine2 > PARALLEL[0] ** 2)
    square = torch.where(real, square, 1.0)
    axis = across / torch.sqrt(square)[..., None]
    s, t = (uv * vd - vv * ud) / square, (uu * vd - uv * ud) / square
    # The normal leads to the outside of b's edge and to the inside of a's, whatever the poses. Edges without faces are on no side.
    outward = quat.rotate(qb, b.outward.to(xa)[j]) - quat.rotate(qa, a.outward.to(xa)[i])
    lone = not len(a.normals) and not len(b.normals)
    side = torch.where((axis * (apart if lone else outward)).sum(-1) < 0, -1.0, 1.0)[..., None].detach()
    normal = side * axis
    gap = (normal * apart).sum(-1) - a.radius - b.radius
    ends_a, ends_b = torch.sqrt(uu) / ENDS, torch.sqrt(vv) / ENDS
    low, high = PARALLEL
    keep = fade(-ends_a * s) * fade(ends_a * (s - 1)) * fade(-ends_b * t) * fade(ends_b * (t - 1))
    keep = keep * fade((high**2 - sine2) / (high**2 - low**2))
    in_a, in_b = quat.inverse_rotate(qa, normal), quat.inverse_rotate(qb, normal)
    for k in (0, 1):
        keep = keep * fade((-(a.inward.to(xa)[i, k] * in_a).sum(-1) - CONE[0]) / (CONE[1] - CONE[0]))
        keep = keep * fade(((b.inward.to(xa)[j, k] * in_b).sum(-1) - CONE[0]) / (CONE[1] - CONE[0]))
    keep = torch.where(real, keep, 0.0)
    possible = (keep > 0) & (gap >= -PAST * (a.radius + b.radius))
    blended = torch.where(real, keep * gap + (1 - keep) * (2 * REACH), 2 * REACH)
    return Term(blended, normal, from_a + s[..., None] * u - a.radius * normal, keep, possible, gap)
