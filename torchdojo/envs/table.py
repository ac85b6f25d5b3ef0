"""The table of environments: a row has numbers and functions, and one class makes an environment from a row."""

from __future__ import annotations

import dataclasses
import functools
import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from torchdojo.elements.actuators import Actuator, actuate
from torchdojo.envs.checks import one_from, positive
from torchdojo.envs.drives import Drive, add_drives
from torchdojo.envs.env import Env
from torchdojo.envs.mirrors import Mirror, find_mirror, find_sides
from torchdojo.envs.motion import Motion
from torchdojo.gradients.reference_step import StepOutput
from torchdojo.mechanism import Mechanism
from torchdojo.models.built_in import make as make_model
from torchdojo.models.fluid import boxes, drag

__all__ = ["ENVIRONMENTS", "Row", "TableEnv", "add", "make", "names"]

Control = Literal["drive", "torque"]
Observe = Callable[["TableEnv", Motion], Tensor]
Reward = Callable[["TableEnv", Motion, Motion, Tensor], Mapping[str, Tensor]]
Terminated = Callable[["TableEnv", Motion], Tensor]


@dataclass(frozen=True)
class Row:
    """An environment in numbers and functions.

    model: of `td.models`. motors: {joint: largest force or torque}, for models without. options: keywords of the model.
    timestep, repeat, episode_length, kappa: defaults of `Env`. drive: numbers of its drives; None: motors alone.
    observe(env, motion), rewards {name: (env, before, after, action) -> parts}, terminated {reward: (env, after) -> (B,)}.
    noise: half widths of the uniform noise of the starts' coordinates, of the root and of the other joints [m, rad].
    rates: standard deviation of the rates [m/s, rad/s]. clearance: [m] above the ground in which robots start; None: not placed.
    center: coordinates about which the starts lie [m, rad]; None: the pose "home", moved to where the drives rest.
    goals(env, count): drawn with the starts. command: whether they begin with a command, forward and sideways speed, and turning rate.
    start(env, q) -> q: changes the coordinates (count, n) of the starts.
    drag: whether the bodies feel the medium of `td.models.drag`.
    numbers: that the functions read from `env.row.numbers`.
    """

    model: str
    observe: Observe
    rewards: Mapping[str, Reward]
    terminated: Mapping[str, Terminated] = field(default_factory=dict)
    motors: Mapping[str, float] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    timestep: float = 0.01
    repeat: int = 2
    episode_length: int = 1000
    kappa: float = 1e-4
    drive: Drive | None = None
    noise: tuple[float, float] = (0.0, 0.1)
    rates: float = 0.1
    clearance: float | None = None
    center: tuple[float, ...] | None = None
    goals: Callable[[TableEnv, int], Tensor] | None = None
    command: bool = False
    start: Callable[[TableEnv, Tensor], Tensor] | None = None
    drag: bool = False
    numbers: Mapping[str, float] = field(default_factory=dict)


MARGIN = 1e-3  # of the starts from the limits of their joints [m, rad]
ENVIRONMENTS: dict[str, Row] = {}


def add(rows: Mapping[str, Row]) -> None:
    """Put environments into the table."""
    ENVIRONMENTS.update(rows)


