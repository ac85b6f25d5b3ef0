"""The pairs of bodies that may touch, by name, and the contacts of their shapes.

Pairs of shapes without a closed form (geometry/pairs.py) get near contacts (near_contact.py), or one by points alone, or none. The last two
are returned by name, so that nothing is lost without a word.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from torch import Tensor

from torchdojo.elements.bodies import Body
from torchdojo.elements.contacts import Contact
from torchdojo.elements.joints import Fixed, Floating, Joint
from torchdojo.elements.manifolds import SHARP, contact_manifold
from torchdojo.elements.near_rule import NearRule, pieces_of
from torchdojo.geometry.grids import DistanceGrid
from torchdojo.geometry.heights import HeightField
from torchdojo.geometry.shapes import Box, Capsule, Ellipsoid, Shape, Sphere
from torchdojo.geometry.surface_points import surface_points
from torchdojo.geometry.world import Plane, World
from torchdojo.parameters import warn_user

__all__ = ["Filter", "Made", "Pair", "Solids", "Touching", "added", "contacts_of", "own_part", "removed", "selected", "shape_contacts"]

PAIRED = (Sphere, Capsule, Box, Ellipsoid)
MOST_NAMED = 6  # pairs that a message names
Names = tuple[str, str]


@dataclass(frozen=True)
class Filter:
    """The pairs of a scene that may touch: ``contacts=td.Filter([("robot", "crate"), ("crate", "*")])``.

    A name stands for a body or a fixed shape, for all bodies of a part ("robot"), or for what a pattern matches ("robot/*_foot").

    Args:
        groups: pairs of names that may touch; None: all.
        exclude: pairs of names that do not touch.
        neighbors: None: bodies of one part have no other contacts than those that the part brings with it. A number: they touch each other
            where they are more than this number of joints apart; 1 leaves out those that a joint connects. Bodies without shapes do not
            count as joints in between. Bodies that fixed joints connect are one, and never touch.

    Raises:
        ValueError: entries that are no pairs of names, a number of neighbors below 0.
    """

    groups: Iterable[Names] | None = None
    exclude: Iterable[Names] = ()
    neighbors: int | None = None

    def __post_init__(self) -> None:
        if self.groups is not None:
            object.__setattr__(self, "groups", checked("Filter.groups", self.groups))
        object.__setattr__(self, "exclude", checked("Filter.exclude", self.exclude))
        number = self.neighbors
        if number is not None and (isinstance(number, bool) or not isinstance(number, int) or number < 0):
            raise ValueError(f"Filter.neighbors: got {number!r}; allowed: None, or whole numbers of joints, 0 or more")


class Pair(NamedTuple):
    """A body and another body, or a fixed shape or plane. asked: whether the user named both in full."""

    body: str
    other: str
    asked: bool


class Touching(NamedTuple):
    """Contacts of two shapes by name. by_points: points of one of the shapes alone stand for it. near: they are near contacts."""

    contacts: dict[str, Contact]
    by_points: bool
    near: bool = False


class Made(NamedTuple):
    """Contacts by name, and the pairs that got none, or points alone, each with the reason: "robot/hand-bowl" -> "Mesh and Box"."""

    contacts: dict[str, Contact]
    left_out: dict[str, str]
    by_points: dict[str, str]

    def message(self) -> str:
        """A sentence on the pairs without full contacts; "" where there are none."""
        said = []
        if self.left_out:
            said.append(
                f"no contacts between {_listed(self.left_out)}: spheres, capsules, boxes, cylinders, ellipsoids and solid hulls touch each "
                "other (near contacts with model=td.NonlinearContact or td.ImpactContact, sizes without batches)"
            )
        if self.by_points:
            said.append(
                f"only points of one shape, and no edges or faces, touch the other between {_listed(self.by_points)}; on height fields, "
                "pitch= lets edges and faces touch"
            )
        return "; ".join(said)


def _listed(pairs: Mapping[str, str]) -> str:
    some = [f"{pair} ({reason})" for pair, reason in list(pairs.items())[:MOST_NAMED]]
    return ", ".join(some) + (f", and {len(pairs) - len(some)} more" if len(pairs) > len(some) else "")


def checked(label: str, pairs: Any) -> tuple[Names, ...]:
    """Pairs of names.

    Raises:
        ValueError: something else.
    """
    if isinstance(pairs, (str, Mapping)) or not isinstance(pairs, Iterable):
        raise ValueError(f"{label}: got {pairs!r}; allowed: a list of pairs of names, [('robot', 'crate'), ...]")
    result = []
    for pair in pairs:
        if isinstance(pair, str) or not isinstance(pair, Sequence) or len(pair) != 2 or not all(isinstance(name, str) for name in pair):
            raise ValueError(f"{label}: got the entry {pair!r}; allowed: pairs of names, ('robot', 'crate')")
        result.append((pair[0], pair[1]))
    return tuple(result)


def own_part(name: str) -> str:
    """The part of a scene that a body belongs to: "robot" of "robot/hand"."""
    return name.partition("/")[0]


class Solids:
    """All that can touch: bodies and their joints, and what stands still in the world, by name."""

    def __init__(self, bodies: Mapping[str, Body], joints: Iterable[Joint] = (), world: Mapping[str, World] | None = None) -> None:
        self.bodies, self.world = bodies, world or {}
        self.names = [*bodies, *self.world]
        self.group: dict[str | None, set[str | None]] = {name: {name} for name in (None, *bodies)}  # bodies that fixed joints make one
        self.joints = list(joints)
        for joint in self.joints:
            ends = [self.group[name] for name in joint.body_names]
            if isinstance(joint, Fixed) and ends[0] is not ends[1]:
                merged = ends[0] | ends[1]
                self.group.update({name: merged for name in merged})
        self.next: dict[int, list[set[str | None]]] = {}
        for joint in self.joints:
            # Joints with the world make no neighbors: two robots on one floor may touch.
            if None in joint.body_names or isinstance(joint, (Fixed, Floating)):
                continue
            group, neighbor = (self.group[name] for name in joint.body_names)
            self.next.setdefault(id(group), []).append(neighbor)
            self.next.setdefault(id(neighbor), []).append(group)

    def stands(self, name: str) -> bool:
        """Whether it cannot move: a fixed shape, or a body that fixed joints connect with the world."""
        return name in self.world or None in self.group[name]

    def within(self, name: str, joints: int) -> set[str | None]:
        """The bodies that are at most this number of joints away, with the body itself and those fixed to it.

        Bodies without shapes do not count: the readers of files put light ones between the joints of a hip.
        """
        reached = {id(self.group[name]): self.group[name]}
        edge = list(reached.values())
        for _ in range(joints):
            ahead: list[set[str | None]] = []
            while edge:
                group = edge.pop()
                for other in self.next.get(id(group), []):
                    if id(other) not in reached:
                        reached[id(other)] = other
                        (ahead if any(self.bodies[one].shapes for one in other if one is not None) else edge).append(other)
            edge = ahead
        return set().union(*reached.values())

    def linked(self, name: str, other: str) -> bool:
        """Whether joints, but for those with the world, connect two bodies."""
        if name in self.world or other in self.world:
            return False
        return other in self.within(name, len(self.bodies))

    def matching(self, label: str, pattern: str) -> list[str]:
        """The names that a name of a body, of a part, or a pattern stands for.

        Raises:
            ValueError: none.
        """
        inside = pattern + "/"
        matches = [name for name in self.names if name == pattern or name.startswith(inside) or fnmatchcase(name, pattern)]
        if not matches:
            parts = list(dict.fromkeys(own_part(name) for name in self.names if "/" in name))
            raise ValueError(
                f"{label}: unknown name {pattern!r}; {f'parts are {parts}, ' if parts else ''}bodies and fixed shapes {self.names}"
            )
        return matches


def selected(solids: Solids, contacts: Any) -> list[Pair]:
    """The pairs that may touch, bodies first, in the order of the names.

    Args:
        contacts: "all", a `Filter`, or a list of pairs of names as in `Filter.groups`. Two bodies that a list names in full may be
            neighbors, and of one part.

    Raises:
        ValueError: unknown names, a pair of one body or of two things that stand, entries that select no pair, something else than these
            three.
    """
    asked: tuple[Names, ...] = ()
    if isinstance(contacts, Filter):
        rule = contacts
    elif isinstance(contacts, str) and contacts == "all":
        rule = Filter()
    elif isinstance(contacts, str) or not isinstance(contacts, Iterable):
        raise ValueError(f"contacts: got {contacts!r}; allowed: 'all', None, a list of pairs of names, or td.Filter(...)")
    else:
        asked = checked("contacts", contacts)
        rule = Filter(groups=asked)
    named = {_named(solids, pair) for pair in asked if all(name in solids.names for name in pair)}
    groups = None if rule.groups is None else {names: _expanded(solids, "contacts", names) for names in rule.groups}
    allowed = None if groups is None else set().union(*groups.values())
    refused = set().union(*(_expanded(solids, "contacts: exclude", names) for names in rule.exclude))
    result = []
    for a, b in itertools.combinations(solids.names, 2):
        pair = frozenset((a, b))
        if (allowed is not None and pair not in allowed) or pair in refused or (solids.stands(a) and solids.stands(b)):
            continue
        if pair in named or _may_touch(solids, a, b, rule.neighbors):
            result.append(Pair(a, b, pair in named))
    kept = {frozenset(pair[:2]) for pair in result}
    for names, expanded in (groups or {}).items():
        if not expanded & (kept | refused):
            raise ValueError(
                f"contacts: {names!r} selects no two things that may touch; bodies of one part do so with td.Filter(neighbors=1), or where "
                "a list names both in full, and one of the two must be able to move"
            )
    return result


def _may_touch(solids: Solids, a: str, b: str, neighbors: int | None) -> bool:
    if b in solids.world:
        return True
    if neighbors is None:
        return own_part(a) != own_part(b) and b not in solids.within(a, 1)
    return b not in solids.within(a, neighbors)


def _named(solids: Solids, pair: Names) -> frozenset[str]:
    if pair[0] == pair[1]:
        raise ValueError(f"contacts: got the pair {pair!r}; a contact is between two different bodies")
    if all(solids.stands(name) for name in pair):
        raise ValueError(f"contacts: got the pair {pair!r}, of which neither can move; allowed: at least one body that moves")
    if all(name in solids.bodies for name in pair) and pair[0] in solids.group[pair[1]]:
        raise ValueError(f"contacts: got the pair {pair!r}, which fixed joints make one; allowed: bodies that move against each other")
    return frozenset(pair)


def _expanded(solids: Solids, label: str, pair: Names) -> set[frozenset[str]]:
    first, second = (solids.matching(label, name) for name in pair)
    return {frozenset((a, b)) for a in first for b in second if a != b}


# -- contacts ----------------------------------------------------------------------------------------------------------------------------


def contacts_of(solids: Solids, pairs: Iterable[Pair], model: Callable[..., Contact], rule: NearRule, **arguments: Any) -> Made:
    """Contacts of the shapes of each pair, as `shape_contacts` makes them.

    Args:
        rule: chooses the pairs that get near contacts.

    Raises:
        ValueError: a pair that the user named, without shapes that have contacts with each other.
    """
    made = Made({}, {}, {})
    for pair in pairs:
        fixed = pair.other in solids.world
        others: Sequence[World] = (solids.world[pair.other],) if fixed else solids.bodies[pair.other].shapes
        shapes = solids.bodies[pair.body].shapes
        missing, points = ([] if shapes and others else ["a body without shapes"]), []
        several = len(shapes) * len(others) > 1
        for (i, a), (j, b) in itertools.product(enumerate(shapes), enumerate(others)):
            kinds = f"{type(a).__name__} and {type(b).__name__}"
            other, linked = None if fixed else pair.other, solids.linked(pair.body, pair.other)
            touching = shape_contacts(pair.body, a, other, b, label=pair.other, model=model, rule=rule, linked=linked, **arguments)
            if touching is None:
                missing.append(kinds)
                continue
            if touching.by_points:
                points.append(kinds)
            for name, contact in touching.contacts.items():
                if fixed:
                    contact.surface_name = pair.other
                name = f"{name}_{i}_{j}" if several else name
                while name in made.contacts:  # bodies "a", "b_c" and bodies "a_b", "c"
                    name += "_"
                made.contacts[name] = contact
        if missing and pair.asked:
            raise ValueError(
                f"contacts: the pair {(pair.body, pair.other)!r} has {', '.join(dict.fromkeys(missing))}, which have no contacts with each "
                "other; allowed: spheres, capsules, boxes, cylinders, ellipsoids and hulls with each other, shapes with contact points on "
                "planes; near=False leaves out near contacts"
            )
        label = f"{pair.body}-{pair.other}"
        if missing and shapes and others:  # a body without any shape has nothing to touch with
            made.left_out[label] = ", ".join(dict.fromkeys(missing))
        if points:
            made.by_points[label] = ", ".join(dict.fromkeys(points))
    return made


def shape_contacts(
    body: str,
    a: Shape,
    other: str | None,
    b: World,
    *,
    label: str = "",
    model: Callable[..., Contact],
    rule: NearRule,
    linked: bool = False,
    **arguments: Any,
) -> Touching | None:
    """Contacts of two shapes by names that begin with "body_label"; None where there are none of these kinds.

    Spheres, capsules, boxes and ellipsoids touch each other, as `contact_manifold` says. Cylinders and hulls touch them and each other by
    near contacts, as the rule says, and so do boxes and ellipsoids. Every shape with contact points touches planes at these, and boxes,
    height fields and grids, where edges and faces of the shape are not felt. An ellipsoid touches a plane where it is nearest.

    Args:
        body, a: name of a body, and its shape. other, b: another body and its shape, or None and a shape or plane of the world.
        label: name in place of `other`. model: contact class, or a function with its arguments.
        rule: chooses the shapes that get near contacts. linked: whether joints connect both bodies.
    """
    label = f"{body}_{label or other or 'world'}"
    if isinstance(b, Plane) and isinstance(a, Ellipsoid):
        return Touching({label: model(body, shape=a, normal=b.normal, offset=b.offset, **arguments)}, False)
    if isinstance(b, Plane):
        return _at_points(label, body, a, model, {**arguments, "normal": b.normal, "offset": b.offset}, False)
    if isinstance(b, (HeightField, DistanceGrid)):
        if rule.pitch is None:
            return _at_points(label, body, a, model, {**arguments, "other_shape": b}, not isinstance(a, Sphere))
        return _on_field(label, body, a, model, {**arguments, "other_shape": b}, rule.pitch)
    # At a box's edges, normals of fast ellipsoids jump: near contacts look for nearest points anew.
    closed = isinstance(a, PAIRED) and isinstance(b, PAIRED) and {type(a), type(b)} != {Box, Ellipsoid}
    if rule.takes(a, b, closed) and (near := rule.contacts(label, body, a, other, b, linked, model, **arguments)) is not None:
        return Touching(dict(near), False, True)
    if closed:
        made = contact_manifold(body, a, other, b, model=model, **arguments)
        start = f"{body}_{other or 'world'}"
        return Touching({f"{label}{name.removeprefix(start)}": contact for name, contact in made.items()}, False)
    if isinstance(b, Box):
        return _at_points(label, body, a, model, {**arguments, "other": other, "other_shape": b}, True)
    if isinstance(a, Box) and other is not None:
        return _at_points(label, other, b, model, {**arguments, "other": body, "other_shape": a}, True)
    places = _points(b) if isinstance(a, Box) else None
    if places is None:
        return None
    # Points of a fixed shape: the body comes first in its contacts.
    balls = [Sphere(places[1].clamp_min(SHARP), position=point) for point in places[0].unbind(-2)]
    return Touching({f"{label}_{k}": model(body, shape=a, other_shape=ball, **arguments) for k, ball in enumerate(balls)}, True)


def _points(shape: Shape) -> tuple[Tensor, Tensor] | None:
    try:
        return shape.contact_points()
    except ValueError:  # a shape of a user's own without points
        return None


def _at_points(
    label: str, body: str, shape: Shape, model: Callable[..., Contact], arguments: dict[str, Any], by_points: bool
) -> Touching | None:
    places = _points(shape)
    if places is None:
        return None
    points, radius = places
    return Touching({f"{label}_{k}": model(body, point=p, radius=radius, **arguments) for k, p in enumerate(points.unbind(-2))}, by_points)


def _on_field(
    label: str, body: str, shape: Shape, model: Callable[..., Contact], arguments: dict[str, Any], pitch: float
) -> Touching | None:
    """Contacts of a shape with a height field, which corners, edges and faces feel."""
    made: dict[str, Contact] = {}
    for piece in pieces_of(shape):
        try:
            points, radius = surface_points(piece, pitch)
        except ValueError:  # no convex shape, or one that is too thin: its points, if it has some
            return _at_points(label, body, shape, model, arguments, True)
        made |= {f"{label}_{len(made) + k}": model(body, point=p, radius=radius, **arguments) for k, p in enumerate(points.unbind(-2))}
    return Touching(made, isinstance(shape, Ellipsoid))


# -- edits -------------------------------------------------------------------------------------------------------------------------------


def added(
    solids: Solids, there: Mapping[str, Contact], a: str, b: str | World, model: Callable[..., Contact], rule: NearRule, **arguments: Any
) -> dict[str, Contact]:
    """Contacts by name that `Mechanism.add_contact` adds between all bodies that the names a and b stand for, or of a with a fixed shape.

    Args:
        there: contacts that the mechanism has.

    Raises:
        ValueError: unknown names, bodies that touch already, shapes without contacts with each other.
    """
    if not isinstance(b, str):
        solids, b = Solids(solids.bodies, solids.joints, {"world": b}), "world"
    pairs = selected(solids, [(a, b)])
    touching = {frozenset(contact.body_names) for contact in there.values() if contact.other is not None}
    already = [pair for pair in pairs if frozenset(pair[:2]) in touching]
    if already:
        raise ValueError(
            f"add_contact: {already[0].body!r} and {already[0].other!r} touch already; mech.remove_contact first, or edit contacts"
        )
    made = contacts_of(solids, pairs, model, rule, **arguments)
    if not made.contacts:
        raise ValueError(f"add_contact: {a!r} and {b!r} have no shapes that touch each other. {made.message()}")
    if text := made.message():
        warn_user(f"add_contact: {text}")
    result = {}
    for name, contact in made.contacts.items():
        while name in there or name in result:
            name += "_"
        result[name] = contact
    return result


def removed(solids: Solids, there: Mapping[str, Contact], a: str, b: str) -> list[str]:
    """Names of the contacts that `Mechanism.remove_contact` removes.

    Raises:
        ValueError: unknown names, no such contact.
    """
    surfaces = {contact.surface_name for contact in there.values() if contact.other is None}
    first, second = (
        {name} if name in surfaces and name not in solids.names else set(solids.matching("remove_contact", name)) for name in (a, b)
    )
    gone = []
    for name, contact in there.items():
        ends = contact.body, contact.surface_name if contact.other is None else contact.other
        if (ends[0] in first and ends[1] in second) or (ends[1] in first and ends[0] in second):
            gone.append(name)
    if not gone:
        raise ValueError(f"remove_contact: no contact between {a!r} and {b!r}; fixed surfaces are {sorted(surfaces)}")
    return gone
