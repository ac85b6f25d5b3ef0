"""Tendons in the kernel: steps, gradients and Jacobians are those of the reference; what is left to it."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

import torchdojo as td
from torchdojo.native import loader
from torchdojo.native.program import unsupported

pytestmark = pytest.mark.skipif(not loader.available(), reason="no compiler for the native kernel")

TOLERANCE = 1e-10
KINDS = ("sum", "straight", "pulley", "sphere", "cylinder", "inside")
LAWS: dict[str, dict[str, Any]] = {
    "input": {"actuated": True},
    "spring": {"stiffness": 40.0, "rest": (0.1, 0.3), "actuated": True},
    "damper": {"stiffness": 40.0, "damping": 0.7, "rest": (0.1, 0.3)},
    "implicit": {"stiffness": 60.0, "rest": 0.2, "implicit": True, "actuated": True},
    "curves": {"stiffness": 30.0, "rest": (0.1, 0.3), "stiffness_curve": (20.0, 90.0), "damping_curve": (0.5, 0.8), "actuated": True},
    "implicit curves": {"rest": (0.1, 0.3), "stiffness_curve": (-9.0, 90.0), "implicit": True},
    "limits": {"limits": (0.3, 0.5), "damping": 0.1},
    "friction": {"friction": 0.8, "stiffness": 40.0, "rest": 0.1},
    "friction and limits": {"friction": 0.8, "limits": (0.3, 0.5)},
    "armature": {"armature": 0.6, "stiffness": 40.0, "rest": 0.2, "implicit": True},
    "all": {"limits": (None, 0.4), "limit_stiffness": 5e3, "friction": 0.5, "armature": 0.2, "damping": 0.3, "actuated": True},
}
SLOW_LAWS = ("limits", "friction and limits", "armature", "all")


def chain(**tendons: td.Tendon) -> td.Mechanism:
    """A hinge, a slide and a hinge, and a body that flies, with these tendons."""
    link = {"mass": 0.8, "inertia": (0.02, 0.03, 0.01)}
    return td.Mechanism(
        {name: td.Body(**link) for name in ("a", "b", "c", "free")},
        {
            "shoulder": td.Revolute(None, "a", axis=(0, 1, 0.2), child_anchor=(0, 0, 0.2), damper=0.05),
            "slide": td.Prismatic("a", "b", axis=(0, 0.2, 1), parent_anchor=(0, 0.1, -0.2), damper=0.5, spring=5.0),
            "elbow": td.Revolute("b", "c", axis=(0.1, 1, 0), parent_anchor=(0, 0, -0.2), child_anchor=(0, 0.05, 0.2)),
            "flight": td.Floating(None, "free"),
        },
        tendons=tendons,
        timestep=0.01,
    )


def path(kind: str, laws: dict[str, Any]) -> td.Tendon:
    sites = [td.Site(None, (0.1, 0.2, 0.1)), td.Site("a", (0.05, 0, 0)), td.Site("b", (0.03, 0.04, 0.0)), td.Site("c", (0, 0.1, 0))]
    ball, pin, fly = (
        td.Site("b", (0.02, 0, 0.05), (0.8, 0.6, 0, 0)),
        td.Site("c", (0.0, 0.02, 0.1), (0.8, 0, 0.6, 0)),
        td.Site("free", (0.1, 0, 0)),
    )
    if kind == "sum":
        return td.FixedTendon({"shoulder": 0.3, "slide": 0.8, "elbow": -0.2}, offset=0.05, **laws)
    if kind == "straight":
        return td.SpatialTendon([*sites, fly], **laws)
    if kind == "pulley":
        return td.SpatialTendon([*sites[:2], td.Pulley(2.0), *sites[1:3], td.Pulley(3.0), sites[3], fly], **laws)
    if kind == "sphere":
        return td.SpatialTendon(
            [sites[1], td.Wrap(ball, 0.06), sites[3], td.Wrap(ball, 0.05, side=td.Site("b", (0.1, 0, 0.2))), sites[0]], **laws
        )
    if kind == "cylinder":
        around = td.Wrap(pin, 0.05, "cylinder", side=td.Site("c", (0, 0.2, 0.1)))
        return td.SpatialTendon([sites[1], td.Wrap(pin, 0.06, "cylinder"), sites[3], around, fly], **laws)
    assert kind == "inside"
    return td.SpatialTendon([sites[0], td.Wrap(pin, 0.05, "cylinder", side=td.Site("c", (0.005, 0.02, 0.1))), fly], **laws)


def states(mech: td.Mechanism, count: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(3)
    n = mech.num_coordinates
    z = mech.to_maximal(0.4 * torch.randn(count, n).double(), torch.randn(count, n).double())
    return z, torch.randn(count, mech.num_inputs).double()


def tangent(z: Tensor, grad: Tensor) -> Tensor:
    """A gradient by states without the part along the quaternions, which is no motion."""
    parts, own = grad.unflatten(-1, (-1, 13)).clone(), z.unflatten(-1, (-1, 13))[..., 6:10]
    parts[..., 6:10] -= (parts[..., 6:10] * own).sum(-1, keepdim=True) * own
    return parts.flatten(-2)


def compare(mech: td.Mechanism, count: int = 9) -> None:
    """Steps, impulses, gradients and Jacobians by kernel and reference."""
    z, u = states(mech, count)
    results = []
    for backend in ("native", "reference"):
        mech.options = td.SolverOptions(backend=backend, residual_tol=1e-13)
        given = z.clone().requires_grad_(), u.clone().requires_grad_()
        out = mech.step(*given)
        assert not out.status.any()
        weights = [torch.cos(torch.arange(value.numel()).double()).reshape(value.shape) for value in (out.z, out.impulses)]
        loss = (weights[0] * out.z).sum() + (weights[1] * out.impulses).sum()
        by_z, by_u = torch.autograd.grad(loss, given)
        jacobians = mech.jacobians(z[:2], u[:2])
        results.append((out.z.detach(), out.impulses.detach(), out.solution, tangent(z, by_z), by_u, *jacobians))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.sanitize
@pytest.mark.parametrize(("kind", "law"), [
    pytest.param(kind, law, marks=() if law in ("damper", "curves") or (kind == "straight" and law not in SLOW_LAWS) else pytest.mark.slow)
    for kind in KINDS for law in LAWS
])  # fmt: skip
def test_kernel_equals_reference(kind: str, law: str) -> None:
    compare(chain(tendon=path(kind, LAWS[law])), 4 if "limits" in law else 9)  # starts far outside of limits are slow


@pytest.mark.sanitize
@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_by_all_numbers(kind: str) -> None:
    """Of the kernel and of the reference: laws, paths, joints, bodies, the timestep."""
    first = LAWS["all"] if kind != "sum" else LAWS["damper"] | {"limits": (0.05, 0.1), "friction": 0.5}
    laws = [first, LAWS["implicit"], LAWS["curves"], LAWS["implicit curves"]]
    mech = chain(**{f"t{i}": path(kind, law) for i, law in enumerate(laws)})
    z, u = states(mech, 3)
    names = [name for name, p in mech.named_parameters() if p.numel()]
    results = []
    for backend in ("native", "reference"):
        mech.options = td.SolverOptions(backend=backend, residual_tol=1e-13)
        for p in mech.parameters():
            p.requires_grad_()
        out = mech.step(z, u)
        assert not out.status.any() and int(out.iterations.max()) < 50  # no attempt of the ladder runs out
        loss = sum((torch.cos(torch.arange(value.numel()).double()).reshape(value.shape) * value).sum() for value in (out.z, out.impulses))
        found = torch.autograd.grad(loss, [mech.get_parameter(name) for name in names], allow_unused=True, materialize_grads=True)
        results.append(dict(zip(names, found, strict=True)))
    assert {"t0.friction", "t0.limit_upper", "t1.stiffness", "t2.damping_curve", "t3.stiffness_curve"} <= {
        name.removeprefix("tendons.") for name in names
    }
    for name in names:
        ours, theirs = (result[name] for result in results)
        scale = 1 + float(theirs.abs().max())
        assert float((ours - theirs).abs().max()) < 1e-9 * scale, (name, ours, theirs)


def test_several_tendons_and_environments_of_their_own() -> None:
    mech = chain(one=path("straight", LAWS["damper"]), two=path("sum", LAWS["spring"]), three=path("straight", LAWS["damper"]))
    mech.tendons["one"].stiffness = 40.0 + torch.arange(9).double()
    mech.tendons["two"].rest_upper = 0.3 + 0.01 * torch.arange(9).double()
    z, u = states(mech, 9)
    results = []
    for backend in ("native", "reference"):
        mech.options = td.SolverOptions(backend=backend)
        results.append(mech.rollout(z, u[:, None].expand(-1, 3, -1)).z)
    torch.testing.assert_close(*results, rtol=1e-9, atol=1e-9)


def test_drives_along_tendons() -> None:
    mech = chain(flexor=path("straight", {"actuated": True}), cord=path("cylinder", LAWS["damper"] | {"actuated": True}))
    muscle = td.Drive.muscle(tendon="flexor", lengths=(0.3, 1.2), force=20.0)
    winch = td.Drive(
        tendon="cord", gear=2.0, gain_numbers=(1.0, 0.5, -0.3), bias_numbers=(0.1, -2.0, -0.4), dynamics="filter", dynamics_numbers=(0.1,)
    )
    mech.drives = td.Drives(mech, {"flexor": muscle, "cord": winch})
    z, _ = states(mech, 5)
    results, lowered = [], mech.drives._lowered
    given = z.requires_grad_(), torch.rand(5, 3, 2).double().requires_grad_(), torch.rand(5, 2).double().requires_grad_()
    for backend, native in (("native", lowered), ("native", None), ("reference", None)):
        mech.options, mech.drives._lowered = td.SolverOptions(backend=backend, residual_tol=1e-13), native
        out = mech.drives.rollout(*given)
        values = [out.path.z, out.act, out.force, out.path.impulses]
        loss = sum((torch.cos(torch.arange(value.numel()).double()).reshape(value.shape) * value).sum() for value in values)
        by_z, *others = torch.autograd.grad(loss, given)
        results.append([*values, tangent(z.detach(), by_z), *others])
    for ours, between, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, between, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("kind", ["sphere", "cylinder", "inside"])
def test_strings_touch_in_the_lanes_where_those_of_the_reference_do(kind: str) -> None:
    """Lanes on both sides of a string that comes to touch, or leaves: each has its own path."""
    mech = chain(cord=path(kind, {"actuated": True}))
    mech.drives = td.Drives(mech, {"cord": td.Drive(tendon="cord", gain_numbers=(0.0, 0.0, 0.0), bias_numbers=(0.0, 1.0, 0.0))})
    torch.manual_seed(5)
    z = mech.to_maximal(0.7 * torch.randn(400, mech.num_coordinates).double(), torch.zeros(400, mech.num_coordinates).double())
    lengths = mech.drives.step(z, torch.zeros(400, 1).double(), torch.zeros(400, 0).double()).force
    torch.testing.assert_close(lengths, mech.tendon_lengths(z), rtol=1e-12, atol=1e-12)
    mech.tendons["cord"].radii.data.fill_(1e-9)
    bent = (lengths - mech.tendon_lengths(z)).abs()[:, 0] > 1e-6
    assert 0 < bent.sum() < 400, "some strings touch and some do not"


def test_what_is_left_to_the_reference() -> None:
    mech = chain(tendon=path("straight", LAWS["spring"]))
    z, u = states(mech, 2)
    mech.tendons["tendon"].stiffness.requires_grad_()
    (slope,) = torch.autograd.grad(mech.step(z, u).z.sum(), mech.tendons["tendon"].stiffness)
    with torch.no_grad():
        ends = []
        for change in (1e-3, -1e-3):
            mech.tendons["tendon"].stiffness += change
            ends.append(mech.step(z, u).z.sum())
            mech.tendons["tendon"].stiffness -= change
    assert float(slope) == pytest.approx(float(ends[0] - ends[1]) / 2e-3, rel=1e-6, abs=1e-9)
    for call in (mech.potential_energy, mech.mechanical_energy) if hasattr(mech, "mechanical_energy") else (mech.potential_energy,):
        assert bool(torch.isfinite(call(z)).all())
    ball = {"a": td.Body(1.0, (0.1, 0.1, 0.1))}, {"ball": td.Spherical(None, "a", child_anchor=(0, 0, 0.2))}
    own = td.Mechanism(*ball, tendons={"twist": td.FixedTendon({("ball", 1): 0.1}, stiffness=3.0)})
    assert "component of the rotation vector of ball" in str(unsupported(own.backends.system))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert not own.step(own.initial_state()).status.any()
