"""Height fields: the surface z = s(x, y) of a uniform cubic B-spline over a grid of samples, and the gap of a ball above it.

The gap contains the slopes of the surface, so its gradient, the direction of normal impulses, contains the curvatures. Those of a quadratic
spline jump between cells, and the gap of a ball would have a kink there. The cubic spline has continuous curvatures, so the gap is C¹ and
the normal continuous.

The samples are control values: the surface stays within their range and does not pass through them, except where they are linear. Samples
of a smooth function f at distances c give s = f + c²/6 (∂²f/∂x² + ∂²f/∂y²) + O(c⁴), and exactly the first two terms for quadratic f. A
step between two rows of samples becomes a smooth ramp that is three cells wide.

Beyond the grid the outermost samples are repeated. So the ground goes on level at the height of the edge from one cell outside, without a
jump of slope or curvature.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from torchdojo.parameters import PhysicalModule, as_tensor, require

__all__ = ["HeightField", "Surface"]

SAMPLES = 4  # that act on a place in each direction
#: weights of four samples, and their two derivatives, at t in [0, 1] from the second to the third one: (1, t, t², t³) @ BASIS
BASIS = torch.tensor(
    [
        [1 / 6, 2 / 3, 1 / 6, 0, -1 / 2, 0, 1 / 2, 0, 1, -2, 1, 0],
        [-1 / 2, 0, 1 / 2, 0, 1, -2, 1, 0, -1, 3, -3, 1],
        [1 / 2, -1, 1 / 2, 0, -1 / 2, 3 / 2, -3 / 2, 1 / 2, 0, 0, 0, 0],
        [-1 / 6, 1 / 2, -1 / 2, 1 / 6, 0, 0, 0, 0, 0, 0, 0, 0],
    ],
    dtype=torch.float64,
)


class Surface(NamedTuple):
    """Height s [m] (...,), slope ∇s (..., 2) and bend ∇∇s [1/m] (..., 2, 2) at points of the plane."""

    height: Tensor
    slope: Tensor
    bend: Tensor


class HeightField(PhysicalModule):
    """A grid of heights, the ground of contacts with the world: ``NonlinearContact("foot", other_shape=td.HeightField(heights, 0.1))``.

    Contacts that share a field share its samples. Samples, cell and origin are parameters with gradients.

    Args:
        heights: (..., rows, columns) [m], sample i, j above x = x₀ + i·cell, y = y₀ + j·cell, world frame. At least four rows and columns.
        cell: distance between samples [m], > 0: one number, or (..., 2) for x and y.
        origin: (..., 2), x₀ and y₀ [m] of the first sample. Default: the middle of the grid lies at zero.

    Attributes:
        error: the largest difference [m] from the function that `td.from_signed_distance` has sampled, near its surface; None: not known.

    Raises:
        ValueError: less than two dimensions, less than four rows or columns, a number that is not finite, or a cell that is not positive.
    """

    fields: ClassVar[dict[str, int]] = {"heights": 2, "cell": 1, "origin": 1}
    noun: ClassVar[str] = "height field"
    heights: Tensor
    cell: Tensor
    origin: Tensor

    def __init__(self, heights: Any, cell: Any, *, origin: Any = None) -> None:
        super().__init__()
        self.error: float | None = None
        self.heights = heights
        cell = as_tensor(cell, "HeightField.cell")
        self.cell = cell.expand(2) if cell.ndim == 0 else cell
        counts = self.cell.new_tensor([rows - 1 for rows in self.heights.shape[-2:]])
        self.origin = -0.5 * self.cell.detach() * counts if origin is None else origin

    def check_field(self, name: str, value: Tensor) -> Tensor:
        shape = tuple(value.shape)
        if name == "heights":
            if len(shape) < 2 or min(shape[-2:]) < SAMPLES:
                raise ValueError(f"{self.label(name)}: got shape {shape}; allowed: (..., rows, columns) with four or more of each")
            before = self._parameters.get(name, self._buffers.get(name))
            if before is not None and before.shape[-2:] != value.shape[-2:]:
                raise ValueError(
                    f"{self.label(name)}: got shape {shape}; allowed: (..., {before.shape[-2]}, {before.shape[-1]}), as before"
                )
        elif shape[-1:] != (2,):
            raise ValueError(f"{self.label(name)}: got shape {shape}; allowed: (..., 2), for x and y")
        value = super().check_field(name, value)
        if name == "cell":
            require(value > 0, self.label(name), value, "positive lengths")
        return value

    def height(self, place: Tensor) -> Tensor:
        """Height s [m] of the surface above places (..., 2) [m], as in `at`, for less work."""
        return self._along(place, 1)[..., 0, 0]

    def at(self, place: Tensor) -> Surface:
        """The surface above places (..., 2) [m]. Leading dimensions broadcast against the batch dimensions of the heights."""
        along = self._along(place, 3)
        c, d = self.cell.unbind(-1)
        bend_xy = along[..., 1, 1] / (c * d)
        return Surface(
            along[..., 0, 0],
            torch.stack((along[..., 1, 0] / c, along[..., 0, 1] / d), -1),
            torch.stack((along[..., 2, 0] / (c * c), bend_xy, bend_xy, along[..., 0, 2] / (d * d)), -1).unflatten(-1, (2, 2)),
        )

    def most_bend(self) -> Tensor:
        """A bound (...,) of the curvatures ∇∇s in all directions [1/m], wherever the place is: by second differences of the samples.

        The derivatives of a B-spline are weighted means of the differences, and the weights are positive.
        """
        rows, columns = self.heights.shape[-2:]
        padded = torch.nn.functional.pad(self.heights.reshape(-1, 1, rows, columns), (2, 2, 2, 2), mode="replicate")
        padded = padded.reshape(*self.heights.shape[:-2], rows + 4, columns + 4)
        c, d = (side[..., None, None] for side in self.cell.unbind(-1))
        along = padded.diff(n=2, dim=-2) / (c * c), padded.diff(n=2, dim=-1) / (d * d)
        across = padded.diff(dim=-2).diff(dim=-1) / (c * d)
        return torch.maximum(*(bend.abs().amax((-2, -1)) for bend in along)) + across.abs().amax((-2, -1))

    def _along(self, place: Tensor, orders: int) -> Tensor:
        """Derivatives of the height by grid coordinates: entry k, l, below `orders`, is k times by x and l times by y."""
        grid = (place - self.origin) / self.cell
        before = grid.detach().floor()
        t = grid - before
        powers = torch.stack((torch.ones_like(t), t, t * t, t * t * t), -1)
        weights = (powers @ BASIS[:, : 4 * orders].to(powers)).unflatten(-1, (orders, 4))
        rows, columns = self.heights.shape[-2:]
        # From one row outside on, all samples are those of the edge, wherever the place is; large numbers would overflow integers.
        inside = before.clamp(-2, max(rows, columns) + 1).long()
        around = inside[..., None] + torch.arange(-1, 3, device=place.device)  # (..., 2, 4)
        i, j = around[..., 0, :].clamp(0, rows - 1), around[..., 1, :].clamp(0, columns - 1)
        batch = self.heights.shape[:-2]
        first = torch.arange(batch.numel(), device=place.device).reshape(batch) * (rows * columns)
        index = first[..., None, None] + i[..., :, None] * columns + j[..., None, :]
        samples = self.heights.reshape(-1)[index]  # (..., 4, 4), gathered, so that nothing of the size of the grid is copied
        return weights[..., 0, :, :] @ samples @ weights[..., 1, :, :].mT

    def gap(self, point: Tensor, radius: Any = 0.0) -> tuple[Tensor, Tensor]:
        """Gap φ [m] (...,) of balls of this radius (...,) around points (..., 3), and its unit normal ∇φ/|∇φ| (..., 3).

        φ = (z − s) n_z − r is the distance to the tangent plane at the foot of the vertical, less the radius. It is the distance on
        planes of any slope. Elsewhere the distance D = (z − s) n_z differs from the true one by about ½ κ D² tan²θ, with the curvature κ
        of the surface and its angle θ: 0.13 mm for D = 2 cm, κ = 2 / m and θ = 30°. The gap is C¹.

        A ball that touches has its center on the surface z = s + r/n_z. The normal is the normal of that surface, so ground without
        friction does no work. With n_z² = 1/(1 + |∇s|²) it has the direction (−∇s − (z − s) n_z² ∇½|∇s|², 1).
        """
        surface = self.at(point[..., :2])
        above = point[..., 2] - surface.height
        up = torch.rsqrt(1 + surface.slope.square().sum(-1))
        change = (surface.bend @ surface.slope[..., None])[..., 0]  # ∇½|∇s|²
        tilt = surface.slope + (above * up * up)[..., None] * change
        upright = torch.rsqrt(1 + tilt.square().sum(-1, keepdim=True))
        return above * up - radius, torch.cat((-tilt * upright, upright), dim=-1)
