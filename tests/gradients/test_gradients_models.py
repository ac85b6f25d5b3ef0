"""Gradients of every built-in mechanism: single steps, rollouts of 100 steps, and 1000 random states in contact each.

Central differences run along random directions, with steps solved to 1e-10 and tighter. They have eleven step sizes from 1e-3 to 1e-9, of
which each two neighbors are extrapolated (Richardson). The estimate that settles best counts, without regard to the analytic value
(torchdojo/testing/differences.py). Plain central differences show a V over the step size. On one side is curvature, in contact as soon as
gaps move by κ/γ, a micrometer; on the other side is rounding. Their best agrees about ten times less well.
"""

import pytest
import torch
from torch import Tensor

import torchdojo as td
from torchdojo import models
from torchdojo.state.layout import STATE_SIZE
from torchdojo.testing import differences

#: Largest difference, relative to the largest entry of the gradient, at these kappa.
TOLERANCE = {1e-3: 1e-6, 1e-4: 1e-6, 1e-6: 1e-4}
PARTS = ("bodies", "joints", "contacts")


def make(name: str, kappa: float) -> td.Mechanism:
    mech = models.make(name)
    mech.options = td.SolverOptions(kappa=kappa, backend="native")
    return mech


def pressed(mech: td.Mechanism, path: td.Trajectory) -> Tensor:
    """Sum of the normal impulses of all contacts in every step of a rollout [N·s], (T,)."""
    places = [piece.start for name, piece in mech.impulse_layout.items() if name.startswith("contacts.")]
    return path.impulses[..., places].sum(-1)


CASES = [
    pytest.param(name, kappa, marks=[pytest.mark.slow] if name == "humanoid" or (kappa != 1e-4 and name not in ("box", "sphere")) else [])
    for name in models.names()
    for kappa in TOLERANCE
]


@pytest.mark.parametrize(("name", "kappa"), CASES)
def test_every_class_of_parameters(name: str, kappa: float) -> None:
    """State, input, wrench and parameters of every class: at the hardest contact of a rollout with random inputs, and at its end."""
    mech = make(name, kappa)
    u = torch.randn(100, mech.num_inputs)
    with torch.no_grad():
        path = mech.rollout(models.initial_state(name, mech), u)
    assert not path.status.any()
    hardest = int(pressed(mech, path).argmax()) if mech.contacts else 30
    for t in (hardest, 99):
        report = td.testing.gradient_report(mech, path.z[t], u[t], parameters="classes")
        assert report.ok(TOLERANCE[kappa]), str(report)
        if mech.contacts and t == hardest and kappa == 1e-6:
            assert any(contact.mode != "open" for contact in report.active.contacts.values())
    rows = {row.name: row for row in report.rows}
    classes = {f"{part}.*.{field}" for part in PARTS for element in getattr(mech, part).values() for field in element.fields}
    assert classes | {"timestep", "gravity"} <= rows.keys()
    assert {f"{kind}.{body}" for body in mech.bodies for kind in ("z", "wrench")} <= rows.keys()
    read = [p for key, p in mech.named_parameters() if not key.startswith("actuators.")]  # a step under an input does not read actuators
    assert sum(row.entries for row in rows.values()) == 18 * mech.num_bodies + mech.num_inputs + sum(p.numel() for p in read)
    assert float(abs(rows["bodies.*.mass"].numeric)) > 0


