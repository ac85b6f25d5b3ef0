"""Checks of what an environment is given: each message says what was received and what is allowed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

if TYPE_CHECKING:
    from torchdojo.envs.motion import EnvState, Motion
    from torchdojo.solver.options import SolverOptions

__all__ = [
    "check_action", "check_kappa", "check_mask", "check_memory", "check_methods", "check_results", "check_shard", "check_start",
    "counted", "one_from", "positive",
]  # fmt: skip

Choice = TypeVar("Choice")


def counted(name: str, value: Any, zero: bool = False) -> int:
    """A whole number of 1 or more, or of 0 or more."""
    least = 0 if zero else 1
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name}: got {value!r}; allowed: a whole number of {least} or more")
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


def check_memory(name: str, memory: Any, shape: tuple[int, ...]) -> None:
    """Raise unless a memory is a tensor of finite float64 of this shape, (B, m)."""
    good = isinstance(memory, Tensor) and memory.dtype == torch.float64 and tuple(memory.shape) == shape and len(shape) == 2
    if not good or not bool(torch.isfinite(memory).all()):
        got = f"{memory.dtype} {tuple(memory.shape)}" if isinstance(memory, Tensor) else type(memory).__name__
        wanted = ", ".join([*map(str, shape), *["m"] * (2 - len(shape))])
        raise ValueError(f"{name} gave {got}; allowed: finite torch.float64, ({wanted})")


def check_results(name: str, count: int, obs: Tensor, parts: Mapping[str, Tensor], terminated: Tensor) -> None:
    """Raise unless observation, parts of the reward and ends of episodes of an environment have the right types and shapes."""
    results = {**{f"reward {part!r}": value for part, value in parts.items()}, "terminated": terminated}
    for label, result in results.items():
        if result.shape != (count,) or (label == "terminated") != (result.dtype == torch.bool):
            kind = "torch.bool" if label == "terminated" else "floating point"
            raise ValueError(f"{name}: {label} is {result.dtype} {tuple(result.shape)}; allowed: {kind}, ({count},)")
    if obs.ndim != 2 or not bool(torch.isfinite(obs).all()):
        raise ValueError(f"{name}: observe gave {tuple(obs.shape)}; allowed: finite numbers, ({count}, n)")


def check_methods(env: Any, name: str, motion: Motion) -> tuple[Tensor, Mapping[str, Tensor]]:
    """Observation of starts and parts of their reward; raises unless all methods of an environment return the right types and shapes."""
    check_memory(f"{name}: memories", motion.memory, (len(motion.z), *motion.memory.shape[1:2]))
    check_memory(f"{name}: remember", env.remember(motion, motion, motion.memory), tuple(motion.memory.shape))
    if env.resample and not motion.goal.shape[-1]:
        raise ValueError(f"resample: got {env.resample} for {name}, which has no goals; allowed: 0; override goals(count)")
    obs, parts = env._observe(motion), env._parts(env.reward(motion, motion, motion.action))
    check_results(name, len(motion.z), obs, parts, env.terminated(motion))
    return obs, parts


def check_start(z: Tensor, goal: Tensor, now: EnvState) -> None:
    """Raise unless states and goals of starts have the shapes that an environment has now."""
    if z.shape != now.z.shape or goal.shape != now.goal.shape:
        raise ValueError(
            f"reset: got z {tuple(z.shape)} and goal {tuple(goal.shape)}; allowed: {tuple(now.z.shape)} and {tuple(now.goal.shape)}"
        )


def check_shard(shard: Any) -> tuple[int, int]:
    """Raise unless this is the number of a process, from 0, and the number of processes."""
    if len(shard) != 2 or not all(isinstance(number, int) for number in shard) or not 0 <= shard[0] < shard[1]:
        raise ValueError(f"shard: got {shard!r}; allowed: (number of this process from 0, number of processes)")
    rank, processes = shard
    return rank, processes


def check_kappa(name: str, kappa: float, options: SolverOptions) -> SolverOptions:
    """Raise if the options of a mechanism have gradients at a smaller kappa than its environment."""
    if options.grad_kappa is not None and options.grad_kappa < kappa:
        raise ValueError(
            f"kappa: {name} has {kappa}, and the options of its mechanism have grad_kappa={options.grad_kappa}; allowed: a kappa of at "
            "most that, kappa=..., or mech.options = dataclasses.replace(mech.options, grad_kappa=None)"
        )
    return options
