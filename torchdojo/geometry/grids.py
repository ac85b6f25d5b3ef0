"""Signed distances on a grid: the cubic B-spline φ(x, y, z) over a box of samples, for surfaces of the world that no shape describes.

A ball touches where φ = r, with the normal ∇φ/|∇φ|. The spline has continuous curvatures, so the gap is C² and the normal C¹, where the
surface that it stands for has corners, too: these become round, over a few cells.

Outside of the box φ goes on as a plane, φ(c) + ∇φ(c)·(p − c) with the nearest point c of the box.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from torchdojo.geometry.heights import BASIS, SAMPLES
from torchdojo.parameters import PhysicalModule, as_tensor, require

__all__ = ["DistanceGrid"]


class DistanceGrid(PhysicalModule):
    """A grid of signed distances, a surface of the world: ``NonlinearContact("ball", radius=0.1, other_shape=grid)``.

    `td.from_signed_distance` makes one from a function. Contacts that share a grid share its samples. Samples, cell and origin are
    parameters with gradients. The samples are control values of the spline, which does not pass through them.

    Args:
        samples: (..., nx, ny, nz) [m], sample i, j, k at origin + cell * (i, j, k), world frame; positive outside. At least four of each.
            The box of the grid begins at the second sample and ends at the last but one.
        cell: distance between samples [m], > 0: one number, or (..., 3) for x, y and z.
        origin: (..., 3) [m] place of the first sample.

    Attributes:
        error: the largest difference [m] from the function that `from_signed_distance` has sampled, near its surface; None: not known.

    Raises:
        ValueError: less than four samples, a number that is not finite, or a cell that is not positive.
    """

    fields: ClassVar[dict[str, int]] = {"samples": 3, "cell": 1, "origin": 1}
    noun: ClassVar[str] = "distance grid"
    samples: Tensor
    cell: Tensor
    origin: Tensor

    def __init__(self, samples: Any, cell: Any, *, origin: Any) -> None:
        super().__init__()
        self.error: float | None = None
        self.samples = samples
        cell = as_tensor(cell, "DistanceGrid.cell")
        self.cell = cell.expand(3) if cell.ndim == 0 else cell
        self.origin = origin

    def check_field(self, name: str, value: Tensor) -> Tensor:
        shape = tuple(value.shape)
        if name == "samples":
            if len(shape) < 3 or min(shape[-3:]) < SAMPLES:
                raise ValueError(f"{self.label(name)}: got shape {shape}; allowed: (..., nx, ny, nz) with four or more of each")
            before = self._parameters.get(name, self._buffers.get(name))
            if before is not None and before.shape[-3:] != value.shape[-3:]:
                raise ValueError(
                    f"{self.label(name)}: got shape {shape}; allowed: (..., {', '.join(map(str, before.shape[-3:]))}), as before"
                )
        elif shape[-1:] != (3,):
            raise ValueError(f"{self.label(name)}: got shape {shape}; allowed: (..., 3), for x, y and z")
        value = super().check_field(name, value)
        if name == "cell":
            require(value > 0, self.label(name), value, "positive lengths")
        return value

    def distance(self, point: Tensor) -> Tensor:
        """φ [m] (...,) at points (..., 3). Leading dimensions broadcast against the batch dimensions of the samples."""
        return self._at(point)[0]

    def gap(self, point: Tensor, radius: Any = 0.0) -> tuple[Tensor, Tensor]:
        """Gap φ − r [m] (...,) of balls of this radius (...,) around points (..., 3), and its unit normal ∇φ/|∇φ| (..., 3)."""
        distance, gradient = self._at(point)
        return distance - radius, gradient / torch.linalg.vector_norm(gradient, dim=-1, keepdim=True)

    def _at(self, point: Tensor) -> tuple[Tensor, Tensor]:
        """φ (...,) and ∇φ (..., 3); the latter at the nearest point of the box."""
        counts = self.samples.shape[-3:]
        grid = (point - self.origin) / self.cell
        last = grid.new_tensor([count - 2 for count in counts])
        inside = torch.maximum(torch.minimum(grid, last), torch.ones_like(last))
        # NaN stays NaN through t; whole numbers have no NaN.
        before = inside.detach().nan_to_num(1.0).floor().clamp_min(1)
        before = torch.minimum(before, last - 1)
        t = inside - before
        powers = torch.stack((torch.ones_like(t), t, t * t, t * t * t), -1)
        weights = (powers @ BASIS[:, :8].to(powers)).unflatten(-1, (2, 4))  # (..., axis, order, 4)
        index = before.long()[..., None] + torch.arange(-1, 3, device=point.device)  # (..., axis, 4)
        batch = self.samples.shape[:-3]
        first = torch.arange(batch.numel(), device=point.device).reshape(batch) * counts.numel()
        i, j, k = index.unbind(-2)
        place = (i[..., :, None, None] * counts[1] + j[..., None, :, None]) * counts[2] + k[..., None, None, :]
        around = self.samples.reshape(-1)[first[..., None, None, None] + place]  # (..., 4, 4, 4)
        value, *slopes = (
            torch.einsum("...ijk,...i,...j,...k->...", around, *(weights[..., axis, int(axis == by), :] for axis in range(3)))
            for by in (None, 0, 1, 2)
        )
        gradient = torch.stack(slopes, -1)
        return value + (gradient * (grid - inside)).sum(-1), gradient / self.cell
