"""PPO, the baseline that learns without gradients of the physics: rsl_rl's algorithm on the environments of `torchdojo.envs`.

    ppo = PPO(td.envs.make("ant", num_envs=64), Settings())
    while ppo.samples < 1_000_000:
        ppo.iterate()
    policy = ppo.policy()

rsl_rl (Schwarke et al. 2025) gives the loss, the storage and the adaptive learning rate. Networks are those of SHAC.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import math
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from torchdojo.envs import Env
from torchdojo.learning.networks import Actor, ActorFactory, Normalizer, make_actor, perceptron
from torchdojo.learning.progress import Progress
from torchdojo.learning.runs import Policy, Run
from torchdojo.runs import read_checkpoint, save_checkpoint
from torchdojo.runs.description import check_whole

__all__ = ["PPO", "RslEnv", "Settings", "load_policy", "train"]

CHECKPOINT_EVERY = 10  # iterations


@dataclasses.dataclass(frozen=True)
class Settings:
    """Numbers of PPO (Schulman et al. 2017). Those that SHAC has, too, have the same names.

    samples: control steps of all environments after which training ends. num_envs, horizon: B environments and H control steps of each
        in one iteration. epochs, batches: passes over these B·H samples, and parts of each pass.
    lr: learning rate of Adam at the start. desired_kl: the rate goes up or down by 1.5 in each update, so that the policy moves by this
        divergence; None: the rate stays.
    gamma, lam: discount, λ of the advantages. clip: ε of the ratio of probabilities. entropy: weight of the policy's entropy.
    value_weight: weight of the critic's loss. clip_values: whether ε bounds the change of values, too.
    max_norm: of gradients, of actor and critic each. reward_scale: factor of rewards for the critic.
    std: standard deviation, at the start, of the normal numbers that tanh turns into actions. actor, critic: widths of hidden layers.
    symmetric: whether the actor is that of the robot's left-right symmetry (`SymmetricActor`); the environment needs `mirror()`.
    """

    samples: int = 1_000_000
    num_envs: int = 64
    horizon: int = 64
    epochs: int = 5
    batches: int = 4
    lr: float = 5e-4
    desired_kl: float | None = 0.02
    gamma: float = 0.99
    lam: float = 0.95
    clip: float = 0.2
    entropy: float = 0.0
    value_weight: float = 1.0
    clip_values: bool = False
    max_norm: float = 1.0
    reward_scale: float = 0.1
    std: float = 0.8
    actor: tuple[int, ...] = (128, 64, 32)
    critic: tuple[int, ...] = (64, 64)
    symmetric: bool = False

    def __post_init__(self) -> None:
        check_whole(self, ("samples", "num_envs", "horizon", "epochs", "batches"))
        for name in ("lr", "clip", "max_norm", "reward_scale", "std"):
            if not 0 < (value := getattr(self, name)) < math.inf:
                raise ValueError(f"{name}: got {value!r}; allowed: a finite number above 0")
        for name in ("gamma", "lam"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name}: got {getattr(self, name)}; allowed: from 0 to 1")
        if self.num_envs * self.horizon < 2 * self.batches:
            raise ValueError(
                f"batches: got {self.batches} of {self.num_envs} environments x {self.horizon} steps; allowed: at least 2 samples each; "
                "give a longer horizon, or fewer batches"
            )


class RslEnv:
    """An environment as rsl_rl's `VecEnv`: without gradients, in PyTorch's default type, actions through tanh.

    rsl_rl's own `OnPolicyRunner` takes it, too. `extras` of a step has "time_outs" (B,) and "final_observations", a TensorDict.

    Raises:
        ValueError: an environment that does not reset in the step that ends an episode. ImportError: rsl_rl is missing.
    """

    def __init__(self, env: Env, reward_scale: float = 1.0) -> None:
        if env.autoreset != "same_step":
            raise ValueError(f'PPO: got an environment with autoreset={env.autoreset!r}; allowed: "same_step"')
        self._tensordict = _rsl_rl().TensorDict
        self.env, self.reward_scale = env, reward_scale
        self.num_envs, self.num_actions, self.max_episode_length = env.num_envs, env.num_actions, env.episode_length
        self.device, self.cfg = "cpu", {"name": env.name}
        self._terms, self._steps = torch.zeros(len(env.term_names), dtype=torch.float64), 0

    @property
    def episode_length_buf(self) -> Tensor:
        """Control steps of the current episodes, (B,)."""
        return self.env.state.time

    @episode_length_buf.setter
    def episode_length_buf(self, time: Tensor) -> None:
        self.env.state = self.env.state._replace(time=time)

    def get_observations(self) -> Any:
        """TensorDict with "policy", (B, num_obs)."""
        return self._observations(self.env.obs)

    @torch.no_grad()
    def step(self, actions: Tensor) -> tuple[Any, Tensor, Tensor, dict[str, Any]]:
        """Observations, rewards (B,), whether the episode ended (B,), and extras. actions: (B, nu), before tanh."""
        out = self.env.step(torch.tanh(actions))
        self._terms += torch.stack([part.mean() for part in out.info["terms"].values()])
        self._steps += 1
        extras = {"time_outs": out.truncated, "final_observations": self._observations(out.final_obs)}
        reward = self.reward_scale * out.reward.to(torch.get_default_dtype())
        return self._observations(out.obs), reward, out.terminated | out.truncated, extras

    def term_means(self) -> dict[str, float]:
        """Parts of the reward, "reward_speed", means over environments and the control steps since the last call."""
        means = {f"reward_{name}": total / self._steps for name, total in zip(self.env.term_names, self._terms.tolist(), strict=True)}
        self._terms, self._steps = torch.zeros_like(self._terms), 0
        return means

    def _observations(self, obs: Tensor) -> Any:
        return self._tensordict({"policy": obs.to(torch.get_default_dtype())}, batch_size=[self.num_envs])


class PPO:
    """rsl_rl's PPO on an environment.

    The loop around rsl_rl's algorithm is here for three reasons. It takes the value of the final observation where an episode runs out of
    time; rsl_rl takes the one before. It has random numbers of its own, and saves all that decides how training goes on.

    Args:
        env: training goes on from where it is. seed: of weights, actions and batches.
        actor: (num_obs, num_actions, hidden, std) -> `td.learning.Actor`, a class of one's own; None: as the settings say.

    Raises:
        ValueError: settings or an environment that do not fit. ImportError: rsl_rl is missing.
    """

    def __init__(self, env: Env, settings: Settings, seed: int = 0, actor: ActorFactory | None = None) -> None:
        rsl_rl = _rsl_rl()
        self.settings, self.vec_env = settings, RslEnv(env, settings.reward_scale)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.actor = make_actor(env, settings.actor, settings.std, settings.symmetric, actor)
            self.critic = nn.Sequential(Normalizer(env.num_obs), perceptron(env.num_obs, settings.critic, 1))
            obs, groups = self.vec_env.get_observations(), {"actor": ["policy"], "critic": ["policy"]}
            normal = {"class_name": "GaussianDistribution", "std_type": "log"}
            model = rsl_rl.MLPModel(obs, groups, "actor", env.num_actions, obs_normalization=True, distribution_cfg=normal)
            critic = rsl_rl.MLPModel(obs, groups, "critic", 1, obs_normalization=True)
            self._random = torch.get_rng_state()
        # Networks of rsl_rl have no LayerNorm: after 400,000 samples an ant ran 4.3 m/s with them, 4.8 m/s with these (one seed).
        model.distribution.log_std_param = self.actor.log_std
        if type(self.actor) is Actor:
            model.obs_normalizer, model.mlp = self.actor.normalizer, self.actor.body
        else:  # an actor that decides itself what happens to observations
            model.obs_normalizer, model.mlp = _Learning(self.actor.normalizer), _Mean(self.actor)
        critic.obs_normalizer, critic.mlp = self.critic
        self.algorithm = rsl_rl.PPO(
            model,
            critic,
            rsl_rl.RolloutStorage("rl", env.num_envs, settings.horizon, obs, [env.num_actions]),
            num_learning_epochs=settings.epochs,
            num_mini_batches=settings.batches,
            clip_param=settings.clip,
            gamma=settings.gamma,
            lam=settings.lam,
            value_loss_coef=settings.value_weight,
            entropy_coef=settings.entropy,
            learning_rate=settings.lr,
            max_grad_norm=settings.max_norm,
            use_clipped_value_loss=settings.clip_values,
            schedule="fixed" if settings.desired_kl is None else "adaptive",
            desired_kl=settings.desired_kl,
        )
        self.iterations = 0

    @property
    def samples(self) -> int:
        """Control steps of all environments so far."""
        return self.iterations * self.settings.horizon * self.vec_env.num_envs

    def iterate(self) -> dict[str, float]:
        """Collect `horizon` control steps of each environment, and learn from them. Returns losses, learning rate, deviation, and means of
        the parts of the reward.

        Raises:
            ValueError: observations or returns that are not finite. The weights have not seen them.
        """
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(self._random)
            self._collect()
            losses = self.algorithm.update()
            self._random = torch.get_rng_state()
        self.iterations += 1
        std = float(self.actor.log_std.detach().exp().mean())
        told = {"value_loss": losses["value"], "entropy": losses["entropy"], "lr": self.algorithm.learning_rate, "std": std}
        return {**told, **self.vec_env.term_means()}

    @torch.no_grad()
    def _collect(self) -> None:
        algorithm, storage = self.algorithm, self.algorithm.storage
        storage.clear()
        obs = self.vec_env.get_observations()
        for _ in range(self.settings.horizon):
            obs, reward, done, extras = self.vec_env.step(algorithm.act(obs))
            late = extras.pop("time_outs")
            if bool(late.any()):
                value = algorithm.critic(extras["final_observations"])[:, 0]
                reward = reward + self.settings.gamma * torch.where(late, value, 0.0)
            algorithm.process_env_step(obs, reward, done, extras)
        algorithm.compute_returns(obs)
        for name, values in {"observations": storage.observations["policy"], "returns": storage.returns}.items():
            wrong = int((~torch.isfinite(values)).sum())
            if wrong:
                raise ValueError(
                    f"PPO: {wrong} of {values.numel()} {name} of iteration {self.iterations} are not finite; look at `observe` and "
                    "`reward` of the environment"
                )

    def policy(self) -> Policy:
        """The mean actions of now: observations (B, num_obs) -> (B, nu) between -1 and 1."""
        return copy.deepcopy(self.actor).requires_grad_(False)

    def state_dict(self) -> dict[str, Any]:
        """All that decides how training goes on, that of the environment included."""
        parts = {"actor": self.actor, "critic": self.critic, "optimizer": self.algorithm.optimizer, "env": self.vec_env.env}
        return {
            **{name: part.state_dict() for name, part in parts.items()},
            "random": self._random,
            "iterations": self.iterations,
            "lr": self.algorithm.learning_rate,
        }

    def load_state_dict(self, given: Mapping[str, Any]) -> None:
        """Go on from a `state_dict`, to the last bit.

        Raises:
            ValueError: that of another environment.
        """
        self.vec_env.env.load_state_dict(given["env"])
        self.actor.load_state_dict(given["actor"])
        self.critic.load_state_dict(given["critic"])
        self.algorithm.optimizer.load_state_dict(given["optimizer"])
        self.algorithm.learning_rate, self._random, self.iterations = given["lr"], given["random"], given["iterations"]


class _Learning(nn.Module):
    """A normalizer that learns of observations, and lets them pass."""

    def __init__(self, normalizer: Normalizer) -> None:
        super().__init__()
        self.normalizer = normalizer

    def forward(self, obs: Tensor) -> Tensor:
        return obs

    def update(self, obs: Tensor) -> None:
        self.normalizer.update(obs)


class _Mean(nn.Module):
    """The mean of an actor's actions before tanh."""

    def __init__(self, actor: Actor) -> None:
        super().__init__()
        self.actor = actor

    def forward(self, obs: Tensor) -> Tensor:
        return self.actor.mean(obs)


