"""Shapes: volume, center of mass and inertia against meshes and closed forms, contact points, derivatives, bad input."""

from __future__ import annotations

import copy
import math
import pickle
import sys

import pytest
import torch
from torch import Tensor

from torchdojo.geometry.shapes import Box, Capsule, Cylinder, Ellipsoid, Mesh, Shape, Sphere
from torchdojo.quaternion import exp, rotate, rotation_matrix

BOX_FACES = [
    [0, 2, 1], [1, 2, 3], [4, 5, 6], [5, 7, 6], [0, 1, 4], [1, 5, 4],
    [2, 6, 3], [3, 6, 7], [0, 4, 2], [2, 4, 6], [1, 3, 5], [3, 7, 5],
]  # fmt: skip
POSE = {"position": (0.3, -0.2, 0.5), "orientation": exp(torch.tensor([0.4, -0.7, 0.2], dtype=torch.float64))}
SHAPES: list[Shape] = [
    Sphere(0.4, **POSE),
    Box((0.3, 0.5, 0.7), **POSE),
    Capsule(0.2, 0.6, **POSE),
    Cylinder(0.3, 0.5, **POSE),
    Ellipsoid((0.2, 0.4, 0.6), **POSE),
]


def name(shape: Shape) -> str:
    return type(shape).__name__


def box_vertices(x: float, y: float, z: float) -> Tensor:
    """Corners in the order of `BOX_FACES`: x is bit 2 of the index, z is bit 0."""
    return torch.tensor([[i * x, j * y, k * z] for i in (0, 1) for j in (0, 1) for k in (0, 1)], dtype=torch.float64)


def revolved(profile: list[tuple[float, float]], segments: int) -> tuple[Tensor, list[list[int]]]:
    """Closed mesh of the profile (radius, z) turned around z; the first and last radii are 0."""
    points = [[0.0, 0.0, profile[0][1]], [0.0, 0.0, profile[-1][1]]]
    for r, z in profile[1:-1]:
        points += [[r * math.cos(2 * math.pi * i / segments), r * math.sin(2 * math.pi * i / segments), z] for i in range(segments)]
    faces, rings = [], len(profile) - 2
    for i in range(segments):
        j = (i + 1) % segments
        faces += [[0, 2 + j, 2 + i], [1, 2 + (rings - 1) * segments + i, 2 + (rings - 1) * segments + j]]
        for ring in range(rings - 1):
            a, b = 2 + ring * segments, 2 + (ring + 1) * segments
            faces += [[a + i, a + j, b + i], [a + j, b + j, b + i]]
    return torch.tensor(points, dtype=torch.float64), faces


def fine_mesh(shape: Shape, n: int = 120) -> Mesh:
    """The same solid as a mesh of about n segments around: independent of the closed forms."""
    arc = [(math.cos(a), math.sin(a)) for a in (math.pi * (i / n - 0.5) for i in range(n + 1))]
    arc[0], arc[-1] = (0.0, -1.0), (0.0, 1.0)
    pose = {"position": shape.position, "orientation": shape.orientation}
    if isinstance(shape, Box):
        return Mesh(box_vertices(*shape.size.tolist()) - shape.size / 2, BOX_FACES, **pose)
    if isinstance(shape, Cylinder):
        r, h = float(shape.radius), float(shape.length) / 2
        vertices, faces = revolved([(0.0, -h), (r, -h), (r, h), (0.0, h)], n)
    elif isinstance(shape, Capsule):
        r, h = float(shape.radius), float(shape.length) / 2
        lower, upper = [p for p in arc if p[1] <= 1e-12], [p for p in arc if p[1] >= -1e-12]
        vertices, faces = revolved([(r * c, r * s - h) for c, s in lower] + [(r * c, r * s + h) for c, s in upper], n)
    else:
        vertices, faces = revolved(arc, n)
        vertices = vertices * (shape.semi_axes if isinstance(shape, Ellipsoid) else shape.radius)
    return Mesh(vertices, faces, **pose)


@pytest.mark.parametrize("shape", SHAPES, ids=name)
def test_closed_forms_agree_with_a_fine_mesh(shape: Shape) -> None:
    mesh = fine_mesh(shape)
    # an inscribed polygon of 120 sides loses (2 pi / 120)^2 / 6 = 5e-4 of its area, a second moment twice that, a ball a little more
    torch.testing.assert_close(mesh.volume, shape.volume, rtol=2e-3, atol=0.0)
    torch.testing.assert_close(mesh.center, shape.center, rtol=0.0, atol=1e-12)
    expected = shape.inertia(2.5)
    torch.testing.assert_close(mesh.inertia(2.5), expected, rtol=0.0, atol=3e-3 * float(expected.abs().max()))


