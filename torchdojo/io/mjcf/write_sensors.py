"""Sites and sensors of a mechanism as elements of an MJCF file.

Sensors at sites without a name get sites of their own, "NAME_site". Sensors without a counterpart are left out: sensors of actuators, since
motors are not written, of joints with several coordinates, of momentum, outputs that are scaled or shifted, kinds of one's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from xml.etree import ElementTree

from torch import Tensor

from torchdojo.io.mjcf.sensors import FRAMES, JOINTS, SUBTREES
from torchdojo.mechanism import Mechanism
from torchdojo.sensors.kind import Sensor
from torchdojo.sensors.site import Site

__all__ = ["write_sensors"]

TAGS = {ours: tag.lower() for table in (FRAMES, JOINTS, SUBTREES) for tag, ours in table.items()} | {"clock": "clock"}
AT_OBJECTS = tuple(ours for tag, ours in FRAMES.items() if tag.startswith("FRAME"))  # sensors whose elements name the type of their object
UNSEEN = ("ball_quaternion", "ball_angular_velocity", "joint_actuator_force")  # balls become hinges, and motors are not written


def write_sensors(mech: Mechanism, root: ElementTree.Element, bodies: Mapping[str | None, ElementTree.Element]) -> list[str]:
    """Add sites to the elements of their bodies, and sensors to the file. The result has the names of sensors that are left out."""
    for name, site in mech.sites.items():
        _add_site(bodies, name, site)
    left_out, elements = list[str](), list[ElementTree.Element]()
    for name, sensor in mech.sensors.items():
        if not _has_counterpart(mech, sensor):
            left_out.append(name)
            continue
        options: dict[str, Any] = {"name": name}
        for key, frame in (("site", sensor.site), ("reference", sensor.reference)):
            if frame is None:
                continue
            label = frame if isinstance(frame, str) else f"{name}_{key}"
            if isinstance(frame, Site):
                while label in mech.sites:
                    label += "_"
                _add_site(bodies, label, frame)
            options |= _object(sensor.kind, key, label)
        if sensor.joint is not None:
            options["joint"] = sensor.joint
        if sensor.kind in SUBTREES.values():
            options["body"] = sensor.body or "world"
        options |= {key: f"{value:.17g}" for key in ("cutoff", "noise") if (value := getattr(sensor, key)) > 0}
        elements.append(ElementTree.Element(TAGS[sensor.kind], **options))
    if elements:
        ElementTree.SubElement(root, "sensor").extend(elements)
    return left_out


def _has_counterpart(mech: Mechanism, sensor: Sensor) -> bool:
    plain = sensor.kind in TAGS and sensor.kind not in UNSEEN and sensor.scale == 1.0 and sensor.offset == 0.0
    joint = None if sensor.joint is None else mech.named_joints()[sensor.joint]
    return plain and (joint is None or joint.num_coordinates == 1)


def _object(kind: str, key: str, label: str) -> dict[str, str]:
    if key == "reference":
        return {"reftype": "site", "refname": label}
    return {"objtype": "site", "objname": label} if kind in AT_OBJECTS else {"site": label}


def _add_site(bodies: Mapping[str | None, ElementTree.Element], name: str, site: Site) -> None:
    place = {"pos": _text(site.position), "quat": _text(site.orientation), "size": _text(site.size)}
    ElementTree.SubElement(bodies[site.body], "site", {"name": name, "type": site.shape, **place})


def _text(values: Tensor) -> str:
    return " ".join(f"{number:.17g}" for number in values.detach().reshape(-1).tolist())
