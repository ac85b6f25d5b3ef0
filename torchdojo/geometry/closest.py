"""Signed distance, normal and nearest points of two convex shapes: exact, batched, differentiable.

A search (geometry/simplices.py) says which corners carry the nearest points. The normal is then perpendicular to the edges between these
corners of each shape, and among such normals n it maximizes the separation

    f(n) = n·(p − q) − |Aᵀn| − |Bᵀn|        p, q: a corner of a and of b; A, B: semi-axes of their round parts

A face, or two edges, leave one normal. Else Newton's method on the unit sphere finds it: f is homogeneous, so that its Hessian there is
H − f I. Corners alone take one iteration. Each f(n) is a lower bound of the distance, and its largest value is the distance, so of several
candidates the best counts: the cap of a cylinder is one, since |Aᵀn| has a kink there. The last two iterations are differentiated. They
start at the solution, so their first and second derivatives are those of the normal (the implicit function theorem).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchdojo.geometry.convex import Convex, Placed, convex_of
from torchdojo.geometry.shapes import Shape
from torchdojo.geometry.simplices import Simplex, deepest_simplex, nearest_simplex
from torchdojo.geometry.solids import Witness
from torchdojo.geometry.world import Plane
from torchdojo.parameters import as_tensor, broadcast_shapes, require
from torchdojo.quaternion import normalize, rotate

__all__ = ["distance"]

CHUNK = 4096  # pairs at a time: their corners stay in the cache
ITERATIONS, DERIVATIVES = 8, 2
LONGEST = 0.5  # of an iteration [rad]
PARALLEL = 1e-9  # sine of the angle between two edges below which they leave a normal free
OF_A = 7  # edges of a candidate that are those of a: four of its corners, three of its cap
KINK = 1e-12  # |Aᵀn| relative to A below which its derivatives are those of a rounded kink

Pose = tuple[Any, Any] | None


def distance(a: Shape | Convex | Plane, pose_a: Pose, b: Shape | Convex | Plane, pose_b: Pose) -> Witness:
    """Distance of two convex shapes, negative where they overlap.

    Sizes and poses may have batch dimensions, which broadcast, and all of them are differentiated, twice if wanted. Where nearest points
    are not unique (faces or edges that lie parallel), one of them is given. It computes on the CPU, in float64.

    Args:
        a, b: Sphere, Capsule, Box, Cylinder, Ellipsoid, Hull, or one of them a `Plane`.
        pose_a, pose_b: positions (..., 3) [m] and orientations (..., 4) wxyz of their bodies; None: the frame of the world.

    Returns:
        distance (...,) [m]: if negative, the least way that separates the shapes. normal (..., 3): unit, from b to a. point (..., 3): of a,
        nearest to b; `other_point` is that of b.

    Raises:
        ValueError: shapes that are not convex, two planes, poses of other shapes or with numbers that are not finite.
    """
    one, two = _pose("pose_a", pose_a), _pose("pose_b", pose_b)
    if isinstance(a, Plane):
        if isinstance(b, Plane):
            raise ValueError("distance: got two planes; allowed: at most one")
        witness = distance(b, pose_b, a, pose_a)
        return Witness(witness.distance, -witness.normal, witness.other_point)
    first, second = convex_of(a), None if isinstance(b, Plane) else convex_of(b)
    shapes = [shape for shape in (first, second) if shape is not None]
    leads = [value.shape[:-1] for value in (*one, *two)] + [shape.radius.shape for shape in shapes]
    leads += [shape.vertices.shape[:-2] for shape in shapes] + [shape.axes.shape[:-2] for shape in shapes if shape.axes is not None]
    if isinstance(b, Plane):
        leads += [b.normal.shape[:-1], b.offset.shape]
    batch = broadcast_shapes(*leads)
    first_core = Placed.of(first, *one, batch)
    if second is None:
        assert isinstance(b, Plane)
        witness = _above(first_core, *(value.expand(*batch, value.shape[-1]).reshape(-1, value.shape[-1]) for value in _half_space(b, two)))
        radius = first.radius
    else:
        other = Placed.of(second, *two, batch)
        # Near the origin, positions have all their digits.
        shift = other.x.detach()
        first_core, other = first_core._replace(x=first_core.x - shift), other._replace(x=other.x - shift)
        chunks = [slice(k, k + CHUNK) for k in range(0, max(len(first_core.x), 1), CHUNK)]
        parts = [_nearest(first_core.at(rows), other.at(rows), (first.flat, second.flat)) for rows in chunks]
        witness = Witness(*(torch.cat(part) for part in zip(*parts, strict=True)))
        witness = witness._replace(point=witness.point + shift)
        radius = first.radius + second.radius
    gap, normal = witness.distance.reshape(batch) - radius, witness.normal.reshape(*batch, 3)
    return Witness(gap, normal, witness.point.reshape(*batch, 3) - first.radius[..., None] * normal)


def _pose(label: str, given: Pose) -> tuple[Tensor, Tensor]:
    x, q = ((0.0, 0.0, 0.0), (1.0, 0.0, 0.0, 0.0)) if given is None else given
    position, orientation = as_tensor(x, label).double(), as_tensor(q, label).double()
    for value, size in ((position, 3), (orientation, 4)):
        if value.shape[-1:] != (size,):
            raise ValueError(f"{label}: got shape {tuple(value.shape)}; allowed: positions (..., 3) and orientations (..., 4) wxyz")
        require(torch.isfinite(value), label, value, "finite numbers")
    return position, normalize(orientation)


def _half_space(plane: Plane, pose: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Unit normal (..., 3) and offset (..., 1) of a plane of a body at a pose."""
    length = torch.linalg.vector_norm(plane.normal, dim=-1, keepdim=True)
    normal = rotate(pose[1], plane.normal / length)
    return normal, plane.offset[..., None] + (normal * pose[0]).sum(-1, keepdim=True)


