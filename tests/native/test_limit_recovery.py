"""`SolverOptions.depenetration_speed`: joints that start outside their limits come back at a bounded speed."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from mechanisms import Sample, random_body, random_joint
from parity import check, exact, outputs, same_bits
from torch import Tensor

import torchdojo as td

KINDS = ["Revolute", "Prismatic", "Orbital", "Spherical", "PlanarAxis"]


def outside(count: int, **laws: float) -> Sample:
    """Chains of two joints with limits of ±0.3, the first ones with `laws`, and coordinates to ±0.6, of which half are outside."""
    torch.manual_seed(0)
    bodies, joints = {}, {}
    for kind in KINDS:
        a, b = f"{kind}_a", f"{kind}_b"
        bodies |= {a: random_body(), b: random_body()}
        joints[a] = random_joint(kind, None, a, True, True, limits=(-0.3, 0.3), **laws)
        joints[b] = random_joint(kind, a, b, True, True, limits=(-0.3, 0.3))
    mech = td.Mechanism(bodies, joints, timestep=0.02, gravity=(1.0, -2.0, -9.0), options=exact())
    n = mech.num_coordinates
    return Sample(mech, mech.to_maximal(1.2 * torch.rand(count, n) - 0.6, 0.5 * torch.randn(count, n)), torch.randn(count, mech.num_inputs))


def rod(kind: str = "Revolute", **given: Any) -> td.Mechanism:
    """One body on one joint, that nothing pulls; limits of ±0.3 unless given."""
    torch.manual_seed(0)
    body = td.Body(mass=1.2, inertia=(0.10, 0.13, 0.17))
    joint = random_joint(kind, None, "rod", **({"limits": (-0.3, 0.3)} | given))
    return td.Mechanism({"rod": body}, {"joint": joint}, timestep=0.01, gravity=(0, 0, 0), options=exact())


@pytest.mark.slow
@pytest.mark.sanitize
def test_kernel_and_reference_agree() -> None:
    """Half of the joints have largest speeds of 1.2, half of which is less than the option of 1."""
    mech, z, u = outside(2, velocity_limits=1.2, friction=0.1, armature=0.05)
    assert int((mech.to_minimal(z)[0].abs() > 0.32).sum()) > 10
    check(mech, z, u)


@pytest.mark.sanitize
@pytest.mark.parametrize("kind", ["Prismatic", "PlanarAxis", "Spherical"])
@pytest.mark.parametrize("backend", ["native", "reference"])
def test_no_bit_changes_where_no_limit_is_violated(kind: str, backend: str) -> None:
    """Steps from inside, and from less than speed times timestep outside, alone and beside one from far outside."""
    mech = rod(kind, velocity_limits=4.0, damper=0.1)
    n = mech.num_coordinates
    q = torch.tensor((0.29, -0.305, 0.5, 0.0))[:, None].expand(4, n)
    z, u = mech.to_maximal(q, torch.tensor((2.0, -1.0, 0.0, 1.0))[:, None].expand(4, n)), torch.randn(4, n)
    inside = torch.tensor((0, 1, 3))
    mech.options = exact(backend=backend, depenetration_speed=None)
    alone = outputs(mech, z[inside], u[inside])
    mech.options = exact(backend=backend, depenetration_speed=0.9)
    assert same_bits(alone, outputs(mech, z[inside], u[inside]))
    if backend == "native":
        assert same_bits(alone, outputs(mech, z, u, inside))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("own", "speed"), [(None, 0.7), (3.0, 0.7), (0.8, 0.4)], ids=["no largest speed", "fast", "slow"])
def test_the_speed_of_recovery(kind: str, own: float | None, speed: float) -> None:
    """Coordinates come back at the option, or at half of their largest speed. With the exact law they are thrown at violation / h."""
    mech = rod(kind, **({} if own is None else {"velocity_limits": own}))
    mech.options = td.SolverOptions(depenetration_speed=0.7, kappa=1e-10)
    n = mech.num_coordinates
    for side in (1.0, -1.0):
        start = torch.zeros(n)
        start[-1] = side * 0.4
        with torch.no_grad():
            path = mech.rollout(mech.to_maximal(start), steps=30)
        q = side * mech.to_minimal(path.z)[0][:, -1]
        assert not path.status.any() and bool((path.substeps == 1).all()) and int(path.iterations.max()) <= 12
        assert float(((q[:-1] - q[1:])[:8] - 0.01 * speed).abs().max()) < 2e-5  # kappa adds a bit to the speed
        assert float(q[-1]) <= 0.3
    if own is None:
        mech.options = td.SolverOptions(depenetration_speed=None)
        assert float(mech.to_minimal(mech(mech.to_maximal(start)))[0][-1].abs()) <= 0.3


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("own", [0.8, 3.0])
def test_gradients(kind: str, own: float) -> None:
    n = rod(kind).num_coordinates
    mech = rod(kind, velocity_limits=own * (1 + 0.1 * torch.rand(n)), limits=(-0.3 - 0.1 * torch.rand(n), 0.3 + 0.1 * torch.rand(n)))
    mech.options = td.SolverOptions(kappa=1e-4, depenetration_speed=0.7)
    z, u = mech.to_maximal(torch.full((n,), 0.55), 0.3 * torch.randn(n)), 0.1 * torch.randn(n)
    names = [f"joints.joint.{name}" for name in ("velocity_limits", "lower", "upper", "axis", "orientation_offset", "parent_anchor")]
    td.testing.check_gradients(mech, z, u, parameters=[*names, "timestep"], directions=2, tolerance=1e-6)
    # The speed of recovery decides, and the place of the limit does not.
    mech.options = td.SolverOptions(kappa=1e-8, depenetration_speed=0.7)
    joint = mech.joints["joint"]
    bounds = joint.velocity_limits.requires_grad_(), joint.upper.requires_grad_()
    by_speed, by_place = torch.autograd.grad(mech.to_minimal(mech(z, u))[1].sum(), bounds)
    assert float(by_place.abs().max()) == 0 and bool((by_speed.abs() > 1e-3).all()) == (own < 1.4)
    if n == 1:
        assert float(by_speed) == pytest.approx(-0.5 if own < 1.4 else 0.0, abs=0.01)


def test_a_robot_at_zero_comes_back_within_its_largest_speeds(shared_path: Any) -> None:
    """Joint 4 of the Panda is 0.07 rad outside. With the exact law, no step has a solution, and each takes thousands of iterations."""
    mech = td.load(shared_path("models", "franka_panda", "panda.urdf"), floating_base=False, contacts=None)
    for timestep in (0.02, 0.01, 0.001):
        mech.timestep = timestep
        with torch.no_grad():
            path = mech.rollout(mech.initial_state(), steps=20)
        q, rates = mech.to_minimal(path.z)
        assert not path.status.any() and bool((path.substeps == 1).all())
        assert int(path.iterations.max()) <= 12 and float(path.iterations.double().mean()) <= 5
        largest = torch.cat([joint.velocity_limits for joint in mech.joints.values() if joint.num_coordinates])
        assert bool((rates.abs() <= largest).all())
        assert float((q[:-1, 3] - q[1:, 3])[: math.floor(0.05 / timestep)].min()) > 0.99 * timestep


def test_a_joint_that_a_user_writes() -> None:
    """The reference has the law for every joint with coordinates and limits."""
    body = td.Body(mass=1.2, inertia=(0.10, 0.13, 0.17))

    class Slider(td.Joint):
        num_rows, num_coordinates, free_translations = 5, 1, 1

        def constraint(self, parent: Any, child: Any) -> Tensor:
            return torch.cat(((child.x - parent.x)[..., :2], child.q[..., 1:]), dim=-1)

        def coordinates(self, parent: Any, child: Any) -> Tensor:
            return (child.x - parent.x)[..., 2:]

        def displace(self, q: Tensor) -> Any:
            zero = torch.zeros_like(q)
            return td.elements.Pose(torch.cat((zero, zero, q), -1), torch.cat((zero + 1, zero, zero, zero), -1))

    mech = td.Mechanism({"rod": body}, {"joint": Slider(None, "rod", limits=(-0.1, 0.1))}, gravity=(0, 0, 0), options=exact())
    mech.options = dataclasses.replace(mech.options, backend="reference", kappa=1e-4, depenetration_speed=0.5)
    z = mech.to_maximal(torch.tensor([0.2]))
    assert float(mech(z)[5]) == pytest.approx(-0.5, abs=0.05)
    td.testing.check_gradients(mech, z, directions=1, tolerance=1e-6)
