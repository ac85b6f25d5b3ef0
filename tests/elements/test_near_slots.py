"""Empty slots of near contacts: steps, derivatives and costs are those of the mechanism without them."""

from __future__ import annotations

import dataclasses
import itertools
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

import torchdojo as td
from torchdojo.native import graph, loader

pytestmark = pytest.mark.skipif(not loader.available(), reason="needs the compiled kernel")

BOX = td.Box((0.1, 0.08, 0.06))
FLOOR = td.Box((4.0, 4.0, 0.2), position=(0.0, 0.0, -0.1))
NAMES = [f"box{i}" for i in range(6)]
OPTIONS = td.SolverOptions(residual_tol=1e-11)


def boxes(pairs: list[tuple[int, int]], grounded: list[int], slots: int, **arguments: float) -> td.Mechanism:
    """Boxes, of which the last two are joined by a hinge, with near contacts of these pairs, and a sphere under the fourth one."""
    contacts: dict[str, td.Contact] = {}
    for i in grounded:
        contacts |= td.near_contacts(NAMES[i], BOX, None, FLOOR, slots=slots, **arguments)
    contacts["foot"] = td.NonlinearContact(NAMES[3], point=(0.0, 0.0, -0.03), radius=0.01)
    for i, j in pairs:
        contacts |= td.near_contacts(NAMES[j], BOX, NAMES[i], BOX, slots=slots, **arguments)
    joints = {"hinge": td.Revolute(NAMES[4], NAMES[5], axis=(0, 1, 0), parent_anchor=(0.06, 0, 0), child_anchor=(-0.06, 0, 0), damper=1e-3)}
    return td.Mechanism({name: td.Body(1.0, shape=BOX) for name in NAMES}, joints, contacts, options=OPTIONS)


