"""Gradients of the step against central differences: every joint, every contact model, every parameter, in every phase of contact."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor, nn

import torchdojo as td
from torchdojo.elements import joints as joint_types

# Relative to the largest derivative of the same input. Central differences, extrapolated, resolve about 1e-9 of it in smooth motion.
TOLERANCE = 1e-6


def random_axes() -> Tensor:
    return torch.randn(3)


def chain(joint: str) -> tuple[td.Mechanism, Tensor, Tensor]:
    """Two bodies, the first on the world, with a joint of this type at either side, springs, dampers and offsets everywhere."""

    def body() -> td.Body:
        root = torch.randn(3, 3)
        moments = torch.tensor((0.10, 0.13, 0.17)) * (1 + 0.1 * torch.rand(3))
        turn = torch.linalg.qr(root).Q
        return td.Body(mass=0.5 + torch.rand(()), inertia=turn @ torch.diag(moments) @ turn.T)

    def connect(parent: str | None, child: str) -> td.StandardJoint:
        cls = getattr(joint_types, joint)
        n = sum(joint_types.JOINT_TYPES[joint])
        offset = torch.randn(4)
        return cls(
            parent,
            child,
            axis=torch.randn(3),
            parent_anchor=0.3 * torch.randn(3),
            child_anchor=0.3 * torch.randn(3),
            orientation_offset=offset / offset.norm(),
            spring=2 * torch.rand(n),
            damper=torch.rand(n),
            rest=0.3 * torch.randn(n),
        )

    mech = td.Mechanism(
        {"a": body(), "b": body()}, {"first": connect(None, "a"), "second": connect("a", "b")}, timestep=0.02, gravity=(1.0, -2.0, -9.0)
    )
    n = mech.num_coordinates
    z = mech.to_maximal(0.5 * torch.randn(n), torch.randn(n))
    return mech, z, torch.randn(mech.num_inputs)


@pytest.mark.parametrize("joint", joint_types.JOINT_TYPES)
def test_joints(joint: str) -> None:
    mech, z, u = chain(joint)
    report = td.testing.check_gradients(mech, z, u, tolerance=TOLERANCE)
    assert {"z -> state", "bodies.a.inertia -> state", "joints.second.child_anchor -> state", "timestep -> state"} <= set(report.errors)


CORNERS = [(0.25 * a, 0.25 * b, 0.25 * c) for a in (-1, 1) for b in (-1, 1) for c in (-1, 1)]
CONTACTS = {"impact": td.ImpactContact, "nonlinear": td.NonlinearContact}
#: Steps before the check, from a throw; and the pose it starts from.
PHASES = {
    "flight": dict(position=(0.0, 0.0, 1.0), velocity=(1.0, 0.5, -1.0), angular_velocity=(3.0, 2.0, -1.0)),
    "impact": dict(position=(0.0, 0.0, 0.28), velocity=(1.0, 0.5, -5.0), angular_velocity=(0.5, 1.0, -1.0)),
    "sliding": dict(position=(0.0, 0.0, 0.251), velocity=(2.0, 1.0, 0.0)),
    "sticking": dict(position=(0.0, 0.0, 0.2501), velocity=(0.0, 0.0, 0.0)),
}


#: Solutions polished to rounding, so that finite differences see the step and not the solver's tolerance.
EXACT = td.SolverOptions(kappa=1e-4, residual_tol=1e-10, central_path_tol=1e-8, min_iterations=2)


def box(contact: type[td.Contact], kappa: float) -> td.Mechanism:
    points = {f"corner{i}": contact("box", point=p, radius=0.01 * (i % 2)) for i, p in enumerate(CORNERS)}
    if contact is td.NonlinearContact:
        for i, point in enumerate(points.values()):
            point.friction = 0.3 + 0.02 * i
    return td.Mechanism(
        {"box": td.Body(1.0, (0.04, 0.045, 0.05))},
        {"base": td.Floating(None, "box")},
        points,
        timestep=0.01,
        options=td.SolverOptions(kappa=kappa),
    )


@pytest.mark.parametrize("kappa", [1e-3, 1e-4, 1e-6])
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("contact", CONTACTS)
def test_contacts(contact: str, phase: str, kappa: float) -> None:
    mech = box(CONTACTS[contact], kappa)
    z = mech.initial_state(box=PHASES[phase])
    u = torch.zeros(6)
    if phase in ("sliding", "sticking"):
        # A push below the friction limit, after settling: sticks; the moving start is still sliding after 10 steps.
        u[0] = 1.0
        with torch.no_grad():
            z = mech.rollout(z, u.expand(10, 6)).z[-1]
    names = ["contacts.corner0", "contacts.corner3", "bodies", "gravity", "timestep"]
    if kappa == 1e-6:
        # The phase is what its name says.
        after, speed = mech(z, u), float(mech(z, u)[3:5].norm())
        assert phase != "flight" or float(mech.distances(after).min()) > 0.1
        assert phase != "impact" or float(after[5] - z[5]) > 1
        assert phase != "sliding" or speed > 1
        assert phase != "sticking" or contact == "impact" or speed < 1e-3
    td.testing.check_gradients(mech, z, u, parameters=names, tolerance=TOLERANCE)


def test_external_wrench() -> None:
    mech = box(td.NonlinearContact, 1e-4)
    mech.options = EXACT
    z = mech.initial_state(box=PHASES["impact"])
    weights = torch.randn(13)
    wrench = torch.randn(6, requires_grad=True)
    (analytic,) = torch.autograd.grad(mech(z, wrench=wrench) @ weights, wrench)
    step = 1e-4
    with torch.no_grad():
        numeric = (mech(z, wrench=wrench + step * torch.eye(6)) - mech(z, wrench=wrench - step * torch.eye(6))) @ weights / (2 * step)
    assert float((analytic - numeric).abs().max()) < TOLERANCE * float(numeric.abs().max())


def test_resting_exactly_is_finite() -> None:
    """Zero velocity, zero slip, zero gap: every norm in the equations is at its kink."""
    mech = box(td.NonlinearContact, 1e-6)
    for p in mech.parameters():
        p.requires_grad_()
    z = mech.initial_state(box=dict(position=(0, 0, 0.26))).requires_grad_()
    u = torch.zeros(6, requires_grad=True)
    out = mech.step(z, u)
    assert int(out.status) == td.Status.SUCCESS
    grads = torch.autograd.grad(out.z.sum() + out.impulses.sum(), [z, u, *mech.parameters()])
    assert all(bool(torch.isfinite(g).all()) for g in grads)


class Terrain(td.NonlinearContact):
    """A contact whose ground is a small neural network: height = net(x, y)."""

    def __init__(self, body: str, **kwargs: object) -> None:
        super().__init__(body, **kwargs)
        self.net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1)).double()
        with torch.no_grad():
            for p in self.net.parameters():
                p.mul_(0.3)

    def signed_distance(self, point: Tensor) -> Tensor:
        return point[..., 2] - self.net(point[..., :2]).squeeze(-1)


def terrain_ball() -> td.Mechanism:
    return td.Mechanism(
        {"ball": td.Body(1.0, (0.1, 0.1, 0.1))},
        contacts={"skin": Terrain("ball", radius=0.2, friction=0.4)},
        options=td.SolverOptions(kappa=1e-4),
    )


def test_signed_distance_network_gets_gradients() -> None:
    mech = terrain_ball()
    height = float(mech.contacts["skin"].net(torch.zeros(2)))
    z = mech.initial_state(ball=dict(position=(0.0, 0.0, height + 0.22), velocity=(0.5, 0.2, -2.0)))
    assert bool((mech.distances(mech(z)) > 0).all())
    report = td.testing.check_gradients(mech, z, parameters=["contacts.skin.net"], directions=3, tolerance=TOLERANCE)
    assert {f"contacts.skin.net.{k} -> state" for k in ("0.weight", "0.bias", "2.weight", "2.bias")} <= set(report.errors)
    assert float(report.numeric["contacts.skin.net.2.bias -> state"].abs().max()) > 1e-3


@pytest.mark.slow
def test_signed_distance_network_learns() -> None:
    """The network's bias alone, trained through the bounce, finds the height of the ground that a rollout was made with."""
    torch.manual_seed(1)
    truth, model = terrain_ball(), terrain_ball()
    model.load_state_dict(truth.state_dict())
    with torch.no_grad():
        truth.contacts["skin"].net[2].bias += 0.1
    height = float(truth.contacts["skin"].net(torch.zeros(2)))
    z = truth.initial_state(ball=dict(position=(0.0, 0.0, height + 0.23), velocity=(0.3, 0.0, -1.0)))
    with torch.no_grad():
        target = truth.rollout(z, steps=7).z
    optimizer = torch.optim.LBFGS(
        [model.contacts["skin"].net[2].bias], max_iter=30, line_search_fn="strong_wolfe", tolerance_grad=1e-12, tolerance_change=1e-16
    )

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = ((model.rollout(z, steps=7).z - target) ** 2).mean()
        value.backward()
        return value

    optimizer.step(loss)
    error = float((model.contacts["skin"].net[2].bias - truth.contacts["skin"].net[2].bias).abs())
    # The bounce resolves the height to the solver's tolerance; 1e-6 m is far above it and far below the 0.1 m to be found.
    assert error < 1e-6


