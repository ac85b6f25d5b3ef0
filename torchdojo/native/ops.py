"""The kernel as operators of PyTorch: `torch.ops.torchdojo.rollout`, its adjoint and the Jacobian of a step.

`torch.compile` sees the operators. `Rollout` serves `torch.func`, whose transforms do not pass through the autograd formula of an operator,
and eager rollouts. An operator costs 50 µs more per call, so eager calls do without (engine/kernel.py).
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from torchdojo.gradients.batching import align, map_all
from torchdojo.gradients.request import Request
from torchdojo.gradients.transforms import LastDerivative, forward_mode, save
from torchdojo.native import execution, live, minimal_linearization, operators
from torchdojo.native.cache import Parameters
from torchdojo.native.execution import SERIES, VECTOR, Six, rollout_specs
from torchdojo.native.forward_mode import NO_SECOND_DERIVATIVE, RolloutTangent
from torchdojo.native.kernel import Keep
from torchdojo.native.program import Program, by_number
from torchdojo.native.request import decode
from torchdojo.parameters import broadcast_shapes, transforming
from torchdojo.state.layout import STATE_SIZE, TANGENT_SIZE

__all__ = ["Rollout", "RolloutAdjoint", "of_periods", "totals"]

NO_BATCH = torch.Size()

# -- operators ---------------------------------------------------------------------------------------------------------------------------


@operators.define("rollout")
def rollout_op(
    z: Tensor,
    u: Tensor,
    wrench: Tensor,
    warm: Tensor | None,
    parameters: list[Tensor],
    program: int,
    request: list[float],
    keep: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Trajectory (..., S + 1, 13 nb), impulses, solutions, status, iterations, substeps, of the steps or periods that `keep` asks for.

    Without parameters, the mechanism's own are taken. The last result is their serial number (live.py).
    """
    lowered, asked = by_number(program), decode(request)
    tensors, present = live.given(lowered, asked, parameters)
    out = execution.forward(lowered, asked, Keep(keep), warm, z, u, wrench, tensors, present)
    return *out, torch.tensor(live.serial_of(lowered, present) if keep == Keep.STEPS else live.NOT_KEPT)


@operators.define("rollout_adjoint")
def adjoint_op(
    grad_z: Tensor | None,
    grad_impulses: Tensor | None,
    saved: list[Tensor],
    tensors: list[Tensor],
    program: int,
    request: list[float],
    needs: list[bool],
) -> list[Tensor]:
    """Gradients of the needed `tensors` = z, u, wrench, parameters, with `saved` = trajectory, solutions, status, substeps, serial."""
    *saved, serial = saved
    lowered = by_number(program)
    present = live.kept(lowered, int(serial))
    return execution.backward(lowered, decode(request), needs, (grad_z, grad_impulses), saved, tensors, present)


@operators.define("step_jacobian")
def jacobian_op(
    z: Tensor,
    u: Tensor,
    wrench: Tensor,
    warm: Tensor | None,
    parameters: list[Tensor],
    program: int,
    request: list[float],
) -> Tensor:
    """The Jacobian (..., 12 nb, 12 nb + nu) of one step with u (..., 1, nu). It is not differentiable."""
    lowered, asked = by_number(program), decode(request)
    return execution.linearize(lowered, asked, z, u, wrench, warm, *live.given(lowered, asked, parameters))[0]


@operators.define("minimal_jacobian")
def minimal_jacobian_op(
    q: Tensor,
    qd: Tensor,
    u: Tensor,
    wrench: Tensor,
    warm: Tensor | None,
    parameters: list[Tensor],
    program: int,
    request: list[float],
) -> Tensor:
    """The Jacobian (..., 2n, 2n + nu) of one step in minimal coordinates with u (..., 1, nu). It is not differentiable."""
    lowered, asked = by_number(program), decode(request)
    x = torch.cat((q, qd), dim=-1)
    return minimal_linearization.linearize(lowered, asked, x, u, wrench, warm, *live.given(lowered, asked, parameters))[0]


def _batch_shape(program: Program, request: list[float], z: Tensor, u: Tensor, wrench: Tensor, parameters: Sequence[Tensor]) -> torch.Size:
    if not parameters:
        own_batch = live.batch_of(program, decode(request).driven)
        return broadcast_shapes(z.shape[:-1], u.shape[:-2], wrench.shape[:-1], own_batch)
    leads = [p.shape[: p.ndim - spec.ndim] for p, spec in zip(parameters, program.parameter_specs, strict=True)]
    return broadcast_shapes(z.shape[:-1], u.shape[:-2], wrench.shape[:-1], *leads)


