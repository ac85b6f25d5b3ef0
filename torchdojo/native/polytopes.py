"""Polytopes as the kernel reads them: float64 numbers as words of a table.

The count of polytopes; of each the counts of corners, faces and edges, and its radius; then corners (3 numbers each), faces (normal and
offset) and edges (ends, faces, both inward directions, outward direction).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from torchdojo.geometry.polytopes import Polytope

__all__ = ["words"]


def words(cores: Sequence[Polytope]) -> list[int]:
    """The polytopes as int32 words; none for no polytopes."""
    if not cores:
        return []
    numbers = [np.array([len(cores)], dtype=np.float64)]
    for core in cores:
        counts = [len(core.vertices), len(core.normals), len(core.edges), core.radius]
        faces = torch.cat((core.normals, core.offsets[:, None]), -1)
        edges = torch.cat((core.edges.double(), core.faces.double(), core.inward.flatten(1), core.outward), -1)
        numbers += [np.array(counts), *(part.numpy().reshape(-1) for part in (core.vertices, faces, edges))]
    return np.concatenate(numbers).view(np.int32).tolist()
