"""The step as a differentiable function: implicit differentiation of the solved residual, with vmap rules.

At the solution r(w; z, u, θ) = 0, so dw = −R⁻¹ (∂r/∂z dz + ∂r/∂u du + ∂r/∂θ dθ) with R = ∂r/∂w. For a loss L with gradient g = ∂L/∂w,

    Rᵀ λ = g,        ∂L/∂(z, u, θ) = −λᵀ ∂r/∂(z, u, θ),

one transposed solve and one reverse pass through the residual. Every tensor that enters the residual takes part, the weights of
user-written modules included (implicit function theorem; Howell et al. 2025, sections III-B, IV-C). Backward keeps the solution, not the
factors.

With x for all data (z, u, θ), three linear maps make up all derivatives of first and second order, each an autograd Function:

    tangent  T(t) = −R⁻¹ ∂r/∂x t,     adjoint  A(g) = −(∂r/∂x)ᵀ R⁻ᵀ g,     Hessian  H(g, t) = ∂²(gᵀ w)/∂x² t.

T and A are each other's transposes, and the derivative of gᵀ T(t) and of A(g)ᵀ t by x is H(g, t). With λ = R⁻ᵀ g held fixed,

    H(g, t) = q_x + A(q_w),        (q_w, q_x) = −∂/∂(w, x) [ λᵀ (R T(t) + ∂r/∂x t) ]:

the second derivative of the residual along (T(t), t), directly and through w. This is the implicit function theorem applied to
r(w, x) = 0 twice, where w is a function of x throughout.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchdojo.dynamics.residual import StepProblem
from torchdojo.dynamics.system import System
from torchdojo.gradients.batching import align, align_given, flatten_batch, halves, map_given, map_gradients
from torchdojo.gradients.checks import valid_environments
from torchdojo.gradients.linearization import LinearizedEquations
from torchdojo.gradients.request import Request
from torchdojo.gradients.transforms import LastDerivative, apart_from_hooks, save
from torchdojo.solver.interior_point import solve_step
from torchdojo.solver.options import Status
from torchdojo.state.unknowns import NUM_DATA, ParameterSpec

__all__ = ["SolvedStepFunction", "StepFunction", "StepTangentFunction"]


class StepFunction(torch.autograd.Function):
    """(system, request, warm_start, z, u, wrench, *parameters) -> (w, status, iterations); w is differentiable in z, u, wrench, parameters.

    Behind the solution come the `Request.num_shifts` changes of the next state by the instants of impacts, on its tangent space
    (impacts.py). Their values are zero, their derivatives are not.
    """

    @staticmethod
    @apart_from_hooks
    def forward(system: System, request: Request, warm_start: Tensor | None, *tensors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        options = request.options
        flat, batch = flatten_batch(system.step_specs(), [t.detach() for t in tensors])
        z = flat[0]
        valid = valid_environments(system, request, flat)
        w = z.new_zeros(len(z), system.num_unknowns + request.num_shifts(system))
        status = torch.full((len(z),), int(Status.INVALID_INPUT), dtype=torch.int64, device=z.device)
        iterations = torch.zeros_like(status)
        index = valid.nonzero().squeeze(-1)
        if len(index):
            problem = StepProblem(system, flat[NUM_DATA:], *flat[:NUM_DATA], depenetration_speed=options.depenetration_speed)
            warm = None if warm_start is None else warm_start.detach().expand(*batch, system.num_unknowns).reshape(len(z), -1)
            if len(index) < len(z):
                problem, warm = problem.select(index), None if warm is None else warm[index]
            left = request.iterations_left(batch, z.device)[index]
            solution = solve_step(problem, warm, options, request.may_split, left, request.attempts)
            solved = (solution.status == int(Status.SUCCESS))[:, None]
            w[index, : system.num_unknowns] = torch.where(solved, solution.w, 0.0)
            status[index], iterations[index] = solution.status, solution.iterations
        return w.reshape(*batch, -1), status.reshape(batch), iterations.reshape(batch)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
        ctx.system, ctx.request, _, *tensors = inputs
        w, status, iterations = output
        ctx.mark_non_differentiable(status, iterations)
        save(ctx, w, status, *tensors)

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> tuple[Tensor | None, ...]:
        return StepTangentFunction.apply(ctx.system, ctx.request, *ctx.saved_tensors, *tangents[3:]), None, None

    @staticmethod
    def backward(ctx: Any, grad_w: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        needs = tuple(ctx.needs_input_grad[3:])
        if not any(needs):
            return (None,) * (3 + len(needs))
        return (None, None, None, *StepAdjointFunction.apply(ctx.system, ctx.request, needs, grad_w, *ctx.saved_tensors))

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], system: System, request: Request, warm_start: Tensor | None, *tensors: Tensor
    ) -> tuple[Any, Any]:
        names = system.step_specs()
        specs = [ParameterSpec(1), *names] if warm_start is not None else list(names)
        values = [warm_start, *tensors] if warm_start is not None else list(tensors)
        dims = list(in_dims[2:] if warm_start is not None else in_dims[3:])

        aligned = align(specs, dims, values)
        warm, data = (None, aligned) if warm_start is None else (aligned[0], aligned[1:])
        return StepFunction.apply(system, request, warm, *data), (0, 0, 0)


class SolvedStepFunction(torch.autograd.Function):
    """(system, request, w, status, z, u, wrench, *parameters) -> `StepFunction`'s w at a solution that is known, (..., num_unknowns)."""

    @staticmethod
    def forward(system: System, request: Request, w: Tensor, status: Tensor, *tensors: Tensor) -> Tensor:
        return torch.cat((w, w.new_zeros(*w.shape[:-1], request.num_shifts(system))), -1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.system, ctx.request, _, status, *tensors = inputs
        save(ctx, output, status, *tensors)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_w: Tensor) -> tuple[Tensor | None, ...]:
        needs = tuple(ctx.needs_input_grad[4:])
        if not any(needs):
            return (None,) * (4 + len(needs))
        return (None, None, None, None, *StepAdjointFunction.apply(ctx.system, ctx.request, needs, grad_w, *ctx.saved_tensors))


