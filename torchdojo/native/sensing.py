"""Sensors through the kernel (src/maps/sensors.hpp), differentiable in states, impulses and wrenches.

The packed parameters and the sites are held: where one of them needs a derivative, `torchdojo/sensors/` computes the reading in PyTorch. It
also has second derivatives.
"""

from __future__ import annotations

import ctypes
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from torchdojo.native import calls
from torchdojo.native.cache import Parameters
from torchdojo.native.maps import has_dimensions
from torchdojo.native.program import Program, kernel_library
from torchdojo.parameters import broadcast_shapes, transforming

__all__ = ["SensorReading", "SensorTable", "read_sensors"]

Readings = Callable[..., Tensor]  # from z, the state after the step, impulses and wrench


class SensorTable(NamedTuple):
    """Sensors as the kernel reads them. Arrays are contiguous.

    rows, frames, contacts: int32, rows `SENSOR`, `SENSED_FRAME` and `SENSED_CONTACT`. subtrees: int32 (subtrees, nb), whether a body
    belongs to each. frame_numbers, numbers: float64, `SENSED_FRAME_NUMBERS` and `SENSOR_NUMBERS` of each.
    size: numbers of all sensors. stepped, pushed, loaded: whether they read the state after the step, the impulses, the wrench.
    """

    rows: np.ndarray
    frames: np.ndarray
    contacts: np.ndarray
    subtrees: np.ndarray
    frame_numbers: np.ndarray
    numbers: np.ndarray
    size: int
    stepped: bool
    pushed: bool
    loaded: bool


class SensorReading(NamedTuple):
    """The data of a reading beside tensors.

    parameters: those that the mechanism has now. magnetic: (3,). repeat: steps of the period. reference: the same reading in PyTorch.
    """

    program: Program
    parameters: Parameters
    table: SensorTable
    magnetic: Tensor
    repeat: int
    reference: Readings


def read_sensors(reading: SensorReading, z: Tensor, after: Tensor | None, impulses: Tensor | None, wrench: Tensor | None) -> Tensor | None:
    """The numbers (..., size) of the sensors; None where parameters have more batch dimensions than these tensors."""
    table = reading.table
    chosen = (
        z,
        after if table.stepped else None,
        impulses if table.pushed else None,
        wrench if table.loaded else None,
    )
    lead = broadcast_shapes(*(t.shape[:-1] for t in chosen if t is not None))
    if not has_dimensions(lead, reading.parameters.batch):
        return None
    inputs = tuple(t if t is None or t.shape[:-1] == lead else t.expand(*lead, t.shape[-1]) for t in chosen)
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in inputs):
        return cast(Tensor, Sensed.apply(reading, *inputs))
    return _call(reading, None, *inputs)


class Sensed(torch.autograd.Function):
    """(reading, z, after, impulses, wrench) -> the numbers of the sensors."""

    @staticmethod
    def forward(reading: SensorReading, *given: Tensor | None) -> Tensor:
        return _call(reading, None, *given)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.reading, *tensors = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        saved, needs = ctx.saved_tensors, ctx.needs_input_grad[1:]
        twice = torch.is_grad_enabled()  # whether a second derivative may be asked for
        if not twice and not transforming():
            return None, *(part if need else None for part, need in zip(_call(ctx.reading, grad, *saved), needs, strict=True))
        with torch.enable_grad():
            inputs = saved if twice else tuple(t if t is None else t.detach().requires_grad_() for t in saved)
            wanted = [t for t, need in zip(inputs, needs, strict=True) if need]
            value = ctx.reading.reference(*inputs)
            parts = iter(torch.autograd.grad(value, wanted, grad, create_graph=twice, materialize_grads=True))
        return None, *(next(parts) if need else None for need in needs)


# `apply` binds arguments, and computes the signature anew in every call where the function does not store it.
setattr(Sensed.forward, "__signature__", inspect.signature(Sensed.forward))  # noqa: B010  (functions have no such attribute, says mypy)


def _call(reading: SensorReading, along: Tensor | None, *given: Tensor | None) -> Any:
    """The numbers (..., size), or with a gradient `along` of them the gradients by the given tensors."""
    table = reading.table
    z = cast(Tensor, given[0])
    lead = z.shape[:-1]
    flat = [None if t is None else t.detach().reshape(lead.numel(), t.shape[-1]).contiguous() for t in given]
    packed = reading.parameters.rows(lead)[1]
    values = packed.values
    arguments = calls.Sensors(
        environments=lead.numel(),
        threads=torch.get_num_threads(),
        repeat=reading.repeat,
        sensors=len(table.rows),
        frames=len(table.frames),
        contacts=len(table.contacts),
        size=table.size,
        table=table.rows.ctypes.data,
        frame_table=table.frames.ctypes.data,
        contact_table=table.contacts.ctypes.data,
        subtree_table=table.subtrees.ctypes.data,
        frame_numbers=table.frame_numbers.ctypes.data,
        numbers=table.numbers.ctypes.data,
        magnetic=reading.magnetic.data_ptr(),
        parameters=values.data_ptr(),
        parameter_stride=values.shape[1] if len(values) > 1 else 0,
        **{name: _address(t) for name, t in zip(("z", "after", "impulses", "wrench"), flat, strict=True)},
    )
    results: list[Tensor | None] = []
    if along is None:
        out = z.new_empty(*lead, table.size)
        arguments.out = out.data_ptr()
    else:
        along = along.detach().reshape(lead.numel(), table.size).contiguous()
        results = [None if t is None else torch.empty_like(t) for t in flat]
        arguments.along = along.data_ptr()
        arguments.by_z, arguments.by_after, arguments.by_impulses, arguments.by_wrench = map(_address, results)
    if lead.numel():
        kernel_library().td_sense(packed.handle, ctypes.byref(arguments))
    return out if along is None else [None if t is None else t.view(*lead, t.shape[-1]) for t in results]


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
