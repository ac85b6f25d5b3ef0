"""Pairs with near contacts (elements/near_contact.py) at poses that no step led to: their distances, and the terms of their slots.

The terms in slots belong to the last step. Functions of other states choose terms for these, and leave the slots as they were.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from torchdojo.elements.near_contact import NearContact
from torchdojo.engine.backends import Backends
from torchdojo.engine.near_set import near_pairs
from torchdojo.engine.near_slots import Balls, NearPair, search_in_torch
from torchdojo.geometry.closest import distance
from torchdojo.geometry.convex import Convex, convex_of
from torchdojo.geometry.near_terms import NOTHING, REACH
from torchdojo.geometry.polytopes import Polytope
from torchdojo.native.near import near_terms
from torchdojo.parameters import transforming
from torchdojo.solver.options import SolverOptions
from torchdojo.state.layout import STATE_SIZE

__all__ = ["Cores", "overlaps", "terms_at"]

_NOTHING = torch.tensor([float(NOTHING), 0.0, 0.0], dtype=torch.float64)


class Cores:
    """The distances of pairs of cores, all at once."""

    def __init__(self, pairs: Sequence[NearPair]) -> None:
        self.balls = Balls(pairs)
        sides = list(zip(*(pair.slots[0].shapes for pair in pairs), strict=True)) or [(), ()]
        self.vertices, self.radii = [_padded(side) for side in sides], [_numbers([core.radius for core in side]) for side in sides]
        self.axes = [_axes(side) for side in sides]

    @torch.no_grad()
    def gaps(self, z: Tensor, most: float, pairs: Tensor | None = None) -> Tensor:
        """Signed distances (N, pairs) [m] in the states z (N, 13 nb). Where the balls around shapes are farther apart than `most`, the
        distance of the balls.

        Args:
            pairs: numbers of those that are asked for; None: all.
        """
        chosen = torch.arange(len(self.balls.shapes)) if pairs is None else pairs
        result = self.balls.gaps(z, chosen)
        rows, columns = (result <= most).nonzero(as_tuple=True)
        if len(rows):
            states = self.balls.states(z)
            close_pairs = chosen[columns]
            shapes = [
                Convex(vertices[close_pairs], None if axes is None else axes[close_pairs], radii[close_pairs])
                for vertices, axes, radii in zip(self.vertices, self.axes, self.radii, strict=True)
            ]
            sides = [states[rows, shape] for shape in self.balls.shapes[chosen[columns]].unbind(-1)]
            poses = [(side[:, :3], side[:, 6:10]) for side in sides]
            result[rows, columns] = distance(shapes[0], poses[0], shapes[1], poses[1]).distance
        return result


def _numbers(values: Sequence[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def _padded(cores: Sequence[Polytope]) -> Tensor:
    """The corners (P, n, 3); those with fewer have their last one several times."""
    most = max((len(core.vertices) for core in cores), default=0)
    rows = [torch.cat((core.vertices, core.vertices[-1:].expand(most - len(core.vertices), 3))) for core in cores]
    return torch.stack(rows) if rows else torch.zeros(0, 0, 3, dtype=torch.float64)


def _axes(cores: Sequence[Polytope]) -> Tensor | None:
    """The semi-axes of ellipsoids as columns (P, 3, 3), zeros for polytopes; None where there are no ellipsoids."""
    if all(core.semi_axes is None for core in cores):
        return None
    axes_of_cores = [convex_of(core).axes for core in cores]
    return torch.stack([torch.zeros(3, 3, dtype=torch.float64) if axes is None else axes for axes in axes_of_cores])


@torch.no_grad()
def overlaps(backends: Backends, options: SolverOptions, z: Tensor) -> Tensor | None:
    """Signed distances (N, pairs) [m] of shapes that overlap in the states z (N, 13 nb), infinite where they do not.

    None where the kernel does not search.
    """
    parameters = backends.map_parameters(options)
    if parameters is None:
        return None
    balls = backends.near_balls.gaps(z)
    gaps = torch.full_like(balls, torch.inf)
    meet = balls < 0
    for number in meet.any(0).nonzero().flatten().tolist():
        rows = meet[:, number].nonzero().flatten()
        near = near_terms(parameters, backends.near[number].contact, z[rows], torch.zeros(len(rows), dtype=torch.float64), 1)
        gaps[rows, number] = torch.where(near.counts > 0, near.gaps[:, 0], torch.inf)
    return gaps


@contextlib.contextmanager
def terms_at(backends: Backends, options: SolverOptions, z: Tensor, *, always: bool = False) -> Iterator[None]:
    """A block in which slots have the terms that are near in the states z (..., 13 nb), if theirs belong to another batch.

    Args:
        always: whether slots get these terms also if their own belong to this batch.
    """
    lead = z.shape[:-1]
    slots = [contact for contact in backends.structure.named_contacts().values() if isinstance(contact, NearContact)]
    hidden = transforming() or torch.compiler.is_compiling() or z.shape[-1] != STATE_SIZE * backends.structure.num_bodies
    if not slots or hidden or (not always and all(slot.term.shape[:-1] == lead for slot in slots)):
        yield
        return
    pairs, kept = near_pairs(backends.structure), [(slot, slot.term, slot.fading) for slot in slots]
    nearest = _nearest_terms(backends, options, pairs, z.detach().cpu().double().reshape(-1, z.shape[-1]))
    try:
        for pair, terms in zip(pairs, nearest, strict=True):
            for slot, term in zip(pair.slots, terms.reshape(*lead, len(pair.slots), 3).unbind(-2), strict=True):
                slot.term = term.contiguous() if bool((term[..., 0] != NOTHING).any()) else _NOTHING
        yield
    finally:
        for slot, term, fading in kept:
            slot.term, slot.fading = term, fading


def _nearest_terms(backends: Backends, options: SolverOptions, pairs: Sequence[NearPair], flat: Tensor) -> list[Tensor]:
    """The nearest terms (N, slots, 3) of each pair within the reach."""
    parameters, reach = backends.map_parameters(options), torch.full((len(flat),), REACH, dtype=torch.float64)
    if parameters is None:
        return [search_in_torch(pair, flat, reach)[0] for pair in pairs]
    return [near_terms(parameters, pair.contact, flat, reach, len(pair.slots)).terms for pair in pairs]
