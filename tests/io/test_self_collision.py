"""Robots of files with near contacts: the pairs and distances of MuJoCo, SRDF, pieces of meshes, slots, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mjcf_text import Write, quiet
from test_mjcf_pairs import CROWD, RULES

import torchdojo as td
from conftest import shared_path
from torchdojo.elements.near_contact import NearContact
from torchdojo.engine.near_gaps import Cores
from torchdojo.engine.near_set import near_pairs
from torchdojo.io import mjcf_state, read_mjcf
from torchdojo.io.mjcf.model import compile_mjcf
from torchdojo.viewer.playback import Playback

mujoco = pytest.importorskip("mujoco")
ROUNDED = 1.5e-3  # [m] near contacts round edges and corners, and cylinders are prisms
CAN = '<geometry><cylinder radius="0.1" length="0.2"/></geometry>'


def link(name: str, geometry: str = CAN, more: str = "") -> str:
    inertia = '<inertia ixx="0.01" ixy="0" ixz="0" iyy="0.01" iyz="0" izz="0.01"/>'
    return f'<link name="{name}"><inertial><mass value="1"/>{inertia}</inertial><collision>{geometry}</collision>{more}</link>'


def hinge(parent: str, child: str, limit: float = 3.0) -> str:
    bounds = f'<limit lower="{-limit}" upper="{limit}" effort="1" velocity="1"/><axis xyz="0 1 0"/>'
    ends = f'<parent link="{parent}"/><child link="{child}"/><origin xyz="0 0 0.3"/>'
    return f'<joint name="{parent}_{child}" type="revolute">{ends}{bounds}</joint>'


def chain(write_urdf: Callable[..., Path], limit: float = 3.0, geometry: str = CAN) -> Path:
    """Three cans above each other, the first part of the world, of which only the first and the last are no neighbors."""
    friction = '<contact><lateral_friction value="{}"/></contact>'
    links = [link("a", geometry, friction.format(0.5)), link("b", geometry), link("c.x", geometry, friction.format(0.8))]
    return write_urdf('<link name="world"/>', *links, hinge("world", "a"), hinge("a", "b", limit), hinge("b", "c.x", limit))


# -- MuJoCo's pairs and distances ----------------------------------------------------------------------------------------------------------


def random_states(mech: td.Mechanism, path: Path, count: int) -> tuple[torch.Tensor, list[Any], Any]:
    """States (count, 13 nb) of random coordinates, and MuJoCo's model and data at each."""
    robot, model = read_mjcf(path), compile_mjcf(path).model
    model.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_MULTICCD) if hasattr(mujoco.mjtDisableBit, "mjDSBL_MULTICCD") else 0
    generator, states, every = np.random.default_rng(0), [], []
    for _ in range(count):
        data = mujoco.MjData(model)
        mujoco.mj_integratePos(model, data.qpos, generator.uniform(-3, 3, model.nv), 1.0)
        mujoco.mj_forward(model, data)
        states.append(mjcf_state(mech, robot, qpos=data.qpos))
        every.append(data)
    return torch.stack(states), every, model


def their_gaps(links: list[str | None], model: Any, data: Any) -> dict[frozenset[str], float]:
    """Pairs of bodies that MuJoCo lets touch and finds in contact, with the least distance. links: MJCF body -> our body."""
    found = dict[frozenset[str], float]()
    for contact in data.contact:
        bodies = [links[int(model.geom_bodyid[g])] for g in contact.geom]
        if None not in bodies and bodies[0] != bodies[1]:
            pair = frozenset(map(str, bodies))
            found[pair] = min(found.get(pair, 0.0), float(contact.dist))
    return found


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("unitree_h1/h1.xml", "unitree_a1/a1.xml")]


