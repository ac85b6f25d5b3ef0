"""Actuators and drives of a mechanism as `<general>` actuators of an MJCF file, with the same laws.

Lengths count from zero in the file, so that `length0` enters the constant of gain and bias, and shifts the range of a muscle's length.
The largest force of a joint's servo becomes `actuatorfrcrange`. A mechanism without actuators and drives has a motor for each input.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast
from xml.etree import ElementTree

import torch
from torch import Tensor

from torchdojo.elements.actuator_laws import DYNAMICS, FORCES
from torchdojo.elements.actuators import Actuators
from torchdojo.elements.joints import StandardJoint
from torchdojo.elements.servo import SERVO_RANGE
from torchdojo.elements.tendon_paths import FixedTendon, Frame
from torchdojo.engine.drive_tables import numbers_of
from torchdojo.engine.drive_targets import FRAMES, joint_frames, on_coordinate
from torchdojo.engine.drives import Drive, Drives
from torchdojo.io.mjcf.drive_laws import HELD
from torchdojo.io.mjcf.writing import Writing, number_of, range_of, text_of

__all__ = ["carried_damping", "force_ranges", "write_actuators"]

MUSCLE = 9  # numbers of a muscle's gain and bias
#: laws that MJCF has by the same names
FILE_DYNAMICS = {name: type(DYNAMICS[name]) for name in ("none", "integrator", "filter", "filterexact", "muscle")}
FILE_FORCES = {name: type(FORCES[name]) for name in ("affine", "muscle")}


def carried_damping(file: Writing, name: str, joint: StandardJoint) -> Tensor | float:
    """The part of a joint's damper that belongs to actuators, per coordinate: "implicitfast" of `actuate`."""
    motors = file.mech.actuators
    if type(motors) is not Actuators or name not in motors.joints or joint.servo_damping is not None:
        return 0.0
    return motors.sum_inputs(motors.carried_damping)[file.mech.input_layout[name]]


def force_ranges(file: Writing, name: str, joint: StandardJoint) -> list[str | None]:
    """`actuatorfrcrange` of each coordinate: the range of the sum of its actuators, or of the joint's servo."""
    motors = file.mech.actuators
    if type(motors) is not Actuators or name not in motors.joints:
        return [None] * joint.num_coordinates
    lower, upper = motors.inputrange[file.mech.input_layout[name]].unbind(-1)
    if joint.driven:
        bounds = [getattr(joint, bound) for bound in SERVO_RANGE]
        lower, upper = torch.maximum(lower, bounds[0]), torch.minimum(upper, bounds[1])
    return [range_of(pair, f"the range of forces on {name!r}") for pair in torch.stack((lower, upper), -1).expand(joint.num_coordinates, 2)]


def write_actuators(file: Writing, tendons: Sequence[str]) -> None:
    """Add actuators, drives, or motors of inputs. tendons: those that the file has."""
    mech, motors = file.mech, file.mech.actuators
    drives = {} if mech.drives is None else mech.drives.drives
    names = () if motors is None else motors.names
    driven = set[tuple[str, int]]() if motors is None else set(zip(motors.joints, motors.coordinates, strict=True))
    for name in (*drives, *(name for name in names if name not in drives)):
        drive = drives.get(name)
        if drive is None:
            _add(file, "actuators", name, _motor(file, name))
        else:
            driven |= (
                {(drive.tendon, 0)}
                if drive.tendon
                else {(drive.joint or "", drive.coordinate)}
                if drive.axes is None
                else _turned(file, drive)
            )
            _add(file, "drives", name, _drive(file, name, drive, tendons))
    own_law = () if motors is None or type(motors) is Actuators else motors.joints
    for name, piece in mech.input_layout.items():
        free = [i for i in range(piece.stop - piece.start) if (name, i) not in driven and name not in own_law]
        if not free:
            continue
        if names or drives:
            file.left_out.append(f"inputs.{name}")
            continue
        for i in free:
            label = name if name in tendons else file.coordinates.get((name, i))
            _add(file, "inputs", label or f"{name}.{i}", None if label is None else {"tendon" if name in tendons else "joint": label})


