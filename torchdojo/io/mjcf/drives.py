"""Actuators of an MJCF file that `td.Drives` takes: those with activations, muscles or delays, on tendons, sites, cranks and bodies."""

from __future__ import annotations

from typing import Any

import numpy as np

from torchdojo.elements.joints import StandardJoint
from torchdojo.elements.near_contact import NearContact
from torchdojo.engine.delays import ROUNDING
from torchdojo.engine.drive_targets import contacts_of
from torchdojo.engine.drives import Drive, Drives
from torchdojo.geometry.near_terms import REACH
from torchdojo.io.mjcf.description import MjcfInfo
from torchdojo.io.mjcf.drive_laws import GAINS, HELD, dynamics_of, on_body, on_tendon, taken
from torchdojo.io.mjcf.model import disabled, import_mujoco
from torchdojo.io.mjcf.names import joint_label, tendon_label
from torchdojo.io.mjcf.tendons import site_in
from torchdojo.io.report import Findings
from torchdojo.io.robot import WORLD, LinkInfo
from torchdojo.mechanism import Mechanism
from torchdojo.sensors.site import Site

__all__ = ["add_drives", "driven_tendons"]

EXPLICIT = "they act in mech.drives.step and .rollout, with forces of the state before each step; mech.step(ctrl=) has only others"


def driven_tendons(robot: MjcfInfo) -> set[int]:
    """MJCF ids of the tendons that an actuator drives."""
    model = robot.compiled.model
    return {int(model.actuator_trnid[i, 0]) for i in range(model.nu) if on_tendon(model, i) and taken(model, i)}


def add_drives(mech: Mechanism, robot: MjcfInfo) -> Findings:
    """Give the mechanism `mech.drives`, if the file has actuators for them: all actuators that act, in the order of the file."""
    model, findings = robot.compiled.model, Findings()
    names = {drive.number: name for name, drive in robot.drives.items()}
    drives: dict[str, Drive | None] = {}
    shared = () if mech.actuators is None else mech.actuators.names
    lost: list[str] = []
    elsewhere: list[str] = []
    loose: list[str] = []
    for i in range(model.nu):
        name = names.get(i) or str(model.actuator(i).name) or f"actuator{i}"
        if name in shared:
            drives[name] = None
        elif taken(model, i):
            drive = _drive(mech, robot, i, findings, name)
            if drive is None:
                (elsewhere if on_tendon(model, i) else loose if on_body(model, i) else lost).append(name)
            else:
                drives[name] = drive
    findings.add("ignored", "actuators", lost, "what they drive is not in the mechanism, has no input, or does not move")
    reason = "their tendons do not act; load(tendons=True) has them"
    findings.add("ignored", "actuators of tendons, sites and bodies", elsewhere, reason)
    reason = "their bodies have no contacts"
    findings.add("ignored", "actuators of tendons, sites and bodies", loose, reason)
    added = [name for name, drive in drives.items() if drive is not None]
    if added:
        mech.drives = Drives(mech, drives)
        findings.add("approximated", "actuators with activations, on tendons and on sites", added, EXPLICIT)
    return findings


def _drive(mech: Mechanism, robot: MjcfInfo, i: int, findings: Findings, name: str) -> Drive | None:
    mujoco, model = import_mujoco(), robot.compiled.model
    number, kind = int(model.actuator_trnid[i, 0]), mujoco.mjtTrn(int(model.actuator_trntype[i]))
    gear = model.actuator_gear[i]
    target: dict[str, Any]
    if kind == mujoco.mjtTrn.mjTRN_TENDON:
        label = tendon_label(model, number)
        if label not in mech.input_layout:
            return None
        target = {"tendon": label, "gear": float(gear[0])}
        if model.tendon_actfrclimited[number]:
            findings.add("ignored", "largest forces of actuators on tendons", label, "their sum is not clipped")
    elif kind == mujoco.mjtTrn.mjTRN_BODY:
        links: list[LinkInfo] = [WORLD, *robot.links.values()]
        body = links[number].body
        contacts = [] if body is None else contacts_of(mech, body).values()
        if not contacts:
            return None
        # Contacts of a pair begin at the sum of the margins of its geoms.
        margins = [model.geom_margin[mask] for mask in (model.geom_bodyid == number, model.geom_bodyid != number)]
        reach = max(HELD, float(sum(margin.max(initial=0.0) for margin in margins)))
        if reach > REACH and any(isinstance(contact, NearContact) for contact in contacts):
            reach = REACH
            findings.add("approximated", "adhesion of bodies with near contacts", name, f"its reach is {1e3 * REACH:g} mm, as theirs")
        target = {"body": body, "reach": reach}
    elif kind in (mujoco.mjtTrn.mjTRN_SITE, mujoco.mjtTrn.mjTRN_SLIDERCRANK):
        sites = [_site(robot, int(number)) for number in model.actuator_trnid[i] if number >= 0]
        if len({site.body for site in sites} - {None}) < 1 or len({site.body for site in sites}) < len(sites):
            return None
        if kind == mujoco.mjtTrn.mjTRN_SITE:
            target = {"gear": gear.tolist(), **dict(zip(("site", "reference"), sites, strict=False))}
        else:
            crank, slider = sites
            target = {"gear": float(gear[0]), "crank": crank, "slider": slider, "rod": float(model.actuator_cranklength[i])}
    else:
        places = {label: (joint, k, sign) for joint, entries in robot.coordinates.items() for k, (label, sign) in enumerate(entries)}
        joint, coordinate, sign = places.get(joint_label(model, number), ("", 0, 1.0))
        if int(model.jnt_type[number]) in (int(mujoco.mjtJoint.mjJNT_BALL), int(mujoco.mjtJoint.mjJNT_FREE)):
            turn = _turn(mech, robot, i, joint)
            return None if turn is None else _with_laws(mech, robot, i, findings, name, turn)
        if joint not in mech.input_layout or joint not in mech.coordinate_places():
            return None
        zero = float(gear[0] * model.qpos0[model.jnt_qposadr[number]])
        target = {"joint": joint, "coordinate": coordinate, "gear": sign * float(gear[0]), "length0": zero}
        if model.jnt_actfrclimited[number]:
            findings.add("ignored", "largest forces of drives on joints", joint, "their sum is not clipped")
    return _with_laws(mech, robot, i, findings, name, target)


