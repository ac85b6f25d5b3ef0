"""The layout of a state: the meaning of the numbers of z, and poses with the world behind the bodies.

Per body z = [x(3), v(3), q(4), omega(3)]. Here x, q are the current configuration, and v (world), omega (body) are the velocity that led to
it. The tangent has 12 numbers per body, [dx, dv, dphi, domega], with dphi a rotation vector in the body frame.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from torchdojo import quaternion as quat
from torchdojo.elements.element import Pose, Twist

__all__ = [
    "ANGULAR_VELOCITY",
    "ORIENTATION",
    "POSITION",
    "STATE_SIZE",
    "TANGENT_SIZE",
    "TWIST_SIZE",
    "VELOCITY",
    "BodyStates",
    "join_state",
    "neutral_state",
    "split_state",
    "split_twists",
    "with_world",
]

STATE_SIZE, TANGENT_SIZE, TWIST_SIZE = 13, 12, 6
# Places in the 13 numbers of one body.
POSITION, VELOCITY, ORIENTATION, ANGULAR_VELOCITY = slice(0, 3), slice(3, 6), slice(6, 10), slice(10, 13)


class BodyStates(NamedTuple):
    """States of all bodies: each (..., nb, 3 or 4)."""

    pose: Pose
    twist: Twist


def split_state(z: Tensor) -> BodyStates:
    """Split (..., 13 nb) into its parts. Quaternions are normalized, so gradients come back tangent to the unit sphere."""
    x, v, q, omega = z.unflatten(-1, (-1, STATE_SIZE)).split((3, 3, 4, 3), dim=-1)
    return BodyStates(Pose(x, quat.normalize(q)), Twist(v, omega))


def join_state(pose: Pose, twist: Twist) -> Tensor:
    """Inverse of `split_state`, (..., 13 nb)."""
    parts = torch.broadcast_tensors(pose.x[..., :1], twist.v[..., :1], pose.q[..., :1], twist.omega[..., :1])
    batch = parts[0].shape[:-1]
    return torch.cat([t.expand(*batch, t.shape[-1]) for t in (pose.x, twist.v, pose.q, twist.omega)], dim=-1).flatten(-2)


def split_twists(twists: Tensor) -> Twist:
    """Split (..., 6) into v and ω."""
    return Twist(twists[..., :3], twists[..., 3:])


def neutral_state(z: Tensor) -> Tensor:
    """All bodies at the origin and at rest, (13 nb,). This state replaces an invalid z (..., 13 nb), so that no gradient becomes NaN."""
    neutral = z.new_zeros(z.shape[-1] // STATE_SIZE, STATE_SIZE)
    neutral[:, ORIENTATION.start] = 1
    return neutral.flatten()


def with_world(pose: Pose) -> Pose:
    """Poses (..., nb, ·) with the pose of the world behind them: index nb, or −1."""
    x, q = pose
    world = torch.zeros_like(x[..., :1, :])
    return Pose(torch.cat((x, world), -2), torch.cat((q, torch.cat((torch.ones_like(world[..., :1]), world), -1)), -2))
