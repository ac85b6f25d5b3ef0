"""Second derivatives of energies and maps: every way of PyTorch to take them, against differences of gradients."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import torchdojo as td
from torchdojo import quaternion as quat


def mechanism() -> td.Mechanism:
    body = {"mass": 1.0, "inertia": (0.1, 0.2, 0.25)}
    joints = {
        "hinge": td.Revolute(None, "a", axis=(0.3, 1, 0), child_anchor=(0, 0, 0.5), spring=2.0),
        "ball": td.Spherical("a", "b", child_anchor=(0, 0, 0.5), parent_anchor=(0, 0, -0.5), spring=1.0),
        "screw": td.Cylindrical("b", "c", spring=0.5, axis=(1, 0, 0.2), armature=0.1),
    }
    contacts = {
        "tip": td.NonlinearContact("c", point=(0.1, 0.2, 0.3), radius=0.1),
        "pair": td.NonlinearContact("a", radius=0.1, other="c", other_shape=td.Box((0.1, 0.2, 0.3))),
    }
    return td.Mechanism({name: td.Body(**body) for name in "abc"}, joints, contacts)


def coordinates() -> Tensor:
    torch.manual_seed(1)
    return torch.cat((0.5 * torch.randn(6), torch.randn(6)))


def scalar(value: Tensor) -> Tensor:
    """A curved function of all numbers."""
    return value.sin().sum() + (value * torch.linspace(0.3, 1, value.shape[-1])).sum()


# name -> a number from a mechanism and a state, or coordinates and rates
FUNCTIONS: dict[str, Callable[[td.Mechanism, Tensor], Tensor]] = {
    "kinetic_energy": lambda m, z: m.kinetic_energy(z),
    "potential_energy": lambda m, z: m.potential_energy(z),
    "momentum": lambda m, z: scalar(m.momentum(z)),
    "to_minimal": lambda m, z: scalar(torch.cat(m.to_minimal(z), -1)),
    "to_maximal": lambda m, y: scalar(m.to_maximal(*y.chunk(2, -1))),
    "distances": lambda m, z: scalar(m.distances(z)),
    "contact_points": lambda m, z: scalar(m.contact_points(z).flatten(-2)),
    "body_points": lambda m, z: scalar(m.body_points(z, "b", torch.tensor([[0.1, 0.2, 0.3]]))[..., 0, :]),
    "body_state": lambda m, z: scalar(torch.cat(m.body_state(z, "b"), -1)),
}


def gradient(function: Callable[[Tensor], Tensor], x: Tensor, **options: bool) -> Tensor:
    return torch.autograd.grad(function(x), x, **options)[0]


def twice(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    return torch.stack([torch.autograd.grad(part, x, retain_graph=True)[0] for part in gradient(function, x, create_graph=True)])


WAYS: dict[str, Callable[[Callable[[Tensor], Tensor], Tensor], Tensor]] = {
    "func.hessian": lambda f, x: torch.func.hessian(f)(x),
    "functional.hessian": lambda f, x: torch.autograd.functional.hessian(f, x),
    "create_graph": twice,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FUNCTIONS)
def test_hessians_are_those_of_differences(name: str) -> None:
    mech, step = mechanism(), 1e-5
    y = coordinates()
    x = y if name == "to_maximal" else mech.to_maximal(*y.chunk(2))

    def function(x: Tensor) -> Tensor:
        return FUNCTIONS[name](mech, x)

    moved = x + step * torch.stack((torch.eye(len(x)), -torch.eye(len(x))))
    ahead, behind = (torch.stack([gradient(function, row.clone().requires_grad_()) for row in rows]) for rows in moved)
    expected = (ahead - behind) / (2 * step)
    for way, hessian in WAYS.items():
        # Differences of gradients of order 10 have errors of 1e-8: rounding 1e-16/1e-5, and 1e-10 times third derivatives.
        torch.testing.assert_close(hessian(function, x), expected, rtol=1e-7, atol=1e-7, msg=lambda text, way=way: f"{way}: {text}")
    batch = torch.stack((x, 1.1 * x if name == "to_maximal" else x.roll(0)))
    each = torch.func.vmap(torch.func.hessian(function))(batch)
    torch.testing.assert_close(each[0], expected, rtol=1e-7, atol=1e-7)


def test_numbers_that_change_between_derivatives_are_refused() -> None:
    mech = mechanism()
    z = mech.to_maximal(*coordinates().chunk(2)).requires_grad_()
    first = gradient(mech.potential_energy, z, create_graph=True)
    mech.bodies["a"].mass = 2.0
    mech.potential_energy(z.detach())
    with pytest.raises(RuntimeError, match="numbers of the mechanism changed"):
        torch.autograd.grad(first.sum(), z)


def test_constants_outlive_the_transform_that_needed_them_first() -> None:
    q = quat.normalize(torch.randn(4))
    expected = quat.conjugate(q), quat.multiply(q, q)
    quat._constants.cache_clear()
    torch.func.hessian(lambda q: quat.multiply(quat.conjugate(q), q).sum())(q)
    assert torch.equal(quat.conjugate(q), expected[0]) and torch.equal(quat.multiply(q, q), expected[1])
    quat._constants.cache_clear()  # as other tests find it: with constants of no transform
    quat.multiply(q, q)
