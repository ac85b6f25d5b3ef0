"""Contact models and laws: friction pyramids, restitution, couples, compliance, overlap."""

from __future__ import annotations

import copy
import math
import pickle

import pytest
import torch
from torch import Tensor

import torchdojo as td
from torchdojo import path_maps

REFERENCE = td.SolverOptions(kappa=1e-6, backend="reference")
CORNERS = [(0.25 * a, 0.25 * b, 0.25 * c) for a in (-1, 1) for b in (-1, 1) for c in (-1, 1)]


def cube(contact: type[td.Contact], kappa: float = 1e-6, timestep: float = 0.01, **arguments: object) -> td.Mechanism:
    """1 kg, edges of 0.5 m, eight corners on the ground."""
    return td.Mechanism(
        {"box": td.Body(1.0, shape=td.Box((0.5, 0.5, 0.5)))},
        contacts={f"corner{i}": contact("box", point=point, **arguments) for i, point in enumerate(CORNERS)},
        timestep=timestep,
        options=td.SolverOptions(kappa=kappa, backend="reference"),
    )


# -- the pyramid ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("facets", [2, 4, 8])
def test_pyramid_map_lands_on_the_path(facets: int) -> None:
    """From any real impulses and slacks: products exactly κ, inside the cone, the row of the height to rounding; its points are fixed."""
    count = 20_000
    height, kappa, mass = (10 ** (low + span * torch.rand(count)) for low, span in ((-4, 5), (-10, 9), (-2, 3)))
    impulse = torch.randn(count, 1 + facets) * 10 ** (5 * torch.rand(count, 1) - 4)
    slack = torch.randn(count, 1 + facets) * 10 ** (6 * torch.rand(count, 1) - 5)
    on, dual = path_maps.pyramid_on_path(height, impulse, slack, kappa, mass)
    assert bool((on > 0).all()) and bool((dual > 0).all())
    assert float((on * dual / kappa[:, None] - 1).abs().max()) < 1e-15
    scale = impulse.abs().sum(-1) + mass * (slack.abs().sum(-1) + impulse[:, 0].abs()) + height
    assert float(((on[:, 1:].sum(-1) + dual[:, 0] - height) / scale).abs().max()) < 1e-14
    again, _ = path_maps.pyramid_on_path(height, on, dual, kappa, mass)
    # Rounding of terms up to 1e7 times the heights.
    assert float((again / on - 1).abs().max()) < 1e-7


def test_pyramid_directions() -> None:
    normal = torch.tensor((0.0, 0.6, 0.8))
    for facets in (4, 6, 8):
        contact = td.LinearContact("box", facets=facets, normal=normal)
        d = contact.directions(normal)
        assert d.shape == (facets, 3)
        assert torch.allclose(d[::2], -d[1::2], atol=0)
        assert float((d @ normal).abs().max()) < 1e-15
        # In order of angle, all around.
        assert float((d.norm(dim=-1) - 1).abs().max()) < 1e-14
        closest = (d @ d.T - 2 * torch.eye(facets)).amax(-1)
        assert torch.allclose(closest, torch.full_like(closest, math.cos(2 * math.pi / facets)))
    for wrong in (2, 5, 4.0, True):
        with pytest.raises(ValueError, match="even numbers of 4 or more"):
            td.LinearContact("box", facets=wrong)


@pytest.mark.parametrize("facets", [4, 8, 32])
def test_pyramid_slides_like_the_cone(facets: int) -> None:
    """Along a direction of the pyramid both decelerate by μ g; halfway between two by less, at most as the corners of the pyramid say."""
    for angle, weakest in ((0.0, 1.0), (math.pi / facets, math.cos(math.pi / facets))):
        mech = cube(td.LinearContact, kappa=1e-9, friction=0.3, facets=facets)
        speed = torch.tensor((2 * math.cos(angle), 2 * math.sin(angle), 0.0))
        z = mech.rollout(mech.initial_state(box=dict(position=(0, 0, 0.25 + 1e-7), velocity=speed)), steps=20).z
        lost = float((z[2, 3:6] - z[20, 3:6]) @ speed / 2) / (18 * 0.01)
        # kappa blurs the cone by κ/(γ v), 1e-7; the contact floats 1e-7 m above the ground.
        assert weakest * 0.3 * 9.81 * (1 - 1e-4) < lost < 0.3 * 9.81 * (1 + 1e-4)


