"""The contacts of a robot with the ground."""

from __future__ import annotations

from torchdojo.elements.contact import Contact
from torchdojo.mechanism import Mechanism

__all__ = ["ground_contacts"]


def ground_contacts(mech: Mechanism) -> dict[str, Contact]:
    """The contacts of one body with the world."""
    return {name: contact for name, contact in mech.named_contacts().items() if contact.body_names[1:] in ((), (None,))}
