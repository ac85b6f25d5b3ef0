"""Rollouts under inputs, policies and feedback laws, and in segments whose graphs are not kept."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple, cast

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint as checkpointed

from torchdojo.elements.actuators import Actuators
from torchdojo.engine.adaptive import AdaptiveOptions, AdaptiveSteps
from torchdojo.engine.backend import Policy, Trajectory, check_given, visiting
from torchdojo.engine.backends import Backends
from torchdojo.engine.feedback import Given, law_of_feedback
from torchdojo.engine.observables import coordinates
from torchdojo.engine.periods import Periods, check_repeat, law_of
from torchdojo.engine.requests import request_of
from torchdojo.engine.staging import moved
from torchdojo.gradients.request import Request, StepInputs
from torchdojo.parameters import broadcast_shapes, transforming, warn_user
from torchdojo.solver.options import SolverOptions
from torchdojo.state.layout import TWIST_SIZE
from torchdojo.structure import Structure

__all__ = ["FeedbackCall", "Plan", "Policy", "Trajectory", "check_wrench", "rollout", "rollout_feedback", "segment_length"]

#: Maps z, u, wrenches of the periods, their number and a warm start to the trajectory.
Run = Callable[[Tensor, Tensor | Policy, Tensor | None, int, Tensor | None], Trajectory]


class Plan(NamedTuple):
    """The options of a rollout: `length` periods per segment; a law that turns controls into inputs; whether solutions are kept.

    wrench: held, or a function of the state at the start of each period. wrenches: (..., T, 6 nb) of the periods, instead.
    """

    wrench: Tensor | Policy | None
    wrenches: Tensor | None
    adaptive: AdaptiveOptions | None
    length: int
    law: Actuators | None
    keep_solutions: bool


def rollout(
    backends: Backends, request: Request, z: Tensor, u: Tensor | Policy | None, steps: int, warm_start: Tensor | None, plan: Plan
) -> Trajectory:
    """`Mechanism.rollout` on a checked z. With a law, u are controls."""
    structure, law = backends.structure, plan.law
    careful = plan.adaptive
    if careful:
        stepper = backends.visited(request, lambda asked: Periods(AdaptiveSteps(backends, asked.of_a_step, careful), asked.repeat, law))
    else:
        stepper = backends.stepper(request, law)
    varies = callable(plan.wrench) or plan.wrenches is not None
    if request.budget and (callable(u) or varies or not stepper.in_one_call or plan.length < steps):
        raise ValueError(
            "rollout(budget=...): only for rollouts that the compiled kernel takes in one call; give inputs as a tensor, and a wrench that "
            "is held, without adaptive= and checkpoint="
        )
    if not callable(u):
        zero = torch.zeros(steps, structure.num_inputs, dtype=z.dtype, device=z.device)
        z, u, held, _ = check_given(structure, law, z, zero if u is None else u, None if callable(plan.wrench) else plan.wrench)
    else:
        held = None if callable(plan.wrench) else plan.wrench

    def run(z: Tensor, u: Tensor | Policy, wrenches: Tensor | None, steps: int, warm: Tensor | None) -> Trajectory:
        if isinstance(u, Tensor) and not varies:
            return stepper.rollout(StepInputs(z, u, held, warm), plan.keep_solutions)

        def wrench(t: int, z: Tensor) -> Tensor | None:
            if wrenches is not None:
                return wrenches[..., t, :]
            return plan.wrench(z) if callable(plan.wrench) else held

        def inputs(t: int, z: Tensor) -> Tensor:
            return u[..., t, :] if isinstance(u, Tensor) else u(z)

        return stepper.follow(inputs, steps, StepInputs(z, z, None, warm), plan.keep_solutions, wrench)

    return in_segments(run, z, u, plan.wrenches, steps, plan.length, warm_start, plan.keep_solutions)


def check_wrench(
    structure: Structure, z: Tensor, given: object, wrench: Tensor | Policy | None, wrenches: Tensor | None, steps: int
) -> None:
    """Raise where both are given, or wrenches have another shape; warn where a wrench has the shape of one for each period.

    Raises:
        ValueError: both `wrench` and `wrenches`; another shape. TypeError: not a tensor.
    """
    if wrenches is not None:
        if wrench is not None:
            raise ValueError("rollout: got both wrench= and wrenches=; give one of them")
        size = TWIST_SIZE * structure.num_bodies
        structure.check_tensor("wrenches", wrenches, size, visiting(structure, z))
        if wrenches.ndim < 2 or wrenches.shape[-2] != steps:
            raise ValueError(f"wrenches: got {tuple(wrenches.shape)}; allowed: (..., {steps}, {size}), one for each period")
    elif isinstance(wrench, Tensor) and steps > 1 and wrench.ndim > 1 and wrench.shape[-2] == steps:
        batch = given.shape[:-2] if isinstance(given, Tensor) else ()
        if z.ndim == 1 and not batch and not transforming():
            warn_user(
                f"wrench: got {tuple(wrench.shape)}, which is held over the {steps} periods of as many rollouts; for one rollout with a "
                "wrench for each period give wrenches="
            )


# -- feedback ----------------------------------------------------------------------------------------------------------------------------


class FeedbackCall(NamedTuple):
    """The keywords of `Mechanism.rollout_feedback` beside its law."""

    repeat: int
    warm_start: Tensor | None
    keep_solutions: bool
    wrench: Tensor | None
    budget: int | None


def rollout_feedback(
    backends: Backends, options: SolverOptions, z: Tensor, u: Tensor | None, ctrl: Tensor | None, given: Given, call: FeedbackCall
) -> Trajectory:
    """`Mechanism.rollout_feedback`.

    Raises:
        ValueError: batch dimensions that do not broadcast; a budget without the kernel. RuntimeError: inside a transform.
    """
    structure = backends.structure
    if visiting(structure, z) is not None:
        there = moved((z, u, ctrl, given, call), structure.gravity.device)
        return moved(rollout_feedback(backends, options, *there), z.device)
    actuators = law_of(structure, u, ctrl)
    name, inputs, size = ("u", u, structure.num_inputs) if actuators is None else ("ctrl", ctrl, len(actuators))
    if not isinstance(inputs, Tensor) or inputs.ndim < 2 or inputs.shape[-1] != size or not inputs.shape[-2]:
        got = tuple(inputs.shape) if isinstance(inputs, Tensor) else type(inputs).__name__
        raise ValueError(f"{name}: got {got}; allowed: (..., T, {size}) with T of 1 or more")
    if call.warm_start is not None:
        structure.check_tensor("warm_start", call.warm_start, structure.layout.num_unknowns)
    structure.check_state(z)
    if torch.compiler.is_compiling() or transforming():
        raise RuntimeError("rollout_feedback: not inside torch.func or torch.compile; give a policy to mech.rollout there")
    with torch.no_grad():
        law = law_of_feedback(structure, inputs, given, lambda z: coordinates(backends, options, z))
        z, request = request_of(backends.system, options, z, None, repeat=check_repeat(call.repeat), budget=call.budget)
        stepper = backends.stepper(request, actuators)
        z, u, wrench, warm = check_given(structure, actuators, z, law.inputs, call.wrench, call.warm_start)
        shapes = [z.shape[:-1], *([] if wrench is None else [wrench.shape[:-1]]), *law.batch(), *stepper.batch_shapes()]
        try:
            batch = broadcast_shapes(*shapes)
        except RuntimeError:
            raise ValueError(f"rollout_feedback: got batch dimensions {[tuple(s) for s in shapes]}, which do not broadcast") from None
        if request.budget and not stepper.in_one_call:
            raise ValueError("budget: the compiled kernel has it, but another backend takes these steps")
        return stepper.rollout_feedback(StepInputs(z.expand(*batch, z.shape[-1]), u, wrench, warm), law, call.keep_solutions)


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
    run: Run,
    z: Tensor,
    u: Tensor | Policy,
    wrenches: Tensor | None,
    steps: int,
    length: int,
    warm: Tensor | None,
    keep_solutions: bool,
) -> Trajectory:
    """A rollout in segments of `length` periods. Autograd keeps the start of each segment, and runs the segment again in backward.

    With segments of √T steps, memory grows as √T for one more forward pass (Griewank and Walther 2008, "Evaluating Derivatives", section
    12.3).
    """
    if length >= steps:
        return run(z, u, wrenches, steps, warm)
    pieces: list[Trajectory] = []
    for first in range(0, steps, length):
        count = min(length, steps - first)
        part = u[..., first : first + count, :] if isinstance(u, Tensor) else u
        pushed = None if wrenches is None else wrenches[..., first : first + count, :]
        path = cast(Trajectory, checkpointed(run, z, part, pushed, count, warm, use_reentrant=False))
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
