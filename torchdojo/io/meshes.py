"""Meshes of robot files: where the file is, what it holds, and the hull that touches the ground for it."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from torchdojo.geometry.hulls import Hull, MeshSource
from torchdojo.geometry.shapes import Shape
from torchdojo.io.report import Effect, Findings
from torchdojo.io.robot import Array

__all__ = ["MESH_MODES", "Folders", "MeshMode", "MeshReader", "MeshReference", "check_mode", "find_mesh", "mesh_vertices", "read_mesh"]

MeshMode = Literal["hull", "skip", "pieces"] | None
MESH_MODES = ("hull", "skip", "pieces", None)
Folders = str | Path | Sequence[str | Path]
UNITS = {".dae"}  # formats that name their unit of length


@dataclass(frozen=True)
class MeshReference:
    """A mesh as a file names it: a path, possibly package://, and a scale of its axes."""

    name: str
    scale: tuple[float, float, float] = (1.0, 1.0, 1.0)


def check_mode(mode: Any) -> None:
    """Refuse an unknown value of `mesh=`."""
    if mode not in MESH_MODES:
        raise ValueError(
            f"mesh is {mode!r}; allowed: 'hull', 'skip' (the same, without meshes that cannot be read), 'pieces' (convex pieces touch "
            "other bodies), None (no meshes)"
        )


@dataclass
class MeshReader:
    """Reads collision meshes as `mesh=` says: "hull" raises where one cannot be read, "skip" notes it and goes on, None reads none.
    "pieces" is "hull" with convex pieces of each mesh.

    Args:
        robot: the file that names the meshes. part: what the format calls a link.
        folders: further folders to look in, see `find_mesh`. count: largest number of contact points of each mesh.
        cut: vertices (n, 3) and triangles (m, 3) -> convex pieces, for "pieces".

    Raises:
        ValueError: an unknown mode.
    """

    robot: Path
    part: str
    mode: MeshMode = "hull"
    folders: Folders = ()
    count: int = 16
    cut: Callable[[Array, NDArray[np.int64]], tuple[Hull, ...]] | None = None
    skipped: list[str] = field(default_factory=list)  #: in words: what is left out
    hulls: dict[MeshSource, Hull] = field(default_factory=dict)  #: those read so far: legs and wheels share a file

    def __post_init__(self) -> None:
        check_mode(self.mode)

    def hull(self, reference: MeshReference, owner: str, **pose: Any) -> Hull | None:
        """The hull of a mesh file, or None where it is left out.

        Args:
            owner: name of the link that the mesh belongs to. pose: of the mesh in the body's frame, keywords of `Hull`.

        Raises:
            FileNotFoundError: no such file, with mode "hull". ValueError: a file without vertices or that cannot be read, likewise.
            ImportError: trimesh or scipy is not installed.
        """
        if self.mode is None:
            self.skipped.append(f"{owner} ({reference.name})")
            return None
        try:
            path = find_mesh(reference.name, self.robot, self.folders)
            source = MeshSource(path, reference.scale)
            if source not in self.hulls:
                self.hulls[source] = Hull(mesh_vertices(path) * np.array(reference.scale), count=self.count, source=source)
                if self.mode == "pieces" and self.cut is not None:
                    vertices, faces, _ = read_mesh(path)
                    self.hulls[source].pieces = self.cut(vertices * np.array(reference.scale), faces)
        except (FileNotFoundError, ValueError) as error:
            if self.mode == "skip":
                self.skipped.append(f"{owner} ({reference.name})")
                return None
            remedy = "mesh_path=FOLDER adds a folder to look in, mesh='skip' goes on without it"
            if self.mode == "pieces":
                remedy += ", mesh='hull' takes its convex hull"
            raise type(error)(f"{self.robot}: collision mesh of {self.part} {owner!r}: {error}; {remedy}") from error
        hull = _posed(self.hulls[source], pose)
        hull.pieces = tuple(_posed(piece, pose) for piece in hull.pieces)
        return hull

    def report(self, findings: Findings, effect: Effect) -> None:
        """Report what is left out, and whether the motion depends on it."""
        reason = f"mesh=None: those {self.part}s make no contact with them"
        if self.mode is not None:
            reason = f"they are not there or cannot be read, so those {self.part}s make no contact with them; mesh='hull' refuses this"
        findings.add("ignored", "collision meshes", dict.fromkeys(self.skipped), reason, effect)


def _posed(hull: Hull, pose: dict[str, Any]) -> Hull:
    """The hull at another pose."""
    twin = copy.copy(hull)
    Shape.__init__(twin, **pose)
    return twin


