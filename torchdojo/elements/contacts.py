"""Contacts: frictionless, with Coulomb friction in the second-order cone, and with friction in a pyramid.

contact.py says where surfaces touch, and how the impulse P = γ n + Tᵀβ acts; this file has the equations of γ and β.
"""

from __future__ import annotations

import math
from collections.abc import Container
from typing import Any, ClassVar

import torch
from torch import Tensor

from torchdojo.elements.contact import Contact
from torchdojo.elements.element import Cones, Motion, Pose, orthonormal_complement
from torchdojo.elements.hard_maps import hard_disc, hard_normal, hard_pyramid
from torchdojo.elements.path_maps import Change, disc_on_path, normal_on_path, pyramid_on_path

__all__ = ["Contact", "ImpactContact", "LinearContact", "NonlinearContact", "at_rest"]


class ImpactContact(Contact):
    """Contact without friction: φ − s = 0, γ s = κ. The arguments are as in `Contact`."""

    cones = Cones(orthant=1)

    def force(self, normal: Tensor, impulse: Tensor) -> Tensor:
        return impulse * normal

    def residual(
        self, motions: tuple[Motion, ...], impulse: Tensor, slack: Tensor, u: Tensor, timestep: Tensor
    ) -> tuple[list[tuple[Tensor, Tensor]], Tensor]:
        touch = self.touch(motions)
        return self.wrenches(motions, touch, self.force(touch.normal, impulse)), self.gap(motions, touch, impulse, timestep) - slack

    def start(self, motions: tuple[Motion, ...], level: Tensor) -> tuple[Tensor, Tensor]:
        gap = torch.maximum(self.touch(motions).distance, level.sqrt())
        return (level / gap)[..., None], gap[..., None]

    def on_path(
        self, impulse: Tensor, slack: Tensor, kappa: Tensor, mass: Tensor, timestep: Tensor, change: Change
    ) -> tuple[Tensor, Tensor]:
        gamma = normal_on_path(impulse[..., 0], slack[..., 0], kappa, mass[..., 0], timestep, change.part(0))
        return gamma[..., None], (kappa / gamma)[..., None]

    def at_limit(self, impulse: Tensor, slack: Tensor, mass: Tensor, timestep: Tensor, compliance: float) -> tuple[Tensor, Tensor]:
        gamma, gap = hard_normal(impulse[..., 0], slack[..., 0], mass[..., 0], timestep, compliance)
        return gamma[..., None], gap[..., None]


class FrictionalContact(Contact):
    """Base class of contacts with Coulomb friction.

    Args:
        friction: Coulomb coefficient μ, (...,), >= 0. The other arguments are as in `Contact`.
    """

    fields: ClassVar[dict[str, int]] = {**Contact.fields, "friction": 0}
    friction: Tensor

    def __init__(self, body: str, *, friction: Any = 0.5, **arguments: Any) -> None:
        super().__init__(body, **arguments)
        self.friction = friction


