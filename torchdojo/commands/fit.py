"""`torchdojo fit`: an object from recordings, by a description (configs/identify_*.yaml), in a folder from which a killed run goes on."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchdojo.commands.common import PARAMETERS, CommandError, add_output, finite, print_table, user_input, whole, write_report
from torchdojo.commands.drawing import BESIDE, Page, add_page, write_drawing
from torchdojo.commands.replay import UNITS, toss
from torchdojo.identification import fitting, plots
from torchdojo.identification.config import read_config
from torchdojo.identification.cross_validation import CrossValidation, Spread, cross_validate, fold_configs
from torchdojo.identification.description import FitConfig, Stage, plain
from torchdojo.identification.fitting import FitReport, Start
from torchdojo.identification.gauss_newton import Fit
from torchdojo.identification.run_folder import RUN, begin_run
from torchdojo.runs import locked, write_atomically
from torchdojo.runs.description import assign, load_yaml

__all__ = ["add_arguments", "fit", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Fit parameters of an object to recorded trajectories, stage by stage as a YAML file describes it. "
        "A run that was killed goes on with --resume, to the same parameters, bit for bit."
    )
    parser.add_argument("config", type=Path, metavar="CONFIG", help="description (.yaml), such as configs/identify_cube.yaml")
    parser.add_argument("--data", type=Path, required=True, metavar="FILE", help="recordings (.npz)")
    parser.add_argument(
        "--folds",
        type=whole,
        metavar="K",
        help="cross-validation: fit K times, each time with another K-th of the throws held back, and report errors on these",
    )
    parser.add_argument("--resume", action="store_true", help="go on with the run in the output folder")
    parser.add_argument(
        "--set",
        dest="changes",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="replace a value of the description, e.g. seed=3 or stages.0.horizon=10 (stages count from 0); repeatable",
    )
    add_page(parser)
    add_output(parser, required=True)


def run(options: argparse.Namespace) -> dict[str, Any]:
    names = ("data", "output", "resume", "changes", "folds")
    return fit(options.config, page=Page.of(options), **{name: getattr(options, name) for name in names})


def fit(
    config: Path,
    *,
    data: Path,
    output: Path,
    resume: bool = False,
    changes: Sequence[str] = (),
    folds: int | None = None,
    page: Page = BESIDE,
) -> dict[str, Any]:
    """Fit a description; returns the report.

    Args:
        config: a YAML file with the keys of `FitConfig`. data: file of recordings.
        output: folder for checkpoints (stage_N/), parameters.json, report.json, open_loop.npz, figures (.png), and trajectory.npz with
            one throw of those held back, for drawing.
        changes: KEY=VALUE, of the description.
        folds: number of fits of a cross-validation. The folder then has a report.json, and all of the above for each fit in fold_N/.
        page: the page of trajectory.npz.

    Raises:
        CommandError: bad input, a folder that holds another run, an extra that is not installed.
    """
    with user_input():
        from torchdojo.identification.lightning import LightningRunner  # noqa: F401 (the extra may not be installed)

        values = load_yaml(config)
        for change in changes:
            assign(values, change)
        description = read_config({**values, "data": str(data)})
        # A fit that cannot run is refused before it has a folder.
        if folds is None:
            fitting.prepare(description)
        else:
            fold_configs(description, folds)
    if folds is None:
        return _fit_once(description, config, output, resume, page)[1]
    if page.html is not None:
        raise CommandError("--html FILE is for one fit; with --folds each fold_N/ has a trajectory.html of its own")
    return _fit_folds(description, config, output, resume, folds, page)


def _fit_folds(description: FitConfig, config: Path, output: Path, resume: bool, folds: int, page: Page) -> dict[str, Any]:
    """Fits of all folds, each in a folder of its own: the report of all."""
    start = time.perf_counter()

    def run_fold(number: int, fold: FitConfig) -> FitReport:
        print(f"fold {number} of {folds}")
        folder = output / f"fold_{number}"
        return _fit_once(fold, config, folder, resume and (folder / RUN).exists(), page)[0]

    with _own_folder(output, {**_identity(description), "folds": folds}, Path(description.data), resume):
        validated = cross_validate(description, folds, run_fold)
    report = {
        "config": str(config),
        "data": description.data,
        "object": description.object,
        "folds": folds,
        "errors": {model: {name: _spread(e) for name, e in errors.items()} for model, errors in validated.errors.items()},
        "parameters": {name: _spread(value) for name, value in validated.values.items()},
        "wall_time_s": time.perf_counter() - start,
    }
    _print_folds(validated)
    write_report(finite(report), output)
    return finite(report)


@contextmanager
def _own_folder(output: Path, identity: dict[str, Any], data: Path, resume: bool) -> Iterator[None]:
    """The folder of a run, begun or taken up again, which no other process writes to meanwhile."""
    with ExitStack() as stack:
        with user_input():
            begin_run(output, identity, data, resume)
            stack.enter_context(locked(output))
        yield


def _fit_once(description: FitConfig, config: Path, output: Path, resume: bool, page: Page) -> tuple[FitReport, dict[str, Any]]:
    """One fit in a folder of its own: the result, and its report."""
    with _own_folder(output, _identity(description), Path(description.data), resume):
        return _fit_in(output, description, config, page)


def _fit_in(output: Path, description: FitConfig, config: Path, page: Page) -> tuple[FitReport, dict[str, Any]]:
    """A fit, or the rest of it, in a folder that nobody else writes to."""
    from torchdojo.identification.lightning import LightningRunner

    start = time.perf_counter()
    with user_input():
        runner = LightningRunner(output, description.seed, len(description.stages))

        def run_stage(number: int, stage: Stage, *arguments: Any) -> Fit:
            fit = runner(number, stage, *arguments)
            _print_stage(f"stage {number}" + (f", start {arguments[-1]}" if stage.starts > 1 else ""), _stage(fit))
            return fit

        result = fitting.fit(description, run=run_stage)
    stages = [
        {**_stage(fit), "starts": [_start(start, fit) for start in starts]} for fit, starts in zip(result.fits, result.starts, strict=True)
    ]
    for number, stage in enumerate(stages, start=1):
        _print_starts(number, stage["starts"])
    report = {
        "config": str(config),
        "data": description.data,
        "object": description.object,
        "trajectories": {part: len(recordings) for part, recordings in result.recordings.items()},
        "stages": stages,
        "parameters": result.values,
        **result.errors,
        "wall_time_s": time.perf_counter() - start,
    }
    _print_errors(report, list(result.errors))
    _write(result, output)
    _draw(result, output, page)
    write_report(finite(report), output)
    return result, finite(report)


def _identity(description: FitConfig) -> dict[str, Any]:
    """Description of a run without the place of its data, whose contents count."""
    return {key: value for key, value in plain(description).items() if key != "data"}


def _stage(fit: Fit) -> dict[str, Any]:
    return {
        "parameters": {
            name: {
                "value": value.tolist(),
                "standard_error": fit.std[name].tolist(),
                "standard_error_by_throw": fit.std_by_throw[name].tolist(),
            }
            for name, value in fit.values.items()
        },
        "iterations": fit.iterations,
        "history": fit.history,
        "converged": fit.converged,
        "reason": fit.reason,
        "seconds": fit.seconds,
        "singular_values": fit.identifiability.singular_values.tolist(),
        "not_identifiable": [label for label, seen in fit.identifiability.identifiable.items() if not seen],
        "unseen_combinations": fit.identifiability.unseen(list(fit.identifiability.identifiable)),
    }


def _start(start: Start, chosen: Fit) -> dict[str, Any]:
    values = {name: value.tolist() for name, value in start.fit.values.items()} if start.fit else {}
    return {"cost": start.cost, "reached": start.reached, "parameters": values, "reason": start.reason, "chosen": start.fit is chosen}


def _spread(values: Tensor) -> dict[str, Any]:
    mean, deviation = Spread.of(values)
    return {"folds": values.tolist(), "mean": mean.tolist(), "deviation": deviation.tolist()}


def _write(result: FitReport, output: Path) -> None:
    text = json.dumps(plain(result.fitted_object), indent=2) + "\n"
    write_atomically(output / PARAMETERS, lambda file: file.write(text.encode()))
    arrays: dict[str, Any] = {}
    for name, parts in result.rollouts.items():
        rollout = parts["validation"]
        arrays |= {f"{name}_z": rollout.z, f"{name}_position_error_m": rollout.position, f"{name}_rotation_error_rad": rollout.rotation}
        if rollout.joint.numel():
            arrays[f"{name}_joint_error_rad"] = rollout.joint
    held_back = result.recordings["validation"]
    arrays |= {"offsets": held_back.offsets, "throw_id": held_back.throw_id}
    np.savez_compressed(output / "open_loop.npz", **{name: array.numpy() for name, array in arrays.items()})
    if plots.available():
        plots.draw(result, output)
    else:
        print('note: matplotlib is not installed, so curves are saved as arrays only: pip install "torchdojo[plots]"')


def _draw(result: FitReport, output: Path, page: Page) -> None:
    """A throw that was held back, or of all throws where none was."""
    part = "validation" if len(result.recordings["validation"]) else "training"
    recordings, model = result.recordings[part], result.model
    with torch.no_grad():
        recorded = model.states(recordings.samples, recordings)
    simulated = {name: (result.models[name], rollouts[part]) for name, rollouts in result.rollouts.items()}
    write_drawing(toss(recordings, (model, recorded), simulated), output, page)


def _print_stage(label: str, stage: dict[str, Any]) -> None:
    print(f"{label}: {stage['iterations']} iterations, {stage['seconds']:.1f} s: {stage['reason']}")
    print_table([(name, _value(p["value"], p["standard_error_by_throw"])) for name, p in stage["parameters"].items()])
    for combination in stage["unseen_combinations"]:
        print(f"  the data do not determine {combination}")


def _print_starts(number: int, starts: list[dict[str, Any]]) -> None:
    if len(starts) > 1:
        print(f"stage {number}, costs on the training throws of its starts")
        print_table([(f"start {i}", f"{s['cost']:.6g}: {s['reason']}" + " (chosen)" * s["chosen"]) for i, s in enumerate(starts, start=1)])


def _print_errors(report: dict[str, Any], models: list[str]) -> None:
    counts = " and ".join(f"{count} {part}" for part, count in report["trajectories"].items())
    print(f"open loop from the first sample of {counts} throws, means: {' -> '.join(models)}")
    rows = []
    for part, nominal in report["nominal"].items():
        for name in nominal:
            if label := _label(name):
                rows.append((f"{part}, {label[0]}", " -> ".join(f"{report[m][part][name]:.4g}" for m in models) + f" {label[1]}"))
    print_table(rows)


def _print_folds(validated: CrossValidation) -> None:
    """A row for each quantity and model: nominal beside fitted, fold by fold."""
    folds = len(validated.reports)
    rows = [("open loop of the throws held back, means", [*(f"fold {k}" for k in range(1, folds + 1)), "mean", "deviation"])]
    for name in validated.errors["nominal"]:
        if label := _label(name):
            for model, errors in validated.errors.items():
                numbers = [*errors[name], *Spread.of(errors[name])]
                rows.append((f"{label[0]} [{label[1]}], {model}", [f"{float(number):.2f}" for number in numbers]))
    print_table([(name, "".join(f"{cell:>10}" for cell in cells)) for name, cells in rows])
    print("parameters, mean and deviation of a fold")
    print_table([(name, _value(*(part.tolist() for part in Spread.of(values)))) for name, values in validated.values.items()])


def _label(name: str) -> tuple[str, str] | None:
    """Quantity and unit of a mean error, "position" and "mm"; None for other numbers."""
    quantity, _, unit = name.partition("_error_")
    return (quantity, UNITS[unit]) if unit in UNITS else None


def _value(value: Any, deviation: Any) -> str:
    if isinstance(value, list):
        return "(" + ", ".join(_value(v, d) for v, d in zip(value, deviation, strict=True)) + ")"
    return f"{value:.5g} ± {deviation:.1g}"
