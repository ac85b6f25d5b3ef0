"""URDF files written for the purpose: every convention of the reader, and a clear error for every kind of bad file."""

from __future__ import annotations

import math
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from urdf_text import INERTIAL, LIMIT, collision, inertial, joint, link, pair

from torchdojo.elements.contacts import NonlinearContact
from torchdojo.io import LoadEntry, load, load_urdf
from torchdojo.io.urdf.description import read_urdf
from torchdojo.quaternion import rotation_matrix

TWO = pair()


def told(robot, kind: str) -> list[LoadEntry]:
    """Entries of a kind in what the reader found."""
    return [entry for entry in robot.findings.entries() if kind in entry.kind]


# -- what is read ------------------------------------------------------------------------------------------------------------------------


def test_anchors_offset_axis_and_options(write_urdf) -> None:
    path = write_urdf(
        link("a", inertial(1.0, xyz="0.1 0 0")),
        link("b", inertial(2.0, xyz="0 0.2 0", rpy="0 0 1.5707963267948966")),
        joint(
            "j", "revolute", "a", "b",
            '<origin xyz="1 2 3" rpy="0.1 0.2 0.3"/><axis xyz="0 3 4"/><dynamics damping="0.5" friction="0.25"/>' + LIMIT,
        ),
    )  # fmt: skip
    mech = load_urdf(path, timestep=0.02)
    hinge = mech.joints["j"]
    assert type(hinge).__name__ == "Revolute"
    assert hinge.parent_anchor.tolist() == pytest.approx([0.9, 2.0, 3.0])
    assert hinge.child_anchor.tolist() == pytest.approx([0.0, -0.2, 0.0])
    assert hinge.axis.tolist() == pytest.approx([0.0, 0.6, 0.8])

    def turn(axis: int, angle: float) -> np.ndarray:
        c, s, i, j = math.cos(angle), math.sin(angle), (axis + 1) % 3, (axis + 2) % 3
        matrix = np.eye(3)
        matrix[i, i], matrix[i, j], matrix[j, i], matrix[j, j] = c, -s, s, c
        return matrix

    # roll, pitch, yaw about fixed axes: yaw is applied last
    expected = turn(2, 0.3) @ turn(1, 0.2) @ turn(0, 0.1)
    np.testing.assert_allclose(rotation_matrix(hinge.orientation_offset).numpy(), expected, atol=1e-14)
    assert (float(hinge.damper), float(hinge.friction)) == (0.5, 0.25)
    assert [float(bound) for bound in hinge.limits] == [-1.0, 2.0]
    assert (hinge.effort_limit, hinge.velocity_limits.tolist()) == (3.0, [4.0])
    # the inertia of b is given in axes turned by 90 degrees about z: x and y change places
    assert mech.bodies["b"].inertia.diagonal().tolist() == pytest.approx([0.2, 0.1, 0.25])


@pytest.mark.parametrize(
    ("kind", "content", "expected"),
    [
        ("revolute", LIMIT, "Revolute"),
        ("continuous", "", "Revolute"),
        ("prismatic", LIMIT, "Prismatic"),
        ("planar", '<axis xyz="0 0 1"/>', "PlanarAxis"),
        ("floating", "", "Floating"),
        ("spherical", "", "Spherical"),
        ("ball", "", "Spherical"),
        ("orbital", '<axis xyz="0 0 1"/>', "Orbital"),
        ("planaraxis", '<axis xyz="0 0 1"/>', "PlanarAxis"),
        ("planarfree", '<axis xyz="0 0 1"/>', "PlanarFree"),
        ("cylindrical", '<axis xyz="0 0 1"/>', "Cylindrical"),
        ("cylindricalfree", '<axis xyz="0 0 1"/>', "CylindricalFree"),
        ("fixedorientation", '<dynamics damping="2"/>', "FixedOrientation"),
    ],
)
def test_joint_types(write_urdf, kind: str, content: str, expected: str) -> None:
    hinge = load_urdf(write_urdf(link("a"), link("b"), joint("j", kind, "a", "b", content))).joints["j"]
    assert type(hinge).__name__ == expected
    assert hinge.actuated == (kind != "floating")
    assert (hinge.limits is None) == (kind not in ("revolute", "prismatic"))
    assert hinge.axis.tolist() == ([0.0, 0.0, 1.0] if "0 0 1" in content else [1.0, 0.0, 0.0])  # URDF's default axis is x
    assert hinge.damper.tolist() == [2.0 if "damping" in content else 0.0] * hinge.num_coordinates


