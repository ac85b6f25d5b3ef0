"""Calls of the compiled kernel on flat batches of tensors. They are not differentiable."""

from __future__ import annotations

import ctypes
import enum
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from torchdojo.gradients.request import Request
from torchdojo.native import calls, memory
from torchdojo.native.actuation import Law
from torchdojo.native.feedback import Feedback
from torchdojo.native.program import Packed, Program, kernel_library
from torchdojo.native.request import kernel_options
from torchdojo.native.tables import CROOKED_QUATERNION, Derivative, StateMap
from torchdojo.state.layout import STATE_SIZE

__all__ = [
    "CROOKED_QUATERNION",
    "Call",
    "Gradients",
    "Keep",
    "Outputs",
    "Problem",
    "StepImpacts",
    "adjoint",
    "jacobian",
    "linearize",
    "near_limit",
    "rollout",
    "state_map",
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
    """N rollouts of T steps, in P periods of `request.repeat` steps. With a law, u are controls (N, P, number of actuators).

    parameters: flat and stacked, N or 1 rows. z: (N, 13 nb). u: (N, P, nu). wrench: (N, 6 nb). warm: (N, n) or None.
    packed: replaces `parameters` where they are packed already. grad_kappa: (N,) replaces the value in the request's options.
    feedback: writes u, contiguous, while the rollout goes on.
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
    law: Law | None = None
    feedback: Feedback | None = None

    @property
    def steps(self) -> int:
        return self.u.shape[1] * self.request.repeat

    def input_of(self, rows: Tensor) -> Tensor:
        """u (rows, nu) of single steps, numbered through all environments."""
        return self.u.flatten(0, 1)[rows if self.request.repeat == 1 else rows // self.request.repeat]


class Keep(enum.IntEnum):
    """The results of a rollout that are stored."""

    LAST = 0  #: results of periods, and the last solution
    PERIODS = 1  #: results of periods, with the solution of the last step of each
    STEPS = 2  #: results of every step, as the backward pass needs them


class Outputs(NamedTuple):
    """Results of N rollouts: of their S = T steps, or of their S = P periods.

    z: (N, S + 1, 13 nb) with the initial state. impulses: (N, P, ni), sums. w: (N, S, n), or (N, 1, n) with the last solution alone.
    status, iterations, substeps: (N, S), int64; a period has the worst status, and sums.
    """

    z: Tensor
    impulses: Tensor
    w: Tensor
    status: Tensor
    iterations: Tensor
    substeps: Tensor


class Gradients(NamedTuple):
    """Gradients of N rollouts by their data.

    z: (N, 13 nb). u: (N, P, nu). wrench: (N, 6 nb). parameters: by the packed ones where wanted, (N or 1, num_parameters).
    times: by the times of impacts, (K, nb), in the place of the first body of each component.
    """

    z: Tensor
    u: Tensor
    wrench: Tensor
    parameters: Tensor | None
    times: Tensor | None = None


def rollout(problem: Problem, keep: Keep = Keep.STEPS, batch: Sequence[int] | None = None) -> Outputs:
    """Take all steps. The dimensions `batch`, with a product of N, replace N in the outputs."""
    out = _outputs(problem, keep, batch)
    with Call(problem, out) as call:
        call.kernel.td_rollout(call.handle, call.options, call.rollout)
    return out


def _outputs(problem: Problem, keep: Keep, batch: Sequence[int] | None = None) -> Outputs:
    """The memory of the results, with the initial states."""
    count, periods = problem.u.shape[:2]
    steps = problem.steps if keep is Keep.STEPS else periods
    shape = (count,) if batch is None else batch
    program = problem.program
    new = memory.allocator(problem.z)
    out = Outputs(
        new(*shape, steps + 1, STATE_SIZE * program.num_bodies),
        new(*shape, periods, program.num_impulses),
        new(*shape, 1 if keep is Keep.LAST else steps, program.num_unknowns),
        *(new(*shape, steps, dtype=torch.int64) for _ in range(3)),
    )
    out.z.select(-2, 0).copy_(problem.z if batch is None else problem.z.view(*shape, problem.z.shape[1]))
    return out


def linearize(problem: Problem, result: Tensor, x: Tensor | None = None) -> Outputs:
    """Take one step, and write its Jacobian as `jacobian` does, in one call.

    x (N, 2n) has q and qd, from which `states` makes the states of the problem. With it, the Jacobian is in minimal coordinates,
    (N, 2n, 2n + nu), and split steps get zeros.
    """
    out = _outputs(problem, Keep.STEPS)
    x = None if x is None else x.contiguous()
    with Call(problem, out) as call:
        call.kernel.td_linearize(call.handle, call.options, call.rollout, _address(x), _address(result))
    return out


def adjoint(
    problem: Problem,
    out: Outputs,
    grad_z: Tensor,
    grad_impulses: Tensor | None,
    parameters: bool | Tensor,
    impacts: StepImpacts | None = None,
) -> Gradients:
    """Gradients by all data, from the gradients of z (N, T + 1, 13 nb) and of the impulses (N, P, ni).

    `parameters` says whether the gradient by the packed parameters is wanted, or is a tensor to write it into.
    """
    grad_z = grad_z.contiguous()
    impulses = None if grad_impulses is None else grad_impulses.contiguous()
    new = memory.allocator(problem.z)
    with Call(problem, out) as call:
        by_parameters = parameters.zero_() if isinstance(parameters, Tensor) else torch.zeros_like(call.parameters) if parameters else None
        gradients = Gradients(
            new(problem.z.shape),
            torch.zeros_like(problem.u) if problem.law else new(len(problem.u), problem.steps, problem.u.shape[2]),
            new(problem.wrench.shape),
            by_parameters,
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
    if problem.request.repeat > 1 and problem.law is None:
        gradients = gradients._replace(u=gradients.u.unflatten(1, (-1, problem.request.repeat)).sum(2))
    return gradients


def near_limit(problem: Problem, out: Outputs) -> Tensor:
    """Solutions (N, T, n) of all steps on the way to the hard limit κ → 0 (`hardened` in gradients/hard_limit.py)."""
    result = torch.empty_like(out.w)
    with Call(problem, out) as call:
        call.kernel.td_near_limit(call.handle, call.options, call.rollout, _address(result))
    return result


def jacobian(problem: Problem, out: Outputs, result: Tensor) -> None:
    """Write the Jacobians of rollouts of one step into the contiguous `result` (N, 12 nb, 12 nb + nu).

    Failed steps get zeros. Split steps get products of the Jacobians of their substeps, without the instants of impacts.
    """
    with Call(problem, out) as call:
        call.kernel.td_jacobian(call.handle, call.options, call.rollout, _address(result))


def state_map(
    program: Program, packed: Packed, which: StateMap, derivative: Derivative, state: Tensor, along: Tensor | None = None
) -> Tensor:
    """A function of states at `state` (N, ·), or the product of its derivative with `along` (N, ·), a gradient or a tangent.

    The parameters, N or 1 rows, are held constant.
    """
    state = state.contiguous()
    along = None if along is None else along.contiguous()
    sizes = program.map_sizes[which]
    out = state.new_empty(len(state), sizes[0 if derivative is Derivative.PULL else 1])
    values = packed.values
    arguments = calls.Map(
        map=which,
        derivative=derivative,
        environments=len(state),
        threads=torch.get_num_threads(),
        parameters=values.data_ptr(),
        parameter_stride=values.shape[1] if len(values) > 1 else 0,
        out=out.data_ptr(),
        along=_address(along),
        **{"in": state.data_ptr()},
    )
    kernel_library().td_map(packed.handle, ctypes.byref(arguments))
    return out


def states(program: Program, packed: Packed, x: Tensor) -> Tensor:
    """The state z (N, 13 nb) at joint coordinates and rates x (N, 2n) of a tree, as from `to_maximal` in state/minimal.py."""
    return state_map(program, packed, StateMap.TO_MAXIMAL, Derivative.VALUE, x)


class Call:
    """The arguments of one call, and the tensors that must live until it returns."""

    def __init__(self, problem: Problem, out: Outputs) -> None:
        program = problem.program
        self._options = kernel_options(problem.request, torch.get_num_threads())
        self.parameters, self.handle = problem.packed or program.packed(problem.parameters)
        inputs = problem.z, problem.u, problem.wrench, problem.warm, problem.grad_kappa
        self._law = None if problem.law is None else problem.law.arguments()
        self._feedback = None if problem.feedback is None else problem.feedback.arguments(problem.u)
        self._kept = problem.law, problem.feedback
        self._inputs = [None if t is None else t.contiguous() for t in inputs]
        z, u, wrench, warm, grad_kappa = self._inputs
        self.arguments = calls.Rollout(
            environments=problem.u.shape[0],
            steps=problem.steps,
            repeat=problem.request.repeat,
            every=problem.steps // out.status.shape[-1],
            parameters=_address(self.parameters),
            parameter_stride=self.parameters.shape[1] if len(self.parameters) > 1 else 0,
            z0=_address(z),
            z0_stride=problem.z.shape[1],
            u=_address(u) if program.num_inputs else None,
            law=None if self._law is None else ctypes.addressof(self._law),
            feedback=None if self._feedback is None else ctypes.addressof(self._feedback),
            wrench=_address(wrench),
            warm=_address(warm),
            grad_kappa=_address(grad_kappa),
            z=out.z.data_ptr() + 8 * problem.z.shape[1],
            z_stride=out.z.shape[-2] * problem.z.shape[1],
            impulses=_address(out.impulses),
            w=_address(out.w),
            w_steps=out.w.shape[-2],
            status=_address(out.status),
            iterations=_address(out.iterations),
            substeps=_address(out.substeps),
        )
        self.kernel = kernel_library()
        self.options, self.rollout = ctypes.byref(self._options), ctypes.byref(self.arguments)

    def __enter__(self) -> Call:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
