#!/usr/bin/env python
"""Time `mech.jacobians_minimal` of robots in contact, beside the step and beside `mech.jacobians` multiplied with both maps.

    scripts/bench_minimal_jacobians.py                                 # Atlas (36 dof), batch 1024, one thread
    scripts/bench_minimal_jacobians.py --models quadruped,humanoid --batch 64

The calls are timed by turns in one process, after the robot has settled on its feet under random inputs. A time is the least of many
repeats. It includes the way from (q, qd) to the maximal state, the step and its derivatives. A step starts cold, or warm from the solution
that a simulation has. The method of the reference, "composed", gets an eighth of the batch, since it needs 1.2 MB per environment. The
models come from bench_cases.py, and Atlas' file lies in $TORCHDOJO_SHARED. The exit status is 1 if `--at-most` is exceeded.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Callable

import torch
from bench_cases import CASES
from torch import Tensor

import torchdojo as td
from torchdojo.state import minimal_jacobians


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="atlas")
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--at-most", type=float, help="µs per environment, warm")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    slowest = 0.0
    for name in options.models.split(","):
        slowest = max(slowest, measure(name, options.batch, options.repeats))
    if options.at_most is not None and slowest > options.at_most:
        sys.exit(f"{slowest:.0f} µs is more than {options.at_most} µs")


def measure(name: str, batch: int, repeats: int) -> float:
    """Time [µs] per environment of the Jacobian from a warm start."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the file has meshes, and the simulation has none
        case = CASES[name]()
    mech = case.mech
    mech.options = td.SolverOptions(backend="native")
    path = mech.rollout(case.start.expand(batch, -1), case.inputs(batch, case.settle))
    u, (q, qd) = case.inputs(batch), mech.to_minimal(path.z[:, -1])
    out = mech.step(path.z[:, -1], u)
    warm, few = out.solution, max(1, batch // 8)

    def composed() -> Tensor:
        z, order, nb, h = mech.to_maximal(q[:few], qd[:few]), mech.tree_order(), mech.num_bodies, mech.timestep
        after = mech.step(z, u[:few], warm_start=warm[:few]).z
        products = minimal_jacobians.minimal_products(order, nb, after, h, list(mech.jacobians(z, u[:few], warm_start=warm[:few])))
        return torch.cat((products[0] @ minimal_jacobians.maximal_jacobian(order, nb, q[:few], qd[:few], z, h), products[1]), dim=-1)

    calls: dict[str, tuple[int, Callable[[], object]]] = {
        "step, cold": (batch, lambda: mech.step(path.z[:, -1], u)),
        "jacobians_minimal, cold": (batch, lambda: mech.jacobians_minimal(q, qd, u)),
        "jacobians_minimal, warm": (batch, lambda: mech.jacobians_minimal(q, qd, u, warm_start=warm)),
        "the same into out": (batch, lambda: mech.jacobians_minimal(q, qd, u, warm_start=warm, out=memory)),
        "composed, warm": (few, composed),
    }
    direct = torch.cat(mech.jacobians_minimal(q[:few], qd[:few], u[:few], warm_start=warm[:few]), dim=-1)
    difference = float((direct - composed()).abs().max() / direct.abs().max())
    size = 2 * mech.num_coordinates
    memory = torch.empty(batch, size, size + mech.num_inputs)
    least = dict.fromkeys(calls, float("inf"))
    for _ in range(repeats):
        for label, (count, call) in calls.items():
            start = time.perf_counter()
            call()
            least[label] = min(least[label], 1e6 * (time.perf_counter() - start) / count)
    touching = (mech.distances(out.z) < 1e-3).sum(-1).double().mean() if mech.contacts else 0.0
    print(f"{name}: {mech.num_coordinates} dof, {mech.num_inputs} inputs, {mech.num_bodies} bodies, {float(touching):.1f} contacts active")
    print(f"batch {batch}, one thread, least of {repeats}; both methods differ by {difference:.0e} of the largest entry")
    for label, microseconds in least.items():
        print(f"{label:26} {microseconds:8.1f} µs per environment")
    return least["jacobians_minimal, warm"]


if __name__ == "__main__":
    main()