def train(run: Run, resume: bool = False, *, processes: int = 1) -> dict[str, Any]:
    """Train in the folder of a run. A row of metrics for each iteration, and a checkpoint every ten.

    Returns:
        Numbers: samples, cpu_seconds (without evaluations), statistics of the environments.

    Raises:
        ValueError: several processes, a logger, a damaged checkpoint. ImportError: rsl_rl is missing.
    """
    config, settings = run.config, run.settings
    if processes != 1:
        raise ValueError(f"PPO: got {processes} processes; allowed: 1; SHAC takes several")
    if config.logger is not None:
        raise ValueError(f"logger: got {config.logger!r}; allowed: none, since PPO writes metrics.csv alone")
    env = config.training_env(settings.num_envs, dtype=torch.float32)
    env.reset(stagger=True)  # so that episodes do not all end in the same iteration
    ppo, seconds = PPO(env, settings, config.seed), 0.0
    if resume and run.checkpoint.exists():
        checkpoint = read_checkpoint_of_ppo(run.checkpoint)
        ppo.load_state_dict(checkpoint)
        seconds = checkpoint["cpu_seconds"]
    run.keep_metrics(ppo.samples)
    with contextlib.closing(Progress(config.env, settings.samples, ppo.samples)) as progress:
        while ppo.samples < settings.samples:
            before, finished, start = ppo.samples, _finished(env), time.process_time()
            numbers = ppo.iterate()
            seconds += time.process_time() - start
            episodes, total = (latest - earlier for latest, earlier in zip(_finished(env), finished, strict=True))
            mean = total / episodes if episodes else ""
            row: dict[str, Any] = {"samples": ppo.samples, "cpu_seconds": seconds, "episode_return": mean, **numbers}
            row["flagged"] = env.statistics["flagged"]
            every = config.evaluate_every
            if every and ppo.samples // every > before // every:
                row |= run.evaluation_row(ppo.policy())
            run.add_metrics(row)
            if ppo.iterations % CHECKPOINT_EVERY == 0 or ppo.samples >= settings.samples:
                save_checkpoint(run.checkpoint, {**ppo.state_dict(), "cpu_seconds": seconds})
            told = f"return {mean:.4g}, " if episodes else ""
            progress(ppo.samples, seconds, f"{told}lr {numbers['lr']:.2g}, std {numbers['std']:.2g}")
    statistics = {name: env.statistics[name] for name in ("flagged", "split", "resets", "episodes")}
    return {"samples": ppo.samples, "cpu_seconds": seconds, **statistics}


