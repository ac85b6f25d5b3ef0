"""Cost, constraint violation and augmented Lagrangian of candidates, and the Gauss-Newton expansion of the latter.

With equalities g, inequalities c, multipliers λ and a penalty ρ, the merit is

    Σ weight r² + λᵀg + ½ ρ |g|² + Σ (max(0, λ + ρ c)² − λ²) / (2 ρ)        (Nocedal and Wright 2006, eq. 17.36 and 17.65).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchdojo.planning.dynamics import Dynamics, Nodes
from torchdojo.planning.problem import Problem
from torchdojo.planning.residuals import Bound
from torchdojo.planning.riccati import Expansion

__all__ = ["Lagrangian"]


@dataclass
class Lagrangian:
    """The merit of P problems.

    multipliers: (P, K, d) of each equality, then of each inequality. penalty: ρ (P,).
    """

    dynamics: Dynamics
    costs: list[Bound]
    equalities: list[Bound]
    inequalities: list[Bound]
    multipliers: list[Tensor]
    penalty: Tensor

    @staticmethod
    def of(problem: Problem, owner: Tensor, penalty: float) -> Lagrangian:
        """For copies of problems; `owner` has the number of the problem of each copy."""
        constraints = (*problem.equalities, *problem.inequalities)
        multipliers = [torch.zeros(len(problem), *b.weight.shape[2:], dtype=torch.float64) for b in constraints]
        rho = torch.full((len(problem),), penalty, dtype=torch.float64)
        terms = problem.costs, problem.equalities, problem.inequalities
        return Lagrangian(problem.dynamics, terms[0], terms[1], terms[2], multipliers, rho).select(owner)

    @property
    def constrained(self) -> bool:
        return bool(self.equalities or self.inequalities)

    def select(self, problems: Tensor) -> Lagrangian:
        costs, equalities, inequalities = (
            [bound.select(problems) for bound in part] for part in (self.costs, self.equalities, self.inequalities)
        )
        multipliers = [multiplier[problems] for multiplier in self.multipliers]
        return Lagrangian(self.dynamics, costs, equalities, inequalities, multipliers, self.penalty[problems])

    @property
    def force_bounds(self) -> list[Bound]:
        """Costs and constraints of contact forces."""
        return [bound for part in (self.costs, self.equalities, self.inequalities) for bound in part if bound.of_forces]

    @property
    def force_rows(self) -> Tensor:
        """Rows of `Dynamics.forces` that some residual has, in order."""
        return torch.cat([bound.rows for bound in self.force_bounds if bound.rows is not None]).unique()

    def force_jacobian(self, nodes: Nodes, grad_kappa: Tensor) -> Tensor | None:
        """Derivatives (P, T, r, n + m) of the contact forces `force_rows` by state and input of the nodes, or None without any."""
        bounds = self.force_bounds
        if not bounds:
            return None
        steps = torch.cat([bound.nodes for bound in bounds]).unique()
        return self.dynamics.force_jacobian(nodes, grad_kappa, self.force_rows, steps)

    def _constraints(self, nodes: Nodes) -> list[tuple[Bound, Tensor, Tensor, bool]]:
        """(bound, scaled residual (P, C, K, d), multiplier (P, 1, K, d), whether it is an inequality)."""
        bounds = [(b, False) for b in self.equalities] + [(b, True) for b in self.inequalities]
        return [
            (bound, bound.weight * bound.value(self.dynamics, nodes), multiplier[:, None], above)
            for (bound, above), multiplier in zip(bounds, self.multipliers, strict=True)
        ]

    def value(self, nodes: Nodes) -> tuple[Tensor, Tensor, Tensor]:
        """Cost, merit and largest violation, each (P, C), of candidates with x (P, C, T+1, size), and so on."""
        cost = sum((b.weight * b.value(self.dynamics, nodes).square()).sum((-1, -2)) for b in self.costs)
        cost = cost + nodes.x.new_zeros(nodes.x.shape[:2])
        merit, violation = cost, torch.zeros_like(cost)
        rho = self.penalty[:, None, None, None]
        for _, r, multiplier, above in self._constraints(nodes):
            if above:
                added = ((multiplier + rho * r).clamp(min=0).square() - multiplier.square()) / (2 * rho)
                r = r.clamp(min=0)
            else:
                added = multiplier * r + 0.5 * rho * r.square()
            merit = merit + added.sum((-1, -2))
            violation = torch.maximum(violation, r.abs().amax((-1, -2)))
        return cost, merit, violation

    @property
    def quadratic(self) -> bool:
        """Whether the Hessians are the same everywhere."""
        return not self.constrained and all(bound.is_linear(self.dynamics) for bound in self.costs)

    def expansion(self, nodes: Nodes, forces: Tensor | None = None, known: Expansion | None = None) -> Expansion:
        """Gradient and Gauss-Newton Hessian of the merit at nodes with x (P, T+1, size), and so on.

        Args:
            forces: `force_jacobian` there. known: where to take the Hessians from.
        """
        x, candidate = nodes.x, Nodes(*(value[:, None] for value in nodes))
        (P, T, m), n = nodes.v.shape, self.dynamics.size
        lx, lu = x.new_zeros(P, T + 1, n), x.new_zeros(P, T, m)
        lxx, luu = (x.new_zeros(P, T + 1, n, n), x.new_zeros(P, T, m, m)) if known is None else (known.lxx, known.luu)
        force_rows = None if forces is None else self.force_rows
        lux = None if forces is None else x.new_zeros(P, T, m, n)

        def add_force(bound: Bound, slope: Tensor, curvature: Tensor) -> None:
            """`add` for a residual that depends on state and input."""
            assert forces is not None and force_rows is not None and lux is not None and bound.rows is not None
            nodes = bound.nodes
            by_x, by_v = forces[:, nodes][..., torch.searchsorted(force_rows, bound.rows), :].split((n, m), dim=-1)
            lx[:, nodes] += (by_x.mT @ slope[..., None])[..., 0]
            lu[:, nodes] += (by_v.mT @ slope[..., None])[..., 0]
            lxx[:, nodes] += by_x.mT @ (curvature[..., None] * by_x)
            luu[:, nodes] += by_v.mT @ (curvature[..., None] * by_v)
            lux[:, nodes] += by_v.mT @ (curvature[..., None] * by_x)

        def add(bound: Bound, slope: Tensor, curvature: Tensor) -> None:
            """Derivatives of a function of r with gradient and curvature (P, K, d)."""
            if bound.of_forces:
                add_force(bound, slope, curvature)
                return
            gradient, hessian = (lu, luu) if bound.of_input else (lx, lxx)
            jacobian, nodes = bound.jacobian(self.dynamics, x), bound.nodes
            if known is not None and bound.everywhere and bound.rows is None:
                gradient += slope if jacobian is None else (jacobian.mT @ slope[..., None])[..., 0]
                return
            if jacobian is None:
                rows = torch.arange(slope.shape[-1]) if bound.rows is None else bound.rows
                gradient[:, nodes[:, None], rows] += slope
                if known is None:
                    hessian[:, nodes[:, None], rows, rows] += curvature
                return
            gradient[:, nodes] += (jacobian.mT @ slope[..., None])[..., 0]
            if known is None:
                hessian[:, nodes] += jacobian.mT @ (curvature[..., None] * jacobian)

        for bound in self.costs:
            r = bound.value(self.dynamics, candidate)[:, 0]
            weight = bound.weight[:, 0].expand_as(r)
            add(bound, 2 * weight * r, 2 * weight)
        rho = self.penalty[:, None, None]
        for bound, r, multiplier, above in self._constraints(candidate):
            force = multiplier[:, 0] + rho * r[:, 0]
            weight = bound.weight[:, 0]
            stiffness = rho * weight.square() * torch.ones_like(force)
            if above:
                stiffness, force = torch.where(force > 0, stiffness, 0.0), force.clamp(min=0)
            add(bound, weight * force, stiffness)
        return Expansion(lx, lxx, lu, luu, lux)

    def update(self, problems: Tensor, nodes: Nodes, growth: float) -> None:
        """New multipliers of these problems at their iterates, with x (len(problems), T+1, size), and so on, and a larger penalty."""
        part = self.select(problems)
        rho = part.penalty[:, None, None]
        constraints = part._constraints(Nodes(*(value[:, None] for value in nodes)))
        for whole, (_, r, multiplier, above) in zip(self.multipliers, constraints, strict=True):
            new = multiplier[:, 0] + rho * r[:, 0]
            whole[problems] = new.clamp(min=0) if above else new
        self.penalty[problems] = part.penalty * growth
