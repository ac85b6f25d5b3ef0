"""Equal seeds give equal bits: steps, rollouts, gradients and Jacobians on any number of threads, trainings on the same number.

That a resumed training continues with the bits of a whole one is held by tests/learning/test_shac.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

import torchdojo as td
from torchdojo.native import loader

pytestmark = pytest.mark.skipif(not loader.available(), reason="no compiler for the native kernel")

THREADS = (1, 2, 3, 5)


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def landing(name: str, batch: int) -> tuple[td.Mechanism, Tensor]:
    """Robots that come down on the ground in many ways."""
    mech = td.models.make(name)
    mech.options = td.SolverOptions(backend="native")
    generator = torch.Generator().manual_seed(7)
    z = td.models.initial_state(name, mech, (batch,)).clone()
    z[:, 2::13] -= 0.02 * torch.rand(batch, 1, generator=generator, dtype=torch.float64)
    return mech, z


def steps_and_gradients(name: str, batch: int) -> list[Tensor]:
    mech, z = landing(name, batch)
    z.requires_grad_()
    u = torch.full((batch, 3, mech.num_inputs), 0.01, dtype=torch.float64, requires_grad=True)
    run = mech.rollout(z, u)
    numbers = [p for p in mech.parameters() if p.requires_grad]
    weights = torch.linspace(-1, 1, run.z[:, -1].numel(), dtype=torch.float64).view_as(run.z[:, -1])
    gradients = torch.autograd.grad((run.z[:, -1] * weights).sum(), [z, u, *numbers], allow_unused=True)
    return [run.z.detach(), run.impulses.detach(), *(g for g in gradients if g is not None)]


def jacobians(name: str, batch: int) -> list[Tensor]:
    mech, z = landing(name, batch)
    return [each for each in mech.linearize(z, torch.zeros(batch, mech.num_inputs, dtype=torch.float64)) if isinstance(each, Tensor)]


# 203 environments: packs that are not full, blocks of unequal length, a last pack of three.
@pytest.mark.parametrize("results", [steps_and_gradients, jacobians])
@pytest.mark.parametrize(("name", "batch"), [("quadruped", 203), ("half_cheetah", 9), ("pendulum", 17)])
def test_threads_do_not_change_a_bit(results: Callable[[str, int], list[Tensor]], name: str, batch: int) -> None:
    wanted: list[Tensor] = []
    for threads in THREADS:
        torch.set_num_threads(threads)
        seen = results(name, batch)
        wanted = wanted or seen
        assert len(seen) == len(wanted) and all(torch.equal(a, b) for a, b in zip(seen, wanted, strict=True)), threads
    assert all(bool(torch.isfinite(each).all()) for each in wanted) and any(bool(each.any()) for each in wanted[2:] or wanted)


def test_training_has_the_same_bits_again(tmp_path: Path) -> None:
    """With the same threads: PyTorch's sums over a batch, as those of layer norms, have another order for each number of threads."""
    pytest.importorskip("pytorch_lightning", reason="needs the extra torchdojo[learn]")
    from torchdojo.learning import read_config, shac_run
    from torchdojo.learning.runs import Run

    settings = {"num_envs": 24, "horizon": 5, "samples": 600, "actor": [16], "critic": [16], "compile": False}
    config = read_config({"env": "cartpole_swingup", "env_options": {"pool": 16}, "settings": settings})
    learned = []
    torch.set_num_threads(3)
    for name in ("first", "again"):
        run = Run(tmp_path / name, config)
        run.begin(False)
        run.train(False)
        learned.append(shac_run.read_checkpoint_of_shac(run.checkpoint)["state_dict"])
    assert len(learned[0]) > 4 and all(torch.equal(learned[0][name], learned[1][name]) for name in learned[0])