def test_pyramid_takes_few_iterations() -> None:
    """With warm starts as few as the cone needs: measured 2.4 per step, the cone 2.1."""
    mech = cube(td.LinearContact)
    spin = torch.randn(6, 3)
    z = mech.initial_state(
        (6,), box=dict(position=(0, 0, 1.0), velocity=(2.0, 1.0, 0.0), angular_velocity=5 * spin / spin.norm(dim=-1)[:, None])
    )
    with torch.no_grad():
        out = mech.rollout(z, steps=100)
    assert not out.status.any() and int(out.substeps.max()) == 1
    assert float(out.iterations.double().mean()) < 3.5


PHASES = {
    "flight": dict(position=(0.0, 0.0, 1.0), velocity=(1.0, 0.5, -1.0), angular_velocity=(3.0, 2.0, -1.0)),
    "impact": dict(position=(0.0, 0.0, 0.28), velocity=(1.0, 0.5, -5.0), angular_velocity=(0.5, 1.0, -1.0)),
    "sliding": dict(position=(0.0, 0.0, 0.251), velocity=(2.0, 1.0, 0.0)),
    "sticking": dict(position=(0.0, 0.0, 0.2501), velocity=(0.0, 0.0, 0.0)),
}


@pytest.mark.parametrize("kappa", [1e-3, 1e-6])
@pytest.mark.parametrize("phase", PHASES)
def test_pyramid_gradients(phase: str, kappa: float) -> None:
    mech = cube(td.LinearContact, kappa=kappa, facets=6)
    z = mech.initial_state(box=PHASES[phase])
    if phase in ("sliding", "sticking"):
        with torch.no_grad():
            z = mech.rollout(z, steps=10).z[-1]
    td.testing.check_gradients(mech, z, parameters=["contacts.corner0", "bodies", "timestep"], tolerance=1e-6)


# -- restitution ---------------------------------------------------------------------------------------------------------------------

MODELS = {"impact": td.ImpactContact, "cone": td.NonlinearContact, "pyramid": td.LinearContact}


def ball(contact: type[td.Contact], timestep: float = 0.01, kappa: float = 1e-8, **arguments: object) -> td.Mechanism:
    """1 kg, radius 0.1 m, on the ground."""
    skin = td.Sphere(0.1)
    return td.Mechanism(
        {"ball": td.Body(1.0, shape=skin)},
        contacts={"skin": contact("ball", shape=skin, **arguments)},
        timestep=timestep,
        options=td.SolverOptions(kappa=kappa, backend="reference", residual_tol=1e-12),
    )


@pytest.mark.parametrize("restitution", [0.0, 0.3, 0.7, 1.0])
@pytest.mark.parametrize("model", MODELS)
def test_a_ball_bounces_with_its_coefficient(model: str, restitution: float) -> None:
    mech = ball(MODELS[model], restitution=restitution)
    out = mech.rollout(mech.initial_state(ball=dict(position=(0, 0, 1.1))), steps=110)
    assert not out.status.any()
    v, gap = out.z[:, 5], out.z[:, 2] - 0.1
    impact = int((v[1:] > v[:-1] + 0.5).nonzero()[0])
    approach, rebound = -float(v[impact]), float(v[impact + 1])
    # What is left is the central path: the gap of κ/γ over h, with γ = m ((1 + e) v + g h). That is 1e-7 m/s of 4.3 m/s.
    excess = 1e-8 / (((1 + restitution) * approach + 0.0981) * 0.01)
    assert abs(rebound - restitution * approach - excess) < 1e-10
    # The same with terms of first order in h: the impact is at the end of a step, at most h·v above the ground, and e v_impact is there.
    highest = float(gap[impact:].max())
    assert abs(highest - restitution**2 * 1.0) < 0.01 * approach * (1 + restitution**2)
    assert float(gap.min()) > 0


