"""Sensors of joints and actuators. Kinds of tendons belong here, beside the joints' (`tendon_position`, ...)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from torchdojo import quaternion as quat
from torchdojo.elements.actuators import Actuators
from torchdojo.elements.element import Pose
from torchdojo.elements.joints import StandardJoint
from torchdojo.elements.rotors import Rotors
from torchdojo.elements.servo import SERVO_RANGE
from torchdojo.sensors.kind import Kind, Sensor, register
from torchdojo.sensors.reading import Reading

__all__: list[str] = []


def _places(sensors: Sequence[Sensor], at: Reading) -> list[tuple[str, int]]:
    for sensor in sensors:
        at.joint(sensor)
    return [(cast(str, sensor.joint), sensor.coordinate) for sensor in sensors]


class JointState(Kind):
    """A coordinate, or its velocity at the configuration z."""

    size, needs = 1, ("joint",)

    def __init__(self, velocity: bool) -> None:
        self.velocity = velocity

    def read(self, sensors: Sequence[Sensor], at: Reading) -> Tensor:
        return at.coordinates(_places(sensors, at))[self.velocity][..., None]


class JointLimit(Kind):
    """The distance to a limit where it is violated (below zero), or its rate; zero inside the limits."""

    size, needs = 1, ("joint",)

    def __init__(self, velocity: bool) -> None:
        self.velocity = velocity

    def read(self, sensors: Sequence[Sensor], at: Reading) -> Tensor:
        q, qd = at.coordinates(_places(sensors, at))
        values = []
        for i, sensor in enumerate(sensors):
            joint, total, value, rate = at.joint(sensor), at.zeros(), q[..., i], qd[..., i]
            if isinstance(joint, StandardJoint) and joint.coned and sensor.coordinate == joint.free_translations:
                name = cast(str, sensor.joint)
                own, own_rates = at.coordinates([(name, k) for k in range(joint.num_coordinates)])
                value, rate = joint.measured(own)[..., sensor.coordinate], (joint.along_cone(own) * own_rates).sum(-1)
            for bound, sign in zip(joint.limits or (), (1.0, -1.0), strict=False):
                gap = sign * (value - bound[..., sensor.coordinate])
                total = total + torch.where(gap < 0, sign * rate if self.velocity else gap, 0.0)
            values.append(total)
        return torch.stack(torch.broadcast_tensors(*values), dim=-1)[..., None]


class JointLimitForce(Kind):
    """The force with which the limits of a coordinate push, of either side, mean over the step."""

    size, needs, needs_step, clamp = 1, ("joint",), True, "above"

    def read(self, sensors: Sequence[Sensor], at: Reading) -> Tensor:
        values = []
        for sensor in sensors:
            joint, total, force = at.joint(sensor), at.zeros(), at.impulse(f"limits.{sensor.joint}")
            below, above = joint.limited
            for place, coordinate in enumerate((*below, *above)):
                if force is not None and coordinate == sensor.coordinate:
                    total = total + force[..., place]
            values.append(total)
        return torch.stack(torch.broadcast_tensors(*values), dim=-1)[..., None]


class JointActuatorForce(Kind):
    """The sum of the forces of actuators on a coordinate: of `ctrl` where it is given, else the input u."""

    size, needs = 1, ("joint",)

    def read(self, sensors: Sequence[Sensor], at: Reading) -> Tensor:
        _places(sensors, at)
        layout, u = at.structure.input_layout, at.given.u
        if at.given.ctrl is not None:
            motors = actuators(at)
            if isinstance(motors, Rotors):
                u = motors(at.given.ctrl, at.z)
            else:
                gained = motors.sum_inputs(motors.gear * forces(at))
                u = torch.clamp(gained, motors.inputrange[..., 0], motors.inputrange[..., 1])
        if u is None:
            raise ValueError("sensors: joint_actuator_force needs the input; give read_sensors(..., ctrl=...) or u=...")
        values = []
        for sensor in sensors:
            place = layout.get(cast(str, sensor.joint))
            values.append(at.zeros() if place is None else u[..., place.start + sensor.coordinate])
        return torch.stack(torch.broadcast_tensors(*values), dim=-1)[..., None]


class BallState(Kind):
    """Orientation of a ball joint's child against its zero, in the joint frame, or its angular velocity, in the axes of the child."""

    needs, clamp = ("joint",), "none"

    def __init__(self, velocity: bool) -> None:
        self.velocity = velocity
        self.size = 3 if velocity else 4  # type: ignore[misc]

    def read(self, sensors: Sequence[Sensor], at: Reading) -> Tensor:
        values = []
        for sensor in sensors:
            joint = at.joint(sensor)
            if not isinstance(joint, StandardJoint) or joint.free_rotations != 3:
                raise ValueError(f"sensors: got {sensor.joint!r}, a {type(joint).__name__}; allowed: joints with three free rotations")
            ends = [at.number[name] for name in joint.body_names]
            parent, child = (Pose(at.pose.x[..., i, :], at.pose.q[..., i, :]) for i in ends)
            if self.velocity:
                apart = at.spin[..., ends[1], :] - at.spin[..., ends[0], :]
                values.append(quat.inverse_rotate(child.q, apart))
            else:
                values.append(joint.displacement(parent, child)[1])
        return torch.stack(torch.broadcast_tensors(*values), dim=-2)


