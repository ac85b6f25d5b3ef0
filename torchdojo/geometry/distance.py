"""Nearest points of points, segments and boxes, in closed form: pure functions that broadcast and have finite derivatives everywhere.

A segment has a center and a half vector u, and consists of the points center + s u with s in [-1, 1]. A box sits in its own frame and has
the half edges `half` (..., 3). Lengths are in meters.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["point_box", "segment_box", "segment_point", "segment_segment", "separation"]

# Weight of s² against the squared distance, relative to u². The weight makes the nearest points of parallel segments unique (the middle
# points) and lets them move smoothly to the ends. For a segment of length L at a distance d they move over angles of PARALLEL L/2d. The
# distance has an error of at most PARALLEL L²/8d (7 µm for L = 40 cm, d = 30 cm). At larger angles a, points shift by PARALLEL/sin² a.
# With 1e-8, the step of a capsule that is hit while it lies on a box does not converge.
PARALLEL = 1e-4
COINCIDENT = 1e-12  # distance [m] below which two points have no direction between them


def separation(difference: Tensor) -> tuple[Tensor, Tensor]:
    """Length (...,) and direction (..., 3) of a vector; zero and the z axis for a vector shorter than `COINCIDENT`."""
    squared = (difference * difference).sum(-1)
    apart = squared > COINCIDENT**2
    length = torch.sqrt(torch.where(apart, squared, torch.ones_like(squared)))
    upward = torch.zeros_like(difference)
    upward[..., 2] = 1
    direction = torch.where(apart[..., None], difference / length[..., None], upward)
    return torch.where(apart, length, torch.zeros_like(length)), direction


def point_box(point: Tensor, half: Tensor) -> tuple[Tensor, Tensor]:
    """Signed distance (...,), negative inside, of a point (..., 3) to a box, and its gradient, the outward unit normal (..., 3).

    Over a face, the normal is exactly the face's; around edges and corners it turns. Inside the box, it is the normal of the nearest face.
    """
    point, half = torch.broadcast_tensors(point, half)
    beyond = point.abs() - half
    sign = torch.where(point < 0, -1.0, 1.0).to(point)
    outer = beyond.clamp_min(0)
    squared = (outer * outer).sum(-1)
    outside = squared > 0
    length = torch.sqrt(torch.where(outside, squared, torch.ones_like(squared)))
    nearest = beyond.detach().argmax(-1, keepdim=True)
    depth = torch.gather(beyond, -1, nearest).squeeze(-1)
    face = torch.zeros_like(point).scatter(-1, nearest, 1.0)
    normal = sign * torch.where(outside[..., None], outer / length[..., None], face)
    return torch.where(outside, length, depth), normal


def segment_point(u: Tensor, difference: Tensor) -> Tensor:
    """Parameter s (...,) of the point of a segment that is nearest to the point center + `difference` (..., 3)."""
    return ((u * difference).sum(-1) / (u * u).sum(-1)).clamp(-1, 1)


def segment_segment(u: Tensor, v: Tensor, difference: Tensor) -> tuple[Tensor, Tensor]:
    """Parameters (s, t) of the nearest points of two segments with half vectors u and v; `difference` is the first center minus the second.

    They minimize |difference + s u − t v|² + ε (u² s² + v² t²), a strictly convex function, over the square (Ericson 2005, section 5.1.9).
    """
    a, e = (1 + PARALLEL) * (u * u).sum(-1), (1 + PARALLEL) * (v * v).sum(-1)
    b, c, f = (u * v).sum(-1), (u * difference).sum(-1), (v * difference).sum(-1)
    s = ((b * f - c * e) / (a * e - b * b)).clamp(-1, 1)
    t = (b * s + f) / e
    inside = t.clamp(-1, 1)
    return torch.where(t == inside, s, ((b * inside - c) / a).clamp(-1, 1)), inside


def segment_box(center: Tensor, u: Tensor, half: Tensor) -> Tensor:
    """Parameter s (...,) of the point of a segment that is nearest to a box.

    Half the derivative of the squared distance is g(s) = u·(p − clamp(p, −half, half)) + ε u² s with p = center + s u. The function g
    increases, and it is straight between the values of s at which p crosses the plane of a face. Its root therefore follows from its values
    at these crossings. If the segment passes through the box, the root is the point inside that is nearest to the middle of the segment.
    """
    center, u, half = torch.broadcast_tensors(center, u, half)
    crosses = u.abs() > COINCIDENT
    slope = torch.where(crosses, u, torch.ones_like(u))
    planes = torch.cat(((half - center) / slope, (-half - center) / slope), dim=-1).clamp(-1, 1)
    ends = torch.ones_like(center[..., :1])
    stops = torch.cat((torch.where(crosses.repeat(*[1] * (u.ndim - 1), 2), planes, torch.ones_like(planes)), -ends, ends), dim=-1)
    stops = torch.take_along_dim(stops, stops.detach().argsort(dim=-1), dim=-1)
    p = center[..., None, :] + stops[..., None] * u[..., None, :]
    outside = p - torch.minimum(torch.maximum(p, -half[..., None, :]), half[..., None, :])
    g = (u[..., None, :] * outside).sum(-1) + PARALLEL * (u * u).sum(-1, keepdim=True) * stops
    before = (g.detach() < 0).sum(-1, keepdim=True)
    low = (before - 1).clamp(0, stops.shape[-1] - 2)
    (s0, s1), (g0, g1) = ((torch.gather(x, -1, low).squeeze(-1), torch.gather(x, -1, low + 1).squeeze(-1)) for x in (stops, g))
    rise = g1 - g0
    between = (g0 < 0) & (g1 >= 0) & (rise > 0)
    s = s0 - torch.where(between, g0, torch.zeros_like(g0)) * (s1 - s0) / torch.where(between, rise, torch.ones_like(rise))
    # Without a root inside, g has one sign all along, and the nearest point is the first (g > 0) or the last (g < 0).
    return torch.where(before.squeeze(-1) == stops.shape[-1], s1, s)
