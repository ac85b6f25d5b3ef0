"""Steps that are too fast for their timestep: shorter ones replace them before the ladder of attempts is climbed.

A step of length h turns a body by an increment with the sine a = (h/2) ω. Its momentum J ω √(1 − |a|²) is, in units of 2 J/h,

    l = a √(1 − |a|²) ≤ ½,      largest at |a| = 1/√2.

A body that spins faster before the step, or that impulses bring to a larger momentum, has no whole step. Every attempt of the ladder
would fail, at a cost of hundreds of iterations. Speeds before the step are seen at once. Impulses, and the bodies that joints carry along,
are in Newton's direction δ at a point a: to first order it leads to

    l = c a + c δ − a (a·δ)/c,      c = √(1 − |a|²),

which unlike a + δ does not overshoot where the momentum is flat. Directions exaggerate where contacts change. So one look is taken at the
iteration SPEED_ITERATIONS of the first attempt, and one where the first attempt fails. Both look only at bodies that have come near the
limit, and that were on the way to it before the step.

`scripts/bench_violent.py` measures the cost: a quadruped under random torques of ±30 N·m at h = 0.01 takes 6.9 iterations per substep, and
4.4 per step at h = 0.005, where nothing is split. None of 100,000 steps of thrown cubes at h = 0.01 is split.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchdojo.dynamics.integrator import LARGEST_SINE
from torchdojo.dynamics.residual import StepProblem

__all__ = [
    "DRIVEN_SINE",
    "MOST_MOMENTUM",
    "NEAR_MOMENTUM",
    "NEAR_SINE",
    "SPEED_ITERATIONS",
    "START_SINE",
    "TOO_FAST",
    "momentum_ahead",
    "starts_too_fast",
]

TOO_FAST = 4  # a status beyond the values of `Status`, which no step returns: shorter steps replace this one
SPEED_ITERATIONS = 5  # iterations of the first attempt after which its direction is looked at
MOST_MOMENTUM = 0.5  # l from which on a step is split there
NEAR_MOMENTUM = 0.3  # … and where the first attempt has failed
NEAR_SINE = 0.4  # least |a| at that point of a body that counts
START_SINE, DRIVEN_SINE = 0.25, 0.15  # … and before the step: without, and with inputs or wrenches


def starts_too_fast(problem: StepProblem) -> Tensor:
    """Whether some body spins faster before the step than any body may after it, (N,)."""
    return (_sine(problem, problem.state.twist.omega) > LARGEST_SINE).any(-1)


def momentum_ahead(problem: StepProblem, w: Tensor, direction: Tensor) -> Tensor:
    """The largest |l| to which a direction at w leads a body that counts, or zero, (N,)."""
    half = 0.5 * problem.timestep[:, None, None]
    a, change = (half * problem.system.twists(x)[..., 3:] for x in (w, direction))
    c = torch.sqrt(1 - (a * a).sum(-1, keepdim=True))
    momentum = torch.linalg.vector_norm(c * (a + change) - (a * change).sum(-1, keepdim=True) / c * a, dim=-1)
    driven = torch.cat((problem.u, problem.wrench), dim=-1).ne(0).any(-1, keepdim=True)
    least = torch.where(driven, DRIVEN_SINE, START_SINE)
    counts = (torch.linalg.vector_norm(a, dim=-1) > NEAR_SINE) & (_sine(problem, problem.state.twist.omega) > least)
    return torch.where(counts, momentum, 0.0).amax(-1)


def _sine(problem: StepProblem, omega: Tensor) -> Tensor:
    return 0.5 * problem.timestep[:, None] * torch.linalg.vector_norm(omega, dim=-1)
