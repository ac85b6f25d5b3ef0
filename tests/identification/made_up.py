"""Recordings made with the engine itself, for tests."""

import numpy as np
import torch

from torchdojo import quaternion as quat
from torchdojo.identification import ParametricMechanism, Recordings
from torchdojo.identification.recordings import recordings_of
from torchdojo.identification.residuals import arc_velocity


def thrown_cubes(
    model: ParametricMechanism, count: int, steps: int, seed: int = 0, *, spin: float = 4.0, lift: float = 0.0
) -> dict[str, np.ndarray]:
    """Arrays of the schema: `count` cubes thrown from 12..17 cm and `lift` [m] more, each sample one step of the model; spin [rad/s]."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    height = 0.12 + lift + 0.05 * torch.rand(count, 1, generator=generator, dtype=torch.float64)
    velocity = torch.cat((0.8 * normal(count, 2), 0.3 * normal(count, 1)), dim=-1)
    z = torch.cat((0.1 * normal(count, 2), height, velocity, quat.normalize(normal(count, 4)), spin * normal(count, 3)), dim=-1)
    with torch.no_grad():
        out = model.rollout(z, steps)
    assert bool((out.status == 0).all())
    x, v, q, omega = out.z[:, 1:].flatten(0, 1).split((3, 3, 4, 3), dim=-1)
    omega = arc_velocity(omega, model.mechanism.timestep)
    columns = {"position": x, "linear_velocity": v, "quaternion": q, "angular_velocity": omega}
    arrays = {name: column.numpy() for name, column in columns.items()}
    return {**arrays, "offsets": np.arange(0, count * steps + 1, steps), "dt": np.array(float(model.mechanism.timestep))}


def recorded(model: ParametricMechanism, count: int, steps: int, seed: int = 0) -> Recordings:
    return recordings_of(thrown_cubes(model, count, steps, seed))