def test_a_ball_that_keeps_its_energy_returns_to_its_height() -> None:
    mech = ball(td.ImpactContact, restitution=1.0)
    height = mech.rollout(mech.initial_state(ball=dict(position=(0, 0, 1.1))), steps=300).z[:, 2]
    apexes = height[1:-1][(height[1:-1] > height[:-2]) & (height[1:-1] >= height[2:])]
    assert len(apexes) == 3
    # Each bounce reverses the fall exactly, but for the gap of the central path: κ/γ = 1.2e-9 m over h, 1.2e-7 m/s of 4.3 m/s.
    assert float((apexes - 1.1).abs().max()) < 2e-6


@pytest.mark.parametrize("turned", [False, True])
def test_impacts_without_friction_do_not_create_energy(turned: bool) -> None:
    mech = cube(td.NonlinearContact, kappa=1e-8, restitution=1.0, friction=0.0)
    q = torch.tensor((0.95, 0.2, 0.1, 0.05) if turned else (1.0, 0, 0, 0))
    z = mech.initial_state(
        box=dict(position=(0, 0, 0.8), orientation=q / q.norm(), angular_velocity=(3.0, 2.0, 1.0) if turned else (0.0, 0, 0))
    )
    out = mech.rollout(z, steps=150)
    assert not out.status.any()
    energy = mech.kinetic_energy(out.z[:-1], out.z[1:]) + mech.potential_energy(out.z[:-1])
    # Gravity's part is exact in the discrete mechanics; the rest is rounding and the path's 1e-7 m/s per impact.
    assert float(energy.max()) < float(energy[0]) * (1 + 1e-6)
    # Flat, all four corners reverse at once: only the path's gaps are lost. Turned, what the spin over one step leaves out, of first order
    # in h: 1 % here.
    lost = float(1 - energy[-1] / energy[0])
    assert lost < (0.03 if turned else 1e-5)
    speeds = out.z[:, 5]
    assert int(((speeds[1:] - speeds[:-1]) > 0.5).sum()) >= 2


def test_what_rests_does_not_bounce_or_creep() -> None:
    mech = cube(td.NonlinearContact, kappa=1e-8, restitution=0.8)
    z = mech.rollout(mech.initial_state(box=dict(position=(0, 0, 0.26))), steps=400).z
    # Dropped by 1 cm it bounces a few times, and then lies at κ/γ with γ = m g h/4 per corner.
    assert abs(float(z[-1, 2]) - 0.25 - 1e-8 / (9.81 * 0.01 / 4)) < 1e-10
    assert float(z[-50:, 3:6].abs().max()) < 1e-10 and float((z[-1, :3] - z[-50, :3]).abs().max()) < 1e-11


