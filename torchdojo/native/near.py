"""The near terms of pairs of polytopes through the kernel (src/base/polytope.hpp)."""

from __future__ import annotations

import ctypes
from typing import NamedTuple

import torch
from torch import Tensor

from torchdojo.native import calls
from torchdojo.native.cache import Parameters
from torchdojo.native.program import kernel_library

__all__ = ["Near", "near_terms"]


class Near(NamedTuple):
    """terms: (N, capacity, 3), the nearest first, kind −1 where there are fewer. counts: (N,) how many there are."""

    terms: Tensor
    counts: Tensor


def near_terms(parameters: Parameters, contact: int, z: Tensor, reach: Tensor, capacity: int) -> Near:
    """Terms with gaps below `reach` (N,) [m] in the states z (N, 13 nb), of the pair of a contact (its number as declared)."""
    count = len(z)
    z, reach = z.contiguous(), reach.contiguous()
    terms = torch.full((count, capacity, 3), -1.0, dtype=torch.float64)
    gaps, counts = torch.empty(count, capacity, dtype=torch.float64), torch.zeros(count, dtype=torch.int64)
    arguments = calls.Near(
        environments=count,
        threads=torch.get_num_threads(),
        contact=contact,
        capacity=capacity,
        reach=reach.data_ptr(),
        z=z.data_ptr(),
        terms=terms.data_ptr(),
        gaps=gaps.data_ptr(),
        counts=counts.data_ptr(),
    )
    kernel_library().td_near_terms(parameters.packed.handle, ctypes.byref(arguments))
    return Near(terms, counts)
