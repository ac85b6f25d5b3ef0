"""Height fields to walk on: slopes, stairs, rough ground, gaps, a bowl.

Each function returns a `td.HeightField` of `size` (x, y) [m] around zero, with samples at distances of about `cell` [m]. Samples are
control values: a step of stairs is a ramp three cells wide. Within `flat` [m] of the middle, where robots start, stairs, rough ground and
ground with gaps are level. Beyond its border a field goes on level.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from torchdojo.geometry.heights import SAMPLES, HeightField

__all__ = ["bowl", "gaps", "make", "rough", "slope", "stairs"]

SIZE, CELL = (8.0, 8.0), 0.05
Size = tuple[float, float]


def slope(angle: float = 0.2, *, size: Size = SIZE, cell: float = CELL) -> HeightField:
    """A plane that rises along x at `angle` [rad], |angle| < π/2, from height zero in the middle."""
    if not abs(angle) < math.pi / 2:
        raise ValueError(f"slope: got angle={angle}; allowed: less than a right angle, in radians")
    x, y = _places(size, cell)
    return _field(math.tan(angle) * x[:, None] + 0 * y, x, y)


def stairs(rise: float = 0.05, run: float = 0.3, *, size: Size = SIZE, cell: float = CELL, flat: float = 0.5) -> HeightField:
    """Stairs up (rise > 0) or down along x: `rise` [m] every `run` [m] from x = `flat` on."""
    _require("stairs", run=run)
    x, y = _places(size, cell)
    steps = torch.where(x > flat, ((x - flat) / run).floor() + 1, 0.0)
    return _field(rise * steps[:, None] + 0 * y, x, y)


def rough(
    height: float = 0.05, *, pitch: float = 0.15, size: Size = SIZE, cell: float = CELL, flat: float = 0.0, seed: int = 0
) -> HeightField:
    """Random bumps and hollows of the depth `height` [m] between zero and −height, about `pitch` [m] apart, the same for the same seed."""
    _require("rough", pitch=pitch)
    x, y = _places(size, cell)
    coarse = [max(SAMPLES, round(float(side[-1] - side[0]) / pitch) + 1) for side in (x, y)]
    noise = torch.rand(*coarse, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    bumps = HeightField(noise, [float(side[-1] - side[0]) / (n - 1) for side, n in zip((x, y), coarse, strict=True)])
    place = torch.stack(torch.meshgrid(x, y, indexing="ij"), -1)
    away = torch.linalg.vector_norm(place, dim=-1) >= flat
    return _field(height * torch.where(away, bumps.height(place) - 1.0, 0.0), x, y)


def gaps(
    width: float = 0.15, spacing: float = 0.8, depth: float = 0.5, *, size: Size = SIZE, cell: float = CELL, flat: float = 0.5
) -> HeightField:
    """Ditches across x, `width` [m] wide and `depth` [m] deep, the first at |x| = `flat`, each next one `spacing` [m] farther."""
    _require("gaps", width=width, spacing=spacing)
    if width >= spacing:
        raise ValueError(f"gaps: got width={width} and spacing={spacing}; allowed: narrower gaps than their spacing")
    x, y = _places(size, cell)
    beyond = x.abs() - flat
    ditch = (beyond >= 0) & (beyond % spacing < width)
    return _field(torch.where(ditch, -depth, 0.0)[:, None] + 0 * y, x, y)


def bowl(radius: float = 10.0, *, size: Size = SIZE, cell: float = CELL) -> HeightField:
    """A paraboloid that has the radius of curvature `radius` [m] at its lowest point, height zero in the middle."""
    _require("bowl", radius=radius)
    x, y = _places(size, cell)
    return _field((x[:, None] ** 2 + y**2) / (2 * radius), x, y)


KINDS = {function.__name__: function for function in (slope, stairs, rough, gaps, bowl)}


def make(terrain: str | Mapping[str, Any] | HeightField) -> HeightField:
    """A field by the name of its function and its arguments, {"kind": "rough", "height": 0.05}, as configurations have it.

    Raises:
        ValueError: an unknown kind, unknown arguments.
    """
    if isinstance(terrain, HeightField):
        return terrain
    arguments = {"kind": terrain} if isinstance(terrain, str) else dict(terrain)
    kind = arguments.pop("kind", None)
    if kind not in KINDS:
        raise ValueError(f"terrain: got kind={kind!r}; allowed: {sorted(KINDS)}")
    try:
        return KINDS[kind](**arguments)
    except TypeError as error:
        raise ValueError(f"terrain: {error}; {kind} has the arguments {inspect.signature(KINDS[kind])}") from None


def _require(kind: str, **lengths: float) -> None:
    for name, value in lengths.items():
        if not 0 < value < math.inf:
            raise ValueError(f"{kind}: got {name}={value}; allowed: a positive length [m]")


def _places(size: Size, cell: float) -> tuple[Tensor, Tensor]:
    """x and y of the samples."""
    _require("terrain", cell=cell, length=size[0], width=size[1])
    counts = [max(SAMPLES, round(side / cell) + 1) for side in size]
    x, y = (torch.linspace(-side / 2, side / 2, n, dtype=torch.float64) for side, n in zip(size, counts, strict=True))
    return x, y


def _field(heights: Tensor, x: Tensor, y: Tensor) -> HeightField:
    return HeightField(heights, [float(x[1] - x[0]), float(y[1] - y[0])], origin=[float(x[0]), float(y[0])])
