"""Robots from tables of links: capsules and balls in MuJoCo's terms become bodies, hinges become joints, ends of capsules contacts.

Mass, center of mass and inertia of a link follow from its geoms. Two or three hinges of one link are one `Orbital` or `Spherical` joint,
along whose axes the body's frame lies.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchdojo import quaternion as quat
from torchdojo.elements import joints as joint_types
from torchdojo.elements.bodies import Body
from torchdojo.elements.contacts import Contact, NonlinearContact
from torchdojo.elements.element import orthonormal_complement, unit
from torchdojo.elements.joints import Joint, StandardJoint
from torchdojo.geometry import shapes
from torchdojo.mechanism import Mechanism
from torchdojo.models.built_in import add_motors

__all__ = ["ORIGIN", "Geom", "Hinge", "Link", "Options", "Vector", "build_links", "total_volume"]

Vector = tuple[float, float, float]
ORIGIN = (0.0, 0.0, 0.0)


class Geom(NamedTuple):
    """A capsule from `start` to `end` [m], frame of its link, with balls of `radius` [m] at both; a ball when they coincide.

    friction: of its contacts, where the model's keyword is None.
    """

    name: str
    start: Vector
    end: Vector
    radius: float
    foot: bool = False
    friction: float = 1.0


class Hinge(NamedTuple):
    """axis: frame of the link that it moves. limits [rad], infinite for none; torque: largest one, gear times control range [N·m];
    damper [N·m·s/rad]; spring [N·m/rad], relaxed at zero; armature [kg·m²]."""

    name: str
    axis: Vector
    limits: tuple[float, float]
    torque: float
    damper: float
    spring: float = 0.0
    armature: float = 0.0


class Link(NamedTuple):
    """A link of a robot. Without a parent it is the root, or, where it has hinges, it hangs on the world.

    position, orientation: of its frame in the parent's frame with all coordinates zero, [m] and wxyz.
    anchor: place of its hinges in its own frame [m].
    """

    name: str
    parent: str | None
    position: Vector
    hinges: tuple[Hinge, ...]
    geoms: tuple[Geom, ...]
    anchor: Vector = ORIGIN
    orientation: tuple[float, float, float, float] = (1.0, 0.0, 0.0, 0.0)


class Options(NamedTuple):
    """The keywords of the models."""

    timestep: float
    gravity: Any
    friction: Any = None
    spring: Any = None
    damper: Any = None
    limits: bool = True
    armature: bool = True
    contact: bool = True
    contact_body: bool = True


class _Placed(NamedTuple):
    """A link's frame against its body's: center of mass (3,) [m] in the link frame, and the rotation (4,) of body axes to link axes."""

    center: Tensor
    turn: Tensor

    def to_body(self, point: Tensor) -> Tensor:
        return quat.inverse_rotate(self.turn, point - self.center)


WORLD = _Placed(torch.zeros(3, dtype=torch.float64), quat.identity())


def total_volume(links: Sequence[Link]) -> float:
    """Volume of all geoms [m³]."""
    return sum(float(_shape(geom).volume) for link in links for geom in link.geoms)


def build_links(
    links: Sequence[Link], density: float, options: Options, normal: Vector | None = None, root_armature: float = 0.0
) -> Mechanism:
    """The mechanism of a table.

    Args:
        density: of all geoms [kg/m³].
        normal: of the plane in which the root moves; None: it is free. (0, -1, 0) makes the root's coordinates x, z and a turn about -y,
            (0, 0, 1) makes them x, y and a turn about z.
        root_armature: on each coordinate of a root that moves in a plane [kg, kg·m²].
    """
    bodies: dict[str, Body] = {}
    joints: dict[str, Joint] = {}
    contacts: dict[str, Contact] = {}
    placed: dict[str, _Placed] = {}
    motors: dict[str, list[str]] = {}
    balls: dict[str, list[tuple[Tensor, float]]] = {}  # that have a contact: center in the link frame, radius
    for link in links:
        bodies[link.name], place = _body(link, density)
        placed[link.name] = place
        if link.hinges:
            joint_name, joint = _joint(link, WORLD if link.parent is None else placed[link.parent], place, options)
            joints[joint_name] = joint
            motors[joint_name] = [hinge.name for hinge in link.hinges]
        elif normal is None:
            joints["root"] = joint_types.Floating(None, link.name, child_anchor=place.to_body(_vector(ORIGIN)), actuated=False)
        else:
            anchor, armature = place.to_body(_vector(ORIGIN)), root_armature if options.armature else 0.0
            joints["root"] = joint_types.PlanarAxis(None, link.name, axis=normal, child_anchor=anchor, armature=armature, actuated=False)
        balls[link.name] = []
        for contact, point, geom in _balls(link, balls):
            balls[link.name].append((point, geom.radius))
            if options.contact and (geom.foot or options.contact_body):
                friction = geom.friction if options.friction is None else options.friction
                contacts[contact] = NonlinearContact(link.name, point=place.to_body(point), radius=geom.radius, friction=friction)
    return add_motors(Mechanism(bodies, joints, contacts, timestep=options.timestep, gravity=options.gravity), motors)


def _body(link: Link, density: float) -> tuple[Body, _Placed]:
    """The link's geoms as one body: masses add up, moments of inertia too once moved to the common center of mass."""
    masses = [density * _shape(geom).volume for geom in link.geoms]
    mass = torch.stack(masses).sum()
    centers = [0.5 * (_vector(geom.start) + _vector(geom.end)) for geom in link.geoms]
    center = torch.stack([m * c for m, c in zip(masses, centers, strict=True)]).sum(0) / mass
    turn = quat.from_rotation_matrix(_hinge_axes(link).mT) if len(link.hinges) > 1 else quat.identity()
    placed = _Placed(center, turn)
    parts = [_shape(geom, placed) for geom in link.geoms]
    inertia = torch.zeros(3, 3, dtype=torch.float64)
    for m, part in zip(masses, parts, strict=True):
        p = part.position
        inertia = inertia + part.inertia(m) + m * (p.dot(p) * torch.eye(3, dtype=torch.float64) - torch.outer(p, p))
    return Body(mass, inertia, shape=parts), placed


