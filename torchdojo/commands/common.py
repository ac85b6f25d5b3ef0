"""What the commands share: errors for the user, progress bars, tables and reports."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["CommandError", "print_table", "progress", "user_input", "write_report"]


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
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        print(f"  {name:<{width}}  {value}")


def write_report(report: Mapping[str, Any], output: Path | None) -> None:
    """report.json in the folder `output`."""
    if output is not None:
        (output / "report.json").write_text(json.dumps(report, indent=2) + "\n")
        print(f"written to {output}/")
