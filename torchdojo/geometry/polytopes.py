"""Convex polytopes with a radius: the core's corners, edges and faces, and the distance of a point from the core.

A shape is its core, shrunk by `radius`, and every point within the radius of it. So the distance of two shapes that do not overlap by more
than their radii is C¹ in their poses. A point is a core of one corner, a segment one of two corners and an edge without faces. An
ellipsoid is a core without a radius.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torchdojo.geometry.hulls import Hull, convex_hull
from torchdojo.geometry.shapes import Box, Capsule, Cylinder, Ellipsoid, Mesh, Shape, Sphere
from torchdojo.parameters import differentiated
from torchdojo.quaternion import rotate

__all__ = ["CoreSizes", "Feature", "Polytope", "polytope_of"]

Array = NDArray[np.float64]
SAME_PLANE = 1e-9  # 1 − cos between the normals of two triangles of one face
ROUNDING = (0.01, 1e-4, 1e-3)  # radius of sharp shapes: share of their smallest extent, least and most [m]
SIDES = 24  # of the prism that stands for a cylinder


class Feature(NamedTuple):
    """A corner (...,) of the nearest feature of a core, its edge (...,), or −1, and its face (...,), or −1."""

    corner: Tensor
    edge: Tensor
    face: Tensor


@dataclass(frozen=True, eq=False)
class CoreSizes:
    """The shape of a core whose sizes are differentiated (core_sizes.py). radius: of its edges, as in `polytope_of`."""

    shape: Shape
    radius: float | None


@dataclass(frozen=True, eq=False)
class Polytope:
    """A convex core in the frame of its body, and a radius around it.

    vertices: (V, 3) [m].
    normals, offsets: of faces (F, 3), outward, and (F,) [m].
    edges, faces: (E, 2) ends of the edges between faces that are not in one plane, and their faces; −1: none.
    inward: (E, 2, 3) in either face, perpendicular to the edge and away from it, so that normals n of the edge have n·inward <= 0; zero
        without a face.
    outward: (E, 3) sum of both faces' normals.
    radius: [m].
    semi_axes, orientation: (3,) [m] and (4,) of an ellipsoid around the only corner, its center; None: a polytope.
    sizes: of its shape, where they are differentiated (core_sizes.py); None: they are not.
    """

    vertices: Tensor
    normals: Tensor
    offsets: Tensor
    edges: Tensor
    faces: Tensor
    inward: Tensor
    outward: Tensor
    radius: float
    semi_axes: Tensor | None = None
    orientation: Tensor | None = None
    sizes: CoreSizes | None = None

    @property
    def widest(self) -> int:
        """The largest number of corners that a face has; of a point 1, of a segment 2."""
        if not len(self.normals):
            return len(self.vertices)
        return int(torch.bincount(self.faces.flatten()).max())  # a face has as many corners as edges

    @property
    def center(self) -> Tensor:
        """The mean of the corners (3,)."""
        return self.vertices.mean(0)

    @property
    def extent(self) -> float:
        """Radius of the ball around the center that holds the shape [m]."""
        return float(torch.linalg.vector_norm(self.vertices - self.center, dim=-1).max()) + self._longest + self.radius

    @property
    def swing(self) -> float:
        """Radius of the ball around the origin of the body that holds the shape [m]."""
        return float(torch.linalg.vector_norm(self.vertices, dim=-1).max()) + self._longest + self.radius

    @property
    def thickness(self) -> float:
        """The least extent across a face [m]; of a point or a segment the diameter of the round part, of an ellipsoid its shortest axis."""
        least = 0.0 if self.semi_axes is None else 2 * float(self.semi_axes.min())
        if len(self.normals):
            least = float((self.offsets - (self.vertices @ self.normals.T).amin(0)).min())
        return least + 2 * self.radius

    @property
    def _longest(self) -> float:
        return 0.0 if self.semi_axes is None else float(self.semi_axes.max())

    @classmethod
    def of_ellipsoid(cls, center: Array, semi_axes: Tensor, orientation: Tensor) -> Polytope:
        """An ellipsoid with semi-axes (3,) along the axes of its orientation (4,)."""
        return replace(cls.of_points(center[None], 0.0), semi_axes=semi_axes, orientation=orientation)

    @classmethod
    def of_points(cls, points: Array, radius: float) -> Polytope:
        """The hull of points (n, 3) that span a volume, a segment of two or a point of one."""
        if len(points) <= 2:
            edges = np.array([[0, 1]] if len(points) == 2 else [], dtype=np.int64).reshape(-1, 2)
            nothing = np.zeros((len(edges), 2, 3))
            return cls._of(points, np.zeros((0, 3)), np.zeros(0), edges, np.full_like(edges, -1), nothing, nothing[:, 0], radius)
        corners, triangles = convex_hull(points)
        points = points[corners]
        a, b, c = (points[triangles[:, i]] for i in range(3))
        across = np.cross(b - a, c - a)
        across /= np.linalg.norm(across, axis=-1, keepdims=True)
        face_of = -np.ones(len(triangles), dtype=np.int64)
        normals: list[Array] = []
        for t in range(len(triangles)):
            if face_of[t] < 0:
                face_of[(face_of < 0) & (across @ across[t] > 1 - SAME_PLANE)] = len(normals)
                normals.append(across[t])
        sides: dict[tuple[int, int], list[int]] = {}
        for t, triangle in enumerate(triangles.tolist()):
            for i in range(3):
                low, high = sorted((triangle[i], triangle[(i + 1) % 3]))
                sides.setdefault((low, high), []).append(int(face_of[t]))
        real = {ends: faces for ends, faces in sides.items() if faces[0] != faces[1]}
        edges, faces = np.array(list(real)), np.array(list(real.values()))
        normal = np.array(normals)
        offsets = (points @ normal.T).max(0)
        along = points[edges[:, 1]] - points[edges[:, 0]]
        inward = np.cross(along[:, None], normal[faces])
        members = [sorted({v for t in np.flatnonzero(face_of == f) for v in triangles[t].tolist()}) for f in range(len(normals))]
        middles = np.array([points[face].mean(0) for face in members])
        inward *= np.sign(((middles[faces] - points[edges[:, 0]][:, None]) * inward).sum(-1, keepdims=True))
        inward /= np.linalg.norm(inward, axis=-1, keepdims=True)
        return cls._of(points, normal, offsets, edges, faces, inward, normal[faces].sum(1), radius)

    @classmethod
    def _of(cls, *given: Any) -> Polytope:
        vertices, normals, offsets, edges, faces, inward, outward = map(torch.as_tensor, given[:-1])
        return cls(vertices, normals, offsets, edges, faces, inward, outward, float(given[-1]))

    def __deepcopy__(self, memo: dict[int, Any]) -> Polytope:
        """Itself: it never changes, and the slots of a pair are those that have the same one."""
        return self

    def distance(self, point: Tensor) -> tuple[Tensor, Tensor]:
        """Signed distance (...,) of points (..., 3) from the core, and its gradient, the outward unit normal (..., 3).

        The feature that is nearest now is differentiated: a face, an edge or a corner. Inside, it is the face with the least depth.
        """
        with torch.no_grad():
            corner, edge, face = self.feature(point.detach())
        direction = self._along(edge, point)
        offset = point - self.vertices.to(point)[corner]
        # The part of the offset that is across the edge remains; a corner has the direction 0, so all remains.
        across = offset - (offset * direction).sum(-1, keepdim=True) * direction
        square = (across * across).sum(-1)
        length = torch.sqrt(torch.where(square > 0, square, 1.0))
        if not len(self.normals):
            return torch.where(square > 0, length, 0.0), across / length[..., None]
        flat = face >= 0
        normal = self.normals.to(point)[face.clamp_min(0)]
        height = (normal * point).sum(-1) - self.offsets.to(point)[face.clamp_min(0)]
        return torch.where(flat, height, length), torch.where(flat[..., None], normal, across / length[..., None])

    def project(self, point: Tensor, feature: Feature) -> tuple[Tensor, Tensor]:
        """The point (..., 3) of the line or plane of a feature that is nearest to points (..., 3), and its derivative (..., 3, 3)."""
        base, direction = self.vertices.to(point)[feature.corner], self._along(feature.edge, point)
        nearest = base + ((point - base) * direction).sum(-1, keepdim=True) * direction
        within = direction[..., :, None] * direction[..., None, :]
        if not len(self.normals):
            return nearest, within
        face = feature.face.clamp_min(0)
        flat, normal = (feature.face >= 0)[..., None], self.normals.to(point)[face]
        height = (normal * point).sum(-1, keepdim=True) - self.offsets.to(point)[face][..., None]
        along = torch.eye(3, dtype=point.dtype, device=point.device) - normal[..., :, None] * normal[..., None, :]
        return torch.where(flat, point - height * normal, nearest), torch.where(flat[..., None], along, within)

    def feature(self, point: Tensor) -> Feature:
        """The feature that is nearest to points (..., 3); inside, the face with the least depth."""
        ends = self.vertices[self.edges]
        if not len(self.edges):
            nothing = torch.zeros(point.shape[:-1], dtype=torch.long)
            return Feature(nothing, nothing - 1, nothing - 1)
        along = ends[:, 1] - ends[:, 0]
        offset = point[..., None, :] - ends[:, 0]  # (..., E, 3)
        t = ((offset * along).sum(-1) / (along * along).sum(-1)).clamp(0, 1)
        apart = offset - t[..., None] * along
        edge = (apart * apart).sum(-1).argmin(-1)
        t = torch.gather(t, -1, edge[..., None]).squeeze(-1)
        corner = torch.where(t < 1, self.edges[edge, 0], self.edges[edge, 1])
        edge = torch.where((t > 0) & (t < 1), edge, -1)
        if not len(self.normals):
            return Feature(corner, edge, torch.full_like(corner, -1))
        heights = point @ self.normals.T - self.offsets
        top, face = heights.max(-1)
        # A point above a face lies on the inner side of all its edges.
        beyond = (offset[..., None, :] * self.inward).sum(-1) < 0  # (..., E, 2)
        out = (beyond & (self.faces == face[..., None, None])).flatten(-2).any(-1)
        return Feature(corner, edge, torch.where((top <= 0) | ~out, face, -1))

    def _along(self, edge: Tensor, like: Tensor) -> Tensor:
        """Unit directions (..., 3) of edges (...,), in the dtype of `like`; zero without an edge."""
        if not len(self.edges):
            return torch.zeros_like(like)
        ends = self.vertices.to(like)[self.edges]
        along = ends[:, 1] - ends[:, 0]
        unit = along / torch.linalg.vector_norm(along, dim=-1, keepdim=True)
        return torch.where((edge >= 0)[..., None], unit[edge], 0.0)


def polytope_of(shape: Shape, radius: float | None = None) -> Polytope:
    """The core and radius of a convex shape, in the frame of its body. A mesh is its convex hull.

    Args:
        radius: of shapes with corners [m]. Default: a hundredth of the smallest extent, from 0.1 to 1 mm.

    Raises:
        ValueError: no such shape, or one too thin for its radius. RuntimeError: sizes with tangents, or in a `torch.func` transform.
    """
    sizes = _sizes_of(shape, radius)
    core = _core_of(shape, radius)
    return core if sizes is None else replace(core, sizes=sizes)


def _core_of(shape: Shape, radius: float | None) -> Polytope:
    """`polytope_of` without derivatives."""
    position, orientation = shape.position.detach().clone(), shape.orientation.detach().clone()  # cores do not change with their shapes
    if isinstance(shape, Sphere):
        return Polytope.of_points(position.numpy()[None], float(shape.radius.detach()))
    if isinstance(shape, Capsule):
        half = torch.tensor([[0.0, 0.0, -0.5], [0.0, 0.0, 0.5]], dtype=torch.float64) * float(shape.length.detach())
        return Polytope.of_points((position + rotate(orientation, half)).numpy(), float(shape.radius.detach()))
    if isinstance(shape, Ellipsoid):
        return Polytope.of_ellipsoid(position.numpy(), shape.semi_axes.detach().clone(), orientation)
    if radius is not None and not 0 < radius < np.inf:
        raise ValueError(f"near contacts: got radius={radius!r}; allowed: positive lengths [m]")
    if isinstance(shape, Box):
        size = shape.size.detach()
        edge_radius = _rounding_of(shape, float(size.min()), radius)
        points = Box(size - 2 * edge_radius).contact_points()[0]
    elif isinstance(shape, Cylinder):
        edge_radius = _rounding_of(shape, min(2 * float(shape.radius.detach()), float(shape.length.detach())), radius)
        turn = 2 * torch.pi * torch.arange(SIDES, dtype=torch.float64) / SIDES
        ring = (float(shape.radius.detach()) - edge_radius) * torch.stack((turn.cos(), turn.sin()), -1)
        half_length = 0.5 * float(shape.length.detach()) - edge_radius
        points = torch.cat([torch.cat((ring, torch.full((SIDES, 1), z, dtype=torch.float64)), -1) for z in (-half_length, half_length)])
    elif isinstance(shape, Hull | Mesh):
        corners = shape.vertices.detach().numpy()
        edge_radius = rounding(float(np.ptp(corners, axis=0).min())) if radius is None else radius
        points = torch.as_tensor(eroded(corners, edge_radius))
    else:
        kind = type(shape).__name__
        raise ValueError(f"near contacts: got {kind}; allowed: Sphere, Capsule, Box, Cylinder, Ellipsoid, Hull, and Mesh for its hull")
    return Polytope.of_points((position + rotate(orientation, points)).numpy(), edge_radius)


def _sizes_of(shape: Shape, radius: float | None) -> CoreSizes | None:
    """The sizes of a shape that are differentiated; None if none are.

    Raises:
        RuntimeError: sizes with tangents, or inside of a `torch.func` transform.
    """
    numbers = [value for value in vars(shape).values() if isinstance(value, Tensor) and value.is_floating_point()]
    asked = [value for value in numbers if differentiated(value)]
    if any(not value.requires_grad for value in asked) or any(torch._C._functorch.is_functorch_wrapped_tensor(value) for value in asked):
        raise RuntimeError(
            f"near contacts: got a {type(shape).__name__} whose numbers are differentiated in forward mode or by torch.func; allowed: "
            "reverse mode, .backward() or torch.autograd.grad"
        )
    return CoreSizes(shape, radius) if asked else None


def eroded(points: Array, depth: float) -> Array:
    """The corners of the hull of points (n, 3) whose faces have all moved inwards by `depth` [m].

    Raises:
        ValueError: points in a plane, or nothing left.
    """
    from scipy.optimize import linprog
    from scipy.spatial import ConvexHull, HalfspaceIntersection, QhullError

    try:
        planes = ConvexHull(points).equations + np.array([0.0, 0.0, 0.0, depth])
    except QhullError as error:
        raise ValueError("near contacts: got a flat hull; allowed: hulls that enclose a volume") from error
    # The ball of the largest radius inside (Boyd and Vandenberghe 2004, section 4.3.1) has its center off all planes.
    optimum = linprog([0, 0, 0, -1.0], np.c_[planes[:, :3], np.ones(len(planes))], -planes[:, 3], bounds=[(None, None)] * 3 + [(0, None)])
    if not optimum.success or optimum.x[3] < 1e-3 * depth:
        raise ValueError(f"near contacts: got a hull thinner than twice its radius {depth:g} m; give a smaller radius=")
    corners = HalfspaceIntersection(planes, optimum.x[:3]).intersections
    scale = 1e-9 * float(np.ptp(corners, axis=0).max())
    keep = [i for i, corner in enumerate(corners) if not (np.abs(corners[:i] - corner).max(-1) < scale).any()]
    result: Array = corners[keep]
    return result


def _rounding_of(shape: Shape, extent: float, radius: float | None) -> float:
    """The radius of a shape's edges [m], for which its smallest extent [m] has to be wide enough."""
    edge_radius = rounding(extent) if radius is None else radius
    if 2 * edge_radius >= extent:
        kind = type(shape).__name__
        raise ValueError(
            f"near contacts: got a {kind} of {extent:g} m at its thinnest, and edges of {edge_radius:g} m; "
            f"allowed: more than {2 * edge_radius:g} m; "
            "give a smaller radius="
        )
    return edge_radius


def rounding(extent: float) -> float:
    """Radius of the edges of a sharp shape [m] of this smallest extent [m]."""
    share, least, most = ROUNDING
    return min(max(share * extent, least), most)
