"""Elements whose own tensors, weights of a network say, differ between environments.

Physical fields have batch dimensions, and elements read them so. A tensor that a user registers has the shape that the user's code expects,
and no more. Where it differs between environments, inside `torch.func.vmap` or in differences of the step, the element is mapped: each
environment sees its own value. Code that cannot be mapped, because it decides by values of tensors, runs environment by environment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from torchdojo.elements.element import Element
from torchdojo.parameters import bind

__all__ = ["bind_environments"]

#: Methods of elements that a step calls with batch dimensions.
METHODS = ("residual", "start", "effective_mass", "on_path", "at_limit", "impact", "distance")


def bind_environments(template: Element, tensors: Mapping[str, Tensor], own: Mapping[str, int], cls: type[Element]) -> Element:
    """A clone of `template`, of class `cls`, that reads `tensors`.

    Args:
        tensors: physical fields, (N or 1, E, ...), and the tensors named in `own`, with one leading dimension, N or 1, or with none.
        own: name -> dimensions of one value.
    """
    leading = {name for name, ndim in own.items() if tensors[name].ndim > ndim}
    counts = {len(tensors[name]) for name in leading} - {1}
    one = {name: tensors[name][0] if len(tensors[name]) else tensors[name].new_zeros(tensors[name].shape[1:]) for name in leading}
    element: Element = bind(template, {**tensors, **one}, cls)
    if counts - {0}:
        mapped = {name: _mapped(name, cls) for name in METHODS if getattr(cls, name, None) is not getattr(Element, name, None)}
        element.__class__ = type(cls.__name__, (cls,), mapped)
        element.__dict__["_per_environment"] = {name: value for name, value in tensors.items() if name not in own or name in leading}
    return element


def _mapped(name: str, cls: type[Element]) -> Callable[..., Any]:
    """The method `name` of `cls` for arguments with the environments in front, (N or 1, ...)."""

    def method(self: Element, *args: Any) -> Any:
        leaves, layout = pytree.tree_flatten((args, self.__dict__["_per_environment"]))
        count = max(len(leaf) for leaf in leaves if isinstance(leaf, Tensor))
        places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and len(leaf) == count]
        shared = [leaf[0] if isinstance(leaf, Tensor) and i not in places else leaf for i, leaf in enumerate(leaves)]

        def single(*values: Tensor) -> Any:
            every = list(shared)
            for i, value in zip(places, values, strict=True):
                every[i] = value
            own_args, numbers = pytree.tree_unflatten(every, layout)
            return getattr(bind(self, numbers, cls), name)(*own_args)

        values = [leaves[i] for i in places]
        try:
            return torch.func.vmap(single, randomness="different")(*values)
        except (RuntimeError, ValueError):
            results = [pytree.tree_flatten(single(*(value[i] for value in values))) for i in range(count)]
            columns = zip(*(flat for flat, _ in results), strict=True)
            return pytree.tree_unflatten([torch.stack(c) if isinstance(c[0], Tensor) else c[0] for c in columns], results[0][1])

    return method
