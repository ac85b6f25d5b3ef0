"""Positions of each element's numbers in the unknown w of a step, in the input u, and among the stacked parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from torchdojo.elements.element import Element
from torchdojo.state.layout import TWIST_SIZE

__all__ = ["FIRST_ELEMENT", "GRAVITY", "INERTIA", "MASS", "NUM_DATA", "TIMESTEP", "ParameterSpec", "Place", "UnknownLayout"]

# Data of a step: z, u and the wrench come before the stacked parameters.
NUM_DATA = 3
# Places of the stacked parameters. Parameters of the elements follow, group by group.
TIMESTEP, GRAVITY, MASS, INERTIA, FIRST_ELEMENT = range(5)


class ParameterSpec(NamedTuple):
    """Dimensions of one value of a stacked tensor, elements included; batch dimensions stand in front."""

    ndim: int


class Place(NamedTuple):
    """Places of one element: its impulses and slacks in w, its inputs in u."""

    impulse: slice
    slack: slice
    input: slice


class UnknownLayout:
    """Layout of the step's unknown w and of the input u.

    w = [v⁺, ω⁺ per body (6) | multipliers of joints and couplings, in order | per element with cones its impulses, then its slacks].
    The residual has its rows in the same places: the balance of momentum, then the equations of joints and couplings. Each element with
    cones has its equalities, then its complementarity products.
    """

    def __init__(self, num_bodies: int, elements: Mapping[str, Element]) -> None:
        self.places: dict[str, Place] = {}
        offset, inputs = TWIST_SIZE * num_bodies, 0
        # Eliminated first means last in w: elements with cones follow the others, whatever their kind.
        for key, element in sorted(elements.items(), key=lambda item: item[1].cones.size > 0):
            cones = element.cones.size
            count = cones or element.num_rows
            columns = slice(inputs, inputs + element.num_inputs)
            self.places[key] = Place(
                slice(offset, offset + count),
                slice(offset + count, offset + count + cones),
                self.places[f"joints.{key.partition('.')[2]}"].input if element.reads_joint_inputs else columns,
            )
            offset += count + cones
            inputs += element.num_inputs
        self.num_bodies, self.num_unknowns, self.num_inputs = num_bodies, offset, inputs
        self.num_primal = TWIST_SIZE * num_bodies + sum(e.num_rows for e in elements.values() if not e.cones.size)
        self.impulses = {key: place.impulse for key, place in self.places.items()}
        driven = [key for key in self.places if elements[key].num_inputs]
        self.inputs = {key.partition(".")[2]: self.places[key].input for key in driven}
        for key in driven if len(self.inputs) < len(driven) else ():
            name = key.partition(".")[2]
            if f"tendons.{name}" in driven and f"joints.{name}" in driven:
                raise ValueError(f"tendons: {name!r} is actuated, and is the name of an actuated joint, too; rename one of them")
