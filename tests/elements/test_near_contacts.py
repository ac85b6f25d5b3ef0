"""Contact between any two convex shapes by near terms: the terms, the slots, and steps with them."""

from __future__ import annotations

import copy
import itertools
import pickle

import numpy as np
import pytest
import torch
from torch import Tensor

import torchdojo as td
from torchdojo import quaternion as quat
from torchdojo.elements.near_contact import NearContact
from torchdojo.engine import near_set, near_slots
from torchdojo.geometry.distance import point_box
from torchdojo.geometry.near_terms import CORNER, REACH, all_terms, near_term
from torchdojo.geometry.polytopes import eroded, polytope_of
from torchdojo.gradients.request import Request, StepInputs
from torchdojo.native import loader

scipy, optimize = pytest.importorskip("scipy"), pytest.importorskip("scipy.optimize")

FLOOR = td.Box((2.0, 2.0, 0.2), position=(0.0, 0.0, -0.1))
BOX = td.Box((0.1, 0.08, 0.06))


def ball_hull(count: int, size: float, seed: int) -> td.Hull:
    points = torch.randn(count, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    points = size * points / torch.linalg.vector_norm(points, dim=-1, keepdim=True)
    return td.Hull(points - td.Hull(points).center)


def one_box(slots: int = 8, **options) -> td.Mechanism:
    contacts = td.near_contacts("box", BOX, None, FLOOR, slots=slots, friction=0.5)
    return td.Mechanism({"box": td.Body(1.0, shape=BOX)}, (), contacts, options=td.SolverOptions(**options))


def hull_on_box(slots: int = 24) -> tuple[td.Mechanism, Tensor]:
    """A box falls onto the floor, and a hull of 14 corners onto both."""
    hull = ball_hull(14, 0.05, 1)
    bodies = {"box": td.Body(1.0, shape=BOX), "hull": td.Body(0.6, shape=hull)}
    contacts = td.near_contacts("box", BOX, None, FLOOR, slots=slots, friction=0.5)
    contacts |= td.near_contacts("hull", hull, "box", BOX, slots=slots, friction=0.4)
    contacts |= td.near_contacts("hull", hull, None, FLOOR, slots=slots)
    mech = td.Mechanism(bodies, (), contacts, options=td.SolverOptions(residual_tol=1e-12))
    start = {
        "box": {"position": (0, 0, 0.05), "velocity": (0.1, 0, -0.5), "angular_velocity": (2, 1, 3)},
        "hull": {"position": (0.01, 0.015, 0.13), "velocity": (0, 0.05, -1), "angular_velocity": (1, 2, 0)},
    }
    return mech, mech.initial_state(**start)


needs_kernel = pytest.mark.skipif(not loader.available(), reason="needs the compiled kernel")

# -- polytopes -----------------------------------------------------------------------------------------------------------------------------


def test_distance_of_points_from_a_box() -> None:
    """As in closed form: outside over faces, edges and corners, and inside."""
    core = polytope_of(BOX)
    points = 0.08 * torch.randn(2000, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected, normal = point_box(points, 0.5 * BOX.size - core.radius)
    distance, found = core.distance(points)
    torch.testing.assert_close(distance, expected, atol=1e-14, rtol=0)
    torch.testing.assert_close(found[expected > 1e-9], normal[expected > 1e-9], atol=1e-9, rtol=0)


def test_normal_is_the_gradient_of_the_distance() -> None:
    core = polytope_of(ball_hull(30, 0.1, 2))
    points = (0.2 * torch.randn(500, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)).requires_grad_(True)
    distance, normal = core.distance(points)
    (gradient,) = torch.autograd.grad(distance.sum(), points)
    torch.testing.assert_close(gradient, normal.detach(), atol=1e-12, rtol=0)
    torch.testing.assert_close(torch.linalg.vector_norm(gradient, dim=-1), torch.ones(500, dtype=torch.float64), atol=1e-12, rtol=0)


def test_rounded_shape_has_the_faces_of_the_sharp_one() -> None:
    hull = ball_hull(20, 0.1, 3)
    core = polytope_of(hull)
    inner = torch.as_tensor(eroded(hull.vertices.numpy(), core.radius))
    corners = hull.vertices[hull.faces]
    normals = torch.linalg.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
    normals = normals / torch.linalg.vector_norm(normals, dim=-1, keepdim=True)
    reach = (inner @ normals.T).amax(0) + core.radius
    torch.testing.assert_close(reach, (corners[:, 0] * normals).sum(-1), atol=1e-9, rtol=0)


@pytest.mark.parametrize("shape", [td.Shape(), td.Hull([[0, 0, 0], [1, 0, 0], [0, 1, 0], [1, 1, 0]])])
def test_shapes_without_a_core(shape: td.Shape) -> None:
    with pytest.raises(ValueError, match="near contacts: got"):
        polytope_of(shape)


# -- terms ---------------------------------------------------------------------------------------------------------------------------------


def distance_of(a: Tensor, b: Tensor) -> float:
    """Distance of the hulls of points (n, 3) and (m, 3), by a quadratic program as non-negative least squares."""
    weight = 1e4
    rows = np.r_[np.c_[a.T, -b.T], weight * np.c_[np.ones((1, len(a))), np.zeros((1, len(b)))]]
    rows = np.r_[rows, weight * np.c_[np.zeros((1, len(a))), np.ones((1, len(b)))]]
    mix = optimize.nnls(rows, np.r_[0, 0, 0, weight, weight])[0]
    return float(np.linalg.norm(mix[: len(a)] @ a.numpy() / mix[: len(a)].sum() - mix[len(a) :] @ b.numpy() / mix[len(a) :].sum()))


@pytest.mark.skipif(scipy.__version__.startswith("1.15"), reason="solutions of scipy.optimize.nnls are wrong in SciPy 1.15")
def test_least_near_term_is_the_distance() -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(60):
        a, b = polytope_of(BOX), polytope_of(ball_hull(10, 0.05, 4))
        q = quat.normalize(torch.randn(4, generator=generator, dtype=torch.float64))
        axis = torch.randn(3, generator=generator, dtype=torch.float64)
        x, one = 0.2 * axis / torch.linalg.vector_norm(axis), torch.tensor([1.0, 0, 0, 0], dtype=torch.float64)
        for _ in range(30):  # towards each other, along the line between their centers
            gap = distance_of(x + quat.rotate(q, a.vertices), b.vertices) - a.radius - b.radius
            if gap < 0.8 * REACH:
                break
            x = x * (1 - 0.9 * (gap - 0.5 * REACH) / float(torch.linalg.vector_norm(x)))
        terms = all_terms(a, b)
        count = len(terms)
        poses = [(place.expand(count, 3), turn.expand(count, 4)) for place, turn in ((x, q), (torch.zeros_like(x), one))]
        found = near_term(a, b, *poses, terms)
        assert abs(float(found.gap[found.possible].min()) - gap) < 1e-6  # the accuracy of the program


@needs_kernel
def test_kernel_finds_the_terms_of_the_reference() -> None:
    mech, z = hull_on_box()
    states = mech.rollout(z, steps=60).z[5::5]
    for pair in near_set.near_pairs(mech):
        reach = torch.linspace(0.5e-3, 2e-2, len(states), dtype=torch.float64)
        terms, counts = mech.backends._search(mech.options, pair, states, reach)
        expected, all_counts = near_set.search_in_torch(pair, states, reach)
        assert torch.equal(counts, all_counts)
        own, other = (near_set.keys(t).sort(-1).values for t in (terms, expected))
        assert torch.equal(own[counts <= len(pair.slots)], other[counts <= len(pair.slots)])


SOLIDS = {
    "box": BOX,
    "rod": td.Box((0.3, 0.02, 0.02)),
    "ball": td.Sphere(0.05),
    "capsule": td.Capsule(radius=0.02, length=0.1),
    "cylinder": td.Cylinder(radius=0.04, length=0.08),
    "hull": ball_hull(14, 0.05, 3),
    "plate": td.Hull(ball_hull(12, 0.05, 4).vertices * torch.tensor([1.0, 1.0, 0.2], dtype=torch.float64)),
}


@needs_kernel
@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param(*pair, marks=[pytest.mark.slow] * ("box" not in pair))
        for pair in (*itertools.combinations(SOLIDS, 2), ("box", "box"), ("plate", "plate"))
    ],
)
def test_search_finds_all_terms(first: str, second: str) -> None:
    """The search looks at few corners and edges. All terms that there are, one by one, give the same set."""
    generator = torch.Generator().manual_seed(0)
    bodies = {name: td.Body(1.0, (0.1, 0.1, 0.1)) for name in "ab"}
    mech = td.Mechanism(bodies, (), td.near_contacts("a", SOLIDS[first], "b", SOLIDS[second], slots=200))
    (pair,) = near_set.near_pairs(mech)
    count = 12
    z = mech.initial_state((count,))
    turned = torch.randn(count, 2, 4, generator=generator, dtype=torch.float64)
    turned[::3] = torch.tensor([1.0, 0.0, 0.0, 0.0], dtype=torch.float64)  # faces on faces
    direction = torch.randn(count, 3, generator=generator, dtype=torch.float64)
    direction[::3] = torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64)
    direction /= torch.linalg.vector_norm(direction, dim=-1, keepdim=True)
    z.view(count, 2, 13)[..., 6:10] = turned / torch.linalg.vector_norm(turned, dim=-1, keepdim=True)
    reach = torch.where(torch.arange(count) % 2 == 0, 1e-3, 1e-2).double()
    near, apart = torch.zeros(count, dtype=torch.float64), torch.full((count,), 0.5, dtype=torch.float64)
    for _ in range(14):  # poses at which the shapes come within a millimeter
        middle = 0.5 * (near + apart)
        z[:, :3] = middle[:, None] * direction
        found = mech.backends._search(mech.options, pair, z, torch.full((count,), 5e-4, dtype=torch.float64))[1] > 0
        near, apart = torch.where(found, middle, near), torch.where(found, apart, middle)
    z[:, :3] = near[:, None] * direction
    terms, counts = mech.backends._search(mech.options, pair, z, reach)
    expected, all_counts = near_set.search_in_torch(pair, z, reach)
    assert torch.equal(counts, all_counts) and bool((counts > 0).any())
    own, other = (near_slots.keys(t).sort(-1).values for t in (terms, expected))
    fits = counts <= len(pair.slots)
    assert torch.equal(own[fits], other[fits])


