"""The environment class for torchrl: its own checker, partial resets, seeds, equal results with `Env`, gradients, bad input."""

from __future__ import annotations

import pytest
import torch

from torchdojo.envs import make
from torchdojo.native import loader

pytest.importorskip("torchrl", reason="torchrl is not installed")
from torchrl.envs import StepCounter, TransformedEnv, check_env_specs

from torchdojo.envs.torchrl import TorchRLEnv

pytestmark = pytest.mark.skipif(not loader.available(), reason="no compiler for the native kernel")
OPTIONS = {"pool": 8, "episode_length": 4, "seed": 3}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_specs(dtype: torch.dtype) -> None:
    for report in (False, True):
        check_env_specs(TorchRLEnv("hopper", 3, dtype=dtype, report=report, **OPTIONS))


def test_episodes_start_anew_where_they_end() -> None:
    env = TransformedEnv(TorchRLEnv("hopper", 5, report=True, **OPTIONS), StepCounter())
    data = env.rollout(11, break_when_any_done=False)
    done, count = data["next", "done"][..., 0], data["next", "step_count"][..., 0]
    assert data.shape == (5, 11) and done.any() and count.max() == 4
    assert (count[:, 1:] == torch.where(done[:, :-1], 1, count[:, :-1] + 1)).all()
    assert torch.equal(data["next", "observation"][:, :-1][~done[:, :-1]], data["observation"][:, 1:][~done[:, :-1]])
    terms = sum(data["next", "terms"].values())
    torch.testing.assert_close(terms, data["next", "reward"], atol=1e-6, rtol=1e-5)  # float32


def test_equal_seeds_give_equal_episodes() -> None:
    env = TorchRLEnv("hopper", 2, **OPTIONS)
    first, second = (rollout(env, seed) for seed in (7, 7))
    assert torch.equal(first, second) and not torch.equal(first, rollout(env, 8))


def rollout(env: TorchRLEnv, seed: int) -> torch.Tensor:
    env.set_seed(seed)
    return env.rollout(6, lambda observation: 0.2 * observation[:, :3].tanh())["next", "observation"]


def test_gradients_are_those_of_the_environment() -> None:
    env = TorchRLEnv("hopper", 2, differentiable=True, dtype=torch.float64, pool=8, seed=3)
    plain = make("hopper", num_envs=2, pool=8, seed=3, autoreset="disabled")
    actions = torch.full((2, 3), 0.1, dtype=torch.float64, requires_grad=True)
    data = env.reset()
    env.torch_env.load_state_dict(plain.state_dict())
    total = torch.zeros((), dtype=torch.float64)
    expected = torch.zeros((), dtype=torch.float64)
    for _ in range(3):
        data = env.step(data.set("action", actions))["next"]
        total = total + data["reward"].sum()
        expected = expected + plain.step(actions).reward.sum()
    assert total == expected
    (got,), (wanted,) = torch.autograd.grad(total, [actions]), torch.autograd.grad(expected, [actions])
    assert torch.equal(got, wanted) and got.abs().max() > 0
    env.detach()
    assert not env.torch_env.obs.requires_grad


def test_no_graph_unless_it_is_asked_for() -> None:
    env = TorchRLEnv("hopper", 1, **OPTIONS)
    data = env.reset().set("action", torch.zeros(1, 3, requires_grad=True))
    assert not env.step(data)["next", "reward"].requires_grad


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="autoreset: got 'same_step'; allowed"):
        TorchRLEnv("hopper", 2, autoreset="same_step")
    with pytest.raises(ValueError, match="num_envs: got 0"):
        TorchRLEnv("hopper", 0)