def test_restitution_gradients() -> None:
    """Of one step of impact with respect to everything, e included; and of the whole bounce, from height and speed to the apex."""
    for model in MODELS.values():
        mech = ball(model, kappa=1e-6, restitution=0.6)
        z = mech.initial_state(ball=dict(position=(0, 0, 0.12), velocity=(0.5, 0.2, -4.0), angular_velocity=(1.0, 2.0, -1.0)))
        report = td.testing.check_gradients(mech, z, tolerance=1e-6)
        assert float(report.numeric["contacts.skin.restitution -> state"].abs()) > 1
        jac, _ = mech.jacobians(z)
        # Nimble's sign (Werling et al. 2021, section 6): a faster ball comes back faster. The path adds κ/(γ² h) ~ 1e-5.
        assert abs(float(jac[5, 5]) + 0.6) < 1e-5

    mech = ball(td.ImpactContact, kappa=1e-6)

    def end(x: Tensor) -> Tensor:
        height, speed, restitution = x.unbind(-1)
        mech.contacts["skin"] = td.ImpactContact("ball", shape=td.Sphere(0.1), restitution=restitution)
        again = td.Mechanism(dict(mech.bodies), contacts=dict(mech.contacts), options=mech.options)
        z = again.initial_state(x.shape[:-1], ball=dict(position=torch.stack((0 * height, 0 * height, height), -1)))
        z = torch.cat((z[..., :5], speed[..., None], z[..., 6:]), -1)
        return again.rollout(z, steps=60).z[..., -1, 2]

    x = torch.tensor((0.6, -1.0, 0.7))
    analytic = torch.autograd.functional.jacobian(end, x)
    step = 1e-6
    with torch.no_grad():
        ends = end(x + step * torch.cat((torch.eye(3), -torch.eye(3))))
    numeric = (ends[:3] - ends[3:]) / (2 * step)
    # Differences of the solver's tolerance, 1e-12 over 60 steps and 2e-6; derivatives are of order one.
    assert float((analytic - numeric).abs().max()) < 1e-4
    assert float(analytic[2]) > 0.3


def test_restitution_is_checked_and_optional() -> None:
    for wrong in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match="restitution"):
            td.ImpactContact("ball", restitution=wrong)
    contact = td.NonlinearContact("ball")
    assert contact.restitution is None and "restitution" not in dict(contact.named_parameters())
    with pytest.raises(AttributeError, match="made without it"):
        contact.restitution = 0.5
    with pytest.raises(TypeError, match="unexpected keyword 'restitutoin'"):
        td.NonlinearContact("ball", restitutoin=0.5)
    bouncing = td.NonlinearContact("ball", restitution=0.5)
    bouncing.restitution = torch.tensor((0.1, 0.9))
    assert bouncing.restitution.shape == (2,)
    with pytest.raises(ValueError, match="0 to 1"):
        bouncing.restitution = 2.0


def test_batched_restitution() -> None:
    mech = ball(td.ImpactContact, restitution=torch.tensor((0.0, 0.5, 1.0)))
    z = mech.rollout(mech.initial_state(ball=dict(position=(0, 0, 0.12), velocity=(0, 0, -4.0))), steps=1).z[:, -1]
    assert torch.allclose(z[:, 5], torch.tensor((0.0, 2.0, 4.0)), atol=1e-6)


# -- between bodies ------------------------------------------------------------------------------------------------------------------

SHAPES: dict[str, td.Shape] = {"sphere": td.Sphere(0.2), "capsule": td.Capsule(0.15, 0.4), "box": td.Box((0.3, 0.4, 0.35))}
PAIRS = [pytest.param(a, b, marks=[] if i <= j else pytest.mark.slow) for i, a in enumerate(SHAPES) for j, b in enumerate(SHAPES)]


def two_bodies(a: str, b: str, model: type[td.Contact], **arguments: object) -> td.Mechanism:
    return td.Mechanism(
        {"a": td.Body(1.0, shape=SHAPES[a]), "b": td.Body(1.7, shape=SHAPES[b])},
        contacts={"touch": model("a", shape=SHAPES[a], other="b", other_shape=SHAPES[b], **arguments)},
        gravity=(0, 0, 0),
        options=td.SolverOptions(kappa=1e-6, backend="reference", residual_tol=1e-12),
    )


