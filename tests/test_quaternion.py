"""Quaternions: group laws, agreement with matrices, and derivatives at the identity. A tolerance of 1e-14 is a few roundings of 1."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from torchdojo import quaternion as quat

ROUNDING = dict(rtol=0.0, atol=1e-14)
BATCHES = [(), (1,), (20,), (3, 4)]


def random_unit(*batch: int) -> Tensor:
    return quat.normalize(torch.randn(*batch, 4))


@pytest.mark.parametrize("batch", BATCHES)
def test_group_laws(batch: tuple[int, ...]) -> None:
    p, q, r = (random_unit(*batch) for _ in range(3))
    one = quat.identity().expand(*batch, 4)
    torch.testing.assert_close(quat.multiply(quat.multiply(p, q), r), quat.multiply(p, quat.multiply(q, r)), **ROUNDING)
    torch.testing.assert_close(quat.multiply(q, quat.conjugate(q)), one, **ROUNDING)
    torch.testing.assert_close(quat.multiply(one, q), q, rtol=0, atol=0)
    assert ((torch.linalg.vector_norm(quat.multiply(p, q), dim=-1) - 1).abs() <= 1e-14).all()


@pytest.mark.parametrize("batch", BATCHES)
def test_rotation_agrees_with_the_matrix(batch: tuple[int, ...]) -> None:
    p, q, v = random_unit(*batch), random_unit(*batch), torch.randn(*batch, 3)
    R = quat.rotation_matrix(q)
    torch.testing.assert_close(quat.rotate(q, v), (R @ v[..., None]).squeeze(-1), **ROUNDING)
    torch.testing.assert_close(quat.inverse_rotate(q, v), (R.mT @ v[..., None]).squeeze(-1), **ROUNDING)
    torch.testing.assert_close(quat.inverse_rotate(q, quat.rotate(q, v)), v, **ROUNDING)
    torch.testing.assert_close(quat.rotation_matrix(quat.multiply(p, q)), quat.rotation_matrix(p) @ R, **ROUNDING)
    torch.testing.assert_close(R @ R.mT, torch.eye(3).expand(*batch, 3, 3), **ROUNDING)
    assert (torch.linalg.det(R) > 0).all()
    torch.testing.assert_close(quat.cross(v, v + 1), torch.linalg.cross(v, v + 1), **ROUNDING)


HALF_TURN = quat.exp(torch.tensor([[math.pi, 0, 0], [0, math.pi, 0], [0, 0, math.pi], [0, 2.0, 2.4]]))


@pytest.mark.parametrize("q", [*random_unit(4), *HALF_TURN, quat.identity(), -quat.identity()], ids=range(10))
def test_matrix_round_trip(q: Tensor) -> None:
    """q and −q are the same rotation; the one with non-negative real part comes back. Every pivot of the conversion is used."""
    back = quat.from_rotation_matrix(quat.rotation_matrix(q))
    assert back[0] >= 0
    torch.testing.assert_close(quat.rotation_matrix(back), quat.rotation_matrix(q), **ROUNDING)
    assert (back @ q).abs() >= 1 - 1e-14


@pytest.mark.parametrize("angle", [0.0, 1e-300, 1e-12, 1e-9, 1e-7, 9.9e-7, 1.01e-6, 1e-3, 1.0, 3.0, math.pi - 1e-9])
def test_exp_and_rotation_vector_are_inverse(angle: float) -> None:
    """Also across the places where the series takes over."""
    phi = angle * torch.tensor([2.0, -1.0, 2.0]) / 3
    q = quat.exp(phi)
    assert abs(float(torch.linalg.vector_norm(q)) - 1) <= 1e-14
    torch.testing.assert_close(quat.rotation_vector(q), phi, rtol=1e-14, atol=0)
    torch.testing.assert_close(quat.rotation_vector(-q), phi, rtol=1e-14, atol=0)
    torch.testing.assert_close(quat.rotate(q, phi), phi, rtol=1e-14, atol=0)


def test_rotation_vector_is_the_shorter_turn() -> None:
    phi = torch.tensor([0.0, 0.0, 1.0]) * torch.linspace(-7, 7, 101)[:, None]
    turns = quat.rotation_vector(quat.exp(phi))
    assert (torch.linalg.vector_norm(turns, dim=-1) <= math.pi).all()
    whole = (turns - phi)[:, 2] / (2 * math.pi)
    torch.testing.assert_close(whole, whole.round(), **ROUNDING)


def test_increment() -> None:
    """Unit by construction, second-order close to exp, not a number from 2/h on."""
    omega = torch.randn(50, 3)
    q = quat.increment(omega, 0.01)
    assert ((torch.linalg.vector_norm(q, dim=-1) - 1).abs() <= 1e-15).all()
    # asin(a) − a is a³/6 with a = h|ω|/2, here below 0.025.
    torch.testing.assert_close(quat.rotation_vector(q), 0.01 * omega, rtol=0.025**2 / 6, atol=0)
    assert torch.isnan(quat.increment(torch.tensor([200.0, 1.0, 0.0]), 0.01)).any()
    assert torch.isfinite(quat.increment(torch.tensor([199.9, 0.0, 0.0]), 0.01)).all()


ONE = quat.identity()
VECTOR = torch.tensor([0.3, -0.5, 0.7])
GRADIENTS = {
    "multiply": lambda q: quat.multiply(q, quat.normalize(torch.tensor([1.0, 2, 3, 4]))),
    "conjugate": quat.conjugate,
    "normalize": quat.normalize,
    "rotate": lambda q: quat.rotate(q, VECTOR),
    "inverse_rotate": lambda q: quat.inverse_rotate(q, VECTOR),
    "rotation_matrix": quat.rotation_matrix,
    "rotation_vector": lambda q: quat.rotation_vector(quat.normalize(q)),
}


@pytest.mark.parametrize("place", ["identity", "random"])
@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_of_quaternions(name: str, place: str) -> None:
    q = (quat.identity() if place == "identity" else random_unit()).requires_grad_()
    assert torch.autograd.gradcheck(GRADIENTS[name], q)


@pytest.mark.parametrize(
    "phi",
    [torch.zeros(3), torch.tensor([1e-7, 0, 0]), torch.tensor([1e-5, -2e-5, 0]), VECTOR, 5 * VECTOR],
    ids=["zero", "1e-7", "1e-5", "one", "long"],
)
@pytest.mark.parametrize("function", [quat.exp, lambda w: quat.increment(w, 0.01), lambda w: quat.rotation_vector(quat.exp(w))])
def test_gradients_of_vectors(function: object, phi: Tensor) -> None:
    assert torch.autograd.gradcheck(function, phi.clone().requires_grad_())


def test_derivatives_at_the_identity_are_exact() -> None:
    """The series has the right derivative, not just a finite one: d exp = ½, d rotation_vector = 2, their chain the identity."""
    zero = torch.zeros(3)
    torch.testing.assert_close(torch.func.jacrev(quat.exp)(zero), torch.cat((torch.zeros(1, 3), 0.5 * torch.eye(3))), rtol=0, atol=0)
    for back in (torch.func.jacrev, torch.func.jacfwd):
        torch.testing.assert_close(back(lambda w: quat.rotation_vector(quat.exp(w)))(zero), torch.eye(3), **ROUNDING)
    tangent = torch.func.jacrev(lambda q: quat.rotation_vector(q))(ONE)
    torch.testing.assert_close(tangent[:, 1:], 2 * torch.eye(3), rtol=0, atol=0)


def test_under_vmap() -> None:
    p, q, v = random_unit(7), random_unit(7), torch.randn(7, 3)
    torch.testing.assert_close(torch.func.vmap(quat.multiply)(p, q), quat.multiply(p, q), rtol=0, atol=0)
    torch.testing.assert_close(torch.func.vmap(quat.rotate)(q, v), quat.rotate(q, v), rtol=0, atol=0)
    torch.testing.assert_close(torch.func.vmap(quat.rotation_vector)(q), quat.rotation_vector(q), rtol=0, atol=0)
    matrices = quat.rotation_matrix(q)
    torch.testing.assert_close(torch.func.vmap(quat.from_rotation_matrix)(matrices), quat.from_rotation_matrix(matrices), rtol=0, atol=0)


def test_gradients_of_normalize_are_tangent() -> None:
    q = random_unit(5).requires_grad_()
    (quat.normalize(q) * torch.randn(5, 4)).sum().backward()
    assert ((q.grad * q).sum(-1).abs() <= 1e-15).all()
