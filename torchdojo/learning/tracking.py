"""How well a robot follows commands: errors of velocities that are averaged over a stride, falls, and where its feet stand."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchdojo.envs import Locomotion, Motion
from torchdojo.learning.rollouts import Policy

__all__ = ["TRIALS", "Tracking", "track", "trials"]

SETTLE = 2.0  # [s] after a new command that do not count
LOW = 0.01  # [m] above the ground: feet below stand
FRICTION = (0.5, 1.25)  # of 0.8: from 0.4 to 1.0
DISTURBED: dict[str, Any] = {
    "kicks": (0.5, 150),
    "sensor_noise": {"noise": "robot", "delay": 1},
    "randomize": {"contacts.*.friction": FRICTION, "bodies.*": (0.85, 1.15)},
}
#: what a policy is tried on, as keywords of `Locomotion`
TRIALS: dict[str, dict[str, Any]] = {
    "nominal": {},
    "kicks, friction, mass": {**DISTURBED, "sensor_noise": None},
    "noise, 20 ms delay, kicks, friction, mass": DISTURBED,
}


@dataclass(frozen=True)
class Tracking:
    """Numbers of episodes, means over those that have not ended.

    upright: share of the episodes that last to the end. forward, sideways [m/s], turning [rad/s]: mean |velocity − command|, velocities in
    the frame of the heading, averaged over a stride, from 2 s after each new command on. cost_of_transport: positive work over m g
    distance. off_hips: of the foot whose mean place in stance is farthest ahead of its hip or behind it [m]. clearance: mean over feet of
    the median height at the top of a stride [m]. flagged: control steps that failed.
    """

    upright: float
    forward: float
    sideways: float
    turning: float
    cost_of_transport: float
    off_hips: float
    clearance: float
    flagged: int

    def as_dict(self) -> dict[str, float]:
        """For tables and JSON."""
        return dataclasses.asdict(self)


@torch.no_grad()
def track(env: Locomotion, policy: Policy, steps: int | None = None) -> Tracking:
    """One episode of each environment under a policy.

    Args:
        env: with ``autoreset="disabled"``. steps: control steps; None: `env.episode_length`.

    Raises:
        ValueError: an environment that resets by itself, or too few steps to settle.
    """
    if env.autoreset != "disabled":
        raise ValueError(f'track: got an environment with autoreset={env.autoreset!r}; allowed: "disabled"')
    count, settle, stride = steps or env.episode_length, round(SETTLE / env.period), round(env.stride / env.period)
    if count < settle + 2 * stride:
        raise ValueError(f"track: got {count} steps; allowed: at least {settle + 2 * stride}, since the first {SETTLE} s do not count")
    env.reset()
    flagged, up = env.statistics["flagged"], torch.ones(env.num_envs, dtype=torch.bool)
    rows: list[tuple[Tensor, ...]] = []
    age = torch.zeros(env.num_envs, dtype=torch.int64)
    for _ in range(count):
        goal = env.state.goal
        action = policy(env.state.obs.float())
        out = env.transition(env.state, action, env.draw())
        env.keep(out)
        rows.append((*_measured(env, out.state.motion, action.double()), goal, up, age))
        age = torch.where((out.state.goal == goal).all(-1), age + 1, 0)
        up = up & ~out.terminated
    velocity, power, heights, ahead, goals, alive, ages = (torch.stack(each) for each in zip(*rows, strict=True))
    smooth = velocity.unfold(0, stride, 1).mean(-1)
    counted = (alive & (ages >= settle + stride))[stride - 1 :]
    errors = (smooth - goals[stride - 1 :]).abs()[counted].mean(0)
    settled = alive & (torch.arange(count) >= settle)[:, None]
    distance = velocity[..., :2].norm(dim=-1)[settled].sum()
    weight = env.anatomy.mass * float(env.mech.gravity.norm())
    low = (heights < LOW) & settled[..., None]
    off = (torch.where(low, ahead, 0.0).sum((0, 1)) / low.sum((0, 1)).clamp_min(1)).abs().max()
    whole = (count - settle) // stride * stride
    peaks = heights[settle : settle + whole].unflatten(0, (-1, stride)).amax(1)[settled[settle : settle + whole : stride]]
    return Tracking(
        upright=float(up.double().mean()),
        forward=float(errors[0]),
        sideways=float(errors[1]),
        turning=float(errors[2]),
        cost_of_transport=float(power[settled].sum() / (weight * distance)),
        off_hips=float(off),
        clearance=float(peaks.median(0).values.mean()),
        flagged=int(env.statistics["flagged"] - flagged),
    )


def trials(factory: Callable[..., Locomotion], episodes: int = 64, seed: int = 1234) -> dict[str, Callable[[], Locomotion]]:
    """Functions that make the environments of `TRIALS`: episodes of 20 s, bodies that touch the ground, a new command every 4 s.

    factory: makes the environment from keywords, `run.config.make_env`.
    """

    def make(changes: dict[str, Any]) -> Callable[[], Locomotion]:
        keywords = {"autoreset": "disabled", "noise": 1.0, "body_contacts": True, "randomize": {}, "seed": seed, "num_envs": episodes}
        return lambda: factory(**{**keywords, **changes})

    return {name: make(changes) for name, changes in TRIALS.items()}


def _measured(env: Locomotion, motion: Motion, action: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Velocities in the frame of the heading (B, 3), power (B,), heights of the feet and how far they are ahead of hips (B, legs)."""
    root = motion.root
    w, x, y, z = root[:, 6:10].unbind(-1)
    yaw = torch.atan2(2.0 * (w * z + x * y), 1.0 - 2.0 * (y * y + z * z))
    cos, sin = yaw.cos(), yaw.sin()
    vx, vy = root[:, 3], root[:, 4]
    velocity = torch.stack((cos * vx + sin * vy, cos * vy - sin * vx, root[:, 12]), -1)
    place = env.foot_motion(motion)[0]
    away = place[..., :2] - root[:, None, :2]
    ahead = cos[:, None] * away[..., 0] + sin[:, None] * away[..., 1] - env.hips[:, 0]
    power = (env.torques(motion, action) * env.joint_angles(motion.qd)).clamp_min(0.0).sum(-1)
    return velocity, power, env.foot_heights(place) - env.radii, ahead
