"""Meshes of files and their convex pieces: what is made of them, kept in the cache, and refused."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import torchdojo as td
from torchdojo.io import pieces
from torchdojo.native import loader

trimesh = pytest.importorskip("trimesh")
pytest.importorskip("scipy")


def angle(size: float = 0.1) -> td.Mesh:
    """An L of three cubes: a prism on a hexagon."""
    ring = [(0, 0), (2, 0), (2, 1), (1, 1), (1, 2), (0, 2)]
    vertices = [(size * x, size * y, size * z) for z in (0, 1) for x, y in ring]
    caps = [(0, 1, 2), (0, 2, 3), (0, 3, 4), (0, 4, 5)]
    faces = [(a, c, b) for a, b, c in caps] + [(a + 6, b + 6, c + 6) for a, b, c in caps]
    for i in range(6):
        j = (i + 1) % 6
        faces += [(i, j, j + 6), (i, j + 6, i + 6)]
    return td.Mesh(vertices, faces, position=(0.0, 0.0, 0.3))


def crossed() -> td.Mesh:
    """Two bars through each other, not united."""
    bars = [trimesh.creation.box((0.2, 0.04, 0.05)), trimesh.creation.box((0.04, 0.2, 0.04))]
    both = trimesh.util.concatenate(bars)
    return td.Mesh(both.vertices.tolist(), both.faces.tolist())


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(pieces, "cache_roots", lambda: iter([tmp_path / "cache"]))
    return tmp_path / "cache"


def test_convex_meshes_are_one_piece(cache: Path, tmp_path: Path) -> None:
    path = tmp_path / "cube.stl"
    trimesh.creation.box((0.2, 0.1, 0.3)).export(path)
    mesh = td.load_mesh(path, scale=(1, 2, -1), position=(1.0, 2.0, 3.0))
    assert float(mesh.volume) == pytest.approx(0.012) and mesh.center.tolist() == pytest.approx([1, 2, 3])
    (hull,) = td.decompose(mesh)
    assert float(hull.volume) == pytest.approx(0.012) and hull.position.tolist() == [1, 2, 3] and not cache.exists()


def test_pieces_fill_the_mesh_and_lie_in_the_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    coacd = pytest.importorskip("coacd")
    mesh = angle()
    hulls = td.decompose(mesh)
    assert len(hulls) == 2 and sum(float(hull.volume) for hull in hulls) == pytest.approx(float(mesh.volume), rel=0.05)
    ball, notch = td.Sphere(0.01), ((0.15, 0.15, 0.35), (1.0, 0, 0, 0))
    assert min(float(td.distance(ball, notch, hull, None).distance) for hull in hulls) == pytest.approx(0.04, abs=2e-3)
    (kept,) = cache.iterdir()
    monkeypatch.setattr(coacd, "run_coacd", None)
    again = td.decompose(mesh)
    assert [hull.vertices.tolist() for hull in again] == [hull.vertices.tolist() for hull in hulls]
    kept.write_bytes(kept.read_bytes()[:100])
    with pytest.raises(TypeError):  # a torn file counts as none
        td.decompose(mesh)
    with pytest.raises(TypeError):  # and so do other arguments
        td.decompose(mesh, threshold=0.2)


def test_pieces_touch_what_lies_in_the_notch() -> None:
    """Contacts of each piece with a ball that rests between both arms, where the hull of the mesh would push it out."""
    if not loader.available():
        pytest.skip("needs the compiled kernel")
    boxes = [td.Box((0.1, 0.2, 0.1), position=(0.05, 0.1, 0)), td.Box((0.1, 0.1, 0.1), position=(0.15, 0.05, 0))]
    hulls = [td.Hull(box.contact_points()[0]) for box in boxes]
    ball = td.Sphere(0.03)
    contacts = td.near_contacts("ball", ball, None, hulls, slots=3)
    assert list(contacts)[::3] == ["ball_world_0_0_near0", "ball_world_0_1_near0"]
    mech = td.Mechanism({"ball": td.Body(0.1, shape=ball)}, contacts=contacts, gravity=(-3.0, -9.0, 0.0))
    path = mech.rollout(mech.initial_state(ball={"position": (0.135, 0.135, 0)}), steps=60)
    assert not path.status.any() and path.z[-1, :2].tolist() == pytest.approx([0.13, 0.13], abs=1e-3)
    with pytest.raises(ValueError, match="got no shapes"):
        td.near_contacts("ball", ball, None, [])


def test_surfaces_that_intersect_themselves() -> None:
    """Bars that cross do; cubes that touch in a face, and cut and bent surfaces do not."""
    assert not len(pieces.self_intersections(angle().vertices.numpy(), angle().faces.numpy()))
    mesh = crossed()
    assert len(pieces.self_intersections(mesh.vertices.numpy(), mesh.faces.numpy())) >= 8
    side = trimesh.util.concatenate([trimesh.creation.box((1, 1, 1)), trimesh.creation.box((1, 1, 1)).apply_translation((1, 0, 0))])
    assert not len(pieces.self_intersections(np.asarray(side.vertices), np.asarray(side.faces)))
    ball = trimesh.creation.icosphere(3)
    assert not len(pieces.self_intersections(np.asarray(ball.vertices), np.asarray(ball.faces)))


OPEN = "v 0 0 0\nv 1 0 0\nv 0 1 0\nv 0 0 1\nf 1 3 2\nf 1 2 4\nf 1 4 3\n"
FLAT = "v 0 0 0\nv 1 0 0\nv 1 1 0\nv 0 1 0\nf 1 2 3\nf 1 3 4\nf 3 2 1\nf 4 3 1\n"


@pytest.mark.parametrize(
    ("text", "message"), [(OPEN, "closed.*fill holes"), (FLAT, "volume|closed"), ("v 0 0 0\n", "cannot be read|empty")]
)
def test_files_that_are_no_solids(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "part.obj"
    path.write_text(text)
    with pytest.raises(ValueError, match=message) as error:
        td.load_mesh(path)
    assert "part.obj" in str(error.value)


def test_what_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FileNotFoundError, match=r"none\.stl"):
        td.load_mesh(tmp_path / "none.stl")
    with pytest.raises(ValueError, match=r"intersects itself.*trimesh"):
        td.decompose(crossed())
    with pytest.raises(ValueError, match="threshold"):
        td.decompose(angle(), threshold=0.0)
    with pytest.raises(ValueError, match="most_vertices"):
        td.decompose(angle(), most_vertices=3)
    several = td.Mesh(torch.stack([angle().vertices] * 2), angle().faces)
    with pytest.raises(ValueError, match="one mesh"):
        td.decompose(several)
    monkeypatch.setitem(sys.modules, "coacd", None)
    with pytest.raises(ImportError, match="coacd"):
        td.decompose(angle())
