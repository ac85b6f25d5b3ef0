"""A robot that stands, and is pushed: the problem of its controller, and the trial that says whether it stays up."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from torchdojo import models
from torchdojo import quaternion as quat
from torchdojo.elements.actuators import Actuator, actuate
from torchdojo.mechanism import Mechanism
from torchdojo.models.unitree import LEGS
from torchdojo.planning.controller import Controller, ControlReport
from torchdojo.planning.gait import holding_inputs
from torchdojo.planning.problem import Problem
from torchdojo.planning.residuals import Input, Residual, State
from torchdojo.solver.options import SolverOptions
from torchdojo.state.layout import TWIST_SIZE

__all__ = ["PUSHES", "Push", "Trial", "pushed", "random_pushes", "standing"]

DAMPER = 0.05  # of the joints [N·m·s/rad]
TORQUE = 33.5  # of the motors [N·m]
STIFFNESS, RATE_GAIN = 40.0, 1.0  # of the servos [N·m/rad, N·m·s/rad]
REACTION = 6.0  # ω of the inverted pendulum, √(g / height of the trunk) [1/s]
FINAL = 10.0  # weights of the last node, relative to the others
SIMULATION = SolverOptions(kappa=1e-7)


class Push(NamedTuple):
    """A force (3,) [N] on the trunk from `begin` to `end` [s]."""

    begin: float
    end: float
    force: tuple[float, float, float]


#: 8, 12 and 11.7 N·s
PUSHES = (Push(0.3, 0.4, (0.0, 80.0, 0.0)), Push(1.3, 1.4, (120.0, 0.0, 0.0)), Push(2.2, 2.3, (-60.0, -100.0, 0.0)))


class Trial(NamedTuple):
    """A simulation under pushes.

    upright: whether no step was flagged, and the trunk tilted by less than 45° and stayed above half its height.
    tilt: largest one [rad]. height: least one of the trunk [m]. flagged: number of steps. seconds: the time that it lasted.
    z: states (T+1, 13 nb). report: what the controller says of itself.
    """

    upright: bool
    tilt: float
    height: float
    flagged: int
    seconds: float
    z: Tensor
    report: ControlReport


def _robot(timestep: float, *, planned: bool) -> tuple[Mechanism, Tensor, Tensor]:
    """A1 with servos, its stance (13 nb), and controls (12,) that hold it. Plans know no contact of the trunk and no limit of motors."""
    mech = models.quadruped(timestep=timestep, damper=DAMPER, contact_body=not planned)
    names = sorted(
        (name for name in mech.coordinate_places() if name.endswith("_joint")), key=lambda name: mech.coordinate_places()[name].start
    )
    z = mech.place(mech.initial_state(pose="home"), clearance=1e-5)
    torques = holding_inputs(mech, z)
    q = mech.to_minimal(z)[0]
    held = torch.stack([q[mech.coordinate_places()[name].start] for name in names]) + torques[-len(names) :] / STIFFNESS
    forcerange = None if planned else (-TORQUE, TORQUE)
    actuate(mech, {name: Actuator.position(name, kp=STIFFNESS, kv=RATE_GAIN, forcerange=forcerange) for name in names})
    return mech, z, held


def standing(timestep: float = 0.02, steps: int = 15) -> Problem:
    """A1 stands, by the targets of its servos. What makes it step is the capture point of an inverted pendulum (Pratt et al. 2006).

    A robot that drifts at v wants each foot v/ω further from the trunk than in its stance; what is left to that counts. The mean over the
    feet counts most at the last node.
    """
    mech, z, held = _robot(timestep, planned=True)
    n = mech.num_coordinates
    q = torch.tensor([0.0, 0.0, 50.0, 20.0, 20.0, 5.0, *[0.1] * 12])
    qd = torch.tensor([1.0, 1.0, 1.0, 0.3, 0.3, 0.3, *[1e-3] * 12])
    feet, center = _capture_points(mech, z)
    rows = torch.cat((torch.eye(2 * n, dtype=torch.float64), feet, center))
    weight = torch.cat((q, qd, torch.full((len(feet),), 100.0), torch.zeros(len(center)))).to(torch.float64).repeat(steps + 1, 1)
    weight[-1] *= FINAL
    weight[-1, -len(center) :] = 100.0
    costs: list[Residual] = [State(z, weight, matrix=rows), Input(1e-3 * STIFFNESS**2, target=held)]
    return Problem(mech, z, steps, costs=costs, controls=True, guess=held, limits=(held - 3.0, held + 3.0), coordinates="minimal")


def _capture_points(mech: Mechanism, z: Tensor) -> tuple[Tensor, Tensor]:
    """Rows (8, 2n) and (2, 2n): v/ω less the place of each foot, and of their mean, relative to the trunk, in x and y."""
    points = [list(mech.contacts).index(f"{leg}_foot") for leg in LEGS]
    q = mech.to_minimal(z)[0]
    rates = torch.zeros_like(q)

    def places(q: Tensor) -> Tensor:
        return (mech.contact_points(mech.to_maximal(q, rates))[points] - q[:3])[:, :2].reshape(-1)

    jacobian = torch.autograd.functional.jacobian(places, q)
    velocity = torch.zeros(2, len(q), dtype=q.dtype)
    velocity[0, 0] = velocity[1, 1] = 1 / REACTION
    each = torch.cat((-jacobian, velocity.repeat(len(points), 1)), dim=-1)
    return each, each.unflatten(0, (-1, 2)).mean(0)


def random_pushes(count: int, seed: int = 0, impulse: float = 12.0, begin: float = 0.3, duration: float = 0.1) -> list[tuple[Push]]:
    """Single horizontal pushes [N·s] in random directions."""
    angles = 2 * math.pi * torch.rand(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    force = impulse / duration
    return [(Push(begin, begin + duration, (force * math.cos(a), force * math.sin(a), 0.0)),) for a in angles.tolist()]


def pushed(controller: Controller | None, pushes: Sequence[Push] = PUSHES, *, seconds: float = 3.0, timestep: float = 0.002) -> Trial:
    """Simulate the robot of `standing` under pushes, with motors of at most 33.5 N·m.

    Args:
        controller: of that problem, asked at every timestep; None: servos that hold the stance. It is reset first.
        seconds, timestep: of the simulation [s]. It ends early where a step is flagged or the trunk tilts by more than 60°.
    """
    mech, z, held = _robot(timestep, planned=False)
    mech.options = SIMULATION
    if controller is not None:
        controller.reset()
        z = controller.settled
    states, warm, tilt, flagged = [z], None, 0.0, 0
    with torch.no_grad():
        for i in range(round(seconds / timestep)):
            time = i * timestep
            ctrl = held if controller is None else controller(z, time)
            wrench = torch.zeros(TWIST_SIZE * mech.num_bodies, dtype=torch.float64)
            for push in pushes:
                if push.begin - 1e-9 <= time < push.end - 1e-9:
                    wrench[:3] += torch.tensor(push.force, dtype=torch.float64)
            out = mech.step(z, ctrl=ctrl, warm_start=warm, wrench=wrench)
            z, warm = out.z, out.solution
            states.append(z)
            flagged += int(out.status != 0)
            up = quat.rotation_matrix(z[6:10])[2, 2]
            tilt = max(tilt, math.acos(max(-1.0, min(1.0, float(up)))))
            if flagged or tilt > math.radians(60):
                break
    report = ControlReport(0, 0, 0.0, 0.0) if controller is None else controller.report
    path = torch.stack(states)
    height = float(path[:, 2].min())
    upright = tilt < math.radians(45) and not flagged and height > 0.5 * float(path[0, 2])
    return Trial(upright, tilt, height, flagged, (len(states) - 1) * timestep, path, report)
