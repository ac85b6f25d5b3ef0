#!/usr/bin/env python
"""Time the dynamics in joint coordinates beside the step: mass matrix, bias, inverse dynamics, Jacobians, momenta.

    scripts/bench_body_dynamics.py                                     # six robots, batch 1024, one thread
    scripts/bench_body_dynamics.py --models ant,humanoid --batch 256

States come from a rollout under small random inputs, so that the robots touch the ground. All calls are timed by turns in one process,
under `no_grad`. A time is the least of many rounds, as a fraction of the step's time in a warm-started rollout. A fraction above 1 makes
the exit status 1. MuJoCo computes its mass matrix and bias from qpos and qvel, called from Python for one environment after the other.
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Callable

import numpy as np
import torch
from bench_cases import CASES, Case, MissingError, mujoco
from bench_coordinates import by_turns

BOUND = 1.0  # largest fraction of a step
STEPS = 10  # of the rollout whose time is that of a step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="quadruped,ant,humanoid,half_cheetah,atlas,arm")
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    print(f"torch {torch.__version__}, one of {os.cpu_count()} threads, batch {options.batch}, least of {options.rounds} rounds")
    exceeded = 0
    with torch.no_grad():
        for name in options.models.split(","):
            exceeded += measure(name, options.batch, options.rounds)
    if exceeded:
        sys.exit(f"{exceeded} calls take longer than a step")


def measure(name: str, batch: int, rounds: int) -> int:
    """Print the fractions of one robot, and return how many are above the bound."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        case = CASES[name]()
    mech = case.mech
    z = mech.rollout(case.start.expand(batch, -1), case.inputs(batch, case.settle)).z[:, -1].contiguous()
    u = case.inputs(batch, STEPS)
    q, qd = mech.to_minimal(z)
    qdd, body = torch.randn_like(q), list(mech.bodies)[-1]
    calls: dict[str, Callable[[], object]] = {
        "step": lambda: mech.rollout(z, u),
        "M": lambda: mech.mass_matrix(q),
        "bias": lambda: mech.bias(q, qd),
        "gravity": lambda: mech.gravity_forces(q),
        "inverse": lambda: mech.inverse_dynamics(q, qd, qdd),
        "point": lambda: mech.point_jacobian(q, body),
        "com": lambda: mech.center_of_mass(q),
        "comjac": lambda: mech.center_of_mass_jacobian(q),
        "centroidal": lambda: mech.centroidal_momentum(q, qd),
        **theirs(case, batch),
    }
    times = by_turns(calls, rounds)  # type: ignore[arg-type]
    step = times.pop("step") / STEPS
    ours = {key: times[key] / step for key in times if not key.startswith("mj")}
    columns = [f"{key} {times[key] / step:.2f}{' !' if ours.get(key, 0.0) > BOUND else ''}" for key in times]
    print(f"{name:12} n {mech.num_coordinates:3}  step {1e6 * step / batch:6.2f} µs  " + "  ".join(columns))
    return sum(value > BOUND for value in ours.values())


def theirs(case: Case, batch: int) -> dict[str, Callable[[], object]]:
    """MuJoCo's mass matrix and bias at as many configurations, one after the other; nothing where MuJoCo has no model."""
    try:
        model, qpos = case.mjcf(case)
    except (MissingError, ValueError) as error:
        print(f"{case.mech.num_bodies} bodies without MuJoCo: {error}")
        return {}
    data, full = mujoco.MjData(model), np.zeros((model.nv, model.nv))
    velocities = np.random.default_rng(0).normal(size=(batch, model.nv))

    def each(then: Callable[[], None]) -> Callable[[], None]:
        def call() -> None:
            for velocity in velocities:
                data.qpos[:], data.qvel[:] = qpos, velocity
                mujoco.mj_kinematics(model, data)
                mujoco.mj_comPos(model, data)
                then()

        return call

    def mass() -> None:
        mujoco.mj_makeM(model, data)
        if hasattr(data, "qM"):
            mujoco.mj_fullM(model, full, data.qM)
        else:  # MuJoCo 4
            mujoco.mj_fullM(model, data, full)

    def bias() -> None:
        mujoco.mj_comVel(model, data)
        mujoco.mj_rne(model, data, 0, velocities[0])

    return {"mj M": each(mass), "mj bias": each(bias)}


if __name__ == "__main__":
    main()
