"""Mechanisms so large that rollouts take half the lanes, where registers have eight. Each lane computes what it would compute alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import torchdojo as td
from torchdojo.evaluation.chains import rhombic_chain, thrown_chain
from torchdojo.native.loader import library
from torchdojo.native.program import program

# In eight lanes, 150 balls have 6.9 MB and 40 loops of four rods have 6.3 MB. That is more than 1.25 times a second cache of 4 MB.
LARGE: dict[str, Callable[[], tuple[td.Mechanism, Tensor]]] = {"tree": lambda: thrown_chain(150), "loops": lambda: rhombic_chain(40)}


def lanes(mech: td.Mechanism) -> int:
    lowered = program(mech.backends.system)
    return int(library().td_lanes(lowered.handle([p.unsqueeze(0) for p in mech.backends.stacked()])))


def starts(z: Tensor, count: int) -> Tensor:
    """States with slightly different spins, so that lanes take different numbers of iterations."""
    torch.manual_seed(3)
    z = z.repeat(count, 1)
    z[:, 10::13] += 1e-3 * torch.randn(count, 1, dtype=z.dtype)
    return z


def test_lanes_follow_the_working_set() -> None:
    assert lanes(thrown_chain(10)[0]) in (4, 8)
    assert [lanes(make()[0]) for make in LARGE.values()] == [4, 4]


@pytest.mark.sanitize
@pytest.mark.parametrize("name", LARGE)
def test_lanes_agree_with_one_environment_at_a_time(name: str) -> None:
    mech, z = LARGE[name]()
    mech.options = td.SolverOptions(residual_tol=1e-11)
    z = starts(z, 6)
    weights = torch.randn(z.shape[-1], dtype=z.dtype)

    def run(z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        start = z.clone().requires_grad_(True)
        path = mech.rollout(start, steps=6)
        assert not path.status.any()
        return path.z.detach(), path.iterations, torch.autograd.grad((path.z[..., -1, :] * weights).sum(), start)[0]

    states, iterations, gradients = run(z)
    alone = [run(one) for one in z]
    torch.testing.assert_close(states, torch.stack([one[0] for one in alone]), rtol=0, atol=1e-9)
    largest = gradients.abs().max()
    torch.testing.assert_close(gradients / largest, torch.stack([one[2] for one in alone]) / largest, rtol=0, atol=1e-6)
    # No bit depends on what runs in the other lanes.
    some = run(z[[4, 1]])
    assert torch.equal(some[0], states[[4, 1]]) and torch.equal(some[1], iterations[[4, 1]]) and torch.equal(some[2], gradients[[4, 1]])
