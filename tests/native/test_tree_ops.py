"""Minimal coordinates inside `torch.compile`: the maps to and from them as operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from mechanisms import random_body, random_joint
from torch import Tensor

import torchdojo as td
from torchdojo.engine.kernel import Kernel
from torchdojo.gradients.request import Request
from torchdojo.native import loader
from torchdojo.native.tables import StateMap

pytestmark = pytest.mark.skipif(not loader.available(), reason="no compiler")


def robot() -> td.Mechanism:
    """A free body with an arm of joints with one, two and three rotations; the hand's place differs between environments."""
    joints: dict[str, td.StandardJoint] = {"trunk": td.Floating(None, "trunk", actuated=False)}
    joints["arm"] = random_joint("Orbital", "trunk", "arm", True, True)
    joints["hand"] = random_joint("Spherical", "arm", "hand", True, True)
    joints["tool"] = random_joint("PlanarAxis", "hand", "tool", True, True)
    mech = td.Mechanism({name: random_body() for name in joints}, joints, timestep=0.02)
    mech.joints["hand"].child_anchor = 0.3 * torch.randn(3, 3)
    for name, field in (("arm", "axis"), ("arm", "orientation_offset"), ("hand", "child_anchor"), ("tool", "parent_anchor")):
        getattr(mech.joints[name], field).requires_grad_()
    mech.timestep.requires_grad_()
    return mech


def coordinates(mech: td.Mechanism, *batch: int) -> tuple[Tensor, Tensor]:
    n = mech.num_coordinates
    return 0.5 * torch.randn(*batch, n), torch.randn(*batch, n)


def compiled(function: Callable[..., Any]) -> Any:
    torch._dynamo.reset()
    return torch.compile(function, fullgraph=True, backend="aot_eager")


def same(values: Any, expected: Any) -> None:
    for a, b in zip(values, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12 * max(1.0, float(b.detach().abs().max())))


def test_compiled_steps_and_their_gradients() -> None:
    """The values of eager calls, and gradients of the state and of every parameter."""
    mech = robot()
    q, qd = (t.requires_grad_() for t in coordinates(mech, 3))

    def step(q: Tensor, qd: Tensor) -> tuple[Tensor, Tensor]:
        return mech.step_minimal(q, qd)[:2]

    results = compiled(step)(q, qd), step(q, qd)
    same(*results)
    weights = torch.randn(2, *q.shape)
    leaves = [q, qd, *(p for p in mech.parameters() if p.requires_grad)]
    grads = [torch.autograd.grad((weights[0] * a + weights[1] * b).sum(), leaves) for a, b in results]
    assert len(leaves) == 7 and all(bool(g.any()) for g in grads[1])
    same(*grads)


def test_compiled_observables() -> None:
    """Contacts and energies, and their gradients."""
    mech = td.models.half_cheetah()
    z = td.models.initial_state("half_cheetah", mech).expand(3, -1).clone().requires_grad_()

    def observe(z: Tensor) -> tuple[Tensor, ...]:
        return mech.distances(z), mech.contact_points(z), mech.kinetic_energy(z) + mech.potential_energy(z), *mech.to_minimal(z)

    function = compiled(observe)
    results = function(z), observe(z)
    same(*results)
    other = td.models.ant()
    other.step(td.models.initial_state("ant", other))  # what other mechanisms do compiles nothing anew
    with torch.compiler.set_stance("fail_on_recompile"):
        same(function(z), results[1])
    grads = [torch.autograd.grad(sum(value.square().sum() for value in values), z) for values in results]
    same(*grads)


@pytest.mark.slow
def test_compiled_gradients_of_parameters() -> None:
    """Dynamo traces the reference of functions other than the coordinates."""
    mech = td.models.half_cheetah()
    z = td.models.initial_state("half_cheetah", mech)
    mech.bodies["torso"].mass.requires_grad_()
    mass = [mech.bodies["torso"].mass]
    energies = compiled(mech.potential_energy)(z), mech.potential_energy(z)
    same(*(torch.autograd.grad(energy.sum(), mass) for energy in energies))


@pytest.mark.slow
def test_compiled_jacobians_rollouts_and_vmap() -> None:
    mech = robot()
    q, qd = coordinates(mech, 3)
    u = torch.randn(3, 2, mech.num_inputs)
    same(compiled(lambda q, qd: mech.jacobians_minimal(q, qd))(q, qd), mech.jacobians_minimal(q, qd))
    same(compiled(lambda q, qd: mech.rollout_minimal(q, qd, u)[:2])(q, qd), mech.rollout_minimal(q, qd, u)[:2])
    mech.joints["hand"].child_anchor = torch.randn(3)
    mapped = torch.func.vmap(lambda q, qd: mech.step_minimal(q, qd)[:2])
    same(compiled(mapped)(q, qd), mech.step_minimal(q, qd)[:2])


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("which", [StateMap.TO_MINIMAL, StateMap.TO_MAXIMAL])
def test_opcheck(which: StateMap, native: bool) -> None:
    mech = robot()
    kernel = mech.backends.select(Request(mech.options))
    assert isinstance(kernel, Kernel)
    q, qd = coordinates(mech, 3)
    maximal = which is StateMap.TO_MAXIMAL
    state = (torch.cat((q, qd), dim=-1) if maximal else mech.to_maximal(q, qd).detach()).requires_grad_()
    # The kernel has gradients of the state alone.
    parameters = [p.detach().clone().requires_grad_(not native) for p in mech.stacked_parameters()]
    numbers = kernel.program.number, int(which), native
    ops = torch.ops.torchdojo
    torch.library.opcheck(ops.state_map.default, (state, parameters, *numbers))
    plain = [t.detach() for t in (state, *parameters)]
    value, serial = ops.state_map(plain[0], plain[1:], *numbers)
    needs = [i == 0 or (not native and i % 2 == 0) for i in range(len(plain))]
    torch.library.opcheck(ops.state_map_adjoint.default, (torch.ones_like(value), serial, plain[0], plain[1:], *numbers, needs))
