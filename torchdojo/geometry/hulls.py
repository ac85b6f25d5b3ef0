"""Convex hulls of meshes: the surface that touches a plane, and few of its vertices that stand for it.

A plane touches a mesh at vertices of its convex hull, however the mesh is bent inwards. A scanned link has hundreds of them, and every one
would be a contact. So `Hull` keeps at most `count`, by farthest-point selection: each new one is the vertex that lies farthest outside the
hull of those that it has. This distance, of the last vertex left out, is the Hausdorff distance between both hulls: `Hull.gap` [m]. The
distance to a convex set is a convex function, so it is largest at a vertex, and no other point of the hull lies farther outside.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchdojo.geometry.shapes import Mesh, Shape, Vector

__all__ = ["Hull", "MeshSource"]

Array = NDArray[np.float64]
FLAT = 1e-6  # thickness relative to the extent below which points count as coplanar: files store numbers of 7 digits
CLOSE = 1e-3  # gap relative to the diagonal of the box around the hull at which no more points are chosen


@dataclass(frozen=True)
class MeshSource:
    """Where a mesh comes from, for those who draw it: its pose is that of the `Hull`."""

    path: Path | None  #: None: its vertices stand in the robot's file
    scale: tuple[float, float, float] = (1.0, 1.0, 1.0)


class Hull(Shape):
    """The convex hull of points such as the vertices of a mesh. Its contact points are at most `count` of its vertices.

    Args:
        points: (n, 3) [m] in the shape frame; vertices inside the hull and doubled ones do not matter. Coplanar points make a flat hull,
            which touches the ground like any other but has no volume.
        count: largest number of contact points, 4 or more. Fewer are chosen where these come within a thousandth of the hull's size.
        source: the file, for drawing.

    Attributes:
        vertices: (k, 3) of the hull. faces: (m, 3) triangles, wound outward; of a flat hull, one side.
        chosen: indices of the vertices that touch. gap: distance of the farthest vertex from the hull of the chosen ones [m].
        pieces: hulls in the same frame that touch other bodies in its place, of a mesh that is not convex; readers of files set them.

    Raises:
        ImportError: scipy is not installed. ValueError: no points, numbers that are not finite, or a bad count.
    """

    def __init__(
        self,
        points: Any,
        *,
        count: int = 16,
        source: MeshSource | None = None,
        position: Vector = (0.0, 0.0, 0.0),
        orientation: Vector = (1.0, 0.0, 0.0, 0.0),
    ) -> None:
        super().__init__(position=position, orientation=orientation)
        cloud = torch.as_tensor(points, dtype=torch.float64)
        if cloud.ndim != 2 or cloud.shape[-1] != 3 or not len(cloud) or not bool(torch.isfinite(cloud).all()):
            raise ValueError(f"Hull points: got the shape {tuple(cloud.shape)}; allowed: (n, 3), n of at least 1, finite numbers")
        if isinstance(count, bool) or not isinstance(count, int) or count < 4:
            raise ValueError(f"Hull count: got {count!r}; allowed: an integer of at least 4, the largest number of contact points")
        corners, triangles = convex_hull(cloud.detach().numpy())
        self.vertices = cloud[torch.as_tensor(corners)]
        self.faces = torch.as_tensor(triangles)
        chosen, self.gap = farthest_points(self.vertices.detach().numpy(), count)
        self.chosen = torch.as_tensor(chosen)
        self.source = source
        self.pieces: tuple[Hull, ...] = ()

    def solid(self) -> Mesh:
        """The closed mesh of the hull.

        Raises:
            ValueError: a flat hull.
        """
        return Mesh(self.vertices, self.faces, position=self.position, orientation=self.orientation)

    @property
    def volume(self) -> Tensor:
        return self.solid().volume

    def _local_center(self) -> Tensor:
        return Mesh(self.vertices, self.faces).center

    def _local_inertia(self) -> Tensor:
        return Mesh(self.vertices, self.faces).inertia(1.0)

    def _local_points(self) -> Tensor:
        return self.vertices[self.chosen]

    def _dimensions(self) -> dict[str, Any]:
        source = {} if self.source is None else {"source": self.source}
        return {"vertices": f"{tuple(self.vertices.shape)}", "contact_points": len(self.chosen), "gap": self.gap, **source}


# -- geometry in numbers -----------------------------------------------------------------------------------------------------------------


def convex_hull(points: Array) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Indices (k,) of the vertices of the hull of points (n, 3), and its triangles (m, 3) as indices into these vertices.

    Triangles are wound outward. Coplanar points have the triangles of one side, points on a line one triangle that repeats a corner, and a
    single point one that is this point.
    """
    spread = points - points.mean(0)
    sizes, axes = np.linalg.svd(spread, full_matrices=False)[1:]
    rank = int((sizes > FLAT * max(sizes[0], np.finfo(float).tiny)).sum())
    if rank == 3:
        hull = _quick_hull(points)
        simplices, normals = hull.simplices, hull.equations[:, :3]
        a, b, c = (points[simplices[:, i]] for i in range(3))
        inward = (np.cross(b - a, c - a) * normals).sum(-1) < 0
        simplices = np.where(inward[:, None], simplices[:, ::-1], simplices)
    elif rank == 2:
        ring = _quick_hull(spread @ axes[:2].T).vertices
        simplices = np.array([(ring[0], ring[i], ring[i + 1]) for i in range(1, len(ring) - 1)])
    elif rank == 1:
        along = spread @ axes[0]
        simplices = np.array([(along.argmin(), along.argmax(), along.argmax())])
    else:
        simplices = np.zeros((1, 3), dtype=np.int64)
    corners = np.unique(simplices)
    return corners.astype(np.int64), np.searchsorted(corners, simplices).astype(np.int64)


