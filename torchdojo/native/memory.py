"""The memory of the kernel's results: a caller who copies them on chooses it, so that the kernel writes where copies read.

Large results take their pages anew from the system, which costs more than what the kernel does with them, or use pages again (`UsedPages`).
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

__all__ = ["UsedPages", "allocator", "chosen", "pages", "results_in"]

Allocator = Callable[..., Tensor]  # called as `Tensor.new_empty`: sizes, or one sequence of them, and a dtype

_thread = threading.local()


def allocator(like: Tensor) -> Allocator:
    """The maker of the tensors of results: `like.new_empty`, unless this thread is inside of `results_in`."""
    make: Any = getattr(_thread, "allocator", None)
    return like.new_empty if make is None else make


def chosen() -> bool:
    """Whether this thread is inside of `results_in`: the caller copies results on, and never writes to them."""
    return getattr(_thread, "allocator", None) is not None


@contextlib.contextmanager
def results_in(make: Allocator) -> Iterator[None]:
    """A block in which the kernel's results of this thread lie in tensors from `make`."""
    before = getattr(_thread, "allocator", None)
    _thread.allocator = make
    try:
        yield
    finally:
        _thread.allocator = before


def pages(size: int) -> mmap.mmap:
    """Memory of `size` bytes that the system clears page by page, when they are first written."""
    private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
    return mmap.mmap(-1, size, **private)


def _references(items: list[Any], place: int) -> int:
    return sys.getrefcount(items[place])


_NOBODY = _references([object()], 0)  # references to what a list alone holds


class UsedPages:
    """Memory that results use one after the other. A tensor from `torch.frombuffer` holds its memory for as long as a view of it lives."""

    def __init__(self, most: int, clear: Callable[[int, int], int] | None = None) -> None:
        """most: how many pieces of memory are kept, in use or not. clear(address, bytes): sets memory to zero, or returns that it did not.
        Without it, memory has any contents."""
        self.most = most
        self.clear = clear
        self.kept: list[mmap.mmap] = []
        self.lock = threading.Lock()

    def take(self, size: int) -> mmap.mmap:
        """Memory of `size` bytes that nobody else has."""
        with self.lock:
            for place in range(len(self.kept)):
                if len(self.kept[place]) == size and _references(self.kept, place) == _NOBODY:
                    used = self.kept.pop(place)
                    if self.clear is None or self.clear(ctypes.addressof(ctypes.c_char.from_buffer(used)), size):
                        self.kept.append(used)
                        return used
                    break
            memory = pages(size)
            if self.clear is None and hasattr(mmap, "MADV_HUGEPAGE"):
                with contextlib.suppress(OSError):  # a kernel without them
                    memory.madvise(mmap.MADV_HUGEPAGE)
            self.kept = [*self.kept, memory][-self.most :]
            return memory
