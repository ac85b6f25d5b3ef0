"""Delays of drives: controls on their way, which stand behind the activations, newest first.

A drive with a delay of k steps takes the control of k steps before. So it carries the last k controls, and each step moves them by one
place. Both are selections among controls and activations, side by side.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

__all__ = ["ROUNDING", "Delays", "side_by_side"]

#: A delay that is longer than whole steps by no more than this part of one has whole steps. It is the rounding of a timestep in float32.
ROUNDING = 1e-6


class Delays(NamedTuple):
    """The delays of n drives, na of which have an activation.

    places: name of a drive with a delay -> the place of its controls among the activations. arriving: (n,) of the controls that drives
    take, and moved: of the controls on their way after a step, both among n controls and all activations, side by side.
    """

    places: dict[str, slice]
    arriving: list[int]
    moved: list[int]

    @classmethod
    def of(cls, drives: Mapping[str, Any], activated: Sequence[str], timestep: Tensor) -> Delays:
        """drives: name -> `td.Drive` or None. activated: names of those with an activation. timestep: of the mechanism [s].

        Raises:
            ValueError: delays with timesteps that differ between environments.
        """
        places, start = dict[str, slice](), len(activated)
        arriving, moved, count = list(range(len(drives))), list[int](), len(drives)
        for i, (name, drive) in enumerate(drives.items()):
            if drive is None or not drive.delay:
                continue
            timesteps = timestep.detach().unique()
            if len(timesteps) > 1:
                got = f"a delay with the timesteps {timesteps.tolist()}"
                raise ValueError(f"drive {name!r}: got {got}; allowed: one timestep for all environments")
            steps = max(1, math.ceil(drive.delay / float(timesteps) - ROUNDING))
            places[name] = slice(start, start + steps)
            arriving[i] = count + start + steps - 1
            moved += [i, *range(count + start, count + start + steps - 1)]
            start += steps
        return cls(places, arriving, moved)

    def arrived(self, ctrl: Tensor, act: Tensor) -> Tensor:
        """The controls (..., n) that drives take, from those that are given (..., n), and activations (..., na)."""
        return side_by_side(ctrl, act)[..., self.arriving] if self.places else ctrl

    def step(self, ctrl: Tensor, act: Tensor) -> Tensor:
        """The controls on their way after a step with `ctrl`."""
        return side_by_side(ctrl, act)[..., self.moved]

    def names(self) -> list[str]:
        """A name for each control on its way, after a step."""
        return [f"{name}, {i + 1} steps ago" for name, place in self.places.items() for i in range(place.stop - place.start)]


def side_by_side(*columns: Tensor) -> Tensor:
    """Columns (..., k) whose batch dimensions broadcast, in one tensor."""
    batch = torch.broadcast_shapes(*(column.shape[:-1] for column in columns))
    return torch.cat([column.expand(*batch, column.shape[-1]) for column in columns], dim=-1)