def actuators(at: Reading) -> Actuators:
    """The actuators of the mechanism whose law is known here."""
    motors = at.structure.actuators
    supported = motors is not None and (type(motors).forward is Actuators.forward or isinstance(motors, Rotors))
    if motors is None or not supported:
        kind = type(motors).__name__
        raise ValueError(f"sensors: got actuators {None if motors is None else kind}; allowed: those of td.actuate or of rotors")
    return motors


def _numbers(sensors: Sequence[Sensor], at: Reading) -> list[int]:
    names = actuators(at).names
    for sensor in sensors:
        if sensor.actuator not in names:
            raise ValueError(f"sensors: got the actuator {sensor.actuator!r}; actuators are {list(names)}")
    return [names.index(cast(str, sensor.actuator)) for sensor in sensors]


def lengths(at: Reading) -> tuple[Tensor, Tensor]:
    """Lengths and velocities of all actuators, (..., n)."""
    motors = actuators(at)
    q, qd = at.coordinates(list(zip(motors.joints, motors.coordinates, strict=True)))
    return motors.length0 + motors.gear * q, motors.gear * qd


def forces(at: Reading) -> Tensor:
    """Forces of all actuators at the configuration z, before the gear, (..., n) [N, N·m].

    Raises:
        ValueError: no controls.
    """
    motors, ctrl = actuators(at), at.given.ctrl
    if ctrl is None:
        raise ValueError("sensors: the force of an actuator needs its control; give read_sensors(..., ctrl=...)")
    motors.check(ctrl)
    held = torch.clamp(ctrl, motors.ctrlrange[..., 0], motors.ctrlrange[..., 1])
    if isinstance(motors, Rotors):
        value = motors.gain[..., 0] * held + motors.bias[..., 0]
    else:
        length, velocity = lengths(at)
        gain, bias = (p[..., 0] + p[..., 1] * length + p[..., 2] * velocity for p in (motors.gain, motors.bias))
        value = gain * held + bias
    value = torch.clamp(value, motors.forcerange[..., 0], motors.forcerange[..., 1])
    columns = []
    for i, (name, coordinate) in enumerate(zip(motors.joints, motors.coordinates, strict=True)):
        joint, force, gear = at.structure.named_joints()[name], value[..., i], motors.gear[..., i]
        if isinstance(joint, StandardJoint) and coordinate in joint.driven:  # an implicit servo has its range in the joint
            bounds = [getattr(joint, side)[..., coordinate] for side in SERVO_RANGE]
            force = torch.clamp(gear * force, *bounds) / gear
        columns.append(force)
    return torch.stack(torch.broadcast_tensors(*columns), dim=-1)


class ActuatorState(Kind):
    """Length of an actuator, gear times coordinate, or its velocity."""

    size, needs = 1, ("actuator",)

    def __init__(self, velocity: bool) -> None:
        self.velocity = velocity

    def read(self, sensors: Sequence[Sensor], at: Reading) -> Tensor:
        numbers = _numbers(sensors, at)
        if isinstance(actuators(at), Rotors):
            raise ValueError("sensors: rotors have no length; allowed: actuator_force")
        return lengths(at)[self.velocity][..., numbers, None]


class ActuatorForce(Kind):
    """Force of an actuator before the gear, by its law at the configuration z; the thrust of a rotor."""

    size, needs = 1, ("actuator",)

    def read(self, sensors: Sequence[Sensor], at: Reading) -> Tensor:
        return forces(at)[..., _numbers(sensors, at), None]


register("joint_position", JointState(False))
register("joint_velocity", JointState(True))
register("joint_limit_position", JointLimit(False))
register("joint_limit_velocity", JointLimit(True))
register("joint_limit_force", JointLimitForce())
register("joint_actuator_force", JointActuatorForce())
register("ball_quaternion", BallState(False))
register("ball_angular_velocity", BallState(True))
register("actuator_position", ActuatorState(False))
register("actuator_velocity", ActuatorState(True))
register("actuator_force", ActuatorForce())
