"""Symbolic elimination: the order in which a sparse block matrix is factored, and the places of its blocks in memory.

The matrix has one row and column of blocks per node of a graph, and a pair of blocks (i, j), (j, i) per edge. Eliminating a node couples
all its remaining neighbors with each other; new couplings are fill-in. The elimination is computed once per mechanism, and the numeric
kernels (`src/solver/ldu.hpp`) then run its table. It follows algorithms 1-4 of Brüdigam, Janeva, Sosnowski and Hirche, "Linear-time
contact and friction dynamics in maximal coordinates using variational integrators".
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

__all__ = ["Schedule", "has_loops", "schedule"]


@dataclass(frozen=True, eq=False)
class Schedule:
    """Elimination order of a block matrix, the place of every block in one flat array of scalars, and the program for `ldu.hpp`.

    Blocks are row-major. Blocks that one elimination step touches are neighbors in memory: D_i, then U_ik, L_ki of each later neighbor k.
    Right-hand sides are the vectors of the nodes in node order. The table of int32 is::

        num_nodes, num_links, num_targets, num_values, num_rows, largest size
        then for each node i in elimination order:
            size_i, offset of D_i, row of i in the right-hand side, number m of later neighbors
            m times: size_k, offset of U_ik, offset of L_ki, row of k          (k in elimination order)
            m × m times: offset of A_jk, the target of A_jk −= L_ji U_ik       (row-major in j, k; the diagonal block where j = k)
    """

    sizes: tuple[int, ...]
    order: tuple[int, ...]  # nodes, first eliminated first
    fill: int  # pairs of off-diagonal blocks that the matrix lacks and its factors have
    diagonal_offset: tuple[int, ...]  # offset of the diagonal block, by node
    offset: Mapping[tuple[int, int], int]  # offsets of off-diagonal blocks, both (i, j) and (j, i), fill-in included
    num_values: int
    rhs_offset: tuple[int, ...]  # offset in the right-hand side, by node
    num_rows: int
    num_operations: int  # block operations of one factorization: factor D_i, solve with it, multiply and subtract
    table: NDArray[np.int32]


def schedule(
    sizes: Sequence[int],
    edges: Iterable[tuple[int, int]],
    *,
    indefinite: Iterable[int] = (),
    whole: Iterable[int] = (),
    rare: Iterable[tuple[int, int]] = (),
) -> Schedule:
    """Schedule for blocks of `sizes`, coupled by `edges` in either direction, repeated or not. Diagonal blocks always exist.

    `indefinite` nodes are constraints, whose diagonal block may be zero. A constraint is eliminated only when the blocks eliminated before
    make its diagonal block invertible. This assumes that the other blocks are definite and that a constraint has full row rank in each
    neighbor. A `whole` constraint has full row rank only in all its neighbors together, and comes after all of them.

    `rare` edges have blocks as others do, but most of the time these are zero: the order is that without them.
    """
    sizes = tuple(operator.index(size) for size in sizes)
    if any(size < 1 for size in sizes):
        raise ValueError(f"sizes of blocks must be at least 1, got {min(sizes)} at node {sizes.index(min(sizes))}")
    edges, rare = list(edges), list(rare)
    graph = _Graph(sizes, edges, *(frozenset(operator.index(node) for node in nodes) for nodes in (indefinite, whole)))
    order, later, fill = graph.eliminate()
    if rare:
        order, later, fill = _Graph(sizes, edges + rare, frozenset(), frozenset()).eliminate(order)
    return _layout(sizes, order, later, fill)


class _Graph:
    """The graph during elimination. Sets of nodes are bits of an int; fill-in counts are updated, never recomputed."""

    def __init__(self, sizes: tuple[int, ...], edges: Iterable[tuple[int, int]], indefinite: frozenset[int], whole: frozenset[int]) -> None:
        count = len(sizes)
        self.sizes = sizes
        self.adjacent = [0] * count
        for i, j in edges:
            if not (0 <= i < count and 0 <= j < count):
                raise ValueError(f"edge ({i}, {j}) names a node that does not exist; there are {count} nodes, counted from 0")
            if i != j:
                self.adjacent[i] |= 1 << j
                self.adjacent[j] |= 1 << i
        self.fill = [sum(self._strangers(i, j) for j in _bits(near)) // 2 for i, near in enumerate(self.adjacent)]
        if any(not 0 <= node < count for node in indefinite):
            raise ValueError(f"indefinite names {sorted(indefinite)}; there are {count} nodes, counted from 0")
        if not whole <= indefinite:
            raise ValueError(f"whole names {sorted(whole - indefinite)}, which are not indefinite; only constraints are whole")
        self.constraints = _Constraints(sizes, self.adjacent, indefinite, whole)

    def _strangers(self, i: int, j: int) -> int:
        """Number of neighbors of i, other than j, that are no neighbors of j."""
        return (self.adjacent[i] & ~self.adjacent[j] & ~(1 << j)).bit_count()

    def eliminate(self, given: Sequence[int] = ()) -> tuple[list[int], list[int], int]:
        """Order, later neighbors of each node, and number of edges filled in, by greedy minimum fill-in or in the order `given`."""
        remaining = list(range(len(self.sizes)))
        order: list[int] = []
        later = [0] * len(self.sizes)
        fill = 0

        def cost(node: int) -> tuple[int, int, int, int]:
            return self.fill[node], self.adjacent[node].bit_count(), self.sizes[node], node

        while remaining:
            best = given[len(order)] if given else min(remaining, key=cost)
            if not self.constraints.ready(best):
                best = next(node for node in sorted(remaining, key=cost) if self.constraints.ready(node))
            remaining.remove(best)
            order.append(best)
            later[best] = self.adjacent[best]
            fill += self.fill[best]
            self._remove(best)
            self.constraints.remove(best)
        return order, later, fill

    def _remove(self, node: int) -> None:
        """Couple the neighbors of a node with each other, then remove the node."""
        near = self.adjacent[node]
        for a in _bits(near):
            for b in _bits(near & ~self.adjacent[a] & (-2 << a)):
                for both in _bits(self.adjacent[a] & self.adjacent[b]):
                    self.fill[both] -= 1
                self.fill[a] += self._strangers(a, b)
                self.fill[b] += self._strangers(b, a)
                self.adjacent[a] |= 1 << b
                self.adjacent[b] |= 1 << a
        for a in _bits(near):
            self.fill[a] -= self._strangers(a, node)
        for a in _bits(near):
            self.adjacent[a] &= ~(1 << node)


class _Constraints:
    """The constraints that have an invertible Schur complement, given the nodes eliminated so far.

    The saddle matrix is [[H, Jᵀ], [J, 0]] with H definite. Its part on the eliminated nodes is invertible exactly if the part of J on them
    has full row rank. That holds if each eliminated constraint has an eliminated neighbor to itself: a matching, grown by augmenting paths.
    The exception is a loop in which all neighbors are eliminated. It has whole rows of J, so no order is better. A body cannot serve two of
    its joints: 5 + 5 rows in 6 unknowns.

    A row that may vanish in some neighbor waits until all its neighbors are eliminated. For instance, the sum of two parallel displacements
    in a row does not depend on the body between them. Together with the matching, waiting suffices in a tree. There, connected
    eliminated bodies hang on at most one other joint, so that every coordinate of their joints is free.
    """

    def __init__(self, sizes: tuple[int, ...], adjacent: list[int], indefinite: frozenset[int], whole: frozenset[int]) -> None:
        self.indefinite, self.whole = indefinite, whole
        constraints = sum(1 << node for node in indefinite)
        self.neighbors = {node: adjacent[node] & ~constraints for node in indefinite}
        for node, near in self.neighbors.items():
            if not near:
                raise ValueError(f"indefinite node {node} has no neighbor that is not indefinite: its pivot would be singular")
        self.partners = {node: [j for j in _bits(near) if sizes[j] >= sizes[node]] for node, near in self.neighbors.items()}
        self.gone = 0
        self.owner: dict[int, int] = {}

    def ready(self, node: int) -> bool:
        if node not in self.indefinite:
            return True
        if node in self.whole and self.neighbors[node] & ~self.gone:
            return False
        visited: set[int] = set()
        if self._path(node, visited) is not None:
            return True
        return all(not self.neighbors[other] & ~self.gone for other in visited)

    def remove(self, node: int) -> None:
        if node not in self.indefinite:
            self.gone |= 1 << node
            return
        for constraint, partner in self._path(node, set()) or ():
            self.owner[partner] = constraint

    def _path(self, start: int, visited: set[int]) -> list[tuple[int, int]] | None:
        """Pairs (constraint, its new partner) that give `start` a partner, or None. `visited` collects the constraints on the way."""
        visited.add(start)
        came_from: dict[int, int] = {}  # partner: the constraint that asks for it
        asks = [start]
        partner_of: dict[int, int] = {}  # constraint: its present partner
        for constraint in asks:  # the list grows during the loop: breadth first
            for partner in self.partners[constraint]:
                if not self.gone >> partner & 1 or partner in came_from:
                    continue
                came_from[partner] = constraint
                owner = self.owner.get(partner)
                if owner is None:
                    pairs = [(constraint, partner)]
                    while constraint != start:
                        partner = partner_of[constraint]
                        constraint = came_from[partner]
                        pairs.append((constraint, partner))
                    return pairs
                partner_of[owner] = partner
                visited.add(owner)
                asks.append(owner)
        return None


def _layout(sizes: tuple[int, ...], order: list[int], later: list[int], fill: int) -> Schedule:
    position = {node: step for step, node in enumerate(order)}
    neighbors = {node: sorted(_bits(later[node]), key=position.__getitem__) for node in order}
    rows = [0]
    for size in sizes:
        rows.append(rows[-1] + size)
    diagonal = [0] * len(sizes)
    offset: dict[tuple[int, int], int] = {}
    end = 0
    for i in order:
        diagonal[i] = end
        end += sizes[i] ** 2
        for k in neighbors[i]:
            offset[i, k] = end
            offset[k, i] = end + sizes[i] * sizes[k]
            end += 2 * sizes[i] * sizes[k]
    if end > np.iinfo(np.int32).max:
        raise ValueError(f"the factors have {end} numbers, more than {np.iinfo(np.int32).max}: too much fill-in for this solver")

    program: list[int] = []
    links = targets = 0
    for i in order:
        near = neighbors[i]
        links += len(near)
        targets += len(near) ** 2
        program += (sizes[i], diagonal[i], rows[i], len(near))
        for k in near:
            program += (sizes[k], offset[i, k], offset[k, i], rows[k])
        for j in near:
            program += (diagonal[j] if j == k else offset[j, k] for k in near)
    header = (len(sizes), links, targets, end, rows[-1], max(sizes, default=0))
    table = np.array([*header, *program], dtype=np.int32)
    table.flags.writeable = False
    return Schedule(
        sizes=sizes,
        order=tuple(order),
        fill=fill,
        diagonal_offset=tuple(diagonal),
        offset=MappingProxyType(offset),
        num_values=end,
        rhs_offset=tuple(rows[:-1]),
        num_rows=rows[-1],
        num_operations=len(sizes) + links + targets,
        table=table,
    )


def _bits(nodes: int) -> Iterator[int]:
    while nodes:
        low = nodes & -nodes
        yield low.bit_length() - 1
        nodes ^= low


def has_loops(num_bodies: int, joints: Sequence[tuple[int, int]]) -> bool:
    """Whether joints, as pairs of bodies, close a loop. The world counts as a body."""
    root = list(range(num_bodies + 1))

    def find(body: int) -> int:
        while root[body] != body:
            body = root[body]
        return body

    for parent, child in joints:
        parent_root, child_root = find(parent), find(child)
        if parent_root == child_root:
            return True
        root[parent_root] = child_root
    return False
