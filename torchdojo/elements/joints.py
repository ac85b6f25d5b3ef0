"""The sixteen joints, from one table, and the base class for joints written by users.

A joint frame is fixed to the parent: at `parent_anchor`, turned by `orientation_offset` against the parent body. `axis`, coordinates,
inputs and springs are expressed in it. With the parent a and the child b, the displacement of the child anchor and the relative
orientation are

    d = R_offᵀ R_aᵀ (x_b + R_b p_b − x_a − R_a p_a)          p = q_off⁻¹ q_a⁻¹ q_b

Free translations and rotations are rows F of these (d, rotation vector of p); the complementary rows C of (d, vec p) are held at zero at
the next configuration, by impulses that act at the current one (design section 4; Howell et al. 2025, section III).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.utils.parametrize import is_parametrized

from torchdojo import quaternion as quat
from torchdojo.elements.element import Element, Motion, Pose, Twist, orthonormal_complement, unit
from torchdojo.parameters import as_tensor, require, transforming

__all__ = [
    "JOINT_TYPES",
    "Cylindrical",
    "CylindricalFree",
    "Fixed",
    "FixedOrientation",
    "Floating",
    "FreeOrbital",
    "FreeRevolute",
    "Joint",
    "Orbital",
    "Planar",
    "PlanarAxis",
    "PlanarFree",
    "PlanarOrbital",
    "Prismatic",
    "PrismaticOrbital",
    "Revolute",
    "Spherical",
    "StandardJoint",
]

BOUNDS = ("lower", "upper")
OPTIONAL = ("friction", "armature", *BOUNDS)  # fields of the standard joints that are built with them


class Joint(Element):
    """Base class of joints: `num_rows` equations between a parent and a child that hold at the next configuration.

    A user-written joint sets `num_rows` and overrides `constraint`; its impulses then act through the transposed Jacobian of that function
    at the current configuration, which is computed here. The standard joints override `residual` with the same thing in closed form.
    Weights and tensors that the subclass registers receive gradients. A user-written joint has no coordinates, springs or inputs of its
    own: a second joint between the same bodies can carry them.
    """

    num_coordinates: int = 0

    def __init__(self, parent: str | None, child: str) -> None:
        super().__init__()
        self.parent = None if parent == "world" else parent
        self.child = child
        if not isinstance(child, str) or child == "world":
            raise ValueError(
                f"{type(self).__name__}: got child={child!r}; the child is a body name, only the parent may be the world (None)"
            )
        if self.parent == child:
            raise ValueError(f"{type(self).__name__}: got {child!r} as parent and as child; a joint connects two different bodies")

    @property
    def body_names(self) -> tuple[str | None, ...]:
        return (self.parent, self.child)

    def constraint(self, parent: Pose, child: Pose) -> Tensor:
        """Rows that vanish when the joint is assembled, (..., num_rows)."""
        raise NotImplementedError

    def residual(
        self, motions: tuple[Motion, ...], impulse: Tensor, slack: Tensor, u: Tensor, timestep: Tensor
    ) -> tuple[list[tuple[Tensor, Tensor]], Tensor]:
        poses = [motion.pose for motion in motions]

        def at_current(*displacements: Tensor) -> Tensor:
            moved = [
                Pose(p.x + dx, quat.multiply(p.q, torch.cat((torch.ones_like(dphi[..., :1]), 0.5 * dphi), -1)))
                for p, dx, dphi in zip(poses, displacements[::2], displacements[1::2], strict=True)
            ]
            return self.constraint(*moved)

        zeros = [torch.zeros_like(motion.twist.v) for motion in motions for _ in range(2)]
        transpose = torch.func.vjp(at_current, *zeros)[1]
        wrench = transpose(impulse)
        return list(zip(wrench[::2], wrench[1::2], strict=True)), self.constraint(*[motion.next for motion in motions])


class StandardJoint(Joint):
    """A joint of the table `JOINT_TYPES`, with springs, dampers and inputs on its free coordinates.

    Args:
        parent, child: body names; the parent may be None or "world".
        axis: in the joint frame, (..., 3), any length: the free direction where one is free, the normal where two are.
        parent_anchor, child_anchor: joint point in the parent's and the child's frame, from the centre of mass [m], (..., 3).
        orientation_offset: orientation of the child relative to the parent at coordinate zero, wxyz, (..., 4).
        spring: stiffness [N/m, N·m/rad]; damper [N·s/m, N·m·s/rad]; rest: coordinate at which the spring is relaxed [m, rad]. Scalars, or
            (..., n) with one value per free coordinate, translations first. The damper is implicit, the spring explicit.
        limits: (lower, upper) of the free coordinates [m, rad]; infinite: none. They hold at every next configuration (`JointLimits`).
        friction: Coulomb friction [N, N·m]: the largest force or torque with which a coordinate resists motion (`JointFriction`).
        armature: inertia [kg, kg·m²] that moves with the coordinate's rate, of a motor seen through its gear: energy ½ a rate².
        effort_limit [N, N·m] and velocity_limit [m/s, rad/s]: kept on the joint for the user and for file formats; they do not act.
        actuated: whether the joint's free coordinates appear in the input u.

    Limits, friction and armature act where the joint is built with them (friction and armature: not zero), and are None elsewhere. Their
    numbers may change later and be learned; whether they act, and which limits do, stays. The angle of a single rotation is counted from
    the middle of its limits, so that (2.5, 3.6) rad, say, can be limits; from a lower limit alone it reaches from π/2 below it to 3π/2
    above, from an upper one alone the other way around. Of two or three rotations, the components of the rotation vector, at most π long,
    are limited. Limits that can never be reached (a range of 2π or more; π for components of a rotation vector) do not act.

    Raises:
        ValueError: a zero axis, a quaternion that is not unit, a negative damper, friction or armature, limits without room between them,
            values that do not fit the number of free coordinates.
    """

    fields: ClassVar[dict[str, int]] = {
        "axis": 1,
        "parent_anchor": 1,
        "child_anchor": 1,
        "orientation_offset": 1,
        "spring": 1,
        "damper": 1,
        "rest": 1,
    }
    axis: Tensor
    parent_anchor: Tensor
    child_anchor: Tensor
    orientation_offset: Tensor
    spring: Tensor
    damper: Tensor
    rest: Tensor
    friction: Tensor | None
    armature: Tensor | None
    lower: Tensor | None
    upper: Tensor | None
    free_translations: int
    free_rotations: int

    def __init__(
        self,
        parent: str | None,
        child: str,
        *,
        axis: Any = (0.0, 0.0, 1.0),
        parent_anchor: Any = (0.0, 0.0, 0.0),
        child_anchor: Any = (0.0, 0.0, 0.0),
        orientation_offset: Any = (1.0, 0.0, 0.0, 0.0),
        spring: Any = 0.0,
        damper: Any = 0.0,
        rest: Any = 0.0,
        limits: tuple[Any, Any] | None = None,
        friction: Any = None,
        armature: Any = None,
        effort_limit: Any = None,
        velocity_limit: Any = None,
        actuated: bool = True,
    ) -> None:
        super().__init__(parent, child)
        self.axis = axis
        self.parent_anchor = parent_anchor
        self.child_anchor = child_anchor
        self.orientation_offset = orientation_offset
        self.spring = spring
        self.damper = damper
        self.rest = rest
        self.effort_limit = effort_limit
        self.velocity_limit = velocity_limit
        self.actuated = actuated
        optional = {"friction": friction, "armature": armature}
        present = [name for name, value in optional.items() if self.num_coordinates and _acts(value, self.label(name))]
        self.__dict__["fields"] = {**type(self).fields, **dict.fromkeys([*present, *(BOUNDS if limits is not None else ())], 1)}
        for name in (*optional, *BOUNDS):
            self.register_parameter(name, None)
        for name in present:
            setattr(self, name, optional[name])
        #: Free coordinates whose lower, and whose upper limit acts.
        self.limited: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
        if limits is not None:
            self._set_limits(limits, built=False)

    @property
    def num_coordinates(self) -> int:  # type: ignore[override]
        return self.free_translations + self.free_rotations

    @property
    def num_rows(self) -> int:  # type: ignore[override]
        return 6 - self.num_coordinates

    @property
    def num_inputs(self) -> int:  # type: ignore[override]
        return self.num_coordinates if self.actuated else 0

    @property
    def reads_incoming(self) -> bool:  # type: ignore[override]
        return "armature" in self.fields

    @property
    def stacked_fields(self) -> dict[str, int]:
        # Limits and friction are elements of their own.
        return {name: ndim for name, ndim in self.fields.items() if name not in ("friction", *BOUNDS)}

    def kind(self) -> tuple[object, ...]:
        return (*super().kind(), self.actuated, "armature" in self.fields)

    # -- parameters ----------------------------------------------------------------------------------------------------------------------

    def __setattr__(self, name: str, value: Any) -> None:
        if name in OPTIONAL and name not in self.fields:
            if value is not None and (name in BOUNDS or _acts(value, self.label(name))):
                keyword = "limits" if name in BOUNDS else name
                raise ValueError(f"{self.label(name)}: got {value!r} for a joint built without {keyword}; build it with {keyword}=")
            return
        if name in BOUNDS:
            new = self.check_field(name, as_tensor(value, self.label(name)))
            self._check_limited(*(new if bound == name else getattr(self, bound) for bound in BOUNDS))
        super().__setattr__(name, value)

    def check_field(self, name: str, value: Tensor) -> Tensor:
        size = {"axis": 3, "parent_anchor": 3, "child_anchor": 3, "orientation_offset": 4}.get(name, self.num_coordinates)
        if name in ("spring", "damper", "rest", *OPTIONAL) and value.ndim == 0:
            value = value.expand(size)
        if name in BOUNDS:
            open_side = -torch.inf if name == "lower" else torch.inf
            require(torch.isfinite(value) | (value == open_side), self.label(name), value, f"finite numbers, or {open_side} for no limit")
        else:
            value = super().check_field(name, value)
        if value.shape[-1] != size:
            per = (
                ""
                if name in ("axis", "parent_anchor", "child_anchor", "orientation_offset")
                else f", one per free coordinate of a {type(self).__name__}"
            )
            raise ValueError(f"{self.label(name)}: got shape {tuple(value.shape)}; allowed: (..., {size}){per}")
        if name == "axis":
            require(torch.linalg.vector_norm(value, dim=-1) > 0, self.label(name), value, "vectors of positive length")
        if name == "orientation_offset":
            norm = torch.linalg.vector_norm(value, dim=-1)
            require((norm - 1).abs() <= 1e-6, self.label(name), value, "unit quaternions wxyz (within 1e-6); divide by the norm")
            value = quat.normalize(value)
        if name in ("spring", "damper", "friction", "armature"):
            require(value >= 0, self.label(name), value, "values >= 0")
        return value

    @property
    def limits(self) -> tuple[Tensor, Tensor] | None:
        """(lower, upper), each (..., num_coordinates) [m, rad], or None. Assign a pair to change both at once."""
        return None if self.lower is None or self.upper is None else (self.lower, self.upper)

    @limits.setter
    def limits(self, pair: tuple[Any, Any] | None) -> None:
        if pair is None and self.lower is None:
            return
        if pair is None or self.lower is None:
            built = "without" if self.lower is None else "with"
            raise ValueError(f"{self.label('limits')}: got {pair!r} for a joint built {built} limits; that cannot change")
        self._set_limits(pair)

    def _set_limits(self, pair: tuple[Any, Any], built: bool = True) -> None:
        try:
            lower, upper = pair
        except (TypeError, ValueError) as error:
            raise ValueError(f"{self.label('limits')}: got {pair!r}; allowed: a pair (lower, upper)") from error
        given = dict(zip(BOUNDS, (lower, upper), strict=True))
        checked = {name: self.check_field(name, as_tensor(value, self.label(name))) for name, value in given.items()}
        if built:
            self._check_limited(*checked.values())
        else:
            self.limited = self._limited_sides(*checked.values())
        for name, value in given.items():
            if is_parametrized(self, name):
                super().__setattr__(name, value)
            else:
                self._store(name, value, checked[name])

    def _check_limited(self, lower: Tensor, upper: Tensor) -> None:
        if transforming():
            return  # values are not readable
        limited = self._limited_sides(lower, upper)
        if limited != self.limited:
            raise ValueError(
                f"{self.label('limits')}: got lower {lower.tolist()} and upper {upper.tolist()}, which act on the coordinates {limited} "
                f"(below, above); allowed: limits that act on those that the joint was built with limits for, {self.limited}"
            )

    def _limited_sides(self, lower: Tensor, upper: Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Coordinates whose lower, and whose upper limit can be reached."""
        lower, upper = torch.broadcast_tensors(lower.detach(), upper.detach())
        require(lower < upper, self.label("limits"), lower, f"lower limits below the upper ones, {upper.tolist()}; to hold it use td.Fixed")
        reached = [torch.isfinite(lower), torch.isfinite(upper)]
        turning = torch.arange(self.num_coordinates) >= self.free_translations
        if self.free_rotations == 1:
            reached = [side & ~(turning & reached[0] & reached[1] & (upper - lower >= 2 * torch.pi)) for side in reached]
        elif self.free_rotations:
            outside = turning & ((lower >= torch.pi) | (upper <= -torch.pi))
            require(
                ~outside, self.label("limits"), lower, f"ranges that a rotation vector of at most π can reach (upper: {upper.tolist()})"
            )
            reached = [reached[0] & ~(turning & (lower <= -torch.pi)), reached[1] & ~(turning & (upper >= torch.pi))]
        for side in reached:
            some, every = (getattr(side.reshape(-1, self.num_coordinates), which)(0) for which in ("any", "all"))
            require(some == every, self.label("limits"), lower, f"a limit in all environments, or in none (upper: {upper.tolist()})")
        below, above = (side.reshape(-1, self.num_coordinates)[0].nonzero().flatten().tolist() for side in reached)
        return tuple(below), tuple(above)

    # -- the directions ------------------------------------------------------------------------------------------------------------------

    def _rows(self, free: int) -> tuple[Tensor | None, Tensor | None]:
        """Free rows (..., free, 3) and constrained rows (..., 3 − free, 3) in the joint frame; None stands for all three axes."""
        if free == 0:
            return torch.zeros(0, 3, dtype=self.axis.dtype, device=self.axis.device), None
        if free == 3:
            return None, torch.zeros(0, 3, dtype=self.axis.dtype, device=self.axis.device)
        axis = unit(self.axis)
        along, across = axis[..., None, :], orthonormal_complement(axis)
        return (along, across) if free == 1 else (across, along)

    @property
    def _offset(self) -> Tensor:
        """`orientation_offset` as a rotation, also where an optimizer moved it off the unit sphere; its gradients are tangent."""
        return quat.normalize(self.orientation_offset)

    @property
    def free_translational_axes(self) -> Tensor:
        """Directions of the free translations in the PARENT frame, (..., free_translations, 3)."""
        free, _ = self._rows(self.free_translations)
        rows = torch.eye(3, dtype=self.axis.dtype, device=self.axis.device) if free is None else free
        return quat.rotate(self._offset[..., None, :], rows)

    @property
    def free_rotational_axes(self) -> Tensor:
        """Axes of the free rotations in the joint frame, (..., free_rotations, 3)."""
        free, _ = self._rows(self.free_rotations)
        return torch.eye(3, dtype=self.axis.dtype, device=self.axis.device) if free is None else free

    # -- kinematics ----------------------------------------------------------------------------------------------------------------------

    def displacement(self, parent: Pose, child: Pose) -> tuple[Tensor, Tensor]:
        """(d (..., 3), p (..., 4)): displacement of the child anchor and relative orientation, in the joint frame."""
        frame = quat.multiply(parent.q, self._offset)
        d = quat.inverse_rotate(frame, child.point(self.child_anchor) - parent.point(self.parent_anchor))
        return d, quat.multiply(quat.conjugate(frame), child.q)

    def constraint(self, parent: Pose, child: Pose) -> Tensor:
        """Rows C_T d and C_R vec(p), (..., num_rows) [m, half-angle]."""
        d, p = self.displacement(parent, child)
        _, translational = self._rows(self.free_translations)
        _, rotational = self._rows(self.free_rotations)
        return torch.cat((_project(translational, d), _project(rotational, p[..., 1:])), dim=-1)

    def coordinates(self, parent: Pose, child: Pose) -> Tensor:
        """Free coordinates, translations [m] then rotations [rad] (components of the rotation vector), (..., num_coordinates)."""
        d, p = self.displacement(parent, child)
        translational, _ = self._rows(self.free_translations)
        rotational, _ = self._rows(self.free_rotations)
        return torch.cat((_project(translational, d), _project(rotational, quat.rotation_vector(p))), dim=-1)

    def rate(self, before: Sequence[Pose], after: Sequence[Pose], timestep: Tensor) -> Tensor:
        """Mean rates of the free coordinates between two configurations of (parent, child) one step apart [m/s, rad/s], (..., n).

        (F_T (d⁺ − d)/h, F_R (rotation vector of p⁺ p⁻¹)/h): directions of the joint frame, fixed to the parent.
        """
        (d, p), (d_after, p_after) = self.displacement(*before), self.displacement(*after)
        free_t, free_r = self._rows(self.free_translations)[0], self._rows(self.free_rotations)[0]
        turn = quat.rotation_vector(quat.multiply(p_after, quat.conjugate(p)))
        return torch.cat((_project(free_t, d_after - d), _project(free_r, turn)), dim=-1) / timestep

    # -- dynamics ------------------------------------------------------------------------------------------------------------------------

    def residual(
        self, motions: tuple[Motion, ...], impulse: Tensor, slack: Tensor, u: Tensor, timestep: Tensor
    ) -> tuple[list[tuple[Tensor, Tensor]], Tensor]:
        parent, child = motions
        free_t, held_t = self._rows(self.free_translations)
        free_r, held_r = self._rows(self.free_rotations)
        rows_t = 3 - self.free_translations
        _, p, _, _ = place = self._place(parent.pose, child.pose)

        # Impulses in the joint frame. The Jacobian of vec(p) with respect to a rotation of the parent side is ½ (w I + [v]×)ᵀ.
        force = _expand(held_t, impulse[..., :rows_t])
        multiplier = _expand(held_r, impulse[..., rows_t:])
        torque = 0.5 * (p[..., :1] * multiplier + quat.cross(p[..., 1:], multiplier))
        if self.num_coordinates:
            free = timestep * self._free_force(motions, free_t, free_r, timestep)
            if self.num_inputs:
                free = free + timestep * u
            if self.armature is not None:
                free = free - self.armature * self._rate_change(motions, timestep)
            force = force + _expand(free_t, free[..., : self.free_translations])
            torque = torque + _expand(free_r, free[..., self.free_translations :])
        return self.act(parent.pose, child.pose, force, torque, place), self.constraint(parent.next, child.next)

    def act(
        self, parent: Pose, child: Pose, force: Tensor, torque: Tensor, place: tuple[Tensor, Tensor, Tensor, Tensor] | None = None
    ) -> list[tuple[Tensor, Tensor]]:
        """What a force at the child anchor and a torque (..., 3), joint frame, do to parent (the opposite) and child.

        Per body (linear (..., 3) world frame, angular (..., 3) body frame); forces and torques, or impulses. `place`: that of `_place`.
        """
        frame, _, parent_lever, child_lever = place or self._place(parent, child)
        force, torque = quat.rotate(frame, force), quat.rotate(frame, torque)
        on_parent = (-force, -quat.inverse_rotate(parent.q, torque + quat.cross(parent_lever, force)))
        return [on_parent, (force, quat.inverse_rotate(child.q, torque + quat.cross(child_lever, force)))]

    def _place(self, parent: Pose, child: Pose) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Orientation of the joint frame, p, and the way to the child anchor from parent and child, world frame [m]."""
        frame = quat.multiply(parent.q, self._offset)
        p = quat.multiply(quat.conjugate(frame), child.q)
        child_lever = quat.rotate(child.q, self.child_anchor)
        return frame, p, child.x + child_lever - parent.x, child_lever

    def _rate_change(self, motions: tuple[Motion, ...], timestep: Tensor) -> Tensor:
        """Rates of this step less those of the step before, (..., num_coordinates)."""
        now, after = [m.pose for m in motions], [m.next for m in motions]
        before = [previous_pose(m.pose, m.incoming, timestep) for m in motions]
        return self.rate(now, after, timestep) - self.rate(before, now, timestep)

    def _free_force(self, motions: tuple[Motion, ...], free_t: Tensor | None, free_r: Tensor | None, timestep: Tensor) -> Tensor:
        """Spring (at the current coordinate) and damper (at the next velocity) on the free coordinates [N, N·m]."""
        parent, child = motions
        before = [previous_pose(m.pose, m.twist, timestep) for m in motions]
        (d, p), (d_before, p_before) = self.displacement(parent.pose, child.pose), self.displacement(*before)
        turn = quat.rotation_vector(quat.multiply(quat.conjugate(p_before), p))
        rate = torch.cat((_project(free_t, d - d_before), _project(free_r, turn)), dim=-1) / timestep
        return self.spring * (self.rest - self.coordinates(parent.pose, child.pose)) - self.damper * rate

    def armature_energy(self, rate: Tensor) -> Tensor:
        """½ a rate², summed over the free coordinates [J], (...)."""
        return rate.new_zeros(rate.shape[:-1]) if self.armature is None else 0.5 * (self.armature * rate**2).sum(-1)

    def spring_energy(self, parent: Pose, child: Pose) -> Tensor:
        """½ k (rest − coordinate)², summed over the free coordinates [J], (...)."""
        return 0.5 * (self.spring * (self.rest - self.coordinates(parent, child)) ** 2).sum(-1)


def previous_pose(pose: Pose, twist: Twist, timestep: Tensor) -> Pose:
    """The pose from which one step at this twist leads to `pose`."""
    return Pose(pose.x - timestep * twist.v, quat.multiply(pose.q, quat.conjugate(quat.increment(twist.omega, timestep))))


def _acts(value: Any, label: str) -> bool:
    """Whether a friction or an armature does anything, now or after training."""
    if value is None:
        return False
    tensor = as_tensor(value, label)
    return tensor.requires_grad or bool(tensor.any())


def _project(rows: Tensor | None, vector: Tensor) -> Tensor:
    """rows · vector, (..., n)."""
    return vector if rows is None else (rows * vector[..., None, :]).sum(-1)


def _expand(rows: Tensor | None, weights: Tensor) -> Tensor:
    """rowsᵀ weights, (..., 3)."""
    return weights if rows is None else (rows * weights[..., None]).sum(-2)


#: name -> (free translations, free rotations). Where one is free it is along `axis`, where two are they are perpendicular to it.
JOINT_TYPES: dict[str, tuple[int, int]] = {
    "Fixed": (0, 0), "Prismatic": (1, 0), "Planar": (2, 0), "FixedOrientation": (3, 0),
    "Revolute": (0, 1), "Cylindrical": (1, 1), "PlanarAxis": (2, 1), "FreeRevolute": (3, 1),
    "Orbital": (0, 2), "PrismaticOrbital": (1, 2), "PlanarOrbital": (2, 2), "FreeOrbital": (3, 2),
    "Spherical": (0, 3), "CylindricalFree": (1, 3), "PlanarFree": (2, 3), "Floating": (3, 3),
}  # fmt: skip


def _joint_type(name: str) -> type[StandardJoint]:
    translations, rotations = JOINT_TYPES[name]
    text = f"{translations} free translation(s) and {rotations} free rotation(s); see `StandardJoint` for the arguments."
    namespace = {"__doc__": text, "__module__": __name__, "free_translations": translations, "free_rotations": rotations}
    return type(name, (StandardJoint,), namespace)


Fixed = _joint_type("Fixed")
Prismatic = _joint_type("Prismatic")
Planar = _joint_type("Planar")
FixedOrientation = _joint_type("FixedOrientation")
Revolute = _joint_type("Revolute")
Cylindrical = _joint_type("Cylindrical")
PlanarAxis = _joint_type("PlanarAxis")
FreeRevolute = _joint_type("FreeRevolute")
Orbital = _joint_type("Orbital")
PrismaticOrbital = _joint_type("PrismaticOrbital")
PlanarOrbital = _joint_type("PlanarOrbital")
FreeOrbital = _joint_type("FreeOrbital")
Spherical = _joint_type("Spherical")
CylindricalFree = _joint_type("CylindricalFree")
PlanarFree = _joint_type("PlanarFree")
Floating = _joint_type("Floating")
