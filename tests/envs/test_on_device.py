"""Environments for policies on a GPU: `OnDevice` changes where tensors are, and nothing else."""

from __future__ import annotations

import copy

import pytest
import torch

import torchdojo as td

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"))]


@pytest.mark.parametrize("device", DEVICES)
def test_it_is_the_environment(device: str) -> None:
    env = td.envs.make("hopper", num_envs=3, seed=0, episode_length=3)
    there = td.envs.OnDevice(td.envs.make("hopper", num_envs=3, seed=0, episode_length=3), device)
    torch.manual_seed(0)
    actions = torch.randn(5, 3, env.num_actions)
    assert torch.equal(there.reset().cpu(), env.reset()) and there.num_obs == env.num_obs
    for action in actions:
        out, expected = there.step(action.to(device)), env.step(action)
        assert all(value.device.type == device for value in out[:5]) and out.info["terms"].keys() == expected.info["terms"].keys()
        assert all(torch.equal(a.cpu(), b) for a, b in zip(out[:5], expected[:5], strict=True))
        assert torch.equal(out.info["episode_return"].cpu(), expected.info["episode_return"])
    assert there.statistics == env.statistics and torch.equal(there.obs.cpu(), env.obs)
    mask = torch.tensor([True, False, True], device=device)
    assert torch.equal(there.reset(mask, index=torch.zeros(3, dtype=torch.int64)).cpu(), env.reset(mask.cpu(), index=torch.zeros(3).long()))
    assert copy.copy(there).device.type == device


@pytest.mark.parametrize("device", DEVICES)
def test_gradients_pass(device: str) -> None:
    env = td.envs.OnDevice(td.envs.make("hopper", num_envs=3, seed=0, dtype=torch.float32), device)
    policy = torch.nn.Linear(env.num_obs, env.num_actions, device=device, dtype=torch.float32)
    obs, total = env.detach(), torch.zeros((), device=device)
    for _ in range(3):
        out = env.step(torch.tanh(policy(obs)))
        obs, total = out.obs, total + out.reward.sum()
    total.backward()
    assert policy.weight.grad is not None and policy.weight.grad.device.type == device and bool(policy.weight.grad.any())


def test_what_is_refused() -> None:
    with pytest.raises(TypeError, match="OnDevice: got str; allowed: an environment"):
        td.envs.OnDevice("hopper", "cpu")  # type: ignore[arg-type]
    env = td.envs.OnDevice(td.envs.make("hopper", num_envs=3), "cpu")
    with pytest.raises(TypeError, match="Segment: got an OnDevice; allowed: its env"):
        td.envs.Segment(env, torch.nn.Linear(env.num_obs, env.num_actions))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="action: got shape"):
        env.step(torch.zeros(2, env.num_actions))
