"""Actuators of an MJCF model: which joints they drive, by what law, and how hard."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from torchdojo.io.mjcf.model import CompiledMjcf, import_mujoco
from torchdojo.io.robot import Array

__all__ = ["Drive", "Driven", "read_drives"]

Three = tuple[float, float, float]
Range = tuple[float, float]


@dataclass(frozen=True)
class Drive:
    """An actuator on a joint, in the terms of `torchdojo.elements.actuators` and of the file's qpos."""

    joint: str  #: of the file
    gear: float
    gain: Three  #: constant, per length, per velocity
    bias: Three
    ctrlrange: Range | None
    forcerange: Range | None  #: before the gear
    inputrange: Range | None  #: of what all actuators of the joint do together [N, N m]
    length0: float  #: at qpos0: gear qpos0 [m, rad]
    effort: float  #: largest force or torque on the joint [N, N m]; infinite where the file gives none
    motor: bool  #: the force is the control times gain and gear
    acts: bool  #: False: a muscle, an actuator with dynamics, ... whose law is not here


@dataclass(frozen=True)
class Driven:
    """What the actuators of an MJCF joint give it, one value per degree of freedom, (1,) or (3,)."""

    effort: Array  #: largest force or torque [N, N m]
    damping: Array  #: [N s/m, N m s/rad]
    armature: Array  #: [kg, kg m^2]


def read_drives(compiled: CompiledMjcf) -> tuple[dict[str, Drive], dict[int, Driven], list[str]]:
    """Actuators by name; joint -> what they give it; what does not act, in words."""
    mujoco, model = import_mujoco(), compiled.model
    drives: dict[str, Drive] = {}
    efforts: dict[int, Array] = {}
    dampings: dict[int, Array] = {}
    armatures: dict[int, Array] = {}
    foreign, elsewhere, disabled, curved = [], [], [], []
    flags = {name: int(getattr(mujoco.mjtDisableBit, f"mjDSBL_{name}")) & model.opt.disableflags for name in ("CLAMPCTRL", "DAMPER")}
    for i in range(len(model.actuator_trntype)):
        name = str(model.actuator(i).name)
        on_joint = model.actuator_trntype[i] in (int(mujoco.mjtTrn.mjTRN_JOINT), int(mujoco.mjtTrn.mjTRN_JOINTINPARENT))
        j = int(model.actuator_trnid[i, 0]) if on_joint else -1
        if not on_joint or model.jnt_type[j] == int(mujoco.mjtJoint.mjJNT_FREE):
            elsewhere.append(name or f"actuator{i}")
            continue
        joint = str(model.joint(j).name) or f"joint{j}"
        if not name:
            name = f"{joint}_actuator" if f"{joint}_actuator" not in drives else f"actuator{i}"
        ball = model.jnt_type[j] == int(mujoco.mjtJoint.mjJNT_BALL)
        gears = model.actuator_gear[i, : 3 if ball else 1]
        damping, more_damping, armature = (_entry(model, key, i) for key in ("damping", "dampingpoly", "armature"))
        if more_damping.any():
            curved.append(name)
        dampings[j] = dampings.get(j, 0.0) + gears**2 * (0.0 if flags["DAMPER"] else damping[0])
        armatures[j] = armatures.get(j, 0.0) + gears**2 * armature[0]
        affine = _affine(mujoco, model, i)
        acts = affine and not ball
        bias = _three(model.actuator_biasprm[i]) if model.actuator_biastype[i] == int(mujoco.mjtBias.mjBIAS_AFFINE) else (0.0, 0.0, 0.0)
        gain = _three(model.actuator_gainprm[i])
        if model.actuator_gaintype[i] == int(mujoco.mjtGain.mjGAIN_FIXED):
            gain = gain[0], 0.0, 0.0
        motor = affine and not any((*gain[1:], *bias))
        group = int(model.actuator_group[i])
        if 0 <= group <= 30 and int(model.opt.disableactuator) >> group & 1:
            disabled.append(name)
            acts = False
        elif not acts:
            foreign.append(name)
        limit = np.inf  # before the gear
        forcerange = _range(model.actuator_forcerange[i]) if model.actuator_forcelimited[i] else None
        if forcerange is not None:
            limit = max(abs(bound) for bound in forcerange)
        ctrlrange = _range(model.actuator_ctrlrange[i]) if model.actuator_ctrllimited[i] else None
        if ctrlrange is not None and motor:
            limit = min(limit, abs(gain[0]) * max(abs(bound) for bound in ctrlrange))
        effort = np.array([abs(float(gear)) * limit if gear else 0.0 for gear in gears])
        efforts[j] = efforts.get(j, 0.0) + effort
        drives[name] = Drive(
            joint,
            float(gears[0]),
            gain,
            bias,
            None if flags["CLAMPCTRL"] else ctrlrange,
            forcerange,
            _range(model.jnt_actfrcrange[j]) if model.jnt_actfrclimited[j] else None,
            0.0 if ball else float(gears[0] * model.qpos0[model.jnt_qposadr[j]]),
            float(effort.max()),
            bool(motor),
            bool(acts),
        )
    for j, effort in efforts.items():
        if model.jnt_actfrclimited[j]:
            efforts[j] = np.minimum(effort, np.abs(model.jnt_actfrcrange[j]).max())
    notes = []
    if foreign:
        notes.append(
            f"{compiled.path}: actuators whose force is not affine in control, length and velocity (muscles, activation dynamics, delays, "
            f"plugins), and those of ball joints, do not act, the input u of their joints is a force or torque: {', '.join(foreign)}"
        )
    if disabled:
        notes.append(f"{compiled.path}: actuators of disabled groups do not act: {', '.join(disabled)}")
    if curved:
        notes.append(f"{compiled.path}: damping of actuators that is not linear keeps its linear part: {', '.join(curved)}")
    if elsewhere:
        notes.append(f"{compiled.path}: actuators that do not drive a joint do not act (step has wrench=): {', '.join(elsewhere)}")
    return drives, {j: Driven(efforts[j], dampings[j], armatures[j]) for j in efforts}, notes


def _affine(mujoco: Any, model: Any, i: int) -> bool:
    """Whether the force is affine in control, and gain and bias in length and velocity, of the present."""
    return bool(
        model.actuator_dyntype[i] == int(mujoco.mjtDyn.mjDYN_NONE)
        and model.actuator_gaintype[i] in (int(mujoco.mjtGain.mjGAIN_FIXED), int(mujoco.mjtGain.mjGAIN_AFFINE))
        and model.actuator_biastype[i] in (int(mujoco.mjtBias.mjBIAS_NONE), int(mujoco.mjtBias.mjBIAS_AFFINE))
        and model.actuator_plugin[i] < 0
        and not _entry(model, "delay", i).any()
    )


def _entry(model: Any, key: str, i: int) -> Array:
    """An array of the model that older versions of MuJoCo do not have; zero there."""
    values = getattr(model, f"actuator_{key}", None)
    return np.zeros(1) if values is None else np.atleast_1d(np.asarray(values[i], dtype=np.float64))


def _three(values: Array) -> Three:
    return float(values[0]), float(values[1]), float(values[2])


def _range(values: Array) -> Range:
    return float(values[0]), float(values[1])
