"""Surfaces of a scene by key: files are read when a surface is asked for, and what cannot be read becomes a marked box."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from torchdojo.geometry.hulls import MeshSource
from torchdojo.geometry.visuals import Triangles, Vector
from torchdojo.io.meshes import read_mesh
from torchdojo.parameters import warn_user

__all__ = ["MISSING", "Surfaces", "available", "placeholder"]

MISSING = (0.9, 0.1, 0.7, 1.0)  #: color of a placeholder
EDGE = 0.1  # [m] of a placeholder
CORNERS = np.array([[x, y, z] for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)], dtype=np.float32)
SIDES = ((0, 1, 3, 2), (4, 6, 7, 5), (0, 4, 5, 1), (2, 3, 7, 6), (0, 2, 6, 4), (1, 5, 7, 3))


class Surfaces(Mapping[str, Triangles]):
    """`Triangles` by key. `sources` holds the same keys, with a `MeshSource` in place of what stands in a file."""

    def __init__(self, sources: Mapping[str, Triangles | MeshSource]) -> None:
        self.sources = dict(sources)
        self._read: dict[MeshSource, Triangles] = {}
        self._warned = False

    def __getitem__(self, key: str) -> Triangles:
        source = self.sources[key]
        if isinstance(source, Triangles):
            return source
        if source not in self._read:
            self._read[source] = _triangles(source)
            if self._read[source].missing and not self._warned:
                self._warned = True
                self._warn(self._read[source].missing)
        return self._read[source]

    def _warn(self, reason: str) -> None:
        gone = [str(s.path) for s in dict.fromkeys(self.sources.values()) if isinstance(s, MeshSource) and not available(s)]
        more = f" ({len(gone)} meshes are not there: {', '.join(gone)})" if len(gone) > 1 else ""
        warn_user(f"{reason}; a box of {EDGE:g} m in magenta is drawn in its place{more}")

    def __iter__(self) -> Iterator[str]:
        return iter(self.sources)

    def __len__(self) -> int:
        return len(self.sources)


def available(source: MeshSource) -> bool:
    """Whether the file is there; it may still be one that cannot be read."""
    return source.path is not None and source.path.is_file()


def _triangles(source: MeshSource) -> Triangles:
    """The surface of a file, scaled, or a placeholder."""
    try:
        if source.path is None or not available(source):
            raise FileNotFoundError(f"visual mesh {str(source.path)!r} is not there")
        vertices, faces, color = read_mesh(source.path)
    except (ImportError, OSError, ValueError) as error:
        return placeholder(" ".join(str(error).split()))
    vertices = vertices * np.array(source.scale)
    if np.prod(source.scale) < 0:  # a mirror image has its inside out
        faces = faces[:, ::-1]
    return Triangles(vertices.astype(np.float32), np.ascontiguousarray(faces, dtype=np.int32), color)


def placeholder(reason: str) -> Triangles:
    """The box that stands for a mesh that cannot be read."""
    faces = np.array([triangle for a, b, c, d in SIDES for triangle in ((a, b, c), (a, c, d))], dtype=np.int32)
    color: Vector = MISSING
    return Triangles(EDGE / 2 * CORNERS, faces, color, reason)
