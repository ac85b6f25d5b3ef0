"""A report on the gradient of one step: differences beside it, the conditioning of its linear system, and the contacts that act."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from torchdojo.gradients.reference_step import StepOutput
from torchdojo.mechanism import Mechanism
from torchdojo.solver.options import GradientMode
from torchdojo.testing import differences
from torchdojo.testing.active_set import ActiveContact, ActiveSet, active_set
from torchdojo.testing.comparison import Comparison
from torchdojo.testing.conditioning import balanced, derivative, step_problem

__all__ = ["InputRow", "StepReport", "gradient_report"]

LARGE_CONDITION = 1e12  # four digits are left of the sixteen of float64
PARTS = ("bodies", "joints", "contacts", "couplings", "tendons")


class InputRow(NamedTuple):
    """One input of the step: name, number of entries, and the derivative of the loss along the direction that agrees least.

    analytic: from backward. numeric: from central differences.
    difference: the largest |analytic − numeric| over all directions, relative to the largest entry of the gradient. The latter counts as at
        least a thousandth of the entry for the state, because differences resolve no more.
    """

    name: str
    entries: int
    analytic: float
    numeric: float
    difference: float


@dataclass(frozen=True)
class StepReport:
    """Gradients of one step beside differences, and the numbers that they depend on; `print` shows a table.

    rows: one per input. kappa: of the step. grad_kappa: of the gradient, None if it is the same. mode: of the gradients.
    condition: condition number of the derivative of all equations with respect to all unknowns, which depends on units.
    condition_balanced: the same number with rows and columns scaled to unit length, which does not depend on units.
    active: modes of contacts, limits and frictions of joints.
    """

    rows: list[InputRow]
    kappa: float
    grad_kappa: float | None
    mode: GradientMode
    condition: float
    condition_balanced: float
    active: ActiveSet

    @property
    def worst(self) -> InputRow:
        """The input whose gradient agrees least."""
        return max(self.rows, key=lambda row: row.difference)

    def ok(self, tolerance: float = 1e-6) -> bool:
        """Whether all gradients agree with the differences to a relative tolerance. Smoothed gradients do not, by design (`smoothed`)."""
        return self.worst.difference <= tolerance

    @property
    def smoothed(self) -> bool:
        """Whether gradients are taken at another kappa than the step, or in another mode, and so differ from the step's own gradients."""
        return self.grad_kappa is not None or self.mode is not GradientMode.CENTRAL_PATH

    def __str__(self) -> str:
        table = [("input", "entries", "analytic", "differences", "relative difference")]
        table += [(row.name, str(row.entries), f"{row.analytic:.9g}", f"{row.numeric:.9g}", f"{row.difference:.1e}") for row in self.rows]
        widths = [max(len(line[i]) for line in table) for i in range(5)]
        lines = [
            "  ".join([line[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(line[1:], widths[1:], strict=True))]) for line in table
        ]
        lines.append(f"worst: {self.worst.name}, {self.worst.difference:.1e}; kappa {self.kappa:g}")
        if self.mode is not GradientMode.CENTRAL_PATH:
            lines.append(
                f"gradients are those of the mode {self.mode.value!r}, while differences are those of the step at kappa {self.kappa:g}. "
                "They differ by design, near events most; with gradient_mode='central_path' they can be compared"
            )
        elif self.grad_kappa is not None:
            lines.append(
                f"gradients are smoothed: taken at grad_kappa {self.grad_kappa:g}, while differences are those of the step at kappa "
                f"{self.kappa:g}. They are derivatives of two functions and differ by design; with grad_kappa=None they can be compared"
            )
        lines.append(f"condition number of the linear system: {self.condition:.2g}, balanced {self.condition_balanced:.2g}")
        if self.condition_balanced > LARGE_CONDITION:
            lines.append("  which leaves few digits of the gradient: use a larger kappa")
        return "\n".join([*lines, *_describe(self.active)])


def gradient_report(
    mechanism: Mechanism,
    z: Tensor,
    u: Tensor | None = None,
    *,
    wrench: Tensor | None = None,
    loss: Callable[[StepOutput], Tensor] | None = None,
    parameters: str | Sequence[str] = "trainable",
    directions: int | None = 3,
    seed: int = 0,
) -> StepReport:
    """Compare the gradient of a scalar of one step with central differences, input by input, and report its circumstances.

    Inputs are the tangent of z body by body ("z.box"), u, the wrench body by body, and parameters. The differences are
    taken at step sizes from 1e-11 to 1e-3 (of forces, to 16 mN) and fitted by polynomials. For each direction, the fit with the smallest
    standard error counts. The step is solved to 1e-10, and otherwise has the options of the mechanism. With a `grad_kappa` or another
    `gradient_mode`, gradients do not agree with differences, by design, and the report says so.

    Args:
        mechanism: float64. z: (13 nb,), one environment. u: (nu,), and wrench: (6 nb,), or None for zero.
        loss: function of a `StepOutput`, for any number of environments (..., 13 nb) -> (...,). Default: a random combination of the
        tangent
            coordinates of the next state.
        parameters: "trainable": each that requires grad; "all": each; "classes": all, with each kind together ("bodies.*.mass"); or the
            beginnings of names.
        directions: random ones per input, with normally distributed entries; None: all coordinate axes.

    Raises:
        ValueError: batched states or parameters, a step that fails here, a loss of another shape, parameters that do not exist.
    """
    options = mechanism.options
    kappa, grad_kappa = options.kappa, options.grad_kappa
    with differences.converged(mechanism):
        compared = Comparison("gradient_report", mechanism, z, u, wrench, seed)
        rows = _rows(compared, loss, _groups(mechanism, parameters), directions)
        with torch.no_grad():
            problem, w = step_problem(mechanism, *compared.data), compared.base.solution
            matrix = derivative(problem, w)
            modes = active_set(mechanism, problem, w)
    conditions = float(torch.linalg.cond(matrix)), float(torch.linalg.cond(balanced(matrix)))
    return StepReport(rows, kappa, None if grad_kappa == kappa else grad_kappa, GradientMode(options.gradient_mode), *conditions, modes)


