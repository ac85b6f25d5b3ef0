"""The linear system of one Newton iteration, and its transpose for the adjoint.

With p = [twists, joint multipliers] and c = [impulses, slacks] of the elements with cones,

    [ A  −B ] [δp]     [r_p]
    [ C   D ] [δc] = − [r_c]          (A + B D⁻¹ C) δp = −r_p − B D⁻¹ r_c

D is block diagonal over elements, so only the condensed matrix is dense (Nocedal and Wright 2006, section 19.3).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from torchdojo.dynamics import cones
from torchdojo.dynamics.residual import StepProblem, add_blocks
from torchdojo.dynamics.system import Group
from torchdojo.state.layout import TWIST_SIZE

__all__ = ["KKT"]

# Weight of the multipliers in the joint rows, relative to the timestep. It keeps rows solvable that depend on each other at a configuration
# (flat parallelograms, couplings in a circle). state/redundancy.py leaves out rows that do so everywhere.
REGULARIZATION = 1e-10
# Refinements of a derivative go on until they leave at most this fraction of the multipliers. Each leaves ε m/(1 + ε m) of the error, with
# the regularization ε and the inertia m that resists a row. That is 1e-6 and one refinement where contacts hold a body. It is 6e-3 and four
# where a damper of 1e11 N·s/m and contacts of 300 N·s do.
REFINED, MOST_REFINEMENTS = 1e-10, 30


class _Cone(NamedTuple):
    """Blocks of one group with cones."""

    group: Group
    body_rows: Tensor  # (E, 6k) positions in p; the positions of the world lie behind the end
    places: Tensor  # (E, 2d) positions of c in w
    wrench: Tensor  # B (N, E, 6k, 2d)
    rows: Tensor  # C (N, E, 2d, 6k)
    matrix: Tensor  # D (N, E, 2d, 2d) against which solves are refined
    factor: Tensor
    pivots: Tensor

    def solve(self, right: Tensor, adjoint: bool = False) -> Tensor:
        """D⁻¹ right (or D⁻ᵀ right) for (N, E, 2d, c)."""
        return torch.linalg.lu_solve(self.factor, self.pivots, right, adjoint=adjoint)


class KKT:
    """Factored derivative of the residual at w, (N, n, n), for repeated solves.

    With `scaled`, the complementarity rows are written in Nesterov-Todd scaled variables; they serve directions, not gradients. With
    `refined_at` (N, n), refinement is against the derivative whose complementarity rows are taken there; that derivative may be singular.
    """

    def __init__(self, problem: StepProblem, w: Tensor, *, scaled: bool = False, refined_at: Tensor | None = None) -> None:
        system = problem.system
        count, primal, nb = len(w), system.num_primal, system.num_bodies
        self.primal, self.twists = primal, TWIST_SIZE * nb
        body, blocks = problem.linearize(w)
        device = w.device
        body_rows = torch.cat((torch.arange(TWIST_SIZE * nb, device=device), torch.arange(primal, primal + TWIST_SIZE, device=device)))
        body_rows = body_rows.reshape(nb + 1, TWIST_SIZE)
        matrix = w.new_zeros(count, primal + TWIST_SIZE, primal + TWIST_SIZE)
        condensed = torch.zeros_like(matrix)
        add_blocks(matrix, body_rows[:nb], body_rows[:nb], body)
        self.cones: list[_Cone] = []
        for group, block in zip(system.groups, blocks, strict=True):
            rows = body_rows[group.body_index].flatten(-2)
            width = rows.shape[-1]
            if not group.slack_index.shape[-1]:
                local = torch.cat((rows, group.impulse_index), dim=-1)
                add_blocks(matrix, local, local, torch.cat((-block.wrench, block.rows), dim=-2))
                continue
            impulse, slack = w[:, group.impulse_index], w[:, group.slack_index]
            products = torch.cat(cones.product_jacobian(group.template.cones, impulse, slack, scaled), dim=-1)
            inner = exact = torch.cat((block.rows[..., width:], products), dim=-2)
            if refined_at is not None:
                pair = refined_at[:, group.impulse_index], refined_at[:, group.slack_index]
                products = torch.cat(cones.product_jacobian(group.template.cones, *pair, scaled), dim=-1)
                exact = torch.cat((block.rows[..., width:], products), dim=-2)
            outer = torch.cat((block.rows[..., :width], torch.zeros_like(block.rows[..., :width])), dim=-2)
            factor, pivots, _ = torch.linalg.lu_factor_ex(inner)
            add_blocks(matrix, rows, rows, -block.wrench[..., :width])
            wrench = block.wrench[..., width:]
            add_blocks(condensed, rows, rows, wrench @ torch.linalg.lu_solve(factor, pivots, outer))
            places = torch.cat((group.impulse_index, group.slack_index), dim=-1)
            self.cones.append(_Cone(group, rows, places, wrench, outer, exact, factor, pivots))
        self.matrix = matrix[:, :primal, :primal]
        condensed = self.matrix + condensed[:, :primal, :primal]
        multipliers = torch.arange(TWIST_SIZE * nb, primal, device=device)
        condensed[:, multipliers, multipliers] += REGULARIZATION * problem.timestep[:, None]
        self.factor, self.pivots, _ = torch.linalg.lu_factor_ex(condensed)

    def solve(self, right: Tensor, refinements: int | None = 0) -> Tensor:
        """δ with (derivative) δ = right, for (N, n) or, column by column, (N, n, c).

        Refinements are against the matrix without its regularization. None are as many as take it out, at least one.
        """
        return self._refine(right, refinements, self._solve, self._multiply)

    def solve_transposed(self, right: Tensor, refinements: int | None = None) -> Tensor:
        """λ with (derivative)ᵀ λ = right, for (N, n) or (N, n, c)."""
        return self._refine(right, refinements, self._solve_transposed, self._multiply_transposed)

    def _refine(
        self, right: Tensor, refinements: int | None, solve: Callable[[Tensor], Tensor], multiply: Callable[[Tensor], Tensor]
    ) -> Tensor:
        columns = right if right.ndim == 3 else right[..., None]
        delta = solve(columns)
        if refinements is not None:
            for _ in range(refinements):
                delta = delta + solve(columns - multiply(delta))
            return delta if right.ndim == 3 else delta.squeeze(-1)
        last, going = self._largest(delta), torch.ones_like(delta[:, :1], dtype=torch.bool)
        for _ in range(MOST_REFINEMENTS):
            change = solve(columns - multiply(delta))
            delta = delta + torch.where(going, change, 0.0)
            largest = self._largest(change)  # the next change is to this one as this one is to the last
            going, last = going & (largest * largest > REFINED * self._largest(delta) * last), largest
            if not bool(going.any()):
                break
        return delta if right.ndim == 3 else delta.squeeze(-1)

    def _largest(self, delta: Tensor) -> Tensor:
        """Largest multiplier of solutions (N, n, c), (N, 1, c)."""
        multipliers = delta[:, self.twists : self.primal].abs()
        return multipliers.amax(1, keepdim=True) if multipliers.shape[1] else torch.zeros_like(delta[:, :1])

    def _solve(self, right: Tensor) -> Tensor:
        top = self._pad(right)
        inner = [cone.solve(right[:, cone.places]) for cone in self.cones]
        for cone, value in zip(self.cones, inner, strict=True):
            top = top.index_add(1, cone.body_rows.flatten(), (cone.wrench @ value).flatten(1, 2))
        primal = torch.linalg.lu_solve(self.factor, self.pivots, top[:, : self.primal])
        padded = self._pad(primal)
        delta = torch.cat((primal, torch.zeros_like(right[:, self.primal :])), dim=1)
        for cone, value in zip(self.cones, inner, strict=True):
            value = value - cone.solve(cone.rows @ padded[:, cone.body_rows])
            delta = delta.index_copy(1, cone.places.flatten(), value.flatten(1, 2))
        return delta

    def _solve_transposed(self, right: Tensor) -> Tensor:
        top = self._pad(right)
        for cone in self.cones:
            value = cone.rows.mT @ cone.solve(right[:, cone.places], adjoint=True)
            top = top.index_add(1, cone.body_rows.flatten(), -value.flatten(1, 2))
        primal = torch.linalg.lu_solve(self.factor, self.pivots, top[:, : self.primal], adjoint=True)
        padded = self._pad(primal)
        adjoint = torch.cat((primal, torch.zeros_like(right[:, self.primal :])), dim=1)
        for cone in self.cones:
            value = cone.solve(right[:, cone.places] + cone.wrench.mT @ padded[:, cone.body_rows], adjoint=True)
            adjoint = adjoint.index_copy(1, cone.places.flatten(), value.flatten(1, 2))
        return adjoint

    def _multiply(self, delta: Tensor) -> Tensor:
        padded = self._pad(delta)
        top = self._pad(self.matrix @ delta[:, : self.primal])
        out = torch.zeros_like(delta)
        for cone in self.cones:
            value = delta[:, cone.places]
            top = top.index_add(1, cone.body_rows.flatten(), -(cone.wrench @ value).flatten(1, 2))
            product = cone.rows @ padded[:, cone.body_rows] + cone.matrix @ value
            out = out.index_copy(1, cone.places.flatten(), product.flatten(1, 2))
        return torch.cat((top[:, : self.primal], out[:, self.primal :]), dim=1)

    def _multiply_transposed(self, adjoint: Tensor) -> Tensor:
        padded = self._pad(adjoint)
        top = self._pad(self.matrix.mT @ adjoint[:, : self.primal])
        out = torch.zeros_like(adjoint)
        for cone in self.cones:
            value = adjoint[:, cone.places]
            top = top.index_add(1, cone.body_rows.flatten(), (cone.rows.mT @ value).flatten(1, 2))
            product = cone.matrix.mT @ value - cone.wrench.mT @ padded[:, cone.body_rows]
            out = out.index_copy(1, cone.places.flatten(), product.flatten(1, 2))
        return torch.cat((top[:, : self.primal], out[:, self.primal :]), dim=1)

    def _pad(self, columns: Tensor) -> Tensor:
        """The p part (N, ·, c) with six zeros for the world behind it."""
        return torch.cat((columns[:, : self.primal], columns.new_zeros(len(columns), 6, columns.shape[-1])), dim=1)
