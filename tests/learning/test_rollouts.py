"""Evaluations of policies: what is counted until an episode ends, records, and variants of an environment."""

from __future__ import annotations

import functools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

import torchdojo as td
from torchdojo.learning.rollouts import evaluate, variants
from torchdojo.native import loader

pytestmark = pytest.mark.skipif(not loader.available(), reason="no compiler for the native kernel")
make = functools.partial(td.envs.make, pool=16)


def still(num_actions: int) -> Any:
    return lambda obs: torch.zeros(len(obs), num_actions)


def test_an_evaluation_is_the_sum_of_its_steps() -> None:
    env = make("hopper", num_envs=3, autoreset="disabled", seed=4)
    weights = 0.3 * torch.randn(env.num_obs, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float32)
    seen: list[torch.dtype] = []

    def policy(obs: Tensor) -> Tensor:
        seen.append(obs.dtype)
        return torch.tanh(obs @ weights)

    result = evaluate(env, policy, 400, record=True)
    record = result.recording
    assert record is not None and set(seen) == {torch.float32}
    again = make("hopper", num_envs=3, autoreset="disabled", seed=4)
    obs, total, alive, length, x = again.reset(), torch.zeros(3), torch.ones(3, dtype=torch.bool), torch.zeros(3), torch.zeros(3)
    start = again.state.z[:, 0]
    for t in range(len(record.actions)):
        out = again.step(torch.tanh(obs.float() @ weights))
        obs, total, length = out.obs, total + alive * out.reward, length + alive
        x = torch.where(alive, again.state.z[:, 0] - start, x)
        torch.testing.assert_close(record.z[t + 1], again.state.z, rtol=0, atol=0)
        assert torch.equal(record.alive[t], alive)
        alive = alive & ~out.terminated
    torch.testing.assert_close(result.returns, total.double())
    torch.testing.assert_close(result.speeds, x / (0.02 * length))
    torch.testing.assert_close(result.lengths, length.long())
    torch.testing.assert_close(result.headed, result.speeds)  # a planar robot heads along x
    assert record.goals is not None and record.goals.shape == (len(record.actions), 3, 0)
    assert record.work is not None and bool((record.work[..., 1] >= record.work[..., 0]).all()) and float(record.work.min()) >= 0.0
    assert not alive.any() and result.survival == 0 and len(record.actions) == int(length.max()) < 400
    assert record.impulses.shape[:2] == record.actions.shape[:2] and bool((record.impulses[..., : len(env.mech.contacts)] != 0).any())
    assert result.summary()["episodes"] == 3 and 0.5 < result.summary()["height_m"] < 1.4
    assert "advance" not in vars(env)


def test_who_stands_survives_and_who_gives_no_number_does_not() -> None:
    env = make("ant", num_envs=3, autoreset="disabled")
    calls = [0]

    def policy(obs: Tensor) -> Tensor:
        calls[0] += 1
        action = torch.zeros(3, 8)
        return action if calls[0] < 3 else torch.where(torch.arange(3)[:, None] == 1, math.nan, action)

    result = evaluate(env, policy, 6)
    assert result.survived.tolist() == [True, False, True] and result.lengths.tolist() == [6, 3, 6]
    assert result.flagged.tolist() == result.non_finite.tolist() == [False, True, False]
    assert torch.isfinite(result.returns).all() and torch.isfinite(result.speeds).all() and result.recording is None


def test_variants_differ_in_one_thing_each() -> None:
    made = {name: env() for name, env in variants(functools.partial(make, "hopper"), num_envs=2).items()}
    assert list(made) == ["nominal", "h/2", "kappa 1e-6", "h/2, kappa 1e-6", "wider starts"]
    nominal = made["nominal"]
    for name, env in made.items():
        assert env.period == pytest.approx(0.02) and env.autoreset == "disabled"
        assert (env.repeat, env.timestep) == ((4, 0.005) if "h/2" in name else (2, 0.01))
        assert env.kappa == env.mech.options.kappa == (1e-6 if "kappa" in name else 1e-4)
        if name != "wider starts":  # the same starts
            torch.testing.assert_close(env.state.q[:, 3:], nominal.state.q[:, 3:], rtol=0, atol=1e-9)
    assert made["wider starts"].noise == pytest.approx(10.0, rel=0.02)  # of 0.01 rad
    assert variants(functools.partial(make, "ant"))["wider starts"]().noise == pytest.approx(1.0, rel=0.02)  # 0.1 rad already


def test_goals_are_given() -> None:
    env = make("quadruped", num_envs=2, autoreset="disabled")
    evaluate(env, still(12), 1, goal=torch.tensor([1.0, 0.0, 0.0]))
    assert env.state.goal.tolist() == [[1.0, 0.0, 0.0]] * 2


def test_speed_along_the_heading_and_goals_of_each_step() -> None:
    """A quadruped that stands is turned around by its start: speeds along its heading have the other sign, and goals change."""
    env = make("quadruped", num_envs=2, autoreset="disabled", noise=0.0)
    z = env.state.z.unflatten(-1, (-1, 13))
    z = torch.cat((z[..., :3], z[..., 3:5] + torch.tensor([0.6, 0.0]), z[..., 5:]), -1).flatten(-2)  # all bodies move along x
    around = z.unflatten(-1, (-1, 13)).clone()
    middle = around[:, :1, :2]
    around[..., :2] = 2 * middle - around[..., :2]
    w, x, y, k = around[..., 6:10].clone().unbind(-1)
    around[..., 6:10] = torch.stack((-k, -y, x, w), -1)  # half a turn about the vertical, before the body's own orientation
    starts = torch.stack((z[0], around.flatten(-2)[1]))
    env = make("quadruped", num_envs=2, autoreset="disabled", pool=starts)
    env.reset = functools.partial(env.reset, index=torch.arange(2))  # type: ignore[method-assign]
    result = evaluate(env, still(12), 6)
    assert result.headed is not None
    assert float(result.speeds.min()) > 0.2 and result.headed[0] > 0.2 and result.headed[1] < -0.2
    torch.testing.assert_close(result.headed, result.speeds * torch.tensor([1.0, -1.0]), rtol=0.02, atol=0.0)
    record = evaluate(make("quadruped", num_envs=2, autoreset="disabled", resample=4), still(12), 12, record=True).recording
    assert record is not None and record.goals is not None
    parts = record.goals.unflatten(0, (3, 4))  # three goals, four control steps each
    assert torch.equal(parts, parts[:, :1].expand_as(parts)) and len({tuple(goal) for goal in parts[:, 0, 0].tolist()}) == 3


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="autoreset='same_step'; allowed: \"disabled\""):
        evaluate(make("pendulum"), still(1))
    env = make("pendulum", autoreset="disabled")
    with pytest.raises(ValueError, match=r"action: got shape \(1, 2\); allowed: \(1, 1\)"):
        evaluate(env, still(2))
    with pytest.raises(ValueError, match="steps: got 0"):
        evaluate(env, still(1), 0)
