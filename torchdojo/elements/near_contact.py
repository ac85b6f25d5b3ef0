"""Contact at one of the near terms of two convex shapes (geometry/near_terms.py). A pair of bodies has several, one for each slot.

The term of a slot is a number of the contact, `term`, that may differ between environments. The engine chooses the terms of a step
(engine/near_set.py): the step does not depend on the choice, as long as no term that is nearer than the reach at its end is left out.

With `restitution`, terms that arrive at their place in a step (`Contact.gap` says when) and bear the impact bounce, and their bodies may be
beyond the reach at the end of the step. So the impulse of such a term does not fade with the gap. The engine chooses these terms after a
solution without bounces, and adds `BOUNCING` to their kind. All that read a term know by its kind that its impulse acts.

A crossing of edges counts by its weight w as a place of contact, and so does its law: w h n·(u⁺ + e u⁻) + (1 − w) 2 REACH. Without that,
edges that have no place of contact at the end would ask for a velocity that none of their impulses could give.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from torchdojo.elements.contact import Contact, Touch, _pose_of_other
from torchdojo.elements.contacts import NonlinearContact
from torchdojo.elements.element import Element, Motion, Pose, previous_pose
from torchdojo.geometry.core_sizes import differentiable
from torchdojo.geometry.near_terms import BOUNCING, CROSSING, NOTHING, REACH, Term, near_term
from torchdojo.geometry.polytopes import Polytope, polytope_of
from torchdojo.geometry.shapes import Shape
from torchdojo.parameters import alike, require, transforming

__all__ = ["NearContact", "check_slots", "near_contacts", "near_slots", "slots_of"]

BALL, CAPSULE, LINKED = 4, 8, 12  # places of contact of a ball, of a capsule, of two links of a robot


class NearContact(NonlinearContact):
    """One slot of a pair of convex shapes, with the friction of `NonlinearContact`. Its impulse fades with the gap.

    Args:
        body: name of the body. shapes: its core, and the core of the other one, each in the frame of its body.
        other: name of the other body; None or "world": it is fixed.
        term: kind and features of the term (..., 3); see `near_terms`. fading: (...,) 1 where impulses fade with the gap, 0 where not, and
            between where they fade over a longer reach.
        friction, laws: as in `NonlinearContact`. Torsional and rolling friction of all places of a pair add up: the couple is at most
            their coefficient times the whole normal force.
    """

    fields: ClassVar[dict[str, int]] = {"friction": 0, "term": 1, "fading": 0}
    chosen: ClassVar[frozenset[str]] = frozenset({"term", "fading"})
    term: Tensor
    fading: Tensor
    in_scenery: bool = False  #: whether the scenery of the mechanism draws the fixed shape

    def __init__(self, body: str, *, shapes: tuple[Polytope, Polytope], other: str | None = None, friction: Any = 0.5, **laws: Any) -> None:
        Element.__init__(self)
        self.body, self.other = body, None if other == "world" else other
        if self.other == body:
            raise ValueError(f"{type(self).__name__}: got {body!r} as body and as other; a contact is between two different bodies")
        unknown = [name for name in laws if name not in self.laws]
        if unknown:
            raise TypeError(f"{type(self).__name__}: got an unexpected keyword {unknown[0]!r}; laws of this contact are {list(self.laws)}")
        present = {name: value for name, value in laws.items() if value is not None}
        self._check_laws(present)
        self.shapes, self.shape_kind, self.other_kind = shapes, "polytope", "polytope"
        self._set_cones(present)
        self._set_fields({"friction": friction, "term": (float(NOTHING), 0.0, 0.0), "fading": 1.0, **present})

    def kind(self) -> tuple[object, ...]:
        return (*super().kind(), *map(id, self.shapes))

    # -- terms that are elsewhere (engine/near_memory.py) ---------------------------------------------------------------------------------

    def lend(self, term: nn.Parameter, give_back: Callable[[], None] | None) -> None:
        """Hold this term, unchecked. give_back: sets the real term once somebody reads or sets it; None: this term is the real one."""
        self._buffers.pop("term", None)
        self._parameters["term"] = term
        self.__dict__["_give_back"] = give_back

    def _settle(self) -> None:
        give_back = self.__dict__.get("_give_back")
        if give_back is not None:
            give_back()

    def __getattr__(self, name: str) -> Any:
        if name == "term":
            self._settle()
        return super().__getattr__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "term":
            self._settle()
        super().__setattr__(name, value)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> NearContact:
        self._settle()
        return super()._apply(fn, recurse)

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        self._settle()
        super()._save_to_state_dict(destination, prefix, keep_vars)

    def _load_from_state_dict(self, *arguments: Any) -> None:
        self._settle()
        super()._load_from_state_dict(*arguments)

    def __getstate__(self) -> dict[str, Any]:
        self._settle()
        return {name: value for name, value in super().__getstate__().items() if name != "_give_back"}

    # -- the term ------------------------------------------------------------------------------------------------------------------------

    def check_field(self, name: str, value: Tensor) -> Tensor:
        value = super().check_field(name, value)
        if name == "term":
            a, b = self.shapes
            smooth = a.semi_axes is not None or b.semi_axes is not None
            counts = value.new_tensor([[len(a.vertices), 1], [len(b.vertices), 1], [len(a.edges), len(b.edges)]])
            counts = value.new_tensor([[1, 1], [0, 0], [0, 0]]) if smooth else counts
            kind = torch.where(value[..., 0] >= BOUNCING, value[..., 0] - BOUNCING, value[..., 0])
            valid = (kind >= NOTHING) & (kind <= CROSSING) & (value == value.round()).all(-1)
            places = counts[torch.where(valid, kind, 0.0).long().clamp_min(0)]
            inside = ((value[..., 1:] >= 0) & (value[..., 1:] < places)).all(-1) | (kind == NOTHING)
            require(valid & inside, self.label(name), value, "a kind and numbers of features of both shapes (geometry/near_terms.py)")
        return value

    @property
    def fades(self) -> Tensor:
        return self.term[..., 0] != NOTHING

    def near(self, poses: tuple[Pose, ...]) -> Term:
        """The term of this slot at the poses of `body_names`."""
        one, two = poses[0], _pose_of_other(poses)
        return near_term(*self.cores(), (one.x, one.q), (two.x, two.q), self.term.detach(), self.fading.detach())

    def cores(self) -> tuple[Polytope, Polytope]:
        """The cores that `near` takes, with derivatives by sizes where these are asked for."""
        one, two = self.shapes
        if not torch.is_grad_enabled() or (one.sizes is None and two.sizes is None):
            return one, two
        return differentiable(one), differentiable(two)

    def _witness(self, poses: tuple[Pose, ...]) -> tuple[Tensor, Tensor, Tensor]:
        term = self.near(poses)
        return term.gap, term.normal, term.point - poses[0].x

    def touch(self, motions: tuple[Motion, ...]) -> Touch:
        return Contact.touch(self, motions)._replace(weight=self.near(tuple(motion.next for motion in motions)).weight)

    def _arrival(self, motions: tuple[Motion, ...], timestep: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        present_line = self.near(tuple(motion.pose for motion in motions)).line
        earlier_line = self.near(tuple(previous_pose(motion.pose, motion.incoming, timestep) for motion in motions)).line
        return self.term[..., 0] >= BOUNCING, present_line, earlier_line

    def _rebound(self, motions: tuple[Motion, ...], touch: Touch, timestep: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        bounces, rebound, instant = super()._rebound(motions, touch, timestep)
        assert touch.weight is not None
        return bounces, touch.weight * rebound + (1 - touch.weight) * (2 * REACH), instant

    def world_impulse(self, impulse: Tensor, *poses: Pose) -> Tensor:
        lead = impulse.shape[:-1]
        if not transforming() and self.term.shape[:-1] != lead and bool((self.term[..., 0] > NOTHING).any()):
            raise ValueError(
                f"near contacts of {self.body!r} and {self.other or 'world'!r}: got impulses of shape {tuple(lead)} for places of shape "
                f"{tuple(self.term.shape[:-1])}; near contacts keep the places of the last step alone. Ask for forces after each step of a "
                "loop, out = mech.step(z, u)"
            )
        term = self.near(poses)
        return term.weight[..., None] * self.force(term.normal, impulse)


def slots_of(a: Polytope, b: Polytope, linked: bool = False) -> int:
    """Number of places of contact that two cores need at a time.

    An ellipsoid touches at one place. A ball touches with its center, near which an edge or a corner of the other shape may be. Where two
    faces lie on each other, all corners of both may count, and the crossings of their edges.

    Args:
        linked: whether joints connect their bodies. Faces of links seldom lie on each other, and robots have hundreds of pairs.
            Hulls of Atlas and xArm 6 have 9.
    """
    if a.semi_axes is not None or b.semi_axes is not None:
        return 1
    corners = len(a.vertices) + len(b.vertices) if len(a.vertices) + len(b.vertices) > 2 else 1
    width, other_width = a.widest, b.widest
    few = BALL if 1 in (width, other_width) else CAPSULE if 2 in (width, other_width) else LINKED if linked else None
    most = width + other_width + 2 * min(width, other_width) if few is None else few
    return min(corners + len(a.edges) * len(b.edges), most)


def check_slots(slots: Any) -> None:
    """Refuse a number of slots that is not None or at least 1.

    Raises:
        ValueError: such a number.
    """
    if slots is not None and (isinstance(slots, bool) or not isinstance(slots, int) or slots < 1):
        raise ValueError(f"slots: got {slots!r}; allowed: None, or a whole number of 1 or more")


def near_slots(a: str, p: Polytope, b: str | None, q: Polytope, slots: int, surface: str = "", **arguments: Any) -> list[NearContact]:
    """The slots of a pair of cores in the frames of their bodies. The numbers are checked once, since robots have hundreds of pairs.

    Args:
        surface: name of a fixed shape; "": none. arguments: friction and laws; all slots share tensors that require grad.
    """
    first = NearContact(a, shapes=(p, q), other=b, **arguments)
    if surface:
        first.surface_name = surface
    shared = {name: value for name, value in arguments.items() if isinstance(value, nn.Parameter)}
    return [first, *(alike(first, shared) for _ in range(slots - 1))]


def near_contacts(
    a: str,
    shape_a: Shape | Sequence[Shape],
    b: str | None,
    shape_b: Shape | Sequence[Shape],
    *,
    slots: int | None = None,
    radius: float | None = None,
    **arguments: Any,
) -> dict[str, NearContact]:
    """Contacts through which two convex shapes touch wherever they are near each other: corners, edges and faces.

    Args:
        a, b: names of the bodies; b None: the world. shape_a, shape_b: in their frames; as in `polytope_of`. Several, such as
            the pieces of `td.decompose`, touch each with each.
        slots: places of contact at a time, of two shapes. None: as many as their faces may have: 1 with an ellipsoid, 4 with a sphere, 8
            with a capsule, 16 of two boxes, 36 of a cylinder on a box, 96 of two cylinders.
        radius: of sharp edges [m]; default: a hundredth of a shape's smallest extent, from 0.1 to 1 mm.
        arguments: friction and laws of `NearContact`, the same for all.

    Returns:
        Contacts by names that begin with "a_b".

    Raises:
        ValueError: a shape that is not convex or too thin, a bad number of slots, the same body twice.
    """
    check_slots(slots)
    one, two = ([polytope_of(each, radius) for each in ([shape] if isinstance(shape, Shape) else shape)] for shape in (shape_a, shape_b))
    if not one or not two:
        raise ValueError(f"near_contacts of {a!r} and {b or 'world'!r}: got no shapes; allowed: a shape, or some of them")
    label, several = f"{a}_{'world' if b is None else b}", len(one) * len(two) > 1
    return {
        f"{label}{f'_{i}_{j}' if several else ''}_near{k}": contact
        for (i, p), (j, q) in itertools.product(enumerate(one), enumerate(two))
        for k, contact in enumerate(near_slots(a, p, b, q, slots or slots_of(p, q), **arguments))
    }
