"""The sixteen standard joints, from one table.

A joint frame is fixed to the parent: at `parent_anchor`, turned by `orientation_offset` against the parent body. `axis`, coordinates,
inputs and springs are expressed in it. With the parent a and the child b, the displacement of the child anchor and the relative
orientation are

    d = R_offᵀ R_aᵀ (x_b + R_b p_b − x_a − R_a p_a)          p = q_off⁻¹ q_a⁻¹ q_b

Free translations and rotations are rows F of (d, rotation vector of p). Impulses at the current configuration hold the complementary rows
C of (d, vec p) at zero at the next configuration. See dynamics/README.md, and Howell et al. 2025.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from torchdojo import quaternion as quat
from torchdojo.elements.changes import changes_of_child
from torchdojo.elements.curves import CURVES
from torchdojo.elements.element import Motion, Pose, along_rows, on_rows, orthonormal_complement, previous_pose, unit
from torchdojo.elements.joint import BOUNDS, TURN, Joint
from torchdojo.elements.kept_rows import SWITCH, LoopJoint
from torchdojo.elements.servo import SERVO, SERVO_RANGE
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


class StandardJoint(LoopJoint):
    """A joint of the table `JOINT_TYPES`, with springs, dampers and inputs on its free coordinates.

    The angle of a single rotation is 2 atan2(axis · vec p, scalar p) in (−2π, 2π]. The signs of the quaternions in z count, so the angle is
    continuous as a body turns, to ±2π, where it jumps by 4π. The quaternion −q of a body is the same orientation, and 2π away
    (`Mechanism.unwind`). Two or three rotations have a rotation vector of the shorter turn, at most π long. A vector to 2π would have no
    derivative after a full turn, where most bodies that turn come to rest.

    Args:
        parent, child: body names; the parent may be None or "world".
        axis: the free direction where one is free, the normal where two are; in the joint frame, (..., 3), of any length.
        parent_anchor, child_anchor: joint point in the parent's and the child's frame, from the center of mass [m], (..., 3).
        orientation_offset: orientation of the child relative to the parent at coordinate zero, wxyz, (..., 4).
        spring: stiffness [N/m, N·m/rad]; damper [N·s/m, N·m·s/rad]; rest: coordinate at which the spring is relaxed [m, rad]. Scalars, or
            (..., n) with one value per free coordinate, translations first. The damper is implicit.
        implicit: whether the spring is implicit, too: spring (rest − c − h ċ⁺) in place of spring (rest − c). elements/README.md compares.
        spring_curve: (k₂, k₃) of further forces −k₂ x² − k₃ x³, x = c − rest [N/m², N/m³, for angles N·m/rad², N·m/rad³]. damper_curve:
            (d₂, d₃) of −ċ⁺ |ċ⁺| (d₂ + d₃ |ċ⁺|) [N·s²/m², ...]. (2,), or (..., n, 2). Not for several free rotations (`curves.py`).
        limits: (lower, upper) of the free coordinates [m, rad]; infinite: none. They hold at every next configuration. A
            joint that starts outside comes back at `SolverOptions.depenetration_speed`, at most at half of `velocity_limits`.
        cone: largest angle of the whole rotation [rad], (...,), of joints with three free rotations (`ball_cones.py`).
        friction: Coulomb friction [N, N·m]: the largest force or torque with which a coordinate resists motion (`JointFriction`).
        armature: inertia [kg, kg·m²] that moves with the coordinate's rate, of a motor seen through its gear: energy ½ a rate².
        servo_stiffness, servo_damping: kp and kd [N/m, N·m/rad], [N·s/m, N·m·s/rad] of a servo whose u = kp (target − c) + feedforward. The
            joint adds −(kd + h kp) ċ⁺, which makes the servo implicit. `td.actuate` sets them.
        servo_range: (lower, upper) of the servo's total force [N, N·m] (`JointDrive`); infinite: none. It acts where there is a servo.
        velocity_limits: largest speeds of the free coordinates [m/s, rad/s]; infinite: none (`JointVelocityLimits`).
        effort_limit: [N, N·m], kept on the joint for the user and for file formats; it does not act.
        actuated: whether the joint's free coordinates appear in the input u. They do by default.
        active: for a joint that closes a loop: 1, or 0 where it is switched off, (...,); None: it always holds. Assign numbers to switch
            it, for each environment.

    A joint that closes a loop leaves out rows that repeat what the loop's other joints hold (state/redundancy.py). Its impulses along them
    are zero. The mechanism finds them when it is built: build it anew after turning the axes of a loop.

    All limits, friction, armature and servo act where the joint is built with them (all but limits: not zero), and are None elsewhere.
    Their numbers may change later and be learned; whether they act, and which limits do, stays. Limits of a single rotation lie within ±2π.
    Limits of two or three rotations act on the components of the rotation vector. There, limits of π or more can never be reached, and do
    not act.

    Raises:
        ValueError: a zero axis, a quaternion that is not unit, a negative damper, friction or armature, limits without room between them,
            limits of an angle beyond ±2π, values that do not fit the number of free coordinates.
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
    optional: ClassVar[dict[str, int]] = {"friction": 1, "armature": 1, "velocity_limits": 1, **LoopJoint.optional}
    axis: Tensor
    parent_anchor: Tensor
    child_anchor: Tensor
    orientation_offset: Tensor
    spring: Tensor
    damper: Tensor
    rest: Tensor
    friction: Tensor | None
    armature: Tensor | None
    velocity_limits: Tensor | None
    velocity_limited: tuple[int, ...] = ()  #: coordinates whose speed is limited
    free_translations: int
    free_rotations: int
    period: ClassVar[float] = 2 * TURN

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
        cone: Any = None,
        friction: Any = None,
        armature: Any = None,
        implicit: bool = False,
        spring_curve: Any = None,
        damper_curve: Any = None,
        servo_stiffness: Any = None,
        servo_damping: Any = None,
        servo_range: tuple[Any, Any] | None = None,
        effort_limit: Any = None,
        velocity_limits: Any = None,
        actuated: bool = True,
        active: Any = None,
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
        self.actuated = actuated
        self.implicit = bool(implicit)
        limits = self.with_cone(limits, cone)
        optional = {"friction": friction, "armature": armature, "velocity_limits": velocity_limits}
        optional |= {"spring_curve": spring_curve, "damper_curve": damper_curve}
        present = [name for name, value in optional.items() if self.num_coordinates and self.has_effect(name, value)]
        added = (*present, *(() if limits is None else BOUNDS), *(() if active is None else (SWITCH,)))
        self.set_fields({**type(self).fields, **{name: self.optional[name] for name in added}})
        for name in present:
            setattr(self, name, optional[name])
        self.active = active
        if limits is not None:
            self._set_limits(limits, built=False)
        if servo_stiffness is not None or servo_damping is not None or servo_range is not None:
            self.add_servo(servo_stiffness, servo_damping, servo_range)

    @property
    def num_coordinates(self) -> int:  # type: ignore[override]
        return self.free_translations + self.free_rotations

    @property
    def carries_child(self) -> bool:
        return True

    @property
    def num_angles(self) -> int:
        """The angle of a single rotation counts modulo 4π; several rotations are the components of a rotation vector."""
        return 1 if self.free_rotations == 1 else 0

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
        return {name: ndim for name, ndim in self.fields.items() if name not in ("friction", "velocity_limits", *BOUNDS, *SERVO_RANGE)}

    def kind(self) -> tuple[object, ...]:
        present = (name in self.fields for name in ("armature", *CURVES, SERVO[0], SWITCH))
        details = self.actuated, *present, self.implicit, self.coned, self.driven, self.kept_rows
        return (*super().kind(), *details)

    # -- parameters ----------------------------------------------------------------------------------------------------------------------

    def has_effect(self, name: str, value: Any) -> bool:
        """Whether a limit is given, or a finite speed, or a friction, an armature or a servo that is not zero, or may be learned."""
        if value is None or name in (*BOUNDS, *SERVO_RANGE):
            return value is not None
        tensor = as_tensor(value, self.label(name))
        nothing = {"velocity_limits": torch.inf, SWITCH: 1.0}.get(name, 0.0)
        return tensor.requires_grad or bool((tensor != nothing).any())

    def check_field(self, name: str, value: Tensor) -> Tensor:
        if name in (*BOUNDS, SWITCH, *CURVES):
            return super().check_field(name, value)
        size = {"axis": 3, "parent_anchor": 3, "child_anchor": 3, "orientation_offset": 4}.get(name, self.num_coordinates)
        per_coordinate = name in ("spring", "damper", "rest", "friction", "armature", "velocity_limits", *SERVO, *SERVO_RANGE)
        value = value.expand(size) if per_coordinate and value.ndim == 0 else value
        if name in SERVO_RANGE:
            require(~torch.isnan(value), self.label(name), value, "numbers, infinite for no limit")
        elif name == "velocity_limits":
            require(value > 0, self.label(name), value, "speeds above 0, infinite for none")
        else:
            value = super().check_field(name, value)
        if value.shape[-1] != size:
            per = f", one per free coordinate of a {type(self).__name__}" if per_coordinate else ""
            raise ValueError(f"{self.label(name)}: got shape {tuple(value.shape)}; allowed: (..., {size}){per}")
        if name == "axis":
            require(torch.linalg.vector_norm(value, dim=-1) > 0, self.label(name), value, "vectors of positive length")
        if name == "orientation_offset":
            norm = torch.linalg.vector_norm(value, dim=-1)
            require((norm - 1).abs() <= 1e-6, self.label(name), value, "unit quaternions wxyz (within 1e-6); divide by the norm")
            value = quat.normalize(value)
        if name in ("spring", "damper", "friction", "armature", *SERVO):
            require(value >= 0, self.label(name), value, "values >= 0")
        if name == "velocity_limits" and not transforming():
            self._check_velocity_limited(torch.isfinite(value.detach()).reshape(-1, size))
        return value

    def _check_velocity_limited(self, finite: Tensor) -> None:
        """Raise unless the coordinates with a finite speed (n, num_coordinates) are those that the joint was built with."""
        limited = tuple(finite.any(0).nonzero().flatten().tolist())
        allowed = limited if not self.velocity_limited else self.velocity_limited
        if limited != allowed or bool((finite.any(0) != finite.all(0)).any()):
            raise ValueError(
                f"{self.label('velocity_limits')}: got finite numbers for the coordinates {limited}; allowed: for the same ones in all "
                f"environments and at all times, {allowed} here"
            )
        self.velocity_limited = limited

    # -- the directions ------------------------------------------------------------------------------------------------------------------

    def directions(self, free: int) -> tuple[Tensor | None, Tensor | None]:
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
        free, _ = self.directions(self.free_translations)
        rows = torch.eye(3, dtype=self.axis.dtype, device=self.axis.device) if free is None else free
        return quat.rotate(self._offset[..., None, :], rows)

    @property
    def free_rotational_axes(self) -> Tensor:
        """Axes of the free rotations in the joint frame, (..., free_rotations, 3)."""
        free, _ = self.directions(self.free_rotations)
        return torch.eye(3, dtype=self.axis.dtype, device=self.axis.device) if free is None else free

    # -- kinematics ----------------------------------------------------------------------------------------------------------------------

    def displacement(self, parent: Pose, child: Pose) -> tuple[Tensor, Tensor]:
        """(d (..., 3), p (..., 4)): displacement of the child anchor and relative orientation, in the joint frame."""
        frame = quat.multiply(parent.q, self._offset)
        d = quat.inverse_rotate(frame, child.point(self.child_anchor) - parent.point(self.parent_anchor))
        return d, quat.multiply(quat.conjugate(frame), child.q)

    def constraint(self, parent: Pose, child: Pose) -> Tensor:
        """Rows C_T d and C_R vec(p), (..., num_rows) [m, half-angle]."""
        return self._rows(parent, child, self.directions(self.free_translations)[1], self.directions(self.free_rotations)[1])

    def kept_constraint(self, parent: Pose, child: Pose) -> Tensor:
        return self._rows(parent, child, *self._held())

    def _rows(self, parent: Pose, child: Pose, translational: Tensor | None, rotational: Tensor | None) -> Tensor:
        d, p = self.displacement(parent, child)
        return torch.cat((on_rows(translational, d), on_rows(rotational, p[..., 1:])), dim=-1)

    def _held(self) -> tuple[Tensor | None, Tensor | None]:
        """Constrained rows of `directions`, translations and rotations, less those that do not act (`LoopJoint`)."""
        return self.kept((self.directions(self.free_translations)[1], self.directions(self.free_rotations)[1]))

    def coordinates(self, parent: Pose, child: Pose) -> Tensor:
        """Free coordinates (..., num_coordinates): translations [m], then the angle [rad] or components of the rotation vector."""
        d, p = self.displacement(parent, child)
        if self.free_rotations != 1:
            return self._along_free(d, quat.rotation_vector(p))
        translational, rotational = self.directions(self.free_translations)[0], self.directions(self.free_rotations)[0]
        turn = 2 * torch.atan2(on_rows(rotational, p[..., 1:]), p[..., :1])
        return torch.cat((on_rows(translational, d), turn), dim=-1)

    def rate(self, before: Sequence[Pose], after: Sequence[Pose], timestep: Tensor) -> Tensor:
        """Mean rates of the free coordinates between two configurations of (parent, child) one step apart [m/s, rad/s], (..., n).

        (F_T (d⁺ − d)/h, F_R (rotation vector of the turn)/h). The turn p⁺ p⁻¹ has the axes of the joint frame, fixed to the parent, as
        inputs and all other efforts of the joint do. So an effort times its rate is power.
        """
        (d, p), (d_after, p_after) = self.displacement(*before), self.displacement(*after)
        return self._along_free(d_after - d, quat.rotation_vector(quat.multiply(p_after, quat.conjugate(p)))) / timestep

    def velocity(self, parent: Motion, child: Motion) -> Tensor:
        """Velocities along the free directions at the current configuration and the velocities of the step [m/s, rad/s], (..., n).

        This is the transpose of `act`: efforts times these velocities are their power on both bodies, exactly. About axes that turn, and
        along axes of a parent that turns, `rate` differs from it by terms of the order of h.
        """
        frame, _, parent_lever, child_lever = self._place(parent.pose, child.pose)
        spin_a, spin_b = (quat.rotate(motion.pose.q, motion.twist.omega) for motion in (parent, child))
        v = child.twist.v + quat.cross(spin_b, child_lever) - parent.twist.v - quat.cross(spin_a, parent_lever)
        return self._along_free(quat.inverse_rotate(frame, v), quat.inverse_rotate(frame, spin_b - spin_a))

    def _along_free(self, translation: Tensor, rotation: Tensor) -> Tensor:
        """Components (..., num_coordinates) of vectors (..., 3) of the joint frame along the free directions."""
        free_t, free_r = self.directions(self.free_translations)[0], self.directions(self.free_rotations)[0]
        return torch.cat((on_rows(free_t, translation), on_rows(free_r, rotation)), dim=-1)

    def expanded(self, along: Tensor) -> tuple[Tensor, Tensor]:
        """Force and torque (..., 3), joint frame, of forces on the free coordinates (..., num_coordinates), such as inputs."""
        free_t, free_r = self.directions(self.free_translations)[0], self.directions(self.free_rotations)[0]
        return along_rows(free_t, along[..., : self.free_translations]), along_rows(free_r, along[..., self.free_translations :])

    def act_along(self, parent: Pose, child: Pose, along: Tensor) -> list[tuple[Tensor, Tensor]]:
        """The transposed Jacobian of the coordinates at these poses times `along`."""
        force, torque = self.expanded(along)
        return self.act(parent, child, force, self._pulled(self.displacement(parent, child)[1], torque))

    def _pulled(self, p: Tensor, torque: Tensor) -> Tensor:
        """The torque (..., 3) of efforts Fᵀ`torque` along the rotational coordinates, joint frame."""
        return torque if self.free_rotations < 2 else quat.pulled_back(quat.rotation_vector(p), torque)

    def place_child(self, parents: tuple[Pose, Pose], q: Tensor, change: Tensor) -> tuple[Pose, Pose]:
        axes_t, axes_r, split = self.free_translational_axes, self.free_rotational_axes, self.free_translations
        p = quat.exp((axes_r * q[..., split:, None]).sum(-2))
        p_before = quat.multiply(quat.conjugate(quat.exp(self._assembled_turn(p, change[..., split:]))), p)
        shift = (axes_t * q[..., :split, None]).sum(-2)
        shift_before = (axes_t * (q[..., :split] - change[..., :split])[..., None]).sum(-2)
        return self._attached(parents[0], p, shift), self._attached(parents[1], p_before, shift_before)

    def _assembled_turn(self, p: Tensor, free: Tensor) -> Tensor:
        """Rotation vector w with F w = free such that exp(−w) ⊗ p still satisfies the joint: C (p₀ w + w × p⃗) = 0, since C p⃗ = 0."""
        across = self.free_rotational_axes
        turn = (across * free[..., None]).sum(-2)
        if self.free_rotations != 2:
            return turn
        axis = quat.cross(across[..., 0, :], across[..., 1, :])
        held = (axis * quat.cross(p[..., 1:], turn)).sum(-1, keepdim=True) / p[..., :1]
        return turn + held * axis

    def _attached(self, parent: Pose, p: Tensor, shift: Tensor) -> Pose:
        """Pose of the child from the relative orientation p and the shift of its anchor in the parent frame."""
        orientation = quat.multiply(quat.multiply(parent.q, self.orientation_offset), p)
        anchor = parent.x + quat.rotate(parent.q, self.parent_anchor + shift)
        return Pose(anchor - quat.rotate(orientation, self.child_anchor), orientation)

    # -- dynamics ------------------------------------------------------------------------------------------------------------------------

    def residual(
        self, motions: tuple[Motion, ...], impulse: Tensor, slack: Tensor, u: Tensor, timestep: Tensor
    ) -> tuple[list[tuple[Tensor, Tensor]], Tensor]:
        parent, child = motions
        free_t, free_r = self.directions(self.free_translations)[0], self.directions(self.free_rotations)[0]
        held_t, held_r = self._held()
        rows_t = 3 - self.free_translations
        _, p, _, _ = place = self._place(parent.pose, child.pose)

        # Impulses in the joint frame. The Jacobian of vec(p) with respect to a rotation of the parent side is ½ (w I + [v]×)ᵀ.
        force = along_rows(held_t, impulse[..., :rows_t])
        multiplier = along_rows(held_r, impulse[..., rows_t:])
        torque = 0.5 * (p[..., :1] * multiplier + quat.cross(p[..., 1:], multiplier))
        if self.num_coordinates:
            inputs = None
            if self.num_inputs:
                inputs = u * self.without_range(u) if self.driven else u  # `JointDrive` has the others
            coordinates = self.coordinates(parent.pose, child.pose)
            spring = self.spring * (self.rest - coordinates)
            acting = spring if inputs is None else spring + inputs
            free = self.resistance(coordinates, self.damper_rate(motions, timestep), acting, timestep)
            if inputs is not None:
                free = free + inputs
            free = timestep * free
            if self.armature is not None:
                free = free - self.armature * self._rate_change(motions, timestep)
            pull, turn = self.expanded(timestep * spring)
            force = force + pull + along_rows(free_t, free[..., : self.free_translations])
            torque = torque + self._pulled(p, turn) + along_rows(free_r, free[..., self.free_translations :])
        rows = self._rows(parent.next, child.next, held_t, held_r)
        if self.leaves_out:
            rows = rows + timestep * self.left_out(impulse)
        return self.act(parent.pose, child.pose, force, torque, place), rows

    def act(
        self, parent: Pose, child: Pose, force: Tensor, torque: Tensor, place: tuple[Tensor, Tensor, Tensor, Tensor] | None = None
    ) -> list[tuple[Tensor, Tensor]]:
        """Effect of a force at the child anchor and a torque (..., 3), joint frame, on parent (the opposite) and child.

        Per body (linear (..., 3) world frame, angular (..., 3) body frame); forces and torques, or impulses. `place`: from `_place`.
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
        """Rates of this step minus the rates of the step before, (..., num_coordinates)."""
        current, after = [m.pose for m in motions], [m.next for m in motions]
        before = [previous_pose(m.pose, m.incoming, timestep) for m in motions]
        return self.rate(current, after, timestep) - self.rate(before, current, timestep)

    def damper_rate(self, motions: tuple[Motion, ...], timestep: Tensor) -> Tensor:
        """Rates of the dampers at the next velocity [m/s, rad/s], (..., num_coordinates).

        Joints with two or three free rotations take `velocity`: times the impulse, it is the work on both bodies. Others take the mean
        rate of their coordinates over a step that leads here at these velocities, as the original engine does.
        """
        parent, child = motions
        return self.velocity(parent, child) if self.free_rotations > 1 else self._rate_of_child(motions, timestep)

    def _rate_of_child(self, motions: tuple[Motion, ...], timestep: Tensor) -> Tensor:
        """`rate` over the step that leads here at the next velocities, about the axes of the child.

        About one axis both bodies have the same. The derivatives across this axis are those of the original.
        """
        change, turn = changes_of_child(motions, self.child_anchor, timestep)
        return self._along_free(quat.inverse_rotate(self._offset, change), quat.rotation_vector(turn)) / timestep


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
