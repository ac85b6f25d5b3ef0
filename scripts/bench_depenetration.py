#!/usr/bin/env python
"""Cost of `SolverOptions.depenetration_speed` where nothing is deep: rollouts with the default and with None, by turns, in one process.

    scripts/bench_depenetration.py

Prints the time of a step with None, the ratio of the least and of the median times, and whether both give the same bits.
"""

from __future__ import annotations

import dataclasses
import itertools
import statistics
import time

import torch
from bench_cases import CASES
from torch import Tensor

import torchdojo as td

STEPS = 20
BATCHES = {1: 60, 64: 16}  # environments -> rounds


def boxes(count: int = 6) -> tuple[td.Mechanism, Tensor]:
    """A tower of boxes: their distances cost most."""
    shape = td.Box((0.4, 0.4, 0.2))
    contacts: dict[str, td.Contact] = {
        f"on{i}": td.NonlinearContact(f"box{i}", shape=shape, other=f"box{i - 1}", other_shape=shape) for i in range(1, count)
    }
    corners = itertools.product((-0.2, 0.2), (-0.2, 0.2), (-0.1,))
    contacts |= {f"corner{i}": td.NonlinearContact("box0", point=point) for i, point in enumerate(corners)}
    mech = td.Mechanism({f"box{i}": td.Body(1.0, shape=shape) for i in range(count)}, contacts=contacts)
    q = torch.zeros(count, 6, dtype=torch.float64)
    q[:, 2] = 0.1 + 0.2 * torch.arange(count)
    return mech, mech.to_maximal(q.flatten())


def compare(name: str, mech: td.Mechanism, z: Tensor, u: Tensor, rounds: int) -> None:
    options = [dataclasses.replace(mech.options, depenetration_speed=speed) for speed in (None, mech.options.depenetration_speed)]
    times: list[list[float]] = [[], []]
    ends: list[Tensor] = [z, z]
    for k in range(rounds):
        for i in (k % 2, 1 - k % 2):
            mech.options = options[i]
            start = time.process_time()
            ends[i] = mech.rollout(z, u).z
            times[i].append(time.process_time() - start)
    least, median = (float(f(times[1]) / f(times[0])) for f in (min, statistics.median))
    step = 1e6 * min(times[0]) / STEPS / len(z)
    print(f"{name:10s} {len(z):3d} environments {step:7.2f} µs  least {least:.3f}  median {median:.3f}  same bits: {torch.equal(*ends)}")


@torch.no_grad()
def main() -> None:
    torch.set_num_threads(1)
    for name in ("quadruped", "humanoid", "ant", "spheres10"):
        case = CASES[name]()
        for batch, rounds in BATCHES.items():
            z = case.mech.rollout(case.start, case.inputs(batch, case.settle)).z[..., -1, :].contiguous()
            compare(name, case.mech, z, case.inputs(batch, STEPS), rounds)
    mech, z = boxes()
    for batch, rounds in BATCHES.items():
        settled = mech.rollout(z.expand(batch, -1), steps=STEPS).z[:, -1].contiguous()
        compare("6 boxes", mech, settled, torch.zeros(batch, STEPS, 0, dtype=torch.float64), rounds)


if __name__ == "__main__":
    main()
