"""Published robots: what the reader makes of them, held against urchin's own kinematics of the unmerged file."""

from __future__ import annotations

import warnings
import xml.etree.ElementTree as ElementTree
from collections import Counter
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from conftest import shared_path
from torchdojo import Status, testing
from torchdojo.io import load_urdf
from torchdojo.io.robot import RobotInfo
from torchdojo.io.urdf.description import read_urdf
from torchdojo.mechanism import Mechanism
from torchdojo.quaternion import exp, rotation_matrix

urchin = pytest.importorskip("urchin")

FINGER = "panda_finger_joint2"
FIXED_BASE = ("fourbar.urdf", "fourbar_open.urdf", "youbot.urdf")  # their root is a frame without mass
# file -> bodies and mass [kg] with a floating base, and contacts; masses are those of shared/models/README.md
ROBOTS = {
    ("atlas", "atlas_simple.urdf"): (31, 174.05, 0),
    ("atlas", "atlas.urdf"): (31, 175.118, 28),
    ("unitree_a1", "a1.urdf"): (13, 13.741, 10 * 8 + 8 * 8 + 4),
    ("unitree_a1", "dojo_gazebo_a1.urdf"): (13, 13.5, 9 * 8 + 4 * 8),  # urchin alone refuses it: a material defined twice
    ("unitree_go1", "go1.urdf"): (13, 13.101, 18 * 8 + 16 * 8 + 4),
    ("unitree_h1", "h1.urdf"): (20, 59.338, 4 + 16 * 8 + 3 * 8),
    ("franka_panda", "panda.urdf"): (10, 17.452, 8 * 8),
    ("franka_panda", "panda_collision.urdf"): (10, 17.452, 13 * 8 + 26),
    ("ur5", "ur5_robot.urdf"): (7, 20.994, 8),
    ("contactnets", "contactnets_cube.urdf"): (1, 0.37, 8),
    ("contactnets", "contactnets_elbow.urdf"): (2, 0.74, 16),
    ("quadrotor_pelican", "pelican.urdf"): (5, 1.04, 8 + 4 * 8),
    ("quadrotor_pelican", "pelican_fixed_rotors.urdf"): (1, 1.04, 8 + 4 * 8),
    ("exoskeleton", "exoskeleton.urdf"): (5, 17.106, 0),
    ("uuv", "mini_tortuga.urdf"): (8, 20.243, 0),
    ("fourbar", "fourbar_open.urdf"): (4, 4.0, 0),
    ("franka_panda", "dojo_panda_no_end_effector.urdf"): (7, 15.956, 0),
    # in Dojo's dialect
    ("ant", "ant.urdf"): (9, 0.879, 2 * 12 + 1),
    ("half_cheetah", "halfcheetah.urdf"): (8, 15.0, 2 * 8),
    ("hopper", "hopper.urdf"): (5, 16.265, 2 * 4),
    ("humanoid", "humanoid.urdf"): (13, 40.844, 2 * 16 + 3),
    ("walker2d", "walker.urdf"): (8, 27.996, 2 * 7),
    ("atlas", "atlas_armless.urdf"): (9, 125.176, 0),
    ("atlas", "atlas_fast.urdf"): (23, 165.017, 0),
    ("youbot", "youbot.urdf"): (12, 36.623, 4 * 8),
    ("fourbar", "fourbar.urdf"): (4, 4.0, 0),
}
# robot -> joints of each kind, the base included
DIALECT = {
    ("ant", "ant.urdf"): {"Floating": 1, "Revolute": 8},
    ("half_cheetah", "halfcheetah.urdf"): {"Floating": 1, "PlanarAxis": 1, "Revolute": 6},
    ("hopper", "hopper.urdf"): {"Floating": 1, "PlanarAxis": 1, "Revolute": 3},
    ("humanoid", "humanoid.urdf"): {"Floating": 1, "Spherical": 2, "Revolute": 7, "Orbital": 3},
    ("walker2d", "walker.urdf"): {"Floating": 1, "PlanarAxis": 1, "Revolute": 6},
    ("atlas", "atlas_armless.urdf"): {"Floating": 2, "Spherical": 3, "Orbital": 2, "Revolute": 2},
    ("atlas", "atlas_fast.urdf"): {"Floating": 1, "Spherical": 3, "Orbital": 2, "Revolute": 17},
    ("youbot", "youbot.urdf"): {"PlanarAxis": 1, "Revolute": 9, "Prismatic": 2},
    ("fourbar", "fourbar.urdf"): {"Revolute": 5},
}
READABLE_BY_URCHIN = [
    robot for robot in ROBOTS if robot not in DIALECT and robot[1] not in ("dojo_gazebo_a1.urdf", "mini_tortuga.urdf", *FIXED_BASE)
]
WELDABLE = [robot for robot in READABLE_BY_URCHIN if robot[1] not in ("contactnets_cube.urdf", "pelican_fixed_rotors.urdf")]


