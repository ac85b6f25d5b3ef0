"""What the commands share: errors for the user, progress bars, tables and reports."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["PARAMETERS", "CommandError", "finite", "print_table", "progress", "user_input", "write_report"]

#: In the output folder of `torchdojo fit`: what it has found.
PARAMETERS = "parameters.json"


class CommandError(Exception):
    """Something the user can put right; shown as one line, without a traceback."""


@contextmanager
def user_input() -> Iterator[None]:
    """Errors raised while reading what the user gave are for the user."""
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


def write_report(report: Mapping[str, Any], output: Path | None) -> None:
    """report.json in the folder `output`."""
    if output is not None:
        (output / "report.json").write_text(json.dumps(report, indent=2) + "\n")
        print(f"written to {output}/")


def finite(value: Any) -> Any:
    """JSON has no infinities and no NaN: null stands for a simulation that diverged, or for a deviation that is not known."""
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