@pytest.mark.parametrize("name", ["humanoid/humanoid.xml", *SLOW])
def test_pairs_that_mujoco_sees(name: str) -> None:
    """At random poses, the pairs of bodies in contact are MuJoCo's; depths of balls and capsules are, too."""
    path = shared_path("models", *name.split("/"))
    mech = quiet(path, contacts="all", near=True, ground=False)
    z, every, model = random_states(mech, path, 8)
    pairs = near_pairs(mech)
    gaps = Cores(pairs).gaps(z, 0.0)
    size = sum(piece.stop - piece.start for piece in mech.impulse_layout.values())
    report = mech.contact_report(z, torch.zeros(len(z), size, dtype=torch.float64))
    round_only = all(isinstance(shape, td.Sphere | td.Capsule) for body in mech.bodies.values() for shape in body.shapes)
    links, seen = [None, *(info.body for info in read_mjcf(path).links.values())], 0
    for row, data in enumerate(every):
        expected = their_gaps(links, model, data)
        ours: dict[frozenset[str], float] = {}
        for pair, gap in zip(pairs, gaps[row].tolist(), strict=True):
            key = frozenset((pair.slots[0].body, str(pair.slots[0].other)))
            ours[key] = min(ours.get(key, 1.0), gap)
        told = {
            frozenset(pair) for pair, gap in zip(report.pairs, report.gaps[row].tolist(), strict=True) if gap < 0 and "world" not in pair
        }
        for key in expected.keys() | {key for key, gap in ours.items() if gap < -ROUNDED}:
            theirs, gap = expected.get(key), ours[key]
            if theirs is None or theirs > -ROUNDED:
                assert gap > -2 * ROUNDED
                continue
            seen += 1
            assert gap < 0
            if round_only:
                assert key in told
                # MuJoCo gives parallel capsules two contacts, whose depths are those of their ends.
                assert gap == pytest.approx(theirs, abs=1e-6)
    assert seen >= 4


def test_distances_that_mujoco_sees(write_mjcf: Write) -> None:
    """Gaps of near contacts are MuJoCo's distances: of balls and capsules to 1e-6, of boxes up to their rounded corners."""
    path = write_mjcf(CROWD)
    mech = quiet(path, contacts="all", near=True, ground=False)
    z, every, model = random_states(mech, path, 20)
    names = {id(contact): name for name, contact in mech.named_contacts().items()}
    pairs = near_pairs(mech)
    gaps, compared = Cores(pairs).gaps(z, 1e3), 0
    for column, pair in enumerate(pairs):
        first, second = (model.geom(name) for name in names[id(pair.slots[0])].split("_near")[0].split("_"))
        boxes = [int(model.geom_type[geom.id]) == int(mujoco.mjtGeom.mjGEOM_BOX) for geom in (first, second)]
        corner = (3**0.5 - 1) * sum(core.radius for core, box in zip(pair.slots[0].shapes, boxes, strict=True) if box)
        for row, data in enumerate(every):
            theirs = mujoco.mj_geomDistance(model, data, first.id, second.id, 10.0, None)
            ours = float(gaps[row, column])
            if theirs > 1e-3:  # MuJoCo's depths of boxes are those of single contacts
                assert theirs - 1e-6 <= ours <= theirs + corner + 1e-6, names[id(pair.slots[0])]
                compared += 1
    assert compared > 50


@pytest.mark.parametrize("rule", RULES)
def test_rules_of_mujoco(write_mjcf: Write, rule: str) -> None:
    """contype, <exclude>, <pair> and the parent filter choose the same pairs, with the same friction, whatever the kind of contact."""
    path = write_mjcf(CROWD, RULES[rule])
    closed, near = (quiet(path, contacts="all", near=near, ground=False) for near in (False, True))

    def frictions(mech: td.Mechanism) -> dict[str, list[float]]:
        found: dict[str, list[float]] = {}
        for name, contact in mech.named_contacts().items():
            laws = [getattr(contact, law, None) for law in ("friction", "torsional_friction", "rolling_friction")]
            found.setdefault("_".join(name.split("_")[:2]), [0.0 if law is None else float(law) for law in laws])
        return found

    assert frictions(near) == frictions(closed)
    assert all(isinstance(contact, NearContact) for contact in near.contacts.values())
    assert not near.load_report.of_kind("friction")