@operators.register_fake(rollout_op)
def _(z, u, wrench, warm, parameters, program, request, keep):  # type: ignore[no-untyped-def]
    lowered = by_number(program)
    batch, periods = _batch_shape(lowered, request, z, u, wrench, parameters), u.shape[-2]
    steps = periods * decode(request).repeat if keep == Keep.STEPS else periods
    status = z.new_empty(*batch, steps, dtype=torch.int64)
    return (
        z.new_empty(*batch, steps + 1, STATE_SIZE * lowered.num_bodies),
        z.new_empty(*batch, periods, lowered.num_impulses),
        z.new_empty(*batch, 1 if keep == Keep.LAST else steps, lowered.num_unknowns),
        status,
        torch.empty_like(status),
        torch.empty_like(status),
        status.new_empty(()),
    )


@operators.register_fake(adjoint_op)
def _(grad_z, grad_impulses, saved, tensors, program, request, needs):  # type: ignore[no-untyped-def]
    return [t.new_empty(t.shape) for t, need in zip(tensors, needs, strict=True) if need]


@operators.register_fake(jacobian_op)
def _(z, u, wrench, warm, parameters, program, request):  # type: ignore[no-untyped-def]
    lowered = by_number(program)
    size = TANGENT_SIZE * lowered.num_bodies
    return z.new_empty(*_batch_shape(lowered, request, z, u, wrench, parameters), size, size + lowered.num_inputs)


@operators.register_fake(minimal_jacobian_op)
def _(q, qd, u, wrench, warm, parameters, program, request):  # type: ignore[no-untyped-def]
    lowered = by_number(program)
    size = 2 * lowered.num_coordinates
    return q.new_empty(*_batch_shape(lowered, request, q, u, wrench, parameters), size, size + lowered.num_inputs)


# -- vmap --------------------------------------------------------------------------------------------------------------------------------


def _map_inputs(
    program: Program, dims: Sequence[int | None], warm: Tensor | None, tensors: Sequence[Tensor], own_batch: torch.Size = NO_BATCH
) -> tuple[Tensor | None, list[Tensor]]:
    """warm and (z, u, wrench, parameters) with mapped dimensions in front of the batch dimensions; dims in the same order.

    own_batch: batch dimensions of parameters that are not among the tensors.
    """
    # The last tensor has nothing but the batch dimensions of such parameters.
    specs, values = [*rollout_specs(program)[: len(tensors)], VECTOR], [*tensors, tensors[0].new_empty(*own_batch, 0)]
    dims = [*dims, None]
    if warm is None:
        return None, align(specs, dims[1:], values)[:-1]
    warm, *values = align([VECTOR, *specs], dims, [warm, *values])
    return warm, values[:-1]


def _own_batch(program: Program, request: list[float], parameters: Sequence[Tensor]) -> torch.Size:
    return NO_BATCH if parameters else live.batch_of(program, decode(request).driven)


def _map_gradients(
    program: Program, size: int, dims: Sequence[int | None], values: Sequence[Tensor | None]
) -> tuple[list[Tensor | None], list[torch.Size]]:
    """(two gradients, four saved, z, u, wrench, parameters), all mapped, and the shapes of z, u, wrench and parameters."""
    specs = [SERIES, SERIES, SERIES, SERIES, VECTOR, VECTOR, *rollout_specs(program)][: len(values)]
    present = [i for i, value in enumerate(values) if value is not None]
    mapped = map_all(size, [dims[i] for i in present], [cast(Tensor, values[i]) for i in present])
    aligned: list[Tensor | None] = [None] * len(values)
    for i, value in zip(present, align([specs[i] for i in present], [0] * len(present), mapped), strict=True):
        aligned[i] = value
    return aligned, [value.shape for value in mapped[len(present) - len(values) + 6 :]]


