"""Kinematics of a spanning tree in joint coordinates: poses of all bodies, and the velocity that each coordinate gives them.

A rate q̇ᵢ of a joint moves every body behind the joint along one screw, a linear and an angular velocity (s, w). Both are in the world
frame, and s is the velocity of the body's material at a fixed point O next to the robot:

    translation   (s, w) = (R_a t, 0)                    t: free direction in the frame of the parent a
    rotation      (s, w) = (P × R_a f, R_a f)            f: free axis in the frame of the parent, P: the child anchor, from O

So the twist of a body is the sum over the coordinates of its ancestors, and sums over a tree are products with 0/1 matrices. With two free
rotations, the joint stays assembled only if the turn has a part k n across both axes, with k = n · (p⃗ × f)/p₀ (`StandardJoint`).

Here the environments are the last dimension: (3, E, B), (3, 3, E, B). Each operation then runs over long rows of memory, which takes a
third of the time (scripts/bench_body_dynamics.py). What all environments share has B = 1.
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

__all__ = [
    "Double",
    "Geometry",
    "Kinematics",
    "Tree",
    "apply",
    "cross",
    "dot",
    "environments_last",
    "geometry",
    "kinematics",
    "modules_of",
    "tree_of",
    "turned",
]


FEW = 16  # environments


class Tree(NamedTuple):
    """Data that do not change with numbers. Bodies, and the joints that carry them, are in the order of their depth: E of them."""

    joints: tuple[str | FreePose, ...]  # names of the joints
    bodies: tuple[int, ...]  # numbers of the bodies that they carry
    coordinates: tuple[slice, ...]  # places of their coordinates in q
    levels: tuple[tuple[slice, Tensor | None], ...]  # of each depth: its joints, and the places of their parents in the depth before
    carriers: Tensor  # (n,) the joint of each coordinate
    slots: Tensor  # (n,) 0 to 2 for translations, 3 to 5 for rotations
    turning: Tensor  # (n, 1) 1.0 for rotations
    translations: Tensor  # (3, E) places of the coordinates in q; n where there is none
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
    depth = {-1: -1}
    for entry in order:
        depth[entry.child] = depth[entry.parent] + 1
    rows = sorted(order, key=lambda entry: depth[entry.child])
    place = {entry.child: e for e, entry in enumerate(rows)}
    n, size = sum(entry.joint.num_coordinates for entry in rows), len(rows)
    carriers, slots = torch.zeros(n, dtype=torch.long), torch.zeros(n, dtype=torch.long)
    places = torch.full((2, size, 3), n)
    moves, own_coordinates = torch.zeros(size, n, dtype=torch.float64), torch.zeros(size, n, dtype=torch.float64)
    above = torch.zeros(size, size, dtype=torch.float64)
    free = torch.tensor([_free(entry.joint) for entry in rows]).mT[..., None, None]
    for e, entry in enumerate(rows):
        start, count = entry.coordinates.start, entry.joint.num_coordinates
        translations = _free(entry.joint)[0]
        for k in range(count):
            kind, row = (0, k) if k < translations else (1, k - translations)
            carriers[start + k], slots[start + k], places[kind, e, row] = e, 3 * kind + row, start + k
        own_coordinates[e, entry.coordinates], above[e, e] = 1.0, 1.0
        if entry.parent >= 0:
            above[e] += above[place[entry.parent]]
        moves[e] = own_coordinates[e] if entry.parent < 0 else own_coordinates[e] + moves[place[entry.parent]]
    levels, first = list[tuple[slice, Tensor | None]](), 0
    while first < size:
        last, before = first, levels[-1][0].start if levels else 0
        while last < size and depth[rows[last].child] == len(levels):
            last += 1
        ups = [place[entry.parent] - before if levels else 0 for entry in rows[first:last]]
        levels.append((slice(first, last), None if ups == list(range(first - before)) else torch.tensor(ups)))
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
        places[0].mT.contiguous(),
        places[1].mT.contiguous(),
        free,
        torch.tensor([place.get(entry.parent, size) for entry in rows]),
        moves,
        own_coordinates,
        above,
        (moves - own_coordinates)[carriers].mT + own_coordinates[carriers].triu(1) + 0.5 * torch.eye(n, dtype=torch.float64),
        bool((free[0] > 0).any()),
        bool((free[1] == 2).any()),
    )


def _free(joint: Joint) -> tuple[int, int]:
    return joint.free_translations, joint.num_coordinates - joint.free_translations


class Geometry(NamedTuple):
    """The fields of all joints, (..., E, 3) and (..., E, 4). The pose of a free body has no numbers."""

    axis: Tensor
    parent_anchor: Tensor
    child_anchor: Tensor
    orientation_offset: Tensor


class Kinematics(NamedTuple):
    """A configuration. Vectors are in the world frame; positions count from `origin`, next to the robot. E bodies in the tree's order."""

    origin: Tensor  # (3, 1, B) [m], a constant
    rotation: Tensor  # (3, 3, E, B) body to world
    position: Tensor  # (3, E, B) of the centers of mass [m]
    anchor: Tensor  # (3, E, B) of the joints, on the child [m]
    screws: Tensor  # (6, n, B) (s, w) of each coordinate
    along: Tensor  # (3, n, B) the free direction itself, R_a t or R_a f
    double: Double | None  # where joints have two free rotations


