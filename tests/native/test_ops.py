"""The kernel as the default backend: operators, transforms, caches and copies."""

from __future__ import annotations

import copy
import dataclasses
import gc
import io
import pickle
import threading
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor

import torchdojo as td
from hopper import EXACT, hopper, loss, on, require_grad, same, states
from torchdojo.engine import kernel
from torchdojo.engine.kernel import Kernel
from torchdojo.gradients.request import Request
from torchdojo.native import loader, operators, program
from torchdojo.native.kernel import Keep
from torchdojo.native.request import encode

pytestmark = pytest.mark.skipif(not loader.available(), reason="no compiler for the native kernel")

# -- against the reference ------------------------------------------------------------------------------------


@pytest.mark.parametrize("grad_kappa", [None, 1e-2])
@pytest.mark.parametrize("batched", [False, True])
def test_gradients_of_everything(batched: bool, grad_kappa: float | None) -> None:
    """z, u, wrench and every parameter, shared or one per environment, the state broadcast over them."""
    mechanism = hopper(dataclasses.replace(EXACT, grad_kappa=grad_kappa))
    z = states(mechanism, *(() if batched else (3,)))
    if batched:
        mechanism.bodies["leg"].mass = torch.tensor([0.2, 0.3, 0.4])
        mechanism.contacts["foot"].friction = torch.tensor([0.2, 0.5, 0.8])
        mechanism.timestep = torch.tensor([0.008, 0.01, 0.012])
    parameters = require_grad(mechanism)
    z.requires_grad_()
    u = torch.randn(3, 1).requires_grad_()
    wrench = torch.randn(12).requires_grad_()
    inputs = [z, u, wrench, *parameters]
    gradients = {}
    for backend in ("native", "reference"):
        out = on(mechanism, backend).step(z, u, wrench=wrench)
        assert not out.status.any()
        gradients[backend] = torch.autograd.grad(loss(out.z, out.impulses), inputs, allow_unused=True, materialize_grads=True)
    assert all(float(g.abs().max()) > 0 for g in gradients["reference"][:3])
    for actual, expected in zip(*gradients.values(), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9)


def test_gradients_through_a_rollout() -> None:
    mechanism = hopper()
    parameters = require_grad(mechanism)
    z, u = states(mechanism, 2).detach().requires_grad_(), 0.1 * torch.randn(2, 5, 1)
    u.requires_grad_()
    gradients = []
    for backend in ("native", "reference"):
        run = on(mechanism, backend).rollout(z, u)
        gradients.append(torch.autograd.grad(loss(run.z, run.impulses), [z, u, *parameters], allow_unused=True, materialize_grads=True))
    for actual, expected in zip(*gradients, strict=True):
        # Each step amplifies what differs in the one before.
        torch.testing.assert_close(actual, expected, rtol=1e-7, atol=1e-7)


def spinning() -> tuple[td.Mechanism, Tensor, Tensor]:
    """A ball that spins so fast that one step with this input has no solution, and one that does not."""
    mechanism = td.Mechanism(
        {"ball": td.Body(1.0, (1.0, 1.0, 1.0))}, {"base": td.Floating(None, "ball")}, timestep=0.1, gravity=(0, 0, 0), options=EXACT
    )
    z = mechanism.initial_state((2,), ball=dict(angular_velocity=torch.tensor([[0.0, 0.0, 13.0], [0.0, 1.0, 2.0]])))
    return mechanism, z, torch.tensor((0.0, 0.0, 0.0, 0.0, 0.0, 5.0))


def test_split_steps() -> None:
    mechanism, z, u = spinning()
    parameters = require_grad(mechanism)
    z, u = z.detach().requires_grad_(), u.requires_grad_()
    gradients, jacobians = [], []
    for backend in ("native", "reference"):
        out = on(mechanism, backend).step(z, u)
        assert out.substeps.tolist() == [2, 1]
        gradients.append(torch.autograd.grad(loss(out.z, out.impulses), [z, u, *parameters], allow_unused=True, materialize_grads=True))
        jacobians.append(mechanism.jacobians(z, u))
    same(gradients[0], gradients[1])
    same(jacobians[0], jacobians[1])


