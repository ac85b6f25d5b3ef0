"""The base class of joints: equations between two bodies, and where they are declared, coordinates and limits on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.utils.parametrize import is_parametrized

from torchdojo import quaternion as quat
from torchdojo.elements.element import Element, Motion, Pose
from torchdojo.parameters import as_tensor, require, transforming

__all__ = ["BOUNDS", "TURN", "FreePose", "Joint"]

BOUNDS = ("lower", "upper")
TURN = 2 * torch.pi


class Joint(Element):
    """Base class of joints: `num_rows` equations between a parent and a child that hold at the next configuration.

    A user-written joint sets `num_rows` and overrides `constraint`. Its impulses then act through the transposed Jacobian of that function
    at the current configuration. The Jacobian is computed here. The standard joints override `residual` with the same thing in closed form.
    Weights and tensors that the subclass registers receive gradients. Plain numbers of physical modules are float64: a tensor of another
    dtype needs `.double()` first, `nn.Parameter(torch.tensor(1.0).double())`, or `mech.to(torch.float64)` afterwards.

    Coordinates are optional. A joint with `num_coordinates` overrides `coordinates` and `displace`. It carries its child in the spanning
    tree, as the standard joints do: `initial_state(JOINT=dict(q=..., qd=...))`, `to_minimal` and `to_maximal` use its coordinates. A joint
    without coordinates closes a loop. A body that only such joints lead to gets six coordinates relative to the parent of the first of
    them, named "PARENT_to_BODY" ("world_to_BODY"; `FreePose`). `initial_state` and `close_loops` assemble the joint by moving them; numbers
    given for them are where that starts.

    Args:
        parent, child: body names; the parent may be None or "world".
        limits: (lower, upper) of the coordinates [m, rad], numbers or (..., num_coordinates); infinite: none (`JointLimits`). Angles of
            joints that a user writes count modulo 2π, from the middle of their limits.

    Raises:
        ValueError: a child that is the world or the parent, limits of a joint without coordinates, or without room between them.
        TypeError: coordinates that are declared but not written.
    """

    optional: ClassVar[dict[str, int]] = dict.fromkeys(BOUNDS, 1)
    noun: ClassVar[str] = "joint"
    structural: ClassVar[frozenset[str]] = frozenset({"parent", "child"})
    num_coordinates: int = 0
    free_translations: int = 0  # number of coordinates that are lengths; they stand in front of the angles
    period: ClassVar[float] = TURN  # [rad] at which angles start anew
    lower: Tensor | None
    upper: Tensor | None

    def __init__(self, parent: str | None, child: str, *, limits: tuple[Any, Any] | None = None) -> None:
        super().__init__()
        self.parent = None if parent == "world" else parent
        self.child = child
        if not isinstance(child, str) or child == "world":
            raise ValueError(
                f"{type(self).__name__}: got child={child!r}; the child is a body name, only the parent may be the world (None)"
            )
        if self.parent == child:
            raise ValueError(f"{type(self).__name__}: got {child!r} as parent and as child; a joint connects two different bodies")
        self._check_coordinates()
        #: Coordinates whose lower, and whose upper limit acts.
        self.limited: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
        if not self.carries_child:
            self.__dict__["optional"] = {}
        if limits is not None and not self.num_coordinates:
            raise ValueError(
                f"{self.label('limits')}: got {limits!r} for a joint without coordinates; declare them, num_coordinates = ... with "
                "coordinates(parent, child) and displace(q)"
            )
        self.set_fields({**type(self).fields, **(dict.fromkeys(BOUNDS, 1) if limits is not None else {})})
        if limits is not None:
            self._set_limits(limits, built=False)

    @property
    def body_names(self) -> tuple[str | None, ...]:
        return (self.parent, self.child)

    @property
    def carries_child(self) -> bool:
        """Whether its coordinates place the child, so that the joint can be part of the spanning tree."""
        return self.num_coordinates > 0

    @property
    def free_rotations(self) -> int:
        return self.num_coordinates - self.free_translations

    @property
    def num_angles(self) -> int:
        """Number of coordinates, the last ones, that are angles modulo `period`: all but lengths and rotation vectors."""
        return self.free_rotations

    @property
    def stacked_fields(self) -> dict[str, int]:
        # Limits are an element of their own.
        return {name: ndim for name, ndim in self.fields.items() if name not in self.optional or name not in BOUNDS}

    def _check_coordinates(self) -> None:
        """Raise unless declared coordinates are written, too."""
        missing = [name for name in ("coordinates", "displace") if getattr(type(self), name) is getattr(Joint, name)]
        if self.num_coordinates and missing and type(self).place_child is Joint.place_child:
            raise TypeError(
                f"{type(self).__name__}: got num_coordinates = {self.num_coordinates} without {missing[0]}; a joint with coordinates "
                "overrides coordinates(parent, child) -> q and displace(q) -> pose of the child in the parent's frame"
            )

    # -- equations and coordinates -------------------------------------------------------------------------------------------------------

    def constraint(self, parent: Pose, child: Pose) -> Tensor:
        """Rows that vanish when the joint is assembled, (..., num_rows)."""
        raise NotImplementedError

    def kept_constraint(self, parent: Pose, child: Pose) -> Tensor:
        """`constraint`, without what other joints of a loop hold already."""
        return self.constraint(parent, child)

    def coordinates(self, parent: Pose, child: Pose) -> Tensor:
        """Lengths [m], then angles [rad], (..., num_coordinates)."""
        raise NotImplementedError

    def displace(self, q: Tensor) -> Pose:
        """Pose of the child in the frame of the parent, from center of mass to center of mass, at coordinates (..., num_coordinates)."""
        raise NotImplementedError

    def place_child(self, parents: tuple[Pose, Pose], q: Tensor, change: Tensor) -> tuple[Pose, Pose]:
        """Poses of the child at coordinates q and one step earlier, when they are `change` less, from the poses of the parent."""
        return attached(parents[0], self.displace(q)), attached(parents[1], self.displace(q - change))

    def rate(self, before: Sequence[Pose], after: Sequence[Pose], timestep: Tensor) -> Tensor:
        """Mean rates of the coordinates between two configurations of (parent, child) one step apart [m/s, rad/s], (..., n).

        An angle takes the shorter way.
        """
        change = self.coordinates(*after) - self.coordinates(*before)
        return self._turned_back(change, torch.zeros_like(change)) / timestep

    def coordinates_near(self, parent: Pose, child: Pose, near: Tensor) -> Tensor:
        """`coordinates`, with the periods that bring each of the angles closest to `near` (..., num_angles)."""
        value = self.coordinates(parent, child)
        lengths = value.new_zeros(self.num_coordinates - self.num_angles).expand(*near.shape[:-1], -1)
        return self._turned_back(value, torch.cat((lengths, near), dim=-1))

    def _turned_back(self, value: Tensor, near: Tensor) -> Tensor:
        """Coordinates with each angle next to the angle of `near`, both (..., num_coordinates)."""
        turns = torch.round((near - value).detach() / self.period)
        return value + self.period * torch.where(torch.arange(self.num_coordinates) < self.num_coordinates - self.num_angles, 0.0, turns)

    def act_along(self, parent: Pose, child: Pose, along: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Effect of impulses along the coordinates (..., num_coordinates) on parent and child: the transposed Jacobian of `coordinates`."""
        return pulled_back(self.coordinates, (parent, child), along)

    def residual(
        self, motions: tuple[Motion, ...], impulse: Tensor, slack: Tensor, u: Tensor, timestep: Tensor
    ) -> tuple[list[tuple[Tensor, Tensor]], Tensor]:
        wrenches = pulled_back(self.constraint, [motion.pose for motion in motions], impulse)
        return wrenches, self.constraint(*[motion.next for motion in motions])

    # -- limits --------------------------------------------------------------------------------------------------------------------------

    def __setattr__(self, name: str, value: Any) -> None:
        if name in BOUNDS and name in self.optional and name in self.fields:
            new = self.check_field(name, as_tensor(value, self.label(name)))
            self._check_limited(*(new if bound == name else getattr(self, bound) for bound in BOUNDS))
        super().__setattr__(name, value)

    def _description(self) -> list[str]:
        count = "1 coordinate" if self.num_coordinates == 1 else f"{self.num_coordinates} coordinates"
        inputs = "" if not self.num_coordinates else ", 1 input" if self.num_inputs == 1 else f", {self.num_inputs or 'no'} inputs"
        return [f"{self.parent or 'world'} -> {self.child}", count + inputs]

    def keyword(self, name: str) -> str:
        return "limits" if name in BOUNDS else name

    def check_field(self, name: str, value: Tensor) -> Tensor:
        if name not in BOUNDS or name not in self.optional:
            return super().check_field(name, value)
        size = self.num_coordinates
        value = value.expand(size) if value.ndim == 0 else value
        open_side = -torch.inf if name == "lower" else torch.inf
        require(torch.isfinite(value) | (value == open_side), self.label(name), value, f"finite numbers, or {open_side} for no limit")
        if value.shape[-1] != size:
            raise ValueError(
                f"{self.label(name)}: got shape {tuple(value.shape)}; allowed: (..., {size}), one per free coordinate of a "
                f"{type(self).__name__}"
            )
        return value

    @property
    def limits(self) -> tuple[Tensor, Tensor] | None:
        """(lower, upper), each (..., num_coordinates) [m, rad], or None. Assign a pair to change both at once."""
        if "lower" not in self.optional or self.lower is None or self.upper is None:
            return None
        return self.lower, self.upper

    @limits.setter
    def limits(self, pair: tuple[Any, Any] | None) -> None:
        present = self.limits is not None
        if pair is None and not present:
            return
        if pair is None or not present:
            built = "with" if present else "without"
            raise ValueError(f"{self.label('limits')}: got {pair!r} for a joint built {built} limits; that cannot change")
        self._set_limits(pair)

    def _set_limits(self, pair: tuple[Any, Any], built: bool = True) -> None:
        try:
            lower, upper = pair
        except (TypeError, ValueError) as error:
            raise ValueError(f"{self.label('limits')}: got {pair!r}; allowed: a pair (lower, upper)") from error
        limits = dict(zip(BOUNDS, (lower, upper), strict=True))
        checked = {name: self.check_field(name, as_tensor(value, self.label(name))) for name, value in limits.items()}
        if built:
            self._check_limited(*checked.values())
        else:
            self.limited = self._limited_sides(*checked.values())
        for name, value in limits.items():
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
        number = torch.arange(self.num_coordinates)
        angle = number >= self.num_coordinates - self.num_angles
        if self.period > TURN:
            within = [~(angle & side) | (bound.abs() <= TURN) for side, bound in zip(reached, (lower, upper), strict=True)]
            allowed = (
                f"angles within ±2π of zero, the range of z (upper: {upper.tolist()}); a joint that turns on has no limits (URDF: "
                'type="continuous", MJCF: limited="false")'
            )
            require(within[0] & within[1], self.label("limits"), lower, allowed)
        else:
            reached = [side & ~(angle & reached[0] & reached[1] & (upper - lower >= TURN)) for side in reached]
        vector = (number >= self.free_translations) & ~angle
        outside = vector & ((lower >= torch.pi) | (upper <= -torch.pi))
        require(~outside, self.label("limits"), lower, f"ranges that a rotation vector of at most π can reach (upper: {upper.tolist()})")
        reached = [reached[0] & ~(vector & (lower <= -torch.pi)), reached[1] & ~(vector & (upper >= torch.pi))]
        for side in reached:
            some, every = (getattr(side.reshape(-1, self.num_coordinates), which)(0) for which in ("any", "all"))
            require(some == every, self.label("limits"), lower, f"a limit in all environments, or in none (upper: {upper.tolist()})")
        below, above = (side.reshape(-1, self.num_coordinates)[0].nonzero().flatten().tolist() for side in reached)
        return tuple(below), tuple(above)


