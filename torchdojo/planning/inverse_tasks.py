"""Inverse problems through contact with known solutions, as experiments: many starts, one result."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchdojo import models
from torchdojo.elements.bodies import Body
from torchdojo.elements.contacts import NonlinearContact
from torchdojo.geometry.shapes import Box
from torchdojo.mechanism import Mechanism
from torchdojo.models.unitree import LEGS, STANDING
from torchdojo.planning.inverse import Inverse, initial_impulse, initial_velocity, inverse_dynamics
from torchdojo.solver.options import SolverOptions

__all__ = ["cube_impulse", "cube_velocity", "sliding_cube", "standing", "standing_torques"]


def standing(timestep: float = 0.01, kappa: float = 1e-10) -> tuple[Mechanism, Tensor]:
    """An A1 at rest, and its state, with gaps under its feet that carry its weight at this kappa."""
    mech = models.quadruped(timestep=timestep)
    mech.options = SolverOptions(kappa=kappa)
    pose: dict[str, Any] = {f"{leg}_{part}_joint": {"q": angle} for leg in LEGS for part, angle in STANDING.items()}
    bodies: list[Any] = list(mech.bodies.values())
    weight = 9.81 * sum(float(body.mass) for body in bodies)
    return mech, mech.place(mech.initial_state(**pose), clearance=kappa / (weight * timestep / 4))


def standing_torques(count: int = 20, seed: int = 0, *, deviation: float = 5.0, timestep: float = 0.01, kappa: float = 1e-10) -> Inverse:
    """Torques that keep a standing A1 at rest, from `count` normal guesses with this deviation [N·m]; solved to 1e-5 m/s and rad/s."""
    mech, z = standing(timestep, kappa)
    guess = deviation * torch.randn(count, mech.num_inputs, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return inverse_dynamics(mech, z, z, guess=guess)


def sliding_cube(kappa: float = 1e-8, height: float = 0.12) -> tuple[Mechanism, Tensor]:
    """A cube of 1 kg and 0.2 m with friction 0.5 at h = 0.01, and its state at rest with its center at this height [m]."""
    corners = [(0.1 * (-1) ** i, 0.1 * (-1) ** (i // 2), 0.1 * (-1) ** (i // 4)) for i in range(8)]
    contacts = {f"corner{i}": NonlinearContact("box", point=corner, friction=0.5) for i, corner in enumerate(corners)}
    mech = Mechanism({"box": Body(1.0, shape=Box((0.2,) * 3))}, {}, contacts, timestep=0.01)
    mech.options = SolverOptions(kappa=kappa)
    return mech, mech.initial_state(box={"position": (0.0, 0.0, height)})


def cube_velocity(count: int = 20, near: bool = False, seed: int = 0, *, steps: int = 50) -> Inverse:
    """First velocities with which the cube falls 2 cm, slides at 2 m/s and turns, and ends in a known pose; solved to 1e-8 m and rad.

    Guesses are normal: around the velocity that led to the pose with deviation 0.3 (`near`), or around zero with 1.5 m/s and 2 rad/s.
    After 50 steps the cube is at rest; after 20 it slides at 0.9 m/s.
    """
    mech, z = sliding_cube()
    rates = torch.tensor([2.0, 0.7, -0.5, 0.0, 0.0, 1.5], dtype=torch.float64)
    target = mech.rollout(mech.to_maximal(mech.to_minimal(z)[0], rates), steps=steps).z[-1]
    noise = torch.randn(count, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    guess = rates + 0.3 * noise if near else noise * torch.tensor([1.5] * 3 + [2.0] * 3, dtype=torch.float64)
    return initial_velocity(mech, z, target, steps, guess=guess)


def cube_impulse(count: int = 20, seed: int = 0, *, steps: int = 20) -> Inverse:
    """Impulses that push the cube from rest on the ground, at kappa 1e-6, to a known pose; solved to 1e-3 m and rad.

    Guesses are normal with 1 N·s and 0.01 N·m·s; their vertical part is a third of that and points up.
    """
    mech, z = sliding_cube(kappa=1e-6, height=0.1001)
    impulse = torch.tensor([1.5, 0.4, 0.0, 0.0, 0.0, 0.01], dtype=torch.float64)
    first = mech.step(z, wrench=impulse / float(mech.timestep)).z
    target = mech.rollout(first, steps=steps - 1).z[-1]
    guess = torch.randn(count, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    guess[:, 3:] *= 0.01
    guess[:, 2] = 0.3 * guess[:, 2].abs()
    return initial_impulse(mech, z, target, steps, body="box", guess=guess, tolerance=1e-3)
