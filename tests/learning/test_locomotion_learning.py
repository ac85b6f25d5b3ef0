"""Symmetric actors, actors of one's own, runs that need nothing but a robot, and how well commands are followed."""

from __future__ import annotations

import csv
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import torchdojo as td
from conftest import REPOSITORY, shared_path
from torchdojo.commands import train as command
from torchdojo.commands.common import CommandError
from torchdojo.envs.locomotion import Mirror
from torchdojo.learning import Actor, SymmetricActor, read_config
from torchdojo.learning.networks import make_actor
from torchdojo.learning.ppo import PPO, Settings
from torchdojo.learning.recipes import RECIPES, recipe
from torchdojo.learning.runs import load_run
from torchdojo.learning.shac import Shac, ShacSettings
from torchdojo.learning.tracking import TRIALS, track, trials
from torchdojo.native import loader
from torchdojo.runs.description import load_yaml

native = pytest.mark.skipif(not loader.available(), reason="no compiler for the native kernel")
needs_rsl_rl = pytest.mark.skipif(importlib.util.find_spec("rsl_rl") is None, reason="rsl_rl is not installed")
SMALL: dict[str, Any] = {"samples": 128, "num_envs": 4, "horizon": 4, "compile": False, "actor": (16,), "critic": (16,), "symmetric": True}


def robot(num_envs: int = 4, **options: Any) -> td.envs.Locomotion:
    return td.envs.Locomotion("quadruped", num_envs=num_envs, **{"pool": 8, "dtype": torch.float32, **options})


class Wide(Actor):
    """An actor of one's own."""


def is_equivariant(actor: Actor, mirror: Mirror, deviations: bool = True) -> bool:
    """deviations: whether those of mirrored joints are alike, so that drawn actions are, too."""
    kind = actor.log_std.dtype
    obs = torch.randn(64, len(mirror.obs), generator=torch.Generator().manual_seed(1), dtype=kind)
    noise = torch.randn(64, len(mirror.action), generator=torch.Generator().manual_seed(2), dtype=kind)
    over, other = mirror.obs.to(kind), mirror.action.to(kind)
    # Sums of float32 in another order: 1e-5 of actions between -1 and 1.
    mean = torch.allclose(actor(obs @ over.mT), actor(obs) @ other.mT, rtol=0, atol=1e-5)
    drawn = torch.allclose(actor.sample(obs @ over.mT, noise @ other.mT), actor.sample(obs, noise) @ other.mT, rtol=0, atol=1e-5)
    return mean and (drawn or not deviations)


