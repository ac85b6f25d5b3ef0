"""Environments for policies on a GPU: robots and rewards stay on the host, actions come from the device, and observations go there."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchdojo.envs.env import Env
from torchdojo.envs.motion import EnvStep

__all__ = ["OnDevice"]

HOST = torch.device("cpu")


class OnDevice:
    """An environment that takes actions from a device, and returns observations, rewards and ends of episodes there.

    Gradients pass through the copies. The state stays on the host, where the kernel steps, and where observations and rewards are computed
    from it: less travels than a state. Other attributes, `state` or `statistics` say, are those of `env`. A `Segment` does not take it:
    there, policy and environment are one function.

    Args:
        env: the environment. device: of the policy.

    Raises:
        TypeError: not an `Env`.
    """

    def __init__(self, env: Env, device: torch.device | str) -> None:
        if not isinstance(env, Env):
            raise TypeError(f"OnDevice: got {type(env).__name__}; allowed: an environment, as from td.envs.make(...)")
        self.env, self.device = env, torch.device(device)

    def __getattr__(self, name: str) -> Any:
        if name == "env":  # of a copy that has no attributes yet
            raise AttributeError(name)
        return getattr(self.env, name)

    @property
    def obs(self) -> Tensor:
        """`Env.obs`."""
        return self.env.obs.to(self.device)

    def reset(self, mask: Tensor | None = None, **options: Any) -> Tensor:
        """`Env.reset`. Tensors may be on the host or on the device."""
        there: dict[str, Any] = {name: value.to(HOST) if isinstance(value, Tensor) else value for name, value in options.items()}
        return self.env.reset(None if mask is None else mask.to(HOST), **there).to(self.device)

    def step(self, action: Tensor) -> EnvStep:
        """`Env.step`."""
        out = self.env.step(action.to(HOST) if isinstance(action, Tensor) else action)
        obs = out.obs.to(self.device)
        final = obs if out.final_obs is out.obs else out.final_obs.to(self.device)
        reward, fell, late = (value.to(self.device) for value in (out.reward, out.terminated, out.truncated))
        return EnvStep(obs, reward, fell, late, final, {name: self._there(value) for name, value in out.info.items()})

    def detach(self) -> Tensor:
        """`Env.detach`."""
        return self.env.detach().to(self.device)

    def _there(self, value: Any) -> Any:
        return {name: self._there(each) for name, each in value.items()} if isinstance(value, dict) else value.to(self.device)
