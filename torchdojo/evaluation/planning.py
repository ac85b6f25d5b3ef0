"""The experiments of `torchdojo evaluate planning`."""

from __future__ import annotations

import torch
from torch import Tensor

from torchdojo.planning import Plan, Record, Replay
from torchdojo.state.layout import STATE_SIZE

__all__ = ["end_distance", "iterates"]


def end_distance(plan: Plan, replay: Replay) -> Tensor:
    """Largest distance of a body of a replay from its place at the end of the plan [m], (...,)."""
    gap = (replay.nodes[..., -1, :] - plan.z[..., -1, :]).unflatten(-1, (-1, STATE_SIZE))[..., :3]
    return torch.linalg.vector_norm(gap, dim=-1).amax(-1)


def iterates(plan: Plan, problem: int = 0) -> list[Record]:
    """The records of one problem under the schedule that its plan comes from; each entry has one number."""
    schedules = len(plan.log[0].cost) // len(plan.problem) if plan.log else 1
    number = problem * schedules + int(plan.schedule.reshape(-1)[problem])
    records = [Record(*(value[number] for value in record)) for record in plan.log]
    return [record for record in records if not bool(torch.isnan(record.kappa))]