def test_limits_given_in_part(write_urdf) -> None:
    def limits(content: str):
        return read_urdf(write_urdf(link("a"), link("b"), joint("j", "prismatic", "a", "b", f"<limit {content}/>"))).joints["j"].options

    assert limits('upper="2"') == {"limits": (0.0, 2.0)}  # URDF: a missing side is 0
    assert limits('lower="-inf" upper="2" effort="5" velocity="inf"') == {"limits": (-math.inf, 2.0), "effort_limit": 5.0}
    assert limits('effort="5" velocity="1"') == {"effort_limit": 5.0, "velocity_limits": 1.0}
    assert limits('upper="1" effort="0" velocity="0"') == {"limits": (0.0, 1.0)}  # exporters write 0 where they know none


def test_limits_to_a_full_turn(write_urdf) -> None:
    """Files round 2π. Wider limits are those of no angle in z, and are read as none."""

    def path(limit: float) -> Path:
        content = f'<limit lower="{-limit}" upper="{limit}" effort="1" velocity="1"/>'
        return write_urdf(link("a"), link("b"), joint("j", "revolute", "a", "b", content))

    def bounds(limit: float) -> list[float]:
        return [float(bound) for bound in load_urdf(path(limit), contacts=None).joints["j"].limits]

    assert bounds(4.5) == [-4.5, 4.5]
    assert bounds(6.2832) == bounds(6.28318530718) == bounds(6.283) == [-2 * math.pi, 2 * math.pi]
    with pytest.warns(UserWarning, match=r"joint limits of j: ignored; they reach beyond one turn"):
        assert load_urdf(path(10.0), contacts=None).joints["j"].limits is None
    with pytest.raises(ValueError, match=r"(?s)robot\.urdf: strict=True, and 1 kinds of content .*; allowed: none\. .*joint limits of j"):
        load_urdf(path(10.0), contacts=None, strict=True)


@pytest.mark.parametrize("kind", ["revolute", "prismatic"])
def test_joint_without_range_is_fixed_at_its_coordinate(write_urdf, kind: str) -> None:
    path = write_urdf(
        link("a"), link("b"), joint("j", kind, "a", "b", '<origin xyz="0 0 1"/><axis xyz="0 0 1"/><limit lower="0.5" upper="0.5"/>')
    )
    robot = read_urdf(path)
    assert [(entry.names, entry.effect) for entry in told(robot, f"{kind} joint")] == [(("j",), "structure")]
    assert list(robot.bodies) == ["a"]
    b = robot.links["b"]
    np.testing.assert_allclose(b.position - robot.links["a"].position, [0, 0, 1.0 if kind == "revolute" else 1.5], atol=1e-15)
    assert b.rotation[1, 0] == pytest.approx(math.sin(0.5) if kind == "revolute" else 0.0)


