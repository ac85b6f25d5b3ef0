"""One step, or one period, by the kernel: the call that costs least in Python, and its node of autograd.

`ops.Rollout` serves everything: transforms, forward mode, hard limits, gradients of parameters. Most calls of `Mechanism.step` want none
of these. Then nothing is flattened: the kernel reads the tensors of the caller, and writes results in the shape in which they are returned.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from torchdojo.gradients.hard_limit import SMALL_KAPPA
from torchdojo.gradients.reference_step import StepOutput
from torchdojo.gradients.request import Request, StepInputs
from torchdojo.gradients.transforms import forward_mode
from torchdojo.native import calls, memory
from torchdojo.native.cache import Parameters
from torchdojo.native.execution import check_status, flat_problem
from torchdojo.native.ops import RolloutAdjoint, totals
from torchdojo.native.program import Packed, Program, kernel_library
from torchdojo.native.request import kernel_options
from torchdojo.parameters import broadcast_shapes, transforming
from torchdojo.solver.options import GradientMode

__all__ = ["Step", "differentiates", "step"]


def differentiates(request: Request) -> bool:
    """Whether `Step` has the derivatives that a request asks for."""
    options = request.options
    return request.mode is GradientMode.CENTRAL_PATH and (options.grad_kappa or options.kappa) > SMALL_KAPPA and request.grad_kappa is None


class Held:
    """The tensors and the structure of a call of the kernel."""

    def __init__(self, program: Program, request: Request, parameters: Parameters, given: StepInputs) -> None:
        law = parameters.law
        z, u, wrench, warm = given
        shapes = [parameters.batch, u.shape[:-1], *([] if law is None else [law.batch]), *([] if wrench is None else [wrench.shape[:-1]])]
        batch = z.shape[:-1]
        if not all(shape == batch or not shape for shape in shapes):
            batch = broadcast_shapes(batch, *shapes)
        self.batch = batch
        self.law = None if law is None else law.rows(batch)
        self.packed: Packed = parameters.packed if parameters.shared else parameters.rows(batch)[1]
        self.options, self.kernel = kernel_options(request, torch.get_num_threads()), kernel_library()
        self.given = [None if t is None else (t if t.shape[:-1] == batch else t.expand(*batch, t.shape[-1])).contiguous() for t in given]
        z, u, wrench, warm = (None if t is None else t.data_ptr() for t in self.given)  # type: ignore[assignment]
        values, self._law = self.packed.values, None if self.law is None else self.law.arguments()
        self.arguments: Any = calls.Rollout(
            environments=batch.numel(),
            steps=request.repeat,
            repeat=request.repeat,
            parameters=values.data_ptr(),
            parameter_stride=values.shape[1] if len(values) > 1 else 0,
            z0=z,
            z0_stride=given.z.shape[-1],
            u=u if program.num_inputs else None,
            law=None if self._law is None else ctypes.addressof(self._law),
            wrench=wrench,
            warm=warm,
        )

    def into(self, z: Tensor, impulses: Tensor | None, w: Tensor, counts: list[Tensor], steps: int) -> None:
        """Results go into z, w and counts (..., `steps`, ·) or, of one, (..., ·)."""
        arguments = self.arguments
        arguments.every, arguments.w_steps = arguments.steps // steps, steps
        arguments.z, arguments.z_stride = z.data_ptr(), steps * arguments.z0_stride
        arguments.impulses, arguments.w = None if impulses is None else impulses.data_ptr(), w.data_ptr()
        arguments.status, arguments.iterations, arguments.substeps = [count.data_ptr() for count in counts]

    def call(self, function: Any, *more: Any) -> None:
        function(self.packed.handle, ctypes.byref(self.options), ctypes.byref(self.arguments), *more)


def step(program: Program, request: Request, parameters: Parameters, given: StepInputs) -> StepOutput:
    """A step, or a period, without a graph. The packed parameters are finite (`Parameters.finite`)."""
    held, new = Held(program, request, parameters, given), memory.allocator(given.z)
    batch = held.batch
    z, impulses, w = new((*batch, given.z.shape[-1])), new((*batch, program.num_impulses)), new((*batch, program.num_unknowns))
    counts = [new(batch, dtype=torch.int64) for _ in range(3)]
    held.into(z, impulses, w, counts, 1)
    held.call(held.kernel.td_rollout)
    _check(program, request, parameters, given, counts[0])
    return StepOutput(z, impulses, counts[0], counts[1], w, counts[2])


def _check(program: Program, request: Request, parameters: Parameters, given: StepInputs, status: Tensor) -> None:
    """Raise what the status (...) asks for."""
    if status.numel() and (status if status.ndim == 0 else status.max()).item():
        problem, _ = flat_problem(program, request, parameters.tensors, parameters, given.z, given.u.unsqueeze(-2), given.forces, None)
        check_status(problem, status[..., None])


class Step(torch.autograd.Function):
    """(program, request, parameters, warm, z, u, wrench or None) -> the fields of `StepOutput`, differentiable in z, u and wrench.

    An autograd Function without `setup_context`, for eager calls: PyTorch spends 20 µs less on one.
    """

    @staticmethod
    def forward(
        ctx: Any,
        program: Program,
        request: Request,
        parameters: Parameters,
        warm: Tensor | None,
        z: Tensor,
        u: Tensor,
        wrench: Tensor | None,
    ) -> tuple[Tensor, ...]:
        inputs = StepInputs(z, u, wrench, warm)
        held, new, steps = Held(program, request, parameters, inputs), memory.allocator(z), request.repeat
        batch, lead = held.batch, (*held.batch, steps)
        states, impulses, w = new((*lead, z.shape[-1])), new((*batch, program.num_impulses)), new((*lead, program.num_unknowns))
        counts = [new(lead, dtype=torch.int64) for _ in range(3)]
        held.into(states, impulses, w, counts, steps)
        held.call(held.kernel.td_rollout)
        status, iterations, substeps = (count.squeeze(-1) for count in counts) if steps == 1 else totals(*counts)
        _check(program, request, parameters, inputs, status)
        ctx.held = program, request, parameters
        ctx.save_for_backward(z, u, wrench, states, w, counts[0], counts[2])
        ctx.set_materialize_grads(False)
        after, solution = states[..., -1, :], w[..., -1, :]
        if not memory.chosen():  # backward keeps the states of all steps, and callers may write to theirs
            after, solution = after.clone(), solution.clone()
        ctx.mark_non_differentiable(status, iterations, solution, substeps)
        return after, impulses, status, iterations, solution, substeps

    @staticmethod
    def backward(ctx: Any, grad_z: Tensor | None, grad_impulses: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
        needs = ctx.needs_input_grad[4:]
        if grad_z is None and grad_impulses is None:
            return (None,) * 7
        if torch.is_grad_enabled() or transforming() or forward_mode():
            return None, None, None, None, *_general(ctx, needs, grad_z, grad_impulses)
        program, request, parameters = ctx.held
        z, u, wrench, states, w, status, substeps = ctx.saved_tensors
        held = Held(program, request, parameters, StepInputs(z, u, wrench))
        held.into(states, None, w, [status, substeps, substeps], request.repeat)
        if request.repeat > 1:
            path = torch.zeros_like(states)
            if grad_z is not None:
                path[..., -1, :] = grad_z
            grad_z = path
        elif grad_z is None:
            grad_z = torch.zeros_like(states)
        grad_z = grad_z.contiguous()
        grad_impulses = None if grad_impulses is None else grad_impulses.contiguous()
        batch, law, new = held.batch, held.law is not None, memory.allocator(z)
        by_z, by_u, by_wrench = new((*batch, z.shape[-1])), None, None
        if needs[1]:
            by_u = z.new_zeros((*batch, u.shape[-1])) if law else new((*batch, request.repeat, u.shape[-1]))
        if needs[2]:
            by_wrench = new((*batch, wrench.shape[-1]))
        gradient = calls.Gradient(
            grad_z=grad_z.data_ptr(),
            grad_z_stride=held.arguments.z_stride,
            grad_impulses=None if grad_impulses is None else grad_impulses.data_ptr(),
            grad_z0=by_z.data_ptr(),
            grad_u=None if by_u is None else by_u.data_ptr(),
            grad_wrench=None if by_wrench is None else by_wrench.data_ptr(),
        )
        held.call(held.kernel.td_rollout_adjoint, ctypes.byref(gradient))
        if by_u is not None and not law:
            by_u = by_u.squeeze(-2) if request.repeat == 1 else by_u.sum(-2)
        grads = zip((by_z if needs[0] else None, by_u, by_wrench), (z, u, wrench), strict=True)
        return None, None, None, None, *(None if grad is None else grad.sum_to_size(value.shape) for grad, value in grads)


def _general(ctx: Any, needs: Any, grad_z: Tensor | None, grad_impulses: Tensor | None) -> list[Tensor | None]:
    """Gradients through `ops.RolloutAdjoint`, which knows vmap, and refuses further derivatives."""
    program, request, parameters = ctx.held
    z, u, wrench, states, w, status, substeps = ctx.saved_tensors
    path = torch.cat((z.detach().expand_as(states[..., :1, :].squeeze(-2)).unsqueeze(-2), states), dim=-2)
    if grad_z is not None:
        none = torch.zeros_like(path[..., :-1, :])
        grad_z = torch.cat((none, grad_z.unsqueeze(-2)), dim=-2)
    if grad_impulses is not None:
        grad_impulses = grad_impulses.unsqueeze(-2)
    saved = path, w, status, substeps
    forces = StepInputs(z, u, wrench).forces
    by_z, by_u, by_wrench = RolloutAdjoint.apply(
        program, request, parameters, (needs[0], needs[1], needs[2]), grad_z, grad_impulses, *saved, z, u.unsqueeze(-2), forces
    )
    return [by_z, None if by_u is None else by_u.squeeze(-2), by_wrench]
