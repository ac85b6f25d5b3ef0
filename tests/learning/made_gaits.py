"""Motions of an A1 made by hand, so that all numbers of a gait are known: feet that stand still, lift as told, and bear the weight."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

import torchdojo as td
from torchdojo.learning.gait import mass_of
from torchdojo.learning.motors import places
from torchdojo.learning.rollouts import Evaluation, Recording

PERIOD = 0.02
LEGS = ("FR", "FL", "RR", "RL")
THIGH, CALF, BEND = 0.2, math.hypot(0.000435, 0.199388), -math.atan2(0.000435, 0.199388)  # from joint to joint, and to the foot [m, rad]
RADIUS, ABOVE = 0.021, 0.0005  # of a foot; of the hips above the trunk's center of mass [m]


@dataclass(frozen=True)
class Made:
    """A trot. speed [m/s], turning [rad/s]. frequency [Hz]. duty: share of stance. height: of the trunk [m].

    clearance: of each leg [m]. ahead: by how much each leg stands before its hip [m]. slide: speed of the trunk over that of the feet.
    clock: time of the strides at a time. torque(angles, rates): torques of the motors. loaded(leg, phase): whether the foot bears load.
    lasting: shares of the recording after which episodes end.
    """

    speed: float = 0.5
    frequency: float = 2.0
    duty: float = 0.6
    height: float = 0.29
    clearance: Mapping[str, float] = field(default_factory=lambda: dict.fromkeys(LEGS, 0.06))
    ahead: Mapping[str, float] = field(default_factory=lambda: dict.fromkeys(LEGS, 0.0))
    slide: float = 1.0
    clock: Callable[[Tensor], Tensor] = lambda t: t
    torque: Callable[[Tensor, Tensor], Tensor] = lambda q, qd: 0 * q
    loaded: Callable[[str, Tensor], Tensor] | None = None
    lasting: tuple[float, ...] = (1.0,)
    offset: Mapping[str, float] = field(default_factory=lambda: {"FR": 0.0, "FL": 0.5, "RR": 0.5, "RL": 0.0})


def robot(**drive: float) -> td.envs.Env:
    """A quadruped whose drives reach far, so that any torque has an action."""
    return td.envs.make("quadruped", pool=1, drive={"reach": 3.0, **drive})


def leg_angles(x: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    """Angles of thigh and calf that put the foot at (x, z) from the thigh's joint."""
    reach = (x.square() + z.square()).sqrt()
    knee = -torch.arccos(((reach.square() - THIGH**2 - CALF**2) / (2 * THIGH * CALF)).clamp(-1, 1))
    return torch.atan2(-x, -z) - torch.atan2(CALF * knee.sin(), THIGH + CALF * knee.cos()), knee - BEND


def record(env: td.envs.Env, made: Made, steps: int = 400, goals: Tensor | None = None) -> Evaluation:
    """The recording of a motion; one episode for each entry of `lasting`."""
    mech, place = env.mech, places(env.mech)
    times = PERIOD * torch.arange(steps + 1, dtype=torch.float64)

    def phase(leg: str, t: Tensor) -> Tensor:
        return torch.remainder(made.frequency * made.clock(t) + made.offset[leg], 1.0)

    def coordinates(t: Tensor) -> Tensor:
        q = torch.zeros(len(t), mech.num_coordinates, dtype=torch.float64)
        q[:, 0], q[:, 2] = made.slide * made.speed * made.clock(t), made.height - q.new_tensor(0.0)
        length, swing = made.speed * made.duty / made.frequency, 1.0 - made.duty
        for number, leg in enumerate(LEGS):
            s = phase(leg, t)
            share = torch.where(s < swing, 0.5 - 0.5 * (math.pi * s / swing).cos(), 1.0 - (s - swing) / made.duty)  # from back to front
            lift = made.clearance[leg] * torch.where(s < swing, (math.pi * s / swing).sin().square(), 0.0)
            x, z = made.ahead[leg] + length * (share - 0.5), lift + RADIUS - ABOVE - made.height
            q[:, place[3 * number + 1]], q[:, place[3 * number + 2]] = leg_angles(x, z)
        return q

    tiny = 1e-6
    q = coordinates(times)
    qd = (coordinates(times + tiny) - coordinates(times - tiny)) / (2 * tiny)
    z = mech.to_maximal(q, qd)
    shift = z[:1, 2] - made.height  # the coordinate is that of the trunk's frame, not of its center
    z = z.unflatten(-1, (-1, 13))
    z[..., 2] -= shift
    z = z.flatten(-2)
    layout, weight = mech.impulse_layout, 9.81 * mass_of(mech)
    loaded = made.loaded or (lambda leg, s: s >= 1.0 - made.duty)
    stance = torch.stack([loaded(leg, phase(leg, times[1:] - tiny)) for leg in LEGS], -1).double()
    impulses = torch.zeros(steps, max(piece.stop for piece in layout.values()), dtype=torch.float64)
    for number, leg in enumerate(LEGS):
        impulses[:, layout[f"contacts.{leg}_foot"].start] = weight * PERIOD * stance[:, number] / stance.sum(-1).clamp_min(1.0)
    motors, angles, rates = mech.actuators, q[1:, place], qd[1:, place]
    assert motors is not None
    passive = motors.bias[:, 0] + motors.bias[:, 1] * angles + motors.bias[:, 2] * rates
    actions = (made.torque(angles, rates) - passive) / motors.gain[:, 0]
    count, ends = len(made.lasting), torch.tensor(made.lasting)
    alive = torch.arange(steps)[:, None] < ends * steps
    goals = torch.zeros(steps, count, 0) if goals is None else goals[:, None].expand(-1, count, -1)
    batch = [part[:, None].expand(-1, count, -1) for part in (z, actions, impulses)]
    one = torch.ones(count, dtype=torch.float64)
    recording = Recording(*batch, alive, PERIOD, goals)
    return Evaluation(one, (steps * one).long(), one, one, ends >= 1.0, one, one.bool(), one.bool(), recording)
