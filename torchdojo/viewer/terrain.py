"""Triangles of height fields, and of surfaces with a signed distance, on a grid or as users write it: the highest point over each place."""

from __future__ import annotations

from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray

from torchdojo.elements.contacts import Contact
from torchdojo.geometry.heights import HeightField
from torchdojo.geometry.visuals import Triangles

__all__ = ["terrain"]

REACH = 3.0  # [m] to each side, and up and down
GRID, LEVELS = 61, 61
REFINEMENTS = 12  # halvings of the interval in which the distance changes its sign


@torch.no_grad()
def terrain(contact: Contact) -> Triangles | None:
    """A height field, or the surface of a contact with the world within `REACH` of the origin.

    None where there is none, or where it cannot be evaluated.
    """
    if contact.other_kind == "heights":
        return _field(cast(HeightField, contact.ground))
    side = torch.linspace(-REACH, REACH, GRID, dtype=torch.float64)
    ground = torch.stack(torch.meshgrid(side, side, indexing="ij"), -1).reshape(-1, 2)
    levels = torch.linspace(REACH, -REACH, LEVELS, dtype=torch.float64)
    try:
        inside = torch.stack([_distance(contact, ground, level.expand(len(ground))) <= 0 for level in levels])
        first = inside.int().argmax(0)  # from above
        hits = inside.any(0) & (first > 0)
        high, low = levels[(first - 1).clamp_min(0)], levels[first]
        for _ in range(REFINEMENTS):
            middle = (high + low) / 2
            below = _distance(contact, ground, middle) <= 0
            low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    except Exception:  # code of the user's own, asked at points that it may not expect: no drawing is worth an error
        return None
    faces = _faces(hits.reshape(GRID, GRID).numpy())
    if not len(faces):
        return None
    vertices = torch.cat((ground, ((high + low) / 2)[:, None]), -1).numpy().astype(np.float32)
    used, corners = np.unique(faces, return_inverse=True)
    return Triangles(vertices[used], corners.reshape(faces.shape).astype(np.int32))


def _field(field: HeightField) -> Triangles:
    """The surface at its samples, of the first environment."""
    rows, columns = field.heights.shape[-2:]
    cell, origin = (value.reshape(-1, 2)[0] for value in (field.cell, field.origin))
    number = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    place = origin + cell * torch.stack(number, -1)
    first = HeightField(field.heights.reshape(-1, rows, columns)[0], cell, origin=origin)
    vertices = torch.cat((place, first.height(place)[..., None]), -1).reshape(-1, 3).numpy().astype(np.float32)
    return Triangles(vertices, _faces(np.ones((rows, columns), dtype=bool)).astype(np.int32))


def _distance(contact: Contact, ground: torch.Tensor, height: torch.Tensor) -> torch.Tensor:
    return contact.signed_distance(torch.cat((ground, height[:, None]), -1)).reshape(len(ground))


def _faces(found: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Two triangles for each cell of the grid whose corners are all found, counterclockwise seen from above."""
    number = np.arange(found.size).reshape(found.shape)
    a, b, c, d = number[:-1, :-1], number[1:, :-1], number[1:, 1:], number[:-1, 1:]
    whole = found[:-1, :-1] & found[1:, :-1] & found[1:, 1:] & found[:-1, 1:]
    triangles = [np.stack(corners, -1)[whole] for corners in ((a, b, c), (a, c, d))]
    return np.concatenate(triangles).reshape(-1, 3)
