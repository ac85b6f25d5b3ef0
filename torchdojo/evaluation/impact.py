"""Dropped bodies: nothing goes below the floor, and a body at rest floats at the gap of the central path."""

from __future__ import annotations

import dataclasses

import numpy as np

from torchdojo import models
from torchdojo.evaluation import mujoco_reference as reference
from torchdojo.evaluation.experiment import Line, Measurement, Outcome, Plot, Setting, flagged_steps, slug
from torchdojo.testing.diagnostics import resting_gap

__all__ = ["cube_drop"]


def cube_drop(setting: Setting) -> Outcome:
    """A cube (0.5 m, 1 kg) falls 0.4 m flat onto its four lower corners, without restitution; 2 s, h = 0.01 s, kappa = 1e-6 and 1e-8.

    At rest each corner carries the impulse γ = m g h / 4, so it floats at κ/γ: 41 µm and 0.41 µm.
    """
    timestep, steps, height = 0.01, 200, 0.4
    time = timestep * np.arange(steps + 1)
    rows, lines = [], {}
    deepest = resting = None
    if setting.mujoco is not None:
        scene = reference.box_scene(
            half=(0.25,) * 3, mass=1.0, friction=0.8, timestep=timestep, gravity=(0.0, 0.0, -9.81), cone="pyramidal"
        )
        _, q, _ = reference.simulate(setting.mujoco, scene, steps, qpos=(0, 0, 0.25 + height, 1, 0, 0, 0))
        lower = q[:, 2] - 0.25  # the cube falls flat
        deepest, resting = float(lower.min()), float(lower[-1])
        lines["MuJoCo"] = Line(time, 1e3 * lower)
    for kappa, bound, published in ((1e-6, 45e-6, "43 µm (Brüdigam et al. 2023)"), (1e-8, 1e-6, "")):
        mech = models.box(timestep=timestep)
        mech.options = dataclasses.replace(mech.options, kappa=kappa)
        path = mech.rollout(mech.initial_state(box={"position": (0.0, 0.0, 0.25 + height)}), steps=steps)
        lowest = mech.distances(path.z).amin(-1).numpy()
        name = slug(f"kappa_{kappa:.0e}")
        rows += [
            Measurement(
                f"{name}_smallest_distance_m", f"kappa {kappa:g}: smallest distance to the floor", float(lowest.min()), "m", at_least=0.0,
                mujoco=deepest,
            ),
            Measurement(
                f"{name}_rest_gap_m", "gap at rest", float(lowest[-1]), "m", at_least=0.0, at_most=bound, published=published,
                mujoco=resting,
            ),
            Measurement(f"{name}_predicted_gap_m", "gap at rest, predicted: κ / (m g h / 4)", resting_gap(mech, contacts=4), "m"),
            flagged_steps(path.status, name=name),
        ]  # fmt: skip
        lines[f"torchdojo, kappa {kappa:g}"] = Line(time, 1e3 * lowest)
    plot = Plot("height", "Cube dropped 0.4 m, h = 0.01 s", "time [s]", "lowest corner [mm]", lines)
    return Outcome(rows, [plot])
