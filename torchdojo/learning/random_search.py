"""Searches for linear policies: ARS (Mania, Guy, Recht 2018) and AGS, which takes its direction from gradients (Dojo, section V-C).

    env = td.envs.make("ant", num_envs=12, reward="dojo", control="drive", timestep=0.05, autoreset="disabled")
    search = Search(env, Settings(), "ars")
    while search.samples < 100_000:
        search.iterate()
    policy = search.policy()

A policy is a = tanh(W x), with x the observation normalized by its running mean and deviation. An iteration is one batch of episodes.

ARS tries W ± ν δ_i, for N directions δ_i of normal numbers, and steps along them by what they gain (Mania et al., algorithm 2, V2-t):

    W ← W + α / (b σ_R) Σ_i (R_i⁺ − R_i⁻) δ_i,    i over the b directions with the largest max(R_i⁺, R_i⁻),    σ_R over their 2b returns

AGS tries W itself in N episodes, and steps along the gradients of their returns, each taken through the whole closed loop:

    G_i = ∂R_i/∂W,    W ← W + α M / |M|_∞,    M = Σ_i G_i / |G_i|_∞
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from torchdojo.envs import Env
from torchdojo.learning.adjoint import BROKEN, CLIPPED, LENGTH, clip_adjoint
from torchdojo.learning.networks import Normalizer
from torchdojo.learning.runs import Policy, Run
from torchdojo.runs import read_checkpoint, save_checkpoint
from torchdojo.runs.description import check_whole

__all__ = ["LinearPolicy", "Search", "Settings", "ags_update", "ars_update", "episodes", "load_policy", "train"]

Algorithm = Literal["ars", "ags"]
CHECKPOINT_EVERY = 5  # iterations
FLOOR = 1e-2  # least variance of an observation, as in Dojo's code: what hardly moves is not blown up


@dataclass(frozen=True)
class Settings:
    """Numbers of ARS and AGS. The defaults are those of Dojo's ant.

    samples: control steps of all environments after which the search ends, at the end of an iteration.
    horizon: control steps of an episode. directions: N, of ARS 2N episodes, of AGS N. best: b of ARS; None: N.
    step_size: α at the start. It falls linearly to `final_step` times that. noise: ν, of ARS.
    reward_clip: bound of the reward of a control step, in both directions; None: none.
    adjoint_clip: bound of |dReturn/dz| of one environment, of AGS; None: no clipping.
    """

    samples: int = 180_000
    horizon: int = 150
    directions: int = 6
    best: int | None = None
    step_size: float = 0.02
    final_step: float = 1.0
    noise: float = 0.03
    reward_clip: float | None = 1.0
    adjoint_clip: float | None = None

    def __post_init__(self) -> None:
        check_whole(self, ("samples", "horizon", "directions"))
        check_whole(self, ("best",), optional=True)
        if self.best is not None and not 1 <= self.best <= self.directions:
            raise ValueError(f"best: got {self.best!r}; allowed: from 1 to directions={self.directions}, or null for all")
        for name in ("step_size", "noise"):
            if not 0 < (value := getattr(self, name)) < math.inf:
                raise ValueError(f"{name}: got {value!r}; allowed: a finite number above 0")
        if not 0 <= self.final_step <= 1:
            raise ValueError(f"final_step: got {self.final_step!r}; allowed: a number from 0 to 1")
        for name in ("reward_clip", "adjoint_clip"):
            if (value := getattr(self, name)) is not None and not value > 0:
                raise ValueError(f"{name}: got {value!r}; allowed: a number above 0, or null for none")

    def num_envs(self, algorithm: str) -> int:
        """Episodes of an iteration."""
        return self.directions * (2 if algorithm == "ars" else 1)


class LinearPolicy(nn.Module):
    """a = tanh(W (obs − mean) / deviation): (..., num_obs) -> (..., num_actions), in the dtype of the observation.

    weight: (num_actions, num_obs). normalizer: `Normalizer`. Both are float64.
    """

    weight: Tensor

    def __init__(self, num_obs: int, num_actions: int) -> None:
        super().__init__()
        self.normalizer = Normalizer(num_obs).double()
        self.register_buffer("weight", torch.zeros(num_actions, num_obs, dtype=torch.float64))

    def forward(self, obs: Tensor, weight: Tensor | None = None) -> Tensor:
        """Actions. weight: (B, num_actions, num_obs), a policy for each row of obs (B, num_obs), instead of `self.weight`."""
        scaled = (obs.double() - self.normalizer.mean) * self.normalizer.var.clamp_min(FLOOR).rsqrt()
        action = scaled @ self.weight.mT if weight is None else (weight @ scaled[..., None])[..., 0]
        return torch.tanh(action).to(obs.dtype)


def ars_update(plus: Tensor, minus: Tensor, directions: Tensor, step_size: float, best: int | None = None) -> Tensor:
    """The step of ARS: what is added to the weights.

    Args:
        plus, minus: (N,) returns of W + ν δ_i and W − ν δ_i. directions: (N, ...), δ_i. step_size: α. best: b; None: N.

    Returns:
        (...,), zero where all returns are alike.
    """
    count = len(plus) if best is None else best
    chosen = torch.maximum(plus, minus).argsort(descending=True, stable=True)[:count]
    plus, minus, directions = plus[chosen], minus[chosen], directions[chosen]
    deviation = torch.cat((plus, minus)).std(correction=0)
    if float(deviation) == 0.0:
        return torch.zeros_like(directions[0])
    return step_size / (count * deviation) * torch.tensordot(plus - minus, directions, 1)


def ags_update(gradients: Tensor, step_size: float) -> Tensor:
    """The step of AGS: what is added to the weights, (nu, n), whose largest element is `step_size`.

    gradients: (N, nu, n), one for each episode. Those that are not finite, or zero, are left out.
    """
    sizes = gradients.flatten(1).abs().amax(1)
    good = (sizes > 0) & torch.isfinite(sizes)
    mean = (gradients[good] / sizes[good, None, None]).sum(0)
    size = mean.abs().amax()
    return step_size * mean / size if float(size) > 0 else torch.zeros_like(mean)


def episodes(
    env: Env, policy: LinearPolicy, horizon: int, *, reward_clip: float | None = 1.0, weight: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """One episode of each environment from new starts.

    Args:
        weight: (B, nu, n), a policy for each environment, which may require grad; None: that of `policy`. horizon: control steps.

    Returns:
        (B,) sums of rewards until the episode ends, each clipped, and observations (T, B, n), without gradients.
    """
    obs = env.reset()
    seen, total, alive = [obs.detach()], obs.new_zeros(env.num_envs), torch.ones(env.num_envs, dtype=torch.bool)
    for _ in range(horizon):
        out = env.step(policy(obs, weight))
        reward = out.reward if reward_clip is None else out.reward.clamp(-reward_clip, reward_clip)
        total = total + torch.where(alive, reward, 0.0)
        alive = alive & ~out.terminated
        obs = out.obs
        seen.append(obs.detach())
    return total, torch.stack(seen[:-1])


class Search:
    """A search for a linear policy on an environment.

    Args:
        env: with ``autoreset="disabled"`` and as many environments as an iteration has episodes. algorithm: "ars" or "ags".
        seed: of the directions. Episodes begin where the environment's own generator says.

    Attributes:
        linear: `LinearPolicy`. iterations. samples: control steps so far. counts: "clipped" and "nonfinite" adjoints of AGS.

    Raises:
        ValueError: settings and environment that do not fit.
    """

    def __init__(self, env: Env, settings: Settings, algorithm: Algorithm = "ars", *, seed: int = 0) -> None:
        if algorithm not in ("ars", "ags"):
            raise ValueError(f"algorithm: got {algorithm!r}; allowed: ars, ags")
        needed = settings.num_envs(algorithm)
        if env.num_envs != needed or env.autoreset != "disabled":
            raise ValueError(
                f"Search: got num_envs={env.num_envs} and autoreset={env.autoreset!r}; {algorithm} with directions={settings.directions} "
                f'needs num_envs={needed} and autoreset="disabled", since an iteration is one episode of each environment'
            )
        self.env, self.settings, self.algorithm = env, settings, algorithm
        self.linear = LinearPolicy(env.num_obs, env.num_actions)
        self.generator = torch.Generator().manual_seed(seed)
        self.iterations, self.counts = 0, {"clipped": 0, "nonfinite": 0}

    @property
    def samples(self) -> int:
        """Control steps of all environments so far, those after a fall included: they are simulated, too."""
        return self.iterations * self.settings.horizon * self.env.num_envs

    @property
    def step_size(self) -> float:
        """α of now."""
        progress = min(1.0, self.samples / self.settings.samples)
        return self.settings.step_size * (1.0 - progress * (1.0 - self.settings.final_step))

    @property
    def evaluations(self) -> int:
        """Steps and gradients of steps, as Table VI of the Dojo paper counts them."""
        return self.samples * (2 if self.algorithm == "ags" else 1)

    def iterate(self) -> dict[str, float]:
        """One batch of episodes and the step it leads to. Returns the mean and the largest return, clipped as `reward_clip` says."""
        returns = self._ars() if self.algorithm == "ars" else self._ags()
        self.iterations += 1
        return {"return": float(returns.mean()), "best_return": float(returns.max())}

    def _ars(self) -> Tensor:
        s, weight = self.settings, self.linear.weight
        directions = torch.randn(s.directions, *weight.shape, generator=self.generator, dtype=torch.float64)
        with torch.no_grad():
            returns, seen = self._episodes(torch.cat((weight + s.noise * directions, weight - s.noise * directions)))
        plus, minus = returns.chunk(2)
        weight += ars_update(plus, minus, directions, self.step_size, s.best)
        self.linear.normalizer.update(seen)
        return returns

    def _ags(self) -> Tensor:
        s = self.settings
        weight = self.linear.weight.expand(s.directions, -1, -1).clone().requires_grad_(True)
        tally = torch.zeros(s.directions, LENGTH + 1, dtype=torch.float64, requires_grad=True)
        self.env.on_state = None if s.adjoint_clip is None else lambda z: clip_adjoint(z, tally, float(s.adjoint_clip or 0.0))
        returns, seen = self._episodes(weight)
        gradients, told = torch.autograd.grad(returns.sum(), (weight, tally), allow_unused=True)
        self.env.on_state = None
        self.env.detach()
        if told is not None:
            for name, value in zip(self.counts, told[:, [CLIPPED, BROKEN]].sum(0).tolist(), strict=True):
                self.counts[name] += int(value)
        self.linear.weight += ags_update(gradients, self.step_size)
        self.linear.normalizer.update(seen)
        return returns.detach()

    def _episodes(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        return episodes(self.env, self.linear, self.settings.horizon, reward_clip=self.settings.reward_clip, weight=weight)

    def policy(self) -> Policy:
        """The policy of now: observations (B, num_obs) -> actions (B, nu) between -1 and 1."""
        result = LinearPolicy(self.env.num_obs, self.env.num_actions)
        result.load_state_dict(self.linear.state_dict())
        return result

    def state_dict(self) -> dict[str, Any]:
        """All that decides how the search goes on, that of the environment included."""
        return {
            "policy": self.linear.state_dict(),
            "env": self.env.state_dict(),
            "generator": self.generator.get_state(),
            "iterations": self.iterations,
            "counts": dict(self.counts),
        }

    def load_state_dict(self, given: Mapping[str, Any]) -> None:
        """Go on from a `state_dict`, to the last bit.

        Raises:
            ValueError: that of another environment.
        """
        self.env.load_state_dict(given["env"])
        self.linear.load_state_dict(given["policy"])
        self.generator.set_state(given["generator"])
        self.iterations, self.counts = given["iterations"], dict(given["counts"])


def train(run: Run, resume: bool = False) -> dict[str, Any]:
    """Search in the folder of a run. A row of metrics for each iteration, and a checkpoint every five.

    Returns:
        Numbers: samples, evaluations, cpu_seconds (without evaluations), statistics of the environments.

    Raises:
        ValueError: settings that do not fit, a damaged checkpoint.
    """
    from tqdm import tqdm

    config, settings = run.config, run.settings
    env = config.training_env(settings.num_envs(config.algorithm), autoreset="disabled", dtype=torch.float64)
    search, seconds = Search(env, settings, cast(Algorithm, config.algorithm), seed=config.seed), 0.0
    if resume and run.checkpoint.exists():
        checkpoint = _read_checkpoint(run)
        search.load_state_dict(checkpoint)
        seconds = checkpoint["cpu_seconds"]
    run.keep_metrics(search.samples)
    with tqdm(desc=config.env, initial=search.samples, total=settings.samples, unit="step", file=sys.stderr, disable=None) as bar:
        while search.samples < settings.samples:
            before, start = search.samples, time.process_time()
            row = search.iterate()
            seconds += time.process_time() - start
            counts = {"samples": search.samples, "cpu_seconds": seconds, "evaluations": search.evaluations}
            row = {**counts, **row, "flagged": env.statistics["flagged"]}
            every = config.evaluate_every
            if every and search.samples // every > before // every:
                row |= run.evaluation_row(search.policy())
            run.add_metrics(row)
            if search.iterations % CHECKPOINT_EVERY == 0 or search.samples >= settings.samples:
                save_checkpoint(run.checkpoint, {**search.state_dict(), "cpu_seconds": seconds})
            bar.update(search.samples - before)
    statistics = {name: env.statistics[name] for name in ("flagged", "split")}
    return {"samples": search.samples, "evaluations": search.evaluations, "cpu_seconds": seconds, **statistics, **search.counts}


def load_policy(run: Run) -> Policy:
    """The policy of the last checkpoint.

    Raises:
        ValueError: a damaged checkpoint, or one of another observation space.
    """
    state = _read_checkpoint(run)["policy"]
    env = run.config.make_env(1, pool=1)
    policy = LinearPolicy(env.num_obs, env.num_actions)
    seen = state["weight"].shape[-1]
    if seen != env.num_obs:
        raise ValueError(f"{run.checkpoint} has a policy of {seen} observations; the environment {run.config.env!r} has {env.num_obs}")
    policy.load_state_dict(state)
    return policy


def _read_checkpoint(run: Run) -> dict[str, Any]:
    return read_checkpoint(run.checkpoint, "ARS or AGS", [("iterations",), ("policy", "weight")])
