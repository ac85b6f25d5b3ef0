"""Derivatives of the maps between minimal and maximal states (state/minimal.py), by hand, for all joints of a tree at once.

Tangents of poses are (dx, dφ), φ in the body frame: R' = R (1 + [dφ]×). Between a parent a and a child b, with the anchors p_a and p_b,

    e = R_aᵀ (x_b + R_b p_b − x_a) − p_a                 δe = R_aᵀ (dx_b − dx_a) − R_aᵀ R_b [p_b]× dφ_b + [e + p_a]× dφ_a
    p = q_off⁻¹ q_a⁻¹ q_b                                δp = dφ_b − R_bᵀ R_a dφ_a            (p' = p ⊗ exp δp)

are the joint's displacement and relative orientation. Its coordinates are A_t e and A_r log p with the free axes in the rows of A. With e⁻
and p⁻ at the configuration one step (h) before, and Δ = p p⁻⁻¹, its rates are A_t (e − e⁻)/h and A_r log Δ / h. So

    dq = (A_t δe, A_r J⁻¹(log p) δp)      dq̇ = (A_t (δe − δe⁻), A_r J⁻¹(log Δ) R(p⁻) (δp − δp⁻)) / h

where J is the right Jacobian of SO(3) (Solà, Deray and Atchuthan 2018, "A micro Lie theory", equations 143 and 144). A single rotation
about f has the coordinate 2 atan2(f·p⃗, p₀) instead, with (p₀ (p₀ f + f × p⃗) + (f·p⃗) p⃗)/(p₀² + (f·p⃗)²) in the place of the row of A_r J⁻¹.
The way back solves these equations for dx_b, dφ_b from the world outwards, once at each of the two configurations; velocities are their
differences.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from torchdojo import quaternion as quat
from torchdojo.elements.element import Pose, Twist, previous_pose, unit
from torchdojo.elements.joints import StandardJoint
from torchdojo.parameters import broadcast_shapes
from torchdojo.state.layout import TANGENT_SIZE, split_state, with_world
from torchdojo.state.minimal import JointOrder

__all__ = ["maximal_jacobian", "minimal_products", "without_rates"]


class _Tree(NamedTuple):
    """The joints of a spanning tree, E of them, outwards. Where a joint has fewer than three free axes of a kind, rows are zero."""

    parent: Tensor  # (E,), the number of bodies for the world
    child: Tensor  # (E,)
    translations: Tensor  # (E, 3) places of the coordinates in q; the size of q where there is none
    rotations: Tensor
    translational_axes: Tensor  # (..., E, 3, 3), rows in the parent frame
    rotational_axes: Tensor  # (..., E, 3, 3), rows in the joint frame
    single: Tensor  # (E,) whether one rotation is free
    normal: Tensor  # (..., E, 3) across two free rotations, zero for other joints
    parent_anchor: Tensor  # (..., E, 3) in the parent frame
    child_anchor: Tensor
    offset: Tensor  # (..., E, 4) orientation offset


def _stacked(order: Sequence[JointOrder], num_bodies: int, count: int) -> _Tree:
    places: tuple[list[list[int]], list[list[int]]] = ([], [])
    for entry in order:
        first, middle, last = entry.coordinates.start, entry.coordinates.start + entry.joint.free_translations, entry.coordinates.stop
        for table, values in zip(places, (range(first, middle), range(middle, last)), strict=True):
            table.append([*values, *[count] * (3 - len(values))])
    joints = [cast(StandardJoint, entry.joint) for entry in order]
    device = joints[0].axis.device

    def padded(axes: Tensor) -> Tensor:
        return torch.cat((axes, axes.new_zeros(*axes.shape[:-2], 3 - axes.shape[-2], 3)), dim=-2)

    def stack(values: list[Tensor], ndim: int) -> Tensor:
        batch = broadcast_shapes(*(value.shape[: value.ndim - ndim] for value in values))
        return torch.stack([value.expand(*batch, *value.shape[value.ndim - ndim :]) for value in values], dim=-1 - ndim)

    return _Tree(
        torch.tensor([entry.parent % (num_bodies + 1) for entry in order], device=device),
        torch.tensor([entry.child for entry in order], device=device),
        torch.tensor(places[0], device=device),
        torch.tensor(places[1], device=device),
        stack([padded(joint.free_translational_axes) for joint in joints], 2),
        stack([padded(joint.free_rotational_axes) for joint in joints], 2),
        torch.tensor([joint.free_rotations == 1 for joint in joints], device=device),
        stack([unit(joint.axis) if joint.free_rotations == 2 else torch.zeros_like(joint.axis) for joint in joints], 1),
        stack([joint.parent_anchor for joint in joints], 1),
        stack([joint.child_anchor for joint in joints], 1),
        stack([quat.normalize(joint.orientation_offset) for joint in joints], 1),
    )


def without_rates(z: Tensor, timestep: Tensor) -> Tensor:
    """Whether z (..., 13 nb) has no rates over one step, (...,): a body spins at 2/h rad/s or more, which only shorter steps reach."""
    sine = 0.5 * timestep[..., None] * torch.linalg.vector_norm(split_state(z).twist.omega, dim=-1)
    return (sine >= 1).any(-1)


# -- one configuration -------------------------------------------------------------------------------------------------------------------


class _Displacements(NamedTuple):
    """Joints at one configuration: p (..., E, 4), and the derivatives of (e, p) by the (dx, dφ) of parent and child, (..., E, 6, 6)."""

    p: Tensor
    by_parent: Tensor
    by_child: Tensor
    motion: Tensor  # inverse of `by_child`


def _displacements(tree: _Tree, pose: Pose) -> _Displacements:
    """Displacements of the joints at poses (..., nb + 1, ·) of the bodies and of the world."""
    (x_a, q_a), (x_b, q_b) = (Pose(pose.x[..., i, :], pose.q[..., i, :]) for i in (tree.parent, tree.child))
    a, b = quat.rotation_matrix(q_a), quat.rotation_matrix(q_b)
    lever = (a.mT @ (x_b + quat.rotate(q_b, tree.child_anchor) - x_a)[..., None])[..., 0]
    relative, anchor = a.mT @ b, _hat(tree.child_anchor)
    zero, one = torch.zeros_like(a), torch.eye(3, dtype=a.dtype, device=a.device)
    return _Displacements(
        quat.multiply(quat.conjugate(quat.multiply(q_a, tree.offset)), q_b),
        _blocks(-a.mT, _hat(lever), zero, -relative.mT),
        _blocks(a.mT, -relative @ anchor, zero, one),
        _blocks(a, b @ anchor, zero, one),
    )


def _blocks(top_left: Tensor, top_right: Tensor, bottom_left: Tensor, bottom_right: Tensor) -> Tensor:
    """(..., 6, 6) from blocks (..., 3, 3)."""
    tl, tr, bl, br = torch.broadcast_tensors(top_left, top_right, bottom_left, bottom_right)
    return torch.cat((torch.cat((tl, tr), dim=-1), torch.cat((bl, br), dim=-1)), dim=-2)


def _hat(v: Tensor) -> Tensor:
    """[v]× (..., 3, 3)."""
    x, y, z = v.unbind(-1)
    zero = torch.zeros_like(x)
    return torch.stack((zero, -z, y, z, zero, -x, -y, x, zero), dim=-1).unflatten(-1, (3, 3))


def _right_jacobian(phi: Tensor) -> Tensor:
    """J(φ) with exp(φ + dφ) = exp(φ) exp(J dφ), (..., 3, 3). Its transpose is J(−φ)."""
    squared = (phi * phi).sum(-1)[..., None, None]
    small = squared < 1e-8  # the next terms of the series are below 1e-18
    safe = torch.where(small, 1.0, squared)
    angle = torch.sqrt(safe)
    first = torch.where(small, 0.5 - squared / 24, (1 - torch.cos(angle)) / safe)
    second = torch.where(small, 1 / 6 - squared / 120, (angle - torch.sin(angle)) / (safe * angle))
    cross = _hat(phi)
    return torch.eye(3, dtype=phi.dtype, device=phi.device) - first * cross + second * cross @ cross


def _inverse_right_jacobian(phi: Tensor) -> Tensor:
    """J⁻¹(φ), |φ| <= π, (..., 3, 3)."""
    squared = (phi * phi).sum(-1)[..., None, None]
    small = squared < 1e-6
    safe = torch.where(small, 1.0, squared)
    half = 0.5 * torch.sqrt(safe)
    second = torch.where(small, 1 / 12 + squared / 720, (1 - half / torch.tan(half)) / safe)
    cross = _hat(phi)
    return torch.eye(3, dtype=phi.dtype, device=phi.device) + 0.5 * cross + second * cross @ cross


def _rows_of_turn(tree: _Tree, p: Tensor) -> Tensor:
    """Derivatives of the rotational coordinates by δp, (..., E, 3, 3)."""
    rows = tree.rotational_axes @ _inverse_right_jacobian(quat.rotation_vector(p))
    f, w, v = tree.rotational_axes[..., 0, :], p[..., :1], p[..., 1:]
    sine = (f * v).sum(-1, keepdim=True)
    square = torch.where(tree.single[:, None], w * w + sine * sine, 1.0)
    about = (w * (w * f + quat.cross(f, v)) + sine * v) / square
    return torch.where(tree.single[:, None, None], torch.stack((about, *[torch.zeros_like(about)] * 2), dim=-2), rows)


def _increments(twist: Twist, h: Tensor) -> tuple[Tensor, Tensor]:
    """R of the rotation of one step at ω, and M with increment(ω + dω) = increment(ω) ⊗ [1, M dω/2], each (..., 3, 3)."""
    a = 0.5 * h * twist.omega
    c = torch.sqrt(1 - (a * a).sum(-1, keepdim=True))
    eye = torch.eye(3, dtype=a.dtype, device=a.device)
    matrix = h[..., None] * (c[..., None] * eye - _hat(a) + a[..., :, None] * (a / c)[..., None, :])
    return quat.rotation_matrix(torch.cat((c, a), dim=-1)), matrix


# -- the maps ----------------------------------------------------------------------------------------------------------------------------


def minimal_products(order: Sequence[JointOrder], num_bodies: int, z: Tensor, timestep: Tensor, matrices: Sequence[Tensor]) -> list[Tensor]:
    """Derivative of `to_minimal` at z (..., 13 nb) times matrices (..., 12 nb, c) of tangents: rows of [q, qd], (..., 2 n, c) each.

    A joint reads two bodies only, so the derivative itself is never put together.
    """
    count = sum(entry.joint.num_coordinates for entry in order)
    tree, state, h = _stacked(order, num_bodies, count), split_state(z), timestep[..., None, None]
    turn, spin = _increments(state.twist, h)
    places = _displacements(tree, with_world(state.pose))
    before = _displacements(tree, with_world(previous_pose(state.pose, state.twist, h)))
    delta = quat.multiply(places.p, quat.conjugate(before.p))
    zero, translations = torch.zeros_like(tree.translational_axes), tree.translational_axes
    rate = tree.rotational_axes @ _inverse_right_jacobian(quat.rotation_vector(delta)) @ quat.rotation_matrix(before.p) / h[..., None]
    coordinates = _blocks(translations, zero, zero, _rows_of_turn(tree, places.p))
    rates = _blocks(translations / h[..., None], zero, zero, rate)
    rates_before = _blocks(-translations / h[..., None], zero, zero, -rate)
    sides = []
    for body, (current, earlier) in (
        (tree.parent, (places.by_parent, before.by_parent)),
        (tree.child, (places.by_child, before.by_child)),
    ):
        body = body.clamp_max(num_bodies - 1)  # no one reads the world's columns
        direct, back = torch.cat((coordinates, rates), dim=-2) @ current, rates_before @ earlier
        back = torch.cat((torch.zeros_like(back), back), dim=-2)
        # The pose before: dx − h dv and R (dφ − M dω).
        turned = back[..., 3:] @ turn[..., body, :, :]
        columns = direct[..., :3] + back[..., :3], -h[..., None] * back[..., :3], direct[..., 3:] + turned, -turned @ spin[..., body, :, :]
        sides.append(torch.cat(torch.broadcast_tensors(*columns), dim=-1))
    results = []
    for matrix in matrices:
        batch = broadcast_shapes(sides[0].shape[:-3], matrix.shape[:-2])
        result = matrix.new_empty(*batch, 2 * count, matrix.shape[-1])
        for e, entry in enumerate(order):
            free = _free(entry)
            if not free:
                continue
            rows = [*free, *(6 + i for i in free)]
            value = sides[1][..., e, rows, :] @ _rows_of(matrix, entry.child)
            if entry.parent >= 0:
                value = value + sides[0][..., e, rows, :] @ _rows_of(matrix, entry.parent)
            first, last = entry.coordinates.start, entry.coordinates.stop
            result[..., first:last, :], result[..., count + first : count + last, :] = value.split(len(free), dim=-2)
        results.append(result)
    return results


def maximal_jacobian(order: Sequence[JointOrder], num_bodies: int, q: Tensor, qd: Tensor, z: Tensor, timestep: Tensor) -> Tensor:
    """Derivative of `to_maximal` at (q, qd), z being its value: the tangent of z by [q, qd], (..., 12 nb, 2 n)."""
    count = q.shape[-1]
    tree, state, h = _stacked(order, num_bodies, count), split_state(z), timestep[..., None, None]
    turn, spin = _increments(state.twist, h)
    places = _displacements(tree, with_world(state.pose))
    before = _displacements(tree, with_world(previous_pose(state.pose, state.twist, h)))
    phi, moved = (
        (tree.rotational_axes.mT @ nn.functional.pad(v, (0, 1))[..., tree.rotations][..., None])[..., 0] for v in (q, h[..., 0] * qd)
    )
    # Rotation of the joint in a step: τ = t + k n with t = h A_rᵀ q̇. With two free rotations, k = n·(p⃗ × t)/p₀ keeps it assembled.
    normal, scalar, vector = tree.normal, places.p[..., :1], places.p[..., 1:]
    double = (normal * normal).sum(-1, keepdim=True) > 0
    scalar = torch.where(double, scalar, 1.0)
    held = (normal * quat.cross(vector, moved)).sum(-1, keepdim=True) / scalar
    tau = moved + held * normal
    side = quat.cross(moved, normal)
    # dk by δ, the change of p (dp₀ = −p⃗·δ/2, dp⃗ = (p₀ δ + p⃗ × δ)/2), and by dt.
    by_p = 0.5 * ((held * vector + quat.cross(side, vector)) / scalar + side)
    by_t = quat.cross(normal, vector) / scalar
    eye = torch.eye(3, dtype=q.dtype, device=q.device)
    right, left = _right_jacobian(phi) @ tree.rotational_axes.mT, _right_jacobian(tau).mT
    zero, shift = torch.zeros_like(right), tree.translational_axes.mT.expand_as(right)
    # (δe, δp) of the joint by its (q, q̇): p⁻ = exp(−τ) ⊗ p, so δp⁻ = δp − R(p)ᵀ J(−τ) dτ.
    left = quat.rotation_matrix(places.p).mT @ left
    turned = eye - left @ (normal[..., :, None] * by_p[..., None, :])
    swung = -h[..., None] * left @ (eye + normal[..., :, None] * by_t[..., None, :]) @ tree.rotational_axes.mT
    by_q, earlier_by_q = _blocks(shift, zero, zero, right), _blocks(shift, zero, zero, turned @ right)
    earlier_by_qd = _blocks(-h[..., None] * shift, zero, zero, swung)
    batch = broadcast_shapes(z.shape[:-1], by_q.shape[:-3])
    present, earlier = (q.new_zeros(*batch, num_bodies, 6, columns) for columns in (count, 2 * count))
    for place, whole, parts in (
        (places, present, (by_q,)),
        (before, earlier, (earlier_by_q, earlier_by_qd)),
    ):
        carry = -place.motion @ place.by_parent
        blocks = [place.motion @ part for part in parts]
        for e, entry in enumerate(order):
            value, free = whole[..., entry.child, :, :], _free(entry)
            if entry.parent >= 0:
                value.copy_(carry[..., e, :, :] @ whole[..., entry.parent, :, :])
            for k, part in enumerate(blocks):
                value[..., k * count + entry.coordinates.start : k * count + entry.coordinates.stop] += part[..., e, :, :][..., free]
    result = q.new_zeros(*batch, num_bodies, 4, 3, 2 * count)
    # v = (x − x⁻)/h, and the rotation of the step, q⁻⁻¹ q, has the tangent dφ − Rᵀ dφ⁻ = M dω.
    inverse = torch.linalg.inv(spin)
    result[..., 0, :, :count], result[..., 2, :, :count] = present[..., :3, :], present[..., 3:, :]
    result[..., 1, :, :] = (result[..., 0, :, :] - earlier[..., :3, :]) / h[..., None]
    result[..., 3, :, :] = inverse @ result[..., 2, :, :] - (inverse @ turn.mT) @ earlier[..., 3:, :]
    return result.flatten(-4, -2)


def _free(entry: JointOrder) -> list[int]:
    """Places of a joint's coordinates among three translations and three rotations."""
    return [*range(entry.joint.free_translations), *range(3, 3 + entry.joint.free_rotations)]


def _rows_of(matrix: Tensor, body: int) -> Tensor:
    return matrix[..., TANGENT_SIZE * body : TANGENT_SIZE * (body + 1), :]
