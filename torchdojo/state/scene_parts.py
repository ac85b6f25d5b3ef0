"""The parts of a scene: which bodies, joints and numbers belong to each mechanism that was put into it.

Names say it: the bodies of the part "robot" are "robot" itself, if it is a single body, or start with "robot/".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

__all__ = ["Part", "belongs", "place_of", "spread_values"]


class Part(NamedTuple):
    """A part of a scene: names of its bodies, joints and contacts, and the places of its numbers.

    state: in z (..., 13 nb). q: in minimal coordinates. u: in inputs. ctrl: in the controls of `mech.actuators`.
    """

    bodies: tuple[str, ...]
    joints: tuple[str, ...]
    contacts: tuple[str, ...]
    state: slice
    q: slice
    u: slice
    ctrl: slice


def belongs(name: str, part: str) -> bool:
    """Whether a body, joint or actuator of this name is one of the part's."""
    return name == part or name.startswith(f"{part}/") or name == f"world_to_{part}"


def place_of(pieces: Iterable[slice], what: str) -> slice:
    """The slice that pieces fill, in any order; an empty one for none.

    Raises:
        ValueError: they have gaps, since an edit of the scene put something between.
    """
    ordered = sorted((piece for piece in pieces if piece.stop > piece.start), key=lambda piece: piece.start)
    for before, after in zip(ordered, ordered[1:], strict=False):
        if before.stop != after.start:
            raise ValueError(f"{what} are not in one piece, after an edit of the scene; take them joint by joint")
    return slice(ordered[0].start, ordered[-1].stop) if ordered else slice(0, 0)


def spread_values(parts: Sequence[str], taken: Iterable[str], values: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Values of `initial_state` with those of parts, ``robot={"hip": 0.3, "pose": "home"}``, under the names of the scene.

    Returns them, and the names of the poses of parts. taken: names of bodies and joints, which are meant first.

    Raises:
        TypeError: a part whose value is no dictionary.
    """
    result: dict[str, Any] = {}
    poses: list[str] = []
    known = set(taken)
    for name, value in values.items():
        if name not in parts or name in known:
            result[name] = value
            continue
        if not isinstance(value, Mapping):
            raise TypeError(f"initial_state: part {name!r} got {value!r}; allowed: a dictionary of its joints and bodies, and 'pose'")
        for inner, given in value.items():
            if inner == "pose":
                poses.append(f"{name}/{given}")
            else:
                result[f"{name}/{inner}"] = given
    return result, poses
