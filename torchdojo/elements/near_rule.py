"""The choice of pairs of shapes that touch by near terms (near_contact.py), and the cores that all pairs of a shape share."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, Literal, cast

from torchdojo.elements.contacts import Contact, ImpactContact, NonlinearContact
from torchdojo.elements.near_contact import NearContact, check_slots, near_slots, slots_of
from torchdojo.geometry.hulls import Hull, farthest_points
from torchdojo.geometry.polytopes import Polytope, polytope_of
from torchdojo.geometry.shapes import Box, Capsule, Cylinder, Ellipsoid, Mesh, Shape, Sphere
from torchdojo.geometry.surface_points import check_pitch

__all__ = ["Near", "NearRule"]

#: "auto": shapes that have no closed form with each other, and all pairs of files that have many. True: all pairs. False: none.
Near = bool | Literal["auto"]
# Largest number of pairs of a file that keep a closed form. These are part of every step: the 109 pairs of MuJoCo's humanoid take 1001 us,
# and 64 as near contacts (`scripts/compare_self_collision.py --near auto all`, at 0e46fc7).
MOST_CLOSED = 12
MOST_CORNERS = 64  # corners of a hull that touches; the cost of a pair grows with the product of both numbers


def pieces_of(shape: Shape) -> Sequence[Shape]:
    """The convex shapes that touch for a shape."""
    return shape.pieces if isinstance(shape, Hull) and shape.pieces else (shape,)


class NearRule:
    """The options `near=`, `slots=` and `pitch=` of `td.combine`.

    Args:
        near: as in `Near`. slots: of each pair; None: by the shapes.
        pitch: distance of points with which edges and faces touch height fields [m]; None: contact points alone.

    Attributes:
        simplified: name of a shape -> distance of its farthest corner that is left out [m].
        many: whether "auto" stands for all pairs, since there are many.

    Raises:
        ValueError: other values.
    """

    def __init__(self, near: Near = "auto", slots: int | None = None, pitch: float | None = None) -> None:
        if near not in ("auto", True, False):
            raise ValueError(f"near: got {near!r}; allowed: 'auto' (shapes without a closed form), True (all pairs) or False (none)")
        check_slots(slots)
        check_pitch(pitch)
        self.near, self.slots, self.pitch, self.many = near, slots, pitch, False
        self.simplified: dict[str, float] = {}
        self._cores: dict[int, tuple[Shape, Polytope | None]] = {}  # with the shapes, whose ids stay theirs as long as they live

    def takes(self, a: Shape, b: Any, closed: bool) -> bool:
        """Whether two shapes touch by near terms. closed: whether they have a closed form with each other."""
        kinds = (Sphere, Capsule, Box, Cylinder, Ellipsoid, Hull, Mesh)
        return self.near is not False and isinstance(a, kinds) and isinstance(b, kinds) and (self.near is True or self.many or not closed)

    def contacts(
        self, label: str, body: str, a: Shape, other: str | None, b: Shape, linked: bool, model: Callable[..., Contact], **arguments: Any
    ) -> dict[str, NearContact] | None:
        """The slots of a pair by name; None where a shape has no core, or the model of contact is another.

        Args:
            label: before "_near0". linked: whether joints connect the bodies. model, arguments: of contacts in closed form.
        """
        if model not in (NonlinearContact, ImpactContact):
            return None
        sides = [[self.core(piece, name) for piece in pieces_of(shape)] for shape, name in ((a, body), (b, other or label))]
        if any(core is None for side in sides for core in side):
            return None
        laws: dict[str, Any] = {name: value for name, value in arguments.items() if name in NearContact.laws}
        laws["friction"] = arguments.get("friction", 0.5) if model is NonlinearContact else 0.0
        several = max(map(len, sides)) > 1
        result: dict[str, NearContact] = {}
        for (i, p), (j, q) in itertools.product(*map(enumerate, cast(list[list[Polytope]], sides))):
            slots = near_slots(body, p, other, q, self.slots or slots_of(p, q, linked), **laws)
            result |= {f"{label}{f'_{i}_{j}' if several else ''}_near{k}": contact for k, contact in enumerate(slots)}
        return result

    def core(self, shape: Shape, name: str) -> Polytope | None:
        """The core of a shape; None if it is flat, has batch dimensions, or numbers that are differentiated in forward mode."""
        if id(shape) not in self._cores:
            self._cores[id(shape)] = shape, self._made(shape, name)
        return self._cores[id(shape)][1]

    def _made(self, shape: Shape, name: str) -> Polytope | None:
        if shape.position.ndim != 1 or shape.orientation.ndim != 1:
            return None
        try:
            if isinstance(shape, Hull | Mesh):
                hull = shape if isinstance(shape, Hull) else Hull(shape.vertices, position=shape.position, orientation=shape.orientation)
                corners = hull.vertices.detach().numpy()
                if len(corners) > MOST_CORNERS:
                    kept, apart = farthest_points(corners, MOST_CORNERS)
                    hull = Hull(hull.vertices[kept], position=hull.position, orientation=hull.orientation)
                    self.simplified[name] = max(apart, self.simplified.get(name, 0.0))
                return polytope_of(hull)
            return polytope_of(shape)
        except (ValueError, RuntimeError):  # flat or thinner than its radius; a batch of sizes
            return None
