"""The state of a mechanism from MuJoCo's qpos and qvel, or a keyframe of the file."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchdojo.io.mjcf.description import MjcfInfo
from torchdojo.io.mjcf.model import import_mujoco
from torchdojo.io.robot import Array
from torchdojo.mechanism import Mechanism
from torchdojo.quaternion import from_rotation_matrix

__all__ = ["mjcf_state"]


def mjcf_state(mech: Mechanism, robot: MjcfInfo, keyframe: str | int | None = None, *, qpos: Any = None, qvel: Any = None) -> Tensor:
    """The state (13 nb,) of a mechanism from `load_mjcf` at MuJoCo's qpos and qvel.

    The joints of a tree are closed exactly. Two hinges of one body, both turned, reach orientations that an Orbital joint cannot: the
    nearest one takes their place. Loops and couplings that qpos leaves open stay open; ``mech.close_loops`` closes them. Velocities are
    the velocities of the step that leads to the configuration, as everywhere in z.

    Args:
        mech: the mechanism. robot: `read_mjcf` of the same file with the same options.
        keyframe: name or number of a keyframe of the file.
        qpos: (nq,), instead of a keyframe; default qpos0. qvel: (nv,), default zero.

    Raises:
        ValueError: an unknown keyframe, wrong sizes, another mechanism.
    """
    mujoco, model = import_mujoco(), robot.compiled.model
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
    now = _checked(model.qpos0 if qpos is None else qpos, model.nq, "qpos")
    velocity = _checked(np.zeros(model.nv) if qvel is None else qvel, model.nv, "qvel")
    h = float(mech.timestep)
    before = now.copy()
    mujoco.mj_integratePos(model, before, -velocity, h)
    (x, axes), (x_before, axes_before) = _poses(robot, now), _poses(robot, before)
    turn = from_rotation_matrix(torch.as_tensor(np.swapaxes(axes_before, -1, -2) @ axes))
    q = from_rotation_matrix(torch.as_tensor(axes))
    z = torch.cat((torch.as_tensor(x), torch.as_tensor(x - x_before) / h, q, 2 * turn[:, 1:] / h), dim=-1).flatten()
    z = z.to(mech.gravity)
    z = mech.to_maximal(*mech.to_minimal(z)) if len(mech.tree_joints) == len(mech.joints) else z
    return z.to(mech.state_dtype)


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
    ids = list(robot.tops.values())
    rotation, position = data.xmat.reshape(-1, 3, 3)[ids], data.xpos[ids]
    centers = np.stack([body.center for body in robot.bodies.values()])
    frames = np.stack([robot.links[name].rotation.T for name in robot.tops])
    return position + (rotation @ centers[..., None])[..., 0], rotation @ frames
