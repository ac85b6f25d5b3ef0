"""Short-horizon actor-critic (SHAC, Xu et al. 2022): the return of short segments, differentiated through the simulation.

    env = td.envs.make("ant", num_envs=32, control="torque")
    module = Shac(env, ShacSettings(samples=500_000))
    pl.Trainer(max_epochs=-1, accelerator="cpu").fit(module)

A batch of the trainer is one segment: `horizon` control steps of all environments, one step of the actor's optimizer, and the fit of the
critics to TD(λ) targets. What differs from the paper is the clipping of adjoints (`adjoint.py`), which everything else depends on.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

try:
    import pytorch_lightning as pl
except ImportError as error:
    raise ImportError('torchdojo.learning.shac needs pytorch-lightning: pip install "torchdojo[learn]"') from error
from pytorch_lightning.utilities.types import TRAIN_DATALOADERS
from torch import distributed
from torch.utils.data import DataLoader, IterableDataset

from torchdojo.envs import Env, Segment
from torchdojo.envs.direct import Direct
from torchdojo.learning import health
from torchdojo.learning.adjoint import BROKEN, CLIPPED, LENGTH, RunningBound, bounded, clip_adjoint
from torchdojo.learning.critic_fit import CriticFit
from torchdojo.learning.networks import ActorFactory, Critics, make_actor
from torchdojo.learning.refinement import Refinement
from torchdojo.learning.returns import discounts, lambda_returns
from torchdojo.learning.shac_settings import ShacSettings

__all__ = ["Shac", "ShacSettings"]

BEFORE = {"actor_lam": 1.0, "passes": 0}  # what revisions did that had no such settings
GUIDED = ("gradient_norm", "health_clipped", "health_growth")  # of segments with a gradient alone
SEEN = (*health.COLUMNS, "falls")  # of `Health`
LOGGED = ("reward", "falls", "critic_loss", "gradient_norm", "std", *health.COLUMNS)


@dataclass
class Rollout:
    """The results of a segment: each (H, B, ...), with a graph where the actor's loss needs one."""

    obs: Tensor
    action: Tensor
    noise: Tensor
    rewards: Tensor
    final_obs: Tensor
    fell: Tensor
    late: Tensor
    surprise: Tensor  # −log π(a)
    terms: Tensor  # means of the parts of the reward, in the order of `Env.term_names`
    mean: Tensor | None  # of the policy before tanh, with a graph to its parameters alone


