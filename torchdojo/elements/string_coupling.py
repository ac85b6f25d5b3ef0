"""Couplings of the lengths of two strings: a differential of cables, an inextensible string, antagonists on one pulley."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from torchdojo.elements.coupling import Coupling, End
from torchdojo.elements.element import Motion, Pose
from torchdojo.elements.joint import Joint
from torchdojo.elements.tendon import Path
from torchdojo.elements.tendon_paths import Frame, Pulley, Span, SpatialTendon, Strings

__all__ = ["StringCoupling"]

PATH_FIELDS = ("points", "centers", "turns", "radii", "sides", "divisors")


class StringCoupling(Strings, Coupling):
    """Keeps the length of a string at a polynomial of the length of another: y = offset + ratio x + k₂ x² + k₃ x³ + k₄ x⁴.

    ``td.StringCoupling(["left", "hand"], ["right", "hand"], sites=mech.sites, ratio=-1.0, offset=0.4)``: y is the length of the follower,
    x the one of the leader, less `leader_length`. Without a leader, y = offset: a string that cannot stretch, and pushes as well as pulls.
    This is MJCF's equality of spatial tendons.

    One equation, y⁺ − p(x⁺) = 0 at the next configuration, and one impulse λ ("couplings.NAME" in `Mechanism.impulse_layout`) [N·s]. It
    is h times the force along the follower's length, positive where it pushes the ends apart. λ acts along the gradient of y, and
    −λ p′(x) along the one of x, at the current configuration. Forces along straight parts are opposite, so momentum is kept.

    Args:
        follower, leader: paths as of `SpatialTendon`; leader None or empty: there is none.
        sites: name -> `td.Site`, for names in the paths.
        ratio: d y / d x, (...,). offset: y where x = 0 [m], (...,). leader_length: length of the leader where x = 0 [m], (...,).
        curve, active, compliance, damping: as of `JointCoupling`.

    The numbers of both paths are fields, as of `SpatialTendon`, the follower's first; `orientations` (..., k, 4) are its
    `turns`.

    Raises:
        ValueError: a path that `SpatialTendon` refuses; laws that `JointCoupling` refuses.
    """

    fields: ClassVar[dict[str, int]] = {"ratio": 0, "offset": 0, "leader_length": 0}
    structural: ClassVar[frozenset[str]] = frozenset()
    orientations_field = "orientations"
    counts_turns = False
    ends: tuple[End, ...] = ()  # no coordinates of joints
    leader_length: Tensor
    bodies: tuple[str | None, ...]
    parts: tuple[tuple[Span, ...], tuple[Span, ...]]  #: spans of the follower and of the leader

    def __init__(
        self,
        follower: Sequence[Any],
        leader: Sequence[Any] | None = None,
        *,
        sites: Mapping[str, Frame] | None = None,
        ratio: Any = 1.0,
        offset: Any = 0.0,
        leader_length: Any = 0.0,
        curve: Any = None,
        active: Any = None,
        compliance: Any = None,
        damping: Any = None,
    ) -> None:
        super().__init__(curve=curve, active=active, compliance=compliance, damping=damping)
        leader = list(leader or ())
        seam = sum(isinstance(item, Pulley) for item in follower)  # the number of the pulley that parts both paths here
        whole = SpatialTendon([*follower, *([Pulley(1.0), *leader] if leader else ())], sites=sites)
        self.site_bodies, self.side_bodies, self.surfaces, self.bodies = whole.site_bodies, whole.side_bodies, whole.surfaces, whole.bodies
        follower_spans = tuple(span for span in whole.spans if span.pulley < seam)
        leader_spans = tuple(
            span._replace(pulley=-1 if span.pulley == seam else span.pulley - 1) for span in whole.spans if span.pulley >= seam
        )
        self.parts, self.spans = (follower_spans, leader_spans), (*follower_spans, *leader_spans)
        numbers = {name: getattr(whole, name) for name in PATH_FIELDS if name in whole.fields}
        if leader:
            numbers["divisors"] = torch.cat((whole.divisors[..., :seam], whole.divisors[..., seam + 1 :]), dim=-1)
            if not numbers["divisors"].shape[-1]:
                del numbers["divisors"]
        labels = {name: self.orientations_field if name == "turns" else name for name in numbers}
        self.set_fields({**self.fields, **{label: whole.fields[name] for name, label in labels.items()}})
        for name, label in labels.items():
            setattr(self, label, numbers[name])
        self.ratio, self.offset, self.leader_length = ratio, offset, leader_length

    def _description(self) -> list[str]:
        return [" - ".join(name or "world" for name in self.bodies), f"{len(self.site_bodies)} sites, {len(self.surfaces)} surfaces"]

    def rename(self, name_of: Callable[[str], str]) -> None:
        """Let the strings refer to other bodies: old name -> new name."""
        self.bodies = tuple(None if name is None else name_of(name) for name in self.bodies)

    def attach(self, joints: Mapping[str, Joint]) -> None:
        """Check that the bodies of the strings are there: every body of a mechanism is the child of a joint.

        Raises:
            ValueError: unknown bodies.
        """
        bodies = list(dict.fromkeys(joint.body_names[-1] for joint in joints.values()))
        unknown = [name for name in self.bodies if name is not None and name not in bodies]
        if unknown:
            raise ValueError(f"its strings run over bodies {unknown}; bodies are {bodies}, and the world is None")

    def check_field(self, name: str, value: Tensor) -> Tensor:
        value = super().check_field(name, value)
        self._check_numbers(self.label(name), name, value, self.fields[name])
        return value

    @property
    def body_names(self) -> tuple[str | None, ...]:
        return self.bodies

    def kind(self) -> tuple[object, ...]:
        return (*super().kind(), self.site_bodies, self.side_bodies, self.surfaces, self.parts)

    # -- equations -----------------------------------------------------------------------------------------------------------------------

    def strings(self, *poses: Pose) -> tuple[Path, Path]:
        """The follower and the leader at one pose per body of `body_names`."""
        return self._path_of(poses, self.parts[0]), self._path_of(poses, self.parts[1])

    def _gap(self, follower: Path, leader: Path) -> tuple[Tensor, Tensor]:
        """y − p(x), and x, (..., 1) each [m]."""
        x = (leader.length - self.leader_length)[..., None]
        return follower.length[..., None] - self.law(x), x

    def constraint(self, *poses: Pose) -> Tensor:
        return self._gap(*self.strings(*poses))[0]

    def residual(
        self, motions: tuple[Motion, ...], impulse: Tensor, slack: Tensor, u: Tensor, timestep: Tensor
    ) -> tuple[list[tuple[Tensor, Tensor]], Tensor]:
        follower, leader = strings = self.strings(*[motion.pose for motion in motions])
        before, x = self._gap(*strings)
        active = None if self.active is None else self.active[..., None]
        acting = impulse if active is None else active * impulse
        led = -self.slope(x) * acting
        wrenches = [
            (acting * force + led * other, acting * torque + led * turn)
            for (force, torque), (other, turn) in zip(follower.pulls, leader.pulls, strict=True)
        ]
        rows = self._gap(*self.strings(*[motion.next for motion in motions]))[0]
        if self.compliance is not None:
            give = self.compliance[..., None] / timestep
            if self.damping is not None:
                rows = rows + give * self.damping[..., None] * (rows - before)
            rows = rows + give * impulse
        return wrenches, rows if active is None else active * rows + timestep * (1 - active) * impulse
