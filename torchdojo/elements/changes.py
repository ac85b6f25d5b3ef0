"""Motion of a joint in one step, with the rounding of the motion and not that of positions.

The difference of two positions has the rounding of the positions, and a large damper multiplies it: 1e11 N·s/m makes 1e-5 N·s of it, at a
meter from the origin. So both changes come from the velocities.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchdojo import quaternion as quat
from torchdojo.elements.element import Motion

__all__ = ["changes_of_child"]


def changes_of_child(motions: tuple[Motion, ...], anchor: Tensor, timestep: Tensor) -> tuple[Tensor, Tensor]:
    """Changes between parent and child over the step that leads to the current poses at the next velocities.

    They are the displacement of the child's `anchor` in the parent's frame [m], and the turn of the child relative to the parent, a
    quaternion in the child's frame. With y from the parent's center to the anchor and rotations T of one step, they are
    R_aᵀ y − T_a R_aᵀ (y − Δy) and T_b (R_bᵀ R_a T_a R_aᵀ R_b)⁻¹, with Δy = h (v_b − v_a) + R_b (1 − T_bᵀ) p_b.
    """
    parent, child = motions
    turn_a, turn_b = (quat.increment(motion.twist.omega, timestep) for motion in (parent, child))
    lever = quat.rotate(child.pose.q, anchor)
    swing = quat.rotate(child.pose.q, quat.rotation_change(quat.conjugate(turn_b), anchor))
    moved = quat.inverse_rotate(parent.pose.q, timestep * (child.twist.v - parent.twist.v) - swing)
    y = quat.inverse_rotate(parent.pose.q, child.pose.x + lever - parent.pose.x)
    change = quat.rotate(turn_a, moved) - quat.rotation_change(turn_a, y)
    in_child = quat.inverse_rotate(child.pose.q, quat.rotate(parent.pose.q, turn_a[..., 1:]))
    return change, quat.multiply(turn_b, torch.cat((turn_a[..., :1].expand(*in_child.shape[:-1], 1), -in_child), dim=-1))
