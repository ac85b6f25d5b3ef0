"""A URDF robot as plain numbers: fixed links merged into bodies, masses and inertias composed, joints placed from centers of mass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch

from torchdojo.geometry.shapes import Box, Capsule, Cylinder, Shape, Sphere
from torchdojo.io.coupled import CouplingInfo
from torchdojo.io.meshes import Folders, MeshMode, MeshReader
from torchdojo.io.pairs import PairInfo
from torchdojo.io.pieces import cut_mesh
from torchdojo.io.report import Findings
from torchdojo.io.robot import (
    FRICTION,
    Z_AXIS,
    Array,
    BodyInfo,
    ContactInfo,
    Ground,
    JointInfo,
    LinkInfo,
    Pose,
    RobotInfo,
    bodies_on_ground,
    closing_joint,
    compose,
    composed_inertia,
    poses_in_groups,
    positive_inertia,
    possible_inertia,
)
from torchdojo.io.urdf.parse import JOINT_TYPES, Collision, ParsedUrdf, UrdfJoint, parse_urdf
from torchdojo.io.urdf.srdf import read_srdf
from torchdojo.io.urdf.surfaces import Surface, laws_between
from torchdojo.io.urdf.tree import FloatingBase, Tree
from torchdojo.io.urdf.visuals import place_visuals
from torchdojo.quaternion import from_rotation_matrix

__all__ = ["read_urdf"]


def read_urdf(
    path: str | Path,
    *,
    floating_base: FloatingBase = "auto",
    merge_fixed_joints: bool = True,
    ignore: Sequence[str] = (),
    rim_points: int = 4,
    repair_inertia: bool = False,
    mesh: MeshMode = None,
    mesh_path: Folders = (),
    mesh_points: int = 16,
    ground: Ground = "auto",
    between: bool = False,
    srdf: str | Path | None = None,
) -> RobotInfo:
    """Describe a URDF robot; arguments, conventions and errors are as in `torchdojo.io.load_urdf`.

    Collision meshes are not read unless `mesh` says so, and `pairs` is empty unless `between` says so.
    """
    parsed = parse_urdf(path)
    tree = Tree(parsed)
    tree.settle_limits()
    couplings = tree.couplings(ignore)
    tree.weld_massless_leaves(couplings)
    groups = tree.groups(merge_fixed_joints)
    world = tree.world(groups, floating_base, merge_fixed_joints)
    tree.give_mass(groups, world)
    top = {name: t for name in tree.order for t, links in groups.items() if name in links}
    names = {t: _body_name(tree, t, groups[t]) for t in groups if t != world}
    poses = poses_in_groups(top, lambda name: (tree.joint_above[name].parent, _pose(tree.joint_above[name].origin)))
    meshes = MeshReader(tree.path, "link", mesh, mesh_path, mesh_points, cut_mesh)
    geometry = _Geometry(parsed, meshes, rim_points)
    bodies, points = {}, {}
    for t, name in names.items():
        mass, center, inertia = _inertia(tree, parsed, name, groups[t], poses, repair_inertia)
        shapes, points[name] = geometry.of_body(groups[t], poses, center)
        visuals = place_visuals(parsed.visuals, groups[t], poses, center, tree.path, mesh_path)
        bodies[name] = BodyInfo(name, groups[t], mass, center, inertia, shapes, visuals)
    links = {}
    for name in tree.order:
        rotation, position = poses[name]
        body = names.get(top[name])
        links[name] = LinkInfo(name, body, position if body is None else position - bodies[body].center, rotation)
    joints = _joints(tree, names, links, couplings)
    if world is None:
        joints = {**_base_joint(names[tree.root], links[tree.root], bool(floating_base), joints), **joints}
    joints |= {loop.name: _loop_joint(tree, loop, links) for loop in tree.loops}
    on_ground, notes = bodies_on_ground(ground, 0, joints), Findings()
    disabled = set() if srdf is None else read_srdf(srdf, list(parsed.inertials), notes)
    touching = {body: points[body] for body in points if body in on_ground}
    contacts = _contacts(joints, touching, parsed.surfaces, notes)
    fixed = groups[world] if world is not None else ()
    pairs: dict[str, PairInfo] = {}
    if between:
        obstacles, _ = geometry.of_body(fixed, poses, np.zeros(3))
        solid = {name: info.shapes for name, info in bodies.items()}
        pairs = _pairs(joints, solid, obstacles, geometry.links, parsed.surfaces, disabled, notes)
    else:
        touch = [f"{a}-{b}" for a, b in combinations([name for name in bodies if bodies[name].shapes], 2)]
        reason = 'only the ground touches bodies; contacts="all" lets bodies touch each other'
        notes.add("ignored", "pairs of bodies with collision geometry", touch, reason, "none")
    meshes.report(notes, "motion" if on_ground or between else "structure")
    scenery = place_visuals(parsed.visuals, fixed, poses, np.zeros(3), tree.path, mesh_path)
    return RobotInfo(tree.path, links, bodies, joints, couplings, contacts, notes.entries(), scenery, findings=tree.findings, pairs=pairs)


# -- joints ------------------------------------------------------------------------------------------------------------------------------


def _joints(
    tree: Tree, names: Mapping[str, str], links: Mapping[str, LinkInfo], couplings: Mapping[str, CouplingInfo]
) -> dict[str, JointInfo]:
    """The joints above the topmost links, `names` of whose bodies are given, in tree order."""
    joints = {}
    for link in tree.order[1:]:
        if link not in names:
            continue
        joint = tree.joint_above[link]
        parent = links[joint.parent]
        rotation, position = parent.place(_pose(joint.origin))
        joints[joint.name] = JointInfo(
            name=joint.name,
            kind=JOINT_TYPES[joint.kind],
            parent=parent.body,
            child=names[link],
            parent_anchor=position,
            child_anchor=links[link].position,
            rotation=rotation,
            axis=joint.axis,
            options=_joint_options(joint) | ({"actuated": False} if joint.name in couplings else {}),
        )
    return joints


def _base_joint(root: str, link: LinkInfo, floating: bool, taken: Mapping[str, JointInfo]) -> dict[str, JointInfo]:
    """The joint between the world and the root body: its anchor is the origin of the root link."""
    name = "floating_base" if floating else "fixed_base"
    if name in taken:
        name = f"{root}_{name}"
    kind, options = ("Floating", {"actuated": False}) if floating else ("Fixed", {})
    return {name: JointInfo(name, kind, None, root, np.zeros(3), link.position, np.eye(3), Z_AXIS, options)}


def _loop_joint(tree: Tree, loop: UrdfJoint, links: Mapping[str, LinkInfo]) -> JointInfo:
    ends = [(links[loop.parent], _pose(loop.origin)), (links[loop.child], _pose(loop.child_origin))]
    joint = closing_joint(loop.name, JOINT_TYPES[loop.kind], ends, loop.axis, _joint_options(loop))
    if joint is None:
        body = ends[0][0].body
        where = "the world" if body is None else f"body {body!r}"
        raise ValueError(f"{tree.path}: loop joint {loop.name!r} joins links that are both part of {where}; remove it")
    return joint


def _joint_options(joint: UrdfJoint) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if joint.kind == "fixed":
        return options
    if joint.kind == "floating":
        options["actuated"] = False
    if joint.damping is not None and joint.friction is not None:
        options |= {"damper": joint.damping, "friction": joint.friction}
    limit = joint.limit
    if limit is not None:
        if joint.kind in ("revolute", "prismatic") and np.isfinite([limit.lower, limit.upper]).any():
            options["limits"] = (limit.lower, limit.upper)
        if np.isfinite(limit.effort):
            options["effort_limit"] = limit.effort
        if joint.kind in ("revolute", "continuous", "prismatic") and 0 < limit.velocity < np.inf:
            options["velocity_limits"] = limit.velocity
    return options


# -- bodies ------------------------------------------------------------------------------------------------------------------------------


def _pose(origin: Array) -> Pose:
    return origin[:3, :3], origin[:3, 3]


def _inertia(
    tree: Tree, parsed: ParsedUrdf, name: str, links: tuple[str, ...], poses: Mapping[str, Pose], repair_inertia: bool
) -> tuple[float, Array, Array]:
    """Mass, center of mass and inertia of links fixed to each other."""
    parts = []
    for link in links:
        inertial = tree.inertials[link]
        if inertial is not None:
            axes, position = compose(poses[link], _pose(inertial.origin))
            scale = parsed.surfaces[link].inertia_scaling if link in parsed.surfaces else 1.0
            parts.append((inertial.mass, position, axes @ (scale * inertial.inertia) @ axes.T))
    mass, center, inertia = composed_inertia(parts)
    inertia = (inertia + inertia.T) / 2.0  # rounding leaves it a little asymmetric
    inertia, change = positive_inertia(inertia, mass)
    tree.findings.add("added", "inertia", [name] if change else (), change)
    if repair_inertia:
        inertia, change = possible_inertia(inertia, mass)
        tree.findings.add("repaired", "inertia", [name] if change else (), change)
    return mass, center, inertia


def _body_name(tree: Tree, t: str, links: tuple[str, ...]) -> str:
    """Name of the topmost link. "world" is kept for the world itself: there it is the name of the first link with mass."""
    return t if t != "world" else next((link for link in links if link != "world" and tree.inertials[link]), "world_")


# -- geometry ----------------------------------------------------------------------------------------------------------------------------

Ball = tuple[str, Array, float]  # link, center (3,) in the body frame [m], radius [m]


class _Geometry:
    """Collision shapes of bodies, and the balls that touch the ground for them."""

    def __init__(self, parsed: ParsedUrdf, meshes: MeshReader, rim_points: int) -> None:
        self.path, self.collisions, self.meshes, self.rim_points = parsed.path, parsed.collisions, meshes, rim_points
        self.links: dict[int, str] = {}  #: id of a shape -> its link

    def of_body(self, links: tuple[str, ...], poses: Mapping[str, Pose], center: Array) -> tuple[tuple[Shape, ...], list[Ball]]:
        """Shapes and balls of links fixed to each other, in the frame of their body."""
        shapes: list[Shape] = []
        points: list[Ball] = []
        for link in links:
            for collision in self.collisions[link]:
                rotation, position = compose(poses[link], _pose(collision.origin))
                if collision.kind == "sphere" and collision.size == (0.0,):
                    points.append((link, position - center, 0.0))  # files mark bare contact points like this: the feet of atlas.urdf
                    continue
                pose = {"position": (position - center).tolist(), "orientation": from_rotation_matrix(torch.as_tensor(rotation))}
                shape: Shape | None
                if collision.mesh is not None:
                    shape = self.meshes.hull(collision.mesh, link, **pose)
                else:
                    shape = self._shape(collision, link, pose)
                if shape is None:
                    continue
                shapes.append(shape)
                self.links[id(shape)] = link
                places, radius = shape.contact_points()
                points += [(link, place, float(radius)) for place in places.numpy()]
        return tuple(shapes), points

    def _shape(self, collision: Collision, link: str, pose: dict[str, Any]) -> Shape:
        size = collision.size
        try:
            if collision.kind == "box":
                return Box(list(size), **pose)
            if collision.kind == "sphere":
                return Sphere(*size, **pose)
            if collision.kind == "capsule":  # its length counts the cylindrical part alone
                return Capsule(*size, **pose)
            return Cylinder(*size, rim_points=self.rim_points, **pose)
        except ValueError as error:
            raise ValueError(f"{self.path}: collision geometry of link {link!r}: {error}") from error


def _contacts(
    joints: Mapping[str, JointInfo], points: Mapping[str, list[Ball]], surfaces: Mapping[str, Surface], notes: Findings
) -> dict[str, ContactInfo]:
    """Contacts of the points with the ground, numbered link by link."""
    level = _bodies_of_constant_height(joints)
    contacts: dict[str, ContactInfo] = {}
    plain = Surface()
    for body in points:
        count: dict[str, int] = {}
        for link, point, radius in points[body] if body not in level else ():
            count[link] = count.get(link, -1) + 1
            surface = surfaces.get(link, plain)
            friction = FRICTION if surface.friction is None else surface.friction
            contacts[f"{link}_{count[link]}"] = ContactInfo(body, point, radius, friction, options=surface.options)
    reason = "no joint can change the height of its points, so no ground contact is made; contacts= can give some all the same"
    notes.add("ignored", "collision geometry", [body for body in points if body in level and points[body]], reason, "structure")
    return contacts


def _pairs(
    joints: Mapping[str, JointInfo],
    shapes: Mapping[str, Sequence[Shape]],
    obstacles: Sequence[Shape],
    links: Mapping[int, str],
    surfaces: Mapping[str, Surface],
    disabled: set[frozenset[str]],
    notes: Findings,
) -> dict[str, PairInfo]:
    """The shapes of every body with those of all others, and of the world, but for bodies that a joint connects.

    Args:
        shapes: by body. obstacles: of the world. links: id of a shape -> its link. disabled: pairs of links that do not touch.
    """
    neighbors = {frozenset((joint.parent, joint.child)) for joint in joints.values() if joint.kind != "Floating"}
    solids: list[tuple[str | None, Shape]] = [(body, shape) for body, several in shapes.items() for shape in several]
    solids += [(None, shape) for shape in obstacles]
    number: dict[str, int] = {}
    labels = []
    for _, shape in solids:
        link = links[id(shape)]
        number[link] = number.get(link, -1) + 1
        labels.append(f"{link}_{number[link]}")
    result, left = {}, []
    for (i, (body, shape)), (j, (other, its_shape)) in combinations(enumerate(solids), 2):
        if body is None or body == other or frozenset((body, other)) in neighbors:
            continue
        if frozenset((links[id(shape)], links[id(its_shape)])) in disabled:
            left.append(f"{links[id(shape)]}-{links[id(its_shape)]}")
            continue
        both = [surfaces.get(links[id(one)], Surface()) for one in (shape, its_shape)]
        coefficients = [surface.friction for surface in both if surface.friction is not None]
        friction = float(np.prod(coefficients)) if coefficients else FRICTION  # Bullet's product
        laws = laws_between(*both, default=FRICTION)
        result[f"{labels[i]}_{labels[j]}"] = PairInfo(body, shape, other, its_shape, friction, laws, links[id(its_shape)])
    notes.add("used", "<disable_collisions>", dict.fromkeys(left), "the SRDF says that these links do not touch", "none")
    return result


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
