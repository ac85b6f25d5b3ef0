"""Actuators as the kernel reads them: a table, and the numbers of the law (src/elements/actuation.hpp)."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchdojo.elements.actuators import Actuators
from torchdojo.elements.joints import Joint
from torchdojo.elements.rotors import Rotors
from torchdojo.native import calls
from torchdojo.native.program import Program
from torchdojo.native.tables import ACTUATOR, ACTUATOR_PARAMETERS, row
from torchdojo.parameters import broadcast_shapes

__all__ = ["Law", "lower_law"]


class Turning(NamedTuple):
    """Rotors that turn with a body: number of the body, first of their six inputs, and wrenches per thrust (n, 6) in axes of the body."""

    body: int
    first: int
    per_thrust: Tensor


class Law(NamedTuple):
    """The law of all actuators.

    table: int32, rows `ACTUATOR`. values: (N or 1, numbers), `ACTUATOR_PARAMETERS` of each actuator, then the range of each input.
    batch: their batch dimensions. measures: whether the law reads the state. rotors: where the actuators are `Rotors`.
    """

    table: Tensor
    values: Tensor
    batch: torch.Size
    measures: bool
    rotors: Turning | None = None

    def rows(self, batch: torch.Size) -> Law:
        """The law of the environments of `batch`, with which its batch dimensions broadcast."""
        if self.batch.numel() == 1 or self.batch == batch:
            return self
        size = self.values.shape[1]
        values = self.values.reshape(*self.batch, size).expand(*batch, size).reshape(-1, size)
        return self._replace(values=values, batch=batch)

    def arguments(self) -> ctypes.Structure:
        """The structure for the kernel. It lives no longer than this law."""
        law = calls.Law(
            actuators=len(self.table),
            table=self.table.data_ptr(),
            values=self.values.data_ptr(),
            stride=self.values.shape[1] if len(self.values) > 1 else 0,
            measures=self.measures,
        )
        if self.rotors is not None:
            law.per_thrust, law.body, law.first = self.rotors.per_thrust.data_ptr(), self.rotors.body, self.rotors.first
        return law


def lower_law(program: Program, joints: Mapping[str, Joint], actuators: Actuators) -> Law:
    """The law of these actuators of joints by name, with the numbers that they have now."""
    number = {id(joint): i for i, joint in enumerate(joint for group in program.joint_groups for joint in group.members)}
    rows = [
        row(ACTUATOR, joint=number[id(joints[name])], coordinate=coordinate, input=place, number=i)
        for i, (name, coordinate, place) in enumerate(
            zip(actuators.joints, actuators.coordinates, actuators.input_index.tolist(), strict=True)
        )
    ]
    table = torch.from_numpy(np.array(sorted(rows), dtype=ACTUATOR).view(np.int32).reshape(len(rows), -1))
    with torch.no_grad():
        names = ACTUATOR_PARAMETERS.names or ()
        columns = [getattr(actuators, name) if actuators.fields[name] == 2 else getattr(actuators, name)[..., None] for name in names]
        ranges = actuators.inputrange
        batch = broadcast_shapes(ranges.shape[:-2], *(value.shape[:-2] for value in columns))
        pieces = [
            torch.cat([value.expand(*batch, *value.shape[-2:]) for value in columns], dim=-1),
            ranges.expand(*batch, *ranges.shape[-2:]),
        ]
        values = torch.cat([piece.flatten(-2) for piece in pieces], dim=-1).reshape(batch.numel(), -1).contiguous()
    turning = None
    if isinstance(actuators, Rotors):
        turning = Turning(actuators.body, int(actuators.input_index[0]), actuators.per_thrust.detach().contiguous())
    return Law(table, values, batch, actuators.measures, turning)
