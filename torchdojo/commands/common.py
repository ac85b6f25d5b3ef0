"""Shared by the commands: types of arguments, errors for the user, progress bars, tables and reports."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = [
    "PARAMETERS",
    "CommandError",
    "add_common",
    "add_output",
    "finite",
    "not_negative",
    "positive",
    "print_columns",
    "print_table",
    "progress",
    "user_input",
    "whole",
    "write_report",
]

#: Name of the file of fitted parameters in the output folder of `torchdojo fit`.
PARAMETERS = "parameters.json"


# -- arguments ---------------------------------------------------------------------------------------------------------------------------


def add_output(parser: argparse.ArgumentParser, required: bool = False) -> None:
    """--output and the options of `add_common`."""
    parser.add_argument(
        "--output", type=Path, required=required, metavar="DIR", help="write report.json, arrays (.npz) and plots (.png), if any, there"
    )
    add_common(parser)


def add_common(parser: argparse.ArgumentParser) -> None:
    """The options that every command has: --threads and --json."""
    # The reference engine works on many small matrices, which more threads only slow down.
    parser.add_argument("--threads", type=whole, default=1, metavar="N", help="of the CPU (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print the report as one JSON object, the last line of stdout")


def whole(text: str) -> int:
    """Type of an argument: a whole number of 1 or more."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number of 1 or more")
    return number


def positive(text: str) -> float:
    """Type of an argument: a finite number above 0."""
    number = float(text)
    if not 0.0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a positive finite number")
    return number


def not_negative(text: str) -> float:
    """Type of an argument: a finite number of 0 or more."""
    number = float(text)
    if not 0.0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a non-negative finite number")
    return number


# -- errors and reports ------------------------------------------------------------------------------------------------------------------


class CommandError(Exception):
    """An error that the user can put right; shown as one line, without a traceback."""


@contextmanager
def user_input() -> Iterator[None]:
    """Turn errors raised while reading the user's input into a `CommandError`."""
    try:
        yield
    except (ValueError, TypeError, OSError, ImportError) as error:
        raise CommandError(" ".join(str(error).split())) from error


def progress(items: Iterable[int], total: int, label: str) -> Iterable[int]:
    """A progress bar on stderr where tqdm is installed and stderr is a terminal."""
    try:
        from tqdm import tqdm
    except ImportError:
        return items
    bar: Iterable[int] = tqdm(items, total=total, desc=label, unit="step", file=sys.stderr, leave=False, disable=None)
    return bar


def print_table(rows: Iterable[tuple[str, str]]) -> None:
    rows = list(rows)
    width = max((len(name) for name, _ in rows), default=0)
    for name, value in rows:
        print(f"  {name:<{width}}  {value}")


def print_columns(rows: Iterable[Sequence[str]]) -> None:
    """Rows of as many texts each, the first one a name."""
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  " + "  ".join(f"{text:<{width}}" for text, width in zip(row, widths, strict=True)).rstrip())


def write_report(report: Mapping[str, Any], output: Path | None) -> None:
    """report.json in the folder `output`."""
    if output is not None:
        (output / "report.json").write_text(json.dumps(report, indent=2) + "\n")
        print(f"written to {output}/")


def finite(value: Any) -> Any:
    """The value without infinities and NaN, which JSON lacks: null stands for a diverged simulation or an unknown deviation."""
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
