"""Energy and momentum of a mechanism.

Over one step the velocity is constant, so a state alone gives the values of the step that led to it. At a configuration itself, the
discrete Legendre transform gives the momentum: the mean of the arriving and the leaving momentum (Marsden and West 2001, section 1.5).
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchdojo import quaternion as quat
from torchdojo.dynamics.integrator import BodyStates, body_momentum, split_state

__all__ = ["body_momenta", "kinetic_energy", "momentum"]


def body_momenta(
    mass: Tensor, inertia: Tensor, timestep: Tensor, state: BodyStates, following: BodyStates | None = None
) -> tuple[Tensor, Tensor]:
    """Linear (world) and angular (body frame) momentum of each body at the configuration of `state`, each (..., nb, 3)."""
    h = timestep[..., None, None]
    linear = mass[..., None] * state.twist.v
    angular = body_momentum(state.twist.omega, inertia, h, -1)
    if following is not None:
        linear = 0.5 * (linear + mass[..., None] * following.twist.v)
        angular = 0.5 * (angular + body_momentum(following.twist.omega, inertia, h, +1))
    return linear, angular


def kinetic_energy(mass: Tensor, inertia: Tensor, timestep: Tensor, z: Tensor, z_next: Tensor | None) -> Tensor:
    """Kinetic energy [J], (...): ½ pᵀp/m + ½ ℓᵀJ⁻¹ℓ. Without `z_next`, ½ m v² + ½ ωᵀJω of the step that led to z."""
    state = split_state(z)
    if z_next is None:
        v, omega = state.twist
        spin = (inertia @ omega[..., None]).squeeze(-1)
        return 0.5 * (mass * (v * v).sum(-1) + (omega * spin).sum(-1)).sum(-1)
    linear, angular = body_momenta(mass, inertia, timestep, state, split_state(z_next))
    rate = torch.linalg.solve(inertia, angular[..., None]).squeeze(-1)
    return 0.5 * ((linear * linear).sum(-1) / mass + (angular * rate).sum(-1)).sum(-1)


def momentum(mass: Tensor, inertia: Tensor, timestep: Tensor, z: Tensor, z_next: Tensor | None) -> Tensor:
    """Linear [N·s] and angular momentum about the common center of mass [N·m·s], world frame, (..., 6)."""
    state = split_state(z)
    linear, angular = body_momenta(mass, inertia, timestep, state, None if z_next is None else split_state(z_next))
    m = mass[..., None]
    center = (m * state.pose.x).sum(-2, keepdim=True) / m.sum(-2, keepdim=True)
    spin = quat.rotate(state.pose.q, angular) + quat.cross(state.pose.x - center, linear)
    return torch.cat((linear.sum(-2), spin.sum(-2)), dim=-1)
