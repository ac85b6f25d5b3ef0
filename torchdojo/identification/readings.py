"""Recorded readings of sensors in the misfit: an IMU, force plates, motor currents.

A reading y of the step or period that leads from z to z⁺ is compared with the one that the sample at z⁺ has. With the change S of z by the
unknowns θ, it changes by (∂y/∂z) S + ∂y/∂θ, where both derivatives include those of the period.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from torchdojo.identification.parameters import ParametricMechanism
from torchdojo.identification.recordings import Recordings
from torchdojo.state.layout import TANGENT_SIZE

__all__ = ["Readings"]

Jacobian = Callable[..., Tensor]  # of a value by inputs, row by row


class Readings:
    """The readings of a recording, and the same of rollouts.

    Args:
        sensors: {name in `mech.sensors`: standard deviation of its noise}, in the order of the columns of `reading`.

    Raises:
        ValueError: an unknown sensor, a deviation that is not positive, another number of readings than the recording has.
    """

    def __init__(self, model: ParametricMechanism, recordings: Recordings, sensors: Mapping[str, float], substeps: int) -> None:
        self.model, self.recordings, self.names, self.substeps = model, recordings, tuple(sensors), substeps
        sizes = model.mechanism.sensors.layout_of(self.names)
        wrong = {name: deviation for name, deviation in sensors.items() if not deviation > 0}
        if wrong:
            raise ValueError(f"sensors: got the deviations {wrong}; allowed: positive numbers, in the units of the sensors")
        scale = [float(sensors[name]) for name, place in sizes.items() for _ in range(place.stop - place.start)]
        if len(scale) != recordings.num_readings:
            raise ValueError(
                f"sensors: got {list(self.names)} with {len(scale)} numbers for a recording with {recordings.num_readings}; allowed: the "
                "sensors of its array `reading`, in the order of the columns"
            )
        self.scale = torch.tensor(scale, dtype=torch.float64)

    def compare(self, z: Tensor, impulses: Tensor, u: Tensor | None, samples: Tensor, raw: Tensor | None) -> Tensor:
        """Scaled misfit (N, T, k) of rollouts z (N, T · substeps + 1, 13 nb) to the samples (N, T, width) after the first."""
        steps = self.substeps
        summed = impulses.unflatten(-2, (-1, steps)).sum(-2)
        held = None if u is None else u[..., ::steps, :]
        return self._misfit(z[..., :-1:steps, :], z[..., steps::steps, :], summed, held, samples, raw)

    def _misfit(self, z: Tensor, after: Tensor, impulses: Tensor, u: Tensor | None, samples: Tensor, raw: Tensor | None) -> Tensor:
        step: Any = SimpleNamespace(z=after, impulses=impulses)
        read = self.model.call("read_sensors", z, step, names=self.names, u=u, repeat=self.substeps, raw=raw)
        return (read - self.recordings.readings(samples)) / self.scale

    def jacobian(self, z: Tensor, u: Tensor | None, samples: Tensor, raw: Tensor, path: Tensor, rows: Jacobian) -> Tensor:
        """Derivative (N, T, k, P + D) of `compare` by the unknowns.

        Args:
            z, u, samples: as there. path: (N, T · substeps + 1, 12 nb, P + D), changes of the states by the unknowns. raw: (P,).
        """
        mech, steps, count = self.model.mechanism, self.substeps, TANGENT_SIZE * self.model.mechanism.num_bodies
        before = z[:, :-1:steps]
        held = None if u is None else u.unflatten(1, (-1, steps)).flatten(0, 1)
        with torch.enable_grad():
            flat = before.flatten(0, 1).detach()
            delta, unknowns = flat.new_zeros(len(flat), count).requires_grad_(), raw.expand(len(flat), -1).clone().requires_grad_()
            start = mech.retract(flat, delta)
            out = self.model.rollout(start, steps, unknowns, held)
            first_input = None if held is None else held[:, 0]
            misfit = self._misfit(start, out.z[:, -1], out.impulses.sum(-2), first_input, samples.flatten(0, 1), unknowns)
            by_start, direct = rows(lambda r: r, misfit, delta, unknowns).unflatten(0, before.shape[:2]).split((count, len(raw)), dim=-1)
        through = by_start @ path[:, :-1:steps]
        through[..., : len(raw)] += direct
        return through
