"""The state that an environment keeps between control steps, and the motion that rewards and observations read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

__all__ = ["EnvState", "EnvStep", "Motion", "Transition", "any_rare", "finite", "part_of", "upright_and_heading"]

#: 1 + (squares of a quaternion wxyz) @ TILT is (z of the body's z axis, x of its x axis)
TILT = torch.tensor(((0.0, 0.0), (-2.0, 0.0), (-2.0, -2.0), (0.0, -2.0)), dtype=torch.float64)


class Motion(NamedTuple):
    """A batch of B states of a mechanism, with coordinates that observation, reward and termination share.

    z: (B, 13 nb) as in `Mechanism`. root: (B, 13) of the first body, a view of z. Reading it costs less in backward than slices of z.
    q, qd: (B, num_coordinates) [m, rad] and rates, from one call of `to_minimal`.
    action: (B, nu) that led here; zero after a reset. goal: (B, num_goals) of this episode: a command, a place.
    impulses: (B, n) normal impulses of the contacts in the control step that led here [N·s], zero after a reset. n is zero unless the
        environment observes them.
    memory: (B, m) what the task carries from step to step, `Env.remember`.
    activation: (B, na) of the drives (`td.Drives`), in the order of `Drives.carried`; na is zero without drives.
    time: (B,) control steps since the episode began.
    """

    z: Tensor
    root: Tensor
    q: Tensor
    qd: Tensor
    action: Tensor
    goal: Tensor
    impulses: Tensor
    memory: Tensor
    activation: Tensor
    time: Tensor


class EnvState(NamedTuple):
    """All that the next control step depends on.

    z, q, qd, action, goal, impulses, memory, activation, time: of `Motion`. total: (B,) sum of the rewards of this episode.
    sensors: (B, k) what the sensors carry (disturbances.py): their bias and the observations that are still on their way.
    obs: (B, num_obs), what the policy sees. warm: (B, num_unknowns), warm start of the next step.
    """

    z: Tensor
    q: Tensor
    qd: Tensor
    action: Tensor
    goal: Tensor
    impulses: Tensor
    memory: Tensor
    activation: Tensor
    sensors: Tensor
    obs: Tensor
    warm: Tensor
    time: Tensor
    total: Tensor

    @property
    def motion(self) -> Motion:
        """With the root of z."""
        return Motion(self.z, self.z[..., :13], *self[1:8], self.time)

    def detach(self) -> EnvState:
        """The same numbers without a graph."""
        return EnvState(*(tensor.detach() for tensor in self))

    def where(self, chosen: Tensor, other: EnvState) -> EnvState:
        """This state in environments of a mask (B,), `other` in the rest."""
        row, pairs = chosen[:, None], zip(self, other, strict=True)
        return EnvState(*(b if a.shape[-1] == 0 else torch.where(row if a.ndim == 2 else chosen, a, b) for a, b in pairs))


class EnvStep(NamedTuple):
    """Result of a control step of B environments.

    obs: (B, num_obs), to act on next: where an episode ended, the first of the next one. reward: (B,).
    terminated: (B,) the episode ended in a state of no further value: a fall, or a step that failed.
    truncated: (B,) it ran out of time. final_obs: (B, num_obs), before any reset, for the value of truncated episodes.
    info: "terms" {name: (B,)}, the parts of the reward; "flagged" (B,), whose step failed or was given no finite action;
        "episode_return" and "episode_length" (B,), up to this step, those of a finished episode where terminated or truncated.
    """

    obs: Tensor
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    final_obs: Tensor
    info: dict[str, Any]


class Transition(NamedTuple):
    """Result of `Env.transition`, tensors only.

    terms: (B, number of parts of the reward), in the order of `Env.term_names`. total, time: return and length up to this step.
    flagged, iterations, substeps: (B,). The others are as in `EnvStep`.
    """

    state: EnvState
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    final_obs: Tensor
    terms: Tensor
    total: Tensor
    time: Tensor
    flagged: Tensor
    iterations: Tensor
    substeps: Tensor


def upright_and_heading(root: Tensor) -> Tensor:
    """(B, 2) from `Motion.root`: how far the z axis of the body points up, and its x axis along x, each from -1 to 1."""
    return 1.0 + root[..., 6:10].square() @ TILT


def any_rare(where: Tensor) -> bool:
    """Whether a rare case has to be looked at. A compiled step always does, because it may not branch on values."""
    return torch.compiler.is_compiling() or bool(where.any())


def finite(value: Tensor) -> Tensor:
    """Like `torch.isfinite`, in two operations instead of four."""
    return value - value == 0.0


def part_of(pool: Tensor, sizes: Sequence[int], name: str, index: Tensor) -> Tensor:
    """A field of `EnvState` (len(index), size) of starts in a pool, whose columns are the fields with these sizes.

    The other fields of a robot are a hundred times as many numbers.
    """
    place = EnvState._fields.index(name)
    return pool.narrow(1, sum(sizes[:place]), sizes[place]).index_select(0, index)
