"""Contacts between bodies: momentum, gradients, stacks, and all new kinds of contact as modules."""

from __future__ import annotations

import copy
import itertools
import pickle

import pytest
import torch
from test_contacts import MODELS, OPTIONS, cube
from torch import Tensor

import torchdojo as td

# -- between bodies ------------------------------------------------------------------------------------------------------------------

SHAPES: dict[str, td.Shape] = {"sphere": td.Sphere(0.2), "capsule": td.Capsule(0.15, 0.4), "box": td.Box((0.3, 0.4, 0.35))}
PAIRS = list(itertools.product(SHAPES, SHAPES))


def two_bodies(a: str, b: str, model: type[td.Contact], **arguments: object) -> td.Mechanism:
    return td.Mechanism(
        {"a": td.Body(1.0, shape=SHAPES[a]), "b": td.Body(1.7, shape=SHAPES[b])},
        contacts={"touch": model("a", shape=SHAPES[a], other="b", other_shape=SHAPES[b], **arguments)},
        gravity=(0, 0, 0),
        options=td.SolverOptions(kappa=1e-6, residual_tol=1e-12),
    )


def collision(mech: td.Mechanism, height: float = 0.7) -> Tensor:
    """Body a falls on b, off its center, both turning, both flying past at 23 m/s."""
    q = torch.randn(2, 4, generator=torch.Generator().manual_seed(1))
    q = q / q.norm(dim=-1, keepdim=True)
    common = torch.tensor((20.0, 10.0, 5.0))
    return mech.initial_state(
        a=dict(
            position=(0.05, 0.03, height), velocity=common + torch.tensor((0.3, 0.1, -3.0)), orientation=q[0], angular_velocity=(1, 2, 3)
        ),
        b=dict(velocity=common, orientation=q[1], angular_velocity=(-2.0, 1.0, 0.5)),
    )


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_collisions_conserve_momentum(a: str, b: str, model: str) -> None:
    mech = two_bodies(a, b, MODELS[model])
    out = mech.rollout(collision(mech), steps=18)
    assert not out.status.any() and int(out.substeps.max()) == 1
    assert float(out.impulses[:, 0].max()) > 0.3 and float(mech.distances(out.z).min()) > 0
    momentum = mech.momentum(out.z)
    # Residuals of 1e-12 over a dozen steps with contact; momenta are of order 60 kg m/s.
    assert float((momentum - momentum[0]).abs().max()) < 1e-10
    energy = mech.kinetic_energy(out.z)
    assert float(energy[-1]) < float(energy[0])


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_gradients_between_bodies(a: str, b: str, model: str) -> None:
    """Gradients of the step in which the bodies collide, by states, sizes, poses of shapes and masses."""
    mech = two_bodies(a, b, MODELS[model], restitution=0.4)
    mech.options = td.SolverOptions(kappa=1e-4)
    z = collision(mech)
    with torch.no_grad():
        path = mech.rollout(z, steps=18)
    hit = int((path.impulses[:, 0] > 0.3).nonzero()[0])
    report = td.testing.check_gradients(mech, path.z[hit], parameters=["contacts", "bodies.a.mass"], directions=8, tolerance=1e-6)
    size = {"sphere": "radius", "capsule": "length", "box": "size"}[b]
    assert f"contacts.touch.other_{size} -> state" in report.errors


def test_a_fixed_box_is_a_floor() -> None:
    """A large box under the world's origin acts as the half-space does, on a tumbling cube with friction."""
    floor = td.Box((20.0, 20.0, 1.0), position=(0.0, 0.0, -0.5))
    flat, boxed = cube(td.NonlinearContact), cube(td.NonlinearContact, other_shape=floor)
    for mech in (flat, boxed):
        mech.options = td.SolverOptions(kappa=1e-6, residual_tol=1e-12, central_path_tol=1e-9)
    z = flat.initial_state(box=dict(position=(0, 0, 0.5), velocity=(1.0, 0.5, -1.0), angular_velocity=(3.0, 2.0, -1.0)))
    # The same equations, from the same starts; 30 steps of tumbling multiply rounding by 1e3 or so.
    assert float((flat.rollout(z, steps=30).z - boxed.rollout(z, steps=30).z).abs().max()) < 1e-9


