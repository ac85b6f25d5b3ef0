"""Linear couplings of joint coordinates: mimic joints, gears, racks and pinions, screws.

With the coordinates c of a leader and a follower (dynamics/README.md: constraints at the next, impulses at the current configuration):

    row        c_follower⁺ − ratio · c_leader⁺ − offset = 0
    impulses   λ along c_follower,  −ratio λ along c_leader

each through the transposed Jacobian of its coordinate, so that the coupling does no work on motions that obey it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.utils.parametrize import type_before_parametrizations

from torchdojo.elements.element import Element, Motion, Pose
from torchdojo.elements.joint import TURN, Joint
from torchdojo.elements.joint_cones import KINEMATIC_FIELDS
from torchdojo.elements.joints import StandardJoint
from torchdojo.parameters import bind

__all__ = ["JointCoupling", "check_ranges", "infeasible", "kinematic_fields"]

ENDS = ("leader", "follower")
MOST_TURNS = 16  # of a leader whose follower turns, too; more turns are not tried
ALIKE = 1e-9  # [rad] numbers of turns whose gaps differ by less fit equally well: rounding
ROOM = 1e-9  # [m, rad] ranges that leave less have no interior
SATISFIED = 1e-3  # [rad] a step leaves 1e-9; a state made by hand that is open by more is not meant to have turned


class JointCoupling(Element):
    """Keeps a coordinate of one joint at a linear function of a coordinate of another: c_follower = ratio · c_leader + offset.

    One equation and one impulse λ ("couplings.NAME" in `Mechanism.impulse_layout`): the force or torque on the follower's coordinate,
    times the timestep [N·s, N·m·s]; −ratio λ acts on the leader's. Leader and follower may be one joint with several coordinates
    (a `Cylindrical` becomes a screw). The joints' own parameters receive gradients, as do `ratio` and `offset`.

    Angles of single rotations do not wrap: the follower of a wheel with ratio ½ is back after two turns of the wheel. The state z holds
    angles to ±2π, so the coupling adds the turns with which it holds at the current configuration. For two angles these are up to 16 turns
    of the leader, or any number where ratio or 1/ratio is an integer of at most 16. Components of a rotation vector, of joints with several
    rotations, do wrap at π.

    Args:
        leader, follower: names of joints of the mechanism, with coordinates (`Joint` says how a user's joint has them).
        ratio: d c_follower / d c_leader, (...,): [1], or [m/rad] from an angle to a translation, [rad/m] the other way around.
        offset: c_follower where c_leader = 0, (...,) [m, rad].
        leader_coordinate, follower_coordinate: which free coordinate of the joint, translations first.
    """

    num_rows = 1
    fields: ClassVar[dict[str, int]] = {"ratio": 0, "offset": 0}
    structural: ClassVar[frozenset[str]] = frozenset({"leader", "follower", "coordinates"})
    ratio: Tensor
    offset: Tensor

    def __init__(
        self,
        leader: str,
        follower: str,
        *,
        ratio: Any = 1.0,
        offset: Any = 0.0,
        leader_coordinate: int = 0,
        follower_coordinate: int = 0,
    ) -> None:
        super().__init__()
        self.leader, self.follower = leader, follower
        self.coordinates = (leader_coordinate, follower_coordinate)
        self.ratio = ratio
        self.offset = offset
        #: the two joints, no submodules of this one; () until a mechanism is built with it
        self.joints: tuple[Joint, ...] = ()
        if (leader, leader_coordinate) == (follower, follower_coordinate):
            raise ValueError(f"JointCoupling: got {leader!r} as leader and as follower; a coupling connects two different coordinates")

    def _description(self) -> list[str]:
        return [f"{self.leader} -> {self.follower}"]

    def attach(self, joints: Mapping[str, Joint]) -> None:
        """Find the joints by their names.

        Raises:
            ValueError: unknown names, joints without that coordinate, a coupling that belongs to another mechanism.
        """
        ends = []
        for end, name, coordinate in zip(ENDS, (self.leader, self.follower), self.coordinates, strict=True):
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
            ends.append(joint)
        if self.joints and any(old is not new for old, new in zip(self.joints, ends, strict=True)):
            raise ValueError("it already couples joints of another mechanism; make one JointCoupling for each")
        self.joints = tuple(ends)

    def __getattr__(self, name: str) -> Any:
        end, _, field = name.partition("_")
        joints = self.__dict__.get("joints")
        if joints and end in ENDS and field in kinematic_fields(joints[ENDS.index(end)]) and name not in self._parameters:
            return getattr(joints[ENDS.index(end)], field)
        return super().__getattr__(name)

    @property
    def body_names(self) -> tuple[str | None, ...]:
        return tuple(name for joint in self.joints for name in joint.body_names)

    @property
    def stacked_fields(self) -> dict[str, int]:
        shared = {
            f"{end}_{name}": ndim for end, joint in zip(ENDS, self.joints, strict=True) for name, ndim in kinematic_fields(joint).items()
        }
        return {**self.fields, **shared}

    def kind(self) -> tuple[object, ...]:
        return (*super().kind(), *(joint.kind() for joint in self.joints), *self.coordinates)

    def bound_joints(self) -> list[Joint]:
        """Leader and follower with the parameters that this element has: their own, or those stacked over elements."""
        return [
            bind(joint, {name: getattr(self, f"{end}_{name}") for name in kinematic_fields(joint)}, type_before_parametrizations(joint))
            for end, joint in zip(ENDS, self.joints, strict=True)
        ]

    # -- equations -----------------------------------------------------------------------------------------------------------------------

    def constraint(self, *poses: Pose) -> Tensor:
        """c_follower − ratio · c_leader − offset, (..., 1) [m, rad], at poses of the leader's parent and child and of the follower's."""
        joints = self.bound_joints()
        leader, follower = (value + turns for value, turns in zip(*self._unwrapped(joints, poses), strict=True))
        return follower - self.ratio[..., None] * leader - self.offset[..., None]

    def residual(
        self, motions: tuple[Motion, ...], impulse: Tensor, slack: Tensor, u: Tensor, timestep: Tensor
    ) -> tuple[list[tuple[Tensor, Tensor]], Tensor]:
        joints = self.bound_joints()
        poses = [motion.pose for motion in motions]
        ratio = self.ratio[..., None]
        now, turns = self._unwrapped(joints, poses)
        wrenches, after = [], []
        for k, (joint, weight) in enumerate(zip(joints, (-ratio, torch.ones_like(ratio)), strict=True)):
            parent, child = poses[2 * k : 2 * k + 2]
            along = torch.zeros(joint.num_coordinates, dtype=impulse.dtype, device=impulse.device)
            along[self.coordinates[k]] = 1.0
            wrenches += joint.act_along(parent, child, weight * impulse * along)
            near = now[k].tile(joint.num_angles)
            place = slice(self.coordinates[k], self.coordinates[k] + 1)
            after.append(joint.coordinates_near(motions[2 * k].next, motions[2 * k + 1].next, near)[..., place] + turns[k])
        return wrenches, after[1] - ratio * after[0] - self.offset[..., None]

    def _turns_freely(self, k: int) -> bool:
        """Whether the coordinate of joint k is the angle of a single rotation."""
        return _is_angle(self.joints[k], self.coordinates[k])

    def _unwrapped(self, joints: list[Joint], poses: list[Pose] | tuple[Pose, ...]) -> tuple[list[Tensor], list[Tensor]]:
        """Coordinates of leader and follower, (..., 1) each, and the turns [rad] of their angles that satisfy the coupling best.

        2π(n_f − ratio n_l) is to cancel the gap of the coordinates. Where both ends turn and no n_l does so, the state is not on the
        coupling, and n_l = 0. A body whose quaternion has the other sign than expected is one turn away, so all turns are tried.
        """
        values = [
            joint.coordinates(poses[2 * k], poses[2 * k + 1])[..., place : place + 1]
            for k, (joint, place) in enumerate(zip(joints, self.coordinates, strict=True))
        ]
        ratio = self.ratio.detach()[..., None]
        gap = (values[1] - self.ratio[..., None] * values[0] - self.offset[..., None]).detach()
        leading, following = self._turns_freely(0), self._turns_freely(1)
        turns = torch.zeros_like(gap)
        if leading and following:
            numbers = gap.new_tensor([0, *(sign * n for n in range(1, MOST_TURNS + 1) for sign in (1, -1))])
            rest = gap - TURN * ratio * numbers
            rest = (rest - TURN * torch.round(rest / TURN)).abs()
            # The smallest of the numbers that fit equally well: they part as the ratio changes.
            best = (rest <= rest.amin(-1, keepdim=True) + ALIKE).long().argmax(-1, keepdim=True)
            turns = torch.where(rest.gather(-1, best) <= SATISFIED, numbers[best], 0.0)
        elif leading:
            turns = torch.where(ratio == 0, 0.0, torch.round(gap / torch.where(ratio == 0, 1.0, TURN * ratio)))
        followed = -torch.round((gap - TURN * ratio * turns) / TURN) if following else torch.zeros_like(gap)
        return values, [TURN * turns, TURN * followed]


def kinematic_fields(joint: Joint) -> dict[str, int]:
    """Fields that enter a joint's coordinates, with the fields that a user's subclass adds."""
    return {name: joint.fields[name] for name in joint.stacked_fields if name in KINEMATIC_FIELDS or name not in StandardJoint.fields}


def infeasible(couplings: Mapping[str, JointCoupling], joints: Mapping[str, Joint]) -> dict[str, str]:
    """Couplings whose followers have limits that leave no room within those of their leaders: name -> both ranges, in words.

    The range of a coordinate is what its own limits and couplings leave, so that a chain of couplings is seen as a whole. Angles may differ
    by a turn.
    """
    ranges: dict[tuple[str, int], tuple[Tensor, Tensor]] = {}

    def range_of(name: str, place: int) -> tuple[Tensor, Tensor]:
        limits = joints[name].limits
        if limits is None:
            return ranges.get((name, place)) or (torch.tensor(-torch.inf), torch.tensor(torch.inf))
        return ranges.get((name, place)) or (limits[0].detach()[..., place], limits[1].detach()[..., place])

    leaders = {follower: leader for leader, follower in map(_ends, couplings.values())}

    def depth(name: str) -> int:
        end, count = _ends(couplings[name])[0], 0
        while end in leaders and count < len(leaders):
            end, count = leaders[end], count + 1
        return count

    wrong: dict[str, str] = {}
    for name in sorted(couplings, key=depth) * len(couplings):  # a range travels one coupling further in each round
        coupling = couplings[name]
        if name in wrong or any(j not in joints or place not in range(joints[j].num_coordinates) for j, place in _ends(coupling)):
            continue
        (leader, follower), ratio, offset = _ends(coupling), coupling.ratio.detach(), coupling.offset.detach()
        if bool((ratio == 0).any()):
            continue
        own = range_of(*follower)
        turned = [ratio * bound + offset for bound in range_of(*leader)]
        carried = torch.minimum(*turned), torch.maximum(*turned)
        turns = (0, 1, -1) if all(_is_angle(joints[j], place) for j, place in (leader, follower)) else (0,)
        meets = [(torch.maximum(own[0], carried[0] + TURN * k), torch.minimum(own[1], carried[1] + TURN * k)) for k in turns]
        if not any(bool((upper - lower > ROOM).all()) for lower, upper in meets):
            words = [f"[{lower.tolist()}, {upper.tolist()}]" for lower, upper in (own, carried)]
            wrong[name] = f"limits {words[0]} of the follower {follower[0]!r}; its leader {leader[0]!r} carries it through {words[1]}"
        elif bool((meets[0][1] - meets[0][0] > ROOM).all()):
            back = [(bound - offset) / ratio for bound in meets[0]]
            ranges[follower], ranges[leader] = meets[0], (torch.minimum(*back), torch.maximum(*back))
    return wrong


def check_ranges(couplings: Mapping[str, JointCoupling], joints: Mapping[str, Joint]) -> None:
    """Raise ValueError where limits leave a coupling no room to move: no step would have a solution."""
    for name, words in infeasible(couplings, joints).items():
        raise ValueError(
            f"coupling {name!r}: got {words}; allowed: ranges that have more than a point in common. Leave out the limits of the follower, "
            "which the coupling bounds already, or correct ratio and offset"
        )


def _ends(coupling: JointCoupling) -> tuple[tuple[str, int], tuple[str, int]]:
    """Names of the joints of leader and follower, with their coordinates."""
    return (coupling.leader, coupling.coordinates[0]), (coupling.follower, coupling.coordinates[1])


def _is_angle(joint: Joint, place: int) -> bool:
    return place >= joint.num_coordinates - joint.num_angles
