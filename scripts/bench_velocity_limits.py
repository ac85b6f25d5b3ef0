#!/usr/bin/env python
"""Quadrupeds under random torques of ±30 N·m, with and without limits on the speed of their hinges.

    scripts/bench_velocity_limits.py

A line per timestep and model: mean iterations of a step, split and failed steps, and the largest speed of a hinge.
"""

from __future__ import annotations

import argparse

import torch

import torchdojo as td


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200, help="of a rollout (default: 200)")
    parser.add_argument("--environments", type=int, default=8, help="default: 8")
    given = parser.parse_args()
    print("| h [s] | `velocity_limits` | iterations | split | failed | largest speed [rad/s] |\n|---|---|---|---|---|---|")
    for timestep in (0.005, 0.01):
        for limited in (False, True):
            mech = td.models.quadruped(timestep=timestep, velocity_limits=limited)
            shape = (given.environments, given.steps, mech.num_inputs)
            u = 60 * torch.rand(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64) - 30
            z = td.models.initial_state("quadruped", mech, (given.environments,))
            with torch.no_grad():
                path = mech.rollout(z, u)
                speed = mech.to_minimal(path.z)[1][..., 6:].abs().nan_to_num().max()  # NaN: a turn of more than 2/h
            split, failed = int((path.substeps > 1).sum()), int((path.status != 0).sum())
            print(f"| {timestep} | {limited} | {float(path.iterations.double().mean()):.3g} | {split} | {failed} | {float(speed):.3g} |")


if __name__ == "__main__":
    main()
