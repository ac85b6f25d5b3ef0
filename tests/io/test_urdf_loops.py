"""Mimic joints and loop joints of URDF files."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from urdf_text import LIMIT, inertial, joint, link, pair

from torchdojo.elements.element import Pose
from torchdojo.io import load_urdf
from torchdojo.quaternion import exp, from_rotation_matrix, rotation_matrix

TWO = pair()


def test_mimic_joints_are_couplings(write_urdf) -> None:
    path = write_urdf(
        *TWO,
        link("c"),
        joint("m.1", "revolute", "a", "c", LIMIT + '<origin xyz="0 1 0"/><mimic joint="j" multiplier="-0.5" offset="0.25"/>'),
        link("d"),
        joint("n", "prismatic", "b", "d", LIMIT + '<mimic joint="m.1"/>'),
    )
    mech = load_urdf(path)
    assert {name: (c.leader, c.follower, float(c.ratio), float(c.offset)) for name, c in mech.couplings.items()} == {
        "m_1": ("j", "m_1", -0.5, 0.25),
        "n": ("m_1", "n", 1.0, 0.0),
    }
    assert [joint.actuated for joint in mech.joints.values()] == [False, True, False, False]  # the first is the floating base
    z = mech.initial_state(j={"q": 0.4, "qd": 1.0})
    q, qd = mech.to_minimal(z)
    assert q[6:].tolist() == pytest.approx([0.4, 0.05, 0.05])
    assert qd[6:].tolist() == pytest.approx([1.0, -0.5, -0.5])
    out = mech.step(z, torch.tensor([0.3]))
    q, _ = mech.to_minimal(out.z)
    assert float(q[7]) == pytest.approx(-0.5 * float(q[6]) + 0.25, abs=1e-9)
    assert float(q[8]) == pytest.approx(float(q[7]), abs=1e-9)
    for merge in (True, False):
        assert list(load_urdf(path, merge_fixed_joints=merge, floating_base=False).couplings) == ["m_1", "n"]


def test_ignored_mimic_joints_are_independent(write_urdf) -> None:
    path = write_urdf(*TWO, link("c"), joint("m.1", "revolute", "a", "c", LIMIT + '<mimic joint="j" multiplier="2"/>'))
    for ignore in ("m.1", ["m_1"]):
        mech = load_urdf(path, ignore=ignore)
        assert mech.joints["m_1"].actuated
        assert len(mech.couplings) == 0
    with pytest.raises(ValueError, match=r"ignore names \['j'\], which are no mimic joints; mimic joints here: \['m_1'\]"):
        load_urdf(path, ignore=("j", "m_1"))


@pytest.mark.parametrize("kind", ["fixed", "revolute", "continuous", "prismatic", "planaraxis", "orbital", "ball", "cylindrical"])
@pytest.mark.parametrize("world", ["", "link1", "link2"])
@pytest.mark.filterwarnings("ignore:.*loops are open")
def test_frames_of_a_loop_joint_coincide_at_coordinate_zero(write_urdf, kind: str, world: str) -> None:
    """Two links, free of each other, and a loop joint between random frames on them; in the world frame it all starts from one frame."""
    generator = np.random.default_rng(3)
    places = {name: (generator.uniform(-1, 1, 3), generator.uniform(-1, 1, 3)) for name in ("link1", "link2")}
    axis = np.array([2.0, -1.0, 2.0]) / 3
    ends = "".join(
        f'<{end} link="{"root" if end == world else end}" xyz="{" ".join(map(str, xyz))}" rpy="{" ".join(map(str, rpy))}"/>'
        for end, (xyz, rpy) in places.items()
    )
    links = [link(name, inertial(1.0, xyz="0.1 -0.2 0.3")) for name in ("link1", "link2") if name != world]
    free = [joint(f"free_{name}", "floating", "root", name, "") for name in ("link1", "link2") if name != world]
    content = f'<axis xyz="2 -1 2"/><limit lower="-1" upper="2"/>{ends}<dynamics damping="0.5"/>'
    loop = f'<loop_joint name="close" type="{kind}">{content}</loop_joint>'
    mech = load_urdf(write_urdf(loop, link("root", ""), *links, *free), floating_base=False)
    close = mech.joints["close"]
    assert list(mech.joints)[-1] == "close"
    assert close.damper.tolist() == [0.5 if kind != "fixed" else 0.0] * close.num_coordinates
    if kind in ("revolute", "prismatic"):
        assert (float(close.lower), float(close.upper)) == (-1.0, 2.0)

    def pose(end: str, frame: tuple[np.ndarray, np.ndarray]) -> Pose:
        """Pose of the body if the joint's frame on it is `frame`."""
        (xyz, rpy), (rotation, position) = places[end], frame
        turn = rotation @ rotations(rpy).T
        x = position + turn @ (np.array([0.1, -0.2, 0.3]) - xyz)
        return Pose(torch.as_tensor(x), from_rotation_matrix(torch.as_tensor(turn)))

    start = {
        end: (rotations(rpy), xyz) if end == world else (rotations((0.3, -0.4, 0.5)), np.array([1.0, 2, 3]))
        for end, (xyz, rpy) in places.items()
    }
    if world:
        start = dict.fromkeys(places, start[world])  # the frame on the root is where the world has it
    turned = {"revolute": 0.7, "continuous": 0.7}.get(kind, 0.0)
    slid = 0.4 if kind == "prismatic" else 0.0
    rotation, position = start["link2"]
    moved = rotation @ rotation_matrix(exp(torch.as_tensor(axis * turned))).numpy(), position + rotation @ axis * slid
    ground = Pose(torch.zeros(3), torch.tensor([1.0, 0, 0, 0]))
    if world == "link2":  # link1 moves against the axis
        rotation, position = start["link1"]
        moved = rotation @ rotation_matrix(exp(torch.as_tensor(-axis * turned))).numpy(), position - rotation @ axis * slid
        parent, child = ground, pose("link1", moved)
    else:
        parent, child = ground if world else pose("link1", start["link1"]), pose("link2", moved)
    assert (close.parent, close.child) == (None if world else "link1", "link1" if world == "link2" else "link2")
    assert (close.constraint(parent, child).abs() <= 1e-14).all()
    expected = torch.zeros(close.num_coordinates)
    if turned or slid:
        expected[:] = turned + slid
    torch.testing.assert_close(close.coordinates(parent, child), expected, rtol=0, atol=1e-14)


