"""Central differences of a step, as accurate as rounding allows, and the settings that they need."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

from torchdojo.parametrize import Bounded, LogCholeskyInertia, Positive, Unit

if TYPE_CHECKING:
    from torchdojo.mechanism import Mechanism

__all__ = ["batchable", "central", "converged", "directions", "parameter_mover", "requiring_grad"]

#: A tuple of tensors with batch dimensions in front: `StepOutput`, `Trajectory`.
Output = TypeVar("Output", bound=tuple[Any, ...])

# Central differences are taken at steps from this largest one down, and extrapolated in windows. Flight is linear within meters, contact at
# small kappa within micrometers. A contact pressed hard (2 µm), together with joints that are pulled apart, is linear within nanometers.
LARGEST_STEP, SHRINK, COUNT = 1e-3, 2.0, 27
ORDERS, SPARE = (2, 3, 4, 5), 3  # terms of the polynomials in s², and how many more steps than terms a window has
# Rounding is what polynomials with so many even terms leave at so many of the smallest steps, and at least a bit of a loss of order one.
SMALLEST, EVEN, LEAST_ROUNDING = 8, 3, 1e-15
# Largest step of forces and torques: 16 mN move a body of 1 kg by 1.6 µm in a step of 0.01 s. Effects of smaller forces drown in rounding.
LARGEST_FORCE = 1.6e-2


@contextlib.contextmanager
def converged(mechanism: Mechanism, **options: Any) -> Iterator[None]:
    """Solve far more tightly than a simulation needs, without splitting steps, so that differences can be taken."""
    kept = mechanism.options
    tight: dict[str, Any] = dict(residual_tol=1e-10, central_path_tol=1e-6, min_iterations=8, max_halvings=0)
    mechanism.options = dataclasses.replace(kept, **{**tight, **options})
    try:
        yield
    finally:
        mechanism.options = kept


@contextlib.contextmanager
def requiring_grad(parameters: Iterable[Tensor]) -> Iterator[None]:
    """Let parameters require grad for a while."""
    parameters = list(parameters)
    wanted = [p.requires_grad for p in parameters]
    try:
        for p in parameters:
            p.requires_grad_(True)
        yield
    finally:
        for p, before in zip(parameters, wanted, strict=True):
            p.requires_grad_(before)


def directions(size: int, count: int | None, generator: torch.Generator) -> Tensor:
    """(directions, size): the coordinate axes, or `count` random combinations of them."""
    if count is None or count >= size:
        return torch.eye(size)
    return torch.randn(count, size, generator=generator) / size**0.5


def batchable(mechanism: Mechanism, names: Iterable[str]) -> set[str]:
    """The named parameters that may have batch dimensions: physical fields and tensors of user-written elements."""
    of_elements = {
        (element.get_submodule(path.rpartition(".")[0]), path.rpartition(".")[2])
        for element in mechanism.elements().values()
        for path in element.extra_state_names()
    }
    places = {name: _places(mechanism, mechanism.get_parameter(name)) for name in names}
    return {name for name, several in places.items() if all(place in of_elements or _takes_batch(*place) for place in several)}


def parameter_mover(mechanism: Mechanism, names: Sequence[str], run: Callable[[], Output]) -> Callable[[Tensor], Output]:
    """A function of displacements (n, total size of the named parameters) that returns the result of `run` for n environments.

    Physical fields and tensors of user-written elements take one batch. Tensors behind a user's own parametrization take one value after
    the other.
    """
    values = [mechanism.get_parameter(name).detach() for name in names]
    places = [_places(mechanism, mechanism.get_parameter(name)) for name in names]
    batched = batchable(mechanism, names).issuperset(names)

    def move(displacements: Tensor) -> Output:
        pieces = displacements.split([value.numel() for value in values], dim=-1)
        moved = [value + piece.reshape(-1, *value.shape) for value, piece in zip(values, pieces, strict=True)]
        if batched:
            return _with(places, moved, run)
        outputs = [_with(places, [batch[i] for batch in moved], run) for i in range(len(displacements))]
        return type(outputs[0])(*(torch.stack(column) for column in zip(*outputs, strict=True)))

    return move


def _places(mechanism: nn.Module, parameter: Tensor) -> list[tuple[nn.Module, str]]:
    """Where a parameter is: more than one place where modules share it."""
    return [(owner, leaf) for owner in mechanism.modules() for leaf, value in owner._parameters.items() if value is parameter]


def _takes_batch(owner: nn.Module, leaf: str) -> bool:
    if isinstance(owner, nn.utils.parametrize.ParametrizationList):
        return all(isinstance(p, (Positive, Bounded, Unit, LogCholeskyInertia)) for p in owner)
    return leaf in getattr(owner, "fields", {})


def _with(places: Sequence[Sequence[tuple[nn.Module, str]]], values: Sequence[Tensor], run: Callable[[], Output]) -> Output:
    """`run` while the parameters at these places have other values."""
    kept = [(owner, leaf, owner._parameters[leaf]) for several in places for owner, leaf in several]
    try:
        for several, value in zip(places, values, strict=True):
            for owner, leaf in several:
                owner._parameters[leaf] = value  # type: ignore[assignment]
        with torch.no_grad():
            return run()
    finally:
        for owner, leaf, parameter in kept:
            owner._parameters[leaf] = parameter


def central(loss: Callable[[Tensor], dict[str, Tensor]], basis: Tensor, largest: float = LARGEST_STEP) -> dict[str, Tensor]:
    """Central differences along each row of `basis`, extrapolated to a step of zero; per direction the surest estimate, (directions,).

    A central difference is the derivative plus even powers of the step s, plus rounding in proportion to 1/s. Polynomials in s² are fitted
    to windows of adjacent steps, weighted by s. The surest fit has the smallest standard error. It grows where residuals exceed rounding.
    """
    count = len(basis)
    steps = largest / SHRINK ** torch.arange(COUNT, dtype=basis.dtype)
    displacements = torch.cat([sign * step * basis for step in steps for sign in (1, -1)])
    estimates = {}
    for key, value in loss(displacements).items():
        # A step that reads nothing of what moves has no batch: controls of actuators, say, without a call of them.
        value = value.expand(len(displacements)) if not value.ndim else value
        plus, minus = value.reshape(COUNT, 2, count).unbind(1)
        rounding = _rounding(plus + minus, steps)
        estimate, error = _fits((plus - minus) / (2 * steps[:, None]), steps, rounding)
        # From the smallest step up, rounding falls until curvature sets in. The search ends there, because estimates may settle again on
        # another slope: a contact pressed in deeply answers as linearly as one at rest.
        best = torch.full_like(error[0], len(error) - 1, dtype=torch.long)
        going = torch.ones_like(best, dtype=torch.bool)
        for i in reversed(range(len(error) - 1)):
            least = torch.take_along_dim(error, best[None], 0).squeeze(0)
            going = going & (error[i] <= 100 * least)
            best = torch.where(going & (error[i] < least), i, best)
        estimates[key] = torch.take_along_dim(estimate, best[None], 0).squeeze(0)
    return estimates


def _rounding(sums: Tensor, steps: Tensor) -> Tensor:
    """Standard deviation of sums of both sides, (steps, directions): what even polynomials leave of them at the smallest steps."""
    s = steps[-SMALLEST:] / steps[-SMALLEST]
    powers = s[:, None] ** (2 * torch.arange(EVEN))
    changes = sums[-SMALLEST:] - sums[-1]  # the large common part would leave its own rounding in the fit
    left = changes - powers @ (torch.linalg.pinv(powers, rtol=0.0) @ changes)
    return (left.square().sum(0) / (SMALLEST - EVEN)).nan_to_num(posinf=0.0).mean().sqrt() + LEAST_ROUNDING


def _fits(differences: Tensor, steps: Tensor, rounding: Tensor) -> tuple[Tensor, Tensor]:
    """The derivatives, and their standard errors, that fit windows of differences (steps, directions); the surest order per window.

    The windows begin at each step in turn, largest steps first: (windows, directions). `rounding` is the error of a sum of two values.
    """
    columns = []
    for start in range(len(steps) - ORDERS[0] - SPARE + 1):
        fits = []
        for order in ORDERS:
            window = slice(start, start + order + SPARE)
            if window.stop > len(steps):
                continue
            s = steps[window] / steps[start]
            # Rows are multiplied by s, after which rounding is the same in all of them.
            powers = s[:, None] ** (2 * torch.arange(order) + 1)
            inverse = torch.linalg.pinv(powers, rtol=0.0)
            scaled = differences[window] * s[:, None]
            coefficients = inverse @ scaled
            deviation = rounding / (2 * steps[start])
            excess = ((scaled - powers @ coefficients).square().sum(0) / SPARE).sqrt()
            error = inverse[0].norm() * torch.maximum(excess, deviation)
            fits.append((coefficients[0], torch.where(torch.isfinite(error), error, torch.inf)))
        estimate, error = (torch.stack(column) for column in zip(*fits, strict=True))
        surest = error.argmin(0, keepdim=True)
        columns.append([torch.take_along_dim(column, surest, 0).squeeze(0) for column in (estimate, error)])
    estimates, errors = zip(*columns, strict=True)
    return torch.stack(estimates), torch.stack(errors)
