"""Servos with a range of force: elements that the mechanism makes for the joints that have them.

A servo (servo.py) with a range has the force f = clip(u − g ċ⁺, lower, upper) on its coordinate, g = kd + h kp. The clip is part of the
equations, so the servo neither explodes nor brakes with more than its range. With m and r the middle and half the width of the range,
f = m + λ/h is a bounded impulse against a rate, as joint friction is (joint_cones.py), with an offset of the rate and a compliance:

    p + q − 2b = 0,  ċ⁺ − (u − m)/g + λ/(g h) − σ_p + σ_q = 0,  p σ_p = κ,  q σ_q = κ,  b = h r          impulse h m + λ,  λ = (p − q)/2

Between its bounds λ has p, q ~ b, both slacks are about κ/b, and the second row says h m + λ = h (u − g ċ⁺). At λ = b only σ_p vanishes,
and u − g ċ⁺ may be any larger force. The law is monotone in ċ⁺, so it is dissipative about the target, and smooth for κ > 0.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchdojo.elements.element import Cones, Motion, Pose
from torchdojo.elements.joint_cones import JointFriction, coordinate_mass, units
from torchdojo.elements.path_maps import LEAST_HEIGHT
from torchdojo.elements.servo import SERVO, SERVO_RANGE, at_most_one_radian

__all__ = ["JointDrive"]


class JointDrive(JointFriction):
    """A servo on the coordinates `driven` of a joint: impulses (p, q) >= 0, slacks (σ_p, σ_q), all p first. It reads the joint's inputs."""

    own_fields = (*SERVO, *SERVO_RANGE)
    reads_joint_inputs = True

    def __getattr__(self, name: str) -> Any:
        value = super().__getattr__(name)
        # Coordinates without a range may have infinite ones, which no parameter of a step may be.
        return torch.where(self.joint.without_range(value) > 0, 0.0, value) if name in SERVO_RANGE else value

    @property
    def cones(self) -> Cones:  # type: ignore[override]
        return Cones(orthant=2 * len(self.joint.driven))

    def _own(self, value: Tensor) -> Tensor:
        """Numbers of the coordinates with a drive among those of all coordinates."""
        return value[..., list(self.joint.driven)]

    def bound_impulse(self, timestep: Tensor) -> Tensor:
        return (timestep * 0.5 * self._own(self.servo_upper - self.servo_lower)).clamp_min(LEAST_HEIGHT)

    @property
    def middle(self) -> Tensor:
        """Middle of the range [N, N·m], (..., len(driven))."""
        return 0.5 * self._own(self.servo_lower + self.servo_upper)

    def gain(self, timestep: Tensor, u: Tensor | None = None) -> Tensor:
        """g = kd + h kp [N·s/m, N·m·s/rad], (..., len(driven)), with the larger kp of `at_most_one_radian` for the inputs u."""
        stiffness = self.servo_stiffness
        if u is not None and u.shape[-1]:
            stiffness = at_most_one_radian(stiffness, u, self.joint.free_translations)
        return self._own(self.servo_damping + timestep * stiffness)

    def _rate(self, motions: tuple[Motion, ...], timestep: Tensor) -> Tensor:
        parent, child = motions
        return self._own(self.bound_joint().rate((parent.pose, child.pose), (parent.next, child.next), timestep))

    def residual(
        self, motions: tuple[Motion, ...], impulse: Tensor, slack: Tensor, u: Tensor, timestep: Tensor
    ) -> tuple[list[tuple[Tensor, Tensor]], Tensor]:
        joint = self.bound_joint()
        parent, child = motions
        (p, q), (slack_p, slack_q) = impulse.tensor_split(2, -1), slack.tensor_split(2, -1)
        force, gain, middle = 0.5 * (p - q), self.gain(timestep, u), self.middle
        target_force = (self._own(u) if u.shape[-1] else 0.0) - middle
        slip = self._rate(motions, timestep) - (target_force - force / timestep) / gain
        rows = torch.cat((p + q - 2 * self.bound_impulse(timestep), slip - slack_p + slack_q), dim=-1)
        places = torch.zeros(len(joint.driven), joint.num_coordinates, dtype=force.dtype, device=force.device)
        places[range(len(joint.driven)), list(joint.driven)] = 1.0
        return joint.act(parent.pose, child.pose, *joint.expanded((force + timestep * middle) @ places)), rows

    def start(self, motions: tuple[Motion, ...], level: Tensor) -> tuple[Tensor, Tensor]:
        # λ = 0: the forces that the servo wants depend on u.
        b = self.bound_impulse(motions[0].timestep).expand(*motions[0].pose.x.shape[:-1], -1)
        impulse = torch.cat((b, b), dim=-1)
        return impulse, level[..., None] / impulse

    def effective_mass(self, poses: tuple[Pose, ...], mass: Tensor, inertia: Tensor, timestep: Tensor) -> Tensor:
        # The slip answers to an impulse with the mobility of the bodies and the drive's own 1/(g h).
        joint = self.bound_joint()
        wrenches = [joint.act(poses[0], poses[1], *joint.expanded(one)) for one in units(joint, inertia)]
        bodies = self._own(coordinate_mass(joint, mass, inertia, timestep, wrenches, driven=False))
        return bodies / (1 + bodies / (self.gain(timestep) * timestep))
