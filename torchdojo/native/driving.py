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
from torchdojo.native.drive_kinds import DRIVE_NUMBERS, MUSCLE_BIAS, MUSCLE_GAIN, DriveTarget
from torchdojo.native.execution import check_status, flat_problem
from torchdojo.native.ops import totals
from torchdojo.native.program import Program, kernel_library
from torchdojo.native.request import kernel_options
from torchdojo.native.tables import DRIVE, row, size
from torchdojo.parameters import broadcast_shapes, transforming
from torchdojo.state.layout import TWIST_SIZE

__all__ = ["DriveTable", "Driven", "Periods", "drive_table", "muscle_numbers", "periods"]

Given = tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]  # z, controls, activations, wrench, warm start
#: The same periods by PyTorch, of z, ctrl, act and wrench: states, activations, forces and impulses of periods.
Reference = Callable[..., tuple[Tensor, ...]]


class DriveTable(NamedTuple):
    """Drives as the kernel reads them.

    rows: int32, rows `DRIVE`. values: (N or 1, drives · numbers), `DRIVE_NUMBERS` of each drive. batch: their batch dimensions.
    drives, activations: how many there are. pushes: whether some drive acts by wrenches.
    """

    rows: Tensor
    values: Tensor
    batch: torch.Size
    drives: int
    activations: int
    pushes: bool

    def spread(self, batch: torch.Size) -> Tensor:
        """The values (N or 1, ·): a row for each environment of `batch`, or one row for all."""
        if self.batch.numel() == 1 or self.batch == batch:
            return self.values
        width = self.values.shape[1]
        return self.values.reshape(*self.batch, width).expand(*batch, width).reshape(-1, width)


class Periods(NamedTuple):
    """P periods of environments (...), or one without its dimension.

    z: (..., P + 1, 13 nb), at the start and after each period; one period: after it alone. act: (..., P, na) after each.
    force: (..., P, n) of the first step of each. impulses: (..., P, ni). status, iterations, substeps: (..., P).
    solution: (..., num_unknowns) of the last step.
    """

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
    """The table of drives. `rows` have the fields of `DRIVE` except the number, and `numbers` the fields of `DRIVE_NUMBERS`.

    Numbers that a drive lacks are zero, and too many are left out. Tensors (..., k) have batch dimensions that broadcast.
    """
    entries = sorted(row(DRIVE, number=i, **values) for i, values in enumerate(rows))
    table = torch.from_numpy(np.array(entries, dtype=DRIVE).view(np.int32).reshape(len(entries), -1))
    with torch.no_grad():
        batch = broadcast_shapes(*(value.shape[:-1] for drive in numbers for value in drive.values()))
        pieces = []
        for drive in numbers:
            for name in DRIVE_NUMBERS.names or ():
                count, entry = size(DRIVE_NUMBERS[name]), drive.get(name)
                entry = torch.zeros(count, dtype=torch.float64) if entry is None else entry[..., :count]
                pieces.append(torch.nn.functional.pad(entry, (0, count - entry.shape[-1])).expand(*batch, count))
        values = torch.cat(pieces, dim=-1).reshape(batch.numel(), -1).contiguous()
    pushes = any(values["target"] not in (DriveTarget.JOINT, DriveTarget.TENDON) for values in rows)
    return DriveTable(table, values, batch, len(entries), activations, pushes)