def test_a_half_space_on_a_body_carries_and_is_pushed() -> None:
    """A ball on a heavy plate, a half-space fixed to it: the plate takes the opposite impulse, and what lies on it moves along."""
    mech = td.Mechanism(
        {"plate": td.Body(10.0, (1.0, 1.0, 1.0)), "ball": td.Body(1.0, shape=td.Sphere(0.1))},
        contacts={"skin": td.NonlinearContact("ball", shape=td.Sphere(0.1), other="plate", normal=(0, 0, 1), offset=0.05)},
        gravity=(0, 0, 0),
        options=td.SolverOptions(kappa=1e-10),
    )
    z = mech.initial_state(plate=dict(velocity=(0, 0, 1.0)), ball=dict(position=(0.0, 0.0, 0.2)))
    out = mech.rollout(z, steps=20)
    momentum = mech.momentum(out.z)
    assert float((momentum - momentum[0]).abs().max()) < 1e-8
    # Inelastic: they move on together, at 10/11 m/s, but for what κ pushes them apart.
    speeds = out.z[-1, [5, 18]]
    assert float((speeds - 10 / 11).abs().max()) < 1e-3


def test_bodies_exchanged_do_the_same() -> None:
    """Contacts of b with a and of a with b agree to the order of the gap: the point is on the first surface."""
    results = []
    for first, second in (("a", "b"), ("b", "a")):
        shapes = {"a": SHAPES["capsule"], "b": SHAPES["sphere"]}
        mech = td.Mechanism(
            {"a": td.Body(1.0, shape=SHAPES["capsule"]), "b": td.Body(1.7, shape=SHAPES["sphere"])},
            contacts={"touch": td.NonlinearContact(first, shape=shapes[first], other=second, other_shape=shapes[second])},
            gravity=(0, 0, 0),
            options=td.SolverOptions(kappa=1e-9, residual_tol=1e-12),
        )
        results.append(mech.rollout(collision(mech), steps=20).z[-1])
    # Gaps are 1e-9 m in the impact and grow to 1e-5 m while κ still pushes with 1e-4 N·s; tangents differ, which the cone does not see.
    assert float((results[0] - results[1]).abs().max()) < 1e-5


def test_newtons_cradle_passes_momentum_on() -> None:
    balls = {f"ball{i}": td.Body(1.0, shape=td.Sphere(0.1)) for i in range(5)}
    contacts = td.contacts_between(balls, model=td.ImpactContact, restitution=1.0)
    assert len(contacts) == 10
    mech = td.Mechanism(balls, contacts=contacts, timestep=1e-3, gravity=(0, 0, 0), options=td.SolverOptions(kappa=1e-10))
    start = {name: dict(position=(0.201 * i, 0, 0)) for i, name in enumerate(balls)}
    start["ball0"] = dict(position=(-0.02, 0, 0), velocity=(1.0, 0, 0))
    out = mech.rollout(mech.initial_state(**start), steps=60)
    speeds = out.z.unflatten(-1, (-1, 13))[..., 3]
    # Each of four impacts leaves κ/(γ h) = 1e-7 m/s, and κ pushes balls apart that stand near: 1e-10 over gaps of 1 mm, 1e-4 in all.
    assert float((speeds[-1] - torch.tensor((0.0, 0, 0, 0, 1.0))).abs().max()) < 1e-3
    assert float((speeds.sum(-1) - 1).abs().max()) < 1e-9
    assert float(mech.distances(out.z).min()) > 0


def stack(count: int, offset: float) -> tuple[td.Mechanism, Tensor]:
    """Boxes of 10 cm and 1 kg on each other, each at random up to about `offset` [m] beside its place."""
    box = td.Box((0.1, 0.1, 0.1))
    bodies = {f"box{i}": td.Body(1.0, shape=box) for i in range(count)}
    contacts = td.contacts_between(bodies, friction=0.6, filter=lambda a, b: abs(int(a[3:]) - int((b or a)[3:])) == 1)
    feet = {f"foot{i}": td.NonlinearContact("box0", point=p, friction=0.6) for i, p in enumerate(box.contact_points()[0]) if p[2] < 0}
    mech = td.Mechanism(bodies, contacts={**contacts, **feet}, options=OPTIONS)
    place = offset * torch.randn(count, 2)
    start = {f"box{i}": dict(position=(*place[i].tolist(), 0.05 + 0.1 * i + 1e-4 * (i + 1))) for i in range(count)}
    return mech, mech.initial_state(**start)


@pytest.mark.parametrize(("count", "steps"), [(3, 40), pytest.param(10, 500, marks=pytest.mark.slow)])
def test_a_stack_of_boxes_stands(count: int, steps: int) -> None:
    mech, z = stack(count, offset=0.003)
    assert len(mech.contacts) == 17 * (count - 1) + 4
    with torch.no_grad():
        out = mech.rollout(z, steps=steps)
    assert not out.status.any()
    bodies = out.z.unflatten(-1, (-1, 13))
    # The box falls by the 0.1 mm between the boxes and then creeps at κ = 1e-6 over the impulse of a contact, micrometers per second.
    assert float((bodies[-1, :, :2] - bodies[0, :, :2]).abs().max()) < 1e-3
    assert float((bodies[-1, :, 2] - bodies[0, :, 2]).abs().max()) < 2e-4 * count
    assert float(bodies[-1, :, 3:6].abs().max()) < 1e-3


