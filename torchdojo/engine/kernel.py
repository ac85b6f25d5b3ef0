"""The backend of the compiled kernel: the call that takes a step when eager, in transforms, and in compiled code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from torchdojo.elements.actuators import Actuators
from torchdojo.engine.backend import Backend, Trajectory
from torchdojo.engine.feedback import Law
from torchdojo.gradients.reference_step import StepOutput
from torchdojo.gradients.request import Request, StepInputs
from torchdojo.gradients.transforms import forward_mode
from torchdojo.native import execution, maps, minimal_linearization, ops, settled
from torchdojo.native.cache import Parameters
from torchdojo.native.execution import Six
from torchdojo.native.kernel import Keep, Outputs
from torchdojo.native.program import Program
from torchdojo.native.request import encode
from torchdojo.native.step import Step, differentiates, step
from torchdojo.native.tables import StateMap
from torchdojo.native.tape import Tape
from torchdojo.parameters import result_tensor, transforming
from torchdojo.solver.options import OnFailure
from torchdojo.state.layout import TWIST_SIZE
from torchdojo.structure import Structure

__all__ = ["Kernel"]


class Kernel(Backend):
    """The kernel with these parameters. It takes the periods of a request in one call, and the law in its steps if it has one."""

    program: Program
    in_one_call = True

    def __init__(
        self, structure: Structure, program: Program, parameters: Parameters, request: Request, law: Actuators | None = None
    ) -> None:
        super().__init__(structure, parameters.tensors, request)
        self.program, self.parameters, self.law = program, parameters, law

    def having(self, parameters: Sequence[Tensor], request: Request) -> Kernel:
        return Kernel(self.structure, self.program, Parameters(self.program, parameters), request)

    def batch_shapes(self) -> list[torch.Size]:
        return [self.parameters.batch, *([] if self.parameters.law is None else [self.parameters.law.batch])]

    def step(self, given: StepInputs) -> StepOutput:
        parameters = self.parameters
        if not _hidden():
            z, u, wrench, warm = given
            by_data = z.requires_grad or u.requires_grad or (wrench is not None and wrench.requires_grad)
            graph = torch.is_grad_enabled() and (by_data or parameters.requires_grad)
            if parameters.finite and self.request.grad_kappa is None and not graph:
                return step(self.program, self.request, parameters, given)
            if parameters.finite and graph and not parameters.requires_grad and differentiates(self.request):
                return StepOutput(*Step.apply(self.program, self.request, parameters, warm, z, u, wrench))
        states, impulses, w, status, iterations, substeps = self._rollout(given._replace(u=given.u.unsqueeze(-2)), False)
        after = states.select(-2, 1)
        return StepOutput(
            after.clone() if after.requires_grad else after,  # backward keeps the trajectory, and callers may write to theirs
            impulses.select(-2, 0),
            status.select(-1, 0),
            iterations.select(-1, 0),
            w.select(-2, 0).detach(),
            substeps.select(-1, 0),
        )

    def rollout(self, given: StepInputs, keep_solutions: bool = False) -> Trajectory:
        z, impulses, w, status, iterations, substeps = self._rollout(given, keep_solutions)
        u = given.u.expand(*z.shape[:-2], *given.u.shape[-2:])
        return Trajectory(z, u, impulses, status, iterations, substeps, w.detach())

    def _rollout(self, given: StepInputs, keep_solutions: bool) -> Six:
        """The outputs of `ops.rollout_op` for the periods of u (..., P, nu), differentiable in z, u, wrench and parameters.

        The solution belongs to the last step, (..., 1, n), or to the last step of each period.
        """
        program, request, parameters, warm = self.program, self.request, self.parameters, given.warm
        data, less = given.data, Keep.PERIODS if keep_solutions else Keep.LAST
        tensors = [*data, *parameters.tensors]
        if torch.compiler.is_compiling():
            keep = Keep.STEPS if torch.is_grad_enabled() and any(t.requires_grad for t in tensors) else less
            warm = None if warm is None else warm.detach()
            *out, _ = ops.rollout_op(*data, warm, list(parameters.tensors), program.number, encode(request), int(keep))
            six = cast(Six, tuple(out))
            return ops.of_periods(six, request.repeat, keep_solutions) if keep is Keep.STEPS else six
        if _hidden():
            return ops.of_periods(ops.Rollout.apply(program, request, None, warm, *tensors), request.repeat, keep_solutions)
        if torch.is_grad_enabled() and (parameters.requires_grad or any(t.requires_grad for t in data)):
            tensors = tensors if parameters.requires_grad else tensors[:3]
            return ops.of_periods(ops.Rollout.apply(program, request, parameters, warm, *tensors), request.repeat, keep_solutions)
        return execution.forward(program, request, less, warm, *data, parameters.tensors, parameters)

    def rollout_feedback(self, given: StepInputs, law: Law, keep_solutions: bool = False) -> Trajectory:
        z, batch, native = given.z, given.z.shape[:-1], law.native(given.z.shape[:-1])
        applied = z.new_empty(*batch, *native.input.shape[1:])
        parameters = self.parameters
        data = parameters.tensors, parameters, z, applied, given.forces, given.warm
        problem, batch = execution.flat_problem(self.program, self.request, *data)
        keep = Keep.PERIODS if keep_solutions else Keep.LAST
        path, impulses, w, status, iterations, substeps = execution.checked_rollout(problem._replace(feedback=native), keep, batch)
        return Trajectory(path, applied, impulses, status, iterations, substeps, w)

    # -- derivatives ---------------------------------------------------------------------------------------------------------------------

    def jacobian(self, given: StepInputs, out: Tensor | None = None) -> Tensor:
        if _traced():
            return _into(out, ops.jacobian_op(*self._data(given), *self._own()))
        return self._linearized(given, out)[0]

    def linearize(self, given: StepInputs, out: Tensor | None = None) -> tuple[StepOutput, Tensor]:
        return super().linearize(given, out) if _traced() else _with_jacobian(*self._linearized(given, out))

    def minimal_jacobian(self, given: StepInputs, out: Tensor | None = None) -> Tensor:
        if _traced():
            x, *data = self._data(given)
            return _into(out, ops.minimal_jacobian_op(*x.chunk(2, dim=-1), *data, *self._own()))
        return self._minimal(given, out)[1]

    def minimal_linearize(self, given: StepInputs, out: Tensor | None = None) -> tuple[StepOutput, Tensor]:
        return super().minimal_linearize(given, out) if _traced() else self._minimal(given, out)

    def lift(self, q: Tensor, qd: Tensor) -> Tensor:
        x, parameters = torch.cat((q, qd), dim=-1), self.parameters
        if _traced() or not maps.covers(parameters, x):
            return super().lift(q, qd)
        return maps.state_map(self.program, parameters, StateMap.TO_MAXIMAL, lambda y: super(Kernel, self).lift(*y.chunk(2, dim=-1)), x)

    def _linearized(self, given: StepInputs, out: Tensor | None) -> tuple[Tensor, Outputs]:
        z, u, wrench, warm = self._data(given)
        return execution.linearize(self.program, self.request, z, u, wrench, warm, self.parameters.tensors, self.parameters, out)

    def _minimal(self, given: StepInputs, out: Tensor | None) -> tuple[StepOutput, Tensor]:
        parameters = self.parameters
        if parameters.finite and differentiates(self.request):
            solved = settled.linearize_settled(self.program, self.request, parameters, given, out)
            if solved is not None:
                return solved
        x, u, wrench, warm = self._data(given)
        return _with_jacobian(
            *minimal_linearization.linearize(self.program, self.request, x, u, wrench, warm, parameters.tensors, parameters, out)
        )

    def _data(self, given: StepInputs) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """States or coordinates, u (..., 1, nu), wrench and warm start."""
        size = TWIST_SIZE * self.program.num_bodies
        wrench = torch.zeros(size, dtype=given.z.dtype) if given.wrench is None else given.wrench
        return given.z, given.u.unsqueeze(-2), wrench, given.warm

    def _own(self) -> tuple[list[Tensor], int, list[float]]:
        """Parameters, program and request, as operators take them."""
        return list(self.parameters.tensors), self.program.number, encode(self.request)

    # -- memory that stays ---------------------------------------------------------------------------------------------------------------

    def tape(self, horizon: int, count: int) -> Tape | None:
        parameters, request = self.parameters, self.request
        alike = parameters.batch in (torch.Size(), torch.Size((1,)), torch.Size((count,)))
        refused = parameters.law is None or parameters.requires_grad or request.options.on_failure is OnFailure.RAISE
        if refused or not alike or not self.program.tree:
            return None
        return Tape(self.program, parameters, request, horizon, count)


def _traced() -> bool:
    """Whether values of tensors cannot be read."""
    return torch.compiler.is_compiling() or transforming()


def _hidden() -> bool:
    """Whether tensors may be parts of a transform, or carry tangents."""
    return _traced() or forward_mode()


def _into(out: Tensor | None, result: Tensor) -> Tensor:
    return result if out is None else result_tensor(out, result.shape, result).copy_(result)


def _with_jacobian(jacobian: Tensor, solved: Outputs) -> tuple[StepOutput, Tensor]:
    """The results of one step, whose batch dimensions are those of the Jacobian."""
    after = solved.z[:, 1], solved.impulses[:, 0], solved.w[:, 0], solved.status[:, 0], solved.iterations[:, 0], solved.substeps[:, 0]
    z, impulses, w, status, iterations, substeps = (t.reshape((*jacobian.shape[:-2], *t.shape[1:])) for t in after)
    return StepOutput(z, impulses, status, iterations, w, substeps), jacobian
