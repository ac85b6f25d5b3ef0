"""Distance of an ellipsoid E from a point, a segment, a box or another ellipsoid K, by Newton's method on its normals.

An ellipsoid has one point p(n) for each outward normal n, and K has one point q that is nearest to it: its projection of p or, of another
ellipsoid, the point with the normal −n. They are nearest points of both where r = q − p is parallel to n:

    p(n) = c + Q n / h      h = √(nᵀQn)      r(n)·n = f      T r = 0      T = I − nnᵀ

On the sphere of normals, −T r has the derivative T (J H + f I) T, where H = ∂p/∂n = Q/h − (Qn)(Qn)ᵀ/h³, and J = ∂(p − q)/∂p is a
projection; of two ellipsoids, J H is the sum of both H. An iteration must not reduce the separation along n, which is concave where shapes
are apart. Inside of `torch.func`, which hides values, the number of iterations is fixed. The last two are differentiated.

Boxes are rounded by a hundredth of their shortest edge, from 0.1 to 1 mm: they have a normal even where they overlap by less than that.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchdojo import quaternion as quat
from torchdojo.geometry.distance import COINCIDENT, segment_point, separation
from torchdojo.geometry.solids import Solid
from torchdojo.parameters import transforming

__all__ = [
    "BOX_ROUNDING", "HALVINGS", "ITERATIONS", "LONGEST", "SETTLED", "core_radius", "ellipsoid_end", "ellipsoid_nearest", "end_and_slope",
    "newton_step", "shape_matrix",
]  # fmt: skip

ITERATIONS, HALVINGS, DERIVATIVES = 40, 3, 2  # 6 in the mean; 16 leave one of 4,000 pairs with an error of 1e-11 m
LONGEST = 0.5  # of an iteration [rad]
SETTLED = 1e-9  # an iteration [rad] below ends the search: the next error is of the order of its square
BOX_ROUNDING = (0.02, 1e-4, 1e-3)  # radius of a box's edges: share of its shortest half edge, least and most [m]


def core_radius(half: Tensor) -> Tensor:
    """Radius (...,) by which a box with half edges (..., 3) is rounded inwards."""
    share, least, most = BOX_ROUNDING
    return (share * half.amin(-1)).clamp(least, most)


def ellipsoid_nearest(kind: str, a: Solid, b: Solid) -> tuple[Tensor, Tensor, Tensor]:
    """Distance (...,), normal (..., 3) from b to a, and the nearest point (..., 3) of a, of a solid of a kind and an ellipsoid b."""
    radius = a.radius + core_radius(0.5 * a.extent) if kind == "box" else a.radius
    one, two = (type(s)(*(part.detach() for part in s)) for s in (a, b))
    with torch.no_grad():
        n = _start(kind, one, two)
        for _ in range(ITERATIONS):
            step, value = _step(kind, one, two, n), _separation(kind, one, two, n)
            best = n
            for k in range(HALVINGS, -1, -1):  # the longest part of the step that does not reduce the separation
                tried = _unit(n + 0.5**k * step)
                best = torch.where((_separation(kind, one, two, tried) >= value)[..., None] | (k == HALVINGS), tried, best)
            n = best
            if not transforming() and not bool((step.abs() > SETTLED).any()):
                break
    for _ in range(DERIVATIVES):
        n = _unit(n + _step(kind, a, b, n))
    p, q, _ = _points(kind, a, b, n)
    distance = (n * (q - p)).sum(-1) - radius - b.radius
    return distance, n, q - radius[..., None] * n


def _unit(n: Tensor) -> Tensor:
    return n / torch.linalg.vector_norm(n, dim=-1, keepdim=True)


def shape_matrix(solid: Solid) -> Tensor:
    """Q (..., 3, 3) of an ellipsoid, whose extent are the semi-axes."""
    axes = quat.rotation_matrix(solid.orientation) * solid.extent[..., None, :]
    return axes @ axes.mT


def end_and_slope(Q: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
    """The point (..., 3) of an ellipsoid with the normal n, from its center, and its derivative H (..., 3, 3)."""
    along = (Q @ n[..., None]).squeeze(-1)
    h = torch.sqrt((n * along).sum(-1))[..., None]
    point = along / h
    return point, (Q - point[..., :, None] * point[..., None, :]) / h[..., None]


def ellipsoid_end(solid: Solid, normal: Tensor) -> Tensor:
    """The point (..., 3) of an ellipsoid with this outward normal, from its center."""
    return end_and_slope(shape_matrix(solid), normal)[0]


def _project(kind: str, a: Solid, p: Tensor) -> tuple[Tensor, Tensor]:
    """The point (..., 3) of the core of a that is nearest to p, and J (..., 3, 3)."""
    eye = torch.eye(3, dtype=p.dtype, device=p.device)
    if kind == "sphere":
        return a.position.expand(p.shape), eye.expand(*p.shape, 3)
    if kind == "capsule":
        u = a.half_vector
        s = segment_point(u, p - a.position)[..., None]
        within = (s.abs() < 1)[..., None] * u[..., :, None] * u[..., None, :] / (u * u).sum(-1)[..., None, None]
        return a.position + s * u, eye - within
    R, half = quat.rotation_matrix(a.orientation), 0.5 * a.extent
    inner = half - core_radius(half)[..., None]
    local = a.to_local(p)
    inner, local = torch.broadcast_tensors(inner, local)
    beyond = local.abs() - inner
    inside = (beyond <= 0).all(-1, keepdim=True)
    face = torch.zeros_like(local).scatter(-1, beyond.detach().argmax(-1, keepdim=True), 1.0) > 0
    moved = torch.where(inside, face, beyond > 0)
    nearest = torch.where(moved, torch.where(local < 0, -inner, inner), local)
    return a.position + quat.rotate(a.orientation, nearest), (R * moved.to(p)[..., None, :]) @ R.mT


def _points(kind: str, a: Solid, b: Solid, n: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """p on b, q on the core of a (..., 3), and J H (..., 3, 3)."""
    end, H = end_and_slope(shape_matrix(b), n)
    p = b.position + end
    if kind == "ellipsoid":
        other, other_H = end_and_slope(shape_matrix(a), n)
        return p, a.position - other, H + other_H
    q, J = _project(kind, a, p)
    return p, q, J @ H


def _start(kind: str, a: Solid, b: Solid) -> Tensor:
    """From the center of b to what is nearest of a's core, or to its center where that is inside."""
    middle = a.position - b.position
    if kind in ("sphere", "ellipsoid"):
        return separation(middle)[1]
    q, _ = _project(kind, a, b.position)
    inside = torch.linalg.vector_norm(q - b.position, dim=-1, keepdim=True) < COINCIDENT
    n = separation(torch.where(inside, middle, q - b.position))[1]
    if kind == "box":  # inside the box, away from the nearest face
        deep = (a.to_local(b.position).abs() <= 0.5 * a.extent - core_radius(0.5 * a.extent)[..., None]).all(-1, keepdim=True)
        n = torch.where(deep, -n, n)
    return n


