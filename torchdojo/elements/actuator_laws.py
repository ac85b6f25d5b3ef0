"""Laws of actuators with a state: from controls to activations, and from these to forces. All are MuJoCo's, as pure functions.

The MuJoCo documentation, chapter Computation, "Actuation model", and chapter Modeling, "Muscles", have the equations. With a control c, an
activation a, a length l and a velocity v:

    ȧ = rate(c, a)            a⁺ = advance(c, a, h), clipped to the range of a
    force = gain(l, v) · a + bias(l, v)          a: the control itself where there is no activation

A law is an object of a table: `DYNAMICS`, or `FORCES`, which serves gains and biases alike. A user puts an object of
a subclass of one's own into the table.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

__all__ = ["DYNAMICS", "FORCES", "Dynamics", "Force", "muscle_bias", "muscle_gain", "muscle_rate"]

SMALLEST = 1e-15  # the least divisor


# -- activations -------------------------------------------------------------------------------------------------------------------------


class Dynamics(ABC):
    """The law by which an activation follows its control."""

    stateful: ClassVar[bool] = True
    size: ClassVar[int] = 1  #: count of its numbers

    @abstractmethod
    def rate(self, ctrl: Tensor, act: Tensor, numbers: Tensor) -> Tensor:
        """ȧ [1/s], (...), from controls (...), activations (...) and numbers (..., k)."""

    def advance(self, ctrl: Tensor, act: Tensor, numbers: Tensor, timestep: Tensor) -> Tensor:
        """The activation one step later, (...). Default: Euler's method, as MuJoCo's integrators have."""
        return act + timestep * self.rate(ctrl, act, numbers)


class NoDynamics(Dynamics):
    """No activation: the control is the input of the force."""

    stateful, size = False, 0

    def rate(self, ctrl: Tensor, act: Tensor, numbers: Tensor) -> Tensor:
        return torch.zeros_like(ctrl)


class Integrator(Dynamics):
    """ȧ = c."""

    size = 0

    def rate(self, ctrl: Tensor, act: Tensor, numbers: Tensor) -> Tensor:
        return ctrl


class Filter(Dynamics):
    """ȧ = (c − a)/τ with the time constant τ [s]."""

    def rate(self, ctrl: Tensor, act: Tensor, numbers: Tensor) -> Tensor:
        return (ctrl - act) / numbers[..., 0].clamp_min(SMALLEST)


class ExactFilter(Filter):
    """The same filter, whose step is exact for a control that is held: a⁺ = a + (c − a)(1 − exp(−h/τ))."""

    def advance(self, ctrl: Tensor, act: Tensor, numbers: Tensor, timestep: Tensor) -> Tensor:
        return act - (ctrl - act) * torch.expm1(-timestep / numbers[..., 0].clamp_min(SMALLEST))


class Muscle(Dynamics):
    """`muscle_rate`, with the time constants of activation and deactivation [s] and the width of the switch between them."""

    size = 3

    def rate(self, ctrl: Tensor, act: Tensor, numbers: Tensor) -> Tensor:
        return muscle_rate(ctrl, act, numbers)


def muscle_rate(ctrl: Tensor, act: Tensor, numbers: Tensor) -> Tensor:
    """ȧ of a muscle [1/s], (...), as Millard et al. (2013), doi 10.1115/1.4023390, have it; MuJoCo's mju_muscleDynamics.

    Args:
        ctrl, act: (...), clamped to [0, 1].
        numbers: (..., 3): time constants of activation and deactivation [s], width of the switch between them; zero: a hard one.
    """
    scale = 0.5 + 1.5 * act.clamp(0, 1)
    excess = ctrl.clamp(0, 1) - act
    rise, fall, width = numbers[..., 0] * scale, numbers[..., 1] / scale, numbers[..., 2]
    hard = width < SMALLEST
    x = excess / torch.where(hard, 1.0, width) + 0.5
    inner = x.clamp(0, 1)
    smooth = fall + (rise - fall) * inner**3 * (3 * inner * (2 * inner - 5) + 10)
    constant = torch.where(hard, torch.where(excess > 0, rise, fall), smooth)
    return excess / constant.clamp_min(SMALLEST)


DYNAMICS: dict[str, Dynamics] = {
    "none": NoDynamics(),
    "integrator": Integrator(),
    "filter": Filter(),
    "filterexact": ExactFilter(),
    "muscle": Muscle(),
}


# -- forces ------------------------------------------------------------------------------------------------------------------------------


class Force(ABC):
    """Gain or bias of an actuator, a function of length and velocity."""

    size: ClassVar[int] = 3  #: count of its numbers
    needs_range: ClassVar[bool] = False  #: whether it reads the range of the length and the acceleration per force

    @abstractmethod
    def gain(self, length: Tensor, velocity: Tensor, numbers: Tensor, lengths: Tensor, acc0: Tensor) -> Tensor:
        """Force per activation (...)."""

    @abstractmethod
    def bias(self, length: Tensor, velocity: Tensor, numbers: Tensor, lengths: Tensor, acc0: Tensor) -> Tensor:
        """Force without activation (...) [N, N·m]."""


class Affine(Force):
    """Three numbers: constant, per length, per velocity."""

    def gain(self, length: Tensor, velocity: Tensor, numbers: Tensor, lengths: Tensor, acc0: Tensor) -> Tensor:
        return numbers[..., 0] + numbers[..., 1] * length + numbers[..., 2] * velocity

    bias = gain


class MuscleForce(Force):
    """`muscle_gain` and `muscle_bias`."""

    size, needs_range = 9, True

    def gain(self, length: Tensor, velocity: Tensor, numbers: Tensor, lengths: Tensor, acc0: Tensor) -> Tensor:
        return muscle_gain(length, velocity, lengths, acc0, numbers)

    def bias(self, length: Tensor, velocity: Tensor, numbers: Tensor, lengths: Tensor, acc0: Tensor) -> Tensor:
        return muscle_bias(length, lengths, acc0, numbers)


FORCES: dict[str, Force] = {"affine": Affine(), "muscle": MuscleForce()}


def muscle_gain(length: Tensor, velocity: Tensor, lengths: Tensor, acc0: Tensor, numbers: Tensor) -> Tensor:
    """Active force of a muscle per activation [N], (...), negative: it pulls. MuJoCo's mju_muscleGain.

    Args:
        length [m], velocity [m/s]: (...), of the actuator. lengths: (..., 2), the range of the length [m].
        acc0: (...) acceleration per force, which sets the peak force where the third of the numbers is negative.
        numbers: (..., 9): operating range (2), peak force [N], scale, lmin, lmax, vmax, fpmax, fvmax.
    """
    force, optimum, normal = _normalized(length, lengths, acc0, numbers)
    lmin, lmax, vmax, fvmax = (numbers[..., i] for i in (4, 5, 6, 8))
    speed = velocity / (optimum * vmax).clamp_min(SMALLEST)
    y = fvmax - 1
    yielding = fvmax - (y - speed).clamp_min(0) ** 2 / y.clamp_min(SMALLEST)
    by_speed = torch.where(speed <= 0, (speed + 1).clamp_min(0) ** 2, yielding)
    low, high = 0.5 * (lmin + 1), 0.5 * (1 + lmax)
    pieces = [
        (normal < lmin, torch.zeros_like(normal)),
        (normal <= low, 0.5 * ((normal - lmin) / (low - lmin).clamp_min(SMALLEST)) ** 2),
        (normal <= 1, 1 - 0.5 * ((1 - normal) / (1 - low).clamp_min(SMALLEST)) ** 2),
        (normal <= high, 1 - 0.5 * ((normal - 1) / (high - 1).clamp_min(SMALLEST)) ** 2),
        (normal <= lmax, 0.5 * ((lmax - normal) / (lmax - high).clamp_min(SMALLEST)) ** 2),
    ]
    by_length = torch.zeros_like(normal)
    for condition, value in reversed(pieces):
        by_length = torch.where(condition, value, by_length)
    return -force * by_length * by_speed


def muscle_bias(length: Tensor, lengths: Tensor, acc0: Tensor, numbers: Tensor) -> Tensor:
    """Passive force of a muscle [N], (...), at most zero. MuJoCo's mju_muscleBias. The arguments are those of `muscle_gain`."""
    force, _, normal = _normalized(length, lengths, acc0, numbers)
    high = 0.5 * (1 + numbers[..., 5])
    width = (high - 1).clamp_min(SMALLEST)
    curve = torch.where(normal <= high, 0.5 * ((normal - 1).clamp_min(0) / width) ** 2, 0.5 + (normal - high) / width)
    return -force * numbers[..., 7] * curve


def _normalized(length: Tensor, lengths: Tensor, acc0: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Peak force [N], optimal length [m], and the length in its unit."""
    low, high, force, scale = (numbers[..., i] for i in range(4))
    force = torch.where(force < 0, scale / acc0.clamp_min(SMALLEST), force)
    optimum = (lengths[..., 1] - lengths[..., 0]) / (high - low).clamp_min(SMALLEST)
    return force, optimum, low + (length - lengths[..., 0]) / optimum.clamp_min(SMALLEST)
