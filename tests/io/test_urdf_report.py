"""Impossible content of URDF files is read as its authors meant, told in the report, and refused by ``strict=True`` if lost."""

from __future__ import annotations

import math
import warnings
from pathlib import Path

import numpy as np
import pytest
from urdf_text import INERTIAL, LIMIT, collision, inertial, joint, link, pair

import torchdojo as td
from torchdojo.io import LoadReport
from torchdojo.io.meshes import find_mesh
from torchdojo.io.robot import ball_inertia
from torchdojo.io.urdf.description import read_urdf

BALL = collision('<sphere radius="0.1"/>')
BASE = link("base", INERTIAL + BALL)


TURNS = joint("j", "continuous", "base", "b", "")


def moved(content: str, kind: str = "revolute") -> str:
    return joint("j", kind, "base", "b", content)


def load(path: Path, **options) -> td.Mechanism:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return td.load(path, **options)


#: elements behind a floating link "base" -> kind and effect of the entry, and the joints that are left
READ = {
    "limits beyond a turn": ([link("b"), moved('<limit lower="-10" upper="10"/>')], "joint limits", "motion", "j"),
    "crossed limits": ([link("b"), joint("j", "prismatic", "base", "b", '<limit lower="2" upper="1"/>')], "limits of prism", "motion", "j"),
    "no limits": ([link("b"), joint("j", "revolute", "base", "b", "")], "limits of revolute", "structure", "j"),
    "massless leaf": ([link("b", ""), joint("j", "revolute", "base", "b")], "revolute joint", "motion", ""),
    "massless leaves": (
        [link("b", ""), joint("j", "revolute", "base", "b"), link("c", ""), joint("k", "prismatic", "b", "c")], "joint", "motion", "",
    ),
    "massless between": (
        [link("b", ""), TURNS, link("c"), joint("k", "continuous", "b", "c", "")], "mass", "motion", "j k",
    ),
    "zero inertia": ([link("b", inertial(1.0, moments=(0, 0, 0))), TURNS], "inertia", "motion", "j"),
    "a rod's inertia": ([link("b", inertial(1.0, moments=(1, 1, 0))), TURNS], "inertia", "motion", "j"),
    "rounding of zero": ([link("b", inertial(1.0, moments=(-5e-20, 0, 0))), TURNS], "inertia", "motion", "j"),
    "mimic of nothing": ([link("b"), moved(LIMIT + '<mimic joint="x"/>')], "<mimic>", "motion", "j"),
    "mimic of a ball": (
        [link("b"), joint("j", "ball", "base", "b", ""), link("c"), joint("k", "revolute", "b", "c", LIMIT + '<mimic joint="j"/>')],
        "<mimic>", "motion", "j k",
    ),
    "mimic of a fixed joint": (
        [*pair(), joint("m", "fixed", "base", "a", '<mimic joint="j"/>')], "<mimic>", "structure", "j",
    ),
    "unknown geometry": ([link("b", INERTIAL + collision('<cone radius="1"/>')), moved("", "fixed")], "geometry", "motion", ""),
    "unknown attribute": ([link("b"), moved(LIMIT.replace("effort", "efort"))], "attributes", "structure", "j"),
    "too many numbers": ([link("b"), moved(LIMIT + '<origin xyz="0, 0, 1, 2"/>')], "numbers", "structure", "j"),
    "gravity off": (['<gazebo reference="base"><turnGravityOff>true</turnGravityOff></gazebo>'], "<turnGravityOff>", "motion", ""),
    "motor of ros2": (['<ros2_control name="c"/>'], "<ros2_control>", "none", ""),
}  # fmt: skip