def _joint(link: Link, parent: _Placed, here: _Placed, options: Options) -> tuple[str, StandardJoint]:
    hinges = link.hinges
    kind = (joint_types.Revolute, joint_types.Orbital, joint_types.Spherical)[len(hinges) - 1]
    turn = quat.normalize(torch.tensor(link.orientation, dtype=torch.float64))
    anchor = _vector(link.anchor)
    limits = tuple(zip(*(hinge.limits for hinge in hinges), strict=True))
    limited = options.limits and any(math.isfinite(bound) for side in limits for bound in side)
    name = hinges[0].name if len(hinges) == 1 else hinges[0].name[:-1].rstrip("_")  # "left_hip_x", "left_hip_y", ... -> "left_hip"
    return name, kind(
        link.parent,
        link.name,
        axis=hinges[0].axis if len(hinges) == 1 else (0.0, 0.0, 1.0),
        parent_anchor=parent.to_body(_vector(link.position) + quat.rotate(turn, anchor)),
        child_anchor=here.to_body(anchor),
        orientation_offset=quat.multiply(quat.conjugate(parent.turn), quat.multiply(turn, here.turn)),
        spring=[hinge.spring for hinge in hinges] if options.spring is None else options.spring,
        damper=[hinge.damper for hinge in hinges] if options.damper is None else options.damper,
        limits=limits if limited else None,  # type: ignore[arg-type]
        armature=[hinge.armature for hinge in hinges] if options.armature else 0.0,
        effort_limit=[hinge.torque for hinge in hinges],
    )


def _hinge_axes(link: Link) -> Tensor:
    """The axes of two or three hinges, and of the third direction, as rows of a rotation, (3, 3)."""
    rows = [unit(_vector(hinge.axis)) for hinge in link.hinges]
    return torch.stack((rows[0], rows[1], quat.cross(rows[0], rows[1])))


def _balls(link: Link, kept: dict[str, list[tuple[Tensor, float]]]) -> list[tuple[str, Tensor, Geom]]:
    """Contacts of a link: name, center in the link frame [m], geom."""
    turn = quat.normalize(torch.tensor(link.orientation, dtype=torch.float64))
    balls: list[tuple[str, Tensor, Geom]] = []
    for geom in link.geoms:
        ends = {"": geom.start} if geom.start == geom.end else {"_start": geom.start, "_end": geom.end}
        for suffix, end in ends.items():
            others = [(p, other.radius) for _, p, other in balls]
            if link.parent is not None and end == link.anchor:
                inward = [(quat.inverse_rotate(turn, p - _vector(link.position)), r) for p, r in kept[link.parent]]
                others += [(p, r) for p, r in inward if float((p - _vector(end)).norm()) <= 1e-12]
            if not any(float((p - _vector(end)).norm()) + geom.radius <= r + 1e-12 for p, r in others):
                balls.append((f"{geom.name}{suffix}", _vector(end), geom))
    return balls


def _shape(geom: Geom, placed: _Placed | None = None) -> shapes.Sphere | shapes.Capsule:
    """In the frame of the body, or, not placed, anywhere."""
    start, end = _vector(geom.start), _vector(geom.end)
    position = quat.identity()[1:] if placed is None else placed.to_body(0.5 * (start + end))
    if geom.start == geom.end:
        return shapes.Sphere(geom.radius, position=position)
    along = unit(end - start)
    orientation = quat.from_rotation_matrix(torch.cat((orthonormal_complement(along), along[None])).mT)
    if placed is not None:
        orientation = quat.multiply(quat.conjugate(placed.turn), orientation)
    return shapes.Capsule(geom.radius, torch.linalg.vector_norm(end - start), position=position, orientation=orientation)


def _vector(value: Vector) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)
