"""Solids that are only drawn: what a robot file shows of its links, as plain numbers. No mesh file is read here."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from torchdojo.geometry.hulls import MeshSource

__all__ = ["SIZES", "Triangles", "Visual"]

Vector = tuple[float, ...]

#: What each kind of solid writes into its size [m].
SIZES = {
    "sphere": ("radius",),
    "box": ("x", "y", "z"),
    "capsule": ("radius", "length of the cylinder along z"),
    "cylinder": ("radius", "length along z"),
    "ellipsoid": ("semi-axis x", "semi-axis y", "semi-axis z"),
    "mesh": ("scale x", "scale y", "scale z"),
    "plane": (),  # z = 0 of its frame, solid below
}


@dataclass(frozen=True, eq=False)  # arrays have no truth value; equal is the same object
class Triangles:
    """A surface: `vertices` (n, 3) [m] and `faces` (m, 3), indices of vertices, counterclockwise seen from outside.

    color: of the surface itself, (4,) red, green, blue, opacity; None: the color of the part that it draws. missing: says why this is a
    placeholder for a mesh that cannot be read; empty otherwise.
    """

    vertices: NDArray[np.float32]
    faces: NDArray[np.int32]
    color: Vector | None = None
    missing: str = ""


@dataclass(frozen=True)
class Visual:
    """A solid that is drawn, rigid in the frame of its body.

    kind, size: see `SIZES`. position (3,) [m] and orientation (4,) wxyz: of the solid's frame in the frame of the body. color: (4,) red,
    green, blue, opacity in [0, 1]; None: not given. mesh: of the kind "mesh", a file, or a surface; its scale stands in `MeshSource`.
    """

    kind: str
    size: Vector = ()
    position: Vector = (0.0, 0.0, 0.0)
    orientation: Vector = (1.0, 0.0, 0.0, 0.0)
    color: Vector | None = None
    mesh: MeshSource | Triangles | None = None

    def __post_init__(self) -> None:
        if self.kind not in SIZES:
            raise ValueError(f"Visual: got the kind {self.kind!r}; allowed: {', '.join(map(repr, SIZES))}")
        if (self.kind == "mesh") != (self.mesh is not None):
            raise ValueError(
                f"Visual: got kind={self.kind!r} and mesh={self.mesh!r}; a mesh needs mesh=MeshSource(path) or Triangles, others none"
            )
        for name, count in (
            ("size", 0 if self.mesh is not None else len(SIZES[self.kind])),
            ("position", 3),
            ("orientation", 4),
            ("color", 4),
        ):
            value = getattr(self, name)
            if value is not None and (len(value) != count or not np.isfinite(value).all()):
                raise ValueError(f"Visual: got {name}={value!r} of a {self.kind}; allowed: {count} finite numbers")
