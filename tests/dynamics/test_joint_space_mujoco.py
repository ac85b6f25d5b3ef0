"""Dynamics in joint coordinates beside MuJoCo: mass matrix, bias, inverse dynamics, Jacobians, center of mass, angular momentum.

MuJoCo's qvel of a free joint has the velocity of the body's origin in the world, and the angular velocity in the body frame. Ours has the
velocity of the joint's anchor and the angular velocity, both in the joint frame. T maps one to the other, and Ṫ qvel follows by hand.
"""

from __future__ import annotations

import functools
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import torchdojo as td
from conftest import shared_path
from torchdojo import quaternion as quat
from torchdojo.io import mjcf_state, read_mjcf

mujoco = pytest.importorskip("mujoco")

ROBOTS = {
    "ant": "ant/ant.xml",
    "half_cheetah": "half_cheetah/half_cheetah.xml",
    "hopper": "hopper/hopper.xml",
    "walker2d": "walker2d/walker2d_v5.xml",
    "swimmer": "classic/swimmer.xml",
    "double pendulum": "classic/inverted_double_pendulum.xml",
    "A1": "unitree_a1/a1.xml",
    "Go1": "unitree_go1/go1.xml",
    "H1": "unitree_h1/h1.xml",
    "Panda": "franka_panda/panda.xml",
    "UR5e": "ur5/ur5e.xml",
    "X2": "skydio_x2/x2.xml",
}
EXACT = 1e-9  # of the largest number of each quantity


class Pair:
    """One robot on both sides, in the same random motion."""

    def __init__(self, file: str) -> None:
        path = shared_path("models", *file.split("/"))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            robot = read_mjcf(path, mesh="skip")
            self.mech = mech = td.load(path, mesh="skip")
        self.model = model = robot.compiled.model
        self.data = data = mujoco.MjData(model)
        random = np.random.default_rng(0)
        data.qpos[:] = model.qpos0
        data.qvel[:] = random.normal(size=model.nv)
        data.qacc[:] = self.qacc = random.normal(size=model.nv)
        mujoco.mj_integratePos(model, data.qpos, random.normal(size=model.nv), 0.7)
        for stage in ("kinematics", "comPos", "makeM", "comVel"):
            getattr(mujoco, f"mj_{stage}")(model, data)
        self.z = mjcf_state(mech, robot, qpos=data.qpos.copy())
        self.q = mech.to_minimal(self.z)[0]
        self.names = {name: moved.top for name, moved in robot.moved.items() if name in robot.tops}
        self.T, self.drift = np.zeros((mech.num_coordinates, model.nv)), np.zeros(mech.num_coordinates)
        number = {str(model.joint(j).name) or f"joint{j}": j for j in range(model.njnt)}
        for entry in mech.tree_order():
            places = robot.coordinates[entry.name]
            if entry.joint.num_coordinates == 6:
                self._map_base(entry, number[places[0][0]])
                continue
            for k, (label, sign) in enumerate(places):
                self.T[entry.coordinates.start + k, model.jnt_dofadr[number[label]]] = sign
        self.map = torch.from_numpy(self.T)
        self.qd = torch.from_numpy(self.T @ data.qvel)
        self.qdd = torch.from_numpy(self.T @ self.qacc + self.drift)

    def _map_base(self, entry: Any, joint: int) -> None:
        data, body, dof = self.data, int(self.model.jnt_bodyid[joint]), int(self.model.jnt_dofadr[joint])
        state = self.mech.body_state(self.z, list(self.mech.bodies)[entry.child])
        turn = data.xmat[body].reshape(3, 3)
        arm = (state.x + quat.rotate(state.q, entry.joint.child_anchor.detach())).numpy() - data.xpos[body]
        frame = quat.rotation_matrix(entry.joint.orientation_offset.detach()).numpy().T
        lever = np.cross(turn.T, arm).T  # columns: each axis of the body times the arm
        first = slice(entry.coordinates.start, entry.coordinates.start + 3)
        second = slice(first.stop, first.stop + 3)
        self.T[first, dof : dof + 3], self.T[first, dof + 3 : dof + 6] = frame, frame @ lever
        self.T[second, dof + 3 : dof + 6] = frame @ turn
        spin = turn @ data.qvel[dof + 3 : dof + 6]
        self.drift[first] = frame @ np.cross(spin, np.cross(spin, arm))

    def mass_matrix(self) -> np.ndarray:
        full = np.zeros((self.model.nv, self.model.nv))
        mujoco.mj_fullM(self.model, *((full, self.data.qM) if hasattr(self.data, "qM") else (self.data, full)))
        return full

    def forces(self, accelerate: int) -> np.ndarray:
        result = np.zeros(self.model.nv)
        mujoco.mj_rne(self.model, self.data, accelerate, result)
        return result