class _Call:
    """The tensors and structures of a call of the kernel. Controls (..., n) belong to one period, (..., P, n) to many."""

    def __init__(self, program: Program, request: Request, parameters: Parameters, table: DriveTable, given: Given, single: bool) -> None:
        z, ctrl, act, wrench, warm = given
        inner = 1 if single else 2  # dimensions of controls behind those of the batch
        shapes = [z.shape[:-1], ctrl.shape[:-inner], act.shape[:-1], parameters.batch, table.batch]
        if wrench is not None:
            shapes.append(wrench.shape[:-1])
        batch = shapes[0]
        if not all(shape == batch or not shape for shape in shapes):
            batch = broadcast_shapes(*shapes)
        self.batch, self.single, self.periods = batch, single, 1 if single else ctrl.shape[-2]
        self.steps = self.periods * request.repeat
        self.packed = parameters.packed if parameters.shared else parameters.rows(batch)[1]
        self.options, self.kernel = kernel_options(request, torch.get_num_threads()), kernel_library()

        def flat(tensor: Tensor, ndim: int = 1) -> Tensor:
            shape = tensor.shape
            places = len(shape) - ndim
            spread = tensor if shape[:places] == batch else tensor.expand(*batch, *shape[places:])
            return spread if spread.is_contiguous() else spread.contiguous()

        self.given = flat(z), flat(ctrl, inner), flat(act), None if wrench is None else flat(wrench), None if warm is None else flat(warm)
        self.values, values = table.spread(batch), self.packed.values
        self.drives: Any = calls.Drives(
            drives=table.drives,
            activations=table.activations,
            pushes=table.pushes,
            table=table.rows.data_ptr(),
            values=self.values.data_ptr(),
            stride=self.values.shape[1] if self.values.shape[0] > 1 else 0,
            start=self.given[2].data_ptr(),
        )
        self.arguments: Any = calls.Rollout(
            environments=batch.numel(),
            steps=self.steps,
            repeat=request.repeat,
            parameters=values.data_ptr(),
            parameter_stride=values.shape[1] if values.shape[0] > 1 else 0,
            z0=self.given[0].data_ptr(),
            z0_stride=z.shape[-1],
            u=self.given[1].data_ptr(),
            drives=ctypes.addressof(self.drives),
            wrench=_address(self.given[3]),
            warm=_address(self.given[4]),
        )

    def into(self, states: Tensor, act: Tensor, w: Tensor, counts: Sequence[Tensor], stored: int, solutions: int) -> None:
        """Results of `stored` steps or periods go into states, act and counts, and as many `solutions` into w.

        Args:
            states: (..., stored, 13 nb) of one period, or without the dimension of 1; (..., 1 + stored, 13 nb) of many, behind the start.
        """
        arguments = self.arguments
        arguments.every, arguments.w_steps, arguments.w = self.steps // stored, solutions, w.data_ptr()
        arguments.z, arguments.z_stride = behind_start(states, stored + (not self.single), stored)
        arguments.status, arguments.iterations, arguments.substeps = [count.data_ptr() for count in counts]
        self.drives.act = act.data_ptr()

    def call(self, function: Any, *more: Any) -> None:
        function(self.packed.handle, ctypes.byref(self.options), ctypes.byref(self.arguments), *more)


def behind_start(states: Tensor, rows: int, stored: int) -> tuple[int, int]:
    """Where the `stored` values behind the start begin in contiguous (..., rows, n), and the numbers of all rows."""
    width = states.shape[-1]
    return states.data_ptr() + (rows - stored) * width * states.element_size(), rows * width


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def periods(
    program: Program,
    request: Request,
    parameters: Parameters,
    table: DriveTable,
    reference: Reference,
    given: Given,
    single: bool,
) -> Periods:
    """The period of controls ctrl (..., n), or the P periods of (..., P, n), with a graph where one is wanted.

    Args:
        given: z (..., 13 nb), ctrl, act (..., na), wrench (..., 6 nb) or None, and a warm start or None. single: whether it is one period.
    """
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in given[:4]):
        out: Any = Driven.apply(program, request, parameters, table, reference, single, given[4], *given[:4])
        return Periods(*out)
    return _take_periods(program, request, parameters, table, given, single)


def _check(program: Program, request: Request, parameters: Parameters, call: _Call, status: Tensor) -> None:
    """Raise what the status asks for."""
    if status.numel() and (status if status.ndim == 0 else status.max()).item():
        z, pushed = call.given[0], call.given[3]
        pushed = z.new_zeros(TWIST_SIZE * program.num_bodies) if pushed is None else pushed
        problem, _ = flat_problem(program, request, parameters.tensors, parameters, z, z.new_zeros(1, program.num_inputs), pushed, None)
        check_status(problem, status.reshape(*call.batch, -1))


def _take_periods(program: Program, request: Request, parameters: Parameters, table: DriveTable, given: Given, single: bool) -> Periods:
    """The periods without a graph."""
    call, z = _Call(program, request, parameters, table, given, single), given[0]
    new, batch = memory.allocator(z), call.batch
    lead = batch if single else (*batch, call.periods)
    states = new((*batch, z.shape[-1]) if single else (*batch, 1 + call.periods, z.shape[-1]))
    acts, w = new((*lead, table.activations)), new((*batch, program.num_unknowns))
    force, impulses = new((*lead, table.drives)), new((*lead, program.num_impulses))
    counts = [new(lead, dtype=torch.int64) for _ in range(3)]
    call.into(states, acts, w, counts, call.periods, 1)
    call.arguments.impulses, call.drives.force = impulses.data_ptr(), force.data_ptr()
    call.call(call.kernel.td_rollout)
    _check(program, request, parameters, call, counts[0])
    status, iterations, substeps = counts
    if not single:
        states[..., 0, :] = z
    return Periods(states, acts, force, impulses, status, iterations, substeps, w)


