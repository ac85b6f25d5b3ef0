"""The experiment on the controller of `torchdojo evaluate planning`: a standing robot that is pushed."""

from __future__ import annotations

import math
import statistics

import torch

from torchdojo.evaluation.experiment import Experiment, Line, Measurement, Outcome, Plot, Setting
from torchdojo.planning.controller import Controller
from torchdojo.planning.standing import PUSHES, Trial, pushed, random_pushes, standing

__all__ = ["EXPERIMENTS"]

COUNT, QUICK_COUNT, SERVOS, SECONDS = 50, 4, 5, 1.5  # single pushes, how many of them servos alone get, and what follows [s]


def _pushes(setting: Setting) -> Outcome:
    """Three pushes in a row, then single ones in random directions; the time of a plan is that of one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        controller = Controller(standing())
        row = pushed(controller, PUSHES)
        directions = random_pushes(QUICK_COUNT if setting.quick else COUNT, seed=1)
        trials = [pushed(controller, push, seconds=SECONDS) for push in directions]
        servos = [pushed(None, push, seconds=SECONDS) for push in directions[: 1 if setting.quick else SERVOS]]
    finally:
        torch.set_num_threads(threads)
    every = [row, *trials]
    plans = sum(trial.report.samples for trial in every)
    rate = 1 / statistics.fmean(trial.report.mean for trial in every)
    rows = [
        Measurement("three_upright", "upright after pushes of 8, 12 and 12 N·s: 1 or 0", float(row.upright), at_least=1.0),
        Measurement("three_tilt_deg", "largest tilt", math.degrees(row.tilt), "°", at_most=45.0),
        Measurement("single_upright_share", f"upright after {len(trials)} single pushes of 12 N·s", _share(trials), at_least=0.6),
        Measurement("single_tilt_deg", "largest tilt", max(math.degrees(trial.tilt) for trial in trials), "°"),
        Measurement("least_height_m", "least height of the trunk, all pushes", min(trial.height for trial in every), "m"),
        Measurement("servos_upright_share", f"servos alone, {len(servos)} single pushes", _share(servos)),
        # A bound in time depends on the machine, so a quick run on a busy one does not judge it.
        Measurement("rate_hz", "plans per second of processor time, mean", rate, "Hz", at_least=None if setting.quick else 200.0),
        Measurement("worst_ms", "longest plan", 1e3 * max(trial.report.worst for trial in every), "ms"),
        Measurement("failed_plans", f"failed, of {plans} plans", float(sum(trial.report.failures for trial in every))),
        Measurement("flagged_steps", "flagged steps of the simulation", float(sum(trial.flagged for trial in every)), at_most=0.0),
    ]
    seconds = row.seconds / (len(row.z) - 1) * torch.arange(len(row.z))
    lines = {axis: Line(seconds, row.z[:, i]) for i, axis in enumerate("xyz")}
    return Outcome(rows, [Plot("trunk", "A standing A1 under three pushes: trunk", "time [s]", "position [m]", lines)])


def _share(trials: list[Trial]) -> float:
    return statistics.fmean(trial.upright for trial in trials)


EXPERIMENTS = (Experiment("controller", "A standing A1 is pushed", _pushes),)
