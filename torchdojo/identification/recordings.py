"""Recorded trajectories: the schema of `.npz` files, checks, splits by throw, and windows.

A file holds N samples of all trajectories, one after another, at a constant rate; trajectory i is rows offsets[i]:offsets[i+1].

| array | shape | meaning |
| --- | --- | --- |
| position | (N, 3) or (N, b, 3) | center of mass of each recorded body, world frame [m] |
| quaternion | (N, 4) or (N, b, 4) | wxyz, body to world, unit |
| linear_velocity | as position | world frame [m/s]; optional |
| angular_velocity | as position | body frame [rad/s]; optional |
| joint_angle | (N,) or (N, j) | coordinates of joints [rad, m]; with them, only floating bodies are recorded; optional |
| joint_velocity | as joint_angle | [rad/s, m/s]; optional |
| input | (N, m) | inputs u of the mechanism [N, N·m], held from each sample to the next one; optional: none act |
| reading | (N, k) | what sensors of the mechanism read, side by side, of the step or period that leads to each sample; optional |
| offsets | (n + 1,) | first row of each trajectory, whole numbers from 0 to N |
| throw_id | (n,) | number of the physical throw of each trajectory, for splits and tilts; optional: `toss_index`, or else the position |
| toss_index | (n,) | number of each trajectory in the source of the file; optional |
| dt | () | time between samples [s] |

Other scalars (mass, half_side, ...) are kept as `numbers`. Bodies and joint coordinates come in the order of the mechanism. Without
`joint_angle`, the file has one recorded body for each body of the mechanism. With `joint_angle`, it has one for each `Floating` joint: none
where the base is fixed, and position and quaternion may then be left out.
Quaternions may have either sign: joints between recorded bodies start at the angles of `Mechanism.unwind`.

Velocities are backward differences, x[k+1] − x[k] = dt v[k+1] and q[k+1] = q[k] exp(dt ω[k+1]), as in the variational integrator. Where
they are not given, they are computed so, and every trajectory loses its first sample, which has no velocity.
"""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from torchdojo import quaternion as quat
from torchdojo.runs import check_arrays
from torchdojo.runs.description import check_whole
from torchdojo.state.layout import ANGULAR_VELOCITY, ORIENTATION, POSITION, STATE_SIZE, VELOCITY

__all__ = ["DataError", "Recordings", "WindowDataset", "read_recordings"]

WIDTHS = {"position": 3, "linear_velocity": 3, "quaternion": 4, "angular_velocity": 3}
NUMBERS_OF_THROWS = ("throw_id", "toss_index")  # the first one that a file has
REQUIRED = ("offsets", "dt")
POSE = ("position", "quaternion")  # required, too, where a file has no `joint_angle`
UNIT_TOLERANCE = 1e-6


class DataError(ValueError):
    """Recorded data that cannot be used, with the reason."""


