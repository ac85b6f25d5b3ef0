"""Rewards of all steps of a segment at once, and the parts of segments without `torch.compile`.

No later step depends on a reward. So rewards are taken once for all H · B rows, where an operation takes little more time than for B, and
their many operations are in no graph that is compiled. A compiler takes longer than a short training. Without it, autograd's own graph
leads through the steps, and the kernel, called through a `Tape`, is a node of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchdojo.envs.env import Env
from torchdojo.envs.motion import Motion, Transition
from torchdojo.native.tape import Tape

__all__ = ["Bounded", "Coordinates", "Hop", "Ratings", "finish", "rows"]

SAME = 1e-9  # relative difference between rewards of all steps at once and of one step: rounding, in sums of another order


class Ratings:
    """Rewards of the H control steps of a segment, for all H · B rows at once.

    Attributes:
        batched: whether the environment's reward of one row does not depend on the others, so that rewards of all steps are taken at once;
            None before the first segment. Means over environments do, and a reward that reads parameters of environments has B rows: such
            rewards are taken step by step.
    """

    def __init__(self, env: Env) -> None:
        self.env = env
        self.batched: bool | None = None

    def __call__(self, before: Motion, after: Motion) -> tuple[Tensor, Tensor]:
        """Rewards (H, B) and their parts (H, B, n), of motions with H · B rows."""
        count = self.env.num_envs
        horizon = len(after.z) // count
        if self.batched is None:
            self.batched = horizon > 1 and self._takes_all(before, after)
        if self.batched:
            reward, terms = self.env._rate(before, after)
            return reward.unflatten(0, (horizon, -1)), terms.unflatten(0, (horizon, -1))
        steps = [slice(t * count, (t + 1) * count) for t in range(horizon)]
        rewards, parts = zip(*(self.env._rate(_part(before, part), _part(after, part)) for part in steps), strict=True)
        return torch.stack(rewards), torch.stack(parts)

    @torch.no_grad()
    def _takes_all(self, before: Motion, after: Motion) -> bool:
        """Whether rewards of two steps at once are those of each."""
        count = self.env.num_envs
        ways = slice(count), slice(count, 2 * count), slice(2 * count)
        try:
            first, second, both = (self.env._rate(_part(before, part), _part(after, part))[0] for part in ways)
        except RuntimeError:  # shapes: a reward reads parameters of the environments, of which there are B
            return False
        return torch.allclose(both, torch.cat((first, second)), rtol=SAME, atol=SAME, equal_nan=True)


def _part(motion: Motion, rows: slice) -> Motion:
    z = motion.z[rows]
    return Motion(z, z[:, :13], *(value[rows] for value in motion[2:]))


def finish(env: Env, steps: Transition, running: Tensor, reward: Tensor, terms: Tensor) -> Transition | None:
    """Stacked results (H, B, ...) of steps without rewards, with their rewards; None where one is not finite, which ends an episode.

    steps: with the state after the last. running: (B,), sums of rewards before the first.
    """
    if not bool((torch.isfinite(reward.detach()) | steps.flagged).all()):
        return None
    if bool(steps.flagged.any()):
        reward, terms = torch.where(steps.flagged, 0.0, reward), torch.where(steps.flagged[..., None], 0.0, terms)
    totals = list[Tensor]()
    for t, done in enumerate(steps.terminated | steps.truncated):
        totals.append(running + reward[t].detach())
        running = torch.where(done, 0.0, totals[t]) if env.autoreset == "same_step" else totals[t]
    state = steps.state._replace(total=running)
    return steps._replace(state=state, reward=reward, terms=terms, total=torch.stack(totals))


def rows(motions: list[Motion]) -> Motion:
    """One motion with the rows of all; its root is a view of its z."""
    joined = Motion(*(torch.cat(values) for values in zip(*(motion._replace(root=motion.z[:, :0]) for motion in motions), strict=True)))
    return joined._replace(root=joined.z[:, :13])


class Hop(torch.autograd.Function):
    """(z, action) -> z and impulses after a control step of the kernel."""

    @staticmethod
    def forward(z: Tensor, action: Tensor, tape: Tape, t: int, warm: Tensor) -> tuple[Tensor, Tensor]:
        after, impulses = tape.step(t, z, action, warm)[:2]
        return after, impulses

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.tape, ctx.t = inputs[2:4]
        ctx.set_materialize_grads(False)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_z: Tensor | None, grad_impulses: Tensor | None) -> tuple[Tensor | None, ...]:
        if grad_z is None and grad_impulses is None:
            return None, None, None, None, None
        grad_z = torch.zeros_like(ctx.tape.z[ctx.t, :, -1]) if grad_z is None else grad_z.contiguous()
        pulled = ctx.tape.pull(ctx.t, grad_z, None if grad_impulses is None else grad_impulses.contiguous())
        return *pulled, None, None, None


class Coordinates(torch.autograd.Function):
    """z (B, 13 nb) -> joint coordinates and rates (B, 2n)."""

    @staticmethod
    def forward(z: Tensor, tape: Tape) -> Tensor:
        return tape.coordinates(z)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tape], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0])
        ctx.tape = inputs[1]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.tape.pull_coordinates(ctx.saved_tensors[0], grad.contiguous()), None


class Bounded(torch.autograd.Function):
    """Identity, whose backward is a function of the adjoint and of the step."""

    @staticmethod
    def forward(z: Tensor, function: Callable[[Tensor, int], Tensor], t: int) -> Tensor:
        return z.view_as(z)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Callable[[Tensor, int], Tensor], int], output: Tensor) -> None:
        ctx.function, ctx.t = inputs[1:]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return ctx.function(grad, ctx.t), None, None
