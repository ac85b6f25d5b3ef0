"""Curves of learning from metrics.csv: values after some samples, samples to a threshold, medians over seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from torchdojo.evaluation.experiment import Line
from torchdojo.runs.metrics import number, read_rows

__all__ = ["Curve", "Spread", "band", "crossing", "read_curve", "value_at"]

Array = NDArray[np.float64]
MEASURED = "eval_"  # start of the columns of deterministic evaluations
POINTS = 101  # of a common grid
QUARTILES = (0.25, 0.5, 0.75)


class Curve(NamedTuple):
    """Deterministic evaluations of one run, in the order of training.

    samples: (n,) control steps of all environments. cpu_seconds: (n,). measures: name -> (n,), for instance "return", "speed" [m/s].
    """

    samples: Array
    cpu_seconds: Array
    measures: dict[str, Array]


def read_curve(path: Path) -> Curve:
    """The rows of a metrics.csv that have an evaluation; a file that does not exist has none.

    Raises:
        ValueError: a damaged file.
    """
    rows = [row for row in read_rows(path) if any(row[name] for name in row if name.startswith(MEASURED))]
    names = [name for name in (rows[0] if rows else ()) if name.startswith(MEASURED)]

    def column(name: str) -> Array:
        return np.array([number(row, name, path, math.nan if name.startswith(MEASURED) else None) for row in rows])

    return Curve(column("samples"), column("cpu_seconds"), {name.removeprefix(MEASURED): column(name) for name in names})


def value_at(x: Array, y: Array, place: float) -> float:
    """y at `place`, on straight lines between evaluations; NaN outside of them."""
    return float(np.interp(place, x, y, left=math.nan, right=math.nan)) if len(x) else math.nan


def crossing(x: Array, y: Array, threshold: float) -> float:
    """The first x at which y reaches a threshold, on straight lines between evaluations; infinite where y never does."""
    reached = np.flatnonzero(y >= threshold)
    if not len(reached):
        return math.inf
    i = int(reached[0])
    if i == 0 or not math.isfinite(y[i - 1]):
        return float(x[i])
    return float(x[i - 1] + (threshold - y[i - 1]) / (y[i] - y[i - 1]) * (x[i] - x[i - 1]))


def band(curves: Sequence[tuple[Array, Array]]) -> Line | None:
    """Median and quartiles of curves (x, y) on a common grid, which lies where all of them have evaluations.

    None where no curve has an evaluation. Curves that share no x give one point, at the last of the first evaluations.
    """
    curves = [(x, y) for x, y in curves if len(x)]
    if not curves:
        return None
    first = max(float(x[0]) for x, _ in curves)
    last = max(first, min(float(x[-1]) for x, _ in curves))
    grid = np.linspace(first, last, POINTS if last > first else 1)
    low, median, high = np.quantile(np.stack([np.interp(grid, x, y) for x, y in curves]), QUARTILES, axis=0)
    return Line(grid, median, low, high)


class Spread(NamedTuple):
    """Median and worst of one number over seeds."""

    median: float
    worst: float

    @classmethod
    def of(cls, values: Sequence[float], *, large_is_bad: bool = False) -> Spread:
        """Infinite values stand for never; a NaN makes both NaN."""
        numbers = np.asarray(values if len(values) else [math.nan], dtype=float)
        return cls(float(np.median(numbers)), float(numbers.max() if large_is_bad else numbers.min()))

    def words(self, format_spec: str) -> str:
        """ "median (worst)", with "never" for infinite values and "–" for NaN."""
        return f"{_word(self.median, format_spec)} ({_word(self.worst, format_spec)})"


def _word(value: float, format_spec: str) -> str:
    return "–" if math.isnan(value) else "never" if math.isinf(value) else format(value, format_spec)
