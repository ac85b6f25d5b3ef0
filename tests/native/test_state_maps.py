"""Functions of states in the kernel, with both products of their derivatives, against the reference: coordinates, contacts, energies."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator

import pytest
import torch
from mechanisms import JOINT_NAMES, Sample, all_joints, four_bar, random_body, random_joint, random_tree
from parity import PAIRS, SANITIZED, collision, error
from torch import Tensor

import torchdojo as td
from torchdojo.native import loader, maps

pytestmark = pytest.mark.skipif(not loader.available(), reason="no compiler")

# Both implementations have the same formulas; rounding of coordinates over h, 1e-13, is what remains.
TOLERANCE = 1e-10

Function = Callable[[td.Mechanism, Tensor], Tensor]


def coordinates(mech: td.Mechanism, z: Tensor) -> Tensor:
    return torch.cat(mech.to_minimal(z), dim=-1)


def state(mech: td.Mechanism, y: Tensor) -> Tensor:
    return mech.to_maximal(*y.chunk(2, dim=-1))


FUNCTIONS: dict[str, Function] = {
    "to_minimal": coordinates,
    "to_maximal": state,
    "distances": lambda mech, z: mech.distances(z),
    "contact_points": lambda mech, z: mech.contact_points(z),
    "kinetic_energy": lambda mech, z: mech.kinetic_energy(z),
    "potential_energy": lambda mech, z: mech.potential_energy(z),
}


@contextlib.contextmanager
def reference(mech: td.Mechanism) -> Iterator[None]:
    options = mech.options
    mech.options = dataclasses.replace(options, backend="reference")
    yield
    mech.options = options


@pytest.fixture(autouse=True)
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The functions that the kernel computes, in order."""
    seen: list[str] = []
    plain = maps.kernel.state_map
    monkeypatch.setattr(maps.kernel, "state_map", lambda *args: (seen.append(args[2].name.lower()), plain(*args))[1])
    return seen


def argument(mech: td.Mechanism, name: str, z: Tensor) -> Tensor:
    with torch.no_grad(), reference(mech):
        return coordinates(mech, z) if name == "to_maximal" else z.clone()


def check(made: Sample, calls: list[str], *names: str) -> None:
    """Values, gradients and tangents of the named functions."""
    mech = made.mechanism
    for name in names:
        function, at = FUNCTIONS[name], argument(mech, name, made.z)
        tangent = torch.randn_like(at)

        def results(function: Function = function, at: Tensor = at, tangent: Tensor = tangent) -> list[Tensor]:
            leaf = at.clone().requires_grad_()
            value = function(mech, leaf)
            generator = torch.Generator().manual_seed(0)
            weights = torch.randn(value.shape, generator=generator, dtype=value.dtype)
            return [
                value.detach(),
                torch.autograd.grad(value, leaf, weights)[0],
                torch.func.jvp(lambda x: function(mech, x), (at,), (tangent,))[1],
            ]

        calls.clear()
        kernel = results()
        assert calls == 4 * [name], calls  # value, gradient; value, tangent
        assert all(bool(t.isfinite().all()) for t in kernel)
        if SANITIZED:
            continue
        with reference(mech):
            for a, b in zip(kernel, results(), strict=True):
                assert a.shape == b.shape and error(a, b) <= TOLERANCE, name


# -- parity ------------------------------------------------------------------------------------------------------------------------------

TREE = ("to_minimal", "to_maximal", "kinetic_energy", "potential_energy")


@pytest.mark.sanitize
@pytest.mark.parametrize(("acting", "count"), [(False, 1), (True, 1), (True, 3)])
def test_every_joint(acting: bool, count: int, calls: list[str]) -> None:
    given = {"armature": 0.1, "implicit": count > 1} if acting else {}
    check(all_joints(acting, False, True, count, **given), calls, *TREE)


