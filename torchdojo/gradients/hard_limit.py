"""Where a step is differentiated: at its solution, at that of a larger κ, or in the limit κ → 0."""

from __future__ import annotations

import dataclasses
import warnings

import torch
from torch import Tensor

from torchdojo.dynamics.residual import StepProblem
from torchdojo.elements.contact import Contact
from torchdojo.elements.hard_maps import COMPLIANCE, HARD_ITERATIONS, HARD_KAPPA, HARD_REFINEMENTS
from torchdojo.solver.interior_point import follow_central_path
from torchdojo.solver.kkt import KKT
from torchdojo.solver.options import GradientMode, SolverOptions, Status
from torchdojo.solver.path_newton import newton_on_path

__all__ = ["at_limit", "better_of", "derivative_system", "limit_options", "point_of_derivative", "warn_of_lost_digits"]

TIE = 1e-6  # by which fraction the square of a gradient must be larger than that of another one to count as larger
# Stiffness of a pressed contact, γ²/κ over m/h, above which derivatives are no longer known to 1e-6: measured on a ball that rolls (1e-7 at
# 4e10, 2e-4 at 4e12, nothing at 4e14), and between two bodies in the kernel, which factors them without pivoting (1e-5 at 2e8).
LARGEST_STIFFNESS, LARGEST_BETWEEN = 1e11, 1e8
SMALL_KAPPA = 1e-9  # above it nothing is that stiff that is not 1 N·s on a milligram
LIMIT_RESIDUAL_TOL = 1e-9  # tighter ones are below rounding there
LIMIT_PATH_TOL = 0.99  # products are exact on the path; what is left is the rounding of impulse times slip, far above 1e-3 of HARD_KAPPA


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
        return _limit_system(problem, point), HARD_REFINEMENTS
    return KKT(problem, point), 1


def _limit_system(problem: StepProblem, point: Tensor) -> KKT:
    return KKT(problem, point, refined_at=at_limit(problem, point, compliance=0.0))


def hardened(problem: StepProblem, w: Tensor, options: SolverOptions) -> Tensor:
    """The solution continued to `HARD_KAPPA`, at which there is no doubt about classes of contacts that have one.

    Where it does not get there in a few full steps, contacts change on the way (a box that comes down on four corners at once), the limit
    may be another motion altogether, and classes are those at kappa.
    """
    if options.kappa <= HARD_KAPPA:
        return w
    hard = limit_options(options)
    limit = HARD_ITERATIONS + options.min_iterations
    solution = newton_on_path(problem, w, hard, limit)
    if solution is None:
        solution = follow_central_path(problem, w, HARD_KAPPA, hard, limit)
    arrived = (solution.status == int(Status.SUCCESS)) & (solution.iterations <= limit)
    return torch.where(arrived[:, None], solution.w, w)


def limit_options(options: SolverOptions) -> SolverOptions:
    """The same at `HARD_KAPPA`."""
    tol = max(options.tolerances(torch.float64)[0], LIMIT_RESIDUAL_TOL)
    kappa = min(options.kappa, HARD_KAPPA)
    return dataclasses.replace(options, kappa=kappa, residual_tol=tol, central_path_tol=LIMIT_PATH_TOL)


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


