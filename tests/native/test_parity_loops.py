"""Loops whose rows repeat each other, exactly and within a misfit: the kernel against the reference."""

from __future__ import annotations

import pytest
import torch
from mechanisms import closing_joint, random_velocities
from parity import check, exact

import torchdojo as td
from torchdojo.native import loader

pytestmark = [pytest.mark.skipif(not loader.available(), reason="no compiler for the native kernel"), pytest.mark.sanitize]

AXIS = (0.0, 0.8, 0.6)


@pytest.mark.parametrize(("closing", "misfit"), [("Revolute", 0.0), ("Revolute", 1e-4), ("Spherical", 1e-6)])
def test_inexact_four_bars(closing: str, misfit: float) -> None:
    """In an oblique plane, so the rows that repeat are no rows of the closing joint. Its limits, friction and armature act, too."""
    torch.manual_seed(0)
    up, down = (0.0, -0.3, 0.4), (0.0, 0.3, -0.4)
    joints = {
        "ground": td.Revolute(None, "a", axis=AXIS, child_anchor=down, damper=0.05),
        "left": td.Revolute("a", "b", axis=AXIS, parent_anchor=up, child_anchor=down, spring=20.0, implicit=True),
        "right": td.Revolute("a", "c", axis=AXIS, parent_anchor=down, child_anchor=down),
    }
    links = {name: td.Body(1.0, (0.09, 0.08, 0.02)) for name in "abc"}
    z = td.Mechanism(links, joints).to_maximal(torch.tensor((0.4, 1.0, 0.7)))
    joints["close"] = closing_joint(closing, z, list(links), 1, 2, True, **({"axis": AXIS} if closing == "Revolute" else {}))
    joints["close"].parent_anchor = joints["close"].parent_anchor + misfit * torch.tensor(AXIS)
    mech = td.Mechanism(links, joints, options=exact())
    kept = mech.joints["close"].kept_rows
    assert kept is not None and round(float(kept.left_out(mech.gravity).trace())) == (3 if closing == "Revolute" else 1)
    check(mech, random_velocities(z, 3), torch.randn(3, mech.num_inputs))
