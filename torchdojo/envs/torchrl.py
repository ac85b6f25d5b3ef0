"""Environments for torchrl: one batched `EnvBase`, tensors in and out, with the graph of the steps where it is wanted.

    env = TorchRLEnv("ant", num_envs=64)
    data = env.rollout(100, policy)

torchrl's `GymWrapper` around `torchdojo.envs.gym` copies through numpy and cuts the graph; this class does neither.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from torchdojo.envs.checks import counted
from torchdojo.envs.env import Env
from torchdojo.envs.table import make

try:
    from tensordict import TensorDict, TensorDictBase
    from torchrl.data import Binary, Bounded, Composite, Unbounded
    from torchrl.envs import EnvBase
except ImportError as error:
    raise ImportError('torchdojo.envs.torchrl needs torchrl 0.14 or newer: pip install "torchdojo[torchrl]"') from error

__all__ = ["TorchRLEnv"]


class TorchRLEnv(EnvBase):
    """A batch of environments that the kernel steps together, with batch size (num_envs,).

    Keys: "observation" (num_envs, num_obs); "action" (num_envs, nu), from -1 to 1, what lies outside is clipped by the actuators; "reward",
    "done", "terminated" and "truncated", each (num_envs, 1). Steps that the solver flags are terminated, with reward 0 (`Env.step`).

    Args:
        robot: a name of the table, or a subclass of `torchdojo.envs.Env`.
        num_envs: number of environments.
        differentiable: rewards and observations keep the graph of the steps behind them, back to actions and to parameters of the
            mechanism. It grows until `detach()`. False: no graph.
        report: further keys, each (num_envs, 1): "flagged", and ("terms", name), the parts of the reward. torchrl gives a policy that is
            a plain function or module all keys that are no reward and no end, so such a policy wants no report.
        options: of `torchdojo.envs.make` and `Env`. dtype, of observations and rewards, is float32 unless given. Episodes end after
            `episode_length`, and torchrl resets what is done.

    Raises:
        ValueError: values that are not allowed; an action of another shape.
    """

    def __init__(
        self, robot: str | Callable[..., Env], num_envs: int = 1, *, differentiable: bool = False, report: bool = False, **options: Any
    ) -> None:
        for name in ("autoreset", "shard"):
            if name in options:
                raise ValueError(f"{name}: got {options[name]!r}; allowed: nothing, since torchrl resets and collects; leave it out")
        num_envs = counted("num_envs", num_envs)
        env_options = {"dtype": torch.float32, **options, "num_envs": num_envs, "autoreset": "disabled"}
        env = make(robot, **env_options) if isinstance(robot, str) else robot(**env_options)
        super().__init__(device=torch.device("cpu"), batch_size=torch.Size((num_envs,)))
        self.torch_env, self.differentiable, self.report = env, bool(differentiable), bool(report)
        self._make_specs()

    def detach(self) -> None:
        """Cut the graph behind the state: between segments of training, where `differentiable`."""
        self.torch_env.detach()

    def _make_specs(self) -> None:
        env, batch, float_ = self.torch_env, self.batch_size, self.torch_env.dtype

        def flag() -> Binary:
            return Binary(shape=(*batch, 1), dtype=torch.bool)

        seen: dict[str, Any] = {"observation": Unbounded((*batch, env.num_obs), dtype=float_)}
        if self.report:
            terms = {name: Unbounded((*batch, 1), dtype=float_) for name in env.term_names}
            seen |= {"flagged": flag(), "terms": Composite(terms, shape=batch)}
        self.observation_spec = Composite(seen, shape=batch)
        self.action_spec = Bounded(-1.0, 1.0, (*batch, env.num_actions), dtype=torch.float32)
        self.reward_spec = Unbounded((*batch, 1), dtype=float_)
        self.done_spec = Composite(done=flag(), terminated=flag(), truncated=flag(), shape=batch)

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        mask = None if tensordict is None else tensordict.get("_reset", None)
        with self._graph():
            self.torch_env.reset(None if mask is None else mask.reshape(self.batch_size))
        never = torch.zeros(*self.batch_size, 1, dtype=torch.bool)
        zero = torch.zeros(*self.batch_size, 1, dtype=self.torch_env.dtype)
        return self._packed(
            {"observation": self.torch_env.obs, "terminated": never, "truncated": never, "done": never},
            {"flagged": never, **dict.fromkeys(self.torch_env.term_names, zero)},
        )

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        with self._graph():
            out = self.torch_env.step(tensordict["action"])
        done = out.terminated | out.truncated
        values = {"reward": out.reward, "terminated": out.terminated, "truncated": out.truncated, "done": done}
        report = {name: value[:, None].to(self.torch_env.dtype) for name, value in out.info["terms"].items()}
        report["flagged"] = out.info["flagged"][:, None]
        return self._packed({name: value[:, None] for name, value in values.items()} | {"observation": out.obs}, report)

    def _set_seed(self, seed: int | None) -> None:
        if seed is not None:
            self.torch_env.generator.manual_seed(seed)

    def _graph(self) -> Any:
        return nullcontext() if self.differentiable else torch.no_grad()

    def _packed(self, values: dict[str, Tensor], report: dict[str, Tensor]) -> TensorDictBase:
        """Copies, since torchrl writes into what it is given."""
        data = TensorDict({name: value.clone() for name, value in values.items()}, batch_size=self.batch_size)
        for name, value in report.items() if self.report else ():
            data.set("flagged" if name == "flagged" else ("terms", name), value.clone())
        return data
