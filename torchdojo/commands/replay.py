"""`torchdojo replay`: recorded tosses of a cube against open-loop rollouts from their first samples.

The format is that of `shared/data/contactnets_cube` (real tosses of Pfrommer, Halm and Posa, "ContactNets", CoRL 2020): position,
quaternion (wxyz, body to world), linear_velocity (world), angular_velocity (body frame), all (N, 3 or 4), toss i in rows
offsets[i]:offsets[i+1], and the scalars dt, half_side, mass, inertia, mu_reported, gravity. Its velocities are backward differences,
which is what the maximal state holds.
"""

from __future__ import annotations

import time
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchdojo import quaternion as quat
from torchdojo.bodies import Body
from torchdojo.commands.common import CommandError, print_table, progress, user_input, write_report
from torchdojo.contacts import NonlinearContact
from torchdojo.mechanism import Mechanism
from torchdojo.shapes import Box
from torchdojo.solver.options import SolverOptions, Status

__all__ = ["TossRollout", "Tosses", "cube", "read_tosses", "replay", "roll"]

ARRAYS = {"position": 3, "quaternion": 4, "linear_velocity": 3, "angular_velocity": 3}
SCALARS = ("dt", "half_side", "mass", "inertia")


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


class TossRollout(NamedTuple):
    """z (N, 13): simulated states at the recorded samples; flagged, steps: counts; iterations (steps,)."""

    z: Tensor
    flagged: int
    steps: int
    iterations: Tensor


def read_tosses(path: Path) -> Tosses:
    """Read and check a data file.

    Raises:
        CommandError: no file, not such a file, missing or malformed arrays, numbers that cannot be right.
    """
    if not path.is_file():
        raise CommandError(f"no file {str(path)!r}")
    try:
        archive = np.load(path, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise ValueError("it holds one array")
        with archive:
            arrays = {key: archive[key] for key in archive.files}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise CommandError(f"{path} is not an .npz file of plain arrays ({error})") from error
    missing = [name for name in (*ARRAYS, "offsets", *SCALARS) if name not in arrays]
    if missing:
        raise CommandError(f"{path} lacks {', '.join(missing)}; it has {', '.join(arrays) or 'nothing'}")
    samples = len(arrays["position"]) if arrays["position"].ndim else 0
    columns = {}
    for name, width in ARRAYS.items():
        array = arrays[name]
        if array.shape != (samples, width) or array.dtype.kind not in "fiu":
            raise CommandError(f"{path}: {name} is {array.dtype} {array.shape}; allowed: numbers ({samples}, {width}), one row per sample")
        if not np.isfinite(array).all():
            raise CommandError(f"{path}: {name} is not finite in row {int(np.argwhere(~np.isfinite(array))[0, 0])}")
        columns[name] = torch.from_numpy(array.astype(np.float64))
    norm = torch.linalg.vector_norm(columns["quaternion"], dim=-1)
    if samples and float((norm - 1).abs().max()) > 1e-6:
        row = int((norm - 1).abs().argmax())
        raise CommandError(f"{path}: quaternion row {row} has length {float(norm[row]):.6g}; allowed: unit quaternions wxyz")
    numbers = {}
    for name in (*SCALARS, "mu_reported", "gravity"):
        if name in arrays:
            if arrays[name].size != 1 or not np.isfinite(arrays[name]).all() or not float(arrays[name].item()) > 0:
                raise CommandError(f"{path}: {name} is {arrays[name].tolist()}; allowed: one positive number")
            numbers[name] = float(arrays[name].item())
    offsets = _checked_offsets(path, arrays["offsets"], samples)
    _check_heights(path, columns["position"][offsets[1:] - 1, 2], numbers["half_side"])
    order = ("position", "linear_velocity", "quaternion", "angular_velocity")
    return Tosses(torch.cat([columns[name] for name in order], dim=-1), offsets, numbers)


def _checked_offsets(path: Path, offsets: np.ndarray, samples: int) -> Tensor:
    fine = offsets.ndim == 1 and offsets.dtype.kind in "iu" and len(offsets) >= 2 and offsets[0] == 0 and offsets[-1] == samples
    if not fine:
        raise CommandError(
            f"{path}: offsets must be whole numbers from 0 to the number of samples, {samples}; got {str(offsets.tolist())[:80]}"
        )
    short = np.diff(offsets.astype(np.int64)) < 2
    if short.any():
        raise CommandError(
            f"{path}: toss {int(short.argmax())} has fewer than two samples; a replay needs a start and something to compare with"
        )
    return torch.from_numpy(offsets.astype(np.int64))


def _check_heights(path: Path, final: Tensor, half_side: float) -> None:
    """A cube at rest has its centre half a side (on a corner √3 of it) above the board."""
    height = float(final.median())
    if not 0.5 * half_side < height < 2.0 * half_side:
        guess = "; are positions in half-sides? multiply positions and velocities by half_side" if abs(height - 1) < 0.2 else ""
        raise CommandError(
            f"{path}: tosses end with the cube's centre at a median height of {height:.4g} m, but half_side is {half_side:.4g} m{guess}"
        )


def cube(half_side: float, mass: float, inertia: float, friction: float, timestep: float, gravity: float, kappa: float) -> Mechanism:
    """A free cube, body "cube", with a contact at each corner; lengths [m], mass [kg], inertia about every axis [kg·m²]."""
    body = Body(mass, (inertia,) * 3, shape=Box((2 * half_side,) * 3))
    points, _ = body.shapes[0].contact_points()
    contacts = {f"corner{i}": NonlinearContact("cube", point=point, friction=friction) for i, point in enumerate(points, start=1)}
    return Mechanism({"cube": body}, (), contacts, timestep=timestep, gravity=(0.0, 0.0, -gravity), options=SolverOptions(kappa=kappa))


def roll(mech: Mechanism, tosses: Tosses, substeps: int = 1, *, show_progress: bool = False) -> TossRollout:
    """Roll all tosses as one batch, each from its first sample to its last; finished tosses leave the batch."""
    lengths = tosses.offsets.diff()
    order = torch.argsort(lengths, descending=True, stable=True)  # the tosses still running are always the first ones
    start, lengths = tosses.offsets[:-1][order], lengths[order]
    result = tosses.z.clone()
    z, warm = tosses.z[start], None
    flagged = 0
    iterations: list[Tensor] = []
    times: Iterable[int] = range(1, int(lengths.max()))
    if show_progress:
        times = progress(times, int(lengths.max()) - 1, "replay")
    with torch.no_grad():
        for t in times:
            running = int((lengths > t).sum())
            z, warm = z[:running], None if warm is None else warm[:running]
            for _ in range(substeps):
                out = mech.step(z, warm_start=warm)
                z, warm = out.z, out.solution
                flagged += int((out.status != int(Status.SUCCESS)).sum())
                iterations.append(out.iterations)
            result[start[:running] + t] = z
    return TossRollout(result, flagged, sum(len(i) for i in iterations), torch.cat(iterations))


def toss_means(values: Tensor, offsets: Tensor) -> Tensor:
    """Mean over the samples of each toss after its first, (number of tosses,)."""
    return torch.stack([values[a + 1 : b].mean() for a, b in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)])


def replay(
    path: Path,
    *,
    substeps: int = 1,
    kappa: float = 1e-6,
    batch_limit: int | None = None,
    friction: float | None = None,
    half_side: float | None = None,
    output: Path | None = None,
) -> dict[str, Any]:
    """Run the command; returns the report."""
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
