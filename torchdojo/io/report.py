"""The report of a reader on the content of a robot file, as data: `Mechanism.load_report`.

A reader collects its findings in a `Findings`. `announce` makes one warning of them, or an error with ``strict=True``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import shorten
from typing import Any, Literal, get_args

from torchdojo.parameters import warn_user

__all__ = ["Did", "Effect", "Findings", "LoadEntry", "LoadReport", "announce"]

Did = Literal["used", "approximated", "ignored", "added", "repaired"]
#: "motion": the mechanism moves otherwise than the file says, and ``strict=True`` refuses it. "structure": it moves as the file says, with
#: other names or fewer parts; a warning says so. "none": the motion does not depend on it; it is counted.
Effect = Literal["motion", "structure", "none"]
WIDTH = 50  # characters of names in a table
NAMES = 6  # names that an entry keeps; its count has all


@dataclass(frozen=True)
class LoadEntry:
    """The fate of the content of one kind in a robot file."""

    did: Did
    kind: str  #: what it is: an element with its brackets, or words ("joint limits")
    count: int
    names: tuple[str, ...]  #: of the first few links, joints, ... that it belongs to
    reason: str
    effect: Effect = "motion"

    def __str__(self) -> str:
        more = self.count - len(self.names)
        names = ", ".join(self.names) + (f", and {more} more" if more > 0 and self.names else "")
        where = f" of {names}" if names else f" ({self.count})" if self.count > 1 else ""
        return f"{self.kind}{where}: {self.did}; {self.reason}"


@dataclass(frozen=True)
class LoadReport:
    """The report of a reader on a robot file; ``print(mech.load_report)`` shows a table."""

    path: Path
    entries: tuple[LoadEntry, ...] = ()

    @property
    def lost(self) -> tuple[LoadEntry, ...]:
        """Entries with which the mechanism moves otherwise than the file says."""
        return tuple(entry for entry in self.entries if entry.effect == "motion")

    def of_kind(self, kind: str) -> tuple[LoadEntry, ...]:
        """Entries whose kind contains `kind`."""
        return tuple(entry for entry in self.entries if kind in entry.kind)

    def with_entries(self, entries: Iterable[LoadEntry]) -> LoadReport:
        """The report with further entries."""
        return replace(self, entries=(*self.entries, *entries))

    def summary(self) -> str:
        """One line for each entry that matters to the motion or the structure, and one that counts the rest; "" where none matters."""
        told = [entry for effect in get_args(Effect)[:2] for entry in self.entries if entry.effect == effect]
        counted = ", ".join(f"{entry.count} {entry.kind}" for entry in self.entries if entry.effect == "none" and entry.did == "ignored")
        lines = [f"  {entry}" for entry in told] + ([f"  without effect on the motion, ignored: {counted}"] if counted else [])
        return "\n".join([f"{self.path}: what differs from the file (mech.load_report has it as data)", *lines]) if told else ""

    def __str__(self) -> str:
        if not self.entries:
            return f"{self.path}: everything in the file is used as it stands"
        head = ("effect", "did", "count", "kind", "of", "reason")
        rows = [
            (e.effect, e.did, str(e.count), e.kind, shorten(", ".join(e.names), WIDTH, placeholder=" ..."), e.reason) for e in self.entries
        ]
        widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
        table = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in (head, *rows)]
        return "\n".join([str(self.path), *table])


class Findings:
    """Collects what a reader finds: equal findings about several names become one entry."""

    def __init__(self) -> None:
        self._found: dict[tuple[Did, str, str, Effect], list[str]] = {}

    def add(self, did: Did, kind: str, names: str | Iterable[str], reason: str, effect: Effect = "motion") -> None:
        """Note what happened to the content `kind` of `names` (of links, joints, ...); with no names nothing is noted."""
        labels = [names] if isinstance(names, str) else list(names)
        if labels:
            self._found.setdefault((did, kind, reason, effect), []).extend(labels)

    def entries(self) -> tuple[LoadEntry, ...]:
        return tuple(
            LoadEntry(did, kind, len(names), tuple(dict.fromkeys(name for name in names if name))[:NAMES], reason, effect)
            for (did, kind, reason, effect), names in self._found.items()
        )


def announce(mech: Any, strict: bool) -> None:
    """Warn once of what `mech.load_report` says, or, with `strict`, refuse a mechanism that moves otherwise than its file says.

    Raises:
        ValueError: with `strict`; the message has every entry.
    """
    report: LoadReport = mech.load_report
    if strict and report.lost:
        raise ValueError(
            f"{report.path}: strict=True, and {len(report.lost)} kinds of content do not act as the file says; allowed: none. Change the "
            f"file, or load without strict:\n" + "\n".join(f"  {entry}" for entry in report.lost)
        )
    if text := report.summary():
        warn_user(text)
