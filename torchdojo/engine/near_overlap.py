"""Whether a step has led convex bodies through each other: another solution of its equations than the motion.

Near terms are gaps of corners and of crossings of edges. Deep inside each other, cores may have no negative one: lines of edges that are
far past each other do not count. So poses decide, with the search for nearest points, which knows of no terms. Cores that are apart by half
of both radii before the step have to be so after it and on its way.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torchdojo import quaternion as quat
from torchdojo.engine.near_slots import NearPair
from torchdojo.geometry.convex import Placed, convex_of
from torchdojo.geometry.near_terms import LOOKS
from torchdojo.geometry.polytopes import Polytope
from torchdojo.geometry.simplices import nearest_simplex
from torchdojo.state.layout import STATE_SIZE

__all__ = ["any_pierced", "pierced"]


def any_pierced(pairs: Sequence[NearPair], start: Tensor, end: Tensor, checked: Tensor, timestep: Tensor) -> Tensor:
    """Whether a step leads bodies of environments (n,) through each other; False where they are not `checked`."""
    rows, through = checked.nonzero().squeeze(-1), torch.zeros_like(checked)
    if len(rows):
        after = end.detach().reshape(len(checked), -1)[rows]
        for pair in pairs:
            through[rows] |= pierced(pair.slots[0].shapes, pair.bodies, start[rows], after, timestep[rows])
    return through


@torch.no_grad()
def pierced(cores: tuple[Polytope, Polytope], bodies: tuple[int, int], start: Tensor, end: Tensor, timestep: Tensor) -> Tensor:
    """Whether each of the steps (N,) leads one of two cores into or through the other.

    A step moves bodies at one velocity and turns them about one axis. It is looked at every half thickness of the pair, `LOOKS` times at
    most.

    Args:
        bodies: their numbers; −1: the world.
        start, end: (N, 13 nb) states before and after the step.
        timestep: (N,) [s].
    """
    count = len(start)
    place, move, turn = [], [], []
    way, extents = start.new_zeros(count), 0.0
    for core, body in zip(cores, bodies, strict=True):
        extent = core.swing
        extents += extent
        if body < 0:
            still = start.new_zeros(count, 3)
            place.append((still, start.new_tensor([1.0, 0.0, 0.0, 0.0]).expand(count, 4)))
            move.append(still)
            turn.append(still)
            continue
        before, after = (state[:, STATE_SIZE * body : STATE_SIZE * (body + 1)] for state in (start, end))
        place.append((before[:, :3], before[:, 6:10]))
        move.append(after[:, :3] - before[:, :3])
        turn.append(0.5 * timestep[:, None] * after[:, 10:13])
        way = way + 2 * extent * torch.linalg.vector_norm(turn[-1], dim=-1)
    way = way + torch.linalg.vector_norm(move[0] - move[1], dim=-1)
    near = torch.linalg.vector_norm(place[0][0] - place[1][0], dim=-1) <= extents + way
    looks = (2 * way / sum(core.thickness for core in cores)).ceil().clamp(1, LOOKS)
    margin = 0.5 * (cores[0].radius + cores[1].radius)

    def overlap(rows: Tensor, part: Tensor) -> Tensor:
        """Whether the cores of each of these steps are within the margin once a part of the step is over."""
        sides = []
        for core, (x, q), by, about in zip(cores, place, move, turn, strict=True):
            a = part[:, None] * about[rows]
            increment = torch.cat(((1 - (a * a).sum(-1, keepdim=True)).clamp_min(0).sqrt(), a), -1)
            pose = x[rows] + part[:, None] * by[rows], quat.multiply(q[rows], increment)
            sides.append(Placed.of(convex_of(core), *pose, torch.Size((len(rows),))))
        shift = sides[1].x
        nearest = nearest_simplex(*(side._replace(x=side.x - shift) for side in sides))
        apart = (nearest.weights[..., None] * (nearest.p - nearest.q)).sum(1)
        return nearest.inside | (torch.linalg.vector_norm(apart, dim=-1) <= margin)

    hit = torch.zeros(count, dtype=torch.bool)
    for k in range(LOOKS):
        rows = (near & ~hit & (looks > k)).nonzero().squeeze(-1)
        if len(rows):
            hit[rows] = overlap(rows, (looks[rows] - k) / looks[rows])
    rows = hit.nonzero().squeeze(-1)
    if len(rows):
        hit[rows] = ~overlap(rows, torch.zeros(len(rows), dtype=torch.float64))
    return hit
