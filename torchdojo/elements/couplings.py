"""Couplings of joint coordinates: mimic joints, gears, racks and pinions, screws, cams; locks of one joint; sums of several joints.

`coupling.py` has the equations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from torchdojo.elements.coupling import Coupling, End, kinematic_fields
from torchdojo.elements.joint import TURN, Joint
from torchdojo.parameters import as_tensor

__all__ = ["JointCoupling", "JointLock", "SumCoupling", "check_ranges", "infeasible", "kinematic_fields"]

ENDS = ("leader", "follower")
MOST_TURNS = 16  # turns of a leader that are tried where its follower turns, too
ALIKE = 1e-9  # [rad] numbers of turns whose gaps differ by less fit equally well: rounding
ROOM = 1e-9  # [m, rad] narrower ranges have no interior
SATISFIED = 1e-3  # [rad] a step leaves 1e-9; a state made by hand that is open by more is not meant to have turned
SAMPLES = 257  # places in a leader's range at which the range of a curve is sampled

Place = str | tuple[str, int]


class JointCoupling(Coupling):
    """Keeps a coordinate of one joint at a polynomial of a coordinate of another: c_follower = offset + ratio c + k₂ c² + k₃ c³ + k₄ c⁴.

    One equation and one impulse λ ("couplings.NAME" in `Mechanism.impulse_layout`): the force or torque on the follower's coordinate,
    times the timestep [N·s, N·m·s]; λ times minus the slope of the polynomial acts on the leader's. Leader and follower may be one joint
    with several coordinates (a `Cylindrical` becomes a screw). The joints' own parameters receive gradients, as do `ratio`, `offset` and
    `curve`.

    Angles of single rotations do not wrap: the follower of a wheel with ratio ½ is back after two turns of the wheel. The state z holds
    angles to ±2π, so the coupling adds the turns with which it holds at the current configuration. For two angles, and where there is a
    curve, these are up to 16 turns of the leader, or any number where ratio or 1/ratio is an integer of at most 16. Components of a
    rotation vector, of joints with several rotations, do wrap at π.

    Args:
        leader, follower: names of joints of the mechanism, with coordinates (`Joint` says how a user's joint has them).
        ratio: d c_follower / d c_leader, (...,): [1], or [m/rad] from an angle to a translation, [rad/m] the other way around.
        offset: c_follower where c_leader = 0, (...,) [m, rad].
        leader_coordinate, follower_coordinate: which free coordinate of the joint, translations first.
        curve: (k₂, k₃, k₄), (..., 3), fewer where the last ones are zero; None: a line, which stays one.
        active: 1, or 0 where the coupling is switched off, (...,); None: it always acts. Assign numbers to switch it, for each
            environment.
        compliance: α, (...,), at least 0: the coupling yields as a spring of stiffness 1/α on the follower's coordinate [m/N, rad/(N·m)].
            None or 0: it is rigid, and stays so.
        damping: d of a damper beside that spring, (...,), at least 0 [N·s/m, N·m·s/rad]; its time constant is α d [s].

    Raises:
        ValueError: one coordinate as leader and as follower, a switch that is neither 0 nor 1, a curve of more than three numbers, a
            negative compliance or damping, damping of a rigid coupling.
    """

    fields: ClassVar[dict[str, int]] = {"ratio": 0, "offset": 0}
    structural: ClassVar[frozenset[str]] = frozenset({"leader", "follower", "coordinates"})
    end_names = ENDS

    def __init__(
        self,
        leader: str,
        follower: str,
        *,
        ratio: Any = 1.0,
        offset: Any = 0.0,
        leader_coordinate: int = 0,
        follower_coordinate: int = 0,
        curve: Any = None,
        active: Any = None,
        compliance: Any = None,
        damping: Any = None,
    ) -> None:
        super().__init__(curve=curve, active=active, compliance=compliance, damping=damping)
        self.leader, self.follower = leader, follower
        self.coordinates = (leader_coordinate, follower_coordinate)
        self.ratio = ratio
        self.offset = offset
        if (leader, leader_coordinate) == (follower, follower_coordinate):
            raise ValueError(f"JointCoupling: got {leader!r} as leader and as follower; a coupling connects two different coordinates")

    def _description(self) -> list[str]:
        return [f"{self.leader} -> {self.follower}"]

    @property
    def ends(self) -> tuple[End, ...]:
        return End(self.leader, self.coordinates[0], True), End(self.follower, self.coordinates[1], False)

    def rename(self, name_of: Callable[[str], str]) -> None:
        self.leader, self.follower = name_of(self.leader), name_of(self.follower)

    def turns(self, values: list[Tensor]) -> list[Tensor]:
        """Full turns [rad] of leader and follower that satisfy the coupling best, (..., 1) each.

        A line needs turns that cancel its gap: 2π(n_f − ratio n_l). Where both ends turn and no n_l does so, the state is not on the
        coupling, and n_l = 0. A body whose quaternion has the other sign than expected is one turn away, so all turns are tried.
        """
        leader, follower = (value.detach() for value in values)
        ratio = self.ratio.detach()[..., None]
        gap = self.gap(values).detach()
        leading, following = self.turns_freely(0), self.turns_freely(1)
        turns = torch.zeros_like(gap)
        if leading and following:
            turns = _best_turns(lambda numbers: gap - TURN * ratio * numbers, gap, True)
        elif leading:
            turns = torch.where(ratio == 0, 0.0, torch.round(gap / torch.where(ratio == 0, 1.0, TURN * ratio)))
        left = gap - TURN * ratio * turns
        if self.curve is not None and leading:
            curved = (self.curve.detach() != 0).any(-1, keepdim=True)

            def gaps(numbers: Tensor) -> Tensor:
                return torch.cat([follower - self.law(leader + TURN * number).detach() for number in numbers], dim=-1)

            turns = torch.where(curved, _best_turns(gaps, gap, following), turns)
            left = torch.where(curved, follower - self.law(leader + TURN * turns).detach(), left)
        followed = -torch.round(left / TURN) if following else torch.zeros_like(gap)
        return [TURN * turns, TURN * followed]


class JointLock(Coupling):
    """Keeps one coordinate of a joint at a value: c = offset.

    Its impulse λ ("couplings.NAME" in `Mechanism.impulse_layout`) is the force or torque on the coordinate, times the timestep. An angle
    may stand any number of full turns from the value. Where a joint is to be rigid for good, `td.Fixed` costs less; a lock may be learned,
    differ between environments, or be switched: a brake.

    Args:
        joint: name of a joint of the mechanism, with coordinates.
        offset: the value, (...,) [m, rad].
        coordinate: which free coordinate of the joint, translations first.
        active: 1, or 0 where the coordinate is free, (...,); None: the lock always acts.
        compliance, damping: of a lock that yields, as of `JointCoupling`.

    Raises:
        ValueError: a switch that is neither 0 nor 1, a negative compliance or damping, damping of a rigid lock.
    """

    optional: ClassVar[dict[str, int]] = {"active": 0, "compliance": 0, "damping": 0}
    structural: ClassVar[frozenset[str]] = frozenset({"follower", "coordinate"})
    end_names = ENDS[1:]
    curve: None = None

    def __init__(
        self,
        joint: str,
        offset: Any = 0.0,
        *,
        coordinate: int = 0,
        active: Any = None,
        compliance: Any = None,
        damping: Any = None,
    ) -> None:
        super().__init__(active=active, compliance=compliance, damping=damping)
        self.follower, self.coordinate = joint, coordinate
        self.offset = offset

    def _description(self) -> list[str]:
        return [self.follower]

    @property
    def ratio(self) -> Tensor:  # type: ignore[override]
        """Zero: nothing leads."""
        return torch.zeros_like(self.offset)

    @property
    def ends(self) -> tuple[End, ...]:
        return (End(self.follower, self.coordinate, False),)

    def rename(self, name_of: Callable[[str], str]) -> None:
        self.follower = name_of(self.follower)

    def turns(self, values: list[Tensor]) -> list[Tensor]:
        """Full turns [rad] between the angle and the value, (..., 1)."""
        return [-TURN * torch.round(self.gap(values).detach() / TURN) if self.turns_freely(0) else torch.zeros_like(values[0])]


class SumCoupling(Coupling):
    """Keeps a sum of joint coordinates at a polynomial of another sum: y = offset + ratio x + k₂ x² + k₃ x³ + k₄ x⁴.

    ``td.SumCoupling({"left": 0.5, "right": 0.5}, {"wrist": 1.0})``: y is the coordinate of the wrist, x the mean of two others. Without
    leaders, y = offset: a string of constant length over several joints. This is MJCF's equality of fixed tendons.

    Angles of single rotations count within ±2π of the state, without turns on top.

    Args:
        leaders, followers: name of a joint, or (name, coordinate) of a joint with several -> coefficient, (...,), in x and in y.
        ratio: d y / d x, (...,). offset: y where x = 0, (...,) [m, rad].
        curve, active, compliance, damping: as of `JointCoupling`.

    Raises:
        ValueError: no followers, a coordinate twice.
    """

    fields: ClassVar[dict[str, int]] = {"ratio": 0, "offset": 0, "coefficients": 1}
    structural: ClassVar[frozenset[str]] = frozenset({"places"})
    counts_turns = False
    coefficients: Tensor  #: (..., n), leaders first

    def __init__(
        self,
        leaders: Mapping[Place, Any],
        followers: Mapping[Place, Any],
        *,
        ratio: Any = 1.0,
        offset: Any = 0.0,
        curve: Any = None,
        active: Any = None,
        compliance: Any = None,
        damping: Any = None,
    ) -> None:
        super().__init__(curve=curve, active=active, compliance=compliance, damping=damping)
        sides = {True: leaders, False: followers}
        parts = [(key, value, leads) for leads, side in sides.items() for key, value in side.items()]
        ends = [(End(*((key, 0) if isinstance(key, str) else key), leads), value) for key, value, leads in parts]
        places = [end[:2] for end, _ in ends]
        twice = sorted({place for place in places if places.count(place) > 1})
        if not followers or twice:
            got = f"the coordinates {twice} twice" if twice else "no followers"
            raise ValueError(f"SumCoupling: got {got}; allowed: each coordinate once, and at least one follower, {{'hinge': 1.0}}")
        self.places = tuple(end for end, _ in ends)
        values = [as_tensor(value, self.label("coefficients")).double() for _, value in ends]
        self.coefficients = torch.stack(torch.broadcast_tensors(*values), dim=-1)
        self.ratio = ratio
        self.offset = offset

    def _description(self) -> list[str]:
        sums = [" + ".join(end.joint for end in self.places if end.leads is leads) for leads in (True, False)]
        return [f"{sums[0] or 'nothing'} -> {sums[1]}"]

    @property
    def ends(self) -> tuple[End, ...]:
        return self.places

    @property
    def end_names(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(f"end{k}" for k in range(len(self.places)))

    def rename(self, name_of: Callable[[str], str]) -> None:
        self.places = tuple(end._replace(joint=name_of(end.joint)) for end in self.places)

    def check_field(self, name: str, value: Tensor) -> Tensor:
        value = super().check_field(name, value)
        if name == "coefficients" and value.shape[-1] != len(self.places):
            raise ValueError(f"{self.label(name)}: got shape {tuple(value.shape)}; allowed: (..., {len(self.places)}), one per coordinate")
        return value

    def scaled(self, values: list[Tensor]) -> list[Tensor]:
        return [value * self.coefficients[..., k, None] for k, value in enumerate(values)]


def _best_turns(gaps: Callable[[Tensor], Tensor], like: Tensor, following: bool) -> Tensor:
    """The number of a leader's turns, (..., 1), that leaves the smallest of the `gaps` (..., n) of n numbers; 0 where none closes it.

    A follower that turns, too, takes whole turns away from the gaps.
    """
    numbers = like.new_tensor([0, *(sign * n for n in range(1, MOST_TURNS + 1) for sign in (1, -1))])
    rest = gaps(numbers)
    rest = (rest - TURN * torch.round(rest / TURN)).abs() if following else rest.abs()
    # The smallest of the numbers that fit equally well: they part as the ratio changes.
    best = (rest <= rest.amin(-1, keepdim=True) + ALIKE).long().argmax(-1, keepdim=True)
    return torch.where(rest.gather(-1, best) <= SATISFIED, numbers[best], 0.0)


def infeasible(couplings: Mapping[str, Coupling], joints: Mapping[str, Joint]) -> dict[str, str]:
    """Couplings whose followers have limits that leave no room within the limits of their leaders: name -> both ranges, in words.

    The range of a coordinate is what its own limits and couplings leave, so that a chain of couplings is seen as a whole. Angles may differ
    by a turn. Sums of several coordinates, and couplings that can be switched off or yield, are not looked at.
    """
    firm = {name: coupling for name, coupling in couplings.items() if coupling.active is None and coupling.compliance is None}
    locks = {name: coupling for name, coupling in firm.items() if isinstance(coupling, JointLock)}
    pairs = {name: coupling for name, coupling in firm.items() if isinstance(coupling, JointCoupling)}
    ranges: dict[tuple[str, int], tuple[Tensor, Tensor]] = {}

    def range_of(name: str, place: int) -> tuple[Tensor, Tensor]:
        limits = joints[name].limits
        if limits is None:
            return ranges.get((name, place)) or (torch.tensor(-torch.inf), torch.tensor(torch.inf))
        return ranges.get((name, place)) or (limits[0].detach()[..., place], limits[1].detach()[..., place])

    leaders = {follower: leader for leader, follower in map(_ends, pairs.values())}

    def depth(name: str) -> int:
        end, count = _ends(pairs[name])[0], 0
        while end in leaders and count < len(leaders):
            end, count = leaders[end], count + 1
        return count

    wrong: dict[str, str] = {}
    for name, lock in locks.items():
        if lock.follower not in joints or lock.coordinate not in range(joints[lock.follower].num_coordinates):
            continue
        (lower, upper), value = range_of(lock.follower, lock.coordinate), lock.offset.detach()
        turns = (0, 1, -1) if _is_angle(joints[lock.follower], lock.coordinate) else (0,)
        if not any(bool(((value + TURN * k - lower > ROOM) & (upper - value - TURN * k > ROOM)).all()) for k in turns):
            wrong[name] = f"limits [{lower.tolist()}, {upper.tolist()}] of {lock.follower!r}, which it holds at {value.tolist()}"
    for name in sorted(pairs, key=depth) * len(pairs):  # a range travels one coupling further in each round
        coupling = pairs[name]
        if name in wrong or any(j not in joints or place not in range(joints[j].num_coordinates) for j, place in _ends(coupling)):
            continue
        (leader, follower), ratio, offset = _ends(coupling), coupling.ratio.detach(), coupling.offset.detach()
        curved = coupling.curve is not None
        if bool((ratio == 0).any()) and not curved:
            continue
        allowed = range_of(*follower)
        if curved:
            bounds = torch.broadcast_tensors(*range_of(*leader))
            if not all(bool(torch.isfinite(bound).all()) for bound in bounds):
                continue
            share = torch.linspace(0, 1, SAMPLES, dtype=offset.dtype, device=offset.device)
            samples = bounds[0][..., None] + share * (bounds[1] - bounds[0])[..., None]
            values = torch.stack([coupling.law(x[..., None]).detach()[..., 0] for x in samples.unbind(-1)], dim=-1)
            carried = values.amin(-1), values.amax(-1)
        else:
            turned = [ratio * bound + offset for bound in range_of(*leader)]
            carried = torch.minimum(*turned), torch.maximum(*turned)
        turns = (0, 1, -1) if all(_is_angle(joints[j], place) for j, place in (leader, follower)) else (0,)
        meets = [(torch.maximum(allowed[0], carried[0] + TURN * k), torch.minimum(allowed[1], carried[1] + TURN * k)) for k in turns]
        if not any(bool((upper - lower > ROOM).all()) for lower, upper in meets):
            words = [f"[{lower.tolist()}, {upper.tolist()}]" for lower, upper in (allowed, carried)]
            wrong[name] = f"limits {words[0]} of the follower {follower[0]!r}; its leader {leader[0]!r} carries it through {words[1]}"
        elif not curved and bool((meets[0][1] - meets[0][0] > ROOM).all()):
            back = [(bound - offset) / ratio for bound in meets[0]]
            ranges[follower], ranges[leader] = meets[0], (torch.minimum(*back), torch.maximum(*back))
    return wrong


def check_ranges(couplings: Mapping[str, Coupling], joints: Mapping[str, Joint]) -> None:
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
