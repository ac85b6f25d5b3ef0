"""Many steps: what a rollout returns, and the loop that takes them one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from torchdojo.stepping import StepOutput

__all__ = ["Policy", "Stepper", "Trajectory", "step_by_step"]

Policy = Callable[[Tensor], Tensor]
Stepper = Callable[[Tensor, Tensor | None, Tensor | None], StepOutput]  # of z, u and a warm start


class Trajectory(NamedTuple):
    """Result of a rollout: z (..., T+1, 13 nb), u (..., T, nu), impulses (..., T, n), status, iterations and substeps (..., T)."""

    z: Tensor
    u: Tensor
    impulses: Tensor
    status: Tensor
    iterations: Tensor
    substeps: Tensor


def step_by_step(take: Stepper, z: Tensor, u: Tensor | Policy | None, steps: int, num_inputs: int) -> Trajectory:
    """`Mechanism.rollout` with a step function, each step warm-started from the one before."""
    states, inputs, outputs = [z], [], []
    warm: Tensor | None = None
    for t in range(steps):
        now = u[..., t, :] if isinstance(u, Tensor) else z.new_zeros(num_inputs) if u is None else u(z)
        out = take(z, now, warm)
        z, warm = out.z, out.solution.detach()
        states.append(z)
        inputs.append(now)
        outputs.append(out)
    batch = z.shape[:-1]

    def stack(values: list[Tensor]) -> Tensor:
        return torch.stack([v.expand(*batch, v.shape[-1]) for v in values], dim=-2)

    return Trajectory(
        stack(states),
        stack(inputs),
        stack([o.impulses for o in outputs]),
        torch.stack([o.status for o in outputs], -1),
        torch.stack([o.iterations for o in outputs], -1),
        torch.stack([o.substeps for o in outputs], -1),
    )
