"""The numbers of SHAC, and what they may be."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from torchdojo.runs.description import check_whole

__all__ = ["ShacSettings"]


@dataclass(frozen=True)
class ShacSettings:
    """Numbers of SHAC. The defaults are for a robot that nobody has tuned: what they depend on is measured while it learns.

    samples: control steps of all environments after which training ends. num_envs, horizon: B and H of a segment, samples of one process.
    gamma, lam: discount, λ of TD(λ). reward_scale: factor of rewards for the critics, whose weights begin at values of about one.
    actor_lam: λ of the return that the actor climbs; 1: that of SHAC, with the value of the last state alone. Below 1, values of all states
        count, as in Dreamer (Hafner et al. 2020), which tells the actor of falls.
    adjoint_clip: bound of |dReturn/dz| of one environment at one control step, in units of the reward. "auto": it follows the median of
        these adjoints (`RunningBound`). None: no clipping.
    actor, critic: widths of hidden layers. std: standard deviation of actions at the start.
    critics, pessimistic: number of critics, and whether the actor sees the smallest value instead of their mean (SAPO, Xing et al. 2025).
    lr, critic_lr: learning rates of Adam at the start, which fall linearly to `final_lr` of that. betas: of Adam. max_norm: of gradients.
    critic_epochs, critic_batches: passes over a segment, and parts of each pass. polyak: share of the target critics that is kept.
    entropy: weight of the policy's entropy in the reward, before `reward_scale` (soft values as in SAPO). target_entropy: if given, the
        weight is learned so that the entropy per action tends to it.
    adaptive_horizon: shortest and longest horizon. It shrinks by one where more than `clip_target` of the adjoints are clipped, and grows
        by one otherwise. AHAC (Georgiev et al. 2024) does so by the Jacobians of contact; here the adjoint itself decides. With
        `compile: false` alone.
    passes: of PPO over a segment after SHAC's step (`Refinement`), which tell of falls; 0: none. batches: parts of each pass.
        ratio_clip: ε of the ratio of probabilities. refine_lr: rate of Adam. bonus: weight of the entropy of actions before tanh.
        desired_kl: by how much the policy is to move in a segment, which falls linearly to `final_kl` of that. It sets `lr` and
        `refine_lr` on the way, in the place of `final_lr`. The deviation of actions is learned by the passes alone.
    saturation: weight of Σ max(|μ| − 1, 0)² of the mean actions μ before tanh, in units of the reward. Behind tanh, gradients of actions
        near their ends are lost: without this, a leg that leans to one side early in training stays there.
    symmetric: whether the actor is that of the robot's left-right symmetry (`SymmetricActor`); the environment needs `mirror()`.
    compile: whether policy and environment are compiled together, for half a minute to a minute and a half before the first segment.
    """

    samples: int = 500_000
    num_envs: int = 64
    horizon: int = 32
    gamma: float = 0.99
    lam: float = 0.95
    actor_lam: float = 0.95
    reward_scale: float = 0.02
    adjoint_clip: float | Literal["auto"] | None = "auto"
    actor: tuple[int, ...] = (128, 64, 32)
    critic: tuple[int, ...] = (64, 64)
    std: float = 0.8
    critics: int = 1
    pessimistic: bool = False
    lr: float = 2e-3
    critic_lr: float = 2e-3
    final_lr: float = 0.01
    betas: tuple[float, float] = (0.7, 0.95)
    max_norm: float = 1.0
    critic_epochs: int = 4
    critic_batches: int = 4
    polyak: float = 0.2
    entropy: float = 0.0
    target_entropy: float | None = None
    adaptive_horizon: tuple[int, int] | None = None
    clip_target: float = 0.3
    passes: int = 5
    batches: int = 4
    ratio_clip: float = 0.2
    refine_lr: float = 2e-3
    desired_kl: float = 0.04
    final_kl: float = 0.1
    bonus: float = 0.0
    saturation: float = 0.0
    symmetric: bool = False
    compile: bool = True

    def __post_init__(self) -> None:
        check_whole(self, ("samples", "num_envs", "horizon", "critics", "critic_epochs", "critic_batches"))
        check_whole(self, ("batches",))
        if not isinstance(self.passes, int) or self.passes < 0:
            raise ValueError(f"passes: got {self.passes!r}; allowed: a whole number of 0 or more")
        for name in ("reward_scale", "std", "lr", "critic_lr", "max_norm", "ratio_clip", "refine_lr", "desired_kl"):
            if not 0 < (value := getattr(self, name)) < math.inf:
                raise ValueError(f"{name}: got {value!r}; allowed: a finite number above 0")
        for name in ("gamma", "lam", "actor_lam", "polyak", "final_lr", "final_kl", "clip_target"):
            if not 0 <= (value := getattr(self, name)) <= 1:
                raise ValueError(f"{name}: got {value!r}; allowed: a number from 0 to 1")
        if not 0 <= self.saturation < math.inf:
            raise ValueError(f"saturation: got {self.saturation!r}; allowed: a finite number of 0 or more")
        if self.adjoint_clip not in (None, "auto") and not (isinstance(self.adjoint_clip, float | int) and self.adjoint_clip > 0):
            raise ValueError(f"adjoint_clip: got {self.adjoint_clip!r}; allowed: a number above 0, auto, or null for none")
        if self.adaptive_horizon is not None and not 1 <= self.adaptive_horizon[0] <= self.horizon <= self.adaptive_horizon[1]:
            raise ValueError(f"adaptive_horizon: got {self.adaptive_horizon!r}; allowed: (shortest, longest) about horizon={self.horizon}")
        if self.adaptive_horizon is not None and self.compile:
            raise ValueError(
                f"adaptive_horizon: got {self.adaptive_horizon!r} with compile: true, which compiles anew for each horizon; "
                "allowed: with compile: false"
            )
