"""Receding horizon: a plan that is shifted, and improved by one iteration, at every sample.

A sample has two halves (Diehl, Bock and Schlöder 2005, "real-time iteration"). `plan` sweeps back over the linear steps that are at hand,
tries the policy in rollouts from the measured state, and takes the best. The steps of that rollout are linearized for the next sample.
`control` follows the plan between samples, with its gains.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torchdojo.engine.drives import Drives
from torchdojo.planning.driven import DrivenDynamics
from torchdojo.planning.dynamics import Dynamics, Nodes
from torchdojo.planning.lagrangian import Lagrangian
from torchdojo.planning.problem import Problem
from torchdojo.planning.riccati import Expansion, riccati

__all__ = ["ControlReport", "Controller"]

ACCURACY = 1e-6  # residual of the plan's steps, far below the errors of a model
SETTLING = 20  # iterations at construction, from the start of the problem


@dataclass(frozen=True)
class ControlReport:
    """Counts of a controller since it was made, or since `Controller.reset`.

    samples: plans that were asked for. failures: those for which no rollout succeeded, so that the settled plan took over.
    mean, worst: time of a plan by the clock of the process [s].
    """

    samples: int
    failures: int
    mean: float
    worst: float

    @property
    def rate(self) -> float:
        """Plans per second of processor time [Hz]."""
        return 1 / self.mean if self.mean else 0.0

    def __str__(self) -> str:
        return (
            f"{self.samples} plans, {self.failures} failed; {self.rate:.0f} Hz in the mean ({1e3 * self.mean:.2f} ms), "
            f"worst {1e3 * self.worst:.2f} ms"
        )


class Controller:
    """A feedback law that plans anew at every sample: ``u = controller(z, time)``.

    Where controls go to drives, the state has their activations, too: ``ctrl = controller(z, time, act)``, for `mech.drives.step`.

    Between samples the law is v + K (x ⊖ x̄), with x̄ between the nodes of the plan. A plan fails where no rollout from the measured state
    succeeds. The settled plan and its gains, those of the problem's start, then take over until the next sample.

    Args:
        problem: one problem, whose costs hold for the horizon from now on. Its `start` and `guess` are where the controller settles. Robots
            on legs want actuators with servos and ``controls=True``: a servo holds a joint while the plan is late or wrong.
        period: time between samples [s], at most the timestep of the problem's mechanism; None: that timestep.
        kappa, grad_kappa: smoothing of the plan's steps, and of their derivatives; None: the same, which is quicker. Wide ones see contacts
            that are not there yet.
        damping: μ of the sweep. step_sizes: α of the rollouts that are tried; 0 is the plan of the sample before, with the new gains.

    Raises:
        ValueError: a batch of problems, constraints, an option out of its range, or a start from which no plan exists.
    """

    A: Tensor
    B: Tensor
    F: Tensor | None

    def __init__(
        self,
        problem: Problem,
        *,
        period: float | None = None,
        kappa: float = 3e-4,
        grad_kappa: float | None = None,
        damping: float = 1e-2,
        step_sizes: Sequence[float] = (1.0, 0.0),
    ) -> None:
        if len(problem) != 1:
            raise ValueError(f"Controller.problem: got {len(problem)} problems; allowed: one")
        if problem.equalities or problem.inequalities:
            raise ValueError("Controller.problem: got constraints; allowed: costs and limits. A State or Function with a weight stands in")
        step = float(problem.mech.timestep)
        period = step if period is None else period
        if not 0 < period <= step * (1 + 1e-9):
            raise ValueError(f"Controller.period: got {period}; allowed: above 0, at most the problem's timestep of {step}")
        grad_kappa = kappa if grad_kappa is None else grad_kappa
        if not 0 < kappa <= grad_kappa:
            raise ValueError(f"Controller.kappa: got {kappa} with grad_kappa {grad_kappa}; allowed: above 0, and grad_kappa at least kappa")
        if not (math.isfinite(damping) and damping > 0):
            raise ValueError(f"Controller.damping: got {damping}; allowed: positive finite numbers")
        if not step_sizes or not all(0 <= size <= 1 for size in step_sizes) or max(step_sizes) == 0:
            raise ValueError(f"Controller.step_sizes: got {tuple(step_sizes)}; allowed: numbers from 0 to 1, one of them above 0")
        problem_dynamics = problem.dynamics
        self.problem, self.period, self.shift = problem, period, min(period / step, 1.0)
        coordinates = "minimal" if problem_dynamics.minimal else "tangent"
        choice = (copy.deepcopy(problem.mech), problem_dynamics.map, problem_dynamics.offset, coordinates)
        self.dynamics: Dynamics
        if isinstance(problem_dynamics, DrivenDynamics):
            assert problem.mech.drives is not None
            choice[0].drives = Drives(choice[0], problem.mech.drives.drives)
            self.dynamics = DrivenDynamics(*choice)
        else:
            self.dynamics = Dynamics(*choice, problem_dynamics.controls)
        options = self.dynamics.mech.options
        self.dynamics.mech.options = replace(options, residual_tol=max(ACCURACY, options.residual_tol or 0.0))
        self.lagrangian = replace(Lagrangian.of(problem, torch.tensor([0]), 1.0), dynamics=self.dynamics)
        self._kappa, self._grad_kappa = (torch.tensor([value], dtype=torch.float64) for value in (kappa, grad_kappa))
        self._mu, self._alphas = torch.tensor([[damping]], dtype=torch.float64), torch.tensor(step_sizes, dtype=torch.float64)
        self._floor = 1e-6 * step**2 * float(problem_dynamics.map.square().sum(0).mean())
        self._expansion: Expansion | None = None
        with torch.no_grad():
            self._settle()
        self.reset()

    def _settle(self) -> None:
        """The plan from the problem's start, with its gains and linear steps."""
        problem, start = self.problem, self.problem.start
        v = problem.guess if problem.limits is None else problem.guess.clamp(*problem.limits)
        nodes = self.dynamics.rollout(start, v, None, self._kappa)
        if not bool(nodes.ok):
            raise ValueError(
                "Controller.problem: a step from its start under its guess fails; give a guess from `solve`, or a larger kappa"
            )
        n, (_, T, m) = self.dynamics.size, v.shape
        self.nodes, self.K = nodes, v.new_zeros(1, T, m, n)
        self._linearize()
        for _ in range(SETTLING):
            if not self._improve(start[0]):
                raise ValueError(
                    "Controller.problem: no plan from its start decreases the costs; give a guess from `solve`, or more damping"
                )
        self._settled = self.nodes, self.K, self.A, self.B, self.F

    def reset(self) -> None:
        """Go back to the settled plan, and count from zero."""
        self.nodes, self.K, self.A, self.B, self.F = self._settled
        self._samples, self._failures, self._total, self._worst, self._planned = 0, 0, 0.0, 0.0, -math.inf

    @property
    def report(self) -> ControlReport:
        return ControlReport(self._samples, self._failures, self._total / max(self._samples, 1), self._worst)

    @property
    def settled(self) -> Tensor:
        """The first state (13 nb) of the settled plan."""
        return self.dynamics.motion(self._settled[0].z[0, 0])

    def __call__(self, z: Tensor, time: float, act: Tensor | None = None) -> Tensor:
        """The input u (nu,), or ctrl, at a state z (13 nb) at a time [s], which never decreases. It plans where a sample is due.

        Args:
            act: activations (na,) of a problem with drives that have some.

        Raises:
            ValueError: activations that are missing, or have another shape.
        """
        elapsed = time - self._planned
        if not elapsed < self.period * (1 - 1e-6):
            self.plan(z, act)
            self._planned, elapsed = time, 0.0
        return self.control(z, elapsed, act)

    def _state(self, z: Tensor, act: Tensor | None) -> Tensor:
        """The state of the plan at z with these activations."""
        count = self.dynamics.num_activations
        if (0 if act is None else act.shape[-1]) != count or (act is not None and act.ndim != 1):
            got = "no activations" if act is None else f"activations of shape {tuple(act.shape)}"
            allowed = f"({count},), as mech.drives.step returns them" if count else "none, since no control has an activation"
            raise ValueError(f"Controller: got {got}; allowed: {allowed}")
        return self.dynamics.joined(z, act)

    def plan(self, z: Tensor, act: Tensor | None = None) -> bool:
        """Improve the plan from the state z (13 nb), one period after the last one; whether that succeeded. act: as of a call."""
        z = self._state(z, act)
        begin = time.process_time()
        with torch.no_grad(), _without_collections():
            if self._samples:
                self._shift()
            good = bool(torch.isfinite(z).all()) and self._improve(z)
            if not good:
                self.nodes, self.K, self.A, self.B, self.F = self._settled
        spent = time.process_time() - begin
        self._samples, self._failures = self._samples + 1, self._failures + (not good)
        self._total, self._worst = self._total + spent, max(self._worst, spent)
        return good

    def control(self, z: Tensor, elapsed: float = 0.0, act: Tensor | None = None) -> Tensor:
        """u (nu,), or ctrl, at the state z, `elapsed` [s] after the plan's first node. A state that is not finite counts as planned.

        act: as of a call.
        """
        z = self._state(z, act)
        with torch.no_grad():
            node = min(int(elapsed / float(self.problem.mech.timestep) + 1e-9), self.problem.steps - 1)
            part = min(elapsed / float(self.problem.mech.timestep) - node, 1.0)
            dynamics, x = self.dynamics, self.nodes.x[0]
            planned = dynamics.retract(x[node], part * dynamics.difference(x[node + 1], x[node])) if part else x[node]
            change = self.K[0, node] @ dynamics.difference(dynamics.coordinates(z), planned)
            v = self.nodes.v[0, node] + torch.where(torch.isfinite(change), change, 0.0)
            limits = self.problem.limits
            return dynamics.inputs(v if limits is None else v.clamp(limits[0][0, node], limits[1][0, node]))

    def _shift(self) -> None:
        """The plan as of one sample later. Shorter samples than the timestep move its nodes by a part of it."""

        def moved(values: Tensor) -> Tensor:
            return torch.cat((values[:, 1:], values[:, -1:]), dim=1)

        nodes, dynamics = self.nodes, self.dynamics
        if self.shift == 1.0:
            x, z, v, w, end = (moved(value) for value in nodes[:5])
            self.nodes = Nodes(x, z, v, w, end, nodes.ok)
            self.K, self.A, self.B = (moved(value) for value in (self.K, self.A, self.B))
            self.F = None if self.F is None else moved(self.F)
            return
        x = dynamics.retract(nodes.x, self.shift * dynamics.difference(moved(nodes.x), nodes.x))
        self.nodes = nodes._replace(x=x, z=dynamics.states(x), v=nodes.v + self.shift * (moved(nodes.v) - nodes.v))

    def _improve(self, z: Tensor) -> bool:
        """One iteration from the state z; whether a rollout succeeded. The plan is changed only then."""
        nodes, dynamics, limits = self.nodes, self.dynamics, self.problem.limits
        bounds = None if limits is None else (limits[0] - nodes.v, limits[1] - nodes.v)
        expansion = self.lagrangian.expansion(nodes, self.F, self._expansion)
        if self.lagrangian.quadratic:
            self._expansion = expansion
        policy = riccati(self.A, self.B, expansion, self._mu, bounds=bounds, floor=self._floor, motion=False)
        if not bool(policy.ok):
            return False
        from_here = nodes._replace(z=torch.cat((z[None, None], nodes.z[:, 1:]), dim=1))
        candidates = dynamics.feedback(from_here, policy.k, policy.K, self._alphas, self._kappa, limits)
        candidates = Nodes(*(value[:, 0] for value in candidates))  # of the one regularization
        merit = torch.where(candidates.ok, self.lagrangian.value(candidates)[1], torch.inf)[0]
        best = int(merit.nan_to_num(torch.inf).argmin())
        if not math.isfinite(float(merit[best])):
            return False
        self.nodes, self.K = Nodes(*(value[:, best] for value in candidates)), policy.K[:, 0]
        self._linearize()
        return True

    def _linearize(self) -> None:
        """Linear steps of the plan, and derivatives F (1, T, r, n + m) of its contact forces if they have costs."""
        self.A, self.B = self.dynamics.linearize(self.nodes, self._kappa, self._grad_kappa)
        self.F = self.lagrangian.force_jacobian(self.nodes, self._grad_kappa)


@contextlib.contextmanager
def _without_collections() -> Iterator[None]:
    """Garbage is collected between samples, and not in the middle of one."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
