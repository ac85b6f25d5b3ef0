"""Primal-dual interior-point method that lands on the central path (Mehrotra 1992; Howell et al. 2025, algorithm 2).

An iteration costs one factorization and two solves: an affine step decides how far to center, and a corrected step is taken. Once the
target product is κ itself, the second-order term of the corrector is dropped. The method is then Newton's on the κ-problem and converges to
the exact path. Convergence is decided for each environment by itself; converged environments leave the batch.
"""

from __future__ import annotations

import enum
from collections.abc import Callable

import torch
from torch import Tensor

from torchdojo.dynamics import cones
from torchdojo.dynamics.residual import StepProblem
from torchdojo.solver.continuation import trace_central_path
from torchdojo.solver.kkt import KKT
from torchdojo.solver.options import SolverOptions, Status
from torchdojo.solver.path_newton import NEAR_RESIDUAL, newton_on_path
from torchdojo.solver.solution import Solution, violations
from torchdojo.solver.speed import TOO_FAST, starts_too_fast
from torchdojo.solver.start_level import fading_level, start_level
from torchdojo.solver.turning import until_turning

__all__ = ["Attempts", "Solution", "follow_central_path", "solve_step"]

# Constants of the interior-point method. The rules for short steps make every cold start converge, on thrown cubes (tests/solver)
# and on quadrupeds dropped in random poses.
STEP_TO_BOUNDARY = 0.95  # fraction of the way to the boundary of the cones that one step may go
SHORT_STEP = 0.3  # a direction that the boundary stops earlier than this is replaced by one that centers
STUCK_STEP = 0.1  # after a step shorter than this the next step centers
JAMMED_STEP = 0.02  # after a step shorter than this the cone variables are set anew
RAISE = 10.0  # factor by which the products go up where they are too small for the equations still violated
MAX_LEVEL = 1.0  # largest product to go up to [N·s·m]
START_LEVEL = 0.1  # products at a cold start [N·s·m]; like those of the next lines, smaller for a tiny weight (start_level.py)
CONTINUATION_LEVELS = (1e-1, 1e-2)  # products from which paths are traced, in turn
WARM_ITERATIONS = 12  # iterations of an attempt from a warm start, before the next attempt
DESCENT_LEVEL, DESCENT_ITERATIONS = 1e-2, 44  # start level [N·s·m] and iterations of an attempt on the path from a larger κ
# The same for parts of a step whose attempts have failed. Products of 1e-2 throw light links far off: they turn a finger of 1e-7 kg·m² by
# more than a step represents. From 1e-2, steps of a robot with such fingers fail in 2,000 iterations.
RESCUE_LEVEL, RESCUE_ITERATIONS = 1e-4, 28
COLD_ITERATIONS = 36  # of a cold start by the interior-point method that leaves some equation violated by more than NEAR_RESIDUAL
LINE_SEARCH_HALVINGS = 12


class Attempts(enum.Enum):
    """The attempts of `solve_step`.

    ALL: of a step as it is called, and of halves of a step that is too fast.
    FIRST: of steps whose caller has other means where they fail: without continuation.
    RESCUE: of parts of a step whose attempts have failed. They start from less, end sooner, and may be split again.
    LAST: continuation alone, where the rescue has failed, too.
    """

    ALL = "all"
    FIRST = "first"
    RESCUE = "rescue"
    LAST = "last"