class NonlinearContact(FrictionalContact):
    """Contact with Coulomb friction in the exact (second-order) cone, by the principle of maximum dissipation.

    The impulse is (γ, ξ₁, ξ₂, ξ₃), the slack (s, η₁, η₂, η₃): φ − s = 0, ξ₁ − μγ = 0, v_t − η₂₃ = 0, γ s = κ, ξ ∘ η = κ e; β = ξ₂₃.
    The tangents are `orthonormal_complement` of the normal: x and y for the ground.

    Friction against turning about the normal, ω_n = n·(ω_a − ω_b), has the couple (τ₊ − τ₋) n with |τ₊ − τ₋| <= μ_t γ, as in a pyramid:
    between (γ) and ξ the impulse is (ψ, τ₊, τ₋), the slack (sψ, η₊, η₋), with

        μ_t γ − τ₊ − τ₋ − sψ = 0,   ±ω_n + ψ − η± = 0,   ψ sψ = τ± η± = κ.

    Friction against rolling has the couple Tᵀρ₂₃ with |ρ₂₃| <= μ_r γ: behind ξ the impulse is ρ, the slack ζ, with

        ρ₁ − μ_r γ = 0,   T(ω_a − ω_b) − ζ₂₃ = 0,   ρ ∘ ζ = κ e.

    Args:
        friction: Coulomb coefficient μ, (...,), >= 0. The other arguments are as in `Contact`.
        torsional_friction, rolling_friction: μ_t and μ_r [m], (...,), >= 0. They are the couple over the normal impulse, a length of the
            order of the contact patch's size. None: no such couple.
    """

    laws: ClassVar[tuple[str, ...]] = (*Contact.laws, "torsional_friction", "rolling_friction")
    cones = Cones(orthant=1, second_order=1)

    def __init__(self, body: str, *, friction: Any = 0.5, **arguments: Any) -> None:
        super().__init__(body, friction=friction, **arguments)
        self._set_cones(self.fields)

    def _set_cones(self, laws: Container[str]) -> None:
        orthant, second_order = 1 + 3 * ("torsional_friction" in laws), 1 + ("rolling_friction" in laws)
        if orthant + second_order > 2:
            self.cones = Cones(orthant=orthant, second_order=second_order)

    def residual(
        self, motions: tuple[Motion, ...], impulse: Tensor, slack: Tensor, u: Tensor, timestep: Tensor
    ) -> tuple[list[tuple[Tensor, Tensor]], Tensor]:
        touch = self.touch(motions)
        tangents = orthonormal_complement(touch.normal)
        gamma, (xi, eta) = impulse[..., :1], self.sliding_pair(impulse, slack)
        force = self.force(touch.normal, impulse, tangents)
        cone_height = xi[..., :1] - self.friction[..., None] * gamma
        slip = (tangents * self.slip(motions, touch)[..., None, :]).sum(-1)
        rows = [self.gap(motions, touch, gamma, timestep) - slack[..., :1]]
        couple, spin = None, self.spin(motions) if self.cones.size > 4 else None
        if spin is not None and self.cones.orthant > 1:
            about = (spin * touch.normal).sum(-1, keepdim=True)
            rows.append(
                _pyramid_rows(self.torsional_friction * gamma[..., 0], impulse[..., 1:4], slack[..., 1:4], torch.cat((about, -about), -1))
            )
            couple = (impulse[..., 2:3] - impulse[..., 3:4]) * touch.normal
        rows += [cone_height, slip - eta[..., 1:]]
        if spin is not None and self.cones.second_order > 1:
            rho, zeta = impulse[..., -3:], slack[..., -3:]
            rows += [rho[..., :1] - self.rolling_friction[..., None] * gamma, (tangents * spin[..., None, :]).sum(-1) - zeta[..., 1:]]
            rolling = (tangents * rho[..., 1:, None]).sum(-2)
            couple = rolling if couple is None else couple + rolling
        return self.wrenches(motions, touch, force, couple), torch.cat(rows, dim=-1)

    def force(self, normal: Tensor, impulse: Tensor, tangents: Tensor | None = None) -> Tensor:
        tangents = orthonormal_complement(normal) if tangents is None else tangents
        xi = self.sliding_pair(impulse, impulse)[0]
        return impulse[..., :1] * normal + (tangents * xi[..., 1:, None]).sum(-2)

    def sliding_pair(self, impulse: Tensor, slack: Tensor) -> tuple[Tensor, Tensor]:
        """ξ and η, (..., 3)."""
        piece = slice(self.cones.orthant, self.cones.orthant + 3)
        return impulse[..., piece], slack[..., piece]

    def start(self, motions: tuple[Motion, ...], level: Tensor) -> tuple[Tensor, Tensor]:
        # The gap and slip at these velocities, and matching impulses: every equation but the balance of momentum nearly holds.
        touch = self.touch(motions)
        gap = torch.maximum(touch.distance, level.sqrt())
        gamma = level / gap
        tangents = orthonormal_complement(touch.normal)
        pairs = [(gamma[..., None], gap[..., None])]
        spin = self.spin(motions) if self.cones.size > 4 else None
        if spin is not None and self.cones.orthant > 1:
            about = (spin * touch.normal).sum(-1, keepdim=True)
            pairs.append(_pyramid_start(self.torsional_friction * gamma, torch.cat((about, -about), -1), level))
        pairs.append(_disc_start(self.friction * gamma, (tangents * self.slip(motions, touch)[..., None, :]).sum(-1), level))
        if spin is not None and self.cones.second_order > 1:
            pairs.append(_disc_start(self.rolling_friction * gamma, (tangents * spin[..., None, :]).sum(-1), level))
        return _join(pairs)

    def effective_mass(self, poses: tuple[Pose, ...], mass: Tensor, inertia: Tensor, timestep: Tensor) -> Tensor:
        """The reduced mass [kg], and for couples the reduced mean moment of inertia [kg·m²]."""
        reduced = super().effective_mass(poses, mass, inertia, timestep)
        if self.cones.size == 4:
            return reduced
        turning = 1 / (3 / inertia.diagonal(dim1=-2, dim2=-1).sum(-1)).sum(-1, keepdim=True)
        return torch.cat(torch.broadcast_tensors(reduced, turning), dim=-1)  # either may have the batch dimension

    def on_path(
        self, impulse: Tensor, slack: Tensor, kappa: Tensor, mass: Tensor, timestep: Tensor, change: Change
    ) -> tuple[Tensor, Tensor]:
        gamma = normal_on_path(impulse[..., 0], slack[..., 0], kappa, mass[..., 0], timestep, change.part(0))
        pairs = [(gamma[..., None], (kappa / gamma)[..., None])]
        if self.cones.orthant > 1:
            spin = _part((impulse, slack), slice(1, 4))
            pairs.append(pyramid_on_path(self.torsional_friction * gamma, *spin, kappa, mass[..., 1], change.part(slice(1, 4))))
        tail = slice(self.cones.orthant + 1, self.cones.orthant + 3)
        whole = slice(self.cones.orthant, self.cones.orthant + 3)
        pairs.append(disc_on_path(self.friction * gamma, *_part((impulse, slack), whole), kappa, mass[..., 0], change.part(tail)))
        if self.cones.second_order > 1:
            rolling = change.part(slice(-2, None))._replace(squeezing=None)  # slips alone squeeze
            pairs.append(
                disc_on_path(self.rolling_friction * gamma, *_part((impulse, slack), slice(-3, None)), kappa, mass[..., 1], rolling)
            )
        return _join(pairs)

    def at_limit(self, impulse: Tensor, slack: Tensor, mass: Tensor, timestep: Tensor, compliance: float) -> tuple[Tensor, Tensor]:
        gamma, gap = hard_normal(impulse[..., 0], slack[..., 0], mass[..., 0], timestep, compliance)
        pressed = gamma == impulse[..., 0]
        pairs = [(gamma[..., None], gap[..., None])]
        if self.cones.orthant > 1:
            pairs.append(hard_pyramid(pressed, impulse[..., 1:4], slack[..., 1:4], mass[..., 1], compliance))
        pairs.append(hard_disc(pressed, *self.sliding_pair(impulse, slack), mass[..., 0], compliance))
        if self.cones.second_order > 1:
            pairs.append(hard_disc(pressed, impulse[..., -3:], slack[..., -3:], mass[..., 1], compliance))
        return _join(pairs)


