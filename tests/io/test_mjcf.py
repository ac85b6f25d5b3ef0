"""The MJCF reader, feature by feature and error by error, on small files."""

from __future__ import annotations

import builtins
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mjcf_text import FLOOR, GEOM, TETRAHEDRON, TREE, Write, X, Y, Z, body, free_body, hinge, notes, quiet, slide

from torchdojo.commands.main import main
from torchdojo.io import load, load_mjcf, mjcf_state, read_mjcf
from torchdojo.solver.options import Status

mujoco = pytest.importorskip("mujoco")

# -- joints ------------------------------------------------------------------------------------------------------------------------------


def test_joint_options(write_mjcf: Write) -> None:
    more = 'ref=".2" springref=".5" stiffness="3" damping="2" frictionloss=".4" armature=".6" range="-1 1.5"'
    mech = quiet(write_mjcf(body(hinge("h", Z, more))))
    joint = mech.joints["h"]
    assert [float(getattr(joint, name)) for name in ("spring", "damper", "friction", "armature")] == [3.0, 2.0, 0.4, 0.6]
    assert joint.rest.tolist() == pytest.approx([0.3])  # coordinates count from the pose that the file draws
    assert [bound.tolist() for bound in joint.limits] == [pytest.approx([-1.2]), pytest.approx([1.3])]
    assert (joint.actuated, joint.effort_limit) == (False, None)


def test_limits_beyond_a_turn_are_none(write_mjcf: Write) -> None:
    path = write_mjcf(body(hinge("h", Z, 'range="-10 1.5"')) + body(hinge("t", Z, 'range="-6.2832 6.2832"'), name="b"))
    mech = quiet(path, contacts=None)
    lower, upper = (float(bound) for bound in mech.joints["h"].limits)
    assert (lower, upper) == (-math.inf, 1.5)
    assert float(mech.joints["t"].limits[1]) == pytest.approx(2 * math.pi)
    (entry,) = mech.load_report.lost
    assert (entry.kind, entry.names) == ("joint limits", ("h",))


def test_numbers_of_a_ball_act_on_all_its_coordinates(write_mjcf: Write) -> None:
    joint = quiet(write_mjcf(body('<joint name="b" type="ball" stiffness="2" damping="3"/>'))).joints["b"]
    assert (joint.limits, joint.spring.tolist(), joint.damper.tolist()) == (None, [2.0] * 3, [3.0] * 3)


def test_names(write_mjcf: Write) -> None:
    world = "".join(
        [
            body(hinge("arm.x", X) + hinge("arm.y", Y), name="a.b"),
            body(slide("p", X) + slide("q", Y), name="c"),
            f"<body><joint/>{GEOM}</body>",
            f'<body name="d"><freejoint/>{GEOM}</body>',
            f'<body name="e"><freejoint/>{GEOM}</body>',
            body(hinge("keys", X), name="training"),
        ]
    )
    mech = quiet(write_mjcf(world))
    assert list(mech.bodies) == ["a_b_arm_x", "a_b", "c", "body3", "d", "e", "training_"]
    assert list(mech.joints) == ["arm_x", "arm_y", "c", "body3", "floating_base", "e", "keys_"]


# -- bodies ------------------------------------------------------------------------------------------------------------------------------


def test_bodies_without_joints_are_merged(write_mjcf: Write) -> None:
    path = write_mjcf(TREE)
    mech = quiet(path)
    model = read_mjcf(path).compiled.model
    assert list(mech.bodies) == ["a"]
    assert float(mech.bodies["a"].mass) == pytest.approx(model.body_mass.sum(), rel=1e-12)
    split = quiet(path, merge_fixed_joints=False)
    assert list(split.bodies) == ["a", "b"]
    assert type(split.joints["b"]).__name__ == "Fixed"
    # the same momentum from the same turn
    state = {"h": {"q": 0.3, "qd": 2.0}}
    torch.testing.assert_close(
        mech.momentum(mech.initial_state(**state))[:3], split.momentum(split.initial_state(**state))[:3], rtol=1e-9, atol=1e-9
    )


def test_floating_base(write_mjcf: Write) -> None:
    path = write_mjcf(f'<body name="a" pos="0 0 2" euler=".3 0 0"><freejoint/>{GEOM}{body(hinge("h", X), name="b")}</body>')
    free, held = quiet(path), quiet(path, floating_base=False)
    assert (list(free.bodies), list(held.bodies)) == (["a", "b"], ["b"])
    assert not free.joints["floating_base"].actuated
    torch.testing.assert_close(free.initial_state()[13:], held.initial_state(), rtol=0, atol=1e-12)
    with pytest.raises(ValueError, match=r"no body can move: none has a joint; pass floating_base=True"):
        load(write_mjcf(f'<body name="a"><freejoint/>{GEOM}</body>'), floating_base=False)


