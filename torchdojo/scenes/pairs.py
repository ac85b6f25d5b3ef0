"""Which bodies may touch which, by name, and the contacts of their shapes.

Pairs whose shapes have no distance to each other (geometry/pairs.py) get no contact. They are returned by name, so that nothing is lost
without a word. A general narrow phase and a list of near pairs take the place of `contacts_of` when the engine has them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from torchdojo.elements.bodies import Body
from torchdojo.elements.contacts import Contact
from torchdojo.elements.joints import Fixed, Floating, Joint
from torchdojo.elements.manifolds import contact_manifold
from torchdojo.geometry.shapes import Box, Capsule, Shape, Sphere
from torchdojo.scenes.world import Plane, World

__all__ = ["Filter", "Made", "Pair", "Solids", "contacts_of", "selected"]

PAIRED = (Sphere, Capsule, Box)
Names = tuple[str, str]


@dataclass(frozen=True)
class Filter:
    """Which pairs of a scene may touch: ``contacts=td.Filter([("robot", "crate"), ("crate", "*")])``.

    A name stands for a body or a fixed shape, for all bodies of a part ("robot"), or for what a pattern matches ("robot/*_foot").

    groups: pairs of names that may touch; None: all. exclude: pairs of names that do not. neighbors: bodies that are this number of joints
    apart, or fewer, do not touch; 1: those that a joint connects. Bodies that fixed joints connect count as one, and never touch; bodies
    without shapes do not count.

    Raises:
        ValueError: entries that are no pairs of names, a number of neighbors below 0.
    """

    groups: Iterable[Names] | None = None
    exclude: Iterable[Names] = ()
    neighbors: int = 1

    def __post_init__(self) -> None:
        if self.groups is not None:
            object.__setattr__(self, "groups", checked("Filter.groups", self.groups))
        object.__setattr__(self, "exclude", checked("Filter.exclude", self.exclude))
        if isinstance(self.neighbors, bool) or not isinstance(self.neighbors, int) or self.neighbors < 0:
            raise ValueError(f"Filter.neighbors: got {self.neighbors!r}; allowed: whole numbers of joints, 0 or more")


class Pair(NamedTuple):
    """A body and another body, or a fixed shape or plane. asked: whether the user named both."""

    body: str
    other: str
    asked: bool


class Made(NamedTuple):
    """Contacts by name, and the pairs that got none, each with the reason: "robot/hand-bowl" -> "Mesh and Box"."""

    contacts: dict[str, Contact]
    left_out: dict[str, str]


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


class Solids:
    """All that can touch: bodies and their joints, and what stands still in the world, by name."""

    def __init__(self, bodies: Mapping[str, Body], joints: Iterable[Joint] = (), world: Mapping[str, World] | None = None) -> None:
        self.bodies, self.world = bodies, world or {}
        self.names = [*bodies, *self.world]
        self.group: dict[str | None, set[str | None]] = {name: {name} for name in (None, *bodies)}  # what fixed joints make one
        given = list(joints)
        for joint in given:
            ends = [self.group[name] for name in joint.body_names]
            if isinstance(joint, Fixed) and ends[0] is not ends[1]:
                merged = ends[0] | ends[1]
                self.group.update({name: merged for name in merged})
        self.next: dict[int, list[set[str | None]]] = {}
        for joint in given:
            # Joints with the world make no neighbors: two robots on one floor may touch.
            if None in joint.body_names or isinstance(joint, (Fixed, Floating)):
                continue
            a, b = (self.group[name] for name in joint.body_names)
            self.next.setdefault(id(a), []).append(b)
            self.next.setdefault(id(b), []).append(a)

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

    def matching(self, label: str, pattern: str) -> list[str]:
        """The names that a name of a body, of a part, or a pattern stands for.

        Raises:
            ValueError: none.
        """
        inside = pattern + "/"
        found = [name for name in self.names if name == pattern or name.startswith(inside) or fnmatchcase(name, pattern)]
        if not found:
            parts = dict.fromkeys(name.partition("/")[0] for name in self.names)
            raise ValueError(f"{label}: unknown name {pattern!r}; parts are {list(parts)}, bodies and fixed shapes {self.names}")
        return found


def selected(solids: Solids, contacts: Any) -> list[Pair]:
    """The pairs that may touch, bodies first, in the order of the names.

    Args:
        contacts: "all", a `Filter`, or a list of pairs of names as in `Filter.groups`. Two bodies named in a list may be neighbors.

    Raises:
        ValueError: unknown names, a pair of one body or of two things that stand, something else than these three.
    """
    if isinstance(contacts, Filter):
        rule, asked = contacts, ()
    elif isinstance(contacts, str) and contacts == "all":
        rule, asked = Filter(), ()
    elif isinstance(contacts, str) or not isinstance(contacts, Iterable):
        raise ValueError(f"contacts: got {contacts!r}; allowed: 'all', None, a list of pairs of names, or td.Filter(...)")
    else:
        asked = checked("contacts", contacts)
        rule = Filter(groups=asked)
    named = {_named(solids, pair) for pair in asked if all(name in solids.names for name in pair)}
    allowed = None if rule.groups is None else _expanded(solids, "contacts", rule.groups)
    refused = _expanded(solids, "contacts: exclude", rule.exclude)
    result = []
    for a, b in itertools.combinations(solids.names, 2):
        pair = frozenset((a, b))
        if (allowed is not None and pair not in allowed) or pair in refused or (solids.stands(a) and solids.stands(b)):
            continue
        if pair in named or b in solids.world or b not in solids.within(a, rule.neighbors):
            result.append(Pair(a, b, pair in named))
    return result


def _named(solids: Solids, pair: Names) -> frozenset[str]:
    if pair[0] == pair[1]:
        raise ValueError(f"contacts: got the pair {pair!r}; a contact is between two different bodies")
    if all(solids.stands(name) for name in pair):
        raise ValueError(f"contacts: got the pair {pair!r}, of which neither can move; allowed: at least one body that moves")
    return frozenset(pair)


def _expanded(solids: Solids, label: str, pairs: Iterable[Names]) -> set[frozenset[str]]:
    every = ((solids.matching(label, a), solids.matching(label, b)) for a, b in pairs)
    return {frozenset((a, b)) for first, second in every for a in first for b in second if a != b}


def contacts_of(solids: Solids, pairs: Iterable[Pair], model: Callable[..., Contact], **arguments: Any) -> Made:
    """Contacts of the shapes of each pair, as `contact_manifold` makes them; of bodies with planes, at their contact points.

    Raises:
        ValueError: a pair that the user named, without shapes that have contacts with each other.
    """
    made = Made({}, {})
    for pair in pairs:
        others: Sequence[World] = (solids.world[pair.other],) if pair.other in solids.world else solids.bodies[pair.other].shapes
        shapes = solids.bodies[pair.body].shapes
        missing = [] if shapes and others else ["a body without shapes"]
        several = len(shapes) * len(others) > 1
        for (i, a), (j, b) in itertools.product(enumerate(shapes), enumerate(others)):
            contacts = _between(solids, pair, a, b, model, arguments)
            if contacts is None:
                missing.append(f"{type(a).__name__} and {type(b).__name__}")
            else:
                made.contacts.update({f"{name}_{i}_{j}" if several else name: contact for name, contact in contacts.items()})
        if missing and pair.asked:
            raise ValueError(
                f"contacts: the pair {(pair.body, pair.other)!r} has {', '.join(dict.fromkeys(missing))}, which have no contacts with each "
                "other; allowed: spheres, capsules and boxes with each other, and shapes with contact points on planes"
            )
        if missing and shapes and others:  # a body without any shape has nothing to touch with
            made.left_out[f"{pair.body}-{pair.other}"] = ", ".join(dict.fromkeys(missing))
    return made


def _between(
    solids: Solids, pair: Pair, a: Shape, b: World, model: Callable[..., Contact], arguments: dict[str, Any]
) -> dict[str, Contact] | None:
    """Contacts of two shapes by name; None where there are none of these kinds."""
    fixed = pair.other in solids.world
    if isinstance(b, Plane):
        try:
            points, radius = a.contact_points()
        except ValueError:
            return None
        places = [{"point": point, "radius": radius, "normal": b.normal, "offset": b.offset} for point in points.unbind(-2)]
        contacts = {f"{pair.body}_{pair.other}_{k}": model(pair.body, **place, **arguments) for k, place in enumerate(places)}
    elif isinstance(a, PAIRED) and isinstance(b, PAIRED):
        contacts = contact_manifold(pair.body, a, None if fixed else pair.other, b, model=model, **arguments)
        if fixed:
            start = f"{pair.body}_world"
            contacts = {f"{pair.body}_{pair.other}{name.removeprefix(start)}": contact for name, contact in contacts.items()}
    else:
        return None
    if fixed:
        for contact in contacts.values():
            contact.surface_name = pair.other
    return contacts
