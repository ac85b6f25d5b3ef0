"""Shortest paths around spheres and cylinders: where a taut string between two points meets and leaves the surface, and how long it is.

The rules are those of MuJoCo 4.0, as its results show them; older versions choose another side where a side site is far from the string. A
sphere is cut by the plane of both points and its center, and a cylinder is looked at along its axis. In that plane the string winds around
a circle of radius r:

    around    the segment between the points meets the circle: two tangents and the shorter arc
    forced    the segment meets the ray from the center away from the side site: two tangents and the other arc
    inside    a side site lies inside of the surface: the string touches the circle from inside, at the point where both parts have equal
              angles with the circle, asin(A z) + asin(B z) − 2 asin(z) + G = 0 with A, B = r over the distances, G the angle between them
    straight  otherwise, and where a point is within the circle

All paths are stationary in the points of contact, so the derivative of the length has the string's directions alone.

Points of contact are solved to rounding, where MuJoCo stops Newton's method at 1e-6 rad. So directions differ there by about that much.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from torchdojo import quaternion as quat

__all__ = ["Wrapped", "arc_points", "wrap"]

SMALLEST = 1e-15  # [m], [1] lengths and determinants below do not count
INSIDE_ITERATIONS = 30  # of Newton's method; the string starts at z = START, on the convex side of the root
START = 1 - 1e-7
CONVERGED = 1e-14  # [rad]


class Wrapped(NamedTuple):
    """A path from a start to an end around a surface; world frame.

    wraps: (...) whether it touches the surface. first, second: (..., 3) points at which it meets and leaves it; start and end elsewhere.
    arc: (...) length on the surface [m], zero elsewhere.
    """

    wraps: Tensor
    first: Tensor
    second: Tensor
    arc: Tensor


def wrap(
    start: Tensor, end: Tensor, center: Tensor, turn: Tensor, radius: Tensor, *, cylinder: bool, side: Tensor | None = None
) -> Wrapped:
    """The path between two points around a sphere or an infinite cylinder.

    Args:
        start, end: (..., 3) [m]. center: (..., 3) [m]. turn: (..., 4) quaternion wxyz, surface to world; a cylinder is along its z.
        radius: (...) [m]. side: (..., 3), of the side site; None: the shorter way.
    """
    # a point and a surface of the world have no batch dimensions
    p = torch.broadcast_tensors(*(quat.inverse_rotate(turn, point - center) for point in (start, end)))
    s = None if side is None else quat.inverse_rotate(turn, side - center)
    if cylinder:
        x, y, _ = torch.eye(3, dtype=start.dtype, device=start.device).expand(*p[0].shape, 3).unbind(-2)
    else:
        x, y = _plane(*p)
    d = [torch.stack(((v * x).sum(-1), (v * y).sum(-1)), dim=-1) for v in p]
    flat = None if s is None else torch.stack(((s * x).sum(-1), (s * y).sum(-1)), dim=-1)
    valid = (_norm(p[0]) > SMALLEST) & (_norm(p[1]) > SMALLEST) & (radius > SMALLEST)
    wraps, first, second, arc = _around(d[0], d[1], radius, valid, flat)
    if s is not None:
        within = (_norm(s) < radius).detach()
        inner, contact = _inside(d[0], d[1], radius, valid & within)
        wraps = torch.where(within, inner, wraps)
        first, second = (torch.where(within[..., None], contact, point) for point in (first, second))
        arc = torch.where(within, 0.0, arc)
    first, second = (point[..., :1] * x + point[..., 1:] * y for point in (first, second))
    if cylinder:
        # The string is a straight line on the surface rolled out, so its height grows with the length in the plane.
        ways = [_norm(_keep(wraps, (a - b)[..., :2])) for a, b in ((p[0], first), (p[1], second))]
        rise = (p[1] - p[0])[..., 2] / (ways[0] + arc + ways[1])
        heights = p[0][..., 2] + rise * ways[0], p[0][..., 2] + rise * (ways[0] + arc)
        first, second = (
            torch.cat((point[..., :2], height[..., None]), dim=-1) for point, height in zip((first, second), heights, strict=True)
        )
        arc = arc * (1 + rise * rise).sqrt()
    points = [torch.where(wraps[..., None], center + quat.rotate(turn, local), other) for local, other in ((first, start), (second, end))]
    return Wrapped(wraps, points[0], points[1], torch.where(wraps, arc, 0.0))


def _norm(v: Tensor) -> Tensor:
    return torch.linalg.vector_norm(v, dim=-1)


def _keep(mask: Tensor, v: Tensor) -> Tensor:
    """v where the mask holds; elsewhere ones, whose functions have finite derivatives."""
    return torch.where(mask[..., None], v, torch.ones_like(v))


def _plane(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Orthonormal axes (..., 3) of the plane of two vectors, the first one along a. Any plane through a where both are parallel."""
    a = _keep(_norm(a) > SMALLEST, a)
    x = a / _norm(a)[..., None]
    across = torch.nn.functional.one_hot(x.detach().abs().argmin(-1), 3).to(x)
    normal, spare = quat.cross(x, b), quat.cross(x, across)
    parallel = (_norm(normal) <= SMALLEST * _norm(b).clamp_min(SMALLEST))[..., None]
    normal = torch.where(parallel, spare, normal)
    y = quat.cross(normal, x)
    return x, y / _norm(y)[..., None]