@cache
def original(path: Path):
    """As urchin reads it: once, as the larger files take a second."""
    return urchin.URDF.load(str(path), lazy_load_meshes=True)


def read(path: Path, **options) -> RobotInfo:
    return read_urdf(path, **{"floating_base": True, **options})


def load(path: Path, **options):
    options = {"floating_base": path.name not in FIXED_BASE, "ground": True, **options}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # meshes: tested in test_meshes.py
        return load_urdf(path, repair_inertia=path.name == "halfcheetah.urdf", **{"mesh": None, **options})


def body_poses(robot: RobotInfo, q: dict[str, float]) -> dict[str | None, tuple[np.ndarray, np.ndarray]]:
    """World pose of every body frame with the joints at q, from the anchors, offsets and axes of the description alone."""
    poses: dict[str | None, tuple[np.ndarray, np.ndarray]] = {None: (np.eye(3), np.zeros(3))}
    for joint in robot.joints.values():
        rotation, position = poses[joint.parent]
        frame, anchor = rotation @ joint.rotation, position + rotation @ joint.parent_anchor
        value = q.get(joint.name, 0.0)
        if joint.kind == "Prismatic":
            anchor = anchor + frame @ joint.axis * value
        elif joint.kind == "Revolute":
            frame = frame @ rotation_matrix(exp(torch.as_tensor(joint.axis * value))).numpy()
        poses[joint.child] = frame, anchor - frame @ joint.child_anchor
    return poses


def has_mass(path: Path) -> set[str]:
    links = ElementTree.parse(path).getroot().findall("link")
    return {link.get("name", "") for link in links if link.find("inertial/mass") is not None}


def total(parts: list[tuple[float, np.ndarray, np.ndarray]]) -> tuple[float, np.ndarray, np.ndarray]:
    """Mass, center of mass and inertia about it of (mass, position, inertia) in the world."""
    mass = sum(part[0] for part in parts)
    center = sum(part[0] * part[1] for part in parts) / mass
    inertia = np.zeros((3, 3))
    for m, position, own in parts:
        d = position - center
        inertia = inertia + own + m * (d @ d * np.eye(3) - np.outer(d, d))
    return mass, center, inertia


@pytest.mark.parametrize("robot", ROBOTS, ids="/".join)
def test_counts_and_mass(robot: tuple[str, str]) -> None:
    bodies, mass, contacts = ROBOTS[robot]
    mech = load(shared_path("models", *robot))
    assert len(mech.bodies) == bodies
    assert len(mech.tree_joints) == bodies  # one above every body, the floating base included
    assert len(mech.joints) == bodies + (robot[1] == "fourbar.urdf")
    assert float(sum(body.mass for body in mech.bodies.values())) == pytest.approx(mass, abs=5e-4)  # the table is rounded
    assert len(mech.contacts) == contacts


