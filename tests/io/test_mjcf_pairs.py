"""Contacts between bodies of an MJCF file: the pairs, numbers and distances of MuJoCo, and what is left out."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from mjcf_text import FLOOR, Write, notes, quiet

import torchdojo as td
from torchdojo.elements.near_contact import NearContact
from torchdojo.elements.near_rule import MOST_CLOSED
from torchdojo.io import mjcf_state, read_mjcf

mujoco = pytest.importorskip("mujoco")

#: All geoms overlap, so that MuJoCo makes a contact of every pair that it lets touch.
CROWD = """
<geom name="table" type="box" size=".3 .3 .3"/>
<geom name="post" type="capsule" size=".2 .3" contype="2" conaffinity="4"/>
<body name="arm"><joint name="s"/><geom name="upper" type="capsule" size=".2 .3" friction=".3 .02 .001" condim="4"/>
  <body name="hand"><joint name="e" axis="0 1 0"/><geom name="palm" type="box" size=".3 .2 .2" priority="2" friction=".4"/>
    <body name="ring"><geom name="ring" size=".3" friction=".8"/></body>
    <body name="finger"><joint name="f" axis="1 0 0"/>
      <geom name="tip" size=".25" condim="1"/><geom name="nail" size=".2" contype="0"/>
    </body>
  </body>
</body>
<body name="ball"><freejoint/><geom name="ball" size=".25" condim="6" friction=".6 .03 .002"/></body>
<body name="crate"><freejoint/><geom name="crate" type="box" size=".25 .2 .15" contype="4" conaffinity="3"/></body>
<body name="ghost"><freejoint/><geom name="ghost" size=".2" contype="0" conaffinity="0"/></body>
"""
RULES = {
    "none": "",
    "exclude": '<contact><exclude body1="arm" body2="ball"/><exclude body1="world" body2="finger"/></contact>',
    "pair": '<contact><pair geom1="ghost" geom2="crate" friction=".2 .2 .01 .001 .001" condim="6"/>'
    '<pair geom1="palm" geom2="upper"/></contact>',
    "parents": '<option><flag filterparent="disable"/></option>',
    "off": '<option><flag contact="disable"/></option>',
}


def named(mech: td.Mechanism) -> dict[frozenset[str], td.Contact]:
    """The first contact of each pair of geoms: the one between nearest points."""
    result: dict[frozenset[str], td.Contact] = {}
    for name, contact in mech.named_contacts().items():
        first, second = name.split("_")[:2]
        result.setdefault(frozenset((first, second)), contact)
    return result


@pytest.mark.parametrize("rule", RULES)
def test_pairs_and_numbers_of_mujoco(write_mjcf: Write, rule: str) -> None:
    """The pairs of geoms, friction, torsional and rolling friction are those of MuJoCo's contacts."""
    path = write_mjcf(CROWD, RULES[rule] + '<option><flag multiccd="disable"/></option>')
    mech = quiet(path, contacts=td.Filter(), ground=False, near=False)  # with overlaps of links
    model = mujoco.MjModel.from_xml_path(str(path))
    data = mujoco.MjData(model)
    data.qpos[:] += 1e-3 * np.random.default_rng(0).standard_normal(model.nq)
    mujoco.mj_forward(model, data)
    expected = {frozenset(str(model.geom(int(g)).name) for g in contact.geom): contact for contact in data.contact}
    found = named(mech)
    assert set(found) == set(expected) and (rule == "off") == (not found)
    for pair, contact in found.items():
        friction, dim = expected[pair].friction, int(expected[pair].dim)
        assert isinstance(contact, td.ImpactContact) == (dim == 1)
        ours = [getattr(contact, name) for name in ("friction", "torsional_friction", "rolling_friction")] if dim > 1 else []
        for value, theirs, least in zip(ours, friction[[0, 2, 3]], (3, 4, 6), strict=False):
            assert (0.0 if value is None else float(value)) == pytest.approx(float(theirs) if dim >= least else 0.0)


def test_distances_of_mujoco(write_mjcf: Write) -> None:
    """Distances of spheres and capsules from each other and from boxes, in random configurations, are MuJoCo's."""
    path = write_mjcf(CROWD)
    mech = quiet(path, contacts="all", ground=False, timestep=0.01, near=False)
    robot, model = read_mjcf(path), mujoco.MjModel.from_xml_path(str(path))
    data, generator = mujoco.MjData(model), np.random.default_rng(1)
    geoms = {str(model.geom(g).name): g for g in range(model.ngeom)}
    compared = 0
    for _ in range(10):
        data.qpos[:] = generator.standard_normal(model.nq)
        mujoco.mj_normalizeQuat(model, data.qpos)
        mujoco.mj_forward(model, data)
        distances = dict(zip(mech.contacts, mech.distances(mjcf_state(mech, robot, qpos=data.qpos)).tolist(), strict=True))
        for name, value in distances.items():
            first, second, *rest = name.split("_")
            kinds = {int(model.geom_type[geoms[g]]) for g in (first, second)}
            if rest or value < 0.05 or kinds == {int(mujoco.mjtGeom.mjGEOM_BOX)}:  # manifolds; MuJoCo's own overlap; separations of boxes
                continue
            theirs = mujoco.mj_geomDistance(model, data, geoms[first], geoms[second], 10.0, None)
            assert value == pytest.approx(theirs, abs=2e-4), name  # nearest points of almost parallel segments are regularized
            compared += 1
    assert compared > 50


