"""Tendons and couplings of strings beside near contacts: the kernel takes the steps of the reference, with gradients."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

import torchdojo as td
from torchdojo.native import loader

pytestmark = pytest.mark.skipif(not loader.available(), reason="needs the compiled kernel")

FLOOR = td.Box((2.0, 2.0, 0.2), position=(0.0, 0.0, -0.1))
BOX = td.Box((0.1, 0.08, 0.06))
SITES = {
    "hook": td.Site(None, (0.0, 0.0, 0.3)),
    "box": td.Site("box", (0.02, 0.0, 0.03)),
    "arm": td.Site("arm", (0.05, 0.0, -0.1)),
    "wall": td.Site(None, (0.4, 0.1, 0.2)),
    "side": td.Site("box", (-0.05, 0.01, 0.0)),
}
POST = td.Wrap(td.Site(None, (0.1, 0.05, 0.15)), 0.04)


def tendons(kind: str) -> dict[str, td.SpatialTendon | td.FixedTendon]:
    """Explicit and implicit springs, limits, friction and armature, a surface, and a sum of coordinates."""
    path, around = ["hook", "box"], ["arm", POST, "box"]
    all_tendons: dict[str, td.SpatialTendon | td.FixedTendon] = {
        "explicit": td.SpatialTendon(path, sites=SITES, stiffness=20.0, rest=0.15, actuated=True),
        "implicit": td.SpatialTendon(around, sites=SITES, stiffness=200.0, damping=2.0, rest=0.3, implicit=True),
        "laws": td.SpatialTendon(path, sites=SITES, limits=(0.05, 0.2), limit_stiffness=300.0, friction=0.2, armature=0.1),
        "sum": td.FixedTendon({"hinge": 0.05}, stiffness=40.0, damping=0.3, rest=0.01),
    }
    return all_tendons if kind == "all" else {kind: all_tendons[kind]} if kind in all_tendons else {}


def scene(kind: str, slots: int = 8, **options: Any) -> td.Mechanism:
    """A box lies, slides and is pulled at; an arm swings, and touches nothing."""
    contacts = td.near_contacts("box", BOX, None, FLOOR, slots=slots, friction=0.5)
    couplings = {}
    if kind == "strings":
        couplings["strings"] = td.StringCoupling(
            ["hook", "side"], ["wall", "arm"], sites=SITES, ratio=0.5, leader_length=0.2, compliance=1e-3, damping=3.0
        )
    return td.Mechanism(
        {"box": td.Body(1.0, shape=BOX), "arm": td.Body(0.5, (0.002, 0.002, 0.002))},
        {"hinge": td.Revolute(None, "arm", axis=(0, 1, 0), parent_anchor=(0.2, 0.05, 0.4), child_anchor=(0, 0, 0.1))},
        contacts,
        couplings=couplings,
        tendons=tendons(kind),
        options=td.SolverOptions(residual_tol=1e-12, kappa=1e-5, **options),
    )


def start_of(mech: td.Mechanism) -> Tensor:
    box = {"position": (0, 0, 0.0305), "velocity": (0.3, 0.1, -0.1), "angular_velocity": (0, 0, 1)}
    return mech.initial_state(box=box, hinge={"q": 0.4, "qd": -1.0})


KINDS = ["explicit", "implicit", "laws", "sum", "strings", "all"]


@pytest.mark.parametrize("kind", KINDS)
def test_kernel_takes_the_steps_of_the_reference(kind: str) -> None:
    """Without a word on the reference, in single environments and in batches, with other slots, and with gradients."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mech = scene(kind)
        z, inputs = start_of(mech), torch.full((mech.num_inputs,), 0.3)
        path = mech.rollout(z, inputs.expand(12, -1))
    reference = scene(kind, slots=4, backend="reference")
    out = reference.step(path.z[2], inputs)
    assert not path.status.any() and not out.status.any()
    own = mech.step(path.z[2:3].expand(3, -1), inputs)
    torch.testing.assert_close(own.z, out.z.expand(3, -1), atol=1e-10, rtol=0)
    torch.testing.assert_close(path.z[3], out.z, atol=1e-10, rtol=0)
    names = [name for name in mech.impulse_layout if not name.startswith("contacts")]
    for name in names:
        torch.testing.assert_close(
            own.impulses[0, mech.impulse_layout[name]], out.impulses[reference.impulse_layout[name]], atol=1e-10, rtol=0
        )
    other = scene(kind, slots=16)
    torch.testing.assert_close(other.rollout(z, inputs.expand(12, -1)).z, path.z, atol=1e-9, rtol=0)
    moved = float((path.z[-1] - scene("none").rollout(z, steps=12).z[-1]).abs().max())
    assert moved > 1e-3  # it pulls


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_and_jacobians(kind: str) -> None:
    mech = scene(kind)
    start, inputs = start_of(mech), torch.full((4, mech.num_inputs), 0.3)
    weight = torch.randn(26, generator=torch.Generator().manual_seed(0))
    law = mech.couplings["strings"].ratio if kind == "strings" else next(iter(mech.tendons.values()))
    number = law if isinstance(law, Tensor) else law.friction if kind == "laws" else law.stiffness
    z = start.clone().requires_grad_(True)
    by_z = torch.autograd.grad(mech.rollout(z, inputs).z[-1] @ weight, z)[0]
    number.requires_grad_(True)
    (by_number,) = torch.autograd.grad(mech.rollout(start, inputs).z[-1] @ weight, number)
    number.requires_grad_(False)

    def difference(moved: Tensor, place: tuple[int, ...], width: float) -> float:
        kept, result = float(moved[place]), 0.0
        for times, share in ((1, 8.0), (2, -1.0)):
            for sign in (1, -1):
                moved[place] = kept + sign * times * width
                with torch.no_grad():
                    result += sign * share * float(mech.rollout(start, inputs).z[-1] @ weight) / (12 * width)
        moved[place] = kept
        return result

    for place in (0, 4, 11, 12):
        assert float(by_z[place]) == pytest.approx(difference(start, (place,), 1e-6), rel=1e-6, abs=1e-6)
    assert float(by_number) == pytest.approx(difference(number, (), 1e-5 * float(number)), rel=1e-6, abs=1e-6)
    lin = mech.linearize(start, inputs[0])
    step = mech.step(z, inputs[0]).z
    rows = torch.stack([torch.autograd.grad(step[k], z, retain_graph=True)[0][:6] for k in range(6)])
    torch.testing.assert_close(lin.A[:6, :6], rows, atol=1e-8, rtol=1e-8)


def test_free_boxes_that_a_tendon_pulls_gain_energy() -> None:
    """A stretched tendon gives free bodies energy, which is no wrong root: no step is flagged or halved."""
    ends = [td.Site("box", (0, 0, 0.03)), td.Site("top", (0, 0, -0.03))]
    contacts = td.near_contacts("top", BOX, "box", BOX, friction=0.4) | td.near_contacts("box", BOX, None, FLOOR, friction=0.5)
    tendon = td.SpatialTendon(ends, stiffness=3000.0, rest=0.0)
    mech = td.Mechanism({name: td.Body(1.0, shape=BOX) for name in ("box", "top")}, (), contacts, tendons={"string": tendon})
    z = mech.initial_state(box={"position": (0, 0, 0.0301)}, top={"position": (0.005, 0, 0.3)})
    path = mech.rollout(z, steps=40)
    assert not path.status.any() and float(path.z[:, 18].min()) < -5.0
    assert float(mech.distances(path.z[1:]).min()) > 0
