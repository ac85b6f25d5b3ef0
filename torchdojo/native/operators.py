"""Operators of PyTorch, `torch.ops.torchdojo.NAME`, from Python functions.

`torch.library.custom_op` does the same, but its calls cost 20 µs more. It keeps Dynamo away from the function, which compiled code does not
need, and looks whether results share memory with arguments. The functions here return new tensors.

NAME has the rules of autograd and `torch.vmap`, and beneath them it becomes NAME_values, which has none. Compiled code calls
NAME_values, so it does not go through rules in Python at every call.
"""

from __future__ import annotations

import typing
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._library.autograd import Info, make_autograd_impl
from torch._ops import OpOverload

__all__ = ["define", "register_autograd", "register_fake", "register_vmap", "schema"]

#: annotation -> the same in PyTorch's language
TYPES: dict[Any, str] = {
    Tensor: "Tensor",
    Tensor | None: "Tensor?",
    list[Tensor]: "Tensor[]",
    int: "SymInt",
    float: "float",
    bool: "bool",
    list[float]: "float[]",
    list[bool]: "bool[]",
}

_library = torch.library.Library("torchdojo", "FRAGMENT")


def define(name: str) -> Callable[[Callable[..., Any]], OpOverload]:
    """A decorator that makes a function, whose arguments and results are annotated, an operator."""

    def decorate(function: Callable[..., Any]) -> OpOverload:
        for operator_name in (name, f"{name}_values"):
            _library.define(operator_name + schema(function), tags=(torch.Tag.pt2_compliant_tag,))
            _library.impl(operator_name, function, "CompositeExplicitAutograd")
        operator: OpOverload = getattr(torch.ops.torchdojo, name).default
        return operator

    return decorate


def schema(function: Callable[..., Any]) -> str:
    """The annotations of a function in PyTorch's language, as `torch.library.infer_schema` writes them.

    `infer_schema` of PyTorch 2.6 does not know `list[Tensor]`.
    """
    hints = typing.get_type_hints(function)
    result = hints.pop("return")
    results = [TYPES[each] for each in typing.get_args(result)] if typing.get_origin(result) is tuple else [TYPES[result]]
    arguments = ", ".join(f"{TYPES[hint]} {name}" for name, hint in hints.items())
    return f"({arguments}) -> " + (results[0] if len(results) == 1 else f"({', '.join(results)})")


def register_fake(operator: OpOverload) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator for the function that gives the shapes of the results."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for operator_name in (operator.name(), f"{operator.name()}_values"):
            torch.library.register_fake(operator_name, function, lib=_library)
        return function

    return decorate


def register_vmap(operator: OpOverload) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator for the rule of `torch.vmap`."""
    return torch.library.register_vmap(operator.name(), lib=_library)


def register_autograd(operator: OpOverload, backward: Callable[..., Any], setup_context: Callable[..., Any] | None = None) -> None:
    """The rule of autograd, as for `torch.library.register_autograd`."""
    name = operator.name().partition("::")[2]
    values: OpOverload = getattr(torch.ops.torchdojo, f"{name}_values").default
    _library.impl(name, make_autograd_impl(values, Info(backward, setup_context)), "Autograd", with_keyset=True)