def test_moments_of_known_solids() -> None:
    assert float(Sphere(2.0).inertia(5.0)[0, 0]) == pytest.approx(8.0)
    assert Box((1.0, 2.0, 3.0)).inertia(12.0).diagonal().tolist() == pytest.approx([13.0, 10.0, 5.0])
    assert Cylinder(2.0, 6.0).inertia(1.0).diagonal().tolist() == pytest.approx([4.0, 4.0, 2.0])
    assert Ellipsoid((1.0, 2.0, 3.0)).inertia(5.0).diagonal().tolist() == pytest.approx([13.0, 10.0, 5.0])
    assert float(Capsule(0.5, 1e-9).inertia(1.0)[0, 0]) == pytest.approx(0.1)  # a capsule without a rod is a ball
    assert float(Capsule(1.0, 3.0).volume) == pytest.approx(math.pi * (3.0 + 4.0 / 3.0))


@pytest.mark.parametrize("shape", [*SHAPES, Mesh(box_vertices(1.0, 2.0, 0.5), BOX_FACES, **POSE)], ids=name)
def test_the_pose_rotates_the_inertia_and_moves_the_centre(shape: Shape) -> None:
    turned = copy.copy(shape)
    turned.orientation = torch.tensor([1.0, 0.0, 0.0, 0.0], dtype=torch.float64)
    rotation = rotation_matrix(shape.orientation)
    torch.testing.assert_close(shape.inertia(2.0), rotation @ turned.inertia(2.0) @ rotation.T, rtol=0.0, atol=1e-14)
    torch.testing.assert_close(shape.center - shape.position, rotation @ (turned.center - turned.position), rtol=0.0, atol=1e-14)
    moments = torch.linalg.eigvalsh(shape.inertia(2.0))
    assert moments[0] > 0
    assert moments[2] < moments[0] + moments[1]


def test_mesh_that_is_not_convex_is_the_sum_of_its_boxes() -> None:
    # an L in the xy plane, extruded along z: boxes 2x1x1 at the origin and 1x1x1 on top of it
    outline = [(0, 0), (2, 0), (2, 1), (1, 1), (1, 2), (0, 2)]
    vertices = torch.tensor([[x, y, z] for z in (0, 1) for x, y in outline], dtype=torch.float64) + 10.0
    caps = [(0, 1, 2), (0, 2, 3), (0, 3, 4), (0, 4, 5)]
    faces = [[c, b, a] for a, b, c in caps] + [[a + 6, b + 6, c + 6] for a, b, c in caps]
    for i in range(6):
        j = (i + 1) % 6
        faces += [[i, j, j + 6], [i, j + 6, i + 6]]
    mesh = Mesh(vertices, faces)
    parts = [Box((2.0, 1.0, 1.0), position=(11.0, 10.5, 10.5)), Box((1.0, 1.0, 1.0), position=(10.5, 11.5, 10.5))]
    center = (2.0 * parts[0].position + parts[1].position) / 3.0
    inertia = torch.zeros(3, 3, dtype=torch.float64)
    for part in parts:
        d, mass = part.position - center, part.volume
        inertia = inertia + part.inertia(mass) + mass * (d @ d * torch.eye(3, dtype=torch.float64) - torch.outer(d, d))
    assert float(mesh.volume) == pytest.approx(3.0)
    torch.testing.assert_close(mesh.center, center)
    torch.testing.assert_close(mesh.inertia(3.0), inertia)
    points, radius = mesh.contact_points()
    assert points.shape == (10, 3)  # the two vertices at the inner corner cannot touch a plane
    assert float(radius) == 0.0


def test_inward_winding_describes_the_same_solid() -> None:
    vertices = box_vertices(1.0, 2.0, 3.0)
    outward, inward = Mesh(vertices, BOX_FACES), Mesh(vertices, [face[::-1] for face in BOX_FACES])
    assert float(inward.volume) == pytest.approx(6.0)
    torch.testing.assert_close(inward.inertia(1.0), outward.inertia(1.0))


def test_contact_points() -> None:
    points, radius = Sphere(0.3, position=(1.0, 2.0, 3.0)).contact_points()
    assert points.tolist() == [[1.0, 2.0, 3.0]]
    assert float(radius) == pytest.approx(0.3)
    points, radius = Box((2.0, 4.0, 6.0)).contact_points()
    assert sorted(points.tolist()) == sorted([[x, y, z] for x in (-1.0, 1.0) for y in (-2.0, 2.0) for z in (-3.0, 3.0)])
    assert float(radius) == 0.0
    points, radius = Capsule(0.1, 1.0, orientation=(math.sqrt(0.5), 0.0, math.sqrt(0.5), 0.0)).contact_points()
    torch.testing.assert_close(points, torch.tensor([[-0.5, 0.0, 0.0], [0.5, 0.0, 0.0]], dtype=torch.float64))
    assert float(radius) == pytest.approx(0.1)
    points, radius = Cylinder(0.5, 2.0, rim_points=6).contact_points()
    assert points.shape == (12, 3)
    torch.testing.assert_close(points[:, :2].norm(dim=-1), torch.full((12,), 0.5, dtype=torch.float64))
    assert sorted(set(points[:, 2].tolist())) == [-1.0, 1.0]
    assert Cylinder(0.5, 2.0).contact_points()[0].shape == (8, 3)


