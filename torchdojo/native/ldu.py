"""A linear solver for block-sparse matrices on a graph: factors without pivoting between blocks, in the order of `graph.schedule`.

Trees and chains cost time linear in the number of nodes; on graphs with cycles the fill-in decides.
"""

from __future__ import annotations

import ctypes
import functools
import math
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from torchdojo.native.graph import Schedule, schedule
from torchdojo.native.loader import library

__all__ = ["BlockLDU", "Factor"]


class BlockLDU:
    """Solver of A x = b for matrices of one block pattern, float64 on the CPU, with gradients with respect to A and b.

    Args:
        sizes: rows of each node's diagonal block.
        edges: pairs of nodes (i, j) that have blocks A_ij and A_ji, in either order. Diagonal blocks are always there.
        indefinite: nodes whose diagonal block may be zero or singular: constraints, with full row rank in each of their neighbours.
            They are eliminated only after a neighbour.

    Blocks are not exchanged to find better pivots (nor are rows within a block), so A should be positive definite, diagonally dominant,
    or a saddle-point matrix of the former with `indefinite` constraints. A singular pivot raises nothing: the solutions of that matrix,
    and of no other in the batch, hold infinities or NaN.

    Example, a chain of two bodies and the joint between them::

        solver = BlockLDU([6, 6, 5], [(0, 2), (1, 2)], indefinite=[2])
        values = solver.assemble({(0, 0): M0, (1, 1): M1, (0, 2): J0.mT, (2, 0): J0, (1, 2): J1.mT, (2, 1): J1})
        x = solver.factor(values).solve(b)
    """

    def __init__(self, sizes: Sequence[int], edges: Iterable[tuple[int, int]], *, indefinite: Iterable[int] = ()) -> None:
        edges, indefinite = tuple(edges), tuple(indefinite)
        self.schedule: Schedule = schedule(sizes, edges, indefinite=indefinite)
        self._arguments = (self.schedule.sizes, edges, indefinite)
        # (offset, block), as they lie in memory; False marks fill-in, which `assemble` does not accept
        given = {pair for i, j in edges for pair in ((i, j), (j, i))}
        diagonal = [(offset, (i, i), True) for i, offset in enumerate(self.schedule.diagonal_offset)]
        self._blocks = sorted(diagonal + [(offset, pair, pair in given) for pair, offset in self.schedule.offset.items()])
        self._pattern = {pair for _, pair, known in self._blocks if known}
        native = _native()
        self._handle = ctypes.c_void_p(native.td_ldu_create(self.schedule.table.ctypes.data))
        weakref.finalize(self, native.td_ldu_destroy, self._handle)

    def __reduce__(self) -> tuple[Any, ...]:  # a copy or a pickle must not share the handle
        sizes, edges, indefinite = self._arguments
        return functools.partial(BlockLDU, indefinite=indefinite), (sizes, edges)

    def __repr__(self) -> str:
        plan = self.schedule
        return f"BlockLDU(nodes={len(plan.sizes)}, num_rows={plan.num_rows}, num_values={plan.num_values}, fill={plan.fill})"

    @property
    def num_rows(self) -> int:
        """Rows of the matrix; vectors are those of the nodes, one after the other in node order."""
        return self.schedule.num_rows

    @property
    def num_values(self) -> int:
        """Numbers in the blocks of one matrix, fill-in included."""
        return self.schedule.num_values

    def assemble(self, blocks: Mapping[tuple[int, int], Tensor]) -> Tensor:
        """Values (..., num_values) from blocks A_ij (..., sizes[i], sizes[j]); batch dimensions broadcast, missing blocks are zero."""
        sizes = self.schedule.sizes
        for (i, j), block in blocks.items():
            if (i, j) not in self._pattern:
                known = sorted(pair for pair in self._pattern if pair[0] == i)
                allowed = f"row {i} has the blocks {known}" if known else f"nodes are counted from 0 to {len(sizes) - 1}"
                raise ValueError(f"block {(i, j)} is not in the pattern: {allowed}; add the edge to BlockLDU(edges=...)")
            _check(f"block {(i, j)}", block)
            if block.shape[-2:] != (sizes[i], sizes[j]):
                raise ValueError(f"block {(i, j)} has shape {tuple(block.shape)}, expected (..., {sizes[i]}, {sizes[j]})")
        try:
            batch = torch.broadcast_shapes(*(block.shape[:-2] for block in blocks.values()))
        except RuntimeError as error:
            raise ValueError(f"batch dimensions of the blocks do not broadcast: {_shapes(blocks)}") from error
        zero = torch.zeros((), dtype=torch.float64)
        pieces = [zero.expand(*batch, 0)]
        for _, (i, j), _ in self._blocks:
            flat = blocks[i, j].flatten(-2) if (i, j) in blocks else zero.expand(sizes[i] * sizes[j])
            pieces.append(flat.expand(*batch, -1))
        return torch.cat(pieces, dim=-1)

    def factor(self, values: Tensor) -> Factor:
        """Factors of the matrices in `values` (..., num_values), as `assemble` makes them; `values` stays as it is."""
        _check("values", values)
        if values.shape[-1:] != (self.num_values,):
            raise ValueError(f"values has shape {tuple(values.shape)}, expected (..., {self.num_values})")
        return Factor(self, values)

    @functools.cached_property
    def _places(self) -> tuple[Tensor, Tensor]:
        """Row and column in the matrix of each value."""
        sizes, first = self.schedule.sizes, self.schedule.rhs_offset
        rows, columns = [torch.zeros(0, dtype=torch.long)], [torch.zeros(0, dtype=torch.long)]
        for _, (i, j), _ in self._blocks:
            rows.append(torch.arange(first[i], first[i] + sizes[i]).repeat_interleave(sizes[j]))
            columns.append(torch.arange(first[j], first[j] + sizes[j]).repeat(sizes[i]))
        return torch.cat(rows), torch.cat(columns)

    def _run(self, transposed: bool, factors: Tensor, b: Tensor) -> Tensor:
        x = b.clone(memory_format=torch.contiguous_format)
        solve = _native().td_ldu_solve_transposed if transposed else _native().td_ldu_solve
        solve(self._handle, factors.data_ptr(), x.data_ptr(), b.shape[0], b.shape[1], torch.get_num_threads())
        return x