def shaken(actor: Actor) -> Actor:
    """With weights and moments as after training, the deviation of mirrored joints alike."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for tensor in actor.body.parameters():
            tensor += 0.3 * torch.randn(tensor.shape, generator=generator)
        actor.normalizer.update(3.0 * torch.randn(100, len(actor.normalizer.mean), generator=generator) + 1.0)
    return actor


def test_symmetric_actors_are_equivariant_whatever_their_weights() -> None:
    env = robot(1)
    mirror = env.mirror()
    assert is_equivariant(shaken(make_actor(env, (32, 16), 0.2, True)), mirror)
    assert not is_equivariant(shaken(make_actor(env, (32, 16), 0.2, False)), mirror)
    assert set(make_actor(env, (16,), 0.2, True).state_dict()) == set(make_actor(env, (16,), 0.2).state_dict())


@native
def test_training_keeps_shac_and_ppo_symmetric() -> None:
    env = robot()
    module = Shac(env, ShacSettings(**SMALL), seed=0)
    before = [tensor.clone() for tensor in module.actor.parameters()]
    optimizer, *_ = module.configure_optimizers()
    segment = module.rollout(4)
    module._actor_loss(segment).backward()
    optimizer.step()
    assert isinstance(module.actor, SymmetricActor)
    assert any(not torch.equal(a, b) for a, b in zip(before, module.actor.parameters(), strict=True))
    assert is_equivariant(module.actor, env.mirror(), deviations=False)


@native
@needs_rsl_rl
@pytest.mark.parametrize("own", [False, True])
def test_ppo_takes_symmetric_actors_and_actors_of_one_s_own(own: bool) -> None:
    sizes: dict[str, Any] = {"samples": 64, "num_envs": 4, "horizon": 8, "epochs": 1, "batches": 2, "actor": (16,), "critic": (16,)}
    ppo = PPO(robot(), Settings(**sizes, symmetric=not own), actor=Wide if own else None)
    before = [tensor.clone() for tensor in ppo.actor.body.parameters()]
    ppo.iterate()
    assert type(ppo.actor) is (Wide if own else SymmetricActor)
    assert any(not torch.equal(a, b) for a, b in zip(before, ppo.actor.body.parameters(), strict=True))
    assert float(ppo.actor.normalizer.count) >= 32  # it has learned of the observations
    obs = ppo.vec_env.get_observations()
    torch.testing.assert_close(ppo.algorithm.actor(obs).tanh(), ppo.actor(obs["policy"]))
    if not own:
        assert is_equivariant(ppo.actor, robot(1).mirror(), deviations=False)


def test_shac_takes_an_actor_of_one_s_own() -> None:
    module = Shac(robot(), ShacSettings(**{**SMALL, "symmetric": False}), actor=Wide)
    assert type(module.actor) is Wide
    with pytest.raises(ValueError, match=r"actor: got a factory and symmetric=True; allowed: one of them"):
        Shac(robot(), ShacSettings(**SMALL), actor=Wide)


@native
def test_saturation_costs_what_it_says_and_pulls_means_back() -> None:
    env = robot()
    module, other = (Shac(env, ShacSettings(**{**SMALL, "saturation": weight})) for weight in (0.0, 3.0))
    for each in (module, other):
        with torch.no_grad():
            each.actor.body[-1].bias.fill_(1.5)  # type: ignore[operator, union-attr]
    segment = other.rollout(4)  # that of an actor without a price has no means
    means = other.actor.mean(segment.obs)
    expected = 3.0 * other.settings.reward_scale * (means.abs() - 1).clamp_min(0).square().sum(-1).mean()
    gap = other._actor_loss(segment) - module._actor_loss(segment)
    torch.testing.assert_close(gap, expected, rtol=1e-4, atol=1e-6)
    other.actor.zero_grad()
    gap.backward()
    grad = other.actor.body[-1].bias.grad  # type: ignore[union-attr]
    assert isinstance(grad, Tensor) and float(grad.sum()) > 0 and float(expected.detach()) > 0
    with pytest.raises(ValueError, match=r"saturation: got -1; allowed: a finite number of 0 or more"):
        ShacSettings(saturation=-1)


def test_bad_mirrors() -> None:
    eye = torch.eye(4, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"mirror, obs: got a matrix \(4, 4\), for 3 entries; allowed: \(3, 3\), a reflection"):
        SymmetricActor(3, 4, mirror=Mirror(eye, eye))
    with pytest.raises(ValueError, match=r"mirror, action: got a matrix \(4, 4\), which is not its own inverse"):
        SymmetricActor(4, 4, mirror=Mirror(eye, eye.roll(1, 0)))
    with pytest.raises(ValueError, match=r"symmetric: got true for object, which has no mirror\(\); allowed: environments with mirror"):
        make_actor(object(), (16,), 0.2, True)


# -- runs --------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "samples"), [("shac_quadruped", 1_000_000), ("shac_quadruped_quick", 500_000)])
def test_the_descriptions_are_the_recipe(name: str, samples: int) -> None:
    values = load_yaml(REPOSITORY / "configs" / f"{name}.yaml")
    own = recipe("locomotion", "shac", "quadruped")
    own["settings"] |= {"samples": samples}
    assert values == {**own, "env_options": {"robot": "quadruped", "gait": "trot"}}
    read_config(values)
    assert "env_options" not in RECIPES["locomotion", "shac"]


def test_robots_with_two_legs_have_a_recipe_of_their_own(tmp_path: Path) -> None:
    values = load_yaml(REPOSITORY / "configs" / "shac_humanoid_walk.yaml")
    file = shared_path("models", "unitree_h1", "h1.urdf")
    found = recipe("locomotion", "shac", str(file))
    assert found["env_options"].pop("robot") == str(file.resolve()) and values["env_options"].pop("robot") == "h1.urdf"
    assert values == found
    assert recipe("locomotion", "shac", str(shared_path("models", "unitree_a1", "a1.urdf")))["settings"]["lr"] == 4e-3
    (tmp_path / "no_robot.urdf").write_text("<robot")
    assert recipe("locomotion", "shac", str(tmp_path / "no_robot.urdf"))["settings"]["lr"] == 4e-3


def test_robots_are_for_locomotion(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=r"--robot a1.urdf: allowed: with --env locomotion"):
        command.train(REPOSITORY / "configs/shac_ant.yaml", output=tmp_path / "run", robot="a1.urdf")
    with pytest.raises(CommandError, match=r"robot: got 'a1.urdf' for 'ant', which has its own; allowed: with --env locomotion"):
        command.train(env="ant", output=tmp_path / "run", robot="a1.urdf")
    with pytest.raises(CommandError, match=r"robot: got 'a1.urdf', which is no file; allowed: a URDF or MJCF file, or quadruped"):
        command.train(env="locomotion", output=tmp_path / "run", robot="a1.urdf")
    fixed = '<mujoco><worldbody><body name="arm"><geom size="0.1"/></body></worldbody></mujoco>'
    (tmp_path / "arm.xml").write_text(fixed)
    with pytest.raises(CommandError, match=r"(?s)no body can move: none has a joint\n.*robot_options='\{repair_inertia: true"):
        command.train(env="locomotion", output=tmp_path / "run", robot=str(tmp_path / "arm.xml"))
    assert not (tmp_path / "run").exists()


@native
def test_a_run_needs_nothing_but_a_robot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = ["settings.samples=96", "settings.num_envs=4", "settings.horizon=4", "settings.compile=false", "training_options.pool=16"]
    report = command.train(env="locomotion", robot="quadruped", output=tmp_path / "run", changes=small)
    told = capsys.readouterr().out
    assert "foot FR_foot +0.0 cm ahead of its hip" in told and "--set env_options.feet" in told
    run = load_run(tmp_path / "run")
    with (run.folder / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {"reward_velocity", "reward_place", "reward_feet"} <= set(rows[0]) and report["samples"] == 96
    policy = run.policy()
    env = run.config.make_env(2, autoreset="disabled", pool=4)
    assert policy(env.state.obs.float()).shape == (2, 12)


# -- tracking ----------------------------------------------------------------------------------------------------------------------------


@native
def test_tracking_of_a_robot_that_stands_is_the_command_itself() -> None:
    commands: Sequence[Sequence[float]] = [(0.2, 0.2), (-0.1, -0.1), (0.3, 0.3)]
    factory = trials(lambda **options: robot(**{**options, "commands": commands, "still": 0.0, "noise": 0.0}), episodes=2)
    assert set(factory) == set(TRIALS)

    def stands(obs: Tensor) -> Tensor:
        return torch.zeros(len(obs), 12)

    result = track(factory["nominal"](), stands, steps=175)
    assert result.upright == 1.0 and result.flagged == 0
    for got, wanted in ((result.forward, 0.2), (result.sideways, 0.1), (result.turning, 0.3)):
        assert got == pytest.approx(wanted, abs=0.01)  # it settles by less than 1 cm/s after two seconds
    assert result.off_hips < 0.04 and result.clearance < 0.01  # 3 cm: under the weight, the drives give way by 0.1 rad
    with pytest.raises(ValueError, match=r"track: got 20 steps; allowed: at least 150"):
        track(factory["nominal"](), stands, steps=20)
    with pytest.raises(ValueError, match=r'autoreset=.same_step.; allowed: "disabled"'):
        track(robot(), stands)


@native
@pytest.mark.slow
def test_the_quadruped_learns_to_follow_commands_in_a_minute(tmp_path: Path) -> None:
    changes = ["settings.samples=250_000"]
    command.train(REPOSITORY / "configs/shac_quadruped_quick.yaml", output=tmp_path / "run", changes=changes)
    run = load_run(tmp_path / "run")
    result = track(trials(run.config.make_env, episodes=16)["nominal"](), run.policy(), steps=500)
    assert result.upright >= 0.9 and result.forward < 0.15 and result.turning < 0.15
