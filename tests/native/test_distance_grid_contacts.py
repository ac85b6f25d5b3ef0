"""Contacts with distance grids: the kernel agrees with the reference, in steps, gaps and gradients, inside of the box and beyond."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import torchdojo as td
from torchdojo.native import loader

pytestmark = [pytest.mark.skipif(not loader.available(), reason="needs the compiled kernel"), pytest.mark.sanitize]
LAWS: dict[str, tuple[Any, dict[str, Any]]] = {
    "plain": (td.NonlinearContact, {}),
    "compliant": (td.NonlinearContact, {"stiffness": 2e3, "damping": 5.0}),
    "recovering": (td.NonlinearContact, {"recovery_speed": 0.5}),
    "couples": (td.NonlinearContact, {"rolling_friction": 0.01, "torsional_friction": 0.02}),
    "bouncing": (td.NonlinearContact, {"restitution": 0.5}),
    "pyramid": (td.LinearContact, {"facets": 6}),
    "frictionless": (td.ImpactContact, {}),
}


def grid() -> td.DistanceGrid:
    """A bumpy plane, whose samples have no symmetry."""
    z = 0.1 * (torch.arange(6, dtype=torch.float64) - 2.5)
    noise = torch.rand(7, 8, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return td.DistanceGrid(z + 0.02 * noise, (0.1, 0.11, 0.1), origin=(-0.33, -0.41, -0.25))


def ball(law: str, backend: str, **options: Any) -> td.Mechanism:
    model, laws = LAWS[law]
    arguments = laws if model is td.ImpactContact else {"friction": 0.4, **laws}
    contact = model("ball", point=(0.01, 0.02, -0.01), radius=0.1, other_shape=grid(), **arguments)
    options = {"kappa": 1e-4, "residual_tol": 1e-12, "central_path_tol": 1e-8, **options}
    body = td.Body(1.0, (0.004, 0.005, 0.006))
    return td.Mechanism({"ball": body}, contacts={"skin": contact}, options=td.SolverOptions(backend=backend, **options))


@pytest.mark.parametrize("law", LAWS)
def test_kernel_and_reference_agree(law: str) -> None:
    results = []
    for backend in ("native", "reference"):
        mech = ball(law, backend)
        z = mech.initial_state(
            (3,), ball={"position": (0.02, -0.03, 0.1), "velocity": (0.5, 0.2, -2.0), "angular_velocity": (1.0, -2.0, 3.0)}
        )
        z[1, 0] += 0.07
        z[2, 0] += 0.9  # beyond the box
        leaves = {"z": z.clone().requires_grad_(), **dict(mech.named_parameters())}
        for parameter in mech.parameters():
            parameter.requires_grad_()
        path = mech.rollout(leaves["z"], steps=3)
        assert not path.status.any()
        weight = torch.arange(13, dtype=torch.float64).cos()
        gradients = torch.autograd.grad((path.z[:, 1:] * weight).sum(), list(leaves.values()), materialize_grads=True)
        results.append((path.z.detach(), mech.distances(z).detach(), dict(zip(leaves, gradients, strict=True))))
    (native, gaps, grads), (reference, expected, wanted) = results
    torch.testing.assert_close(native, reference, rtol=0, atol=1e-10)
    torch.testing.assert_close(gaps, expected, rtol=0, atol=1e-14)
    for name, value in wanted.items():
        torch.testing.assert_close(grads[name], value, rtol=0, atol=1e-8 * max(1.0, float(value.abs().max())), msg=name)
    assert float(wanted["contacts.skin.ground.samples"].abs().max()) > 1e-2


def test_grids_of_each_environment_and_places_that_are_no_numbers() -> None:
    mech = ball("plain", "native", on_failure="flag")
    field = mech.contacts["skin"].ground
    field.samples = torch.stack((field.samples, field.samples - 0.05))
    z = mech.initial_state((2,), ball={"position": (0.02, -0.03, 0.2)})
    gaps = mech.distances(z)[:, 0]
    assert float(gaps[1] - gaps[0]) == pytest.approx(0.05 * -1.0, abs=1e-12)
    both = mech.rollout(z, steps=5).z[:, -1]
    for i in range(2):
        alone = ball("plain", "native")
        alone.contacts["skin"].ground.samples = field.samples[i].detach()
        torch.testing.assert_close(alone.rollout(z[i], steps=5).z[-1], both[i], rtol=0, atol=1e-12)
    z[0, 0] = torch.nan
    assert torch.isnan(mech.distances(z)[0, 0]) and torch.isfinite(mech.distances(z)[1, 0])
