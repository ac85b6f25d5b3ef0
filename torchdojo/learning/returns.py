"""Discounts and returns of a segment of H control steps of B environments, in which episodes may end."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["discounts", "lambda_returns"]


def discounts(done: Tensor, gamma: float) -> Tensor:
    """γ^k, with k the control steps since the segment or the episode began. done: (H, B) bool. Returns (H, B)."""
    steps = torch.arange(len(done), device=done.device)[:, None]
    begin = torch.zeros_like(done, dtype=torch.int64)
    begin[1:] = torch.where(done[:-1], steps[1:], 0)
    return gamma ** (steps - begin.cummax(0).values)


def lambda_returns(rewards: Tensor, values: Tensor, done: Tensor, gamma: float, lam: float) -> Tensor:
    """Targets of a critic, TD(λ) (Sutton and Barto, section 12.2), bootstrapped where an episode or the segment ends.

        y_t = r_t + γ v_t where the episode or the segment ends at t,   else   r_t + γ ((1 − λ) v_t + λ y_{t+1})

    Args:
        rewards: (H, B). values: (H, B) of the states after each step, before resets; zero where a fall ended the episode.
        done: (H, B) bool. gamma, lam: discount and λ.

    Returns:
        (H, B).
    """
    targets = [rewards[-1] + gamma * values[-1]]
    for reward, value, ended in reversed(list(zip(rewards[:-1], values[:-1], done[:-1], strict=True))):
        targets.append(reward + gamma * torch.where(ended, value, torch.lerp(value, targets[-1], lam)))
    return torch.stack(targets[::-1])
