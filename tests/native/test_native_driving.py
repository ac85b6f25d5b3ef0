"""Drives in the kernel: states, activations, forces and gradients as with the laws in PyTorch between the steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import torchdojo as td
from torchdojo.native import loader

pytestmark = pytest.mark.skipif(not loader.available(), reason="no compiler for the native kernel")

TOLERANCE = 1e-10
AFFINE = {"gain_numbers": (1.0, 0.5, -0.3), "bias_numbers": (0.1, -2.0, -0.4)}


def arm() -> td.Mechanism:
    """A hinge, a slide and a ball of joints, so that lengths of several kinds are measured."""
    link = {"mass": 0.5, "inertia": (0.02, 0.03, 0.01)}
    return td.Mechanism(
        {name: td.Body(**link) for name in ("a", "b", "c")},
        {
            "hinge": td.Revolute(None, "a", axis=(0, 1, 0.2), child_anchor=(0, 0, 0.2), damper=0.05),
            "slide": td.Prismatic("a", "b", axis=(0, 0.2, 1), parent_anchor=(0, 0.1, -0.2), damper=0.5, spring=5.0),
            "ball": td.Spherical("b", "c", parent_anchor=(0, 0, -0.2), child_anchor=(0, 0.05, 0.2), damper=0.05, spring=0.5),
        },
        timestep=0.01,
    )


def drives_of_all_kinds() -> dict[str, td.Drive | None]:
    """Every law, range and target; places of joints side by side and apart."""
    muscle = {"gear": 0.03, "lengths": (-0.05, 0.06), "force": 30.0}
    return {
        "flexor": td.Drive.muscle(joint="hinge", **muscle),
        "thrust": td.Drive(site=td.Site("c", (0.1, 0, -0.1), (0.8, 0, 0.6, 0)), gear=(0.5, 0.2, 1.0, 0.01, 0.02, 0), **AFFINE),
        "push": td.Drive(joint="slide", gear=2.0, length0=0.1, **AFFINE),
        "extensor": td.Drive.muscle(joint="hinge", smooth=0.4, early=True, **{**muscle, "gear": -0.03, "force": -1.0, "acc0": 5.0}),
        "filter": td.Drive(joint="ball", coordinate=1, dynamics="filter", dynamics_numbers=(0.05,), forcerange=(-0.5, 0.5), **AFFINE),
        "exact": td.Drive(joint="ball", coordinate=0, dynamics="filterexact", dynamics_numbers=(0.03,), early=True, **AFFINE),
        "sum": td.Drive(joint="ball", coordinate=1, dynamics="integrator", actrange=(-0.4, 0.4), ctrlrange=(-0.6, 0.6)),
        "wheel": td.Drive(site=td.Site("a"), gear=(0, 0, 0, 0.1, 0, 0.1), dynamics="filter", dynamics_numbers=(0.1,), ctrlrange=(-1, 1)),
    }


def given(mech: td.Mechanism, batch: tuple[int, ...], periods: int) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    n = mech.num_coordinates
    z = mech.to_maximal(0.4 * torch.randn(*batch, n).double(), torch.randn(*batch, n).double())
    ctrl = torch.randn(*batch, periods, len(mech.drives.names)).double()
    act = 0.5 * torch.rand(*batch, mech.drives.num_activations).double()
    return z, ctrl, act


def in_torch(drives: td.Drives, call: Callable[[], Any]) -> Any:
    """The result of a call whose laws PyTorch takes between the steps."""
    lowered, drives._lowered = drives._lowered, None
    try:
        return call()
    finally:
        drives._lowered = lowered


def values(out: td.DriveTrajectory) -> list[Tensor]:
    return [out.path.z, out.act, out.force, out.path.impulses]


def same(ours: Any, theirs: Any) -> None:
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True)


def loss(results: list[Tensor]) -> Tensor:
    """A sum in which every number has a weight of its own."""
    return sum(((torch.arange(value.numel()) % 7 + 1.0).reshape(value.shape) * value.nan_to_num()).sum() for value in results)  # type: ignore[return-value]


def tangent(z: Tensor, grad: Tensor) -> Tensor:
    """A gradient by states without the part along the quaternions, which is no motion. PyTorch turns forces of sites without a norm."""
    parts, own = grad.unflatten(-1, (-1, 13)).clone(), z.unflatten(-1, (-1, 13))[..., 6:10]
    parts[..., 6:10] -= (parts[..., 6:10] * own).sum(-1, keepdim=True) * own
    return parts.flatten(-2)


@pytest.mark.sanitize
@pytest.mark.parametrize("batch", [(), (11,), (2, 3)])
def test_rollouts_and_gradients_are_those_of_the_laws_in_torch(batch: tuple[int, ...]) -> None:
    mech = arm()
    mech.drives = td.Drives(mech, drives_of_all_kinds())
    wrench = 0.1 * torch.randn(6 * mech.num_bodies, generator=torch.Generator().manual_seed(1)).double()
    leaves = [value.requires_grad_() for value in (*given(mech, batch, 3), wrench)]
    results, gradients = [], []
    z, ctrl, act, push = leaves
    for call in (lambda f: f(), lambda f: in_torch(mech.drives, f)):
        out = call(lambda: mech.drives.rollout(z, ctrl, act, repeat=2, wrench=push))
        assert out.path.z.grad_fn is not None and not out.path.status.any()
        results.append(values(out))
        by_z, *others = torch.autograd.grad(loss(results[-1]), leaves)
        gradients.append([tangent(z.detach(), by_z), *others])
    same(*results)
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)
    with torch.no_grad():
        same(values(mech.drives.rollout(*[leaf.detach() for leaf in leaves[:3]], repeat=2, wrench=leaves[3])), results[1])


def test_steps_periods_and_warm_starts() -> None:
    mech = arm()
    mech.drives = td.Drives(mech, drives_of_all_kinds())
    z, ctrl, act = given(mech, (5,), 2)
    for repeat in (1, 3):
        ours = mech.drives.step(z, ctrl[:, 0], act, repeat=repeat)
        theirs = in_torch(mech.drives, lambda repeat=repeat: mech.drives.step(z, ctrl[:, 0], act, repeat=repeat))
        same((ours.out.z, ours.act, ours.force, ours.out.impulses), (theirs.out.z, theirs.act, theirs.force, theirs.out.impulses))
        assert torch.equal(ours.out.iterations, theirs.out.iterations) and torch.equal(ours.out.substeps, theirs.out.substeps)
        warm = mech.drives.step(ours.out.z, ctrl[:, 1], ours.act, repeat=repeat, warm_start=ours.out.solution)
        path = mech.drives.rollout(z, ctrl, act, repeat=repeat)
        same((warm.out.z, warm.act, warm.out.solution), (path.path.z[:, -1], path.act[:, -1], path.path.solution[:, -1]))


def test_numbers_of_each_environment_and_numbers_that_change() -> None:
    mech, force = arm(), torch.tensor([20.0, 40.0, 60.0]).double()
    mech.drives = td.Drives(mech, {"pull": td.Drive.muscle(joint="hinge", gear=0.03, lengths=(-0.05, 0.06), force=force)})
    z, ctrl, act = given(mech, (3,), 2)
    for _ in range(2):
        same(values(mech.drives.rollout(z, ctrl, act)), values(in_torch(mech.drives, lambda: mech.drives.rollout(z, ctrl, act))))
        force *= 1.5


def test_what_is_left_to_torch() -> None:
    """Gradients by numbers, second derivatives, transforms, laws of one's own, and actuators of the mechanism."""
    mech = arm()
    mech.drives = td.Drives(mech, drives_of_all_kinds())
    z, ctrl, act = given(mech, (2,), 2)
    mech.bodies["a"].mass.requires_grad_()
    assert mech.drives._periods(z, ctrl, act, 1, None, None) is None
    (slope,) = torch.autograd.grad(mech.drives.rollout(z, ctrl, act).path.z.sum(), mech.bodies["a"].mass)
    assert float(slope.abs()) > 0
    mech.bodies["a"].mass.requires_grad_(False)
    assert mech.drives._periods(z, ctrl, act, 1, None, None) is not None
    leaf = ctrl.clone().requires_grad_()
    out = mech.drives.rollout(z, leaf, act)
    once = torch.autograd.grad(loss(values(out)), leaf, retain_graph=True)[0]
    twice = torch.autograd.grad(loss(values(out)), leaf, create_graph=True)[0]
    torch.testing.assert_close(once, twice, rtol=1e-9, atol=1e-9)
    with pytest.raises(RuntimeError, match="second derivative"):
        torch.autograd.grad(twice.sum(), leaf)
    td.actuate(mech, {"motor": td.Actuator.motor("hinge", gear=1.0)})
    shared = td.Drives(mech, {"motor": None, "pull": td.Drive(joint="slide")})
    assert shared._lowered is None and shared.step(z, torch.zeros(2, 2).double()).out.z.shape == z.shape


