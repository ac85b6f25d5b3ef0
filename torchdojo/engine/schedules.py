"""Annealing of the central-path parameter over training: wide smoothing first, which finds contacts, then less and less smoothing."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Protocol

from torchdojo.solver.options import SolverOptions

__all__ = ["KappaSchedule"]

OPTIONS = ("kappa", "grad_kappa")


class Optioned(Protocol):
    """The part of a mechanism that a schedule changes."""

    options: SolverOptions


class KappaSchedule:
    """A geometric path from one κ to another: ``schedule(step) = start (end/start)^(step/steps)``, and `end` from there on.

    ``schedule(step)`` is a function of the step alone. With a mechanism, a schedule is used like the learning-rate schedulers of torch. The
    options of the mechanism have `start` from the beginning. Each ``schedule.step()``, after the optimizer's step, sets the next value.

    Args:
        start, end: κ > 0, in the unit of `SolverOptions.kappa`. steps: number of steps from `start` to `end`, 1 or more.
        mechanism: the mechanism whose options `step` changes; None where `apply` receives mechanisms.
        option: "grad_kappa", which keeps the motion at the mechanism's kappa; or "kappa".

    Raises:
        ValueError: a value out of its range; an `end` of grad_kappa below the mechanism's kappa.
    """

    def __init__(self, start: float, end: float, steps: int, mechanism: Optioned | None = None, *, option: str = "grad_kappa") -> None:
        for name, value in (("start", start), ("end", end)):
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"KappaSchedule: got {name}={value}; allowed: positive finite numbers")
        if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
            raise ValueError(f"KappaSchedule: got steps={steps!r}; allowed: whole numbers of 1 or more")
        if option not in OPTIONS:
            raise ValueError(f"KappaSchedule: got option={option!r}; allowed: {list(OPTIONS)}")
        self.start, self.end, self.steps, self.option = start, end, steps, option
        self.mechanism = mechanism
        self.last_step = 0
        if mechanism is not None:
            self.apply(mechanism)

    def __call__(self, step: int) -> float:
        """κ after `step` steps."""
        if step >= self.steps:
            return self.end
        return self.start * (self.end / self.start) ** (max(step, 0) / self.steps)

    @property
    def value(self) -> float:
        """The present κ."""
        return self(self.last_step)

    def apply(self, mechanism: Optioned) -> None:
        """Give a mechanism's options the present κ."""
        if self.option == "grad_kappa" and min(self.start, self.end) < mechanism.options.kappa:
            raise ValueError(
                f"KappaSchedule: goes down to grad_kappa = {min(self.start, self.end)}, below the mechanism's kappa = "
                f"{mechanism.options.kappa}; end above it, lower its kappa, or use option='kappa'"
            )
        mechanism.options = dataclasses.replace(mechanism.options, **{self.option: self.value})  # type: ignore[arg-type]

    def step(self) -> None:
        """Go on by one step, and give the mechanism's options the new κ."""
        self.last_step += 1
        if self.mechanism is not None:
            self.apply(self.mechanism)

    def state_dict(self) -> dict[str, Any]:
        """Everything but the mechanism."""
        return {name: value for name, value in self.__dict__.items() if name != "mechanism"}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue where another schedule stopped; the mechanism's options follow."""
        unknown = state_dict.keys() ^ self.state_dict().keys()
        if unknown:
            raise ValueError(f"KappaSchedule: got a state_dict that lacks, or has besides, {sorted(unknown)}")
        self.__dict__.update(state_dict)
        if self.mechanism is not None:
            self.apply(self.mechanism)