def test_nothing_moves(write_mjcf: Write) -> None:
    with pytest.raises(ValueError, match=r"robot\.xml: no body can move: none has a joint$"):
        load(write_mjcf(GEOM))


def test_moving_body_without_mass(write_mjcf: Write) -> None:
    with pytest.raises(ValueError, match=r"robot\.xml: MuJoCo refuses the file: mass and inertia of moving bodies"):
        load(write_mjcf(body(hinge("h", X), "")))


def test_inertia_that_no_body_can_have(write_mjcf: Write) -> None:
    inertial = '<inertial mass="1" pos="0 0 0" diaginertia="1 1 3"/>'
    with pytest.raises(ValueError, match=r"MuJoCo refuses the file: inertia must satisfy A \+ B >= C"):
        load(write_mjcf(body(hinge("h", X), inertial)))


# -- loops -------------------------------------------------------------------------------------------------------------------------------

FOURBAR = (
    '<body name="a"><joint name="ha" axis="0 1 0"/><geom type="capsule" size=".02" fromto="0 0 0 0 0 1"/>'
    '<body name="b" pos="0 0 1"><joint name="hb" axis="0 1 0"/><geom type="capsule" size=".02" fromto="0 0 0 1 0 0"/></body></body>'
    '<body name="c" pos="1 0 0"><joint name="hc" axis="0 1 0"/><geom type="capsule" size=".02" fromto="0 0 0 0 0 1"/></body>'
)


@pytest.mark.parametrize("angle", [0.5, 4.0, -3.5, 6.2])
def test_angles_of_states_are_those_of_qpos(write_mjcf: Write, angle: float) -> None:
    """Orientations of MuJoCo have no sign that says how far a hinge has turned; qpos does."""
    path = write_mjcf(body(hinge("first", Y), inside=body(hinge("second", '"1 0 1"'), name="b")))
    mech = quiet(path, contacts=None)
    q, qd = mech.to_minimal(mjcf_state(mech, read_mjcf(path), qpos=[angle, -angle], qvel=[1.0, 2.0]))
    torch.testing.assert_close(q, torch.tensor([angle, -angle]))
    torch.testing.assert_close(qd, torch.tensor([1.0, 2.0]), rtol=1e-2, atol=0)


def test_connect_closes_a_loop(write_mjcf: Write) -> None:
    path = write_mjcf(FOURBAR, '<equality><connect name="pin" body1="b" body2="c" anchor="1 0 0"/></equality>')
    mech = quiet(path, contacts=None)
    pin = mech.joints["pin"]
    assert (type(pin).__name__, pin.parent, pin.child, pin.actuated) == ("Spherical", "b", "c", False)
    z = mjcf_state(mech, read_mjcf(path))
    assert (mech.joint_errors(z).abs() <= 1e-12).all()
    path_z = mech.rollout(z, steps=20)
    assert (path_z.status == int(Status.SUCCESS)).all()
    assert (mech.joint_errors(path_z.z).abs() <= 1e-8).all()
    assert "pin" not in mech.tree_joints
    torch.testing.assert_close(mech.initial_state(), z, rtol=0, atol=1e-12)  # qpos0


@pytest.mark.parametrize(
    ("constraint", "parent", "child"),
    [('body1="b" body2="c"', "b", "c"), ('body1="b"', None, "b"), ('site1="sb" site2="sc"', "b", "c")],
    ids=["bodies", "world", "sites"],
)
def test_weld(write_mjcf: Write, constraint: str, parent: str | None, child: str) -> None:
    sites = FOURBAR.replace('<geom type="capsule" size=".02" fromto="0 0 0 1 0 0"/>', '<geom size=".1"/><site name="sb" pos="1 0 0"/>')
    sites = sites.replace('fromto="0 0 0 0 0 1"/></body>', 'fromto="0 0 0 0 0 1"/><site name="sc" pos="0 0 1"/></body>')
    path = write_mjcf(sites, f"<equality><weld {constraint}/></equality>")
    mech = quiet(path)
    joint = mech.joints["weld_0"]
    assert (type(joint).__name__, joint.parent, joint.child) == ("Fixed", parent, child)
    assert (mech.joint_errors(mjcf_state(mech, read_mjcf(path))).abs() <= 1e-12).all()


