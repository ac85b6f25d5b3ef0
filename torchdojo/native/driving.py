"""Drives inside the steps of the kernel: their table, and periods under controls that carry the activations (src/elements/drives.hpp).

One call takes all periods of a rollout, and one its gradients by states, controls, activations and wrenches. Numbers of the drives and of
the mechanism are held: where one of them needs a derivative, `Drives` takes its laws in PyTorch between the steps.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchdojo.elements.actuator_laws import SMALLEST
from torchdojo.gradients.request import Request
from torchdojo.native import calls, memory
from torchdojo.native.cache import Parameters
from torchdojo.native.execution import check_status, flat_problem
from torchdojo.native.ops import totals
from torchdojo.native.program import Program, kernel_library
from torchdojo.native.request import kernel_options
from torchdojo.native.tables import DRIVE, DRIVE_NUMBERS, MUSCLE_BIAS, MUSCLE_GAIN, row, size
from torchdojo.parameters import broadcast_shapes, transforming
from torchdojo.state.layout import TWIST_SIZE

__all__ = ["DriveTable", "Driven", "Periods", "drive_table", "muscle_numbers", "periods"]

#: The same periods by PyTorch, of z, ctrl, act and wrench: states, activations, forces and impulses of periods.
Reference = Callable[..., tuple[Tensor, Tensor, Tensor, Tensor]]


class DriveTable(NamedTuple):
    """Drives as the kernel reads them.

    rows: int32, rows `DRIVE`. values: (N or 1, drives · numbers), `DRIVE_NUMBERS` of each drive. batch: their batch dimensions.
    activations: how many there are. pushes: whether some drive acts at a site.
    """

    rows: Tensor
    values: Tensor
    batch: torch.Size
    activations: int
    pushes: bool

    def spread(self, batch: torch.Size) -> Tensor:
        """The values of the environments of `batch`, with which the batch dimensions broadcast, or of all."""
        if self.batch.numel() == 1 or self.batch == batch:
            return self.values
        width = self.values.shape[1]
        return self.values.reshape(*self.batch, width).expand(*batch, width).reshape(-1, width)


class Periods(NamedTuple):
    """P periods of environments (...): states (..., P, 13 nb) and activations (..., P, na) after each, forces (..., P, n) of the first step
    of each, impulses (..., P, ni), status, iterations and substeps (..., P), and the last solution (..., num_unknowns)."""

    z: Tensor
    act: Tensor
    force: Tensor
    impulses: Tensor
    status: Tensor
    iterations: Tensor
    substeps: Tensor
    solution: Tensor


def muscle_numbers(part: str, numbers: Tensor, lengths: Tensor, acc0: Tensor) -> Tensor:
    """Numbers of the curves of a muscle with reciprocals, (..., ·): `MUSCLE_GAIN` or `MUSCLE_BIAS`, for the part "gain" or "bias".

    Args:
        numbers, lengths, acc0: as in `muscle_gain` (elements/actuator_laws.py).
    """
    low, high, peak, scale, lmin, lmax, vmax, fpmax, fvmax = numbers[..., :9].unbind(-1)
    shortest, longest = lengths.unbind(-1)

    def per(value: Tensor) -> Tensor:
        return 1 / value.clamp_min(SMALLEST)

    optimum = (longest - shortest) * per(high - low)
    peak = torch.where(peak < 0, scale * per(acc0), peak)
    left, right = 0.5 * (lmin + 1), 0.5 * (1 + lmax)
    common = {"peak": peak, "low": low, "shortest": shortest, "per_length": per(optimum), "right_bend": right}
    if part == "bias":
        layout, values = MUSCLE_BIAS, {**common, "peak": peak * fpmax, "per_width": per(right - 1)}
    else:
        bends = {"lmin": lmin, "left_bend": left, "lmax": lmax, "fvmax": fvmax, "per_speed": per(optimum * vmax)}
        slopes = {"per_left": per(left - lmin), "per_rise": per(1 - left), "per_fall": per(right - 1), "per_right": per(lmax - right)}
        layout, values = MUSCLE_GAIN, {**common, **bends, **slopes, "per_yield": per(fvmax - 1)}
    return torch.stack(torch.broadcast_tensors(*(values[name] for name in layout.names or ())), dim=-1)


def drive_table(rows: Sequence[dict[str, int]], numbers: Sequence[dict[str, Tensor]], activations: int) -> DriveTable:
    """The table of drives, of which `rows` have the fields of `DRIVE` but the number, and `numbers` those of `DRIVE_NUMBERS`.

    Numbers that a drive lacks are zero, and too many are left out. Tensors (..., k) have batch dimensions that broadcast.
    """
    entries = sorted(row(DRIVE, number=i, **values) for i, values in enumerate(rows))
    table = torch.from_numpy(np.array(entries, dtype=DRIVE).view(np.int32).reshape(len(entries), -1))
    with torch.no_grad():
        batch = broadcast_shapes(*(value.shape[:-1] for own in numbers for value in own.values()))
        pieces = []
        for own in numbers:
            for name in DRIVE_NUMBERS.names or ():
                count, given = size(DRIVE_NUMBERS[name]), own.get(name)
                given = torch.zeros(count, dtype=torch.float64) if given is None else given[..., :count]
                pieces.append(torch.nn.functional.pad(given, (0, count - given.shape[-1])).expand(*batch, count))
        values = torch.cat(pieces, dim=-1).reshape(batch.numel(), -1).contiguous()
    pushes = any(bool(own["push"].any() or own["turn"].any()) for own in numbers if "push" in own)
    return DriveTable(table, values, batch, activations, pushes)


class _Call:
    """The tensors and structures of a call of the kernel."""

    def __init__(
        self,
        program: Program,
        request: Request,
        parameters: Parameters,
        table: DriveTable,
        given: tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None],
    ) -> None:
        z, ctrl, act, wrench, warm = given
        shapes = [z.shape[:-1], ctrl.shape[:-2], act.shape[:-1], parameters.batch, table.batch]
        if wrench is not None:
            shapes.append(wrench.shape[:-1])
        batch = shapes[0]
        if not all(shape == batch or not shape for shape in shapes):
            batch = broadcast_shapes(*shapes)
        self.batch, self.periods, self.steps = batch, ctrl.shape[-2], ctrl.shape[-2] * request.repeat
        self.packed = parameters.packed if parameters.shared else parameters.rows(batch)[1]
        self.options, self.kernel = kernel_options(request, torch.get_num_threads()), kernel_library()

        def flat(tensor: Tensor, ndim: int = 1) -> Tensor:
            places = tensor.ndim - ndim
            return (tensor if tensor.shape[:places] == batch else tensor.expand(*batch, *tensor.shape[places:])).contiguous()

        self.given = flat(z), flat(ctrl, 2), flat(act), None if wrench is None else flat(wrench), None if warm is None else flat(warm)
        self.values, values = table.spread(batch), self.packed.values
        self.drives: Any = calls.Drives(
            drives=len(table.rows),
            activations=table.activations,
            pushes=table.pushes,
            table=table.rows.data_ptr(),
            values=self.values.data_ptr(),
            stride=self.values.shape[1] if len(self.values) > 1 else 0,
            start=self.given[2].data_ptr(),
        )
        self.arguments: Any = calls.Rollout(
            environments=batch.numel(),
            steps=self.steps,
            repeat=request.repeat,
            parameters=values.data_ptr(),
            parameter_stride=values.shape[1] if len(values) > 1 else 0,
            z0=self.given[0].data_ptr(),
            z0_stride=z.shape[-1],
            u=self.given[1].data_ptr(),
            drives=ctypes.addressof(self.drives),
            wrench=_address(self.given[3]),
            warm=_address(self.given[4]),
        )

    def into(self, z: Tensor, act: Tensor, w: Tensor, counts: Sequence[Tensor]) -> None:
        """Results go into z, act and counts (..., S, ·), and into w (..., S or 1, ·)."""
        arguments, stored = self.arguments, z.shape[-2]
        arguments.every, arguments.w_steps = self.steps // stored, w.shape[-2]
        arguments.z, arguments.z_stride, arguments.w = z.data_ptr(), stored * z.shape[-1], w.data_ptr()
        arguments.status, arguments.iterations, arguments.substeps = [count.data_ptr() for count in counts]
        self.drives.act = act.data_ptr()

    def call(self, function: Any, *more: Any) -> None:
        function(self.packed.handle, ctypes.byref(self.options), ctypes.byref(self.arguments), *more)


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def periods(
    program: Program,
    request: Request,
    parameters: Parameters,
    table: DriveTable,
    reference: Reference,
    z: Tensor,
    ctrl: Tensor,
    act: Tensor,
    wrench: Tensor | None,
    warm: Tensor | None,
) -> Periods:
    """The P periods of controls ctrl (..., P, n) from z (..., 13 nb) and act (..., na), with a graph where one is wanted."""
    given = z, ctrl, act, wrench
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in given):
        return Periods(*Driven.apply(program, request, parameters, table, reference, warm, *given))
    return _taken(program, request, parameters, table, (*given, warm), False)[0]


def _taken(
    program: Program, request: Request, parameters: Parameters, table: DriveTable, given: Any, keep: bool
) -> tuple[Periods, tuple[Tensor, ...]]:
    """The periods, and where they are kept the states, activations, inputs, solutions, status and substeps of all steps."""
    call, z = _Call(program, request, parameters, table, given), given[0]
    new, batch, repeat = memory.allocator(z), call.batch, request.repeat
    stored = call.steps if keep else call.periods
    states, acts = new((*batch, stored, z.shape[-1])), new((*batch, stored, table.activations))
    w = new((*batch, stored if keep else 1, program.num_unknowns))
    counts = [new((*batch, stored), dtype=torch.int64) for _ in range(3)]
    force, impulses = new((*batch, call.periods, len(table.rows))), new((*batch, call.periods, program.num_impulses))
    call.into(states, acts, w, counts)
    inputs = new((*batch, call.steps if keep else 0, program.num_inputs))
    call.arguments.impulses, call.drives.force = impulses.data_ptr(), force.data_ptr()
    call.drives.inputs = inputs.data_ptr() if keep else None
    call.call(call.kernel.td_rollout)
    if counts[0].numel() and counts[0].max().item():
        pushed = z.new_zeros(TWIST_SIZE * program.num_bodies) if given[3] is None else given[3]
        blank = z.new_zeros(1, program.num_inputs)
        problem, _ = flat_problem(program, request, parameters.tensors, parameters, z.expand(*batch, z.shape[-1]), blank, pushed, None)
        check_status(problem, counts[0])
    saved = states, acts, inputs, w, counts[0], counts[2]
    if keep and repeat > 1:
        states, acts = states[..., repeat - 1 :: repeat, :], acts[..., repeat - 1 :: repeat, :]
        counts = list(totals(*(count.unflatten(-1, (-1, repeat)) for count in counts)))
    return Periods(states, acts, force, impulses, *counts, w[..., -1, :]), saved


class Driven(torch.autograd.Function):
    """(program, request, parameters, table, reference, warm, z, ctrl, act, wrench) -> the fields of `Periods`."""

    @staticmethod
    def forward(
        ctx: Any,
        program: Program,
        request: Request,
        parameters: Parameters,
        table: DriveTable,
        reference: Reference,
        warm: Tensor | None,
        *given: Tensor | None,
    ) -> tuple[Tensor, ...]:
        out, saved = _taken(program, request, parameters, table, (*given, warm), True)
        ctx.held = program, request, parameters, table, reference
        ctx.save_for_backward(*given, *saved)
        ctx.set_materialize_grads(False)
        # Backward keeps the states of all steps, and callers may write to theirs.
        out = out._replace(z=out.z.clone(), act=out.act.clone(), solution=out.solution.clone())
        ctx.mark_non_differentiable(out.status, out.iterations, out.substeps, out.solution)
        return tuple(out)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        needs, grads = ctx.needs_input_grad[6:], grads[:4]
        z, ctrl, act, wrench, states, acts, inputs, w, status, substeps = ctx.saved_tensors
        if all(grad is None for grad in grads):
            return (None,) * 10
        if torch.is_grad_enabled() or transforming():
            return *(None,) * 6, *_by_reference(ctx.held[4], needs, grads, (z, ctrl, act, wrench))
        program, request, parameters, table, _ = ctx.held
        call = _Call(program, request, parameters, table, (z, ctrl, act, wrench, None))
        call.into(states, acts, w, (status, substeps, substeps))
        call.drives.inputs = inputs.data_ptr()
        batch = call.batch
        grad_z, grad_act = (_of_steps(grad, of, request.repeat) for grad, of in ((grads[0], states), (grads[1], acts)))
        grad_z = torch.zeros_like(states) if grad_z is None else grad_z
        grad_force, grad_impulses = (None if grad is None else grad.contiguous() for grad in grads[2:])
        by_z, by_act, by_ctrl = z.new_empty(*batch, z.shape[-1]), act.new_empty(*batch, act.shape[-1]), torch.zeros_like(call.given[1])
        by_wrench = wrench.new_empty(*batch, wrench.shape[-1]) if needs[3] else None
        call.drives.grad_act, call.drives.grad_force, call.drives.by_start = _address(grad_act), _address(grad_force), by_act.data_ptr()
        gradient = calls.Gradient(
            grad_z=grad_z.data_ptr(),
            grad_z_stride=call.arguments.z_stride,
            grad_impulses=_address(grad_impulses),
            grad_z0=by_z.data_ptr(),
            grad_u=by_ctrl.data_ptr(),
            grad_wrench=_address(by_wrench),
        )
        call.call(call.kernel.td_rollout_adjoint, ctypes.byref(gradient))
        results = zip((by_z, by_ctrl, by_act, by_wrench), (z, ctrl, act, wrench), needs, strict=True)
        return *(None,) * 6, *(grad.sum_to_size(value.shape) if need else None for grad, value, need in results)


def _of_steps(grad: Tensor | None, steps: Tensor, repeat: int) -> Tensor | None:
    """The gradient by what all steps leave, from that by what periods leave."""
    if grad is None or repeat == 1:
        return None if grad is None else grad.contiguous()
    full = torch.zeros_like(steps)
    full[..., repeat - 1 :: repeat, :] = grad
    return full


def _by_reference(
    reference: Reference, needs: Sequence[bool], grads: Sequence[Tensor | None], given: Sequence[Tensor | None]
) -> list[Tensor | None]:
    """Gradients through the same periods in PyTorch, for further derivatives, and for gradients in transforms."""
    twice = torch.is_grad_enabled()
    with torch.enable_grad():
        inputs = given if twice else tuple(t if t is None else t.detach().requires_grad_() for t in given)
        wanted = [t for t, need in zip(inputs, needs, strict=True) if need and t is not None]
        pairs = [(value, grad) for value, grad in zip(reference(*inputs), grads, strict=True) if grad is not None]
        values, along = [value for value, _ in pairs], [grad for _, grad in pairs]
        parts = iter(torch.autograd.grad(values, wanted, along, create_graph=twice, materialize_grads=True, allow_unused=True))
    return [next(parts) if need else None for need in needs]
