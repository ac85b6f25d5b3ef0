"""The result of `solve`: the best iterate of each problem, its gains, how it was found, and how it does in finer steps."""

from __future__ import annotations

import copy
import enum
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from torchdojo import quaternion as quat
from torchdojo.planning.dynamics import Dynamics
from torchdojo.planning.problem import Problem
from torchdojo.solver.options import SolverOptions
from torchdojo.state.layout import STATE_SIZE

__all__ = ["Plan", "PlanStatus", "Record", "Replay"]


class PlanStatus(enum.IntEnum):
    """Outcome of one problem. `explain` gives the usual causes and remedies."""

    SOLVED = 0
    INFEASIBLE = 1
    STUCK = 2
    ITERATION_LIMIT = 3
    DIVERGED = 4

    @property
    def explain(self) -> str:
        return _EXPLANATIONS[self]


_EXPLANATIONS = {
    PlanStatus.SOLVED: "constraints hold to their tolerance at the last kappa of the schedule, and the merit no longer decreases",
    PlanStatus.INFEASIBLE: (
        "constraints are violated after all updates of multipliers. Usual causes: a goal out of reach within the steps or the limits of "
        "the inputs. Try more steps, wider limits, or fewer rows of the goal"
    ),
    PlanStatus.STUCK: (
        "no candidate decreases the merit, at any damping, before constraints hold. Usual causes: a gradient that misleads (another "
        "schedule, a larger grad_kappa), or a start in which a contact that is needed is too far away (another guess)"
    ),
    PlanStatus.ITERATION_LIMIT: "max_iterations is reached; a larger one goes on",
    PlanStatus.DIVERGED: (
        "no iterate is a motion of finite cost. Usual causes: a guess that throws the mechanism apart, a start inside a surface, costs "
        "that are not finite. Try a smaller guess, a larger kappa or a smaller timestep"
    ),
}


class Record(NamedTuple):
    """One iteration of all problems, each entry (P,), with NaN for problems that were done."""

    level: Tensor
    kappa: Tensor
    grad_kappa: Tensor
    cost: Tensor
    merit: Tensor
    violation: Tensor
    defect: Tensor
    damping: Tensor
    step_size: Tensor  # 0: no candidate was accepted


class Replay(NamedTuple):
    """A plan in other steps.

    z: states (..., T+1, 13 nb) at the start and after each input. u: inputs (..., T, nu). status: (..., T) of the steps.
    nodes: (..., T+1, 13 nb), `z` after a drift by the time that held inputs lag behind the plan's impulses: compare them with it.
    """

    z: Tensor
    u: Tensor
    status: Tensor
    nodes: Tensor


@dataclass(frozen=True)
class Plan:
    """The best iterate of each problem. Leading dimensions are those of the problem's start, () or (P,).

    z: states (..., T+1, 13 nb). u: inputs (..., T, nu) [N, N·m], or controls. v: inputs of the problem (..., T, m).
    gains: K (..., T, m, n) of v + K (x ⊖ x̄), of a last linearization at the iterate; zeros where it failed.
    cost, violation, defect: (...,). status: (...,) of `PlanStatus`. iterations: (...,) linearizations.
    schedule: (...,) number of the schedule that the iterate comes from.
    log: a `Record` per iteration, over problems and schedules, problem by problem. timings: seconds per part.
    """

    problem: Problem
    z: Tensor
    u: Tensor
    v: Tensor
    gains: Tensor
    cost: Tensor
    violation: Tensor
    defect: Tensor
    status: Tensor
    iterations: Tensor
    schedule: Tensor
    log: list[Record] = field(repr=False)
    timings: dict[str, float]

    @property
    def solved(self) -> Tensor:
        return self.status == int(PlanStatus.SOLVED)

    def replay(self, *, timestep: float | None = None, kappa: float = 1e-8, feedback: bool = True, lag: float | None = None) -> Replay:
        """The plan in other steps, from its start.

        Args:
            timestep: h [s], a whole part of that of the plan; None: the same. Inputs are held between nodes.
            kappa: of the steps. feedback: act on the error at each node with the gains.
            lag: time by which the path lags behind the plan [s]; None: (h − timestep)/2. A step of the plan acts with an impulse h u at its
                node, but u is held here, for h. Errors are those of the pose to which the state drifts in this time. 0 suits joints whose
                dampers are so strong that their speed follows from u.

        Raises:
            ValueError: a timestep that does not divide that of the plan.
        """
        own = float(self.problem.mech.timestep)
        timestep = own if timestep is None else timestep
        repeat = round(own / timestep) if timestep > 0 else 0
        if repeat < 1 or abs(repeat * timestep - own) > 1e-9 * own:
            raise ValueError(f"replay.timestep: got {timestep}; allowed: {own} divided by a whole number")
        fine = copy.deepcopy(self.problem.mech)
        fine.timestep = torch.tensor(timestep, dtype=torch.float64)
        fine.options = replace(SolverOptions(backend=self.problem.mech.options.backend), kappa=kappa)
        given = self.problem.dynamics
        dynamics = Dynamics(fine, given.map, given.offset, "minimal" if given.minimal else "tangent", given.controls)
        limits = self.problem.limits
        if limits is not None and not self.problem.batched:
            limits = limits[0][0], limits[1][0]
        lag = 0.5 * (own - timestep) if lag is None else lag
        z = self.z[..., 0, :]
        warm: Tensor | None = None
        states, inputs, status = [z], [], []
        with torch.no_grad():
            for t in range(self.u.shape[-2]):
                v = self.v[..., t, :]
                if feedback:
                    ahead = drifted(z, lag)
                    error = given.difference(given.coordinates(ahead), given.coordinates(self.z[..., t, :]))
                    v = v + (self.gains[..., t, :, :] @ error[..., None])[..., 0]
                if limits is not None:
                    v = v.clamp(limits[0][..., t, :], limits[1][..., t, :])
                out = fine.step(z, **dynamics.given(v), repeat=repeat, warm_start=warm)
                z, warm = out.z, out.solution
                states.append(z)
                inputs.append(dynamics.inputs(v))
                status.append(out.status)
            z = torch.stack(states, -2)
            return Replay(z, torch.stack(inputs, -2), torch.stack(status, -1), drifted(z, lag))


def drifted(z: Tensor, duration: float) -> Tensor:
    """The state after a motion at its own velocities [s]."""
    x, v, q, omega = z.unflatten(-1, (-1, STATE_SIZE)).split((3, 3, 4, 3), dim=-1)
    return torch.cat((x + duration * v, v, quat.multiply(q, quat.exp(duration * omega)), omega), dim=-1).flatten(-2)
