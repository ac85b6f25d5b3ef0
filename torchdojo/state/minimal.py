"""Minimal coordinates of a spanning tree, and the maps between them and the maximal state.

The velocity of a joint is the backward difference of its coordinates over one step, (q(t) − q(t−h)) / h. This agrees with z, which holds
the velocity that led to the current configuration. A maximal state built from (q, qd) then satisfies the joint equations at both ends of
that step. So nothing has to settle when a simulation starts. The velocity of rotations is F · rotation_vector(p p⁻⁻¹) / h, with p⁻ the
relative orientation before: its axes are those of the joint frame, fixed to the parent, as of inputs. So u · qd is power.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from torchdojo import quaternion as quat
from torchdojo.elements.element import Pose, Twist, previous_pose
from torchdojo.elements.joint import TURN, FreePose, Joint
from torchdojo.parameters import broadcast_shapes
from torchdojo.state.layout import join_state, split_state, with_world

__all__ = ["JointOrder", "difference", "spanning_order", "to_maximal", "to_minimal", "tree_joints", "tree_names"]


class JointOrder(NamedTuple):
    """Tree joints from the world outwards: (name, joint, parent index or −1, child index, slice of the coordinate vector)."""

    name: str
    joint: Joint
    parent: int
    child: int
    coordinates: slice


def spanning_order(body_names: Sequence[str], joints: Mapping[str, Joint]) -> list[JointOrder]:
    """Order in which a spanning tree grows from the world outwards. `tree_joints` chooses the tree.

    Coordinates are in declared order, and coordinates of `FreePose` joints follow.

    Raises:
        ValueError: bodies that no chain of joints connects to the world.
    """
    number = {name: i for i, name in enumerate(body_names)}
    tree = tree_joints(joints)
    pieces: dict[str, slice] = {}
    offset = 0
    for name in tree_names(joints):
        pieces[name] = slice(offset, offset + tree[name].num_coordinates)
        offset += tree[name].num_coordinates
    reached = {joint.child for joint in tree.values()}
    loose = [name for name in body_names if name not in reached]
    if loose:
        raise ValueError(f"minimal coordinates need a tree, but no chain of joints connects the world with bodies {sorted(loose)}")
    return [
        JointOrder(name, joint, -1 if joint.parent is None else number[joint.parent], number[joint.child], pieces[name])
        for name, joint in tree.items()
    ]


def tree_names(joints: Mapping[str, Joint]) -> list[str]:
    """Names of the joints of the spanning tree in the order of their coordinates."""
    tree = tree_joints(joints)
    return [*(name for name in joints if name in tree), *(name for name in tree if name not in joints)]


def tree_joints(joints: Mapping[str, Joint]) -> dict[str, Joint]:
    """The joints of a spanning tree, from the world outwards; the others close loops.

    If several joints lead to a body, the tree has the first one in declared order, unless bodies would then hang on each other alone. If
    only joints without coordinates lead to a body, the body gets the coordinates of a `FreePose`, "PARENT_to_BODY".
    """
    carrying = {name: joint for name, joint in joints.items() if joint.carries_child}
    first: dict[str, str] = {}
    for name, joint in carrying.items():
        first.setdefault(joint.child, name)
    tree: dict[str, Joint] = {}
    placed: set[str | None] = {None}
    while True:
        ready = [name for name, joint in carrying.items() if joint.parent in placed and joint.child not in placed]
        if ready:
            chosen = [name for name in ready if first[carrying[name].child] == name] or ready[:1]
            tree |= {name: carrying[name] for name in chosen}
            placed |= {carrying[name].child for name in chosen}
            continue
        loose = [joint for joint in joints.values() if joint.parent in placed and joint.child not in placed]
        if not loose:
            return tree
        name = f"{loose[0].parent or 'world'}_to_{loose[0].child}"
        while name in joints or name in tree:
            name += "_"
        tree[name] = FreePose(loose[0].parent, loose[0].child)
        placed.add(loose[0].child)


def to_minimal(order: Sequence[JointOrder], num_bodies: int, z: Tensor, timestep: Tensor) -> tuple[Tensor, Tensor]:
    """(q, qd), each (..., n): coordinates of the tree's joints in declared order."""
    state = split_state(z)
    h = timestep[..., None]
    before = previous_pose(state.pose, state.twist, h[..., None])
    # The world is one more entry, with index −1.
    poses, before = with_world(state.pose), with_world(before)
    q: dict[str, Tensor] = {}
    qd: dict[str, Tensor] = {}
    for entry in order:
        pair, earlier = [_body(poses, entry.parent), _body(poses, entry.child)], [_body(before, entry.parent), _body(before, entry.child)]
        q[entry.name] = entry.joint.coordinates(*pair)
        qd[entry.name] = entry.joint.rate(earlier, pair, h)
    names = [e.name for e in sorted(order, key=lambda e: e.coordinates.stop)]
    batch = broadcast_shapes(*(value.shape[:-1] for value in qd.values()))
    stacked = [torch.cat([values[n].expand(*batch, values[n].shape[-1]) for n in names], dim=-1) for values in (q, qd)]
    return stacked[0], stacked[1]


