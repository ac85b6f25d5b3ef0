"""A robot as plain numbers, whatever file it comes from, and the `Mechanism` that it describes.

A reader (`torchdojo.io.urdf`, `torchdojo.io.mjcf`) merges fixed links into bodies, places joints from centers of mass and fills a
`RobotInfo`; `assemble` turns that into modules. A reader imports from here, never from another reader.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from torchdojo.elements import joints
from torchdojo.elements.bodies import Body
from torchdojo.elements.contacts import Contact, ImpactContact, NonlinearContact
from torchdojo.elements.couplings import infeasible
from torchdojo.elements.joint import TURN
from torchdojo.elements.near_rule import Near, NearRule
from torchdojo.geometry.shapes import Shape
from torchdojo.geometry.visuals import Visual
from torchdojo.io.coupled import CouplingInfo, SumInfo, coupling_of
from torchdojo.io.pairs import PairInfo, between_bodies, of_geometry, pair_contacts
from torchdojo.io.report import Findings, LoadEntry, LoadReport
from torchdojo.io.starts import contacts_at_the_start
from torchdojo.mechanism import Mechanism
from torchdojo.parameters import one_by_one
from torchdojo.quaternion import from_rotation_matrix
from torchdojo.state.stiffness import STIFF, stiff_springs
from torchdojo.structure import Structure

__all__ = [
    "BodyInfo",
    "ContactInfo",
    "CouplingInfo",
    "Ground",
    "JointInfo",
    "LinkInfo",
    "RobotInfo",
    "SumInfo",
    "assemble",
    "bodies_on_ground",
]

Array = NDArray[np.float64]
Pose = tuple[Array, Array]  # (3, 3) rotation and (3,) position [m]
Key = TypeVar("Key", bound=Hashable)
Ground = bool | Literal["auto"]
Z_AXIS = np.array([0.0, 0.0, 1.0])
ROUNDED_TURN = 1e-3  # [rad] files write 2π with so many digits
BALL_DENSITY = 1000.0  # [kg/m^3] of water, of which robots float or sink a little
NO_INERTIA = 1e-10  # principal moment, relative to the largest or a ball's, that counts as zero
FRICTION = 0.5  # of contacts to which neither the file nor the caller gives a coefficient


# -- the description ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LinkInfo:
    """A link, the body that it is part of (None: the world), and its pose in the frame of that body (or the world)."""

    name: str
    body: str | None
    position: Array  #: (3,) origin of the link frame, from the body's center of mass [m]
    rotation: Array  #: (3, 3) link frame to body frame

    def place(self, pose: Pose) -> Pose:
        """A pose in the frame of the link, in the frame of its body."""
        return compose((self.rotation, self.position), pose)


WORLD = LinkInfo("world", None, np.zeros(3), np.eye(3))


@dataclass(frozen=True)
class BodyInfo:
    """Links that move as one. The topmost link names the body. The frame has its origin at the center of mass and, unless the reader
    turns it, the axes of the topmost link."""

    name: str
    links: tuple[str, ...]
    mass: float  #: [kg]
    center: Array  #: (3,) center of mass in the frame of the topmost link [m]
    inertia: Array  #: (3, 3) about the center of mass, body axes [kg m^2]
    shapes: tuple[Shape, ...]  #: collision shapes in the body frame
    visuals: tuple[Visual, ...] = ()  #: what the file shows, likewise


@dataclass(frozen=True)
class JointInfo:
    """A joint in the terms of `torchdojo.elements.joints`."""

    name: str
    kind: str  #: class name
    parent: str | None  #: body; None: the world
    child: str
    parent_anchor: Array  #: (3,) in the parent's frame, from its center of mass; in the world frame for parent None [m]
    child_anchor: Array  #: (3,) in the child's frame, from its center of mass [m]
    rotation: Array  #: (3, 3) joint frame to parent frame: the child's orientation at coordinate zero
    axis: Array  #: (3,) unit vector in the joint frame
    options: dict[str, Any] = field(default_factory=dict)  #: further keywords: damper, friction, limits, effort_limit, ...


@dataclass(frozen=True)
class ContactInfo:
    """A ball of a body against a plane of the world, or against the height field that is the option "other_shape"."""

    body: str
    point: Array  #: (3,) center in the frame of the body [m]
    radius: float  #: [m]
    friction: float | None = FRICTION  #: None: a contact without friction
    normal: Array = field(default_factory=Z_AXIS.copy)  #: (3,) unit vector, world frame
    offset: float = 0.0  #: of the plane along its normal [m]
    options: dict[str, Any] = field(default_factory=dict)  #: laws of the contact: restitution, stiffness, torsional_friction, ...


@dataclass(frozen=True)
class RobotInfo:
    """Links, bodies and joints in tree order: a parent before its children, children in the order of the file. Joints that close loops
    come last."""

    path: Path
    links: dict[str, LinkInfo]
    bodies: dict[str, BodyInfo]
    joints: dict[str, JointInfo]
    couplings: Mapping[str, CouplingInfo | SumInfo]
    contacts: dict[str, ContactInfo]  #: of the collision geometry
    contact_notes: tuple[LoadEntry | str, ...]  #: on collision geometry; they count where contacts are made of it
    scenery: tuple[Visual, ...]  #: what the file shows of the world, in the world frame
    findings: Findings = field(default_factory=Findings, kw_only=True)  #: what differs from the file otherwise
    pairs: dict[str, PairInfo] = field(default_factory=dict, kw_only=True)  #: shapes that may touch each other, where they are asked for


# -- what readers share ------------------------------------------------------------------------------------------------------------------


def clean_name(name: str) -> str:
    """A name that ``torch.nn.ModuleDict`` accepts: "." becomes "_", and a name that is one of its attributes gets a "_" at its end."""
    name = name.replace(".", "_")
    return f"{name}_" if hasattr(nn.ModuleDict, name) or name == "training" else name


def listed(names: Iterable[str]) -> str:
    """Names for a message, in quotes."""
    return ", ".join(map(repr, names))


def compose(outer: Pose, inner: Pose) -> Pose:
    """The pose `inner`, which is given in the frame of `outer`, in the frame that `outer` is given in."""
    return outer[0] @ inner[0], outer[1] + outer[0] @ inner[1]


def poses_in_groups(top: Mapping[Key, Key], local: Callable[[Key], tuple[Key, Pose]]) -> dict[Key, Pose]:
    """Pose of every link in the frame of the topmost link of its body.

    Args:
        top: link -> topmost link, parents before children. local: link -> its parent, and its pose in the parent's frame.
    """
    poses: dict[Key, Pose] = {}
    for link, topmost in top.items():
        if link == topmost:
            poses[link] = np.eye(3), np.zeros(3)
        else:
            parent, pose = local(link)
            poses[link] = compose(poses[parent], pose)
    return poses


def composed_inertia(parts: Sequence[tuple[float, Array, Array]]) -> tuple[float, Array, Array]:
    """Mass [kg], center of mass (3,) [m] and inertia about it (3, 3) [kg m^2] of parts fixed to each other (parallel axis theorem).

    Args:
        parts: mass, position of the center of mass, inertia about it, all in the same axes.
    """
    mass = float(sum(part[0] for part in parts))
    center = np.sum([part[0] * part[1] for part in parts], axis=0) / mass
    inertia = np.zeros((3, 3))
    for part_mass, position, part_inertia in parts:
        offset = position - center
        inertia += part_inertia + part_mass * (offset @ offset * np.eye(3) - np.outer(offset, offset))
    return mass, center, inertia


def repaired_inertia(path: Path, name: str, inertia: Array) -> tuple[Array, str]:
    """`possible_inertia`, with a message that names the file and the body."""
    repaired, change = possible_inertia(inertia)
    return repaired, f"{path}: inertia of {name!r} repaired: {change}" if change else ""


def possible_inertia(inertia: Array, mass: float = 0.0) -> tuple[Array, str]:
    """The nearest inertia (3, 3) that a body can have, and what changed, in words: nothing where the given one is possible."""
    repaired = nearest_possible_inertia(inertia, mass)
    if repaired is inertia:
        return inertia, ""
    before, after = (np.array2string(np.linalg.eigvalsh(matrix), precision=6) for matrix in (inertia, repaired))
    size = np.linalg.norm(repaired - inertia) / max(float(np.linalg.norm(inertia)), 1e-300)
    return repaired, f"principal moments {before} -> {after} kg m^2, a change of {100 * size:.2g} %"


def nearest_possible_inertia(inertia: Array, mass: float = 0.0) -> Array:
    """The inertia whose second moments of mass, all of which must be positive, are nearest to the second moments of the given matrix.

    An inertia that a rigid body can have is returned as it is. The second moments are S = tr(I)/2 - I: a negative one violates the triangle
    inequality. Where none is positive, they become those of a ball of that `mass` [kg].
    """
    second = np.trace(inertia) / 2.0 * np.eye(3) - inertia
    moments, axes = np.linalg.eigh(second)
    floor = 1e-6 * moments.max() if moments.max() > 0.0 else ball_inertia(mass) / 2.0
    if moments.min() >= 0.0 or floor <= 0.0:
        return inertia
    second = (axes * np.maximum(moments, floor)) @ axes.T
    return np.asarray(np.trace(second) * np.eye(3) - second)


def positive_inertia(inertia: Array, mass: float) -> tuple[Array, str]:
    """An inertia without principal moments of zero, and what changed, in words: zeros become those of a small ball of that `mass`.

    Files write zero where they know nothing, or for the thin axis of a rod. A step has to divide by it. Negative moments stay.
    """
    moments, ball = np.linalg.eigvalsh(inertia), ball_inertia(mass)
    if abs(moments[0]) > NO_INERTIA * max(moments[2], ball):
        return inertia, ""
    second, axes = np.linalg.eigh(np.trace(inertia) / 2.0 * np.eye(3) - inertia)
    second = (axes * np.where(second < ball / 2.0, ball / 2.0, second)) @ axes.T
    reason = f"a principal moment of zero becomes that of a ball of the same mass and {BALL_DENSITY:g} kg/m^3"
    return np.asarray(np.trace(second) * np.eye(3) - second), reason


def ball_inertia(mass: float) -> float:
    """Moment of inertia of a homogeneous ball of the mass [kg] and 1000 kg/m^3 [kg m^2]."""
    return 0.4 * mass * (3.0 * mass / (4.0 * math.pi * BALL_DENSITY)) ** (2.0 / 3.0)


def closing_joint(name: str, kind: str, ends: Sequence[tuple[LinkInfo, Pose]], axis: Array, options: dict[str, Any]) -> JointInfo | None:
    """The joint between a frame on one link and a frame on another, or None where both links are part of one body.

    A link that is part of the world becomes the parent, whichever end it is. `axis` (3,) is given in the frames, which coincide at
    coordinate zero.
    """
    first, second = ((link.body, *link.place(pose)) for link, pose in ends)
    if first[0] == second[0]:
        return None
    if second[0] is None:
        first, second, axis = second, first, -axis  # so that the coordinate keeps its sign
    (parent, parent_axes, parent_anchor), (child, child_axes, child_anchor) = first, second
    assert child is not None
    # The joint frame has the axes of the child's body at coordinate zero.
    return JointInfo(name, kind, parent, child, parent_anchor, child_anchor, parent_axes @ child_axes.T, child_axes @ axis, options)


def bodies_on_ground(ground: Ground, planes: int, joints: Mapping[str, JointInfo]) -> set[str]:
    """Bodies that touch the ground z = 0, which a file may leave unsaid; the planes of a file are not meant.

    Args:
        ground: "auto": in a file without planes, the bodies of trees that float. True: all of them. False: none.
        planes: number of planes that the file has. joints: in tree order.

    Raises:
        ValueError: an unknown value of `ground`.
    """
    if ground not in ("auto", True, False):
        raise ValueError(f"ground is {ground!r}; allowed: 'auto', True (the plane z = 0) or False (no plane z = 0)")
    if ground is False or (planes and ground == "auto"):
        return set()
    bodies: set[str | None] = set()
    for joint in joints.values():
        if joint.parent in bodies or (joint.parent is None and (ground is True or joint.kind == "Floating")):
            bodies.add(joint.child)
    return {body for body in bodies if body is not None}


# -- assembly ----------------------------------------------------------------------------------------------------------------------------


def assemble(
    robot: RobotInfo,
    *,
    contacts: Any,
    friction: float | None,
    timestep: Any,
    gravity: Any,
    part: str,
    remedy: str,
    ground: Ground = "auto",
    near: Near = "auto",
    slots: int | None = None,
) -> Mechanism:
    """Build the mechanism that a description says, with its `load_report`. `announce` (report.py) then warns of it, or refuses it.

    Args:
        contacts: "collision": the contacts of the description. "all" or a `Filter`: those of its pairs, too. None or a mapping: see
            `torchdojo.io.load_urdf`.
        friction: coefficient of the contacts made here; None: the description's.
        timestep: [s]. gravity: (3,) [m/s^2], world frame.
        part: name of a link in the words of the format. remedy: for an inertia that no body can have.
        ground: False: nobody expects contacts with the ground.
        near, slots: of near contacts, as in `td.combine`.

    Raises:
        ValueError: unknown names, impossible numbers; the message names the file and the element.
    """
    if isinstance(contacts, str) and contacts not in ("collision", "all"):
        raise ValueError(
            f"contacts is {contacts!r}; allowed: 'collision', 'all', td.Filter(...), None, or a mapping from names to contacts"
        )
    rule = NearRule(near, slots)
    notes: tuple[LoadEntry | str, ...] = ()
    if of_geometry(contacts):
        notes = robot.contact_notes
        modules = _contacts(robot.contacts, friction)
    else:
        coefficient = FRICTION if friction is None else friction
        modules = {name: _given_contact(robot, name, value, coefficient) for name, value in (contacts or {}).items()}
    couplings = {name: coupling_of(info) for name, info in robot.couplings.items()}
    moving = {name: _joint(robot, info) for name, info in robot.joints.items()}
    for name, words in infeasible(couplings, moving).items():
        end = couplings[name].ends[-1]
        follower, limits = end.joint, moving[end.joint].limits
        if limits is not None:
            robot.findings.add("ignored", "joint limits", follower, f"its coupling excludes them: {words}")
            moving[follower] = _joint(robot, _without_limit(robot.joints[follower], limits, end.coordinate))
    bodies = {name: _body(robot, info, part, remedy) for name, info in robot.bodies.items()}
    if between_bodies(contacts):
        modules |= pair_contacts(robot.pairs, bodies, moving, contacts, friction, modules, robot.findings, rule)
    start = Findings()
    try:
        _soften(robot, bodies, moving, timestep)

        def build(chosen: Mapping[str, Contact]) -> Mechanism:
            return Mechanism(bodies, moving, chosen, couplings=couplings, timestep=timestep, gravity=gravity)

        mech = build(modules)
        every = isinstance(contacts, str) and contacts == "all"
        free = bodies_on_ground("auto", 0, robot.joints)
        chosen = contacts_at_the_start(mech, free, start, leave=every, widen=every and slots is None)
        if chosen is not None:
            mech = build(chosen)
    except ValueError as error:
        raise ValueError(f"{robot.path}: {error}") from error
    mech.scenery, mech.sites.merged = robot.scenery, {name: link.body for name, link in robot.links.items() if name not in bodies}
    told = [LoadEntry("ignored", "collision geometry", 1, (), note) if isinstance(note, str) else note for note in notes]
    floating = [joint.child for joint in robot.joints.values() if joint.parent is None and joint.kind == "Floating"]
    if floating and of_geometry(contacts) and ground is not False and not mech.contacts:
        reason = "the robot has no contact with the ground and falls; contacts= gives it some, contacts=None says that none are wanted"
        start.add("used", "floating base", floating, reason, "structure")
    mech.load_report = LoadReport(robot.path, (*robot.findings.entries(), *told, *start.entries()))
    return mech


def _soften(robot: RobotInfo, bodies: Mapping[str, Body], moving: Mapping[str, joints.StandardJoint], timestep: Any) -> None:
    """Make springs implicit that are too stiff for the timestep, since their steps would fail."""
    if not any(bool(joint.spring.any()) for joint in moving.values()):
        return
    structure = Structure(bodies, moving, (), (), (), timestep, (0.0, 0.0, 0.0))
    stiff = stiff_springs(structure)
    if not stiff:
        return
    h = float(structure.timestep.max())
    reason = (
        f"made implicit, which dissipates: an explicit spring k of h²k/J up to {max(stiff.values()):.3g} is too stiff for h = {h:.4g} s, "
        f"J being the inertia that it turns; up to {STIFF} none is changed, as with timestep={h * (STIFF / max(stiff.values())) ** 0.5:.2g}"
    )
    robot.findings.add("approximated", "joint springs", stiff, reason, "structure")
    del structure
    for name in stiff:
        moving[name].implicit = True


def _body(robot: RobotInfo, info: BodyInfo, part: str, remedy: str) -> Body:
    try:
        return Body(mass=info.mass, inertia=torch.as_tensor(info.inertia), shape=info.shapes or None, visuals=info.visuals)
    except ValueError as error:
        names = f"{part} {info.name!r}" if len(info.links) == 1 else f"the {part}s {listed(info.links)} fixed to each other"
        raise ValueError(f"{robot.path}: {names}: {error}. {remedy}") from error


def _joint(robot: RobotInfo, info: JointInfo) -> joints.StandardJoint:
    kind: type[joints.StandardJoint] = getattr(joints, info.kind)
    options = dict(info.options)
    if kind.free_rotations == 1 and "limits" in options:
        options["limits"] = tuple(_rounded_turn(bound) for bound in options["limits"])
    try:
        return kind(
            info.parent,
            info.child,
            axis=info.axis.tolist(),
            parent_anchor=info.parent_anchor.tolist(),
            child_anchor=info.child_anchor.tolist(),
            orientation_offset=from_rotation_matrix(torch.as_tensor(info.rotation)),
            **options,
        )
    except ValueError as error:
        raise ValueError(f"{robot.path}: joint {info.name!r}: {error}") from error


def _without_limit(info: JointInfo, limits: tuple[torch.Tensor, torch.Tensor], coordinate: int) -> JointInfo:
    """The joint without the limits of one of its coordinates."""
    options = {key: value for key, value in info.options.items() if key != "limits"}
    lower, upper = (bound.clone() for bound in limits)
    lower[coordinate], upper[coordinate] = -torch.inf, torch.inf
    if bool(torch.isfinite(torch.cat((lower, upper))).any()):
        options["limits"] = (lower.tolist(), upper.tolist())
    return replace(info, options=options)


def _rounded_turn(bounds: Any) -> Any:
    """Bounds whose last one, of an angle, is exactly ±2π where the file rounds it."""
    array = np.array(bounds, dtype=np.float64)
    last = array[..., -1:] if array.ndim else array
    np.copyto(last, np.copysign(TURN, last), where=np.abs(np.abs(last) - TURN) < ROUNDED_TURN)
    return array.tolist()


def _contacts(infos: Mapping[str, ContactInfo], friction: float | None) -> dict[str, Contact]:
    """Contacts with the same keywords are built as one batch, whose numbers are checked at once: files have thousands."""
    groups: dict[tuple[Any, ...], list[str]] = {}
    for name, info in infos.items():
        groups.setdefault((info.body, info.friction is None, *sorted(info.options)), []).append(name)
    built: dict[str, Contact] = {}
    for names in groups.values():
        several = [infos[name] for name in names]
        try:
            if friction is not None and not isinstance(friction, (int, float)):
                raise TypeError("a tensor of the user's, which contacts share")
            built |= zip(names, one_by_one(_contact(_together(several, friction), None)), strict=True)
        except (TypeError, ValueError):  # contacts with more than numbers are built by themselves, and wrong ones are refused so
            built |= {name: _contact(info, friction) for name, info in zip(names, several, strict=True)}
    return {name: built[name] for name in infos}


def _together(infos: Sequence[ContactInfo], friction: float | None) -> ContactInfo:
    """The contacts of one body as one, whose numbers have a batch dimension."""

    def stack(values: Sequence[Any]) -> Any:
        return torch.as_tensor(np.array(values, dtype=np.float64))

    one = infos[0]
    options = {key: stack([info.options[key] for info in infos]) for key in one.options}
    numbers = {key: stack([getattr(info, key) for info in infos]) for key in ("point", "radius", "normal", "offset")}
    coefficients = None if one.friction is None else stack([info.friction if friction is None else friction for info in infos])
    return replace(one, friction=coefficients, options=options, **numbers)


def _contact(info: ContactInfo, friction: float | None) -> Contact:
    place: dict[str, Any] = {"point": info.point.tolist(), "radius": info.radius}
    if "other_shape" not in info.options:
        place |= {"normal": info.normal.tolist(), "offset": info.offset}
    if info.friction is None:
        return ImpactContact(info.body, **place, **info.options)
    return NonlinearContact(info.body, friction=info.friction if friction is None else friction, **place, **info.options)


def _given_contact(robot: RobotInfo, name: str, value: Any, friction: float) -> Any:
    """A contact that the caller of a reader gives: a module, or a mapping with a link and a point in its frame."""
    if not isinstance(value, Mapping):
        body = getattr(value, "body", None)
        if body is not None and body not in robot.bodies:
            where = _describe(robot.links[body]) if body in robot.links else f"bodies: {listed(robot.bodies)}"
            raise ValueError(f"contact {name!r} is on {body!r}, which is no body of {robot.path}; {where}")
        return value
    keywords = {"friction": friction, **value}
    link = robot.links.get(clean_name(str(keywords.pop("link", ""))))
    if link is None:
        raise ValueError(f"contact {name!r} has the link {value.get('link')!r}, which is not in {robot.path}; links: {listed(robot.links)}")
    if link.body is None:
        raise ValueError(f"contact {name!r}: {_describe(link)} and cannot touch anything; remove it, or pass floating_base=True")
    point = [float(number) for number in keywords.pop("point", (0.0, 0.0, 0.0))]
    if len(point) != 3 or not all(math.isfinite(number) for number in point):
        raise ValueError(f"contact {name!r} has the point {point}; allowed: three finite numbers [m] in the frame of link {link.name!r}")
    try:
        return NonlinearContact(link.body, point=(link.position + link.rotation @ point).tolist(), **keywords)
    except (TypeError, ValueError) as error:
        raise ValueError(f"contact {name!r}: {error}") from error


def _describe(link: LinkInfo) -> str:
    part = f"body {link.body!r}: name that body, or give a mapping with link= and point= in the link's frame"
    return f"link {link.name!r} is part of {'the world' if link.body is None else part}"
