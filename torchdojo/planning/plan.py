"""The result of `solve`: the best iterate of each problem, its gains, how it was found, and how it does in finer steps."""

from __future__ import annotations

import copy
import enum
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from torchdojo import quaternion as quat
from torchdojo.planning.lagrangian import Lagrangian
from torchdojo.planning.problem import Problem
from torchdojo.planning.riccati import riccati
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
    act: activations (..., T+1, na) of a plan with drives; None without.
    """

    z: Tensor
    u: Tensor
    status: Tensor
    nodes: Tensor
    act: Tensor | None = None


@dataclass(frozen=True)
class Plan:
    """The best iterate of each problem. Leading dimensions are those of the problem's start, () or (P,).

    z: states (..., T+1, 13 nb). u: inputs (..., T, nu) [N, N·m], or controls. v: inputs of the problem (..., T, m).
    gains: K (..., T, m, n) of v + K (x ⊖ x̄), of a last linearization at the iterate; zeros where it failed.
    cost, violation, defect: (...,). status: (...,) of `PlanStatus`. iterations: (...,) linearizations.
    schedule: (...,) number of the schedule that the iterate comes from.
    log: a `Record` per iteration, over problems and schedules, problem by problem. timings: seconds per part.
    act: activations (..., T+1, na) of a plan with drives, whose gains are by them, too; None without.
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
    act: Tensor | None = None

    @property
    def solved(self) -> Tensor:
        return self.status == int(PlanStatus.SOLVED)

    def tracking_gains(self, *, kappa: float = 1e-6, grad_kappa: float | None = None, penalty: float = 1e3) -> Tensor:
        """K (..., T, m, n) of another sweep along the plan; zeros where it fails.

        The last `gains` rely on contacts to happen at their nodes, and trust large inputs to move a foot that sticks. Derivatives smoothed
        by a large grad_kappa do not, and neither does a moderate penalty.

        Args:
            kappa, grad_kappa: of the steps at the nodes and of their derivatives; None: the same.
            penalty: ρ of the constraints.
        """
        problem, dynamics = self.problem, self.problem.dynamics
        z = dynamics.joined(self.z, self.act)
        z, v = (z, self.v) if problem.batched else (z[None], self.v[None])
        kappas = torch.full((len(problem),), kappa, dtype=torch.float64)
        with torch.no_grad():
            nodes = dynamics.evaluate(dynamics.coordinates(z), v, None, kappas)
            smooth = kappas if grad_kappa is None else torch.full_like(kappas, grad_kappa)
            A, B = dynamics.linearize(nodes, kappas, smooth)
            lagrangian = Lagrangian.of(problem, torch.arange(len(problem)), penalty)
            expansion = lagrangian.expansion(nodes._replace(z=z), lagrangian.force_jacobian(nodes, smooth))
            policy = riccati(A, B, expansion, torch.zeros_like(kappas)[:, None], motion=False)
        K = torch.where((policy.ok[:, 0] & nodes.ok)[:, None, None, None], policy.K[:, 0], 0.0)
        return K if problem.batched else K[0]

    def replay(
        self,
        *,
        timestep: float | None = None,
        kappa: float = 1e-8,
        feedback: bool | Tensor = True,
        every_step: bool = False,
        lag: float | None = None,
    ) -> Replay:
        """The plan in other steps, from its start.

        Args:
            timestep: h [s], a whole part of that of the plan; None: the same. Inputs are held between nodes.
            kappa: of the steps.
            feedback: act on the error of the state with `gains`, or with others K (..., T, m, n) such as `tracking_gains`.
            every_step: feedback acts in every step, against a path between the nodes whose velocity changes evenly; else it acts at nodes,
                and is held.
            lag: time by which poses lag behind those of the plan [s]; None: (h − timestep)/2. A step of the plan acts with an impulse h u
                at its node, but u is held here, for h. 0 suits joints whose dampers are so strong that their speed follows from u.

        Raises:
            ValueError: a timestep that does not divide that of the plan, or gains of another shape.
        """
        plan_timestep = float(self.problem.mech.timestep)
        timestep = plan_timestep if timestep is None else timestep
        repeat = round(plan_timestep / timestep) if timestep > 0 else 0
        if repeat < 1 or abs(repeat * timestep - plan_timestep) > 1e-9 * plan_timestep:
            raise ValueError(f"replay.timestep: got {timestep}; allowed: {plan_timestep} divided by a whole number")
        gains = feedback if isinstance(feedback, Tensor) else self.gains if feedback else torch.zeros_like(self.gains)
        if gains.shape != self.gains.shape:
            raise ValueError(f"replay.feedback: got shape {tuple(gains.shape)}; allowed: {tuple(self.gains.shape)}, True or False")
        fine = copy.deepcopy(self.problem.mech)
        fine.timestep = torch.tensor(timestep, dtype=torch.float64)
        fine.options = replace(SolverOptions(backend=self.problem.mech.options.backend), kappa=kappa)
        dynamics, limits = self.problem.dynamics, self.problem.limits
        if limits is not None and not self.problem.batched:
            limits = limits[0][0], limits[1][0]
        lag = 0.5 * (plan_timestep - timestep) if lag is None else lag
        held = 1 if every_step else repeat
        nodes = dynamics.joined(self.z, self.act)
        z = nodes[..., 0, :]
        warm: Tensor | None = None
        states, inputs, status = [z], [], []

        def error(t: int, part: float, z: Tensor) -> Tensor:
            if every_step:
                path = between(self.z[..., t, :], self.z[..., t + 1, :], part, plan_timestep, lag)
                act = None if self.act is None else torch.lerp(self.act[..., t, :], self.act[..., t + 1, :], part)
                nominal = dynamics.joined(path, act)
            else:
                z, nominal = dynamics.joined(drifted(dynamics.motion(z), lag), dynamics.activations(z)), nodes[..., t, :]
            return dynamics.difference(dynamics.coordinates(z), dynamics.coordinates(nominal))

        with torch.no_grad():
            for t in range(self.u.shape[-2]):
                v, failed = self.v[..., t, :], torch.zeros_like(self.status)
                for i in range(0, repeat, held):
                    v = self.v[..., t, :] + (gains[..., t, :, :] @ error(t, i / repeat, z)[..., None])[..., 0]
                    if limits is not None:
                        v = v.clamp(limits[0][..., t, :], limits[1][..., t, :])
                    z, out = dynamics.take(fine, z, v, warm, repeat=held)
                    warm, failed = out.solution, torch.maximum(failed, out.status.to(failed.dtype))
                states.append(z)
                inputs.append(dynamics.inputs(v))
                status.append(failed)
            path = torch.stack(states, -2)
            z = dynamics.motion(path)
            return Replay(z, torch.stack(inputs, -2), torch.stack(status, -1), drifted(z, lag), dynamics.activations(path))


