"""Springs and dampers of MuJoCo's soft constraints.

A constraint of impedance d has the force (MuJoCo's documentation, Computation: Constraint model and Solver parameters; it follows from
R f = aref - a and R = A (1 - d) / d)

    f = d / ((1 - d) A) (-b v - k r - a),     b = 2 / (dmax timeconst),     k = d / (dmax timeconst dampratio)^2

on an error r with rate v and acceleration a. A is the inverse effective mass at qpos0. At rest this is a spring. Its stiffness belongs to
the impedance of large errors, d = dmax, which is taken for all of them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from torchdojo.io.mjcf.model import disabled, import_mujoco

__all__ = ["Softness", "softness"]


class Softness(NamedTuple):
    """weight: d / (1 - d). stiffness: k [1/s^2]. damping: b [1/s]. Times weight / A they belong to a spring and a damper."""

    weight: float
    stiffness: float
    damping: float


def softness(model: Any, solref: Any, solimp: Any) -> Softness:
    """Softness at the largest impedance of a constraint, from its solref and solimp."""
    first, second = (float(value) for value in solref)
    mujoco = import_mujoco()
    impedance = float(np.clip(solimp[1], mujoco.mjMINIMP, mujoco.mjMAXIMP))
    weight = impedance / (1 - impedance)
    if first <= 0:  # the file gives the negative stiffness and damping
        return Softness(weight, -first / impedance, -second / impedance)
    if not disabled(model, "REFSAFE"):
        first = max(first, 2 * float(model.opt.timestep))
    return Softness(weight, 1 / (impedance * (first * second) ** 2), 2 / (impedance * first))
