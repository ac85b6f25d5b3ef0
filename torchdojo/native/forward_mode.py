"""Forward mode through the kernel: tangents of a rollout, from its solutions.

The kernel takes the steps. The tangent of each step is T of gradients/implicit.py at the kernel's solution, with the residual of the
reference. So the tangent follows every input: z, u, wrench and all parameters. A step costs about one Newton iteration of the reference,
some milliseconds, and `torch.func.jacfwd` makes a batch of its directions. If only z and u matter, `mech.jacobians` is far faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from torchdojo.dynamics.system import System, select_rows
from torchdojo.gradients.batching import align_given, flatten_batch, halves, map_given
from torchdojo.gradients.implicit import StepTangentFunction
from torchdojo.gradients.linearization import pushforward
from torchdojo.gradients.reference_step import StepOutput, halve, next_state
from torchdojo.gradients.request import Request
from torchdojo.gradients.transforms import LastDerivative
from torchdojo.native.execution import SERIES, VECTOR, rollout_specs
from torchdojo.native.program import Program
from torchdojo.solver.options import Status
from torchdojo.state.layout import split_state
from torchdojo.state.unknowns import NUM_DATA, TIMESTEP

__all__ = ["NO_SECOND_DERIVATIVE", "RolloutTangent"]


NO_SECOND_DERIVATIVE = (
    "torchdojo: second derivatives through the step are not implemented by the compiled kernel, which took it; ask for the reference "
    'with SolverOptions(backend="reference") instead of "auto" or "native", or difference mech.jacobians'
)


class RolloutTangent(LastDerivative):
    """(program, request, trajectory, solutions, status, substeps, z, u, wrench, *parameters, *their tangents) -> tangents.

    The results are the tangents of trajectory and impulses. A given tangent that is None is zero.
    """

    refusal = NO_SECOND_DERIVATIVE

    @staticmethod
    def forward(
        program: Program, request: Request, trajectory: Tensor, w: Tensor, status: Tensor, substeps: Tensor, *values: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        tensors, tangents = halves([None if value is None else value.detach() for value in values])
        directions = [torch.zeros_like(t) if d is None else d for t, d in zip(tensors, tangents, strict=True)]
        batch, steps = trajectory.shape[:-2], status.shape[-1]
        (_, u, wrench, *parameters), _ = flatten_batch(rollout_specs(program), [tensors[0].expand(*batch, -1), *tensors[1:]])
        (moving, du, dwrench, *dparameters), _ = flatten_batch(rollout_specs(program), [directions[0].expand(*batch, -1), *directions[1:]])
        z, w = (t.detach().reshape(batch.numel(), *t.shape[-2:]) for t in (trajectory, w))
        status, substeps = (t.reshape(batch.numel(), steps) for t in (status, substeps))
        states, impulses = [moving], []
        for t in range(steps):
            period = t // request.repeat
            data, change = [z[:, t], u[:, period], wrench, *parameters], [moving, du[:, period], dwrench, *dparameters]
            moving, impulse = _step_tangent(program.system, request, w[:, t], status[:, t], substeps[:, t], data, change)
            states.append(moving)
            impulses.append(impulse)
        path, kicks = torch.stack(states, dim=1), torch.stack(impulses, dim=1)
        kicks = kicks if request.repeat == 1 else kicks.unflatten(1, (-1, request.repeat)).sum(2)
        return path.reshape(*batch, *path.shape[1:]), kicks.reshape(*batch, *kicks.shape[1:])

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], program: Program, request: Request, *values: Tensor | None) -> tuple[Any, Any]:
        specs = [SERIES, SERIES, VECTOR, VECTOR, *rollout_specs(program), *rollout_specs(program)]
        return RolloutTangent.apply(program, request, *align_given(specs, map_given(info.batch_size, in_dims[2:], values))), (0, 0)


def _step_tangent(
    system: System, request: Request, w: Tensor, status: Tensor, substeps: Tensor, data: list[Tensor], change: list[Tensor]
) -> tuple[Tensor, Tensor]:
    """Tangents of the next state (N, 13 nb) and of the impulses of one step.

    `data` are z, u, wrench and parameters (N or 1, ...), and `change` are their tangents.
    """
    solved = status == int(Status.SUCCESS)
    split = solved & (substeps > 1)
    whole = torch.where(split, int(Status.MAX_ITERATIONS), status)
    dw = StepTangentFunction.forward(system, request, w, whole, *data, *change)
    shifts = w.new_zeros(len(w), request.num_shifts(system))
    with torch.enable_grad():
        leaves = [t.detach().requires_grad_() for t in (data[0], torch.cat((w, shifts), dim=-1), data[NUM_DATA + TIMESTEP])]
        z, solution, timestep = leaves
        after = next_state(system, split_state(z).pose, solution, timestep)
        (moved,) = pushforward([after], leaves, [change[0], dw, change[NUM_DATA + TIMESTEP]])
    # A failed step keeps its state as a constant.
    moved, impulses = torch.where((solved & ~split)[:, None], moved, 0.0), dw[:, system.impulse_index]
    rows = split.nonzero().squeeze(-1)
    if len(rows):
        moved[rows], impulses[rows] = _split_tangent(system, request, w[rows], *(_rows(values, rows) for values in (data, change)))
    return moved, impulses


def _rows(values: Sequence[Tensor], rows: Tensor) -> list[Tensor]:
    """z, u, wrench and parameters of the environments `rows`."""
    return [*(value[rows] for value in values[:NUM_DATA]), *select_rows(values[NUM_DATA:], rows)]


def _split_tangent(system: System, request: Request, w: Tensor, data: list[Tensor], change: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Tangents of steps that are split in two, which is rare. The reference takes both halves again."""
    with torch.enable_grad():
        leaves = [t.detach().requires_grad_() for t in data]
        failed = torch.ones(len(w), dtype=torch.bool)
        status = torch.full((len(w),), int(Status.MAX_ITERATIONS))
        whole = StepOutput(leaves[0], w.new_zeros(len(w), len(system.impulse_index)), status, status, w, status)
        out = halve(system, request, leaves, whole, failed, request.options.max_halvings - 1)
        return cast(tuple[Tensor, Tensor], tuple(pushforward([out.z, out.impulses], leaves, change)))