class Double(NamedTuple):
    """The data that rates of joints with two free rotations depend on, joint frame."""

    turn: Tensor  # (4, E, B) p, relative orientation
    normal: Tensor  # (3, E, B) across the free rotations; zero for other joints
    frame: Tensor  # (3, 3, E, B) joint frame to world


# -- vectors with the environments last ----------------------------------------------------------------------------------------------------


def environments_last(value: Tensor, core: int, batch: Sequence[int]) -> Tensor:
    """(..., *core) as (*core, B), of which `batch` are the leading dimensions; (*core, 1) if it has none."""
    if value.ndim == core:
        return value[..., None]
    return value.expand(*batch, *value.shape[value.ndim - core :]).flatten(0, -core - 1).movedim(0, -1)


def _few(value: Tensor) -> bool:
    """Whether fewer operations count for more than how fast each runs through memory."""
    return value.shape[-1] <= FEW


def cross(a: Tensor, b: Tensor) -> Tensor:
    """a × b over the first dimension, (3, ...)."""
    if _few(a) and _few(b):
        return torch.linalg.cross(*torch.broadcast_tensors(a, b), dim=0)
    (a0, a1, a2), (b0, b1, b2) = a.unbind(0), b.unbind(0)
    parts = (a1 * b2, a2, b1), (a2 * b0, a0, b2), (a0 * b1, a1, b0)
    return torch.stack([torch.addcmul(product, left, right, value=-1) for product, left, right in parts])


def dot(a: Tensor, b: Tensor) -> Tensor:
    """a · b over the first dimension."""
    if _few(a) and _few(b):
        return (a * b).sum(0)
    total = a[0] * b[0]
    for left, right in zip(a[1:], b[1:], strict=True):
        total = torch.addcmul(total, left, right)
    return total


def apply(matrix: Tensor, value: Tensor) -> Tensor:
    """Matrices (k, 3, ...) times vectors (3, ...), or times matrices (3, l, ...) if the matrices get a dimension, (k, 3, 1, ...)."""
    if _few(value) and _few(matrix):
        return (matrix * value).sum(1)
    first = torch.addcmul(matrix[:, 0] * value[0], matrix[:, 1], value[1])
    return torch.addcmul(first, matrix[:, 2], value[2])


def _rotation_matrix(w: Tensor, u: Tensor) -> Tensor:
    """The rotation of unit quaternions w (...) and u (3, ...), as (3, 3, ...)."""
    x, y, z = u.unbind(0)
    double = 2 * u
    xx, xy, xz = double[0] * x, double[0] * y, double[0] * z
    yy, yz, zz = double[1] * y, double[1] * z, double[2] * z
    wx, wy, wz = (double * w).unbind(0)
    rows = (1 - (yy + zz), xy - wz, xz + wy), (xy + wz, 1 - (xx + zz), yz - wx), (xz - wy, yz + wx, 1 - (xx + yy))
    return torch.stack([torch.stack(row) for row in rows])


def _exp(phi: Tensor) -> tuple[Tensor, Tensor]:
    """Quaternions of rotation vectors (3, ...): w (...) and u (3, ...)."""
    squared = dot(phi, phi)
    small = squared < 1e-12
    angle = torch.where(small, 1.0, squared).sqrt()
    half = 0.5 * angle
    scale = torch.where(small, 0.5 - squared / 48, half.sin() / angle)
    return torch.where(small, 1 - squared / 8, half.cos()), scale * phi


# -- configurations ------------------------------------------------------------------------------------------------------------------------


def geometry(tree: Tree, joints: Mapping[str, Joint], like: Tensor) -> Geometry:
    """The numbers of the joints, with dtype and device of `like` where a joint has none."""
    modules = modules_of(tree, joints)
    neutral = Geometry((0.0, 0.0, 1.0), (0.0, 0.0, 0.0), (0.0, 0.0, 0.0), (1.0, 0.0, 0.0, 0.0))  # type: ignore[arg-type]
    default = Geometry(*(like.new_tensor(value) for value in neutral))
    return Geometry(
        *(
            stacked([getattr(joint, name) if isinstance(joint, StandardJoint) else getattr(default, name) for joint in modules], 1)
            for name in Geometry._fields
        )
    )