def to_maximal(order: Sequence[JointOrder], num_bodies: int, q: Tensor, qd: Tensor, timestep: Tensor) -> Tensor:
    """z (..., 13 nb) of an assembled tree; joints that close loops are not looked at."""
    _check_batch(order, q.shape[:-1], timestep.shape)
    h = timestep[..., None]
    origin = Pose(q.new_zeros(3), quat.identity(q.dtype, q.device))
    present_poses: dict[int, Pose] = {-1: origin}
    earlier_poses: dict[int, Pose] = {-1: origin}
    for entry in order:
        parents = present_poses[entry.parent], earlier_poses[entry.parent]
        coordinates, rates = q[..., entry.coordinates], qd[..., entry.coordinates]
        present_poses[entry.child], earlier_poses[entry.child] = entry.joint.place_child(parents, coordinates, h * rates)
    poses, twists = [], []
    for i in range(num_bodies):
        a, b = earlier_poses[i], present_poses[i]
        step = quat.multiply(quat.conjugate(a.q), b.q)
        step = torch.where(step[..., :1] < 0, -step, step)
        poses.append(b)
        twists.append(Twist((b.x - a.x) / h, 2 * step[..., 1:] / h))
    # Anchors, axes and the timestep may have batch dimensions that q lacks.
    batch = broadcast_shapes(q.shape[:-1], *(t.shape[:-1] for pair in (*poses, *twists) for t in pair))

    def stack(values: list[Tensor]) -> Tensor:
        return torch.stack([v.expand(*batch, v.shape[-1]) for v in values], dim=-2)

    pose = Pose(stack([p.x for p in poses]), stack([p.q for p in poses]))
    return join_state(pose, Twist(stack([t.v for t in twists]), stack([t.omega for t in twists])))


def difference(order: Sequence[JointOrder], x: Tensor, reference: Tensor) -> Tensor:
    """x − reference (..., 2n) of coordinates and rates side by side, in the nearest representation of each rotation.

    Angles of single rotations count modulo 4π, as in `to_minimal`. A rotation vector r stands for r + 2πk r/|r|, too.
    """
    change = x - reference
    columns = list(change.unbind(-1))
    for entry in order:
        rotations = getattr(entry.joint, "free_rotations", 0)
        places = range(entry.coordinates.stop - rotations, entry.coordinates.stop)
        if rotations == 1:
            (place,) = places
            columns[place] = columns[place] - 2 * TURN * torch.round(columns[place] / (2 * TURN))
        elif rotations > 1:
            r, wanted = x[..., places.start : places.stop], reference[..., places.start : places.stop]
            length = r.norm(dim=-1)
            safe = torch.where(length > 0, length, 1.0)
            turns = torch.round(((r * wanted).sum(-1) / safe - length) / TURN)
            factor = TURN * torch.where(length > 0, turns, 0.0) / safe
            for place, value in zip(places, r.unbind(-1), strict=True):
                columns[place] = columns[place] + factor * value
    return torch.stack(columns, dim=-1) if columns else change


def _check_batch(order: Sequence[JointOrder], batch: torch.Size, timestep: torch.Size) -> None:
    """Raise ValueError unless the batch dimensions of coordinates broadcast with those of the geometry of joints and of the timestep."""
    geometry = {
        f"{entry.name}.{name}": getattr(entry.joint, name).shape[:-1]
        for entry in order
        for name in ("axis", "parent_anchor", "child_anchor", "orientation_offset")
        if name in entry.joint.fields
    }
    try:
        broadcast_shapes(batch, timestep, *geometry.values())
    except RuntimeError:
        shapes = {name: tuple(shape) for name, shape in {"timestep": timestep, **geometry}.items() if shape}
        raise ValueError(f"q: got the batch dimensions {tuple(batch)}; allowed: those that broadcast with {shapes}") from None


def _body(pose: Pose, index: int) -> Pose:
    return Pose(pose.x[..., index, :], pose.q[..., index, :])