class Driven(torch.autograd.Function):
    """(program, request, parameters, table, reference, single, warm, z, ctrl, act, wrench) -> the fields of `Periods`."""

    @staticmethod
    def forward(
        ctx: Any,
        program: Program,
        request: Request,
        parameters: Parameters,
        table: DriveTable,
        reference: Reference,
        single: bool,
        warm: Tensor | None,
        z: Tensor,
        ctrl: Tensor,
        act: Tensor,
        wrench: Tensor | None,
    ) -> tuple[Tensor, ...]:
        call = _Call(program, request, parameters, table, (z, ctrl, act, wrench, warm), single)
        new, lead, repeat = memory.allocator(z), (*call.batch, call.steps), request.repeat
        states = new((*call.batch, call.steps + (not single), z.shape[-1]))
        acts, w = new((*lead, table.activations)), new((*lead, program.num_unknowns))
        inputs, counts = new((*lead, program.num_inputs)), [new(lead, dtype=torch.int64) for _ in range(3)]
        force, impulses = (new((*call.batch, call.periods, count)) for count in (table.drives, program.num_impulses))
        call.into(states, acts, w, counts, call.steps, call.steps)
        call.arguments.impulses, call.drives.force, call.drives.inputs = impulses.data_ptr(), force.data_ptr(), inputs.data_ptr()
        wrenches = new((*lead, TWIST_SIZE * program.num_bodies if table.pushes else 0))
        call.drives.wrenches = wrenches.data_ptr() if table.pushes else None
        call.call(call.kernel.td_rollout)
        _check(program, request, parameters, call, counts[0])
        ctx.held = program, request, parameters, table, reference, single
        ctx.save_for_backward(z, ctrl, act, wrench, states, acts, inputs, wrenches, w, counts[0], counts[2])
        ctx.set_materialize_grads(False)
        # Backward keeps the states and activations of all steps. Callers may write to theirs, but for states of rollouts: they are many.
        act_after = acts[..., repeat - 1 :: repeat, :].clone()
        if single:
            z_after = states[..., -1:, :].clone()
        else:
            states[..., 0, :] = z
            z_after = states if repeat == 1 else states[..., ::repeat, :].contiguous()
        totaled = counts if repeat == 1 else list(totals(*(count.unflatten(-1, (-1, repeat)) for count in counts)))
        if single:
            z_after, act_after, force, impulses = (value.squeeze(-2) for value in (z_after, act_after, force, impulses))
            totaled = [count.squeeze(-1) for count in totaled]
        solution = w[..., -1, :].clone()
        ctx.mark_non_differentiable(*totaled, solution)
        return z_after, act_after, force, impulses, *totaled, solution

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        needs, grads = ctx.needs_input_grad[7:], grads[:4]
        z, ctrl, act, wrench, states, acts, inputs, wrenches, w, status, substeps = ctx.saved_tensors
        if all(grad is None for grad in grads):
            return (None,) * 11
        program, request, parameters, table, reference, single = ctx.held
        repeat = request.repeat
        if torch.is_grad_enabled() or transforming():
            return *(None,) * 7, *_by_reference(reference, needs, grads, (z, ctrl, act, wrench))
        call = _Call(program, request, parameters, table, (z, ctrl, act, wrench, None), single)
        call.into(states, acts, w, (status, substeps, substeps), call.steps, call.steps)
        call.drives.inputs, call.drives.wrenches = inputs.data_ptr(), wrenches.data_ptr() if table.pushes else None
        batch = call.batch
        if single:
            grads = tuple(None if grad is None else grad.unsqueeze(-2) for grad in grads)
        grad_z = _of_steps(grads[0], states, repeat - 1 if single else 0, repeat)
        grad_act = _of_steps(grads[1], acts, repeat - 1, repeat)
        grad_z = torch.zeros_like(states) if grad_z is None else grad_z
        grad_after, grad_stride = behind_start(grad_z, grad_z.shape[-2], call.steps)
        grad_force, grad_impulses = (None if grad is None else grad.contiguous() for grad in grads[2:])
        by_z, by_act, by_ctrl = z.new_empty(*batch, z.shape[-1]), act.new_empty(*batch, act.shape[-1]), torch.zeros_like(call.given[1])
        by_wrench = z.new_empty(*batch, wrench.shape[-1]) if needs[3] else None
        call.drives.grad_act, call.drives.grad_force, call.drives.by_start = _address(grad_act), _address(grad_force), by_act.data_ptr()
        gradient = calls.Gradient(
            grad_z=grad_after,
            grad_z_stride=grad_stride,
            grad_impulses=_address(grad_impulses),
            grad_z0=by_z.data_ptr(),
            grad_u=by_ctrl.data_ptr(),
            grad_wrench=_address(by_wrench),
        )
        call.call(call.kernel.td_rollout_adjoint, ctypes.byref(gradient))
        if not single:
            by_z += grad_z[..., 0, :]
        results = zip((by_z, by_ctrl, by_act, by_wrench), (z, ctrl, act, wrench), needs, strict=True)
        return *(None,) * 7, *(grad.sum_to_size(value.shape) if need else None for grad, value, need in results)


def _of_steps(grad: Tensor | None, steps: Tensor, first: int, repeat: int) -> Tensor | None:
    """The gradient by the values of all steps: `grad` in every row `repeat` after the first, and zero inside of periods."""
    if grad is None or repeat == 1:
        return None if grad is None else grad.contiguous()
    full = torch.zeros_like(steps)
    full[..., first::repeat, :] = grad
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
