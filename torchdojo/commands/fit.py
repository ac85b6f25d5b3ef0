"""`torchdojo fit`: an object from recordings, by a description (configs/identify_*.yaml), in a folder from which a killed run goes on."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from torchdojo.commands.common import PARAMETERS, finite, print_table, user_input, write_report
from torchdojo.identification import fitting, plots
from torchdojo.identification.config import assign, load_yaml, read_config
from torchdojo.identification.fitting import FitReport
from torchdojo.identification.gauss_newton import Fit
from torchdojo.identification.run_folder import begin_run, write_atomically

__all__ = ["fit"]

UNITS = {"mm": "mm", "degrees": "degrees", "percent_of_width": "% of the width"}


def fit(config: Path, *, data: Path, output: Path, resume: bool = False, changes: Sequence[str] = ()) -> dict[str, Any]:
    """Run the command; returns the report.

    Args:
        config: a YAML file with the keys of `FitConfig`. data: file of recordings.
        output: folder for checkpoints (stage_N/), parameters.json, report.json, open_loop.npz and figures (.png).
        changes: KEY=VALUE, of the description.

    Raises:
        CommandError: bad input, a folder that holds another run, an extra that is not installed.
    """
    start = time.perf_counter()
    with user_input():
        from torchdojo.identification.lightning import LightningRunner

        values = load_yaml(config)
        for change in changes:
            assign(values, change)
        description = read_config({**values, "data": str(data)})
        fitting.prepare(description)  # refuses what cannot be run before there is a folder of it
        identity = {key: value for key, value in fitting.plain(description).items() if key != "data"}
        begin_run(output, identity, data, resume)
        runner = LightningRunner(output, description.seed, len(description.stages))

        def run(number: int, *arguments: Any) -> Fit:
            found = runner(number, *arguments)
            _print_stage(number, _stage(found))
            return found

        result = fitting.fit(description, run=run)
    report = {
        "config": str(config),
        "data": str(data),
        "object": description.object,
        "trajectories": {part: len(recordings) for part, recordings in result.recordings.items()},
        "stages": [_stage(found) for found in result.fits],
        "parameters": result.values,
        "nominal": result.nominal,
        "fitted": result.fitted,
        "wall_time_s": time.perf_counter() - start,
    }
    _print_errors(report)
    _write(result, output)
    write_report(finite(report), output)
    return finite(report)


def _stage(found: Fit) -> dict[str, Any]:
    return {
        "parameters": {
            name: {
                "value": value.tolist(),
                "standard_error": found.std[name].tolist(),
                "standard_error_by_throw": found.std_by_throw[name].tolist(),
            }
            for name, value in found.values.items()
        },
        "iterations": found.iterations,
        "history": found.history,
        "converged": found.converged,
        "reason": found.reason,
        "seconds": found.seconds,
        "singular_values": found.identifiability.singular_values.tolist(),
        "not_identifiable": [label for label, seen in found.identifiability.identifiable.items() if not seen],
        "unseen_combinations": found.identifiability.unseen(list(found.identifiability.identifiable)),
    }


def _write(result: FitReport, output: Path) -> None:
    text = json.dumps(fitting.plain(result.fitted_object), indent=2) + "\n"
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


def _print_stage(number: int, stage: dict[str, Any]) -> None:
    print(f"stage {number}: {stage['iterations']} iterations, {stage['seconds']:.1f} s: {stage['reason']}")
    print_table([(name, _value(p["value"], p["standard_error_by_throw"])) for name, p in stage["parameters"].items()])
    for combination in stage["unseen_combinations"]:
        print(f"  the data do not determine {combination}")


def _print_errors(report: dict[str, Any]) -> None:
    counts = " and ".join(f"{count} {part}" for part, count in report["trajectories"].items())
    print(f"open loop from the first sample of {counts} throws, means: nominal -> fitted")
    rows = []
    for part, nominal in report["nominal"].items():
        for name, value in nominal.items():
            kind, _, unit = name.partition("_error_")
            if unit in UNITS:
                rows.append((f"{part}, {kind}", f"{value:.4g} -> {report['fitted'][part][name]:.4g} {UNITS[unit]}"))
    print_table(rows)


def _value(value: Any, deviation: Any) -> str:
    if isinstance(value, list):
        return "(" + ", ".join(_value(v, d) for v, d in zip(value, deviation, strict=True)) + ")"
    return f"{value:.5g} ± {deviation:.1g}"
