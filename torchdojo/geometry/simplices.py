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
    heights = _dot(n, rest)
    inside = used.all(-1) & ((heights * -height > 0) & (heights * heights > INSIDE * nn * _dot(rest, rest))).all(-1)
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
        first, second = a.at(live), b.at(live)
        way = v[live]
        vv = _dot(way, way)
        (i, p), (j, q) = first.support(-way), second.support(way)
        used = weights[live] > 0
        bound = _dot(way, p - q)  # a plane between the shapes, if positive
        done = (vv - bound <= settled * vv) | (vv <= INSIDE * size[live])
        inside[live] |= vv <= INSIDE * size[live]
        if a.axes is None and b.axes is None:
            done |= (used & (numbers[0, live] == i[:, None]) & (numbers[1, live] == j[:, None])).any(-1)
        keep = ~done
        live, i, j, p, q, used, vv, bound = (part[keep] for part in (live, i, j, p, q, used, vv, bound))
        if not len(live):
            break
        slot = used.to(torch.int8).argmin(-1)
        row = torch.arange(len(live))
        next_points, next_numbers = points[:, live], numbers[:, live]
        next_points[:, row, slot], next_numbers[:, row, slot] = torch.stack((p, q)), torch.stack((i, j))
        used[row, slot] = True
        w = next_points[0] - next_points[1]
        shares, within = _reduce(w, used)
        inside[live] |= within & (bound <= 0)
        nearer = (shares[..., None] * w).sum(1)
        better = (_dot(nearer, nearer) < vv) & ~within  # else rounding
        live, shares, nearer = live[better], shares[better], nearer[better]
        points[:, live], numbers[:, live] = next_points[:, better], next_numbers[:, better]
        weights[live], v[live] = shares, nearer
        if not len(live):
            break
    normal = v / torch.linalg.vector_norm(v, dim=-1, keepdim=True).clamp_min(1e-300)
    return Simplex(points[0], points[1], numbers[0], numbers[1], weights, normal, inside)


