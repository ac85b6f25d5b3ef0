"""Near contacts of ellipsoids with all convex shapes: nearest points, steps, gradients."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor

import torchdojo as td
from torchdojo import quaternion as quat
from torchdojo.geometry.convex import convex_of
from torchdojo.geometry.near_terms import near_term
from torchdojo.geometry.polytopes import polytope_of
from torchdojo.native import loader
from torchdojo.native.near import near_terms

pytest.importorskip("scipy")
needs_kernel = pytest.mark.skipif(not loader.available(), reason="needs the compiled kernel")

FLOOR = td.Box((2.0, 2.0, 0.2), position=(0.0, 0.0, -0.1))
EGG = td.Ellipsoid((0.05, 0.03, 0.08), position=(0.01, 0.02, 0.0), orientation=(0.8, 0.6, 0.0, 0.0))
STONE = td.Hull([(0.05, 0, 0), (-0.03, 0.04, 0), (-0.03, -0.04, 0.01), (0, 0, 0.05), (0, 0.01, -0.04)])
OTHERS = {
    "ball": td.Sphere(0.04),
    "capsule": td.Capsule(0.03, 0.1),
    "box": td.Box((0.1, 0.08, 0.06)),
    "cylinder": td.Cylinder(0.05, 0.1),
    "stone": STONE,
    "egg": td.Ellipsoid((0.02, 0.06, 0.04)),
}


def poses(count: int, wide: float) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    q = quat.normalize(torch.randn(2, count, 4, generator=generator, dtype=torch.float64))
    x = wide * torch.randn(2, count, 3, generator=generator, dtype=torch.float64)
    return (x[0], q[0]), (x[1], q[1])


def falling(other: td.Shape, backend: str = "auto", **laws: float) -> td.Mechanism:
    bodies = {"other": td.Body(1.0, shape=other), "egg": td.Body(1.0, shape=EGG)}
    contacts = td.near_contacts("other", other, None, FLOOR) | td.near_contacts("egg", EGG, None, FLOOR, **laws)
    contacts |= td.near_contacts("egg", EGG, "other", other, **laws)
    return td.Mechanism(bodies, (), contacts, options=td.SolverOptions(backend=backend, residual_tol=1e-12))


def start(mech: td.Mechanism, count: int) -> Tensor:
    """The egg above the other shape, both turned and thrown at random."""
    generator = torch.Generator().manual_seed(1)
    z = mech.initial_state((count,), other={"position": (0, 0, 0.12)}, egg={"position": (0, 0, 0.35)}).unflatten(-1, (2, 13)).clone()
    noise = torch.randn(count, 2, 10, generator=generator, dtype=torch.float64)
    z[..., 6:10] = quat.normalize(noise[..., :4])
    z[..., 3:5] += 0.5 * noise[..., 4:6]
    z[:, 1, 5] = -3.0
    z[:, 1, :2] += 0.03 * noise[:, 1, 6:8]
    z[..., 10:] = 5.0 * noise[..., 7:]
    return z.flatten(-2)


@pytest.mark.parametrize("name", OTHERS)
def test_gap_is_the_distance(name: str) -> None:
    """The gap of the only term is the distance; where cores overlap by a little, the way that separates them, to a millimeter."""
    other, egg = polytope_of(OTHERS[name]), polytope_of(EGG)
    for a, b in ((other, egg), (egg, other)):
        pose_a, pose_b = poses(60, 0.06)
        exact = td.distance(convex_of(a), pose_a, convex_of(b), pose_b)
        terms = near_term(a, b, pose_a, pose_b, torch.zeros(60, 3, dtype=torch.float64))
        depth = -exact.distance - a.radius - b.radius
        apart, deep = depth < 0, (depth >= 0) & (depth < 3e-3)
        assert int(apart.sum()) > 10
        for found, expected in zip((terms.gap, terms.normal, terms.point), exact, strict=True):
            torch.testing.assert_close(found[apart], expected[apart], atol=1e-11, rtol=0)
        torch.testing.assert_close(terms.gap[deep], exact.distance[deep], atol=1e-3, rtol=0)


@needs_kernel
@pytest.mark.parametrize("name", OTHERS)
def test_kernel_finds_the_nearest_points_of_the_reference(name: str) -> None:
    mech = falling(OTHERS[name])
    (pose_a, pose_b), count = poses(60, 0.06), 60
    z = torch.zeros(count, 2, 13, dtype=torch.float64)
    for i, (x, q) in enumerate((pose_a, pose_b)):
        z[:, i, :3], z[:, i, 6:10] = x, q
    names = list(mech.contacts)
    slot = names.index("egg_other_near0")
    a, b = list(mech.contacts.values())[slot].shapes
    found = near_terms(mech.backends.map_parameters(mech.options), slot, z.flatten(-2), torch.full((count,), 10.0).double(), 1)
    expected = near_term(a, b, pose_b, pose_a, torch.zeros(count, 3, dtype=torch.float64)).gap
    apart = expected > -a.radius - b.radius
    torch.testing.assert_close(found.gaps[apart, 0], expected[apart], atol=1e-13, rtol=0)
    assert torch.isfinite(found.gaps).all() and (found.counts == 1).all()


@needs_kernel
@pytest.mark.slow
def test_backends_agree() -> None:
    """States, and gradients by states, of steps in which an egg tumbles over a box."""
    mechs = [falling(OTHERS["box"], backend, torsional_friction=1e-3) for backend in ("native", "reference")]
    path = mechs[0].rollout(start(mechs[0], 2), steps=60)
    assert not path.status.any()
    gaps = torch.stack([mechs[0].distances(path.z[:, t]).amin(-1) for t in range(60)], -1)
    states = path.z[torch.arange(2), gaps.argmin(-1)]  # where they touch
    weight = torch.randn(states.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    ends = []
    for mech in mechs:
        leaf = states.clone().requires_grad_(True)
        out = mech.step(leaf)
        assert not out.status.any()
        ends.append((out.z.detach(), *torch.autograd.grad((out.z * weight).sum(), leaf)))
    torch.testing.assert_close(ends[0][0], ends[1][0], atol=1e-10, rtol=0)
    torch.testing.assert_close(ends[0][1], ends[1][1], atol=1e-7, rtol=1e-7)


@needs_kernel
@pytest.mark.parametrize("name", ["box", "cylinder", "stone"])
def test_gradients_agree_with_differences(name: str) -> None:
    mech = falling(OTHERS[name])
    path = mech.rollout(start(mech, 4), steps=60)
    gaps = torch.stack([mech.distances(path.z[:, t]).amin(-1) for t in range(60)], -1)
    near = gaps.argsort(-1)[:, :4]
    states = torch.cat([path.z[i, near[i]] for i in range(4)])
    generator = torch.Generator().manual_seed(0)
    along, weight = torch.randn(2, *states.shape, generator=generator, dtype=torch.float64)
    q = states.unflatten(-1, (2, 13))[..., 6:10]
    turns = along.unflatten(-1, (2, 13))[..., 6:10]
    turns -= (turns * q).sum(-1, keepdim=True) * q

    @torch.no_grad()
    def value(step: float) -> Tensor:
        moved = (states + step * along).unflatten(-1, (2, 13)).clone()
        moved[..., 6:10] = quat.normalize(moved[..., 6:10])
        return (mech.step(moved.flatten(-2)).z * weight).sum(-1)

    leaf = states.clone().requires_grad_(True)
    (mech.step(leaf).z * weight).sum().backward()
    difference = (8 * (value(1e-6) - value(-1e-6)) - value(2e-6) + value(-2e-6)) / 12e-6
    torch.testing.assert_close((leaf.grad * along).sum(-1), difference, rtol=1e-6, atol=1e-6)


@needs_kernel
@pytest.mark.parametrize("name", OTHERS)
def test_thrown_eggs_find_their_steps(name: str) -> None:
    """No step is flagged, and nothing overlaps."""
    mech = falling(OTHERS[name])
    path = mech.rollout(start(mech, 8), steps=100)
    assert not path.status.any()
    gaps = torch.stack([mech.distances(path.z[:, t]).amin(-1) for t in range(1, 101, 3)], -1)
    assert float(gaps.min()) > 0


@needs_kernel
@pytest.mark.parametrize("name", OTHERS)
def test_collisions_keep_momentum_and_lose_energy(name: str) -> None:
    """Of two bodies without gravity, which hit each other with friction."""
    other = OTHERS[name]
    bodies = {"other": td.Body(1.0, shape=other), "egg": td.Body(1.0, shape=EGG)}
    contacts = td.near_contacts("egg", EGG, "other", other, friction=0.4)
    mech = td.Mechanism(bodies, (), contacts, gravity=(0.0, 0.0, 0.0))
    thrown = {"position": (0.01, 0.0, 0.2), "velocity": (0, 0, -2.0), "angular_velocity": (1, 2, 0)}
    path = mech.rollout(mech.initial_state(egg=thrown), steps=30)
    assert not path.status.any()
    velocity = path.z.unflatten(-1, (2, 13))[..., 3:6]
    assert float(velocity[-1, 0].abs().max()) > 0.1  # it was hit
    torch.testing.assert_close(velocity.sum(-2), velocity[:1].sum(-2).expand(31, 3), atol=1e-9, rtol=0)
    energy = mech.kinetic_energy(path.z)
    # Steps of turning bodies change their energy by O(h²), here up to 1e-4 of it.
    assert float((energy[1:] - energy[:-1]).max()) < 1e-4 * float(energy[0]) and float(energy[-1]) < 0.9 * float(energy[0])


@needs_kernel
def test_equal_semi_axes_are_a_ball() -> None:
    ends = []
    for shape in (td.Ellipsoid((0.05, 0.05, 0.05)), td.Sphere(0.05)):
        contacts = td.near_contacts("ball", shape, None, FLOOR, slots=1, torsional_friction=1e-3)
        mech = td.Mechanism({"ball": td.Body(1.0, torch.eye(3) * 1e-3, shape=shape)}, (), contacts)
        z = mech.initial_state(ball={"position": (0, 0, 0.1), "velocity": (0.5, 0, 0), "angular_velocity": (1, 2, 3)})
        ends.append(mech.rollout(z, steps=60))
        assert not ends[-1].status.any()
    torch.testing.assert_close(ends[0].z, ends[1].z, atol=1e-10, rtol=0)


def test_slots_and_terms() -> None:
    contacts = td.near_contacts("egg", EGG, None, FLOOR)
    assert list(contacts) == ["egg_world_near0"]
    (slot,) = contacts.values()
    slot.term = torch.tensor([0.0, 0.0, 0.0], dtype=torch.float64)
    for term in ((0.0, 1.0, 0.0), (1.0, 0.0, 0.0), (2.0, 0.0, 0.0)):
        with pytest.raises(ValueError, match="numbers of features"):
            slot.term = torch.tensor(term, dtype=torch.float64)


@needs_kernel
def test_scenes_leave_out_no_pair_of_an_ellipsoid() -> None:
    """In scenes, ellipsoids touch boxes, cylinders and hulls, and planes at the one place that is nearest."""
    egg = td.Body(1.0, shape=EGG)
    table = td.Cylinder(0.2, 0.1, position=(0.0, 0.0, 0.05))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scene = td.combine(egg=egg, table=table, crate=td.Body(1.0, shape=OTHERS["box"]), floor=td.Plane())
    names = [name for name in scene.contacts if name.startswith("egg")]
    assert sorted(names) == ["egg_crate_near0", "egg_floor", "egg_table_near0"]
    z = scene.initial_state(egg={"position": (0, 0, 0.2)}, crate={"position": (0.5, 0, 0.0301)})
    path = scene.rollout(z, steps=200)
    assert not path.status.any() and float(scene.distances(path.z[-1]).min()) > 0
    assert 0.12 < float(path.z[-1, 2]) < 0.16  # on the table, of 10 cm


def test_an_ellipsoid_goes_over_to_a_height_field() -> None:
    """`replace_ground` leaves none of its contacts on the plane: its contact points feel the surface, with the same numbers."""
    scene = td.combine(egg=td.Body(1.0, shape=EGG), floor=td.Plane(), friction=0.7)
    names = scene.replace_ground(td.terrain.rough(0.02, size=(2.0, 2.0), seed=1))
    assert names == list(scene.contacts) == [f"egg_floor_{k}" for k in range(18)]
    points, radius = EGG.contact_points()
    for contact, point in zip(scene.contacts.values(), points, strict=True):
        assert contact.other_kind == "heights" and float(contact.friction) == pytest.approx(0.7)
        torch.testing.assert_close(contact.point, point)
        torch.testing.assert_close(contact.radius, radius)
