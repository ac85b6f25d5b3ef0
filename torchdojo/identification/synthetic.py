"""Recordings made with the engine itself, to see what a fit can find before anything is thrown."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from torchdojo import quaternion as quat
from torchdojo.elements.joints import Joint
from torchdojo.identification.parameters import ParametricMechanism
from torchdojo.solver.options import Status
from torchdojo.state.layout import STATE_SIZE

__all__ = ["record_rollouts"]


def record_rollouts(model: ParametricMechanism, z: Tensor, samples: int, every: int = 1) -> dict[str, Any]:
    """Arrays of the schema of `read_recordings`, for ``numpy.savez``: rollouts of a model from states z (n, 13 nb).

    Each rollout has `samples` samples, one after every `every` steps, with mean velocities since the sample before. Where joints connect
    bodies, the recording has the floating bodies and the coordinates of joints.

    Raises:
        ValueError: a step failed.
    """
    mech, (floating, others) = model.mechanism, model.observed_joints
    with torch.no_grad():
        out = model.rollout(z, samples * every)
        failed = (out.status != int(Status.SUCCESS)).nonzero()
        if len(failed):
            i, t = failed[0].tolist()
            raise ValueError(f"rollout {i} failed at step {t}: {Status(int(out.status[i, t])).explain}")
        dt, names = every * float(mech.timestep), list(mech.bodies)
        bodies = [names.index(cast(Joint, mech.joints[name]).child) for name in floating] if others else list(range(len(names)))
        state = out.z.unflatten(-1, (-1, STATE_SIZE))[:, ::every, bodies]
        x, q = model.positions(state), state[..., 6:10]
        columns = {
            "position": x[:, 1:],
            "linear_velocity": x.diff(dim=1) / dt,
            "quaternion": q[:, 1:],
            "angular_velocity": quat.rotation_vector(quat.multiply(quat.conjugate(q[:, :-1]), q[:, 1:])) / dt,
        }
        if len(bodies) == 1:
            columns = {name: column[:, :, 0] for name, column in columns.items()}
        if others:
            counts, kept, start = dict(others), list[int](), 0
            for name in mech.tree_joints:
                kept += range(start, start + counts.get(name, 0))
                start += cast(Joint, mech.joints[name]).num_coordinates
            coordinates, rates = (c[..., kept] for c in model.call("to_minimal", out.z[:, 1:]))
            columns["joint_angle"] = coordinates[:, every - 1 :: every]
            columns["joint_velocity"] = rates.unflatten(1, (-1, every)).mean(2)
    offsets = np.arange(0, len(z) * samples + 1, samples)
    return {**{name: column.flatten(0, 1).numpy() for name, column in columns.items()}, "offsets": offsets, "dt": np.array(dt)}