@pytest.mark.parametrize("case", READ)
def test_read_otherwise_and_told(write_urdf, case: str) -> None:
    elements, kind, effect, joints = READ[case]
    path = write_urdf(BASE, *elements)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        mech = td.load(path)
    assert [name for name in mech.joints if name != "floating_base"] == joints.split()
    entries = [entry for entry in mech.load_report.of_kind(kind) if entry.effect == effect]
    assert entries
    assert len(caught) == (effect != "none")  # one warning per file, none about what does not matter
    for entry in entries:
        assert all(str(part) in str(mech.load_report) for part in (entry.kind, entry.reason, entry.count))
        assert effect == "none" or str(entry) in str(caught[0].message)
    if effect == "motion":
        with pytest.raises(ValueError, match=r"(?s)robot\.urdf: strict=True, and \d kinds of content .*; allowed: none\. Change"):
            td.load(path, strict=True)
    else:
        load(path, strict=True)
    z = mech.rollout(mech.initial_state(on="ground"), steps=3)
    assert (z.status == td.Status.SUCCESS).all()


def test_report_of_a_file_without_differences(write_urdf) -> None:
    mech = td.load(write_urdf(BASE))
    assert mech.load_report.entries == mech.load_report.lost == ()
    assert "everything in the file is used" in str(mech.load_report)
    assert isinstance(mech.load_report, LoadReport)
    assert td.Mechanism({"a": td.Body(mass=1.0, inertia=(1, 1, 1))}).load_report is None


def test_a_massless_root_with_joints_is_the_world(write_urdf) -> None:
    """A rail or a mount; one that is only the frame of a link with mass floats with that link."""
    path = write_urdf(link("rail", ""), link("cart"), joint("slide", "prismatic", "rail", "cart"))
    with pytest.warns(UserWarning, match=r"root link of rail: used; it is the world, since it has no mass"):
        mech = td.load(path)
    assert (list(mech.bodies), mech.joints["slide"].parent) == (["cart"], None)
    assert list(load(path, floating_base=True).bodies) == ["rail", "cart"]  # the rail gets a small mass, and says so
    frame = write_urdf(link("footprint", ""), link("base"), joint("f", "fixed", "footprint", "base", ""))
    assert list(load(frame).joints) == ["floating_base"]


def test_small_balls(write_urdf) -> None:
    """A ball of 1000 kg/m^3 stands in for a zero inertia; massless links between others have 1/1000 of the lightest mass on them."""
    zero = link("b", inertial(2.0, moments=(0, 0, 0)))
    body = read_urdf(write_urdf(BASE, zero, joint("j", "continuous", "base", "b", ""))).bodies["b"]
    radius = (2.0 / (1000 * 4 / 3 * math.pi)) ** (1 / 3)
    np.testing.assert_allclose(body.inertia, 0.4 * 2.0 * radius**2 * np.eye(3), rtol=1e-12)
    rod = link("b", inertial(2.0, moments=(1, 1, 0)))
    moments = np.linalg.eigvalsh(read_urdf(write_urdf(BASE, rod, joint("j", "continuous", "base", "b", ""))).bodies["b"].inertia)
    np.testing.assert_allclose(moments, [ball_inertia(2.0), 1 + ball_inertia(2.0) / 2, 1 + ball_inertia(2.0) / 2], rtol=1e-12)
    chain = link("b", ""), link("c", inertial(5.0)), link("d", inertial(3.0))
    moving = (
        joint(name, "continuous", parent, child, "") for name, parent, child in (("j", "base", "b"), ("k", "b", "c"), ("l", "b", "d"))
    )
    body = read_urdf(write_urdf(BASE, *chain, *moving)).bodies["b"]
    assert body.mass == pytest.approx(3e-3)


@pytest.mark.parametrize("moments", [(0.1, 0.1, 0.5), (0.1, 0.1, -0.1), (-0.1, -0.1, -0.1)])
def test_the_advice_on_impossible_inertias_works(write_urdf, moments: tuple[float, float, float]) -> None:
    path = write_urdf(link("base", inertial(1.0, moments=moments) + BALL))
    with pytest.raises(ValueError, match=r"robot\.urdf: link 'base': Body\.inertia: got .*; allowed: .*repair_inertia=True"):
        td.load(path)
    with pytest.warns(UserWarning, match=r"inertia of base: repaired; principal moments"):
        mech = td.load(path, repair_inertia=True)
    assert (mech.rollout(mech.initial_state(on="ground"), steps=3).status == td.Status.SUCCESS).all()


