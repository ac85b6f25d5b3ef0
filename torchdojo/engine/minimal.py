"""Steps in minimal coordinates: from (q, q̇) to the maximal state, one step of this state, and back.

Both maps are smooth functions of plain numbers (state/minimal.py), so a step in minimal coordinates is smooth, too. Autograd passes through
the three functions in turn. Jacobians of the three are multiplied: here with state/minimal_jacobians.py, in the kernel with
native/minimal.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from torchdojo.elements.joints import StandardJoint
from torchdojo.engine.backends import Backends
from torchdojo.engine.observables import in_kernel
from torchdojo.engine.requests import refuse_jacobian, request_of
from torchdojo.engine.rollout import Trajectory
from torchdojo.gradients.checks import check_solved
from torchdojo.gradients.reference_step import StepOutput
from torchdojo.gradients.request import Request
from torchdojo.native.cache import Parameters
from torchdojo.native.tables import StateMap
from torchdojo.parameters import broadcast_shapes, result_tensor, transforming
from torchdojo.solver.options import OnFailure, SolverOptions, Status
from torchdojo.state import minimal
from torchdojo.state.layout import TANGENT_SIZE, neutral_state
from torchdojo.state.minimal_jacobians import maximal_jacobian, minimal_products, without_rates
from torchdojo.state.tangent import local_jacobian
from torchdojo.structure import Structure

__all__ = [
    "Coordinates",
    "MinimalOutput",
    "MinimalPolicy",
    "MinimalTrajectory",
    "check",
    "in_coordinates",
    "jacobians",
    "linearize",
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
    backends.structure.check_state(z)
    return _minimal(backends, backends.map_parameters(options), z)


def _minimal(backends: Backends, parameters: Parameters | None, z: Tensor) -> tuple[Tensor, Tensor]:
    value = in_kernel(backends, parameters, StateMap.TO_MINIMAL, z)
    if value is None:
        structure = backends.structure
        return minimal.to_minimal(structure.tree_order(), structure.num_bodies, z, structure.timestep)
    q, qd = value.chunk(2, dim=-1)
    return q, qd


def to_maximal(backends: Backends, options: SolverOptions, q: Tensor, qd: Tensor | None) -> Tensor:
    """`Mechanism.to_maximal`."""
    q, qd = backends.structure.check_coordinates(q, qd)
    return _maximal(backends, backends.map_parameters(options), q, qd)


def _maximal(backends: Backends, parameters: Parameters | None, q: Tensor, qd: Tensor) -> Tensor:
    z = in_kernel(backends, parameters, StateMap.TO_MAXIMAL, torch.cat((q, qd), dim=-1))
    if z is None:
        structure = backends.structure
        z = minimal.to_maximal(structure.tree_order(), structure.num_bodies, q, qd, structure.timestep)
    return z


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
    """Coordinates (T+1, ..., n), of which each `missing` one (T, ...) is that of the entry before."""
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
        q, qd = torch.broadcast_tensors(q, qd)
        expanded, request = request_of(backends.system, options, q, grad_kappa)
        kernel = backends.kernel(request)
        refuse_jacobian(request.options)
        u, wrench = structure.check_forces(u, None)
        if kernel is None:
            composed = _composed(backends, request, q, qd, u, wrench, warm_start)
            jacobian = composed if out is None else result_tensor(out, composed.shape, composed).copy_(composed)
        else:
            jacobian = kernel.minimal_jacobian(expanded, qd.expand(expanded.shape), u, wrench, warm_start, out)
        size = 2 * q.shape[-1]
        return jacobian[..., :size], jacobian[..., size:]


def _composed(backends: Backends, request: Request, q: Tensor, qd: Tensor, u: Tensor, wrench: Tensor, warm_start: Tensor | None) -> Tensor:
    """The Jacobian of the step, multiplied with the derivatives of both maps."""
    structure, backend = backends.structure, backends.select(request)
    given = Coordinates(backends, request.options, q, qd)
    z, valid = given.z, torch.isfinite(torch.cat((q, qd), dim=-1)).all(-1, keepdim=True)
    if request.grad_kappa is not None:
        z = z.expand(*broadcast_shapes(z.shape[:-1], request.grad_kappa.shape), z.shape[-1])
    out = backend.step(z, u, wrench, warm_start)
    jacobian = backend.jacobian(z, u, wrench, out.solution)
    solved = ((out.status == int(Status.SUCCESS)) & ~without_rates(out.z, structure.timestep))[..., None]
    jacobian = torch.where(solved[..., None], jacobian, 0.0)
    order, nb, h = structure.tree_order(), structure.num_bodies, structure.timestep
    after = torch.where(solved, out.z, neutral_state(z))
    tangents = TANGENT_SIZE * nb
    by_state, by_input = jacobian[..., :tangents], jacobian[..., tangents:]
    q, qd, z = (torch.where(valid, value, other) for value, other in ((q, 0.0), (qd, 0.0), (z, neutral_state(z))))
    if all(isinstance(entry.joint, StandardJoint) for entry in order):
        by_state, by_input = minimal_products(order, nb, after, h, [by_state, by_input])
        return torch.cat((by_state @ maximal_jacobian(order, nb, q, qd, z, h), by_input), dim=-1)

    # A user declares these coordinates, so autograd differentiates both maps.
    def lifted(y: Tensor) -> Tensor:
        q, qd = y.chunk(2, dim=-1)
        return structure.difference(minimal.to_maximal(order, nb, q, qd, h), z)

    def projected(delta: Tensor) -> Tensor:
        return torch.cat(minimal.to_minimal(order, nb, structure.retract(after, delta), h), dim=-1)

    _, by_coordinates = local_jacobian(lifted, torch.cat((q, qd), dim=-1))
    _, projection = local_jacobian(projected, torch.zeros_like(by_state[..., 0]))
    return torch.cat((projection @ by_state @ by_coordinates, projection @ by_input), dim=-1)


def linearize(
    backends: Backends, request: Request, given: Coordinates, u: Tensor, wrench: Tensor, warm_start: Tensor | None, out: Tensor | None
) -> tuple[MinimalOutput, Tensor]:
    """One step from given coordinates, and its Jacobian (..., 2n, 2n + nu)."""
    kernel = backends.kernel(request)
    if kernel is not None and not _hidden():
        solved, jacobian = kernel.minimal_linearize(given.q, given.qd, u, wrench, warm_start, out)
    else:
        solved = backends.select(request).step(given.z, u, wrench, warm_start)
        composed = _composed(backends, request, given.q, given.qd, u, wrench, solved.solution)
        jacobian = composed if out is None else result_tensor(out, composed.shape, composed).copy_(composed)
    return given.after_step(solved), jacobian


def in_coordinates(backends: Backends, given: Coordinates, solved: StepOutput, jacobian: Tensor, out: Tensor | None) -> Tensor:
    """The Jacobian (..., 2n, 2n + m) of steps between coordinates, from that on the tangent space (..., 12 nb, 12 nb + m)."""
    structure = backends.structure
    order, nb, h = structure.tree_order(), structure.num_bodies, structure.timestep
    good = ((solved.status == int(Status.SUCCESS)) & ~without_rates(solved.z, h))[..., None]
    after, tangents = torch.where(good, solved.z, neutral_state(solved.z)), TANGENT_SIZE * nb
    jacobian = torch.where(good[..., None], jacobian, 0.0)
    by_state, by_input = minimal_products(order, nb, after, h, [jacobian[..., :tangents], jacobian[..., tangents:]])
    valid = torch.isfinite(given.z).all(-1, keepdim=True)
    q, qd = (torch.where(valid, value, 0.0) for value in (given.q, given.qd))
    lifted = maximal_jacobian(order, nb, q, qd, torch.where(valid, given.z, neutral_state(given.z)), h)
    result = torch.cat((by_state @ lifted, by_input), dim=-1)
    return result if out is None else result_tensor(out, result.shape, result).copy_(result)


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
