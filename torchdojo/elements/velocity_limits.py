"""Limits on the rates of joint coordinates, as motors have them: an element that the mechanism makes for the joints that have them.

With the rates ċ⁺ of the step and the largest speed v of each limited coordinate,

    v + ċ⁺ − s = 0,  v − ċ⁺ − s' = 0,  γ s = κ,  γ' s' = κ                                              impulse γ − γ'

along the coordinate, as friction acts. As κ → 0 an impulse opposes only coordinates that would move faster. It belongs to the joint: no
heat, no energy. The motor of a joint that is driven beyond its speed gives less than the input asks for.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchdojo.elements.element import Cones, Motion, Pose
from torchdojo.elements.hard_maps import hard_pair
from torchdojo.elements.joint_cones import JointElement, coordinate_mass, units
from torchdojo.elements.joints import StandardJoint
from torchdojo.elements.path_maps import Change, orthant_on_path

__all__ = ["JointVelocityLimits"]


class JointVelocityLimits(JointElement):
    """Largest speeds of the coordinates of a joint: one impulse γ >= 0 and one slack per side, all lower sides (ċ⁺ >= −v) first."""

    own_fields = ("velocity_limits",)
    joint: StandardJoint

    def __getattr__(self, name: str) -> Any:
        value = super().__getattr__(name)
        if name != "velocity_limits":
            return value
        # Coordinates without a limit have infinity, which no parameter of a step may be.
        acting = [k in self.joint.velocity_limited for k in range(self.joint.num_coordinates)]
        return torch.where(torch.tensor(acting, device=value.device), value, torch.zeros_like(value))

    @property
    def cones(self) -> Cones:  # type: ignore[override]
        return Cones(orthant=2 * len(self.joint.velocity_limited))

    def kind(self) -> tuple[object, ...]:
        return (*super().kind(), self.joint.velocity_limited)

    def residual(
        self, motions: tuple[Motion, ...], impulse: Tensor, slack: Tensor, u: Tensor, timestep: Tensor
    ) -> tuple[list[tuple[Tensor, Tensor]], Tensor]:
        joint = self.bound_joint()
        lower, upper = impulse.tensor_split(2, -1)
        places = list(joint.velocity_limited)
        units_along = torch.eye(joint.num_coordinates, dtype=impulse.dtype, device=impulse.device)[places]
        along = joint.expanded((lower - upper) @ units_along)
        return joint.act(motions[0].pose, motions[1].pose, *along), self.room(motions, timestep) - slack

    def room(self, motions: tuple[Motion, ...], timestep: Tensor) -> Tensor:
        """Speed that remains to the limit on every side, (..., cones.size) [m/s, rad/s]."""
        joint = self.bound_joint()
        parent, child = motions
        places = list(joint.velocity_limited)
        rate = joint.rate((parent.pose, child.pose), (parent.next, child.next), timestep)[..., places]
        limit = joint.velocity_limits[..., places]
        return torch.cat((limit + rate, limit - rate), dim=-1)

    def start(self, motions: tuple[Motion, ...], level: Tensor) -> tuple[Tensor, Tensor]:
        room = torch.maximum(self.room(motions, motions[0].timestep), level.sqrt()[..., None])
        return level[..., None] / room, room

    def effective_mass(self, poses: tuple[Pose, ...], mass: Tensor, inertia: Tensor, timestep: Tensor) -> Tensor:
        joint = self.bound_joint()
        wrenches = [joint.act(poses[0], poses[1], *joint.expanded(one)) for one in units(joint, inertia)]
        masses = coordinate_mass(joint, mass, inertia, timestep, wrenches)[..., list(joint.velocity_limited)]
        return torch.cat((masses, masses), dim=-1)

    def on_path(
        self, impulse: Tensor, slack: Tensor, kappa: Tensor, mass: Tensor, timestep: Tensor, change: Change
    ) -> tuple[Tensor, Tensor]:
        kappa = kappa[..., None]
        gamma = orthant_on_path(impulse, slack, kappa, mass, change)
        return gamma, kappa / gamma

    def at_limit(self, impulse: Tensor, slack: Tensor, mass: Tensor, timestep: Tensor, compliance: float) -> tuple[Tensor, Tensor]:
        return hard_pair(impulse, slack, mass, compliance)
