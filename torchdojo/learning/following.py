"""How a robot follows a command: speeds along its heading, and errors in the mean over strides.

A velocity command is (forward speed, sideways speed [m/s], turning rate [rad/s]), in the robot's heading: the direction of its root's x
axis in the plane. Robots that move in the plane y = 0 alone head along x. Speeds are displacements of the root over a control step, turned
into the heading. They are averaged over a stride, since a robot sways within it, and compared with the command where it has not changed
for the last `settle` seconds. An error is the mean of the absolute difference.

The command is the first three numbers of the goal, for robots with a free root and contacts. An environment says otherwise by an attribute
`velocity_command`: a slice of three numbers of its goals, or None, where goals are something else. Environments of the table have it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchdojo.envs import Env
from torchdojo.learning.ground import free_root, heading
from torchdojo.learning.rollouts import Recording
from torchdojo.mechanism import Mechanism

__all__ = ["command_of", "speeds", "straight_ahead", "tracking_errors"]

ERRORS = ("forward_error", "sideways_error", "turning_error")
STRIDE = 0.5  # over which speeds are averaged where nothing has a rhythm [s]


def speeds(mech: Mechanism, record: Recording) -> Tensor:
    """Forward and sideways speed [m/s] and turning rate [rad/s] over each control step, (T, B, 3)."""
    ahead = heading(mech, record.z)
    (c, s), moved = ahead[1:].unbind(-1), record.z[1:, :, :2] - record.z[:-1, :, :2]
    (c0, s0), (x, y) = ahead[:-1].unbind(-1), moved.unbind(-1)
    turned = torch.atan2(s * c0 - c * s0, c * c0 + s * s0)
    return torch.stack((x * c + y * s, y * c - x * s, turned), -1) / record.period


def command_of(env: Env, goals: Tensor | None) -> Tensor | None:
    """Velocity commands (..., 3) of goals (..., n); None where these are something else."""
    if goals is None or goals.shape[-1] < 3:
        return None
    columns = getattr(env, "velocity_command", ...)
    if columns is None:
        return None
    if isinstance(columns, slice):
        return goals[..., columns]
    return goals[..., :3] if free_root(env.mech) and len(env.mech.contacts) else None


def straight_ahead(env: Env, record: Recording) -> bool:
    """Whether all commands say forward, neither sideways nor turning, and nothing kicks: then left and right have the same to do."""
    command = command_of(env, record.goals)
    return command is not None and env.kicks is None and bool((command[..., 1:] == 0).all()) and bool((command[..., 0] > 0).all())


def tracking_errors(env: Env, record: Recording, settle: int, stride: float | None) -> dict[str, Any]:
    """Mean absolute errors of stride-mean speeds: forward_error, sideways_error [m/s], turning_error [rad/s]; None without commands.

    Args:
        settle: control steps after a change of command that do not count. stride: [control steps].
    """
    command = command_of(env, record.goals)
    nothing: dict[str, Any] = dict.fromkeys(ERRORS)
    window = max(1, round(STRIDE / record.period if stride is None else stride))
    if command is None or len(command) < window:
        return nothing
    got = speeds(env.mech, record).cumsum(0)
    mean = (got[window - 1 :] - torch.cat((torch.zeros_like(got[:1]), got[:-window]))) / window
    same = torch.cat((torch.ones_like(record.alive[:1]), (command[1:] == command[:-1]).all(-1)))
    step = torch.arange(len(same))[:, None].expand_as(same)
    age = step - torch.where(same, 0, step).cummax(0).values + 1  # control steps under the same command
    used = (record.alive & (age >= max(settle, window)))[window - 1 :]
    if not bool(used.any()):
        return nothing
    errors = (mean - command[window - 1 :]).abs()[used].mean(0)
    return dict(zip(ERRORS, errors.tolist(), strict=True))
