"""Recordings in whose frame the ground is not level.

Frames differ between setups of the cameras. The throws of the hinged object up to number 318 have a frame that is tilted against the table
by 2.4 degrees. The faces on which objects come to rest show the tilt, and so does the acceleration of their flights.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torchdojo import quaternion as quat
from torchdojo.elements.element import unit
from torchdojo.identification.parameters import ParametricMechanism
from torchdojo.identification.recordings import DataError, Recordings, turned

__all__ = ["check_tilts", "levelled"]

Tilts = Sequence[Sequence[float]]


def levelled(model: ParametricMechanism, recordings: Recordings, tilts: Tilts) -> Recordings:
    """Recordings with the world turned, the shortest way, so that the ground of some throws is level.

    The lowest contact of `model` in the last sample of a throw keeps its height. So heights count from the ground at the end of the throw.

    Args:
        tilts: rows (first, last, x, y). In the frame of the throws with a `throw_id` from first to last, the ground has the normal
            (x, y, 1). Throws in no row stay as they are. A file may lack some of the numbers.
    """
    lengths, ends = recordings.lengths, recordings.offsets[1:] - 1
    normal = torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64).repeat(len(recordings), 1)
    for first, last, *slope in tilts:
        some = (recordings.throw_id >= first) & (recordings.throw_id <= last)
        normal[some, :2] = torch.tensor(slope, dtype=torch.float64)
    # The rotation from one unit vector to another, [1 + a·b, a × b]: b is the vertical.
    x, y, up = unit(normal).unbind(-1)
    turn = quat.normalize(torch.stack((1 + up, y, -x, torch.zeros_like(up)), dim=-1))
    level = turned(recordings, turn.repeat_interleave(lengths, 0))
    with torch.no_grad():
        before, after = (model.call("distances", model.states(some.samples[ends], some)).amin(-1) for some in (recordings, level))
    level.bodies()[..., 2] += (before - after).repeat_interleave(lengths)[:, None]
    return level


def check_tilts(recordings: Recordings, tilts: Tilts, label: str) -> None:
    """Raise DataError for a row that has none of the throws; `label` begins the message."""
    numbers = recordings.throw_id
    for first, last, *_ in tilts:
        if not bool(((numbers >= first) & (numbers <= last)).any()):
            raise DataError(
                f"{label}: no throw has a number from {first:g} to {last:g}, a row of tilts; throws are numbered by "
                f"{recordings.numbered_by}, from {int(numbers.min())} to {int(numbers.max())}; correct the row, or leave it out"
            )
