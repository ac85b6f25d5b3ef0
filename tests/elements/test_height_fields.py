"""Contacts with height fields: kernel and reference agree, gradients by samples, a bowl, a robot on rough ground, bad input."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

import torchdojo as td
from torchdojo.evaluation.conservation import total_energy
from torchdojo.native import loader

RADIUS, CELL = 0.1, 0.1
needs_kernel = pytest.mark.skipif(not loader.available(), reason="needs the compiled kernel")
LAWS = {
    "plain": (td.NonlinearContact, {}),
    "compliant": (td.NonlinearContact, {"stiffness": 2e3, "damping": 5.0}),
    "couples": (td.NonlinearContact, {"rolling_friction": 0.01, "torsional_friction": 0.02}),
    "bouncing": (td.NonlinearContact, {"restitution": 0.5}),
    "pyramid": (td.LinearContact, {"facets": 6}),
    "frictionless": (td.ImpactContact, {}),
}


def bumps() -> Tensor:
    return 0.03 * torch.rand(8, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def ball(ground: td.HeightField, backend: str = "auto", law: str = "plain", **options: Any) -> td.Mechanism:
    model, laws = LAWS[law]
    given = laws if model is td.ImpactContact else {"friction": 0.4, **laws}
    contact = model("ball", point=(0.01, 0.02, -0.01), radius=RADIUS, other_shape=ground, **given)
    body = td.Body(1.0, (0.004, 0.005, 0.006))
    return td.Mechanism({"ball": body}, contacts={"skin": contact}, options=td.SolverOptions(backend=backend, **options))


def on_terrain(**options: Any) -> td.Mechanism:
    mech = td.models.quadruped()
    mech.replace_ground(td.terrain.rough(0.06, size=(3.0, 3.0), seed=1))
    mech.options = td.SolverOptions(**options)
    return mech


def path(mech: td.Mechanism, z: Tensor, steps: int) -> Tensor:
    states = [z]
    for _ in range(steps):
        states.append(mech(states[-1]))
    return torch.stack(states)


def test_a_flat_field_is_a_plane() -> None:
    field = ball(td.HeightField(torch.zeros(8, 9, dtype=torch.float64), CELL))
    plane = ball(td.HeightField(torch.zeros(8, 9, dtype=torch.float64), CELL))
    plane.contacts["skin"] = td.NonlinearContact("ball", point=(0.01, 0.02, -0.01), radius=RADIUS, friction=0.4)
    z = field.initial_state(ball=dict(position=(0.02, -0.03, 0.115), velocity=(0.4, 0.1, -1.0)))
    with torch.no_grad():
        torch.testing.assert_close(path(field, z, 5), path(plane, z, 5), rtol=0, atol=1e-9)


@needs_kernel
@pytest.mark.sanitize
@pytest.mark.parametrize("law", LAWS)
def test_kernel_and_reference_agree(law: str) -> None:
    found = []
    exact = dict(kappa=1e-4, residual_tol=1e-12, central_path_tol=1e-8)
    for backend in ("native", "reference"):
        mech = ball(td.HeightField(bumps(), CELL), backend, law, **exact)
        z = mech.initial_state((2,), ball=dict(position=(0.02, -0.03, 0.125), velocity=(0.5, 0.2, -2.0), angular_velocity=(1.0, -2.0, 3.0)))
        z[1, 0] += 0.17
        leaves = {"z": z.clone().requires_grad_(), **dict(mech.named_parameters())}
        for parameter in mech.parameters():
            parameter.requires_grad_()
        states = path(mech, leaves["z"], 3)
        weight = torch.arange(13, dtype=torch.float64).cos()
        gradients = torch.autograd.grad((states[1:] * weight).sum(), list(leaves.values()), materialize_grads=True)
        found.append((states.detach(), mech.distances(z).detach(), dict(zip(leaves, gradients, strict=True))))
    (native, gaps, grads), (reference, expected, wanted) = found
    torch.testing.assert_close(native, reference, rtol=0, atol=1e-10)
    torch.testing.assert_close(gaps, expected, rtol=0, atol=1e-14)
    for name, value in wanted.items():
        torch.testing.assert_close(grads[name], value, rtol=0, atol=1e-8 * max(1.0, float(value.abs().max())), msg=name)
    assert float(wanted["contacts.skin.ground.heights"].abs().max()) > 1e-2


@needs_kernel
def test_a_robot_on_rough_ground_steps_as_the_reference() -> None:
    """Through the solver on trees, which has derivatives of the ground of its own."""
    exact = dict(kappa=1e-5, residual_tol=1e-12)
    mech, other = on_terrain(backend="native", **exact), on_terrain(backend="reference", **exact)
    z = td.models.initial_state("quadruped", mech)
    z = mech.place(z, clearance=0.002)
    z = z.unflatten(-1, (-1, 13)).clone()
    z[:, 5] = -0.8
    native = mech.step(z.flatten())
    reference = other.step(z.flatten())
    assert int(native.status) == 0 and int(native.iterations) <= int(reference.iterations) + 2
    torch.testing.assert_close(native.z, reference.z, rtol=0, atol=1e-10)


@pytest.mark.parametrize("backend", ["reference", pytest.param("native", marks=needs_kernel)])
def test_steps_differentiate_by_states_samples_and_friction(backend: str) -> None:
    mech = ball(td.HeightField(bumps(), CELL, origin=(-0.33, -0.41)), backend, kappa=1e-4)
    z = mech.initial_state(ball=dict(position=(0.02, -0.03, 0.13), velocity=(0.5, 0.2, -2.0)))
    names = [f"contacts.skin.{name}" for name in ("ground.heights", "ground.cell", "ground.origin", "friction")]
    report = td.testing.check_gradients(mech, z, parameters=names, directions=2, tolerance=1e-6)
    assert float(report.numeric["contacts.skin.ground.heights -> state"].abs().max()) > 1e-3


@needs_kernel
def test_environments_have_fields_of_their_own() -> None:
    heights = torch.stack((bumps(), 0.5 * bumps()))
    z = ball(td.HeightField(bumps(), CELL)).initial_state(ball=dict(position=(0.02, -0.03, 0.125), velocity=(0.5, 0.2, -2.0)))
    with torch.no_grad():
        both = ball(td.HeightField(heights, CELL))(z)
        for i in range(2):
            torch.testing.assert_close(both[i], ball(td.HeightField(heights[i], CELL))(z), rtol=0, atol=1e-12)
        reference = ball(td.HeightField(heights, CELL), "reference", residual_tol=1e-12)(z)
    torch.testing.assert_close(both, reference, rtol=0, atol=1e-8)


def test_contacts_share_the_samples() -> None:
    mech = on_terrain()
    assert sum(name.endswith("heights") for name, _ in mech.named_parameters()) == 1
    assert len({id(contact.ground) for contact in mech.contacts.values()}) == 1


@needs_kernel
def test_a_ball_that_rolls_in_a_bowl_gains_no_energy() -> None:
    contact = td.NonlinearContact("ball", radius=RADIUS, friction=0.5, other_shape=td.terrain.bowl(1.0, size=(2.0, 2.0), cell=CELL))
    mech = td.Mechanism({"ball": td.Body(1.0, (0.004,) * 3)}, contacts={"skin": contact})
    z = mech.place(mech.initial_state(ball=dict(position=(0.3, 0.0, 0.2))))
    with torch.no_grad():
        energy = total_energy(mech, path(mech, z, 300))
    # 4.9e-5 J of 1.5 J above the start in its first steps, the error of the step; it has lost 0.12 J after four swings.
    assert float(energy.max() - energy[0]) < 1e-4 and float(energy[-1]) < float(energy[0]) - 0.1


@needs_kernel
def test_frictionless_ground_does_no_work() -> None:
    """The energy changes by the error of the step, which halves with it. Impulses along the surface's normal add 5 mJ/kg."""
    x = 0.1 * (torch.arange(20, dtype=torch.float64) - 9.5)
    bumps = 0.05 * torch.rand(20, 20, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    bowl = td.HeightField(bumps + 0.05 * (x[:, None] ** 2 + x**2), 0.1)
    exact = td.SolverOptions(kappa=1e-7, residual_tol=1e-12, central_path_tol=1e-9)
    changes, rises = [], []
    for timestep in (0.005, 0.0025, 0.00125):
        contact = td.ImpactContact("ball", radius=0.05, other_shape=bowl)
        mech = td.Mechanism({"ball": td.Body(1.0, (1e-3,) * 3)}, contacts={"skin": contact}, timestep=timestep, options=exact)
        z = mech.place(mech.initial_state(ball=dict(position=(0.31, 0.22, 0.4))), clearance=1e-5)
        with torch.no_grad():
            energy = total_energy(mech, mech.rollout(z, steps=round(2.0 / timestep)).z)
        changes.append(float(energy[-1] - energy[0])), rises.append(float(energy.diff().clamp_min(0).sum()))
    for coarse, fine in pairwise(changes):
        assert 0.4 < fine / coarse < 0.6
    assert max(rises) < 2e-5  # J of 0.7 J; the sum over all steps


@needs_kernel
def test_a_quadruped_stands_on_rough_ground() -> None:
    mech = td.models.quadruped(spring=40.0, damper=2.0)
    mech.replace_ground(td.terrain.rough(0.05, size=(3.0, 3.0), seed=3))
    z = mech.place(td.models.initial_state("quadruped", mech))
    with torch.no_grad():
        trajectory = mech.rollout(z, steps=200)
    assert not trajectory.status.any()
    end = trajectory.z[-1].unflatten(-1, (-1, 13))
    assert float(end[:, 3:6].abs().max()) < 0.05 and float(end[0, 2]) > 0.15
    assert float(mech.distances(trajectory.z[-1]).min()) > 0


def test_generators_return_the_same_field_for_the_same_seed() -> None:
    kinds = {"slope": {"angle": 0.2}, "stairs": {"rise": 0.1, "run": 0.3}, "rough": {"height": 0.1}, "gaps": {"width": 0.2, "spacing": 1.0}}
    for kind, arguments in {**kinds, "bowl": {"radius": 2.0}}.items():
        one, two = (td.terrain.make({"kind": kind, "size": (2.0, 1.0), **arguments}) for _ in range(2))
        assert torch.equal(one.heights, two.heights) and one.heights.shape == (41, 21)
    rough = td.terrain.rough(0.1, seed=1).heights
    assert -0.1 <= float(rough.min()) < float(rough.max()) <= 0 and not torch.equal(rough, td.terrain.rough(0.1, seed=2).heights)


@pytest.mark.filterwarnings("ignore:combine. only points")
def test_a_scene_has_a_field_and_the_viewer_draws_it() -> None:
    scene = td.combine(crate=td.Body(1.0, shape=td.Box((0.2, 0.2, 0.2))), ground=td.terrain.slope(0.1, size=(2.0, 2.0)), contacts="all")
    assert len(scene.contacts) == 8
    from torchdojo.viewer.scene import Scene

    parts = [part for part in Scene.of(scene).parts if part.role == "ground"]
    assert len(parts) == 1 and parts[0].kind == "mesh"


def test_bad_input_is_refused() -> None:
    field = td.terrain.slope(0.1, size=(1.0, 1.0))
    with pytest.raises(ValueError, match=r"21, 21\), as before"):
        field.heights = torch.zeros(4, 5, dtype=torch.float64)
    with pytest.raises(ValueError, match="allowed: one of the world"):
        td.NonlinearContact("a", other="b", other_shape=field)
    with pytest.raises(ValueError, match="a point or a Sphere"):
        td.NonlinearContact("a", shape=td.Box((1.0, 1.0, 1.0)), other_shape=field)
    with pytest.raises(ValueError, match="no contact of a point, ball or ellipsoid with a plane"):
        td.models.quadruped(contact=False).replace_ground(field)
    for terrain, message in [
        ("hill", "allowed: .*'bowl'"),
        ({"kind": "rough", "bumps": 1.0}, "unexpected .*bumps.*arguments"),
        ({"kind": "bowl", "radius": -1.0}, "positive length"),
        ({"kind": "gaps", "width": 1.0, "spacing": 0.5}, "narrower"),
        ({"kind": "slope", "angle": 1.6}, "right angle"),
        ({"kind": "slope", "angle": 0.1, "cell": 0.0}, "positive length"),
    ]:
        with pytest.raises(ValueError, match=message):
            td.terrain.make(terrain)
