"""Newton's method on the central path: from a warm start, the way to the κ-problem on which no cone stops a step.

An interior-point method creeps along the boundary of the cones where a contact opens or closes, since each step must stay inside. But the
pairs whose product is κ are themselves a smooth surface without boundary. On it an impulse and its slack are one unknown,

    γ s = κ  ⟺  γ = (c + √(c² + 4 κ a))/2,  s = κ/γ,   for c = γ − a s and any a > 0,

as in the smoothing functions of Smale (1987), Chen and Harker (1993) and Kanzow (1996): a smoothed max(c, 0). After each Newton step of the
equations and of the linearized products (those of `follow_central_path`), c is read off the new point, which may lie outside the cones, and
the pair is put back onto the surface. The full step is taken, and a contact may open or close in one iteration. With friction, the height
ξ₁ = μγ is given first; then t = β − b η₂₃ is split into β = x ξ₁ t/|t| inside the disc and the slip that belongs to it. With
ξ₁η₂₃ + η₁β = 0 and ξᵀη = κ, the fraction x solves

    x + ε x/(1 − x²) = τ,   τ = |t|/ξ₁,  ε = b κ/ξ₁²,

so a contact may also stick or slip in one iteration (second-order cones: Fukushima, Luo and Tseng 2002; there both vectors are projected at
once, here the height is not free). The maps are `on_path` of the elements. a and b weigh an impulse against a gap or a slip: they decide
how far an impulse jumps where a contact changes, and nothing at the solution. The points to which Newton's steps led, before they were put
onto the surface, tell what they should be (`path_maps.weight_of`).

Warm starts are near the solution, and most are this method's at κ itself. Where contacts change too much at once for it, it starts again
from the same point at a larger κ, which blurs the changes, and lowers κ while it goes; so it does from cold starts. Mean iterations per
step with random torques, before and after: quadruped 25 and 9.7, ant 25 and 4.4, half-cheetah 18 and 4.1. Without a globalization it may
fail; `interior_point.solve_step` says what follows.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from torchdojo.dynamics import cones
from torchdojo.dynamics.residual import StepProblem
from torchdojo.solver.kkt import KKT
from torchdojo.solver.options import SolverOptions, Status
from torchdojo.solver.solution import Solution, violations

__all__ = ["newton_on_path", "onto_path"]

# The compiled kernel has the same (native/src/solver/solver.hpp), so that both take the same decisions.
NEAR_RESIDUAL, NEAR_ITERATIONS = 1e-2, 20  # an attempt at κ itself that is this near, in all equations, may go on for so long
PATH_SHRINK = 0.1  # factor by which κ goes down in an iteration …
PATH_RESIDUAL = 1.0  # … where the largest violation of an equation is below this
# From a larger κ, the line search halves a step that enlarges that violation: in the first FREE_ITERATIONS one that makes it FREE_GROWTH
# times what it was, and of PATH_RESIDUAL (without that bound an oblique impact of a box took 23 iterations, with it 9). It halves
# PATH_HALVINGS times at most: full steps pass most kinks. Where they go back and forth across one (boxes that come to lie flat turn the
# lever of their contact from end to end within 2 mrad), PATIENT_HALVINGS end the cycle; of 8,640 random collisions of capsules and boxes
# with and without restitution, they saved 3.6 of 11.8 iterations in the mean.
FREE_ITERATIONS, FREE_GROWTH, PATH_HALVINGS = 4, 2.0, 3
PATIENT_ITERATIONS, PATIENT_HALVINGS = 20, 8
DISTANT = 100.0  # times √(κ h/m) is wide: the impulse of such a contact is 1e-4 of what its gap is worth
LINE_SEARCH_HALVINGS = 12  # as often as this where a point cannot be evaluated


def onto_path(problem: StepProblem, w: Tensor, kappa: Tensor, before: Tensor | None = None) -> Tensor | None:
    """A copy of w (N, n) with all cone variables moved onto the central path at `kappa` (N,). None where some element cannot tell how.

    `before` (N, n): what the last Newton step gave, in rows that had one, and NaN in others. It tells what bodies weigh that others hold;
    for free ones the mass does (with secants, thrown cubes took 2 % more iterations).
    """
    change = torch.full_like(w, torch.nan) if before is None else w - before
    system, w = problem.system, w.clone()
    for group, element, mass in zip(system.groups, problem.elements, problem.effective_masses(), strict=True):
        if group.slack_index.shape[-1]:
            impulse, slack = w[:, group.impulse_index], w[:, group.slack_index]
            free = system.free_bodies[group.body_index].all(-1)[:, None]
            moved = change[:, group.impulse_index].masked_fill(free, torch.nan), change[:, group.slack_index].masked_fill(free, torch.nan)
            pair = element.on_path(impulse, slack, kappa[:, None], mass, problem.timestep[:, None], moved)
            if pair is None:
                return None
            w[:, group.impulse_index], w[:, group.slack_index] = pair
    return w


def forecast_flight(problem: StepProblem, w: Tensor, kappa: float) -> Tensor:
    """A copy of w (N, n) with the contacts of flying bodies at the gap and slip that gravity and the wrench alone lead to.

    The pairs of a warm start are those of the step before, which one Newton step mends up to second order in the change of slip: in flight
    that is just too little. From the forecast, flight takes one step. A body flies that no joint holds and whose contacts are all distant:
    their gaps are wide against that at which the impulse begins to matter, √(κ h/m), before and after.
    """
    system, twist = problem.system, torch.cat(problem.state.twist, dim=-1)
    if not bool(system.free_bodies[:-1].any()):
        return w
    flying = system.free_bodies.repeat(len(w), 1)
    zero = torch.zeros_like(twist[..., :3])
    wrench = problem.wrench.unflatten(-1, (-1, 6))[..., :3]
    drift = problem.timestep[:, None, None] * (problem.gravity[:, None] + wrench / problem.mass[..., None])
    twists = torch.cat((twist + torch.cat((drift, zero), dim=-1), torch.zeros_like(twist[:, :1])), dim=1)
    forecasts = []
    for group, element, mass in zip(system.groups, problem.elements, problem.effective_masses(), strict=True):
        if not group.slack_index.shape[-1]:
            continue
        impulse, slack = element.start(problem.motions(*problem.gather(group, w, twists)[:3]), w.new_full((len(w), 1), kappa))
        forecasts.append((group, impulse, slack))
        wide = DISTANT * torch.sqrt(kappa * problem.timestep[:, None] / mass[..., 0])
        near = ~((w[:, group.slack_index[:, 0]] > wide) & (slack[..., 0] > wide))
        for body in group.body_index.unbind(-1):
            index = torch.where(near, body, system.num_bodies)  # (the world takes those that are distant, and is set right below)
            flying = flying.scatter(1, index, torch.zeros_like(near))
    flying[:, -1] = True
    w = w.clone()
    for group, impulse, slack in forecasts:
        mine = flying[:, group.body_index].all(-1)[..., None]
        w[:, group.impulse_index] = torch.where(mine, impulse, w[:, group.impulse_index])
        w[:, group.slack_index] = torch.where(mine, slack, w[:, group.slack_index])
    return w


def newton_on_path(
    problem: StepProblem, start: Tensor, options: SolverOptions, max_iterations: int, level: float | None = None, lift: bool = True
) -> Solution | None:
    """Solve the κ-problem from `start` (N, num_unknowns) with full steps, or, given a `level`, from there down to κ with careful ones.

    Without `lift`, the start has such products already. Returns None where some element has no `on_path`.
    """
    residual_tol, path_tol = options.tolerances(start.dtype)
    kappa = options.kappa
    system, count = problem.system, len(start)
    status = torch.full((count,), int(Status.MAX_ITERATIONS), dtype=torch.int64, device=start.device)
    iterations = torch.zeros_like(status)
    index = torch.arange(count, device=start.device)
    now = start.new_full((count,), max(kappa, level or kappa))
    if level is None:
        start = forecast_flight(problem, start, kappa)
    here = onto_path(problem, start, now)
    if here is None:
        return None
    here = here if lift else start
    w, r, newton = here.clone(), problem.residual(here), torch.full_like(here, torch.nan)
    for iteration in itertools.count():
        equality, complementarity = violations(system, r, torch.full_like(now, kappa))
        done = (equality <= residual_tol) & (complementarity <= path_tol * kappa) & (iteration >= options.min_iterations)
        going = ~done & torch.isfinite(equality + complementarity)
        if iteration >= max_iterations:
            going &= (equality < NEAR_RESIDUAL) & (level is None and iteration < NEAR_ITERATIONS)
        if not bool(going.all()):
            w[index], status[index[done]] = here, int(Status.SUCCESS)
            index, here, r, now, equality, newton = index[going], here[going], r[going], now[going], equality[going], newton[going]
            problem = problem.select(going.nonzero().squeeze(-1))
        if not len(index):
            break
        iterations[index] += 1
        now = torch.where(equality < PATH_RESIDUAL, (PATH_SHRINK * now).clamp_min(kappa), now)
        direction = _direction(problem, here, r, now)
        if level is None:
            allowed = torch.full_like(equality, torch.inf)
        elif iteration < FREE_ITERATIONS:
            allowed = FREE_GROWTH * equality.clamp_min(PATH_RESIDUAL)
        else:
            allowed = equality.clamp_min(residual_tol)
        halvings = PATH_HALVINGS if iteration < PATIENT_ITERATIONS else PATIENT_HALVINGS
        here, r, newton = _move(problem, here, direction, newton, now, allowed, halvings)
    return Solution(w, status, iterations)


def _direction(problem: StepProblem, w: Tensor, r: Tensor, kappa: Tensor) -> Tensor:
    """Newton's direction for the equations and for products of κ. Where κ has just gone down, w is off that path; hence the scaling."""
    system = problem.system
    if not system.num_cones:
        return KKT(problem, w).solve(-r)
    values, rows = cones.scaled_products(system, w)
    wanted = kappa[:, None] * cones.identity_rows(system, r)
    return KKT(problem, w, scaled=True).solve(wanted - r.index_copy(1, rows, values))


