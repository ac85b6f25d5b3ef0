"""Cones of the complementarity conditions: products, arrow matrices and steps to the boundary, over all cones of a system at once.

An orthant pair has the product γ s. A second-order cone pair has ξ∘η = (ξᵀη, ξ₁η₂₃ + η₁ξ₂₃) and the identity e = (1, 0, 0).
On the central path every product equals κ e (Howell et al. 2025, section IV; Vandenberghe 2010, "The CVXOPT linear and quadratic cone
program solvers", sections 2 and 4.1).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from torchdojo.dynamics.system import System

__all__ = ["arrow", "identity_rows", "interior", "max_step", "mean_product", "product_rows", "products"]


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


def arrow(orthant: int, x: Tensor) -> Tensor:
    """Matrix of y -> x∘y for one element's vector x (..., d): a diagonal followed by arrow matrices, (..., d, d)."""
    size = x.shape[-1]
    matrix = x.new_zeros(*x.shape, size)
    for i in range(orthant):
        matrix[..., i, i] = x[..., i]
    for i in range(orthant, size, 3):
        matrix[..., i, i : i + 3] = x[..., i : i + 3]
        matrix[..., i + 1, i], matrix[..., i + 2, i] = x[..., i + 1], x[..., i + 2]
        matrix[..., i + 1, i + 1] = matrix[..., i + 2, i + 2] = x[..., i]
    return matrix


def max_step(system: System, w: Tensor, direction: Tensor) -> Tensor:
    """Largest α with w + α·direction in the closed cones, (N,); infinite where no cone stops it. w is interior."""
    pairs = system.orthant_index.flatten()
    inverse = (-direction[:, pairs] / w[:, pairs]).amax(-1) if len(pairs) else w.new_zeros(len(w))
    triples = system.second_order_index.flatten(0, 1)
    if len(triples):
        x, d = w[:, triples], direction[:, triples]
        # The step in the frame in which x is the identity: the most negative eigenvalue of the scaled direction stops it.
        norm = torch.sqrt(((x[..., 0] - _tail(x)) * (x[..., 0] + _tail(x))).clamp_min(torch.finfo(x.dtype).tiny))
        x, d = x / norm[..., None], d / norm[..., None]
        first = x[..., 0] * d[..., 0] - (x[..., 1:] * d[..., 1:]).sum(-1)
        rest = d[..., 1:] - ((first + d[..., 0]) / (x[..., 0] + 1))[..., None] * x[..., 1:]
        inverse = torch.maximum(inverse, (torch.linalg.vector_norm(rest, dim=-1) - first).amax(-1))
    return 1 / inverse.clamp_min(0)


def interior(system: System, w: Tensor) -> Tensor:
    """Whether all impulses and slacks are strictly inside their cones, (N,)."""
    pairs, triples = system.orthant_index.flatten(), w[:, system.second_order_index.flatten(0, 1)]
    return (w[:, pairs] > 0).all(-1) & (triples[..., 0] > _tail(triples)).all(-1)


def _tail(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x[..., 1:], dim=-1)
