"""Dojo's reference of a trotting A1: feet on half circles, joints by inverse kinematics, and torques that hold the first pose."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torchdojo.mechanism import Mechanism
from torchdojo.models.unitree import LEGS
from torchdojo.planning.options import Schedule
from torchdojo.planning.problem import Problem
from torchdojo.planning.residuals import State
from torchdojo.planning.solver import solve

__all__ = ["holding_inputs", "trot"]

HALF_CYCLE = 10  # nodes in which a foot is on the ground, and in which it is lifted
RADIUS = 0.05  # of the path of a foot along x [m]
LIFT = 0.5  # height of the path, relative to its radius
HEIGHT = 0.29  # of the trunk [m]
SHIFT, FRONT = -0.04, 0.10  # of all feet, and of the front feet, along x [m]
BACK_HOME, FRONT_HOME = -0.23, 0.13
#: schedule of the search for torques that hold a pose: a standing robot is at rest for many torques, at any kappa to its own accuracy
HOLDING: Schedule = ((1e-8, 1e-2), (1e-8, 1e-3), (1e-8, 1e-4), (1e-8, None))


def foot_path() -> Tensor:
    """x and z of a foot from its home over a cycle, (2 HALF_CYCLE, 2) [m]: back along the ground, then forward through the air."""
    low = torch.stack((torch.linspace(-RADIUS, RADIUS, HALF_CYCLE + 1), torch.zeros(HALF_CYCLE + 1)), -1)
    angle = math.pi * (1 - torch.cos(torch.linspace(0, math.pi, HALF_CYCLE + 1))) / 2
    high = torch.stack((RADIUS * torch.cos(angle), LIFT * RADIUS * torch.sin(angle)), -1)
    return torch.cat((low[:-1], high[:-1])).flip(0).to(torch.float64)


def trot(mech: Mechanism, cycles: int = 2) -> Tensor:
    """States (40, 13 nb) for two cycles: the trunk moves on with the mean speed of the feet."""
    path, h = foot_path(), float(mech.timestep)
    other = torch.roll(path, HALF_CYCLE, 0)
    joints = mech.coordinate_places()
    points = list(mech.contacts)
    feet = torch.tensor([points.index(f"{leg}_foot") for leg in LEGS])
    home = torch.tensor([(FRONT_HOME + FRONT if front > 0 else BACK_HOME) + SHIFT for front, _ in LEGS.values()], dtype=torch.float64)
    target = torch.stack([other if leg in ("RR", "FL") else path for leg in LEGS], 1) + torch.stack((home, torch.zeros(4)), -1)
    q = torch.zeros(len(path), mech.num_coordinates, dtype=torch.float64)
    q[:, 2] = HEIGHT
    places = torch.tensor([[joints[f"{leg}_{part}_joint"].start for part in ("thigh", "calf")] for leg in LEGS])
    q[:, places[:, 0]], q[:, places[:, 1]] = 0.95, -1.5 * 0.95

    def reached(q: Tensor) -> Tensor:
        """x and z of the feet, (nodes, 4, 2)."""
        return mech.contact_points(mech.to_maximal(q))[:, feet][..., [0, 2]]

    with torch.no_grad():
        for _ in range(15):  # Newton with differences, for the two angles of each leg
            error, columns = reached(q) - target, []
            for joint in range(2):
                moved = q.clone()
                moved[:, places[:, joint]] += 1e-6
                columns.append((reached(moved) - target - error) / 1e-6)
            step = torch.linalg.solve(torch.stack(columns, -1), error)
            for joint in range(2):
                q[:, places[:, joint]] -= step[..., joint]
        qd = (torch.roll(q, -1, 0) - q) / h
        qd[:, :6] = 0.0
        q, qd = q.repeat(cycles, 1), qd.repeat(cycles, 1)
        stride = 2 * RADIUS / HALF_CYCLE
        q[:, 0] += stride * torch.arange(len(q))
        qd[:, 0] += stride / h
        return mech.to_maximal(q, qd)


def holding_inputs(mech: Mechanism, z: Tensor) -> Tensor:
    """u (nu,) with which the mechanism is nearest to rest after a step from z (13 nb): a plan of one step."""
    n = mech.num_coordinates
    problem = Problem(mech, z, 1, costs=[State(z, 1.0, rows=range(n, 2 * n), at=1)], coordinates="minimal")
    return solve(problem, schedule=HOLDING, max_iterations=20, max_inner=4, damping=1e-5, least_damping=1e-8, cost_tolerance=1e-6).u[0]