# -- steps ---------------------------------------------------------------------------------------------------------------------------------


@needs_kernel
def test_backends_agree() -> None:
    mechs = [one_box(backend=backend, residual_tol=1e-12) for backend in ("native", "reference")]
    start = {"position": (0, 0, 0.0304), "velocity": (0.3, 0.1, -0.2), "angular_velocity": (0.3, 0.2, 1.0)}
    z, warm = mechs[0].initial_state(box=start), None
    for _ in range(4):
        outs = [mech.step(z, warm_start=warm) for mech in mechs]
        torch.testing.assert_close(outs[0].z, outs[1].z, atol=1e-10, rtol=0)
        assert [contact.term.tolist() for contact in mechs[0].contacts.values()] == [c.term.tolist() for c in mechs[1].contacts.values()]
        z, warm = outs[0].z, outs[0].solution
    # A cold start in which impulses fade, from the same product: as many iterations, and the same solution.
    none, outs = torch.zeros(0, dtype=torch.float64), []
    for mech in mechs:
        steps = mech.backends.select(Request(mech.options))
        assert isinstance(steps, near_set.NearSteps)
        terms = [torch.stack([slot.term for slot in pair.slots])[None] for pair in steps.pairs]
        outs.append(steps._solve(StepInputs(z, none), terms, 1.0))
    assert int(outs[0].status) == 0 and int(outs[0].iterations) == int(outs[1].iterations) > 1
    torch.testing.assert_close(outs[0].z, outs[1].z, atol=1e-10, rtol=0)


