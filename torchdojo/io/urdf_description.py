"""A URDF robot as plain numbers: fixed links merged into bodies, masses and inertias composed, joints placed from centres of mass."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from torchdojo.elements.joints import JOINT_TYPES as JOINT_CLASSES
from torchdojo.geometry.shapes import Box, Capsule, Cylinder, Shape, Sphere
from torchdojo.io.urdf_xml import JOINT_TYPES, LoopJoint, ParsedUrdf, clean_name, parse_urdf
from torchdojo.quaternion import exp, from_rotation_matrix, rotation_matrix

__all__ = ["BodyInfo", "CouplingInfo", "JointInfo", "LinkInfo", "RobotInfo", "read_urdf"]

Array = NDArray[np.float64]
Pose = tuple[Array, Array]  # (3, 3) rotation and (3,) position [m]


@dataclass(frozen=True)
class LinkInfo:
    """A link, the body that it is part of (None: the world), and its pose in the frame of that body (or the world)."""

    name: str
    body: str | None
    position: Array  #: (3,) origin of the link frame, from the body's centre of mass [m]
    rotation: Array  #: (3, 3) link frame to body frame


@dataclass(frozen=True)
class BodyInfo:
    """Links that move as one. The frame has the axes of the topmost link, which names the body, and its origin at the centre of mass."""

    name: str
    links: tuple[str, ...]
    mass: float  #: [kg]
    center: Array  #: (3,) centre of mass in the frame of the topmost link [m]
    inertia: Array  #: (3, 3) about the centre of mass, body axes [kg m^2]
    shapes: tuple[Shape, ...]  #: collision shapes in the body frame
    contact_points: tuple[tuple[str, Array, float], ...]  #: (link, point (3,) in the body frame [m], radius [m])


@dataclass(frozen=True)
class JointInfo:
    """A joint in the terms of `torchdojo.elements.joints`."""

    name: str
    kind: str  #: class name
    parent: str | None  #: body; None: the world
    child: str
    parent_anchor: Array  #: (3,) in the parent's frame, from its centre of mass; in the world frame for parent None [m]
    child_anchor: Array  #: (3,) in the child's frame, from its centre of mass [m]
    rotation: Array  #: (3, 3) joint frame to parent frame: the child's orientation at coordinate zero
    axis: Array  #: (3,) unit vector in the joint frame
    options: dict[str, Any] = field(default_factory=dict)  #: further keywords: damper, friction, limits, effort_limit, ...


@dataclass(frozen=True)
class CouplingInfo:
    """A `JointCoupling`: coordinate of the follower = ratio · coordinate of the leader + offset [m, rad]."""

    leader: str
    follower: str
    ratio: float
    offset: float
    leader_coordinate: int = 0
    follower_coordinate: int = 0


@dataclass(frozen=True)
class RobotInfo:
    """Links, bodies and joints in tree order: a parent before its children, children in the order of the file. Joints that close loops
    come last."""

    path: Path
    links: dict[str, LinkInfo]
    bodies: dict[str, BodyInfo]
    joints: dict[str, JointInfo]
    couplings: dict[str, CouplingInfo]


def read_urdf(
    path: str | Path,
    *,
    floating_base: bool = True,
    merge_fixed_joints: bool = True,
    ignore: Sequence[str] = (),
    rim_points: int = 4,
    repair_inertia: bool = False,
) -> RobotInfo:
    """Describe a URDF robot; arguments, conventions and errors are those of `torchdojo.io.load_urdf`."""
    parsed = parse_urdf(path)
    tree = _Tree(parsed)
    tree.lock_joints_without_range()
    couplings = _couplings(tree, ignore)
    for note in parsed.notes:
        warnings.warn(note, UserWarning, stacklevel=3)
    top = _topmost(tree, merge_fixed_joints)
    groups = {t: tuple(name for name in tree.order if top[name] == t) for t in dict.fromkeys(top[name] for name in tree.order)}
    massless = {t for t, names in groups.items() if all(name in tree.massless for name in names)}
    # the root is the world itself where nothing keeps it a body of its own
    world = tree.root if not floating_base and (merge_fixed_joints or tree.root in massless) else None
    for t in groups:
        if t in massless and t != world:
            raise ValueError(_massless_message(tree, t, groups[t]))
    if world is not None and len(groups) == 1:
        raise ValueError(f"{tree.path}: with floating_base=False every link is fixed to the world; pass floating_base=True")
    names = {t: _body_name(tree, t, groups[t]) for t in groups if t != world}
    if floating_base and tree.root == "world":
        warnings.warn(
            f"{tree.path}: its root link 'world' says that {names['world']!r} is fixed to the world, but floating_base=True lets it move; "
            "pass floating_base=False to keep it in place",
            stacklevel=3,
        )

    poses = _poses_in_groups(tree, top)
    bodies = {names[t]: _compose(tree, names[t], groups[t], poses, rim_points, repair_inertia) for t in names}
    centers = {t: np.zeros(3) if t == world else bodies[names[t]].center for t in groups}
    links = {name: LinkInfo(name, names.get(top[name]), poses[name][1] - centers[top[name]], poses[name][0]) for name in tree.order}
    joints: dict[str, JointInfo] = {}
    if world is None:
        taken = {tree.joint_above[name].name for name in tree.order[1:] if top[name] == name}
        joints.update(_base_joint(names[tree.root], floating_base, centers[tree.root], taken))
    for name in tree.order[1:]:
        if top[name] == name:
            joint, parent = tree.joint_above[name], links[tree.joint_above[name].parent]
            joints[joint.name] = JointInfo(
                name=joint.name,
                kind=JOINT_TYPES[tree.kind(joint)],
                parent=parent.body,
                child=names[name],
                parent_anchor=parent.position + parent.rotation @ joint.origin[:3, 3],
                child_anchor=-centers[name],
                rotation=parent.rotation @ joint.origin[:3, :3],
                axis=np.array(joint.axis, dtype=np.float64),
                options=_joint_options(joint, tree.kind(joint)) | ({"actuated": False} if joint.name in couplings else {}),
            )
    joints.update({loop.name: _loop_joint(tree, loop, links) for loop in tree.loops})
    return RobotInfo(tree.path, links, bodies, joints, couplings)


class _Tree:
    """The links and joints of a parsed file in depth-first order."""

    def __init__(self, parsed: ParsedUrdf) -> None:
        self.path, self.notes, self.massless = parsed.path, parsed.notes, parsed.massless
        self.loops, self.capsules, self._kinds = parsed.loops, parsed.capsules, parsed.kinds
        self.links = {link.name: link for link in parsed.robot.links}
        self.joint_above = {joint.child: joint for joint in parsed.robot.joints}
        self.joints = {joint.name: joint for joint in parsed.robot.joints}
        (self.root,) = (name for name in self.links if name not in self.joint_above)
        children: dict[str, list[str]] = {name: [] for name in self.links}
        for joint in parsed.robot.joints:
            children[joint.parent].append(joint.child)
        self.order: list[str] = []
        stack = [self.root]
        while stack:
            self.order.append(stack.pop())
            stack.extend(reversed(children[self.order[-1]]))

    def kind(self, joint: Any) -> str:
        """Type of the joint in the file, or "fixed" where its range was empty."""
        return str(joint.joint_type) if joint.joint_type == "fixed" else self._kinds[joint.name]

    def lock_joints_without_range(self) -> None:
        """A joint with equal limits cannot move: make it a fixed joint at that coordinate (an interior point needs room)."""
        for joint in (*self.joints.values(), *self.loops):
            if joint.joint_type in ("revolute", "prismatic") and joint.limit.lower == joint.limit.upper:
                value, motion = float(joint.limit.lower), np.eye(4)
                if joint.joint_type == "revolute":
                    motion[:3, :3] = rotation_matrix(exp(torch.as_tensor(joint.axis * value))).numpy()
                else:
                    motion[:3, 3] = joint.axis * value
                self.notes.append(
                    f"{self.path}: {joint.joint_type} joint {joint.name!r} has equal limits {value}: it is read as fixed there"
                )
                joint.origin, joint.joint_type = joint.origin @ motion, "fixed"


def _couplings(tree: _Tree, ignore: Sequence[str]) -> dict[str, CouplingInfo]:
    """Mimic joints, by the names of these joints, without those to ignore."""
    ignored = {clean_name(name) for name in ([ignore] if isinstance(ignore, str) else ignore)}
    mimics = {name: joint.mimic for name, joint in tree.joints.items() if joint.mimic is not None}
    unknown = sorted(ignored - set(mimics))
    if unknown:
        raise ValueError(f"{tree.path}: ignore names {unknown}, which are no mimic joints; mimic joints here: {sorted(mimics) or 'none'}")
    couplings = {}
    for name, mimic in mimics.items():
        if name in ignored:
            continue
        for what, other in (("", name), (f"mimics {mimic.joint!r}, which ", mimic.joint)):
            kind = tree.kind(tree.joints[other])
            if sum(JOINT_CLASSES[JOINT_TYPES[kind]]) != 1:
                raise ValueError(
                    f"{tree.path}: mimic joint {name!r} {what}is {kind}; allowed: revolute, continuous and prismatic joints with room "
                    f"between their limits. To load it without the coupling: ignore={(name,)!r}"
                )
        couplings[name] = CouplingInfo(mimic.joint, name, float(mimic.multiplier), float(mimic.offset))
    return couplings


def _loop_joint(tree: _Tree, loop: LoopJoint, links: dict[str, LinkInfo]) -> JointInfo:
    """The joint between frames on two links. A link that is part of the world becomes the parent, whichever it is in the file."""
    ends = []
    for name, origin in zip(loop.links, (loop.origin, loop.child_origin), strict=True):
        link = links[name]
        ends.append((link.body, link.rotation @ origin[:3, :3], link.position + link.rotation @ origin[:3, 3]))
    if ends[0][0] == ends[1][0]:
        where = "the world" if ends[0][0] is None else f"body {ends[0][0]!r}"
        raise ValueError(f"{tree.path}: loop joint {loop.name!r} joins links that are both part of {where}; remove it")
    axis = loop.axis
    if ends[1][0] is None:
        ends.reverse()
        axis = -axis  # so that the coordinate keeps its sign
    (parent, parent_axes, parent_anchor), (child, child_axes, child_anchor) = ends
    assert child is not None
    return JointInfo(
        name=loop.name,
        kind=JOINT_TYPES[loop.joint_type],
        parent=parent,
        child=child,
        parent_anchor=parent_anchor,
        child_anchor=child_anchor,
        rotation=parent_axes @ child_axes.T,
        # Our joint frame has the axes of the child's body at coordinate zero.
        axis=child_axes @ axis,
        options=_joint_options(loop, loop.joint_type),
    )


def _topmost(tree: _Tree, merge_fixed_joints: bool) -> dict[str, str]:
    """Link -> topmost link of the body that it becomes part of."""
    fixed = [name for name in tree.order[1:] if tree.joint_above[name].joint_type == "fixed"]
    if merge_fixed_joints:
        merged = set(fixed)
    else:
        # a frame without mass joins the link that it is fixed to; where none is above it, the first one fixed below it
        merged = {name for name in fixed if name in tree.massless}
        for link in tree.order:
            if link in tree.massless and link not in merged:
                group = _members_below(tree, link, merged)
                below = [name for name in fixed if name not in merged and tree.joint_above[name].parent in group]
                merged.update(below[:1])
    top: dict[str, str] = {}
    for name in tree.order:
        top[name] = top[tree.joint_above[name].parent] if name in merged else name
    return top


def _members_below(tree: _Tree, link: str, merged: set[str]) -> set[str]:
    members = {link}
    for name in tree.order:
        if name in merged and tree.joint_above[name].parent in members:
            members.add(name)
    return members


def _poses_in_groups(tree: _Tree, top: dict[str, str]) -> dict[str, Pose]:
    """Pose of every link in the frame of its topmost link."""
    poses: dict[str, Pose] = {}
    for name in tree.order:
        if top[name] == name:
            poses[name] = np.eye(3), np.zeros(3)
        else:
            joint = tree.joint_above[name]
            poses[name] = _compose_pose(poses[joint.parent], joint.origin)
    return poses


def _compose_pose(pose: Pose, origin: Array) -> Pose:
    return pose[0] @ origin[:3, :3], pose[1] + pose[0] @ origin[:3, 3]


def _compose(tree: _Tree, name: str, links: tuple[str, ...], poses: dict[str, Pose], rim_points: int, repair_inertia: bool) -> BodyInfo:
    """Add up mass, centre of mass and inertia (parallel axis theorem) of links fixed to each other, and collect their shapes."""
    parts = []
    for link in links:
        if link not in tree.massless:
            inertial = tree.links[link].inertial
            axes, position = _compose_pose(poses[link], inertial.origin)
            parts.append((inertial.mass, position, axes @ inertial.inertia @ axes.T))
    mass = float(sum(part[0] for part in parts))
    center = np.sum([part[0] * part[1] for part in parts], axis=0) / mass
    inertia = np.zeros((3, 3))
    for part_mass, position, part_inertia in parts:
        offset = position - center
        inertia += part_inertia + part_mass * (offset @ offset * np.eye(3) - np.outer(offset, offset))
    inertia = (inertia + inertia.T) / 2.0  # rounding
    if repair_inertia:
        repaired = _nearest_possible_inertia(inertia)
        if repaired is not inertia:
            before, after = (np.array2string(np.linalg.eigvalsh(matrix), precision=6) for matrix in (inertia, repaired))
            warnings.warn(f"{tree.path}: inertia of {name!r} repaired: principal moments {before} -> {after} kg m^2", stacklevel=4)
            inertia = repaired
    shapes, points = [], []
    for link in links:
        for number, collision in enumerate(tree.links[link].collisions):
            rotation, position = _compose_pose(poses[link], collision.origin)
            if collision.geometry.sphere is not None and collision.geometry.sphere.radius == 0.0:
                points.append((link, position - center, 0.0))  # how files mark a bare contact point (the feet of atlas.urdf)
                continue
            try:
                shape = _shape(collision.geometry, rotation, position - center, rim_points, (link, number) in tree.capsules)
            except ValueError as error:
                raise ValueError(f"{tree.path}: collision geometry of link {link!r}: {error}") from error
            shapes.append(shape)
            places, radius = shape.contact_points()
            points += [(link, place.numpy(), float(radius)) for place in places]
    return BodyInfo(name, links, mass, center, inertia, tuple(shapes), tuple(points))


def _nearest_possible_inertia(inertia: Array) -> Array:
    """The inertia whose second moments of mass, all of which must be positive, are nearest to those of the given matrix.

    The same matrix if a rigid body can have it. The second moments are S = tr(I)/2 - I; a negative one is the triangle inequality violated.
    """
    second = np.trace(inertia) / 2.0 * np.eye(3) - inertia
    moments, axes = np.linalg.eigh(second)
    floor = 1e-6 * moments.max()
    if moments.min() >= 0.0 or floor <= 0.0:
        return inertia
    second = (axes * np.maximum(moments, floor)) @ axes.T
    return np.asarray(np.trace(second) * np.eye(3) - second)


def _shape(geometry: Any, rotation: Array, position: Array, rim_points: int, capsule: bool) -> Shape:
    orientation = from_rotation_matrix(torch.as_tensor(rotation))
    if geometry.box is not None:
        return Box([float(edge) for edge in geometry.box.size], position=position.tolist(), orientation=orientation)
    if geometry.sphere is not None:
        return Sphere(float(geometry.sphere.radius), position=position.tolist(), orientation=orientation)
    cylinder = geometry.cylinder
    if capsule:  # its length is that of the cylindrical part
        return Capsule(float(cylinder.radius), float(cylinder.length), position=position.tolist(), orientation=orientation)
    return Cylinder(
        float(cylinder.radius), float(cylinder.length), rim_points=rim_points, position=position.tolist(), orientation=orientation
    )


def _body_name(tree: _Tree, t: str, links: tuple[str, ...]) -> str:
    """The topmost link's; where that is "world", which joints keep for the world itself, the first link with mass."""
    return t if t != "world" else next((link for link in links if link != "world" and link not in tree.massless), "world_")


