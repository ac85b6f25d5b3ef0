"""A hopper as someone writes it who has read torchdojo/envs/README.md alone: a torso, a leg with a ball as foot, position servos.

Nothing is tuned. `torchdojo train --env own_hopper:OwnHopper` with PYTHONPATH=tests trains it; learning/README.md says what comes of it.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

import torchdojo as td

SERVOS = ("hip", "knee")


class OwnHopper(td.envs.Env):
    """Hops along x in the x-z plane, for as long as it does not fall."""

    timestep, repeat, episode_length = 0.01, 2, 500
    kv, reach = 2.0, 1.0

    def build(self) -> td.Mechanism:
        along_y = {"axis": (0, 1, 0)}
        mech = td.Mechanism(
            bodies={
                "torso": td.Body(4.0, shape=td.Box((0.3, 0.2, 0.2))),
                "thigh": td.Body(1.0, shape=td.Box((0.06, 0.06, 0.4))),
                "shin": td.Body(0.5, shape=td.Box((0.05, 0.05, 0.4))),
            },
            joints={
                "base": td.PlanarAxis(None, "torso", **along_y, actuated=False),
                "hip": td.Revolute("torso", "thigh", **along_y, child_anchor=(0, 0, 0.2)),
                "knee": td.Revolute("thigh", "shin", **along_y, parent_anchor=(0, 0, -0.2), child_anchor=(0, 0, 0.2)),
            },
            contacts={"foot": td.NonlinearContact("shin", point=(0, 0, -0.2), radius=0.03, friction=1.0)},
        )
        td.actuate(mech, {name: td.Actuator.position(name, kp=60.0, kv=self.kv, ctrlrange=(-self.reach, self.reach)) for name in SERVOS})
        return mech

    def starts(self, count: int) -> Tensor:
        q = 0.05 * self.noise * self.random(count, 2) + torch.tensor((-0.4, 0.8), dtype=torch.float64)
        return self.mech.initial_state((count,), hip={"q": q[:, :1]}, knee={"q": q[:, 1:]}, on="ground")

    def observe(self, motion: td.envs.Motion) -> Tensor:
        root = motion.root
        return torch.cat((root[:, [2, 3, 5, 11]], pitch(root)[:, None], motion.q[:, 3:], 0.1 * motion.qd[:, 3:], motion.action), -1)

    def reward(self, before: td.envs.Motion, after: td.envs.Motion, action: Tensor) -> Tensor | Mapping[str, Tensor]:
        speed = (after.root[:, 0] - before.root[:, 0]) / self.period
        return {"speed": speed, "alive": torch.ones_like(speed), "effort": -0.01 * action.square().sum(-1)}

    def terminated(self, after: td.envs.Motion) -> Tensor:
        return (after.root[:, 2] < 0.6) | (pitch(after.root).abs() > 0.8)


def pitch(root: Tensor) -> Tensor:
    """Angle of the torso about y, (B,) [rad]."""
    return 2.0 * torch.atan2(root[:, 8], root[:, 6])
