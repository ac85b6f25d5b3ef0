"""Episodes of a policy without gradients: return, speed, survival, and the same at other timesteps, kappas and starts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from torchdojo.envs import Env, Motion
from torchdojo.envs.checks import check_action, counted
from torchdojo.gradients.reference_step import StepOutput
from torchdojo.learning.ground import heading
from torchdojo.learning.motors import places, torques
from torchdojo.mechanism import Mechanism

__all__ = ["Evaluation", "Policy", "Recording", "Stepper", "Tally", "evaluate", "variants"]

#: observation (B, num_obs) of float32 -> action (B, num_actions)
Policy = Callable[[Tensor], Tensor]

WIDE = 0.1  # how far joints of the wider starts are off [rad]
SEED = 1234  # of the starts of evaluations, which no training uses by default


@dataclass(frozen=True)
class Recording:
    """Episodes step by step, T control steps of B environments.

    z: (T + 1, B, 13 nb), the starts first. actions: (T, B, nu), as the policy gave them. impulses: (T, B, n), sums over each control step,
    in the layout of `Mechanism.impulse_layout` [N·s, N·m·s]. alive: (T, B), whether the episode had not ended before the step.
    period: of a control step [s]. goals: (T, B, n), that the actions were chosen for. mass: of another robot than the environment's [kg].
    work: (T, B, 2) positive and absolute work of the motors in each control step [J], as sums over its timesteps; None: not known.
    activations: (T, B, na) of drives after each control step; None: an environment without drives.
    """

    z: Tensor
    actions: Tensor
    impulses: Tensor
    alive: Tensor
    period: float
    goals: Tensor | None = None
    mass: float | None = None
    work: Tensor | None = None
    activations: Tensor | None = None


@dataclass(frozen=True)
class Evaluation:
    """Measurements by `evaluate` of one episode of each of B environments.

    returns: (B,) sums of rewards. lengths: (B,) control steps, the last one included. distances: (B,) along x [m].
    speeds: (B,) distance over time while alive [m/s]. survived: (B,) whether the episode lasted to the end.
    heights: (B,) mean of the root while alive [m]. flagged: (B,) whether the episode ended in a step that failed.
    non_finite: (B,) whether it ended because the policy's action was not finite, which is flagged, too.
    recording: the episodes step by step, if asked for. headed: (B,) speeds along the heading of the root while alive [m/s].
    """

    returns: Tensor
    lengths: Tensor
    distances: Tensor
    speeds: Tensor
    survived: Tensor
    heights: Tensor
    flagged: Tensor
    non_finite: Tensor
    recording: Recording | None = None
    headed: Tensor | None = None

    @property
    def mean_return(self) -> float:
        """Mean over episodes."""
        return float(self.returns.mean())

    @property
    def speed(self) -> float:
        """Mean over episodes [m/s]."""
        return float(self.speeds.mean())

    @property
    def forward_speed(self) -> float:
        """Along the heading, mean over episodes [m/s]; that along x where it was not measured."""
        return self.speed if self.headed is None else float(self.headed.mean())

    @property
    def survival(self) -> float:
        """Share of episodes that lasted to the end."""
        return float(self.survived.double().mean())

    def summary(self) -> dict[str, float]:
        """Means over episodes, and counts, as plain numbers."""
        return {
            "episodes": len(self.returns),
            "return": self.mean_return,
            "speed_m_per_s": self.speed,
            "forward_speed_m_per_s": self.forward_speed,
            "survival": self.survival,
            "length_steps": float(self.lengths.double().mean()),
            "height_m": float(self.heights.mean()),
            "flagged": int(self.flagged.sum()),
            "non_finite": int(self.non_finite.sum()),
        }


class Stepper(Protocol):
    """The simulator that takes the control steps of an evaluation."""

    def advance(self, motion: Motion, action: Tensor, warm: Tensor | None) -> StepOutput:
        """A control step, as `Env.advance` takes it."""

    def work(self) -> Tensor | None:
        """Positive and absolute work of the motors in the last control step [J], (B, 2); None: not known."""


class _OwnSteps:
    """The control steps of the environment. Work is measured where these are steps of the mechanism under the action."""

    def __init__(self, env: Env, measured: bool) -> None:
        self.env, self.measured = env, measured and env.plain
        self.done: Tensor | None = None

    def advance(self, motion: Motion, action: Tensor, warm: Tensor | None) -> StepOutput:
        env = self.env
        out = type(env).advance(env, motion, action, warm)
        if self.measured:
            mech, place, states, z = env.mech, places(env.mech), list[Tensor](), motion.z
            for _ in range(env.repeat - 1):  # the timesteps within, once more one by one
                inner = mech.step(z, ctrl=action, warm_start=warm)
                z, warm = inner.z, inner.solution
                states.append(z)
            q, qd = mech.to_minimal(torch.stack([*states, out.z]))
            rates = qd[..., place]
            power = torques(mech, action, q[..., place], rates) * rates
            total = torch.stack((power.clamp_min(0.0).sum(-1), power.abs().sum(-1)), -1).sum(0)
            self.done = (env.period / env.repeat * total).nan_to_num()
        return out

    def work(self) -> Tensor | None:
        return self.done


class Tally:
    """Sums of one episode of each of B environments, until it ends.

    mech: of the states. z: (B, 13 nb) the starts. period: of a control step [s].
    """

    def __init__(self, mech: Mechanism, z: Tensor, period: float, keep: bool = False) -> None:
        zeros = z.new_zeros(len(z))
        self.mech, self.period, self.keep, self.now, self.ahead = mech, period, keep, z[:, :2], zeros
        self.alive = torch.ones(len(z), dtype=torch.bool)
        self.flagged, self.non_finite = ~self.alive, ~self.alive
        self.returns, self.lengths, self.heights, self.place, self.start = zeros, zeros, zeros, z[:, 0], z[:, 0]
        self.states, self.steps = [z], list[tuple[Tensor, Tensor, Tensor, Tensor]]()
        self.work: list[Tensor] = []
        self.activations: list[Tensor] = []

    def add(self, z: Tensor, action: Tensor, reward: Tensor, ended: Tensor, flagged: Tensor, impulses: Tensor, goal: Tensor) -> bool:
        """One control step for a goal, which led to z. Returns whether any episode goes on."""
        if self.keep:
            self.states.append(z)
            self.steps.append((action, impulses, self.alive, goal))
        good = self.alive & ~flagged
        self.returns = self.returns + torch.where(good, reward.double(), 0.0)
        self.lengths = self.lengths + self.alive
        self.heights = self.heights + torch.where(self.alive, z[:, 2], 0.0)
        self.place = torch.where(good, z[:, 0], self.place)
        self.ahead = self.ahead + torch.where(good, ((z[:, :2] - self.now) * heading(self.mech, z)).sum(-1), 0.0)
        self.now = z[:, :2]
        self.flagged = self.flagged | (self.alive & flagged)
        self.non_finite = self.non_finite | (self.alive & ~torch.isfinite(action).all(-1))
        self.alive = self.alive & ~ended & ~flagged
        return bool(self.alive.any())

    def result(self) -> Evaluation:
        """The evaluation so far."""
        recording, steps, distance = None, self.lengths.clamp_min(1), self.place - self.start
        if self.keep:
            actions, impulses, alive, goals = (torch.stack(part) for part in zip(*self.steps, strict=True))
            work = torch.stack(self.work) if len(self.work) == len(self.steps) else None
            acts = torch.stack(self.activations) if self.activations else None
            recording = Recording(torch.stack(self.states), actions, impulses, alive, self.period, goals, work=work, activations=acts)
        return Evaluation(
            returns=self.returns,
            lengths=self.lengths.long(),
            distances=distance,
            speeds=distance / (steps * self.period),
            survived=self.alive,
            heights=self.heights / steps,
            flagged=self.flagged,
            non_finite=self.non_finite,
            recording=recording,
            headed=self.ahead / (steps * self.period),
        )


@torch.no_grad()
def evaluate(
    env: Env,
    policy: Policy,
    steps: int | None = None,
    *,
    goal: Tensor | None = None,
    record: bool = False,
    stepper: Stepper | None = None,
) -> Evaluation:
    """One episode of each environment under a policy, from new starts; deterministic where the policy is.

    An episode ends where the environment terminates it, or where a step fails or the action is not finite. It takes `steps` control steps
    at most. Steps are not compiled, and statistics of the environment count them.

    Args:
        env: with ``autoreset="disabled"``. policy: gets observations in float32. steps: None: `env.episode_length`.
        goal: (n,) or (B, n), instead of the drawn ones, to the end of the episode: a command, a place.
        record: keep states, actions, impulses and goals.
        stepper: takes the control steps in the place of the environment: another simulator (`transfer`).

    Raises:
        ValueError: an environment that resets by itself; steps, goals or actions that do not fit. TypeError: no tensor of actions.
    """
    if env.autoreset != "disabled":
        raise ValueError(
            f'evaluate: got an environment with autoreset={env.autoreset!r}; allowed: "disabled", so that a start does not follow the '
            "end of an episode"
        )
    count = counted("steps", env.episode_length if steps is None else steps)
    env.reset(goal=None if goal is None else torch.as_tensor(goal, dtype=torch.float64).expand(env.num_envs, -1))
    tally = Tally(env.mech, env.state.z, env.period, record)
    steps_taken = _OwnSteps(env, record) if stepper is None else stepper
    with _advanced_by(env, steps_taken) as kept, _held_goals(env, goal is not None):
        for _ in range(count):
            action = policy(env.state.obs.float())
            check_action(action, env.num_envs, env.num_actions)
            aim = env.state.goal
            out = env.transition(env.state, action, env.draw())
            env.keep(out)
            if record and (work := steps_taken.work()) is not None:
                tally.work.append(work)
            if record and env.driving is not None:
                tally.activations.append(out.state.activation)
            if not tally.add(out.state.z, action.double(), out.reward, out.terminated, out.flagged, kept[-1], aim):
                break
    return tally.result()


@contextmanager
def _advanced_by(env: Env, stepper: Stepper) -> Iterator[list[Tensor]]:
    """A stepper takes the control steps while the context lasts. The impulses of the last one are in a list of one, since `EnvState` has
    none unless they are observed."""
    kept = list[Tensor]()

    def advance(motion: Motion, action: Tensor, warm: Tensor | None) -> Any:
        out = stepper.advance(motion, action, warm)
        kept[:] = [out.impulses]
        return out

    vars(env)["advance"] = advance
    try:
        yield kept
    finally:
        del vars(env)["advance"]


@contextmanager
def _held_goals(env: Env, held: bool) -> Iterator[None]:
    """Goals that are not drawn anew within an episode while the context lasts."""
    resample = env.resample
    env.resample = 0 if held else resample
    try:
        yield
    finally:
        env.resample = resample


def variants(factory: Callable[..., Env], num_envs: int = 64, seed: int = SEED, **options: Any) -> dict[str, Callable[[], Env]]:
    """The variants that a trained policy is tried on: functions that make environments for `evaluate`.

        "nominal"         as the factory makes it, with starts of noise 1 and no randomization
        "h/2"             half the timestep and twice the steps, so that the control period is the same
        "kappa 1e-6"      harder contact
        "h/2, kappa 1e-6" both
        "wider starts"    noise of the starts such that joints are up to 0.1 rad off, and all else of the starts in proportion

    All but the last begin from the same starts. Starts without noise have no "wider starts"; those that are 0.1 rad off already, as the
    ant's, are the nominal ones.

    Args:
        factory: makes the environment from keywords of `Env`; `functools.partial(td.envs.make, "ant")`.
        options: further keywords of all of them.
    """
    keywords = {"num_envs": num_envs, "seed": seed, "autoreset": "disabled", "noise": 1.0, "randomize": {}, **options}

    def make(**changes: Any) -> Callable[[], Env]:
        return lambda: factory(**{**keywords, **changes})

    sample = factory(**{**keywords, "num_envs": 1, "pool": 1})
    half = {"timestep": sample.period / sample.repeat / 2, "repeat": 2 * sample.repeat}
    result = {
        "nominal": make(),
        "h/2": make(**half),
        "kappa 1e-6": make(kappa=1e-6),
        "h/2, kappa 1e-6": make(**half, kappa=1e-6),
    }
    width = _width(sample)
    if width > 0:
        result["wider starts"] = make(noise=sample.noise * max(1.0, WIDE / width))
    return result


def _width(env: Env, count: int = 512) -> float:
    """Half the range of the starts' joint angles [m, rad], of the motor with the largest: limits cut the range of others."""
    starts, motors = env.starts(count), env.mech.actuators
    q = env.mech.to_minimal(starts)[0] if isinstance(starts, Tensor) else starts[0]
    places = env.mech.coordinate_places()
    if env.driving is not None or motors is None:
        driven = list(range(q.shape[-1]))
    else:
        driven = [places[joint].start + i for joint, i in zip(motors.joints, motors.coordinates, strict=True)]
    spread = (q.amax(0) - q.amin(0))[driven]
    return float(spread.max()) / 2 * (count + 1) / (count - 1)  # the range of a uniform sample is that much too small
