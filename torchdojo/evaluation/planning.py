"""The experiments of `torchdojo evaluate planning`: tasks with published results, from starts with noise, replayed in finer steps.

A task is a row of `STUDIES`. Each one is solved from several first guesses that differ by noise. A plan is then replayed in steps of h/10
at kappa 1e-8, with its gains and without. Published figures are those of Dojo's table III (Howell et al. 2025).
"""

from __future__ import annotations

import functools
import itertools
import statistics
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchdojo.elements.bodies import Body
from torchdojo.elements.contacts import NonlinearContact
from torchdojo.elements.joints import Floating
from torchdojo.evaluation import control_planning, inverse_planning
from torchdojo.evaluation.experiment import Experiment, Line, Measurement, Outcome, Plot, Setting, SkippedError, slug
from torchdojo.evaluation.mujoco_planning import MujocoDynamics
from torchdojo.evaluation.mujoco_reference import actuated_box_scene
from torchdojo.geometry.shapes import Box
from torchdojo.mechanism import Mechanism
from torchdojo.planning import BOTH_ANNEALED, Input, Plan, Problem, Record, Replay, State, solve
from torchdojo.planning.tasks import TASKS, Task
from torchdojo.solver.options import SolverOptions
from torchdojo.state.layout import STATE_SIZE

__all__ = ["EXPERIMENTS", "STUDIES", "Study", "end_distance", "iterates", "start_by_servos"]

STARTS, QUICK_STARTS = 10, 2
KAPPA = 1e-8  # of hard steps
DRAWN = 10  # starts whose curves are drawn
#: gains of the servos [N·m/rad, N·m·s/rad] that make a first guess of the gait, and kappa of the steps that they act in
SERVO, SERVO_KAPPA = (150.0, 2.0), 1e-4


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


def start_by_servos(problem: Problem) -> None:
    """Begin with the torques of servos that follow `guess_states`, in the place of torques that hold the first pose; noise stays."""
    mech, reference = problem.mech, problem.guess_states
    assert reference is not None
    gain = torch.zeros(problem.steps, mech.num_inputs, 2 * mech.num_coordinates, dtype=torch.float64)
    places = mech.coordinate_places()
    for name, inputs in mech.input_layout.items():
        rows, columns = range(inputs.start, inputs.stop), range(places[name].start, places[name].stop)
        gain[:, rows, columns], gain[:, rows, [mech.num_coordinates + i for i in columns]] = -SERVO[0], -SERVO[1]
    before, mech.options = mech.options, SolverOptions(kappa=SERVO_KAPPA)
    try:
        q, qd = mech.to_minimal(reference)
        problem.guess = mech.rollout_feedback(problem.start, (q, qd), problem.guess, gain=gain).u
    finally:
        mech.options = before


# -- tasks ---------------------------------------------------------------------------------------------------------------------------------


class Study(NamedTuple):
    """A task and its bounds, which hold for all solved starts.

    title: what moves. task: of `TASKS`. iterations, cost, violation: largest ones, or None. solved: least share of the starts.
    closed_cm, open_cm: largest median distance from the plan at the end of replays with gains, and of those without.
    begin: changes the first guesses.
    method, options, task_options: of `solve`, and of the task's function, that differ from the task's own.
    """

    title: str
    task: str
    iterations: int | None = None
    cost: float | None = None
    violation: float = 1e-4
    solved: float | None = 0.9
    closed_cm: float | None = None
    open_cm: float | None = None
    begin: Callable[[Problem], None] | None = None
    method: str = "single"
    options: Mapping[str, Any] = MappingProxyType({})
    task_options: Mapping[str, Any] = MappingProxyType({})

    def as_task(self) -> Task:
        """The task with these options. Published figures are those of the task's own."""
        task = TASKS[self.task]
        make, published = functools.partial(task.make, **self.task_options), None if self.task_options else task.published
        return task._replace(make=make, options={**task.options, **self.options}, published=published)


