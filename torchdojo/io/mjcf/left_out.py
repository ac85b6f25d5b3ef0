"""Parts of a compiled MJCF model that a mechanism lacks: physics that does not act, and content that is only counted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from torchdojo.io.mjcf.equalities import led_by_mocap
from torchdojo.io.mjcf.model import CompiledMjcf, disabled, import_mujoco
from torchdojo.io.mjcf.names import equality_label, joint_label
from torchdojo.io.report import Findings
from torchdojo.io.robot import Array

__all__ = ["report_contacts", "report_model", "softer"]

SOLREF, SOLIMP = (0.02, 1.0), (0.9, 0.95, 0.001, 0.5, 2.0)  # MuJoCo's defaults
HARD = "limits, contacts and equalities are as hard as kappa makes them"
#: content that does not affect the motion -> its count in the model
COUNTED = {
    "cameras": "ncam", "lights": "nlight", "materials": "nmat", "skins": "nskin",
    "custom numbers": "nnumeric", "custom texts": "ntext",
}  # fmt: skip


def report_model(compiled: CompiledMjcf, names: Sequence[str], yielding: bool, findings: Findings) -> None:
    """Report on joints and bodies. `names`: of MJCF bodies. `yielding`: whether couplings of joints yield as the file says."""
    model, mujoco = compiled.model, import_mujoco()
    _report_joints(model, mujoco, findings)
    mocap = [names[b] for b in range(model.nbody) if model.body_mocapid[b] >= 0]
    findings.add(
        "approximated",
        "mocap bodies",
        mocap,
        "they stay where the file has them; soft joints of the constraints to them move what they lead",
    )
    findings.add("ignored", "flexible bodies", [f"flex{i}" for i in range(model.nflex)], "they have no counterpart")
    findings.add("ignored", "plugins", [f"plugin{i}" for i in range(model.nplugin)], "they have no counterpart")
    coupling = (int(mujoco.mjtEq.mjEQ_JOINT), int(mujoco.mjtEq.mjEQ_TENDON))
    rigid = [i for i in range(model.neq) if not led_by_mocap(model, i) and not (yielding and int(model.eq_type[i]) in coupling)]
    soft = [equality_label(model, i) for i in softer(model, "eq_solref", "eq_solimp", rigid)]
    findings.add("approximated", "solref and solimp of equalities", soft, f"{HARD}; load(soft=True) lets those between joints yield")
    for kind, key in COUNTED.items():
        findings.add("ignored", kind, [""] * int(getattr(model, key)), "the motion does not depend on it", "none")


def report_contacts(compiled: CompiledMjcf, labels: dict[int, str], findings: Findings) -> None:
    """Report on numbers of geoms that touch. `labels`: geom -> name, of those that have contacts."""
    model = compiled.model
    soft = [labels[g] for g in softer(model, "geom_solref", "geom_solimp", labels)]
    findings.add("approximated", "solref and solimp of geoms", soft, HARD)
    wide = [label for g, label in labels.items() if model.geom_margin[g] or _of(model, "geom_gap")[g]]
    findings.add("approximated", "margin and gap of geoms", wide, "surfaces touch where their distance is zero")


def _report_joints(model: Any, mujoco: Any, findings: Findings) -> None:
    def add(did: Any, kind: str, joints: Iterable[int], reason: str) -> None:
        findings.add(did, kind, [joint_label(model, int(j)) for j in dict.fromkeys(joints)], reason)

    add("ignored", "springs that yield", np.flatnonzero(_of(model, "jnt_springyield")), "they do not yield")  # new in MuJoCo 4
    limited = [] if disabled(model, "LIMIT") else [int(j) for j in np.flatnonzero(model.jnt_limited)]
    add("approximated", "solref and solimp of limits", softer(model, "jnt_solref", "jnt_solimp", limited), HARD)
    add("approximated", "margin of limits", [j for j in limited if model.jnt_margin[j]], "limits act where they are reached")
    rubbing = [] if disabled(model, "FRICTIONLOSS") else [int(i) for i in np.flatnonzero(model.dof_frictionloss)]
    soft = softer(model, "dof_solref", "dof_solimp", rubbing)
    add("approximated", "solref and solimp of joint friction", [int(model.dof_jntid[i]) for i in soft], HARD)


def softer(model: Any, solref: str, solimp: str, numbers: Iterable[int]) -> list[int]:
    """The numbers of elements whose softness is not MuJoCo's default."""
    ref, imp = getattr(model, solref), getattr(model, solimp)
    return [i for i in numbers if not (np.allclose(ref[i], SOLREF) and np.allclose(imp[i], SOLIMP))]


def _of(model: Any, key: str) -> Array:
    """An array that other versions of MuJoCo lack; zeros there."""
    count = {"jnt": model.njnt, "dof": model.nv, "geom": model.ngeom, "tendon": model.ntendon}[key.split("_")[0]]
    return np.asarray(getattr(model, key, np.zeros(count)), dtype=np.float64)
