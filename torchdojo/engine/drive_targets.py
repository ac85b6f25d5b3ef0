"""The targets of drives: checks, and transmissions of drives on sites, cranks and bodies at a state."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

from torchdojo import quaternion as quat
from torchdojo.elements.contact import Contact
from torchdojo.elements.joint import FreePose
from torchdojo.elements.joints import StandardJoint
from torchdojo.elements.near_contact import NearContact
from torchdojo.elements.tendon_paths import Frame
from torchdojo.elements.transmissions import (
    JointFrame,
    Moving,
    Touching,
    Transmission,
    adhesion,
    at_site,
    between_sites,
    distance_to_axis,
    floating,
    slider_crank,
    turn_of_joint,
)
from torchdojo.engine.drive_tables import numbers_of
from torchdojo.engine.near_gaps import terms_at
from torchdojo.geometry.near_terms import REACH
from torchdojo.parameters import as_tensor, require, transforming, warn_user
from torchdojo.state.minimal import tree_joints

__all__ = [
    "FRAMES",
    "carrier_of",
    "check_frames",
    "check_target",
    "contacts_of",
    "frames_of",
    "joint_frames",
    "on_coordinate",
    "pushes",
    "resolved",
    "transmission",
    "warn_of_short_rod",
]

TARGETS = "joint", "tendon", "site", "crank", "body"
#: Fields of `td.Drive` that are frames on bodies: of a site, and of the crank with its slider.
FRAMES = ("site", "reference", "crank", "slider")
AXES = "child", "parent"


def frames_of(drive: Any) -> list[Frame]:
    """The frames of a drive whose names are resolved; none of a joint, a tendon or None."""
    return [] if drive is None else [frame for name in FRAMES if (frame := getattr(drive, name)) is not None]


def on_coordinate(drive: Any) -> bool:
    """Whether a drive acts on one coordinate of a joint."""
    return drive is not None and bool(drive.joint) and drive.axes is None


def pushes(drive: Any) -> bool:
    """Whether a drive acts by wrenches."""
    return drive is not None and not (on_coordinate(drive) or drive.tendon)


def joint_frames(mech: Any, drive: Any) -> tuple[JointFrame, JointFrame]:
    """The frames of the joint of a drive, on its parent and on its child, as they are now."""
    joint = mech.named_joints()[drive.joint]
    turn = quat.normalize(joint.orientation_offset)
    return JointFrame(joint.parent, joint.parent_anchor, turn), JointFrame(joint.child, joint.child_anchor, quat.identity())


def check_frames(drive: Any) -> None:
    """Raise unless a drive has one target, with all that belongs to it and nothing else.

    Raises:
        ValueError: nothing or several things to drive, a reference without a site, parts of a crank that lack others, a rod that is
            not positive.
    """
    targets = [name for name in TARGETS if getattr(drive, name) is not None]
    if len(targets) != 1:
        raise ValueError(f"Drive: got {' and '.join(targets) or 'nothing'} to drive; allowed: one of joint=, tendon=, site=, crank=, body=")
    if drive.reference is not None and drive.site is None:
        raise ValueError(f"Drive: got a reference for a {targets[0]}; allowed: for a site, Drive(site=..., reference=...)")
    for name in ("slider", "rod"):
        if (getattr(drive, name) is None) != (drive.crank is None):
            got = f"{name}={getattr(drive, name)!r} for a {targets[0]}"
            raise ValueError(f"Drive: got {got}; allowed: all of them or none, Drive(crank=..., slider=..., rod=length)")
    if drive.axes is not None and (drive.axes not in AXES or drive.joint is None or drive.coordinate):
        target = f"a {targets[0]}" if drive.joint is None else f"coordinate {drive.coordinate} of a joint"
        raise ValueError(
            f"Drive: got axes={drive.axes!r} for {target}; allowed: {' or '.join(map(repr, AXES))}, for the whole turn of a joint, "
            "Drive(joint=..., axes=..., gear=(x, y, z))"
        )
    reach = as_tensor(drive.reach, "Drive reach")
    require(torch.isfinite(reach) & (reach > 0), "Drive reach", reach, "finite gaps above zero [m], below which contacts pull")
    if drive.crank is not None:
        rod = as_tensor(drive.rod, "Drive rod")
        require(torch.isfinite(rod) & (rod > 0), "Drive rod", rod, "finite lengths above zero [m], from the crank to the slider")


def resolved(mech: Any, name: str, drive: Any) -> Any:
    """The drive with sites in the place of names of `mech.sites`.

    Raises:
        ValueError: unknown sites.
    """
    named = {field: value for field in FRAMES if isinstance(value := getattr(drive, field), str)}
    for field, value in named.items():
        if value not in mech.sites:
            raise ValueError(
                f"drive {name!r}: got the {field} {value!r}; sites are {list(mech.sites)}; add it, mech.sites[{value!r}] = td.Site(...)"
            )
    return dataclasses.replace(drive, **{field: mech.sites[value] for field, value in named.items()}) if named else drive


def check_target(mech: Any, name: str, drive: Any) -> None:
    """Raise unless the mechanism has what a drive acts on.

    Raises:
        ValueError: unknown joints, coordinates, tendons and bodies, those without an input, frames that do not move, a
            site without six numbers for its gear.
    """
    for kind, target in (("joint", drive.joint), ("tendon", drive.tendon)):
        if target is None:
            continue
        if target not in getattr(mech, f"{kind}s"):
            raise ValueError(f"drive {name!r}: got the {kind} {target!r}; {kind}s are {list(getattr(mech, f'{kind}s'))}")
        if kind == "joint" and drive.axes is not None:
            _check_turns(mech, name, drive)
            continue
        if target not in mech.input_layout:
            raise ValueError(
                f"drive {name!r}: the {kind} {target!r} has no input; allowed: {list(mech.input_layout)}; build it actuated=True"
            )
    if on_coordinate(drive) and drive.joint not in mech.coordinate_places():
        raise ValueError(f"drive {name!r}: the joint {drive.joint!r} closes a loop; allowed: {list(mech.coordinate_places())}")
    if on_coordinate(drive) and drive.coordinate not in range(mech.joints[drive.joint].num_coordinates):
        raise ValueError(
            f"drive {name!r}: got coordinate {drive.coordinate}; {drive.joint!r} has {mech.joints[drive.joint].num_coordinates}"
        )
    if drive.body is not None:
        _check_body(mech, name, drive.body, numbers_of(drive.reach))
    frames = frames_of(drive)
    for frame in frames:
        if frame.body not in mech.bodies and (frame.body is not None or len(frames) == 1):
            raise ValueError(f"drive {name!r}: got a site on {frame.body!r}; bodies are {list(mech.bodies)}")
    if drive.site is not None and numbers_of(drive.gear).shape[-1:] != (6,):
        got = tuple(numbers_of(drive.gear).shape)
        raise ValueError(f"drive {name!r}: got a gear of shape {got} for a site; allowed: (..., 6), a force and a torque in its axes")
    if len(frames) == 2 and frames[0].body == frames[1].body:
        raise ValueError(
            f"drive {name!r}: got two sites on {frames[0].body!r}, which do not move relative to each other; allowed: two bodies"
        )


def _check_turns(mech: Any, name: str, drive: Any) -> None:
    """Raise unless a joint has three rotations and the gear three numbers, or the joint floats in the world and the gear has six."""
    joint, gear = mech.joints[drive.joint], numbers_of(drive.gear)
    floats = isinstance(joint, StandardJoint) and joint.num_coordinates == 6 and joint.parent is None
    if not isinstance(joint, StandardJoint) or joint.free_rotations != 3:
        turning = [label for label, other in mech.joints.items() if isinstance(other, StandardJoint) and other.free_rotations == 3]
        got = f"axes={drive.axes!r} for the joint {drive.joint!r}, {type(joint).__name__}"
        raise ValueError(f"drive {name!r}: got {got}; allowed: joints with three rotations, {turning}; leave out axes= for a coordinate")
    if gear.shape[-1:] not in ((3,), (6,)) or (gear.shape[-1] == 6 and not floats):
        allowed = "(..., 3), a torque, or (..., 6), a force and a torque" if floats else "(..., 3), a torque"
        got = f"a gear of shape {tuple(gear.shape)} for the joint {drive.joint!r}"
        raise ValueError(f"drive {name!r}: got {got} with axes={drive.axes!r}; allowed: {allowed}")


def _check_body(mech: Any, name: str, body: str, reach: Tensor) -> None:
    """Raise unless a body has contacts, and the reach is one within which near contacts have places."""
    if body not in mech.bodies:
        raise ValueError(f"drive {name!r}: got the body {body!r}; bodies are {list(mech.bodies)}")
    contacts = contacts_of(mech, body)
    if not contacts:
        touching = [other for other in mech.bodies if contacts_of(mech, other)]
        raise ValueError(f"drive {name!r}: got the body {body!r}, which has no contacts; allowed: {touching}; give it contacts")
    near = [label for label, contact in contacts.items() if isinstance(contact, NearContact)]
    if near and float(reach.max()) > REACH:
        got = f"reach={float(reach.max()):g} m for the body {body!r} with near contacts, {near[:3]}"
        raise ValueError(f"drive {name!r}: got {got}; allowed: up to {REACH:g}, within which these have places")


def contacts_of(mech: Any, body: str) -> dict[str, Contact]:
    """The contacts of a body, by name."""
    return {name: contact for name, contact in mech.named_contacts().items() if body in contact.body_names}


def carrier_of(mech: Any, drive: Any) -> str | None:
    """The nearest body from which joints with coordinates lead to both sites, which may have one of them; None: the world."""
    joints = tree_joints(mech.named_joints()).values()
    parents: dict[str | None, str | None] = {joint.child: joint.parent for joint in joints if not isinstance(joint, FreePose)}
    first, second, chain = drive.site.body, drive.reference.body, []
    while first is not None:
        chain.append(first)
        first = parents.get(first)
    while second is not None and second not in chain:
        second = parents.get(second)
    return cast(str | None, second)


def transmission(mech: Any, z: Tensor, drive: Any) -> tuple[Transmission, Tensor]:
    """The transmission of a drive that acts by wrenches at the state z (..., 13 nb), and its velocity (...)."""
    states, gear = _states(mech, z), numbers_of(drive.gear)
    if drive.joint is not None:
        parent, child = joint_frames(mech, drive)
        in_child = drive.axes == "child"
        result = turn_of_joint(parent, child, gear, in_child, states) if gear.shape[-1] == 3 else floating(child, gear, in_child, states)
    elif drive.crank is not None:
        result = slider_crank(drive.crank, drive.slider, numbers_of(drive.rod), gear, states)
    elif drive.reference is not None:
        result = between_sites(drive.site, drive.reference, carrier_of(mech, drive), gear, states)
    elif drive.body is not None:
        result = adhesion(_touching(mech, z, drive.body), numbers_of(drive.reach), gear, states)
    else:
        result = at_site(drive.site, gear, states)
    return result, result.velocity(states)


def _touching(mech: Any, z: Tensor, body: str) -> list[Touching]:
    """The contacts of a body at a state, near ones at the places that are near there."""
    result = []
    with terms_at(mech.backends, mech.options, z, always=True):
        for contact in contacts_of(mech, body).values():
            poses = mech.element_poses(z, contact)
            gap, normal, arm = contact._witness(tuple(poses))
            result.append(Touching(contact.body, contact.other, gap, normal, poses[0].x + arm))
    return result


def _states(mech: Any, z: Tensor) -> Callable[[str | None], Moving]:
    return lambda body: Moving() if body is None else Moving(*mech.body_state(z, body))


@torch.no_grad()
def warn_of_short_rod(mech: Any, name: str, drive: Any) -> None:
    """Warn where the rod of a crank does not reach the axis of the slider with all coordinates at zero."""
    if drive.crank is None or transforming() or not mech.coordinate_places():
        return
    z = mech.to_maximal(torch.zeros(mech.num_coordinates, dtype=torch.float64))
    rod, distance = float(numbers_of(drive.rod).min()), float(distance_to_axis(drive.crank, drive.slider, _states(mech, z)))
    if distance >= rod:
        warn_user(
            f"drive {name!r}: got a rod of {rod:g} m, with the crank {distance:g} m from the axis of the slider at coordinates zero; "
            "where the rod is too short, the length is that of the foot of the crank on the axis, as in MuJoCo; a longer rod= mends it"
        )
