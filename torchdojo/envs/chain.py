"""Segments without `torch.compile`: autograd's own graph leads through the steps, and the kernel is a node of it.

A compiler takes longer than a short training. Two things make up for most of what it saves. The kernel is called through a `Tape`. And what
no later step depends on, the reward, is taken once for all H · B rows, where an operation takes little more time than for B.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torchdojo.envs.motion import EnvState, Motion, Transition
from torchdojo.gradients.reference_step import StepOutput
from torchdojo.native.tape import Tape

if TYPE_CHECKING:
    from torchdojo.envs.segment import Segment, SegmentOutput

__all__ = ["Chain"]

Adjoint = Callable[[Tensor], tuple[Tensor, Tensor]]
SAME = 1e-9  # relative difference between rewards of all steps at once and of one step: rounding, in sums of another order


class Chain:
    """The steps of a `Segment` that is not compiled, with the same results.

    on_adjoint: of the segment.

    Attributes:
        batched: whether the environment's reward of one row does not depend on the others, so that rewards of all steps are taken at once;
            None before the first segment. Means over environments do, and such a reward is taken step by step.
    """

    def __init__(self, segment: Segment, on_adjoint: Adjoint | None) -> None:
        self.segment, self.on_adjoint = segment, on_adjoint
        self.batched: bool | None = None

    def __call__(self, tape: Tape, noise: Tensor | None) -> SegmentOutput | None:
        """The steps; None, and the environment is as before, where a reward is not finite, which ends an episode."""
        from torchdojo.envs.segment import SegmentOutput

        segment, env, horizon = self.segment, self.segment.env, len(tape.z)
        state, drawn_before = env.state.detach(), env.generator.get_state()
        draws, running = env.draw(horizon), state.total
        seen, actions, befores, afters = list[Tensor](), list[Tensor](), list[Motion](), list[Motion]()
        steps = list[Transition]()
        for t in range(horizon):
            seen.append(state.obs.to(env.dtype))
            actions.append(segment.act(seen[t], None if noise is None else noise[t]))
            raw, impulses = Hop.apply(state.z, actions[t], tape, t, state.warm)
            z = raw if env.kicks is None else env.kicks.apply(raw, draws[t][:, 1:3])
            if self.on_adjoint is not None:
                z = Bounded.apply(z, self)
            elif env.on_state is not None:
                z = env.on_state(z)
            q, qd = Coordinates.apply(z, tape).chunk(2, -1)
            sums = tape.status[t].amax(-1), tape.iterations[t].sum(-1), tape.w[t, :, -1], tape.substeps[t].sum(-1)
            out = StepOutput(raw, impulses, *sums)
            after, good = env.land(state, actions[t], draws[t], out, z, q, qd)
            befores.append(state.motion)
            afters.append(after)
            steps.append(env.proceed(state, draws[t], out, after, good, None))
            state = steps[t].state
        reward, terms = self._rated(befores, afters)
        results = {name: torch.stack([getattr(step, name) for step in steps]) for name in Transition._fields[2:5]}
        counts = {name: torch.stack([getattr(step, name) for step in steps]) for name in Transition._fields[7:]}
        if not bool((torch.isfinite(reward.detach()) | counts["flagged"]).all()):
            env.generator.set_state(drawn_before)
            return None
        if bool(counts["flagged"].any()):
            reward, terms = torch.where(counts["flagged"], 0.0, reward), torch.where(counts["flagged"][..., None], 0.0, terms)
        totals = list[Tensor]()
        for t, done in enumerate(results["terminated"] | results["truncated"]):
            totals.append(running + reward[t].detach())
            running = torch.where(done, 0.0, totals[t])
        state = EnvState(*state[:-1], running).detach()
        env.keep(Transition(state=state, reward=reward, terms=terms, total=torch.stack(totals), **results, **counts))
        info = {
            "terms": dict(zip(env.term_names, terms.unbind(-1), strict=True)),
            "flagged": counts["flagged"],
            "episode_return": torch.stack(totals),
            "episode_length": counts["time"],
        }
        final = results["final_obs"].to(env.dtype)
        rest = results["terminated"], results["truncated"], final, info
        return SegmentOutput(torch.stack(seen), torch.stack(actions).detach(), reward.to(env.dtype), *rest)

    def _rated(self, befores: list[Motion], afters: list[Motion]) -> tuple[Tensor, Tensor]:
        """Rewards (H, B) and their parts (H, B, n)."""
        rate, horizon = self.segment.env.rate, len(afters)
        if self.batched is None:
            self.batched = horizon > 1 and self._takes_all(befores, afters)
        if self.batched:
            reward, terms = rate(_rows(befores), _rows(afters))
            return reward.unflatten(0, (horizon, -1)), terms.unflatten(0, (horizon, -1))
        rewards, parts = zip(*(rate(*pair) for pair in zip(befores, afters, strict=True)), strict=True)
        return torch.stack(rewards), torch.stack(parts)

    @torch.no_grad()
    def _takes_all(self, befores: list[Motion], afters: list[Motion]) -> bool:
        """Whether rewards of two steps at once are those of each."""
        rate = self.segment.env.rate
        each = torch.cat([rate(*pair)[0] for pair in zip(befores[:2], afters[:2], strict=True)])
        both = rate(_rows(befores[:2]), _rows(afters[:2]))[0]
        return torch.allclose(both, each, rtol=SAME, atol=SAME, equal_nan=True)


def _rows(motions: list[Motion]) -> Motion:
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
    """Identity, whose backward is `Segment.on_adjoint`; the reports are summed."""

    @staticmethod
    def forward(z: Tensor, chain: Chain) -> Tensor:
        return z.view_as(z)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Chain], output: Tensor) -> None:
        ctx.chain = inputs[1]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        chain: Chain = ctx.chain
        assert chain.on_adjoint is not None
        bounded, report = chain.on_adjoint(grad)
        before = chain.segment.report
        chain.segment.report = report if before is None else before + report
        return bounded, None
