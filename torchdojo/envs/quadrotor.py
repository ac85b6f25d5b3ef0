"""A quadrotor that flies to a place and hovers there."""

from __future__ import annotations

import torch
from torch import Tensor

from torchdojo.envs.motion import Motion, upright_and_heading
from torchdojo.envs.rewards import Parts, effort
from torchdojo.envs.table import Row, TableEnv, add

__all__: list[str] = []

HOVER = -0.5  # control of every rotor that carries the weight
RANGE = 1.0  # half width of the box of goals about (0, 0, 1.5) m


def _observe(env: TableEnv, m: Motion) -> Tensor:
    """Place seen from the goal, velocity, orientation, spin / 5, last action."""
    z = m.root
    return torch.cat((z[..., :3] - m.goal, z[..., 3:10], 0.2 * z[..., 10:13], m.action), -1)


def _hover(env: TableEnv, before: Motion, after: Motion, action: Tensor) -> Parts:
    """Near the goal and at rest: 1 − d² − 0.05 |v|² − 0.01 |ω|², upright, with thrust near that of hovering."""
    z = after.root
    distance = (z[..., :3] - after.goal).square().sum(-1)
    return {
        "distance": 1.0 - distance,
        "speed": -0.05 * z[..., 3:6].square().sum(-1) - 0.01 * z[..., 10:13].square().sum(-1),
        "posture": 0.2 * upright_and_heading(z)[..., 0],
        "effort": -0.01 * effort(action - HOVER),
    }


def _lost(env: TableEnv, after: Motion) -> Tensor:
    """More than 4 m from the goal, or on the ground."""
    return ((after.root[..., :3] - after.goal).square().sum(-1) > 16.0) | (env.above_ground(after, after.root[..., 2]) < 0.15)


def _goals(env: TableEnv, count: int) -> Tensor:
    return torch.tensor((0.0, 0.0, 1.5), dtype=torch.float64) + RANGE * env.random(count, 3)


add({
    "quadrotor": Row(
        "quadrotor", _observe, {"shac": _hover}, {"shac": _lost}, timestep=0.01, repeat=2, episode_length=500, noise=(0.2, 0.2), rates=0.1,
        goals=_goals, center=(0.0, 0.0, 1.5, 0.0, 0.0, 0.0),
    ),
})  # fmt: skip
