"""Jacobians in minimal coordinates: products over the tree in the kernel, against those of the reference's Jacobian with both maps."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest
import torch
from mechanisms import JOINT_NAMES, Sample, all_joints, close_to_limits, random_body, random_joint, random_tree
from parity import SANITIZED
from torch import Tensor

import torchdojo as td
from torchdojo.engine.kernel import Kernel
from torchdojo.gradients.request import Request
from torchdojo.native import kernel
from torchdojo.state import minimal_jacobians
from torchdojo.state.minimal import to_maximal

# Both backends differentiate at one solution, known to rounding; what is left is the rounding of two ways to multiply.
TOLERANCE = 1e-10


def polished(kappa: float = 1e-6, **given: Any) -> td.SolverOptions:
    return td.SolverOptions(**(dict(kappa=kappa, residual_tol=1e-12, central_path_tol=1e-12 / kappa, max_halvings=0) | given))


def coordinates(made: Sample) -> tuple[td.Mechanism, Tensor, Tensor, Tensor]:
    q, qd = made.mechanism.to_minimal(made.z)
    return made.mechanism, q, qd, made.u


def composed(mech: td.Mechanism, q: Tensor, qd: Tensor, u: Tensor, **given: Any) -> Tensor:
    """`mech.jacobians` between the derivatives of both maps."""
    z, order, nb, h = mech.to_maximal(q, qd), mech.tree_order(), mech.num_bodies, mech.timestep
    after = mech.step(z, u, warm_start=given["warm_start"]).z
    by_state, by_input = minimal_jacobians.minimal_products(order, nb, after, h, list(mech.jacobians(z, u, **given)))
    return torch.cat((by_state @ minimal_jacobians.maximal_jacobian(order, nb, q, qd, z, h), by_input), dim=-1)


def check(mech: td.Mechanism, q: Tensor, qd: Tensor, u: Tensor, **given: Any) -> Tensor:
    """Errors relative to the largest entry of each environment; returns what the kernel found.

    Not with the reference in the limit: there only rounding, 1e-16 / compliance, decides how contacts share a load.
    """
    options = mech.options
    native, reference = (dataclasses.replace(options, backend=backend) for backend in ("native", "reference"))
    mech.options = dataclasses.replace(native, min_iterations=8)
    out = mech.step_minimal(q, qd, u)
    assert not out.status.any() and bool((out.substeps == 1).all())
    given["warm_start"] = out.solution
    mech.options = native
    jacobian, wanted = torch.cat(mech.jacobians_minimal(q, qd, u, **given), dim=-1), [composed(mech, q, qd, u, **given)]
    if options.gradient_mode != "exact" and not SANITIZED:
        mech.options = reference
        wanted.append(torch.cat(mech.jacobians_minimal(q, qd, u, **given), dim=-1))
    mech.options = options
    n = mech.num_coordinates
    assert jacobian.shape == (*out.q.shape[:-1], 2 * n, 2 * n + mech.num_inputs)
    for other in wanted:
        assert float(((jacobian - other).abs() / other.abs().amax((-2, -1), keepdim=True)).max()) <= TOLERANCE
    return jacobian


@pytest.mark.sanitize
@pytest.mark.parametrize(("acting", "count"), [(False, 1), (True, 1), (True, 3), (False, 9)])
def test_every_joint(acting: bool, count: int) -> None:
    mech, q, qd, u = coordinates(all_joints(acting, acting, True, count))
    mech.options = polished()
    check(mech, q, qd, u)


# The sizes of the batch go around: `test_every_joint` has all joints in a few sizes.
@pytest.mark.sanitize
@pytest.mark.parametrize(
    ("kind", "count"), list(zip((kind for kind in JOINT_NAMES if kind != "Fixed"), itertools.cycle((1, 3, 9)), strict=False))
)
def test_two_joints_of_a_kind(kind: str, count: int) -> None:
    """So few rows that lanes are environments; rotations beyond half a turn, of which rotation vectors come back shorter."""
    joints = {"first": random_joint(kind, None, "a", True, True), "second": random_joint(kind, "a", "b", False, True, False)}
    mech = td.Mechanism({"a": random_body(), "b": random_body()}, joints, timestep=0.02, options=polished())
    n = mech.num_coordinates
    check(mech, 2 * torch.randn(count, n), torch.randn(count, n), torch.randn(count, mech.num_inputs))


@pytest.mark.sanitize
@pytest.mark.parametrize("given", [{}, {"friction": 0.5, "armature": 0.1}], ids=str)
def test_limits_friction_and_armature(given: dict[str, float]) -> None:
    mech, q, qd, u = coordinates(close_to_limits(3, **given))
    mech.options = polished(1e-4)
    check(mech, q, qd, u)


@pytest.mark.sanitize
@pytest.mark.parametrize(
    ("seed", "bodies", "contacts", "roots", "count"),
    [(1, 5, 6, 1, 1), (1, 5, 6, 1, 3), (1, 5, 6, 1, 9), (2, 16, 12, 3, 9), (3, 40, 10, 1, 1)],
)
def test_random_trees(seed: int, bodies: int, contacts: int, roots: int, count: int) -> None:
    mech, q, qd, u = coordinates(random_tree(seed, bodies, count, contacts=contacts, roots=roots))
    mech.options = polished()
    check(mech, q, qd, u)


def chain(**law: float) -> td.Mechanism:
    """A free body next to the ground, with a law of its contacts, and joints with one, two and three rotations."""
    joints: dict[str, td.StandardJoint] = {"trunk": td.Floating(None, "trunk", actuated=False)}
    joints["arm"] = random_joint("Orbital", "trunk", "arm", True, True)
    joints["hand"] = random_joint("Spherical", "arm", "hand", True, True)
    joints["tool"] = random_joint("PlanarAxis", "hand", "tool", True, True)
    foot: dict[str, Any] = dict(radius=0.1, friction=0.4, offset=-0.1, **law)
    feet = {f"foot{i}": td.NonlinearContact("trunk", point=(0.1 * i, 0.0, 0.0), **foot) for i in range(2)}
    return td.Mechanism({name: random_body() for name in joints}, joints, feet, timestep=0.01, options=polished(1e-4))


def moving(mech: td.Mechanism, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """States in which the trunk comes down on its feet."""
    n = mech.num_coordinates
    q, qd = 0.3 * torch.randn(count, n), torch.randn(count, n)
    q[:, :6], qd[:, :6] = 0.02 * torch.rand(count, 6), 0.5 * torch.randn(count, 6)
    qd[:, 2] = -2.0
    return q, qd, torch.randn(count, mech.num_inputs)


@pytest.mark.sanitize
def test_parameters_of_each_environment() -> None:
    mech = chain()
    state = moving(mech, 9)
    mech.timestep = 0.008 + 0.004 * torch.rand(9)
    for joint in mech.joints.values():
        joint.child_anchor = joint.child_anchor + 0.05 * torch.randn(9, 3)
        joint.axis = torch.randn(9, 3)
    mech.joints["hand"].parent_anchor = 0.2 * torch.randn(9, 3)
    mech.joints["tool"].orientation_offset = td.quaternion.normalize(torch.randn(9, 4))
    mech.bodies["arm"].mass = 1 + torch.rand(9)
    check(mech, *state)


@pytest.mark.sanitize
@pytest.mark.parametrize("options", [dict(grad_kappa=1e-2), dict(gradient_mode="exact")], ids=str)
def test_derivatives_elsewhere_than_at_the_solution(options: dict[str, Any]) -> None:
    """Smoothed, or in the limit: what follows from the step itself, its next poses, does not move."""
    mech = chain()
    mech.options = polished(1e-4, **options)
    state = moving(mech, 9)
    plain = dataclasses.replace(mech.options, grad_kappa=None, gradient_mode="central_path")
    jacobian = check(mech, *state)
    mech.options = plain
    assert float((jacobian - check(mech, *state)).abs().max()) > 1e-3


def test_kappa_of_each_environment() -> None:
    mech = chain()
    state = moving(mech, 5)
    check(mech, *state, grad_kappa=torch.tensor([1e-4, 1e-3, 1e-2, 1e-4, 1e-2]))
    # A batch dimension of its own.
    q, qd, u = (t[0] for t in state)
    jacobian = mech.jacobians_minimal(q, qd, u, grad_kappa=torch.tensor([[1e-4], [1e-2]]))[0]
    expected = [mech.jacobians_minimal(q, qd, u, grad_kappa=kappa)[0] for kappa in (1e-4, 1e-2)]
    torch.testing.assert_close(jacobian, torch.stack(expected)[:, None], rtol=0, atol=TOLERANCE * float(jacobian.abs().max()))


def test_far_from_the_origin() -> None:
    """A kilometer away, coordinates themselves have errors of 1e-13 m; derivatives lose no more than their own differences."""
    mech = chain()
    mech.options = polished(1e-4, residual_tol=1e-9, central_path_tol=1e-3)
    q, qd, u = moving(mech, 3)
    near = torch.cat(mech.jacobians_minimal(q, qd, u), dim=-1)
    q[:, :2] += 1000.0
    far = torch.cat(mech.jacobians_minimal(q, qd, u), dim=-1)
    # Rounding of 1 km (1e-13 m) over the step (0.01 s), through contacts as stiff as 1e3 derivatives a meter.
    assert float((far - near).abs().max()) < 1e-6 * float(near.abs().max())


def test_states() -> None:
    mech, *_ = all_joints(False, False, True, 1)
    n = mech.num_coordinates
    native = mech.backends.select(Request(mech.options))
    assert isinstance(native, Kernel)
    packed = native.parameters.packed
    assert packed is not None
    for count, size in ((1, 1.0), (9, 1.0), (3, 1e-6), (3, 0.0), (3, 3.0)):
        q, qd = size * torch.randn(count, n), size * torch.randn(count, n)
        expected = to_maximal(mech.tree_order(), mech.num_bodies, q, qd, mech.timestep)
        states = kernel.states(native.program, packed, torch.cat((q, qd), dim=-1))
        # Rounding of coordinates over h, which two rotations of nearly half a turn multiply.
        assert float((states - expected).abs().max()) <= 1e-12 * max(1.0, float(expected.abs().max()))


@pytest.mark.sanitize
def test_split_and_failed_steps() -> None:
    """Among others: two half steps for one, each with its own parameters, and states that are not numbers."""
    mech = td.Mechanism({"ball": td.Body(1.0, (1.0, 1.0, 1.0))}, {"base": td.Floating(None, "ball")}, timestep=0.1, gravity=(0, 0, 0))
    mech.bodies["ball"].mass = torch.tensor([1.0, 2.0, 3.0, 4.0])
    q, u = torch.zeros(4, 6), torch.zeros(4, 6)
    spinning = mech.to_minimal(mech.initial_state(ball=dict(angular_velocity=(0.0, 0.0, 13.0))))[1]
    qd = spinning * torch.tensor([0.1, 1.0, 1.0, 0.2])[:, None]
    u[:, 5] = torch.tensor([1.0, 5.0, 0.1, 1.0])
    q[3, 0] = torch.nan
    out = mech.step_minimal(q, qd, u)
    assert out.substeps.tolist()[:3] == [1, 2, 1] and out.status.tolist() == [0, 0, 0, int(td.Status.INVALID_INPUT)]
    derivatives = []
    for backend in ("native", "reference"):
        mech.options = td.SolverOptions(backend=backend)
        derivatives.append(torch.cat(mech.jacobians_minimal(q, qd, u), dim=-1))
    torch.testing.assert_close(derivatives[0], derivatives[1], rtol=0, atol=1e-9)  # each at its own solution
    assert not derivatives[0][3].any() and bool(derivatives[0][1].any())


@pytest.mark.sanitize
@pytest.mark.parametrize("name", ["half_cheetah", "quadruped"])
def test_rows_do_not_depend_on_the_batch(name: str) -> None:
    """Bit for bit: some environments have pressed contacts, whose rows are refined, others fly, and some are smoothed."""
    mech = getattr(td.models, name)(timestep=0.01)
    mech.options = td.SolverOptions(backend="native")
    z = mech.rollout(td.models.initial_state(name, mech).expand(20, -1), steps=40).z[:, -1]
    q, qd = mech.to_minimal(z)
    q[::2, 1 if name == "half_cheetah" else 2] += 1.0  # height
    u, kappa = torch.randn(20, mech.num_inputs), torch.where(torch.arange(20) % 3 == 0, 1e-2, mech.options.kappa)
    wanted = None
    for rows in (torch.arange(20), torch.arange(20).flip(0), torch.randperm(20), torch.arange(5), torch.arange(3, 20, 2)):
        found = torch.cat(mech.jacobians_minimal(q[rows], qd[rows], u[rows], grad_kappa=kappa[rows]), dim=-1)
        wanted = found if wanted is None else wanted
        assert torch.equal(found, wanted[rows])


@pytest.mark.sanitize
@pytest.mark.parametrize("law", [dict(recovery_speed=0.4), dict(stiffness=3e3, damping=40.0)], ids=str)
def test_contacts_that_overlap(law: dict[str, float]) -> None:
    """The gap then depends on the current pose, too."""
    mech = chain(**law)
    q, qd, u = moving(mech, 9)
    q[:, 2] -= 0.05
    check(mech, q, 0.1 * qd, u)


SERVO: dict[str, Any] = dict(servo_stiffness=10.0, servo_damping=0.5)
ACTING = {
    "springs and a servo": dict(SERVO, implicit=True),
    "servo with a range": dict(SERVO, servo_range=(-15.0, 25.0)),
    "limits, violated, of coordinates and speeds": dict(limits=(-0.3, 0.3), velocity_limits=1.2),
    "friction and armature": dict(friction=0.5, armature=0.1),
}


# Joints with three free rotations have friction about axes of their own, and then another system.
@pytest.mark.sanitize
@pytest.mark.parametrize("kind", ["Prismatic", "Revolute", "Cylindrical", "Orbital", "PlanarOrbital"])
@pytest.mark.parametrize("acting", ACTING)
def test_impulses_of_one_kind(kind: str, acting: str) -> None:
    """The second joint turns with a body, against which its dampers measure."""
    given = ACTING[acting]
    joints = {"first": random_joint(kind, None, "a", True, True, **given), "second": random_joint(kind, "a", "b", True, True, **given)}
    options = polished(1e-4, depenetration_speed=0.5)
    mech = td.Mechanism({"a": random_body(), "b": random_body()}, joints, timestep=0.02, options=options)
    n = mech.num_coordinates
    check(mech, 0.45 * torch.rand(3, n) - 0.1, 0.5 * torch.randn(3, n), 20 * torch.randn(3, mech.num_inputs))