# -- URDF ----------------------------------------------------------------------------------------------------------------------------------


def pairs(mech: td.Mechanism) -> set[frozenset[str]]:
    return {frozenset((c.body, str(c.other))) for c in mech.named_contacts().values()}


def test_srdf(write_urdf: Callable[..., Path], tmp_path: Path) -> None:
    path = chain(write_urdf)
    mech = quiet(path, contacts="all")
    assert pairs(mech) == {frozenset(("a", "c_x"))} and len(mech.contacts) == 12
    assert all(float(contact.friction) == pytest.approx(0.4) for contact in mech.named_contacts().values())
    (entry,) = mech.load_report.of_kind("contacts between bodies")
    assert (entry.did, entry.effect, entry.names) == ("used", "none", ("a-c_x",)) and "near contacts" in entry.reason
    (off,) = quiet(path).load_report.of_kind("pairs of bodies")
    assert off.count == 3 and 'contacts="all"' in off.reason
    srdf = tmp_path / "robot.srdf"
    entry_text = '<disable_collisions link1="c.x" link2="a" reason="Never"/>'
    for text, expected in (
        (entry_text, set()),
        ('<disable_collisions link1="a" link2="b"/><group name="arm"/>', pairs(mech)),
        ('<disable_default_collisions link="a"/>', set()),
        ('<disable_default_collisions link="a"/><enable_collisions link1="a" link2="c.x"/>', pairs(mech)),
    ):
        srdf.write_text(f'<robot name="r">{text}</robot>')
        assert pairs(quiet(path, contacts="all", srdf=srdf)) == expected
    srdf.write_text(f'<robot name="r">{entry_text}</robot>')
    assert quiet(path, contacts="all", srdf=srdf).load_report.of_kind("<disable_collisions>")[0].names == ("a-c_x",)
    for text, message in (
        ('<robot><disable_collisions link1="a" link2="spoon"/></robot>', "link 'spoon', which the robot lacks; links are"),
        ('<robot><disable_collisions link1="a" link2="a"/></robot>', "has link 'a' twice"),
        ('<robot><disable_collisions link1="a"/></robot>', "lacks the attribute link2"),
        ("<srdf/>", "the root element is <srdf>"),
    ):
        srdf.write_text(text)
        with pytest.raises(ValueError, match=message):
            td.load(path, contacts="all", srdf=srdf)
    with pytest.raises(FileNotFoundError, match="SRDF file"):
        td.load(path, srdf=tmp_path / "none.srdf")


def test_never_touching_with_near_contacts(write_urdf: Callable[..., Path]) -> None:
    """The last can comes down to the first one if its hinges bend by about 2 rad each; slots that no step has filled say nothing."""
    free, stiff = (quiet(chain(write_urdf, limit), contacts="all") for limit in (3.0, 0.5))
    assert stiff.never_touching(200) == [("a", "c_x")] and free.never_touching(200) == []
    lowest = (0.3 + 0.6 * np.cos(0.5)) - 0.3 - 0.2  # cans of 0.2 at 0.3 and, at least, there
    assert stiff.never_touching(200, margin=lowest + 0.1) == []
    assert not quiet(chain(write_urdf, 0.5), contacts=td.Filter(exclude=stiff.never_touching(200))).contacts
    z = stiff.initial_state().expand(3, -1)
    stiff.step(z)
    assert stiff.never_touching(100) == [("a", "c_x")]


def test_bad_numbers_and_names(write_urdf: Callable[..., Path]) -> None:
    path = chain(write_urdf)
    for options, message in (
        ({"near": "yes"}, "near: got 'yes'; allowed: 'auto'"),
        ({"slots": 0}, "slots: got 0; allowed: None, or"),
        ({"slots": True}, "slots: got True"),
        ({"contacts": td.Filter(exclude=[("a", "spoon")])}, "unknown name 'spoon'"),
        ({"mesh": "cut"}, "mesh is 'cut'; allowed: 'hull', 'skip'"),
    ):
        with pytest.raises(ValueError, match=message):
            td.load(path, **{"contacts": "all", **options})
    assert len(quiet(path, contacts="all", slots=3).contacts) == 3 and not quiet(path, contacts="all", near=False).contacts