def newton_direction(problem: StepProblem, w: Tensor, r: Tensor, kappa: Tensor, stuck: Tensor) -> tuple[Tensor, Tensor]:
    """Predictor-corrector direction, (N, n), and the product it aims at, (N,). Where `stuck` (N,), the direction only centers."""
    system = problem.system
    if not system.num_cones:
        return KKT(problem, w).solve(-r), kappa
    kkt = KKT(problem, w, scaled=True)
    identity, products = cones.identity_rows(system, r), cones.product_rows(system, r)
    values, rows = cones.scaled_products(system, w)
    r = r.index_copy(1, rows, values)
    affine = kkt.solve(-r)
    alpha = cones.max_step(system, w, affine).clamp_max(1)
    mean = cones.mean_product(system, w)
    affine_mean = cones.mean_product(system, w + alpha[:, None] * affine)
    centered = (affine_mean / mean).clamp(0, 1) ** 3 * mean
    target = torch.maximum(centered, kappa)
    second_order, rows = cones.scaled_products(system, w, affine)
    # Newton on the κ-problem, without the second-order term, makes the end point exact.
    second_order = torch.where((centered > kappa)[:, None], second_order, torch.zeros_like(second_order))
    direction = kkt.solve((target[:, None] * identity - r).index_add(1, rows, second_order, alpha=-1))
    # A short step means that some pair is near the boundary and far from the others: without centering, the iteration would jam there.
    short = stuck | (cones.max_step(system, w, direction) < SHORT_STEP)
    if bool(short.any()):
        wide = torch.maximum(mean, kappa)
        # If the step is short although all products are alike, they are too small for the equations still violated: back up along the path.
        spread = ((r - mean[:, None] * identity) * products).abs().amax(-1)
        wide = torch.where(spread < 0.1 * mean, (RAISE * wide).clamp_max(MAX_LEVEL), wide)
        centering = kkt.solve((wide[:, None] * identity - r) * products)
        direction = torch.where(short[:, None], centering, direction)
        target = torch.where(short, wide, target)
    return direction, target


def follow_central_path(
    problem: StepProblem,
    start: Tensor,
    kappa: float | Tensor,
    options: SolverOptions,
    max_iterations: int | None = None,
    left: Tensor | None = None,
    far_iterations: int | None = None,
) -> Solution:
    """Solve the κ-problem from an interior start, (N, num_unknowns). κ is one number or one per environment (N,).

    An environment makes at most `max_iterations`, and `left` (N,), iterations. It stops after `far_iterations` where some equation is
    violated by more than `NEAR_RESIDUAL`.
    """
    residual_tol, path_tol = options.tolerances(start.dtype)
    cap = options.max_iterations if max_iterations is None else max_iterations
    w = start.clone(memory_format=torch.contiguous_format)
    status = torch.full((len(w),), int(Status.MAX_ITERATIONS), dtype=torch.int64, device=w.device)
    iterations = torch.zeros_like(status)
    index = torch.arange(len(w), device=w.device)
    point, r = start, problem.residual(start)
    goal = torch.as_tensor(kappa, dtype=w.dtype, device=w.device).expand(len(w))
    polished, stuck = torch.zeros_like(status, dtype=torch.bool), torch.zeros_like(goal, dtype=torch.bool)
    for iteration in range(cap + 1):
        equality, complementarity, plain = violations(problem, r, goal, residual_tol)
        solved = (equality <= residual_tol) & (polished[index] | (plain <= residual_tol))
        done = solved & (complementarity <= path_tol * goal) & (iteration >= options.min_iterations)
        going = ~done & torch.isfinite(equality + complementarity)
        if left is not None:
            going &= iteration < left[index]
        if far_iterations is not None and iteration >= far_iterations:
            going &= equality < NEAR_RESIDUAL
        if not bool(going.all()):
            w[index] = point
            status[index[done]] = int(Status.SUCCESS)
            index, point, r, goal, stuck = index[going], point[going], r[going], goal[going], stuck[going]
            equality, complementarity = equality[going], complementarity[going]
            problem = problem.select(going.nonzero().squeeze(-1))
        if not len(index) or iteration == cap:
            break
        iterations[index] += 1
        polished[index] = equality <= residual_tol
        direction, target = newton_direction(problem, point, r, goal, stuck)
        point, r, alpha = line_search(problem, point, r, direction, target, residual_tol)
        stuck = alpha < STUCK_STEP
        jammed = alpha < JAMMED_STEP
        if bool(jammed.any()):
            level = torch.maximum(RAISE * cones.mean_product(problem.system, point), goal).clamp_max(MAX_LEVEL)
            point = torch.where(jammed[:, None], problem.restart_cones(point, level), point)
            r = problem.residual(point)
    if len(index):
        w[index] = point
    return Solution(w, status, iterations)


