#!/usr/bin/env python
"""Time forward + backward of one step in each gradient mode, in contact, relative to "central_path".

    scripts/bench_gradient_modes.py                     # quadruped, batch 1024, one thread
    scripts/bench_gradient_modes.py --batch 64 --repeats 5

The modes are timed by turns in one process, after the robot has settled on its feet, warm-started as in a rollout. A time is the least of
many repeats; the step alone is timed too. To backward, a mode adds the way from kappa to zero, and two refinements in place of one.
"""

from __future__ import annotations

import argparse
import dataclasses
import time

import torch

import torchdojo as td
from torchdojo import models

MODES = ("central_path", "exact", "complementarity_aware")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="quadruped")
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=1, help="steps of a timed rollout")
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    mech = getattr(models, options.model)()
    mech.timestep = 0.01
    batch = options.batch
    settings = {mode: td.SolverOptions(backend="native", gradient_mode=mode) for mode in MODES}
    with torch.no_grad():
        mech.options = settings["central_path"]
        z = models.initial_state(options.model, mech, (batch,))
        path = mech.rollout(z, 0.5 * torch.randn(batch, 40, mech.num_inputs))
        last = mech.step(path.z[:, -1])
    z, warm = path.z[:, -1].requires_grad_(), last.solution
    push = (0.5 * torch.randn(batch, options.steps, mech.num_inputs)).requires_grad_()
    weights = torch.randn(z.shape[-1])
    least = {name: float("inf") for name in ("forward", *MODES)}
    for _ in range(options.repeats):
        for name in least:
            mech.options = settings.get(name, dataclasses.replace(settings["central_path"]))
            start = time.perf_counter()
            with torch.set_grad_enabled(name != "forward"):
                if options.steps == 1:
                    end = mech.step(z, push[:, 0], warm_start=warm).z
                else:
                    end = mech.rollout(z, push).z[:, -1]
            if name != "forward":
                torch.autograd.grad((end @ weights).sum(), (z, push))
            least[name] = min(least[name], time.perf_counter() - start)
    print(f"{options.model}, batch {batch}, {options.steps} step(s), one thread, least of {options.repeats}")
    for name, seconds in least.items():
        ratio = seconds / least["central_path"]
        print(f"{name:24} {1e6 * seconds / batch / options.steps:8.1f} µs per environment and step   {ratio:5.2f} of central_path")


if __name__ == "__main__":
    main()