def collision(mech: td.Mechanism, height: float = 0.7) -> Tensor:
    """a falls on b, off its centre, both turning, both flying past at 23 m/s."""
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
    """Of the step in which they collide, with respect to states, sizes, poses of shapes, masses."""
    mech = two_bodies(a, b, MODELS[model], restitution=0.4)
    mech.options = td.SolverOptions(kappa=1e-4, backend="reference")
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
        mech.options = td.SolverOptions(kappa=1e-6, backend="reference", residual_tol=1e-12, central_path_tol=1e-9)
    z = flat.initial_state(box=dict(position=(0, 0, 0.5), velocity=(1.0, 0.5, -1.0), angular_velocity=(3.0, 2.0, -1.0)))
    # The same equations, from the same starts; 30 steps of tumbling multiply rounding by 1e3 or so.
    assert float((flat.rollout(z, steps=30).z - boxed.rollout(z, steps=30).z).abs().max()) < 1e-9


def test_a_half_space_on_a_body_carries_and_is_pushed() -> None:
    """A ball on a heavy plate, a half-space fixed to it: the plate takes the opposite impulse, and what lies on it moves along."""
    mech = td.Mechanism(
        {"plate": td.Body(10.0, (1.0, 1.0, 1.0)), "ball": td.Body(1.0, shape=td.Sphere(0.1))},
        contacts={"skin": td.NonlinearContact("ball", shape=td.Sphere(0.1), other="plate", normal=(0, 0, 1), offset=0.05)},
        gravity=(0, 0, 0),
        options=td.SolverOptions(kappa=1e-10, backend="reference"),
    )
    z = mech.initial_state(plate=dict(velocity=(0, 0, 1.0)), ball=dict(position=(0.0, 0.0, 0.2)))
    out = mech.rollout(z, steps=20)
    momentum = mech.momentum(out.z)
    assert float((momentum - momentum[0]).abs().max()) < 1e-8
    # Inelastic: they move on together, at 10/11 m/s, but for what κ pushes them apart.
    speeds = out.z[-1, [5, 18]]
    assert float((speeds - 10 / 11).abs().max()) < 1e-3


def test_bodies_exchanged_do_the_same() -> None:
    """Contact of b with a is that of a with b, to the order of the gap: the common point of contact is on the surface of the first."""
    results = []
    for first, second in (("a", "b"), ("b", "a")):
        shapes = {"a": SHAPES["capsule"], "b": SHAPES["sphere"]}
        mech = td.Mechanism(
            {"a": td.Body(1.0, shape=SHAPES["capsule"]), "b": td.Body(1.7, shape=SHAPES["sphere"])},
            contacts={"touch": td.NonlinearContact(first, shape=shapes[first], other=second, other_shape=shapes[second])},
            gravity=(0, 0, 0),
            options=td.SolverOptions(kappa=1e-9, backend="reference", residual_tol=1e-12),
        )
        results.append(mech.rollout(collision(mech), steps=20).z[-1])
    # Gaps are 1e-9 m in the impact and grow to 1e-5 m while κ still pushes with 1e-4 N·s; tangents differ, which the cone does not see.
    assert float((results[0] - results[1]).abs().max()) < 1e-5


def test_newtons_cradle_passes_momentum_on() -> None:
    balls = {f"ball{i}": td.Body(1.0, shape=td.Sphere(0.1)) for i in range(5)}
    contacts = td.contacts_between(balls, model=td.ImpactContact, restitution=1.0)
    assert len(contacts) == 10
    mech = td.Mechanism(
        balls, contacts=contacts, timestep=1e-3, gravity=(0, 0, 0), options=td.SolverOptions(kappa=1e-10, backend="reference")
    )
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
    mech = td.Mechanism(bodies, contacts={**contacts, **feet}, options=REFERENCE)
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
    # It falls by the 0.1 mm between the boxes, and then creeps: κ = 1e-6 over what a contact of the stack bears, micrometres per second.
    assert float((bodies[-1, :, :2] - bodies[0, :, :2]).abs().max()) < 1e-3
    assert float((bodies[-1, :, 2] - bodies[0, :, 2]).abs().max()) < 2e-4 * count
    assert float(bodies[-1, :, 3:6].abs().max()) < 1e-3