def load_policy(run: Run) -> Policy:
    """The mean actions of the last checkpoint's actor. It needs no rsl_rl.

    Raises:
        ValueError: a damaged checkpoint, or one of another observation space.
    """
    state = read_checkpoint_of_ppo(run.checkpoint)["actor"]
    env = run.config.make_env(1, pool=1)
    actor = make_actor(env, run.settings.actor, run.settings.std, run.settings.symmetric)
    seen = len(state["normalizer.mean"])
    if seen != env.num_obs:
        raise ValueError(f"{run.checkpoint} has a policy of {seen} observations; the environment {run.config.env!r} has {env.num_obs}")
    actor.load_state_dict(state)
    return actor.requires_grad_(False)


def read_checkpoint_of_ppo(path: Path) -> dict[str, Any]:
    """A checkpoint of a run of PPO.

    Raises:
        ValueError: it is damaged, or one of something else.
    """
    return read_checkpoint(path, "PPO", [("iterations",), ("actor", "normalizer.mean")])


def _finished(env: Env) -> tuple[int, float]:
    """Number of finished episodes, and the sum of their returns."""
    episodes = int(env.statistics["episodes"])
    return episodes, env.statistics["mean_return"] * episodes if episodes else 0.0


def _rsl_rl() -> SimpleNamespace:
    """The parts of rsl_rl that are used here. Its import takes two seconds, and policies need none of it."""
    try:
        from rsl_rl.algorithms import PPO as Algorithm  # noqa: N811
        from rsl_rl.models import MLPModel
        from rsl_rl.storage import RolloutStorage
        from tensordict import TensorDict
    except ImportError as error:
        raise ImportError(f'PPO comes from rsl_rl, which cannot be imported ({error}): pip install "torchdojo[learn]"') from error
    return SimpleNamespace(PPO=Algorithm, MLPModel=MLPModel, RolloutStorage=RolloutStorage, TensorDict=TensorDict)
