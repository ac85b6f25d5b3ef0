"""Sites and sensors of a mechanism as elements of an MJCF file.

Sensors at sites without a name get sites of their own, "NAME_site". What the file cannot have is left out: sensors of actuators that are
not written, of joints with several coordinates that are no balls there, of momentum, outputs that are scaled or shifted, and kinds of
one's own.
"""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

from torchdojo.io.mjcf.sensors import ACTUATORS, FRAMES, JOINTS, SUBTREES
from torchdojo.io.mjcf.writing import Writing, text_of
from torchdojo.sensors.kind import Sensor
from torchdojo.sensors.site import Site

__all__ = ["write_sensors"]

TAGS = {ours: tag.lower() for table in (FRAMES, JOINTS, ACTUATORS, SUBTREES) for tag, ours in table.items()} | {"clock": "clock"}
AT_OBJECTS = tuple(ours for tag, ours in FRAMES.items() if tag.startswith("FRAME"))  # whose elements name the type of their object
BALLS = ("ball_quaternion", "ball_angular_velocity")  # of joints that are balls in the file


def write_sensors(file: Writing) -> list[str]:
    """Add sites to the elements of their bodies, and sensors to the file. The result has the names of sensors that are left out."""
    mech = file.mech
    for name, site in mech.sites.items():
        _add_site(file, name, site)
    left_out, elements = list[str](), list[ElementTree.Element]()
    for name, sensor in mech.sensors.items():
        if not _has_counterpart(file, sensor):
            left_out.append(name)
            continue
        options: dict[str, Any] = {"name": name}
        for key, frame in (("site", sensor.site), ("reference", sensor.reference)):
            if frame is None:
                continue
            if isinstance(frame, Site):
                label = file.site(f"{name}_{key}", frame.body, frame.position, **_zone(frame))
            else:
                label = frame
            options |= _object(sensor.kind, key, label)
        if sensor.joint is not None:
            options["joint"] = sensor.joint
        if sensor.actuator is not None:
            options["actuator"] = sensor.actuator
        if sensor.kind in SUBTREES.values():
            options["body"] = sensor.body or "world"
        options |= {key: f"{value:.17g}" for key in ("cutoff", "noise") if (value := getattr(sensor, key)) > 0}
        elements.append(ElementTree.Element(TAGS[sensor.kind], **options))
    if elements:
        ElementTree.SubElement(file.root, "sensor").extend(elements)
        file.section("option").set("magnetic", text_of(mech.sensors.magnetic))
    return left_out


def _has_counterpart(file: Writing, sensor: Sensor) -> bool:
    plain = sensor.kind in TAGS and sensor.scale == 1.0 and sensor.offset == 0.0
    joint = None if sensor.joint is None else file.mech.named_joints()[sensor.joint]
    if plain and sensor.kind in BALLS:
        return sensor.joint in file.balls
    if not plain or (joint is not None and joint.num_coordinates != 1):
        return False
    motors = file.mech.actuators
    if sensor.kind == "joint_actuator_force":
        return motors is not None and all(name in file.actuators for name in motors.names)
    if sensor.actuator is None:
        return True
    shifted = motors is not None and sensor.actuator in motors.names and bool(motors.length0[motors.names.index(sensor.actuator)])
    return sensor.actuator in file.actuators and not (shifted and sensor.kind == "actuator_position")


def _object(kind: str, key: str, label: str) -> dict[str, str]:
    if key == "reference":
        return {"reftype": "site", "refname": label}
    return {"objtype": "site", "objname": label} if kind in AT_OBJECTS else {"site": label}


def _add_site(file: Writing, name: str, site: Site) -> None:
    ElementTree.SubElement(file.bodies[site.body], "site", {"name": name, "pos": text_of(site.position), **_zone(site)})


def _zone(site: Site) -> dict[str, str]:
    return {"type": site.shape, "quat": text_of(site.orientation), "size": text_of(site.size)}
