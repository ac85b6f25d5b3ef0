"""Inverse problems of the step: inputs that lead to a state, initial velocities and impulses that lead to a pose.

Each is a least-squares problem through the engine's derivatives, and `levenberg_marquardt` solves a batch of them. Contact makes the
residual flat in places: a foot that sticks does not move however large the torque, and a cube in flight does not feel the friction it
will meet. So each iteration takes derivatives at several smoothings, and all their candidates compete.

Inverse dynamics measures velocities by their kinetic energy. A step without friction projects the velocity onto the cone of admissible
velocities in this metric (Moreau 1966), and the squared norm of such a projection is convex in u. With |v|² instead, feet that slide
slowly form valleys: one of 80 torques of a standing A1 stayed there, and others took up to 21 iterations instead of 12.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from torchdojo.engine.drives import Drives
from torchdojo.mechanism import Mechanism
from torchdojo.parameters import broadcast_shapes
from torchdojo.planning.driven import DrivenDynamics, driven_by
from torchdojo.planning.dynamics import Dynamics, Nodes
from torchdojo.planning.plan import PlanStatus, drifted
from torchdojo.solver.least_squares import Descent, Outcome, Problems, QuadraticModel, Trial, levenberg_marquardt

__all__ = ["Inverse", "initial_impulse", "initial_velocity", "inverse_dynamics"]

#: Smoothings of derivatives that every iteration tries beside the step's own. `python scripts/inverse_tasks.py` shows what they give.
STEP_SMOOTHINGS = (1e-2, 1e-3, 1e-4, 1e-5)
PATH_SMOOTHINGS = (1e-2, 1e-4)
#: Factors of the damping that every iteration tries.
FACTORS = (1e-2, 1.0, 1e2)
#: A descent is over where the model promises less than this part of the cost, or where PATIENCE iterations do not halve the cost.
DECREASE_TOL = 1e-6
PATIENCE = 10
#: Least damping of an unknown, relative to the one that is felt best: the units of an impulse differ, those of velocities less.
STEP_FLOOR, VELOCITY_FLOOR, IMPULSE_FLOOR = 1e-9, 1e-2, 1e-4
#: A path that gets stuck begins again at the best of SAMPLES starts around the guess, SPREAD [m, rad] apart at the end of the path.
RESTARTS, SAMPLES, SPREAD = 4, 16, 0.1

_STATUS = {
    Outcome.LIMIT: PlanStatus.ITERATION_LIMIT,
    Outcome.CONVERGED: PlanStatus.SOLVED,
    Outcome.STATIONARY: PlanStatus.INFEASIBLE,
    Outcome.STUCK: PlanStatus.STUCK,
    Outcome.INVALID: PlanStatus.DIVERGED,
}


class Inverse(NamedTuple):
    """The best iterate of each problem.

    value: what was asked for: inputs (..., nu) [N, N·m], rates (..., n), or an impulse (..., 6) [N·s, N·m·s].
    z: the motion under `value`, states (..., T+1, 13 nb) from the start; T = 1 for inverse dynamics.
    residual: largest error in joint coordinates (...,).
    status: (...,) of `PlanStatus`. INFEASIBLE: a least-squares solution with an error; STUCK: no step makes progress, another guess may;
    ITERATION_LIMIT: more iterations may; DIVERGED: the steps under the guess fail.
    iterations: (...,) linearizations, each at all smoothings.
    """

    value: Tensor
    z: Tensor
    residual: Tensor
    status: Tensor
    iterations: Tensor

    @property
    def solved(self) -> Tensor:
        return self.status == int(PlanStatus.SOLVED)


def inverse_dynamics(
    mech: Mechanism,
    z: Tensor,
    z_next: Tensor,
    *,
    guess: Tensor | None = None,
    controls: bool = False,
    activation: Tensor | None = None,
    kappa: float | None = None,
    tolerance: float = 1e-5,
    max_iterations: int = 30,
    grad_kappas: Sequence[float] = STEP_SMOOTHINGS,
) -> Inverse:
    """Inputs u with step(z, u) = z_next, through contact, by Gauss-Newton.

    The residual is the largest error of joint rates [m/s, rad/s], and of joint coordinates over the timestep. States hold the velocity
    that led to the pose, so a `z_next` whose poses contradict its velocities is INFEASIBLE.

    At kappa > 0 a gap fixes the impulse of its contact, kappa / gap. So a pose at rest has inputs that hold it only if its gaps carry its
    weight. `mech.place(z, clearance)` and `td.kappa_for_gap` help, and so does a small kappa.

    Args:
        z, z_next: (..., 13 nb). guess: inputs (..., nu) to begin with; default zero. Leading dimensions broadcast.
        controls: whether to find controls instead of inputs: of `mech.drives` where it has drives with a law of their own, else of
            `mech.actuators`. Controls of drives act in this step where they have no activation, or the one after the step (`early`).
        activation: (..., na), of drives, before the step; None: zeros.
        kappa: of the step; default that of the mechanism's options.
        tolerance: largest residual of a solution. max_iterations: linearizations.
        grad_kappas: smoothings of the derivative tried beside kappa itself.

    Raises:
        ValueError: shapes that do not fit, a mechanism without inputs, drives whose controls act after the step.
    """
    mech.check_state(z, "z")
    mech.check_state(z_next, "z_next")
    drives = driven_by(mech) if controls else None
    if drives is not None:
        _check_drives(drives, activation)
    elif activation is not None:
        raise ValueError("inverse_dynamics.activation: got activations; allowed: None, but for controls=True of a mechanism with drives")
    size = mech.num_inputs if not controls else len(mech.actuators or ()) if drives is None else len(drives.names)
    if not size:
        raise ValueError(f"inverse_dynamics: the mechanism has no {'actuators' if controls else 'inputs'}; give joints actuated=True")
    guess = z.new_zeros(size) if guess is None else guess
    if guess.shape[-1:] != (size,):
        raise ValueError(f"inverse_dynamics.guess: got shape {tuple(guess.shape)}; allowed: (..., {size})")
    eye = torch.eye(size, dtype=torch.float64)
    choice = (mech, eye, eye.new_zeros(size), "tangent")
    dynamics = Dynamics(*choice, controls) if drives is None else DrivenDynamics(*choice)
    act = z.new_zeros(dynamics.num_activations) if activation is None else activation
    (states, targets, guess, act), shape = _flat(z, z_next, guess, act)
    problems = _OneStep(dynamics, states, targets, _smoothings(mech, kappa, grad_kappas), act)
    solution = _solve(problems, guess, shape, tolerance, max_iterations, floor=STEP_FLOOR, restarts=0)
    status = torch.where(solution.solved | problems.reachable(tolerance).reshape(shape), solution.status, int(PlanStatus.INFEASIBLE))
    return solution._replace(status=status, z=dynamics.motion(solution.z))


def _check_drives(drives: Drives, activation: Tensor | None) -> None:
    """Raise where controls act after the step, or activations do not fit."""
    count = drives.num_activations
    late = [
        name
        for name, drive in drives.drives.items()
        if name in drives.delays or (name in drives.activated and drive is not None and not drive.early)
    ]
    if late:
        raise ValueError(
            f"inverse_dynamics.controls: got True with drives whose controls act after the step, {late}; allowed: drives without "
            "activation and delay, or Drive(early=True). mech.drives.activations_for(z, tau) finds activations for forces on "
            "the coordinates, and controls=False finds forces and torques u, at tendons, too"
        )
    if activation is not None and activation.shape[-1:] != (count,):
        raise ValueError(
            f"inverse_dynamics.activation: got shape {tuple(activation.shape)}; allowed: (..., {count}), of {list(drives.carried)}"
        )


def initial_velocity(
    mech: Mechanism,
    z: Tensor,
    target: Tensor,
    steps: int,
    *,
    guess: Tensor | None = None,
    kappa: float | None = None,
    tolerance: float = 1e-8,
    max_iterations: int = 60,
    grad_kappas: Sequence[float] = PATH_SMOOTHINGS,
    restarts: int = RESTARTS,
) -> Inverse:
    """Rates q̇ of the joints with which a motion from the pose of z, without inputs, ends in the pose of the target.

    Args:
        z, target: (..., 13 nb); their velocities do not matter. steps: length T of the motion. guess: rates (..., n) to begin with, by
            default those of z. Leading dimensions broadcast.
        tolerance: largest error of joint coordinates at the end [m, rad].
        max_iterations: linearizations of one descent. restarts: number of further descents where one fails, from starts around the guess.
            The random numbers are the same in each call.
        The others are as in `inverse_dynamics`.

    Raises:
        ValueError: shapes that do not fit, steps below 1, closed loops.
    """
    problems, shape, guess = _shooting(mech, z, target, steps, None, guess, _smoothings(mech, kappa, grad_kappas))
    return _solve(problems, guess, shape, tolerance, max_iterations, floor=VELOCITY_FLOOR, restarts=restarts)


def initial_impulse(
    mech: Mechanism,
    z: Tensor,
    target: Tensor,
    steps: int,
    *,
    body: str,
    guess: Tensor | None = None,
    kappa: float | None = None,
    tolerance: float = 1e-8,
    max_iterations: int = 60,
    grad_kappas: Sequence[float] = PATH_SMOOTHINGS,
    restarts: int = RESTARTS,
) -> Inverse:
    """The impulse on a body in the first step (force and torque as in `wrench`, times h) after which a motion ends in the target's pose.

    Args:
        body: name of the body that is pushed. guess: (..., 6) [N·s, N·m·s]; default zero. The others are as in `initial_velocity`.

    Raises:
        ValueError: an unknown body, and as `initial_velocity`.
    """
    if body not in mech.bodies:
        raise ValueError(f"initial_impulse.body: got {body!r}; allowed: {', '.join(mech.bodies)}")
    pushed = list(mech.bodies).index(body)
    problems, shape, guess = _shooting(mech, z, target, steps, pushed, guess, _smoothings(mech, kappa, grad_kappas))
    return _solve(problems, guess, shape, tolerance, max_iterations, floor=IMPULSE_FLOOR, restarts=restarts)


def _flat(*given: Tensor) -> tuple[list[Tensor], torch.Size]:
    """The tensors (N, size) with their leading dimensions broadcast, and these."""
    try:
        shape = broadcast_shapes(*(value.shape[:-1] for value in given))
    except RuntimeError:
        shapes = ", ".join(str(tuple(value.shape)) for value in given)
        raise ValueError(f"inverse problem: got states and guess of shapes {shapes}; their leading dimensions must broadcast") from None
    flat = [value.detach().to(torch.float64).expand(*shape, value.shape[-1]).reshape(shape.numel(), value.shape[-1]) for value in given]
    return flat, shape


def _smoothings(mech: Mechanism, kappa: float | None, grad_kappas: Sequence[float]) -> list[float]:
    """Values of grad_kappa from wide to sharp; the last one is kappa itself."""
    kappa = float(mech.options.kappa) if kappa is None else kappa
    for name, value in [("kappa", kappa), *(("grad_kappas", value) for value in grad_kappas)]:
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"inverse problem: {name}: got {value}; allowed: positive finite numbers")
    return [*sorted((value for value in grad_kappas if value > kappa), reverse=True), kappa]


def _solve(
    problems: _Inverse, guess: Tensor, shape: torch.Size, tolerance: float, max_iterations: int, floor: float, restarts: int
) -> Inverse:
    if max_iterations < 1:
        raise ValueError(f"inverse problem: max_iterations: got {max_iterations}; allowed: 1 or more")

    def descend(problems: _Inverse, start: Tensor) -> Descent:
        return levenberg_marquardt(
            problems,
            start,
            iterations=max_iterations,
            tolerance=tolerance,
            decrease_tol=DECREASE_TOL,
            factors=FACTORS,
            floor=floor,
            patience=PATIENCE,
        )

    solution = descend(problems, guess)
    generator = torch.Generator().manual_seed(0)
    for _ in range(restarts):
        # One table for all problems: each gets the same starts as alone.
        table = torch.randn(SAMPLES, guess.shape[-1], generator=generator, dtype=torch.float64)
        rows = ((solution.outcome != int(Outcome.CONVERGED)) & (solution.outcome != int(Outcome.INVALID))).nonzero()[:, 0]
        if not len(rows):
            break
        part = problems.select(rows)
        again = descend(part, part.nearby(guess[rows], table))
        solution.iterations[rows] += again.iterations + 1
        better = again.cost < solution.cost[rows]
        for entry, value in zip(_entries(solution), _entries(again), strict=True):
            entry[rows[better]] = value[better]
    status = torch.zeros_like(solution.outcome)
    for outcome, meaning in _STATUS.items():
        status[solution.outcome == int(outcome)] = int(meaning)

    def whole(value: Tensor) -> Tensor:
        return value.reshape((*shape, *value.shape[1:]))

    return Inverse(*map(whole, (solution.x, solution.data[0], solution.error, status, solution.iterations)))


def _entries(found: Descent) -> tuple[Tensor, ...]:
    """The tensors of an iterate."""
    return found.x, found.cost, found.error, found.outcome, *found.data


class _Inverse(Problems):
    """The common part of both inverse problems: kappas, and unknowns that add.

    Args:
        states, targets: (N, 13 nb). smoothings: values of grad_kappa, the last one kappa.
    """

    def __init__(self, dynamics: Dynamics, states: Tensor, targets: Tensor, smoothings: Sequence[float]) -> None:
        self.dynamics, self.mech, self.states, self.targets = dynamics, dynamics.mech, states, targets
        self.smoothings = states.new_tensor(smoothings)
        self.goal = self.mech.to_minimal(targets)

    def select(self, rows: Tensor) -> _Inverse:
        """The problems `rows`."""
        part = copy.copy(self)
        part.states, part.targets = self.states[rows], self.targets[rows]
        part.goal = self.goal[0][rows], self.goal[1][rows]
        return part

    def nearby(self, guess: Tensor, table: Tensor) -> Tensor:
        """The best of the starts (M, P) in the table, around the guess (N, P), by the scales of a smooth derivative there."""
        rows = torch.arange(len(guess))
        data = tuple(entry[:, 0] for entry in self.evaluate(guess[:, None], None, rows).data)
        seen = self.linearize(guess, data, rows).hessian[:, 0].diagonal(dim1=-2, dim2=-1)
        scale = SPREAD / seen.clamp_min(1e-3 * seen.amax(-1, keepdim=True)).sqrt()
        starts = guess[:, None] + scale[:, None] * table
        return starts[rows, self.evaluate(starts, None, rows).cost.argmin(-1)]

    def kappa(self, count: int) -> Tensor:
        return self.smoothings[-1:].expand(count)

    def retract(self, x: Tensor, step: Tensor, rows: Tensor) -> Tensor:
        return x[:, None] + step

    def errors(self, z: Tensor, rows: Tensor) -> Tensor:
        """Joint coordinates and rates of states (B, ..., 13 nb) minus the goal's, (B, ..., 2 n)."""
        q, qd = (value[rows].reshape(len(rows), *[1] * (z.ndim - 2), -1).expand(*z.shape[:-1], -1) for value in self.goal)
        return self.mech.difference_minimal(*self.mech.to_minimal(z), q, qd)

    def trial(self, residual: Tensor, error: Tensor, ok: Tensor, *data: Tensor) -> Trial:
        ok = ok & residual.isfinite().all(-1)
        cost, error = 0.5 * residual.square().sum(-1), error.abs().amax(-1)
        return Trial(torch.where(ok, cost, torch.inf), torch.where(ok, error, torch.inf), (*data, residual))

    def spread(self, value: Tensor) -> Tensor:
        """One copy per smoothing, (B G, ...)."""
        return value.repeat_interleave(len(self.smoothings), 0)

    def model(self, jacobian: Tensor, residual: Tensor) -> QuadraticModel:
        """Models from the Jacobians (B G, R, P) at residuals (B, R)."""
        jacobian = jacobian.unflatten(0, (len(residual), -1))
        return QuadraticModel((jacobian.mT @ residual[:, None, :, None])[..., 0], jacobian.mT @ jacobian)


