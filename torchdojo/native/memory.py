"""The memory of the kernel's results: a caller who copies them on chooses it, so that the kernel writes where copies read."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

__all__ = ["allocator", "chosen", "results_in"]

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