def test_merging_composes_mass_centre_and_inertia(write_urdf) -> None:
    # two point-like cubes 1 m apart along the x axis of a, the second seen through a frame turned by 90 degrees about z
    path = write_urdf(
        link("a", inertial(1.0, moments=(0.1, 0.1, 0.1))),
        link("frame", ""),
        link("b", inertial(3.0, moments=(0.2, 0.3, 0.4))),
        joint("f", "fixed", "a", "frame", '<origin xyz="1 0 0" rpy="0 0 1.5707963267948966"/>'),
        joint("g", "fixed", "frame", "b", ""),
        link("c"),
        joint("j", "continuous", "b", "c", '<origin xyz="1 0 0"/>'),
    )
    robot = read_urdf(path)
    body = robot.bodies["a"]
    assert body.links == ("a", "frame", "b")
    assert body.mass == 4.0
    np.testing.assert_allclose(body.center, [0.75, 0, 0], atol=1e-15)
    steiner = 1.0 * 0.75**2 + 3.0 * 0.25**2
    np.testing.assert_allclose(body.inertia, np.diag([0.1 + 0.3, 0.1 + 0.2 + steiner, 0.1 + 0.4 + steiner]), atol=1e-14)
    # x of b is y of a
    np.testing.assert_allclose(robot.joints["j"].parent_anchor, [0.25, 1.0, 0.0], atol=1e-15)
    assert robot.joints["j"].parent == "a"
    assert list(robot.joints) == ["floating_base", "j"]

    separate = read_urdf(path, merge_fixed_joints=False)
    assert list(separate.bodies) == ["a", "b", "c"]
    assert separate.bodies["a"].links == ("a", "frame")  # a frame without mass is merged all the same
    assert separate.joints["g"].kind == "Fixed"
    np.testing.assert_allclose(separate.joints["g"].parent_anchor, [1.0, 0.0, 0.0])


@pytest.mark.parametrize("merge", [True, False])
def test_root_frame_without_mass(write_urdf, merge: bool) -> None:
    path = write_urdf(
        link("root", ""),
        link("a"),
        joint("f", "fixed", "root", "a", '<origin xyz="0 0 1"/>'),
        link("b"),
        joint("j", "continuous", "a", "b", ""),
    )
    floating = read_urdf(path, merge_fixed_joints=merge)
    assert list(floating.bodies) == ["root", "b"]
    assert floating.joints["floating_base"].kind == "Floating"
    # The coordinate of the base is the pose of the root link's frame, one meter below the center of mass.
    np.testing.assert_allclose(floating.joints["floating_base"].child_anchor, [0, 0, -1])
    fixed = read_urdf(path, merge_fixed_joints=merge, floating_base=False)
    if merge:
        assert list(fixed.bodies) == ["b"]
        assert fixed.joints["j"].parent is None
        np.testing.assert_allclose(fixed.joints["j"].parent_anchor, [0, 0, 1])
    else:
        assert list(fixed.bodies) == ["root", "b"]
        assert fixed.joints["fixed_base"].kind == "Fixed"


def test_root_named_world(write_urdf) -> None:
    path = write_urdf(
        link("world", ""), link("a"), joint("f", "fixed", "world", "a", ""), link("b"), joint("j", "continuous", "a", "b", "")
    )
    with pytest.warns(UserWarning, match=r"root link of world: used; it is the world, since its name says so: the base is fixed"):
        assert list(load_urdf(path).bodies) == ["b"]
    with pytest.warns(UserWarning, match=r"fixed base of a: approximated; it is fixed to the root link 'world', but floating_base=True"):
        mech = load_urdf(path, floating_base=True)
    assert list(mech.bodies) == ["a", "b"]  # "world" as a body name would be the world itself
    assert (mech.joints["floating_base"].parent, mech.joints["floating_base"].child) == (None, "a")
    assert list(load_urdf(path, floating_base=False).bodies) == ["b"]
    with pytest.warns(UserWarning, match=r"fixed base of a: .* but nothing else could move, so it floats"):
        alone = load_urdf(write_urdf(link("world", ""), link("a"), joint("f", "fixed", "world", "a", "")))
    assert list(alone.joints) == ["floating_base"]
    with pytest.raises(ValueError, match="floating_base is 'yes'; allowed: 'auto', True, False"):
        load_urdf(path, floating_base="yes")


def test_base_joint_gives_way_to_a_name_in_the_file(write_urdf) -> None:
    path = write_urdf(link("a"), link("b"), joint("floating_base", "continuous", "a", "b", ""))
    assert list(read_urdf(path).joints) == ["a_floating_base", "floating_base"]


