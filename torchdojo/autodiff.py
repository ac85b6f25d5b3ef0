"""The step as a differentiable function: implicit differentiation of the solved residual, with vmap rules.

At the solution r(w; z, u, θ) = 0, so dw = −R⁻¹ (∂r/∂z dz + ∂r/∂u du + ∂r/∂θ dθ) with R = ∂r/∂w. For a loss L with gradient g = ∂L/∂w,

    Rᵀ λ = g,        ∂L/∂(z, u, θ) = −λᵀ ∂r/∂(z, u, θ),

one transposed solve and one reverse pass through the residual, in which every tensor that enters it takes part, the weights of user-written
modules included (Howell et al. 2025, section V; implicit function theorem). Backward keeps the solution, not the factors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

import torch
from torch import Tensor

from torchdojo.dynamics.integrator import LARGEST_SINE, STATE_SIZE
from torchdojo.dynamics.residual import StepProblem
from torchdojo.dynamics.system import ParameterSpec, System
from torchdojo.solver.interior_point import solve_step
from torchdojo.solver.limit import adjoint, warn_of_lost_digits
from torchdojo.solver.options import OnFailure, SolverOptions, Status

__all__ = ["StepAdjointFunction", "StepFunction", "StepSettings"]

UNIT_TOLERANCE = 1e-6


def transforming() -> bool:
    """Whether this runs inside a `torch.func` transform, where values of tensors cannot be read."""
    return torch._C._functorch.maybe_current_level() is not None


@dataclass(frozen=True)
class StepSettings:
    """What is not differentiated: layout, options, whether an environment with invalid input raises (or is flagged), and the κ at which
    derivatives are taken, (...,), where environments have their own (not inside transforms)."""

    system: System
    options: SolverOptions
    raise_invalid: bool = False
    grad_kappa: Tensor | None = field(default=None, compare=False)

    def kappas(self, batch: torch.Size, index: Tensor) -> Tensor | None:
        """`grad_kappa` of the environments `index` of the flattened batch."""
        return None if self.grad_kappa is None else self.grad_kappa.expand(batch).reshape(-1)[index]

    def select(self, batch: torch.Size, index: Tensor) -> StepSettings:
        """The same for the environments `index` of the flattened batch alone."""
        return self if self.grad_kappa is None else replace(self, grad_kappa=self.kappas(batch, index))

    @property
    def raises_invalid(self) -> bool:
        return self.raise_invalid or self.options.on_failure is OnFailure.RAISE

    @property
    def specs(self) -> list[ParameterSpec]:
        """Event dimensions of the Function's tensors: z, u, wrench, then the parameters."""
        return [ParameterSpec(1, True)] * 3 + self.system.parameter_specs()


def flatten_batch(specs: Sequence[ParameterSpec], tensors: Sequence[Tensor]) -> tuple[list[Tensor], torch.Size]:
    """Batch dimensions flattened: the first three (z, u, wrench) to N, parameters to N or 1. Also returns the common batch shape."""
    shapes = [t.shape[: t.ndim - s.ndim] for t, s in zip(tensors, specs, strict=True) if s.batched]
    batch = torch.broadcast_shapes(*shapes)
    flat = []
    for i, (tensor, spec) in enumerate(zip(tensors, specs, strict=True)):
        if not spec.batched:
            flat.append(tensor)
            continue
        lead, event = tensor.shape[: tensor.ndim - spec.ndim], tensor.shape[tensor.ndim - spec.ndim :]
        shared = i >= 3 and lead.numel() == 1
        flat.append(tensor.reshape(1, *event) if shared else tensor.expand(*batch, *event).reshape(batch.numel(), *event))
    return flat, batch


def valid_environments(settings: StepSettings, flat: Sequence[Tensor]) -> Tensor:
    """Which environments have finite input, unit quaternions and representable spins, (N,).

    Raises:
        ValueError: a quaternion off the unit sphere; non-finite input where `settings.raise_invalid` or on_failure="raise".
    """
    z = flat[0]
    finite = torch.ones(len(z), dtype=torch.bool, device=z.device)
    for tensor in flat:
        if tensor.numel() and not bool(torch.isfinite(tensor).all()):
            rows = torch.isfinite(tensor).flatten(1).all(-1) if tensor.ndim > 1 and len(tensor) == len(z) else torch.isfinite(tensor).all()
            finite = finite & rows
    check_quaternions(z, finite)
    spin = torch.linalg.vector_norm(z.unflatten(-1, (-1, STATE_SIZE))[..., 10:13], dim=-1).amax(-1)
    # Too fast for the step, but not for the shortest one it may be split into: that is left to the solver, which then fails.
    shortest = flat[3] * 0.5**settings.options.max_halvings
    valid = finite & (shortest * spin < 2 * LARGEST_SINE)
    if settings.raises_invalid:
        check_valid(valid)
    return valid


