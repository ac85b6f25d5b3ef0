"""`torchdojo evaluate`: run the experiments of a topic, and print what they measure beside bounds, published figures and MuJoCo's."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from torchdojo.commands.common import CommandError, finite, user_input, write_report
from torchdojo.evaluation import plots
from torchdojo.evaluation.experiment import Experiment, Measurement, Outcome, Setting, SkippedError
from torchdojo.evaluation.gradients import EXPERIMENTS as GRADIENTS
from torchdojo.evaluation.physics import EXPERIMENTS as PHYSICS

__all__ = ["TOPICS", "evaluate"]

TOPICS: dict[str, Sequence[Experiment]] = {"physics": PHYSICS, "gradients": GRADIENTS}


def evaluate(
    topic: str, *, only: Sequence[str] = (), quick: bool = False, models: Path | None = None, output: Path | None = None
) -> dict[str, Any]:
    """Run the command; returns the report, whose "passed" is False where a bound is missed.

    Args:
        topic: one of `TOPICS`. only: names of experiments, default all. quick: shorter versions.
        models: folder with robot files, see `Setting.find`. output: folder for report.json, NAME.npz and NAME_PLOT.png.

    Raises:
        CommandError: unknown names, a folder that cannot be written.
    """
    chosen = _choose(topic, only)
    with user_input():
        if models is not None and not models.is_dir():
            raise CommandError(f"--models: no folder {str(models)!r}")
        setting = Setting.find(quick=quick, models=models)
        if output is not None:
            output.mkdir(parents=True, exist_ok=True)
    drawing = output is not None and plots.available()
    if output is not None and not drawing:
        print('note: matplotlib is not installed, so curves are saved as arrays only: pip install "torchdojo[plots]"')
    start, reports = time.perf_counter(), {}
    for experiment in chosen:
        reports[experiment.name] = _run(experiment, setting, output, drawing)
    failed = [f"{name}: {key}" for name, report in reports.items() for key in report["failed"]]
    report = {
        "topic": topic,
        "quick": quick,
        "passed": not failed,
        "failed": failed,
        "skipped": [name for name, report in reports.items() if report["skipped"]],
        "mujoco_version": None if setting.mujoco is None else setting.mujoco.__version__,
        "wall_s": time.perf_counter() - start,
        "experiments": reports,
    }
    print(
        f"\n{len(chosen)} experiments in {report['wall_s']:.1f} s: " + ("all bounds kept" if not failed else f"MISSED {'; '.join(failed)}")
    )
    write_report(report, output)
    return report


def _choose(topic: str, only: Sequence[str]) -> list[Experiment]:
    if topic not in TOPICS:
        raise CommandError(f"no topic {topic!r}; there are: {', '.join(TOPICS)}")
    names = [experiment.name for experiment in TOPICS[topic]]
    unknown = [name for name in only if name not in names]
    if unknown:
        raise CommandError(f"no experiment {', '.join(map(repr, unknown))} in {topic!r}; there are: {', '.join(names)}")
    return [experiment for experiment in TOPICS[topic] if not only or experiment.name in only]


def _run(experiment: Experiment, setting: Setting, output: Path | None, drawing: bool) -> dict[str, Any]:
    print(f"\n{experiment.name}: {experiment.title}")
    start = time.perf_counter()
    try:
        with torch.no_grad():
            outcome = experiment.run(setting)
    except SkippedError as reason:
        print(f"  skipped: {reason}")
        return {"skipped": str(reason), "failed": [], "wall_s": time.perf_counter() - start}
    wall = time.perf_counter() - start
    _print_measurements(outcome.measurements, setting)
    for note in outcome.notes:
        print(f"  note: {note}")
    if output is not None:
        np.savez_compressed(output / f"{experiment.name}.npz", **outcome.all_arrays())  # type: ignore[arg-type]
        for plot in outcome.plots if drawing else ():
            plots.save(plot, output / f"{experiment.name}_{plot.name}.png")
    return {**_summary(outcome), "wall_s": wall}


def _summary(outcome: Outcome) -> dict[str, Any]:
    found: dict[str, dict[str, Any]] = {"measured": {}, "at_most": {}, "at_least": {}, "published": {}, "mujoco": {}}
    for m in outcome.measurements:
        columns = {"measured": m.value, "at_most": m.at_most, "at_least": m.at_least, "published": m.published or None, "mujoco": m.mujoco}
        for column, value in columns.items():
            if value is not None:
                found[column][m.key] = finite(value)
    return {"skipped": None, "failed": [m.key for m in outcome.measurements if not m.passed], **found, "notes": list(outcome.notes)}


def _print_measurements(measurements: Sequence[Measurement], setting: Setting) -> None:
    absent = "not installed" if setting.mujoco is None else ""
    rows = [("", "measured", "bound", "published", "MuJoCo, this run" if setting.mujoco is None or _any_mujoco(measurements) else "")]
    for m in measurements:
        mark = "" if m.passed else "  MISSED"
        rows.append((m.label, f"{_number(m.value)} {m.unit}".strip() + mark, m.bound, m.published, _theirs(m) or absent))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        print("  " + "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())


def _any_mujoco(measurements: Sequence[Measurement]) -> bool:
    return any(m.mujoco is not None for m in measurements)


def _theirs(m: Measurement) -> str:
    if m.mujoco is None:
        return ""
    named = m.mujoco if isinstance(m.mujoco, Mapping) else {"": m.mujoco}
    return ", ".join(
        f"{name} {_number(value)} {m.unit}".strip() if math.isfinite(value) else f"{name} fails" for name, value in named.items()
    )


def _number(value: float) -> str:
    return f"{value:d}" if isinstance(value, int) else f"{value:.3g}"
