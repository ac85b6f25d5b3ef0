"""Control periods: several steps under one held input, or under one control that actuators turn into the input of every step.

The kernel takes a period as one operator. `Periods` takes it step by step, for every other backend. Both add up what the steps of a period
report, and the next step starts from the solution of the one before.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from torchdojo.elements.actuators import Actuators
from torchdojo.gradients.reference_step import StepOutput
from torchdojo.structure import Structure

__all__ = ["Periods", "Stepper", "check_given", "check_repeat", "law_of"]


class Stepper(Protocol):
    """An object that takes one step, or period, of a rollout: a backend, `Periods`, `AdaptiveSteps`, or a fitted model.

    u and wrench are given.
    """

    def step(self, z: Tensor, u: Tensor, wrench: Tensor, warm_start: Tensor | None) -> StepOutput: ...


class Periods:
    """A `Stepper` that takes `repeat` steps of another one. With a law, the u of a period is its control."""

    def __init__(self, stepper: Stepper, repeat: int, law: Actuators | None) -> None:
        self.stepper, self.repeat, self.law = stepper, repeat, law

    def step(self, z: Tensor, u: Tensor, wrench: Tensor, warm_start: Tensor | None) -> StepOutput:
        total = self._single(z, u, wrench, warm_start)
        for _ in range(self.repeat - 1):
            new = self._single(total.z, u, wrench, total.solution.detach())
            total = StepOutput(
                new.z,
                total.impulses + new.impulses,
                torch.maximum(total.status, new.status),
                total.iterations + new.iterations,
                new.solution,
                total.substeps + new.substeps,
            )
        return total

    def _single(self, z: Tensor, u: Tensor, wrench: Tensor, warm_start: Tensor | None) -> StepOutput:
        return self.stepper.step(z, u if self.law is None else self.law(u, z), wrench, warm_start)


def check_repeat(repeat: object) -> int:
    """The number of steps of a period.

    Raises:
        TypeError, ValueError: not a whole number of 1 or more.
    """
    if isinstance(repeat, bool) or not isinstance(repeat, int):
        raise TypeError(f"repeat: got {repeat!r}; allowed: a whole number of steps that hold each input, 1 or more")
    if repeat < 1:
        raise ValueError(f"repeat: got {repeat}; allowed: 1 or more steps that hold each input; leave it out to take one")
    return repeat


def law_of(structure: Structure, u: object, ctrl: object) -> Actuators | None:
    """The actuators that turn `ctrl` into u, where it is given.

    Raises:
        ValueError: both u and ctrl, or a ctrl for a mechanism without actuators.
    """
    if ctrl is None:
        return None
    if u is not None:
        raise ValueError("u and ctrl: got both; actuators turn ctrl into u, so give one of them")
    if structure.actuators is None:
        raise ValueError("ctrl: got one for a mechanism without actuators; add them with td.actuate(mech, {...}), or give u")
    return structure.actuators


def check_given(structure: Structure, law: Actuators | None, z: Tensor, given: Any, wrench: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """z, the input or the control of a period, and wrench, checked, with zeros for None. Controls out of their range are counted."""
    if law is None:
        return structure.check_inputs(z, given, wrench)
    law.check(given)
    law.count(given)
    z, _, wrench = structure.check_inputs(z, None, wrench)
    return z, given, wrench
