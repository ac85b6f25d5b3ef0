"""Gait reports against motions whose numbers are known: a box that slides, a ball that rolls, legs that swing by hand."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from torch import Tensor

import torchdojo as td
from torchdojo.learning.gait import gait_report
from torchdojo.learning.motors import efforts, torques
from torchdojo.learning.rhythm import asymmetry, mirrored
from torchdojo.learning.rollouts import Evaluation, Recording, evaluate
from torchdojo.learning.transfer import transfer
from torchdojo.native import loader

native = pytest.mark.skipif(not loader.available(), reason="no compiler for the native kernel")
PERIOD = 0.02


class Slider(td.envs.Env):
    """A body on the ground that is thrown along x, with a small motor on it."""

    timestep, repeat, kappa, episode_length = 0.01, 2, 1e-6, 25

    def __init__(self, contacts: dict[str, td.Contact], spin: float = 0.0, **options: Any) -> None:
        self.contacts, self.spin = contacts, spin
        super().__init__(autoreset="disabled", pool=1, **options)

    def build(self) -> td.Mechanism:
        mech = td.Mechanism(
            bodies={"base": td.Body(1.0, shape=td.Sphere(0.1)), "rotor": td.Body(0.01, shape=td.Sphere(0.02))},
            joints={"root": td.Floating(None, "base", actuated=False), "motor": td.Revolute("base", "rotor", axis=(1, 0, 0))},
            contacts=self.contacts,
        )
        td.actuate(mech, {"motor": td.Actuator.motor("motor", ctrlrange=(-1.0, 1.0))})
        return mech

    def starts(self, count: int) -> Tensor:
        base = {"position": (0.0, 0.0, 0.1001), "velocity": (2.0, 0.5, 0.0), "angular_velocity": (-0.5 * self.spin, 2.0 * self.spin, 0.0)}
        return self.mech.initial_state((count,), base=base)

    def reward(self, before: td.envs.Motion, after: td.envs.Motion, action: Tensor) -> Tensor:
        return after.q[:, 0]


def corners(friction: float) -> dict[str, td.Contact]:
    places = {f"corner{i}": (0.2 * (-1) ** i, 0.2 * (-1) ** (i // 2), -0.1) for i in range(4)}
    return {name: td.NonlinearContact("base", point=point, friction=friction) for name, point in places.items()}


@native
@pytest.mark.parametrize(
    ("contacts", "spin", "slip"),
    [
        (corners(0.05), 0.0, 1.0),  # a box slides a meter per meter, however many contacts it has
        ({"ball": td.NonlinearContact("base", radius=0.1, friction=0.8)}, 10.0, 0.0),  # a ball rolls, and its contact point travels
        ({"ball": td.NonlinearContact("base", radius=0.1, friction=0.0)}, 5.0, 0.5),  # half of the spin that rolls
    ],
)
def test_slip_per_meter(contacts: dict[str, td.Contact], spin: float, slip: float) -> None:
    env = Slider(contacts, spin)
    result = evaluate(env, lambda obs: torch.zeros(len(obs), 1), record=True)
    report = gait_report(env, result, settle=0.0)
    assert report.slip == pytest.approx(slip, abs=0.01)
    assert report.dragged == pytest.approx(1.0) and report.flight == 0.0 and report.feet == {}
    assert report.power == 0.0 and report.cost_of_transport == 0.0 and report.asymmetry is None
    assert report.travel == pytest.approx(math.hypot(2.0, 0.5), rel=0.15)
    assert report.verdict.startswith("no gait: ") and "its root bears 100% of the load" in report.verdict


@native
@pytest.mark.parametrize("simulator", ["torchdojo", "MuJoCo"])
def test_work_of_all_timesteps(simulator: str) -> None:
    """A motor that turns a rotor back and forth does the work by which the energy grows, brakes with the rest, and is not sampled."""
    env = Slider({})
    env.mech.gravity = torch.zeros(3)
    if simulator == "MuJoCo":
        pytest.importorskip("mujoco")
    take = evaluate if simulator == "torchdojo" else transfer
    turn = iter([-1.0] * 60 + [1.0] * 80)
    result = take(env, lambda obs: torch.full((len(obs), 1), 3e-6 * next(turn)), 140, record=True)
    record = result.recording
    assert record is not None and record.work is not None and record.work.shape == (140, 1, 2)
    energy = env.mech.kinetic_energy(record.z)[:, 0]
    positive, absolute = record.work.sum(0)[0].tolist()
    # the motor gives energy for 60 control steps, takes it for 60, and gives a ninth of it in 20; tolerance: sums of 120 timesteps
    assert positive == pytest.approx(10 / 9 * float(energy[60] - energy[0]), rel=0.015)
    assert absolute - positive == pytest.approx(float(energy[60] - energy[0]), rel=0.015)
    report = gait_report(env, result, settle=0.0)
    assert report.power == pytest.approx(positive / (140 * PERIOD))
    assert report.absolute_power == pytest.approx(absolute / (140 * PERIOD))


def test_mirrored_joints_are_found() -> None:
    def names(robot: str) -> list[tuple[str, str, float]]:
        mech = td.envs.make(robot, pool=1).mech
        assert mech.actuators is not None
        motors = mech.actuators.names
        return [(motors[i], motors[j], sign) for i, j, sign in mirrored(mech)]

    assert names("hopper") == []
    assert names("walker2d") == [(f"{part}_joint", f"{part}_left_joint", 1.0) for part in ("thigh", "leg", "foot")]
    hips, ankles = [("hip_1", "hip_4", -1.0), ("hip_2", "hip_3", -1.0)], [("ankle_1", "ankle_4", 1.0), ("ankle_2", "ankle_3", 1.0)]
    assert sorted(names("ant")) == sorted(hips + ankles)


def test_asymmetry_of_known_motions() -> None:
    t = PERIOD * torch.arange(300)
    wave = torch.sin(2 * math.pi * 2.0 * t) + 0.3 * torch.sin(2 * math.pi * 4.0 * t)
    half, stride = wave.roll(12), 25  # half a period of 25 steps, nearly
    assert asymmetry([torch.stack((wave, half), -1)], [(0, 1, 1.0)], stride) == pytest.approx(0.0, abs=1e-12)
    assert asymmetry([torch.stack((wave, -wave), -1)], [(0, 1, -1.0)], stride) == pytest.approx(0.0, abs=1e-12)
    assert asymmetry([torch.stack((wave, 0 * wave), -1)], [(0, 1, 1.0)], stride) == pytest.approx(1.0, rel=0.02)  # one leg does nothing
    both = torch.stack((wave, half, wave, wave), -1)  # no single phase mirrors both pairs
    assert asymmetry([both], [(0, 1, 1.0), (2, 3, 1.0)], stride) == pytest.approx(1 / 1.09, rel=0.01)
    assert asymmetry([torch.stack((wave, half), -1)], [], stride) is None


def swinging(env: td.envs.Env, actions: Tensor, limp: float = 1.0) -> Evaluation:
    """A walker at 1 m/s whose thighs swing at 2 Hz in opposite phase, and whose feet bear its weight by turns."""
    mech, steps = env.mech, len(actions)
    t = PERIOD * torch.arange(steps + 1)
    q, qd = torch.zeros(steps + 1, mech.num_coordinates), torch.zeros(steps + 1, mech.num_coordinates)
    q[:, 0], q[:, 1], qd[:, 0] = t, 1.25, 1.0
    angle, rate = 0.4 * torch.sin(4 * math.pi * t), 0.4 * 4 * math.pi * torch.cos(4 * math.pi * t)
    place = mech.coordinate_places()
    for joint, sign in (("thigh_joint", 1.0), ("thigh_left_joint", -limp)):
        q[:, place[joint].start], qd[:, place[joint].start] = sign * angle, sign * rate
    z = mech.to_maximal(q, qd)[:, None]
    layout = mech.impulse_layout
    impulses = torch.zeros(steps, 1, max(piece.stop for piece in layout.values()))
    weight = 9.81 * sum(float(body.mass) for body in mech.bodies.values())
    left = torch.sin(4 * math.pi * (t[1:] - 1e-6)) > 0
    impulses[:, 0, layout["contacts.foot_left_start"].start] = weight * PERIOD * left
    impulses[:, 0, layout["contacts.foot_start"].start] = weight * PERIOD * ~left
    recording = Recording(z, actions[:, None], impulses, torch.ones(steps, 1, dtype=torch.bool), PERIOD)
    one = torch.ones(1)
    return Evaluation(one, (steps * one).long(), one, one, one.bool(), 1.25 * one, ~one.bool(), ~one.bool(), recording)


def test_numbers_of_legs_that_swing_by_hand() -> None:
    env = td.envs.make("walker2d", pool=1)
    assert efforts(env).tolist() == [100.0] * 6
    steps, actions = 200, torch.zeros(200, 6)
    actions[::2, 2] = 1.0  # the torque of a foot is 150 N m at angle zero, and its motor has 100
    report = gait_report(env, swinging(env, actions), settle=0.0)
    assert report.stride_frequency == pytest.approx(2.0, rel=0.01) and report.regularity == pytest.approx(1.0, abs=0.01)
    assert report.asymmetry == pytest.approx(0.0, abs=0.02) and report.duty_asymmetry == pytest.approx(0.0, abs=0.1)
    assert report.duty_factor == pytest.approx(0.5, abs=0.01) and report.flight == 0.0 and set(report.feet) == {"foot", "foot_left"}
    assert report.travel == pytest.approx(1.0) and report.height == pytest.approx(1.25, abs=0.01) and report.height_deviation < 1e-9
    assert report.saturated == pytest.approx(0.5 / 6) and report.torque_beyond == pytest.approx(0.5 / 6)
    assert report.action_change == pytest.approx(1 / 6)
    # the drives of both thighs: -150 q - (4.5 - the joint's own damper) q̇, at zero work on the others, which do not move
    t = PERIOD * torch.arange(1, steps + 1)
    damping = 0.03 * 150.0 - float(env.mech.joints["thigh_joint"].damper)
    angle, rate = 0.4 * torch.sin(4 * math.pi * t), 1.6 * math.pi * torch.cos(4 * math.pi * t)
    power = (-150.0 * angle - damping * rate) * rate
    mass = sum(float(body.mass) for body in env.mech.bodies.values())
    assert report.power == pytest.approx(2 * float(power.clamp_min(0).mean()), rel=1e-6)
    assert report.absolute_power == pytest.approx(2 * float(power.abs().mean()), rel=1e-6)
    assert report.cost_of_transport == pytest.approx(report.power / (9.81 * mass), rel=1e-6)
    assert report.slip is not None and report.slip > 0.5 and "it slides" in report.verdict  # the feet move with the torso
    dragging = gait_report(env, swinging(env, actions, limp=0.0), settle=0.0)
    assert dragging.asymmetry == pytest.approx(1.0, rel=0.05)
    hopping = swinging(env, actions)
    assert hopping.recording is not None
    hopping.recording.impulses[:, 0, env.mech.impulse_layout["contacts.foot_start"].start] = 0.0  # on the left leg alone
    one = gait_report(env, hopping, settle=0.0)
    assert one.idle == ("foot",) and set(one.feet) == {"foot_left"}
    assert one.duty_asymmetry == 2.0 and one.flight == pytest.approx(0.5, abs=0.03)
    assert json.loads(json.dumps(report.as_dict()))["verdict"] == report.verdict
    assert dict(report.rows())["strides"] == "2.00 Hz"


def test_verdicts() -> None:
    env = td.envs.make("walker2d", pool=1)
    report = gait_report(env, swinging(env, torch.zeros(100, 6)), settle=0.0)
    good = type(report)(**{**vars(report), "slip": 0.01, "duty_factor": 0.6})
    assert good.verdict == "a walk"

    def with_(**changes: Any) -> str:
        return type(report)(**{**vars(good), **changes}).verdict

    assert with_(duty_factor=0.3) == "a run"
    assert with_(duty_factor=None, asymmetry=None, slip=None, cost_of_transport=None) == "a gait"
    assert with_(asymmetry=0.8, saturated=0.7, torque_beyond=0.3) == (
        "a walk, but lopsided (0.80), bang-bang (70% of actions), at its motors' limit or beyond (30% of joint-steps)"
    )
    assert with_(idle=("foot",)) == "a walk, but foot idle"
    assert with_(survival=0.2, froude=0.01, asymmetry=0.8) == "no gait: 20% of episodes last, it does not travel"
    assert with_(regularity=0.3).startswith("no gait: no rhythm")


@native
def test_torques_are_those_of_the_step() -> None:
    """Motors' torques exactly; those of a drive with a limit from its joint's impulse."""
    motors = td.envs.make("ant", control="torque", pool=1)
    action = torch.tensor([0.5, -2.0, 0.1, 0.0, 1.0, 0.3, -0.4, 0.2])
    assert torques(motors.mech, action, action, action).tolist() == (150 * action.clamp(-1, 1)).tolist()
    env = td.envs.make("quadruped", num_envs=2, pool=2, repeat=1, autoreset="disabled")
    bounds = efforts(env)
    assert bool((bounds == 33.5).all())
    env.step(torch.ones(2, 12))
    inner = torques(env.mech, torch.ones(2, 12), env.state.q[:, 6:], env.state.qd[:, 6:])
    assert float(inner.abs().max()) <= 33.5
    free = torques(env.mech, 0 * inner, env.state.q[:, 6:], env.state.qd[:, 6:], damping=False)
    rest = env.mech.actuators.bias[:, 0] / -env.mech.actuators.bias[:, 1]  # type: ignore[union-attr]
    expected = (0.9 * 33.5 / 0.5 * (rest - env.state.q[:, 6:])).clamp(-33.5, 33.5)
    torch.testing.assert_close(free, expected)


def test_a_report_needs_a_recording() -> None:
    env = td.envs.make("pendulum", pool=1)
    one = torch.ones(1)
    with pytest.raises(ValueError, match="without a recording"):
        gait_report(env, Evaluation(one, one, one, one, one, one, one, one))
