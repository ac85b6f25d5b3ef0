"""`torchdojo replay`: recorded tosses of a cube against open-loop rollouts from their first samples.

The format is that of `shared/data/contactnets_cube` (real tosses of Pfrommer, Halm and Posa, "ContactNets", CoRL 2020): position,
quaternion (wxyz, body to world), linear_velocity (world), angular_velocity (body frame), all (N, 3 or 4), toss i in rows
offsets[i]:offsets[i+1], and the scalars dt, half_side, mass, inertia, mu_reported, gravity. Its velocities are backward differences,
which is what the maximal state holds.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchdojo import quaternion as quat
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
from torchdojo.identification.evaluation import RaggedRollout, open_loop, trajectory_means
from torchdojo.identification.evaluation import roll as roll_states
from torchdojo.identification.fitting import FittedObject
from torchdojo.identification.objects import cube
from torchdojo.identification.recordings import check_heights, positive_number, read_recordings
from torchdojo.mechanism import Mechanism

__all__ = ["Tosses", "add_arguments", "cube", "read_tosses", "replay", "roll", "run", "toss_means"]

toss_means = trajectory_means


class Tosses(NamedTuple):
    """Recorded tosses. z (N, 13): all samples of all tosses as states; toss i is rows offsets[i]:offsets[i+1]. numbers: the scalars."""

    z: Tensor
    offsets: Tensor
    numbers: dict[str, float]

    def first(self, count: int | None) -> Tosses:
        """The first `count` tosses."""
        if count is None or count >= len(self.offsets) - 1:
            return self
        return Tosses(self.z[: int(self.offsets[count])], self.offsets[: count + 1], self.numbers)


def read_tosses(path: Path) -> Tosses:
    """Read and check a data file of one body, with the numbers of a cube.

    Raises:
        CommandError: no file, not such a file, missing or malformed arrays, numbers that cannot be right.
    """
    with user_input():
        recordings = read_recordings(path)
        if recordings.num_bodies != 1 or recordings.num_joints:
            raise CommandError(
                f"{path} has {recordings.num_bodies} bodies and {recordings.num_joints} joint coordinates; a cube is one body"
            )
        numbers = {name: positive_number(recordings, name, str(path)) for name in ("half_side", "mass", "inertia")}
        for name in ("mu_reported", "gravity"):
            if name in recordings.numbers:
                numbers[name] = positive_number(recordings, name, str(path))
        check_heights(recordings, numbers["half_side"], str(path))
    return Tosses(recordings.samples, recordings.offsets, {"dt": recordings.dt, **numbers})


def roll(mech: Mechanism, tosses: Tosses, substeps: int = 1, *, show_progress: bool = False) -> RaggedRollout:
    """Roll all tosses as one batch, each from its first sample to its last."""
    bar = (lambda times, count: progress(times, count, "replay")) if show_progress else None
    return roll_states(mech.step, tosses.z, tosses.offsets, substeps, progress=bar)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `torchdojo replay`."""
    parser.description = "Roll every toss of a recorded data set from its first sample and compare with the recording."
    parser.add_argument("file", type=Path, metavar="FILE.npz", help="tosses of a cube in the format of ContactNets' processed data")
    parser.add_argument("--parameters", type=Path, metavar="DIR", help="output folder of `torchdojo fit`: replay the object it has found")
    parser.add_argument("--substeps", type=whole, metavar="K", help="steps per recorded interval (default: 1, or those of the fit)")
    parser.add_argument("--kappa", type=positive, metavar="K", help="central-path parameter (default: 1e-06, or that of the fit)")
    parser.add_argument("--batch-limit", type=whole, metavar="N", help="only the first N tosses")
    parser.add_argument("--friction", type=not_negative, metavar="MU", help="Coulomb coefficient (default: mu_reported of the file)")
    parser.add_argument("--half-side", type=positive, metavar="M", help="half the cube's edge [m] (default: half_side of the file)")
    add_output(parser)


