"""Steps that are too fast for their timestep: how many substeps replace them, at what cost, and their derivatives."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

import torchdojo as td
from native.test_robustness import BATCH, drops
from torchdojo.solver.speed import slowed_by

OPTIONS = td.SolverOptions(kappa=1e-4, residual_tol=1e-12, central_path_tol=1e-6)
Case = tuple[td.Mechanism, Tensor, Tensor]


def top(rate: float) -> Case:
    """A free body with three different moments of inertia, thrown and driven."""
    mech = td.Mechanism({"top": td.Body(1.0, (0.1, 0.15, 0.2))}, {"free": td.Floating(None, "top")}, timestep=0.02)
    z = mech.initial_state()
    z[3:6], z[10:] = torch.tensor((1.0, 2.0, 3.0)), rate * torch.nn.functional.normalize(torch.tensor((0.3, 0.2, 1.0)), dim=0)
    return mech, z, torch.linspace(-1, 1, 6)


def arm(rate: float, torque: float, floor: bool = False, limit: float | None = None) -> Case:
    """Two links, of which the second spins at `rate` and is driven by `torque`; its tip may lie on a floor, its speed have a `limit`."""
    contacts = {"tip": td.NonlinearContact("lower", point=(0, 0, -0.1), radius=0.02, offset=-0.32, friction=0.5)} if floor else {}
    mech = td.Mechanism(
        {"upper": td.Body(1.0, (0.01, 0.01, 0.002)), "lower": td.Body(0.3, (0.002, 0.002, 0.0005))},
        {
            "hip": td.Revolute(None, "upper", axis=(0, 1, 0), child_anchor=(0, 0, 0.1), damper=0.1),
            "knee": td.Revolute(
                "upper", "lower", axis=(0, 1, 0), parent_anchor=(0, 0, -0.1), child_anchor=(0, 0, 0.1), velocity_limits=limit
            ),
        },
        contacts,
        timestep=0.02,
    )
    return mech, mech.initial_state(hip=dict(q=0.1), knee=dict(q=0.2, qd=rate)), torch.tensor((0.5, torque))


#: Name -> builder of mechanism, state and input; and the number of substeps.
CASES = {
    "a spin beyond √2/h": (lambda: top(90.0), 2),
    "a spin beyond 2√2/h": (lambda: top(190.0), 4),
    "a spin beyond 4√2/h": (lambda: top(400.0), 8),
    "a link that spins": (lambda: arm(100.0, 0.2), 2),
    "a torque that speeds a link up": (lambda: arm(50.0, 8.0), 2),
    "a link that spins on a floor": (lambda: arm(90.0, 3.0, floor=True), 2),
    "a torque on a link at rest": (lambda: arm(0.0, 15.0), 2),
    "a torque that adds to a fast spin": (lambda: arm(60.0, 12.0), 2),
    "a torque on a link at rest, slow motor": (lambda: arm(0.0, 15.0, limit=20.0), 1),
    "a torque on a link at rest, fast motor": (lambda: arm(0.0, 15.0, limit=200.0), 2),
}


def differences(function: object, at: Tensor, step: float = 1e-4) -> Tensor:
    """Central differences of a batched function, extrapolated once: columns by the entries of `at`."""
    moves = torch.cat([s * step * torch.eye(len(at)) for s in (1.0, -1.0, 0.5, -0.5)])
    a, b, c, d = function(at + moves).chunk(4)  # type: ignore[operator]
    return ((4 * (c - d) / step - (a - b) / (2 * step)) / 3).mT


@pytest.mark.sanitize
@pytest.mark.parametrize("name", CASES)
def test_substeps_and_their_derivatives(name: str) -> None:
    """Kernel and reference choose equally many substeps, with equal states, Jacobians and gradients, which differences confirm."""
    build, parts = CASES[name]
    mech, z, u = build()
    outs, jacobians, gradients = [], [], []
    for backend in ("native", "reference"):
        mech.options = dataclasses.replace(OPTIONS, backend=backend)
        leaves = z.clone().requires_grad_(), u.clone().requires_grad_()
        out = mech.step(*leaves)
        outs.append(out)
        jacobians.append(torch.cat(mech.jacobians(z, u), dim=-1))
        weights = torch.linspace(-1, 1, out.z.shape[-1]), torch.linspace(1, -1, out.impulses.shape[-1])
        gradients.append(torch.cat(torch.autograd.grad((out.z @ weights[0]) + (out.impulses @ weights[1]), leaves)))
    native, reference = outs
    assert native.status == 0 and native.substeps == parts == reference.substeps
    assert float((native.z - reference.z).detach().abs().max()) < 1e-10 * float(z.abs().max())
    for ours, theirs in (jacobians, gradients):
        assert float((ours - theirs).abs().max()) < 1e-9 * float(theirs.abs().max())

    mech.options = dataclasses.replace(OPTIONS, backend="native")

    def moved(delta: Tensor) -> Tensor:
        out = mech.step(mech.retract(z, delta[..., : -len(u)]), u + delta[..., -len(u) :])
        assert out.substeps.eq(parts).all()
        return mech.difference(out.z, native.z.detach())

    wanted = differences(moved, torch.zeros(jacobians[0].shape[-1]))
    assert float((jacobians[0] - wanted).abs().max()) < 1e-6 * float(wanted.abs().max())


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_minimal_coordinates_of_split_steps(backend: str) -> None:
    """Jacobians are finite and those of differences; a spin of 2/h and more, which has no rates over a step, is flagged."""
    bodies = {"a": td.Body(1.0, (0.1, 0.15, 0.2)), "b": td.Body(1.0, (0.1, 0.1, 0.1))}
    mech = td.Mechanism(bodies, {f"free_{n}": td.Floating(None, n) for n in bodies}, timestep=0.02)
    mech.options = dataclasses.replace(OPTIONS, backend=backend)
    u = torch.zeros(12)
    u[5] = 30.0
    qd = torch.zeros(2, 12)
    qd[:, 5] = torch.tensor((94.0, 157.0))
    q = torch.zeros(2, 12)
    out = mech.step_minimal(q, qd, u)
    assert out.status.tolist() == [0, 1] and out.substeps.tolist() == [2, 2]
    assert bool(torch.isfinite(out.qd).all()) and torch.equal(out.qd[1], qd[1])
    push = torch.stack((u, 0 * u, 0 * u))
    path = mech.rollout_minimal(q, qd, push)
    assert path.status.tolist() == [[0] * 3, [1] * 3] and bool(torch.isfinite(path.qd).all())
    assert torch.equal(path.q[1], q[1].expand(4, -1)) and torch.equal(path.qd[1], qd[1].expand(4, -1))
    mech.options = dataclasses.replace(mech.options, on_failure="raise")
    for call in (lambda: mech.step_minimal(q, qd, u), lambda: mech.rollout_minimal(q, qd, push)):
        with pytest.raises(RuntimeError):
            call()
    mech.options = dataclasses.replace(mech.options, on_failure="flag")
    by_state, by_input = mech.jacobians_minimal(q, qd, u)
    assert bool(torch.isfinite(by_state).all()) and not by_state[1].any() and not by_input[1].any()

    def moved(delta: Tensor) -> Tensor:
        after = mech.step_minimal(q[0] + delta[..., :12], qd[0] + delta[..., 12:], u)
        return torch.cat((after.q, after.qd), dim=-1)

    wanted = differences(moved, torch.zeros(24))
    assert float((by_state[0] - wanted).abs().max()) < 1e-6 * float(wanted.abs().max())


@pytest.mark.slow
def test_violent_steps_agree() -> None:
    """Kernel and reference split the same steps of quadrupeds at rest and with spinning legs, after equally many iterations."""
    mech = td.models.quadruped(timestep=0.02)
    z, warm = mech.place(mech.initial_state((4,)), clearance=0.05), None
    for t in range(3):
        u = 60 * torch.rand(4, mech.num_inputs) - 30
        mech.options = td.SolverOptions(backend="native")
        native = mech.step(z, u, warm_start=warm)
        if t != 1:
            mech.options = td.SolverOptions(backend="reference")
            reference = mech.step(z, u, warm_start=warm)
            assert native.substeps.min() > 1 and torch.equal(native.substeps, reference.substeps)
            assert torch.equal(native.iterations, reference.iterations)
            assert float((native.z - reference.z).abs().max()) < 1e-10 * float(z.abs().max())
        z, warm = native.z, native.solution


def hard_landings(count: int) -> tuple[td.Mechanism, Tensor]:
    """A quadruped, and states of thrown ones at which attempts at a whole step of 0.05 s fail."""
    mech = td.models.quadruped(timestep=0.05)
    mech.options = td.SolverOptions(kappa=OPTIONS.kappa, backend="native")
    (z,) = drops(mech, BATCH)
    with torch.no_grad():
        path = mech.rollout(z, steps=6)
        z = path.z[:, :-1][(path.substeps > 1) & (path.status == 0)]
        mech.options = dataclasses.replace(mech.options, max_halvings=0)
        z = z[mech.step(z).status != 0][:count]
    assert len(z) == count
    return mech, z


@pytest.mark.slow
def test_rescued_steps_and_their_derivatives() -> None:
    """Where attempts at a whole step fail, kernel and reference take the same parts of it, whose derivatives differences confirm."""
    mech, z = hard_landings(2)
    outs, jacobians, gradients = [], [], []
    for backend in ("reference", "native"):
        mech.options = dataclasses.replace(OPTIONS, backend=backend)
        leaf = z.clone().requires_grad_()
        out = mech.step(leaf)
        outs.append(out)
        jacobians.append(mech.jacobians(z)[0])
        gradients.append(torch.autograd.grad((out.z * torch.linspace(-1, 1, z.shape[-1])).sum(), leaf)[0])
    reference, native = outs
    assert not native.status.any() and native.substeps.min() > 1 and torch.equal(native.substeps, reference.substeps)
    assert torch.equal(native.iterations, reference.iterations)
    for ours, theirs in (gradients, jacobians):
        for one, other in zip(ours, theirs, strict=True):
            assert float((one - other).abs().max()) < 1e-9 * float(other.abs().max())

    # Entries of these Jacobians reach 1e3. Differences over 1e-6 resolve 1e-8 of them (measured), and a change of sequence would show.
    moves = 1e-6 * torch.nn.functional.normalize(torch.randn(len(z), jacobians[1].shape[-1]), dim=-1)
    ends = [mech.step(mech.retract(z, sign * moves)).z for sign in (1, -1)]
    wanted = 0.5 * mech.difference(*ends)
    error = (wanted - (jacobians[1] @ moves[..., None]).squeeze(-1)).abs().amax(-1)
    assert bool((error < 1e-6 * wanted.abs().amax(-1)).all())


def test_bodies_that_speed_limits_hold() -> None:
    """A limit of each rotation of a joint holds the child, and what is welded to it; other bodies may spin."""
    names = ("base", "tool", "hand", "ball", "cup", "slider", "free")
    mech = td.Mechanism(
        {name: td.Body(1.0, (0.1, 0.1, 0.1)) for name in names},
        {
            "floating": td.Floating(None, "base"),
            "weld": td.Fixed("hand", "tool"),
            "hinge": td.Revolute("base", "hand", axis=(0, 0, 1), velocity_limits=20.0),
            "ball": td.Spherical("base", "ball", velocity_limits=(20.0, 20.0, 20.0)),
            "cup": td.Spherical("base", "cup", velocity_limits=(20.0, torch.inf, 20.0)),
            "slider": td.Prismatic("base", "slider", axis=(0, 0, 1), velocity_limits=1.0),
        },
    )
    held = [None if limits is None else limits.joint for limits in slowed_by(mech.backends.system)]
    hinge, ball = mech.joints["hinge"], mech.joints["ball"]
    assert all(one is other for one, other in zip(held, (None, hinge, hinge, ball, None, None, None), strict=True))


@pytest.mark.parametrize(("h", "most"), [(0.01, 3.0), (0.02, 2.0)])
def test_cost_of_violent_inputs(h: float, most: float) -> None:
    """A quadruped under random torques of ±30 N·m: a substep takes fewer than `most` times the iterations of an ordinary step.

    At h = 0.02 the bound is lower: iterations of the ladder for single environments, which cost more each, once made 2.3 times as many.
    """
    mech = td.models.quadruped(timestep=h)
    z = mech.place(mech.initial_state((8,)), clearance=0.05)
    u = 60 * torch.rand(8, int(0.4 / h), mech.num_inputs) - 30
    violent, calm = mech.rollout(z, u), mech.rollout(z, 0.1 * u)
    assert not violent.status.any() and float((violent.substeps > 1).double().mean()) > 0.3
    ratio = float(violent.iterations.sum() / violent.substeps.sum()) / float(calm.iterations.double().mean())
    assert ratio < most


@pytest.mark.parametrize("rate", [70.0, 94.0, 130.0])
def test_derivatives_of_a_robot_whose_links_spin(rate: float) -> None:
    """No number that is not finite comes with SUCCESS; Jacobians in minimal coordinates are those of `jacobians` between both maps."""
    mech = td.models.quadruped(timestep=0.02, damper=0.05, contact_body=False)
    mech.options = td.SolverOptions(kappa=1e-5)
    z = mech.rollout(td.models.initial_state("quadruped", mech), steps=20).z[-1]
    q, qd = (value.expand(12, -1).clone() for value in mech.to_minimal(z))
    qd[range(12), range(6, 18)] = rate
    u = torch.linspace(-5, 5, mech.num_inputs)
    lin, (A, B) = mech.linearize_minimal(q, qd, u), mech.jacobians_minimal(q, qd, u)
    assert int(lin.substeps.max()) > 1 and int((lin.status == 0).sum()) >= 10
    assert bool(A.isfinite().all() and B.isfinite().all()) and torch.equal(A, lin.A) and torch.equal(B, lin.B)
    assert bool((A.abs().amax((-1, -2)) > 0)[lin.status == 0].all())
    maximal = mech.linearize(mech.to_maximal(q, qd), u)
    assert bool(maximal.A.isfinite().all() and maximal.B.isfinite().all())
