"""Contacts between two bodies of a robot file, and of bodies with shapes of the world: from pairs of shapes to modules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torchdojo.elements.bodies import Body
from torchdojo.elements.contacts import Contact, ImpactContact, NonlinearContact
from torchdojo.elements.joints import Joint
from torchdojo.elements.near_rule import MOST_CLOSED, MOST_CORNERS, NearRule
from torchdojo.elements.touching import Filter, Solids, selected, shape_contacts
from torchdojo.geometry.shapes import Shape
from torchdojo.io.report import Findings

__all__ = ["PairInfo", "between_bodies", "of_geometry", "pair_contacts"]

BETWEEN = "contacts between bodies"  # kind of the entries of a report


@dataclass(frozen=True)
class PairInfo:
    """A shape of a body that may touch a shape of another body, or of the world."""

    body: str
    shape: Shape  #: in the frame of the body
    other: str | None  #: body; None: the world
    other_shape: Shape  #: in the frame of the other body, or of the world
    friction: float | None  #: None: a contact without friction
    options: dict[str, Any] = field(default_factory=dict)  #: laws of the contact
    surface: str = "world"  #: name of a shape of the world

    @property
    def names(self) -> tuple[str, str]:
        return self.body, self.surface if self.other is None else self.other


def of_geometry(contacts: Any) -> bool:
    """Whether contacts are made of the collision geometry of a file."""
    return between_bodies(contacts) or (isinstance(contacts, str) and contacts == "collision")


def between_bodies(contacts: Any) -> bool:
    """Whether bodies of a file touch each other."""
    return isinstance(contacts, Filter) or (isinstance(contacts, str) and contacts == "all")


def pair_contacts(
    pairs: Mapping[str, PairInfo],
    bodies: Mapping[str, Body],
    joints: Mapping[str, Joint],
    contacts: Any,
    friction: float | None,
    taken: Iterable[str],
    findings: Findings,
    rule: NearRule,
) -> dict[str, Contact]:
    """The contacts of pairs of shapes, by names that begin with the name of their pair.

    Args:
        contacts: "all" or a `Filter`, by names of bodies and of shapes of the world. friction: of all contacts; None: that of each pair.
        taken: names of other contacts. findings: get the pairs of shapes that have near contacts, no contacts, or points alone.
        rule: which pairs get near contacts.

    Raises:
        ValueError: a filter with unknown names.
    """
    world = {info.surface: info.other_shape for info in pairs.values() if info.other is None}
    solids = Solids(bodies, joints.values(), world)
    if isinstance(contacts, Filter):
        asked = replace(contacts, neighbors=contacts.neighbors or 0)  # the file itself says which neighbors touch
        allowed = {frozenset(pair[:2]) for pair in selected(solids, asked)}
        pairs = {name: info for name, info in pairs.items() if frozenset(info.names) in allowed}
    moving = {name: info for name, info in pairs.items() if not _stay(solids, info)}
    rule.many = rule.near == "auto" and len(moving) > MOST_CLOSED
    result: dict[str, Contact] = {}
    known = set(taken)
    without: dict[str, list[str]] = {}
    points: dict[str, list[str]] = {}
    near: dict[str, list[str]] = {}
    for label, info in moving.items():
        coefficient = info.friction if info.friction is None or friction is None else friction
        model = ImpactContact if coefficient is None else NonlinearContact
        arguments = info.options if coefficient is None else {**info.options, "friction": coefficient}
        linked = info.other is not None and solids.linked(info.body, info.other)
        ends = info.body, info.shape, info.other, info.other_shape
        touching = shape_contacts(*ends, model=model, rule=rule, linked=linked, **arguments)
        kinds = " and ".join(sorted(type(shape).__name__.lower() for shape in (info.shape, info.other_shape)))
        if touching is None:
            without.setdefault(kinds, []).append("-".join(info.names))
            continue
        if touching.by_points:
            points.setdefault(kinds, []).append("-".join(info.names))
        if touching.near:
            near.setdefault(kinds, []).append("-".join(info.names))
        start = len(f"{info.body}_{info.other or 'world'}")
        for name, contact in touching.contacts.items():
            if info.other is None:
                contact.surface_name = info.surface
            name = label + name[start:].removesuffix("_nearest")
            while name in known:
                name += "_"
            known.add(name)
            result[name] = contact
    for kinds, names in near.items():
        findings.add("used", BETWEEN, dict.fromkeys(names), f"near contacts of shapes of the kinds {kinds}", "none")
    if rule.simplified:
        most = 1e3 * max(rule.simplified.values())
        reason = (
            f"hulls touch bodies by {MOST_CORNERS} of their corners, at most {most:.2g} mm inside; mesh='pieces' or fewer corners avoid it"
        )
        findings.add("approximated", "collision meshes", rule.simplified, reason)
    for kinds, names in without.items():
        findings.add("ignored", BETWEEN, dict.fromkeys(names), f"shapes of the kinds {kinds} do not touch each other")
    for kinds, names in points.items():
        findings.add("approximated", BETWEEN, dict.fromkeys(names), f"only points of one of the shapes, {kinds}, touch the other")
    return result


def _stay(solids: Solids, info: PairInfo) -> bool:
    """Whether two shapes never move against each other."""
    still = solids.stands(info.body) and (info.other is None or solids.stands(info.other))
    return still or info.other in solids.group[info.body]