class _OneStep(_Inverse):
    """Velocities of step(z, v) minus those of z_next. data: states (2, 13 nb), solution (1, num_unknowns), residual.

    The residual has √m δv and Lᵀ δω of each body, with L Lᵀ its inertia, so the cost is the kinetic energy of the difference.
    """

    def __init__(self, dynamics: Dynamics, states: Tensor, targets: Tensor, smoothings: Sequence[float], act: Tensor | None = None) -> None:
        super().__init__(dynamics, states, targets, smoothings)
        self.act = states.new_zeros(len(states), dynamics.num_activations) if act is None else act
        bodies: list[Any] = list(self.mech.bodies.values())
        # Masses that differ between environments enter by their mean: any metric has the same zeros.
        mass = torch.stack([body.mass.detach().double().reshape(-1).mean() for body in bodies])
        inertia = torch.stack([body.inertia.detach().double().reshape(-1, 3, 3).mean(0) for body in bodies])
        self.root = torch.zeros(len(bodies), 6, 12, dtype=torch.float64)
        self.root[:, :3, 3:6] = mass.sqrt()[:, None, None] * torch.eye(3, dtype=torch.float64)
        self.root[:, 3:, 9:] = torch.linalg.cholesky(inertia).mT

    def select(self, rows: Tensor) -> _OneStep:
        part = cast(_OneStep, super().select(rows))
        part.act = self.act[rows]
        return part

    def _energies(self, difference: Tensor) -> Tensor:
        """Rows (..., 6 nb) of tangent differences (..., 12 nb), behind which there may be those of activations."""
        difference = difference[..., : self.root.shape[0] * self.root.shape[-1]]
        return (self.root @ difference.unflatten(-1, (-1, 12))[..., None])[..., 0].flatten(-2)

    def reachable(self, tolerance: float) -> Tensor:
        """Whether the poses of the targets are those to which their velocities lead, (N,)."""
        ahead, before, after = (value.unflatten(-1, (-1, 13)) for value in (self.states, self.targets, self.targets))
        twist = torch.cat((ahead[..., :3], before[..., 3:6], ahead[..., 6:10], before[..., 10:]), dim=-1).flatten(-2)
        h = float(self.mech.timestep)
        miss = self.mech.difference(drifted(twist, h), after.flatten(-2)).abs().amax(-1) / h
        return ~(miss > tolerance)

    def _nodes(self, v: Tensor, rows: Tensor) -> Tensor:
        x = self.dynamics.joined(torch.stack((self.states[rows], self.targets[rows]), 1), self.act[rows][:, None])
        return x[:, None].expand(*v.shape[:2], *x.shape[1:])

    def evaluate(self, x: Tensor, data: tuple[Tensor, ...] | None, rows: Tensor) -> Trial:
        z = self._nodes(x, rows)
        warm = None if data is None else data[1][:, None].expand(*x.shape[:2], *data[1].shape[1:])
        nodes = self.dynamics.evaluate(z, x[..., None, :], warm, self.kappa(len(rows)))
        after = nodes.end[..., 0, :]
        rates, shifts = self.errors(self.dynamics.motion(after), rows).chunk(2, dim=-1)[::-1]
        error = torch.cat((rates, shifts / float(self.mech.timestep)), dim=-1)
        residual = self._energies(self.dynamics.difference(after, z[..., 1, :]))
        return self.trial(residual, error, nodes.ok, torch.stack((z[..., 0, :], after), -2), nodes.w)

    def linearize(self, x: Tensor, data: tuple[Tensor, ...], rows: Tensor) -> QuadraticModel:
        z, w, residual = data
        x, z, w = self.spread(x[:, None]), self.spread(z), self.spread(w)
        nodes = Nodes(z, z, x, w, z[:, 1:], torch.ones(len(x), dtype=torch.bool))
        B = self.dynamics.linearize(nodes, self.kappa(len(x)), self.smoothings.repeat(len(rows)))[1][:, 0]
        return self.model(self._energies(B.mT).mT, residual)


