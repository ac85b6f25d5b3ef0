"""Progress of a training run on stderr: a bar where that is a terminal, and lines everywhere."""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["Progress"]

LINES = 100  # at most, in a run


class Progress:
    """Tells how far a run is, and what it has to say of itself.

    On a terminal there is a bar of tqdm, and lines are written above it. Elsewhere, as in a file or a log of SLURM, there are lines alone:

        ant   51,200 of 500,000 samples, 12 CPU-s: return 158; clipped 12%, growth 1.8, ...

    Args:
        label: begins each line. total: samples of the run. first: samples before this process. quiet: say nothing, as processes after the
            first do.
    """

    def __init__(self, label: str, total: int, first: int = 0, *, quiet: bool = False) -> None:
        self.label, self.total, self.quiet = label, total, quiet
        self._told = self._samples = first
        self._bar: Any = None
        if not quiet and sys.stderr.isatty():
            from tqdm import tqdm

            self._bar = tqdm(desc=label, initial=first, total=total, unit="step", unit_scale=True, file=sys.stderr)

    def __call__(self, samples: int, seconds: float, text: str, force: bool = False) -> None:
        """Tell that a run has come to `samples` after `seconds` of processor time.

        A run says at most a hundred lines; `force` says this one whenever it comes.
        """
        if self.quiet:
            return
        if self._bar is not None:
            self._bar.update(samples - self._samples)
        self._samples = samples
        if not force and samples < self.total and samples - self._told < self.total / LINES:
            return
        self._told = samples
        line = f"{self.label} {samples:>{len(f'{self.total:,}')},} of {self.total:,} samples, {seconds:.0f} CPU-s: {text}"
        if self._bar is not None:
            self._bar.write(line, file=sys.stderr)
        else:
            print(line, file=sys.stderr, flush=True)

    def close(self) -> None:
        """End the bar."""
        if self._bar is not None:
            self._bar.close()