@pytest.mark.sanitize
@pytest.mark.parametrize("kind", [kind for kind in JOINT_NAMES if kind != "Fixed"])
def test_states_off_the_joints(kind: str, calls: list[str]) -> None:
    """Coordinates are defined there, too; of large turns as well."""
    joints = {"first": random_joint(kind, None, "a", True, armature=0.1), "second": random_joint(kind, "a", "b", True)}
    mech = td.Mechanism({"a": random_body(), "b": random_body()}, joints, timestep=0.02)
    n = mech.num_coordinates
    z = mech.to_maximal(1.5 * torch.randn(9, n), torch.randn(9, n))
    check(
        Sample(mech, mech.retract(z, 0.1 * torch.randn(9, 24)), torch.zeros(0)), calls, "to_minimal", "kinetic_energy", "potential_energy"
    )
    if not SANITIZED:
        check(Sample(mech, z, torch.zeros(0)), calls, "to_maximal")


@pytest.mark.sanitize
@pytest.mark.parametrize(("seed", "bodies", "roots", "count"), [(1, 5, 1, 1), (2, 16, 3, 9)])
def test_random_trees(seed: int, bodies: int, roots: int, count: int, calls: list[str]) -> None:
    check(random_tree(seed, bodies, count, contacts=6, roots=roots), calls, *FUNCTIONS)


@pytest.mark.sanitize
def test_loops(calls: list[str]) -> None:
    """The coordinates are those of the spanning tree."""
    check(random_tree(3, 6, 3, contacts=2, loops=("Revolute", "Spherical")), calls, *FUNCTIONS)
    check(four_bar(2), calls, *TREE)


@pytest.mark.sanitize
@pytest.mark.parametrize(("shape", "other", "fixed"), PAIRS)
def test_contacts_between_shapes(shape: str, other: str, fixed: bool, calls: list[str]) -> None:
    check(collision(shape, other, fixed, td.NonlinearContact), calls, "distances", "contact_points")


def test_contacts_come_in_the_order_in_which_they_are_declared(calls: list[str]) -> None:
    ball = {"ball": td.Body(1.0, shape=td.Sphere(0.1))}
    heights = {"low": 0.1, "middle": 0.2, "high": 0.3}
    contacts: dict[str, td.Contact] = {name: td.ImpactContact("ball", point=(0.0, 0.0, height)) for name, height in heights.items()}
    contacts["middle"] = td.NonlinearContact("ball", point=(0.0, 0.0, 0.2), friction=0.5)
    mech = td.Mechanism(ball, contacts=contacts)
    z = mech.initial_state()
    calls.clear()
    torch.testing.assert_close(mech.distances(z), torch.tensor(list(heights.values())))
    torch.testing.assert_close(mech.contact_points(z)[:, 2], torch.tensor(list(heights.values())))
    assert calls == ["distances", "contact_points"]
    empty = td.Mechanism(ball)
    assert empty.distances(z).shape == (0,) and empty.contact_points(z.expand(2, -1)).shape == (2, 0, 3)


def test_points_of_bodies() -> None:
    """A contact's point on a ball lies below the point of the body at its center."""
    made = random_tree(1, 5, 4, contacts=3)
    mech, z = made.mechanism, made.z
    for i, contact in enumerate(mech.contacts.values()):
        center = mech.body_points(z, contact.body, contact.point[None])
        assert center.shape == (4, 1, 3)
        normal = contact.normal / contact.normal.norm()
        torch.testing.assert_close(mech.contact_points(z)[:, i], center[:, 0] - contact.radius * normal)
        torch.testing.assert_close(center[:, 0] @ normal - contact.offset - contact.radius, mech.distances(z)[:, i])


# -- batches, parameters, failures -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [(), (1,), (2, 3), (0,), (2, 0)])
def test_batches(batch: tuple[int, ...], calls: list[str]) -> None:
    made = random_tree(1, 5, 6, contacts=3)
    for name, function in FUNCTIONS.items():
        at = argument(made.mechanism, name, made.z)
        at = at[: torch.Size(batch).numel()].reshape(*batch, at.shape[-1])
        value = function(made.mechanism, at)
        with reference(made.mechanism):
            expected = function(made.mechanism, at)
        assert value.shape == expected.shape and (not value.numel() or error(value, expected) <= TOLERANCE)
    assert set(calls) == set(FUNCTIONS)


