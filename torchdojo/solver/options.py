"""Options of the solver, and the status of every environment after a step."""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import FrozenInstanceError, dataclass

import torch

__all__ = ["Backend", "GradientMode", "OnFailure", "RandomizedSmoothing", "SolverOptions", "Status"]


class Status(enum.IntEnum):
    """Outcome of one step of one environment. `explain` gives the usual causes and remedies."""

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
        "faster than √2/h rad/s, parts interpenetrate deeply, joints are far from assembled, or limits, contacts and couplings contradict "
        "each other. Try a smaller timestep, a larger kappa or, for a rare step, a larger max_total_iterations"
    ),
    Status.INVALID_INPUT: (
        "the state, input, wrench or a parameter is not finite, a parameter is impossible (a mass below 0), a quaternion is not unit, or a "
        "body spins at √2/h rad/s or more, h being the shortest substep; the state is unchanged"
    ),
}


class OnFailure(str, enum.Enum):
    """Treatment of an environment whose step fails: flag it in `StepOutput.status`, or raise for the whole batch."""

    FLAG = "flag"
    RAISE = "raise"


class Backend(str, enum.Enum):
    """The backend that takes the steps: the compiled kernel, the reference in PyTorch, or the kernel wherever possible."""

    AUTO = "auto"
    REFERENCE = "reference"
    NATIVE = "native"


class GradientMode(str, enum.Enum):
    """The derivative that is taken of a step.

    CENTRAL_PATH: the derivative of the step itself, a smooth function at κ > 0. A larger `grad_kappa` smooths more (Howell et al. 2025,
        section IV-C). It is right to rounding, cheap, and never zero: contacts that do not touch yet pull a little, and stiction gives way
        a little. Wide smoothing misleads. The gradient at a large `grad_kappa` belongs to another, softer world, and descent ends where
        that world is best. So anneal it (`td.KappaSchedule`). At small κ it is as flat, and as jumpy across events, as `EXACT`.
    EXACT: the derivative in the hard limit κ → 0. Contacts are breaking, sticking or sliding. Facets of pyramids, joint limits and joint
        friction are open or closed. The equations of these classes are differentiated (Le Lidec et al., "Simple", equations 8-13;
        elements/hard_maps.py). It is the derivative of that limit, not of a step at κ: at the default κ of 1e-6 it differs by percents from
        differences of the step, which `CENTRAL_PATH` matches to rounding. So use it with a κ of 1e-9 or smaller.
        It is good for identification and for fine optimization within one sequence of contacts. Where a class
        changes, it is one-sided and says nothing of the other side. It is zero in all directions in which contacts hold: a box that rests
        cannot learn to lift. Impulses of redundant contacts (four corners) have derivatives of least norm, since there they are not unique.
        Where contacts with restitution bounce, it is the derivative of the motion in continuous time, to first order in the timestep.
        Differences of the step show another one, dx⁺/dx = 1, since x⁺ = x + h v⁺ wherever in the step the impact is. But a ball that starts
        higher bounces later, and is lower afterwards: dx⁺/dx = −e. `torchdojo.gradients.impacts` derives this saltation matrix.
    COMPLEMENTARITY_AWARE: `EXACT`, with a way out of such flat places (Nimble: Werling et al. 2021, section 4.4). Where the loss would go
        down if pressed contacts opened, such contacts are taken for breaking: those with the world, or all. In each environment, the
        gradient that is largest in the inputs wins among these two and the exact one, which wins ties. Without inputs, the wrench decides.
        It is good for getting started. It is no gradient of anything, and may promise a descent that the impulses then do not allow. So
        take small steps, and finish with `EXACT`. It depends on the loss, so there is no Jacobian of this kind.
    RANDOMIZED: the mean of gradients at inputs and wrenches with added Gaussian noise. It is the gradient of a randomly smoothed step, by
        its first-order estimator (Suh et al. 2022, "Do differentiable simulators give better policy gradients?"). It is good across events
        that noise reaches, of any kind and number. It costs a step and a gradient per sample, and has their variance. Events that all
        samples miss do not exist for it. At jumps, such as an impact that is missed or not, it is biased: a mean of derivatives does not
        see the jump. Values stay those of the step without noise.
    """

    CENTRAL_PATH = "central_path"
    EXACT = "exact"
    COMPLEMENTARITY_AWARE = "complementarity_aware"
    RANDOMIZED = "randomized"

    @property
    def needs_limit(self) -> bool:
        return self in (GradientMode.EXACT, GradientMode.COMPLEMENTARITY_AWARE)


