"""Meshes that are not convex as convex pieces, which contacts can have: by CoACD (Wei et al. 2022), kept in the cache of the user."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchdojo.geometry.hulls import Hull, convex_hull
from torchdojo.geometry.shapes import Mesh
from torchdojo.io.meshes import read_mesh
from torchdojo.io.robot import Array
from torchdojo.native.loader import cache_roots

__all__ = ["cut_mesh", "decompose", "load_mesh"]

CONVEX = 1e-9  # share of its hull's volume that a convex mesh may lack
TOUCHING = 1e-9  # of barycentric coordinates, and of heights relative to the extent: surfaces that only touch do not intersect
NAMED = 3  # pairs of triangles that a message names


def load_mesh(path: str | Path, scale: float | Sequence[float] = 1.0, **pose: Any) -> Mesh:
    """The closed mesh of a file: STL, OBJ, DAE and whatever else trimesh reads; lengths in meters, unless the file names a unit.

    Args:
        scale: of all axes, or of each. pose: keywords of `Mesh`.

    Raises:
        ImportError: trimesh is not installed. FileNotFoundError: no such file. ValueError: it cannot be read, or its surface is flat, open
            or not consistently wound.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"load_mesh: {str(path)!r} is not there")
    vertices, faces, _ = read_mesh(Path(path))
    try:
        return Mesh((vertices * np.asarray(scale, dtype=np.float64)).tolist(), faces.tolist(), **pose)
    except ValueError as error:
        raise ValueError(f"{path}: {error}. td.Hull(mesh vertices) is its convex hull, which may be of any points") from error


def cut_mesh(vertices: Array, faces: NDArray[np.int64]) -> tuple[Hull, ...]:
    """The convex pieces of the mesh of a robot file, vertices (n, 3) [m] and triangles (m, 3), as `decompose` makes them.

    Raises:
        ImportError: coacd is not installed. ValueError: a surface that is open or intersects itself.
    """
    return decompose(Mesh(vertices.tolist(), faces.tolist()))


def decompose(mesh: Mesh, *, threshold: float = 0.05, most_vertices: int = 64) -> tuple[Hull, ...]:
    """Convex hulls that fill a mesh, for the shapes of a body and for `near_contacts`.

    A convex mesh is one piece. Others are cut by CoACD, once: the pieces lie in the cache (TORCHDOJO_CACHE, or ~/.cache/torchdojo), by a
    hash of the mesh and of the arguments. Mass and inertia are better taken from the mesh itself.

    Args:
        threshold: concavity at which cutting ends, from 0.01 (fine) to 1; CoACD measures it on the mesh scaled to a unit cube.
        most_vertices: of each piece, 8 or more.

    Raises:
        ImportError: coacd or scipy is not installed. ValueError: a batch of meshes, a surface that intersects itself, arguments out of
            range.
    """
    if not 0.01 <= threshold <= 1:
        raise ValueError(f"decompose threshold: got {threshold!r}; allowed: 0.01 to 1")
    if isinstance(most_vertices, bool) or not isinstance(most_vertices, int) or most_vertices < 8:
        raise ValueError(f"decompose most_vertices: got {most_vertices!r}; allowed: an integer of at least 8")
    if mesh.vertices.ndim != 2:
        raise ValueError(f"decompose: got a batch of meshes, vertices of shape {tuple(mesh.vertices.shape)}; allowed: one mesh, (n, 3)")
    vertices, faces = mesh.vertices.detach().double().numpy(), mesh.faces.numpy()
    crossing = self_intersections(vertices, faces)
    if len(crossing):
        some = ", ".join(f"{i} and {j}" for i, j in crossing[:NAMED].tolist())
        raise ValueError(
            f"decompose: got a mesh whose surface intersects itself, {len(crossing)} pairs of triangles such as {some}; allowed: a surface "
            "that bounds a solid. Unite its parts (for instance with trimesh: mesh.split(), then trimesh.boolean.union), or decompose each"
        )
    pose: dict[str, Any] = {"position": mesh.position, "orientation": mesh.orientation}
    whole = Mesh(vertices.tolist(), faces.tolist())
    used, outer = convex_hull(vertices)
    if float(whole.volume) >= (1 - CONVEX) * float(Mesh(vertices[used].tolist(), outer.tolist()).volume):
        return (Hull(vertices, **pose),)
    return tuple(Hull(points, **pose) for points in _pieces(vertices, faces, threshold, most_vertices))


