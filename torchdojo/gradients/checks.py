"""Checks of input and of status: which environments can take a step, and errors for the others."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torchdojo.dynamics.integrator import LARGEST_SINE
from torchdojo.dynamics.physical import unphysical, unphysical_environments
from torchdojo.dynamics.system import System
from torchdojo.gradients.request import Request
from torchdojo.solver.options import Status
from torchdojo.state.layout import ANGULAR_VELOCITY, ORIENTATION, STATE_SIZE
from torchdojo.state.unknowns import NUM_DATA, TIMESTEP

__all__ = ["check_quaternions", "check_solved", "check_valid", "valid_environments"]

UNIT_TOLERANCE = 1e-6


def valid_environments(system: System, request: Request, flat: Sequence[Tensor]) -> Tensor:
    """Which environments have finite input, possible parameters, unit quaternions and representable spins, (N,).

    Raises:
        ValueError: a quaternion off the unit sphere; non-finite input where `request.raise_invalid` or on_failure="raise".
    """
    z = flat[0]
    finite = torch.ones(len(z), dtype=torch.bool, device=z.device)
    for tensor in flat:
        if tensor.numel() and not bool(torch.isfinite(tensor).all()):
            rows = torch.isfinite(tensor).flatten(1).all(-1) if tensor.ndim > 1 and len(tensor) == len(z) else torch.isfinite(tensor).all()
            finite = finite & rows
    check_quaternions(z, finite)
    spin = torch.linalg.vector_norm(z.unflatten(-1, (-1, STATE_SIZE))[..., ANGULAR_VELOCITY], dim=-1).amax(-1)
    # Only a spin too fast for the shortest halved step is invalid. A slower one may fail in the solver, which leads to halving.
    shortest = flat[NUM_DATA + TIMESTEP] * 0.5**request.options.max_halvings
    valid = finite & (shortest * spin < 2 * LARGEST_SINE) & ~unphysical_environments(system, flat[NUM_DATA:], len(z))
    if request.raises_invalid:
        check_valid(valid, system, flat[NUM_DATA:])
    return valid


def check_quaternions(z: Tensor, finite: Tensor) -> None:
    """Raise ValueError if a finite state of z (N, 13 nb) has a quaternion off the unit sphere."""
    error = (torch.linalg.vector_norm(z.unflatten(-1, (-1, STATE_SIZE))[..., ORIENTATION], dim=-1) - 1).abs().amax(-1)
    crooked = finite & (error > max(UNIT_TOLERANCE, 8 * torch.finfo(z.dtype).eps))
    if bool(crooked.any()):
        worst = int(torch.where(crooked, error, 0).argmax())
        raise ValueError(
            f"z: environment {worst} has a quaternion whose norm differs from 1 by {float(error[worst]):.2g}; allowed: unit quaternions "
            f"wxyz (within {UNIT_TOLERANCE}); divide them by their norm, and check the order of the state, [x, v, q, omega] per body"
        )


def check_valid(valid: Tensor, system: System, parameters: Sequence[Tensor]) -> None:
    """Raise ValueError unless all environments (N,) are valid. The message names what is wrong with flat parameters (N or 1, ...)."""
    if not bool(valid.all()):
        first = int((~valid).nonzero()[0])
        notes = unphysical(system, parameters, first)
        reason = "; ".join(notes) + ", written in place" if notes else Status.INVALID_INPUT.explain
        raise ValueError(f"z, u, wrench or parameters: environment {first} of {len(valid)} is invalid: {reason}")


def check_solved(status: Tensor) -> None:
    """Raise RuntimeError unless all environments (...,) succeeded."""
    failed = status != int(Status.SUCCESS)
    if bool(failed.any()):
        first = int(failed.reshape(-1).nonzero()[0, 0])
        raise RuntimeError(f"environment {first} of {status.numel()}: {Status.MAX_ITERATIONS.explain}")
