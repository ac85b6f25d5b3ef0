"""Block LDU on graphs, against dense LU with pivoting."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import pytest
import torch
from block_ldu import BlockLDU
from torch import Tensor

from torchdojo.native.graph import Schedule, schedule
from torchdojo.native.toolchain import NativeUnavailable, find_compiler

pytestmark = [pytest.mark.sanitize, pytest.mark.slow]  # it compiles a module of its own
native = pytest.mark.usefixtures("kernel")

# Both solvers are backward stable on these matrices: diagonally dominant ones, and saddle points with condition numbers below 1e4. So they
# agree to about condition x rounding (2e-16) x a factor for the number of rows.
TOLERANCE = 1e-9

Edges = list[tuple[int, int]]
Graph = tuple[list[int], Edges, list[int]]  # sizes, edges, indefinite


def lattice(*shape: int) -> Edges:
    """Neighbours in a grid of any dimension."""
    index = {place: number for number, place in enumerate(itertools.product(*map(range, shape)))}
    edges = []
    for place, number in index.items():
        for axis in range(len(shape)):
            after = (*place[:axis], place[axis] + 1, *place[axis + 1 :])
            if after in index:
                edges.append((number, index[after]))
    return edges


def tree(nodes: int, seed: int) -> Edges:
    pick = random.Random(seed)
    names = pick.sample(range(nodes), nodes)
    return [(names[pick.randrange(i)], names[i]) for i in range(1, nodes)]


def mixed(nodes: int, seed: int = 0, largest: int = 9) -> list[int]:
    pick = random.Random(seed)
    return [pick.randint(1, largest) for _ in range(nodes)]


def mechanism(bodies: int, joints: Edges, rows: int, world: tuple[int, ...] = ()) -> Graph:
    """Bodies of 6, then a joint per pair of bodies, then one to the world for each body in `world`."""
    edges = [(body, bodies + joint) for joint, pair in enumerate(joints) for body in pair]
    edges += [(body, bodies + len(joints) + number) for number, body in enumerate(world)]
    count = len(joints) + len(world)
    return [6] * bodies + [rows] * count, edges, list(range(bodies, bodies + count))


GRAPHS: dict[str, Graph] = {
    "single node": ([5], [], []),
    "single scalar": ([1], [], []),
    "pair": ([6, 9], [(1, 0)], []),
    "chain": ([6, 5] * 5 + [6], [(i, i + 1) for i in range(10)], []),
    **{f"tree {seed}": (mixed(7 + 11 * seed, seed), tree(7 + 11 * seed, seed), []) for seed in range(4)},
    "ladder": (mixed(20, largest=6), lattice(10, 2), []),
    "net": (mixed(25), lattice(5, 5), []),
    "crystal": (mixed(64, largest=6), lattice(4, 4, 4), []),
    "complete": (mixed(9), list(itertools.combinations(range(9), 2)), []),
    "star": (mixed(12), [(0, i) for i in range(1, 12)], []),
    "disconnected": (mixed(11), [(0, 4), (4, 8), (1, 5), (2, 6), (6, 10), (10, 2)], []),
    "floating tree": mechanism(31, tree(31, 1), 5),
    "fixed tree": mechanism(14, tree(14, 2), 5, world=(3,)),
    "fixed chain": mechanism(10, [(i, i + 1) for i in range(9)], 5, world=(0,)),
    "star of joints": mechanism(9, [(0, i) for i in range(1, 9)], 5),
    "loop of joints": mechanism(7, [(i, (i + 1) % 7) for i in range(7)], 5),
    "four-bar": mechanism(3, [(0, 1), (1, 2)], 4, world=(0, 2)),
    "net of joints": mechanism(16, lattice(4, 4), 3),
    "crystal of joints": mechanism(27, lattice(3, 3, 3), 2),
}
BATCHES = [(), (1,), (3,), (8,), (9,), (2, 5)]


def graphs(function: Callable[..., None]) -> Callable[..., None]:
    return pytest.mark.parametrize("graph", GRAPHS.values(), ids=GRAPHS.keys())(function)


def random_blocks(graph: Graph, batch: tuple[int, ...], symmetric: bool = False) -> dict[tuple[int, int], Tensor]:
    """Blocks of a well-conditioned matrix: dominant or positive definite diagonal blocks, zero ones for constraints."""
    sizes, edges, indefinite = graph
    draw = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*batch, *shape, dtype=torch.float64, generator=draw)

    weight = [1.0] * len(sizes)
    blocks: dict[tuple[int, int], Tensor] = {}
    for i, j in edges:
        constraint = i in indefinite or j in indefinite
        blocks[i, j] = normal(sizes[i], sizes[j]) * (1.0 if constraint else 0.1)
        blocks[j, i] = blocks[i, j].mT if symmetric or constraint else normal(sizes[j], sizes[i]) * 0.1
        weight[i] += sizes[j]
        weight[j] += sizes[i]
    for i, size in enumerate(sizes):
        if i in indefinite:  # its zero block is left out; bodies' own blocks make the Schur complement
            continue
        if indefinite:
            factor = 0.3 * normal(size, size)
            blocks[i, i] = factor @ factor.mT + torch.eye(size, dtype=torch.float64)
            if not symmetric:
                skew = 0.1 * normal(size, size)
                blocks[i, i] = blocks[i, i] + skew - skew.mT
        else:
            blocks[i, i] = 0.3 * normal(size, size) + (weight[i] + size) * torch.eye(size, dtype=torch.float64)
    return blocks


def dense(sizes: list[int], blocks: dict[tuple[int, int], Tensor], batch: tuple[int, ...]) -> Tensor:
    rows = [0, *itertools.accumulate(sizes)]
    matrix = torch.zeros(*batch, rows[-1], rows[-1], dtype=torch.float64)
    for (i, j), block in blocks.items():
        matrix[..., rows[i] : rows[i + 1], rows[j] : rows[j + 1]] = block
    return matrix


def make(graph: Graph, batch: tuple[int, ...] = (), symmetric: bool = False) -> tuple[BlockLDU, Tensor, Tensor]:
    """(solver, values, dense matrix)"""
    sizes, edges, indefinite = graph
    solver = BlockLDU(sizes, edges, indefinite=indefinite)
    blocks = random_blocks(graph, batch, symmetric)
    return solver, solver.assemble(blocks), dense(sizes, blocks, batch)


def right_side(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def plan(name: str) -> Schedule:
    sizes, edges, indefinite = GRAPHS[name]
    return schedule(sizes, edges, indefinite=indefinite)


def close(x: Tensor, expected: Tensor) -> None:
    assert x.shape == expected.shape
    torch.testing.assert_close(x, expected, rtol=TOLERANCE, atol=TOLERANCE * max(1.0, float(expected.abs().max())))


@pytest.fixture(scope="module")
def kernel() -> None:
    try:
        find_compiler()
    except NativeUnavailable as error:
        pytest.skip(str(error))


# Symbolic elimination: runs without a compiler.


@pytest.mark.parametrize(
    "name", [*(f"tree {s}" for s in range(4)), "chain", "star", "floating tree", "fixed tree", "fixed chain", "star of joints"]
)
def test_trees_have_no_fill(name: str) -> None:
    assert plan(name).fill == 0


def test_fill_of_cycles() -> None:
    assert plan("complete").fill == 0
    assert schedule([1] * 10, [(i, (i + 1) % 10) for i in range(10)]).fill == 7  # n − 3 chords triangulate a cycle of n
    assert schedule([1] * 20, lattice(10, 2)).fill == 9  # one diagonal in each of the 9 squares


@graphs
def test_order_is_greedy_and_fill_is_counted(graph: Graph) -> None:
    """Against the definition: recount the fill-in of every remaining node at every step."""
    sizes, edges, indefinite = graph
    result = schedule(sizes, edges, indefinite=indefinite)
    near: list[set[int]] = [set() for _ in sizes]
    for i, j in edges:
        near[i].add(j)
        near[j].add(i)
    remaining, fill = set(range(len(sizes))), 0
    for node in result.order:
        if not indefinite:
            missing = {i: sum(b not in near[a] for a, b in itertools.combinations(near[i], 2)) for i in remaining}
            cost = {i: (missing[i], len(near[i]), sizes[i], i) for i in remaining}
            assert cost[node] == min(cost.values())
        remaining.remove(node)
        for a, b in itertools.combinations(near[node], 2):
            fill += b not in near[a]
            near[a].add(b)
            near[b].add(a)
        for other in near[node]:
            near[other].discard(node)
            assert {(node, other), (other, node)} <= result.offset.keys()
    assert not remaining
    assert result.fill == fill
    assert len(result.offset) == 2 * (len({frozenset(edge) for edge in edges}) + fill)


@graphs
def test_blocks_do_not_overlap(graph: Graph) -> None:
    sizes, edges, indefinite = graph
    result = schedule(sizes, edges, indefinite=indefinite)
    spans = [(offset, sizes[i] * sizes[j]) for (i, j), offset in result.offset.items()]
    spans += [(offset, sizes[i] ** 2) for i, offset in enumerate(result.diagonal_offset)]
    end = 0
    for offset, length in sorted(spans):
        assert offset == end
        end += length
    assert end == result.num_values
    assert result.num_rows == sum(sizes)


@pytest.mark.parametrize("name", [name for name, graph in GRAPHS.items() if graph[2]])
def test_constraint_waits_for_a_body(name: str) -> None:
    _, edges, indefinite = GRAPHS[name]
    place = {node: step for step, node in enumerate(plan(name).order)}
    for joint in indefinite:
        assert min(place[i] for edge in edges if joint in edge for i in edge if i != joint) < place[joint]


def test_whole_constraint_waits_for_all_its_neighbours() -> None:
    """One row on three bodies, of which the outer ones touch: least fill-in takes it right after the middle one, where it may be zero."""
    sizes, edges = [6, 6, 6, 1], [(0, 3), (1, 3), (2, 3), (0, 2)]
    assert schedule(sizes, edges, indefinite=[3]).order[:2] == (1, 3)
    assert schedule(sizes, edges, indefinite=[3], whole=[3]).order[-1] == 3
    # With joints on the way it waits as they do; trees with few couplings get no more fill-in.
    sizes, edges, indefinite = mechanism(12, tree(12, 1), 5, world=(0,))
    near = sorted({body for body, joint in edges if joint in indefinite[3:5]})
    sizes, edges, coupling = [*sizes, 1], edges + [(body, len(sizes)) for body in near], len(sizes)
    result = schedule(sizes, edges, indefinite=[*indefinite, coupling], whole=[coupling])
    assert max(result.order.index(body) for body in near) < result.order.index(coupling)
    assert result.num_operations == schedule(sizes, edges, indefinite=[*indefinite, coupling]).num_operations
    with pytest.raises(ValueError, match=r"whole names \[0\], which are not indefinite"):
        schedule(sizes, edges, indefinite=indefinite, whole=[0])


def test_sizes_of_a_tree() -> None:
    result = plan("fixed tree")
    assert (len(result.sizes), result.num_rows, result.num_values, result.fill) == (28, 154, 2474, 0)


def test_operations_grow_linearly_on_chains() -> None:
    """A chain of n nodes: n blocks to factor, n − 1 to solve for, n − 1 products."""
    for n in (10, 100):
        assert schedule([6] * n, [(i, i + 1) for i in range(n - 1)]).num_operations == 3 * n - 2
        assert (
            schedule(*mechanism(n, [(i, i + 1) for i in range(n - 1)], 5)[:2], indefinite=range(n, 2 * n - 1)).num_operations == 6 * n - 5
        )


def test_edges_may_repeat_in_either_direction() -> None:
    a, b = schedule([2, 3, 4], [(0, 1), (1, 2)]), schedule([2, 3, 4], [(1, 0), (0, 1), (2, 1), (1, 1)])
    assert a.order == b.order
    assert a.table.tolist() == b.table.tolist()


def test_bad_graphs() -> None:
    with pytest.raises(ValueError, match=r"edge \(0, 3\).*3 nodes"):
        schedule([1, 1, 1], [(0, 3)])
    with pytest.raises(ValueError, match="at least 1, got 0 at node 1"):
        schedule([1, 0], [])
    with pytest.raises(ValueError, match="indefinite names"):
        schedule([1, 1], [], indefinite=[2])
    with pytest.raises(ValueError, match="indefinite node 1 has no neighbor"):
        schedule([6, 5, 5], [(1, 2)], indefinite=[1, 2])


# Numbers.


@pytest.mark.slow
@native
@pytest.mark.parametrize("symmetric", [False, True], ids=["general", "symmetric"])
@graphs
def test_solve(graph: Graph, symmetric: bool) -> None:
    for batch in ((), (9,)):  # numbers; a pack and numbers
        solver, values, matrix = make(graph, batch, symmetric)
        b = right_side(*batch, solver.schedule.num_rows)
        close(solver.solve(values, b), torch.linalg.solve(matrix, b))
        close(solver.solve(values, b, transposed=True), torch.linalg.solve(matrix.mT, b))


@native
@pytest.mark.parametrize("n", range(1, 10))
@pytest.mark.parametrize("m", range(1, 10))
def test_every_pair_of_sizes(n: int, m: int) -> None:
    solver, values, matrix = make(([n, m, m, n], lattice(2, 2), []), (9,))
    b = right_side(9, solver.schedule.num_rows, 11)  # packs of environments, packs of columns, columns left over
    close(solver.solve(values, b), torch.linalg.solve(matrix, b))
    close(solver.solve(values, b, transposed=True), torch.linalg.solve(matrix.mT, b))


@native
@pytest.mark.parametrize("batch", BATCHES, ids=str)
@pytest.mark.parametrize("columns", [None, 1, 3, 8, 19])
def test_batches_and_columns(batch: tuple[int, ...], columns: int | None) -> None:
    solver, values, matrix = make(GRAPHS["four-bar"], batch)
    b = right_side(*batch, solver.schedule.num_rows, columns or 1)
    expected, transposed = torch.linalg.solve(matrix, b), torch.linalg.solve(matrix.mT, b)
    if columns is None:
        b, expected, transposed = b[..., 0], expected[..., 0], transposed[..., 0]
    close(solver.solve(values, b), expected)
    close(solver.solve(values, b, transposed=True), transposed)


@native
def test_missing_blocks_are_zero() -> None:
    solver = BlockLDU([2, 1, 3], [(0, 1), (1, 2), (2, 0)])
    blocks = random_blocks(([2, 1, 3], [(0, 1), (1, 2), (2, 0)], []), ())
    del blocks[0, 1]
    blocks[0, 0] = blocks[0, 0] * torch.tensor([1.0, 2.0, 3.0]).reshape(3, 1, 1)
    b = right_side(3, 6)
    x = solver.solve(solver.assemble(blocks), b)
    close(x, torch.linalg.solve(dense([2, 1, 3], blocks, (3,)), b))


@native
def test_values_and_right_side_stay() -> None:
    solver, values, _ = make(GRAPHS["four-bar"], (9,))
    b = right_side(9, solver.schedule.num_rows)
    before = values.clone(), b.clone()
    solver.solve(values, b)
    assert torch.equal(values, before[0])
    assert torch.equal(b, before[1])


@native
@pytest.mark.parametrize("bad", [0, 5, 8], ids=["in a pack", "in a pack too", "left over"])
def test_singular_matrix_spoils_no_other(bad: int) -> None:
    solver, values, matrix = make(GRAPHS["tree 1"], (9,))
    first = solver.schedule.order[0]
    start, size = solver.schedule.diagonal_offset[first], solver.schedule.sizes[first]
    values = values.clone()
    values[bad, start : start + size**2] = 0
    b = right_side(9, solver.schedule.num_rows)
    x = solver.solve(values, b)
    good = torch.arange(9) != bad
    assert not x[bad].isfinite().all()
    close(x[good], torch.linalg.solve(matrix[good], b[good]))


@native
def test_no_nodes() -> None:
    solver = BlockLDU([], [])
    empty = torch.zeros(3, 0, dtype=torch.float64)
    assert solver.assemble({}).shape == (0,) and solver.solve(empty, empty).shape == (3, 0)
