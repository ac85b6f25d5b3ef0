"""Signed distances that users write: forms that are recognized, grids with the error that they state, contacts with them, bad input."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import torchdojo as td
from torchdojo.viewer.scene import Scene

BOX = ((-1.0, -0.9, -0.8), (1.0, 1.1, 1.2))
CENTER = (0.1, -0.2, 0.3)


def torus(point: Tensor) -> Tensor:
    return torch.hypot(torch.hypot(point[:, 0], point[:, 1]) - 0.5, point[:, 2]) - 0.2


def waves(point: Tensor) -> Tensor:
    return point[:, 2] - 0.1 * torch.sin(3 * point[:, 0]) * torch.cos(2 * point[:, 1])


def tilted(point: Tensor) -> Tensor:
    return point @ torch.tensor((0.6, 0.0, 0.8), dtype=torch.float64) - 0.25


def ball(point: Tensor) -> Tensor:
    return torch.linalg.vector_norm(point - torch.tensor(CENTER, dtype=torch.float64), dim=-1) - 0.4


def places(count: int) -> Tensor:
    lower, upper = torch.tensor(BOX, dtype=torch.float64)
    return lower + (upper - lower) * torch.rand(count, 3, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


def test_planes_and_spheres_are_recognized() -> None:
    plane = td.from_signed_distance(tilted, *BOX, 0.1)
    assert isinstance(plane, td.Plane) and float(plane.offset) == pytest.approx(0.25, abs=1e-12)
    torch.testing.assert_close(plane.normal, torch.tensor((0.6, 0.0, 0.8), dtype=torch.float64), rtol=0, atol=1e-12)
    sphere = td.from_signed_distance(ball, *BOX, 0.1)
    assert isinstance(sphere, td.Sphere) and float(sphere.radius) == pytest.approx(0.4, abs=1e-12)
    torch.testing.assert_close(sphere.position, torch.tensor(CENTER, dtype=torch.float64), rtol=0, atol=1e-12)
    hollow = td.from_signed_distance(lambda point: -ball(point), *BOX, 0.1)  # the inside of a sphere is no shape of the table
    assert isinstance(hollow, td.DistanceGrid)


def test_heights_over_the_plane_are_recognized() -> None:
    errors = []
    for cell in (0.1, 0.05):
        field = td.from_signed_distance(waves, *BOX, cell)
        assert isinstance(field, td.HeightField) and field.error is not None
        point = places(500)
        apart = (point[:, 2] - field.height(point[:, :2]) - waves(point)).abs().max()
        assert float(apart) < 1.2 * field.error
        errors.append(field.error)
    assert errors[1] < errors[0] / 12  # of fourth order: 16, less what the ends of the axes cost


@pytest.mark.parametrize("function", [torus, lambda point: -ball(point)])
def test_grids_keep_the_error_that_they_state(function: Callable[[Tensor], Tensor]) -> None:
    point, errors = places(4000), []
    wanted = function(point)
    for cell in (0.1, 0.05, 0.025):
        grid = td.from_signed_distance(function, *BOX, cell)
        assert isinstance(grid, td.DistanceGrid) and grid.error is not None
        near = wanted.abs() < 2 * cell
        assert float((grid.distance(point) - wanted)[near].abs().max()) < 1.5 * grid.error + 1e-12
        errors.append(grid.error)
    assert errors[2] < errors[1] < errors[0] and errors[2] < 1e-5
    normal = grid.gap(point[near])[1]
    slopes = torch.func.vmap(torch.func.grad(lambda p: function(p[None])[0]))(point[near])
    assert float((normal - slopes).abs().max()) < 1e-3


def test_a_quadratic_is_sampled_exactly() -> None:
    """The spline has every polynomial of degree three, to its ends."""
    grid = td.from_signed_distance(lambda p: (p * p).sum(-1) + p[:, 0] * p[:, 1] ** 2 - 0.3, *BOX, 0.3)
    assert isinstance(grid, td.DistanceGrid) and grid.error is not None and grid.error < 1e-12


def test_beyond_the_box_a_grid_goes_on_as_a_plane() -> None:
    grid = td.from_signed_distance(torus, *BOX, 0.1)
    assert isinstance(grid, td.DistanceGrid)
    edge = torch.tensor((1.0, 0.2, 0.1), dtype=torch.float64)
    away = torch.tensor((1.0, 0.0, 0.0), dtype=torch.float64)
    (at, normal), (near, _), (far, beyond) = grid.gap(edge), grid.gap(edge + 1e-9 * away), grid.gap(edge + away)
    assert float(near - at) == pytest.approx(0.0, abs=1e-8)
    slope = float(grid.distance(edge + 2 * away) - far)
    assert float(far - at) == pytest.approx(slope, abs=1e-12) and slope == pytest.approx(float(normal[0]), rel=0.05)
    torch.testing.assert_close(beyond, normal, rtol=0, atol=1e-12)


def test_scenes_take_grids_and_draw_them() -> None:
    grid = td.from_signed_distance(torus, (-0.9, -0.9, -0.3), (0.9, 0.9, 0.3), 0.04)
    scene = td.combine(
        ring=grid, ball=td.Body(1.0, shape=td.Sphere(0.1)), crate=td.Body(1.0, shape=td.Box((0.1, 0.1, 0.1))), contacts="all"
    )
    assert sorted({contact.surface_name for contact in scene.contacts.values() if contact.other is None}) == ["ring"]
    z = scene.initial_state(ball={"position": (0.5, 0.0, 0.301)}, crate={"position": (-0.5, 0.0, 0.251)})
    out = scene.rollout(z, steps=20)
    assert not out.status.any() and float(scene.distances(out.z[-1]).min()) > 0
    parts = [part for part in Scene.of(scene).parts if part.role == "ground"]
    assert len(parts) == 1 and parts[0].kind == "mesh"


@pytest.mark.parametrize("backend", ["reference", "native"])
def test_steps_differentiate_by_states_and_all_numbers(backend: str) -> None:
    grid = td.from_signed_distance(torus, (-0.9, -0.9, -0.3), (0.9, 0.9, 0.3), 0.1)
    contact = td.NonlinearContact("ball", radius=0.1, other_shape=grid, friction=0.4)
    mech = td.Mechanism(
        {"ball": td.Body(1.0, (0.004, 0.005, 0.006))}, (), {"skin": contact}, options=td.SolverOptions(backend=backend, kappa=1e-4)
    )
    z = mech.initial_state(ball={"position": (0.52, 0.03, 0.305), "velocity": (0.5, 0.2, -1.0)})
    names = [f"contacts.skin.{name}" for name in ("ground.samples", "ground.cell", "ground.origin", "friction", "radius")]
    report = td.testing.check_gradients(mech, z, parameters=names, directions=2, tolerance=1e-6)
    assert float(report.numeric["contacts.skin.ground.samples -> state"].abs().max()) > 1e-3


def test_a_ball_without_friction_keeps_its_energy() -> None:
    """Normals are the gradients of gaps, so the surface does no work: what the energy loses falls with the timestep."""
    bowl = td.from_signed_distance(lambda point: 0.6 - torch.linalg.vector_norm(point, dim=-1), (-0.7, -0.7, -0.7), (0.7, 0.7, 0.2), 0.05)
    assert isinstance(bowl, td.DistanceGrid)
    changes = []
    for h in (0.01, 0.005):
        mech = td.Mechanism(
            {"ball": td.Body(1.0, shape=td.Sphere(0.1))}, (), {"skin": td.ImpactContact("ball", radius=0.1, other_shape=bowl)}, timestep=h
        )
        z = mech.initial_state(ball={"position": (0.35, 0.0, -0.353)})
        z = mech.rollout(z, steps=round(0.2 / h)).z[-1]  # it lies on the bowl by now
        out = mech.rollout(z, steps=round(0.8 / h))
        energy = 9.81 * out.z[..., 2] + 0.5 * out.z[..., 3:6].square().sum(-1)
        assert not out.status.any()
        changes.append(float(energy[0] - energy[-1]))
    assert 0 < changes[1] < 0.6 * changes[0]  # of first order


def test_bad_input_is_refused() -> None:
    for message, arguments in {
        "lower < upper": (torus, BOX[1], BOX[0], 0.1),
        "a positive length": (torus, *BOX, 0.0),
        r"torch.float64 \(512,\)": (lambda point: point, *BOX, 0.1),
        "without a gradient": (lambda point: point[:, 0].detach() ** 2, *BOX, 0.1),
        "not finite": (lambda point: (point**2).sum(-1) / 0, *BOX, 0.1),
        "without a zero in the box": (lambda point: (point**2).sum(-1) + 1, *BOX, 0.1),
        "give a larger cell=": (torus, *BOX, 0.001),
    }.items():
        with pytest.raises(ValueError, match=message):
            td.from_signed_distance(*arguments)
    with pytest.raises(ValueError, match="give a smaller cell="):
        td.from_signed_distance(torus, *BOX, 0.2, tolerance=1e-6)
    grid = td.from_signed_distance(torus, *BOX, 0.2)
    assert isinstance(grid, td.DistanceGrid)
    with pytest.raises(ValueError, match="as before"):
        grid.samples = torch.zeros(4, 4, 4, dtype=torch.float64)
    with pytest.raises(ValueError, match="positive lengths"):
        grid.cell = (0.1, -0.1, 0.1)
    with pytest.raises(ValueError, match="four or more of each"):
        td.DistanceGrid(torch.zeros(4, 3, 4), 0.1, origin=(0.0, 0.0, 0.0))
    with pytest.raises(ValueError, match="one of the world"):
        td.NonlinearContact("a", other="b", other_shape=grid)
    with pytest.raises(ValueError, match="a point or a Sphere"):
        td.NonlinearContact("a", shape=td.Box((1.0, 1.0, 1.0)), other_shape=grid)