@pytest.mark.parametrize("name", ["box", "half_cheetah", "quadruped"])
@pytest.mark.parametrize("kappa", [1e-4, pytest.param(1e-6, marks=pytest.mark.slow)])
@pytest.mark.parametrize("pushed", [False, True])
def test_rollout(name: str, kappa: float, pushed: bool) -> None:
    """100 steps into and in contact: a random combination of the last state, by initial coordinates and rates, input, masses, friction.

    The kappa of the rollout and default timestep, with and without random inputs that last. Measured: 2e-8 of the largest entry at most.
    """
    mech = make(name, kappa)
    q, qd = mech.to_minimal(models.initial_state(name, mech))
    u = float(pushed) * torch.randn(100, mech.num_inputs)
    sizes = [len(q), len(q), mech.num_inputs]
    names = [key for key in dict(mech.named_parameters()) if key.endswith((".mass", ".friction"))]
    with differences.converged(mech, residual_tol=1e-12):

        def run(delta: Tensor) -> td.Trajectory:
            dq, dqd, du = delta.split(sizes, -1)
            return mech.rollout(mech.to_maximal(q + dq, qd + dqd), u + du[..., None, :])

        still = torch.zeros(sum(sizes))
        with torch.no_grad():
            base = run(still)
        assert not base.status.any() and int(base.substeps.max()) == 1
        assert float(pressed(mech, base)[-10:].sum()) > 0.1 * float(mech.gravity.norm()) * 0.1 * float(
            sum(body.mass for body in mech.bodies.values())
        ), "a tenth of what it takes to rest on the ground"
        weights = torch.randn(base.z.shape[-1] // STATE_SIZE * 12)

        def loss(path: td.Trajectory) -> Tensor:
            end = path.z[..., -1, :]
            return mech.difference(end, base.z[-1].expand_as(end)) @ weights

        delta = still.clone().requires_grad_()
        tensors = [mech.get_parameter(key) for key in names]
        with differences.requiring_grad(tensors):
            by_state, *by_parameter = torch.autograd.grad(loss(run(delta)), [delta, *tensors])
        movers = {
            "state and input": (by_state, run),
            "parameters": (torch.stack(by_parameter), differences.parameter_mover(mech, names, lambda: run(still))),
        }
        for label, (gradient, move) in movers.items():
            basis = torch.randn(4, len(gradient))
            with torch.no_grad():
                numeric = differences.central(lambda d, move=move: {"": loss(move(d))}, basis)[""]
            error = float((basis @ gradient - numeric).abs().max() / gradient.abs().max())
            assert error <= 1e-4, f"{label}: {error:.2g}"


@pytest.mark.parametrize("kappa", [pytest.param(1e-4, marks=pytest.mark.slow), 1e-6])
@pytest.mark.parametrize("name", [name for name in models.names() if models.make(name).contacts])
def test_random_contact_states_have_finite_gradients(name: str, kappa: float) -> None:
    """1000 states, the lowest contact up to 2 mm above the ground or 0.5 mm inside it, every joint and the base in motion."""
    mech = make(name, kappa)
    # The reference differentiates steps that are split in two, which takes minutes here; tests/solver checks them.
    mech.options = td.SolverOptions(kappa=kappa, max_halvings=0, backend="native")
    count, z = 1000, models.initial_state(name, mech)
    q, qd = mech.to_minimal(z)
    z = mech.to_maximal(q + 0.3 * torch.randn(count, len(q)), qd + torch.randn(count, len(q)))
    lift = 2.5e-3 * torch.rand(count) - 5e-4 - mech.distances(z).amin(-1)
    z = z.unflatten(-1, (-1, STATE_SIZE)) + (lift[:, None, None] * torch.eye(STATE_SIZE)[2])
    z, u = z.flatten(1).detach().requires_grad_(), torch.randn(count, mech.num_inputs).requires_grad_()
    with differences.requiring_grad(mech.parameters()):
        out = mech.step(z, u)
        # Almost all are solved: what is flagged has a gradient of zero, which is finite, too.
        assert int((out.status != int(td.Status.SUCCESS)).sum()) <= count // 50
        assert bool(torch.isfinite(out.z).all()) and bool(torch.isfinite(out.impulses).all())
        loss = (out.z * torch.randn_like(out.z)).sum() + (out.impulses * torch.randn_like(out.impulses)).sum()
        grads = torch.autograd.grad(loss, [z, u, *mech.parameters()], allow_unused=True)
    for grad in grads:
        assert grad is None or bool(torch.isfinite(grad).all())
    assert float(grads[0].abs().amax(-1).median()) > 0
    for jacobian in mech.jacobians(z.detach(), u.detach()):
        assert bool(torch.isfinite(jacobian).all())
    assert float((pressed(mech, out._replace(impulses=out.impulses.detach())) > 10 * kappa).double().mean()) > 0.5


@pytest.mark.parametrize("name", ["box", "sphere", "cartpole", "npendulum"])
def test_gradcheck_on_the_tangent_space(name: str) -> None:
    """`torch.autograd.gradcheck` of the step, with respect to state, input and a mass, at the hardest contact."""
    mech = make(name, 1e-4)
    with torch.no_grad():
        path = mech.rollout(models.initial_state(name, mech), steps=40)
    z = path.z[int(pressed(mech, path).argmax()) if mech.contacts else 20]
    step = td.testing.tangent_step(mech, z)
    body = next(iter(mech.bodies.values()))
    theta = td.parametrize.positive(body, "mass")
    start = theta.detach().clone()

    def function(delta: Tensor, du: Tensor, change: Tensor) -> Tensor:
        key = f"bodies.{next(iter(mech.bodies))}.parametrizations.mass.original"
        return torch.func.functional_call(Wrapped(mech, step), {f"mech.{key}": start + change}, (delta, du))

    inputs = [torch.zeros(n).requires_grad_() for n in (12 * mech.num_bodies, mech.num_inputs)]
    change = torch.zeros(()).requires_grad_()
    # Differences have a step size of 1e-7: gaps bend over κ/γ, micrometers here, which leaves 1e-4 of derivatives up to 1e3.
    assert torch.autograd.gradcheck(function, (*inputs, change), eps=1e-7, atol=1e-4, rtol=1e-4, nondet_tol=1e-9)


class Wrapped(torch.nn.Module):
    """A function that steps a mechanism, for `functional_call`."""

    def __init__(self, mech: td.Mechanism, function: object) -> None:
        super().__init__()
        self.mech, self.function = mech, function

    def forward(self, *arguments: Tensor) -> Tensor:
        return self.function(*arguments)
