"""Steps in minimal coordinates: from (q, q̇) to the maximal state, one step of this state, and back.

Both maps are smooth functions of plain numbers (state/minimal.py), so a step in minimal coordinates is smooth, too. Autograd passes through
the three functions in turn. Jacobians of the three are multiplied: in composed.py with state/minimal_jacobians.py, in the kernel with
native/minimal_linearization.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from torchdojo.engine.backend import visiting
from torchdojo.engine.backends import Backends
from torchdojo.engine.composed import in_coordinates
from torchdojo.engine.observables import mapped
from torchdojo.engine.requests import refuse_jacobian, request_of
from torchdojo.engine.rollout import Trajectory
from torchdojo.gradients.checks import check_solved
from torchdojo.gradients.reference_step import StepOutput
from torchdojo.gradients.request import Request, StepInputs
from torchdojo.native.cache import Parameters
from torchdojo.native.tables import StateMap
from torchdojo.parameters import transforming
from torchdojo.solver.options import OnFailure, SolverOptions, Status
from torchdojo.state.layout import neutral_state
from torchdojo.state.minimal_jacobians import without_rates
from torchdojo.structure import Structure

__all__ = [
    "Coordinates",
    "MinimalOutput",
    "MinimalPolicy",
    "MinimalTrajectory",
    "check",
    "jacobians",
    "linearize",
    "of_period",
    "to_maximal",
    "to_minimal",
]

MinimalPolicy = Callable[[Tensor, Tensor], Tensor]  # u from q and qd


class MinimalOutput(NamedTuple):
    """Result of one step in minimal coordinates: q and qd (..., num_coordinates), then the fields of `StepOutput`."""

    q: Tensor
    qd: Tensor
    z: Tensor
    impulses: Tensor
    status: Tensor
    iterations: Tensor
    solution: Tensor
    substeps: Tensor


class MinimalTrajectory(NamedTuple):
    """Result of a rollout in minimal coordinates: q and qd (..., T+1, num_coordinates), then the fields of `Trajectory`."""

    q: Tensor
    qd: Tensor
    z: Tensor
    u: Tensor
    impulses: Tensor
    status: Tensor
    iterations: Tensor
    substeps: Tensor
    solution: Tensor


def to_minimal(backends: Backends, options: SolverOptions, z: Tensor) -> tuple[Tensor, Tensor]:
    """`Mechanism.to_minimal`."""
    backends.structure.check_state(z, like=visiting(backends.structure, z))
    return _minimal(backends, backends.map_parameters(options), z)


def _minimal(backends: Backends, parameters: Parameters | None, z: Tensor) -> tuple[Tensor, Tensor]:
    q, qd = mapped(backends, parameters, StateMap.TO_MINIMAL, z).chunk(2, dim=-1)
    return q, qd


def to_maximal(backends: Backends, options: SolverOptions, q: Tensor, qd: Tensor | None) -> Tensor:
    """`Mechanism.to_maximal`."""
    q, qd = backends.structure.check_coordinates(q, qd, visiting(backends.structure, q))
    return _maximal(backends, backends.map_parameters(options), q, qd)


def _maximal(backends: Backends, parameters: Parameters | None, q: Tensor, qd: Tensor) -> Tensor:
    return mapped(backends, parameters, StateMap.TO_MAXIMAL, torch.cat((q, qd), dim=-1))


class Coordinates:
    """Coordinates q and qd from which steps start.

    Attributes:
        z: their state (..., 13 nb), NaN where q or qd is not finite.
        valid: mask (..., 1) of finite coordinates, or None if all are finite.

    Raises:
        ValueError: loops or couplings, and coordinates that do not fit.
    """

    def __init__(self, backends: Backends, options: SolverOptions, q: Tensor, qd: Tensor) -> None:
        check(backends.structure, q, qd)
        self.backends, self.options, self.parameters = backends, options, backends.map_parameters(options)
        if q.shape != qd.shape:
            q, qd = torch.broadcast_tensors(q, qd)
        self.q, self.qd = q, qd
        self.valid: Tensor | None = None
        if not _hidden() and math.isfinite(float(q.detach().sum() + qd.detach().sum())):
            self.z = _maximal(backends, self.parameters, q, qd)
            return
        self.valid = valid = (torch.isfinite(q) & torch.isfinite(qd)).all(-1, keepdim=True)
        z = _maximal(backends, self.parameters, torch.where(valid, q, 0.0), torch.where(valid, qd, 0.0))
        self.z = torch.where(valid, z, torch.nan)

    def after_step(self, out: StepOutput) -> MinimalOutput:
        """A step `out` from the state, with the coordinates of its result. A failed step keeps q and qd.

        A split step fails if a body then spins too fast for a rate over the whole step (`without_rates`).
        """
        if not _hidden() and not bool(((out.status != int(Status.SUCCESS)) | (out.substeps > 1)).any()):
            return MinimalOutput(*_minimal(self.backends, self.parameters, out.z), *out)
        fast, status = self._flagged(out.z, out.status)
        out = out._replace(status=status, z=torch.where(fast[..., None], self.z.detach(), out.z))
        solved = (out.status == int(Status.SUCCESS))[..., None]
        new = _minimal(self.backends, self.parameters, torch.where(solved, out.z, neutral_state(out.z)))
        kept = [torch.where(solved, after, before.detach()) for after, before in zip(new, (self.q, self.qd), strict=True)]
        return MinimalOutput(kept[0], kept[1], *out)

    def after_rollout(self, path: Trajectory) -> MinimalTrajectory:
        """A trajectory from the state, with the coordinates of its states.

        A state in which a body spins too fast for a rate over a whole step (`without_rates`) is flagged, and has the coordinates of the
        state before it. The rollout itself goes on.
        """
        # Steps come first, so that batch dimensions of parameters fit behind them. The first entry holds the given coordinates.
        after = path.z.movedim(-2, 0)[1:]
        fast: Tensor | None = None
        if _hidden() or bool((path.substeps > 1).any()):
            fast, status = self._flagged(after, path.status.movedim(-1, 0))
            path = path._replace(status=status.movedim(0, -1))
            after = torch.where(fast[..., None], neutral_state(path.z), after)
        if self.valid is not None:
            after = torch.where(self.valid, after, neutral_state(path.z))
        columns = []
        for first, rest in zip((self.q, self.qd), _minimal(self.backends, self.parameters, after), strict=True):
            if self.valid is not None:
                rest = torch.where(self.valid, rest, first.detach())
            column = torch.cat((first.expand_as(rest[:1]), rest))
            columns.append((column if fast is None else _held(column, fast)).movedim(0, -2))
        return MinimalTrajectory(columns[0], columns[1], *path)

    def _flagged(self, z: Tensor, status: Tensor) -> tuple[Tensor, Tensor]:
        """Whether states z (..., 13 nb) have no rates, and the status (...,) with these flagged, or an error if failures raise."""
        fast = without_rates(z, self.backends.structure.timestep)
        status = torch.where(fast & (status == int(Status.SUCCESS)), int(Status.MAX_ITERATIONS), status)
        if self.options.on_failure is OnFailure.RAISE and not _hidden():
            check_solved(torch.where(fast, status, int(Status.SUCCESS)))
        return fast, status


def _held(column: Tensor, missing: Tensor) -> Tensor:
    """Coordinates (T+1, ..., n), where each `missing` entry (T, ...) is replaced by the one before."""
    entry = torch.arange(1, len(column), device=column.device).reshape(-1, *[1] * (missing.ndim - 1))
    last = torch.where(missing, 0, entry).cummax(0).values
    last = torch.cat((torch.zeros_like(last[:1]), last))[..., None]
    return column.gather(0, last.expand_as(column))


def _hidden() -> bool:
    """Whether values of tensors cannot be read."""
    return torch.compiler.is_compiling() or transforming()


def jacobians(
    backends: Backends,
    options: SolverOptions,
    q: Tensor,
    qd: Tensor,
    u: Tensor | None,
    warm_start: Tensor | None,
    grad_kappa: float | Tensor | None,
    out: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """`Mechanism.jacobians_minimal`."""
    structure = backends.structure
    check(structure, q, qd)
    with torch.no_grad():
        if q.shape != qd.shape:
            q, qd = torch.broadcast_tensors(q, qd)
        q, request = request_of(backends.system, options, q, grad_kappa)
        refuse_jacobian(request.options)
        inputs = _checked_inputs(structure, q, qd, u, None, warm_start)
        jacobian = backends.select(request).minimal_jacobian(inputs, out)
        size = 2 * q.shape[-1]
        return jacobian[..., :size], jacobian[..., size:]


def _checked_inputs(
    structure: Structure, q: Tensor, qd: Tensor, u: Tensor | None, wrench: Tensor | None, warm_start: Tensor | None
) -> StepInputs:
    """Checked inputs of a step between coordinates."""
    u, _ = structure.check_forces(u, None)
    return StepInputs(torch.cat((q, qd if qd.shape == q.shape else qd.expand(q.shape)), dim=-1), u, wrench, warm_start)


def linearize(
    backends: Backends,
    request: Request,
    given: Coordinates,
    u: Tensor,
    wrench: Tensor | None,
    warm_start: Tensor | None,
    out: Tensor | None,
) -> tuple[MinimalOutput, Tensor]:
    """One step from given coordinates, and its Jacobian (..., 2n, 2n + nu)."""
    step = _checked_inputs(backends.structure, given.q, given.qd, u, wrench, warm_start)
    solved, jacobian = backends.select(request).minimal_linearize(step, out)
    return given.after_step(solved), jacobian


def of_period(structure: Structure, given: Coordinates, solved: StepOutput, jacobian: Tensor, out: Tensor | None) -> Tensor:
    """The Jacobian (..., 2n, 2n + m) of steps between coordinates, from that on the tangent space (..., 12 nb, 12 nb + m)."""
    return in_coordinates(structure, torch.cat((given.q, given.qd), dim=-1), given.z, solved, jacobian, out)


def check(structure: Structure, q: Tensor, qd: Tensor) -> None:
    """Raise ValueError for loops or couplings, and for coordinates that do not fit."""
    if structure.has_loops:
        tree = structure.tree_joints
        closing = [f"joint {name!r}" for name in structure.joints if name not in tree] + [
            f"coupling {name!r}" for name in structure.couplings
        ]
        raise ValueError(
            f"step_minimal, rollout_minimal and jacobians_minimal need coordinates that are independent of each other, but they are "
            f"constrained by {', '.join(closing)}; step maximal states: mech.step(mech.close_loops(mech.to_maximal(q, qd)), u), and "
            f"mech.to_minimal of its result"
        )
    structure.check_tensor("q", q, structure.num_coordinates)
    structure.check_tensor("qd", qd, structure.num_coordinates)
