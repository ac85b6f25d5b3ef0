"""Residual physics: a small network that adds to a mechanism what its equations lack, trained through the step.

    model = ResidualWrench(cube_model(dt, ("friction",)))
    loss = WindowLoss(model, training)          # as for the parameters alone; any optimizer of torch
    open_loop(model, validation)                # against open_loop of the pure model, on throws held back

The network sees each body as the body itself would: the direction of gravity, its velocities and its height, all in the body frame, and
answers with a force and a torque on it, also in the body frame, so that where a throw happens and where it heads makes no difference
(Zeng et al. 2020, "TossingBot", for the idea; Ajay et al. 2018 for contact).
"""

from __future__ import annotations

import copy
import functools
from typing import Any, cast

import torch
from torch import Tensor, nn

from torchdojo import quaternion as quat
from torchdojo.bodies import Body
from torchdojo.dynamics.integrator import STATE_SIZE
from torchdojo.identification.parameters import ParametricMechanism
from torchdojo.mechanism import StepOutput, Trajectory
from torchdojo.rollout import step_by_step

__all__ = ["ResidualWrench"]


class ResidualWrench(ParametricMechanism):
    """A `ParametricMechanism` with an external wrench on every body that a network computes from its state.

    Args:
        model: is copied. hidden: width of the two hidden layers. force [N], torque [N·m]: what an output of 1 means; default: a tenth of
            the mean weight of the bodies, and that at 5 cm. speed [m/s], spin [rad/s], height [m]: what inputs are divided by.

    The last layer starts at zero: before training, the motion is that of the pure model. For optimizers of torch; `gauss_newton` moves the
    parameters of the mechanism alone, at the network as it is.
    """

    def __init__(
        self,
        model: ParametricMechanism,
        hidden: int = 32,
        *,
        force: float | None = None,
        torque: float | None = None,
        speed: float = 1.0,
        spin: float = 10.0,
        height: float = 0.1,
    ) -> None:
        nn.Module.__init__(self)
        self.__dict__.update({key: value for key, value in copy.deepcopy(model).__dict__.items()})
        with torch.no_grad():
            masses = torch.stack([cast(Body, body).mass.mean() for body in self.mechanism.bodies.values()])
            weight = float(masses.mean() * torch.linalg.vector_norm(self.mechanism.gravity))
        force = 0.1 * weight if force is None else force
        self.units = force, 0.05 * force if torque is None else torque
        self.inputs = speed, spin, height
        self.network = nn.Sequential(nn.Linear(10, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, 6)).double()
        last = cast(nn.Linear, self.network[-1])
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)

    def wrench(self, z: Tensor) -> Tensor:
        """Force (world frame) and torque (body frame) on each body at states z (..., 13 nb), (..., 6 nb) [N, N·m]."""
        x, v, q, omega = z.unflatten(-1, (-1, STATE_SIZE)).split((3, 3, 4, 3), dim=-1)
        speed, spin, height = self.inputs
        down = quat.inverse_rotate(q, z.new_tensor((0.0, 0.0, -1.0)).expand(x.shape))
        seen = torch.cat((down, quat.inverse_rotate(q, v) / speed, omega / spin, x[..., 2:] / height), dim=-1)
        push, turn = self.network(seen).split(3, dim=-1)
        return torch.cat((self.units[0] * quat.rotate(q, push), self.units[1] * turn), dim=-1).flatten(-2)

    def step(self, z: Tensor, raw: Tensor | None = None, **kwargs: Any) -> StepOutput:
        """`Mechanism.step` with these parameters and the network's wrench."""
        return super().step(z, raw, wrench=self.wrench(z), **kwargs)

    def rollout(self, z: Tensor, steps: int, raw: Tensor | None = None) -> Trajectory:
        take = functools.partial(self._take, raw)
        return step_by_step(take, self.mechanism.num_inputs, z, None, steps, None)[0]

    def _take(self, raw: Tensor | None, z: Tensor, _: Tensor | None, warm: Tensor | None) -> StepOutput:
        return self.step(z, raw, warm_start=warm)
