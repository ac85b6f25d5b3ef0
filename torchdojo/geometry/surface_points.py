"""Points on the faces and edges of convex shapes, so close together that balls around them feel the ground between the corners.

A height field s meets balls at the places q of a face, none of which it enters. At the highest point x of s above the face, the slopes of
both are the same. A triangle with sides of at most p has a corner within ρ = p/√3 of each of its points (Jung 1901). So with the largest
curvature K of the surface and the radius r of the balls, the surface enters the face vertically by at most

    K ρ²/2 + K r ρ = K p²/6 + K r p/√3.

The second term is the change of the height r √(1 + |∇s|²) of a ball's center between q and x; it vanishes for bare points.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchdojo.geometry.polytopes import Polytope, polytope_of
from torchdojo.geometry.shapes import Shape

__all__ = ["check_pitch", "entering", "surface_points"]


def check_pitch(pitch: float | None) -> None:
    """Refuse a pitch that is not None or positive.

    Raises:
        ValueError: such a pitch.
    """
    if pitch is not None and (isinstance(pitch, bool) or not isinstance(pitch, int | float) or not 0 < pitch < float("inf")):
        raise ValueError(f"pitch: got {pitch!r}; allowed: None, or a positive distance of points on faces and edges [m]")


def entering(bend: Tensor | float, pitch: float, radius: Tensor | float = 0.0) -> Tensor | float:
    """Height [m] by which a surface with curvatures of at most `bend` [1/m] enters faces with points of this pitch [m] at most."""
    return bend * (pitch * pitch / 6 + radius * pitch / 3**0.5)


def surface_points(shape: Shape, pitch: float) -> tuple[Tensor, Tensor]:
    """Centers and radius of balls that stand for a convex shape, as from `Shape.contact_points`: corners, and points of edges and faces.

    Args:
        shape: sphere, capsule, box, cylinder (as a prism), hull or mesh (as its hull), in the frame of its body. Its numbers are constants.
        pitch: the longest side of the triangles between the points [m].

    Returns:
        ``points`` (k, 3) in the body frame [m] and ``radius`` () [m].

    Raises:
        ValueError: no such shape, one too thin for the radius of its edges, a pitch that is not positive.
    """
    check_pitch(pitch)
    core = polytope_of(shape)
    if core.semi_axes is not None:
        return shape.contact_points()
    pieces = _triangles(core) if len(core.normals) else core.vertices[core.edges]
    while len(pieces):
        sides = torch.linalg.vector_norm(pieces - pieces.roll(-1, dims=1), dim=-1)
        longest, side = sides.max(-1)
        split = longest > pitch * (1 + 1e-9)
        if not bool(split.any()):
            break
        # Both halves of a triangle at the middle of its longest side. Equal sides of neighbors are halved at the same points.
        whole = torch.stack([piece.roll(-int(first), dims=0) for piece, first in zip(pieces[split], side[split], strict=True)])
        middle = 0.5 * (whole[:, :1] + whole[:, 1:2])
        halves = [torch.cat((middle, whole[:, 1:]), 1), torch.cat((whole[:, :1], middle, whole[:, 2:]), 1)]
        pieces = torch.cat((pieces[~split], *halves))
    points = torch.cat((core.vertices, pieces.flatten(0, 1)))
    _, first = torch.unique((points * (1e6 / pitch)).round().long(), dim=0, return_inverse=True)
    order = torch.full((int(first.max()) + 1,), len(points)).scatter_reduce(0, first, torch.arange(len(points)), "amin")
    return points[order.sort().values], points.new_tensor(core.radius)


def _triangles(core: Polytope) -> Tensor:
    """The faces of a polytope in triangles (n, 3, 3): each of its edges with a corner of the face."""
    result = []
    for face in range(len(core.normals)):
        edges = core.edges[(core.faces == face).any(-1)]
        corner = edges[0, 0]
        far = edges[(edges != corner).all(-1)]
        result.append(torch.cat((corner.expand(len(far), 1), far), -1))
    return core.vertices[torch.cat(result)]
