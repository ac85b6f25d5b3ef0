"""The part of a mechanism that senses: `mech.sites`, `mech.sensors` and `mech.read_sensors`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from torchdojo.precision import in_float64
from torchdojo.sensors import table
from torchdojo.sensors.reading import Given
from torchdojo.sensors.table import Sensors, Sites
from torchdojo.structure import Structure

__all__ = ["Sensing"]


class Sensing(Structure):
    """A structure with sites and sensors. No step reads them."""

    sites: Sites  #: frames on bodies by name
    sensors: Sensors  #: sensors by name; `layout` has their places in `read_sensors`

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.sites = Sites(self)
        self.sensors = Sensors(self, self.sites)

    @in_float64
    def read_sensors(
        self,
        z: Tensor,
        out: Any = None,
        /,
        *,
        names: Sequence[str] | None = None,
        u: Tensor | None = None,
        ctrl: Tensor | None = None,
        wrench: Tensor | None = None,
        time: Any = None,
        repeat: int = 1,
    ) -> Tensor:
        """The sensors' readings at z, side by side, (..., m): ``mech.read_sensors(z, mech.step(z, u))``.

        `mech.sensors.layout` has their places.

        Poses and velocities are those of z. Accelerations are what the step implies, (v⁺ − v)/h, and forces are means over the step. So a
        reading belongs to the state before the step. It is differentiable in all arguments, in the numbers of bodies and joints, and in
        the impulses and states of `out`, where they have a graph.

        Args:
            z: (..., 13 nb), the state before the step; of a trajectory ``path.z[..., :-1, :]`` or all of ``path.z``.
            out: what `step` or `rollout` returned; None: sensors of poses and velocities alone.
            names: of the sensors to read, in this order; None: all.
            u, ctrl: of the step, (..., nu) and (..., number of actuators), which forces of actuators need.
            wrench: of the step, (..., 6 nb), which forces at sites have to know. time: [s], (...,), of clocks. repeat: as in `step`.

        Raises:
            ValueError: an unknown name, a sensor that needs what is not given, shapes that do not fit. TypeError: another kind of `out`.
        """
        return table.read_sensors(self, self.sensors, z, names, Given(out, u, ctrl, wrench, time, repeat))
