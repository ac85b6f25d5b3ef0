"""Contacts of a robot file that are closed where the file starts: which stay, which leave, and how many places they have."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from torchdojo.elements.contacts import Contact
from torchdojo.elements.near_contact import NearContact, slots_of
from torchdojo.elements.together import contacts_by_kind
from torchdojo.engine.near_gaps import Cores
from torchdojo.engine.near_set import NearPair, near_pairs
from torchdojo.engine.never_touching import configurations, sampled_parts
from torchdojo.geometry.near_terms import REACH
from torchdojo.io.report import Findings
from torchdojo.mechanism import Mechanism
from torchdojo.parameters import alike
from torchdojo.state.layout import split_state, with_world
from torchdojo.state.minimal import to_maximal

__all__ = ["contacts_at_the_start"]

TOUCHING = 1e-9  # [m] rounding of a contact that starts on its surface
ZERO = "with coordinates zero or nearest to it"  # within limits
SAMPLES = 64  # configurations in which links that never come apart overlap


def contacts_at_the_start(
    mech: Mechanism, free: Collection[str], findings: Findings, *, leave: bool, widen: bool
) -> dict[str, Contact] | None:
    """The contacts that a mechanism should have in place of those of its file; None where it has them.

    Shapes of links stand for what is inside of them, and often reach into links that are some joints away. Joints hold them there, and a
    step that must part them has no solution. So pairs of links that overlap at the start, or in all random configurations, do not touch, as
    in MoveIt's setup (Coleman et al. 2014). Pairs that only touch, such as closed fingers, get as many places as their faces have.

    Args:
        free: bodies whose contacts with the world are not looked at.
        findings: get what is left out, and what starts closed.
        leave: whether pairs may be left out, which nobody has asked for by name.
        widen: whether pairs may get more places, whose number nobody has given.
    """
    contacts = mech.named_contacts()
    fixed = {name: c for name, c in contacts.items() if getattr(c, "body", None) not in free or getattr(c, "other", None) is not None}
    if not fixed:
        return None
    start = _start(mech)
    touching = _touching(mech, fixed, start)
    alone = [name for name in touching if getattr(fixed[name], "other", None) is None]
    reason = (
        "they start at or below their surface with coordinates zero or nearest to it, and may lock the robot; ground=False leaves out z = 0"
    )
    findings.add("used", "contacts", alone, reason, "structure")
    inside = {name: fixed[name] for name in touching if name not in alone}
    if not inside:
        return None
    stuck = _stuck(mech, inside, start) if leave else {}
    reason = (
        f"they overlap {ZERO}, or in all configurations, where joints hold them, and no step could part them; "
        "contacts=td.Filter() keeps them"
    )
    findings.add("ignored", "contacts between bodies", dict.fromkeys("-".join(map(str, names)) for names in stuck), reason)
    rest = {name: contact for name, contact in inside.items() if contact.body_names not in stuck}
    labels = dict.fromkeys("-".join(map(str, contact.body_names)) for contact in rest.values())
    reason = (
        "they start in each other with coordinates zero or nearest to it, and are pushed apart; td.Filter(exclude=[...]) leaves pairs out"
    )
    findings.add("used", "bodies", labels, reason, "structure")
    firsts = {id(contact) for contact in rest.values()} if widen else set()
    wider = {id(pair.slots[-1]): pair for pair in near_pairs(mech) if id(pair.slots[0]) in firsts}
    result: dict[str, Contact] = {}
    for name, contact in contacts.items():
        if contact.body_names not in stuck:
            result[name] = contact
        if id(contact) in wider:
            result |= _more_slots(name, wider[id(contact)])
    return None if list(result) == list(contacts) else result


def _more_slots(last: str, pair: NearPair) -> dict[str, Contact]:
    """The slots that a pair lacks, if faces lie on each other, by names that follow that of its last one."""
    slots, label = pair.slots, last.removesuffix(str(len(pair.slots) - 1))
    return {f"{label}{k}": alike(slots[0], {}) for k in range(len(slots), slots_of(*slots[0].shapes))}


def _start(mech: Mechanism) -> Tensor:
    """The coordinates (1, n) of a start: zero, or the nearest within limits."""
    q = torch.zeros(1, mech.num_coordinates, dtype=torch.float64)
    for entry in mech.tree_order():
        limits = getattr(entry.joint, "limits", None)
        if limits is not None:
            lower, upper = (bound.detach().cpu().double().reshape(-1, bound.shape[-1]) for bound in limits)
            q[:, entry.coordinates] = torch.minimum(torch.maximum(q[:, entry.coordinates], lower.amin(0)), upper.amax(0))
    return q


def _stuck(mech: Mechanism, contacts: Mapping[str, Contact], start: Tensor) -> dict[tuple[str | None, ...], None]:
    """Pairs of links some of whose contacts are deeper inside each other than the reach at the start, or closed in all configurations."""
    part = sampled_parts(mech)
    linked = {name: contact for name, contact in contacts.items() if len({part[body] for body in contact.body_names}) == 1}
    if not linked:
        return {}
    deep = _touching(mech, linked, start, -REACH)
    always = _touching(mech, linked, configurations(mech, SAMPLES, torch.Generator().manual_seed(0)).cpu())
    return dict.fromkeys(linked[name].body_names for name in (*deep, *always))


def _touching(mech: Mechanism, contacts: Mapping[str, Contact], q: Tensor, most: float = TOUCHING) -> list[str]:
    """Names of the contacts with gaps of at most `most` [m] at all of these coordinates (N, n); of near contacts, the first of a pair."""
    # The reference computes states, since the kernel would have to be compiled first.
    z = to_maximal(mech.tree_order(), mech.num_bodies, q, torch.zeros_like(q), mech.timestep.detach().flatten()[0])
    result: list[str] = []
    plain = {name: contact for name, contact in contacts.items() if not isinstance(contact, NearContact)}
    poses = with_world(split_state(z)[0])
    for group in contacts_by_kind(plain, list(mech.bodies), poses):
        gaps = group.contact.distance(*group.poses)
        closed = gaps.reshape(-1, gaps.shape[-1]).amax(0) <= most
        result += [name for name, inside in zip(group.names, closed.tolist(), strict=True) if inside]
    names = {id(contact): name for name, contact in contacts.items()}
    near = [pair for pair in near_pairs(mech) if id(pair.slots[0]) in names]
    closed = Cores(near).gaps(z, TOUCHING).amax(0) <= most
    return result + [names[id(pair.slots[0])] for pair, inside in zip(near, closed.tolist(), strict=True) if inside]
