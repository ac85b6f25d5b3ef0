"""PyTorch's own machinery through the step: forward and reverse mode, second derivatives, autocast."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from machinery import BACKENDS, EXACT, NATIVE, ball, close, hopper, rolling
from test_gradients import Terrain, box
from torch import Tensor, nn
from torch.autograd import forward_ad

import torchdojo as td
from hopper import states


def flat(mechanism: td.Mechanism, z: Tensor, u: Tensor) -> Callable[..., Tensor]:
    """The step, impulses included, as a function of tangent, input, wrench and parameters that hold (names in `FIELDS`)."""
    with torch.no_grad():
        base = mechanism.step(z, u)

    def function(delta: Tensor, du: Tensor, wrench: Tensor, *values: Tensor) -> Tensor:
        fields = dict(zip(fields_of(mechanism), values, strict=False))
        moved = (mechanism.retract(z, delta), u + du)
        out = torch.func.functional_call(Step(mechanism), {f"mechanism.{k}": v for k, v in fields.items()}, (*moved, wrench))
        return torch.cat((mechanism.difference(out[0], base.z), out[1]), dim=-1)

    return function


class Step(nn.Module):
    """`mechanism.step` for `functional_call`."""

    def __init__(self, mechanism: td.Mechanism) -> None:
        super().__init__()
        self.mechanism = mechanism

    def forward(self, z: Tensor, u: Tensor, wrench: Tensor) -> tuple[Tensor, Tensor]:
        out = self.mechanism.step(z, u, wrench=wrench)
        return out.z, out.impulses


def fields_of(mechanism: td.Mechanism) -> dict[str, Tensor]:
    """Parameters of every class: of bodies, joints, contacts, and of the mechanism."""
    names = ("bodies.ball.mass", "bodies.ball.inertia", "contacts.foot.friction", "contacts.foot.point", "timestep", "gravity")
    names += ("joints.hip.spring", "joints.hip.damper", "joints.hip.axis", "joints.hip.child_anchor")
    parameters = dict(mechanism.named_parameters())
    return {name: parameters[name].detach() for name in names if name in parameters}


def arguments(mechanism: td.Mechanism) -> tuple[Tensor, ...]:
    nb = mechanism.num_bodies
    return torch.zeros(12 * nb), torch.zeros(mechanism.num_inputs), torch.randn(6 * nb), *fields_of(mechanism).values()


def tangent_step(mechanism: td.Mechanism, z: Tensor, u: Tensor | None = None) -> Callable[[Tensor, Tensor], Tensor]:
    """The step between flat spaces: tangents of z and changes of u to tangents of the next state. (Differences in z leave the sphere.)"""
    u = torch.zeros(mechanism.num_inputs) if u is None else u
    base = mechanism.step(z, u)
    assert not base.status.any()

    def step(delta: Tensor, du: Tensor) -> Tensor:
        return mechanism.difference(mechanism.step(mechanism.retract(z, delta), u + du, warm_start=base.solution).z, base.z)

    return step


# -- first derivatives --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("backend", "grad_kappa"),
    [
        *(pytest.param("native", grad_kappa, marks=NATIVE) for grad_kappa in (None, 1e-2)),
        ("reference", None),
        pytest.param("reference", 1e-2, marks=pytest.mark.slow),
    ],
)
def test_forward_mode_is_the_transpose_of_reverse_mode(backend: str, grad_kappa: float | None) -> None:
    """jacfwd and jacrev, jvp and vjp, in contact: z, u, wrench and parameters."""
    mechanism = hopper(backend, grad_kappa=grad_kappa)
    z, u = states(mechanism), torch.randn(1)
    function, point = flat(mechanism, z, u), arguments(mechanism)
    places = tuple(range(len(point)))
    forward, backward = torch.func.jacfwd(function, places)(*point), torch.func.jacrev(function, places)(*point)
    for f, b in zip(forward, backward, strict=True):
        close(f, b)
        assert bool(f.any())
    tangents = tuple(torch.randn_like(t) for t in point)
    pushed = torch.func.jvp(function, point, tangents)[1]
    expected = sum((j.reshape(len(pushed), -1) @ t.flatten() for j, t in zip(backward, tangents, strict=True)), torch.zeros(()))
    close(pushed, torch.as_tensor(expected))
    weights = torch.randn_like(pushed)
    pulled = torch.func.vjp(function, *point)[1](weights)
    close(sum((p * t).sum() for p, t in zip(pulled, tangents, strict=True)), weights @ pushed)
    with forward_ad.dual_level():
        duals = [forward_ad.make_dual(p, t) for p, t in zip(point, tangents, strict=True)]
        close(forward_ad.unpack_dual(function(*duals)).tangent, pushed)


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_assigned_dual_number(backend: str) -> None:
    """A parameter that carries a tangent keeps it, as one with a graph keeps that."""
    mechanism = hopper(backend)
    z, u = states(mechanism), torch.randn(1)

    def after(mass: Tensor) -> Tensor:
        mechanism.bodies["ball"].mass = mass
        return mechanism(z, u)

    with forward_ad.dual_level():
        moved = forward_ad.unpack_dual(after(forward_ad.make_dual(torch.tensor(1.0), torch.tensor(1.0)))).tangent
    close(moved, torch.autograd.functional.jacobian(after, torch.tensor(1.0)))


@pytest.mark.parametrize("backend", BACKENDS)
def test_nested_vmap_and_jacobians(backend: str) -> None:
    mechanism = hopper(backend)
    z, u = states(mechanism, 2, 3), torch.randn(3, 1)

    def step(z: Tensor, u: Tensor) -> Tensor:
        return mechanism(z, u)

    twice = torch.func.vmap(torch.func.vmap(torch.func.jacfwd(step, 1)), in_dims=(0, None))(z, u)
    reverse = torch.func.vmap(torch.func.vmap(torch.func.jacrev(step, 1), in_dims=(0, None)), in_dims=(1, 0), out_dims=1)(z, u)
    assert twice.shape == (2, 3, 26, 1)
    close(twice, reverse)
    masses = torch.tensor([0.5, 1.0, 2.0])

    def by_mass(mass: Tensor) -> Tensor:
        return torch.func.functional_call(mechanism, {"bodies.ball.mass": mass}, (z[0, 0], u[0]))

    close(torch.func.vmap(torch.func.jacfwd(by_mass))(masses), torch.func.vmap(torch.func.jacrev(by_mass))(masses))


@pytest.mark.parametrize("backend", BACKENDS)
def test_forward_mode_through_a_rollout(backend: str) -> None:
    """With inputs and a mass, warm starts, several environments; flagged ones have no tangent."""
    mechanism = hopper(backend)
    z, u = states(mechanism, 3), torch.randn(3, 4, 1)
    z[1, 3] = torch.nan

    def run(z: Tensor, u: Tensor, mass: Tensor) -> Tensor:
        mechanism.bodies["leg"].mass = mass
        path = mechanism.rollout(z, u)
        assert path.z.shape == (3, 5, 26)
        return torch.cat((path.z[:, 1:], path.impulses), dim=-1)

    point = (z, u, torch.tensor(0.3))
    tangents = tuple(torch.randn_like(t) for t in point)
    pushed = torch.func.jvp(run, point, tangents)[1]
    assert not pushed[1].any() and bool(torch.isfinite(pushed).all())
    weights = torch.randn_like(pushed)
    pulled = torch.func.vjp(run, *point)[1](weights)
    # Reverse mode gives zero for an environment that is not a number, and so does forward mode.
    close(sum((p * t).sum() for p, t in zip(pulled, tangents, strict=True)), (weights * pushed).sum(), 1e-8)


@NATIVE
def test_forward_mode_through_split_steps() -> None:
    """Two half steps that stand for one: forward and reverse mode of the kernel agree."""
    mechanism = td.Mechanism(
        {"ball": td.Body(1.0, (1.0, 1.0, 1.0))},
        {"base": td.Floating(None, "ball")},
        timestep=0.1,
        gravity=(0, 0, 0),
        options=dataclasses.replace(EXACT, backend="native"),
    )
    z = mechanism.initial_state((2,), ball=dict(angular_velocity=torch.tensor([[0.0, 0.0, 13.0], [0.0, 1.0, 2.0]])))
    u = torch.tensor((0.0, 0.0, 0.0, 0.0, 0.0, 5.0))
    assert mechanism.step(z, u).substeps.tolist() == [2, 1]
    tangents = torch.randn_like(z), torch.randn_like(u)

    def step(z: Tensor, u: Tensor) -> Tensor:
        out = mechanism.step(z, u)
        return torch.cat((out.z, out.impulses), dim=-1)

    with forward_ad.dual_level():
        pushed = forward_ad.unpack_dual(step(*(forward_ad.make_dual(p, t) for p, t in zip((z, u), tangents, strict=True)))).tangent
    z.requires_grad_()
    u.requires_grad_()
    weights = torch.randn_like(pushed)
    pulled = torch.autograd.grad(step(z, u), (z, u), weights)
    close(sum((p * t).sum() for p, t in zip(pulled, tangents, strict=True)), (weights * pushed).sum())


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradcheck(backend: str) -> None:
    mechanism = ball(backend)
    function = tangent_step(mechanism, rolling(mechanism), 0.1 * torch.randn(6))
    point = (1e-3 * torch.randn(12)).requires_grad_(), torch.zeros(6, requires_grad=True)
    # Contact bends within micrometers, so differences are taken over less than the 1e-6 that torch chooses for others.
    assert torch.autograd.gradcheck(
        function, point, eps=1e-8, atol=1e-5, rtol=1e-5, check_forward_ad=True, fast_mode=backend == "reference"
    )


# -- second derivatives -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_gradgradcheck() -> None:
    mechanism = ball()
    function = tangent_step(mechanism, rolling(mechanism), 0.1 * torch.randn(6))
    point = (1e-3 * torch.randn(12)).requires_grad_(), torch.zeros(6, requires_grad=True)
    assert torch.autograd.gradgradcheck(
        function, point, eps=1e-8, atol=1e-4, rtol=1e-4, fast_mode=True, check_fwd_over_rev=True, check_rev_over_rev=True
    )


@pytest.mark.parametrize("grad_kappa", [None, pytest.param(1e-2, marks=pytest.mark.slow)])
def test_second_derivatives_are_differences_of_first(grad_kappa: float | None) -> None:
    """Hessian-vector products in contact, along all inputs and parameters together; those of smoothed gradients, too."""
    mechanism = hopper(grad_kappa=grad_kappa)
    z, u = states(mechanism), torch.randn(1)
    function, point = flat(mechanism, z, u), arguments(mechanism)
    weights = torch.randn(24 + mechanism.step(z).impulses.shape[-1])
    if grad_kappa:
        # Poses are not linear in velocities: their second derivative has a product of first ones, smoothed in autograd, not in differences.
        weights[:24].reshape(2, 4, 3)[:, ::2] = 0
    places = tuple(range(len(point)))

    def gradient(*values: Tensor) -> tuple[Tensor, ...]:
        return torch.func.grad(lambda *v: weights @ function(*v), places)(*values)

    tangents = tuple(torch.randn_like(t) for t in point)
    product = torch.func.jvp(gradient, point, tangents)[1]
    # Extrapolated central differences of the gradient over steps at which contact (kappa 1e-4) is smooth: 1e-6 of the largest entry.
    central = []
    for step in (4e-7, 1e-7):
        plus, minus = (gradient(*(p + sign * step * t for p, t in zip(point, tangents, strict=True))) for sign in (1, -1))
        central.append([(a - b) / (2 * step) for a, b in zip(plus, minus, strict=True)])
    for exact, wide, narrow in zip(product, *central, strict=True):
        close(exact, (16 * narrow - wide) / 15, 1e-5)
        assert bool(exact.any())


@pytest.mark.slow
def test_four_ways_to_the_hessian() -> None:
    """Reverse and forward over reverse mode, reverse over forward mode, double backward; symmetric."""
    mechanism = ball(depenetration_speed=None)  # at 0.01 · randn the ball lies more than a centimeter deep
    z = rolling(mechanism)
    function = tangent_step(mechanism, z)
    weights, point, still = torch.randn(12), 0.01 * torch.randn(12), torch.zeros(6)

    def value(x: Tensor) -> Tensor:
        return weights @ function(x, still)

    hessian = torch.func.hessian(value)(point)
    assert float(hessian.abs().max()) > 1  # in contact
    close(hessian, hessian.T)
    close(torch.func.jacrev(torch.func.jacrev(value))(point), hessian)
    close(torch.func.jacrev(torch.func.jacfwd(value))(point), hessian)
    close(torch.autograd.functional.hessian(value, point), hessian)
    batch = torch.stack((point, 2 * point))
    close(torch.func.vmap(torch.func.hessian(value))(batch), torch.stack([torch.func.hessian(value)(p) for p in batch]))
    along = torch.randn(12)
    close(torch.autograd.functional.vhp(value, point, along)[1], hessian @ along)
    close(torch.func.jvp(torch.func.grad(value), (point,), (along,))[1], hessian @ along)


@pytest.mark.slow
def test_hessian_through_a_rollout_with_parameters() -> None:
    """Four steps of a hopper that lands: mass and friction, against differences of the gradient."""
    mechanism = hopper()
    z = states(mechanism, 2)

    def value(x: Tensor) -> Tensor:
        mechanism.bodies["ball"].mass = x[0]
        mechanism.contacts["foot"].friction = x[1]
        return mechanism.rollout(z, steps=4).z[..., -1, :].square().sum()

    point = torch.tensor((1.0, 0.5), requires_grad=True)
    (gradient,) = torch.autograd.grad(value(point), point, create_graph=True)
    hessian = torch.stack([torch.autograd.grad(g, point, retain_graph=True)[0] for g in gradient])
    step = 1e-5
    columns = [
        (torch.func.grad(value)(point.detach() + step * e) - torch.func.grad(value)(point.detach() - step * e)) for e in torch.eye(2)
    ]
    # Central differences over 1e-5 of quantities that contact bends over 1e-3: 1e-4, and far less in practice.
    close(hessian, torch.stack(columns, dim=1) / (2 * step), 1e-5)


def test_second_derivatives_of_weights_of_a_network() -> None:
    """A contact whose ground is a network: weights have no batch dimension, and second derivatives all the same."""
    mechanism = td.Mechanism(
        {"ball": td.Body(1.0, (0.1, 0.1, 0.1))}, contacts={"skin": Terrain("ball", radius=0.2, friction=0.4)}, options=EXACT
    )
    height = float(mechanism.contacts["skin"].net(torch.zeros(2)))
    z = mechanism.initial_state(ball=dict(position=(0.0, 0.0, height + 0.203), velocity=(0.5, 0.2, -1.0)))
    names = [name for name, _ in mechanism.named_parameters() if ".net." in name]
    point = tuple(dict(mechanism.named_parameters())[name].detach() for name in names)
    weights = torch.randn(13)

    def gradient(*values: Tensor) -> tuple[Tensor, ...]:
        def value(*v: Tensor) -> Tensor:
            return weights @ torch.func.functional_call(mechanism, dict(zip(names, v, strict=True)), (z,))

        return torch.func.grad(value, tuple(range(len(names))))(*values)

    tangents = tuple(torch.randn_like(t) for t in point)
    product, step = torch.func.jvp(gradient, point, tangents)[1], 1e-7
    plus, minus = (gradient(*(p + sign * step * t for p, t in zip(point, tangents, strict=True))) for sign in (1, -1))
    for exact, a, b in zip(product, plus, minus, strict=True):
        close(exact, (a - b) / (2 * step), 1e-5)
    assert max(float(p.abs().max()) for p in product) > 1e-3


def test_failed_environments_have_no_second_derivative() -> None:
    mechanism = ball()
    z = rolling(mechanism).repeat(2, 1)
    z[1, 0] = torch.nan
    z.requires_grad_()
    (first,) = torch.autograd.grad(mechanism.step(z).z[..., :6].square().sum(), z, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), z)
    assert bool(second[0].any()) and bool(torch.isfinite(second).all())
    assert not second[1].any()


@NATIVE
@pytest.mark.parametrize("backend", ["native", "auto"])
def test_the_kernel_refuses_second_derivatives_by_name(backend: str) -> None:
    mechanism = ball(backend)
    z = rolling(mechanism).requires_grad_()
    weights = torch.randn(13)

    def value(z: Tensor) -> Tensor:
        return weights @ mechanism(z)

    (first,) = torch.autograd.grad(value(z), z, create_graph=True)
    calls: list[Callable[[], Any]] = [
        lambda: first.sum().backward(),
        lambda: torch.func.hessian(value)(z.detach()),
        lambda: torch.func.jacrev(torch.func.jacrev(value))(z.detach()),
        lambda: torch.func.jacrev(torch.func.jacfwd(value))(z.detach()),
        lambda: torch.func.jacfwd(torch.func.jacfwd(value))(z.detach()),
    ]
    for call in calls:
        with pytest.raises(RuntimeError, match=r'by the compiled kernel.*SolverOptions\(backend="reference"\)'):
            call()


def test_what_the_reference_refuses() -> None:
    mechanism = ball()
    z = rolling(mechanism)

    def value(z: Tensor) -> Tensor:
        return mechanism(z)[..., :3].square().sum()

    with pytest.raises(RuntimeError, match="third derivatives through the step are not implemented"):
        torch.func.jacrev(torch.func.hessian(value))(z)
    with pytest.raises(RuntimeError, match=r"forward mode over forward mode.*torch\.func\.hessian"):
        torch.func.jacfwd(torch.func.jacfwd(value))(z)


# -- autocast -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
def test_autocast_is_refused(backend: str) -> None:
    mechanism = ball(backend)
    z, q = rolling(mechanism), torch.zeros(6)
    calls: list[Callable[[], Any]] = [
        lambda: mechanism(z),
        lambda: mechanism.step(z),
        lambda: mechanism.rollout(z, steps=2),
        lambda: mechanism.jacobians(z),
        lambda: mechanism.step_minimal(q, q),
    ]
    expected = mechanism.step(z).z
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for call in calls:
            with pytest.raises(RuntimeError, match=r"torch.autocast is on.*`with torch.autocast\('cpu', enabled=False\):`"):
                call()
        with torch.autocast("cpu", enabled=False):
            assert torch.equal(mechanism.step(z).z, expected)


def test_box_in_contact_has_all_derivatives() -> None:
    """Eight corners with friction, impact: second derivatives stay finite where every norm is at its kink."""
    mechanism = box(td.NonlinearContact, 1e-4)
    mechanism.options = dataclasses.replace(mechanism.options, backend="reference")
    z = mechanism.initial_state(box=dict(position=(0, 0, 0.26))).requires_grad_()
    (first,) = torch.autograd.grad(mechanism(z).square().sum(), z, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), z)
    assert bool(torch.isfinite(second).all()) and bool(second.any())
