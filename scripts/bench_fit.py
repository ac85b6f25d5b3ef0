#!/usr/bin/env python
"""Seconds of a Gauss-Newton fit: friction and all corners of a cube, 25 unknowns, from one step at every sample of 454 real tosses.

    python scripts/bench_fit.py [--threads 2] [--repeats 3]

The recordings are those of $TORCHDOJO_SHARED/data/contactnets_cube.
"""

from __future__ import annotations

import argparse
import statistics

import torch
from bench_cases import SHARED

from torchdojo.identification import (
    GaussNewtonOptions,
    LeastSquares,
    RobustLoss,
    WindowDataset,
    WindowResidual,
    cube_model,
    gauss_newton,
    read_recordings,
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    data = read_recordings(SHARED / "data" / "contactnets_cube" / "contactnets_cube_train.npz")
    model = cube_model(data.dt, ("friction", "corners"), start={"gravity": 9.61})
    problem = LeastSquares(WindowResidual(model, data), WindowDataset(data).stack(), RobustLoss("cauchy", 1.0))
    fits = [gauss_newton(problem, options=GaussNewtonOptions(cost_tol=1e-4, max_iterations=15)) for _ in range(options.repeats)]
    seconds = [fit.seconds for fit in fits]
    print(f"{len(problem.windows)} windows, {len(model.raw)} unknowns, {options.threads} threads: {fits[0].iterations} iterations")
    print(f"median of {options.repeats}: {statistics.median(seconds):.1f} s ({min(seconds):.1f} to {max(seconds):.1f} s)")


if __name__ == "__main__":
    main()
