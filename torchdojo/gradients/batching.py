"""Batch dimensions for the vmap rules of the autograd Functions: where mapped dimensions go among them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from torchdojo.parameters import broadcast_shapes
from torchdojo.state.unknowns import NUM_DATA, ParameterSpec

__all__ = ["align", "align_given", "flatten_batch", "halves", "map_all", "map_given", "map_gradients"]


def flatten_batch(specs: Sequence[ParameterSpec], tensors: Sequence[Tensor]) -> tuple[list[Tensor], torch.Size]:
    """Flatten batch dimensions: z, u and wrench get N rows, parameters N or 1. Also returns the common batch shape."""
    shapes = [t.shape[: t.ndim - s.ndim] for t, s in zip(tensors, specs, strict=True)]
    batch = broadcast_shapes(*shapes)
    flat = []
    for i, (tensor, spec) in enumerate(zip(tensors, specs, strict=True)):
        lead, event = tensor.shape[: tensor.ndim - spec.ndim], tensor.shape[tensor.ndim - spec.ndim :]
        shared = i >= NUM_DATA and lead.numel() == 1
        flat.append(tensor.reshape(1, *event) if shared else tensor.expand(*batch, *event).reshape(batch.numel(), *event))
    return flat, batch


def align(specs: Sequence[ParameterSpec], dims: Sequence[int | None], values: Sequence[Tensor]) -> list[Tensor]:
    """Bring mapped dimensions in front of equally many batch dimensions, so that ordinary broadcasting does the rest."""
    lead = max(v.ndim - s.ndim - (d is not None) for s, d, v in zip(specs, dims, values, strict=True))
    aligned = []
    for spec, dim, value in zip(specs, dims, values, strict=True):
        if dim is not None:
            value = value.movedim(dim, 0)
            num_batch = value.ndim - 1 - spec.ndim
            value = value.reshape(value.shape[0], *(1,) * (lead - num_batch), *value.shape[1:])
        aligned.append(value)
    return aligned


def map_all(size: int, dims: Sequence[int | None], values: Sequence[Tensor]) -> list[Tensor]:
    """Bring mapped dimensions to the front of every tensor. Gradients are wanted per mapped sample, so other tensors are expanded."""
    return [v.expand(size, *v.shape) if d is None else v.movedim(d, 0) for v, d in zip(values, dims, strict=True)]


def map_given(size: int, dims: Sequence[int | None], values: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Apply `map_all` where values may be missing."""
    return [None if value is None else map_all(size, [dim], [value])[0] for value, dim in zip(values, dims, strict=True)]


def align_given(specs: Sequence[ParameterSpec], mapped: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Apply `align` to values that are mapped at the front and may be missing."""
    present = [(spec, value) for spec, value in zip(specs, mapped, strict=True) if value is not None]
    aligned = iter(align([spec for spec, _ in present], [0] * len(present), [value for _, value in present]))
    return [None if value is None else next(aligned) for value in mapped]


def halves(values: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Split values into tensors and their directions, which follow them."""
    middle = len(values) // 2
    return list(values[:middle]), list(values[middle:])


def map_gradients(
    specs: list[ParameterSpec],
    needs: Sequence[bool],
    size: int,
    dims: Sequence[int | None],
    values: Sequence[Tensor | None],
    call: Callable[..., tuple[Tensor | None, ...]],
) -> tuple[tuple[Tensor | None, ...], tuple[int | None, ...]]:
    """The vmap rule of a call (grad_w, w, status, z, u, wrench, *parameters, ...) -> gradients of z, ..., parameters."""
    out_dims = tuple(0 if need else None for need in needs)
    mapped = map_given(size, dims, values)
    lead = [ParameterSpec(1), ParameterSpec(1), ParameterSpec(0)]
    grads = call(*align_given([*lead, *(specs * 2)[: len(values) - 3]], mapped))
    data = cast(list[Tensor], mapped[3 : 3 + len(specs)])
    return tuple(None if grad is None else grad.reshape(value.shape) for grad, value in zip(grads, data, strict=True)), out_dims
