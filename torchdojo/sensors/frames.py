"""Sensors of a frame: pose, velocity and acceleration, and what an IMU has."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torchdojo import quaternion as quat
from torchdojo.elements.element import Pose
from torchdojo.sensors.kind import Kind, Sensor, register
from torchdojo.sensors.reading import Frames, Reading

__all__: list[str] = []


class _Frame(Kind):
    needs, takes = ("site",), ("reference",)

    def frames(self, sensors: Sequence[Sensor], at: Reading) -> tuple[Frames, Frames | None]:
        """The frames of the sensors, and those that they refer to; None where none refers to any."""
        sites = at.frames([sensor.site for sensor in sensors])
        if all(sensor.reference is None for sensor in sensors):
            return sites, None
        return sites, at.frames([sensor.reference for sensor in sensors])


class FramePosition(_Frame):
    def read(self, sensors: Sequence[Sensor], at: Reading) -> Tensor:
        site, other = self.frames(sensors, at)
        return site.pose.x if other is None else quat.inverse_rotate(other.pose.q, site.pose.x - other.pose.x)


class FrameQuaternion(_Frame):
    size, clamp = 4, "none"

    def read(self, sensors: Sequence[Sensor], at: Reading) -> Tensor:
        site, other = self.frames(sensors, at)
        return site.pose.q if other is None else quat.multiply(quat.conjugate(other.pose.q), site.pose.q)


class FrameAxis(_Frame):
    clamp = "none"

    def __init__(self, axis: int) -> None:
        self.axis = axis

    def read(self, sensors: Sequence[Sensor], at: Reading) -> Tensor:
        site, other = self.frames(sensors, at)
        unit = torch.eye(3, dtype=at.z.dtype, device=at.z.device)[self.axis]
        axis = quat.rotate(site.pose.q, unit)
        return axis if other is None else quat.inverse_rotate(other.pose.q, axis)


class FrameVelocity(_Frame):
    def __init__(self, angular: bool) -> None:
        self.angular = angular

    def read(self, sensors: Sequence[Sensor], at: Reading) -> Tensor:
        site, other = self.frames(sensors, at)
        v, spin = at.velocity(site)
        if other is None:
            return spin if self.angular else v
        v_other, spin_other = at.velocity(other)
        apart = site.pose.x - other.pose.x
        seen = spin - spin_other if self.angular else v - v_other - quat.cross(spin_other, apart)
        return quat.inverse_rotate(other.pose.q, seen)


class FrameAcceleration(Kind):
    needs, needs_step = ("site",), True

    def __init__(self, angular: bool, local: bool = False) -> None:
        self.angular, self.local = angular, local

    def read(self, sensors: Sequence[Sensor], at: Reading) -> Tensor:
        site = at.frames([sensor.site for sensor in sensors])
        value = at.acceleration(site)[self.angular]
        return _seen(site.pose, value) if self.local else value


class LocalVelocity(Kind):
    needs = ("site",)

    def __init__(self, angular: bool) -> None:
        self.angular = angular

    def read(self, sensors: Sequence[Sensor], at: Reading) -> Tensor:
        site = at.frames([sensor.site for sensor in sensors])
        return _seen(site.pose, at.velocity(site)[self.angular])


class Magnetometer(Kind):
    needs = ("site",)

    def read(self, sensors: Sequence[Sensor], at: Reading) -> Tensor:
        return _seen(at.frames([sensor.site for sensor in sensors]).pose, at.magnetic.to(at.z))


def _seen(pose: Pose, vector: Tensor) -> Tensor:
    return quat.inverse_rotate(pose.q, vector)


register("frame_position", FramePosition())
register("frame_quaternion", FrameQuaternion())
for number, letter in enumerate("xyz"):
    register(f"frame_{letter}_axis", FrameAxis(number))
register("frame_linear_velocity", FrameVelocity(False))
register("frame_angular_velocity", FrameVelocity(True))
register("frame_linear_acceleration", FrameAcceleration(False))
register("frame_angular_acceleration", FrameAcceleration(True))
register("gyro", LocalVelocity(True))
register("velocimeter", LocalVelocity(False))
register("accelerometer", FrameAcceleration(False, local=True))
register("magnetometer", Magnetometer())
