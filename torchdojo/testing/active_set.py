"""Which contacts, limits and frictions act in a step: the modes that a solution on the central path has in hard contact (κ → 0).

Every cone ties an impulse to a velocity or a gap, with a product of κ: one of the pair survives κ → 0. It is the larger one after the
velocity (a gap over the timestep) is multiplied with the mass that the impulse moves, `Element.effective_mass`. Near κ itself neither
is larger, and modes of such contacts are a matter of degree.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, cast

import torch
from torch import Tensor

from torchdojo.dynamics.residual import StepProblem
from torchdojo.elements.contacts import Contact, LinearContact, NonlinearContact
from torchdojo.elements.joint_cones import JointFriction, JointLimits
from torchdojo.elements.joint_drive import JointDrive
from torchdojo.elements.velocity_limits import JointVelocityLimits

if TYPE_CHECKING:
    from torchdojo.mechanism import Mechanism

__all__ = ["ActiveContact", "ActiveSet", "active_set"]


class ActiveContact(NamedTuple):
    """State of a contact in a step.

    mode: "open", "sticking" or "sliding"; a closed contact without friction slides.
    gap [m]: the slack of the contact's first row, φ⁺ of a hard contact. impulse: γ [N·s].
    """

    mode: str
    gap: float
    impulse: float


class ActiveSet(NamedTuple):
    """Modes of all contacts, limits and frictions in a step.

    contacts: by name, in order. limits: per joint with limits the acting ones, such as ["lower 0"] for the lower limit of coordinate 0.
        velocities: the same of limits of speed; "lower" is the one that keeps the rate above minus the speed.
    frictions: per joint with friction the mode of each free coordinate, "sticking" or "sliding".
    drives: per joint whose servo has a range the coordinates whose force is clipped, such as ["0"].
    """

    contacts: dict[str, ActiveContact]
    limits: dict[str, list[str]]
    frictions: dict[str, list[str]]
    velocities: dict[str, list[str]]
    drives: dict[str, list[str]]


def active_set(mech: Mechanism, problem: StepProblem, w: Tensor) -> ActiveSet:
    """Modes at the solution w (num_unknowns,) of a problem of one environment."""
    contact_names = {id(contact): name for name, contact in mech.contacts.items()}
    joint_names = {id(joint): name for name, joint in mech.joints.items()}
    h, result = float(problem.timestep), ActiveSet({}, {}, {}, {}, {})
    for group, masses in zip(problem.system.groups, problem.effective_masses(), strict=True):
        if not group.slack_index.shape[-1]:
            continue
        places = zip(group.members, w[group.impulse_index], w[group.slack_index], strict=True)
        for (element, impulse, slack), mass in zip(places, masses[0].expand(len(group.members), -1), strict=True):
            if isinstance(element, JointLimits):
                sides = [f"{bound} {i}" for bound, side in zip(("lower", "upper"), element.joint.limited, strict=True) for i in side]
                acts = (impulse * h > mass * slack).tolist()
                result.limits[joint_names[id(element.joint)]] = [side for side, act in zip(sides, acts, strict=True) if act]
            elif isinstance(element, JointVelocityLimits):
                sides = [f"{bound} {i}" for bound in ("lower", "upper") for i in element.joint.velocity_limited]
                acts = (impulse > mass * slack).tolist()
                result.velocities[joint_names[id(element.joint)]] = [side for side, act in zip(sides, acts, strict=True) if act]
            elif isinstance(element, JointFriction):
                room, rate = (torch.stack(t.tensor_split(2)) for t in (impulse, slack))
                slides = (mass * rate.amax(0) > room.amin(0)).tolist()
                if isinstance(element, JointDrive):
                    clipped = [str(i) for i, clips in zip(element.joint.driven, slides, strict=True) if clips]
                    result.drives[joint_names[id(element.joint)]] = clipped
                    continue
                result.frictions[joint_names[id(element.joint)]] = ["sliding" if slide else "sticking" for slide in slides]
            elif id(element) in contact_names:
                result.contacts[contact_names[id(element)]] = _contact(cast(Contact, element), impulse, slack, float(mass[0]), h)
    return result._replace(contacts={name: result.contacts[name] for name in mech.contacts if name in result.contacts})


def _contact(contact: Contact, impulse: Tensor, slack: Tensor, mass: float, h: float) -> ActiveContact:
    gamma, gap = float(impulse[0]), float(slack[0])
    if gamma * h <= mass * gap:
        return ActiveContact("open", gap, gamma)
    room, speed = 0.0, 0.0  # the remaining friction, and the speed of the slip
    if isinstance(contact, NonlinearContact):
        xi, eta = contact.sliding_pair(impulse, slack)
        room, speed = float(xi[0] - xi[1:].norm()), float(eta[0] + eta[1:].norm())
    elif isinstance(contact, LinearContact):
        room, speed = float(slack[1]), float(impulse[1])
    return ActiveContact("sticking" if room > mass * speed else "sliding", gap, gamma)
