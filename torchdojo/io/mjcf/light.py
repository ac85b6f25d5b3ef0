"""Light bodies between the joints that one MJCF body has toward its parent.

MuJoCo lets several joints act one after another on one body. Between two of them nothing has mass there. Here, a body stands between two
joints, and SHARE says how light it is: its mass relative to the mass that it carries, and its inertia relative to the least moment of what
it carries. It is a ball at the anchor of the next joint, which that joint does not move, so that it adds nothing to the torque of gravity.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from torchdojo.io.mjcf.joints import Fit
from torchdojo.io.robot import Array, composed_inertia

__all__ = ["SHARE", "light_body"]

SHARE = 1e-6


def light_body(model: Any, data: Any, top: int, following: Fit) -> tuple[float, Array, Array]:
    """Mass [kg], center (3,) in the frame of the MJCF body [m] and inertia (3, 3) [kg m^2] of the body before the joint `following`.

    Args:
        data: at qpos0. top: MJCF body that the joints move.
    """
    parts = []
    for b in range(top, model.nbody):
        above = b
        while above > top:
            above = int(model.body_parentid[above])
        if above == top and model.body_mass[b] > 0:
            axes = data.ximat[b].reshape(3, 3)
            parts.append((float(model.body_mass[b]), np.array(data.xipos[b]), axes @ np.diag(model.body_inertia[b]) @ axes.T))
    mass, _, inertia = composed_inertia(parts)
    least = float(np.linalg.eigvalsh(inertia)[0])
    return SHARE * mass, following.anchor, SHARE * least * np.eye(3)
