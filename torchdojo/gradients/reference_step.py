"""One step of a batch: the next state from the solved velocities, halved steps where there is no solution, and the Jacobian.

A step of hard contact with friction need not have a solution: Painlevé's paradox. Long steps of fast, stretched linkages against the ground
run into it. Bodies that spin too fast for the timestep have none either (solver/speed.py). Two steps of half the length, with the input
held, then replace the step, and so on down to `SolverOptions.max_halvings`. Autograd composes them, so gradients pass through them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
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
from torchdojo.solver.interior_point import solve_step
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
    remain = request.iterations_left(status.shape, status.device).reshape(status.shape) - iterations
    failed = ((status == int(Status.MAX_ITERATIONS)) & (remain > 0)) | (status == TOO_FAST)
    if halvings and bool(failed.any()):
        request = dataclasses.replace(request, left=remain)
        out = halve(system, request, [z, u, wrench, *parameters], out, failed, halvings - 1, warm_start)
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


def _select_half(system: System, request: Request, tensors: Sequence[Tensor], index: Tensor) -> tuple[Request, list[Tensor]]:
    """The request and the tensors of the environments `index` of the flattened batch, with half the timestep.

    `tensors` are z, u, wrench and the parameters.
    """
    flat, batch = flatten_batch(system.step_specs(), tensors)
    part = [*(t[index] for t in flat[:NUM_DATA]), *select_rows(flat[NUM_DATA:], index)]
    part[NUM_DATA + TIMESTEP] = 0.5 * part[NUM_DATA + TIMESTEP]
    return request.select(batch, index), part


def halve(
    system: System,
    request: Request,
    tensors: Sequence[Tensor],
    out: StepOutput,
    failed: Tensor,
    halvings: int,
    warm_start: Tensor | None = None,
) -> StepOutput:
    """Replace the failed environments of `out` by two half steps each, which start warm where the step is too fast.

    Both halves share the iterations that the request leaves. Where the step is too fast, each half may take as many.
    """
    index = failed.reshape(-1).nonzero().squeeze(-1)
    warm = _warm_halves(out.status, warm_start, index)
    fast = (out.status == TOO_FAST).reshape(-1)[index]
    request, (z, u, wrench, *parameters) = _select_half(system, request, tensors, index)
    first = step(system, request, parameters, z, u, wrench, warm, halvings)
    second = step(system, _second(request, first, fast), parameters, first.z, u, wrench, first.solution, halvings)
    status = torch.where(first.status == int(Status.SUCCESS), second.status, first.status)
    good = (status == int(Status.SUCCESS))[:, None]

    def put(whole: Tensor, rows: Tensor) -> Tensor:
        return whole.reshape(failed.numel(), *rows.shape[1:]).index_copy(0, index, rows).reshape(whole.shape)

    return StepOutput(
        put(out.z, torch.where(good, second.z, z.detach())),
        put(out.impulses, torch.where(good, first.impulses + second.impulses, 0.0)),
        put(out.status, status),
        put(out.iterations, out.iterations.reshape(-1)[index] + first.iterations + second.iterations),
        put(out.solution, second.solution),
        put(out.substeps, torch.where(good.squeeze(-1), first.substeps + second.substeps, 1)),
    )


def _second(request: Request, first: StepOutput, fast: Tensor) -> Request:
    """The request of the second halves. They take no iteration where the first one failed."""
    left = request.iterations_left(first.status.shape, first.status.device) - torch.where(fast, 0, first.iterations)
    return dataclasses.replace(request, left=torch.where(first.status == int(Status.SUCCESS), left, 0))


def _warm_halves(status: Tensor, warm_start: Tensor | None, index: Tensor) -> Tensor | None:
    """Warm starts of the first halves, NaN where the ladder of attempts has failed."""
    if warm_start is None:
        return None
    fast = (status == TOO_FAST).reshape(-1, 1)[index]
    return torch.where(fast, warm_start.expand(*status.shape, -1).reshape(status.numel(), -1)[index], torch.nan)


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
    solution = solve_step(problem, warm_start, options, may_split=halvings > 0, left=left)
    solved = solution.status == int(Status.SUCCESS)
    fast, left = solution.status == TOO_FAST, left - solution.iterations
    halved = ~solved & (fast | (left > 0))
    good, failed = solved.nonzero().squeeze(-1), index[halved]
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
    if halvings and len(failed):
        states = torch.full((count,), int(Status.MAX_ITERATIONS), dtype=torch.int64, device=z.device)
        states[index] = solution.status
        given = None if warm_start is None else z.new_full((count, warm_start.shape[-1]), torch.nan).index_copy(0, index, warm_start)
        remain = torch.zeros_like(states).index_copy(0, index, left).reshape(batch)
        warm, request = _warm_halves(states, given, failed), dataclasses.replace(request, left=remain)
        result[failed] = halved_jacobian(system, request, tensors, failed, halvings - 1, warm, fast[halved])
    return result.reshape(*batch, size, -1)


def halved_jacobian(
    system: System,
    request: Request,
    tensors: Sequence[Tensor],
    index: Tensor,
    halvings: int,
    warm: Tensor | None = None,
    fast: Tensor | None = None,
) -> Tensor:
    """`jacobian` of two half steps, for the environments `index` of `tensors`: z, u, wrench and parameters.

    Args:
        warm: (len(index), n). fast: (len(index),), which steps are too fast; None where the halves are known to have solutions.
    """
    request, (z, u, wrench, *parameters) = _select_half(system, request, tensors, index)
    middle = step(system, request, parameters, z, u, wrench, warm, halvings)
    first = jacobian(system, request, parameters, z, u, wrench, warm, halvings)
    request = _second(request, middle, torch.ones_like(index, dtype=torch.bool) if fast is None else fast)
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