def rotations(rpy) -> np.ndarray:
    """Roll, pitch and yaw about fixed axes, yaw last."""
    matrix = np.eye(3)
    for axis, angle in zip(np.eye(3), rpy, strict=True):
        matrix = rotation_matrix(exp(torch.as_tensor(axis * angle))).numpy() @ matrix
    return matrix


def chain(gap: str, last: str = "continuous") -> list[str]:
    """Three links of 1 m along x, and a loop joint from the end of the last to a point of the world."""
    ends = f'<link1 link="world_frame" xyz="{gap}"/><link2 link="c" xyz="1 0 0"/>'
    axis = '<axis xyz="0 1 0"/>'
    return [
        link("world_frame", ""),
        *(link(name, inertial(1.0, xyz="0.5 0 0")) for name in "abc"),
        joint("ja", "continuous", "world_frame", "a", axis),
        joint("jb", "continuous", "a", "b", f'<origin xyz="1 0 0"/>{axis}'),
        joint("jc", "continuous", "b", "c", f'<origin xyz="1 0 0"/>{axis}'),
        f'<loop_joint name="close.it" type="{last}">{axis}{ends}</loop_joint>',
    ]


def test_loops_that_are_open_as_drawn_are_closed(write_urdf) -> None:
    with pytest.warns(
        UserWarning, match=r"closed loops of joint 'close_it' by 0\.5 m and 0 rad: used; they are open .*mech\.initial_state\(\) closes"
    ):
        mech = load_urdf(write_urdf(*chain("2.7 0 0.4")), floating_base=False)
    assert mech.tree_joints == ["ja", "jb", "jc"]
    z = mech.initial_state(ja={"qd": 0.3})
    assert float(mech.joint_errors(z).abs().max()) <= 1e-9
    assert float(mech.joint_errors(mech(z)).abs().max()) <= 1e-8
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_urdf(write_urdf(*chain("3 0 0")), floating_base=False)  # closed as drawn


def test_loops_that_cannot_be_closed(write_urdf) -> None:
    with pytest.raises(
        ValueError, match=r"robot\.urdf: a loop cannot be closed at .*: at the nearest .*joint 'close_it' by 1\.\d+ m and 0 rad stays"
    ):
        load_urdf(write_urdf(*chain("4 0 0.5")), floating_base=False)
    with pytest.raises(ValueError, match=r"joint 'close_it' by 1 m and 0 rad stays open\. Correct the anchors, axes and orientations"):
        load_urdf(write_urdf(*chain("2 1 0")), floating_base=False)  # off the plane of the hinges


def test_limits_that_a_mimic_excludes_are_left_out(write_urdf) -> None:
    """As in a file of the PR2: both fingers open from 0 to 0.548, and the mimic turns one into the negative of the other."""
    limit = '<limit lower="0" upper="0.548" effort="1" velocity="9"/><axis xyz="0 0 1"/>'
    path = write_urdf(
        *(link(name) for name in ("a", "b", "c")),
        joint("left", "revolute", "a", "b", limit),
        joint("right", "revolute", "a", "c", limit + '<mimic joint="left" multiplier="-1"/>'),
    )
    with pytest.warns(UserWarning, match="joint limits of right: ignored; its coupling excludes them"):
        mech = load_urdf(path, floating_base=False)
    assert mech.joints["left"].limits is not None and mech.joints["right"].limits is None
    path = mech.rollout(mech.initial_state(left={"q": 0.1, "qd": 1.0}, right={"q": -0.1, "qd": -1.0}), steps=60)
    assert not path.status.any() and 0.4 < float(mech.to_minimal(path.z)[0][:, 0].max()) < 0.548
