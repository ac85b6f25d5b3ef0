"""The work of the operators of `ops.py`: batches flattened for the kernel, checks of its outputs, and gradients of parameters.

The kernel returns gradients of z, u, wrench and the packed parameters. `Program.pack` carries the last one on to the parameters that users
give.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import cast

import torch
from torch import Tensor

from torchdojo.dynamics.residual import StepProblem
from torchdojo.dynamics.system import select_rows
from torchdojo.gradients.batching import flatten_batch
from torchdojo.gradients.checks import check_quaternions, check_solved, check_valid
from torchdojo.gradients.hard_limit import SMALL_KAPPA, warn_of_lost_digits
from torchdojo.gradients.impacts import Solve, add_impacts, ambient, bouncing, find_impacts
from torchdojo.gradients.reference_step import halved_jacobian
from torchdojo.gradients.request import Request
from torchdojo.native import kernel
from torchdojo.native.cache import Parameters
from torchdojo.native.packing import Packed
from torchdojo.native.program import Program
from torchdojo.parameters import broadcast_shapes, result_tensor
from torchdojo.solver.options import OnFailure, SolverOptions, Status
from torchdojo.solver.solution import Solution
from torchdojo.state.layout import ORIENTATION, STATE_SIZE, TANGENT_SIZE
from torchdojo.state.unknowns import ParameterSpec

__all__ = [
    "SERIES",
    "VECTOR",
    "backward",
    "check_status",
    "checked_rollout",
    "differentiable",
    "flat_problem",
    "forward",
    "impact_jacobian",
    "linearize",
    "rollout_specs",
    "special_steps",
    "split_jacobian",
    "velocity_sensitivity",
]

# Number of steps whose residual is differentiated together. It bounds the memory of backward, which is 30 kB a step for a quadruped with
# 148 contacts. Backward slows down below 256 only.
CHUNK = 1024

# Number of steps whose velocities `velocity_sensitivity` differentiates together: their parameters and gradients stay in the cache.
SENSITIVITY_CHUNK = 64

VECTOR, SERIES = ParameterSpec(1), ParameterSpec(2)
Six = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


def rollout_specs(program: Program) -> list[ParameterSpec]:
    """Event dimensions of z, u (T, nu), wrench and the parameters."""
    return [VECTOR, SERIES, VECTOR, *program.parameter_specs]


def flat_problem(
    program: Program,
    request: Request,
    parameters: Sequence[Tensor],
    packed_parameters: Parameters | None,
    z: Tensor,
    u: Tensor,
    wrench: Tensor,
    warm: Tensor | None,
) -> tuple[kernel.Problem, torch.Size]:
    """Flat batches for the kernel, and the batch shape. `packed_parameters` come from an earlier call."""
    law = None if packed_parameters is None else packed_parameters.law
    if packed_parameters is not None:
        batch = broadcast_shapes(packed_parameters.batch, z.shape[:-1], u.shape[:-2], wrench.shape[:-1])
        if law is not None:
            batch = broadcast_shapes(batch, law.batch)
            law = law.rows(batch)
        flat, packed = packed_parameters.rows(batch)
        z, u, wrench = _rows(z, batch, 1), _rows(u, batch, 2), _rows(wrench, batch, 1)
        finite = packed_parameters.finite
    else:
        (z, u, wrench, *flat), batch = flatten_batch(rollout_specs(program), [z, u, wrench, *parameters])
        packed = program.packed(flat)
        finite = len(packed.values) > 1 or bool(torch.isfinite(packed.values).all())
    if not finite:
        # The kernel checks the parameters of each environment only where they differ.
        packed = packed._replace(values=packed.values.expand(len(z), -1).contiguous())
    if warm is not None:
        warm = _rows(warm, batch, 1)
    grad_kappa = None if request.grad_kappa is None else request.grad_kappa.expand(batch).reshape(-1)
    return kernel.Problem(program, request, flat, z, u, wrench, warm, packed, grad_kappa, law), batch


def _rows(tensor: Tensor, batch: torch.Size, ndim: int) -> Tensor:
    """A tensor as (N, ...), whose last `ndim` dimensions follow dimensions that broadcast to `batch`."""
    shape = tensor.shape
    places = len(shape) - ndim
    if shape[:places] != batch:
        tensor = tensor.expand(*batch, *shape[places:])
    if len(batch) == 1:
        return tensor
    return tensor.reshape(batch.numel(), *shape[places:]) if batch else tensor.unsqueeze(0)


def _summed(tensor: Tensor, batch: torch.Size, shape: torch.Size) -> Tensor:
    """The sum of (N, ...) over the dimensions of `batch` in which a tensor of this shape is broadcast."""
    if len(batch) != 1:
        tensor = tensor.reshape(*batch, *tensor.shape[1:])
    return tensor if tensor.shape == shape else tensor.sum_to_size(shape)


def forward(
    program: Program,
    request: Request,
    keep: kernel.Keep,
    warm: Tensor | None,
    z: Tensor,
    u: Tensor,
    wrench: Tensor,
    parameters: Sequence[Tensor],
    packed_parameters: Parameters | None = None,
) -> Six:
    problem, batch = flat_problem(program, request, parameters, packed_parameters, z, u, wrench, warm)
    return checked_rollout(problem, keep, batch)


def checked_rollout(problem: kernel.Problem, keep: kernel.Keep, batch: torch.Size) -> Six:
    """`kernel.rollout`, which raises what the status asks for."""
    out = kernel.rollout(problem, keep, batch)
    check_status(problem, out.status)
    return cast(Six, tuple(out))


def check_status(problem: kernel.Problem, status: Tensor) -> None:
    """Raise the errors of the reference for the status (..., T) of the kernel."""
    if not status.numel() or not status.max().item():
        return
    status = status.reshape(len(problem.z), status.shape[-1])
    if bool((status == kernel.CROOKED_QUATERNION).any()):
        check_quaternions(problem.z, status[:, 0] == kernel.CROOKED_QUATERNION)
    if problem.request.raises_invalid:
        check_valid((status != int(Status.INVALID_INPUT)).all(1), problem.program.system, problem.parameters)
    if problem.request.options.on_failure is OnFailure.RAISE:
        check_solved(status[:, int((status != 0).any(0).nonzero()[0])])


def backward(
    program: Program,
    request: Request,
    needs: Sequence[bool],
    grads: Sequence[Tensor | None],
    saved: Sequence[Tensor],
    tensors: Sequence[Tensor],
    packed_parameters: Parameters | None = None,
) -> list[Tensor]:
    """Gradients of the needed `tensors`: z, u, wrench, parameters.

    `grads` are the gradients of trajectory and impulses. `saved` has the trajectory, solutions, status and substeps.
    """
    if program.leaves_numbers and any(needs[3:]):
        raise RuntimeError(
            "gradients by parameters of a FixedTendon with armature: got them asked of the kernel, inside a transform or of compiled code; "
            'allowed: SolverOptions(backend="reference")'
        )
    trajectory = saved[0]
    shapes = [t.shape[:-2] for t in (*grads, trajectory) if t is not None]
    lead = broadcast_shapes(*shapes)
    z, u, wrench, *parameters = tensors
    # The trajectory has every batch dimension of the inputs. Its gradient has the dimensions of vmap, too.
    problem, batch = flat_problem(program, request, parameters, packed_parameters, z.expand(*lead, -1), u, wrench, None)
    z_all, w = (_rows(t, batch, 2).contiguous() for t in saved[:2])
    status, substeps = (_rows(t, batch, 1).contiguous() for t in saved[2:])
    ni = program.num_impulses
    out = kernel.Outputs(z_all, z_all.new_empty(0, ni), w, status, substeps, substeps)
    grad_z, grad_impulses = (None if t is None else _rows(t, batch, 2) for t in grads)
    if grad_z is None:
        grad_z = torch.zeros_like(z_all)
    _warn_of_lost_digits(problem, out)
    impacts, instant, leaves = _impacts(problem, out) if request.num_shifts(program.system) else (None, None, [])
    gradients = kernel.adjoint(problem, out, grad_z, grad_impulses, any(needs[3:]), impacts)
    result = [_summed(t, batch, x.shape) for t, x, need in zip(gradients[:3], tensors[:3], needs[:3], strict=True) if need]
    if gradients.parameters is not None:
        flat = _pulled_back(program, problem.parameters, needs[3:], gradients.parameters)
        if instant is not None:
            with differentiable():
                more = torch.autograd.grad(instant, leaves, gradients.times, allow_unused=True)
            flat = [None if a is None else a if b is None else a + b for a, b in zip(flat, more, strict=True)]
        for grad, value, spec in zip(flat, parameters, program.parameter_specs, strict=True):
            if grad is not None:
                shared = value.shape[: value.ndim - spec.ndim].numel() == 1
                result.append(grad.reshape(value.shape) if shared else _summed(grad, batch, value.shape))
    return result


def _warn_of_lost_digits(problem: kernel.Problem, out: kernel.Outputs) -> None:
    """Apply `warn_of_lost_digits` to the solutions of all steps."""
    options, grad_kappa = problem.request.options, problem.grad_kappa
    if (options.grad_kappa or options.kappa) > SMALL_KAPPA:
        return
    steps = out.status.shape[1]
    rows = (out.status == int(Status.SUCCESS)).flatten().nonzero().squeeze(-1)
    environments = rows // steps
    parameters = select_rows(problem.parameters, environments)
    before, u = out.z[:, :-1].flatten(0, 1)[rows], problem.input_of(rows)
    wrench = problem.wrench[environments]
    equations = StepProblem(problem.program.system, parameters, before, u, wrench, depenetration_speed=options.depenetration_speed)
    kappas = None if grad_kappa is None else grad_kappa[environments]
    warn_of_lost_digits(equations, out.w.flatten(0, 1)[rows], options, kappas, native=True)


def _impacts(problem: kernel.Problem, out: kernel.Outputs) -> tuple[kernel.StepImpacts | None, Tensor | None, list[Tensor]]:
    """Impacts of all steps, their times (K, nb), and the flat parameters on which the times depend.

    Steps that are split in two have no impacts here: they are differentiated as they are computed.
    """
    program, request, steps = problem.program, problem.request, out.status.shape[1]
    leaves = [p.detach().requires_grad_() for p in problem.parameters]

    def equations(rows: Tensor) -> StepProblem:
        environments = rows // steps
        parameters = select_rows(leaves, environments)
        before = out.z[:, :-1].flatten(0, 1)[rows].requires_grad_()
        u, wrench = problem.input_of(rows), problem.wrench[environments]
        return StepProblem(program.system, parameters, before, u, wrench, depenetration_speed=request.options.depenetration_speed)

    w = out.w.flatten(0, 1)
    whole = ((out.status == int(Status.SUCCESS)) & (out.substeps == 1)).flatten().nonzero().squeeze(-1)
    rows = torch.cat([chunk[bouncing(equations(chunk), w[chunk])] for chunk in whole.split(CHUNK)])
    if not len(rows):
        return None, None, []
    with differentiable():
        impact_steps = equations(rows)
        impacts = find_impacts(impact_steps, w[rows], *_hard_arguments(program, request, impact_steps, w[rows]))
        slope = impacts.slope(impact_steps.z).contiguous()
    after = out.z[:, 1:].flatten(0, 1)[rows].unflatten(-1, (-1, STATE_SIZE))[..., ORIENTATION]
    before_z, after_z = ambient(impact_steps.state.pose.q.detach(), impacts.before), ambient(after, impacts.after)
    step = torch.full_like(out.status, -1).flatten()
    step[rows] = torch.arange(len(rows))
    return kernel.StepImpacts(step, before_z, after_z, slope, impacts.component), impacts.instant, leaves


def _hard_arguments(program: Program, request: Request, problem: StepProblem, w: Tensor) -> tuple[Tensor, SolverOptions, Solve]:
    """The last arguments of `find_impacts`: points near the hard limit, options, and `solve_step` by the kernel."""

    def solve(problem: StepProblem, warm: Tensor | None, options: SolverOptions) -> Solution:
        step = _step_problem(program, Request(options), problem, warm)
        # A negative radius takes a contact out of the step. A check would refuse it, and these numbers have passed theirs.
        unchecked = Packed(program.pack(step.parameters), program.handle(step.parameters))
        out = kernel.rollout(step._replace(packed=unchecked))
        return Solution(out.w[:, 0], out.status[:, 0], out.iterations[:, 0])

    return kernel.near_limit(*_solved_steps(program, request, problem, w))[:, 0], request.options, solve


def _step_problem(program: Program, request: Request, problem: StepProblem, warm: Tensor | None) -> kernel.Problem:
    parameters = [p.detach() for p in problem.parameters]
    return kernel.Problem(program, request.of_a_step, parameters, problem.z.detach(), problem.u[:, None], problem.wrench, warm)


def _solved_steps(program: Program, request: Request, problem: StepProblem, w: Tensor) -> tuple[kernel.Problem, kernel.Outputs]:
    """Steps with given solutions w (N, n). No one reads their next states."""
    asked, ones = _step_problem(program, request, problem, None), torch.ones(len(w), 1, dtype=torch.int64)
    return asked, kernel.Outputs(asked.z[:, None].expand(-1, 2, -1).contiguous(), w.new_empty(0), w[:, None], 0 * ones, ones, ones)


@contextlib.contextmanager
def differentiable() -> Iterator[None]:
    """Switch autograd on inside an operator. Dispatch keys switch it off there, and enable_grad does not undo that."""
    excluded = torch._C._dispatch_tls_local_exclude_set()
    for key in ("AutogradFunctionality", "AutogradOther", "AutogradNestedTensor", "ADInplaceOrView"):
        excluded = excluded.remove(getattr(torch._C.DispatchKey, key))
    with torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), excluded), torch.enable_grad():
        yield


def _pulled_back(program: Program, parameters: Sequence[Tensor], needs: Sequence[bool], grad: Tensor) -> list[Tensor | None]:
    """Gradients of the needed flat parameters (N or 1, ...), from the gradient of the packed ones (N or 1, num_parameters)."""
    with differentiable():
        leaves = [p.detach().requires_grad_(need) for p, need in zip(parameters, needs, strict=True)]
        packed = program.pack(leaves)
        wanted = [leaf for leaf in leaves if leaf.requires_grad]
        # Shared parameters that are not finite are packed for each environment (`flat_problem`).
        grad = grad.sum_to_size(packed.shape)
        # Not all parameters act: the axis of a joint that leaves or holds all directions is not packed.
        grads: Sequence[Tensor | None] = [None] * len(wanted)
        if packed.requires_grad:
            grads = torch.autograd.grad(packed, wanted, grad, allow_unused=True)
    # Gradients of concatenated tensors are views of one tensor, and outputs of an operator may not share memory. So they are copied.
    full = iter([torch.zeros_like(leaf) if part is None else part.clone() for leaf, part in zip(wanted, grads, strict=True)])
    return [next(full) if need else None for need in needs]


def velocity_sensitivity(
    program: Program, request: Request, packed_parameters: Parameters, z: Tensor, u: Tensor, chain: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """One step from each of the states z (N, 13 nb) under u (N, nu) with shared parameters; its velocities differentiated by P numbers.

    The derivatives of the packed parameters by these numbers are `chain` (num_parameters, P), from `Program.pack`. Returns z⁺ (N, 13 nb),
    whether one whole step succeeds (N,), and the derivatives of [v⁺, ω⁺] of each body at held positions, (N, 6 nb, P). Each row takes one
    adjoint, in an environment of its own in the kernel. Groups of states share their memory, which the system would clear for each anew.
    """
    if not packed_parameters.shared:
        raise ValueError("velocity_sensitivity: got parameters with batch dimensions; allowed: parameters that all environments share")
    wrench = z.new_zeros(6 * program.num_bodies)
    problem, _ = flat_problem(program, request, packed_parameters.tensors, packed_parameters, z, u[:, None], wrench, None)
    out = kernel.rollout(problem)
    whole = ((out.status == int(Status.SUCCESS)) & (out.substeps == 1)).squeeze(-1)
    places = torch.arange(STATE_SIZE * program.num_bodies).unflatten(0, (-1, STATE_SIZE))[:, [3, 4, 5, 10, 11, 12]].flatten()
    rows, largest = len(places), min(len(z), SENSITIVITY_CHUNK)
    cotangent = z.new_zeros(rows, 2, z.shape[-1])
    cotangent[torch.arange(rows), 1, places] = 1
    cotangents = cotangent.repeat(largest, 1, 1)
    values = packed_parameters.packed.values.expand(largest * rows, -1).contiguous()
    gradient, result = torch.empty_like(values), z.new_empty(len(z), rows, chain.shape[-1])
    for first in range(0, len(z), SENSITIVITY_CHUNK):
        some = slice(first, first + SENSITIVITY_CHUNK)
        count = rows * len(z[some])

        def spread(tensor: Tensor, some: slice = some) -> Tensor:
            return tensor[some].repeat_interleave(rows, 0)

        packed = packed_parameters.packed._replace(values=values[:count])
        wide = problem._replace(z=spread(problem.z), u=spread(problem.u), wrench=spread(problem.wrench), packed=packed)
        spread_out = kernel.Outputs(spread(out.z), out.impulses[:0], *(spread(t) for t in (out.w, out.status, out.substeps, out.substeps)))
        kernel.adjoint(wide, spread_out, cotangents[:count], None, gradient[:count])
        torch.matmul(gradient[:count], chain, out=result[some].view(count, -1))
    return out.z[:, 1], whole, result


def linearize(
    program: Program,
    request: Request,
    z: Tensor,
    u: Tensor,
    wrench: Tensor,
    warm: Tensor | None,
    parameters: Sequence[Tensor],
    packed_parameters: Parameters | None = None,
    out: Tensor | None = None,
) -> tuple[Tensor, kernel.Outputs]:
    """The Jacobian (..., 12 nb, 12 nb + nu) of one step with u (..., 1, nu), and what the step gives, (N, ...)."""
    problem, batch = flat_problem(program, request, parameters, packed_parameters, z, u, wrench, warm)
    size = TANGENT_SIZE * problem.program.num_bodies
    result = result_tensor(out, (*batch, size, size + problem.program.num_inputs), z)
    solved = kernel.linearize(problem, result)
    hit, split = special_steps(problem, solved)
    flat = result.view(len(problem.z), *result.shape[-2:])
    if len(hit):
        flat[hit] = impact_jacobian(problem, solved, hit, flat[hit])
    if len(split) and request.num_shifts(program.system):
        flat[split] = split_jacobian(problem, solved, split)
    return result, solved


def special_steps(problem: kernel.Problem, out: kernel.Outputs) -> tuple[Tensor, Tensor]:
    """The environments with impacts whose instants count, and those whose step is split in two.

    Raises what the status of a step asks for.
    """
    status = out.status
    # A step without a solution has a Jacobian of zeros, whatever `on_failure` says.
    check_status(problem, torch.where(status == int(Status.MAX_ITERATIONS), 0, status))
    _warn_of_lost_digits(problem, out)
    good = status == int(Status.SUCCESS)
    split = (good & (out.substeps > 1)).squeeze(-1).nonzero().squeeze(-1)
    if not problem.request.num_shifts(problem.program.system):
        return split[:0], split
    hit = (good & (out.substeps == 1)).squeeze(-1).nonzero().squeeze(-1)
    return hit[bouncing(_equations(problem, hit), out.w[hit, 0])], split


def _equations(problem: kernel.Problem, rows: Tensor) -> StepProblem:
    program, parameters, speed = problem.program, problem.parameters, problem.request.options.depenetration_speed
    whole = StepProblem(program.system, parameters, problem.z, problem.u[:, 0], problem.wrench, depenetration_speed=speed)
    return whole.select(rows)


def impact_jacobian(problem: kernel.Problem, solved: kernel.Outputs, rows: Tensor, derivative: Tensor | None = None) -> Tensor:
    """Jacobians (len(rows), 12 nb, 12 nb + nu) of steps with impacts.

    `derivative`, if given, holds the Jacobians without the instants, and is overwritten.
    """
    equations, w = _equations(problem, rows), solved.w[rows, 0]
    if derivative is None:
        size = TANGENT_SIZE * problem.program.num_bodies
        derivative = w.new_empty(len(rows), size, size + problem.program.num_inputs)
        kernel.jacobian(*_solved_steps(problem.program, problem.request, equations, w), derivative)
    with differentiable():
        add_impacts(derivative, equations, w, *_hard_arguments(problem.program, problem.request, equations, w))
    return derivative


def split_jacobian(problem: kernel.Problem, solved: kernel.Outputs, split: Tensor) -> Tensor:
    """Jacobians (len(split), 12 nb, 12 nb + nu) of the split steps of the environments `split`.

    Where the instants of impacts count, the reference has the Jacobians: the kernel takes impacts of whole steps only.
    """
    program, request, batch = problem.program, problem.request, problem.z.shape[:1]
    if request.num_shifts(program.system):
        tensors = [problem.z, problem.u[:, 0], problem.wrench, *problem.parameters]
        return halved_jacobian(program.system, request, tensors, split, request.options.max_halvings - 1)
    parameters = select_rows(problem.parameters, split)
    warm, grad_kappa = (None if t is None else t.expand(*batch, *t.shape[1:])[split] for t in (problem.warm, problem.grad_kappa))
    z, u, wrench = problem.z[split], problem.u[split], problem.wrench[split]
    asked = kernel.Problem(program, request, parameters, z, u, wrench, warm, None, grad_kappa)
    size = TANGENT_SIZE * program.num_bodies
    result = problem.z.new_empty(len(split), size, size + program.num_inputs)
    kernel.jacobian(asked, kernel.Outputs(*(t[split] for t in solved)), result)
    return result