def test_weld_at_an_anchor(write_mjcf: Write) -> None:
    """`relpose` places the anchor, a point of the second body, in the first one."""
    hands = "".join(
        f'<body name="{name}" pos="{x} 0 1" euler="0 {x} 30"><freejoint/><geom size=".1"/></body>' for name, x in (("a", 0), ("b", 2))
    )
    path = write_mjcf(hands, '<equality><weld body1="a" body2="b" anchor=".5 .2 0"/></equality>')
    assert (quiet(path).joint_errors(mjcf_state(quiet(path), read_mjcf(path))).abs() <= 1e-12).all()


def test_joint_equalities_are_couplings(write_mjcf: Write) -> None:
    """y - y0 = a0 + a1 (x - x0), the axes of the file backwards for one of the two joints."""
    stack = FOURBAR.replace(
        '<joint name="hc" axis="0 1 0"/>', '<joint name="sc" type="slide" axis="0 0 -1"/><joint name="hc" axis="0 0 1"/>'
    )
    path = write_mjcf(
        stack,
        '<equality><joint name="gear.1" joint1="hc" joint2="ha" polycoef="0.1 -0.5 0 0 0"/><joint joint1="sc" joint2="hb"/></equality>',
    )
    mech, info = quiet(path, contacts=None), read_mjcf(path)
    assert list(mech.couplings) == ["gear_1", "joint_1"]
    gear = mech.couplings["gear_1"]
    places = {label: (name, k, sign) for name, entries in info.coordinates.items() for k, (label, sign) in enumerate(entries)}
    assert (gear.leader, gear.follower) == (places["ha"][0], places["hc"][0])
    assert gear.coordinates == (places["ha"][1], places["hc"][1])
    model = info.compiled.model
    qpos = np.zeros(model.nq)
    for label, value in {"ha": 0.3, "hb": 0.05, "hc": 0.1 - 0.15, "sc": 0.05}.items():
        qpos[model.joint(label).qposadr[0]] = value
    z = mjcf_state(mech, info, qpos=qpos)
    assert (mech.joint_errors(z).abs() <= 1e-12).all()
    assert (mech.joint_errors(mech(z)).abs() <= 1e-9).all()
    qpos[model.joint("hc").qposadr[0]] = 0.0  # the state of an open coupling is given as it is
    assert float(mech.joint_errors(mjcf_state(mech, info, qpos=qpos))[-2].abs()) == pytest.approx(0.05)
    assert (mech.joint_errors(mech.close_loops(mjcf_state(mech, info, qpos=qpos))).abs() <= 1e-9).all()
    assert "equality" not in notes(path)
    assert len(quiet(path, contacts=None, ignore=("gear.1", "joint_1")).couplings) == 0


BALL = '<joint name="b" type="ball" range="0 .4"/>'


@pytest.mark.parametrize("joints", [BALL, f'<joint name="x" type="slide" axis={X}/>{BALL}'])
def test_a_ball_stops_at_its_range(write_mjcf: Write, joints: str) -> None:
    """About an axis of the body."""
    path = write_mjcf(f'<body name="a">{joints}<geom type="box" size=".1 .2 .3" pos="0 0 -.5"/></body>')
    mech, robot = quiet(path, contacts=None), read_mjcf(path)
    model = robot.compiled.model
    data = mujoco.MjData(model)
    data.qvel[model.joint("b").dofadr[0] + 1] = 6.0
    z = mech.rollout(mjcf_state(mech, robot, qvel=data.qvel), steps=round(0.3 / float(mech.timestep))).z
    angles = mech.to_minimal(z)[0][:, -3:].abs().amax(0)
    assert float(angles[1]) == pytest.approx(0.4, abs=1e-3) and float(angles[[0, 2]].max()) < 1e-9
    wide = quiet(write_mjcf(f'<body name="a">{joints.replace(".4", "3.2")}<geom size=".1"/></body>'))
    assert all(joint.limits is None for joint in wide.joints.values())


def test_constraints_to_ignore(write_mjcf: Write) -> None:
    rest = (
        '<equality><joint name="gear" joint1="ha" joint2="hb" polycoef="0 1 0.5 0 0"/><joint name="held" joint1="hc"/>'
        '<connect name="off" body1="b" body2="c" anchor="1 0 0" active="false"/></equality>'
    )
    report = quiet(write_mjcf(FOURBAR, rest), contacts=None).load_report
    assert {name for entry in report.entries for name in entry.names} == {"off"}
    assert list(quiet(write_mjcf(FOURBAR, rest)).couplings) == ["gear", "held"]
    without = quiet(write_mjcf(FOURBAR, rest), contacts=None, ignore=("gear", "held", "off"))
    assert not without.load_report.entries and not len(without.couplings)
    with pytest.raises(ValueError, match=r"ignore names \['x'\], which are no equality constraints; there are 'gear', 'held', 'off'"):
        load(write_mjcf(FOURBAR, rest), ignore="x")


