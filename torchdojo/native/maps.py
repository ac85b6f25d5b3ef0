"""Functions of states through the kernel (`StateMap` in tables.py), differentiable in the state.

The packed parameters are held: where a parameter needs a derivative, the reference computes the function. Eager calls go to the kernel at
once, or through an autograd Function, which serves `torch.func` and forward mode, too. `torch.compile` sees an operator: Dynamo would take
minutes to trace the reference's loops over joints into thousands of nodes.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from torchdojo.gradients.batching import align, map_all
from torchdojo.gradients.transforms import forward_mode, save
from torchdojo.native import kernel, live, loader, operators
from torchdojo.native.cache import Parameters
from torchdojo.native.execution import VECTOR, differentiable
from torchdojo.native.forward_mode import NO_SECOND_DERIVATIVE
from torchdojo.native.minimal_linearization import bound_tree
from torchdojo.native.program import Program, by_number
from torchdojo.native.tables import Derivative, StateMap
from torchdojo.parameters import broadcast_shapes, transforming
from torchdojo.state.minimal import to_maximal, to_minimal
from torchdojo.state.unknowns import TIMESTEP

__all__ = ["TREE", "compiled_map", "covers", "has_dimensions", "state_map"]

Function = Callable[[Tensor], Tensor]

GEOMETRY = ("axis", "parent_anchor", "child_anchor", "orientation_offset")  # the fields of joints that the maps of a tree read
TREE = (StateMap.TO_MINIMAL, StateMap.TO_MAXIMAL)  # maps of the spanning tree


def covers(parameters: Parameters, state: Tensor) -> bool:
    """Whether a state has the batch dimensions of all parameters.

    Otherwise the shape of a value depends on the parameters that the function reads.
    """
    return has_dimensions(state.shape[:-1], parameters.batch)


def has_dimensions(lead: torch.Size, batch: torch.Size) -> bool:
    """Whether dimensions `lead` keep their shape when they broadcast with `batch`; False where they do not broadcast."""
    return len(batch) <= len(lead) and all(size in (1, lead_size) for lead_size, size in zip(reversed(lead), reversed(batch), strict=False))


def state_map(program: Program, parameters: Parameters, which: StateMap, reference: Function, state: Tensor) -> Tensor:
    """The value (..., size) of a function at `state` (..., size), which `covers` the batch dimensions of the parameters.

    reference: the same function in PyTorch, for derivatives beyond the first.
    """
    if transforming() or forward_mode() or (state.requires_grad and torch.is_grad_enabled()):
        return cast(Tensor, Mapped.apply(program, parameters, which, reference, state))
    return _evaluate(program, parameters, which, Derivative.VALUE, state)


def compiled_map(program: Program, parameters: Sequence[Tensor], which: StateMap, state: Tensor, native: bool) -> Tensor:
    """`state_map` as an operator, for `torch.compile`. It is differentiable in the parameters, too, for the maps of the tree.

    parameters: none for those that the mechanism has when the operator runs, which `state` covers.
    native: whether the kernel computes it, where it can.
    """
    return cast(Tensor, state_map_op(state, list(parameters), program.number, int(which), native)[0])


def _evaluate(
    program: Program, parameters: Parameters, which: StateMap, derivative: Derivative, state: Tensor, along: Tensor | None = None
) -> Tensor:
    lead = state.shape[:-1]
    rows = state.detach() if len(lead) == 1 else state.detach().reshape(lead.numel(), state.shape[-1])
    if along is not None:
        along = along.detach().reshape(lead.numel(), along.shape[-1])
    out = kernel.state_map(program, parameters.rows(lead)[1], which, derivative, rows, along)
    return out if len(lead) == 1 else out.view(*lead, out.shape[-1])


class Mapped(torch.autograd.Function):
    """(program, parameters, which, reference, state) -> value."""

    @staticmethod
    def forward(program: Program, parameters: Parameters, which: StateMap, reference: Function, state: Tensor) -> Tensor:
        return _evaluate(program, parameters, which, Derivative.VALUE, state)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        *ctx.held, state = inputs
        save(ctx, state)

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> Any:
        return Product.apply(*ctx.held, Derivative.PUSH, *ctx.saved_tensors, tangents[4])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled() or transforming() or forward_mode():
            return None, None, None, None, Product.apply(*ctx.held, Derivative.PULL, *ctx.saved_tensors, grad)
        (program, parameters, which, _), (state,) = ctx.held, ctx.saved_tensors
        return None, None, None, None, _evaluate(program, parameters, which, Derivative.PULL, state, grad)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> Any:
        return Mapped.apply(*inputs[:4], inputs[4].movedim(in_dims[4], 0)), 0


class Product(torch.autograd.Function):
    """(program, parameters, which, reference, derivative, state, along) -> the gradient by the state, or the tangent of the value.

    The kernel has first derivatives alone. Derivatives of this product go through the reference.
    """

    @staticmethod
    def forward(
        program: Program,
        parameters: Parameters,
        which: StateMap,
        reference: Function,
        derivative: Derivative,
        state: Tensor,
        along: Tensor,
    ) -> Tensor:
        return _evaluate(program, parameters, which, derivative, state, along)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.product = functools.partial(_product, *inputs[3:5])
        save(ctx, *inputs[5:])

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> Any:
        point = ctx.saved_tensors
        along = tuple(torch.zeros_like(t) if tangent is None else tangent for t, tangent in zip(point, tangents[5:], strict=True))
        return torch.func.jvp(ctx.product, point, along)[1]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, None, None, None, *torch.func.vjp(ctx.product, *ctx.saved_tensors)[1](grad)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> Any:
        return Product.apply(*inputs[:5], *map_all(info.batch_size, in_dims[5:], inputs[5:])), 0


def _product(reference: Function, derivative: Derivative, state: Tensor, along: Tensor) -> Tensor:
    """The gradient, or the tangent, of the reference."""
    if derivative is Derivative.PULL:
        return cast(Tensor, torch.func.vjp(reference, state)[1](along)[0])
    return cast(Tensor, torch.func.jvp(reference, (state,), (along,))[1])


# `apply` binds arguments, and computes the signature anew in every call where the function does not store it.
for _forward in (Mapped.forward, Product.forward):
    setattr(_forward, "__signature__", inspect.signature(_forward))  # noqa: B010  (functions have no such attribute, says mypy)


# -- operators ---------------------------------------------------------------------------------------------------------------------------


def _reference(program: Program, state: Tensor, parameters: Sequence[Tensor], which: int) -> Tensor:
    order, h = bound_tree(program, parameters), parameters[TIMESTEP]
    if which == StateMap.TO_MAXIMAL:
        q, qd = state.chunk(2, dim=-1)
        return to_maximal(order, program.num_bodies, q, qd, h)
    coordinates = torch.cat(to_minimal(order, program.num_bodies, state, h), dim=-1)
    return coordinates.expand(_shape(program, state, parameters, which))


def _shape(program: Program, state: Tensor, parameters: Sequence[Tensor], which: int) -> torch.Size:
    size = program.map_sizes[StateMap(which)][1]
    if which != StateMap.TO_MINIMAL or not parameters:
        return torch.Size((*state.shape[:-1], size))
    leads, fields = [state.shape[:-1], parameters[TIMESTEP].shape], program.fields(parameters)
    for group in program.joint_groups:
        leads += [fields[id(group)][name].shape[: -1 - group.fields[name]] for name in GEOMETRY]
    return torch.Size((*broadcast_shapes(*leads), size))


@operators.define("state_map")
def state_map_op(state: Tensor, parameters: list[Tensor], program: int, which: int, native: bool) -> tuple[Tensor, Tensor]:
    """A function of states; by the kernel if `native`, else by the reference, which has the maps of a tree.

    Without parameters, the mechanism's own are taken. The last result is their serial number (live.py).
    """
    lowered = by_number(program)
    held = Parameters(lowered, parameters) if parameters else live.present(lowered, False)
    serial = torch.tensor(live.NOT_KEPT if parameters else live.serial_of(lowered, held))
    if native and loader.available() and covers(held, state):
        return _evaluate(lowered, held, StateMap(which), Derivative.VALUE, state).contiguous(), serial
    return _reference(lowered, state, held.tensors, which).contiguous(), serial


@operators.define("state_map_adjoint")
def adjoint_op(
    grad: Tensor, serial: Tensor, state: Tensor, parameters: list[Tensor], program: int, which: int, native: bool, needs: list[bool]
) -> list[Tensor]:
    """Gradients of the state and of the parameters, for the needed ones alone."""
    lowered = by_number(program)
    held = live.kept(lowered, int(serial)) or Parameters(lowered, parameters)
    if native and not any(needs[1:]) and loader.available() and covers(held, state):
        return [_evaluate(lowered, held, StateMap(which), Derivative.PULL, state, grad)] if needs[0] else []
    with differentiable():
        leaves = [t.detach().requires_grad_(need) for t, need in zip([state, *parameters], needs, strict=True)]
        wanted = [leaf for leaf in leaves if leaf.requires_grad]
        value = _reference(lowered, leaves[0], leaves[1:], which)
        # Coordinates depend on no mass.
        unused = [None] * len(wanted)
        grads = torch.autograd.grad(value, wanted, grad, allow_unused=True) if value.requires_grad else unused
    return [torch.zeros_like(leaf) if part is None else part.clone() for leaf, part in zip(wanted, grads, strict=True)]


@operators.register_fake(state_map_op)
def _(state, parameters, program, which, native):  # type: ignore[no-untyped-def]
    return state.new_empty(_shape(by_number(program), state, parameters, which)), torch.empty((), dtype=torch.int64)


@operators.register_fake(adjoint_op)
def _(grad, serial, state, parameters, program, which, native, needs):  # type: ignore[no-untyped-def]
    return [t.new_empty(t.shape) for t, need in zip([state, *parameters], needs, strict=True) if need]


@operators.register_vmap(state_map_op)
def _(info, in_dims, state, parameters, program, which, native):  # type: ignore[no-untyped-def]
    specs = [VECTOR, *by_number(program).parameter_specs[: len(parameters)]]
    state, *parameters = align(specs, [in_dims[0], *in_dims[1]], [state, *parameters])
    return state_map_op(state, parameters, program, which, native), (0, None)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    state, parameters, *ctx.numbers = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(output[1], state, *parameters)


def _backward(ctx: Any, grad: Tensor, _: Any) -> tuple[Any, ...]:
    needs = [ctx.needs_input_grad[0], *ctx.needs_input_grad[1]]
    serial, state, *parameters = ctx.saved_tensors
    results = iter(adjoint_op(grad, serial, state, parameters, *ctx.numbers, needs))
    grads = [next(results) if need else None for need in needs]
    return grads[0], grads[1:], None, None, None


def _refuse(*_: Any) -> Any:
    raise RuntimeError(NO_SECOND_DERIVATIVE)


operators.register_autograd(state_map_op, _backward, setup_context=_setup)
operators.register_autograd(adjoint_op, _refuse)