class StepAdjointFunction(torch.autograd.Function):
    """(system, request, needs, grad_w, w, status, z, u, wrench, *parameters) -> gradients of the last ones (None where not needed)."""

    @staticmethod
    @apart_from_hooks
    def forward(
        system: System, request: Request, needs: tuple[bool, ...], grad_w: Tensor, w: Tensor, status: Tensor, *tensors: Tensor
    ) -> tuple[Tensor | None, ...]:
        with torch.enable_grad():
            linear = LinearizedEquations(system, request, w, status, tensors, needs, grad_w.shape[:-1])
            if not len(linear.index):
                return tuple(torch.zeros_like(t) if need else None for t, need in zip(tensors, needs, strict=True))
            return linear.named(needs, linear.adjoint(linear.rows(grad_w)))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor | None, ...]) -> None:
        ctx.system, ctx.request, ctx.needs, *tensors = inputs
        save(ctx, *tensors)

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> tuple[Tensor | None, ...]:
        grad_w, w, status, *tensors = ctx.saved_tensors
        change, directions = tangents[3], tangents[6:]
        parts = [StepHessianFunction.apply(ctx.system, ctx.request, ctx.needs, grad_w, w, status, *tensors, *directions)]
        if change is not None:
            parts.append(StepAdjointFunction.apply(ctx.system, ctx.request, ctx.needs, change, w, status, *tensors))
        return tuple(None if column[0] is None else sum(column[1:], column[0]) for column in zip(*parts, strict=True))

    @staticmethod
    def backward(ctx: Any, *directions: Tensor | None) -> tuple[Any, ...]:
        grad_w, w, status, *tensors = ctx.saved_tensors
        needs = tuple(ctx.needs_input_grad[6:])
        change = StepTangentFunction.apply(ctx.system, ctx.request, w, status, *tensors, *directions) if ctx.needs_input_grad[3] else None
        grads: Any = (None,) * len(needs)
        if any(needs):
            grads = StepHessianFunction.apply(ctx.system, ctx.request, needs, grad_w, w, status, *tensors, *directions)
        return None, None, None, change, None, None, *grads

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], system: System, request: Request, needs: tuple[bool, ...], *values: Tensor
    ) -> tuple[Any, Any]:
        def call(*args: Tensor | None) -> tuple[Tensor | None, ...]:
            result: tuple[Tensor | None, ...] = StepAdjointFunction.apply(system, request, needs, *args)
            return result

        return map_gradients(system.step_specs(), needs, info.batch_size, in_dims[3:], values, call)


