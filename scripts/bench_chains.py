#!/usr/bin/env python
"""Measure whether the cost of a step is linear in the length of a chain, for pendulums with two kinds of joints and balls on the ground.

    python scripts/bench_chains.py [--batch 1,16] [--repeats 21]

The script prints the time of a step with 10 and with 100 links or balls, their ratio, and the mean Newton iterations of both. Times are
medians of one run on one thread, timed by turns. Where contacts change at random, longer chains take more iterations; the next column has
the ratio per evaluation. The last columns have MuJoCo's times of the same steps of one environment and their ratio, if it is installed.
Pendulums swing under random torques. Balls are thrown on the ground with a wave across the chain and roll out for 2 s. Or they lie there,
at rest or driven by random torques of 2 % or 20 % of weight x radius. Chains of ten have more contacts, but are not longer.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
from collections.abc import Sequence

import torch
from bench_cases import CASES, Case, MissingError
from bench_step import MuJoCo, by_turns, mujoco
from torch import Tensor

import torchdojo as td

STEPS, SETTLE = 50, 100
THROWN = 200  # steps of chains that start in motion
CHAINS = (
    ("pendulum", 1.0),
    ("ball_pendulum", 1.0),
    ("thrown", 0.0),
    ("spheres", 0.0),
    ("spheres", 0.1),
    ("spheres", 1.0),
    ("chains_of_ten", 1.0),
)
SHORT, LONG = 10, 100


def start(case: Case, effort: float, batch: int) -> tuple[Tensor, Tensor]:
    """States after settling, (batch, 13 nb), and inputs (batch, steps, nu)."""
    case.effort = effort
    if not case.settle:
        return case.start.expand(batch, -1).contiguous(), case.inputs(batch, THROWN)
    z = case.mech.rollout(case.start, case.inputs(batch, SETTLE)).z[:, -1].contiguous()
    return z, case.inputs(batch, STEPS)


def measure(name: str, effort: float, batch: int, repeats: int) -> str:
    """A row of the table."""
    cases = [CASES[f"{name}{n}"]() for n in (SHORT, LONG)]
    data = [start(case, effort, batch) for case in cases]
    iterations = []
    for case, (z, u) in zip(cases, data, strict=True):
        path = case.mech.rollout(z, u)
        if bool(path.status.any()):
            raise SystemExit(f"{name}: {int((path.status != 0).sum())} steps failed; the times would mean nothing")
        iterations.append(float(path.iterations.double().mean()))
    runs = [functools.partial(case.mech.rollout, z, u) for case, (z, u) in zip(cases, data, strict=True)]
    theirs = []
    with contextlib.suppress(MissingError):
        theirs = [] if mujoco is None else [MuJoCo(case, 1, SETTLE) for case in cases]
    steps = data[0][1].shape[1]
    runs += [functools.partial(one.rollout, one.controls(1, steps), 1) for one in theirs]
    short, long, *others = (1e6 * seconds / steps for seconds in by_turns(repeats, *runs) if seconds)
    short, long = short / batch, long / batch
    # The last evaluation, at which the equations are satisfied, costs about as much as an iteration, hence + 1.
    evaluations = [n + 1 for n in iterations]
    per = long / short * evaluations[0] / evaluations[1]
    cells = [f"{short:.1f}", f"{long:.1f}", f"{long / short:.1f}", f"{iterations[0]:.1f}", f"{iterations[1]:.1f}", f"{per:.1f}"]
    cells += [f"{others[0]:.1f}", f"{others[1]:.1f}", f"{others[1] / others[0]:.0f}"] if others else ["–"] * 3
    return f"| {name} | {100 * effort:g} % | {batch} | " + " | ".join(cells) + " |"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", default="1,16", help="environments, separated by commas (default: 1,16: alone, and in lanes)")
    parser.add_argument("--repeats", type=int, default=21, help="timings of which the median is taken (default: 21)")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(f"one thread, medians of {options.repeats} by turns, µs per step and environment; torchdojo {td.__version__}")
    print(
        f"\n| chain | effort | batch | {SHORT} | {LONG} | ratio | iterations {SHORT} | {LONG} | ratio per evaluation "
        f"| MuJoCo {SHORT} | MuJoCo {LONG} | its ratio |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|---|")
    with torch.no_grad():
        for batch in (int(text) for text in options.batch.split(",")):
            for name, effort in CHAINS:
                print(measure(name, effort, batch, options.repeats), flush=True)


if __name__ == "__main__":
    main()