def _step(kind: str, a: Solid, b: Solid, n: Tensor) -> Tensor:
    """Newton's step (..., 3), across n, of at most `LONGEST`."""
    p, q, JH = _points(kind, a, b, n)
    return newton_step(n, q - p, JH, kind == "box")


def newton_step(n: Tensor, r: Tensor, JH: Tensor, signed: bool = False) -> Tensor:
    """The change (..., 3) of the normal n, across it, of at most `LONGEST`. JH: (..., 3, 3).

    signed: whether r·n counts where shapes overlap, too. There the separation is not concave.
    """
    f = (n * r).sum(-1)[..., None, None]
    T = torch.eye(3, dtype=n.dtype, device=n.device) - n[..., :, None] * n[..., None, :]
    if not signed:
        f = f.clamp_min(0)
    x, y, z = (T @ JH @ T + f * T + n[..., :, None] * n[..., None, :]).unbind(-2)
    yz, zx, xy = (torch.linalg.cross(*pair) for pair in ((y, z), (z, x), (x, y)))
    right = (T @ r[..., None]).squeeze(-1)
    determinant = (x * yz).sum(-1, keepdim=True)
    whole = torch.where(determinant != 0, determinant, 1.0)
    step = (yz * right[..., :1] + zx * right[..., 1:2] + xy * right[..., 2:]) / whole
    step = torch.where(determinant != 0, step, 0.0)
    length = torch.linalg.vector_norm(step.detach(), dim=-1, keepdim=True)
    return step * (LONGEST / length.clamp_min(LONGEST))


def _separation(kind: str, a: Solid, b: Solid, n: Tensor) -> Tensor:
    """Separation (...,) along n, of cores."""
    value = (n * (a.position - b.position)).sum(-1) - torch.sqrt((n * (shape_matrix(b) @ n[..., None]).squeeze(-1)).sum(-1))
    if kind == "ellipsoid":
        return value - torch.sqrt((n * (shape_matrix(a) @ n[..., None]).squeeze(-1)).sum(-1))
    if kind == "capsule":
        return value - (a.half_vector * n).sum(-1).abs()
    if kind == "box":
        inner = 0.5 * a.extent - core_radius(0.5 * a.extent)[..., None]
        return value - (inner * quat.inverse_rotate(a.orientation, n).abs()).sum(-1)
    return value
