"""Explicit springs that are too stiff for the timestep.

A spring k on a coordinate of effective inertia J oscillates at √(k/J). An explicit one is stable to h²k/J = 4, but its motion is no longer
that of the spring long before, and contacts beside it make steps fail. An implicit spring is stable at any stiffness. J is the inertia that
a force on this coordinate alone meets at zero coordinates, 1/(M⁻¹)ᵢᵢ of the mass matrix M of the spanning tree. M has the armatures and,
since dampers D are implicit, h D.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchdojo.elements.joint_cones import KINEMATIC_FIELDS
from torchdojo.elements.joints import StandardJoint
from torchdojo.parameters import stacked, transforming, warn_user
from torchdojo.state.layout import split_state
from torchdojo.state.minimal import to_maximal

__all__ = ["STIFF", "stiff_springs", "warn_of_stiff_springs"]

# Bound of h²k/J. Cassie has 0.25 at h = 0.01, where 278 of 300 steps failed, and 0.01 at 0.002, where none did. The half-cheetah has 0.11,
# and the toes of dm_control's dog 0.21. They stay explicit, because implicit springs would damp them.
STIFF = 0.22
RATE = 1e-3  # [m/s, rad/s] so small that velocities are linear in it


def stiff_springs(mech: Any) -> dict[str, float]:
    """Joints of the spanning tree with explicit springs of h²k/J above `STIFF`: name -> the largest h²k/J of their coordinates.

    Loops and couplings, which only add inertia, are left out. Where environments differ, the largest h²k/J of all of them counts.

    Args:
        mech: a mechanism, or its `Structure`.
    """
    places, joints = mech.coordinate_places(), mech.named_joints()
    springs = {
        name: joint.spring.detach()
        for name, joint in joints.items()
        if name in places and isinstance(joint, StandardJoint) and not joint.implicit and bool(joint.spring.any())
    }
    if not springs or transforming():
        return {}
    with torch.no_grad():
        mobility = torch.linalg.pinv(_mass_matrix(mech), hermitian=True).diagonal(dim1=-2, dim2=-1)
    square = mech.timestep.detach().square()[..., None]
    stiff = {name: float((square * k * mobility[..., places[name]]).max()) for name, k in springs.items()}
    return {name: value for name, value in stiff.items() if value > STIFF}


def _mass_matrix(mech: Any) -> Tensor:
    """Mass matrices M (..., n, n) of the spanning tree at zero coordinates."""
    places, joints, bodies = mech.coordinate_places(), mech.named_joints(), mech.named_bodies().values()
    tree = {name: joints[name] for name in places if name in joints}
    geometry = [getattr(joint, field) for joint in tree.values() for field in KINEMATIC_FIELDS if field in joint.fields]
    ones = [1] * max(mech.timestep.ndim, *(number.ndim - 1 for number in geometry))
    n = mech.num_coordinates
    rates = RATE * torch.eye(n, dtype=torch.float64, device=mech.timestep.device).reshape(n, *ones, n)
    twist = split_state(to_maximal(mech.tree_order(), mech.num_bodies, torch.zeros_like(rates), rates, mech.timestep)).twist
    v, omega = twist.v / RATE, twist.omega / RATE  # (n, ..., nb, 3): the velocities of a unit rate of each coordinate
    mass, inertia = stacked([body.mass for body in bodies], 0), stacked([body.inertia for body in bodies], 2)
    matrix = torch.einsum("i...bk,...b,j...bk->...ij", v, mass, v) + torch.einsum("i...bk,...bkl,j...bl->...ij", omega, inertia, omega)
    for name, joint in tree.items():
        if isinstance(joint, StandardJoint):
            added = mech.timestep[..., None] * joint.damper + (0.0 if joint.armature is None else joint.armature)
            matrix = matrix + torch.diag_embed(torch.nn.functional.pad(added, (places[name].start, n - places[name].stop)))
    return matrix


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