def test_edits_have_near_contacts(write_urdf: Callable[..., Path]) -> None:
    mech = quiet(chain(write_urdf))
    names = mech.add_contact("a", "c_x", slots=5, friction=0.3)
    assert len(names) == 5 and all(isinstance(mech.contacts[name], NearContact) for name in names)
    assert mech.remove_contact("a", "c_x") == names and not mech.contacts
    for pair, message in ((("a", "a"), "a contact is between two different bodies"), (("a", "spoon"), "unknown name 'spoon'")):
        with pytest.raises(ValueError, match=message):
            mech.add_contact(*pair)
    with pytest.raises(ValueError, match="Cylinder and Cylinder, which have no contacts"):
        mech.add_contact("a", "c_x", near=False)


# -- meshes --------------------------------------------------------------------------------------------------------------------------------


def test_meshes_as_hulls_or_pieces(write_urdf: Callable[..., Path], tmp_path: Path) -> None:
    """An L: its pieces fill it, and each of them touches."""
    pytest.importorskip("trimesh"), pytest.importorskip("coacd")
    section = [(0, 0), (0.4, 0), (0.4, 0.1), (0.1, 0.1), (0.1, 0.4), (0, 0.4)]
    vertices = [(x, y, z) for z in (0.0, 0.2) for x, y in section]
    sides = [(i, (i + 1) % 6, (i + 1) % 6 + 6, i + 6) for i in range(6)]
    faces = [triangle for a, b, c, d in sides for triangle in ((a, b, c), (a, c, d))]
    faces += [t for k in range(1, 5) for t in ((0, k + 1, k), (6, 6 + k, 7 + k))]
    lines = [f"v {x} {y} {z}" for x, y, z in vertices] + [f"f {a + 1} {b + 1} {c + 1}" for a, b, c in faces]
    (tmp_path / "corner.obj").write_text("\n".join(lines))
    corner = link("l", '<geometry><mesh filename="corner.obj"/></geometry>')
    joints = [hinge("world", "base"), hinge("base", "l"), hinge("world", "m")]
    path = write_urdf('<link name="world"/>', link("base"), corner, link("m", CAN), *joints)
    hull, pieces = (quiet(path, contacts="all", mesh=mode) for mode in ("hull", "pieces"))
    shapes = [mech.bodies["l"].shapes[0] for mech in (hull, pieces)]
    assert not shapes[0].pieces and len(shapes[1].pieces) >= 2
    counts = [
        len([pair for pair in near_pairs(mech) if {pair.slots[0].body, pair.slots[0].other} == {"l", "m"}]) for mech in (hull, pieces)
    ]
    assert counts == [1, len(shapes[1].pieces)]
    volume = sum(float(piece.volume) for piece in shapes[1].pieces)
    assert volume == pytest.approx(0.2 * 0.07, rel=0.05) and float(shapes[0].volume) > 0.02


# -- pages ---------------------------------------------------------------------------------------------------------------------------------


def test_pages_of_robots_with_near_contacts(write_urdf: Callable[..., Path], tmp_path: Path) -> None:
    """Trajectories, batches of them and states alone are drawn, whatever batch the last step had."""
    mech = quiet(chain(write_urdf), contacts="all")
    z = mech.initial_state(a_b={"q": 1.2}, **{"b_c_x": {"q": 1.2}})
    path = mech.rollout(z.expand(2, -1), steps=3)
    assert len(Playback.batch(mech, path)) == 2
    mech.step(z)
    for trajectory in (path, path.z[0], mech.rollout(z, steps=3)):
        for playback in Playback.batch(mech, trajectory):
            assert np.isfinite(playback.contact_points).all()
    mech.animate(path.z[0], tmp_path / "page.html")
    assert (tmp_path / "page.html").stat().st_size > 1000
