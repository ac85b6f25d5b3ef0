"""A problem of planning: a mechanism, a start, costs and constraints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torchdojo.mechanism import Mechanism
from torchdojo.planning.driven import DrivenDynamics, driven_by
from torchdojo.planning.dynamics import COORDINATES, Dynamics
from torchdojo.planning.residuals import Bound, Residual, bind

__all__ = ["Problem"]


class Problem:
    """Plans of T steps that minimize Σ weight r² under constraints, for P problems at once.

    The decision variables are v (P, T, m), with u = input_map v + input_offset at every step.

    Args:
        mech: the mechanism, whose timestep the plan has. It is not changed.
        start: states (13 nb) or (P, 13 nb).
        steps: T.
        costs: residuals r with weights. The cost is Σ weight r² over nodes and entries, without ½.
        equalities, inequalities: residuals that must be 0, or at most 0, by an augmented Lagrangian. A weight scales the residual.
        limits: least and largest v, each a number, (m,), (T, m) or (P, T, m). They hold in every iterate.
        controls: whether v are controls of `mech.drives`, or else of `mech.actuators`, with ctrl in the place of u, and their number in
            that of nu. With drives, activations are part of the state; the gains are by them, too.
        input_map: (nu, m); None: the identity. input_offset: (nu,) [N, N·m].
        guess: v to begin with, a number, (m,), (T, m) or (P, T, m).
        guess_states: states (T+1, 13 nb) or (P, T+1, 13 nb) for method="multiple"; None: those of a rollout of `guess`. Activations are
            those of `guess`.
        start_activation: activations at the start, a number, (na,) or (P, na), of problems with drives.
        coordinates: of errors, gains and costs: "minimal" or "tangent"; None: minimal, if the mechanism has no closed loops.

    Raises:
        ValueError, TypeError: something that does not fit; the message says what, and what is allowed.
    """

    def __init__(
        self,
        mech: Mechanism,
        start: Tensor,
        steps: int,
        *,
        costs: Sequence[Residual],
        equalities: Sequence[Residual] = (),
        inequalities: Sequence[Residual] = (),
        limits: tuple[Any, Any] | None = None,
        controls: bool = False,
        input_map: Tensor | None = None,
        input_offset: Any = 0.0,
        guess: Any = 0.0,
        guess_states: Tensor | None = None,
        coordinates: str | None = None,
        start_activation: Any = None,
    ) -> None:
        if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
            raise ValueError(f"Problem.steps: got {steps!r}; allowed: whole numbers of 1 or more")
        if mech.gravity.ndim > 1 or mech.timestep.ndim:
            raise ValueError("Problem.mech: got parameters with a batch; allowed: one mechanism for all problems")
        coordinates = coordinates or ("tangent" if mech.has_loops else "minimal")
        if coordinates not in COORDINATES or (coordinates == "minimal" and mech.has_loops):
            raise ValueError(
                f"Problem.coordinates: got {coordinates!r}; allowed: 'tangent', or 'minimal' for a mechanism without closed loops"
            )
        mech.check_state(start, "start")
        if start.ndim > 2 or start.dtype != torch.float64 or not bool(torch.isfinite(start).all()):
            raise ValueError(f"Problem.start: got shape {tuple(start.shape)}; allowed: finite float64 states (13 nb) or (P, 13 nb)")
        driven = driven_by(mech) if controls else None
        if controls and driven is None and mech.actuators is None:
            raise ValueError("Problem.controls: got True for a mechanism without actuators; allowed: False, or a mechanism with td.actuate")
        size = mech.num_inputs if not controls else len(driven.names if driven is not None else mech.actuators or ())
        if input_map is None:
            input_map = torch.eye(size, dtype=torch.float64)
        if input_map.ndim != 2 or input_map.shape[0] != size or not input_map.shape[1]:
            raise ValueError(f"Problem.input_map: got shape {tuple(input_map.shape)}; allowed: ({size}, m), m = 1 or more")
        offset = torch.as_tensor(input_offset, dtype=torch.float64).expand(size)
        self.mech, self.steps, self.batched = mech, steps, start.ndim == 2
        choice = (mech, input_map.to(torch.float64), offset, coordinates)
        self.dynamics = Dynamics(*choice, controls) if driven is None else DrivenDynamics(*choice)
        start = (start if start.ndim == 2 else start[None]).detach().clone()
        self.start = self.dynamics.joined(start, self._activation(start_activation, len(start)))
        self.costs = self._bound("costs", costs)
        self.equalities = self._bound("equalities", equalities)
        self.inequalities = self._bound("inequalities", inequalities)
        if not self.costs and not self.equalities:
            raise ValueError("Problem: got neither costs nor equalities; give residuals in costs=")
        self.guess = self._inputs("guess", guess)
        if not bool(torch.isfinite(self.guess).all()):
            raise ValueError("Problem.guess: got numbers that are not finite")
        self.limits: tuple[Tensor, Tensor] | None = None
        if limits is not None:
            lower, upper = (self._inputs("limits", limit) for limit in limits)
            if not bool((lower <= upper).all()):
                raise ValueError("Problem.limits: got a least input above the largest; allowed: (least, largest)")
            self.limits = lower, upper
        self.guess_states: Tensor | None = None
        if guess_states is not None:
            mech.check_state(guess_states, "guess_states")
            shape = (len(self), steps + 1, start.shape[-1])
            if tuple(guess_states.shape) not in (shape, shape[1:]):
                raise ValueError(f"Problem.guess_states: got shape {tuple(guess_states.shape)}; allowed: {shape[1:]} or {shape}")
            guess = self.guess if self.limits is None else self.guess.clamp(*self.limits)
            self.guess_states = self.dynamics.along(guess_states.expand(shape).contiguous(), self.start, guess)

    def __len__(self) -> int:
        """P, the number of problems."""
        return len(self.start)

    def _bound(self, name: str, residuals: Sequence[Residual]) -> list[Bound]:
        start = self.dynamics.motion(self.start)
        return [bind(f"{name}[{i}]", residual, self.dynamics, len(self), self.steps, start) for i, residual in enumerate(residuals)]

    def _activation(self, given: Any, problems: int) -> Tensor | None:
        """Activations at the start (P, na); None without drives."""
        count = self.dynamics.num_activations
        if not count:
            if given is not None:
                raise ValueError(
                    f"Problem.start_activation: got {given}; allowed: None for a plan without activations; with drives, controls=True"
                )
            return None
        value = torch.as_tensor(0.0 if given is None else given, dtype=torch.float64)
        fits = value.ndim <= 2 and all(a in (1, b) for a, b in zip(value.shape[::-1], (count, problems), strict=False))
        if not fits or not bool(torch.isfinite(value).all()):
            allowed = f"finite numbers, one, ({count},) or ({problems}, {count})"
            raise ValueError(f"Problem.start_activation: got shape {tuple(value.shape)}; allowed: {allowed}")
        return value.expand(problems, count)

    def _inputs(self, name: str, value: Any) -> Tensor:
        """Inputs (P, T, m)."""
        value = torch.as_tensor(value, dtype=torch.float64)
        shape = (len(self), self.steps, self.dynamics.num_inputs)
        fits = value.ndim <= 3 and all(a in (1, b) for a, b in zip(value.shape[::-1], shape[::-1], strict=False))
        if not fits:
            raise ValueError(f"Problem.{name}: got shape {tuple(value.shape)}; allowed: a number, ({shape[2]},), {shape[1:]} or {shape}")
        return value.expand(shape).clone()
