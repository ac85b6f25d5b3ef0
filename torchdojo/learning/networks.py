"""Networks of a policy: actor, critics, and the normalizer of observations."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

__all__ = ["Actor", "Critics", "Mirrored", "Normalizer", "SymmetricActor", "make_actor", "perceptron"]

Reduce = Callable[[Tensor], Tensor]


def perceptron(inputs: int, hidden: Sequence[int], outputs: int) -> nn.Sequential:
    """Layers of ELU and LayerNorm, and a linear one: (..., inputs) -> (..., outputs)."""
    layers = list[nn.Module]()
    sizes = (inputs, *hidden)
    for before, after in itertools.pairwise(sizes):
        layers += [nn.Linear(before, after), nn.ELU(), nn.LayerNorm(after)]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], outputs))


class Normalizer(nn.Module):
    """Running mean and variance of observations: (..., n) -> (..., n), within ±10 standard deviations.

    The moments of batches are combined as Chan et al. 1979 do, so the result does not depend on how observations are split.
    """

    mean: Tensor
    var: Tensor
    count: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("var", torch.ones(size))
        self.register_buffer("count", torch.tensor(1e-4, dtype=torch.float64))

    def forward(self, obs: Tensor) -> Tensor:
        return ((obs - self.mean) * (self.var + 1e-5).rsqrt()).clamp(-10.0, 10.0)

    @torch.no_grad()
    def update(self, obs: Tensor, reduce: Reduce | None = None) -> None:
        """Take in observations (..., n). reduce: sums a tensor over the processes of a run."""
        rows = obs.reshape(-1, obs.shape[-1]).double()
        # Sums about the present mean lose no digits where the mean is far from zero.
        away = rows - self.mean
        sums = torch.stack((away.sum(0), away.square().sum(0), torch.full_like(self.mean, len(rows), dtype=torch.float64)))
        sums = sums if reduce is None else reduce(sums)
        count = sums[2, 0]
        shift, total = sums[0] / count, self.count + count
        spread = sums[1] / count - shift.square()
        between = shift.square() * self.count * count / total
        self.var.copy_((self.var * self.count + spread * count + between) / total)
        self.mean.add_((shift * count / total).to(self.mean.dtype))
        self.count.copy_(total)


class Actor(nn.Module):
    """A Gaussian policy through tanh: a = tanh(μ(obs) + σ ε), with a standard deviation for each action.

    Args:
        num_obs, num_actions: sizes. hidden: widths of the layers. std: standard deviation at the start.
    """

    def __init__(self, num_obs: int, num_actions: int, hidden: Sequence[int] = (128, 64, 32), std: float = 0.37) -> None:
        super().__init__()
        self.normalizer = Normalizer(num_obs)
        self.body = perceptron(num_obs, hidden, num_actions)
        self.log_std = nn.Parameter(torch.full((num_actions,), std).log())
        with torch.no_grad():  # a policy that begins near zero begins without falls
            last = self.body[-1]
            assert isinstance(last, nn.Linear)
            last.weight *= 0.1
            last.bias.zero_()

    def mean(self, obs: Tensor) -> Tensor:
        """μ(obs), the mean action before tanh, (B, num_obs) -> (B, num_actions)."""
        mean: Tensor = self.body(self.normalizer(obs.to(self.log_std.dtype)))
        return mean

    def forward(self, obs: Tensor) -> Tensor:
        """The mean action, (B, num_obs) -> (B, num_actions), between -1 and 1."""
        return torch.tanh(self.mean(obs))

    def sample(self, obs: Tensor, noise: Tensor) -> Tensor:
        """An action with standard normal noise (B, num_actions), differentiable in all."""
        return self.sample_and_mean(obs, noise)[0]

    def sample_and_mean(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """The action of `sample`, and μ(obs)."""
        mean = self.mean(obs)
        return torch.tanh(mean + self.log_std.exp() * noise), mean


class Mirrored(Protocol):
    """Reflection of a robot's left and right, as `td.envs.Locomotion.mirror` gives it."""

    @property
    def obs(self) -> Tensor:
        """(num_obs, num_obs)"""

    @property
    def action(self) -> Tensor:
        """(num_actions, num_actions)"""