def test_followers_of_a_fixed_leader_are_fixed_where_it_puts_them(write_urdf) -> None:
    held = joint("j", "revolute", "base", "b", '<axis xyz="0 0 1"/><limit lower="0.5" upper="0.5"/>')
    content = '<axis xyz="0 0 1"/>' + LIMIT + '<mimic joint="j" multiplier="2" offset="0.1"/>'
    robot = read_urdf(write_urdf(BASE, link("b"), held, link("c"), joint("k", "revolute", "base", "c", content)))
    assert list(robot.joints) == ["floating_base"]
    assert math.atan2(robot.links["c"].rotation[1, 0], robot.links["c"].rotation[0, 0]) == pytest.approx(1.1)


def test_a_massless_leader_of_a_follower_with_mass_stays(write_urdf) -> None:
    finger = joint("k", "revolute", "base", "c", LIMIT + '<mimic joint="j"/>')
    mech = load(write_urdf(BASE, link("b", ""), joint("j", "revolute", "base", "b"), link("c"), finger))
    assert list(mech.joints) == ["floating_base", "j", "k"]
    assert list(mech.couplings) == ["k"]


# -- the ground --------------------------------------------------------------------------------------------------------------------------


def test_ground(write_urdf) -> None:
    """A robot on a fixed base stands where its author puts it: z = 0 says nothing about it unless the user does."""
    path = write_urdf(
        link("mount", ""), link("arm", INERTIAL + collision('<sphere radius="0.5"/>')), joint("j", "continuous", "mount", "arm", "")
    )
    assert not load(path).contacts
    assert not load(path, ground=False, floating_base=True).contacts
    assert list(load(path, floating_base=True).contacts) == ["arm_0"]
    with pytest.warns(UserWarning, match=r"contacts of arm_0: used; they start at or below their surface .*ground=False"):
        assert list(td.load(path, ground=True).contacts) == ["arm_0"]
    with pytest.raises(ValueError, match=r"ground is 'floor'; allowed: 'auto', True .* or False"):
        td.load(path, ground="floor")


def test_a_fixed_robot_that_touches_the_ground_exactly_moves(write_urdf) -> None:
    """The foot of the pole of pybullet's cartpole is at z = 0: with a ground, the cart is locked."""
    cart = link("cart", INERTIAL + BALL)
    pole = link("pole", INERTIAL + collision('<box size="0.1 0.1 1"/>', xyz="0 0 0.5"))
    slide = joint("slide", "prismatic", "rail", "cart", '<axis xyz="1 0 0"/><limit lower="-5" upper="5"/>')
    path = write_urdf(link("rail", ""), cart, pole, slide, joint("hinge", "continuous", "cart", "pole", '<axis xyz="0 1 0"/>'))
    mech = load(path)
    z = mech.rollout(mech.initial_state(), mech.gravity.new_tensor([10.0, 0.0]).expand(20, 2)).z[-1]
    assert float(mech.to_minimal(z)[0][0]) > 0.01  # [m], pushed with 10 N for 0.2 s


