"""Points of the limit κ → 0 from points of the central path at a small κ: what `Element.at_limit` of contacts is made of.

In the limit a complementarity pair γ s = 0 is open (γ = 0) or closed (s = 0), and a friction cone ξ ∘ η = 0 is

    breaking    ξ = 0                                          no impulse, whatever the slip
    sticking    η = 0, ξ inside its cone                       no slip, whatever the impulse
    sliding     ξ = c (1, −d), η = s (1, d), |d| = 1           δξ₂₃ = −d δξ₁ − (c/s) (I − d dᵀ) δη₂₃

(Le Lidec et al., "From compliant to rigid contact simulation: a unified and efficient approach" and "Simple", equations 8-13). The last one
is what the linearized product ξ ∘ δη + η ∘ δξ = 0 says at a ξ and an η on the boundary of their cones, and the others are what the products
say where the variable that vanishes is replaced by nothing. So the equations of the limit are those of the central path, at another point.

Rows of sticking and closed contacts may depend on each other (a box on four corners). They are given a compliance, `COMPLIANCE` times that
of their bodies, with which the equations are factored, and iterative refinement against the equations without it takes it out again: the
proximal point method (Carpentier, Budhiraja and Mansard 2021, "Proximal and sparse resolution of constrained dynamic equations").
Velocities converge to the exact ones, impulses to those of least norm, in units of √mass.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = [
    "COMPLIANCE",
    "LIMIT_ITERATIONS",
    "LIMIT_KAPPA",
    "LIMIT_REFINEMENTS",
    "disc_at_limit",
    "normal_at_limit",
    "pair_at_limit",
    "pyramid_at_limit",
]

LIMIT_KAPPA = 1e-12  # at which contacts are classified
# Of what is held, relative to that of the bodies: each refinement leaves about this fraction of the error. Between two bodies the condensed
# matrix loses twice as many digits as this has zeros.
COMPLIANCE = 1e-6
LIMIT_REFINEMENTS = 2
LIMIT_ITERATIONS = 5  # from a solution to that at LIMIT_KAPPA; where contacts change on the way, it takes longer and κ → 0 is not near
VANISHING = 1e-30  # what stands for zero: nothing may be divided by zero


def pair_at_limit(impulse: Tensor, slack: Tensor, worth: Tensor, compliance: float) -> tuple[Tensor, Tensor]:
    """Orthant pairs (...,): open where the impulse is less than `worth` times the slack, elsewhere closed, with a relative compliance."""
    closed = impulse > worth * slack
    vanishing = torch.full_like(impulse, VANISHING)
    return torch.where(closed, impulse, vanishing), torch.where(closed, compliance * impulse / worth, slack)


def normal_at_limit(gamma: Tensor, gap: Tensor, mass: Tensor, timestep: Tensor, compliance: float) -> tuple[Tensor, Tensor]:
    """γ and s (...,) of contacts and limits: a gap is worth mass/timestep."""
    return pair_at_limit(gamma, gap, mass / timestep, compliance)


def disc_at_limit(pressed: Tensor, xi: Tensor, eta: Tensor, mass: Tensor, compliance: float) -> tuple[Tensor, Tensor]:
    """ξ and η (..., 3) of contacts that are `pressed` (...,) or breaking."""
    force, slip = torch.linalg.vector_norm(xi[..., 1:], dim=-1), torch.linalg.vector_norm(eta[..., 1:], dim=-1)
    # The small eigenvalue of ξ against the large one of η: their product is κ.
    speed = 0.5 * (eta[..., 0] + slip)
    sticking = (xi[..., 0] - force > mass * speed)[..., None]
    direction = xi[..., 1:] / force.clamp_min(torch.finfo(xi.dtype).tiny)[..., None]
    boundary = torch.cat((torch.ones_like(xi[..., :1]), direction), dim=-1)
    opposite = torch.cat((torch.ones_like(xi[..., :1]), -direction), dim=-1)
    identity = torch.zeros_like(xi)
    identity[..., 0] = 1
    pressed = pressed[..., None]
    new_xi = torch.where(pressed, torch.where(sticking, xi, xi[..., :1] * boundary), VANISHING * identity)
    new_eta = torch.where(pressed, torch.where(sticking, compliance / mass[..., None] * xi, speed[..., None] * opposite), identity)
    return new_xi, new_eta


def pyramid_at_limit(pressed: Tensor, impulse: Tensor, slack: Tensor, mass: Tensor, compliance: float) -> tuple[Tensor, Tensor]:
    """(ψ, β) and (sψ, η), each (..., 1 + n), of contacts that are `pressed` (...,) or breaking."""
    # (ψ follows from the slip that is left, and needs no compliance)
    psi, slack_psi = pair_at_limit(impulse[..., :1], slack[..., :1], 1 / mass[..., None], VANISHING)
    beta, eta = pair_at_limit(impulse[..., 1:], slack[..., 1:], mass[..., None], compliance)
    one, vanishing = torch.ones_like(psi), torch.full_like(beta, VANISHING)
    pressed = pressed[..., None]
    new_impulse = torch.cat((torch.where(pressed, psi, one), torch.where(pressed, beta, vanishing)), dim=-1)
    new_slack = torch.cat((torch.where(pressed, slack_psi, one), torch.where(pressed, eta, torch.ones_like(eta))), dim=-1)
    return new_impulse, new_slack
