"""Named poses of a mechanism: coordinates to start from, under names such as "home"."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from torchdojo.structure import Structure

__all__ = ["Keyframe", "keyframe", "within_limits"]


class Keyframe(NamedTuple):
    """A pose to start from, `mech.poses["home"] = td.Keyframe({"knee": {"q": 1.2}})`.

    It holds coordinates, and no state: plain numbers serve every dtype, device and batch of parameters. Keyframes belong to the mechanism
    as its names do. They are copied and pickled with it, and are no part of its `state_dict`.

    values: joints and free bodies by name, keywords of `Mechanism.initial_state`. Other coordinates are zero.
    ctrl: controls of the actuators that hold the pose, in the order of ``mech.actuators.names``, or None.
    """

    values: Mapping[str, Mapping[str, Any]]
    ctrl: Any = None


def keyframe(poses: Mapping[str | int, Keyframe], name: str | int) -> Keyframe:
    """The pose of this name.

    Raises:
        ValueError: no pose of this name. TypeError: something else than a `Keyframe` under it.
    """
    if name not in poses:
        there = f"there are {list(poses)}" if poses else "it has none; set one, mech.poses['home'] = td.Keyframe({'joint': {'q': ...}})"
        raise ValueError(f"pose: the mechanism has no pose {name!r}; {there}")
    pose = poses[name]
    if not isinstance(pose, Keyframe):
        raise TypeError(f"pose {name!r}: got {type(pose).__name__}; allowed: td.Keyframe({{'joint': {{'q': ...}}}})")
    return pose


def within_limits(mech: Structure) -> dict[str, dict[str, Any]]:
    """Coordinates at the limit nearest to zero, of the tree's joints whose limits exclude zero: joint -> {"q": ...}.

    One step would bring a coordinate back within its limits: an ankle whose range starts at 30 degrees throws an ant off the ground.
    """
    coordinates = {}
    joints = mech.named_joints()
    for name in mech.tree_joints:
        limits = joints[name].limits if name in joints else None
        if limits is not None:
            lower, upper = (bound.detach() for bound in limits)
            nearest = torch.maximum(torch.minimum(torch.zeros_like(lower + upper), upper), lower)
            if bool((nearest != 0).any()):
                coordinates[name] = {"q": nearest}
    return coordinates
