"""The actuators of an MJCF model whose law `td.Drives` knows."""

from __future__ import annotations

from typing import Any

from torchdojo.io.mjcf.model import import_mujoco

__all__ = ["GAINS", "HELD", "dynamics_of", "on_body", "on_tendon", "taken"]

#: [m] the least reach of adhesion: MuJoCo's contacts overlap, and hard ones rest at a small gap
HELD = 1e-3
#: number of MuJoCo's mjtGain and mjtBias, which agree: fixed or none, affine, muscle
GAINS = {0: "fixed", 1: "affine", 2: "muscle"}
DYNAMICS = {"NONE": "none", "INTEGRATOR": "integrator", "FILTER": "filter", "FILTEREXACT": "filterexact", "MUSCLE": "muscle"}


def dynamics_of(model: Any, i: int) -> str:
    """The name in `torchdojo.elements.actuator_laws.DYNAMICS`; empty for others."""
    return DYNAMICS.get(import_mujoco().mjtDyn(int(model.actuator_dyntype[i])).name.removeprefix("mjDYN_"), "")


def on_tendon(model: Any, i: int) -> bool:
    """Whether an actuator drives a tendon."""
    return int(model.actuator_trntype[i]) == int(import_mujoco().mjtTrn.mjTRN_TENDON)


def on_body(model: Any, i: int) -> bool:
    """Whether an actuator is the adhesion of a body."""
    return int(model.actuator_trntype[i]) == int(import_mujoco().mjtTrn.mjTRN_BODY)


def taken(model: Any, i: int) -> bool:
    """Whether law and transmission of an actuator are known, and the file enables it."""
    mujoco = import_mujoco()
    kinds = mujoco.mjtTrn
    kind = int(model.actuator_trntype[i])
    group = int(model.actuator_group[i])
    on_joint = kind in (int(kinds.mjTRN_JOINT), int(kinds.mjTRN_JOINTINPARENT))
    others = ("TENDON", "SITE", "SLIDERCRANK", "BODY")
    placed = kind in [int(getattr(kinds, f"mjTRN_{name}")) for name in others]
    placed = placed or on_joint
    laws = [int(getattr(model, f"actuator_{key}type")[i]) for key in ("gain", "bias")]
    muscle = 2 in laws
    ranged = not muscle or bool(model.actuator_lengthrange[i, 0] < model.actuator_lengthrange[i, 1])
    return bool(
        placed
        and ranged
        and dynamics_of(model, i)
        and all(law in GAINS for law in laws)
        and model.actuator_plugin[i] < 0
        and not (0 <= group <= 30 and int(model.opt.disableactuator) >> group & 1)
    )
