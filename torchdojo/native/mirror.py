"""Packed parameters of a mechanism whose numbers are on a GPU: a copy on the host, made anew when a number has changed."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchdojo.gradients.transforms import forward_mode
from torchdojo.native.cache import Parameters, modules_of
from torchdojo.native.program import Program
from torchdojo.parameters import PhysicalModule, transforming

__all__ = ["Mirror", "Mirrored"]


class Mirrored(NamedTuple):
    """Parameters on the host, and the stacked numbers on the device from which they come."""

    parameters: Parameters
    stacked: Sequence[Tensor]


class Mirror:
    """The last `Mirrored` of a mechanism. Copies and unpickled ones are empty."""

    def __init__(self) -> None:
        self._last: Held | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Mirror, ()

    def get(self, program: Program, mechanism: PhysicalModule, stack: Callable[[], Sequence[Tensor]]) -> Mirrored:
        """The present parameters.

        All numbers are compared with the copy, on the device: two kernels, and a wait that the states need anyway. Nothing else would see
        writes to `parameter.data`.
        """
        tensors = None if torch.compiler.is_compiling() or transforming() or forward_mode() else _plain(modules_of(program, mechanism))
        if tensors is None:
            return _copied(program, stack())
        last = self._last
        if last is None or not last.holds(tensors):
            with torch.no_grad():
                last = self._last = Held(tensors, _copied(program, stack()))
        return last.mirrored


class Held:
    """Tensors, a copy of the numbers that they had, and the parameters made of them."""

    def __init__(self, tensors: Sequence[Tensor], mirrored: Mirrored) -> None:
        self.mirrored = mirrored
        self._tensors, self._places = tensors, [t.data_ptr() for t in tensors]
        self._rows = [t.detach().reshape(-1) for t in tensors]  # views, where tensors are contiguous
        self._views = all(row.data_ptr() == place for row, place in zip(self._rows, self._places, strict=True))
        self._numbers = torch.cat(self._rows)

    def holds(self, tensors: Sequence[Tensor]) -> bool:
        """Whether these are the same tensors, with the same numbers."""
        same = self._views and len(tensors) == len(self._tensors) and all(map(operator.is_, tensors, self._tensors))
        return same and [t.data_ptr() for t in tensors] == self._places and torch.equal(torch.cat(self._rows), self._numbers)


def _copied(program: Program, stacked: Sequence[Tensor]) -> Mirrored:
    return Mirrored(Parameters(program, [t.to("cpu") for t in stacked]), stacked)


def _plain(modules: Sequence[PhysicalModule]) -> list[Tensor] | None:
    """The numbers of modules; None where some are computed, carry a graph, or require grad where gradients are enabled."""
    tensors: list[Tensor] = []
    for module in modules:
        for name in module.fields:
            tensor = module._parameters.get(name)
            if tensor is None or (tensor.requires_grad and torch.is_grad_enabled()):
                return None
            tensors.append(tensor)
    return tensors
