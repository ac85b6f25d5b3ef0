"""Legged robots that follow commands: what is found of a robot, the clock, the mirror image, the fast path, gradients, bad input."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

import torchdojo as td
from conftest import shared_path
from torchdojo import quaternion as quat
from torchdojo.envs import Locomotion
from torchdojo.envs.anatomy import UNDER, Skeleton, find_anatomy
from torchdojo.envs.gaits import GAITS, Gait, gait_of
from torchdojo.native import loader

native = pytest.mark.skipif(not loader.available(), reason="no compiler for the native kernel")
FILES = ["unitree_a1/a1.urdf", "unitree_a1/a1.xml", "unitree_go1/go1.urdf", "unitree_go1/go1.xml"]
LEGS = ["front right", "front left", "rear right", "rear left"]


def robot(num_envs: int = 2, name: Any = "quadruped", **options: Any) -> Locomotion:
    return Locomotion(name, num_envs=num_envs, **{"pool": 8, **options})


# -- anatomy -----------------------------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")  # what the files have that does not act
@pytest.mark.parametrize("file", FILES)
def test_quadrupeds_stand_with_their_feet_under_their_hips(file: str) -> None:
    anatomy = find_anatomy(td.load(shared_path("models", *file.split("/"))))
    assert [leg.name for leg in anatomy.legs] == LEGS
    assert [leg.body for leg in anatomy.legs] == ["FR_calf", "FL_calf", "RR_calf", "RL_calf"]
    assert [len(leg.contacts) for leg in anatomy.legs] == [1, 1, 1, 1]  # the ball at the end of the shank, not the box about it
    assert max(map(abs, anatomy.misses)) < 1e-6  # Newton's method ends there, while UNDER is what is asked for
    assert UNDER > 1e-6
    # Unitree's own stance of an A1 and Go1 is 0, 0.8 to 0.9, −1.6 to −1.8 rad.
    torch.testing.assert_close(anatomy.rest, torch.tensor([0.0, 0.8, -1.6] * 4).double(), rtol=0, atol=0.01)
    assert 0.29 < anatomy.height < 0.33
    assert anatomy.images is not None
    for i, (j, sign) in enumerate(anatomy.images):
        one, other = anatomy.joints[i], anatomy.joints[j]
        assert one[0] == other[0] and {one[1], other[1]} == {"L", "R"} and one[2:] == other[2:]
        assert sign == (-1.0 if "hip" in one else 1.0)


LINK = '<link name="{}"><inertial><mass value="1"/><inertia ixx=".01" iyy=".01" izz=".01" ixy="0" ixz="0" iyz="0"/></inertial>{}</link>'
HINGE = '<joint name="{0}" type="continuous"><parent link="{1}"/><child link="{2}"/><origin xyz="{3}"/><axis xyz="0 1 0"/></joint>'


def test_knees_point_to_where_the_feet_are_offset(write_urdf: Any) -> None:
    """As of ANYmal C (Hutter et al. 2016, Advanced Robotics 31(17)): its feet are offset ahead in front and back in the rear."""
    parts = [LINK.format("trunk", "")]
    for leg, x, y in (("fr", 0.3, -0.2), ("fl", 0.3, 0.2), ("rr", -0.3, -0.2), ("rl", -0.3, 0.2)):
        ball = f'<collision><origin xyz="{0.08 if x > 0 else -0.08} 0 -.3"/><geometry><sphere radius=".02"/></geometry></collision>'
        parts += [LINK.format(f"{leg}_thigh", ""), LINK.format(f"{leg}_shank", ball)]
        parts += [HINGE.format(f"{leg}_hip", "trunk", f"{leg}_thigh", f"{x} {y} 0")]
        parts += [HINGE.format(f"{leg}_knee", f"{leg}_thigh", f"{leg}_shank", "0 0 -.3")]
    anatomy = find_anatomy(td.load(write_urdf(*parts)))
    front, rear = anatomy.rest[:4], anatomy.rest[4:]
    torch.testing.assert_close(front, -rear, rtol=0, atol=1e-6)
    assert float(front[0]) > 0.5 and max(map(abs, anatomy.misses)) < 1e-6


@pytest.mark.filterwarnings("ignore")
def test_a_humanoid_stands_on_level_feet_and_its_arms_are_no_legs() -> None:
    mech = td.load(shared_path("models", "unitree_h1", "h1.urdf"))
    anatomy = find_anatomy(mech)
    assert [leg.name for leg in anatomy.legs] == ["right", "left"]
    bones = Skeleton(mech)
    z = bones.state(anatomy.rest)
    for leg in anatomy.legs:
        heights = bones.points(z, leg.contacts)[1]
        assert len(heights) > 2 and float(heights.max() - heights.min()) < 1e-6
    arms = [name for i, name in enumerate(anatomy.joints) if not any(i in leg.joints for leg in anatomy.legs)]
    assert len(arms) == 9 and not any("hip" in name or "ankle" in name for name in arms)


def test_guesses_can_be_given() -> None:
    env = robot(feet=["FL_foot", "FR_foot", "RL_calf", "RR_calf"], stance={"thigh_joint": 0.9, "FR_thigh_joint": 1.0})
    assert [leg.contacts for leg in env.anatomy.legs] == [("FR_foot",), ("FL_foot",), ("RR_foot",), ("RL_foot",)]
    assert env.rest[1::3].tolist() == [1.0, 0.9, 0.9, 0.9]
    assert dict(env.describe())["front right"].startswith("foot FR_foot")
    assert "kp 60" in dict(robot(stiffness=60.0).describe())["drives"]


# -- the task ----------------------------------------------------------------------------------------------------------------------------


@native
def test_the_clock_and_the_commands_go_on_and_actions_are_remembered() -> None:
    env = robot(3, resample=2, pool=64)
    before, goals = env.state, [env.state.goal]
    for _ in range(4):
        env.step(env.random(3, 12))
        memory = env.state.memory
        torch.testing.assert_close(memory[:, 0], (before.memory[:, 0] + 0.02 * 2.0 / math.sqrt(env.anatomy.length / 0.4)) % 1.0)
        assert torch.equal(memory[:, 1:], before.action)
        before = env.state
        goals.append(before.goal)
    assert [torch.equal(a, b) for a, b in itertools.pairwise(goals)] == [True, False, True, False]
    low, high = torch.tensor(env.commands).double().unbind(-1)
    drawn = env.goals(1000)
    assert bool(((drawn >= low) & (drawn <= high)).all()) and 0.05 < float((drawn == 0).all(-1).double().mean()) < 0.15


@native
def test_feet_and_torques_are_those_of_the_mechanism() -> None:
    env = robot(2)
    for _ in range(3):
        action = env.random(2, 12)
        env.step(action)
    motion = env.state.motion
    place, speed = env.foot_motion(motion)
    names = list(env.mech.contacts)
    own = [names.index(leg.contacts[0]) for leg in env.anatomy.legs]
    points = env.mech.contact_points(motion.z)[:, own]
    torch.testing.assert_close(place - torch.tensor([0.0, 0.0, 0.021]), points, rtol=0, atol=1e-9)
    for k, leg in enumerate(env.anatomy.legs):  # v + ω × r about the shank's center of mass
        state = env.mech.body_state(motion.z, leg.body)
        spin = quat.rotate(state.q, state.omega)
        expected = state.v + torch.linalg.cross(spin, place[:, k] - state.x)
        torch.testing.assert_close(speed[:, k], expected, rtol=0, atol=1e-9)
    from torchdojo.learning.motors import torques

    expected = torques(env.mech, action, env.joint_angles(motion.q), env.joint_angles(motion.qd))
    torch.testing.assert_close(env.torques(motion, action), expected, rtol=0, atol=1e-9)


@native
def test_parts_of_the_reward_are_logged_and_weights_scale_them() -> None:
    env, other = robot(), robot(weights={"velocity": 8.0, "place": 0.0})
    one, two = (each.step(torch.zeros(2, 12)).info["terms"] for each in (env, other))
    assert set(one) == set(td.envs.locomotion.WEIGHTS) - {"arms"}
    torch.testing.assert_close(two["velocity"], 2 * one["velocity"])
    assert float(one["place"].max()) < 0 == float(two["place"].abs().max())


@native
def test_segments_take_the_kernel_s_fast_path_and_agree_with_steps() -> None:
    options: dict[str, Any] = {"kicks": (0.5, 3), "sensor_noise": {"noise": "robot", "delay": 1}, "resample": 3}
    policy = torch.nn.Linear(47, 12).double()
    torch.nn.init.normal_(policy.weight, std=0.02)
    env, other = (robot(**options) for _ in range(2))
    segment = td.envs.Segment(env, policy, 5)
    assert segment._tape(5) is not None and env.plain
    segment.compiled = False
    out = segment()
    for t in range(5):
        step = other.step(policy(other.obs))
        torch.testing.assert_close(out.reward[t], step.reward, rtol=0, atol=1e-9)
    assert [*map(float, env._noise("robot")["noise"][:7])] == [0.03] * 3 + [0.1] * 3 + [0.01]


@native
def test_gradients_of_the_return_agree_with_differences() -> None:
    def total(actions: Tensor) -> Tensor:
        env = robot(1, seed=3)
        return torch.stack([env.step(action).reward for action in actions]).sum()

    actions = 0.3 * torch.randn(3, 1, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    leaf = actions.clone().requires_grad_()
    (grad,) = torch.autograd.grad(total(leaf), leaf)
    direction, size = torch.randn(3, 1, 12, generator=torch.Generator().manual_seed(1), dtype=torch.float64), 1e-5
    difference = (total(actions + size * direction) - total(actions - size * direction)) / (2 * size)
    # 1e-4: steps converge to 1e-8 or so, which differences divide by 1e-5
    assert float((grad * direction).sum()) == pytest.approx(float(difference), rel=1e-4, abs=1e-4)


# -- left and right ----------------------------------------------------------------------------------------------------------------------


@native
@pytest.mark.parametrize("gait", ["trot", "walk", "pace", "bound", "run"])
def test_the_mirrored_robot_sees_the_mirrored_observation(gait: str) -> None:
    env = robot(4, gait=gait)
    mirror = env.mirror()
    for matrix in mirror:
        assert torch.equal(matrix @ matrix, torch.eye(len(matrix), dtype=torch.float64)) and torch.equal(matrix, matrix.mT)
    q, qd = env.mech.to_minimal(env.starts(4))
    polar, axial = torch.tensor([1.0, -1.0, 1.0]).double(), torch.tensor([-1.0, 1.0, -1.0]).double()
    base = torch.cat((polar, axial))
    action, goal = env.random(4, 12), env.goals(4)
    phase = env.random(4, 1, low=0.0)
    shift = 0.0 if gait == "bound" else 0.5

    def observed(q: Tensor, qd: Tensor, action: Tensor, goal: Tensor, phase: Tensor) -> Tensor:
        motion = env._still(env.mech.to_maximal(q, qd), goal)
        return env.observe(motion._replace(action=action, memory=torch.cat((phase, action), -1)))

    def reflected(x: Tensor) -> Tensor:
        return torch.cat((x[:, :6] * base, x[:, 6:] @ mirror.action.mT), -1)

    seen = observed(q, qd, action, goal, phase)
    command = goal * torch.tensor([1.0, -1.0, -1.0])
    image = observed(reflected(q), reflected(qd), action @ mirror.action.mT, command, (phase + shift) % 1.0)
    torch.testing.assert_close(image, seen @ mirror.obs.mT, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", GAITS)
def test_gaits_have_offsets_within_a_stride(name: str) -> None:
    for legs in GAITS[name].offsets:
        gait, offsets = gait_of(name, legs)
        assert len(offsets) == legs and all(0 <= each < 1 for each in offsets) and 0 < gait.duty < 1
    assert gait_of({"name": name, "frequency": 3.0}, 4 if 4 in GAITS[name].offsets else 2)[0].frequency == 3.0


# -- bad input ---------------------------------------------------------------------------------------------------------------------------

BOX = '<body name="box" pos="0 0 1"><freejoint/><geom type="box" size=".1 .1 .1"/>{}</body>'
LEG = (
    '<body name="{0}" pos="{1} {2} -.1"><joint name="{0}_hip" axis="0 1 0"/><geom type="capsule" size=".02" fromto="0 0 0 0 0 -.2"/>'
    '<body name="{0}_shank" pos="0 0 -.2"><joint name="{0}_knee" axis="0 1 0"/><geom type="capsule" size=".02" fromto="0 0 0 0 0 -.2"/>'
    "</body></body>"
)
MOTORS = "".join(f'<motor joint="{leg}_{part}"/>' for leg in ("r", "l") for part in ("hip", "knee"))


@pytest.mark.filterwarnings("ignore")
def test_robots_without_legs_or_mirror_images(write_mjcf: Any) -> None:
    legs = LEG.format("r", 0.0, -0.1) + LEG.format("l", 0.03, 0.1)
    lame = td.load(write_mjcf(BOX.format(legs), f"<actuator>{MOTORS}</actuator>"))
    with pytest.raises(ValueError, match=r"mirror: got joints without a mirror image: r_hip.*allowed.*symmetric: false"):
        robot(1, lame, gait="walk").mirror()
    with pytest.raises(ValueError, match=r"gait: got one of 4 legs \('trot'\) for a robot with 2; allowed: walk, run; give gait='walk'"):
        robot(1, lame)
    bar = '<equality><connect name="bar" body1="r_shank" body2="l_shank" anchor="0 0.1 0"/></equality>'
    looped = td.load(write_mjcf(BOX.format(legs), f"<actuator>{MOTORS}</actuator>{bar}"))
    with pytest.raises(ValueError, match=r"closed loops or coupled joints, of bar; allowed: trees of joints; .*ignore=\['bar'\]"):
        robot(1, looped, gait="walk")
    ant = td.models.ant()
    with pytest.raises(ValueError, match=r"a leg without a joint that pitches, that of .*allowed: legs that swing ahead and back"):
        robot(1, ant)
    with pytest.raises(ValueError, match=r"without driven hinges"):
        robot(1, td.load(write_mjcf(BOX.format("")), contacts="collision"))
    for name in list(lame.contacts):
        del lame.contacts[name]
    with pytest.raises(ValueError, match=r"a robot without feet: its contacts with the ground are none; allowed: a contact at the end"):
        robot(1, lame)
    with pytest.raises(ValueError, match=r"first body does not float; allowed: .*floating_base=True"):
        robot(1, td.load(write_mjcf(LEG.format("r", 0, 0), '<actuator><motor joint="r_hip"/></actuator>')))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gait": "gallop"}, r"gait: got 'gallop'; allowed: trot, walk, pace, bound, run"),
        ({"gait": {"name": "trot", "speed": 1}}, r"gait: got 'speed'; allowed: name, offsets, duty, frequency"),
        ({"name": "dog"}, r"robot: got 'dog'; allowed: quadruped"),
        ({"name": "dog.urdf"}, r"robot: got 'dog.urdf', which is no file; allowed: a URDF or MJCF file"),
        ({"feet": ["paw"]}, r"feet: got 'paw'; allowed: contacts with the ground, or bodies that have some: FR_calf"),
        ({"feet": ["FR_foot"]}, r"got feet FR_calf, which are not pairs of a right and a left one"),
        ({"stance": {"paw": 1.0}}, r"stance: got 'paw'; allowed: names of driven joints"),
        ({"weights": {"speed": 1.0}}, r"weights: got 'speed'; allowed: alive, velocity"),
        ({"commands": [(0, 1)]}, r"commands: got .*; allowed: three pairs"),
        ({"clearance": -1.0}, r"clearance: got -1.0; allowed: a finite number above 0"),
    ],
)
def test_bad_input(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        robot(1, **options)


def test_gaits_that_no_clock_mirrors() -> None:
    with pytest.raises(ValueError, match=r"gait, duty: got 1.5; allowed: a number between 0 and 1"):
        Gait({4: (0.0, 0.5, 0.5, 0.0)}, duty=1.5)
    with pytest.raises(ValueError, match=r"mirror: got a gait with offsets .*allowed: gaits whose left legs step with the right ones"):
        robot(1, gait={"offsets": [0.0, 0.2, 0.5, 0.7]}).mirror()


# -- two legs ----------------------------------------------------------------------------------------------------------------------------

H1 = ("models", "unitree_h1", "h1.urdf")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("file", ["h1.urdf", "h1.xml"])
def test_humanoids_stand_on_level_soles_with_bent_knees_under_their_hips(file: str) -> None:
    """Both files of the H1, whose soles are points and capsules; knees bend as far as 0.97 of a straight leg says."""
    anatomy = find_anatomy(td.load(shared_path("models", "unitree_h1", file)))
    assert max(map(abs, anatomy.misses)) < 1e-6 and not anatomy.backward
    for leg in anatomy.legs:
        assert len(leg.contacts) == 4
        hip, knee, ankle = anatomy.rest[[i for i in leg.joints if anatomy.kinds[i] == "pitch"]].tolist()
        assert hip < -0.05 and 0.3 < knee < 0.6 and abs(hip + knee + ankle) < 1e-6  # the sole is level


@native
@pytest.mark.filterwarnings("ignore")
def test_the_mirror_of_a_humanoid_commutes_with_its_steps() -> None:
    """Arms and torso included. Inertias of the file have no exact mirror image, which the tolerance is for."""
    env = robot(2, shared_path(*H1), gait="walk", noise=1.0, autoreset="disabled")
    mirror, base = env.mirror(), torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0, -1.0]).double()
    for matrix in mirror:
        assert torch.equal(matrix @ matrix, torch.eye(len(matrix), dtype=torch.float64))
    action, goal, phase = env.random(2, 19), env.goals(2), env.random(2, 1, low=0.0)
    q, qd = env.mech.to_minimal(env.starts(2))

    def after(q: Tensor, qd: Tensor, action: Tensor, goal: Tensor, phase: Tensor) -> Tensor:
        z = env.mech.to_maximal(q, qd)
        for _ in range(3):
            z = env.mech.step(z, ctrl=action).z
        return env.observe(env._still(z, goal)._replace(action=action, memory=torch.cat((phase, action), -1)))

    def reflected(x: Tensor) -> Tensor:
        return torch.cat((x[:, :6] * base, x[:, 6:] @ mirror.action.mT), -1)

    seen = after(q, qd, action, goal, phase)
    image = after(reflected(q), reflected(qd), action @ mirror.action.mT, goal * torch.tensor([1.0, -1.0, -1.0]), (phase + 0.5) % 1.0)
    torch.testing.assert_close(image, seen @ mirror.obs.mT, rtol=0, atol=0.03)  # 0.017 of spin after three steps


@native
@pytest.mark.filterwarnings("ignore")
def test_bipeds_have_numbers_of_their_own_and_given_ones_win() -> None:
    env = robot(1, shared_path(*H1), gait="walk")
    size = env.anatomy.length / 0.4
    assert env.weights["alive"] == 6.0 and env.weights["feet"] == pytest.approx(2500.0 / size**2)
    assert 1 / env.stride == pytest.approx(2.0 / math.sqrt(size)) and env.clearance == pytest.approx(0.036 * size)
    given = robot(1, shared_path(*H1), gait={"name": "walk", "frequency": 1.5}, weights={"feet": 80.0}, clearance=0.1)
    assert given.weights["feet"] == pytest.approx(80.0 / size**2) and given.weights["alive"] == 6.0
    assert 1 / given.stride == pytest.approx(1.5 / math.sqrt(size)) and given.clearance == 0.1
    quadruped = robot(1, gait="walk")
    assert quadruped.weights["alive"] == 1.5 and quadruped.gait.frequency == 1.5
    still = env.state.motion
    for fraction, tilt, fell in ((1.0, 0.0, False), (1.0, 0.6, False), (1.0, 0.7, True), (0.75, 0.0, False), (0.65, 0.0, True)):
        root = still.root.clone()
        root[:, 2], root[:, 6:10] = fraction * env.anatomy.height, torch.tensor([math.cos(tilt / 2), 0.0, math.sin(tilt / 2), 0.0])
        assert bool(env.terminated(still._replace(root=root))) == fell


@pytest.mark.filterwarnings("ignore")
def test_robots_that_look_back_and_files_without_motors(write_urdf: Any, write_mjcf: Any) -> None:
    foot = '<collision><origin xyz="{} 0 -.05"/><geometry><box size=".2 .1 .02"/></geometry></collision>'
    for ahead in (0.05, -0.05):
        parts = [LINK.format("trunk", "")]
        for side, y in (("left", 0.1), ("right", -0.1)):
            names = [f"{side}_{part}" for part in ("thigh", "shank", "foot")]
            parts += [LINK.format(names[0], ""), LINK.format(names[1], ""), LINK.format(names[2], foot.format(ahead))]
            parts += [HINGE.format(f"{side}_hip", "trunk", names[0], f"0 {y} 0")]
            parts += [HINGE.format(f"{side}_{joint}", *names[k : k + 2], "0 0 -.3") for k, joint in enumerate(("knee", "ankle"))]
        anatomy = find_anatomy(td.load(write_urdf(*parts)))
        assert all(len(leg.contacts) == 4 for leg in anatomy.legs)
        assert anatomy.backward == (ahead < 0) == ("ahead" in dict(anatomy.rows()))
    legs = LEG.format("r", 0.0, -0.1) + LEG.format("l", 0.0, 0.1)
    assert len(find_anatomy(td.load(write_mjcf(BOX.format(legs)))).joints) == 4
