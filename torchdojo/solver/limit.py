"""Where a step is differentiated: at its solution, at that of a larger κ, or in the limit κ → 0."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from torchdojo.dynamics.residual import StepProblem
from torchdojo.limit_maps import COMPLIANCE, LIMIT_KAPPA, LIMIT_REFINEMENTS
from torchdojo.solver.interior_point import follow_central_path, solve_step
from torchdojo.solver.kkt import KKT
from torchdojo.solver.options import GradientMode, SolverOptions, Status

__all__ = ["at_limit", "derivative_system", "point_of_derivative"]

LIMIT_PATH_TOL = 0.99  # products are exact on the path; what is left is the rounding of impulse times slip, far above 1e-3 of LIMIT_KAPPA


def point_of_derivative(problem: StepProblem, w: Tensor, options: SolverOptions, grad_kappa: Tensor | None = None) -> Tensor:
    """The point (N, n) at which the equations are differentiated, for solutions w (N, n) at `options.kappa`.

    Where the solver does not get to another κ, derivatives are those at w.

    Args:
        grad_kappa: (N,), in the place of `options.grad_kappa`.
    """
    if GradientMode(options.gradient_mode).needs_limit:
        return at_limit(problem, hardened(problem, w, options))
    if grad_kappa is None:
        if options.grad_kappa is None or options.grad_kappa == options.kappa:
            return w
        grad_kappa = w.new_full((len(w),), options.grad_kappa)
    solution = follow_central_path(problem, w, grad_kappa, options)
    return torch.where((solution.status == int(Status.SUCCESS))[:, None], solution.w, w)


def derivative_system(problem: StepProblem, point: Tensor, options: SolverOptions) -> tuple[KKT, int]:
    """The derivative of the residual at a `point_of_derivative`, and how many refinements its solutions need."""
    if GradientMode(options.gradient_mode).needs_limit:
        return KKT(problem, point, refined_at=at_limit(problem, point, compliance=0.0)), LIMIT_REFINEMENTS
    return KKT(problem, point), 1


def hardened(problem: StepProblem, w: Tensor, options: SolverOptions) -> Tensor:
    """The solution continued to `LIMIT_KAPPA`, at which there is no doubt about classes of contacts that have one."""
    if options.kappa <= LIMIT_KAPPA:
        return w
    hard = dataclasses.replace(options, kappa=LIMIT_KAPPA, central_path_tol=LIMIT_PATH_TOL)
    solution = solve_step(problem, w, hard)
    return torch.where((solution.status == int(Status.SUCCESS))[:, None], solution.w, w)


def at_limit(problem: StepProblem, w: Tensor, compliance: float = COMPLIANCE) -> Tensor:
    """A copy of w (N, n) with the cone variables of the limit κ → 0 (`Element.at_limit`).

    Raises:
        ValueError: an element that has no limit.
    """
    system, w = problem.system, w.clone()
    for group, element, mass in zip(system.groups, problem.elements, problem.effective_masses(), strict=True):
        if group.slack_index.shape[-1]:
            pair = element.at_limit(w[:, group.impulse_index], w[:, group.slack_index], mass, problem.timestep[:, None], compliance)
            if pair is None:
                raise ValueError(f"{group.cls.__name__} has no `at_limit`, which gradient_mode='exact' needs")
            w[:, group.impulse_index], w[:, group.slack_index] = pair
    return w