def test_flagged_steps_keep_their_state_and_have_no_gradient() -> None:
    mechanism = hopper()
    parameters = require_grad(mechanism)
    bad = states(mechanism, 3).detach()
    bad[1, 3] = torch.nan
    z = bad.requires_grad_()
    out = mechanism.step(z)
    assert out.status.tolist() == [0, int(td.Status.INVALID_INPUT), 0]
    grads = torch.autograd.grad(loss(out.z[0], out.impulses[0], out.impulses[1]), [z, *parameters], allow_unused=True)
    assert all(g is None or bool(torch.isfinite(g).all()) for g in grads)
    assert not grads[0][1].any()


@pytest.mark.parametrize("name", ["quadruped", "humanoid", "npendulum"])
def test_what_others_in_the_lanes_do_changes_no_bit(name: str) -> None:
    """Next to environments at rest, and next to others that move all the time and keep their lanes at other iterations."""
    mechanism = td.models.make(name)
    z = mechanism.rollout(td.models.initial_state(name, mechanism)[None], steps=100).z[:, -1].expand(8, -1)
    still = torch.zeros(8, 40, mechanism.num_inputs)
    moving = still.clone()
    moving[1:] = torch.randn(7, 40, mechanism.num_inputs)
    assert torch.equal(mechanism.rollout(z, still).z[0], mechanism.rollout(z, moving).z[0])


def test_what_was_computed_before_changes_no_bit() -> None:
    """Also where the last step before was one at rest."""
    mechanism = td.models.make("snake")
    start = td.models.initial_state("snake", mechanism)
    rest = mechanism.rollout(start, steps=400)
    assert int(rest.iterations[-1]) == 0
    u = torch.randn(60, mechanism.num_inputs)
    for z in (start, rest.z[-1]):
        mechanism.rollout(start, u)
        first = mechanism.rollout(z, u)
        mechanism.rollout(rest.z[-1], steps=5)
        assert torch.equal(mechanism.rollout(z, u).z, first.z)


def test_a_rollout_is_its_steps() -> None:
    mechanism = hopper()
    z, u = states(mechanism, 4), 0.1 * torch.randn(4, 6, 1)
    run, warm, now = mechanism.rollout(z, u), None, z
    for t in range(6):
        out = mechanism.step(now, u[:, t], warm_start=warm)
        now, warm = out.z, out.solution
        same(run.z[:, t + 1], out.z)
        same(run.impulses[:, t], out.impulses)
        assert torch.equal(run.iterations[:, t], out.iterations)
    policy = mechanism.rollout(z, lambda z: z.new_zeros(1), steps=3)
    same(policy.z, mechanism.rollout(z, steps=3).z)


def test_the_next_state_may_be_written_to() -> None:
    mechanism = hopper()
    z = states(mechanism).requires_grad_()
    after = mechanism(z)
    after[0] += 1.0
    (expected,) = torch.autograd.grad(loss(mechanism(z)), z)
    same(torch.autograd.grad(loss(after), z)[0], expected)


def test_one_environment_off_the_sphere_raises_as_in_the_reference() -> None:
    z = states(hopper(), 3)
    z[2, 6:10] *= 1.1
    messages = []
    for backend in ("native", "reference"):
        with pytest.raises(ValueError, match="environment 2 has a quaternion whose norm differs") as error:
            on(hopper(), backend).step(z)
        messages.append(str(error.value))
    assert messages[0] == messages[1]


# -- which backend --------------------------------------------------------------------------------------------


class Spring(td.Revolute):
    """Written by a user: the kernel does not know it."""


def test_native_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    mechanism, calls = hopper(), []
    original = kernel.step
    monkeypatch.setattr(kernel, "step", lambda *args: (calls.append(1), original(*args))[1])
    mechanism.step(states(mechanism))
    assert calls == [1]
    on(mechanism, "reference").step(states(mechanism))
    assert calls == [1]


