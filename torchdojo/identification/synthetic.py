"""Recordings made with the engine itself, to see what a fit can find before anything is thrown."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchdojo import quaternion as quat
from torchdojo.identification.parameters import ParametricMechanism, tree_layout
from torchdojo.solver.options import Status
from torchdojo.state.layout import ORIENTATION, STATE_SIZE

__all__ = ["record_rollouts"]


def record_rollouts(
    model: ParametricMechanism, z: Tensor, samples: int, every: int = 1, u: Tensor | None = None, sensors: Sequence[str] = ()
) -> dict[str, Any]:
    """Arrays of the schema of `read_recordings`, for ``numpy.savez``: rollouts of a model from states z (n, 13 nb).

    Each rollout has `samples` samples, one after every `every` steps, with mean velocities since the sample before. Where joints connect
    bodies, the recording has the floating bodies, if there are any, and the coordinates of joints.

    Args:
        u: (n, samples, m), inputs that are held over the steps to each sample [N, N·m]; None: zero, and not recorded.
        sensors: names in `mech.sensors`, whose readings since the sample before are recorded.

    Raises:
        ValueError: a step failed; inputs of another shape.
    """
    mech = model.mechanism
    if u is not None and u.shape != (len(z), samples, mech.num_inputs):
        raise ValueError(f"record_rollouts: got u of shape {tuple(u.shape)}; allowed: {(len(z), samples, mech.num_inputs)}")
    with_joints = bool(model.observed_joints[1])
    with torch.no_grad():
        out = model.rollout(z, samples * every, None, None if u is None else u.repeat_interleave(every, dim=1))
        failed = (out.status != int(Status.SUCCESS)).nonzero()
        if len(failed):
            i, t = failed[0].tolist()
            raise ValueError(f"rollout {i} failed at step {t}: {Status(int(out.status[i, t])).explain}")
        dt = every * float(mech.timestep)
        bodies, coordinates = tree_layout(model) if with_joints else (list(range(mech.num_bodies)), [])
        state = out.z.unflatten(-1, (-1, STATE_SIZE))[:, ::every, bodies]
        x, q = model.positions(state), state[..., ORIENTATION]
        columns = {
            "position": x[:, 1:],
            "linear_velocity": x.diff(dim=1) / dt,
            "quaternion": q[:, 1:],
            "angular_velocity": quat.rotation_vector(quat.multiply(quat.conjugate(q[:, :-1]), q[:, 1:])) / dt,
        }
        if not bodies:
            columns = {}
        if len(bodies) == 1:
            columns = {name: column[:, :, 0] for name, column in columns.items()}
        if with_joints:
            angle, rate = (values[..., coordinates] for values in model.call("to_minimal", out.z[:, 1:]))
            columns["joint_angle"] = angle[:, every - 1 :: every]
            columns["joint_velocity"] = rate.unflatten(1, (-1, every)).mean(2)
        if u is not None:  # a sample has the inputs after it, and the last one has none
            columns["input"] = torch.cat((u[:, 1:], torch.zeros_like(u[:, :1])), dim=1)
        if sensors:
            step: Any = SimpleNamespace(z=out.z[:, every::every], impulses=out.impulses.unflatten(1, (-1, every)).sum(2))
            columns["reading"] = model.call("read_sensors", out.z[:, :-1:every], step, names=tuple(sensors), u=u, repeat=every)
    offsets = np.arange(0, len(z) * samples + 1, samples)
    return {**{name: column.flatten(0, 1).numpy() for name, column in columns.items()}, "offsets": offsets, "dt": np.array(dt)}