@pytest.mark.parametrize(
    ("semi_axes", "gap"), [((1, 1, 1), 1e-12), ((3, 2, 1), 0.06 * 3), ((1, 1, 0.1), 0.08), ((1.2, 1.1, 1), 0.04 * 1.2)]
)
def test_balls_of_an_ellipsoid_touch_it_from_within(semi_axes, gap: float) -> None:
    ellipsoid = Ellipsoid(semi_axes)
    points, radius = ellipsoid.contact_points()
    direction = torch.nn.functional.normalize(
        torch.randn(20000, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)), dim=-1
    )
    inside = (direction * ellipsoid.semi_axes).norm(dim=-1) - ((direction @ points.T).amax(-1) + radius)  # of the supporting planes
    assert len(points) == 18
    assert float(inside.min()) >= -1e-12 and float(inside.max()) <= gap


def test_mesh_contact_points_without_scipy_are_all_vertices(monkeypatch: pytest.MonkeyPatch) -> None:
    vertices = torch.cat([box_vertices(1.0, 1.0, 1.0), torch.full((1, 3), 0.5, dtype=torch.float64)])  # the last one is in no face
    monkeypatch.setitem(sys.modules, "scipy.spatial", None)
    torch.testing.assert_close(Mesh(vertices, BOX_FACES).contact_points()[0], vertices[:8])


def test_hull_of_a_mesh_leaves_out_points_inside_a_face() -> None:
    pytest.importorskip("scipy")
    # face (4, 5, 6) split at a point of its own plane
    split = [face for face in BOX_FACES if face != [4, 5, 6]] + [[4, 5, 8], [5, 6, 8], [6, 4, 8]]
    vertices = torch.cat([box_vertices(1.0, 1.0, 1.0), torch.tensor([[1.0, 0.25, 0.25]], dtype=torch.float64)])
    mesh = Mesh(vertices, split, position=(1.0, 0.0, 0.0))
    torch.testing.assert_close(mesh.contact_points()[0], vertices[:8] + torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64))
    assert float(mesh.volume) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("build", "size"),
    [
        (lambda d: Sphere(d[0], **POSE), 1),
        (lambda d: Box(d, **POSE), 3),
        (lambda d: Capsule(d[0], d[1], **POSE), 2),
        (lambda d: Cylinder(d[0], d[1], **POSE), 2),
        (lambda d: Ellipsoid(d, **POSE), 3),
        (lambda d: Mesh(box_vertices(1.0, 1.0, 1.0) * d, BOX_FACES, **POSE), 3),
    ],
    ids=["Sphere", "Box", "Capsule", "Cylinder", "Ellipsoid", "Mesh"],
)
def test_derivatives_and_batches(build, size: int) -> None:
    dimensions = torch.tensor([0.4, 0.7, 0.9][:size], dtype=torch.float64, requires_grad=True)
    mass = torch.tensor([1.5, 2.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda d, m: build(d).inertia(m), (dimensions, mass))
    assert torch.autograd.gradcheck(lambda d: (build(d).volume, build(d).center), (dimensions,))
    assert torch.autograd.gradcheck(lambda d: build(d).contact_points(), (dimensions,))
    batched = build(dimensions.detach()).inertia(torch.ones(4, 1, 5, dtype=torch.float64))
    assert batched.shape == (4, 1, 5, 3, 3)
    assert build(dimensions.detach()).inertia(torch.ones(2, dtype=torch.float32)).dtype == torch.float32


def test_batched_dimensions() -> None:
    radius = torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64)
    capsule = Capsule(radius, 1.0, position=(0.0, 0.0, 1.0))
    assert capsule.inertia(2.0).shape == (3, 3, 3)
    torch.testing.assert_close(capsule.inertia(2.0)[1], Capsule(0.2, 1.0).inertia(2.0))
    assert Cylinder(radius, 1.0).contact_points()[0].shape == (3, 8, 3)
    boxes = Box(torch.rand(5, 2, 3, dtype=torch.float64) + 0.1)
    assert boxes.volume.shape == (5, 2)
    assert boxes.contact_points()[0].shape == (5, 2, 8, 3)
    scales = torch.tensor([1.0, 2.0], dtype=torch.float64)
    meshes = Mesh(box_vertices(1.0, 1.0, 1.0) * scales[:, None, None], BOX_FACES)
    assert meshes.volume.tolist() == pytest.approx([1.0, 8.0])
    assert meshes.inertia(1.0).shape == (2, 3, 3)


