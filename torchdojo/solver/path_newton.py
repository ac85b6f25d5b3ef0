"""Newton's method on the central path: no cone stops its steps on the way from a warm start to the solution of the κ-problem.

An interior-point method creeps along the boundary of the cones where a contact opens or closes, since each step must stay inside. But the
pairs whose product is κ are themselves a smooth surface without boundary. On this surface an impulse and its slack are one unknown,

    γ s = κ  ⟺  γ = (c + √(c² + 4 κ a))/2,  s = κ/γ,   for c = γ − a s and any a > 0,

as in the smoothing functions of Smale (1987), Chen and Harker (1993) and Kanzow (1996): a smoothed max(c, 0). A Newton step of the
equations and of the linearized products leads to a new point, which may lie outside the cones. There c is read off, and the pair is put
back onto the surface. The full step is taken, and a contact may open or close in one iteration. With friction, the height ξ₁ = μγ is given
first. Then t = β − b η₂₃ is split into β = x ξ₁ t/|t| inside the disc and the slip that belongs to it. With ξ₁η₂₃ + η₁β = 0 and ξᵀη = κ,
the fraction x solves

    x + ε x/(1 − x²) = τ,   τ = |t|/ξ₁,  ε = b κ/ξ₁²,

so a contact may also stick or slip in one iteration. For second-order cones, Fukushima, Luo and Tseng (2002) project both vectors at once;
here the height is fixed beforehand. The maps are `on_path` of the elements. The numbers a and b weigh an impulse against a gap or a slip.
They decide how far an impulse jumps where a contact changes, and they change nothing at the solution. The Newton points, before they are
put onto the surface, tell good values of a and b (`path_maps.weight_of`).

Most warm starts are so near the solution that this method converges at κ itself. Where contacts change too much at once, the method starts
again from the same point at a larger κ, which blurs the changes. It lowers κ on the way. From cold starts it does the same. A quadruped
with random torques takes 9.7 iterations per step in the mean (`scripts/bench_step.py --models quadruped`). Without a globalization the
method may fail; `interior_point.solve_step` says what follows.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from torchdojo.dynamics import cones
from torchdojo.dynamics.residual import StepProblem
from torchdojo.elements.path_maps import SQUEEZING_ITERATIONS, Change
from torchdojo.elements.tendon import Tendon
from torchdojo.solver.kkt import KKT
from torchdojo.solver.options import SolverOptions, Status
from torchdojo.solver.solution import Solution, violations
from torchdojo.solver.speed import TOO_FAST, SpeedLook
from torchdojo.solver.turning import until_turning

__all__ = ["newton_on_path", "onto_path"]

# The kernel gets these constants from native/tables.py, so that kernel and reference take the same decisions.
NEAR_RESIDUAL, NEAR_ITERATIONS = 1e-2, 20  # an attempt at κ itself may go on for so long if all equations are violated by less than this
PATH_SHRINK = 0.1  # factor by which κ goes down in an iteration …
PATH_RESIDUAL = 1.0  # … where the largest violation of an equation is below this, at a cold start without tendons (`_unloaded`)
# From a larger κ, the line search halves a step that enlarges the largest violation. In the first EARLY_ITERATIONS it allows a growth of
# EARLY_GROWTH, and a violation of EARLY_GROWTH times PATH_RESIDUAL. It halves PATH_HALVINGS times at most, because full steps pass most
# kinks. Boxes that come to lie flat turn the lever of their contact from end to end within 2 mrad. Steps go back and forth across that
# kink, and PATIENT_HALVINGS end the cycle.
EARLY_ITERATIONS, EARLY_GROWTH, PATH_HALVINGS = 4, 2.0, 3
PATIENT_ITERATIONS, PATIENT_HALVINGS = 20, 8
DISTANT = 100.0  # a gap is wide from this many √(κ h/m) on: the impulse there is 1e-4 of the impulse that would close the gap in a step
LINE_SEARCH_HALVINGS = 12  # largest number of halvings where a point cannot be evaluated


def onto_path(problem: StepProblem, w: Tensor, kappa: Tensor, before: Tensor | None = None, early: bool = True) -> Tensor | None:
    """A copy of w (N, n) with all cone variables moved onto the central path at `kappa` (N,); None if some element has no `on_path`.

    `before` (N, n) is the last Newton point, and NaN in rows without one. Its secants tell the effective mass of bodies in joints; `early`
    says that it belongs to one of the first iterations. For bodies without joints the mass itself does: with secants, thrown cubes take 2 %
    more iterations.
    """
    change = torch.full_like(w, torch.nan) if before is None else w - before
    system, w = problem.system, w.clone()
    for group, element, mass in zip(system.groups, problem.elements, problem.effective_masses(), strict=True):
        if group.slack_index.shape[-1]:
            impulse, slack = w[:, group.impulse_index], w[:, group.slack_index]
            loose = system.free_bodies[group.body_index].all(-1)[:, None]
            squeezing = system.braced_bodies[group.body_index[:, 0]] if early and group.body_index.shape[1] == 1 else None
            jumped, slid = (change[:, index].masked_fill(loose, torch.nan) for index in (group.impulse_index, group.slack_index))
            pair = element.on_path(impulse, slack, kappa[:, None], mass, problem.timestep[:, None], Change(jumped, slid, squeezing))
            if pair is None:
                return None
            w[:, group.impulse_index], w[:, group.slack_index] = pair
    return w


def forecast_flight(problem: StepProblem, w: Tensor, kappa: float) -> Tensor:
    """A copy of w (N, n) with the contacts of flying bodies at the gap and slip that gravity and the wrench alone lead to.

    A warm start has the pairs of the step before. One Newton step mends them up to second order in the change of slip, which in flight is
    just too little. From the forecast, flight takes one Newton step. A body flies if no joint holds it and all its contacts are distant.
    A contact is distant if its gap, before and after, is wide against √(κ h/m), at which the impulse begins to matter.
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
            index = torch.where(near, body, system.num_bodies)  # distant contacts mark the world, whose entry is set right below
            flying = flying.scatter(1, index, torch.zeros_like(near))
    flying[:, -1] = True
    w = w.clone()
    for group, impulse, slack in forecasts:
        mine = flying[:, group.body_index].all(-1)[..., None]
        w[:, group.impulse_index] = torch.where(mine, impulse, w[:, group.impulse_index])
        w[:, group.slack_index] = torch.where(mine, slack, w[:, group.slack_index])
    return w


