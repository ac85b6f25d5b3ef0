"""Contacts of links that are closed where a file starts: which leave, and how many places those that stay have."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import torchdojo as td
from torchdojo.elements.near_contact import NearContact, slots_of

# Three links in a row, whose outer ones reach into each other at the middle one, and two fingers that are closed.
ARM = """
<body name="a"><joint name="j1"/><geom name="a" type="capsule" size=".05" fromto="0 0 0 0 0 .32"/>
  <body name="b" pos="0 0 .3"><joint name="j2" axis="0 1 0"/><geom name="b" size=".02"/>
    <body name="c" pos="0 0 .02"><joint name="j3" axis="1 0 0"/><geom name="c" type="capsule" size=".05" fromto="0 0 {start} 0 0 .3"/>
      <body name="left" pos=".02 0 .5"><joint name="l" type="slide" axis="1 0 0" range="-.02 .1" limited="true"
        stiffness="100" springref="-.05"/>
        <geom name="left" type="box" size=".02 .02 .04"/></body>
      <body name="right" pos="-.02 0 .5"><joint name="r" type="slide" axis="-1 0 0" range="-.02 .1" limited="true"
        stiffness="100" springref="-.05"/>
        <geom name="right" type="box" size=".02 .02 .04"/></body>
    </body>
  </body>
</body>
"""
Write = Callable[..., Path]


def load(path: Path, **options) -> td.Mechanism:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return td.load(path, ground=False, timestep=0.005, **options)


def pairs(mech: td.Mechanism) -> set[frozenset[str]]:
    return {frozenset((contact.body, contact.other)) for contact in mech.named_contacts().values()}


def test_links_that_no_step_could_part_do_not_touch(write_mjcf: Write) -> None:
    path = write_mjcf(ARM.format(start=".0"))
    mech, every = load(path, contacts="all"), load(path, contacts=td.Filter())
    gone = pairs(every) - pairs(mech)
    assert gone == {frozenset("ac")}
    (entry,) = [entry for entry in mech.load_report.entries if "no step could part them" in entry.reason]
    assert entry.did == "ignored" and entry.effect == "motion" and set(entry.names[0].split("-")) == {"a", "c"}
    # Without them, the arm moves. With them, joints hold what contacts should part.
    z = mech.initial_state()
    assert not mech.rollout(z, steps=20).status.any()
    assert every.step(every.initial_state()).status.item() != 0
    # Contacts that the caller gives stay as they are.
    own = td.load(path, ground=False, contacts={"own": td.near_contacts("a", td.Sphere(0.05), "c", td.Sphere(0.05))["a_c_near0"]})
    assert list(own.contacts) == ["own"]
    # Links that are apart touch as before, however near they are.
    assert frozenset("ac") in pairs(load(write_mjcf(ARM.format(start=".12")), contacts="all"))


def test_fingers_that_start_closed_have_places_for_their_faces(write_mjcf: Write) -> None:
    path = write_mjcf(ARM.format(start=".12"))
    mech = load(path, contacts="all", near=True)
    fingers = [c for c in mech.named_contacts().values() if {c.body, getattr(c, "other", None)} == {"left", "right"}]
    assert all(isinstance(slot, NearContact) for slot in fingers)
    assert len(fingers) == slots_of(*fingers[0].shapes) > slots_of(*fingers[0].shapes, linked=True)
    assert [name for name in mech.contacts if "left" in name and "right" in name] == [
        name for name in mech.contacts if mech.contacts[name] in fingers
    ]
    assert len(load(path, contacts="all", near=True, slots=5).contacts) < len(mech.contacts)
    given = [c for c in load(path, contacts="all", near=True, slots=5).named_contacts().values() if {c.body, c.other} == {"left", "right"}]
    assert len(given) == 5  # as the caller says
    squeezed = mech.rollout(mech.initial_state(), steps=20)  # by springs
    assert not squeezed.status.any()
    assert float(mech.distances(squeezed.z[-1]).min()) > 0
