"""Inverse problems through contact: python scripts/inverse_tasks.py [--starts 20] [--seeds 4]

Inverse dynamics of a standing A1 from random torques, and the initial velocity and impulse of a sliding cube, seed by seed. An iteration is
a linearization at all smoothings. At the end, the cone solve over inputs and impulses, of the A1 at rest and of simulated steps.
"""

from __future__ import annotations

import argparse
import functools
import time

import torch

from torchdojo.planning.inverse_cone import cone_inverse_dynamics
from torchdojo.planning.inverse_tasks import cube_impulse, cube_velocity, standing, standing_torques


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--starts", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=4)
    args = parser.parse_args()
    torch.set_num_threads(1)
    problems = {
        "A1 from zero, kappa 1e-10": functools.partial(standing_torques, deviation=0.0),
        "A1, 5 N m, kappa 1e-10": standing_torques,
        "A1, 5 N m, kappa 1e-8": functools.partial(standing_torques, kappa=1e-8),
        "A1, 15 N m, kappa 1e-10": functools.partial(standing_torques, deviation=15.0),
        "A1, 5 N m, kappa 1e-10, h 0.001": functools.partial(standing_torques, timestep=0.001),
        "velocity, 50 steps, near": functools.partial(cube_velocity, near=True),
        "velocity, 50 steps, random": cube_velocity,
        "velocity, 20 steps, near": functools.partial(cube_velocity, near=True, steps=20),
        "velocity, 20 steps, random": functools.partial(cube_velocity, steps=20),
        "impulse, 20 steps": cube_impulse,
        "impulse, 40 steps": functools.partial(cube_impulse, steps=40),
    }
    for name, problem in problems.items():
        begin = time.process_time()
        found = [problem(count=1 if "zero" in name else args.starts, seed=seed) for seed in range(args.seeds)]
        seconds = (time.process_time() - begin) / args.seeds
        counts = torch.cat([each.iterations[each.solved] for each in found]).double()
        worst = max(float(each.residual.max()) for each in found)
        print(
            f"{name:33s} solved {[int(each.solved.sum()) for each in found]} of {args.starts}; iterations: median "
            f"{float(counts.quantile(0.5)):.0f}, largest {int(counts.max())}; worst residual {worst:.1e}; {seconds:.2f} s CPU",
            flush=True,
        )
    for kappa in (1e-6, 1e-10):
        mech, z = standing(kappa=kappa)
        begin = time.process_time()
        held = cone_inverse_dynamics(mech, z, z)
        spent = time.process_time() - begin
        print(f"A1 at rest, cone solve, kappa {kappa:g}: {int(held.solved)} of 1; residual {float(held.residual):.1e}; {spent:.2f} s CPU")
    for seed in range(args.seeds):
        u = 5 * torch.randn(args.starts, mech.num_inputs, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        after = mech.step(z, u).z
        found = cone_inverse_dynamics(mech, z, after)
        miss = float((mech.step(z, found.value).z - after).abs().max())
        print(
            f"A1 under 5 N m, cone solve, seed {seed}: {int(found.solved.sum())} of {args.starts}; residual at most "
            f"{float(found.residual.max()):.1e}; simulated again within {miss:.1e}"
        )


if __name__ == "__main__":
    main()