def test_order_is_that_of_the_tree(write_urdf) -> None:
    path = write_urdf(
        joint("j2", "continuous", "b", "c", ""), joint("j3", "continuous", "a", "d", ""), joint("j1", "continuous", "a", "b", ""),
        *(link(name) for name in "dcba"),
    )  # fmt: skip
    robot = read_urdf(path)
    assert list(robot.bodies) == ["a", "d", "b", "c"]
    assert list(robot.joints) == ["floating_base", "j3", "j1", "j2"]


def test_names_are_cleaned(write_urdf) -> None:
    path = write_urdf(
        link("base.link"),
        link("arm.1"),
        joint("hinge.1", "revolute", "base.link", "arm.1"),
        link("type"),
        joint("t", "fixed", "arm.1", "type", ""),
    )
    mech = load_urdf(path, merge_fixed_joints=False)
    assert list(mech.bodies) == ["base_link", "arm_1", "type_"]  # nn.ModuleDict has an attribute `type`
    assert list(mech.joints) == ["floating_base", "hinge_1", "t"]


def test_collision_contacts(write_urdf) -> None:
    shapes = (
        collision('<sphere radius="0.5"/>', xyz="0 0 1")
        + collision('<box size="1 2 3"/>')
        + collision('<cylinder radius="0.1" length="2"/>', rpy="1.5707963267948966 0 0")
        + collision('<sphere radius="0"/>', xyz="0 0 -1")
    )
    path = write_urdf(
        link("a", inertial(1.0, xyz="0 0 0.25") + shapes), link("b", collision('<sphere radius="0.1"/>')), joint("f", "fixed", "a", "b", "")
    )
    mech = load_urdf(path, friction=0.8, rim_points=6)
    assert list(mech.contacts) == [f"a_{i}" for i in range(1 + 8 + 12 + 1)] + ["b_0"]
    assert all(contact.body == "a" and float(contact.friction) == 0.8 for contact in mech.contacts.values())
    assert float(mech.contacts["a_0"].radius) == 0.5
    assert mech.contacts["a_0"].point.tolist() == pytest.approx([0.0, 0.0, 0.75])
    assert sorted(abs(float(mech.contacts[f"a_{i}"].point[1])) for i in range(9, 21)) == pytest.approx([1.0] * 12)  # axis along y
    assert mech.contacts["a_21"].point.tolist() == pytest.approx([0.0, 0.0, -1.25])  # a sphere of radius 0 is a bare point
    assert float(mech.contacts["a_21"].radius) == 0.0
    assert [type(shape).__name__ for shape in mech.bodies["a"].shapes] == ["Sphere", "Box", "Cylinder", "Sphere"]
    for nothing in (None, {}):
        assert len(load_urdf(path, contacts=nothing).contacts) == 0


def test_capsules(write_urdf) -> None:
    shape = collision('<capsule radius="0.1" length="2"/>', xyz="0 0 1", rpy="1.5707963267948966 0 0")
    mech = load_urdf(write_urdf(link("a", INERTIAL + shape + collision('<cylinder radius="0.1" length="2"/>'))))
    capsule, cylinder = mech.bodies["a"].shapes
    assert (type(capsule).__name__, type(cylinder).__name__) == ("Capsule", "Cylinder")
    assert (float(capsule.radius), float(capsule.length)) == (0.1, 2.0)  # the length of the cylindrical part
    assert sorted(float(mech.contacts[f"a_{i}"].point[1]) for i in range(2)) == pytest.approx([-1.0, 1.0])
    assert [float(mech.contacts[f"a_{i}"].radius) for i in range(3)] == [0.1, 0.1, 0.0]
    visual = '<visual><geometry><capsule radius="1" length="1"/></geometry></visual>'
    assert mech.bodies["a"].mass == load_urdf(write_urdf(link("a", INERTIAL + visual))).bodies["a"].mass


