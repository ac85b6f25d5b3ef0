"""Drives between sites, of cranks, on turns of joints, adhesion, delays in the kernel: as in PyTorch, with gradients beside differences."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from test_native_driving import in_torch, loss, same, tangent, values
from torch import Tensor

import torchdojo as td
from torchdojo.native import loader

pytestmark = [
    pytest.mark.skipif(not loader.available(), reason="no compiler for the native kernel"),
    pytest.mark.filterwarnings("ignore:.*got a rod of 0.01 m"),
]

AFFINE = {"gain_numbers": (1.0, 0.5, -0.3), "bias_numbers": (0.1, -2.0, -0.4)}
FEET = (0.1, 0.0), (-0.1, 0.1), (-0.1, -0.1)
ONE, TWO = (0.8, 0.0, 0.6, 0.0), (0.48, 0.64, -0.36, 0.48)


def tree() -> td.Mechanism:
    """Two arms on a floating trunk, and a free body."""
    link = {"mass": 0.5, "inertia": (0.02, 0.03, 0.01)}
    return td.Mechanism(
        {name: td.Body(**link) for name in ("trunk", "left", "tool", "right", "free")},
        {
            "base": td.Floating(None, "trunk", child_anchor=(0.02, -0.03, 0.01)),
            "shoulder": td.Spherical(
                "trunk", "left", parent_anchor=(0.1, 0.2, 0), child_anchor=(-0.2, 0, 0), orientation_offset=ONE, damper=0.05
            ),
            "rail": td.Prismatic("left", "tool", axis=(1, 0, 0.2), parent_anchor=(0.2, 0, 0), damper=0.5),
            "hip": td.Revolute("trunk", "right", axis=(0, 1, 0.2), parent_anchor=(0.1, -0.2, 0), child_anchor=(-0.2, 0, 0), damper=0.05),
        },
        timestep=0.01,
    )


def drives_of_all_kinds() -> dict[str, td.Drive]:
    """Carriers that are the reference, the site, another body and the world; frames of the world; rods that reach and one that does not."""
    sites = {
        "trunk": td.Site("trunk", (0.1, 0, 0.05), ONE),
        "tool": td.Site("tool", (0.05, 0.02, 0), TWO),
        "right": td.Site("right", (0.1, 0, 0.02), ONE),
        "free": td.Site("free", (0.02, -0.05, 0.04), TWO),
        "world": td.Site(None, (0.3, 0.1, 0.4), TWO),
    }
    wrench = (0.6, -0.4, 0.5, 0.02, 0.03, -0.04)
    pairs = [("tool", "trunk"), ("trunk", "right"), ("tool", "right"), ("free", "tool"), ("right", "world"), ("world", "free")]
    turns = [("shoulder", "child", wrench[:3]), ("shoulder", "parent", wrench[:3]), ("base", "child", wrench), ("base", "parent", wrench)]
    turns.append(("base", "child", wrench[:3]))
    cranks = [("tool", "right", 3.0), ("free", "world", 3.0), ("world", "right", 3.0), ("right", "free", 0.01)]
    return {
        **{f"{a} at {b}": td.Drive(site=sites[a], reference=sites[b], gear=wrench, **AFFINE) for a, b in pairs},
        "push": td.Drive(site=sites["free"], gear=wrench, **AFFINE),
        "slow": td.Drive(site=sites["tool"], reference=sites["world"], gear=wrench, dynamics="filter", dynamics_numbers=(0.05,), **AFFINE),
        **{f"{joint} in {axes} {len(gear)}": td.Drive(joint=joint, axes=axes, gear=gear, **AFFINE) for joint, axes, gear in turns},
        **{f"{a} on {b}": td.Drive(crank=sites[a], slider=sites[b], rod=rod, gear=0.7, **AFFINE) for a, b, rod in cranks},
    }


def given(mech: td.Mechanism, batch: tuple[int, ...], periods: int) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    n = mech.num_coordinates
    z = mech.to_maximal(0.4 * torch.randn(*batch, n).double(), torch.randn(*batch, n).double())
    ctrl = torch.randn(*batch, periods, len(mech.drives.names)).double()
    return z, ctrl, 0.5 * torch.rand(*batch, mech.drives.num_activations).double()


@pytest.mark.sanitize
@pytest.mark.parametrize("batch", [(), (11,), (2, 3)])
def test_rollouts_and_gradients_are_those_of_the_laws_in_torch(batch: tuple[int, ...]) -> None:
    mech = tree()
    mech.drives = td.Drives(mech, drives_of_all_kinds())
    leaves = [value.requires_grad_() for value in given(mech, batch, 3)]
    results, gradients = [], []
    for call in (lambda f: f(), lambda f: in_torch(mech.drives, f)):
        out = call(lambda: mech.drives.rollout(*leaves, repeat=2))
        assert out.path.z.grad_fn is not None and not out.path.status.any()
        results.append(values(out))
        by_z, *others = torch.autograd.grad(loss(results[-1]), leaves)
        gradients.append([tangent(leaves[0].detach(), by_z), *others])
    same(*results)
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)
    with torch.no_grad():
        same(values(mech.drives.rollout(*[leaf.detach() for leaf in leaves], repeat=2)), results[1])


@pytest.mark.sanitize
@pytest.mark.parametrize("batch", [(), (11,)])
def test_adhesion_to_rough_ground_and_to_a_ball_with_delays(batch: tuple[int, ...]) -> None:
    """Samples of the ground stand behind the parameters of each environment, controls on their way behind the activations."""
    feet = {f"foot{i}": td.NonlinearContact("tripod", point=(x, y, 0), radius=0.05, friction=0.5) for i, (x, y) in enumerate(FEET)}
    balls = {"shape": td.Sphere(0.1), "other_shape": td.Sphere(0.05, position=(0, 0, 0.1)), "other": "tripod", "friction": 0.5}
    mech = td.Mechanism(
        {name: td.Body(1.0, (4e-3, 5e-3, 6e-3)) for name in ("tripod", "ball")},
        contacts={**feet, "ball": td.NonlinearContact("ball", **balls)},
        timestep=0.005,
        options=td.SolverOptions(residual_tol=1e-13),
    )
    mech.replace_ground(td.terrain.rough(0.02, size=(3.0, 3.0), seed=3))
    mech.drives = td.Drives(
        mech,
        {
            "hold": td.Drive(body="tripod", reach=0.05, gear=2.0, delay=0.01, **AFFINE),
            "lift": td.Drive(body="ball", reach=0.5, dynamics="filter", dynamics_numbers=(0.05,), delay=0.003, **AFFINE),
        },
    )
    generator = torch.Generator().manual_seed(2)
    corner = torch.tensor([0.9, 0.6, 0.052, 0.9, 0.6, 0.36]).double()
    place = corner + 0.02 * torch.rand(*batch, 6, generator=generator).double()
    z = mech.initial_state(batch, tripod={"position": place[..., :3]}, ball={"position": place[..., 3:]})
    ctrl = 1.0 + torch.rand(*batch, 4, 2, generator=generator).double()
    act = torch.rand(*batch, mech.drives.num_activations, generator=generator).double()
    leaves = [value.requires_grad_() for value in (z, ctrl, act)]
    results = []
    assert bool((mech.distances(z)[..., :3] < 0.05).any())
    for call in (lambda f: f(), lambda f: in_torch(mech.drives, f)):
        out = call(lambda: mech.drives.rollout(*leaves, repeat=2))
        assert not out.path.status.any()
        by_z, *others = torch.autograd.grad(loss(values(out)), leaves)
        results.append([*[value.detach() for value in values(out)], tangent(z.detach(), by_z), *others])
    assert mech.drives.num_activations == 1 + 2 + 1
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", list(drives_of_all_kinds()))
def test_gradients_are_those_of_differences(name: str) -> None:
    """By state, controls and activations, along random directions, each transmission alone."""
    mech = tree()
    mech.options = td.SolverOptions(residual_tol=1e-13)
    mech.drives = td.Drives(mech, {name: drives_of_all_kinds()[name]})
    z, ctrl, act = given(mech, (), 3)
    assert mech.drives._lowered is not None

    def end(z: Tensor, ctrl: Tensor, act: Tensor) -> Tensor:
        out = mech.drives.rollout(z, ctrl, act)
        return loss([out.path.z[..., 1:, :], out.force])

    leaves = [value.requires_grad_() for value in (z, ctrl, act)]
    slopes = torch.autograd.grad(end(*leaves), leaves)
    generator, eps = torch.Generator().manual_seed(1), 1e-5
    delta = torch.randn(12 * mech.num_bodies, generator=generator).double()
    moves = [torch.randn(leaf.shape, generator=generator).double() for leaf in leaves[1:]]
    with torch.no_grad():

        def moved(sign: float) -> Tensor:
            others = [leaf + sign * eps * move for leaf, move in zip(leaves[1:], moves, strict=True)]
            return end(mech.retract(z, sign * eps * delta), *others)

        difference = float(moved(1) - moved(-1)) / (2 * eps)
        direction = (mech.retract(z, eps * delta) - mech.retract(z, -eps * delta)) / (2 * eps)
    slope = sum(float((grad * along).sum()) for grad, along in zip(slopes, [direction, *moves], strict=True))
    assert slope == pytest.approx(difference, rel=1e-6, abs=1e-6)


def test_numbers_of_each_environment_and_sites_that_move() -> None:
    mech, rod = tree(), torch.tensor([2.0, 3.0, 4.0]).double()
    sites: dict[str, Any] = {"own": td.Site("tool", (0.05, 0.02, 0)), "other": td.Site("right", (0.1, 0, 0.02), ONE)}
    mech.sites.update(sites)
    gear = torch.randn(3, 6, generator=torch.Generator().manual_seed(2)).double()
    mech.drives = td.Drives(
        mech,
        {
            "pair": td.Drive(site="own", reference="other", gear=gear),
            "crank": td.Drive(crank="own", slider="other", rod=rod, bias_numbers=(0.0, -2.0, 0.0)),
        },
    )
    z, ctrl, act = given(mech, (3,), 2)
    before = mech.drives.rollout(z, ctrl, act).path.z
    for _ in range(2):
        ours = mech.drives.rollout(z, ctrl, act)
        same(values(ours), values(in_torch(mech.drives, lambda: mech.drives.rollout(z, ctrl, act))))
        rod *= 1.5
        sites["own"].position += 0.05
    assert not torch.equal(ours.path.z, before)


def test_gradients_by_rods_and_gears_take_the_law_in_torch() -> None:
    mech = tree()
    frames = {"own": td.Site("tool", (0.05, 0.02, 0)), "other": td.Site("right", (0.1, 0, 0.02), ONE)}
    rod, gear = torch.tensor(3.0).double().requires_grad_(), torch.randn(6).double().requires_grad_()
    leaves = [rod, gear]

    def end(rod: Tensor, gear: Tensor) -> Tensor:
        drives = td.Drives(
            mech,
            {
                "crank": td.Drive(crank=frames["own"], slider=frames["other"], rod=rod, bias_numbers=(0.0, -2.0, 0.0)),
                "pair": td.Drive(site=frames["own"], reference=frames["other"], gear=gear),
            },
        )
        torch.manual_seed(3)
        z = mech.to_maximal(0.3 * torch.randn(mech.num_coordinates).double())
        return drives.rollout(z, torch.ones(3, 2).double()).path.z[-1].sum()

    slopes = torch.autograd.grad(end(*leaves), leaves)
    with torch.no_grad():
        for leaf, slope in zip(leaves, slopes, strict=True):
            direction = torch.ones_like(leaf)
            ahead, behind = (end(*(one + sign * 1e-4 * direction if one is leaf else one for one in leaves)) for sign in (1, -1))
            assert float((slope * direction).sum()) == pytest.approx(float(ahead - behind) / 2e-4, rel=1e-6, abs=1e-8)
