"""Checks that users' own modules can inherit: gradients of the step against central differences."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from torchdojo.gradients.reference_step import StepOutput
from torchdojo.mechanism import Mechanism
from torchdojo.solver.options import GradientMode, Status
from torchdojo.testing import differences
from torchdojo.testing.comparison import Comparison
from torchdojo.testing.gradient_report import InputRow, StepReport, gradient_report

__all__ = ["GradientReport", "InputRow", "StepReport", "check_gradients", "gradient_report", "tangent_step"]


class GradientReport(NamedTuple):
    """One entry per input ("z", "u", and each parameter's name) and output ("state", "impulses").

    errors: largest difference between analytic and numeric derivative, relative to the largest numeric derivative of this input and output.
        The divisor is at least a thousandth of the derivative by the state, because differences resolve no more.
    analytic, numeric: the compared derivatives, (number of directions,).
    """

    errors: dict[str, float]
    analytic: dict[str, Tensor]
    numeric: dict[str, Tensor]

    @property
    def max_relative_error(self) -> float:
        return max(self.errors.values(), default=0.0)


def check_gradients(
    mechanism: Mechanism,
    z: Tensor,
    u: Tensor | None = None,
    *,
    parameters: bool | Sequence[str] = True,
    directions: int | None = None,
    tolerance: float | None = None,
    seed: int = 0,
) -> GradientReport:
    """Compare the step's gradients with central differences on the tangent space.

    A random combination of the next state's tangent, and one of the impulses, is differentiated backward once. Central differences along
    the tangent of z, u, and every entry of every floating-point parameter are compared with it. Weights of user-written modules are
    included. Polynomials in the step size are fitted to differences at sizes from 1e-11 to 1e-3. For each direction, the fit with the
    smallest standard error counts.

    Args:
        z: (13 nb,), one environment; u: (nu,) or None. Float32 is converted: the differences need all digits.
        parameters: whether to check parameters too, or the beginnings of the names of those to check.
        directions: check along this many random directions of each input instead of all its entries (large robots).
        tolerance: raise when the largest relative error exceeds it.

    Raises:
        ValueError: a batched state, or a step that fails here.
        AssertionError: an error above `tolerance`, or a gradient that is not finite.
    """
    z = z.double() if z.dtype == torch.float32 else z
    # Gradients are compared at kappa itself.
    prefixes = ("",) if parameters is True else () if parameters is False else tuple(parameters)
    names = [name for name, _ in mechanism.named_parameters() if name.startswith(prefixes)]
    with differences.converged(mechanism, grad_kappa=None, gradient_mode=GradientMode.CENTRAL_PATH):
        report = compare(Comparison("check_gradients", mechanism, z, u, None, seed), {name: [name] for name in names}, directions)
    for label, along in report.analytic.items():
        if not bool(torch.isfinite(along).all()):
            raise AssertionError(f"check_gradients: the gradient {label} is not finite: {along.tolist()}")
    if tolerance is not None and not report.max_relative_error <= tolerance:
        worst = max(report.errors, key=lambda label: report.errors[label])
        raise AssertionError(
            f"check_gradients: {worst}: relative error {report.errors[worst]:.3g} above {tolerance:.3g}; "
            f"analytic {report.analytic[worst].tolist()}, numeric {report.numeric[worst].tolist()}"
        )
    return report


def compare(comparison: Comparison, groups: Mapping[str, Sequence[str]], directions: int | None) -> GradientReport:
    """Gradients of a random combination of the next state and one of the impulses beside differences; parameters of a group together."""
    weights = {"state": comparison.random(comparison.sizes["z"]), "impulses": comparison.random(comparison.base.impulses.shape[-1])}

    def losses(out: StepOutput) -> dict[str, Tensor]:
        return {"state": comparison.tangent(out) @ weights["state"], "impulses": out.impulses @ weights["impulses"]}

    gradients = comparison.gradients(losses, [name for group in groups.values() for name in group])
    report = GradientReport({}, {}, {})
    sensitivity: dict[str, float] = {}
    every, some = [comparison.whole("z"), comparison.whole("u"), *comparison.parameters(groups)], next(iter(gradients.values()))
    inputs = [entry for entry in every if len(entry.pick(some))]
    bases = [differences.directions(len(entry.pick(some)), directions, comparison.generator).to(torch.float64) for entry in inputs]
    for entry, derivatives in zip(inputs, comparison.along(inputs, losses, gradients, bases), strict=True):
        for key, (analytic, numeric) in derivatives.items():
            largest = float(numeric.abs().max())
            # The loss carries rounding in proportion to its sensitivity to the state: much smaller derivatives drown in it.
            scale = max(largest, 1e-3 * max(1.0, sensitivity.setdefault(key, largest)))
            label = f"{entry.name} -> {key}"
            report.analytic[label], report.numeric[label] = analytic, numeric
            report.errors[label] = float((analytic - numeric).abs().nan_to_num(nan=torch.inf).max()) / scale
    return report


def tangent_step(mechanism: Mechanism, z: Tensor, u: Tensor | None = None) -> Callable[[Tensor, Tensor], Tensor]:
    """The step around (z, u) as a function between flat spaces, which is what torch's own checks take.

    ``torch.autograd.gradcheck(td.testing.tangent_step(mech, z, u), (delta, du))``, with delta (..., 12 nb) and du (..., nu) small, zero
    for instance; with SolverOptions(backend="reference") `gradgradcheck` as well. In z itself differences would leave the unit sphere of
    quaternions. Solutions are polished to rounding for the differences.

    Args:
        mechanism: float64. z: (..., 13 nb). u: (..., nu) or None.

    Returns:
        (delta, du) -> the tangent (..., 12 nb) from the next state of (z, u) to the next state of (`retract`(z, delta), u + du).

    Raises:
        ValueError: a step that fails at (z, u).
    """
    u = z.new_zeros(mechanism.num_inputs) if u is None else u
    with torch.no_grad(), differences.converged(mechanism, grad_kappa=None):
        base = mechanism.step(z, u)
    if bool(base.status.any()):
        raise ValueError(f"tangent_step: the step fails at this state: {Status(int(base.status.max())).explain}")

    def function(delta: Tensor, du: Tensor) -> Tensor:
        with differences.converged(mechanism, grad_kappa=None):
            after = mechanism.step(mechanism.retract(z, delta), u + du, warm_start=base.solution).z
        return mechanism.difference(after, base.z)

    return function
