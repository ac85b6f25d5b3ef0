"""Contact models and laws: friction pyramids, restitution, couples, compliance, overlap."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import torchdojo as td
from torchdojo.elements import path_maps

OPTIONS = td.SolverOptions(kappa=1e-6)
CORNERS = [(0.25 * a, 0.25 * b, 0.25 * c) for a in (-1, 1) for b in (-1, 1) for c in (-1, 1)]


def cube(contact: type[td.Contact], kappa: float = 1e-6, timestep: float = 0.01, **arguments: object) -> td.Mechanism:
    """1 kg, edges of 0.5 m, eight corners on the ground."""
    return td.Mechanism(
        {"box": td.Body(1.0, shape=td.Box((0.5, 0.5, 0.5)))},
        contacts={f"corner{i}": contact("box", point=point, **arguments) for i, point in enumerate(CORNERS)},
        timestep=timestep,
        options=td.SolverOptions(kappa=kappa),
    )


# -- the pyramid ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("facets", [2, 4, 8])
def test_pyramid_map_lands_on_the_path(facets: int) -> None:
    """From any real impulses and slacks: products exactly κ, inside the cone, the row of the height to rounding; its points are fixed."""
    count = 20_000
    height, kappa, mass = (10 ** (low + span * torch.rand(count)) for low, span in ((-4, 5), (-10, 9), (-2, 3)))
    impulse = torch.randn(count, 1 + facets) * 10 ** (5 * torch.rand(count, 1) - 4)
    slack = torch.randn(count, 1 + facets) * 10 ** (6 * torch.rand(count, 1) - 5)
    unknown = path_maps.Change(torch.full_like(impulse, torch.nan), torch.full_like(slack, torch.nan))
    on, dual = path_maps.pyramid_on_path(height, impulse, slack, kappa, mass, unknown)
    assert bool((on > 0).all()) and bool((dual > 0).all())
    assert float((on * dual / kappa[:, None] - 1).abs().max()) < 1e-15
    scale = impulse.abs().sum(-1) + mass * (slack.abs().sum(-1) + impulse[:, 0].abs()) + height
    assert float(((on[:, 1:].sum(-1) + dual[:, 0] - height) / scale).abs().max()) < 1e-14
    again, _ = path_maps.pyramid_on_path(height, on, dual, kappa, mass, unknown)
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
        options=td.SolverOptions(kappa=kappa, residual_tol=1e-12),
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
    # The central path leaves the gap of κ/γ over h, with γ = m ((1 + e) v + g h): 1e-7 m/s of 4.3 m/s.
    excess = 1e-8 / (((1 + restitution) * approach + 0.0981) * 0.01)
    assert abs(rebound - restitution * approach - excess) < 1e-10
    # The apex has terms of first order in h. The impact is at the end of a step, at most h·v above the ground, with e v_impact there.
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
    """Gradients of one step of impact by everything, e included, and of the whole bounce, from height and speed to the apex."""
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
    with pytest.raises(AttributeError, match=r"NonlinearContact\.restitution: got 0\.5 for a contact built without.*restitution="):
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
        hard.options = replace(hard.options, depenetration_speed=None)
        # Without the law one step undoes it all, at 5 m/s.
        assert float(hard(z)[5]) > 4.9
        assert torch.equal(mech.rollout(mech.initial_state(box=PHASES["impact"]), steps=20).z,
                           hard.rollout(hard.initial_state(box=PHASES["impact"]), steps=20).z)  # fmt: skip
    td.testing.check_gradients(
        cube(td.NonlinearContact, kappa=1e-4, recovery_speed=0.5), z, parameters=["contacts.corner0"], tolerance=1e-6
    )