# -- what does not act -------------------------------------------------------------------------------------------------------------------


def test_actuators(write_mjcf: Write) -> None:
    rest = (
        '<tendon><fixed name="t"><joint joint="ha" coef="1"/></fixed></tendon><actuator>'
        '<motor name="m" joint="ha" gear="-5" ctrlrange="-2 1"/>'
        '<intvelocity name="p" joint="hb" kp="10" actrange="-1 1" forcerange="-3 3"/>'
        '<motor name="on_tendon" tendon="t"/><motor joint="hc" forcerange="-1 4" gear="2"/></actuator>'
    )
    path = write_mjcf(FOURBAR, rest)
    joints = quiet(path).joints
    assert {name: joint.effort_limit for name, joint in joints.items()} == {"ha": [10.0], "hb": [3.0], "hc": [8.0]}
    drives = read_mjcf(path).drives
    assert (drives["m"].gear, drives["m"].ctrlrange, drives["m"].motor) == (-5.0, (-2.0, 1.0), True)
    assert (drives["p"].motor, drives["p"].acts, drives["hc_actuator"].joint) == (False, False, "hc")
    assert quiet(path).actuators.names == ("m", "hc_actuator")  # without minimal coordinates: the file has a loop


# -- states ------------------------------------------------------------------------------------------------------------------------------


def test_keyframes(write_mjcf: Write) -> None:
    keys = '<keyframe><key name="up" qpos=".1 .2 .3" qvel="1 2 3"/><key qpos="0 0 0"/></keyframe>'
    path = write_mjcf(FOURBAR, keys)
    mech, info = quiet(path), read_mjcf(path)
    q, qd = mech.to_minimal(mjcf_state(mech, info, "up"))
    assert q.tolist() == pytest.approx([0.1, 0.2, 0.3])
    assert qd.tolist() == pytest.approx([1, 2, 3])
    assert mjcf_state(mech, info, 1).tolist() == pytest.approx(mech.initial_state().tolist())
    assert list(mech.poses) == ["up", 1] and mech.poses["up"].ctrl is None
    for name in mech.poses:
        assert mech.initial_state(pose=name).tolist() == pytest.approx(mjcf_state(mech, info, name).tolist(), abs=1e-12)
    with pytest.raises(ValueError, match=r"has no pose 'down'; there are \['up', 1\]"):
        mech.initial_state(pose="down")
    with pytest.raises(ValueError, match=r"has no keyframe 'down'; there are 2: \['up', ''\]"):
        mjcf_state(mech, info, "down")
    with pytest.raises(ValueError, match=r"qpos: got shape \(2,\); allowed: \(3,\)"):
        mjcf_state(mech, info, qpos=[0, 0])
    with pytest.raises(ValueError, match=r"give a keyframe, or qpos and qvel, not both"):
        mjcf_state(mech, info, 0, qpos=[0, 0, 0])
    with pytest.raises(ValueError, match=r"are not those of the mechanism, \['a'\]"):
        mjcf_state(quiet(write_mjcf(TREE, name="other.xml")), info)


# -- files -------------------------------------------------------------------------------------------------------------------------------


def test_timestep_and_gravity(write_mjcf: Write) -> None:
    path = write_mjcf(TREE, '<option timestep=".004" gravity="0 0 -3"/>')
    mech = quiet(path)
    assert (float(mech.timestep), mech.gravity.tolist()) == (0.004, [0, 0, -3])
    mech = quiet(path, timestep=0.01, gravity=(0, 0, 0))
    assert (float(mech.timestep), mech.gravity.tolist()) == (0.01, [0, 0, 0])


