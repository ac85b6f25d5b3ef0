"""Contact models and laws: friction pyramids, restitution, couples, compliance, overlap."""

from __future__ import annotations

import math

import pytest
import torch

import torchdojo as td
from torchdojo import path_maps

REFERENCE = td.SolverOptions(kappa=1e-6, backend="reference")
CORNERS = [(0.25 * a, 0.25 * b, 0.25 * c) for a in (-1, 1) for b in (-1, 1) for c in (-1, 1)]


def cube(contact: type[td.Contact], kappa: float = 1e-6, timestep: float = 0.01, **arguments: object) -> td.Mechanism:
    """1 kg, edges of 0.5 m, eight corners on the ground."""
    return td.Mechanism(
        {"box": td.Body(1.0, shape=td.Box((0.5, 0.5, 0.5)))},
        contacts={f"corner{i}": contact("box", point=point, **arguments) for i, point in enumerate(CORNERS)},
        timestep=timestep,
        options=td.SolverOptions(kappa=kappa, backend="reference"),
    )


# -- the pyramid ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("facets", [2, 4, 8])
def test_pyramid_map_lands_on_the_path(facets: int) -> None:
    """From any real impulses and slacks: products exactly κ, inside the cone, the row of the height to rounding; its points are fixed."""
    count = 20_000
    height, kappa, mass = (10 ** (low + span * torch.rand(count)) for low, span in ((-4, 5), (-10, 9), (-2, 3)))
    impulse = torch.randn(count, 1 + facets) * 10 ** (5 * torch.rand(count, 1) - 4)
    slack = torch.randn(count, 1 + facets) * 10 ** (6 * torch.rand(count, 1) - 5)
    on, dual = path_maps.pyramid_on_path(height, impulse, slack, kappa, mass)
    assert bool((on > 0).all()) and bool((dual > 0).all())
    assert float((on * dual / kappa[:, None] - 1).abs().max()) < 1e-15
    scale = impulse.abs().sum(-1) + mass * (slack.abs().sum(-1) + impulse[:, 0].abs()) + height
    assert float(((on[:, 1:].sum(-1) + dual[:, 0] - height) / scale).abs().max()) < 1e-14
    again, _ = path_maps.pyramid_on_path(height, on, dual, kappa, mass)
    # Rounding of terms up to 1e7 times the heights.
    assert float((again / on - 1).abs().max()) < 1e-7


def test_pyramid_directions() -> None:
    normal = torch.tensor((0.0, 0.6, 0.8))
    for facets in (4, 6, 8):
        contact = td.LinearContact("box", facets=facets, normal=normal)
        d = contact.directions(normal)
        assert d.shape == (facets, 3)
        assert torch.allclose(d[::2], -d[1::2], atol=0)
        assert float((d @ normal).abs().max()) < 1e-15
        # In order of angle, all around.
        assert float((d.norm(dim=-1) - 1).abs().max()) < 1e-14
        closest = (d @ d.T - 2 * torch.eye(facets)).amax(-1)
        assert torch.allclose(closest, torch.full_like(closest, math.cos(2 * math.pi / facets)))
    for wrong in (2, 5, 4.0, True):
        with pytest.raises(ValueError, match="even numbers of 4 or more"):
            td.LinearContact("box", facets=wrong)


@pytest.mark.parametrize("facets", [4, 8, 32])
def test_pyramid_slides_like_the_cone(facets: int) -> None:
    """Along a direction of the pyramid both decelerate by μ g; halfway between two by less, at most as the corners of the pyramid say."""
    for angle, weakest in ((0.0, 1.0), (math.pi / facets, math.cos(math.pi / facets))):
        mech = cube(td.LinearContact, kappa=1e-9, friction=0.3, facets=facets)
        speed = torch.tensor((2 * math.cos(angle), 2 * math.sin(angle), 0.0))
        z = mech.rollout(mech.initial_state(box=dict(position=(0, 0, 0.25 + 1e-7), velocity=speed)), steps=20).z
        lost = float((z[2, 3:6] - z[20, 3:6]) @ speed / 2) / (18 * 0.01)
        # kappa blurs the cone by κ/(γ v), 1e-7; the contact floats 1e-7 m above the ground.
        assert weakest * 0.3 * 9.81 * (1 - 1e-4) < lost < 0.3 * 9.81 * (1 + 1e-4)


def test_pyramid_takes_few_iterations() -> None:
    """With warm starts as few as the cone needs: measured 2.4 per step, the cone 2.1."""
    mech = cube(td.LinearContact)
    spin = torch.randn(6, 3)
    z = mech.initial_state(
        (6,), box=dict(position=(0, 0, 1.0), velocity=(2.0, 1.0, 0.0), angular_velocity=5 * spin / spin.norm(dim=-1)[:, None])
    )
    with torch.no_grad():
        out = mech.rollout(z, steps=100)
    assert not out.status.any() and int(out.substeps.max()) == 1
    assert float(out.iterations.double().mean()) < 3.5


PHASES = {
    "flight": dict(position=(0.0, 0.0, 1.0), velocity=(1.0, 0.5, -1.0), angular_velocity=(3.0, 2.0, -1.0)),
    "impact": dict(position=(0.0, 0.0, 0.28), velocity=(1.0, 0.5, -5.0), angular_velocity=(0.5, 1.0, -1.0)),
    "sliding": dict(position=(0.0, 0.0, 0.251), velocity=(2.0, 1.0, 0.0)),
    "sticking": dict(position=(0.0, 0.0, 0.2501), velocity=(0.0, 0.0, 0.0)),
}


@pytest.mark.parametrize("kappa", [1e-3, 1e-6])
@pytest.mark.parametrize("phase", PHASES)
def test_pyramid_gradients(phase: str, kappa: float) -> None:
    mech = cube(td.LinearContact, kappa=kappa, facets=6)
    z = mech.initial_state(box=PHASES[phase])
    if phase in ("sliding", "sticking"):
        with torch.no_grad():
            z = mech.rollout(z, steps=10).z[-1]
    td.testing.check_gradients(mech, z, parameters=["contacts.corner0", "bodies", "timestep"], tolerance=1e-6)
