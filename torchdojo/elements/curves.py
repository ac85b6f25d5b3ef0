"""Springs and dampers whose forces are polynomials: the law, and the fields of joints that have them.

A spring with the stretch x and a damper with the rate v have, beside k x and d v of their linear parts, the forces

    spring_curve  (k₂, k₃)     −P(x),  P = k₂ x² + k₃ x³          energy k₂ x³/3 + k₃ x⁴/4
    damper_curve  (d₂, d₃)     −v |v| (d₂ + d₃ |v|)               never against the power of a damper, since d₂, d₃ >= 0

as in MuJoCo 4, where the numbers follow the linear one: `stiffness="k k₂ k₃"`, `damping="d d₂ d₃"`. The sign of x counts in k₂ x², so a
curve may be stiffer on one side. Dampers act at the next velocity, and a spring at the present stretch, or with `implicit` at the next one,
y = x + h v. So both are a function of one velocity, and the equations of a step stay monotone where P′ >= 0.
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from torchdojo.elements.element import Pose
from torchdojo.elements.servo import ServoJoint
from torchdojo.parameters import require

__all__ = ["CURVES", "CurvedJoint", "curve_energy", "curve_force", "drag"]

CURVES = ("spring_curve", "damper_curve")


def curve_force(stretch: Tensor, curve: Tensor) -> Tensor:
    """P(x) = k₂ x² + k₃ x³, (...), of stretches (...) and curves (..., 2)."""
    return (curve[..., 0] + curve[..., 1] * stretch) * stretch**2


def curve_energy(stretch: Tensor, curve: Tensor) -> Tensor:
    """∫ P dx [J], (...)."""
    return (curve[..., 0] / 3 + curve[..., 1] / 4 * stretch) * stretch**3


def drag(rate: Tensor, curve: Tensor) -> Tensor:
    """v |v| (d₂ + d₃ |v|), (...), of rates (...) and curves (..., 2)."""
    speed = rate.abs()
    return (curve[..., 0] + curve[..., 1] * speed) * speed * rate


class CurvedJoint(ServoJoint):
    """The part of a `StandardJoint` that has to do with polynomials of springs and dampers."""

    optional: ClassVar[dict[str, int]] = {**dict.fromkeys(CURVES, 2), **ServoJoint.optional}
    spring_curve: Tensor | None
    damper_curve: Tensor | None
    armature: Tensor | None

    def check_field(self, name: str, value: Tensor) -> Tensor:
        if name not in CURVES:
            return super().check_field(name, value)
        if self.free_rotations > 1:
            raise ValueError(
                f"{self.label(name)}: got {value.tolist()} for a joint with {self.free_rotations} free rotations; allowed: for joints with "
                "at most one; leave it out here"
            )
        value = value.expand(self.num_coordinates, 2) if value.shape == (2,) else value
        if value.shape[-2:] != (self.num_coordinates, 2):
            raise ValueError(
                f"{self.label(name)}: got shape {tuple(value.shape)}; allowed: (2,), the numbers of square and cube, or "
                f"(..., {self.num_coordinates}, 2), two for each free coordinate"
            )
        value = super().check_field(name, value)
        if name == "damper_curve":
            require(value >= 0, self.label(name), value, "numbers >= 0")
        return value

    def resistance(self, coordinates: Tensor, rate: Tensor, acting: Tensor, timestep: Tensor) -> Tensor:
        """Forces of dampers and of polynomials on the coordinates [N, N·m], at these and at rates ċ⁺, (..., num_coordinates) each.

        Args:
            acting: forces of springs and inputs, (..., num_coordinates) (`damping`).
        """
        force = -self.damping(timestep, acting) * rate
        if self.spring_curve is not None:
            stretch = coordinates - self.rest
            force = force - curve_force(stretch + timestep * rate if self.implicit else stretch, self.spring_curve)
        return force if self.damper_curve is None else force - drag(rate, self.damper_curve)

    def armature_energy(self, rate: Tensor) -> Tensor:
        """½ a rate², summed over the free coordinates [J], (...)."""
        return rate.new_zeros(rate.shape[:-1]) if self.armature is None else 0.5 * (self.armature * rate**2).sum(-1)

    def spring_energy(self, parent: Pose, child: Pose) -> Tensor:
        """½ k x² + k₂ x³/3 + k₃ x⁴/4 with x = coordinate − rest, summed over the free coordinates [J], (...)."""
        stretch = self.coordinates(parent, child) - self.rest
        energy = 0.5 * self.spring * stretch**2
        return (energy if self.spring_curve is None else energy + curve_energy(stretch, self.spring_curve)).sum(-1)
