"""Kinematics of a spanning tree in joint coordinates: poses of all bodies, and the velocity that each coordinate gives them.

A rate q̇ᵢ of a joint moves every body behind the joint along one screw, a linear and an angular velocity (s, w). Both are in the world
frame, and s is the velocity of the body's material at a fixed point O next to the robot:

    translation   (s, w) = (R_a t, 0)                    t: free direction in the frame of the parent a
    rotation      (s, w) = (P × R_a f, R_a f)            f: free axis in the frame of the parent, P: the child anchor, from O

So the twist of a body is the sum over the coordinates of its ancestors, and sums over a tree are products with 0/1 matrices. With two free
rotations, the joint stays assembled only if the turn has a part k n across both axes, with k = n · (p⃗ × f)/p₀ (`StandardJoint`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from torchdojo import quaternion as quat
from torchdojo.elements.element import orthonormal_complement, unit
from torchdojo.elements.joint import FreePose, Joint
from torchdojo.elements.joints import StandardJoint
from torchdojo.parameters import stacked
from torchdojo.state.minimal import JointOrder

__all__ = ["Kinematics", "Tree", "kinematics", "modules_of", "tree_of", "turned"]

_FIELDS = {"axis": 1, "parent_anchor": 1, "child_anchor": 1, "orientation_offset": 1}


class Tree(NamedTuple):
    """What does not change with numbers. Bodies, and the joints that carry them, are in the order of their depth: E of them."""

    joints: tuple[str | FreePose, ...]  # names of the joints
    bodies: tuple[int, ...]  # numbers of the bodies that they carry
    coordinates: tuple[slice, ...]  # places of their coordinates in q
    levels: tuple[tuple[slice, Tensor], ...]  # of each depth: its joints, and the places of their parents in the depth before
    carriers: Tensor  # (n,) the joint of each coordinate
    slots: Tensor  # (n,) 0 to 2 for translations, 3 to 5 for rotations
    turning: Tensor  # (n, 1) 1.0 for rotations
    translations: Tensor  # (E, 3) places of the coordinates in q; n where there is none
    rotations: Tensor
    free: Tensor  # (2, E, 1, 1) numbers of free translations and rotations
    parents: Tensor  # (E,) places of the parents; E for the world
    moves: Tensor  # (E, n) 1.0 where a coordinate moves a body
    own: Tensor  # (E, n) 1.0 where a coordinate is that of the joint
    above: Tensor  # (E, E) 1.0 where a joint, the column, is on the path to a body
    pairs: Tensor  # (n, n) 1.0 where the row's coordinate moves the joint of the column's, once for each pair; 0.5 on the diagonal
    slides: bool  # whether a translation is free
    double: bool  # whether a joint has two free rotations


def tree_of(order: Sequence[JointOrder], joints: Mapping[str, Joint]) -> Tree:
    """The tables of a tree.

    Raises:
        ValueError: a joint of the user's own, whose directions are not known.
    """
    for entry in order:
        if not isinstance(entry.joint, (StandardJoint, FreePose)):
            raise ValueError(
                f"joint {entry.name!r}: got a {type(entry.joint).__name__} in the spanning tree; allowed: the standard joints, whose free "
                "directions are known; compute with mech.to_maximal and its derivatives instead"
            )
    depth, rows = {-1: -1}, list[JointOrder]()
    for entry in order:
        depth[entry.child] = depth[entry.parent] + 1
    rows = sorted(order, key=lambda entry: depth[entry.child])
    place = {entry.child: e for e, entry in enumerate(rows)}
    n, size = sum(entry.joint.num_coordinates for entry in rows), len(rows)
    carriers, slots = torch.zeros(n, dtype=torch.long), torch.zeros(n, dtype=torch.long)
    places = torch.full((2, size, 3), n)
    moves, own = torch.zeros(size, n, dtype=torch.float64), torch.zeros(size, n, dtype=torch.float64)
    above = torch.zeros(size, size, dtype=torch.float64)
    free = torch.tensor([_free(entry.joint) for entry in rows]).mT[..., None, None]
    for e, entry in enumerate(rows):
        start, count = entry.coordinates.start, entry.joint.num_coordinates
        translations = _free(entry.joint)[0]
        for k in range(count):
            kind, row = (0, k) if k < translations else (1, k - translations)
            carriers[start + k], slots[start + k], places[kind, e, row] = e, 3 * kind + row, start + k
        own[e, entry.coordinates], above[e, e] = 1.0, 1.0
        if entry.parent >= 0:
            above[e] += above[place[entry.parent]]
        moves[e] = own[e] if entry.parent < 0 else own[e] + moves[place[entry.parent]]
    levels, first = [], 0
    while first < size:
        last, before = first, levels[-1][0].start if levels else 0
        while last < size and depth[rows[last].child] == len(levels):
            last += 1
        ups = [place[entry.parent] - before if levels else 0 for entry in rows[first:last]]
        levels.append((slice(first, last), torch.tensor(ups)))
        first = last
    names = tuple(entry.name if entry.name in joints else entry.joint for entry in rows)
    return Tree(
        names,  # type: ignore[arg-type]
        tuple(entry.child for entry in rows),
        tuple(entry.coordinates for entry in rows),
        tuple(levels),
        carriers,
        slots,
        (slots >= 3).double()[:, None],
        places[0],
        places[1],
        free,
        torch.tensor([place.get(entry.parent, size) for entry in rows]),
        moves,
        own,
        above,
        (moves - own)[carriers].mT + own[carriers].triu(1) + 0.5 * torch.eye(n, dtype=torch.float64),
        bool((free[0] > 0).any()),
        bool((free[1] == 2).any()),
    )


def _free(joint: Joint) -> tuple[int, int]:
    return joint.free_translations, joint.num_coordinates - joint.free_translations


class Kinematics(NamedTuple):
    """A configuration. Vectors are in the world frame; positions count from `origin`, next to the robot. E bodies in the tree's order."""

    origin: Tensor  # (..., 1, 3) [m], a constant
    rotation: Tensor  # (..., E, 3, 3) body to world
    position: Tensor  # (..., E, 3) of the centers of mass [m]
    anchor: Tensor  # (..., E, 3) of the joints, on the child [m]
    linear: Tensor  # (..., n, 3) s, the velocity at the origin for each coordinate
    angular: Tensor  # (..., n, 3) w
    along: Tensor  # (..., n, 3) the free direction itself, R_a t or R_a f
    turn: Tensor  # (..., E, 4) p, relative orientations of the joints, joint frame
    normal: Tensor  # (..., E, 3) across two free rotations, joint frame; zero for other joints
    frame: Tensor  # (..., E, 3, 3) joint frame to world