def find_mesh(name: str, robot: Path, further: Folders = ()) -> Path:
    """The file that `name` means: a path, absolute or relative, or ``package://PACKAGE/PATH`` (``model://`` likewise).

    It is looked up in the `further` folders, in the folder of the robot's file, in the parents of that folder, and in those of the
    environment variable ROS_PACKAGE_PATH. A folder may be the one that a relative path starts from, the one that holds the package, the
    package itself, or any inside it: the longest tail of the name that exists in one of them counts. The bare name of a file would mean too
    little in the parents and in packages, and counts in the others alone.

    Raises:
        FileNotFoundError: none of the folders has it; the message lists them.
    """
    text = name.replace("\\", "/").removeprefix("file://")
    if "://" not in text and Path(text).is_absolute():
        if Path(text).is_file():
            return Path(text)
        raise FileNotFoundError(f"{name!r} is not there")
    further_folders = [further] if isinstance(further, (str, Path)) else further
    robot_folder = Path(os.path.abspath(robot)).parent  # not resolve(): a folder of links stays where it is
    near = [*(Path(folder).expanduser() for folder in further_folders), robot_folder]
    packages = [Path(folder) for folder in os.environ.get("ROS_PACKAGE_PATH", "").split(os.pathsep) if folder]
    folders = list(dict.fromkeys([*near, *robot_folder.parents, *packages]))
    parts = PurePosixPath(text.split("://")[-1].lstrip("/")).parts  # some write package:///PACKAGE/PATH
    for start in range(len(parts)):
        tail = Path(*parts[start:])
        for folder in near if start and len(tail.parts) == 1 else folders:
            if os.path.isfile(f"{folder}/{tail}"):  # five times as fast as Path.is_file
                return folder / tail
    raise FileNotFoundError(f"{name!r} is in none of the folders {', '.join(map(str, folders))}")


def mesh_vertices(path: Path) -> Array:
    """Vertices (n, 3) of a mesh file in the file's frame [m]: STL, OBJ, DAE and whatever else trimesh reads.

    Lengths are in meters, except that a DAE names its unit. Its up axis is ignored, as robot files expect.

    Raises:
        ImportError: trimesh, or what it needs for the format, is not installed. ValueError: no mesh, or one without vertices.
    """
    vertices = np.asarray(_load(path)[0].vertices, dtype=np.float64)
    if not len(vertices):
        raise ValueError(f"{path} is empty: it has no vertices")
    return vertices


def read_mesh(path: Path) -> tuple[Array, NDArray[np.int64], tuple[float, ...] | None]:
    """Vertices as of `mesh_vertices` with equal ones merged, triangles (m, 3), and the color (4,) of the file, or None.

    Where the file has several colors, that of its largest part counts.

    Raises:
        ImportError, ValueError: as `mesh_vertices`; no triangles.
    """
    mesh, scene = _load(path)
    if not len(mesh.vertices) or not len(mesh.faces):
        raise ValueError(f"{path} is empty: it has no triangles")
    color = _color(max(scene.geometry.values(), key=lambda part: len(getattr(part, "faces", ()))).visual)
    mesh.merge_vertices(merge_tex=True, merge_norm=True)
    return np.asarray(mesh.vertices, dtype=np.float64), np.asarray(mesh.faces), color


def _color(visual: Any) -> tuple[float, ...] | None:
    """Color (4,) of a part, or None where the file gives none."""
    try:
        color = (visual.material if visual.kind == "texture" else visual).main_color if visual.defined else ()
        numbers = tuple(float(channel) / 255 for channel in np.ravel(color))
    except (AttributeError, TypeError, ValueError):  # a material of some format without a plain color
        return None
    return (*numbers, 1.0)[:4] if len(numbers) in (3, 4) else None


def _load(path: Path) -> tuple[Any, Any]:
    """A `trimesh.Trimesh` of all meshes of a file, and their `trimesh.Scene`."""
    try:
        import trimesh
    except ImportError as error:
        raise ImportError('reading meshes needs the package trimesh: pip install "torchdojo[mesh]"') from error
    try:
        scene = trimesh.load_scene(str(path), process=False)
        if path.suffix.lower() in UNITS:
            scene = scene.convert_units("meters")
        return scene.to_mesh(), scene
    except ImportError:
        raise
    except Exception as error:  # the parsers of trimesh raise whatever their formats make them raise
        raise ValueError(f"{path} cannot be read as a mesh: {type(error).__name__}: {error}") from error
