"""The state of a mechanism from MuJoCo's qpos and qvel, and the keyframes of a file as poses of the mechanism."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchdojo.io.mjcf.description import MjcfInfo, Moved
from torchdojo.io.mjcf.model import import_mujoco
from torchdojo.io.robot import Array, Pose, compose
from torchdojo.mechanism import Mechanism
from torchdojo.posing.poses import Keyframe
from torchdojo.quaternion import from_rotation_matrix
from torchdojo.state.minimal import JointOrder, to_minimal
from torchdojo.state.signs import unwind

__all__ = ["keyframes", "mjcf_state"]


def mjcf_state(mech: Mechanism, robot: MjcfInfo, keyframe: str | int | None = None, *, qpos: Any = None, qvel: Any = None) -> Tensor:
    """The state (13 nb,) of a mechanism from `load_mjcf` at MuJoCo's qpos and qvel.

    The joints of a tree are closed exactly. Loops and couplings that qpos leaves open stay open; ``mech.close_loops`` closes them.
    Velocities are the velocities of the step that leads to the configuration, as everywhere in z.

    Args:
        mech: the mechanism. robot: `read_mjcf` of the same file with the same options.
        keyframe: name or number of a keyframe of the file.
        qpos: (nq,), instead of a keyframe; default qpos0. qvel: (nv,), default zero.

    Raises:
        ValueError: an unknown keyframe, wrong sizes, another mechanism.
    """
    model = robot.compiled.model
    if list(robot.bodies) != list(mech.bodies):
        raise ValueError(f"the bodies of {robot.path}, {list(robot.bodies)}, are not those of the mechanism, {list(mech.bodies)}")
    if keyframe is not None:
        if qpos is not None or qvel is not None:
            raise ValueError("give a keyframe, or qpos and qvel, not both")
        names = [str(model.key(i).name) for i in range(model.nkey)]
        if keyframe not in names and keyframe not in range(model.nkey):
            raise ValueError(f"{robot.path} has no keyframe {keyframe!r}; there are {model.nkey}: {names}")
        number = names.index(keyframe) if isinstance(keyframe, str) else keyframe
        qpos, qvel = model.key_qpos[number], model.key_qvel[number]
    configuration = _checked(model.qpos0 if qpos is None else qpos, model.nq, "qpos")
    velocity = _checked(np.zeros(model.nv) if qvel is None else qvel, model.nv, "qvel")
    z = _state(mech.tree_order(), robot, configuration, velocity, float(mech.timestep)).to(mech.gravity)
    z = mech.to_maximal(*mech.to_minimal(z)) if len(mech.tree_joints) == len(mech.joints) else z
    return z.to(mech.state_dtype)


def keyframes(mech: Mechanism, robot: MjcfInfo) -> dict[str | int, Keyframe]:
    """The keyframes of the file by name, those without a name by number: qpos and qvel as coordinates of the tree's joints, and ctrl.

    In closed loops, they are coordinates to start from: `initial_state` closes the loops. Velocities belong to the first timestep of a
    batch. Controls belong to the actuators of the mechanism.
    """
    model, order = robot.compiled.model, mech.tree_order()
    h = mech.timestep.detach().cpu().double().reshape(-1)[0]
    poses: dict[str | int, Keyframe] = {}
    for number in range(model.nkey):
        z = _state(order, robot, np.array(model.key_qpos[number]), np.array(model.key_qvel[number]), float(h))
        coordinates = dict(zip(("q", "qd"), to_minimal(order, mech.num_bodies, z, h), strict=True))
        still = not np.any(model.key_qvel[number])
        values = {
            entry.name: {key: tuple(value[entry.coordinates].tolist()) for key, value in coordinates.items() if key == "q" or not still}
            for entry in order
        }
        names = () if mech.actuators is None else mech.actuators.names
        ctrl = tuple(float(model.key_ctrl[number, robot.drives[name].number]) for name in names)
        poses[str(model.key(number).name) or number] = Keyframe(values, ctrl or None)
    return poses


def _state(order: Sequence[JointOrder], robot: MjcfInfo, now: Array, velocity: Array, h: float) -> Tensor:
    """The state (13 nb,) in float64 at qpos `now`, with the velocities of the step of h [s] that leads there at qvel `velocity`."""
    mujoco, model = import_mujoco(), robot.compiled.model
    moving = set(robot.tops.values())
    for j in range(model.njnt):  # a base that is part of the world stays where the file draws it
        if model.jnt_type[j] == int(mujoco.mjtJoint.mjJNT_FREE) and int(model.jnt_bodyid[j]) not in moving:
            place, rate = int(model.jnt_qposadr[j]), int(model.jnt_dofadr[j])
            now[place : place + 7], velocity[rate : rate + 6] = model.qpos0[place : place + 7], 0.0
    before = now.copy()
    mujoco.mj_integratePos(model, before, -velocity, h)
    (x, axes), (x_before, axes_before) = _poses(robot, now), _poses(robot, before)
    turn = from_rotation_matrix(torch.as_tensor(np.swapaxes(axes_before, -1, -2) @ axes))
    q = from_rotation_matrix(torch.as_tensor(axes))
    z = torch.cat((torch.as_tensor(x), torch.as_tensor(x - x_before) / h, q, 2 * turn[:, 1:] / h), dim=-1).flatten()
    return unwind(order, z, _angles(order, robot, now))


def _angles(order: Sequence[JointOrder], robot: MjcfInfo, qpos: Array) -> Tensor:
    """The angles of single rotations as qpos has them, in the places of minimal coordinates; zero elsewhere."""
    model = robot.compiled.model
    number = {str(model.joint(j).name) or f"joint{j}": j for j in range(model.njnt)}
    values = torch.zeros(max(entry.coordinates.stop for entry in order), dtype=torch.float64)
    for entry in order:
        if entry.joint.free_rotations == 1 and entry.name in robot.coordinates:
            label, sign = robot.coordinates[entry.name][-1]
            place = int(model.jnt_qposadr[number[label]])
            values[entry.coordinates.stop - 1] = sign * float(qpos[place] - model.qpos0[place])
    return values


def _checked(value: Any, size: int, name: str) -> Array:
    array = np.array(value, dtype=np.float64)
    if array.shape != (size,):
        raise ValueError(f"{name}: got shape {array.shape}; allowed: ({size},)")
    return array


def _poses(robot: MjcfInfo, qpos: Array) -> tuple[Array, Array]:
    """Centers of mass (nb, 3) [m] and axes (nb, 3, 3) of our bodies at MuJoCo's qpos."""
    mujoco, model = import_mujoco(), robot.compiled.model
    data = mujoco.MjData(model)
    data.qpos[:] = qpos
    mujoco.mj_kinematics(model, data)
    centers, axes = [], []
    for name, moved in robot.moved.items():
        whole = name in robot.tops
        rotation, position = (data.xmat[moved.top].reshape(3, 3), data.xpos[moved.top]) if whole else _between(data, model, moved)
        centers.append(position + rotation @ robot.bodies[name].center)
        axes.append(rotation @ moved.frame)
    return np.stack(centers), np.stack(axes)


