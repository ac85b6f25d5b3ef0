"""Checks of what an environment is given: each message says what was received and what is allowed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

__all__ = ["check_action", "check_mask", "check_shard", "counted", "one_from", "positive"]

Choice = TypeVar("Choice")


def counted(name: str, value: Any) -> int:
    """A whole number of 1 or more."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name}: got {value!r}; allowed: a whole number of 1 or more")
    return value


def positive(name: str, value: Any, zero: bool = False) -> float:
    """A finite number above zero, or at zero where allowed."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or value < 0 or (value == 0 and not zero):
        raise ValueError(f"{name}: got {value!r}; allowed: a finite number {'of 0 or more' if zero else 'above 0'}")
    return float(value)


def one_from(name: str, value: Choice, allowed: Sequence[Choice]) -> Choice:
    """One of the allowed values."""
    if value not in allowed:
        raise ValueError(f"{name}: got {value!r}; allowed: {', '.join(map(str, allowed))}")
    return value


def check_action(action: Any, num_envs: int, num_actions: int) -> None:
    """Raise unless the action is a tensor (num_envs, num_actions) of float32 or float64."""
    if not isinstance(action, Tensor) or action.dtype not in (torch.float32, torch.float64):
        kind = action.dtype if isinstance(action, Tensor) else type(action).__name__
        raise TypeError(f"action: got {kind}; allowed: a tensor of torch.float32 or torch.float64; torch.as_tensor(action).float()")
    if action.shape != (num_envs, num_actions):
        raise ValueError(f"action: got shape {tuple(action.shape)}; allowed: ({num_envs}, {num_actions}), environments and actuators")


def check_mask(mask: Any, num_envs: int) -> Tensor:
    """Raise unless the mask is a boolean tensor (num_envs,)."""
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool or mask.shape != (num_envs,):
        got = f"{mask.dtype} {tuple(mask.shape)}" if isinstance(mask, Tensor) else repr(mask)
        raise ValueError(f"mask: got {got}; allowed: a tensor of torch.bool, ({num_envs},)")
    return mask


def check_shard(shard: Any) -> tuple[int, int]:
    """Raise unless this is the number of a process, from 0, and the number of processes."""
    if len(shard) != 2 or not all(isinstance(number, int) for number in shard) or not 0 <= shard[0] < shard[1]:
        raise ValueError(f"shard: got {shard!r}; allowed: (number of this process from 0, number of processes)")
    rank, processes = shard
    return rank, processes
