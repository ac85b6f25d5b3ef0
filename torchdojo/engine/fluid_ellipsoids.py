"""Forces of a medium on ellipsoids: added mass, drag, lift, and the resistance of a viscous medium.

This is MuJoCo's ellipsoid model (documentation, chapter Computation, "Fluid forces", ``fluidshape="ellipsoid"``), the three-dimensional
form of the model of Andersen, Pesavento and Wang, J. Fluid Mech. 541 (2005). An ellipsoid has semi-axes rₓ, r_y, r_z and volume V. Its
center moves with v relative to a medium of density ρ and viscosity β, and it turns with ω, all along its axes. Then

    force  = (m∘v) × ω                      + Magnus + Kutta − [ρ |v| (C₁ A + C₂ (A₁ − A)) + 6 π β r] v
    torque = (m∘v) × v + (I∘ω) × ω                           − [ρ |C₃ D∘ω + C₂ (D₁ − D)∘ω| + 8 π β r³] ω
    Magnus = C₅ ρ V ω × v                   Kutta = C₄ ρ A (v̂·n) (n × v) × v

| C₁ … C₅ | coefficients of blunt, slender and angular drag, of Kutta lift and of Magnus lift |
|---|---|
| A, n | area of the projection along v, π ‖P v‖ / sqrt(v·P v), and P v / ‖P v‖, with P = diag((r_j r_k)²) |
| A₁, r | the largest such area, π times the two largest semi-axes; the mean of the semi-axes |
| D_i, D₁ | 8/15 π r_i max(r_j, r_k)⁴ of the solid that the ellipsoid sweeps around an axis; the largest that has these semi-axes |
| m, I | added mass and inertia, of the medium that an ellipsoid moves (`added_inertia`) |

The first column is Kirchhoff's: Lamb, Hydrodynamics, 6th edition (1932), articles 124 and 126. It lacks the terms −m v̇ and −I ω̇, as
MuJoCo's model does, which a function of the state cannot have. Added mass and lift do no work in a medium at rest: each is a product
that is normal to v, or both products of m cancel. Drag and resistance take power, since A ≤ A₁ and D ≤ D₁.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchdojo import quaternion as quat
from torchdojo.elements.tendon_paths import Frame
from torchdojo.parameters import as_tensor, broadcast_shapes, require

__all__ = ["EllipsoidNumbers", "FluidEllipsoid", "added_forces", "added_inertia", "drag_forces", "ellipsoid_numbers", "lift_forces"]

COEFFICIENTS = (0.5, 0.25, 1.5, 1.0, 1.0)  # MuJoCo's, for blunt, slender and angular drag, Kutta and Magnus lift
#: Nodes of the integrals of `added_inertia`. A step of s up to 0.53 leaves exp(−2π²/0.53) = 1e-16, up to semi-axes as 1 : 1e10.
NODES, BELOW, ABOVE = 192, 32.0, 22.0


@dataclass(frozen=True, eq=False)
class FluidEllipsoid:
    """An ellipsoid that feels a medium, in place of the box of its body: ``td.FluidEllipsoid(td.Site("wing"), (0.1, 0.04, 0.002))``.

    Args:
        frame: its center and axes, a `td.Site` of a body.
        semiaxes: (..., 3) [m], positive.
        coefficients: (..., 5) of blunt drag, slender drag, angular drag, Kutta lift and Magnus lift [1], zero or more: ``fluidcoef``.
        added_mass: (..., 3) the medium that moves along with it, by axis, over the density [m³]; None: that of potential flow.
        added_inertia: (..., 3) moments of inertia of that medium over the density [m⁵]; None: those of potential flow.

    Raises:
        ValueError: numbers of another count or out of range, a frame without a body, one of `added_mass` and `added_inertia` alone.
    """

    frame: Frame
    semiaxes: Any
    coefficients: Any = COEFFICIENTS
    added_mass: Any = None
    added_inertia: Any = None

    def __post_init__(self) -> None:
        if self.frame.body is None:
            raise ValueError("FluidEllipsoid: got a frame in the world; allowed: a td.Site of a body")
        if (self.added_mass is None) != (self.added_inertia is None):
            raise ValueError("FluidEllipsoid: got one of added_mass and added_inertia; give both, or neither for those of potential flow")
        for name, count in (("semiaxes", 3), ("coefficients", 5), ("added_mass", 3), ("added_inertia", 3)):
            if getattr(self, name) is None:
                continue
            numbers, label = as_tensor(getattr(self, name), f"FluidEllipsoid {name}"), f"FluidEllipsoid {name}"
            if numbers.shape[-1:] != (count,):
                raise ValueError(f"{label}: got shape {tuple(numbers.shape)}; allowed: (..., {count})")
            object.__setattr__(self, name, numbers)  # numbers of Python become tensors once, not at each call
            finite = numbers.isfinite()
            if name == "semiaxes":
                require((numbers > 0) & finite, label, numbers, "positive numbers [m]")
            else:
                require((numbers >= 0) & finite, label, numbers, "numbers of zero or more")


class EllipsoidNumbers(NamedTuple):
    """The numbers of n ellipsoids. semiaxes, added_mass, added_inertia: (..., n, 3). coefficients: (..., n, 5)."""

    semiaxes: Tensor
    coefficients: Tensor
    added_mass: Tensor
    added_inertia: Tensor


def ellipsoid_numbers(ellipsoids: Sequence[FluidEllipsoid]) -> EllipsoidNumbers:
    """The numbers of at least one ellipsoid, with the added inertia of potential flow where none is given."""
    semiaxes, coefficients = (
        stacked([as_tensor(getattr(one, name), name).double() for one in ellipsoids], 1) for name in ("semiaxes", "coefficients")
    )
    free = [one.added_mass is None for one in ellipsoids]
    if all(free):
        return EllipsoidNumbers(semiaxes, coefficients, *added_inertia(semiaxes))
    inertias = []
    for one in ellipsoids:
        stated_inertia = (one.added_mass, one.added_inertia)
        numbers = added_inertia(as_tensor(one.semiaxes, "semiaxes").double()) if one.added_mass is None else stated_inertia
        inertias.append([as_tensor(value, "added inertia").double() for value in numbers])
    return EllipsoidNumbers(semiaxes, coefficients, *(stacked(list(values), 1) for values in zip(*inertias, strict=True)))


def stacked(values: Sequence[Tensor], ndim: int) -> Tensor:
    """Tensors (..., *own) of `ndim` own dimensions each, broadcast and stacked before them: (..., n, *own)."""
    shape = broadcast_shapes(*(value.shape for value in values))
    return torch.stack([value.expand(shape) for value in values], dim=-1 - ndim)


def added_inertia(semiaxes: Tensor) -> tuple[Tensor, Tensor]:
    """Added mass [m³] and added moments of inertia [m⁵] of ellipsoids in potential flow, over the density; (..., 3) each.

    Lamb, Hydrodynamics, articles 114 and 115; Tuckerman, NACA report 210 (1925). With Δ² = (rₓ² + λ)(r_y² + λ)(r_z² + λ) and integrals
    over λ from 0 to ∞,

        κ_i = rₓ r_y r_z ∫ dλ / ((r_i² + λ) Δ)
        m_i = V κ_i / (2 − κ_i)
        I_i = V/5 (r_j² − r_k²)² (κ_k − κ_j) / (2 (r_j² − r_k²) + (r_j² + r_k²)(κ_j − κ_k)).

    Equal semi-axes make I_i zero over zero, and thin ones lose the digits of 2 − κ_i. Since κₓ + κ_y + κ_z = 2, and

        κ_k − κ_j = (r_j² − r_k²) J_i,    J_i = rₓ r_y r_z ∫ dλ / ((r_j² + λ)(r_k² + λ) Δ)
        (r_j² + r_k²) J_i = κ_j + κ_k − 2 L_i,    L_i = rₓ r_y r_z ∫ λ dλ / ((r_j² + λ)(r_k² + λ) Δ),

    they are sums of positive numbers: m_i = V κ_i / (κ_j + κ_k) and I_i = V/5 (r_j² − r_k²)² J_i / (κ_i + 2 L_i). In s = log λ, the
    integrands are analytic for |Im s| < π and decay at both ends, so the trapezoidal rule converges exponentially.

    Args:
        semiaxes: (..., 3) [m], positive.
    """
    squares, product = semiaxes**2, semiaxes.prod(-1, keepdim=True)
    fixed = squares.detach()
    low, high = fixed.amin(-1, keepdim=True).log() - BELOW, fixed.amax(-1, keepdim=True).log() + ABOVE
    step = (high - low) / (NODES - 1)
    nodes = torch.exp(low + step * torch.arange(NODES, dtype=fixed.dtype, device=fixed.device))[..., None, :]  # λ, (..., 1, NODES)
    weight = (nodes * step[..., None])[..., 0, :]  # dλ = λ ds
    shifted = squares[..., None] + nodes
    root = product * shifted.prod(-2).rsqrt() * weight  # rₓ r_y r_z dλ / Δ
    others = shifted.roll(1, -2) * shifted.roll(2, -2)
    kappa = (root[..., None, :] / shifted).sum(-1)
    pairs = root[..., None, :] / others
    between, moment = pairs.sum(-1), (pairs * nodes).sum(-1)
    volume = 4 / 3 * math.pi * product
    mass = volume * kappa / (kappa.roll(1, -1) + kappa.roll(2, -1))
    apart = squares.roll(1, -1) - squares.roll(2, -1)
    return mass, volume / 5 * apart**2 * between / (kappa + 2 * moment)


def added_forces(v: Tensor, w: Tensor, numbers: EllipsoidNumbers, density: Tensor) -> tuple[Tensor, Tensor]:
    """Force [N] and torque [N·m] of the inertia of the medium. v [m/s], w [rad/s]: (..., n, 3) along the axes."""
    momentum, spin = density * numbers.added_mass * v, density * numbers.added_inertia * w
    return quat.cross(momentum, w), quat.cross(momentum, v) + quat.cross(spin, w)


def lift_forces(v: Tensor, w: Tensor, numbers: EllipsoidNumbers, density: Tensor) -> Tensor:
    """Magnus and Kutta lift [N]. v [m/s], w [rad/s]: (..., n, 3) along the axes."""
    kutta, magnus = numbers.coefficients[..., 3:4], numbers.coefficients[..., 4:]
    circulation = kutta * quat.cross(_projection(v, numbers.semiaxes)[1], v)
    volume = 4 / 3 * math.pi * numbers.semiaxes.prod(-1, keepdim=True)
    return density * (magnus * volume * quat.cross(w, v) + quat.cross(circulation, v))


def drag_forces(v: Tensor, w: Tensor, numbers: EllipsoidNumbers, density: Tensor, viscosity: Tensor) -> tuple[Tensor, Tensor]:
    """Force [N] and torque [N·m] of drag and viscous resistance. v [m/s], w [rad/s]: (..., n, 3) along the axes."""
    semiaxes = numbers.semiaxes
    blunt, slender, angular = (numbers.coefficients[..., i : i + 1] for i in range(3))
    ordered = semiaxes.sort(-1)[0]
    largest, middle, mean = ordered[..., 2:], ordered[..., 1:2], semiaxes.mean(-1, keepdim=True)
    area = _projection(v, semiaxes)[0]
    whole = math.pi * largest * middle
    rubbing = density * _norm(v) * (blunt * area + slender * (whole - area))
    swept = 8 / 15 * math.pi * semiaxes * torch.maximum(semiaxes.roll(1, -1), semiaxes.roll(2, -1)) ** 4
    turned = 8 / 15 * math.pi * middle * largest**4
    turning = density * _norm(w * (angular * swept + slender * (turned - swept)))
    stokes, stokes_torque = 6 * math.pi * viscosity * mean, 8 * math.pi * viscosity * mean**3
    return -(rubbing + stokes) * v, -(turning + stokes_torque) * w


def _projection(v: Tensor, semiaxes: Tensor) -> tuple[Tensor, Tensor]:
    """The area A (..., 1) [m²], and A (v̂·n) n = π sqrt(v̂·P v̂) P v̂ / |P v̂| (..., 3) [m²]; without a velocity, of the axis x.

    Forces are of second degree in v, so their derivatives by v are zero there for any direction.
    """
    axis = torch.tensor([1.0, 0.0, 0.0], dtype=v.dtype, device=v.device)
    moving = torch.where(_norm(v) == 0, axis, v)
    along = moving / _norm(moving)
    weighted = (semiaxes.roll(1, -1) * semiaxes.roll(2, -1)) ** 2 * along
    size, share = _norm(weighted), (weighted * along).sum(-1, keepdim=True).sqrt()
    return math.pi * size / share, math.pi * share / size * weighted


def _norm(value: Tensor) -> Tensor:
    return torch.linalg.vector_norm(value, dim=-1, keepdim=True)
