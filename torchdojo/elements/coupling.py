"""Base class of couplings: a polynomial between sums of joint coordinates, which may be switched off.

With the sum x of the leaders' coordinates and the sum y of the followers', each with its coefficient (dynamics/README.md: constraints at
the next, impulses at the current configuration):

    row        c⁺ = 0,   c = y − p(x),   p(x) = offset + ratio x + k₂ x² + k₃ x³ + k₄ x⁴
    impulses   λ · coefficient along each follower,  −p′(x) λ · coefficient along each leader

With a compliance α and a damping d the coupling is a spring of stiffness 1/α and a damper, and yields:

    row        c⁺ + α d (c⁺ − c)/h + α λ/h = 0,   so that the force is λ/h = −c⁺/α − d (c⁺ − c)/h

which is the constraint of Macklin et al. 2016, "XPBD", solved to the end: exactly the spring and damper, implicit in time, at any
stiffness. With α = 0 it is the row above.

Each impulse acts through the transposed Jacobian of its coordinate, so that the coupling does no work on motions that obey it, to first
order in h. A coupling that is switched off has the row h λ = 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.parametrize import type_before_parametrizations

from torchdojo.elements.element import Element, Motion, Pose
from torchdojo.elements.joint import Joint
from torchdojo.elements.joint_cones import KINEMATIC_FIELDS
from torchdojo.elements.joints import StandardJoint
from torchdojo.parameters import as_tensor, bind, require

__all__ = ["CURVE", "Coupling", "End", "kinematic_fields"]

CURVE = 3  # coefficients of x², x³ and x⁴


class End(NamedTuple):
    """A coordinate of a joint that a coupling reads, and whether it is part of the leaders' sum."""

    joint: str
    coordinate: int
    leads: bool