def test_missing_meshes(write_mjcf: Write) -> None:
    assets = '<asset><mesh file="no.stl"/><texture name="t" type="2d" file="no.png"/><material name="m" texture="t"/></asset>'
    weighed = '<inertial mass="1" pos="0 0 0" diaginertia="1 1 1"/><geom size=".1" material="m"/>'
    drawn = '<geom type="mesh" mesh="no" contype="0" conaffinity="0" material="m"/>'
    assert "meshes" not in notes(write_mjcf(free_body(weighed + drawn), assets))
    collides = '<geom type="mesh" mesh="no"/>'
    path = write_mjcf(free_body(weighed + collides), assets)
    for mode in ("skip", None):
        assert "collision meshes of no.stl on body 'a': ignored; the files are not there" in notes(path, mesh=mode)
    with pytest.raises(
        FileNotFoundError, match=rf"robot\.xml: collision mesh of body 'a': 'no\.stl' is in none of .*{path.parent}.*mesh='skip'"
    ):
        load(path)
    assert "meshes" not in notes(path, contacts=None)
    with pytest.raises(ValueError, match=r"the mass of body 'a' is computed from the mesh 'no\.stl', which is not there"):
        load(write_mjcf(free_body(drawn + '<geom size=".1"/>'), assets))
    with pytest.raises(ValueError, match=r"the mass of body 'b' is computed from the mesh"):
        load(write_mjcf(free_body(weighed + f'<body name="b">{drawn}</body>'), assets))
    quiet(write_mjcf(free_body(weighed) + f'<body name="static">{drawn}</body>', assets))


def test_meshes_that_are_there(write_mjcf: Write, tmp_path: Path) -> None:
    (tmp_path / "m.obj").write_text(TETRAHEDRON)
    path = write_mjcf(free_body('<geom type="mesh" mesh="m" density="6"/>'), '<asset><mesh file="m.obj"/></asset>')
    assert float(quiet(path).bodies["a"].mass) == pytest.approx(1.0, rel=1e-6)


def test_load_chooses_by_suffix_and_content(write_mjcf: Write, tmp_path: Path) -> None:
    for name in ("robot.xml", "robot.XML", "robot.mjcf"):
        assert list(quiet(write_mjcf(TREE, name=name)).bodies) == ["a"]
    other = tmp_path / "other.xml"
    other.write_text("<sdf/>")
    with pytest.raises(ValueError, match=r"the root element is <sdf>; allowed: <mujoco> \(MJCF\) or <robot> \(URDF\)"):
        load(other)
    other.write_text("<robot")
    with pytest.raises(ValueError, match=r"malformed XML"):
        load(other)
    other.write_text("<mujoco")
    with pytest.raises(ValueError, match=r"other\.xml: MuJoCo refuses the file: XML parse error"):
        load(other)
    with pytest.raises(FileNotFoundError, match=r"'.*nowhere\.xml' does not exist"):
        load(tmp_path / "nowhere.xml")
    with pytest.raises(FileNotFoundError, match=r"MJCF file '.*nowhere\.mjcf' does not exist"):
        load(tmp_path / "nowhere.mjcf")


def test_mujoco_decides_what_it_can_parse(write_mjcf: Write, tmp_path: Path) -> None:
    """An encoding that Python does not know, blanks before the declaration, and a comment with two dashes."""
    text = write_mjcf(TREE).read_text()
    path = tmp_path / "odd.xml"
    for odd in (f'<?xml version="1.0" encoding="world"?>{text}', f'\n<?xml version="1.0"?>{text}<!-- a -- b -->'):
        path.write_text(odd)
        assert list(quiet(path).bodies) == ["a"]


def test_what_mujoco_refuses(write_mjcf: Write) -> None:
    with pytest.raises(ValueError, match=r"robot\.xml: MuJoCo refuses the file: .*unrecognized element"):
        load(write_mjcf("<bodie/>"))
    with pytest.raises(ValueError, match=r"robot\.xml: MuJoCo refuses the file: .*unknown"):
        load(write_mjcf(TREE, '<actuator><motor joint="nothing"/></actuator>'))


def test_without_mujoco(write_mjcf: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def no_mujoco(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "mujoco":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", no_mujoco)
    with pytest.raises(ImportError, match=r'needs the package mujoco: pip install "torchdojo\[mjcf\]"'):
        load_mjcf(write_mjcf(TREE))


def test_other_suffixes_find_their_files_too(write_mjcf: Write, tmp_path: Path) -> None:
    write_mjcf(body(hinge("h", X), '<geom type="mesh" mesh="m"/>'), name="part.xml")
    (tmp_path / "m.obj").write_text(TETRAHEDRON)
    path = tmp_path / "robot.mjcf"
    path.write_text('<mujoco><asset><mesh file="m.obj"/></asset><include file="part.xml"/></mujoco>')
    assert list(quiet(path).bodies) == ["a"]
    path.write_text("<mujoco")
    with pytest.raises(ValueError, match=r"robot\.mjcf: MuJoCo refuses the file: XML parse error"):
        load(path)


def test_simulate_command(write_mjcf: Write, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_mjcf(FLOOR + free_body('<geom name="g" size=".1"/>'))
    assert main(["simulate", str(path), "--steps", "5", "--friction", ".3", "--json"]) == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (report["bodies"], report["contacts"], report["flagged_steps"]) == (1, 1, 0)
