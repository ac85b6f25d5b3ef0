"""Published robots: what the reader makes of them, held against urchin's own kinematics of the unmerged file."""

from __future__ import annotations

import warnings
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest
import torch

from conftest import shared_path
from torchdojo.io import load_urdf
from torchdojo.io.urdf_description import RobotInfo, read_urdf
from torchdojo.quaternion import exp, rotation_matrix

urchin = pytest.importorskip("urchin")
pytestmark = pytest.mark.filterwarnings("ignore:.*its root link 'world'")

FINGER = "panda_finger_joint2"
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
}
READABLE_BY_URCHIN = [robot for robot in ROBOTS if robot[1] not in ("dojo_gazebo_a1.urdf", "mini_tortuga.urdf")]
WELDABLE = [robot for robot in READABLE_BY_URCHIN if robot[1] not in ("contactnets_cube.urdf", "pelican_fixed_rotors.urdf")]


def read(path: Path, **options) -> RobotInfo:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # skipped meshes: tested apart
        return read_urdf(path, ignore=(FINGER,) if path.stem.startswith("panda") else (), **options)


def load(path: Path, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return load_urdf(path, ignore=(FINGER,) if path.stem.startswith("panda") else (), **options)


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
    """Mass, centre of mass and inertia about it of (mass, position, inertia) in the world."""
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
    assert len(mech.joints) == bodies  # one above every body of a tree, the floating base included
    assert float(sum(body.mass for body in mech.bodies.values())) == pytest.approx(mass, abs=5e-4)  # the table is rounded
    assert len(mech.contacts) == contacts


@pytest.mark.parametrize("merge", [True, False], ids=["merged", "unmerged"])
@pytest.mark.parametrize("robot", READABLE_BY_URCHIN, ids="/".join)
def test_links_move_as_in_urchin(robot: tuple[str, str], merge: bool) -> None:
    path = shared_path("models", *robot)
    original = urchin.URDF.load(str(path), lazy_load_meshes=True)
    info = read(path, merge_fixed_joints=merge)
    rng = np.random.default_rng(0)
    for q in ({}, {name: float(rng.uniform(-1, 1)) for name, joint in info.joints.items() if joint.kind in ("Revolute", "Prismatic")}):
        expected = original.link_fk({name: value for name, value in q.items() if name != FINGER})
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
    for link, pose in urchin.URDF.load(str(path), lazy_load_meshes=True).link_fk().items():
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
    assert (float(knee.effort_limit), float(knee.velocity_limit)) == pytest.approx((33.5, 21.0))
    assert "FL_foot" not in mech.bodies  # merged into FL_calf
    foot = mech.contacts["FL_foot_0"]
    assert foot.body == "FL_calf"
    assert float(foot.radius) == pytest.approx(0.02)
    assert float(foot.point[2]) < -0.05  # measured from the calf's centre of mass, which sits above the foot


def test_meshes_are_named_in_the_warning() -> None:
    with pytest.warns(UserWarning, match=r"mesh collision geometry is skipped.*shoulder_link \(package://.*shoulder\.stl\)"):
        load_urdf(shared_path("models", "ur5", "ur5_robot.urdf"))


def test_panda_needs_its_mimic_joint_ignored() -> None:
    path = shared_path("models", "franka_panda", "panda_collision.urdf")
    with pytest.raises(ValueError, match=r"'panda_finger_joint2' \(mimics 'panda_finger_joint1'\).*ignore=\('panda_finger_joint2',\)"):
        load_urdf(path)
    assert FINGER in load_urdf(path, ignore=FINGER).joints


def test_first_link_of_a_fixed_arm_makes_no_contact() -> None:
    # the shape of panda_link1 reaches 9 cm below the ground, and the joint above it is vertical: with that contact no step exists
    path = shared_path("models", "franka_panda", "panda_collision.urdf")
    with pytest.warns(UserWarning, match=r"no ground contact for 'panda_link1'"):
        mech = load_urdf(path, floating_base=False, ignore=FINGER)
    assert float(mech.distances(mech.initial_state()).min()) > 0.0


def test_xarm6_has_impossible_inertias() -> None:
    path = shared_path("models", "xarm6", "xarm6_robot.urdf")  # urchin alone refuses its transmissions
    with pytest.raises(ValueError, match=r"xarm6_robot\.urdf: link 'link2': .*repair_inertia=True"):
        load(path)
    with pytest.warns(UserWarning, match=r"inertia of 'link3' repaired: principal moments .*0\.0073"):
        mech = load_urdf(path, repair_inertia=True)
    assert float(sum(body.mass for body in mech.bodies.values())) == pytest.approx(10.454, abs=5e-4)
    untouched, repaired = read(path), read(path, repair_inertia=True)
    for name, body in repaired.bodies.items():
        assert np.array_equal(body.inertia, untouched.bodies[name].inertia) == (name not in ("link2", "link3"))


def test_frame_without_mass_at_the_root() -> None:
    path = shared_path("models", "fourbar", "fourbar_open.urdf")
    with pytest.raises(ValueError, match=r"'base_link' at the root would have to move but has no mass.*floating_base=False"):
        read_urdf(path)
    for merge in (True, False):
        robot = read_urdf(path, floating_base=False, merge_fixed_joints=merge)
        assert len(robot.bodies) == 4
        assert robot.links["base_link"].body is None


@pytest.mark.parametrize(
    ("robot", "message"),
    [
        (("ant", "ant.urdf"), "<capsule> in <geometry> of <collision> of <link> 'front_left_leg'"),
        (("humanoid", "humanoid.urdf"), "<capsule>"),
        (("atlas", "atlas_armless.urdf"), "joint 'back_bkxyz' has type 'ball'"),
        (("youbot", "youbot.urdf"), "joint 'base_footprint_joint' has type 'planaraxis'"),
        (("fourbar", "fourbar.urdf"), "<loop_joint> 'joint24'"),
    ],
    ids=lambda value: value[1] if isinstance(value, tuple) else "",
)
def test_dialect_of_the_original_engine_is_refused_by_name(robot: tuple[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=rf"{message}.*Dojo's own dialect of URDF\. Only standard URDF is supported"):
        read_urdf(shared_path("models", *robot))
