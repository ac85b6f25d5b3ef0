"""Near terms of polytopes through the kernel (src/base/near_search.hpp), and rollouts that choose them (src/abi/near_steps.hpp)."""

from __future__ import annotations

import ctypes
import math
import mmap
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchdojo.gradients.request import Request
from torchdojo.native import calls
from torchdojo.native.cache import Parameters
from torchdojo.native.memory import UsedPages
from torchdojo.native.program import Packed, Program, kernel_library
from torchdojo.native.request import kernel_options

__all__ = ["Near", "NearFunction", "NearProblem", "NearRollout", "near_terms"]

SMALL, LARGE = 1 << 20, 1 << 27  # sizes of memory [bytes] between which results use pages again; pages that are cleared have no upper bound
PAGE = mmap.PAGESIZE
_used = UsedPages(most=2)
_cleared = UsedPages(most=6, clear=lambda address, size: kernel_library().td_clear(address, size))


class Near(NamedTuple):
    """terms: (N, capacity, 3), the nearest first, kind −1 where there are fewer. counts: (N,). gaps: (N, capacity) [m]."""

    terms: Tensor
    counts: Tensor
    gaps: Tensor


def near_terms(parameters: Parameters, contact: int, z: Tensor, reach: Tensor, capacity: int) -> Near:
    """Terms with gaps below `reach` (N,) [m] in the states z (N, 13 nb), of the pair of a contact (its number as declared)."""
    count = len(z)
    z, reach = z.contiguous(), reach.contiguous()
    terms = torch.full((count, capacity, 3), -1.0, dtype=torch.float64)
    gaps, counts = torch.empty(count, capacity, dtype=torch.float64), torch.zeros(count, dtype=torch.int64)
    arguments = calls.Near(
        environments=count,
        threads=torch.get_num_threads(),
        contact=contact,
        capacity=capacity,
        reach=reach.data_ptr(),
        z=z.data_ptr(),
        terms=terms.data_ptr(),
        gaps=gaps.data_ptr(),
        counts=counts.data_ptr(),
    )
    kernel_library().td_near_terms(parameters.packed.handle, ctypes.byref(arguments))
    return Near(terms, counts, gaps)


