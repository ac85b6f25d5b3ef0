"""What is drawn: the solids of each body and of the world, the contacts and the joints of a mechanism, as plain numbers.

A page, a video and a live view draw from a `Scene`, never from a `Mechanism`: so they also draw what was read from a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from torchdojo.geometry.hulls import Hull
from torchdojo.geometry.shapes import Box, Capsule, Cylinder, Ellipsoid, Mesh, Shape, Sphere
from torchdojo.mechanism import Mechanism

__all__ = ["ContactPoint", "JointFrame", "Part", "Scene", "Triangles"]

Vector = tuple[float, ...]

#: What each kind of part writes into `Part.size` [m].
SIZES = {
    "sphere": ("radius",),
    "box": ("x", "y", "z"),
    "capsule": ("radius", "length of the cylinder along z"),
    "cylinder": ("radius", "length along z"),
    "ellipsoid": ("semi-axis x", "semi-axis y", "semi-axis z"),
    "mesh": ("scale x", "scale y", "scale z"),
    "plane": (),  # z = 0 of its frame, solid below
}

GRAY = (0.62, 0.66, 0.72, 1.0)


@dataclass(frozen=True)
class Triangles:
    """A surface: `vertices` (n, 3) [m] and `faces` (m, 3), indices of vertices, counterclockwise seen from outside."""

    vertices: NDArray[np.float32]
    faces: NDArray[np.int32]


@dataclass(frozen=True)
class Part:
    """A solid that is rigid in the frame of a body, or of the world.

    kind, size: see `SIZES`. position (3,) [m] and orientation (4,) wxyz: of the part's frame in the frame of `body` (None: the world).
    color: (4,) red, green, blue, opacity in [0, 1]. role: "visual", "collision" or "ground". mesh: key of `Scene.meshes` of a "mesh".
    """

    kind: str
    size: Vector
    body: str | None
    position: Vector = (0.0, 0.0, 0.0)
    orientation: Vector = (1.0, 0.0, 0.0, 0.0)
    color: Vector = GRAY
    role: str = "collision"
    mesh: str = ""


@dataclass(frozen=True)
class ContactPoint:
    """A contact by name; `body` carries the point that a playback tells the positions of."""

    name: str
    body: str


@dataclass(frozen=True)
class JointFrame:
    """The frame of a joint, rigid in the frame of its child `body`: position (3,) [m], orientation (4,) wxyz."""

    name: str
    body: str
    position: Vector
    orientation: Vector


@dataclass(frozen=True)
class Scene:
    """The drawing of one mechanism, at poses that a `Playback` tells.

    bodies: names, in the order of the poses. meshes: surfaces by key, of the parts of kind "mesh".
    """

    bodies: tuple[str, ...]
    parts: tuple[Part, ...]
    contacts: tuple[ContactPoint, ...] = ()
    joints: tuple[JointFrame, ...] = ()
    meshes: Mapping[str, Triangles] = field(default_factory=dict)

    @classmethod
    def of(cls, mechanism: Mechanism) -> Scene:
        """The scene of a mechanism: the shapes of its bodies. Where parameters differ by environment, those of the first are drawn."""
        parts: list[Part] = []
        meshes: dict[str, Triangles] = {}
        for name, body in mechanism.named_bodies().items():
            parts += [_part(shape, name, f"{name}/{i}", meshes) for i, shape in enumerate(body.shapes)]
        contacts = tuple(ContactPoint(name, contact.body) for name, contact in mechanism.named_contacts().items())
        return cls(tuple(mechanism.bodies), tuple(parts), contacts, (), meshes)


def _part(shape: Shape, body: str, key: str, meshes: dict[str, Triangles]) -> Part:
    place: dict[str, Any] = {"position": _numbers(shape.position), "orientation": _numbers(shape.orientation)}
    if isinstance(shape, Mesh | Hull):
        meshes[key] = Triangles(shape.vertices.detach().numpy().astype(np.float32), shape.faces.numpy().astype(np.int32))
        return Part("mesh", (1.0, 1.0, 1.0), body, mesh=key, **place)
    if isinstance(shape, Sphere):
        return Part("sphere", _numbers(shape.radius), body, **place)
    if isinstance(shape, Box):
        return Part("box", _numbers(shape.size), body, **place)
    if isinstance(shape, Capsule):
        return Part("capsule", _numbers(shape.radius) + _numbers(shape.length), body, **place)
    if isinstance(shape, Cylinder):
        return Part("cylinder", _numbers(shape.radius) + _numbers(shape.length), body, **place)
    if isinstance(shape, Ellipsoid):
        return Part("ellipsoid", _numbers(shape.semi_axes), body, **place)
    raise TypeError(
        f"body {body!r} has a {type(shape).__name__}; the viewer draws Sphere, Box, Capsule, Cylinder, Ellipsoid, Mesh and Hull"
    )


def _numbers(value: torch.Tensor) -> Vector:
    return tuple(value.detach().cpu().reshape(-1).tolist())
