"""Mechanisms as PyTorch modules: parameters, copies, precision, batches and function transforms."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

import torchdojo as td
from hopper import hopper, states
from torchdojo import quaternion as quat
from torchdojo.parameters import broadcast_shapes

ROUNDING = dict(rtol=0.0, atol=1e-12)


# -- batches --------------------------------------------------------------------------------------------------


def test_batch_equals_single_steps() -> None:
    mechanism = hopper(td.SolverOptions(kappa=1e-4))
    z, u = states(mechanism, 64), 0.1 * torch.randn(64, 1)
    out = mechanism.step(z, u)
    assert float(mechanism.distances(out.z).min()) < 1e-3  # some are in contact
    for i in range(64):
        single = mechanism.step(z[i], u[i])
        # 1e-12 leaves room for rounding: sums may be ordered differently, nothing else.
        torch.testing.assert_close(single.z, out.z[i], **ROUNDING)
        torch.testing.assert_close(single.impulses, out.impulses[i], **ROUNDING)
        assert single.iterations == out.iterations[i] and single.status == out.status[i]
    assert out.status.nonzero().flatten().tolist() == []


@pytest.mark.parametrize("batch", [(), (1,), (3, 4)], ids=str)
def test_shapes(batch: tuple[int, ...]) -> None:
    mechanism = hopper()
    z, u = states(mechanism, *batch), torch.zeros(*batch, 1)
    out = mechanism.step(z, u)
    assert out.z.shape == z.shape and out.status.shape == out.iterations.shape == batch
    assert out.impulses.shape == (*batch, 5 + 4 + 1)
    A, B = mechanism.jacobians(z, u)
    assert A.shape == (*batch, 24, 24) and B.shape == (*batch, 24, 1)
    trajectory = mechanism.rollout(z, u[..., None, :].expand(*batch, 3, 1))
    assert trajectory.z.shape == (*batch, 4, 26) and trajectory.status.shape == (*batch, 3)


def test_inputs_broadcast_against_states() -> None:
    mechanism = hopper()
    z, u, wrench = states(mechanism, 3, 1), torch.randn(4, 1), 0.1 * torch.randn(12)
    out = mechanism.step(z, u, wrench=wrench)
    full = mechanism.step(z.expand(3, 4, -1), u.expand(3, 4, -1), wrench=wrench.expand(3, 4, -1))
    torch.testing.assert_close(out.z, full.z, **ROUNDING)


BATCHED: dict[str, Callable[[td.Mechanism, Tensor], None]] = {
    "mass": lambda m, s: setattr(m.bodies["ball"], "mass", s),
    "inertia": lambda m, s: setattr(m.bodies["leg"], "inertia", s[:, None, None] * m.bodies["leg"].inertia),
    "gravity": lambda m, s: setattr(m, "gravity", s[:, None] * m.gravity),
    "timestep": lambda m, s: setattr(m, "timestep", s * m.timestep),
    "anchor": lambda m, s: setattr(m.joints["hip"], "child_anchor", s[:, None] * m.joints["hip"].child_anchor),
    "axis": lambda m, s: setattr(m.joints["hip"], "axis", torch.stack((0.1 * s, torch.ones_like(s), 0 * s), -1)),
    "spring": lambda m, s: setattr(m.joints["hip"], "spring", s[:, None]),
    "friction": lambda m, s: setattr(m.contacts["foot"], "friction", s),
    "point": lambda m, s: setattr(m.contacts["foot"], "point", s[:, None] * m.contacts["foot"].point),
    "normal": lambda m, s: setattr(m.contacts["foot"], "normal", torch.stack((0.1 * s, 0 * s, torch.ones_like(s)), -1)),
}


@pytest.mark.parametrize("name", BATCHED)
def test_one_parameter_per_environment_equals_a_loop(name: str) -> None:
    scales, z = torch.tensor([0.8, 1.0, 1.2]), states(hopper())
    together = hopper()
    BATCHED[name](together, scales)
    out = together.step(z)
    assert out.z.shape == (3, 26) and not out.status.any()
    A, _ = together.jacobians(z)
    for i in range(3):
        alone = hopper()
        BATCHED[name](alone, scales[i : i + 1])
        torch.testing.assert_close(alone.step(z).z[0], out.z[i], **ROUNDING)
        # Derivatives of contact steps reach 1e3.
        torch.testing.assert_close(alone.jacobians(z)[0][0], A[i], rtol=0, atol=1e-9)
    assert not torch.equal(out.z[0], out.z[2])


# -- parameters -----------------------------------------------------------------------------------------------


def test_parameters_do_not_require_grad_until_asked() -> None:
    mechanism = hopper()
    assert not any(p.requires_grad for p in mechanism.parameters())
    assert not mechanism(states(mechanism)).requires_grad
    mechanism.bodies["ball"].mass.requires_grad_()
    mechanism(states(mechanism)).sum().backward()
    assert mechanism.bodies["ball"].mass.grad is not None and bool(torch.isfinite(mechanism.bodies["ball"].mass.grad))
    names = dict(mechanism.named_parameters())
    assert {"timestep", "gravity", "bodies.ball.mass", "joints.hip.damper", "contacts.foot.friction"} <= set(names)


def test_assignment_of_numbers_and_tensors() -> None:
    mechanism = hopper()
    body = mechanism.bodies["ball"]
    body.mass = 2
    assert isinstance(body.mass, nn.Parameter) and body.mass.dtype == torch.float64 and float(body.mass) == 2
    given = torch.tensor(3.0)
    body.mass = given
    given += 1  # ours is a copy
    assert float(body.mass) == 3
    parameter = nn.Parameter(torch.tensor(4.0))
    body.mass = parameter
    assert body.mass is parameter and any(p is parameter for p in mechanism.parameters())
    body.inertia = (1.0, 1.0, 1.0)
    assert torch.equal(body.inertia, torch.eye(3))


def test_network_output_as_parameter() -> None:
    mechanism = hopper()
    network = nn.Linear(2, 1)
    features = torch.randn(4, 2)
    mechanism.contacts["foot"].friction = nn.functional.softplus(network(features)).squeeze(-1)
    out = mechanism(states(mechanism, 4))
    (out * torch.randn(4, 26)).sum().backward()
    assert bool(torch.isfinite(network.weight.grad).all()) and float(network.weight.grad.abs().max()) > 0
    mechanism.contacts["foot"].friction = 0.5  # and back to a number
    assert isinstance(mechanism.contacts["foot"].friction, nn.Parameter)


class Positive(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.exp()

    def right_inverse(self, y: Tensor) -> Tensor:
        return y.log()


@pytest.mark.parametrize("built", ["before", "after"])
def test_parametrized_friction(built: str) -> None:
    """log μ as the parameter: same step, gradient by the chain rule, whether the mechanism was built before or after."""
    plain, wrapped = hopper(), hopper()
    z, weights = states(plain, 3), torch.randn(3, 26)
    plain.contacts["foot"].friction.requires_grad_()
    parametrize.register_parametrization(wrapped.contacts["foot"], "friction", Positive())
    if built == "after":
        parts = [list(part.items()) for part in (wrapped.bodies, wrapped.joints, wrapped.contacts)]
        wrapped = td.Mechanism(*parts, timestep=wrapped.timestep, options=wrapped.options)
    original = wrapped.contacts["foot"].parametrizations.friction.original.requires_grad_()
    out, expected = wrapped(z), plain(z)
    torch.testing.assert_close(out, expected, **ROUNDING)
    (out * weights).sum().backward()
    (expected * weights).sum().backward()
    assert float(original.grad) != 0
    # Through a solve whose residual is known to 1e-12, amplified by the solution's derivative of some 1e3.
    torch.testing.assert_close(original.grad, 0.5 * plain.contacts["foot"].friction.grad, rtol=1e-9, atol=1e-12)


def pickled(mechanism: td.Mechanism) -> td.Mechanism:
    copied: td.Mechanism = pickle.loads(pickle.dumps(mechanism))
    return copied


def saved(mechanism: td.Mechanism) -> td.Mechanism:
    buffer = io.BytesIO()
    torch.save(mechanism.state_dict(), buffer)
    buffer.seek(0)
    other = hopper()
    for element in (*other.bodies.values(), *other.contacts.values()):
        name = "mass" if isinstance(element, td.Body) else "radius"
        setattr(element, name, 1.7)
    other.load_state_dict(torch.load(buffer))
    return other


@pytest.mark.parametrize("copier", [copy.deepcopy, pickled, saved])
def test_copies(copier: Callable[[td.Mechanism], td.Mechanism]) -> None:
    """A copy steps the same, bit for bit, and is independent."""
    mechanism = hopper()
    mechanism.bodies["ball"].mass = 1.3
    mechanism.contacts["foot"].friction = 0.7
    copied, z = copier(mechanism), states(mechanism, 2)
    before = mechanism(z)
    assert torch.equal(copied(z), before)
    copied.bodies["ball"].mass = 5.0
    copied.contacts["foot"].friction = 0.1
    assert not torch.equal(copied(z), before)
    assert torch.equal(mechanism(z), before)


def test_parametrized_mechanism_can_be_copied() -> None:
    mechanism = hopper()
    parametrize.register_parametrization(mechanism.contacts["foot"], "friction", Positive())
    copied, z = copy.deepcopy(mechanism), states(mechanism)
    before = mechanism(z)
    copied.contacts["foot"].parametrizations.friction.original.data.add_(-3.0)
    assert torch.equal(mechanism(z), before) and not torch.equal(copied(z), before)


def test_solve_in_float32() -> None:
    mechanism = hopper(td.SolverOptions(kappa=1e-4))
    z = states(mechanism, 8)
    expected = mechanism.rollout(z, steps=10)
    single = copy.deepcopy(mechanism)
    single.options = td.SolverOptions(kappa=1e-4, dtype=torch.float32)
    out = single.rollout(z.float(), steps=10)
    assert out.z.dtype == torch.float32 and not out.status.any()
    # Complementarity rows are met to 1e-2 κ in float32: impulses of 1e-2 N·s to 1e-4, over masses of 0.3 kg and ten steps.
    torch.testing.assert_close(out.z.double(), expected.z, rtol=0, atol=5e-3)
    start = z.float().requires_grad_()
    single(start).sum().backward()
    assert start.grad is not None and bool(torch.isfinite(start.grad).all())
    with pytest.raises(ValueError, match=r"kappa = 1e-06 is below what float32 resolves.*1e-4"):
        hopper(td.SolverOptions(kappa=1e-6, dtype=torch.float32))


# -- function transforms --------------------------------------------------------------------------------------


def test_vmap_equals_batching() -> None:
    mechanism = hopper()
    z, u = states(mechanism, 4), torch.randn(4, 1)
    for arguments, dims in (((z, u), (0, 0)), ((z, u[0]), (0, None)), ((z[0], u), (None, 0)), ((z.mT.contiguous(), u), (1, 0))):
        mapped = torch.func.vmap(mechanism, in_dims=dims)(*arguments)
        expected = mechanism(*(a.movedim(1, 0) if d == 1 else a for a, d in zip(arguments, dims, strict=True)))
        torch.testing.assert_close(mapped, expected, **ROUNDING)
    nested = torch.func.vmap(torch.func.vmap(mechanism, in_dims=(None, 0)), in_dims=(0, None))(z, u)
    torch.testing.assert_close(nested, mechanism(z[:, None], u), **ROUNDING)


def tangent_basis(z: Tensor) -> Tensor:
    """(13 nb, 12 nb): ambient direction of every tangent coordinate, from q ⊗ [1, dphi / 2]."""
    blocks = []
    for state in z.unflatten(-1, (-1, 13)):
        block = torch.zeros(13, 12)
        block[:6, :6] = torch.eye(6)
        directions = torch.cat((torch.zeros(3, 1), 0.5 * torch.eye(3)), -1)
        block[6:10, 6:9] = quat.multiply(state[6:10], directions).mT
        block[10:, 9:] = torch.eye(3)
        blocks.append(block)
    return torch.block_diag(*blocks)


def test_jacrev_equals_jacobians() -> None:
    """Ambient derivatives, brought to the tangent spaces of z and of the next state."""
    mechanism = hopper()
    z, u = states(mechanism, 4), 0.1 * torch.randn(4, 1)
    A, B = mechanism.jacobians(z, u)
    after = mechanism(z, u)
    jac_z, jac_u = torch.func.vmap(torch.func.jacrev(mechanism, argnums=(0, 1)))(z, u)
    for i in range(4):
        single_z, single_u = torch.func.jacrev(mechanism, argnums=(0, 1))(z[i], u[i])
        left = torch.linalg.pinv(tangent_basis(after[i]))
        for ambient_z, ambient_u in ((single_z, single_u), (jac_z[i], jac_u[i])):
            # Entries reach 1e3, residuals of both solves are below 1e-12.
            torch.testing.assert_close(left @ ambient_z @ tangent_basis(z[i]), A[i], rtol=1e-9, atol=1e-8)
            torch.testing.assert_close(left @ ambient_u, B[i], rtol=1e-9, atol=1e-8)
        # Gradients of quaternions are tangent to the sphere.
        for k in range(2):
            quaternion = slice(13 * k + 6, 13 * k + 10)
            assert float((single_z[:, quaternion] @ z[i, quaternion]).abs().max()) <= 1e-9


@pytest.mark.parametrize("name", ["bodies.ball.mass", "contacts.foot.friction", "joints.hip.damper", "gravity"])
def test_functional_call_and_vmap_over_a_parameter(name: str) -> None:
    mechanism = hopper()
    z, value = states(mechanism), dict(mechanism.named_parameters())[name].detach()
    scales = torch.tensor([0.5, 1.0, 2.0])

    def step(scale: Tensor) -> Tensor:
        result: Tensor = torch.func.functional_call(mechanism, {name: scale * value}, (z,))
        return result

    before = dict(mechanism.named_parameters())[name]
    mapped = torch.func.vmap(step)(scales)
    torch.testing.assert_close(mapped, torch.stack([step(s) for s in scales]), **ROUNDING)
    assert not torch.equal(mapped[0], mapped[2])
    assert dict(mechanism.named_parameters())[name] is before

    # And derivatives through both, per sample, against central differences: truncation 1e-10 times third derivatives of some 1e4.
    derivative = torch.func.vmap(torch.func.jacrev(step))(scales)
    d = 1e-5
    differences = (torch.func.vmap(step)(scales + d) - torch.func.vmap(step)(scales - d)) / (2 * d)
    torch.testing.assert_close(derivative, differences, rtol=1e-5, atol=1e-6)


def test_second_derivatives_raise() -> None:
    mechanism = hopper()
    z = states(mechanism).requires_grad_()
    (first,) = torch.autograd.grad(mechanism(z).sum(), z, create_graph=True)
    with pytest.raises(RuntimeError, match=r"second derivatives.*not implemented.*jacobians"):
        torch.autograd.grad(first.sum(), z)


@pytest.mark.parametrize("shapes", [[], [()], [(2, 3), (1, 3), (3,)], [(4, 1), (5,), ()], [(0,), (1,)], [(2,), (3,)], [(0,), (2,)]])
def test_broadcast_of_shapes(shapes: list[tuple[int, ...]]) -> None:
    """As torch does it, without importing sympy."""
    try:
        expected = torch.broadcast_shapes(*shapes)
    except RuntimeError:
        with pytest.raises(RuntimeError, match="do not broadcast"):
            broadcast_shapes(*shapes)
    else:
        assert broadcast_shapes(*shapes) == expected
