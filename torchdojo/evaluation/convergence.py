"""Iterations of a step, and condition numbers of its linear systems (Howell et al. 2025, Figures 9 and 10).

The experiment counts Newton iterations, with one factorization each, of one step from a cold start: the velocities of the state, no
impulses, κ = 1e-2. They end when every equation holds to 1e-8 (N·s, N·m·s, m, m/s) and every complementarity product equals κ = 1e-8 to
1e-3 κ. A rollout starts each step from the solution of the step before and needs fewer iterations. A failed attempt counts too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from torchdojo import models
from torchdojo.evaluation.experiment import Line, Measurement, Outcome, Plot, Setting, SkippedError, flagged_steps
from torchdojo.evaluation.robots import atlas, atlas_start, standing_a1
from torchdojo.mechanism import Mechanism, StepOutput
from torchdojo.solver.interior_point import DESCENT_LEVEL
from torchdojo.solver.path_newton import newton_on_path
from torchdojo.solver.solution import violations
from torchdojo.testing.conditioning import balanced, derivative, step_problem

__all__ = ["Drop", "convergence", "drops"]

KAPPA, TOLERANCE, MOST = 1e-8, 1e-8, 15
TIMESTEP = 0.01  # [s]


class Drop(NamedTuple):
    """A mechanism, the states (T+1, 13 nb) of its drop, and the statuses and iterations (T,) of the warm-started rollout."""

    mech: Mechanism
    z: Tensor
    status: Tensor
    iterations: Tensor


def drops(setting: Setting, steps: int) -> dict[str, Callable[[], Drop]]:
    """Functions that drop the three mechanisms of the figures: a thrown box, and the A1 and Atlas, held in their posture."""

    def drop(mech: Mechanism, z: Tensor) -> Drop:
        mech.options = dataclasses.replace(mech.options, kappa=KAPPA, residual_tol=TOLERANCE)
        path = mech.rollout(z, steps=steps)
        return Drop(mech, path.z, path.status, path.iterations)

    def box() -> Drop:
        mech = models.box(timestep=TIMESTEP)
        return drop(mech, models.initial_state("box", mech))

    def robot() -> Drop:
        mech = atlas(setting, TIMESTEP)
        return drop(mech, atlas_start(mech, 0.1))

    return {"box": box, "quadruped": lambda: drop(*standing_a1(TIMESTEP)), "Atlas": robot}


def convergence(setting: Setting) -> Outcome:
    """A thrown box, the A1 and Atlas fall onto the ground; iterations and condition numbers are measured.

    The matrix is the derivative of all equations with respect to all unknowns: velocities, joint multipliers, contact impulses and slacks.
    It is taken at the solution, as for the gradient: unscaled, and with rows and columns balanced to unit length. The unscaled number
    depends on units (rows in N·s and m, columns in m/s and N·s). The balanced number does not, and it has the bound.
    """
    steps = 100 if setting.quick else 200
    rows: list[Measurement] = []
    lines: dict[str, Line] = {}
    products: dict[str, Line] = {}
    notes: list[str] = []
    for name, build in drops(setting, steps).items():
        try:
            drop = build()
        except SkippedError as reason:
            notes.append(f"{name} is left out: {reason}")
            continue
        cold = drop.mech.step(drop.z[:-1])
        touch = int((drop.mech.distances(drop.z).amin(-1)[1:] < 1e-4).nonzero()[0, 0])
        sample = {touch, touch + 1, steps - 1} | ({steps // 2} if setting.quick else set(range(0, steps, 20)))
        rows += _iteration_rows(name, drop, cold.iterations, touch)
        rows += _condition_rows(name, drop, cold, sorted(sample))
        rows.append(flagged_steps(drop.status, cold.status, name=name.lower()))
        equations, gaps = _history(drop.mech, drop.z[touch], int(cold.iterations[touch]))
        lines[name] = Line(range(len(equations)), equations)
        products[name] = Line(range(len(gaps)), gaps)
    plots = [
        Plot("equations", "Step of the first touch, kappa 1e-8", "iteration", "largest violation of an equation", lines, log="y"),
        Plot("products", "Step of the first touch, kappa 1e-8", "iteration", "largest error of a product", products, log="y"),
    ]
    return Outcome(rows, plots, notes=notes)


def _iteration_rows(name: str, drop: Drop, iterations: Tensor, touch: int) -> list[Measurement]:
    """Measurements of the cold iterations (T,), of which step `touch` is the first with a contact, and of the warm ones."""
    key, counts = name.lower(), iterations.double()
    return [
        Measurement(f"{key}_touchdown_iterations", f"{name}: iterations at the first touch", int(counts[touch]), at_most=MOST),
        Measurement(f"{key}_rest_iterations", "iterations of the last step", int(counts[-1]), at_most=MOST),
        Measurement(f"{key}_iterations_p99", f"99th percentile of {len(counts)} steps", float(counts.quantile(0.99)), at_most=MOST),
        Measurement(f"{key}_iterations_worst", "worst of them", int(counts.max()), at_most=MOST),
        Measurement(f"{key}_warm_iterations_mean", "mean iterations in a rollout (warm start)", float(drop.iterations.double().mean())),
    ]


def _condition_rows(name: str, drop: Drop, cold: StepOutput, sample: list[int]) -> list[Measurement]:
    """Largest condition numbers of the derivative at the steps of `sample`."""
    key, worst, balanced_worst = name.lower(), 0.0, 0.0
    for t in sample:
        matrix = derivative(step_problem(drop.mech, drop.z[t]), cold.solution[t])
        worst = max(worst, float(torch.linalg.cond(matrix)))
        balanced_worst = max(balanced_worst, float(torch.linalg.cond(balanced(matrix))))
    return [
        Measurement(f"{key}_condition_balanced", f"condition number, balanced ({len(matrix)} unknowns)", balanced_worst, at_most=1e9),
        Measurement(f"{key}_condition_unscaled", "condition number, unscaled", worst),
    ]


def _history(mech: Mechanism, z: Tensor, iterations: int) -> tuple[list[float], list[float]]:
    """Largest violations of equations and of products after 0, 1, ... iterations of the first attempt from a cold start.

    The reference computes them; it takes the same decisions as the kernel.
    """
    problem = step_problem(mech, z)
    level = max(DESCENT_LEVEL, KAPPA)
    start, goal = problem.cold_start(level), z.new_full((1,), KAPPA)
    points: list[Tensor] = []
    newton_on_path(problem, start, mech.options, iterations, level, lift=False, points=points)
    equations, products = [], []
    for point in points:
        equality, product, _ = violations(problem, problem.residual(point), goal, mech.options.tolerances(goal.dtype)[0])
        equations.append(float(equality))
        products.append(float(product))
    return equations, products
