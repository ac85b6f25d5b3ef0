"""Drag of a medium, in the model that MuJoCo computes from inertias (documentation, chapter Computation, "Passive forces", fluid).

A body counts as the box of uniform density that has its mass m and principal moments I. Half its edges are

    rᵢ = sqrt(3/(2m) (Iⱼ + Iₖ − Iᵢ)),

and with the mean half-edge r, density ρ, viscosity β, and velocities v, ω along the principal axes the wrench at the center of mass is

    force_i  = −2 ρ rⱼ rₖ |vᵢ| vᵢ − 6 π β r vᵢ
    torque_i = −½ ρ rᵢ (rⱼ⁴ + rₖ⁴) |ωᵢ| ωᵢ − 8 π β r³ ωᵢ.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from torchdojo import quaternion as quat
from torchdojo.elements.bodies import Body
from torchdojo.mechanism import Mechanism
from torchdojo.state.layout import split_state

__all__ = ["Boxes", "boxes", "drag"]


class Boxes(NamedTuple):
    """The box of every body. axes: (..., nb, 3, 3) principal axes in columns, body frame. half: (..., nb, 3) half edges [m]."""

    axes: Tensor
    half: Tensor


def boxes(mech: Mechanism) -> Boxes:
    """The boxes whose drag is that of the bodies, for `drag`. They take most of its time and depend on masses and inertias alone."""
    mass = torch.stack([cast(Body, body).mass for body in mech.bodies.values()], dim=-1)[..., None]
    inertia = torch.stack([cast(Body, body).inertia for body in mech.bodies.values()], dim=-3)
    fixed = inertia.detach()
    diagonal = torch.diag_embed(fixed.diagonal(dim1=-2, dim2=-1))
    along_axes = (fixed - diagonal).abs().amax((-2, -1), keepdim=True) <= 1e-12 * fixed.abs().amax((-2, -1), keepdim=True)
    axes = torch.where(along_axes, torch.eye(3).to(fixed), torch.linalg.eigh(fixed)[1])
    moments = (axes.mT @ inertia @ axes).diagonal(dim1=-2, dim2=-1)
    return Boxes(axes, torch.sqrt(1.5 / mass * (moments.sum(-1, keepdim=True) - 2 * moments).clamp_min(0.0)))


def drag(mech: Mechanism, z: Tensor, density: Any = 4000.0, viscosity: Any = 0.1, *, like: Boxes | None = None) -> Tensor:
    """The wrench of a resting medium on every body, (..., 6 nb) [N, N·m], for ``mech.step(z, u, wrench=drag(mech, z))``.

    It is explicit: the wrench at the velocities of z acts over the whole step. A body of mass m with half-edges r needs
    h ρ rⱼ rₖ |v| / m below one, which the swimmer has up to 16 m/s at h = 0.01 s.

    Args:
        z: (..., 13 nb). density: ρ [kg/m³], viscosity: β [Pa·s]; defaults are those of Gymnasium's swimmer. (Water has 1000 and 0.001.)
        like: `boxes(mech)`, where many steps have the same masses.
    """
    state = split_state(z)
    axes, half = boxes(mech) if like is None else like
    mean = half.mean(-1, keepdim=True)
    v = (axes.mT @ quat.inverse_rotate(state.pose.q, state.twist.v)[..., None])[..., 0]
    w = (axes.mT @ state.twist.omega[..., None])[..., 0]
    others = half.roll(1, -1), half.roll(2, -1)
    force = -2 * density * others[0] * others[1] * v.abs() * v - 6 * math.pi * viscosity * mean * v
    torque = -0.5 * density * half * (others[0] ** 4 + others[1] ** 4) * w.abs() * w - 8 * math.pi * viscosity * mean**3 * w
    force, torque = ((axes @ part[..., None])[..., 0] for part in (force, torque))
    return torch.cat((quat.rotate(state.pose.q, force), torque), dim=-1).flatten(-2)
