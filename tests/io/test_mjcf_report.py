"""The MJCF reader reports content that has no counterpart: `mech.load_report`, one warning per file, strict=True."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
from mjcf_text import FLOOR, GEOM, TREE, Write, X, body, free_body, hinge, notes, quiet, slide

from torchdojo.io import load

mujoco = pytest.importorskip("mujoco")

PAIR = body(hinge("h1", X), inside=body(hinge("h2", X), '<inertial mass="1" pos="0 0 0" diaginertia="1 1 1"/>', name="b"), name="a")
LOOSE = PAIR.replace("<geom", '<geom contype="0" conaffinity="0"')
TENDON = '<tendon><fixed name="t" {}><joint joint="h1" coef="1"/></fixed></tendon>'
STRING = '<tendon><spatial name="t"><site site="w"/><site site="v"/></spatial></tendon><equality><tendon name="e" tendon1="t"/></equality>'
MOCAP = '<body name="mo" mocap="true" pos="1 2 3"/>'
FLOATING = FLOOR + free_body('<geom name="g" size=".1" {}/>')
#: content -> the world of the file, what stands beside it, and (effect, what is done, kind, names)
CASES: dict[str, tuple[str, str, tuple[str, str, str, tuple[str, ...]]]] = {
    "tendon with a spring": (LOOSE, TENDON.format('stiffness="3"'), ("motion", "ignored", "tendons", ("t",))),
    "tendon without forces": (LOOSE, TENDON.format(""), ("none", "ignored", "tendons without forces", ("t",))),
    "medium": (LOOSE, '<option density="1.2"/>', ("motion", "ignored", "the medium", ("density 1.2 kg/m^3, viscosity 0 Pa s",))),
    "wind": (LOOSE, '<option density="1.2" wind="1 0 0"/>', ("motion", "ignored", "wind", ("wind",))),
    "gravity compensation": (LOOSE.replace('name="b"', 'name="b" gravcomp="1"'), "", ("motion", "ignored", "gravity compensation", ("b",))),
    "mocap body": (LOOSE + MOCAP, "", ("motion", "approximated", "mocap bodies", ("mo",))),
    "weld to a mocap body": (LOOSE + MOCAP, '<equality><weld name="w" body1="mo" body2="b"/></equality>',
                             ("motion", "approximated", "constraints to mocap bodies", ("w",))),
    "negative damping": (LOOSE.replace('name="h2"', 'name="h2" damping="1 -2"'), "",
                         ("motion", "approximated", "springs and dampers", ("h2",))),
    "curve of a ball": (body('<joint name="b" type="ball" stiffness="1 2"/>'), "",
                        ("motion", "approximated", "springs and dampers", ("b",))),
    "softness of a limit": (body(hinge("h", X, 'range="0 1" solreflimit=".1 1"')), "",
                            ("motion", "approximated", "solref and solimp of limits", ("h",))),
    "softness of friction": (body(hinge("h", X, 'frictionloss="1" solreffriction=".1 1"')), "",
                             ("motion", "approximated", "solref and solimp of joint friction", ("h",))),
    "margin of a limit": (body(hinge("h", X, 'range="0 1" margin=".1"')), "", ("motion", "approximated", "margin of limits", ("h",))),
    "softness of a geom": (FLOATING.format('solimp=".8 .9 .01"'), "", ("motion", "approximated", "solref and solimp of geoms", ("g",))),
    "margin of a geom": (FLOATING.format('margin=".01"'), "", ("motion", "approximated", "margin and gap of geoms", ("g",))),
    "friction of a direction": (FLOATING.format(""), '<contact><pair name="p" geom1="g" geom2="floor" friction=".1 .3 0 0 0"/></contact>',
                                ("motion", "approximated", "friction of pairs", ("p",))),
    "equality of a spatial tendon": (LOOSE.replace("<inertial", '<site name="v"/><inertial') + '<site name="w" pos="3 3 3"/>', STRING,
                                     ("motion", "ignored", "equality constraints of spatial tendons", ("e",))),
    "inactive equality": (LOOSE, '<equality><weld name="e" body1="a" active="false"/></equality>',
                          ("none", "ignored", "equality constraints", ("e",))),
    "muscle": (LOOSE, '<actuator><muscle name="m" joint="h1" lengthrange="0 1"/></actuator>',
               ("motion", "approximated", "actuators with activations, on tendons and on sites", ("m",))),
    "motor of a tendon": (LOOSE, TENDON.format("") + '<actuator><motor name="m" tendon="t"/></actuator>',
                          ("motion", "ignored", "actuators of tendons, sites and bodies", ("m",))),
    "motor between sites": (LOOSE.replace("<inertial", '<site name="v"/><inertial') + '<site name="w" pos="3 3 3"/>',
                            '<actuator><motor name="m" site="v" refsite="w" gear="1 0 0 0 0 0"/></actuator>',
                            ("motion", "approximated", "actuators with activations, on tendons and on sites", ("m",))),
    "slider-crank": (LOOSE.replace("<inertial", '<site name="v"/><inertial') + '<site name="w" pos="3 3 3"/>',
                     '<actuator><motor name="m" cranksite="v" slidersite="w" cranklength="9"/></actuator>',
                     ("motion", "approximated", "actuators with activations, on tendons and on sites", ("m",))),
    "motor of a ball": (body('<joint name="b" type="ball"/>'), '<actuator><motor name="m" joint="b"/></actuator>',
                        ("motion", "approximated", "actuators with activations, on tendons and on sites", ("m",))),
    "actuator of a body": (LOOSE, '<actuator><adhesion name="m" body="b" ctrlrange="0 1"/></actuator>',
                           ("motion", "ignored", "actuators of tendons, sites and bodies", ("m",))),
    "obstacle": (PAIR + '<geom name="rock" size="1" pos="9 0 0"/>', "", ("motion", "ignored", "geoms of the world", ("rock",))),
    "bodies that touch": (PAIR + body(hinge("h3", X), name="c"), "", ("motion", "ignored", "contacts between bodies", ("a-c",))),
    "sensors": (LOOSE, '<sensor><e_kinetic name="e"/></sensor>', ("none", "ignored", "sensors", ("e",))),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_content_without_a_counterpart_is_reported(write_mjcf: Write, case: str) -> None:
    world, rest, expected = CASES[case]
    path = write_mjcf(world, rest)
    report = quiet(path).load_report
    found = [entry for entry in report.entries if (entry.effect, entry.did, entry.kind, entry.names) == expected]
    assert len(found) == 1, report
    assert found[0].reason
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        load(path)
    assert len(caught) == (1 if report.lost else 0)  # one for a file, whatever it has
    if expected[0] == "motion":
        with pytest.raises(ValueError, match=rf"strict=True, and {len(report.lost)} kinds of content do not act"):
            load(path, strict=True)


def test_files_of_which_nothing_is_lost_load_strictly_and_silently(write_mjcf: Write) -> None:
    path = write_mjcf(FLOATING.format("") + "<light/>", '<sensor><framepos objtype="geom" objname="g"/></sensor>')
    assert notes(path, strict=True) == ""
    assert [(entry.kind, entry.count) for entry in load(path).load_report.entries] == [("lights", 1)]


def test_contacts_count_where_they_are_asked_for(write_mjcf: Write) -> None:
    path = write_mjcf(PAIR + body(hinge("h3", X), name="c"))
    assert not quiet(path, contacts=None).load_report.entries


@pytest.mark.parametrize(("condim", "spin", "roll"), [(1, None, None), (3, None, None), (4, 0.02, None), (6, 0.02, 0.003)])
def test_condim_says_which_friction_acts(write_mjcf: Write, condim: int, spin: float | None, roll: float | None) -> None:
    """MuJoCo's coefficients of torsional and rolling friction are lengths, as ours are."""
    contact = quiet(write_mjcf(FLOATING.format(f'condim="{condim}" friction="1.2 .02 .003"'))).contacts["g"]
    laws = [None if name not in contact.fields else float(getattr(contact, name)) for name in ("torsional_friction", "rolling_friction")]
    assert laws == [spin, roll]
    assert (None if condim == 1 else float(contact.friction)) == (None if condim == 1 else 1.2)