class DistanceRod(td.Joint):
    """A user-written joint: two anchors keep their distance; its length is a parameter of the user's own."""

    num_rows = 1

    def __init__(self, parent: str | None, child: str, length: float) -> None:
        super().__init__(parent, child)
        self.length = nn.Parameter(torch.tensor(length))

    def constraint(self, parent: td.elements.Pose, child: td.elements.Pose) -> Tensor:
        span = child.point(torch.tensor((0.0, 0.0, 0.1))) - parent.x
        return (span.square().sum(-1, keepdim=True) - self.length**2) / 2


def test_user_written_joint() -> None:
    mech = td.Mechanism(
        {"a": td.Body(1.0, (0.1, 0.1, 0.1)), "b": td.Body(0.5, (0.02, 0.03, 0.04))},
        [("base", td.Floating(None, "a")), ("free", td.Floating(None, "b", actuated=False)), ("rod", DistanceRod("a", "b", 0.5))],
        gravity=(0, 0, 0),
    )
    state = td.Mechanism({name: td.Body(1.0, (1, 1, 1)) for name in "ab"})
    z = state.initial_state(b=dict(position=(0.3, 0.4, -0.1), velocity=(0.4, -0.3, 0.2), angular_velocity=(1.0, 2.0, 0.5)))
    u = torch.randn(mech.num_inputs)
    td.testing.check_gradients(mech, z, u, parameters=["joints.rod", "bodies"], directions=4, tolerance=TOLERANCE)
    out = mech.rollout(z, steps=20)
    drift = mech.momentum(out.z[-1]) - mech.momentum(out.z[1])
    # An internal impulse: momentum is kept to the solver's tolerance, and so is the rod's length.
    assert float(drift.abs().max()) < 1e-8
    assert float(mech.joint_errors(out.z[-1]).abs().max()) < 1e-8


