"""Checks that users' own modules can inherit: gradients of the step against central differences."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from torchdojo.dynamics.integrator import TANGENT_SIZE
from torchdojo.mechanism import Mechanism
from torchdojo.solver.options import Status
from torchdojo.stepping import StepOutput

__all__ = ["GradientReport", "check_gradients"]

# Central differences at these steps, extrapolated in pairs; contact at small kappa bends within micrometres, flight not within metres.
STEPS = tuple(1e-3 / 4**i for i in range(11))


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
    options = mechanism.options
    # Differences need solutions far tighter than a simulation does; gradients are compared at kappa itself.
    mechanism.options = dataclasses.replace(
        options, residual_tol=1e-10, central_path_tol=1e-6, min_iterations=8, max_halvings=0, grad_kappa=None
    )
    try:
        return _check(mechanism, z.detach(), u.detach(), parameters, directions, tolerance, generator)
    finally:
        mechanism.options = options


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
    wanted = {name: p.requires_grad for name, p in names.items()}
    analytic: dict[str, Tensor] = {}
    numeric: dict[str, Tensor] = {}
    errors: dict[str, float] = {}
    try:
        for p in names.values():
            p.requires_grad_(True)
        outputs = losses(solve(leaves["z"], leaves["u"]))
        inputs = {**leaves, **names}
        grads = {
            key: torch.autograd.grad(value, list(inputs.values()), retain_graph=True, allow_unused=True)
            for key, value in outputs.items()
            if value.requires_grad
        }
    finally:
        for name, p in names.items():
            p.requires_grad_(wanted[name])
    for position, (name, leaf) in enumerate(inputs.items()):
        basis = _directions(leaf.numel(), directions, generator).to(z.dtype)
        if not len(basis):
            continue
        if name == "z":
            move = _mover(lambda d: solve(d, torch.zeros_like(u)))
        elif name == "u":
            move = _mover(lambda d: solve(z.new_zeros(tangent), d))
        else:
            move = _parameter_mover(mechanism, name, z, u, base.solution)
        estimates = _differences(lambda d, move=move: losses(move(d)), basis)  # type: ignore[misc]
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


def _directions(size: int, count: int | None, generator: torch.Generator) -> Tensor:
    """(directions, size): the coordinate axes, or `count` random combinations of them."""
    if count is None or count >= size:
        return torch.eye(size)
    return torch.randn(count, size, generator=generator) / size**0.5


def _mover(step: Callable[[Tensor], StepOutput]) -> Callable[[Tensor], StepOutput]:
    def move(displacements: Tensor) -> StepOutput:
        with torch.no_grad():
            return step(displacements)

    return move


def _parameter_mover(mechanism: Mechanism, name: str, z: Tensor, u: Tensor, solution: Tensor) -> Callable[[Tensor], StepOutput]:
    """Steps with one parameter displaced: physical fields as one batch, other tensors one by one."""
    path, _, leaf = name.rpartition(".")
    owner = mechanism.get_submodule(path)
    value = owner._parameters[leaf]
    assert value is not None
    physical = leaf in getattr(owner, "fields", {})

    def move(displacements: Tensor) -> StepOutput:
        moved = value.detach() + displacements.reshape(len(displacements), *value.shape)
        batches = [moved] if physical else list(moved)
        try:
            outputs = []
            for batch in batches:
                owner._parameters[leaf] = batch  # type: ignore[assignment]
                with torch.no_grad():
                    outputs.append(mechanism.step(z, u, warm_start=solution))
        finally:
            owner._parameters[leaf] = value
        return outputs[0] if physical else StepOutput(*(torch.stack(column) for column in zip(*outputs, strict=True)))

    return move


def _differences(loss: Callable[[Tensor], dict[str, Tensor]], basis: Tensor) -> dict[str, Tensor]:
    """Richardson-extrapolated central differences along each row of `basis`; per direction the most settled estimate, (directions,)."""
    count = len(basis)
    displacements = torch.cat([sign * step * basis for step in STEPS for sign in (1, -1)])
    found = {}
    for key, value in loss(displacements).items():
        plus, minus = value.reshape(len(STEPS), 2, count).unbind(1)
        central = (plus - minus) / (2 * torch.tensor(STEPS, dtype=value.dtype)[:, None])
        refined = (16 * central[1:] - central[:-1]) / 15
        change = (refined[1:] - refined[:-1]).abs()
        # Two neighbouring changes and a floor for rounding, so that two noisy estimates which agree by chance are not taken for settled.
        change = torch.maximum(change, torch.cat((change[1:], change[-1:]))) + 1e-13 / torch.tensor(STEPS[2:], dtype=value.dtype)[:, None]
        change = torch.where(torch.isfinite(change), change, torch.inf)
        # From the smallest step up: rounding falls until curvature sets in. Beyond that, estimates may settle again, on another slope
        # (a contact pressed in deeply answers as linearly as one at rest), so the search ends there.
        best = torch.full_like(change[0], len(change) - 1, dtype=torch.long)
        going = torch.ones_like(best, dtype=torch.bool)
        for i in reversed(range(len(change) - 1)):
            least = torch.take_along_dim(change, best[None], 0).squeeze(0)
            going = going & (change[i] <= 100 * least)
            best = torch.where(going & (change[i] < least), i, best)
        found[key] = torch.take_along_dim(refined[1:], best[None], 0).squeeze(0)
    return found
