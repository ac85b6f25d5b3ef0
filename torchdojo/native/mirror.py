"""Packed parameters of a mechanism whose numbers are on a GPU: a copy on the host, made anew when a number has changed."""

from __future__ import annotations

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
        self._last: tuple[Tensor, list[torch.Size], Mirrored] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Mirror, ()

    def get(self, program: Program, mechanism: PhysicalModule, stack: Callable[[], Sequence[Tensor]]) -> Mirrored:
        """The parameters of now.

        All numbers are compared with those of the copy, on the device: one kernel, and a wait that the states need anyway. Nothing else
        would see what is written to `parameter.data`.
        """
        tensors = None if torch.compiler.is_compiling() or transforming() or forward_mode() else _plain(modules_of(program, mechanism))
        if tensors is None:
            return _copied(program, stack())
        flat, shapes = torch.cat([t.detach().reshape(-1) for t in tensors]), [t.shape for t in tensors]
        last = self._last
        if last is None or last[1] != shapes or not torch.equal(last[0], flat):
            with torch.no_grad():
                last = self._last = flat, shapes, _copied(program, stack())
        return last[2]


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
