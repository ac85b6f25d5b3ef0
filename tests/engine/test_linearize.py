"""`linearize` and `linearize_minimal` against the steps and Jacobians that they join, and against finite differences, in contact."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import torchdojo as td
from torchdojo.native import loader

native = pytest.mark.skipif(not loader.available(), reason="no compiler")
OPTIONS = td.SolverOptions(kappa=1e-4, residual_tol=1e-12, central_path_tol=1e-8, min_iterations=3)


def quadruped() -> tuple[td.Mechanism, Tensor, Tensor]:
    """Four states of a quadruped that comes down, on its feet in the end, and inputs."""
    mech = td.models.quadruped(timestep=0.02, contact_body=False)
    mech.options = OPTIONS
    path = mech.rollout(td.models.initial_state("quadruped", mech), steps=40)
    assert int((path.status != 0).sum()) == 0
    assert float(mech.distances(path.z[-1]).min()) < 1e-3  # feet touch
    torch.manual_seed(0)
    return mech, path.z[10::10], 2 * torch.randn(4, mech.num_inputs)


def arm(backend: str) -> tuple[td.Mechanism, Tensor, Tensor]:
    """A driven arm whose tip touches the floor, with two servos."""
    mech = td.Mechanism(
        {"upper": td.Body(1.0, (0.01, 0.01, 0.002)), "lower": td.Body(0.3, (0.002, 0.002, 0.0005))},
        {
            "hip": td.Revolute(None, "upper", axis=(0, 1, 0), child_anchor=(0, 0, 0.1), damper=0.1),
            "knee": td.Revolute("upper", "lower", axis=(0, 1, 0), parent_anchor=(0, 0, -0.1), child_anchor=(0, 0, 0.1)),
        },
        {"tip": td.NonlinearContact("lower", point=(0, 0, -0.1), radius=0.02, offset=-0.415, friction=0.5)},
        options=dataclasses.replace(OPTIONS, backend=backend),
    )
    servo = dict(gain=5.0, bias=(0.0, -5.0, -0.1))
    td.actuate(mech, {"hip": td.Actuator("hip", **servo), "knee": td.Actuator("knee", **servo, forcerange=(-2.0, 2.0))}, servos="explicit")
    z = mech.initial_state(hip=dict(q=0.1), knee=dict(q=0.2, qd=-1.0))
    return mech, torch.stack((z, mech.rollout(z, steps=20).z[-1])), torch.tensor([[0.3, -0.2], [0.1, 0.4]])


def differences(function: Callable[[Tensor], Tensor], size: int, step: float = 1e-4) -> Tensor:
    """Central differences of a function of a change (..., size), extrapolated once; columns by the change."""
    moves = torch.eye(size)

    def central(h: float) -> Tensor:
        return torch.stack([(function(h * row) - function(-h * row)) / (2 * h) for row in moves], dim=-1)

    return (4 * central(step / 2) - central(step)) / 3


def agree(value: Tensor, wanted: Tensor, tolerance: float) -> None:
    assert value.shape == wanted.shape
    assert float((value - wanted).abs().max()) < tolerance * max(1.0, float(wanted.abs().max()))


@native
def test_linearize_is_the_step_and_its_jacobians() -> None:
    mech, z, u = quadruped()
    lin, out, (A, B) = mech.linearize(z, u), mech.step(z, u), mech.jacobians(z, u)
    for name in out._fields:
        assert torch.equal(getattr(lin, name), getattr(out, name)), name
    assert torch.equal(lin.A, A) and torch.equal(lin.B, B) and lin.by == ()
    single, alone = mech.linearize(z[0], u[0]), mech.linearize_minimal(*mech.to_minimal(z[0]), u[0])
    assert single.status.shape == alone.status.shape == () and alone.q.shape == (mech.num_coordinates,)
    agree(single.A, A[0], 1e-9)
    q, qd = mech.to_minimal(z)
    small, after, (A, B) = mech.linearize_minimal(q, qd, u), mech.step_minimal(q, qd, u), mech.jacobians_minimal(q, qd, u)
    for name in after._fields:
        assert torch.equal(getattr(small, name), getattr(after, name)), name
    assert torch.equal(small.A, A) and torch.equal(small.B, B)
    again = torch.empty(4, *A.shape[-2:-1], A.shape[-1] + B.shape[-1])
    assert torch.equal(mech.linearize_minimal(q, qd, u, out=again).B, B) and torch.equal(again[..., : A.shape[-1]], A)


@native
def test_jacobians_along_a_trajectory_start_warm() -> None:
    mech, z, _ = quadruped()
    mech.options = td.SolverOptions(kappa=1e-4)
    path = mech.rollout(z[-1], torch.zeros(12, mech.num_inputs), keep_solutions=True)
    warm = mech.linearize(path.z[:-1], path.u, warm_start=path.solution)
    cold = mech.linearize(path.z[:-1], path.u)
    assert int(warm.iterations.sum()) == 0 < int(cold.iterations.min())
    agree(warm.z, path.z[1:], 1e-12)
    agree(warm.A, cold.A, 1e-6)


@native
def test_differences_of_periods_under_servos() -> None:
    mech, z, ctrl = arm("native")
    names = ["wrench", "bodies.lower.mass", "contacts.tip.friction", "joints.hip.damper"]
    wrench = torch.linspace(-0.1, 0.1, 12)
    lin = mech.linearize(z, ctrl=ctrl, repeat=2, wrt=names, wrench=wrench)
    after = mech.step(z, ctrl=ctrl, repeat=2, wrench=wrench).z
    assert int(lin.status.max()) == 0 and float(mech.distances(after).abs().min()) < 1e-2
    agree(lin.z, after, 1e-12)

    def moved(z: Tensor, ctrl: Tensor, wrench: Tensor) -> Tensor:
        return mech.difference(mech.step(z, ctrl=ctrl, repeat=2, wrench=wrench).z, after)

    agree(lin.A, differences(lambda d: moved(mech.retract(z, d.expand(2, -1)), ctrl, wrench), 24), 1e-6)
    agree(lin.B, differences(lambda d: moved(z, ctrl + d, wrench), 2), 1e-6)
    agree(lin.by[0], differences(lambda d: moved(z, ctrl, wrench + d), 12), 1e-6)
    for name, value in zip(names[1:], lin.by[1:], strict=True):
        number = mech.get_parameter(name)
        start = number.detach().clone()

        def changed(d: Tensor, number: Tensor = number, start: Tensor = start) -> Tensor:
            with torch.no_grad():
                number.copy_(start + d.reshape(start.shape))
            result = moved(z, ctrl, wrench)
            with torch.no_grad():
                number.copy_(start)
            return result

        agree(value, differences(changed, start.numel()), 1e-6)


@pytest.mark.slow  # the reference takes seconds
@native
def test_the_reference_agrees() -> None:
    (fast, z, ctrl), (slow, _, _) = arm("native"), arm("reference")
    names, u = ["wrench", "bodies.lower.mass"], torch.tensor((0.2, -0.1))
    q, qd = fast.to_minimal(z)
    for options in ({"ctrl": ctrl}, {"u": u, "wrt": names}):
        pair = [mech.linearize(z, **options) for mech in (fast, slow)]
        small = [mech.linearize_minimal(q, qd, **options) for mech in (fast, slow)]
        for a, b in (pair, small):
            for value, wanted in ((a.z, b.z), (a.A, b.A), (a.B, b.B), *zip(a.by, b.by, strict=True)):
                agree(value, wanted, 1e-8)


@native
@pytest.mark.parametrize("repeat", [1, 3])
def test_minimal_periods_and_parameters(repeat: int) -> None:
    """Servos whose gains depend on the state, one of which a force range clips in the second state."""
    mech, z, ctrl = arm("native")
    with torch.no_grad():
        mech.actuators.gain[0, 1:] = torch.tensor((0.7, -0.3))
        mech.actuators.gear[0] = 1.5
    ctrl[1, 1] = 3.0  # beyond 2 N·m
    q, qd = mech.to_minimal(z)
    lin = mech.linearize_minimal(q, qd, ctrl=ctrl, repeat=repeat, wrt=["bodies.lower.mass"])
    after = mech.step_minimal(q, qd, ctrl=ctrl, repeat=repeat)
    agree(lin.q, after.q, 1e-12)

    def moved(x: Tensor, ctrl: Tensor) -> Tensor:
        out = mech.step_minimal(*x.chunk(2, dim=-1), ctrl=ctrl, repeat=repeat)
        return mech.difference_minimal(out.q, out.qd, after.q, after.qd)

    x = torch.cat((q, qd), dim=-1)
    agree(lin.A, differences(lambda d: moved(x + d, ctrl), 4), 1e-6)
    agree(lin.B, differences(lambda d: moved(x, ctrl + d), 2), 1e-6)
    assert not bool(lin.B[1, :, 1].any()) and bool(lin.B[0, :, 1].any())
    assert torch.equal(mech.linearize_minimal(q, qd, ctrl=ctrl, repeat=repeat, out=torch.empty(2, 4, 6)).A, lin.A)
    single = mech.linearize_minimal(q, qd, ctrl=ctrl, wrt=["bodies.lower.mass", "wrench"])
    assert single.by[0].shape == (2, 4, 1) and single.by[1].shape == (2, 4, 12) and bool(single.by[1].any())


@native
def test_failed_and_wrong_input() -> None:
    mech, z, ctrl = arm("native")
    broken = z.clone()
    broken[0, 0] = math.nan
    lin = mech.linearize(broken, wrt=["wrench"])
    assert lin.status.tolist() == [2, 0] and not bool(lin.A[0].any() or lin.by[0][0].any()) and bool(lin.by[0][1].any())
    driven = mech.linearize(broken, ctrl=ctrl)
    assert driven.status.tolist() == [2, 0] and not bool(driven.B[0].any())
    with pytest.raises(ValueError, match=r"wrt: got 'lower\.mass'"):
        mech.linearize(z, wrt=["lower.mass"])
    with pytest.raises(ValueError, match="warm_start"):
        mech.linearize(z, warm_start=torch.zeros(3))
    single = mech.linearize(z.float())
    assert single.A.dtype == torch.float32 and single.solution.dtype == torch.float64
