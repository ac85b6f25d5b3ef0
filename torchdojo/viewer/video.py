"""Playbacks as a video or as a folder of pictures, on a machine without a screen."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchdojo.viewer.playback import Playback
from torchdojo.viewer.renderer import Arrow, Cord, Picture, Renderer, required
from torchdojo.viewer.scene import GRAY
from torchdojo.viewer.stage import Camera, as_playbacks, finite_frames, frames_at, grid_offsets, part_radius, tint, track

__all__ = ["draw_frames", "write_video"]

Array = NDArray[np.float64]

ARROW = (0.85, 0.20, 0.15, 1.0)
#: Colors of strings, those of page.js: without a load, without tension, with the largest one.
STRING, SLACK, TAUT = (0.48, 0.18, 0.18, 1.0), (0.16, 0.44, 0.86), (0.82, 0.21, 0.11)
INK, WARNING = (40, 44, 52), (190, 30, 30)
#: The angles of a view whose distance is chosen so that everything is in the picture.
VIEW = Camera((0.0, 0.0, 0.0), distance=0.0)


def write_video(
    playbacks: Playback | Sequence[Playback],
    path: str | Path,
    *,
    size: tuple[int, int] = (640, 480),
    fps: float = 30.0,
    speed: float = 1.0,
    follow: bool = True,
    spacing: float = 0.0,
    view: Camera = VIEW,
    forces: bool = True,
) -> Path:
    """Write playbacks into a video (.mp4, H.264), a picture that moves (.webp), or, without a suffix, a folder of pictures (.png).

    Args:
        playbacks: one, or several on top of each other, those after the first tinted and translucent.
        size: width and height [pixels], both even in a video. fps: pictures per second of the video.
        speed: seconds of the motion per second of the video. follow: the camera goes along, instead of showing all places at once.
        spacing: distance [m] of the places of a grid on which playbacks stand side by side; 0 lays them on top of each other.
        view: angles of the camera, and its distance where positive. forces: contact forces as arrows.

    Returns:
        The path. Frames whose poses are not finite are left out, and the picture says so.

    Raises:
        ValueError: another suffix, an odd size, 0 frames. ImportError: a package of the extra "view" is missing.
        RuntimeError: no ffmpeg, or no library to draw with.
    """
    path = Path(path)
    if path.suffix not in WRITERS:
        raise ValueError(
            f"path: got {str(path)!r}; allowed: a name that ends in .mp4 or .webp, or one without a suffix, for a folder of pictures"
        )
    width, height = size
    if min(size) < 16 or (path.suffix == ".mp4" and (width % 2 or height % 2)):
        raise ValueError(f"size: got {width}x{height}; allowed: 16 or more pixels each way, and even numbers in a video")
    for name, value in (("fps", fps), ("speed", speed)):
        if not 0.0 < value < math.inf:
            raise ValueError(f"{name}: got {value}; allowed: a positive finite number")
    sequence = as_playbacks(playbacks)
    with WRITERS[path.suffix](path, size, fps) as output:
        for picture in draw_frames(sequence, size=size, fps=fps, speed=speed, follow=follow, spacing=spacing, view=view, forces=forces):
            output.add(picture)
    return path


def draw_frames(
    playbacks: Playback | Sequence[Playback],
    *,
    size: tuple[int, int] = (640, 480),
    fps: float = 30.0,
    speed: float = 1.0,
    follow: bool = True,
    spacing: float = 0.0,
    view: Camera = VIEW,
    forces: bool = True,
) -> Iterator[Picture]:
    """The pictures (height, width, 3) of a video, one by one. Arguments as in `write_video`."""
    sequence = as_playbacks(playbacks)
    offsets = grid_offsets(len(sequence), spacing)
    times = picture_times(sequence, fps, speed)
    cameras = track(sequence, offsets, times, follow, view)
    frames = np.stack([frames_at(playback, times) for playback in sequence], axis=-1)
    scale = _arrow_scale(sequence, cameras[0]) if forces else 0.0
    captions = _Captions(sequence, size, overlay=spacing == 0.0)
    renderer = Renderer(sequence, offsets, size, overlay=spacing == 0.0, extent=0.4 * cameras[0].distance)
    try:
        for time, camera, row in zip(times, cameras, frames, strict=True):
            placed = zip(sequence, offsets, row, strict=True)
            arrows = [arrow for playback, offset, frame in placed for arrow in _arrows(playback, offset, frame, scale)]
            numbered = enumerate(zip(sequence, offsets, row, strict=True))
            cords = [cord for number, shown in numbered for cord in _cords(*shown, number, spacing == 0.0)]
            yield captions.write(renderer.draw(row, camera, arrows, cords), float(time), row)
    finally:
        renderer.close()


def picture_times(playbacks: Sequence[Playback], fps: float, speed: float) -> Array:
    """The times of the motion [s] that the pictures show, from the first start to the last end."""
    start, end = min(playback.times[0] for playback in playbacks), max(playback.times[-1] for playback in playbacks)
    return start + speed / fps * np.arange(math.floor((end - start) * fps / speed + 1e-6) + 1)


def _arrow_scale(playbacks: Sequence[Playback], camera: Camera) -> float:
    """Meters of arrow per newton: a large force is as long as a fifth of the camera's distance."""
    forces = [np.linalg.norm(playback.contact_forces, axis=-1).ravel() for playback in playbacks if playback.contact_forces is not None]
    sizes = np.concatenate(forces) if forces else np.zeros(0)
    sizes = sizes[np.isfinite(sizes) & (sizes > 0.0)]
    return 0.2 * camera.distance / max(float(np.quantile(sizes, 0.95)), 1e-9) if len(sizes) else 0.0


