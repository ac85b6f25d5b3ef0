"""Rotors: actuators that push and turn a free body along axes of its own, as the propellers of a drone do.

Controls are in [−1, 1]. A rotor at place p of the body, with axis a and thrust f, gives the wrench (f a, f p × a + f c a) at the center of
mass, in body axes. The moment per thrust c [m] is the drag of the blades. The body's `Floating` joint takes it as its input, in the axes of
the world.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from torchdojo import quaternion as quat
from torchdojo.elements.actuators import Actuator, Actuators, Driven
from torchdojo.elements.joints import Floating
from torchdojo.precision import in_float64

__all__ = ["Rotor", "Rotors"]

Vector = tuple[float, float, float]


class Rotor(NamedTuple):
    """A rotor of a body.

    position: from the body's center of mass, in body axes [m]. thrust: at the controls −1 and 1 [N].
    moment: about the axis, per thrust [m]. axis: unit vector in body axes.
    """

    position: Vector
    thrust: tuple[float, float]
    moment: float = 0.0
    axis: Vector = (0.0, 0.0, 1.0)


class Rotors(Actuators):
    """The rotors of one body as `mech.actuators`: ``u = mech.actuators(ctrl, z)``, ``mech.step(z, ctrl=ctrl)``.

    Thrust is affine in the control. The fields `gain`, `bias`, `ctrlrange` and `forcerange` of `Actuators` may be assigned and learned.

    Args:
        joint: name of the `Floating` joint between the world and the body, actuated, anchored at the center of mass.
        rotors: by name.

    Raises:
        ValueError: another joint.
    """

    per_thrust: Tensor  #: (n, 6) wrench of each rotor at 1 N, in body axes

    def __init__(self, mech: Driven, joint: str, rotors: Mapping[str, Rotor]) -> None:
        base = dict(mech.joints.items()).get(joint)
        if not isinstance(base, Floating) or base.parent is not None or bool(base.child_anchor.any()) or bool(base.parent_anchor.any()):
            raise ValueError(f"Rotors: got the joint {joint!r}; allowed: a Floating joint to the world with both anchors at zero")
        motors = {}
        for name, rotor in rotors.items():
            low, high = rotor.thrust
            middle = (0.5 * (low + high), 0.0, 0.0)
            motors[name] = Actuator(joint, gain=0.5 * (high - low), bias=middle, ctrlrange=(-1.0, 1.0), forcerange=rotor.thrust)
        super().__init__(mech, motors)
        self.joint, self.rotors = joint, dict(rotors)
        self.body = list(mech.bodies).index(base.child)
        place, axis, moment = (
            torch.tensor([getattr(rotor, key) for rotor in rotors.values()]).to(mech.gravity) for key in ("position", "axis", "moment")
        )
        wrench = torch.cat((axis, quat.cross(place, axis) + moment[:, None] * axis), dim=-1)
        self.register_buffer("per_thrust", wrench, persistent=False)

    @property
    def measures(self) -> bool:
        """True: the input depends on the body's orientation."""
        return True

    @in_float64
    def forward(self, ctrl: Tensor, z: Tensor | None = None) -> Tensor:
        """The input u (..., nu) [N, N m] for controls (..., n) at a state z (..., 13 nb).

        Raises:
            ValueError: wrong shapes, no z. TypeError: wrong dtype or device.
        """
        self.check(ctrl)
        if z is None:
            raise ValueError("z: not given; the thrust of rotors turns with the body")
        thrust = _clip(self.gain[..., 0] * _clip(ctrl, self.ctrlrange) + self.bias[..., 0], self.forcerange)
        wrench = thrust @ self.per_thrust
        current, _ = self._mechanism.configurations(z)
        q = current.q[..., self.body, :]
        turned = torch.cat((quat.rotate(q, wrench[..., :3]), quat.rotate(q, wrench[..., 3:])), dim=-1)
        place = self._mechanism.input_layout[self.joint]
        return torch.nn.functional.pad(turned, (place.start, self.num_inputs - place.stop))

    def on(self, mech: Driven) -> Rotors:
        """The same rotors, with tensors of the same numbers and graphs, for another mechanism."""
        other = Rotors(mech, self.joint, self.rotors)
        for field in self.fields:
            setattr(other, field, getattr(self, field) if getattr(self, field).requires_grad else getattr(self, field).detach())
        return other


def _clip(value: Tensor, bounds: Tensor) -> Tensor:
    return torch.clamp(value, bounds[..., 0], bounds[..., 1])