class _Polytopes:
    """A polytope inside D for each pair. It has triangles as faces, and grows by one corner at a time."""

    def __init__(self, a: Placed, b: Placed) -> None:
        self.a, self.b, count = a, b, len(a.x)
        self.every = torch.arange(count)
        self.points, self.numbers = a.x.new_zeros(2, count, MOST, 3), torch.zeros(2, count, MOST, dtype=torch.long)
        self.corners = torch.zeros(count, 3 * MOST, 3, dtype=torch.long)
        self.alive = torch.zeros(count, 3 * MOST, dtype=torch.bool)  # places with a face
        self.normal, self.offset = a.x.new_zeros(count, 3 * MOST, 3), a.x.new_full((count, 3 * MOST), torch.inf)
        self.size = self._start()

    def _start(self) -> Tensor:
        """Tetrahedra: both ends along a direction, the farthest point from their line, the farthest from these three. Returns lengths."""
        count, every = len(self.every), self.every
        tilted = torch.nn.functional.normalize(self.a.x.new_tensor([[0.48, 0.6, 0.64], [0.7, -0.2, 0.3], [-0.1, 0.5, -0.8]]), dim=-1)
        first, second = self.add(0, every, tilted[0].expand(count, 3)), self.add(1, every, -tilted[0].expand(count, 3))
        along = second - first
        third = self._farther(2, torch.linalg.cross(along, tilted[1].expand(count, 3)), first)
        up = torch.linalg.cross(along, third - first)
        fourth = self._farther(3, up, first)
        self.corners[:, :4] = torch.tensor([(0, 1, 2), (0, 3, 1), (0, 2, 3), (1, 3, 2)])
        turned = _dot(up, fourth - first) > 0
        self.corners[turned, :4] = self.corners[turned, :4].flip(-1)
        self.alive[:, :4] = True
        self._set_planes(every.repeat_interleave(4), torch.arange(4).repeat(count))
        return torch.linalg.vector_norm(along, dim=-1)

    def _farther(self, k: int, direction: Tensor, origin: Tensor) -> Tensor:
        """Corner k of all pairs: along a direction or against it, whichever point is farther from `origin`."""
        ahead, behind = self.add(k, self.every, direction), self.add(k + 1, self.every, -direction)
        swap = _dot(direction, origin - behind) > _dot(direction, ahead - origin)
        self.points[:, swap, k], self.numbers[:, swap, k] = self.points[:, swap, k + 1], self.numbers[:, swap, k + 1]
        return torch.where(swap[:, None], behind, ahead)

    def add(self, k: int, rows: Tensor, direction: Tensor) -> Tensor:
        """Corner k of the pairs `rows` is the support point of D along a direction."""
        for side, (shape, along) in enumerate(((self.a.at(rows), direction), (self.b.at(rows), -direction))):
            self.numbers[side, rows, k], self.points[side, rows, k] = shape.support(along)
        return self.points[0, rows, k] - self.points[1, rows, k]

    def _set_planes(self, rows: Tensor, faces: Tensor) -> None:
        """The planes of faces of pairs; a face without area is never the nearest."""
        o, u, v = ((self.points[0, rows, k] - self.points[1, rows, k]) for k in self.corners[rows, faces].unbind(-1))
        n = torch.linalg.cross(u - o, v - o)
        length = torch.linalg.vector_norm(n, dim=-1)
        real = length > 0
        n = n / torch.where(real, length, 1.0)[:, None]
        self.normal[rows, faces], self.offset[rows, faces] = n, torch.where(real, _dot(n, o), torch.inf)

    def heights(self, rows: Tensor) -> Tensor:
        """Distances of the faces' planes from the origin, infinite where there is no face."""
        return torch.where(self.alive[rows], self.offset[rows], torch.inf)

    def grow(self, new: int, live: Tensor, grown: float) -> Tensor:
        """Corner `new`, beyond the nearest faces of the pairs `live`. Returns the pairs that grew by more than `grown` of their size."""
        nearest = self.heights(live).argmin(-1)
        n, height = self.normal[live, nearest], self.offset[live, nearest]
        w = self.add(new, live, n)
        grows = (_dot(n, w) - height > grown * self.size[live]) & torch.isfinite(height)
        live, w, height = live[grows], w[grows], height[grows]
        if not len(live):
            return live
        alive = self.alive[live]
        seen = alive & (_dot(self.normal[live], w[:, None]) - self.offset[live] > 1e-15 * self.size[live, None])
        row, place = self._replace(new, live, seen)
        # A polytope around the origin only moves away from it. Where it does not, its last faces are too small for their directions.
        broken = (height > 0) & (self.heights(live).amin(-1) < height - 1e-14 * self.size[live])
        self.alive[live[row][broken[row]], place[broken[row]]] = False
        self.alive[live] |= seen & broken[:, None]
        return live[~broken]

    def _replace(self, new: int, live: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
        """Faces from corner `new` to the rim of the faces that it sees, in place of these. Returns their rows in `live` and places."""
        free = self.alive[live].to(torch.int8).argsort(dim=-1, stable=True)
        self.alive[live] &= ~seen
        row, face = seen.nonzero(as_tuple=True)
        turns = self.corners[live[row], face]
        directed = torch.zeros(len(live), MOST, MOST, dtype=torch.bool)
        for k in range(3):
            directed[row, turns[:, k], turns[:, (k + 1) % 3]] = True
        row, i, j = (directed & ~directed.mT).nonzero(as_tuple=True)  # edges of the rim have a face on one side only
        starts = torch.searchsorted(row, torch.arange(len(live)))
        place = free[row, torch.arange(len(row)) - starts[row]]
        rows = live[row]
        self.corners[rows, place] = torch.stack((i, j, torch.full_like(i, new)), -1)
        self.alive[rows, place] = True
        self._set_planes(rows, place)
        return row, place

    def nearest_face(self) -> Simplex:
        """The face that is nearest to the origin. If several lie in one plane, the foot of the perpendicular lies in one of them."""
        height = self.heights(self.every)
        least = height.amin(-1, keepdim=True)
        w = self.points[0] - self.points[1]
        x, y, z = (torch.take_along_dim(w, self.corners[..., k, None], 1) for k in range(3))
        foot = torch.where(torch.isfinite(least), least, 0.0)[..., None] * self.normal
        areas = torch.stack([_dot(torch.linalg.cross(r - foot, s - foot), self.normal) for r, s in ((y, z), (z, x), (x, y))], -1)
        shares = areas / torch.where(areas.sum(-1) > 0, areas.sum(-1), 1.0)[..., None]
        nearest = torch.where(height <= least + 1e-13 * self.size[:, None], shares.amin(-1), -torch.inf).argmax(-1)
        chosen, outward = self.corners[self.every, nearest], self.normal[self.every, nearest]
        weights = shares[self.every, nearest].clamp_min(0)
        weights = torch.where(weights.sum(-1, keepdim=True) > 0, weights, 1.0)
        weights = torch.nn.functional.pad(weights / weights.sum(-1, keepdim=True), (0, 1))
        chosen = torch.cat((chosen, chosen[:, :1]), 1)
        p, q = (torch.take_along_dim(side, chosen[..., None], 1) for side in self.points)
        i, j = (torch.gather(side, 1, chosen) for side in self.numbers)
        return Simplex(p, q, i, j, weights, -outward, torch.ones_like(self.every, dtype=torch.bool))


@torch.no_grad()
def deepest_simplex(a: Placed, b: Placed) -> Simplex:
    """The face of D that is nearest to the origin, where the shapes overlap: a polytope inside D grows where its planes are nearest."""
    grown = GROWN if a.axes is None and b.axes is None else GROWN_ROUND
    polytopes = _Polytopes(a, b)
    live = polytopes.every
    for new in range(4, MOST):
        live = polytopes.grow(new, live, grown)
        if not len(live):
            break
    return polytopes.nearest_face()
