"""The equations of a step linearized at its solution: the maps T, A and H, which implicit.py derives."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torchdojo.dynamics.residual import StepProblem
from torchdojo.dynamics.system import System
from torchdojo.gradients.batching import flatten_batch
from torchdojo.gradients.hard_limit import better_of, derivative_system, point_of_derivative, warn_of_lost_digits
from torchdojo.gradients.impacts import shifted_by
from torchdojo.gradients.request import Request
from torchdojo.parameters import broadcast_shapes
from torchdojo.solver.options import GradientMode, Status
from torchdojo.state.unknowns import NUM_DATA, ParameterSpec

__all__ = ["LinearizedEquations", "pushforward"]


class LinearizedEquations:
    """The equations of the solved environments of a batch, factored where derivatives are taken. Construct it with grad enabled."""

    def __init__(
        self,
        system: System,
        request: Request,
        w: Tensor,
        status: Tensor,
        tensors: Sequence[Tensor],
        active: Sequence[bool],
        batch: Sequence[int] = (),
    ) -> None:
        self.leaves = [t.detach().requires_grad_(need) for t, need in zip(tensors, active, strict=True)]
        # The solution takes part in the broadcast: under vmap, its gradient may have batch dimensions that no input has.
        batch = broadcast_shapes(batch, w.shape[:-1])
        flat, self.batch = flatten_batch([*system.step_specs(), ParameterSpec(1)], [*self.leaves, torch.empty(*batch, 1)])
        self.index = (status.expand(self.batch).reshape(-1) == int(Status.SUCCESS)).nonzero().squeeze(-1)
        if not len(self.index):
            return
        speed = request.options.depenetration_speed
        problem = StepProblem(system, flat[NUM_DATA:-1], *flat[:NUM_DATA], depenetration_speed=speed).select(self.index)
        self.split = [system.num_unknowns, request.num_shifts(system)]
        solved = self.rows(w)[:, : self.split[0]]
        with torch.no_grad():
            kappas = request.kappas(self.batch, self.index)
            warn_of_lost_digits(problem, solved, request.options, kappas)
            solution = point_of_derivative(problem, solved, request.options, kappas)
            self.kkt, self.refinements = derivative_system(problem, solution, request.options)
        self.shift: Tensor | None = None
        shifted = shifted_by(problem, solved, solution, request.options) if self.split[1] else None
        if shifted is not None:
            problem, self.shift = shifted
        self.problem, self.mode = problem, request.mode
        self.w = solution.requires_grad_()
        self.residual = problem.residual(self.w)

    def rows(self, tensor: Tensor) -> Tensor:
        """(..., n) of the batch -> (solved environments, n)."""
        return tensor.detach().expand(*self.batch, tensor.shape[-1]).reshape(self.batch.numel(), tensor.shape[-1])[self.index]

    def named(self, needs: Sequence[bool], grads: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
        """Gradients of the leaves that need one, zeros where `grads` has none."""
        filled = (torch.zeros_like(leaf) if grad is None else grad for leaf, grad in zip(self.leaves, grads, strict=True))
        return tuple(grad.detach() if need else None for grad, need in zip(filled, needs, strict=True))

    def pull(
        self, multiplier: Tensor, targets: Sequence[Tensor], create_graph: bool = False, residual: Tensor | None = None
    ) -> list[Tensor | None]:
        """multiplierᵀ ∂r/∂(targets); None for targets that r does not depend on."""
        residual = self.residual if residual is None else residual
        wanted = [t for t in targets if t.requires_grad]
        if not wanted:
            return [None] * len(targets)
        grads = iter(torch.autograd.grad(residual, wanted, multiplier, retain_graph=True, create_graph=create_graph, allow_unused=True))
        return [next(grads) if t.requires_grad else None for t in targets]

    def adjoint(self, grad_w: Tensor) -> list[Tensor | None]:
        """The adjoint A(grad_w)."""
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
        """The tangent T(directions), (solved environments, n)."""
        if self.mode is GradientMode.COMPLEMENTARITY_AWARE:
            raise RuntimeError("torchdojo: gradient_mode='complementarity_aware' depends on a loss, and forward mode has none; use 'exact'")
        moved, *shifts = pushforward([self.residual, *([] if self.shift is None else [self.shift])], self.leaves, directions)
        with torch.no_grad():
            shift = shifts[0] if shifts else moved.new_zeros(len(moved), self.split[1])
            return torch.cat((-self.kkt.solve(moved, self.refinements), shift), dim=-1)

    def hessian(self, grad_w: Tensor, directions: Sequence[Tensor | None]) -> list[Tensor | None]:
        """The Hessian product H(grad_w, directions)."""
        if self.mode.needs_limit:
            raise RuntimeError(
                f"torchdojo: second derivatives exist on the central path, and gradient_mode={self.mode.value!r} is its hard limit; "
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
        grads = iter(torch.autograd.grad(-change, wanted, retain_graph=True, allow_unused=True))
        by_w, *direct = [next(grads) if t.requires_grad else None for t in targets]
        carried = [None] * len(direct) if by_w is None else self.adjoint(by_w)
        return added(direct, carried)


def added(first: Sequence[Tensor | None], second: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Sum of each pair; any tensor may be missing."""
    return [b if a is None else a if b is None else a + b for a, b in zip(first, second, strict=True)]


def pushforward(outputs: Sequence[Tensor], leaves: Sequence[Tensor], directions: Sequence[Tensor | None]) -> list[Tensor]:
    """Tangents of outputs along directions of their leaves, of which None is zero: the transpose of the transpose.

    Gradients of the leaves are linear in the cotangents y, so ∂/∂y of their product with the directions is the tangent. These two reverse
    passes need only reverse formulas of the operations in users' residuals. The graph is kept.
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
    """Sum of the products of complete pairs; None without any."""
    terms = [(x * y.detach()).sum() for x, y in zip(a, b, strict=True) if x is not None and y is not None]
    return sum(terms[1:], terms[0]) if terms else None
