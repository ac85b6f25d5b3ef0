#!/usr/bin/env python
"""Time functions of states beside the step: coordinates, steps in coordinates, distances, points of contact, energies.

    scripts/bench_coordinates.py                                       # quadruped, ant, humanoid; batch 1, 64 and 1024; one thread
    scripts/bench_coordinates.py --models ant --batch 64 --threads 2

All calls are timed by turns in one process, after the robot has settled on its feet under random inputs. A time is the least of many
rounds. With one thread it is time on the CPU, which other processes hardly lengthen. It is printed as a fraction of the step's time,
forward under `no_grad`, or forward and backward by the state, for steps by the state and the input. Steps start cold. "contacts" counts
the contacts of a state that are closer than 1 mm. The models come from bench_cases.py. A fraction beyond its bound is marked, and makes
the exit status 1.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import warnings
from collections.abc import Callable

import torch
from bench_cases import CASES
from torch import Tensor

import torchdojo as td

#: Function -> its largest fraction of a step: at batch 1, at larger batches. None: no bound.
BOUNDS: dict[str, tuple[float | None, float | None]] = {
    "to_minimal": (1.0, 0.5),
    "to_maximal": (1.0, 0.5),
    "step_minimal": (2.0, 1.5),
    "distances": (None, 0.1),
    "contact_points": (None, None),
    "kinetic_energy": (None, None),
    "potential_energy": (None, None),
}
BATCH_OF_DISTANCES = 1024  # whose bound holds for this batch and larger ones, forward
SHORTEST = 0.004  # shortest time of one timing [s]: a busy machine leaves some of them alone
DIRECTIONS = ("forward", "forward + backward")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="quadruped,ant,humanoid")
    parser.add_argument("--batch", default="1,64,1024")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=40)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    print(f"torch {torch.__version__}, {options.threads} of {os.cpu_count()} threads, least of {options.rounds} rounds")
    print(f"{'model':12} {'batch':>6} {'contacts':>8}  {'direction':20} {'step µs':>10}  " + "  ".join(f"{name:>16}" for name in BOUNDS))
    exceeded = 0
    for name in options.models.split(","):
        for batch in map(int, options.batch.split(",")):
            exceeded += measure(name, batch, options.rounds)
    if exceeded:
        sys.exit(f"{exceeded} fractions exceed their bounds")


def measure(name: str, batch: int, rounds: int) -> int:
    """Print the fractions of one robot, and return how many exceed their bounds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        case = CASES[name]()
    mech = case.mech
    mech.options = td.SolverOptions(backend="native")
    with torch.no_grad():
        z, u = mech.rollout(case.start.expand(batch, -1), case.inputs(batch, case.settle)).z[:, -1].contiguous(), case.inputs(batch)
    if batch == 1:
        z, u = z[0], u[0]
    q, qd = mech.to_minimal(z)
    functions: dict[str, tuple[Callable[..., Tensor | tuple[Tensor, ...]], tuple[Tensor, ...]]] = {
        "step": (lambda z, u: mech.step(z, u).z, (z, u)),
        "to_minimal": (mech.to_minimal, (z,)),
        "to_maximal": (mech.to_maximal, (q, qd)),
        "step_minimal": (lambda q, qd, u: mech.step_minimal(q, qd, u)[:2], (q, qd, u)),
        "distances": (mech.distances, (z,)),
        "contact_points": (mech.contact_points, (z,)),
        "kinetic_energy": (mech.kinetic_energy, (z,)),
        "potential_energy": (mech.potential_energy, (z,)),
    }
    contacts = float((mech.distances(z) < 1e-3).sum(-1).double().mean())
    exceeded = 0
    for direction in DIRECTIONS:
        wrap = forward if direction == "forward" else both_ways
        times = by_turns({key: wrap(function, given) for key, (function, given) in functions.items()}, rounds)
        columns = []
        for key, limits in BOUNDS.items():
            fraction, bound = times[key] / times["step"], limits[batch > 1]
            if key == "distances" and (batch < BATCH_OF_DISTANCES or direction != "forward"):
                bound = None
            beyond = bound is not None and fraction > bound
            exceeded += beyond
            columns.append(f"{fraction:.3f}{'' if bound is None else f' / {bound}'}{' !' if beyond else ''}")
        print(f"{name:12} {batch:6} {contacts:8.1f}  {direction:20} {1e6 * times['step']:10.0f}  " + "  ".join(f"{c:>16}" for c in columns))
    return exceeded


def forward(function: Callable[..., object], given: tuple[Tensor, ...]) -> Callable[[], None]:
    def call() -> None:
        with torch.no_grad():
            function(*given)

    return call


def both_ways(function: Callable[..., Tensor | tuple[Tensor, ...]], given: tuple[Tensor, ...]) -> Callable[[], None]:
    leaves = [tensor.detach().clone().requires_grad_() for tensor in given]

    def values() -> tuple[Tensor, ...]:
        result = function(*leaves)
        return result if isinstance(result, tuple) else (result,)

    weights = [torch.ones_like(value) for value in values()]
    return lambda: torch.autograd.backward(values(), weights, inputs=leaves)


def clock() -> float:
    """Time of this process on the CPU [s], which other processes do not lengthen much; of the wall with several threads."""
    return time.process_time() if torch.get_num_threads() == 1 else time.perf_counter()


def by_turns(calls: dict[str, Callable[[], None]], rounds: int) -> dict[str, float]:
    """Least time [s] of each call."""
    repeats = {}
    for key, call in calls.items():
        call()
        start = clock()
        call()
        repeats[key] = max(1, int(SHORTEST / (clock() - start)))
    times = dict.fromkeys(calls, float("inf"))
    for _ in range(rounds):
        for key, call in calls.items():
            start = clock()
            for _ in range(repeats[key]):
                call()
            times[key] = min(times[key], (clock() - start) / repeats[key])
    return times


if __name__ == "__main__":
    main()
