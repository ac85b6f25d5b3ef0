"""Drag of a medium on the bodies of a mechanism, in the model that engine/passive_forces.py has the equations of."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchdojo import quaternion as quat
from torchdojo.engine.passive_forces import Boxes, box_drag, boxes
from torchdojo.mechanism import Mechanism
from torchdojo.state.layout import split_state

__all__ = ["Boxes", "boxes", "drag"]


def drag(mech: Mechanism, z: Tensor, density: Any = 4000.0, viscosity: Any = 0.1, *, like: Boxes | None = None) -> Tensor:
    """The wrench of a resting medium on every body, (..., 6 nb) [N, N·m], for ``mech.step(z, u, wrench=drag(mech, z))``.

    It is explicit: the wrench at the velocities of z acts over the whole step. A body of mass m with half-edges r needs
    h ρ rⱼ rₖ |v| / m below one, which the swimmer has up to 16 m/s at h = 0.01 s.

    Args:
        z: (..., 13 nb). density: ρ [kg/m³], viscosity: β [Pa·s]; defaults are those of Gymnasium's swimmer. (Water has 1000 and 0.001.)
        like: `boxes(mech)`, where many steps have the same masses, since they take most of the time.
    """
    state = split_state(z)
    axes, half = boxes(mech) if like is None else like
    v = (axes.mT @ quat.inverse_rotate(state.pose.q, state.twist.v)[..., None])[..., 0]
    w = (axes.mT @ state.twist.omega[..., None])[..., 0]
    force, torque = ((axes @ part[..., None])[..., 0] for part in box_drag(v, w, half, density, viscosity))
    return torch.cat((quat.rotate(state.pose.q, force), torque), dim=-1).flatten(-2)
