"""Environments on height fields: heights count from the ground, starts stand on it, scans turn with the heading, bad input is refused."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchdojo as td
from torchdojo.native import loader

native = pytest.mark.skipif(not loader.available(), reason="needs the compiled kernel")
ROBOTS = ("hopper", "locomotion", *(pytest.param(name, marks=pytest.mark.slow) for name in ("ant", "humanoid", "quadruped", "walker2d")))


def make(name: str, **options: Any) -> td.envs.Env:
    options = {"num_envs": 3, "pool": 3, "episode_length": 50, **options}
    return td.envs.Locomotion("quadruped", **options) if name == "locomotion" else td.envs.make(name, **options)


def plateau(height: float) -> td.HeightField:
    return td.HeightField(torch.full((6, 6), height, dtype=torch.float64), 1.0)


def push(env: td.envs.Env) -> Tensor:
    return 0.5 * torch.rand(env.num_envs, env.num_actions, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


@native
@pytest.mark.parametrize("name", ROBOTS)
def test_heights_count_from_the_ground(name: str) -> None:
    """On a plateau, observations, rewards and ends of episodes are those on the plane at zero."""
    low, high = (make(name, terrain=plateau(height)) for height in (0.0, 0.7))
    torch.testing.assert_close(high.state.z[:, 2], low.state.z[:, 2] + 0.7, rtol=0, atol=1e-9)
    for _ in range(3):
        ours, theirs = low.step(push(low)), high.step(push(high))
        torch.testing.assert_close(theirs.obs, ours.obs, rtol=0, atol=1e-7)
        torch.testing.assert_close(theirs.reward, ours.reward, rtol=0, atol=1e-7)
        assert torch.equal(theirs.terminated, ours.terminated)


@native
@pytest.mark.parametrize("terrain", ["rough", "stairs", {"kind": "stairs", "rise": 0.08, "spread": 2.0}])
def test_robots_start_on_the_ground_and_do_not_step_into_it(terrain: Any) -> None:
    env = make("locomotion", terrain=terrain, body_contacts=True)
    gaps = env.mech.distances(env.state.z)
    assert float(gaps.min()) > 0 and float(gaps.min(-1).values.max()) < 0.01
    spread = env.state.z[:, :2].abs().max()
    assert (float(spread) > 0.3) == (terrain == "rough" or isinstance(terrain, dict))
    for _ in range(5):
        env.step(push(env))
    assert env.statistics["flagged"] == 0 and float(env.mech.distances(env.state.z).min()) > 0


@native
def test_the_same_seed_gives_the_same_episodes() -> None:
    envs = [make("hopper", terrain="rough", height_scan=True, seed=seed) for seed in (5, 5, 6)]
    outs = [[env.step(push(env)).obs for _ in range(2)][-1] for env in envs]
    assert torch.equal(outs[0], outs[1]) and not torch.equal(outs[0], outs[2])


@native
def test_scans_are_heights_of_the_root_above_the_ground_in_its_heading() -> None:
    points = [(0.0, 0.0), (0.3, 0.0), (0.0, 0.2), (0.0, -0.2)]
    env = make("locomotion", terrain={"kind": "slope", "angle": 0.3}, height_scan=points)
    root, slope = env.state.z[:, :13], math.tan(0.3)
    ahead = td.quaternion.rotate(root[:, 6:10], torch.tensor((1.0, 0.0, 0.0), dtype=torch.float64).expand(3, 3))
    cos, sin = (ahead[:, :2] / ahead[:, :2].norm(dim=-1, keepdim=True)).unbind(-1)
    under = root[:, 2] - slope * root[:, 0]
    wanted = torch.stack([under - slope * (a * cos - b * sin) for a, b in points], -1)
    torch.testing.assert_close(env.obs[:, -4:], wanted, rtol=0, atol=1e-9)
    mirror = env.mirror().obs[-4:, -4:]
    torch.testing.assert_close(wanted @ mirror.mT, wanted[:, [0, 1, 3, 2]], rtol=0, atol=0)


@native
def test_mirrors_are_those_on_level_ground() -> None:
    env = make("quadruped", terrain={"kind": "rough", "height": 0.2}, height_scan=True)
    before = env.ground.field.heights.clone()
    mirror, plain = env.mirror(), make("quadruped").mirror()
    assert torch.equal(mirror.obs[:-35, :-35], plain.obs) and torch.equal(mirror.obs @ mirror.obs, torch.eye(len(mirror.obs)).double())
    assert torch.equal(env.ground.field.heights, before)


@native
def test_segments_and_their_gradients_are_those_of_single_steps() -> None:
    found = []
    for whole in (False, True):
        env = make("quadruped", terrain={"kind": "rough", "spread": 0.5}, height_scan=[(0.2, 0.1), (-0.1, 0.0)])
        torch.manual_seed(0)
        policy = nn.Linear(env.num_obs, env.num_actions).double()
        if whole:
            reward = td.envs.Segment(env, policy, 4, parameters=list(policy.parameters()), compiled=False)().reward
        else:
            reward = torch.stack([env.step(policy(env.obs)).reward for _ in range(4)])
        gradient = torch.autograd.grad(reward.sum(), policy.weight)[0]
        found.append((reward.detach(), gradient))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(theirs, ours, rtol=1e-6, atol=1e-8)


def test_mujoco_s_robots_refuse_terrain() -> None:
    pytest.importorskip("mujoco")
    from torchdojo.learning.mujoco_robots import MuJoCoRobots

    with pytest.raises(ValueError, match="hopper with terrain; allowed: level ground"):
        MuJoCoRobots(make("hopper", terrain="rough"))


def test_bad_input_is_refused() -> None:
    for options, message in [
        ({"height_scan": True}, "without terrain"),
        ({"terrain": "hill"}, "allowed: .*'rough'"),
        ({"terrain": {"kind": "rough", "spread": -1.0}}, "spread: got -1"),
        ({"terrain": "rough", "height_scan": [0.1, 0.2]}, "height_scan: got .*points"),
        ({"terrain": td.HeightField(torch.zeros(2, 6, 6).double(), 1.0)}, "one field"),
    ]:
        with pytest.raises(ValueError, match=message):
            make("hopper", **options)
    with pytest.raises(ValueError, match="does not touch the ground"):
        td.envs.make("pendulum", terrain="rough")