def kinematics(tree: Tree, joints: Mapping[str, Joint], q: Tensor) -> Kinematics:
    """The configuration at coordinates q (..., n)."""
    modules = modules_of(tree, joints)
    axis, parent_anchor, child_anchor, offset = _geometry(modules, q)
    rows_t, rows_r, normal = _axes(tree, axis)
    offset = quat.normalize(offset)
    padded = nn.functional.pad(q, (0, 1))
    p = quat.exp((rows_r * padded[..., tree.rotations][..., None]).sum(-2))
    turned_frame = quat.rotation_matrix(offset)
    local = quat.rotation_matrix(quat.multiply(offset, p))
    place = parent_anchor
    rows_t = rows_t @ turned_frame.mT
    if tree.slides:
        place = place + (rows_t * padded[..., tree.translations][..., None]).sum(-2)
    shift = place - (local @ child_anchor[..., None])[..., 0]
    local, shift = local.expand(*shift.shape, 3), shift.expand(local.shape[:-1])
    rotations, positions, ups, up_positions = [], [], [], []
    for number, (piece, parents) in enumerate(tree.levels):
        rotation, position = local[..., piece, :, :], shift[..., piece, :]
        if number:
            up, up_position = rotations[-1][..., parents, :, :], positions[-1][..., parents, :]
            rotation, position = up @ rotation, up_position + (up @ position[..., None])[..., 0]
        else:
            up, up_position = torch.eye(3, dtype=q.dtype, device=q.device).expand_as(rotation), torch.zeros_like(position)
        rotations.append(rotation)
        positions.append(position)
        ups.append(up)
        up_positions.append(up_position)
    rotation, position, parent = torch.cat(rotations, dim=-3), torch.cat(positions, dim=-2), torch.cat(ups, dim=-3)
    # Numbers do not depend on the origin, so their derivatives do not, either. Near the robot they keep their digits.
    origin = position[..., :1, :].detach()
    position = position - origin
    anchor = position + (rotation @ child_anchor[..., None])[..., 0]
    if tree.double:
        rows_r = rows_r + _held(p, normal, rows_r)[..., None] * normal[..., None, :]
    rows_r = rows_r @ turned_frame.mT
    batch = torch.broadcast_shapes(rows_r.shape, rows_t.shape)
    rows = torch.cat((rows_t.expand(batch), rows_r.expand(batch)), dim=-2)[..., tree.carriers, tree.slots, :]
    along = (parent[..., tree.carriers, :, :] @ rows[..., None])[..., 0]
    linear = quat.cross(anchor[..., tree.carriers, :], along)
    turning = tree.turning.to(q.device)
    if tree.slides:
        linear = torch.where(turning > 0, linear, along)
    angular = along * turning if tree.slides else along
    return Kinematics(origin, rotation, position, anchor, linear, angular, along, p, normal, parent @ turned_frame)