class StepTangentFunction(torch.autograd.Function):
    """(system, request, w, status, z, u, wrench, *parameters, *their tangents (None is zero)) -> the tangent of w."""

    @staticmethod
    @apart_from_hooks
    def forward(system: System, request: Request, w: Tensor, status: Tensor, *values: Tensor | None) -> Tensor:
        tensors, directions = halves(values)
        with torch.enable_grad():
            linear = LinearizedEquations(system, request, w, status, tensors, [d is not None for d in directions])
            result = w.new_zeros(linear.batch.numel(), system.num_unknowns + request.num_shifts(system))
            if len(linear.index):
                result[linear.index] = linear.tangent(directions)
            return result.reshape(*linear.batch, -1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.system, ctx.request, *tensors = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def jvp(ctx: Any, *_: Any) -> Any:
        raise RuntimeError(
            "torchdojo: forward mode over forward mode is not implemented for the step; take forward over reverse mode, "
            "torch.func.hessian or jacfwd of jacrev, which gives the same second derivatives"
        )

    @staticmethod
    def backward(ctx: Any, grad_w: Tensor) -> tuple[Any, ...]:
        w, status, *values = ctx.saved_tensors
        tensors, directions = halves(values)
        by_data, by_tangent = halves(ctx.needs_input_grad[4:])
        grads: tuple[Any, ...] = (None,) * len(tensors)
        if any(by_data):
            grads = StepHessianFunction.apply(ctx.system, ctx.request, tuple(by_data), grad_w, w, status, *tensors, *directions)
        changes: tuple[Any, ...] = (None,) * len(tensors)
        if any(by_tangent):
            changes = StepAdjointFunction.apply(ctx.system, ctx.request, tuple(by_tangent), grad_w, w, status, *tensors)
        return None, None, None, None, *grads, *changes

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], system: System, request: Request, *values: Tensor | None) -> tuple[Any, Any]:
        specs = [ParameterSpec(1), ParameterSpec(0), *system.step_specs(), *system.step_specs()]
        return StepTangentFunction.apply(system, request, *align_given(specs, map_given(info.batch_size, in_dims[2:], values))), 0


class StepHessianFunction(LastDerivative):
    """(system, request, needs, grad_w, w, status, z, u, wrench, *parameters, *directions) -> H(grad_w, directions).

    A direction that is None is zero. Results are None where not needed.
    """

    refusal = (
        "torchdojo: third derivatives through the step are not implemented; difference the second ones. (torch.autograd.functional.hvp "
        "takes a third one to transpose a second: use vhp, or torch.func.jvp of torch.func.grad)"
    )

    @staticmethod
    @apart_from_hooks
    def forward(
        system: System, request: Request, needs: tuple[bool, ...], grad_w: Tensor, w: Tensor, status: Tensor, *values: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        tensors, directions = halves(values)
        with torch.enable_grad():
            active = [need or d is not None for need, d in zip(needs, directions, strict=True)]
            linear = LinearizedEquations(system, request, w, status, tensors, active, grad_w.shape[:-1])
            if not len(linear.index):
                return tuple(torch.zeros_like(t) if need else None for t, need in zip(tensors, needs, strict=True))
            return linear.named(needs, linear.hessian(linear.rows(grad_w), directions))

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], system: System, request: Request, needs: tuple[bool, ...], *values: Tensor | None
    ) -> tuple[Any, Any]:
        def call(*args: Tensor | None) -> tuple[Tensor | None, ...]:
            result: tuple[Tensor | None, ...] = StepHessianFunction.apply(system, request, needs, *args)
            return result

        return map_gradients(system.step_specs(), needs, info.batch_size, in_dims[3:], values, call)