def test_box_comes_to_rest_at_the_gap_of_the_path() -> None:
    mech = one_box()
    path = mech.rollout(mech.initial_state(box={"position": (0, 0, 0.05), "angular_velocity": (3.0, 2.0, 1.0)}), steps=200)
    assert not path.status.any() and float(mech.distances(path.z[1:]).min()) > 0
    gap = 1e-6 / (9.81 * 0.01 / 4)  # κ over the impulse of a corner
    heights = torch.stack([mech.distances(z).sort(-1).values[:4] for z in path.z[-1:]])
    torch.testing.assert_close(heights, torch.full_like(heights, gap), atol=1e-9, rtol=0)
    assert float(path.z[-1, 3:6].abs().max()) < 1e-8


def test_gradients_agree_with_differences() -> None:
    mech, z = hull_on_box()
    states = mech.rollout(z, steps=80).z[6::9]
    generator = torch.Generator().manual_seed(0)
    for state in states:
        along, weight = torch.randn(2, len(state), generator=generator, dtype=torch.float64)
        turns = along.view(2, 13)[:, 6:10]
        turns -= (turns * state.view(2, 13)[:, 6:10]).sum(-1, keepdim=True) * state.view(2, 13)[:, 6:10]

        def value(step: float, state=state, along=along, weight=weight) -> float:
            moved = (state + step * along).view(2, 13).clone()
            moved[:, 6:10] = quat.normalize(moved[:, 6:10])
            return float((mech.step(moved.view(-1)).z * weight).sum())

        leaf = state.clone().requires_grad_(True)
        (mech.step(leaf).z * weight).sum().backward()
        difference = (8 * (value(1e-6) - value(-1e-6)) - value(2e-6) + value(-2e-6)) / 12e-6
        assert float((leaf.grad * along).sum()) == pytest.approx(difference, rel=1e-6, abs=1e-6)


