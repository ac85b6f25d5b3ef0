"""Tendons: forces along the length of a path through several bodies. The paths are in tendon_paths.py.

A path has a length L of the poses, and its gradient g, the wrench of a unit of tension: per body, force and torque. With the velocities V⁺
of the step, the current configuration and h (the law of MuJoCo's implicit integrators, and of dampers and springs of joints here):

    rate       L̇ = g · V⁺                                         gradient of now, velocity of the step
    row        λ − h (k e − (d + h k⁺) L̇ + u) = 0                 impulse λ along L: positive pushes the ends apart
    impulses   λ g on the bodies

e is by how much the length is below `rest_lower`, or minus by how much it is above `rest_upper`, and zero in between. So springs are
explicit and keep their energy to h², and dampers are implicit and never do positive work: −d L̇². With `implicit`, k⁺ = k where e is not
zero, else 0: the spring is backward Euler along the tangent of the path, and dissipates. u is the input of an actuated tendon [N].

The gradient of the straight parts is made of opposite forces along one line, so linear and angular momentum are kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from torchdojo.elements.element import Element, Motion, Pose
from torchdojo.elements.joint import Joint, pulled_back
from torchdojo.parameters import as_tensor, require

__all__ = ["Path", "Tendon"]


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

    Raises:
        ValueError: negative stiffness or damping, a lower rest length above the upper one.
    """

    num_rows = 1
    fields: ClassVar[dict[str, int]] = {"stiffness": 0, "damping": 0, "rest_lower": 0, "rest_upper": 0}
    noun: ClassVar[str] = "tendon"
    structural: ClassVar[frozenset[str]] = frozenset({"actuated", "implicit"})
    stiffness: Tensor
    damping: Tensor
    rest_lower: Tensor
    rest_upper: Tensor
    #: joints that the path runs over, which `attach` finds
    joints: tuple[Joint, ...] = ()

    def __init__(
        self, *, stiffness: Any = 0.0, damping: Any = 0.0, rest: Any = 0.0, implicit: bool = False, actuated: bool = False
    ) -> None:
        super().__init__()
        self.implicit, self.actuated = implicit, actuated
        self.stiffness, self.damping = stiffness, damping
        pair = rest if isinstance(rest, (tuple, list)) else (rest, rest)
        if len(pair) != 2:
            raise ValueError(f"{self.label('rest')}: got {rest!r}; allowed: a length, or a pair (lower, upper) [m]")
        lower, upper = (as_tensor(value, self.label("rest")) for value in pair)
        require(lower.detach() <= upper.detach(), self.label("rest"), lower, f"lower lengths at most the upper ones, {upper.tolist()}")
        self.rest_lower, self.rest_upper = pair

    @property
    def num_inputs(self) -> int:  # type: ignore[override]
        return int(self.actuated)

    def check_field(self, name: str, value: Tensor) -> Tensor:
        value = super().check_field(name, value)
        if name in ("stiffness", "damping"):
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
        """Energy of the spring at these poses [J], (...)."""
        return 0.5 * self.stiffness * self.stretch(self.path(*poses).length) ** 2

    def residual(
        self, motions: tuple[Motion, ...], impulse: Tensor, slack: Tensor, u: Tensor, timestep: Tensor
    ) -> tuple[list[tuple[Tensor, Tensor]], Tensor]:
        h = timestep[..., 0]
        length, pulls = path = self.path(*[motion.pose for motion in motions])
        stretch = self.stretch(length)
        damping = self.damping
        if self.implicit:
            damping = damping + h * torch.where(stretch != 0, self.stiffness, 0.0)
        force = self.stiffness * stretch - damping * path.rate([motion.twist for motion in motions])
        if u.shape[-1]:
            force = force + u[..., 0]
        wrenches = [(impulse * force_, impulse * torque) for force_, torque in pulls]
        return wrenches, impulse - (h * force)[..., None]
