"""Options of `solve`: schedules of contact smoothing, candidates, tolerances."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from torchdojo.runs.description import check_whole

__all__ = ["BOTH_ANNEALED", "GRADIENT_ANNEALED", "Schedule", "SolveOptions"]

#: (kappa of the steps, grad_kappa of their derivatives or None for the same) of each outer iteration; the last one holds to the end.
Schedule = Sequence[tuple[float, float | None]]

#: Hard rollouts, whose derivatives are smoothed less and less.
GRADIENT_ANNEALED: Schedule = ((1e-6, 1e-2), (1e-6, 1e-3), (1e-6, 1e-4))
#: Contacts that become hard with their derivatives.
BOTH_ANNEALED: Schedule = ((3e-2, None), (3e-3, None), (3e-4, None), (1e-6, None))


@dataclass(frozen=True, kw_only=True)
class SolveOptions:
    """Options of `solve`.

    Args:
        schedule: (kappa, grad_kappa) of each outer iteration; or several of such schedules, which are tried as problems of one batch.
            "auto" tries `GRADIENT_ANNEALED` and `BOTH_ANNEALED`, since which of them works depends on the task.
        regularizations: factors of the damping μ. step_sizes: α. Every iteration tries each pair in one batch.
        full_steps_first: try the first step size with all regularizations, and the other ones only where none of these is accepted. It
            takes a third of the rollouts, and more iterations. The costs of tasks with many local minima become worse.
        damping, least_damping: μ at the start, and its least value; below 1e-5, μ counts as 0.
        max_iterations: linearizations in all. max_inner: of one outer iteration. max_outer: updates of multipliers.
        penalty, penalty_growth: first ρ of the augmented Lagrangian, and its factor per outer iteration.
        tolerance: largest violation of constraints, in units of their residuals, and largest defect of multiple shooting.
        cost_tolerance: an outer iteration ends where the merit decreases by less than this part.
    """

    schedule: str | Schedule | Sequence[Schedule] = "auto"
    regularizations: Sequence[float] = (1e-2, 1e-1, 1.0, 10.0, 100.0)
    step_sizes: Sequence[float] = (1.0, 0.5, 0.2)
    full_steps_first: bool = False
    damping: float = 1e-2
    least_damping: float = 1e-3
    max_iterations: int = 100
    max_inner: int = 8
    max_outer: int = 10
    penalty: float = 1.0
    penalty_growth: float = 10.0
    tolerance: float = 1e-4
    cost_tolerance: float = 1e-2

    def __post_init__(self) -> None:
        for name in ("damping", "penalty", "tolerance", "cost_tolerance"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"SolveOptions.{name}: got {value}; allowed: positive finite numbers")
        for name in ("regularizations", "step_sizes"):
            values = getattr(self, name)
            if not values or not all(math.isfinite(value) and value > 0 for value in values):
                raise ValueError(f"SolveOptions.{name}: got {values}; allowed: one or more positive finite numbers")
        check_whole(self, ("max_iterations", "max_inner", "max_outer"), label="SolveOptions.")
        if self.penalty_growth < 1:
            raise ValueError(f"SolveOptions.penalty_growth: got {self.penalty_growth}; allowed: 1 or more")
        for schedule in self.schedules:
            for kappa, smooth in schedule:
                if not (kappa > 0 and (smooth is None or smooth >= kappa)):
                    raise ValueError(f"SolveOptions.schedule: got ({kappa}, {smooth}); allowed: (kappa > 0, None or grad_kappa >= kappa)")

    @property
    def schedules(self) -> list[Schedule]:
        if self.schedule == "auto":
            return [GRADIENT_ANNEALED, BOTH_ANNEALED]
        if isinstance(self.schedule, str) or not self.schedule or not self.schedule[0]:
            raise ValueError(f"SolveOptions.schedule: got {self.schedule!r}; allowed: 'auto', or a sequence of (kappa, grad_kappa)")
        several = isinstance(self.schedule[0][0], Sequence)
        return list(cast("Sequence[Schedule]", self.schedule)) if several else [cast("Schedule", self.schedule)]