def _arrows(playback: Playback, offset: Array, frame: int, scale: float) -> Iterator[Arrow]:
    if scale == 0.0 or playback.contact_points is None or playback.contact_forces is None:
        return
    for point, force in zip(playback.contact_points[frame] + offset, scale * playback.contact_forces[frame], strict=True):
        length = float(np.linalg.norm(force))
        if np.isfinite(point).all() and 1e-3 < length < math.inf:
            yield point, point + force, ARROW


def _cords(playback: Playback, offset: Array, frame: int, number: int, overlay: bool) -> Iterator[Cord]:
    """Pieces of the strings of a playback. A load colors a string, from blue at zero to red at its largest number."""
    for name, points in playback.strings.items():
        color: tuple[float, float, float, float] = tint(STRING, number, overlay)
        load = playback.loads.get(name)
        if load is not None:
            sizes = np.nan_to_num(np.abs(load))
            share = sizes[frame] / (sizes.max() or 1.0)
            red, green, blue = ((1 - share) * np.array(SLACK) + share * np.array(TAUT)).tolist()
            color = (red, green, blue, color[3])
        placed = points[frame] + offset
        for start, end in itertools.pairwise(placed):
            if np.isfinite(start).all() and np.isfinite(end).all() and np.linalg.norm(end - start) > 1e-9:  # branches are apart by NaN
                yield start, end, color


