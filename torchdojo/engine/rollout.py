"""Rollouts: their result, the loop that takes steps one by one, and segments whose graphs are not kept."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple, cast

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint as checkpointed

from torchdojo.elements.actuators import Actuators
from torchdojo.engine.adaptive import AdaptiveOptions, AdaptiveSteps
from torchdojo.engine.backends import Backends, Kernel
from torchdojo.engine.periods import Periods, Stepper, check_given
from torchdojo.gradients.request import Request
from torchdojo.parameters import transforming
from torchdojo.structure import Structure

__all__ = ["Policy", "StepByStep", "Trajectory", "rollout", "segment_length"]

Policy = Callable[[Tensor], Tensor]


class Trajectory(NamedTuple):
    """Result of a rollout of T periods, each of `repeat` steps, which is one step if not given.

    z: (..., T+1, 13 nb) states at the start and after each period.
    u: (..., T, nu) inputs [N, N·m], or the controls (..., T, number of actuators) where `ctrl` is given.
    impulses: (..., T, n) sums over the steps of a period [N·s, N·m·s].
    status: (..., T) the worst of the steps of a period, which is the largest value. iterations, substeps: (..., T) their sums.
    solution: (..., 1, num_unknowns) of the last step, or (..., T, num_unknowns) of the last step of each period with `keep_solutions`. So
        ``solution[..., -1, :]`` is the `warm_start` that continues the rollout.
    """

    z: Tensor
    u: Tensor
    impulses: Tensor
    status: Tensor
    iterations: Tensor
    substeps: Tensor
    solution: Tensor


#: Maps z, u, a number of periods and a warm start to the trajectory.
Run = Callable[[Tensor, Tensor | Policy | None, int, Tensor | None], Trajectory]


class Plan(NamedTuple):
    """The options of a rollout: `length` periods per segment; a law that turns controls into inputs; whether solutions are kept."""

    wrench: Tensor | None
    adaptive: AdaptiveOptions | None
    length: int
    law: Actuators | None
    keep_solutions: bool


def rollout(
    backends: Backends, request: Request, z: Tensor, u: Tensor | Policy | None, steps: int, warm_start: Tensor | None, plan: Plan
) -> Trajectory:
    """`Mechanism.rollout` on a checked z. With a law, u are controls."""
    structure, law, keep = backends.structure, plan.law, plan.keep_solutions
    kernel = None
    if not (callable(u) or plan.adaptive):
        kernel = backends.kernel(request) if law is None else backends.driven_kernel(request, law)
    if request.budget and (kernel is None or plan.length < steps):
        raise ValueError(
            "rollout(budget=...): only for rollouts that the compiled kernel takes in one call; give inputs as a tensor, without adaptive= "
            "and checkpoint="
        )
    run: Run
    if kernel is not None:
        zero = z.new_zeros(steps, structure.num_inputs)
        z, u, wrench = check_given(structure, law, z, zero if u is None else cast(Tensor, u), plan.wrench)
        run = KernelRun(kernel, wrench, keep)
    elif plan.adaptive:
        steps_of_one = AdaptiveSteps(backends, request.of_a_step, plan.adaptive)
        run = StepByStep(structure, Periods(steps_of_one, request.repeat, law), plan.wrench, law, keep)
    else:
        run = StepByStep(structure, backends.stepper(request, law), plan.wrench, law, keep)
    return in_segments(run, z, u, steps, plan.length, warm_start, keep)


class KernelRun:
    """A `Run` in one call of the kernel, on checked inputs."""

    def __init__(self, kernel: Kernel, wrench: Tensor, keep_solutions: bool) -> None:
        self.kernel, self.wrench, self.keep_solutions = kernel, wrench, keep_solutions

    def __call__(self, z: Tensor, u: Tensor | Policy | None, steps: int, warm: Tensor | None) -> Trajectory:
        inputs = cast(Tensor, u)
        path, impulses, w, status, iterations, substeps = self.kernel.rollout(z, inputs, self.wrench, warm, self.keep_solutions)
        held = inputs.expand(*path.shape[:-2], *inputs.shape[-2:])
        return Trajectory(path, held, impulses, status, iterations, substeps, w.detach())


class StepByStep:
    """A `Run` that takes one period of a stepper at a time, each warm-started from the one before."""

    def __init__(
        self, structure: Structure, stepper: Stepper, wrench: Tensor | None, law: Actuators | None = None, keep_solutions: bool = False
    ) -> None:
        self.structure, self.stepper, self.wrench, self.law, self.keep_solutions = structure, stepper, wrench, law, keep_solutions

    def __call__(self, z: Tensor, u: Tensor | Policy | None, steps: int, warm: Tensor | None) -> Trajectory:
        states, inputs, outputs = [z], [], []
        solutions: list[Tensor] = []
        for t in range(steps):
            now = u[..., t, :] if isinstance(u, Tensor) else z.new_zeros(self.structure.num_inputs) if u is None else u(z)
            out = self.stepper.step(*check_given(self.structure, self.law, z, now, self.wrench), warm)
            z, warm = out.z, out.solution.detach()
            states.append(z)
            inputs.append(now)
            if not self.keep_solutions:
                solutions.clear()
            solutions.append(warm)
            outputs.append(out._replace(solution=z[..., :0].detach()))
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
            stack(solutions),
        )


# -- checkpoints -------------------------------------------------------------------------------------------------------------------------


def segment_length(checkpoint: object, steps: int) -> int:
    """Periods per segment for `checkpoint=` of a rollout: all steps for False, √T for True.

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


def in_segments(
    run: Run, z: Tensor, u: Tensor | Policy | None, steps: int, length: int, warm: Tensor | None, keep_solutions: bool
) -> Trajectory:
    """A rollout in segments of `length` periods. Autograd keeps the start of each segment, and runs the segment again in backward.

    With segments of √T steps, memory grows as √T for one more forward pass (Griewank and Walther 2008, "Evaluating Derivatives", section
    12.3).
    """
    if length >= steps:
        return run(z, u, steps, warm)
    pieces: list[Trajectory] = []
    for first in range(0, steps, length):
        count = min(length, steps - first)
        part = u[..., first : first + count, :] if isinstance(u, Tensor) else u
        path = cast(Trajectory, checkpointed(run, z, part, count, warm, use_reentrant=False))
        # These are copies, since views would keep the whole segment.
        z, warm = path.z[..., -1, :].clone(), path.solution[..., -1, :].clone()
        pieces.append(path)
    columns = [list(column) for column in zip(*pieces, strict=True)]
    columns[0][1:] = [states[..., 1:, :] for states in columns[0][1:]]
    if not keep_solutions:
        columns[-1] = columns[-1][-1:]
    del path, pieces
    joined: list[Tensor] = []
    while columns:  # each column is dropped before the next one is put together
        column = columns.pop(0)
        joined.append(torch.cat(column, dim=-1 if len(joined) in (3, 4, 5) else -2))
        del column
    return Trajectory(*joined)
