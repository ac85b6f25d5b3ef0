"""Actuators of an MJCF model: which joints they drive, and how hard."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from torchdojo.io.mjcf_model import CompiledMjcf, import_mujoco
from torchdojo.io.urdf_description import Array

__all__ = ["Drive", "read_drives"]


@dataclass(frozen=True)
class Drive:
    """An actuator on a joint."""

    joint: str  #: of the file
    gear: float  #: of a motor, force or torque per control, gain included [N, N m]; of a servo, of its force
    ctrlrange: tuple[float, float] | None
    effort: float  #: largest force or torque on the joint [N, N m]; infinite where the file gives none
    motor: bool  #: False: a servo, muscle, ... whose law does not act here


def read_drives(compiled: CompiledMjcf) -> tuple[dict[str, Drive], dict[int, Array], list[str]]:
    """Actuators by name; joint -> effort limit of each degree of freedom, (1,) or (3,) [N, N m]; what does not act, in words."""
    mujoco, model = import_mujoco(), compiled.model
    drives: dict[str, Drive] = {}
    efforts: dict[int, Array] = {}
    servos, elsewhere, heavy = [], [], []
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
        motor = (
            model.actuator_dyntype[i] == int(mujoco.mjtDyn.mjDYN_NONE)
            and model.actuator_gaintype[i] == int(mujoco.mjtGain.mjGAIN_FIXED)
            and model.actuator_biastype[i] == int(mujoco.mjtBias.mjBIAS_NONE)
        )
        if not motor:
            servos.append(name)
        if model.actuator_damping[i] or model.actuator_armature[i]:
            heavy.append(name)
        ball = model.jnt_type[j] == int(mujoco.mjtJoint.mjJNT_BALL)
        gears = model.actuator_gear[i, : 3 if ball else 1]
        gain = float(model.actuator_gainprm[i, 0]) if motor else 1.0
        limit = np.inf  # before the gear
        if model.actuator_forcelimited[i]:
            limit = float(np.abs(model.actuator_forcerange[i]).max())
        ctrlrange = None
        if model.actuator_ctrllimited[i]:
            low, high = (float(bound) for bound in model.actuator_ctrlrange[i])
            ctrlrange = low, high
            if motor:
                limit = min(limit, abs(gain) * max(abs(low), abs(high)))
        effort = np.array([abs(float(gear)) * limit if gear else 0.0 for gear in gears])
        efforts[j] = efforts.get(j, 0.0) + effort
        drives[name] = Drive(joint, gain * float(gears[0]), ctrlrange, float(effort.max()), bool(motor))
    for j, effort in efforts.items():
        if model.jnt_actfrclimited[j]:
            efforts[j] = np.minimum(effort, np.abs(model.jnt_actfrcrange[j]).max())
    notes = []
    if servos:
        notes.append(
            f"{compiled.path}: the laws of actuators other than motors (servos, muscles, ...) do not act, the input u of their joints is a "
            f"force or torque: {', '.join(servos)}"
        )
    if heavy:
        notes.append(f"{compiled.path}: damping and armature of actuators do not act (those of joints do): {', '.join(heavy)}")
    if elsewhere:
        notes.append(f"{compiled.path}: actuators that do not drive a joint do not act (step has wrench=): {', '.join(elsewhere)}")
    return drives, efforts, notes
