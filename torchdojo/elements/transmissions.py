"""Transmissions between frames on bodies: a length, and the wrench on each body per force of the drive.

A transmission has a force f and a torque τ on each of its bodies. Its velocity is their power, Σ f·v + τ·ω. So a drive with the force F
gives the bodies the power F times velocity, exactly. P₁ and P₂ are the origins of two frames, R₁ and R₂ their axes, and d = P₁ − P₂:

    site alone          no length. The gear (g, γ) is a force R₁ g at P₁ and a torque R₁ γ.
    site and reference  length g·R₂ᵀd + γ·log(R₂ᵀR₁). Forces are ±R₂ g at P₁ and P₂, torques ±R₂ γ, and the carrier gets the couple
                        R₂ g × d.
    crank and slider    length g (a·d − √D), D = (a·d)² + r² − |d|². A rod of length r leads from P₁ to a slider on the line through P₂
                        along its z axis a. Wrenches are the gradient of the length.

    turn of a joint     as site and reference with g = 0, between the frames that a joint has on its bodies; γ is in axes of the child or of
                        the parent.
    floating joint      no length. The gear (g, γ) is a force g in axes of the world at the anchor of the body, and a torque γ in axes of
                        the body or of the world.
    adhesion            no length. Of the contacts of a body, k have a gap below a reach. Each pulls the body by -n/k at the point of
                        contact, and the other body by n/k, with the normal n from the other body.

All are MuJoCo's. The carrier of two sites is the nearest body from which joints lead to both. MuJoCo takes the force of two sites off the
joints that move both alike, and this is what the couple does. It keeps the angular momentum of a mechanism with a carrier. Where no body
carries both sites, the world takes the couple. Two free bodies then keep their linear momentum, and the angular one if g is zero.

The velocity of two sites is the rate of g·R₂ᵀd if the carrier has the reference, as a hand that is seen from its base. Otherwise the length
also changes as the reference turns on the carrier. The velocity along γ is the rate of the turn if the turn is about γ, or small.

Where the rod does not reach the line, D ≤ 0, the length is g a·d, that of the foot of the crank on the line, and wrenches are its gradient.
As D goes to zero from above, wrenches grow as 1/√D, without bound.

Adhesion counts contacts at the start of the step, and its pulls jump where k changes. MuJoCo counts the contacts that it has found, within
the margins of geoms; hard contacts rest at a small gap, so that a reach takes their place.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from torchdojo import quaternion as quat
from torchdojo.elements.tendon_paths import Frame

__all__ = [
    "JointFrame",
    "Moving",
    "Touching",
    "Transmission",
    "adhesion",
    "at_site",
    "between_sites",
    "distance_to_axis",
    "floating",
    "slider_crank",
    "turn_of_joint",
]


@dataclass
class JointFrame:
    """The frame of a joint on one of its bodies, as `td.Site` has them. Both have the same axes where the angles are zero."""

    body: str | None
    position: Tensor
    orientation: Tensor


class Moving(NamedTuple):
    """A body at a state, (..., 3 or 4) each: position, velocity, orientation, angular velocity in its axes. The default is the world."""

    x: Tensor = torch.zeros(3, dtype=torch.float64)
    v: Tensor = torch.zeros(3, dtype=torch.float64)
    q: Tensor = quat.identity()
    omega: Tensor = torch.zeros(3, dtype=torch.float64)


States = Callable[[str | None], Moving]  # of a body by name; None: the world
Wrench = tuple[str | None, Tensor, Tensor]


class Touching(NamedTuple):
    """A contact at a state: its bodies, the gap (...), the normal from the other body (..., 3), the point of contact (..., 3)."""

    body: str
    other: str | None
    gap: Tensor
    normal: Tensor
    point: Tensor


class Transmission(NamedTuple):
    """A transmission at a state.

    length: (...) [m, rad], or None where it has none. wrenches: body, force (..., 3) in the world frame, torque (..., 3) in the axes of the
    body, per force of the drive, about its center of mass.
    """

    length: Tensor | None
    wrenches: list[Wrench]

    def velocity(self, states: States) -> Tensor:
        """The power of the wrenches per force of the drive, (...)."""
        powers = [(force * states(body).v).sum(-1) + (torque * states(body).omega).sum(-1) for body, force, torque in self.wrenches]
        return functools.reduce(torch.add, powers)


def at_site(site: Frame, gear: Tensor, states: States) -> Transmission:
    """A force and a torque in the axes of a site. gear: (..., 6)."""
    push, turn = (quat.rotate(site.orientation, part) for part in gear.split(3, dim=-1))
    return Transmission(None, [(site.body, quat.rotate(states(site.body).q, push), turn + quat.cross(site.position, push))])


def between_sites(site: Frame, reference: Frame, carrier: str | None, gear: Tensor, states: States) -> Transmission:
    """A force and a torque between two sites, in the axes of the `reference`.

    Args:
        carrier: the body that takes the couple of the forces; None: the world. gear: (..., 6).
    """
    site_state, reference_state = states(site.body), states(reference.body)
    push, turn = (quat.rotate(reference.orientation, part) for part in gear.split(3, dim=-1))
    force, torque, apart = quat.rotate(reference_state.q, push), quat.rotate(reference_state.q, turn), _apart(site, reference, states)
    offset = quat.multiply(site.orientation, quat.conjugate(reference.orientation))
    angle = quat.rotation_vector(quat.multiply(quat.multiply(quat.conjugate(reference_state.q), site_state.q), offset))
    length = (push * quat.inverse_rotate(reference_state.q, apart)).sum(-1) + (turn * angle).sum(-1)
    site_torque = quat.cross(site.position, quat.inverse_rotate(site_state.q, force)) + quat.inverse_rotate(site_state.q, torque)
    couple = quat.inverse_rotate(states(carrier).q, quat.cross(force, apart))
    return Transmission(
        length,
        [
            (site.body, force, site_torque),
            (reference.body, -force, -(quat.cross(reference.position, push) + turn)),
            (carrier, torch.zeros_like(force), couple),
        ],
    )


def turn_of_joint(parent: Frame, child: Frame, gear: Tensor, in_child: bool, states: States) -> Transmission:
    """A torque between the bodies of a joint with three rotations, in axes of its frame on the child or on the parent. gear: (..., 3)."""
    none = torch.zeros_like(gear)
    if in_child:
        return between_sites(parent, child, None, torch.cat((none, -gear), dim=-1), states)
    return between_sites(child, parent, None, torch.cat((none, gear), dim=-1), states)


def floating(child: Frame, gear: Tensor, in_child: bool, states: States) -> Transmission:
    """A force in axes of the world and a torque, on a body that floats.

    Args:
        child: the frame of the joint on the body. gear: (..., 6), force and torque. in_child: whether the torque is in axes of the body.
    """
    state = states(child.body)
    force, torque = gear.split(3, dim=-1)
    body_torque = torque if in_child else quat.inverse_rotate(state.q, torque)
    return Transmission(None, [(child.body, force, body_torque + quat.cross(child.position, quat.inverse_rotate(state.q, force)))])


def slider_crank(crank: Frame, slider: Frame, rod: Tensor, gear: Tensor, states: States) -> Transmission:
    """A rod from the crank to a slider on the z axis of the frame `slider`. rod: its length, (...) [m]. gear: (...)."""
    crank_state, slider_state = states(crank.body), states(slider.body)
    local_axis, apart = _axis(slider), _apart(crank, slider, states)
    axis = quat.rotate(slider_state.q, local_axis)
    along = (axis * apart).sum(-1)
    square = along * along + rod * rod - (apart * apart).sum(-1)
    reaches = square > 0
    root = torch.sqrt(torch.where(reaches, square, 1.0))
    inverse = torch.where(reaches, 1 / root, 0.0)
    rest = (1 - along * inverse)[..., None]
    force = gear[..., None] * (rest * axis + inverse[..., None] * apart)
    by_axis = gear[..., None] * rest * apart
    crank_torque = quat.cross(crank.position, quat.inverse_rotate(crank_state.q, force))
    slider_torque = quat.cross(local_axis, quat.inverse_rotate(slider_state.q, by_axis))
    slider_torque = slider_torque - quat.cross(slider.position, quat.inverse_rotate(slider_state.q, force))
    length = gear * (along - torch.where(reaches, root, 0.0))
    return Transmission(length, [(crank.body, force, crank_torque), (slider.body, -force, slider_torque)])


def adhesion(touching: Sequence[Touching], reach: Tensor, gear: Tensor, states: States) -> Transmission:
    """Equal pulls along the normals of the contacts of a body. reach: gap below which they act, (...) [m]. gear: (...)."""
    near = torch.stack(torch.broadcast_tensors(*[contact.gap.detach() < reach for contact in touching]), dim=-1)
    weights = torch.where(near, (gear / near.sum(-1).clamp_min(1))[..., None], 0.0)
    wrenches: list[Wrench] = []
    for contact, weight in zip(touching, weights.unbind(-1), strict=True):
        pull = weight[..., None] * contact.normal
        for body, force in ((contact.body, -pull), (contact.other, pull)):
            state = states(body)
            wrenches.append((body, force, quat.inverse_rotate(state.q, quat.cross(contact.point - state.x, force))))
    return Transmission(None, wrenches)


def distance_to_axis(crank: Frame, slider: Frame, states: States) -> Tensor:
    """The least length of a rod from the crank to the axis of the slider [m], (...)."""
    apart = quat.inverse_rotate(states(slider.body).q, _apart(crank, slider, states))
    return torch.linalg.vector_norm(quat.cross(_axis(slider), apart), dim=-1)


def _axis(slider: Frame) -> Tensor:
    """The z axis of a frame in the axes of its body, (3,)."""
    return quat.rotate(slider.orientation, slider.orientation.new_tensor([0.0, 0.0, 1.0]))


def _apart(first: Frame, second: Frame, states: States) -> Tensor:
    """From the origin of the second frame to that of the first one, in the world frame (..., 3)."""
    one, two = (states(frame.body).x + quat.rotate(states(frame.body).q, frame.position) for frame in (first, second))
    return one - two