def _rows(
    compared: Comparison, loss: Callable[[StepOutput], Tensor] | None, groups: dict[str, list[str]], directions: int | None
) -> list[InputRow]:
    weights = compared.random(compared.sizes["z"])
    loss_function = loss or (lambda out: compared.tangent(out) @ weights)

    def losses(out: StepOutput) -> dict[str, Tensor]:
        value = loss_function(out)
        if value.shape != out.status.shape:
            raise ValueError(
                f"gradient_report: the loss of outputs with batch dimensions {tuple(out.status.shape)} has shape {tuple(value.shape)}; "
                "allowed: one number per environment, summed over the last dimension of out.z"
            )
        return {"loss": value}

    names = [name for group in groups.values() for name in group]
    gradients = compared.gradients(losses, names)
    if not gradients:  # a loss without a graph
        sizes = [*compared.sizes.values(), *(compared.mechanism.get_parameter(name).numel() for name in names)]
        gradients = {"loss": [weights.new_zeros(size) for size in sizes]}
    resolved = 1e-3 * max(1.0, float(gradients["loss"][0].abs().max()))
    data = [*compared.by_body("z"), *([compared.whole("u")] if compared.sizes["u"] else []), *compared.by_body("wrench")]
    inputs = [*data, *compared.parameters(groups)]
    bases = []
    for entry in inputs:
        size = len(entry.pick(gradients["loss"]))
        basis = differences.directions(size, directions, compared.generator).to(weights)
        # Entries of order one, so that errors of all entries add up in every direction.
        bases.append(basis * size**0.5 if directions is not None and directions < size else basis)
    rows = []
    for entry, derivatives in zip(inputs, compared.along(inputs, losses, gradients, bases), strict=True):
        gradient = entry.pick(gradients["loss"])
        analytic, numeric = derivatives["loss"]
        apart = torch.where(torch.isfinite(analytic) & torch.isfinite(numeric), (analytic - numeric).abs(), torch.inf)
        worst = int(apart.argmax())
        scale = max(float(gradient.abs().nan_to_num().max()), resolved)
        rows.append(InputRow(entry.name, len(gradient), float(analytic[worst]), float(numeric[worst]), float(apart[worst]) / scale))
    return rows


def _groups(mechanism: Mechanism, parameters: str | Sequence[str]) -> dict[str, list[str]]:
    """Rows of the report: label -> names of the parameters in it."""
    # a step with an input u does not read actuators
    every = {name: p for name, p in mechanism.named_parameters() if p.is_floating_point() and not name.startswith("actuators.")}
    if parameters == "trainable":
        return {name: [name] for name, p in every.items() if p.requires_grad}
    if parameters == "all":
        return {name: [name] for name in every}
    if parameters == "classes":
        groups: dict[str, list[str]] = {}
        for name in every:
            part, _, rest = name.partition(".")
            label = f"{part}.*.{rest.partition('.')[2]}" if part in PARTS else name
            groups.setdefault(label, []).append(name)
        return groups
    prefixes = (parameters,) if isinstance(parameters, str) else tuple(parameters)
    lost = [prefix for prefix in prefixes if not any(name.startswith(prefix) for name in every)]
    if lost:
        raise ValueError(
            f'gradient_report: no parameter begins with {lost[0]!r}; allowed: "trainable", "all", "classes", or beginnings of {list(every)}'
        )
    return {name: [name] for name in every if name.startswith(prefixes)}


def _describe(active: ActiveSet) -> list[str]:
    closed: list[tuple[str, ActiveContact]] = [(name, contact) for name, contact in active.contacts.items() if contact.mode != "open"]
    lines = [f"contacts: {len(closed)} of {len(active.contacts)} closed"] if active.contacts else []
    lines += [f"  {name}: {c.mode}, gap {c.gap:.2g} m, impulse {c.impulse:.3g} N·s" for name, c in closed]
    if active.limits:
        reached = [f"{joint} ({', '.join(sides)})" for joint, sides in active.limits.items() if sides]
        lines.append(f"limits: {'; '.join(reached) or 'none acts'}")
    if active.velocities:
        reached = [f"{joint} ({', '.join(sides)})" for joint, sides in active.velocities.items() if sides]
        lines.append(f"limits of speed: {'; '.join(reached) or 'none acts'}")
    if active.drives:
        clipped = [f"{joint} ({', '.join(places)})" for joint, places in active.drives.items() if places]
        lines.append(f"clipped servos: {'; '.join(clipped) or 'none'}")
    if active.frictions:
        lines.append("frictions of joints: " + "; ".join(f"{joint} {', '.join(modes)}" for joint, modes in active.frictions.items()))
    return lines