class SymmetricActor(Actor):
    """An actor that does in the mirrored situation the mirror image of what it does now, whatever its weights are.

        μ(o) = (f(o) + M f(M o)) / 2,    so that μ(M o) = M μ(o)

    This holds because the reflection M is its own inverse. Without it a gait becomes lopsided, which costs no reward on flat ground.

    Args:
        mirror: the reflection. The others are as of `Actor`.

    Raises:
        ValueError: matrices of other sizes, or that are not their own inverses.
    """

    mirror_obs: Tensor
    mirror_action: Tensor

    def __init__(
        self, num_obs: int, num_actions: int, hidden: Sequence[int] = (128, 64, 32), std: float = 0.37, *, mirror: Mirrored
    ) -> None:
        super().__init__(num_obs, num_actions, hidden, std)
        for name, size in (("obs", num_obs), ("action", num_actions)):
            matrix = getattr(mirror, name).to(self.log_std.dtype)
            good = tuple(matrix.shape) == (size, size)
            if not good or not bool((matrix @ matrix - torch.eye(size, dtype=matrix.dtype)).abs().max() < 1e-6):
                wrong = "which is not its own inverse" if good else f"for {size} entries"
                raise ValueError(
                    f"mirror, {name}: got a matrix {tuple(matrix.shape)}, {wrong}; allowed: ({size}, {size}), a reflection; correct "
                    "mirror() of the environment, or train with symmetric: false"
                )
            self.register_buffer(f"mirror_{name}", matrix, persistent=False)

    def mean(self, obs: Tensor) -> Tensor:
        """μ(obs), equivariant."""
        inputs = obs.to(self.log_std.dtype)
        out = self.body(self.normalizer(torch.stack((inputs, inputs @ self.mirror_obs.mT))))
        return 0.5 * (out[0] + out[1] @ self.mirror_action.mT)


ActorFactory = Callable[[int, int, Sequence[int], float], Actor]


def make_actor(env: Any, hidden: Sequence[int], std: float, symmetric: bool = False, factory: ActorFactory | None = None) -> Actor:
    """The actor of an environment, for algorithms.

    Args:
        env: with `num_obs`, `num_actions`, and `mirror()` where the actor is to be symmetric. hidden, std: as of `Actor`.
        factory: (num_obs, num_actions, hidden, std) -> `Actor`, instead of the classes here.

    Raises:
        ValueError: a symmetric actor of an environment without `mirror()`, or both a factory and symmetry.
    """
    if factory is not None and symmetric:
        raise ValueError("actor: got a factory and symmetric=True; allowed: one of them; let the factory make a td.learning.SymmetricActor")
    if factory is not None:
        return factory(env.num_obs, env.num_actions, hidden, std)
    if not symmetric:
        return Actor(env.num_obs, env.num_actions, hidden, std)
    if not hasattr(env, "mirror"):
        raise ValueError(
            f"symmetric: got true for {type(env).__name__}, which has no mirror(); allowed: environments with mirror() -> (obs, action), "
            "two matrices, as `def mirror(self): return td.envs.find_mirror(self)` gives; or leave symmetric out"
        )
    return SymmetricActor(env.num_obs, env.num_actions, hidden, std, mirror=env.mirror())


class Critics(nn.Module):
    """Values of observations by one network or several: normalized (..., num_obs) -> (number, ...)."""

    def __init__(self, num_obs: int, hidden: Sequence[int] = (64, 64), number: int = 1) -> None:
        super().__init__()
        self.heads = nn.ModuleList(perceptron(num_obs, hidden, 1) for _ in range(number))

    def forward(self, obs: Tensor) -> Tensor:
        return torch.stack([head(obs).squeeze(-1) for head in self.heads])
