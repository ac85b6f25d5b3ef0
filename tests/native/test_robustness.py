"""The kernel on many hard steps: how many have no solution that it finds. States of which one had none were found by these."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

import torchdojo as td
from conftest import shared_path
from torchdojo import quaternion as quat
from torchdojo.commands.replay import cube, read_tosses, roll
from torchdojo.native import loader

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not loader.available(), reason="no compiler for the native kernel")]

BATCH = 500  # drops rolled out at once: 250 steps of them take 0.2 GB


@pytest.mark.parametrize("substeps", [1, 4])
@pytest.mark.parametrize("kappa", [1e-6, 1e-8, 1e-10])
def test_real_tosses(kappa: float, substeps: int) -> None:
    """454 tosses of a real cube, 47,112 steps (substeps times as many)."""
    tosses = read_tosses(shared_path("data", "contactnets_cube", "contactnets_cube_train.npz"))
    half_side, mass, inertia, friction, dt, gravity = (
        tosses.numbers[name] for name in ("half_side", "mass", "inertia", "mu_reported", "dt", "gravity")
    )
    rolled = roll(cube(half_side, mass, inertia, friction, dt / substeps, gravity, kappa), tosses, substeps)
    assert rolled.steps == 47112 * substeps
    assert rolled.flagged == 0
    # Measured: 2.3, 2.2 and 2.1 on average with one substep, at most 32.
    assert float(rolled.iterations.double().mean()) < 2.6
    assert int(rolled.iterations.max()) < 60


def drops(mechanism: td.Mechanism, count: int) -> Iterator[Tensor]:
    """Quadrupeds in any orientation, joints within 1 rad of zero, 5 to 30 cm above the ground, at some 1.5 m/s and 3 rad/s, in batches."""
    n = mechanism.num_coordinates
    for _ in range(0, count, BATCH):
        q, velocity = 2 * torch.rand(BATCH, n) - 1, 3 * torch.randn(BATCH, n)
        q[:, :3] = 0
        q[:, 3:6] = quat.rotation_vector(quat.normalize(torch.randn(BATCH, 4)))
        q[:, 2] = 0.05 + 0.25 * torch.rand(BATCH) - mechanism.distances(mechanism.to_maximal(q)).amin(-1)
        velocity[:, :3] *= 0.5
        yield mechanism.to_maximal(q, velocity)


@pytest.mark.parametrize(
    ("timestep", "steps", "kappa", "count", "mean", "known"),
    [
        # (At h = 0.05 legs move 5 to 20 cm in a step: 2 % of the steps have no solution and are halved.)
        (0.05, 12, 1e-6, 10_000, 40, 178),
        (0.01, 60, 1e-6, 10_000, 5.5, 2),
        (0.002, 250, 1e-6, 10_000, 3.5, 0),
        (0.05, 12, 1e-8, 500, 45, 8),
        (0.01, 60, 1e-8, 2000, 6, 1),
        (0.002, 250, 1e-8, 1000, 3.5, 0),
        (0.05, 12, 1e-10, 500, 45, 10),
        (0.01, 60, 1e-10, 1000, 6.5, 0),
        (0.002, 250, 1e-10, 500, 3.5, 0),
    ],
)
def test_drops_of_the_quadruped(timestep: float, steps: int, kappa: float, count: int, mean: float, known: int) -> None:
    """Over 0.5 or 0.6 s: on average 70, 65 and 56 % of the states touch the ground. Measured: 16 to 25 µs per step, 400 µs at h = 0.05.

    `known`: drops in which some step is flagged so far. In 95 % of them the step before was halved and left a body faster than 2/h.
    """
    mechanism = td.models.quadruped(timestep=timestep)
    mechanism.options = td.SolverOptions(kappa=kappa, backend="native")
    flagged, failed_drops, iterations, lowest = 0, 0, 0, torch.inf
    for z in drops(mechanism, count):
        with torch.no_grad():
            run = mechanism.rollout(z, steps=steps)
        bad = run.status != td.Status.SUCCESS
        flagged, failed_drops = flagged + int(bad.sum()), failed_drops + int(bad.any(-1).sum())
        iterations += int(run.iterations.sum())
        lowest = min(lowest, float(mechanism.distances(run.z).min()))
    assert lowest > 0
    assert iterations <= mean * count * steps
    assert failed_drops <= 1.5 * known + 2 * (known > 0)
    if known and flagged:
        pytest.xfail(f"{flagged} of {count * steps} steps, in {failed_drops} of {count} drops")
    assert flagged <= (1e-4 * count * steps if kappa == 1e-10 else 0)
