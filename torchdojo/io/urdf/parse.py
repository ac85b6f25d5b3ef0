"""The XML of a URDF file, checked and reduced to what the dynamics needs before `urchin` parses it.

Real files give three reasons. The parser would load meshes in its own way. It stops at extensions and duplicates that do not matter here
(materials, transmissions). Without a word, it gives a link without ``<inertial>`` a mass of 1 kg and a joint with a zero axis the x axis.
"""

from __future__ import annotations

import io
import math
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

import numpy as np

from torchdojo.io.meshes import MeshReference
from torchdojo.io.robot import clean_name, listed
from torchdojo.io.urdf.visuals import UrdfVisual, origin_of, read_visuals

__all__ = ["LoopJoint", "ParsedUrdf", "parse_urdf"]

#: URDF joint type -> class in `torchdojo.elements.joints`
JOINT_TYPES = {
    "fixed": "Fixed",
    "revolute": "Revolute",
    "continuous": "Revolute",
    "prismatic": "Prismatic",
    "planar": "PlanarAxis",
    "floating": "Floating",
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
PARSED_TYPES = ("fixed", "revolute", "continuous", "prismatic", "planar", "floating")
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
#: known elements that carry nothing for the dynamics, or belong to other programs
HARMLESS = {
    "robot": {"material", "transmission", "gazebo", "sensor", "mujoco", "frame", "collision_filter_group", "ros2_control"},
    "link": {"visual", "material", "sensor", "contact", "self_collision_checking", "gazebo"},
    "collision": {"material", "verbose", "surface"},
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


@dataclass
class LoopJoint:
    """A ``<loop_joint>``: frames on two links that are already connected, which coincide at coordinate zero."""

    name: str
    joint_type: str
    links: tuple[str, str]
    origin: Any  #: (4, 4) pose of the joint's frame on the first link [m]
    child_origin: Any  #: the same on the second
    axis: Any  #: (3,) unit vector in the joint's frame
    dynamics: Any  #: ``urchin`` objects, or None
    limit: Any


@dataclass
class ParsedUrdf:
    """The parser's ``urchin.URDF`` with clean names, the content unknown to the parser, the links without mass, and omissions in words."""

    path: Path
    robot: Any
    kinds: dict[str, str]  #: joint -> type in the file (the parser sees "floating" for those it does not know)
    capsules: set[tuple[str, int]]  #: link, number of its collision: a capsule, where the parser sees a cylinder
    meshes: dict[tuple[str, int], MeshReference]  #: likewise: a mesh, where the parser sees a sphere
    visuals: dict[str, tuple[UrdfVisual, ...]]  #: of each link
    loops: list[LoopJoint]
    massless: set[str]
    notes: list[str]


@dataclass
class _Report:
    path: Path
    dialect: bool  # of the original Dojo, which reads the first of repeated elements, and no limits
    unknown: list[str] = field(default_factory=list)
    repeated: list[str] = field(default_factory=list)
    unlimited: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def all_notes(self) -> list[str]:
        notes = list(self.notes)
        if self.repeated:
            notes.append(f"{self.path}: of repeated elements the first one is read, as the original Dojo does: {', '.join(self.repeated)}")
        if self.unlimited:
            notes.append(f"{self.path}: revolute and prismatic joints without <limit> have none here: {', '.join(self.unlimited)}")
        if self.unknown:
            notes.append(f"{self.path}: unknown elements are ignored: {', '.join(dict.fromkeys(self.unknown))}")
        return notes


def parse_urdf(path: str | Path) -> ParsedUrdf:
    """Check, strip and parse a URDF file. Nothing but the file itself is read: no mesh.

    Raises:
        ImportError: `urchin` is not installed.
        FileNotFoundError: there is no such file.
        ValueError: malformed XML, not a robot, unsupported elements, missing or malformed values, links and joints that do not fit.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"URDF file {str(path)!r} does not exist (working directory {str(Path.cwd())!r})")
    try:
        import urchin
    except ImportError as error:
        raise ImportError('reading URDF files needs the package urchin: pip install "torchdojo[urdf]"') from error
    try:
        root = ElementTree.parse(path).getroot()
    except ElementTree.ParseError as error:
        raise ValueError(f"{path}: malformed XML: {error}") from error

    report = _Report(path, any(element.tag in ("capsule", "loop_joint") or element.get("type") in DIALECT for element in root.iter()))
    visuals = read_visuals(root)
    _check_elements(root, report)
    massless = {link.get("name", "") for link in root.findall("link") if _prepare_link(link, report)}
    for joint in (*root.findall("joint"), *root.findall("loop_joint")):
        _prepare_joint(joint, report)
    _clean_names(root, path)
    _check_tree(root, path)
    loops = [_take_loop(root, joint) for joint in root.findall("loop_joint")]
    kinds = {joint.get("name", ""): joint.get("type", "") for joint in root.findall("joint")}
    capsules, meshes = _hide_dialect(root)

    stream = io.BytesIO(ElementTree.tostring(root))
    stream.name = str(path)  # the parser asks for it, to find meshes; there are none left
    try:
        robot = urchin.URDF.load(stream, lazy_load_meshes=True)
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise ValueError(f"{path}: the URDF parser urchin refused the file: {error}") from error
    return ParsedUrdf(path, robot, kinds, capsules, meshes, visuals, loops, {clean_name(name) for name in massless}, report.all_notes())


# -- elements ----------------------------------------------------------------------------------------------------------------------------


def _check_elements(root: Element, report: _Report) -> None:
    """Refuse what is no URDF, nor Dojo's dialect of it, remove what the dynamics does not need, check every number that is left."""
    if root.tag != "robot":
        raise ValueError(f"{report.path}: the root element is <{root.tag}>; a URDF file has <robot>")
    for element in root.iter():
        if "xacro}" in str(element.tag):
            raise ValueError(f"{report.path}: this is a xacro file (element {element.tag}); expand it first: xacro FILE > robot.urdf")
    _check_children(root, "<robot>", report)


def _check_children(element: Element, where: str, report: _Report) -> None:
    tag = str(element.tag)
    read, seen = READ.get(tag, set()), set()
    _check_numbers(element, where, report.path)
    for child in list(element):
        name = str(child.tag)
        label = f"<{name}> {child.get('name')!r}" if child.get("name") else f"<{name}>"
        if name in read or f"{name}+" in read:
            if name in read and name in seen and report.dialect:
                report.repeated.append(f"{label} in {where}")
                element.remove(child)
                continue
            if name in read and name in seen:
                raise ValueError(f"{report.path}: {where} has more than one <{name}>; allowed: one")
            seen.add(name)
            if name in ("link", "joint", "loop_joint") and not child.get("name"):
                raise ValueError(f"{report.path}: a <{name}> has no name; give it a unique one")
            _check_children(child, label if tag == "robot" else f"{label} of {where}", report)
            continue
        if tag == "geometry":
            raise ValueError(f"{report.path}: {label} in {where} is no geometry of URDF. {SUPPORTED}")
        element.remove(child)
        # a tag with a namespace ("drake:proximity_properties") belongs to another program
        if tag in READ and name not in HARMLESS.get(tag, set()) and not name.startswith("{"):
            report.unknown.append(f"{label} in {where}")


def _check_numbers(element: Element, where: str, path: Path) -> None:
    for attribute, (count, required) in NUMBERS.get(str(element.tag), {}).items():
        text = element.get(attribute)
        if text is None:
            if required:
                raise ValueError(f"{path}: {where} has no attribute {attribute!r}; give it {count} number(s)")
            continue
        try:
            numbers = [float(word) for word in text.split()]
        except ValueError:
            numbers = []
        finite = element.tag == "limit" or all(math.isfinite(number) for number in numbers)
        if len(numbers) != count or not finite or any(math.isnan(number) for number in numbers):
            raise ValueError(f"{path}: {where} has {attribute}={text!r}; allowed: {count} finite number(s) separated by spaces")
        if element.tag == "dynamics" and numbers[0] < 0:
            raise ValueError(f"{path}: {where} has {attribute}={text!r}; allowed: 0 or positive")


def _prepare_link(link: Element, report: _Report) -> bool:
    """Check the geometry and the mass of a link; True if the link has no mass."""
    name, path = link.get("name"), report.path
    for collision in link.findall("collision"):
        geometry = collision.find("geometry")
        if geometry is None or len(geometry) != 1:
            tags = [] if geometry is None else [str(child.tag) for child in geometry]
            raise ValueError(f"{path}: a collision of link {name!r} has the geometry {tags}; allowed: one of {', '.join(GEOMETRY)}")
        mesh = geometry.find("mesh")
        if mesh is not None and not mesh.get("filename"):
            raise ValueError(f"{path}: a <mesh> of link {name!r} has no filename; name its file")
    inertial = link.find("inertial")
    if inertial is None:
        return True
    mass, inertia = inertial.find("mass"), inertial.find("inertia")
    if mass is None or inertia is None:
        raise ValueError(
            f"{path}: <inertial> of link {name!r} lacks {'<mass>' if mass is None else '<inertia>'}; give both, or no <inertial>"
        )
    value = float(mass.get("value", ""))
    if value < 0:
        raise ValueError(f"{path}: link {name!r} has mass {value} kg; allowed: positive, or 0 for a frame without mass")
    if value == 0:
        if any(float(number) for number in inertia.attrib.values()):
            report.notes.append(f"{path}: link {name!r} has an inertia but no mass: a frame without mass, its inertia is ignored")
        link.remove(inertial)
        return True
    return False


def _prepare_joint(joint: Element, report: _Report) -> None:
    name, kind, path = joint.get("name"), joint.get("type"), report.path
    if kind not in JOINT_TYPES:
        raise ValueError(f"{path}: joint {name!r} has type {kind!r}, which is unknown. {SUPPORTED}")
    for end in ("parent", "child") if joint.tag == "joint" else ("link1", "link2"):
        element = joint.find(end)
        if element is None or not element.get("link"):
            raise ValueError(f"{path}: joint {name!r} has no <{end} link=...>; name the link that it joins")
    axis = joint.find("axis")
    if axis is not None and kind in ("fixed", "floating", "ball", "fixedorientation"):
        joint.remove(axis)
    elif axis is not None and math.hypot(*(float(word) for word in axis.get("xyz", "").split())) < 1e-4:
        raise ValueError(f"{path}: {kind} joint {name!r} has the axis {axis.get('xyz')!r}; allowed: a vector of positive length")
    limit = joint.find("limit")
    if limit is None:
        if kind in ("revolute", "prismatic") and report.dialect:
            report.unlimited.append(str(name))
            ElementTree.SubElement(joint, "limit", {"lower": "-inf", "upper": "inf", "effort": "inf", "velocity": "inf"})
        elif kind in ("revolute", "prismatic"):
            remedy = 'give it one, or type="continuous"' if kind == "revolute" else "give it one; lower=-inf upper=inf for none"
            raise ValueError(f"{path}: {kind} joint {name!r} has no <limit>; {remedy}")
        return
    for attribute in ("effort", "velocity"):
        limit.set(attribute, limit.get(attribute, "inf"))  # the parser insists on both
    if kind in ("revolute", "prismatic"):
        if limit.get("lower") is None and limit.get("upper") is None:
            report.notes.append(f"{path}: {kind} joint {name!r} gives neither lower nor upper limit: it has none here")
            limit.set("lower", "-inf")
            limit.set("upper", "inf")
        lower, upper = (float(limit.get(side, "0")) for side in ("lower", "upper"))  # URDF: a missing one is 0
        if lower > upper:
            raise ValueError(f"{path}: joint {name!r} has lower limit {lower} above upper limit {upper}; exchange them")
        limit.set("lower", repr(lower))
        limit.set("upper", repr(upper))


# -- what the parser does not know --------------------------------------------------------------------------------------------------------


def _take_loop(root: Element, joint: Element) -> LoopJoint:
    """Remove a <loop_joint> from the tree of elements, and read it as the parser would read a joint."""
    import urchin

    root.remove(joint)
    ends = [element for end in ("link1", "link2") for element in joint.findall(end)]
    axis, dynamics, limit = (joint.find(tag) for tag in ("axis", "dynamics", "limit"))
    direction = np.array([1.0, 0.0, 0.0] if axis is None else [float(word) for word in axis.get("xyz", "").split()])
    return LoopJoint(
        name=joint.get("name", ""),
        joint_type=joint.get("type", ""),
        links=(ends[0].get("link", ""), ends[1].get("link", "")),
        origin=origin_of(ends[0]),
        child_origin=origin_of(ends[1]),
        axis=direction / np.linalg.norm(direction),
        dynamics=None if dynamics is None else urchin.JointDynamics(*(float(dynamics.get(key, "0")) for key in ("damping", "friction"))),
        limit=None
        if limit is None
        else urchin.JointLimit(*(float(limit.get(key, "0")) for key in ("effort", "velocity", "lower", "upper"))),
    )


def _hide_dialect(root: Element) -> tuple[set[tuple[str, int]], dict[tuple[str, int], MeshReference]]:
    """Replace types of joints that the parser does not know, capsules by cylinders and meshes by spheres. Returns the places of both."""
    for joint in root.findall("joint"):
        if joint.get("type") not in PARSED_TYPES:
            joint.set("type", "floating")
    capsules, meshes = set(), {}
    for link in root.findall("link"):
        for number, collision in enumerate(link.findall("collision")):
            place = (link.get("name", ""), number)
            capsule, mesh = (collision.find(f"geometry/{tag}") for tag in ("capsule", "mesh"))
            if capsule is not None:
                capsule.tag = "cylinder"
                capsules.add(place)
            if mesh is not None:
                x, y, z = (float(number) for number in mesh.get("scale", "1 1 1").split())
                meshes[place] = MeshReference(mesh.get("filename", ""), (x, y, z))
                mesh.tag, mesh.attrib = "sphere", {"radius": "1"}
    return capsules, meshes


# -- the graph ---------------------------------------------------------------------------------------------------------------------------


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


def _check_tree(root: Element, path: Path) -> None:
    links = [link.get("name", "") for link in root.findall("link")]
    if not links:
        raise ValueError(f"{path}: the robot has no <link>; it needs at least one")
    for joint in root.findall("loop_joint"):
        ends = _ends(joint, ("link1", "link2"), f"loop joint {joint.get('name')!r} names as", links, path)
        if ends[0] == ends[1]:
            raise ValueError(f"{path}: loop joint {joint.get('name')!r} joins link {ends[0]!r} to itself; name two different links")
    joints = [joint.get("name", "") for joint in root.findall("joint")]
    for joint in root.findall("joint"):
        mimic = joint.find("mimic")
        if mimic is not None and mimic.get("joint") not in set(joints) - {joint.get("name", "")}:
            raise ValueError(
                f"{path}: joint {joint.get('name')!r} mimics {mimic.get('joint')!r}; allowed: another joint, of {listed(joints)}"
            )
    parent_of = _parents(root, links, path)
    for link in links:
        chain = [link]
        while chain[-1] in parent_of:
            chain.append(parent_of[chain[-1]])
            if chain[-1] == link:
                raise ValueError(f"{path}: the links {' -> '.join(reversed(chain))} form a cycle; a URDF is a tree")
            if len(chain) > len(links) + 1:
                break  # leads into a cycle that is reported from one of its own links
    roots = [link for link in links if link not in parent_of]
    if len(roots) > 1:
        raise ValueError(
            f"{path}: the links {listed(roots)} have no parent joint; a URDF has exactly one root: join them, or remove the others"
        )


def _parents(root: Element, links: list[str], path: Path) -> dict[str, str]:
    """Link -> parent link."""
    parents: dict[str, str] = {}
    joints: dict[str, str] = {}
    for joint in root.findall("joint"):
        name = joint.get("name", "")
        parent, child = _ends(joint, ("parent", "child"), f"joint {name!r} names the", links, path)
        if child in parents:
            raise ValueError(
                f"{path}: link {child!r} is the child of two joints, {joints[child]!r} and {name!r}; a URDF is a tree: "
                "close loops with <loop_joint> elements or with joints of the Mechanism instead"
            )
        parents[child], joints[child] = parent, name
    return parents


def _ends(joint: Element, tags: tuple[str, str], subject: str, links: list[str], path: Path) -> list[str]:
    """The two links that a joint connects."""
    ends = [element.get("link", "") for tag in tags for element in joint.findall(tag)]
    for tag, link in zip(tags, ends, strict=True):
        if link not in links:
            middle = "the link" if joint.tag == "loop_joint" else "link"
            raise ValueError(f"{path}: {subject} {tag} {middle} {link!r}, which is not defined; links: {listed(links)}")
    return ends
