"""The maps between minimal and maximal states as operators of PyTorch, for `torch.compile`.

Dynamo would take minutes to trace their loops over joints into thousands of nodes. Eager calls and `torch.func` transforms use the
functions of state/minimal.py themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torchdojo.gradients.batching import align
from torchdojo.native.execution import VECTOR, differentiable
from torchdojo.native.forward_mode import NO_SECOND_DERIVATIVE
from torchdojo.native.minimal import bound_tree
from torchdojo.native.program import Program, by_number
from torchdojo.state.layout import STATE_SIZE
from torchdojo.state.minimal import to_maximal, to_minimal
from torchdojo.state.unknowns import TIMESTEP

__all__ = ["tree_map"]

GEOMETRY = ("axis", "parent_anchor", "child_anchor", "orientation_offset")  # the fields of joints that the maps read


def _map(program: int, state: Tensor, parameters: Sequence[Tensor], maximal: bool) -> Tensor:
    lowered = by_number(program)
    order, h = bound_tree(lowered, parameters), parameters[TIMESTEP]
    if maximal:
        q, qd = state.chunk(2, dim=-1)
        return to_maximal(order, lowered.num_bodies, q, qd, h)
    coordinates = torch.cat(to_minimal(order, lowered.num_bodies, state, h), dim=-1)
    return coordinates.expand(_shape(lowered, state, parameters, maximal))


def _shape(program: Program, state: Tensor, parameters: Sequence[Tensor], maximal: bool) -> torch.Size:
    if maximal:
        return torch.Size((*state.shape[:-1], STATE_SIZE * program.num_bodies))
    leads, fields = [state.shape[:-1], parameters[TIMESTEP].shape], program.fields(parameters)
    for group in program.joint_groups:
        leads += [fields[id(group)][name].shape[: -1 - group.fields[name]] for name in GEOMETRY]
    return torch.Size((*torch.broadcast_shapes(*leads), 2 * program.num_coordinates))


@torch.library.custom_op("torchdojo::tree_map", mutates_args=())
def tree_map_op(state: Tensor, parameters: list[Tensor], program: int, maximal: bool) -> Tensor:
    """Map [q, qd] (..., 2n) to z (..., 13 nb) if `maximal`, else z to [q, qd]."""
    return _map(program, state, parameters, maximal).contiguous()


@torch.library.custom_op("torchdojo::tree_map_adjoint", mutates_args=())
def adjoint_op(grad: Tensor, state: Tensor, parameters: list[Tensor], program: int, maximal: bool, needs: list[bool]) -> list[Tensor]:
    """Gradients of the state and of the parameters, for the needed ones alone."""
    with differentiable():
        leaves = [t.detach().requires_grad_(need) for t, need in zip([state, *parameters], needs, strict=True)]
        wanted = [leaf for leaf in leaves if leaf.requires_grad]
        grads = torch.autograd.grad(_map(program, leaves[0], leaves[1:], maximal), wanted, grad, allow_unused=True)
    return [torch.zeros_like(leaf) if part is None else part.clone() for leaf, part in zip(wanted, grads, strict=True)]


@tree_map_op.register_fake
def _(state, parameters, program, maximal):  # type: ignore[no-untyped-def]
    return state.new_empty(_shape(by_number(program), state, parameters, maximal))


@adjoint_op.register_fake
def _(grad, state, parameters, program, maximal, needs):  # type: ignore[no-untyped-def]
    return [t.new_empty(t.shape) for t, need in zip([state, *parameters], needs, strict=True) if need]


@tree_map_op.register_vmap
def _(info, in_dims, state, parameters, program, maximal):  # type: ignore[no-untyped-def]
    specs = [VECTOR, *by_number(program).parameter_specs]
    state, *parameters = align(specs, [in_dims[0], *in_dims[1]], [state, *parameters])
    return tree_map_op(state, parameters, program, maximal), 0


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    state, parameters, *ctx.numbers = inputs
    ctx.save_for_backward(state, *parameters)


def _backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    needs = [ctx.needs_input_grad[0], *ctx.needs_input_grad[1]]
    state, *parameters = ctx.saved_tensors
    results = iter(adjoint_op(grad, state, parameters, *ctx.numbers, needs))
    grads = [next(results) if need else None for need in needs]
    return grads[0], grads[1:], None, None


def _refuse(*_: Any) -> Any:
    raise RuntimeError(NO_SECOND_DERIVATIVE)


tree_map_op.register_autograd(_backward, setup_context=_setup)
adjoint_op.register_autograd(_refuse)


def tree_map(program: Program, parameters: Sequence[Tensor], state: Tensor, maximal: bool) -> Tensor:
    """`to_maximal` of [q, qd] (..., 2n), or `to_minimal` of z (..., 13 nb)."""
    return tree_map_op(state, list(parameters), program.number, maximal)
