"""A mechanism as an MJCF file: its bodies, joints, tendons, couplings, actuators, contacts with planes of the world, and sensors.

The frame of a body is that of `Body`, at its center of mass, so that states need no conversion. A joint with one rotation has the
coordinates of its hinge. Three rotations become a ball where nothing acts on one of them alone (`_is_ball`). Others become hinges one after
another, whose angles are the rotation vector to first order.

| here | in the file |
|---|---|
| `Floating` to the world | `<freejoint>` |
| free translations, then free rotations | `<joint type="slide">`, `<joint type="hinge">` or `<joint type="ball">` |
| limits, cone, damper, armature, friction, spring, rest, curves | `range`, `damping`, `armature`, `frictionloss`, `stiffness` ... |
| contacts | spheres and planes; pairs of shapes (`write_contacts.py`) |
| tendons, couplings, `Spherical` and `Fixed` that close loops | `<tendon>`, `<equality>` (`write_tendons.py`) |
| actuators, drives, inputs | `<actuator>` (`write_actuators.py`) |
| sites and sensors | `<site>` and `<sensor>` (`write_sensors.py`) |
| `mech.passive`, `mech.poses` | `density`, `viscosity`, `wind`, `gravcomp`, `fluidshape`; `<keyframe>` |

Velocity limits, restitution and compliance of contacts have no counterpart. Whether a spring or a servo is implicit is a property of the
integrator. Timestep and solver options are MuJoCo's own; what is only drawn is not written.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any
from xml.etree import ElementTree

import torch
from torch import Tensor
from torch.nn.utils.parametrize import type_before_parametrizations

from torchdojo import quaternion as quat
from torchdojo.elements import joints as joints_module
from torchdojo.elements.bodies import Body
from torchdojo.elements.joints import JOINT_TYPES, StandardJoint
from torchdojo.elements.servo import SERVO
from torchdojo.io.mjcf.model import OPEN
from torchdojo.io.mjcf.write_actuators import carried_damping, force_ranges, write_actuators
from torchdojo.io.mjcf.write_contacts import TIMESTEP, write_contacts
from torchdojo.io.mjcf.write_sensors import write_sensors
from torchdojo.io.mjcf.write_state import write_passive, write_poses
from torchdojo.io.mjcf.write_tendons import LOOPS, write_couplings, write_loops, write_tendons
from torchdojo.io.mjcf.writing import Writing
from torchdojo.io.mjcf.writing import text_of as _text
from torchdojo.mechanism import Mechanism
from torchdojo.state.layout import split_state

__all__ = ["coordinate_names", "write_mjcf"]


def coordinate_names(mech: Mechanism, joint: str) -> list[str]:
    """A name in the file for each free coordinate of a joint: that of the joint, or where it has several, of the motors, or numbers."""
    element, motors = mech.named_joints()[joint], mech.actuators
    count = element.num_coordinates if isinstance(element, StandardJoint) else 0
    if count == 1:
        return [joint]
    named = {} if motors is None else dict(zip(zip(motors.joints, motors.coordinates, strict=True), motors.names, strict=True))
    return [named.get((joint, i), f"{joint}_{i}") for i in range(count)]


@torch.no_grad()
def write_mjcf(mech: Mechanism, name: str = "robot", *, balls: bool = True) -> tuple[str, list[str]]:
    """The text of an MJCF file, and the names of what is left out.

    These are near contacts, and contacts with height fields, half-spaces of bodies and surfaces of one's own, "NAME"; parts without a
    counterpart, "tendons.NAME", "couplings.NAME", "actuators.NAME", "drives.NAME", "inputs.JOINT", "sensors.NAME", "poses.NAME", "passive";
    and laws of parts that are written without them, "joints.NAME.velocity_limits", "contacts.NAME.restitution",
    "passive.ellipsoids.NUMBER.added_mass".
    ``torchdojo/io/README.md`` has the table.

    Args:
        mech: the mechanism. name: of the model.
        balls: whether joints with three rotations become balls where nothing acts on one rotation alone; False: all become hinges.

    Raises:
        ValueError: loops that other joints than `Spherical` and `Fixed` close, bodies and joints of the user's own, a free joint between
            two bodies, parameters of several environments.
    """
    _check(mech)
    file = Writing(mech, name, balls)
    ElementTree.SubElement(file.root, "compiler", angle="radian", autolimits="true")
    # Menagerie's choice for legged robots: the exact cone, and friction that does not creep
    option: dict[str, Any] = {"cone": "elliptic", "impratio": "100", "integrator": "implicitfast"}
    ElementTree.SubElement(file.root, "option", timestep=str(TIMESTEP), gravity=_text(mech.gravity), **option)
    file.bodies[None] = ElementTree.SubElement(file.root, "worldbody")
    _write_tree(file)
    write_contacts(file)
    written = write_tendons(file)
    write_couplings(file)
    write_loops(file)
    write_actuators(file, written)
    file.left_out += [f"sensors.{key}" for key in write_sensors(file)]
    write_passive(file)
    write_poses(file)
    ElementTree.indent(file.root)
    return ElementTree.tostring(file.root, encoding="unicode") + "\n", file.left_out


def _write_tree(file: Writing) -> None:
    """Bodies and joints, parents before children."""
    mech = file.mech
    pose, _ = split_state(mech.to_maximal(torch.zeros(mech.num_coordinates, dtype=torch.float64)))
    bodies = list(mech.bodies)
    for entry in mech.tree_order():
        joint = mech.named_joints()[entry.name]
        parent, child = joint.body_names[0], str(joint.body_names[-1])
        i = bodies.index(child)
        place, turn = pose.x[i], pose.q[i]
        if parent is not None:
            j = bodies.index(parent)
            place, turn = quat.inverse_rotate(pose.q[j], place - pose.x[j]), quat.multiply(quat.conjugate(pose.q[j]), turn)
        body = ElementTree.SubElement(file.bodies[parent], "body", name=child, pos=_text(place), quat=_text(turn))
        file.bodies[child] = body
        solid = mech.bodies[child]
        assert isinstance(solid, Body)  # `_check` refuses others
        inertia = solid.inertia[[0, 1, 2, 0, 0, 1], [0, 1, 2, 1, 2, 2]]
        ElementTree.SubElement(body, "inertial", pos="0 0 0", mass=_text(solid.mass), fullinertia=_text(inertia))
        assert isinstance(joint, StandardJoint)  # `_check` refuses others
        body.extend(_joints(file, entry.name, joint))


def _check(mech: Mechanism) -> None:
    ours = [getattr(joints_module, name) for name in JOINT_TYPES]
    wrong = [name for name, joint in mech.named_joints().items() if type_before_parametrizations(joint) not in ours]
    closing = {name: joint for name, joint in mech.named_joints().items() if name not in mech.tree_joints}
    loops = [name for name, joint in closing.items() if type(joint) not in LOOPS]
    solids = [name for name, body in mech.bodies.items() if type_before_parametrizations(body) is not Body]
    free = [name for name, joint in mech.named_joints().items() if joint.body_names[0] is not None and _is_free(joint)]
    batched = [name for name, value in mech.named_parameters() if value.ndim and name != "timestep" and _varies(mech, name)]
    problems = {
        f"joints other than Spherical and Fixed that close loops, {loops}": bool(loops),
        f"bodies of one's own, {solids}": bool(solids),
        f"joints of one's own, {wrong}": bool(wrong),
        f"free joints between two bodies, {free}": bool(free),
        f"parameters of several environments, {batched[:3]}": bool(batched),
    }
    for problem, there in problems.items():
        if there:
            raise ValueError(
                f"write_mjcf: got a mechanism with {problem}; allowed: standard joints, a tree of them but for connects and welds, with "
                "one number for each parameter; "
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


def _joints(file: Writing, name: str, joint: StandardJoint) -> Iterator[ElementTree.Element]:
    """The joints of a body. At coordinate zero the joint frame is that of the child, so axes need no turn."""
    motors = file.mech.actuators
    driven = motors is not None and name in motors.joints
    lost = ("velocity_limits", *(() if driven else SERVO))
    file.left_out += [f"joints.{name}.{law}" for law in lost if getattr(joint, law, None) is not None]
    if _is_free(joint):
        laws = ("spring", "damper", "friction", "armature")
        law_values = {law: getattr(joint, law) for law in laws}
        file.left_out += [f"joints.{name}.{law}" for law, value in law_values.items() if value is not None and bool((value != 0).any())]
        file.left_out += [f"joints.{name}.limits"] if joint.limits is not None else []
        yield ElementTree.Element("freejoint", name=name)
        return
    slides = joint.directions(joint.free_translations)[0]
    axes = torch.cat([torch.eye(3, dtype=torch.float64) if rows is None else rows for rows in (slides, joint.free_rotational_axes)])
    numbers = {
        "damping": joint.damper - carried_damping(file, name, joint),
        "armature": joint.armature,
        "frictionloss": joint.friction,
        "stiffness": joint.spring,
        "springref": joint.rest,
    }
    columns = {key: _each(value, len(axes)) for key, value in numbers.items() if value is not None}
    limits = getattr(joint, "limits", None)
    forces = force_ranges(file, name, joint)
    ball = _is_ball(file, name, joint, {key: values[-3:] for key, values in columns.items()})
    if joint.cone is not None and not ball:
        file.left_out.append(f"joints.{name}.cone")
    for i, (label, axis) in enumerate(zip(coordinate_names(file.mech, name), axes, strict=True)):
        if ball and i == joint.free_translations:
            file.balls.add(name)
            shared: dict[str, Any] = {key: f"{values[i]:.17g}" for key, values in columns.items() if values[i] != 0.0}
            if joint.cone is not None:
                shared["range"] = f"0 {float(joint.cone):.17g}"
            yield ElementTree.Element("joint", name=name, type="ball", pos=_text(joint.child_anchor), **shared)
            return
        file.coordinates[name, i] = label
        options: dict[str, Any] = {key: f"{values[i]:.17g}" for key, values in columns.items() if values[i] != 0.0}
        for key, curve in (("stiffness", joint.spring_curve), ("damping", joint.damper_curve)):
            if curve is not None and bool(curve[..., i, :].any()):
                options[key] = " ".join(f"{number:.17g}" for number in (columns[key][i], *curve[..., i, :].flatten().tolist()))
        if limits is not None and joint.cone is None:
            low, high = (_each(bound, len(axes))[i] for bound in limits)
            if min(-low, high) < torch.inf:
                options["range"] = f"{max(low, -OPEN):.17g} {min(high, OPEN):.17g}"
        if forces[i] is not None:
            options["actuatorfrcrange"] = forces[i]
        kind = "slide" if i < joint.free_translations else "hinge"
        yield ElementTree.Element("joint", name=label, type=kind, pos=_text(joint.child_anchor), axis=_text(axis), **options)


def _is_ball(file: Writing, name: str, joint: StandardJoint, laws: dict[str, list[float]]) -> bool:
    """Whether the file has the three rotations of a joint as a ball: their laws are alike, and nothing acts on one of them.

    laws: numbers of the rotations by MJCF's names. A ball of MuJoCo has no `springref`, and its range is its cone.
    """
    mech = file.mech
    if not file.may_have_balls or joint.free_rotations != 3 or any(len(set(values)) > 1 for values in laws.values()):
        return False
    if any(laws.get("springref", ())) and any(laws.get("stiffness", ())):
        return False
    sides = () if joint.limits is None or joint.cone is not None else joint.limits
    bounds = [abs(bound) for side in sides for bound in _each(side, joint.num_coordinates)[-3:]]
    if any(bound < math.pi for bound in bounds):
        return False
    if mech.actuators is None and mech.drives is None:
        return name not in mech.input_layout  # each input gets a motor
    return not any((name, i) in file.single for i in range(joint.free_translations, joint.num_coordinates))


def _each(value: Tensor, count: int) -> list[float]:
    numbers: list[float] = torch.as_tensor(value, dtype=torch.float64).expand(count).tolist()
    return numbers