@dataclass(frozen=True, kw_only=True)
class RandomizedSmoothing:
    """The samples over which `GradientMode.RANDOMIZED` averages.

    Args:
        samples: number of perturbed steps per environment and step.
        input_deviation: standard deviation of the noise on the entries of u [N, N·m], one number for all or one for each.
        wrench_deviation: standard deviation of the noise on the wrench [N, N·m].
        seed: seed of the samples, which are the same in every backward pass.
        mode: gradient mode of each sample, "central_path" or "exact".

    Raises:
        ValueError: a value out of its range; the message says which.
    """

    samples: int = 100
    input_deviation: float | Sequence[float] = 0.0
    wrench_deviation: float | Sequence[float] = 0.0
    seed: int = 0
    mode: GradientMode | str = GradientMode.CENTRAL_PATH

    def __post_init__(self) -> None:
        for name, least in (("samples", 1), ("seed", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(f"RandomizedSmoothing.{name}: got {value!r}; allowed: whole numbers of {least} or more")
        some = False
        for name in ("input_deviation", "wrench_deviation"):
            value = getattr(self, name)
            values = tuple(value) if isinstance(value, Sequence) else (value,)
            if not all(math.isfinite(v) and v >= 0 for v in values):
                raise ValueError(f"RandomizedSmoothing.{name}: got {value}; allowed: finite numbers >= 0 [N, N·m]")
            object.__setattr__(self, name, values if isinstance(value, Sequence) else value)  # hashable
            some |= any(values)
        if not some:
            raise ValueError("RandomizedSmoothing: got no deviation; give input_deviation= or wrench_deviation= a positive number [N, N·m]")
        _set_choice(self, "mode", GradientMode)
        if self.mode not in (GradientMode.CENTRAL_PATH, GradientMode.EXACT):
            raise ValueError(f"RandomizedSmoothing.mode: got {GradientMode(self.mode).value!r}; allowed: 'central_path' or 'exact'")


def _set_choice(options: object, name: str, choices: type[enum.Enum]) -> None:
    """Turn the field `name` into a member of `choices`."""
    value = getattr(options, name)
    try:
        object.__setattr__(options, name, choices(value))
    except ValueError:
        allowed = [c.value for c in choices]
        raise ValueError(f"{type(options).__name__}.{name}: got {value!r}; allowed: {allowed}") from None


@dataclass(frozen=True, kw_only=True)
class SolverOptions:
    """Options of the step.

    Args:
        kappa: central-path parameter [N·s·m in gap rows, J in friction rows]: every complementarity product equals it.
        grad_kappa: a larger kappa at which gradients are taken instead (smoothed gradients). None: the same as `kappa`. A single call may
            have another one, even one per environment.
        gradient_mode: "central_path", "exact", "complementarity_aware" or "randomized"; `td.GradientMode` explains them.
        randomized: `td.RandomizedSmoothing`, which the mode "randomized" needs.
        residual_tol: largest absolute violation of any equation [N·s, N·m·s, m, m/s]. None: 1e-9 in float64, 1e-5 in float32.
        central_path_tol: largest violation of a complementarity row, as a fraction of kappa.
        max_iterations: maximum of Newton iterations per attempt; a step may make several attempts (warm, cold, continuation).
        min_iterations: Newton iterations made even where the tolerances hold already. They converge quadratically: one or two polish the
            solution to rounding, as finite differences of the step need.
        max_halvings: maximum number of times that a step without a solution is split into two of half its length (0: never).
        max_total_iterations: maximum of Newton iterations of a step in all attempts, those at both halves of a split step included. Steps
            that are split because a body spins too fast are no failed attempts: each of their halves may take what is left to the step.
            Steps with near contacts are solved up to 8 times, and each solve may take as many; so may their halves, all together.
        depenetration_speed: largest speed at which contacts that start a step deep inside a surface come out [m/s]; see `Contact.gap`. It
            acts below a depth of speed times timestep, and changes no bit elsewhere. A contact's own `recovery_speed` replaces it, and a
            contact with `stiffness` has none. Joints that start outside their limits come back at this speed, too, in m/s and in rad/s,
            but at most at half of their `velocity_limits`; see `JointLimits.room`. None: one step undoes any overlap and any violation.
        on_failure: "flag" or "raise".
        backend: "auto" takes the compiled kernel in float64 on the CPU, to which states of a GPU are copied, if all joints and contacts are
            built in and there is a compiler. It takes the reference elsewhere. "reference" takes the reference. "native" raises where the
            kernel cannot be used.
        dtype: precision of the solve, whatever dtype states have. torch.float32 solves in single precision, by the reference, with a kappa
            of 1e-4 or larger.

    Raises:
        ValueError: a value out of its range; the message says which.
    """

    kappa: float = 1e-6
    grad_kappa: float | None = None
    gradient_mode: GradientMode | str = GradientMode.CENTRAL_PATH
    randomized: RandomizedSmoothing | None = None
    residual_tol: float | None = None
    central_path_tol: float = 1e-3
    max_iterations: int = 50
    min_iterations: int = 0
    max_halvings: int = 5
    max_total_iterations: int = 400
    depenetration_speed: float | None = 1.0
    on_failure: OnFailure | str = OnFailure.FLAG
    backend: Backend | str = Backend.AUTO
    dtype: torch.dtype = torch.float64

    def __post_init__(self) -> None:
        for name in ("kappa", "grad_kappa", "residual_tol", "central_path_tol", "depenetration_speed"):
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
        if self.max_total_iterations < self.max_iterations:
            raise ValueError(
                f"SolverOptions.max_total_iterations: got {self.max_total_iterations}; allowed: max_iterations = {self.max_iterations} or "
                "more, since all attempts share them"
            )
        _set_choice(self, "on_failure", OnFailure)
        _set_choice(self, "backend", Backend)
        _set_choice(self, "gradient_mode", GradientMode)
        self._check_mode()
        if self.dtype != torch.float64 and self.backend is Backend.NATIVE:
            raise ValueError(f"SolverOptions.dtype: got {self.dtype} with backend='native', which computes in float64; use 'reference'")
        self.tolerances(self.dtype)

    def _check_mode(self) -> None:
        mode = GradientMode(self.gradient_mode)
        if mode.needs_limit and self.grad_kappa is not None:
            raise ValueError(
                f"SolverOptions.grad_kappa: got {self.grad_kappa} with gradient_mode={mode.value!r}, the hard limit of no smoothing; "
                'allowed: None, or gradient_mode="central_path"'
            )
        if (mode is GradientMode.RANDOMIZED) != isinstance(self.randomized, RandomizedSmoothing):
            raise ValueError(
                f"SolverOptions.randomized: got {self.randomized!r} with gradient_mode={mode.value!r}; allowed: "
                "td.RandomizedSmoothing(samples=..., input_deviation=...) with gradient_mode='randomized', None with the others"
            )

    def tolerances(self, dtype: torch.dtype) -> tuple[float, float]:
        """(residual_tol, central_path_tol) for a dtype.

        Raises:
            ValueError: kappa or residual_tol are below what the dtype resolves.
        """
        if dtype == torch.float64:
            return self.residual_tol or 1e-9, self.central_path_tol
        if dtype != torch.float32:
            raise ValueError(f"SolverOptions.dtype: got {dtype}; allowed: torch.float64, and torch.float32 for a solve in single precision")
        if self.kappa < 1e-4:
            raise ValueError(f"kappa = {self.kappa} is below what float32 resolves; use SolverOptions(kappa=1e-4) or larger, or float64")
        if self.residual_tol is not None and self.residual_tol < 1e-6:
            raise ValueError(f"residual_tol = {self.residual_tol} is below what float32 resolves; use 1e-5, None, or float64")
        # In float32, a product of 1e-4 is accurate to about 1 %: its factors carry the rounding of positions of order 1 m.
        return self.residual_tol or 1e-5, max(self.central_path_tol, 1e-2)


def _refuse_change(options: SolverOptions, name: str, value: object) -> None:
    raise FrozenInstanceError(
        f"SolverOptions.{name}: options do not change once they are made; give the mechanism others: "
        f"mech.options = dataclasses.replace(mech.options, {name}={value!r})"
    )


SolverOptions.__setattr__ = _refuse_change  # type: ignore[method-assign, assignment]
