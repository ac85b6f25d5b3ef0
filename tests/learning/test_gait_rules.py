"""Every rule of the gait report has a motion for which it speaks alone; and numbers of motions that are made to have them."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from made_gaits import LEGS, PERIOD, Made, record, robot
from torch import Tensor

import torchdojo as td
from torchdojo.learning.feet import _legs, _Touch
from torchdojo.learning.following import command_of
from torchdojo.learning.gait import RULES, GaitReport, gait_report
from torchdojo.learning.ground import ground_contacts
from torchdojo.learning.rollouts import Evaluation, Recording


def report(made: Made, env: td.envs.Env | None = None, steps: int = 400, goals: Tensor | None = None) -> GaitReport:
    env = robot() if env is None else env
    return gait_report(env, record(env, made, steps, goals), settle=0.0)


def each(**values: float) -> dict[str, float]:
    """One number for each leg: those whose names contain a letter, F, R, L; front legs begin with F."""
    return {leg: values.get(leg, values.get(leg[1], 0.0)) for leg in LEGS}


def braking(size: float) -> Callable[[Tensor, Tensor], Tensor]:
    """Torques against the motion, which do no positive work."""
    return lambda q, qd: -size * torch.where(qd >= 0, 1.0, -1.0)


def hesitant(size: float, rate: float) -> Callable[[Tensor], Tensor]:
    """A clock that runs fast and slow, out of step with the strides."""
    return lambda t: t + size * torch.sin(rate * t) / rate


def belly() -> td.envs.Env:
    env = robot()
    env.mech.contacts["belly"] = td.NonlinearContact("trunk", point=(0.0, 0.0, -0.29))
    return env


def test_a_good_gait() -> None:
    good = report(Made())
    assert good.verdict == "a walk" and good.faults == ()
    assert good.speed == pytest.approx(0.5, abs=1e-6) and good.stride_frequency == pytest.approx(2.0, rel=1e-3)
    assert good.feet == pytest.approx({f"{leg}_calf": 0.6 for leg in LEGS}, abs=0.01)
    assert good.clearance == pytest.approx({f"{leg}_calf": 0.06 for leg in LEGS}, abs=0.003)  # 25 control steps miss the peak a little
    assert max(good.reach.values()) < 0.01  # a control step moves the foot by 1 cm
    assert good.cadence == pytest.approx(2.0 * math.sqrt(0.29 / 9.81), rel=1e-3) and good.lift == pytest.approx(0.06 / 0.29, rel=0.03)
    assert good.asymmetry is not None and good.asymmetry < 0.05 and good.slip is not None and good.slip < 0.1


#: rule -> motion, and the robot if it is another
MOTIONS: dict[str, tuple[Made, Callable[[], td.envs.Env]]] = {
    "falls": (Made(lasting=(1.0, 0.5, 0.5, 0.5)), robot),
    "stays": (Made(speed=0.05), robot),
    "no rhythm": (Made(clock=lambda t: t + 0.35 * torch.sin(2.3 * t) + 0.25 * torch.sin(3.7 * t)), robot),
    "slides": (Made(slide=2.5), robot),
    "dragged": (Made(), belly),
    "unsteady": (Made(lasting=(1.0, 0.7, 1.0, 1.0)), robot),
    "irregular": (Made(clock=hesitant(0.15, 2.3)), robot),
    "slips": (Made(slide=1.5), robot),
    "sawhorse": (Made(ahead={"FR": 0.11, "FL": 0.11, "RR": -0.11, "RL": -0.11}), robot),
    "shuffles": (Made(speed=0.5, frequency=6.0, clearance=dict.fromkeys(LEGS, 0.008)), robot),
    "lopsided": (Made(clearance=each(R=0.02, L=0.14)), robot),
    "limping": (Made(loaded=lambda leg, s: s >= (0.4 if leg[1] == "R" else 0.75)), robot),
    "bang-bang": (Made(torque=braking(5.0)), lambda: robot(strength=0.1, reach=0.5, damping=0.0)),
    "overloaded": (Made(torque=braking(33.5)), lambda: robot(strength=2.0)),
    "wasteful": (Made(torque=lambda q, qd: 3.0 * qd), robot),
    "idle": (Made(loaded=lambda leg, s: (s >= 0.4) & (leg != "RL")), robot),
}


@pytest.mark.parametrize("rule", [rule.name for rule in RULES])
def test_a_motion_for_which_one_rule_speaks(rule: str) -> None:
    made, make = MOTIONS[rule]
    env = make()
    result = record(env, made)
    if rule == "dragged":
        assert result.recording is not None
        column = env.mech.impulse_layout["contacts.belly"].start
        result.recording.impulses[..., column] = 0.5 * result.recording.impulses.sum(-1)
    if rule == "bang-bang":
        assert result.recording is not None
        result.recording.actions.clamp_(-1.0, 1.0)
    found = gait_report(env, result, settle=0.0)
    chosen = next(one for one in RULES if one.name == rule)
    assert found.faults == (rule,), found.verdict
    assert chosen.sentence(found) in found.verdict and found.verdict.startswith("no gait: ") is chosen.no_gait


def test_left_and_right_have_the_same_to_do_on_a_straight_path() -> None:
    """A difference that turning commands or kicks explain is a fault where the command is straight ahead."""
    made, ahead = Made(clearance=each(R=0.035, L=0.1)), torch.tensor([0.5, 0.0, 0.0]).expand(400, -1).double()
    found = {name: report(made, goals=goals) for name, goals in (("none", None), ("ahead", ahead), ("turning", ahead + 0.1))}
    assert 0.1 < (found["ahead"].asymmetry or 0.0) < 0.5
    assert {name: one.faults for name, one in found.items()} == {"none": (), "ahead": ("lopsided",), "turning": ()}
    kicked = robot()
    kicked.kicks = td.envs.make("quadruped", pool=1, kicks=(0.5, 150)).kicks
    assert report(made, kicked, goals=ahead).faults == ()
    assert report(Made(), goals=ahead).faults == ()


def circling(speed: tuple[float, float], turning: float, goals: Tensor | None, steps: int = 400) -> GaitReport:
    """The report of a trunk that moves with a velocity in its own frame while it turns, and sways."""
    env = robot()
    result = record(env, Made(), steps, goals)
    given = result.recording
    assert given is not None
    t = PERIOD * torch.arange(steps + 1, dtype=torch.float64)
    angle = turning * t + 0.3
    vx, vy = speed
    x = (vx * angle.sin() + vy * (angle.cos() - math.cos(0.3)) - vx * math.sin(0.3)) / turning
    y = (-vx * angle.cos() + vy * (angle.sin() - math.sin(0.3)) + vx * math.cos(0.3)) / turning
    sway = 0.02 * torch.sin(4 * math.pi * t)  # once in a stride
    z = given.z.clone()
    z[:, 0, 0], z[:, 0, 1] = x - sway * angle.sin(), y + sway * angle.cos()
    z[:, 0, 6:10] = torch.stack(((angle / 2).cos(), 0 * angle, 0 * angle, (angle / 2).sin()), -1)
    moved = Recording(z, *[getattr(given, name) for name in ("actions", "impulses", "alive", "period", "goals")])
    result = type(result)(**{**vars(result), "recording": moved})
    return gait_report(env, result, settle=0.0 if goals is None else 1.0)


def test_errors_over_strides_along_the_heading() -> None:
    """Speeds are those of the robot's own frame, and the sway within a stride, 0.25 m/s, does not count."""
    assert circling((0.6, -0.2), 0.8, None).speed == pytest.approx(0.6, abs=0.01)  # over 8 s it turns around its heading once
    commands = torch.tensor([0.7, -0.25, 0.5, 9.0]).expand(400, -1).double()  # the fourth number is no speed
    found = circling((0.6, -0.2), 0.8, commands)
    assert found.forward_error == pytest.approx(0.1, abs=0.01) and found.sideways_error == pytest.approx(0.05, abs=0.01)
    assert found.turning_error == pytest.approx(0.3, abs=1e-6)
    assert circling((0.6, -0.2), 0.8, None).forward_error is None


