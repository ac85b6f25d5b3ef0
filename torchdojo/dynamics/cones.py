"""Cones of the complementarity conditions: products, arrow matrices and steps to the boundary, over all cones of a system at once.

An orthant pair has the product γ s. A second-order cone pair has ξ∘η = (ξᵀη, ξ₁η₂₃ + η₁ξ₂₃) and the identity e = (1, 0, 0).
On the central path every product equals κ e (Howell et al. 2025, section IV). Vandenberghe 2010, "The CVXOPT linear and quadratic cone
program solvers", derives the products in sections 2 and 4.1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from torchdojo.dynamics.system import System
    from torchdojo.elements.element import Cones

__all__ = [
    "identity_rows",
    "interior",
    "max_step",
    "mean_product",
    "product_jacobian",
    "product_rows",
    "products",
    "scaled_products",
    "scaling",
]


def cone_product(a: Tensor, b: Tensor) -> Tensor:
    """Second-order-cone product, (..., 3)."""
    return torch.cat(((a * b).sum(-1, keepdim=True), a[..., :1] * b[..., 1:] + b[..., :1] * a[..., 1:]), dim=-1)


def products(system: System, w: Tensor, v: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Products of impulses with slacks, (N, rows), and the positions of these rows in the residual, (rows,).

    With a second vector v, the impulses are taken from w and the slacks from v.
    """
    v = w if v is None else v
    orthant, second = system.orthant_index, system.second_order_index
    linear = w[:, orthant[:, 0]] * v[:, orthant[:, 1]]
    quadratic = cone_product(w[:, second[:, 0]], v[:, second[:, 1]])
    return torch.cat((linear, quadratic.flatten(1)), dim=1), torch.cat((orthant[:, 1], second[:, 1].flatten()))


class Scaling(NamedTuple):
    """Nesterov-Todd scaling of second-order cones: W ξ = W⁻¹ η = λ with W symmetric, (..., 3, 3), and λ, (..., 3).

    The linearized product in scaled variables, λ∘(W dξ + W⁻¹ dη), has a solution wherever ξ and η are interior. The plain product,
    ξ∘dη + η∘dξ, may have none away from the path. On the path both agree (Vandenberghe 2010, section 4.2).
    """

    weight: Tensor
    inverse: Tensor
    point: Tensor

    @property
    def rows(self) -> tuple[Tensor, Tensor]:
        """Derivatives of λ∘(W ξ + W⁻¹ η) with respect to ξ and η, each (..., 3, 3)."""
        return arrow(self.point) @ self.weight, arrow(self.point) @ self.inverse


def scaling(xi: Tensor, eta: Tensor) -> Scaling:
    """Nesterov-Todd scaling of interior ξ, η (..., 3)."""
    signs = xi.new_tensor((1.0, -1.0, -1.0))
    xi_norm, eta_norm = _hyperbolic_norm(xi)[..., None], _hyperbolic_norm(eta)[..., None]
    a, b = xi / xi_norm, eta / eta_norm
    middle = (b + signs * a) / torch.sqrt(2 * (1 + (a * b).sum(-1, keepdim=True)))
    v = torch.cat((middle[..., :1] + 1, middle[..., 1:]), dim=-1) / torch.sqrt(2 * (middle[..., :1] + 1))
    scale = torch.sqrt(eta_norm / xi_norm)[..., None]
    flip = signs * v
    weight = scale * (2 * v[..., :, None] * v[..., None, :] - torch.diag(signs))
    inverse = (2 * flip[..., :, None] * flip[..., None, :] - torch.diag(signs)) / scale
    return Scaling(weight, inverse, (weight @ xi[..., None]).squeeze(-1))


