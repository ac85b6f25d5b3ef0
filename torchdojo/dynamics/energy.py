"""Energy and momentum of a mechanism.

Over one step the velocity is constant, so a state alone gives the values of the step that led to it. At a configuration itself, the
discrete Legendre transform gives the momentum (Marsden and West 2001, section 1.5). It is the mean of the arriving and the leaving
momentum.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchdojo import quaternion as quat
from torchdojo.dynamics.integrator import body_momentum
from torchdojo.elements.element import previous_pose
from torchdojo.elements.joints import StandardJoint
from torchdojo.elements.tendon import Tendon
from torchdojo.parameters import stacked
from torchdojo.state.layout import BodyStates, split_state
from torchdojo.structure import Structure

__all__ = ["kinetic_energy", "momentum", "potential_energy"]


def _masses(structure: Structure) -> tuple[Tensor, Tensor]:
    """Masses (..., nb) [kg] and inertias (..., nb, 3, 3) [kg·m²]."""
    bodies = structure.named_bodies().values()
    return stacked([body.mass for body in bodies], 0), stacked([body.inertia for body in bodies], 2)


def _body_momenta(
    mass: Tensor, inertia: Tensor, timestep: Tensor, state: BodyStates, following: BodyStates | None
) -> tuple[Tensor, Tensor]:
    """Linear (world) and angular (body frame) momentum of each body at the configuration of `state`, each (..., nb, 3)."""
    h = timestep[..., None, None]
    linear = mass[..., None] * state.twist.v
    angular = body_momentum(state.twist.omega, inertia, h, -1)
    if following is not None:
        linear = 0.5 * (linear + mass[..., None] * following.twist.v)
        angular = 0.5 * (angular + body_momentum(following.twist.omega, inertia, h, +1))
    return linear, angular


def kinetic_energy(structure: Structure, z: Tensor, z_next: Tensor | None) -> Tensor:
    """Kinetic energy [J], (...): ½ pᵀp/m + ½ ℓᵀJ⁻¹ℓ + ½ armature rate². Without `z_next`, ½ m v² + ½ ωᵀJω of the step that led to z.

    Rates are those of joints and of tendons with armature.
    """
    total = _body_energy(*_masses(structure), structure.timestep, z, z_next)
    for joint in structure.named_joints().values():
        if isinstance(joint, StandardJoint) and joint.armature is not None:
            total = total + joint.armature_energy(_rate(structure, joint, z, z_next))
    for tendon in structure.named_tendons().values():
        if tendon.armature is not None:
            total = total + 0.5 * tendon.armature * _length_rate(structure, tendon, z, z_next) ** 2
    return total


def _body_energy(mass: Tensor, inertia: Tensor, timestep: Tensor, z: Tensor, z_next: Tensor | None) -> Tensor:
    state = split_state(z)
    if z_next is None:
        v, omega = state.twist
        spin = (inertia @ omega[..., None]).squeeze(-1)
        return 0.5 * (mass * (v * v).sum(-1) + (omega * spin).sum(-1)).sum(-1)
    linear, angular = _body_momenta(mass, inertia, timestep, state, split_state(z_next))
    rate = torch.linalg.solve(inertia, angular[..., None]).squeeze(-1)
    return 0.5 * ((linear * linear).sum(-1) / mass + (angular * rate).sum(-1)).sum(-1)


def _rate(structure: Structure, joint: StandardJoint, z: Tensor, z_next: Tensor | None) -> Tensor:
    """Rates of a joint's coordinates over the step that led to z, or the mean of these and the rates of the next step."""
    h = structure.timestep[..., None]
    states = structure.element_states(z, joint)
    poses, before = [pose for pose, _ in states], [previous_pose(*state, h) for state in states]
    rate = joint.rate(before, poses, h)
    return rate if z_next is None else 0.5 * (rate + joint.rate(poses, structure.element_poses(z_next, joint), h))


def _length_rate(structure: Structure, tendon: Tendon, z: Tensor, z_next: Tensor | None) -> Tensor:
    """The rate of a length over the step that led to z, or the mean of this and the rate of the next step, (...)."""
    states = structure.element_states(z, tendon)
    before = [previous_pose(*state, structure.timestep[..., None]) for state in states]
    rate = tendon.path(*before).rate([twist for _, twist in states])
    if z_next is None:
        return rate
    following = [twist for _, twist in structure.element_states(z_next, tendon)]
    return 0.5 * (rate + tendon.path(*[pose for pose, _ in states]).rate(following))


def potential_energy(structure: Structure, z: Tensor) -> Tensor:
    """Potential energy [J], (...), of gravity, zero at the origin, and of springs of joints and tendons and of couplings that yield."""
    mass, _ = _masses(structure)
    total = -(mass * (structure.gravity[..., None, :] * split_state(z).pose.x).sum(-1)).sum(-1)
    for joint in structure.named_joints().values():
        if isinstance(joint, StandardJoint):
            total = total + joint.spring_energy(*structure.element_poses(z, joint))
    for tendon in structure.named_tendons().values():
        total = total + tendon.energy(*structure.element_poses(z, tendon))
    for coupling in structure.named_couplings().values():
        if coupling.compliance is not None:
            total = total + coupling.energy(*structure.element_poses(z, coupling))
    return total


def momentum(structure: Structure, z: Tensor, z_next: Tensor | None) -> Tensor:
    """Linear [N·s] and angular momentum about the common center of mass [N·m·s], world frame, (..., 6)."""
    mass, inertia = _masses(structure)
    state = split_state(z)
    linear, angular = _body_momenta(mass, inertia, structure.timestep, state, None if z_next is None else split_state(z_next))
    m = mass[..., None]
    center = (m * state.pose.x).sum(-2, keepdim=True) / m.sum(-2, keepdim=True)
    spin = quat.rotate(state.pose.q, angular) + quat.cross(state.pose.x - center, linear)
    return torch.cat((linear.sum(-2), spin.sum(-2)), dim=-1)