def test_step_does_not_depend_on_slots() -> None:
    """More of them, others, and in another order: impulses beyond the reach are exactly zero."""
    (mech, z), (wide, _) = hull_on_box(), hull_on_box(40)
    states = mech.rollout(z, steps=60).z[8::6]
    for state in states:
        expected = mech.step(state).z
        torch.testing.assert_close(wide.step(state).z, expected, atol=1e-9, rtol=0)
        for pair in near_set.near_pairs(wide):  # the terms of now, the last one first
            kept = [slot.term for slot in pair.slots]
            for slot, term in zip(pair.slots, reversed(kept), strict=True):
                slot.term = term
        torch.testing.assert_close(wide.step(state).z, expected, atol=1e-9, rtol=0)


def test_batch_has_terms_of_its_own() -> None:
    mech, z = hull_on_box()
    states = mech.rollout(z, steps=40).z[::8]
    out = mech.step(states)
    assert not out.status.any()
    assert len({tuple(c.term[i].tolist()) for c in mech.contacts.values() for i in range(len(states))}) > 4
    for i, state in enumerate(states):
        torch.testing.assert_close(out.z[i], mech.step(state).z, atol=1e-9, rtol=0)


def test_jacobians() -> None:
    mech, z = hull_on_box()
    state = mech.rollout(z, steps=20).z[-1]
    by_z, _ = mech.jacobians(state)
    push = torch.zeros(26, dtype=torch.float64)
    push[3], push[13 + 5] = 1.0, -0.5
    step = 1e-6
    moved = [mech.step(state + sign * step * push).z for sign in (1, -1)]
    rows = [0, 1, 2, 3, 4, 5]
    difference = ((moved[0] - moved[1]) / (2 * step))[rows]
    torch.testing.assert_close(by_z[rows][:, 3] - 0.5 * by_z[rows][:, 12 + 5], difference, atol=1e-6, rtol=1e-6)