def check_quaternions(z: Tensor, finite: Tensor) -> None:
    """Raise ValueError if a finite state of z (N, 13 nb) has a quaternion off the unit sphere."""
    error = (torch.linalg.vector_norm(z.unflatten(-1, (-1, STATE_SIZE))[..., 6:10], dim=-1) - 1).abs().amax(-1)
    crooked = finite & (error > max(UNIT_TOLERANCE, 8 * torch.finfo(z.dtype).eps))
    if bool(crooked.any()):
        worst = int(torch.where(crooked, error, 0).argmax())
        raise ValueError(
            f"z: environment {worst} has a quaternion whose norm differs from 1 by {float(error[worst]):.2g}; allowed: unit quaternions "
            f"wxyz (within {UNIT_TOLERANCE}); divide them by their norm, and check the order of the state, [x, v, q, omega] per body"
        )


def check_valid(valid: Tensor) -> None:
    """Raise ValueError unless all environments (N,) are valid."""
    if not bool(valid.all()):
        first = int((~valid).nonzero()[0])
        raise ValueError(f"z, u, wrench or parameters: environment {first} of {len(valid)} is invalid: {Status.INVALID_INPUT.explain}")


def check_solved(status: Tensor) -> None:
    """Raise RuntimeError unless all environments (...,) succeeded."""
    failed = status != int(Status.SUCCESS)
    if bool(failed.any()):
        first = int(failed.reshape(-1).nonzero()[0, 0])
        raise RuntimeError(f"environment {first} of {status.numel()}: {Status.MAX_ITERATIONS.explain}")


class StepFunction(torch.autograd.Function):
    """(settings, warm_start, z, u, wrench, *parameters) -> (w, status, iterations); w is differentiable in z, u, wrench, parameters."""

    @staticmethod
    def forward(settings: StepSettings, warm_start: Tensor | None, *tensors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        system, options = settings.system, settings.options
        flat, batch = flatten_batch(settings.specs, [t.detach() for t in tensors])
        z = flat[0]
        valid = valid_environments(settings, flat)
        w = z.new_zeros(len(z), system.num_unknowns)
        status = torch.full((len(z),), int(Status.INVALID_INPUT), dtype=torch.int64, device=z.device)
        iterations = torch.zeros_like(status)
        index = valid.nonzero().squeeze(-1)
        if len(index):
            problem = StepProblem(system, flat[3:], *flat[:3])
            warm = None if warm_start is None else warm_start.detach().expand(*batch, system.num_unknowns).reshape(len(z), -1)
            if len(index) < len(z):
                problem, warm = problem.select(index), None if warm is None else warm[index]
            solution = solve_step(problem, warm, options)
            solved = (solution.status == int(Status.SUCCESS))[:, None]
            w[index] = torch.where(solved, solution.w, 0.0)
            status[index], iterations[index] = solution.status, solution.iterations
        return w.reshape(*batch, -1), status.reshape(batch), iterations.reshape(batch)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
        settings, _, *tensors = inputs
        w, status, iterations = output
        ctx.settings = settings
        ctx.mark_non_differentiable(status, iterations)
        ctx.save_for_backward(w, status, *tensors)

    @staticmethod
    def backward(ctx: Any, grad_w: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        needs = tuple(ctx.needs_input_grad[2:])
        if not any(needs):
            return (None,) * (2 + len(needs))
        return (None, None, *StepAdjointFunction.apply(ctx.settings, needs, grad_w, *ctx.saved_tensors))

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], settings: StepSettings, warm_start: Tensor | None, *tensors: Tensor) -> tuple[Any, Any]:
        names = settings.specs
        specs = [ParameterSpec(1, True), *names] if warm_start is not None else list(names)
        values = [warm_start, *tensors] if warm_start is not None else list(tensors)
        dims = list(in_dims[1:] if warm_start is not None else in_dims[2:])

        def call(*args: Tensor) -> tuple[Tensor, ...]:
            return StepFunction.apply(settings, *args) if warm_start is not None else StepFunction.apply(settings, None, *args)

        if _unbatchable(specs, dims):
            return _loop(info.batch_size, dims, values, call), (0, 0, 0)
        return call(*align(specs, dims, values)), (0, 0, 0)


