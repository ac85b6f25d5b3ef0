"""Implicit springs, and servos of joints: stability, energy, ranges, gradients, bad input."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import torchdojo as td
from torchdojo.elements.joints import JOINT_TYPES

FREE = [name for name, free in JOINT_TYPES.items() if sum(free)]


def joint(kind: str = "Revolute", inertia: float = 1e-4, mass: float = 1e-2, h: float = 0.01, **given: Any) -> td.Mechanism:
    """A body on a joint of the world, without gravity."""
    bodies = {"body": td.Body(mass, (inertia, 1.2 * inertia, 1.4 * inertia))}
    joints = {"j": getattr(td, kind)(None, "body", axis=(0.0, 0.6, 0.8), child_anchor=(0.01, 0.02, 0.0), **given)}
    return td.Mechanism(bodies, joints, timestep=h, gravity=(0, 0, 0))


def gaps(mech: td.Mechanism, q: Tensor, rest: Any = 0.0, steps: int = 60) -> Tensor:
    """Distance to the rest position, (steps + 1,), of a path in which no step fails."""
    path = mech.rollout(mech.to_maximal(q), steps=steps)
    assert not path.status.any()
    return (mech.to_minimal(path.z)[0] - rest).abs().amax(-1)


@pytest.mark.parametrize("kind", FREE)
@pytest.mark.parametrize(("stiffness", "h"), [(1e6, 0.05), (100.0, 0.01), (5.0, 0.05)])
def test_stiff_springs_decay(kind: str, stiffness: float, h: float) -> None:
    q = torch.randn(sum(JOINT_TYPES[kind]))
    size = gaps(joint(kind, h=h, spring=stiffness, implicit=True), 0.9 * q / q.norm())
    assert size.max() <= size[0] + 1e-9
    assert size[-1] < 1e-3 * size[0]


@pytest.mark.parametrize("gap", [1.0, 1.6, 2.5, 3.1])
@pytest.mark.parametrize("stiffness", [1e6, 100.0, 0.1])
def test_springs_close_wide_gaps_in_steps_of_a_radian(gap: float, stiffness: float) -> None:
    """A body cannot turn by 90 degrees in a step, and a stiff spring would."""
    size = gaps(joint(spring=stiffness, implicit=True), torch.tensor([gap]), steps=200)
    assert (size[:-1] - size[1:]).max() <= 1.0 + 1e-6
    assert size[-1] < 1e-2 * gap


@pytest.mark.parametrize("kind", ["Orbital", "Spherical", "Floating"])
@pytest.mark.parametrize("distance", [1.0, 2.0, 2.6])
def test_several_rotations_far_from_zero(kind: str, distance: float) -> None:
    """There rotation vectors change by much less than the body turns, and the damper h k alone is unstable."""
    rest = torch.randn(sum(JOINT_TYPES[kind]))
    rest = distance * rest / rest.norm()
    size = gaps(joint(kind, h=0.05, spring=1e6, rest=rest, implicit=True), rest + 0.2 * torch.randn(len(rest)), rest, steps=200)
    assert size[-1] < 0.01 * size[0]


def test_explicit_springs_explode() -> None:
    mech = joint(spring=100.0)
    path = mech.rollout(mech.to_maximal(torch.tensor([0.1])), steps=20)
    assert path.status.any() or mech.kinetic_energy(path.z).max() > 10 * 0.5 * 100 * 0.1**2


def test_energy_of_an_implicit_spring() -> None:
    """A step of backward Euler loses ½ m (v⁺ − v)² + ½ k (c⁺ − c)²; an explicit spring keeps its mean energy."""
    ends = {}
    for implicit in (True, False):
        mech = joint("Prismatic", mass=2.0, h=0.02, spring=50.0, implicit=implicit)
        mech.options = td.SolverOptions(residual_tol=1e-13)
        z = mech.rollout(mech.to_maximal(torch.tensor([0.3]), torch.tensor([0.5])), steps=400).z
        (c, v), energy = mech.to_minimal(z), mech.kinetic_energy(z) + mech.potential_energy(z)
        ends[implicit] = float(energy[-63:].mean() / energy[:63].mean())
        if implicit:
            lost = (2.0 * v.diff(dim=0).squeeze(-1) ** 2 + 50.0 * c.diff(dim=0).squeeze(-1) ** 2) / 2
            torch.testing.assert_close(-energy.diff(), lost, rtol=1e-8, atol=1e-12)
    assert ends[True] < 0.05
    assert ends[False] == pytest.approx(1.0, abs=0.02)


def test_a_range_clips_and_does_not_brake() -> None:
    """Far from the target the torque is the range's bound, whatever kp and the rate; near the target the servo is that without a range."""
    inertia, bound = 0.1, 5.0
    servo = dict(servo_stiffness=300.0, servo_damping=4.0, inertia=inertia, h=0.02)
    mech, free = joint(**servo, servo_range=(-bound, 8.0)), joint(**servo)
    mech.options = td.SolverOptions(kappa=1e-9)
    for target, wanted in ((-3.0, -bound), (3.0, 8.0)):
        z = mech.to_maximal(torch.tensor([0.0]), torch.tensor([math.copysign(3.0, target)]))
        moved = mech.step(z, 300.0 * torch.tensor([target])).z
        plain = joint(inertia=inertia, h=0.02)
        same = plain.step(z, torch.tensor([wanted])).z
        torch.testing.assert_close(moved, same, rtol=1e-4, atol=1e-4)
    z = mech.to_maximal(torch.tensor([0.01]), torch.tensor([0.02]))
    torch.testing.assert_close(mech.step(z, torch.tensor([0.6])).z, free.step(z, torch.tensor([0.6])).z, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("bound", [None, 33.5])
def test_a_quadruped_stands_on_stiff_servos(bound: float | None) -> None:
    """kp = 100, kd = 2 at h = 0.02 for 5 s, from 3 cm above its stance."""
    mech = td.models.quadruped()
    mech.timestep = 0.02
    given = {} if bound is None else {"forcerange": (-bound, bound)}
    td.actuate(mech, {name: td.Actuator.position(name, kp=100.0, kv=2.0, **given) for name in mech.input_layout})
    z = td.models.initial_state("quadruped", mech)
    targets = mech.actuators.measure(z)[0]
    path = mech.rollout(z, lambda z: mech.actuators(targets, z), steps=250)
    assert not path.status.any()
    energy = mech.kinetic_energy(path.z)
    assert energy.max() < 1.5 and energy[-50:].max() < 1e-6
    assert path.z[:, 2].min() > 0.3
    assert (mech.actuators.measure(path.z[-1])[0] - targets).abs().max() < 0.06


GRADIENTS: dict[str, dict[str, Any]] = {
    "spring": dict(spring=40.0, rest=0.3, implicit=True),
    "spring, wide gap": dict(spring=3.0, rest=2.5, implicit=True),
    "servo": dict(servo_stiffness=30.0, servo_damping=0.5),
    "range": dict(servo_stiffness=30.0, servo_damping=0.5, servo_range=(-8.0, 9.0)),
    "clipped": dict(servo_stiffness=30.0, servo_damping=0.5, servo_range=(-2.0, 3.0)),
    "all": dict(spring=5.0, implicit=True, servo_stiffness=3.0, servo_damping=0.5, servo_range=(-5.0, 3.0), friction=0.1, limits=(-1, 1)),
}


@pytest.mark.parametrize("kind", ["Cylindrical", "Spherical"])
@pytest.mark.parametrize("case", GRADIENTS)
def test_gradients(kind: str, case: str) -> None:
    """By state, input, k, rest, kp, kd, ranges, timestep; the input is beyond kp · 1 rad, or within."""
    n = sum(JOINT_TYPES[kind])
    mech = joint(kind, inertia=0.02, mass=1.0, h=0.02, damper=0.1, **GRADIENTS[case])
    mech.options = td.SolverOptions(kappa=1e-4, residual_tol=1e-12)
    z = mech.to_maximal(0.3 * torch.randn(n), torch.randn(n))
    for size in (1.0, 8.0):
        report = td.testing.check_gradients(mech, z, size * torch.randn(n), parameters=["joints.j", "timestep"], directions=6)
        assert report.max_relative_error < 1e-6


def test_gradients_through_actuators() -> None:
    """By targets, kp, kv and the range of a servo, over a rollout whose forces are clipped at first."""

    def final(target: Tensor, kp: Tensor, kv: Tensor, bound: Tensor) -> Tensor:
        mech = joint(inertia=0.02, mass=1.0, h=0.02)
        mech.options = td.SolverOptions(kappa=1e-4, residual_tol=1e-12)
        td.actuate(mech, {"s": td.Actuator.position("j", kp=kp, kv=kv, gear=-2.0, forcerange=(-bound, bound))})
        path = mech.rollout(mech.to_maximal(torch.tensor([0.1])), lambda z: mech.actuators(target, z), steps=6)
        return torch.cat(mech.to_minimal(path.z[-1]))

    values = [torch.tensor([-0.9]), torch.tensor(20.0), torch.tensor(0.4), torch.tensor(1.0)]
    assert torch.autograd.gradcheck(final, [value.requires_grad_() for value in values], atol=1e-6, rtol=1e-5)


def test_several_actuators_on_a_coordinate() -> None:
    """Their sum has the range of the joint; ranges of their own stay with the actuators, whose position part then is explicit."""
    pair = {"p": td.Actuator.position("j", kp=20.0, kv=1.0, gear=2.0), "m": td.Actuator.motor("j")}
    mech = joint()
    td.actuate(mech, pair, inputrange=[[-3.0, 4.0]])
    one = mech.joints["j"]
    assert (one.driven, float(one.servo_stiffness), float(one.servo_lower), float(one.servo_upper)) == ((0,), 80.0, -3.0, 4.0)
    assert not torch.isfinite(mech.actuators.inputrange).any()
    mech = joint()
    td.actuate(mech, pair | {"m": td.Actuator.motor("j", forcerange=(-1, 1))}, inputrange=[[-3.0, 4.0]])
    one = mech.joints["j"]
    assert (one.driven, float(one.servo_stiffness), float(one.servo_damping)) == ((), 0.0, 4.0)
    assert mech.actuators.inputrange.tolist() == [[-3.0, 4.0]]


def test_servos_change_later() -> None:
    mech = joint(servo_stiffness=10.0, servo_damping=1.0, servo_range=(-1.0, 2.0))
    one = mech.joints["j"]
    one.servo_upper, one.servo_stiffness = 5.0, 20.0
    z = mech.to_maximal(torch.tensor([0.2]))
    same = joint(servo_stiffness=20.0, servo_damping=1.0, servo_range=(-1.0, 5.0))
    assert torch.equal(mech.step(z, torch.tensor([4.0])).z, same.step(z, torch.tensor([4.0])).z)
    with pytest.raises(ValueError, match=r"Revolute.servo_range: got \[\[-1.0, inf\]\]; allowed: finite numbers on both sides"):
        one.servo_upper = math.inf
    with pytest.raises(ValueError, match=r"Revolute.servo_stiffness: the joint has a servo already"):
        one.add_servo(1.0)
    with pytest.raises(ValueError, match=r"got 1.0 for a joint built without servo_range; build it with servo_range="):
        joint(servo_stiffness=1.0).joints["j"].servo_lower = 1.0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (dict(servo_stiffness=-1.0), r"Revolute.servo_stiffness: got \[-1.0\]; allowed: values >= 0"),
        (dict(servo_damping=math.nan), r"Revolute.servo_damping: got \[?nan\]?; allowed: finite"),
        (dict(servo_stiffness=1.0, servo_range=3.0), r"Revolute.servo_range: got 3.0; allowed: a pair"),
        (dict(servo_stiffness=1.0, servo_range=(2.0, 1.0)), r"Revolute.servo_range: got \[2.0\]; allowed: lower numbers below"),
        (dict(servo_stiffness=1.0, servo_range=(-math.inf, 1.0)), r"Revolute.servo_range: got .*; allowed: finite numbers on both sides"),
        (dict(servo_stiffness=(1.0, 2.0)), r"Revolute.servo_stiffness: got shape \(2,\); allowed: \(..., 1\)"),
    ],
)
def test_bad_input(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        joint(**given)
