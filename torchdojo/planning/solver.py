"""Iterative LQR with an augmented Lagrangian: linearize, sweep back, try candidates, accept the best; problems in one batch.

Each problem has its own damping, multipliers and place in its schedule of smoothing, and leaves the batch when it is done.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from torchdojo.planning.dynamics import Dynamics, Nodes
from torchdojo.planning.lagrangian import Lagrangian
from torchdojo.planning.options import Schedule, SolveOptions
from torchdojo.planning.plan import Plan, PlanStatus, Record
from torchdojo.planning.problem import Problem
from torchdojo.planning.riccati import Policy, riccati
from torchdojo.planning.transcriptions import Multiple, Single, Transcription

__all__ = ["METHODS", "solve"]

METHODS: dict[str, Callable[[Dynamics], Transcription]] = {"single": Single, "multiple": Multiple}

RUNNING = -1
ZERO_DAMPING = 1e-5  # μ below counts as 0
MOST_DAMPING = 1e8  # μ above: no step decreases the merit
SUFFICIENT = 1e-4  # least part of the expected decrease (Armijo)
SMALL_STEP = 1e-3  # an outer iteration has ended where inputs change by less, relative to 1 + |impulse|
ABOUT_EQUAL = 0.005  # costs of two schedules that differ by less, relatively, count as equal
TOGETHER = 16  # copies whose candidates are in memory at once, which is quicker than all of them
DEFECT_PRICE = 1.0  # first weight of the sum of defects in the merit of multiple shooting; it doubles with every outer iteration


def solve(problem: Problem, *, method: str = "single", options: SolveOptions | None = None, **changes: Any) -> Plan:
    """Plan: minimize the costs of the problem under its constraints.

    Iterative LQR (Tassa, Erez and Todorov 2012; Howell et al. 2025, "Dojo", section V-B) with Gauss-Newton Hessians. Every iteration tries
    a grid of regularizations × step sizes in one batch. Constraints are met by an augmented Lagrangian, limits of inputs by box-constrained
    sweeps.

    Args:
        method: "single" shooting, whose iterates are motions, or "multiple" shooting, whose nodes may start anywhere (`guess_states`).
        options: `SolveOptions`. changes: fields of `SolveOptions` instead: ``solve(problem, schedule=[(1e-6, 3e-4)])``.

    Returns:
        The best iterate of each problem: of least cost among those that meet the constraints, else of least violation. `Plan.status` says
        how it ended; nothing raises because a problem is hard.

    Raises:
        ValueError: an option out of its range.
    """
    if method not in METHODS:
        raise ValueError(f"solve.method: got {method!r}; allowed: {', '.join(map(repr, METHODS))}")
    if options is not None and changes:
        raise ValueError(f"solve: got options= and {', '.join(changes)}; allowed: one of both")
    with torch.no_grad():
        return _Search(problem, METHODS[method](problem.dynamics), options or SolveOptions(**changes)).run()


@dataclass
class _Tried:
    """The best candidate of each copy, and whether it decreases the merit enough."""

    nodes: Nodes
    cost: Tensor
    merit: Tensor
    violation: Tensor
    gap: Tensor
    regularization: Tensor
    size: Tensor
    accepted: Tensor

    def replace(self, rows: Tensor, other: _Tried) -> None:
        """Take the candidates of some copies from another attempt."""
        for field in fields(self):
            old, new = getattr(self, field.name), getattr(other, field.name)
            if field.name == "nodes":
                for whole, part in zip(old, new, strict=True):
                    whole[rows] = part
            else:
                old[rows] = new


class _Search:
    """The state of a solve: P problems times S schedules, "copies", side by side."""

    def __init__(self, problem: Problem, transcription: Transcription, options: SolveOptions) -> None:
        self.problem, self.transcription, self.options = problem, transcription, options
        schedules = options.schedules
        self.schedules: list[Schedule] = schedules * len(problem)
        self.owner = torch.arange(len(problem)).repeat_interleave(len(schedules))
        self.lagrangian = Lagrangian.of(problem, self.owner, options.penalty)
        self.limits = None if problem.limits is None else (problem.limits[0][self.owner], problem.limits[1][self.owner])
        copies = len(self.owner)
        self.timings = dict.fromkeys(("rollout", "linearize", "sweep", "cost"), 0.0)
        self.level, self.inner, self.iterations = (torch.zeros(copies, dtype=torch.long) for _ in range(3))
        self.status = torch.full((copies,), RUNNING)
        self.mu = torch.full((copies,), options.damping, dtype=torch.float64)
        self.price = torch.full((copies,), DEFECT_PRICE, dtype=torch.float64)
        self.log: list[Record] = []
        self.A = self.B = torch.empty(0)
        self.F: Tensor | None = None  # derivatives of contact forces
        self.K: Tensor | None = None
        self.stale = torch.ones(copies, dtype=torch.bool)  # whether A and B are those of another iterate
        with self._timed("rollout"):
            self.nodes = transcription.start(problem, self.owner, self._smoothing()[0])
        everything = torch.arange(copies)
        self.cost, self.merit, self.violation, self.gap = self._value(self.lagrangian, Nodes(*(v[:, None] for v in self.nodes)), everything)
        self.cost, self.merit, self.violation, self.gap = (v[:, 0] for v in (self.cost, self.merit, self.violation, self.gap))
        self.best_nodes, self.best_level = self.nodes, torch.full((copies,), -1)
        self.best = [value.clone() for value in (self.cost, self.violation, self.gap)]
        self._keep_best(everything)

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        self.timings[name] += time.perf_counter() - begin

    def _smoothing(self) -> tuple[Tensor, Tensor]:
        """kappa and grad_kappa of each copy."""
        pairs = [schedule[min(int(level), len(schedule) - 1)] for schedule, level in zip(self.schedules, self.level, strict=True)]
        kappa, smooth = zip(*((kappa, kappa if smooth is None else smooth) for kappa, smooth in pairs), strict=True)
        return torch.tensor(kappa, dtype=torch.float64), torch.tensor(smooth, dtype=torch.float64)

    def _value(self, lagrangian: Lagrangian, nodes: Nodes, rows: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Cost, merit, violation and largest defect (P, C) of candidates; the merit is infinite where a step failed."""
        with self._timed("cost"):
            cost, merit, violation = lagrangian.value(nodes)
            defect = self.transcription.defect(nodes)
            gap = torch.zeros_like(cost)
            if defect is not None:
                each = defect.abs().amax(-1)
                gap = each.amax(-1)
                merit = merit + self.price[rows, None] * each.sum(-1)
            fine = nodes.ok & torch.isfinite(merit)
            return cost, torch.where(fine, merit, torch.inf), torch.where(fine, violation, torch.inf), gap

    # -- the loop ------------------------------------------------------------------------------------------------------------------------

    def run(self) -> Plan:
        for _ in range(self.options.max_iterations):
            rows = (self.status == RUNNING).nonzero()[:, 0]
            if not len(rows):
                break
            empty = torch.full((len(self.status),), torch.nan, dtype=torch.float64)
            self.log.append(Record(*(empty.clone() for _ in Record._fields)))
            for part in rows.split(TOGETHER):
                self._iterate(part)
        self.status[self.status == RUNNING] = int(PlanStatus.ITERATION_LIMIT)
        self.status[~torch.isfinite(self.best[1])] = int(PlanStatus.DIVERGED)
        return self._plan()

    def _iterate(self, rows: Tensor) -> None:
        """One iteration of the copies `rows`."""
        options, count = self.options, len(rows)
        kappa, smooth = (value[rows] for value in self._smoothing())
        nodes = Nodes(*(value[rows] for value in self.nodes))
        lagrangian = self.lagrangian.select(rows)
        limits = None if self.limits is None else (self.limits[0][rows], self.limits[1][rows])
        self._linearize(rows)
        mus = self.mu[rows, None] * torch.tensor(options.regularizations, dtype=torch.float64)
        mus = torch.where(mus < ZERO_DAMPING, 0.0, mus)
        policy = self._sweep(rows, lagrangian, nodes, mus, limits)
        first = 1 if options.full_steps_first else len(options.step_sizes)
        tried = self._try(rows, lagrangian, nodes, policy, kappa, limits, options.step_sizes[:first])
        left = (~tried.accepted).nonzero()[:, 0]
        if first < len(options.step_sizes) and len(left):
            again = None if limits is None else (limits[0][left], limits[1][left])
            part = lagrangian.select(left), Nodes(*(v[left] for v in nodes)), Policy(*(v[left] for v in policy))
            tried.replace(left, self._try(rows[left], *part, kappa[left], again, options.step_sizes[first:]))
        accepted, before = tried.accepted, self.merit[rows]
        improved = rows[accepted]
        self.nodes = Nodes(*(_replaced(old, improved, new[accepted]) for old, new in zip(self.nodes, tried.nodes, strict=True)))
        for whole, new in ((self.cost, tried.cost), (self.merit, tried.merit), (self.violation, tried.violation), (self.gap, tried.gap)):
            whole[improved] = new[accepted]
        each = torch.arange(count)
        K = policy.K[each, tried.regularization]
        self.K = K.new_zeros(len(self.status), *K.shape[1:]) if self.K is None else self.K
        self.K[rows] = K
        self.stale[improved] = True
        self.iterations[rows] += 1
        self.inner[rows] += 1
        chosen_mu = mus[each, tried.regularization].clamp(min=options.least_damping)
        self.mu[rows] = torch.where(accepted, chosen_mu, self.mu[rows] * max(options.regularizations) * 10)
        self._keep_best(improved)
        size = torch.where(accepted, tried.size, 0.0)
        self._record(rows, kappa, smooth, size)
        relative = torch.where(accepted, before - self.merit[rows], 0.0) / (before.abs() + 1e-12)
        converged = accepted & (relative < options.cost_tolerance) & (size >= 0.1)
        stuck = self.mu[rows] > MOST_DAMPING
        small = policy.ok[:, 0] & (self._change(policy.k[:, 0], nodes.v) < SMALL_STEP)
        if self.transcription.defect(nodes) is not None:
            small &= self.gap[rows] < options.tolerance
        self._outer(rows, converged | small, stuck)

    def _linearize(self, rows: Tensor) -> None:
        old = rows[self.stale[rows]]
        if not len(old):
            return
        kappa, smooth = (value[old] for value in self._smoothing())
        with self._timed("linearize"):
            nodes = Nodes(*(value[old] for value in self.nodes))
            A, B = self.problem.dynamics.linearize(nodes, kappa, smooth)
            F = self.lagrangian.force_jacobian(nodes, smooth)
            if not self.A.numel():
                self.A, self.B = (value.new_zeros(len(self.status), *value.shape[1:]) for value in (A, B))
            self.A[old], self.B[old] = A, B
            if F is not None:
                self.F = F.new_zeros(len(self.status), *F.shape[1:]) if self.F is None else self.F
                self.F[old] = F
        self.stale[old] = False

    def _sweep(self, rows: Tensor, lagrangian: Lagrangian, nodes: Nodes, mus: Tensor, limits: tuple[Tensor, Tensor] | None) -> Policy:
        with self._timed("cost"):
            expansion = lagrangian.expansion(nodes, None if self.F is None else self.F[rows])
        with self._timed("sweep"):
            bounds = None if limits is None else (limits[0] - nodes.v, limits[1] - nodes.v)
            floor = 1e-6 * float(self.problem.mech.timestep) ** 2 * float(self.problem.dynamics.map.square().sum(0).mean())
            defect = self.transcription.defect(nodes)
            return riccati(self.A[rows], self.B[rows], expansion, mus, defect=defect, bounds=bounds, floor=floor, motion=defect is not None)

    def _try(
        self,
        rows: Tensor,
        lagrangian: Lagrangian,
        nodes: Nodes,
        policy: Policy,
        kappa: Tensor,
        limits: tuple[Tensor, Tensor] | None,
        sizes: Sequence[float],
    ) -> _Tried:
        """The best of all regularizations at these step sizes, for each of the copies `rows`."""
        alphas = torch.tensor(sizes, dtype=torch.float64)
        with self._timed("rollout"):
            tried = self.transcription.candidates(nodes, policy, alphas, kappa, limits)
            tried = Nodes(*(value.flatten(1, 2) for value in tried))
        cost, merit, violation, gap = self._value(lagrangian, tried, rows)
        merit = torch.where(policy.ok.repeat_interleave(len(alphas), 1), merit, torch.inf)
        first, second = policy.expected.unbind(-1)
        expected = -(first[..., None] * alphas + second[..., None] * alphas.square()).flatten(1)
        needed = torch.zeros_like(merit) if isinstance(self.transcription, Multiple) else SUFFICIENT * expected.clamp(min=0)
        enough = torch.where(self.merit[rows, None] - merit > needed.nan_to_num(0.0), merit, torch.inf)
        best = enough.argmin(1)
        chosen = (torch.arange(len(rows)), best)
        cost, merit, violation, gap = (value[chosen] for value in (cost, merit, violation, gap))
        which, size, accepted = best // len(alphas), alphas[best % len(alphas)], torch.isfinite(enough[chosen])
        return _Tried(Nodes(*(v[chosen] for v in tried)), cost, merit, violation, gap, which, size, accepted)

    def _change(self, k: Tensor, v: Tensor) -> Tensor:
        """Largest change of an impulse h u, relative to 1 + |h u|."""
        h, dynamics = float(self.problem.mech.timestep), self.problem.dynamics
        return (h * (k @ dynamics.map.T).abs() / (1 + h * dynamics.inputs(v).abs())).amax((-1, -2))

    def _outer(self, rows: Tensor, converged: Tensor, stuck: Tensor) -> None:
        """End the outer iteration of some of the copies `rows`: they are done, or go on with new multipliers and the next smoothing."""
        options = self.options
        ending = converged | stuck | (self.inner[rows] >= options.max_inner)
        if not bool(ending.any()):
            return
        ends, stuck = rows[ending], stuck[ending]
        last = torch.tensor([int(self.level[i]) >= len(self.schedules[int(i)]) - 1 for i in ends])
        feasible = (self.violation[ends] <= options.tolerance) & (self.gap[ends] <= options.tolerance)
        over = self.level[ends] + 1 >= options.max_outer
        done = (feasible & last) | over
        outcome = torch.where(stuck, int(PlanStatus.STUCK), int(PlanStatus.INFEASIBLE))
        outcome = torch.where(feasible & last, int(PlanStatus.SOLVED), outcome)
        self.status[ends[done]] = outcome[done]
        rows = ends[~done]
        if not len(rows):
            return
        kappa, smooth = self._smoothing()
        nodes = Nodes(*(value[rows] for value in self.nodes))
        usable = torch.isfinite(self.merit[rows])
        self.lagrangian.update(rows[usable], Nodes(*(value[usable] for value in nodes)), options.penalty_growth)
        self.level[rows] += 1
        self.inner[rows], self.mu[rows], self.price[rows] = 0, options.damping, 2 * self.price[rows]
        after, smooth_after = self._smoothing()
        harder = rows[after[rows] != kappa[rows]]
        if len(harder):
            self._again(harder, after[harder])
        self.stale[rows] |= (after[rows] != kappa[rows]) | (smooth_after[rows] != smooth[rows])
        lagrangian = self.lagrangian.select(rows)
        values = self._value(lagrangian, Nodes(*(value[rows][:, None] for value in self.nodes)), rows)
        for whole, new in zip((self.cost, self.merit, self.violation, self.gap), values, strict=True):
            whole[rows] = new[:, 0]
        self._keep_best(rows)

    def _again(self, rows: Tensor, kappa: Tensor) -> None:
        """The iterates of copies at their new kappa."""
        limits = None if self.limits is None else (self.limits[0][rows], self.limits[1][rows])
        with self._timed("rollout"):
            K = None if self.K is None else self.K[rows]
            nodes = self.transcription.again(Nodes(*(value[rows] for value in self.nodes)), K, kappa, limits)
        self.nodes = Nodes(*(_replaced(old, rows, new) for old, new in zip(self.nodes, nodes, strict=True)))

    # -- results -------------------------------------------------------------------------------------------------------------------------

    def _keep_best(self, rows: Tensor) -> None:
        """Keep iterates that are better than those kept: later in the schedule, then of less violation, then of less cost."""
        tolerance = self.options.tolerance
        cost, violation, gap = self.best
        worst, kept_worst = (torch.maximum(a, b)[rows] for a, b in ((self.violation, self.gap), (violation, gap)))
        ends = torch.tensor([len(schedule) - 1 for schedule in self.schedules])[rows]
        level = torch.minimum(self.level[rows], ends)
        met, was_met = worst <= tolerance, kept_worst <= tolerance
        better = torch.where(met & was_met, self.cost[rows] < cost[rows], worst < kept_worst)
        better = (level > self.best_level[rows]) | ((level == self.best_level[rows]) & better)
        rows = rows[better & torch.isfinite(self.merit[rows])]
        self.best_nodes = Nodes(*(_replaced(old, rows, new[rows]) for old, new in zip(self.best_nodes, self.nodes, strict=True)))
        for whole, new in zip(self.best, (self.cost, self.violation, self.gap), strict=True):
            whole[rows] = new[rows]
        self.best_level[rows] = torch.minimum(self.level, torch.tensor([len(s) - 1 for s in self.schedules]))[rows]

    def _record(self, rows: Tensor, kappa: Tensor, smooth: Tensor, size: Tensor) -> None:
        values = (
            self.level[rows],
            kappa,
            smooth,
            self.cost[rows],
            self.merit[rows],
            self.violation[rows],
            self.gap[rows],
            self.mu[rows],
            size,
        )
        for column, value in zip(self.log[-1], values, strict=True):
            column[rows] = value.to(torch.float64)

    def _plan(self) -> Plan:
        """The best copy of each problem: a solved one, else that of least violation. The quickest of those of about equal cost."""
        cost, violation, gap = self.best
        wrong = torch.where(self.status == int(PlanStatus.SOLVED), 0.0, torch.maximum(violation, gap) + self.options.tolerance)
        rows = []
        for p in range(len(self.problem)):
            copies = (self.owner == p).nonzero()[:, 0]
            copies = copies[wrong[copies] <= wrong[copies].min()] if bool(torch.isfinite(wrong[copies]).any()) else copies[:1]
            copies = copies[cost[copies] <= cost[copies].min() * (1 + ABOUT_EQUAL)] if len(copies) > 1 else copies
            rows.append(int(copies[self.iterations[copies].argmin()]))
        chosen = torch.tensor(rows)
        nodes = Nodes(*(value[chosen] for value in self.best_nodes))
        gains = self._gains(chosen)
        dynamics, schedules = self.problem.dynamics, len(self.options.schedules)
        states = nodes.z if self.problem.batched else nodes.z[0]
        values = [nodes.z, dynamics.inputs(nodes.v), nodes.v, gains, cost[chosen], violation[chosen], gap[chosen]]
        values += [self.status[chosen], self.iterations[chosen], chosen % schedules]
        if not self.problem.batched:
            values = [value[0] for value in values]
        _, u, v, gains, cost, violation, gap, status, iterations, schedule = values
        z, act = dynamics.motion(states), dynamics.activations(states)
        return Plan(self.problem, z, u, v, gains, cost, violation, gap, status, iterations, schedule, self.log, self.timings, act)

    def _gains(self, rows: Tensor) -> Tensor:
        """K (P, T, m, n) at the best iterates, at the least damping that gives some."""
        self.nodes = self.best_nodes
        self.stale[:] = True
        nodes = Nodes(*(value[rows] for value in self.nodes))
        T, m, n = nodes.v.shape[1], nodes.v.shape[2], self.problem.dynamics.size
        gains = nodes.v.new_zeros(len(rows), T, m, n)
        usable = nodes.ok & torch.isfinite(self.best[0][rows])
        rows, nodes = rows[usable], Nodes(*(value[usable] for value in nodes))
        if len(rows):
            self._linearize(rows)
            grid = torch.tensor([self.options.least_damping, 1e-1, 1e1, 1e3], dtype=torch.float64).expand(len(rows), -1)
            policy = self._sweep(rows, self.lagrangian.select(rows), nodes, grid, None)
            first = policy.ok.to(torch.int64).argmax(1)
            K = policy.K[torch.arange(len(rows)), first]
            gains[usable] = torch.where(policy.ok.any(1)[:, None, None, None], K, 0.0)
        return gains


def _replaced(whole: Tensor, rows: Tensor, new: Tensor) -> Tensor:
    whole = whole.clone()
    whole[rows] = new
    return whole
