"""Cores of shapes as the kernel reads them: float64 numbers as words of a table.

The count of cores; of each the counts of corners, faces and edges, its radius, and whether it is an ellipsoid; then corners (3 numbers
each), faces (normal and offset), edges (ends, faces, both inward directions, outward direction), and the rotation and semi-axes of an
ellipsoid.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from torchdojo.geometry.polytopes import Polytope
from torchdojo.quaternion import rotation_matrix

__all__ = ["words"]


def words(cores: Sequence[Polytope]) -> list[int]:
    """The cores as int32 words; none for no cores."""
    if not cores:
        return []
    numbers = [np.array([len(cores)], dtype=np.float64)]
    for core in cores:
        counts = [len(core.vertices), len(core.normals), len(core.edges), core.radius, core.semi_axes is not None]
        faces = torch.cat((core.normals, core.offsets[:, None]), -1)
        edges = torch.cat((core.edges.double(), core.faces.double(), core.inward.flatten(1), core.outward), -1)
        numbers += [np.array(counts, dtype=np.float64), *(part.numpy().reshape(-1) for part in (core.vertices, faces, edges))]
        if core.semi_axes is not None and core.orientation is not None:
            numbers.append(torch.cat((rotation_matrix(core.orientation).flatten(), core.semi_axes)).numpy())
    return np.concatenate(numbers).view(np.int32).tolist()
