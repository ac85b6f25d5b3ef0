"""Options of the solver, and the status that every environment comes back with."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

import torch

__all__ = ["Backend", "OnFailure", "SolverOptions", "Status"]


class Status(enum.IntEnum):
    """Outcome of one step of one environment. `explain` says what to do about it."""

    SUCCESS = 0
    MAX_ITERATIONS = 1
    INVALID_INPUT = 2

    @property
    def explain(self) -> str:
        return _EXPLANATIONS[self]


_EXPLANATIONS = {
    Status.SUCCESS: "the step satisfies every equation to its tolerance",
    Status.MAX_ITERATIONS: (
        "no start of the solver converged (warm, cold, continuation, shorter steps); the state is unchanged. Usual causes: a body spins "
        "faster than √2/h rad/s, parts interpenetrate deeply, or joints are far from assembled. Try a smaller timestep or a larger kappa"
    ),
    Status.INVALID_INPUT: (
        "the state, input, wrench or a parameter is not finite, a quaternion is not unit, or a body spins at √2/h rad/s or more, h being "
        "the shortest substep; the state is unchanged"
    ),
}


class OnFailure(str, enum.Enum):
    """What happens to an environment whose step fails: flag it in `StepOutput.status`, or raise for the whole batch."""

    FLAG = "flag"
    RAISE = "raise"


class Backend(str, enum.Enum):
    """What takes the steps: the compiled kernel, the reference in PyTorch, or the kernel wherever it can."""

    AUTO = "auto"
    REFERENCE = "reference"
    NATIVE = "native"


@dataclass(frozen=True, kw_only=True)
class SolverOptions:
    """Options of the step.

    Args:
        kappa: central-path parameter [N·s·m in gap rows, J in friction rows]: every complementarity product equals it.
        grad_kappa: gradients are taken at this larger kappa instead (smoothed gradients). None: the same as `kappa`.
        residual_tol: largest absolute violation of any equation [N·s, N·m·s, m, m/s]. None: 1e-9 in float64, 1e-5 in float32.
        central_path_tol: largest violation of a complementarity row, as a fraction of kappa.
        max_iterations: Newton iterations per attempt; a step may make several attempts (warm, cold, continuation).
        min_iterations: Newton iterations made even where the tolerances hold already. They converge quadratically: one or two polish the
            solution to rounding, as finite differences of the step need.
        max_halvings: how often a step without a solution may be split into two of half its length (0: never).
        on_failure: "flag" or "raise".
        backend: "auto": the compiled kernel in float64 on the CPU where all joints and contacts are built in and a compiler was found, the
            reference elsewhere. "reference", or "native", which raises where the kernel cannot be used.

    Raises:
        ValueError: a value out of its range; the message says which.
    """

    kappa: float = 1e-6
    grad_kappa: float | None = None
    residual_tol: float | None = None
    central_path_tol: float = 1e-3
    max_iterations: int = 50
    min_iterations: int = 0
    max_halvings: int = 5
    on_failure: OnFailure | str = OnFailure.FLAG
    backend: Backend | str = Backend.AUTO

    def __post_init__(self) -> None:
        for name in ("kappa", "grad_kappa", "residual_tol", "central_path_tol"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise ValueError(f"SolverOptions.{name}: got {value}; allowed: positive finite numbers")
        if self.grad_kappa is not None and self.grad_kappa < self.kappa:
            raise ValueError(f"SolverOptions.grad_kappa: got {self.grad_kappa}; allowed: kappa = {self.kappa} or larger, or None")
        if self.central_path_tol >= 1:
            raise ValueError(f"SolverOptions.central_path_tol: got {self.central_path_tol}; allowed: below 1")
        if self.max_iterations < 1:
            raise ValueError(f"SolverOptions.max_iterations: got {self.max_iterations}; allowed: 1 or more")
        if not 0 <= self.min_iterations <= self.max_iterations:
            raise ValueError(
                f"SolverOptions.min_iterations: got {self.min_iterations}; allowed: 0 to max_iterations = {self.max_iterations}"
            )
        if self.max_halvings < 0:
            raise ValueError(f"SolverOptions.max_halvings: got {self.max_halvings}; allowed: 0 or more")
        for name, choices in (("on_failure", OnFailure), ("backend", Backend)):
            try:
                object.__setattr__(self, name, choices(getattr(self, name)))
            except ValueError:
                raise ValueError(f"SolverOptions.{name}: got {getattr(self, name)!r}; allowed: {[c.value for c in choices]}") from None

    def tolerances(self, dtype: torch.dtype) -> tuple[float, float]:
        """(residual_tol, central_path_tol) for a dtype.

        Raises:
            ValueError: kappa or residual_tol are below what the dtype resolves.
        """
        if dtype == torch.float64:
            return self.residual_tol or 1e-9, self.central_path_tol
        if dtype != torch.float32:
            raise ValueError(f"the step runs in float64 or float32; got {dtype}; use mech.to(torch.float64)")
        if self.kappa < 1e-4:
            raise ValueError(
                f"kappa = {self.kappa} is below what float32 resolves; use SolverOptions(kappa=1e-4) or larger, or mech.to(torch.float64)"
            )
        if self.residual_tol is not None and self.residual_tol < 1e-6:
            raise ValueError(
                f"residual_tol = {self.residual_tol} is below what float32 resolves; use 1e-5, None, or mech.to(torch.float64)"
            )
        # A product of 1e-4 whose factors carry the rounding of positions of order 1 m is known to about 1 % in float32.
        return self.residual_tol or 1e-5, max(self.central_path_tol, 1e-2)
