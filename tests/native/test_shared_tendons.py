"""Lengths and pulls of tendons that drives and the step share: bits beside neighbors that fail or split, and gradients of split steps."""

from __future__ import annotations

import pytest
import torch
from test_native_driving import in_torch, loss, tangent, values
from torch import Tensor

import torchdojo as td
from torchdojo.native import loader

pytestmark = pytest.mark.skipif(not loader.available(), reason="no compiler for the native kernel")

LOST, FAST = 4, 7  # environments whose controls are no numbers, and whose steps are split


def arm(passive: bool) -> td.Mechanism:
    """Two links, with a muscle and a winch along strings around a cylinder and a ball, and perhaps a string without a drive."""
    link = {"mass": 0.5, "inertia": (4e-3, 4.2e-3, 4e-4)}
    joints = {
        "shoulder": td.Revolute(None, "upper", axis=(0, 1, 0), child_anchor=(0, 0, 0.15), damper=0.02),
        "elbow": td.Revolute("upper", "fore", axis=(0, 1, 0), parent_anchor=(0, 0, -0.15), child_anchor=(0, 0, 0.15), damper=0.02),
    }
    across = td.Site("upper", (0, 0, -0.15), (0.5**0.5, -(0.5**0.5), 0, 0))
    wrap = td.Wrap(across, 0.03, "cylinder", side=td.Site("upper", (0.05, 0, -0.15)))
    ball = td.Wrap(td.Site("upper", (0, 0, 0.15)), 0.025)
    tendons = {
        "muscle": td.SpatialTendon([td.Site("upper", (0.03, 0, 0.05)), wrap, td.Site("fore", (0.03, 0, 0.05))], actuated=True),
        "winch": td.SpatialTendon([td.Site(None, (0.1, 0, 0.3)), ball, td.Site("upper", (-0.02, 0.01, 0))], actuated=True, damping=2.0),
    }
    if passive:
        tendons["spring"] = td.SpatialTendon([td.Site(None, (0.2, 0.1, 0)), td.Site("fore", (0, 0, -0.1))], stiffness=20.0, rest=0.2)
    mech = td.Mechanism({name: td.Body(**link) for name in ("upper", "fore")}, joints, tendons=tendons, timestep=0.01)
    mech.options = td.SolverOptions(residual_tol=1e-13)
    pull = td.Drive(tendon="winch", gain_numbers=(3.0, 0.5, -0.3), bias_numbers=(0.1, -2.0, -0.4))
    mech.drives = td.Drives(mech, {"muscle": td.Drive.muscle(tendon="muscle", lengths=(0.1, 0.4), force=40.0), "winch": pull})
    return mech


def given(mech: td.Mechanism, lost: bool, fast: bool) -> list[Tensor]:
    generator = torch.Generator().manual_seed(5)
    q, qd = (torch.randn(11, 2, generator=generator, dtype=torch.float64) for _ in range(2))
    if fast:
        qd[FAST] = 150.0
    ctrl = torch.rand(11, 6, 2, generator=generator, dtype=torch.float64)
    if lost:
        ctrl[LOST, 2] = torch.nan
    act = torch.rand(11, mech.drives.num_activations, generator=generator, dtype=torch.float64)
    return [value.requires_grad_() for value in (mech.to_maximal(0.5 * q, qd), ctrl, act)]


def results(mech: td.Mechanism, leaves: list[Tensor], rows: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Substeps, and values and gradients of some environments."""
    out = mech.drives.rollout(*leaves, repeat=2)
    own = [value[rows] for value in values(out)]
    return out.path.substeps, [*own, *(grad[rows] for grad in torch.autograd.grad(loss(own), leaves))]


@pytest.mark.sanitize
@pytest.mark.parametrize("passive", [False, True])
def test_neighbors_change_no_bits(passive: bool) -> None:
    mech = arm(passive)
    rows = torch.tensor([i for i in range(11) if i not in (LOST, FAST)])
    _, expected = results(mech, given(mech, False, False), rows)
    for lost, fast in ((True, False), (False, True), (True, True)):
        substeps, found = results(mech, given(mech, lost, fast), rows)
        assert bool((substeps[FAST] > 2).any()) == fast
        for ours, theirs in zip(found, expected, strict=True):
            assert torch.equal(ours, theirs)


@pytest.mark.sanitize
@pytest.mark.parametrize("passive", [False, True])
def test_split_steps_have_the_gradients_of_the_laws_in_torch(passive: bool) -> None:
    mech = arm(passive)
    rows, found = torch.arange(11), []
    for call in (lambda f: f(), lambda f: in_torch(mech.drives, f)):
        leaves = given(mech, False, True)
        _, (*out, by_z, by_ctrl, by_act) = call(lambda leaves=leaves: results(mech, leaves, rows))
        found.append([*(value.detach() for value in out), tangent(leaves[0].detach(), by_z), by_ctrl, by_act])
    for ours, theirs in zip(*found, strict=True):
        scale = float(theirs.abs().max().clamp_min(1.0))
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9 * scale)
