"""The kernel's own threads: calls from several threads of Python at once, more threads than blocks, and children of a fork."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

import torchdojo as td
from torchdojo.native import loader

pytestmark = [pytest.mark.skipif(not loader.available(), reason="no compiler for the native kernel"), pytest.mark.sanitize]


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def swings(batch: int, steps: int = 5) -> Tensor:
    mech = td.models.make("pendulum")
    mech.options = td.SolverOptions(backend="native")
    z = td.models.initial_state("pendulum", mech, (batch,)).clone()
    z[:, 10] = torch.linspace(-1, 1, batch, dtype=torch.float64)
    return mech.rollout(z, steps=steps).z


def test_callers_do_not_disturb_each_other() -> None:
    torch.set_num_threads(1)
    sizes = [40, 3, 200, 17]
    wanted = {size: swings(size) for size in sizes}
    torch.set_num_threads(3)
    with ThreadPoolExecutor(4) as callers:
        for size, seen in zip(sizes * 10, callers.map(swings, sizes * 10), strict=True):
            assert torch.equal(seen, wanted[size])


def test_more_threads_than_blocks() -> None:
    torch.set_num_threads(1)
    wanted = swings(70)
    for threads in (2, 9, 64):
        torch.set_num_threads(threads)
        assert torch.equal(swings(70), wanted)


def _swings_of_a_child(results: multiprocessing.Queue) -> None:
    torch.set_num_threads(3)  # torch's own threads are not used here: the tensors are small
    results.put(swings(70).numpy())


@pytest.mark.skipif(sys.platform == "win32", reason="no fork on this system")
def test_a_forked_child_has_threads_of_its_own() -> None:
    torch.set_num_threads(3)
    wanted = swings(70)
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    child = context.Process(target=_swings_of_a_child, args=(results,))
    child.start()
    try:
        assert torch.equal(torch.from_numpy(results.get(timeout=60)), wanted)
    finally:
        child.kill()
