"""Sensors of bodies together: center of mass, its velocity, momentum; and the clock."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torchdojo import quaternion as quat
from torchdojo.sensors.kind import Kind, Sensor, register
from torchdojo.sensors.reading import Reading

__all__: list[str] = []


class Subtree(Kind):
    """A body with all that hangs on it in the spanning tree: center, its velocity, momentum, angular momentum about the center."""

    takes = ("body",)

    def __init__(self, what: str) -> None:
        self.what = what

    def read(self, sensors: Sequence[Sensor], at: Reading) -> Tensor:
        below = at.subtrees([sensor.body for sensor in sensors])
        mass, _ = at.masses
        x, (linear, angular) = at.pose.x[..., :-1, :], at.momenta
        total = below @ mass[..., None]
        center, momentum = below @ (mass[..., None] * x) / total, below @ linear
        if self.what == "center":
            return center
        if self.what == "momentum":
            return momentum
        if self.what == "velocity":
            return momentum / total
        return below @ (angular + quat.cross(x, linear)) - quat.cross(center, momentum)


class Clock(Kind):
    """The time that `read_sensors` is given, since states have none."""

    size = 1

    def read(self, sensors: Sequence[Sensor], at: Reading) -> Tensor:
        if at.given.time is None:
            raise ValueError("sensors: a clock reads the time, which states do not have; give read_sensors(..., time=...) [s]")
        time = torch.as_tensor(at.given.time, dtype=at.z.dtype, device=at.z.device)
        time = time.movedim(-1, 0) if at.over_time and time.ndim else time
        time = time.reshape(*time.shape, *([1] * (at.z.ndim - 1 - time.ndim))) if at.over_time else time
        return (at.zeros() + time)[..., None, None].expand(*at.z.shape[:-1], len(sensors), 1)


register("subtree_center", Subtree("center"))
register("subtree_linear_velocity", Subtree("velocity"))
register("subtree_linear_momentum", Subtree("momentum"))
register("subtree_angular_momentum", Subtree("angular momentum"))
register("clock", Clock())
