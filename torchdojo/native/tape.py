"""Control periods one after another with what their adjoints need, for loops that differentiate by themselves (envs/segment.py).

Every period is one call of the kernel, in memory that is allocated once. So a call costs 10 µs in Python.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from torchdojo.gradients.request import Request
from torchdojo.native import calls, kernel
from torchdojo.native.cache import Parameters
from torchdojo.native.execution import flat_problem
from torchdojo.native.program import Program
from torchdojo.native.tables import Derivative, StateMap
from torchdojo.state.layout import STATE_SIZE

__all__ = ["Tape"]

BYTES = 8  # size of a number


class Tape:
    """H periods of N environments under controls, none of them differentiable.

    parameters: with a law, as of `Backends.stepper`. They stay as they are at construction.

    Attributes:
        z: (H, N, repeat, 13 nb) states after every step. impulses: (H, N, ni), sums of periods. w: (H, N, repeat, num_unknowns).
        status, iterations, substeps: (H, N, repeat).
    """

    def __init__(self, program: Program, parameters: Parameters, request: Request, horizon: int, count: int) -> None:
        state, law = STATE_SIZE * program.num_bodies, parameters.law
        if law is None:
            raise ValueError("Tape: got parameters without the law of actuators; give those of Backends.stepper(request, law)")
        new, repeat = torch.empty, request.repeat
        self.controls, double = len(law.table), torch.float64
        self.z = new(horizon, count, repeat, state, dtype=double)
        self.impulses = new(horizon, count, program.num_impulses, dtype=double)
        self.w = new(horizon, count, repeat, program.num_unknowns, dtype=double)
        self.status, self.iterations, self.substeps = (new(horizon, count, repeat, dtype=torch.int64) for _ in range(3))
        self._inputs: list[tuple[Tensor, Tensor, Tensor]] = []
        self._upstream = torch.zeros(count, repeat, state, dtype=double) if repeat > 1 else None
        blank = new(count, state, dtype=double), new(count, 1, self.controls, dtype=double), new(6 * program.num_bodies, dtype=double)
        problem, _ = flat_problem(program, request, parameters.tensors, parameters, *blank, None)
        results = tuple(value[0] for value in (self.z, self.impulses, self.w, self.status, self.iterations, self.substeps))
        self._call = kernel.Call(problem, kernel.Outputs(*results))
        self._arguments: Any = self._call.arguments
        self._arguments.wrench, self._arguments.z_stride = None, repeat * state
        self._places = [(value.data_ptr(), BYTES * value[0].numel()) for value in self._results]
        self._packed, sizes = problem.packed, program.map_sizes[StateMap.TO_MINIMAL]
        assert self._packed is not None
        values = self._packed.values
        self._map: Any = calls.Map(
            map=StateMap.TO_MINIMAL,
            environments=count,
            threads=torch.get_num_threads(),
            parameters=values.data_ptr(),
            parameter_stride=values.shape[1] if len(values) > 1 else 0,
        )
        self._map_sizes, self._map_address = sizes, ctypes.byref(self._map)

    @property
    def _results(self) -> tuple[Tensor, ...]:
        return self.z, self.impulses, self.w, self.status, self.iterations, self.substeps

    def _at(self, t: int, z: Tensor, control: Tensor, warm: Tensor) -> None:
        arguments, places = self._arguments, [start + t * size for start, size in self._places]
        arguments.z, arguments.impulses, arguments.w, arguments.status, arguments.iterations, arguments.substeps = places
        arguments.z0, arguments.u, arguments.warm = z.data_ptr(), control.data_ptr(), warm.data_ptr()

    def step(self, t: int, z: Tensor, control: Tensor, warm: Tensor) -> tuple[Tensor, ...]:
        """Period t, after period t − 1, from z (N, 13 nb) with the warm start (N, num_unknowns).

        Returns z, impulses and solution at its end, and status, iterations and substeps (N, repeat) of its steps.
        """
        del self._inputs[t:]
        # Inputs are kept without their graph. It may lead back to this tape, and no garbage collector sees a circle through autograd.
        self._inputs.append((z.detach().contiguous(), control.detach().contiguous(), warm.detach().contiguous()))
        self._at(t, *self._inputs[t])
        call = self._call
        call.kernel.td_rollout(call.handle, call.options, call.rollout)
        return self.z[t, :, -1], self.impulses[t], self.w[t, :, -1], self.status[t], self.iterations[t], self.substeps[t]

    def pull(self, t: int, grad_z: Tensor, grad_impulses: Tensor | None) -> tuple[Tensor, Tensor]:
        """Gradients by z and control of period t, from those of its last state (N, 13 nb) and of its impulses (N, ni), contiguous."""
        z, control, _ = inputs = self._inputs[t]
        self._at(t, *inputs)
        by_z, by_control = torch.empty_like(z), torch.zeros_like(control)
        if self._upstream is not None:
            self._upstream[:, -1] = grad_z
            grad_z = self._upstream
        gradient = calls.Gradient(
            grad_z=grad_z.data_ptr(),
            grad_z_stride=grad_z[0].numel(),
            grad_impulses=None if grad_impulses is None else grad_impulses.data_ptr(),
            grad_z0=by_z.data_ptr(),
            grad_u=by_control.data_ptr(),
        )
        call = self._call
        call.kernel.td_rollout_adjoint(call.handle, call.options, call.rollout, ctypes.byref(gradient))
        return by_z, by_control

    def coordinates(self, z: Tensor) -> Tensor:
        """Joint coordinates and rates (N, 2n) of z (N, 13 nb), as from `Mechanism.to_minimal`."""
        return self._mapped(Derivative.VALUE, z.contiguous(), None)

    def pull_coordinates(self, z: Tensor, grad: Tensor) -> Tensor:
        """The gradient by z from that by its coordinates and rates (N, 2n)."""
        return self._mapped(Derivative.PULL, z.contiguous(), grad)

    def _mapped(self, derivative: Derivative, z: Tensor, along: Tensor | None) -> Tensor:
        out = z.new_empty(len(z), self._map_sizes[1 if along is None else 0])
        arguments = self._map
        setattr(arguments, "in", z.data_ptr())
        arguments.derivative, arguments.along, arguments.out = derivative, None if along is None else along.data_ptr(), out.data_ptr()
        self._call.kernel.td_map(self._call.handle, self._map_address)
        return out
