"""Parameters that are packed for the kernel once, and changes of them that the next step sees."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchdojo as td
from hopper import hopper, loss, on, same, states
from torchdojo.native import loader, program

pytestmark = pytest.mark.skipif(not loader.available(), reason="no compiler for the native kernel")


def set_in_place(mechanism: td.Mechanism) -> None:
    with torch.no_grad():
        mechanism.bodies["ball"].mass.mul_(2)


def optimize(mechanism: td.Mechanism) -> None:
    friction = mechanism.contacts["foot"].friction.requires_grad_()
    optimizer = torch.optim.SGD([friction], lr=1e-3)
    mechanism(states(mechanism, 8)).sum().backward()
    friction.grad = torch.ones_like(friction)
    optimizer.step()
    friction.requires_grad_(False)


def load(mechanism: td.Mechanism) -> None:
    values = {name: 1.1 * value if name.endswith("mass") else value for name, value in mechanism.state_dict().items()}
    mechanism.load_state_dict(values)


def load_assign(mechanism: td.Mechanism) -> None:
    values = {name: 1.1 * value if name.endswith("mass") else value for name, value in mechanism.state_dict().items()}
    mechanism.load_state_dict(values, assign=True)


def parametrize(mechanism: td.Mechanism) -> None:
    class Double(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * x

    nn.utils.parametrize.register_parametrization(mechanism.bodies["leg"], "mass", Double())


CHANGES: dict[str, Callable[[td.Mechanism], Any]] = {
    "assigned": lambda m: setattr(m.bodies["ball"], "mass", 2.0),
    "assigned with a graph": lambda m: setattr(m.bodies["ball"], "mass", torch.tensor(2.0, requires_grad=True) * 1.5),
    "assigned a batch": lambda m: setattr(m.bodies["ball"], "mass", torch.tensor([1.0, 2.0])),
    "in place": set_in_place,
    "through data": lambda m: m.timestep.data.fill_(0.02),
    "other data": lambda m: setattr(m.gravity, "data", torch.tensor([0.0, 1.0, -5.0])),
    "optimizer": optimize,
    "state dict": load,
    "state dict, assigned": load_assign,
    "parametrized": parametrize,
    "damper from zero": lambda m: setattr(m.joints["hip"], "damper", 0.0),
    "not finite": lambda m: m.gravity.data.fill_(torch.nan),
}


@pytest.mark.parametrize("name", CHANGES)
def test_changed_parameters_are_seen(name: str) -> None:
    mechanism = hopper()
    z = states(mechanism, 2)
    before = mechanism.step(z)
    again = mechanism.step(z)
    assert torch.equal(before.z, again.z)
    CHANGES[name](mechanism)
    after = mechanism.step(z)
    expected = on(copy.deepcopy(mechanism) if name != "assigned with a graph" else mechanism, "reference").step(z)
    same(after.z, expected.z)
    assert torch.equal(after.status, expected.status)
    assert not torch.equal(before.z, after.z) or bool(after.status.any())


def test_an_equal_number_in_another_tensor_is_seen() -> None:
    """A comparison of numbers alone would miss that this one requires grad."""
    mechanism = hopper()
    z = states(mechanism)
    mechanism.step(z)
    friction = mechanism.contacts["foot"].friction
    mechanism.contacts["foot"]._parameters["friction"] = other = nn.Parameter(friction.detach().clone())
    (grad,) = torch.autograd.grad(loss(mechanism.step(z).z), other)
    assert bool(torch.isfinite(grad).all())
    mechanism.contacts["foot"].friction.requires_grad_(False)
    assert not mechanism.step(z).z.requires_grad


def test_parameters_are_packed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    mechanism, packs = hopper(), []
    original = program.Program.pack
    monkeypatch.setattr(program.Program, "pack", lambda self, p: (packs.append(1), original(self, p))[1])
    z = states(mechanism, 3)
    for _ in range(3):
        mechanism.step(z)
        mechanism.rollout(z, steps=2)
        mechanism.jacobians(z)
    assert packs == [1]
    loss(mechanism(z.requires_grad_())).backward()
    assert packs == [1]
