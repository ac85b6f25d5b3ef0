"""`torchdojo export`: the policy of a run for other programs and robots: TorchScript, ONNX, numpy, and a description."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torchdojo.commands.common import add_common, finite, print_table, user_input, whole
from torchdojo.learning.export import FORMATS, export_policy
from torchdojo.learning.runs import load_run

__all__ = ["add_arguments", "export", "run"]

FOLDER = "export"  # in the folder of the run, where no other is given


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Write the policy of a run's last checkpoint as policy.pt (TorchScript), policy.onnx and policy.npz with a runner that needs "
        f"numpy alone, and policy.json, which says what a robot has to know. They go into the folder {FOLDER}/ of the run, or "
        "into --output. Each form is compared with the policy along a recorded episode first."
    )
    add = parser.add_argument
    add("folder", type=Path, metavar="RUN", help="folder of `torchdojo train`")
    add("--output", type=Path, metavar="DIR", help=f"folder for the files (default: RUN/{FOLDER})")
    add("--formats", type=_names, metavar="NAME,...", help=f"of {', '.join(FORMATS)} (default: all for which packages are installed)")
    add("--steps", type=whole, default=250, metavar="N", help="control steps of the recorded episode at most (default: %(default)s)")
    add_common(parser)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]


def run(options: argparse.Namespace) -> dict[str, Any]:
    return export(options.folder, **{name: getattr(options, name) for name in ("output", "formats", "steps")})


def export(folder: Path, *, output: Path | None = None, formats: Sequence[str] | None = None, steps: int = 250) -> dict[str, Any]:
    """Write the policy of a run for other programs; returns the report.

    Args:
        folder: of the run. output: folder for the files; None: "export" in the folder of the run. formats: of `FORMATS`; None: all for
            which packages are installed. steps: control steps of the recorded episode at most.

    Raises:
        CommandError: no run, no checkpoint, an unknown format, a network that a format does not have, an extra that is not installed.
    """
    with user_input():
        result = export_policy(load_run(folder), folder / FOLDER if output is None else output, formats, steps)
    print(f"{folder}: largest differences from the policy's actions along {result.steps} steps")
    print_table((name, f"{difference:.1e}") for name, difference in result.differences.items())
    for name, why in result.left_out.items():
        print(f"left out: {name}. {why}")
    print(f"written to {result.folder}/: {', '.join(result.files)}")
    return finite(
        {
            "run": str(folder),
            "output": str(result.folder),
            "files": list(result.files),
            "steps": result.steps,
            "differences": result.differences,
            "left_out": result.left_out,
        }
    )
