"""Memory, goals that change, kicks, sensors, redrawn parameters: statistics, gradients, resumption, bad input."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

import torchdojo as td
from crawler import FILTER, PERIOD, Crawler
from torchdojo.native import loader

native = pytest.mark.skipif(not loader.available(), reason="no compiler for the native kernel")
ALL: dict[str, Any] = {"kicks": (0.3, 5), "sensor_noise": {"noise": 0.02, "bias": 0.05, "delay": 2}, "resample": 4}


def crawler(**options: Any) -> Crawler:
    return Crawler(**{"num_envs": 3, "pool": 8, **options})


def steps(env: td.envs.Env, count: int) -> list[td.envs.EnvStep]:
    actions = 2.0 * torch.rand(count, env.num_envs, 1, generator=torch.Generator().manual_seed(0)) - 1.0
    return [env.step(action) for action in actions]


@native
def test_what_is_off_takes_no_room() -> None:
    env = td.envs.make("hopper", num_envs=3, pool=4)
    assert env.state.memory.shape == env.state.sensors.shape == (3, 0)
    assert env.draw().dtype == torch.int64 and env.draw(4).shape == (4, 3)
    segment = td.envs.Segment(env, lambda obs: obs[:, :3], parameters=[torch.zeros(1, requires_grad=True)])
    assert segment.carried == ["z", "q", "qd", "action"]


@native
def test_memory_follows_the_motion_and_begins_anew() -> None:
    env = crawler(episode_length=7, pool=64)
    assert torch.equal(env.state.memory[:, 2], torch.zeros(3, dtype=torch.float64))
    before, actions = env.state, list[Tensor]()
    for action in torch.linspace(-1, 1, 9).tolist():
        out = env.step(torch.full((3, 1), action, dtype=torch.float64))
        actions.append(env.state.action)
        memory, done = env.state.memory, out.truncated
        assert bool(done.all()) == (len(actions) == 7)
        if done.all():
            assert (memory[:, 2] == 0).all() and (env.state.time == 0).all() and (env._pool[:, None] == memory[0, 0]).any()
        else:
            phase = (before.memory[:, 0] + env.period / PERIOD) % 1.0
            speed = FILTER * before.memory[:, 1] + (1 - FILTER) * env.state.z[:, 3]
            torch.testing.assert_close(memory, torch.stack((phase, speed, before.action[:, 0]), -1), rtol=0, atol=1e-12)
            assert torch.equal(env.state.motion.time, before.motion.time + 1)
        before = env.state
    assert len({*env.state.memory[:, 0].tolist()}) == 3  # the clocks of environments differ


@native
def test_goals_change_after_so_many_steps_and_rewards_are_for_the_old_one() -> None:
    env, steady = crawler(resample=4, episode_length=9, seed=2), crawler(episode_length=9, seed=2)
    goals, pool = [env.state.goal], env._pool.split(env._sizes, -1)[4]
    for t in range(20):
        out, same = (each.step(torch.zeros(3, 1)) for each in (env, steady))
        goals.append(env.state.goal)
        assert t > 3 or torch.equal(out.reward, same.reward)
        assert t > 3 or torch.equal(out.final_obs, same.final_obs) == (t < 3)  # the fifth action sees the new goal
    changed = [t + 1 for t in range(20) if not torch.equal(goals[t], goals[t + 1])]
    assert changed == [4, 8, 9, 13, 17, 18]  # at steps 4 and 8 of every episode, and with every new one
    assert all(bool((pool == goal).any()) for goal in torch.stack(goals).flatten())
    fixed = crawler(resample=4, autoreset="disabled")
    td.learning.evaluate(fixed, lambda obs: torch.zeros(3, 1), 10, goal=torch.tensor([0.25]))
    assert (fixed.state.goal == 0.25).all() and fixed.resample == 4


@native
@pytest.mark.parametrize(
    ("name", "axes", "bodies"), [("crawler", (1, 1), 2), ("ant", (1, 1), 9), ("hopper", (1, 0), 4), ("cartpole_swingup", (0, 1), 2)]
)
def test_kicks(name: str, axes: tuple[int, int], bodies: int) -> None:
    """Their times, sizes and directions, over 5 periods of 8 environments, and a state before and after one."""
    given: dict[str, Any] = {"num_envs": 8, "pool": 4, "kicks": (0.5, 10), "noise": 2.0}
    env = Crawler(**given) if name == "crawler" else td.envs.make(name, **given)
    assert env.kicks is not None and env.kicks.axes.tolist() == list(axes)
    velocity = env.draw(50)[..., 1:3]
    speed = velocity.norm(dim=-1)
    assert ((speed > 0).sum(0) == 5).all()  # each environment once in ten steps
    assert (speed > 0).sum(1).max() == 1  # and not all at once
    hits = velocity[speed > 0]
    torch.testing.assert_close(hits.norm(dim=-1), torch.full((40,), 0.5, dtype=torch.float64))
    assert (hits[:, [not axis for axis in axes]] == 0).all()
    # The mean of 40 directions has a standard deviation of at most 0.5 / √40 = 0.08 m/s along each axis.
    assert hits.mean(0).abs().max() < 0.25 and len(set(hits.flatten().tolist())) > (40 if all(axes) else 1)
    drawn = env.draw(10)[-1]
    drawn[:, 1:3] = hits[:8]
    z = env.state.z
    kicked = env.disturb(z, drawn)
    change = (kicked - z).unflatten(-1, (bodies, 13))
    torch.testing.assert_close(change[:, :, 3:5], hits[:8, None].expand(-1, bodies, -1), rtol=0, atol=1e-15)
    assert (change[:, :, [0, 1, 2, *range(5, 13)]] == 0).all()
    back = env.mech.to_maximal(*env.mech.to_minimal(kicked))
    torch.testing.assert_close(back, kicked, rtol=0, atol=1e-9)  # joints hold


@native
def test_noise_bias_and_delay_of_what_the_policy_sees() -> None:
    """4,096 readings: deviations to 5 %, four of their own deviations (1 / √8192)."""
    plain = td.envs.make("hopper", num_envs=64, pool=512)
    n = plain.num_obs
    sizes = torch.linspace(0.0, 0.3, n, dtype=torch.float64)
    noisy = td.envs.make("hopper", num_envs=64, pool=plain.state.z, sensor_noise={"noise": sizes.tolist()}, autoreset="disabled")
    zero = torch.zeros(64, 3, dtype=torch.float64)
    errors = []
    for _ in range(64):
        out = noisy.step(zero)
        errors.append(noisy.state.obs - noisy.observe(noisy.state.motion))
        torch.testing.assert_close(out.final_obs, noisy.state.obs, rtol=0, atol=0)
    errors = torch.stack(errors).flatten(0, 1)
    torch.testing.assert_close(errors.std(0), sizes, rtol=0.05, atol=0)
    torch.testing.assert_close(errors.T.corrcoef()[1:, 1:], torch.eye(n - 1, dtype=torch.float64), rtol=0, atol=0.1)
    assert errors.mean(0).abs().max() < 0.02

    biased = td.envs.make("hopper", num_envs=64, sensor_noise={"bias": 0.1}, autoreset="disabled")
    first = biased.state.obs - biased.observe(biased.state.motion)
    biased.step(zero)
    torch.testing.assert_close(biased.state.obs - biased.observe(biased.state.motion), first, rtol=0, atol=1e-12)
    assert float(first.std()) == pytest.approx(0.1, rel=0.1) and not torch.equal(first[0], first[1])
    biased.reset()
    assert not torch.equal(biased.state.sensors, first)

    late = crawler(sensor_noise={"delay": 2}, episode_length=6)
    true, seen, over = [late.observe(late.state.motion)], [late.obs], list[int]()
    for t in range(10):
        out = late.step(torch.full((3, 1), 0.5))
        true.append(late.observe(late.state.motion))
        seen.append(late.obs)
        over += [t + 1] if out.truncated.all() else []
    assert over == [6]
    for t, source in enumerate([0, 0, 0, 1, 2, 3, 6, 6, 6, 7, 8]):  # an episode begins at 6
        torch.testing.assert_close(seen[t], true[source], rtol=0, atol=0)


@native
def test_delays_may_differ_between_episodes() -> None:
    late = crawler(num_envs=24, pool=400, sensor_noise={"delay": (1, 3), "bias": 0.1}, autoreset="disabled")
    delays = late._pool[:, sum(late._sizes[:7])]
    assert [float((delays == lag).double().mean()) for lag in (1, 2, 3)] == pytest.approx([1 / 3] * 3, abs=0.1)  # four deviations
    own, bias = late.state.sensors[:, 0].long(), late.state.sensors[:, 1 : 1 + late.num_obs]
    true = [late.observe(late.state.motion)]
    for _ in range(6):
        late.step(torch.full((24, 1), 0.5))
        true.append(late.observe(late.state.motion))
        for i, lag in enumerate(own.tolist()):
            source = true[max(0, len(true) - 1 - lag)][i]
            torch.testing.assert_close(late.obs[i], source + bias[i], rtol=0, atol=1e-12)
    assert {*own.tolist()} == {1, 2, 3}


@native
def test_rewards_and_ends_do_not_see_noise() -> None:
    same = {"pool": crawler().state.z, "autoreset": "disabled"}
    plain, noisy = crawler(**same), crawler(**same, sensor_noise=td.envs.SensorNoise(noise=0.5, bias=0.5, delay=3))
    noisy.reset(z=plain.state.z, goal=plain.state.goal)
    noisy.state = noisy.state._replace(memory=plain.state.memory)
    for a, b in zip(steps(plain, 6), steps(noisy, 6), strict=True):
        torch.testing.assert_close(a.reward, b.reward, rtol=0, atol=1e-12)
        assert not torch.allclose(a.obs, b.obs)


@native
def test_gradient_of_a_closed_loop_with_all_of_it() -> None:
    """24 control steps by all weights along one direction, against central differences of fourth order."""
    env = crawler(**ALL, autoreset="disabled", noise=0.5)
    first = env.state_dict()
    torch.manual_seed(0)
    weights, along = 0.3 * torch.randn(2, env.num_obs, 1, dtype=torch.float64)

    def total(weights: Tensor) -> Tensor:
        env.load_state_dict(first)
        obs, result = env.obs, torch.zeros((), dtype=torch.float64)
        for _ in range(24):
            out = env.step(torch.tanh(obs @ weights))
            assert not out.terminated.any()
            obs, result = out.obs, result + out.reward.sum()
        return result + obs.sum()

    leaf = weights.clone().requires_grad_()
    total(leaf).backward()
    assert leaf.grad is not None
    step = 1e-5
    with torch.no_grad():
        sides = [float(total(weights + sign * step * along)) for sign in (1, -1, 2, -2)]
    expected = (8 * (sides[0] - sides[1]) - (sides[2] - sides[3])) / (12 * step)
    assert float((leaf.grad * along).sum()) == pytest.approx(expected, rel=1e-6)


@native
def test_resumption_to_the_last_bit() -> None:
    def make(seed: int) -> Crawler:
        return crawler(**ALL, seed=seed, episode_length=6, randomize={"bodies.arm.mass": (0.5, 2.0)}, redraw=True)

    first, other = make(3), make(4)
    steps(first, 6)  # episodes have just ended, and parameters are due
    saved = first.state_dict()
    later = steps(first, 20)
    steps(other, 3)
    other.load_state_dict(saved)
    for again, out in zip(steps(other, 20), later, strict=True):
        for ours, theirs in zip(again[:5], out[:5], strict=True):
            assert torch.equal(ours, theirs)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(first.state, other.state, strict=True))


@native
def test_shards_have_the_kicks_and_noise_of_their_environments() -> None:
    whole = crawler(num_envs=4, **ALL)
    parts = [crawler(num_envs=2, **ALL, shard=(rank, 2)) for rank in (0, 1)]
    assert torch.equal(whole.draw(12), torch.cat([part.draw(12) for part in parts], 1))


class Weighed(Crawler):
    """A robot whose reward reads a parameter."""

    def reward(self, before: td.envs.Motion, after: td.envs.Motion, action: Tensor) -> Mapping[str, Tensor]:
        return {**super().reward(before, after, action), "load": self.mech.bodies["arm"].mass * after.q[:, 6]}


@native
@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_segments_draw_parameters_anew_between_them(compiled: bool) -> None:
    """The environments whose episode ended have others in the next segment, which equals steps with the same parameters."""
    options = {"num_envs": 3, "pool": 8, "episode_length": 9, "randomize": {"bodies.arm.mass": (0.5, 2.0)}}
    env, fixed = Weighed(redraw=True, **options), Weighed(**options)
    env.state = env.state._replace(time=torch.tensor([6, 0, 0]))
    weights = torch.full((env.num_obs, 1), 0.01, dtype=torch.float64, requires_grad=True)

    def policy(obs: Tensor) -> Tensor:
        return torch.tanh(obs @ weights)

    def factors() -> Tensor:
        return env.randomization.factors["bodies.arm.mass"]

    segment = td.envs.Segment(env, policy, 5, parameters=[weights], fixed=True)
    assert segment._tape(1) is not None
    with contextlib.nullcontext() if compiled else torch.compiler.set_stance("force_eager"):
        for changed in ([False, False, False], [True, False, False], [False, True, True]):
            before = factors()
            env.settle()
            assert (before != factors()).tolist() == changed
            fixed.load_state_dict(env.state_dict())
            out = segment()
            (ours,) = torch.autograd.grad(out.reward.sum(), weights)
            rewards = torch.stack([fixed.step(policy(fixed.obs)).reward for _ in range(5)])
            torch.testing.assert_close(out.reward, rewards, rtol=1e-10, atol=1e-10)
            torch.testing.assert_close(ours, torch.autograd.grad(rewards.sum(), weights)[0], rtol=1e-9, atol=1e-9)


class Forgetful(Crawler):
    """A robot whose memory is of the wrong kind."""

    begins: Any = None
    goes_on: Any = None

    def memories(self, start: td.envs.Motion) -> Any:
        return super().memories(start) if self.begins is None else self.begins

    def remember(self, before: td.envs.Motion, after: td.envs.Motion, fresh: Tensor) -> Any:
        return before.memory if self.goes_on is None else self.goes_on


@native
def test_a_memory_that_is_not_finite_ends_the_episode() -> None:
    env = Forgetful(num_envs=3, pool=8)
    env.goes_on = torch.tensor([[0.0], [math.nan], [0.0]], dtype=torch.float64).expand(3, 3)
    out = env.step(torch.zeros(3, 1))
    assert out.info["flagged"].tolist() == out.terminated.tolist() == [False, True, False]
    assert out.reward[1] == 0 and torch.isfinite(out.obs).all() and all(part[1] == 0 for part in out.info["terms"].values())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"kicks": 0.5},
            r"kicks: got 0\.5; allowed: \(speed \[m/s\], control steps between two kicks\); give kicks=\(0\.5, 100\), or None",
        ),
        ({"kicks": (0.5, 2.5)}, r"kicks, control steps between two: got 2\.5; allowed: a whole number of 1 or more"),
        ({"kicks": (-1.0, 5)}, r"kicks, speed: got -1\.0; allowed: a finite number of 0 or more"),
        (
            {"name": "pendulum", "kicks": (0.5, 5)},
            r"for pendulum, whose base does not move freely along x or y \(hinge holds it\); allowed:",
        ),
        ({"sensor_noise": -0.1}, r"sensor_noise: got -0\.1; allowed: a finite number of 0 or more"),
        ({"sensor_noise": {"dely": 1}}, "sensor_noise: got 'dely'; allowed: noise, bias, delay"),
        ({"sensor_noise": {"delay": (2, 1)}}, r"sensor_noise, delay: got \(2, 1\); allowed: a whole number, or a pair \(least, most\)"),
        ({"sensor_noise": {"delay": 0.5}}, r"sensor_noise, delay: got 0\.5; allowed: a whole number of 0 or more"),
        (
            {"sensor_noise": {"noise": [0.1, 0.2]}},
            r"sensor_noise, noise: got 2 of them; allowed: a finite .* or one for each of the 14 entries",
        ),
        ({"sensor_noise": {"bias": math.nan}}, "sensor_noise, bias: got nan"),
        ({"resample": -1}, "resample: got -1; allowed: a whole number of 0 or more"),
        ({"resample": 5}, r"resample: got 5 for TableEnv, which has no goals; allowed: 0; override goals\(count\)"),
    ],
)
def test_bad_construction(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        td.envs.make(**{"name": "hopper", "pool": 3, **options})


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"begins": torch.zeros(8)}, r"Forgetful: memories gave torch.float64 \(8,\); allowed: finite torch.float64, \(8, m\)"),
        ({"begins": torch.zeros(8, 3).float()}, r"memories gave torch.float32 \(8, 3\); allowed: finite torch.float64, \(8, 3\)"),
        ({"goes_on": torch.zeros(8, 2, dtype=torch.float64)}, r"remember gave torch.float64 \(8, 2\); allowed: .* \(8, 3\)"),
        ({"goes_on": torch.full((8, 3), math.nan, dtype=torch.float64)}, "remember gave torch.float64 .*; allowed: finite"),
    ],
)
def test_memories_are_looked_at(attributes: dict[str, Any], message: str) -> None:
    robot = type("Forgetful", (Forgetful,), attributes)
    with pytest.raises(ValueError, match=message):
        robot(pool=8)


def test_sensor_noise_is_a_description() -> None:
    given = td.envs.SensorNoise(noise=0.1, delay=1)
    assert td.envs.SensorNoise.of({"noise": 0.1, "delay": 1}) == given == td.envs.SensorNoise.of(given)
    assert td.envs.SensorNoise.of(0.1) == dataclasses.replace(given, delay=0)
