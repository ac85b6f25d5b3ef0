"""One self-contained HTML file of playbacks: it opens from disk, without a server and without a network.

MeshCat's client (three.js, an orbit camera) draws; page.js beside this file moves the bodies, and page.html is the frame of both.
"""

from __future__ import annotations

import base64
import html
import json
import zlib
from collections.abc import Iterable, Sequence
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchdojo.viewer.playback import Playback
from torchdojo.viewer.scene import GRAY, Part, Scene, Triangles

__all__ = ["page_html", "write_page"]

#: Seconds over which the camera averages the way of the robot that it follows.
CAMERA_WINDOW = 0.5
#: Contacts that push less than this part of the usual force are not drawn: a robot of meshes has hundreds that idle.
LEAST_FORCE = 1e-3
#: Meshes of one page together; more are simplified. A triangle costs about 20 bytes of the page.
MOST_TRIANGLES = 150_000


def write_page(playbacks: Playback | Sequence[Playback], path: str | Path, *, side_by_side: bool = False, title: str = "") -> Path:
    """Write the page of `page_html` to a file and return its path.

    Raises:
        FileNotFoundError: the folder of `path` is not there. Others as `page_html`.
    """
    path = Path(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"cannot write {path}: the folder {path.parent} does not exist; make it first")
    path.write_text(page_html(playbacks, side_by_side=side_by_side, title=title or path.stem), encoding="utf-8")
    return path


def page_html(playbacks: Playback | Sequence[Playback], *, side_by_side: bool = False, title: str = "torchdojo") -> str:
    """A page that plays playbacks, as one string of HTML that refers to nothing outside of itself.

    Args:
        playbacks: one or more. In one picture the first keeps its colors; the others are tinted and translucent.
        side_by_side: each playback starts in a picture of its own, under one camera. The page has a switch for it.
        title: of the window.

    Raises:
        ValueError: no playback, a playback without frames, or arrays whose shapes do not fit its scene.
        ImportError: meshcat is not installed.
    """
    playbacks = [playbacks] if isinstance(playbacks, Playback) else list(playbacks)
    if not playbacks:
        raise ValueError("a page needs at least one Playback, but received none")
    for number, playback in enumerate(playbacks):
        _check(playback, f"playback {number}" + (f" ({playback.label})" if playback.label else ""))
    folder = resources.files("torchdojo.viewer")
    page = Template(folder.joinpath("page.html").read_text(encoding="utf-8"))
    return page.substitute(
        title=html.escape(title),
        client=_packed(_client()),
        glue=_packed(folder.joinpath("page.js").read_bytes()),
        data=_packed(_data(playbacks, side_by_side)),
    )


def _client() -> bytes:
    """MeshCat's client as its Python package ships it. The package itself is not imported: it would bring its server along."""
    spec = find_spec("meshcat")
    if spec is None or spec.origin is None:
        raise ImportError("the page draws with MeshCat's client, and meshcat is not installed: pip install 'torchdojo[pages]'")
    return (Path(spec.origin).parent / "viewer" / "dist" / "main.min.js").read_bytes()


def _packed(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data, 6)).decode("ascii")


def _check(playback: Playback, name: str) -> None:
    frames, scene = playback.num_frames, playback.scene
    if frames == 0:
        raise ValueError(f"{name} has 0 frames; a page needs at least one")
    if not np.isfinite(playback.times).all() or (np.diff(playback.times) < 0).any():
        raise ValueError(f"{name} has times that are not finite or that decrease")
    bodies, contacts = (frames, len(scene.bodies)), (frames, len(scene.contacts), 3)
    shapes = {"positions": (*bodies, 3), "orientations": (*bodies, 4), "contact_points": contacts, "contact_forces": contacts}
    received = {key: getattr(playback, key) for key in shapes}
    received |= {f"curve {key!r}": values for key, values in playback.curves.items()}
    received |= {f"load {key!r}": values for key, values in playback.loads.items()}
    for key, points in playback.strings.items():
        if points.ndim != 3 or points.shape[::2] != (frames, 3):
            raise ValueError(f"{name}: string {key!r} has shape {points.shape}; its times ask for ({frames}, n, 3)")
    for key, value in received.items():
        shape = shapes.get(key, (frames,))
        if value is not None and np.shape(value) != shape:
            raise ValueError(f"{name}: {key} has shape {np.shape(value)}; its times and its scene ask for {shape}")


