"""Build a `Mechanism` from a URDF file."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from torchdojo.elements import joints
from torchdojo.elements.bodies import Body
from torchdojo.elements.contacts import Contact, NonlinearContact
from torchdojo.elements.couplings import JointCoupling
from torchdojo.io.urdf_description import Array, LinkInfo, RobotInfo, read_urdf
from torchdojo.io.urdf_xml import clean_name
from torchdojo.mechanism import Mechanism
from torchdojo.quaternion import from_rotation_matrix
from torchdojo.state.loops import gaps

__all__ = ["load_urdf"]

DRAWN_CLOSED = 1e-6  # [m, rad] files round their numbers


def load_urdf(
    path: str | Path,
    *,
    timestep: float = 0.01,
    gravity: Any = (0.0, 0.0, -9.81),
    floating_base: bool = True,
    contacts: str | Mapping[str, Any] | None = "collision",
    friction: float = 0.5,
    merge_fixed_joints: bool = True,
    ignore: Sequence[str] = (),
    rim_points: int = 4,
    repair_inertia: bool = False,
) -> Mechanism:
    """Build a mechanism from a URDF file, standard or in the dialect of the original Dojo (parsed by `urchin`).

    Frames: a body has the axes of its topmost link's frame and its origin at its centre of mass. At coordinate zero every joint has the
    pose that the file draws. Names keep their spelling except that "." becomes "_". Joints are in tree order: a parent before its
    children, children as in the file, the base first.

    Joint types: revolute and continuous -> Revolute, prismatic -> Prismatic, fixed -> merged or Fixed, floating -> Floating (not
    actuated), planar -> PlanarAxis (two translations perpendicular to the axis and a rotation about it); of the dialect, ball ->
    Spherical, orbital -> Orbital, and planaraxis, planarfree, cylindrical, cylindricalfree, fixedorientation. ``damping`` becomes
    ``damper`` [N s/m, N m s/rad]; ``friction`` [N, N m] and the limits [m, rad] (a missing one of the two is 0, as URDF has it; both
    missing: none) act; ``effort_limit`` [N, N m] and ``velocity_limit`` [m/s, rad/s] are kept on the joint. A joint whose two limits are
    equal is read as fixed there, with a warning. Visual geometry, materials, transmissions, safety controllers, simulator tags and
    elements with a namespace are ignored; mesh collision geometry is skipped and unknown elements are ignored with a warning that names
    them. The length of the dialect's ``<capsule radius length>`` is that of its cylindrical part. Files in the dialect may leave out
    limits and repeat elements (the first one is read), with a warning.

    A ``<mimic joint multiplier offset>`` becomes a `JointCoupling` of the follower's name, and the follower is not actuated. A
    ``<loop_joint name type>`` with ``<link1 link xyz rpy>`` and ``<link2 link xyz rpy>``, a frame on either link, becomes a joint whose
    frames coincide at its coordinate zero: it closes a loop, and comes after the others. Where loops are open with all coordinates at
    zero a warning says by how much, and ``mech.initial_state()`` closes them.

    Args:
        path: the file.
        timestep: [s].
        gravity: (3,) [m/s^2], world frame.
        floating_base: True: the root moves freely, on a `Floating` joint ``floating_base`` whose coordinate is the pose of the root
            link's frame. False: the root link, and with `merge_fixed_joints` all that is fixed to it, is part of the world: no body, no
            contact, and its frame is the world's. Without `merge_fixed_joints` a root with mass is a body on a `Fixed` joint
            ``fixed_base``. (Should the file use that name: ``<root>_floating_base``, ``<root>_fixed_base``.) A root link named
            "world" does not weld the robot by itself: floating_base=True warns of it.
        contacts: "collision": every collision shape touches the ground z = 0 with a `NonlinearContact` at each of its contact points,
            named ``<link>_<i>``; except on bodies whose height no joint can change, which a warning names. None or an empty mapping: no
            contact. A mapping from names: exactly these, each a contact module (its ``body`` a body, its point in that body's frame),
            or a mapping with ``link``, ``point`` (3,) in the frame of that link [m] and further keywords of `NonlinearContact`, which
            works for merged links too.
        friction: coefficient of the contacts made here.
        merge_fixed_joints: links fixed to each other become one body, named after the topmost, masses and inertias composed. False:
            `Fixed` joints instead; frames without mass are merged all the same.
        ignore: names of mimic joints to load as independent joints.
        rim_points: contact points on each rim of a cylinder.
        repair_inertia: replace an inertia that no rigid body can have (a triangle inequality violated) by the nearest possible one, with
            a warning that gives both, instead of raising.

    Raises:
        ImportError: `urchin` is not installed.
        FileNotFoundError: there is no such file.
        ValueError: malformed or unsupported content, a moving link without mass, an impossible mass or inertia, unknown names, loops that
            cannot be closed; the message names the file and the element.
    """
    if isinstance(contacts, str) and contacts != "collision":
        raise ValueError(f"contacts is {contacts!r}; allowed: 'collision', None, or a mapping from names to contacts")
    robot = read_urdf(
        path,
        floating_base=floating_base,
        merge_fixed_joints=merge_fixed_joints,
        ignore=ignore,
        rim_points=rim_points,
        repair_inertia=repair_inertia,
    )
    if contacts == "collision":
        modules = _collision_contacts(robot, friction)
    else:
        assert contacts is None or isinstance(contacts, Mapping)
        modules = {name: given_contact(robot, name, value, friction) for name, value in (contacts or {}).items()}
    mech = Mechanism(
        bodies=_bodies(robot),
        joints=standard_joints(robot),
        contacts=modules,
        couplings=joint_couplings(robot),
        timestep=timestep,
        gravity=gravity,
    )
    _check_loops(robot, mech)
    return mech


def _bodies(robot: RobotInfo) -> dict[str, Body]:
    bodies = {}
    for name, info in robot.bodies.items():
        try:
            bodies[name] = Body(mass=info.mass, inertia=torch.as_tensor(info.inertia), shape=info.shapes or None)
        except ValueError as error:
            links = f"link {name!r}" if len(info.links) == 1 else f"the links {', '.join(map(repr, info.links))} fixed to each other"
            raise ValueError(
                f"{robot.path}: {links}: {error}. Correct the file, or pass repair_inertia=True to use the nearest possible inertia"
            ) from error
    return bodies


def standard_joints(robot: RobotInfo) -> dict[str, joints.StandardJoint]:
    modules = {}
    for name, info in robot.joints.items():
        try:
            modules[name] = getattr(joints, info.kind)(
                info.parent,
                info.child,
                axis=info.axis.tolist(),
                parent_anchor=info.parent_anchor.tolist(),
                child_anchor=info.child_anchor.tolist(),
                orientation_offset=from_rotation_matrix(torch.as_tensor(info.rotation)),
                **info.options,
            )
        except ValueError as error:
            raise ValueError(f"{robot.path}: joint {name!r}: {error}") from error
    return modules


def joint_couplings(robot: RobotInfo) -> dict[str, JointCoupling]:
    return {
        name: JointCoupling(
            info.leader,
            info.follower,
            ratio=info.ratio,
            offset=info.offset,
            leader_coordinate=info.leader_coordinate,
            follower_coordinate=info.follower_coordinate,
        )
        for name, info in robot.couplings.items()
    }


def _check_loops(robot: RobotInfo, mech: Mechanism) -> None:
    """Warn of loops that are open at coordinate zero.

    Raises:
        ValueError: they cannot be closed from there.
    """
    if len(mech.tree_joints) == len(mech.joints):
        return
    try:
        z = mech.initial_state()
    except ValueError as error:
        raise ValueError(f"{robot.path}: {error}") from error
    drawn = mech.to_maximal(torch.zeros_like(mech.to_minimal(z)[0]))
    open_by = [f"{name} by {m:.3g} m and {rad:.3g} rad" for name, (m, rad) in gaps(mech, drawn).items() if max(m, rad) > DRAWN_CLOSED]
    if open_by:
        warnings.warn(
            f"{robot.path}: with all coordinates at zero, loops are open: {', '.join(open_by)}. mech.initial_state() closes them, and "
            "its coordinates are not zero",
            stacklevel=3,
        )


def _collision_contacts(robot: RobotInfo, friction: float) -> dict[str, Contact]:
    modules: dict[str, Contact] = {}
    level = _bodies_of_constant_height(robot)
    dropped = [body for body in level if robot.bodies[body].contact_points]
    if dropped:
        warnings.warn(
            f"{robot.path}: no ground contact for {', '.join(map(repr, dropped))}: no joint can change the height of its points, so it "
            "can neither reach the ground nor leave it; to have such contacts all the same, give them in contacts=",
            stacklevel=3,
        )
    for body, info in robot.bodies.items():
        if body in level:
            continue
        count = dict.fromkeys(info.links, 0)
        for link, point, radius in info.contact_points:
            modules[f"{link}_{count[link]}"] = NonlinearContact(body, point=point.tolist(), radius=radius, friction=friction)
            count[link] += 1
    return modules


def _bodies_of_constant_height(robot: RobotInfo) -> list[str]:
    """Bodies that can only turn about the vertical and slide in a horizontal plane, as the first link of most robot arms.

    A contact there has a constant distance: where it is negative (the link reaches into the pedestal that z = 0 cuts off) no step exists.
    """
    frames: dict[str | None, Array] = {None: np.eye(3)}  # at coordinate zero; the vertical in it is the same at every other
    for joint in robot.joints.values():
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
    return [body for body in robot.bodies if body in frames]


def given_contact(robot: RobotInfo, name: str, value: Any, friction: float) -> Any:
    if not isinstance(value, Mapping):
        body = getattr(value, "body", None)
        if body is not None and body not in robot.bodies:
            where = _describe(robot.links[body]) if body in robot.links else f"bodies: {', '.join(map(repr, robot.bodies))}"
            raise ValueError(f"contact {name!r} is on {body!r}, which is no body of {robot.path}; {where}")
        return value
    keywords = {"friction": friction, **value}
    link = robot.links.get(clean_name(str(keywords.pop("link", ""))))
    if link is None:
        raise ValueError(
            f"contact {name!r} has the link {value.get('link')!r}, which is not in {robot.path}; links: {', '.join(map(repr, robot.links))}"
        )
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
    if link.body is None:
        return f"link {link.name!r} is part of the world"
    return f"link {link.name!r} is part of body {link.body!r}: name that body, or give a mapping with link= and point= in the link's frame"