def test_contacts_between_leaves_out_neighbours() -> None:
    link = td.Capsule(0.05, 0.3)
    bodies = {name: td.Body(1.0, shape=link) for name in ("a", "b", "c")} | {"ghost": td.Body(1.0, (1.0, 1.0, 1.0))}
    joints = {"ab": td.Revolute("a", "b"), "bc": td.Revolute("b", "c"), "base": td.Floating(None, "a")}
    found = td.contacts_between(bodies, joints, friction=0.2)
    assert {tuple(c.body_names) for c in found.values()} == {("a", "c"), ("c", "a")}
    assert len(found) == 5 and all(float(c.friction) == 0.2 for c in found.values())
    assert td.contacts_between(bodies, joints, filter=lambda a, b: (a, b) != ("a", "c")) == {}
    walls = td.contacts_between(bodies, joints, world=[td.Box((1, 1, 0.1)), td.Sphere(1.0)], filter=lambda a, b: b is None)
    assert len(walls) == 3 * (3 + 1)
    several = {"a": td.Body(1.0, (1.0, 1, 1), shape=[td.Sphere(0.1), td.Sphere(0.2)]), "b": td.Body(1.0, shape=td.Sphere(0.1))}
    assert len(td.contacts_between(several)) == 2
    with pytest.raises(ValueError, match="Ellipsoid"):
        td.contacts_between({"a": td.Body(1.0, shape=td.Ellipsoid((1, 1, 1))), "b": td.Body(1.0, shape=td.Sphere(0.1))})


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
    bodies = {"a": td.Body(1.0, shape=td.Sphere(0.1)), "b": td.Body(1.0, shape=td.Sphere(0.1))}
    for contact, text in (
        (td.LinearContact("a"), "LinearContact"),
        (td.ImpactContact("a", restitution=0.5), "restitution"),
        (td.NonlinearContact("a", other="b"), "second body"),
        (td.NonlinearContact("a", other_shape=td.Box((1, 1, 1))), "other_size"),
        (td.NonlinearContact("a", rolling_friction=0.1), "rolling_friction"),
    ):
        mech = td.Mechanism(bodies, contacts={"c": contact}, options=td.SolverOptions(backend="native"))
        with pytest.raises(RuntimeError, match=text):
            mech(mech.initial_state(a=dict(position=(0, 0, 2.0))))
        mech.options = td.SolverOptions()
        assert bool(torch.isfinite(mech(mech.initial_state(a=dict(position=(0, 0, 2.0))))).all())


# -- couples -------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kappa", [1e-6, 1e-9])
def test_torsional_friction_stops_a_spinning_ball(kappa: float) -> None:
    mech = ball(td.NonlinearContact, kappa=kappa, friction=0.5, torsional_friction=0.01)
    assert mech.contacts["skin"].cones == td.elements.Cones(orthant=4, second_order=1)
    inertia = 0.4 * 0.1**2
    z = mech.initial_state(ball=dict(position=(0, 0, 0.1 + kappa / 0.0981), angular_velocity=(0, 0, 10.0)))
    out = mech.rollout(z, steps=60)
    assert not out.status.any()
    spin = out.z[:, 12] * torch.sqrt(1 - (0.005 * out.z[:, 12]) ** 2)  # what the step's angular momentum is J times
    # J dω/dt = −μ_t m g while it turns: 24.5 rad/s². The couple is that of two ends of a segment, less by κ/ω on the path.
    rate = 0.01 * 9.81 / inertia
    assert abs(float(spin[10] - spin[30]) / (20 * 0.01) / rate - 1) < (1e-3 if kappa == 1e-6 else 1e-6)
    # It stops within 0.41 s, and stays stopped; the normal force and the place do not feel it.
    assert float(spin[45:].abs().max()) < 1e-2 * (kappa / 1e-6)
    assert float((out.z[:, :2]).abs().max()) < 1e-9


