"""Limits and Coulomb friction on the free coordinates of joints: elements that the mechanism makes for the joints that have them.

Both act along the coordinates c of a joint and read its fields: limits of any joint with coordinates, friction of a `StandardJoint`. Their
impulses act at the current configuration: limits through the transposed Jacobian of c, friction as inputs do. With the coordinates c⁺ and
rates ċ⁺ of the step (dynamics/README.md):

    limit       c⁺ − lower − s = 0,  upper − c⁺ − s = 0,  γ s = κ                                        impulse γ, −γ
                (less what `JointLimits.room` leaves of a violation; ball_cones.py has limits of a whole rotation)
    friction    p + q − 2b = 0,  ċ⁺ − σ_p + σ_q = 0,  p σ_p = κ,  q σ_q = κ,  b = h friction             impulse λ = (p − q)/2

so that λ → −b sign(ċ⁺) where a coordinate moves as κ → 0, and |λ| < b where it sticks.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.parametrize import type_before_parametrizations

from torchdojo import quaternion as quat
from torchdojo.elements.element import Cones, Element, Motion, Pose
from torchdojo.elements.hard_maps import hard_normal, hard_pair
from torchdojo.elements.joint import BOUNDS, TURN, Joint
from torchdojo.elements.joints import StandardJoint
from torchdojo.elements.path_maps import LEAST_HEIGHT, Change, disc_gap, normal_on_path, weight_of
from torchdojo.elements.servo import SERVO, SERVO_RANGE
from torchdojo.parameters import bind

__all__ = ["JointElement", "JointFriction", "JointLimits", "coordinate_mass", "units"]

KINEMATIC_FIELDS = ("axis", "parent_anchor", "child_anchor", "orientation_offset")
READ_FIELDS = (*KINEMATIC_FIELDS, "damper", "armature", *SERVO)
RECOVERY_SHARE = 0.5  # share of the largest speed of a coordinate that its limits ask for at most, so that both kinds of limit leave room
ELEMENT_FIELDS = ("friction", "velocity_limits", *SERVO_RANGE, *BOUNDS)  # fields of elements that the mechanism makes for a joint


class JointElement(Element):
    """Base class: reads the parameters of a joint without owning them.

    The joint is no submodule, and its parameters appear once in the mechanism; the dictionaries that hold them are shared.
    """

    joint: Joint
    own_fields: tuple[str, ...] = ()
    read_fields: tuple[str, ...] = ()  # fields of other elements of the joint, which this one reads, too

    def __init__(self, joint: Joint) -> None:
        super().__init__()
        shared = {name: joint.__dict__[name] for name in ("_parameters", "_buffers", "_modules")}
        # Fields that a user's subclass adds to the fields of the standard joints may enter its kinematics.
        stiff = ("spring", "rest") if isinstance(joint, StandardJoint) and (joint.implicit or SERVO[0] in joint.fields) else ()
        read = [name for name in joint.fields if name in (*READ_FIELDS, *stiff) or name not in StandardJoint.fields]
        fields = {name: joint.fields[name] for name in read if name not in ELEMENT_FIELDS or name in (*self.own_fields, *self.read_fields)}
        self.__dict__.update(shared, joint=joint, fields=fields)

    def __getattr__(self, name: str) -> Any:
        joint = self.__dict__.get("joint")
        if joint is not None and name in self.__dict__["fields"] and name not in self._parameters and name not in self._buffers:
            return getattr(joint, name)  # parametrized
        return super().__getattr__(name)

    @property
    def body_names(self) -> tuple[str | None, ...]:
        return self.joint.body_names

    def kind(self) -> tuple[object, ...]:
        return (type(self), *self.joint.kind())

    def extra_state_names(self) -> list[str]:
        return self.joint.extra_state_names()

    def bound_joint(self) -> Any:
        """The joint with the parameters that this element has: its own, or those stacked over elements."""
        clone: Joint = bind(self.joint, {}, type_before_parametrizations(self.joint))
        clone.__dict__.update(_parameters=self._parameters, _buffers=self._buffers, _modules=self._modules)
        return clone


class JointLimits(JointElement):
    """Limits of a joint: one impulse γ >= 0 and one slack per side that acts, lower sides first, coordinates in order."""

    own_fields = BOUNDS
    read_fields = ("velocity_limits",)
    depenetration_speed: float | None = None  # the option of the step, in m/s and in rad/s

    def __getattr__(self, name: str) -> Any:
        value = super().__getattr__(name)
        if name not in BOUNDS and name != "velocity_limits":
            return value
        # Sides and speeds that do not act may be infinite, which no parameter of a step may be.
        places = self.velocity_limited if name == "velocity_limits" else self.joint.limited[BOUNDS.index(name)]
        acting = [k in places for k in range(self.joint.num_coordinates)]
        return torch.where(torch.tensor(acting, device=value.device), value, torch.zeros_like(value))

    @property
    def sides(self) -> tuple[list[int], list[float]]:
        """Coordinate of every side, and the sign of its impulse."""
        below, above = self.joint.limited
        return [*below, *above], [1.0] * len(below) + [-1.0] * len(above)

    @property
    def cones(self) -> Cones:  # type: ignore[override]
        return Cones(orthant=len(self.sides[0]))

    @property
    def coned(self) -> int | None:
        """Number of the side that limits the whole rotation (ball_cones.py); None: no side does."""
        own = getattr(self.joint, "coned", False) and self.joint.free_translations in self.joint.limited[1]
        return len(self.joint.limited[0]) + self.joint.limited[1].index(self.joint.free_translations) if own else None

    def kind(self) -> tuple[object, ...]:
        return (*super().kind(), self.joint.limited, self.velocity_limited)

    @property
    def velocity_limited(self) -> tuple[int, ...]:
        """Coordinates with a largest speed, which `StandardJoint` may have."""
        return getattr(self.joint, "velocity_limited", ())

    def residual(
        self, motions: tuple[Motion, ...], impulse: Tensor, slack: Tensor, u: Tensor, timestep: Tensor
    ) -> tuple[list[tuple[Tensor, Tensor]], Tensor]:
        joint = self.bound_joint()
        parent, child = motions
        places, signs = self.sides
        along = impulse.new_zeros(len(places), joint.num_coordinates)
        along[range(len(places)), places] = impulse.new_tensor(signs)
        pushed = impulse @ along
        if self.coned is not None:
            gamma = impulse[..., self.coned : self.coned + 1]
            own = torch.arange(joint.num_coordinates, device=gamma.device) == joint.free_translations
            pushed = torch.where(own, 0.0, pushed) - gamma * joint.along_cone(joint.coordinates(parent.pose, child.pose))
        return joint.act_along(parent.pose, child.pose, pushed), self.room(motions) - slack

    def room(self, motions: tuple[Motion, ...]) -> Tensor:
        """The quantity that the slack s >= 0 with γ s = κ equals on every side, (..., cones.size) [m, rad].

        With the room r = c − lower or upper − c now, and r⁺ at the end of the step, this is r⁺ − min(r + h v, 0): a violated limit is
        undone at the speed v = `SolverOptions.depenetration_speed`, read as m/s and as rad/s, or at RECOVERY_SHARE of the coordinate's
        `velocity_limits` where that is less. Where r >= −h v the term is zero, so no number changes where no limit is violated.
        """
        joint = self.bound_joint()
        parent, child = motions
        lower, upper = joint.lower, joint.upper
        assert lower is not None and upper is not None
        below, above = joint.limited
        current = joint.coordinates_near(parent.pose, child.pose, _middle(joint))
        after = joint.coordinates_near(parent.next, child.next, current[..., joint.num_coordinates - joint.num_angles :])

        def on_every_side(value: Tensor) -> Tensor:
            value = value if self.coned is None else joint.measured(value)
            return torch.cat((value[..., below] - lower[..., below], upper[..., above] - value[..., above]), dim=-1)

        room = on_every_side(after)
        if self.depenetration_speed is None:
            return room
        ahead = on_every_side(current) + parent.timestep * self._recovery_speed(room)
        return room - torch.where(ahead < 0, ahead, 0.0)

    def _recovery_speed(self, like: Tensor) -> Tensor:
        """Speed at which every side undoes a violation, broadcastable to (..., cones.size) [m/s, rad/s]."""
        places, _ = self.sides
        assert self.depenetration_speed is not None
        speed = like.new_full((len(places),), self.depenetration_speed)
        if not self.velocity_limited:
            return speed
        allowed = RECOVERY_SHARE * self.velocity_limits[..., places]
        slower = torch.tensor([place in self.velocity_limited for place in places], device=like.device) & (allowed < speed)
        return torch.where(slower, allowed, speed)

    def start(self, motions: tuple[Motion, ...], level: Tensor) -> tuple[Tensor, Tensor]:
        gap = torch.maximum(self.room(motions), level.sqrt()[..., None])
        return level[..., None] / gap, gap

    def effective_mass(self, poses: tuple[Pose, ...], mass: Tensor, inertia: Tensor, timestep: Tensor) -> Tensor:
        joint = self.bound_joint()
        wrenches = [joint.act_along(poses[0], poses[1], one) for one in units(joint, inertia)]
        masses = coordinate_mass(joint, mass, inertia, timestep, wrenches)[..., self.sides[0]]
        if self.coned is None:
            return masses
        turns = [joint.act(poses[0], poses[1], *joint.expanded(one)) for one in units(joint, inertia)]  # their mean, whatever the axis
        mean = coordinate_mass(joint, mass, inertia, timestep, turns)[..., joint.free_translations :].mean(-1, keepdim=True)
        own = torch.arange(masses.shape[-1], device=masses.device) == self.coned
        return torch.where(own, mean, masses)

    def on_path(
        self, impulse: Tensor, slack: Tensor, kappa: Tensor, mass: Tensor, timestep: Tensor, change: Change
    ) -> tuple[Tensor, Tensor]:
        kappa = kappa[..., None]
        gamma = normal_on_path(impulse, slack, kappa, mass, timestep[..., None], change)
        return gamma, kappa / gamma

    def at_limit(self, impulse: Tensor, slack: Tensor, mass: Tensor, timestep: Tensor, compliance: float) -> tuple[Tensor, Tensor]:
        return hard_normal(impulse, slack, mass, timestep[..., None], compliance)


class JointFriction(JointElement):
    """Coulomb friction on all free coordinates of a joint: impulses (p, q) >= 0, slacks (σ_p, σ_q), all p first.

    Three free rotations have friction about the axes of the child, as MuJoCo's balls do: its box of torques turns with the child. About
    one and two axes `StandardJoint.rate` gives the rates.
    """

    own_fields: tuple[str, ...] = ("friction",)
    joint: StandardJoint

    @property
    def cones(self) -> Cones:  # type: ignore[override]
        return Cones(orthant=2 * self.joint.num_coordinates)

    def bound_impulse(self, timestep: Tensor) -> Tensor:
        """b = h friction [N·s, N·m·s], (..., num_coordinates); a coordinate without friction needs an interior, too."""
        return (timestep * self.friction).clamp_min(LEAST_HEIGHT)

    def residual(
        self, motions: tuple[Motion, ...], impulse: Tensor, slack: Tensor, u: Tensor, timestep: Tensor
    ) -> tuple[list[tuple[Tensor, Tensor]], Tensor]:
        joint = self.bound_joint()
        parent, child = motions
        (p, q), (slack_p, slack_q) = impulse.tensor_split(2, -1), slack.tensor_split(2, -1)
        rate = self.rate(joint, motions)
        rows = torch.cat((p + q - 2 * self.bound_impulse(timestep), rate - slack_p + slack_q), dim=-1)
        force, torque = joint.expanded(0.5 * (p - q))
        if joint.free_rotations == 3:
            torque = quat.rotate(joint.displacement(parent.pose, child.pose)[1], torque)
        return joint.act(parent.pose, child.pose, force, torque), rows

    def rate(self, joint: StandardJoint, motions: tuple[Motion, ...]) -> Tensor:
        """Rates of the coordinates over the step, of three free rotations about the axes of the child, (..., num_coordinates)."""
        parent, child = motions
        rate = joint.rate((parent.pose, child.pose), (parent.next, child.next), parent.timestep)
        if joint.free_rotations < 3:
            return rate
        turn = quat.inverse_rotate(joint.displacement(parent.pose, child.pose)[1], rate[..., -3:])
        return torch.cat((rate[..., :-3], turn), dim=-1)

    def start(self, motions: tuple[Motion, ...], level: Tensor) -> tuple[Tensor, Tensor]:
        # p = b(1 + x), q = b(1 − x) with σ_p − σ_q = ċ⁺ and products of `level`: ċ⁺ b (1 − x²) = −2 level x.
        h = motions[0].timestep
        rate = self.rate(self.bound_joint(), motions)
        b, level = self.bound_impulse(h), level[..., None]
        y = b * rate.abs() / level
        root = torch.sqrt(1 + y * y)
        impulse = _pair(b, (1 + 1 / (root + y)) / (1 + root), rate <= 0)
        return impulse, level / impulse

    def effective_mass(self, poses: tuple[Pose, ...], mass: Tensor, inertia: Tensor, timestep: Tensor) -> Tensor:
        joint = self.bound_joint()
        wrenches = [joint.act(poses[0], poses[1], *joint.expanded(one)) for one in units(joint, inertia)]
        return coordinate_mass(joint, mass, inertia, timestep, wrenches)

    def on_path(
        self, impulse: Tensor, slack: Tensor, kappa: Tensor, mass: Tensor, timestep: Tensor, change: Change
    ) -> tuple[Tensor, Tensor]:
        # With λ = b x the slacks of the path are a rate of −2κx/(b(1 − x²)): t = λ − mass ċ⁺ gives x + ε x/(1 − x²) = t/b.
        (p, q), (slack_p, slack_q) = impulse.tensor_split(2, -1), slack.tensor_split(2, -1)
        b, kappa = self.bound_impulse(timestep[..., None]), kappa[..., None]
        (dp, dq), (dslack_p, dslack_q) = (part.tensor_split(2, -1) for part in change[:2])
        mass = weight_of(mass, (0.5 * (dp - dq))[..., None], (dslack_p - dslack_q)[..., None])
        t = 0.5 * (p - q) - mass * (slack_p - slack_q)
        impulse = _pair(b, disc_gap(t.abs() / b, 2 * kappa / b * mass / b), t >= 0)
        return impulse, kappa / impulse

    def at_limit(self, impulse: Tensor, slack: Tensor, mass: Tensor, timestep: Tensor, compliance: float) -> tuple[Tensor, Tensor]:
        return hard_pair(impulse, slack, torch.cat((mass, mass), dim=-1), compliance)


def _pair(b: Tensor, gap: Tensor, first: Tensor) -> Tensor:
    """(p, q) with p + q = 2b and the smaller one b·gap; the larger one is p where `first`."""
    return torch.cat((b * torch.where(first, 2 - gap, gap), b * torch.where(first, gap, 2 - gap)), dim=-1)


# -- coordinates ---------------------------------------------------------------------------------------------------------------------------


def _middle(joint: Joint) -> Tensor:
    """The angles from which the joint's angles are counted, (..., num_angles): a user's joint counts from the middle of the limits.

    With a lower limit alone, they reach from π/2 below it to 3π/2 above it. With an upper limit alone, it is the other way around.
    """
    assert joint.lower is not None and joint.upper is not None
    if joint.period > TURN:
        return joint.lower.new_zeros(joint.num_angles)
    places = list(range(joint.num_coordinates - joint.num_angles, joint.num_coordinates))
    lower, upper = joint.lower[..., places].detach(), joint.upper[..., places].detach()
    below, above = (torch.tensor([place in side for place in places], dtype=torch.bool, device=lower.device) for side in joint.limited)
    one_sided = torch.where(below, lower + 0.5 * torch.pi, torch.where(above, upper - 0.5 * torch.pi, 0.0))
    return torch.where(below & above, 0.5 * (lower + upper), one_sided)


def units(joint: Joint, like: Tensor) -> list[Tensor]:
    """A unit along each coordinate, (num_coordinates,)."""
    return list(torch.eye(joint.num_coordinates, dtype=like.dtype, device=like.device))


def coordinate_mass(
    joint: Joint, mass: Tensor, inertia: Tensor, timestep: Tensor, wrenches: list[list[tuple[Tensor, Tensor]]], driven: bool = True
) -> Tensor:
    """1/(J M⁻¹ Jᵀ) of each coordinate [kg, kg·m²], (..., num_coordinates), plus the armature and h times `StandardJoint.damping`.

    An impulse along the coordinate also has to overcome these two within a step. `wrenches` on the bodies are the rows J.

    With the armature, a 6-link arm with most of its inertia there takes 4.4 iterations per step in place of 5.3. With the dampers, Atlas,
    held stiffly at some of its limits, takes 11 iterations from a cold start in place of 23.
    """
    movable = torch.isfinite(mass)
    inverse_mass = torch.where(movable, 1 / mass, 0.0)
    tensor = torch.where(movable[..., None, None], inertia, torch.eye(3, dtype=inertia.dtype, device=inertia.device))
    masses = []
    for wrench in wrenches:
        mobility = torch.zeros_like(mass[..., 0])
        for k, (linear, angular) in enumerate(wrench):
            spin = torch.linalg.solve(tensor[..., k, :, :], angular[..., None]).squeeze(-1)
            turning = torch.where(movable[..., k], (angular * spin).sum(-1), 0.0)
            mobility = mobility + inverse_mass[..., k] * (linear * linear).sum(-1) + turning
        masses.append(1 / mobility)
    bodies = torch.stack(masses, dim=-1)
    if not isinstance(joint, StandardJoint):
        return bodies
    total = bodies + timestep * joint.damping(timestep)
    if driven and joint.driven and joint.servo_stiffness is not None and joint.servo_damping is not None:
        others = 1 - joint.without_range(total)
        total = total + others * timestep * (joint.servo_damping + timestep * joint.servo_stiffness)
    return total if joint.armature is None else total + joint.armature