class _Shooting(_Inverse):
    """Coordinates at the end of a rollout minus those of the target. data: states (T+1, 13 nb), solutions (T, num_unknowns), residual.

    Args:
        pushed: number of the body that gets an impulse in the first step; None: the unknowns are the first rates.
    """

    def __init__(
        self, pushed: int | None, steps: int, dynamics: Dynamics, states: Tensor, targets: Tensor, smoothings: Sequence[float]
    ) -> None:
        super().__init__(dynamics, states, targets, smoothings)
        self.pushed, self.steps, self.n = pushed, steps, self.mech.num_coordinates

    def wrench(self, x: Tensor) -> Tensor:
        """(..., 6 nb) of the first step under an impulse x (..., 6)."""
        assert self.pushed is not None
        wrench = x.new_zeros(*x.shape[:-1], self.mech.num_bodies, 6)
        wrench[..., self.pushed, :] = x / float(self.mech.timestep)
        return wrench.flatten(-2)

    def evaluate(self, x: Tensor, data: tuple[Tensor, ...] | None, rows: Tensor) -> Trial:
        B, M = x.shape[:2]
        x, which = x.flatten(0, 1), rows.repeat_interleave(M)
        finite = x.isfinite().all(-1)
        x = torch.where(finite[:, None], x, 0.0)
        warm = None if data is None else data[1][:, 0].repeat_interleave(M, 0)
        kappa, v = self.kappa(len(x)), x.new_zeros(len(x), self.steps, self.dynamics.num_inputs)
        z = self.states[which]
        if self.pushed is None:
            nodes = self.dynamics.rollout(self.mech.to_maximal(self.mech.to_minimal(z)[0], x), v, warm, kappa)
            path, w, ok = nodes.z, nodes.w, nodes.ok
        else:
            with self.dynamics.solving(float(self.smoothings[-1])) as mech:
                out = mech.step(z, wrench=self.wrench(x), warm_start=warm)
            path, w, ok = torch.stack((z, out.z), 1), out.solution[:, None], out.status == 0
            if self.steps > 1:
                nodes = self.dynamics.rollout(out.z, v[:, 1:], out.solution, kappa)
                path, w, ok = torch.cat((z[:, None], nodes.z), 1), torch.cat((w, nodes.w), 1), ok & nodes.ok
        path, w, ok = (value.unflatten(0, (B, M)) for value in (path, w, ok & finite))
        residual = self.errors(path[:, :, -1], rows)[..., : self.n]
        return self.trial(residual, residual, ok, path, w)

    def linearize(self, x: Tensor, data: tuple[Tensor, ...], rows: Tensor) -> QuadraticModel:
        path, w, residual = data
        wide, smooth = self.smoothings.repeat(len(rows)), self.kappa(len(rows) * len(self.smoothings))
        z, w = self.spread(path), self.spread(w)
        xs = self.dynamics.coordinates(z)
        skip = 0 if self.pushed is None else 1
        v = z.new_zeros(len(z), self.steps - skip, self.dynamics.num_inputs)
        if self.pushed is None:
            forward = torch.eye(2 * self.n, dtype=z.dtype)[:, self.n :].expand(len(z), -1, -1)
        else:
            q, qd = xs[:, 0].chunk(2, dim=-1)
            with self.dynamics.solving(float(self.smoothings[-1])) as mech:
                first = mech.linearize_minimal(
                    q, qd, wrench=self.wrench(self.spread(x)), wrt=("wrench",), warm_start=w[:, 0], grad_kappa=wide
                )
            forward = first.by[0][..., 6 * self.pushed : 6 * self.pushed + 6] / float(self.mech.timestep)
        if self.steps > skip:
            nodes = Nodes(xs[:, skip:], z[:, skip:], v, w[:, skip:], xs[:, skip + 1 :], torch.ones(len(z), dtype=torch.bool))
            for A in self.dynamics.linearize(nodes, smooth, wide)[0].unbind(1):
                forward = A @ forward
        return self.model(forward[:, : self.n], residual)


def _shooting(
    mech: Mechanism, z: Tensor, target: Tensor, steps: int, pushed: int | None, guess: Tensor | None, smoothings: Sequence[float]
) -> tuple[_Shooting, torch.Size, Tensor]:
    mech.check_state(z, "z")
    mech.check_state(target, "target")
    if steps < 1:
        raise ValueError(f"inverse problem: steps: got {steps}; allowed: 1 or more")
    size = mech.num_coordinates if pushed is None else 6
    if guess is None:
        guess = mech.to_minimal(z)[1] if pushed is None else z.new_zeros(6)
    if guess.shape[-1:] != (size,):
        raise ValueError(f"inverse problem: guess: got shape {tuple(guess.shape)}; allowed: (..., {size})")
    (states, targets, guess), shape = _flat(z, target, guess)
    nu = mech.num_inputs
    dynamics = Dynamics(mech, torch.zeros(nu, max(nu, 1), dtype=torch.float64), torch.zeros(nu, dtype=torch.float64), "minimal")
    return _Shooting(pushed, steps, dynamics, states, targets, smoothings), shape, guess
