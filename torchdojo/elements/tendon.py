"""Tendons: forces along the length of a path through several bodies. The paths are in tendon_paths.py.

A path has a length L of the poses, and its gradient g, the wrench of a unit of tension: per body, force and torque. With the velocities V⁺
of the step, the current configuration and h (the law of MuJoCo's implicit integrators, and of dampers and springs of joints here):

    rate       L̇ = g · V⁺                                         present gradient, velocity of the step
    row        λ − h (k e − (d + h k⁺) L̇ + u + N + F) + a (L̇ − L̇⁻) = 0
    impulses   λ g on the bodies                                   λ along L: positive pushes the ends apart

e is the length missing to `rest_lower`, or minus the excess over `rest_upper`, and zero in between. So springs are
explicit and keep their energy to h², and dampers are implicit and never do positive work: −d L̇². With `implicit`, k⁺ = k where e is not
zero, else 0: the spring is backward Euler along the tangent of the path, and dissipates. u is the input of an actuated tendon [N].

Limits, friction and armature are optional. They are laws of the same scalar L̇, which only fall with it, so that Newton's method needs no
slack and no dual for them, and the step stays one smooth function of its inputs:

    curves     −P(y) − L̇ |L̇| (d₂ + d₃ |L̇|)          P(y) = k₂ y² + k₃ y³, y = −e, or L̇ h − e where `implicit` (elements/curves.py)
    limits     N = k_l (P(o_l) − P(o_r))           o_l = l − L − (h + τ P′(l − L)) L̇,  o_r = L − r + (h + τ P′(L − r)) L̇,  l < r
    friction   F = −f L̇ / √(L̇² + s²)              at most f, with creep: s = SLIP
    armature   a (L̇ − L̇⁻)                          L̇⁻ is the rate of the step before, g⁻ · V: energy ½ a L̇² of what moves with L

P(o) is zero for o ≤ 0, o²/(2w) up to w = SOFTENING, then o − w/2: a spring of stiffness k_l on one side, exactly off inside of the limits.
It acts at the next length, L + h L̇ along the tangent. Where the length is outside already, a damper k_l τ acts beside it, as long as both
push. So it takes the energy of what runs into it: in one step and without a bounce where h² k_l is large against the inertia, as it is by
default. A start far outside comes back at the rate o/(h + τ). At rest a limit gives by the force over k_l and w/2.

Friction is concave on both sides of zero, where Newton's method would jump back and forth. So a step of the solver ends where the rate
passes zero (`Tendon.turning`).

The gradient of the straight parts is made of opposite forces along one line, so linear and angular momentum are kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from torchdojo.elements.curves import curve_energy, curve_force, drag
from torchdojo.elements.element import Element, Motion, Pose, previous_pose
from torchdojo.elements.joint import Joint, pulled_back
from torchdojo.parameters import as_tensor, require

__all__ = ["Path", "Tendon"]

SOFTENING = 1e-6  # [m] overshoot over which the stiffness of a limit rises to its full value
SLIP = 1e-4  # [m/s] friction is 1/√2 of its bound at this rate
LIMIT_STIFFNESS = 1e6  # [N/m]
LIMIT_TIME = 0.02  # [s] the default of MuJoCo's constraints
LIMIT_FIELDS = ("limit_lower", "limit_upper", "limit_stiffness", "limit_time")
CURVES = ("stiffness_curve", "damping_curve")
FAR = 1e9  # [m] stands for a limit that does not exist


class Path(NamedTuple):
    """A path at given poses.

    length: (...) [m]. pulls: per body of the tendon, the derivative of the length by its displacement (..., 3), world frame, and by its
    rotation (..., 3), body frame: force and torque per force along the length.
    """

    length: Tensor
    pulls: list[tuple[Tensor, Tensor]]

    def rate(self, twists: Sequence[Any]) -> Tensor:
        """Rate of the length at twists of the bodies [m/s], (...)."""
        parts = [
            (force * twist.v).sum(-1) + (torque * twist.omega).sum(-1) for (force, torque), twist in zip(self.pulls, twists, strict=True)
        ]
        return torch.stack(torch.broadcast_tensors(*parts), dim=0).sum(0)


class Tendon(Element):
    """Base class of tendons: spring, damper and input along the length of a path.

    A subclass has `body_names` and `length`. `path` follows by differentiation, and is overridden where a closed form is at hand.

    One impulse λ ("tendons.NAME" in `Mechanism.impulse_layout`): h times the force along the length [N·s]. The tension is −λ/h.

    Args:
        stiffness: k [N/m], (...,), at least 0. damping: d [N·s/m], (...,), at least 0.
        rest: length at which the spring has no force [m], a number, or (lower, upper) between which it has none.
        implicit: whether the spring acts at the next length, for stiff ones (h² k above a fraction of the inertia).
        actuated: whether the tendon has an input in u: a force along its length [N], positive pushes, negative pulls.
        limits: (lower, upper) length [m], each a number, (...,), or None where that side has no limit. None: no limits.
        limit_stiffness: k_l of these one-sided springs [N/m], (...,), at least 0.
        limit_time: τ of the dampers beside them, k_l τ, which act outside of the limits [s], (...,), at least 0.
        friction: f, a bound on a force against the rate of the length [N], (...,). None: no friction.
        armature: a, the inertia of what moves with the length, as of a spool [kg], (...,). None: no armature.
        stiffness_curve: (k₂, k₃) of further forces −k₂ y² − k₃ y³ along the length, with the excess y over the rest range, negative below
            it [N/m², N/m³], (..., 2). None: the spring is linear.
        damping_curve: (d₂, d₃), at least 0, of a further force −L̇ |L̇| (d₂ + d₃ |L̇|) [N·s²/m², N·s³/m³], (..., 2). None: it is linear.

    Raises:
        ValueError: negative stiffness, damping, friction or armature, curves without two numbers, a lower length above the upper one.
    """

    num_rows = 1
    fields: ClassVar[dict[str, int]] = {"stiffness": 0, "damping": 0, "rest_lower": 0, "rest_upper": 0}
    optional: ClassVar[dict[str, int]] = {**dict.fromkeys(LIMIT_FIELDS, 0), "friction": 0, "armature": 0, **dict.fromkeys(CURVES, 1)}
    noun: ClassVar[str] = "tendon"
    structural: ClassVar[frozenset[str]] = frozenset({"actuated", "implicit"})
    stiffness: Tensor
    damping: Tensor
    rest_lower: Tensor
    rest_upper: Tensor
    limit_lower: Tensor | None
    limit_upper: Tensor | None
    limit_stiffness: Tensor | None
    limit_time: Tensor | None
    friction: Tensor | None
    armature: Tensor | None
    stiffness_curve: Tensor | None
    damping_curve: Tensor | None
    #: joints that the path runs over, which `attach` finds
    joints: tuple[Joint, ...] = ()

    def __init__(
        self,
        *,
        stiffness: Any = 0.0,
        damping: Any = 0.0,
        rest: Any = 0.0,
        implicit: bool = False,
        actuated: bool = False,
        limits: Any = None,
        limit_stiffness: Any = LIMIT_STIFFNESS,
        limit_time: Any = LIMIT_TIME,
        friction: Any = None,
        armature: Any = None,
        stiffness_curve: Any = None,
        damping_curve: Any = None,
    ) -> None:
        super().__init__()
        laws = {"friction": friction, "armature": armature, "stiffness_curve": stiffness_curve, "damping_curve": damping_curve}
        present = {name: value for name, value in laws.items() if value is not None}
        if limits is not None:
            present = self._limits(limits) | {"limit_stiffness": limit_stiffness, "limit_time": limit_time} | present
        self.set_fields({**type(self).fields, **{name: self.optional[name] for name in present}})
        for name, value in present.items():
            setattr(self, name, value)
        self.implicit, self.actuated = implicit, actuated
        self.stiffness, self.damping = stiffness, damping
        pair = rest if isinstance(rest, (tuple, list)) else (rest, rest)
        if len(pair) != 2:
            raise ValueError(f"{self.label('rest')}: got {rest!r}; allowed: a length, or a pair (lower, upper) [m]")
        lower, upper = (as_tensor(value, self.label("rest")) for value in pair)
        require(lower.detach() <= upper.detach(), self.label("rest"), lower, f"lower lengths at most the upper ones, {upper.tolist()}")
        self.rest_lower, self.rest_upper = pair

    def _limits(self, limits: Any) -> dict[str, Any]:
        """The fields of limits; a side without one is far away."""
        if not isinstance(limits, (tuple, list)) or len(limits) != 2:
            raise ValueError(f"{self.label('limits')}: got {limits!r}; allowed: a pair (lower, upper) [m], None where a side has none")
        lower, upper = (far if value is None else value for value, far in zip(limits, (-FAR, FAR), strict=True))
        below, above = as_tensor(lower, self.label("limits")), as_tensor(upper, self.label("limits"))
        require(below.detach() < above.detach(), self.label("limits"), below, f"lower lengths below the upper ones, {above.tolist()}")
        return {"limit_lower": lower, "limit_upper": upper}

    @property
    def reads_incoming(self) -> bool:  # type: ignore[override]
        return self.armature is not None

    def kind(self) -> tuple[object, ...]:
        return (*super().kind(), *(name in self.fields for name in self.optional))

    @property
    def num_inputs(self) -> int:  # type: ignore[override]
        return int(self.actuated)

    def check_field(self, name: str, value: Tensor) -> Tensor:
        value = super().check_field(name, value)
        if name in CURVES and value.shape[-1] != 2:
            raise ValueError(f"{self.label(name)}: got shape {tuple(value.shape)}; allowed: (..., 2), the numbers of square and cube")
        if name in ("stiffness", "damping", "limit_stiffness", "limit_time", "friction", "armature", "damping_curve"):
            require(value >= 0, self.label(name), value, "numbers >= 0")
        return value

    def attach(self, joints: Mapping[str, Joint]) -> None:
        """Find the joints that the path refers to by name, in the mechanism that gets the tendon. Default: there are none."""

    # -- the path ------------------------------------------------------------------------------------------------------------------------

    def length(self, *poses: Pose) -> Tensor:
        """Length of the path at one pose per body of `body_names` [m], (...)."""
        raise NotImplementedError(f"{type(self).__name__}: a tendon overrides length(*poses) -> (...), or path(*poses)")

    def path(self, *poses: Pose) -> Path:
        """Length, and its gradient by the poses."""
        length = self.length(*poses)
        pulls = pulled_back(lambda *moved: self.length(*moved)[..., None], poses, torch.ones_like(length)[..., None])
        return Path(length, pulls)

    # -- the law -------------------------------------------------------------------------------------------------------------------------

    def stretch(self, length: Tensor) -> Tensor:
        """e: how far the length is below its rest range, or minus how far above [m]."""
        return (self.rest_lower - length).clamp_min(0) - (length - self.rest_upper).clamp_min(0)

    def energy(self, *poses: Pose) -> Tensor:
        """Energy of the spring and of the limits at these poses [J], (...)."""
        length = self.path(*poses).length
        energy = 0.5 * self.stiffness * self.stretch(length) ** 2 + self.limit_energy(length)
        return energy if self.stiffness_curve is None else energy + curve_energy(-self.stretch(length), self.stiffness_curve)

    def limit_energy(self, length: Tensor) -> Tensor:
        """Energy of the limits at a length (...) [J]."""
        if self.limit_stiffness is None:
            return torch.zeros_like(length)
        assert self.limit_lower is not None and self.limit_upper is not None  # they come together
        return self.limit_stiffness * (overshoot_energy(self.limit_lower - length) + overshoot_energy(length - self.limit_upper))

    def residual(
        self, motions: tuple[Motion, ...], impulse: Tensor, slack: Tensor, u: Tensor, timestep: Tensor
    ) -> tuple[list[tuple[Tensor, Tensor]], Tensor]:
        h = timestep[..., 0]
        length, pulls = path = self.path(*[motion.pose for motion in motions])
        rate = path.rate([motion.twist for motion in motions])
        stretch = self.stretch(length)
        damping = self.damping
        if self.implicit:
            damping = damping + h * torch.where(stretch != 0, self.stiffness, 0.0)
        force = self.stiffness * stretch - damping * rate
        if self.stiffness_curve is not None:
            excess = torch.where(stretch != 0, h * rate - stretch, 0.0) if self.implicit else -stretch
            force = force - curve_force(excess, self.stiffness_curve)
        if self.damping_curve is not None:
            force = force - drag(rate, self.damping_curve)
        if u.shape[-1]:
            force = force + u[..., 0]
        if self.limit_stiffness is not None:
            force = force + self.limit_stiffness * self._limit_overshoot(length, rate, h)
        if self.friction is not None:
            force = force - self.friction * rate / (rate**2 + SLIP**2).sqrt()
        if self.armature is not None:
            before = [previous_pose(motion.pose, motion.incoming, motion.timestep) for motion in motions]
            incoming = self.path(*before).rate([motion.incoming for motion in motions])
            force = force - self.armature * (rate - incoming) / h
        wrenches = [(impulse * force_, impulse * torque) for force_, torque in pulls]
        return wrenches, impulse - (h * force)[..., None]

    def _limit_overshoot(self, length: Tensor, rate: Tensor, h: Tensor) -> Tensor:
        """P(o_l) − P(o_r) [m], (...). The distance to a limit is data, so its rounding does not change between iterations."""
        assert self.limit_lower is not None and self.limit_upper is not None and self.limit_time is not None  # they come together
        under, over = self.limit_lower - length, length - self.limit_upper
        lower, upper = (h + self.limit_time * (o / SOFTENING).clamp(0, 1) for o in (under, over))
        return overshoot(under - lower * rate) - overshoot(over + upper * rate)

    # -- properties of the law for the solver --------------------------------------------------------------------------------------------

    def steepness(self, timestep: Tensor) -> Tensor:
        """Largest impulse per change of the length [N·s/m], (...), by which rounding of lengths enters the equations.

        timestep: (...).
        """
        steepness = self.damping + (timestep * self.stiffness if self.implicit else 0.0)
        if self.limit_stiffness is not None:
            assert self.limit_time is not None  # they come together
            steepness = steepness + (timestep + self.limit_time) * self.limit_stiffness
        return steepness if self.friction is None else steepness + self.friction / SLIP

    def turning(self, rate: Tensor, change: Tensor) -> Tensor:
        """The fraction of a step `change` of the rate that ends where the rate passes zero, (...), where it does; else 1.

        Newton's method for a friction may jump back and forth across its kink. From zero, it goes up to the rate monotonically, since
        friction is concave there.
        """
        following = rate + change
        turns = (rate * following < 0) & (torch.minimum(rate.abs(), following.abs()) > SLIP)
        return torch.where(turns, rate.abs() / change.abs(), 1.0)


def overshoot(over: Tensor) -> Tensor:
    """P(o): zero before a limit, and the overshoot behind it, with a smooth start."""
    start = over.clamp(0, SOFTENING)
    return start / SOFTENING * (over - 0.5 * start)


def overshoot_energy(over: Tensor) -> Tensor:
    """∫ P(o) do [m²]."""
    start = over.clamp(0, SOFTENING)
    return start**3 / (6 * SOFTENING) + 0.5 * (over - SOFTENING).clamp_min(0) * over
