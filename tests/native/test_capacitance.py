"""Jacobians where contacts are pressed, and so left out of the factored matrix: kernel against reference, to all digits at any kappa."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from parity import exact, relative
from torch import Tensor

import torchdojo as td

LAWS = {
    "friction": lambda foot, **place: td.NonlinearContact(foot, friction=0.6, **place),
    "impact": lambda foot, **place: td.ImpactContact(foot, **place),
    "restitution": lambda foot, **place: td.NonlinearContact(foot, friction=0.6, restitution=0.3, **place),
    "each another": None,
    "two per foot": lambda foot, **place: td.NonlinearContact(foot, friction=0.6, **place),
}


def walker(laws: str) -> tuple[td.Mechanism, Tensor]:
    """A trunk on four legs that stands, kicked a little: most feet pressed, some sliding or in the air. Twelve environments."""
    bodies, joints, contacts = {"trunk": td.Body(4.0, (0.02, 0.06, 0.07))}, {"base": td.Floating(None, "trunk", actuated=False)}, {}
    kinds = [LAWS[name] for name in ("friction", "impact", "restitution", "friction")]
    for leg in range(4):
        x, y, foot = 0.2 * (-1) ** leg, 0.1 * (-1) ** (leg // 2), f"leg{leg}"
        bodies[foot] = td.Body(0.3, (1e-3, 1e-3, 2e-4))
        joints[f"hip{leg}"] = td.Spherical("trunk", foot, parent_anchor=(x, y, 0.0), child_anchor=(0.0, 0.0, 0.1), spring=40.0, damper=0.4)
        for toe in ("heel", "toe") if laws == "two per foot" else ("heel",):
            make = kinds[leg] if laws == "each another" else LAWS[laws]
            contacts[f"{foot}_{toe}"] = make(foot, point=(0.03 * (toe == "toe"), 0.0, -0.1), radius=0.02)
    mech = td.Mechanism(bodies, joints, contacts, timestep=0.01)
    z = mech.initial_state(base={"q": (0.0, 0.0, 0.221, 0.0, 0.0, 0.0)}).repeat(12, 1)
    torch.manual_seed(0)
    kick = z.unflatten(-1, (-1, 13)).clone()
    kick[..., 3:6] += 0.3 * torch.randn(12, 1, 3)
    with torch.no_grad():
        path = mech.rollout(kick.flatten(1), torch.zeros(12, 25, mech.num_inputs))
    assert path.status.eq(0).all()
    return mech, path.z[:, -1].contiguous()


@pytest.mark.parametrize("kappa", [1e-4, 1e-6, 1e-8])
@pytest.mark.parametrize("laws", LAWS)
def test_jacobians_with_pressed_contacts(laws: str, kappa: float) -> None:
    mech, z = walker(laws)
    u = 0.1 * torch.randn(len(z), mech.num_inputs)
    with torch.no_grad():
        mech.options = exact(kappa)
        out = mech.step(z, u)
        assert out.impulses.amax() > 1e3 * kappa  # N·s: where it is pressed
        q, qd = mech.to_minimal(z)
        start = mech.step_minimal(q, qd, u).solution
        runs = []
        for backend in ("native", "reference"):
            mech.options = dataclasses.replace(exact(kappa), backend=backend)
            maximal = torch.cat(mech.jacobians(z, u, warm_start=out.solution), dim=-1)
            runs.append((maximal, torch.cat(mech.jacobians_minimal(q, qd, u, warm_start=start), dim=-1)))
    for native, reference in zip(*runs, strict=True):
        assert relative(native, reference) < 1e-10
