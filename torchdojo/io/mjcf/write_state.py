"""The medium, the compensation of gravity, and the keyframes of a mechanism in an MJCF file."""

from __future__ import annotations

from typing import cast
from xml.etree import ElementTree

import torch
from torch import Tensor

from torchdojo import quaternion as quat
from torchdojo.elements.bodies import Body
from torchdojo.elements.element import Pose, Twist, previous_pose
from torchdojo.elements.joints import StandardJoint
from torchdojo.engine.fluid_ellipsoids import FluidEllipsoid
from torchdojo.engine.passive_forces import PassiveForces, PassivePart
from torchdojo.io.mjcf.model import import_mujoco
from torchdojo.io.mjcf.passive import fluid_numbers
from torchdojo.io.mjcf.writing import Writing, number_of, text_of
from torchdojo.mechanism import Mechanism
from torchdojo.parameters import as_tensor

__all__ = ["write_passive", "write_poses"]

WORLD = Pose(torch.zeros(3, dtype=torch.float64), quat.identity())
SAME = 1e-9  # relative difference up to which a part is the whole body


def write_passive(file: Writing) -> None:
    """Add the medium and the shares of weights that are carried; parts that are not whole bodies are left out."""
    passive = file.mech.passive
    if passive is None:
        return
    shares = _shares(file, passive)
    if type(passive) is not PassiveForces or shares is None:
        file.left_out.append("passive")
        return
    option = file.section("option")
    for key in ("density", "viscosity"):
        option.set(key, text_of(number_of(getattr(passive, key), f"{key} of passive")))
    if passive.wind.ndim > 1:
        number_of(passive.wind, "wind of passive")
    option.set("wind", text_of(passive.wind))
    for name, share in shares.items():
        if share:
            file.bodies[name].set("gravcomp", f"{share:.17g}")
    for i, ellipsoid in enumerate(passive.ellipsoids):
        _write_ellipsoid(file, i, ellipsoid)


def _write_ellipsoid(file: Writing, i: int, ellipsoid: FluidEllipsoid) -> None:
    """Add a geom that feels the medium only. Added mass and inertia that are not those of MuJoCo's compiler are left out."""
    numbers = {key: as_tensor(getattr(ellipsoid, key), key).detach() for key in ("semiaxes", "coefficients")}
    for key, value in numbers.items():
        if value.ndim > 1:
            number_of(value, f"{key} of passive")
    shape = {"type": "ellipsoid", "size": text_of(numbers["semiaxes"])}
    fluid = {"fluidshape": "ellipsoid", "fluidcoef": text_of(numbers["coefficients"])}
    place = {"pos": text_of(ellipsoid.frame.position), "quat": text_of(ellipsoid.frame.orientation)}
    apart = {"contype": "0", "conaffinity": "0", "mass": "0"}
    geom = ElementTree.SubElement(file.bodies[ellipsoid.frame.body], "geom", {**shape, **fluid, **place, **apart})
    if ellipsoid.added_mass is not None and not _is_compiled(geom, ellipsoid):
        file.left_out.append(f"passive.ellipsoids.{i}.added_mass")


def _is_compiled(geom: ElementTree.Element, ellipsoid: FluidEllipsoid) -> bool:
    """Whether added mass and inertia are what MuJoCo's compiler gives the geom."""
    text = ElementTree.tostring(geom, encoding="unicode")
    model = import_mujoco().MjModel.from_xml_string(f"<mujoco><worldbody>{text}</worldbody></mujoco>")
    inertias = (as_tensor(value, "added inertia").detach().double() for value in (ellipsoid.added_mass, ellipsoid.added_inertia))
    compiled = (torch.tensor(value, dtype=torch.float64) for value in fluid_numbers(model, 0)[2:])
    return all(torch.allclose(ours, theirs, rtol=SAME, atol=0) for ours, theirs in zip(inertias, compiled, strict=True))


def _shares(file: Writing, passive: PassiveForces) -> dict[str, float] | None:
    """The share of each body; None where the parts are not the bodies."""
    if passive.parts is None:
        return {name: number_of(share, f"gravity_compensation of {name!r}") for name, share in passive.gravity_compensation.items()}
    bodies = [str(part.frame.body) for part in passive.parts]
    whole = all(_is_whole(part, cast(Body, file.mech.bodies[name])) for name, part in zip(bodies, passive.parts, strict=True))
    if not whole or sorted(bodies) != sorted(file.mech.bodies):
        return None
    shares = (number_of(part.gravity_compensation, "gravity_compensation") for part in passive.parts)
    return dict(zip(bodies, shares, strict=True))


