"""Rows of loops that repeat what the spanning tree holds: found when a mechanism is built, and left out of its equations.

The hinges of a planar four-bar hold its links in the plane. A joint that closes the loop holds them there once more. With the tree's
coordinates y, the rows of the closing joint are C g(y). A direction n of these rows repeats the tree if nᵀ C g(y) is the same number at
every y, closed or not. This number is the misfit, and no motion changes it. With exact geometry the misfit is zero, and the row says
nothing. With rounded geometry it is not, no motion satisfies the row, and a step has no solution. So the joint keeps the rows P C g⁺, where
P = I − Σ n nᵀ, and the multipliers λ along n vanish:

    P C g⁺ + h (I − P) λ = 0,   impulses (P C)ᵀ λ.

The misfit stays as it is, the tree's joints carry the loads along n, and the other rows are as independent as those of any tree.
Directions n are constants of the joint frame. They exist where all hinges are parallel, where they meet in a point, and where joints of the
same two bodies share an axis. Rows that repeat the tree only where the loops are closed are in dependent_rows.py. Rows that depend on each
other only at some configurations, such as those of a flat parallelogram, stay.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from torchdojo.elements.element import Pose
from torchdojo.elements.joint import Joint
from torchdojo.elements.joints import StandardJoint
from torchdojo.elements.kept_rows import KeptRows
from torchdojo.parameters import broadcast_shapes
from torchdojo.state import minimal
from torchdojo.state.dependent_rows import dependent_directions
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
        ValueError: rows that repeat each other contradict each other by more than `LARGEST_MISFIT`; a switch on a joint of the tree.
    """
    standard = {name: joint for name, joint in joints.items() if isinstance(joint, StandardJoint)}
    for joint in standard.values():
        joint.kept_rows = None
    names = minimal.tree_names(joints)
    _check_switches(standard, names)
    closing = {name: joint for name, joint in standard.items() if name not in names and joint.num_rows}
    if not closing:
        return
    try:
        order = minimal.spanning_order(body_names, joints)
    except ValueError:
        return  # no coordinates, in which the rows could be looked at
    number: dict[str | None, int] = {None: -1, **{name: i for i, name in enumerate(body_names)}}
    ends = {name: (number[joint.parent], number[joint.child]) for name, joint in closing.items()}
    chains = {name: _chain(joint, ends[name], order) for name, joint in closing.items()}
    sizes = {name: _size([joint, *chains[name]]) for name, joint in closing.items()}
    with torch.no_grad():
        tree = _Tree(order, len(body_names), closing, ends, max(sizes.values()))
        for name, rows in tree.rows(tree.samples).items():
            joint = closing[name]
            t, r = (part.flatten(1, -2) for part in _parts(joint, rows))
            _leave_out(joint, _constant(t, REPEATS * min(sizes[name], 1.0)), _constant(r, REPEATS))
            check_misfit(name, joint, rows)
        # A loop with more coordinates than rows moves without such luck. No row may rely on rows of a joint that can be switched off.
        firm = {name: joint for name, joint in closing.items() if joint.active is None}
        if any(
            joint.kept_rows is None and sum(one.num_coordinates for one in chains[name]) <= joint.num_rows for name, joint in firm.items()
        ):
            _leave_out_dependent(_Tree(order, len(body_names), firm, ends, max(sizes.values())), sizes)


def _check_switches(joints: Mapping[str, StandardJoint], tree: Sequence[str]) -> None:
    for name, joint in joints.items():
        if name in tree and joint.active is not None:
            raise ValueError(
                f"joint {name!r}: got active={joint.active.tolist()} for a joint of the spanning tree, which gives its child coordinates; "
                "allowed: joints that close loops. Give the child a joint that always holds, declared before this one: "
                f"td.Floating({joint.parent!r}, {joint.child!r}, actuated=False)"
            )


def check_misfit(name: str, joint: StandardJoint, rows: Tensor) -> None:
    """Raise a ValueError if rows (..., num_rows) of a joint contradict the tree by more than `LARGEST_MISFIT`."""
    if joint.kept_rows is None or (joint.active is not None and not bool(joint.active.any())):
        return
    gaps = _parts(joint, rows.detach() @ joint.kept_rows.left_out(rows))
    distance, turn = (factor * float(torch.linalg.vector_norm(gap, dim=-1).amax()) for factor, gap in zip((1, 2), gaps, strict=True))
    if max(distance, turn) > LARGEST_MISFIT:
        raise ValueError(
            f"a loop cannot be closed in directions in which it does not move: joint {name!r} by {distance:.3g} m and {turn:.3g} rad stays "
            "open. Correct the anchors, axes and orientations of the loop's joints: where they hold the same, they may differ by "
            f"{LARGEST_MISFIT:g} m and rad"
        )