def test_rolling_friction_stops_a_rolling_ball() -> None:
    mech = ball(td.NonlinearContact, kappa=1e-9, friction=0.8, rolling_friction=0.01)
    assert mech.contacts["skin"].cones == td.elements.Cones(orthant=1, second_order=2)
    z = mech.initial_state(ball=dict(position=(0, 0, 0.1 + 1e-9 / 0.0981), velocity=(0.6, 0.8, 0.0), angular_velocity=(-8.0, 6.0, 0.0)))
    out = mech.rollout(z, steps=200)
    assert not out.status.any()
    speed = out.z[:, 3:5].norm(dim=-1)
    # (J + m r²) dω/dt = −μ_r m g without slip; h times the angular velocity is what the lever turns in a step.
    expected = 0.01 * 9.81 * 0.1 / (0.4 * 0.01 + 0.01)
    assert abs(float(speed[20] - speed[80]) / 0.6 / expected - 1) < 1e-3
    assert float(speed[-20:].max()) < 1e-3
    # Straight on.
    assert float((out.z[-1, 0] / out.z[-1, 1] - 0.75).abs()) < 1e-3


def test_couples_between_bodies_conserve_momentum_and_have_gradients() -> None:
    mech = two_bodies("sphere", "box", td.NonlinearContact, torsional_friction=0.02, rolling_friction=0.01)
    z = collision(mech)
    out = mech.rollout(z, steps=18)
    assert not out.status.any() and float(out.impulses[:, 0].max()) > 0.3
    momentum = mech.momentum(out.z)
    assert float((momentum - momentum[0]).abs().max()) < 1e-10
    mech.options = td.SolverOptions(kappa=1e-4, backend="reference")
    hit = int((out.impulses[:, 0] > 0.3).nonzero()[0])
    report = td.testing.check_gradients(mech, out.z[hit], parameters=["contacts"], tolerance=1e-6)
    for name in ("torsional_friction", "rolling_friction"):
        assert float(report.numeric[f"contacts.touch.{name} -> state"].abs()) > 1e-3


def test_couples_take_few_iterations() -> None:
    mech = cube(td.NonlinearContact, torsional_friction=0.01, rolling_friction=0.005)
    with torch.no_grad():
        out = mech.rollout(mech.initial_state(box=PHASES["impact"]), steps=60)
    assert not out.status.any()
    assert float(out.iterations.double().mean()) < 6


# -- compliance and overlap ----------------------------------------------------------------------------------------------------------


def test_a_compliant_contact_gives_way_by_the_force_over_the_stiffness() -> None:
    for model in MODELS.values():
        mech = cube(model, kappa=1e-10, stiffness=1e4, damping=100.0)
        out = mech.rollout(mech.initial_state(box=dict(position=(0, 0, 0.2505))), steps=300)
        assert not out.status.any()
        # Four corners carry m g; κ/γ = 4e-9 m is what the path adds.
        assert abs(float(out.z[-1, 2]) - 0.25 + 9.81 / 4e4) < 1e-8
        gaps, impulse = mech.distances(out.z)[:, ::2], out.impulses[:, mech.impulse_layout["contacts.corner0"].start]
        # The law, at every step in contact: γ/h = −k φ⁺ − d (φ⁺ − min(φ, 0))/h.
        force = -1e4 * gaps[1:, 0] - 100.0 * (gaps[1:, 0] - gaps[:-1, 0].clamp_max(0)) / 0.01
        pressing = impulse > 1e-4
        assert int(pressing.sum()) > 200
        assert float((impulse / 0.01 - force)[pressing].abs().max()) < 1e-2  # κ/γ <= 1e-6 m, times k
        assert float(impulse.min()) > 0


