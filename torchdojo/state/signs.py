"""Signs of quaternions. q and −q are one orientation, but the angle of a joint, which reaches to ±2π, differs by a turn between them.

Steps keep the sign that a state has. States from elsewhere, of recordings say, have any signs: `unwind` gives them those of short turns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from torchdojo.elements.element import Pose
from torchdojo.elements.joint import TURN, Joint
from torchdojo.elements.joints import StandardJoint
from torchdojo.parameters import broadcast_shapes, transforming, warn_user
from torchdojo.state.layout import ORIENTATION, STATE_SIZE, split_state, with_world
from torchdojo.state.minimal import JointOrder

__all__ = ["carry_signs", "unwind", "warn_of_signs", "warn_of_turns"]

LEAST = 1e-6  # [rad] per rad of the angle itself, which decides between angles that fit equally well


@torch.no_grad()
def _with_signs(z: Tensor, signs: dict[int, Tensor]) -> Tensor:
    """Factors (..., 13 nb) of z that give the quaternion of every body a sign (...), 1 or −1."""
    batch = broadcast_shapes(z.shape[:-1], *(sign.shape for sign in signs.values()))
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
                read = joint.coordinates(*pair)[..., -1]
                # With the parent's sign the angle is `read`, or a turn away from it.
                other = read - torch.where(read > 0, TURN, -TURN)
                angle, turned = torch.where(parent > 0, read, other), torch.where(parent > 0, other, read)
                wanted = None if near is None else near[..., entry.coordinates.stop - 1]
                flip = _excess(joint, turned, wanted) < _excess(joint, angle, wanted)
            else:
                flip = parent * joint.displacement(*pair)[1][..., 0] < 0
        signs[entry.child] = torch.where(flip, -1.0, 1.0).to(z)
    return z * _with_signs(z, signs)


@torch.no_grad()
def warn_of_signs(joints: Mapping[str, Joint], poses: Callable[[Joint], list[Pose]]) -> None:
    """Warn of angles that are far outside their limits, and inside with other signs of quaternions."""
    for name, joint in joints.items():
        if not isinstance(joint, StandardJoint) or joint.free_rotations != 1 or not any(joint.limited):
            continue
        angle = joint.coordinates(*poses(joint))[..., -1]
        other = angle - torch.where(angle > 0, TURN, -TURN)
        wrong = (_excess(joint, angle, None) > 1.0) & (_excess(joint, other, None) < 0.1)
        if bool(wrong.any()):
            reading, other_angle = (float(value[wrong].reshape(-1)[0]) for value in torch.broadcast_tensors(angle, other))
            warn_user(
                f"joint {name!r} starts at {reading:.3g} rad, outside its limits, because of the signs of quaternions in z: the same "
                f"orientations can be {other_angle:.3g} rad. mech.unwind(z) chooses the signs so"
            )
            return


@torch.no_grad()
def warn_of_turns(joints: Mapping[str, Joint], tree: Sequence[str], poses: Callable[[Joint], list[Pose]]) -> None:
    """Warn of joints that close a loop, have limits or springs, and read a turn more or less than they would with the other sign.

    The angles around a loop add up to any number of turns. The tree's joints decide the signs, so the closing joint reads the rest.
    """
    if transforming():
        return
    for name, joint in joints.items():
        if name in tree or not isinstance(joint, StandardJoint) or joint.free_rotations != 1:
            continue
        if not any(joint.limited) and joint.spring_curve is None and not bool(joint.spring[..., -1].any()):
            continue
        angle = joint.coordinates(*poses(joint))[..., -1]
        other = angle - torch.where(angle > 0, TURN, -TURN)
        wrong = _excess(joint, angle, None) > _excess(joint, other, None) + LEAST
        if bool(wrong.any()):
            reading, other_angle = (float(value[wrong].reshape(-1)[0]) for value in torch.broadcast_tensors(angle, other))
            warn_user(
                f"joint {name!r} closes a loop in which the angles add up to a turn: it reads {reading:.3g} rad, and its limits and spring "
                f"act on that. To read {other_angle:.3g} rad, negate its orientation_offset: -q is the same orientation"
            )


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
    return excess + LEAST * angle.abs()


def carry_signs(order: Sequence[JointOrder], z: Tensor, placed: Tensor) -> Tensor:
    """`placed`, the state z with other orientations of free bodies, with the signs for which the joints keep their angles.

    Bodies beyond a body whose quaternion has changed its sign change theirs.
    """
    before, after = split_state(z.detach()).pose.q, split_state(placed.detach()).pose.q
    same = torch.where((before * after).sum(-1) < 0, -1.0, 1.0).to(z)
    if not transforming() and bool((same > 0).all()):
        return placed
    signs, factors = {-1: z.new_ones(())}, {}
    for entry in order:
        signs[entry.child] = signs[entry.parent] * same[..., entry.child]
        factors[entry.child] = signs[entry.parent]
    return placed * _with_signs(placed, factors)
