"""Ground that is not level: the height field under the robots of an environment, and a scan of it around each robot."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from torchdojo.envs.checks import positive
from torchdojo.geometry.heights import HeightField
from torchdojo.geometry.terrain import make
from torchdojo.mechanism import Mechanism
from torchdojo.state.layout import STATE_SIZE

__all__ = ["Ground", "Terrain", "scan_points"]

Terrain = str | Mapping[str, Any] | HeightField
#: points of the default scan ahead and to the left of the root [m]: of robots of the size of an A1
AHEAD, LEFT = (-0.6, -0.4, -0.2, 0.0, 0.2, 0.4, 0.6), (-0.4, -0.2, 0.0, 0.2, 0.4)


def scan_points(given: bool | Sequence[Sequence[float]], terrain: object = "level") -> Tensor:
    """Points of a scan (n, 2), ahead and to the left of the root [m]; n = 0 without a scan. terrain: that is scanned.

    Raises:
        ValueError: no pairs of finite numbers, or a scan where terrain is None.
    """
    if terrain is None and not (isinstance(given, bool) and not given):
        raise ValueError(f"height_scan: got {given!r} without terrain=; allowed: with terrain, as terrain='rough'")
    if isinstance(given, bool):
        ahead, left = (torch.tensor(side if given else (), dtype=torch.float64) for side in (AHEAD, LEFT))
        return torch.cartesian_prod(ahead, left)
    try:
        points = torch.as_tensor(given, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError):
        points = torch.zeros(0)
    if points.ndim != 2 or points.shape[-1] != 2 or not len(points) or not bool(torch.isfinite(points).all()):
        raise ValueError(f"height_scan: got {given!r}; allowed: True, False, or points (n, 2), ahead and to the left of the root [m]")
    return points


class Ground:
    """The height field that the robots of an environment stand on. All environments share it, and robots may start at different places.

    Args:
        mech: whose contacts with planes become contacts with the field.
        terrain: of `td.terrain`: a name, a mapping {"kind": "rough", "height": 0.05}, or a field. The key "spread" of a mapping is the
            half width [m] of the square in which robots with a free root start. Default: a quarter of rough ground, zero elsewhere.
        scan: points (n, 2) of `scan_points`. name: of the environment, for errors.

    Raises:
        ValueError: unknown kinds or arguments, a batch of fields, a robot without contacts with the ground.
    """

    def __init__(self, mech: Mechanism, terrain: Terrain, scan: Tensor, name: str) -> None:
        numbers = dict(terrain) if isinstance(terrain, Mapping) else {}
        spread = numbers.pop("spread", None)
        self.field = make(numbers if isinstance(terrain, Mapping) else terrain)
        kind = terrain if isinstance(terrain, str) else numbers.get("kind")
        sides = self.field.cell.detach() * torch.tensor([n - 1 for n in self.field.heights.shape[-2:]])
        self._check(name)
        self.spread = 0.25 * float(sides.min()) * (kind == "rough") if spread is None else positive("spread", spread, zero=True)
        self.scan, self.name = scan, name
        try:
            mech.replace_ground(self.field)
        except ValueError as error:
            raise ValueError(f"terrain: got {terrain!r} for {name}, which does not touch the ground ({error}); leave it out") from None

    def _check(self, name: str) -> None:
        if self.field.heights.ndim > 2:
            raise ValueError(
                f"terrain of {name}: got heights {tuple(self.field.heights.shape)}; allowed: one field (rows, columns) for all "
                "environments; put several grounds side by side into one field, with a spread"
            )

    def height(self, place: Tensor) -> Tensor:
        """Height of the ground [m] at places (..., 2), (...,)."""
        self._check(self.name)
        return self.field.height(place)

    def seen(self, root: Tensor) -> Tensor:
        """Heights of roots (B, 13) above the ground at the points of the scan, which turn with the heading, (B, n) [m]."""
        w, x, y, z = root[..., 6:10].unbind(-1)
        ahead = torch.stack((1.0 - 2.0 * (y * y + z * z), 2.0 * (x * y + w * z)), -1)
        ahead = ahead / ahead.norm(dim=-1, keepdim=True).clamp_min(1e-6)
        left = torch.stack((-ahead[..., 1], ahead[..., 0]), -1)
        place = root[..., None, :2] + self.scan[:, :1] * ahead[..., None, :] + self.scan[:, 1:] * left[..., None, :]
        return root[..., 2:3] - self.height(place)

    def scatter(self, z: Tensor, uniform: Tensor) -> Tensor:
        """States (n, 13 nb) moved along x and y by the spread times numbers (n, 2) from −1 to 1."""
        parts = z.unflatten(-1, (-1, STATE_SIZE))
        moved = parts[..., :2] + self.spread * uniform[:, None]
        return torch.cat((moved, parts[..., 2:]), -1).flatten(-2)

    def image(self) -> Tensor:
        """The scan of the mirrored robot as a permutation of the scan, (n, n).

        Raises:
            ValueError: points without an image to the other side.
        """
        images = self.scan * self.scan.new_tensor((1.0, -1.0))
        result = ((images[:, None] - self.scan).abs().amax(-1) < 1e-9).double()
        if not bool((result.sum(-1) == 1).all()):
            raise ValueError(f"height_scan of {self.name}: got points without an image at −y; allowed: for mirrors, points on both sides")
        return result

    @contextlib.contextmanager
    def level(self) -> Iterator[None]:
        """Within, the ground is level at zero: the ground on which robots and their mirror images do the same."""
        heights = self.field.heights.detach().clone()
        try:
            with torch.no_grad():
                self.field.heights = torch.zeros_like(heights)
            yield
        finally:
            with torch.no_grad():
                self.field.heights = heights
