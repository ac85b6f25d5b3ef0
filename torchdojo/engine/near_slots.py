"""The slots of pairs of shapes that touch at near terms (engine/near_set.py): their terms, as these come and go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from torchdojo.elements.contact import RESTING_ACCELERATION
from torchdojo.elements.contacts import at_rest
from torchdojo.elements.near_contact import NearContact
from torchdojo.geometry.near_terms import BOUNCING, NOTHING, REACH, all_terms, near_term
from torchdojo.geometry.polytopes import Polytope
from torchdojo.parameters import warn_user
from torchdojo.quaternion import rotate
from torchdojo.state.layout import STATE_SIZE
from torchdojo.structure import Structure

__all__ = [
    "NONE",
    "Balls",
    "NearPair",
    "keys",
    "merge",
    "near_pairs",
    "numbers",
    "plain",
    "present",
    "put",
    "reach_of_step",
    "rested",
    "search_in_torch",
    "terms_of",
    "warn_of_overflow",
]  # fmt: skip

BASE = 1 << 20  # more than a shape has features
NONE = torch.tensor((float(NOTHING), 0.0, 0.0), dtype=torch.float64)  # the term of an empty slot


class NearPair(NamedTuple):
    """A pair of convex shapes: its slots, by the number of their first contact, and the numbers of both bodies (−1: the world)."""

    slots: list[NearContact]
    contact: int
    bodies: tuple[int, int]


def near_pairs(structure: Structure) -> list[NearPair]:
    """The pairs of a mechanism that touch at near terms, in the order of their first contacts."""
    number = {name: i for i, name in enumerate(structure.bodies)}
    pairs: dict[tuple[object, ...], NearPair] = {}
    for i, contact in enumerate(structure.contacts.values()):
        if isinstance(contact, NearContact):
            key = (contact.body, contact.other, *map(id, contact.shapes))
            bodies = number[contact.body], -1 if contact.other is None else number[contact.other]
            pairs.setdefault(key, NearPair([], i, bodies)).slots.append(contact)
    return list(pairs.values())


class Balls:
    """Balls around the shapes of pairs, all at once."""

    def __init__(self, pairs: Sequence[NearPair]) -> None:
        # A shape has its place in the first dimension of all that follows, however many pairs it belongs to.
        shapes: dict[tuple[int, int], Polytope] = {}
        for pair in pairs:
            shapes.update({(body, id(core)): core for body, core in zip(pair.bodies, pair.slots[0].shapes, strict=True)})
        place = {key: i for i, key in enumerate(shapes)}
        sides = [[place[body, id(core)] for body, core in zip(pair.bodies, pair.slots[0].shapes, strict=True)] for pair in pairs]
        self.shapes = torch.tensor(sides, dtype=torch.long).reshape(-1, 2)  # of each pair
        self.bodies = torch.tensor([body for body, _ in shapes], dtype=torch.long)
        self.centers = torch.stack([core.center for core in shapes.values()]) if shapes else torch.zeros(0, 3, dtype=torch.float64)
        self.extents = torch.tensor([core.extent for core in shapes.values()], dtype=torch.float64)

    @torch.no_grad()
    def gaps(self, z: Tensor, pairs: Tensor | slice = slice(None)) -> Tensor:
        """Distances (N, pairs) [m] of the balls in the states z (N, 13 nb).

        Args:
            pairs: numbers of those that are asked for.
        """
        states = self.states(z)
        centers = states[..., :3] + rotate(states[..., 6:10], self.centers)
        first, second = self.shapes[pairs].unbind(-1)
        return torch.linalg.vector_norm(centers[:, first] - centers[:, second], dim=-1) - self.extents[first] - self.extents[second]

    def states(self, z: Tensor) -> Tensor:
        """The states (N, shapes, 13) of the bodies of shapes."""
        world = torch.tensor([[0.0] * 6 + [1.0] + [0.0] * 6], dtype=torch.float64).expand(len(z), 1, STATE_SIZE)
        return torch.cat((z.detach().double().unflatten(-1, (-1, STATE_SIZE)), world), 1)[:, self.bodies]  # the world has the number −1


def warn_of_overflow(pair: NearPair, most: int) -> None:
    slot = pair.slots[0]
    warn_user(
        f"near contacts of {slot.body!r} and {slot.other or 'world'!r}: got {most} terms within {1e3 * REACH:g} mm; allowed: as many "
        f"as slots, {len(pair.slots)}, so the status of such steps is MAX_ITERATIONS; give near_contacts(..., slots={most + 2})"
    )


def present(pair: NearPair, lead: torch.Size) -> Tensor:
    """The terms that the slots have, (N, K, 3), none of which bounces; none where they belong to another batch."""
    terms = [slot.term.detach() for slot in pair.slots]
    if any(term.shape[:-1] != lead for term in terms):
        return NONE.expand(lead.numel(), len(terms), 3)
    return plain(torch.stack([term.reshape(-1, 3) for term in terms], 1))


def plain(terms: Tensor) -> Tensor:
    """Terms (..., 3), none of which bounces, in memory of their own."""
    result = terms.clone()
    result[..., 0] -= BOUNCING * (result[..., 0] >= BOUNCING)
    return result


def put(pair: NearPair, terms: Tensor, fading: float) -> None:
    """Give slots their terms (..., K, 3). Slots that have them stay as they are, so that packed parameters are used again."""
    for slot, term in zip(pair.slots, terms.unbind(-2), strict=True):
        if slot.term.shape != term.shape or not torch.equal(slot.term, term):
            slot.term = term.contiguous()
        if float(slot.fading) != fading:
            slot.fading = torch.tensor(fading, dtype=torch.float64)


def reach_of_step(pair: NearPair, z: Tensor, timestep: Tensor) -> Tensor:
    """Gap (N,) [m] at the start of a step below which places of the pair may touch in it, at the speeds before it."""
    way = _travel(pair, z, timestep)
    if not any("restitution" in slot.fields for slot in pair.slots):
        return REACH + way
    return (RESTING_ACCELERATION * timestep.detach() ** 2).clamp_min(REACH) + way  # bodies bounce from here on (`arrives`)


def _travel(pair: NearPair, z: Tensor, timestep: Tensor) -> Tensor:
    """Largest way by which points of the pair come nearer in a step (N,) [m], at the speeds before it."""
    velocity, way = torch.zeros(len(z), 3, dtype=torch.float64), torch.zeros(len(z), dtype=torch.float64)
    for body, shape, sign in zip(pair.bodies, pair.slots[0].shapes, (1, -1), strict=True):
        if body >= 0:
            state = z[:, STATE_SIZE * body : STATE_SIZE * (body + 1)]
            velocity = velocity + sign * state[:, 3:6]
            way = way + shape.swing * torch.linalg.vector_norm(state[:, 10:13], dim=-1)
    way = way + torch.linalg.vector_norm(velocity, dim=-1)
    return way * timestep.detach().reshape(-1).expand(len(z))


def search_in_torch(pair: NearPair, z: Tensor, reach: Tensor) -> tuple[Tensor, Tensor]:
    """The search of `NearSteps` without the kernel."""
    core, other = pair.slots[0].shapes
    terms = all_terms(core, other).double()
    one = torch.tensor([1.0, 0.0, 0.0, 0.0], dtype=torch.float64)
    poses = []
    for body in pair.bodies:
        state = z[:, STATE_SIZE * body : STATE_SIZE * (body + 1)] if body >= 0 else None
        x, q = (z.new_zeros(len(z), 3), one.expand(len(z), 4)) if state is None else (state[:, :3], state[:, 6:10])
        poses.append((x[:, None].expand(-1, len(terms), 3), q[:, None].expand(-1, len(terms), 4)))
    candidates = near_term(core, other, poses[0], poses[1], terms.expand(len(z), -1, 3), 0.0)
    gap = torch.where(candidates.possible, candidates.gap, torch.inf)
    near = torch.maximum(gap, candidates.line) < reach[:, None]  # a blended gap of lines that are far apart is no sign that they come near
    least, order = torch.where(near, gap, torch.inf).sort(dim=-1, stable=True)
    slots = len(pair.slots)
    order, least = order[:, :slots], least[:, :slots]
    chosen = torch.where(torch.isfinite(least)[..., None], terms[order], float(NOTHING))
    if chosen.shape[1] < slots:
        chosen = torch.cat((chosen, chosen.new_full((len(z), slots - chosen.shape[1], 3), float(NOTHING))), 1)
    overlap = least[:, 0] < -REACH  # then terms in excess do not count: the nearest ones lead out
    return chosen, torch.where(overlap, near.sum(-1).clamp_max(slots), near.sum(-1))


def keys(terms: Tensor) -> Tensor:
    """A number for each term (..., 3); −1 for none."""
    kind, first, second = terms.long().unbind(-1)
    return torch.where(kind < 0, -1, (kind * BASE + first) * BASE + second)


def numbers(terms: Tensor) -> Tensor:
    """Terms (..., 3), each as one number: 0 for none. A table of these takes a third of the memory, and nearly all of it is zero."""
    return keys(terms) + 1


def terms_of(numbers: Tensor) -> Tensor:
    """The terms (..., 3) that have these numbers."""
    key = numbers - 1
    first, second = (key // BASE) % BASE, key % BASE
    terms = torch.stack((key // (BASE * BASE), first, second), -1).double()
    return torch.where((key < 0)[..., None], NONE, terms)


def rested(structure: Structure, pairs: Sequence[NearPair], w: Tensor, kappa: float) -> Tensor:
    """A start w (..., n) with numbers at rest for slots that the kernel has left at zero, unless all is zero after a failed step."""
    layout, w = structure.layout, w.clone()
    solved, place = w[..., : 6 * structure.num_bodies].any(-1), {id(each): name for name, each in structure.named_contacts().items()}
    gap, level = (torch.full(w.shape[:-1], number, dtype=w.dtype) for number in (2 * REACH, kappa))
    for slot in (slot for pair in pairs for slot in pair.slots):
        both = layout.places[f"contacts.{place[id(slot)]}"][:2]
        empty = solved & (w[..., both[1].start] == 0)
        for where, values in zip(both, at_rest(slot, gap, level), strict=True) if bool(empty.any()) else ():
            w[..., where] = torch.where(empty[..., None], values.detach(), w[..., where])
    return w


def merge(old: Tensor, found: Tensor, keep_others: bool = False) -> Tensor:
    """The terms found (N, K, 3), each in the slot that had it before, the others in slots that are free then.

    keep_others: whether slots that are not needed keep their terms, too. Else they have none.
    """
    before, new = keys(old), keys(found)
    stays = (before[:, :, None] == new[:, None, :]).any(-1) & (before >= 0)
    fresh = (new[:, :, None] != before[:, None, :]).all(-1) & (new >= 0)
    order = (~fresh).to(torch.int8).argsort(dim=-1, stable=True)  # fresh ones first, the nearest before the others
    choice = (stays.long() * 2 + (before >= 0).long()).argsort(dim=-1, stable=True)  # slots: empty ones first, then those of other terms
    rank = torch.empty_like(choice).scatter_(-1, choice, torch.arange(choice.shape[-1]).expand_as(choice))
    entering = torch.gather(order, 1, rank.clamp_max(order.shape[-1] - 1))
    enters = torch.gather(found, 1, entering[..., None].expand_as(found))
    free = ~stays & (rank < fresh.sum(-1, keepdim=True))
    rest = old if keep_others else torch.where(stays[..., None], old, NONE)
    return torch.where(free[..., None], enters, rest)
