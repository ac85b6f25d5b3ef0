"""What the vmap rules of the autograd Functions have in common: where mapped dimensions go among the batch dimensions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from torchdojo.dynamics.system import ParameterSpec

__all__ = ["align", "align_given", "loop", "map_all", "map_given", "unbatchable"]


def align(specs: Sequence[ParameterSpec], dims: Sequence[int | None], values: Sequence[Tensor]) -> list[Tensor]:
    """Bring mapped dimensions to the front, in front of equally many batch dimensions, so that ordinary broadcasting does the rest."""
    lead = max(v.ndim - s.ndim - (d is not None) for s, d, v in zip(specs, dims, values, strict=True) if s.batched)
    aligned = []
    for spec, dim, value in zip(specs, dims, values, strict=True):
        if dim is not None:
            value = value.movedim(dim, 0)
            own = value.ndim - 1 - spec.ndim
            value = value.reshape(value.shape[0], *(1,) * (lead - own), *value.shape[1:])
        aligned.append(value)
    return aligned


def map_all(size: int, dims: Sequence[int | None], values: Sequence[Tensor]) -> list[Tensor]:
    """Mapped dimensions at the front of every tensor: gradients are wanted per mapped sample, so what is not mapped is expanded."""
    return [v.expand(size, *v.shape) if d is None else v.movedim(d, 0) for v, d in zip(values, dims, strict=True)]


def map_given(size: int, dims: Sequence[int | None], values: Sequence[Tensor | None]) -> list[Tensor | None]:
    """`map_all` where values may be missing."""
    return [None if value is None else map_all(size, [dim], [value])[0] for value, dim in zip(values, dims, strict=True)]


def align_given(specs: Sequence[ParameterSpec], mapped: Sequence[Tensor | None]) -> list[Tensor | None]:
    """`align` of values mapped at the front, where they may be missing."""
    there = [(spec, value) for spec, value in zip(specs, mapped, strict=True) if value is not None]
    aligned = iter(align([spec for spec, _ in there], [0] * len(there), [value for _, value in there]))
    return [None if value is None else next(aligned) for value in mapped]


def unbatchable(specs: Sequence[ParameterSpec], dims: Sequence[int | None]) -> bool:
    return any(dim is not None and not spec.batched for spec, dim in zip(specs, dims, strict=True))


def loop(
    size: int, dims: Sequence[int | None], values: Sequence[Tensor | None], call: Callable[..., tuple[Tensor | None, ...]]
) -> tuple[Any, ...]:
    """One call per mapped sample: for weights of user-written modules, which have no batch dimension of their own."""
    results = [call(*[v if d is None or v is None else v.select(d, i) for v, d in zip(values, dims, strict=True)]) for i in range(size)]
    return tuple(None if column[0] is None else torch.stack(column) for column in zip(*results, strict=True))