class Coupling(Element):
    """Base class of couplings of joint coordinates; it has what `JointCoupling`, `JointLock` and `SumCoupling` share.

    One equation and one impulse λ ("couplings.NAME" in `Mechanism.impulse_layout`) [N·s, N·m·s]. The joints' own parameters receive
    gradients, as do those of the law.
    """

    num_rows = 1
    fields: ClassVar[dict[str, int]] = {"offset": 0}
    optional: ClassVar[dict[str, int]] = {"curve": 1, "active": 0, "compliance": 0, "damping": 0}
    noun: ClassVar[str] = "coupling"
    end_names: tuple[str, ...] = ()  #: prefixes of the fields of the joints, leaders first
    counts_turns: bool = True  #: whether angles have the full turns on top with which the coupling holds
    ratio: Tensor
    offset: Tensor
    curve: Tensor | None
    active: Tensor | None
    compliance: Tensor | None
    damping: Tensor | None

    def __init__(self, *, curve: Any = None, active: Any = None, compliance: Any = None, damping: Any = None) -> None:
        super().__init__()
        values = {"curve": curve, "active": active, "compliance": compliance, "damping": damping}
        present = {name: value for name, value in values.items() if value is not None}
        for name in ("curve", "compliance", "damping"):
            if name in present and not self.has_effect(name, present[name]):
                del present[name]
        if "damping" in present and "compliance" not in present:
            raise ValueError(
                f"{self.label('damping')}: got {damping!r} without a compliance; allowed: with compliance=, 1/stiffness: a rigid coupling "
                "has no rate that a damper could slow down"
            )
        self.set_fields({**type(self).fields, **{name: self.optional[name] for name in present}})
        for name, value in present.items():
            setattr(self, name, value)
        #: the joints of the ends, no submodules of this one; () until a mechanism is built with it
        self.joints: tuple[Joint, ...] = ()

    @property
    def ends(self) -> tuple[End, ...]:
        """The coordinates that are coupled, leaders first."""
        raise NotImplementedError

    def rename(self, name_of: Callable[[str], str]) -> None:
        """Let the coupling refer to other joints: old name -> new name."""
        raise NotImplementedError

    def has_effect(self, name: str, value: Any) -> bool:
        """Whether a curve or a softness is not zero, or may be learned; whether a switch is off."""
        if value is None:
            return False
        tensor = as_tensor(value, self.label(name))
        return tensor.requires_grad or bool((tensor != (1.0 if name == "active" else 0.0)).any())

    def check_field(self, name: str, value: Tensor) -> Tensor:
        value = super().check_field(name, value)
        if name == "curve":
            if value.shape[-1] not in range(1, CURVE + 1):
                raise ValueError(
                    f"{self.label(name)}: got shape {tuple(value.shape)}; allowed: (..., {CURVE}), the coefficients of x², x³ and x⁴, the "
                    "last ones left out where they are zero"
                )
            value = torch.nn.functional.pad(value, (0, CURVE - value.shape[-1])) if value.shape[-1] < CURVE else value
        if name == "active":
            require((value == 0) | (value == 1), self.label(name), value, "1, where the coupling acts, and 0, where it is switched off")
        if name in ("compliance", "damping"):
            require(value >= 0, self.label(name), value, "numbers >= 0")
        return value

    def attach(self, joints: Mapping[str, Joint]) -> None:
        """Find the joints by their names.

        Raises:
            ValueError: unknown names, joints without that coordinate, a coupling that belongs to another mechanism.
        """
        attached = []
        for name, coordinate, leads in self.ends:
            end = "leader" if leads else "follower"
            if name not in joints:
                raise ValueError(f"its {end} is joint {name!r}, which does not exist; joints are {list(joints)}")
            joint = joints[name]
            if not joint.carries_child:
                raise ValueError(
                    f"its {end} {name!r} is a {type(joint).__name__}, which has no coordinates; allowed: the sixteen joints, and "
                    "those that declare num_coordinates"
                )
            if coordinate not in range(joint.num_coordinates):
                count = f"{joint.num_coordinates} coordinate(s)" if joint.num_coordinates else "no coordinates"
                raise ValueError(
                    f"its {end}_coordinate is {coordinate!r}, but {name!r}, a {type(joint).__name__}, has {count}; allowed: "
                    f"{list(range(joint.num_coordinates)) or 'joints that can move'}"
                )
            if joint.extra_state_names():
                raise ValueError(
                    f"its {end} {name!r} has tensors that are not physical fields, {joint.extra_state_names()}, which a coupling does not "
                    "read; make them fields of the joint"
                )
            attached.append(joint)
        if self.joints and any(old is not new for old, new in zip(self.joints, attached, strict=True)):
            raise ValueError(f"it already couples joints of another mechanism; make one {type(self).__name__} for each")
        self.joints = tuple(attached)

    def __getattr__(self, name: str) -> Any:
        end, _, field = name.partition("_")
        joints = self.__dict__.get("joints")
        if joints and field and name not in self._parameters and end in self.end_names:
            joint = joints[self.end_names.index(end)]
            if field in kinematic_fields(joint):
                return getattr(joint, field)
        return super().__getattr__(name)

    @property
    def body_names(self) -> tuple[str | None, ...]:
        return tuple(name for joint in self.joints for name in joint.body_names)

    @property
    def stacked_fields(self) -> dict[str, int]:
        ends = zip(self.end_names, self.joints, strict=True)
        return {**self.fields, **{f"{end}_{name}": ndim for end, joint in ends for name, ndim in kinematic_fields(joint).items()}}

    def kind(self) -> tuple[object, ...]:
        details = tuple((end.coordinate, end.leads) for end in self.ends), *(name in self.fields for name in self.optional)
        return (*super().kind(), *(joint.kind() for joint in self.joints), *details)

    def bound_joints(self) -> list[Joint]:
        """The joints with the parameters that this element has: their own, or those stacked over elements."""
        return [
            bind(joint, {name: getattr(self, f"{end}_{name}") for name in kinematic_fields(joint)}, type_before_parametrizations(joint))
            for end, joint in zip(self.end_names, self.joints, strict=True)
        ]

    # -- the law -------------------------------------------------------------------------------------------------------------------------

    def law(self, x: Tensor) -> Tensor:
        """p(x) [m, rad] at a sum of the leaders' coordinates (..., 1)."""
        value = self.ratio[..., None] * x + self.offset[..., None]
        return value if self.curve is None else value + (self.curve * torch.cat((x**2, x**3, x**4), dim=-1)).sum(-1, keepdim=True)

    def slope(self, x: Tensor) -> Tensor:
        """p′(x) at (..., 1)."""
        if self.curve is None:
            return self.ratio[..., None] + torch.zeros_like(x)
        return self.ratio[..., None] + (self.curve * torch.cat((2 * x, 3 * x**2, 4 * x**3), dim=-1)).sum(-1, keepdim=True)

    def scaled(self, values: list[Tensor]) -> list[Tensor]:
        """The values of the ends, (..., 1) each, times their coefficients."""
        return values

    def sums(self, values: list[Tensor]) -> tuple[Tensor, Tensor]:
        """x and y of coordinates (..., 1) of the ends."""
        leading = following = torch.zeros_like(values[0])
        for end, value in zip(self.ends, self.scaled(values), strict=True):
            if end.leads:
                leading = leading + value
            else:
                following = following + value
        return leading, following

    def gap(self, values: list[Tensor]) -> Tensor:
        """y − p(x), (..., 1) [m, rad], of coordinates (..., 1) of the ends."""
        leading, following = self.sums(values)
        return following - self.law(leading)

    def turns(self, values: list[Tensor]) -> list[Tensor]:
        """Full turns [rad] that the ends have on top of their coordinates (..., 1). Default: none."""
        return [torch.zeros_like(value) for value in values]

    def turns_freely(self, k: int) -> bool:
        """Whether the coordinate of end k is the angle of a single rotation."""
        joint = self.joints[k]
        return self.ends[k].coordinate >= joint.num_coordinates - joint.num_angles

    # -- equations -----------------------------------------------------------------------------------------------------------------------

    def constraint(self, *poses: Pose) -> Tensor:
        """y − p(x), (..., 1) [m, rad], at poses of parent and child of each end's joint."""
        values = self._coordinates(self.bound_joints(), poses)
        return self.gap([value + turns for value, turns in zip(values, self.turns(values), strict=True)])

    def kept_constraint(self, *poses: Pose) -> Tensor:
        """`constraint`, and zero where the coupling is switched off or yields."""
        gap = self.constraint(*poses)
        if self.compliance is not None:
            gap = torch.where(self.compliance[..., None] > 0, 0.0, gap)
        return gap if self.active is None else self.active[..., None] * gap

    def energy(self, *poses: Pose) -> Tensor:
        """Energy of a coupling that yields, c²/(2α) [J], (...); zero where it is rigid or switched off."""
        gap = self.constraint(*poses)[..., 0]
        if self.compliance is None:
            return torch.zeros_like(gap)
        soft = self.compliance > 0
        energy = torch.where(soft, 0.5 * gap**2 / torch.where(soft, self.compliance, 1.0), 0.0)
        return energy if self.active is None else self.active * energy

    def residual(
        self, motions: tuple[Motion, ...], impulse: Tensor, slack: Tensor, u: Tensor, timestep: Tensor
    ) -> tuple[list[tuple[Tensor, Tensor]], Tensor]:
        joints = self.bound_joints()
        poses = [motion.pose for motion in motions]
        current = self._coordinates(joints, poses)
        turns = self.turns(current)
        slope = self.slope(self.sums([value + more for value, more in zip(current, turns, strict=True)])[0])
        weights = self.scaled([-slope if end.leads else torch.ones_like(slope) for end in self.ends])
        wrenches, after = [], []
        active = None if self.active is None else self.active[..., None]
        acting = impulse if active is None else active * impulse
        for k, (joint, end) in enumerate(zip(joints, self.ends, strict=True)):
            parent, child = poses[2 * k : 2 * k + 2]
            along = torch.zeros(joint.num_coordinates, dtype=impulse.dtype, device=impulse.device)
            along[end.coordinate] = 1.0
            wrenches += joint.act_along(parent, child, weights[k] * acting * along)
            near = current[k].tile(joint.num_angles)
            place = slice(end.coordinate, end.coordinate + 1)
            after.append(joint.coordinates_near(motions[2 * k].next, motions[2 * k + 1].next, near)[..., place] + turns[k])
        rows = self.gap(after)
        if self.compliance is not None:
            give = self.compliance[..., None] / timestep
            if self.damping is not None:
                before = self.gap([value + more for value, more in zip(current, turns, strict=True)])
                rows = rows + give * self.damping[..., None] * (rows - before)
            rows = rows + give * impulse
        return wrenches, rows if active is None else active * rows + timestep * (1 - active) * impulse

    def _coordinates(self, joints: list[Joint], poses: list[Pose] | tuple[Pose, ...]) -> list[Tensor]:
        """Coordinates of the ends, (..., 1) each."""
        return [
            joint.coordinates(poses[2 * k], poses[2 * k + 1])[..., end.coordinate : end.coordinate + 1]
            for k, (joint, end) in enumerate(zip(joints, self.ends, strict=True))
        ]


def kinematic_fields(joint: Joint) -> dict[str, int]:
    """Fields that enter a joint's coordinates, with the fields that a user's subclass adds."""
    return {name: joint.fields[name] for name in joint.stacked_fields if name in KINEMATIC_FIELDS or name not in StandardJoint.fields}
