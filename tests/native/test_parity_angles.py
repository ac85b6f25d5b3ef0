"""The compiled kernel against the reference, as in test_parity.py: angles from π to 2π, limits there, and limits of velocities."""

from __future__ import annotations

import math

import pytest
import torch
from mechanisms import close_to_limits, random_body, random_joint
from parity import check, exact

import torchdojo as td
from torchdojo.elements import joints as joint_types

ONE_ROTATION = [name for name, (_, rotations) in joint_types.JOINT_TYPES.items() if rotations == 1]
ANGLES = (math.pi, -math.pi, math.pi - 1e-7, 3.3, -3.3, 4.7, -5.0, 5.97, -5.97)


@pytest.mark.sanitize
@pytest.mark.parametrize("kind", ONE_ROTATION)
def test_angles_beyond_pi(kind: str) -> None:
    """Springs, dampers, inputs, friction, armature and limits, some of which press, of a joint to the world and of one between bodies."""
    torch.manual_seed(0)
    translations, count = joint_types.JOINT_TYPES[kind][0], len(ANGLES)
    bound = torch.tensor([0.3] * translations + [6.0])
    given = dict(limits=(-bound, bound), friction=0.2, armature=0.1)
    joints = {
        "first": random_joint(kind, None, "a", True, True, True, **given),
        "second": random_joint(kind, "a", "b", True, True, True, **given),
    }
    mech = td.Mechanism({name: random_body() for name in "ab"}, joints, options=exact())
    n = translations + 1
    q, qd = 0.29 * (2 * torch.rand(count, 2 * n) - 1), 3 * torch.randn(count, 2 * n)
    q[:, n - 1], q[:, -1] = torch.tensor(ANGLES), torch.tensor(ANGLES).roll(4)
    qd[:, n - 1] = 5 * q[:, n - 1].sign()  # towards the limit, which is near for some
    out = check(mech, mech.to_maximal(q, qd), torch.randn(count, mech.num_inputs))
    assert float(out.impulses[:, mech.impulse_layout["limits.first"]].max()) > 1e-3


@pytest.mark.sanitize
@pytest.mark.parametrize("kind", ["Revolute", "Planar", "Orbital", "CylindricalFree"])
def test_velocity_limits(kind: str) -> None:
    """A joint to the world and one between bodies, with limits, damper and friction beside; rates that are reached, and others."""
    torch.manual_seed(0)
    n = sum(joint_types.JOINT_TYPES[kind])
    given = dict(velocity_limits=1.0 + torch.rand(n), limits=(-1.0, 1.0), friction=0.2)
    joints = {"first": random_joint(kind, None, "a", True, True, True, **given), "second": random_joint(kind, "a", "b", **given)}
    mech = td.Mechanism({name: random_body() for name in "ab"}, joints, options=exact())
    q, qd = 0.3 * torch.randn(5, 2 * n), 3 * torch.randn(5, 2 * n)
    out = check(mech, mech.to_maximal(q, qd), torch.randn(5, mech.num_inputs))
    pressing = out.impulses[:, mech.impulse_layout["velocity_limits.second"]]
    assert float(pressing.min()) < 1e-5 and float(pressing.max()) > 1e-1


@pytest.mark.slow
@pytest.mark.sanitize
@pytest.mark.parametrize("count", [1, 5])
def test_velocity_limits_of_every_joint(count: int) -> None:
    torch.manual_seed(0)
    mech, z, u = close_to_limits(count, velocity_limits=1.5, friction=0.2, armature=0.1)
    mech.options = exact()
    out = check(mech, z, u)
    pressing = [out.impulses[:, place].max() for name, place in mech.impulse_layout.items() if name.startswith("velocity_limits.")]
    assert len(pressing) == 30 and float(min(pressing)) > 1e-9 and float(max(pressing)) > 1e-1
