"""The places of playbacks and of the camera that sees them: offsets, colors, bounds, gaps and the camera. Plain numbers, no graphics."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from torchdojo.viewer.playback import Playback
from torchdojo.viewer.scene import GRAY, Part, Scene

__all__ = ["Camera", "as_playbacks", "finite_frames", "frames_at", "grid_offsets", "part_radius", "tint", "track"]

Array = NDArray[np.float64]

#: Colors of playbacks, those of page.js.
PALETTE = (
    (0.18, 0.36, 0.55),
    (0.88, 0.48, 0.22),
    (0.23, 0.62, 0.36),
    (0.56, 0.36, 0.71),
    (0.77, 0.25, 0.42),
    (0.16, 0.65, 0.63),
    (0.63, 0.54, 0.17),
    (0.42, 0.47, 0.52),
)
#: Opacity of the playbacks after the first where they overlap with it.
OVERLAY_OPACITY = 0.45


def as_playbacks(playbacks: Playback | Sequence[Playback]) -> tuple[Playback, ...]:
    """The given playbacks, each with one frame or more."""
    sequence = (playbacks,) if isinstance(playbacks, Playback) else tuple(playbacks)
    if not sequence:
        raise ValueError("playbacks: got none; give a Playback, or a sequence of one or more")
    for i, playback in enumerate(sequence):
        if not isinstance(playback, Playback):
            raise TypeError(f"playbacks[{i}]: got {type(playback).__name__}; allowed: torchdojo.viewer.Playback")
        if playback.num_frames == 0:
            raise ValueError(f"playbacks[{i}] ({playback.label!r}): got 0 frames; simulate at least one step, or leave it out")
    return sequence


def finite_frames(playback: Playback) -> NDArray[np.bool_]:
    """(K,) whether the poses of a frame are finite; the other frames are gaps."""
    poses = np.concatenate((playback.positions, playback.orientations), axis=-1)
    return np.isfinite(poses.sum(axis=(1, 2)))


def tint(color: Sequence[float], number: int, overlay: bool) -> tuple[float, float, float, float]:
    """The color of a part of a body in a playback. A part without a color of its own takes that of the playback.

    overlay: the playback lies on top of others; all but number 0 are then tinted and translucent.
    """
    red, green, blue, opacity = color
    hue = PALETTE[number % len(PALETTE)]
    if tuple(color) == GRAY:
        red, green, blue = hue
    if number == 0 or not overlay:
        return red, green, blue, opacity
    mixed = [0.25 * channel + 0.75 * new for channel, new in zip((red, green, blue), hue, strict=True)]
    return mixed[0], mixed[1], mixed[2], OVERLAY_OPACITY * opacity


def grid_offsets(count: int, spacing: float) -> Array:
    """(count, 3) places of a nearly square grid on the ground around the origin [m], row by row."""
    columns = math.ceil(math.sqrt(count))
    rows = math.ceil(count / columns)
    place = np.array([(i // columns - (rows - 1) / 2, i % columns - (columns - 1) / 2, 0.0) for i in range(count)])
    return spacing * place.reshape(count, 3)


def part_radius(part: Part, scene: Scene) -> float:
    """Radius of a ball around the origin of the body that holds the part [m]; 0 for planes, which have no end."""
    if part.kind == "plane":
        return 0.0
    if part.kind == "mesh":
        vertices = scene.meshes[part.mesh].vertices
        reach = float(np.linalg.norm(vertices * np.asarray(part.size, dtype=np.float32), axis=-1).max()) if len(vertices) else 0.0
    elif part.kind == "box":
        reach = 0.5 * math.hypot(*part.size)
    elif part.kind == "capsule":
        reach = part.size[0] + 0.5 * part.size[1]
    elif part.kind == "cylinder":
        reach = math.hypot(part.size[0], 0.5 * part.size[1])
    else:
        reach = max(part.size)
    return reach + math.hypot(*part.position)


@dataclass(frozen=True)
class Camera:
    """A camera that looks at `target` (3,) [m] from `distance` [m].

    azimuth: where it looks, counterclockwise from x, seen from above [degrees]. elevation: of the view, negative is down [degrees].
    field_of_view: vertical [degrees].
    """

    target: tuple[float, float, float]
    distance: float
    azimuth: float = 135.0
    elevation: float = -18.0
    field_of_view: float = 40.0

    def project(self, points: Array, size: tuple[int, int]) -> Array:
        """Pixels (..., 2), right and down from the upper left corner, of world points (..., 3) in a picture of `size`, width and height."""
        azimuth, elevation = math.radians(self.azimuth), math.radians(self.elevation)
        forward = np.array([math.cos(elevation) * math.cos(azimuth), math.cos(elevation) * math.sin(azimuth), math.sin(elevation)])
        right = np.array([math.sin(azimuth), -math.cos(azimuth), 0.0])
        seen = np.asarray(points) - (np.asarray(self.target) - self.distance * forward)
        scale = 0.5 * size[1] / math.tan(math.radians(self.field_of_view) / 2) / (seen @ forward)
        return np.stack((0.5 * size[0] + scale * (seen @ right), 0.5 * size[1] - scale * (seen @ np.cross(right, forward))), axis=-1)


def track(playbacks: Sequence[Playback], offsets: Array, times: Array, follow: bool, view: Camera) -> list[Camera]:
    """The cameras at `times` that hold all playbacks in the picture: those that follow glide with the mean of the bodies, others stand.

    view: angles and field of view; its distance is taken where it is positive.
    """
    paths = []  # (times, bodies, 3), NaN in gaps
    margin = 0.0
    for playback, offset in zip(playbacks, offsets, strict=True):
        positions = np.where(finite_frames(playback)[:, None, None], playback.positions, np.nan)
        paths.append(positions[frames_at(playback, times)] + offset)
        margin = max([margin, *(part_radius(part, playback.scene) for part in playback.scene.parts if part.body is not None)])
    points = np.concatenate(paths, axis=1)
    if follow:
        center = _smoothed(_filled(_nanmean(points)), times)
    else:
        inside = points[np.isfinite(points).all(-1)]
        middle = 0.5 * (inside.min(0) + inside.max(0)) if len(inside) else np.zeros(3)
        center = np.broadcast_to(middle, (len(times), 3))
    far = np.linalg.norm(points - center[:, None], axis=-1)
    # A body that a failed step has thrown away shall not make the others a speck.
    # Bodies are rarely at the upper and lower ends of the ball that holds them, so three quarters of its radius do.
    radius = 1.2 * margin + (0.75 * float(np.nanquantile(far, 0.99)) if np.isfinite(far).any() else 0.0)
    distance = view.distance if view.distance > 0.0 else max(radius, 1e-3) / math.sin(math.radians(view.field_of_view) / 2)
    return [Camera((float(x), float(y), float(z)), distance, view.azimuth, view.elevation, view.field_of_view) for x, y, z in center]


def frames_at(playback: Playback, times: Array) -> NDArray[np.intp]:
    """The frame that stands at each time: the last one that has begun; the first before the start, the last after the end."""
    return np.clip(np.searchsorted(playback.times, times + 1e-9, side="right") - 1, 0, playback.num_frames - 1)


def _nanmean(points: Array) -> Array:
    finite = np.isfinite(points).all(-1, keepdims=True)
    count = finite.sum(axis=1)
    return np.where(count > 0, np.where(finite, points, 0.0).sum(axis=1) / np.maximum(count, 1), np.nan)


def _filled(path: Array) -> Array:
    """A path (n, 3) whose gaps are bridged by straight lines."""
    there = np.isfinite(path).all(-1)
    if not there.any():
        return np.zeros_like(path)
    places = np.arange(len(path))
    return np.stack([np.interp(places, places[there], column[there]) for column in path.T], axis=-1)


def _smoothed(path: Array, times: Array, seconds: float = 0.3) -> Array:
    """A path under a Gaussian of this width in time, so that the camera does not shake with each footstep."""
    if len(path) < 3:
        return path
    width = max(1, round(seconds / float(times[1] - times[0])))
    reach = min(3 * width, len(path) - 1)
    kernel = np.exp(-0.5 * (np.arange(-reach, reach + 1) / width) ** 2)
    padded = np.pad(path, ((reach, reach), (0, 0)), mode="edge")
    return np.stack([np.convolve(column, kernel / kernel.sum(), mode="valid") for column in padded.T], axis=-1)