class Shac(pl.LightningModule):
    """SHAC as a module of pytorch-lightning, with manual optimization.

    Args:
        env: environments that this module steps; those of one process. settings: `ShacSettings`. seed: of networks, noise and batches.
        actor: (num_obs, num_actions, hidden, std) -> `td.learning.Actor`, a class of one's own; None: as the settings say.

    Attributes:
        actor, critics, target: networks. samples: control steps so far, of all processes. counts: of clipped adjoints and others, likewise.
        seconds: processor time of this process so far, in all runs that were resumed.
    """

    def __init__(self, env: Env, settings: ShacSettings | None = None, *, seed: int = 0, actor: ActorFactory | None = None) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.env, self.settings = env, ShacSettings(num_envs=env.num_envs) if settings is None else settings
        s = self.settings
        if env.num_envs != s.num_envs:
            raise ValueError(f"Shac: got {env.num_envs} environments and num_envs={s.num_envs}; give as many")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.actor = make_actor(env, s.actor, s.std, s.symmetric, actor)
            self.critics = Critics(env.num_obs, s.critic, s.critics)
        self.target = copy.deepcopy(self.critics).requires_grad_(False)
        self.log_temperature = nn.Parameter(torch.tensor(math.log(s.entropy)) if s.entropy > 0 else torch.tensor(-math.inf))
        self.generator = torch.Generator().manual_seed(seed)
        self.samples, self.horizon, self.seconds = 0, s.horizon, 0.0
        self.counts = {"clipped": 0.0, "nonfinite_adjoints": 0.0, "adjoints": 0.0, "skipped": 0.0}
        self._tally, self._clips = torch.zeros(0, env.num_envs, 3, dtype=torch.float64), 0
        self.running_bound = RunningBound()
        self.refinement = Refinement(self.actor, s.ratio_clip, s.desired_kl, s.max_norm, s.compile, s.bonus) if s.passes else None
        self._clock = time.process_time()
        self.segment = Segment(
            env,
            self.actor.sample_and_mean if s.saturation > 0 else self.actor.sample,
            s.horizon,
            on_adjoint=None if s.adjoint_clip is None else lambda grad: bounded(grad, self._bound),
            parameters=self.actor.parameters(),
            compiled=s.compile,
            fixed=True,
        )
        self._critic_fit = CriticFit(self.critics, s.betas, s.max_norm) if s.compile else None
        # Refinement needs targets only once in a segment, for which a compilation of H steps of TD(λ) does not pay.
        eager = not s.compile or self.refinement is not None
        self._targets = self._make_targets if eager else Direct(lambda *given: self._make_targets(*given), fixed=True).first
        if s.adjoint_clip is not None:
            env.on_state = self._clip

    # -- the loop of the trainer ---------------------------------------------------------------------------------------------------------

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        s = self.settings
        rest: dict[str, Any] = {"betas": s.betas, "fused": True}
        parameters = [*self.actor.parameters(), *([self.log_temperature] if s.target_entropy is not None else [])]
        optimizers: list[torch.optim.Optimizer] = [
            torch.optim.Adam(parameters, lr=s.lr, **rest),
            torch.optim.Adam(self.critics.parameters(), lr=s.critic_lr, **rest),
        ]
        return (
            optimizers if self.refinement is None else [*optimizers, torch.optim.Adam(self.actor.parameters(), lr=s.refine_lr, fused=True)]
        )

    def train_dataloader(self) -> TRAIN_DATALOADERS:
        return DataLoader(_Segments(self), batch_size=None)

    def on_fit_start(self) -> None:
        wrapped = self.trainer.strategy.model
        if isinstance(wrapped, nn.parallel.DistributedDataParallel):
            # A segment has many losses, each with a backward pass of its own. Their gradients are summed in `_step`.
            wrapped.require_backward_grad_sync = False
        self._clock = time.process_time()

    def training_step(self, number: int, index: int) -> None:
        """A segment: rollout, step of the actor, fit of the critics."""
        s = self.settings
        share, scale = max(s.final_lr, 1.0 - self.samples / s.samples), 1.0 if self.refinement is None else self.refinement.scale
        actor_optimizer, critic_optimizer, *others = cast(Sequence[Any], self.optimizers())
        rates = (s.lr * (scale if others else share), s.critic_lr * share, s.refine_lr * scale)
        for optimizer, rate in zip((actor_optimizer, critic_optimizer, *others), rates, strict=False):
            for group in optimizer.param_groups:
                group["lr"] = rate
        refinement, norm = self.refinement, torch.zeros(())
        if refinement is not None:  # the last steps are small, so that the last policy is no accident
            refinement.desired_kl = s.desired_kl * max(s.final_kl, 1.0 - self.samples / s.samples)
        guided = refinement is None or refinement.guided
        with torch.set_grad_enabled(guided):
            segment = self.rollout(self.horizon)
        targets, obs = self._targets_of(segment)
        if refinement is not None:
            refinement.begin(segment.obs)
        if guided:
            loss = self._actor_loss(segment)
            actor_optimizer.zero_grad()
            loss.backward()
            if refinement is not None:
                self.actor.log_std.grad = None
                with torch.no_grad():
                    advantages = targets.view_as(segment.rewards) - self._value(segment.obs)
                refinement.compare(segment.obs, segment.noise, advantages, self.total)
            norm = self._step(actor_optimizer, self._group(actor_optimizer))
        if refinement is not None:
            self._refine(segment, targets, others[0])
        critic_loss, explained = self._fit_critics(obs, targets, critic_optimizer)
        self.actor.normalizer.update(segment.obs, self.total)
        self.samples += self.horizon * self.env.num_envs * self._world
        self._report(segment, norm, critic_loss, explained)
        seconds = time.process_time()
        self.seconds, self._clock = self.seconds + seconds - self._clock, seconds
        if self.samples >= s.samples:
            self.trainer.should_stop = True

    # -- a segment -----------------------------------------------------------------------------------------------------------------------

    @property
    def _bound(self) -> float | Tensor:
        """Bound of the adjoint. The loss is a mean over segments of nominal length."""
        s = self.settings
        if isinstance(s.adjoint_clip, str):
            return self.running_bound.value
        assert s.adjoint_clip is not None
        return s.adjoint_clip * s.reward_scale / (s.horizon * s.num_envs * self._world)

    def _clip(self, z: Tensor) -> Tensor:
        """A hook for `env.on_state`, where the environment goes step by step: the n-th state with a graph reports to the n-th tally.

        States beyond those of `rollout` report to nobody.
        """
        if not z.requires_grad:
            return z
        tally = self._tally[self._clips] if self._clips < len(self._tally) else torch.zeros_like(z[:, :3])
        self._clips += 1
        return clip_adjoint(z, tally, self._bound)

    def rollout(self, horizon: int) -> Rollout:
        """`horizon` control steps from where the environments are, with a graph from rewards and observations to the actor."""
        env, rank, size, kind = self.env, self._rank, self.env.num_envs, self.actor.log_std.dtype
        noise = torch.randn(horizon, size * self._world, env.num_actions, generator=self.generator, dtype=kind)
        noise = noise[:, rank * size : (rank + 1) * size]
        self._tally, self._clips = torch.zeros(horizon, size, 3, dtype=torch.float64, requires_grad=True), 0
        out = self.segment(noise)
        rewards, final = out.reward.to(kind), out.final_obs.to(kind)
        surprise = torch.zeros_like(rewards)
        if self.settings.entropy > 0:
            action = self.actor.sample(out.obs, noise)
            density = 0.5 * noise.square() + self.actor.log_std + 0.5 * math.log(2 * math.pi)
            surprise = (density + (1.0 - action.square()).clamp_min(1e-6).log()).sum(-1)
        terms = torch.stack([part.mean() for part in out.info["terms"].values()]).to(kind)
        mean = next(iter(out.info["policy"]), None)
        return Rollout(out.obs.detach().to(kind), out.action, noise, rewards, final, out.terminated, out.truncated, surprise, terms, mean)

    def _scaled(self, segment: Rollout) -> Tensor:
        """Rewards of the critics' size, with the entropy's part, (H, B)."""
        scaled = self.settings.reward_scale * segment.rewards
        if self.settings.entropy > 0:
            scaled = scaled + self.settings.reward_scale * self.log_temperature.exp().detach() * segment.surprise
        return scaled

    def _value(self, obs: Tensor) -> Tensor:
        """Values by the target critics, of observations before normalization."""
        values = self.target(self.actor.normalizer(obs))
        reduced: Tensor = values.amin(0) if self.settings.pessimistic else values.mean(0)
        return reduced

    def _return(self, segment: Rollout) -> Tensor:
        """The sum over environments of what the actor maximizes.

        With `actor_lam` = 1, this is the discounted return of a segment and the value of where it ends (Xu et al. 2022, equation 5). Below
        1, it is the λ-return from the first state of each episode in the segment (Hafner et al. 2020, equation 6). A fall has no gradient
        of its own, so that only values of states before it can teach the actor to avoid it, and the λ-return has those of all states.
        """
        s, done = self.settings, segment.fell | segment.late
        if s.actor_lam < 1:
            values = torch.where(segment.fell, 0.0, self._value(segment.final_obs))
            first = torch.ones_like(done)
            first[1:] = done[:-1]
            return (first * lambda_returns(self._scaled(segment), values, done, s.gamma, s.actor_lam)).sum()
        weight, ends = discounts(done, s.gamma), segment.late.clone()
        ends[-1] = True
        rows = (ends & ~segment.fell).nonzero(as_tuple=True)
        values = s.gamma * weight[rows] * self._value(segment.final_obs[rows])
        return (weight * self._scaled(segment)).sum() + values.sum()

    def _actor_loss(self, segment: Rollout) -> Tensor:
        """Minus the mean of `_return`, and what keeps actions and entropy where the settings want them."""
        s = self.settings
        loss = -self._return(segment) / (s.horizon * s.num_envs * self._world)
        if s.saturation > 0 and segment.mean is not None:
            excess = (segment.mean.abs() - 1.0).clamp_min(0.0).square().sum(-1).mean()
            loss = loss + s.saturation * s.reward_scale * excess / self._world
        if s.target_entropy is not None:
            gap = segment.surprise.detach().mean() - s.target_entropy * self.env.num_actions
            loss = loss + self.log_temperature * gap / self._world
        return loss

    def _make_targets(self, scaled: Tensor, final_obs: Tensor, fell: Tensor, late: Tensor, obs: Tensor) -> tuple[Tensor, Tensor]:
        """TD(λ) targets (H · B,), and normalized observations (H · B, num_obs)."""
        values = torch.where(fell, 0.0, self._value(final_obs))
        targets = lambda_returns(scaled, values, fell | late, self.settings.gamma, self.settings.lam)
        return targets.flatten(), self.actor.normalizer(obs).flatten(0, 1)

    @torch.no_grad()
    def _targets_of(self, segment: Rollout) -> tuple[Tensor, Tensor]:
        """Results of `_make_targets` for a segment."""
        scaled = self._scaled(segment).contiguous()
        targets, obs = self._targets(scaled, segment.final_obs.contiguous(), segment.fell, segment.late, segment.obs.contiguous())
        return targets, obs

    def _fit_critics(self, obs: Tensor, targets: Tensor, optimizer: Any) -> tuple[Tensor, Tensor]:
        """Steps of the critics towards TD(λ) targets, and of the target critics behind them.

        Returns:
            The last loss, and the share of the targets' variance that the critics explained before.
        """
        s = self.settings
        with torch.no_grad():
            explained = health.explained_variance(self.critics(obs).mean(0), targets)
        loss, parts = torch.zeros(()), self._shuffled(self.horizon, s.critic_epochs, s.critic_batches)
        if self._critic_fit is not None and self._world == 1 and len(parts[0]) == len(parts[-1]):
            loss, skipped = self._critic_fit(optimizer, obs, targets, parts)
            self.counts["skipped"] += float(skipped)
            parts = []
        for part in parts:
            # All processes draw the same batch, and each takes the rows of its own environments.
            mine = self._own(part)
            error = self.critics(obs[mine]) - targets[mine]
            loss = error.square().sum() / len(part)
            optimizer.zero_grad()
            loss.backward()
            self._step(optimizer, self._group(optimizer))
        with torch.no_grad():
            torch._foreach_lerp_(list(self.target.parameters()), list(self.critics.parameters()), 1.0 - s.polyak)
        return loss.detach(), explained

    def _refine(self, segment: Rollout, targets: Tensor, optimizer: Any) -> None:
        """Passes of PPO over a segment, with the advantages of the target critics."""
        assert self.refinement is not None
        with torch.no_grad():
            advantages = targets.view_as(segment.rewards) - self._value(segment.obs)
        s = self.settings
        parts = [(self._own(part), len(part)) for part in self._shuffled(len(segment.obs), s.passes, s.batches)]
        step = lambda optimizer: self._step(optimizer, self._group(optimizer))  # noqa: E731
        skipped = self.refinement(segment.obs, segment.noise, advantages, parts, optimizer, step, self.total)
        self.counts["skipped"] += skipped

    def _shuffled(self, horizon: int, passes: int, batches: int) -> list[Tensor]:
        """Places of the samples of all processes in a segment, in random batches: t · (environments of all) + environment."""
        count = horizon * self.env.num_envs * self._world
        shuffled = [torch.randperm(count, generator=self.generator).chunk(batches) for _ in range(passes)]
        return [part for one in shuffled for part in one]

    def _own(self, part: Tensor) -> Tensor:
        """Rows t · B + environment of this process in a batch of all processes."""
        size, everywhere = self.env.num_envs, self.env.num_envs * self._world
        place, t = part % everywhere, part // everywhere
        return part if self._world == 1 else (t * size + place % size)[place // size == self._rank]

    def _step(self, optimizer: Any, parameters: list[nn.Parameter]) -> Tensor:
        """A step along gradients that are summed over processes and no longer than `max_norm`; none where one is not finite."""
        if self._world > 1:
            gradients = [torch.zeros_like(each) if each.grad is None else each.grad for each in parameters]
            total = self.total(torch.cat([gradient.flatten() for gradient in gradients]))
            for parameter, part in zip(parameters, total.split([each.numel() for each in parameters]), strict=True):
                parameter.grad = part.view_as(parameter)
        norm = nn.utils.clip_grad_norm_(parameters, self.settings.max_norm, foreach=True)
        if bool(norm.isfinite()):
            optimizer.step()
        else:
            self.counts["skipped"] += 1
        return norm

    @staticmethod
    def _group(optimizer: Any) -> list[nn.Parameter]:
        return [parameter for group in optimizer.param_groups for parameter in group["params"]]

    # -- processes -----------------------------------------------------------------------------------------------------------------------

    @property
    def _world(self) -> int:
        return distributed.get_world_size() if distributed.is_initialized() else 1

    @property
    def _rank(self) -> int:
        return distributed.get_rank() if distributed.is_initialized() else 0

    def total(self, tensor: Tensor) -> Tensor:
        """The sum of a tensor over the processes of a run, in place; all of them have to ask."""
        if self._world > 1:
            distributed.all_reduce(tensor)
        return tensor

    def _gathered(self, tensor: Tensor) -> Tensor:
        """The tensors of all processes, stacked."""
        if self._world == 1:
            return tensor
        parts = [torch.empty_like(tensor) for _ in range(self._world)]
        distributed.all_gather(parts, tensor.contiguous())
        return torch.stack(parts)

    # -- what is told and kept -----------------------------------------------------------------------------------------------------------

    def _report(self, segment: Rollout, norm: Tensor, critic_loss: Tensor, explained: Tensor) -> None:
        world = self._world
        reports = self._tally.grad if self.segment.reports is None else self.segment.reports
        std = self.actor.log_std.detach().exp().mean()
        saturated, nothing = health.saturated_share(segment.action), torch.zeros(())
        # A process has the critics' loss on its own rows alone; the norm and the deviation are the same in all.
        logged = [segment.rewards.detach().mean(), segment.fell.float().mean(), critic_loss * world, norm, std]
        if reports is None:
            numbers = torch.stack((*logged, nothing, nothing, explained, saturated))
            tallies = torch.zeros(2)
        else:
            growth = health.log_growth(reports, self._bound)
            numbers = torch.stack((*logged, reports[..., CLIPPED].mean(), growth, explained, saturated))
            tallies = reports.sum((0, 1))[[CLIPPED, BROKEN]]
        numbers = self.total(torch.cat((numbers, segment.terms, tallies)))
        if reports is not None:
            clipped, broken = numbers[-2:].tolist()
            adjoints = float(self.horizon * self.env.num_envs * world)
            for name, value in (("clipped", clipped), ("nonfinite_adjoints", broken), ("adjoints", adjoints)):
                self.counts[name] += value
            self.running_bound.update(float(self._gathered(reports[..., LENGTH]).median()))
            self._adapt(clipped / adjoints)
        self._means += torch.cat((numbers[:-2] / world, torch.tensor([float(reports is not None), 1.0])))

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Leave what happens inside out of `seconds`."""
        begin = time.process_time()
        yield
        self._clock += time.process_time() - begin

    def on_train_epoch_start(self) -> None:
        if self.samples >= self.settings.samples:  # a finished run that is resumed has no segment
            self.trainer.should_stop = True
        self._means = torch.zeros(len(LOGGED) + len(self.env.term_names) + 2)

    @property
    def means(self) -> dict[str, float]:
        """Numbers to log, means over the segments of this epoch; nothing before the first."""
        if not self._means[-1]:
            return {}
        names = *LOGGED, *(f"reward_{name}" for name in self.env.term_names)
        means = dict(zip(names, (self._means[:-2] / self._means[-1]).tolist(), strict=True))
        share = max(float(self._means[-2] / self._means[-1]), 1e-9)  # of segments with a gradient
        means |= {name: means[name] / share for name in GUIDED}
        return means | {"health_growth": health.growth(means["health_growth"], self.horizon), "horizon": float(self.horizon)}

    @property
    def health(self) -> health.Health | None:
        """How learning goes in this epoch; None before its first segment."""
        means = self.means
        return health.Health(**{name: means[column] for name, column in zip(health.Health._fields, SEEN, strict=True)}) if means else None

    def on_train_epoch_end(self) -> None:
        """Log to the loggers of the trainer."""
        self.log_dict(self.means)

    def _adapt(self, clipped: float) -> None:
        limits = self.settings.adaptive_horizon
        if limits is not None:
            low, high = limits
            self.horizon = max(low, self.horizon - 1) if clipped > self.settings.clip_target else min(high, self.horizon + 1)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        envs: list[Any] = [self.env.state_dict()]
        if self._world > 1:  # the environments of all processes, in their order
            envs = [None] * self._world
            distributed.all_gather_object(envs, self.env.state_dict())
        checkpoint["shac"] = {
            "settings": dataclasses.asdict(self.settings),
            "envs": envs,
            "generator": self.generator.get_state(),
            "samples": self.samples,
            "horizon": self.horizon,
            "seconds": self.seconds,
            "counts": dict(self.counts),
            "bound": float(self.running_bound.value),
            "refinement": None if self.refinement is None else self.refinement.state_dict(),
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        kept: Mapping[str, Any] = checkpoint["shac"]
        if len(kept["envs"]) != self._world:
            raise ValueError(f"checkpoint: got one of {len(kept['envs'])} processes; allowed: {self._world}, as many as there are now")
        current = dataclasses.asdict(self.settings)
        other = {name: value for name, value in {**BEFORE, **kept["settings"]}.items() if name in current and current[name] != value}
        if other:
            told = ", ".join(f"settings.{name}={value!r}" for name, value in other.items())
            raise ValueError(f"checkpoint: got one that was trained with {told}; allowed: the same; write them into config.yaml of the run")
        self.env.load_state_dict(kept["envs"][self._rank])
        self.generator.set_state(kept["generator"])
        self.samples, self.horizon, self.seconds = kept["samples"], kept["horizon"], kept["seconds"]
        self.counts = dict(kept["counts"])
        self.running_bound.value.fill_(kept.get("bound", RunningBound.FIRST))  # earlier revisions had none
        if self.refinement is not None:
            self.refinement.load_state_dict(kept["refinement"])


class _Segments(IterableDataset[int]):
    """Numbers of segments, to the end of an epoch: a checkpoint falls between epochs."""

    PER_EPOCH = 10

    def __init__(self, module: Shac) -> None:
        self.module = module

    def __iter__(self) -> Iterator[int]:
        for number in range(self.PER_EPOCH):
            if self.module.samples >= self.module.settings.samples:
                return
            yield number