def states(mech: td.Mechanism) -> Tensor:
    """Boxes 1 on 0, 2 tilted above them, 3 apart, and 4 and 5 apart; the second environment differs in what touches."""
    places = [(0, 0, 0.0302), (0.01, 0, 0.0904), (0, 0.01, 0.152), (0.5, 0, 0.0402), (1.0, 0, 0.0302)]
    z = mech.initial_state(**{name: {"position": place} for name, place in zip(NAMES, places, strict=False)}).repeat(3, 1)
    motion = torch.randn(3, 6, 13, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    z.view(3, 6, 13)[:, :4, 3:6] += 0.05 * motion[:, :4, 3:6]
    z.view(3, 6, 13)[1, 1:3, 2] += 0.05
    z.view(3, 6, 13)[2, :, 2] += 0.3
    return z


FEW = ([(0, 1), (1, 2)], [0, 4, 5])
MANY = (list(itertools.combinations(range(6), 2))[:-1], list(range(6)))  # but for the bodies of the hinge


def test_far_pairs_change_nothing() -> None:
    """Steps, gradients by states and frictions, and Jacobians, of environments that touch in different places."""
    few, many = boxes(*FEW, slots=8), boxes(*MANY, slots=12)
    z, weights = states(few), torch.randn(78, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    warm: list[Tensor | None] = [None, None]
    for _ in range(3):
        results = []
        for i, mech in enumerate((few, many)):
            leaf = z.clone().requires_grad_(True)
            frictions = [contact.friction.requires_grad_(True) for name, contact in mech.contacts.items() if name.startswith("box0_world")]
            out = mech.step(leaf, warm_start=warm[i])
            by_state, *by_friction = torch.autograd.grad((out.z * weights).sum(), (leaf, *frictions))
            by_z, _ = mech.jacobians(z, warm_start=warm[i])
            results.append((out.z.detach(), by_state, sum(by_friction), by_z.detach(), out.iterations))
            assert not out.status.any()
            warm[i] = out.solution.detach()
        assert torch.equal(results[0][-1], results[1][-1])
        torch.testing.assert_close(results[1][0], results[0][0], atol=1e-12, rtol=0)
        torch.testing.assert_close(results[1][1:4], results[0][1:4], atol=1e-12, rtol=1e-8)
        z = results[0][0]


def test_numbers_of_empty_slots_are_zero() -> None:
    """Solutions and impulses; those of a failed step all are."""
    mech = boxes(*MANY, slots=12)
    z = states(mech)
    z[1, 0] = torch.nan
    out = mech.step(z)
    assert out.status.tolist() == [0, int(td.Status.INVALID_INPUT), 0]
    assert not out.solution[1].any() and not out.impulses[1].any()
    empty = 0
    for name, contact in mech.contacts.items():
        if name == "foot":
            continue
        chosen = contact.term[..., 0].expand(3) < 0
        chosen[1] = False
        empty += int(chosen.sum())
        solution = out.solution[:, mech.layout.impulses[f"contacts.{name}"]]
        assert not out.impulses[chosen][:, mech.impulse_layout[f"contacts.{name}"]].any() and not solution[chosen].any()
        assert bool((solution[[0, 2]][~chosen[[0, 2]]][..., 0] > 0).all())
    assert empty > 400


def test_terms_that_come_into_empty_slots_start_on_the_path() -> None:
    """A box comes down slowly: where terms come into slots whose solution is zero, the warm start is still one, unlike no start."""
    mech, z = boxes(*FEW, slots=8), states(boxes(*FEW, slots=8))[:1]
    z.view(1, 6, 13)[:, :, 3:6] = 0.0
    z.view(1, 6, 13)[:, :3, 2] += 3e-3
    slots = [contact for name, contact in mech.contacts.items() if name != "foot"]
    warm, entered, before = mech.step(z).solution, 0, 0
    for _ in range(60):
        cold = boxes(*FEW, slots=8).step(z)
        out = mech.step(z, warm_start=warm)
        filled = sum(int((slot.term[..., 0] >= 0).sum()) for slot in slots)
        if filled > before:
            entered += 1
            assert int(out.iterations) < int(cold.iterations)
        assert not out.status.any()
        torch.testing.assert_close(out.z, cold.z, atol=1e-8, rtol=0)
        z, warm, before = out.z, out.solution, filled
    assert entered >= 2


def test_the_reference_starts_from_solutions_of_the_kernel() -> None:
    """The kernel leaves zeros for empty slots, which are no start by themselves: the reference took 355 iterations in place of 7."""
    pair: tuple[list[tuple[int, int]], list[int]] = ([(0, 1)], [0])
    mech, reference = boxes(*pair, slots=16, torsional_friction=0.01), boxes(*pair, slots=16, torsional_friction=0.01)
    reference.options = dataclasses.replace(OPTIONS, backend="reference")
    out = mech.step(states(mech)[:2])
    ours, theirs = mech.step(out.z, warm_start=out.solution), reference.step(out.z, warm_start=out.solution)
    assert not ours.status.any() and not theirs.status.any()
    assert bool((theirs.iterations <= ours.iterations + 2).all())  # the reference has the empty slots in its problem
    torch.testing.assert_close(theirs.z, ours.z, atol=1e-10, rtol=0)


def test_terms_leave_their_slots_when_they_are_no_longer_near() -> None:
    """Each one that stayed would cost as much as one that acts."""
    mech = boxes(*FEW, slots=8)
    z = states(mech)
    out = mech.step(z)
    slots = [contact for name, contact in mech.contacts.items() if name != "foot"]
    assert sum(int((slot.term[..., 0] >= 0).sum()) for slot in slots) > 10
    apart = z.view(3, 6, 13).clone()
    apart[..., 2] += 0.5 + torch.arange(6)
    apart[..., 4:6, 2] = z.view(3, 6, 13)[..., 4:6, 2] + 9.0  # the bodies of the hinge
    mech.step(apart.view(3, -1), warm_start=out.solution)
    assert all((slot.term[..., 0] < 0).all() for slot in slots)


def test_order_without_rare_edges() -> None:
    """Rare blocks have places, and change neither the order nor what is zero without them."""
    chain = [(i, i + 1) for i in range(9)]
    plain, full = graph.schedule([6] * 10, chain), graph.schedule([6] * 10, chain, rare=[(0, 9), (3, 7)])
    assert full.order == plain.order and plain.fill == 0 < full.fill
    assert {(0, 9), (9, 0), (3, 7), (7, 3)} <= set(full.offset)


def test_height_fields_beside_slots() -> None:
    """A ball on a height field moves as without the boxes, whose slots are empty but for those on the floor; so do its gradients."""
    heights = 0.02 * torch.randn(8, 8, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    results = []
    for with_boxes in (False, True):
        field = td.HeightField(heights, 0.1, origin=(-0.4, -0.4))
        bodies = {"ball": td.Body(0.5, (1e-3,) * 3)}
        contacts: dict[str, td.Contact] = {}
        if with_boxes:
            bodies |= {name: td.Body(1.0, shape=BOX) for name in NAMES[:2]}
            contacts |= td.near_contacts("box0", BOX, None, FLOOR) | td.near_contacts("box1", BOX, "box0", BOX)
        contacts["skin"] = td.NonlinearContact("ball", radius=0.05, friction=0.4, other_shape=field)
        mech = td.Mechanism(bodies, (), contacts, options=OPTIONS)
        start: dict[str, dict[str, tuple[float, ...]]] = {"ball": {"position": (0.02, 0.03, 0.06), "velocity": (0.3, 0.1, -0.5)}}
        if with_boxes:
            start |= {"box0": {"position": (2.0, 0.0, 0.0301)}, "box1": {"position": (3.0, 0.0, 0.5)}}
        z = mech.initial_state(**start)
        samples = mech.contacts["skin"].ground.heights.requires_grad_(True)
        for _ in range(4):
            z = mech.step(z).z
        results.append((z[:13].detach(), torch.autograd.grad(z[:6].sum(), samples)[0]))
    torch.testing.assert_close(results[1], results[0], atol=1e-9, rtol=0)
    assert bool(results[0][1].any())


@pytest.mark.slow
def test_benchmark_of_the_search_reads_the_cores() -> None:
    """It is compiled apart from the kernel, and reads the same words."""
    script = Path(__file__).parents[2] / "scripts" / "bench_near_contacts.py"
    process = subprocess.run([sys.executable, str(script), "none"], capture_output=True, text=True, timeout=300)
    assert process.returncode == 0, process.stderr
    assert "broad phase of 3003 pairs" in process.stdout and process.stdout.count("hulls of 64 points, tilt") == 4
