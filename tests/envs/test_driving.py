"""Environments with drives: activations are carried, reset, observed and differentiated; an arm with muscles learns to reach."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import torchdojo as td
from torchdojo.commands.main import main
from torchdojo.learning.rollouts import evaluate
from torchdojo.learning.runs import load_run
from torchdojo.native import loader

native = pytest.mark.skipif(not loader.available(), reason="no compiler for the native kernel")
CONFIG = Path(__file__).parents[2] / "configs" / "shac_muscle_arm.yaml"


def finger() -> td.Mechanism:
    """A link on a hinge with two antagonists, a motor behind a filter, and a fan at its tip."""
    link = {"mass": 0.1, "inertia": (1e-3, 1e-3, 1e-4)}
    return td.Mechanism({"link": td.Body(**link)}, {"knuckle": td.Revolute(None, "link", axis=(0, 1, 0), child_anchor=(0, 0, 0.1))})


def drives() -> dict[str, td.Drive]:
    return {
        "flexor": td.Drive.muscle(joint="knuckle", gear=0.02, lengths=(-0.03, 0.03), force=30.0),
        "extensor": td.Drive.muscle(joint="knuckle", gear=-0.02, lengths=(-0.03, 0.03), force=30.0),
        "lag": td.Drive(joint="knuckle", dynamics="filter", dynamics_numbers=(0.05,), gain_numbers=(0.1, 0, 0), ctrlrange=(-2.0, 1.0)),
        "fan": td.Drive(site=td.Site("link", (0, 0, -0.1)), gear=(0.5, 0, 0, 0, 0, 0)),
    }


class Finger(td.envs.Env):
    """The finger follows an angle."""

    timestep, repeat, episode_length = 0.01, 2, 6

    def build(self) -> td.Mechanism:
        return finger()

    def starts(self, count: int) -> tuple[Tensor, Tensor]:
        return 0.3 * self.random(count, 1), self.random(count, 1)

    def activations(self, start: td.envs.Motion) -> Tensor:
        return 0.5 * self.random(len(start.z), 3, low=0.0)

    def reward(self, before: td.envs.Motion, after: td.envs.Motion, action: Tensor) -> dict[str, Tensor]:
        return {"angle": -after.q.square().sum(-1), "effort": -0.1 * after.activation.square().sum(-1)}


def make(**options: Any) -> Finger:
    return Finger(**{"num_envs": 4, "pool": 16, "drives": drives(), "observe_activations": True, **options})


@native
def test_actions_fill_the_ranges_and_activations_are_carried() -> None:
    env = make(autoreset="disabled", observe_activations=["lag", "flexor"])
    assert env.action_names == ("flexor", "extensor", "lag", "fan") and env.num_actions == 4 and env.num_obs == 2 + 2
    start, action = env.state, torch.tensor([[-1.0, 0.5, 0.2, 0.3]] * 4, dtype=torch.float64)
    assert start.activation.shape == (4, 3) and float(start.activation.min()) > 0
    torch.testing.assert_close(start.obs[:, 2:], start.activation[:, [2, 0]], rtol=0, atol=0)
    ctrl = torch.tensor([[0.0, 0.75, -0.2, 0.3]] * 4, dtype=torch.float64)  # in [0, 1], [-2, 1], and as it is
    torch.testing.assert_close(env.driving.ctrl(action), ctrl, rtol=0, atol=1e-15)
    path = env.mech.drives.rollout(start.z, ctrl[:, None].expand(-1, 3, -1), start.activation, repeat=2)
    for k in range(1, 4):
        out = env.step(action)
        torch.testing.assert_close(env.state.activation, path.act[:, k], rtol=0, atol=1e-15)
        torch.testing.assert_close(env.state.z, path.path.z[:, k], rtol=0, atol=1e-11)
        torch.testing.assert_close(out.obs[:, 2:], env.state.activation[:, [2, 0]], rtol=0, atol=0)
    env.step(torch.full_like(action, 3.0))  # what lies outside is clipped
    assert float(env.state.activation.max()) <= 1.0


@native
def test_activations_begin_anew_with_episodes() -> None:
    env = make()
    starts = env._pool[:, sum(env._sizes[:7]) : sum(env._sizes[:8])]
    assert starts.shape == (16, 3)

    def from_the_pool(activation: Tensor) -> Tensor:
        return (activation[:, None] == starts).all(-1).any(-1)

    assert bool(from_the_pool(env.state.activation).all())
    ones = torch.ones(4, 4, dtype=torch.float64)
    for _ in range(5):
        assert not bool(env.step(ones).truncated.any())
    assert not bool(from_the_pool(env.state.activation).any())
    assert bool(env.step(ones).truncated.all()) and bool(from_the_pool(env.state.activation).all())
    env.step(ones)
    before, mask = env.state.activation, torch.tensor([True, False, False, True])
    env.reset(mask)
    assert bool(from_the_pool(env.state.activation)[mask].all())
    torch.testing.assert_close(env.state.activation[~mask], before[~mask], rtol=0, atol=0)
    given = torch.rand(4, 3, dtype=torch.float64)
    env.reset(activation=given)
    torch.testing.assert_close(env.state.activation, given, rtol=0, atol=0)


@native
def test_seeds_resumption_and_pickling_give_equal_bits() -> None:
    one, other = make(seed=3), make(seed=3)
    given = torch.rand(9, 4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 2 - 1
    for action in given[:4]:
        one.step(action), other.step(action)
    saved, copied = copy.deepcopy(one.state_dict()), pickle.loads(pickle.dumps(one))
    late = make(seed=5)
    late.load_state_dict(saved)
    for action in given[4:]:
        outs = [env.step(action) for env in (one, other, late, copied)]
        for out in outs[1:]:
            assert torch.equal(out.obs, outs[0].obs) and torch.equal(out.reward, outs[0].reward)
    for env in (other, late, copied):
        assert torch.equal(env.state.activation, one.state.activation)


@native
def test_gradients_of_a_closed_loop_through_activations() -> None:
    """Through steps, muscles, resets and a policy that sees the activations, against central differences."""
    env = make(seed=1)
    saved = env.state_dict()
    weights = 0.3 * torch.randn(env.num_obs, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    along = torch.randn(weights.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)

    def total(weights: Tensor) -> Tensor:
        env.load_state_dict(saved)
        obs, result = env.obs, torch.zeros((), dtype=torch.float64)
        for _ in range(8):  # with a reset after six
            out = env.step(torch.tanh(obs @ weights))
            obs, result = out.obs, result + out.reward.sum()
        return result

    leaf = weights.clone().requires_grad_()
    total(leaf).backward()
    assert leaf.grad is not None
    assert float(leaf.grad[2:].abs().max()) > 1e-4  # of the activations in the observation
    with torch.no_grad():
        values = [float(total(weights + k * 1e-5 * along)) for k in (1, -1, 2, -2)]
    expected = (8 * (values[0] - values[1]) - (values[2] - values[3])) / 12e-5
    assert float((leaf.grad * along).sum()) == pytest.approx(expected, rel=1e-6)
    # A segment equals the loop.
    env.load_state_dict(saved)
    again = weights.clone().requires_grad_()
    out = td.envs.Segment(env, lambda obs: torch.tanh(obs @ again), 8, parameters=[again], compiled=False)()
    out.reward.sum().backward()
    torch.testing.assert_close(again.grad, leaf.grad, rtol=1e-9, atol=1e-12)


@native
@pytest.mark.parametrize("autoreset", ["same_step", "disabled"])
def test_actions_that_are_not_finite_are_flagged_alone(autoreset: str) -> None:
    env = make(autoreset=autoreset)
    action = torch.zeros(4, 4, dtype=torch.float64, requires_grad=True)
    bad = action + torch.tensor([0.0, torch.nan, 0.0, torch.inf], dtype=torch.float64)[:, None]
    out = env.step(bad)
    assert out.info["flagged"].tolist() == out.terminated.tolist() == [False, True, False, True]
    (out.reward.sum() + env.step(torch.zeros(4, 4, dtype=torch.float64)).reward.sum()).backward()
    assert action.grad is not None and bool(torch.isfinite(action.grad).all())
    assert float(action.grad[[1, 3]].abs().max()) == 0.0 < float(action.grad[[0, 2]].abs().max())
    assert bool(torch.isfinite(env.state.activation).all()) and bool(torch.isfinite(env.state.z).all())


@native
def test_sensors_read_what_drives_do() -> None:
    mech = finger()
    mech.sites["tip"] = td.Site("link", (0, 0, -0.1))
    for name, kind in (("gyro", "gyro"), ("felt", "accelerometer"), ("load", "force")):
        mech.sensors[name] = td.Sensor(kind, site="tip")
    mech.sensors["pull"] = td.Sensor("joint_actuator_force", joint="knuckle")
    mech.drives = td.Drives(mech, drives())

    class Felt(Finger):
        repeat = 1

    env = Felt(mech, num_envs=3, pool=4, sensors=("gyro", "felt", "load", "pull"))
    before, action = env.state, torch.rand(3, 4, dtype=torch.float64)
    out = env.step(action)
    ctrl = env.driving.ctrl(action)
    u, wrench, _ = mech.drives.inputs(ctrl, before.activation, before.z)
    step = mech.drives.step(before.z, ctrl, before.activation).out
    late = mech.read_sensors(before.z, step, names=("felt", "load"), u=u, wrench=wrench)
    torch.testing.assert_close(out.obs[:, 5:11], late, rtol=1e-7, atol=1e-7)
    pull = mech.drives.inputs(ctrl, env.state.activation, env.state.z)[0]
    torch.testing.assert_close(out.obs[:, 11:], pull, rtol=0, atol=1e-12)
    with pytest.raises(ValueError, match=r"\['load'\] with drives at sites, \['fan'\], and repeat=2; allowed: repeat=1"):
        Finger(mech, num_envs=1, pool=1, sensors=("load",))


@native
def test_what_is_refused() -> None:
    plain = td.envs.make("pendulum", pool=2)
    with pytest.raises(ValueError, match=r"which has no drives; give drives=\{name: td.Drive"):
        td.envs.make("pendulum", pool=2, observe_activations=True)
    with pytest.raises(ValueError, match="got activations for TableEnv, which has no drives; leave them out"):
        plain.reset(activation=torch.zeros(1, 1))
    with pytest.raises(ValueError, match=r"got \['fan'\]; allowed: True, or names of activations, \['flexor', 'extensor', 'lag'\]"):
        make(observe_activations=["fan"])
    with pytest.raises(TypeError, match="observe_activations: got 'lag'; allowed"):
        make(observe_activations="lag")
    with pytest.raises(TypeError, match=r"got list; allowed: td.Drives, or a mapping"):
        make(drives=[td.Drive(joint="knuckle")])
    with pytest.raises(ValueError, match="got drives of another mechanism; allowed: those of its own"):
        make(drives=td.Drives(finger(), drives()))
    with pytest.raises(ValueError, match="allowed: finite ones"):
        make(drives={"motor": td.Drive(joint="knuckle", ctrlrange=(0.0, float("inf")))}, observe_activations=False)
    env = make()
    for wrong in (torch.zeros(4, 2), torch.full((4, 3), torch.nan), None):
        env.activations = lambda start, wrong=wrong: wrong
        with pytest.raises(ValueError, match=r"activations of Finger: got .*; allowed: finite numbers, \(4, 3\), of \['flexor'"):
            env.reset(z=env.state.z)
    with pytest.raises(ValueError, match=r"action: got shape \(4, 3\); allowed: \(4, 4\)"):
        make().step(torch.zeros(4, 3))
    with pytest.raises(ValueError, match="mirror of Finger: got drives, whose images are not known"):
        td.envs.find_mirror(make())


@pytest.mark.slow
@native
def test_an_arm_with_muscles_learns_to_reach(tmp_path: Path) -> None:
    assert main(["train", str(CONFIG), "--output", str(tmp_path / "run")]) == 0
    run = load_run(tmp_path / "run")
    env = run.config.make_env(64, seed=77, autoreset="disabled")
    result = evaluate(env, run.policy(), record=True)
    assert not bool(result.flagged.any()) and result.recording is not None
    recorded = result.recording
    assert recorded.activations is not None and recorded.activations.shape == (75, 64, 4)
    assert float(recorded.activations.min()) >= 0.0 and float(recorded.activations.max()) <= 1.0
    q = env.mech.to_minimal(recorded.z)[0]
    away = (env._hand(q) - recorded.goals[0]).norm(dim=-1)
    assert float(away[0].mean()) > 0.2 and float(away[-25:].mean(0).median()) < 0.02 and float(away[-1].quantile(0.9)) < 0.05
    assert main(["play", str(tmp_path / "run"), "--episodes", "2"]) == 0
