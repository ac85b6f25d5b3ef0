"""Mechanisms with many points on half-spaces and no near contacts: rollouts leave out far points, and come to the same solution.

Rollouts with `repeat` have all points in the problem. So a period of two steps is the measure of two steps.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

import torchdojo as td
from torchdojo.native import loader

pytestmark = [pytest.mark.skipif(not loader.available(), reason="needs the compiled kernel"), pytest.mark.sanitize]

TOLERANCE = 1e-8  # both solve to 1e-11; ten steps of light boxes in contact carry that on
HALF = (0.06, 0.05, 0.03)


def boxes(points: int = 5, friction: float | Tensor = 0.5, **options: Any) -> td.Mechanism:
    """Two boxes on a hinge, with a grid of points on the top and the bottom of each, 2 · 2 · points²."""
    grid = torch.linspace(-1, 1, points).tolist()
    contacts = {
        f"{body}{k}": td.NonlinearContact(body, point=(HALF[0] * x, HALF[1] * y, HALF[2] * side), radius=0.004, friction=friction)
        for body in ("box", "lid")
        for k, (side, x, y) in enumerate(itertools.product((-1, 1), grid, grid))
    }
    shape = td.Box((2 * HALF[0], 2 * HALF[1], 2 * HALF[2]))
    hinge = td.Revolute("box", "lid", axis=(0, 1, 0), parent_anchor=(0.07, 0, 0), child_anchor=(-0.07, 0, 0), damper=1e-3)
    options = {"residual_tol": 1e-11, "central_path_tol": 1e-7, **options}
    return td.Mechanism(
        {"box": td.Body(1.0, shape=shape), "lid": td.Body(0.5, shape=shape)},
        {"hinge": hinge},
        contacts,
        timestep=0.005,
        options=td.SolverOptions(**options),
    )


def starts(mech: td.Mechanism, batch: int) -> Tensor:
    """Boxes that lie, fall and turn, so that each environment has other points near the ground."""
    generator = torch.Generator().manual_seed(1)

    def random(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator, dtype=torch.float64)

    lies = (torch.arange(batch) % 3 == 0)[:, None]
    turn = torch.where(lies, 0.0, random(batch, 3) - 0.5)
    position = torch.cat((random(batch, 2), torch.where(lies, 0.0345, 0.12 + 0.2 * random(batch, 1))), -1)
    box = {
        "position": position,
        "orientation": torch.nn.functional.normalize(torch.cat((torch.ones(batch, 1, dtype=torch.float64), turn), -1), dim=-1),
        "velocity": random(batch, 3) - 0.5,
        "angular_velocity": torch.where(lies, 0.0, 6 * random(batch, 3) - 3),
    }
    return mech.initial_state(batch, box=box, hinge={"q": torch.where(lies, 0.0, 0.4 * random(batch, 1))})


def periods(mech: td.Mechanism, z: Tensor, count: int, **options: Any) -> td.Trajectory:
    """Steps with all points, two by two."""
    return mech.rollout(z, steps=count // 2, repeat=2, **options)


def test_states_impulses_and_solutions_are_those_with_all_points() -> None:
    mech = boxes()
    z = starts(mech, 30)
    ours, theirs = mech.rollout(z, steps=40), periods(mech, z, 40)
    assert not ours.status.any() and not theirs.status.any()
    torch.testing.assert_close(ours.z[:, ::2], theirs.z, atol=TOLERANCE, rtol=0)
    both = ours.impulses.unflatten(1, (-1, 2)).sum(2)
    torch.testing.assert_close(both, theirs.impulses, atol=TOLERANCE, rtol=0)
    torch.testing.assert_close(ours.solution[:, -1], theirs.solution[:, -1], atol=1e-6, rtol=1e-6)  # slacks have velocities, times 1/h
    touching = (ours.impulses[:, :, mech.impulse_layout["contacts.box0"]][..., 0] > 1e-4).sum(0)
    assert bool((touching[0] != touching[-1]).any())
    again = mech.rollout(ours.z[:, -1], steps=4, warm_start=ours.solution[:, -1], keep_solutions=True)
    torch.testing.assert_close(again.z[:, ::2], periods(mech, theirs.z[:, -1], 4, warm_start=theirs.solution[:, -1]).z, atol=1e-7, rtol=0)
    assert again.solution.shape[1] == 4 and bool(again.solution.any(-1).all())


def test_a_step_is_a_rollout_of_one() -> None:
    mech = boxes()
    z = starts(mech, 9)
    out, path = mech.step(z), mech.rollout(z, steps=1)
    assert torch.equal(out.z, path.z[:, 1]) and torch.equal(out.solution, path.solution[:, 0])


@pytest.mark.parametrize("near", [False, True])
def test_neither_neighbors_nor_threads_change_a_bit(near: bool) -> None:
    """Near contacts: threads alone. Which slots an environment is solved with depends on its neighbors, and rounding with it."""
    mech = boxes()
    if near:
        shape = td.Box((2 * HALF[0], 2 * HALF[1], 2 * HALF[2]))
        more = td.near_contacts("box", shape, None, td.Box((4.0, 4.0, 0.2), position=(0.0, 0.0, -0.1)))
        mech = td.Mechanism(dict(mech.bodies), dict(mech.joints), {**mech.contacts, **more}, timestep=0.005, options=mech.options)
    z = starts(mech, 203)
    before, wanted = torch.get_num_threads(), mech.rollout(z, steps=30)
    assert not wanted.status.any()
    try:
        for threads in (1, 2, 3, 5):
            torch.set_num_threads(threads)
            seen = mech.rollout(z, steps=30)
            assert all(torch.equal(a, b) for a, b in zip(seen[:1] + seen[2:], wanted[:1] + wanted[2:], strict=True)), threads
    finally:
        torch.set_num_threads(before)
    for some in [slice(0, 8), slice(77, 80), slice(100, 203)] * (not near):
        alone = mech.rollout(z[some], steps=30)
        assert torch.equal(alone.z, wanted.z[some]) and torch.equal(alone.impulses, wanted.impulses[some])


def test_gradients_count_far_points() -> None:
    mech = boxes()
    z = starts(mech, 6)
    weights = torch.linspace(-1, 1, z.shape[-1], dtype=torch.float64)
    results = []
    for run in (lambda z: mech.rollout(z, steps=10).z[:, -1], lambda z: periods(mech, z, 10).z[:, -1]):
        leaf = z.clone().requires_grad_()
        friction = mech.contacts["box3"].friction.requires_grad_()
        results.append(torch.autograd.grad((run(leaf) * weights).sum(), (leaf, friction)))
    scale = float(results[1][0].abs().max())
    torch.testing.assert_close(results[0][0], results[1][0], atol=1e-6 * scale, rtol=0)
    torch.testing.assert_close(results[0][1], results[1][1], atol=1e-6 * scale, rtol=1e-6)


def test_environments_may_have_numbers_of_their_own() -> None:
    friction = torch.linspace(0.1, 1.0, 12, dtype=torch.float64)
    mech = boxes(friction=friction)
    z = starts(mech, 12)
    ours = mech.rollout(z, steps=20)
    torch.testing.assert_close(ours.z[:, ::2], periods(mech, z, 20).z, atol=TOLERANCE, rtol=0)
    one = boxes(friction=float(friction[7]))
    torch.testing.assert_close(ours.z[7], one.rollout(z[7], steps=20).z, atol=TOLERANCE, rtol=0)


def test_what_fails_or_is_split_is_as_with_all_points() -> None:
    """Invalid states, a box that spins too fast for its timestep, one inside the ground, and a NaN in a far point of one environment."""
    mech = boxes(friction=torch.full((6,), 0.5, dtype=torch.float64))
    with torch.no_grad():
        mech.contacts["lid40"].friction[4] = torch.nan
    z = starts(mech, 6)
    z[1, 3] = torch.nan
    z[2, 10:13] = torch.tensor([0.0, 0.0, 500.0], dtype=torch.float64)
    z[3, 2::13] -= 0.1
    ours, theirs = mech.rollout(z, steps=2), periods(mech, z, 2)
    worst, invalid = ours.status.amax(1), int(td.Status.INVALID_INPUT)
    assert worst.tolist() == theirs.status.amax(1).tolist()
    assert worst[[0, 1, 4, 5]].tolist() == [0, invalid, invalid, 0]
    assert ours.substeps.sum(1)[2] == theirs.substeps.sum(1)[2] > 2
    for n in (0, 2, 3, 5):
        torch.testing.assert_close(ours.z[n, -1], theirs.z[n, -1], atol=1e-7, rtol=1e-7)


def test_points_that_come_near_within_a_step_are_taken_up() -> None:
    """Boxes at rest, 25 mm above the ground and beyond the margin of 21 mm: a wrench gives them 8 m/s in the first step, 40 mm in 5 ms."""
    mech = boxes()
    z = mech.initial_state(4, box={"position": (0.0, 0.0, HALF[2] + 0.004 + 0.025)})
    wrench = torch.zeros(12, dtype=torch.float64)
    wrench[2], wrench[8] = -1600.0, -800.0
    ours, theirs = mech.rollout(z, steps=6, wrench=wrench), periods(mech, z, 6, wrench=wrench)
    assert not ours.status.any() and bool((ours.z[:, :, 2::13] > HALF[2]).all())
    normals = torch.stack([ours.impulses[:, 0, mech.impulse_layout[f"contacts.{name}"]][..., 0] for name in mech.contacts])
    assert bool((normals.sum(0) > 3.0).all())  # [N·s], of 12 that come down
    torch.testing.assert_close(ours.z[:, ::2], theirs.z, atol=1e-7, rtol=0)


def test_few_points_stay_in_the_problem() -> None:
    mech = boxes(points=3)  # 36 points
    z = starts(mech, 5)
    ours, theirs = mech.rollout(z, steps=6), periods(mech, z, 6)
    assert torch.equal(ours.z[:, ::2], theirs.z)