class LinearContact(FrictionalContact):
    """Contact with Coulomb friction in a pyramid of `facets` directions D in the tangent plane (Stewart and Trinkle 1996).

    The impulse is (γ, ψ, β), the slack (s, sψ, η), with products κ pair by pair and

        φ − s = 0,   μγ − 1ᵀβ − sψ = 0,   D v_t + ψ1 − η = 0,   P = γ n + Dᵀβ.

    The directions come in pairs d, −d: the first along the first tangent (`orthonormal_complement` of the normal: x for the ground), each
    next pair turned by 2π/facets. Friction is weaker than in the cone between them, by 1 − cos(π/facets) at most, and does not point
    exactly against the slip.

    Args:
        friction: Coulomb coefficient μ, (...,), >= 0. The other arguments are as in `Contact`.
        facets: even number of directions, 4 or more.
    """

    def __init__(self, body: str, *, friction: Any = 0.5, facets: int = 4, **arguments: Any) -> None:
        if isinstance(facets, bool) or not isinstance(facets, int) or facets < 4 or facets % 2:
            raise ValueError(f"{type(self).__name__}: got facets={facets!r}; allowed: even numbers of 4 or more (directions come in pairs)")
        super().__init__(body, friction=friction, **arguments)
        self.cones = Cones(orthant=2 + facets)
        turns = [2 * math.pi * i / facets for i in range(facets // 2)]
        # The rounding makes the axes exact.
        self._directions = [[sign * round(f(turn), 15) for f in (math.cos, math.sin)] for turn in turns for sign in (1, -1)]

    @property
    def facets(self) -> int:
        return self.cones.orthant - 2

    @facets.setter
    def facets(self, value: Any) -> None:
        raise AttributeError(f"{type(self).__name__}.facets: got {value!r} for a contact built with {self.facets}; build another contact")

    def force(self, normal: Tensor, impulse: Tensor, directions: Tensor | None = None) -> Tensor:
        directions = self.directions(normal) if directions is None else directions
        return impulse[..., :1] * normal + (directions * impulse[..., 2:, None]).sum(-2)

    def directions(self, normal: Tensor) -> Tensor:
        """D: unit vectors in the tangent plane of a unit normal (..., 3), (..., facets, 3)."""
        return normal.new_tensor(self._directions) @ orthonormal_complement(normal)

    def residual(
        self, motions: tuple[Motion, ...], impulse: Tensor, slack: Tensor, u: Tensor, timestep: Tensor
    ) -> tuple[list[tuple[Tensor, Tensor]], Tensor]:
        touch = self.touch(motions)
        directions, gamma = self.directions(touch.normal), impulse[..., :1]
        force = self.force(touch.normal, impulse, directions)
        slip = (directions * self.slip(motions, touch)[..., None, :]).sum(-1)
        friction = _pyramid_rows(self.friction * gamma[..., 0], impulse[..., 1:], slack[..., 1:], slip)
        rows = torch.cat((self.gap(motions, touch, gamma, timestep) - slack[..., :1], friction), dim=-1)
        return self.wrenches(motions, touch, force), rows

    def start(self, motions: tuple[Motion, ...], level: Tensor) -> tuple[Tensor, Tensor]:
        touch = self.touch(motions)
        gap = torch.maximum(touch.distance, level.sqrt())
        slip = (self.directions(touch.normal) * self.slip(motions, touch)[..., None, :]).sum(-1)
        return _join([((level / gap)[..., None], gap[..., None]), _pyramid_start(self.friction * level / gap, slip, level)])

    def on_path(
        self, impulse: Tensor, slack: Tensor, kappa: Tensor, mass: Tensor, timestep: Tensor, change: Change
    ) -> tuple[Tensor, Tensor]:
        gamma = normal_on_path(impulse[..., 0], slack[..., 0], kappa, mass[..., 0], timestep, change.part(0))
        facets = slice(1, None)
        pyramid = pyramid_on_path(self.friction * gamma, *_part((impulse, slack), facets), kappa, mass[..., 0], change.part(facets))
        return _join([(gamma[..., None], (kappa / gamma)[..., None]), pyramid])

    def at_limit(self, impulse: Tensor, slack: Tensor, mass: Tensor, timestep: Tensor, compliance: float) -> tuple[Tensor, Tensor]:
        gamma, gap = hard_normal(impulse[..., 0], slack[..., 0], mass[..., 0], timestep, compliance)
        pyramid = hard_pyramid(gamma == impulse[..., 0], impulse[..., 1:], slack[..., 1:], mass[..., 0], compliance)
        return _join([(gamma[..., None], gap[..., None]), pyramid])


def _pyramid_rows(height: Tensor, impulse: Tensor, slack: Tensor, rates: Tensor) -> Tensor:
    """height − 1ᵀβ − sψ and rates + ψ1 − η, (..., 1 + n), for (ψ, β) and (sψ, η)."""
    balance = height[..., None] - impulse[..., 1:].sum(-1, keepdim=True) - slack[..., :1]
    return torch.cat((balance, rates + impulse[..., :1] - slack[..., 1:]), dim=-1)


def at_rest(contact: FrictionalContact, gap: Tensor, level: Tensor) -> tuple[Tensor, Tensor]:
    """Impulses and slacks at a gap (...,) [m] where nothing slips or turns, with products `level` (...,)."""
    gamma, still = level / gap, gap.new_zeros(*gap.shape, 2)
    pairs = [(gamma[..., None], gap[..., None])]
    if contact.cones.orthant > 1:
        pairs.append(_pyramid_start(contact.torsional_friction * gamma, still, level))
    pairs.append(_disc_start(contact.friction * gamma, still, level))
    if contact.cones.second_order > 1:
        pairs.append(_disc_start(contact.rolling_friction * gamma, still, level))
    return _join(pairs)


def _pyramid_start(height: Tensor, rates: Tensor, level: Tensor) -> tuple[Tensor, Tensor]:
    """(ψ, β) and (sψ, η) with products `level` and given rates (..., n), inside a pyramid of about this height (...,)."""
    height = torch.maximum(height, level)
    psi = rates.amax(-1).clamp_min(0) + (1 + rates.shape[-1]) * level / height
    eta = rates + psi[..., None]
    return torch.cat((psi[..., None], level[..., None] / eta), dim=-1), torch.cat(((level / psi)[..., None], eta), dim=-1)


def _disc_start(height: Tensor, rates: Tensor, level: Tensor) -> tuple[Tensor, Tensor]:
    """ξ and η (..., 3) with ξ ∘ η = level e, ξ₁ = height (...,) and η₂₃ = rates (..., 2)."""
    speed = (rates * rates).sum(-1)
    # ξ = level η⁻¹; a frictionless contact still needs an interior.
    height = torch.maximum(height, level)
    eta = (level + torch.sqrt(level * level + 4 * height * height * speed)) / (2 * height)
    xi = (level / (eta * eta - speed))[..., None] * torch.cat((eta[..., None], -rates), dim=-1)
    return xi, torch.cat((eta[..., None], rates), dim=-1)


def _part(pair: tuple[Tensor, Tensor], place: int | slice) -> tuple[Tensor, Tensor]:
    return pair[0][..., place], pair[1][..., place]


def _join(pairs: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    impulses, slacks = zip(*pairs, strict=True)
    return torch.cat(impulses, dim=-1), torch.cat(slacks, dim=-1)
