"""Robot files of other people's packages: which of them load, run without a flag, have right gradients, and move as in MuJoCo.

Every file is measured in a process of its own, with a limit of time, so that a crash or a hang is a row and never ends the run.
"""

from __future__ import annotations

import json
import multiprocessing
import re
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from torchdojo.evaluation import corpus_worker
from torchdojo.evaluation.corpus_files import RobotFile, find_robots, unpack
from torchdojo.evaluation.corpus_motion import BOUND
from torchdojo.evaluation.experiment import Experiment, Measurement, Outcome, Setting, SkippedError

__all__ = ["EXPERIMENTS", "corpus"]

Row = dict[str, Any]

STAGES = ("mujoco", "load", "motion", "own_steps", "steps", "gradients")
UNFINISHED = "unfinished"
TIGHT, LOOSE = 1e-6, 1e-5  # relative errors of gradients


def corpus(setting: Setting) -> Outcome:
    """All robot files of `setting.packages`."""
    if setting.packages is None:
        raise SkippedError("no packages; give the folder with wheels or unzipped packages: --packages DIR")
    if setting.mujoco is None:
        raise SkippedError('the package mujoco is not installed: pip install "torchdojo[mjcf]"')
    with tempfile.TemporaryDirectory() as scratch:
        robots = find_robots(unpack(setting.packages, Path(scratch) / "packages"))[: setting.limit]
        if not robots:
            raise SkippedError(f"no robot files in {str(setting.packages)!r}")
        rows = list(_measured(robots, Path(scratch), setting))
    rows.sort(key=lambda row: str(row["file"]))
    counted = [row for row in rows if not left_out(row)]
    return Outcome(
        measurements=_measurements(counted),
        notes=[f"not counted, since no body moves or another file includes it: {row['file']}" for row in rows if left_out(row)],
        tables=[_packages(counted), *_reasons(counted)],
        records=rows,
    )


# -- the processes -------------------------------------------------------------------------------------------------------------------------


def _measured(robots: Sequence[RobotFile], folder: Path, setting: Setting) -> Iterator[Row]:
    """The row of each file, in the order in which they end."""
    # A server that has imported torch forks a process per file.
    method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
    context = multiprocessing.get_context(method)
    if method == "forkserver":
        context.set_forkserver_preload([corpus_worker.__name__])
    waiting, done = list(enumerate(robots)), 0
    running: list[tuple[Any, RobotFile, Path, float]] = []
    while waiting or running:
        while waiting and len(running) < setting.jobs:
            number, robot = waiting.pop(0)
            output = folder / f"{number}.json"
            process = context.Process(target=corpus_worker.measure, args=(robot.path, robot.kind, output))  # type: ignore[attr-defined]
            process.start()
            running.append((process, robot, output, time.monotonic()))
        time.sleep(0.02)
        for entry in list(running):
            process, robot, output, start = entry
            seconds = time.monotonic() - start
            if process.is_alive() and seconds <= setting.time_limit:
                continue
            late = process.is_alive()
            process.kill()
            process.join()
            running.remove(entry)
            done += 1
            row = _row(robot, output, "time limit" if late else process.exitcode, seconds)
            print(f"{done}/{len(robots)} {_line(row)}", file=sys.stderr, flush=True)
            yield row


def _row(robot: RobotFile, output: Path, ended: Any, seconds: float) -> Row:
    row: Row = json.loads(output.read_text()) if output.is_file() else {"mujoco": {"kind": UNFINISHED, "text": UNFINISHED}}
    head = {"file": robot.label, "package": robot.package, "format": robot.kind, "included": robot.included}
    if ended:
        reason = "time limit" if ended == "time limit" else f"crash, exit status {ended}"
        for stage in STAGES:
            if row.get(stage, {}).get("kind") == UNFINISHED:
                row[stage] = {"kind": reason, "text": f"{reason} after {seconds:.0f} s"}
    return {**head, **row, "ended": ended, "wall_s": seconds}


def _line(row: Row) -> str:
    parts = [f"{row['file']}:"]
    for stage in STAGES:
        if stage in row:
            parts.append(f"{stage} {row[stage]['kind'] if 'kind' in row[stage] else _number(stage, row[stage])}")
    return " ".join(parts)


def _number(stage: str, result: Row) -> str:
    if stage in ("motion", "gradients"):
        return f"{result['error']:.1e}"
    return f"flagged {result['flagged']}" if "flagged" in result else "ok"


# -- what counts ---------------------------------------------------------------------------------------------------------------------------


def finished(row: Row, stage: str) -> bool:
    return stage in row and "kind" not in row[stage]


def left_out(row: Row) -> bool:
    """Whether a file is no robot by itself: nothing in it moves, or it is a part of another file and MuJoCo refuses it alone."""
    if not finished(row, "mujoco"):
        return bool(row["included"])
    return bool(row["mujoco"]["nv"] == 0)


def taken(row: Row) -> bool:
    return finished(row, "mujoco")


def loaded(row: Row) -> bool:
    return taken(row) and finished(row, "load")


def moves_alike(row: Row) -> bool:
    return finished(row, "motion") and not row["motion"]["lost"] and row["motion"]["error"] <= BOUND


def not_flagged(row: Row) -> bool:
    return all(finished(row, stage) and row[stage]["flagged"] == 0 for stage in ("own_steps", "steps"))


def differentiable(bound: float) -> Callable[[Row], bool]:
    return lambda row: finished(row, "gradients") and row["gradients"]["error"] <= bound


def _format(name: str) -> Callable[[Row], bool]:
    return lambda row: loaded(row) and row["format"] == name


