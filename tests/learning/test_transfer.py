"""Policies on MuJoCo's models: the same starts, drives and observations, and what is reported."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import torchdojo as td
from torchdojo.learning.gait import gait_report
from torchdojo.learning.rollouts import evaluate
from torchdojo.learning.transfer import FILES, MuJoCoRobots, transfer
from torchdojo.native import loader

native = pytest.mark.skipif(not loader.available(), reason="no compiler for the native kernel")


def steady(num_actions: int) -> Any:
    return lambda obs: 0.2 * torch.ones(len(obs), num_actions, dtype=torch.float32)


@native
@pytest.mark.slow
@pytest.mark.parametrize("control", ["drive", "torque"])
@pytest.mark.parametrize("name", FILES)
def test_motion_without_contact_is_ours(name: str, control: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """0.1 s under one action from starts with noise, both engines at 0.5 ms: within 1 % of the largest motion of a coordinate."""
    pytest.importorskip("mujoco")
    pytest.importorskip("gymnasium")
    monkeypatch.chdir(tmp_path)  # MuJoCo writes its warnings to a file in the current folder
    env = td.envs.make(
        name, 2, control=control, timestep=5e-4, repeat=40, pool=4, autoreset="disabled", noise=2.0, seed=1,
        model_options={"limits": False, "contact": False},
    )  # fmt: skip
    robots = MuJoCoRobots(env)
    robots.model.opt.timestep, robots.substeps = 5e-4, 40
    mujoco = robots.mujoco
    robots.model.opt.disableflags = int(mujoco.mjtDisableBit.mjDSBL_CONTACT | mujoco.mjtDisableBit.mjDSBL_LIMIT)
    robots.place(env.state.z)
    action = 0.3 * (2 * torch.rand(2, env.num_actions, generator=torch.Generator().manual_seed(2)) - 1)
    start = robots.motion(action)
    env.reset(z=start.z)
    torch.testing.assert_close(env.obs, env.observe(start._replace(action=0 * action)), rtol=1e-6, atol=1e-6)
    for _ in range(5):
        env.step(action)
        robots.step(action, torch.ones(2, dtype=torch.bool))
    ours, theirs = env.state.q - start.q, robots.motion(action).q - start.q
    scale = float(theirs.abs().max())
    # the humanoid's hips: three hinges in series against a rotation vector, which differ by half the product of two angles
    tolerance = 0.01 if name != "humanoid" else 0.15 if control == "drive" else 0.05
    torch.testing.assert_close(ours, theirs, rtol=0, atol=tolerance * scale)
    assert scale > 0.02 and robots.sound().all()


@native
def test_a_policy_stands_in_both() -> None:
    pytest.importorskip("mujoco")
    pytest.importorskip("gymnasium")
    env = td.envs.make("ant", 2, pool=4, autoreset="disabled")
    here = evaluate(env, steady(8), 25)
    calls = [0]

    def policy(obs: Tensor) -> Tensor:
        calls[0] += 1
        action = steady(8)(obs)
        action[1] *= math.nan if calls[0] == 5 else 1.0
        return action

    there = transfer(env, policy, 25, record=True)
    assert there.survived.tolist() == [True, False] and there.non_finite.tolist() == [False, True] and there.lengths.tolist() == [25, 5]
    assert float(there.returns[0]) == pytest.approx(here.mean_return, rel=0.2)
    report = gait_report(env, there, settle=0.0)
    assert report.slip is None and report.duty_factor is None and report.height == pytest.approx(float(here.heights.mean()), rel=0.2)


def test_robots_without_a_file() -> None:
    with pytest.raises(ValueError, match="no robot file for 'pendulum'; allowed: hopper, walker2d"):
        transfer(td.envs.make("pendulum", pool=1, autoreset="disabled"), steady(1))
