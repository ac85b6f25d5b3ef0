"""Plans on MuJoCo's side: the planner of `td.planning` on steps and derivatives of MuJoCo, for scenes of free bodies."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchdojo.planning import Problem
from torchdojo.planning.dynamics import Dynamics, Nodes
from torchdojo.state.layout import STATE_SIZE, TANGENT_SIZE

__all__ = ["MujocoDynamics"]

EPSILON = 1e-6  # of the centered differences of `mjd_transitionFD`
LARGEST = 1e4  # numbers of states and inputs beyond which a simulation counts as diverged [m, m/s, N, ...]


class MujocoDynamics(Dynamics):
    """Steps of a MuJoCo model in place of those of a problem: ``problem.dynamics = MujocoDynamics(mujoco, xml, problem)``.

    States are those of torchdojo, so costs, goals and differences are the problem's. kappa and grad_kappa have no meaning here.

    Args:
        xml: MJCF of free bodies, in the order of the problem's, with an actuator for each input of the problem.
        problem: in tangent coordinates, without limits.
    """

    def __init__(self, mujoco: ModuleType, xml: str, problem: Problem) -> None:
        dynamics = problem.dynamics
        super().__init__(dynamics.mech, dynamics.map, dynamics.offset, "tangent")
        self.mujoco, self.model = mujoco, mujoco.MjModel.from_xml_string(xml)
        self.data = mujoco.MjData(self.model)
        bodies = range(dynamics.mech.num_bodies)
        if self.model.nv != 6 * len(bodies) or self.model.nu != len(dynamics.map):
            raise ValueError(
                f"MujocoDynamics: the model has {self.model.nv} rates and {self.model.nu} actuators; allowed: those of the problem"
            )
        # z: position, velocity, quaternion, angular velocity of each body. qpos: position, quaternion. qvel: velocity, angular velocity.
        self.place = np.concatenate([STATE_SIZE * b + np.r_[0:3, 6:10] for b in bodies])
        self.rate = np.concatenate([STATE_SIZE * b + np.r_[3:6, 10:13] for b in bodies])
        # tangent: position, velocity, rotation, angular velocity; that of MuJoCo has all positions and rotations before the rates
        self.order = np.concatenate(
            [TANGENT_SIZE * b + np.r_[0:3, 6:9] for b in bodies] + [TANGENT_SIZE * b + np.r_[3:6, 9:12] for b in bodies]
        )

    def rollout(self, z: Tensor, v: Tensor, warm: Tensor | None, kappa: Tensor) -> Nodes:
        nodes = Nodes(z[:, None], z[:, None], v, z.new_zeros(*v.shape[:2], self.model.nv), z[:, None], torch.ones(len(z), dtype=torch.bool))
        gains = v.new_zeros(*v.shape, self.size)
        path = self.feedback(nodes, torch.zeros_like(v)[:, None], gains[:, None], torch.ones(1, dtype=torch.float64), kappa, None)
        return Nodes(*(value[:, 0, 0] for value in path))

    def feedback(self, nodes: Nodes, k: Tensor, K: Tensor, alphas: Tensor, kappa: Tensor, limits: Any) -> Nodes:
        (P, M, T, _), count = k.shape, len(alphas)
        z, warm = (value[:, None, None, 0].expand(P, M, count, -1) for value in (nodes.z, nodes.w))
        ok = torch.ones(P, M, count, dtype=torch.bool)
        columns: list[list[Tensor]] = [[z], [], []]
        for t in range(T):
            error = self.difference(z, nodes.z[:, None, None, min(t, nodes.z.shape[1] - 1)])
            v = nodes.v[:, None, None, t] + alphas[:, None] * k[:, :, None, t] + error @ K[:, :, t].mT
            z, warm, fine = self._steps(z, v, warm)
            ok &= fine
            for column, value in zip(columns, (z, v, warm), strict=True):
                column.append(value)
        z, v, warm = (torch.stack(column, -2) for column in columns)
        return Nodes(z, z, v, warm, z[..., 1:, :], ok)

    def evaluate(self, x: Tensor, v: Tensor, warm: Tensor | None, kappa: Tensor) -> Nodes:
        warm = x.new_zeros(*v.shape[:-1], self.model.nv) if warm is None else warm
        end, warm, ok = self._steps(x[..., :-1, :], v, warm)
        return Nodes(x, x, v, warm, end, ok.all(-1))

    def linearize(self, nodes: Nodes, kappa: Tensor, grad_kappa: Tensor) -> tuple[Tensor, Tensor]:
        u = self.inputs(nodes.v).numpy()
        A, B = np.empty((*u.shape[:2], self.size, self.size)), np.empty((*u.shape[:2], self.size, u.shape[2]))
        raw = np.empty((self.size, self.size)), np.empty((self.size, u.shape[2]))
        for i in np.ndindex(u.shape[:2]):
            self._set(nodes.z[i].numpy(), u[i], nodes.w[i].numpy())
            self.mujoco.mjd_transitionFD(self.model, self.data, EPSILON, True, *raw, None, None)
            A[i][np.ix_(self.order, self.order)], B[i][self.order] = raw
        return torch.from_numpy(A), torch.from_numpy(B) @ self.map

    def _set(self, z: np.ndarray, u: np.ndarray, warm: np.ndarray) -> None:
        data = self.data
        data.qpos[:], data.qvel[:], data.ctrl[:], data.qacc_warmstart[:] = z[self.place], z[self.rate], u, warm

    def _steps(self, z: Tensor, v: Tensor, warm: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """States after a step, accelerations to start the next one from, and whether the simulation goes on."""
        u = self.inputs(v)
        ok = (z.abs().amax(-1) < LARGEST) & (u.abs().amax(-1) < LARGEST)  # NaN is not
        after, acceleration = z.clone().numpy(), warm.clone().numpy()
        before, forces = after.copy(), u.numpy()
        for i in np.argwhere(ok.numpy()):
            place = tuple(i)
            self._set(before[place], forces[place], acceleration[place])
            self.mujoco.mj_step(self.model, self.data)
            after[place][self.place], after[place][self.rate] = self.data.qpos, self.data.qvel
            acceleration[place] = self.data.qacc_warmstart
        stepped = torch.from_numpy(after)
        return stepped, torch.from_numpy(acceleration), ok & (stepped.abs().amax(-1) < LARGEST)
