"""One step of a batch: the next state from the solved velocities, halved steps where there is no solution, and the Jacobian.

A step of hard contact with friction need not have a solution: Painlevé's paradox. Long steps of fast, stretched linkages against the ground
run into it. Bodies that spin too fast for the timestep have none either (solver/speed.py). Two steps of half the length, with the input
held, then replace the step, and so on down to `SolverOptions.max_halvings`. Autograd composes them, so gradients pass through them. Where
the halves of a step have no solution either, continuation along its central path is tried last (solver/continuation.py).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from torchdojo import quaternion as quat
from torchdojo.dynamics.integrator import next_pose
from torchdojo.dynamics.residual import StepProblem
from torchdojo.dynamics.system import System, select_rows
from torchdojo.elements.element import Pose, Twist
from torchdojo.gradients.batching import flatten_batch
from torchdojo.gradients.checks import check_solved, valid_environments
from torchdojo.gradients.hard_limit import derivative_system, point_of_derivative, warn_of_lost_digits
from torchdojo.gradients.impacts import add_impacts, bouncing
from torchdojo.gradients.implicit import StepFunction
from torchdojo.gradients.request import Request
from torchdojo.parameters import transforming
from torchdojo.solver.interior_point import Attempts, solve_step
from torchdojo.solver.options import OnFailure, Status
from torchdojo.solver.speed import TOO_FAST
from torchdojo.state.layout import TANGENT_SIZE, TWIST_SIZE, join_state, neutral_state, split_state, split_twists
from torchdojo.state.tangent import local_jacobian, retract
from torchdojo.state.unknowns import NUM_DATA, TIMESTEP

__all__ = ["StepOutput", "halve", "halved_jacobian", "jacobian", "next_state", "step"]


class StepOutput(NamedTuple):
    """Result of one step. Everything has the batch dimensions of the call.

    z: (..., 13 nb) next state, differentiable.
    impulses: (..., n) joint multipliers and contact impulses [N·s, N·m·s] at the places `mech.impulse_layout` names, differentiable.
    status: (...,) values of `td.Status`. iterations: (...,) Newton iterations.
    solution: (..., num_unknowns) the `warm_start` of the next step.
    substeps: (...,) 1, or the number of shorter steps that replace a step without a solution.
    """

    z: Tensor
    impulses: Tensor
    status: Tensor
    iterations: Tensor
    solution: Tensor
    substeps: Tensor


def step(
    system: System,
    request: Request,
    parameters: Sequence[Tensor],
    z: Tensor,
    u: Tensor,
    wrench: Tensor,
    warm_start: Tensor | None,
    halvings: int | None = None,
) -> StepOutput:
    """`Mechanism.step` on checked inputs and stacked parameters."""
    options = request.options
    halvings = options.max_halvings if halvings is None else halvings
    request = dataclasses.replace(request, may_split=halvings > 0 and not transforming())
    w, status, iterations = StepFunction.apply(system, request, warm_start, z, u, wrench, *parameters)
    ok = (status == int(Status.SUCCESS))[..., None]
    # A flagged environment keeps its state. A neutral state takes its place below, so that no gradient can become NaN.
    state = split_state(torch.where(ok, z, neutral_state(z)))
    moved = next_state(system, state.pose, w, parameters[TIMESTEP])
    impulses = w[..., system.impulse_index]
    out = StepOutput(
        torch.where(ok, moved, z.detach()), impulses, status, iterations, w.detach()[..., : system.num_unknowns], torch.ones_like(status)
    )
    if transforming():
        return out  # transforms hide which environments fail, so these stay flagged
    left = request.iterations_left(status.shape, status.device).reshape(status.shape)
    tensors, request = [z, u, wrench, *parameters], dataclasses.replace(request, left=left - iterations)
    fast, failed = status == TOO_FAST, (status == int(Status.MAX_ITERATIONS)) & (left > iterations)
    if halvings and bool(fast.any()):
        out = halve(system, request, tensors, out, fast, halvings - 1, warm_start)
    if halvings and bool(failed.any()):
        out = halve(system, dataclasses.replace(request, attempts=Attempts.RESCUE), tensors, out, failed, halvings - 1)
        failed &= (out.status == int(Status.MAX_ITERATIONS)) & (left > out.iterations)
        if request.attempts is Attempts.ALL and bool(failed.any()):
            last = dataclasses.replace(request, attempts=Attempts.LAST, left=left - out.iterations)
            out = _replace(system, last, tensors, out, failed, lambda own, p, z, u, f: step(system, own, p, z, u, f, None, 0))
    if options.on_failure is OnFailure.RAISE and halvings == options.max_halvings:
        check_solved(out.status)
    return out


def next_state(system: System, pose: Pose, w: Tensor, timestep: Tensor) -> Tensor:
    """The next state (..., 13 nb) from w (..., num_unknowns or more) of `StepFunction` and the current poses (..., nb, ·)."""
    twist = Twist(*system.twists(w).split(3, dim=-1))
    moved = next_pose(pose, twist, timestep[..., None, None])
    if w.shape[-1] > system.num_unknowns:
        dx, dv, dphi, domega = w[..., system.num_unknowns :].unflatten(-1, (-1, TANGENT_SIZE)).split(3, dim=-1)
        moved, twist = retract(moved, dx, dphi), Twist(twist.v + dv, twist.omega + domega)
    return join_state(moved, twist)


def _select(system: System, request: Request, tensors: Sequence[Tensor], index: Tensor) -> tuple[Request, list[Tensor]]:
    """The request and the tensors of the environments `index` of the flattened batch. `tensors` are z, u, wrench and the parameters."""
    flat, batch = flatten_batch(system.step_specs(), tensors)
    return request.select(batch, index), [*(t[index] for t in flat[:NUM_DATA]), *select_rows(flat[NUM_DATA:], index)]


def _replace(
    system: System,
    request: Request,
    tensors: Sequence[Tensor],
    out: StepOutput,
    failed: Tensor,
    method: Callable[[Request, list[Tensor], Tensor, Tensor, Tensor], StepOutput],
) -> StepOutput:
    """`out` with the answers of a method for the environments that have failed. It gets their request, parameters, z, u and wrench."""
    index = failed.reshape(-1).nonzero().squeeze(-1)
    request, (z, u, wrench, *parameters) = _select(system, request, tensors, index)
    answer = method(request, parameters, z, u, wrench)
    good = (answer.status == int(Status.SUCCESS))[:, None]

    def put(whole: Tensor, rows: Tensor) -> Tensor:
        return whole.reshape(failed.numel(), *rows.shape[1:]).index_copy(0, index, rows).reshape(whole.shape)

    return StepOutput(
        put(out.z, torch.where(good, answer.z, z.detach())),
        put(out.impulses, torch.where(good, answer.impulses, 0.0)),
        put(out.status, answer.status),
        put(out.iterations, out.iterations.reshape(-1)[index] + answer.iterations),
        put(out.solution, answer.solution),
        put(out.substeps, torch.where(good.squeeze(-1), answer.substeps, 1)),
    )


def _half(parameters: list[Tensor]) -> list[Tensor]:
    """The parameters with half the timestep."""
    return [0.5 * t if number == TIMESTEP else t for number, t in enumerate(parameters)]


def halve(
    system: System,
    request: Request,
    tensors: Sequence[Tensor],
    out: StepOutput,
    failed: Tensor,
    halvings: int,
    warm_start: Tensor | None = None,
) -> StepOutput:
    """Replace the failed environments of `out` by two half steps each; the first one starts from `warm_start` (..., n), if given.

    Both halves share the iterations that the request leaves. Where the step is too fast, each half may take as many.
    """
    chosen = failed.reshape(-1).nonzero().squeeze(-1)
    warm = None if warm_start is None else warm_start.expand(*failed.shape, -1).reshape(failed.numel(), -1)[chosen]
    fast = (out.status == TOO_FAST).reshape(-1)[chosen]

    def both(request: Request, parameters: list[Tensor], z: Tensor, u: Tensor, wrench: Tensor) -> StepOutput:
        parameters = _half(parameters)
        first = step(system, request, parameters, z, u, wrench, warm, halvings)
        second = step(system, _second(request, first, fast), parameters, first.z, u, wrench, first.solution, halvings)
        return second._replace(
            impulses=first.impulses + second.impulses,
            status=torch.where(first.status == int(Status.SUCCESS), second.status, first.status),
            iterations=first.iterations + second.iterations,
            substeps=first.substeps + second.substeps,
        )

    return _replace(system, request, tensors, out, failed, both)


def _second(request: Request, first: StepOutput, fast: Tensor) -> Request:
    """The request of the second halves. They take no iteration where the first one failed."""
    left = request.iterations_left(first.status.shape, first.status.device) - torch.where(fast, 0, first.iterations)
    return dataclasses.replace(request, left=torch.where(first.status == int(Status.SUCCESS), left, 0))


def jacobian(
    system: System,
    request: Request,
    parameters: Sequence[Tensor],
    z: Tensor,
    u: Tensor,
    wrench: Tensor,
    warm_start: Tensor | None,
    halvings: int | None = None,
) -> Tensor:
    """Derivative of the step on the tangent space with respect to [tangent of z, u], (..., 12 nb, 12 nb + nu), without a graph."""
    options = request.options
    tensors = [z, u, wrench, *parameters]
    flat, batch = flatten_batch(system.step_specs(), tensors)
    nb, count = system.num_bodies, batch.numel()
    size = TANGENT_SIZE * nb
    result = z.new_zeros(count, size, size + system.num_inputs)
    index = valid_environments(system, request, flat).nonzero().squeeze(-1)
    problem = StepProblem(system, flat[NUM_DATA:], *flat[:NUM_DATA], depenetration_speed=options.depenetration_speed).select(index)
    if warm_start is not None:
        warm_start = warm_start.expand(*batch, -1).reshape(count, -1)[index]
    halvings = options.max_halvings if halvings is None else halvings
    left = request.iterations_left(batch, z.device)[index]
    solution = solve_step(problem, warm_start, options, may_split=halvings > 0, left=left, attempts=request.attempts)
    solved = solution.status == int(Status.SUCCESS)
    fast, left = solution.status == TOO_FAST, left - solution.iterations
    failed = ~solved & ~fast & (left > 0)
    if halvings and bool(fast.any()):
        warm, remain = None if warm_start is None else warm_start[fast], index.new_zeros(count).index_copy(0, index, left)
        halved = dataclasses.replace(request, left=remain.reshape(batch))
        result[index[fast]] = halved_jacobian(system, halved, tensors, index[fast], halvings - 1, warm)
    if halvings and bool(failed.any()):
        # The rescue of a step ends in halves, whose Jacobians are chained, or in a solution of the whole step.
        flagged = dataclasses.replace(request, options=dataclasses.replace(options, on_failure=OnFailure.FLAG))
        of, (z, u, wrench, *parameters) = _select(system, flagged, tensors, index[failed])
        out = step(system, of, parameters, z, u, wrench, None if warm_start is None else warm_start[failed], halvings)
        solution.w[failed], solved[failed] = out.solution, (out.status == int(Status.SUCCESS)) & (out.substeps == 1)
        if len(split := index[failed][out.substeps > 1]):
            rescue = dataclasses.replace(request, attempts=Attempts.RESCUE)
            result[split] = halved_jacobian(system, rescue, tensors, split, halvings - 1)
    good = solved.nonzero().squeeze(-1)
    if len(good):
        problem, w = problem.select(good), solution.w[good]
        kappas = request.kappas(batch, index[good])
        warn_of_lost_digits(problem, w, options, kappas)
        smooth = point_of_derivative(problem, w, options, kappas)
        right = torch.cat(problem.linearize_data(smooth), dim=-1)
        kkt, refinements = derivative_system(problem, smooth, options)
        twist_change = -kkt.solve(right, refinements)[:, : TWIST_SIZE * nb].unflatten(1, (nb, TWIST_SIZE))
        derivative = tangent_of_next(problem, w, twist_change)
        if request.num_shifts(system) and len(hit := bouncing(problem, w)):
            corrected = derivative[hit]
            add_impacts(corrected, problem.select(hit), w[hit], smooth[hit], options)
            derivative[hit] = corrected
        result[index[good]] = derivative
    return result.reshape(*batch, size, -1)


def halved_jacobian(
    system: System,
    request: Request,
    tensors: Sequence[Tensor],
    index: Tensor,
    halvings: int,
    warm: Tensor | None = None,
) -> Tensor:
    """`jacobian` of two half steps, each with the iterations that the request leaves.

    For the environments `index` of `tensors`: z, u, wrench and parameters. The first halves start from `warm` (len(index), n), if given.
    """
    request, (z, u, wrench, *parameters) = _select(system, request, tensors, index)
    parameters = _half(parameters)
    middle = step(system, request, parameters, z, u, wrench, warm, halvings)
    first = jacobian(system, request, parameters, z, u, wrench, warm, halvings)
    request = _second(request, middle, torch.ones_like(index, dtype=torch.bool))
    second = jacobian(system, request, parameters, middle.z, u, wrench, middle.solution, halvings)
    size = first.shape[-2]
    chained = second[..., :size] @ first
    chained[..., size:] += second[..., size:]
    return chained


def tangent_of_next(problem: StepProblem, w: Tensor, twist_change: Tensor) -> Tensor:
    """Derivative of the next state (N, 12 nb, n), from that of the twists (N, nb, 6, n), with respect to [tangent of z, u]."""
    pose, h = problem.state.pose, problem.timestep[:, None, None]
    twist = problem.body_twists(w)[:, :-1]
    count, nb, _, columns = twist_change.shape
    after = next_pose(pose, split_twists(twist), h)

    def attitude(y: Tensor) -> Tensor:
        moved = retract(pose, torch.zeros_like(y[..., :3]), y[..., :3])
        turned = quat.multiply(moved.q, quat.increment(y[..., 3:], h))
        return 2 * quat.multiply(quat.conjugate(after.q), turned)[..., 1:]

    _, turn = local_jacobian(attitude, torch.cat((torch.zeros_like(twist[..., :3]), twist[..., 3:]), dim=-1))
    identity = (
        torch.eye(columns, dtype=w.dtype, device=w.device)[: TANGENT_SIZE * nb].reshape(nb, 4, 3, columns).expand(count, -1, -1, -1, -1)
    )
    dv, domega = twist_change[:, :, :3], twist_change[:, :, 3:]
    dx = identity[:, :, 0] + h[..., None] * dv
    dphi = turn[..., :3] @ identity[:, :, 2] + turn[..., 3:] @ domega
    return torch.stack((dx, dv, dphi, domega), dim=2).reshape(count, TANGENT_SIZE * nb, columns)