def test_momentum_of_two_free_bodies_is_kept() -> None:
    hull = ball_hull(14, 0.05, 1)
    bodies = {"box": td.Body(1.0, shape=BOX), "hull": td.Body(0.6, shape=hull)}
    mech = td.Mechanism(bodies, (), td.near_contacts("hull", hull, "box", BOX, slots=24), gravity=(0.0, 0.0, 0.0))
    z = mech.initial_state(hull={"position": (0.01, 0.02, 0.12), "velocity": (0, 0.1, -1), "angular_velocity": (1, 2, 0)})
    path = mech.rollout(z, steps=30)
    assert not path.status.any() and float(path.z[-1, 5].abs()) > 0.1  # the box was hit
    momentum = path.z.unflatten(-1, (2, 13))[..., 3:6] * torch.tensor([1.0, 0.6], dtype=torch.float64)[:, None]
    torch.testing.assert_close(momentum.sum(-2), momentum[:1].sum(-2).expand(31, 3), atol=1e-9, rtol=0)


@pytest.mark.parametrize(("first", "second"), list(itertools.combinations_with_replacement(["sphere", "capsule", "box", "cylinder"], 2)))
def test_all_pairs_rest_on_each_other_or_part(first: str, second: str) -> None:
    shapes = {"sphere": td.Sphere(0.05), "capsule": td.Capsule(0.03, 0.1), "box": BOX, "cylinder": td.Cylinder(0.05, 0.08)}
    a, b = shapes[first], shapes[second]
    bodies = {"a": td.Body(1.0, shape=a), "b": td.Body(1.0, shape=b)}
    contacts = td.near_contacts("b", b, None, FLOOR, slots=32) | td.near_contacts("a", a, "b", b, slots=48)
    contacts |= td.near_contacts("a", a, None, FLOOR, slots=32)
    mech = td.Mechanism(bodies, (), contacts)
    path = mech.rollout(mech.initial_state(b={"position": (0, 0, 0.09)}, a={"position": (0.01, 0.005, 0.25)}), steps=60)
    assert not path.status.any()
    assert float(mech.distances(path.z[-1]).min()) > 0


def poured_hulls(count: int, slots: int = 48) -> tuple[td.Mechanism, Tensor]:
    """Hulls above each other that fall onto the floor at 4 m/s."""
    shapes = {f"hull{i}": ball_hull(12, 0.05, i) for i in range(count)}
    contacts: dict[str, NearContact] = {}
    for name, shape in shapes.items():
        contacts |= td.near_contacts(name, shape, None, FLOOR, slots=slots)
    for a, b in itertools.combinations(shapes, 2):
        contacts |= td.near_contacts(a, shapes[a], b, shapes[b], slots=slots)
    generator = torch.Generator().manual_seed(count)
    aside, spin = (torch.randn(count, 3, generator=generator) * torch.tensor(scale) for scale in ((0.03, 0.03, 0.0), (3.0, 3.0, 3.0)))
    start = {
        name: {"position": (*aside[i, :2].tolist(), 0.1 + 0.12 * i), "velocity": (0, 0, -4.0), "angular_velocity": spin[i].tolist()}
        for i, name in enumerate(shapes)
    }
    mech = td.Mechanism({name: td.Body(0.3, shape=shape) for name, shape in shapes.items()}, (), contacts)
    return mech, mech.initial_state(**start)


@needs_kernel
@pytest.mark.parametrize(("count", "steps"), [(3, 6), pytest.param(4, 30, marks=pytest.mark.slow)])
def test_hulls_that_are_poured_find_their_steps(count: int, steps: int) -> None:
    """Terms that are added while a step is solved are not dropped again when it starts anew."""
    mech, z = poured_hulls(count)
    path = mech.rollout(z, steps=steps)
    assert not path.status.any()
    assert float(mech.distances(path.z[1:]).min()) > 0