def test_parameters_of_each_environment(calls: list[str]) -> None:
    """Where the state has the batch dimensions of the parameters, the kernel takes them; elsewhere the reference."""
    made = random_tree(1, 5, 6, contacts=3)
    mech = made.mechanism
    mech.timestep = 0.008 + 0.004 * torch.rand(3)
    for joint in mech.joints.values():
        joint.child_anchor = joint.child_anchor + 0.05 * torch.randn(3, 3)
        joint.axis = torch.randn(3, 3)
    for body in mech.bodies.values():
        body.mass = 1 + torch.rand(3)
    for contact in mech.contacts.values():
        contact.point = 0.2 * torch.randn(3, 3)
    check(Sample(mech, made.z.reshape(2, 3, -1), made.u), calls, *FUNCTIONS)
    check(Sample(mech, made.z[:3], made.u), calls, *FUNCTIONS)
    calls.clear()
    assert mech.distances(made.z[0]).shape == (3, 3)
    assert not calls


def test_trajectories_of_environments_that_differ_in_friction(calls: list[str]) -> None:
    """Distances do not depend on friction, so a trajectory (3, T, ...) needs no dimension that fits it."""
    made = random_tree(1, 5, 6, contacts=3)
    plain = made.mechanism.distances(made.z[None].expand(3, 6, -1))
    for contact in made.mechanism.contacts.values():
        contact.friction = torch.tensor([0.2, 0.4, 0.6])
    calls.clear()
    torch.testing.assert_close(made.mechanism.distances(made.z[None].expand(3, 6, -1)), plain, rtol=0, atol=TOLERANCE)
    assert not calls


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_of_parameters(name: str, calls: list[str]) -> None:
    """The reference computes them."""
    made = random_tree(1, 5, 2, contacts=3)
    mech = made.mechanism
    for parameter in mech.parameters():
        parameter.requires_grad_()
    leaves = [argument(mech, name, made.z).requires_grad_(), *mech.parameters()]
    calls.clear()

    def grads() -> list[Tensor]:
        value = FUNCTIONS[name](mech, leaves[0])
        return list(torch.autograd.grad(value.square().sum(), leaves, materialize_grads=True))

    found = grads()
    assert not calls and any(bool(g.any()) for g in found[1:])
    with reference(mech):
        assert all(torch.equal(a, b) for a, b in zip(found, grads(), strict=True))
    with torch.no_grad():
        FUNCTIONS[name](mech, leaves[0])
    assert calls == [name]


@pytest.mark.sanitize
def test_a_row_that_is_not_a_number_harms_no_other(calls: list[str]) -> None:
    made = random_tree(2, 7, 9, contacts=5)
    for name, function in FUNCTIONS.items():
        at = argument(made.mechanism, name, made.z)
        plain = function(made.mechanism, at)
        for bad in (torch.nan, torch.inf):
            spoiled = at.clone()
            spoiled[4] = bad
            leaf = spoiled.requires_grad_()
            value = function(made.mechanism, leaf)
            grad = torch.autograd.grad(value.sum(), leaf)[0]
            others = [i for i in range(9) if i != 4]
            assert torch.equal(value[others], plain[others]) and bool(grad[others].isfinite().all())
            assert bool(value[4].isnan().any() | value[4].isinf().any())


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_failed_steps_keep_their_coordinates(backend: str) -> None:
    mech = td.models.quadruped()
    mech.options = td.SolverOptions(backend=backend)
    q, qd = (t.expand(3, -1).clone() for t in mech.to_minimal(td.models.initial_state("quadruped", mech)))
    q[1, 3] = torch.nan
    qd[2, 8] = torch.inf
    q, qd = q.requires_grad_(), qd.requires_grad_()
    out = mech.step_minimal(q, qd)
    assert out.status.tolist() == [0, int(td.Status.INVALID_INPUT), int(td.Status.INVALID_INPUT)]
    for new, old in ((out.q, q), (out.qd, qd)):
        torch.testing.assert_close(new[1:], old[1:], rtol=0, atol=0, equal_nan=True)
    grads = torch.autograd.grad(out.q[0].sum() + out.qd[0].sum(), (q, qd))
    assert all(bool(g[0].isfinite().all() and g[0].any()) and not g[1:].any() for g in grads)
    path = mech.rollout_minimal(q.detach(), qd.detach(), steps=2)
    torch.testing.assert_close(path.q[1:, -1], q[1:].detach(), rtol=0, atol=0, equal_nan=True)
    assert bool(path.q[0].isfinite().all())


