"""Distances along rays to spheres, ellipsoids, boxes, capsules, cylinders and planes, and the rangefinder that reads them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torchdojo import quaternion as quat
from torchdojo.geometry.shapes import Box, Capsule, Cylinder, Ellipsoid, Shape, Sphere
from torchdojo.geometry.visuals import Visual
from torchdojo.sensors.kind import Kind, Sensor, register
from torchdojo.sensors.reading import Reading
from torchdojo.sensors.site import SHAPES

__all__ = ["distances"]


def distances(shape: str, size: Tensor, start: Tensor, way: Tensor) -> Tensor:
    """Distance [m] along rays to the surface of a solid at the origin, (...); infinite where a ray misses. Rays from inside come out.

    Args:
        shape, size: as of `td.Site`. start: (..., 3) [m]. way: (..., 3), unit.
    """
    if shape == "sphere":
        return _ball(start, way, size[..., 0])
    if shape == "ellipsoid":
        return _quadratic(*_terms(start / size, way / size), torch.ones_like(size[..., 0]))
    if shape == "box":
        return _box(start, way, size)
    if shape == "plane":
        down = way[..., 2] < -1e-15
        return torch.where(down & (start[..., 2] >= 0), -start[..., 2] / torch.where(down, way[..., 2], 1.0), torch.inf)
    radius, half = size[..., 0], size[..., 1]
    side = _between(start, way, radius, half)
    if shape == "capsule":
        ends = [_cap(start, way, radius, sign * half, sign) for sign in (-1.0, 1.0)]
    else:
        ends = [_disc(start, way, radius, sign * half) for sign in (-1.0, 1.0)]
    return torch.minimum(side, torch.minimum(*ends))


def _terms(start: Tensor, way: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return (way * way).sum(-1), (start * way).sum(-1), (start * start).sum(-1)


def _roots(a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """Roots of a t² + 2 b t + c, infinite where there is none."""
    square = b * b - a * c
    real = (square > 0) & (a > 1e-30)
    root, safe = torch.where(real, square, 1.0).sqrt(), torch.where(real, a, 1.0)
    return torch.where(real, (-b - root) / safe, torch.inf), torch.where(real, (-b + root) / safe, torch.inf)


def _first(*candidates: Tensor) -> Tensor:
    """The smallest one that is not behind the start."""
    result = candidates[0].new_full((), torch.inf)
    for t in candidates:
        result = torch.minimum(result, torch.where(t >= 0, t, torch.inf))
    return result


def _quadratic(a: Tensor, b: Tensor, square: Tensor, limit: Tensor) -> Tensor:
    return _first(*_roots(a, b, square - limit))


def _ball(start: Tensor, way: Tensor, radius: Tensor) -> Tensor:
    return _quadratic(*_terms(start, way), radius * radius)


def _box(start: Tensor, way: Tensor, half: Tensor) -> Tensor:
    flat = way.abs() < 1e-15
    safe = torch.where(flat, 1.0, way)
    near, far = (-half - start) / safe, (half - start) / safe
    low, high = torch.minimum(near, far), torch.maximum(near, far)
    within = start.abs() <= half
    low = torch.where(flat, torch.where(within, -torch.inf, torch.inf), low)
    high = torch.where(flat, torch.where(within, torch.inf, -torch.inf), high)
    enter, leave = low.amax(-1), high.amin(-1)
    return torch.where(enter <= leave, _first(enter, leave), torch.inf)


def _between(start: Tensor, way: Tensor, radius: Tensor, half: Tensor) -> Tensor:
    """The side of a cylinder."""
    roots = _roots(*_terms(start[..., :2], way[..., :2])[:2], (start[..., :2] ** 2).sum(-1) - radius * radius)
    z = [start[..., 2] + torch.where(torch.isfinite(t), t, 0.0) * way[..., 2] for t in roots]
    return _first(*(torch.where(height.abs() <= half, t, torch.inf) for t, height in zip(roots, z, strict=True)))


def _cap(start: Tensor, way: Tensor, radius: Tensor, center: Tensor, sign: float) -> Tensor:
    moved = torch.stack((start[..., 0], start[..., 1], start[..., 2] - center), dim=-1)
    a, b, c = _terms(moved, way)
    roots = _roots(a, b, c - radius * radius)
    z = [moved[..., 2] + torch.where(torch.isfinite(t), t, 0.0) * way[..., 2] for t in roots]
    return _first(*(torch.where(sign * height >= 0, t, torch.inf) for t, height in zip(roots, z, strict=True)))


def _disc(start: Tensor, way: Tensor, radius: Tensor, height: Tensor) -> Tensor:
    flat = way[..., 2].abs() < 1e-15
    t = torch.where(flat, torch.inf, (height - start[..., 2]) / torch.where(flat, 1.0, way[..., 2]))
    place = start[..., :2] + torch.where(torch.isfinite(t), t, 0.0)[..., None] * way[..., :2]
    return torch.where((place * place).sum(-1) <= radius * radius, _first(t), torch.inf)


class Rangefinder(Kind):
    """Distance along z of the site to the nearest shape of another body or half-space of the world; −1 where there is none.

    It sees what bodies show (`Body.visuals`), or their shapes where they show nothing or meshes, solids of the world that are drawn
    (`mech.scenery`), and the half-spaces of contacts.
    """

    size, needs, clamp = 1, ("site",), "above"

    def read(self, sensors: Sequence[Sensor], at: Reading) -> Tensor:
        frames = at.frames([sensor.site for sensor in sensors])
        start, way = frames.pose.x, quat.rotate(frames.pose.q, at.z.new_tensor([0.0, 0.0, 1.0]))
        nearest = at.zeros(len(sensors)) + torch.inf
        bodies = torch.tensor(frames.body, device=at.z.device)
        for body, name, size, position, orientation in _solids(at):
            x, q = at.pose.x[..., body, None, :], at.pose.q[..., body, None, :]
            place, turn = x + quat.rotate(q, position.to(at.z)), quat.multiply(q, orientation.to(at.z))
            hits = distances(name, size.to(at.z), quat.inverse_rotate(turn, start - place), quat.inverse_rotate(turn, way))
            nearest = torch.where(bodies == body, nearest, torch.minimum(nearest, hits))
        for normal, offset in _half_spaces(at):
            toward = -(way * normal).sum(-1)
            gap = (start * normal).sum(-1) - offset
            met = (toward > 1e-15) & (gap >= 0)
            nearest = torch.minimum(nearest, torch.where(met, gap / torch.where(met, toward, 1.0), torch.inf))
        return torch.where(torch.isfinite(nearest), nearest, -1.0)[..., None]


Solid = tuple[int, str, Tensor, Tensor, Tensor]  # number of the body, kind, size, position, orientation


def _of_shape(body: int, solid: Shape) -> Solid:
    if isinstance(solid, Sphere):
        name, size = "sphere", solid.radius[..., None]
    elif isinstance(solid, Ellipsoid):
        name, size = "ellipsoid", solid.semi_axes
    elif isinstance(solid, Box):
        name, size = "box", solid.size / 2
    elif isinstance(solid, (Capsule, Cylinder)):
        name, size = type(solid).__name__.lower(), torch.stack((solid.radius, solid.length / 2), dim=-1)
    else:
        raise ValueError(
            f"sensors: a rangefinder meets a {type(solid).__name__}; allowed: Sphere, Ellipsoid, Box, Capsule, Cylinder; give the body "
            "such a shape, or remove the sensor, del mech.sensors[NAME]"
        )
    return body, name, size, solid.position, solid.orientation


def _of_visual(body: int, solid: Visual) -> Solid:
    size = torch.tensor(solid.size, dtype=torch.float64)
    if solid.kind == "box":
        size = size / 2
    elif solid.kind in ("capsule", "cylinder"):
        size = size * size.new_tensor([1.0, 0.5])
    position, orientation = (torch.tensor(getattr(solid, key), dtype=torch.float64) for key in ("position", "orientation"))
    return body, solid.kind, size, position, orientation


def _solids(at: Reading) -> list[Solid]:
    """Solids that rays may meet."""
    solids: list[Solid] = []
    for i, body in enumerate(at.structure.named_bodies().values()):
        if body.visuals and all(visual.kind in SHAPES for visual in body.visuals):
            solids += [_of_visual(i, visual) for visual in body.visuals if _is_seen(visual)]
        else:
            solids += [_of_shape(i, shape) for shape in body.shapes]
    scenery: tuple[Visual, ...] = getattr(at.structure, "scenery", ())
    return solids + [_of_visual(at.number[None], visual) for visual in scenery if visual.kind in (*SHAPES, "plane") and _is_seen(visual)]


def _is_seen(visual: Visual) -> bool:
    """Whether it is not transparent: rays pass through what nobody sees, as in MuJoCo."""
    return visual.color is None or visual.color[3] > 0


def _half_spaces(at: Reading) -> list[tuple[Tensor, Tensor]]:
    """Unit normals and offsets of the planes that contacts have, each once."""
    spaces: dict[tuple[float, ...], tuple[Tensor, Tensor]] = {}
    for contact in at.structure.named_contacts().values():
        normal, offset = getattr(contact, "normal", None), getattr(contact, "offset", None)
        if contact.other is None and isinstance(normal, Tensor) and isinstance(offset, Tensor) and normal.ndim == 1:
            unit = normal / torch.linalg.vector_norm(normal)
            spaces.setdefault((*unit.detach().tolist(), float(offset.detach())), (unit, offset))
    return list(spaces.values())


register("rangefinder", Rangefinder())