def _above(a: Placed, normal: Tensor, offset: Tensor) -> Witness:
    """Shapes above half-spaces: the farthest point against the normal."""
    point = a.support(-normal)[1]
    return Witness((normal * point).sum(-1) - offset.squeeze(-1), normal, point)


class _Candidate(NamedTuple):
    """Edges (N, k, 3) that the normal is perpendicular to, and a normal (N, 3) to start from."""

    edges: Tensor
    normal: Tensor


def _nearest(a: Placed, b: Placed, flat: tuple[bool, bool]) -> Witness:
    """Witness of N pairs without their balls."""
    one, two = a.detach(), b.detach()
    simplex = nearest_simplex(one, two)
    over = simplex.inside.nonzero().squeeze(-1)
    if len(over):
        deep = deepest_simplex(one.at(over), two.at(over))
        simplex = Simplex(*(whole.index_copy(0, over, part) for whole, part in zip(simplex, deep, strict=True)))
    with torch.no_grad():
        choices = _candidates(one, two, simplex, flat)
        solved = [(_polished(one, two, simplex, choice, ITERATIONS), True) for choice in choices] + [(simplex.normal, False)]
        values = torch.stack([_separation(one, two, normal) for normal, _ in solved], -1).nan_to_num(nan=-torch.inf)
        values[:, -1] -= 1e-13 * (1 + values[:, -1].abs())  # the search alone, only where nothing else is as good
        best = values.argmax(-1)
        start = torch.stack([normal for normal, _ in solved], 1)[torch.arange(len(best)), best]
    choices = _candidates(a, b, simplex, flat)
    edges = torch.stack([choice.edges for choice in (*choices, choices[0])], 1)[torch.arange(len(best)), best]
    raw = (best == len(choices))[:, None]
    normal = torch.where(raw, start, _polished(a, b, simplex, _Candidate(edges, start), DERIVATIVES))
    # The points of the search, on the features that the normal belongs to.
    p, q = _carried(a, simplex.p, simplex.i, simplex.weights, -normal), _carried(b, simplex.q, simplex.j, simplex.weights, normal)
    corners = [side.corners(number[:, None]).squeeze(1) for side, number in ((a, one.support(-start)[0]), (b, two.support(start)[0]))]
    gap = _value(a, b, corners[0] - corners[1], normal)[0]
    rest = p - q - gap[:, None] * normal
    u = _directions(edges)
    within = edges.mT @ edges + torch.eye(3, dtype=u.dtype) - u.mT @ u
    move = torch.linalg.solve_ex(within, rest[..., None]).result  # least moves along the edges of both shapes
    edges_of_a = edges[:, :OF_A]
    p = p - (edges_of_a.mT @ (edges_of_a @ move)).squeeze(-1)
    return Witness(gap, normal, p)


def _candidates(a: Placed, b: Placed, found: Simplex, flat: tuple[bool, bool]) -> list[_Candidate]:
    """The edges of the search; then caps of cylinders. The first `OF_A` edges of each are those of a."""
    most = found.weights.argmax(-1)
    carrying = (found.weights > 0)[..., None]
    edges, caps = [], []
    for side, number in ((a, found.i), (b, found.j)):
        corners = side.corners(number)
        kept = torch.where(carrying, corners - corners[torch.arange(len(most)), most][:, None], 0.0)
        edges.append(kept)
        caps.append(side.world_axes().mT)
    nothing = [torch.zeros_like(part) for part in (edges[0], caps[0], edges[1], caps[1])]
    result = [_Candidate(torch.cat((edges[0], nothing[1], edges[1], nothing[3]), 1), found.normal)]
    for k in (0, 1):
        if flat[k]:
            x, y, _ = caps[k].unbind(1)
            axis = torch.nn.functional.normalize(torch.linalg.cross(x, y), dim=-1)
            axis = torch.where((axis * found.normal).sum(-1, keepdim=True) < 0, -axis, axis)
            parts = [*nothing]
            parts[1 + 2 * k] = caps[k]
            result.append(_Candidate(torch.cat(parts, 1), axis))
    return result


