"""Implicit springs and servos: the kernel against the reference."""

from __future__ import annotations

from typing import Any

import pytest
from mechanisms import all_joints, close_to_limits
from parity import check, exact

from torchdojo.native import loader

pytestmark = [pytest.mark.skipif(not loader.available(), reason="no compiler for the native kernel"), pytest.mark.sanitize]

SERVO: dict[str, Any] = dict(servo_stiffness=10.0, servo_damping=0.5)


CASES = {
    "spring and servo": (SERVO | dict(implicit=True), 1.0),
    "servo with a range": (SERVO | dict(servo_range=(-15.0, 25.0)), 20.0),
}
SLOW = {
    "spring": (dict(implicit=True), 1.0),
    "servo, gaps beyond a radian": (SERVO, 20.0),
    "all": (SERVO | dict(servo_range=(-15.0, 25.0), friction=0.5, armature=0.1, implicit=True), 20.0),
}


@pytest.mark.parametrize("case", [*CASES, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_every_joint(case: str) -> None:
    given, size = (CASES | SLOW)[case]
    mech, z, u = all_joints(True, True, True, 1, **given)
    mech.options = exact(1e-4)
    check(mech, z, size * u)


@pytest.mark.slow
def test_ranges_beside_limits() -> None:
    mech, z, u = close_to_limits(1, **SERVO, servo_range=(-1.0, 2.0))
    mech.options = exact(1e-4)
    check(mech, z, 5 * u)
