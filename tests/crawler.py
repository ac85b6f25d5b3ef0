"""A robot of one's own whose task has goals, a clock, a filter and the action before the last."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

import torchdojo as td
from torchdojo.envs.motion import upright_and_heading

PERIOD = 0.5  # of the clock [s]
FILTER = 0.8  # share of the filtered speed that a control step keeps


class Crawler(td.envs.Env):
    """A box that pulls itself along with an arm, at a commanded speed and in time with a clock."""

    name = "crawler"
    timestep, repeat, episode_length = 0.01, 2, 250

    def build(self) -> td.Mechanism:
        corners = {f"corner{i}": (0.2 * (-1) ** i, 0.1 * (-1) ** (i // 2), -0.05) for i in range(4)}
        mech = td.Mechanism(
            bodies={"trunk": td.Body(2.0, shape=td.Box((0.4, 0.2, 0.1))), "arm": td.Body(0.5, shape=td.Box((0.3, 0.04, 0.04)))},
            joints={
                "base": td.Floating(None, "trunk", actuated=False),
                "shoulder": td.Revolute("trunk", "arm", axis=(0, 1, 0), parent_anchor=(0.2, 0, 0), child_anchor=(-0.15, 0, 0)),
            },
            contacts={
                **{name: td.NonlinearContact("trunk", point=point, friction=0.5) for name, point in corners.items()},
                "hand": td.NonlinearContact("arm", point=(0.15, 0, 0), radius=0.02, friction=1.0),
            },
        )
        td.actuate(mech, {"shoulder": td.Actuator.position("shoulder", kp=20.0, kv=1.0, ctrlrange=(-1.0, 1.0))})
        return mech

    def starts(self, count: int) -> Tensor:
        return self.mech.initial_state((count,), shoulder={"q": 0.1 * self.noise * self.random(count, 1)}, on="ground")

    def goals(self, count: int) -> Tensor:
        return self.random(count, 1)

    def memories(self, start: td.envs.Motion) -> Tensor:
        """Phase of the clock, filtered speed, last action."""
        phase = self.random(len(start.z), 1, low=0.0)
        return torch.cat((phase, start.root[:, 3:4], start.action), -1)

    def remember(self, before: td.envs.Motion, after: td.envs.Motion, fresh: Tensor) -> Tensor:
        phase = (before.memory[:, :1] + self.period / PERIOD) % 1.0
        speed = FILTER * before.memory[:, 1:2] + (1.0 - FILTER) * after.root[:, 3:4]
        return torch.cat((phase, speed, before.action), -1)

    def observe(self, motion: td.envs.Motion) -> Tensor:
        angle = 2.0 * math.pi * motion.memory[:, :1]
        clock = torch.cat((angle.sin(), angle.cos(), motion.memory[:, 1:]), -1)
        return torch.cat((motion.root[:, 2:13], motion.q[:, 6:], 0.2 * motion.qd[:, 6:], motion.action, motion.goal, clock), -1)

    def reward(self, before: td.envs.Motion, after: td.envs.Motion, action: Tensor) -> Mapping[str, Tensor]:
        phase, speed, _ = after.memory.unbind(-1)
        rhythm = (after.q[:, 6] - 0.5 * (2.0 * math.pi * phase).sin()).square()
        change = (action - 2.0 * before.action)[:, 0] + before.memory[:, 2]
        return {
            "speed": -(speed - 0.3 * after.goal[:, 0]).square(),
            "rhythm": -rhythm * (after.time < 200),
            "change": -0.01 * change.square(),
        }

    def terminated(self, after: td.envs.Motion) -> Tensor:
        return upright_and_heading(after.root)[:, 0] < 0.3
