"""The table of gaits: when each leg swings."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torchdojo.envs.checks import one_from, positive

__all__ = ["BIPEDS", "GAITS", "Gait", "gait_of"]

PAIRS = {2: ("right", "left"), 4: ("front right", "front left", "rear right", "rear left")}


@dataclass(frozen=True)
class Gait:
    """A periodic pattern of steps.

    A clock runs from 0 to 1 in each stride. The phase of a leg is the clock plus its own offset, modulo 1. The leg swings while its phase
    is below ``1 − duty``, and stands for the rest of the stride.

    offsets: {number of legs: offsets}, in the order right, left, of the front legs first. duty: share of the stride in which a leg stands.
    frequency: strides per second of an A1 [Hz]. Legs n times as long take strides that are √n times as long, so gravity acts alike.
    """

    offsets: Mapping[int, Sequence[float]]
    duty: float = 0.5
    frequency: float = 2.0

    def __post_init__(self) -> None:
        positive("gait, frequency", self.frequency)
        if not 0 < self.duty < 1:
            raise ValueError(f"gait, duty: got {self.duty!r}; allowed: a number between 0 and 1, the share of a stride in stance")
        for legs, offsets in self.offsets.items():
            if len(offsets) != legs or not all(isinstance(each, int | float) and math.isfinite(each) for each in offsets):
                raise ValueError(f"gait, offsets: got {offsets!r} for {legs} legs; allowed: one finite number for each leg, from 0 to 1")


#: Quadrupeds walk in the lateral sequence: each hind leg is followed by the front leg of its side (Hildebrand 1965, Science 150, 701).
GAITS = {
    "trot": Gait({4: (0.0, 0.5, 0.5, 0.0)}),
    "walk": Gait({2: (0.0, 0.5), 4: (0.25, 0.75, 0.5, 0.0)}, duty=0.65, frequency=1.5),
    "pace": Gait({4: (0.0, 0.5, 0.0, 0.5)}),
    "bound": Gait({4: (0.0, 0.0, 0.5, 0.5)}, duty=0.4, frequency=2.5),
    "run": Gait({2: (0.0, 0.5), 4: (0.0, 0.5, 0.5, 0.0)}, duty=0.35, frequency=2.5),
}
#: frequencies of robots with two legs [Hz], where they differ: a biped that steps more slowly falls to the side between two steps
BIPEDS = {"walk": 2.0}


def gait_of(given: Any, legs: int) -> tuple[Gait, tuple[float, ...]]:
    """A gait and the offsets of a robot's legs, from a name, a `Gait`, or a mapping of fields that differ from those of a name.

    Raises:
        ValueError: an unknown name or field, or a gait that is not one of so many legs.
    """
    asked = given
    if not isinstance(given, Gait):
        fields = dict(given) if isinstance(given, Mapping) else {"name": given}
        name = one_from("gait", fields.pop("name", "trot"), tuple(GAITS))
        usual = GAITS[name].frequency
        start = dataclasses.replace(GAITS[name], frequency=BIPEDS.get(name, usual) if legs == 2 else usual)
        for field in fields:
            one_from("gait", field, ("name", *(entry.name for entry in dataclasses.fields(Gait))))
        if not isinstance(fields.get("offsets", {}), Mapping):
            fields["offsets"] = {len(fields["offsets"]): tuple(fields["offsets"])}
        given = dataclasses.replace(start, **fields)
    gait: Gait = given
    if legs not in gait.offsets:
        fitting = [name for name, other in GAITS.items() if legs in other.offsets]
        remedy = f"gait={fitting[0]!r}" if fitting else f"gait={{'offsets': [{legs} numbers]}}"
        raise ValueError(
            f"gait: got one of {' or '.join(map(str, gait.offsets))} legs ({asked!r}) for a robot with {legs}; allowed: "
            f"{', '.join(fitting) or 'none of the table'}; give {remedy}, or feet= if the legs are found wrongly"
        )
    return gait, tuple(gait.offsets[legs])
