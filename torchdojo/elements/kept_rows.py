"""The rows that a joint keeps where it closes a loop; state/redundancy.py finds them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["KeptRows"]


class KeptRows(NamedTuple):
    """Projections P of the held rows of a joint onto the rows that act: of translations, then of rotations (state/redundancy.py)."""

    translations: tuple[tuple[float, ...], ...]
    rotations: tuple[tuple[float, ...], ...]

    def matrices(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Both P, in the dtype and on the device of `like`."""
        t, r = (torch.tensor(p, dtype=like.dtype, device=like.device).reshape(len(p), len(p)) for p in self)
        return t, r

    def left_out(self, like: Tensor) -> Tensor:
        """I − P P of all rows, (num_rows, num_rows), in the dtype and on the device of `like`."""
        p = torch.block_diag(*self.matrices(like))
        return torch.eye(len(p)).to(p) - p @ p
