"""Drives: servos at the joints of a robot, whose targets are the actions.

    torque = kp (reach · action + rest − q) − kd q̇,    kp = strength · effort / reach,    kd = max(damper of the model, damping · kp)

Here effort is the largest torque of the joint's motor. So an action of 1 at the resting pose gives `strength` times this torque, as a motor
of that strength would, and the spring and damper keep what a policy does from growing. The law is implicit (`elements/servo.py`). With
torques alone, the adjoint of a humanoid explodes through the feedback of its policy.

A drive takes the place of the joints' own springs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

import torch

from torchdojo.elements.actuators import Actuator, actuate
from torchdojo.elements.joints import StandardJoint
from torchdojo.mechanism import Mechanism

__all__ = ["Drive", "add_drives"]


@dataclass(frozen=True)
class Drive:
    """Numbers of the drives of a robot.

    reach: [rad]. strength, damping [s]: as above. rest: of motors whose name ends so, in the pose about which the drives act [rad].
    limit: largest torque over the motor's; None: no limit.
    """

    reach: float
    strength: float = 1.0
    damping: float = 0.1
    rest: Mapping[str, float] = field(default_factory=dict)
    limit: float | None = None

    def rest_of(self, motor: str) -> float:
        """Rest position of a motor [rad]."""
        return next((angle for ending, angle in self.rest.items() if motor.endswith(ending)), 0.0)


def add_drives(mech: Mechanism, drive: Drive) -> None:
    """Put drives in the place of the motors of a built-in robot."""
    motors = mech.actuators
    assert motors is not None
    efforts = (motors.gear * motors.ctrlrange[:, 1] * motors.gain[:, 0]).tolist()
    servos = {}
    for name, joint_name, coordinate, effort in zip(motors.names, motors.joints, motors.coordinates, efforts, strict=True):
        joint = cast(StandardJoint, mech.joints[joint_name])
        kp = drive.strength * effort / drive.reach
        damping = float(torch.as_tensor(joint.damper).expand(joint.num_coordinates)[coordinate])
        servos[name] = Actuator(
            joint_name,
            gain=kp * drive.reach,
            bias=(kp * drive.rest_of(name), -kp, -max(0.0, drive.damping * kp - damping)),
            ctrlrange=(-1.0, 1.0),
            forcerange=None if drive.limit is None else (-drive.limit * effort, drive.limit * effort),
            coordinate=coordinate,
        )
    for joint_name in dict.fromkeys(motors.joints):
        joint = cast(StandardJoint, mech.joints[joint_name])
        joint.spring = torch.zeros_like(torch.as_tensor(joint.spring))
    actuate(mech, servos)
