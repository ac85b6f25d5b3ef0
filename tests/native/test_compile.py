"""torch.compile of steps, rollouts, policies and Jacobians: same numbers, one graph, errors as without it."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchdojo as td
from hopper import EXACT, hopper, loss, require_grad, same, states
from torchdojo.native import loader

pytestmark = pytest.mark.skipif(not loader.available(), reason="no compiler for the native kernel")


CALLS: dict[str, Callable[[td.Mechanism, Tensor, Tensor], Tensor]] = {
    "forward": lambda m, z, u: m(z, u[..., 0, :]),
    "step": lambda m, z, u: torch.cat(m.step(z, u[..., 0, :])[:2], -1),
    "rollout": lambda m, z, u: m.rollout(z, u).z,
    "policy": lambda m, z, u: m.rollout(z, lambda z: 0.1 * z[..., :1] + u[..., 0, :], steps=2).impulses,
}


def compiled(function: Callable[..., Any], **options: Any) -> Any:
    torch._dynamo.reset()
    return torch.compile(function, fullgraph=True, **({"backend": "aot_eager"} | options))


@pytest.mark.parametrize("parameters", [False, True])
@pytest.mark.parametrize("name", CALLS)
def test_compile(name: str, parameters: bool) -> None:
    mechanism, call = hopper(), CALLS[name]
    leaves = require_grad(mechanism) if parameters else []
    z, u = states(mechanism, 3).detach().requires_grad_(), torch.randn(3, 4, 1).requires_grad_()
    value, expected = compiled(call)(mechanism, z, u), call(mechanism, z, u)
    same(value, expected)
    pairs = [torch.autograd.grad(loss(v), [z, u, *leaves], allow_unused=True, materialize_grads=True) for v in (value, expected)]
    same(*pairs)
    with torch.no_grad():
        same(compiled(call)(mechanism, z, u), expected)


def test_compile_jacobians_and_vmap() -> None:
    mechanism, z = hopper(), states(hopper(), 3)
    same(compiled(lambda z: mechanism.jacobians(z)[0])(z), mechanism.jacobians(z)[0])
    same(compiled(torch.func.vmap(lambda z: mechanism(z)))(z), mechanism(z))


def test_compile_any_batch_size() -> None:
    mechanism = hopper()
    function = compiled(lambda z, u: mechanism.rollout(z, u).z, dynamic=True)
    for count in (3, 5, 7):
        z, u = states(mechanism, count).detach().requires_grad_(), torch.randn(count, count + 1, 1)
        value = function(z, u)
        same(torch.autograd.grad(loss(value), z), torch.autograd.grad(loss(mechanism.rollout(z, u).z), z))


def chain(order: tuple[str, str, str]) -> td.Mechanism:
    joints, parent = {}, None
    for name in order:
        joints[f"to_{len(joints)}"] = td.Revolute(parent, name, axis=(0, 1, 0), child_anchor=(0, 0, 0.5))
        parent = name
    return td.Mechanism({name: td.Body(1.0, (0.1, 0.1, 0.1)) for name in "abc"}, joints)


def test_compiled_code_knows_mechanisms_options_and_values_apart() -> None:
    function = compiled(lambda m, z: m.step(z).z)
    first = chain(("a", "b", "c"))
    for mechanism in (first, chain(("a", "c", "b")), copy.deepcopy(first)):
        z = mechanism.to_maximal(torch.tensor([0.1, 0.2, 0.3]))
        same(function(mechanism, z), mechanism.step(z).z)
    z = first.to_maximal(torch.tensor([0.1, 0.2, 0.3]))
    first.timestep.data.fill_(0.02)
    same(function(first, z), first.step(z).z)
    hop = hopper()
    for kappa in (1e-3, 1e-5):
        hop.options = td.SolverOptions(kappa=kappa)
        z = states(hop)
        same(function(hop, z), hop.step(z).z)


def test_compiled_errors() -> None:
    function = compiled(lambda m, z: m.step(z).z)
    mechanism = hopper(dataclasses.replace(EXACT, on_failure="raise"))
    z = states(mechanism)
    function(mechanism, z)
    with pytest.raises(ValueError, match="has a quaternion whose norm differs"):
        function(mechanism, 1.1 * z)
    with pytest.raises(ValueError, match="environment 0 of 1 is invalid"):
        function(mechanism, z * torch.nan)


def arguments_of(function: Callable[..., Any], *inputs: Tensor) -> int:
    """Number of tensors that the traced graph takes, and of guards on masses."""
    torch._dynamo.reset()
    explained = torch._dynamo.explain(function)(*inputs)
    assert explained.graph_count == 1
    return len(explained.graphs[0].graph.find_nodes(op="placeholder")) + sum("'mass'" in guard.name for guard in explained.out_guards or [])


def test_compiled_steps_look_parameters_up() -> None:
    mechanism, z = hopper(), states(hopper(), 3).detach()
    assert arguments_of(lambda z: mechanism.step(z).z, z) <= 2  # z, and a number whose dtype zeros have
    mechanism.bodies["leg"].mass = torch.tensor([0.2, 0.3, 0.4])
    assert arguments_of(lambda z: mechanism.step(z).z, z) <= 2
    step = compiled(torch.func.vmap(lambda z: mechanism.step(z).z))
    same(step(z), torch.func.vmap(lambda z: mechanism.step(z).z)(z))
    step = compiled(lambda z: mechanism.step(z, repeat=2).z)
    step(z)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for _ in range(3):
            same(step(z), mechanism.step(z, repeat=2).z)
    mechanism.bodies["leg"].mass.requires_grad_()
    assert arguments_of(lambda z: mechanism.step(z).z, z) > 20


CHANGES: dict[str, Callable[[td.Mechanism], Any]] = {
    "in place": lambda m: m.bodies["leg"].mass.mul_(1.1),
    "data": lambda m: m.bodies["leg"].mass.data.mul_(1.1),
    "storage": lambda m: setattr(m.bodies["leg"].mass, "data", m.bodies["leg"].mass * 1.1),
    "number": lambda m: setattr(m.bodies["leg"], "mass", 0.3),
    "parameter": lambda m: setattr(m.bodies["leg"], "mass", nn.Parameter(torch.tensor(0.4, dtype=torch.float64), requires_grad=False)),
    "gain": lambda m: m.actuators.gain.mul_(1.5),
}


@pytest.mark.slow
def test_compiled_steps_follow_the_numbers() -> None:
    mechanism = hopper()
    td.actuate(mechanism, {"servo": td.Actuator.position("hip", kp=4.0, kv=0.2)})
    z, ctrl, leg = states(mechanism, 3).detach(), torch.randn(3, 1), mechanism.bodies["leg"]
    call = lambda z: mechanism.step(torch.cat(mechanism.to_minimal(z), -1).sum() * 0 + z, ctrl=ctrl, repeat=2).z  # noqa: E731
    with torch.no_grad():
        function = compiled(call)
        before = function(z)
        with torch._dynamo.config.patch(error_on_recompile=True):
            for name, change in CHANGES.items():
                change(mechanism)
                value = function(z)
                same(value, call(z))
                assert not torch.equal(value, before), name
                before = value
        leg.mass = torch.tensor([0.2, 0.3, 0.4])  # other batch dimensions, and derivatives, compile anew
        same(function(z), call(z))
    leg.mass.requires_grad_()
    same(*[torch.autograd.grad(loss(run(z)), leg.mass) for run in (function, call)])


WRITES: dict[str, Callable[[td.Mechanism, Tensor], Tensor]] = {
    "in place": lambda m, z: (m.bodies["leg"].mass.mul_(1.5), m.step(z).z)[1],
    "data": lambda m, z: (m.bodies["leg"].mass.data.mul_(1.5), m.step(z).z)[1],
    "swapped": lambda m, z: torch.func.functional_call(m, {"bodies.leg.mass": z.new_tensor(0.7)}, (z,)),
    "parameter": lambda m, z: torch.func.functional_call(m, {"bodies.leg.mass": OTHER}, (z,)),
}
OTHER = nn.Parameter(torch.tensor(0.7, dtype=torch.float64), requires_grad=False)


@pytest.mark.parametrize("write", WRITES)
def test_compiled_code_sees_what_it_writes(write: str) -> None:
    first, second = hopper(), hopper()
    z = states(first, 2).detach()
    with torch.no_grad():
        function = compiled(WRITES[write])
        for _ in range(2):
            same(function(first, z), WRITES[write](second, z))


def test_numbers_may_change_between_a_compiled_step_and_its_gradient() -> None:
    mechanism = hopper()
    z = states(mechanism, 2).detach().requires_grad_()
    (expected,) = torch.autograd.grad(loss(mechanism.step(z).z), z)
    function = compiled(lambda z: mechanism.step(z).z)
    value = function(z)
    mechanism.bodies["leg"].mass.data.mul_(2.0)
    same(torch.autograd.grad(loss(value), z), (expected,))
    value = function(z)
    for _ in range(4):
        mechanism.bodies["leg"].mass.data.mul_(1.1)
        function(z)
    with pytest.raises(RuntimeError, match="changed more than 3 times between a compiled step"):
        loss(value).backward()


@pytest.mark.slow
def test_compiled_controls() -> None:
    mechanism = hopper()
    td.actuate(mechanism, {"servo": td.Actuator.position("hip", kp=4.0, kv=0.2)})
    z, ctrl = states(mechanism, 3).detach().requires_grad_(), torch.randn(3, 2, 1).requires_grad_()
    call = lambda z, ctrl: mechanism.rollout(z, ctrl=ctrl, repeat=3).z  # noqa: E731
    value, expected = compiled(call)(z, ctrl), call(z, ctrl)
    same(value, expected)
    same(*[torch.autograd.grad(loss(v), (z, ctrl)) for v in (value, expected)])


@pytest.mark.slow
def test_compiled_training() -> None:
    """With the default compiler: a network is trained through a rollout, and a parameter with it."""
    losses = []
    for wrap in (lambda f: f, lambda f: compiled(f, backend="inductor")):
        torch.manual_seed(0)
        mechanism, net = hopper(), nn.Linear(26, 1)
        mechanism.joints["hip"].spring.requires_grad_()
        optimizer = torch.optim.Adam([*net.parameters(), mechanism.joints["hip"].spring], lr=1e-2)
        z = states(mechanism, 4).detach()
        objective = wrap(lambda z: mechanism.rollout(z, lambda z: net(z), steps=3).z.square().mean())  # noqa: B023
        for _ in range(4):
            optimizer.zero_grad()
            value = objective(z)
            value.backward()
            optimizer.step()
        losses.append(float(value))
    assert losses[0] == pytest.approx(losses[1], rel=1e-9)