def test_rollout_gradient() -> None:
    """Through 40 steps with impact and sliding: the derivative of the end position with respect to the throw."""
    mech = box(td.NonlinearContact, 1e-4)
    mech.options = EXACT

    def end(velocity: Tensor) -> Tensor:
        z = mech.initial_state(box=dict(position=(0, 0, 0.4), angular_velocity=(1.0, 2.0, 0.5)))
        z = torch.cat((z[..., :3].expand(*velocity.shape[:-1], 3), velocity, z[..., 6:].expand(*velocity.shape[:-1], 7)), -1)
        return mech.rollout(z, steps=40).z[..., -1, :3]

    velocity = torch.tensor((2.0, 1.0, -1.0))
    analytic = torch.autograd.functional.jacobian(end, velocity)
    step = 1e-5
    moved = velocity + step * torch.cat((torch.eye(3), -torch.eye(3)))
    with torch.no_grad():
        ends = end(moved)
    numeric = ((ends[:3] - ends[3:]) / (2 * step)).T
    # The curvature of the bounce over a step of 1e-5 m/s: 1e-4 of the largest entry.
    assert float((analytic - numeric).abs().max()) < 1e-4 * float(numeric.abs().max())


def test_smoothed_gradient_is_the_gradient_at_larger_kappa() -> None:
    """grad_kappa: the derivative at the larger kappa of the step from the same state, to first order in the impulses' part."""
    mech = box(td.NonlinearContact, 1e-6)
    mech.options = dataclasses.replace(EXACT, kappa=1e-6)
    z = mech.initial_state(box=dict(position=(0, 0, 0.2502)))
    u = torch.zeros(6)
    sharp = mech.jacobians(z, u)[1]
    mech.options = dataclasses.replace(EXACT, kappa=1e-6, grad_kappa=1e-3)
    smooth = mech.jacobians(z, u)[1]
    wanted = z.clone().requires_grad_(), u.clone().requires_grad_()
    (grad,) = torch.autograd.grad(mech.step(*wanted).z[3], wanted[1])
    mech.options = dataclasses.replace(EXACT, kappa=1e-3)
    larger = mech.jacobians(z, u)[1]
    assert float((smooth[3:6] - larger[3:6]).abs().max()) < 1e-6 * float(larger.abs().max())
    assert float((grad - smooth[3]).abs().max()) < 1e-9
    # Sticking: a push moves the box far less at the sharp kappa than smoothed.
    assert float(sharp[3, 0].abs()) < 0.2 * float(smooth[3, 0].abs())


def test_second_derivatives_are_refused_by_name() -> None:
    mech = box(td.NonlinearContact, 1e-4)
    z = mech.initial_state(box=PHASES["impact"]).requires_grad_()
    (grad,) = torch.autograd.grad(mech(z).sum(), z, create_graph=True)
    with pytest.raises(RuntimeError, match="second derivatives"):
        grad.sum().backward()


def test_jacobians_match_autograd() -> None:
    mech = box(td.NonlinearContact, 1e-4)
    z = mech.initial_state(
        (3,), box=dict(position=(0, 0, 0.28), velocity=torch.randn(3, 3) - torch.tensor((0, 0, 3.0)), angular_velocity=torch.randn(3, 3))
    )
    u = torch.randn(3, 6)
    jac_z, jac_u = mech.jacobians(z, u)
    base = mech(z, u)

    def tangent(delta: Tensor, du: Tensor) -> Tensor:
        return mech.difference(mech(mech.retract(z, delta), u + du), base).sum(0)

    auto_z, auto_u = torch.autograd.functional.jacobian(tangent, (torch.zeros(3, 12), torch.zeros(3, 6)))
    # Two exact formulas of the same derivative; 1e-9 leaves room for the condition of the contact problem.
    assert float((auto_z.movedim(1, 0) - jac_z).abs().max()) < 1e-9 * float(jac_z.abs().max())
    assert float((auto_u.movedim(1, 0) - jac_u).abs().max()) < 1e-9 * float(jac_u.abs().max())
