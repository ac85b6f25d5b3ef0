"""The nearest points of a polytope and an ellipsoid, with derivatives, for contact (near_terms.py).

Normals turn fast where a flat core has sharp edges: by up to a right angle while the ellipsoid moves by the radius of these edges. There
Newton's method on normals (ellipsoids.py) jumps from feature to feature. So the search for nearest points (closest.py) says which feature
of the core is nearest, and Newton's method ends on this feature alone. The last iterations, which start at the solution, have the
derivatives of the normal by the implicit function theorem.

Cores that overlap belong to shapes that overlap by more than the radius. No step ends there, but the solver passes. Then the feature is
that of an ellipsoid that is scaled until it is apart, and the gap is the separation along the normal at which Newton's method ends. If even
its center is inside, the face of the largest separation counts.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchdojo import quaternion as quat
from torchdojo.geometry.closest import distance
from torchdojo.geometry.convex import Convex
from torchdojo.geometry.ellipsoids import DERIVATIVES, end_and_slope, newton_step, shape_matrix
from torchdojo.geometry.polytopes import Feature, Polytope
from torchdojo.geometry.solids import Solid

__all__ = ["SCALES", "SETTLING", "TOUCHING", "core_and_ellipsoid"]

TOUCHING = 1e-9  # [m]: cores that are nearer count as overlapping
SCALES = (1.0, 0.95, 0.8, 0.5, 0.0)  # of the ellipsoid, one after the other, until it is apart from the core
SETTLING = 8  # iterations on a feature that a smaller ellipsoid has found


def core_and_ellipsoid(core: Polytope, pose: tuple[Tensor, Tensor], ellipsoid: Solid) -> tuple[Tensor, Tensor, Tensor]:
    """Gap (...,) [m] of a polytope with its radius, unit normal (..., 3) from the ellipsoid to it, and its nearest point (..., 3).

    Args:
        pose: of the core's body, positions (..., 3) and orientations (..., 4).
        ellipsoid: in the world.
    """
    x, q = pose
    steady = Solid(*(part.detach() for part in ellipsoid))
    with torch.no_grad():
        n, feature, settled = _start(core, x.detach(), q.detach(), steady)
        if not bool(settled.all()):
            for _ in range(SETTLING):
                better = _turned(core, feature, x.detach(), q.detach(), steady, n)
                n = torch.where(settled[..., None], n, better)
    for _ in range(DERIVATIVES):
        n = _turned(core, feature, x, q, ellipsoid, n)
    p, on_core, _ = _points(core, feature, x, q, ellipsoid, n)
    return (n * (on_core - p)).sum(-1) - core.radius, n, on_core - core.radius * n


def _turned(core: Polytope, feature: Feature, x: Tensor, q: Tensor, ellipsoid: Solid, n: Tensor) -> Tensor:
    """The normal after an iteration."""
    p, on_core, JH = _points(core, feature, x, q, ellipsoid, n)
    n = n + newton_step(n, on_core - p, JH, True)
    return n / torch.linalg.vector_norm(n, dim=-1, keepdim=True)


def _points(core: Polytope, feature: Feature, x: Tensor, q: Tensor, ellipsoid: Solid, n: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The point of the ellipsoid with normal n, the nearest one of the feature (..., 3), and J H (..., 3, 3), as in ellipsoids.py."""
    end, H = end_and_slope(shape_matrix(ellipsoid), n)
    p = ellipsoid.position + end
    local, within = core.project(quat.inverse_rotate(q, p - x), feature)
    R = quat.rotation_matrix(q)
    return p, x + quat.rotate(q, local), H - R @ within @ R.mT @ H


def _start(core: Polytope, x: Tensor, q: Tensor, ellipsoid: Solid) -> tuple[Tensor, Feature, Tensor]:
    """A normal (..., 3), the feature of the core, and whether the normal is that of nearest points (...,)."""
    center, axes = ellipsoid.position, quat.rotation_matrix(ellipsoid.orientation) * ellipsoid.extent[..., None, :]
    sharp, Q = Convex(core.vertices, None, x.new_zeros(())), shape_matrix(ellipsoid)
    inside = center
    n, apart, settled = torch.zeros_like(center), torch.zeros_like(center[..., 0], dtype=torch.bool), None
    for scale in SCALES:
        witness = distance(sharp, (x, q), Convex(center[..., None, :], scale * axes, x.new_zeros(())), None)
        new = ~apart & (witness.distance > TOUCHING)
        n = torch.where(new[..., None], witness.normal, n)
        inside = torch.where(new[..., None], center + scale * end_and_slope(Q, witness.normal)[0], inside)
        apart = apart | new
        settled = apart if settled is None else settled
        if bool(apart.all()):
            break
    feature = core.feature(quat.inverse_rotate(q, inside - x))
    if not bool(apart.all()) and len(core.normals):
        normals, local = core.normals.to(x), quat.inverse_rotate(q, center - x)
        widths = torch.linalg.vector_norm(normals @ (quat.rotation_matrix(q).mT @ axes), dim=-1)
        face = (local @ normals.T - core.offsets.to(x) - widths).argmax(-1)
        n = torch.where(apart[..., None], n, -quat.rotate(q, normals[face]))
        feature = feature._replace(face=torch.where(apart, feature.face, face))
    upward = torch.zeros_like(n)
    upward[..., 2] = 1
    assert settled is not None
    return torch.where((n == 0).all(-1, keepdim=True), upward, n), feature, settled