def newton_on_path(
    problem: StepProblem,
    start: Tensor,
    options: SolverOptions,
    max_iterations: int,
    level: float | Tensor | None = None,
    lift: bool = True,
    may_split: bool = False,
    points: list[Tensor] | None = None,
    left: Tensor | None = None,
) -> Solution | None:
    """Solve the κ-problem from `start` (N, num_unknowns) with full steps. Given a `level` (N,), go from there down to κ with careful steps.

    Without `lift`, the start has such products already. With `may_split`, steps that are too fast end with the status `TOO_FAST`.
    A list `points` gets the point before every iteration, of the environments that still go on then, and the last one.
    An environment makes at most `left` (N,) iterations. Returns None if some element has no `on_path`.
    """
    residual_tol, path_tol = options.tolerances(start.dtype)
    kappa = options.kappa
    status = torch.full((len(start),), int(Status.MAX_ITERATIONS), dtype=torch.int64, device=start.device)
    iterations = torch.zeros_like(status)
    index = torch.arange(len(start), device=start.device)
    kappas = torch.as_tensor(kappa if level is None else level, dtype=start.dtype, device=start.device).expand(len(start)).clamp_min(kappa)
    if level is None:
        start = forecast_flight(problem, start, kappa)
    point = onto_path(problem, start, kappas)
    if point is None:
        return None
    point = point if lift else start
    w, r, newton = point.clone(), problem.residual(point), torch.full_like(point, torch.nan)
    polished = torch.zeros_like(status, dtype=torch.bool)  # whether the point before is solved up to rounding (`violations`)
    late = torch.zeros_like(polished)  # whether steps are too fast if the attempt fails now
    for iteration in itertools.count():
        if points is not None:
            points.append(point)
        equality, complementarity, plain = violations(problem, r, torch.full_like(kappas, kappa), residual_tol)
        solved = (equality <= residual_tol) & (polished[index] | (plain <= residual_tol))
        done = solved & (complementarity <= path_tol * kappa) & (iteration >= options.min_iterations)
        going = ~done & torch.isfinite(equality + complementarity)
        if iteration >= max_iterations:
            going &= (equality < NEAR_RESIDUAL) & (level is None and iteration < NEAR_ITERATIONS)
        if left is not None:
            going &= iteration < left[index]
        if not bool(going.all()):
            w[index], status[index[done]] = point, int(Status.SUCCESS)
            status[index[~done & ~going & late]] = TOO_FAST
            index, point, r, kappas, equality, newton = index[going], point[going], r[going], kappas[going], equality[going], newton[going]
            late, problem = late[going], problem.select(going.nonzero().squeeze(-1))
        if not len(index):
            break
        iterations[index] += 1
        polished[index] = equality <= residual_tol
        near = equality if lift or iteration else violations(problem, _unloaded(problem, r), kappas, residual_tol)[2]
        kappas = torch.where(near < PATH_RESIDUAL, (PATH_SHRINK * kappas).clamp_min(kappa), kappas)
        direction = _direction(problem, point, r, kappas)
        if may_split:
            look = SpeedLook(problem, point, direction)
            fast, late = look.leads_beyond(iteration + 1), look.failed_beyond(lowered=level is not None)
            if bool(fast.any()):
                status[index[fast]] = TOO_FAST
                slow = (~fast).nonzero().squeeze(-1)
                index, point, r, kappas, equality, newton = index[slow], point[slow], r[slow], kappas[slow], equality[slow], newton[slow]
                direction, late, problem = direction[slow], late[slow], problem.select(slow)
                if not len(index):
                    break
        if level is None:
            allowed = torch.full_like(equality, torch.inf)
        elif iteration < EARLY_ITERATIONS:
            allowed = EARLY_GROWTH * equality.clamp_min(PATH_RESIDUAL)
        else:
            allowed = equality.clamp_min(residual_tol)
        halvings = PATH_HALVINGS if iteration < PATIENT_ITERATIONS else PATIENT_HALVINGS
        point, r, newton = _move(
            problem, point, direction, newton, kappas, allowed, halvings, residual_tol, iteration < SQUEEZING_ITERATIONS
        )
    return Solution(w, status, iterations)


