"""Points on faces and edges of shapes, with which these touch height fields: how close they are, and how far a peak enters between them."""

from __future__ import annotations

import math
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

import torchdojo as td
from torchdojo.geometry.polytopes import polytope_of
from torchdojo.geometry.surface_points import entering, surface_points
from torchdojo.quaternion import rotate

SHAPES: dict[str, Any] = {
    "box": td.Box((0.3, 0.2, 0.1), position=(0.01, 0.0, 0.02)),
    "cylinder": td.Cylinder(0.1, 0.2),
    "capsule": td.Capsule(0.05, 0.3),
    "hull": td.Hull([(0.15, 0, 0), (-0.1, 0.12, 0), (-0.1, -0.12, 0), (0, 0, 0.15), (0, 0, -0.12)]),
}


@pytest.mark.parametrize("pitch", [0.1, 0.04])
@pytest.mark.parametrize("kind", list(SHAPES))
def test_points_are_on_the_core_and_close_together(kind: str, pitch: float) -> None:
    shape = SHAPES[kind]
    core = polytope_of(shape)
    points, radius = surface_points(shape, pitch)
    assert float(radius) == core.radius and len(points) == len(torch.unique((points * 1e9).round(), dim=0))
    assert torch.cdist(core.vertices, points).amin(-1).max() < 1e-12  # corners are among them
    if len(core.normals):
        assert float((points @ core.normals.T - core.offsets).amax(-1).abs().max()) < 1e-12
    fine = surface_points(shape, 0.008)[0]
    apart = torch.cdist(fine, points).amin(-1).max()
    assert apart < pitch / math.sqrt(3) + 1e-12
    ends = core.vertices[core.edges]
    middles = ends[:, :1] + torch.linspace(0, 1, 50, dtype=torch.float64)[:, None] * (ends[:, 1:] - ends[:, :1])
    assert torch.cdist(middles.flatten(0, 1), points).amin(-1).max() < 0.5 * pitch + 1e-12


def test_balls_and_ellipsoids_keep_their_points() -> None:
    points, radius = surface_points(td.Sphere(0.1, position=(0, 0, 0.2)), 0.05)
    assert points.tolist() == [[0, 0, 0.2]] and float(radius) == 0.1
    shape = td.Ellipsoid((0.1, 0.1, 0.2))
    assert torch.equal(surface_points(shape, 0.05)[0], shape.contact_points()[0])


@pytest.mark.parametrize("pitch", [0.0, -1.0, math.inf, math.nan, True, "fine"])
def test_bad_pitches_are_refused(pitch: Any) -> None:
    with pytest.raises(ValueError, match=r"pitch: got .*; allowed: None, or a positive distance"):
        td.combine(box=td.Body(1.0, shape=td.Box((0.1, 0.1, 0.1))), ground=td.terrain.rough(0.02), pitch=pitch)


def test_curvatures_stay_below_their_bound() -> None:
    generator = torch.Generator().manual_seed(0)
    field = td.HeightField(0.05 * torch.randn(3, 12, 14, generator=generator, dtype=torch.float64), (0.1, 0.08))
    place = 2.0 * (torch.rand(4000, 1, 2, generator=generator, dtype=torch.float64) - 0.5)
    bends = torch.linalg.eigvalsh(field.at(place).bend).abs().amax((0, -1))
    assert field.most_bend().shape == (3,) and bool((bends <= field.most_bend()).all()) and bool((bends > 0.3 * field.most_bend()).all())
    peak = torch.zeros(9, 9, dtype=torch.float64)
    peak[4, 4] = 0.05
    assert float(td.HeightField(peak, 0.1).most_bend()) == pytest.approx(2 * 0.05 / 0.01 + 0.05 / 0.01)


def scene(shape: Any, field: td.HeightField, pitch: float | None) -> td.Mechanism:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of corners alone
        return td.combine(body=td.Body(2.0, shape=shape), ground=field, pitch=pitch, timestep=0.01)


def entered(shape: Any, field: td.HeightField, states: Tensor) -> float:
    """Largest height of the surface above places of faces, which are `radius` outside of those of the core."""
    fine, radius = surface_points(shape, 0.012)
    deepest = -math.inf
    for z in states.reshape(-1, 1, 13):
        places = z[..., :3] + rotate(z[..., 6:10], fine)
        surface = field.at(places[..., :2])
        height = surface.height + radius * torch.sqrt(1 + surface.slope.square().sum(-1))
        deepest = max(deepest, float((height - places[..., 2]).max()))
    return deepest


