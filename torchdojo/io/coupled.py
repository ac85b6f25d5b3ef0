"""Couplings of joints as robot files describe them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torchdojo.elements.coupling import Coupling
from torchdojo.elements.couplings import JointCoupling, JointLock, SumCoupling

__all__ = ["CouplingInfo", "SumInfo", "coupling_of"]


@dataclass(frozen=True)
class CouplingInfo:
    """A `JointCoupling`: coordinate of the follower = offset + ratio c + curve · (c², c³, c⁴), c of the leader. Without leader: a lock."""

    leader: str | None
    follower: str
    ratio: float
    offset: float
    leader_coordinate: int = 0
    follower_coordinate: int = 0
    curve: tuple[float, ...] | None = None
    active: bool | None = None  #: None: it cannot be switched off
    compliance: float | None = None  #: None: it is rigid
    damping: float | None = None


@dataclass(frozen=True)
class SumInfo:
    """A `SumCoupling`. leaders, followers: (joint, coordinate) -> coefficient."""

    leaders: dict[str | tuple[str, int], float]
    followers: dict[str | tuple[str, int], float]
    ratio: float
    offset: float
    curve: tuple[float, ...] | None = None
    active: bool | None = None
    compliance: float | None = None
    damping: float | None = None


def coupling_of(info: CouplingInfo | SumInfo) -> Coupling:
    """The coupling that a description says."""
    acts = {"active": info.active, "compliance": info.compliance, "damping": info.damping}
    law: dict[str, Any] = {"ratio": info.ratio, "offset": info.offset, "curve": info.curve, **acts}
    if isinstance(info, SumInfo):
        return SumCoupling(info.leaders, info.followers, **law)
    if info.leader is None:
        return JointLock(info.follower, info.offset, coordinate=info.follower_coordinate, **acts)
    places = {"leader_coordinate": info.leader_coordinate, "follower_coordinate": info.follower_coordinate}
    return JointCoupling(info.leader, info.follower, **law, **places)
