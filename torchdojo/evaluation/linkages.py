"""Planar linkages of rods in the y-z plane with hinges along x, given by the points that the rods connect."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from torchdojo.elements.bodies import Body
from torchdojo.elements.joints import Joint, Revolute
from torchdojo.geometry import shapes
from torchdojo.mechanism import Mechanism
from torchdojo.solver.options import SolverOptions
from torchdojo.state.layout import STATE_SIZE

__all__ = ["hinged", "planar_state", "rods_to_points"]

Point = tuple[float, float]  # y, z [m]
Rods = Mapping[str, tuple[str, str]]  # name of a rod -> names of its ends


def planar_rod(length: float, mass: float = 1.0, width: float = 0.05) -> Body:
    """A rod along its z axis with a square cross-section; length, width [m], mass [kg]."""
    return Body(mass, shape=shapes.Box((width, width, length)))


def hinged(
    rods: Rods,
    points: Mapping[str, Point],
    *,
    fixed: Sequence[str],
    timestep: float,
    options: SolverOptions | None = None,
    mass: float = 1.0,
) -> Mechanism:
    """Mechanism of rods hinged about x where they meet, and to the world at the points `fixed`. The first end of a rod is its upper (+z).

    At a point where several rods meet, the first is hinged to the world if the point is fixed. Each other rod is hinged to the first.
    """
    bodies = {name: planar_rod(math.dist(points[a], points[b]), mass) for name, (a, b) in rods.items()}
    joints: dict[str, Joint] = {}
    for point in points:
        meeting = [(name, _end(rods, points, name, point)) for name, ends in rods.items() if point in ends]
        first, first_end = meeting[0]
        if point in fixed:
            joints[f"{point}_{first}"] = _hinge(None, first, (0.0, *points[point]), first_end)
        for name, end in meeting[1:]:
            joints[f"{point}_{name}"] = _hinge(first, name, first_end, end)
    return Mechanism(bodies, joints, timestep=timestep, options=options)


def _hinge(parent: str | None, child: str, parent_anchor: Sequence[float], child_anchor: Sequence[float]) -> Joint:
    return Revolute(parent, child, axis=(1.0, 0.0, 0.0), parent_anchor=parent_anchor, child_anchor=child_anchor, actuated=False)


def _end(rods: Rods, points: Mapping[str, Point], name: str, point: str) -> tuple[float, float, float]:
    """Position of the rod's end at `point`, in the frame of the rod."""
    a, b = rods[name]
    half = 0.5 * math.dist(points[a], points[b])
    return (0.0, 0.0, half if point == a else -half)


def rods_to_points(rods: Rods, points: Mapping[str, Point]) -> dict[str, tuple[Point, Point]]:
    """Positions of the ends of each rod."""
    return {name: (points[a], points[b]) for name, (a, b) in rods.items()}


def planar_state(
    mech: Mechanism, ends: Mapping[str, tuple[Point, Point]], velocities: Mapping[str, tuple[Point, Point]] | None = None
) -> Tensor:
    """State (13 nb,) with every rod between the given ends, which move with `velocities` [m/s] (default: at rest).

    The points define the state; `Mechanism.initial_state` closes loops from some of the joint angles instead.
    """
    parts = []
    for name in mech.bodies:
        (ay, az), (by, bz) = ends[name]
        (vay, vaz), (vby, vbz) = (velocities or {}).get(name, ((0.0, 0.0), (0.0, 0.0)))
        angle = math.atan2(by - ay, -(bz - az))
        length2 = (by - ay) ** 2 + (bz - az) ** 2
        rate = ((by - ay) * (vbz - vaz) - (bz - az) * (vby - vay)) / length2
        x = [0.0, 0.5 * (ay + by), 0.5 * (az + bz)]
        v = [0.0, 0.5 * (vay + vby), 0.5 * (vaz + vbz)]
        q = [math.cos(0.5 * angle), math.sin(0.5 * angle), 0.0, 0.0]
        parts.append(torch.tensor([*x, *v, *q, rate, 0.0, 0.0], dtype=torch.float64))
    z = torch.cat(parts)
    assert z.numel() == STATE_SIZE * mech.num_bodies
    return z