def test_failures_stay_alone() -> None:
    mech = arm()
    mech.drives = td.Drives(mech, drives_of_all_kinds())
    z, ctrl, act = given(mech, (4,), 3)
    ctrl[1, 1, 0], act[2, 0] = torch.nan, torch.inf
    leaves = [value.requires_grad_() for value in (z, ctrl, act)]
    results = []
    for call in (lambda f: f(), lambda f: in_torch(mech.drives, f)):
        out = call(lambda: mech.drives.rollout(*leaves))
        total = out.path.z.sum() + out.act.nan_to_num(0.0, 0.0, 0.0).sum()
        results.append((out, torch.autograd.grad(total, leaves)))
    (ours, mine), (theirs, other) = results
    assert ours.path.status.tolist() == theirs.path.status.tolist() and bool(ours.path.status.any())
    same(values(ours), values(theirs))
    for one, reference in zip(mine[1:], other[1:], strict=True):
        torch.testing.assert_close(one, reference, rtol=1e-9, atol=1e-9)


def test_hinges_between_bodies_that_turn_fast() -> None:
    """The kernel takes the rate of a hinge from the turns of both bodies, without the poses one step before."""
    frame = {
        "axis": (0.3, 1.0, -0.2),
        "orientation_offset": (0.8, 0.0, 0.6, 0.0),
        "parent_anchor": (0, 0, -0.2),
        "child_anchor": (0, 0.05, 0.2),
    }
    bodies = {name: td.Body(0.5, (0.02, 0.03, 0.01)) for name in ("a", "b", "c")}
    joints = {"base": td.Floating(None, "a"), "one": td.Revolute("a", "b", **frame), "two": td.Revolute("b", "c", **frame)}
    mech = td.Mechanism(bodies, joints, timestep=0.01)
    numbers = {"gain_numbers": (0.0, 0.0, 0.0), "bias_numbers": (0.0, 2.0, 0.7)}
    mech.drives = td.Drives(mech, {name: td.Drive(joint=name, **numbers) for name in ("one", "two")})
    torch.manual_seed(2)
    n = mech.num_coordinates
    z = mech.to_maximal(torch.randn(20, n).double(), 10.0 * torch.randn(20, n).double())
    z[..., 10:13] += 0.3  # spins that no joint allows
    none = torch.zeros(20, 2).double()
    force, lowered = mech.drives.step(z, none, none[:, :0]).force, mech.drives._lowered
    mech.drives._lowered = None
    torch.testing.assert_close(force, mech.drives.step(z, none, none[:, :0]).force, rtol=1e-11, atol=1e-11)
    assert lowered is not None and force.abs().min() > 0


def test_environments_that_wait_for_each_other_move_as_those_alone() -> None:
    mech = td.envs.MuscleArm(num_envs=1).mech
    torch.manual_seed(4)
    q, qd = torch.rand(21, 2).double() + 0.2, torch.randn(21, 2).double()
    z, ctrl, act = mech.to_maximal(q, qd), torch.rand(21, 6, 4).double(), torch.rand(21, 4).double()
    out = mech.drives.rollout(z, ctrl, act)
    assert len(out.path.iterations[:, 1:].unique()) > 1, "lanes lose step only where iterations differ"
    for n in range(21):
        alone = mech.drives.rollout(z[n], ctrl[n], act[n])
        torch.testing.assert_close(out.path.z[n], alone.path.z, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(out.act[n], alone.act, rtol=1e-12, atol=1e-12)
