"""Policies in MuJoCo: the same starts, drives, observations, goals and kicks, robots of files, and what is reported."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import torchdojo as td
from torchdojo.envs.changes import add_to_joints
from torchdojo.envs.disturbances import SensorNoise
from torchdojo.envs.table import ENVIRONMENTS, TableEnv
from torchdojo.io.mjcf.write import write_mjcf
from torchdojo.learning.conditions import Conditions
from torchdojo.learning.gait import gait_report
from torchdojo.learning.mujoco_robots import MuJoCoRobots
from torchdojo.learning.rollouts import evaluate
from torchdojo.learning.transfer import FILES, robots_of, transfer
from torchdojo.native import loader

native = pytest.mark.skipif(not loader.available(), reason="no compiler for the native kernel")
pytest.importorskip("mujoco")


def steady(num_actions: int) -> Any:
    return lambda obs: 0.2 * torch.ones(len(obs), num_actions, dtype=torch.float32)


def in_the_air(name: str, **options: Any) -> td.envs.Env:
    """Two robots without contacts, at 0.5 ms."""
    free = {"limits": False, "contact": False}
    return td.envs.make(
        name, 2, timestep=5e-4, repeat=40, pool=4, autoreset="disabled", noise=2.0, seed=1, model_options=free, **options
    )  # fmt: skip


def check_motion(env: td.envs.Env, robots: MuJoCoRobots, tolerance: float) -> None:
    """0.1 s under one action from starts with noise, both engines at 0.5 ms: within a share of the largest motion of a coordinate."""
    mujoco = robots.mujoco
    for model in {id(model): model for model in robots.models}.values():
        model.opt.timestep = 5e-4
        model.opt.disableflags = int(mujoco.mjtDisableBit.mjDSBL_CONTACT | mujoco.mjtDisableBit.mjDSBL_LIMIT)
    robots.substeps = 40
    robots.place(env.state.z)
    start = env.state.motion._replace(
        z=(z := robots.states()), root=z[:, :13], **dict(zip(("q", "qd"), env.mech.to_minimal(z), strict=True))
    )
    env.reset(z=z)
    torch.testing.assert_close(env.obs, env.observe(start._replace(goal=env.state.goal)), rtol=1e-6, atol=1e-6)
    action = 0.3 * (2 * torch.rand(2, env.num_actions, generator=torch.Generator().manual_seed(2)) - 1)
    for _ in range(5):
        env.step(action)
        robots.step(action)
    ours, theirs = env.state.q - start.q, env.mech.to_minimal(robots.states())[0] - start.q
    scale = float(theirs.abs().max())
    torch.testing.assert_close(ours, theirs, rtol=0, atol=tolerance * scale)
    assert scale > 0.02 and robots.sound().all()


@native
@pytest.mark.parametrize("control", ["drive", "torque"])
@pytest.mark.parametrize("name", FILES)
def test_motion_without_contact_is_ours(name: str, control: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gymnasium")
    monkeypatch.chdir(tmp_path)  # MuJoCo writes its warnings to a file in the current folder
    env = in_the_air(name, control=control)
    with robots_of(env) as robots:
        # the humanoid's hips: three hinges in series against a rotation vector, which differ by half the product of two angles
        check_motion(env, robots, 0.01 if name != "humanoid" else 0.15 if control == "drive" else 0.05)


@native
@pytest.mark.parametrize("name", ["quadruped", "ant", "walker2d"])
def test_a_mechanism_written_to_mjcf_moves_as_ours(name: str) -> None:
    env = in_the_air(name)
    check_motion(env, MuJoCoRobots(env), 0.01)


@native
def test_a_file_of_the_robot_with_other_frames_and_names(tmp_path: Path) -> None:
    """Joints without "_joint", some with the other sign, no ground, actuators of its own, and another frame of the trunk."""
    env = in_the_air("quadruped")
    text, _ = write_mjcf(env.mech)
    text = text.replace('_joint"', '"')
    text = re.sub(r'(name="F._calf" type="hinge" [^>]*?axis=)"0 1 0"', r'\1"0 -1 0"', text)
    assert text.count('axis="0 -1 0"') == 2
    motors = "".join(f'<position name="drive{i}" joint="{leg}_calf" kp="9"/>' for i, leg in enumerate(("FR", "FL")))
    text = text.replace("</mujoco>", f'<actuator>{motors}</actuator><keyframe><key name="up" ctrl="{"1 " * 14}"/></keyframe></mujoco>')
    # the trunk's frame: 10 cm below its center of mass
    text, count = re.subn('<inertial pos="0 0 0" mass="6"', '<inertial pos="0 0 0.1" mass="6"', text)
    text, hips = re.subn(r'(<body name="(?:F|R)(?:R|L)_hip" pos="\S+ \S+) (\S+)"', _raised, text)
    assert (count, hips) == (1, 4)
    (tmp_path / "a1.xml").write_text(text)
    with pytest.warns(UserWarning, match=r"a1\.xml has no ground: it gets a plane z = 0 with friction 0.8"):
        robots = MuJoCoRobots(env, tmp_path / "a1.xml")
    assert robots.signs.tolist() == [-1.0 if i in (2, 5) else 1.0 for i in range(12)]
    check_motion(env, robots, 0.01)


def _raised(found: re.Match[str]) -> str:
    return f'{found[1]} {float(found[2]) + 0.1:.17g}"'


@native
def test_files_of_other_robots(tmp_path: Path) -> None:
    env = td.envs.make("quadruped", pool=1)
    text, _ = write_mjcf(env.mech)
    path = tmp_path / "robot.xml"

    def refused(changed: str, message: str) -> None:
        assert changed != text
        path.write_text(changed)
        with pytest.raises(ValueError, match=message):
            MuJoCoRobots(env, path)

    refused(text.replace("FR_calf_joint", "knee"), r"has no joints for the motors FR_calf_joint; allowed: .* it has .*knee.*; rename them")
    turned = text.replace('name="FR_calf_joint" type="hinge" pos="', 'name="FR_calf_joint" type="hinge" axis="1 0 0" pos="', 1)
    refused(
        re.sub(r'(axis="1 0 0" pos="[^"]*") axis="0 1 0"', r"\1", turned), r"'FR_calf_joint' turns about \[1.0, 0.0, 0.0\].*allowed: \[0"
    )
    moved = re.sub(r'(<body name="RL_hip" pos=")\S+', r"\g<1>-0.3", text)
    refused(moved, r"whose joint 'RL_\w+_joint' is [\d.]+ cm from the environment's .*; allowed: 3 cm; give the file of the same robot")
    arm = '<body name="arm" pos="0 0 1"><joint name="elbow"/><geom size="0.1" mass="1"/></body></worldbody>'
    refused(text.replace("</worldbody>", arm), r"with the joints .*elbow; allowed: the coordinates of 'quadruped'")
    with pytest.raises(FileNotFoundError, match="does not exist"):
        MuJoCoRobots(env, tmp_path / "none.xml")


@native
def test_a_policy_stands_in_both() -> None:
    pytest.importorskip("gymnasium")
    env = td.envs.make("ant", 2, pool=4, autoreset="disabled")
    here = evaluate(env, steady(8), 25, record=True)
    calls = [0]

    def policy(obs: Tensor) -> Tensor:
        calls[0] += 1
        action = steady(8)(obs)
        action[1] *= math.nan if calls[0] == 5 else 1.0
        return action

    there = transfer(env, policy, 25, record=True)
    assert there.survived.tolist() == [True, False] and there.non_finite.tolist() == [False, True] and there.lengths.tolist() == [25, 5]
    assert float(there.returns[0]) == pytest.approx(here.mean_return, rel=0.2)
    ours, theirs = gait_report(env, here, settle=0.0), gait_report(env, there, settle=0.0)
    assert theirs.height == pytest.approx(ours.height, rel=0.2) and set(theirs.feet) == set(ours.feet)
    assert there.recording is not None and here.recording is not None
    weight = 9.81 * float(there.recording.mass or 0.0)
    for result in (here, there):  # both stand after half a second, on contacts that bear the weight
        assert result.recording is not None
        last = result.recording.impulses[-5:, 0].sum(-1) if result is there else result.recording.impulses[-5:, 0, _normals(env)].sum(-1)
        assert float(last.mean()) / env.period == pytest.approx(weight, rel=0.1)


def _normals(env: td.envs.Env) -> list[int]:
    return [place.start for name, place in env.mech.impulse_layout.items() if name.startswith("contacts.")]


class Clocked(TableEnv):
    """A quadruped that sees a clock, which starts anywhere."""

    def memories(self, start: td.envs.Motion) -> Tensor:
        return self.random(len(start.z), 1, low=0.0)

    def remember(self, before: td.envs.Motion, after: td.envs.Motion, fresh: Tensor) -> Tensor:
        return torch.remainder(before.memory + 0.1, 1.0)

    def observe(self, motion: td.envs.Motion) -> Tensor:
        return torch.cat((super().observe(motion), motion.memory), -1)


@native
def test_goals_memory_and_kicks_are_the_same_in_both() -> None:
    """Robots without contacts fall in both simulators; velocities of their roots differ by what legs do to them."""

    def make() -> td.envs.Env:
        return Clocked(
            ENVIRONMENTS["quadruped"], "clocked", num_envs=4, pool=8, autoreset="disabled", model_options={"contact": False},
            kicks=(2.0, 3), resample=2, seed=3, noise=0.0, sensor_noise={"noise": 0.01, "delay": 1},
        )  # fmt: skip

    seen: list[list[Tensor]] = [[], []]

    def policy(which: int) -> Any:
        return lambda obs: seen[which].append(obs) or torch.zeros(len(obs), 12)

    here, there = evaluate(make(), policy(0), 7, record=True).recording, transfer(make(), policy(1), 7, record=True).recording
    assert here is not None and there is not None and here.goals is not None and there.goals is not None
    torch.testing.assert_close(there.goals, here.goals, rtol=0, atol=0)
    assert float((here.goals[1:] != here.goals[:-1]).double().mean()) > 0.3  # they change
    assert float(here.z[-1, :, 3:5].norm(dim=-1).min()) > 1.0  # all were kicked
    torch.testing.assert_close(there.z[..., 3:5], here.z[..., 3:5], rtol=0, atol=0.02)
    torch.testing.assert_close(torch.stack(seen[1]), torch.stack(seen[0]), rtol=0, atol=0.05)  # with the same noise and clock


@native
@pytest.mark.parametrize("name", ["walker2d", "hopper", "quadruped"])
def test_kicks_change_the_velocity_of_the_center_of_mass_alike(name: str) -> None:
    """Nothing else does in the air, but gravity. Tolerance: the first-order integrator, for a robot that turns."""

    def velocity(mujoco: bool) -> Tensor:
        env = td.envs.make(name, 3, pool=4, autoreset="disabled", model_options={"contact": False}, kicks=(1.0, 2), seed=2)
        masses = torch.stack([body.mass for body in env.mech.bodies.values()])  # type: ignore[union-attr]
        policy = lambda obs: torch.zeros(len(obs), env.num_actions)  # noqa: E731
        record = evaluate(env, policy, 5, record=True, stepper=MuJoCoRobots(env) if mujoco else None).recording
        assert record is not None
        return (record.z.unflatten(-1, (-1, 13))[..., 3:6] * masses[:, None]).sum(-2) / masses.sum()

    ours = velocity(False)
    torch.testing.assert_close(velocity(True), ours, rtol=0, atol=1e-3)
    assert float(ours[-1, :, 0].abs().max()) > 1.5


@native
def test_conditions_hold_in_both() -> None:
    conditions = Conditions(friction=(0.3, 0.9), mass=(0.8, 1.2), armature=0.02, joint_friction=(0.1, 0.3), seed=5)
    env = td.envs.make("quadruped", 3, pool=4, autoreset="disabled")
    with robots_of(env, None, conditions) as robots:
        for i, model in enumerate(robots.models):
            assert model.geom_friction[:, 0].tolist() == pytest.approx([float(env.mech.contacts["FR_foot"].friction[i])] * model.ngeom)
            assert model.body_mass[1] == pytest.approx(float(env.mech.bodies["trunk"].mass[i]))
            assert model.dof_armature[6:].tolist() == [0.02] * 12 and model.dof_armature[:6].tolist() == [0.0] * 6
            assert model.dof_frictionloss[6:] == pytest.approx([float(env.mech.joints["RL_calf_joint"].friction[i, 0])] * 12)
    assert len({round(float(mass), 6) for mass in env.mech.bodies["trunk"].mass}) == 3
    again = Conditions(friction=(0.3, 0.9), mass=(0.8, 1.2), armature=0.02, joint_friction=(0.1, 0.3), seed=5)
    other = again.apply(td.envs.make("quadruped", 3, pool=4, autoreset="disabled"))
    assert torch.equal(other.mech.bodies["trunk"].mass, env.mech.bodies["trunk"].mass)
    result = evaluate(env, steady(12), 10, record=True)
    assert result.recording is not None and bool(torch.isfinite(result.recording.z).all()) and not bool(result.flagged.any())


@native
def test_armature_and_friction_of_a_built_robot() -> None:
    """As if the robot had been built with both."""
    given = {"armature": 0.03, "joint_friction": 0.2}
    built = td.envs.make("quadruped", 2, pool=3, model_options=given)
    changed = td.envs.make("quadruped", 2, pool=3)
    joints = {name: [0] for name in changed.mech.actuators.joints}  # type: ignore[union-attr]
    add_to_joints(changed, joints, {"armature": torch.full((2,), 0.03), "friction": torch.full((2,), 0.2)})
    changed.reset(z=built.state.z, goal=built.state.goal)
    for _ in range(5):
        built.step(0.5 * torch.ones(2, 12))
        changed.step(0.5 * torch.ones(2, 12))
    torch.testing.assert_close(changed.state.z, built.state.z, rtol=0, atol=1e-7)
    with pytest.raises(ValueError, match="numbers: got 'damper'; allowed: armature, friction"):
        add_to_joints(changed, joints, {"damper": torch.ones(2)})


def test_conditions_that_are_none() -> None:
    for wrong, message in (
        ({"friction": (0.9, 0.3)}, r"friction: got \(0.9, 0.3\); allowed: a finite number of 0 or more, or a range of two, LOW <= HIGH"),
        ({"mass": 0.0}, "mass: got 0.0; allowed: a finite number of 0.001 or more"),
        ({"kicks": -1.0}, "kicks: got -1.0; allowed: a finite number of 0 or more"),
    ):
        with pytest.raises(ValueError, match=message):
            Conditions(**wrong)  # type: ignore[arg-type]
    env = td.envs.make("quadruped", pool=1)
    with pytest.raises(ValueError, match=r"delay: got 0.03 s; allowed: whole numbers of control steps of 0.02 s"):
        Conditions(delay=0.03).options(env, {})
    options = Conditions(delay=0.04, kicks=0.5).options(env, {"sensor_noise": 0.1})
    assert options == {"kicks": (0.5, 150), "sensor_noise": {"noise": 0.1, "delay": 2}}
    noisy = SensorNoise(noise=0.2, bias=0.1)
    assert Conditions(delay=0.02).options(env, {"sensor_noise": noisy})["sensor_noise"] == SensorNoise(noise=0.2, bias=0.1, delay=1)
    assert Conditions(delay=0.02).options(env, {})["sensor_noise"] == {"delay": 1}
    assert not Conditions() and Conditions(mass=(0.9, 1.1)).as_dict() == {"mass": [0.9, 1.1]}
    assert str(Conditions(mass=(0.9, 1.1), delay=0.02)) == "mass 0.9 to 1.1 times, delay 0.02 s"
