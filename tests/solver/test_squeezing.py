"""Feet that several contacts hold: impulses that only squeeze a foot against itself are found at once, by kernel and reference alike."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import torchdojo as td
from torchdojo.elements import path_maps
from torchdojo.native import loader

CORNERS = [(0.1, 0.05), (0.1, -0.05), (-0.1, 0.05), (-0.1, -0.05)]


def leg(corners: int, backend: str, model: type[td.Contact] = td.NonlinearContact) -> td.Mechanism:
    """A body of 20 kg upon a foot of 1 kg with a springy ankle, that stands on some of its corners."""
    contacts = {f"corner{i}": model("foot", point=(*p, -0.02), friction=0.8) for i, p in enumerate(CORNERS[:corners])}
    anchors = dict(parent_anchor=(0, 0, 0.02), child_anchor=(0, 0, -0.3))
    joints = {"ankle": td.Spherical("foot", "body", **anchors, spring=200.0, damper=20.0, implicit=True)}
    bodies = {"foot": td.Body(1.0, (2e-3, 4e-3, 5e-3)), "body": td.Body(20.0, (0.6, 0.6, 0.1))}
    return td.Mechanism(bodies, joints, contacts, timestep=0.01, options=td.SolverOptions(backend=backend))


def pushed(mech: td.Mechanism, steps: int = 12) -> td.Trajectory:
    """Eight starts at rest upon the ground, whose ankles turn."""
    spin = 0.5 * torch.randn(8, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    with torch.no_grad():
        z: Tensor = mech.initial_state(foot=dict(position=(0, 0, 0.021)), ankle=dict(qd=spin))
        return mech.rollout(z, steps=steps)


def test_where_contacts_squeeze() -> None:
    """Bodies that three contacts with friction or more hold against the world."""
    for corners in (1, 2, 3, 4):
        assert leg(corners, "reference").backends.system.braced_bodies.tolist() == [corners >= path_maps.BRACING_CONTACTS, False, False]


def test_impulses_without_mobility_are_found_at_once() -> None:
    """Where slip = s₀ + G impulse with a tiny mobility G, the map leads to the path at the first try for contacts that squeeze alone."""
    kappa, height, mass = torch.full((100,), 1e-6), torch.ones(100), torch.full((100,), 0.1)
    mobility = 10 ** torch.linspace(-3.5, 0.5, 100)  # its inverse is 3 to 30,000 times the nominal weight
    direction = torch.nn.functional.normalize(torch.randn(100, 2, generator=torch.Generator().manual_seed(0)), dim=-1)
    points = torch.tensor((0.2, 0.5))[:, None, None] * direction
    slips = mobility[:, None] * (points - 0.4 * direction)  # no slip at an impulse of 0.4 μγ
    change = path_maps.Change(points[1] - points[0], slips[1] - slips[0])

    def miss(squeezing: Tensor | None) -> Tensor:
        whole = (torch.nn.functional.pad(x, (1, 0), value=1.0) for x in (points[1], slips[1]))
        xi, eta = path_maps.disc_on_path(height, *whole, kappa, mass, change._replace(squeezing=squeezing))
        return torch.linalg.vector_norm(eta[:, 1:] - mobility[:, None] * (xi[:, 1:] - 0.4 * direction), dim=-1) / mobility

    assert float(miss(torch.ones(100, dtype=torch.bool)).max()) < 1e-9
    known = 1 / mobility < path_maps.MOST_WEIGHT * 0.1
    assert float(miss(None)[known].max()) < 1e-9 and float(miss(None)[1 / mobility > 10 * path_maps.MOST_WEIGHT * 0.1].min()) > 1e-2


@pytest.mark.skipif(not loader.available(), reason="no compiler for the kernel")
@pytest.mark.parametrize(
    ("model", "corners"), [(td.NonlinearContact, 2), (td.NonlinearContact, 3), (td.NonlinearContact, 4), (td.LinearContact, 3)]
)
def test_backends_agree_on_feet(model: type[td.Contact], corners: int) -> None:
    native, reference = (pushed(leg(corners, backend, model)) for backend in ("native", "reference"))
    assert bool((native.status == 0).all()) and bool((reference.status == 0).all())
    assert float((native.iterations - reference.iterations).double().mean().abs()) < 0.3  # the kernel ends some steps by a bound
    # Both end at residuals of 1e-9; twelve steps of a foot of 1 kg and 4e-3 kg m² turn them into velocities.
    assert float((native.z - reference.z).abs().max()) < 1e-5