def _unloaded(problem: StepProblem, r: Tensor) -> Tensor:
    """The residual r (N, n) of a cold start without impulses of tendons.

    A cold start has no impulses, so only the rows of tendons have theirs. Strings load joints with impulses that Newton's first step finds
    exactly, since they enter its equations linearly: large ones are no sign that κ must wait. Four strings with 2 N·s each took a fourth
    iteration for it, where torques of the same motion take three (`scripts/bench_drives.py --muscles strings`).
    """
    rows = [group.impulse_index.flatten() for group in problem.system.groups if isinstance(group.template, Tendon)]
    return r.index_fill(1, torch.cat(rows), 0.0) if rows else r


def _direction(problem: StepProblem, w: Tensor, r: Tensor, kappa: Tensor) -> Tensor:
    """Newton's direction for the equations and for products of κ, scaled because w is off the path where κ has just gone down."""
    system = problem.system
    if not system.num_cones:
        return KKT(problem, w).solve(-r)
    values, rows = cones.scaled_products(system, w)
    wanted = kappa[:, None] * cones.identity_rows(system, r)
    return KKT(problem, w, scaled=True).solve(wanted - r.index_copy(1, rows, values))


def _move(
    problem: StepProblem,
    w: Tensor,
    direction: Tensor,
    before: Tensor,
    kappa: Tensor,
    allowed: Tensor,
    most_halvings: int,
    residual_tol: float,
    early: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """A point further on the path, its residual, and the Newton point from which it was put onto the path.

    The step is halved while the residual is not finite and, up to `most_halvings` times, while the violation is above `allowed`.
    """
    alpha = until_turning(problem, w, direction)
    accepted = torch.zeros_like(alpha, dtype=torch.bool)
    newton, trial, r = w, w, w
    for halvings in range(LINE_SEARCH_HALVINGS):
        # An accepted alpha stays, and its trial is evaluated again. A part of a step tells no weights, so `before` is NaN for it.
        newton = w + alpha[:, None] * direction
        moved = onto_path(problem, newton, kappa, torch.where(alpha[:, None] < 1, torch.nan, before), early)
        assert moved is not None  # the same elements have put the start onto the path
        trial, r = moved, problem.residual(moved)
        equality, complementarity, _ = violations(problem, r, kappa, residual_tol)
        enough = equality <= allowed if halvings < most_halvings else torch.ones_like(accepted)
        accepted = accepted | (enough & torch.isfinite(equality + complementarity))
        if bool(accepted.all()):
            break
        alpha = torch.where(accepted, alpha, 0.5 * alpha)
    return trial, r, newton
