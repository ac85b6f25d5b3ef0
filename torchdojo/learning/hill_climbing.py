"""A search for a few parameters, as Brüdigam et al. (2024) let a quadruped find a gait, with its episodes in batches.

Without a direction, candidates scatter about the best parameters. Once one is better, half of the next candidates go on in the direction
in which it lay, and the others scatter. Where no candidate of a batch is better, the direction is forgotten and the scatter shrinks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Climb", "climb"]


@dataclass(frozen=True)
class Climb:
    """The result of `climb`.

    best: (n,) parameters. score: of them. scores: (episodes,) in the order in which they were tried. parameters: (episodes, n).
    """

    best: Tensor
    score: float
    scores: Tensor
    parameters: Tensor


@torch.no_grad()
def climb(
    score: Callable[[Tensor], Tensor],
    start: Tensor,
    *,
    episodes: int = 100,
    batch: int = 10,
    explore: float = 0.1,
    shrink: float = 0.9,
    seed: int = 0,
) -> Climb:
    """Maximize a score of a few parameters.

    Args:
        score: parameters (batch, n) -> (batch,); what is not finite is never taken. start: (n,), which the first batch scatters about.
        episodes: how many candidates are tried, in batches of `batch`. explore: standard deviation of the scatter at the start and after
            every gain. shrink: its factor after a batch without a gain.

    Raises:
        ValueError: numbers that do not fit.
    """
    if not 1 <= batch <= episodes or episodes % batch:
        raise ValueError(f"climb: got episodes={episodes} in batches of {batch}; allowed: a multiple of the batch, which is 1 or more")
    generator = torch.Generator().manual_seed(seed)
    best, top, direction, scatter = start.double(), -torch.inf, torch.zeros_like(start, dtype=torch.float64), explore
    scores, tried = list[Tensor](), list[Tensor]()
    for _ in range(episodes // batch):
        candidates = best + scatter * torch.randn(batch, len(best), generator=generator, dtype=torch.float64)
        if bool(direction.any()):
            ahead = batch - batch // 2  # of one candidate, it is the one that goes on
            steps = torch.linspace(0.5, 2.0, ahead, dtype=torch.float64)[:, None]
            noise = 0.2 * scatter * torch.randn(ahead, len(best), generator=generator, dtype=torch.float64)
            candidates = torch.cat((best + steps * direction + noise, candidates[ahead:]))
        values = score(candidates).double()
        scores.append(values)
        tried.append(candidates)
        values = torch.where(torch.isfinite(values), values, -torch.inf)
        i = int(values.argmax())
        if float(values[i]) > top:
            direction = torch.zeros_like(best) if top == -torch.inf else candidates[i] - best
            best, top, scatter = candidates[i], float(values[i]), explore
        else:
            direction, scatter = torch.zeros_like(best), scatter * shrink
    return Climb(best, top, torch.cat(scores), torch.cat(tried))
