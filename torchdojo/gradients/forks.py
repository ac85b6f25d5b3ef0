"""Threads in forked processes.

A forked child lacks the threads of its parent's OpenMP pool. GNU's implementation, which torch and the kernel use, waits for them forever.
So a child steps with one thread, unless it chooses a number itself. Processes that do not step keep their threads.
"""

from __future__ import annotations

import os

import torch

__all__ = ["step_threads", "use_step_threads"]

_inherited: int | None = None  # torch's number of threads at the fork; None in a process that is no fork


def _remember() -> None:
    global _inherited
    _inherited = torch.get_num_threads()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_remember)


def step_threads() -> int:
    """How many threads a step may use in this process."""
    threads = torch.get_num_threads()
    return 1 if threads == _inherited else threads


def use_step_threads() -> None:
    """Set torch's number of threads to `step_threads()`, for steps that torch itself computes."""
    if _inherited is not None and (threads := step_threads()) != torch.get_num_threads():
        torch.set_num_threads(threads)
