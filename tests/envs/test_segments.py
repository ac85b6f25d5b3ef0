"""Segments are the steps that they replace: values, gradients, statistics, random numbers."""

from __future__ import annotations

import contextlib
import gc
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchdojo as td
from crawler import Crawler
from torchdojo.native import loader

#: memory is the crawler's own
DISTURBED = {"kicks": (0.3, 4), "sensor_noise": {"noise": 0.02, "bias": 0.05, "delay": 2}, "resample": 3}


class Herd(Crawler):
    """Crawlers with a reward for the mean speed of all."""

    def reward(self, before: td.envs.Motion, after: td.envs.Motion, action: Tensor) -> dict[str, Tensor]:
        terms = dict(super().reward(before, after, action))
        return {**terms, "all": after.qd[:, 0].mean().expand(len(after.qd))}


ROBOTS: dict[str, Any] = {"crawler": Crawler, "herd": Herd, "locomotion": td.envs.Locomotion}
native = pytest.mark.skipif(not loader.available(), reason="no compiler for the native kernel")


class Policy(nn.Module):
    """A policy with noise of learned size."""

    def __init__(self, env: td.envs.Env, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.net = nn.Sequential(nn.Linear(env.num_obs, 16), nn.ELU(), nn.LayerNorm(16), nn.Linear(16, env.num_actions)).to(env.dtype)
        self.log_std = nn.Parameter(torch.full((env.num_actions,), -1.0, dtype=env.dtype))

    def forward(self, obs: Tensor, noise: Tensor) -> Tensor:
        return torch.tanh(self.net(obs) + self.log_std.exp() * noise)


class Clipped(torch.autograd.Function):
    """Identity whose backward clips, and counts in the gradient of `tally`."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, tally: Tensor) -> Tensor:
        return z.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        norm = grad.norm(dim=-1, keepdim=True)
        return grad * (3.0 / norm.clamp_min(3.0)), (norm > 3.0).double().squeeze(-1)


def clipping(grad: Tensor) -> tuple[Tensor, Tensor]:
    """The backward of `Clipped`."""
    norm = grad.norm(dim=-1, keepdim=True)
    return grad * (3.0 / norm.clamp_min(3.0)), (norm > 3.0).double()


def loss_of(out: td.envs.SegmentOutput) -> Tensor:
    """With all that is differentiable: rewards, final observations of the end and of truncated episodes, and observations."""
    truncated = (out.final_obs.sum(-1) * out.truncated).sum()
    return out.reward.sum() + 0.1 * out.final_obs[-1].sum() + 0.01 * out.obs.square().sum() + truncated


def check(
    name: str,
    compiled: bool,
    hook: bool = False,
    function: bool = False,
    seed: int = 0,
    fast: bool = True,
    chained: bool = False,
    batched: bool = True,
    **options: Any,
) -> None:
    """Two segments of 10 steps with terminations and truncations, against `Env.step` in a loop.

    chained: of Segment(compiled=False). batched: whether rewards of all steps are taken at once.
    """
    given = {"num_envs": 3, "pool": 8, "seed": 1, "episode_length": 7, **options}
    envs = [ROBOTS[name](**given) if name in ROBOTS else td.envs.make(name, **given) for _ in range(2)]
    policy, noise = Policy(envs[0], seed), torch.randn(10, 3, envs[0].num_actions, dtype=torch.float64)
    segment = td.envs.Segment(envs[0], policy, on_adjoint=clipping if function else None, compiled=not chained)
    assert (segment._tape(1) is not None) == fast
    tallies = [torch.zeros(3, dtype=torch.float64, requires_grad=True) for _ in envs]
    for env, tally in zip(envs, tallies, strict=True):
        env.on_state = (lambda z, tally=tally: Clipped.apply(z, tally)) if hook or function else None
        env.reset(stagger=True)
    for _ in range(2):
        with contextlib.nullcontext() if compiled else torch.compiler.set_stance("force_eager"):
            ours, grads = segment(noise), []
        env, rewards, finals, seen, over = envs[1], [], [], [], []
        env.detach()
        for t in range(10):
            seen.append(env.obs)
            out = env.step(policy(env.obs, noise[t]))
            rewards.append(out.reward)
            finals.append(out.final_obs)
            over.append((out.terminated, out.truncated))
        terminated, truncated = (torch.stack(flags) for flags in zip(*over, strict=True))
        theirs = ours._replace(obs=torch.stack(seen), reward=torch.stack(rewards), final_obs=torch.stack(finals))
        assert torch.equal(ours.terminated, terminated) and torch.equal(ours.truncated, truncated) and (terminated | truncated).any()
        for field in ("obs", "reward", "final_obs"):
            torch.testing.assert_close(getattr(ours, field), getattr(theirs, field), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(sum(ours.info["terms"].values()), ours.reward, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(envs[0].obs, env.obs, rtol=1e-12, atol=1e-12)
        for result in (ours, theirs):
            policy.zero_grad()
            with contextlib.nullcontext() if compiled else torch.compiler.set_stance("force_eager"):
                loss_of(result).backward()
            grads.append([weight.grad for weight in policy.parameters()])
        for one, other in zip(*grads, strict=True):
            assert float((one - other).norm() / other.norm()) < 1e-11
        if function:
            tallies[0].grad = (0.0 if tallies[0].grad is None else tallies[0].grad) + segment.report.squeeze(-1)
        assert not (hook or function) or (torch.equal(tallies[0].grad, tallies[1].grad) and tallies[0].grad.sum() > 0)
    a, b = (env.statistics for env in envs)
    assert a == pytest.approx(b, rel=1e-12, nan_ok=True) and a["resets"] > 0
    assert torch.equal(*(env.generator.get_state() for env in envs))
    assert segment.ratings.batched is (batched if fast else None)


@native
@pytest.mark.parametrize("chained", [False, True])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("hopper", {"hook": True, "dtype": torch.float64}),
        ("ant", {"function": True}),
        ("ant", {"control": "torque", "randomize": {"bodies.torso.mass": (0.8, 1.2), "contacts.*.friction": (0.5, 1.5)}}),
        ("hopper", {"observe_impulses": True, "reward": "gymnasium"}),
        ("crawler", DISTURBED),
        ("swimmer", {"fast": False}),
        ("locomotion", {**DISTURBED, "function": True, "resample": 4, "randomize": {"bodies.*": (0.9, 1.1)}, "noise": 6.0}),
        ("herd", {"batched": False}),
    ],
    ids=["hook", "function", "randomized", "impulses", "disturbed", "drag", "locomotion", "not batched"],
)
def test_a_segment_is_its_steps(name: str, options: dict[str, Any], chained: bool) -> None:
    check(name, False, chained=chained, **options)


@native
@pytest.mark.parametrize("chained", [False, True])
def test_a_reward_that_is_not_finite_ends_the_episode(chained: bool) -> None:
    """The segment goes back to where the segment began, and takes the steps one by one."""
    envs = [Crawler(num_envs=3, pool=8, seed=1, **DISTURBED) for _ in range(2)]
    policy, noise = Policy(envs[0]), torch.randn(6, 3, envs[0].num_actions, dtype=torch.float64)
    for env in envs:
        own = env.reward
        env.reward = lambda before, after, action, own=own: {  # type: ignore[method-assign]
            name: torch.where((after.time == 4) & (torch.arange(len(after.time)) % 3 == 1), torch.nan, value)
            for name, value in own(before, after, action).items()
        }
    with torch.compiler.set_stance("force_eager"):
        out = td.envs.Segment(envs[0], policy, compiled=not chained)(noise)
    steps = [envs[1].step(policy(envs[1].obs, noise[t])) for t in range(6)]
    assert out.terminated.nonzero().tolist() == [[3, 1]] and envs[0].statistics["flagged"] == 1
    torch.testing.assert_close(out.reward, torch.stack([step.reward for step in steps]), rtol=1e-12, atol=1e-12)
    assert torch.equal(*(env.generator.get_state() for env in envs))


@native
@pytest.mark.slow
def test_compiled_segments_are_their_steps() -> None:
    """The second segment has another policy and another environment with tensors of the same shapes, and numbers of its own."""
    check("cartpole_swingup", True)
    check("cartpole_swingup", True, seed=1, model_options={"cart_mass": 2.0})
    check("crawler", True, **DISTURBED)


@native
def test_what_diverges_in_a_segment_has_no_gradient() -> None:
    env = td.envs.make("ant", num_envs=3, pool=8)
    policy = Policy(env)
    noise = torch.zeros(4, 3, env.num_actions, dtype=torch.float64)
    noise[1, 2] = torch.nan
    segment = td.envs.Segment(env, lambda o, e: torch.tanh(policy.net(o)) + e, 4, parameters=policy.net.parameters())
    with torch.compiler.set_stance("force_eager"):
        out = segment(noise)
        grads = torch.autograd.grad(loss_of(out), list(policy.net.parameters()))
    assert out.info["flagged"].nonzero().tolist() == [[1, 2]] and env.statistics["flagged"] == 1
    assert torch.isfinite(out.obs).all() and torch.isfinite(out.reward).all()
    assert all(bool(torch.isfinite(grad).all()) for grad in grads)


@native
def test_bad_segments() -> None:
    env = td.envs.make("cartpole_swingup", num_envs=2, pool=2)
    with pytest.raises(ValueError, match=r"got a function as policy and no parameters; give parameters="):
        td.envs.Segment(env, lambda obs: obs[:, :1], 4)
    with pytest.raises(ValueError, match=r"got noise \(4, 3, 1\); allowed: \(H, 2, ...\) for H steps"):
        td.envs.Segment(env, lambda obs, noise: noise, 4, parameters=())(torch.zeros(4, 3, 1))


@native
def test_segments_without_a_compiler_leave_no_memory_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph that led from a tape back to it would live for ever: no garbage collector sees circles through autograd."""
    env = td.envs.make("hopper", num_envs=2, pool=4)
    weights = torch.zeros(env.num_obs, env.num_actions, dtype=torch.float64, requires_grad=True)
    segment = td.envs.Segment(env, lambda obs: torch.tanh(obs @ weights), 4, parameters=[weights], compiled=False)
    tapes, make = list[weakref.ref[Any]](), segment._tape

    def watched(horizon: int) -> Any:
        tape = make(horizon)
        tapes.append(weakref.ref(tape))
        return tape

    monkeypatch.setattr(segment, "_tape", watched)
    for _ in range(3):
        out = segment()
        torch.autograd.grad(out.reward.sum(), weights)
        del out
    gc.collect()
    assert len(tapes) == 3 and all(tape() is None for tape in tapes)
