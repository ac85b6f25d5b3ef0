"""Contacts as data: the bodies that touch after a step, the places, and the forces."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchdojo.elements.bodies import Body
from torchdojo.elements.contacts import Contact
from torchdojo.elements.near_contact import NearContact
from torchdojo.elements.together import ContactsOfAKind, contacts_by_kind
from torchdojo.engine.backends import Backends
from torchdojo.engine.near_gaps import terms_at
from torchdojo.engine.periods import check_repeat
from torchdojo.geometry.near_terms import OUTSIDE, REACH
from torchdojo.parameters import broadcast_shapes, transforming
from torchdojo.solver.options import SolverOptions
from torchdojo.state.layout import split_state, with_world
from torchdojo.structure import Structure

__all__ = ["ContactReport", "TouchingPair", "contact_report", "pair_of"]


class TouchingPair(NamedTuple):
    """Two bodies that touch in one environment.

    body, other: names; a fixed surface is "world", or has its name in a scene. contacts: names of the k contacts that act.
    points, normals, gaps, forces: (k, 3), (k, 3), (k,) and (k, 3) of these contacts, as in `ContactReport`.
    """

    body: str
    other: str
    contacts: tuple[str, ...]
    points: Tensor
    normals: Tensor
    gaps: Tensor
    forces: Tensor

    @property
    def force(self) -> Tensor:
        """The sum of the forces on `body` [N], world frame, (3,)."""
        return self.forces.sum(0)


class ContactReport(NamedTuple):
    """All contacts of a mechanism after steps, in the world frame. The bodies of a pair have the order of `mech.bodies`.

    names: of the n contacts. pairs: (body, other) of each; `other` is a body, "world", or the fixed shape or plane of a scene.
    active: (..., n) whether a contact acts. Its impulse over its mass is then larger than its gap over the timestep: as kappa shrinks, the
        gap vanishes, and the impulse stays.
    points: (..., n, 3) on the surface of `body` nearest to that of `other` [m]. normals: (..., n, 3) unit, from `other` to `body`.
    gaps: (..., n) signed distances of the surfaces [m]. forces: (..., n, 3) means over the step or period, on `body` from `other` [N].
        Forces on `other` are the opposite. NaN for a user's own contacts that lack `force`.

    A slot of near contacts without a place has a gap of 2 mm at the center of `body`.

    All but `active` is differentiable in z and in the impulses.
    """

    names: tuple[str, ...]
    pairs: tuple[tuple[str, str], ...]
    active: Tensor
    points: Tensor
    normals: Tensor
    gaps: Tensor
    forces: Tensor

    def touching(self, *environment: int) -> list[TouchingPair]:
        """The pairs that touch in one environment, given by its place in the batch: ``report.touching(3)``, ``report.touching(3, t)``.

        Raises:
            ValueError: another number of indices than batch dimensions. IndexError: an index out of range.
        """
        if len(environment) != self.active.ndim - 1:
            raise ValueError(f"touching: got {environment}; allowed: {self.active.ndim - 1} numbers, one for each batch dimension")
        acting: dict[tuple[str, str], list[int]] = {}
        for i in self.active[environment].nonzero().flatten().tolist():
            acting.setdefault(self.pairs[i], []).append(i)
        return [
            TouchingPair(*pair, tuple(self.names[i] for i in places), *(value[environment][places] for value in self[3:]))
            for pair, places in acting.items()
        ]

    def force(self, body: str, other: str) -> Tensor:
        """The sum of the forces on `body` from `other` [N], world frame, (..., 3), of all contacts between the two.

        Raises:
            ValueError: no contact between these.
        """
        signs = [1.0 if pair == (body, other) else -1.0 if pair == (other, body) else 0.0 for pair in self.pairs]
        if not any(signs):
            raise ValueError(f"force: no contact between {body!r} and {other!r}; pairs are {list(dict.fromkeys(self.pairs))}")
        places = [i for i, sign in enumerate(signs) if sign]
        return (self.forces[..., places, :] * self.forces.new_tensor([signs[i] for i in places])[:, None]).sum(-2)


def contact_report(structure: Structure, backends: Backends, options: SolverOptions, z: Tensor, out: Any, repeat: int) -> ContactReport:
    """`Mechanism.contact_report`."""
    structure.check_state(z)
    z, impulses = _after(z, out)
    slots = {name: one for name, one in structure.named_contacts().items() if isinstance(one, NearContact)}
    if slots and not transforming() and not _terms_stand(structure, slots, options, z, impulses / check_repeat(repeat)):
        with terms_at(backends, options, z, always=True):
            return _report(structure, z, out, impulses, repeat)
    return _report(structure, z, out, impulses, repeat)


def _terms_stand(structure: Structure, slots: Mapping[str, NearContact], options: SolverOptions, z: Tensor, impulses: Tensor) -> bool:
    """Whether impulses belong to the terms in slots. If not, no slot acts, so that any terms will do.

    Raises:
        ValueError: slots act, at terms of another step.
    """
    lead, places = z.shape[:-1], [structure.impulse_layout[f"contacts.{name}"].start for name in slots]
    acts = impulses.detach()[..., places] > OUTSIDE * options.kappa / (2 * REACH)
    remedy = (
        "near contacts keep the places of the last step alone, and impulses are of others; allowed: mech.contact_report(out.z, out) after "
        "each step of a loop, out = mech.step(z, u)"
    )
    batches = {tuple(slot.term.shape[:-1]) for slot in slots.values()}
    if batches != {tuple(lead)}:
        if bool(acts.any()):
            raise ValueError(f"contact_report: got states of batch {tuple(lead)} after a step of batch {max(batches)}; {remedy}")
        return False
    empty = torch.stack([slot.term[..., 0] < 0 for slot in slots.values()], -1)
    if bool((acts & empty).any()):
        name = list(slots)[int((acts & empty).reshape(-1, len(slots)).any(0).nonzero()[0])]
        raise ValueError(f"contact_report: contact {name!r} acts and has no place; {remedy}")
    return bool(impulses.detach()[..., places].any())


def _report(structure: Structure, z: Tensor, out: Any, impulses: Tensor, repeat: int) -> ContactReport:
    size = sum(piece.stop - piece.start for piece in structure.impulse_layout.values())
    if impulses.shape[-1:] != (size,):
        raise ValueError(f"contact_report: got impulses of shape {tuple(impulses.shape)}; allowed: (..., {size}), as of step and rollout")
    contacts, order = structure.named_contacts(), {name: i for i, name in enumerate(structure.bodies)}
    over_time = hasattr(out, "u")
    if over_time:  # batch dimensions of parameters stand before the time: move the time in front of all
        z, impulses = z.movedim(-2, 0), impulses.movedim(-2, 0)
    rows: dict[str, Tensor] = {}
    for group in contacts_by_kind(contacts, list(structure.bodies), with_world(split_state(z)[0])):
        if _is_empty(group.contact):
            rows |= dict.fromkeys(group.names, _nothing(group))
            continue
        rows |= dict(zip(group.names, _rows(structure, group, impulses / check_repeat(repeat), order).unbind(-2), strict=True))
    columns = torch.broadcast_tensors(*(rows[name] for name in contacts))
    table = torch.stack(columns, dim=-2) if rows else z.new_zeros(*z.shape[:-1], 0, 11)
    table = table.movedim(0, -3) if over_time else table
    active, points, normals, gaps, forces = table.split((1, 3, 3, 1, 3), dim=-1)
    pairs = tuple(pair_of(contact, order) for contact in contacts.values())
    return ContactReport(tuple(contacts), pairs, active[..., 0] > 0, points, normals, gaps[..., 0], forces)


def _rows(structure: Structure, group: ContactsOfAKind, impulses: Tensor, order: dict[str, int]) -> Tensor:
    """Whether each contact acts, its point, normal, gap and force, side by side, (..., contacts, 11)."""
    members = [structure.named_contacts()[name] for name in group.names]
    pieces = [structure.impulse_layout[f"contacts.{name}"] for name in group.names]
    gaps, normals, levers = group.contact._witness(tuple(group.poses))
    contact_impulses = impulses[..., torch.tensor([list(range(piece.start, piece.stop)) for piece in pieces])]
    h = structure.timestep[..., None]
    forces = group.contact.world_impulse(contact_impulses, *group.poses) / h[..., None]  # contacts that fade give their share
    masses = [torch.stack(torch.broadcast_tensors(*(body.mass for body in side)), -1) for side in _sides(structure, members)]
    pressing = contact_impulses[..., 0]
    if isinstance(group.contact, NearContact):
        # Many places share the load of a face: those of a pair act together.
        together = torch.tensor([[one.body_names == other.body_names for other in members] for one in members])
        pressing = (pressing * group.contact.near(tuple(group.poses)).weight) @ together.to(pressing)
    active = pressing * h * torch.stack([1 / mass for mass in torch.broadcast_tensors(*masses)]).sum(0) > gaps
    # The body of a contact is the one whose point it is: the second of a pair for the corners of its box.
    turned = torch.tensor([contact.other is not None and order[contact.body] > order[contact.other] for contact in members])[:, None]
    points = group.poses[0].x + levers
    points = torch.where(turned, points - gaps[..., None] * normals, points)
    normals, forces = (torch.where(turned, -value, value) for value in (normals, forces))
    values = [active[..., None].to(gaps), points, normals, gaps[..., None], forces]
    batch = broadcast_shapes(*(value.shape[:-1] for value in values))
    return torch.cat([value.expand(*batch, value.shape[-1]) for value in values], dim=-1)


def _is_empty(contact: Contact) -> bool:
    """Whether no slot of a pair has a term, as of most pairs of a robot."""
    return isinstance(contact, NearContact) and not transforming() and bool((contact.term[..., 0] < 0).all())


def _nothing(group: ContactsOfAKind) -> Tensor:
    """The row (..., 11) of slots without a term: the center of the body, and a gap of twice the reach."""
    x = group.poses[0].x[..., 0, :]
    far = x.new_tensor([0.0, 0.0, 1.0, 2 * REACH, 0.0, 0.0, 0.0]).expand(*x.shape[:-1], 7)
    return torch.cat((torch.zeros_like(x[..., :1]), x, far), -1)


def _sides(structure: Structure, contacts: list[Contact]) -> list[list[Body]]:
    """The bodies of contacts: the first ones, and the others where there are."""
    ends = zip(*(contact.body_names for contact in contacts), strict=True)
    return [[structure.named_bodies()[name] for name in side if name is not None] for side in ends]


def pair_of(contact: Contact, order: Mapping[str, int]) -> tuple[str, str]:
    """The bodies of a contact in their order, or its body and the name of the fixed surface. order: body -> its number."""
    if contact.other is None:
        return contact.body, contact.surface_name
    first, second = sorted((contact.body, contact.other), key=order.__getitem__)
    return first, second


def _after(z: Tensor, out: Any) -> tuple[Tensor, Tensor]:
    """The states after the steps of a result, and their impulses."""
    if isinstance(out, Tensor):
        return z, out.double()
    after, impulses = getattr(out, "z", None), getattr(out, "impulses", None)
    if not isinstance(after, Tensor) or not isinstance(impulses, Tensor):
        raise TypeError(f"contact_report: got out={type(out).__name__}; allowed: what step or rollout returned, or impulses (..., n)")
    if hasattr(out, "u"):  # a trajectory
        z = z[..., 1:, :] if z.shape == after.shape else z
        after = after[..., 1:, :]
    if z.shape != after.shape or not (transforming() or torch.equal(z.detach(), after.detach().to(z))):
        raise ValueError(
            "contact_report: z is not the state after the steps, to which impulses belong; allowed: mech.contact_report(out.z, out). For "
            "other states, give impulses: mech.contact_report(z, out.impulses)"
        )
    return z, impulses.double()
