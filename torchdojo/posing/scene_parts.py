"""The parts of a scene: which bodies, joints and numbers belong to each mechanism or body that was put into it.

Names say it: the bodies of the part "robot" are "robot" itself, if it is a single body, or start with "robot/".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from torchdojo.state.layout import STATE_SIZE
from torchdojo.structure import Structure

__all__ = ["Part", "part_of", "spread_values"]


class Part(NamedTuple):
    """A part of a scene: names of its bodies, joints and contacts, and the places of its numbers.

    Contacts of a part are those on one of its bodies, those with other parts and the world included.

    state: in z (..., 13 nb). q: in minimal coordinates. u: in inputs. ctrl: in the controls of `mech.actuators`.
    """

    bodies: tuple[str, ...]
    joints: tuple[str, ...]
    contacts: tuple[str, ...]
    state: slice
    q: slice
    u: slice
    ctrl: slice


def part_of(mech: Structure, parts: Sequence[str], name: str) -> Part:
    """`Mechanism.part`. parts: names of the parts."""
    if name not in parts:
        there = f"parts are {list(parts)}" if parts else "it has no parts, which `td.combine` makes"
        raise ValueError(f"part: the mechanism has no part {name!r}; {there}")
    bodies = [(i, body) for i, body in enumerate(mech.bodies) if _belongs(body, name)]
    joints = [joint for joint in mech.joints if _belongs(joint, name)]
    mine = {body for _, body in bodies}
    coordinates, inputs = mech.coordinate_places(), mech.input_layout
    drives = [] if mech.actuators is None else [i for i, drive in enumerate(mech.actuators.names) if _belongs(drive, name)]
    return Part(
        tuple(body for _, body in bodies),
        tuple(joints),
        tuple(contact for contact, element in mech.named_contacts().items() if mine & set(element.body_names)),
        _place((slice(STATE_SIZE * i, STATE_SIZE * (i + 1)) for i, _ in bodies), f"part {name!r}: its states"),
        _place((coordinates[joint] for joint in joints if joint in coordinates), f"part {name!r}: its coordinates"),
        _place((inputs[joint] for joint in joints if joint in inputs), f"part {name!r}: its inputs"),
        _place((slice(i, i + 1) for i in drives), f"part {name!r}: its controls"),
    )


def _belongs(name: str, part: str) -> bool:
    """Whether a body, joint or actuator of this name is one of the part's."""
    return name == part or name.startswith(f"{part}/") or name == f"world_to_{part}"


def _place(pieces: Iterable[slice], what: str) -> slice:
    """The slice that pieces fill, in any order; an empty one for none.

    Raises:
        ValueError: they have gaps, since an edit of the scene put something between.
    """
    ordered = sorted((piece for piece in pieces if piece.stop > piece.start), key=lambda piece: piece.start)
    for before, after in pairwise(ordered):
        if before.stop != after.start:
            raise ValueError(f"{what} are not in one piece, after an edit of the scene; take them joint by joint")
    return slice(ordered[0].start, ordered[-1].stop) if ordered else slice(0, 0)


def spread_values(parts: Sequence[str], taken: Iterable[str], values: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Values of `initial_state` with those of parts, ``robot={"hip": 0.3, "pose": "home"}``, under the names of the scene.

    Returns them, and the names of the poses of parts. taken: names of bodies and joints, which are meant first.

    Raises:
        TypeError: a part whose value is no dictionary. ValueError: a value given twice.
    """
    result: dict[str, Any] = {}
    poses: list[str] = []
    names = set(taken)
    for name, value in values.items():
        if name not in parts or name in names:
            entries = {name: value}
        elif isinstance(value, Mapping):
            poses += [f"{name}/{inner}" for key, inner in value.items() if key == "pose"]
            entries = {f"{name}/{key}": inner for key, inner in value.items() if key != "pose"}
        else:
            raise TypeError(f"initial_state: part {name!r} got {value!r}; allowed: a dictionary of its joints and bodies, and 'pose'")
        twice = [key for key in entries if key in result]
        if twice:
            raise ValueError(f"initial_state: {twice[0]!r} is given twice, by its name and with its part")
        result |= entries
    return result, poses
