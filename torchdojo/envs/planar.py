"""Robots in a plane: reacher, swimmer, hopper, walker2d, half_cheetah."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torchdojo.envs import rewards
from torchdojo.envs.drives import Drive
from torchdojo.envs.motion import Motion
from torchdojo.envs.rewards import Parts, effort
from torchdojo.envs.table import Row, TableEnv, add

__all__: list[str] = []

LINKS = (0.1, 0.11)  # of the reacher, to its fingertip [m]
REACH = 0.2  # radius of the disk of its targets [m]


def _tip(m: Motion) -> Tensor:
    """The reacher's fingertip in the plane, (..., 2)."""
    first = m.q[..., :1]
    total = first + m.q[..., 1:]
    return LINKS[0] * torch.cat((torch.cos(first), torch.sin(first)), -1) + LINKS[1] * torch.cat((torch.cos(total), torch.sin(total)), -1)


def _observe_reacher(env: TableEnv, m: Motion) -> Tensor:
    """Cosines and sines, target, rates, fingertip − target: Gymnasium's."""
    return torch.cat((torch.cos(m.q), torch.sin(m.q), m.goal, 0.2 * m.qd, _tip(m) - m.goal), -1)


def _reach(env: TableEnv, before: Motion, after: Motion, action: Tensor) -> Parts:
    """Gymnasium's Reacher-v5: −distance − 0.1 |action|²."""
    return {"distance": -(_tip(after) - after.goal).norm(dim=-1), "effort": -0.1 * effort(action)}


def _smooth_reach(env: TableEnv, before: Motion, after: Motion, action: Tensor) -> Parts:
    """The same with a distance that is smooth at zero, √(d² + 1 cm²) − 1 cm."""
    distance = ((_tip(after) - after.goal).square().sum(-1) + 1e-4).sqrt() - 1e-2
    return {"distance": -distance, "effort": -0.1 * effort(action)}


def _targets(env: TableEnv, count: int) -> Tensor:
    """Uniform in a disk."""
    radius, angle = REACH * env.random(count, 1, low=0.0).sqrt(), env.random(count, 1, low=-math.pi, high=math.pi)
    return radius * torch.cat((torch.cos(angle), torch.sin(angle)), -1)


def _observe(env: TableEnv, m: Motion) -> Tensor:
    """Coordinates but x, rates over 5, last action."""
    q = m.q[..., 1:] if env.ground is None else torch.cat((env.above_ground(m, m.q[..., 1])[..., None], m.q[..., 2:]), -1)
    return torch.cat((q, 0.2 * m.qd, m.action), -1)


def _observe_swimmer(env: TableEnv, m: Motion) -> Tensor:
    """Coordinates but x and y, rates, last action."""
    return torch.cat((m.q[..., 2:], m.qd, m.action), -1)


def _hopping(env: TableEnv, after: Motion) -> Tensor:
    """Gymnasium's healthy ranges of height and angle."""
    n = env.row.numbers
    height = env.above_ground(after, after.q[..., 1])
    return (height < n["gym_fall"]) | (height > n["gym_top"]) | (after.q[..., 2].abs() > n["gym_tilt"])


PLANAR = {"shac": rewards.shac_planar, "gymnasium": rewards.gymnasium_planar}
FALLS = {"shac": rewards.leaning, "gymnasium": _hopping}

add({
    "reacher": Row(
        "reacher", _observe_reacher, {"shac": _smooth_reach, "gymnasium": _reach}, timestep=0.01, repeat=2, episode_length=50,
        noise=(0.1, 0.1), rates=0.005, goals=_targets,
    ),
    "swimmer": Row(
        "swimmer", _observe_swimmer, PLANAR, timestep=0.01, repeat=4, noise=(0.1, 0.1), rates=0.1, drag=True,
        numbers={"speed": 1.0, "cap": math.inf, "effort": 1e-4, "gym_effort": 1e-4, "gym_alive": 0.0},
    ),
    "hopper": Row(
        "hopper", _observe, PLANAR, FALLS, timestep=0.01, repeat=2, drive=Drive(reach=0.8, strength=1.0, damping=0.1), noise=(0.01, 0.01),
        rates=0.05, clearance=0.005,
        numbers={"speed": 1.0, "cap": math.inf, "effort": 0.1, "stand": 0.9, "height": 1.0, "rise": 0.3, "dip": 200.0, "lean": 1.0,
                 "angle": math.pi / 6, "fall": 0.75, "tilt": 0.5, "gym_effort": 1e-3, "gym_alive": 1.0,
                 "gym_fall": 0.7, "gym_top": 1e3, "gym_tilt": 0.2},
    ),
    "walker2d": Row(
        "walker2d", _observe, PLANAR, FALLS, timestep=0.01, repeat=2, drive=Drive(reach=1.0, strength=1.5, damping=0.03),
        noise=(0.01, 0.01), rates=0.015, clearance=0.005,
        numbers={"speed": 1.0, "cap": 2.5, "effort": 0.1, "symmetry": 0.0, "stand": 1.0, "height": 1.0, "rise": 0.3, "dip": 200.0,
                 "lean": 1.0, "angle": 0.7, "fall": 0.8, "tilt": 1.0, "gym_effort": 1e-3, "gym_alive": 1.0, "gym_fall": 0.8, "gym_top": 2.0,
                 "gym_tilt": 1.0},
    ),
    "half_cheetah": Row(
        "half_cheetah", _observe, PLANAR, timestep=0.01, repeat=2, drive=Drive(reach=0.5, damping=0.0), noise=(0.05, 0.05), rates=0.1,
        clearance=0.02, numbers={"speed": 1.0, "cap": math.inf, "effort": 0.1, "gym_effort": 0.1, "gym_alive": 0.0},
    ),
})  # fmt: skip
