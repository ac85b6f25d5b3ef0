"""The step as a differentiable function: implicit differentiation of the solved residual, with vmap rules.

At the solution r(w; z, u, θ) = 0, so dw = −R⁻¹ (∂r/∂z dz + ∂r/∂u du + ∂r/∂θ dθ) with R = ∂r/∂w. For a loss L with gradient g = ∂L/∂w,

    Rᵀ λ = g,        ∂L/∂(z, u, θ) = −λᵀ ∂r/∂(z, u, θ),

one transposed solve and one reverse pass through the residual, in which every tensor that enters it takes part, the weights of user-written
modules included (Howell et al. 2025, section V; implicit function theorem). Backward keeps the solution, not the factors.

With x for all data (z, u, θ), three linear maps make up all derivatives of first and second order, each an autograd Function:

    tangent  T(t) = −R⁻¹ ∂r/∂x t,     adjoint  A(g) = −(∂r/∂x)ᵀ R⁻ᵀ g,     Hessian  H(g, t) = ∂²(gᵀ w)/∂x² t.

T and A are each other's transposes, and the derivative of gᵀ T(t) and of A(g)ᵀ t by x is H(g, t). With λ = R⁻ᵀ g held fixed,

    H(g, t) = q_x + A(q_w),        (q_w, q_x) = −∂/∂(w, x) [ λᵀ (R T(t) + ∂r/∂x t) ]:

the second derivative of the residual alone, along (T(t), t), and what it does to w in turn (implicit function theorem, applied to
r(w, x) = 0 twice; w is a function of x throughout).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn, TypeVar, cast

import torch
from torch import Tensor
from torch.autograd import forward_ad

from torchdojo.dynamics.integrator import LARGEST_SINE, STATE_SIZE, TANGENT_SIZE
from torchdojo.dynamics.residual import StepProblem
from torchdojo.dynamics.system import ParameterSpec, System
from torchdojo.gradients.batching import align, align_given, loop, map_given, unbatchable
from torchdojo.gradients.hard_limit import better_of, derivative_system, point_of_derivative, warn_of_lost_digits
from torchdojo.gradients.impacts import can_bounce, shifted_by
from torchdojo.solver.interior_point import solve_step
from torchdojo.solver.options import GradientMode, OnFailure, SolverOptions, Status

__all__ = ["StepAdjointFunction", "StepFunction", "StepHessianFunction", "StepSettings", "StepTangentFunction"]

UNIT_TOLERANCE = 1e-6
Result = TypeVar("Result")


def transforming() -> bool:
    """Whether this runs inside a `torch.func` transform, where values of tensors cannot be read."""
    return torch._C._functorch.maybe_current_level() is not None


def forward_mode() -> bool:
    """Whether tensors may carry tangents: inside `torch.autograd.forward_ad.dual_level()`, which `torch.func.jvp` enters, too."""
    return forward_ad._current_level >= 0


def save(ctx: Any, *tensors: Tensor) -> None:
    """For backward, and, where tangents may be asked for, for `jvp`: what is saved for that goes with the graph only, past all hooks, and
    outputs among it would keep themselves alive."""
    ctx.save_for_backward(*tensors)
    if forward_mode():
        ctx.save_for_forward(*tensors)


def apart_from_hooks(forward: Callable[..., Result]) -> Callable[..., Result]:
    """Keep the caller's hooks of saved tensors from the graphs that are made and used up inside.

    To `torch.utils.checkpoint` and to offloading they look like parts of the caller's graph: a checkpoint would compute its whole segment
    again whenever the solver asks for a Jacobian, and inside of that again.
    """

    @functools.wraps(forward)
    def wrapped(*args: Any) -> Result:
        stack = torch._C._autograd
        hooks = []
        while (top := stack._top_saved_tensors_default_hooks(True)) is not None:
            hooks.append(top)
            stack._pop_saved_tensors_default_hooks()
        try:
            return forward(*args)
        finally:
            for pack, unpack in reversed(hooks):
                stack._push_saved_tensors_default_hooks(pack, unpack)

    return wrapped


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
    def num_shifts(self) -> int:
        """How many numbers follow the solution of `StepFunction`: in the limit κ → 0, where contacts may bounce."""
        follow = GradientMode(self.options.gradient_mode).needs_limit and can_bounce(self.system)
        return TANGENT_SIZE * self.system.num_bodies if follow else 0

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
    """(settings, warm_start, z, u, wrench, *parameters) -> (w, status, iterations); w is differentiable in z, u, wrench, parameters.

    The solution is followed by what instants of impacts add to the next state, on its tangent space: zeros, but with derivatives
    (solver/impacts.py), `StepSettings.num_shifts` of them.
    """

    @staticmethod
    @apart_from_hooks
    def forward(settings: StepSettings, warm_start: Tensor | None, *tensors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        system, options = settings.system, settings.options
        flat, batch = flatten_batch(settings.specs, [t.detach() for t in tensors])
        z = flat[0]
        valid = valid_environments(settings, flat)
        w = z.new_zeros(len(z), system.num_unknowns + settings.num_shifts)
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
            w[index, : system.num_unknowns] = torch.where(solved, solution.w, 0.0)
            status[index], iterations[index] = solution.status, solution.iterations
        return w.reshape(*batch, -1), status.reshape(batch), iterations.reshape(batch)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
        settings, _, *tensors = inputs
        w, status, iterations = output
        ctx.settings = settings
        ctx.mark_non_differentiable(status, iterations)
        save(ctx, w, status, *tensors)

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> tuple[Tensor | None, ...]:
        return StepTangentFunction.apply(ctx.settings, *ctx.saved_tensors, *tangents[2:]), None, None

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

        if unbatchable(specs, dims):
            return loop(info.batch_size, dims, values, call), (0, 0, 0)
        return call(*align(specs, dims, values)), (0, 0, 0)


class StepAdjointFunction(torch.autograd.Function):
    """(settings, needs, grad_w, w, status, z, u, wrench, *parameters) -> gradients of the last ones (None where not needed)."""

    @staticmethod
    @apart_from_hooks
    def forward(
        settings: StepSettings, needs: tuple[bool, ...], grad_w: Tensor, w: Tensor, status: Tensor, *tensors: Tensor
    ) -> tuple[Tensor | None, ...]:
        with torch.enable_grad():
            at = _Linearization(settings, w, status, tensors, needs, grad_w.shape[:-1])
            if not len(at.index):
                return tuple(torch.zeros_like(t) if need else None for t, need in zip(tensors, needs, strict=True))
            return at.named(needs, at.adjoint(at.rows(grad_w)))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor | None, ...]) -> None:
        ctx.settings, ctx.needs, *tensors = inputs
        save(ctx, *tensors)

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> tuple[Tensor | None, ...]:
        grad_w, w, status, *tensors = ctx.saved_tensors
        change, directions = tangents[2], tangents[5:]
        parts = [StepHessianFunction.apply(ctx.settings, ctx.needs, grad_w, w, status, *tensors, *directions)]
        if change is not None:
            parts.append(StepAdjointFunction.apply(ctx.settings, ctx.needs, change, w, status, *tensors))
        return tuple(None if column[0] is None else sum(column[1:], column[0]) for column in zip(*parts, strict=True))

    @staticmethod
    def backward(ctx: Any, *directions: Tensor | None) -> tuple[Any, ...]:
        grad_w, w, status, *tensors = ctx.saved_tensors
        needs = tuple(ctx.needs_input_grad[5:])
        change = StepTangentFunction.apply(ctx.settings, w, status, *tensors, *directions) if ctx.needs_input_grad[2] else None
        grads: Any = (None,) * len(needs)
        if any(needs):
            grads = StepHessianFunction.apply(ctx.settings, needs, grad_w, w, status, *tensors, *directions)
        return None, None, change, None, None, *grads

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], settings: StepSettings, needs: tuple[bool, ...], *values: Tensor) -> tuple[Any, Any]:
        def call(*args: Tensor | None) -> tuple[Tensor | None, ...]:
            result: tuple[Tensor | None, ...] = StepAdjointFunction.apply(settings, needs, *args)
            return result

        return _map_gradients(settings, needs, info.batch_size, in_dims[2:], values, call)


class StepTangentFunction(torch.autograd.Function):
    """(settings, w, status, z, u, wrench, *parameters, *their tangents (None is zero)) -> the tangent of w."""

    @staticmethod
    @apart_from_hooks
    def forward(settings: StepSettings, w: Tensor, status: Tensor, *values: Tensor | None) -> Tensor:
        tensors, directions = halves(values)
        with torch.enable_grad():
            at = _Linearization(settings, w, status, tensors, [d is not None for d in directions])
            result = w.new_zeros(at.batch.numel(), settings.system.num_unknowns + settings.num_shifts)
            if len(at.index):
                result[at.index] = at.tangent(directions)
            return result.reshape(*at.batch, -1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.settings, *tensors = inputs
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
        by_data, by_tangent = halves(ctx.needs_input_grad[3:])
        grads: tuple[Any, ...] = (None,) * len(tensors)
        if any(by_data):
            grads = StepHessianFunction.apply(ctx.settings, tuple(by_data), grad_w, w, status, *tensors, *directions)
        changes: tuple[Any, ...] = (None,) * len(tensors)
        if any(by_tangent):
            changes = StepAdjointFunction.apply(ctx.settings, tuple(by_tangent), grad_w, w, status, *tensors)
        return None, None, None, *grads, *changes

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], settings: StepSettings, *values: Tensor | None) -> tuple[Any, Any]:
        def call(*args: Tensor | None) -> tuple[Tensor]:
            return (StepTangentFunction.apply(settings, *args),)

        specs = [ParameterSpec(1, True), ParameterSpec(0, True), *settings.specs, *settings.specs]
        if any(not spec.batched for spec in specs):
            return loop(info.batch_size, in_dims[1:], values, call)[0], 0
        return call(*align_given(specs, map_given(info.batch_size, in_dims[1:], values)))[0], 0


class StepHessianFunction(torch.autograd.Function):
    """(settings, needs, grad_w, w, status, z, u, wrench, *parameters, *directions (None is zero)) -> H(grad_w, directions) where needed."""

    @staticmethod
    @apart_from_hooks
    def forward(
        settings: StepSettings, needs: tuple[bool, ...], grad_w: Tensor, w: Tensor, status: Tensor, *values: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        tensors, directions = halves(values)
        with torch.enable_grad():
            active = [need or d is not None for need, d in zip(needs, directions, strict=True)]
            at = _Linearization(settings, w, status, tensors, active, grad_w.shape[:-1])
            if not len(at.index):
                return tuple(torch.zeros_like(t) if need else None for t, need in zip(tensors, needs, strict=True))
            return at.named(needs, at.hessian(at.rows(grad_w), directions))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor | None, ...]) -> None:
        pass

    @staticmethod
    def jvp(ctx: Any, *_: Any) -> Any:
        refuse_third_derivative()

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        refuse_third_derivative()

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], settings: StepSettings, needs: tuple[bool, ...], *values: Tensor | None
    ) -> tuple[Any, Any]:
        def call(*args: Tensor | None) -> tuple[Tensor | None, ...]:
            result: tuple[Tensor | None, ...] = StepHessianFunction.apply(settings, needs, *args)
            return result

        return _map_gradients(settings, needs, info.batch_size, in_dims[2:], values, call)


def refuse_third_derivative() -> NoReturn:
    raise RuntimeError(
        "torchdojo: third derivatives through the step are not implemented; difference the second ones. (torch.autograd.functional.hvp "
        "takes a third one to transpose a second: use vhp, or torch.func.jvp of torch.func.grad)"
    )


class _Linearization:
    """The equations of the solved environments of a batch, factored where derivatives are taken. To be made with grad enabled."""

    def __init__(
        self,
        settings: StepSettings,
        w: Tensor,
        status: Tensor,
        tensors: Sequence[Tensor],
        active: Sequence[bool],
        batch: Sequence[int] = (),
    ) -> None:
        self.leaves = [t.detach().requires_grad_(need) for t, need in zip(tensors, active, strict=True)]
        # The solution takes part in the broadcast: its gradient may have batch dimensions that no input has (under vmap).
        batch = torch.broadcast_shapes(batch, w.shape[:-1])
        flat, self.batch = flatten_batch([*settings.specs, ParameterSpec(1, True)], [*self.leaves, torch.empty(*batch, 1)])
        self.index = (status.expand(self.batch).reshape(-1) == int(Status.SUCCESS)).nonzero().squeeze(-1)
        if not len(self.index):
            return
        problem = StepProblem(settings.system, flat[3:-1], *flat[:3]).select(self.index)
        self.split = [settings.system.num_unknowns, settings.num_shifts]
        solved = self.rows(w)[:, : self.split[0]]
        with torch.no_grad():
            kappas = settings.kappas(self.batch, self.index)
            warn_of_lost_digits(problem, solved, settings.options, kappas)
            solution = point_of_derivative(problem, solved, settings.options, kappas)
            self.kkt, self.refinements = derivative_system(problem, solution, settings.options)
        self.shift: Tensor | None = None
        shifted = shifted_by(problem, solved, solution, settings.options) if self.split[1] else None
        if shifted is not None:
            problem, self.shift = shifted
        self.problem, self.mode = problem, GradientMode(settings.options.gradient_mode)
        self.w = solution.requires_grad_()
        self.residual = problem.residual(self.w)

    def rows(self, tensor: Tensor) -> Tensor:
        """(..., n) of the batch -> (solved environments, n)."""
        return tensor.detach().expand(*self.batch, tensor.shape[-1]).reshape(self.batch.numel(), tensor.shape[-1])[self.index]

    def named(self, needs: Sequence[bool], found: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
        """Gradients of those that are needed, zeros where nothing was found."""
        filled = (torch.zeros_like(leaf) if grad is None else grad for leaf, grad in zip(self.leaves, found, strict=True))
        return tuple(grad.detach() if need else None for grad, need in zip(filled, needs, strict=True))

    def pull(
        self, multiplier: Tensor, targets: Sequence[Tensor], create_graph: bool = False, residual: Tensor | None = None
    ) -> list[Tensor | None]:
        """multiplierᵀ ∂r/∂(targets); None for those that r does not depend on."""
        residual = self.residual if residual is None else residual
        wanted = [t for t in targets if t.requires_grad]
        if not wanted:
            return [None] * len(targets)
        found = iter(torch.autograd.grad(residual, wanted, multiplier, retain_graph=True, create_graph=create_graph, allow_unused=True))
        return [next(found) if t.requires_grad else None for t in targets]

    def adjoint(self, grad_w: Tensor) -> list[Tensor | None]:
        """A(grad_w)."""
        residual = self.residual
        grad_w, grad_shift = grad_w.split(self.split, dim=-1)
        direct = [None] * len(self.leaves) if self.shift is None else self.pull(grad_shift, self.leaves, residual=self.shift)
        with torch.no_grad():
            multiplier = self.kkt.solve_transposed(grad_w, self.refinements)
            if self.mode is GradientMode.COMPLEMENTARITY_AWARE:
                multiplier, point = better_of(self.problem, self.w, multiplier, grad_w)
        if self.mode is GradientMode.COMPLEMENTARITY_AWARE:
            residual = self.problem.residual(point)
        return added(direct, self.pull(-multiplier, self.leaves, residual=residual))

    def tangent(self, directions: Sequence[Tensor | None]) -> Tensor:
        """T(directions), (solved environments, n)."""
        if self.mode is GradientMode.COMPLEMENTARITY_AWARE:
            raise RuntimeError("torchdojo: gradient_mode='complementarity_aware' depends on a loss, and forward mode has none; use 'exact'")
        moved, *shifts = pushforward([self.residual, *([] if self.shift is None else [self.shift])], self.leaves, directions)
        with torch.no_grad():
            shift = shifts[0] if shifts else moved.new_zeros(len(moved), self.split[1])
            return torch.cat((-self.kkt.solve(moved, self.refinements), shift), dim=-1)

    def hessian(self, grad_w: Tensor, directions: Sequence[Tensor | None]) -> list[Tensor | None]:
        """H(grad_w, directions)."""
        if self.mode.needs_limit:
            raise RuntimeError(
                f"torchdojo: second derivatives are those of the central path, and gradient_mode={self.mode.value!r} is its limit; "
                "use 'central_path'"
            )
        along = [self.tangent(directions), *directions]
        with torch.no_grad():
            multiplier = self.kkt.solve_transposed(grad_w)
        targets = [self.w, *self.leaves]
        change = inner(self.pull(multiplier, targets, create_graph=True), along)
        if change is None or not change.requires_grad:
            return [None] * len(self.leaves)
        wanted = [t for t in targets if t.requires_grad]
        found = iter(torch.autograd.grad(-change, wanted, retain_graph=True, allow_unused=True))
        by_w, *direct = [next(found) if t.requires_grad else None for t in targets]
        carried = [None] * len(direct) if by_w is None else self.adjoint(by_w)
        return added(direct, carried)


def added(first: Sequence[Tensor | None], second: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Sums of pairs, of which any may be missing."""
    return [b if a is None else a if b is None else a + b for a, b in zip(first, second, strict=True)]