def better_of(problem: StepProblem, point: Tensor, multiplier: Tensor, cotangent: Tensor) -> tuple[Tensor, Tensor]:
    """Of the exact multipliers at `point`, λ with (∂r/∂w)ᵀ λ = cotangent, and two that are driven by the loss, those with the largest
    gradient of the inputs, (N, n) each, and the points that they belong to.

    The multiplier ν of a contact's gap is the derivative of the loss by that gap. Where it is negative and the contact pressed, the loss
    goes down if the contact opens, which descent along the exact gradient will never find out. So it is taken for breaking: the contacts
    with the world that the loss wants open, or all of them. A contact between bodies is also what one of them moves the other with (a ball
    on an actuated platform), and then is better left closed; that is decided by the size of the gradient, as in Nimble (Werling et al.
    2021, section 4.4, where there is one strategy, of all contacts).
    """
    best, chosen, where = _controls(problem, point, multiplier), multiplier, point
    for between_bodies in (False, True):
        opened = point.clone()
        for group, element, mass in zip(problem.system.groups, problem.elements, problem.effective_masses(), strict=True):
            if not issubclass(group.cls, Contact) or (group.body_index.shape[1] > 1 and not between_bodies):
                continue
            impulse, slack = point[:, group.impulse_index], point[:, group.slack_index].clone()
            pressed = slack[..., 0] < impulse[..., 0] * problem.timestep[:, None] / mass[..., 0]
            slack[..., 0] = torch.where(pressed & (multiplier[:, group.impulse_index[:, 0]] < 0), torch.inf, slack[..., 0])
            pair = element.at_limit(impulse, slack, mass, problem.timestep[:, None], COMPLIANCE)
            assert pair is not None  # `point` came from there
            opened[:, group.impulse_index], opened[:, group.slack_index] = pair[0], pair[1].nan_to_num(posinf=1.0)
        found = _limit_system(problem, opened).solve_transposed(cotangent, HARD_REFINEMENTS)
        size = _controls(problem, opened, found)
        better = size > (1 + TIE) * best
        best = torch.where(better, size, best)
        chosen, where = (torch.where(better[:, None], a, b) for a, b in ((found, chosen), (opened, where)))
    return chosen, where


def _controls(problem: StepProblem, point: Tensor, multiplier: Tensor) -> Tensor:
    """Squared norm of the gradient −λᵀ ∂r/∂u of the inputs, or, without inputs, of the wrench, (N,)."""
    which = "u" if problem.u.shape[-1] else "wrench"
    data = {name: getattr(problem, name).detach() for name in ("z", "u", "wrench")}
    parameters = [p.detach() for p in problem.parameters]
    with torch.enable_grad():
        leaf = data[which].requires_grad_()
        residual = StepProblem(problem.system, parameters, data["z"], data["u"], data["wrench"]).residual(point)
        (gradient,) = torch.autograd.grad(residual, leaf, -multiplier)
    return (gradient * gradient).sum(-1)


def warn_of_lost_digits(
    problem: StepProblem, w: Tensor, options: SolverOptions, grad_kappa: Tensor | None, *, native: bool = False
) -> None:
    """Warn where κ is so small for the impulses of solutions w (N, n) that factoring their derivative loses digits of it.

    Says the stiffness of the worst contact relative to its bodies, which is the condition number of their block, and the smallest κ that
    would do. In the limit there is nothing to warn of: what is held then is so with `COMPLIANCE`.
    """
    if GradientMode(options.gradient_mode).needs_limit:
        return
    kappa = w.new_full((len(w),), options.grad_kappa or options.kappa) if grad_kappa is None else grad_kappa
    if not len(w) or float(kappa.min()) > SMALL_KAPPA:
        return
    worst, needed = 0.0, 0.0
    for group, mass in zip(problem.system.groups, problem.effective_masses(), strict=True):
        if not issubclass(group.cls, Contact):
            continue
        stiffness = w[:, group.impulse_index[:, 0]] ** 2 / kappa[:, None] * problem.timestep[:, None] / mass[..., 0]
        allowed = LARGEST_BETWEEN if native and group.body_index.shape[1] > 1 else LARGEST_STIFFNESS
        if bool((stiffness > allowed).any()):
            worst = max(worst, float(stiffness.max()))
            needed = max(needed, float((stiffness / allowed * kappa[:, None]).max()))
    if worst:
        warnings.warn(
            f"kappa = {float(kappa.min()):.1g} is too small for gradients at these impulses: a contact is {worst:.1g} times as stiff as "
            f"its bodies, and factoring that loses digits; use kappa or grad_kappa = {needed:.1g} or larger, or gradient_mode='exact'",
            stacklevel=2,
        )
