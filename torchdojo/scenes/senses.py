"""Sites and sensors of the parts of a scene, under the names that they have there."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping

import torch

from torchdojo.mechanism import Mechanism
from torchdojo.sensors.kind import KINDS, Sensor
from torchdojo.sensors.site import Site

__all__ = ["add_senses"]


def add_senses(mech: Mechanism, mechanisms: Mapping[str, Mechanism]) -> None:
    """Give a scene the sites and sensors of its parts, "robot/imu". Sites share the tensors of the parts.

    Sensors of all bodies of a part become those of its tree. They are among `left_out` where a part has several trees.

    Raises:
        ValueError: magnetometers of parts with other magnetic fields.
    """
    fields = {part: one.sensors.magnetic for part, one in mechanisms.items() if any(s.kind == "magnetometer" for s in one.sensors.values())}
    for part, field in fields.items():
        first, common = next(iter(fields.items()))
        if not torch.equal(field, common):
            raise ValueError(
                f"combine: the magnetic field differs between the parts: {first!r} {common.tolist()}, {part!r} {field.tolist()}; let them "
                "have one, part.sensors.magnetic = ..."
            )
        mech.sensors.magnetic = common
    for part, one in mechanisms.items():
        mech.sites.update({f"{part}/{name}": _moved(site, part) for name, site in one.sites.items()})
        mech.sensors.left_out |= {f"{part}/{name}": reason for name, reason in one.sensors.left_out.items()}
        roots = [str(joint.body_names[1]) for entry in one.tree_order() if (joint := entry.joint).body_names[0] is None]
        for name, sensor in one.sensors.items():
            whole = "body" in KINDS[sensor.kind].takes and sensor.body is None
            if whole and len(roots) > 1:
                mech.sensors.left_out[f"{part}/{name}"] = f"it reads all bodies of {part!r}, which are several trees, {roots}"
                continue
            mech.sensors[f"{part}/{name}"] = _renamed(sensor, part, roots[0] if whole else sensor.body)


def _renamed(sensor: Sensor, part: str, body: str | None) -> Sensor:
    def place(given: str | Site | None) -> str | Site | None:
        return _moved(given, part) if isinstance(given, Site) else label(given)

    def label(name: str | None) -> str | None:
        return None if name is None else f"{part}/{name}"

    return dataclasses.replace(
        sensor,
        site=place(sensor.site),
        reference=place(sensor.reference),
        joint=label(sensor.joint),
        actuator=label(sensor.actuator),
        body=label(body),
    )


def _moved(site: Site, part: str) -> Site:
    other = copy.copy(site)
    other.body = None if site.body is None else f"{part}/{site.body}"
    return other