def _pieces(vertices: Array, faces: NDArray[np.int64], threshold: float, most_vertices: int) -> list[Array]:
    """Vertices of the pieces, from the cache or by CoACD."""
    try:
        version = metadata.version("coacd")
    except metadata.PackageNotFoundError:
        version = ""
    key = hashlib.sha256(repr((vertices.shape, faces.shape, threshold, most_vertices)).encode())
    key.update(np.ascontiguousarray(vertices).tobytes() + np.ascontiguousarray(faces, dtype=np.int64).tobytes())
    name = f"pieces-{key.hexdigest()[:24]}.npz"
    roots = list(cache_roots())
    for root in roots:
        stored = _read(root / name)
        if stored is not None:
            return stored
    if not version:
        raise ImportError('decompose: cutting meshes that are not convex needs the package coacd: pip install "torchdojo[mesh]"')
    import coacd

    coacd.set_log_level("error")
    parts = coacd.run_coacd(coacd.Mesh(vertices, faces), threshold=threshold, max_ch_vertex=most_vertices, seed=0)
    pieces = [np.asarray(part[0], dtype=np.float64) for part in parts]
    if not pieces:
        raise ValueError("decompose: CoACD made no pieces of the mesh; check that it is a solid, in meters and not in units of 1e-6")
    for root in roots:
        if _write(root / name, pieces):
            break
    return pieces


def _read(path: Path) -> list[Array] | None:
    """Pieces of a file, or None where there is none, or a damaged one."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            ends = stored["ends"]
            return np.split(stored["vertices"], ends[:-1])
    except Exception:  # torn or foreign files make numpy and zipfile raise whatever they like; the pieces are then made anew
        return None


def _write(path: Path, pieces: list[Array]) -> bool:
    """Whether the pieces are in the file, which no reader sees half-written."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, suffix=".npz")
        with os.fdopen(descriptor, "wb") as file:
            np.savez(file, vertices=np.concatenate(pieces), ends=np.cumsum([len(piece) for piece in pieces]))
        os.replace(temporary, path)
        return True
    return False


def self_intersections(vertices: Array, faces: NDArray[np.int64]) -> NDArray[np.int64]:
    """Pairs (k, 2) of triangles without a common edge of which an edge of one pierces the other."""
    corners = vertices[faces]
    low, high = corners.min(1), corners.max(1)
    order = np.argsort(low[:, 0], kind="stable")
    starts = low[order, 0]
    close = []
    for place, i in enumerate(order):
        ahead = order[place + 1 : np.searchsorted(starts, high[i, 0], side="right")]
        ahead = ahead[((low[ahead] <= high[i]) & (low[i] <= high[ahead])).all(-1)]
        close.append(np.stack((np.full_like(ahead, i), ahead), -1))
    pairs = np.concatenate(close)
    shared = (faces[pairs[:, 0], :, None] == faces[pairs[:, 1], None, :]).any(1).sum(-1)
    pairs = pairs[shared < 2]
    one, two = corners[pairs[:, 0]], corners[pairs[:, 1]]
    crossing: NDArray[np.int64] = np.sort(pairs[_pierces(one, two) | _pierces(two, one)], -1)
    return crossing


def _pierces(edges_of: Array, triangles: Array) -> NDArray[np.bool_]:
    """Whether an edge of each triangle (n, 3, 3) passes through the inside of the other one."""
    a, b, c = (triangles[:, k] for k in range(3))
    normal = np.cross(b - a, c - a)
    area = np.linalg.norm(normal, axis=-1)
    result = np.zeros(len(triangles), dtype=bool)
    close = TOUCHING * area * np.linalg.norm(np.ptp(triangles, axis=1), axis=-1)
    for k in range(3):
        p, q = edges_of[:, k], edges_of[:, (k + 1) % 3]
        before, after = ((normal * (end - a)).sum(-1) for end in (p, q))
        through = ((before > close) & (after < -close)) | ((before < -close) & (after > close))
        t = before / np.where(through, before - after, 1.0)
        x = p + t[:, None] * (q - p)
        shares = np.stack([(np.cross(s - x, r - x) * normal).sum(-1) for s, r in ((b, c), (c, a), (a, b))], -1)
        result |= through & (shares > TOUCHING * area[:, None] ** 2).all(-1)
    return result
