"""The base class of contacts: where two surfaces touch, and the row of the gap between them.

A point or sphere (center c, radius r) on a body touches a surface of the world. All terms are taken at the next configuration
(dynamics/README.md; Howell et al. 2025, section IV-A). The surface has the signed distance sdf and the outward normal n:

    φ = sdf(x⁺ + R⁺c) − r      lever l = R⁺c − r n      impulse P = γ n + Tᵀβ      torque R⁺ᵀ(l × P)      v_t = T (v⁺ + (R⁺ω⁺) × l)

Between a body a and another body b, the normal points from b to a. The distance, the normal and the point of contact on a, p⁺ = x_a⁺ + l⁺,
also belong to the next configuration. P acts on a and −P on b, at the current configuration and at one common point, p = p⁺ − ½(x_a⁺ −
x_a + x_b⁺ − x_b):

    l_i = p − x_i      torques R_aᵀ(l_a × P), −R_bᵀ(l_b × P)      v_t = T (v_a⁺ + (R_a ω_a⁺) × l_a − v_b⁺ − (R_b ω_b⁺) × l_b)

so that linear and angular momentum are conserved, whatever P is, in any frame that moves uniformly. R⁺ω⁺ = R ω⁺, since a step turns about
ω⁺.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from torchdojo import quaternion as quat
from torchdojo.elements.element import Element, Motion, Pose, previous_pose, unit
from torchdojo.geometry.ellipsoids import ellipsoid_end
from torchdojo.geometry.grids import DistanceGrid
from torchdojo.geometry.heights import HeightField
from torchdojo.geometry.pairs import Solid, nearest
from torchdojo.geometry.shapes import Box, Capsule, Ellipsoid, Shape, Sphere
from torchdojo.parameters import require

__all__ = ["RESTING_ACCELERATION", "Contact", "Touch", "arrives"]

# Acceleration [m/s²] by which a contact in reach may approach within a step and still counts as resting. It is twice gravity, so
# that lying bodies do not bounce.
RESTING_ACCELERATION = 20.0
#: Laws of a contact that act only where they are given: name -> number of dimensions of one value.
LAWS = {"restitution": 0, "recovery_speed": 0, "stiffness": 0, "damping": 0, "torsional_friction": 0, "rolling_friction": 0}
#: Kind of a surface of the world with samples -> the field of its `ground` that has them.
SAMPLED = {"heights": "heights", "grid": "samples"}
_EXTENT: dict[type[Shape], tuple[str, str | None]] = {
    Sphere: ("sphere", None),
    Capsule: ("capsule", "length"),
    Box: ("box", "size"),
    Ellipsoid: ("ellipsoid", "semi_axes"),
}
_DIMENSIONS = {"point": 1, "radius": 0, "orientation": 1, "length": 0, "size": 1, "semi_axes": 1}


class Touch(NamedTuple):
    """φ (...,) and unit normal (..., 3) at the next configuration, and the lever (..., 3) from each body to the common point of contact.

    weight: (...,) share of the impulse that acts, for contacts that fade with distance (near_contact.py). None: all of it.
    """

    distance: Tensor
    normal: Tensor
    levers: tuple[Tensor, ...]
    weight: Tensor | None = None


class Contact(Element):
    """Base class of contacts: geometry, and the row of the gap. A user-written surface overrides `signed_distance` (and may override
    `surface_normal`).

    Args:
        body: name of the body.
        point: contact point in the body frame, from the center of mass [m], (..., 3).
        radius: [m], (...,), >= 0.
        shape: a `Sphere`, `Capsule`, `Box` or `Ellipsoid` in the body frame, in place of point and radius; capsules and boxes need an
            `other_shape`.
        other: name of the body that carries the surface; None or "world": it is fixed.
        normal: of a half-space, in the frame of `other`, any positive length, (..., 3). Default: z, the ground.
        offset: height of the half-space along the unit normal [m], (...,).
        other_shape: a `Sphere`, `Capsule`, `Box` or `Ellipsoid` in the frame of `other`, or a `HeightField` or `DistanceGrid` of the
            world, in place of the half-space.
        restitution: coefficient e of Newton's law v_n⁺ = −e v_n⁻, (...,), in [0, 1]; see `gap`. None: contacts do not bounce.
        recovery_speed: largest speed at which surfaces that start a step overlapped are pushed apart [m/s], (...,), > 0; see `gap`.
            None: `SolverOptions.depenetration_speed`.
        stiffness, damping: [N/m] > 0 and [N·s/m] >= 0, (...,), of a compliant contact. Its overlap at rest is the force over the
            stiffness; see `gap`. None: hard.

    Numbers of shapes become fields of the contact, `radius`, `size` and so on, and `other_radius`, `other_size`, `other_point`,
    `other_orientation` ... Like all fields they may require grad and carry batch dimensions. A user's surface with numbers of its own
    declares them in the same way: ``fields = {**td.NonlinearContact.fields, "depth": 0}`` (`Element` has more on this).

    Raises:
        ValueError: negative radii, zero normals, coefficients out of range, shapes that do not fit or have no distance to each other.
    """

    fields: ClassVar[dict[str, int]] = {"point": 1, "radius": 0, "normal": 1, "offset": 0}
    optional: ClassVar[dict[str, int]] = LAWS
    structural: ClassVar[frozenset[str]] = frozenset({"body", "other"})
    noun: ClassVar[str] = "contact"
    laws: ClassVar[tuple[str, ...]] = ("restitution", "recovery_speed", "stiffness", "damping")
    point: Tensor
    radius: Tensor
    normal: Tensor
    offset: Tensor
    # A tensor each, or None.
    restitution: Any
    recovery_speed: Any
    stiffness: Any
    damping: Any
    torsional_friction: Any
    rolling_friction: Any
    ground: HeightField | DistanceGrid  # the `other_shape`, if it is one of these
    surface_name: str = "world"  #: of the fixed surface, where `other` is None: the name of a plane or shape of a scene
    depenetration_speed: float | None = None  # the option of the step, for contacts without a law of overlap of their own

    def __init__(
        self,
        body: str,
        *,
        point: Any = None,
        radius: Any = None,
        shape: Shape | None = None,
        other: str | None = None,
        normal: Any = None,
        offset: Any = None,
        other_shape: Shape | HeightField | DistanceGrid | None = None,
        **laws: Any,
    ) -> None:
        super().__init__()
        self.body = body
        self.other = None if other == "world" else other
        if self.other == body:
            raise ValueError(f"{type(self).__name__}: got {body!r} as body and as other; a contact is between two different bodies")
        self._check_together(
            shape=(shape, {"point": point, "radius": radius}), other_shape=(other_shape, {"normal": normal, "offset": offset})
        )
        unknown = [name for name in laws if name not in self.laws]
        if unknown:
            raise TypeError(f"{type(self).__name__}: got an unexpected keyword {unknown[0]!r}; laws of this contact are {list(self.laws)}")
        present = {name: value for name, value in laws.items() if value is not None}
        self._check_laws(present)
        self.shape_kind, values = _describe(self, "shape", shape)
        self.other_kind, other_values = _describe(self, "other_shape", other_shape)
        if isinstance(other_shape, (HeightField, DistanceGrid)):
            if self.other is not None:
                kind = type(other_shape).__name__
                raise ValueError(f"{type(self).__name__}: got a {kind} on body {self.other!r}; allowed: one of the world, without other=")
            self.ground = other_shape
        if shape is None:
            values = {"point": (0.0, 0.0, 0.0) if point is None else point, "radius": 0.0 if radius is None else radius}
        surface = {"normal": (0.0, 0.0, 1.0) if normal is None else normal, "offset": 0.0 if offset is None else offset}
        values |= {f"other_{name}": value for name, value in other_values.items()} if other_shape is not None else surface
        custom = type(self).signed_distance is not Contact.signed_distance or type(self).surface_normal is not Contact.surface_normal
        balls = dict.fromkeys(SAMPLED, ("sphere",))
        allowed = (balls | {"surface": ("sphere",) if custom else ("sphere", "ellipsoid")}).get(self.other_kind)
        if allowed is not None and self.shape_kind not in allowed:
            raise ValueError(
                f"{type(self).__name__}: got shape={type(shape).__name__} against a half-space, heights, a grid or a surface of yours; "
                "allowed: a point or a Sphere, and an Ellipsoid against a half-space. Make one contact for each of shape.contact_points(), "
                "or give other_shape="
            )
        self._set_fields({**values, **present})

    def _set_fields(self, values: dict[str, Any]) -> None:
        declared = {name: ndim for name, ndim in type(self).fields.items() if name not in ("normal", "offset") or name in values}
        extra = {name: LAWS[name] if name in LAWS else _DIMENSIONS[name.removeprefix("other_")] for name in values if name not in declared}
        self.set_fields({**declared, **extra})
        for name, value in values.items():
            setattr(self, name, value)
        self.reads_incoming = "restitution" in values

    def _check_together(self, **pairs: tuple[Shape | HeightField | DistanceGrid | None, dict[str, Any]]) -> None:
        for name, (shape, numbers) in pairs.items():
            twice = [key for key, value in numbers.items() if value is not None]
            if shape is not None and twice:
                raise ValueError(f"{type(self).__name__}: got both {name}= and {twice[0]}=; give one of them")

    def _check_laws(self, given: dict[str, Any]) -> None:
        if "damping" in given and "stiffness" not in given:
            raise ValueError(f"{type(self).__name__}: got damping= without stiffness=; a damped contact needs both")
        if "stiffness" in given and "restitution" in given:
            raise ValueError(f"{type(self).__name__}: got stiffness= and restitution=; a compliant contact bounces by its stiffness")
        if "stiffness" in given:
            given.setdefault("damping", 0.0)

    @property
    def body_names(self) -> tuple[str | None, ...]:
        return (self.body,) if self.other is None else (self.body, self.other)

    def _description(self) -> list[str]:
        return [f"{self.body} on {self.other or 'world'}"]

    def kind(self) -> tuple[object, ...]:
        ground = id(self.ground) if self.other_kind in SAMPLED else None
        return (*super().kind(), self.shape_kind, self.other_kind, ground, tuple(self.fields), self.cones)

    def check_field(self, name: str, value: Tensor) -> Tensor:
        value = super().check_field(name, value)
        quantity = name.removeprefix("other_")
        size = {"orientation": 4}.get(quantity, 3)
        if self.fields[name] == 1 and value.shape[-1] != size:
            raise ValueError(f"{self.label(name)}: got shape {tuple(value.shape)}; allowed: (..., {size})")
        if quantity in ("radius", "friction", "damping", "torsional_friction", "rolling_friction"):
            require(value >= 0, self.label(name), value, "values >= 0")
        if quantity in ("length", "size", "semi_axes", "stiffness", "recovery_speed"):
            require(value > 0, self.label(name), value, "positive values")
        if quantity == "restitution":
            require((value >= 0) & (value <= 1), self.label(name), value, "coefficients of restitution from 0 to 1")
        if quantity in ("normal", "orientation"):
            require(torch.linalg.vector_norm(value, dim=-1) > 0, self.label(name), value, "vectors of positive length")
        return value

    # -- geometry ------------------------------------------------------------------------------------------------------------------------

    def signed_distance(self, point: Tensor) -> Tensor:
        """Signed distance [m] of a point (..., 3) in the frame of `other` to the surface, (...,): positive outside. Default: the
        half-space, the height field or the grid."""
        if self.other_kind in SAMPLED:
            return self.ground.gap(point)[0]
        return (unit(self.normal) * point).sum(-1) - self.offset

    def surface_normal(self, point: Tensor) -> Tensor:
        """Outward unit normal of the surface at (or nearest to) a point in the frame of `other`, (..., 3). Default: the gradient of
        `signed_distance`."""
        if type(self).signed_distance is Contact.signed_distance and self.other_kind in SAMPLED:
            return self.ground.gap(point)[1]
        if type(self).signed_distance is Contact.signed_distance:
            return unit(self.normal).expand(point.shape)
        pull = torch.func.vjp(self.signed_distance, point)[1]
        return unit(pull(point.new_ones(point.shape[:-1]))[0])

    def distance(self, *poses: Pose) -> Tensor:
        """φ: signed distance between the surfaces at the poses of `body_names` [m], (...,)."""
        return self._witness(poses)[0]

    def place(self, *poses: Pose) -> Tensor:
        """The point of contact on the surface of the body, world frame [m], (..., 3)."""
        return poses[0].x + self._witness(poses)[2]

    def force(self, normal: Tensor, impulse: Tensor) -> Tensor:
        """P [N·s], the impulse at the contact on the body, world frame (..., 3), from the multipliers (..., cones.size). NaN: not known.

        Args:
            normal: (..., 3) unit, world frame.
        """
        return torch.full_like(normal, torch.nan)

    def world_impulse(self, impulse: Tensor, *poses: Pose) -> Tensor:
        """P [N·s], as from `force`, at the poses of `body_names` after the step."""
        return self.force(self._witness(poses)[1], impulse)

    def _witness(self, poses: tuple[Pose, ...]) -> tuple[Tensor, Tensor, Tensor]:
        """φ (...,), normal (..., 3), and the point of contact on the body from its center of mass (..., 3)."""
        pose = poses[0]
        if self.other_kind != "surface" and self.other_kind not in SAMPLED:
            witness = nearest(self.shape_kind, self.other_kind, self._solid(pose), self._solid(_pose_of_other(poses), "other_"))
            return witness.distance, witness.normal, witness.point - pose.x
        arm = quat.rotate(pose.q, self.point)
        if self.shape_kind == "ellipsoid":  # against a half-space
            normal = unit(self.normal) if self.other is None else quat.rotate(poses[1].q, unit(self.normal))
            arm = arm - ellipsoid_end(self._solid(pose), normal)
        center = pose.x + arm
        if self.other is None:
            distance, normal = self.signed_distance(center), self.surface_normal(center)
        else:
            local = quat.inverse_rotate(poses[1].q, center - poses[1].x)
            distance, normal = self.signed_distance(local), quat.rotate(poses[1].q, self.surface_normal(local))
        return distance - self.radius, normal, arm - self.radius[..., None] * normal

    def _solid(self, pose: Pose, prefix: str = "") -> Solid:
        kind = self.other_kind if prefix else self.shape_kind
        orientation, extent = pose.q, pose.q[..., :0]
        if kind != "sphere":
            orientation = quat.multiply(pose.q, quat.normalize(getattr(self, f"{prefix}orientation")))
            extent = getattr(self, prefix + {"capsule": "length", "box": "size", "ellipsoid": "semi_axes"}[kind])
        return Solid(pose.point(getattr(self, f"{prefix}point")), orientation, getattr(self, f"{prefix}radius"), extent)

    def touch(self, motions: tuple[Motion, ...]) -> Touch:
        """Distance and normal at the next configuration, and the levers at which the impulse acts."""
        distance, normal, lever = self._witness(tuple(motion.next for motion in motions))
        if len(motions) == 1:
            return Touch(distance, normal, (lever,))
        a, b = motions
        apart = 0.5 * ((a.next.x - a.pose.x) - (b.next.x - b.pose.x))
        return Touch(distance, normal, (lever + apart, lever + (a.next.x - b.next.x) - apart))

    def slip(self, motions: tuple[Motion, ...], touch: Touch, current: bool = False) -> Tensor:
        """Velocity of the body's material point at the contact, relative to the other body's, world frame [m/s], (..., 3).

        With `current`, angular velocities are those in the current body frames, as the incoming ones are.
        """
        velocities = [
            motion.twist.v + quat.cross(quat.rotate(motion.pose.q if current else _frame(motions, i), motion.twist.omega), lever)
            for i, (motion, lever) in enumerate(zip(motions, touch.levers, strict=True))
        ]
        return velocities[0] if len(velocities) == 1 else velocities[0] - velocities[1]

    def spin(self, motions: tuple[Motion, ...]) -> Tensor:
        """Angular velocity of the body relative to the other, world frame [rad/s], (..., 3)."""
        spins = [quat.rotate(_frame(motions, i), motion.twist.omega) for i, motion in enumerate(motions)]
        return spins[0] if len(spins) == 1 else spins[0] - spins[1]

    def wrenches(
        self, motions: tuple[Motion, ...], touch: Touch, force: Tensor, couple: Tensor | None = None
    ) -> list[tuple[Tensor, Tensor]]:
        """Impulses on the body, and the opposite on the other, of an impulse at the contact and an angular one (world frame)."""
        result = []
        if touch.weight is not None:
            force = touch.weight[..., None] * force
            couple = None if couple is None else touch.weight[..., None] * couple
        for i, lever in enumerate(touch.levers):
            torque = quat.cross(lever, force)
            if couple is not None:
                torque = torque + couple
            torque = quat.inverse_rotate(_frame(motions, i), torque)
            result.append((force, torque) if i == 0 else (-force, -torque))
        return result

    # -- the gap -------------------------------------------------------------------------------------------------------------------------

    def gap(self, motions: tuple[Motion, ...], touch: Touch, gamma: Tensor, timestep: Tensor) -> Tensor:
        """The quantity that the slack s >= 0 with γ s = κ equals, (..., 1): φ⁺, with the terms of the laws given to the contact.

        φ and φ⁻ are the gaps at the beginning of the step and one step before.

        Overlap: φ⁺ − min(φ + h v_rec, 0) for a `recovery_speed` v_rec. At most h v_rec of an overlap is undone per step, and the surfaces
        then part at that speed. Where φ >= −h v_rec the term is zero, so no number changes where nothing overlaps. Hard contacts without a
        speed of their own have `SolverOptions.depenetration_speed`.

        Compliance: φ⁺ + (γ − d min(φ, 0))/(h k + d), that is, in contact, γ/h = −k φ⁺ − d (φ⁺ − min(φ, 0))/h: the spring and damper of the
        overlap, implicit, and never pulling.

        Restitution, Newton's law: where the surfaces approach at w = (φ⁻ − φ)/h and would be in reach of each other,

            min(φ⁺, h n·(u⁺ + e u⁻))    where w > v_th and φ − h w < h v_th,   v_th = 20 m/s² · h,

        with the velocities u⁺ and u⁻ of the point of contact after and before, both with the lever at which the impulse acts. So surfaces
        leave at u_n⁺ = −e u_n⁻ in the very step in which they would arrive, when they are nearer than one step; slower ones come to rest.
        Without friction, impacts at e = 1 keep the energy: it changes by Σ γ n·(u⁺ + u⁻)/2. With friction, or where other contacts that do
        not bounce take part, Newton's law may create energy (Kane 1984; Glocker 2001). The step of an impact jumps as inputs change:
        gradients belong to a given sequence of impacts, as with any law of impact. The mode "exact" also differentiates the instants
        (gradients/impacts.py).
        """
        gap = self._held_gap(motions, touch, gamma, timestep)
        if "restitution" in self.fields:
            bounces, rebound, _ = self._rebound(motions, touch, timestep)
            gap = torch.where(bounces, torch.minimum(gap, rebound), gap)
        return gap[..., None]

    def impact(self, motions: tuple[Motion, ...], gamma: Tensor, timestep: Tensor) -> tuple[Tensor, Tensor]:
        """Whether the law of impact rules the step of a contact with restitution, and the time τ of the impact in the step [s], (...,).

        The velocities that led to the step give τ = h φ/(φ⁻ − φ). The arguments are as in `gap`.
        """
        touch = self.touch(motions)
        bounces, rebound, instant = self._rebound(motions, touch, timestep)
        return bounces & (rebound < self._held_gap(motions, touch, gamma, timestep)), instant

    def _held_gap(self, motions: tuple[Motion, ...], touch: Touch, gamma: Tensor, timestep: Tensor) -> Tensor:
        """φ⁺ with the terms of recovery and compliance, (...,)."""
        fields, gap, h, speed = self.fields, touch.distance, timestep[..., 0], self._speed_of_recovery()
        if speed is None and "stiffness" not in fields:
            return gap
        start_gap = self.distance(*(motion.pose for motion in motions))
        if speed is not None:
            gap = gap - (start_gap + h * speed).clamp_max(0)
        if "stiffness" in fields:
            gap = gap + (gamma[..., 0] - self.damping * start_gap.clamp_max(0)) / (h * self.stiffness + self.damping)
        return gap

    def _speed_of_recovery(self) -> Tensor | float | None:
        default = None if "stiffness" in self.fields else self.depenetration_speed  # a spring's overlap at rest is no error
        return self.recovery_speed if "recovery_speed" in self.fields else default

    def leaving(self, pose: Pose, timestep: Tensor) -> tuple[Tensor, Tensor] | None:
        """Speed at which a body inside the world comes out in this step (...,), zero if it is not deep, and the normal there (..., 3).

        None: no law asks for such a speed.
        """
        speed = self._speed_of_recovery()
        if speed is None:
            return None
        distance, normal, _ = self._witness((pose,))
        return torch.where(distance + timestep[..., 0] * speed < 0, speed, 0.0), normal

    def _rebound(self, motions: tuple[Motion, ...], touch: Touch, timestep: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Whether there is an impact, h n·(u⁺ + e u⁻), and τ, (...,) each."""
        h = timestep[..., 0]
        bounces, start_gap, before = self._arrival(motions, timestep)
        arriving = tuple(motion._replace(twist=motion.incoming) for motion in motions)
        velocity = self.slip(motions, touch) + self.restitution[..., None] * self.slip(arriving, touch, current=True)
        return bounces, h * (touch.normal * velocity).sum(-1), h * start_gap / torch.where(bounces, before - start_gap, 1.0)

    def _arrival(self, motions: tuple[Motion, ...], timestep: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Whether there is an impact, φ and φ⁻, (...,) each."""
        start_gap = self.distance(*(motion.pose for motion in motions))
        before = self.distance(*(previous_pose(motion.pose, motion.incoming, timestep) for motion in motions))
        return arrives(start_gap, before, timestep[..., 0]), start_gap, before


def arrives(start_gap: Tensor, before: Tensor, timestep: Tensor) -> Tensor:
    """Whether surfaces whose gap was `before` one step ago, and is `start_gap` now, meet within the next step faster than at rest."""
    slow = RESTING_ACCELERATION * timestep * timestep
    return (before - start_gap > slow) & (2 * start_gap - before < slow)


def _describe(contact: Contact, argument: str, shape: Shape | HeightField | DistanceGrid | None) -> tuple[str, dict[str, Any]]:
    """The kind of a shape, for `nearest`, and its numbers as fields."""
    if shape is None:
        return ("sphere" if argument == "shape" else "surface"), {}
    if isinstance(shape, (HeightField, DistanceGrid)) and argument == "other_shape":
        return ("heights" if isinstance(shape, HeightField) else "grid"), {}
    for cls, (kind, extent) in _EXTENT.items():
        if isinstance(shape, cls):
            values = {"point": shape.position, "radius": getattr(shape, "radius", torch.zeros_like(shape.position[..., 0]))}
            if extent is not None:
                values |= {"orientation": shape.orientation, extent: getattr(shape, extent)}
            return kind, values
    raise ValueError(
        f"{type(contact).__name__}: got {argument}={type(shape).__name__}; allowed: Sphere, Capsule, Box and Ellipsoid. For others, "
        "td.near_contacts, one contact for each of shape.contact_points(), or a contact with a `signed_distance` of your own"
    )


def _pose_of_other(poses: tuple[Pose, ...]) -> Pose:
    x = poses[0].x
    return poses[1] if len(poses) > 1 else Pose(x.new_zeros(3), quat.identity(x.dtype, x.device))


def _frame(motions: tuple[Motion, ...], i: int) -> Tensor:
    """Orientation in which the torque on body i is expressed: against the world the next one, between bodies the current one."""
    return motions[i].next.q if len(motions) == 1 else motions[i].pose.q
