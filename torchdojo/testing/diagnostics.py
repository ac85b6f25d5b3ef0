"""Effects of kappa on a mechanism: the height at which resting contacts float, and the speed at which sticking contacts creep.

`kappa` is absolute, so its meaning depends on scale (dynamics/README.md). On the central path γ φ = κ, so a contact that carries the
impulse γ floats at φ = κ/γ. ξ ∘ η = κ e makes a contact with friction slip at |η₂₃| = κ |ξ₂₃| / (ξ₁² − |ξ₂₃|²).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from torchdojo.elements.contacts import NonlinearContact
from torchdojo.elements.joints import Floating, Joint
from torchdojo.posing.placement import parts

if TYPE_CHECKING:
    from torchdojo.gradients.reference_step import StepOutput
    from torchdojo.mechanism import Mechanism

__all__ = ["creep", "free_parts", "kappa_for_gap", "resting_gap"]


def resting_impulse(mech: Mechanism, *, contacts: int | None = None) -> Tensor:
    """Impulse γ of one contact when its parts lie at rest: weight × h / contacts [N·s], (...).

    Parts that joints connect lie together on their contacts in equal shares; of separate parts, the smallest γ counts. A part on a joint to
    the world counts with its full weight, though the joint carries some of it.

    Args:
        contacts: how many contacts share the weight of each part; default: all it has, which makes γ small and the gap an upper estimate.

    Raises:
        ValueError: a mechanism without contacts or without gravity.
    """
    weight_per_contact = []
    for bodies, count in _parts(mech):
        if count:
            mass = torch.stack(torch.broadcast_tensors(*[mech.bodies[name].mass for name in bodies])).sum(0)
            weight_per_contact.append(mass / (contacts or count))
    gravity = torch.linalg.vector_norm(mech.gravity, dim=-1)
    if not weight_per_contact:
        raise ValueError("a resting contact needs a contact; this mechanism has none")
    if not bool((gravity > 0).all()):
        raise ValueError(f"a resting contact needs gravity; got {mech.gravity.tolist()} m/s²")
    least = torch.stack(torch.broadcast_tensors(*weight_per_contact)).amin(0)
    return (least * gravity * mech.timestep).detach()


def kappa_for_gap(mech: Mechanism, gap: float = 1e-5, *, contacts: int | None = None) -> float:
    """The kappa at which contacts of `mech` at rest float `gap` [m] above the ground; for `td.SolverOptions(kappa=...)`.

    Over a batch of parameters the smallest is returned. `contacts` as in `resting_impulse`.

    Raises:
        ValueError: a gap that is not positive, a mechanism without contacts or without gravity.
    """
    if not gap > 0:
        raise ValueError(f"gap: got {gap}; allowed: positive numbers [m]")
    return float(gap * resting_impulse(mech, contacts=contacts).min())


def resting_gap(mech: Mechanism, kappa: float | None = None, *, contacts: int | None = None) -> float:
    """Height at which contacts of `mech` at rest float above the ground [m], at `kappa` (default: the kappa of `mech.options`).

    Over a batch of parameters the largest is returned. `contacts` as in `resting_impulse`.

    Raises:
        ValueError: a kappa that is not positive, a mechanism without contacts or without gravity.
    """
    kappa = mech.options.kappa if kappa is None else kappa
    if not kappa > 0:
        raise ValueError(f"kappa: got {kappa}; allowed: positive numbers")
    return float(kappa / resting_impulse(mech, contacts=contacts).min())


def creep(mech: Mechanism, output: StepOutput) -> Tensor:
    """Slip that κ alone causes at each contact with friction, κ|ξ₂₃|/(ξ₁² − |ξ₂₃|²) [m/s], from the impulses of one step.

    Returns:
        (..., number of contacts with friction), contacts in order. Zero where a contact carries less than a tenth of `resting_impulse` or
        slides (|ξ₂₃| above 99 % of ξ₁): motion there is not creep.
    """
    layout, speeds = mech.impulse_layout, []
    kappa = mech.options.kappa
    bearing = 0.1 * resting_impulse(mech) if mech.contacts and bool((mech.gravity != 0).any()) else mech.gravity.new_zeros(())
    for name, contact in mech.contacts.items():
        if isinstance(contact, NonlinearContact):
            impulse = output.impulses[..., layout[f"contacts.{name}"]]
            bound, tangential = impulse[..., 1], torch.linalg.vector_norm(impulse[..., 2:4], dim=-1)
            sticks = (impulse[..., 0] > bearing) & (tangential <= 0.99 * bound)
            speeds.append(torch.where(sticks, kappa * tangential / (bound**2 - tangential**2), torch.zeros_like(bound)))
    return torch.stack(speeds, dim=-1) if speeds else output.impulses[..., :0]


def free_parts(mech: Mechanism) -> list[list[str]]:
    """Names of the bodies of each part that no joint but a `Floating` one connects to the world."""
    held = {cast(Joint, j).child for j in mech.joints.values() if cast(Joint, j).parent is None and not isinstance(j, Floating)}
    return [bodies for bodies, _ in _parts(mech) if not held & set(bodies)]


def _parts(mech: Mechanism) -> list[tuple[list[str], int]]:
    """The parts of the mechanism, and how many contacts each has."""
    return [(bodies, sum(contact.body in bodies for contact in mech.named_contacts().values())) for bodies in parts(mech)]
