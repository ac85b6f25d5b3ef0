"""`torchdojo evaluate`: run the experiments of a topic, and print what they measure beside bounds, published figures and MuJoCo's."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from torchdojo.commands.common import CommandError, add_output, finite, positive, user_input, whole, write_report
from torchdojo.evaluation import plots
from torchdojo.evaluation.corpus import EXPERIMENTS as CORPUS
from torchdojo.evaluation.experiment import Experiment, Measurement, Outcome, Setting, SkippedError
from torchdojo.evaluation.gradients import EXPERIMENTS as GRADIENTS
from torchdojo.evaluation.learning import EXPERIMENTS as LEARNING
from torchdojo.evaluation.learning import check
from torchdojo.evaluation.near_scenes import EXPERIMENTS as COLLISIONS
from torchdojo.evaluation.physics import EXPERIMENTS as PHYSICS
from torchdojo.evaluation.planning import EXPERIMENTS as PLANNING

__all__ = ["TOPICS", "add_arguments", "run"]

TOPICS: dict[str, Sequence[Experiment]] = {
    "physics": PHYSICS, "gradients": GRADIENTS, "learning": LEARNING, "planning": PLANNING, "corpus": CORPUS, "collisions": COLLISIONS,
}  # fmt: skip

#: topic -> arguments of this topic alone
OWN = {"learning": ("configs", "seeds", "algorithms"), "corpus": ("packages", "limit", "jobs", "time_limit"), "collisions": ("long",)}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `torchdojo evaluate`."""
    parser.description = (
        "Run the experiments of a topic: what they measure beside bounds, published figures and MuJoCo's (where installed). "
        "Exit status 1 where a bound is missed."
    )
    parser.add_argument("topic", metavar="TOPIC", help=" or ".join(TOPICS))
    parser.add_argument("--quick", action="store_true", help="shorter versions, together under a minute")
    parser.add_argument(
        "--only",
        "--envs",
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME",
        help="only these experiments; those of learning are environments",
    )
    parser.add_argument(
        "--models", type=Path, metavar="DIR", help="folder with robot files (default: $TORCHDOJO_SHARED/models, else ../shared/models)"
    )
    parser.add_argument("--long", action="store_true", default=None, help="long versions of collisions: 20 stones, 5 to 60 s of motion")
    learning = parser.add_argument_group("learning", "Runs in the folder --output that are there are read, and killed ones go on.")
    learning.add_argument("--configs", type=Path, metavar="DIR", help="folder with descriptions of runs (default: configs)")
    learning.add_argument("--seeds", type=whole, metavar="N", help="of each algorithm (default: 3)")
    learning.add_argument("--algorithms", type=_names, metavar="NAME,...", help="(default: shac,ppo,ars,ags)")
    corpus = parser.add_argument_group(
        "corpus", "Robot files of other packages, without downloads. The exit status is 0 even where bounds are missed."
    )
    corpus.add_argument("--packages", type=Path, metavar="DIR", help="folder with wheels (*.whl) or unzipped packages")
    corpus.add_argument("--limit", type=whole, metavar="N", help="the first N files only")
    corpus.add_argument("--jobs", type=whole, metavar="N", help="processes at a time (default: 2)")
    corpus.add_argument("--time-limit", type=positive, metavar="SECONDS", help="of each file (default: 300)")
    add_output(parser)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Run the experiments; returns the report, whose "passed" is False where a bound is missed.

    The folder `options.output` receives report.json, NAME.npz and NAME_PLOT.png.

    Raises:
        CommandError: unknown names, a folder that cannot be written, bad descriptions of runs.
    """
    chosen, output = _choose(options.topic, [name for text in options.only for name in _names(text)]), options.output
    topic_options: dict[str, Any] = {}
    for topic, names in OWN.items():
        some = {name: value for name in names if (value := getattr(options, name)) is not None}
        if some and topic != options.topic:
            flags = ", ".join(f"--{name.replace('_', '-')}" for name in some)
            raise CommandError(f"{flags}: of the topic {topic} alone; leave it out")
        topic_options |= some
    with user_input():
        if options.models is not None and not options.models.is_dir():
            raise CommandError(f"--models: no folder {str(options.models)!r}")
        setting = replace(Setting.find(quick=options.quick, models=options.models), output=output, **topic_options)
        if options.topic == "learning":
            check(setting, [experiment.name for experiment in chosen])
        if options.topic == "corpus" and (setting.packages is None or not setting.packages.is_dir()):
            raise CommandError(f"--packages: got {str(setting.packages)!r}; allowed: a folder with wheels (*.whl) or unzipped packages")
        if output is not None:
            output.mkdir(parents=True, exist_ok=True)
    drawing = output is not None and plots.available()
    if output is not None and not drawing:
        print('note: matplotlib is not installed, so curves are saved as arrays only: pip install "torchdojo[plots]"')
    start = time.perf_counter()
    reports = {experiment.name: _run_one(experiment, setting, output, drawing) for experiment in chosen}
    failed = [f"{name}: {key}" for name, report in reports.items() for key in report["failed"]]
    report = {
        "topic": options.topic,
        "quick": options.quick,
        "passed": not failed or options.topic == "corpus",  # its bounds are of a large collection, and the user's may be any
        "failed": failed,
        "skipped": [name for name, report in reports.items() if report["skipped"]],
        "mujoco_version": None if setting.mujoco is None else setting.mujoco.__version__,
        "wall_s": time.perf_counter() - start,
        "experiments": reports,
    }
    verdict = f"MISSED {'; '.join(failed)}" if failed else "all bounds kept"
    print(f"\n{len(chosen)} experiments in {report['wall_s']:.1f} s: {verdict}")
    write_report(report, output)
    return report


def _names(text: str) -> tuple[str, ...]:
    """Names between commas."""
    return tuple(name for name in text.split(",") if name)


def _choose(topic: str, only: Sequence[str]) -> list[Experiment]:
    if topic not in TOPICS:
        raise CommandError(f"no topic {topic!r}; there are: {', '.join(TOPICS)}")
    names = [experiment.name for experiment in TOPICS[topic]]
    unknown = [name for name in only if name not in names]
    if unknown:
        raise CommandError(f"no experiment {', '.join(map(repr, unknown))} in {topic!r}; there are: {', '.join(names)}")
    return [experiment for experiment in TOPICS[topic] if not only or experiment.name in only]


def _run_one(experiment: Experiment, setting: Setting, output: Path | None, drawing: bool) -> dict[str, Any]:
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
    for rows in outcome.tables:
        _print_markdown(rows)
    if output is not None:
        np.savez_compressed(output / f"{experiment.name}.npz", **outcome.all_arrays())  # type: ignore[arg-type]
        for plot in outcome.plots if drawing else ():
            plots.save(plot, output / f"{experiment.name}_{plot.name}.png")
    return {**_summary(outcome), "wall_s": wall}


def _summary(outcome: Outcome) -> dict[str, Any]:
    table: dict[str, dict[str, Any]] = {"measured": {}, "at_most": {}, "at_least": {}, "published": {}, "mujoco": {}}
    for m in outcome.measurements:
        columns = {"measured": m.value, "at_most": m.at_most, "at_least": m.at_least, "published": m.published or None, "mujoco": m.mujoco}
        for column, value in columns.items():
            if value is not None:
                table[column][m.key] = finite(value)
    return {
        "skipped": None,
        "failed": [m.key for m in outcome.measurements if not m.passed],
        **table,
        "notes": list(outcome.notes),
        "tables": outcome.tables,
        **({"records": finite(list(outcome.records))} if outcome.records else {}),
    }


def _print_measurements(measurements: Sequence[Measurement], setting: Setting) -> None:
    absent = "not installed" if setting.mujoco is None else ""
    rows = [("", "measured", "bound", "published", "MuJoCo, this run" if setting.mujoco is None or _any_mujoco(measurements) else "")]
    for m in measurements:
        mark = "" if m.passed else "  MISSED"
        rows.append((m.label, f"{_number(m.value)} {m.unit}".strip() + mark, m.bound, m.published, _theirs(m) or absent))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        print("  " + "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())


def _print_markdown(rows: Sequence[Sequence[str]]) -> None:
    print()
    for i, row in enumerate(rows):
        print(f"| {' | '.join(row)} |")
        if i == 0:
            print("|" + "---|" * len(row))


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