def test_why_the_kernel_cannot_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"got torch.float32 with backend='native', which computes in float64; use 'reference'"):
        td.SolverOptions(kappa=1e-4, backend="native", dtype=torch.float32)
    user = td.Mechanism({"a": td.Body(1.0, (1.0, 1.0, 1.0))}, {"j": Spring(None, "a", axis=(0, 1, 0))})
    z = user.initial_state()
    user.step(z)
    with pytest.raises(RuntimeError, match="Spring, is not a built-in joint, coupling, tendon or contact"):
        on(user, "native").step(z)
    extra = hopper()
    extra.joints["hip"].register_buffer("colour", torch.zeros(3))
    extra = td.Mechanism(dict(extra.bodies), dict(extra.joints), options=EXACT)
    with pytest.raises(RuntimeError, match=r"a Revolute, has tensors that are not physical fields: \['colour'\]"):
        on(extra, "native").step(z.new_zeros(26))
    monkeypatch.setenv("TORCHDOJO_NATIVE", "0")
    mechanism = hopper()
    mechanism.step(states(mechanism))
    with pytest.raises(loader.NativeUnavailable, match="switched off"):
        on(mechanism, "native").step(states(mechanism))


# -- operators ------------------------------------------------------------------------------------------------


def operator_arguments(batched: bool) -> tuple[Any, list[Any], list[Any]]:
    mechanism = hopper()
    kernel = mechanism.backends.select(Request(mechanism.options))
    assert isinstance(kernel, Kernel)
    parameters = [p.detach().clone().requires_grad_() for p in mechanism.stacked_parameters()]
    if batched:
        parameters[2] = (torch.tensor([[1.0], [1.1], [0.9]]) * parameters[2].detach()).requires_grad_()
    z, u, wrench = states(mechanism, 3).requires_grad_(), torch.randn(2, 1).requires_grad_(), torch.zeros(12)
    return kernel, [z, u, wrench], parameters


@pytest.mark.parametrize("batched", [False, True])
def test_opcheck(batched: bool) -> None:
    kernel, tensors, parameters = operator_arguments(batched)
    numbers = kernel.program.number, encode(kernel.request)
    ops = torch.ops.torchdojo
    arguments = (*tensors, None, parameters, *numbers, int(Keep.STEPS))
    torch.library.opcheck(ops.rollout.default, arguments)
    z, _, w, status, _, substeps, serial = ops.rollout(*arguments)
    saved = [z.detach(), w, status, substeps, serial]
    inputs = [t.detach() for t in (*tensors, *parameters)]
    needs = [i % 2 == 0 for i in range(len(inputs))]
    torch.library.opcheck(ops.rollout_adjoint.default, (torch.ones_like(z), None, saved, inputs, *numbers, needs))
    plain = [t.detach() for t in parameters]
    torch.library.opcheck(ops.step_jacobian.default, (tensors[0].detach(), tensors[1][:1].detach(), tensors[2], None, plain, *numbers))
    q = torch.zeros(3, kernel.program.num_coordinates)
    forces = tensors[1][:1].detach(), tensors[2]
    torch.library.opcheck(ops.minimal_jacobian.default, (q, 0.1 + q, *forces, None, plain, *numbers))


def test_operators_outlive_no_mechanism() -> None:
    kernel, tensors, parameters = operator_arguments(False)
    numbers = kernel.program.number, encode(kernel.request)
    del kernel
    gc.collect()
    with pytest.raises(RuntimeError, match="the mechanism of this step does not exist here"):
        torch.ops.torchdojo.rollout(*tensors, None, parameters, *numbers, int(Keep.STEPS))


