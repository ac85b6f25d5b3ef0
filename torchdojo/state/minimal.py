"""Minimal coordinates of a spanning tree, and the maps between them and the maximal state.

The velocity of a joint is the backward difference of its coordinates over one step, (q(t) − q(t−h)) / h, as z holds the velocity that led
to the current configuration. Built this way, a maximal state made from (q, qd) satisfies the joint equations at both ends of that step, and
nothing has to settle when a simulation starts. For rotations it is F · rotation_vector(p⁻⁻¹ p) / h, p⁻ the relative orientation before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from torchdojo import quaternion as quat
from torchdojo.elements.element import Pose, Twist
from torchdojo.elements.joints import Joint, StandardJoint, previous_pose
from torchdojo.state.layout import join_state, split_state, with_world

__all__ = ["JointOrder", "spanning_order", "to_maximal", "to_minimal", "tree_joints"]


class JointOrder(NamedTuple):
    """Tree joints from the world outwards: (name, joint, parent index or −1, child index, slice of the coordinate vector)."""

    name: str
    joint: StandardJoint
    parent: int
    child: int
    coordinates: slice


def spanning_order(body_names: Sequence[str], joints: Mapping[str, Joint]) -> list[JointOrder]:
    """Order in which a spanning tree is built up from the world; `tree_joints` chooses it.

    Raises:
        ValueError: bodies that no chain of joints with coordinates connects to the world.
    """
    number = {name: i for i, name in enumerate(body_names)}
    tree = tree_joints(joints)
    pieces: dict[str, slice] = {}
    offset = 0
    for name in joints:  # coordinates are in declared order
        if name in tree:
            pieces[name] = slice(offset, offset + joints[name].num_coordinates)
            offset += joints[name].num_coordinates
    reached = {joint.child for joint in tree.values()}
    loose = [name for name in body_names if name not in reached]
    for name, joint in joints.items():
        if joint.child in loose and not isinstance(joint, StandardJoint):
            raise ValueError(f"joint {name!r} ({type(joint).__name__}) has no coordinates; only the joints of td.joints.JOINT_TYPES have")
    if loose:
        raise ValueError(f"minimal coordinates need a tree, but no chain of joints connects the world with bodies {sorted(loose)}")
    return [
        JointOrder(name, joint, -1 if joint.parent is None else number[joint.parent], number[joint.child], pieces[name])
        for name, joint in tree.items()
    ]


def tree_joints(joints: Mapping[str, Joint]) -> dict[str, StandardJoint]:
    """The joints of a spanning tree, from the world outwards; the others close loops.

    Of several joints that lead to a body it is the first one in declared order, unless the bodies would then hang on each other alone.
    """
    standard = {name: joint for name, joint in joints.items() if isinstance(joint, StandardJoint)}
    first: dict[str, str] = {}
    for name, joint in standard.items():
        first.setdefault(joint.child, name)
    tree: dict[str, StandardJoint] = {}
    placed: set[str | None] = {None}
    while True:
        ready = [name for name, joint in standard.items() if joint.parent in placed and joint.child not in placed]
        if not ready:
            return tree
        chosen = [name for name in ready if first[standard[name].child] == name] or ready[:1]
        tree |= {name: standard[name] for name in chosen}
        placed |= {standard[name].child for name in chosen}


def to_minimal(order: Sequence[JointOrder], num_bodies: int, z: Tensor, timestep: Tensor) -> tuple[Tensor, Tensor]:
    """(q, qd), each (..., n): coordinates of the tree's joints in declared order."""
    state = split_state(z)
    h = timestep[..., None]
    before = previous_pose(state.pose, state.twist, h[..., None])
    # One entry more, with index −1: the world.
    now, before = with_world(state.pose), with_world(before)
    q: dict[str, Tensor] = {}
    qd: dict[str, Tensor] = {}
    for entry in order:
        joint, split = entry.joint, entry.joint.free_translations
        a, b = _body(now, entry.parent), _body(now, entry.child)
        a_before, b_before = _body(before, entry.parent), _body(before, entry.child)
        coordinates, earlier = joint.coordinates(a, b), joint.coordinates(a_before, b_before)
        _, p = joint.displacement(a, b)
        _, p_before = joint.displacement(a_before, b_before)
        turn = quat.rotation_vector(quat.multiply(quat.conjugate(p_before), p))
        rotation = (joint.free_rotational_axes * turn[..., None, :]).sum(-1)
        q[entry.name] = coordinates
        qd[entry.name] = torch.cat((coordinates[..., :split] - earlier[..., :split], rotation), dim=-1) / h
    names = [e.name for e in sorted(order, key=lambda e: e.coordinates.stop)]
    batch = torch.broadcast_shapes(*(value.shape[:-1] for value in qd.values()))
    stacked = [torch.cat([values[n].expand(*batch, values[n].shape[-1]) for n in names], dim=-1) for values in (q, qd)]
    return stacked[0], stacked[1]


