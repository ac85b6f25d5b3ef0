"""Contacts between bodies of a URDF file: all but those that a joint connects, with the friction of both links."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import torchdojo as td

Write = Callable[..., Path]
BALL = '<geometry><sphere radius="0.1"/></geometry>'
CAN = '<geometry><cylinder radius="0.05" length="0.1"/></geometry>'


def link(name: str, geometry: str = BALL, more: str = "", mass: float = 1.0) -> str:
    inertia = '<inertia ixx="0.01" ixy="0" ixz="0" iyy="0.01" iyz="0" izz="0.01"/>'
    inertial = f'<inertial><mass value="{mass}"/>{inertia}</inertial>' if mass else ""
    return f'<link name="{name}">{inertial}<collision>{geometry}</collision>{more}</link>'


def hinge(parent: str, child: str, kind: str = "continuous", xyz: str = "0 0 -0.3") -> str:
    origin = f'<parent link="{parent}"/><child link="{child}"/><origin xyz="{xyz}"/><axis xyz="0 1 0"/>'
    return f'<joint name="{parent}_{child}" type="{kind}">{origin}</joint>'


def chain(write_urdf: Write) -> Path:
    friction = '<contact><lateral_friction value="{}"/></contact>'
    links = [
        link("world", mass=0), link("a", more=friction.format(0.5)), link("b"), link("c", more=friction.format(0.8)), link("d", CAN)
    ]  # fmt: skip
    return write_urdf(*links, hinge("world", "a"), hinge("a", "b"), hinge("b", "c"), hinge("c", "d", "fixed"))


def quiet(path: Path, **options: Any) -> td.Mechanism:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return td.load(path, **options)


def test_pairs_and_frictions(write_urdf: Write) -> None:
    path = chain(write_urdf)
    mech = quiet(path, contacts="all", near=False)
    pairs = {name: (contact.other or contact.surface_name, float(contact.friction)) for name, contact in mech.named_contacts().items()}
    assert pairs == {"a_0_c_0": ("c", pytest.approx(0.4)), "b_0_world_0": ("world", 0.5), "c_0_world_0": ("world", 0.8)}
    every = quiet(path, contacts="all", friction=0.1).contacts
    assert all(float(contact.friction) == 0.1 for contact in every.values()) and {"a_0_d_0_near0", "d_0_world_0_near0"} <= set(every)
    entries = mech.load_report.of_kind("contacts between bodies")
    assert [(entry.did, set(entry.names)) for entry in entries] == [("ignored", {"a-c", "b-c", "c-world"} - {"b-c"})]
    left = quiet(path, contacts=td.Filter(exclude=[("c", "*")]))
    assert list(left.contacts) == ["b_0_world_0"]
    assert not quiet(path).contacts


def test_laws_of_both_links_act_between_them(write_urdf: Write) -> None:
    """Bullet multiplies restitutions, and coefficients by the friction of the other link. Near contacts have all laws, too."""
    laws = '<contact><lateral_friction value="{}"/><{} value="{}"/><spinning_friction value="0.01"/></contact>'
    pair = [(0.5, "restitution", 0.8), (0.4, "restitution", 0.5)]
    for other in (BALL, CAN):
        links = [link(name, geometry, laws.format(*numbers)) for name, geometry, numbers in zip("ab", (BALL, other), pair, strict=True)]
        mech = quiet(write_urdf(*links, link("c"), hinge("c", "a", "floating"), hinge("c", "b", "floating")), contacts="all")
        contacts = [contact for contact in mech.named_contacts().values() if contact.body_names == ("a", "b")]
        assert contacts and all(isinstance(contact, td.NonlinearContact) for contact in contacts)
        for contact in contacts:
            assert float(contact.restitution) == pytest.approx(0.4) and float(contact.friction) == pytest.approx(0.2)
            assert float(contact.torsional_friction) == pytest.approx(0.01 * 0.4 + 0.01 * 0.5) and contact.rolling_friction is None
        assert not mech.load_report.lost
    links = [
        link(name, BALL, laws.format(0.5, *numbers)) for name, numbers in zip("ab", (("stiffness", 1e4), ("restitution", 0.5)), strict=True)
    ]
    mech = quiet(write_urdf(*links, link("c"), hinge("c", "a", "floating"), hinge("c", "b", "floating")), contacts="all")
    (contact,) = (contact for contact in mech.named_contacts().values() if contact.body_names == ("a", "b"))
    assert float(contact.stiffness) == pytest.approx(1e4) and contact.restitution is None


def test_fixed_links_that_stay_bodies_do_not_touch_each_other(write_urdf: Write) -> None:
    names = {frozenset(c.body_names) for c in quiet(chain(write_urdf), contacts="all", merge_fixed_joints=False).named_contacts().values()}
    assert frozenset(("c", "d")) not in names and frozenset(("a", "c")) in names


def test_a_folded_chain_stops_at_itself(write_urdf: Write) -> None:
    """The last ball swings up to the first one, which is fixed, and stays outside of it."""
    hanging = [
        link(name).replace("<mass", '<origin xyz="0 0 -0.3"/><mass').replace("<geom", '<origin xyz="0 0 -0.3"/><geom') for name in "bc"
    ]
    path = write_urdf(
        '<link name="world"/>', link("a"), *hanging, hinge("world", "a", "fixed", "0 0 2"), hinge("a", "b", xyz="0 0 0"), hinge("b", "c")
    )
    for contacts, touches in (("all", True), ("collision", False)):
        mech = quiet(path, contacts=contacts)
        path_of = mech.rollout(mech.initial_state(b_c={"q": 2.0, "qd": 10.0}), steps=30)
        assert not path_of.status.any()
        apart = (mech.body_state(path_of.z, "c").x - torch.tensor((0.0, 0.0, 2.0))).norm(dim=-1).min()
        assert (float(apart) >= 0.2) == touches
