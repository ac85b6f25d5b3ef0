"""Numbers of all drives side by side, so that each law is called once for all drives that have it.

An arm with four muscles would call the curves of a muscle four times; with a table it calls them once, on the last dimension of tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchdojo.parameters import as_tensor

__all__ = ["Bounds", "Group", "Table", "has_tensors", "numbers_of", "ordered"]

RANGES = "ctrlrange", "forcerange", "actrange"
FIELDS = "gear", "dynamics_numbers", "gain_numbers", "bias_numbers", *RANGES, "length0", "lengths", "acc0", "rod", "reach"


class Group(NamedTuple):
    """Drives with one law: their places among all drives, and their numbers (..., k, ·), lengths (..., k, 2) and acc0 (..., k)."""

    law: str
    places: list[int]
    numbers: Tensor
    lengths: Tensor
    acc0: Tensor


class Bounds(NamedTuple):
    """Ranges of all drives, (..., n) each; infinite where a drive has none."""

    lower: Tensor
    upper: Tensor

    def clip(self, value: Tensor) -> Tensor:
        return torch.clamp(value, self.lower, self.upper)


class Table(NamedTuple):
    """Numbers of all drives. Drives of `mech.actuators` have zeros for numbers, and infinite ranges.

    gear, length0: (..., n), zero where it acts by wrenches. ctrl, force: `Bounds` (..., n). act: `Bounds` of the activations.
    dynamics: groups of the drives with an activation. gain, bias: of all drives with a law.
    """

    gear: Tensor
    length0: Tensor
    ctrl: Bounds
    force: Bounds
    act: Bounds
    dynamics: list[Group]
    gain: list[Group]
    bias: list[Group]

    @classmethod
    def of(cls, drives: Mapping[str, Any], activated: Sequence[str]) -> Table:
        """drives: name -> `td.Drive` or None. activated: the names of those with an activation."""
        with_law = {i: drive for i, drive in enumerate(drives.values()) if drive is not None}
        stateful = {i: drive for i, (name, drive) in enumerate(drives.items()) if name in activated}
        along = [
            drive if drive is not None and (drive.tendon or (drive.joint and drive.axes is None)) else None for drive in drives.values()
        ]
        gear, length0 = (_stacked([0.0 if drive is None else getattr(drive, name) for drive in along]) for name in ("gear", "length0"))
        every = list(drives.values())
        return cls(
            gear,
            length0,
            _bounds([drive and drive.ctrlrange for drive in every]),
            _bounds([drive and drive.forcerange for drive in every]),
            _bounds([drive.actrange for drive in stateful.values()]),
            _groups(stateful, "dynamics"),
            _groups(with_law, "gain"),
            _groups(with_law, "bias"),
        )


def _groups(drives: Mapping[int, Any], kind: str) -> list[Group]:
    by_law: dict[tuple[str, int], list[tuple[int, Any, Tensor]]] = {}
    for place, drive in drives.items():
        numbers = numbers_of(getattr(drive, f"{kind}_numbers"))
        by_law.setdefault((getattr(drive, kind), numbers.shape[-1]), []).append((place, drive, numbers))
    return [
        Group(
            law,
            [place for place, _, _ in members],
            torch.stack(torch.broadcast_tensors(*[numbers for *_, numbers in members]), dim=-2),
            torch.stack(torch.broadcast_tensors(*[numbers_of(drive.lengths or (0.0, 1.0)) for _, drive, _ in members]), dim=-2),
            _stacked([drive.acc0 for _, drive, _ in members]),
        )
        for (law, _), members in by_law.items()
    ]


def _bounds(ranges: Sequence[tuple[Any, Any] | None]) -> Bounds:
    return Bounds(*(_stacked([end if pair is None else pair[i] for pair in ranges]) for i, end in enumerate((-torch.inf, torch.inf))))


def _stacked(values: Sequence[Any]) -> Tensor:
    if not values:
        return torch.zeros(0, dtype=torch.float64)
    return torch.stack(torch.broadcast_tensors(*[numbers_of(value) for value in values]), dim=-1)


def numbers_of(value: Any, label: str = "Drive") -> Tensor:
    """float64 of a number, a tensor, or several of them, which are stacked in the last dimension."""
    if isinstance(value, tuple | list) and any(isinstance(entry, Tensor) for entry in value):
        return torch.stack(torch.broadcast_tensors(*[as_tensor(entry, label).double() for entry in value]), dim=-1)
    return as_tensor(value, label).double()


def has_tensors(drive: Any) -> bool:
    """Whether any number of a drive is a tensor, which may carry a graph or change in place."""

    def tensor(value: Any) -> bool:
        return isinstance(value, Tensor) or (isinstance(value, tuple | list) and any(tensor(entry) for entry in value))

    return drive is not None and any(tensor(getattr(drive, name)) for name in FIELDS)


def ordered(parts: Sequence[tuple[Sequence[int], Tensor]]) -> Tensor:
    """(..., n) from columns (..., k) and their places from 0 to n − 1. Batch dimensions broadcast."""
    order = [place for places, _ in parts for place in places]
    if len(parts) == 1:
        joined = parts[0][1]
    else:
        shape = torch.broadcast_shapes(*(part.shape[:-1] for _, part in parts))
        joined = torch.cat([part.expand(*shape, part.shape[-1]) for _, part in parts], dim=-1)
    return joined if order == sorted(order) else joined[..., sorted(range(len(order)), key=order.__getitem__)]
