"""Actuators of an MJCF model on joints: their laws, and the largest forces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from torchdojo.io.mjcf.drive_laws import taken
from torchdojo.io.mjcf.model import CompiledMjcf, import_mujoco
from torchdojo.io.report import Findings
from torchdojo.io.robot import Array

__all__ = ["Drive", "Driven", "read_drives"]

Three = tuple[float, float, float]
Range = tuple[float, float]


@dataclass(frozen=True)
class Drive:
    """An actuator on a joint, in the terms of `torchdojo.elements.actuators` and of the file's qpos."""

    number: int  #: MJCF id, its place in ctrl
    joint: str  #: of the file
    gear: float
    gain: Three  #: constant, per length, per velocity
    bias: Three
    ctrlrange: Range | None
    forcerange: Range | None  #: before the gear
    inputrange: Range | None  #: of the sum over all actuators of the joint [N, N m]
    length0: float  #: at qpos0: gear qpos0 [m, rad]
    effort: float  #: largest force or torque on the joint [N, N m]; infinite where the file gives none
    motor: bool  #: the force is the control times gain and gear
    acts: bool  #: False: a muscle, an actuator with dynamics, ... whose law is not here


class Driven(NamedTuple):
    """Sums over the actuators of an MJCF joint, one value per degree of freedom, (1,) or (3,)."""

    effort: Array  #: largest force or torque [N, N m]
    damping: Array  #: [N s/m, N m s/rad]
    armature: Array  #: [kg, kg m^2]
    damping_curve: Array  #: the numbers of square and cube, (1, 2) or (3, 2)


def read_drives(compiled: CompiledMjcf, findings: Findings) -> tuple[dict[str, Drive], dict[int, Driven]]:
    """Actuators by name, and sums over the actuators of each MJCF joint; `findings` gets those that do not act."""
    mujoco, model = import_mujoco(), compiled.model
    drives: dict[str, Drive] = {}
    driven: dict[int, Driven] = {}
    foreign, elsewhere, disabled = [], [], []
    for i in range(len(model.actuator_trntype)):
        name = str(model.actuator(i).name)
        on_joint = model.actuator_trntype[i] in (int(mujoco.mjtTrn.mjTRN_JOINT), int(mujoco.mjtTrn.mjTRN_JOINTINPARENT))
        j = int(model.actuator_trnid[i, 0]) if on_joint else -1
        if not on_joint or model.jnt_type[j] == int(mujoco.mjtJoint.mjJNT_FREE):
            if not taken(model, i):
                elsewhere.append(name or f"actuator{i}")
            continue
        joint = str(model.joint(j).name) or f"joint{j}"
        if not name:
            name = f"{joint}_actuator" if f"{joint}_actuator" not in drives else f"actuator{i}"
        drives[name], sums = _read(mujoco, model, i, j, joint)
        driven[j] = sums if j not in driven else Driven(*(a + b for a, b in zip(driven[j], sums, strict=True)))
        if _disabled(model, i):
            disabled.append(name)
        elif not drives[name].acts and not taken(model, i):
            foreign.append(name)
    for j, total in driven.items():
        if model.jnt_actfrclimited[j]:
            driven[j] = total._replace(effort=np.minimum(total.effort, np.abs(model.jnt_actfrcrange[j]).max()))
    reason = "their law is not known (plugins, muscles without a range of length, user functions)"
    findings.add("ignored", "actuators", foreign, f"{reason}; the input u of their joints is a force or torque")
    findings.add("ignored", "actuators of disabled groups", disabled, "the file disables them", "none")
    findings.add(
        "ignored",
        "actuators of tendons, sites and bodies",
        elsewhere,
        "their law is not known, or they drive something else than joints, tendons, sites, cranks and bodies; step has wrench=",
    )
    return drives, driven


def _read(mujoco: Any, model: Any, i: int, j: int, joint: str) -> tuple[Drive, Driven]:
    """Actuator i on joint j."""
    ball = model.jnt_type[j] == int(mujoco.mjtJoint.mjJNT_BALL)
    gears = model.actuator_gear[i, : 3 if ball else 1]
    affine = _affine(mujoco, model, i)
    bias = _three(model.actuator_biasprm[i]) if model.actuator_biastype[i] == int(mujoco.mjtBias.mjBIAS_AFFINE) else (0.0, 0.0, 0.0)
    gain = _three(model.actuator_gainprm[i])
    if model.actuator_gaintype[i] == int(mujoco.mjtGain.mjGAIN_FIXED):
        gain = gain[0], 0.0, 0.0
    motor = affine and not any((*gain[1:], *bias))
    forcerange = _range(model.actuator_forcerange[i]) if model.actuator_forcelimited[i] else None
    ctrlrange = _range(model.actuator_ctrlrange[i]) if model.actuator_ctrllimited[i] else None
    limit = np.inf if forcerange is None else max(abs(bound) for bound in forcerange)  # before the gear
    if ctrlrange is not None and motor:
        limit = min(limit, abs(gain[0]) * max(abs(bound) for bound in ctrlrange))
    effort = np.array([abs(float(gear)) * limit if gear else 0.0 for gear in gears])
    clamped, damped = (not model.opt.disableflags & int(getattr(mujoco.mjtDisableBit, f"mjDSBL_{key}")) for key in ("CLAMPCTRL", "DAMPER"))
    damping, armature = _entry(model, "damping", i)[0] if damped else 0.0, _entry(model, "armature", i)[0]
    curve = np.broadcast_to(_entry(model, "dampingpoly", i) * float(damped), 2)
    drive = Drive(
        number=i,
        joint=joint,
        gear=float(gears[0]),
        gain=gain,
        bias=bias,
        ctrlrange=ctrlrange if clamped else None,
        forcerange=forcerange,
        inputrange=_range(model.jnt_actfrcrange[j]) if model.jnt_actfrclimited[j] else None,
        length0=0.0 if ball else float(gears[0] * model.qpos0[model.jnt_qposadr[j]]),
        effort=float(effort.max()),
        motor=motor,
        acts=affine and not ball and not _disabled(model, i),
    )
    return drive, Driven(effort, gears**2 * damping, gears**2 * armature, gears[:, None] ** 2 * curve)


def _disabled(model: Any, i: int) -> bool:
    group = int(model.actuator_group[i])
    return bool(0 <= group <= 30 and int(model.opt.disableactuator) >> group & 1)


def _affine(mujoco: Any, model: Any, i: int) -> bool:
    """Whether the force is affine in control, length and velocity of the present."""
    return bool(
        model.actuator_dyntype[i] == int(mujoco.mjtDyn.mjDYN_NONE)
        and model.actuator_gaintype[i] in (int(mujoco.mjtGain.mjGAIN_FIXED), int(mujoco.mjtGain.mjGAIN_AFFINE))
        and model.actuator_biastype[i] in (int(mujoco.mjtBias.mjBIAS_NONE), int(mujoco.mjtBias.mjBIAS_AFFINE))
        and model.actuator_plugin[i] < 0
        and not _entry(model, "delay", i).any()
    )


def _entry(model: Any, key: str, i: int) -> Array:
    """An entry of an array that older versions of MuJoCo lack; zero there."""
    values = getattr(model, f"actuator_{key}", None)
    return np.zeros(1) if values is None else np.atleast_1d(np.asarray(values[i], dtype=np.float64))


def _three(values: Array) -> Three:
    return float(values[0]), float(values[1]), float(values[2])


def _range(values: Array) -> Range:
    return float(values[0]), float(values[1])