def scaled_products(system: System, w: Tensor, direction: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Products of the scaled variables at w, laid out as `products`: λ∘λ, or (W dξ)∘(W⁻¹ dη) for a direction."""
    orthant, second = system.orthant_index, system.second_order_index
    d = w if direction is None else direction
    nt = scaling(w[:, second[:, 0]], w[:, second[:, 1]])
    xi, eta = (nt.weight @ d[:, second[:, 0], None]).squeeze(-1), (nt.inverse @ d[:, second[:, 1], None]).squeeze(-1)
    linear = d[:, orthant[:, 0]] * d[:, orthant[:, 1]]
    return torch.cat((linear, cone_product(xi, eta).flatten(1)), dim=1), torch.cat((orthant[:, 1], second[:, 1].flatten()))


def identity_rows(system: System, like: Tensor) -> Tensor:
    """The vector over residual rows with e in the complementarity rows and zero elsewhere, (num_unknowns,)."""
    rows = like.new_zeros(system.num_unknowns)
    rows[system.orthant_index[:, 1]] = 1
    rows[system.second_order_index[:, 1, 0]] = 1
    return rows


def product_rows(system: System, like: Tensor) -> Tensor:
    """One in the complementarity rows of the residual and zero elsewhere, (num_unknowns,)."""
    rows = like.new_zeros(system.num_unknowns)
    rows[system.orthant_index[:, 1]] = 1
    rows[system.second_order_index[:, 1].flatten()] = 1
    return rows


def mean_product(system: System, w: Tensor) -> Tensor:
    """Mean over cones of impulseᵀ slack, (N,): κ on the central path."""
    orthant, second = system.orthant_index, system.second_order_index
    total = (w[:, orthant[:, 0]] * w[:, orthant[:, 1]]).sum(-1) + (w[:, second[:, 0]] * w[:, second[:, 1]]).sum((-1, -2))
    return total / max(system.num_cones, 1)


def arrow(x: Tensor) -> Tensor:
    """Matrix of y -> x∘y in a second-order cone, (..., 3, 3)."""
    x0, x1, x2 = x.unbind(-1)
    zero = torch.zeros_like(x0)
    return torch.stack((x0, x1, x2, x1, x0, zero, x2, zero, x0), dim=-1).unflatten(-1, (3, 3))


def product_jacobian(shape: Cones, impulse: Tensor, slack: Tensor, scaled: bool) -> tuple[Tensor, Tensor]:
    """Derivatives of one element's complementarity rows with respect to impulses and slacks (..., d), each (..., d, d)."""
    d_impulse, d_slack = (torch.diag_embed(x) for x in (slack, impulse))
    for i in range(shape.orthant, shape.size, 3):
        block = slice(i, i + 3)
        xi, eta = impulse[..., block], slack[..., block]
        rows = scaling(xi, eta).rows if scaled else (arrow(eta), arrow(xi))
        d_impulse[..., block, block], d_slack[..., block, block] = rows
    return d_impulse, d_slack


def max_step(system: System, w: Tensor, direction: Tensor) -> Tensor:
    """Largest α with w + α·direction in the closed cones, (N,), from an interior w; infinite where no cone stops the step."""
    pairs = system.orthant_index.flatten()
    inverse = (-direction[:, pairs] / w[:, pairs]).amax(-1) if len(pairs) else w.new_zeros(len(w))
    triples = system.second_order_index.flatten(0, 1)
    if len(triples):
        x, d = w[:, triples], direction[:, triples]
        # In the frame in which x is the identity, the most negative eigenvalue of the scaled direction stops the step.
        norm = _hyperbolic_norm(x)[..., None]
        x, d = x / norm, d / norm
        first = x[..., 0] * d[..., 0] - (x[..., 1:] * d[..., 1:]).sum(-1)
        rest = d[..., 1:] - ((first + d[..., 0]) / (x[..., 0] + 1))[..., None] * x[..., 1:]
        inverse = torch.maximum(inverse, (torch.linalg.vector_norm(rest, dim=-1) - first).amax(-1))
    # No cone stops a direction whose inverse is not positive; 1/−0.0, of a direction of zeros, would be −∞.
    return torch.where(inverse > 0, 1 / inverse, torch.inf)


def interior(system: System, w: Tensor) -> Tensor:
    """Whether all impulses and slacks are strictly inside their cones, (N,)."""
    pairs, triples = system.orthant_index.flatten(), w[:, system.second_order_index.flatten(0, 1)]
    return (w[:, pairs] > 0).all(-1) & (triples[..., 0] > _tail(triples)).all(-1)


def _hyperbolic_norm(x: Tensor) -> Tensor:
    """√(x₁² − |x₂₃|²) of an interior point, without cancellation."""
    return torch.sqrt(((x[..., 0] - _tail(x)) * (x[..., 0] + _tail(x))).clamp_min(torch.finfo(x.dtype).tiny))


def _tail(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x[..., 1:], dim=-1)
