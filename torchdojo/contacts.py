"""Contacts of a point or sphere on a body with a surface of the world: frictionless, or with Coulomb friction in the second-order cone.

With the contact point c (radius r) on the body, everything at the next configuration (design section 4; Howell et al. 2025, section III-C):

    φ = sdf(x⁺ + R⁺c) − r      lever l = R⁺c − r n      impulse P = γ n + Tᵀβ      torque R⁺ᵀ(l × P)      v_t = T (v⁺ + (R⁺ω⁺) × l)
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from torchdojo import quaternion as quat
from torchdojo.elements import Cones, Element, Motion, Pose, orthonormal_complement, unit
from torchdojo.parameters import require

__all__ = ["Contact", "ImpactContact", "NonlinearContact"]

# Of `on_path`: how much impulse a gap is worth, in units of m/h, where a contact opens or closes (a slip is worth m, where one sticks or
# slips). For quadrupeds, ants and humanoids within a factor of 3 of the best; twice the m of slips or more is bad.
IMPULSE_WEIGHT = 1 / 3
LEAST_HEIGHT = 1e-12  # of a friction cone [N·s]: a frictionless contact needs an interior, too


class Contact(Element):
    """Base class of contacts: the geometry. A user-written surface overrides `signed_distance` (and may override `surface_normal`).

    Args:
        body: name of the body.
        point: contact point in the body frame, from the centre of mass [m], (..., 3).
        radius: [m], (...,), >= 0.
        normal: of the half-space, world frame, any positive length, (..., 3).
        offset: height of the half-space along the unit normal [m], (...,).

    Raises:
        ValueError: a negative radius, a zero normal, shapes that do not fit.
    """

    fields: ClassVar[dict[str, int]] = {"point": 1, "radius": 0, "normal": 1, "offset": 0}
    point: Tensor
    radius: Tensor
    normal: Tensor
    offset: Tensor

    def __init__(
        self, body: str, *, point: Any = (0.0, 0.0, 0.0), radius: Any = 0.0, normal: Any = (0.0, 0.0, 1.0), offset: Any = 0.0
    ) -> None:
        super().__init__()
        self.body = body
        self.point = point
        self.radius = radius
        self.normal = normal
        self.offset = offset

    @property
    def body_names(self) -> tuple[str | None, ...]:
        return (self.body,)

    def check_field(self, name: str, value: Tensor) -> Tensor:
        value = super().check_field(name, value)
        if self.fields[name] == 1 and value.shape[-1] != 3:
            raise ValueError(f"{self.label(name)}: got shape {tuple(value.shape)}; allowed: (..., 3)")
        if name in ("radius", "friction"):
            require(value >= 0, self.label(name), value, "values >= 0")
        if name == "normal":
            require(torch.linalg.vector_norm(value, dim=-1) > 0, self.label(name), value, "vectors of positive length")
        return value

    def signed_distance(self, point: Tensor) -> Tensor:
        """Signed distance [m] of a world point (..., 3) to the surface, (...,): positive outside. Default: the half-space."""
        return (unit(self.normal) * point).sum(-1) - self.offset

    def surface_normal(self, point: Tensor) -> Tensor:
        """Outward unit normal of the surface at (or nearest to) a world point, (..., 3). Default: the gradient of `signed_distance`."""
        if type(self).signed_distance is Contact.signed_distance:
            return unit(self.normal).expand(point.shape)
        pull = torch.func.vjp(self.signed_distance, point)[1]
        return unit(pull(point.new_ones(point.shape[:-1]))[0])

    def distance(self, pose: Pose) -> Tensor:
        """φ: signed distance between the contact sphere and the surface [m], (...,)."""
        return self.signed_distance(pose.point(self.point)) - self.radius

    def geometry(self, motion: Motion) -> tuple[Tensor, Tensor, Tensor]:
        """φ (...,), unit normal (..., 3) and lever (..., 3) from the centre of mass to the point of contact, at the next pose."""
        arm = quat.rotate(motion.next.q, self.point)
        centre = motion.next.x + arm
        normal = self.surface_normal(centre)
        return self.signed_distance(centre) - self.radius, normal, arm - self.radius[..., None] * normal

    def slip(self, motion: Motion, lever: Tensor) -> Tensor:
        """Velocity of the material point at the contact, world frame [m/s], (..., 3)."""
        return motion.twist.v + quat.cross(quat.rotate(motion.next.q, motion.twist.omega), lever)

    def torque(self, motion: Motion, lever: Tensor, force: Tensor) -> Tensor:
        """Angular impulse of `force` at the point of contact, in the next body frame, (..., 3)."""
        return quat.inverse_rotate(motion.next.q, quat.cross(lever, force))


class ImpactContact(Contact):
    """Contact without friction: φ − s = 0, γ s = κ."""

    cones = Cones(orthant=1)

    def residual(
        self, motions: tuple[Motion, ...], impulse: Tensor, slack: Tensor, u: Tensor, timestep: Tensor
    ) -> tuple[list[tuple[Tensor, Tensor]], Tensor]:
        (motion,) = motions
        distance, normal, lever = self.geometry(motion)
        force = impulse * normal
        return [(force, self.torque(motion, lever, force))], distance[..., None] - slack

    def start(self, motions: tuple[Motion, ...], level: Tensor) -> tuple[Tensor, Tensor]:
        gap = torch.maximum(self.geometry(motions[0])[0], level.sqrt())
        return (level / gap)[..., None], gap[..., None]

    def on_path(self, impulse: Tensor, slack: Tensor, kappa: Tensor, mass: Tensor, timestep: Tensor) -> tuple[Tensor, Tensor]:
        gamma = normal_on_path(impulse[..., 0], slack[..., 0], kappa, mass[..., 0], timestep)
        return gamma[..., None], (kappa / gamma)[..., None]


class NonlinearContact(Contact):
    """Contact with Coulomb friction in the exact (second-order) cone, by the principle of maximum dissipation.

    The impulse is (γ, ξ₁, ξ₂, ξ₃), the slack (s, η₁, η₂, η₃): φ − s = 0, ξ₁ − μγ = 0, v_t − η₂₃ = 0, γ s = κ, ξ ∘ η = κ e; β = ξ₂₃.
    The tangents are `orthonormal_complement` of the normal: x and y for the ground.

    Args:
        friction: Coulomb coefficient μ, (...,), >= 0. The others are those of `Contact`.
    """

    fields: ClassVar[dict[str, int]] = {**Contact.fields, "friction": 0}
    cones = Cones(orthant=1, second_order=1)
    friction: Tensor

    def __init__(
        self,
        body: str,
        *,
        point: Any = (0.0, 0.0, 0.0),
        radius: Any = 0.0,
        friction: Any = 0.5,
        normal: Any = (0.0, 0.0, 1.0),
        offset: Any = 0.0,
    ) -> None:
        super().__init__(body, point=point, radius=radius, normal=normal, offset=offset)
        self.friction = friction

    def residual(
        self, motions: tuple[Motion, ...], impulse: Tensor, slack: Tensor, u: Tensor, timestep: Tensor
    ) -> tuple[list[tuple[Tensor, Tensor]], Tensor]:
        (motion,) = motions
        distance, normal, lever = self.geometry(motion)
        tangents = orthonormal_complement(normal)
        force = impulse[..., :1] * normal + (tangents * impulse[..., 2:4, None]).sum(-2)
        cone_height = impulse[..., 1:2] - self.friction[..., None] * impulse[..., :1]
        slip = (tangents * self.slip(motion, lever)[..., None, :]).sum(-1)
        rows = torch.cat((distance[..., None] - slack[..., :1], cone_height, slip - slack[..., 2:4]), dim=-1)
        return [(force, self.torque(motion, lever, force))], rows

    def start(self, motions: tuple[Motion, ...], level: Tensor) -> tuple[Tensor, Tensor]:
        # The gap and slip at these velocities, and impulses to match: every equation but the balance of momentum nearly holds.
        (motion,) = motions
        distance, normal, lever = self.geometry(motion)
        gap = torch.maximum(distance, level.sqrt())
        gamma = level / gap
        slip = (orthonormal_complement(normal) * self.slip(motion, lever)[..., None, :]).sum(-1)
        speed = (slip * slip).sum(-1)
        # ξ = level η⁻¹ with ξ₁ = μγ, for η = (η₁, slip); a frictionless contact still needs an interior.
        height = torch.maximum(self.friction * gamma, level)
        eta = (level + torch.sqrt(level * level + 4 * height * height * speed)) / (2 * height)
        slack = torch.stack((gap, eta, *slip.unbind(-1)), dim=-1)
        xi = (level / (eta * eta - speed))[..., None] * torch.cat((eta[..., None], -slip), dim=-1)
        return torch.cat((gamma[..., None], xi), dim=-1), slack

    def on_path(self, impulse: Tensor, slack: Tensor, kappa: Tensor, mass: Tensor, timestep: Tensor) -> tuple[Tensor, Tensor]:
        gamma = normal_on_path(impulse[..., 0], slack[..., 0], kappa, mass[..., 0], timestep)
        height = (self.friction * gamma).clamp_min(LEAST_HEIGHT)
        tangent = impulse[..., 2:4] - mass * slack[..., 2:4]
        length = torch.sqrt((tangent * tangent).sum(-1).clamp_min(torch.finfo(impulse.dtype).tiny))
        base = kappa / height
        gap = disc_gap(length / height, base / height * mass[..., 0])
        eta, inside = base / (gap * (2 - gap)), ((1 - gap) / length)[..., None] * tangent
        xi = torch.cat((gamma[..., None], height[..., None], height[..., None] * inside), dim=-1)
        return xi, torch.cat(((kappa / gamma)[..., None], eta[..., None], -eta[..., None] * inside), dim=-1)


def normal_on_path(gamma: Tensor, gap: Tensor, kappa: Tensor, mass: Tensor, timestep: Tensor) -> Tensor:
    """γ > 0 with γ − a κ/γ = `gamma` − a `gap`, (...,): the positive root, without cancellation."""
    weight = IMPULSE_WEIGHT * mass / timestep
    c, level = gamma - weight * gap, kappa * weight
    root = torch.sqrt(c * c + 4 * level)
    return torch.where(c > 0, 0.5 * (c + root), 2 * level / (root - c))


def disc_gap(tau: Tensor, epsilon: Tensor) -> Tensor:
    """g = 1 − x with x + ε x/(1 − x²) = τ, x in [0, 1), (...,): how far a friction impulse stays inside its disc.

    Newton's method from the root for small g. After four steps the relative error is below 3e-12 for all τ >= 0, ε > 0; after five it is
    rounding.
    """
    excess, tiny = tau - 1, torch.finfo(tau.dtype).tiny
    root = torch.sqrt(excess * excess + 2 * epsilon)
    g = torch.where(excess > 0, epsilon / (excess + root), 0.5 * (root - excess)).clamp_max(1)
    for _ in range(5):
        q, r = g * (2 - g), excess + g
        g = g - (q * r - epsilon * (1 - g)) / (2 * (1 - g) * r + q + epsilon)
        g = g.clamp(tiny, 1)
    return g
