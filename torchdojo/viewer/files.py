"""Trajectory files: playbacks in one .npz that any tool can write with numpy. README.md beside this file documents every key."""

from __future__ import annotations

import json
import os
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from torchdojo.geometry.hulls import MeshSource
from torchdojo.geometry.visuals import Triangles
from torchdojo.runs import check_arrays
from torchdojo.viewer.playback import Playback
from torchdojo.viewer.scene import SIZES, ContactPoint, JointFrame, Part, Scene
from torchdojo.viewer.surfaces import Surfaces, placeholder

__all__ = ["KEY", "VERSION", "load_playbacks", "playback_arrays", "save_playbacks"]

KEY = "playback"  #: of the description, a text of JSON
VERSION = 1
#: How to get a file that can be drawn, for errors.
REMEDY = "torchdojo simulate NAME --output DIR and torchdojo.viewer.save_playbacks(path, playbacks) write files that can be drawn"
ARRAYS = {"positions": ("bodies", 3), "orientations": ("bodies", 4), "contact_points": ("contacts", 3), "contact_forces": ("contacts", 3)}
#: Largest unit [m, N], and digits (binary) of the largest number, that arrays are rounded to: they then compress to a fifth.
ROUNDING = {"contact_points": (2.0**-16, 17), "contact_forces": (np.inf, 20)}
ROLES = ("visual", "collision", "ground")

Arrays = dict[str, NDArray[Any]]
Entry = TypeVar("Entry", Part, ContactPoint, JointFrame)


def save_playbacks(path: str | Path, playbacks: Playback | Sequence[Playback]) -> Path:
    """Write playbacks to an .npz and return its path.

    Meshes of files stay references: relative to the folder of the .npz where they are inside it, absolute otherwise.

    Raises:
        ValueError: no playback. FileNotFoundError: no such folder.
    """
    path = Path(path)
    if path.suffix != ".npz":
        raise ValueError(f"cannot write {str(path)!r}: a trajectory file ends in .npz")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"cannot write {str(path)!r}: the folder {str(path.parent)!r} does not exist; make it first")
    np.savez_compressed(path, **playback_arrays(playbacks, path.parent))  # type: ignore[arg-type]  # no key is "allow_pickle"
    return path


def playback_arrays(playbacks: Playback | Sequence[Playback], folder: str | Path) -> Arrays:
    """The arrays of `save_playbacks`, for a file in `folder` that holds other arrays as well."""
    listed = [playbacks] if isinstance(playbacks, Playback) else list(playbacks)
    if not listed:
        raise ValueError("a trajectory file needs at least one Playback, but received none")
    arrays: Arrays = {}
    scenes: dict[int, int] = {}
    descriptions, heads = [], []
    for number, playback in enumerate(listed):
        if id(playback.scene) not in scenes:
            scenes[id(playback.scene)] = len(scenes)
            descriptions.append(_describe(playback.scene, Path(folder), f"{KEY}/scenes/{len(scenes) - 1}", arrays))
        heads.append({"label": playback.label, "scene": scenes[id(playback.scene)], "timestep": playback.timestep})
        name = f"{KEY}/{number}"
        arrays[f"{name}/times"] = np.asarray(playback.times, dtype=np.float64)
        for key in ARRAYS:
            if getattr(playback, key) is not None:
                arrays[f"{name}/{key}"] = _rounded(getattr(playback, key), ROUNDING.get(key))
        for curve, values in playback.curves.items():
            arrays[f"{name}/curves/{curve}"] = np.asarray(values, dtype=np.float32)
        for tendon, points in playback.strings.items():
            arrays[f"{name}/strings/{tendon}"] = np.asarray(points, dtype=np.float32)
        for tendon, values in playback.loads.items():
            arrays[f"{name}/loads/{tendon}"] = np.asarray(values, dtype=np.float32)
    arrays[KEY] = np.array(json.dumps({"version": VERSION, "scenes": descriptions, "playbacks": heads}))
    return arrays


def _rounded(values: NDArray[Any], rounding: tuple[float, int] | None) -> NDArray[Any]:
    """Float32, in multiples of a power of two where there is a rounding."""
    with np.errstate(invalid="ignore"):
        largest = 0.0 if rounding is None else float(np.nanmax(np.abs(values), initial=0.0))
    if rounding is None or not 0.0 < largest < np.inf:
        return np.asarray(values, dtype=np.float32)
    unit = min(rounding[0], 2.0 ** (np.floor(np.log2(largest)) - rounding[1]))
    return np.asarray(np.round(values / unit) * unit, dtype=np.float32)