@pytest.mark.parametrize("merge", [True, False], ids=["merged", "unmerged"])
@pytest.mark.parametrize("robot", READABLE_BY_URCHIN, ids="/".join)
def test_links_move_as_in_urchin(robot: tuple[str, str], merge: bool) -> None:
    path = shared_path("models", *robot)
    info = read(path, merge_fixed_joints=merge)
    rng = np.random.default_rng(0)
    for q in ({}, {name: float(rng.uniform(-1, 1)) for name, joint in info.joints.items() if joint.kind in ("Revolute", "Prismatic")}):
        expected = original(path).link_fk({name: value for name, value in q.items() if name != FINGER})
        poses = body_poses(info, {**q, FINGER: q.get("panda_finger_joint1", 0.0)})
        for link, pose in expected.items():
            place = info.links[link.name.replace(".", "_")]
            rotation, position = poses[place.body]
            np.testing.assert_allclose(rotation @ place.rotation, pose[:3, :3], atol=1e-12)
            np.testing.assert_allclose(rotation @ place.position + position, pose[:3, 3], atol=1e-12)


@pytest.mark.parametrize("merge", [True, False], ids=["merged", "unmerged"])
@pytest.mark.parametrize("robot", READABLE_BY_URCHIN, ids="/".join)
def test_merging_keeps_mass_centre_and_inertia(robot: tuple[str, str], merge: bool) -> None:
    path = shared_path("models", *robot)
    massive = has_mass(path)
    expected = []
    for link, pose in original(path).link_fk().items():
        if link.name in massive:
            frame = pose @ link.inertial.origin
            expected.append((link.inertial.mass, frame[:3, 3], frame[:3, :3] @ link.inertial.inertia @ frame[:3, :3].T))
    info = read(path, merge_fixed_joints=merge)
    poses = body_poses(info, {})
    parts = [(body.mass, poses[name][1], poses[name][0] @ body.inertia @ poses[name][0].T) for name, body in info.bodies.items()]
    for mine, theirs in zip(total(parts), total(expected), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("floating", [True, False], ids=["floating", "fixed"])
@pytest.mark.parametrize("robot", WELDABLE, ids="/".join)
def test_the_mechanism_stands_as_described(robot: tuple[str, str], floating: bool) -> None:
    """The modules carry the description: body poses from minimal coordinates agree with `body_poses`, and q comes back."""
    path = shared_path("models", *robot)
    info, mech = read(path, floating_base=floating), load(path, floating_base=floating)
    rng = np.random.default_rng(1)
    q = {name: float(rng.uniform(-1, 1)) for name, joint in info.joints.items() if joint.kind in ("Revolute", "Prismatic")}
    q |= {name: q[coupling.leader] for name, coupling in info.couplings.items()}  # the finger of the Panda
    z = mech.initial_state(**{name: {"q": value} for name, value in q.items()})
    poses = body_poses(info, q)
    for name, state in zip(mech.bodies, z.reshape(-1, 13), strict=True):
        np.testing.assert_allclose(state[:3].numpy(), poses[name][1], atol=1e-12)
        np.testing.assert_allclose(rotation_matrix(state[6:10]).numpy(), poses[name][0], atol=1e-12)
    expected = torch.cat([torch.full((joint.num_coordinates,), q.get(name, 0.0)) for name, joint in mech.joints.items()])
    torch.testing.assert_close(mech.to_minimal(z)[0], expected, rtol=0.0, atol=1e-12)


@pytest.mark.parametrize("robot", WELDABLE, ids="/".join)
def test_fixed_base_leaves_the_root_to_the_world(robot: tuple[str, str]) -> None:
    path = shared_path("models", *robot)
    floating, fixed = read(path), read(path, floating_base=False)
    (base,) = set(floating.bodies) - set(fixed.bodies)
    assert "floating_base" not in fixed.joints
    poses, at_rest = body_poses(floating, {}), body_poses(fixed, {})
    for link in floating.links.values():
        if link.body == base:
            assert fixed.links[link.name].body is None
    for name in fixed.bodies:
        np.testing.assert_allclose(at_rest[name][0], poses[name][0], atol=1e-14)
        np.testing.assert_allclose(at_rest[name][1], poses[name][1], atol=1e-14)
    mech = load(path, floating_base=False)
    assert set(mech.bodies) == set(fixed.bodies)
    assert not any(contact.body == base for contact in mech.contacts.values())


def test_a1_in_detail() -> None:
    mech = load_urdf(shared_path("models", "unitree_a1", "a1.urdf"))
    assert next(iter(mech.joints)) == "floating_base"
    knee = mech.joints["FL_calf_joint"]
    assert (knee.parent, knee.child) == ("FL_thigh", "FL_calf")
    assert [float(bound) for bound in knee.limits] == pytest.approx([-2.69653369433, -0.916297857297])
    assert (float(knee.effort_limit), float(knee.velocity_limits)) == pytest.approx((33.5, 21.0))
    assert "FL_foot" not in mech.bodies  # merged into FL_calf
    foot = mech.contacts["FL_foot_0"]
    assert foot.body == "FL_calf"
    assert float(foot.radius) == pytest.approx(0.02)
    assert float(foot.point[2]) < -0.05  # measured from the calf's center of mass, which sits above the foot


def test_meshes_are_named_in_the_warning() -> None:
    with pytest.warns(UserWarning, match=r"collision meshes of shoulder_link \(package://.*shoulder\.stl\)"):
        load_urdf(shared_path("models", "ur5", "ur5_robot.urdf"), mesh="skip")


@pytest.mark.parametrize("file", ["panda.urdf", "panda_collision.urdf"])
def test_fingers_of_panda_move_together(file: str) -> None:
    path = shared_path("models", "franka_panda", file)
    mech = load(path, floating_base=False, contacts=None)
    coupling = mech.couplings[FINGER]
    assert (coupling.leader, coupling.follower, float(coupling.ratio), float(coupling.offset)) == ("panda_finger_joint1", FINGER, 1.0, 0.0)
    assert (mech.num_inputs, mech.num_coordinates) == (8, 9)
    z = mech.initial_state(panda_finger_joint1={"q": 0.02}, panda_joint4={"q": -1.5})
    assert mech.to_minimal(z)[0][-2:].tolist() == pytest.approx([0.02, 0.02], abs=1e-12)
    u = torch.zeros(mech.num_inputs)
    u[-1] = 1.0  # closes or opens both, although it acts on one
    path_z = mech.rollout(z, u.expand(5, -1))
    assert (path_z.status == int(Status.SUCCESS)).all()
    q = torch.stack([mech.to_minimal(state)[0][-2:] for state in path_z.z])
    assert ((q[:, 0] - q[:, 1]).abs() <= 1e-9).all()
    assert float((q[-1] - q[0]).abs().min()) > 1e-4
    alone = load(path, floating_base=False, contacts=None, ignore=FINGER)
    assert (alone.num_inputs, len(alone.couplings)) == (9, 0)


def test_first_link_of_a_fixed_arm_makes_no_contact() -> None:
    # the shape of panda_link1 reaches 9 cm below the ground, and the joint above it is vertical: with that contact no step exists
    path = shared_path("models", "franka_panda", "panda_collision.urdf")
    assert not load_urdf(path, floating_base=False).contacts  # an arm on a fixed base stands where its author puts it
    with pytest.warns(UserWarning, match=r"collision geometry of panda_link1: ignored; no joint can change the height"):
        mech = load_urdf(path, floating_base=False, ground=True)
    assert float(mech.distances(mech.initial_state()).min()) > 0.0


def test_xarm6_has_impossible_inertias() -> None:
    path = shared_path("models", "xarm6", "xarm6_robot.urdf")  # urchin alone refuses its transmissions
    with pytest.raises(ValueError, match=r"xarm6_robot\.urdf: link 'link2': .*repair_inertia=True"):
        load(path)
    with pytest.warns(UserWarning, match=r"inertia of link3: repaired; principal moments .*0\.0073"):
        mech = load_urdf(path, repair_inertia=True, floating_base=True)
    assert float(sum(body.mass for body in mech.bodies.values())) == pytest.approx(10.454, abs=5e-4)
    untouched, repaired = read(path), read(path, repair_inertia=True)
    for name, body in repaired.bodies.items():
        assert np.array_equal(body.inertia, untouched.bodies[name].inertia) == (name not in ("link2", "link3"))


def test_frame_without_mass_at_the_root() -> None:
    path = shared_path("models", "fourbar", "fourbar_open.urdf")
    for merge in (True, False):
        for floating_base in (False, "auto"):
            robot = read_urdf(path, floating_base=floating_base, merge_fixed_joints=merge)
            assert len(robot.bodies) == 4
            assert robot.links["base_link"].body is None


# -- Dojo's dialect ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("robot", DIALECT, ids="/".join)
def test_dialect_of_the_original_engine(robot: tuple[str, str]) -> None:
    mech = load(shared_path("models", *robot), contacts=None)
    assert Counter(type(joint).__name__ for joint in mech.joints.values()) == DIALECT[robot]
    z = mech.initial_state()
    assert (mech.joint_errors(z).abs() <= 1e-12).all()
    path = mech.rollout(z, 0.01 * torch.randn(5, mech.num_inputs))
    assert (path.status == int(Status.SUCCESS)).all()
    assert (mech.joint_errors(path.z).abs() <= 1e-8).all()


def test_every_urdf_file_loads_or_says_why_not() -> None:
    refused = {}
    for path in sorted(shared_path("models").rglob("*.urdf")):
        try:
            load(path, contacts=None)
        except ValueError as error:
            refused[path.name] = str(error)
    assert list(refused) == ["xarm6_robot.urdf"]
    assert "link 'link2': Body.inertia" in refused["xarm6_robot.urdf"]


def fourbar() -> Mechanism:
    return load_urdf(shared_path("models", "fourbar", "fourbar.urdf"), floating_base=False)


def test_fourbar_in_detail() -> None:
    mech = fourbar()
    loop = mech.joints["joint24"]
    assert (type(loop).__name__, loop.parent, loop.child, loop.actuated) == ("Revolute", "link2", "link4", True)
    assert loop.parent_anchor.tolist() == loop.child_anchor.tolist() == [0.0, 0.0, -0.5]
    assert loop.axis.tolist() == [1.0, 0.0, 0.0]
    assert (float(loop.damper), mech.num_inputs, mech.num_coordinates) == (1.0, 5, 4)
    assert mech.tree_joints == ["jointb1", "joint12", "jointb3", "joint34"]
    # two bars of 1 m from one point of the ceiling, and two more from their ends to a common point
    q = mech.to_minimal(mech.initial_state(jointb1={"q": 0.6}, jointb3={"q": -0.6}))[0]
    assert q.tolist() == pytest.approx([0.6, -1.2, -0.6, 1.2], abs=1e-8) or q.tolist() == pytest.approx([0.6, 0.0, -0.6, 0.0])


def test_fourbar_for_200_steps() -> None:
    mech = fourbar()
    z = mech.initial_state((2,), jointb1={"q": torch.tensor([[0.6], [1.2]]), "qd": 1.0}, jointb3={"q": torch.tensor([[-0.6], [0.4]])})
    z.requires_grad_()
    u = torch.randn(2, 200, mech.num_inputs, requires_grad=True)
    path = mech.rollout(z, u)
    assert (path.status == int(Status.SUCCESS)).all()
    assert (mech.joint_errors(path.z).abs() <= 1e-8).all()
    for gradient in torch.autograd.grad(path.z[:, -1].square().sum(), (z, u)):
        assert gradient.isfinite().all()
        assert gradient.abs().max() > 0


def test_fourbar_gradients() -> None:
    """Rows of a planar loop are redundant in space. The joint that closes it leaves them out, so the impulses are unique, too."""
    mech = fourbar()
    z = mech.initial_state(jointb1={"q": 0.6}, jointb3={"q": -0.5})
    parameters = ["bodies.link2", "timestep", "gravity", "joints.joint24.damper", "joints.joint24.spring"]
    report = testing.check_gradients(mech, z, torch.randn(mech.num_inputs), parameters=parameters, directions=8)
    assert len([name for name in report.errors if name.endswith("state")]) == 2 + 6
    assert max(report.errors.values()) <= 1e-6
