#!/usr/bin/env python
"""Seconds of Gauss-Newton fits of real recordings, and the part of them that the operating system takes.

    python scripts/bench_fit.py [--object cube|elbow] [--threads 2] [--repeats 3]

cube: friction and all corners, 25 unknowns, from one step at every sample of 454 tosses. elbow: the stages of identify_elbow.yaml, three
iterations each, on its first 60 tosses. The recordings are those of $TORCHDOJO_SHARED/data.
"""

from __future__ import annotations

import argparse
import dataclasses
import resource
import statistics
from collections.abc import Callable
from pathlib import Path

import torch
from bench_cases import SHARED

from torchdojo.identification import (
    GaussNewtonOptions,
    LeastSquares,
    RobustLoss,
    WindowDataset,
    WindowResidual,
    cube_model,
    fit,
    gauss_newton,
    read_config,
    read_recordings,
)

DATA = SHARED / "data"
CONFIGS = Path(__file__).resolve().parents[1] / "configs"


def cube() -> Callable[[], float]:
    data = read_recordings(DATA / "contactnets_cube" / "contactnets_cube_train.npz")
    model = cube_model(data.dt, ("friction", "corners"), start={"gravity": 9.61})
    problem = LeastSquares(WindowResidual(model, data), WindowDataset(data).stack(), RobustLoss("cauchy", 1.0))
    print(f"{len(problem.windows)} windows, {len(model.raw)} unknowns")
    return lambda: gauss_newton(problem, options=GaussNewtonOptions(cost_tol=1e-4, max_iterations=15)).seconds


def elbow() -> Callable[[], float]:
    data = DATA / "contactnets_elbow" / "contactnets_elbow_train.npz"
    config = read_config(CONFIGS / "identify_elbow.yaml", data=str(data), limit=60)
    stages = [dataclasses.replace(stage, options={**stage.options, "max_iterations": 3}) for stage in config.stages]
    config = dataclasses.replace(config, stages=stages)
    return lambda: sum(stage.seconds for stage in fit(config).fits)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--object", choices=("cube", "elbow"), default="cube")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    run = {"cube": cube, "elbow": elbow}[options.object]()
    seconds, user, system = [], [], []
    for _ in range(options.repeats):
        before = resource.getrusage(resource.RUSAGE_SELF)
        seconds.append(run())
        after = resource.getrusage(resource.RUSAGE_SELF)
        user.append(after.ru_utime - before.ru_utime)
        system.append(after.ru_stime - before.ru_stime)
    print(f"{options.threads} threads, median of {options.repeats}: {statistics.median(seconds):.1f} s of Gauss-Newton", end=" ")
    print(f"({min(seconds):.1f} to {max(seconds):.1f} s); user {statistics.median(user):.1f} s, system {statistics.median(system):.1f} s")


if __name__ == "__main__":
    main()
