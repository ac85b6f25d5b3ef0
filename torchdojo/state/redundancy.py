"""Rows of loops that repeat what the spanning tree holds: found when a mechanism is built, and left out of its equations.

The hinges of a planar four-bar hold its links in the plane. A joint that closes the loop holds them there once more. With the tree's
coordinates y, the rows of the closing joint are C g(y). A direction n of these rows repeats the tree if

    nᵀ C ∂g/∂y = 0   at every y, closed or not.

Then nᵀ C g is one number, the misfit, and no motion changes it. With exact geometry the misfit is zero and the row says nothing. With
rounded geometry it is not, and no motion satisfies the row: the step would have no solution. So the joint keeps the rows P C g⁺, where
P = I − Σ n nᵀ, and the multipliers λ along n vanish:

    P C g⁺ + h (I − P) λ = 0,   impulses (P C)ᵀ λ.

The misfit stays as it is, the tree's joints carry the loads along n, and the other rows are as independent as those of any tree.
Directions n are constants of the joint frame. They exist where all hinges are parallel, where they meet in a point, and where joints of the
same two bodies share an axis. Rows that depend on each other only at some configurations, such as those of a flat parallelogram, stay.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from torchdojo.elements.element import Pose
from torchdojo.elements.joint import Joint
from torchdojo.elements.joints import KeptRows, StandardJoint
from torchdojo.state import minimal
from torchdojo.state.layout import split_state, with_world
from torchdojo.state.tangent import local_jacobian

__all__ = ["LARGEST_MISFIT", "check_misfit", "set_kept_rows"]

LARGEST_MISFIT = 1e-3  # [m, rad] at most between rows that repeat each other
# A row repeats the tree if it changes by at most so much per radian [half-angle, or fraction of the loop's size, of 1 m at most].
# Directions in files with three decimals are off by this much, and with four by a tenth.
REPEATS = 1e-3
SAMPLES = 4  # configurations of the tree, up to 1 rad and one size of the loop from zero
DIGITS = 12  # of the entries of P, so that equal loops have equal ones


def set_kept_rows(body_names: Sequence[str], joints: Mapping[str, Joint]) -> None:
    """Set `StandardJoint.kept_rows` of all joints.

    Raises:
        ValueError: rows that repeat each other contradict each other by more than `LARGEST_MISFIT`.
    """
    standard = {name: joint for name, joint in joints.items() if isinstance(joint, StandardJoint)}
    for joint in standard.values():
        joint.kept_rows = None
    tree = minimal.tree_names(joints)
    closing = {name: joint for name, joint in standard.items() if name not in tree and joint.num_rows}
    if not closing:
        return
    try:
        order = minimal.spanning_order(body_names, joints)
    except ValueError:
        return  # no coordinates, in which the rows could be looked at
    number: dict[str | None, int] = {None: -1, **{name: i for i, name in enumerate(body_names)}}
    for name, joint in closing.items():
        ends = number[joint.parent], number[joint.child]
        size = _size(joint, ends, order)
        rows, jacobian = _sample(joint, ends, order, len(body_names), size)
        split = 3 - joint.free_translations
        kept = [_kept(jacobian[:, :split], REPEATS * min(size, 1.0)), _kept(jacobian[:, split:], REPEATS)]
        if any(p is not None for p in kept):
            joint.kept_rows = KeptRows(*(_numbers(p, rank) for p, rank in zip(kept, (split, joint.num_rows - split), strict=True)))
            check_misfit(name, joint, rows)


def check_misfit(name: str, joint: StandardJoint, rows: Tensor) -> None:
    """Raise a ValueError if rows (..., num_rows) of a joint contradict the tree by more than `LARGEST_MISFIT`."""
    if joint.kept_rows is None:
        return
    split = 3 - joint.free_translations
    gaps = rows.detach() @ joint.kept_rows.left_out(rows)
    distance, turn = (float(torch.linalg.vector_norm(gap, dim=-1).amax()) for gap in (gaps[..., :split], 2 * gaps[..., split:]))
    if max(distance, turn) > LARGEST_MISFIT:
        raise ValueError(
            f"joint {name!r} closes a loop and holds what the loop's other joints hold, but elsewhere: {distance:.3g} m and {turn:.3g} rad "
            f"stay open, in directions in which these joints do not move; allowed: {LARGEST_MISFIT:g} m and rad. Correct the anchors, axes "
            "and orientations of the loop's joints"
        )


def _kept(jacobian: Tensor, least: float) -> Tensor | None:
    """P (m, m) for rows whose Jacobians at all samples are (S, m, n); None if no direction repeats the tree."""
    values, vectors = torch.linalg.eigh((jacobian @ jacobian.mT).mean(0))
    repeated = vectors[:, values.clamp_min(0.0).sqrt() <= least]
    return torch.eye(len(values), dtype=values.dtype, device=values.device) - repeated @ repeated.mT if repeated.shape[1] else None


def _numbers(p: Tensor | None, size: int) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(round(x, DIGITS) for x in row) for row in (torch.eye(size) if p is None else p).tolist())


def _size(joint: Joint, ends: tuple[int, int], order: Sequence[minimal.JointOrder]) -> float:
    """Size of a loop [m]: the longest way from a center of mass to an anchor of its joints, or 1 m where all anchors are centers."""
    above, around = {entry.child: entry for entry in order}, {id(joint): joint}
    for body in ends:
        while body >= 0:
            entry = above[body]
            if id(entry.joint) in around:
                del around[id(entry.joint)]  # on the way from the loop to the world
            else:
                around[id(entry.joint)] = entry.joint
            body = entry.parent
    anchors = [value for one in around.values() if isinstance(one, StandardJoint) for value in (one.parent_anchor, one.child_anchor)]
    return max(float(torch.linalg.vector_norm(value.detach(), dim=-1).amax()) for value in anchors) or 1.0


def _sample(
    joint: StandardJoint, ends: tuple[int, int], order: Sequence[minimal.JointOrder], num_bodies: int, size: float
) -> tuple[Tensor, Tensor]:
    """Rows (S, m) of a joint at configurations of the tree and in all environments, and their Jacobians (S, m, n).

    Columns of lengths are multiplied by `size`, so all columns are per radian, or per size of the loop.
    """
    where = dict(dtype=torch.float64, device=joint.parent_anchor.device)
    units = torch.ones(max((entry.coordinates.stop for entry in order), default=0), **where)
    for entry in order:
        units[entry.coordinates.start : entry.coordinates.start + entry.joint.free_translations] = size
    modules = [joint, *(entry.joint for entry in order)]
    fields = [(getattr(module, name), ndim) for module in modules for name, ndim in module.fields.items()]
    batch = torch.broadcast_shapes(*(value.shape[: value.ndim - ndim] for value, ndim in fields if value is not None))
    y = torch.cos(torch.arange(1, SAMPLES * len(units) + 1, **where) ** 2).reshape(SAMPLES, *(1,) * len(batch), len(units))
    still, step = torch.zeros((), **where), torch.ones((), **where)

    def rows(y: Tensor) -> Tensor:
        z = minimal.to_maximal(order, num_bodies, units * y, still.expand(y.shape), step)
        x, q = with_world(split_state(z).pose)
        return joint.constraint(*(Pose(x[..., body, :], q[..., body, :]) for body in ends))

    value, jacobian = local_jacobian(rows, y.expand(SAMPLES, *batch, len(units)))
    return value.reshape(-1, value.shape[-1]), jacobian.reshape(-1, *jacobian.shape[-2:])
