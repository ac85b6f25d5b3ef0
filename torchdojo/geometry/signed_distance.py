"""Surfaces of the world from a function: the shape that it describes, or a grid of its values with a stated error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchdojo.geometry.grids import DistanceGrid
from torchdojo.geometry.heights import HeightField
from torchdojo.geometry.shapes import Sphere
from torchdojo.geometry.world import Plane
from torchdojo.parameters import as_tensor

__all__ = ["from_signed_distance"]

PROBES = 512  # random places of the box that decide on the form
SAME = 1e-9  # [m, 1] up to which these agree with a form
CHECKS = 20_000  # random places of the box at which the error is measured
NEAR = 2.0  # [cells] from the surface, within which it is
MOST = 20_000_000  # samples: 160 MB

SignedDistance = Callable[[Tensor], Tensor]


def from_signed_distance(
    function: SignedDistance, lower: Any, upper: Any, cell: float, *, tolerance: float | None = None
) -> Plane | Sphere | HeightField | DistanceGrid:
    """The surface of the world that a function describes, for contacts and `td.combine`: ``td.combine(hill=surface, ball=body)``.

    The kernel has the result, whatever the function is: a plane, a sphere and a height over x and y (φ = z − s(x, y)) are recognized, and
    all else is sampled onto a grid. Heights and grids are splines through the values at their samples.

    Args:
        function: of points (N, 3) [m], world frame, to their signed distances (N,) [m], positive outside; float64, differentiable.
        lower, upper: (3,) [m] corners of the box in which bodies touch the surface. Heights go on level outside of it, grids as a plane.
        cell: [m] largest distance between samples.
        tolerance: [m] largest error that is allowed; None: any. The error is the largest difference from the function at 20,000 random
            places within two cells of the surface; `error` of the result has it (a plane and a sphere have none).

    Raises:
        ValueError: a box that is empty, a function of another shape or without a gradient, no surface in the box, too many samples, or an
            error above the tolerance.
    """
    box = torch.stack([as_tensor(corner, name).detach() for corner, name in ((lower, "lower"), (upper, "upper"))])
    if box.shape != (2, 3) or not bool((box[0] < box[1]).all()) or not bool(torch.isfinite(box).all()):
        raise ValueError(f"from_signed_distance: got lower={box[0].tolist()}, upper={box[1].tolist()}; allowed: lower < upper, (3,) each")
    if isinstance(cell, bool) or not isinstance(cell, (int, float)) or not 0 < cell < torch.inf:
        raise ValueError(f"from_signed_distance: got cell={cell!r}; allowed: a positive length [m]")
    counts = torch.clamp(torch.ceil((box[1] - box[0]) / cell).long() + 1, min=4)
    generator = torch.Generator().manual_seed(0)

    def places(count: int) -> Tensor:
        return box[0] + (box[1] - box[0]) * torch.rand(count, 3, generator=generator, dtype=torch.float64)

    probes = places(PROBES)
    values, slopes = _values_and_slopes(function, probes)
    shape = _plane(probes, values, slopes) or _sphere(probes, values, slopes)
    if shape is not None:
        return shape
    over_plane = bool((slopes[:, 2] - 1).abs().max() < SAME)
    used = counts[:2] if over_plane else counts
    if int(used.prod()) > MOST:
        raise ValueError(
            f"from_signed_distance: got {used.tolist()} samples; allowed: {MOST} together; give a larger cell= or a smaller box"
        )
    field = _heights(function, box, counts[:2]) if over_plane else _grid(function, box, counts)
    checked = places(CHECKS)
    wanted = _values(function, checked)
    near = wanted.abs() < NEAR * float((box[1] - box[0]).div(counts - 1).max())
    if not bool(near.any()):
        raise ValueError("from_signed_distance: got a function without a zero in the box; give a box around the surface")
    mine = checked[:, 2] - field.height(checked[:, :2]) if isinstance(field, HeightField) else field.distance(checked)
    field.error = float((mine - wanted)[near].abs().max())
    if tolerance is not None and field.error > tolerance:
        raise ValueError(f"from_signed_distance: got an error of {field.error:.2g} m; allowed: {tolerance:g} m; give a smaller cell=")
    return field


# -- forms -------------------------------------------------------------------------------------------------------------------------------


def _plane(places: Tensor, values: Tensor, slopes: Tensor) -> Plane | None:
    """φ = n·p − d with a unit normal."""
    normal = slopes.mean(0)
    offset = (places @ normal - values).mean()
    apart = max(float((slopes - normal).abs().max()), float((places @ normal - offset - values).abs().max()))
    return Plane(normal, offset) if apart < SAME and abs(float(normal.norm()) - 1) < SAME else None


def _sphere(places: Tensor, values: Tensor, slopes: Tensor) -> Sphere | None:
    """φ = |p − c| − r: the points p − φ n of its surface are c + r n."""
    points = places - values[:, None] * slopes
    system = torch.cat((torch.eye(3, dtype=torch.float64).expand(len(places), 3, 3), slopes[:, :, None]), -1).reshape(-1, 4)
    center = torch.linalg.lstsq(system, points.reshape(-1, 1)).solution[:, 0]
    apart = torch.linalg.vector_norm(places - center[:3], dim=-1) - center[3] - values
    fits = float(apart.abs().max()) < SAME * (1 + float(center.abs().max()))
    return Sphere(center[3], position=center[:3]) if fits and float(center[3]) > 0 else None


def _heights(function: SignedDistance, box: Tensor, counts: Tensor) -> HeightField:
    """z = s(x, y)."""
    axes, cell = _axes(box, counts)
    ground = torch.cartesian_prod(*axes)
    heights = -_values(function, torch.cat((ground, ground.new_zeros(len(ground), 1)), -1))
    return HeightField(_control_values(heights.reshape(*counts.tolist())), cell, origin=box[0, :2] - cell)


def _grid(function: SignedDistance, box: Tensor, counts: Tensor) -> DistanceGrid:
    axes, cell = _axes(box, counts)
    values = _values(function, torch.cartesian_prod(*axes)).reshape(*counts.tolist())
    return DistanceGrid(_control_values(values), cell, origin=box[0] - cell)


def _axes(box: Tensor, counts: Tensor) -> tuple[list[Tensor], Tensor]:
    """Places of the samples along each axis, and the distances between them."""
    ends = zip(*box[:, : len(counts)].tolist(), counts.tolist(), strict=True)
    axes = [torch.linspace(low, high, count, dtype=torch.float64) for low, high, count in ends]
    return axes, torch.stack([axis[1] - axis[0] for axis in axes])


def _control_values(values: Tensor) -> Tensor:
    """Control values of the cubic spline through these values, with one more at each end of each axis.

    The third derivative is the same in the first two cells, and in the last two (de Boor, A Practical Guide to Splines, 1978, chapter IV).
    """
    for axis in range(values.ndim):
        n = values.shape[axis]
        matrix = values.new_zeros(n + 2, n + 2)
        matrix[0, :5] = matrix[-1, -5:] = values.new_tensor([1.0, -4.0, 6.0, -4.0, 1.0])
        inner = torch.arange(n)
        for k, weight in enumerate((1 / 6, 2 / 3, 1 / 6)):
            matrix[1 + inner, inner + k] = weight
        moved = values.movedim(axis, 0)
        right = torch.nn.functional.pad(moved.reshape(n, -1), (0, 0, 1, 1))
        values = torch.linalg.solve(matrix, right).reshape(n + 2, *moved.shape[1:]).movedim(0, axis)
    return values.contiguous()


# -- the function ------------------------------------------------------------------------------------------------------------------------


@torch.no_grad()
def _values(function: SignedDistance, places: Tensor) -> Tensor:
    parts = [_checked(function(part), part) for part in places.split(1_000_000)]
    return torch.cat(parts)


def _values_and_slopes(function: SignedDistance, places: Tensor) -> tuple[Tensor, Tensor]:
    places = places.detach().requires_grad_()
    with torch.enable_grad():
        values = _checked(function(places), places)
        if not values.requires_grad:
            raise ValueError("from_signed_distance: got values without a gradient by the points; write the function in torch")
        (slopes,) = torch.autograd.grad(values.sum(), places)
    return values.detach(), slopes


def _checked(values: Tensor, places: Tensor) -> Tensor:
    if not isinstance(values, Tensor) or values.shape != places.shape[:1] or values.dtype != torch.float64:
        got = f"{values.dtype} {tuple(values.shape)}" if isinstance(values, Tensor) else type(values).__name__
        raise ValueError(f"from_signed_distance: got {got} for {len(places)} points; allowed: torch.float64 ({len(places)},)")
    if not bool(torch.isfinite(values.detach()).all()):
        raise ValueError("from_signed_distance: got distances that are not finite; allowed: finite ones in the whole box")
    return values