def test_shapes_work_under_torch_func_and_can_be_copied() -> None:
    radii = torch.tensor([0.1, 0.2], dtype=torch.float64)
    batched = torch.func.vmap(lambda r: Capsule(r, 1.0, **POSE).inertia(r))(radii)
    torch.testing.assert_close(batched[1], Capsule(0.2, 1.0, **POSE).inertia(0.2))
    for shape in (*SHAPES, Mesh(box_vertices(1.0, 1.0, 1.0), BOX_FACES)):
        for twin in (copy.deepcopy(shape), pickle.loads(pickle.dumps(shape))):
            torch.testing.assert_close(twin.inertia(1.0), shape.inertia(1.0))
        assert repr(shape).startswith(name(shape) + "(")


def test_a_shape_of_ones_own() -> None:
    class HollowSphere(Sphere):
        def _local_inertia(self) -> Tensor:
            return super()._local_inertia() * (5.0 / 3.0)

    shell = HollowSphere(0.5, position=(0.0, 1.0, 0.0))
    assert float(shell.inertia(3.0)[2, 2]) == pytest.approx(2.0 / 3.0 * 3.0 * 0.25)
    assert shell.contact_points()[0].tolist() == [[0.0, 1.0, 0.0]]
    with pytest.raises(ValueError, match="Shape has no contact points"):
        Shape().contact_points()


def test_rotate_places_contact_points() -> None:
    box = Box((1.0, 2.0, 3.0), **POSE)
    expected = rotate(box.orientation, Box((1.0, 2.0, 3.0)).contact_points()[0]) + box.position
    torch.testing.assert_close(box.contact_points()[0], expected)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Sphere(0.0), r"Sphere radius: got 0.0; allowed: positive numbers \[m\]"),
        (lambda: Sphere(-1.0), "Sphere radius: got -1.0"),
        (lambda: Sphere(math.nan), "Sphere radius: got nan; allowed: finite numbers"),
        (lambda: Sphere(1.0, position=(0.0, 0.0)), r"Sphere position: got shape \(2,\); allowed: \(\.\.\., 3\)"),
        (lambda: Sphere(1.0, orientation=(1.0, 1.0, 0.0, 0.0)), "Sphere orientation.*unit quaternions wxyz.*divide by the norm"),
        (lambda: Box((1.0, 2.0)), r"Box size: got shape \(2,\)"),
        (lambda: Box((1.0, 2.0, -3.0)), "Box size: got .*positive"),
        (lambda: Box((1.0, 2.0, math.inf)), "Box size: got .*finite"),
        (lambda: Capsule(0.1, 0.0), "Capsule length"),
        (lambda: Cylinder(0.0, 1.0), "Cylinder radius"),
        (lambda: Cylinder(0.1, 1.0, rim_points=2), "rim_points: got 2; allowed: an integer of at least 3"),
        (lambda: Ellipsoid((1.0, 0.0, 1.0)), "Ellipsoid semi_axes"),
        (lambda: Sphere(1.0).inertia(0.0), r"mass of Sphere: got 0.0; allowed: positive numbers \[kg\]"),
        (lambda: Mesh(box_vertices(1.0, 1.0, 1.0)[:3], [[0, 1, 2]]), r"Mesh vertices: got shape \(3, 3\)"),
        (lambda: Mesh(box_vertices(1.0, 1.0, 1.0), [[0, 1]]), r"Mesh faces: got shape \(1, 2\)"),
        (lambda: Mesh(box_vertices(1.0, 1.0, 1.0), [[0.0, 1.0, 2.0]]), "Mesh faces: got .*float"),
        (lambda: Mesh(box_vertices(1.0, 1.0, 1.0), [[0, 1, 9]]), "indices from 0 to 9; allowed: 0 to 7"),
        (lambda: Mesh(box_vertices(1.0, 1.0, 1.0), BOX_FACES[:-1]), "not a closed.*has no neighbor.*fill holes"),
        (lambda: Mesh(box_vertices(1.0, 1.0, 1.0), [BOX_FACES[0][::-1], *BOX_FACES[1:]]), "not a closed, consistently wound surface"),
        (lambda: Mesh(box_vertices(1.0, 1.0, 1.0) * torch.tensor([1.0, 1.0, 0.0]), BOX_FACES), "enclosed volume 0.0"),
    ],
)
def test_bad_input(build, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()


def test_bad_types() -> None:
    with pytest.raises(TypeError, match="Sphere radius"):
        Sphere("big")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"Box size.*floating-point"):
        Box(torch.tensor([1, 2, 3]))