def test_a_floating_robot_without_contacts_is_told_so(write_urdf) -> None:
    path = write_urdf(link("base"))
    with pytest.warns(UserWarning, match=r"floating base of base: used; the robot has no contact with the ground and falls; contacts="):
        td.load(path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        td.load(path, contacts=None)
        td.load(path, ground=False)


# -- friction and compliance -------------------------------------------------------------------------------------------------------------


def surface(write_urdf, content: str, gazebo: str = "") -> td.Contact:
    """The contact of a ball whose link has this ``<contact>``, and the file this ``<gazebo>``."""
    text = f"<contact>{content}</contact>" if content else ""
    return load(write_urdf(link("base", INERTIAL + BALL + text), gazebo)).contacts["base_0"]


def test_contact_of_bullet(write_urdf) -> None:
    """Bullet's names and ours; the ground has friction 1 and restitution 1, its coefficients of rolling and spinning are lengths."""
    contact = surface(
        write_urdf,
        '<lateral_friction value="0.7"/><rolling_friction value="0.01"/><spinning_friction value="0.02"/><stiffness value="3e4"/>'
        '<damping value="100"/><contact_cfm value="0"/><contact_erp value="1"/><friction_anchor/>',
    )
    fields = ("friction", "rolling_friction", "torsional_friction", "stiffness", "damping")
    assert [float(getattr(contact, field)) for field in fields] == [0.7, 0.01, 0.02, 3e4, 100.0]
    bouncing = surface(write_urdf, '<lateral_friction value="1"/><restitution value="0.5"/><rolling_friction value="0"/>')
    assert (float(bouncing.friction), float(bouncing.restitution)) == (1.0, 0.5)
    assert bouncing.rolling_friction is None  # zero costs nothing
    assert float(surface(write_urdf, "").friction) == 0.5
    given = load(write_urdf(link("base", INERTIAL + BALL + '<contact><lateral_friction value="0.7"/></contact>')), friction=0.2)
    assert float(given.contacts["base_0"].friction) == 0.2  # the caller's counts for all


def test_inertia_scaling_of_bullet(write_urdf) -> None:
    robot = read_urdf(write_urdf(link("a", INERTIAL + '<contact><inertia_scaling value="3"/></contact>')))
    np.testing.assert_allclose(robot.bodies["a"].inertia, 0.3 * np.eye(3))


def test_friction_of_gazebo(write_urdf) -> None:
    def friction(*elements: str) -> float:
        return float(surface(write_urdf, "", f'<gazebo reference="base">{"".join(elements)}</gazebo>').friction)

    assert friction("<mu1>0.9</mu1>", "<mu2>0.9</mu2>", "<kp>1e6</kp>") == 0.9
    assert friction('<mu1 value="0.9"/>', '<mu2 value="0.3"/>') == 0.3
    assert friction("<mu1>1e14</mu1>") == 10.0
    assert friction("<mu1>much</mu1>") == 0.5


@pytest.mark.parametrize(
    ("content", "kind", "effect"),
    [
        ('<restitution value="0.5"/><stiffness value="1e4"/><damping value="1"/>', "<restitution>", "motion"),
        ('<restitution value="1.5"/>', "<restitution>", "motion"),
        ('<lateral_friction value="-1"/>', "<lateral_friction>", "motion"),
        ('<lateral_friction value="1e9"/>', "friction", "structure"),
        ('<damping value="10"/>', "<damping>", "structure"),
        ('<stickiness value="1"/>', "unknown elements", "structure"),
        ('<contact_cfm value="0"/>', "<contact_cfm>", "none"),
    ],
)
def test_contacts_that_do_not_fit(write_urdf, content: str, kind: str, effect: str) -> None:
    mech = load(write_urdf(link("base", INERTIAL + BALL + f"<contact>{content}</contact>")))
    assert [entry.effect for entry in mech.load_report.of_kind(kind)] == [effect]
    assert (mech.rollout(mech.initial_state(on="ground"), steps=3).status == td.Status.SUCCESS).all()


# -- files -------------------------------------------------------------------------------------------------------------------------------


def test_three_slashes(tmp_path: Path) -> None:
    (tmp_path / "pkg" / "meshes").mkdir(parents=True)
    file = tmp_path / "pkg" / "meshes" / "a.stl"
    file.write_text("")
    for name in ("package:///pkg/meshes/a.stl", "package://pkg/meshes/a.stl", "package://meshes/a.stl", f"file://{file}"):
        assert find_mesh(name, tmp_path / "pkg" / "urdf" / "robot.urdf").samefile(file)