@operators.register_vmap(rollout_op)
def _(info, in_dims, z, u, wrench, warm, parameters, program, request, keep):  # type: ignore[no-untyped-def]
    lowered = by_number(program)
    dims = [in_dims[3], *in_dims[:3], *in_dims[4]]
    own_batch = _own_batch(lowered, request, parameters)
    warm, (z, u, wrench, *parameters) = _map_inputs(lowered, dims, warm, [z, u, wrench, *parameters], own_batch)
    return rollout_op(z, u, wrench, warm, parameters, program, request, keep), (*(0,) * 6, None)


@operators.register_vmap(jacobian_op)
def _(info, in_dims, z, u, wrench, warm, parameters, program, request):  # type: ignore[no-untyped-def]
    lowered = by_number(program)
    dims = [in_dims[3], *in_dims[:3], *in_dims[4]]
    own_batch = _own_batch(lowered, request, parameters)
    warm, (z, u, wrench, *parameters) = _map_inputs(lowered, dims, warm, [z, u, wrench, *parameters], own_batch)
    return jacobian_op(z, u, wrench, warm, parameters, program, request), 0


@operators.register_vmap(minimal_jacobian_op)
def _(info, in_dims, q, qd, u, wrench, warm, parameters, program, request):  # type: ignore[no-untyped-def]
    lowered = by_number(program)
    # Both q and qd become mapped, so that they keep equal batch dimensions.
    q, qd = map_all(info.batch_size, in_dims[:2], [q, qd])
    dims = [in_dims[4], 0, *in_dims[2:4], *in_dims[5]]
    state = torch.cat((q, qd), dim=-1)
    own_batch = _own_batch(lowered, request, parameters)
    warm, (state, u, wrench, *parameters) = _map_inputs(lowered, dims, warm, [state, u, wrench, *parameters], own_batch)
    return minimal_jacobian_op(*state.chunk(2, dim=-1), u, wrench, warm, parameters, program, request), 0


@operators.register_vmap(adjoint_op)
def _(info, in_dims, grad_z, grad_impulses, saved, tensors, program, request, needs):  # type: ignore[no-untyped-def]
    lowered = by_number(program)
    *saved, serial = saved
    dims = [*in_dims[:2], *in_dims[2][:-1], *in_dims[3]]
    values, shapes = _map_gradients(lowered, info.batch_size, dims, [grad_z, grad_impulses, *saved, *tensors])
    grads = adjoint_op(values[0], values[1], [*values[2:6], serial], values[6:], program, request, needs)
    wanted = [shape for shape, need in zip(shapes, needs, strict=True) if need]
    return [grad.reshape(shape) for grad, shape in zip(grads, wanted, strict=True)], [0] * len(grads)


# -- autograd ----------------------------------------------------------------------------------------------------------------------------


def _save(ctx: Any, output: Six, tensors: Sequence[Tensor]) -> None:
    """Backward keeps the states and the solutions, not the factors."""
    z, _, w, status, iterations, substeps = output
    ctx.mark_non_differentiable(w, status, iterations, substeps)
    ctx.set_materialize_grads(False)
    save(ctx, z, w, status, substeps, *tensors)


