"""Which corners carry the nearest points of convex shapes, many pairs at once: all points p − q of a and b are one convex set D.

`nearest_simplex` finds the point of D that is nearest to the origin (Gilbert, Johnson and Keerthi 1988). Where D contains the origin,
shapes overlap, and `deepest_simplex` finds the face of D that is nearest to it (van den Bergen 2001). Both only ask for support points.
Results are numbers of corners and weights, without derivatives; geometry/closest.py has these.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from torchdojo.geometry.convex import Placed

__all__ = ["Simplex", "deepest_simplex", "nearest_simplex"]

ITERATIONS = 96
# Relative gap between both bounds at the end: of |p|², and of the depth relative to the extent. With round parts, Newton's method follows,
# and faces that are much smaller have no directions.
SETTLED, SETTLED_ROUND = 2e-16, 1e-13
GROWN, GROWN_ROUND = 1e-13, 1e-9
FLAT = 1e-20  # squared area of a triangle relative to its longest edge to the fourth: flatter ones are segments
INSIDE = 1e-28  # the same of tetrahedra, and of the squared distance relative to the extent: the origin is inside
MOST = 128  # corners of the polytope that grows towards the surface of D; it has fewer than twice as many faces
EDGES = torch.tensor([(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)])
FACES = torch.tensor([(0, 1, 2), (0, 1, 3), (0, 2, 3), (1, 2, 3)])


class Simplex(NamedTuple):
    """Up to four points of a and of b, (N, 4, 3), the corners (N, 4) that they lie on or around, and weights (N, 4).

    normal: (N, 3) unit, from b to a. inside: (N,) whether a and b overlap.
    """

    p: Tensor
    q: Tensor
    i: Tensor
    j: Tensor
    weights: Tensor
    normal: Tensor
    inside: Tensor


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum(-1)


def _reduce(w: Tensor, used: Tensor) -> tuple[Tensor, Tensor]:
    """Weights (N, 4) of the point of simplices (N, 4, 3) that is nearest to the origin, and whether the origin is inside (N,)."""
    count, eye = len(w), torch.eye(4, dtype=w.dtype)
    corner = torch.where(used, _dot(w, w), torch.inf)
    start, end = w[:, EDGES[:, 0]], w[:, EDGES[:, 1]]
    along = end - start
    square = _dot(along, along)
    t = -_dot(start, along) / torch.where(square > 0, square, 1.0)
    middle = start + t[..., None] * along
    edge = torch.where(used[:, EDGES].all(-1) & (t > 0) & (t < 1), _dot(middle, middle), torch.inf)
    edge_weights = (1 - t)[..., None] * eye[EDGES[:, 0]] + t[..., None] * eye[EDGES[:, 1]]
    a, b, c = (w[:, FACES[:, k]] for k in range(3))
    u, v = b - a, c - a
    n = torch.linalg.cross(u, v)
    nn = _dot(n, n)
    real = nn > FLAT * torch.maximum(_dot(u, u), _dot(v, v)) ** 2
    areas = torch.stack([_dot(torch.linalg.cross(*pair), n) for pair in ((b, c), (c, a), (a, b))], -1)  # seen from the origin
    height = _dot(a, n)
    over = used[:, FACES].all(-1) & real & (areas > 0).all(-1)
    face = torch.where(over, height * height / torch.where(real, nn, 1.0), torch.inf)
    shares = areas / torch.where(over, areas.sum(-1), 1.0)[..., None]
    face_weights = (shares[..., None] * eye[FACES]).sum(-2)
    rest = w[:, (3, 2, 1, 0)] - a
    own = _dot(n, rest)
    inside = used.all(-1) & ((own * -height > 0) & (own * own > INSIDE * nn * _dot(rest, rest))).all(-1)
    best = torch.cat((corner, edge, face), 1).argmin(1)
    weights = torch.cat((eye.expand(count, 4, 4), edge_weights, face_weights), 1)
    return weights[torch.arange(count), best], inside


@torch.no_grad()
def nearest_simplex(a: Placed, b: Placed) -> Simplex:
    """The simplex of D that is nearest to the origin, where the shapes are apart."""
    count, settled = len(a.x), SETTLED if a.axes is None and b.axes is None else SETTLED_ROUND
    points = a.x.new_zeros(2, count, 4, 3)
    numbers = torch.zeros(2, count, 4, dtype=torch.long)
    weights, inside = a.x.new_zeros(count, 4), torch.zeros(count, dtype=torch.bool)
    v = a.x - b.x
    v[_dot(v, v) == 0] = v.new_tensor([1.0, 0.0, 0.0])
    size = 1.0 * _dot(v, v)
    for k, (shape, direction) in enumerate(((a, -v), (b, v))):
        numbers[k, :, 0], points[k, :, 0] = shape.support(direction)
        size = size + ((points[k, :, 0] - shape.x) ** 2).sum(-1)
    weights[:, 0] = 1
    v = points[0, :, 0] - points[1, :, 0]
    live = torch.arange(count)
    for _ in range(ITERATIONS):
        here, ahead = a.at(live), b.at(live)
        way = v[live]
        vv = _dot(way, way)
        (i, p), (j, q) = here.support(-way), ahead.support(way)
        known = weights[live] > 0
        bound = _dot(way, p - q)  # a plane between the shapes, if positive
        done = (vv - bound <= settled * vv) | (vv <= INSIDE * size[live])
        inside[live] |= vv <= INSIDE * size[live]
        if a.axes is None and b.axes is None:
            done |= (known & (numbers[0, live] == i[:, None]) & (numbers[1, live] == j[:, None])).any(-1)
        keep = ~done
        live, i, j, p, q, known, vv, bound = (part[keep] for part in (live, i, j, p, q, known, vv, bound))
        if not len(live):
            break
        slot = known.to(torch.int8).argmin(-1)
        row = torch.arange(len(live))
        next_points, next_numbers = points[:, live], numbers[:, live]
        next_points[:, row, slot], next_numbers[:, row, slot] = torch.stack((p, q)), torch.stack((i, j))
        known[row, slot] = True
        w = next_points[0] - next_points[1]
        found, within = _reduce(w, known)
        inside[live] |= within & (bound <= 0)
        nearer = (found[..., None] * w).sum(1)
        better = (_dot(nearer, nearer) < vv) & ~within  # else rounding
        live, found, nearer = live[better], found[better], nearer[better]
        points[:, live], numbers[:, live] = next_points[:, better], next_numbers[:, better]
        weights[live], v[live] = found, nearer
        if not len(live):
            break
    normal = v / torch.linalg.vector_norm(v, dim=-1, keepdim=True).clamp_min(1e-300)
    return Simplex(points[0], points[1], numbers[0], numbers[1], weights, normal, inside)


@torch.no_grad()
def deepest_simplex(a: Placed, b: Placed) -> Simplex:
    """The face of D that is nearest to the origin, where the shapes overlap: a polytope inside D grows where its planes are nearest."""
    count, grown = len(a.x), GROWN if a.axes is None and b.axes is None else GROWN_ROUND
    points, numbers = a.x.new_zeros(2, count, MOST, 3), torch.zeros(2, count, MOST, dtype=torch.long)

    def add(k: int, rows: Tensor, direction: Tensor) -> Tensor:
        for side, (shape, along) in enumerate(((a.at(rows), direction), (b.at(rows), -direction))):
            numbers[side, rows, k], points[side, rows, k] = shape.support(along)
        return points[0, rows, k] - points[1, rows, k]

    # A tetrahedron: the ends along a direction, the farthest point from their line, and the farthest one from the plane of these three.
    every = torch.arange(count)
    tilted = torch.nn.functional.normalize(a.x.new_tensor([[0.48, 0.6, 0.64], [0.7, -0.2, 0.3], [-0.1, 0.5, -0.8]]), dim=-1)
    first, second = add(0, every, tilted[0].expand(count, 3)), add(1, every, -tilted[0].expand(count, 3))
    along = second - first
    side = torch.linalg.cross(along, tilted[1].expand(count, 3))
    third = add(2, every, side)
    other = add(3, every, -side)
    swap = _dot(side, first - other) > _dot(side, third - first)
    points[:, swap, 2], numbers[:, swap, 2] = points[:, swap, 3], numbers[:, swap, 3]
    third = torch.where(swap[:, None], other, third)
    up = torch.linalg.cross(along, third - first)
    fourth, other = add(3, every, up), add(4, every, -up)
    swap = _dot(up, first - other) > _dot(up, fourth - first)
    points[:, swap, 3], numbers[:, swap, 3] = points[:, swap, 4], numbers[:, swap, 4]
    fourth = torch.where(swap[:, None], other, fourth)
    size = torch.linalg.vector_norm(along, dim=-1)

    corners = torch.zeros(count, 3 * MOST, 3, dtype=torch.long)
    corners[:, :4] = torch.tensor([(0, 1, 2), (0, 3, 1), (0, 2, 3), (1, 3, 2)])
    turned = _dot(up, fourth - first) > 0
    corners[turned, :4] = corners[turned, :4].flip(-1)
    alive = torch.zeros(count, 3 * MOST, dtype=torch.bool)
    alive[:, :4] = True
    normal, offset = a.x.new_zeros(count, 3 * MOST, 3), a.x.new_full((count, 3 * MOST), torch.inf)

    def planes(rows: Tensor, faces: Tensor) -> None:
        """The planes of faces of pairs; a face without area is never the nearest."""
        o, u, v = ((points[0, rows, k] - points[1, rows, k]) for k in corners[rows, faces].unbind(-1))
        n = torch.linalg.cross(u - o, v - o)
        length = torch.linalg.vector_norm(n, dim=-1)
        real = length > 0
        n = n / torch.where(real, length, 1.0)[:, None]
        normal[rows, faces], offset[rows, faces] = n, torch.where(real, _dot(n, o), torch.inf)

    planes(every.repeat_interleave(4), torch.arange(4).repeat(count))
    live = every
    for new in range(4, MOST):
        nearest = torch.where(alive[live], offset[live], torch.inf).argmin(-1)
        n, height = normal[live, nearest], offset[live, nearest]
        w = add(new, live, n)
        grows = (_dot(n, w) - height > grown * size[live]) & torch.isfinite(height)
        live, w, height = live[grows], w[grows], height[grows]
        if not len(live):
            break
        seen = alive[live] & (_dot(normal[live], w[:, None]) - offset[live] > 1e-15 * size[live, None])
        free = alive[live].to(torch.int8).argsort(dim=-1, stable=True)  # places without a face
        alive[live] &= ~seen
        row, face = seen.nonzero(as_tuple=True)
        turns = corners[live[row], face]
        directed = torch.zeros(len(live), MOST, MOST, dtype=torch.bool)
        for k in range(3):
            directed[row, turns[:, k], turns[:, (k + 1) % 3]] = True
        row, i, j = (directed & ~directed.mT).nonzero(as_tuple=True)  # the rim of what is seen
        starts = torch.searchsorted(row, torch.arange(len(live)))
        place = free[row, torch.arange(len(row)) - starts[row]]
        rows = live[row]
        corners[rows, place] = torch.stack((i, j, torch.full_like(i, new)), -1)
        alive[rows, place] = True
        planes(rows, place)
        # A polytope around the origin only moves away from it. Where it does not, its last faces are too small for their directions.
        broken = (height > 0) & (torch.where(alive[live], offset[live], torch.inf).amin(-1) < height - 1e-14 * size[live])
        alive[rows[broken[row]], place[broken[row]]] = False
        alive[live] |= seen & broken[:, None]
        live = live[~broken]
    # Of faces in one plane, the foot of the perpendicular lies in one.
    height = torch.where(alive, offset, torch.inf)
    least = height.amin(-1, keepdim=True)
    w = points[0] - points[1]
    x, y, z = (torch.take_along_dim(w, corners[..., k, None], 1) for k in range(3))
    foot = torch.where(torch.isfinite(least), least, 0.0)[..., None] * normal
    areas = torch.stack([_dot(torch.linalg.cross(r - foot, s - foot), normal) for r, s in ((y, z), (z, x), (x, y))], -1)
    shares = areas / torch.where(areas.sum(-1) > 0, areas.sum(-1), 1.0)[..., None]
    nearest = torch.where(height <= least + 1e-13 * size[:, None], shares.amin(-1), -torch.inf).argmax(-1)
    chosen, outward = corners[every, nearest], normal[every, nearest]
    weights = shares[every, nearest].clamp_min(0)
    weights = torch.where(weights.sum(-1, keepdim=True) > 0, weights, 1.0)
    weights = torch.nn.functional.pad(weights / weights.sum(-1, keepdim=True), (0, 1))
    chosen = torch.cat((chosen, chosen[:, :1]), 1)
    p, q = (torch.take_along_dim(side, chosen[..., None], 1) for side in points)
    i, j = (torch.gather(side, 1, chosen) for side in numbers)
    return Simplex(p, q, i, j, weights, -outward, torch.ones(count, dtype=torch.bool))
