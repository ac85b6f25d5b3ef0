"""The base class of environments: batched control steps of a mechanism, with rewards, resets and statistics, differentiable throughout."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, cast

import torch
from torch import Tensor

from torchdojo.envs.checks import (
    check_action,
    check_kappa,
    check_mask,
    check_methods,
    check_shard,
    check_start,
    counted,
    one_from,
    positive,
)  # fmt: skip
from torchdojo.envs.direct import light_guards
from torchdojo.envs.disturbances import Kicks, SensorNoise, Sensors, rows_of_steps
from torchdojo.envs.driving import Driving, GivenDrives, first_step, names_of_actions
from torchdojo.envs.ground import Ground, Terrain, scan_points
from torchdojo.envs.instruments import Instruments, SensorNames, by_sensor
from torchdojo.envs.motion import EnvState, EnvStep, Motion, Transition, any_rare, finite, part_of
from torchdojo.envs.randomization import Randomization, Ranges
from torchdojo.envs.saving import restore, saved, statistics
from torchdojo.gradients.reference_step import StepOutput
from torchdojo.mechanism import Mechanism

__all__ = ["Env"]

Autoreset = Literal["same_step", "disabled"]
COUNTS = ("flagged", "iterations", "split", "resets")


class Env:
    """Environments of one mechanism: a batch of B robots, each with an episode of its own.

    A robot of one's own overrides five methods, none of them with a branch on the values of tensors:

        build() -> Mechanism          unless `mech` is given; it needs actuators (`td.actuate`) with controls from -1 to 1
        starts(count) -> (q, qd) or z  states that episodes begin in; `self.random(...)` and `self.normal(...)` draw
        observe(motion) -> (B, n)      from `Motion`: z, joint coordinates, last action, goal
        reward(before, after, action) -> (B,), or {name: (B,)}, whose sum is the reward and whose parts are logged
        terminated(after) -> (B,) bool

    and, if wanted, `goals(count)`, `advance`, and `memories(start)` with `remember(before, after, fresh)`, for what the task carries from
    step to step. A control step holds one action for `repeat` timesteps in one call of the kernel. Its graph leads from observation and
    reward back to action, state and parameters of the mechanism. `detach` cuts it. Resets go through `torch.where`, from a pool of starts
    that is computed once.

    Args:
        mech: the mechanism; None: that of `build()`.
        num_envs: B. repeat: timesteps of a control step. episode_length: control steps after which an episode is truncated.
        timestep: h [s]. kappa: of the contacts (`SolverOptions`). Both are set on the mechanism. None: a given mechanism keeps its own, and
            that of `build()` gets those of the class.
        noise: factor of the noise of the starts. pool: number of starts, or states (n, 13 nb) to start from instead of `starts()`.
        randomize: {name in mech.named_parameters(), or pattern: (low, high)}: factors drawn for each environment (`Randomization`).
        redraw: draw them anew at every reset, not only at the start. A `Segment` does so between segments, for the environments whose
            episode ended in the last one.
        resample: control steps of an episode after which its goal is drawn anew from the goals of the pool; 0: never; None: the class's.
        kicks: (speed [m/s], control steps between two): pushes of the whole robot in random horizontal directions (`Kicks`).
        sensor_noise: noise, bias and delay of the observation (`SensorNoise`), as such, as a mapping, or as one number, the noise. Rewards
            and ends of episodes do not see it. {"noise": {"gyro": 0.01}} is that of `sensors` by name, "file" that in their file.
        terrain: the ground in place of planes: a name, arguments or a field of `td.terrain`, "rough", {"kind": "rough", "height": 0.1}; see
            `Ground`. None: as the mechanism has it. height_scan: whether the observation ends with the heights of the root above the
            ground at 7 x 5 points around it, or at given points (n, 2), ahead and to the left [m].
        observe_impulses: whether `Motion.impulses` has the contacts' normal impulses, and the observation ends with them over h · repeat.
        sensors: names in `mech.sensors`, or sensors by name; the observation ends with what they read (`Instruments`).
        drives: {name: td.Drive(...)}, or `td.Drives`; None: those of the mechanism. Actions from -1 to 1 are then controls in the ranges of
            these drives (`Driving`), and the activations are `Motion.activation`. observe_activations: True, or names of activations that
            follow the rest of the observation, before `sensors`.
        autoreset: "same_step": an environment whose episode ends starts the next one in the same step. "disabled": it goes on from where
            it is, until `reset(mask)`.
        dtype: of observations and rewards. Everything inside is float64. seed: of the one generator that draws all random numbers.
        shard: (number of this process, number of processes). All with one seed draw the same, and each takes the part of its environments.

    Attributes:
        on_state: a function (B, 13 nb) -> (B, 13 nb) on the state right after the kernel, before coordinates, reward and observation are
            taken. Its backward sees the whole adjoint dReturn/dz of this control step; SHAC clips there. None: nothing.
        action_names: of the actuators or drives that actions go to. driving: `Driving`, or None without drives.
        state: `EnvState`. period: h · repeat [s]. num_starts: in the pool.
        plain: whether `advance` is one step of the mechanism under the action, so that a `Segment` may call the kernel itself.
    """

    name: str = ""
    timestep: float | None = None
    repeat: int = 1
    kappa: float = 1e-4
    episode_length: int = 1000
    resample: int = 0

    def __init__(
        self,
        mech: Mechanism | None = None,
        *,
        num_envs: int = 1,
        timestep: float | None = None,
        repeat: int | None = None,
        kappa: float | None = None,
        episode_length: int | None = None,
        noise: float = 1.0,
        pool: int | Tensor = 512,
        randomize: Mapping[str, Ranges] | None = None,
        redraw: bool = False,
        resample: int | None = None,
        kicks: tuple[float, int] | None = None,
        sensor_noise: SensorNoise | Mapping[str, Any] | float | str | None = None,
        terrain: Terrain | None = None,
        height_scan: bool | Sequence[Sequence[float]] = False,
        observe_impulses: bool = False,
        sensors: SensorNames = (),
        drives: GivenDrives = None,
        observe_activations: bool | Sequence[str] = False,
        autoreset: Autoreset = "same_step",
        dtype: torch.dtype = torch.float64,
        seed: int = 0,
        shard: tuple[int, int] = (0, 1),
    ) -> None:
        self.num_envs = counted("num_envs", num_envs)
        self.shard = check_shard(shard)
        self.repeat = counted("repeat", self.repeat if repeat is None else repeat)
        self.episode_length = counted("episode_length", self.episode_length if episode_length is None else episode_length)
        self.resample = counted("resample", self.resample if resample is None else resample, zero=True)
        self.noise = positive("noise", noise, zero=True)
        self.autoreset = one_from("autoreset", autoreset, ("same_step", "disabled"))
        self.dtype = one_from("dtype", dtype, (torch.float64, torch.float32))
        self.observe_impulses, self.on_state = bool(observe_impulses), cast(Callable[[Tensor], Tensor] | None, None)
        self.generator = torch.Generator().manual_seed(seed)
        if mech is None:
            timestep, kappa = self.timestep if timestep is None else timestep, self.kappa if kappa is None else kappa
        self.timestep = None if timestep is None else positive("timestep", timestep)  # build() may read both
        self.kappa = positive("kappa", mech.options.kappa if kappa is None and mech is not None else kappa)
        self.mech = self.build() if mech is None else mech
        self.driving = Driving.of(self.mech, drives, observe_activations, self.repeat, type(self).__name__)
        self.action_names = names_of_actions(self.mech, self.driving, type(self).__name__)
        self._set_numbers()
        scan, label = scan_points(height_scan, terrain), self.name or type(self).__name__
        self.ground = None if terrain is None else Ground(self.mech, terrain, scan, label)
        self.num_actions = len(self.action_names)
        self._normals = [place.start for name, place in self.mech.impulse_layout.items() if name.startswith("contacts.")]
        self._steps, self.plain = 0, type(self).advance is Env.advance and self.driving is None  # steps of each environment
        self._over = torch.zeros(self.num_envs, dtype=torch.bool)  # whose episode ended, where nothing resets by itself
        self._counts = {name: torch.zeros(self.num_envs, dtype=torch.int64) for name in COUNTS}
        self._finished = torch.zeros(3, dtype=torch.float64)  # episodes, and sums of their returns and lengths
        self.term_names: tuple[str, ...] = ()
        self.instruments = Instruments(self, sensors) if sensors else None
        starts = self._make_pool(pool, SensorNoise.of(sensor_noise))
        self.num_obs, self.num_starts = starts.obs.shape[-1], len(starts.obs)
        self._pool, self._sizes = torch.cat(starts[:-2], -1), [tensor.shape[-1] for tensor in starts[:-2]]
        self.kicks = None if kicks is None else Kicks(kicks, self.mech, starts.z[:1], label)
        self.randomization = Randomization(self.mech, self.num_envs, randomize or {}, self.generator, self.shard)
        self.redraw, self._due = bool(redraw), torch.zeros(self.num_envs, dtype=torch.bool)
        self._transition: Callable[..., Transition] = self.transition
        self.state = self._fresh(self._index()[0])

    def _set_numbers(self) -> None:
        """Give the mechanism this environment's timestep and kappa."""
        if self.timestep is not None:
            self.mech.timestep = torch.as_tensor(self.timestep, dtype=torch.float64)
        if self.mech.timestep.numel() != 1:
            raise ValueError(f"timestep: got one per environment, {tuple(self.mech.timestep.shape)}; allowed: one for all; give timestep=")
        self.timestep = float(self.mech.timestep)
        self.period = self.timestep * self.repeat
        options = check_kappa(type(self).__name__, self.kappa, self.mech.options)
        if options.kappa != self.kappa:
            self.mech.options = dataclasses.replace(options, kappa=self.kappa)

    # -- what a robot of one's own overrides ---------------------------------------------------------------------------------------------

    def build(self) -> Mechanism:
        """The mechanism, with actuators whose controls go from -1 to 1."""
        raise NotImplementedError(f"{type(self).__name__}: give a mechanism, or override build()")

    def starts(self, count: int) -> Tensor | tuple[Tensor, Tensor]:
        """States that episodes begin in: z (count, 13 nb), or (q, qd), each (count, num_coordinates). Default: the pose "home"."""
        return self.mech.initial_state((count,), pose="home" if "home" in self.mech.poses else None)

    def goals(self, count: int) -> Tensor:
        """The goal of an episode, (count, n): a command or a place. Default: none, n = 0."""
        return torch.zeros(count, 0, dtype=torch.float64)

    def memories(self, start: Motion) -> Tensor:
        """The memory of episodes that begin in these states, (B, m): the phase of a clock. Default: nothing, m = 0.

        start: without memory.
        """
        return start.z.new_zeros(len(start.z), 0)

    def remember(self, before: Motion, after: Motion, fresh: Tensor) -> Tensor:
        """The memory after a control step, (B, m): the phase of a clock, the action before the last. Default: that of before.

        Gradients pass through the memory.

        after: with the memory of before. fresh: (B, m), the memory that an episode would begin with now, drawn from the pool.
        """
        return before.memory

    def activations(self, start: Motion) -> Tensor:
        """The activations of drives that episodes begin with, (B, na). Default: zero. start: without memory and activations."""
        return start.z.new_zeros(len(start.z), 0 if self.driving is None else self.driving.drives.num_activations)

    def observe(self, motion: Motion) -> Tensor:
        """Observation, (B, n). Default: coordinates, rates and the goal."""
        return torch.cat((motion.q, motion.qd, motion.goal), -1)

    def reward(self, before: Motion, after: Motion, action: Tensor) -> Tensor | Mapping[str, Tensor]:
        """Reward of a control step, (B,), or its parts by name."""
        raise NotImplementedError(f"{type(self).__name__}: override reward(before, after, action)")

    def terminated(self, after: Motion) -> Tensor:
        """Whether the episode ends in this state, (B,). Default: never."""
        return torch.zeros(after.z.shape[:-1], dtype=torch.bool)

    def advance(self, motion: Motion, action: Tensor, warm: Tensor | None) -> StepOutput:
        """The control step of the mechanism: `repeat` timesteps under one action."""
        if self.driving is not None:
            return self.driving.advance(motion, action, warm)
        return self.mech.step(motion.z, ctrl=action, repeat=self.repeat, warm_start=warm)

    def above_ground(self, motion: Motion, height: Tensor) -> Tensor:
        """A height (B,) [m] of the root over the terrain below it; without `terrain`, the height itself."""
        return height if self.ground is None else height - self.ground.height(motion.root[..., :2])

    # -- random numbers ------------------------------------------------------------------------------------------------------------------

    def random(self, *shape: int, low: float = -1.0, high: float = 1.0) -> Tensor:
        """Uniform numbers from the generator of this environment."""
        return low + (high - low) * torch.rand(shape, generator=self.generator, dtype=torch.float64)

    def normal(self, *shape: int) -> Tensor:
        """Normal numbers from the generator of this environment."""
        return torch.randn(shape, generator=self.generator, dtype=torch.float64)

    # -- stepping ------------------------------------------------------------------------------------------------------------------------

    @property
    def obs(self) -> Tensor:
        """The observation to act on now, (B, num_obs)."""
        return self.state.obs.to(self.dtype)

    def reset(
        self,
        mask: Tensor | None = None,
        *,
        z: Tensor | None = None,
        goal: Tensor | None = None,
        activation: Tensor | None = None,
        index: Tensor | None = None,
        stagger: bool = False,
    ) -> Tensor:
        """Begin new episodes, and return the observation (B, num_obs). The graph is cut.

        Args:
            mask: (B,) which environments; None: all. z: (B, 13 nb) states to start from, instead of the pool's. goal: (B, n) likewise.
            activation: (B, na) of the drives. With a z or goal and without it, they are those of `activations`.
            index: (B,) places of the starts in the pool; None: drawn (`draw`).
            stagger: start at random times of the episode, so that environments do not all run out of time together.

        Raises:
            ValueError: shapes that do not fit, states that are not finite.
        """
        where = torch.ones(self.num_envs, dtype=torch.bool) if mask is None else check_mask(mask, self.num_envs)
        self.settle()
        if self.redraw:
            self.randomization.draw(where)
        fresh = self._fresh(self._index()[0] if index is None else index)
        if z is not None or goal is not None or activation is not None:
            fresh = self._starting_at(fresh.z if z is None else z, fresh.goal if goal is None else goal, activation)
        if stagger:
            fresh = fresh._replace(time=self._index(below=self.episode_length)[0])
        self.state = fresh.where(where, self.state.detach())
        self._counts["resets"] += where
        self._over &= ~where
        return self.obs

    def step(self, action: Tensor) -> EnvStep:
        """One control step. action: (B, nu), from -1 to 1, float32 or float64; what lies outside is clipped by the actuators.

        Where the step fails, or the action is not finite, the reward is zero, no gradient passes, the episode is terminated, and
        `info["flagged"]` and `statistics` tell.
        """
        check_action(action, self.num_envs, self.num_actions)
        out = self._transition(self.state, action, self.draw())
        self.keep(out)
        obs = out.state.obs.to(self.dtype)
        final = obs if out.final_obs is out.state.obs else out.final_obs.to(self.dtype)
        terms = dict(zip(self.term_names, out.terms.unbind(-1), strict=True))
        info = {"terms": terms, "flagged": out.flagged, "episode_return": out.total, "episode_length": out.time}
        return EnvStep(obs, out.reward.to(self.dtype), out.terminated, out.truncated, final, info)

    def keep(self, out: Transition) -> None:
        """Make the result of `transition` the state of this environment, and count it. A `Segment` gives H of them, stacked."""
        self.state = out.state
        done = out.terminated | out.truncated
        if self.redraw and self.autoreset == "same_step":
            self._due |= done if done.ndim == 1 else done.any(0)
        self._steps += done.numel() // self.num_envs
        for name, value in zip(COUNTS, (out.flagged, out.iterations, out.substeps > self.repeat), strict=False):
            self._counts[name] += value if value.ndim == 1 else value.sum(0)
        if not bool(done.any()):
            return
        new = done & ~self._over
        self._finished += torch.stack((torch.ones_like(out.total), out.total, out.time.double())).flatten(1) @ new.flatten().double()
        if self.autoreset == "disabled":
            self._over |= done
            return
        self._counts["resets"] += done if done.ndim == 1 else done.sum(0)

    def transition(self, state: EnvState, action: Tensor, drawn: Tensor) -> Transition:
        """One control step as a function of tensors, without side effects: for `torch.compile` together with a policy.

        drawn: the random numbers of this step, from `draw`. `keep` takes the result.
        """
        before = state.motion
        action = action.to(before.z.dtype)
        out = self.advance(before, action, state.warm)
        z = self.disturb(out.z, drawn)
        return self.arrive(state, action, drawn, out, z, *self.mech.to_minimal(z))

    def disturb(self, z: Tensor, drawn: Tensor) -> Tensor:
        """The state right after the kernel, with its kick, through `on_state`."""
        z = z if self.kicks is None else self.kicks.apply(z, drawn[:, 1:3])
        return z if self.on_state is None else self.on_state(z)

    def arrive(self, state: EnvState, action: Tensor, drawn: Tensor, out: StepOutput, z: Tensor, q: Tensor, qd: Tensor) -> Transition:
        """The rest of a control step, at the state z with coordinates q, qd. out: of `advance`, with z before `disturb`."""
        after, good = self._land(state, action, drawn, out, z, q, qd)
        return self._proceed(state, drawn, out, after, good, self._rate(state.motion, after))

    def _land(
        self, state: EnvState, action: Tensor, drawn: Tensor, out: StepOutput, z: Tensor, q: Tensor, qd: Tensor
    ) -> tuple[Motion, Tensor]:
        """First part of `arrive`: the motion after the step, and whose step and action are good (B,)."""
        good = (out.status == 0) & finite(action.detach().sum(-1))
        if any_rare(~good):  # a number that is not finite would reach the weights as zero times NaN
            action = torch.where(good[:, None], action, 0.0)
        impulses = out.impulses[..., self._normals] if self.observe_impulses else state.impulses
        activation = state.activation if self.driving is None else self.driving.carry(state.activation, action)
        after = Motion(z, z[..., :13], q, qd, action, state.goal, impulses, state.memory, activation, state.time + 1)
        if state.memory.shape[-1]:
            index = drawn if drawn.ndim == 1 else drawn[:, 0].long()
            after = after._replace(memory=self.remember(state.motion, after, part_of(self._pool, self._sizes, "memory", index)))
        return after, good

    def _rate(self, before: Motion, after: Motion) -> tuple[Tensor, Tensor]:
        """The second part of `arrive`: the reward (B,) and its parts (B, n), without gradients."""
        terms = self._parts(self.reward(before, after, after.action)).values()
        return functools.reduce(torch.add, terms), torch.stack([part.detach() for part in terms], -1)

    def _proceed(
        self, state: EnvState, drawn: Tensor, out: StepOutput, after: Motion, good: Tensor, rated: tuple[Tensor, Tensor] | None
    ) -> Transition:
        """Last part of `arrive`: observation, end of episodes, state to go on from. rated: of `_rate`; None: rewards are zero."""
        index, goal, time = drawn if drawn.ndim == 1 else drawn[:, 0].long(), after.goal, after.time
        if self.resample:  # the reward is for the goal that the action was chosen for, and the next action sees the new one
            goal = torch.where((time % self.resample == 0)[:, None], part_of(self._pool, self._sizes, "goal", index), goal)
        obs = self._observe(after._replace(goal=goal), state, out)
        reward, parts = (torch.zeros_like(state.total), state.total.new_zeros(len(time), 0)) if rated is None else rated
        flagged = ~(good & finite(reward.detach() + obs.detach().sum(-1) + after.memory.detach().sum(-1)))
        if any_rare(flagged):
            reward, parts = torch.where(flagged, 0.0, reward), torch.where(flagged[:, None], 0.0, parts)
        fell = self.terminated(after) | flagged
        total = state.total + reward.detach()
        late = (time >= self.episode_length) & ~fell
        seen, carried = self.sensors.read(obs, state.sensors, drawn)
        new = EnvState(after.z, *after[2:5], goal, *after[6:9], carried, seen, out.solution, time, total)
        if self.autoreset == "same_step" and any_rare(fell | late):
            new = self._fresh(index).where(fell | late, new)
        return Transition(new, reward, fell, late, seen, parts, total, time, flagged, out.iterations, out.substeps)

    def compile(self, **options: Any) -> None:
        """Let `step` run `transition` through `torch.compile`.

        Its graph is checked against the tensors that it is given and the numbers of the mechanism, and not against options and the
        attributes of this object. So set `on_state` and options before, and compile again after a change.
        """
        chosen: dict[str, Any] = {"fullgraph": True, "dynamic": False}
        if "options" not in options:
            chosen["options"] = {"guard_filter_fn": light_guards}
        self._transition = torch.compile(self.transition, **{**chosen, **options})

    def detach(self) -> Tensor:
        """Cut the graph behind the state, between segments of training. Returns the observation."""
        self.state = self.state.detach()
        return self.obs

    # -- statistics, saving --------------------------------------------------------------------------------------------------------------

    @property
    def statistics(self) -> dict[str, float]:
        """Counts since the start: control steps, those flagged, Newton iterations, steps with a split timestep, resets; and of finished
        episodes their number, mean return and mean length (NaN where none is finished)."""
        return statistics(self)

    def state_dict(self) -> dict[str, Any]:
        """All that decides how this environment goes on: an environment built alike that loads it continues identically."""
        return saved(self)

    def load_state_dict(self, given: Mapping[str, Any]) -> None:
        """Go on from a `state_dict` of an environment built alike.

        Raises:
            ValueError: that of another environment, number of environments, observation, pool or randomization.
        """
        restore(self, given)

    # -- starts --------------------------------------------------------------------------------------------------------------------------

    def _observe(self, motion: Motion, before: EnvState | None = None, out: StepOutput | None = None) -> Tensor:
        parts = [self.observe(motion)]
        if self.ground is not None and len(self.ground.scan):
            parts.append(self.ground.seen(motion.root))
        if self.observe_impulses:
            parts.append(motion.impulses / self.period)
        if self.driving is not None:
            parts.append(self.driving.seen(motion))
        if self.instruments is not None:
            parts.append(self.instruments.read(self, motion, before, out))
        return torch.cat(parts, -1) if len(parts) > 1 else parts[0]

    def _parts(self, terms: Tensor | Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return {"reward": terms} if isinstance(terms, Tensor) else terms

    @torch.no_grad()
    def _make_pool(self, given: int | Tensor, noise: SensorNoise) -> EnvState:
        """Starts, and a look at what the methods of a robot of one's own return for them."""
        start, name = given if isinstance(given, Tensor) else self.starts(counted("pool", given)), type(self).__name__
        z = start.double() if isinstance(start, Tensor) else self.mech.to_maximal(start[0].double(), start[1].double())
        self.mech.check_state(z)
        motion = self._still(z, self.goals(len(z)).to(z))
        obs, parts = check_methods(self, name, motion)
        self.term_names, self.sensors = tuple(parts), Sensors(by_sensor(noise, self.instruments, obs.shape[-1]), obs.shape[-1])
        return self._begin(motion, obs)

    def _still(self, z: Tensor, goal: Tensor, activation: Tensor | None = None) -> Motion:
        """Starts of episodes, at rest as far as actions and impulses go."""
        impulses, none = z.new_zeros(len(z), len(self._normals) if self.observe_impulses else 0), z.new_zeros(len(z), 0)
        rest = z.new_zeros(len(z), self.num_actions), goal, impulses, none, none, torch.zeros(len(z), dtype=torch.int64)
        motion = Motion(z, z[..., :13], *self.mech.to_minimal(z), *rest)
        if self.driving is not None:
            motion = self.driving.begin(motion, self.activations(motion) if activation is None else activation, type(self).__name__)
        elif activation is not None:
            raise ValueError(f"reset: got activations for {type(self).__name__}, which has no drives; leave them out")
        return motion._replace(memory=self.memories(motion))

    def _begin(self, motion: Motion, obs: Tensor) -> EnvState:
        """Episodes that begin in these motions."""
        out = first_step(self, motion)  # its solution is a good warm start; the state is not taken
        if failed := int((out.status != 0).sum()):
            raise ValueError(f"{type(self).__name__}: no step from {failed} of {len(obs)} starts; allowed: none in another body")
        seen, carried = self.sensors.begin(obs, self.normal)
        return EnvState(motion.z, *motion[2:9], carried, seen, out.solution, motion.time, motion.z.new_zeros(len(obs)))

    @torch.no_grad()
    def _starting_at(self, z: Tensor, goal: Tensor, activation: Tensor | None) -> EnvState:
        self.mech.check_state(z)
        check_start(z, goal, self.state)
        motion = self._still(z.detach().double(), goal.detach().double(), activation)
        return self._begin(motion, self._observe(motion))

    def draw(self, steps: int | None = None) -> Tensor:
        """The random numbers of the next control step, for `transition`; of the next ones, (steps, ...).

        They are places in the pool (B,), where environments that end now start again. With kicks or noise of sensors, they are rows of a
        place, the velocity of a kick, and normal numbers, (B, n).
        """
        self.settle()
        draw = self._index if self.kicks is None and not self.sensors.draws else self._rows
        return draw(1)[0] if steps is None else draw(steps)

    def _rows(self, steps: int) -> Tensor:
        """Random numbers of steps, (steps, B, n)."""
        size = steps, self.shard[1] * self.num_envs
        return self._own(rows_of_steps(size, self.num_starts, self.kicks, self._steps, self.sensors.draws, self.generator)).contiguous()

    def settle(self) -> None:
        """Draw the parameters of environments whose episode ended, where `redraw` asks for it. `step`, `draw` and a `Segment` do."""
        if self.redraw and (self.shard[1] > 1 or bool(self._due.any())):  # of several processes all draw, so that generators stay alike
            self.randomization.draw(self._due)
            self._due = torch.zeros_like(self._due)

    def _index(self, steps: int = 1, below: int | None = None) -> Tensor:
        """Places in the pool, or whole numbers below another bound, (steps, B)."""
        size = steps, self.shard[1] * self.num_envs
        return self._own(torch.randint(self.num_starts if below is None else below, size, generator=self.generator))

    def _own(self, drawn: Tensor) -> Tensor:
        """The part for the environments of this process of (steps, environments of all processes, ...)."""
        return drawn.narrow(1, self.shard[0] * self.num_envs, self.num_envs)

    def _fresh(self, index: Tensor) -> EnvState:
        """Starts from the pool."""
        columns, time = self._pool.index_select(0, index).split(self._sizes, -1), torch.zeros_like(index)
        return EnvState(*[*columns, time, time.to(self._pool.dtype)])
