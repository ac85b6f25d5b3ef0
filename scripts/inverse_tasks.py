"""Inverse problems through contact: python scripts/inverse_tasks.py [--starts 20]

Inverse dynamics of a standing A1 from random torques, and the initial velocity and impulse of a sliding cube. Iterations are linearizations.
"""

from __future__ import annotations

import argparse
import time

import torch

import torchdojo as td
from torchdojo import planning
from torchdojo.models.unitree import LEGS, STANDING


def standing(timestep: float, kappa: float) -> tuple[td.Mechanism, torch.Tensor]:
    """An A1 at rest whose feet have the gap that carries its weight."""
    mech = td.models.quadruped(timestep=timestep)
    mech.options = td.SolverOptions(kappa=kappa)
    pose = {f"{leg}_{part}_joint": {"q": angle} for leg in LEGS for part, angle in STANDING.items()}
    mass = sum(float(body.mass) for body in mech.bodies.values())
    return mech, mech.place(mech.initial_state(**pose), clearance=kappa / (mass * 9.81 * timestep / 4))


def cube(timestep: float = 0.01, kappa: float = 1e-8) -> td.Mechanism:
    """1 kg, 0.2 m, friction 0.5."""
    corners = [(0.1 * (-1) ** i, 0.1 * (-1) ** (i // 2), 0.1 * (-1) ** (i // 4)) for i in range(8)]
    contacts = {f"corner{i}": td.NonlinearContact("box", point=corner, friction=0.5) for i, corner in enumerate(corners)}
    mech = td.Mechanism({"box": td.Body(1.0, shape=td.Box((0.2,) * 3))}, {}, contacts, timestep=timestep)
    mech.options = td.SolverOptions(kappa=kappa)
    return mech


def report(name: str, found: planning.Inverse, seconds: float, loose: float) -> None:
    count = found.iterations[found.solved].double()
    spread = f"median {float(count.median()):.0f}, largest {int(count.max())}" if len(count) else "-"
    print(
        f"{name:50s} {int(found.solved.sum())} of {len(found.status)} solved, {int((found.error < loose).sum())} below {loose:g}; "
        f"iterations {spread}; error median {float(found.error.median()):.1e}, largest {float(found.error.max()):.1e}; {seconds:.2f} s CPU",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--starts", type=int, default=20)
    starts = parser.parse_args().starts
    torch.set_num_threads(1)
    for timestep, kappa in ((0.01, 1e-8), (0.01, 1e-10), (0.001, 1e-10)):
        mech, z = standing(timestep, kappa)
        for deviation in (0.0, 1.0, 5.0, 15.0):
            generator = torch.Generator().manual_seed(0)
            guess = deviation * torch.randn(starts if deviation else 1, 12, generator=generator, dtype=torch.float64)
            begin = time.process_time()
            found = planning.inverse_dynamics(mech, z, z, guess=guess)
            report(f"A1 h={timestep} kappa={kappa:g} torques {deviation:g} N m", found, time.process_time() - begin, 1e-4)

    mech = cube()
    rates = torch.tensor([2.0, 0.7, -0.5, 0.0, 0.0, 1.5], dtype=torch.float64)
    joint = next(iter(mech.joints))
    z = mech.initial_state(**{joint: {"q": (0.0, 0.0, 0.12, 0.0, 0.0, 0.0)}})
    for steps in (20, 50):
        generator = torch.Generator().manual_seed(1)
        target = mech.rollout(mech.to_maximal(mech.to_minimal(z)[0], rates), steps=steps).z[-1]
        speed = float(target[3:6].norm())
        noise = torch.randn(starts, 6, generator=generator, dtype=torch.float64)
        wide = torch.tensor([1.5] * 3 + [2.0] * 3, dtype=torch.float64)
        for label, guess in (("near", rates + 0.3 * noise), ("random", wide * noise)):
            begin = time.process_time()
            found = planning.initial_velocity(mech, z, target, steps, guess=guess)
            report(f"velocity, {steps} steps, ends at {speed:.2f} m/s, {label}", found, time.process_time() - begin, 1e-3)

    mech = cube(kappa=1e-6)
    z = mech.initial_state(**{joint: {"q": (0.0, 0.0, 0.1001, 0.0, 0.0, 0.0)}})
    impulse = torch.tensor([1.5, 0.4, 0.0, 0.0, 0.0, 0.01], dtype=torch.float64)
    for steps in (20, 40):
        generator = torch.Generator().manual_seed(2)
        first = mech.step(z, wrench=impulse / 0.01).z
        target = mech.rollout(first, steps=steps - 1).z[-1]
        guess = torch.randn(starts, 6, generator=generator, dtype=torch.float64) * torch.tensor([1.0] * 3 + [0.01] * 3, dtype=torch.float64)
        guess[:, 2] = 0.3 * guess[:, 2].abs()
        begin = time.process_time()
        found = planning.initial_impulse(mech, z, target, steps, body="box", guess=guess)
        report(f"impulse, {steps} steps, ends at {float(target[3:6].norm()):.2f} m/s", found, time.process_time() - begin, 1e-3)


if __name__ == "__main__":
    main()
