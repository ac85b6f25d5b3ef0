"""Plans from descriptions (YAML): a task of `tasks.py`, or a robot with start, goal and weights by joint coordinates."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchdojo import io, models
from torchdojo.mechanism import Mechanism
from torchdojo.planning import options as schedules
from torchdojo.planning.driven import driven_by
from torchdojo.planning.dynamics import COORDINATES
from torchdojo.planning.gait import HOLDING, holding_inputs
from torchdojo.planning.options import SolveOptions
from torchdojo.planning.plan import Plan, Replay
from torchdojo.planning.problem import Problem
from torchdojo.planning.residuals import Activation, ContactForce, Input, Residual, State
from torchdojo.planning.solver import METHODS
from torchdojo.planning.tasks import TASKS, Task
from torchdojo.runs.description import assign, load_yaml, parse
from torchdojo.state.layout import TANGENT_SIZE

__all__ = ["PlanConfig", "PlanTask", "read_config"]

OTHERS = "others"  # joints, or contacts, that a mapping does not name
SCHEDULES = {"GRADIENT_ANNEALED": schedules.GRADIENT_ANNEALED, "BOTH_ANNEALED": schedules.BOTH_ANNEALED, "HOLDING": HOLDING}
WEIGHTS = {"q": 1.0, "qd": 0.1, "u": 1e-3, "normal": 0.0, "activation": 0.0}
#: keys beside `task`; it has all the others of its own
OF_TASKS = ("task", "task_options", "method", "options", "replay", "lag")


@dataclass(frozen=True)
class PlanConfig:
    """Description of a plan: either `task`, or `robot`, `timestep`, `steps`, `start` and `goal`.

    task: name of `planning.tasks.TASKS`. task_options: keywords of its function.
    robot: name of a built-in mechanism, or a robot file (.urdf, .xml, .mjcf). robot_options: keywords of `td.models.make` or `td.load`.
    timestep: h [s]. steps: T.
    start, goal: keywords of `Mechanism.initial_state`: joints by name, {q: ..., qd: ...}, or `pose`, `on`. Joints that the goal does not
        name have the coordinates of the start, at rest.
    reach: names whose coordinates the plan must reach at its end: "hip", "hip.q", "hip.qd", or "all". None: those that the goal names.
    weights: `q`, `qd`: of squared errors at every node, a number, or numbers by name, with "others" for the rest. `u`: of squared inputs.
        `normal`: of squared normal forces [N] of contacts, a number, or numbers by name of the contact. `activation`: of squared
        activations of drives, a number, or a list with one for each.
    normal_forces: largest normal forces of contacts [N], a number, or numbers by name, with "others" for the rest; None: no bound. Their
        violation counts relative to them.
    inputs: joints (or actuators) that act; None: all. controls: whether inputs are controls of the robot's drives, or actuators.
    start_activation: activations of drives at the start, a number or a list with one for each.
    limits: largest inputs, a number or a list, or a pair [least, largest] of lists; "effort": the effort limits of the robot's joints.
    guess: inputs to begin with, a number or a list; "hold": those that hold the start.
    coordinates: "minimal": names are those of joints. "tangent": names are those of bodies, and q is place and rotation.
    method: "single" or "multiple". options: fields of `SolveOptions` that differ from the default (or from the task's).
    replay: steps of the replay in each step of the plan. lag: of `Plan.replay`; None: its default (or the task's).
    """

    task: str | None = None
    task_options: Mapping[str, Any] = field(default_factory=dict)
    robot: str | None = None
    robot_options: Mapping[str, Any] = field(default_factory=dict)
    timestep: float | None = None
    steps: int | None = None
    start: Mapping[str, Any] = field(default_factory=dict)
    goal: Mapping[str, Any] = field(default_factory=dict)
    reach: str | list[str] | None = None
    weights: Mapping[str, Any] = field(default_factory=dict)
    normal_forces: Any = None
    inputs: list[str] | None = None
    controls: bool = False
    start_activation: Any = None
    limits: Any = None
    guess: Any = 0.0
    coordinates: str = "minimal"
    method: str = "single"
    options: Mapping[str, Any] = field(default_factory=dict)
    replay: int = 10
    lag: float | None = None

    def __post_init__(self) -> None:
        if (self.task is None) == (self.robot is None):
            got = "neither" if self.task is None else "both"
            raise ValueError(f"task, robot: got {got}; allowed: one of them, a task ({', '.join(TASKS)}) or a robot of your own")
        if self.task is not None and self.task not in TASKS:
            raise ValueError(f"task: got {self.task!r}; allowed: {', '.join(TASKS)}")
        if self.task is not None:
            defaults = {entry.name: {} if entry.default is MISSING else entry.default for entry in fields(self)}
            extra = [name for name, value in defaults.items() if name not in OF_TASKS and getattr(self, name) != value]
            if extra:
                raise ValueError(f"{', '.join(extra)}: the task {self.task!r} has its own; leave them out, or give robot in its place")
        missing = [name for name in ("timestep", "steps", "goal") if self.robot is not None and not getattr(self, name)]
        if missing:
            raise ValueError(f"{', '.join(missing)}: missing; a plan of a robot needs timestep [s], steps and goal")
        for name, allowed in (("coordinates", COORDINATES), ("method", tuple(METHODS))):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name}: got {getattr(self, name)!r}; allowed: {', '.join(map(repr, allowed))}")
        if self.replay < 1:
            raise ValueError(f"replay: got {self.replay}; allowed: 1 or more steps in each step of the plan")

    def build(self) -> PlanTask:
        """The problem and how to solve it.

        Raises:
            ValueError, TypeError, FileNotFoundError: what does not fit; the message names the key.
        """
        keywords = dict(self.options)
        if isinstance(keywords.get("schedule"), str) and keywords["schedule"] in SCHEDULES:
            keywords["schedule"] = SCHEDULES[keywords["schedule"]]
        if self.task is not None:
            task = TASKS[self.task]
            _check_names("task_options", self.task_options, [name for name in inspect.signature(task.make).parameters if name != "noise"])
            options = parse(SolveOptions, {**task.options, **keywords}, "options")
            return PlanTask(task.make(None, **self.task_options), options, self.method, self.lag, task)
        return PlanTask(self._problem(), parse(SolveOptions, keywords, "options"), self.method, self.lag)

    def _problem(self) -> Problem:
        assert self.robot is not None and self.timestep is not None and self.steps is not None
        make: Any = models.make if self.robot in models.names() else io.load
        if make is io.load and not Path(self.robot).suffix:
            raise ValueError(f"robot: no built-in mechanism {self.robot!r}; there are: {', '.join(models.names())}, or give a robot file")
        mech: Mechanism = make(self.robot, timestep=self.timestep, **self.robot_options)
        start = mech.initial_state(**self.start)
        goal = _goal(mech, start, self.goal)
        rows = _rows(mech, self.coordinates)
        _check_names("weights", self.weights, list(WEIGHTS))
        weights = {**WEIGHTS, **self.weights}
        names = _input_names(mech, self.controls)
        chosen = _chosen(names, self.inputs)
        costs: list[Residual] = [State(goal, _weights(rows, weights)), Input(_numbers("weights.u", weights["u"]))]
        if bool((active := _numbers("weights.activation", weights["activation"])).any()):
            costs.append(Activation(active))
        pressed = {name: weight for name, weight in _by_contact(mech, "weights.normal", weights["normal"]).items() if weight != 0.0}
        if pressed:
            costs.append(ContactForce(list(pressed), list(pressed.values())))
        caps = {} if self.normal_forces is None else _by_contact(mech, "normal_forces", self.normal_forces)
        if any(cap <= 0 for cap in caps.values()):
            raise ValueError(f"normal_forces: got {self.normal_forces!r}; allowed: positive numbers [N]")
        capped = [ContactForce(list(caps), [1 / cap for cap in caps.values()], list(caps.values()))] if caps else []
        reached = _reached(rows, self.reach, self.goal, self.coordinates)
        return Problem(
            mech,
            start,
            self.steps,
            costs=costs,
            equalities=[State(goal, rows=reached, at=-1)] if reached else (),
            inequalities=capped,
            limits=self._limits(mech, chosen),
            controls=self.controls,
            input_map=torch.eye(len(names), dtype=torch.float64)[:, chosen],
            guess=self._guess(mech, start, chosen),
            coordinates=self.coordinates,
            start_activation=None if self.start_activation is None else _numbers("start_activation", self.start_activation),
        )

    def _limits(self, mech: Mechanism, chosen: Sequence[int]) -> tuple[Tensor, Tensor] | None:
        if self.limits is None:
            return None
        if self.limits == "effort":
            if self.controls:
                raise ValueError("limits: got 'effort' with controls; allowed: numbers (motors of built-in robots have controls of ±1)")
            efforts = _efforts(mech)[list(chosen)]
            return -efforts, efforts
        if isinstance(self.limits, list) and len(self.limits) == 2 and any(isinstance(limit, list) for limit in self.limits):
            least, largest = (_numbers("limits", limit) for limit in self.limits)
            return least, largest
        largest = _numbers("limits", self.limits)
        return -largest, largest

    def _guess(self, mech: Mechanism, start: Tensor, chosen: Sequence[int]) -> Tensor:
        if self.guess != "hold":
            return _numbers("guess", self.guess)
        if self.controls or len(chosen) != mech.num_inputs:
            raise ValueError("guess: got 'hold' with controls or with some of the inputs; allowed: numbers, or 'hold' for all joints")
        return holding_inputs(mech, start)


@dataclass(frozen=True)
class PlanTask:
    """Arguments of `solve` and of replays: their lag (None: its default, or the task's), and the row of `TASKS`, if any."""

    problem: Problem
    options: SolveOptions
    method: str
    lag: float | None
    task: Task | None = None

    def replay(self, plan: Plan, parts: int, feedback: bool) -> Replay:
        """The plan in steps of h/parts at kappa 1e-8, with feedback or without."""
        if self.task is not None and self.lag is None:
            return self.task.replay(plan, feedback, parts)
        return plan.replay(timestep=float(plan.problem.mech.timestep) / parts, feedback=feedback, lag=self.lag)


def read_config(source: str | Path | Mapping[str, Any], changes: Sequence[str] = ()) -> PlanConfig:
    """A description from a YAML file or a mapping of plain values, with some values replaced ("options.max_iterations=50").

    A robot file is looked for from the working directory, then from the folder of the description.

    Raises:
        ValueError: no file, not YAML, unknown keys, missing ones, values of the wrong type. ImportError: the extra is not installed.
    """
    values = copy.deepcopy(dict(source if isinstance(source, Mapping) else load_yaml(source)))
    for change in changes:
        assign(values, change)
    for key in ("start", "goal"):
        if isinstance(values.get(key), Mapping):  # YAML takes the word "on" for true
            values[key] = {"on" if name is True else str(name): value for name, value in values[key].items()}
    config: PlanConfig = parse(PlanConfig, values, "description of a plan")
    if config.robot is not None and not isinstance(source, Mapping) and not Path(config.robot).exists():
        beside = Path(source).parent / config.robot
        config = replace(config, robot=str(beside)) if beside.is_file() else config
    return config


# -- names and rows ------------------------------------------------------------------------------------------------------------------------


def _check_names(label: str, given: Mapping[str, Any], allowed: Sequence[str]) -> None:
    unknown = [str(name) for name in given if name not in allowed]
    if unknown:
        raise ValueError(f"{label}: there is no {', '.join(unknown)}; allowed: {', '.join(allowed) or 'none'}")


def _numbers(label: str, value: Any) -> Tensor:
    try:
        return torch.as_tensor(value, dtype=torch.float64)
    except (ValueError, TypeError, RuntimeError) as error:
        raise ValueError(f"{label}: got {value!r}; allowed: a number, or a list of numbers") from error


def _rows(mech: Mechanism, coordinates: str) -> dict[str, dict[str, list[int]]]:
    """name -> {"q": rows of the error, "qd": rows}; of joints in minimal coordinates, else of bodies."""
    if coordinates == "tangent":
        place, speed = [0, 1, 2, 6, 7, 8], [3, 4, 5, 9, 10, 11]
        starts = {name: TANGENT_SIZE * number for number, name in enumerate(mech.bodies)}
        return {name: {"q": [first + i for i in place], "qd": [first + i for i in speed]} for name, first in starts.items()}
    places, n = mech.coordinate_places(), mech.num_coordinates
    return {
        name: {"q": list(range(piece.start, piece.stop)), "qd": list(range(n + piece.start, n + piece.stop))}
        for name, piece in places.items()
    }


def _goal(mech: Mechanism, start: Tensor, given: Mapping[str, Any]) -> Tensor:
    """The state of the goal: the coordinates of the start, at rest, where the goal does not say otherwise."""
    if "pose" in given or "on" in given or mech.has_loops:
        return mech.initial_state(**given)
    q = mech.to_minimal(start)[0]
    values: dict[str, Any] = {name: {"q": q[piece]} for name, piece in mech.coordinate_places().items()}
    for name, value in given.items():
        if not isinstance(value, Mapping):
            raise ValueError(f"goal.{name}: got {value!r}; allowed: a mapping with q, qd, or both")
        values[name] = {**values.get(name, {}), **value}
    return mech.initial_state(**values)


def _reached(
    rows: Mapping[str, Mapping[str, list[int]]], reach: str | Sequence[str] | None, goal: Mapping[str, Any], coordinates: str
) -> list[int]:
    """Rows of the error that are zero at the end."""
    if reach is None:
        named = [name for name in goal if name in rows]
        reach = named if named and coordinates == "minimal" else "all"
    if reach == "all":
        reach = list(rows)
    reached: list[int] = []
    for name in [reach] if isinstance(reach, str) else reach:
        whole, _, part = (name, "", "") if name in rows else name.rpartition(".")
        if whole not in rows or part not in ("", "q", "qd"):
            raise ValueError(f"reach: got {name!r}; allowed: 'all', or NAME, NAME.q, NAME.qd with the names {', '.join(rows)}")
        for key, places in rows[whole].items():
            reached += places if part in ("", key) else []
    return sorted(set(reached))


def _weights(rows: Mapping[str, Mapping[str, list[int]]], weights: Mapping[str, Any]) -> Tensor:
    result = torch.zeros(sum(len(places) for parts in rows.values() for places in parts.values()), dtype=torch.float64)
    for key in ("q", "qd"):
        named_weights = weights[key] if isinstance(weights[key], Mapping) else {OTHERS: weights[key]}
        _check_names(f"weights.{key}", named_weights, [*rows, OTHERS])
        for name, parts in rows.items():
            label = name if name in named_weights else OTHERS
            value = _numbers(f"weights.{key}.{label}", named_weights.get(label, 0.0))
            if value.ndim > 1 or (value.ndim == 1 and len(value) not in (1, len(parts[key]))):
                raise ValueError(f"weights.{key}.{label}: got {len(value)} numbers; allowed: a number, or {len(parts[key])} for {name!r}")
            result[parts[key]] = value
    return result


def _by_contact(mech: Mechanism, label: str, given: Any) -> dict[str, float]:
    """A number for each contact that `given` names, or for all of them."""
    values = given if isinstance(given, Mapping) else {OTHERS: given}
    _check_names(label, values, [*mech.contacts, OTHERS])
    chosen = {name: values.get(name, values.get(OTHERS)) for name in mech.contacts}
    numbers = {name: _numbers(f"{label}.{name}", value) for name, value in chosen.items() if value is not None}
    wrong = [name for name, number in numbers.items() if number.ndim]
    if wrong:
        raise ValueError(f"{label}: got {given!r}; allowed: a number, or a number by name of the contact ({', '.join(mech.contacts)})")
    return {name: float(number) for name, number in numbers.items()}


def _input_names(mech: Mechanism, controls: bool) -> list[str]:
    """The joint of each input, or each actuator."""
    if not controls:
        return [name for name, piece in mech.input_layout.items() for _ in range(piece.stop - piece.start)]
    drives = driven_by(mech)
    if drives is not None:
        return list(drives.names)
    if mech.actuators is None:
        raise ValueError("controls: got true for a robot without actuators; allowed: false, which plans forces and torques of joints")
    return list(mech.actuators.names)


def _chosen(names: Sequence[str], inputs: Sequence[str] | None) -> list[int]:
    if inputs is None:
        return list(range(len(names)))
    unknown = [name for name in inputs if name not in names]
    if unknown or not inputs:
        allowed = ", ".join(dict.fromkeys(names)) or "none, nothing acts"
        raise ValueError(f"inputs: got {', '.join(unknown) or 'no name'}; allowed: {allowed}")
    return [i for i, name in enumerate(names) if name in inputs]


def _efforts(mech: Mechanism) -> Tensor:
    """Effort limits of all inputs (nu,)."""
    values: list[float] = []
    for name, piece in mech.input_layout.items():
        limit = getattr(mech.joints[name], "effort_limit", None)
        if limit is None:
            raise ValueError(f"limits: got 'effort', but the joint {name!r} has no effort limit; allowed: numbers")
        values += torch.as_tensor(limit, dtype=torch.float64).reshape(-1).expand(piece.stop - piece.start).tolist()
    return _numbers("limits", values)
