"""Derivatives of sensors through the step that they read: C and D of `Mechanism.linearize(sensors=...)`.

With y = s(z, step(z, u)) they are those of the whole map, on the tangent space of z. Each number of y takes a backward pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torchdojo.parameters import broadcast_shapes
from torchdojo.state.layout import TANGENT_SIZE

if TYPE_CHECKING:
    from torchdojo.sensors.reading import Given

__all__ = ["sensor_derivatives"]


def sensor_derivatives(mech: Any, z: Tensor, given: Given, names: Sequence[str] | None, **options: Any) -> tuple[Tensor, Tensor, Tensor]:
    """y (..., m), C (..., m, 12 nb) and D (..., m, nu), or by ctrl. They are zero where the step fails.

    Args:
        mech: with `step`, `retract` and `read_sensors`. given: of the reading, without `out`. options: of the step.
    """
    driven = given.u if given.ctrl is None else given.ctrl
    size = mech.num_inputs if given.ctrl is None else given.ctrl.shape[-1]
    driven = z.new_zeros(size) if driven is None else driven.detach()
    batch = broadcast_shapes(z.shape[:-1], driven.shape[:-1], mech.timestep.shape, mech.gravity.shape[:-1])
    z = z.detach().expand(*batch, z.shape[-1])
    with torch.enable_grad():
        change = z.new_zeros(*batch, TANGENT_SIZE * mech.num_bodies).requires_grad_()
        inputs = driven.expand(*batch, size).clone().requires_grad_()
        moved = mech.retract(z, change)
        key = "u" if given.ctrl is None else "ctrl"
        out = mech.step(moved, **{key: inputs}, repeat=given.repeat, wrench=given.wrench, **options)
        y = mech.read_sensors(moved, out, names=names, **{key: inputs}, wrench=given.wrench, time=given.time, repeat=given.repeat)
        rows = [
            torch.autograd.grad(column.sum(), (change, inputs), retain_graph=True, materialize_grads=True)
            if column.requires_grad
            else (torch.zeros_like(change), torch.zeros_like(inputs))
            for column in y.unbind(-1)
        ]
    good = (out.status == 0)[..., None, None]
    C, D = (
        torch.where(good, torch.stack(column, dim=-2), 0.0) if rows else leaf.new_zeros(*batch, 0, leaf.shape[-1])
        for column, leaf in zip(zip(*rows, strict=True) if rows else ((), ()), (change, inputs), strict=True)
    )
    return y.detach(), C, D