def _describe(scene: Scene, folder: Path, name: str, arrays: Arrays) -> dict[str, Any]:
    """A scene as JSON; surfaces without a file go into `arrays`."""
    sources: Mapping[str, Triangles | MeshSource] = scene.meshes.sources if isinstance(scene.meshes, Surfaces) else scene.meshes
    meshes: dict[str, Any] = {}
    for key, source in sources.items():
        if isinstance(source, MeshSource):
            meshes[key] = {"path": _reference(source.path, folder), "scale": list(source.scale)}
        else:
            arrays[f"{name}/meshes/{key}/vertices"] = np.asarray(source.vertices, dtype=np.float32)
            arrays[f"{name}/meshes/{key}/faces"] = np.asarray(source.faces, dtype=np.int32)
            meshes[key] = {"color": None if source.color is None else list(source.color)}
    return {
        "bodies": list(scene.bodies),
        "parts": [asdict(part) for part in scene.parts],
        "contacts": [asdict(contact) for contact in scene.contacts],
        "joints": [asdict(joint) for joint in scene.joints],
        "meshes": meshes,
    }


def _reference(path: Path | None, folder: Path) -> str:
    if path is None:
        return ""
    full, base = Path(os.path.abspath(path)), Path(os.path.abspath(folder))
    if not path.is_file():
        return path.as_posix()  # as the robot's file has it
    return full.relative_to(base).as_posix() if full.is_relative_to(base) else full.as_posix()


# -- reading -----------------------------------------------------------------------------------------------------------------------------


def load_playbacks(path: str | Path) -> list[Playback]:
    """The playbacks of a trajectory file. Nothing in the file is executed, and unknown keys are ignored.

    A mesh of a file is read when it is drawn; where it is gone, a marked box stands in for it.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: not an .npz, truncated, without a drawing, of a newer version, or inconsistent.
    """
    path = Path(path)
    try:
        arrays = _read(path)
        description = json.loads(str(arrays[KEY]))
        version = description["version"]
        if version > VERSION:
            raise _FileError(
                f"has version {version} of the trajectory file, and this torchdojo reads versions up to {VERSION}: update torchdojo, or "
                "write the file with an older one"
            )
        scenes = [_scene(entry, path.parent, f"{KEY}/scenes/{i}", arrays) for i, entry in enumerate(description["scenes"])]
        heads = description["playbacks"]
        if not heads:
            raise _FileError("has no playbacks; it needs at least one")
        return [_playback(head, scenes[head.get("scene", 0)], f"{KEY}/{i}", arrays) for i, head in enumerate(heads)]
    except _FileError as error:
        raise ValueError(f"{path} {error}") from None
    except KeyError as error:
        raise ValueError(f"{path} lacks {error.args[0]!r}; the schema stands in torchdojo/viewer/README.md") from error
    except (IndexError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path} does not follow the schema in torchdojo/viewer/README.md: {error}") from error


class _FileError(ValueError):
    """A message that says what is wrong with the file, whose name comes in front."""


def _read(path: Path) -> Arrays:
    if not path.is_file():
        raise FileNotFoundError(f"trajectory file {str(path)!r} does not exist (working directory {str(Path.cwd())!r}); {REMEDY}")
    if not zipfile.is_zipfile(path):
        with path.open("rb") as file:
            start = file.read(2)
        what = "is truncated: the end of the .npz is not there; write it again" if start == b"PK" else f"is not an .npz file; {REMEDY}"
        raise _FileError(what)
    try:
        with np.load(path, allow_pickle=False) as file:
            if KEY not in file.files:
                keys = ", ".join(file.files[:6]) + (", ..." if len(file.files) > 6 else "")
                old = "; with the mechanism that made it, torchdojo view FILE --mechanism NAME|ROBOT draws it" if "z" in file.files else ""
                raise _FileError(f"has no drawing (key {KEY!r}); it has {keys}{old}. {REMEDY}")
            wanted = [key for key in file.files if key.split("/")[0] == KEY]
            check_arrays(file, wanted)
            return {key: file[key] for key in wanted}
    except _FileError:
        raise
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, KeyError, NotImplementedError) as error:
        raise _FileError(f"is truncated or damaged: {error}; write it again") from error


def _scene(entry: Mapping[str, Any], folder: Path, name: str, arrays: Arrays) -> Scene:
    bodies = tuple(str(body) for body in entry["bodies"])
    parts = tuple(_entry(Part, part) for part in entry["parts"])
    meshes = {key: _mesh(mesh, folder, f"{name}/meshes/{key}", arrays) for key, mesh in entry.get("meshes", {}).items()}
    for number, part in enumerate(parts):
        if part.kind not in SIZES or len(part.size) != len(SIZES[part.kind]):
            raise _FileError(f"has part {number} of kind {part.kind!r} and size {part.size}; kinds and sizes [m]: {SIZES}")
        if part.body is not None and part.body not in bodies:
            raise _FileError(f"has part {number} on the body {part.body!r}; bodies are {list(bodies)}, and null is the world")
        if part.role not in ROLES:
            raise _FileError(f"has part {number} of the role {part.role!r}; allowed: {', '.join(ROLES)}")
        if part.kind == "mesh" and part.mesh not in meshes:
            raise _FileError(f"has part {number} of the mesh {part.mesh!r}; meshes are {list(meshes)}")
    contacts = tuple(_entry(ContactPoint, contact) for contact in entry.get("contacts", ()))
    return Scene(bodies, parts, contacts, tuple(_entry(JointFrame, joint) for joint in entry.get("joints", ())), Surfaces(meshes))


