"""The point at which a step is differentiated: its solution, the solution at a larger κ, or the hard limit κ → 0."""

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

__all__ = ["at_limit", "better_of", "derivative_system", "hard_options", "point_of_derivative", "warn_of_lost_digits"]

TIE = 1e-6  # relative margin by which a squared gradient must exceed another one to count as larger
# Stiffness of a pressed contact, γ²/κ over m/h, up to which derivatives are accurate to 1e-6. At 4e12, derivatives of a ball that rolls
# have an error of 2e-4. The kernel factors contacts between two bodies without pivoting: at 2e8, the error is 1e-5.
LARGEST_STIFFNESS, LARGEST_BETWEEN = 1e11, 1e8
SMALL_KAPPA = 1e-9  # above this κ, no ordinary contact is that stiff: it would take 1 N·s on a milligram
HARD_RESIDUAL_TOL = 1e-9  # smaller tolerances are below rounding at HARD_KAPPA
HARD_PATH_TOL = 0.99  # products are exact on the path, up to the rounding of impulse times slip, which is far above 1e-3 of HARD_KAPPA


def point_of_derivative(problem: StepProblem, w: Tensor, options: SolverOptions, grad_kappa: Tensor | None = None) -> Tensor:
    """The point (N, n) at which the equations are differentiated, for solutions w (N, n) at `options.kappa`.

    Where the solver fails at another κ, the point is w itself.

    Args:
        grad_kappa: (N,) replaces `options.grad_kappa`.
    """
    if GradientMode(options.gradient_mode).needs_limit:
        return at_limit(problem, hardened(problem, w, options))
    if grad_kappa is None:
        if options.grad_kappa is None or options.grad_kappa == options.kappa:
            return w
        grad_kappa = w.new_full((len(w),), options.grad_kappa)
    solution = follow_central_path(problem, w, grad_kappa, options)
    return torch.where((solution.status == int(Status.SUCCESS))[:, None], solution.w, w)


def derivative_system(problem: StepProblem, point: Tensor, options: SolverOptions) -> tuple[KKT, int | None]:
    """The derivative of the residual at a `point_of_derivative`, and the refinements of its solutions (`KKT.solve`)."""
    if GradientMode(options.gradient_mode).needs_limit:
        return _hard_system(problem, point), HARD_REFINEMENTS
    return KKT(problem, point), None


def _hard_system(problem: StepProblem, point: Tensor) -> KKT:
    return KKT(problem, point, refined_at=at_limit(problem, point, compliance=0.0))


def hardened(problem: StepProblem, w: Tensor, options: SolverOptions) -> Tensor:
    """Continue the solution w (N, n) to `HARD_KAPPA`, where contacts that have a class (open, sticking, sliding) show it beyond doubt.

    If the solution does not arrive in a few full steps, contacts change on the way, as with a box that comes down flat. The hard motion may
    then be another one altogether. Such an environment keeps w, and the classes of its contacts at kappa.
    """
    if options.kappa <= HARD_KAPPA:
        return w
    hard = hard_options(options)
    maximum = HARD_ITERATIONS + options.min_iterations
    solution = newton_on_path(problem, w, hard, maximum)
    if solution is None:
        solution = follow_central_path(problem, w, HARD_KAPPA, hard, maximum)
    arrived = (solution.status == int(Status.SUCCESS)) & (solution.iterations <= maximum)
    return torch.where(arrived[:, None], solution.w, w)


def hard_options(options: SolverOptions) -> SolverOptions:
    """The options at `HARD_KAPPA`, with tolerances that can be met there."""
    tol = max(options.tolerances(torch.float64)[0], HARD_RESIDUAL_TOL)
    kappa = min(options.kappa, HARD_KAPPA)
    return dataclasses.replace(options, kappa=kappa, residual_tol=tol, central_path_tol=HARD_PATH_TOL)