def _turn(mech: Mechanism, robot: MjcfInfo, i: int, joint: str) -> dict[str, Any] | None:
    """The target of an actuator on a ball or a free joint, whose gear is in axes of the link, now or, with `jointinparent`, at rest."""
    mujoco, model = import_mujoco(), robot.compiled.model
    there = dict(mech.named_joints().items()).get(joint)
    floats = int(model.jnt_type[model.actuator_trnid[i, 0]]) == int(mujoco.mjtJoint.mjJNT_FREE)
    if not isinstance(there, StandardJoint) or there.free_rotations != 3 or (floats and (there.num_coordinates != 6 or there.parent)):
        return None
    links: list[LinkInfo] = [WORLD, *robot.links.values()]
    turn = links[int(model.jnt_bodyid[model.actuator_trnid[i, 0]])].rotation
    in_child = int(model.actuator_trntype[i]) == int(mujoco.mjtTrn.mjTRN_JOINT)
    gear = model.actuator_gear[i]
    torque = turn @ gear[3:] if floats and in_child else gear[3:] if floats else turn @ gear[:3]
    return {"joint": joint, "axes": "child" if in_child else "parent", "gear": [*(gear[:3] if floats else ()), *torque]}


def _with_laws(mech: Mechanism, robot: MjcfInfo, i: int, findings: Findings, name: str, target: dict[str, Any]) -> Drive:
    """The drive of an actuator, on this target."""
    model = robot.compiled.model
    if np.any(getattr(model, "actuator_damping", np.zeros(model.nu))[i]) or np.any(
        getattr(model, "actuator_armature", np.zeros(model.nu))[i]
    ):
        findings.add("ignored", "damping and armature of drives", name, "they do not act")
    gain, bias = (GAINS[int(getattr(model, f"actuator_{key}type")[i])] for key in ("gain", "bias"))
    numbers: dict[str, Any] = {}
    for key, law in (("gain", gain), ("bias", bias)):
        coefficients = getattr(model, f"actuator_{key}prm")[i][: 9 if law == "muscle" else 3].copy()
        if law == "fixed":
            coefficients[1 if key == "gain" else 0 :] = 0.0
        numbers |= {key: "muscle" if law == "muscle" else "affine", f"{key}_numbers": coefficients.tolist()}
    lengths = _range(model.actuator_lengthrange[i])
    clamped = not disabled(model, "CLAMPCTRL")
    return Drive(
        **target,
        **numbers,
        dynamics=dynamics_of(model, i),
        dynamics_numbers=model.actuator_dynprm[i, :3].tolist(),
        ctrlrange=_range(model.actuator_ctrlrange[i]) if model.actuator_ctrllimited[i] and clamped else None,
        forcerange=_range(model.actuator_forcerange[i]) if model.actuator_forcelimited[i] else None,
        actrange=_range(model.actuator_actrange[i]) if model.actuator_actlimited[i] else None,
        early=bool(model.actuator_actearly[i]),
        lengths=lengths if lengths[0] < lengths[1] else None,
        acc0=float(model.actuator_acc0[i]),
        delay=_delay(mech, model, i, findings, name),
    )


def _delay(mech: Mechanism, model: Any, i: int, findings: Findings, name: str) -> float:
    """The delay of the controls of an actuator [s], which older versions of MuJoCo lack."""
    delay = float(getattr(model, "actuator_delay", np.zeros(i + 1))[i])
    if not delay:
        return 0.0
    kept, interpolation = (int(number) for number in model.actuator_history[i])  # MuJoCo takes the oldest of the controls that it keeps
    timestep = float(mech.timestep.max())
    steps = delay / timestep
    if interpolation and steps < kept and abs(steps - round(steps)) > ROUNDING:
        findings.add("approximated", "delays of actuators", name, "a control between two steps is the earlier one, without interpolation")
    return min(delay, kept * timestep)


def _site(robot: MjcfInfo, number: int) -> Site:
    model, links = robot.compiled.model, [WORLD, *robot.links.values()]
    return site_in(links[int(model.site_bodyid[number])], model.site_pos[number], model.site_quat[number])


def _range(values: Any) -> tuple[float, float]:
    return float(values[0]), float(values[1])
