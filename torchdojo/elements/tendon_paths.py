"""Paths of tendons: fixed ones, sums of joint coordinates, and spatial ones, strings through sites, around surfaces and over pulleys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol, cast

import torch
from torch import Tensor
from torch.nn.utils.parametrize import type_before_parametrizations

from torchdojo import quaternion as quat
from torchdojo.elements.couplings import kinematic_fields
from torchdojo.elements.element import Pose
from torchdojo.elements.joint import Joint
from torchdojo.elements.tendon import Path, Tendon
from torchdojo.geometry.wrapping import Wrapped, arc_points, wrap
from torchdojo.parameters import as_tensor, bind, require

__all__ = ["FixedTendon", "Pulley", "SpatialTendon", "Wrap"]

SHAPES = ("sphere", "cylinder")
TINY = 1e-15  # [m] shorter parts have no direction


class Frame(Protocol):
    """A frame on a body: `td.Site`."""

    body: str | None
    position: Tensor
    orientation: Tensor


# -- sums of coordinates -----------------------------------------------------------------------------------------------------------------


class FixedTendon(Tendon):
    """A tendon whose length is a sum of joint coordinates: length = offset + Σ coefficient · coordinate.

    ``td.FixedTendon({"proximal": 0.02, "distal": 0.01}, stiffness=50.0)``. Coefficients are moment arms [m/rad], [1] of slides.

    Args:
        joints: name of a joint, or (name, coordinate) of a joint with several coordinates -> coefficient, numbers or (...,) tensors.
        offset: length where all coordinates are zero [m], (...,).
        laws: `stiffness`, `damping`, `rest`, `implicit`, `actuated`, `limits`, `limit_stiffness`, `friction`, `armature`, as in `Tendon`.

    Raises:
        ValueError: no joint; and, in a mechanism, unknown names, joints without that coordinate.
    """

    fields: ClassVar[dict[str, int]] = {**Tendon.fields, "coefficients": 1, "offset": 0}
    coefficients: Tensor
    offset: Tensor

    def __init__(self, joints: Mapping[str | tuple[str, int], Any], *, offset: Any = 0.0, **laws: Any) -> None:
        super().__init__(**laws)
        if not joints:
            raise ValueError("FixedTendon: got no joints; give at least one, {'hinge': 0.02}")
        self.places = tuple((key, 0) if isinstance(key, str) else key for key in joints)
        values = [as_tensor(value, self.label("coefficients")).double() for value in joints.values()]
        self.coefficients = torch.stack(torch.broadcast_tensors(*values), dim=-1)
        self.offset = offset
        self.joints: tuple[Joint, ...] = ()  # no submodules of this one; () until a mechanism is built with it

    def _description(self) -> list[str]:
        return [", ".join(name if not i else f"{name}[{i}]" for name, i in self.places)]

    def attach(self, joints: Mapping[str, Joint]) -> None:
        """Find the joints by their names.

        Raises:
            ValueError: unknown names, joints without that coordinate, a tendon that belongs to another mechanism.
        """
        ends = []
        for name, coordinate in self.places:
            if name not in joints:
                raise ValueError(f"it runs over joint {name!r}, which does not exist; joints are {list(joints)}")
            joint = joints[name]
            if coordinate not in range(joint.num_coordinates):
                allowed = list(range(joint.num_coordinates)) or "joints with coordinates"
                raise ValueError(f"it runs over coordinate {coordinate!r} of {name!r}, a {type(joint).__name__}; allowed: {allowed}")
            if joint.extra_state_names():
                raise ValueError(f"it runs over {name!r}, with tensors that are not physical fields, {joint.extra_state_names()}")
            ends.append(joint)
        if self.joints and any(old is not new for old, new in zip(self.joints, ends, strict=True)):
            raise ValueError("it already runs over joints of another mechanism; make one FixedTendon for each")
        self.joints = tuple(ends)

    def __getattr__(self, name: str) -> Any:
        number, _, field = name.removeprefix("joint").partition("_")
        joints = self.__dict__.get("joints")
        if joints and name.startswith("joint") and number.isdigit() and name not in self._parameters:
            return getattr(joints[int(number)], field)
        return super().__getattr__(name)

    @property
    def body_names(self) -> tuple[str | None, ...]:
        return tuple(name for joint in self.joints for name in joint.body_names)

    @property
    def stacked_fields(self) -> dict[str, int]:
        shared = {f"joint{k}_{name}": ndim for k, joint in enumerate(self.joints) for name, ndim in kinematic_fields(joint).items()}
        return {**self.fields, **shared}

    def kind(self) -> tuple[object, ...]:
        details = tuple(coordinate for _, coordinate in self.places), self.implicit, self.actuated
        return (*super().kind(), *(joint.kind() for joint in self.joints), *details)

    def path(self, *poses: Pose) -> Path:
        length, pulls = self.offset, []
        for k, (joint, (_, place)) in enumerate(zip(self.joints, self.places, strict=True)):
            fields = {name: getattr(self, f"joint{k}_{name}") for name in kinematic_fields(joint)}
            bound = cast(Joint, bind(joint, fields, type_before_parametrizations(joint)))
            parent, child = poses[2 * k : 2 * k + 2]
            coefficient = self.coefficients[..., k]
            length = length + coefficient * bound.coordinates(parent, child)[..., place]
            along = torch.zeros(joint.num_coordinates, dtype=length.dtype, device=length.device)
            along[place] = 1.0
            pulls += bound.act_along(parent, child, coefficient[..., None] * along)
        return Path(length, pulls)


# -- strings -----------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Wrap:
    """A surface that a tendon slides over, between two sites of its path: ``td.Wrap(td.Site("elbow"), 0.03, "cylinder", side="front")``.

    Args:
        frame: its center and, of a cylinder, its axis z: a `td.Site`, or a name. A cylinder has no ends.
        radius: [m], positive.
        shape: "sphere" or "cylinder".
        side: a site that says on which side the tendon passes. Inside of the surface, it makes the tendon run through the surface and
            touch it from within, as through a ring. None: the shorter way, and only where the straight way is blocked.

    Raises:
        ValueError: another shape, a radius that is not positive.
    """

    frame: Any
    radius: Any
    shape: str = "sphere"
    side: Any = None

    def __post_init__(self) -> None:
        if self.shape not in SHAPES:
            raise ValueError(f"Wrap shape: got {self.shape!r}; allowed: {', '.join(SHAPES)}")
        radius = as_tensor(self.radius, "Wrap radius")
        require(radius > 0, "Wrap radius", radius, "positive lengths [m]")


@dataclass(frozen=True, eq=False)
class Pulley:
    """The end of a branch of a tendon, and the start of the next one, whose length counts with 1/divisor.

    Args:
        divisor: of the branch that follows, not zero. Negative: its length is subtracted. ``Pulley(-1.0)`` between two strings makes the
            difference of their lengths, which a stiff spring keeps: an equality of two strings.

    Raises:
        ValueError: a divisor of zero.
    """

    divisor: Any

    def __post_init__(self) -> None:
        divisor = as_tensor(self.divisor, "Pulley divisor")
        require(divisor != 0, "Pulley divisor", divisor, "numbers that are not zero")


class Span(NamedTuple):
    """A part of a path from one site to the next, by numbers: sites, the surface between (−1: none), the pulley before (−1: none)."""

    start: int
    end: int
    surface: int
    pulley: int


class Surface(NamedTuple):
    """A surface of a path: the number of its body, of its side site among the sites of sides (−1: none)."""

    body: int
    cylinder: bool
    side: int


class Strings:
    """Numbers of strings, and their lengths: what `SpatialTendon` shares with couplings of lengths."""

    site_bodies: tuple[int, ...]
    side_bodies: tuple[int, ...]
    surfaces: tuple[Surface, ...]
    spans: tuple[Span, ...]
    points: Tensor
    centers: Tensor
    radii: Tensor
    sides: Tensor
    divisors: Tensor
    orientations_field: ClassVar[str] = "turns"  #: the field with the attitudes of surfaces

    def _check_numbers(self, label: str, name: str, value: Tensor, ndim: int) -> None:
        """Raise ValueError for numbers of another count or out of range. ndim: of one value of the field `name`."""
        if name == "radii":
            require(value > 0, label, value, "positive numbers")
        if name == "divisors":
            require(value != 0, label, value, "numbers that are not zero")
        if name in ("points", "centers", self.orientations_field, "radii"):
            count = len(self.site_bodies if name == "points" else self.surfaces)
            if value.shape[-ndim] != count:
                raise ValueError(f"{label}: got shape {tuple(value.shape)}; allowed: {count} of them")

    def _path_of(self, poses: Sequence[Pose], spans: Sequence[Span]) -> Path:
        """Length and gradient of these spans, at one pose per body."""
        forces: list[list[Tensor]] = [[] for _ in poses]
        moments: list[list[Tensor]] = [[] for _ in poses]
        total: Tensor | float = 0.0
        for way, weight, parts in self._parts(poses, spans):
            total = total + (way if weight is None else weight * way)
            for body, point, force in parts:
                weighted = force if weight is None else weight[..., None] * force
                forces[body].append(weighted)
                moments[body].append(quat.cross(point - poses[body].x, weighted))
        zero = torch.zeros_like(poses[0].x)
        pulls = [
            (zero + sum(f), quat.inverse_rotate(pose.q, zero + sum(m))) if f else (zero, zero)
            for pose, f, m in zip(poses, forces, moments, strict=True)
        ]
        return Path(cast(Tensor, total) + zero[..., 0], pulls)

    def _parts(
        self, poses: Sequence[Pose], spans: Sequence[Span]
    ) -> Iterator[tuple[Tensor, Tensor | None, list[tuple[int, Tensor, Tensor]]]]:
        """Per span: its length, its weight (None: 1), and (body, point, force) of a unit of tension, as derivatives of the length."""
        points = [poses[body].point(self.points[..., i, :]) for i, body in enumerate(self.site_bodies)]
        for span in spans:
            weight = 1 / self.divisors[..., span.pulley] if span.pulley >= 0 else None
            start, end = points[span.start], points[span.end]
            ends = self.site_bodies[span.start], self.site_bodies[span.end]
            if span.surface < 0:
                way, along = _straight(start, end)
                yield way, weight, [] if ends[0] == ends[1] else [(ends[0], start, -along), (ends[1], end, along)]
                continue
            surface = self.surfaces[span.surface]
            _, _, (wraps, first, second, arc) = self._around(poses, span, start, end)
            touching = wraps[..., None]
            way, along = _straight(start, torch.where(touching, first, end))
            back, away = _straight(torch.where(touching, second, start), end)
            zero = torch.zeros_like(along)
            yield torch.where(wraps, way + arc + back, way), weight, [
                (ends[0], start, -along),
                (surface.body, first, torch.where(touching, along, zero)),
                (surface.body, second, torch.where(touching, -away, zero)),
                (ends[1], end, away),
            ]  # fmt: skip

    def _around(self, poses: Sequence[Pose], span: Span, start: Tensor, end: Tensor) -> tuple[Tensor, Tensor, Wrapped]:
        """The surface of a span, its center and attitude in the world, and the path around it."""
        surface = self.surfaces[span.surface]
        pose = poses[surface.body]
        center = pose.point(self.centers[..., span.surface, :])
        turn = quat.multiply(pose.q, quat.normalize(getattr(self, self.orientations_field)[..., span.surface, :]))
        side = None if surface.side < 0 else poses[self.side_bodies[surface.side]].point(self.sides[..., surface.side, :])
        wrapped = wrap(start, end, center, turn, self.radii[..., span.surface], cylinder=surface.cylinder, side=side)
        return center, turn, wrapped

    @torch.no_grad()
    def route(self, *poses: Pose, count: int = 9) -> Tensor:
        """Points (..., n, 3) along the strings, in the world, to draw; NaN between branches.

        Args:
            poses: one per body. count: points on each surface.
        """
        points = [poses[body].point(self.points[..., i, :]) for i, body in enumerate(self.site_bodies)]
        places: list[Tensor] = []
        last = -1
        for span in self.spans:
            start, end = points[span.start], points[span.end]
            if span.start != last:
                places += [torch.full_like(start, torch.nan), start] if places else [start]
            if span.surface >= 0:
                center, turn, wrapped = self._around(poses, span, start, end)
                cylinder = self.surfaces[span.surface].cylinder
                places += arc_points(wrapped, start, center, turn, cylinder=cylinder, count=count).unbind(-2)
            places.append(end)
            last = span.end
        return torch.stack(torch.broadcast_tensors(*places), dim=-2)


class SpatialTendon(Strings, Tendon):
    """A tendon through sites, around spheres and cylinders, with branches behind pulleys. The shortest such string has its length.

    ``td.SpatialTendon(["hip", td.Wrap(td.Site("femur"), 0.02), "shin"], sites=mech.sites, stiffness=100.0, rest=0.3)``

    Args:
        path: `td.Site`, or names of `sites`; between two sites a `td.Wrap`; between branches a `td.Pulley`. A branch has two sites or more.
        sites: name -> `td.Site`, for the names in the path: `mech.sites`.
        laws: `stiffness`, `damping`, `rest`, `implicit`, `actuated`, `limits`, `limit_stiffness`, `friction`, `armature`, as in `Tendon`.

    The numbers are fields of the tendon: `points` (..., n, 3) of the sites, `centers` (..., k, 3), `turns` (..., k, 4) and `radii` (..., k)
    of the surfaces, `sides` (..., m, 3) of side sites, all in the frames of their bodies [m], and `divisors` (..., p).

    Raises:
        ValueError: unknown sites, a surface without a site on each side of it, a branch of fewer than two sites.
    """

    turns: Tensor

    def __init__(self, path: Sequence[Any], *, sites: Mapping[str, Frame] | None = None, **laws: Any) -> None:
        super().__init__(**laws)
        self._sites = sites or {}
        self._names: list[str | None] = []
        points: list[Tensor] = []
        frames: list[Frame] = []
        radii: list[Tensor] = []
        sides: list[Tensor] = []
        divisors: list[Tensor] = []
        site_bodies: list[int] = []
        side_bodies: list[int] = []
        surfaces: list[Surface] = []
        spans: list[Span] = []
        last, pending, count = -1, -1, 0  # the last site of the branch, the surface behind it, sites of the branch

        def finish() -> None:
            if pending >= 0:
                raise ValueError(f"SpatialTendon: surface {pending} has no site behind it; a Wrap stands between two sites of one branch")
            if count < 2:
                raise ValueError(f"SpatialTendon: got a branch of {count} site(s); allowed: two or more between pulleys")

        for item in path:
            if isinstance(item, Pulley):
                if last >= 0 or pending >= 0:
                    finish()
                divisors.append(as_tensor(item.divisor, "Pulley divisor").double())
                last, count = -1, 0
            elif isinstance(item, Wrap):
                if last < 0 or pending >= 0:
                    raise ValueError(f"SpatialTendon: surface {len(surfaces)} has no site before it; a Wrap stands between two sites")
                frame, side = self._site(item.frame), -1
                if item.side is not None:
                    site, side = self._site(item.side), len(sides)
                    sides.append(site.position)
                    side_bodies.append(self._number(site))
                pending = len(surfaces)
                surfaces.append(Surface(self._number(frame), item.shape == "cylinder", side))
                frames.append(frame)
                radii.append(as_tensor(item.radius, "Wrap radius").double())
            else:
                site = self._site(item)
                points.append(site.position)
                site_bodies.append(self._number(site))
                if last >= 0:
                    spans.append(Span(last, len(points) - 1, pending, len(divisors) - 1))
                last, pending, count = len(points) - 1, -1, count + 1
        finish()
        self.site_bodies, self.side_bodies = tuple(site_bodies), tuple(side_bodies)
        self.surfaces, self.spans = tuple(surfaces), tuple(spans)
        self.bodies = tuple(self._names)
        del self._sites, self._names
        present = {"points": 2, **({"centers": 2, "turns": 2, "radii": 1} if frames else {})}
        present |= ({"sides": 2} if sides else {}) | ({"divisors": 1} if divisors else {})
        self.set_fields({**self.fields, **present})
        self.points = torch.stack(points)
        if frames:
            self.centers, self.turns = torch.stack([f.position for f in frames]), torch.stack([f.orientation for f in frames])
            self.radii = torch.stack(torch.broadcast_tensors(*radii), dim=-1)
        if sides:
            self.sides = torch.stack(sides)
        if divisors:
            self.divisors = torch.stack(torch.broadcast_tensors(*divisors), dim=-1)

    def _site(self, given: Any) -> Frame:
        if isinstance(given, str):
            if given not in self._sites:
                raise ValueError(
                    f"SpatialTendon: got the site {given!r}; sites are {list(self._sites)}; give sites=mech.sites, or td.Site(...)"
                )
            return self._sites[given]
        if not all(hasattr(given, name) for name in ("body", "position", "orientation")):
            raise TypeError(f"SpatialTendon: got {type(given).__name__} in its path; allowed: td.Site, names, td.Wrap, td.Pulley")
        return cast(Frame, given)

    def _number(self, site: Frame) -> int:
        """The number of a site's body among the bodies of the tendon."""
        if site.body not in self._names:
            self._names.append(site.body)
        return self._names.index(site.body)

    def _description(self) -> list[str]:
        return [" - ".join(name or "world" for name in self.bodies), f"{len(self.site_bodies)} sites, {len(self.surfaces)} surfaces"]

    def check_field(self, name: str, value: Tensor) -> Tensor:
        value = super().check_field(name, value)
        self._check_numbers(self.label(name), name, value, self.fields[name])
        return value

    @property
    def body_names(self) -> tuple[str | None, ...]:
        return self.bodies

    def kind(self) -> tuple[object, ...]:
        return (*super().kind(), self.site_bodies, self.side_bodies, self.surfaces, self.spans, self.implicit, self.actuated)

    def path(self, *poses: Pose) -> Path:
        return self._path_of(poses, self.spans)

    def length(self, *poses: Pose) -> Tensor:
        return self.path(*poses).length


def _straight(start: Tensor, end: Tensor) -> tuple[Tensor, Tensor]:
    """Distance (...) and unit vector (..., 3) from one point to the other; zero vectors between points that coincide."""
    way = end - start
    short = (way.detach().abs().amax(-1) < TINY)[..., None]
    distance = torch.linalg.vector_norm(torch.where(short, torch.ones_like(way), way), dim=-1)
    return torch.where(short[..., 0], 0.0, distance), torch.where(short, torch.zeros_like(way), way / distance[..., None])