def turned(tree: Tree, joints: Mapping[str, Joint], q: Tensor, delta: Tensor) -> Tensor:
    """Coordinates q (..., n) moved by rates times a time, `delta` (..., n): rotation vectors are turned, others are added."""
    modules = modules_of(tree, joints)
    several = [e for e, joint in enumerate(modules) if _free(joint)[1] > 1]
    moved = q + delta
    if not several:
        return moved
    _, rows, normal = _axes(tree, _geometry(modules, q)[0])
    rows, normal, places = rows[..., several, :, :], normal[..., several, :], tree.rotations[several]
    before, change = ((rows.mT @ nn.functional.pad(v, (0, 1))[..., places][..., None])[..., 0] for v in (q, delta))
    p = quat.exp(before)
    if tree.double:
        change = change + _held(p, normal, change[..., None, :]) * normal
    vector = (rows @ quat.rotation_vector(quat.multiply(quat.exp(change), p))[..., None])[..., 0]
    pairs = [(i, k) for i, e in enumerate(several) for k in range(_free(modules[e])[1])]
    columns = list(moved.unbind(-1))
    for i, k in pairs:
        columns[int(places[i, k])] = vector[..., i, k].expand_as(columns[0])
    return torch.stack(columns, dim=-1)


def modules_of(tree: Tree, joints: Mapping[str, Joint]) -> list[Joint]:
    """The joints of the tree, E of them."""
    return [joints[joint] if isinstance(joint, str) else joint for joint in tree.joints]


def _geometry(modules: Sequence[Joint], like: Tensor) -> list[Tensor]:
    """The fields of all joints, (..., E, 3) and (..., E, 4). The pose of a free body has no numbers."""
    neutral = {"axis": (0.0, 0.0, 1.0), "orientation_offset": (1.0, 0.0, 0.0, 0.0)}
    default = {name: like.new_tensor(neutral.get(name, (0.0, 0.0, 0.0))) for name in _FIELDS}
    return [
        stacked([getattr(joint, name) if isinstance(joint, StandardJoint) else default[name] for joint in modules], 1) for name in _FIELDS
    ]


def _axes(tree: Tree, axis: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Free directions of translations and rotations, rows (..., E, 3, 3) in the joint frame, zero where none is free; and the normal of
    two rotations (..., E, 3)."""
    axis = unit(axis)
    eye = torch.eye(3, dtype=axis.dtype, device=axis.device)
    along = torch.cat((axis[..., None, :], torch.zeros_like(axis)[..., None, :].expand(*axis.shape[:-1], 2, 3)), dim=-2)
    across = nn.functional.pad(orthonormal_complement(axis), (0, 0, 0, 1))
    translations, rotations = (
        torch.where(free == 1, along, torch.where(free == 2, across, torch.where(free == 3, eye, 0.0))) for free in tree.free.to(axis.device)
    )
    normal = torch.where(tree.free[1, ..., 0].to(axis.device) == 2, axis, 0.0)
    return translations, rotations, normal


def _held(p: Tensor, normal: Tensor, rows: Tensor) -> Tensor:
    """k = n · (p⃗ × f)/p₀ for vectors f, the last two dimensions of `rows` (..., E, r, 3): (..., E, r); zero without a normal."""
    double = (normal != 0).any(-1, keepdim=True)
    side = quat.cross(normal, p[..., 1:]) / torch.where(double, p[..., :1], 1.0)
    return (rows * side[..., None, :]).sum(-1)
