"""Explicit springs that are too stiff for the timestep.

A spring k on a coordinate of effective inertia J oscillates at √(k/J). An explicit one is stable to h²k/J = 4, but its motion is no longer
that of the spring long before, and contacts beside it make steps fail. An implicit spring is stable at any stiffness. J is the inertia that
a force on this coordinate alone meets at zero coordinates, 1/(M⁻¹)ᵢᵢ of the mass matrix M of the spanning tree.
"""

from __future__ import annotations

from typing import Any

import torch

from torchdojo.elements.joint_cones import KINEMATIC_FIELDS
from torchdojo.elements.joints import StandardJoint
from torchdojo.parameters import transforming, warn_user
from torchdojo.state.layout import split_state
from torchdojo.state.minimal import to_maximal

__all__ = ["STIFF", "stiff_springs", "warn_of_stiff_springs"]

STIFF = 0.1  # h²k/J. Cassie has 0.25 at h = 0.01, where 278 of 300 steps failed, and 0.01 at 0.002, where none did
RATE = 1e-3  # [m/s, rad/s] so small that velocities are linear in it


def stiff_springs(mech: Any) -> dict[str, float]:
    """Joints of the spanning tree with explicit springs of h²k/J above `STIFF`: name -> the largest h²k/J of their coordinates.

    Loops and couplings, which only add inertia, are left out. Of numbers that environments do not share, the stiffest spring on the mean
    masses and the longest step count; mechanisms whose geometry differs between environments are not looked at.
    """
    places, joints = mech.coordinate_places(), mech.named_joints()
    springs = {
        name: joint.spring.detach().reshape(-1, joint.num_coordinates).amax(0)
        for name, joint in joints.items()
        if name in places and isinstance(joint, StandardJoint) and not joint.implicit and bool(joint.spring.any())
    }
    geometry = [getattr(joints[name], field) for name in places for field in KINEMATIC_FIELDS if field in joints[name].fields]
    shared = not mech.timestep.ndim and all(number.ndim == 1 for number in geometry)
    if not springs or not shared or transforming():
        return {}
    n, h = mech.num_coordinates, float(mech.timestep.detach())
    with torch.no_grad():
        zero, rates = mech.timestep.new_zeros(n, n), RATE * torch.eye(n, dtype=torch.float64, device=mech.timestep.device)
        z = to_maximal(mech.tree_order(), mech.num_bodies, zero, rates, mech.timestep)
        twist = split_state(z).twist
        v, omega = twist.v / RATE, twist.omega / RATE  # (n, nb, 3)
        mass = torch.stack([body.mass.detach().mean() for body in mech.named_bodies().values()])
        inertia = torch.stack([body.inertia.detach().reshape(-1, 3, 3).mean(0) for body in mech.named_bodies().values()])
        matrix = torch.einsum("ibk,b,jbk->ij", v, mass, v) + torch.einsum("ibk,bkl,jbl->ij", omega, inertia, omega)
        for name, place in places.items():
            armature = getattr(joints[name], "armature", None)
            if armature is not None:
                matrix.diagonal()[place] += armature.detach().reshape(-1, place.stop - place.start).mean(0)
        mobility = torch.linalg.pinv(matrix, hermitian=True).diagonal()
    stiff = {name: float((h * h * k * mobility[places[name]]).max()) for name, k in springs.items()}
    return {name: value for name, value in stiff.items() if value > STIFF}


def warn_of_stiff_springs(mech: Any) -> None:
    """Warn of the springs of a mechanism that are too stiff for its timestep."""
    stiff = stiff_springs(mech)
    if not stiff:
        return
    worst = max(stiff, key=lambda name: stiff[name])
    joint, h = mech.joints[worst], float(mech.timestep.detach().max())
    others = f" and {len(stiff) - 1} more" if len(stiff) > 1 else ""
    warn_user(
        f"joint {worst!r}{others}: got an explicit spring of {float(joint.spring.max()):.4g} N·m/rad (N/m) with h²k/J = {stiff[worst]:.3g} "
        f"at h = {h:.4g} s, J being the inertia that it turns; allowed: up to {STIFF}. Build the joint with implicit=True, or take a "
        f"timestep of {h * (STIFF / stiff[worst]) ** 0.5:.2g} s"
    )