class FreePose(Joint):
    """The pose of a body relative to another, or to the world: six coordinates, no equations and no parameters.

    It stands in the spanning tree for joints without coordinates, which then close a loop. The coordinates are as in a `Floating` joint
    between the centers of mass: position in the parent's frame, then rotation vector of the relative orientation.
    """

    num_coordinates = 6
    free_translations = 3
    num_angles = 0

    def constraint(self, parent: Pose, child: Pose) -> Tensor:
        return child.x[..., :0]

    def coordinates(self, parent: Pose, child: Pose) -> Tensor:
        x, q = self._relative(parent, child)
        return torch.cat((x, quat.rotation_vector(q)), dim=-1)

    def displace(self, q: Tensor) -> Pose:
        return Pose(q[..., :3], quat.exp(q[..., 3:]))

    def place_child(self, parents: tuple[Pose, Pose], q: Tensor, change: Tensor) -> tuple[Pose, Pose]:
        relative = self.displace(q)
        earlier = Pose(relative.x - change[..., :3], quat.multiply(quat.exp(-change[..., 3:]), relative.q))
        return attached(parents[0], relative), attached(parents[1], earlier)

    def rate(self, before: Sequence[Pose], after: Sequence[Pose], timestep: Tensor) -> Tensor:
        (x, q), (x_after, q_after) = self._relative(*before), self._relative(*after)
        turn = quat.rotation_vector(quat.multiply(q_after, quat.conjugate(q)))
        return torch.cat((x_after - x, turn), dim=-1) / timestep

    def _relative(self, parent: Pose, child: Pose) -> Pose:
        return Pose(quat.inverse_rotate(parent.q, child.x - parent.x), quat.multiply(quat.conjugate(parent.q), child.q))


def attached(parent: Pose, offset: Pose) -> Pose:
    """The pose of a body from its pose in the frame of its parent."""
    return Pose(parent.point(offset.x), quat.multiply(parent.q, offset.q))


def pulled_back(function: Callable[..., Tensor], poses: Sequence[Pose], along: Tensor) -> list[tuple[Tensor, Tensor]]:
    """The transposed Jacobian of a function of poses, by displacements (dx, dφ) of each, times `along`: one pair (..., 3) per body."""

    def displaced(*steps: Tensor) -> Tensor:
        moved = [
            Pose(p.x + dx, quat.multiply(p.q, torch.cat((torch.ones_like(dphi[..., :1]), 0.5 * dphi), -1)))
            for p, dx, dphi in zip(poses, steps[::2], steps[1::2], strict=True)
        ]
        return function(*moved)

    value, transpose, *_ = torch.func.vjp(displaced, *[torch.zeros_like(pose.x) for pose in poses for _ in range(2)])
    wrench = transpose(along.expand(value.shape))
    return list(zip(wrench[::2], wrench[1::2], strict=True))
