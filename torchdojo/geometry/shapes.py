"""Shapes: the surface of a body, the solid that it encloses, and the points that can touch the ground.

A shape lives in the frame of its body through a pose (``position`` [m], ``orientation`` wxyz, shape frame to body frame). It knows its
volume [m^3], its center of mass [m] and its rotational inertia [kg m^2] at uniform density, and the points that a point contact needs.
Dimensions are tensors, may require grad, and may carry leading batch dimensions ``...``; results are differentiable in them.

A shape is a value: build a new one rather than assigning to its attributes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torchdojo.parameters import as_tensor, require
from torchdojo.quaternion import normalize, rotate, rotation_matrix

__all__ = ["Box", "Capsule", "Cylinder", "Ellipsoid", "Mesh", "Shape", "Sphere"]

Scalar = float | Tensor
Vector = Sequence[Any] | Tensor


class Shape:
    """Base of all shapes: the pose of the shape frame in the body frame.

    A subclass of your own needs ``volume`` and ``_local_inertia``, and ``_local_center`` unless its center of mass is the origin of the
    shape frame. If it may touch the ground, it needs ``_local_points`` and ``_contact_radius`` too.

    Args:
        position: (..., 3) origin of the shape frame in the body frame [m].
        orientation: (..., 4) unit quaternion wxyz, shape frame to body frame; normalized when its norm is within 1e-6 of one.

    Raises:
        ValueError: wrong trailing dimension, a number that is not finite, or a quaternion that is not a unit one.
    """

    def __init__(self, *, position: Vector = (0.0, 0.0, 0.0), orientation: Vector = (1.0, 0.0, 0.0, 0.0)) -> None:
        name = type(self).__name__
        self.position = _vector(position, 3, f"{name} position")
        quaternion = _vector(orientation, 4, f"{name} orientation")
        norm = torch.linalg.vector_norm(quaternion, dim=-1)
        require((norm - 1.0).abs() <= 1e-6, f"{name} orientation", quaternion, "unit quaternions wxyz (within 1e-6); divide by the norm")
        self.orientation = normalize(quaternion)

    @property
    def volume(self) -> Tensor:
        """(...,) enclosed volume [m^3]."""
        raise NotImplementedError(f"{type(self).__name__} does not define its volume.")

    @property
    def center(self) -> Tensor:
        """(..., 3) center of mass at uniform density, in the body frame [m]."""
        local = self._local_center()
        return self.position if local is None else self.position + rotate(self.orientation, local)

    def inertia(self, mass: Scalar) -> Tensor:
        """Rotational inertia at uniform density.

        Args:
            mass: (...,) mass [kg], positive and finite.

        Returns:
            (..., 3, 3) inertia [kg m^2] about the shape's own center of mass, in the axes of the body frame.
            Dtype and device follow ``mass`` if it is a floating-point tensor.

        Raises:
            ValueError: the mass is not positive and finite.
        """
        value = _positive(mass, 0, f"mass of {type(self).__name__}", "kg")
        # The inertia per unit mass makes the result linear in the mass, so that gradients and batches of the mass are exact.
        unit = self._local_inertia()
        rotation = rotation_matrix(self.orientation)
        if isinstance(mass, Tensor) and mass.is_floating_point():
            unit, rotation = unit.to(value), rotation.to(value)
        return value[..., None, None] * (rotation @ unit @ rotation.mT)

    def contact_points(self) -> tuple[Tensor, Tensor]:
        """Points whose contact with a plane represents the contact of the whole shape.

        Returns:
            ``points`` (..., k, 3) in the body frame [m] and ``radius`` (...,) [m] of the sphere around each of them, 0 for a bare point.

        Raises:
            ValueError: a shape of your own without `_local_points`.
        """
        return self.position[..., None, :] + rotate(self.orientation[..., None, :], self._local_points()), self._contact_radius()

    def _local_center(self) -> Tensor | None:
        """(..., 3) center of mass in the shape frame [m]; None means the origin."""
        return None

    def _local_inertia(self) -> Tensor:
        """(..., 3, 3) inertia per unit mass [m^2] about the center of mass, in the shape frame."""
        raise NotImplementedError(f"{type(self).__name__} does not define its inertia.")

    def _local_points(self) -> Tensor:
        """(..., k, 3) contact points in the shape frame [m]."""
        raise ValueError(f"{type(self).__name__} has no contact points: write a contact module for it, or contact points by hand.")

    def _contact_radius(self) -> Tensor:
        """(...,) radius around each contact point [m]."""
        return self.position.new_zeros(())

    def _dimensions(self) -> dict[str, Any]:
        """Dimensions that ``repr`` shows besides the pose."""
        return {}

    def __repr__(self) -> str:
        numbers = {**self._dimensions(), "position": self.position, "orientation": self.orientation}
        text = ", ".join(f"{key}={value.detach().tolist() if isinstance(value, Tensor) else value}" for key, value in numbers.items())
        return f"{type(self).__name__}({text})"


class Sphere(Shape):
    """Ball of ``radius`` (...,) [m] around the origin of its frame. Its contact point is the center, with that radius."""

    def __init__(self, radius: Scalar, *, position: Vector = (0.0, 0.0, 0.0), orientation: Vector = (1.0, 0.0, 0.0, 0.0)) -> None:
        super().__init__(position=position, orientation=orientation)
        self.radius = _positive(radius, 0, "Sphere radius")

    @property
    def volume(self) -> Tensor:
        return 4.0 / 3.0 * math.pi * self.radius**3

    def _local_inertia(self) -> Tensor:
        moment = 0.4 * self.radius**2
        return _diagonal(moment, moment, moment)

    def _local_points(self) -> Tensor:
        return self.radius.new_zeros(1, 3)

    def _contact_radius(self) -> Tensor:
        return self.radius

    def _dimensions(self) -> dict[str, Any]:
        return {"radius": self.radius}


class Box(Shape):
    """Cuboid with full edge lengths ``size`` (..., 3) [m] along the axes of its frame. Its contact points are the 8 corners."""

    def __init__(self, size: Vector, *, position: Vector = (0.0, 0.0, 0.0), orientation: Vector = (1.0, 0.0, 0.0, 0.0)) -> None:
        super().__init__(position=position, orientation=orientation)
        self.size = _positive(size, 3, "Box size")

    @property
    def volume(self) -> Tensor:
        return self.size.prod(dim=-1)

    def _local_inertia(self) -> Tensor:
        x, y, z = (self.size**2 / 12.0).unbind(-1)
        return _diagonal(y + z, x + z, x + y)

    def _local_points(self) -> Tensor:
        half = self.size.new_tensor([-0.5, 0.5])
        return torch.cartesian_prod(half, half, half) * self.size[..., None, :]

    def _dimensions(self) -> dict[str, Any]:
        return {"size": self.size}


class Capsule(Shape):
    """Cylinder along z with a half ball on either end: ``radius`` (...,) [m], ``length`` (...,) [m] of the cylindrical part.

    Its contact points are the two ends of its segment, with its radius.
    """

    def __init__(
        self, radius: Scalar, length: Scalar, *, position: Vector = (0.0, 0.0, 0.0), orientation: Vector = (1.0, 0.0, 0.0, 0.0)
    ) -> None:
        super().__init__(position=position, orientation=orientation)
        self.radius = _positive(radius, 0, "Capsule radius")
        self.length = _positive(length, 0, "Capsule length")

    @property
    def volume(self) -> Tensor:
        return math.pi * self.radius**2 * (self.length + 4.0 / 3.0 * self.radius)

    def _local_inertia(self) -> Tensor:
        r, length = self.radius, self.length
        ball = 4.0 / 3.0 * r / (length + 4.0 / 3.0 * r)  # share of the two half balls in the mass
        rod = 1.0 - ball
        along = rod * r**2 / 2.0 + ball * 0.4 * r**2
        # The center of mass of a half ball is 3/8 r outside its flat face, hence the last term.
        across = rod * (length**2 / 12.0 + r**2 / 4.0) + ball * (0.4 * r**2 + length**2 / 4.0 + 0.375 * length * r)
        return _diagonal(across, across, along)

    def _local_points(self) -> Tensor:
        return self.length[..., None, None] * self.length.new_tensor([[0.0, 0.0, -0.5], [0.0, 0.0, 0.5]])

    def _contact_radius(self) -> Tensor:
        return self.radius

    def _dimensions(self) -> dict[str, Any]:
        return {"radius": self.radius, "length": self.length}


class Cylinder(Shape):
    """Cylinder along z: ``radius`` (...,) [m], ``length`` (...,) [m]. Its contact points are ``rim_points`` points on either rim.

    The points are evenly spaced from the x axis on. Between two of them the modeled surface lies inside the real one by
    ``radius (1 - cos(pi / rim_points))``, so a rolling wheel needs more than the default 4.
    """

    def __init__(
        self,
        radius: Scalar,
        length: Scalar,
        *,
        rim_points: int = 4,
        position: Vector = (0.0, 0.0, 0.0),
        orientation: Vector = (1.0, 0.0, 0.0, 0.0),
    ) -> None:
        super().__init__(position=position, orientation=orientation)
        self.radius = _positive(radius, 0, "Cylinder radius")
        self.length = _positive(length, 0, "Cylinder length")
        if isinstance(rim_points, bool) or not isinstance(rim_points, int) or rim_points < 3:
            raise ValueError(
                f"Cylinder rim_points: got {rim_points!r}; allowed: an integer of at least 3, the number of points on each rim"
            )
        self.rim_points = rim_points

    @property
    def volume(self) -> Tensor:
        return math.pi * self.radius**2 * self.length

    def _local_inertia(self) -> Tensor:
        across = self.radius**2 / 4.0 + self.length**2 / 12.0
        return _diagonal(across, across, self.radius**2 / 2.0)

    def _local_points(self) -> Tensor:
        angles = [2.0 * math.pi * i / self.rim_points for i in range(self.rim_points)]
        rim = self.radius.new_tensor([[math.cos(angle), math.sin(angle), 0.0] for angle in angles])
        ends = self.length.new_tensor([[0.0, 0.0, -0.5], [0.0, 0.0, 0.5]])
        radius, length = self.radius[..., None, None, None], self.length[..., None, None, None]
        return (length * ends[:, None, :] + radius * rim).flatten(-3, -2)

    def _dimensions(self) -> dict[str, Any]:
        return {"radius": self.radius, "length": self.length, "rim_points": self.rim_points}


class Ellipsoid(Shape):
    """Ellipsoid with ``semi_axes`` (..., 3) [m] along the axes of its frame.

    The point that touches a plane moves over the whole surface, so contact points can only come near. There are 18 balls that
    touch the surface from within: at the 6 ends of the axes, and at 12 places between two of them. Their radius is that of the surface
    where it bends most, the square of the shortest semi-axis over the longest. A sphere is exact, and its balls coincide. Between balls the
    modeled surface lies inside the real one: for semi-axes (3, 2, 1) by at most 6 % of the longest, for a thin disc by 8 %.
    """

    def __init__(self, semi_axes: Vector, *, position: Vector = (0.0, 0.0, 0.0), orientation: Vector = (1.0, 0.0, 0.0, 0.0)) -> None:
        super().__init__(position=position, orientation=orientation)
        self.semi_axes = _positive(semi_axes, 3, "Ellipsoid semi_axes")

    @property
    def volume(self) -> Tensor:
        return 4.0 / 3.0 * math.pi * self.semi_axes.prod(dim=-1)

    def _local_inertia(self) -> Tensor:
        a, b, c = (self.semi_axes**2 / 5.0).unbind(-1)
        return _diagonal(b + c, a + c, a + b)

    def _local_points(self) -> Tensor:
        steps = self.semi_axes.new_tensor([-1.0, 0.0, 1.0])
        grid = torch.cartesian_prod(steps, steps, steps)
        sides = grid.square().sum(-1)
        places = torch.nn.functional.normalize(grid[(sides == 1) | (sides == 2)], dim=-1)  # on the unit sphere
        axes = self.semi_axes[..., None, :]
        normal = torch.nn.functional.normalize(places / axes, dim=-1)
        return axes * places - self._contact_radius()[..., None, None] * normal

    def _contact_radius(self) -> Tensor:
        return self.semi_axes.amin(-1) ** 2 / self.semi_axes.amax(-1)

    def _dimensions(self) -> dict[str, Any]:
        return {"semi_axes": self.semi_axes}


class Mesh(Shape):
    """Solid bounded by a closed triangle mesh, convex or not.

    Volume, center of mass and inertia come from the divergence theorem. They sum over the tetrahedra between the origin and each triangle,
    signed by the winding of the triangle, and are differentiable in the vertices. The contact points are the vertices of the convex hull;
    for a plane they are exact even if the mesh is not convex. Without scipy, all vertices that a face uses are contact points.

    Args:
        vertices: (..., n, 3) [m] in the shape frame.
        faces: (m, 3) integer indices into the vertices; all wound the same way, outward or inward.

    Raises:
        ValueError: wrong shapes, indices out of range, numbers that are not finite, or a surface that is not closed, not consistently
            wound, or without volume.
    """

    def __init__(
        self,
        vertices: Sequence[Sequence[float]] | Tensor,
        faces: Sequence[Sequence[int]] | Tensor,
        *,
        position: Vector = (0.0, 0.0, 0.0),
        orientation: Vector = (1.0, 0.0, 0.0, 0.0),
    ) -> None:
        super().__init__(position=position, orientation=orientation)
        self.vertices = _vector(vertices, 3, "Mesh vertices")
        if self.vertices.ndim < 2 or self.vertices.shape[-2] < 4:
            raise ValueError(f"Mesh vertices: got shape {tuple(self.vertices.shape)}; allowed: (..., n, 3) with n of at least 4")
        index = torch.as_tensor(faces, device=self.vertices.device)
        if index.ndim != 2 or index.shape[-1] != 3 or index.is_floating_point() or index.dtype == torch.bool:
            raise ValueError(f"Mesh faces: got shape {tuple(index.shape)} and dtype {index.dtype}; allowed: (m, 3) integers")
        count = self.vertices.shape[-2]
        if index.numel() and (int(index.min()) < 0 or int(index.max()) >= count):
            raise ValueError(
                f"Mesh faces: got indices from {int(index.min())} to {int(index.max())}; allowed: 0 to {count - 1}, the vertices given"
            )
        index = index.long()
        _check_closed(index)
        # Inward winding describes the same solid: turn it outward so that every tetrahedron has its true sign.
        signed = _tetrahedra(self.vertices.detach(), index)[0].sum(dim=-1)
        extent = (self.vertices.detach().amax(dim=-2) - self.vertices.detach().amin(dim=-2)).amax(dim=-1)
        if bool((signed.abs() <= 1e-12 * extent**3).any()) or bool((signed.sign() != signed.flatten()[0].sign()).any()):
            raise ValueError(
                f"Mesh: got the enclosed volume {signed.tolist()} m^3; allowed: a solid with volume (in a batch of meshes, all wound alike)"
            )
        self.faces = index if bool(signed.flatten()[0] > 0) else index.flip(-1)
        self._hull: Tensor | None = None

    @property
    def volume(self) -> Tensor:
        return _tetrahedra(self.vertices, self.faces)[0].sum(dim=-1)

    def _local_center(self) -> Tensor:
        volumes, corners = _tetrahedra(self.vertices, self.faces)
        return (volumes[..., None] * corners.sum(dim=-2) / 4.0).sum(dim=-2) / volumes.sum(dim=-1)[..., None]

    def _local_inertia(self) -> Tensor:
        # Second moments are taken about the center of mass, so that nothing cancels for a mesh far from its origin.
        volumes, corners = _tetrahedra(self.vertices - self._local_center()[..., None, :], self.faces)
        total = corners.sum(dim=-2)
        # The integral of x x^T over the tetrahedron (0, p1, p2, p3) is V/20 (sum p_i p_i^T + s s^T) with s = sum p_i.
        products = corners.mT @ corners + total[..., :, None] * total[..., None, :]
        second = (volumes[..., None, None] * products / 20.0).sum(dim=-3) / volumes.sum(dim=-1)[..., None, None]
        identity = torch.eye(3, dtype=second.dtype, device=second.device)
        return second.diagonal(dim1=-2, dim2=-1).sum(dim=-1)[..., None, None] * identity - second

    def _local_points(self) -> Tensor:
        if self._hull is None:
            self._hull = _hull_indices(self.vertices.detach(), self.faces)
        return self.vertices[..., self._hull, :]

    def _dimensions(self) -> dict[str, Any]:
        return {"vertices": f"{tuple(self.vertices.shape)}", "faces": f"{tuple(self.faces.shape)}"}


def _diagonal(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    """(..., 3, 3) diagonal matrix of three (...,) numbers."""
    return torch.diag_embed(torch.stack([x, y, z], dim=-1))


def _tetrahedra(vertices: Tensor, faces: Tensor) -> tuple[Tensor, Tensor]:
    """Signed volumes (..., m) [m^3] of the tetrahedra (origin, triangle), and corners (..., m, 3, 3) [m] of the triangles as rows."""
    corners = vertices[..., faces, :]
    a, b, c = corners.unbind(dim=-2)
    return (a * torch.linalg.cross(b, c)).sum(dim=-1) / 6.0, corners


def _check_closed(faces: Tensor) -> None:
    """Raise unless every directed edge (i, j) occurs once and (j, i) once, as in a closed, consistently wound surface."""
    edges = [(int(i), int(j)) for a, b, c in faces.tolist() for i, j in ((a, b), (b, c), (c, a))]
    present = set(edges)
    open_edges = [edge for edge in edges if (edge[1], edge[0]) not in present]
    if not edges or open_edges or len(present) != len(edges):
        detail = f"edge {open_edges[0]} has no neighbor" if open_edges else "an edge is used twice in the same direction"
        raise ValueError(
            f"Mesh: got {len(faces)} faces that are not a closed, consistently wound surface ({detail if edges else 'no faces'}); merge "
            "duplicate vertices, fill holes and unify the winding (for instance with trimesh: process, fill_holes, fix_normals)"
        )


def _hull_indices(vertices: Tensor, faces: Tensor) -> Tensor:
    """Sorted indices of the vertices on the convex hull; without scipy, or for a batch of meshes, of all vertices in use."""
    used = torch.unique(faces)
    if vertices.ndim != 2:
        return used
    try:
        from scipy.spatial import ConvexHull
    except ImportError:
        return used
    hull = ConvexHull(vertices[used].double().cpu().numpy()).vertices
    return used[torch.as_tensor(sorted(int(i) for i in hull), device=used.device)]


def _vector(value: Any, length: int, name: str) -> Tensor:
    """A finite floating-point tensor (..., length), or (...,) for length 0. Plain numbers become float64."""
    tensor = as_tensor(value, name)
    if length and (tensor.ndim == 0 or tensor.shape[-1] != length):
        raise ValueError(f"{name}: got shape {tuple(tensor.shape)}; allowed: (..., {length})")
    require(torch.isfinite(tensor), name, tensor, "finite numbers")
    return tensor


def _positive(value: Any, length: int, name: str, unit: str = "m") -> Tensor:
    tensor = _vector(value, length, name)
    require(tensor > 0, name, tensor, f"positive numbers [{unit}]")
    return tensor
