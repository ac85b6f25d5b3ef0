"""How fixed shapes of a scene are drawn: the viewer draws those that contacts know; the others become visuals of the scenery."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from torch import Tensor

from torchdojo.geometry.hulls import Hull
from torchdojo.geometry.shapes import Box, Capsule, Cylinder, Ellipsoid, Mesh, Shape, Sphere
from torchdojo.geometry.visuals import Triangles, Visual
from torchdojo.geometry.world import World

__all__ = ["drawn"]

KNOWN = (Sphere, Capsule, Box)  # kinds that a contact has whole
SIZES: dict[type[Shape], tuple[str, tuple[str, ...]]] = {
    Sphere: ("sphere", ("radius",)),
    Capsule: ("capsule", ("radius", "length")),
    Box: ("box", ("size",)),
    Cylinder: ("cylinder", ("radius", "length")),
    Ellipsoid: ("ellipsoid", ("semi_axes",)),
}


def drawn(world: Mapping[str, World], touched: Collection[str]) -> tuple[Visual, ...]:
    """Visuals of the shapes that no contact shows. touched: names of those with contacts. Of a batch, the first is drawn."""
    shapes = [item for name, item in world.items() if isinstance(item, Shape) and not (name in touched and isinstance(item, KNOWN))]
    return tuple(visual for visual in map(_visual, shapes) if visual is not None)


def _visual(shape: Shape) -> Visual | None:
    pose: dict[str, Any] = {"position": _first(shape.position, 1), "orientation": _first(shape.orientation, 1)}
    if isinstance(shape, Mesh | Hull):
        vertices = np.array(_first(shape.vertices, 2), dtype=np.float32)
        return Visual("mesh", mesh=Triangles(vertices, shape.faces.cpu().numpy().astype(np.int32)), **pose)
    for cls, (kind, names) in SIZES.items():
        if isinstance(shape, cls):
            size = [_first(getattr(shape, name), int(name in ("size", "semi_axes"))) for name in names]
            return Visual(kind, tuple(n for value in size for n in (value if isinstance(value, tuple) else (value,))), **pose)
    return None  # a shape of a user's own


def _first(value: Tensor, ndim: int) -> Any:
    """The numbers of the first environment, as a tuple."""
    one = value.detach().reshape(-1, *value.shape[value.ndim - ndim :])[0].tolist()
    return tuple(one) if ndim else one
