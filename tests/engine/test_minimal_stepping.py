"""Steps, rollouts and Jacobians in minimal coordinates: all joints, trees, robots in contact."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import torchdojo as td
from torchdojo.elements import joints as joint_types
from torchdojo.native import loader
from torchdojo.state import minimal_jacobians

BACKENDS = [pytest.param("native", marks=pytest.mark.skipif(not loader.available(), reason="no compiler")), "reference"]
#: Solutions polished to rounding, so that finite differences see the step and not the solver's tolerance.
POLISHED = dict(residual_tol=1e-12, central_path_tol=1e-8, min_iterations=4)
# Relative to the largest derivative. Extrapolated central differences resolve about 1e-9 of it in smooth motion.
TOLERANCE = 1e-6


def random_body() -> td.Body:
    moments = torch.tensor((0.10, 0.13, 0.17)) * (1 + 0.1 * torch.rand(3))
    turn = torch.linalg.qr(torch.randn(3, 3)).Q
    return td.Body(mass=0.5 + torch.rand(()), inertia=turn @ torch.diag(moments) @ turn.T)


def random_joint(kind: str, parent: str | None, child: str, spring: bool = False, damper: bool = False, **given: Any) -> td.StandardJoint:
    """Axis, anchors and offset are random, and the values of springs and dampers."""
    n, offset = sum(joint_types.JOINT_TYPES[kind]), torch.randn(4)
    return getattr(joint_types, kind)(
        parent,
        child,
        axis=torch.randn(3),
        parent_anchor=0.3 * torch.randn(3),
        child_anchor=0.3 * torch.randn(3),
        orientation_offset=offset / offset.norm(),
        spring=2 * torch.rand(n) * spring,
        damper=torch.rand(n) * damper,
        rest=0.3 * torch.randn(n),
        **given,
    )


def two_bodies(kind: str, **options: Any) -> td.Mechanism:
    """A joint of this kind between the world and a body, and another one between that body and a second."""
    joints = {
        "first": random_joint(kind, None, "a", spring=True, damper=True),
        "second": random_joint(kind, "a", "b", spring=True, damper=True),
    }
    return td.Mechanism(
        {"a": random_body(), "b": random_body()},
        joints,
        timestep=0.02,
        gravity=(1.0, -2.0, -9.0),
        options=td.SolverOptions(**(POLISHED | options)),
    )


def branched() -> td.Mechanism:
    """A free trunk with three limbs of two links, all joints between bodies of another kind, declared out of order."""
    kinds = ["Spherical", "Revolute", "Orbital", "Prismatic", "PlanarAxis", "CylindricalFree"]
    joints: dict[str, td.StandardJoint] = {}
    for i in range(3):
        joints[f"lower{i}"] = random_joint(kinds[2 * i + 1], f"upper{i}", f"lower{i}", spring=True)
        joints[f"upper{i}"] = random_joint(kinds[2 * i], "trunk", f"upper{i}", damper=True)
    joints["base"] = random_joint("Floating", None, "trunk", actuated=False)
    bodies = {name: random_body() for name in ("trunk", *(f"{part}{i}" for i in range(3) for part in ("lower", "upper")))}
    return td.Mechanism(bodies, joints, timestep=0.01, options=td.SolverOptions(**POLISHED))


def coordinates(mechanism: td.Mechanism, *batch: int) -> tuple[Tensor, Tensor, Tensor]:
    """q, qd and u of a moving state."""
    n = mechanism.num_coordinates
    return 0.5 * torch.randn(*batch, n), torch.randn(*batch, n), torch.randn(*batch, mechanism.num_inputs)


def robot(name: str, kappa: float, backend: str) -> tuple[td.Mechanism, Tensor, Tensor, Tensor]:
    """A robot of td.models after a fall, with feet on the ground, and random torques."""
    mechanism = getattr(td.models, name)()
    mechanism.options = td.SolverOptions(kappa=kappa)
    torques = 0.5 * torch.randn(60, mechanism.num_inputs)
    z = mechanism.rollout(td.models.initial_state(name, mechanism), torques).z[-1]
    mechanism.options = td.SolverOptions(kappa=kappa, backend=backend, **POLISHED)
    out, layout = mechanism.step(z, torques[0]), mechanism.impulse_layout
    normal = torch.stack([out.impulses[piece.start] for name, piece in layout.items() if name.startswith("contacts.")])
    # Contact carries at least a twentieth of the weight; a contact that is a millimeter away carries only kappa over its gap.
    weight = float(mechanism.timestep * 9.81 * sum(body.mass for body in mechanism.bodies.values()))
    assert float(normal.max()) > 0.05 * weight
    return mechanism, *mechanism.to_minimal(z), torques[0]


def check(mechanism: td.Mechanism, q: Tensor, qd: Tensor, u: Tensor, step: float = 4e-4) -> None:
    """`jacobians_minimal` against extrapolated central differences of `step_minimal`, entry by entry."""
    n, point = q.shape[-1], torch.cat((q, qd, u))
    base = mechanism.step_minimal(q, qd, u)
    assert int(base.status) == td.Status.SUCCESS

    def central(step: float) -> Tensor:
        moved = point + step * torch.cat((torch.eye(len(point)), -torch.eye(len(point))))
        out = mechanism.step_minimal(moved[:, :n], moved[:, n : 2 * n], moved[:, 2 * n :], warm_start=base.solution)
        assert not out.status.any()
        plus, minus = torch.cat((out.q, out.qd), dim=-1).chunk(2)
        return (plus - minus).T / (2 * step)

    numeric = (16 * central(step / 4) - central(step)) / 15
    analytic = torch.cat(mechanism.jacobians_minimal(q, qd, u), dim=-1)
    assert analytic.shape == numeric.shape == (2 * n, 2 * n + mechanism.num_inputs)
    assert float((analytic - numeric).abs().max()) <= TOLERANCE * float(numeric.abs().max())


# -- Jacobians ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", [kind for kind in joint_types.JOINT_TYPES if kind != "Fixed"])
def test_jacobians_of_every_joint(kind: str, backend: str) -> None:
    mechanism = two_bodies(kind, backend=backend)
    check(mechanism, *coordinates(mechanism))


def test_jacobians_of_a_tree_with_a_fixed_joint() -> None:
    mechanism = branched()
    check(mechanism, *coordinates(mechanism))
    joints = {"first": random_joint("Fixed", None, "a"), "second": random_joint("Spherical", "a", "b")}
    joints["third"] = random_joint("Fixed", "b", "c")
    welded = td.Mechanism({name: random_body() for name in "abc"}, joints, options=td.SolverOptions(**POLISHED))
    check(welded, *coordinates(welded))


@pytest.mark.parametrize("kappa", [1e-3, 1e-4])
@pytest.mark.parametrize("name", ["half_cheetah", "quadruped"])
def test_jacobians_of_robots_in_contact(name: str, kappa: float) -> None:
    # Contact bends within fractions of a millimeter; rounding is 1e-13 over the step.
    check(*robot(name, kappa, "auto"), step=4e-6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_jacobians_are_those_of_autograd(backend: str) -> None:
    if backend == "native":
        mechanism, q, qd, u = robot("half_cheetah", 1e-4, backend)
    else:  # smaller, and without contact: test_parity_minimal.py compares its Jacobians in contact with the kernel
        mechanism = two_bodies("Orbital", backend=backend)
        q, qd, u = coordinates(mechanism)
    by_state, by_input = mechanism.jacobians_minimal(q, qd, u)

    def step(q: Tensor, qd: Tensor, u: Tensor) -> Tensor:
        out = mechanism.step_minimal(q, qd, u)
        return torch.cat((out.q, out.qd), dim=-1)

    expected = torch.autograd.functional.jacobian(step, (q, qd, u))
    # Two exact formulas; 1e-9 leaves room for the condition of the contact problem.
    assert float((by_state - torch.cat(expected[:2], dim=-1)).abs().max()) < 1e-9 * float(by_state.abs().max())
    assert float((by_input - expected[2]).abs().max()) < 1e-9 * float(by_input.abs().max())


SIZES = [(kind, size) for i, kind in enumerate(joint_types.JOINT_TYPES) for size in ((0.0, 1e-6)[i % 2], 0.5)]


@pytest.mark.parametrize(("kind", "size"), SIZES)
def test_derivatives_of_the_maps(kind: str, size: float) -> None:
    """Both maps against autograd: at rest, at the edge of the series for small angles, and far from both; off the joints, too."""
    mechanism = two_bodies(kind)
    n, order, nb, h = mechanism.num_coordinates, mechanism.tree_order(), mechanism.num_bodies, mechanism.timestep
    q, qd = size * torch.randn(n), 2 * size * torch.randn(n)
    z = mechanism.to_maximal(q, qd)
    expected = torch.func.jacrev(lambda q, qd: mechanism.difference(mechanism.to_maximal(q, qd), z), argnums=(0, 1))(q, qd)
    # Rounding in 1/h = 50.
    torch.testing.assert_close(minimal_jacobians.maximal_jacobian(order, nb, q, qd, z, h), torch.cat(expected, -1), rtol=0, atol=1e-12)
    z = mechanism.retract(z, 0.1 * size * torch.randn(12 * nb))
    tangent = torch.zeros(12 * nb)
    expected = torch.func.jacrev(lambda d: torch.cat(mechanism.to_minimal(mechanism.retract(z, d)), dim=-1))(tangent)
    torch.testing.assert_close(minimal_jacobians.minimal_products(order, nb, z, h, [torch.eye(12 * nb)])[0], expected, rtol=0, atol=1e-12)


def test_batches_are_their_elements() -> None:
    """Batch dimensions of coordinates, inputs and parameters broadcast."""
    mechanism = branched()
    mechanism.timestep = torch.tensor([0.008, 0.01, 0.012])
    mechanism.joints["upper1"].axis = torch.randn(3, 3)
    q, qd, _ = coordinates(mechanism, 2, 3)
    u = torch.randn(mechanism.num_inputs)
    out, jacobians = mechanism.step_minimal(q, qd, u), mechanism.jacobians_minimal(q, qd, u)
    run = mechanism.rollout_minimal(q, qd, u.expand(4, -1))
    n, nu = q.shape[-1], u.shape[-1]
    assert jacobians[0].shape == (2, 3, 2 * n, 2 * n) and jacobians[1].shape == (2, 3, 2 * n, nu)
    assert run.q.shape == run.qd.shape == (2, 3, 5, n)
    torch.testing.assert_close(run.q[..., 1, :], out.q, rtol=0, atol=1e-12)
    single = branched()
    single.load_state_dict({k: v[1] if v.shape != single.state_dict()[k].shape else v for k, v in mechanism.state_dict().items()})
    one, alone = single.step_minimal(q[0, 1], qd[0, 1], u), single.jacobians_minimal(q[0, 1], qd[0, 1], u)
    torch.testing.assert_close(out.qd[0, 1], one.qd, rtol=0, atol=1e-9)
    for whole, part in zip(jacobians, alone, strict=True):
        torch.testing.assert_close(whole[0, 1], part, rtol=0, atol=1e-9)


@pytest.mark.parametrize("backend", BACKENDS)
def test_jacobians_in_memory_of_the_caller(backend: str) -> None:
    mechanism = two_bodies("Orbital", backend=backend)
    q, qd, u = coordinates(mechanism, 3)
    n, nu = q.shape[-1], u.shape[-1]
    out = torch.full((3, 2 * n, 2 * n + nu), torch.nan)
    jacobians = mechanism.jacobians_minimal(q, qd, u, out=out)
    assert jacobians[0].data_ptr() == out.data_ptr() and torch.equal(torch.cat(jacobians, dim=-1), out)
    assert torch.equal(out, torch.cat(mechanism.jacobians_minimal(q, qd, u), dim=-1))
    for wrong in (out[0], out.float(), out.mT):
        with pytest.raises(ValueError, match=rf"out: got shape .*allowed: \(3, {2 * n}, {2 * n + nu}\)"):
            mechanism.jacobians_minimal(q, qd, u, out=wrong)


# -- steps and rollouts -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_step_is_that_of_the_maximal_state(backend: str) -> None:
    mechanism, q, qd, u = robot("quadruped", 1e-4, backend)
    q, qd, u = (t + 0.01 * torch.randn(3, len(t)) for t in (q, qd, u))
    wrench = torch.randn(6 * mechanism.num_bodies)
    out = mechanism.step_minimal(q, qd, u, wrench=wrench)
    maximal = mechanism.step(mechanism.to_maximal(q, qd), u, wrench=wrench)
    assert not out.status.any()
    assert torch.equal(torch.cat((out.q, out.qd)), torch.cat(mechanism.to_minimal(maximal.z)))
    for name in maximal._fields:
        assert torch.equal(getattr(out, name), getattr(maximal, name)), name
    warm = mechanism.step_minimal(q, qd, u, wrench=wrench, warm_start=out.solution)
    assert int(warm.iterations.max()) <= int(out.iterations.max())
    torch.testing.assert_close(warm.q, out.q, rtol=0, atol=1e-10)


@pytest.mark.filterwarnings("ignore:contact .* inside its surface")
@pytest.mark.parametrize("policy", [False, True])
def test_a_rollout_is_its_steps(policy: bool) -> None:
    mechanism, q, qd, u = robot("half_cheetah", 1e-4, "auto")
    q, qd = (t + 0.01 * torch.randn(2, len(t)) for t in (q, qd))
    torques = torch.randn(2, 4, len(u))

    def control(q: Tensor, qd: Tensor) -> Tensor:
        return -5 * q[..., -6:] - 0.1 * qd[..., -6:]

    run = mechanism.rollout_minimal(q, qd, control, steps=4) if policy else mechanism.rollout_minimal(q, qd, torques)
    assert torch.equal(run.q[:, 0], q) and torch.equal(run.qd[:, 0], qd) and run.status.shape == (2, 4)
    warm = None
    for t in range(4):
        out = mechanism.step_minimal(q, qd, control(q, qd) if policy else torques[:, t], warm_start=warm)
        q, qd, warm = out.q, out.qd, out.solution
        # The way back and forth between coordinates rounds, and contact amplifies that.
        torch.testing.assert_close(run.q[:, t + 1], q, rtol=0, atol=1e-9)
        torch.testing.assert_close(run.qd[:, t + 1], qd, rtol=0, atol=1e-7)


def test_gradient_of_a_rollout_is_the_product_of_jacobians() -> None:
    mechanism, q, qd, u = robot("half_cheetah", 1e-3, "auto")
    q, qd, torques = q.requires_grad_(), qd.requires_grad_(), u.expand(3, -1).clone()
    run = mechanism.rollout_minimal(q, qd, torques, checkpoint=2)
    weights = torch.randn(2 * len(q))
    grads = torch.cat(torch.autograd.grad(weights @ torch.cat((run.q[-1], run.qd[-1])), (q, qd)))
    for t in reversed(range(3)):
        weights = weights @ mechanism.jacobians_minimal(run.q[t].detach(), run.qd[t].detach(), torques[t])[0]
    # Solutions from a cold start in one and a warm one in the other, each polished to rounding.
    torch.testing.assert_close(grads, weights, rtol=1e-7, atol=1e-7 * float(weights.abs().max()))


@pytest.mark.parametrize(("start", "end"), [(3.1, 3.3), (-3.1, -2.9), (6.2, 6.4 - 4 * torch.pi), (3.1 + 4 * torch.pi, 3.3)])
def test_angles_come_back_in_two_turns(start: float, end: float) -> None:
    """A hinge passes π like any other angle. At 2π its angle jumps by 4π; its rate and the derivatives do not."""
    mechanism = td.Mechanism(
        {"a": td.Body(1.0, (0.1, 0.1, 0.1))}, {"hinge": td.Revolute(None, "a", axis=(0, 0, 1))}, gravity=(0, 0, 0), timestep=0.1
    )
    q, qd = torch.tensor([start]), torch.tensor([2.0])
    out = mechanism.step_minimal(q, qd)
    torch.testing.assert_close(out.q, torch.tensor([end]))
    torch.testing.assert_close(out.qd, qd)
    torch.testing.assert_close(mechanism.jacobians_minimal(q, qd)[0], torch.tensor([[1.0, 0.1], [0.0, 1.0]]))


def test_steps_that_are_split() -> None:
    """Two half steps stand for one that has no solution: the chain is that of the state that comes out."""
    mechanism = td.Mechanism({"ball": td.Body(1.0, (1.0, 1.0, 1.0))}, {"base": td.Floating(None, "ball")}, timestep=0.1, gravity=(0, 0, 0))
    q, u = torch.zeros(6), torch.tensor((0.0, 0.0, 0.0, 0.0, 0.0, 5.0))
    qd = mechanism.to_minimal(mechanism.initial_state(ball=dict(angular_velocity=(0.0, 0.0, 13.0))))[1]
    assert int(mechanism.step_minimal(q, qd, u).substeps) == 2
    by_state, by_input = mechanism.jacobians_minimal(q, qd, u)
    expected = torch.autograd.functional.jacobian(lambda *x: torch.cat(mechanism.step_minimal(*x)[:2]), (q, qd, u))
    torch.testing.assert_close(by_state, torch.cat(expected[:2], -1), rtol=0, atol=1e-9)
    torch.testing.assert_close(by_input, expected[2], rtol=0, atol=1e-9)


# -- transforms and failures --------------------------------------------------------------------------------------


def test_transforms() -> None:
    mechanism = branched()
    q, qd, u = coordinates(mechanism, 3)
    out, jacobians = mechanism.step_minimal(q, qd, u), mechanism.jacobians_minimal(q, qd, u)

    def close(actual: Tensor, expected: Tensor) -> None:
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-9)

    close(torch.func.vmap(lambda q, qd, u: mechanism.step_minimal(q, qd, u).qd)(q, qd, u), out.qd)
    close(torch.func.vmap(lambda q, qd, u: mechanism.jacobians_minimal(q, qd, u)[0])(q, qd, u), jacobians[0])
    close(torch.func.vmap(lambda u: mechanism.jacobians_minimal(q[0], qd[0], u)[1])(u[:1]), jacobians[1][:1])
    jac = torch.func.jacfwd(lambda qd: mechanism.step_minimal(q[0], qd, u[0]).q)(qd[0])
    close(jac, jacobians[0][0, : q.shape[-1], q.shape[-1] :])


@pytest.mark.parametrize("backend", BACKENDS)
def test_failures_keep_their_state_and_have_no_gradient(backend: str) -> None:
    mechanism, q, qd, u = robot("half_cheetah", 1e-4, backend)
    q, qd = q.repeat(3, 1), qd.repeat(3, 1)
    q[1, 4] = torch.nan
    u = u.repeat(3, 1)
    u[2, 1] = torch.inf
    q.requires_grad_()
    qd.requires_grad_()
    out = mechanism.step_minimal(q, qd, u)
    assert out.status.tolist() == [0, *[int(td.Status.INVALID_INPUT)] * 2]
    torch.testing.assert_close(out.q[1:], q[1:], equal_nan=True)
    torch.testing.assert_close(out.qd[1:], qd[1:], equal_nan=True)
    run = mechanism.rollout_minimal(q, qd, u[:, None].expand(3, 2, -1))
    torch.testing.assert_close(run.q[1, -1], q[1], equal_nan=True)
    for result in ((out.q, out.qd), (run.q[..., -1, :], run.qd[..., -1, :])):
        grads = torch.autograd.grad(torch.cat(result).square().sum(), (q, qd), retain_graph=True)
        assert all(bool(torch.isfinite(g).all()) and not g[1].any() and bool(g[0].any()) for g in grads)
        assert not any(bool(g[2].any()) for g in grads)
    jacobians = mechanism.jacobians_minimal(q, qd, u)
    assert all(bool(torch.isfinite(j).all()) and not j[1:].any() and bool(j[0].any()) for j in jacobians)


def test_loops_are_refused_by_name() -> None:
    """Coordinates of a loop are not independent of each other: the message names what ties them, and what to do."""
    bodies = {name: td.Body(1.0, (0.1, 0.1, 0.1)) for name in ("left", "right", "bar")}
    hinges = {
        "a": td.Revolute(None, "left", axis=(0, 1, 0), child_anchor=(0, 0, -0.5)),
        "b": td.Revolute(None, "right", axis=(0, 1, 0), parent_anchor=(1, 0, 0), child_anchor=(0, 0, -0.5)),
        "c": td.Revolute("left", "bar", axis=(0, 1, 0), parent_anchor=(0, 0, 0.5), child_anchor=(-0.5, 0, 0)),
    }
    closing = td.Revolute("right", "bar", axis=(0, 1, 0), parent_anchor=(0, 0, 0.5), child_anchor=(0.5, 0, 0))
    loop = td.Mechanism(bodies, {**hinges, "closing": closing})
    q = torch.zeros(3)
    for call in (loop.step_minimal, loop.jacobians_minimal, lambda q, qd: loop.rollout_minimal(q, qd, steps=2)):
        with pytest.raises(ValueError, match=r"constrained by joint 'closing'; step maximal states: mech.step\(mech.close_loops"):
            call(q, q)
    coupled = td.Mechanism(
        {name: td.Body(1.0, (0.1, 0.1, 0.1)) for name in "ab"},
        {"x": td.Revolute(None, "a"), "y": td.Revolute(None, "b")},
        couplings={"gear": td.JointCoupling("x", "y", ratio=2.0)},
    )
    with pytest.raises(ValueError, match="constrained by coupling 'gear'"):
        coupled.step_minimal(q[:2], q[:2])


def test_bad_input() -> None:
    mechanism = two_bodies("Revolute")
    q = torch.zeros(2)
    with pytest.raises(ValueError, match=r"q: got shape \(3,\); allowed: \(\.\.\., 2\)"):
        mechanism.step_minimal(torch.zeros(3), q)
    with pytest.raises(TypeError, match=r"qd: got torch.float16"):
        mechanism.jacobians_minimal(q, q.half())
    with pytest.raises(ValueError, match=r"u: got shape \(5,\)"):
        mechanism.step_minimal(q, q, torch.zeros(5))
    with pytest.raises(ValueError, match="steps: got None"):
        mechanism.rollout_minimal(q, q, lambda q, qd: -q)