class _Captions:
    """The time, the labels of the playbacks in their colors, and a note where a frame is a gap."""

    def __init__(self, playbacks: Sequence[Playback], size: tuple[int, int], overlay: bool):
        self._image = required("PIL.Image", "writing pictures")
        self._draw = required("PIL.ImageDraw", "writing pictures")
        self._font = required("PIL.ImageFont", "writing pictures").load_default(max(11, size[1] // 30))
        self._finite = [finite_frames(playback) for playback in playbacks]
        self._times = [playback.times for playback in playbacks]
        several = len(playbacks) > 1
        self._labels = [playback.label or (f"playback {i}" if several else "") for i, playback in enumerate(playbacks)]
        self._colors = [tuple(round(255 * c) for c in tint(_main_color(playback), i, overlay)[:3]) for i, playback in enumerate(playbacks)]
        self._legend = several and overlay
        self._line = max(15, size[1] // 24)

    def write(self, picture: Picture, time: float, frames: Sequence[int]) -> Picture:
        image = self._image.fromarray(picture)
        draw, line = self._draw.Draw(image), self._line
        draw.text((image.width - 0.6 * line, 0.5 * line), f"{time:.2f} s", fill=INK, font=self._font, anchor="ra")
        row = 0.5 * line
        for label, color in zip(self._labels, self._colors, strict=True):
            if label and (self._legend or len(self._labels) == 1):
                if self._legend:
                    draw.rectangle((0.6 * line, row + 0.15 * line, 1.2 * line, row + 0.75 * line), fill=color)
                draw.text(((1.6 if self._legend else 0.6) * line, row), label, fill=INK, font=self._font)
                row += line
        for label, finite, times, frame in zip(self._labels, self._finite, self._times, frames, strict=True):
            if not finite[frame]:
                text = f"{label + ': ' if label else ''}frame {frame} ({times[frame]:.2f} s) is not finite"
                draw.text((0.6 * line, row), text, fill=WARNING, font=self._font)
                row += line
        return np.asarray(image)


def _main_color(playback: Playback) -> tuple[float, ...]:
    """The color of the largest part that moves."""
    scene = playback.scene
    moving = [part for part in scene.parts if part.body is not None]
    return scene.color(max(moving, key=lambda part: part_radius(part, scene))) if moving else GRAY


class _Folder:
    """Numbered pictures in a folder; those of an earlier, longer video go."""

    def __init__(self, path: Path, size: tuple[int, int], fps: float):
        self._path, self._count = path, 0
        self._image = required("PIL.Image", "writing pictures")

    def __enter__(self) -> _Folder:
        self._path.mkdir(parents=True, exist_ok=True)
        for old in self._path.glob("frame_[0-9][0-9][0-9][0-9][0-9].png"):
            old.unlink()
        return self

    def add(self, picture: Picture) -> None:
        self._image.fromarray(picture).save(self._path / f"frame_{self._count:05d}.png", compress_level=3)
        self._count += 1

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        pass


class _Movie:
    """A video that ffmpeg, in a process of its own, writes while the next picture is drawn. A video that was not finished is removed."""

    def __init__(self, path: Path, size: tuple[int, int], fps: float):
        package = required("imageio_ffmpeg", "writing .mp4")
        try:
            package.get_ffmpeg_exe()
        except RuntimeError as error:
            raise RuntimeError(
                f'no ffmpeg: {error}; install one, or give its path in the environment variable "IMAGEIO_FFMPEG_EXE", '
                "or write pictures: a path without a suffix"
            ) from error
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        options = ["-preset", "veryfast", "-crf", "21", "-movflags", "+faststart"]
        self._frames: Any = package.write_frames(
            str(path), size, fps=fps, codec="libx264", quality=None, macro_block_size=2, output_params=options
        )

    def __enter__(self) -> _Movie:
        self._frames.send(None)
        return self

    def add(self, picture: Picture) -> None:
        self._frames.send(np.ascontiguousarray(picture))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._frames.close()
        if error is not None:
            self._path.unlink(missing_ok=True)


class _Animation:
    """A picture that moves, in one file without a player. It repeats for ever; nothing is written where it was not finished."""

    def __init__(self, path: Path, size: tuple[int, int], fps: float):
        self._path, self._ends, self._pictures = path, 1000.0 / fps, list[Any]()
        self._image = required("PIL.Image", "writing .webp")
        path.parent.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> _Animation:
        return self

    def add(self, picture: Picture) -> None:
        self._pictures.append(self._image.fromarray(picture))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is None:
            ends = [round(self._ends * (i + 1)) for i in range(len(self._pictures))]  # whole milliseconds, without drift
            durations = [end - start for start, end in zip([0, *ends], ends, strict=False)]
            first, *others = self._pictures
            first.save(self._path, save_all=True, append_images=others, duration=durations, loop=0, quality=60, method=4)


#: The suffix of the path, and what writes it.
WRITERS: dict[str, type[_Folder] | type[_Movie] | type[_Animation]] = {"": _Folder, ".mp4": _Movie, ".webp": _Animation}