#: key -> (label, which rows count, which of these are right, bound [%])
SHARES: dict[str, tuple[str, Callable[[Row], bool], Callable[[Row], bool], float]] = {
    "loaded": ("load with default options, of the files that MuJoCo takes", taken, loaded, 96.0),
    "not_flagged": ("of these: 200 steps at 0.01 s and at their own without a flag", loaded, not_flagged, 97.0),
    "gradients_1e-6": ("gradients within 1e-6 of differences", loaded, differentiable(TIGHT), 97.0),
    "gradients_1e-5": ("gradients within 1e-5 of differences", loaded, differentiable(LOOSE), 99.5),
    "mjcf_motion": ("MJCF: contact-free motion within 1 % of MuJoCo's", _format("mjcf"), moves_alike, 95.0),
    "urdf_motion": ("URDF: contact-free motion within 1 % of MuJoCo's", _format("urdf"), moves_alike, 95.0),
}


def _measurements(rows: Sequence[Row]) -> list[Measurement]:
    measurements = [Measurement("files", "robot files", len(rows)), Measurement("taken", "MuJoCo takes", sum(map(taken, rows)))]
    for key, (label, counts, right, bound) in SHARES.items():
        every = [row for row in rows if counts(row)]
        if every:
            measurements.append(Measurement(f"{key}_percent", label, 100.0 * sum(map(right, every)) / len(every), "%", at_least=bound))
    ended = Counter("time limit" if row["ended"] == "time limit" else "crash" for row in rows if row["ended"])
    steps = [row[stage] for row in rows for stage in ("own_steps", "steps") if finished(row, stage)]
    measurements += [
        Measurement("crashes", "processes that crashed", ended["crash"], at_most=0),
        Measurement("time_limits", "processes beyond the time limit", ended["time limit"], at_most=0),
        Measurement("not_finite", "states that are not finite", sum(int(step["not_finite"]) for step in steps), at_most=0),
    ]
    times = {stage: [float(row[stage]["wall_s"]) for row in rows if finished(row, stage)] for stage in ("mujoco", "load")}
    if all(times.values()):
        for name, reduce in (("median", median), ("longest", max)):
            ours, theirs = reduce(times["load"]), reduce(times["mujoco"])
            measurements.append(Measurement(f"{name}_load_s", f"{name} time to load", ours, "s", mujoco=theirs))
        most = max(len(row["load"]["warnings"]) for row in rows if finished(row, "load"))
        measurements.append(Measurement("most_warnings", "most warnings of one file", most))
    return measurements


def _packages(rows: Sequence[Row]) -> list[list[str]]:
    """A line per package, and one for all."""
    table = [["package", "files", "MuJoCo takes", "load", "no flag", "gradients 1e-6", "1e-5", "motion, MJCF", "motion, URDF"]]
    for name in [*sorted({str(row["package"]) for row in rows}), ""]:
        some = [row for row in rows if name in ("", row["package"])]
        cells = [name or "all", str(len(some)), str(sum(map(taken, some)))]
        for _, counts, right, _ in SHARES.values():
            every = [row for row in some if counts(row)]
            good = sum(map(right, every))
            cells.append(f"{good} of {len(every)}, {100.0 * good / len(every):.0f} %" if every else "")
        table.append(cells)
    return table


# -- reasons -------------------------------------------------------------------------------------------------------------------------------


def _reasons(rows: Sequence[Row]) -> list[list[list[str]]]:
    """For each share a table of what is not right: reasons, most frequent first, and the files."""
    tables = []
    for key, (_, counts, right, _) in SHARES.items():
        if key == "gradients_1e-5":
            continue  # these are among those above 1e-6
        groups: dict[str, list[str]] = defaultdict(list)
        for row in rows:
            if counts(row) and not right(row):
                groups[_reason(key, row)].append(str(row["file"]))
        if groups:
            body = [[reason, str(len(files)), ", ".join(files)] for reason, files in sorted(groups.items(), key=lambda item: -len(item[1]))]
            tables.append([[f"not {key}: reason", "files", "which"], *body])
    return tables


def _reason(key: str, row: Row) -> str:
    stages = {"loaded": ("load",), "not_flagged": ("own_steps", "steps"), "gradients_1e-6": ("gradients",)}.get(key, ("motion",))
    for stage in stages:
        if not finished(row, stage):
            result = row.get(stage, {"kind": "not reached", "text": ""})
            return f"{result['kind']}: {pattern(result['text'])}"
    if key == "not_flagged":
        flags = [row[stage] for stage in stages if row[stage]["flagged"]]
        first = min(int(result["first_flagged"]) for result in flags)
        return f"flagged at {'one timestep' if len(flags) == 1 else 'both timesteps'}, {'from the start' if first == 0 else 'later'}"
    if key == "gradients_1e-6":
        return "error above 1e-5" if row["gradients"]["error"] > LOOSE else "error above 1e-6"
    return str(row["motion"]["reason"])


def pattern(text: str) -> str:
    """The message without the file, names and numbers, so that equal reasons are equal."""
    text = re.sub(r"^\S+\.(xml|urdf|mjcf):\s*", "", " ".join(text.split()))
    text = re.sub(r"'[^']*'|\"[^\"]*\"|\[[^\]]*\]|\([^)]*\)", "…", text)
    text = re.sub(r"\S*/\S*", "…", text)
    text = re.sub(r"-?\d+(\.\d+)?(e[-+]?\d+)?", "#", text)
    return re.sub(r"(…[, ]*)+", "… ", text)[:160].strip()


EXPERIMENTS = (Experiment("corpus", "Robot files of packages: load, steps, gradients, motion beside MuJoCo", corpus),)