def farthest_points(vertices: Array, count: int) -> tuple[list[int], float]:
    """Indices of at most `count` of the vertices (k, 3) of a hull, and the Hausdorff distance of their hull from it [m].

    The first vertex is the farthest from the middle, each next one the farthest from the hull of those before it. Most triangles of a hull
    stay when it grows, so that only the distances from new ones are computed.
    """
    middle = 0.5 * (vertices.min(0) + vertices.max(0))
    close = CLOSE * float(np.linalg.norm(np.ptp(vertices, axis=0)))
    chosen = [int(np.linalg.norm(vertices - middle, axis=-1).argmax())]
    measures: dict[tuple[int, ...], Array] = {}  # triangle -> heights and distances (2, k) of all vertices
    while True:
        used, triangles = convex_hull(vertices[chosen])
        keys = [tuple(triangle) for triangle in np.array(chosen)[used][triangles].tolist()]
        new = [key for key in keys if key not in measures]
        measured = np.moveaxis(_above_triangles(vertices, vertices[np.array(new, dtype=np.int64).reshape(-1, 3)]), -1, 0)
        measures = {key: measures[key] for key in keys if key in measures} | dict(zip(new, measured, strict=True))
        outside = _outside(np.stack([measures[key] for key in keys], axis=-1), vertices[chosen])
        farthest = int(outside.argmax())
        if outside[farthest] <= close or len(chosen) == min(count, len(vertices)):
            return sorted(chosen), float(outside[farthest])
        chosen.append(farthest)


def distances_to_hull(points: Array, corners: Array) -> Array:
    """Distances (n,) of points (n, 3) from the convex hull of corners (k, 3) [m]; zero inside."""
    used, triangles = convex_hull(corners)
    return _outside(_above_triangles(points, corners[used][triangles]), corners)


def _outside(above: Array, corners: Array) -> Array:
    """Distances (n,) from the hull of corners (k, 3), from heights and distances (2, n, m) above its triangles."""
    height, distance = above
    nearest = np.asarray(distance.min(-1))
    closed = height.shape[-1] > 1 and np.linalg.matrix_rank(corners - corners[0], tol=FLAT * float(np.ptp(corners, axis=0).max())) == 3
    return np.where((height <= 0).all(-1), 0.0, nearest) if closed else nearest


def _above_triangles(points: Array, triangles: Array) -> Array:
    """Heights above the planes of triangles (m, 3, 3), and distances from the triangles, (2, n, m) of points (n, 3)."""
    corners = np.moveaxis(triangles, 1, 0)
    normal = np.cross(corners[1] - corners[0], corners[2] - corners[0])
    area = np.linalg.norm(normal, axis=-1)
    normal = normal / np.where(area > 0, area, 1.0)[:, None]
    offsets = [points[:, None] - corner for corner in corners]
    height = (offsets[0] * normal).sum(-1)
    over = area > 0  # the point is on the inner side of all three edges
    edges = np.full(height.shape, np.inf)
    for offset, start, end in zip(offsets, corners, np.roll(corners, -1, axis=0), strict=True):
        along = end - start
        square = (along**2).sum(-1)
        over = over & ((offset * np.cross(normal, along)).sum(-1) >= 0)
        t = np.clip((offset * along).sum(-1) / np.where(square > 0, square, 1.0), 0.0, 1.0)  # an edge may have no length
        edges = np.minimum(edges, np.linalg.norm(offset - t[..., None] * along, axis=-1))
    return np.stack((height, np.where(over, np.abs(height), edges)))


def _quick_hull(points: Array) -> Any:
    try:
        from scipy.spatial import ConvexHull
    except ImportError as error:
        raise ImportError('convex hulls of meshes need the package scipy: pip install "torchdojo[mesh]"') from error
    return ConvexHull(points)