@pytest.mark.parametrize("kind", ["box", "cylinder", "hull"])
def test_a_peak_enters_no_face(kind: str) -> None:
    """A hill lies below the middle of a face. With corners alone it enters by centimeters, with points by the bound at most."""
    samples = torch.zeros(41, 41, dtype=torch.float64)
    samples[19:22, 19:22] = 0.05
    field, shape = td.HeightField(samples, 0.05), SHAPES[kind]
    depths = {}
    for pitch in (None, 0.1, 0.05):
        mech = scene(shape, field, pitch)
        z = mech.initial_state(body={"position": (0, 0, 0.3), "velocity": (0.05, 0.02, 0)})
        path = mech.rollout(z, steps=80)
        assert not path.status.any()
        depths[pitch] = entered(shape, field, path.z[::3])
        if pitch is not None:
            assert depths[pitch] <= float(entering(field.most_bend(), pitch, polytope_of(shape).radius))
    assert depths[0.05] < 5e-3
    assert depths[None] > 0.01 or kind == "hull"


@pytest.mark.parametrize("kind", ["box", "cylinder", "hull", "sphere"])
def test_replaced_ground_has_the_points_of_a_scene(kind: str) -> None:
    """The contacts with a plane become those that `td.combine` gives with the same pitch, with their own friction."""
    field, shape, pitch = td.terrain.rough(0.05, size=(3.0, 3.0), seed=1), {**SHAPES, "sphere": td.Sphere(0.1)}[kind], 0.1
    expected = scene(shape, field, pitch)
    flat = td.combine(body=td.Body(2.0, shape=shape), ground=td.Plane(), friction=0.3, timestep=0.01)
    before = list(flat.contacts)
    made = flat.replace_ground(field, pitch=pitch)
    assert made[: len(before)] == before and made == list(flat.contacts) and len(made) == len(expected.contacts)
    assert {float(contact.friction) for contact in flat.contacts.values()} == {0.3}
    z = expected.initial_state(body={"position": (0.1, 0.2, 0.4), "orientation": (0.8, 0.6, 0, 0)})
    for mech in (flat, expected):
        for contact in mech.contacts.values():
            contact.friction = 0.3
    torch.testing.assert_close(flat.distances(z).sort().values, expected.distances(z).sort().values, atol=1e-12, rtol=0)
    path, other = flat.rollout(z, steps=40), expected.rollout(z, steps=40)
    assert not path.status.any()
    torch.testing.assert_close(path.z[:20], other.z[:20], atol=1e-8, rtol=0)


def test_ground_that_cannot_have_a_pitch() -> None:
    field = td.terrain.rough(0.05, size=(3.0, 3.0), seed=1)
    mech = td.Mechanism({"body": td.Body(1.0, (0.1, 0.1, 0.1))}, contacts={"foot": td.NonlinearContact("body", radius=0.1)})
    with pytest.raises(ValueError, match=r"replace_ground\(pitch=0.1\): got no shape whose contact points all touch"):
        mech.replace_ground(field, pitch=0.1)
    assert mech.contacts["foot"].other_kind == "surface"  # nothing has changed
    with pytest.raises(ValueError, match=r"pitch: got -1.0"):
        mech.replace_ground(field, pitch=-1.0)
    assert mech.replace_ground(field) == ["foot"]


def test_boxes_tumble_over_rough_ground_within_the_bound() -> None:
    field, shape, pitch = td.terrain.rough(0.08, size=(3.0, 3.0), seed=1), SHAPES["box"], 0.05
    mech = scene(shape, field, pitch)
    generator = torch.Generator().manual_seed(2)
    state = mech.initial_state(body={"position": (0, 0, 0.5)}).repeat(12, 1)
    state[:, :2] = torch.rand(12, 2, generator=generator, dtype=torch.float64) - 0.5
    state[:, 3:6], state[:, 10:13] = (torch.randn(12, 3, generator=generator, dtype=torch.float64) for _ in range(2))
    state[:, 6:10] = torch.nn.functional.normalize(torch.randn(12, 4, generator=generator, dtype=torch.float64), dim=-1)
    path = mech.rollout(state, steps=100)
    assert not path.status.any()
    assert entered(shape, field, path.z[:, ::4]) <= float(entering(field.most_bend(), pitch, polytope_of(shape).radius))


def test_edits_and_messages() -> None:
    field, box = td.terrain.rough(0.02), td.Box((0.1, 0.1, 0.1))
    with pytest.warns(UserWarning, match=r"no edges or faces, touch the other.*pitch= lets edges and faces touch"):
        mech = td.combine(body=td.Body(1.0, shape=box), ground=field)
    assert len(mech.contacts) == 8
    mech.remove_contact("body", "ground")
    names = mech.add_contact("body", field, pitch=0.06, friction=0.3)
    assert len(names) == len(surface_points(box, 0.06)[0]) > 8
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        whole = td.combine(body=td.Body(1.0, shape=box), ground=field, pitch=0.06)
    assert len(whole.contacts) == len(names)
