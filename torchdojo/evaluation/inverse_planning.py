"""The experiments on inverse problems of `torchdojo evaluate planning`: torques, velocities and impulses with known solutions."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from torchdojo.evaluation.experiment import Experiment, Measurement, Outcome, Setting
from torchdojo.planning.inverse_tasks import cube_impulse, cube_velocity, standing_torques

__all__ = ["EXPERIMENTS"]

STARTS, QUICK_STARTS = 20, 5


class Row(NamedTuple):
    """One problem from many starts.

    key, label: of the measurements. run: solves it from `count` starts. solved: least share of the starts. iterations: largest number.
    single: whether one start is enough.
    """

    key: str
    label: str
    run: Callable[..., Any]
    solved: float | None = None
    iterations: int | None = None
    single: bool = False


TORQUES = (
    Row("from_zero", "from zero", functools.partial(standing_torques, deviation=0.0), 1.0, 3, single=True),
    Row("kappa_1e-10", "from 5 N·m, kappa 1e-10", standing_torques, 1.0, 12),
    Row("kappa_1e-8", "from 5 N·m, kappa 1e-8", functools.partial(standing_torques, kappa=1e-8)),
)
CUBE = (
    Row("velocity_near", "first velocity, from near", functools.partial(cube_velocity, near=True), 1.0),
    Row("velocity_random", "first velocity, from random starts", cube_velocity, 0.75),
    Row("impulse", "first impulse, to 1e-3", cube_impulse),
)


def _run(rows: tuple[Row, ...], setting: Setting) -> Outcome:
    measurements = list[Measurement]()
    for row in rows:
        count = 1 if row.single else QUICK_STARTS if setting.quick else STARTS
        begin = time.process_time()
        result = row.run(count=count)
        seconds = time.process_time() - begin
        iterations = result.iterations[result.solved]
        label, most = f"{row.label}: ", float(iterations.max()) if len(iterations) else float("nan")
        least = None if setting.quick and row.solved != 1.0 else row.solved  # a share of five starts says little
        share = float(result.solved.double().mean())
        measurements += [
            Measurement(f"{row.key}_solved_share", f"{label}solved, of {count} starts", share, at_least=least),
            Measurement(f"{row.key}_iterations_worst", "iterations of solved starts, worst", most, at_most=row.iterations),
            Measurement(f"{row.key}_residual_worst", "residual of solved starts, worst", float(result.residual[result.solved].max())),
            Measurement(f"{row.key}_cpu_s", "processor time of all", seconds, "s"),
        ]
    return Outcome(measurements)


EXPERIMENTS = (
    Experiment("inverse-dynamics", "Torques that keep a standing A1 at rest", functools.partial(_run, TORQUES)),
    Experiment("inverse-cube", "The first velocity or impulse of a cube that falls, slides and turns", functools.partial(_run, CUBE)),
)
