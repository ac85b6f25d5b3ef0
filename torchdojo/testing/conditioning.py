"""How well conditioned the linear system of a step is: the one of Newton's method and of the gradient (Howell et al. 2025, Figure 10)."""

from __future__ import annotations

import torch
from torch import Tensor

from torchdojo.dynamics.residual import StepProblem
from torchdojo.gradients.batching import flatten_batch
from torchdojo.mechanism import Mechanism
from torchdojo.state.tangent import local_jacobian
from torchdojo.state.unknowns import NUM_DATA

__all__ = ["balanced", "derivative", "step_problem"]

MOST_BALANCING = 2000  # rounds; entries span fifteen orders of magnitude where a gap is a nanometer


def step_problem(mech: Mechanism, z: Tensor, u: Tensor | None = None, wrench: Tensor | None = None) -> StepProblem:
    """The equations of one step from z (13 nb,) with u (nu,) and wrench (6 nb,), zero by default."""
    u = z.new_zeros(mech.num_inputs) if u is None else u
    wrench = z.new_zeros(6 * mech.num_bodies) if wrench is None else wrench
    system = mech.backends.system_on_device()
    flat, _ = flatten_batch(system.step_specs(), [z, u, wrench, *mech.stacked_parameters()])
    return StepProblem(system, flat[NUM_DATA:], *flat[:NUM_DATA], depenetration_speed=mech.options.depenetration_speed)


def derivative(problem: StepProblem, w: Tensor) -> Tensor:
    """Derivative (n, n) of the residual of one environment with respect to its unknowns w (n,)."""
    return local_jacobian(problem.residual, w[None])[1][0]


def balanced(matrix: Tensor) -> Tensor:
    """Rows and columns scaled until all have length 1 to within a percent, (n, n) (Ruiz 2001)."""
    squares = matrix.square()
    rows, columns = matrix.new_ones(len(matrix)), matrix.new_ones(matrix.shape[1])  # squares of the factors
    along = rows @ squares
    for _ in range(MOST_BALANCING):  # hundreds: products with vectors are much faster than new matrices
        columns = columns / (columns * along).sqrt()
        across = squares @ columns
        rows = rows / (rows * across).sqrt()
        along = rows @ squares
        lengths = torch.cat((columns * along, rows * across)).sqrt()
        if float((lengths - 1).abs().max()) < 0.01:
            break
    return rows.sqrt()[:, None] * matrix * columns.sqrt()
