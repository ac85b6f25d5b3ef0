"""Contacts of the MJCF reader: geoms, planes, surfaces, pairs and excludes."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from mjcf_text import FLOOR, TREE, Write, Y, free_body, hinge, notes, quiet

from torchdojo import quaternion as quat
from torchdojo.elements.contacts import ImpactContact
from torchdojo.io import load, read_mjcf
from torchdojo.solver.options import Status
from torchdojo.state.layout import split_state

mujoco = pytest.importorskip("mujoco")


@pytest.mark.parametrize(
    ("geom", "count", "radius", "gap"),
    [
        ('type="sphere" size=".2"', 1, 0.2, lambda up: 0.8),
        ('type="capsule" size=".1 .3"', 2, 0.1, lambda up: 0.9 - 0.3 * abs(up[2])),
        ('type="box" size=".1 .2 .3"', 8, 0.0, lambda up: 1 - float(np.abs(up) @ [0.1, 0.2, 0.3])),
        ('type="cylinder" size=".1 .3"', 24, 0.0, lambda up: 1 - 0.3 * abs(up[2]) - 0.1 * math.hypot(up[0], up[1])),
    ],
    ids=["sphere", "capsule", "box", "cylinder"],
)
def test_geoms_become_contacts(write_mjcf: Write, geom: str, count: int, radius: float, gap: Callable[[np.ndarray], float]) -> None:
    path = write_mjcf(FLOOR + free_body(f'<geom name="g" {geom}/>'))
    mech = quiet(path, rim_points=12)
    assert list(mech.contacts) == (["g"] if count == 1 else [f"g_{i}" for i in range(count)])
    assert {float(contact.radius) for contact in mech.contacts.values()} == {radius}
    up = read_mjcf(path).compiled.data.geom_xmat[1].reshape(3, 3)[2]
    slack = 0.1 * (1 - math.cos(math.pi / 12)) if count == 24 else 0.0
    expected = gap(up)
    assert expected - 1e-12 <= float(mech.distances(mech.initial_state()).min()) <= expected + slack + 1e-12


def test_ellipsoids_are_18_balls_and_a_sphere_is_one(write_mjcf: Write) -> None:
    ellipsoid = '<geom name="g" type="ellipsoid" size=".1 .2 .3"/>'
    path = write_mjcf(FLOOR + free_body(ellipsoid + '<geom name="s" type="ellipsoid" size=".4 .4 .4"/>'))
    assert list(quiet(path).contacts) == ["s_0"]  # the other one lies inside
    path = write_mjcf(FLOOR + free_body(ellipsoid, 'pos="0 0 1"'))
    mech = quiet(path)
    assert list(mech.contacts) == [f"g_{i}" for i in range(18)]
    assert float(mech.distances(mech.initial_state()).min()) == pytest.approx(0.7)


def test_geoms_without_contact_points_are_named(write_mjcf: Write) -> None:
    mesh = '<asset><mesh name="m" vertex="0 0 0 1 0 0 0 1 0 0 0 1"/></asset>'
    path = write_mjcf(FLOOR + free_body('<geom name="g" type="mesh" mesh="m"/><geom name="ball" size=".1"/>'), mesh)
    reason = "geoms of g: ignored; moving height fields, signed distances, and meshes with mesh=None have no contact points"
    assert reason in notes(path, mesh=None)
    assert list(quiet(path, mesh=None).contacts) == ["ball"]
    assert list(quiet(path).contacts) == ["g_1", "g_2", "g_3", "ball"]  # g_0 lies inside of the ball
    assert "contact points" not in notes(path, contacts=None)


def test_planes(write_mjcf: Write) -> None:
    tilted = '<geom name="ramp" type="plane" size="1 1 1" pos="0 0 -1" euler=".4 0 0"/>'
    mech = quiet(write_mjcf(FLOOR + tilted + free_body('<geom name="g" size=".1"/>')))
    assert list(mech.contacts) == ["g_floor", "g_ramp"]
    ramp = mech.contacts["g_ramp"]
    assert ramp.normal.tolist() == pytest.approx([0, -math.sin(0.4), math.cos(0.4)])
    assert float(ramp.offset) == pytest.approx(-math.cos(0.4))
    assert mech.distances(mech.initial_state()).tolist() == pytest.approx([0.9, 2 * math.cos(0.4) - 0.1])


def test_file_without_a_plane_has_the_ground(write_mjcf: Write) -> None:
    contact = quiet(write_mjcf(free_body('<geom name="g" size=".1" friction=".7"/>'))).contacts["g"]
    assert (contact.normal.tolist(), float(contact.offset), float(contact.friction)) == ([0, 0, 1], 0.0, 0.7)


@pytest.mark.parametrize(
    ("plane", "geom", "friction"),
    [
        ("", 'friction=".3"', 1.0),  # the larger one
        ('friction=".2"', 'friction=".3"', 0.3),
        ('friction=".8"', 'friction=".3" priority="1"', 0.3),
        ('friction=".8" priority="2"', 'friction=".3" priority="1"', 0.8),
        ('condim="1"', 'condim="1"', None),
        ('condim="1"', 'condim="3"', 1.0),
        ('contype="0"', "", 1.0),
        ('contype="0"', 'contype="0"', "none"),
        ('contype="2" conaffinity="2"', "", "none"),
        ('contype="2" conaffinity="2"', 'conaffinity="3"', 1.0),
    ],
)
def test_surfaces_combine_as_in_mujoco(write_mjcf: Write, plane: str, geom: str, friction: float | str | None) -> None:
    path = write_mjcf(f'<geom type="plane" size="1 1 1" {plane}/>' + free_body(f'<geom name="g" size=".1" {geom}/>'))
    contacts = quiet(path).contacts
    if friction == "none":
        assert not contacts
    elif friction is None:
        assert isinstance(contacts["g"], ImpactContact)
        assert isinstance(quiet(path, friction=0.9).contacts["g"], ImpactContact)
    else:
        assert float(contacts["g"].friction) == friction
        assert float(quiet(path, friction=0.9).contacts["g"].friction) == 0.9


def test_pairs_excludes_and_flags(write_mjcf: Write) -> None:
    world = FLOOR + free_body('<geom name="g" size=".1" contype="0" conaffinity="0"/>')
    assert not quiet(write_mjcf(world)).contacts
    pair = '<contact><pair geom1="g" geom2="floor" friction=".25 .25 0 0 0"/></contact>'
    assert float(quiet(write_mjcf(world, pair)).contacts["g"].friction) == 0.25
    world = FLOOR + free_body('<geom name="g" size=".1"/>')
    assert not quiet(write_mjcf(world, '<contact><exclude body1="world" body2="a"/></contact>')).contacts
    assert not quiet(write_mjcf(world, '<option><flag contact="disable"/></option>')).contacts
    assert quiet(write_mjcf(world, '<option><flag gravity="disable"/></option>')).gravity.tolist() == [0, 0, 0]


def test_points_inside_another_ball_or_at_constant_height_are_left_out(write_mjcf: Write) -> None:
    inner = '<geom name="ball" size=".2"/><geom name="arm" type="capsule" size=".1" fromto="0 0 0 1 0 0"/><geom name="same" size=".2"/>'
    assert list(quiet(write_mjcf(FLOOR + free_body(inner))).contacts) == ["ball", "arm_0"]  # its end at x = 1
    pole = '<geom name="pole" type="capsule" size=".1" fromto="0 0 0 0 0 1"/>'
    path = write_mjcf(FLOOR + f'<body name="a">{hinge("h", Y).replace(".3 -.1 .2", "0 0 0")}{pole}</body>')
    assert "collision geometry of pole: ignored; no joint can change the height of these points" in notes(path)
    mech = quiet(path)
    assert list(mech.contacts) == ["pole_0"]
    assert (mech.rollout(mech.initial_state(), steps=5).status == int(Status.SUCCESS)).all()


def test_contacts_of_the_user(write_mjcf: Write) -> None:
    path = write_mjcf(FLOOR + TREE)
    mech = quiet(path, contacts={"tip": {"link": "b", "point": (0.1, 0, 0), "radius": 0.05}}, friction=0.3)
    info = read_mjcf(path)
    tip = mech.contacts["tip"]
    assert (tip.body, float(tip.friction)) == ("a", 0.3)
    x = split_state(mech.initial_state()).pose
    world = x.x[0] + quat.rotate(x.q[0], tip.point)
    data = info.compiled.data
    assert world.tolist() == pytest.approx((data.xpos[2] + data.xmat[2].reshape(3, 3) @ [0.1, 0, 0]).tolist())
    with pytest.raises(ValueError, match=r"has the link 'c', which is not in .*; links: 'a', 'b'"):
        load(path, contacts={"tip": {"link": "c"}})
    with pytest.raises(ValueError, match=r"contacts is 'some'; allowed: 'collision', 'all'"):
        load(path, contacts="some")


def test_contacts_built_together_are_modules_of_their_own(write_mjcf: Write) -> None:
    """Contacts of one body are checked as a batch: each keeps its numbers, and nothing of it is shared."""
    path = write_mjcf(FLOOR + free_body('<geom name="g" type="capsule" size=".1 .3"/><geom name="s" size=".2" pos="1 0 0" friction=".3"/>'))
    mech = quiet(path)
    first, second, ball = mech.contacts.values()
    assert [contact.point.shape for contact in (first, second, ball)] == [(3,)] * 3
    assert not torch.equal(first.point, second.point)
    assert float(ball.radius) == pytest.approx(0.2)
    other = second.friction.clone()
    first.friction = 0.7
    first.point.data[2] = 9.0
    calls = []
    first.register_forward_hook(lambda *given: calls.append(given))
    assert torch.equal(second.friction, other)
    assert float(second.point[2].abs()) == pytest.approx(0.3)
    assert not second._forward_hooks
    given = torch.tensor(0.4, requires_grad=True)
    assert all(contact.friction is given for contact in quiet(path, friction=given).contacts.values())
    assert [float(contact.friction) for contact in quiet(path, friction=0.25).contacts.values()] == [0.25] * 3
    with pytest.raises(ValueError, match=r"NonlinearContact.friction: got -1.0; allowed: values >= 0"):
        quiet(path, friction=-1.0)