def _parts(joint: StandardJoint, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of translations and of rotations."""
    split = 3 - joint.free_translations
    return rows[..., :split], rows[..., split:]


def _constant(rows: Tensor, least: float) -> Tensor:
    """Directions (m, k) along which rows (SAMPLES, environments, m) do not change."""
    change = (rows - rows.mean(0)).flatten(0, 1)
    values, vectors = torch.linalg.eigh(change.mT @ change / len(change))
    return vectors[:, values.clamp_min(0.0).sqrt() <= least]


def _leave_out(joint: StandardJoint, *repeated: Tensor) -> None:
    """Set the kept rows of a joint, all but orthonormal directions (m, k) of translations and of rotations."""
    if any(directions.shape[1] for directions in repeated):
        kept = (torch.eye(len(directions)).to(directions) - directions @ directions.mT for directions in repeated)
        joint.kept_rows = KeptRows(*(tuple(tuple(round(x, DIGITS) for x in row) for row in p.tolist()) for p in kept))


class _Part(NamedTuple):
    """Translations or rotations of a closing joint: their unit [m, half-angle], and directions (m, k) that are kept and left out."""

    unit: float
    kept: Tensor
    left_out: Tensor


def _leave_out_dependent(tree: _Tree, sizes: Mapping[str, float]) -> None:
    """Leave out rows that follow from others where all loops are closed, beside those that are left out already."""
    parts: list[_Part] = []
    for name, joint in tree.closing.items():
        counts = 3 - joint.free_translations, 3 - joint.free_rotations
        for k, (count, unit) in enumerate(zip(counts, (sizes[name], 1.0), strict=True)):
            values, vectors = torch.ones(count), torch.eye(count).to(tree.samples)
            if joint.kept_rows is not None:
                values, vectors = torch.linalg.eigh(joint.kept_rows.matrices(vectors)[k])
            parts.append(_Part(unit, vectors[:, values > 0.5], vectors[:, values <= 0.5]))
    stops = [0, *itertools.accumulate(part.kept.shape[1] for part in parts)]
    units = torch.cat([torch.full_like(part.kept[0], part.unit) for part in parts if len(part.kept)])

    def rows(y: Tensor) -> Tensor:
        pairs = zip((half for name, value in tree.rows(y).items() for half in _parts(tree.closing[name], value)), parts, strict=True)
        return torch.cat([value @ part.kept for value, part in pairs], dim=-1)

    starts = torch.cat((tree.samples[::4], 0.3 * tree.samples[1::4]))
    places = [slice(*ends) for ends in itertools.pairwise(stops)]
    for number, direction in dependent_directions(rows, starts, places, units, LARGEST_MISFIT, REPEATS):
        part = parts[number]
        left_out = torch.cat((part.left_out, (part.kept @ direction)[:, None]), dim=1)
        parts[number] = part._replace(left_out=torch.linalg.qr(left_out)[0])
    for joint, t, r in zip(tree.closing.values(), parts[::2], parts[1::2], strict=True):
        _leave_out(joint, t.left_out, r.left_out)


def _chain(joint: Joint, ends: tuple[int, int], order: Sequence[minimal.JointOrder]) -> list[Joint]:
    """The tree's joints between the bodies of a joint."""
    above, chain = {entry.child: entry for entry in order}, dict[int, Joint]()
    for body in ends:
        while body >= 0:
            entry = above[body]
            if chain.pop(id(entry.joint), None) is None:  # else on the way from the loop to the world
                chain[id(entry.joint)] = entry.joint
            body = entry.parent
    return list(chain.values())


def _size(joints: Sequence[Joint]) -> float:
    """Size of a loop [m]: the longest way from a center of mass to an anchor of its joints, or 1 m where all anchors are centers."""
    anchors = [value for one in joints if isinstance(one, StandardJoint) for value in (one.parent_anchor, one.child_anchor)]
    return max(float(torch.linalg.vector_norm(value.detach(), dim=-1).amax()) for value in anchors) or 1.0


class _Tree:
    """Configurations of the spanning tree, and the rows of the joints that close loops there.

    Lengths among the coordinates y are fractions of `size`.
    """

    def __init__(
        self,
        order: Sequence[minimal.JointOrder],
        num_bodies: int,
        closing: Mapping[str, StandardJoint],
        ends: Mapping[str, tuple[int, int]],
        size: float,
    ) -> None:
        self.order, self.num_bodies, self.closing, self.ends = order, num_bodies, closing, ends
        modules = [*closing.values(), *(entry.joint for entry in order)]
        fields = [(getattr(module, name), ndim) for module in modules for name, ndim in module.fields.items()]
        batch = broadcast_shapes((1,), *(value.shape[: value.ndim - ndim] for value, ndim in fields if value is not None))
        count = max((entry.coordinates.stop for entry in order), default=0)
        number = torch.arange(1, SAMPLES * count + 1, dtype=torch.float64)
        y = torch.cos(number**2).to(next(iter(closing.values())).axis.device)
        #: (SAMPLES, environments..., n), numbers from −1 to 1.
        self.samples = y.reshape(SAMPLES, *(1,) * len(batch), count).expand(SAMPLES, *batch, count)
        self.units = y.new_ones(count)
        for entry in order:
            self.units[entry.coordinates.start : entry.coordinates.start + entry.joint.free_translations] = size

    def rows(self, y: Tensor) -> dict[str, Tensor]:
        """Rows (..., num_rows) of each closing joint at coordinates (..., n)."""
        z = minimal.to_maximal(self.order, self.num_bodies, self.units * y, torch.zeros_like(y), y.new_ones(()))
        x, q = with_world(split_state(z).pose)
        ends = {name: [Pose(x[..., body, :], q[..., body, :]) for body in pair] for name, pair in self.ends.items()}
        return {name: joint.constraint(*ends[name]) for name, joint in self.closing.items()}
