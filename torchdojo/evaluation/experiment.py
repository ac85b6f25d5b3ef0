"""An experiment is a function that measures, and returns numbers, bounds, curves and arrays.

A topic (`physics`, ...) is a table of experiments; `torchdojo.commands.evaluate` runs a topic, prints it, and writes its outcomes.
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

__all__ = [
    "Experiment", "Line", "Measurement", "Outcome", "Plot", "Setting", "SkippedError", "count_flagged", "flagged_steps", "import_mujoco",
    "rivals_by_field", "slug", "smallest_distance",
]  # fmt: skip


class SkippedError(Exception):
    """The experiment lacks a file or a package; the message names it and says how to get it."""


@dataclass(frozen=True)
class Setting:
    """Settings that all experiments share.

    Attributes:
        quick: whether to run a shorter version, for continuous integration.
        long: whether to run the long version of an experiment that has one.
        mujoco: the package to compare with; None if it is not installed.
        models: folder with the robot files of the project's shared data; None if there is none.
        output: folder for what a later run of the command can go on with; None: nothing is kept.
        configs, seeds, algorithms: of learning: folder with descriptions of runs, number of seeds, names of algorithms.
        packages, limit, jobs, time_limit: of the corpus: folder with packages, number of files (None: all), processes at a time, and
            the longest time of a file [s].
    """

    quick: bool = False
    mujoco: ModuleType | None = None
    models: Path | None = None
    output: Path | None = None
    configs: Path = Path("configs")
    seeds: int = 3
    algorithms: tuple[str, ...] = ("shac", "ppo", "ars", "ags")
    packages: Path | None = None
    limit: int | None = None
    jobs: int = 2
    time_limit: float = 300.0
    long: bool = False

    @classmethod
    def find(cls, *, quick: bool = False, models: Path | None = None) -> Setting:
        """Find MuJoCo, and the robot files in `models`, else in $TORCHDOJO_SHARED/models, else in ../shared/models."""
        folder = models or Path(os.environ.get("TORCHDOJO_SHARED") or "../shared") / "models"
        return cls(quick, import_mujoco(), folder.resolve() if folder.is_dir() else None)

    def robot(self, *parts: str) -> Path:
        """Path of a robot file, for instance `robot("atlas", "atlas.urdf")`.

        Raises:
            SkippedError: the file does not exist.
        """
        if self.models is None or not self.models.joinpath(*parts).is_file():
            raise SkippedError(f"no robot file {'/'.join(parts)}; give the folder that holds it: --models DIR, or $TORCHDOJO_SHARED")
        return self.models.joinpath(*parts)


@dataclass(frozen=True)
class Measurement:
    """One number.

    Attributes:
        key: name in the report; ends with the unit ("drift_m"), or says what is counted ("flagged_steps").
        label: name in the table.
        value: measured value, in `unit`.
        at_most, at_least: inclusive bounds on the value.
        published: values that papers report, in words.
        mujoco: value of MuJoCo in the same unit, from the same run. Several of its methods give a mapping; a simulation that diverges
            gives NaN.
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
        return low <= self.value <= high  # NaN does not pass

    @property
    def bound(self) -> str:
        """The bounds in words; empty if there are none."""
        parts = [f"{sign} {bound:g}" for sign, bound in (("≥", self.at_least), ("≤", self.at_most)) if bound is not None]
        return ", ".join(parts)


class Line(NamedTuple):
    """One curve: x, y (n,). low, high: (n,), edges of a band about it, such as quartiles; None: no band."""

    x: Any
    y: Any
    low: Any = None
    high: Any = None


@dataclass(frozen=True)
class Plot:
    """Curves by label on one pair of axes. `name` is the stem of the file; `log` lists the logarithmic axes: "", "x", "y" or "xy"."""

    name: str
    title: str
    x_label: str
    y_label: str
    lines: Mapping[str, Line]
    log: str = ""


@dataclass(frozen=True)
class Outcome:
    """Results of an experiment: `arrays` are saved beside the curves of `plots`, and `notes` are single lines for the reader.

    tables: printed in Markdown, for a README: each a sequence of rows of cells, the heading first.
    records: what was measured case by case; it goes into the report as it is.
    """

    measurements: Sequence[Measurement]
    plots: Sequence[Plot] = ()
    arrays: Mapping[str, Any] = field(default_factory=dict)
    notes: Sequence[str] = ()
    tables: Sequence[Sequence[Sequence[str]]] = ()
    records: Sequence[Mapping[str, Any]] = ()

    def all_arrays(self) -> dict[str, np.ndarray]:
        """`arrays` and the curves, by names that are valid in an .npz file."""
        arrays = {name: np.asarray(value) for name, value in self.arrays.items()}
        for plot in self.plots:
            for label, line in plot.lines.items():
                stem = f"{plot.name}/{label.replace('/', ' per ')}"
                arrays |= {f"{stem}/{name}": np.asarray(value) for name, value in line._asdict().items() if value is not None}
        return arrays


class Experiment(NamedTuple):
    """An experiment: `name` for `--only`, a `title`, and `run(setting)`, which returns an Outcome or raises SkippedError."""

    name: str
    title: str
    run: Callable[[Setting], Outcome]


def count_flagged(status: Any) -> int:
    """Number of steps without success in a tensor of statuses."""
    return int((status != int(Status.SUCCESS)).sum())


def flagged_steps(*statuses: Any, name: str = "") -> Measurement:
    """Number of steps without success, of which none is allowed. The `name` of a case starts the key."""
    return Measurement(_key(name, "flagged_steps"), "flagged steps", sum(map(count_flagged, statuses)), at_most=0)


def smallest_distance(distances: Any, name: str = "") -> Measurement:
    """Smallest of all distances [m], which must not be negative. The `name` of a case starts the key."""
    return Measurement(_key(name, "smallest_distance_m"), "smallest distance", float(distances.min()), "m", at_least=0.0)


def _key(name: str, quantity: str) -> str:
    return f"{name}_{quantity}" if name else quantity


def slug(text: str) -> str:
    """Part of a key for a formatted number: "kappa_1e-06" becomes "kappa_1e-6", and "e_0.3" becomes "e_0_3"."""
    return text.replace("e-0", "e-").replace(".", "_")


def rivals_by_field(kind: Any, rivals: Mapping[str, Any]) -> dict[str, dict[str, float] | None]:
    """Values of MuJoCo's methods for each field of the NamedTuple `kind`: field -> method -> value; field -> None without MuJoCo."""
    return {field: {method: getattr(values, field) for method, values in rivals.items()} or None for field in kind._fields}


def import_mujoco() -> ModuleType | None:
    """The `mujoco` package; None if it is not installed."""
    try:
        import mujoco
    except ImportError:
        return None
    module: ModuleType = mujoco
    return module
