"""Linear feedback around a nominal trajectory as the kernel takes it, inside the rollout (src/elements/feedback.hpp)."""

from __future__ import annotations

import ctypes
from typing import NamedTuple

import torch
from torch import Tensor

from torchdojo.native import calls

__all__ = ["Feedback", "Rows", "rows_of"]


class Rows(NamedTuple):
    """An array that environments share: `values` (rows, ...), and the row of each environment, int64 (N,)."""

    values: Tensor
    row: Tensor


class Feedback(NamedTuple):
    """u = clip(ū + α k + K (x ⊖ x̄)) for the P periods of the N environments of `batch`.

    minimal: whether x are minimal coordinates and rates. nominal: (·, P or P + 1, 13 nb or 2n). inputs: ū (·, P, m).
    feedforward: k (·, P, m). gain: K (·, P, m, 12 nb or 2n). solution: (·, P, n) of the nominal steps. scale: (N,). lower, upper: (P, m).
    """

    batch: torch.Size
    minimal: bool
    nominal: Rows | None
    inputs: Rows
    feedforward: Rows | None
    gain: Rows | None
    solution: Rows | None
    scale: Tensor
    lower: Tensor
    upper: Tensor

    @property
    def input(self) -> Tensor:
        return self.inputs.values

    def arguments(self, applied: Tensor) -> ctypes.Structure:
        """The structure for the kernel, which writes u into the contiguous `applied` (N, P, m). It lives no longer than this law."""
        addresses: dict[str, int] = {}
        shared = {
            "nominal": self.nominal,
            "input": self.inputs,
            "feedforward": self.feedforward,
            "gain": self.gain,
            "solution": self.solution,
        }
        for name, rows in shared.items():
            if rows is not None:
                addresses |= {name: rows.values.data_ptr(), f"{name}_row": rows.row.data_ptr()}
        return calls.Feedback(
            minimal=self.minimal,
            size=0 if self.gain is None else self.gain.values.shape[-1],
            inputs=self.input.shape[-1],
            nominal_stride=0 if self.nominal is None else self.nominal.values[0].numel(),
            scale=self.scale.data_ptr(),
            lower=self.lower.data_ptr(),
            upper=self.upper.data_ptr(),
            applied=applied.data_ptr(),
            **addresses,
        )


def rows_of(tensor: Tensor, ndim: int, batch: torch.Size) -> Rows:
    """A tensor whose dimensions before the last `ndim` broadcast to `batch`. Dimensions that it repeats are stored once."""
    lead = tensor.ndim - ndim
    for dim in range(lead):
        if tensor.stride(dim) == 0:
            tensor = tensor.narrow(dim, 0, 1)
    shape = tensor.shape[:lead]
    row = torch.arange(shape.numel()).reshape(shape).expand(batch).reshape(-1).contiguous()
    return Rows(tensor.reshape(shape.numel(), *tensor.shape[lead:]).contiguous(), row)
