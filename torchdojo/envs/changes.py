"""Changes of the robot of an environment that was built already, where they change the unknowns of its steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import torch
from torch import Tensor

from torchdojo.elements.joints import StandardJoint
from torchdojo.envs.checks import one_from
from torchdojo.envs.env import Env
from torchdojo.envs.motion import EnvState

__all__ = ["add_to_joints"]


@torch.no_grad()
def add_to_joints(env: Env, joints: Mapping[str, Sequence[int]], numbers: Mapping[str, Tensor]) -> None:
    """Give joints an armature or a Coulomb friction, in the place of what they have, or where they were built without.

    The starts of the pool stay. Their warm starts and biases of sensors are computed anew, and the environment begins new episodes.

    Args:
        joints: coordinates that get the numbers, by the name of a standard joint. numbers: {"armature" or "friction": (B,)}
            [kg·m², kg; N·m, N].

    Raises:
        ValueError: other numbers.
    """
    mech, values = env.mech, dict[tuple[str, str], Tensor]()
    for name, coordinates in joints.items():
        joint = cast(StandardJoint, mech.joints[name])
        for field, value in numbers.items():
            before = getattr(joint, one_from("numbers", field, ("armature", "friction")))
            old = torch.zeros(joint.num_coordinates, dtype=torch.float64) if before is None else before.detach().double()
            new = old.expand(len(value), joint.num_coordinates).clone()
            new[:, list(coordinates)] = value[:, None]
            if before is None and not bool((new != 0).any()):
                continue
            joint.set_fields({**joint.fields, field: 1})
            setattr(joint, field, new.mean(0))  # the pool has another number of states than there are environments
            values[name, field] = new
    mech.rebuild()
    _renew_pool(env)
    for (name, field), new in values.items():
        setattr(mech.joints[name], field, new)


def _renew_pool(env: Env) -> None:
    """Compute the pool's results of steps anew, for a mechanism that has other unknowns now."""
    zeros = torch.zeros(len(env._pool), dtype=torch.int64)
    motion = EnvState(*[*env._pool.split(env._sizes, -1), zeros, zeros.double()]).motion
    starts = env._begin(motion, env._observe(motion))
    env._pool, env._sizes = torch.cat(starts[:-2], -1), [tensor.shape[-1] for tensor in starts[:-2]]
    env._normals = [place.start for name, place in env.mech.impulse_layout.items() if name.startswith("contacts.")]
    env.state = env._fresh(env._index()[0])
