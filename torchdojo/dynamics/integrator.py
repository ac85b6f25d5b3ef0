"""The first-order variational integrator (Brüdigam and Manchester 2021; Howell et al. 2025, section III-D)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torchdojo import quaternion as quat
from torchdojo.elements.element import Pose, Twist

__all__ = ["LARGEST_SINE", "body_momentum", "change_timestep", "momentum_change", "next_pose"]

LARGEST_SINE = math.sqrt(0.5)  # sine of half the largest angle that a body turns in one step (see StepProblem.residual)
MOST_CORRECTIONS = 40  # maximum in `change_timestep`, which takes 5 at 0.1 rad per step and 25 at 1 rad


def next_pose(pose: Pose, twist: Twist, timestep: Tensor) -> Pose:
    """x⁺ = x + h v⁺, q⁺ = q ⊗ [√(1 − (h/2)²|ω⁺|²), (h/2) ω⁺]; `timestep` broadcastable to (..., 1)."""
    return Pose(pose.x + timestep * twist.v, quat.multiply(pose.q, quat.increment(twist.omega, timestep)))


def body_momentum(omega: Tensor, inertia: Tensor, timestep: Tensor, side: int) -> Tensor:
    """Discrete angular momentum J ω s(ω) + side·(h/2) ω × Jω, body frame [N·m·s].

    Side +1 expresses it in the frame at which the velocity starts, side −1 in the frame at which the velocity ends.
    """
    spin = (inertia @ omega[..., None]).squeeze(-1)
    scale = torch.sqrt(1 - (0.25 * timestep * timestep) * (omega * omega).sum(-1, keepdim=True))
    return scale * spin + side * 0.5 * timestep * quat.cross(omega, spin)


def change_timestep(omega: Tensor, inertia: Tensor, old: Tensor, new: Tensor) -> Tensor:
    """The velocity of a step of length `new` that arrives with the same angular momentum as ω on a step of length `old`, (..., nb, 3).

    Newton's method with one factorization solves J ω' s'(ω') − (h'/2) ω' × Jω' = J ω s(ω) − (h/2) ω × Jω. A body too fast for either
    step has no solution on the motion's branch, and keeps ω.

    Args:
        omega: body frame [rad/s], (..., nb, 3). inertia: (..., nb, 3, 3) [kg·m²]. old, new: [s], broadcastable to (..., nb, 1).
    """

    def derivative(y: Tensor) -> Tensor:
        spin, eye = (inertia @ y[..., None])[..., 0], torch.eye(3, dtype=y.dtype, device=y.device)
        sine = 0.5 * new * y
        scale = torch.sqrt(1 - (sine * sine).sum(-1, keepdim=True))[..., None]
        turned = (quat.cross(y[..., None, :], inertia.mT) - quat.cross(spin[..., None, :], eye)).mT
        half = 0.5 * new[..., None]
        return scale * inertia - half / scale * spin[..., None] * sine[..., None, :] - half * turned

    with torch.no_grad():
        target, y, matrix = body_momentum(omega, inertia, old, -1), omega.detach(), derivative(omega)
        inverse, singular = torch.linalg.inv_ex(matrix)
        tolerance = 8 * torch.finfo(y.dtype).eps * _length(target)
        for _ in range(MOST_CORRECTIONS):
            missing = target - body_momentum(y, inertia, new, -1)
            good = _length(missing) <= tolerance
            if bool(good.all()):
                break
            y = y + (inverse @ missing[..., None])[..., 0]
        good = good & (old * _length(omega) < 2 * LARGEST_SINE) & (new * _length(y) < 2 * LARGEST_SINE) & (singular == 0)[..., None]
        y = torch.where(good, y, omega)
    if not (torch.is_grad_enabled() and any(t.requires_grad for t in (omega, inertia, old, new))):
        return y
    # One more Newton step, from a constant point, has the derivative of the solution.
    with torch.no_grad():
        fixed = torch.where(good, y, 0.0)
        matrix = torch.where(good[..., None], derivative(fixed), torch.eye(3, dtype=y.dtype, device=y.device))
    missing = body_momentum(torch.where(good, omega, 0.0), inertia, old, -1) - body_momentum(fixed, inertia, new, -1)
    return torch.where(good, fixed + torch.linalg.solve(matrix, missing[..., None])[..., 0], omega)


def _length(vector: Tensor) -> Tensor:
    return torch.linalg.vector_norm(vector, dim=-1, keepdim=True)


def momentum_change(
    mass: Tensor, inertia: Tensor, before: Twist, after: Twist, acceleration: Tensor, wrench: Tensor, timestep: Tensor
) -> Tensor:
    """Change of momentum over the step that impulses of joints and contacts must account for, (..., nb, 6).

    Args:
        mass: (..., nb) [kg]; inertia: (..., nb, 3, 3) [kg·m²].
        before, after: velocities that led to, and lead away from, the current configuration.
        acceleration: of gravity, broadcastable to (..., nb, 3) [m/s²].
        wrench: external force (world) and torque (body), (..., nb, 6) [N, N·m].
        timestep: broadcastable to (..., nb, 1) [s].
    """
    m = mass[..., None]
    linear = m * (after.v - before.v) - timestep * (m * acceleration + wrench[..., :3])
    angular = (
        body_momentum(after.omega, inertia, timestep, +1) - body_momentum(before.omega, inertia, timestep, -1) - timestep * wrench[..., 3:]
    )
    linear, angular = torch.broadcast_tensors(linear, angular)
    return torch.cat((linear, angular), dim=-1)
