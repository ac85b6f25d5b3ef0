"""Rewards: Gymnasium's (v5), SHAC's and Dojo's, each a function (env, before, after, action) -> parts whose sum is the reward.

`README.md` of this folder states every difference from their sources. Numbers that differ between robots are in `env.row.numbers`:

    speed, cap: weight of the forward speed [s/m], and the speed above which it counts a tenth [m/s]
    up, heading: weights of the torso's uprightness and heading      alive: added in every step
    effort: weight of the squared action                             fall: height below which the episode ends [m]
    stand, height, dip: height of the torso [m] from which `height` per meter is gained up to `rise` meters, and below which dip d² is lost
    lean, angle: weight and size of the torso's lean [rad]
    symmetry: weight of the squared differences of each driven joint from the image of the one on the other side [1/rad²], now or, where the
        environment has a clock, half a stride before
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from torchdojo.elements.bodies import Body
from torchdojo.envs.motion import Motion, upright_and_heading

if TYPE_CHECKING:
    from torchdojo.envs.table import TableEnv

__all__ = [
    "apart",
    "dojo_torso",
    "effort",
    "fallen",
    "forward",
    "gymnasium_planar",
    "gymnasium_torso",
    "leaning",
    "shac_planar",
    "shac_torso",
    "standing",
]

Parts = dict[str, Tensor]


def forward(env: TableEnv, before: Motion, after: Motion) -> Tensor:
    """Mean speed of the root along x in the control step [m/s]."""
    return (after.q[..., 0] - before.q[..., 0]) / env.period


def effort(action: Tensor) -> Tensor:
    """Sum of squared actions."""
    return action.square().sum(-1)


def apart(env: TableEnv, before: Motion, after: Motion) -> Tensor:
    """Sum over driven joints of the squared difference from the mirror image, now or, with a clock, half a stride before [rad²]."""
    places, images = env.sides
    angles = after.q[..., places]
    image = before.memory[..., 1 : 1 + len(places)] if env.lag else angles @ images.mT
    return (angles - image).square().sum(-1)


def standing(env: TableEnv, height: Tensor) -> Tensor:
    """SHAC's reward of a height: linear above `stand`, up to `rise` meters more, and a parabola below, at most 1 m deep."""
    n = env.row.numbers
    above = height - n["stand"]
    gain = n["height"] * (above if math.isinf(n["rise"]) else above.clamp(max=n["rise"]))
    return torch.where(above < 0, -n["dip"] * above.clamp(-1.0, 0.0).square(), gain) if n["dip"] else gain


def shac_torso(env: TableEnv, before: Motion, after: Motion, action: Tensor) -> Parts:
    """SHAC's reward of ant and humanoid: speed, uprightness, heading, height, effort."""
    n = env.row.numbers
    speed = forward(env, before, after)
    if math.isfinite(n["cap"]):
        speed = torch.minimum(speed, n["cap"] + 0.1 * (speed - n["cap"]))
    posture = upright_and_heading(after.root) @ env.posture
    parts = {"speed": n["speed"] * speed, "posture": posture, "height": standing(env, env.above_ground(after, after.root[..., 2]))}
    if n.get("symmetry"):
        parts["symmetry"] = -n["symmetry"] * apart(env, before, after)
    return {**parts, "effort": -n["effort"] * effort(action)} if n["effort"] else parts


def shac_planar(env: TableEnv, before: Motion, after: Motion, action: Tensor) -> Parts:
    """SHAC's reward of hopper and half-cheetah, and ours of the walker: speed, height, lean, effort."""
    n = env.row.numbers
    speed = forward(env, before, after)
    if math.isfinite(n["cap"]):
        speed = torch.minimum(speed, n["cap"] + 0.1 * (speed - n["cap"]))
    parts = {"speed": n["speed"] * speed, "effort": -n["effort"] * effort(action)}
    if n.get("symmetry"):
        parts["symmetry"] = -n["symmetry"] * apart(env, before, after)
    if "stand" in n:
        parts["height"] = standing(env, env.above_ground(after, after.q[..., 1]))
        parts["lean"] = n["lean"] * (1.0 - (after.q[..., 2] / n["angle"]).square())
    return parts


def gymnasium_planar(env: TableEnv, before: Motion, after: Motion, action: Tensor) -> Parts:
    """Gymnasium's reward of hopper, walker2d, half-cheetah and swimmer: speed + alive − effort."""
    n = env.row.numbers
    parts = {"speed": forward(env, before, after), "effort": -n["gym_effort"] * effort(action)}
    return {**parts, "alive": torch.full_like(parts["speed"], n["gym_alive"])} if n["gym_alive"] else parts


def gymnasium_torso(env: TableEnv, before: Motion, after: Motion, action: Tensor) -> Parts:
    """Gymnasium's reward of ant and humanoid: speed + alive − effort − contact forces, the last where the impulses are observed."""
    n = env.row.numbers
    if n["gym_center"]:  # of all bodies
        mass = torch.stack([cast(Body, body).mass for body in env.mech.bodies.values()], -1)
        travelled = (after.z - before.z).unflatten(-1, (-1, 13))[..., 0]
        speed = (mass * travelled).sum(-1) / mass.sum(-1) / env.period
    else:
        speed = forward(env, before, after)
    parts = {
        "speed": n["gym_speed"] * speed,
        "effort": -n["gym_effort"] * effort(action),
        "alive": torch.full_like(speed, n["gym_alive"]),
    }
    if env.observe_impulses:
        force = after.impulses / env.period
        force = force.clamp(-1.0, 1.0) if n["gym_clip"] else force
        parts["contact"] = -(n["gym_contact"] * force.square().sum(-1)).clamp(max=10.0)
    return parts


def dojo_torso(env: TableEnv, before: Motion, after: Motion, action: Tensor) -> Parts:
    """Dojo's reward of the ant: 2 v + 0.05 − 0.05 a², without its cost of contact, which is at most 5e-4 of each contact."""
    speed = forward(env, before, after)
    return {"speed": 2.0 * speed, "effort": -0.05 * effort(action), "alive": torch.full_like(speed, 0.05)}


def fallen(env: TableEnv, after: Motion) -> Tensor:
    """Whether the torso is below `fall`."""
    return env.above_ground(after, after.root[..., 2]) < env.row.numbers["fall"]


def leaning(env: TableEnv, after: Motion) -> Tensor:
    """Whether the torso is below `fall`, or leans by more than `tilt`."""
    n = env.row.numbers
    return (env.above_ground(after, after.root[..., 2]) < n["fall"]) | (after.q[..., 2].abs() > n["tilt"])