def test_what_only_the_dialect_may_leave_out_or_repeat(write_urdf) -> None:
    twice = '<dynamics damping="1"/><dynamics damping="2"/>'
    capsule = link("c", INERTIAL + collision('<capsule radius="0.1" length="2"/>')), joint("k", "fixed", "b", "c", "")
    with pytest.raises(ValueError, match=r"<joint> 'j' has more than one <dynamics>"):
        load_urdf(write_urdf(*pair(twice)))
    with pytest.warns(UserWarning) as caught:
        mech = load_urdf(write_urdf(*pair(twice), *capsule))
    (warning,) = caught
    assert "repeated elements of <dynamics> in <joint> 'j': approximated; the first one is read, as by" in str(warning.message)
    assert "limits of revolute joints of j: approximated; it has no <limit>, so it has none here" in str(warning.message)
    assert (float(mech.joints["j"].damper), mech.joints["j"].limits) == (1.0, None)


def test_given_contacts(write_urdf) -> None:
    path = write_urdf(
        link("a", inertial(1.0, xyz="0 0 0.25")),
        link("tool", ""),
        joint("f", "fixed", "a", "tool", '<origin xyz="0 0 1" rpy="0 1.5707963267948966 0"/>'),
    )
    given = {"own": NonlinearContact("a", point=(1.0, 0.0, 0.0)), "tip": {"link": "tool", "point": (0.5, 0.0, 0.0), "radius": 0.1}}
    mech = load_urdf(path, contacts=given, friction=0.3)
    assert mech.contacts["own"] is given["own"]
    tip = mech.contacts["tip"]
    assert tip.body == "a"
    assert tip.point.tolist() == pytest.approx([0.0, 0.0, 1.0 - 0.25 - 0.5])  # x of the tool points down
    assert (float(tip.radius), float(tip.friction)) == (0.1, 0.3)


def test_contacts_of_the_world_are_dropped(write_urdf) -> None:
    path = write_urdf(
        link("a", INERTIAL + collision('<sphere radius="1"/>')),
        link("b", INERTIAL + collision('<sphere radius="1"/>')),
        joint("j", "revolute", "a", "b"),
    )
    assert list(load_urdf(path, floating_base=False, ground=True).contacts) == ["b_0"]


def test_no_contact_where_no_joint_can_change_the_height(write_urdf) -> None:
    ball = INERTIAL + collision('<sphere radius="1"/>')
    turntable, slide, arm = (
        joint("t", "continuous", "base", "table", '<origin xyz="0 0 0.5" rpy="1.5707963267948966 0 0"/><axis xyz="0 1 0"/>'),  # vertical
        joint("s", "prismatic", "table", "sled", '<axis xyz="1 0 0"/>' + LIMIT),
        joint("a", "continuous", "sled", "arm", '<axis xyz="1 0 0"/>'),
    )
    path = write_urdf(link("base"), link("table", ball), link("sled", ball), link("arm", ball), turntable, slide, arm)
    with pytest.warns(UserWarning, match=r"collision geometry of table, sled: ignored; no joint can change the height"):
        assert list(load_urdf(path, floating_base=False, ground=True).contacts) == ["arm_0"]
    assert list(load_urdf(path).contacts) == ["table_0", "sled_0", "arm_0"]
    assert list(load_urdf(path, floating_base=False, contacts={"own": {"link": "table"}}).contacts) == ["own"]


def test_harmless_elements_are_silent_and_unknown_ones_named(write_urdf) -> None:
    harmless = (
        '<material name="black"/><material name="black"/><gazebo reference="a"/><transmission name="t"><foo/></transmission>'
        '<drake:thing xmlns:drake="https://drake.mit.edu/"/>'
    )
    visual = '<visual><geometry><mesh filename="package://nowhere/a.dae"/></geometry><material name="x"/></visual><sensor name="s"/>'
    extra = LIMIT + '<safety_controller k_velocity="1"/><calibration rising="0"/>'
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        path = write_urdf(harmless, link("a", INERTIAL + visual), link("b"), joint("j", "revolute", "a", "b", extra))
        mech = load_urdf(path, contacts=None)
    counted = {entry.kind: (entry.count, entry.effect) for entry in mech.load_report.entries}
    assert counted == dict.fromkeys(("<transmission>", "<sensor>", "<safety_controller>", "<calibration>"), (1, "none"))
    path = write_urdf('<spring name="s"/>', link("a"), link("b"), joint("j", "revolute", "a", "b", LIMIT + "<motor/>"))
    (entry,) = told(read_urdf(path), "unknown elements")
    assert (entry.names, entry.count, entry.effect) == (("<spring> 's' in <robot>", "<motor> in <joint> 'j'"), 2, "structure")


