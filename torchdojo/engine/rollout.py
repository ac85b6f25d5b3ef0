"""Rollouts: their result, the loop that takes steps one by one, and segments whose graphs are not kept."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple, Protocol, cast

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint as checkpointed

from torchdojo.engine.adaptive import AdaptiveOptions, AdaptiveSteps
from torchdojo.engine.backends import Backends, Kernel
from torchdojo.gradients.reference_step import StepOutput
from torchdojo.gradients.request import Request
from torchdojo.parameters import transforming
from torchdojo.structure import Structure

__all__ = ["Policy", "StepByStep", "Trajectory", "rollout", "segment_length"]

Policy = Callable[[Tensor], Tensor]


class Trajectory(NamedTuple):
    """Result of a rollout: z (..., T+1, 13 nb), u (..., T, nu), impulses (..., T, n), status, iterations and substeps (..., T)."""

    z: Tensor
    u: Tensor
    impulses: Tensor
    status: Tensor
    iterations: Tensor
    substeps: Tensor


#: Maps z, u, a number of steps and a warm start to the trajectory and the solution of the last step.
Run = Callable[[Tensor, Tensor | Policy | None, int, Tensor | None], tuple[Trajectory, Tensor | None]]


def rollout(
    backends: Backends,
    request: Request,
    z: Tensor,
    u: Tensor | Policy | None,
    steps: int,
    wrench: Tensor | None,
    adaptive: AdaptiveOptions | None,
    length: int,
) -> Trajectory:
    """`Mechanism.rollout` on a checked z, in segments of `length` steps."""
    structure = backends.structure
    kernel = None if callable(u) or adaptive else backends.kernel(request)
    if kernel is not None:
        zero = z.new_zeros(steps, structure.num_inputs)
        z, u, wrench = structure.check_inputs(z, zero if u is None else cast(Tensor, u), wrench)
        return in_segments(KernelRun(kernel, wrench), z, u, steps, length)
    stepper: Stepper = AdaptiveSteps(backends, request, adaptive) if adaptive else backends.select(request)
    return in_segments(StepByStep(structure, stepper, wrench), z, u, steps, length)


class KernelRun:
    """A `Run` in one call of the kernel, on checked inputs."""

    def __init__(self, kernel: Kernel, wrench: Tensor) -> None:
        self.kernel, self.wrench = kernel, wrench

    def __call__(self, z: Tensor, u: Tensor | Policy | None, steps: int, warm: Tensor | None) -> tuple[Trajectory, Tensor | None]:
        inputs = cast(Tensor, u)
        path, impulses, w, *counts = self.kernel.rollout(z, inputs, self.wrench, warm)
        return Trajectory(path, inputs.expand(*path.shape[:-2], *inputs.shape[-2:]), impulses, *counts), w.select(-2, -1).detach()


class Stepper(Protocol):
    """An object that takes one step of a rollout: a backend, `AdaptiveSteps`, or a fitted model. u and wrench are given."""

    def step(self, z: Tensor, u: Tensor, wrench: Tensor, warm_start: Tensor | None) -> StepOutput: ...


class StepByStep:
    """A `Run` that takes one `step` of a backend at a time, each warm-started from the step before."""

    def __init__(self, structure: Structure, stepper: Stepper, wrench: Tensor | None) -> None:
        self.structure, self.stepper, self.wrench = structure, stepper, wrench

    def __call__(self, z: Tensor, u: Tensor | Policy | None, steps: int, warm: Tensor | None) -> tuple[Trajectory, Tensor | None]:
        states, inputs, outputs = [z], [], []
        for t in range(steps):
            now = u[..., t, :] if isinstance(u, Tensor) else z.new_zeros(self.structure.num_inputs) if u is None else u(z)
            out = self.stepper.step(*self.structure.check_inputs(z, now, self.wrench), warm)
            z, warm = out.z, out.solution.detach()
            states.append(z)
            inputs.append(now)
            outputs.append(out)
        batch = z.shape[:-1]

        def stack(values: list[Tensor]) -> Tensor:
            return torch.stack([v.expand(*batch, v.shape[-1]) for v in values], dim=-2)

        path = Trajectory(
            stack(states),
            stack(inputs),
            stack([o.impulses for o in outputs]),
            torch.stack([o.status for o in outputs], -1),
            torch.stack([o.iterations for o in outputs], -1),
            torch.stack([o.substeps for o in outputs], -1),
        )
        return path, warm


# -- checkpoints -------------------------------------------------------------------------------------------------------------------------


def segment_length(checkpoint: object, steps: int) -> int:
    """Steps per segment for `checkpoint=` of a rollout: all steps for False, √T for True.

    Raises:
        TypeError, ValueError: not a bool or a number of steps. RuntimeError: inside a `torch.func` transform or `torch.compile`.
    """
    if checkpoint is False:
        return steps
    if not isinstance(checkpoint, (bool, int)):
        raise TypeError(f"checkpoint: got {checkpoint!r}; allowed: True, False, or the number of steps per segment")
    if checkpoint < 1:
        raise ValueError(f"checkpoint: got {checkpoint}; allowed: True, False, or 1 or more steps per segment")
    if torch.compiler.is_compiling() or transforming():
        raise RuntimeError(
            "rollout(checkpoint=...) computes segments again in .backward(), which torch.func and torch.compile do not run; use "
            "checkpoint=False there, or call torch.autograd.grad outside of them"
        )
    return math.isqrt(steps - 1) + 1 if checkpoint is True else checkpoint


def in_segments(run: Run, z: Tensor, u: Tensor | Policy | None, steps: int, length: int) -> Trajectory:
    """A rollout in segments of `length` steps. Autograd keeps the start of each segment, and runs the segment again in backward.

    With segments of √T steps, memory grows as √T for one more forward pass (Griewank and Walther 2008, "Evaluating Derivatives", section
    12.3).
    """
    if length >= steps:
        return run(z, u, steps, None)[0]
    pieces: list[Trajectory] = []
    warm: Tensor | None = None
    for first in range(0, steps, length):
        count = min(length, steps - first)
        part = u[..., first : first + count, :] if isinstance(u, Tensor) else u
        path, warm = cast(tuple[Trajectory, Tensor | None], checkpointed(run, z, part, count, warm, use_reentrant=False))
        # These are copies, since views would keep the whole segment.
        z, warm = path.z[..., -1, :].clone(), None if warm is None else warm.clone()
        pieces.append(path)
    columns = [list(column) for column in zip(*pieces, strict=True)]
    columns[0][1:] = [states[..., 1:, :] for states in columns[0][1:]]
    del path, pieces
    joined: list[Tensor] = []
    while columns:  # each column is dropped before the next one is put together
        column = columns.pop(0)
        joined.append(torch.cat(column, dim=-2 if len(joined) < 3 else -1))
        del column
    return Trajectory(*joined)