STUDIES = {
    "box-right": Study("A box is pushed 1 m along the ground in 1 s", "box_right", 14, open_cm=0.2),
    "box-up": Study("A box is lifted by 1 m in 1 s", "box_up", 20, 14.7, open_cm=0.2),
    "hopper": Study("A hopper hops 0.5 m forward and sideways in 1 s", "hopper", 30, 9.6, 2e-4, closed_cm=1.0),
    "quadruped": Study("A Unitree A1 trots two cycles in 2 s", "quadruped", 20, 0.0205, closed_cm=1.0),
    "quadruped-servos": Study("The same, from the torques of joint servos", "quadruped", 20, 0.016, closed_cm=1.0, begin=start_by_servos),
    "quadruped-light": Study(
        "The same, with a damper of 0.5 instead of 5 N·m·s/rad, by multiple shooting",
        "quadruped",
        solved=None,
        method="multiple",
        options={"schedule": BOTH_ANNEALED, "max_inner": 20},
        task_options={"damper": 0.5},
    ),
    "cartpole": Study("A pole swings up in 3 s by a force of at most 15 N", "cartpole", solved=None, closed_cm=1.0),
    "quadrotor": Study("A quadrotor that hangs upside down turns over in 2 s", "quadrotor", solved=None, closed_cm=1.0),
}


def _study(study: Study, setting: Setting) -> Outcome:
    task, starts = study.as_task(), QUICK_STARTS if setting.quick else STARTS
    problem = task.perturbed(starts)
    if study.begin is not None:
        study.begin(problem)
    begin = time.process_time()
    plan = solve(problem, method=study.method, **task.options)
    seconds = time.process_time() - begin
    replays = {name: _replay(plan, task, feedback) for name, feedback in (("with gains", True), ("open loop", False))}
    distances = {name: 100 * end_distance(plan, replay) for name, replay in replays.items()}
    good = plan.solved
    published = dict(zip(("iterations", "cost", "violation"), task.published or ("", "", ""), strict=True))
    rows = [Measurement("solved_share", f"solved, of {starts} starts", float(good.double().mean()), at_least=study.solved)]
    # Iterations of single starts change with rounding, so the worst of two is not judged.
    numbers: dict[str, tuple[Tensor, float | None]] = {
        "iterations": (plan.iterations, None if setting.quick else study.iterations),
        "cost": (plan.cost, study.cost),
        "violation": (plan.violation, study.violation),
    }
    for name, (values, bound) in numbers.items():
        middle, worst = _spread(values[good])
        theirs = f"{published[name]:g}" if task.published else ""
        rows.append(Measurement(f"{name}_median", f"{name}, median of solved starts", middle, published=theirs))
        rows.append(Measurement(f"{name}_worst", f"{name}, worst", worst, at_most=bound))
    for name, bound in (("with gains", study.closed_cm), ("open loop", study.open_cm)):
        middle, worst = _spread(distances[name][good])
        key, label = slug(f"replay_{name.replace(' ', '_')}"), f"replay {name}, distance from the plan at its end"
        rows.append(Measurement(f"{key}_median_cm", f"{label}, median", middle, "cm", at_most=bound))
        rows.append(Measurement(f"{key}_worst_cm", f"{label}, worst", worst, "cm"))
    rows.append(Measurement("cpu_s_per_start", "processor time per start", seconds / starts, "s"))
    return Outcome(
        rows,
        _plots(study, plan, replays["with gains"]),
        {name: value.numpy() for name, value in (("iterations", plan.iterations), ("status", plan.status), ("z", plan.z), ("u", plan.u))},
        tables=[_table(study, plan, rows, distances)],
    )


def _replay(plan: Plan, task: Task, feedback: bool) -> Replay:
    return task.replay(plan, feedback)


def _spread(values: Tensor) -> tuple[float, float]:
    """Median and largest; NaN without values."""
    return (statistics.median(values.tolist()), float(values.max())) if len(values) else (float("nan"), float("nan"))


def _plots(study: Study, plan: Plan, replay: Replay) -> list[Plot]:
    """Costs and violations by iteration of each start, and the path of the first body of the first one."""
    histories = [iterates(plan, p) for p in range(min(len(plan.problem), DRAWN))]

    def curves(name: str) -> dict[str, Line]:
        return {
            f"start {i}": Line(list(range(1, len(records) + 1)), [float(getattr(record, name)) for record in records])
            for i, records in enumerate(histories)
        }

    h, body = float(plan.problem.mech.timestep), next(iter(plan.problem.mech.bodies))
    seconds = h * torch.arange(plan.problem.steps + 1)
    path = {
        f"{axis}, {label}": Line(seconds, z[0, :, i])
        for label, z in (("plan", plan.z), ("replay", replay.nodes))
        for i, axis in enumerate("xyz")
    }
    return [
        Plot("cost", study.title, "iteration", "cost", curves("cost"), "y"),
        Plot("violation", study.title, "iteration", "largest violation", curves("violation"), "y"),
        Plot("path", f"{study.title}: {body}", "time [s]", "position [m]", path),
    ]