# -- transforms --------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FUNCTIONS)
def test_transforms(name: str, calls: list[str]) -> None:
    """Jacobians by backward and forward mode, of mapped functions, too; parameters that a transform sees go to the reference."""
    made = random_tree(1, 4, 3, contacts=2)
    mech = made.mechanism

    def function(at: Tensor) -> Tensor:
        return FUNCTIONS[name](mech, at)

    at = argument(mech, name, made.z)
    plain = function(at)
    assert error(torch.func.vmap(function)(at), plain) == 0.0
    with reference(mech):
        expected = torch.func.vmap(torch.func.jacrev(function))(at)
    calls.clear()
    for jacobian in (torch.func.jacrev, torch.func.jacfwd):
        assert error(torch.func.vmap(jacobian(function))(at), expected) <= TOLERANCE
        assert error(jacobian(function)(at[0]), expected[0]) <= TOLERANCE
    assert set(calls) == {name}
    numbers = {key: value.detach() for key, value in mech.named_parameters()}
    calls.clear()

    def of_parameters(scale: Tensor) -> Tensor:
        changed = {key: scale * value if key.endswith(("child_anchor", "mass", ".point")) else value for key, value in numbers.items()}
        with torch.nn.utils.stateless._reparametrize_module(mech, changed):
            return function(at)

    by_scale = torch.func.jvp(of_parameters, (torch.tensor(1.0),), (torch.tensor(1.0),))[1]
    difference = (of_parameters(torch.tensor(1 + 1e-6)) - of_parameters(torch.tensor(1 - 1e-6))) / 2e-6
    assert error(by_scale, difference) <= 1e-6 and (name == "kinetic_energy" or bool(by_scale.any()))
    assert error(function(at), plain) == 0.0


def test_second_derivatives_are_those_of_the_reference() -> None:
    made = random_tree(1, 4, 2, contacts=2)
    for name, function in FUNCTIONS.items():

        def second(name: str = name, function: Function = function) -> Tensor:
            at = argument(made.mechanism, name, made.z).requires_grad_()
            (grad,) = torch.autograd.grad(function(made.mechanism, at).square().sum(), at, create_graph=True)
            return torch.autograd.grad(grad.sin().sum(), at)[0]

        ours = second()
        with reference(made.mechanism):
            assert error(ours, second()) <= TOLERANCE


def test_derivatives_are_those_of_differences() -> None:
    """Along tangents of the state."""
    made = random_tree(1, 5, 4, contacts=3)
    mech, step = made.mechanism, 1e-5
    for name, function in FUNCTIONS.items():
        at = argument(mech, name, made.z)
        along = torch.randn(4, 12 * mech.num_bodies if name != "to_maximal" else at.shape[-1])

        def moved(size: Tensor, at: Tensor = at, along: Tensor = along, name: str = name, function: Function = function) -> Tensor:
            return function(mech, at + size * along if name == "to_maximal" else mech.retract(at, size * along))

        _, derivative = torch.func.jvp(moved, (torch.tensor(0.0),), (torch.tensor(1.0),))
        difference = (moved(torch.tensor(step)) - moved(torch.tensor(-step))) / (2 * step)
        assert error(derivative, difference) <= 1e-6, name
