"""Networks of a policy: actor, critics, and the normalizer of observations."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

__all__ = ["Actor", "Critics", "Normalizer", "perceptron"]

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

    def forward(self, obs: Tensor) -> Tensor:
        """The mean action, (B, num_obs) -> (B, num_actions), between -1 and 1."""
        return torch.tanh(self.body(self.normalizer(obs.to(self.log_std.dtype))))

    def sample(self, obs: Tensor, noise: Tensor) -> Tensor:
        """An action with standard normal noise (B, num_actions), differentiable in all."""
        return torch.tanh(self.body(self.normalizer(obs.to(self.log_std.dtype))) + self.log_std.exp() * noise)


class Critics(nn.Module):
    """Values of observations by one network or several: normalized (..., num_obs) -> (number, ...)."""

    def __init__(self, num_obs: int, hidden: Sequence[int] = (64, 64), number: int = 1) -> None:
        super().__init__()
        self.heads = nn.ModuleList(perceptron(num_obs, hidden, 1) for _ in range(number))

    def forward(self, obs: Tensor) -> Tensor:
        return torch.stack([head(obs).squeeze(-1) for head in self.heads])