def _nearest(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Where the segment a b is nearest to the origin, as a fraction that may lie outside of it, and its squared length; both (...)."""
    way = (b - a).detach()
    square = (way * way).sum(-1)
    return -(way * a.detach()).sum(-1) / square.clamp_min(SMALLEST), square


def _turned(a: Tensor, b: Tensor) -> Tensor:
    """a × b in the plane, (...)."""
    return a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0]


def _around(a: Tensor, b: Tensor, radius: Tensor, valid: Tensor, side: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The path outside around a circle: whether it touches, its points of contact (..., 2), the arc (...)."""
    outside = ((a * a).sum(-1) >= radius**2) & ((b * b).sum(-1) >= radius**2)
    share, square = _nearest(a, b)
    nearest = a.detach() + share.clamp(0, 1)[..., None] * (b - a).detach()
    blocked = (nearest * nearest).sum(-1) <= radius**2
    if side is None:
        forced = torch.zeros_like(blocked)
    else:
        sign = _turned(a, b).detach()
        forced = (sign * _turned(a, -side).detach() >= 0) & (sign * _turned(-side, b).detach() >= 0)
    wraps = valid & outside & (square >= SMALLEST) & (blocked | forced)
    # Points that do not wrap are replaced by some that do, so that no derivative is NaN.
    r = torch.where(wraps, radius, 1.0)
    a, b = (torch.where(wraps[..., None], p, p.new_tensor(spare)) for p, spare in ((a, (2.0, 0.5)), (b, (-2.0, 0.5))))
    turned = _turned(a, b)
    between = torch.atan2(turned.abs(), (a * b).sum(-1))
    clockwise = (turned < 0) ^ forced
    arc = torch.where(forced, 2 * torch.pi - between, between)
    ends = []
    way = torch.where(clockwise, -torch.ones_like(turned), torch.ones_like(turned))
    for point, sign in ((a, way), (b, -way)):
        over = (point * point).sum(-1) - r * r
        # A point on the circle itself is its own tangent point: no derivative of the root there.
        root = torch.where(over > 0, torch.where(over > 0, over, 1.0).sqrt(), 0.0)
        across = torch.stack((-point[..., 1], point[..., 0]), dim=-1)
        share = (r / (r * r + root * root))[..., None]
        ends.append(share * (r[..., None] * point + (sign * root)[..., None] * across))
        arc = arc - torch.atan2(root, r)
    return wraps, ends[0], ends[1], r * arc


def _inside(a: Tensor, b: Tensor, radius: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    """The path that touches a circle from inside: whether it does, and the point of contact (..., 2)."""
    share, square = _nearest(a, b)
    nearest = a.detach() + share[..., None] * (b - a).detach()
    cuts = (square > SMALLEST) & (share > 0) & (share < 1) & ((nearest * nearest).sum(-1) <= radius**2)
    turned = a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0]
    opposite = (a * b).sum(-1) < (SMALLEST - 1) * _norm(a.detach()) * _norm(b.detach())
    touches = valid & (_norm(a) > radius) & (_norm(b) > radius) & ~cuts & ~opposite
    r = torch.where(touches, radius, 1.0)
    a, b = (torch.where(touches[..., None], p, p.new_tensor(spare)) for p, spare in ((a, (2.0, 0.0)), (b, (0.5, 2.0))))
    turned = torch.where(touches, turned, 4.0)
    ratios = r / _norm(a), r / _norm(b)
    angle = torch.atan2(turned.abs(), (a * b).sum(-1))

    def equation(z: Tensor, ratios: tuple[Tensor, Tensor], angle: Tensor) -> tuple[Tensor, Tensor]:
        value = torch.asin(ratios[0] * z) + torch.asin(ratios[1] * z) - 2 * torch.asin(z) + angle
        slope = sum(k / (1 - (k * z) ** 2).sqrt() for k in ratios) - 2 / (1 - z * z).sqrt()
        return value, slope

    guess = (ratios[0].detach(), ratios[1].detach()), angle.detach()
    z = torch.full_like(angle, START).detach()
    solvable = (equation(z, *guess)[0] <= 0) & (angle.detach() > SMALLEST)
    for _ in range(INSIDE_ITERATIONS):
        value, slope = equation(z, *guess)
        z = torch.where(solvable & (value.abs() > CONVERGED), (z - value / slope).clamp(0.0, START), z)
    # One more step with derivatives: the implicit function theorem.
    value, slope = equation(torch.where(solvable, z, 0.5), ratios, angle)
    z = z - torch.where(solvable, value / slope.detach(), 0.0)
    z = torch.where(solvable, z, 0.5)
    swap = turned > 0
    base = torch.where(swap[..., None], a, b)
    lead = torch.asin(z) - torch.asin(torch.where(swap, *ratios) * z)
    base = base / _norm(base)[..., None]
    cos, sin = lead.cos(), lead.sin()
    contact = torch.stack((cos * base[..., 0] - sin * base[..., 1], sin * base[..., 0] + cos * base[..., 1]), dim=-1)
    # Without a root, the string touches half way between the directions of both points.
    half = a + b
    half = half / _norm(_keep(_norm(half) > SMALLEST, half))[..., None]
    return touches, r[..., None] * torch.where(solvable[..., None], contact, half)


def arc_points(wrapped: Wrapped, start: Tensor, center: Tensor, turn: Tensor, *, cylinder: bool, count: int) -> Tensor:
    """Points (..., count, 3) of a path on its surface, evenly from where it meets the surface to where it leaves it, to draw.

    Args:
        wrapped: of `wrap`. start, center, turn: as in `wrap`. count: 2 or more. Where nothing is touched, all points are the start.
    """
    first, second, before = (quat.inverse_rotate(turn, point - center) for point in (wrapped.first, wrapped.second, start))
    flat = first.new_tensor([1.0, 1.0, 0.0 if cylinder else 1.0])
    rise = second[..., 2:] - first[..., 2:] if cylinder else torch.zeros_like(first[..., 2:])
    out = flat * first
    radius = torch.linalg.vector_norm(out, dim=-1, keepdim=True).clamp_min(SMALLEST)
    out = out / radius
    # The string comes in along a tangent. Where it starts on the surface, the chord has the direction.
    coming = flat * (first - before)
    coming = torch.where((coming.abs().amax(-1, keepdim=True) < SMALLEST), flat * (second - first), coming)
    coming = coming - (coming * out).sum(-1, keepdim=True) * out
    coming = coming / torch.linalg.vector_norm(coming, dim=-1, keepdim=True).clamp_min(SMALLEST)
    swept = torch.sqrt((wrapped.arc[..., None] ** 2 - rise**2).clamp_min(0.0)) / radius
    share = torch.linspace(0.0, 1.0, count, dtype=first.dtype, device=first.device)[:, None]
    angle = share * swept[..., None, :]
    local = radius[..., None, :] * (torch.cos(angle) * out[..., None, :] + torch.sin(angle) * coming[..., None, :])
    local = local + (1 - flat) * (first[..., None, :] + share * (second - first)[..., None, :])
    points = center[..., None, :] + quat.rotate(turn[..., None, :].expand(*local.shape[:-1], 4), local)
    return torch.where(wrapped.wraps[..., None, None], points, start[..., None, :])
