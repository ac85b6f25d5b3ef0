"""Segments of training: H control steps under a policy as one node of autograd.

Backpropagation through time needs two functions per control step: what follows the kernel (observations, resets, and the next action of
the policy), and the vector-Jacobian product of that. A `Segment` compiles both, and calls them and the kernel in turn, without autograd,
whose records and dispatch take longer than the numbers of a batch of 32. The products are taken with respect to states and actions alone.
Rewards are taken for all steps at once (chain.py). The gradient by the parameters of the policy follows at the end, by one evaluation of
the policy at all observations:

    dL/dθ = Σ_t (dL/da_t) ∂π(o_t, ε_t)/∂θ,    dL/da_t from the adjoint of the closed loop
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from torchdojo.engine.requests import request_of
from torchdojo.envs.chain import Bounded, Coordinates, Hop, Ratings, finish, rows
from torchdojo.envs.checks import counted
from torchdojo.envs.direct import Direct
from torchdojo.envs.env import Env
from torchdojo.envs.motion import EnvState, EnvStep, Motion, Transition
from torchdojo.envs.on_device import OnDevice
from torchdojo.envs.rated import Rated
from torchdojo.gradients.reference_step import StepOutput
from torchdojo.native.tape import Tape

__all__ = ["Segment", "SegmentOutput"]

STATE = len(EnvState._fields)
DATA = STATE + 10  # arguments of `arrive`
#: fields of `EnvState` through which a step depends on those before it; those of no entry are left out
ENDS = ("terminated", "truncated", "final_obs", "time", "flagged")  # of `Transition`
CARRIED = ("z", "q", "qd", "action", "impulses", "memory", "activation", "sensors")
Policy = Callable[..., Tensor | tuple[Tensor, ...]]  # (obs, noise) -> action, or obs -> action; and tensors besides


class SegmentOutput(NamedTuple):
    """Results of H control steps of B environments.

    obs: (H, B, num_obs), on which the policy acted. action: (H, B, nu), without gradient.
    reward, terminated, truncated: (H, B). final_obs: (H, B, num_obs), after each step and before any reset.
    info: as of `EnvStep`, stacked: "terms" {name: (H, B)}, "flagged", "episode_return" and "episode_length" (H, B); and "policy", a tuple
        of what the policy returned besides its action, each (H, B, ...), differentiable by its parameters while observations stay.
    """

    obs: Tensor
    action: Tensor
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    final_obs: Tensor
    info: dict[str, Any]


class Segment:
    """H control steps of an environment under a policy, differentiable in the parameters of the policy.

        segment = td.envs.Segment(env, actor.sample, parameters=actor.parameters())  # once: the first call compiles
        out = segment(noise)  # (H, B, n): actor.sample(obs, noise[t]) acts in step t
        value = critic(out.final_obs[-1])
        loss = -(discount * out.reward).sum() - (discount_of_the_end * value * ~out.terminated[-1]).sum()
        loss.backward()  # into actor.parameters(); the next segment starts from env.state without a graph

    The segment equals the loop ``for t in range(H): out = env.step(policy(env.obs, noise[t]))`` up to rounding, with `env.detach()` before.
    `reward`, `final_obs` and `obs` have gradients. `env.on_state` acts on every state, and its backward on the adjoint of every state; what
    it reports through gradients of other tensors arrives in their `.grad`. `env.statistics` counts.

    Args:
        env: the environment. It keeps its state, random numbers and statistics.
        policy: (obs (B, num_obs) of `env.dtype`, noise (B, n)) -> action (B, nu), or obs -> action where the segment is called without
            noise. It acts on each row alone, and changes nothing: a running normalizer is updated between segments. It may return a tuple,
            the action and other tensors (B, ...), for losses of their own: `info["policy"]` has them.
        horizon: H where there is no noise.
        on_adjoint: what the backward of `env.on_state` does, as a function that can be compiled, which saves 0.3 ms per control step: the
            adjoint (B, 13 nb) -> (what goes on in its place, a report (B, k)). Step by step, `env.on_state` itself acts.
        parameters: tensors to differentiate by; None: those of `policy`, a module, that require grad.
        compiled: whether `torch.compile` takes both functions, in half a minute for an ant, a minute for a commanded quadruped.
            Otherwise PyTorch's own autograd leads through the steps (chain.py), with rewards taken for all of them at once.
        fixed: a promise that policy and environment change in place alone, as weights and buffers do in training: no attribute is set, no
            module replaced. Then later segments are not checked anew against the compiled code, which saves 2 ms in each.

    Attributes:
        reports: (H, B, k), the reports of `on_adjoint` at the states after each control step, of the last backward pass; None where there
            is none. report: (B, k), their sum.

    With `redraw=True`, an environment whose episode ends in a segment has its new parameters from the next segment on, as the kernel reads
    them once for all steps; `Env.step` draws them before the next step. Some environments go step by step, through `Env.step`: the swimmer
    with its drag, those with drives, and those with `autoreset="disabled"`, or parameters of the mechanism that require grad.
    """

    def __init__(
        self,
        env: Env,
        policy: Policy,
        horizon: int = 16,
        *,
        on_adjoint: Callable[[Tensor], tuple[Tensor, Tensor]] | None = None,
        parameters: Iterable[Tensor] | None = None,
        compiled: bool = True,
        fixed: bool = False,
    ) -> None:
        if isinstance(env, OnDevice):
            raise TypeError("Segment: got an OnDevice; allowed: its env, with a policy on the host; or call step for a policy on a GPU")
        if parameters is None and not isinstance(policy, nn.Module):
            raise ValueError(f"Segment: got a {type(policy).__name__} as policy and no parameters; give parameters=, or a torch.nn.Module")
        candidates = policy.parameters() if parameters is None and isinstance(policy, nn.Module) else parameters or ()
        self.env, self.policy, self.horizon = env, policy, counted("horizon", horizon)
        self.parameters = [tensor for tensor in candidates if tensor.requires_grad]
        self.compiled, fixed = bool(compiled), fixed and (not env.redraw or env.randomization.in_place)
        self.carried = [name for name in CARRIED if getattr(env.state, name).shape[-1]]
        # The sum of rewards comes from all rewards at the end.
        self.kept = [name for name, value in env.state._asdict().items() if name != "total" and value.shape[-1]]
        self.arrive, self.pull = (Direct(function, fixed=fixed) for function in self._functions())
        self.adjoint = None if on_adjoint is None else Direct(lambda direct, mapped: on_adjoint(direct + mapped), fixed=fixed)
        self.ratings, self.on_adjoint = Ratings(env), on_adjoint
        self.rated = Rated(env, self.ratings, self.carried, self.horizon, fixed)
        self._others: bool | None = None  # whether the policy returns more than actions; None: not known yet
        self.reports: Tensor | None = None

    def __call__(self, noise: Tensor | None = None) -> SegmentOutput:
        """Take the steps, and leave the environment in the state behind them, without a graph.

        Raises:
            ValueError: noise that is not (H, B, ...).
        """
        env = self.env
        if noise is not None and (noise.ndim < 2 or noise.shape[1] != env.num_envs or not len(noise)):
            raise ValueError(f"Segment: got noise {tuple(noise.shape)}; allowed: (H, {env.num_envs}, ...) for H steps")
        horizon = self.horizon if noise is None else len(noise)
        env.settle()  # before the tape, which keeps the parameters
        tape, self.reports = self._tape(horizon), None
        if tape is None:
            return self._step_by_step(horizon, noise)
        if not self.compiled:
            chained = self._chained(tape, noise)
            return self._step_by_step(horizon, noise) if chained is None else chained
        wanted = torch.is_grad_enabled() and bool(self.parameters)
        record = Record(self, tape, noise, wanted)
        out = record.out
        if out is None:
            return self._step_by_step(horizon, noise)
        if wanted:
            actions, others = self._again(out.obs, noise)
            obs, reward, final = Replay.apply(record, actions)
            return out._replace(obs=obs, reward=reward, final_obs=final, info={**out.info, "policy": others})
        return out

    def _tape(self, horizon: int) -> Tape | None:
        """The kernel's part, or None where it cannot take all steps."""
        env, mech = self.env, self.env.mech
        if not env.plain or env.autoreset != "same_step":
            return None
        _, request = request_of(mech.backends.system, mech.options, env.state.z, None, repeat=env.repeat)
        if mech.backends.map_parameters(mech.options) is None:
            return None
        return mech.backends.stepper(request, mech.actuators).tape(horizon, env.num_envs)

    @property
    def report(self) -> Tensor | None:
        """The sum of `reports` over the control steps, (B, k)."""
        return None if self.reports is None else self.reports.sum(0)

    def act(self, obs: Tensor, noise: Tensor | None) -> Tensor:
        """The policy's action as the environment takes it."""
        output = self.policy(obs) if noise is None else self.policy(obs, noise)
        return (output[0] if isinstance(output, tuple) else output).to(torch.float64)

    def _again(self, obs: Tensor, noise: Tensor | None) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Actions (H · B, nu) at observations (H, B, num_obs) of a segment, and what else the policy returns, (H, B, ...)."""
        seen = obs.detach().flatten(0, 1)
        output = self.policy(seen) if noise is None else self.policy(seen, noise.flatten(0, 1))
        action, others = (output[0], output[1:]) if isinstance(output, tuple) else (output, ())
        return action.to(torch.float64), tuple(other.unflatten(0, obs.shape[:2]) for other in others)

    def _functions(self) -> tuple[Callable[..., tuple[Tensor, ...]], Callable[..., tuple[Tensor, ...]]]:
        """The two functions of a control step, without its reward. Flat tuples of tensors go in and come out, as `Direct` needs them."""
        env, act, names = self.env, self.act, self.carried

        def arrive(*given: Tensor) -> tuple[Tensor, ...]:
            """The rest of a step: fields of `EnvState` (`Segment.kept`), `ENDS`, and the next observation and action of the policy.

            given: the state before, then action, random numbers of the step, z, coordinates and rates, impulses, solution, status,
            iterations and substeps of the steps, and the policy's next noise or None.
            """
            state = EnvState(*given[:STATE])
            action, drawn, z, along, impulses, warm, status, iterations, substeps, noise = given[STATE:]
            out = StepOutput(z, impulses, status.amax(-1), iterations.sum(-1), warm, substeps.sum(-1))
            after, good = env._land(state, action, drawn, out, z, *along.chunk(2, -1))
            step = env._proceed(state, drawn, out, after, good, None)
            obs, kept, ends = step.state.obs.to(env.dtype), (getattr(step.state, k) for k in self.kept), (getattr(step, k) for k in ENDS)
            return (*kept, *ends, obs, act(obs, noise))

        def pull(*given: Tensor) -> tuple[Tensor, ...]:
            """Gradients by the action, by the fields of the state before (`Segment.carried`), and by (z, coordinates and rates, impulses).

            given: those of `arrive`; gradients of the step's reward alone, by those of `leaves` that it depends on (`Rated.needed`);
            gradients by final observation and next observation; those by action and state that this function gave for the control step
            after; and the gradients by z and action through its kernel. The last result is the whole gradient by the next action.
            """
            needed = self.rated.needed
            data, rewards, given = given[:DATA], given[DATA : DATA + len(needed)], given[DATA + len(needed) :]
            (by_final, by_obs, by_taken, *carried), (by_z, by_action) = given[:-2], given[-2:]

            def outputs(*inputs: Tensor) -> tuple[Tensor, ...]:
                taken_action, *fields, z, along, impulses = inputs
                before = EnvState(*data[:STATE])._replace(**dict(zip(names, fields, strict=True)))
                *results, obs, acted = arrive(*before, taken_action, data[STATE + 1], z, along, impulses, *data[STATE + 5 :])
                new = dict(zip((*self.kept, *ENDS), results, strict=True))
                return (new["final_obs"], obs, acted, *[new[name] for name in names])

            following = by_taken + by_action
            carried[0] = carried[0] + by_z
            state, (action, _, z, along, impulses) = EnvState(*data[:STATE]), data[STATE : STATE + 5]
            inputs = action, *[getattr(state, name) for name in names], z, along, impulses
            values, product = torch.func.vjp(outputs, *inputs)  # type: ignore[misc]  # its stub counts has_aux=True
            upstream = by_final, by_obs, following, *carried
            grads = list(product(tuple(grad.to(value.dtype) for grad, value in zip(upstream, values, strict=True))))
            for place, reward in zip(needed, rewards, strict=True):
                grads[place] = grads[place] + reward
            return (*grads, following)

        return arrive, pull

    def _chained(self, tape: Tape, noise: Tensor | None) -> SegmentOutput | None:
        """The steps without a compiler; None, and the environment is as before, where a reward is not finite, which ends an episode."""
        env, horizon = self.env, len(tape.z)
        state, drawn_before = env.state.detach(), env.generator.get_state()
        draws, running = env.draw(horizon), state.total
        seen, actions, befores, afters = list[Tensor](), list[Tensor](), list[Motion](), list[Motion]()
        steps = list[Transition]()
        for t in range(horizon):
            seen.append(state.obs.to(env.dtype))
            actions.append(self.act(seen[t], None if noise is None else noise[t]))
            raw, impulses = Hop.apply(state.z, actions[t], tape, t, state.warm)
            z = raw if env.kicks is None else env.kicks.apply(raw, draws[t][:, 1:3])
            if self.on_adjoint is not None:
                z = Bounded.apply(z, self._bounded, t)
            elif env.on_state is not None:
                z = env.on_state(z)
            q, qd = Coordinates.apply(z, tape).chunk(2, -1)
            sums = tape.status[t].amax(-1), tape.iterations[t].sum(-1), tape.w[t, :, -1], tape.substeps[t].sum(-1)
            out = StepOutput(raw, impulses, *sums)
            after, good = env._land(state, actions[t], draws[t], out, z, q, qd)
            befores.append(state.motion)
            afters.append(after)
            steps.append(env._proceed(state, draws[t], out, after, good, None))
            state = steps[t].state
        stacked = Transition(state.detach(), *(torch.stack(values) for values in zip(*(step[1:] for step in steps), strict=True)))
        whole = finish(env, stacked, running, *self.ratings(rows(befores), rows(afters)))
        if whole is None:
            env.generator.set_state(drawn_before)
            return None
        env.keep(whole)
        return self._with_others(self._output(torch.stack(seen), torch.stack(actions).detach(), whole), noise)

    def _with_others(self, out: SegmentOutput, noise: Tensor | None) -> SegmentOutput:
        """Results with what the policy returns besides actions, where steps did not keep it."""
        if self._others is False or not (self.parameters and torch.is_grad_enabled()):
            return out
        others = self._again(out.obs, noise)[1]
        self._others = bool(others)
        return out._replace(info={**out.info, "policy": others})

    def _bounded(self, grad: Tensor, t: int) -> Tensor:
        """The bounded adjoint that replaces an adjoint at step t; its report counts."""
        assert self.on_adjoint is not None
        bounded, report = self.on_adjoint(grad)
        if self.reports is None or t == len(self.reports) - 1:  # the last step comes first in every backward pass
            self.reports = report.new_zeros(t + 1, *report.shape)
        self.reports[t] = report
        return bounded

    def _output(self, obs: Tensor, action: Tensor, steps: Transition) -> SegmentOutput:
        """Results from stacked steps."""
        env = self.env
        terms = dict(zip(env.term_names, steps.terms.unbind(-1), strict=True))
        info = {"terms": terms, "flagged": steps.flagged, "episode_return": steps.total, "episode_length": steps.time, "policy": ()}
        reward, final = steps.reward.to(env.dtype), steps.final_obs.to(env.dtype)
        return SegmentOutput(obs, action, reward, steps.terminated, steps.truncated, final, info)

    def _step_by_step(self, horizon: int, noise: Tensor | None) -> SegmentOutput:
        env = self.env
        obs, steps, seen, actions = env.detach(), list[EnvStep](), list[Tensor](), list[Tensor]()
        for t in range(horizon):
            seen.append(obs)
            actions.append(self.act(obs, None if noise is None else noise[t]))
            steps.append(env.step(actions[-1]))
            obs = steps[-1].obs
        env.detach()
        names = "flagged", "episode_return", "episode_length"
        info: dict[str, Any] = {name: torch.stack([step.info[name] for step in steps]) for name in names}
        info["terms"] = {name: torch.stack([step.info["terms"][name] for step in steps]) for name in env.term_names}
        info["policy"] = ()
        results = {name: torch.stack([getattr(step, name) for step in steps]) for name in EnvStep._fields[1:5]}
        return self._with_others(SegmentOutput(obs=torch.stack(seen), action=torch.stack(actions).detach(), info=info, **results), noise)


class Record:
    """The forward pass of a segment, and what its backward pass needs."""

    @torch.no_grad()
    def __init__(self, segment: Segment, tape: Tape, noise: Tensor | None, wanted: bool) -> None:
        env, horizon = segment.env, len(tape.z)
        self.segment, self.tape, self.noise, self.on_state = segment, tape, noise, env.on_state
        self.arguments: list[tuple[Any, ...]] = []
        state = EnvState(*(tensor.detach().contiguous() for tensor in env.state))
        noises = [None] * (horizon + 1) if noise is None else [*noise, noise[-1]]
        drawn_before = env.generator.get_state()
        draws = env.draw(horizon)
        seen = [state.obs.to(env.dtype)]
        actions = [segment.act(seen[0], noises[0])]
        arrivals, arrive, count = list[Sequence[Tensor]](), segment.arrive.first, len(segment.kept)
        kicked = [True] * horizon if env.kicks is None else draws[..., 1:3].flatten(1).any(-1).tolist()
        for t, drawn in enumerate(draws.unbind()):
            z, *step = tape.step(t, state.z, actions[t], state.warm)
            # Most steps kick no environment. Code is compiled for contiguous states, as kicks leave them.
            z = env.disturb(z, drawn) if kicked[t] else env.on_state(z.contiguous()) if env.on_state is not None else z.contiguous()
            self.arguments.append((*state, actions[t], drawn, z, tape.coordinates(z), *step, noises[t + 1]))
            arrived = arrive(*self.arguments[-1])
            arrive = segment.arrive.__call__
            state = state._replace(**dict(zip(segment.kept, arrived, strict=False)))
            arrivals.append(arrived[count:-2])
            seen.append(arrived[-2])
            actions.append(arrived[-1])
        ends = dict(zip(ENDS, (torch.stack(values) for values in zip(*arrivals, strict=True)), strict=True))
        self.rewards = segment.rated(self.arguments, wanted)
        reward, terms, _ = self.rewards
        sums = {"iterations": tape.iterations.sum(-1), "substeps": tape.substeps.sum(-1)}
        stacked = Transition(state=state, reward=reward, terms=terms, total=reward, **ends, **sums)
        whole = finish(env, stacked, env.state.total.detach(), reward, terms)
        self.out: SegmentOutput | None = None
        if whole is None:  # the environment is as before
            env.generator.set_state(drawn_before)
            return
        env.keep(whole)
        self.flagged = whole.flagged
        self.out = segment._output(torch.stack(seen[:-1]), torch.stack(actions[:-1]), whole)

    def by_actions(self, grad_obs: Tensor, grad_reward: Tensor, grad_final: Tensor) -> Tensor:
        """The gradients (H, B, nu) by the actions, through the closed loop."""
        pull, tape, horizon = self.segment.pull.first, self.tape, len(self.tape.z)
        grad_obs, grad_final = grad_obs.contiguous(), grad_final.contiguous()
        state, action = EnvState(*self.arguments[-1][:STATE]), self.arguments[-1][STATE]
        # All arguments are tensors of their own: Dynamo would take those that are one tensor for one.
        like = action, *[getattr(state, name) for name in self.segment.carried]
        grad_carried, kernel = [torch.zeros_like(tensor) for tensor in like], (torch.zeros_like(state.z), torch.zeros_like(action))
        final, next_obs = grad_final.unbind(), [*grad_obs[1:], torch.zeros_like(grad_obs[0])]
        wanted = self.segment.env.observe_impulses or self.segment.env.instruments is not None
        by_actions, reports = list[Tensor](), list[Tensor]()
        adjoint: Any = None if self.segment.adjoint is None else self.segment.adjoint.first
        rewards = self.rewards.pull(torch.where(self.flagged, 0.0, grad_reward.double()))
        for t in reversed(range(horizon)):
            *grad_carried, grad_z, grad_along, grad_impulses, following = pull(
                *self.arguments[t], *rewards[t], final[t], next_obs[t], *grad_carried, *kernel
            )
            pull = self.segment.pull.__call__
            by_actions.append(following)
            z = self.arguments[t][STATE + 2]
            mapped = tape.pull_coordinates(z, grad_along)
            if adjoint is not None:
                grad_z, report = adjoint(grad_z, mapped)
                adjoint = self.segment.adjoint
                reports.append(report)
            elif self.on_state is None:
                grad_z = grad_z + mapped
            else:
                grad_z = grad_z + mapped
                with torch.enable_grad():
                    leaf = z.detach().requires_grad_()
                    self.on_state(leaf).backward(grad_z)
                assert leaf.grad is not None
                grad_z = leaf.grad
            kernel = tape.pull(t, grad_z, grad_impulses if wanted else None)
        if reports:
            self.segment.reports = torch.stack(reports[::-1])
        return torch.stack([grad_carried[0] + kernel[1], *reversed(by_actions[1:])])


class Replay(torch.autograd.Function):
    """(record, actions of the policy at its observations, (H · B, nu)) -> observations, rewards and final observations."""

    @staticmethod
    def forward(ctx: Any, record: Record, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        ctx.record = record
        out = record.out
        assert out is not None
        return out.obs.view_as(out.obs), out.reward.view_as(out.reward), out.final_obs.view_as(out.final_obs)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor]:
        return None, ctx.record.by_actions(*grads).flatten(0, 1)
