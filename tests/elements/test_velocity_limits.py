"""Limits on the rates of joint coordinates: every joint type, gradients, momentum, files and bad values."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import torchdojo as td
from torchdojo.elements import joints as joint_types

JOINTS = [name for name in joint_types.JOINT_TYPES if name != "Fixed"]
COORDINATES = {name: sum(joint_types.JOINT_TYPES[name]) for name in JOINTS}
SPEED = 2.0


def rod() -> td.Body:
    return td.Body(mass=1.2, inertia=(0.10, 0.13, 0.17))


def held(kind: str, **options: Any) -> td.Mechanism:
    joint = getattr(td, kind)(None, "a", axis=(0.3, 1.0, -0.2), parent_anchor=(0.1, 0.2, 0.3), child_anchor=(0.2, -0.1, 0.3), **options)
    return td.Mechanism({"a": rod()}, {"joint": joint}, timestep=0.01, gravity=(0, 0, 0))


def pair(kind: str, **options: Any) -> td.Mechanism:
    joint = getattr(td, kind)("a", "b", axis=(0.3, 1.0, -0.2), parent_anchor=(0.1, 0.2, 0.3), child_anchor=(0.2, -0.1, 0.3), **options)
    joints = {"base": td.Floating(None, "a", actuated=False), "joint": joint}
    return td.Mechanism({"a": rod(), "b": rod()}, joints, timestep=0.01, gravity=(0, 0, 0))


def worst(difference: Tensor) -> float:
    return float(difference.detach().abs().max())


@pytest.mark.parametrize("kind", JOINTS)
def test_no_input_drives_a_coordinate_beyond_its_speed(kind: str) -> None:
    """Each coordinate by itself, both ways: it comes to the speed and stays there. The step's own rates are meant, in the parent's axes."""
    n = COORDINATES[kind]
    mech = held(kind, velocity_limits=SPEED)
    u = 60 * torch.cat((torch.eye(n), -torch.eye(n)))
    with torch.no_grad():
        path = mech.rollout(mech.to_maximal(torch.zeros(2 * n, n)), u[:, None].expand(-1, 15, -1))
    assert not path.status.any()
    joint = mech.joints["joint"]
    rates = []
    for k in range(15):
        before, after = (mech.element_poses(path.z[:, k + i], joint) for i in (0, 1))
        rates.append(joint.rate(before, after, mech.timestep))
    rate = torch.stack(rates, dim=1).detach()
    assert float(rate.abs().max()) < SPEED
    own = torch.cat((rate[:n].diagonal(dim1=0, dim2=2), -rate[n:].diagonal(dim1=0, dim2=2)), dim=-1)  # (steps, 2 n)
    assert worst(own[-1] - SPEED) < 1e-3


def test_nothing_changes_below_the_speed() -> None:
    """A motor on its limit gives what keeps the speed. Below it, only κ/v of impulse is left."""
    plain, fast = held("Revolute"), held("Revolute", velocity_limits=50.0)
    z = plain.to_maximal(torch.tensor([0.3]), torch.tensor([1.0]))
    with torch.no_grad():
        assert worst(plain.step(z, torch.tensor([1.0])).z - fast.step(z, torch.tensor([1.0])).z) < 1e-8


def test_some_coordinates_and_some_environments() -> None:
    mech = held("PlanarAxis", velocity_limits=torch.tensor([[math.inf, 1.0, math.inf], [math.inf, 2.0, math.inf]]))
    layout = mech.impulse_layout["velocity_limits.joint"]
    assert layout.stop - layout.start == 2 and mech.joints["joint"].velocity_limited == (1,)
    with torch.no_grad():
        z = mech.rollout(mech.initial_state((2,)), torch.full((2, 20, 3), 50.0)).z[:, -1]
    rate = mech.to_minimal(z)[1]
    assert worst(rate[:, 1] - torch.tensor([1.0, 2.0])) < 1e-3 and float(rate[:, 0].min()) > 3.0
    assert "velocity_limits.joint" not in held("PlanarAxis", velocity_limits=math.inf).impulse_layout


@pytest.mark.parametrize("kind", ["Revolute", "Spherical", "PlanarAxis", "Floating"])
def test_internal_impulses_keep_the_momentum(kind: str) -> None:
    mech = pair(kind, velocity_limits=SPEED)
    mech.options = td.SolverOptions(residual_tol=1e-12)
    n = mech.num_coordinates
    with torch.no_grad():
        path = mech.rollout(mech.to_maximal(torch.zeros(n), 3 * torch.randn(n)), 20 * torch.randn(20, n - 6))
    assert not path.status.any()
    assert float(path.impulses[:, mech.impulse_layout["velocity_limits.joint"]].max()) > 1e-2
    momentum = mech.momentum(path.z)
    assert worst(momentum - momentum[:1]) < 1e-10


@pytest.mark.parametrize("kind", ["Revolute", "Prismatic", "Orbital", "Spherical", "PlanarAxis", "Floating"])
@pytest.mark.parametrize("phase", ["pressed", "apart"])
def test_gradients(kind: str, phase: str) -> None:
    n = COORDINATES[kind]
    speed = (1.0 if phase == "pressed" else 4.0) * (1 + 0.01 * torch.rand(n))
    mech = pair(kind, velocity_limits=speed, friction=0.2, armature=0.1, damper=0.1)
    mech.options = td.SolverOptions(kappa=1e-4)
    q, qd = torch.cat((0.2 * torch.randn(6), torch.full((n,), 0.3))), torch.cat((torch.randn(6), torch.full((n,), -2.0)))
    z, u = mech.to_maximal(q, qd), 0.1 * torch.randn(mech.num_inputs)
    with torch.no_grad():
        pressing = mech.step(z, u).impulses[mech.impulse_layout["velocity_limits.joint"]]
    assert bool((pressing > 1e-2).any()) == (phase == "pressed")
    names = [f"joints.joint.{name}" for name in ("velocity_limits", "axis", "orientation_offset", "child_anchor")]
    report = td.testing.check_gradients(mech, z, u, parameters=[*names, "timestep"], directions=2, tolerance=1e-6)
    assert set(names) <= {label.partition(" ")[0] for label in report.errors}


def test_the_speed_that_a_driven_joint_reaches_is_learned() -> None:
    speed = torch.tensor([3.0], requires_grad=True)
    mech = held("Revolute", velocity_limits=speed)
    mech.options = td.SolverOptions(kappa=1e-8, residual_tol=1e-11)
    path = mech.rollout(mech.initial_state(), torch.full((30, 1), 20.0))
    (gradient,) = torch.autograd.grad(mech.to_minimal(path.z[-1])[1], speed)
    assert float(gradient) == pytest.approx(1.0, abs=1e-4)
    report = td.testing.gradient_report(mech, path.z[-1].detach(), torch.full((1,), 20.0))
    assert report.active.velocities == {"joint": ["upper 0"]} and "limits of speed: joint (upper 0)" in str(report)


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, -math.inf, (1.0, 2.0)])
def test_bad_values(value: Any) -> None:
    expected = r"Revolute\.velocity_limits: got .*; allowed: (speeds above 0, infinite for none|\(\.\.\., 1\), one per free coordinate)"
    with pytest.raises(ValueError, match=expected):
        held("Revolute", velocity_limits=value)


def test_limits_of_speed_change_in_value_only() -> None:
    joint = held("Cylindrical", velocity_limits=(1.0, math.inf)).joints["joint"]
    joint.velocity_limits = (2.0, math.inf)
    assert joint.velocity_limits.tolist() == [2.0, math.inf]
    for value in ((2.0, 3.0), (math.inf, math.inf)):
        with pytest.raises(ValueError, match=r"got finite numbers for the coordinates \((0, 1)?\); allowed: .*, \(0,\) here"):
            joint.velocity_limits = value
    with pytest.raises(ValueError, match=r"velocity_limits: got 1\.0 for a joint built without velocity_limits"):
        held("Revolute").joints["joint"].velocity_limits = 1.0
    held("Revolute").joints["joint"].velocity_limits = math.inf  # no effect