def _zeros(*shape: int) -> Tensor:
    """Zeros, large ones in pages that the system clears when they are first written, or in pages that were used and are cleared again.

    PyTorch writes its zeros, and NumPy asks for huge pages. Impulses of 20 steps of 256 robots with 3,900 slots take 640 MB, nearly all 0.
    """
    size = 8 * math.prod(shape)
    if size < SMALL:
        return torch.zeros(shape, dtype=torch.float64)
    return torch.frombuffer(_cleared.take(-(-size // PAGE) * PAGE), dtype=torch.float64, count=size // 8).reshape(shape)


def _empty(*shape: int) -> Tensor:
    """Whole numbers that the kernel is about to write, all of them. Large ones use pages again that nobody has any longer.

    Terms of 256 robots with 4,700 slots take 10 MB. To be handed that many pages takes longer than to write them.
    """
    size = 8 * math.prod(shape)
    if not SMALL <= size <= LARGE:
        return torch.empty(shape, dtype=torch.int64)
    return torch.frombuffer(_used.take(size), dtype=torch.int64).reshape(shape)


class NearRollout(NamedTuple):
    """Results of N rollouts of T steps.

    z: (N, T + 1, 13 nb) with the initial state. impulses: (N, T, ni). w: (N, T or 1, n). status, iterations, substeps: (N, T).
    terms: (N, T or 1, K) of the slots, as `numbers` of engine/near_slots.py, in the order in which they are declared.
    overflow: (N, 2) a contact of a pair with more terms than slots, or −1, and how many it has.
    """

    z: Tensor
    impulses: Tensor
    w: Tensor
    status: Tensor
    iterations: Tensor
    substeps: Tensor
    terms: Tensor
    overflow: Tensor


class NearProblem(NamedTuple):
    """Rollouts with near contacts, of flat batches. z: (N, 13 nb). u: (N, T, nu). wrench: (N, 6 nb) or None. warm: (N, n) or None.

    known: terms (N, K) of slots before the first step, or None; the parameters have none.
    free: whether gravity alone gives bodies energy.
    """

    program: Program
    request: Request
    packed: Packed
    z: Tensor
    u: Tensor
    wrench: Tensor | None
    warm: Tensor | None
    slots: int
    known: Tensor | None
    free: bool

    def solve(self, all_steps: bool) -> NearRollout:
        """All steps. all_steps: whether the solutions and terms of all are wanted, or of the last one alone."""
        count, steps = self.u.shape[:2]
        stored, program = steps if all_steps else 1, self.program
        out = NearRollout(
            self.z.new_empty(count, steps + 1, self.z.shape[1]),
            _zeros(count, steps, program.num_impulses),  # numbers of empty slots are not written
            _zeros(count, stored, program.num_unknowns),
            torch.empty(count, steps, dtype=torch.int64),
            torch.empty(count, steps, dtype=torch.int64),
            torch.empty(count, steps, dtype=torch.int64),
            _empty(count, stored, self.slots),
            torch.empty(count, 2, dtype=torch.int64),
        )
        out.z[:, 0] = self.z
        arguments, near, options = self._arguments(out)
        kernel_library().td_near_rollout(self.packed.handle, ctypes.byref(options), ctypes.byref(arguments), ctypes.byref(near))
        return out

    def gradients(self, out: NearRollout, grad_z: Tensor, grad_impulses: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients by z, u and the wrench, from those of the states after each step (N, T, 13 nb) and of the impulses (N, T, ni)."""
        count, steps, size = grad_z.shape
        grad_z = grad_z.contiguous()
        by_z, by_u = torch.empty_like(self.z), torch.empty_like(self.u)
        by_wrench = self.z.new_empty(count, 6 * self.program.num_bodies)
        impulses = None if grad_impulses is None else grad_impulses.contiguous()
        gradient = calls.Gradient(
            grad_z=grad_z.data_ptr(),
            grad_z_stride=steps * size,
            grad_impulses=None if impulses is None else impulses.data_ptr(),
            grad_z0=by_z.data_ptr(),
            grad_u=by_u.data_ptr() if by_u.numel() else None,
            grad_wrench=by_wrench.data_ptr(),
        )
        arguments, near, options = self._arguments(out)
        kernel_library().td_near_adjoint(
            self.packed.handle, ctypes.byref(options), ctypes.byref(arguments), ctypes.byref(near), ctypes.byref(gradient)
        )
        return by_z, by_u, by_wrench

    def _arguments(self, out: NearRollout) -> tuple[ctypes.Structure, ctypes.Structure, ctypes.Structure]:
        count, steps = self.u.shape[:2]
        values, size = self.packed.values, self.z.shape[1]
        arguments = calls.Rollout(
            environments=count,
            steps=steps,
            repeat=1,
            every=1,
            parameters=values.data_ptr(),
            parameter_stride=values.shape[1] if len(values) > 1 else 0,
            z0=self.z.data_ptr(),
            z0_stride=size,
            u=self.u.data_ptr() if self.u.numel() else None,
            wrench=None if self.wrench is None else self.wrench.data_ptr(),
            warm=None if self.warm is None else self.warm.data_ptr(),
            z=out.z.data_ptr() + 8 * size,
            z_stride=(steps + 1) * size,
            impulses=out.impulses.data_ptr(),
            w=out.w.data_ptr(),
            w_steps=out.w.shape[1],
            status=out.status.data_ptr(),
            iterations=out.iterations.data_ptr(),
            substeps=out.substeps.data_ptr(),
        )
        near = calls.NearSteps(
            known=None if self.known is None else self.known.data_ptr(),
            free=self.free,
            stored=out.terms.shape[1],
            terms=out.terms.data_ptr(),
            overflow=out.overflow.data_ptr(),
        )
        return arguments, near, kernel_options(self.request, torch.get_num_threads())


class NearFunction(torch.autograd.Function):
    """(problem, z, u, wrench or None) -> the fields of `NearRollout`, differentiable in z, u and wrench, once."""

    @staticmethod
    def forward(ctx: Any, problem: NearProblem, z: Tensor, u: Tensor, wrench: Tensor | None) -> tuple[Tensor, ...]:
        out = problem.solve(True)
        ctx.problem = problem
        ctx.save_for_backward(*out)
        ctx.mark_non_differentiable(*out[2:])
        ctx.set_materialize_grads(False)
        return tuple(out)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_z: Tensor | None, grad_impulses: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
        if grad_z is None and grad_impulses is None:
            return None, None, None, None
        out = NearRollout(*ctx.saved_tensors)
        grad = torch.zeros_like(out.z) if grad_z is None else grad_z
        by_z, by_u, by_wrench = ctx.problem.gradients(out, grad[:, 1:], grad_impulses)
        return None, by_z + grad[:, 0], by_u, by_wrench if ctx.needs_input_grad[3] else None