def kinematics(tree: Tree, numbers: Geometry, q: Tensor, batch: Sequence[int]) -> Kinematics:
    """The configuration at coordinates q (n, B). batch: dimensions of the B environments, which the numbers share or lack."""
    frames = quat.rotation_matrix(quat.normalize(numbers.orientation_offset))
    rows_t, rows_r, normals = _axes(tree, numbers.axis)
    frame = environments_last(frames.movedim(-3, -1), 3, batch)[:, :, None]
    axes_t, axes_r = (environments_last(rows.movedim(-1, -3).mT, 3, batch) for rows in (rows_t @ frames.mT, rows_r))
    parent_anchor, child_anchor = (environments_last(v.mT, 2, batch) for v in (numbers.parent_anchor, numbers.child_anchor))
    padded = torch.cat((q, torch.zeros_like(q[:1])))
    w, u = _exp(apply(axes_r, padded[tree.rotations]))
    local = apply(frame, _rotation_matrix(w, u))
    place = parent_anchor + apply(axes_t, padded[tree.translations]) if tree.slides else parent_anchor
    shift = place - apply(local, child_anchor)
    rotations, positions = list[Tensor](), list[Tensor]()
    for number, (piece, parents) in enumerate(tree.levels):
        rotation, position = local[:, :, piece], shift[:, piece]
        if number:
            up, above = rotations[-1], positions[-1]
            if parents is not None:
                up, above = up[:, :, parents], above[:, parents]
            rotation, position = apply(up[:, :, None], rotation), above + apply(up, position)
        rotations.append(rotation)
        positions.append(position)
    eye = torch.eye(3, dtype=q.dtype, device=q.device)[:, :, None, None].expand(3, 3, 1, q.shape[-1])
    rotation, position = torch.cat((*rotations, eye), dim=2), torch.cat(positions, dim=1)
    parent, rotation = rotation[:, :, tree.parents[tree.carriers]], rotation[:, :, :-1]
    # No result depends on the origin, and neither do the derivatives. Numbers near the robot keep their digits.
    origin = position[:, :1].detach()
    position = position - origin
    anchor = position + apply(rotation, child_anchor)
    double = None
    if tree.double:
        normal = environments_last(normals.mT, 2, batch)
        # n · (p⃗ × f) = f · (n × p⃗)
        side = cross(normal, u) / torch.where((normal != 0).any(0), w, 1.0)
        axes_r = axes_r + normal[:, None] * (axes_r * side[:, None]).sum(0)
        frame_now = torch.cat((rotation, eye), dim=2)[:, :, tree.parents][:, :, None]
        double = Double(torch.cat((w[None], u)), normal, apply(frame_now, frame[:, :, 0]))
    axes_r = apply(frame, axes_r)
    axes = torch.cat(torch.broadcast_tensors(axes_t, axes_r), dim=1).flatten(1, 2)
    along = apply(parent, axes[:, tree.slots * len(tree.bodies) + tree.carriers])
    linear, angular = cross(anchor[:, tree.carriers], along), along
    if tree.slides:
        turning = tree.turning.to(q.device)
        linear, angular = torch.where(turning > 0, linear, along), along * turning
    return Kinematics(origin, rotation, position, anchor, torch.cat((linear, angular)), along, double)


def turned(tree: Tree, numbers: Geometry, q: Tensor, delta: Tensor) -> Tensor:
    """Coordinates q (..., n) moved by rates times a time, `delta` (..., n): rotation vectors are turned, others are added."""
    several = [e for e, count in enumerate(tree.free[1].flatten().tolist()) if count > 1]
    moved = q + delta
    if not several:
        return moved
    _, rows, normal = _axes(tree, numbers.axis)
    rows, normal = rows[..., several, :, :], normal[..., several, :]
    places = tree.rotations.mT[several]
    before, change = ((rows.mT @ nn.functional.pad(v, (0, 1))[..., places][..., None])[..., 0] for v in (q, delta))
    p = quat.exp(before)
    double = (normal != 0).any(-1, keepdim=True)
    held = (normal * quat.cross(p[..., 1:], change)).sum(-1, keepdim=True) / torch.where(double, p[..., :1], 1.0)
    vector = (rows @ quat.rotation_vector(quat.multiply(quat.exp(change + held * normal), p))[..., None])[..., 0]
    columns = list(moved.unbind(-1))
    for i, row in enumerate(places.tolist()):
        for k, place in enumerate(row):
            if place < q.shape[-1]:
                columns[place] = vector[..., i, k].expand_as(columns[place])
    return torch.stack(columns, dim=-1)


def modules_of(tree: Tree, joints: Mapping[str, Joint]) -> list[Joint]:
    """The joints of the tree, E of them."""
    return [joints[joint] if isinstance(joint, str) else joint for joint in tree.joints]


def _axes(tree: Tree, axis: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Free directions of translations and rotations, rows (..., E, 3, 3) in the joint frame, zero where none is free; and the normal of
    two rotations (..., E, 3)."""
    axis = unit(axis)
    eye = torch.eye(3, dtype=axis.dtype, device=axis.device)
    along = torch.cat((axis[..., None, :], torch.zeros_like(axis)[..., None, :].expand(*axis.shape[:-1], 2, 3)), dim=-2)
    across = nn.functional.pad(orthonormal_complement(axis), (0, 0, 0, 1))
    translations, rotations = (
        torch.where(free == 1, along, torch.where(free == 2, across, torch.where(free == 3, eye, 0.0)))
        for free in tree.free.to(axis.device)
    )
    normal = torch.where(tree.free[1, ..., 0].to(axis.device) == 2, axis, 0.0)
    return translations, rotations, normal