def test_a_compliant_contact_becomes_a_hard_one() -> None:
    throw = dict(position=(0, 0, 0.3), velocity=(1.0, 0.5, -2.0), angular_velocity=(0.5, 1.0, -1.0))
    ends = []
    for laws in (dict(), dict(stiffness=1e8), dict(stiffness=1e10), dict(stiffness=1e12)):
        mech = cube(td.NonlinearContact, kappa=1e-5, **laws)
        ends.append(mech.rollout(mech.initial_state(box=throw), steps=20).z[-1])
    differences = [float((end - ends[0]).abs().max()) for end in ends[1:]]
    # In proportion to 1/k.
    assert differences[1] < 0.03 * differences[0] and differences[2] < 0.03 * differences[1] and differences[2] < 1e-5


def test_compliance_gradients() -> None:
    mech = cube(td.NonlinearContact, kappa=1e-5, stiffness=1e4, damping=50.0)
    with torch.no_grad():
        z = mech.rollout(mech.initial_state(box=PHASES["impact"]), steps=4).z[-1]
    assert float(mech.distances(z).min()) < -1e-4
    report = td.testing.check_gradients(mech, z, parameters=["contacts.corner0", "timestep"], tolerance=1e-6)
    assert float(report.numeric["contacts.corner0.stiffness -> state"].abs()) > 0


def test_what_starts_below_the_floor_comes_up_slowly() -> None:
    for model in MODELS.values():
        mech = cube(model, recovery_speed=0.5)
        z = mech.initial_state(box=dict(position=(0, 0, 0.2)))
        out = mech.rollout(z, steps=40)
        assert not out.status.any()
        height = out.z[:, 2]
        # 5 cm at 0.5 m/s: ten steps of 5 mm, and of the path's κ/γ. It keeps that speed, and rises by v²/2g = 1.3 cm before it lies there.
        assert torch.allclose(height[1:10], 0.2 + 0.005 * torch.arange(1, 10), atol=5e-4)
        assert float(height.max()) < 0.25 + 0.014 and abs(float(height[-1]) - 0.25) < 1e-4
        hard = cube(model)
        # Without the law one step undoes it all, at 5 m/s.
        assert float(hard(z)[5]) > 4.9
        assert torch.equal(mech.rollout(mech.initial_state(box=PHASES["impact"]), steps=20).z,
                           hard.rollout(hard.initial_state(box=PHASES["impact"]), steps=20).z)  # fmt: skip
    td.testing.check_gradients(
        cube(td.NonlinearContact, kappa=1e-4, recovery_speed=0.5), z, parameters=["contacts.corner0"], tolerance=1e-6
    )


# -- as modules ----------------------------------------------------------------------------------------------------------------------


def everything() -> tuple[td.Mechanism, Tensor]:
    """One contact of each new kind, in touch: a capsule on a fixed box, a bouncing ball on it, a box on the ground in a pyramid."""
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


def test_a_surface_of_the_users_own_on_a_body() -> None:
    mech = td.Mechanism(
        {"bowl": td.Body(2.0, (0.5, 0.6, 0.7)), "ball": td.Body(0.5, shape=td.Sphere(0.1))},
        contacts={"in": Bowl("ball", radius=0.1, other="bowl", friction=0.3)},
        gravity=(0, 0, 0),
        options=td.SolverOptions(kappa=1e-4, residual_tol=1e-12),
    )
    z = mech.initial_state(bowl=dict(angular_velocity=(0.5, 0.2, 1.0)), ball=dict(position=(0.3, 0.2, -0.82), velocity=(0.5, -0.3, -1.0)))
    out = mech.rollout(z, steps=30)
    assert not out.status.any() and float(mech.distances(out.z).min()) > 0 and float(out.impulses.max()) > 0.1
    momentum = mech.momentum(out.z)
    assert float((momentum - momentum[0]).abs().max()) < 1e-10
    td.testing.check_gradients(mech, out.z[3], directions=8, tolerance=1e-6)
