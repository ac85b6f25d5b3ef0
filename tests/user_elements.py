"""Elements as a user writes them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import torchdojo as td
from torchdojo import quaternion as quat
from torchdojo.elements import Pose


def direction(q: Tensor, axis: tuple[float, float, float]) -> Tensor:
    return quat.rotate(q, q.new_tensor(axis).expand(*q.shape[:-1], 3))


class Cardan(td.Joint):
    """The x axis of the parent stays perpendicular to the y axis of the child, and two points together. It declares no coordinates."""

    num_rows = 4
    fields = {"parent_anchor": 1, "child_anchor": 1}  # noqa: RUF012 (as short as a user writes it)

    def __init__(self, parent: str | None, child: str, parent_anchor: Any, child_anchor: Any, **limits: Any) -> None:
        super().__init__(parent, child, **limits)
        self.parent_anchor, self.child_anchor = parent_anchor, child_anchor

    def constraint(self, parent: Pose, child: Pose) -> Tensor:
        gap = child.point(self.child_anchor) - parent.point(self.parent_anchor)
        across = (direction(parent.q, (1, 0, 0)) * direction(child.q, (0, 1, 0))).sum(-1, keepdim=True)
        return torch.cat((gap, across), dim=-1)


class TwoAngles(Cardan):
    """A cardan joint with its coordinates: a turn about x of the parent, then one about y of the child [rad]."""

    num_coordinates = 2

    def coordinates(self, parent: Pose, child: Pose) -> Tensor:
        turn = quat.rotation_matrix(quat.multiply(quat.conjugate(parent.q), child.q))
        return torch.stack((torch.atan2(turn[..., 2, 1], turn[..., 1, 1]), torch.atan2(turn[..., 0, 2], turn[..., 0, 0])), dim=-1)

    def displace(self, q: Tensor) -> Pose:
        about_x, about_y = (quat.exp(q[..., i : i + 1] * torch.eye(3, dtype=q.dtype)[i]) for i in (0, 1))
        turn = quat.multiply(about_x, about_y)
        return Pose(self.parent_anchor - quat.rotate(turn, self.child_anchor), turn)


class Slider(td.Joint):
    """A point of the child on the x axis of the parent, and no rotation: a length as coordinate."""

    num_rows, num_coordinates, free_translations = 5, 1, 1

    def constraint(self, parent: Pose, child: Pose) -> Tensor:
        gap = quat.inverse_rotate(parent.q, child.x - parent.x)
        return torch.cat((gap[..., 1:], quat.multiply(quat.conjugate(parent.q), child.q)[..., 1:]), dim=-1)

    def coordinates(self, parent: Pose, child: Pose) -> Tensor:
        return quat.inverse_rotate(parent.q, child.x - parent.x)[..., :1]

    def displace(self, q: Tensor) -> Pose:
        return Pose(torch.cat((q, torch.zeros_like(q), torch.zeros_like(q)), dim=-1), quat.identity(q.dtype, q.device))


def arm(joint: td.Joint) -> td.Mechanism:
    """A pendulum "a" on the joint "hinge", and a body "b" that `joint` ("joint") leads to from there."""
    body = {name: td.Body(1.0, (0.1, 0.12, 0.15)) for name in "ab"}
    hinge = td.Revolute(None, "a", axis=(0, 1, 0), child_anchor=(0, 0, 0.5))
    return td.Mechanism(body, {"hinge": hinge, "joint": joint}, options=td.SolverOptions(backend="reference"))


def cardan_arm(kind: type[Cardan], **limits: Any) -> td.Mechanism:
    return arm(kind("a", "b", (0, 0, -0.5), (0, 0, 0.5), **limits))


class Bowl(td.NonlinearContact):
    """The inside of a sphere of 2 m around (0, 0, 2) m."""

    def signed_distance(self, point: Tensor) -> Tensor:
        return 2.0 - torch.linalg.vector_norm(point - point.new_tensor((0.0, 0.0, 2.0)), dim=-1)
