"""Threads in forked processes.

In a forked child the threads of its parent's OpenMP pool do not exist, and GNU's implementation, which torch uses, waits for them forever.
So the first call of a mechanism in such a child sets torch to one thread. A child that calls none keeps its threads.
"""

from __future__ import annotations

import os

import torch

__all__ = ["use_own_threads"]

_inherited: int | None = None  # torch's threads at the fork, until the first call; None in a process that was not forked


def _remember() -> None:
    global _inherited
    _inherited = torch.get_num_threads()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_remember)


def use_own_threads() -> None:
    """In a forked child, set torch to one thread at the first call, unless the child has chosen a number itself."""
    global _inherited
    if _inherited is not None:
        if torch.get_num_threads() == _inherited:
            torch.set_num_threads(1)
        _inherited = None