class _Blob:
    """Arrays one behind another. JSON refers to each by offset [bytes], length and type."""

    def __init__(self) -> None:
        self.places: dict[bytes, int] = {}  # equal arrays, such as meshes of a batch of robots, are written once
        self.size = 0

    def add(self, values: NDArray[Any], kind: str = "f") -> dict[str, Any]:
        data = np.ascontiguousarray(values, dtype=np.float32 if kind == "f" else np.uint32).astype(f"<{kind}4").tobytes()
        if data not in self.places:
            self.places[data] = self.size
            self.size += len(data)
        return {"array": kind, "offset": self.places[data], "length": len(data) // 4}


def _data(playbacks: Sequence[Playback], side_by_side: bool) -> bytes:
    blob = _Blob()
    scenes: dict[int, Scene] = {id(playback.scene): playback.scene for playback in playbacks}
    numbers = {key: number for number, key in enumerate(scenes)}
    force = _usual_force(playbacks)
    simplified, coarse = _simplified([list(scene.meshes.values()) for scene in scenes.values()])
    header = {
        "side_by_side": side_by_side,
        "force": force,
        "scenes": [_scene(scene, surfaces, blob) for scene, surfaces in zip(scenes.values(), simplified, strict=True)],
        "remarks": [remark for remark in (_missing(scenes.values()), coarse) if remark],
        "playbacks": [_playback(playback, numbers[id(playback.scene)], LEAST_FORCE * force, blob) for playback in playbacks],
    }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 4)  # the arrays start at a multiple of four bytes
    return b"".join([len(text).to_bytes(4, "little"), text, *blob.places])


def _scene(scene: Scene, surfaces: Sequence[Triangles], blob: _Blob) -> dict[str, Any]:
    body = {name: number for number, name in enumerate(scene.bodies)} | {None: -1}
    meshes = {key: number for number, key in enumerate(scene.meshes)}
    gone = [part for part in scene.parts if part.kind == "mesh" and scene.meshes[part.mesh].missing]
    solid = {part.body for part in scene.parts if part.role == "collision"} & {part.body for part in gone}

    def entry(part: Part) -> dict[str, Any]:
        role = "visual" if part.body in solid else part.role  # what collides stands for meshes that are gone
        color = scene.color(part)  # without a color of its own, a part takes the color of the playback in plots and legend
        place = {"position": part.position, "orientation": part.orientation, "color": None if color == GRAY else color, "role": role}
        return {"kind": part.kind, "size": part.size, "body": body[part.body], "mesh": meshes.get(part.mesh, -1), **place}

    return {
        "bodies": scene.bodies,
        "parts": [entry(part) for part in scene.parts if part not in gone or part.body not in solid],
        "contacts": [contact.name for contact in scene.contacts],
        "joints": [
            {"name": joint.name, "body": body[joint.body], "position": joint.position, "orientation": joint.orientation}
            for joint in scene.joints
        ],
        "meshes": [{"vertices": blob.add(mesh.vertices), "faces": blob.add(mesh.faces, "u")} for mesh in surfaces],
    }


def _missing(scenes: Iterable[Scene]) -> str:
    count = len({mesh.missing for scene in scenes for mesh in scene.meshes.values() if mesh.missing})
    return f"{count} mesh{'es are' if count > 1 else ' is'} missing: shapes that collide, or magenta boxes" if count else ""


def _simplified(scenes: Sequence[Sequence[Triangles]]) -> tuple[list[list[Triangles]], str]:
    """The surfaces of each scene with at most `MOST_TRIANGLES` together, and a remark that tells how far a vertex has moved."""
    meshes = {id(mesh): mesh for surfaces in scenes for mesh in surfaces}
    coarse, cell = meshes, 0.0
    while sum(len(mesh.faces) for mesh in coarse.values()) > MOST_TRIANGLES:
        cell = 2 * cell or 5e-4
        coarse = {key: _merged(mesh, cell) for key, mesh in meshes.items()}
    remark = f"meshes simplified: vertices moved by up to {1e3 * np.sqrt(3) / 2 * cell:.2g} mm" if cell else ""
    return [[coarse[id(mesh)] for mesh in surfaces] for surfaces in scenes], remark