def line_search(
    problem: StepProblem, w: Tensor, r: Tensor, direction: Tensor, target: Tensor, residual_tol: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Step to a fraction of the boundary, halve until the equations or the complementarity rows improve; (w, residual, fraction)."""
    equality, complementarity, _ = violations(problem, r, target, residual_tol)
    # Near the path, the next Newton step removes errors of the order of the products themselves.
    allowed = torch.maximum(equality, cones.mean_product(problem.system, w).clamp_min(residual_tol))
    alpha = (STEP_TO_BOUNDARY * cones.max_step(problem.system, w, direction)).minimum(until_turning(problem, w, direction))
    accepted = torch.zeros_like(alpha, dtype=torch.bool)
    trial, trial_r = w, r
    for _ in range(LINE_SEARCH_HALVINGS):
        # An accepted alpha stays, and its trial is evaluated again.
        trial = w + alpha[:, None] * direction
        trial_r = problem.residual(trial)
        new_equality, new_complementarity, _ = violations(problem, trial_r, target, residual_tol)
        finite = torch.isfinite(new_equality + new_complementarity)
        accepted = accepted | (finite & ((new_equality <= allowed) | (new_complementarity <= complementarity)))
        if bool(accepted.all()):
            break
        alpha = torch.where(accepted, alpha, 0.5 * alpha)
    return trial, trial_r, alpha


def solve_step(
    problem: StepProblem,
    warm_start: Tensor | None,
    options: SolverOptions,
    may_split: bool = False,
    left: Tensor | None = None,
    attempts: Attempts = Attempts.ALL,
) -> Solution:
    """Solve the step by a ladder of attempts, climbed by each environment as far as it needs and its iterations last.

    All attempts together make at most `left` (N,) iterations, by default `SolverOptions.max_total_iterations`.

    1. Newton's method on the path, from a warm start.
    2. Newton's method on the path from a larger κ, from the warm start or, without one, from a cold start.
    3. The interior-point method from a cold start; no part of a `RESCUE`, since two halves cost less.
    4. Continuation along the path of a start.

    With `may_split`, the caller splits steps that the first three attempts do not solve. Where that fails, it makes the `LAST` attempt for
    steps that are no part of a rescue. Steps that are too fast for their timestep then end with the status `TOO_FAST` (speed.py), by the
    second attempt. Where some element has no `on_path`, the first attempt is the interior-point method's too, the second is left out, and a
    rescue has the third.
    """
    kappa, solution = options.kappa, _unsolved(problem)
    left = torch.full_like(solution.status, options.max_total_iterations) if left is None else left
    cold = torch.ones_like(solution.status, dtype=torch.bool)
    if attempts is Attempts.LAST:
        _retry(problem, solution, left, lambda sub, _, most: _continuation(sub, options, most))
        return solution
    rescue = attempts is Attempts.RESCUE
    first, most_on_path = (RESCUE_LEVEL, RESCUE_ITERATIONS) if rescue else (DESCENT_LEVEL, DESCENT_ITERATIONS)
    high, level = fading_level(problem, start_level(problem, first, kappa), kappa), start_level(problem, START_LEVEL, kappa)
    mapped = True  # whether all elements have `on_path`
    if may_split:
        solution.status[starts_too_fast(problem) & (left > 0)] = TOO_FAST
    if warm_start is not None:
        start = warm_start
        warm = torch.isfinite(start).all(-1) & cones.interior(problem.system, start)
        cold = ~warm
        _retry(problem, solution, left, lambda sub, index, most: _from_warm_start(sub, start[index], options, may_split, most), warm)
        mapped = _retry(
            problem,
            solution,
            left,
            lambda sub, index, most: newton_on_path(sub, start[index], options, most_on_path, high[index], may_split=may_split, left=most),
            warm,
        )
    mapped &= _retry(
        problem,
        solution,
        left,
        lambda sub, index, most: newton_on_path(
            sub, sub.cold_start(high[index]), options, most_on_path, high[index], lift=False, may_split=may_split, left=most
        ),
        cold,
    )
    far = COLD_ITERATIONS if mapped else None
    if not (rescue and mapped):
        _retry(
            problem,
            solution,
            left,
            lambda sub, index, most: follow_central_path(sub, sub.cold_start(level[index]), kappa, options, left=most, far_iterations=far),
        )
    if not may_split:
        _retry(problem, solution, left, lambda sub, _, most: _continuation(sub, options, most))
    return solution


def _unsolved(problem: StepProblem) -> Solution:
    status = torch.full((len(problem.z),), int(Status.MAX_ITERATIONS), dtype=torch.int64, device=problem.z.device)
    return Solution(problem.z.new_zeros(len(problem.z), problem.system.num_unknowns), status, torch.zeros_like(status))


def _retry(
    problem: StepProblem,
    solution: Solution,
    left: Tensor,
    method: Callable[[StepProblem, Tensor, Tensor], Solution | None],
    candidates: Tensor | None = None,
) -> bool:
    """Give the environments without a solution to a method, and put its answers into `solution`. `candidates` (N,) selects further.

    The method gets their problem, their indices, and the iterations that remain to each of the `left` (N,). Returns False where the method
    does not exist for the problem.
    """
    remain = left - solution.iterations
    failed = (solution.status == int(Status.MAX_ITERATIONS)) & (remain > 0)
    index = (failed if candidates is None else failed & candidates).nonzero().squeeze(-1)
    if not len(index):
        return True
    answer = method(problem if len(index) == len(failed) else problem.select(index), index, remain[index])
    if answer is not None:
        solution.w[index], solution.status[index] = answer.w, answer.status
        solution.iterations[index] += answer.iterations
    return answer is not None


def _from_warm_start(problem: StepProblem, start: Tensor, options: SolverOptions, may_split: bool, left: Tensor) -> Solution:
    solution = newton_on_path(problem, start, options, WARM_ITERATIONS, may_split=may_split, left=left)
    if solution is None:
        solution = follow_central_path(problem, start, options.kappa, options, WARM_ITERATIONS, left)
    return solution


def _continuation(problem: StepProblem, options: SolverOptions, left: Tensor) -> Solution:
    """Trace a path down to κ from the levels of `CONTINUATION_LEVELS`, in turn.

    The path starts at the solution for κ = level, on the central path. Where the solver finds no such solution, the path starts at a cold
    start and is infeasible.
    """
    kappa, solution = options.kappa, _unsolved(problem)

    def trace(sub: StepProblem, level: Tensor, most: Tensor) -> Solution:
        start = sub.cold_start(level)
        first = follow_central_path(sub, start, level, options, left=most)
        start = torch.where((first.status == int(Status.SUCCESS))[:, None], first.w, start)
        traced, reached, steps = trace_central_path(sub, start, level, kappa, most - first.iterations)
        remain = torch.where(reached, most - first.iterations - steps, 0)
        landed = follow_central_path(sub, traced, kappa, options, left=remain)
        status = torch.where(remain > 0, landed.status, int(Status.MAX_ITERATIONS))
        return Solution(landed.w, status, first.iterations + steps + landed.iterations)

    for highest in CONTINUATION_LEVELS:
        level = start_level(problem, highest, kappa)
        _retry(
            problem,
            solution,
            left,
            lambda sub, index, most, level=level: trace(sub, level[index], most),  # type: ignore[misc]
            level > kappa,
        )
    return solution
