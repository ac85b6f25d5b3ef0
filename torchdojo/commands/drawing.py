"""Shared by the commands: trajectory files, and the pages beside them that show the motion."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from torchdojo.commands.common import CommandError, user_input
from torchdojo.viewer.files import playback_arrays
from torchdojo.viewer.page import write_page
from torchdojo.viewer.playback import Playback

__all__ = ["BESIDE", "SHOWN", "TRAJECTORY", "Page", "add_page", "write_drawing"]

SHOWN = 16  # environments of a batch that are drawn
TRAJECTORY = "trajectory.npz"


class Page(NamedTuple):
    """The options --html and --no-html."""

    html: Path | None = None
    no_html: bool = False

    @staticmethod
    def of(options: argparse.Namespace) -> Page:
        return Page(options.html, options.no_html)

    def place(self, output: Path | None) -> Path | None:
        """The place of the page; None: nowhere. Says so where only the packages are missing."""
        if self.html is not None or self.no_html or output is None:
            return self.html
        if find_spec("meshcat") is None:
            print('note: no page of the motion, since meshcat is not installed: pip install "torchdojo[pages]"')
            return None
        return (output / TRAJECTORY).with_suffix(".html")


BESIDE = Page()  #: beside the trajectory file


def add_page(parser: argparse.ArgumentParser) -> None:
    """The options --html and --no-html."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "--html",
        type=Path,
        metavar="FILE",
        help="write a page that shows the motion (default: trajectory.html in the output folder)",
    )
    group.add_argument("--no-html", action="store_true", help="write no page")


def write_drawing(
    playbacks: Sequence[Playback], output: Path | None, page: Page, *, side_by_side: bool = False, arrays: Mapping[str, Any] | None = None
) -> None:
    """trajectory.npz in the output folder, with further `arrays`, and the page.

    Raises:
        CommandError: the page cannot be written where the user wants it.
    """
    if output is not None:
        np.savez_compressed(output / TRAJECTORY, **(arrays or {}), **playback_arrays(playbacks, output))  # type: ignore[arg-type]
    path = page.place(output)
    if path is None:
        return
    if path.is_dir():
        raise CommandError(f"--html {path} is a folder; give the name of a file")
    with user_input():
        print(f"to see it: open {write_page(playbacks, path, side_by_side=side_by_side)}")
