"""Passes over the samples of a segment after SHAC's step, without gradients of the physics: PPO's surrogate and its trust region.

The gradient of a segment knows how rewards change with actions, and nothing of falls: an episode that ends is a jump, which has no
gradient. It is also biased by the clipping of adjoints. A hopper on a ball as foot, whose task is not to fall, learned 4 times slower by it
than by PPO. Likelihood ratios see falls, and have no bias, but more noise. Son et al. 2023 (Gradient Informed PPO) take both: a step along
the gradient first, then PPO on the same samples, whose trust region holds both steps together. Here, with advantages A of TD(λ),

    maximize  E min(ρ A, clip(ρ, 1 − ε, 1 + ε) A),     ρ = π(a) / π₀(a),     π₀ the policy that acted

Both are gradients of one return, so the cosine between them tells whether that of the physics can be trusted here. Where its running mean
falls below `ENOUGH`, segments have no gradient, which takes a third of the time off, but for every tenth, which looks again.

The divergence KL(π₀ | π) after the passes sets the rates of both steps: above twice the wanted one they shrink, below half they grow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from torchdojo.learning.critic_fit import Fit
from torchdojo.learning.networks import Actor

__all__ = ["Refinement"]


class Refinement:
    """Passes of PPO over a segment, and the factor of the learning rates that its divergence decides.

    Args:
        actor: the policy. clip: ε. desired_kl: divergence of a segment's update to tend to. max_norm: of gradients.
        bonus: weight of the entropy of actions before tanh, so that deviations do not vanish early.
        compiled: whether the steps of one process are compiled, in a few seconds.

    Attributes:
        scale: factor of the learning rates. kl: of the last update. segments: updates so far.
        agreement: running mean of the cosine between the gradient through the physics and that of likelihood ratios.
    """

    ENOUGH, KEEP, PROBE = 0.1, 0.9, 10  # of `agreement`: what a step along the gradient needs; its running mean; segments between looks
    FACTOR, LEAST, MOST = 1.5, 1e-2, 10.0  # of `scale`: a change, and its bounds

    def __init__(
        self, actor: Actor, clip: float, desired_kl: float, max_norm: float = 1.0, compiled: bool = False, bonus: float = 0.0
    ) -> None:
        self.actor, self.desired_kl = actor, desired_kl
        self.scale, self.kl, self.agreement, self.segments = 1.0, 0.0, 1.0, 0
        self.loss = _Surrogate(actor, clip, bonus)
        self._fit = Fit(self.loss, (0.9, 0.999), max_norm) if compiled else None
        self._before: tuple[Tensor, Tensor] | None = None

    @property
    def guided(self) -> bool:
        """Whether the next segment is to have a gradient: where gradients of late agreed with likelihood ratios, and now and then."""
        return self.agreement >= self.ENOUGH or self.segments % self.PROBE == 0

    def state_dict(self) -> dict[str, Any]:
        """The numbers that decide how the next update goes, besides weights and optimizer."""
        return {"scale": self.scale, "agreement": self.agreement, "segments": self.segments}

    def load_state_dict(self, given: Mapping[str, Any]) -> None:
        """Go on from a `state_dict`."""
        self.scale, self.agreement, self.segments = given["scale"], given["agreement"], given["segments"]

    def compare(self, obs: Tensor, noise: Tensor, advantages: Tensor, total: Callable[[Tensor], Tensor]) -> None:
        """Take the cosine between the gradient that the actor has now, and that of the surrogate, into `agreement`."""
        weights = [weight for weight in self.actor.parameters() if weight.grad is not None and weight is not self.actor.log_std]
        actor_gradient = torch.cat([weight.grad.flatten() for weight in weights if weight.grad is not None])
        mean = self.actor.mean(obs)
        density = ((mean.detach() - mean) * noise * (-self.actor.log_std.detach()).exp()).sum(-1)
        first, count = total(torch.stack((advantages.sum(), advantages.new_tensor(float(advantages.numel())))))
        gradients = torch.autograd.grad((density * (advantages - first / count)).sum(), weights)
        ours, theirs = total(actor_gradient), total(torch.cat([gradient.flatten() for gradient in gradients]))
        cosine = float(torch.nn.functional.cosine_similarity(ours, theirs, dim=0))
        if cosine == cosine:
            self.agreement = self.KEEP * self.agreement + (1.0 - self.KEEP) * cosine

    @torch.no_grad()
    def begin(self, obs: Tensor) -> None:
        """Keep the policy that acted on these observations (H, B, num_obs), before any step of an update."""
        self._before = self.actor.mean(obs), self.actor.log_std.clone()

    def __call__(
        self,
        obs: Tensor,
        noise: Tensor,
        advantages: Tensor,
        parts: Sequence[tuple[Tensor, int]],
        optimizer: Any,
        step: Callable[[Any], Any],
        total: Callable[[Tensor], Tensor],
    ) -> int:
        """Take the passes. Returns the number of steps that were left out, of those that `step` has not counted.

        Args:
            obs: (H, B, num_obs). noise: (H, B, nu), with which the policy acted. advantages: (H, B).
            parts: for each step of the optimizer, rows of the H · B samples of this process, and the number of samples of all.
            optimizer: an Adam of the actor. step: takes its step along the gradients. total: the sum of a tensor over processes.
        """
        assert self._before is not None
        mean, log_std = self._before
        with torch.no_grad():
            actions = (mean + log_std.exp() * noise).flatten(0, 1)
            density = (-0.5 * noise.square() - log_std).sum(-1).flatten()
            moments = torch.stack((advantages.sum(), advantages.square().sum(), advantages.new_tensor(float(advantages.numel()))))
            first, second, count = total(moments)
            deviation = (second / count - (first / count).square()).clamp_min(0.0).sqrt()
            gains = ((advantages - first / count) / (deviation + 1e-8)).flatten()
        data, skipped = (obs.flatten(0, 1), actions, density, gains), 0
        if self._fit is not None and all(len(part) == size == len(parts[0][0]) for part, size in parts):
            skipped = int(self._fit.take(optimizer, data, [part for part, _ in parts])[1])
        else:
            for part, size in parts:
                optimizer.zero_grad()
                (self.loss(*(tensor[part] for tensor in data)) / size).backward()
                step(optimizer)
        self._adapt(obs, total)
        self.segments += 1
        return skipped

    @torch.no_grad()
    def _adapt(self, obs: Tensor, total: Callable[[Tensor], Tensor]) -> None:
        """Measure the divergence, and correct the learning rates."""
        assert self._before is not None
        (mean, log_std), new_mean, new_log_std = self._before, self.actor.mean(obs), self.actor.log_std
        moved = ((2.0 * log_std).exp() + (mean - new_mean).square()) / (2.0 * (2.0 * new_log_std).exp())
        each = (new_log_std - log_std + moved - 0.5).sum(-1)
        away, count = total(torch.stack((each.sum(), each.new_tensor(float(each.numel()))))).tolist()
        self.kl = away / count
        if not self.kl <= 2.0 * self.desired_kl:
            self.scale = max(self.LEAST, self.scale / self.FACTOR)
        elif self.kl < 0.5 * self.desired_kl:
            self.scale = min(self.MOST, self.scale * self.FACTOR)


class _Surrogate(nn.Module):
    """Minus the sum of min(ρ A, clip(ρ, 1 − ε, 1 + ε) A) over samples, and minus `bonus` × entropy, but for a constant."""

    def __init__(self, actor: Actor, clip: float, bonus: float) -> None:
        super().__init__()
        self.actor, self.clip, self.bonus = actor, clip, bonus

    def forward(self, obs: Tensor, taken: Tensor, density: Tensor, gain: Tensor) -> Tensor:
        """obs: (n, num_obs). taken: (n, nu), actions before tanh. density: (n,), log π₀ but for a constant. gain: (n,), A."""
        away = (taken - self.actor.mean(obs)) / self.actor.log_std.exp()
        ratio = ((-0.5 * away.square() - self.actor.log_std).sum(-1) - density).exp()
        surrogate = torch.minimum(ratio * gain, ratio.clamp(1.0 - self.clip, 1.0 + self.clip) * gain).sum()
        return -surrogate - self.bonus * len(obs) * self.actor.log_std.sum()
