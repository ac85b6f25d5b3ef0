"""Checks that users' own modules can inherit: gradients of the step against central differences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from torchdojo.gradients.reference_step import StepOutput
from torchdojo.mechanism import Mechanism
from torchdojo.solver.options import GradientMode, Status
from torchdojo.state.layout import TANGENT_SIZE
from torchdojo.testing import differences
from torchdojo.testing.gradient_report import InputRow, StepReport, gradient_report

__all__ = ["GradientReport", "InputRow", "StepReport", "check_gradients", "gradient_report", "tangent_step"]


class GradientReport(NamedTuple):
    """One entry per input ("z", "u", and each parameter's name) and output ("state", "impulses").

    errors: largest difference between analytic and numeric derivative, relative to the largest numeric derivative of that input and output
        (at least a thousandth of that with respect to the state, which is what finite differences resolve).
    analytic, numeric: the derivatives compared, (number of directions,).
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

    A random combination of the next state's tangent, and one of the impulses, is differentiated backward once, and compared with central
    differences along the tangent of z, along u, and along every entry of every floating-point parameter (weights of user-written modules
    included). The differences are Richardson-extrapolated over step sizes from 1e-9 to 1e-3; for each direction the first of them, going
    up, counts at which the estimate has settled.

    Args:
        mechanism: float64. z: (13 nb,), one environment. u: (nu,) or None.
        parameters: whether to check parameters too, or the beginnings of the names of those to check.
        directions: check along this many random directions of each input instead of all its entries (large robots).
        tolerance: raise when the largest relative error exceeds it.

    Raises:
        ValueError: a batched state, or a step that fails here.
        AssertionError: an error above `tolerance`, or a gradient that is not finite.
    """
    if z.ndim != 1 or z.dtype != torch.float64:
        raise ValueError(f"check_gradients: got z of shape {tuple(z.shape)} and {z.dtype}; allowed: one environment, (13 nb,), float64")
    u = z.new_zeros(mechanism.num_inputs) if u is None else u
    generator = torch.Generator().manual_seed(seed)
    # Gradients are compared at kappa itself.
    with differences.converged(mechanism, grad_kappa=None, gradient_mode=GradientMode.CENTRAL_PATH):
        return _check(mechanism, z.detach(), u.detach(), parameters, directions, tolerance, generator)


def tangent_step(mechanism: Mechanism, z: Tensor, u: Tensor | None = None) -> Callable[[Tensor, Tensor], Tensor]:
    """The step around (z, u) as a function between flat spaces, which is what torch's own checks take.

    ``torch.autograd.gradcheck(td.testing.tangent_step(mech, z, u), (delta, du))``, with delta (..., 12 nb) and du (..., nu) small, zero
    for instance; with SolverOptions(backend="reference") `gradgradcheck` as well. In z itself differences would leave the unit sphere of
    quaternions. Solutions are polished to rounding for the differences.

    Args:
        mechanism: float64. z: (..., 13 nb). u: (..., nu) or None.

    Returns:
        (delta, du) -> the tangent (..., 12 nb) that leads from the next state of (z, u) to that of (`retract`(z, delta), u + du).

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


def _check(
    mechanism: Mechanism,
    z: Tensor,
    u: Tensor,
    parameters: bool | Sequence[str],
    directions: int | None,
    tolerance: float | None,
    generator: torch.Generator,
) -> GradientReport:
    with torch.no_grad():
        base = mechanism.step(z, u)
    if int(base.status) != Status.SUCCESS:
        raise ValueError(f"check_gradients: the step fails at this state: {Status(int(base.status)).explain}")
    tangent = TANGENT_SIZE * mechanism.num_bodies
    weights = {
        "state": torch.randn(tangent, generator=generator, dtype=z.dtype),
        "impulses": torch.randn(base.impulses.shape[-1], generator=generator, dtype=z.dtype),
    }

    def losses(out: StepOutput) -> dict[str, Tensor]:
        state = mechanism.difference(out.z, base.z.expand_as(out.z))
        return {"state": state @ weights["state"], "impulses": out.impulses @ weights["impulses"]}

    def solve(delta: Tensor, du: Tensor) -> StepOutput:
        return mechanism.step(mechanism.retract(z, delta), u + du, warm_start=base.solution)

    prefixes = ("",) if parameters is True else () if parameters is False else tuple(parameters)
    names = {name: p for name, p in mechanism.named_parameters() if name.startswith(prefixes)}
    leaves = {"z": z.new_zeros(tangent).requires_grad_(), "u": z.new_zeros(len(u)).requires_grad_()}
    analytic: dict[str, Tensor] = {}
    numeric: dict[str, Tensor] = {}
    errors: dict[str, float] = {}
    inputs = {**leaves, **names}
    with differences.requiring_grad(names.values()):
        outputs = losses(solve(leaves["z"], leaves["u"]))
        grads = {
            key: torch.autograd.grad(value, list(inputs.values()), retain_graph=True, allow_unused=True)
            for key, value in outputs.items()
            if value.requires_grad
        }
    for position, (name, leaf) in enumerate(inputs.items()):
        basis = differences.directions(leaf.numel(), directions, generator).to(z.dtype)
        if not len(basis):
            continue
        if name == "z":
            move = _mover(lambda d: solve(d, torch.zeros_like(u)))
        elif name == "u":
            move = _mover(lambda d: solve(z.new_zeros(tangent), d))
        else:
            move = differences.parameter_mover(mechanism, [name], lambda: mechanism.step(z, u, warm_start=base.solution))
        largest = differences.LARGEST_FORCE if name == "u" else differences.LARGEST_STEP
        estimates = differences.central(lambda d, move=move: losses(move(d)), basis, largest)  # type: ignore[misc]
        for key, grad in grads.items():
            value = grad[position]
            along = basis @ (torch.zeros(leaf.numel(), dtype=z.dtype) if value is None else value.reshape(-1))
            label = f"{name} -> {key}"
            analytic[label], numeric[label] = along, estimates[key]
            # The loss carries rounding in proportion to its sensitivity to the state: much smaller derivatives drown in it.
            sensitivity = float(numeric[f"z -> {key}"].abs().max())
            scale = max(float(estimates[key].abs().max()), 1e-3 * max(1.0, sensitivity))
            errors[label] = float((along - estimates[key]).abs().max()) / scale
            if not bool(torch.isfinite(along).all()):
                raise AssertionError(f"check_gradients: the gradient {label} is not finite: {along.tolist()}")
    report = GradientReport(errors, analytic, numeric)
    if tolerance is not None and not report.max_relative_error <= tolerance:
        worst = max(errors, key=lambda k: errors[k])
        raise AssertionError(
            f"check_gradients: {worst}: relative error {errors[worst]:.3g} above {tolerance:.3g}; "
            f"analytic {analytic[worst].tolist()}, numeric {numeric[worst].tolist()}"
        )
    return report


def _mover(step: Callable[[Tensor], StepOutput]) -> Callable[[Tensor], StepOutput]:
    def move(displacements: Tensor) -> StepOutput:
        with torch.no_grad():
            return step(displacements)

    return move