def _table(study: Study, plan: Plan, rows: list[Measurement], distances: Mapping[str, Tensor]) -> list[list[str]]:
    """The row of a README: medians, the worst in brackets, and published figures."""
    measurements = {m.key: m for m in rows}

    def cell(key: str, form: str, unit: str = "") -> str:
        middle, worst = measurements[f"{key}_median{unit}"], measurements[f"{key}_worst{unit}"]
        return f"{format(middle.value, form)} ({format(worst.value, form)})" + (f"; {middle.published}" if middle.published else "")

    heading = ["task", "solved", "iterations; Dojo", "cost; Dojo", "violation; Dojo", "replay [cm]", "open loop [cm]"]
    cells = [cell("iterations", ".0f"), cell("cost", ".4g"), cell("violation", ".1e")]
    cells += [cell(f"replay_{name}", ".2f", "_cm") for name in ("with_gains", "open_loop")]
    return [heading, [study.title, f"{int(plan.solved.sum())} of {len(plan.solved)}", *cells]]


# -- speed ---------------------------------------------------------------------------------------------------------------------------------


def _speed(setting: Setting) -> Outcome:
    """Processor time of an iteration, by one thread: the solve of one problem and of 64, over its iterations."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        rows, notes = list[Measurement](), list[str]()
        for count, bound, repeats in ((1, 20.0, 2 if setting.quick else 9), (64, 700.0, 0 if setting.quick else 3)):
            times, parts = list[float](), dict[str, float]()
            for _ in range(repeats):
                problem = TASKS["quadruped"].make(None) if count == 1 else TASKS["quadruped"].perturbed(count)
                begin = time.process_time()
                plan = solve(problem, schedule=BOTH_ANNEALED, max_inner=6, max_iterations=10)
                times.append(1e3 * (time.process_time() - begin) / len(plan.log))
                parts = {name: 1e3 * value / len(plan.log) for name, value in plan.timings.items()}
            if times:
                what = "one gait" if count == 1 else f"{count} gaits at once"
                label = f"an iteration of {what}, 41 nodes, 15 candidates, median of {repeats} solves"
                # A bound in time depends on the machine, so a quick run on a busy one does not judge it.
                rows.append(
                    Measurement(f"iteration_of_{count}_ms", label, statistics.median(times), "ms", at_most=None if setting.quick else bound)
                )
                notes.append(f"{what}, of which [ms]: " + ", ".join(f"{name} {value:.1f}" for name, value in parts.items()))
    finally:
        torch.set_num_threads(threads)
    return Outcome(rows, notes=notes)


# -- MuJoCo --------------------------------------------------------------------------------------------------------------------------------

EDGE, FRICTION, LIFT, STEP = 0.5, 0.5, 1.0, 0.1
PLAIN = {"regularizations": (1.0,), "step_sizes": (1.0, 0.5, 0.25, 0.125, 0.06, 0.03)}  # a line search alone
#: MuJoCo in Dojo's table III, whose planner is given h = 0.01 s only
PUBLISHED_MUJOCO = {0.1: "", 0.01: "MuJoCo fails, violation 1.0"}


def lifted_box(timestep: float, noise: Tensor) -> Problem:
    """The box of the task box-up at another timestep: costs are integrals over time, so that they compare. noise: forces (P, T, 3) [N]."""
    corners = {
        f"corner{i}": NonlinearContact("box", point=[0.5 * EDGE * s for s in signs], friction=FRICTION)
        for i, signs in enumerate(itertools.product((1, -1), repeat=3))
    }
    joints = {"base": Floating(None, "box", actuated=True)}
    mech = Mechanism({"box": Body(1.0, shape=Box((EDGE,) * 3))}, joints, corners, timestep=timestep)
    low, high = (mech.initial_state(base={"q": (0.0, 0.0, height, 0.0, 0.0, 0.0)}) for height in (0.5 * EDGE, 0.5 * EDGE + LIFT))
    share, weight = timestep / STEP, torch.tensor([1.0] * 6 + [0.25] * 3 + [1.0] * 3, dtype=torch.float64)
    return Problem(
        mech,
        low.expand(len(noise), -1),
        noise.shape[1],
        costs=[State(high, share * weight, at=slice(0, -1)), State(high, weight, at=-1), Input(share * 1e-2 * STEP**2)],
        equalities=[State(high, at=-1)],
        input_map=torch.eye(6, dtype=torch.float64)[:, :3],
        guess=noise,
        coordinates="tangent",
    )


def _mujoco(setting: Setting) -> Outcome:
    """The same planner on both engines."""
    mujoco = setting.mujoco
    if mujoco is None:
        raise SkippedError('MuJoCo is not installed: pip install "torchdojo[bench]"')
    rows, plots = list[Measurement](), list[Plot]()
    planners: dict[str, dict[str, Any]] = {"grid of regularizations": {}, **({} if setting.quick else {"line search": PLAIN})}
    table = [["box up", "planner", "engine", "solved", "iterations", "cost", "violation"]]
    for h in (0.1, 0.01):
        starts = 1 if setting.quick else 2 if h < STEP else STARTS
        generator = torch.Generator().manual_seed(0)
        noise = torch.randn(starts, round(1 / h), 3, generator=generator, dtype=torch.float64) * TASKS["box_up"].noise / STEP
        for name, changes in planners.items():
            plans: dict[str, Plan] = {}
            for engine in ("torchdojo", "MuJoCo"):
                problem, options = lifted_box(h, noise), {**TASKS["box_up"].options, **changes}
                if engine == "MuJoCo":
                    scene = actuated_box_scene(half=(0.5 * EDGE,) * 3, mass=1.0, friction=FRICTION, timestep=h)
                    problem.dynamics = MujocoDynamics(mujoco, scene, problem)
                    options["schedule"] = ((KAPPA, None),)
                plans[engine] = plan = solve(problem, **options)
                cells = [f"{format(a, form)} ({format(b, form)})" for (a, b), form in _columns(plan)]
                table.append([f"h = {h:g} s", name, engine, f"{int(plan.solved.sum())} of {starts}", *cells])
            ours, theirs = plans["torchdojo"], plans["MuJoCo"]
            key, label = slug(f"h_{h:g}_{'grid' if not changes else 'line'}"), f"h = {h:g} s, {name}"
            share = [float(plan.solved.double().mean()) for plan in (ours, theirs)]
            least = 1.0 if not changes else None
            rows.append(Measurement(f"{key}_solved_share", f"{label}: solved", share[0], at_least=least, mujoco=share[1]))
            costs = [_spread(plan.cost[plan.solved])[0] for plan in (ours, theirs)]
            most = 14.7 if not changes else None
            rows.append(Measurement(f"{key}_cost_median", "cost", costs[0], at_most=most, published=PUBLISHED_MUJOCO[h], mujoco=costs[1]))
            curves = {engine: Line(*_costs(plan)) for engine, plan in plans.items()}
            plots.append(Plot(f"{key}_cost", f"A box is lifted, {label}", "iteration", "cost", curves, "y"))
    note = "MuJoCo: mjd_transitionFD with centered differences of 1e-6, its default contact, which it softens to a time constant of 2 h"
    return Outcome(rows, plots, notes=[note], tables=[table])


def _columns(plan: Plan) -> list[tuple[tuple[float, float], str]]:
    return [(_spread(plan.iterations), ".0f"), (_spread(plan.cost), ".2f"), (_spread(plan.violation), ".0e")]


def _costs(plan: Plan) -> tuple[list[int], list[float]]:
    """Costs by iteration of the first problem."""
    costs = [float(record.cost) for record in iterates(plan)]
    return list(range(1, len(costs) + 1)), costs


EXPERIMENTS = (
    *(Experiment(name, study.title, functools.partial(_study, study)) for name, study in STUDIES.items()),
    Experiment("iteration", "Processor time of an iteration of the gait, one thread", _speed),
    *control_planning.EXPERIMENTS,
    *inverse_planning.EXPERIMENTS,
    Experiment("box-up-mujoco", "The same planner on MuJoCo's derivatives", _mujoco),
)
