"""Contacts of a kind at once, outside of the step: a robot of meshes has hundreds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch

from torchdojo.elements.contact import Contact
from torchdojo.elements.element import Pose
from torchdojo.parameters import bind, plain_class, stacked

__all__ = ["ContactsOfAKind", "contacts_by_kind"]


class ContactsOfAKind(NamedTuple):
    """names: of the contacts. contact: one with the fields of all, stacked. poses: (..., contacts, ·) of their bodies."""

    names: list[str]
    contact: Contact
    poses: list[Pose]


def contacts_by_kind(contacts: Mapping[str, Contact], bodies: Sequence[str], pose: Pose) -> Iterator[ContactsOfAKind]:
    """Contacts of each kind, in the order of their first ones. pose: (..., nb + 1, ·) of the bodies and, behind them, of the world."""
    number: dict[str | None, int] = {name: i for i, name in enumerate([*bodies, None])}
    kinds: dict[tuple[object, ...], list[str]] = {}
    for name, contact in contacts.items():
        kinds.setdefault((*contact.kind(), len(contact.body_names)), []).append(name)
    for names in kinds.values():
        members = [contacts[name] for name in names]
        fields = {key: stacked([getattr(contact, key) for contact in members], ndim) for key, ndim in members[0].fields.items()}
        places = torch.tensor([[number[body] for body in contact.body_names] for contact in members]).unbind(-1)
        poses = [Pose(pose.x[..., place, :], pose.q[..., place, :]) for place in places]
        yield ContactsOfAKind(names, bind(members[0], fields, plain_class(members[0])), poses)