def _add(file: Writing, kind: str, name: str, options: dict[str, str] | None) -> None:
    """Add an actuator, or note that the file lacks it."""
    if options is None:
        file.left_out.append(f"{kind}.{name}")
        return
    file.actuators.append(name)
    ElementTree.SubElement(file.section("actuator"), "general", {"name": name, **options})


def _motor(file: Writing, name: str) -> dict[str, str] | None:
    """An entry of `mech.actuators`; None where its law or its coordinate is not MuJoCo's."""
    motors = file.mech.actuators
    assert motors is not None  # it has the name
    i = motors.names.index(name)
    place = motors.joints[i], motors.coordinates[i]
    if type(motors) is not Actuators or place not in file.coordinates:
        return None
    bounds = {key: range_of(getattr(motors, key)[i], f"{key} of {name!r}") for key in ("ctrlrange", "forcerange")}
    laws = _affine("gain", motors.gain[i], motors.length0[i]) | _affine("bias", motors.bias[i], motors.length0[i])
    attributes = {"joint": file.coordinates[place], "gear": text_of(motors.gear[i]), **laws}
    return attributes | {key: value for key, value in bounds.items() if value is not None}


def _affine(key: str, numbers: Tensor, length0: Tensor) -> dict[str, str]:
    """Gain or bias, as a function of a length that counts from zero."""
    shifted = torch.stack((numbers[0] + numbers[1] * length0, numbers[1], numbers[2]))
    if not bool(shifted[1:].any()) and (key == "gain" or not bool(shifted.any())):
        return {"gaintype": "fixed", "gainprm": text_of(shifted[0])} if key == "gain" else {"biastype": "none"}
    return {f"{key}type": "affine", f"{key}prm": text_of(shifted)}


def _drive(file: Writing, name: str, drive: Drive, tendons: Sequence[str]) -> dict[str, str] | None:
    """A drive; None where the file lacks its law, or what it drives."""
    label = f"drive {name!r}"
    known = FILE_DYNAMICS.get(drive.dynamics) is type(DYNAMICS[drive.dynamics])
    if not known or any(FILE_FORCES.get(law) is not type(FORCES[law]) for law in (drive.gain, drive.bias)):
        return None
    place, gear = (drive.joint or "", drive.coordinate), numbers_of(drive.gear)
    if (on_coordinate(drive) and place not in file.coordinates) or (drive.tendon and drive.tendon not in tendons):
        return None
    if gear.ndim > (0 if drive.site is None and drive.axes is None else 1) and gear.numel() != 1:
        number_of(gear, f"gear of {label}")
    zero = torch.as_tensor(number_of(drive.length0, f"length0 of {label}")).double()
    turn = None if drive.axes is None else _turn(file, name, drive)
    if drive.axes is not None:
        if turn is None:
            return None
        (target, gear), zero = turn, torch.zeros((), dtype=torch.float64)
    elif drive.site is not None or drive.crank is not None:
        target = _sites(file, name, drive)
    elif drive.body is not None:
        if float(gear) != 1.0:
            return None  # MuJoCo's adhesion has no gear
        target = {"body": drive.body}
        file.left_out += [f"drives.{name}.reach"] if number_of(drive.reach, f"reach of {label}") != HELD else []
    elif drive.tendon:
        target, tendon = {"tendon": drive.tendon}, file.mech.tendons[drive.tendon]
        zero = gear.reshape(()) * tendon.offset.detach() if isinstance(tendon, FixedTendon) else torch.zeros((), dtype=torch.float64)
    else:
        target = {"joint": file.coordinates[place]}
    laws = {"gear": text_of(gear), "dyntype": drive.dynamics}
    if DYNAMICS[drive.dynamics].size:
        laws["dynprm"] = text_of(_flat(drive.dynamics_numbers, f"dynamics_numbers of {label}"))
    for key, law in (("gain", drive.gain), ("bias", drive.bias)):
        numbers = _flat(getattr(drive, f"{key}_numbers"), f"{key}_numbers of {label}")
        laws |= _muscle(key, numbers, drive) if law == "muscle" else _affine(key, numbers[:3], zero)
    if drive.lengths is not None:
        laws["lengthrange"] = text_of([number_of(bound, f"lengths of {label}") - float(zero) for bound in drive.lengths])
    for key in ("ctrlrange", "forcerange", "actrange"):
        if (text := range_of(getattr(drive, key), f"{key} of {label}")) is not None:
            laws[key] = text
    if name in (delays := cast(Drives, file.mech.drives).delays):
        laws |= {"delay": text_of(drive.delay), "nsample": str(delays[name].stop - delays[name].start)}
    return {**target, **laws, **({"actearly": "true"} if drive.early else {})}


