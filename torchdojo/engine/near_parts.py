"""Parts of batches of steps with near contacts (engine/near_set.py), and stacked numbers in place of those that a mechanism has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from torchdojo.dynamics.system import System
from torchdojo.elements.near_contact import NearContact
from torchdojo.engine.backend import Backend
from torchdojo.engine.kernel import Kernel
from torchdojo.engine.near_slots import NONE, NearPair
from torchdojo.engine.reference import Reference
from torchdojo.gradients.request import Request, StepInputs
from torchdojo.parameters import stacked, transforming
from torchdojo.state.layout import STATE_SIZE
from torchdojo.state.unknowns import GRAVITY, INERTIA, MASS, TIMESTEP
from torchdojo.structure import Structure

__all__ = ["Numbers", "Part", "StackedNumbers", "Taken", "TermsOfParts", "check_seen", "rows_of", "system_of", "without_terms"]


class Part(NamedTuple):
    """Some environments of a step, and the share of its timestep that they take.

    lead: batch dimensions of the step. rows: (n,) numbers of the environments in it. most: (n,) iterations after which no solve begins.
    """

    lead: torch.Size
    rows: Tensor
    share: float
    most: Tensor

    def at(self, index: Tensor) -> Part:
        """Some of the environments."""
        return self._replace(rows=self.rows[index], most=self.most[index])

    def of(self, value: Tensor, events: int) -> Tensor:
        """Rows (n or 1, ...) of a value with batch dimensions."""
        event = value.shape[value.ndim - events :]
        if value.ndim == events:
            return value[None]
        return value.expand(*self.lead, *event).reshape(self.lead.numel(), *event)[self.rows]


class Taken(NamedTuple):
    """A step of a part that was solved: what was given, its solution and its terms in all slots of the batch, pair by pair."""

    part: Part
    given: StepInputs
    solution: Tensor
    terms: list[Tensor]


def rows_of(given: StepInputs, index: Tensor) -> StepInputs:
    """The inputs of some environments, without a warm start."""
    lead, count = given.z.shape[:-1], given.z.shape[:-1].numel()
    z, u, wrench = (None if t is None else t.expand(*lead, t.shape[-1]).reshape(count, -1)[index] for t in given[:3])
    assert z is not None and u is not None
    return StepInputs(z, u, wrench)


def check_seen() -> None:
    if torch.compiler.is_compiling() or transforming():
        raise RuntimeError(
            "near contacts: terms are chosen by the values of states, which torch.func and torch.compile hide; use .backward(), "
            "mech.jacobians or mech.linearize"
        )


# -- stacked numbers -----------------------------------------------------------------------------------------------------------------------


class Numbers(NamedTuple):
    """timestep (...,) [s], gravity (..., 3) [m/s²], masses (..., nb) [kg] and inertias (..., nb, 3, 3) [kg·m²]."""

    timestep: Tensor
    gravity: Tensor
    masses: Tensor
    inertias: Tensor

    @classmethod
    def of_structure(cls, structure: Structure) -> Numbers:
        bodies = list(structure.named_bodies().values())
        return cls(
            structure.timestep, structure.gravity, stacked([body.mass for body in bodies], 0), stacked([body.inertia for body in bodies], 2)
        )

    @torch.no_grad()
    def gain(self, part: Part, start: Tensor, end: Tensor, leaving: float, times: float) -> Tensor:
        """Whether bodies gain more energy in a step of environments (n,) than gravity gives them.

        Contacts take energy, except where bodies leave an overlap. The bound is generous.

        Args:
            start, end: states before and after the step. leaving: speed at which overlaps are left [m/s]. times: factor of the bound.
        """
        masses, inertias = part.of(self.masses, 1), part.of(self.inertias, 3)

        def kinetic(z: Tensor) -> Tensor:
            state = z.reshape(len(part.rows), -1, STATE_SIZE)
            v, omega = state[..., 3:6], state[..., 10:13]
            spin = (inertias @ omega[..., None]).squeeze(-1)
            return 0.5 * ((masses * (v * v).sum(-1)).sum(-1) + (omega * spin).sum((-1, -2)))

        gravity, timestep = part.of(self.gravity, 1), part.share * part.of(self.timestep, 0)
        falls = torch.linalg.vector_norm(gravity, dim=-1) * timestep
        bound = 4 * kinetic(start) + masses.sum(-1) * (8 * falls * falls + 2 * leaving**2 + 1e-3)
        return kinetic(end) > times * bound


class StackedNumbers:
    """Stacked parameters for steps, in place of those that the mechanism has. The terms of slots go in among them.

    Args:
        select: the backend of a request, whichever parameters it has.
        parameters: as in `System.stack_parameters`.
    """

    def __init__(self, select: Callable[[Request], Backend], pairs: Sequence[NearPair], parameters: Sequence[Tensor]) -> None:
        self._select, self.parameters, self._pairs = select, list(parameters), pairs
        self.numbers = Numbers(*(parameters[place] for place in (TIMESTEP, GRAVITY, MASS, INERTIA)))
        self._groups: list[tuple[int, int, list[int]]] | None = None

    def backend(self, request: Request, lead: torch.Size, terms: Sequence[Tensor], fading: float) -> Backend:
        """The backend of a request in whose slots are these terms (N, K, 3) of each pair."""
        base = self._select(request)
        if self._groups is None:
            self._groups = self._places(system_of(base))
        parameters, all_terms = list(self.parameters), torch.cat(list(terms), 1)
        for place_of_term, place_of_fading, slots in self._groups:
            parameters[place_of_term] = all_terms[:, slots].reshape(*lead, len(slots), 3)
            parameters[place_of_fading] = torch.full((len(slots),), fading, dtype=torch.float64)
        return base.having(parameters, request)

    def _places(self, system: System) -> list[tuple[int, int, list[int]]]:
        """Places of terms and of fading among the parameters, and the numbers of their slots, of each group of near contacts."""
        number = {id(slot): i for i, slot in enumerate(slot for pair in self._pairs for slot in pair.slots)}
        groups = [group for group in system.groups if isinstance(group.template, NearContact)]
        slots_of_groups = [[number[id(member)] for member in group.members] for group in groups]
        return [(*places, slots) for places, slots in zip(_places_of_terms(system), slots_of_groups, strict=True)]


class TermsOfParts:
    """The terms of slots between steps that are parts of others: in place of `NearMemory`, whose terms belong to whole steps."""

    def __init__(self, slots: Sequence[NearContact]) -> None:
        self.slots = slots
        self._terms: Tensor | None = None

    def take(self, batch: torch.Size) -> Tensor | None:
        return self._terms if self._terms is not None and self._terms.shape[:-1] == batch else None

    def put(self, terms: Tensor) -> None:
        self._terms = terms

    def forget_others(self, batch: torch.Size) -> None:
        self._terms = self.take(batch)


def system_of(backend: Backend) -> System:
    """The system of the kernel or of the reference."""
    if isinstance(backend, Reference):
        return backend.system
    assert isinstance(backend, Kernel)
    return backend.program.system


def without_terms(backend: Backend) -> list[Tensor]:
    """The stacked parameters of a backend, with empty slots."""
    parameters = list(backend.stacked)
    for term, fading in _places_of_terms(system_of(backend)):
        count = parameters[term].shape[-2]
        parameters[term], parameters[fading] = NONE.expand(count, 3), torch.ones(count, dtype=torch.float64)
    return parameters


def _places_of_terms(system: System) -> list[tuple[int, int]]:
    """Places of the terms and of the fading of each group of near contacts among the parameters."""
    named = zip(system.groups, system.named_parameters(range(len(system.parameter_specs()))), strict=True)
    return [(places["term"], places["fading"]) for group, places in named if isinstance(group.template, NearContact)]