class Slowly(near_set.NearSteps):
    """Steps whose terms are chosen in Python."""

    def _in_kernel(self, given, keep_solutions):
        return None


@needs_kernel
def test_rollout_in_the_kernel_is_the_loop_in_python() -> None:
    """States, and gradients by states and wrenches, of environments with terms of their own."""
    ends = []
    for kind in (near_set.NearSteps, Slowly):
        mech, z = hull_on_box()
        quick = mech.backends.select(Request(mech.options))
        assert isinstance(quick, near_set.NearSteps)
        steps = kind(quick.structure, quick.request, quick.pairs, quick._select, quick._bare, quick._memory, quick._search)
        start = torch.stack((z, z, z))
        start[1, 2] += 0.004
        start[2, 13] += 0.003
        start.requires_grad_(True)
        wrench = torch.zeros(12, dtype=torch.float64, requires_grad=True)
        path = steps.rollout(StepInputs(start, torch.zeros(14, 0, dtype=torch.float64), wrench), True)
        assert not path.status.any()
        weight = torch.randn(path.z.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        gradients = torch.autograd.grad((path.z * weight).sum(), (start, wrench))
        ends.append((path, gradients))
    (quick_path, by_quick), (path, gradients) = ends
    torch.testing.assert_close(quick_path.z, path.z, atol=1e-10, rtol=0)
    for own, expected in zip(by_quick, gradients, strict=True):
        torch.testing.assert_close(own, expected, atol=1e-8, rtol=1e-8)
    assert quick_path.solution.shape == path.solution.shape


@needs_kernel
def test_rollouts_of_another_batch() -> None:
    mech = one_box()
    z = mech.initial_state(box={"position": (0, 0, 0.0302)})
    expected = mech.rollout(z, steps=6).z[-1]
    for batch in ((2,), (3,), ()):
        torch.testing.assert_close(
            mech.rollout(z.expand(*batch, 13), steps=6).z[..., -1, :], expected.expand(*batch, 13), atol=1e-9, rtol=0
        )


def test_overflow_flags_one_environment() -> None:
    """An environment with more terms than slots keeps its state, others go on."""
    mech = one_box(slots=3)
    low, high = (mech.initial_state(box={"position": (0, 0, height)}) for height in (0.0302, 0.2))
    with pytest.warns(UserWarning, match=r"[48] terms .* slots, 3"):
        path = mech.rollout(torch.stack((low, high)), steps=3)
    assert int(path.status[0, -1]) == int(td.Status.MAX_ITERATIONS) and not path.status[1].any()
    assert torch.equal(path.z[0, -1], path.z[0, -2]) and float(path.z[1, -1, 2]) < 0.2


# -- bad input -----------------------------------------------------------------------------------------------------------------------------


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="slots: got 0"):
        td.near_contacts("box", BOX, None, FLOOR, slots=0)
    with pytest.raises(ValueError, match="two different bodies"):
        td.near_contacts("box", BOX, "box", BOX)
    with pytest.raises(ValueError, match="thinner"):
        polytope_of(ball_hull(8, 0.01, 0), radius=0.02)
    with pytest.raises(TypeError, match="bounciness"):
        td.near_contacts("box", BOX, None, FLOOR, bounciness=0.1)
    with pytest.raises(ValueError, match="torsional_friction"):
        td.near_contacts("box", BOX, None, FLOOR, torsional_friction=-1.0)
    mech = one_box(slots=3)
    with pytest.warns(UserWarning, match=r"[48] terms .* slots, 3"):
        path = mech.rollout(mech.initial_state(box={"position": (0, 0, 0.0302)}), steps=20)
    assert int(path.status[-1]) == int(td.Status.MAX_ITERATIONS)
    mech = one_box()
    z = mech.initial_state(box={"position": (0, 0, 0.0302)})
    with pytest.raises(RuntimeError, match=r"torch\.func"):
        torch.func.vmap(lambda state: mech.step(state).z)(torch.stack([z, z]))
    assert int(mech.step(torch.full_like(z, torch.nan)).status) != 0