def _move(
    problem: StepProblem, w: Tensor, direction: Tensor, before: Tensor, kappa: Tensor, allowed: Tensor, most_halvings: int
) -> tuple[Tensor, Tensor, Tensor]:
    """A point further on the path, its residual, and where it was before it was put there; halved where that is not finite or,
    `most_halvings` times, above `allowed`."""
    alpha = torch.ones_like(kappa)
    accepted = torch.zeros_like(alpha, dtype=torch.bool)
    newton, trial, r = w, w, w
    for halvings in range(LINE_SEARCH_HALVINGS):
        # Where accepted, alpha is left alone and the same trial is evaluated again. (What a part of a step changes tells no weights.)
        newton = w + alpha[:, None] * direction
        moved = onto_path(problem, newton, kappa, torch.where(alpha[:, None] < 1, torch.nan, before))
        assert moved is not None  # the start was put onto the path by the same elements
        trial, r = moved, problem.residual(moved)
        equality, complementarity = violations(problem.system, r, kappa)
        enough = equality <= allowed if halvings < most_halvings else torch.ones_like(accepted)
        accepted = accepted | (enough & torch.isfinite(equality + complementarity))
        if bool(accepted.all()):
            break
        alpha = torch.where(accepted, alpha, 0.5 * alpha)
    return trial, r, newton
