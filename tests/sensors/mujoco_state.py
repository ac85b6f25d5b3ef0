"""MuJoCo's state, accelerations and sensors, as a state and a step of a mechanism of the same file."""

from __future__ import annotations

from types import SimpleNamespace

import mujoco
import numpy as np
import torch

from torchdojo.io.mjcf.state import _poses
from torchdojo.quaternion import from_rotation_matrix

EPSILON = 1e-5  # [s] of central differences, for the light bodies between the joints of one MJCF body


def state_and_step(mech, robot, data):
    """z, and an `out` whose accelerations are MuJoCo's and whose impulses are zero."""
    model, h = robot.compiled.model, float(mech.timestep)
    mujoco.mj_rnePostConstraint(model, data)
    places, axes = _poses(robot, data.qpos)
    near = []
    for sign in (1, -1):
        qpos = data.qpos.copy()
        mujoco.mj_integratePos(model, qpos, data.qvel, sign * EPSILON)
        near.append(_poses(robot, qpos))
    now, after = [], []
    for i, (name, moved) in enumerate(robot.moved.items()):
        velocity, acceleration = np.zeros(6), np.zeros(6)
        if name in robot.tops:
            mujoco.mj_objectVelocity(model, data, mujoco.mjtObj.mjOBJ_XBODY, moved.top, velocity, 0)
            mujoco.mj_objectAcceleration(model, data, mujoco.mjtObj.mjOBJ_XBODY, moved.top, acceleration, 0)
            spin, turning, lever = velocity[:3], acceleration[:3], places[i] - data.xpos[moved.top]
            v = velocity[3:] + np.cross(spin, lever)
            a = acceleration[3:] + model.opt.gravity * (not model.opt.disableflags & mujoco.mjtDisableBit.mjDSBL_GRAVITY)
            a = a + np.cross(turning, lever) + np.cross(spin, np.cross(spin, lever))
        else:
            (x1, r1), (x0, r0) = near
            v, a, turning = (x1[i] - x0[i]) / (2 * EPSILON), np.zeros(3), np.zeros(3)
            skew = (r1[i] - r0[i]) / (2 * EPSILON) @ axes[i].T
            spin = np.array([skew[2, 1] - skew[1, 2], skew[0, 2] - skew[2, 0], skew[1, 0] - skew[0, 1]]) / 2
        q = from_rotation_matrix(torch.as_tensor(axes[i])).numpy()
        omega = axes[i].T @ spin
        now.append(np.concatenate((places[i], v, q, omega)))
        after.append(np.concatenate((places[i] + h * v, v + h * a, q, omega + h * axes[i].T @ turning)))
    z, z_after = (mech.unwind(torch.as_tensor(np.concatenate(rows))) for rows in (now, after))
    size = sum(place.stop - place.start for place in mech.impulse_layout.values())
    return z, SimpleNamespace(z=z_after, impulses=torch.zeros(size, dtype=torch.float64))


def differences(mech, model, data, reading):
    """The largest difference of each sensor to MuJoCo's reading, relative to the largest number, quaternions up to sign."""
    found = {}
    for name, place in mech.sensors.layout.items():
        sensor = model.sensor(name)
        theirs = data.sensordata[int(sensor.adr[0]) : int(sensor.adr[0]) + int(sensor.dim[0])]
        ours = reading[place].detach().numpy()
        if mech.sensors[name].size == 4 and ours @ theirs < 0:
            ours = -ours
        found[name] = float(np.abs(ours - theirs).max() / max(1.0, np.abs(theirs).max()))
    return found
