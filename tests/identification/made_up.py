"""Recordings made with the engine itself, for tests."""

import numpy as np
import torch

from torchdojo import quaternion as quat
from torchdojo.identification import ParametricMechanism, Recordings, record_rollouts
from torchdojo.identification.recordings import recordings_of


def thrown_cubes(model: ParametricMechanism, count: int, steps: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Arrays of the schema: `count` cubes thrown from 12..17 cm, each sample one step of the model."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    height = 0.12 + 0.05 * torch.rand(count, 1, generator=generator, dtype=torch.float64)
    velocity = torch.cat((0.8 * normal(count, 2), 0.3 * normal(count, 1)), dim=-1)
    z = torch.cat((0.1 * normal(count, 2), height, velocity, quat.normalize(normal(count, 4)), 4 * normal(count, 3)), dim=-1)
    return record_rollouts(model, z, steps)


def recorded(model: ParametricMechanism, count: int, steps: int, seed: int = 0) -> Recordings:
    return recordings_of(thrown_cubes(model, count, steps, seed))