@dataclass(frozen=True)
class Recordings:
    """Recorded trajectories.

    samples: (N, 13 b + 2 j + m + k), per recorded body [x(3) m, v(3) m/s, q(4) wxyz, ω(3) rad/s], then joint coordinates, their rates,
        the inputs that are held until the next sample, and the readings of sensors since the last one.
    offsets: (n + 1,), throw_id: (n,), both int64. dt: [s]. num_bodies, num_joints, num_inputs, num_readings: b, j, m, k.
    numbers: the file's other scalars.
    numbered_by: the array that `throw_id` comes from, "throw_id", "toss_index", or "position" where a file has neither.
    """

    samples: Tensor
    offsets: Tensor
    throw_id: Tensor
    dt: float
    num_bodies: int = 1
    num_joints: int = 0
    numbers: Mapping[str, float] = field(default_factory=dict)
    numbered_by: str = "throw_id"
    num_inputs: int = 0
    num_readings: int = 0

    def __len__(self) -> int:
        """Number of trajectories."""
        return len(self.throw_id)

    @property
    def lengths(self) -> Tensor:
        """Samples of each trajectory, (n,)."""
        return self.offsets.diff()

    def bodies(self, samples: Tensor | None = None) -> Tensor:
        """Recorded bodies of samples (..., 13 b + 2 j + m), (..., b, 13)."""
        samples = self.samples if samples is None else samples
        return samples[..., : STATE_SIZE * self.num_bodies].unflatten(-1, (self.num_bodies, STATE_SIZE))

    def joints(self, samples: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Joint coordinates and rates of samples, each (..., j)."""
        samples = self.samples if samples is None else samples
        first, count = STATE_SIZE * self.num_bodies, self.num_joints
        return samples[..., first : first + count], samples[..., first + count : first + 2 * count]

    def inputs(self, samples: Tensor | None = None) -> Tensor:
        """Inputs of samples [N, N·m], (..., m), held until the next sample."""
        samples = self.samples if samples is None else samples
        first = STATE_SIZE * self.num_bodies + 2 * self.num_joints
        return samples[..., first : first + self.num_inputs]

    def readings(self, samples: Tensor | None = None) -> Tensor:
        """Readings of sensors, (..., k), of the step or period that leads to each sample."""
        samples = self.samples if samples is None else samples
        return samples[..., samples.shape[-1] - self.num_readings :]

    def select(self, trajectories: Sequence[int] | Tensor) -> Recordings:
        """Some of the trajectories, in the given order.

        Raises:
            DataError: none is chosen.
        """
        chosen = torch.as_tensor(trajectories, dtype=torch.int64).reshape(-1)
        if not len(chosen):
            raise DataError("no trajectory is chosen; a selection needs at least one")
        starts, lengths = self.offsets[:-1][chosen], self.lengths[chosen]
        rows = torch.cat([torch.arange(a, a + n) for a, n in zip(starts.tolist(), lengths.tolist(), strict=True)])
        offsets = torch.cat((lengths.new_zeros(1), lengths.cumsum(0)))
        return replace(self, samples=self.samples[rows], offsets=offsets, throw_id=self.throw_id[chosen])

    def first(self, count: int | None) -> Recordings:
        """The first `count` trajectories; None: all."""
        return self if count is None or count >= len(self) else self.select(range(count))

    def with_heading(self) -> Recordings:
        """Every trajectory turned about the vertical so that the horizontal velocity of its first body points along x at its first sample.

        This serves recordings whose heading in the world is unknown, of throws that were all made the same way. A slope of the world is
        then the same in the frames of all throws.

        Raises:
            DataError: recordings without a body, or with inputs, which may be forces in the frame of the world.
        """
        if self.num_inputs or not self.num_bodies:
            raise DataError(
                f"with_heading: got {self.num_bodies} recorded bodies and {self.num_inputs} inputs; allowed: bodies, and no inputs. Leave "
                "the recordings as they are"
            )
        start = self.bodies()[self.offsets[:-1], 0, 3:5]
        half = -0.5 * torch.atan2(start[:, 1], start[:, 0]).repeat_interleave(self.lengths)[:, None]
        return turned(self, torch.cat((half.cos(), torch.zeros_like(half).expand(-1, 2), half.sin()), dim=-1))

    def split(self, validation: float = 0.2, seed: int = 0) -> tuple[Recordings, Recordings]:
        """(training, validation) with whole throws in one or the other: trajectories of one `throw_id` are never divided.

        Args:
            validation: part of the throws that goes to the second. seed: for the drawing of throws.

        Raises:
            DataError: one of the two would be empty.
        """
        throws = self.throw_id.unique()
        held = round(validation * len(throws))
        if not 0 < held < len(throws):
            raise DataError(
                f"a split of {len(throws)} throws with a validation part of {validation:g} leaves {len(throws) - held} to train on and "
                f"{held} to validate with; allowed: a part for which both have at least one"
            )
        return self._hold_back(self._drawn(seed)[:held])

    def fold(self, fold: Sequence[int], seed: int = 0) -> tuple[Recordings, Recordings]:
        """(training, validation) of cross-validation, whole throws as in `split`: the second has one of K parts of (nearly) the same size.

        Args:
            fold: (k, K), the k-th of K parts; every throw is in one part. seed: for the drawing of throws.

        Raises:
            DataError: fewer throws than parts, or fewer than two parts.
        """
        (number, count), throws = fold, len(self.throw_id.unique())
        if not 2 <= count <= throws:
            raise DataError(f"{count} folds of {throws} throws; allowed: from 2 folds to as many as there are throws")
        return self._hold_back(self._drawn(seed).tensor_split(count)[number - 1])

    def hold_back(self, throws: Sequence[int]) -> tuple[Recordings, Recordings]:
        """(training, validation) with the throws of these numbers in the second.

        Raises:
            DataError: the file has no throw of such a number, or one of the two would be empty.
        """
        numbers = torch.tensor(sorted(set(throws)), dtype=torch.int64)
        missing = numbers[~torch.isin(numbers, self.throw_id)].tolist()
        if missing or not 0 < len(numbers) < len(self.throw_id.unique()):
            problem = f"there are no throws {missing[:10]}" if missing else f"it has {len(self.throw_id.unique())} throws"
            raise DataError(
                f"held_back names {len(numbers)} throws, and {problem}; allowed: some, not all, of the throws, which are numbered by "
                f"{self.numbered_by}, from {int(self.throw_id.min())} to {int(self.throw_id.max())}"
            )
        return self._hold_back(numbers)

    def _drawn(self, seed: int) -> Tensor:
        """All throws in an order that depends on the seed."""
        throws = self.throw_id.unique()
        return throws[torch.randperm(len(throws), generator=torch.Generator().manual_seed(seed))]

    def _hold_back(self, throws: Tensor) -> tuple[Recordings, Recordings]:
        kept = torch.isin(self.throw_id, throws)
        return self.select((~kept).nonzero()), self.select(kept.nonzero())


def read_recordings(path: str | Path) -> Recordings:
    """Read and check a file of the schema above.

    Raises:
        DataError: no file, a damaged or truncated one, missing or malformed arrays, numbers that cannot be right.
    """
    path = Path(path)
    if not path.is_file():
        raise DataError(f"no file {str(path)!r}")
    try:
        archive = np.load(path, allow_pickle=False)
        check_arrays(archive)
        with archive:
            arrays = {key: archive[key] for key in archive.files}
    except (ValueError, OSError, EOFError, KeyError, NotImplementedError, zipfile.BadZipFile, zlib.error, struct.error) as error:
        raise DataError(f"{path} is not an .npz file of plain arrays, or is damaged ({error})") from error
    return recordings_of(arrays, str(path))


def recordings_of(arrays: dict[str, np.ndarray], label: str = "data") -> Recordings:
    """Recordings from the arrays of the schema; `label` begins the messages of errors.

    Raises:
        DataError: as `read_recordings`.
    """
    required = REQUIRED if "joint_angle" in arrays and not any(name in arrays for name in POSE) else (*POSE, *REQUIRED)
    missing = [name for name in required if name not in arrays]
    if missing:
        raise DataError(f"{label} lacks {', '.join(missing)}; it has {', '.join(arrays) or 'nothing'}")
    dt = _positive(label, "dt", arrays["dt"])
    if "position" in required:
        position = np.asarray(arrays["position"])
        count, bodies = (position.shape[0] if position.ndim else 0), (position.shape[1] if position.ndim == 3 else 1)
    else:
        count, bodies = np.atleast_1d(arrays["joint_angle"]).shape[0], 0
        arrays = {**arrays, **{name: np.zeros((count, 0, WIDTHS[name])) for name in POSE}}
    columns = {name: _array(label, name, arrays[name], count, bodies, width) for name, width in WIDTHS.items() if name in arrays}
    norm = torch.linalg.vector_norm(columns["quaternion"], dim=-1)
    if norm.numel() and float((norm - 1).abs().max()) > UNIT_TOLERANCE:
        row = int((norm - 1).abs().amax(-1).argmax())
        raise DataError(f"{label}: quaternion row {row} has length {float(norm[row].max()):.6g}; allowed: unit quaternions wxyz")
    angle, rate = _joint_arrays(label, arrays, count)
    inputs = _rows(label, "input", arrays["input"], count, "inputs") if "input" in arrays else torch.zeros(count, 0, dtype=torch.float64)
    readings = _rows(label, "reading", arrays["reading"], count, "readings") if "reading" in arrays else inputs[:, :0]
    offsets = _offsets(label, arrays["offsets"], count)
    rates = [name in columns for name in ("linear_velocity", "angular_velocity") if bodies] + [rate is not None] * (angle is not None)
    angle = torch.zeros(count, 0, dtype=torch.float64) if angle is None else angle
    throw_id, numbered_by = _throw_id(label, arrays, len(offsets) - 1)
    described = {"offsets", "dt", *NUMBERS_OF_THROWS, "joint_angle", "joint_velocity", "input", "reading", *WIDTHS}
    numbers = {name: float(v.item()) for name, v in arrays.items() if name not in described and v.size == 1 and v.dtype.kind in "fiu"}
    columns.setdefault("linear_velocity", torch.full((count, bodies, 3), torch.nan, dtype=torch.float64))
    columns.setdefault("angular_velocity", torch.full((count, bodies, 3), torch.nan, dtype=torch.float64))
    packed = torch.cat([columns[name] for name in WIDTHS], dim=-1).flatten(1)
    samples = torch.cat((packed, angle, torch.full_like(angle, torch.nan) if rate is None else rate, inputs, readings), dim=-1)
    sizes = inputs.shape[-1], readings.shape[-1]
    recordings = Recordings(samples, offsets, throw_id, dt, bodies, angle.shape[-1], numbers, numbered_by, *sizes)
    if all(rates):
        return recordings
    if any(rates):
        raise DataError(f"{label} has some velocities and lacks others; give all of them, or none (they are then backward differences)")
    return with_differences(recordings)


def turned(recordings: Recordings, turn: Tensor) -> Recordings:
    """Recordings with the world turned by a quaternion for each sample (N, 4)."""
    x, v, q, omega = recordings.bodies().split((3, 3, 4, 3), dim=-1)
    turn = turn[:, None]
    bodies = torch.cat((quat.rotate(turn, x), quat.rotate(turn, v), quat.multiply(turn, q), omega), dim=-1).flatten(1)
    return replace(recordings, samples=torch.cat((bodies, recordings.samples[:, bodies.shape[-1] :]), dim=-1))


def with_differences(recordings: Recordings) -> Recordings:
    """Velocities as backward differences; every trajectory loses its first sample.

    Raises:
        DataError: a trajectory of fewer than three samples, which would have nothing left to compare with.
    """
    if bool((recordings.lengths < 3).any()):
        short = int((recordings.lengths < 3).nonzero()[0])
        raise DataError(f"trajectory {short} has fewer than three samples, and no velocities; a start takes two, and a comparison one more")
    samples, count, split = recordings.samples.clone(), recordings.num_joints, STATE_SIZE * recordings.num_bodies
    body = samples[:, :split].unflatten(-1, (-1, STATE_SIZE))
    body[1:, :, VELOCITY] = body[:, :, POSITION].diff(dim=0) / recordings.dt
    turn = quat.multiply(quat.conjugate(body[:-1, :, ORIENTATION]), body[1:, :, ORIENTATION])
    body[1:, :, ANGULAR_VELOCITY] = quat.rotation_vector(turn) / recordings.dt
    angle = samples[:, split : split + count]
    samples = torch.cat((body.flatten(1), angle, torch.full_like(angle, torch.nan), samples[:, split + 2 * count :]), dim=-1)
    samples[1:, split + count : split + 2 * count] = wrapped(angle.diff(dim=0)) / recordings.dt
    kept = torch.ones(len(samples), dtype=torch.bool)
    kept[recordings.offsets[:-1]] = False
    offsets = recordings.offsets - torch.arange(len(recordings.offsets))
    return replace(recordings, samples=samples[kept], offsets=offsets)


def wrapped(angle: Tensor) -> Tensor:
    """Angles [rad] brought to [−π, π)."""
    return torch.remainder(angle + torch.pi, 2 * torch.pi) - torch.pi


class WindowDataset(Dataset[Tensor]):
    """Windows of `horizon` + 1 consecutive samples of one trajectory each.

    Item i is (horizon + 1, 13 b + 2 j + m); items of a tensor of numbers (B,) are (B, horizon + 1, 13 b + 2 j + m). A horizon of 1 gives
    the triplets of Howell et al. (2025, eq. 55-57): a sample, the one before in its velocity, and the one after. `starts` (windows,) has
    the rows of the first samples.

    Args:
        horizon: steps from the first sample of a window to its last. stride: samples between starts of windows.
        first_only: only the windows that begin with the first sample of a trajectory.

    Raises:
        DataError: no trajectory is as long as a window.
    """

    def __init__(self, recordings: Recordings, horizon: int = 1, stride: int = 1, *, first_only: bool = False) -> None:
        check_whole(SimpleNamespace(horizon=horizon, stride=stride), ("horizon", "stride"), label="WindowDataset.")
        self.recordings, self.horizon = recordings, horizon
        ends = [
            a + 1 if first_only else b - horizon
            for a, b in zip(recordings.offsets[:-1].tolist(), recordings.offsets[1:].tolist(), strict=True)
        ]
        fits = (recordings.lengths > horizon).tolist()
        starts = [torch.arange(a, e, stride) for a, e, fit in zip(recordings.offsets[:-1].tolist(), ends, fits, strict=True) if fit]
        if not starts:
            raise DataError(
                f"no trajectory has the {horizon + 1} samples of a window of {horizon} steps; the longest has "
                f"{int(recordings.lengths.max())}"
            )
        self.starts = torch.cat(starts)

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: int | Tensor | slice) -> Tensor:
        return self.recordings.samples[self.starts[index][..., None] + torch.arange(self.horizon + 1)]

    def stack(self) -> Tensor:
        """All windows, (windows, horizon + 1, 13 b + 2 j + m)."""
        return self[:]


# -- checks ------------------------------------------------------------------------------------------------------------------------------


def _positive(label: str, name: str, array: Any) -> float:
    array = np.asarray(array)
    if array.size != 1 or array.dtype.kind not in "fiu" or not np.isfinite(array).all() or not float(array.item()) > 0:
        raise DataError(f"{label}: {name} is {array.tolist()}; allowed: one positive number")
    return float(array.item())


def positive_number(recordings: Recordings, name: str, label: str = "data") -> float:
    """One of `numbers`.

    Raises:
        DataError: it is missing, or not a positive number.
    """
    numbers = recordings.numbers
    if name not in numbers:
        raise DataError(f"{label} lacks {name}; its scalars: {', '.join(numbers) or 'none'}")
    return _positive(label, name, np.asarray(numbers[name]))


def _array(label: str, name: str, array: np.ndarray, count: int, bodies: int, width: int) -> Tensor:
    shapes = [(count, bodies, width)] + [(count, width)] * (bodies == 1)
    if array.shape not in shapes or array.dtype.kind not in "fiu":
        allowed = f"({count}, {width})" if bodies == 1 else f"({count}, {bodies}, {width})"
        raise DataError(f"{label}: {name} is {array.dtype} {array.shape}; allowed: numbers {allowed}, one row per sample")
    return _finite(label, name, array).reshape(count, bodies, width)


def _finite(label: str, name: str, array: np.ndarray) -> Tensor:
    if not np.isfinite(array).all():
        raise DataError(f"{label}: {name} is not finite in row {int(np.argwhere(~np.isfinite(array))[0, 0])}")
    return torch.from_numpy(array.astype(np.float64))


def _joint_arrays(label: str, arrays: dict[str, np.ndarray], count: int) -> tuple[Tensor | None, Tensor | None]:
    columns: list[Tensor | None] = []
    for name in ("joint_angle", "joint_velocity"):
        array = arrays.get(name)
        if array is None:
            columns.append(None)
            continue
        columns.append(_rows(label, name, array, count, "joint coordinates"))
    angle, rate = columns
    if rate is not None and (angle is None or angle.shape != rate.shape):
        raise DataError(f"{label}: joint_velocity needs a joint_angle of the same shape, which is {None if angle is None else angle.shape}")
    return angle, rate


def _rows(label: str, name: str, array: np.ndarray, count: int, what: str) -> Tensor:
    """Numbers (count, n), one row per sample."""
    if array.ndim not in (1, 2) or len(array) != count or array.dtype.kind not in "fiu":
        raise DataError(f"{label}: {name} is {array.dtype} {array.shape}; allowed: numbers ({count},) or ({count}, {what})")
    return _finite(label, name, array).reshape(count, -1 if array.size else array.shape[-1])


def _offsets(label: str, offsets: np.ndarray, count: int) -> Tensor:
    fine = offsets.ndim == 1 and offsets.dtype.kind in "iu" and len(offsets) >= 2 and offsets[0] == 0 and offsets[-1] == count
    if not fine:
        raise DataError(
            f"{label}: offsets must be whole numbers from 0 to the number of samples, {count}; got {str(offsets.tolist())[:80]}"
        )
    short = np.diff(offsets.astype(np.int64)) < 2
    if short.any():
        raise DataError(f"{label}: toss {int(short.argmax())} has fewer than two samples; it needs a start and something to compare with")
    return torch.from_numpy(offsets.astype(np.int64))


def _throw_id(label: str, arrays: Mapping[str, np.ndarray], count: int) -> tuple[Tensor, str]:
    """Numbers of the throws, and the array they come from."""
    name = next((name for name in NUMBERS_OF_THROWS if name in arrays), None)
    if name is None:
        return torch.arange(count), "position"
    numbers = arrays[name]
    if numbers.shape != (count,) or numbers.dtype.kind not in "iu":
        raise DataError(f"{label}: {name} is {numbers.dtype} {numbers.shape}; allowed: whole numbers ({count},), one per trajectory")
    return torch.from_numpy(numbers.astype(np.int64)), name