def _directions(edges: Tensor) -> Tensor:
    """Two orthonormal vectors (N, 2, 3) that span edges (N, k, 3) in a plane; zero where they span less."""
    row = torch.arange(len(edges))
    square = (edges * edges).sum(-1)
    longest = square.argmax(-1)
    real = square[row, longest] > 0
    u = edges[row, longest] / torch.sqrt(torch.where(real, square[row, longest], 1.0))[:, None]
    rest = edges - (edges * u[:, None]).sum(-1, keepdim=True) * u[:, None]
    left = (rest * rest).sum(-1)
    widest = left.argmax(-1)
    spans = left[row, widest] > PARALLEL**2 * square[row, widest]
    v = torch.where(spans[:, None], rest[row, widest], 0.0) / torch.sqrt(torch.where(spans, left[row, widest], 1.0))[:, None]
    return torch.stack((u, v), 1)


def _separation(a: Placed, b: Placed, normal: Tensor) -> Tensor:
    """f (N,) of unit normals (N, 3), over all corners."""
    return (normal * (a.support(-normal)[1] - b.support(normal)[1])).sum(-1)


def _value(a: Placed, b: Placed, apart: Tensor, normal: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """f (N,) of normals (N, 3) for corners that are `apart` (N, 3), its gradient (N, 3) and Hessian (N, 3, 3)."""
    value, gradient, hessian = (normal * apart).sum(-1), apart, torch.zeros_like(a.R)
    for side in (a, b):
        if side.axes is not None:
            axes = side.world_axes()
            along = (normal[:, None] @ axes).squeeze(1)
            kink = KINK * KINK * (axes.detach() ** 2).sum((-1, -2))
            height = torch.sqrt((along * along).sum(-1) + kink)
            point = (axes @ along[..., None]).squeeze(-1) / height[:, None]
            value, gradient = value - torch.where(height * height > 4 * kink, height, 0.0), gradient - point
            hessian = hessian - (axes @ axes.mT - point[:, :, None] * point[:, None, :]) / height[:, None, None]
    return value, gradient, hessian


def _polished(a: Placed, b: Placed, found: Simplex, choice: _Candidate, iterations: int) -> Tensor:
    """Normals (N, 3) that are perpendicular to edges and maximize f."""
    most = found.weights.argmax(-1, keepdim=True)
    apart = (a.corners(torch.gather(found.i, 1, most)) - b.corners(torch.gather(found.j, 1, most))).squeeze(1)
    u = _directions(choice.edges)
    eye = torch.eye(3, dtype=u.dtype)
    free = eye - u.mT @ u
    normal = torch.nn.functional.normalize((free @ choice.normal[..., None]).squeeze(-1), dim=-1)
    for _ in range(iterations):
        value, gradient, hessian = _value(a, b, apart, normal)
        tangent = free - normal[:, :, None] * normal[:, None, :]
        small = 1e-14 * torch.linalg.vector_norm(apart.detach(), dim=-1) + 1e-300
        value = torch.where(value.detach().abs() > small, value, small)
        matrix = value[:, None, None] * tangent - tangent @ hessian @ tangent + eye - tangent
        step = (tangent @ torch.linalg.solve_ex(matrix, tangent @ gradient[..., None]).result).squeeze(-1)
        length = torch.linalg.vector_norm(step.detach(), dim=-1, keepdim=True)
        step = torch.where(length < LONGEST, step, LONGEST * step.detach() / length.clamp_min(LONGEST))
        normal = torch.nn.functional.normalize((free @ (normal + step)[..., None]).squeeze(-1), dim=-1)
    return normal


def _carried(side: Placed, points: Tensor, number: Tensor, weights: Tensor, outward: Tensor) -> Tensor:
    """The point (N, 3) of a shape that weights give, with its round part at the outward normal."""
    place = (weights[..., None] * side.corners(number)).sum(1)
    if side.axes is None:
        return place
    axes = side.world_axes()
    along = (outward[:, None] @ axes).squeeze(1)
    square = (along * along).sum(-1)
    round_part = square > 4 * KINK * KINK * (axes.detach() ** 2).sum((-1, -2))
    unit = along / torch.sqrt(torch.where(round_part, square, 1.0))[:, None]
    # On a cap, where the normal says nothing, the points of the search do, and turn with the shape.
    flat = (weights[..., None] * (points - side.corners(number).detach())).sum(1)
    flat = (side.R @ (side.R.detach().mT @ flat[..., None])).squeeze(-1)
    return place + torch.where(round_part[:, None], (axes @ unit[..., None]).squeeze(-1), flat)
