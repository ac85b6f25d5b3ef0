"""The sixteen joints, from one table, and the base class for joints written by users.

A joint frame is fixed to the parent: at `parent_anchor`, turned by `orientation_offset` against the parent body. `axis`, coordinates,
inputs and springs are expressed in it. With the parent a and the child b, the displacement of the child anchor and the relative
orientation are

    d = R_offᵀ R_aᵀ (x_b + R_b p_b − x_a − R_a p_a)          p = q_off⁻¹ q_a⁻¹ q_b

Free translations and rotations are rows F of these (d, rotation vector of p); the complementary rows C of (d, vec p) are held at zero at
the next configuration, by impulses that act at the current one (design section 4; Howell et al. 2025, section III).
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from torchdojo import quaternion as quat
from torchdojo.elements import Element, Motion, Pose, Twist, orthonormal_complement, unit
from torchdojo.parameters import as_tensor, require

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
        limits: (lower, upper) of the free coordinates [m, rad]; friction: Coulomb friction [N, N·m]; armature: reflected inertia
            [kg, kg·m²]; effort_limit [N, N·m] and velocity_limit [m/s, rad/s]. Kept on the joint for the user and for file formats;
            the step does not act on them yet, and the mechanism warns of those that are set.
        actuated: whether the joint's free coordinates appear in the input u.

    Raises:
        ValueError: a zero axis, a quaternion that is not unit, a negative damper, values that do not fit the number of free coordinates.
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
        friction: Any = 0.0,
        armature: Any = 0.0,
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
        self.limits = limits
        self.friction = friction
        self.armature = armature
        self.effort_limit = effort_limit
        self.velocity_limit = velocity_limit
        self.actuated = actuated
        self._check_limits()

    @property
    def num_coordinates(self) -> int:  # type: ignore[override]
        return self.free_translations + self.free_rotations

    @property
    def num_rows(self) -> int:  # type: ignore[override]
        return 6 - self.num_coordinates

    @property
    def num_inputs(self) -> int:  # type: ignore[override]
        return self.num_coordinates if self.actuated else 0

    def kind(self) -> tuple[object, ...]:
        return (*super().kind(), self.actuated)

    def check_field(self, name: str, value: Tensor) -> Tensor:
        size = {"axis": 3, "parent_anchor": 3, "child_anchor": 3, "orientation_offset": 4}.get(name, self.num_coordinates)
        if name in ("spring", "damper", "rest") and value.ndim == 0:
            value = value.expand(size)
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
        if name in ("spring", "damper"):
            require(value >= 0, self.label(name), value, "values >= 0")
        return value

    def _check_limits(self) -> None:
        if self.limits is None:
            return
        lower, upper = (as_tensor(bound, self.label("limits")) for bound in self.limits)
        for bound in (lower, upper):
            if bound.ndim and bound.shape[-1] != self.num_coordinates:
                raise ValueError(
                    f"{self.label('limits')}: got shape {tuple(bound.shape)}; allowed: a scalar or one value per free coordinate, "
                    f"{self.num_coordinates} for a {type(self).__name__}"
                )
        require(lower <= upper, self.label("limits"), lower, f"lower limits not above the upper ones, {upper.tolist()}")
        self.limits = (lower, upper)

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

    # -- dynamics ------------------------------------------------------------------------------------------------------------------------

    def residual(
        self, motions: tuple[Motion, ...], impulse: Tensor, slack: Tensor, u: Tensor, timestep: Tensor
    ) -> tuple[list[tuple[Tensor, Tensor]], Tensor]:
        parent, child = motions
        free_t, held_t = self._rows(self.free_translations)
        free_r, held_r = self._rows(self.free_rotations)
        rows_t = 3 - self.free_translations

        frame = quat.multiply(parent.pose.q, self._offset)
        p = quat.multiply(quat.conjugate(frame), child.pose.q)
        child_lever = quat.rotate(child.pose.q, self.child_anchor)
        parent_lever = child.pose.x + child_lever - parent.pose.x

        # Impulses in the joint frame. The Jacobian of vec(p) with respect to a rotation of the parent side is ½ (w I + [v]×)ᵀ.
        force = _expand(held_t, impulse[..., :rows_t])
        multiplier = _expand(held_r, impulse[..., rows_t:])
        torque = 0.5 * (p[..., :1] * multiplier + quat.cross(p[..., 1:], multiplier))
        if self.num_coordinates:
            free = timestep * self._free_force(motions, free_t, free_r, timestep)
            if self.num_inputs:
                free = free + timestep * u
            force = force + _expand(free_t, free[..., : self.free_translations])
            torque = torque + _expand(free_r, free[..., self.free_translations :])

        force, torque = quat.rotate(frame, force), quat.rotate(frame, torque)
        on_parent = (-force, -quat.inverse_rotate(parent.pose.q, torque + quat.cross(parent_lever, force)))
        on_child = (force, quat.inverse_rotate(child.pose.q, torque + quat.cross(child_lever, force)))
        return [on_parent, on_child], self.constraint(parent.next, child.next)

    def _free_force(self, motions: tuple[Motion, ...], free_t: Tensor | None, free_r: Tensor | None, timestep: Tensor) -> Tensor:
        """Spring (at the current coordinate) and damper (at the next velocity) on the free coordinates [N, N·m]."""
        parent, child = motions
        before = [previous_pose(m.pose, m.twist, timestep) for m in motions]
        (d, p), (d_before, p_before) = self.displacement(parent.pose, child.pose), self.displacement(*before)
        turn = quat.rotation_vector(quat.multiply(quat.conjugate(p_before), p))
        rate = torch.cat((_project(free_t, d - d_before), _project(free_r, turn)), dim=-1) / timestep
        return self.spring * (self.rest - self.coordinates(parent.pose, child.pose)) - self.damper * rate

    def spring_energy(self, parent: Pose, child: Pose) -> Tensor:
        """½ k (rest − coordinate)², summed over the free coordinates [J], (...)."""
        return 0.5 * (self.spring * (self.rest - self.coordinates(parent, child)) ** 2).sum(-1)


def previous_pose(pose: Pose, twist: Twist, timestep: Tensor) -> Pose:
    """The pose from which one step at this twist leads to `pose`."""
    return Pose(pose.x - timestep * twist.v, quat.multiply(pose.q, quat.conjugate(quat.increment(twist.omega, timestep))))


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
