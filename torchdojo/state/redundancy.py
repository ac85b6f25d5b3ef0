"""Rows of loops that repeat what the spanning tree holds: found when a mechanism is built, and left out of its equations.

The hinges of a planar four-bar hold its links in the plane. A joint that closes the loop holds them there once more. With the tree's
coordinates y, the rows of the closing joint are C g(y). A direction n of these rows repeats the tree if nᵀ C g(y) is the same number at
every y, closed or not. This number is the misfit, and no motion changes it. With exact geometry the misfit is zero, and the row says
nothing. With rounded geometry it is not, no motion satisfies the row, and a step has no solution. So the joint keeps the rows P C g⁺, where
P = I − Σ n nᵀ, and the multipliers λ along n vanish:

    P C g⁺ + h (I − P) λ = 0,   impulses (P C)ᵀ λ.

The misfit stays as it is, the tree's joints carry the loads along n, and the other rows are as independent as those of any tree.
Directions n are constants of the joint frame. They exist where all hinges are parallel, where they meet in a point, and where joints of the
same two bodies share an axis. Rows that depend on each other only at some configurations, such as those of a flat parallelogram, stay.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor

from torchdojo.elements.element import Pose
from torchdojo.elements.joint import Joint
from torchdojo.elements.joints import StandardJoint
from torchdojo.elements.kept_rows import KeptRows
from torchdojo.state import minimal
from torchdojo.state.layout import split_state, with_world

__all__ = ["LARGEST_MISFIT", "check_misfit", "set_kept_rows"]

LARGEST_MISFIT = 1e-3  # [m, rad] at most between rows that repeat each other
# A row repeats the tree if it varies by at most so much over the samples, in the root mean square [half-angle, or fraction of the loop's
# size, of 1 m at most]. Directions in files with three decimals vary by less than that.
REPEATS = 1e-3
SAMPLES = 24  # configurations of the tree, up to 1 rad and one size of the loop from zero
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
    ends = {name: (number[joint.parent], number[joint.child]) for name, joint in closing.items()}
    sizes = {name: _size(joint, ends[name], order) for name, joint in closing.items()}
    with torch.no_grad():
        pose = _poses(order, len(body_names), closing.values(), max(sizes.values()))
        for name, joint in closing.items():
            rows = joint.constraint(*(Pose(pose.x[..., body, :], pose.q[..., body, :]) for body in ends[name])).flatten(1, -2)
            split = 3 - joint.free_translations
            kept = [_kept(rows[..., :split], REPEATS * min(sizes[name], 1.0)), _kept(rows[..., split:], REPEATS)]
            if any(p is not None for p in kept):
                joint.kept_rows = KeptRows(*(_numbers(p, m) for p, m in zip(kept, (split, joint.num_rows - split), strict=True)))
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
            f"a loop cannot be closed in directions in which it does not move: joint {name!r} by {distance:.3g} m and {turn:.3g} rad stays "
            "open. Correct the anchors, axes and orientations of the loop's joints: where they hold the same, they may differ by "
            f"{LARGEST_MISFIT:g} m and rad"
        )


def _kept(rows: Tensor, least: float) -> Tensor | None:
    """P (m, m) for rows (SAMPLES, environments, m); None if no direction repeats the tree."""
    change = (rows - rows.mean(0)).flatten(0, 1)
    values, vectors = torch.linalg.eigh(change.mT @ change / len(change))
    repeated = vectors[:, values.clamp_min(0.0).sqrt() <= least]
    return torch.eye(len(values)).to(values) - repeated @ repeated.mT if repeated.shape[1] else None


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


def _poses(order: Sequence[minimal.JointOrder], num_bodies: int, closing: Collection[StandardJoint], size: float) -> Pose:
    """Poses (SAMPLES, environments..., nb + 1, ·) of the bodies and the world at configurations of the tree.

    Coordinates are at most 1 rad, and lengths at most `size`.
    """
    device = next(iter(closing)).axis.device
    modules = [*closing, *(entry.joint for entry in order)]
    fields = [(getattr(module, name), ndim) for module in modules for name, ndim in module.fields.items()]
    batch = torch.broadcast_shapes((1,), *(value.shape[: value.ndim - ndim] for value, ndim in fields if value is not None))
    count = max((entry.coordinates.stop for entry in order), default=0)
    number = torch.arange(1, SAMPLES * count + 1, dtype=torch.float64)
    y = torch.cos(number**2).to(device).reshape(SAMPLES, *(1,) * len(batch), count).expand(SAMPLES, *batch, count).clone()
    for entry in order:
        y[..., entry.coordinates.start : entry.coordinates.start + entry.joint.free_translations] *= size
    return with_world(split_state(minimal.to_maximal(order, num_bodies, y, torch.zeros_like(y), y.new_ones(()))).pose)
