"""Forward mode through the kernel: tangents of a rollout, from its solutions.

The kernel takes the steps. The tangent of each is T of autodiff.py at the solution that the kernel found, with the residual of the
reference, so that it follows every input: z, u, wrench and all parameters. That costs about one Newton iteration of the reference per step,
some milliseconds, and `torch.func.jacfwd` makes a batch of its directions; `mech.jacobians` is far faster where z and u are all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn, cast

import torch
from torch import Tensor

from torchdojo.dynamics.integrator import split_state
from torchdojo.dynamics.system import ParameterSpec
from torchdojo.gradients.batching import align_given, map_given
from torchdojo.gradients.implicit import StepSettings, StepTangentFunction, flatten_batch, halves, pushforward
from torchdojo.gradients.reference_step import StepOutput, halve, next_state
from torchdojo.native.execution import SERIES, VECTOR, Settings
from torchdojo.solver.options import Status

__all__ = ["RolloutTangent", "refuse_second_derivative"]


def refuse_second_derivative() -> NoReturn:
    raise RuntimeError(
        "torchdojo: second derivatives through the step are not implemented by the compiled kernel, which took it; ask for the reference "
        'with SolverOptions(backend="reference") instead of "auto" or "native", or difference mech.jacobians'
    )


class RolloutTangent(torch.autograd.Function):
    """(settings, trajectory, solutions, status, substeps, z, u, wrench, *parameters, *their tangents) -> tangents of trajectory, impulses.

    Tangents that are None are zero.
    """

    @staticmethod
    def forward(
        settings: Settings, trajectory: Tensor, w: Tensor, status: Tensor, substeps: Tensor, *values: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        tensors, given = halves([None if value is None else value.detach() for value in values])
        directions = [torch.zeros_like(t) if d is None else d for t, d in zip(tensors, given, strict=True)]
        batch, steps = trajectory.shape[:-2], status.shape[-1]
        (_, u, wrench, *parameters), _ = flatten_batch(settings.specs, [tensors[0].expand(*batch, -1), *tensors[1:]])
        (moving, du, dwrench, *dparameters), _ = flatten_batch(settings.specs, [directions[0].expand(*batch, -1), *directions[1:]])
        z, w = (t.detach().reshape(batch.numel(), *t.shape[-2:]) for t in (trajectory, w))
        status, substeps = (t.reshape(batch.numel(), steps) for t in (status, substeps))
        states, impulses = [moving], []
        for t in range(steps):
            data, change = [z[:, t], u[:, t], wrench, *parameters], [moving, du[:, t], dwrench, *dparameters]
            moving, impulse = _step_tangent(settings.reference, w[:, t], status[:, t], substeps[:, t], data, change)
            states.append(moving)
            impulses.append(impulse)
        path, kicks = torch.stack(states, dim=1), torch.stack(impulses, dim=1)
        return path.reshape(*batch, *path.shape[1:]), kicks.reshape(*batch, *kicks.shape[1:])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        pass

    @staticmethod
    def jvp(ctx: Any, *_: Any) -> Any:
        refuse_second_derivative()

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        refuse_second_derivative()

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], settings: Settings, *values: Tensor | None) -> tuple[Any, Any]:
        specs = [SERIES, SERIES, VECTOR, VECTOR, *settings.specs, *settings.specs]
        return RolloutTangent.apply(settings, *align_given(specs, map_given(info.batch_size, in_dims[1:], values))), (0, 0)


def _step_tangent(
    settings: StepSettings, w: Tensor, status: Tensor, substeps: Tensor, data: list[Tensor], change: list[Tensor]
) -> tuple[Tensor, Tensor]:
    """Tangents of the next state (N, 13 nb) and of the impulses of one step, from z, u, wrench and parameters (N or 1, ...) and theirs."""
    system, solved = settings.system, status == int(Status.SUCCESS)
    split = solved & (substeps > 1)
    whole = torch.where(split, int(Status.MAX_ITERATIONS), status)
    dw = StepTangentFunction.forward(settings, w, whole, *data, *change)
    shifts = w.new_zeros(len(w), settings.num_shifts)
    with torch.enable_grad():
        leaves = [t.detach().requires_grad_() for t in (data[0], torch.cat((w, shifts), dim=-1), data[3])]
        z, solution, timestep = leaves
        after = next_state(system, split_state(z).pose, solution, timestep)
        (moved,) = pushforward([after], leaves, [change[0], dw, change[3]])
    index = [k for piece in system.impulse_layout.values() for k in range(piece.start, piece.stop)]
    # A failed step keeps its state as a constant.
    moved, impulses = torch.where((solved & ~split)[:, None], moved, 0.0), dw[:, index]
    rows = split.nonzero().squeeze(-1)
    if len(rows):
        moved[rows], impulses[rows] = _split_tangent(settings, w[rows], *(_rows(settings, values, rows) for values in (data, change)))
    return moved, impulses


def _rows(settings: StepSettings, values: Sequence[Tensor], rows: Tensor) -> list[Tensor]:
    """z, u, wrench and parameters of the environments `rows`."""
    specs: list[ParameterSpec] = settings.specs
    return [v[rows] if i < 3 or (spec.batched and len(v) > 1) else v for i, (v, spec) in enumerate(zip(values, specs, strict=True))]


def _split_tangent(settings: StepSettings, w: Tensor, data: list[Tensor], change: list[Tensor]) -> tuple[Tensor, Tensor]:
    """The same of steps that were split in two: both halves are taken again, by the reference. Rare."""
    with torch.enable_grad():
        leaves = [t.detach().requires_grad_() for t in data]
        failed = torch.ones(len(w), dtype=torch.bool)
        count = sum(piece.stop - piece.start for piece in settings.system.impulse_layout.values())
        status = torch.full((len(w),), int(Status.MAX_ITERATIONS))
        whole = StepOutput(leaves[0], w.new_zeros(len(w), count), status, status, w, status)
        out = halve(settings, leaves, whole, failed, settings.options.max_halvings - 1)
        return cast(tuple[Tensor, Tensor], tuple(pushforward([out.z, out.impulses], leaves, change)))
