"""Copies between the host and a device that does not exist: its tensors are those of the CPU. They arrive as late as a GPU may let them."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from torchdojo.engine.copies import HOST, Copies

POISON = {torch.float64: math.nan, torch.int64: -(2**40)}


class Place:
    """An event: waiting for it lets all copies arrive that were begun before it."""

    def __init__(self, copies: LateCopies, count: int) -> None:
        self.copies, self.count = copies, count

    def synchronize(self) -> None:
        self.copies.waits += 1
        self.copies.arrive(self.count)


class LateCopies(Copies):
    """Copies to the host arrive when an event after them is waited for. Until then, their targets are poisoned.

    A copy to the device is done at once, and its source is looked at again at every later event, and in `check`: whoever writes to that
    memory while the copy might still read it is found.
    """

    def __init__(self) -> None:
        super().__init__(HOST)
        self.pending: list[tuple[Tensor, Tensor] | None] = []  # (what the device had, target)
        self.leaving: list[tuple[Tensor, Tensor]] = []  # (source, what it held)
        self.log: list[str] = []
        self.waits = 0

    def host(self, *shape: Any, dtype: torch.dtype = torch.float64) -> Tensor:
        sizes = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
        return torch.full(tuple(sizes), POISON[dtype], dtype=dtype)

    def to_host(self, source: Tensor, target: Tensor) -> None:
        self.log.append("in")
        self.pending.append((source.clone(), target))

    def to_device(self, source: Tensor, target: Tensor) -> None:
        assert source.is_contiguous() and not source.requires_grad
        self.log.append("out")
        target.copy_(source)
        self.leaving.append((source, source.clone()))

    def event(self) -> Place:
        self.log.append("event")
        self.check()
        return Place(self, len(self.pending))

    def empty(self, shape: Any, dtype: torch.dtype) -> Tensor:
        return torch.full(tuple(shape), POISON[dtype], dtype=dtype)

    def arrive(self, count: int) -> None:
        for i, copy in enumerate(self.pending[:count]):
            if copy is not None:
                copy[1].copy_(copy[0])
                self.pending[i] = None

    def check(self) -> None:
        """Raise if the memory of a copy to the device was written to after the copy began."""
        for source, held in self.leaving:
            assert torch.equal(source.nan_to_num(), held.nan_to_num()), "memory was written to while a copy from it may be in flight"
