"""Robots with a free torso: ant, humanoid, quadruped."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torchdojo import quaternion as quat
from torchdojo.envs import rewards
from torchdojo.envs.drives import Drive
from torchdojo.envs.motion import Motion, upright_and_heading
from torchdojo.envs.rewards import Parts, effort
from torchdojo.envs.table import Row, TableEnv, add
from torchdojo.models.unitree import STANDING

__all__: list[str] = []

COMMANDS = ((-0.5, 1.5), (-0.4, 0.4), (-0.6, 0.6))  # ranges of forward and sideways speed [m/s], and of the turning rate [rad/s]


def _height(env: TableEnv, m: Motion) -> Tensor:
    """The torso's height above the ground (B,) [m]."""
    return env.above_ground(m, m.root[..., 2])


def _observe(env: TableEnv, m: Motion) -> Tensor:
    """Height, velocity, orientation and spin of the torso, coordinates and rates / 5 of the joints, uprightness, heading, last action."""
    root = m.root[..., 2:13] if env.ground is None else torch.cat((_height(env, m)[..., None], m.root[..., 3:13]), -1)
    return torch.cat((root, m.q[..., 6:], 0.2 * m.qd[..., 6:], upright_and_heading(m.root), m.action), -1)


def _unhealthy(env: TableEnv, after: Motion) -> Tensor:
    """Out of Gymnasium's healthy range of height."""
    n, height = env.row.numbers, env.above_ground(after, after.q[..., 2])
    return (height < n["gym_fall"]) | (height > n["gym_top"])


def _own_frame(m: Motion) -> tuple[Tensor, Tensor]:
    """Velocity of the torso and the direction up, both in its frame."""
    turn = m.root[..., 6:10]
    return quat.inverse_rotate(turn, m.root[..., 3:6]), quat.inverse_rotate(
        turn, m.root.new_tensor((0.0, 0.0, 1.0)).expand_as(m.root[..., :3])
    )


def _observe_quadruped(env: TableEnv, m: Motion) -> Tensor:
    """Height, up and velocity in the torso's frame, spin, coordinates and rates / 10 of the joints, last action, command."""
    velocity, up = _own_frame(m)
    return torch.cat(
        (_height(env, m)[..., None], up, velocity, m.root[..., 10:13], m.q[..., 6:], 0.1 * m.qd[..., 6:], m.action, m.goal), -1
    )


def _command(env: TableEnv, before: Motion, after: Motion, action: Tensor) -> Parts:
    """Follow the command: −|v − v*|² − 0.5 (ω − ω*)², upright, at the standing height, with little effort and change of action."""
    n = env.row.numbers
    velocity, up = _own_frame(after)
    return {
        "velocity": -n["speed"] * (velocity[..., :2] - after.goal[..., :2]).square().sum(-1),
        "turning": -0.5 * n["speed"] * (after.root[..., 12] - after.goal[..., 2]).square(),
        "posture": n["up"] * up[..., 2],
        "height": rewards.standing(env, _height(env, after)),
        "effort": -n["effort"] * effort(action) - n["smooth"] * effort(action - before.action),
        "alive": torch.full_like(velocity[..., 0], n["alive"]),
    }


def _commands(env: TableEnv, count: int) -> Tensor:
    return torch.cat([env.random(count, 1, low=low, high=high) for low, high in COMMANDS], -1)


def _overturned(env: TableEnv, after: Motion) -> Tensor:
    """Low, or with the torso on its side."""
    return (_height(env, after) < env.row.numbers["fall"]) | (upright_and_heading(after.root)[..., 0] < 0.3)


TORSO = {"shac": rewards.shac_torso, "gymnasium": rewards.gymnasium_torso}
FALLS = {"shac": rewards.fallen, "gymnasium": _unhealthy}

add({
    "ant": Row(
        "ant", _observe, {**TORSO, "dojo": rewards.dojo_torso}, {**FALLS, "dojo": _unhealthy}, timestep=0.02, repeat=1,
        noise=(0.05, 0.1), rates=0.07, clearance=0.02,
        drive=Drive(reach=0.6, strength=1.0, damping=0.1, rest={"ankle_1": 0.87, "ankle_2": -0.87, "ankle_3": -0.87, "ankle_4": 0.87}),
        numbers={"speed": 1.0, "cap": math.inf, "up": 0.1, "heading": 1.0, "stand": 0.27, "height": 1.0, "rise": math.inf, "dip": 0.0,
                 "effort": 0.0, "symmetry": 0.0, "fall": 0.27, "gym_speed": 1.0, "gym_effort": 0.5, "gym_alive": 1.0, "gym_contact": 5e-4,
                 "gym_clip": 1.0, "gym_center": 0.0, "gym_fall": 0.2, "gym_top": 1.0},
    ),
    "humanoid": Row(
        "humanoid", _observe, TORSO, FALLS, timestep=0.02, repeat=1, noise=(0.02, 0.02), rates=0.03, clearance=0.005,
        drive=Drive(reach=1.5, strength=1.75, damping=0.1, rest={"knee": -0.4, "hip_y": -0.2}),
        numbers={"speed": 2.0, "cap": 2.5, "up": 1.0, "heading": 1.0, "stand": 1.0, "height": 10.0, "rise": 0.1, "dip": 200.0,
                 "effort": 0.002, "symmetry": 0.0, "fall": 0.9, "gym_speed": 1.25, "gym_effort": 0.016, "gym_alive": 5.0,
                 "gym_contact": 5e-7, "gym_clip": 0.0, "gym_center": 1.0, "gym_fall": 1.0, "gym_top": 2.0},
    ),
    "quadruped": Row(
        "quadruped", _observe_quadruped, {"shac": _command}, {"shac": _overturned}, timestep=0.01, repeat=2, noise=(0.03, 0.1), rates=0.1,
        clearance=0.005, options={"velocity_limits": True}, goals=_commands, command=True,
        drive=Drive(reach=0.5, strength=0.9, damping=0.025, limit=1.0, rest={f"{part}_joint": angle for part, angle in STANDING.items()}),
        numbers={"speed": 1.0, "up": 0.5, "stand": 0.25, "height": 2.0, "rise": 0.05, "dip": 100.0, "effort": 0.005, "smooth": 0.01,
                 "alive": 1.0, "fall": 0.15},
    ),
})  # fmt: skip