def test_a_ball_rests_on_a_crate_on_a_table(write_mjcf: Write) -> None:
    """Geoms of the world and of bodies hold what lies on them; without `contacts="all"`, the ball falls through, and the report says so."""
    table = '<geom name="table" type="box" size=".5 .5 .05" pos="0 0 .45"/>'
    crate = '<body name="crate" pos="0 0 .6001"><freejoint/><geom name="crate" type="box" size=".1 .1 .1"/></body>'
    ball = '<body name="ball" pos="0 0 .7502"><freejoint/><geom name="ball" size=".05"/></body>'
    path = write_mjcf(FLOOR + table + crate + ball)
    mech = quiet(path, contacts="all", ground=False, timestep=0.01)
    assert not mech.load_report.lost
    path_of_all = mech.rollout(mech.initial_state(), steps=50)
    assert not path_of_all.status.any()
    last = path_of_all.z[-1]
    assert float(mech.body_state(last, "ball").x[2]) == pytest.approx(0.75, abs=1e-3)
    report = mech.contact_report(path_of_all.z, path_of_all)
    assert {(pair.body, pair.other) for pair in report.touching(49)} == {("crate", "table"), ("crate", "ball")}
    plain = quiet(path, timestep=0.01)
    assert all(contact.other is None for contact in plain.named_contacts().values())
    text = notes(path)
    assert 'contacts="all" lets bodies touch each other, too' in text and 'contacts="all" adds these' in text


def test_what_does_not_touch_is_reported(write_mjcf: Write) -> None:
    can = '<body name="can" pos="2 0 1"><freejoint/><geom name="can" type="cylinder" size=".1 .1"/></body>'
    ball = '<body name="ball" pos="0 0 1"><freejoint/><geom name="ball" size=".05"/></body>'
    box = '<geom name="box" type="box" size=".1 .1 .1"/>'
    path = write_mjcf(box + can + ball)
    report = quiet(path, contacts="all", ground=False).load_report
    found = {(entry.did, entry.effect, entry.names) for entry in report.of_kind("contacts between bodies")}
    assert found == {("used", "none", ("can-ball",)), ("used", "none", ("can-box",))} and not report.lost
    report = quiet(path, contacts="all", ground=False, near=False).load_report
    found = {(entry.did, entry.names) for entry in report.of_kind("contacts between bodies")}
    assert found == {("ignored", ("can-ball",)), ("approximated", ("can-box",))}
    with pytest.raises(ValueError, match="cylinder and sphere do not touch each other"):
        td.load(path, contacts="all", ground=False, near=False, strict=True)
    egg = '<body name="egg" pos="0 0 3"><freejoint/><geom name="egg" type="ellipsoid" size=".1 .1 .2"/></body>'
    path = write_mjcf(box + can + egg)
    report = quiet(path, contacts="all", ground=False).load_report
    found = {(entry.did, entry.names) for entry in report.of_kind("contacts between bodies")}
    assert found == {("used", (pair,)) for pair in ("can-box", "can-egg", "egg-box")}
    report = quiet(path, contacts="all", ground=False, near=False).load_report
    found = {(entry.did, entry.names) for entry in report.of_kind("contacts between bodies")}
    assert found == {("approximated", ("can-box",)), ("ignored", ("can-egg",)), ("approximated", ("egg-box",))}


def test_files_with_many_pairs_have_near_contacts(write_mjcf: Write) -> None:
    """More than twelve pairs: near contacts of all. A filter that leaves few of them: closed forms."""
    path = write_mjcf(CROWD)
    many = quiet(path, contacts="all", ground=False)
    few = quiet(path, contacts=td.Filter([("ball", "*")]), ground=False)
    assert len(named(many)) > MOST_CLOSED >= len(named(few)) > 3
    assert all(isinstance(contact, NearContact) for contact in many.contacts.values())
    assert not any(isinstance(contact, NearContact) for contact in few.contacts.values())
    told = [entry.reason for entry in many.load_report.of_kind("contacts between bodies")]
    assert any("near contacts of shapes of the kinds box and sphere" in reason for reason in told)


def test_a_filter_leaves_out_pairs(write_mjcf: Write) -> None:
    path = write_mjcf(CROWD)
    every = set(named(quiet(path, contacts=td.Filter(), ground=False)))
    # Links that no step could part touch each other where a filter asks for it.
    assert every - set(named(quiet(path, contacts="all", ground=False))) == {frozenset(("tip", "upper")), frozenset(("nail", "upper"))}
    left = set(named(quiet(path, contacts=td.Filter(exclude=[("ball", "*"), ("finger", "table")]), ground=False)))
    assert left == {pair for pair in every if "ball" not in pair and pair not in ({"tip", "table"}, {"nail", "table"})}
    # Names with "/" are no parts of a scene here, and neighbors touch where the file lets them.
    path = write_mjcf(CROWD.replace('body name="', 'body name="r/'), RULES["parents"])
    assert len(named(quiet(path, contacts=td.Filter(), ground=False))) > len(every)
    one = td.Filter([("r/arm", "r/hand")])
    assert set(named(quiet(path, contacts=one, ground=False))) == {frozenset(("upper", "palm")), frozenset(("upper", "ring"))}
    with pytest.raises(ValueError, match="unknown name 'spoon'"):
        quiet(path, contacts=td.Filter(exclude=[("r/ball", "spoon")]))
    with pytest.raises(ValueError, match=r"contacts is 'some'; allowed: 'collision', 'all', td.Filter\(...\), None"):
        td.load(path, contacts="some")


def test_bodies_that_start_in_each_other_are_named(write_mjcf: Write) -> None:
    assert "bodies of " in (text := notes(write_mjcf(CROWD), contacts="all", ground=False)) and "start in each other" in text
    fixed = quiet(write_mjcf(CROWD), contacts="all", ground=False, floating_base=False)
    assert {"crate", "ball"}.isdisjoint(fixed.bodies) and torch.isfinite(fixed.distances(fixed.initial_state())).all()
    assert frozenset(("upper", "ball")) in named(fixed)  # the ball is part of the world
