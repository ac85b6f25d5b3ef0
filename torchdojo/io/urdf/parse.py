"""The XML of a URDF file, checked, with what the dynamics needs as plain data.

Real files repeat, omit and misspell. What cannot be read as a robot is refused; what can be read otherwise than written is reported.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree.ElementTree import Element, SubElement

import numpy as np

from torchdojo.io.meshes import MeshReference
from torchdojo.io.report import Effect, Findings
from torchdojo.io.robot import Array, clean_name, listed
from torchdojo.io.urdf.check import check_tree
from torchdojo.io.urdf.surfaces import Surface, read_surfaces
from torchdojo.io.urdf.visuals import UrdfVisual, origin_of, read_visuals
from torchdojo.io.xmlfile import read_xml

__all__ = ["Collision", "Inertial", "Limit", "Mimic", "ParsedUrdf", "UrdfJoint", "parse_urdf"]

#: URDF joint type -> class in `torchdojo.elements.joints`
JOINT_TYPES = {
    "fixed": "Fixed",
    "revolute": "Revolute",
    "continuous": "Revolute",
    "prismatic": "Prismatic",
    "planar": "PlanarAxis",
    "floating": "Floating",
    "spherical": "Spherical",  # of Bullet and MuJoCo
    # of the original Dojo
    "ball": "Spherical",
    "orbital": "Orbital",
    "planaraxis": "PlanarAxis",
    "planarfree": "PlanarFree",
    "cylindrical": "Cylindrical",
    "cylindricalfree": "CylindricalFree",
    "fixedorientation": "FixedOrientation",
}
DIALECT = ("ball", "orbital", "planaraxis", "planarfree", "cylindrical", "cylindricalfree", "fixedorientation")
AXISLESS = ("fixed", "floating", "ball", "spherical", "fixedorientation")
GEOMETRY = ("box", "cylinder", "sphere", "capsule", "mesh")
SUPPORTED = f"Supported: joints {', '.join(JOINT_TYPES)}; geometry {', '.join(GEOMETRY)}."
#: elements that are read; `+` may be repeated
READ = {
    "robot": {"link+", "joint+", "loop_joint+"},
    "link": {"inertial", "collision+"},
    "inertial": {"origin", "mass", "inertia"},
    "collision": {"origin", "geometry"},
    "geometry": set(GEOMETRY),
    "joint": {"origin", "parent", "child", "axis", "dynamics", "limit", "mimic"},
    "loop_joint": {"link1", "link2", "axis", "dynamics", "limit"},
}
#: elements that other modules read, or that only draw
READ_ELSEWHERE = {"robot": {"material", "gazebo"}, "link": {"visual", "material", "contact"}, "collision": {"material"}}
#: known elements on which the motion does not depend
HARMLESS = {
    "robot": {"transmission", "sensor", "mujoco", "frame", "collision_filter_group", "ros2_control"},
    "link": {"sensor", "self_collision_checking", "collision_checking", "self_filter", "gazebo"},
    "collision": {"verbose", "surface"},
    "joint": {"calibration", "safety_controller", "gazebo"},
}
#: numeric attributes: element -> {attribute: (how many numbers, required)}
NUMBERS = {
    "origin": {"xyz": (3, False), "rpy": (3, False)},
    "link1": {"xyz": (3, False), "rpy": (3, False)},
    "link2": {"xyz": (3, False), "rpy": (3, False)},
    "axis": {"xyz": (3, True)},
    "mass": {"value": (1, True)},
    "inertia": {key: (1, True) for key in ("ixx", "ixy", "ixz", "iyy", "iyz", "izz")},
    "box": {"size": (3, True)},
    "cylinder": {"radius": (1, True), "length": (1, True)},
    "capsule": {"radius": (1, True), "length": (1, True)},
    "sphere": {"radius": (1, True)},
    "mimic": {"multiplier": (1, False), "offset": (1, False)},
    "dynamics": {"damping": (1, False), "friction": (1, False)},
    "mesh": {"scale": (3, False)},
    "limit": {"lower": (1, False), "upper": (1, False), "effort": (1, False), "velocity": (1, False)},
}
#: further attributes of these elements
NAMES = {"mimic": {"joint"}, "mesh": {"filename"}, "link1": {"link"}, "link2": {"link"}, "parent": {"link"}, "child": {"link"}}


@dataclass
class Inertial:
    mass: float  #: [kg]
    origin: Array  #: (4, 4) pose of the center of mass and the axes of the inertia [m]
    inertia: Array  #: (3, 3) [kg m^2]


@dataclass
class Collision:
    kind: str  #: tag of the geometry
    origin: Array  #: (4, 4) [m]
    size: tuple[float, ...] = ()  #: the numbers of the geometry, in the order of `NUMBERS` [m]
    mesh: MeshReference | None = None


@dataclass
class Limit:
    """[m, rad], [N, N m], [m/s, rad/s]; infinite: none."""

    lower: float
    upper: float
    effort: float
    velocity: float


@dataclass
class Mimic:
    joint: str
    multiplier: float
    offset: float


@dataclass
class UrdfJoint:
    """A ``<joint>``, or a ``<loop_joint>`` between frames on two links that are connected already."""

    name: str
    kind: str  #: type in the file; a reader makes it "fixed" where the joint cannot move
    parent: str
    child: str
    origin: Array  #: (4, 4) pose of the joint's frame on the parent [m]
    axis: Array  #: (3,) unit vector in the joint's frame
    damping: float | None
    friction: float | None
    limit: Limit | None
    mimic: Mimic | None = None
    child_origin: Array = field(default_factory=lambda: np.eye(4))  #: the same on the child


@dataclass
class ParsedUrdf:
    """The content of a file, by clean names of links and joints; a link without mass has no inertial."""

    path: Path
    inertials: dict[str, Inertial | None]
    collisions: dict[str, list[Collision]]
    joints: dict[str, UrdfJoint]
    loops: list[UrdfJoint]
    visuals: dict[str, tuple[UrdfVisual, ...]]
    surfaces: dict[str, Surface]
    findings: Findings


@dataclass
class _Context:
    path: Path
    dialect: bool  # of the original Dojo, which reads the first of repeated elements
    findings: Findings


def parse_urdf(path: str | Path) -> ParsedUrdf:
    """Check and read a URDF file. Nothing but the file itself is read: no mesh.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: malformed XML, not a robot, missing or malformed values, links and joints that do not fit.
    """
    path = Path(path)
    root = read_xml(path, "URDF")
    dialect = any(element.tag in ("capsule", "loop_joint") or element.get("type") in DIALECT for element in root.iter())
    context = _Context(path, dialect, Findings())
    if root.tag != "robot":
        raise ValueError(f"{path}: the root element is <{root.tag}>; a URDF file has <robot>")
    for element in root.iter():
        if "xacro}" in str(element.tag):
            raise ValueError(f"{path}: this is a xacro file (element {element.tag}); expand it first: xacro FILE > robot.urdf")
    visuals, surfaces = read_visuals(root), read_surfaces(root, context.findings)
    _check_children(root, "<robot>", context)
    for joint in (*root.findall("joint"), *root.findall("loop_joint")):
        _prepare_joint(joint, context)
    _clean_names(root, path)
    check_tree(root, path)
    _drop_unknown_leaders(root, context)
    joints = [_joint(element) for element in root.findall("joint")]
    return ParsedUrdf(
        path,
        {link.get("name", ""): _inertial(link, context) for link in root.findall("link")},
        {link.get("name", ""): _collisions(link, context) for link in root.findall("link")},
        {joint.name: joint for joint in joints},
        [_joint(element) for element in root.findall("loop_joint")],
        visuals,
        surfaces,
        context.findings,
    )


# -- checks ------------------------------------------------------------------------------------------------------------------------------


def _check_children(element: Element, where: str, context: _Context) -> None:
    """Remove what is not read and note it; check every attribute that is left."""
    tag = str(element.tag)
    read, seen = READ.get(tag, set()), set()
    _check_attributes(element, where, context)
    for child in list(element):
        name = str(child.tag)
        label = f"<{name}> {child.get('name')!r}" if child.get("name") else f"<{name}>"
        if name in read or f"{name}+" in read:
            if name in read and name in seen:
                if not context.dialect:
                    raise ValueError(f"{context.path}: {where} has more than one <{name}>; allowed: one; remove the others")
                context.findings.add(
                    "approximated", "repeated elements", f"{label} in {where}", "the first one is read, as by the original Dojo"
                )
                element.remove(child)
                continue
            seen.add(name)
            if name in ("link", "joint", "loop_joint") and not child.get("name"):
                raise ValueError(f"{context.path}: a <{name}> has no name; give it a unique one")
            _check_children(child, label if tag == "robot" else f"{label} of {where}", context)
        elif tag in READ and not name.startswith("{"):  # a tag with a namespace ("drake:proximity_properties") belongs to another program
            if name in HARMLESS.get(tag, ()):
                owner = "" if child.get("name") is None and tag == "robot" else str(child.get("name") or element.get("name") or "")
                context.findings.add("ignored", f"<{name}>", owner, "the motion does not depend on it", "none")
            elif tag == "geometry":
                context.findings.add(
                    "ignored", "collision geometry", f"{label} in {where}", f"no such geometry here; {', '.join(GEOMETRY)}"
                )
            elif name not in READ_ELSEWHERE.get(tag, ()):
                context.findings.add("ignored", "unknown elements", f"{label} in {where}", "this reader does not know them", "structure")
        if not (name in read or f"{name}+" in read):
            element.remove(child)


def _check_attributes(element: Element, where: str, context: _Context) -> None:
    tag, findings = str(element.tag), context.findings
    if tag in NUMBERS or tag in NAMES:
        for attribute in sorted(set(element.attrib) - NUMBERS.get(tag, {}).keys() - NAMES.get(tag, set())):
            findings.add("ignored", "unknown attributes", f"{attribute} of {where}", "this reader does not know them", "structure")
    for attribute, text in element.attrib.items():
        if "$(" in text or "${" in text:
            raise ValueError(
                f"{context.path}: {where} has {attribute}={text!r}: this is a xacro file; expand it first: xacro FILE > robot.urdf"
            )
    for attribute, (count, required) in NUMBERS.get(tag, {}).items():
        value = element.get(attribute)
        if value is None:
            if required:
                raise ValueError(f"{context.path}: {where} has no attribute {attribute!r}; give it {count} number(s)")
            continue
        try:
            numbers = [float(word.rstrip(",")) for word in value.split()]  # some files separate them by commas
        except ValueError:
            numbers = []
        if tag == "mesh" and len(numbers) == 1:
            numbers *= 3
        if len(numbers) > count:
            findings.add(
                "ignored", "numbers beyond those needed", f"{attribute}={value!r} of {where}", f"the first {count} are read", "structure"
            )
            numbers = numbers[:count]
        finite = tag == "limit" or all(math.isfinite(number) for number in numbers)
        if len(numbers) != count or not finite or any(math.isnan(number) for number in numbers):
            raise ValueError(f"{context.path}: {where} has {attribute}={value!r}; allowed: {count} finite number(s) separated by spaces")
        if tag == "dynamics" and numbers[0] < 0:
            raise ValueError(f"{context.path}: {where} has {attribute}={value!r}; allowed: 0 or positive")
        element.set(attribute, " ".join(map(repr, numbers)))


def _prepare_joint(joint: Element, context: _Context) -> None:
    """Check type, ends, axis and limits, and write limits that the file leaves unsaid."""
    name, kind, path = joint.get("name", ""), joint.get("type"), context.path
    if kind not in JOINT_TYPES:
        raise ValueError(f"{path}: joint {name!r} has type {kind!r}, which is unknown. {SUPPORTED}")
    for end in ("parent", "child") if joint.tag == "joint" else ("link1", "link2"):
        element = joint.find(end)
        if element is None or not element.get("link"):
            raise ValueError(f"{path}: joint {name!r} has no <{end} link=...>; name the link that it joins")
    mimic = joint.find("mimic")
    if mimic is not None and not mimic.get("joint"):
        raise ValueError(f"{path}: <mimic> of joint {name!r} has no attribute 'joint'; name the joint that it follows")
    axis = joint.find("axis")
    if axis is not None and kind in AXISLESS:
        joint.remove(axis)
    elif axis is not None and math.hypot(*_numbers(axis, "xyz")) < 1e-4:
        raise ValueError(f"{path}: {kind} joint {name!r} has the axis {axis.get('xyz')!r}; allowed: a vector of positive length")
    limit = joint.find("limit")
    if kind not in ("revolute", "prismatic"):
        return
    reason = ""
    if limit is None:
        limit, reason = SubElement(joint, "limit"), "it has no <limit>, so it has none here"
    elif limit.get("lower") is None and limit.get("upper") is None:
        reason = "it gives neither a lower nor an upper limit, so it has none here"
    elif float(limit.get("lower", "0")) > float(limit.get("upper", "0")):  # URDF: a missing one is 0
        reason = "the lower limit is above the upper one, which Bullet reads as none, and so does this reader"
    if reason:
        effect: Effect = "motion" if "above" in reason else "structure"
        context.findings.add("approximated", f"limits of {kind} joints", name, reason, effect)
        limit.set("lower", "-inf")
        limit.set("upper", "inf")


def _clean_names(root: Element, path: Path) -> None:
    for tag in ("link", "joint"):
        original: dict[str, str] = {}
        for element in [*root.findall(tag), *(root.findall("loop_joint") if tag == "joint" else ())]:
            name = element.get("name", "")
            clean = clean_name(name)
            if clean in original:
                same = (
                    f"two {tag}s are named {name!r}"
                    if original[clean] == name
                    else f"{tag}s {original[clean]!r} and {name!r} both become {clean!r}"
                )
                raise ValueError(f"{path}: {same}; names must be unique, also with '.' replaced by '_': rename one")
            original[clean] = name
            element.set("name", clean)
    for element in [
        element for end in ("joint/parent", "joint/child", "loop_joint/link1", "loop_joint/link2") for element in root.findall(end)
    ]:
        element.set("link", clean_name(element.get("link", "")))
    for element in root.findall("joint/mimic"):
        element.set("joint", clean_name(element.get("joint", "")))


def _drop_unknown_leaders(root: Element, context: _Context) -> None:
    """A joint that mimics a joint of another file moves independently.

    Raises:
        ValueError: a joint that mimics itself.
    """
    joints = {joint.get("name", "") for joint in root.findall("joint")}
    for joint in root.findall("joint"):
        name, mimic = joint.get("name", ""), joint.find("mimic")
        leader = None if mimic is None else mimic.get("joint")
        if leader == name:
            raise ValueError(f"{context.path}: joint {name!r} mimics {leader!r}; allowed: another joint, of {listed(joints - {name})}")
        if mimic is not None and leader not in joints:
            context.findings.add("ignored", "<mimic>", name, f"the file has no joint {leader!r}: it moves independently")
            joint.remove(mimic)


# -- reading -----------------------------------------------------------------------------------------------------------------------------


def _numbers(element: Element | None, attribute: str, default: str = "") -> tuple[float, ...]:
    return tuple(float(word) for word in (default if element is None else element.get(attribute, default)).split())


def _inertial(link: Element, context: _Context) -> Inertial | None:
    """Mass and inertia of a link, or None for a frame without mass."""
    inertial, name, path = link.find("inertial"), link.get("name", ""), context.path
    if inertial is None:
        return None
    mass, inertia = inertial.find("mass"), inertial.find("inertia")
    if mass is None or inertia is None:
        lacking = "<mass>" if mass is None else "<inertia>"
        raise ValueError(f"{path}: <inertial> of link {name!r} lacks {lacking}; give both, or no <inertial>")
    value = float(mass.get("value", ""))
    if value < 0:
        raise ValueError(f"{path}: link {name!r} has mass {value} kg; allowed: positive, or 0 for a frame without mass")
    xx, xy, xz, yy, yz, zz = (float(inertia.get(key, "")) for key in ("ixx", "ixy", "ixz", "iyy", "iyz", "izz"))
    if value == 0:
        effect = any((xx, xy, xz, yy, yz, zz))
        context.findings.add(
            "ignored", "inertia", [name] if effect else (), "the link has no mass: it is a frame, its inertia does not act"
        )
        return None
    return Inertial(value, origin_of(inertial.find("origin")), np.array([[xx, xy, xz], [xy, yy, yz], [xz, yz, zz]]))


def _collisions(link: Element, context: _Context) -> list[Collision]:
    name, collisions = link.get("name", ""), []
    for collision in link.findall("collision"):
        geometry, origin = collision.find("geometry"), origin_of(collision.find("origin"))
        tags = [] if geometry is None else [str(child.tag) for child in geometry]
        if geometry is None or len(tags) > 1:
            raise ValueError(f"{context.path}: a collision of link {name!r} has the geometry {tags}; allowed: one of {', '.join(GEOMETRY)}")
        for shape in geometry:  # none where it is of an unknown kind
            if shape.tag != "mesh":
                sizes = (_numbers(shape, attribute) for attribute in NUMBERS[tags[0]])
                collisions.append(Collision(tags[0], origin, tuple(number for numbers in sizes for number in numbers)))
                continue
            if not shape.get("filename"):
                raise ValueError(f"{context.path}: a <mesh> of link {name!r} has no filename; name its file")
            x, y, z = _numbers(shape, "scale", "1 1 1")
            collisions.append(Collision("mesh", origin, mesh=MeshReference(shape.get("filename", ""), (x, y, z))))
    return collisions


def _joint(element: Element) -> UrdfJoint:
    first, second = (element.find(end) for end in (("parent", "child") if element.tag == "joint" else ("link1", "link2")))
    assert first is not None
    assert second is not None
    dynamics, limit, mimic = (element.find(tag) for tag in ("dynamics", "limit", "mimic"))
    axis = np.array(_numbers(element.find("axis"), "xyz", "1 0 0"))

    def number(source: Element | None, attribute: str, default: float) -> float:
        return default if source is None else float(source.get(attribute, default))

    def strength(attribute: str) -> float:
        # Exporters write 0 where they know none; a joint that no motor could move or that could not move would be fixed.
        return number(limit, attribute, math.inf) or math.inf

    return UrdfJoint(
        element.get("name", ""),
        element.get("type", ""),
        first.get("link", ""),
        second.get("link", ""),
        origin_of(element.find("origin") if element.tag == "joint" else first),
        axis / np.linalg.norm(axis),
        None if dynamics is None else number(dynamics, "damping", 0.0),
        None if dynamics is None else number(dynamics, "friction", 0.0),
        None
        if limit is None
        else Limit(number(limit, "lower", 0.0), number(limit, "upper", 0.0), strength("effort"), strength("velocity")),
        None if mimic is None else Mimic(mimic.get("joint", ""), number(mimic, "multiplier", 1.0), number(mimic, "offset", 0.0)),
        np.eye(4) if element.tag == "joint" else origin_of(second),
    )
