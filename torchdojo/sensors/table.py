"""The sites and sensors of a mechanism by name, and one function that reads them: `Mechanism.read_sensors`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from torchdojo.gradients.transforms import forward_mode
from torchdojo.native.sensing import SensorReading
from torchdojo.native.sensing import read_sensors as read_in_kernel
from torchdojo.native.tables import SensorKind
from torchdojo.parameters import broadcast_shapes, transforming
from torchdojo.sensors import bodies, forces, frames, joints  # noqa: F401 (each file adds its kinds to the table)
from torchdojo.sensors.kind import KINDS, Sensor
from torchdojo.sensors.panel import BUILT_IN, Panel, lower_sensors, magnetic_field
from torchdojo.sensors.reading import Given, Places, Reading
from torchdojo.sensors.site import Site
from torchdojo.structure import Structure

__all__ = ["Sensors", "Sites", "read_sensors"]

MAGNETIC = (0.0, -0.5, 0.0)  # field of the earth, world frame: north along −y, in MuJoCo's unit
MOST_PANELS = 32  # choices of sensors that are kept lowered
BUILT_IN.update({kind.name.lower(): (kind, KINDS[kind.name.lower()]) for kind in SensorKind})


class Sites(MutableMapping[str, Site]):
    """Sites by name, ``mech.sites["imu"] = td.Site("trunk", (0.1, 0.0, 0.0))``. They may be added and deleted at any time.

    Attributes:
        merged: link of a file -> the body that it became part of; None: the world.

    Raises:
        ValueError: a site on an unknown body. TypeError: something else than a site.
    """

    def __init__(self, structure: Structure) -> None:
        self._structure, self._all = structure, dict[str, Site]()
        self.merged: dict[str, str | None] = {}

    def check_body(self, label: str, body: str | None) -> None:
        """
        Raises:
            ValueError: a body that the mechanism does not have, or one that became part of another when the file was read.
        """
        if body is None or body in self._structure.bodies:
            return
        if body in self.merged:
            owner = "the world" if self.merged[body] is None else repr(self.merged[body])
            raise ValueError(
                f"{label}: got the body {body!r}, which is part of {owner} since the file was read; allowed: that body, or "
                "td.load(..., merge_fixed_joints=False), which keeps it"
            )
        raise ValueError(f"{label}: got the body {body!r}; bodies are {list(self._structure.bodies)}, and the world is None")

    def __getitem__(self, name: str) -> Site:
        if name not in self._all:
            raise KeyError(f"{name!r}; sites are {list(self._all)}")
        return self._all[name]

    def __setitem__(self, name: str, site: Site) -> None:
        if not isinstance(site, Site):
            raise TypeError(f"sites[{name!r}]: got {type(site).__name__}; allowed: td.Site(body, position, orientation)")
        self.check_body(f"sites[{name!r}]", site.body)
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
        self._panels: dict[tuple[Any, ...], tuple[Panel, Mapping[str, Sensor]]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_panels": {}}  # a copy lowers its own

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
        for site in (sensor.site, sensor.reference):
            if isinstance(site, str) and site not in self._sites:
                raise ValueError(f"sensors[{name!r}]: got the site {site!r}; sites are {list(self._sites)}; add it to mech.sites first")
            if isinstance(site, Site):
                self._sites.check_body(f"sensors[{name!r}], its site", site.body)
        if sensor.joint is not None and sensor.joint not in structure.joints:
            raise ValueError(f"sensors[{name!r}]: got the joint {sensor.joint!r}; joints are {list(structure.joints)}")
        self._sites.check_body(f"sensors[{name!r}]", sensor.body)
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

    # -- the kernel ----------------------------------------------------------------------------------------------------------------------

    def in_kernel(self, at: Reading, key: tuple[Any, ...], chosen: Mapping[str, Sensor]) -> tuple[tuple[str, ...], Tensor] | None:
        """Names of the sensors that the kernel reads, and their numbers side by side; None where PyTorch reads all."""
        mech: Any = self._structure
        backends, magnetic = mech.backends, magnetic_field(self.magnetic)
        parameters = None if magnetic is None else backends.map_parameters(mech.options)
        if parameters is None or magnetic is None:
            return None
        panel = self._panel(backends.program, key, chosen)
        if panel.table is None:
            return None

        def reference(z: Tensor, after: Tensor | None, impulses: Tensor | None, wrench: Tensor | None) -> Tensor:
            if not backends.still_has(parameters):
                raise RuntimeError(
                    "torchdojo: numbers of the mechanism changed, or require grad, since its sensors were read, so that no second "
                    'derivative fits; take it before numbers change, or with SolverOptions(backend="reference")'
                )
            out = None if after is None else SimpleNamespace(z=after, impulses=z.new_zeros(0) if impulses is None else impulses)
            again = Reading(self._structure, self._sites._all, self.magnetic, z, Given(out, wrench=wrench, repeat=at.given.repeat))
            columns = _columns(again, {name: chosen[name] for name in panel.native})
            return torch.cat([columns[name].expand(*z.shape[:-1], chosen[name].size) for name in panel.native], dim=-1)

        reading = SensorReading(backends.program, parameters, panel.table, magnetic, at.given.repeat, reference)
        value = read_in_kernel(reading, at.z, at.after, at.impulses, at.given.wrench)
        return None if value is None else (panel.native, value)

    def _panel(self, program: Any, key: tuple[Any, ...], chosen: Mapping[str, Sensor]) -> Panel:
        kept = self._panels.get(key)
        if kept is not None and kept[0].fits(program, tuple(chosen.values()), self._sites._all):
            return kept[0]
        if len(self._panels) >= MOST_PANELS:
            self._panels.clear()
        panel = lower_sensors(self._structure, self._sites._all, chosen, program)
        self._panels[key] = panel, dict(chosen)
        return panel

    def measure(self, at: Reading, places: Places) -> tuple[Tensor, Tensor] | None:
        """`Reading.coordinates` by the kernel; None where it lacks a joint, or PyTorch reads all."""
        key = ("coordinates", *places)
        kinds = ("joint_position", "joint_velocity")
        chosen = (
            self._panels[key][1]
            if key in self._panels
            else {f"{kind} {place}": Sensor(kind, joint=place[0], coordinate=place[1]) for kind in kinds for place in dict.fromkeys(places)}
        )
        reading = self.in_kernel(at, key, chosen)
        if reading is None or len(reading[0]) != len(chosen):
            return None
        number = {place: i for i, place in enumerate(dict.fromkeys(places))}
        order = [number[place] for place in places]
        q, qd = reading[1].chunk(2, dim=-1)
        return (q, qd) if order == list(range(len(number))) else (q[..., order], qd[..., order])


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
    reading = Reading(structure, sensors._sites._all, sensors.magnetic, z, given, None if _in_torch(z) else sensors.measure)
    native = None if _in_torch(z) else sensors.in_kernel(reading, tuple(chosen), chosen)
    columns: dict[str, Tensor] = {}
    if native is not None:
        names, value = native
        if len(names) == len(chosen):
            return value.movedim(0, -2) if reading.over_time else value
        columns = dict(zip(names, value.split([chosen[name].size for name in names], dim=-1), strict=True))
    columns |= _columns(reading, {name: sensor for name, sensor in chosen.items() if name not in columns})
    batch = broadcast_shapes(reading.z.shape[:-1], *(column.shape[:-1] for column in columns.values()))
    parts = [columns[name].expand(*batch, sensor.size) for name, sensor in chosen.items()]
    result = torch.cat([reading.z.new_zeros(*batch, 0), *parts], dim=-1)
    return result.movedim(0, -2) if reading.over_time else result


def _in_torch(z: Tensor) -> bool:
    """Whether PyTorch has to see all operations, or the state is not on the host."""
    return torch.compiler.is_compiling() or transforming() or forward_mode() or z.device.type != "cpu" or z.dtype != torch.float64


def _columns(at: Reading, chosen: Mapping[str, Sensor]) -> dict[str, Tensor]:
    """The numbers (..., size) of each sensor in PyTorch, all sensors of a kind at once."""
    kinds: dict[str, list[str]] = {}
    for name, sensor in chosen.items():
        kind = f"{sensor.kind}{'+' * (sensor.reference is not None)}"
        kinds.setdefault(kind, []).append(name)
    columns: dict[str, Tensor] = {}
    for members in kinds.values():
        group = [chosen[name] for name in members]
        value = _shaped(KINDS[group[0].kind].read(group, at), group)
        columns |= dict(zip(members, value.unbind(-2), strict=True))
    return columns


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
