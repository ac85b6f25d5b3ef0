"""Cold steps of joints that strings load take as many iterations as those under torques of the same motion."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import torchdojo as td

FORCES = [300.0, 260.0]  # [N] of antagonists: impulses of 3 N·s in a step


def pendulum(strings: bool, backend: str) -> td.Mechanism:
    """A link on a hinge with limits, with or without two strings that pull it to either side."""
    hinge = td.Revolute(None, "link", axis=(0, 0, 1), child_anchor=(-0.15, 0, 0), limits=(-1.5, 1.5))
    tendons = {}
    for name, side in (("left", 0.04), ("right", -0.04)):
        points = [td.Site(None, (-0.1, side, 0)), td.Site(None, (0, side, 0)), td.Site("link", (-0.05, side, 0))]
        tendons[name] = td.SpatialTendon(points, actuated=True)
    bodies = {"link": td.Body(1.9, (0.0015, 0.0136, 0.0136))}
    mech = td.Mechanism(bodies, {"hinge": hinge}, tendons=tendons if strings else {}, timestep=0.01)
    mech.options = dataclasses.replace(mech.options, kappa=1e-4, backend=backend)
    return mech


@pytest.mark.parametrize("backend", ["reference", "native"])
def test_strings_cost_no_iterations(backend: str) -> None:
    pulled, plain = pendulum(True, backend), pendulum(False, backend)
    q = torch.linspace(-0.9, 0.9, 7, dtype=torch.float64)[:, None]
    z, forces = plain.to_maximal(q, torch.cos(9 * q)), -torch.tensor(FORCES, dtype=torch.float64)
    torques = (forces[:, None] * pulled.tendon_moment_arms(q)).sum(-2)
    under_strings = pulled.step(z, torch.cat((torch.zeros_like(q), forces.expand(len(q), 2)), dim=-1))
    under_torques = plain.step(z, torques)
    assert not under_strings.status.any() and not under_torques.status.any()
    assert under_strings.iterations.tolist() == under_torques.iterations.tolist()
    # Newton's third iterate of both is exact up to rounding, which forces of 300 N enlarge.
    torch.testing.assert_close(under_strings.z, under_torques.z, rtol=0, atol=1e-12)
