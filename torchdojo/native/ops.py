"""The kernel as operators of PyTorch: `torch.ops.torchdojo.rollout`, its adjoint and the Jacobian of a step.

`Rollout` is the same for `torch.func`, whose transforms do not pass through the autograd formula of an operator; both share it. Eager calls
use the Function too, or, where nothing needs a gradient, the kernel at once: an operator of Python costs 100 µs per call.

Gradients of z, u and wrench come from the kernel. It also returns the multipliers λ of every step, and gradients of parameters are the
product −λᵀ ∂r/∂θ with the residual of the reference (autodiff.py), so that there is one statement of how parameters enter.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from torchdojo.autodiff import (
    StepSettings,
    align,
    check_quaternions,
    check_solved,
    check_valid,
    flatten_batch,
    map_all,
    refuse_second_derivative,
    transforming,
)
from torchdojo.dynamics.integrator import STATE_SIZE, TANGENT_SIZE, join_state, next_pose
from torchdojo.dynamics.residual import StepProblem
from torchdojo.dynamics.system import ParameterSpec
from torchdojo.elements import Twist
from torchdojo.native import kernel, loader
from torchdojo.native.cache import Parameters
from torchdojo.native.program import Program, by_number
from torchdojo.solver.options import OnFailure, SolverOptions, Status
from torchdojo.stepping import StepOutput, halve, halved_jacobian

__all__ = ["Settings", "available", "jacobian", "rollout", "step"]

CHUNK = 4096  # steps whose residual is differentiated together: bounds the memory of backward (40 kB a step for a quadruped)

VECTOR, SERIES, NUMBERS = ParameterSpec(1, True), ParameterSpec(2, True), ParameterSpec(1, True)
Six = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class Settings:
    """What is not a tensor. Operators get it as numbers."""

    program: Program
    options: SolverOptions
    raise_invalid: bool = False

    @property
    def specs(self) -> list[ParameterSpec]:
        """Event dimensions of z, u (T, nu), wrench and the parameters."""
        return [VECTOR, SERIES, VECTOR, *self.program.parameter_specs]

    @property
    def reference(self) -> StepSettings:
        return StepSettings(self.program.system, self.options, self.raise_invalid)

    def numbers(self) -> tuple[int, list[float], list[int]]:
        options = self.options
        residual_tol, path_tol = options.tolerances(torch.float64)
        raises = options.on_failure is OnFailure.RAISE
        limits = [options.max_iterations, options.min_iterations, options.max_halvings, int(raises), int(self.raise_invalid)]
        return self.program.number, [options.kappa, options.grad_kappa or options.kappa, residual_tol, path_tol], limits


def _settings(program: int, tolerances: Sequence[float], limits: Sequence[int]) -> Settings:
    return Settings(by_number(program), _options(tuple(tolerances), tuple(limits[:4])), bool(limits[4]))


@functools.lru_cache(maxsize=64)
def _options(tolerances: tuple[float, ...], limits: tuple[int, ...]) -> SolverOptions:
    kappa, grad_kappa, residual_tol, path_tol = tolerances
    return SolverOptions(
        kappa=kappa,
        grad_kappa=grad_kappa,
        residual_tol=residual_tol,
        central_path_tol=path_tol,
        max_iterations=limits[0],
        min_iterations=limits[1],
        max_halvings=limits[2],
        on_failure=OnFailure.RAISE if limits[3] else OnFailure.FLAG,
    )


# -- what the operators do ---------------------------------------------------------------------------------------------------------------


def _problem(
    settings: Settings, parameters: Sequence[Tensor], known: Parameters | None, z: Tensor, u: Tensor, wrench: Tensor, warm: Tensor | None
) -> tuple[kernel.Problem, torch.Size]:
    """Flat batches for the kernel, and the batch shape. `known`: what was computed of the parameters in earlier calls."""
    if known is not None and known.packed is not None:
        batch, flat, packed = torch.broadcast_shapes(known.batch, z.shape[:-1], u.shape[:-2], wrench.shape[:-1]), known.flat, known.packed
        if len(z) != batch.numel() or z.ndim != 2:
            z = z.expand(*batch, -1).reshape(batch.numel(), -1)
        u = u.expand(*batch, *u.shape[-2:]).reshape(batch.numel(), *u.shape[-2:])
        wrench = wrench.expand(*batch, -1).reshape(batch.numel(), -1)
    else:
        (z, u, wrench, *flat), batch = flatten_batch(settings.specs, [z, u, wrench, *parameters])
        packed = settings.program.packed(flat)
    if len(packed.values) == 1 and not bool(torch.isfinite(packed.values).all()):
        # The kernel checks the parameters of each environment only where they differ.
        packed = packed._replace(values=packed.values.expand(len(z), -1).contiguous())
    if warm is not None:
        warm = warm.expand(*batch, warm.shape[-1]).reshape(batch.numel(), -1)
    return kernel.Problem(settings.program, settings.options, flat, z, u, wrench, warm, packed), batch


def _forward(
    settings: Settings,
    keep_solutions: bool,
    warm: Tensor | None,
    z: Tensor,
    u: Tensor,
    wrench: Tensor,
    parameters: Sequence[Tensor],
    known: Parameters | None = None,
) -> Six:
    problem, batch = _problem(settings, parameters, known, z, u, wrench, warm)
    out = kernel.rollout(problem, keep_solutions)
    _check(settings, problem, out.status)
    if len(batch) != 1:
        out = kernel.Outputs(*(tensor.reshape(*batch, *tensor.shape[1:]) for tensor in out))
    return cast(Six, tuple(out))


def _check(settings: Settings, problem: kernel.Problem, status: Tensor) -> None:
    """Raise what the reference raises, from the status (N, T) of the kernel."""
    if not status.numel() or not int(status.max()):
        return
    if bool((status == kernel.CROOKED_QUATERNION).any()):
        check_quaternions(problem.z, status[:, 0] == kernel.CROOKED_QUATERNION)
    if settings.reference.raises_invalid:
        check_valid((status != int(Status.INVALID_INPUT)).all(1))
    if settings.options.on_failure is OnFailure.RAISE:
        check_solved(status[:, int((status != 0).any(0).nonzero()[0])])


def _backward(
    settings: Settings,
    needs: Sequence[bool],
    grads: Sequence[Tensor | None],
    saved: Sequence[Tensor],
    tensors: Sequence[Tensor],
    known: Parameters | None = None,
) -> list[Tensor]:
    """Gradients of those of `tensors` (z, u, wrench, parameters) that are needed.

    `grads`: of the trajectory and of the impulses. `saved`: trajectory, solutions, status, substeps.
    """
    trajectory = saved[0]
    shapes = [t.shape[:-2] for t in (*grads, trajectory) if t is not None]
    lead = torch.broadcast_shapes(*shapes)
    z, u, wrench, *parameters = tensors
    # The trajectory has every batch dimension of the inputs, and its gradient those of vmap.
    problem, batch = _problem(settings, parameters, known, z.expand(*lead, -1), u, wrench, None)

    def rows(tensor: Tensor, ndim: int) -> Tensor:
        return tensor.expand(*batch, *tensor.shape[tensor.ndim - ndim :]).reshape(batch.numel(), *tensor.shape[tensor.ndim - ndim :])

    z_all, w = (rows(t, 2).contiguous() for t in saved[:2])
    status, substeps = (rows(t, 1).contiguous() for t in saved[2:])
    ni = settings.program.num_impulses
    out = kernel.Outputs(z_all, z_all.new_empty(0, ni), w, status, substeps, substeps)
    grad_z, grad_impulses = (None if t is None else rows(t, 2) for t in grads)
    if grad_z is None:
        grad_z = torch.zeros_like(z_all)
    found = kernel.adjoint(problem, out, grad_z, grad_impulses, any(needs[3:]))
    native = [t.reshape(*batch, *t.shape[1:]).sum_to_size(x.shape) for t, x in zip(found[:3], tensors[:3], strict=True)]
    result = [t for t, need in zip(native, needs, strict=False) if need]
    if any(needs[3:]):
        flat = _parameter_gradients(settings, needs[3:], problem, out, found, grad_impulses)
        for grad, value, spec in zip(flat, parameters, settings.program.parameter_specs, strict=True):
            if grad is not None:
                shared = value.shape[: value.ndim - spec.ndim].numel() == 1
                result.append(grad.reshape(value.shape) if shared else grad.reshape(*batch, *grad.shape[1:]).sum_to_size(value.shape))
    return result


def _parameter_gradients(
    settings: Settings,
    needs: Sequence[bool],
    problem: kernel.Problem,
    out: kernel.Outputs,
    found: kernel.Gradients,
    grad_impulses: Tensor | None,
) -> list[Tensor | None]:
    """Gradients of the flat parameters (N or 1, ...): −λᵀ ∂r/∂θ of all steps, and what the timestep does to the next pose."""
    assert found.multiplier is not None and found.solution is not None and found.carried is not None
    steps = out.status.shape[1]
    size = problem.z.shape[-1]
    totals = [torch.zeros_like(p) if need else None for p, need in zip(problem.parameters, needs, strict=True)]
    before, u, carried = out.z[:, :-1].reshape(-1, size), problem.u.flatten(0, 1), found.carried.flatten(0, 1)
    w, solution, multiplier = (t.flatten(0, 1) for t in (out.w, found.solution, found.multiplier))
    impulses = u.new_zeros(()).expand(len(u), settings.program.num_impulses) if grad_impulses is None else grad_impulses.flatten(0, 1)
    solved = (out.status == int(Status.SUCCESS)).flatten()
    split = solved & (out.substeps.flatten() > 1)
    reference = settings.reference

    def product(rows: Tensor, halves: bool) -> None:
        environments = rows // steps
        # (leaves of this chunk alone, so that its graph is freed with it)
        leaves = [p.detach().requires_grad_(need) for p, need in zip(problem.parameters, needs, strict=True)]
        here = [
            p[environments] if spec.batched and len(p) > 1 else p for p, spec in zip(leaves, settings.program.parameter_specs, strict=True)
        ]
        data = before[rows], u[rows], problem.wrench[environments]
        if halves:
            outputs, grads = _split_outputs(reference, data, here, w[rows]), [carried[rows], impulses[rows]]
        else:
            equations = StepProblem(settings.program.system, here, *data)
            outputs, grads = [equations.residual(solution[rows])], [-multiplier[rows]]
            if needs[0]:
                twist = Twist(*equations.body_twists(w[rows])[:, :-1].split(3, dim=-1))
                outputs.append(join_state(next_pose(equations.state.pose, twist, equations.timestep[:, None, None]), twist))
                grads.append(carried[rows])
        pairs = [(o, g) for o, g in zip(outputs, grads, strict=True) if o.requires_grad]
        if not pairs:
            return
        wanted = [leaf for leaf in leaves if leaf.requires_grad]
        parts = iter(torch.autograd.grad([o for o, _ in pairs], wanted, [g for _, g in pairs], allow_unused=True))
        for total in totals:
            if total is not None and (part := next(parts)) is not None:
                total += part

    # Inside an operator autograd is switched off by dispatch keys, which enable_grad does not undo.
    excluded = torch._C._dispatch_tls_local_exclude_set()
    for key in ("AutogradFunctionality", "AutogradOther", "AutogradNestedTensor", "ADInplaceOrView"):
        excluded = excluded.remove(getattr(torch._C.DispatchKey, key))
    with torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), excluded), torch.enable_grad():
        for mask, halves in ((solved & ~split, False), (split, True)):
            for rows in mask.nonzero().squeeze(-1).split(CHUNK):
                if len(rows):
                    product(rows, halves)
    return totals


def _split_outputs(reference: StepSettings, data: tuple[Tensor, Tensor, Tensor], parameters: Sequence[Tensor], w: Tensor) -> list[Tensor]:
    """State and impulses of steps that were split in two, from the reference and with its graph. Rare."""
    status = torch.zeros(len(w), dtype=torch.int64)
    impulses = w.new_zeros(len(w), sum(piece.stop - piece.start for piece in reference.system.impulse_layout.values()))
    whole = StepOutput(data[0], impulses, status, status, w, status + 1)
    out = halve(reference, [*data, *parameters], whole, status == 0, reference.options.max_halvings - 1)
    return [out.z, out.impulses]


def _jacobian(
    settings: Settings,
    z: Tensor,
    u: Tensor,
    wrench: Tensor,
    warm: Tensor | None,
    parameters: Sequence[Tensor],
    known: Parameters | None = None,
) -> Tensor:
    problem, batch = _problem(settings, parameters, known, z, u, wrench, warm)
    out = kernel.rollout(problem)
    status = out.status
    # A step without a solution has a Jacobian of zeros, whatever `on_failure` says.
    _check(settings, problem, torch.where(status == int(Status.MAX_ITERATIONS), 0, status))
    result = kernel.jacobian(problem, out)
    split = ((status == int(Status.SUCCESS)) & (out.substeps > 1)).squeeze(-1).nonzero().squeeze(-1)
    if len(split):
        tensors = [problem.z, problem.u[:, 0], problem.wrench, *problem.parameters]
        result[split] = halved_jacobian(settings.reference, tensors, split, settings.options.max_halvings - 1)
    return result.reshape(*batch, *result.shape[1:])


# -- operators ---------------------------------------------------------------------------------------------------------------------------


@torch.library.custom_op("torchdojo::rollout", mutates_args=())
def rollout_op(
    z: Tensor,
    u: Tensor,
    wrench: Tensor,
    warm: Tensor | None,
    parameters: list[Tensor],
    program: int,
    tolerances: list[float],
    limits: list[int],
    keep_solutions: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """T steps: trajectory (..., T + 1, 13 nb), impulses, solutions (of all steps or the last), status, iterations, substeps."""
    return _forward(_settings(program, tolerances, limits), keep_solutions, warm, z, u, wrench, parameters)


@torch.library.custom_op("torchdojo::rollout_adjoint", mutates_args=())
def adjoint_op(
    grad_z: Tensor | None,
    grad_impulses: Tensor | None,
    saved: list[Tensor],
    tensors: list[Tensor],
    program: int,
    tolerances: list[float],
    limits: list[int],
    needs: list[bool],
) -> list[Tensor]:
    """Gradients of those of `tensors` = z, u, wrench, parameters that are needed; `saved` = trajectory, solutions, status, substeps."""
    return _backward(_settings(program, tolerances, limits), needs, (grad_z, grad_impulses), saved, tensors)


@torch.library.custom_op("torchdojo::step_jacobian", mutates_args=())
def jacobian_op(
    z: Tensor,
    u: Tensor,
    wrench: Tensor,
    warm: Tensor | None,
    parameters: list[Tensor],
    program: int,
    tolerances: list[float],
    limits: list[int],
) -> Tensor:
    """(..., 12 nb, 12 nb + nu) of one step, u (..., 1, nu). Not differentiable."""
    return _jacobian(_settings(program, tolerances, limits), z, u, wrench, warm, parameters)


def _batch_shape(program: Program, z: Tensor, u: Tensor, wrench: Tensor, parameters: Sequence[Tensor]) -> torch.Size:
    leads = [p.shape[: p.ndim - spec.ndim] for p, spec in zip(parameters, program.parameter_specs, strict=True)]
    return torch.broadcast_shapes(z.shape[:-1], u.shape[:-2], wrench.shape[:-1], *leads)


@rollout_op.register_fake
def _(z, u, wrench, warm, parameters, program, tolerances, limits, keep_solutions):  # type: ignore[no-untyped-def]
    lowered = by_number(program)
    batch, steps = _batch_shape(lowered, z, u, wrench, parameters), u.shape[-2]
    status = z.new_empty(*batch, steps, dtype=torch.int64)
    return (
        z.new_empty(*batch, steps + 1, STATE_SIZE * lowered.num_bodies),
        z.new_empty(*batch, steps, lowered.num_impulses),
        z.new_empty(*batch, steps if keep_solutions else 1, lowered.num_unknowns),
        status,
        torch.empty_like(status),
        torch.empty_like(status),
    )


@adjoint_op.register_fake
def _(grad_z, grad_impulses, saved, tensors, program, tolerances, limits, needs):  # type: ignore[no-untyped-def]
    return [t.new_empty(t.shape) for t, need in zip(tensors, needs, strict=True) if need]


@jacobian_op.register_fake
def _(z, u, wrench, warm, parameters, program, tolerances, limits):  # type: ignore[no-untyped-def]
    lowered = by_number(program)
    size = TANGENT_SIZE * lowered.num_bodies
    return z.new_empty(*_batch_shape(lowered, z, u, wrench, parameters), size, size + lowered.num_inputs)


# -- vmap --------------------------------------------------------------------------------------------------------------------------------


def _map_inputs(
    settings: Settings, dims: Sequence[int | None], warm: Tensor | None, tensors: Sequence[Tensor]
) -> tuple[Tensor | None, list[Tensor]]:
    """warm and (z, u, wrench, parameters) with mapped dimensions in front of the batch dimensions; dims in the same order."""
    specs, values = settings.specs, list(tensors)
    if warm is None:
        return None, align(specs, dims[1:], values)
    warm, *values = align([VECTOR, *specs], dims, [warm, *values])
    return warm, values


def _map_gradients(
    settings: Settings, size: int, dims: Sequence[int | None], values: Sequence[Tensor | None]
) -> tuple[list[Tensor | None], list[torch.Size]]:
    """(two gradients, four saved, z, u, wrench, parameters) all mapped; shapes of the last ones."""
    specs = [SERIES, SERIES, SERIES, SERIES, NUMBERS, NUMBERS, *settings.specs]
    there = [i for i, value in enumerate(values) if value is not None]
    mapped = map_all(size, [dims[i] for i in there], [cast(Tensor, values[i]) for i in there])
    aligned: list[Tensor | None] = [None] * len(values)
    for i, value in zip(there, align([specs[i] for i in there], [0] * len(there), mapped), strict=True):
        aligned[i] = value
    return aligned, [value.shape for value in mapped[len(there) - len(values) + 6 :]]


@rollout_op.register_vmap
def _(info, in_dims, z, u, wrench, warm, parameters, program, tolerances, limits, keep_solutions):  # type: ignore[no-untyped-def]
    settings = _settings(program, tolerances, limits)
    dims = [in_dims[3], *in_dims[:3], *in_dims[4]]
    warm, (z, u, wrench, *parameters) = _map_inputs(settings, dims, warm, [z, u, wrench, *parameters])
    return rollout_op(z, u, wrench, warm, parameters, program, tolerances, limits, keep_solutions), (0,) * 6


@jacobian_op.register_vmap
def _(info, in_dims, z, u, wrench, warm, parameters, program, tolerances, limits):  # type: ignore[no-untyped-def]
    settings = _settings(program, tolerances, limits)
    dims = [in_dims[3], *in_dims[:3], *in_dims[4]]
    warm, (z, u, wrench, *parameters) = _map_inputs(settings, dims, warm, [z, u, wrench, *parameters])
    return jacobian_op(z, u, wrench, warm, parameters, program, tolerances, limits), 0


@adjoint_op.register_vmap
def _(info, in_dims, grad_z, grad_impulses, saved, tensors, program, tolerances, limits, needs):  # type: ignore[no-untyped-def]
    settings = _settings(program, tolerances, limits)
    dims = [*in_dims[:2], *in_dims[2], *in_dims[3]]
    values, shapes = _map_gradients(settings, info.batch_size, dims, [grad_z, grad_impulses, *saved, *tensors])
    grads = adjoint_op(values[0], values[1], values[2:6], values[6:], program, tolerances, limits, needs)
    wanted = [shape for shape, need in zip(shapes, needs, strict=True) if need]
    return [grad.reshape(shape) for grad, shape in zip(grads, wanted, strict=True)], [0] * len(grads)


# -- autograd ----------------------------------------------------------------------------------------------------------------------------


def _save(ctx: Any, output: Six, tensors: Sequence[Tensor]) -> None:
    """Backward keeps the states and the solutions, not the factors."""
    z, _, w, status, iterations, substeps = output
    ctx.mark_non_differentiable(w, status, iterations, substeps)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(z, w, status, substeps, *tensors)


def _setup_op(ctx: Any, inputs: tuple[Any, ...], output: Six) -> None:
    z, u, wrench, _, parameters, *ctx.numbers, _ = inputs
    _save(ctx, output, [z, u, wrench, *parameters])


def _backward_op(ctx: Any, grad_z: Tensor | None, grad_impulses: Tensor | None, *_: Any) -> tuple[Any, ...]:
    needs = [*ctx.needs_input_grad[:3], *ctx.needs_input_grad[4]]
    if (grad_z is None and grad_impulses is None) or not any(needs):
        return None, None, None, None, [None] * (len(needs) - 3), None, None, None, None
    saved = list(ctx.saved_tensors)
    found = iter(adjoint_op(grad_z, grad_impulses, saved[:4], saved[4:], *ctx.numbers, needs))
    grads = [next(found) if need else None for need in needs]
    return *grads[:3], None, grads[3:], None, None, None, None


def _refuse(*_: Any) -> Any:
    refuse_second_derivative()


rollout_op.register_autograd(_backward_op, setup_context=_setup_op)
adjoint_op.register_autograd(_refuse)


class Rollout(torch.autograd.Function):
    """(settings, known, warm, z, u, wrench, *parameters) -> the outputs of `rollout_op`, all solutions kept."""

    @staticmethod
    def forward(settings: Settings, known: Parameters | None, warm: Tensor | None, *tensors: Tensor) -> Six:
        z, u, wrench, *parameters = [t.detach() for t in tensors]
        return _forward(settings, True, None if warm is None else warm.detach(), z, u, wrench, parameters, known)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Six) -> None:
        ctx.settings, ctx.known, _, *tensors = inputs
        _save(ctx, output, tensors)

    @staticmethod
    def backward(ctx: Any, grad_z: Tensor | None, grad_impulses: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
        needs = tuple(ctx.needs_input_grad[3:])
        if (grad_z is None and grad_impulses is None) or not any(needs):
            return (None,) * (3 + len(needs))
        found = RolloutAdjoint.apply(ctx.settings, ctx.known, needs, grad_z, grad_impulses, *ctx.saved_tensors)
        return None, None, None, *found

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], settings: Settings, known: Any, warm: Tensor | None, *tensors: Tensor) -> tuple[Any, Any]:
        warm, values = _map_inputs(settings, in_dims[2:], warm, tensors)
        return Rollout.apply(settings, None, warm, *values), (0,) * 6


class RolloutAdjoint(torch.autograd.Function):
    """(settings, known, needs, two gradients, four saved, z, u, wrench, *parameters) -> gradients of the last (None where not needed)."""

    @staticmethod
    def forward(settings: Settings, known: Parameters | None, needs: tuple[bool, ...], *values: Tensor | None) -> tuple[Tensor | None, ...]:
        detached = [None if value is None else value.detach() for value in values]
        saved = cast(list[Tensor], detached[2:])
        found = iter(_backward(settings, needs, detached[:2], saved[:4], saved[4:], known))
        return tuple(next(found) if need else None for need in needs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor | None, ...]) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        refuse_second_derivative()

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], settings: Settings, known: Any, needs: tuple[bool, ...], *values: Tensor | None
    ) -> tuple[tuple[Tensor | None, ...], tuple[int | None, ...]]:
        mapped, shapes = _map_gradients(settings, info.batch_size, in_dims[3:], values)
        grads = RolloutAdjoint.apply(settings, None, needs, *mapped)
        out = tuple(None if grad is None else grad.reshape(shape) for grad, shape in zip(grads, shapes, strict=True))
        return out, tuple(0 if need else None for need in needs)


# -- calls -------------------------------------------------------------------------------------------------------------------------------


def available() -> bool:
    """`loader.available`, as a constant to torch.compile."""
    return loader.available()


# What torch.compiler.assume_constant_result does, without importing the compiler.
available._dynamo_marked_constant = True  # type: ignore[attr-defined]


def rollout(settings: Settings, parameters: Parameters, z: Tensor, u: Tensor, wrench: Tensor, warm: Tensor | None) -> Six:
    """The outputs of `rollout_op`, differentiable in z, u, wrench and parameters."""
    tensors = [z, u, wrench, *parameters.tensors]
    if torch.compiler.is_compiling():
        keep = torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
        warm = None if warm is None else warm.detach()
        return cast(Six, rollout_op(z, u, wrench, warm, list(parameters.tensors), *settings.numbers(), keep))
    if transforming():
        return cast(Six, Rollout.apply(settings, None, warm, *tensors))
    if torch.is_grad_enabled() and (parameters.requires_grad or z.requires_grad or u.requires_grad or wrench.requires_grad):
        return cast(Six, Rollout.apply(settings, parameters, warm, *tensors))
    with torch.no_grad():
        return _forward(settings, False, warm, z, u, wrench, parameters.tensors, parameters)


def step(settings: Settings, parameters: Parameters, z: Tensor, u: Tensor, wrench: Tensor, warm: Tensor | None) -> StepOutput:
    """`Mechanism.step`: a rollout of one step."""
    states, impulses, w, status, iterations, substeps = rollout(settings, parameters, z, u.unsqueeze(-2), wrench, warm)
    return StepOutput(states[..., 1, :], impulses[..., 0, :], status[..., 0], iterations[..., 0], w[..., 0, :].detach(), substeps[..., 0])


def jacobian(settings: Settings, parameters: Parameters, z: Tensor, u: Tensor, wrench: Tensor, warm: Tensor | None) -> Tensor:
    """`stepping.jacobian`."""
    u = u.unsqueeze(-2)
    if torch.compiler.is_compiling() or transforming():
        return cast(Tensor, jacobian_op(z, u, wrench, warm, list(parameters.tensors), *settings.numbers()))
    return _jacobian(settings, z, u, wrench, warm, parameters.tensors, parameters)
