"""A call's request: the data of the step, `StepInputs`, and the options beside them, `Request`."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from torchdojo.dynamics.system import System
from torchdojo.gradients.impacts import can_bounce
from torchdojo.solver.interior_point import Attempts
from torchdojo.solver.options import GradientMode, OnFailure, SolverOptions
from torchdojo.state.layout import STATE_SIZE, TANGENT_SIZE, TWIST_SIZE

__all__ = ["Request", "StepInputs"]


class StepInputs(NamedTuple):
    """The data of a step, a period, or a rollout, checked. Batch dimensions broadcast.

    z: (..., 13 nb). u: (..., nu), of a rollout of T periods (..., T, nu); controls (..., number of actuators) where a law turns them into
    inputs. wrench: (..., 6 nb), or None for zero. warm: (..., num_unknowns), a solution from which iterations start, or None.
    """

    z: Tensor
    u: Tensor
    wrench: Tensor | None = None
    warm: Tensor | None = None

    @property
    def forces(self) -> Tensor:
        """The wrench, with zeros for None."""
        if self.wrench is not None:
            return self.wrench
        # z.new_zeros would be mapped by vmap.
        return torch.zeros(self.z.shape[-1] // STATE_SIZE * TWIST_SIZE, dtype=self.z.dtype, device=self.z.device)

    @property
    def data(self) -> tuple[Tensor, Tensor, Tensor]:
        """z, u and the wrench."""
        return self.z, self.u, self.forces


@dataclass(frozen=True)
class Request:
    """The options of a call, the κ at which its derivatives are taken, and what it does with invalid input.

    No part of a request is differentiated.

    Args:
        grad_kappa: (...,) κ of each environment, which replaces `options.grad_kappa`; None inside transforms.
        raise_invalid: whether an environment with invalid input raises or is flagged.
        repeat: steps of a period, which hold one input.
        may_split: whether the reference's solver may leave a step that is too fast to shorter steps (solver/speed.py).
        attempts: the attempts that the reference's solver makes (solver/interior_point.py).
        budget: Newton iterations of a step, after which a rollout gives its environment up (kernel); 0: no bound.
        driven: whether operators take controls for inputs, with the law of the mechanism's actuators.
        left: (...,) Newton iterations that remain to each environment (reference, substeps); None: `max_total_iterations`.
        device: of the data, where results arrive, too; None: that of the mechanism.
    """

    options: SolverOptions
    grad_kappa: Tensor | None = field(default=None, compare=False)
    raise_invalid: bool = False
    repeat: int = 1
    may_split: bool = False
    attempts: Attempts = Attempts.ALL
    driven: bool = False
    budget: int = 0
    left: Tensor | None = field(default=None, compare=False)
    device: torch.device | None = field(default=None, compare=False)

    @property
    def mode(self) -> GradientMode:
        return GradientMode(self.options.gradient_mode)

    @property
    def raises_invalid(self) -> bool:
        return self.raise_invalid or self.options.on_failure is OnFailure.RAISE

    def kappas(self, batch: torch.Size, index: Tensor) -> Tensor | None:
        """`grad_kappa` of the environments `index` of the flattened batch."""
        return None if self.grad_kappa is None else self.grad_kappa.expand(batch).reshape(-1)[index]

    def select(self, batch: torch.Size, index: Tensor) -> Request:
        """The request for the environments `index` of the flattened batch alone."""
        left = None if self.left is None else self.left.expand(batch).reshape(-1)[index]
        return self if self.grad_kappa is left is None else replace(self, grad_kappa=self.kappas(batch, index), left=left)

    def iterations_left(self, batch: torch.Size, device: torch.device) -> Tensor:
        """Newton iterations that remain to each environment of the flattened batch, (N,)."""
        left = torch.tensor(self.options.max_total_iterations, device=device) if self.left is None else self.left
        return left.expand(batch).reshape(-1)

    def at(self, device: torch.device) -> Request:
        """The request for data on another device, which is that of the mechanism."""
        kappas, left = (None if t is None else t.to(device) for t in (self.grad_kappa, self.left))
        return replace(self, grad_kappa=kappas, left=left, device=None)

    @property
    def of_a_step(self) -> Request:
        """The request for single steps."""
        return self if self.repeat == 1 else replace(self, repeat=1)

    def num_shifts(self, system: System) -> int:
        """Number of changes by impacts behind the solution of `StepFunction`: the hard limit has them where contacts may bounce."""
        return TANGENT_SIZE * system.num_bodies if self.mode.needs_limit and can_bounce(system) else 0