def test_errors_after_a_change_of_command_do_not_count() -> None:
    commands = torch.tensor([0.6, -0.2, 0.8]).repeat(400, 1).double()
    commands[120:160, 0] += 5.0  # 0.8 s, less than the second that a robot gets to settle
    found = circling((0.6, -0.2), 0.8, commands)
    assert found.forward_error is not None and found.forward_error < 0.01
    commands[160:250, 0] += 1.0  # 1.8 s, so 40 of the 270 control steps that count, from the 50th after each change
    found = circling((0.6, -0.2), 0.8, commands)
    assert found.forward_error == pytest.approx(41 / (71 + 41 + 101), abs=0.01)


def test_goals_that_are_no_commands() -> None:
    env = robot()
    goals = torch.ones(400, 4, dtype=torch.float64)
    assert report(Made(), env, goals=goals).forward_error == pytest.approx(0.5, abs=0.01)
    del env.velocity_command  # type: ignore[attr-defined]
    assert report(Made(), env, goals=goals).forward_error == pytest.approx(0.5, abs=0.01)  # a free root with contacts
    assert command_of(td.envs.make("quadrotor", pool=1), torch.ones(5, 2, 3)) is None  # a place
    env.velocity_command = slice(1, 4)  # type: ignore[attr-defined]
    assert report(Made(), env, goals=goals * torch.tensor([5.0, 0.5, 0.0, 0.0])).forward_error == pytest.approx(0.0, abs=0.01)
    env.velocity_command = None  # type: ignore[attr-defined]
    assert report(Made(), env, goals=goals).forward_error is None
    assert report(Made(), env, goals=goals[:, :2]).forward_error is None