class Factor:
    """Factored matrices, of batch dimensions `batch_shape`; made by `BlockLDU.factor`."""

    def __init__(self, solver: BlockLDU, values: Tensor) -> None:
        self.solver = solver
        self.batch_shape = values.shape[:-1]
        self._values = values.reshape(math.prod(self.batch_shape), solver.num_values)  # only for its place in the autograd graph
        given = self._values.detach().contiguous()
        self._factors = torch.empty_like(given)  # torch aligns to 64 bytes, as the vector loads of the kernel need
        _native().td_ldu_factor(solver._handle, given.data_ptr(), self._factors.data_ptr(), len(given), torch.get_num_threads())

    def solve(self, b: Tensor, *, matrix: bool | None = None) -> Tensor:
        """A⁻¹ b for b (..., num_rows) or, `matrix`, several right-hand sides as columns, (..., num_rows, k).

        Batch dimensions broadcast with those of A. Without `matrix` the shape of b tells which it is, and an ambiguous one is an error.
        """
        return self._solve(b, matrix, transposed=False)

    def solve_transposed(self, b: Tensor, *, matrix: bool | None = None) -> Tensor:
        """A⁻ᵀ b; see `solve`."""
        return self._solve(b, matrix, transposed=True)

    def _solve(self, b: Tensor, matrix: bool | None, transposed: bool) -> Tensor:
        _check("b", b)
        rows = self.solver.num_rows
        fits = b.shape[-1:] == (rows,), b.ndim > 1 and b.shape[-2] == rows  # as (..., num_rows), as (..., num_rows, k)
        if matrix is None and all(fits):
            raise ValueError(
                f"b of shape {tuple(b.shape)} may be {b.shape[-2]} vectors or one matrix of columns: pass matrix=False or matrix=True"
            )
        matrix = fits[1] if matrix is None else matrix
        if not fits[matrix]:
            raise ValueError(f"b has shape {tuple(b.shape)}, expected (..., {rows}) or (..., {rows}, k)")
        if not matrix:
            b = b.unsqueeze(-1)
        try:
            batch = torch.broadcast_shapes(self.batch_shape, b.shape[:-2])
        except RuntimeError as error:
            raise ValueError(
                f"batch dimensions of b, {tuple(b.shape[:-2])}, do not broadcast with those of A, {tuple(self.batch_shape)}"
            ) from error
        # Dimensions along which A is the same are further right-hand sides: (of A ..., the others ..., k, num_rows) for the kernel.
        count = len(batch)
        shape = (1,) * (count - len(self.batch_shape)) + tuple(self.batch_shape)
        own = [d for d in range(count) if shape[d] != 1]
        places = [*own, *(d for d in range(count) if shape[d] == 1), count + 1, count]
        right = b.expand(*batch, *b.shape[-2:]).permute(places)
        shared = math.prod(right.shape[len(own) : -1])
        flat = right.reshape(len(self._values), shared, rows)
        x: Tensor = _Solve.apply(self._values, flat, self._factors, self.solver, transposed)
        x = x.reshape(right.shape).permute([places.index(d) for d in range(count + 2)])
        return x if matrix else x.squeeze(-1)


