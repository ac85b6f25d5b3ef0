"""Rewards of all control steps of a recorded segment at once, and their gradients.

A reward belongs to one row, a control step of an environment, so the gradients of all rewards are that of their sum. One compiled function
gives both. Backward of a segment then only multiplies each row by the gradient of its reward.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchdojo.envs.chain import Ratings
from torchdojo.envs.direct import Direct
from torchdojo.envs.env import Env
from torchdojo.envs.motion import EnvState
from torchdojo.gradients.reference_step import StepOutput

__all__ = ["Rated", "Rewards"]

NAMES = EnvState._fields
STATE = len(NAMES)
#: arguments of a control step (`Segment.arrive`) that no reward reads
IDLE = {*(NAMES.index(name) for name in ("sensors", "obs", "warm", "total")), STATE + 5, STATE + 9}


class Rewards(NamedTuple):
    """Rewards (H, B), their parts (H, B, n), and a function: gradient by the rewards (H, B) -> for each control step, gradients by the
    arguments `Rated.needed` of this step.
    """

    reward: Tensor
    terms: Tensor
    pull: Callable[[Tensor], list[tuple[Tensor, ...]]]


class Rated:
    """Rewards of segments of an environment.

    Args:
        ratings: how rewards are taken without a compiler. carried: fields of the state before a step by which segments differentiate.
        horizon: of the segments for which the compiled function is made. fixed: as of `Direct`.

    Attributes:
        leaves: places, among the arguments of a control step, of those by which segments differentiate. needed: places in `leaves` of
            those that rewards depend on, known after the first segment.
    """

    def __init__(self, env: Env, ratings: Ratings, carried: Sequence[str], horizon: int, fixed: bool) -> None:
        self.env, self.ratings, self.horizon = env, ratings, horizon
        self.leaves = [STATE, *(NAMES.index(name) for name in carried), STATE + 2, STATE + 3, STATE + 4]
        self.needed: list[int] = []
        self._known = False
        self._direct: Direct | None = Direct(self._function(), fixed=fixed)

    def __call__(self, arguments: Sequence[tuple[Any, ...]], wanted: bool) -> Rewards:
        """Rewards of H control steps from the arguments of each. wanted: whether gradients are."""
        horizon = len(arguments)
        if not (wanted and self._known and self._direct is not None and self.ratings.batched and horizon == self.horizon):
            return self._eager(arguments, wanted)
        try:
            reward, terms, *grads = self._all(self._direct, arguments)
        except torch._dynamo.exc.TorchDynamoException as error:
            warnings.warn(f"Segment: the reward of {type(self.env).__name__} is not compiled, which is slower: {error}", stacklevel=5)
            self._direct = None
            return self._eager(arguments, wanted)
        size = (horizon, -1)

        def pull(grad: Tensor) -> list[tuple[Tensor, ...]]:
            parts = [each.unflatten(0, size) * grad[..., None] for each in grads]
            if bool((grad == 0.0).any()):  # a step that failed may have no finite gradient
                parts = [torch.where(grad[..., None] == 0.0, 0.0, part) for part in parts]
            return list(zip(*(part.unbind() for part in parts), strict=True))

        return Rewards(reward.unflatten(0, size), terms.unflatten(0, size), pull)

    def _all(self, direct: Direct, arguments: Sequence[tuple[Any, ...]]) -> Sequence[Tensor]:
        used = direct.used if direct.fixed else None
        rows = _rows(arguments, IDLE if used is None else {place for place in range(len(arguments[0])) if place not in used})
        return direct.first(*rows) if used is None else direct(*rows)

    def _function(self) -> Callable[..., tuple[Tensor, ...]]:
        def rate(*given: Tensor) -> tuple[Tensor, ...]:
            """Rewards (H · B,), their parts, and gradients of their sum, from the arguments of all control steps."""
            places = [self.leaves[k] for k in self.needed]

            def summed(*leaves: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
                rows = list(given)
                for place, leaf in zip(places, leaves, strict=True):
                    rows[place] = leaf
                reward, terms = self.env._rate(*self._motions(rows))
                return reward.sum(), (reward, terms)

            if not places:
                return self.env._rate(*self._motions(list(given)))
            inputs = [given[place] for place in places]
            grads, (reward, terms) = torch.func.grad(summed, argnums=tuple(range(len(places))), has_aux=True)(*inputs)
            return (reward, terms, *grads)

        return rate

    def _motions(self, rows: Sequence[Any]) -> Any:
        """The motions before and after control steps."""
        state = EnvState(*rows[:STATE])
        action, drawn, z, along, impulses, warm, status, iterations, substeps, _ = rows[STATE:]
        out = StepOutput(z, impulses, status.amax(-1), iterations.sum(-1), warm, substeps.sum(-1))
        after, _ = self.env._land(state, action, drawn, out, z, *along.chunk(2, -1))
        return state.motion, after

    def _eager(self, arguments: Sequence[tuple[Any, ...]], wanted: bool) -> Rewards:
        rows, known = _rows(arguments, IDLE), self._known
        chosen = [self.leaves[k] for k in self.needed] if known else self.leaves
        with torch.set_grad_enabled(wanted):
            for place in chosen if wanted else ():
                rows[place] = rows[place].requires_grad_()
            reward, terms = self.ratings(*self._motions(rows))
        leaves = [rows[place] for place in chosen]
        if wanted and not known:
            ones = torch.ones_like(reward)
            grads = (
                torch.autograd.grad(reward, leaves, ones, allow_unused=True, retain_graph=True)
                if reward.requires_grad
                else [None] * len(leaves)
            )
            self.needed = [k for k, grad in enumerate(grads) if grad is not None]
            self._known, leaves = True, [leaves[k] for k in self.needed]

        def pull(grad: Tensor) -> list[tuple[Tensor, ...]]:
            gradients = torch.autograd.grad(reward, leaves, grad.to(reward.dtype)) if leaves else ()
            return list(zip(*(each.unflatten(0, (len(grad), -1)).unbind() for each in gradients), strict=True)) or [()] * len(grad)

        return Rewards(reward.detach(), terms, pull)


def _rows(arguments: Sequence[tuple[Any, ...]], idle: set[int]) -> list[Any]:
    """The arguments of all control steps, H · B rows each, but for those that are idle: these have none."""
    none = arguments[0][0].new_empty(0)
    return [none.clone() if place in idle else torch.cat(values) for place, values in enumerate(zip(*arguments, strict=True))]
