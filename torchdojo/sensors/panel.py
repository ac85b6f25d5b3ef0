"""Sensors that the kernel reads: which ones of a choice, and their table. Those that are left are read in PyTorch.

The kernel has the built-in kinds of `SensorKind`. It has neither sites that carry a graph, nor forces of contacts other than those of
spheres with half-spaces of the world.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchdojo.elements.ball_cones import ConedJoint
from torchdojo.elements.contact import Contact
from torchdojo.native.packing import is_plain
from torchdojo.native.program import Program
from torchdojo.native.sensing import SensorTable
from torchdojo.native.tables import SENSED_CONTACT, SENSED_FRAME, SENSOR, ZONES, SensorKind, row
from torchdojo.parameters import differentiated
from torchdojo.sensors.kind import KINDS, Kind, Sensor
from torchdojo.sensors.reading import subtree_rows
from torchdojo.sensors.site import Site
from torchdojo.structure import Structure

__all__ = ["Panel", "lower_sensors"]

OF_FORCES = (SensorKind.FORCE, SensorKind.TORQUE, SensorKind.TOUCH)
BUILT_IN: dict[str, tuple[SensorKind, Kind]] = {}  # name -> number and rule; filled by `table.py`, which imports all kinds


class Panel(NamedTuple):
    """A choice of sensors, lowered.

    sensors, rules, sites, versions: what the lowering depends on. native: names of the sensors in the table. table: None where it has none.
    """

    program: Program
    sensors: tuple[Sensor, ...]
    rules: tuple[Kind, ...]
    sites: tuple[Site, ...]
    versions: tuple[object, ...]
    native: tuple[str, ...]
    table: SensorTable | None

    def fits(self, program: Program, sensors: Sequence[Sensor], named: Mapping[str, Site]) -> bool:
        """Whether the same sensors at the same sites would be lowered to the same numbers."""
        return (
            self.program is program
            and len(self.sensors) == len(sensors)
            and all([entry is other for entry, other in zip(self.sensors, sensors, strict=True)])
            and all([KINDS.get(sensor.kind) is rule for sensor, rule in zip(sensors, self.rules, strict=True)])
            and self.sites == _sites(sensors, named)
            and self.versions == _versions(self.sites)
        )


def _sites(sensors: Sequence[Sensor], named: Mapping[str, Site]) -> tuple[Site, ...]:
    """The sites of sensors, each once."""
    places = dict.fromkeys([place for sensor in sensors for place in (sensor.site, sensor.reference) if place is not None])
    return tuple(site for place in places if (site := named.get(place) if isinstance(place, str) else place) is not None)


def _versions(sites: Sequence[Site]) -> tuple[object, ...]:
    """A key that changes when the tensors of a site are replaced, written to, or let require grad."""
    tensors = [tensor for site in sites for tensor in (site.position, site.orientation, site.size)]
    return tuple([(id(tensor), tensor._version, tensor.requires_grad) for tensor in tensors])


class _Lowering:
    """The table of sensors, as it grows."""

    def __init__(self, structure: Structure, named: Mapping[str, Site], program: Program) -> None:
        self.structure, self.named, self.program = structure, named, program
        self.body = {name: i for i, name in enumerate([*structure.bodies, None])}
        joints = [joint for group in program.joint_groups for joint in group.members]
        self.joint = {id(joint): i for i, joint in enumerate(joints)}
        self.rows: list[tuple] = []
        self.frames: list[tuple] = []
        self.subtrees: list[list[int]] = []
        self.frame_numbers: list[list[float]] = []
        self.numbers: list[list[float]] = []
        self.size, self.kinds = 0, set[SensorKind]()
        self._frame_of: dict[int, int] = {}
        self._subtree_of: dict[str | None, int] = {}
        self.contacts, self.unknown = self._contacts()
        #: bodies that tendons pull; the kernel's forces of sensors know no tendons
        self.pulled = {body for tendon in structure.named_tendons().values() for body in tendon.body_names if body is not None}

    def _contacts(self) -> tuple[list[tuple], set[str]]:
        """Rows of contacts of spheres with half-spaces of the world, and bodies that have other contacts."""
        rows, others = [], set[str]()
        plain = {id(c) for group in self.program.groups if isinstance(group.template, Contact) and is_plain(group) for c in group.members}
        for i, (name, contact) in enumerate(self.structure.named_contacts().items()):
            if id(contact) in plain:
                start = self.structure.impulse_layout[f"contacts.{name}"].start
                rows.append(row(SENSED_CONTACT, number=i, impulse=start))
            else:
                others |= {body for body in contact.body_names if body is not None}
        return rows, others

    def add(self, sensor: Sensor) -> bool:
        """Whether the kernel reads this sensor. Sensors that are wrong are left to the reference, which says what is wrong."""
        number, rule = BUILT_IN.get(sensor.kind, (None, None))
        if number is None or KINDS[sensor.kind] is not rule:
            return False
        values = dict(frame=-1, reference=-1, joint=-1, coordinate=0, subtree=-1, first=-1, second=-1)
        if "site" in rule.needs:
            site = self._site(sensor.site)
            reference = None if sensor.reference is None else self._site(sensor.reference)
            if site is None or (sensor.reference is not None and reference is None):
                return False
            if number in OF_FORCES and not self._has_forces(number, site, values):
                return False
            values["frame"] = self._frame(site)
            values["reference"] = -1 if reference is None else self._frame(reference)
        elif "joint" in rule.needs:
            if not self._add_joint(number, sensor, values):
                return False
        else:
            if sensor.body is not None and sensor.body not in self.structure.bodies:
                return False
            values["subtree"] = self._subtree(sensor.body)
        low, high = -np.inf, np.inf
        if sensor.cutoff > 0 and rule.clamp != "none":
            low, high = -sensor.cutoff if rule.clamp == "both" else low, sensor.cutoff
        self.numbers.append([sensor.scale, sensor.offset, low, high])
        self.rows.append(row(SENSOR, kind=int(number), place=self.size, size=rule.size, **values))
        self.size += rule.size
        self.kinds.add(number)
        return True

    def _site(self, given: str | Site | None) -> Site | None:
        """The site, with numbers that the kernel may hold; None where there is none."""
        site = given if isinstance(given, Site) else self.named.get(given or "")
        held = site is not None and site.body in self.body and not differentiated(site.position) and not differentiated(site.orientation)
        return site if held else None

    def _frame(self, site: Site) -> int:
        if id(site) not in self._frame_of:
            self._frame_of[id(site)] = len(self.frames)
            self.frames.append(row(SENSED_FRAME, body=self.body[site.body], shape=ZONES.index(site.shape)))
            extent = site.size.tolist()
            self.frame_numbers.append([*site.position.tolist(), *site.orientation.tolist(), *extent, *[0.0] * (3 - len(extent))])
        return self._frame_of[id(site)]

    def _subtree(self, body: str | None) -> int:
        if body not in self._subtree_of:
            self._subtree_of[body] = len(self.subtrees)
            self.subtrees += subtree_rows(self.structure, [body])
        return self._subtree_of[body]

    def _has_forces(self, number: SensorKind, site: Site, values: dict[str, int]) -> bool:
        """Whether the kernel has all forces that act on the body of a site, or on what it carries."""
        if site.body is None:
            return False
        if number == SensorKind.TOUCH:
            return site.body not in self.unknown
        if self.structure.has_loops:
            return False
        values["subtree"] = self._subtree(site.body)
        below = zip(self.structure.bodies, self.subtrees[values["subtree"]], strict=True)
        return not any(belongs and (name in self.unknown or name in self.pulled) for name, belongs in below)

    def _add_joint(self, number: SensorKind, sensor: Sensor, values: dict[str, int]) -> bool:
        joints = self.structure.named_joints()
        if sensor.joint is None or sensor.joint not in joints:
            return False
        joint = joints[sensor.joint]
        if id(joint) not in self.joint or not 0 <= sensor.coordinate < joint.num_coordinates:
            return False
        values["joint"], values["coordinate"] = self.joint[id(joint)], sensor.coordinate
        if number in (SensorKind.JOINT_POSITION, SensorKind.JOINT_VELOCITY):
            return True
        if isinstance(joint, ConedJoint) and joint.coned and number != SensorKind.JOINT_LIMIT_FORCE:
            return False
        below, above = joint.limited
        acts = [sensor.coordinate in side for side in (below, above)]
        values["first"], values["second"] = map(int, acts)
        if number == SensorKind.JOINT_LIMIT_FORCE:
            place = self.structure.impulse_layout.get(f"limits.{sensor.joint}")
            both = (*below, *above)
            places = [k for k, coordinate in enumerate(both) if coordinate == sensor.coordinate and place is not None]
            starts = [k + (0 if place is None else place.start) for k in places]
            values["first"], values["second"] = [*starts, -1, -1][:2]
        return True

    def table(self) -> SensorTable | None:
        if not self.rows:
            return None
        carried = bool(self.kinds & set(OF_FORCES[:2]))
        rules = [KINDS[number.name.lower()] for number in self.kinds]
        return SensorTable(
            _ints(self.rows, SENSOR),
            _ints(self.frames, SENSED_FRAME),
            _ints(self.contacts if self.kinds & set(OF_FORCES) else [], SENSED_CONTACT),
            np.array(self.subtrees, dtype=np.int32).reshape(len(self.subtrees), len(self.structure.bodies)),
            np.array(self.frame_numbers, dtype=np.float64),
            np.array(self.numbers, dtype=np.float64),
            self.size,
            stepped=any(rule.needs_step for rule in rules),
            pushed=bool(self.kinds & {*OF_FORCES, SensorKind.JOINT_LIMIT_FORCE}),
            loaded=carried,
        )


def _ints(rows: list[tuple], dtype: Any) -> np.ndarray:
    return np.array(rows, dtype=dtype).view(np.int32).reshape(len(rows), len(dtype.names))


@torch.no_grad()
def lower_sensors(structure: Structure, named: Mapping[str, Site], chosen: Mapping[str, Sensor], program: Program) -> Panel:
    """The sensors of a choice that the kernel reads."""
    lowering = _Lowering(structure, named, program)
    native = tuple(name for name, sensor in chosen.items() if lowering.add(sensor))
    sensors = tuple(chosen.values())
    sites = _sites(sensors, named)
    rules = tuple(KINDS[sensor.kind] for sensor in sensors)
    return Panel(program, sensors, rules, sites, _versions(sites), native, lowering.table())


def magnetic_field(given: Tensor) -> Tensor | None:
    """The magnetic field as the kernel reads it; None where it carries a graph or has batch dimensions."""
    return None if given.shape != (3,) or differentiated(given) else given.detach().double().contiguous()
