"""A mechanism as an MJCF file: its bodies, joints, contacts with planes of the world, and numbers of joints. Motors are not written.

The frame of a body is that of `Body`, at its center of mass, so that states need no conversion. A joint with one rotation has the
coordinates of its hinge. Two or three rotations become hinges one after another, whose angles are the rotation vector to first order.

| here | in the file |
|---|---|
| `Floating` to the world | `<freejoint>` |
| free translations, then free rotations | `<joint type="slide">`, `<joint type="hinge">` |
| limits, damper, armature, friction, spring, rest | `range`, `damping`, `armature`, `frictionloss`, `stiffness`, `springref` |
| a sphere or point against a half-space of the world | `<geom type="sphere">`, 1 mm for a point, and `<geom type="plane">` |
| sites and sensors | `<site>` and `<sensor>` (`write_sensors.py`) |

Velocity limits, restitution and compliance have no counterpart.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from xml.etree import ElementTree

import torch
from torch import Tensor

from torchdojo import quaternion as quat
from torchdojo.elements.bodies import Body
from torchdojo.elements.contact import Contact
from torchdojo.elements.joints import StandardJoint
from torchdojo.io.mjcf.write_sensors import write_sensors
from torchdojo.mechanism import Mechanism
from torchdojo.state.layout import split_state

__all__ = ["coordinate_names", "write_mjcf"]

POINT = 1e-3  # radius of a point in MuJoCo, which has none without [m]
TIMESTEP = 0.002  # MuJoCo's own default [s]
HARD = {"solref": f"{2 * TIMESTEP:g} 1", "solimp": "0.95 0.99 0.001"}  # contacts as hard as this timestep allows, critically damped


def coordinate_names(mech: Mechanism, joint: str) -> list[str]:
    """A name in the file for each free coordinate of a joint: that of the joint, or where it has several, of the motors, or numbers."""
    element, motors = mech.named_joints()[joint], mech.actuators
    count = element.num_coordinates if isinstance(element, StandardJoint) else 0
    if count == 1:
        return [joint]
    named = {} if motors is None else dict(zip(zip(motors.joints, motors.coordinates, strict=True), motors.names, strict=True))
    return [named.get((joint, i), f"{joint}_{i}") for i in range(count)]


@torch.no_grad()
def write_mjcf(mech: Mechanism, name: str = "robot") -> tuple[str, list[str]]:
    """The text of an MJCF file, and what is left out: contacts between bodies, and with surfaces other than planes; "sensors.NAME".

    Raises:
        ValueError: loops, couplings, joints of the user's own, a free joint between two bodies, parameters of several environments.
    """
    _check(mech)
    pose, _ = split_state(mech.to_maximal(torch.zeros(mech.num_coordinates, dtype=torch.float64)))
    bodies, above = list(mech.bodies), {str(joint.body_names[-1]): key for key, joint in mech.named_joints().items()}
    root = ElementTree.Element("mujoco", model=name)
    ElementTree.SubElement(root, "compiler", angle="radian", autolimits="true")
    # Menagerie's choice for legged robots: the exact cone, and friction that does not creep
    option: dict[str, Any] = {"cone": "elliptic", "impratio": "100", "integrator": "implicitfast"}
    ElementTree.SubElement(root, "option", timestep=str(TIMESTEP), gravity=_text(mech.gravity), **option)
    world = ElementTree.SubElement(root, "worldbody")
    elements: dict[str | None, ElementTree.Element] = {None: world}
    for entry in mech.tree_order():  # parents before children
        joint = mech.named_joints()[entry.name]
        parent, child = joint.body_names[0], str(joint.body_names[-1])
        i = bodies.index(child)
        place, turn = pose.x[i], pose.q[i]
        if parent is not None:
            j = bodies.index(parent)
            place, turn = quat.inverse_rotate(pose.q[j], place - pose.x[j]), quat.multiply(quat.conjugate(pose.q[j]), turn)
        body = ElementTree.SubElement(elements[parent], "body", name=child, pos=_text(place), quat=_text(turn))
        elements[child] = body
        solid = mech.bodies[child]
        assert isinstance(solid, Body)
        inertia = solid.inertia[[0, 1, 2, 0, 0, 1], [0, 1, 2, 1, 2, 2]]
        ElementTree.SubElement(body, "inertial", pos="0 0 0", mass=_text(solid.mass), fullinertia=_text(inertia))
        assert isinstance(joint, StandardJoint)
        body.extend(_joints(mech, above[child], joint))
    left_out, planes = list[str](), dict[tuple[float, ...], str]()
    for key, contact in mech.named_contacts().items():
        if not _with_a_plane(contact):
            left_out.append(key)
            continue
        friction = getattr(contact, "friction", torch.zeros(()))
        size = str(max(float(contact.radius), POINT))
        collides: dict[str, Any] = {
            "contype": "1",
            "conaffinity": "0",
            "condim": "3",
            "friction": f"{float(friction):.9g} 0.005 0.0001",
            **HARD,
        }
        ElementTree.SubElement(elements[contact.body], "geom", name=key, type="sphere", pos=_text(contact.point), size=size, **collides)
        normal = torch.nn.functional.normalize(contact.normal, dim=-1)
        planes.setdefault((*normal.tolist(), float(contact.offset)), f"plane_{len(planes)}")
    for (*direction, offset), key in planes.items():
        spot = _text(offset * torch.tensor(direction, dtype=torch.float64))
        axis = _text(torch.tensor(direction, dtype=torch.float64))
        # MuJoCo takes the larger one of two frictions: that of the sphere
        surface: dict[str, Any] = {"contype": "0", "conaffinity": "1", "condim": "3", "friction": "0 0.005 0.0001", **HARD}
        ElementTree.SubElement(world, "geom", name=key, type="plane", size="0 0 1", pos=spot, zaxis=axis, **surface)
    left_out += [f"sensors.{key}" for key in write_sensors(mech, root, elements)]
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode") + "\n", left_out


def _check(mech: Mechanism) -> None:
    wrong = [name for name, joint in mech.named_joints().items() if not isinstance(joint, StandardJoint)]
    free = [name for name, joint in mech.named_joints().items() if joint.body_names[0] is not None and _is_free(joint)]
    batched = [name for name, value in mech.named_parameters() if value.ndim and name != "timestep" and _varies(mech, name)]
    problems = {
        "joints that close loops": mech.has_loops,
        f"couplings {list(mech.couplings)}": bool(len(mech.couplings)),
        f"joints of one's own, {wrong}": bool(wrong),
        f"free joints between two bodies, {free}": bool(free),
        f"parameters of several environments, {batched[:3]}": bool(batched),
    }
    for problem, there in problems.items():
        if there:
            raise ValueError(
                f"write_mjcf: got a mechanism with {problem}; allowed: a tree of standard joints, with one number for each parameter; "
                "write its MJCF file by hand"
            )


def _is_free(joint: Any) -> bool:
    return isinstance(joint, StandardJoint) and joint.num_coordinates == 6


def _varies(mech: Mechanism, name: str) -> bool:
    """Whether a parameter has a batch dimension."""
    path, _, label = name.rpartition(".")
    owner: Any = mech.get_submodule(path)
    dimensions: int = owner.fields.get(label, 0)
    return bool(getattr(owner, label).ndim > dimensions)


def _joints(mech: Mechanism, name: str, joint: StandardJoint) -> Iterator[ElementTree.Element]:
    """The joints of a body. At coordinate zero the joint frame is the frame of the child, so axes need no turn."""
    if _is_free(joint):
        yield ElementTree.Element("freejoint", name=name)
        return
    slides = joint.directions(joint.free_translations)[0]
    axes = torch.cat([torch.eye(3, dtype=torch.float64) if rows is None else rows for rows in (slides, joint.free_rotational_axes)])
    numbers = {
        "damping": joint.damper,
        "armature": joint.armature,
        "frictionloss": joint.friction,
        "stiffness": joint.spring,
        "springref": joint.rest,
    }
    columns = {key: _each(value, len(axes)) for key, value in numbers.items() if value is not None}
    limits = getattr(joint, "limits", None)
    for i, (label, axis) in enumerate(zip(coordinate_names(mech, name), axes, strict=True)):
        options: dict[str, Any] = {key: f"{values[i]:.17g}" for key, values in columns.items() if values[i] != 0.0}
        if limits is not None:
            low, high = (_each(bound, len(axes))[i] for bound in limits)
            if max(-low, high) < torch.inf:
                options["range"] = f"{low:.17g} {high:.17g}"
        kind = "slide" if i < joint.free_translations else "hinge"
        yield ElementTree.Element("joint", name=label, type=kind, pos=_text(joint.child_anchor), axis=_text(axis), **options)


def _each(value: Tensor, count: int) -> list[float]:
    numbers: list[float] = torch.as_tensor(value, dtype=torch.float64).expand(count).tolist()
    return numbers


def _with_a_plane(contact: Contact) -> bool:
    plane = contact.other_kind == "surface" and type(contact).signed_distance is Contact.signed_distance
    return contact.other is None and contact.shape_kind == "sphere" and plane


def _text(values: Tensor) -> str:
    return " ".join(f"{number:.17g}" for number in values.detach().reshape(-1).tolist())
