"""Height fields of an MJCF model that are ground of the world."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from torchdojo.geometry.heights import SAMPLES, HeightField
from torchdojo.io.mjcf.model import CompiledMjcf, import_mujoco
from torchdojo.io.report import Findings
from torchdojo.io.robot import Array

__all__ = ["read_ground"]

TURNED = 1e-6  # largest deviation between the axes of a geom and of the world
SMOOTH = (
    "the ground is a cubic B-spline whose control values are the samples, smooth where MuJoCo has edges: on the surface of a quadratic "
    "it lies c²/6 (∂²/∂x² + ∂²/∂y²) off, with cells c; beyond the border it goes on level; it has no underside"
)


def read_ground(compiled: CompiledMjcf, label: Callable[[int], str], findings: Findings) -> tuple[int, HeightField] | None:
    """The first height field of the world that can be ground, and its geom. None: there is none.

    `findings` has how its surface differs from MuJoCo's, and which height fields are left out: a second one, since the first has no end;
    those whose vertical is not that of the world, or that are not turned by quarters of a turn; those with less than four samples a side.
    """
    model, ground = compiled.model, None
    for g in np.flatnonzero(model.geom_type == int(import_mujoco().mjtGeom.mjGEOM_HFIELD)).tolist():
        if model.body_weldid[model.geom_bodyid[g]] or not (model.geom_contype[g] or model.geom_conaffinity[g]):
            continue
        axes = compiled.data.geom_xmat[g].reshape(3, 3)
        if ground is not None:
            findings.add("ignored", "height fields", label(g), "the ground is one height field, the first of the file")
        elif axes[2, 2] < 1 - TURNED or np.abs(axes - axes.round()).max() > TURNED:
            findings.add("ignored", "height fields", label(g), "they are tilted, or not turned by quarters of a turn about the vertical")
        elif (field := _field(model, compiled.data.geom_xpos[g], axes, int(model.geom_dataid[g]))) is None:
            findings.add("ignored", "height fields", label(g), f"they have less than {SAMPLES} rows or columns; refine them")
        else:
            findings.add("approximated", "height fields", label(g), SMOOTH)
            ground = g, field
    return ground


def _field(model: Any, place: Array, axes: Array, number: int) -> HeightField | None:
    """MuJoCo has rows along y and columns along x, shares of the largest height, and half lengths of the sides."""
    rows, columns = int(model.hfield_nrow[number]), int(model.hfield_ncol[number])
    if min(rows, columns) < SAMPLES:
        return None
    start = int(model.hfield_adr[number])
    shares = np.asarray(model.hfield_data[start : start + rows * columns], dtype=np.float64).reshape(rows, columns).T
    half_x, half_y, top = (float(length) for length in model.hfield_size[number][:3])
    quarters = round(np.arctan2(axes[1, 0], axes[0, 0]) / (np.pi / 2))
    # The first axis of an array is x, the second y: a turn of the array from the first to the second axis turns the ground alike.
    heights = place[2] + top * np.rot90(shares, quarters)
    sides = (half_y, half_x) if quarters % 2 else (half_x, half_y)
    cell = [2 * side / (count - 1) for side, count in zip(sides, heights.shape, strict=True)]
    return HeightField(heights.copy(), cell, origin=[float(place[0]) - sides[0], float(place[1]) - sides[1]])