@pytest.mark.parametrize("trainable", [False, True])
def test_backward_keeps_states_and_solutions_only(trainable: bool) -> None:
    """And what the caller gave; parameters only where their gradient is wanted."""
    mechanism = hopper().requires_grad_(trainable)
    z, u = states(mechanism, 4).requires_grad_(), torch.zeros(4, 50, 1)
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        run = mechanism.rollout(z, u)
    states_and_solutions = run.z.numel() + 4 * 50 * mechanism.layout.num_unknowns
    counts = 2 * run.status.numel()
    wrench = 6 * mechanism.num_bodies
    small = z.numel() + u.numel() + wrench + trainable * sum(p.numel() for p in mechanism.parameters())
    assert sum(kept.values()) == 8 * (states_and_solutions + counts + small)


# -- torch.func -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trainable", [False, True])
def test_gradients_of_several_outputs_at_once(trainable: bool) -> None:
    """vmap of backward alone, through a step taken before."""
    mechanism = hopper().requires_grad_(trainable)
    z, u = states(mechanism, 3).requires_grad_(), torch.randn(3, 1, requires_grad=True)
    wanted = [z, u, *mechanism.parameters()] if trainable else [z, u]
    after, weights = mechanism.step(z, u).z, torch.randn(4, *z.shape)

    def back(weight: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(after, wanted, weight, retain_graph=True, materialize_grads=True, allow_unused=True)

    for actual, expected in zip(torch.func.vmap(back)(weights), zip(*map(back, weights), strict=True), strict=True):
        torch.testing.assert_close(actual, torch.stack(expected), rtol=1e-12, atol=1e-12)


def test_vmap() -> None:
    mechanism = hopper()
    z, u = states(mechanism, 4, 3), torch.randn(3, 1)
    whole = mechanism.step(z, u).z
    same(torch.func.vmap(lambda z: mechanism.step(z, u).z)(z), whole)
    same(torch.func.vmap(torch.func.vmap(lambda z, u: mechanism.step(z, u).z), in_dims=(0, None))(z, u), whole)
    same(torch.func.vmap(lambda u: mechanism.step(z, u).z, out_dims=1)(u[:, None]), mechanism.step(z[:, None], u[:, None]).z.movedim(1, 1))
    warm = mechanism.step(z, u).solution
    same(torch.func.vmap(lambda z, warm: mechanism.step(z, u, warm_start=warm).z)(z, warm), whole)
    jacobians = torch.func.vmap(lambda z: mechanism.jacobians(z, u)[0])(z)
    same(jacobians, mechanism.jacobians(z, u)[0])


def test_vmap_over_parameters() -> None:
    mechanism = hopper()
    z, masses = states(mechanism, 2), torch.tensor([0.2, 0.3, 0.4])

    def after(mass: Tensor) -> Tensor:
        return torch.func.functional_call(mechanism, {"bodies.leg.mass": mass}, (z,))

    expected = torch.stack([after(mass) for mass in masses])
    same(torch.func.vmap(after)(masses), expected)
    grads = torch.func.vmap(torch.func.grad(lambda mass: loss(after(mass))))(masses)
    same(grads, torch.stack([torch.func.grad(lambda mass: loss(after(mass)))(mass) for mass in masses]))


def test_grad_and_jacrev() -> None:
    mechanism = hopper()
    z, u = states(mechanism), torch.randn(1)
    leaf = z.clone().requires_grad_()
    (expected,) = torch.autograd.grad(loss(mechanism(leaf, u)), leaf)
    same(torch.func.grad(lambda z: loss(mechanism(z, u)))(z), expected)
    same(torch.func.jacrev(lambda z: mechanism(z, u))(z), torch.autograd.functional.jacobian(lambda z: mechanism(z, u), z))
    with pytest.raises(RuntimeError, match="second derivatives through the step are not implemented"):
        torch.func.jacrev(torch.func.jacrev(lambda z: mechanism(z, u)))(z)
    (first,) = torch.autograd.grad(loss(mechanism(leaf, u)), leaf, create_graph=True)
    with pytest.raises(RuntimeError, match="second derivatives through the step are not implemented"):
        first.sum().backward()


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_jacobians_into_given_memory(backend: str) -> None:
    mechanism, z = on(hopper(), backend), states(hopper(), 3)
    u = torch.zeros(2, 1, mechanism.num_inputs)
    size = 12 * mechanism.num_bodies
    out = torch.full((2, 3, size, size + mechanism.num_inputs), torch.nan)
    expected = mechanism.jacobians(z, u)
    for _ in range(2):
        jacobians = mechanism.jacobians(z, u, out=out)
        assert all(value.untyped_storage().data_ptr() == out.untyped_storage().data_ptr() for value in jacobians)
        assert torch.equal(torch.cat(jacobians, dim=-1), out) and torch.equal(torch.cat(expected, dim=-1), out)
        out.fill_(torch.nan)


# -- what is kept between calls --------------------------------------------------------------------------------


def test_copies_and_pickles() -> None:
    mechanism = hopper()
    z = states(mechanism, 2)
    expected = mechanism.step(z).z
    saved = io.BytesIO()
    torch.save(mechanism, saved)
    saved.seek(0)
    for other in (copy.deepcopy(mechanism), pickle.loads(pickle.dumps(mechanism)), torch.load(saved, weights_only=False)):
        assert torch.equal(other.step(z).z, expected)
        assert other.backends.program is not mechanism.backends.program
        assert other.backends.program.number != mechanism.backends.program.number
        assert other.backends.program.system is other.backends.system
        other.bodies["ball"].mass = 3.0
        assert not torch.equal(other.step(z).z, expected) and torch.equal(mechanism.step(z).z, expected)


def test_programs_go_with_their_mechanisms() -> None:
    mechanism = hopper()
    mechanism.step(states(mechanism))
    number, alive = mechanism.backends.program.number, weakref.ref(mechanism.backends.program)
    z = states(mechanism).requires_grad_()
    value = loss(mechanism(z))
    del mechanism
    value.backward()  # what a graph needs it keeps
    assert bool(torch.isfinite(z.grad).all())
    del value
    gc.collect()
    assert alive() is None and number not in program._by_number


def test_threads() -> None:
    mechanism = hopper()
    z = states(mechanism, 8, 16)
    expected = mechanism.rollout(z, steps=20).z
    results: dict[int, Tensor] = {}

    def work(i: int) -> None:
        results[i] = mechanism.rollout(z[i], steps=20).z

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    same(torch.stack([results[i] for i in range(8)]), expected)


class Rollouts(torch.utils.data.Dataset[Tensor]):
    def __init__(self, mechanism: td.Mechanism, z: Tensor) -> None:
        self.mechanism, self.z = mechanism, z

    def __len__(self) -> int:
        return len(self.z)

    def __getitem__(self, i: int) -> Tensor:
        return self.mechanism.rollout(self.z[i], steps=3).z


@pytest.mark.slow
@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_workers_of_a_data_loader(context: str) -> None:
    mechanism = hopper()
    z = states(mechanism, 4)
    expected = mechanism.rollout(z, steps=3).z
    loader_ = torch.utils.data.DataLoader(Rollouts(mechanism, z), batch_size=2, num_workers=1, multiprocessing_context=context)
    same(torch.cat(list(loader_)), expected)


def test_empty_batches() -> None:
    mechanism = hopper()
    z = states(mechanism, 0).requires_grad_()
    out = mechanism.step(z)
    assert out.z.shape == (0, 26) and out.status.shape == (0,)
    out.z.sum().backward()
    assert z.grad.shape == (0, 26)


def test_schema_of_an_operator_is_what_the_annotations_say():
    def every(
        a: Tensor, b: Tensor | None, c: list[Tensor], d: int, e: float, f: bool, g: list[float], h: list[bool]
    ) -> tuple[Tensor, list[Tensor]]: ...  # type: ignore[empty-body]

    def one(z: Tensor) -> list[Tensor]: ...  # type: ignore[empty-body]

    types = "Tensor a, Tensor? b, Tensor[] c, SymInt d, float e, bool f, float[] g, bool[] h"
    assert operators.schema(every) == f"({types}) -> (Tensor, Tensor[])"
    assert operators.schema(one) == "(Tensor z) -> Tensor[]"
