"""`torchdojo view`: trajectory files as a page in the browser, a video, or a live view."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
import webbrowser
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from torchdojo import models
from torchdojo.commands.common import CommandError, add_common, positive, print_table, user_input, whole
from torchdojo.io import load
from torchdojo.mechanism import Mechanism
from torchdojo.runs import check_arrays
from torchdojo.viewer.files import load_playbacks
from torchdojo.viewer.page import write_page
from torchdojo.viewer.playback import Playback
from torchdojo.viewer.scene import Scene

__all__ = ["add_arguments", "read", "run"]

ROBOTS = (".urdf", ".xml", ".mjcf")
SPACING = 1.5  # of playbacks side by side in a video or a live view, in widths of the largest


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Show what trajectory files hold, or how robots stand at the start. Several files, and several motions of one file, are drawn over "
        "each other. Without another option a page is written beside the first trajectory and opened in the browser."
    )
    add = parser.add_argument
    add(
        "files",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="trajectories (.npz) of `torchdojo simulate`, `replay` or `fit` with --output, or of your own; robots (.urdf, .xml, .mjcf)",
    )
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--html", type=Path, metavar="FILE", help="write the page there, and do not open it")
    output.add_argument("--live", action="store_true", help="show the motion from a server, until Ctrl-C")
    output.add_argument("--video", type=Path, metavar="FILE.mp4|.webp|DIR", help="write a video, a moving picture, or a folder of pictures")
    add("--side-by-side", action="store_true", help="a place for each motion")
    add("--label", action="append", default=[], metavar="TEXT", help="of a file, in order; repeatable (default: the names of the files)")
    add("--select", type=whole, action="append", default=[], metavar="N", help="only the N-th motion of each file, from 1; repeatable")
    add("--mechanism", metavar="NAME|FILE", help="the mechanism of files that hold states and no drawing, as older versions wrote them")
    add("--fps", type=positive, default=30.0, metavar="N", help="pictures per second of the video (default: %(default)g)")
    add("--size", type=whole, nargs=2, default=(640, 480), metavar=("W", "H"), help="of a video, in pixels (default: 640 480)")
    add("--speed", type=positive, default=1.0, metavar="X", help="of a video or a live view (default: %(default)g)")
    add("--port", type=int, metavar="N", help="of the live view (default: 8080, or the next that is free)")
    add("--no-open", action="store_true", help="do not open a browser")
    add_common(parser)


def run(options: argparse.Namespace) -> dict[str, Any]:
    with user_input():
        playbacks = read(options.files, options.label, options.select, options.mechanism)
    report: dict[str, Any] = {
        "files": [str(path) for path in options.files],
        "playbacks": [
            {"label": p.label, "bodies": len(p.scene.bodies), "frames": p.num_frames, "duration_s": float(p.times[-1] - p.times[0])}
            for p in playbacks
        ],
    }
    print_table(
        [(p["label"] or "motion", f"{p['bodies']} bodies, {p['frames']} frames, {p['duration_s']:.3g} s") for p in report["playbacks"]]
    )
    with user_input():
        if options.live:
            _live(playbacks, options)
        elif options.video is not None:
            report["video"] = str(_video(playbacks, options))
        else:
            report["html"] = str(_page(playbacks, options))
    return report


# -- reading -----------------------------------------------------------------------------------------------------------------------------


def read(files: Sequence[Path], labels: Sequence[str] = (), select: Sequence[int] = (), mechanism: str | None = None) -> list[Playback]:
    """The playbacks of all files, with labels that tell files apart.

    Raises:
        ValueError, OSError: files that cannot be read, labels that do not fit, motions that are not there.
    """
    if len(labels) not in (0, len(files)):
        raise ValueError(f"got {len(labels)} --label for {len(files)} files; give one for each file, in order")
    result = []
    for path, name in zip(files, labels or _names(files), strict=True):
        if path.suffix.lower() in ROBOTS:
            playbacks = [_standing(path)]
        else:
            playbacks = load_playbacks(path) if mechanism is None else _states(path, mechanism)
        beyond = [number for number in select if number > len(playbacks)]
        if beyond:
            raise ValueError(f"{path} has {len(playbacks)} motions; got --select {beyond[0]}")
        playbacks = [playbacks[number - 1] for number in select] if select else playbacks
        for playback in playbacks:
            label = [playback.label] if playback.label and (len(playbacks) > 1 or not name) else []
            result.append(replace(playback, label=": ".join([*([name] if name else []), *label])))
    return result


def _names(files: Sequence[Path]) -> list[str]:
    """Names that tell the files apart: none for one file, else their stems, or their folders where the stems are equal."""
    if len(files) == 1:
        return [""]
    stems = [path.stem for path in files]
    return stems if len(set(stems)) == len(stems) else [f"{path.resolve().parent.name}/{path.stem}" for path in files]


def _standing(path: Path) -> Playback:
    """A robot at the start, as one frame."""
    mech = load(path, mesh="skip")
    try:
        z = mech.initial_state(on="ground")
    except ValueError:  # no part can move to the ground
        z = mech.initial_state()
    return Playback.of(mech, z[None], label=path.stem)


def _states(path: Path, source: str) -> list[Playback]:
    """The states z (..., K, 13 nb) of a file, drawn by a mechanism."""
    if not path.is_file():
        raise FileNotFoundError(f"trajectory file {str(path)!r} does not exist (working directory {str(Path.cwd())!r})")
    try:
        with np.load(path, allow_pickle=False) as arrays:
            names = [name for name in ("z", "timestep", "body_names") if name in arrays.files]
            check_arrays(arrays, names)
            numbers = {name: arrays[name] for name in names}
    except Exception as error:  # numpy raises whatever it stumbles over
        raise ValueError(f"{path} is not an .npz file of plain arrays, or is damaged: {error}") from error
    if "z" not in numbers:
        raise ValueError(f"{path} has no states z; --mechanism is for files that have them")
    options = {"timestep": float(numbers["timestep"])} if "timestep" in numbers else {}
    mech: Mechanism = models.make(source, **options) if source in models.names() else load(source, mesh="skip", **options)
    bodies = [str(name) for name in numbers.get("body_names", ())]
    if bodies and bodies != list(mech.bodies):
        raise ValueError(f"{path} is of another mechanism: its bodies are {bodies}, and {source} has {list(mech.bodies)}")
    if numbers["z"].ndim == 2:
        return [Playback.of(mech, numbers["z"], label=source)]
    shown = range(min(int(np.prod(numbers["z"].shape[:-2])), 16))
    return Playback.batch(mech, numbers["z"], shown, labels=[source] if len(shown) == 1 else [f"environment {i}" for i in shown])


# -- showing -----------------------------------------------------------------------------------------------------------------------------


def _page(playbacks: list[Playback], options: argparse.Namespace) -> Path:
    path: Path = options.html
    if path is None:
        path = options.files[0].with_suffix(".html")
        if options.files[0].suffix.lower() in ROBOTS or not os.access(path.parent, os.W_OK):
            path = Path(tempfile.mkdtemp(prefix="torchdojo_")) / path.name  # a robot's folder stays as it is
    written = write_page(playbacks, path, side_by_side=options.side_by_side)
    opened = options.html is None and not options.no_open and _has_screen() and webbrowser.open(written.resolve().as_uri())
    print(f"{'opened' if opened else 'open this page in a browser:'} {written}")
    return written


def _has_screen() -> bool:
    """Without one, `webbrowser` starts a browser in the terminal, if any."""
    return sys.platform in ("darwin", "win32") or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))


def _video(playbacks: list[Playback], options: argparse.Namespace) -> Path:
    from torchdojo.viewer.video import write_video

    try:
        size = (options.size[0], options.size[1])
        path = write_video(playbacks, options.video, size=size, fps=options.fps, speed=options.speed, spacing=_spacing(playbacks, options))
    except RuntimeError as error:
        raise CommandError(str(error)) from error
    print(f"written to {path}")
    return path


def _live(playbacks: list[Playback], options: argparse.Namespace) -> None:
    from torchdojo.viewer.live import live

    view = live(playbacks, speed=options.speed, port=options.port, spacing=_spacing(playbacks, options) or None)
    print(f"live at {view.url}; Ctrl-C ends it")
    if not options.no_open and _has_screen():
        webbrowser.open(view.url)
    try:
        while True:
            time.sleep(3600)
    finally:
        view.close()


def _spacing(playbacks: Sequence[Playback], options: argparse.Namespace) -> float:
    """Distance of the places [m]; 0: on top of each other."""
    if not options.side_by_side:
        return 0.0
    widths = [_width(playback.scene, playback) for playback in playbacks]
    return SPACING * max(widths)


def _width(scene: Scene, playback: Playback) -> float:
    """About the width of what moves [m]: of the bodies' centers in any frame, and the largest part."""
    with np.errstate(invalid="ignore"):
        spread = np.ptp(playback.positions, axis=1)
    parts = [max(part.size) for part in scene.parts if part.body is not None and part.kind != "mesh"]
    return float(np.nanmax(np.append(spread.reshape(-1), 0.0))) + max([0.5, *parts])
