"""How a robot stands in the world: its contacts with the ground, and where it heads."""

from __future__ import annotations

from torch import Tensor

from torchdojo import quaternion as quat
from torchdojo.elements.contact import Contact
from torchdojo.elements.joints import StandardJoint
from torchdojo.mechanism import Mechanism

__all__ = ["free_root", "ground_contacts", "heading"]


def ground_contacts(mech: Mechanism) -> dict[str, Contact]:
    """The contacts of one body with the world."""
    return {name: contact for name, contact in mech.named_contacts().items() if contact.body_names[1:] in ((), (None,))}


def free_root(mech: Mechanism) -> bool:
    """Whether the first body turns freely."""
    joint = next(iter(mech.named_joints().values()), None)
    return not isinstance(joint, StandardJoint) or joint.free_rotations == 3


def heading(mech: Mechanism, z: Tensor) -> Tensor:
    """Unit vectors (..., 2) in the plane, of states (..., 13 nb)."""
    x = z.new_tensor((1.0, 0.0, 0.0)).expand(*z.shape[:-1], 3)
    if not free_root(mech):
        return x[..., :2]
    ahead = quat.rotate(z[..., 6:10], x)[..., :2]
    return ahead / ahead.norm(dim=-1, keepdim=True).clamp_min(1e-6)