@pytest.mark.parametrize(
    ("world", "ground", "touching"),
    [
        (FLOOR + free_body(GEOM), "auto", 8),
        (free_body(GEOM), "auto", 8),
        (free_body(GEOM), False, 0),
        (body(hinge("h", X)), "auto", 0),
        (body(hinge("h", X)), True, 8),
        (body(slide("s", '"0 0 1"')), "auto", 0),
        (FLOOR + body(hinge("h", X)), "auto", 8),
    ],
)
def test_ground(write_mjcf: Write, world: str, ground: bool | str, touching: int) -> None:
    """A file without a plane and with a fixed base gets none, unless it is asked for."""
    assert len(quiet(write_mjcf(world), ground=ground).contacts) == touching


def test_ground_of_an_unknown_kind(write_mjcf: Write) -> None:
    with pytest.raises(ValueError, match=r"ground is 'floor'; allowed: 'auto', True"):
        load(write_mjcf(TREE), ground="floor")


def test_a_hand_that_a_mocap_body_leads_moves(write_mjcf: Write, tmp_path: Path) -> None:
    """A rigid weld to a pose that the hand cannot reach would have no solution."""
    path = write_mjcf(LOOSE + '<body name="mo" mocap="true" pos="9 9 9"/>', '<equality><weld name="w" body1="mo" body2="b"/></equality>')
    mech = quiet(path)
    run = mech.rollout(mech.initial_state(), steps=5)
    assert (run.status == 0).all()
    assert list(mech.joints) == ["h1", "h2", "w"]
    assert mech.tree_joints == ["h1", "h2"]