def test_mesh_files_are_not_needed(write_urdf) -> None:
    path = write_urdf(link("a", INERTIAL + collision('<mesh filename="package://nowhere/hull.stl"/>') + collision('<sphere radius="1"/>')))
    with pytest.warns(UserWarning, match=r"collision meshes of a \(package://nowhere/hull\.stl\): ignored"):
        mech = load_urdf(path, mesh="skip")
    assert list(mech.contacts) == ["a_0"]


def test_mass_zero_is_a_frame_and_its_inertia_is_reported(write_urdf) -> None:
    path = write_urdf(link("a"), link("b", inertial(0.0)), joint("f", "fixed", "a", "b", ""))
    robot = read_urdf(path)
    assert [entry.names for entry in told(robot, "inertia")] == [("b",)]
    np.testing.assert_allclose(robot.bodies["a"].inertia, 0.1 * np.eye(3))


# -- what is refused ---------------------------------------------------------------------------------------------------------------------

BAD = {
    "malformed": (["<link"], r"robot\.urdf: malformed XML: .*line 1"),
    "no links": ([], r"the robot has no <link>"),
    "unnamed link": (["<link/>"], r"a <link> has no name"),
    "two links of one name": ([link("a"), link("a")], r"two links are named 'a'"),
    "two joints of one name": ([*TWO, link("c"), joint("j", "revolute", "a", "c")], r"two joints are named 'j'"),
    "names equal once cleaned": ([link("a.b"), link("a_b")], r"links 'a\.b' and 'a_b' both become 'a_b'"),
    "unknown parent": ([link("b"), joint("j", "revolute", "x", "b")], r"joint 'j' names the parent link 'x', which is not .*; links: 'b'"),
    "unknown child": ([link("a"), joint("j", "revolute", "a", "x")], r"joint 'j' names the child link 'x'"),
    "no child": ([link("a"), '<joint name="j" type="fixed"><parent link="a"/></joint>'], r"joint 'j' has no <child link"),
    "two parents": ([*TWO, joint("k", "revolute", "a", "b")], r"link 'b' is the child of two joints, 'j' and 'k'"),
    "cycle": ([link("c"), *TWO, joint("k", "revolute", "b", "a")], r"the links a -> b -> a form a cycle"),
    "two roots": ([link("a"), link("b")], r"links 'a', 'b' have no parent joint; a URDF has exactly one root"),
    "joint type": (pair(kind="screw"), r"joint 'j' has type 'screw', which is unknown\. Supported: joints fixed, .*ball.*capsule"),
    "type of a loop joint": (
        [*TWO, '<loop_joint name="l" type="gear"><link1 link="a"/><link2 link="b"/></loop_joint>'],
        r"joint 'l' has type 'gear', which is unknown",
    ),
    "loop joint without ends": ([*TWO, '<loop_joint name="l" type="continuous"/>'], r"joint 'l' has no <link1 link"),
    "loop joint to nothing": (
        [*TWO, '<loop_joint name="l" type="ball"><link1 link="a"/><link2 link="x"/></loop_joint>'],
        r"loop joint 'l' names as link2 the link 'x', which is not defined; links: 'a', 'b'",
    ),
    "loop joint to itself": (
        [*TWO, '<loop_joint name="l" type="ball"><link1 link="a"/><link2 link="a"/></loop_joint>'],
        r"loop joint 'l' joins link 'a' to itself",
    ),
    "loop joint within a body": (
        [
            *TWO,
            link("c"),
            joint("f", "fixed", "a", "c", ""),
            '<loop_joint name="l" type="ball"><link1 link="c"/><link2 link="a"/></loop_joint>',
        ],
        r"loop joint 'l' joins links that are both part of body 'a'; remove it",
    ),
    "loop joint of a joint's name": (
        [*TWO, '<loop_joint name="j" type="ball"><link1 link="a"/><link2 link="b"/></loop_joint>'],
        r"two joints are named 'j'",
    ),
    "frame of a loop joint": (
        [*pair("", "continuous"), '<loop_joint name="l" type="ball"><link1 link="a" xyz="0 0"/><link2 link="b"/></loop_joint>'],
        r"<link1> of <loop_joint> 'l' has xyz='0 0'",
    ),
    "mimic of itself": (pair(LIMIT + '<mimic joint="j"/>'), r"joint 'j' mimics 'j'; allowed: another joint"),
    "multiplier": (pair(LIMIT + '<mimic joint="x" multiplier="twice"/>'), r"<mimic> of <joint> 'j' has multiplier='twice'"),
    "capsule": ([link("a", INERTIAL + collision('<capsule radius="1"/>'))], r"<capsule> of .*'a' has no attribute 'length'"),
    "no geometry": ([link("a", INERTIAL + "<collision/>")], r"a collision of link 'a' has the geometry \[\]"),
    "two geometries": (
        [link("a", INERTIAL + collision('<sphere radius="1"/><box size="1 1 1"/>'))],
        r"link 'a' has the geometry \['sphere', 'box'\]; allowed: one of",
    ),
    "negative radius": (
        [link("a", INERTIAL + collision('<sphere radius="-1"/>'))],
        r"geometry of link 'a': Sphere radius: got -1",
    ),
    "two inertials": ([link("a", INERTIAL * 2)], r"<link> 'a' has more than one <inertial>"),
    "no inertia": ([link("a", '<inertial><mass value="1"/></inertial>')], r"<inertial> of link 'a' lacks <inertia>"),
    "negative mass": ([link("a", inertial(-1.0))], r"link 'a' has mass -1\.0 kg; allowed: positive"),
    "mass that is no number": ([link("a", INERTIAL.replace('"2"', '"heavy"'))], r"<mass> of <inertial> of <link> 'a' has value='heavy'"),
    "mass without value": ([link("a", INERTIAL.replace("value", "kg"))], r"<mass> of .* has no attribute 'value'"),
    "not finite": ([link("a", INERTIAL.replace('"2"', '"nan"'))], r"has value='nan'; allowed: 1 finite number"),
    "two numbers of three": (pair(LIMIT + '<origin xyz="1 2"/>'), r"<origin> of <joint> 'j' has xyz='1 2'"),
    "negative damping": (pair(LIMIT + '<dynamics damping="-1"/>'), r"<dynamics> of <joint> 'j' has damping='-1'"),
    "zero axis": (pair(LIMIT + '<axis xyz="0 0 0"/>'), r"revolute joint 'j' has the axis '0\.0 0\.0 0\.0'"),
    "nothing has mass": (
        [link("a", "")],
        r"no link has a mass, so nothing can move: got 1 link\(s\); allowed: an <inertial> with a positive",
    ),
    "xacro": (['<xacro:macro xmlns:xacro="http://www.ros.org/wiki/xacro" name="m"/>', link("a")], r"this is a xacro file.*expand it first"),
    "substitution": (
        pair(LIMIT + '<origin xyz="$(optenv XYZ 0 0 1)"/>'),
        r"has xyz='\$\(optenv XYZ 0 0 1\)': this is a xacro file; expand",
    ),
    "mimic without a joint": (pair(LIMIT + "<mimic/>"), r"<mimic> of joint 'j' has no attribute 'joint'"),
    "impossible inertia": ([link("a", inertial(1.0, moments=(0.1, 0.1, 0.5)))], r"link 'a': Body.inertia.*repair_inertia=True"),
    "indefinite inertia": ([link("a", inertial(1.0, moments=(0.1, 0.1, -0.1)))], r"robot\.urdf: link 'a': Body.inertia.*positive definite"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_files(write_urdf, case: str) -> None:
    elements, message = BAD[case]
    with pytest.raises(ValueError, match=message):
        load_urdf(write_urdf(*elements))


def test_not_a_robot(tmp_path: Path) -> None:
    path = tmp_path / "robot.urdf"
    path.write_text("<mujoco/>")
    with pytest.raises(ValueError, match=r"the root element is <mujoco>; a URDF file has <robot>"):
        load_urdf(path)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nowhere\.urdf' does not exist"):
        load_urdf(tmp_path / "nowhere.urdf")


@pytest.mark.parametrize("suffix", ["urdf", "xml"])
def test_encodings(tmp_path: Path, suffix: str) -> None:
    """An unknown encoding is an error that names the file; blanks before the declaration are left out."""
    path = tmp_path / f"robot.{suffix}"
    path.write_text('<?xml version="1.0" encoding="world"?><robot name="r"/>')
    with pytest.raises(ValueError, match=rf"robot\.{suffix}: the XML cannot be decoded: unknown encoding.*; allowed: .*utf-8"):
        load(path)
    path.write_text('\n\n<?xml version="1.0"?><robot name="r">' + link("a") + "</robot>")
    assert list(load(path, contacts=None).bodies) == ["a"]


def test_everything_fixed_to_the_world(write_urdf) -> None:
    with pytest.raises(ValueError, match="every link is fixed to the world; pass floating_base=True"):
        load_urdf(write_urdf(link("a")), floating_base=False)


@pytest.mark.parametrize(
    ("contacts", "message"),
    [
        ("visual", r"contacts is 'visual'; allowed: 'collision', 'all', td.Filter\(...\), None, or a mapping"),
        ({"tip": NonlinearContact("x")}, r"contact 'tip' is on 'x', which is no body of .*bodies: 'b'"),
        ({"tip": NonlinearContact("c")}, r"contact 'tip' is on 'c'.*part of body 'b': name that body, or give a mapping with link="),
        ({"tip": {"link": "x"}}, r"contact 'tip' has the link 'x'.*links: 'a', 'b', 'c'"),
        ({"tip": {"point": (0, 0, 0)}}, r"contact 'tip' has the link None"),
        ({"tip": {"link": "a"}}, r"link 'a' is part of the world and cannot touch"),
        ({"tip": {"link": "b", "point": (0, 0)}}, r"contact 'tip' has the point \[0\.0, 0\.0\]"),
        ({"tip": {"link": "b", "colour": 1}}, r"contact 'tip': .*colour"),
        ({"tip": {"link": "b", "friction": -1.0}}, r"contact 'tip': .*friction"),
    ],
)
def test_bad_contacts(write_urdf, contacts, message: str) -> None:
    path = write_urdf(*TWO, link("c", ""), joint("f", "fixed", "b", "c", ""))
    with pytest.raises(ValueError, match=message):
        load_urdf(path, floating_base=False, contacts=contacts)


def test_load_chooses_by_suffix(write_urdf, tmp_path: Path) -> None:
    path = write_urdf(*TWO)
    assert list(load(str(path), gravity=(0.0, 0.0, 0.0)).bodies) == ["a", "b"]
    copy = tmp_path / "copy.xml"  # the root element says that it is URDF
    copy.write_text(path.read_text())
    assert list(load(copy).bodies) == ["a", "b"]
    with pytest.raises(ValueError, match=r"unknown suffix '\.sdf'; allowed: \.urdf"):
        load(tmp_path / "robot.sdf")
    with pytest.raises(ValueError, match=r"unknown suffix ''"):
        load("quadruped")


def test_urdf_numbers_are_double_precision(write_urdf) -> None:
    mech = load_urdf(write_urdf(link("a", inertial(0.1234567890123456))))
    assert mech.bodies["a"].mass.dtype == torch.float64
    assert float(mech.bodies["a"].mass) == 0.1234567890123456