class _Solve(torch.autograd.Function):
    """x = A⁻¹ b on values (batch, num_values) and b (batch, columns, num_rows); A⁻ᵀ b if `transposed`."""

    @staticmethod
    def forward(values: Tensor, b: Tensor, factors: Tensor, solver: BlockLDU, transposed: bool) -> Tensor:
        return solver._run(transposed, factors, b)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, _, factors, ctx.solver, ctx.transposed = inputs
        ctx.save_for_backward(factors, output)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor, None, None, None]:
        # A x = b and a cotangent g of x:  λ = A⁻ᵀ g is that of b, and −λ xᵀ that of A.  For Aᵀ x = b: λ = A⁻¹ g, and −x λᵀ.
        factors, x = ctx.saved_tensors
        adjoint = ctx.solver._run(not ctx.transposed, factors, grad)
        values = None
        if ctx.needs_input_grad[0]:
            rows, columns = ctx.solver._places
            left, right = (x, adjoint) if ctx.transposed else (adjoint, x)
            values = -(left[..., rows] * right[..., columns]).sum(dim=1)
        return values, adjoint, None, None, None


@functools.cache
def _native() -> ctypes.CDLL:
    """The library with the signatures of `src/abi/ldu_api.cpp`."""
    native = library()
    pointer, long, int_ = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
    native.td_ldu_create.argtypes, native.td_ldu_create.restype = [pointer], pointer
    native.td_ldu_destroy.argtypes, native.td_ldu_destroy.restype = [pointer], None
    native.td_ldu_factor.argtypes, native.td_ldu_factor.restype = [pointer, pointer, pointer, long, int_], None
    for solve in (native.td_ldu_solve, native.td_ldu_solve_transposed):
        solve.argtypes, solve.restype = [pointer, pointer, pointer, long, long, int_], None
    return native


def _check(name: str, tensor: Tensor) -> None:
    if tensor.dtype != torch.float64 or tensor.device.type != "cpu":
        raise TypeError(f"{name} is {tensor.dtype} on {tensor.device}, expected torch.float64 on the CPU: convert with .double().cpu()")


def _shapes(blocks: Mapping[tuple[int, int], Tensor]) -> str:
    return ", ".join(f"{pair}: {tuple(block.shape)}" for pair, block in blocks.items())
