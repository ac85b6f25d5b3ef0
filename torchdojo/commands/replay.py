"""`torchdojo replay`: recorded tosses against rollouts from their first samples, of a nominal cube, or of nominal and fitted object.

The nominal cube takes its numbers from a file in the format of `shared/data/contactnets_cube`, which has real tosses (Pfrommer, Halm and
Posa, "ContactNets", CoRL 2020). The file has the arrays of `torchdojo.identification.recordings`, and the scalars half_side, mass, inertia,
mu_reported and gravity. Velocities in the file are backward differences, as in the maximal state, so samples are states.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchdojo.commands.common import (
    PARAMETERS,
    CommandError,
    add_output,
    not_negative,
    positive,
    print_table,
    progress,
    user_input,
    whole,
    write_report,
)
from torchdojo.commands.drawing import BESIDE, Page, add_page, write_drawing
from torchdojo.identification.evaluation import OpenLoop, compare, open_loop, roll, trajectory_means
from torchdojo.identification.fitted_object import FittedObject
from torchdojo.identification.objects.cube import check_heights, cube
from torchdojo.identification.parameters import ParametricMechanism
from torchdojo.identification.recordings import Recordings, positive_number, read_recordings
from torchdojo.viewer.playback import Playback

__all__ = ["add_arguments", "read_tosses", "replay", "run", "toss"]

UNITS = {"mm": "mm", "degrees": "degrees", "percent_of_width": "% of the width"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Roll every toss of a recorded data set from its first sample and compare with the recording."
    parser.add_argument("file", type=Path, metavar="FILE.npz", help="tosses of a cube in the format of ContactNets' processed data")
    parser.add_argument(
        "--parameters",
        type=Path,
        metavar="DIR",
        help="output folder of `torchdojo fit`: replay the nominal and the fitted object",
    )
    parser.add_argument("--substeps", type=whole, metavar="K", help="steps per recorded interval (default: 1, or those of the fit)")
    parser.add_argument("--kappa", type=positive, metavar="K", help="central-path parameter (default: 1e-06, or that of the fit)")
    parser.add_argument("--batch-limit", type=whole, metavar="N", help="only the first N tosses")
    parser.add_argument("--friction", type=not_negative, metavar="MU", help="Coulomb coefficient (default: mu_reported of the file)")
    parser.add_argument("--half-side", type=positive, metavar="M", help="half the cube's edge [m] (default: half_side of the file)")
    add_page(parser)
    add_output(parser)


def run(options: argparse.Namespace) -> dict[str, Any]:
    names = ("parameters", "substeps", "kappa", "batch_limit", "friction", "half_side", "output")
    return replay(options.file, page=Page.of(options), **{name: getattr(options, name) for name in names})


class Replayed(NamedTuple):
    """An object, its recordings, the states (N, 13 nb) of their samples, its part of the report, and the object to compare with."""

    model: ParametricMechanism
    recordings: Recordings
    z: Tensor
    width: float | None
    report: dict[str, Any]
    nominal: ParametricMechanism | None = None


def replay(
    path: Path,
    *,
    parameters: Path | None = None,
    substeps: int | None = None,
    kappa: float | None = None,
    batch_limit: int | None = None,
    friction: float | None = None,
    half_side: float | None = None,
    output: Path | None = None,
    page: Page = BESIDE,
) -> dict[str, Any]:
    """Roll all tosses; returns the report. It has the errors of the nominal object, too, under "nominal", where there is a fitted one.

    Args:
        parameters: output folder of `torchdojo fit`, whose object takes the place of the nominal cube. The nominal object beside it starts
            from the same samples, and has the values that the description of the fit gives as nominal.
        substeps, kappa: default: 1 and 1e-6, or the values of the fit.
        output: folder for report.json, replay.npz, and trajectory.npz, which has one throw for drawing. page: its page.
    """
    with user_input():
        if parameters is None:
            replayed = _nominal_cube(path, substeps or 1, kappa or 1e-6, batch_limit, friction, half_side)
        elif friction is not None or half_side is not None:
            raise CommandError("--friction and --half-side are for the nominal cube; --parameters brings all of its own")
        else:
            replayed = _fitted_object(path, parameters, substeps, kappa, batch_limit)
        if output is not None:
            output.mkdir(parents=True, exist_ok=True)
    model, recordings, z, width, described, nominal = replayed
    start = time.perf_counter()
    substeps = model.substeps(recordings)
    inputs = model.recorded_inputs(recordings)
    rollout = roll(model.stepper(), z, recordings.offsets, substeps, inputs, progress=lambda times, count: progress(times, count, "replay"))
    errors = compare(model, recordings, rollout)
    beside = None if nominal is None else open_loop(nominal, recordings)
    wall = time.perf_counter() - start

    report: dict[str, Any] = {
        "file": str(path),
        "tosses": len(recordings),
        "samples": len(recordings.samples),
        "steps": rollout.steps,
        "timestep_s": float(model.mechanism.timestep),
        "substeps": substeps,
        "kappa": model.mechanism.options.kappa,
        **described,
        **errors.summary(width),
        **_final(errors),
        "flagged_steps": rollout.flagged,
        "iterations_mean": float(rollout.iterations.double().mean()),
        "iterations_max": int(rollout.iterations.max()),
        "wall_time_s": wall,
    }
    if beside is not None:
        report["nominal"] = beside.summary(width)
    kind = f"{described['object']} as {parameters} has it" if parameters else f"a cube, friction = {described['friction']:g}"
    print(f"{path.name}: {report['tosses']} tosses, {report['samples']} samples, h = {report['timestep_s']:.4g} s: {kind}")
    if nominal is not None:
        print("nominal -> fitted")
    print_table(_rows(report))
    if output is not None:
        arrays = {"z": rollout.z, "position_error_m": errors.position, "offsets": recordings.offsets}
        arrays["rotation_error_degrees"] = torch.rad2deg(errors.rotation)
        if beside is not None:
            arrays |= {"nominal_z": beside.z, "nominal_position_error_m": beside.position}
            arrays["nominal_rotation_error_degrees"] = torch.rad2deg(beside.rotation)
        numbers: dict[str, Any] = {name: array.numpy() for name, array in arrays.items()}
        np.savez_compressed(output / "replay.npz", **numbers)
    if output is not None or page.html is not None:
        simulated = {} if nominal is None or beside is None else {"nominal": (nominal, beside)}
        simulated["fitted" if parameters else "simulated"] = (model, errors)
        write_drawing(toss(recordings, (model, z), simulated), output, page)
    write_report(report, output)
    return report


def read_tosses(path: Path) -> Recordings:
    """Read and check a file of one body, with the numbers of a cube.

    Raises:
        CommandError: no file, not such a file, missing or malformed arrays, numbers that cannot be right.
    """
    with user_input():
        tosses = read_recordings(path)
        if tosses.num_bodies != 1 or tosses.num_joints:
            raise CommandError(f"{path} has {tosses.num_bodies} bodies and {tosses.num_joints} joint coordinates; a cube is one body")
        for name in ("half_side", "mass", "inertia", *(name for name in ("mu_reported", "gravity") if name in tosses.numbers)):
            positive_number(tosses, name, str(path))
        check_heights(tosses, tosses.numbers["half_side"], str(path))
    return tosses


def _nominal_cube(path: Path, substeps: int, kappa: float, count: int | None, friction: float | None, half_side: float | None) -> Replayed:
    tosses = read_tosses(path).first(count)
    numbers = tosses.numbers
    friction = numbers.get("mu_reported") if friction is None else friction
    if friction is None:
        raise CommandError(f"{path} has no mu_reported; give --friction MU")
    half_side = numbers["half_side"] if half_side is None else half_side
    mech = cube(half_side, numbers["mass"], numbers["inertia"], friction, tosses.dt / substeps, numbers.get("gravity", 9.81), kappa)
    report = {"friction": friction, "half_side_m": half_side}
    return Replayed(ParametricMechanism(mech, ()), tosses, tosses.samples, 2 * half_side, report)


def _fitted_object(path: Path, folder: Path, substeps: int | None, kappa: float | None, count: int | None) -> Replayed:
    fitted = FittedObject.load(folder / PARAMETERS)
    recordings = fitted.prepared(read_recordings(path).first(count))
    model = fitted.model(recordings.dt, substeps, kappa)
    with torch.no_grad():
        z = model.states(recordings.samples, recordings)
    nominal = fitted.nominal_model(recordings.dt, substeps)
    return Replayed(model, recordings, z, fitted.width, {"object": fitted.object, "parameters": fitted.parameters}, nominal)


def _rows(report: dict[str, Any]) -> list[tuple[str, str]]:
    rows, nominal = [], report.get("nominal")
    for name, value in report.items():
        quantity, error, unit = name.partition("_error_")
        if error:
            kind = "median" if unit.startswith("median_") else "mean"
            before = f"{nominal[name]:.4g} -> " if nominal and name in nominal else ""
            rows.append((f"{quantity.replace('_', ' ')} error, {kind}", f"{before}{value:.4g} {UNITS[unit.removeprefix('median_')]}"))
    return [
        *rows,
        ("flagged steps", f"{report['flagged_steps']} of {report['steps']}"),
        ("solver iterations", f"mean {report['iterations_mean']:.2f}, max {report['iterations_max']}"),
        ("wall time", f"{report['wall_time_s']:.1f} s"),
    ]


def _final(errors: OpenLoop) -> dict[str, float]:
    """The mean error of the last samples, where bodies are recorded."""
    if not errors.position.numel():
        return {}
    return {"final_position_error_mm": 1000 * float(errors.position[errors.offsets[1:] - 1].mean())}


# -- the drawing -------------------------------------------------------------------------------------------------------------------------


def toss(
    recordings: Recordings, recorded: tuple[ParametricMechanism, Tensor], simulated: Mapping[str, tuple[ParametricMechanism, OpenLoop]]
) -> list[Playback]:
    """One throw, as recorded and as each model simulates it: the throw whose mean error with the last model is the median.

    Args:
        recorded: a model, and the states (N, 13 nb) of the samples. simulated: by label, a model and its rollouts.
    """
    errors = trajectory_means(list(simulated.values())[-1][1].main, recordings.offsets)
    number = int(errors.argsort()[len(errors) // 2])
    rows = slice(*recordings.offsets[number : number + 2].tolist())
    label = f"throw {int(recordings.throw_id[number])}, "
    model, z = recorded
    playbacks = [Playback.of(model.baked(), z[rows].detach(), label=f"{label}recorded", repeat=model.substeps(recordings))]
    for name, (model, rollout) in simulated.items():
        label_of_error, unit = ("position error [mm]", 1e3) if rollout.position.numel() else ("joint error [°]", 180 / math.pi)
        curves = {label_of_error: unit * rollout.main[rows]}
        states = rollout.z[rows].detach()
        playbacks.append(Playback.of(model.baked(), states, label=label + name, repeat=model.substeps(recordings), curves=curves))
    return playbacks