def drifted(z: Tensor, duration: float) -> Tensor:
    """The state after a motion at its own velocities [s]."""
    x, v, q, omega = z.unflatten(-1, (-1, STATE_SIZE)).split((3, 3, 4, 3), dim=-1)
    return torch.cat((x + duration * v, v, quat.multiply(q, quat.exp(duration * omega)), omega), dim=-1).flatten(-2)


def between(z: Tensor, after: Tensor, part: float, h: float, lag: float) -> Tensor:
    """The state of a path that lags behind a plan, at this part of the step h [s] from node z to the one after it.

    Its velocity changes evenly, from v to v + Δ. A path with x − h v / 2 at its nodes moves on by h (part v + part² Δ / 2), continuously
    over the nodes; this one is ahead of it by a drift of h / 2 − lag.
    """
    (x, v, q, omega), (_, w, _, rate) = (value.unflatten(-1, (-1, STATE_SIZE)).split((3, 3, 4, 3), dim=-1) for value in (z, after))
    passed, change = part * h - lag, part * (0.5 * h * (1 + part) - lag)
    pose = x + passed * v + change * (w - v), quat.multiply(q, quat.exp(passed * omega + change * (rate - omega)))
    return torch.cat((pose[0], v + part * (w - v), pose[1], omega + part * (rate - omega)), dim=-1).flatten(-2)
