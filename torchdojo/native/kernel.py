"""Calls of the compiled kernel on flat batches of tensors. They are not differentiable."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from torchdojo.gradients.request import Request
from torchdojo.native import calls
from torchdojo.native.program import Packed, Program, kernel_library
from torchdojo.native.request import kernel_options
from torchdojo.native.tables import CROOKED_QUATERNION
from torchdojo.state.layout import STATE_SIZE

__all__ = [
    "CROOKED_QUATERNION",
    "Gradients",
    "Outputs",
    "Problem",
    "StepImpacts",
    "adjoint",
    "jacobian",
    "minimal_jacobian",
    "near_limit",
    "rollout",
    "states",
]


class StepImpacts(NamedTuple):
    """K impacts of the N rollouts (`Impacts` in gradients/impacts.py).

    step: (N, T) number of the impact of each step, or −1. before, after, slope: (K, nb, 13). component: (K, nb).
    """

    step: Tensor
    before: Tensor
    after: Tensor
    slope: Tensor
    component: Tensor


class Problem(NamedTuple):
    """N rollouts of T steps.

    parameters: flat and stacked, N or 1 rows. z: (N, 13 nb). u: (N, T, nu). wrench: (N, 6 nb). warm: (N, n) or None.
    packed: replaces `parameters` where they are packed already. grad_kappa: (N,) replaces that of the request's options.
    """

    program: Program
    request: Request
    parameters: Sequence[Tensor]
    z: Tensor
    u: Tensor
    wrench: Tensor
    warm: Tensor | None
    packed: Packed | None = None
    grad_kappa: Tensor | None = None


class Outputs(NamedTuple):
    """Results of N rollouts of T steps.

    z: (N, T + 1, 13 nb) with the initial state. impulses: (N, T, ni). w: (N, T, n), or (N, 1, n) with the last solution alone.
    status, iterations, substeps: (N, T), int64.
    """

    z: Tensor
    impulses: Tensor
    w: Tensor
    status: Tensor
    iterations: Tensor
    substeps: Tensor


class Gradients(NamedTuple):
    """Gradients of N rollouts by their data.

    z: (N, 13 nb). u: (N, T, nu). wrench: (N, 6 nb). parameters: by the packed ones where wanted, (N or 1, num_parameters).
    times: by the times of impacts, (K, nb), in the place of the first body of each component.
    """

    z: Tensor
    u: Tensor
    wrench: Tensor
    parameters: Tensor | None
    times: Tensor | None = None


def rollout(problem: Problem, keep_solutions: bool = True, batch: Sequence[int] | None = None) -> Outputs:
    """Take all steps. Solutions of every step are kept for the backward pass, or only the last one.

    The dimensions `batch`, with a product of N, replace N in the outputs.
    """
    count, steps = problem.u.shape[:2]
    shape = (count,) if batch is None else batch
    program = problem.program
    new = problem.z.new_empty
    out = Outputs(
        new(*shape, steps + 1, STATE_SIZE * program.num_bodies),
        new(*shape, steps, program.num_impulses),
        new(*shape, steps if keep_solutions else 1, program.num_unknowns),
        *(new(*shape, steps, dtype=torch.int64) for _ in range(3)),
    )
    out.z.select(-2, 0).copy_(problem.z if batch is None else problem.z.view(*shape, problem.z.shape[1]))
    with _Call(problem, out) as call:
        call.kernel.td_rollout(call.handle, call.options, call.rollout)
    return out


def adjoint(
    problem: Problem, out: Outputs, grad_z: Tensor, grad_impulses: Tensor | None, parameters: bool, impacts: StepImpacts | None = None
) -> Gradients:
    """Gradients by all data, from the gradients of z (N, T + 1, 13 nb) and of the impulses (N, T, ni).

    `parameters` says whether the gradient by the packed parameters is wanted.
    """
    grad_z = grad_z.contiguous()
    impulses = None if grad_impulses is None else grad_impulses.contiguous()
    new = problem.z.new_empty
    with _Call(problem, out) as call:
        gradients = Gradients(
            new(problem.z.shape),
            new(problem.u.shape),
            new(problem.wrench.shape),
            torch.zeros_like(call.parameters) if parameters else None,
            None if impacts is None else problem.z.new_empty(impacts.component.shape),
        )
        hits = None
        if impacts is not None:
            hits = calls.Impacts(by_time=_address(gradients.times), **{name: _address(t) for name, t in impacts._asdict().items()})
        gradient = calls.Gradient(
            grad_z=grad_z.data_ptr() + 8 * grad_z.shape[2],
            grad_z_stride=grad_z.shape[1] * grad_z.shape[2],
            grad_impulses=_address(impulses),
            grad_z0=_address(gradients.z),
            grad_u=_address(gradients.u),
            grad_wrench=_address(gradients.wrench),
            grad_parameters=_address(gradients.parameters),
            impacts=None if hits is None else ctypes.addressof(hits),
        )
        call.kernel.td_rollout_adjoint(call.handle, call.options, call.rollout, ctypes.byref(gradient))
    gradients.z.add_(grad_z[:, 0])
    return gradients


def near_limit(problem: Problem, out: Outputs) -> Tensor:
    """Solutions (N, T, n) of all steps on the way to the hard limit κ → 0 (`hardened` in gradients/hard_limit.py)."""
    result = torch.empty_like(out.w)
    with _Call(problem, out) as call:
        call.kernel.td_near_limit(call.handle, call.options, call.rollout, _address(result))
    return result


def jacobian(problem: Problem, out: Outputs, result: Tensor) -> None:
    """Write the Jacobians of rollouts of one step into the contiguous `result` (N, 12 nb, 12 nb + nu).

    Failed steps get zeros. Split steps get products of the Jacobians of their substeps, without the instants of impacts.
    """
    with _Call(problem, out) as call:
        call.kernel.td_jacobian(call.handle, call.options, call.rollout, _address(result))


def minimal_jacobian(problem: Problem, out: Outputs, q: Tensor, qd: Tensor, result: Tensor) -> None:
    """Write the Jacobians of one step in minimal coordinates into the contiguous `result` (N, 2n, 2n + nu).

    The step starts from `states` at q, qd (N, n). Failed and split steps get zeros.
    """
    q, qd = q.contiguous(), qd.contiguous()
    with _Call(problem, out) as call:
        call.kernel.td_minimal_jacobian(call.handle, call.options, call.rollout, *(_address(t) for t in (q, qd, result)))


def states(program: Program, packed: Packed, q: Tensor, qd: Tensor) -> Tensor:
    """The state z (N, 13 nb) at joint coordinates q, qd (N, n) of a tree, as from `to_maximal` in state/minimal.py."""
    q, qd = q.contiguous(), qd.contiguous()
    z = q.new_empty(len(q), STATE_SIZE * program.num_bodies)
    stride = packed.values.shape[1] if len(packed.values) > 1 else 0
    parameters, addresses = _address(packed.values), [_address(t) for t in (q, qd, z)]
    kernel_library().td_states(packed.handle, len(q), torch.get_num_threads(), parameters, stride, *addresses)
    return z


class _Call:
    """The arguments of one call, and the tensors that must live until it returns."""

    def __init__(self, problem: Problem, out: Outputs) -> None:
        program = problem.program
        self._options = kernel_options(problem.request, torch.get_num_threads())
        self.parameters, self.handle = problem.packed or program.packed(problem.parameters)
        given = problem.z, problem.u, problem.wrench, problem.warm, problem.grad_kappa
        self._inputs = [None if t is None else t.contiguous() for t in given]
        z, u, wrench, warm, grad_kappa = self._inputs
        self._rollout = calls.Rollout(
            environments=problem.u.shape[0],
            steps=problem.u.shape[1],
            parameters=_address(self.parameters),
            parameter_stride=self.parameters.shape[1] if len(self.parameters) > 1 else 0,
            z0=_address(z),
            z0_stride=problem.z.shape[1],
            u=_address(u) if program.num_inputs else None,
            wrench=_address(wrench),
            warm=_address(warm),
            grad_kappa=_address(grad_kappa),
            z=out.z.data_ptr() + 8 * problem.z.shape[1],
            z_stride=(problem.u.shape[1] + 1) * problem.z.shape[1],
            impulses=_address(out.impulses),
            w=_address(out.w),
            w_steps=out.w.shape[-2],
            status=_address(out.status),
            iterations=_address(out.iterations),
            substeps=_address(out.substeps),
        )
        self.kernel = kernel_library()
        self.options, self.rollout = ctypes.byref(self._options), ctypes.byref(self._rollout)

    def __enter__(self) -> _Call:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