class TableEnv(Env):
    """An environment of the table.

    Args:
        row: of the table. name: of the row. reward: "shac" or "gymnasium", where the row has it.
        control: "drive" (targets of servos at the joints, the default of legged robots) or "torque" (fractions of the motors' largest).
        model_options: keywords of the model, `friction=`. numbers: of the row, with other values: weights of its rewards, heights.
        drive: fields of the row's `Drive`, with other values.
        clock: strides per second [Hz] of a clock whose sine and cosine follow the observation of the row. None: no clock.
            The mirrored robot is half a stride ahead, so that `symmetric: true` learns gaits whose left does what its right did before.
            The number "symmetry" of the reward then compares with half a stride before, too.
        options: of `Env`.

    Raises:
        ValueError: names that the table does not have, numbers that do not fit.

    Attributes:
        velocity_command: which numbers of a goal are the command; None: goals are something else.
    """

    def __init__(
        self,
        row: Row,
        name: str,
        *,
        reward: str = "shac",
        control: Control | None = None,
        model_options: Mapping[str, Any] | None = None,
        numbers: Mapping[str, float] | None = None,
        drive: Mapping[str, Any] | None = None,
        clock: float | None = None,
        **options: Any,
    ) -> None:
        for number in numbers or ():
            one_from(f"numbers of {name!r}", number, tuple(row.numbers))
        row = dataclasses.replace(row, numbers={**row.numbers, **(numbers or {})})
        if drive:
            if row.drive is None:
                raise ValueError(f"drive: got {dict(drive)} for {name!r}, which has no drives; leave it out")
            for key in drive:
                one_from(f"drive of {name!r}", key, tuple(vars(row.drive)))
            row = dataclasses.replace(row, drive=dataclasses.replace(row.drive, **drive))
        self.row, self.name = row, name
        self.velocity_command = slice(0, 3) if row.command else None
        self.timestep, self.repeat, self.kappa, self.episode_length = row.timestep, row.repeat, row.kappa, row.episode_length
        self.reward_name = one_from("reward", reward, tuple(row.rewards))
        controls = ("torque",) if row.drive is None else ("drive", "torque")
        self.control = one_from("control", controls[0] if control is None else control, controls)
        self.model_options = dict(model_options or {})
        self.clock = None if clock is None else positive("clock", clock)
        self.posture = torch.tensor([row.numbers.get(name, 0.0) for name in ("up", "heading")], dtype=torch.float64)
        self._reward = row.rewards[reward]
        self._terminated = row.terminated.get(reward)
        super().__init__(**options)
        if row.drag and self.driving is not None:
            raise ValueError(f"drives: got some for {name!r}, whose medium acts in every timestep; allowed: environments without drag")
        self.plain = not row.drag and self.driving is None

    def build(self) -> Mechanism:
        """The model of the row with its motors or drives."""
        mech = make_model(self.row.model, **{"timestep": self.timestep, **self.row.options, **self.model_options})
        if self.row.motors:
            actuate(mech, {joint: Actuator.motor(joint, gear=gear, ctrlrange=(-1.0, 1.0)) for joint, gear in self.row.motors.items()})
        if self.control == "drive":
            assert self.row.drive is not None
            add_drives(mech, self.row.drive)
        return mech

    def starts(self, count: int) -> Tensor:
        """The center of the row with noise, within the limits of the joints, and above the ground."""
        mech, row, home = self.mech, self.row, self._center()
        places, size = mech.coordinate_places(), torch.full_like(home, self.row.noise[1])
        root = next(iter(mech.joints))
        if root not in mech.input_layout:
            size[places[root]] = row.noise[0]
        q = home + self.noise * size * self.random(count, len(home))
        q = q if row.start is None else row.start(self, q)
        for name, place in places.items():
            limits = getattr(mech.joints[name], "limits", None)
            if limits is not None:
                q[:, place] = torch.maximum(torch.minimum(q[:, place], limits[1] - MARGIN), limits[0] + MARGIN)
        z = mech.to_maximal(q, self.noise * row.rates * self.normal(count, len(home)))
        if self.ground is not None and places[root].stop - places[root].start == 6:
            z = self.ground.scatter(z, self.random(count, 2))
        return z if row.clearance is None or not len(mech.contacts) else mech.place(z, row.clearance)

    def _center(self) -> Tensor:
        """Coordinates about which the starts lie, (num_coordinates,)."""
        mech, row = self.mech, self.row
        if row.center is not None:
            return torch.tensor(row.center, dtype=torch.float64)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a pose that overlaps the ground is placed later
            home, _ = mech.to_minimal(mech.initial_state(pose="home"))
        if self.control == "drive" and row.drive is not None and mech.actuators is not None:
            motors, places = mech.actuators, mech.coordinate_places()
            for name, joint, coordinate in zip(motors.names, motors.joints, motors.coordinates, strict=True):
                if rest := row.drive.rest_of(name):
                    home[places[joint].start + coordinate] = rest
        return home

    def mirror(self) -> Mirror:
        """The reflection of observations and actions.

        Raises:
            ValueError: robots whose left is not the image of their right.
        """
        return find_mirror(self, self._center(), memory=None if self.clock is None else self._half_a_stride)

    @staticmethod
    def _half_a_stride(memory: Tensor) -> Tensor:
        """Memory of the mirrored robot; joints that it remembers are no part of the observation."""
        return torch.cat((torch.remainder(memory[..., :1] + 0.5, 1.0), memory[..., 1:]), -1)

    @functools.cached_property
    def sides(self) -> tuple[list[int], Tensor]:
        """Places of the driven coordinates among all (nu,), and their signed permutation between left and right (nu, nu)."""
        return find_sides(self.mech, self._center(), self.name or self.row.model)

    def goals(self, count: int) -> Tensor:
        """Goals of the row."""
        return super().goals(count) if self.row.goals is None else self.row.goals(self, count)

    @property
    def lag(self) -> int:
        """Control steps of half a stride whose joints are remembered; 0 where nothing compares with them."""
        return max(1, round(0.5 / (self.clock * self.period))) if self.clock is not None and self.row.numbers.get("symmetry") else 0

    def memories(self, start: Motion) -> Tensor:
        """The phase of the clock in turns, anywhere at the start, and mirror images of the joints for half a stride, the oldest first."""
        if self.clock is None:
            return super().memories(start)
        phase = self.random(len(start.z), 1, low=0.0)
        return torch.cat((phase, start.q[..., self.sides[0]].repeat(1, self.lag)), -1) if self.lag else phase

    def remember(self, before: Motion, after: Motion, fresh: Tensor) -> Tensor:
        """The clock goes on, and the joints of now take the place of the oldest."""
        memory = super().remember(before, after, fresh)
        if self.clock is None:
            return memory
        phase = torch.remainder(memory[..., :1] + self.clock * self.period, 1.0)
        if not self.lag:
            return phase
        places, images = self.sides
        return torch.cat((phase, memory[..., 1 + len(places) :], after.q[..., places] @ images.mT), -1)

    def observe(self, motion: Motion) -> Tensor:
        """The observation of the row, and sine and cosine of the clock."""
        observation = self.row.observe(self, motion)
        if self.clock is None:
            return observation
        angle = 2.0 * math.pi * motion.memory[..., :1]
        return torch.cat((observation, angle.sin(), angle.cos()), -1)

    def reward(self, before: Motion, after: Motion, action: Tensor) -> Mapping[str, Tensor]:
        """The reward of the row by its name."""
        return self._reward(self, before, after, action)

    def terminated(self, after: Motion) -> Tensor:
        """The end of an episode, of the row and reward."""
        return super().terminated(after) if self._terminated is None else self._terminated(self, after)

    def advance(self, motion: Motion, action: Tensor, warm: Tensor | None) -> StepOutput:
        """Where there is a medium, its drag is computed anew in every timestep."""
        if not self.row.drag:
            return super().advance(motion, action, warm)
        z, solids, results = motion.z, boxes(self.mech), list[StepOutput]()
        for _ in range(self.repeat):
            out = self.mech.step(z, ctrl=action, warm_start=warm, wrench=drag(self.mech, z, like=solids))
            z, warm = out.z, out.solution
            results.append(out)
        if len(results) == 1:
            return results[0]
        impulses, status, iterations, substeps = (
            torch.stack([getattr(out, name) for out in results]) for name in ("impulses", "status", "iterations", "substeps")
        )
        return StepOutput(z, impulses.sum(0), status.amax(0), iterations.sum(0), results[-1].solution, substeps.sum(0))


def names() -> list[str]:
    """Names of the environments."""
    return list(ENVIRONMENTS)


def make(name: str, num_envs: int = 1, **options: Any) -> TableEnv:
    """An environment by name: ``env = make("ant", num_envs=32, seed=0, reward="shac")``.

    options: of `TableEnv` (reward, control, model_options, numbers, drive) and `Env` (seed, timestep, repeat, noise, randomize, ...).

    Raises:
        ValueError: an unknown name, reward or control, numbers that do not fit.
    """
    if name not in ENVIRONMENTS:
        raise ValueError(f"no environment {name!r}; there are: {', '.join(ENVIRONMENTS)}")
    return TableEnv(ENVIRONMENTS[name], name, num_envs=num_envs, **options)