def at_limit(problem: StepProblem, w: Tensor, compliance: float = COMPLIANCE) -> Tensor:
    """A copy of w (N, n) with the cone variables of the hard limit κ → 0 (`Element.at_limit`).

    Raises:
        ValueError: an element without `at_limit`.
    """
    system, w = problem.system, w.clone()
    for group, element, mass in zip(system.groups, problem.elements, problem.effective_masses(), strict=True):
        if group.slack_index.shape[-1]:
            pair = element.at_limit(w[:, group.impulse_index], w[:, group.slack_index], mass, problem.timestep[:, None], compliance)
            if pair is None:
                raise ValueError(
                    f"{group.cls.__name__} has no `at_limit`, which gradient_mode='exact' needs; write it or use 'central_path'"
                )
            w[:, group.impulse_index], w[:, group.slack_index] = pair
    return w


def better_of(problem: StepProblem, point: Tensor, multiplier: Tensor, cotangent: Tensor) -> tuple[Tensor, Tensor]:
    """Choose between the exact multipliers and two that the loss drives: the largest gradient of the inputs wins in each environment.

    The exact multipliers at `point` are λ with (∂r/∂w)ᵀ λ = cotangent. Returns the chosen multipliers and their points, (N, n) each.

    The multiplier ν of a contact's gap is the derivative of the loss by that gap. If ν is negative and the contact pressed, the loss goes
    down when the contact opens. Descent along the exact gradient never finds this out. So such contacts are taken for breaking: first the
    contacts with the world, then all. A contact between bodies may also be the means by which one body moves the other, as a ball on an
    actuated platform. Such a contact is better left closed. The size of the gradient decides, as in Nimble (Werling et al. 2021, section
    4.4), which has a single strategy for all contacts.
    """
    best, chosen, chosen_point = _controls(problem, point, multiplier), multiplier, point
    for between_bodies in (False, True):
        opened = point.clone()
        for group, element, mass in zip(problem.system.groups, problem.elements, problem.effective_masses(), strict=True):
            if not issubclass(group.cls, Contact) or (group.body_index.shape[1] > 1 and not between_bodies):
                continue
            impulse, slack = point[:, group.impulse_index], point[:, group.slack_index].clone()
            pressed = slack[..., 0] < impulse[..., 0] * problem.timestep[:, None] / mass[..., 0]
            slack[..., 0] = torch.where(pressed & (multiplier[:, group.impulse_index[:, 0]] < 0), torch.inf, slack[..., 0])
            pair = element.at_limit(impulse, slack, mass, problem.timestep[:, None], COMPLIANCE)
            assert pair is not None  # `point` is itself a result of `at_limit`
            opened[:, group.impulse_index], opened[:, group.slack_index] = pair[0], pair[1].nan_to_num(posinf=1.0)
        candidate = _hard_system(problem, opened).solve_transposed(cotangent, HARD_REFINEMENTS)
        size = _controls(problem, opened, candidate)
        better = size > (1 + TIE) * best
        best = torch.where(better, size, best)
        chosen, chosen_point = (torch.where(better[:, None], a, b) for a, b in ((candidate, chosen), (opened, chosen_point)))
    return chosen, chosen_point


def _controls(problem: StepProblem, point: Tensor, multiplier: Tensor) -> Tensor:
    """Squared norm (N,) of the gradient −λᵀ ∂r/∂u of the inputs; without inputs, of the gradient of the wrench."""
    control = "u" if problem.u.shape[-1] else "wrench"
    data = {name: getattr(problem, name).detach() for name in ("z", "u", "wrench")}
    parameters = [p.detach() for p in problem.parameters]
    with torch.enable_grad():
        leaf = data[control].requires_grad_()
        residual = problem.replace(parameters=parameters, **data).residual(point)
        (gradient,) = torch.autograd.grad(residual, leaf, -multiplier)
    return (gradient * gradient).sum(-1)


def warn_of_lost_digits(
    problem: StepProblem, w: Tensor, options: SolverOptions, grad_kappa: Tensor | None, *, native: bool = False
) -> None:
    """Warn where κ is so small for the impulses of solutions w (N, n) that factoring their derivative loses digits.

    The warning gives the stiffness of the worst contact relative to its bodies: the condition number of their block. It also gives the
    smallest κ that suffices. The hard limit loses no digits, because its contacts are held with `COMPLIANCE`.
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
            f"its bodies, and factoring both loses digits; use kappa or grad_kappa = {needed:.1g} or larger, or gradient_mode='exact'",
            stacklevel=2,
        )
