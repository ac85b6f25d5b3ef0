"""Starts of open-loop rollouts from the flight before the first contact.

Recorded velocities are differences of noisy poses. In the hinged object's throws, velocities of the first sample are off by 0.05 m/s and
0.5 rad/s, which an impact multiplies. Before the first contact, motion says nothing about contacts, and a whole flight says where it
starts: at the sample whose rollout stays closest to the flight (`fit_starts`). A prediction from there uses the recording up to the first
contact, and nothing after.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from torchdojo.identification.gauss_newton import LeastSquares, fit_starts
from torchdojo.identification.misfit import RobustLoss, Scales, WindowResidual
from torchdojo.identification.parameters import ParametricMechanism
from torchdojo.identification.recordings import Recordings, WindowDataset

__all__ = ["flight_starts"]

#: Deviations of recorded poses [m, rad], which weigh positions against rotations. Beyond three deviations a sample counts less.
NOISE = Scales(position=5e-4, rotation=4e-3, joint=4e-3)
#: A flight of fewer steps determines its velocities no better than the recording.
SHORTEST = 3


def flight_starts(model: ParametricMechanism, recordings: Recordings, longest: int, iterations: int = 6) -> Recordings:
    """Recordings with the first sample of every trajectory fitted to the flight that follows. All other samples stay.

    The flight ends before the first sample in which a contact of `model` is nearer than its `clearance`. A trajectory that touches
    something within `SHORTEST` samples keeps its first sample.

    Args:
        model: an object with fixed parameters, the nominal one, say. longest: most samples of a flight to compare with.
        iterations: of `fit_starts`.
    """
    with torch.no_grad():
        nearest = model.call("distances", model.states(recordings.samples, recordings)).amin(-1)
    samples, first = recordings.samples.clone(), recordings.offsets[:-1]
    flying = [int((piece > model.clearance).long().cumprod(0).sum()) for piece in nearest.split(recordings.lengths.tolist())]
    steps = torch.tensor(flying).sub(1).clamp_max(longest)
    for horizon in steps[steps >= SHORTEST].unique().tolist():
        chosen = (steps == horizon).nonzero().flatten()
        some = recordings.select(chosen)
        windows = WindowDataset(some, horizon, first_only=True).stack()
        problem = LeastSquares(WindowResidual(model, some, NOISE), windows, RobustLoss("cauchy", 3.0), free_start=True)
        samples[first[chosen]] = fit_starts(problem, iterations=iterations)
    return replace(recordings, samples=samples)
