"""Steps in minimal coordinates: (q, q̇) to the maximal state, one step of it, and back.

Both maps are smooth functions of plain numbers (state.py), so a step in minimal coordinates is one too, and what differentiates the step
differentiates it: autograd through the three in turn, or their Jacobians multiplied (state_jacobians.py; by the kernel: native/minimal.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from torchdojo.dynamics.integrator import STATE_SIZE
from torchdojo.dynamics.residual import local_jacobian
from torchdojo.elements.joints import StandardJoint
from torchdojo.engine.smoothing import differentiation, refuse_jacobian
from torchdojo.native import ops
from torchdojo.parameters import result_tensor
from torchdojo.solver.options import Status
from torchdojo.state.loops import has_loops
from torchdojo.state.minimal_jacobians import maximal_jacobian, minimal_products

if TYPE_CHECKING:
    from torchdojo.mechanism import Mechanism

__all__ = ["MinimalOutput", "MinimalPolicy", "MinimalTrajectory", "jacobians", "rollout", "step"]

MinimalPolicy = Callable[[Tensor, Tensor], Tensor]  # of q and qd


class MinimalOutput(NamedTuple):
    """Result of one step in minimal coordinates, q and qd (..., num_coordinates); the rest is that of `StepOutput`."""

    q: Tensor
    qd: Tensor
    z: Tensor
    impulses: Tensor
    status: Tensor
    iterations: Tensor
    solution: Tensor
    substeps: Tensor


class MinimalTrajectory(NamedTuple):
    """Result of a rollout in minimal coordinates, q and qd (..., T+1, num_coordinates); the rest is that of `Trajectory`."""

    q: Tensor
    qd: Tensor
    z: Tensor
    u: Tensor
    impulses: Tensor
    status: Tensor
    iterations: Tensor
    substeps: Tensor


def step(mech: Mechanism, q: Tensor, qd: Tensor, u: Tensor | None, options: Mapping[str, Any]) -> MinimalOutput:
    """`Mechanism.step_minimal`."""
    z, _ = _lift(mech, q, qd)
    out = mech.step(z, u, **options)
    solved = (out.status == int(Status.SUCCESS))[..., None]
    new = mech.to_minimal(torch.where(solved, out.z, _neutral(z)))
    kept = [torch.where(solved, after, before.detach()) for after, before in zip(new, torch.broadcast_tensors(q, qd), strict=True)]
    return MinimalOutput(kept[0], kept[1], *out)


def rollout(mech: Mechanism, q: Tensor, qd: Tensor, u: Tensor | MinimalPolicy | None, options: Mapping[str, Any]) -> MinimalTrajectory:
    """`Mechanism.rollout_minimal`."""
    z, valid = _lift(mech, q, qd)
    given = u if u is None or isinstance(u, Tensor) else (lambda z: u(*mech.to_minimal(z)))
    path = mech.rollout(z, given, **options)
    # The steps in front, so that batch dimensions of parameters fit behind them; the first entry is what was given.
    after = torch.where(valid, path.z.movedim(-2, 0)[1:], _neutral(z))
    columns = []
    for first, rest in zip(torch.broadcast_tensors(q, qd), mech.to_minimal(after), strict=True):
        rest = torch.where(valid, rest, first.detach())
        columns.append(torch.cat((first.expand_as(rest[:1]), rest)).movedim(0, -2))
    return MinimalTrajectory(columns[0], columns[1], *path)


def jacobians(
    mech: Mechanism,
    q: Tensor,
    qd: Tensor,
    u: Tensor | None,
    warm_start: Tensor | None,
    grad_kappa: float | Tensor | None,
    out: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """`Mechanism.jacobians_minimal`."""
    _check(mech, q, qd)
    with torch.no_grad():
        q, qd = torch.broadcast_tensors(q, qd)
        expanded, how = differentiation(mech, q, grad_kappa)
        native = None if how.options.randomized is not None else mech._native(how)
        if native is None:
            found = _composed(mech, q, qd, u, dict(warm_start=warm_start, grad_kappa=grad_kappa))
            jacobian = found if out is None else result_tensor(out, found.shape, found).copy_(found)
        else:
            refuse_jacobian(how.options)
            u, wrench = mech._check_forces(u, None)
            jacobian = ops.minimal_jacobian(native, mech._known(native), expanded, qd.expand(expanded.shape), u, wrench, warm_start, out)
        size = 2 * q.shape[-1]
        return jacobian[..., :size], jacobian[..., size:]


def _composed(mech: Mechanism, q: Tensor, qd: Tensor, u: Tensor | None, options: dict[str, Any]) -> Tensor:
    """`mech.jacobians` between the derivatives of both maps."""
    z, valid = _lift(mech, q, qd)
    out = mech.step(z, u, **options)
    by_state, by_input = mech.jacobians(z, u, **{**options, "warm_start": out.solution})
    solved = (out.status == int(Status.SUCCESS))[..., None]
    order, nb, h = mech._order(), mech.num_bodies, mech.timestep
    after = torch.where(solved, out.z, _neutral(z))
    q, qd, z = (torch.where(valid, value, other) for value, other in ((q, 0.0), (qd, 0.0), (z, _neutral(z))))
    if all(isinstance(entry.joint, StandardJoint) for entry in order):
        by_state, by_input = minimal_products(order, nb, after, h, [by_state, by_input])
        return torch.cat((by_state @ maximal_jacobian(order, nb, q, qd, z, h), by_input), dim=-1)
    # Coordinates that a user declared: both maps by autograd.
    _, lift = local_jacobian(lambda y: mech.difference(mech.to_maximal(*y.chunk(2, dim=-1)), z), torch.cat((q, qd), dim=-1))
    _, project = local_jacobian(lambda d: torch.cat(mech.to_minimal(mech.retract(after, d)), dim=-1), torch.zeros_like(by_state[..., 0]))
    return torch.cat((project @ by_state @ lift, project @ by_input), dim=-1)


def _lift(mech: Mechanism, q: Tensor, qd: Tensor) -> tuple[Tensor, Tensor]:
    """z (..., 13 nb), not a number where q or qd are not, and where they are numbers, (..., 1)."""
    _check(mech, q, qd)
    valid = (torch.isfinite(q) & torch.isfinite(qd)).all(-1, keepdim=True)
    z = mech.to_maximal(torch.where(valid, q, 0.0), torch.where(valid, qd, 0.0))
    return torch.where(valid, z, torch.nan), valid


def _check(mech: Mechanism, q: Tensor, qd: Tensor) -> None:
    """Raise ValueError for loops or couplings, and for coordinates that do not fit."""
    if has_loops(mech):
        tree = mech.tree_joints
        closing = [f"joint {name!r}" for name in mech.joints if name not in tree] + [f"coupling {name!r}" for name in mech.couplings]
        raise ValueError(
            f"step_minimal, rollout_minimal and jacobians_minimal need coordinates that are independent of each other, but they are "
            f"constrained by {', '.join(closing)}; step maximal states: mech.step(mech.close_loops(mech.to_maximal(q, qd)), u), and "
            f"mech.to_minimal of what comes out"
        )
    mech._check_tensor("q", q, mech.num_coordinates)
    mech._check_tensor("qd", qd, mech.num_coordinates)


def _neutral(z: Tensor) -> Tensor:
    """A state (13 nb,) that stands in for one that is not a number, so that no gradient can become NaN."""
    neutral = z.new_zeros(z.shape[-1] // STATE_SIZE, STATE_SIZE)
    neutral[:, 6] = 1
    return neutral.flatten()
