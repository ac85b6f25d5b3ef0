"""What an experiment is: a function that measures, and the numbers, bounds, curves and arrays that it returns.

A topic (`physics`, ...) is a table of experiments; `torchdojo.commands.evaluate` runs one, prints it, and writes what it found.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from torchdojo.solver.options import Status

__all__ = ["Experiment", "Line", "Measurement", "Outcome", "Plot", "Setting", "SkippedError", "count_flagged", "import_mujoco"]


class SkippedError(Exception):
    """What an experiment needs is not there; the message says what and how to get it."""


@dataclass(frozen=True)
class Setting:
    """How to run.

    Attributes:
        quick: a shorter version, for continuous integration. mujoco: the package to compare with, None where it is not installed.
        models: folder with the robot files of the project's shared data, None where there is none.
    """

    quick: bool = False
    mujoco: ModuleType | None = None
    models: Path | None = None

    @classmethod
    def find(cls, *, quick: bool = False, models: Path | None = None) -> Setting:
        """MuJoCo where it is installed; robot files in `models`, else in $TORCHDOJO_SHARED/models, else in ../shared/models."""
        folder = models or Path(os.environ.get("TORCHDOJO_SHARED") or "../shared") / "models"
        return cls(quick, import_mujoco(), folder.resolve() if folder.is_dir() else None)

    def robot(self, *parts: str) -> Path:
        """A robot file, `robot("atlas", "atlas.urdf")`.

        Raises:
            SkippedError: it is not there.
        """
        if self.models is None or not self.models.joinpath(*parts).is_file():
            raise SkippedError(f"no robot file {'/'.join(parts)}; give the folder that holds it: --models DIR, or $TORCHDOJO_SHARED")
        return self.models.joinpath(*parts)


@dataclass(frozen=True)
class Measurement:
    """One number.

    Attributes:
        key: name in the report; ends with the unit ("drift_m"), or says what is counted ("flagged_steps"). label: in the table.
        value: as measured, in `unit`. at_most, at_least: the bounds it must keep, inclusive.
        published: what papers or earlier measurements report, in words.
        mujoco: MuJoCo's value in the same unit, from the same run;
            a mapping, where several of its methods are compared; not a number where its simulation diverges.
    """

    key: str
    label: str
    value: float
    unit: str = ""
    at_most: float | None = None
    at_least: float | None = None
    published: str = ""
    mujoco: float | Mapping[str, float] | None = None

    @property
    def passed(self) -> bool:
        low = -math.inf if self.at_least is None else self.at_least
        high = math.inf if self.at_most is None else self.at_most
        return low <= self.value <= high  # not for NaN

    @property
    def bound(self) -> str:
        """In words, empty where there is none."""
        parts = [f"{sign} {limit:g}" for sign, limit in (("≥", self.at_least), ("≤", self.at_most)) if limit is not None]
        return ", ".join(parts)


class Line(NamedTuple):
    """One curve: x, y (n,)."""

    x: Any
    y: Any


@dataclass(frozen=True)
class Plot:
    """Curves by label, against one pair of axes. name: of the file. log: which axes are logarithmic, "", "x", "y" or "xy"."""

    name: str
    title: str
    x_label: str
    y_label: str
    lines: Mapping[str, Line]
    log: str = ""


@dataclass(frozen=True)
class Outcome:
    """What an experiment found. arrays: to be saved beside the curves of `plots`. notes: for the reader, one line each."""

    measurements: Sequence[Measurement]
    plots: Sequence[Plot] = ()
    arrays: Mapping[str, Any] = field(default_factory=dict)
    notes: Sequence[str] = ()

    def all_arrays(self) -> dict[str, np.ndarray]:
        """`arrays` and the curves, by names that can stand in an .npz file."""
        found = {name: np.asarray(value) for name, value in self.arrays.items()}
        for plot in self.plots:
            for label, line in plot.lines.items():
                stem = f"{plot.name}/{label.replace('/', ' per ')}"
                found[f"{stem}/x"], found[f"{stem}/y"] = np.asarray(line.x), np.asarray(line.y)
        return found


class Experiment(NamedTuple):
    """name: for `--only`. title: what it shows. run(setting) -> Outcome; raises SkippedError where it lacks something."""

    name: str
    title: str
    run: Callable[[Setting], Outcome]


def count_flagged(status: Any) -> int:
    """Number of steps that did not succeed, of a tensor of statuses."""
    return int((status != int(Status.SUCCESS)).sum())


def import_mujoco() -> ModuleType | None:
    """The `mujoco` package, None where it is not installed."""
    try:
        import mujoco
    except ImportError:
        return None
    module: ModuleType = mujoco
    return module
