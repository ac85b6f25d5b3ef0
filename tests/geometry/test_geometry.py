"""Distances of points, segments, spheres, capsules and boxes: against brute force, their own derivatives, and at degenerate poses."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from torchdojo import quaternion as quat
from torchdojo.geometry import distance
from torchdojo.geometry.pairs import KINDS, Solid, Witness, nearest

PAIRS = list(itertools.product(KINDS[:3], KINDS[:3]))  # ellipsoids: tests/native/test_ellipsoid_contacts.py


def solid(kind: str, position: Tensor) -> Solid:
    """Solids of random orientation and size at positions (..., 3)."""
    batch = position.shape[:-1]
    orientation = quat.normalize(torch.randn(*batch, 4))
    if kind == "box":
        return Solid(position, orientation, torch.zeros(batch), 0.2 + torch.rand(*batch, 3))
    extent = 0.2 + torch.rand(batch) if kind == "capsule" else position[..., :0]
    return Solid(position, orientation, 0.1 + 0.2 * torch.rand(batch), extent)


def random_pair(a: str, b: str, count: int, spread: float = 0.7) -> tuple[Solid, Solid]:
    return solid(a, spread * torch.randn(count, 3)), solid(b, spread * torch.randn(count, 3))


def cloud(kind: str, body: Solid, per_side: int = 13) -> Tensor:
    """Points of the core (the center, the segment, the solid box), (N, points, 3)."""
    if kind == "sphere":
        return body.position[:, None]
    grid = torch.linspace(-1, 1, per_side)
    if kind == "capsule":
        return body.position[:, None] + torch.linspace(-1, 1, 400)[:, None] * body.half_vector[:, None]
    corners = torch.cartesian_prod(grid, grid, grid)
    surface = corners[corners.abs().amax(-1) == 1]
    return body.position[:, None] + quat.rotate(body.orientation[:, None], surface * 0.5 * body.extent[:, None])


@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_distance_is_that_of_sampled_points(a: str, b: str) -> None:
    first, second = random_pair(a, b, 60, spread=1.2)
    witness = nearest(a, b, first, second)
    sampled = torch.cdist(cloud(a, first), cloud(b, second)).amin((-1, -2)) - first.radius - second.radius
    apart = witness.distance > 1e-3
    assert int(apart.sum()) > 25
    # Never more than between samples; boxes are sampled on a grid of up to 0.1 m, which finds distances to 0.07 m.
    error = (sampled - witness.distance)[apart]
    # Distances of boxes are rounded up by a quarter of 2e-3 times the edges that are not along the axis.
    assert float(error.min()) > (-3e-3 if (a, b) == ("box", "box") else -1e-9)
    if (a, b) == ("box", "box"):
        # The separation along the best axis is less where corners are nearest; by 1 − 1/√3 at most.
        assert bool((witness.distance[apart] > 0.57 * (sampled[apart] - 0.14)).all())
    else:
        assert float(error.max()) < (0.1 if "box" in (a, b) else 3e-3)


@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_normals_points_and_derivatives(a: str, b: str) -> None:
    first, second = random_pair(a, b, 200)
    keep = nearest(a, b, first, second).distance > 1e-3
    first, second = (Solid(*(part[keep] for part in s)) for s in (first, second))
    position = first.position.clone().requires_grad_()
    witness = nearest(a, b, first._replace(position=position), second)
    (gradient,) = torch.autograd.grad(witness.distance.sum(), position)
    assert float((torch.linalg.vector_norm(witness.normal.detach(), dim=-1) - 1).abs().max()) < 1e-12
    # Moving a along the normal opens the gap: exact but for the regularization of parallel segments, 1e-4 of their lengths over distances.
    assert float((gradient - witness.normal.detach()).abs().max()) < 1e-3
    # The points are on the surfaces; of boxes on the planes of their faces, which is the same as they touch.
    with torch.no_grad():
        behind = witness.point - witness.distance[:, None] * witness.normal
        slack = 4 * witness.distance if (a, b) == ("box", "box") else 0.0
        for kind, body, point in ((a, first, witness.point), (b, second, behind)):
            own = nearest("sphere", kind, _point(point), body).distance.abs() - slack
            assert float(own.max()) < (3e-3 if (a, b) == ("box", "box") else 1e-7)


def _point(x: Tensor) -> Solid:
    return Solid(x, quat.identity().expand(*x.shape[:-1], 4), torch.zeros(x.shape[:-1]), x[..., :0])


@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_exchange_and_rigid_motion(a: str, b: str) -> None:
    first, second = random_pair(a, b, 50)
    one, two = nearest(a, b, first, second), nearest(b, a, second, first)
    assert torch.allclose(one.distance, two.distance, atol=1e-12)
    assert torch.allclose(one.normal, -two.normal, atol=1e-9)
    if (a, b) != ("box", "box"):
        assert torch.allclose(one.point - one.distance[:, None] * one.normal, two.point, atol=1e-9)
    turn, shift = quat.normalize(torch.randn(4)), torch.randn(3)
    moved = [Solid(quat.rotate(turn, s.position) + shift, quat.multiply(turn, s.orientation), s.radius, s.extent) for s in (first, second)]
    three = nearest(a, b, *moved)
    assert torch.allclose(three.distance, one.distance, atol=1e-10)
    assert torch.allclose(three.point, quat.rotate(turn, one.point) + shift, atol=1e-6)


@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_derivatives_are_finite_where_shapes_are_aligned(a: str, b: str) -> None:
    """Same place, same orientation; stacked; side by side: parallel, concentric, touching."""
    for offset in ((0.0, 0.0, 0.0), (0.0, 0.0, 0.5), (0.5, 0.0, 0.0), (0.5, 0.5, 0.0), (0.0, 0.25, 0.7)):
        extent = {"sphere": torch.zeros(0), "capsule": torch.tensor(0.5), "box": torch.tensor((0.5, 0.5, 0.5))}
        leaves = [torch.tensor(offset), torch.zeros(3), quat.identity(), quat.identity(), extent[a].clone(), extent[b].clone()]
        leaves = [leaf.requires_grad_() for leaf in leaves]
        x, y, p, q, size_a, size_b = leaves
        witness = nearest(a, b, Solid(x, p, torch.tensor(0.1), size_a), Solid(y, q, torch.tensor(0.1), size_b))
        total = witness.distance + witness.normal.sum() + witness.point.sum()
        grads = torch.autograd.grad(total, leaves, allow_unused=True)
        assert all(bool(torch.isfinite(v).all()) for v in (total.detach(), *(g for g in grads if g is not None)))


def test_boxes_that_overlap() -> None:
    """The sign is exact: against the corners and edges of either inside the other."""
    first, second = random_pair("box", "box", 400, spread=0.5)
    gap = nearest("box", "box", first, second).distance
    inside = torch.zeros(400, dtype=torch.bool)
    for one, two in ((first, second), (second, first)):
        points = cloud("box", one, per_side=25)
        local = quat.inverse_rotate(two.orientation[:, None], points - two.position[:, None])
        inside |= (local.abs() < 0.5 * two.extent[:, None]).all(-1).any(-1)
    # Samples can miss an overlap of an edge by the grid, 0.05 m at most; they cannot invent one.
    assert bool((gap[inside] < 3e-3).all()) and bool((gap[~inside] > -0.05).all())
    assert 50 < int(inside.sum()) < 350


def test_boxes_face_to_face() -> None:
    """Flat on each other the nearest point is the middle of the upper face; tilted by more than 2 mrad, its lowest edge or corner."""
    lower = Solid(torch.zeros(3), quat.identity(), torch.zeros(()), torch.tensor((1.0, 1.0, 1.0)))
    size = torch.tensor((0.2, 0.3, 0.4))

    def upper(tilt: tuple[float, float, float]) -> Witness:
        x = torch.tensor((0.1, 0.05, 0.5 + 0.2 + 0.01))
        return nearest("box", "box", Solid(x, quat.exp(torch.tensor(tilt)), torch.zeros(()), size), lower)

    flat = upper((0.0, 0.0, 0.3))
    assert torch.allclose(flat.point, torch.tensor((0.1, 0.05, 0.51)), atol=1e-9)
    assert torch.allclose(flat.normal, torch.tensor((0.0, 0.0, 1.0)), atol=1e-12) and abs(float(flat.distance) - 0.01) < 1e-12
    tilted = upper((0.0, 0.01, 0.0))
    assert abs(float(tilted.point[0]) - 0.2) < 3e-3 and abs(float(tilted.point[1]) - 0.05) < 1e-9
    assert abs(float(tilted.distance) - (0.21 - 0.1 * 0.01 - 0.2)) < 3e-4


def test_parallel_segments_meet_in_the_middle() -> None:
    u, v = torch.tensor((0.0, 0.0, 1.0)), torch.tensor((0.0, 0.0, 0.5))
    s, t = distance.segment_segment(u, v, torch.tensor((0.3, 0.0, 0.0)))
    assert abs(float(s)) < 1e-12 and abs(float(t)) < 1e-12
    flat = distance.segment_box(torch.tensor((0.0, 0.0, 0.7)), torch.tensor((0.4, 0.0, 0.0)), torch.tensor((1.0, 1.0, 0.5)))
    assert abs(float(flat)) < 1e-12
    beyond = distance.segment_box(torch.tensor((1.2, 0.0, 0.7)), torch.tensor((0.4, 0.0, 0.0)), torch.tensor((1.0, 1.0, 0.5)))
    assert float(beyond) >= -1 and float(1.2 + 0.4 * beyond) <= 1.0 + 1e-3
