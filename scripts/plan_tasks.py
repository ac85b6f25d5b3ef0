"""Plans of Dojo's table III from perturbed starts: python scripts/plan_tasks.py [--tasks box_up,hopper] [--starts 10] [--method single]

Iterations, cost and violation are medians over the solved starts; the worst follows in brackets. `replay` is the distance of the nearest
body to its place at the end of the plan, in steps of h/10 at kappa 1e-8, open loop and with the gains; it is that of a median start.
CPU time is that of one plan from the unperturbed guess, by one thread.
"""

from __future__ import annotations

import argparse
import time

import torch

from torchdojo import planning
from torchdojo.planning.tasks import TASKS, Task


def distance(plan: planning.Plan, task: Task, feedback: bool) -> torch.Tensor:
    """Largest distance of a body to its place at the end of the plan [cm], (P,)."""
    path = task.replay(plan, feedback)
    gap = (path.nodes[..., -1, :] - plan.z[..., -1, :]).unflatten(-1, (-1, 13))[..., :3]
    return 100 * torch.linalg.vector_norm(gap, dim=-1).amax(-1)


def report(name: str, task: Task, options: argparse.Namespace) -> None:
    settings = {**task.options, **({"schedule": getattr(planning, options.schedule)} if options.schedule else {})}
    plan = planning.solve(task.perturbed(options.starts, options.seed), method=options.method, **settings)
    good = plan.solved

    def both(values: torch.Tensor, form: str) -> str:
        values = values[good].to(torch.float64)
        return f"{format(float(values.median()), form)} ({format(float(values.max()), form)})" if len(values) else "-"

    problem = task.make(None)
    begin = time.process_time()
    alone = planning.solve(problem, method=options.method, **settings)
    seconds = time.process_time() - begin
    open_loop, closed = distance(plan, task, False), distance(plan, task, True)
    print(
        f"{name:10s} solved {int(good.sum())}/{len(good)}, iterations {both(plan.iterations, '.0f')}, cost {both(plan.cost, '.4f')}, "
        f"violation {both(plan.violation, '.1e')}, replay open {both(open_loop, '.2f')} cm, closed {both(closed, '.2f')} cm; "
        f"published {task.published}"
    )
    parts = ", ".join(f"{part} {1e3 * value / len(alone.log):.1f}" for part, value in alone.timings.items())
    print(
        f"{'':10s} unperturbed: {planning.PlanStatus(int(alone.status)).name}, {int(alone.iterations)} iterations, cost "
        f"{float(alone.cost):.4f}, violation {float(alone.violation):.1e}; {seconds:.2f} s CPU, {1e3 * seconds / len(alone.log):.1f} ms "
        f"per iteration (ms: {parts})",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--starts", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0, help="of the noise")
    parser.add_argument("--method", default="single")
    parser.add_argument("--schedule", help="GRADIENT_ANNEALED or BOTH_ANNEALED alone")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in options.tasks.split(","):
        report(name, TASKS[name], options)


if __name__ == "__main__":
    main()
