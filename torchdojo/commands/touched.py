"""Which pairs of bodies touched in a simulation, and how many slots of near contacts it used."""

from __future__ import annotations

import torch
from torch import Tensor

from torchdojo.elements.near_contact import NearContact
from torchdojo.engine.contact_report import pair_of
from torchdojo.geometry.near_terms import REACH
from torchdojo.gradients.reference_step import StepOutput
from torchdojo.mechanism import Mechanism

__all__ = ["Touched"]


class Touched:
    """Counts pairs step by step. A pair touches where the impulses of its contacts, over the mass of the lighter side, exceed its gap over
    the timestep, as in `Mechanism.contact_report`.

    Attributes:
        steps: (body, other) -> number of steps in which the pair touched in some environment. slots: most slots of one environment.
    """

    def __init__(self, mech: Mechanism) -> None:
        self.mech, self.steps, self.slots = mech, dict[tuple[str, str], int](), 0
        order = {name: i for i, name in enumerate(mech.bodies)}
        contacts = mech.named_contacts()
        pairs = [pair_of(contact, order) for contact in contacts.values()]
        self.names = list(dict.fromkeys(pairs))
        numbers = {pair: i for i, pair in enumerate(self.names)}
        self.number = torch.tensor([numbers[pair] for pair in pairs], dtype=torch.long)
        self.places = [mech.impulse_layout[f"contacts.{name}"].start for name in contacts]
        masses = {name: body.mass.detach().double().min() for name, body in mech.named_bodies().items()}
        inverse = [sum(1 / float(masses[name]) for name in contact.body_names if name is not None) for contact in contacts.values()]
        self.inverse = torch.tensor(inverse, dtype=torch.float64)
        self.fades = torch.tensor([isinstance(contact, NearContact) for contact in contacts.values()], dtype=torch.bool)
        self.near = [contact for contact in contacts.values() if isinstance(contact, NearContact)]

    def add(self, out: StepOutput, distances: Tensor) -> None:
        """Note a step, with the distances (batch, contacts) after it."""
        if not self.names:
            return
        impulses = out.impulses[..., self.places].double().reshape(-1, len(self.number))
        gaps = distances.double().reshape(-1, len(self.number)).expand_as(impulses)
        impulses = torch.where(self.fades & (gaps >= REACH), 0.0, impulses)  # near contacts act on nothing beyond their reach
        total = torch.zeros(len(impulses), len(self.names), dtype=torch.float64).index_add_(1, self.number, impulses)
        step = float(self.mech.timestep.detach().min())
        # A single contact far away has κ over its gap; beside the contacts of its own pair that are near, it may be added.
        active = total[:, self.number] * step * self.inverse > gaps
        acting = torch.zeros_like(total).index_add_(1, self.number, active.double()).amax(0) > 0
        for i in acting.nonzero().flatten().tolist():
            self.steps[self.names[i]] = self.steps.get(self.names[i], 0) + 1
        if self.near:
            used = [torch.broadcast_to(slot.term[..., 0] >= 0, out.status.shape).reshape(-1) for slot in self.near]
            self.slots = max(self.slots, int(torch.stack(used, -1).sum(-1).max()))