def _base_joint(root: str, floating: bool, center: Array, taken: set[str]) -> dict[str, JointInfo]:
    """The joint between the world and the root body: its anchor is the origin of the root link."""
    name = "floating_base" if floating else "fixed_base"
    if name in taken:
        name = f"{root}_{name}"
    kind, options = ("Floating", {"actuated": False}) if floating else ("Fixed", {})
    return {name: JointInfo(name, kind, None, root, np.zeros(3), -center, np.eye(3), np.array([0.0, 0.0, 1.0]), options)}


def _joint_options(joint: Any, kind: str) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if kind == "fixed":
        return options
    if kind == "floating":
        options["actuated"] = False
    if joint.dynamics is not None:
        options["damper"] = float(joint.dynamics.damping or 0.0)
        options["friction"] = float(joint.dynamics.friction or 0.0)
    if joint.limit is not None:
        bounds = float(joint.limit.lower or 0.0), float(joint.limit.upper or 0.0)
        if kind in ("revolute", "prismatic") and np.isfinite(bounds).any():
            options["limits"] = bounds
        for keyword, value in (("effort_limit", joint.limit.effort), ("velocity_limit", joint.limit.velocity)):
            if np.isfinite(value):
                options[keyword] = float(value)
    return options


def _massless_message(tree: _Tree, t: str, links: tuple[str, ...]) -> str:
    names = f"link {t!r}" if len(links) == 1 else f"the links {', '.join(repr(link) for link in links)} (fixed to each other)"
    if t == tree.root:
        how = f"{names} at the root would have to move"
        remedy = "give it an <inertial>, or pass floating_base=False to make it part of the world"
    else:
        how = f"{names} would have to move on joint {tree.joint_above[t].name!r} ({tree.kind(tree.joint_above[t])})"
        remedy = "give it an <inertial> with a positive mass, or fix it to a link that has one"
    return f"{tree.path}: {how} but has no mass; {remedy}"