def _merged(mesh: Triangles, cell: float) -> Triangles:
    """Vertices move to the middle of their cell of a grid, and triangles that lose an edge go."""
    cells = np.floor(mesh.vertices / cell).astype(np.int64)
    cells -= cells.min(axis=0)
    _, first, place = np.unique(cells @ [1 << 42, 1 << 21, 1], return_index=True, return_inverse=True)
    a, b, c = place.reshape(-1)[mesh.faces].T
    keep = (a != b) & (b != c) & (c != a)
    middle = (np.floor(mesh.vertices[first] / cell) + 0.5) * cell
    return Triangles(middle.astype(np.float32), np.stack((a, b, c), axis=-1)[keep].astype(np.int32), mesh.color, mesh.missing)


def _playback(playback: Playback, scene: int, least_force: float, blob: _Blob) -> dict[str, Any]:
    poses = np.concatenate((playback.positions, playback.orientations), axis=-1)
    finite = np.asarray(np.isfinite(poses).all(axis=(1, 2)))
    return {
        "label": playback.label,
        "scene": scene,
        "times": blob.add(playback.times),
        "poses": blob.add(poses),
        "centers": blob.add(_camera_path(playback, finite)),
        "gaps": _runs(~finite),
        **_pushes(playback, least_force, blob),
        "curves": {name: blob.add(values) for name, values in playback.curves.items()},
        "strings": [_string(name, points, playback.loads.get(name), blob) for name, points in playback.strings.items()],
    }


def _string(name: str, points: NDArray[Any], load: NDArray[Any] | None, blob: _Blob) -> dict[str, Any]:
    largest = 0.0 if load is None else float(np.nan_to_num(np.abs(load)).max())
    shares = None if load is None else blob.add(np.nan_to_num(np.abs(load)) / (largest or 1.0))
    return {"name": name, "count": points.shape[1], "points": blob.add(points), "shares": shares}


def _pushes(playback: Playback, least_force: float, blob: _Blob) -> dict[str, Any]:
    """The contacts that push: rows of point and force, (n, 6), and where the rows of each frame start, (K + 1,)."""
    if playback.contact_points is None or playback.contact_forces is None:
        return {"starts": None, "pushes": None}
    rows = np.concatenate((playback.contact_points, playback.contact_forces), axis=-1)
    pushing = np.isfinite(rows).all(-1) & (np.linalg.norm(playback.contact_forces, axis=-1) > least_force)
    starts = np.concatenate(([0], np.cumsum(pushing.sum(axis=1))))
    return {"starts": blob.add(starts, "u"), "pushes": blob.add(rows[pushing])}


def _runs(flags: NDArray[np.bool_]) -> list[list[int]]:
    """First and last index of every run of True."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], flags.astype(int), [0]))))
    return [[int(first), int(end) - 1] for first, end in edges.reshape(-1, 2)]


def _camera_path(playback: Playback, finite: NDArray[np.bool_]) -> NDArray[np.float64]:
    """(K, 3): where the camera looks, the mean of all bodies over `CAMERA_WINDOW`. Gaps are bridged by straight lines."""
    if not finite.any() or not playback.scene.bodies:
        return np.zeros((playback.num_frames, 3))
    times = playback.times
    middle = playback.positions[finite].mean(axis=1)
    middle = np.stack([np.interp(times, times[finite], middle[:, axis]) for axis in range(3)], axis=-1)
    total = np.concatenate((np.zeros((1, 3)), np.cumsum(middle, axis=0)))
    first = np.searchsorted(times, times - CAMERA_WINDOW / 2, side="left")
    last = np.searchsorted(times, times + CAMERA_WINDOW / 2, side="right")
    window = np.minimum(np.arange(len(times)) - first, last - np.arange(len(times)) - 1)  # as far back as ahead
    first, last = np.arange(len(times)) - window, np.arange(len(times)) + window + 1
    return (total[last] - total[first]) / (last - first)[:, None]


def _usual_force(playbacks: Sequence[Playback]) -> float:
    """The largest force of most frames [N], which gets an arrow of fixed length: a few impacts must not shrink all other arrows."""
    largest = [np.zeros(0)]
    for playback in playbacks:
        if playback.contact_forces is not None and playback.scene.contacts:
            largest.append(np.nan_to_num(np.linalg.norm(playback.contact_forces, axis=-1), posinf=0.0).max(axis=1))
    sizes = np.concatenate(largest)
    sizes = sizes[sizes > 0]
    return float(np.quantile(sizes, 0.8)) if sizes.size else 0.0
