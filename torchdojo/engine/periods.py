"""Control periods: several steps under one held input, or under one control that actuators turn into the input of every step.

The kernel takes a period as one operator. `Periods` takes it step by step, for every other backend. Both add up what the steps of a period
report, and the next step starts from the solution of the one before.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchdojo.elements.actuators import Actuators
from torchdojo.engine.backend import Stepper
from torchdojo.gradients.reference_step import StepOutput
from torchdojo.gradients.request import StepInputs
from torchdojo.structure import Structure

__all__ = ["Periods", "added", "check_repeat", "law_of", "refuse_drives"]


class Periods(Stepper):
    """A `Stepper` that takes `repeat` steps of another one. With a law, the u of a period is its control."""

    def __init__(self, stepper: Stepper, repeat: int, law: Actuators | None) -> None:
        self.structure, self.stepper, self.repeat, self.law = stepper.structure, stepper, repeat, law

    def step(self, given: StepInputs) -> StepOutput:
        total = self._single(given)
        for _ in range(self.repeat - 1):
            total = added(total, self._single(given._replace(z=total.z, warm=total.solution.detach())))
        return total

    def _single(self, given: StepInputs) -> StepOutput:
        return self.stepper.step(given if self.law is None else given._replace(u=self.law(given.u, given.z)))


def added(total: StepOutput, new: StepOutput) -> StepOutput:
    """The results of steps of a period, joined with those of the step after them."""
    return StepOutput(
        new.z,
        total.impulses + new.impulses,
        torch.maximum(total.status, new.status),
        total.iterations + new.iterations,
        new.solution,
        total.substeps + new.substeps,
    )


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
    refuse_drives(structure, ctrl)
    if structure.actuators is None:
        raise ValueError("ctrl: got one for a mechanism without actuators; add them with td.actuate(mech, {...}), or give u")
    return structure.actuators


def refuse_drives(structure: Structure, ctrl: object) -> None:
    """Raise for controls of `mech.drives`, whose activations a step of the mechanism does not carry."""
    drives, size = getattr(structure, "drives", None), len(structure.actuators or ())
    if drives is not None and (not size or (isinstance(ctrl, Tensor) and ctrl.shape[-1:] == (len(drives.names),) != (size,))):
        raise ValueError(
            f"ctrl: got controls of mech.drives, {list(drives.names)}, whose activations these steps do not carry; allowed: those of "
            f"mech.actuators, {size} of them; use mech.drives.step(z, ctrl, act) or mech.drives.rollout(z, ctrl, act), "
            "and mech.drives.linearize(z, ctrl, act) for derivatives"
        )
