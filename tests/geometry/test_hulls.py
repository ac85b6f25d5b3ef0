"""Hulls: few vertices of many, how far they are from the hull, flat ones, bad input."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

import torchdojo as td
from torchdojo.geometry.hulls import distances_to_hull, farthest_points

pytest.importorskip("scipy")

CUBE = np.array(list(itertools.product((-0.1, 0.1), repeat=3)))


def ball(count: int) -> np.ndarray:
    points = np.random.default_rng(0).standard_normal((count, 3))
    return points / np.linalg.norm(points, axis=-1, keepdims=True)


def test_points_inside_and_on_the_faces_of_a_cube_do_not_matter() -> None:
    points = np.concatenate((CUBE, CUBE, 0.5 * CUBE, 0.1 * np.eye(3)))
    hull = td.Hull(points, position=(1.0, 0.0, 0.0))
    places, radius = hull.contact_points()
    assert sorted(places.tolist()) == sorted((CUBE + np.array([1, 0, 0])).tolist())
    assert (hull.gap, float(radius)) == (0.0, 0.0)
    assert float(hull.volume) == pytest.approx(0.008)
    torch.testing.assert_close(hull.center, torch.tensor([1.0, 0.0, 0.0]))
    torch.testing.assert_close(hull.inertia(3.0), td.Box((0.2, 0.2, 0.2)).inertia(3.0))


@pytest.mark.parametrize("count", [4, 16, 40, 100])
def test_gap_is_the_distance_of_the_farthest_vertex(count: int) -> None:
    hull = td.Hull(ball(80), count=count)
    chosen = hull.vertices[hull.chosen].numpy()
    assert len(chosen) <= count
    assert hull.gap == pytest.approx(distances_to_hull(ball(80), chosen).max(), abs=1e-12)
    # the support of the chosen points is short of the real one by at most the gap
    direction = ball(3000)
    short = (direction @ ball(80).T).max(-1) - (direction @ chosen.T).max(-1)
    assert short.min() >= -1e-12 and short.max() <= hull.gap + 1e-12
    assert hull.gap <= {4: 1.0, 16: 0.25, 40: 0.1, 100: 1e-3 * 12**0.5}[count]


def test_distances_are_those_of_the_nearest_convex_combination() -> None:
    from scipy.optimize import lsq_linear

    rng = np.random.default_rng(1)
    for rank in (1, 2, 3):
        corners = rng.standard_normal((6, rank)) @ rng.standard_normal((rank, 3)) + rng.standard_normal(3)
        points = 2 * rng.standard_normal((20, 3))
        # weights >= 0 that sum to one, by a heavy row: an error of 1e-7
        rows = np.vstack((corners.T, np.full(6, 1e4)))
        mixes = [lsq_linear(rows, np.append(point, 1e4), (0, np.inf), method="bvls", tol=1e-15).x for point in points]
        expected = [np.linalg.norm(mix @ corners - point) for mix, point in zip(mixes, points, strict=True)]
        np.testing.assert_allclose(distances_to_hull(points, corners), expected, atol=1e-6)


@pytest.mark.parametrize(
    ("points", "count", "faces"),
    [(CUBE[CUBE[:, 2] > 0], 4, 2), ([[0, 0, 0], [1, 2, 3], [0.5, 1, 1.5]], 2, 1), ([[1, 2, 3]] * 3, 1, 1)],
    ids=["square", "line", "point"],
)
def test_flat_hulls_touch_but_have_no_volume(points, count: int, faces: int) -> None:
    hull = td.Hull(points)
    assert (len(hull.contact_points()[0]), len(hull.faces), hull.gap) == (count, faces, 0.0)
    with pytest.raises(ValueError, match="Mesh"):
        hull.inertia(1.0)


def test_selection_starts_far_out_and_needs_no_more_points_than_there_are() -> None:
    assert farthest_points(CUBE, 100) == (list(range(8)), 0.0)
    assert len(farthest_points(CUBE, 5)[0]) == 5


def test_gradients_reach_the_vertices() -> None:
    points = torch.tensor(CUBE, requires_grad=True)
    hull = td.Hull(points)
    (grad,) = torch.autograd.grad(hull.contact_points()[0].square().sum() + hull.volume, points)
    assert torch.isfinite(grad).all() and (grad.abs().sum(-1) > 0).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.zeros((0, 3)),), r"Hull points: got the shape \(0, 3\); allowed"),
        ((np.zeros((3, 2)),), r"got the shape \(3, 2\)"),
        ((CUBE * np.nan,), "finite"),
        ((CUBE, 3), "Hull count: got 3; allowed: an integer of at least 4"),
        ((CUBE, True), "Hull count: got True"),
    ],
)
def test_bad_input(arguments, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        td.Hull(arguments[0], **({"count": arguments[1]} if len(arguments) > 1 else {}))


def test_without_scipy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "scipy.spatial", None)
    with pytest.raises(ImportError, match=r'pip install "torchdojo\[mesh\]"'):
        td.Hull(CUBE)
