"""Sensors, and the abstract class of their kinds: one kind reads all its sensors at once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from torch import Tensor

from torchdojo.sensors.site import Site

if TYPE_CHECKING:
    from torchdojo.sensors.reading import Reading

__all__ = ["KINDS", "Kind", "Sensor", "register"]

TARGETS = ("site", "reference", "joint", "actuator", "body")


@dataclass(frozen=True, eq=False)
class Sensor:
    """A sensor, ``mech.sensors["gyro"] = td.Sensor("gyro", site="imu")``.

    Args:
        kind: a name of the table in `torchdojo/sensors/README.md`.
        site: where it is mounted: a name of `mech.sites`, or a `td.Site`. reference: the frame that a pose or velocity refers to, likewise.
        joint, coordinate: what a sensor of a joint reads. actuator: name in `mech.actuators`. body: the top of a subtree; None: all bodies.
        scale, offset: the output is scale · value + offset.
        cutoff: largest absolute value of the output, which is clamped to it; 0: none. Quaternions and axes are never clamped.
        noise: standard deviation of the file, kept for the user; `read_sensors` is exact.

    Raises:
        ValueError: an unknown kind, something to refer to that the kind lacks or does not take.
    """

    kind: str
    site: str | Site | None = None
    reference: str | Site | None = None
    joint: str | None = None
    coordinate: int = 0
    actuator: str | None = None
    body: str | None = None
    scale: float = 1.0
    offset: float = 0.0
    cutoff: float = 0.0
    noise: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"Sensor: got kind {self.kind!r}; allowed: {', '.join(KINDS)}; register(...) adds kinds of your own")
        kind = KINDS[self.kind]
        for target in TARGETS:
            is_set = getattr(self, target) is not None
            if is_set and target not in (*kind.needs, *kind.takes):
                raise ValueError(
                    f"Sensor {self.kind!r}: got {target}={getattr(self, target)!r}; allowed: {', '.join(kind.needs + kind.takes)}"
                )
            if not is_set and target in kind.needs:
                raise ValueError(f"Sensor {self.kind!r}: got no {target}; give {target}=NAME")
        if self.cutoff < 0 or self.noise < 0:
            raise ValueError(f"Sensor {self.kind!r}: got cutoff={self.cutoff}, noise={self.noise}; allowed: numbers >= 0")

    @property
    def size(self) -> int:
        """How many numbers it reads."""
        return KINDS[self.kind].size


class Kind(ABC):
    """A kind of sensor: what it needs, how many numbers it gives, and how it reads all sensors of the kind in one go."""

    size: ClassVar[int] = 3
    needs: ClassVar[tuple[str, ...]] = ()  #: what a sensor has to name: "site", "joint", "actuator", "body"
    takes: ClassVar[tuple[str, ...]] = ()  #: what it may name
    needs_step: ClassVar[bool] = False  #: whether it reads the result of a step, beside the state
    clamp: ClassVar[Literal["both", "above", "none"]] = "both"  #: how a cutoff acts

    @abstractmethod
    def read(self, sensors: Sequence[Sensor], at: Reading) -> Tensor:
        """(..., len(sensors), size) at a reading, differentiable."""


KINDS: dict[str, Kind] = {}


def register(name: str, kind: Kind) -> None:
    """Put a kind into the table."""
    KINDS[name] = kind
