"""The sites and sensors of a mechanism by name, and one function that reads them: `Mechanism.read_sensors`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import torch
from torch import Tensor

from torchdojo.parameters import broadcast_shapes
from torchdojo.sensors import bodies, forces, frames, joints  # noqa: F401 (each file adds its kinds to the table)
from torchdojo.sensors.kind import KINDS, Sensor
from torchdojo.sensors.reading import Given, Reading
from torchdojo.sensors.site import Site
from torchdojo.structure import Structure

__all__ = ["Sensors", "Sites", "read_sensors"]

MAGNETIC = (0.0, -0.5, 0.0)  # field of the earth, world frame: north along −y, in MuJoCo's unit


class Sites(MutableMapping[str, Site]):
    """Sites by name, ``mech.sites["imu"] = td.Site("trunk", (0.1, 0.0, 0.0))``. They may be added and deleted at any time.

    Raises:
        ValueError: a site on an unknown body. TypeError: something else than a site.
    """

    def __init__(self, structure: Structure) -> None:
        self._structure, self._all = structure, dict[str, Site]()

    def __getitem__(self, name: str) -> Site:
        if name not in self._all:
            raise KeyError(f"{name!r}; sites are {list(self._all)}")
        return self._all[name]

    def __setitem__(self, name: str, site: Site) -> None:
        if not isinstance(site, Site):
            raise TypeError(f"sites[{name!r}]: got {type(site).__name__}; allowed: td.Site(body, position, orientation)")
        if site.body is not None and site.body not in self._structure.bodies:
            raise ValueError(
                f"sites[{name!r}]: got the body {site.body!r}; bodies are {list(self._structure.bodies)}, and the world is None"
            )
        self._all[name] = site

    def __delitem__(self, name: str) -> None:
        del self._all[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def __repr__(self) -> str:
        return repr(self._all)


class Sensors(MutableMapping[str, Sensor]):
    """Sensors by name, in the order of what `Mechanism.read_sensors` returns: ``mech.sensors["gyro"] = td.Sensor("gyro", site="imu")``.

    Attributes:
        magnetic: (3,) the magnetic field that magnetometers read, world frame.
        left_out: name -> reason, of sensors of a file that the mechanism cannot have.

    Raises:
        ValueError: a sensor of what the mechanism does not have. TypeError: something else than a sensor.
    """

    def __init__(self, structure: Structure, sites: Sites) -> None:
        self._structure, self._sites, self._all = structure, sites, dict[str, Sensor]()
        self.magnetic = torch.tensor(MAGNETIC, dtype=torch.float64)
        self.left_out: dict[str, str] = {}

    def __getitem__(self, name: str) -> Sensor:
        if name not in self._all:
            raise KeyError(self._unknown(name))
        return self._all[name]

    def _unknown(self, name: str) -> str:
        if name in self.left_out:
            return f"got {name!r}, which the file has and the mechanism does not: {self.left_out[name]}"
        return f"got {name!r}; sensors are {list(self._all)}"

    def __setitem__(self, name: str, sensor: Sensor) -> None:
        if not isinstance(sensor, Sensor):
            raise TypeError(f"sensors[{name!r}]: got {type(sensor).__name__}; allowed: td.Sensor(kind, ...)")
        structure = self._structure
        for given in (sensor.site, sensor.reference):
            if isinstance(given, str) and given not in self._sites:
                raise ValueError(f"sensors[{name!r}]: got the site {given!r}; sites are {list(self._sites)}; add it to mech.sites first")
            if isinstance(given, Site) and given.body is not None and given.body not in structure.bodies:
                raise ValueError(f"sensors[{name!r}]: got a site on {given.body!r}; bodies are {list(structure.bodies)}")
        if sensor.joint is not None and sensor.joint not in structure.joints:
            raise ValueError(f"sensors[{name!r}]: got the joint {sensor.joint!r}; joints are {list(structure.joints)}")
        if sensor.body is not None and sensor.body not in structure.bodies:
            raise ValueError(f"sensors[{name!r}]: got the body {sensor.body!r}; bodies are {list(structure.bodies)}")
        motors = () if structure.actuators is None else structure.actuators.names
        if sensor.actuator is not None and sensor.actuator not in motors:
            raise ValueError(f"sensors[{name!r}]: got the actuator {sensor.actuator!r}; actuators are {list(motors)}")
        self._all[name] = sensor

    def __delitem__(self, name: str) -> None:
        del self._all[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def __repr__(self) -> str:
        return repr(self._all)

    @property
    def sizes(self) -> dict[str, int]:
        """How many numbers each sensor reads."""
        return {name: sensor.size for name, sensor in self._all.items()}

    @property
    def layout(self) -> dict[str, slice]:
        """The place of each sensor in what `Mechanism.read_sensors` returns."""
        return self.layout_of(tuple(self._all))

    def layout_of(self, names: Sequence[str]) -> dict[str, slice]:
        """The places of these sensors alone, side by side."""
        places, start = dict[str, slice](), 0
        for name, sensor in self.chosen(names).items():
            places[name] = slice(start, start + sensor.size)
            start += sensor.size
        return places

    def chosen(self, names: Sequence[str] | None) -> Mapping[str, Sensor]:
        """Sensors by name; None: all.

        Raises:
            ValueError: an unknown name.
        """
        if names is None:
            return self._all
        for name in [names] if isinstance(names, str) else names:
            if name not in self._all:
                raise ValueError(f"sensors: {self._unknown(name)}")
        return {name: self._all[name] for name in ([names] if isinstance(names, str) else names)}


def read_sensors(structure: Structure, sensors: Sensors, z: Tensor, names: Sequence[str] | None, given: Given) -> Tensor:
    """`Mechanism.read_sensors`."""
    chosen = sensors.chosen(names)
    if given.out is None:
        for name, sensor in chosen.items():
            if KINDS[sensor.kind].needs_step:
                raise ValueError(
                    f"read_sensors: {name!r} ({sensor.kind}) needs the step that starts at z; give read_sensors(z, mech.step(z, ...)), or "
                    "names= of sensors that do without"
                )
    at = Reading(structure, sensors._sites._all, sensors.magnetic, z, given)
    kinds: dict[str, list[str]] = {}
    for name, sensor in chosen.items():
        kind = f"{sensor.kind}{'+' * (sensor.reference is not None)}"
        kinds.setdefault(kind, []).append(name)
    columns: dict[str, Tensor] = {}
    for members in kinds.values():
        group = [chosen[name] for name in members]
        value = _shaped(KINDS[group[0].kind].read(group, at), group)
        columns |= dict(zip(members, value.unbind(-2), strict=True))
    batch = broadcast_shapes(at.z.shape[:-1], *(column.shape[:-1] for column in columns.values()))
    parts = [columns[name].expand(*batch, sensor.size) for name, sensor in chosen.items()]
    result = torch.cat([at.z.new_zeros(*batch, 0), *parts], dim=-1)
    return result.movedim(0, -2) if at.over_time else result


def _shaped(value: Tensor, group: Sequence[Sensor]) -> Tensor:
    """Values (..., n, size) with scale, offset and cutoff of each sensor."""

    def column(key: str) -> Any:
        numbers = [float(getattr(sensor, key)) for sensor in group]
        return value.new_tensor(numbers)[:, None], numbers

    scale, scales = column("scale")
    offset, offsets = column("offset")
    cutoff, cutoffs = column("cutoff")
    if any(number != 1.0 for number in scales) or any(offsets):
        value = scale * value + offset
    clamp = KINDS[group[0].kind].clamp
    if clamp != "none" and any(cutoffs):
        bound = torch.where(cutoff > 0, cutoff, torch.inf)
        value = torch.minimum(value, bound) if clamp == "above" else torch.maximum(torch.minimum(value, bound), -bound)
    return value
