"""The compiled fit of critics takes the steps of PyTorch's own Adam."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from torchdojo.learning.critic_fit import CriticFit
from torchdojo.learning.networks import Critics


@pytest.mark.parametrize("broken", [False, True])
def test_steps_are_those_of_adam(broken: bool) -> None:
    torch.manual_seed(0)
    ours = Critics(5, (8, 4), 2).double()
    theirs, betas = copy.deepcopy(ours), (0.7, 0.95)
    obs, targets, parts = torch.randn(12, 5).double(), 10.0 * torch.randn(12).double(), torch.randperm(12).chunk(3)
    if broken:
        targets[parts[1][0]] = torch.nan
    fit = CriticFit(ours, betas, 1.0)
    mine, optimizer = (torch.optim.Adam(critics.parameters(), lr=1e-2, betas=betas) for critics in (ours, theirs))
    for _ in range(2):
        with torch.compiler.set_stance("force_eager"):
            loss, skipped = fit(mine, obs, targets, parts)
        for part in parts:
            error = theirs(obs[part]) - targets[part]
            expected = error.square().sum() / len(part)
            optimizer.zero_grad()
            expected.backward()
            norm = nn.utils.clip_grad_norm_(theirs.parameters(), 1.0)
            if bool(norm.isfinite()):
                optimizer.step()
        assert skipped == broken
        torch.testing.assert_close(loss, expected.detach(), rtol=1e-12, atol=0)
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-12)
            for name, value in optimizer.state[b].items():
                torch.testing.assert_close(mine.state[a][name], value, rtol=1e-11, atol=1e-12)
