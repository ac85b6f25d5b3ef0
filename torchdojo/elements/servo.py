"""Servos and implicit springs of joints: the fields, and the damper that makes both implicit.

At the next coordinate c⁺ = c + h ċ⁺, a spring or a position servo is one at the present coordinate and a damper of h times the stiffness:

    spring (rest − c⁺) = spring (rest − c) − h spring ċ⁺          kp (target − c⁺) − kd ċ⁺ = kp (target − c) − (kd + h kp) ċ⁺

Dampers act at the next velocity with exact Jacobians, so both laws are linear in ċ⁺. For translations and for rotations about a fixed axis
they are backward Euler: stable for all k and h, and a step loses the energy ½ m (v⁺ − v)² + ½ k (c⁺ − c)². The input u carries
kp (target − c) and any feedforward, so the target is an input with gradients. A servo with a range is a `JointDrive`.

Two things need a larger damper: gaps beyond a radian (`at_most_one_radian`), and several rotations far from zero (`detour`).
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor

from torchdojo.elements.joint import Joint
from torchdojo.parameters import as_tensor, require, transforming

__all__ = ["SERVO", "SERVO_RANGE", "ServoJoint", "at_most_one_radian", "detour"]

SERVO = ("servo_stiffness", "servo_damping")
SERVO_RANGE = ("servo_lower", "servo_upper")


class ServoJoint(Joint):
    """The part of a `StandardJoint` that has to do with servos and implicit springs."""

    structural: ClassVar[frozenset[str]] = Joint.structural | {"actuated", "implicit"}
    optional: ClassVar[dict[str, int]] = {**dict.fromkeys((*SERVO, *SERVO_RANGE), 1), **Joint.optional}
    implicit: bool = False
    driven: tuple[int, ...] = ()  #: coordinates whose servo has a range
    spring: Tensor
    damper: Tensor
    rest: Tensor
    servo_stiffness: Tensor | None
    servo_damping: Tensor | None
    servo_lower: Tensor | None
    servo_upper: Tensor | None

    def keyword(self, name: str) -> str:
        return "servo_range" if name in SERVO_RANGE else super().keyword(name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in SERVO_RANGE and name in self.fields and not transforming():
            new = self.check_field(name, as_tensor(value, self.label(name)))
            driven = self._driven(*(new if bound == name else getattr(self, bound) for bound in SERVO_RANGE))
            if driven != self.driven:
                raise ValueError(
                    f"{self.label(name)}: got {new.tolist()}, which acts on the coordinates {driven}; allowed: ranges that act on those "
                    f"that the joint was built with a range for, {self.driven}"
                )
        super().__setattr__(name, value)

    def add_servo(self, stiffness: Any = None, damping: Any = None, servo_range: tuple[Any, Any] | None = None) -> None:
        """Add a servo to the joint: its fields `servo_stiffness`, `servo_damping`, and `servo_lower`, `servo_upper` where it has a range.

        A mechanism that has the joint needs `mech.rebuild()` afterwards.

        Raises:
            ValueError: the joint has a servo; negative numbers, a range with one finite side or without room between its sides.
        """
        if SERVO[0] in self.fields:
            raise ValueError(f"{self.label('servo_stiffness')}: the joint has a servo already; assign its fields")
        values = {name: 0.0 if value is None else value for name, value in zip(SERVO, (stiffness, damping), strict=True)}
        if not self.num_coordinates or not any(self.has_effect(name, value) for name, value in values.items()):
            return
        self.set_fields({**self.fields, **dict.fromkeys(SERVO, 1)})
        for name, value in values.items():
            setattr(self, name, value)
        if servo_range is None:
            return
        try:
            values = dict(zip(SERVO_RANGE, servo_range, strict=True))
        except (TypeError, ValueError) as error:
            raise ValueError(f"{self.label('servo_range')}: got {servo_range!r}; allowed: a pair (lower, upper)") from error
        checked = {name: self.check_field(name, as_tensor(value, self.label(name))) for name, value in values.items()}
        self.driven = self._driven(*checked.values())
        if self.driven:
            self.set_fields({**self.fields, **dict.fromkeys(SERVO_RANGE, 1)})
            for name, value in values.items():
                self._store(name, value, checked[name])

    def _driven(self, lower: Tensor, upper: Tensor) -> tuple[int, ...]:
        """Coordinates whose servo has a range."""
        assert self.servo_stiffness is not None and self.servo_damping is not None
        lower, upper = torch.broadcast_tensors(lower.detach(), upper.detach())
        finite = torch.isfinite(lower)
        allowed = "finite numbers on both sides, in all environments, or infinite ones on both"
        every = finite.reshape(-1, self.num_coordinates).all(0)
        require((finite == torch.isfinite(upper)) & (finite == every), self.label("servo_range"), torch.stack((lower, upper), -1), allowed)
        require(lower < upper, self.label("servo_range"), lower, f"lower numbers below the upper ones, {upper.tolist()}")
        gains = (self.servo_stiffness, self.servo_damping)
        acts = sum((gain.detach() != 0) | gain.requires_grad for gain in gains)
        acts = torch.as_tensor(acts).reshape(-1, self.num_coordinates).any(0)
        return tuple((every & acts).nonzero().flatten().tolist())

    @property
    def implicit_stiffness(self) -> Tensor | None:
        """Stiffness of the implicit spring and of servos without a range, (..., num_coordinates); None where neither is."""
        total = self.spring * detour(self.rest, self.free_translations) if self.implicit else None
        if self.servo_stiffness is None:
            return total
        servo = self.servo_stiffness * self.without_range(self.spring) if self.driven else self.servo_stiffness
        return servo if total is None else total + servo

    def damping(self, timestep: Tensor, force: Tensor | None = None) -> Tensor:
        """Damper along the free coordinates, with dampers of implicit springs and of servos without a range, (..., num_coordinates).

        Args:
            force: of springs and inputs on the coordinates [N, N·m]; None: none.
        """
        total, stiffness = self.damper, self.implicit_stiffness
        if self.servo_damping is not None:
            total = total + (self.servo_damping * self.without_range(self.spring) if self.driven else self.servo_damping)
        if stiffness is None:
            return total
        return total + timestep * (stiffness if force is None else at_most_one_radian(stiffness, force, self.free_translations))

    def without_range(self, like: Tensor) -> Tensor:
        """One for coordinates whose force no range of a servo limits, zero for the others, (num_coordinates,)."""
        return like.new_tensor([0.0 if i in self.driven else 1.0 for i in range(self.num_coordinates)])


def at_most_one_radian(stiffness: Tensor, force: Tensor, translations: int) -> Tensor:
    """Stiffness (..., n) that turns the joint by at most about 1 rad in a step: max(stiffness, √r |torque| / 1 rad), where not zero.

    Here r is the number of rotations. A body turns by less than 90 degrees in a step (`LARGEST_SINE`), and a very stiff spring closes its
    whole gap in one.
    """
    size = stiffness.shape[-1]
    angle = torch.arange(size, device=stiffness.device) >= translations
    return torch.where(angle & (stiffness > 0), torch.maximum(stiffness, math.sqrt(max(size - translations, 1)) * force.abs()), stiffness)


def detour(rest: Tensor, translations: int) -> Tensor:
    """Factor (..., 1) of the stiffness of several rotations, above one from rest positions |ρ| of 0.9 rad (two) or 1.8 rad (three) on.

    A spring has the stiffness k and k (x/sin x)² about its rest, for turns along ρ and across. Three rotations change their vector by the
    inverse Jacobian of SO(3), so x = |ρ|/2. Two turn about the held axis, too, when they move across ρ, so x = |ρ|. A stiff damper f times
    h k multiplies errors by 1 − 1/f and 1 − (x/sin x)²/f. This is stable for f > ½ (x/sin x)², and the factor is 1.5 times this bound.
    """
    rotations = rest.shape[-1] - translations
    if rotations < 2:
        return rest.new_ones(1)
    squared = (rest[..., translations:] ** 2).sum(-1, keepdim=True).clamp_max(torch.pi**2)
    long = squared > 0.8
    x = torch.sqrt(torch.where(long, squared, torch.ones_like(squared))) * (1.0 if rotations == 2 else 0.5)
    return torch.where(long, (0.75 * (x / torch.sin(x).clamp_min(0.05)) ** 2).clamp_min(1.0), torch.ones_like(squared))
