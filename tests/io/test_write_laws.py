"""Tendons, couplings, actuators, poses and media written to MJCF and read again make the same steps; the rest is named."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import torchdojo as td
from torchdojo.io.mjcf.write import write_mjcf

pytest.importorskip("mujoco")

TOLERANCE = 1e-9  # a step solves its equations to 1e-10, and the file's inertias are diagonalized and multiplied out again
STEPS = 20


def finger(**parts: Any) -> td.Mechanism:
    """Two hinges about y and a slide."""
    return td.Mechanism(
        {"low": td.Body(0.3, (2e-3, 2e-3, 1e-3)), "high": td.Body(0.2, (1e-3, 1e-3, 5e-4)), "cart": td.Body(0.5, (1e-3, 1e-3, 1e-3))},
        {
            "knuckle": td.Revolute(None, "low", axis=(0, 1, 0), child_anchor=(0, 0, 0.1), damper=0.01),
            "tip": td.Revolute("low", "high", axis=(0, 1, 0), parent_anchor=(0, 0, -0.1), child_anchor=(0, 0, 0.08), armature=1e-3),
            "rail": td.Prismatic(None, "cart", axis=(1, 0, 0)),
        },
        timestep=0.005,
        **parts,
    )


def again(mech: td.Mechanism, path: Path, **options: Any) -> td.Mechanism:
    """The mechanism of its own file."""
    text, left_out = write_mjcf(mech)
    assert left_out == []
    (path / "robot.xml").write_text(text)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the reader says what is approximated
        other = td.load(path / "robot.xml", timestep=mech.timestep, tendons=True, contacts=None, merge_fixed_joints=False, **options)
    assert list(other.bodies) == list(mech.bodies) and list(other.joints) == list(mech.joints)
    return other


def start(mech: td.Mechanism, q: tuple[float, ...] = (0.4, 0.7, 0.1)) -> torch.Tensor:
    return mech.to_maximal(torch.tensor(q, dtype=torch.float64), torch.tensor([0.5, -1.0, 0.3], dtype=torch.float64))


def check(mech: td.Mechanism, other: td.Mechanism, u: torch.Tensor | None = None, q: tuple[float, ...] = (0.4, 0.7, 0.1)) -> None:
    z = start(mech, q)
    ours, theirs = (one.rollout(z, u, steps=None if u is not None else STEPS).z for one in (mech, other))
    assert float((ours[-1] - z).abs().max()) > 1e-2  # it moves
    torch.testing.assert_close(ours, theirs, rtol=0, atol=TOLERANCE)


def tendon(name: str, **laws: Any) -> td.Tendon:
    """A sum of coordinates, a string over three bodies, or one around surfaces and over a pulley."""
    sites = {
        "base": td.Site(None, (0.05, 0.0, 0.02)),
        "middle": td.Site("low", (0.03, 0.01, 0.0)),
        "end": td.Site("high", (0.03, 0.0, -0.05)),
        "cart": td.Site("cart", (0.0, 0.0, 0.1)),
        "front": td.Site("low", (0.1, 0.0, -0.1)),
    }
    if name == "fixed":
        return td.FixedTendon({"knuckle": 0.03, "tip": -0.02, "rail": 0.1}, offset=0.2, **laws)
    if name == "plain":
        return td.SpatialTendon(["base", "middle", "end"], sites=sites, **laws)
    knuckle = td.Wrap(td.Site("low", (0.0, 0.0, 0.09), (0.7071067811865476, 0.7071067811865476, 0.0, 0.0)), 0.02, "cylinder")
    ball = td.Wrap(td.Site("low", (0.0, 0.0, -0.1)), 0.015, side="front")
    return td.SpatialTendon(["base", knuckle, "middle", ball, "end", td.Pulley(2.0), "base", "cart"], sites=sites, **laws)


LAWS: dict[str, dict[str, Any]] = {
    "spring": {"stiffness": 300.0, "damping": 2.0, "rest": 0.15},
    "dead zone": {"stiffness": 300.0, "rest": (0.1, 0.15)},
    "limits": {"limits": (0.19, 0.25), "limit_stiffness": 4e4, "limit_time": 0.01},
    "one limit": {"limits": (None, 0.15), "limit_stiffness": 2e3, "limit_time": 0.0},
    "curves": {"stiffness": 300.0, "damping": 2.0, "rest": 0.15, "stiffness_curve": (-200.0, 4e3), "damping_curve": (3.0, 5.0)},
    "cubes alone": {"rest": 0.15, "stiffness_curve": (0.0, 9e3), "damping_curve": (0.0, 5.0)},
    "friction": {"friction": 0.4},
    "armature": {"armature": 0.6},
}


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("path", ["fixed", "plain", "wrapped"])
def test_tendons_come_back(path: str, law: str, tmp_path: Path) -> None:
    mech = finger(tendons={"string": tendon(path, **LAWS[law])})
    if (path, law) == ("wrapped", "armature"):  # MuJoCo refuses it
        assert write_mjcf(mech)[1] == ["tendons.string.armature"]
        return
    check(mech, again(mech, tmp_path))


def test_curves_of_joints_come_back(tmp_path: Path) -> None:
    body = {"low": td.Body(0.3, (2e-3, 2e-3, 1e-3)), "high": td.Body(0.2, (1e-3, 1e-3, 5e-4))}
    curves = {"spring_curve": (0.4, 3.0), "damper_curve": (0.01, 0.02)}
    joints = {
        "knuckle": td.Revolute(None, "low", axis=(0, 1, 0), child_anchor=(0, 0, 0.1), spring=0.2, damper=0.01, rest=0.3, **curves),
        "slider": td.Prismatic("low", "high", axis=(0, 0, 1), parent_anchor=(0, 0, -0.1), spring_curve=(0.0, 50.0)),
    }
    mech = td.Mechanism(body, joints, timestep=0.005)
    other = again(mech, tmp_path)
    assert torch.equal(other.joints["knuckle"].damper_curve, mech.joints["knuckle"].damper_curve)
    for name, joint in joints.items():
        assert torch.equal(other.joints[name].spring_curve, joint.spring_curve)
    z = mech.initial_state(knuckle={"q": 0.9, "qd": 2.0}, slider={"q": 0.1, "qd": -1.0})
    ours, theirs = (one.rollout(z, steps=STEPS).z for one in (mech, other))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=TOLERANCE)


def test_lengths_of_minus_one_are_not_those_at_qpos0(tmp_path: Path) -> None:
    mech = finger(tendons={"string": td.FixedTendon({"knuckle": 1.0}, stiffness=1.0, rest=-1.0)})
    other = again(mech, tmp_path)
    assert float(other.tendons["string"].rest_lower) == -1.0
    check(mech, other)


@pytest.mark.parametrize("kind", ["joint", "curve", "lock", "sum", "off"])
@pytest.mark.parametrize("soft", [False, True])
def test_couplings_come_back(kind: str, soft: bool, tmp_path: Path) -> None:
    give = {"compliance": 0.02, "damping": 0.5} if soft else {}
    couplings: dict[str, td.Coupling] = {
        "joint": td.JointCoupling("knuckle", "tip", ratio=1.5, offset=0.1, **give),
        "curve": td.JointCoupling("tip", "rail", ratio=0.1, offset=-0.05, curve=(0.02, 0.01), **give),
        "lock": td.JointLock("tip", 0.7, **give),
        "sum": td.SumCoupling({"knuckle": 0.5, "tip": 0.25}, {"rail": 2.0}, offset=-0.175, **give),
        "off": td.JointLock("tip", 0.7, active=0.0, **give),
    }
    start_at = {"curve": (0.4, 0.7, 0.1 * 0.7 - 0.05 + 0.02 * 0.49 + 0.01 * 0.343)}.get(kind, (0.4, 0.7, 0.1))
    mech = finger(couplings={"gear": couplings[kind]})
    check(mech, again(mech, tmp_path, soft=soft, switches=kind == "off"), q=start_at)


@pytest.mark.parametrize("kind", ["line", "curve", "constant", "wrapped", "off", "soft"])
def test_couplings_of_strings_come_back(kind: str, tmp_path: Path) -> None:
    """Their polynomials are about the lengths of the file; a soft one has a curve, as a line becomes a tendon with a spring."""
    plain = ["base", "middle", "end"]
    sites = {"base": td.Site(None, (0.05, 0.0, 0.02)), "middle": td.Site("low", (0.03, 0.01, 0.0))}
    sites |= {"end": td.Site("high", (0.03, 0.0, -0.05))}
    sites |= {"cart": td.Site("cart", (0.0, 0.0, 0.1)), "front": td.Site("low", (0.1, 0.0, -0.1)), "far": td.Site(None, (0.6, 0.1, 0.4))}
    knuckle = td.Wrap(td.Site("low", (0.0, 0.0, 0.09), (0.7071067811865476, 0.7071067811865476, 0.0, 0.0)), 0.02, "cylinder")
    ball = td.Wrap(td.Site("low", (0.0, 0.0, -0.1)), 0.015, side="front")
    wrapped = ["base", knuckle, "middle", ball, "end", td.Pulley(2.0), "base", "cart"]
    law = {
        "curve": {"curve": (0.5, -0.3, 0.2)},
        "off": {"active": 0.0},
        "soft": {"curve": (0.5,), "compliance": 1e-3, "damping": 5.0},
    }.get(kind, {})
    leader = None if kind == "constant" else ["far", "cart"]
    string = td.StringCoupling(wrapped if kind == "wrapped" else plain, leader, sites=sites, ratio=0.6, leader_length=0.3, **law)
    mech = finger(couplings={"string": string})
    string.offset = float(string.constraint(*mech.element_poses(start(mech), string)))
    mech.options = td.SolverOptions(residual_tol=1e-12)
    other = again(mech, tmp_path, soft=kind == "soft", switches=kind == "off")
    other.options = mech.options
    assert isinstance(other.couplings["string"], td.StringCoupling)
    check(mech, other)


@pytest.mark.parametrize("servos", ["implicit", "implicitfast", "explicit"])
def test_actuators_come_back(servos: Any, tmp_path: Path) -> None:
    mech = finger()
    actuators = {
        "hold": td.Actuator.position("knuckle", 8.0, 0.1, forcerange=(-0.8, 0.6), gear=1.5, length0=0.2),
        "turn": td.Actuator.velocity("tip", 0.05, ctrlrange=(-1.0, 2.0)),
        "push": td.Actuator.motor("rail", gear=-3.0),
    }
    td.actuate(mech, actuators, servos, inputrange=torch.tensor([[-torch.inf, torch.inf], [-torch.inf, torch.inf], [-2.0, 1.5]]).double())
    mech.poses["bent"] = td.Keyframe({"knuckle": {"q": 0.3}, "rail": {"q": -0.1, "qd": 0.5}}, ctrl=(0.1, 0.2, 0.3))
    mech.sensors["pull"] = td.Sensor("actuator_force", actuator="hold")
    other = again(mech, tmp_path, servos=servos)
    assert other.actuators.names == mech.actuators.names and list(other.sensors) == ["pull"]
    assert other.poses["bent"].ctrl == (0.1, 0.2, 0.3)
    torch.testing.assert_close(other.initial_state(pose="bent"), mech.initial_state(pose="bent"), rtol=0, atol=TOLERANCE)
    ctrl = torch.linspace(-1, 1, 3 * STEPS, dtype=torch.float64).reshape(STEPS, 3)
    ours, theirs = (one.rollout(start(mech), ctrl=ctrl).z for one in (mech, other))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=TOLERANCE)


def test_drives_come_back(tmp_path: Path) -> None:
    mech = finger(tendons={"string": tendon("fixed", actuated=True), "flexor": tendon("wrapped", actuated=True)})
    td.actuate(mech, {"push": td.Actuator.motor("rail"), "bend": td.Actuator.motor("knuckle", gear=0.1)})
    mech.drives = td.Drives(
        mech,
        {
            "muscle": td.Drive.muscle(tendon="flexor", lengths=(0.1, 0.5), acc0=2.0, scale=30.0),
            "push": None,
            "bend": None,
            "winch": td.Drive(
                tendon="string", gear=2.0, dynamics="filter", dynamics_numbers=(0.02,), bias_numbers=(0.1, -3.0, -0.2), early=True
            ),
            "jet": td.Drive(
                site=td.Site("high", (0.0, 0.0, 0.05), (0.6, 0.0, 0.8, 0.0)), gear=(1.0, 0, 0.5, 0, 0.01, 0), forcerange=(-1, 1)
            ),
            "servo": td.Drive(joint="tip", dynamics="integrator", actrange=(-0.5, 0.5), length0=0.3, bias_numbers=(0.0, -1.0, -0.01)),
        },
    )
    jet = mech.drives.drives["jet"].site
    mech.drives = td.Drives(
        mech,
        {
            **mech.drives.drives,
            "pair": td.Drive(site=jet, reference=td.Site("cart", (0.01, 0.02, 0.0), (0.8, 0.6, 0.0, 0.0)), gear=(1.0, 0, 0.5, 0, 0.01, 0)),
            "home": td.Drive(site=td.Site(None, (0.1, 0.0, 0.2)), reference=jet, gear=(0, 1.0, 0, 0.02, 0, 0), bias_numbers=(0, -1.0, 0)),
            "crank": td.Drive(crank=jet, slider=td.Site("cart", (0.01, 0.0, 0.02), (0.6, 0.0, 0.8, 0.0)), rod=0.5, gear=2.0),
        },
    )
    other = again(mech, tmp_path)
    assert other.drives is not None and other.drives.names == mech.drives.names and other.drives.activated == mech.drives.activated
    ctrl = torch.linspace(-1, 1, 9 * STEPS, dtype=torch.float64).reshape(STEPS, 9)
    ours, theirs = (one.drives.rollout(start(mech), ctrl) for one in (mech, other))
    torch.testing.assert_close(ours.act, theirs.act, rtol=0, atol=TOLERANCE)
    torch.testing.assert_close(ours.path.z, theirs.path.z, rtol=0, atol=TOLERANCE)


def test_inputs_without_actuators_are_motors(tmp_path: Path) -> None:
    mech = finger(tendons={"string": tendon("plain", actuated=True)})
    other = again(mech, tmp_path)
    assert other.input_layout == mech.input_layout and other.actuators.names == ("knuckle", "tip", "rail")
    check(mech, other, torch.linspace(-1, 1, 4 * STEPS, dtype=torch.float64).reshape(STEPS, 4))


def test_media_come_back(tmp_path: Path) -> None:
    mech = finger()
    mech.passive = td.PassiveForces(mech, density=1000.0, viscosity=0.1, wind=(0.5, 0.0, 0.0), gravity_compensation={"high": 0.7})
    other = again(mech, tmp_path)
    twice = again(other, tmp_path)  # a file gives parts, which are whole bodies here
    z = start(mech)
    for one in (other, twice):
        torch.testing.assert_close(one.passive(z), mech.passive(z), rtol=0, atol=TOLERANCE)


@pytest.mark.filterwarnings("ignore:.*what differs")
def test_surfaces_come_back(tmp_path: Path) -> None:
    """Friction against turning and rolling."""
    contact = td.NonlinearContact("ball", point=(0, 0, 0), radius=0.1, friction=0.6, torsional_friction=0.003, rolling_friction=0.002)
    mech = td.Mechanism({"ball": td.Body(1.0, (4e-3, 4e-3, 4e-3))}, contacts={"skin": contact}, timestep=0.01)
    mech.poses.clear()
    text, left_out = write_mjcf(mech)
    (tmp_path / "ball.xml").write_text(text)
    other = td.load(tmp_path / "ball.xml", timestep=0.01)
    z = mech.initial_state(ball={"position": (0, 0, 0.1), "velocity": (1.0, 0, 0), "angular_velocity": (0, 0, 3.0)})
    assert left_out == []
    torch.testing.assert_close(other.rollout(z, steps=STEPS).z, mech.rollout(z, steps=STEPS).z, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("closing", ["connect", "weld"])
@pytest.mark.parametrize("active", [None, 0.0])
def test_loops_come_back(closing: str, active: float | None, tmp_path: Path) -> None:
    """Two fingers whose tips are tied to each other, by a point or with all their axes."""
    ends = {"parent_anchor": (0.02, 0, -0.08), "child_anchor": (0.02, 0.01, 0.08), "actuated": False, "active": active}
    bodies = {name: td.Body(0.3, (2e-3, 2e-3, 1e-3)) for name in ("low", "middle", "high", "cart")}
    joints: dict[str, td.Joint] = {
        "knuckle": td.Revolute(None, "low", axis=(0, 1, 0), child_anchor=(0, 0, 0.1)),
        "twist": td.Revolute("low", "middle", axis=(1, 0, 0.5), parent_anchor=(0, 0, -0.1), child_anchor=(0, 0, 0.08)),
        "tip": td.Revolute("middle", "high", axis=(1, 1, 0), parent_anchor=(0, 0, -0.1), child_anchor=(0, 0, 0.08)),
        "cart": td.Floating(None, "cart", actuated=False),
    }
    turn = {"orientation_offset": (0.8, 0.0, 0.6, 0.0)} if closing == "weld" else {}
    joints["tied"] = td.Fixed("high", "cart", **ends, **turn) if turn else td.Spherical("high", "cart", **ends)
    mech = td.Mechanism(bodies, joints, timestep=0.005)
    other = again(mech, tmp_path, switches=active is not None)
    assert type(other.joints["tied"]) is type(mech.joints["tied"])
    z = mech.initial_state(knuckle={"q": 0.4, "qd": 1.0}, tip={"q": 0.3})
    states = [one.rollout(z, steps=STEPS).z for one in (mech, other)]
    torch.testing.assert_close(*states, rtol=0, atol=TOLERANCE)


SOLIDS: dict[str, Any] = {
    "sphere": td.Sphere(0.1, position=(0.02, 0, 0)),
    "capsule": td.Capsule(0.05, 0.2, position=(0, 0.01, 0), orientation=(0.8, 0.6, 0.0, 0.0)),
    "box": td.Box((0.2, 0.3, 0.1), orientation=(0.6, 0.0, 0.8, 0.0)),
    "ellipsoid": td.Ellipsoid((0.1, 0.12, 0.09)),
}


@pytest.mark.filterwarnings("ignore:.*what differs")
@pytest.mark.parametrize(
    ("one", "two"), [("sphere", "sphere"), ("sphere", "box"), ("sphere", "capsule"), ("ellipsoid", "ellipsoid"), ("ellipsoid", "sphere")]
)
@pytest.mark.parametrize("fixed", [False, True])
def test_shapes_that_touch_come_back(one: str, two: str, fixed: bool, tmp_path: Path) -> None:
    law = {"shape": SOLIDS[one], "other_shape": SOLIDS[two], "other": None if fixed else "low", "friction": 0.6}
    mech = td.Mechanism(
        {name: td.Body(1.0, (4e-3, 5e-3, 6e-3)) for name in ("high", "low")},  # the reader's contacts are on the first body
        contacts={"pair": td.NonlinearContact("high", **law)},
        timestep=0.01,
    )
    mech.poses.clear()
    text, left_out = write_mjcf(mech)
    assert left_out == []
    (tmp_path / "pair.xml").write_text(text)
    other = td.load(tmp_path / "pair.xml", timestep=0.01, contacts="all", ground=False)
    assert len(other.contacts) == 1
    z = mech.initial_state(high={"position": (0.02, 0.01, 0.5), "angular_velocity": (0.3, 2.0, 0)}, low={"velocity": (0, 0, 3.0)})
    ours, theirs = (m.rollout(z, steps=2 * STEPS) for m in (mech, other))
    assert float(mech.contact_forces(ours.z[1:], ours.impulses)["pair"].norm(dim=-1).max()) > 1.0  # they meet
    torch.testing.assert_close(theirs.z, ours.z, rtol=0, atol=TOLERANCE)


def test_limits_on_one_side_stay(tmp_path: Path) -> None:
    joint = td.Revolute(None, "low", axis=(0, 1, 0), limits=(-torch.inf, 0.3))
    text, left_out = write_mjcf(td.Mechanism({"low": td.Body(1.0, (1, 1, 1))}, {"hinge": joint}))
    assert left_out == []
    (tmp_path / "one.xml").write_text(text)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        other = td.load(tmp_path / "one.xml", contacts=None)
    assert [bound.tolist() for bound in other.joints["hinge"].limits] == [[-torch.inf], [0.3]]


def test_laws_without_a_counterpart_are_named() -> None:
    mech = td.Mechanism(
        {"low": td.Body(1.0, (1, 1, 1)), "root": td.Body(1.0, (1, 1, 1))},
        {
            "hinge": td.Revolute(None, "low", velocity_limits=3.0, servo_stiffness=2.0),
            "base": td.Floating(None, "root", damper=0.1),
        },
        {"foot": td.NonlinearContact("low", restitution=0.5), "edge": td.LinearContact("low", stiffness=1e4)},
        couplings={
            "tied": td.JointCoupling("base", "hinge", leader_coordinate=0),
            "pulled": td.StringCoupling([td.Site(None, (0, 0, 1.0)), td.Site("low"), td.Pulley(-1.0), td.Site(None), td.Site("root")]),
        },
        tendons={
            "free": td.FixedTendon({("base", 0): 1.0}),
            "minus": td.SpatialTendon([td.Site(None), td.Site("low"), td.Pulley(-1.0), td.Site(None), td.Site("root")]),
        },
    )
    mech.drives = td.Drives(mech, {"pull": td.Drive(joint="base", coordinate=2)})
    assert write_mjcf(mech)[1] == [
        "joints.hinge.velocity_limits", "joints.hinge.servo_stiffness", "joints.hinge.servo_damping", "joints.base.damper",
        "contacts.foot.restitution", "contacts.edge.stiffness", "contacts.edge.facets", "tendons.free", "tendons.minus", "couplings.tied",
        "couplings.pulled", "drives.pull", "inputs.hinge", "inputs.base",
    ]  # fmt: skip


def test_bodies_and_joints_of_ones_own_are_refused() -> None:
    class Spinner(td.Revolute):
        pass

    with pytest.raises(ValueError, match=r"joints of one's own, \['hinge'\]"):
        write_mjcf(td.Mechanism({"a": td.Body(1.0, (1, 1, 1))}, {"hinge": Spinner(None, "a")}))
    mech = finger()
    mech.drives = td.Drives(mech, {"pull": td.Drive(joint="tip", length0=torch.zeros(2))})
    with pytest.raises(ValueError, match=r"got length0 of drive 'pull' of shape \(2,\); allowed: one number for each parameter"):
        write_mjcf(mech)
