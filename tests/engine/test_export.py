"""`torch.export` of modules that call a mechanism: the steps of the kernel, with any batch and with gradients."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import torchdojo as td
from conftest import REPOSITORY
from torchdojo.native import loader

pytestmark = pytest.mark.skipif(not loader.available(), reason="no compiler")


class Controlled(nn.Module):
    """A policy, a step, and functions of the state after it."""

    def __init__(self, mech: td.Mechanism) -> None:
        super().__init__()
        self.mech = mech
        self.policy = nn.Linear(2 * mech.num_coordinates, mech.num_inputs).double()

    def forward(self, z: Tensor, u: Tensor) -> tuple[Tensor, ...]:
        u = u + self.policy(torch.cat(self.mech.to_minimal(z), -1))
        out = self.mech.step(z, u)
        return out.z, out.status, self.mech(z, u), self.mech.rollout(z, u[..., None, :].expand(*u.shape[:-1], 3, -1)).z[..., -1, :]


def start(batch: int) -> tuple[Controlled, Tensor, Tensor]:
    torch.manual_seed(0)
    mech = td.models.hopper()
    return Controlled(mech), mech.initial_state((batch,), pose="home", on="ground"), 0.1 * torch.randn(batch, mech.num_inputs)


@pytest.mark.parametrize("strict", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_exported_steps_are_those_of_the_module(strict: bool) -> None:
    module, z, u = start(5)
    size = torch.export.Dim("batch")
    exported = torch.export.export(module, (z[:2], u[:2]), dynamic_shapes={"z": {0: size}, "u": {0: size}}, strict=strict).module()
    results = []
    for call in (module, exported):
        given = u.clone().requires_grad_()
        values = call(z, given)
        (values[0].square().sum() + values[3].sum()).backward()
        results.append([*values, given.grad])
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)
    next(iter(module.mech.bodies.values())).mass.data.mul_(1.5)  # the program has the mechanism's parameters
    assert torch.equal(exported(z, u)[0], module(z, u)[0]) and not torch.equal(results[0][0], module(z, u)[0])


def test_the_reference_is_not_exported() -> None:
    module, z, u = start(2)
    module.mech.options = td.SolverOptions(backend="reference")
    with pytest.raises(RuntimeError, match=r"torch\.export: the reference takes the steps.*export steps of the kernel"):
        torch.export.export(module, (z, u))


@pytest.mark.slow
def test_a_program_of_another_process_says_so(tmp_path: Path) -> None:
    module, z, u = start(2)
    torch.export.save(torch.export.export(module, (z, u)), tmp_path / "step.pt2")
    code = f"import torch, torchdojo; m = torch.export.load({str(tmp_path / 'step.pt2')!r}).module(); m(*torch.load('data'))"
    torch.save((z, u), tmp_path / "data")
    code = code.replace("'data'", repr(str(tmp_path / "data")))
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=REPOSITORY)
    assert run.returncode and "export in the process that runs it" in run.stderr, run.stderr