def test_an_environment_names_its_legs() -> None:
    env = robot()
    ahead = each(F=0.0) | {"FR": 0.02}
    assert report(Made(ahead=ahead), env).reach["FR_calf"] == pytest.approx(0.02, abs=0.01)
    env.legs = [SimpleNamespace(contacts=("FR_foot",), hip="FR_calf_joint")]  # type: ignore[attr-defined]
    found = report(Made(ahead=ahead), env)
    assert list(found.reach) == list(found.clearance) == ["FR_calf"] and found.reach["FR_calf"] > 0.1  # the knee is behind the foot
    thigh = [SimpleNamespace(contacts=("FR_foot",), hip=(0.183, -0.136))]  # where the thigh begins, from the trunk's center of mass
    for name, value in (("legs", thigh), ("legs", None), ("anatomy", SimpleNamespace(legs=thigh))):
        setattr(env, name, value)
        assert report(Made(ahead=ahead), env).reach["FR_calf"] == pytest.approx(0.02, abs=0.01)
    env.legs = [SimpleNamespace(contacts=("FR_paw",), hip="FR_hip_joint")]  # type: ignore[attr-defined]
    with pytest.raises(
        ValueError, match=r"legs of the environment: got contacts \['FR_paw'\] and hip 'FR_hip_joint'; allowed: contacts of"
    ):
        report(Made(), env)


def test_robots_that_are_built_like_sawhorses() -> None:
    """An ant rests with its feet far out, and a walker's hips are where its thighs begin."""
    env = td.envs.make("ant", num_envs=2, pool=2, autoreset="disabled")
    z = env.state.z.expand(60, -1, -1)
    impulses = torch.zeros(59, 2, env.mech.impulse_layout["contacts.back_right_foot_end"].stop)
    for side in ("front_left", "front_right", "back_left", "back_right"):
        impulses[..., env.mech.impulse_layout[f"contacts.{side}_foot_end"].start] = 0.05
    recording = Recording(z, torch.zeros(59, 2, 8), impulses, torch.ones(59, 2, dtype=torch.bool), PERIOD)
    one = torch.ones(2)
    found = gait_report(env, Evaluation(one, one, one, one, one, one, one, one, recording))
    assert len(found.reach) == 4 and min(found.reach.values()) > 0.3 and found.splay is None


def test_legs_begin_where_chains_part() -> None:
    """Not at the waist of a humanoid, though it bends forward."""
    mech = td.envs.make("humanoid", pool=1)
    names = list(ground_contacts(mech.mech))
    owners = [str(contact.body_names[0]) for contact in ground_contacts(mech.mech).values()]
    touch = _Touch(names, owners, *[torch.zeros(0)] * 4)
    found = _legs(mech, touch, {"right_shin": 0.5, "left_shin": 0.3, "left_thigh": 0.2}, ["right_shin", "left_shin", "left_thigh"])
    assert [(leg.foot, leg.hip) for leg in found] == [("right_shin", "right_hip"), ("left_shin", "left_hip")]
    walker = td.envs.make("walker2d", pool=1)
    touch = _Touch(["foot_start", "foot_left_end"], ["foot", "foot_left"], *[torch.zeros(0)] * 4)
    found = _legs(walker, touch, {"foot": 0.5, "foot_left": 0.5}, ["foot", "foot_left"])
    assert [leg.hip for leg in found] == ["thigh_joint", "thigh_left_joint"]


def test_tables_say_what_was_measured() -> None:
    rows = dict(report(Made()).rows())
    assert rows["clearance by foot [cm]"].startswith("FR_calf 6.0") and rows["cadence"] == "0.34" and rows["verdict"] == "a walk"
    assert len({rule.name for rule in RULES}) == len(RULES) == len(MOTIONS)