def _turned(file: Writing, drive: Drive) -> set[tuple[str, int]]:
    """The coordinates of a joint that a drive turns as a whole."""
    joint = cast(str, drive.joint)
    return {(joint, i) for i in range(file.mech.named_joints()[joint].num_coordinates)}


def _turn(file: Writing, name: str, drive: Drive) -> tuple[dict[str, str], Tensor] | None:
    """Target and gear of a drive on the turn of a joint: the ball or the free joint of the file, or sites in the frames of the joint.

    A body that floats has its free joint at its center of mass in the file. A force elsewhere acts between a site there and one of the
    world. These have a length: None where the law reads it, and where the torque turns with the body, which the force does not.
    """
    gear = numbers_of(drive.gear).detach()
    parent, child = joint_frames(file.mech, drive)
    elsewhere = gear.shape[-1] == 6 and bool(gear[:3].any()) and bool(child.position.any())
    if drive.joint in file.balls or (gear.shape[-1] == 6 and not elsewhere):
        return {"joint" if drive.axes == "child" else "jointinparent": cast(str, drive.joint)}, gear
    if elsewhere:
        if _reads_length(drive) or (drive.axes == "child" and bool(gear[3:].any())):
            return None
        site, origin = file.site(f"{name}_site", child.body, child.position), file.site(f"{name}_world", None, torch.zeros(3))
        return {"site": site, "refsite": origin}, gear
    on_parent, on_child = (
        file.site(f"{name}_{key}", end.body, end.position, quat=text_of(end.orientation))
        for key, end in (("parent", parent), ("child", child))
    )
    if drive.axes == "child":
        return {"site": on_parent, "refsite": on_child}, torch.cat((torch.zeros_like(gear), -gear))
    return {"site": on_child, "refsite": on_parent}, torch.cat((torch.zeros_like(gear), gear))


def _reads_length(drive: Drive) -> bool:
    """Whether the force of a drive depends on its length."""
    numbers = [numbers_of(values).detach() for values in (drive.gain_numbers, drive.bias_numbers)]
    return "muscle" in (drive.gain, drive.bias) or any(bool(values[..., 1].any()) for values in numbers)


def _sites(file: Writing, name: str, drive: Drive) -> dict[str, str]:
    """Sites of the drive, which the file gets; those of a crank with the length of its rod."""
    keys = {"site": "site", "reference": "refsite", "crank": "cranksite", "slider": "slidersite"}
    frames = {keys[field]: cast(Frame | None, getattr(drive, field)) for field in FRAMES}
    sites = {
        key: file.site(f"{name}_{key}", frame.body, frame.position, quat=text_of(frame.orientation))
        for key, frame in frames.items()
        if frame is not None
    }
    return sites if drive.crank is None else {**sites, "cranklength": f"{number_of(drive.rod, f'rod of drive {name!r}'):.17g}"}


def _muscle(key: str, numbers: Tensor, drive: Drive) -> dict[str, str]:
    """The numbers of a muscle, with its peak force, which MuJoCo would otherwise take from its own acceleration per force."""
    parameters = numbers[:MUSCLE].clone()
    if parameters[2] < 0:
        parameters[2] = parameters[3] / max(float(numbers_of(drive.acc0)), 1e-15)
    return {f"{key}type": "muscle", f"{key}prm": text_of(parameters)}


def _flat(values: Any, label: str) -> Tensor:
    numbers = numbers_of(values).detach().double()
    if numbers.ndim > 1:
        number_of(numbers, label)
    return numbers