def pushforward(outputs: Sequence[Tensor], leaves: Sequence[Tensor], directions: Sequence[Tensor | None]) -> list[Tensor]:
    """Tangents of outputs from those of the leaves they were computed from (None is zero): the transpose of the transpose.

    Their gradients are linear in the cotangents y, so ∂/∂y of their product with the directions is the tangent. Two reverse passes, which
    need nothing but reverse formulas of whatever users write into residuals. The graph is kept.
    """
    pairs = [(leaf, d) for leaf, d in zip(leaves, directions, strict=True) if d is not None and leaf.requires_grad]
    cotangents = [torch.zeros_like(output, requires_grad=True) for output in outputs]
    if not pairs:
        return [cotangent.detach() for cotangent in cotangents]
    grads = torch.autograd.grad(
        list(outputs), [leaf for leaf, _ in pairs], cotangents, retain_graph=True, create_graph=True, allow_unused=True
    )
    change = inner(grads, [d for _, d in pairs])
    if change is None or not change.requires_grad:
        return [cotangent.detach() for cotangent in cotangents]
    return [t.detach() for t in torch.autograd.grad(change, cotangents, retain_graph=True, materialize_grads=True)]


def inner(a: Sequence[Tensor | None], b: Sequence[Tensor | None]) -> Tensor | None:
    """Sum of products of pairs that are both there; None where there are none."""
    terms = [(x * y.detach()).sum() for x, y in zip(a, b, strict=True) if x is not None and y is not None]
    return sum(terms[1:], terms[0]) if terms else None


def halves(values: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Tensors and their directions, which follow them."""
    middle = len(values) // 2
    return list(values[:middle]), list(values[middle:])


def _map_gradients(
    settings: StepSettings,
    needs: Sequence[bool],
    size: int,
    dims: Sequence[int | None],
    values: Sequence[Tensor | None],
    call: Callable[..., tuple[Tensor | None, ...]],
) -> tuple[tuple[Tensor | None, ...], tuple[int | None, ...]]:
    """The vmap rule of a call (grad_w, w, status, z, u, wrench, *parameters, ...) -> gradients of z, ..., parameters."""
    specs, out_dims = settings.specs, tuple(0 if need else None for need in needs)
    if any(not spec.batched for spec in specs):
        return loop(size, dims, values, call), out_dims
    mapped = map_given(size, dims, values)
    lead = [ParameterSpec(1, True), ParameterSpec(1, True), ParameterSpec(0, True)]
    grads = call(*align_given([*lead, *(specs * 2)[: len(values) - 3]], mapped))
    data = cast(list[Tensor], mapped[3 : 3 + len(specs)])
    return tuple(None if grad is None else grad.reshape(value.shape) for grad, value in zip(grads, data, strict=True)), out_dims
