"""The kernel takes numbers below 2.2e-308, which cost a processor a hundred times as much, for zero: see native/src/base/subnormals.hpp."""

from __future__ import annotations

import pytest
import torch

import torchdojo as td
from torchdojo.native import loader

pytestmark = pytest.mark.skipif(not loader.available(), reason="no compiler for the native kernel")

SMALLEST = torch.finfo(torch.float64).smallest_normal


@pytest.mark.parametrize("batch", [1, 9])
def test_gradients_are_normal_or_zero(batch: int) -> None:
    mech = td.models.npendulum(2, timestep=0.01)
    z = mech.initial_state(hinge1={"q": 0.5}).repeat(batch, 1).requires_grad_()
    last = mech.rollout(z, steps=5).z[:, -1].sum()
    whole, faint = (torch.autograd.grad(last, z, last.new_tensor(scale), retain_graph=True)[0] for scale in (1.0, 1e-306))
    assert bool((whole.abs() * 1e-306 < SMALLEST)[whole != 0].any())  # some gradients would be that small
    assert bool((faint != 0).any())
    assert not bool(((faint != 0) & (faint.abs() < SMALLEST)).any())


@pytest.mark.parametrize("threads", [1, 2])
def test_the_caller_keeps_them(threads: int) -> None:
    """The kernel restores the settings of its threads when it returns."""
    mech = td.models.npendulum(2, timestep=0.01)
    z = mech.initial_state(hinge1={"q": 0.5}).repeat(64, 1).requires_grad_()
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        mech.rollout(z, steps=2).z.sum().backward()
        tiny = torch.full((1_000_000,), 1e-310, dtype=torch.float64)  # so many that torch's own threads take part
        assert bool((tiny * 0.5 > 0).all())
    finally:
        torch.set_num_threads(before)