def to_maximal(order: Sequence[JointOrder], num_bodies: int, q: Tensor, qd: Tensor, timestep: Tensor) -> Tensor:
    """z (..., 13 nb) of an assembled tree; joints that close loops are not looked at."""
    h = timestep[..., None]
    origin = Pose(q.new_zeros(3), quat.identity(q.dtype, q.device))
    now: dict[int, Pose] = {-1: origin}
    before: dict[int, Pose] = {-1: origin}
    for entry in order:
        joint, split = entry.joint, entry.joint.free_translations
        coordinates, rates = q[..., entry.coordinates], qd[..., entry.coordinates]
        axes_t, axes_r = joint.free_translational_axes, joint.free_rotational_axes
        p = quat.exp((axes_r * coordinates[..., split:, None]).sum(-2))
        turn = _held_turn(joint, p, h * rates[..., split:])
        p_before = quat.multiply(p, quat.conjugate(quat.exp(turn)))
        shift = (axes_t * coordinates[..., :split, None]).sum(-2)
        shift_before = (axes_t * (coordinates[..., :split] - h * rates[..., :split])[..., None]).sum(-2)
        now[entry.child] = _place(joint, now[entry.parent], p, shift)
        before[entry.child] = _place(joint, before[entry.parent], p_before, shift_before)
    poses, twists = [], []
    for i in range(num_bodies):
        a, b = before[i], now[i]
        step = quat.multiply(quat.conjugate(a.q), b.q)
        step = torch.where(step[..., :1] < 0, -step, step)
        poses.append(b)
        twists.append(Twist((b.x - a.x) / h, 2 * step[..., 1:] / h))
    batch = q.shape[:-1]

    def stack(values: list[Tensor]) -> Tensor:
        return torch.stack([v.expand(*batch, v.shape[-1]) for v in values], dim=-2)

    pose = Pose(stack([p.x for p in poses]), stack([p.q for p in poses]))
    return join_state(pose, Twist(stack([t.v for t in twists]), stack([t.omega for t in twists])))


def _held_turn(joint: StandardJoint, p: Tensor, free: Tensor) -> Tensor:
    """Rotation vector w with F w = free such that p ⊗ exp(−w) still satisfies the joint: C (p₀ w + p⃗ × w) = 0, since C p⃗ = 0."""
    axes = joint.free_rotational_axes
    if joint.free_rotations != 2:
        return (axes * free[..., None]).sum(-2)
    across = axes
    axis = quat.cross(across[..., 0, :], across[..., 1, :])
    turn = (across * free[..., None]).sum(-2)
    held = -(axis * quat.cross(p[..., 1:], turn)).sum(-1, keepdim=True) / p[..., :1]
    return turn + held * axis


def _place(joint: StandardJoint, parent: Pose, p: Tensor, shift: Tensor) -> Pose:
    """Pose of the child from the relative orientation p and the shift of its anchor in the parent frame."""
    orientation = quat.multiply(quat.multiply(parent.q, joint.orientation_offset), p)
    anchor = parent.x + quat.rotate(parent.q, joint.parent_anchor + shift)
    return Pose(anchor - quat.rotate(orientation, joint.child_anchor), orientation)


def _body(pose: Pose, index: int) -> Pose:
    return Pose(pose.x[..., index, :], pose.q[..., index, :])
