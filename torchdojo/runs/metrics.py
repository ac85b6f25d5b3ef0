"""metrics.csv of a run: rows of numbers, one appended at a time, read while the run goes on."""

from __future__ import annotations

import csv
import io
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torchdojo.runs.files import write_atomically

__all__ = ["Metrics", "number", "read_rows"]


class Metrics:
    """The file of metrics of a run that is training."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._rows = list[dict[str, Any]]()
        self._columns: list[str] | None = None  # of the file; None: it is written anew with the next row

    def keep(self, samples: float) -> None:
        """Go on after the rows of a file that are not beyond a checkpoint, and forget the others.

        Raises:
            ValueError: a damaged file.
        """
        self._rows = [dict(row) for row in read_rows(self.path) if number(row, "samples", self.path) <= samples]
        self._columns = None

    def add(self, row: Mapping[str, Any]) -> None:
        """Append a row. Only a row with a new column writes the file anew, so that n rows cost n writes of one row."""
        values = {key: f"{value:.6g}" if isinstance(value, float) else value for key, value in row.items()}
        self._rows.append(values)
        if self._columns is not None and not values.keys() - set(self._columns):
            with self.path.open("ab") as file:
                file.write(_text(self._columns, [values], header=False))
                file.flush()
                os.fsync(file.fileno())
            return
        self._columns = list(dict.fromkeys(key for entry in self._rows for key in entry))
        text = _text(self._columns, self._rows, header=True)
        write_atomically(self.path, lambda file: file.write(text))


def _text(columns: list[str], rows: list[dict[str, Any]], header: bool) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="")
    if header:
        writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def read_rows(path: Path) -> list[dict[str, str]]:
    """The rows of a file of metrics; a file that does not exist has none. A last line without an end is still being written.

    Raises:
        ValueError: a damaged file.
    """
    if not path.exists():
        return []
    whole, _, _ = path.read_bytes().rpartition(b"\n")
    try:
        rows = list(csv.DictReader(io.StringIO(whole.decode(), newline=""), strict=True))
    except (ValueError, csv.Error) as error:
        raise ValueError(_damaged(path, str(error))) from error
    for line, row in enumerate(rows, start=2):
        if None in row or None in row.values():
            raise ValueError(_damaged(path, f"line {line} has other columns than the first line"))
    return rows


def number(row: Mapping[str, str], name: str, path: Path, missing: float | None = None) -> float:
    """A number of a row.

    Args:
        missing: where the cell is empty; None: it may not be.

    Raises:
        ValueError: no such column, or no finite number in it.
    """
    text = row.get(name)
    if text == "" and missing is not None:
        return missing
    try:
        value = math.nan if text is None else float(text)
    except ValueError:
        value = math.nan
    if missing is None and not math.isfinite(value):
        raise ValueError(_damaged(path, f"got {name} = {text!r}; allowed: a finite number in every row"))
    return value


def _damaged(path: Path, problem: str) -> str:
    return f"{path} is damaged: {problem}; delete it (training goes on without the earlier rows), or begin again in another folder"
