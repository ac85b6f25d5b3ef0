"""The figures of a fit."""

import numpy as np
import pytest
import torch
from made_up import recorded

from torchdojo.identification import cube_model, elbow_model, open_loop, plots


def test_quantiles_are_those_of_the_throws_that_are_still_recorded():
    errors = torch.tensor([0.0, 1.0, 2.0, 3.0, 0.0, 3.0, 6.0, 0.0, 5.0])
    time, values = plots.error_quantiles(errors, torch.tensor([0, 4, 7, 9]), 0.5, (0.0, 0.5, 1.0))
    np.testing.assert_allclose(time, [0.0, 0.5, 1.0])  # two of three throws have three samples
    np.testing.assert_allclose(values, [[0, 1, 2], [0, 3, 4], [0, 5, 6]])


def test_hulls():
    square = np.array([[0, 0], [1, 0], [1, 1], [0, 1]], dtype=float)
    inside = np.array([[0.5, 0.5], [0.5, 0.0], [0.2, 0.9]])
    np.testing.assert_allclose(plots.convex_hull(np.concatenate((inside, square, square))), square)


def test_outline_of_a_cube_has_its_width_and_its_round_corners():
    model = cube_model(0.01, ("half_side", "corner_radius"), start={"half_side": 0.05, "corner_radius": 0.004})
    outline = plots.outlines(model.baked())
    assert outline.centers.shape == (8, 3) and outline.joints.shape == (0, 3)
    np.testing.assert_allclose(np.abs(outline.centers), 0.046)
    np.testing.assert_allclose(outline.radii, 0.004)
    hull = outline.hull(0, (0, 2))
    np.testing.assert_allclose(hull.max(0) - hull.min(0), 0.1, rtol=1e-12)  # the circle's corners include the axes
    reach = np.linalg.norm(hull, axis=-1).max()
    # farthest: along the diagonal, of a circle of 64 corners of which one lies there
    assert reach == pytest.approx(0.046 * np.sqrt(2) + 0.004, rel=1e-12)


def test_outline_of_the_hinged_object():
    outline = plots.outlines(elbow_model(0.01).baked())
    assert outline.centers.shape == (16, 3) and set(outline.body.tolist()) == {0, 1}
    # hinge at (−35, 60, 0) mm of the first link, and (−35, 0, 0) of the second, which lies beside it
    np.testing.assert_allclose(outline.joints, [[-0.035, 0.06, 0.0]], atol=1e-12)
    np.testing.assert_allclose(outline.centers[outline.body == 1].mean(0), [0.0, 0.06, 0.0], atol=1e-12)


def test_throws_at_the_quartiles_and_their_motions():
    model = cube_model(1 / 148, ("friction",))
    data = recorded(model, 5, 30)
    rollout = open_loop(cube_model(1 / 148, ("friction",), start={"gravity": 9.0}), data)
    means = torch.stack([rollout.position[30 * i + 1 : 30 * i + 30].mean() for i in range(5)])
    assert plots.quartile_throws(rollout) == means.argsort()[1:4].tolist()
    body = data.bodies()[:30, 0].clone()
    body[:, :2] = torch.linspace(0, 0.3, 30)[:, None] * torch.tensor([0.6, 0.8]) + 1.0
    angle = torch.linspace(0, 1.5, 30)
    body[:, 6:10] = torch.stack(((angle / 2).cos(), torch.zeros(30), (angle / 2).sin(), torch.zeros(30)), dim=-1)
    height, way, turn = plots.motions(body).values()
    np.testing.assert_allclose(height, body[:, 2])
    np.testing.assert_allclose(way, np.linspace(0, 0.3, 30), atol=1e-12)
    np.testing.assert_allclose(turn, np.rad2deg(np.linspace(0, 1.5, 30)), atol=1e-6)  # like acos near zero
