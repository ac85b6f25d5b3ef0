"""Limits, friction and armature as fields of a joint: what is refused, with which words, and what may change."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import torchdojo as td
from torchdojo.elements.joint_cones import JointLimits


def set_field(name: str, value: Any, **options: Any) -> None:
    setattr(td.Revolute(None, "a", **options), name, value)


BAD = {
    "equal": (
        lambda: td.Revolute(None, "a", limits=(1.0, 1.0)),
        r"Revolute\.limits: got \[1\.0\]; allowed: lower limits below .*td\.Fixed",
    ),
    "nan": (lambda: td.Revolute(None, "a", limits=(math.nan, 1.0)), r"Revolute\.lower: got nan|Revolute\.lower: got \[nan\]"),
    "infinite lower": (lambda: td.Revolute(None, "a", limits=(math.inf, 1.0)), r"Revolute\.lower: got .*-inf for no limit"),
    "one bound": (lambda: td.Revolute(None, "a", limits=(1.0,)), r"Revolute\.limits: got \(1\.0,\); allowed: a pair"),
    "count": (lambda: td.Orbital(None, "a", limits=((0.0,), (1.0,))), r"Orbital\.lower: got shape \(1,\); allowed: \(\.\.\., 2\)"),
    "beyond pi": (lambda: td.Spherical(None, "a", limits=(3.5, 4.0)), r"Spherical\.limits: .*rotation vector"),
    "some environments": (
        lambda: td.Revolute(None, "a", limits=(-1.0, torch.tensor([[1.0], [math.inf]]))),
        r"Revolute\.limits: .*in all environments, or in none",
    ),
    "friction": (lambda: td.Revolute(None, "a", friction=-1.0), r"Revolute\.friction: got \[-1\.0\]; allowed: values >= 0"),
    "armature": (lambda: td.Revolute(None, "a", armature=-1.0), r"Revolute\.armature: got \[-1\.0\]; allowed: values >= 0"),
    "later friction": (
        lambda: set_field("friction", 1.0),
        r"Revolute\.friction: got 1\.0 for a joint built without friction; build it with",
    ),
    "later armature": (lambda: set_field("armature", 1.0), r"Revolute\.armature: got 1\.0 for a joint built without armature"),
    "later limits": (lambda: set_field("limits", (0, 1)), r"Revolute\.limits: got \(0, 1\) for a joint built without limits"),
    "later lower": (lambda: set_field("lower", 0.0), r"Revolute\.lower: got 0\.0 for a joint built without limits"),
    "no more limits": (lambda: set_field("limits", None, limits=(0, 1)), r"Revolute\.limits: got None for a joint built with limits"),
    "another side": (lambda: set_field("upper", 2.0, limits=(0.0, math.inf)), r"Revolute\.limits: got lower \[0\.0\] and upper \[2\.0\]"),
    "crossing": (lambda: set_field("lower", 2.0, limits=(0.0, 1.0)), r"Revolute\.limits: got \[2\.0\]; allowed: lower limits below"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name: str) -> None:
    call, message = BAD[name]
    with pytest.raises(ValueError, match=message):
        call()


def test_allowed_changes() -> None:
    joint = td.Revolute(None, "a", limits=(0.0, 1.0), friction=1.0)
    joint.limits = (2.0, 3.0)  # both at once, past each other
    joint.friction = 0.0
    joint.armature = 0  # as built
    joint.armature = None
    assert [float(bound) for bound in joint.limits] == [2.0, 3.0]
    assert float(joint.friction) == 0.0 and joint.armature is None
    assert JointLimits(joint).cones.orthant == 2