def _entry(cls: type[Entry], values: Mapping[str, Any]) -> Entry:
    """A dataclass from those of the values that it has: later versions may add others."""
    entry: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in values.items() if key in cls.__dataclass_fields__
    }
    for key in ("position", "orientation", "color"):
        if key in entry and (len(entry[key]) != (3 if key == "position" else 4) or not np.isfinite(entry[key]).all()):
            raise _FileError(f"has {key} {entry[key]} of a {cls.__name__}; allowed: {3 if key == 'position' else 4} finite numbers")
    return cls(**entry)


def _mesh(entry: Mapping[str, Any], folder: Path, name: str, arrays: Arrays) -> Triangles | MeshSource:
    if "path" in entry:
        path = Path(entry["path"]) if entry["path"] else None
        x, y, z = entry.get("scale", (1.0, 1.0, 1.0))
        return MeshSource(path if path is None or path.is_absolute() else folder / path, (float(x), float(y), float(z)))
    vertices, faces = np.asarray(arrays[f"{name}/vertices"], np.float32), np.asarray(arrays[f"{name}/faces"], np.int32)
    if vertices.ndim != 2 or vertices.shape[1] != 3 or faces.ndim != 2 or faces.shape[1] != 3 or not len(faces):
        return placeholder(f"{name} has vertices of shape {vertices.shape} and faces of shape {faces.shape}, not (n, 3) and (m, 3)")
    if faces.min() < 0 or faces.max() >= len(vertices):
        return placeholder(f"{name} has faces that name vertices {faces.min()} to {faces.max()} of {len(vertices)}")
    color = entry.get("color")
    return Triangles(vertices, faces, None if color is None else tuple(map(float, color)))


def _playback(head: Mapping[str, Any], scene: Scene, name: str, arrays: Arrays) -> Playback:
    times = np.asarray(arrays[f"{name}/times"], dtype=np.float64)
    if times.ndim != 1 or not len(times):
        raise _FileError(f"has 0 frames in {name}/times, of shape {times.shape}; a playback needs at least one")
    if not np.isfinite(times).all() or (np.diff(times) <= 0).any():
        raise _FileError(f"has {name}/times that do not increase; allowed: finite, increasing times [s]")
    counts = {"bodies": len(scene.bodies), "contacts": len(scene.contacts)}
    fields: dict[str, Any] = {}
    for key, (what, size) in ARRAYS.items():
        if f"{name}/{key}" in arrays or what == "bodies":
            fields[key] = np.asarray(arrays[f"{name}/{key}"], dtype=np.float64)
            expected = (len(times), counts[what], size)
            if fields[key].shape != expected:
                raise _FileError(f"has {name}/{key} of shape {fields[key].shape}; allowed: {expected}, frames x {what} x {size}")

    def named(kind: str) -> dict[str, NDArray[Any]]:
        start = f"{name}/{kind}/"
        return {key.removeprefix(start): np.asarray(value, np.float64) for key, value in arrays.items() if key.startswith(start)}

    curves, strings, loads = named("curves"), named("strings"), named("loads")
    with np.errstate(invalid="ignore"):
        fields["orientations"] = fields["orientations"] / np.linalg.norm(fields["orientations"], axis=-1, keepdims=True)
    for curve, values in curves.items():
        if values.shape != times.shape:
            raise _FileError(f"has the curve {curve!r} of shape {values.shape}; allowed: {times.shape}, a number for each frame")
    for tendon, points in strings.items():
        if points.ndim != 3 or points.shape[::2] != (len(times), 3):
            raise _FileError(f"has {name}/strings/{tendon} of shape {points.shape}; allowed: ({len(times)}, n, 3), frames x points x 3")
    for tendon, values in loads.items():
        if values.shape != times.shape:
            raise _FileError(f"has {name}/loads/{tendon} of shape {values.shape}; allowed: {times.shape}, a number for each frame")
    fields |= {"curves": curves, "strings": strings, "loads": loads, "timestep": float(head.get("timestep", 0.0))}
    return Playback(scene, times, label=str(head.get("label", "")), **fields)
