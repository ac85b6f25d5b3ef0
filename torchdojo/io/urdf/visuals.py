"""The picture of a URDF file: the ``<visual>`` elements of its links, with their materials. Nothing here stops a robot from loading.

An element that cannot be read is left out: the motion does not depend on it. A mesh is kept as a reference, and read when it is drawn.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

import numpy as np
import torch

from torchdojo.geometry.hulls import MeshSource
from torchdojo.geometry.visuals import Visual
from torchdojo.io.meshes import Folders, MeshReference, find_mesh
from torchdojo.io.robot import Array, Pose, clean_name, compose
from torchdojo.quaternion import from_rotation_matrix

__all__ = ["UrdfVisual", "origin_of", "place_visuals", "read_visuals"]

#: element of <geometry> -> attributes that make up the size of a `Visual`
SIZES = {"box": ("size",), "sphere": ("radius",), "cylinder": ("radius", "length"), "capsule": ("radius", "length")}


@dataclass(frozen=True)
class UrdfVisual:
    """A ``<visual>`` of a link, in the frame of the link."""

    solid: Visual  #: at the origin; a box of no size where there is a mesh
    pose: Pose
    mesh: MeshReference | None = None


def origin_of(element: Element | None) -> Array:
    """(4, 4) of xyz [m] and rpy [rad]: roll, pitch and yaw about fixed axes, yaw last."""
    xyz, rpy = (
        [float(word) for word in (element.get(key, "") if element is not None else "").split()] or [0.0] * 3 for key in ("xyz", "rpy")
    )
    pose = np.eye(4)
    pose[:3, 3] = xyz
    for axis, angle in enumerate(rpy):
        turn = np.eye(3)
        i, j = (axis + 1) % 3, (axis + 2) % 3
        turn[[i, j], [i, j]] = math.cos(angle)
        turn[i, j], turn[j, i] = -math.sin(angle), math.sin(angle)
        pose[:3, :3] = turn @ pose[:3, :3]
    return pose


def read_visuals(root: Element) -> dict[str, tuple[UrdfVisual, ...]]:
    """Visuals by clean name of the link."""
    colors = _colors(root)
    visuals: dict[str, tuple[UrdfVisual, ...]] = {}
    for link in root.findall("link"):
        read = [_read(visual, colors) for visual in link.findall("visual")]
        visuals[clean_name(link.get("name", ""))] = tuple(visual for visual in read if visual is not None)
    return visuals


def _colors(root: Element) -> dict[str, tuple[float, ...]]:
    """Colors of the materials with a name: those of the robot, and behind them those that a visual defines for all others."""
    colors: dict[str, tuple[float, ...]] = {}
    for material in (*root.findall("material"), *root.iter("material")):
        color = _color(material)
        if color is not None and material.get("name"):
            colors.setdefault(str(material.get("name")), color)
    return colors


def _color(material: Element) -> tuple[float, ...] | None:
    numbers = _numbers((material.find("color") if material.find("color") is not None else Element("color")), "rgba")
    return tuple(min(max(number, 0.0), 1.0) for number in numbers) if len(numbers) == 4 else None


def _numbers(element: Any, attribute: str) -> tuple[float, ...]:
    """The finite numbers of an attribute, or none."""
    try:
        numbers = tuple(float(word) for word in element.get(attribute, "").split())
    except ValueError:
        return ()
    return numbers if all(math.isfinite(number) for number in numbers) else ()


def _read(visual: Element, colors: Mapping[str, tuple[float, ...]]) -> UrdfVisual | None:
    material, geometry = visual.find("material"), visual.find("geometry")
    shape = next(iter(geometry), None) if geometry is not None else None
    if shape is None:
        return None
    color = None if material is None else _color(material) or colors.get(str(material.get("name")))
    try:
        origin = origin_of(visual.find("origin"))
        pose = origin[:3, :3], origin[:3, 3]
        if not np.isfinite(origin).all():
            return None
        if shape.tag == "mesh" and shape.get("filename"):
            x, y, z = _numbers(shape, "scale") or (1.0, 1.0, 1.0)
            return UrdfVisual(Visual("box", (0.0, 0.0, 0.0), color=color), pose, MeshReference(str(shape.get("filename")), (x, y, z)))
        kind = str(shape.tag)
        size = tuple(number for name in SIZES[kind] for number in _numbers(shape, name))
        return UrdfVisual(Visual(kind, size, color=color), pose)
    except (KeyError, ValueError):
        return None


def place_visuals(
    visuals: Mapping[str, tuple[UrdfVisual, ...]],
    links: Iterable[str],
    poses: Mapping[str, Pose],
    center: Array,
    robot: Path,
    folders: Folders,
) -> tuple[Visual, ...]:
    """Visuals of links fixed to each other, in the frame of their body, whose center of mass is given in the frame of the poses."""
    shown = [(visual, compose(poses[link], visual.pose)) for link in links for visual in visuals.get(link, ())]
    if not shown:
        return ()
    turns = from_rotation_matrix(torch.as_tensor(np.stack([rotation for _, (rotation, _) in shown]))).tolist()
    placed = []
    for (visual, (_, position)), turn in zip(shown, turns, strict=True):
        place: dict[str, Any] = {"position": tuple((position - center).tolist()), "orientation": tuple(turn)}
        if visual.mesh is not None:
            source = MeshSource(_path(visual.mesh.name, robot, folders), visual.mesh.scale)
            placed.append(Visual("mesh", (), color=visual.solid.color, mesh=source, **place))
        else:
            placed.append(replace(visual.solid, **place))
    return tuple(placed)


def _path(name: str, robot: Path, folders: Folders) -> Path:
    """The file of a mesh, or the name as it stands where there is none."""
    try:
        return find_mesh(name, robot, folders)
    except (FileNotFoundError, OSError):
        return Path(name)