def _is_whole(part: PassivePart, body: Body) -> bool:
    axes = quat.rotation_matrix(part.frame.orientation)
    inertia = axes @ torch.diag(as_tensor(part.moments, "moments").double()) @ axes.mT
    near = torch.allclose(inertia, body.inertia, rtol=0, atol=SAME * float(body.inertia.abs().max()))
    same_mass = abs(number_of(part.mass, "mass") / float(body.mass) - 1) < SAME
    return near and same_mass and float(part.frame.position.abs().max()) < SAME


def write_poses(file: Writing) -> None:
    """Add keyframes; poses that turn a joint with several hinges in the file, which have other angles, are left out."""
    mech = file.mech
    for name, pose in mech.poses.items():
        z = mech.initial_state(pose=name)
        placed = None if z.ndim > 1 else _placed(file, z)
        if placed is None:
            file.left_out.append(f"poses.{name}")
            continue
        options = {} if isinstance(name, int) else {"name": name}
        options["qpos"], options["qvel"] = (" ".join(values) for values in placed)
        motors = mech.actuators
        if pose.ctrl is not None and motors is not None:
            controls = dict(zip(motors.names, as_tensor(pose.ctrl, "ctrl").tolist(), strict=True))
            options["ctrl"] = text_of([controls.get(actuator, 0.0) for actuator in file.actuators])
        ElementTree.SubElement(file.section("keyframe"), "key", options)


def _placed(file: Writing, z: Tensor) -> tuple[list[str], list[str]] | None:
    """qpos and qvel, in the order of the file's joints."""
    mech = file.mech
    q, qd = mech.to_minimal(z)
    spots = {label: mech.coordinate_places()[joint].start + i for (joint, i), label in file.coordinates.items()}
    for name, piece in mech.coordinate_places().items():
        joint = mech.named_joints()[name]
        assert isinstance(joint, StandardJoint)  # `write_mjcf` refuses others
        turns = 0 if name in file.balls or joint.num_coordinates == 6 else joint.free_rotations
        if turns > 1 and bool(q[piece][-turns:].any()):
            return None
    qpos, qvel = list[str](), list[str]()
    for body in file.root.iter("body"):
        if body.find("freejoint") is not None:
            state = mech.body_state(z, str(body.get("name")))
            qpos += [text_of(state.x), text_of(state.q)]
            qvel += [text_of(state.v), text_of(_mean_rate(state.omega, mech.timestep))]
        for element in body.findall("joint"):
            if element.get("type") == "ball":
                turn, rate = _turn(mech, z, str(element.get("name")))
                qpos.append(text_of(turn))
                qvel.append(text_of(rate))
                continue
            spot = spots[str(element.get("name"))]
            qpos.append(text_of(q[spot]))
            qvel.append(text_of(qd[spot]))
    return qpos, qvel


def _turn(mech: Mechanism, z: Tensor, name: str) -> tuple[Tensor, Tensor]:
    """The turn of a joint (4,), and its angular velocity (3,) in the axes of the child, constant in the step that leads to z."""
    joint = mech.named_joints()[name]
    assert isinstance(joint, StandardJoint)  # `write_mjcf` refuses others
    states = [None if body is None else mech.body_state(z, body) for body in joint.body_names]
    now = [WORLD if state is None else Pose(state.x, state.q) for state in states]
    before = [
        pose if state is None else previous_pose(pose, Twist(state.v, state.omega), mech.timestep)
        for pose, state in zip(now, states, strict=True)
    ]
    turn, turn_before = (joint.displacement(*poses)[1] for poses in (now, before))
    return turn, quat.rotation_vector(quat.multiply(quat.conjugate(turn_before), turn)) / mech.timestep


def _mean_rate(omega: Tensor, timestep: Tensor) -> Tensor:
    """The angular velocity of a turn at a constant rate, from that of a state: the vector part of the step's quaternion is h omega / 2."""
    half = 0.5 * timestep * omega
    scalar = (1 - (half**2).sum(-1, keepdim=True)).clamp_min(0).sqrt()
    return quat.rotation_vector(torch.cat((scalar, half), dim=-1)) / timestep
