"""Near contacts whose cores have numbers with derivatives: `NearContact` as the residual of a gradient reads it (engine/near_sizes.py)."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from torchdojo.elements.near_contact import NearContact
from torchdojo.geometry import core_sizes
from torchdojo.geometry.core_sizes import CoreNumbers, with_numbers
from torchdojo.geometry.polytopes import Polytope

__all__ = ["SizedContact", "numbers_of"]


class SizedContact(NearContact):
    """A slot that reads the numbers of its cores, as `numbers_of` names them, among its parameters."""

    def cores(self) -> tuple[Polytope, Polytope]:
        one, two = (self._core(side, core) for side, core in enumerate(self.shapes))
        return one, two

    def _core(self, side: int, core: Polytope) -> Polytope:
        if core.sizes is None:
            return core
        tensors = [self._parameters.get(name) for name in _names(side)]
        assert tensors[0] is not None and tensors[1] is not None
        return with_numbers(core, CoreNumbers(tensors[0], tensors[1], *tensors[2:]))


def numbers_of(shapes: Iterable[Polytope]) -> dict[str, Tensor]:
    """The numbers of the cores of a pair whose sizes are differentiated, by name, with their graph."""
    result: dict[str, Tensor] = {}
    for side, core in enumerate(shapes):
        if core.sizes is not None:
            numbers = zip(_names(side), core_sizes.numbers_of(core, core.sizes), strict=True)
            result |= {name: value for name, value in numbers if value is not None}
    return result


def _names(side: int) -> list[str]:
    return [f"core{side}_{name}" for name in CoreNumbers._fields]
