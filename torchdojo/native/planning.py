"""Calls of the kernel for planning, in one call each: a step with its Jacobian, and rollouts under linear feedback.

They are not differentiable, and no `torch.func` transform and no `torch.compile` sees them.
"""

from __future__ import annotations

from torch import Tensor

from torchdojo.gradients.reference_step import StepOutput
from torchdojo.gradients.request import Request
from torchdojo.native import execution, minimal
from torchdojo.native.cache import Parameters
from torchdojo.native.execution import Six
from torchdojo.native.feedback import Feedback
from torchdojo.native.kernel import Keep, Outputs
from torchdojo.native.program import Program

__all__ = ["linearize", "minimal_linearize", "rollout_feedback"]


def linearize(
    program: Program,
    request: Request,
    parameters: Parameters,
    z: Tensor,
    u: Tensor,
    wrench: Tensor,
    warm: Tensor | None,
    out: Tensor | None = None,
) -> tuple[StepOutput, Tensor]:
    """A step and its Jacobian (..., 12 nb, 12 nb + nu)."""
    given = z, u.unsqueeze(-2), wrench, warm, parameters.tensors, parameters
    return _with_jacobian(*execution.linearize(program, request, *given, out))


def minimal_linearize(
    program: Program,
    request: Request,
    parameters: Parameters,
    q: Tensor,
    qd: Tensor,
    u: Tensor,
    wrench: Tensor,
    warm: Tensor | None,
    out: Tensor | None = None,
) -> tuple[StepOutput, Tensor]:
    """A step from q and qd and its Jacobian (..., 2n, 2n + nu) in minimal coordinates."""
    given = q, qd, u.unsqueeze(-2), wrench, warm, parameters.tensors, parameters
    return _with_jacobian(*minimal.linearize(program, request, *given, out))


def _with_jacobian(jacobian: Tensor, solved: Outputs) -> tuple[StepOutput, Tensor]:
    """The results of one step, whose batch dimensions are those of the Jacobian."""
    after = solved.z[:, 1], solved.impulses[:, 0], solved.w[:, 0], solved.status[:, 0], solved.iterations[:, 0], solved.substeps[:, 0]
    z, impulses, w, status, iterations, substeps = (t.reshape((*jacobian.shape[:-2], *t.shape[1:])) for t in after)
    return StepOutput(z, impulses, status, iterations, w, substeps), jacobian


def rollout_feedback(
    program: Program,
    request: Request,
    parameters: Parameters,
    z: Tensor,
    law: Feedback,
    wrench: Tensor,
    warm: Tensor | None,
    keep_solutions: bool,
) -> tuple[Tensor, Six]:
    """The inputs or controls (..., P, m) that a feedback law gives, and the rollout under them."""
    inputs = z.new_empty(*law.batch, *law.input.shape[1:])
    problem, batch = execution.flat_problem(program, request, parameters.tensors, parameters, z, inputs, wrench, warm)
    keep = Keep.PERIODS if keep_solutions else Keep.LAST
    return inputs, execution.checked_rollout(problem._replace(feedback=law), keep, batch)