class StepAdjointFunction(torch.autograd.Function):
    """(settings, needs, grad_w, w, status, z, u, wrench, *parameters) -> gradients of the last ones (None where not needed)."""

    @staticmethod
    def forward(
        settings: StepSettings, needs: tuple[bool, ...], grad_w: Tensor, w: Tensor, status: Tensor, *tensors: Tensor
    ) -> tuple[Tensor | None, ...]:
        system, options = settings.system, settings.options
        leaves = [t.detach().requires_grad_(need) for t, need in zip(tensors, needs, strict=True)]
        batch = torch.broadcast_shapes(grad_w.shape[:-1], w.shape[:-1])
        with torch.enable_grad():
            # The solution takes part in the broadcast: its gradient may have batch dimensions that no input has (under vmap).
            specs = [*settings.specs, ParameterSpec(1, True)]
            flat, batch = flatten_batch(specs, [*leaves, torch.empty(*batch, 1)])
            flat_w, cotangent = (t.detach().expand(*batch, -1).reshape(batch.numel(), -1) for t in (w, grad_w))
            index = (status.expand(batch).reshape(-1) == int(Status.SUCCESS)).nonzero().squeeze(-1)
            wanted = [leaf for leaf in leaves if leaf.requires_grad]
            if not len(index) or not wanted:
                return tuple(torch.zeros_like(leaf) if need else None for leaf, need in zip(leaves, needs, strict=True))
            problem = StepProblem(system, flat[3:-1], *flat[:3]).select(index)
            with torch.no_grad():
                kappas = settings.kappas(batch, index)
                warn_of_lost_digits(problem, flat_w[index], options, kappas)
                multiplier, solution = adjoint(problem, flat_w[index], cotangent[index], options, kappas)
            r = problem.residual(solution)
            found = iter(torch.autograd.grad(r, wanted, -multiplier, allow_unused=True))
        grads = []
        for leaf, need in zip(leaves, needs, strict=True):
            grad = next(found) if leaf.requires_grad else None
            grads.append((torch.zeros_like(leaf) if grad is None else grad) if need else None)
        return tuple(grads)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor | None, ...]) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        refuse_second_derivative()

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], settings: StepSettings, needs: tuple[bool, ...], *values: Tensor
    ) -> tuple[tuple[Tensor | None, ...], tuple[int | None, ...]]:
        specs = [ParameterSpec(1, True), ParameterSpec(1, True), ParameterSpec(0, True), *settings.specs]
        dims = list(in_dims[2:])

        def call(*args: Tensor) -> tuple[Tensor | None, ...]:
            result: tuple[Tensor | None, ...] = StepAdjointFunction.apply(settings, needs, *args)
            return result

        out_dims = tuple(0 if need else None for need in needs)
        if any(not s.batched for s in specs):
            return _loop(info.batch_size, dims, list(values), call), out_dims
        mapped = map_all(info.batch_size, dims, values)
        grads = call(*align(specs, [0] * len(mapped), mapped))
        shaped = [None if grad is None else grad.reshape(value.shape) for grad, value in zip(grads, mapped[3:], strict=True)]
        return tuple(shaped), out_dims


def refuse_second_derivative() -> NoReturn:
    raise RuntimeError(
        "torchdojo: second derivatives through the step are not implemented; differentiate first derivatives "
        "(mech.jacobians) by finite differences instead"
    )


# -- vmap ------------------------------------------------------------------------------------------------------------------------------


def align(specs: Sequence[ParameterSpec], dims: Sequence[int | None], values: Sequence[Tensor]) -> list[Tensor]:
    """Bring mapped dimensions to the front, in front of equally many batch dimensions, so that ordinary broadcasting does the rest."""
    lead = max(v.ndim - s.ndim - (d is not None) for s, d, v in zip(specs, dims, values, strict=True) if s.batched)
    aligned = []
    for spec, dim, value in zip(specs, dims, values, strict=True):
        if dim is not None:
            value = value.movedim(dim, 0)
            own = value.ndim - 1 - spec.ndim
            value = value.reshape(value.shape[0], *(1,) * (lead - own), *value.shape[1:])
        aligned.append(value)
    return aligned


def map_all(size: int, dims: Sequence[int | None], values: Sequence[Tensor]) -> list[Tensor]:
    """Mapped dimensions at the front of every tensor: gradients are wanted per mapped sample, so what is not mapped is expanded."""
    return [v.expand(size, *v.shape) if d is None else v.movedim(d, 0) for v, d in zip(values, dims, strict=True)]


def _unbatchable(specs: Sequence[ParameterSpec], dims: Sequence[int | None]) -> bool:
    return any(dim is not None and not spec.batched for spec, dim in zip(specs, dims, strict=True))


def _loop(
    size: int, dims: Sequence[int | None], values: Sequence[Tensor], call: Callable[..., tuple[Tensor | None, ...]]
) -> tuple[Any, ...]:
    """One call per mapped sample: for weights of user-written modules, which have no batch dimension of their own."""
    results = [call(*[v if d is None else v.select(d, i) for v, d in zip(values, dims, strict=True)]) for i in range(size)]
    return tuple(None if column[0] is None else torch.stack(column) for column in zip(*results, strict=True))