def _between(data: Any, model: Any, moved: Moved) -> Pose:
    """Pose of an MJCF body that only the first of its joints have moved."""
    mujoco, parent = import_mujoco(), int(model.body_parentid[moved.top])

    def turn(quaternion: Array) -> Array:
        matrix = np.zeros(9)
        mujoco.mju_quat2Mat(matrix, quaternion)
        return matrix.reshape(3, 3)

    pose = data.xmat[parent].reshape(3, 3), data.xpos[parent]
    rotation, position = compose(pose, (turn(model.body_quat[moved.top]), model.body_pos[moved.top]))
    for j in moved.joints:
        place, axis, point = int(model.jnt_qposadr[j]), model.jnt_axis[j], model.jnt_pos[j]
        if model.jnt_type[j] == int(mujoco.mjtJoint.mjJNT_BALL):
            moving = turn(data.qpos[place : place + 4])
        else:
            change = float(data.qpos[place] - model.qpos0[place])
            if model.jnt_type[j] == int(mujoco.mjtJoint.mjJNT_SLIDE):
                position = position + rotation @ axis * change
                continue
            quaternion = np.zeros(4)
            mujoco.mju_axisAngle2Quat(quaternion, axis, change)
            moving = turn(quaternion)
        position = position + rotation @ (point - moving @ point)
        rotation = rotation @ moving
    return rotation, position