def test_contacts_between_leaves_out_neighbours() -> None:
    link = td.Capsule(0.05, 0.3)
    bodies = {name: td.Body(1.0, shape=link) for name in ("a", "b", "c")} | {"ghost": td.Body(1.0, (1.0, 1.0, 1.0))}
    joints = {"ab": td.Revolute("a", "b"), "bc": td.Revolute("b", "c"), "base": td.Floating(None, "a")}
    contacts = td.contacts_between(bodies, joints, friction=0.2)
    assert {tuple(c.body_names) for c in contacts.values()} == {("a", "c"), ("c", "a")}
    assert len(contacts) == 5 and all(float(c.friction) == 0.2 for c in contacts.values())
    assert td.contacts_between(bodies, joints, filter=lambda a, b: (a, b) != ("a", "c")) == {}
    walls = td.contacts_between(bodies, joints, world=[td.Box((1, 1, 0.1)), td.Sphere(1.0)], filter=lambda a, b: b is None)
    assert len(walls) == 3 * (3 + 1)
    several = {"a": td.Body(1.0, (1.0, 1, 1), shape=[td.Sphere(0.1), td.Sphere(0.2)]), "b": td.Body(1.0, shape=td.Sphere(0.1))}
    assert len(td.contacts_between(several)) == 2
    with pytest.raises(ValueError, match="Cylinder"):
        td.contacts_between({"a": td.Body(1.0, shape=td.Cylinder(1.0, 1.0)), "b": td.Body(1.0, shape=td.Sphere(0.1))})


def test_mistakes_with_shapes_are_named() -> None:
    ball, box = td.Sphere(0.1), td.Box((1.0, 1.0, 1.0))
    for arguments, text in (
        (dict(shape=ball, radius=0.1), "both shape= and radius="),
        (dict(other_shape=box, normal=(0, 0, 1)), "both other_shape= and normal="),
        (dict(shape=box), "against a half-space"),
        (dict(shape=ball, other_shape=td.Cylinder(0.1, 0.2)), "other_shape=Cylinder"),
        (dict(other="a"), "two different bodies"),
        (dict(stiffness=0.0), "positive"),
        (dict(damping=1.0), "without stiffness"),
        (dict(stiffness=1.0, restitution=0.5), "compliant contact bounces"),
        (dict(recovery_speed=0.0), "positive"),
    ):
        with pytest.raises(ValueError, match=text):
            td.ImpactContact("a", **arguments)
    with pytest.raises(ValueError, match="bodies are"):
        td.Mechanism({"a": td.Body(1.0, shape=ball)}, contacts={"c": td.ImpactContact("a", other="b", other_shape=box)})


def test_the_kernel_says_what_it_does_not_know() -> None:
    contact = td.LinearContact("a", facets=40)
    mech = td.Mechanism({"a": td.Body(1.0, shape=td.Sphere(0.1))}, contacts={"c": contact}, options=td.SolverOptions(backend="native"))
    with pytest.raises(RuntimeError, match="32 facets"):
        mech.initial_state(a=dict(position=(0, 0, 2.0)))
    mech.options = td.SolverOptions()
    z = mech.initial_state(a=dict(position=(0, 0, 2.0)))
    assert bool(torch.isfinite(mech(z)).all())


def test_couples_between_bodies_conserve_momentum_and_have_gradients() -> None:
    mech = two_bodies("sphere", "box", td.NonlinearContact, torsional_friction=0.02, rolling_friction=0.01)
    z = collision(mech)
    out = mech.rollout(z, steps=18)
    assert not out.status.any() and float(out.impulses[:, 0].max()) > 0.3
    momentum = mech.momentum(out.z)
    assert float((momentum - momentum[0]).abs().max()) < 1e-10
    mech.options = td.SolverOptions(kappa=1e-4)
    hit = int((out.impulses[:, 0] > 0.3).nonzero()[0])
    report = td.testing.check_gradients(mech, out.z[hit], parameters=["contacts"], tolerance=1e-6)
    for name in ("torsional_friction", "rolling_friction"):
        assert float(report.numeric[f"contacts.touch.{name} -> state"].abs()) > 1e-3


# -- as modules ----------------------------------------------------------------------------------------------------------------------