def _setup_op(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    z, u, wrench, _, parameters, *ctx.numbers, _ = inputs
    *out, serial = output
    ctx.mark_non_differentiable(serial)
    _save(ctx, cast(Six, tuple(out)), [serial, z, u, wrench, *parameters])


def _backward_op(ctx: Any, grad_z: Tensor | None, grad_impulses: Tensor | None, *_: Any) -> tuple[Any, ...]:
    needs = [*ctx.needs_input_grad[:3], *ctx.needs_input_grad[4]]
    if (grad_z is None and grad_impulses is None) or not any(needs):
        return None, None, None, None, [None] * (len(needs) - 3), None, None, None
    saved = list(ctx.saved_tensors)
    results = iter(adjoint_op(grad_z, grad_impulses, saved[:5], saved[5:], *ctx.numbers, needs))
    grads = [next(results) if need else None for need in needs]
    return *grads[:3], None, grads[3:], None, None, None


def _refuse(*_: Any) -> Any:
    raise RuntimeError(NO_SECOND_DERIVATIVE)


operators.register_autograd(rollout_op, _backward_op, setup_context=_setup_op)
operators.register_autograd(adjoint_op, _refuse)


class Rollout(torch.autograd.Function):
    """(program, request, packed_parameters, warm, z, u, wrench, *parameters) -> the outputs of `rollout_op` for every step.

    The parameters are left out where `packed_parameters` replaces them and no gradient of them is wanted.
    """

    @staticmethod
    def forward(program: Program, request: Request, packed_parameters: Parameters | None, warm: Tensor | None, *tensors: Tensor) -> Six:
        z, u, wrench, *parameters = [t.detach() for t in tensors]
        return execution.forward(
            program, request, Keep.STEPS, None if warm is None else warm.detach(), z, u, wrench, parameters, packed_parameters
        )

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Six) -> None:
        ctx.program, ctx.request, ctx.packed_parameters, _, *tensors = inputs
        _save(ctx, output, tensors)

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> tuple[Tensor | None, ...]:
        return *RolloutTangent.apply(ctx.program, ctx.request, *ctx.saved_tensors, *tangents[4:]), None, None, None, None

    @staticmethod
    def backward(ctx: Any, grad_z: Tensor | None, grad_impulses: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
        needs = tuple(ctx.needs_input_grad[4:])
        if (grad_z is None and grad_impulses is None) or not any(needs):
            return (None,) * (4 + len(needs))
        arguments = ctx.program, ctx.request, ctx.packed_parameters, needs, grad_z, grad_impulses, *ctx.saved_tensors
        if torch.is_grad_enabled() or transforming() or forward_mode():
            return None, None, None, None, *RolloutAdjoint.apply(*arguments)
        return None, None, None, None, *RolloutAdjoint.forward(*arguments)

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[Any, ...],
        program: Program,
        request: Request,
        packed_parameters: Any,
        warm: Tensor | None,
        *tensors: Tensor,
    ) -> tuple[Any, Any]:
        warm, values = _map_inputs(program, in_dims[3:], warm, tensors)
        return Rollout.apply(program, request, None, warm, *values), (0,) * 6


class RolloutAdjoint(LastDerivative):
    """(program, request, packed_parameters, needs, two gradients, four saved, z, u, wrench, *parameters) -> gradients.

    The gradients are those by z, u, wrench and parameters, and None where not needed.
    """

    refusal = NO_SECOND_DERIVATIVE

    @staticmethod
    def forward(
        program: Program, request: Request, packed_parameters: Parameters | None, needs: tuple[bool, ...], *values: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        detached = [None if value is None else value.detach() for value in values]
        saved = cast(list[Tensor], detached[2:])
        results = iter(execution.backward(program, request, needs, detached[:2], saved[:4], saved[4:], packed_parameters))
        return tuple(next(results) if need else None for need in needs)

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[Any, ...],
        program: Program,
        request: Request,
        packed_parameters: Any,
        needs: tuple[bool, ...],
        *values: Tensor | None,
    ) -> tuple[tuple[Tensor | None, ...], tuple[int | None, ...]]:
        if len(needs) > 3 and packed_parameters is not None and packed_parameters.law is not None:
            raise RuntimeError("is_grads_batched: not with ctrl= and parameters that require grad; take one gradient after the other")
        mapped, shapes = _map_gradients(program, info.batch_size, in_dims[4:], values)
        grads = RolloutAdjoint.apply(program, request, None if len(needs) > 3 else packed_parameters, needs, *mapped)
        out = tuple(None if grad is None else grad.reshape(shape) for grad, shape in zip(grads, shapes, strict=True))
        return out, tuple(0 if need else None for need in needs)


# `apply` binds arguments, and computes the signature anew in every call where the function does not store it.
for _forward in (Rollout.forward, RolloutAdjoint.forward):
    setattr(_forward, "__signature__", inspect.signature(_forward))  # noqa: B010  (functions have no such attribute, says mypy)


def of_periods(out: Six, repeat: int, keep_solutions: bool) -> Six:
    """The outputs for periods of `repeat` steps, from those of all steps. Copies let go of the steps inside the periods."""
    z, impulses, w, *counts = out
    if repeat > 1:
        z, w = z[..., ::repeat, :].contiguous(), w[..., repeat - 1 :: repeat, :]
        counts = list(totals(*(t.unflatten(-1, (-1, repeat)) for t in counts)))
    w = w.contiguous() if keep_solutions else w[..., -1:, :].clone()
    return z, impulses, w, *counts  # type: ignore[return-value]


def totals(status: Tensor, iterations: Tensor, substeps: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The worst status of the steps (..., S), and the sums of the others."""
    return status.amax(-1), iterations.sum(-1), substeps.sum(-1)
