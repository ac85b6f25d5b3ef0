"""The gait of the A1 with costs and bounds of the forces of its feet: python scripts/force_bounds.py [--bounds 75 70 65 60]

One thread. A row has the status, linearizations, cost, violation, the largest normal force, and the time per iteration of both schedules.
"""

from __future__ import annotations

import argparse
import time

import torch

from torchdojo.planning import ContactForce, PlanStatus, Problem, solve
from torchdojo.planning.residuals import bind
from torchdojo.planning.tasks import TASKS, quadruped


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bounds", type=float, nargs="*", default=[75.0, 70.0, 65.0, 60.0])
    args = parser.parse_args()
    torch.set_num_threads(1)
    options = TASKS["quadruped"].options
    solve(quadruped(), **{**options, "max_iterations": 2})  # compiles and warms up
    row("without forces", quadruped(), options)
    for quantity in ("normal", "vector"):
        problem = quadruped()
        cost = ContactForce(weight=1e-9, quantity=quantity)
        problem.costs.append(bind("forces", cost, problem.dynamics, 1, problem.steps, problem.start))
        row(f"cost, {quantity}, weight 1e-9", problem, options)
    for penalty in (0.1, 1.0):
        for bound in args.bounds:
            row(f"bound of {bound:g} N, penalty {penalty:g}", quadruped(normal_forces=bound), {**options, "penalty": penalty})


def row(name: str, problem: Problem, options: dict[str, object]) -> None:
    begin = time.process_time()
    plan = solve(problem, **options)
    spent = 1e3 * (time.process_time() - begin) / len(plan.log)
    out = problem.mech.step(plan.z[:-1], plan.u)
    pressed = max(float(force[..., 2].max()) for force in problem.mech.contact_forces(out.z, out.impulses).values())
    print(
        f"{name:30} {PlanStatus(int(plan.status)).name:10} {int(plan.iterations):3} iterations, cost {float(plan.cost):.4f}, "
        f"violation {float(plan.violation):.1e}, {pressed:5.1f} N, {spent:5.1f} ms",
        flush=True,
    )


if __name__ == "__main__":
    main()
