"""Copies between a device and the host, in the order of the device's current stream: all that staging asks of a device.

`Copies` is what a test replaces. `tests/late_copies.py` has copies that arrive late, in memory that is poisoned until then. So a
machine without a GPU finds a wait that is missing.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

__all__ = ["HOST", "Copies", "CudaCopies", "Event", "copies_for"]

HOST = torch.device("cpu")

#: [bytes] Larger tensors of the host are not pinned: the system would lose them for anything else, and pinning takes 0.2 ms per MB.
LARGEST = 256 * 2**20


class Event(Protocol):
    """A place in the order of copies."""

    def synchronize(self) -> None:
        """Wait until all that came before has been done."""


class Copies(abc.ABC):
    """Copies between `device` and the host. They run while the host goes on, in the order in which they are asked for.

    A copy to the host may be read after an event that came later has been waited for. A copy from the host reads its source at any later
    time. Nobody writes to that source again, and its memory goes to no one else before the copy is done, whatever becomes of the tensor.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device

    @abc.abstractmethod
    def host(self, *shape: Any, dtype: torch.dtype = torch.float64) -> Tensor:
        """Memory of the host that copies read and write while the host goes on; arguments as of `Tensor.new_empty`."""

    @abc.abstractmethod
    def to_host(self, source: Tensor, target: Tensor) -> None:
        """Begin to copy a tensor of the device into one of `host`."""

    @abc.abstractmethod
    def to_device(self, source: Tensor, target: Tensor) -> None:
        """Begin to copy a contiguous tensor of the host into one of the device."""

    @abc.abstractmethod
    def event(self) -> Event:
        """The present place in the order of copies."""

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Memory of the device."""
        return torch.empty(shape, dtype=dtype, device=self.device)


class CudaCopies(Copies):
    """Copies on the current stream of a CUDA device.

    PyTorch keeps pinned memory: `torch.empty(pin_memory=True)` takes what earlier calls gave back. With each copy that does not block, it
    notes the stream, and gives the memory to no one before the copy is done.
    """

    def host(self, *shape: Any, dtype: torch.dtype = torch.float64) -> Tensor:
        sizes = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
        small = torch.Size(sizes).numel() * dtype.itemsize <= LARGEST
        return torch.empty(sizes, dtype=dtype, pin_memory=small)

    def to_host(self, source: Tensor, target: Tensor) -> None:
        target.copy_(source, non_blocking=True)

    def to_device(self, source: Tensor, target: Tensor) -> None:
        target.copy_(source, non_blocking=True)

    def event(self) -> Event:
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self.device))
        return event


def copies_for(device: torch.device) -> Copies:
    """The copies to and from a device.

    Raises:
        TypeError: not a CUDA device.
    """
    if device.type != "cuda":
        raise TypeError(f"z: on {device}; allowed: tensors on the CPU, or on a CUDA device, from where they are copied to the kernel")
    return CudaCopies(device)