def everything() -> tuple[td.Mechanism, Tensor]:
    """Contacts of all new kinds touch: a capsule on a fixed box, a ball bouncing on it, a box with a pyramid on the ground."""
    bodies = {
        "rod": td.Body(0.8, shape=SHAPES["capsule"]),
        "ball": td.Body(0.5, shape=td.Sphere(0.1)),
        "box": td.Body(1.0, (0.02, 0.03, 0.04)),
    }
    contacts = {
        **td.contact_manifold("rod", SHAPES["capsule"], None, td.Box((4.0, 4.0, 1.0), position=(0, 0, -0.5)), friction=0.4),
        "bounce": td.NonlinearContact(
            "ball", shape=td.Sphere(0.1), other="rod", other_shape=SHAPES["capsule"], restitution=0.5, rolling_friction=0.01
        ),
        "corner": td.LinearContact("box", point=(0.1, 0.1, -0.1), facets=6, stiffness=1e4, damping=10.0),
    }
    mech = td.Mechanism(bodies, contacts=contacts, options=td.SolverOptions(kappa=1e-4, residual_tol=1e-12, central_path_tol=1e-9))
    lying = torch.tensor((0.5, 0.5, 0.5, 0.5))
    z = mech.initial_state(
        rod=dict(position=(0, 0, 0.153), orientation=lying),
        ball=dict(position=(0.02, 0.03, 0.41), velocity=(0.1, 0.2, -2.0)),
        box=dict(position=(3.0, 3.0, 0.099), velocity=(0.5, 0.0, -0.1)),  # pressed in by 1 mm
    )
    return mech, z


def test_copies_and_transforms_of_contacts() -> None:
    mech, z = everything()
    after = mech(z)
    assert bool((mech.distances(after)[:4] > 0).all()) and float(after[18] - z[18]) > 2
    for twin in (copy.deepcopy(mech), pickle.loads(pickle.dumps(mech))):
        assert torch.equal(twin(z), after)
    fresh, _ = everything()
    fresh.load_state_dict(mech.state_dict())
    assert torch.equal(fresh(z), after)
    batch = z + 1e-3 * torch.randn(3, 1) * (torch.arange(39) == 18)
    assert torch.allclose(torch.vmap(mech)(batch), mech(batch), rtol=0, atol=1e-12)
    names = {name for name, _ in mech.named_parameters() if name.startswith("contacts.bounce")}
    assert {f"contacts.bounce.{n}" for n in ("radius", "other_length", "other_orientation", "restitution", "rolling_friction")} <= names
    # Sizes with a batch dimension: one environment each.
    mech.contacts["bounce"].radius = torch.tensor((0.1, 0.11, 0.09))
    heights = mech(z)[:, 15]
    assert heights.shape == (3,) and float(heights[1]) != float(heights[2])


def test_jacobians_of_contacts_match_autograd() -> None:
    mech, z = everything()
    jac, _ = mech.jacobians(z)
    base = mech(z)
    auto = torch.autograd.functional.jacobian(lambda d: mech.difference(mech(mech.retract(z, d)), base), torch.zeros(36))
    # Two exact formulas; 1e-9 as in test_gradients.
    assert float((auto - jac).abs().max()) < 1e-9 * float(jac.abs().max())
    td.testing.check_gradients(mech, z, parameters=["contacts.bounce", "contacts.corner"], directions=3, tolerance=1e-6)


class Bowl(td.NonlinearContact):
    """A surface that a user wrote, on a moving body: the inside of a sphere of radius 1 m."""

    def signed_distance(self, point: Tensor) -> Tensor:
        return 1 - torch.linalg.vector_norm(point, dim=-1)


@pytest.mark.slow
def test_a_surface_of_the_users_own_on_a_body() -> None:
    mech = td.Mechanism(
        {"bowl": td.Body(2.0, (0.5, 0.6, 0.7)), "ball": td.Body(0.5, shape=td.Sphere(0.1))},
        contacts={"in": Bowl("ball", radius=0.1, other="bowl", friction=0.3)},
        gravity=(0, 0, 0),
        options=td.SolverOptions(kappa=1e-4, residual_tol=1e-12),
    )
    z = mech.initial_state(bowl=dict(angular_velocity=(0.5, 0.2, 1.0)), ball=dict(position=(0.3, 0.2, -0.82), velocity=(0.5, -0.3, -1.0)))
    out = mech.rollout(z, steps=12)
    assert not out.status.any() and float(mech.distances(out.z).min()) > 0 and float(out.impulses.max()) > 0.1
    momentum = mech.momentum(out.z)
    assert float((momentum - momentum[0]).abs().max()) < 1e-10
    td.testing.check_gradients(mech, out.z[3], directions=4, tolerance=1e-6)
