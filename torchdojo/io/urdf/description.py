"""A URDF robot as plain numbers: fixed links merged into bodies, masses and inertias composed, joints placed from centers of mass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from torchdojo.elements.joints import JOINT_TYPES as JOINT_CLASSES
from torchdojo.geometry.shapes import Box, Capsule, Cylinder, Shape, Sphere
from torchdojo.io.meshes import Folders, MeshMode, MeshReader
from torchdojo.io.report import Findings
from torchdojo.io.robot import (
    Z_AXIS,
    Array,
    BodyInfo,
    ContactInfo,
    CouplingInfo,
    Ground,
    JointInfo,
    LinkInfo,
    Pose,
    RobotInfo,
    bodies_on_ground,
    clean_name,
    closing_joint,
    compose,
    composed_inertia,
    poses_in_groups,
    possible_inertia,
)
from torchdojo.io.urdf.parse import JOINT_TYPES, LoopJoint, ParsedUrdf, parse_urdf
from torchdojo.io.urdf.visuals import place_visuals
from torchdojo.quaternion import exp, from_rotation_matrix, rotation_matrix

__all__ = ["read_urdf"]


def read_urdf(
    path: str | Path,
    *,
    floating_base: bool = True,
    merge_fixed_joints: bool = True,
    ignore: Sequence[str] = (),
    rim_points: int = 4,
    repair_inertia: bool = False,
    mesh: MeshMode = None,
    mesh_path: Folders = (),
    mesh_points: int = 16,
    ground: Ground = "auto",
) -> RobotInfo:
    """Describe a URDF robot; arguments, conventions and errors are as in `torchdojo.io.load_urdf`.

    Collision meshes are not read unless `mesh` says so.
    """
    parsed = parse_urdf(path)
    tree = _Tree(parsed)
    tree.lock_joints_without_range()
    couplings = _couplings(tree, ignore)
    for note in parsed.notes:
        tree.findings.add("ignored", "content", "", note)
    top = _topmost(tree, merge_fixed_joints)
    groups = {t: tuple(name for name in tree.order if top[name] == t) for t in dict.fromkeys(top.values())}
    world = _world(tree, groups, floating_base, merge_fixed_joints)
    names = {t: _body_name(tree, t, groups[t]) for t in groups if t != world}
    if floating_base and tree.root == "world":
        reason = "floating_base=True lets it move, though it is fixed to the root link 'world'; floating_base=False keeps it in place"
        tree.findings.add("approximated", "fixed base", names["world"], reason)
    poses = poses_in_groups(top, lambda name: (tree.joint_above[name].parent, _pose(tree.joint_above[name])))
    meshes = MeshReader(tree.path, "link", mesh, mesh_path, mesh_points)
    bodies, points = {}, {}
    for t, name in names.items():
        mass, center, inertia = _inertia(tree, name, groups[t], poses, repair_inertia)
        shapes, points[name] = _geometry(tree, meshes, groups[t], poses, center, rim_points)
        visuals = place_visuals(parsed.visuals, groups[t], poses, center, tree.path, mesh_path)
        bodies[name] = BodyInfo(name, groups[t], mass, center, inertia, shapes, visuals)
    links = {}
    for name in tree.order:
        rotation, position = poses[name]
        body = names.get(top[name])
        links[name] = LinkInfo(name, body, position if body is None else position - bodies[body].center, rotation)
    joints = _joints(tree, names, links, couplings)
    if world is None:
        joints = {**_base_joint(names[tree.root], links[tree.root], floating_base, joints), **joints}
    joints |= {loop.name: _loop_joint(tree, loop, links) for loop in tree.loops}
    on_ground, notes = bodies_on_ground(ground, 0, joints), Findings()
    contacts = _contacts(joints, {body: points[body] for body in points if body in on_ground}, notes)
    meshes.report(notes)
    fixed = groups[world] if world is not None else ()
    scenery = place_visuals(parsed.visuals, fixed, poses, np.zeros(3), tree.path, mesh_path)
    return RobotInfo(tree.path, links, bodies, joints, couplings, contacts, notes.entries(), scenery, findings=tree.findings)


class _Tree:
    """The links and joints of a parsed file in depth-first order."""

    def __init__(self, parsed: ParsedUrdf) -> None:
        self.path, self.massless, self.findings = parsed.path, parsed.massless, Findings()
        self.loops, self.capsules, self.meshes, self._kinds = parsed.loops, parsed.capsules, parsed.meshes, parsed.kinds
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
        """Type of the joint in the file, or "fixed" where its range is empty."""
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
                reason = f"lower and upper limit are both {value:g}: read as fixed there"
                self.findings.add("approximated", f"{joint.joint_type} joint", joint.name, reason, "structure")
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


def _world(tree: _Tree, groups: Mapping[str, tuple[str, ...]], floating_base: bool, merge_fixed_joints: bool) -> str | None:
    """The root where it is the world itself: nothing keeps it a body of its own.

    Raises:
        ValueError: a group that has to move has no mass, or no group moves.
    """
    massless = {t for t, names in groups.items() if all(name in tree.massless for name in names)}
    world = tree.root if not floating_base and (merge_fixed_joints or tree.root in massless) else None
    for t in groups:
        if t in massless and t != world:
            raise ValueError(_massless_message(tree, t, groups[t]))
    if world is not None and len(groups) == 1:
        raise ValueError(f"{tree.path}: with floating_base=False every link is fixed to the world; pass floating_base=True")
    return world


# -- joints ------------------------------------------------------------------------------------------------------------------------------


def _joints(
    tree: _Tree, names: Mapping[str, str], links: Mapping[str, LinkInfo], couplings: Mapping[str, CouplingInfo]
) -> dict[str, JointInfo]:
    """The joints above the topmost links, `names` of whose bodies are given, in tree order."""
    joints = {}
    for link in tree.order[1:]:
        if link not in names:
            continue
        joint = tree.joint_above[link]
        parent, options = links[joint.parent], _joint_options(joint, tree.kind(joint))
        rotation, position = parent.place(_pose(joint))
        joints[joint.name] = JointInfo(
            name=joint.name,
            kind=JOINT_TYPES[tree.kind(joint)],
            parent=parent.body,
            child=names[link],
            parent_anchor=position,
            child_anchor=links[link].position,
            rotation=rotation,
            axis=np.array(joint.axis, dtype=np.float64),
            options=options | ({"actuated": False} if joint.name in couplings else {}),
        )
    return joints


def _base_joint(root: str, link: LinkInfo, floating: bool, taken: Mapping[str, JointInfo]) -> dict[str, JointInfo]:
    """The joint between the world and the root body: its anchor is the origin of the root link."""
    name = "floating_base" if floating else "fixed_base"
    if name in taken:
        name = f"{root}_{name}"
    kind, options = ("Floating", {"actuated": False}) if floating else ("Fixed", {})
    return {name: JointInfo(name, kind, None, root, np.zeros(3), link.position, np.eye(3), Z_AXIS, options)}


def _loop_joint(tree: _Tree, loop: LoopJoint, links: Mapping[str, LinkInfo]) -> JointInfo:
    ends = [(links[name], (pose[:3, :3], pose[:3, 3])) for name, pose in zip(loop.links, (loop.origin, loop.child_origin), strict=True)]
    joint = closing_joint(loop.name, JOINT_TYPES[loop.joint_type], ends, loop.axis, _joint_options(loop, loop.joint_type))
    if joint is None:
        body = ends[0][0].body
        where = "the world" if body is None else f"body {body!r}"
        raise ValueError(f"{tree.path}: loop joint {loop.name!r} joins links that are both part of {where}; remove it")
    return joint


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
        if np.isfinite(joint.limit.effort):
            options["effort_limit"] = float(joint.limit.effort)
        if kind in ("revolute", "continuous", "prismatic") and 0 < joint.limit.velocity < np.inf:  # exporters write 0 where none is known
            options["velocity_limits"] = float(joint.limit.velocity)
    return options


# -- bodies ------------------------------------------------------------------------------------------------------------------------------


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


def _pose(element: Any) -> Pose:
    """The ``<origin>`` of a parsed element."""
    return element.origin[:3, :3], element.origin[:3, 3]


def _inertia(tree: _Tree, name: str, links: tuple[str, ...], poses: Mapping[str, Pose], repair_inertia: bool) -> tuple[float, Array, Array]:
    """Mass, center of mass and inertia of links fixed to each other."""
    parts = []
    for link in links:
        if link not in tree.massless:
            inertial = tree.links[link].inertial
            axes, position = compose(poses[link], _pose(inertial))
            parts.append((inertial.mass, position, axes @ inertial.inertia @ axes.T))
    mass, center, inertia = composed_inertia(parts)
    inertia = (inertia + inertia.T) / 2.0  # rounding leaves it a little asymmetric
    if repair_inertia:
        inertia, change = possible_inertia(inertia)
        tree.findings.add("repaired", "inertia", [name] if change else (), change)
    return mass, center, inertia


def _body_name(tree: _Tree, t: str, links: tuple[str, ...]) -> str:
    """Name of the topmost link. "world" is kept for the world itself: there it is the name of the first link with mass."""
    return t if t != "world" else next((link for link in links if link != "world" and link not in tree.massless), "world_")


def _massless_message(tree: _Tree, t: str, links: tuple[str, ...]) -> str:
    names = f"link {t!r}" if len(links) == 1 else f"the links {', '.join(repr(link) for link in links)} (fixed to each other)"
    if t == tree.root:
        problem = f"{names} at the root would have to move"
        remedy = "give it an <inertial>, or pass floating_base=False to make it part of the world"
    else:
        problem = f"{names} would have to move on joint {tree.joint_above[t].name!r} ({tree.kind(tree.joint_above[t])})"
        remedy = "give it an <inertial> with a positive mass, or fix it to a link that has one"
    return f"{tree.path}: {problem} but has no mass; {remedy}"


# -- geometry ----------------------------------------------------------------------------------------------------------------------------

Ball = tuple[str, Array, float]  # link, center (3,) in the body frame [m], radius [m]


def _geometry(
    tree: _Tree, meshes: MeshReader, links: tuple[str, ...], poses: Mapping[str, Pose], center: Array, rim_points: int
) -> tuple[tuple[Shape, ...], list[Ball]]:
    """Collision shapes of a body, and the balls that touch the ground for them."""
    shapes: list[Shape] = []
    points: list[Ball] = []
    for link in links:
        for number, collision in enumerate(tree.links[link].collisions):
            rotation, position = compose(poses[link], _pose(collision))
            if collision.geometry.sphere is not None and collision.geometry.sphere.radius == 0.0:
                points.append((link, position - center, 0.0))  # files mark bare contact points like this: the feet of atlas.urdf
                continue
            pose = {"position": (position - center).tolist(), "orientation": from_rotation_matrix(torch.as_tensor(rotation))}
            shape: Shape | None
            if (link, number) in tree.meshes:
                shape = meshes.hull(tree.meshes[link, number], link, **pose)
            else:
                try:
                    shape = _shape(collision.geometry, pose, rim_points, (link, number) in tree.capsules)
                except ValueError as error:
                    raise ValueError(f"{tree.path}: collision geometry of link {link!r}: {error}") from error
            if shape is None:
                continue
            shapes.append(shape)
            places, radius = shape.contact_points()
            points += [(link, place.numpy(), float(radius)) for place in places]
    return tuple(shapes), points


def _shape(geometry: Any, pose: dict[str, Any], rim_points: int, capsule: bool) -> Shape:
    if geometry.box is not None:
        return Box([float(edge) for edge in geometry.box.size], **pose)
    if geometry.sphere is not None:
        return Sphere(float(geometry.sphere.radius), **pose)
    radius, length = float(geometry.cylinder.radius), float(geometry.cylinder.length)
    if capsule:  # `length` counts the cylindrical part alone
        return Capsule(radius, length, **pose)
    return Cylinder(radius, length, rim_points=rim_points, **pose)


def _contacts(joints: Mapping[str, JointInfo], points: Mapping[str, list[Ball]], notes: Findings) -> dict[str, ContactInfo]:
    """Contacts of the points with the ground, numbered link by link."""
    level = _bodies_of_constant_height(joints)
    contacts: dict[str, ContactInfo] = {}
    for body in points:
        count: dict[str, int] = {}
        for link, point, radius in points[body] if body not in level else ():
            count[link] = count.get(link, -1) + 1
            contacts[f"{link}_{count[link]}"] = ContactInfo(body, point, radius)
    reason = "no joint can change the height of its points, so no ground contact is made; contacts= can give some all the same"
    notes.add("ignored", "collision geometry", [body for body in points if body in level and points[body]], reason, "structure")
    return contacts


def _bodies_of_constant_height(joints: Mapping[str, JointInfo]) -> set[str]:
    """Bodies that can only turn about the vertical and slide in a horizontal plane, such as the first link of most robot arms.

    A contact there has a constant distance: where it is negative (the link reaches into the pedestal that z = 0 cuts off) no step exists.
    """
    frames: dict[str | None, Array] = {None: np.eye(3)}  # at coordinate zero; the vertical in it is the same at every other
    for joint in joints.values():
        if joint.parent not in frames:
            continue
        frame = frames[joint.parent] @ joint.rotation
        rise = abs(float((frame @ joint.axis)[2]))  # 1 for a vertical axis
        if (
            joint.kind == "Fixed"
            or (joint.kind in ("Revolute", "PlanarAxis") and rise > 1.0 - 1e-9)
            or (joint.kind == "Prismatic" and rise < 1e-9)
        ):
            frames[joint.child] = frame
    return {body for body in frames if body is not None}