def run(options: argparse.Namespace) -> dict[str, Any]:
    keywords = ("parameters", "substeps", "kappa", "batch_limit", "friction", "half_side", "output")
    return replay(options.file, **{key: getattr(options, key) for key in keywords})


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
) -> dict[str, Any]:
    """Run the command; returns the report.

    Args:
        parameters: output folder of `torchdojo fit`, whose object then takes the place of the nominal cube.
        substeps, kappa: default: 1 and 1e-6, or those of the fit.
    """
    if parameters is not None:
        if friction is not None or half_side is not None:
            raise CommandError("--friction and --half-side are for the nominal cube; --parameters brings all of its own")
        return _replay_fitted(path, parameters, substeps, kappa, batch_limit, output)
    substeps, kappa = substeps or 1, kappa or 1e-6
    tosses = read_tosses(path).first(batch_limit)
    numbers = tosses.numbers
    friction = numbers.get("mu_reported") if friction is None else friction
    if friction is None:
        raise CommandError(f"{path} has no mu_reported; give --friction MU")
    half_side = numbers["half_side"] if half_side is None else half_side
    with user_input():
        timestep = numbers["dt"] / substeps
        mech = cube(half_side, numbers["mass"], numbers["inertia"], friction, timestep, numbers.get("gravity", 9.81), kappa)
        if output is not None:
            output.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    rollout = roll(mech, tosses, substeps, show_progress=True)
    wall = time.perf_counter() - start

    width = 2 * half_side
    position = torch.linalg.vector_norm(rollout.z[:, :3] - tosses.z[:, :3], dim=-1)
    turn = quat.multiply(quat.conjugate(tosses.z[:, 6:10]), rollout.z[:, 6:10])
    rotation = torch.rad2deg(torch.linalg.vector_norm(quat.rotation_vector(turn), dim=-1))
    position_mean, rotation_mean = toss_means(position, tosses.offsets), toss_means(rotation, tosses.offsets)
    final = position[tosses.offsets[1:] - 1]
    report: dict[str, Any] = {
        "file": str(path),
        "tosses": len(position_mean),
        "samples": len(tosses.z),
        "steps": rollout.steps,
        "timestep_s": timestep,
        "substeps": substeps,
        "kappa": kappa,
        "friction": friction,
        "half_side_m": half_side,
        "position_error_percent_of_width": 100 * float(position_mean.mean()) / width,
        "position_error_median_percent_of_width": 100 * float(position_mean.median()) / width,
        "rotation_error_degrees": float(rotation_mean.mean()),
        "rotation_error_median_degrees": float(rotation_mean.median()),
        "final_position_error_mm": 1000 * float(final.mean()),
        "flagged_steps": rollout.flagged,
        "iterations_mean": float(rollout.iterations.double().mean()),
        "iterations_max": int(rollout.iterations.max()),
        "wall_time_s": wall,
    }
    print(f"{path.name}: {len(final)} tosses, {len(position)} samples, h = {timestep:.4g} s, kappa = {kappa:g}, friction = {friction:g}")
    print_table(_rows(report))
    if output is not None:
        np.savez_compressed(
            output / "replay.npz",
            z=rollout.z.numpy(),
            position_error_m=position.numpy(),
            rotation_error_degrees=rotation.numpy(),
            offsets=tosses.offsets.numpy(),
        )
    write_report(report, output)
    return report


def _replay_fitted(
    path: Path, folder: Path, substeps: int | None, kappa: float | None, batch_limit: int | None, output: Path | None
) -> dict[str, Any]:
    with user_input():
        fitted = FittedObject.load(folder / PARAMETERS)
        recordings = read_recordings(path).first(batch_limit)
        recordings = fitted.prepared(recordings)
        model = fitted.model(recordings.dt, substeps, kappa)
        model.observed(recordings)
        if output is not None:
            output.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    rollout = open_loop(model, recordings)
    wall = time.perf_counter() - start
    report: dict[str, Any] = {
        "file": str(path),
        "object": fitted.object,
        "parameters": fitted.parameters,
        "tosses": len(recordings),
        "samples": len(recordings.samples),
        "steps": (len(recordings.samples) - len(recordings)) * model.substeps(recordings),
        "timestep_s": float(model.mechanism.timestep),
        "substeps": model.substeps(recordings),
        "kappa": model.mechanism.options.kappa,
        **rollout.summary(fitted.width),
        "final_position_error_mm": 1000 * float(rollout.position[recordings.offsets[1:] - 1].mean()),
        "flagged_steps": rollout.flagged,
        "wall_time_s": wall,
    }
    print(f"{path.name}: {len(recordings)} tosses of {fitted.object} as {folder} has it")
    print_table([(name.replace("_", " "), f"{value:.4g}") for name, value in report.items() if "error" in name or name == "flagged_steps"])
    if output is not None:
        arrays = {"z": rollout.z, "position_error_m": rollout.position, "offsets": rollout.offsets}
        arrays["rotation_error_degrees"] = torch.rad2deg(rollout.rotation)
        numbers: dict[str, Any] = {name: array.numpy() for name, array in arrays.items()}
        np.savez_compressed(output / "replay.npz", **numbers)
    write_report(report, output)
    return report


def _rows(r: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        ("position error, mean", f"{r['position_error_percent_of_width']:.2f} % of the width"),
        ("position error, median", f"{r['position_error_median_percent_of_width']:.2f} % of the width"),
        ("rotation error, mean", f"{r['rotation_error_degrees']:.2f} degrees"),
        ("rotation error, median", f"{r['rotation_error_median_degrees']:.2f} degrees"),
        ("final position error, mean", f"{r['final_position_error_mm']:.1f} mm"),
        ("flagged steps", f"{r['flagged_steps']} of {r['steps']}"),
        ("solver iterations", f"mean {r['iterations_mean']:.2f}, max {r['iterations_max']}"),
        ("wall time", f"{r['wall_time_s']:.1f} s"),
    ]
