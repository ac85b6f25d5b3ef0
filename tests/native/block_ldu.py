"""The block LDU of the kernel on batches of matrices, for tests: its sources and `block_ldu.cpp`, compiled by the loader."""

from __future__ import annotations

import ctypes
import functools
import math
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from torchdojo.native.graph import schedule
from torchdojo.native.loader import SOURCES, load_kernel


class BlockLDU:
    """Solver of A x = b for matrices of one block pattern: `graph.schedule` says which."""

    def __init__(self, sizes: Sequence[int], edges: Iterable[tuple[int, int]], *, indefinite: Iterable[int] = ()) -> None:
        self.schedule = schedule(sizes, edges, indefinite=indefinite)
        diagonal = [(offset, (i, i)) for i, offset in enumerate(self.schedule.diagonal_offset)]
        self._blocks = sorted(diagonal + [(offset, pair) for pair, offset in self.schedule.offset.items()])  # as they lie in memory

    def assemble(self, blocks: Mapping[tuple[int, int], Tensor]) -> Tensor:
        """Values (..., num_values) from blocks A_ij (..., sizes[i], sizes[j]); batch dimensions broadcast, missing blocks are zero."""
        sizes = self.schedule.sizes
        batch = torch.broadcast_shapes(*(block.shape[:-2] for block in blocks.values()))
        zeros = {(i, j): torch.zeros(sizes[i], sizes[j], dtype=torch.float64) for _, (i, j) in self._blocks}
        pieces = [blocks.get(pair, zeros[pair]).flatten(-2).expand(*batch, -1) for _, pair in self._blocks]
        return torch.cat([torch.zeros(*batch, 0, dtype=torch.float64), *pieces], dim=-1)

    def solve(self, values: Tensor, b: Tensor, transposed: bool = False) -> Tensor:
        """A⁻¹ b or A⁻ᵀ b for values (..., num_values) and b (..., num_rows) or (..., num_rows, columns), with the same batch dimensions."""
        many = b.ndim > values.ndim
        x = (b.mT if many else b.unsqueeze(-2)).clone(memory_format=torch.contiguous_format)
        values = values.contiguous()
        count = math.prod(values.shape[:-1])
        _library().solve_blocks(self.schedule.table.ctypes.data, values.data_ptr(), x.data_ptr(), count, x.shape[-2], transposed)
        return x.mT if many else x.squeeze(-2)


@functools.cache
def _library() -> ctypes.CDLL:
    sources = [next(SOURCES.rglob(name)) for name in ("simd.hpp", "ldu.hpp", "ldu.cpp")]
    files = {path.relative_to(SOURCES): path for path in sources} | {Path("block_ldu.cpp"): Path(__file__).with_suffix(".cpp")}
    with tempfile.TemporaryDirectory() as folder:
        for name, path in files.items():
            copy = Path(folder) / name
            copy.parent.mkdir(exist_ok=True)
            copy.write_bytes(path.read_bytes())
        library = load_kernel(Path(folder))
    library.solve_blocks.argtypes = [*[ctypes.c_void_p] * 3, *[ctypes.c_int64] * 2, ctypes.c_bool]
    library.solve_blocks.restype = None
    return library
