"""Nearest points of points, segments and boxes, in closed form: pure functions that broadcast and have finite derivatives everywhere.

A segment is its centre and its half vector u, and runs over centre + s u with s in [-1, 1]. A box sits in its own frame with half edges
`half` (..., 3). Lengths are in metres.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["point_box", "segment_box", "segment_point", "segment_segment", "separation"]

# Weight of s² against the squared distance, relative to u². It makes the nearest points of parallel segments unique (the middle ones), and
# lets them move smoothly to the ends: for a segment of length L at a distance d, over angles of PARALLEL L/2d, with an error of the
# distance of at most PARALLEL L²/8d (7 µm for L = 40 cm, d = 30 cm). At larger angles a, points shift by this over sin² a. With 1e-8, a
# capsule that was hit while it lay on a box found no step.
PARALLEL = 1e-4
COINCIDENT = 1e-12  # distance [m] below which two points have no direction between them


def separation(difference: Tensor) -> tuple[Tensor, Tensor]:
    """Length (...,) and direction (..., 3) of a vector; zero and z for one that is shorter than `COINCIDENT`."""
    squared = (difference * difference).sum(-1)
    apart = squared > COINCIDENT**2
    length = torch.sqrt(torch.where(apart, squared, torch.ones_like(squared)))
    upward = torch.zeros_like(difference)
    upward[..., 2] = 1
    direction = torch.where(apart[..., None], difference / length[..., None], upward)
    return torch.where(apart, length, torch.zeros_like(length)), direction


def point_box(point: Tensor, half: Tensor) -> tuple[Tensor, Tensor]:
    """Signed distance (...,), negative inside, of a point (..., 3) to a box, and its gradient, the outward unit normal (..., 3).

    Over a face the normal is that of the face, exactly; around edges and corners it turns. Inside it is that of the nearest face.
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
    """s (...,) of the point of a segment that is nearest to the point centre + `difference` (..., 3)."""
    return ((u * difference).sum(-1) / (u * u).sum(-1)).clamp(-1, 1)


def segment_segment(u: Tensor, v: Tensor, difference: Tensor) -> tuple[Tensor, Tensor]:
    """(s, t) of the nearest points of the segments of half vectors u and v, `difference` (..., 3) from the second centre to the first.

    The minimum of |difference + s u − t v|² + ε (u² s² + v² t²), a strictly convex function, over the square (Ericson 2005, section 5.1.9).
    """
    a, e = (1 + PARALLEL) * (u * u).sum(-1), (1 + PARALLEL) * (v * v).sum(-1)
    b, c, f = (u * v).sum(-1), (u * difference).sum(-1), (v * difference).sum(-1)
    s = ((b * f - c * e) / (a * e - b * b)).clamp(-1, 1)
    t = (b * s + f) / e
    inside = t.clamp(-1, 1)
    return torch.where(t == inside, s, ((b * inside - c) / a).clamp(-1, 1)), inside


def segment_box(centre: Tensor, u: Tensor, half: Tensor) -> Tensor:
    """s (...,) of the point of a segment that is nearest to a box.

    Half the derivative of the squared distance, g(s) = u·(p − clamp(p, −half, half)) + ε u² s with p = centre + s u, increases and is
    straight between the s at which p crosses a plane of a face: its root follows from its values there. Of a segment that passes through
    the box, the point inside that is nearest to the middle.
    """
    centre, u, half = torch.broadcast_tensors(centre, u, half)
    crosses = u.abs() > COINCIDENT
    slope = torch.where(crosses, u, torch.ones_like(u))
    planes = torch.cat(((half - centre) / slope, (-half - centre) / slope), dim=-1).clamp(-1, 1)
    ends = torch.ones_like(centre[..., :1])
    stops = torch.cat((torch.where(crosses.repeat(*[1] * (u.ndim - 1), 2), planes, torch.ones_like(planes)), -ends, ends), dim=-1)
    stops = torch.take_along_dim(stops, stops.detach().argsort(dim=-1), dim=-1)
    p = centre[..., None, :] + stops[..., None] * u[..., None, :]
    outside = p - torch.minimum(torch.maximum(p, -half[..., None, :]), half[..., None, :])
    g = (u[..., None, :] * outside).sum(-1) + PARALLEL * (u * u).sum(-1, keepdim=True) * stops
    before = (g.detach() < 0).sum(-1, keepdim=True)
    low = (before - 1).clamp(0, stops.shape[-1] - 2)
    (s0, s1), (g0, g1) = ((torch.gather(x, -1, low).squeeze(-1), torch.gather(x, -1, low + 1).squeeze(-1)) for x in (stops, g))
    rise = g1 - g0
    between = (g0 < 0) & (g1 >= 0) & (rise > 0)
    s = s0 - torch.where(between, g0, torch.zeros_like(g0)) * (s1 - s0) / torch.where(between, rise, torch.ones_like(rise))
    # No root inside: g is positive, or negative, all along, and the nearest point is the first, or the last.
    return torch.where(before.squeeze(-1) == stops.shape[-1], s1, s)
