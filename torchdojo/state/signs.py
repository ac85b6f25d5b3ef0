"""Signs of quaternions. q and −q are one orientation, but the angle of a joint, which reaches to ±2π, differs by a turn between them.

Steps keep the sign that a state has. States from elsewhere, of recordings say, have any signs: `unwind` gives them those of short turns.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torchdojo.elements.element import Pose
from torchdojo.elements.joint import TURN
from torchdojo.elements.joints import StandardJoint
from torchdojo.state.layout import ORIENTATION, STATE_SIZE, split_state, with_world
from torchdojo.state.minimal import JointOrder

__all__ = ["carry_signs", "unwind"]


@torch.no_grad()
def _with_signs(z: Tensor, signs: dict[int, Tensor]) -> Tensor:
    """Factors (..., 13 nb) of z that give the quaternion of every body a sign (...), 1 or −1."""
    batch = torch.broadcast_shapes(z.shape[:-1], *(sign.shape for sign in signs.values()))
    factors = z.new_ones(*batch, z.shape[-1] // STATE_SIZE, STATE_SIZE)
    for body, sign in signs.items():
        if body >= 0:
            factors[..., body, ORIENTATION] = sign[..., None]
    return factors.flatten(-2)


def unwind(order: Sequence[JointOrder], z: Tensor, near: Tensor | None = None) -> Tensor:
    """`Mechanism.unwind`: the orientations of z (..., 13 nb), with the signs of quaternions for which the angles of the tree are as wanted.

    Args:
        near: (..., n) coordinates next to which the angles are to be; None: within the limits of their joints, or else next to zero.
    """
    poses = with_world(split_state(z.detach()).pose)  # the world has index −1
    signs = {-1: z.new_ones(())}
    for entry in order:
        joint, parent = entry.joint, signs[entry.parent]
        if not isinstance(joint, StandardJoint):
            signs[entry.child] = parent
            continue
        pair = [Pose(poses.x[..., i, :], poses.q[..., i, :]) for i in (entry.parent, entry.child)]
        with torch.no_grad():
            if joint.free_rotations == 1:
                here = joint.coordinates(*pair)[..., -1]
                # With the parent's sign the angle is `here`, or a turn away from it.
                other = here - torch.where(here > 0, TURN, -TURN)
                angle, turned = torch.where(parent > 0, here, other), torch.where(parent > 0, other, here)
                wanted = None if near is None else near[..., entry.coordinates.stop - 1]
                flip = _excess(joint, turned, wanted) < _excess(joint, angle, wanted)
            else:
                flip = parent * joint.displacement(*pair)[1][..., 0] < 0
        signs[entry.child] = torch.where(flip, -1.0, 1.0).to(z)
    return z * _with_signs(z, signs)


def _excess(joint: StandardJoint, angle: Tensor, wanted: Tensor | None) -> Tensor:
    """How far an angle (...) is from the wanted one, or from the limits; equals are compared by their size."""
    if wanted is not None:
        return (angle - wanted).abs()
    excess = torch.zeros_like(angle)
    if joint.limits is not None:
        last = joint.num_coordinates - 1
        for sign, bound, acting in zip((1.0, -1.0), joint.limits, joint.limited, strict=True):
            if last in acting:
                excess = excess + (sign * (bound[..., last] - angle)).clamp_min(0.0)
    return excess + 1e-6 * angle.abs()


def carry_signs(order: Sequence[JointOrder], z: Tensor, placed: Tensor) -> Tensor:
    """`placed`, the state z with other orientations of free bodies, with the signs for which the joints keep their angles.

    Bodies beyond a body whose quaternion has changed its sign change theirs.
    """
    before, after = split_state(z.detach()).pose.q, split_state(placed.detach()).pose.q
    same = torch.where((before * after).sum(-1) < 0, -1.0, 1.0).to(z)
    if bool((same > 0).all()):
        return placed
    signs, factors = {-1: z.new_ones(())}, {}
    for entry in order:
        signs[entry.child] = signs[entry.parent] * same[..., entry.child]
        factors[entry.child] = signs[entry.parent]
    return placed * _with_signs(placed, factors)
