"""Torques of a robot's motors and drives, from actions and joint coordinates."""

from __future__ import annotations

import torch
from torch import Tensor

from torchdojo.elements.actuators import Actuators
from torchdojo.envs import Env, TableEnv
from torchdojo.mechanism import Mechanism

__all__ = ["actuators", "efforts", "places", "servo_damping", "servo_ranges", "torques"]


def actuators(mech: Mechanism) -> Actuators:
    """The actuators of a mechanism, as every environment without drives has them.

    Raises:
        ValueError: drives, whose forces and places are not those of motors.
    """
    if mech.actuators is None:
        names = [] if mech.drives is None else list(mech.drives.names)
        raise ValueError(
            f"motors: got a mechanism with the drives {names} and no actuators; allowed: td.actuate(mech, {{...}}), for gait, power, "
            "transfer and files of policies"
        )
    return mech.actuators


def places(mech: Mechanism) -> list[int]:
    """Place of the coordinate of each actuator among the minimal coordinates."""
    motors, tree = actuators(mech), mech.coordinate_places()
    return [tree[joint].start + i for joint, i in zip(motors.joints, motors.coordinates, strict=True)]


def torques(mech: Mechanism, action: Tensor, q: Tensor, qd: Tensor, *, damping: bool = True) -> Tensor:
    """Torque of each actuator [N·m, N], (..., nu), without the passive springs and dampers of the joints.

    With the coordinates after a step this is what an implicit servo did in this step (`elements/actuators.py`).

    Args:
        action: (..., nu). q, qd: (..., nu), coordinates of the actuators and their rates.
        damping: False leaves the part of position servos out that brakes, `servo_damping` times the rate.
    """
    motors = actuators(mech)
    gear, ranges = motors.gear, motors.ctrlrange
    length, velocity = motors.length0 + gear * q, gear * qd
    bias = motors.bias if damping else torch.cat((motors.bias[..., :2], motors.bias[..., 2:].clamp_min(0.0)), -1)
    gain, offset = (p[..., 0] + p[..., 1] * length + p[..., 2] * velocity for p in (motors.gain, bias))
    force = gain * torch.clamp(action.to(gain.dtype), ranges[..., 0], ranges[..., 1]) + offset
    torque = gear * torch.clamp(force, motors.forcerange[..., 0], motors.forcerange[..., 1])
    lower, upper = servo_ranges(mech)
    return torch.clamp(torque, lower, upper)


def servo_damping(mech: Mechanism) -> Tensor:
    """Torque per rate with which position servos brake [N·m·s/rad], (nu,)."""
    motors = actuators(mech)
    return motors.gear**2 * (-motors.bias[..., 2]).clamp_min(0.0)


def efforts(env: Env) -> Tensor:
    """Largest torque of each motor [N·m, N], (nu,); infinite where nothing says it.

    A drive of the table is stronger than the motor of its model (`Drive.strength`): the model's torque counts here.
    """
    motors = actuators(env.mech)
    strongest = (motors.gear * motors.gain[..., 0] * motors.ctrlrange.abs().amax(-1)).abs()
    if isinstance(env, TableEnv) and env.control == "drive" and env.row.drive is not None:
        return strongest / env.row.drive.strength
    if not motors.measures:
        return strongest
    force = (motors.gear[..., None] * motors.forcerange).abs().amax(-1).nan_to_num(nan=torch.inf)
    return torch.minimum(force, torch.maximum(*(bound.abs() for bound in servo_ranges(env.mech))))


def servo_ranges(mech: Mechanism) -> tuple[Tensor, Tensor]:
    """Range of the torque of each actuator that its joint has (`actuate` puts it there), infinite where there is none."""
    motors = actuators(mech)
    bounds = []
    for name, default in (("servo_lower", -torch.inf), ("servo_upper", torch.inf)):
        values = []
        for joint, coordinate in zip(motors.joints, motors.coordinates, strict=True):
            field = getattr(mech.joints[joint], name, None)
            values.append(motors.gear.new_tensor(default) if field is None else field[..., coordinate])
        bounds.append(torch.stack(torch.broadcast_tensors(*values), -1))
    return bounds[0], bounds[1]
