"""Points of hard contact (κ → 0) from points of the central path at a small κ: the parts of `Element.at_limit` of contacts.

As κ → 0 a complementarity pair γ s = 0 is open (γ = 0) or closed (s = 0), and a friction cone ξ ∘ η = 0 is

    breaking    ξ = 0                                          no impulse, whatever the slip
    sticking    η = 0, ξ inside its cone                       no slip, whatever the impulse
    sliding     ξ = c (1, −d), η = s (1, d), |d| = 1           δξ₂₃ = −d δξ₁ − (c/s) (I − d dᵀ) δη₂₃

(Carpentier, Le Lidec and Montaut 2024, "From compliant to rigid contact simulation"; Le Lidec et al. 2024, "Simple", eq. 8-13). The
linearized product ξ ∘ δη + η ∘ δξ = 0 says the last line where ξ and η are on the boundary of their cones. It says the others where the
variable that vanishes is replaced by nothing. So the hard equations equal the equations of the central path, at another point.

Rows of sticking and closed contacts may depend on each other, as in a box on four corners. They are given a compliance, `COMPLIANCE` times
that of their bodies, with which the equations are factored. Iterative refinement against the equations without the compliance removes it.
This is the proximal point method (Carpentier, Budhiraja and Mansard 2021, "Proximal and sparse resolution of constrained dynamic
equations"). Velocities converge to the exact ones, impulses to the exact ones of least norm, in units of √mass.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = [
    "COMPLIANCE",
    "HARD_ITERATIONS",
    "HARD_KAPPA",
    "HARD_REFINEMENTS",
    "hard_disc",
    "hard_normal",
    "hard_pair",
    "hard_pyramid",
]

HARD_KAPPA = 1e-12  # κ at which contacts are classified
# Compliance added to sticking and closed contacts, relative to the bodies'. Each refinement reduces the error by about this factor.
# Between two bodies the condensed matrix loses twice as many digits as this number has zeros.
COMPLIANCE = 1e-6
HARD_REFINEMENTS = 2
# Bound on the way from a solution to the one at HARD_KAPPA. Where contacts change it takes longer, and κ → 0 is not near.
HARD_ITERATIONS = 5
VANISHING = 1e-30  # stands for zero where a number is divided by it


def hard_pair(impulse: Tensor, slack: Tensor, weight: Tensor, compliance: float) -> tuple[Tensor, Tensor]:
    """Orthant pairs (...,): open where the impulse is less than `weight` times the slack, elsewhere closed, with a relative compliance."""
    closed = impulse > weight * slack
    vanishing = torch.full_like(impulse, VANISHING)
    return torch.where(closed, impulse, vanishing), torch.where(closed, compliance * impulse / weight, slack)


def hard_normal(gamma: Tensor, gap: Tensor, mass: Tensor, timestep: Tensor, compliance: float) -> tuple[Tensor, Tensor]:
    """γ and s (...,) of contacts and of joint limits: mass/timestep weighs a gap against an impulse."""
    return hard_pair(gamma, gap, mass / timestep, compliance)


def hard_disc(pressed: Tensor, xi: Tensor, eta: Tensor, mass: Tensor, compliance: float) -> tuple[Tensor, Tensor]:
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


def hard_pyramid(pressed: Tensor, impulse: Tensor, slack: Tensor, mass: Tensor, compliance: float) -> tuple[Tensor, Tensor]:
    """(ψ, β) and (sψ, η), each (..., 1 + n), of contacts that are `pressed` (...,) or breaking."""
    # ψ follows from the slip that is left, and needs no compliance.
    psi, slack_psi = hard_pair(impulse[..., :1], slack[..., :1], 1 / mass[..., None], VANISHING)
    beta, eta = hard_pair(impulse[..., 1:], slack[..., 1:], mass[..., None], compliance)
    one, vanishing = torch.ones_like(psi), torch.full_like(beta, VANISHING)
    pressed = pressed[..., None]
    new_impulse = torch.cat((torch.where(pressed, psi, one), torch.where(pressed, beta, vanishing)), dim=-1)
    new_slack = torch.cat((torch.where(pressed, slack_psi, one), torch.where(pressed, eta, torch.ones_like(eta))), dim=-1)
    return new_impulse, new_slack