@pytest.mark.parametrize(
    ("shape", "message"),
    [(td.Box((0.1, 0.1, 1e-4)), "Box of 0.0001 m at its thinnest"), (td.Cylinder(5e-5, 0.1), "Cylinder of 0.0001 m at its thinnest")],
)
def test_shapes_too_thin_for_their_edges(shape: td.Shape, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        td.near_contacts("a", shape, None, FLOOR)
    assert polytope_of(shape, 1e-5).radius == 1e-5


@pytest.mark.parametrize("radius", [0.0, -1e-3, float("nan"), float("inf")])
def test_radii_are_positive_lengths(radius: float) -> None:
    with pytest.raises(ValueError, match=r"radius=.*positive lengths"):
        td.near_contacts("a", BOX, None, FLOOR, radius=radius)


@pytest.mark.parametrize(("body", "other", "unknown"), [("b", None, "b"), ("a", "c", "c")])
def test_unknown_bodies_are_named(body: str, other: str | None, unknown: str) -> None:
    with pytest.raises(ValueError, match=f"refers to body '{unknown}'; bodies are"):
        td.Mechanism({"a": td.Body(1.0, shape=BOX)}, (), td.near_contacts(body, BOX, other, FLOOR))


def test_report_copies_and_scenes() -> None:
    """Forces of slots carry the weight, copies have pairs of their own, and parts keep their slots."""
    mech = one_box()
    z = mech.initial_state(box={"position": (0, 0, 0.0302)})
    path = mech.rollout(z, steps=60)
    report = mech.contact_report(path.z[-1], mech.step(path.z[-2], warm_start=path.solution[-1]))
    assert int(report.active.sum()) == 4
    torch.testing.assert_close(report.forces.sum(0), torch.tensor([0, 0, 9.81], dtype=torch.float64), atol=1e-6, rtol=0)
    for other in (copy.deepcopy(mech), pickle.loads(pickle.dumps(mech))):
        torch.testing.assert_close(other.rollout(z, steps=60).z, path.z, atol=1e-9, rtol=0)
    both = td.combine(left=one_box(), right=one_box())
    place = {f"{side}/box": {"position": (x, 0, 0.0302)} for side, x in (("left", -0.3), ("right", 0.3))}
    end = both.rollout(both.initial_state(**place), steps=60)
    assert not end.status.any()
    torch.testing.assert_close(end.z[-1, [2, 15]], path.z[-1, [2, 2]], atol=1e-9, rtol=0)


def test_slot_is_a_contact() -> None:
    contact = NearContact("box", shapes=(polytope_of(BOX), polytope_of(FLOOR)), friction=0.7)
    assert contact.term.tolist() == [-1, 0, 0] and float(contact.friction) == 0.7
    contact.term = (float(CORNER), 2.0, 0.0)
    assert contact.body_names == ("box",)
    for wrong in ((3.0, 0.0, 0.0), (0.0, 8.0, 0.0), (2.0, 0.0, 12.0), (0.5, 0.0, 0.0), (0.0, -1.0, 0.0)):
        with pytest.raises(ValueError, match="term"):
            contact.term = wrong


def test_energy_from_nothing_is_flagged() -> None:
    """A step that ends faster than free bodies can be is another root: the environment keeps its state."""
    mech = one_box()
    z = mech.initial_state(box={"position": (0, 0, 0.2)})
    steps = mech.backends.select(Request(mech.options))
    assert isinstance(steps, near_set.NearSteps)
    solve = steps._select

    class Fast:
        def step(self, given):
            out = solve(steps.request).step(given)
            faster = out.z.clone()
            faster[3:6] += 50.0
            return out._replace(z=faster)

    steps._select = steps._bare = lambda request: Fast()
    out = steps.step(StepInputs(z, torch.zeros(0, dtype=torch.float64)))
    assert int(out.status) == int(td.Status.MAX_ITERATIONS)
    assert torch.equal(out.z, z) and not out.impulses.any()