@functools.cache
def pair(name: str) -> Pair:
    return Pair(ROBOTS[name])


def close(ours: Tensor, theirs: Any) -> None:
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=EXACT * max(1.0, float(np.abs(theirs).max())))


QUICK = ("ant", "half_cheetah", "double pendulum", "A1", "Panda", "X2")
pytestmark = pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in ROBOTS])


def test_mass_matrix(name: str) -> None:
    robot = pair(name)
    close(robot.map.mT @ robot.mech.mass_matrix(robot.q) @ robot.map, robot.mass_matrix())


def test_forces(name: str) -> None:
    robot = pair(name)
    mech, q, qd, back = robot.mech, robot.q, robot.qd, robot.map.mT
    drift = torch.from_numpy(robot.drift)
    close(back @ (mech.bias(q, qd) + mech.mass_matrix(q) @ drift), robot.forces(0))
    armature = (mech.mass_matrix(q) @ robot.qdd + mech.bias(q, qd) - mech.inverse_dynamics(q, qd, robot.qdd)).abs().max()
    assert float(armature) < 1e-9 * float(robot.qdd.abs().max() * mech.mass_matrix(q).max())
    # mj_rne leaves the armature of joints out.
    theirs = robot.forces(1) + robot.model.dof_armature * robot.qacc
    close(back @ mech.inverse_dynamics(q, qd, robot.qdd), theirs)
    moving, robot.data.qvel[:] = robot.data.qvel.copy(), 0.0
    mujoco.mj_comVel(robot.model, robot.data)
    close(back @ mech.gravity_forces(q), robot.forces(0))
    robot.data.qvel[:] = moving
    mujoco.mj_comVel(robot.model, robot.data)


def test_point_jacobians(name: str) -> None:
    robot = pair(name)
    turning, moving = np.zeros((3, robot.model.nv)), np.zeros((3, robot.model.nv))
    for body, number in robot.names.items():
        state = robot.mech.body_state(robot.z, body)
        point = torch.tensor((0.1, -0.2, 0.3), dtype=torch.float64)
        mujoco.mj_jac(robot.model, robot.data, moving, turning, (state.x + quat.rotate(state.q, point)).numpy(), number)
        close(robot.mech.point_jacobian(robot.q, body, point) @ robot.map, np.concatenate((moving, turning)))


def test_center_of_mass_and_angular_momentum(name: str) -> None:
    robot = pair(name)
    model, data, mech = robot.model, robot.data, robot.mech
    root = int(model.body_rootid[robot.names[next(iter(mech.bodies))]])
    carried = [b for b in range(1, model.nbody) if model.body_rootid[b] == root and model.body_weldid[b] != 0]
    total = sum(float(body.mass) for body in mech.bodies.values())
    assert total == pytest.approx(model.body_mass[carried].sum(), rel=1e-9)
    still = [b for b in range(1, model.nbody) if model.body_rootid[b] == root and model.body_weldid[b] == 0]
    mass, fixed = model.body_mass[still], data.xipos[still]
    matrix, linear = np.zeros((3, model.nv)), np.zeros((3, model.nv))
    center = mech.center_of_mass(robot.q)
    whole = (total * center.numpy() + (mass[:, None] * fixed).sum(0)) / (total + mass.sum())
    close(torch.from_numpy(whole), data.subtree_com[root])
    mujoco.mj_jacSubtreeCom(model, data, linear, root)
    close(mech.center_of_mass_jacobian(robot.q) @ robot.map * total / (total + mass.sum()), linear)
    momenta = mech.centroidal_matrix(robot.q)
    close(momenta[:3] @ robot.map, linear * (total + mass.sum()))
    mujoco.mj_angmomMat(model, data, matrix, root)
    # MuJoCo counts about a center that links of the base, which is fixed, belong to.
    about = momenta[3:] + torch.linalg.cross((center - torch.from_numpy(whole))[:, None], momenta[:3], dim=0)
    close(about @ robot.map, matrix)
    close(mech.centroidal_momentum(robot.q, robot.qd), momenta.numpy() @ robot.qd.numpy())
