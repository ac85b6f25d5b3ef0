"""Control periods: several steps under one input or one control, warm starts and solutions of rollouts."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import Tensor

import torchdojo as td
from hopper import EXACT, hopper, loss, on, require_grad, same, states
from torchdojo.native import loader
from torchdojo.testing.differences import central, converged

pytestmark = pytest.mark.skipif(not loader.available(), reason="no compiler for the native kernel")

REPEAT = 3


def driven(**options: Any) -> td.Mechanism:
    """The hopper with a position servo and a motor on its hip."""
    mechanism = hopper(dataclasses.replace(EXACT, **options))
    servo = td.Actuator.position("hip", kp=4.0, kv=0.2, gear=0.8, ctrlrange=(-1.0, 1.0), forcerange=(-9.0, 9.0), length0=0.1)
    td.actuate(mechanism, {"servo": servo, "motor": td.Actuator.motor("hip", gear=0.5)})
    return mechanism


def gathered(path: td.Trajectory, repeat: int) -> list[Tensor]:
    """Reports of periods on single steps: z, impulses, status, iterations, substeps, solutions."""
    pieces = path.impulses.unflatten(-2, (-1, repeat)).unbind(-2)
    impulses = pieces[0]
    for piece in pieces[1:]:
        impulses = impulses + piece
    status, iterations, substeps = (t.unflatten(-1, (-1, repeat)) for t in (path.status, path.iterations, path.substeps))
    return [
        path.z[..., ::repeat, :],
        impulses,
        status.amax(-1),
        iterations.sum(-1),
        substeps.sum(-1),
        path.solution[..., repeat - 1 :: repeat, :],
    ]


def reported(path: td.Trajectory) -> list[Tensor]:
    return [path.z, path.impulses, path.status, path.iterations, path.substeps, path.solution]


@pytest.mark.sanitize
@pytest.mark.parametrize("grad", [False, True])
def test_a_period_equals_its_steps_to_the_bit(grad: bool) -> None:
    mechanism = on(hopper(), "native")
    z, u = states(mechanism, 9).detach(), torch.randn(9, 4, 1)
    z[1] = torch.nan
    z[2, 10:13] = 150.0  # flagged from the start, and split at first
    z[3, 10:13] = torch.tensor([0.0, 120.0, 60.0])
    steps = mechanism.rollout(z, u.repeat_interleave(REPEAT, dim=-2), keep_solutions=True)
    assert steps.status.amax(-1).unique().tolist() == [0, 2] and int(steps.substeps.max()) > 1
    path = mechanism.rollout(z.requires_grad_(grad), u, repeat=REPEAT, keep_solutions=True)
    for actual, expected in zip(reported(path), gathered(steps, REPEAT), strict=True):
        assert torch.equal(actual.nan_to_num(), expected.nan_to_num())
    last = mechanism.rollout(z, u, repeat=REPEAT)
    assert last.solution.shape == (9, 1, mechanism.layout.num_unknowns) and torch.equal(last.solution, path.solution[:, -1:])
    warm = None
    for t in range(4):
        out = mechanism.step(z, u[:, t], repeat=REPEAT, warm_start=warm)
        z, warm = out.z, out.solution
        assert torch.equal(z.nan_to_num(), path.z[:, t + 1].nan_to_num()) and torch.equal(out.impulses, path.impulses[:, t])


@pytest.mark.sanitize
def test_gradients_equal_those_of_the_steps() -> None:
    mechanism = on(hopper(), "native")
    z, u = states(mechanism, 5).detach().requires_grad_(), torch.randn(5, 4, 1).requires_grad_()
    inputs = [z, u, *require_grad(mechanism)]
    steps = gathered(mechanism.rollout(z, u.repeat_interleave(REPEAT, dim=-2), keep_solutions=True), REPEAT)
    path = mechanism.rollout(z, u, repeat=REPEAT)
    pairs = [torch.autograd.grad(loss(v[0], v[1]), inputs, allow_unused=True, materialize_grads=True) for v in (reported(path), steps)]
    for actual, expected in zip(*pairs, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-10)


@pytest.mark.parametrize("control", [False, True])
def test_backends_agree(control: bool) -> None:
    mechanism = driven()
    z, held = states(mechanism, 4).detach().requires_grad_(), torch.randn(4, 2, 2 if control else 1).requires_grad_()
    inputs, results = [z, held, *require_grad(mechanism)], []
    for backend in ("native", "reference"):
        path = on(mechanism, backend).rollout(z, **{"ctrl" if control else "u": held}, repeat=2)
        assert not path.status.any()
        gradients = torch.autograd.grad(loss(path.z, path.impulses), inputs, allow_unused=True, materialize_grads=True)
        results.append(([path.z, path.impulses], gradients))
    same(results[0][0], results[1][0])
    for actual, expected in zip(results[0][1], results[1][1], strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-8, atol=1e-8)  # each step amplifies what differs in the one before
    assert all(float(g.abs().max()) > 0 for g in results[0][1][:2])


@pytest.mark.parametrize("gains", [False, True], ids=["kernel", "gains"])
def test_gradients_of_a_driven_period_against_differences(gains: bool) -> None:
    """With the law in the kernel, and with the law outside, which gradients of gains need."""
    mechanism = driven(backend="native")
    z, ctrl = states(mechanism).detach(), torch.tensor([[0.4, -0.3], [0.9, 0.2]])
    law = mechanism.actuators
    given = {"z": torch.zeros(12 * mechanism.num_bodies), "ctrl": ctrl}
    if gains:
        given |= {"gain": law.gain.detach(), "bias": law.bias.detach()}
    sizes = [value.numel() for value in given.values()]
    weights = torch.cos(torch.arange(200.0, dtype=torch.float64) ** 2)

    def value(displacement: Tensor) -> Tensor:
        parts = dict(zip(given, displacement.split(sizes, -1), strict=True))
        moved = {name: given[name] + part.reshape(*part.shape[:-1], *given[name].shape) for name, part in parts.items()}
        if gains:
            law.gain, law.bias = moved["gain"], moved["bias"]
        path = mechanism.rollout(mechanism.retract(z, moved["z"]), ctrl=moved["ctrl"], repeat=REPEAT)
        outputs = torch.cat((path.z.flatten(-2), path.impulses.flatten(-2)), -1)
        return (outputs * weights[: outputs.shape[-1]]).sum(-1)

    with converged(mechanism):
        zero = torch.zeros(sum(sizes)).requires_grad_()
        (analytic,) = torch.autograd.grad(value(zero), zero)
        with torch.no_grad():
            numeric = central(lambda d: {"value": value(d)}, torch.eye(sum(sizes)))["value"]
    for actual, expected in zip(analytic.split(sizes), numeric.split(sizes), strict=True):
        assert float((actual - expected).abs().max() / expected.abs().max()) < 1e-6


@pytest.mark.parametrize("control", [False, True])
def test_transforms(control: bool) -> None:
    mechanism = driven(backend="native")
    z, held = states(mechanism, 3).detach(), torch.randn(3, 2, 2 if control else 1)

    def run(z: Tensor, held: Tensor) -> Tensor:
        path = mechanism.rollout(z, **{"ctrl" if control else "u": held}, repeat=REPEAT)
        return torch.cat((path.z[..., -1, :], path.impulses.sum(-2)), -1)

    value = run(z, held)
    same(torch.vmap(run)(z, held), value)
    if not control:
        torch._dynamo.reset()
        same(torch.compile(run, fullgraph=True, backend="aot_eager")(z, held), value)
    for argnum in (0, 1):
        backward, forward = (transform(run, argnum)(z[0], held[0]) for transform in (torch.func.jacrev, torch.func.jacfwd))
        torch.testing.assert_close(backward, forward, rtol=1e-8, atol=1e-8)


def test_checkpoints_and_adaptive_steps() -> None:
    mechanism = driven(backend="native")
    z, ctrl = states(mechanism, 2).detach().requires_grad_(), torch.randn(2, 5, 2).requires_grad_()
    pairs = []
    for options in ({}, {"checkpoint": 2}, {"checkpoint": True, "keep_solutions": True}):
        path = mechanism.rollout(z, ctrl=ctrl, repeat=REPEAT, **options)
        pairs.append([*reported(path)[:5], path.solution[..., -1:, :], *torch.autograd.grad(loss(path.z, path.impulses), (z, ctrl))])
    assert path.solution.shape[-2] == 5
    for other in pairs[1:]:
        assert all(torch.equal(a, b) for a, b in zip(pairs[0][:6], other[:6], strict=True))
        same(pairs[0][6:], other[6:])  # sums over segments have another order
    z = mechanism.retract(z.detach(), torch.tensor([0.0, 0, 0.05] + [0.0] * 9 + [0.0, 0, 0.05] + [0.0] * 9))
    careful = td.AdaptiveOptions(position_tol=1e-5)
    path = mechanism.rollout(z, steps=2, repeat=REPEAT, adaptive=careful)
    steps = mechanism.rollout(z, steps=2 * REPEAT, adaptive=careful, keep_solutions=True)
    assert int(path.substeps.max()) > REPEAT
    for actual, expected in zip(reported(path)[:5], gathered(steps, REPEAT)[:5], strict=True):
        assert torch.equal(actual, expected)


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_a_rollout_goes_on_from_its_last_solution(backend: str) -> None:
    mechanism = on(hopper(), backend)
    z, u = states(mechanism, 2).detach(), torch.randn(2, 4, 1)
    whole = mechanism.rollout(z, u, keep_solutions=True)
    first = mechanism.rollout(z, u[:, :2])
    second = mechanism.rollout(first.z[:, -1], u[:, 2:], warm_start=first.solution[:, -1], keep_solutions=True)
    for name in ("impulses", "iterations", "solution"):
        assert torch.equal(getattr(second, name), getattr(whole, name)[:, 2:]), name
    cold = mechanism.rollout(first.z[:, -1], u[:, 2:])
    assert int(cold.iterations.sum()) > int(second.iterations.sum())
    policy = mechanism.rollout(z, lambda z: torch.zeros(1), steps=2, keep_solutions=True)
    assert policy.solution.shape == (2, 2, mechanism.layout.num_unknowns)


def test_controls_out_of_range_are_clipped_and_counted() -> None:
    mechanism = driven(backend="native")
    z, law = states(mechanism, 2).detach(), mechanism.actuators
    inside = mechanism.step(z, ctrl=torch.tensor([1.0, 7.0]), repeat=2)
    assert law.clipped == 0
    outside = mechanism.step(z, ctrl=torch.tensor([[1.5, 7.0], [1.0, 7.0]]), repeat=2)
    assert torch.equal(inside.z, outside.z) and law.clipped == 1
    mechanism.rollout(z, ctrl=lambda z: torch.tensor([-2.0, 0.0]), steps=3, repeat=2)
    assert law.clipped == 4
    assert law.out_of_range(torch.tensor([-2.0, 0.0])).tolist() == [True, False]
    flagged = mechanism.step(z, ctrl=torch.tensor([[math.nan, 0.0], [0.0, 0.0]]), repeat=2)
    assert flagged.status.tolist() == [2, 0]


def test_the_law_acts_in_every_step() -> None:
    mechanism = driven(backend="native")
    z, ctrl = states(mechanism, 2).detach(), torch.tensor([0.5, 0.1])
    path = mechanism.rollout(z, ctrl=ctrl.expand(2, 2), repeat=2)
    steps = mechanism.rollout(z, lambda z: mechanism.actuators(ctrl, z), steps=4)
    torch.testing.assert_close(path.z, steps.z[:, ::2], rtol=0, atol=1e-12)
    assert torch.equal(path.u, ctrl.expand(2, 2, 2))
    q, qd = mechanism.to_minimal(z)
    same(mechanism.rollout_minimal(q, qd, ctrl=lambda q, qd: ctrl, steps=2, repeat=2).z[:, 1:], path.z[:, 1:])
    same(mechanism.step_minimal(q, qd, ctrl=ctrl, repeat=2).z, path.z[:, 1])


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"repeat": 0}, ValueError, "repeat: got 0; allowed: 1 or more"),
        ({"repeat": 2.0}, TypeError, "repeat: got 2.0; allowed: a whole number"),
        ({"repeat": True}, TypeError, "repeat: got True"),
        ({"u": torch.zeros(1), "ctrl": torch.zeros(2)}, ValueError, "u and ctrl: got both"),
        ({"ctrl": torch.zeros(3)}, ValueError, r"ctrl: got shape \(3,\)"),
        ({"ctrl": torch.zeros(2, dtype=torch.float64).tolist()}, TypeError, "ctrl: got list"),
    ],
)
def test_bad_input(arguments: dict[str, Any], error: type[Exception], text: str) -> None:
    mechanism = driven()
    z = states(mechanism).detach()
    with pytest.raises(error, match=text):
        mechanism.step(z, **arguments)
    if "repeat" in arguments:
        with pytest.raises(error, match=text):
            mechanism.rollout(z, steps=2, **arguments)
    with pytest.raises(ValueError, match="ctrl: got one for a mechanism without actuators"):
        hopper().step(z, ctrl=torch.zeros(2))
