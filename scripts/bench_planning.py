#!/usr/bin/env python
"""Time what a planner asks of the kernel: Jacobians along a plan, candidates of a line search, and what a budget saves.

scripts/bench_planning.py
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

import torchdojo as td

STEPS, CANDIDATES = 41, 15


def least(call: Callable[[], Any], repeats: int = 10) -> float:
    """The least processor time of a call [ms]."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return 1e3 * min(times)


def loop(mech: td.Mechanism, z: torch.Tensor, nominal: tuple[torch.Tensor, torch.Tensor], u: torch.Tensor, **rule: Any) -> torch.Tensor:
    """The feedback between steps, in Python."""
    warm = None
    for t in range(u.shape[-2]):
        error = mech.difference_minimal(*mech.to_minimal(z), nominal[0][t], nominal[1][t])
        out = mech.step(z, u[t] + rule["scale"][:, None] * rule["feedforward"][t] + error @ rule["gain"][t].mT, warm_start=warm)
        z, warm = out.z, out.solution
    return z


def main() -> None:
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    torch.manual_seed(0)
    mech = td.models.quadruped(timestep=0.05, damper=5.0, contact_body=False)
    mech.options = td.SolverOptions(kappa=3e-4)
    n, nu = mech.num_coordinates, mech.num_inputs
    z = mech.rollout(td.models.initial_state("quadruped", mech), steps=10).z[-1]
    u = torch.randn(STEPS, nu, dtype=z.dtype)
    path = mech.rollout(z, u, keep_solutions=True)
    q, qd = mech.to_minimal(path.z)
    start = path.z[:-1], path.u
    rule = {
        "gain": 0.1 * torch.randn(STEPS, nu, 2 * n, dtype=z.dtype),
        "feedforward": torch.randn(STEPS, nu, dtype=z.dtype),
        "scale": torch.linspace(0, 1, CANDIDATES, dtype=z.dtype),
    }
    starts = z.expand(CANDIDATES, -1)
    rows = {
        f"Jacobians along {STEPS} steps, warm": lambda: mech.linearize(*start, warm_start=path.solution),
        "the same in minimal coordinates": lambda: mech.linearize_minimal(q[:-1], qd[:-1], u, warm_start=path.solution),
        "the same, cold": lambda: mech.linearize_minimal(q[:-1], qd[:-1], u),
        f"{CANDIDATES} candidates under feedback": lambda: mech.rollout_feedback(z, (q, qd), u, **rule),
        "the same as a loop in Python": lambda: loop(mech, starts, (q, qd), u, **rule),
    }
    print(f"A1, h = 0.05, T = {STEPS}, one thread\n\n| call | ms |\n|---|---|")
    for name, call in rows.items():
        print(f"| {name} | {least(call):.2f} |")
    violent = u * torch.logspace(0, 3, CANDIDATES, dtype=z.dtype)[:, None, None]
    for budget in (None, 50):
        path = mech.rollout(z, violent, budget=budget)
        took = least(lambda budget=budget: mech.rollout(z, violent, budget=budget), 3)
        flagged = int((path.status != 0).any(-1).sum())
        print(f"| {CANDIDATES} rollouts under inputs of 1 to 1000 N m, budget {budget}, {flagged} flagged | {took:.2f} |")


if __name__ == "__main__":
    main()
