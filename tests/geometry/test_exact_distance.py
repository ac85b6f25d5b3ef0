"""`td.distance`: points that lie on both shapes and a plane between them prove it, without another engine."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

import torchdojo as td
from torchdojo import quaternion as quat


def hull(count: int, seed: int) -> td.Hull:
    points = torch.randn(count, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return td.Hull(0.05 * points / torch.linalg.vector_norm(points, dim=-1, keepdim=True), orientation=(0.6, 0, 0.8, 0))


SHAPES = {
    "sphere": td.Sphere(0.03, position=(0.01, 0, 0)),
    "capsule": td.Capsule(0.02, 0.1),
    "box": td.Box((0.1, 0.08, 0.06), position=(0, 0.01, 0)),
    "cylinder": td.Cylinder(0.04, 0.1, orientation=(0.8, 0.6, 0, 0)),
    "ellipsoid": td.Ellipsoid((0.05, 0.03, 0.02)),
    "hull": hull(20, 1),
}
KINDS = list(itertools.combinations_with_replacement(SHAPES, 2))


def kinds(*fast: tuple[str, str]) -> pytest.MarkDecorator:
    """All pairs of kinds; those that are not named are slow."""
    pairs = [pytest.param(*pair, marks=() if pair in fast else pytest.mark.slow) for pair in KINDS]
    return pytest.mark.parametrize(("first", "second"), pairs)


def poses(count: int, seed: int, near: float = 0.05, far: float = 0.15) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    turns = quat.normalize(torch.randn(2, count, 4, generator=generator, dtype=torch.float64))
    way = torch.nn.functional.normalize(torch.randn(count, 3, generator=generator, dtype=torch.float64), dim=-1)
    way = way * (near + (far - near) * torch.rand(count, 1, generator=generator, dtype=torch.float64))
    return [(way, turns[0]), (torch.zeros_like(way), turns[1])]


def outside(shape: td.Shape, pose: tuple[Tensor, Tensor], point: Tensor) -> Tensor:
    """How far points (N, 3) lie outside of a shape, to first order: not above 0 inside."""
    p = quat.inverse_rotate(shape.orientation, quat.inverse_rotate(pose[1], point - pose[0]) - shape.position)
    if isinstance(shape, td.Sphere):
        return torch.linalg.vector_norm(p, dim=-1) - shape.radius
    if isinstance(shape, td.Capsule):
        along = p[..., 2].clamp(-0.5 * shape.length, 0.5 * shape.length)
        return torch.linalg.vector_norm(torch.stack((p[..., 0], p[..., 1], p[..., 2] - along), -1), dim=-1) - shape.radius
    if isinstance(shape, td.Box):
        return (p.abs() - 0.5 * shape.size).amax(-1)
    if isinstance(shape, td.Cylinder):
        return torch.maximum(torch.linalg.vector_norm(p[..., :2], dim=-1) - shape.radius, p[..., 2].abs() - 0.5 * shape.length)
    if isinstance(shape, td.Ellipsoid):
        return (torch.linalg.vector_norm(p / shape.semi_axes, dim=-1) - 1) * shape.semi_axes.amin()
    assert isinstance(shape, td.Hull)
    a, b, c = shape.vertices[shape.faces].unbind(1)
    normal = torch.nn.functional.normalize(torch.linalg.cross(b - a, c - a), dim=-1)
    return (p @ normal.T - (normal * a).sum(-1)).amax(-1)


def lowest(shape: td.Shape, pose: tuple[Tensor, Tensor], normal: Tensor) -> Tensor:
    """Least n·p (N,) of a shape: its distance to a plane through the origin."""
    origin = pose[0].new_tensor([1.0, 0, 0, 0])
    return td.distance(shape, pose, td.Plane(normal), (torch.zeros(3, dtype=torch.float64), origin)).distance


@kinds(("box", "hull"), ("box", "cylinder"), ("cylinder", "ellipsoid"))
def test_points_and_plane_prove_the_distance(first: str, second: str) -> None:
    """The plane between the nearest points is a lower bound, and the points, which lie on the shapes, are an upper one."""
    a, b = SHAPES[first], SHAPES[second]
    one, two = poses(100, KINDS.index((first, second)))
    found = td.distance(a, one, b, two)
    torch.testing.assert_close(torch.linalg.vector_norm(found.normal, dim=-1), torch.ones(100, dtype=torch.float64), atol=1e-14, rtol=0)
    bound = lowest(a, one, found.normal) + lowest(b, two, -found.normal)
    torch.testing.assert_close(found.distance, bound, atol=1e-14, rtol=0)
    apart = found.distance > 0
    assert int(apart.sum()) > 25
    ends = torch.stack((outside(a, one, found.point), outside(b, two, found.other_point)))
    assert float(ends[:, apart].abs().max()) < 1e-13
    # Other normals give no less depth to shapes that overlap.
    over = (~apart).nonzero().squeeze(-1)
    assert float(ends[:, over].abs().max()) < 1e-7  # on the surfaces: to the root of the accuracy of the depth where faces are round
    trials = torch.nn.functional.normalize(torch.randn(300, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64), dim=-1)
    pair = [tuple(part[over][:, None] for part in pose) for pose in (one, two)]
    others = lowest(a, pair[0], trials) + lowest(b, pair[1], -trials)
    assert float((others - found.distance[over][:, None]).max()) < 1e-12


@kinds(("box", "hull"), ("cylinder", "ellipsoid"))
def test_derivatives(first: str, second: str) -> None:
    """Distance, normal and point by both poses, against differences along random directions."""
    a, b = SHAPES[first], SHAPES[second]
    one, two = poses(60, 100 + KINDS.index((first, second)), 0.08)
    apart = td.distance(a, one, b, two).distance > 5e-3
    leaves = [part[apart].requires_grad_(True) for part in (*one, *two)]
    count = len(leaves[0])
    assert count > 12
    generator = torch.Generator().manual_seed(0)
    along = [torch.randn(leaf.shape, generator=generator, dtype=torch.float64) for leaf in leaves]
    weights = torch.randn(count, 7, generator=generator, dtype=torch.float64)

    def value(step: float) -> Tensor:
        x = [leaf + step * way for leaf, way in zip(leaves, along, strict=True)]
        found = td.distance(a, (x[0], x[1]), b, (x[2], x[3]))
        return (weights * torch.cat((found.distance[..., None], found.normal, found.point), -1)).sum(-1)

    gradients = torch.autograd.grad(value(0.0).sum(), leaves)
    slope = sum((gradient * way).sum(-1) for gradient, way in zip(gradients, along, strict=True))
    with torch.no_grad():
        step = 1e-5
        difference = (8 * (value(step) - value(-step)) - value(2 * step) + value(-2 * step)) / (12 * step)
    error = (slope - difference).abs() / (1 + difference.abs())
    # Within 2e-5 of a change of features, differences see both sides.
    assert float(error.sort().values[:-2].max()) < 1e-7


def test_first_and_second_derivatives_by_sizes() -> None:
    sizes = torch.tensor([0.04, 0.1, 0.05, 0.03, 0.02], dtype=torch.float64)
    along = torch.tensor([0.5, -0.3, 0.8, 0.2, -0.4], dtype=torch.float64)
    one, two = ([part[0] for part in pose] for pose in poses(1, 3, 0.12))

    def slope(step: float) -> tuple[Tensor, Tensor, Tensor]:
        x = (sizes + step * along).requires_grad_(True)
        gap = td.distance(td.Cylinder(x[0], x[1]), one, td.Ellipsoid(x[2:]), two).distance
        (gradient,) = torch.autograd.grad(gap, x, create_graph=True)
        (second,) = torch.autograd.grad((gradient * along).sum(), x)
        return gap.detach(), (gradient * along).sum().detach(), (second * along).sum()

    (low, before, _), (_, first, second), (high, after, _) = (slope(step) for step in (-1e-4, 0.0, 1e-4))
    assert float((high - low) / 2e-4 - first) == pytest.approx(0, abs=1e-6)
    assert float((after - before) / 2e-4 - second) == pytest.approx(0, abs=1e-4)
    assert abs(float(second)) > 1e-2


def test_planes() -> None:
    floor, tilted = td.Plane(offset=0.1), td.Plane((0, 3.0, 4.0))
    ball = td.Sphere(0.2)
    found = td.distance(ball, ((0, 0, 1.0), (1, 0, 0, 0)), floor, None)
    assert found.distance.item() == pytest.approx(0.7, abs=1e-15) and found.other_point.tolist() == pytest.approx([0, 0, 0.1])
    flipped = td.distance(floor, None, ball, ((0, 0, 1.0), (1, 0, 0, 0)))
    assert flipped.normal.tolist() == [0, 0, -1] and flipped.point.tolist() == pytest.approx([0, 0, 0.1])
    moved = td.distance(td.Box((2.0, 2.0, 2.0)), None, tilted, ((0, -3.0, 0), (1, 0, 0, 0)))
    assert moved.distance.item() == pytest.approx(1.8 - 1.4, abs=1e-15)
    sizes = td.Sphere(torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64))
    assert td.distance(sizes, (torch.ones(2, 1, 3), (1.0, 0, 0, 0)), floor, None).distance.shape == (2, 3)


def test_ties_and_touching() -> None:
    """Parallel faces, equal places, crossing segments, flat hulls: numbers, and the right ones where they have one value."""
    box, rod, disc = td.Box((0.1, 0.1, 0.1)), td.Capsule(0.02, 0.2), td.Cylinder(0.05, 0.1)

    def gap(a: td.Shape, b: td.Shape, x: float, y: float, z: float, q: tuple[float, ...] = (1.0, 0, 0, 0)) -> float:
        found = td.distance(a, ((x, y, z), q), b, None)
        assert all(bool(torch.isfinite(part).all()) for part in found)
        return found.distance.item()

    assert gap(box, box, 0.02, 0, 0.15) == pytest.approx(0.05, abs=1e-15)
    assert gap(box, box, 0, 0, 0) == pytest.approx(-0.1, abs=1e-13)
    assert gap(box, box, 0.02, 0, 0.1) == pytest.approx(0, abs=1e-13)
    assert gap(disc, disc, 0.03, 0, 0.12) == pytest.approx(0.02, abs=1e-13)
    assert gap(disc, disc, 0.13, 0, 0.03) == pytest.approx(0.03, abs=1e-13)
    assert gap(disc, box, 0, 0, 0.09) == pytest.approx(-0.01, abs=1e-13)
    assert gap(rod, rod, 0.1, 0, 0.05) == pytest.approx(0.06, abs=1e-13)
    assert gap(rod, rod, 0, 0, 0, (2**-0.5, 2**-0.5, 0, 0)) == pytest.approx(-0.04, abs=1e-13)
    assert gap(td.Sphere(0.1), td.Sphere(0.1), 0, 0, 0) == pytest.approx(-0.2, abs=1e-13)
    sheet = td.Hull([(0.0, 0, 0), (1, 0, 0), (0, 1, 0), (1, 1, 0)])
    assert gap(td.Sphere(0.1), sheet, 0.4, 0.3, 0.5) == pytest.approx(0.4, abs=1e-13)


def test_what_is_refused() -> None:
    cube = td.Box((1.0, 1, 1)).contact_points()[0]
    solid = td.Hull(cube).solid()
    for arguments, text in (
        ((solid, None, td.Sphere(0.1), None), "td.Hull"),
        ((td.Plane(), None, td.Plane(), None), "two planes"),
        ((td.Sphere(0.1), ((0, 0), (1.0, 0, 0, 0)), td.Sphere(0.1), None), "pose_a"),
        ((td.Sphere(0.1), None, td.Sphere(0.1), ((0, 0, float("nan")), (1.0, 0, 0, 0))), "pose_b"),
    ):
        with pytest.raises(ValueError, match=text):
            td.distance(*arguments)
