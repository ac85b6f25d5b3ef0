"""The experiments of `torchdojo evaluate learning`: what SHAC, PPO, ARS and AGS reach on an environment, and how soon, over seeds.

An experiment is a row of `STUDIES`. It trains as the files ALGORITHM_ENVIRONMENT.yaml of the folder of descriptions say, each with several
seeds, and evaluates the last policies on 64 episodes and on the variants of `rollouts.variants`. Runs lie in the output folder:

    DIR/runs/shac_ant/seed_0/    as `torchdojo train` leaves it; report.json has the evaluation, and is the last file to be written

A run that is there already is read instead of trained; one that was killed goes on. Bounds are those of SHAC.
"""

from __future__ import annotations

import functools
import json
import math
import platform
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from torchdojo.envs import Env
from torchdojo.evaluation.experiment import Experiment, Line, Measurement, Outcome, Plot, Setting, SkippedError, slug
from torchdojo.evaluation.learning_curves import Curve, Spread, band, crossing, read_curve, value_at
from torchdojo.evaluation.mujoco_reference import ant_step_us
from torchdojo.evaluation.random_search import compare_random_search, format_rows
from torchdojo.learning.rollouts import Evaluation, Policy, evaluate, variants
from torchdojo.learning.runs import ALGORITHMS, CONFIG, METRICS, REPORT, Run, read_config
from torchdojo.runs import write_atomically
from torchdojo.runs.versions import versions

__all__ = ["EXPERIMENTS", "MEASURES", "STUDIES", "Goal", "Result", "Study", "StudyRun", "check", "planned"]

POINTS = 25  # evaluations of a curve
CURVE_EPISODES, EPISODES = 16, 64  # of an evaluation during training, of the last one
NOMINAL = "nominal"
HARDER = ("h/2", "kappa 1e-6", "h/2, kappa 1e-6")
QUICK_SEEDS, QUICK_EPISODES, QUICK_POINTS = 2, 8, 4
#: settings of the quick version, under which nothing learns much
QUICK: dict[str, dict[str, Any]] = {
    "shac": {"samples": 4096, "num_envs": 8, "horizon": 16, "compile": False},
    "ppo": {"samples": 4096, "num_envs": 16, "horizon": 32},
    "ars": {"samples": 4096, "horizon": 64, "directions": 4},
    "ags": {"samples": 4096, "horizon": 64, "directions": 4},
}


class Measure(NamedTuple):
    """A number of an evaluation. label: in tables. spec: of its format. of: (environment after its episodes, evaluation) -> number."""

    label: str
    unit: str
    spec: str
    of: Callable[[Env, Evaluation], float]


def _upright(env: Env, result: Evaluation) -> float:
    """Share of poles that end within 0.2 rad of upright, at any number of turns."""
    angle = env.mech.to_minimal(env.state.z)[0][:, 1]
    return float(((torch.cos(angle) > math.cos(0.2)) & result.survived).double().mean())


MEASURES = {
    "return": Measure("return", "", ",.0f", lambda env, result: result.mean_return),
    "speed": Measure("speed", "m/s", ".2f", lambda env, result: result.speed),
    "survival": Measure("episodes that last", "", ".0%", lambda env, result: result.survival),
    "upright": Measure("starts that end upright", "", ".0%", _upright),
}


class Goal(NamedTuple):
    """A bound on what SHAC reaches after `samples` control steps.

    It holds for the median over seeds, or (`all_seeds`) for the worst. Runs that end by then are judged by 64 episodes of their last
    policy, longer ones by the curve. variant: of `rollouts.variants`, of the last policy.
    """

    measure: str
    at_least: float
    samples: int
    variant: str = NOMINAL
    all_seeds: bool = False


class Study(NamedTuple):
    """Learning on one environment.

    name: of --only, and of the descriptions. thresholds: of the measure that is plotted beside the return. ratio: bound of PPO's samples
    per sample of SHAC's to the last threshold; None: no bound.
    """

    name: str
    title: str
    measure: str
    thresholds: tuple[float, ...]
    goals: tuple[Goal, ...]
    ratio: float | None = None

    @property
    def measures(self) -> tuple[str, ...]:
        """Names of `MEASURES`."""
        return ("return", "speed", "survival") if self.measure == "speed" else ("return", self.measure)


MILLION = 1_000_000
STUDIES = (
    Study("cartpole", "A cartpole swings up", "upright", (1.0,), (Goal("upright", 1.0, 200_000),)),
    Study(
        "ant", "An ant runs, with torques", "speed", (3.0, 6.0),
        (Goal("speed", 3.0, 150_000), Goal("speed", 6.0, 500_000), Goal("return", 7000.0, 500_000)), ratio=1.5,
    ),
    Study("half_cheetah", "A half-cheetah runs, with torques", "speed", (7.5,), (Goal("speed", 7.5, 500_000),), ratio=1.5),
    Study("hopper", "A hopper hops", "speed", (2.5,), (Goal("speed", 2.5, MILLION), Goal("survival", 0.9, MILLION))),
    Study("walker2d", "A planar walker walks", "speed", (2.0,), (Goal("speed", 2.0, MILLION), Goal("survival", 0.95, MILLION))),
    Study(
        "humanoid", "A humanoid runs", "speed", (2.5,),
        (
            *(Goal("speed", 2.5, MILLION, name, all_seeds=True) for name in (NOMINAL, *HARDER)),
            *(Goal("survival", 0.95, MILLION, name, all_seeds=True) for name in (NOMINAL, *HARDER)),
            Goal("survival", 0.9, MILLION, "wider starts", all_seeds=True),
        ),
    ),
)  # fmt: skip


class StudyRun(Run):
    """A run whose evaluations, during training too, have the measures of its study, from nominal starts."""

    measures: tuple[str, ...] = ("return",)

    def measured(self, env: Env, policy: Policy) -> dict[str, float]:
        """One episode of each environment."""
        result = evaluate(env, policy)
        return {name: MEASURES[name].of(env, result) for name in self.measures} | {"flagged": int(result.flagged.sum())}

    def evaluation_row(self, policy: Policy) -> dict[str, float]:
        seed = self.config.seed + 1_000_003
        env = self.config.make_env(self.config.evaluation_envs, autoreset="disabled", seed=seed, noise=1.0, randomize={})
        return {f"eval_{name}": value for name, value in self.measured(env, policy).items()}


class Result(NamedTuple):
    """A run that is trained and evaluated. report: what report.json has."""

    report: Mapping[str, Any]
    curve: Curve

    def last(self, measure: str, variant: str = NOMINAL) -> float:
        """The measure of the last policy; NaN where the environment has no such variant."""
        return float(self.report["variants"].get(variant, {}).get(measure, math.nan))

    def to(self, measure: str, threshold: float, axis: str) -> float:
        """Samples or CPU-seconds (`axis`: "samples", "cpu_seconds") to a threshold; infinite: never."""
        return crossing(getattr(self.curve, axis), self.curve.measures[measure], threshold) if len(self.curve.samples) else math.inf

    def reached(self, goal: Goal) -> float:
        """The number that a bound holds."""
        if goal.variant == NOMINAL and self.report["samples"] > 1.05 * goal.samples:
            return value_at(self.curve.samples, self.curve.measures[goal.measure], goal.samples)
        return self.last(goal.measure, goal.variant)


# -- running -----------------------------------------------------------------------------------------------------------------------------


def check(setting: Setting, names: Sequence[str]) -> None:
    """Look at all descriptions, and at the runs that are there, before the first one is trained.

    Raises:
        ValueError: no folder of descriptions, bad ones, unknown algorithms, a folder that holds another run.
    """
    unknown = [name for name in setting.algorithms if name not in ALGORITHMS]
    if unknown:
        raise ValueError(f"--algorithms: got {', '.join(map(repr, unknown))}; there are: {', '.join(ALGORITHMS)}")
    if not setting.configs.is_dir():
        raise ValueError(
            f"--configs: no folder {str(setting.configs)!r}; descriptions of runs (shac_ant.yaml, ...) lie in configs/ of the repository, "
            "which the package does not have: run the command there, or give that folder"
        )
    for study in STUDIES:
        if study.name in names and not _left_out(study, setting):
            for run in (run for runs in planned(study, setting, setting.output or Path()).values() for run in runs):
                if setting.output is not None and (run.folder / CONFIG).exists():
                    run.begin(resume=True)  # it checks that the folder holds this run


def _left_out(study: Study, setting: Setting) -> bool:
    return setting.quick and study is not STUDIES[0]


def planned(study: Study, setting: Setting, output: Path) -> dict[str, list[StudyRun]]:
    """algorithm -> its runs, where there is a description. Only algorithms whose packages are installed."""
    result = dict[str, list[StudyRun]]()
    for algorithm in setting.algorithms:
        stem = f"{algorithm}_{study.name}"
        if not (path := setting.configs / f"{stem}.yaml").is_file():
            continue
        config = read_config(path)
        points = QUICK_POINTS if setting.quick else POINTS
        if setting.quick:
            config = replace(config, settings={**config.settings, **QUICK[algorithm]})
        every = max(1, config.parsed_settings().samples // points)
        config = replace(config, evaluate_every=every, evaluation_envs=QUICK_EPISODES if setting.quick else CURVE_EPISODES)
        seeds = range(min(setting.seeds, QUICK_SEEDS) if setting.quick else setting.seeds)
        result[algorithm] = [StudyRun(output / "runs" / stem / f"seed_{seed}", replace(config, seed=seed)) for seed in seeds]
        for run in result[algorithm]:
            run.measures = study.measures
    return result


def _finished(run: StudyRun, setting: Setting) -> Result:
    """The run, trained and evaluated now or before."""
    path = run.folder / REPORT
    run.begin(resume=(run.folder / CONFIG).exists())
    try:
        report = json.loads(path.read_text()) if path.exists() else {}
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged ({error}); delete it, and the run is evaluated again") from error
    if "variants" not in report:  # `torchdojo train` writes a report without
        before = ant_step_us(setting.mujoco)
        with torch.enable_grad():
            numbers = run.train(resume=True)
        after = ant_step_us(setting.mujoco)
        policy = run.policy()
        makers = variants(run.config.make_env, QUICK_EPISODES if setting.quick else EPISODES)
        report = {
            **{"env": run.config.env, "algorithm": run.config.algorithm, "seed": run.config.seed, **numbers},
            "variants": {name: run.measured(make(), policy) for name, make in makers.items()},
            "mujoco_ant_step_us": None if before is None or after is None else 0.5 * (before + after),
            "machine": f"{platform.machine()}, torch {torch.__version__}",
            "versions": versions(),
        }
        text = json.dumps(report, indent=2) + "\n"
        write_atomically(path, lambda file: file.write(text.encode()))
    result = Result(report, read_curve(run.folder / METRICS))
    last = ", ".join(f"{MEASURES[name].label} {result.last(name):{MEASURES[name].spec}}" for name in run.measures)
    print(
        f"  {run.config.algorithm}, seed {run.config.seed}: {report['samples']:,} samples, {report['cpu_seconds']:.0f} CPU-s, {last}",
        flush=True,
    )
    return result


def _study(study: Study, setting: Setting) -> Outcome:
    if _left_out(study, setting):
        raise SkippedError(f"--quick has {STUDIES[0].name} alone")
    results, notes = dict[str, list[Result]](), list[str]()
    with _folder(setting) as output:
        plans = planned(study, setting, output)
        for algorithm, runs in plans.items():
            try:
                results[algorithm] = [_finished(run, setting) for run in runs]
            except ImportError as error:
                notes.append(f"{algorithm} is left out: {error}")
    missing = [algorithm for algorithm in setting.algorithms if algorithm not in plans]
    if missing:
        notes.append(f"{setting.configs} has no description of {', '.join(f'{name}_{study.name}' for name in missing)}")
    if not results:
        raise SkippedError("; ".join(notes))
    tasks = {algorithm: _task(runs[0]) for algorithm, runs in plans.items() if algorithm in results}
    if len(set(tasks.values())) > 1:
        notes.append("returns compare within one task alone: " + "; ".join(f"{name}: {task}" for name, task in tasks.items()))
    return Outcome(
        _measurements(study, setting, results),
        _plots(study, results, tasks),
        {f"{name}/{i}/cpu_seconds": result.report["cpu_seconds"] for name, runs in results.items() for i, result in enumerate(runs)},
        notes,
        [_training_table(study, results), _variants_table(study, results)],
    )


@contextmanager
def _folder(setting: Setting) -> Iterator[Path]:
    """The output folder, or one that is removed afterwards."""
    if setting.output is not None:
        yield setting.output
        return
    print("  runs are not kept; give --output DIR to keep them, and to go on after a killed evaluation")
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def _task(run: Run) -> str:
    """Everything but the policy that a return depends on."""
    options = {name: value for name, value in run.config.env_options.items() if name not in ("noise", "pool", "randomize", "seed")}
    return ", ".join(f"{name} {value}" for name, value in sorted(options.items())) or "the environment's defaults"


# -- reporting ---------------------------------------------------------------------------------------------------------------------------


def _measurements(study: Study, setting: Setting, results: Mapping[str, Sequence[Result]]) -> list[Measurement]:
    rows = list[Measurement]()
    for goal in study.goals if "shac" in results and not setting.quick else ():
        measure, spread = MEASURES[goal.measure], Spread.of([result.reached(goal) for result in results["shac"]])
        place = "" if goal.variant == NOMINAL else f", {goal.variant}"
        key = slug(f"shac_{goal.measure}_at_{goal.samples}{place}".replace(", ", "_").replace(" ", "_").replace("/", "_per_"))
        label = f"SHAC, {measure.label} after {goal.samples:,} samples{place}"
        bounds = {"median": goal.all_seeds, "worst": not goal.all_seeds}
        for (word, free), value in zip(bounds.items(), spread, strict=True):
            rows.append(Measurement(f"{key}_{word}", f"{label}, {word}", value, measure.unit, at_least=None if free else goal.at_least))
    if "shac" in results and study.measure == "speed":
        kept = Spread.of([min(_kept(result, name) for name in HARDER) for result in results["shac"]])
        for word, value, bound in (("median", kept.median, None if setting.quick else 0.8), ("worst", kept.worst, None)):
            label = f"SHAC, share of the speed kept at h/2, kappa 1e-6 and both, {word}"
            rows.append(Measurement(f"shac_speed_kept_{word}", label, value, at_least=bound))
    if "shac" in results and "ppo" in results:
        for threshold in study.thresholds:
            bound = study.ratio if threshold == study.thresholds[-1] and not setting.quick else None
            rows.append(_ratio(study, threshold, results["shac"], results["ppo"], bound))
    steps = [result.report["mujoco_ant_step_us"] for runs in results.values() for result in runs]
    if all(step is not None for step in steps):
        spread = Spread.of(steps, large_is_bad=True)
        for word, value in zip(("median", "slowest"), spread, strict=True):
            label = f"this machine: MuJoCo's ant, a step of 0.01 s, {word} of all runs"
            rows.append(Measurement(f"mujoco_ant_step_{word}_us", label, value, "µs"))
    return rows


def _kept(result: Result, variant: str) -> float:
    """Share of the speed; zero where there is none to keep."""
    nominal = result.last("speed")
    return result.last("speed", variant) / nominal if nominal > 0 else 0.0


def _ratio(study: Study, threshold: float, shac: Sequence[Result], ppo: Sequence[Result], bound: float | None) -> Measurement:
    """Samples of PPO per sample of SHAC to a threshold, of medians: at least this if PPO does not get there, zero if SHAC does not."""
    ours, theirs = (Spread.of([result.to(study.measure, threshold, "samples") for result in runs]).median for runs in (shac, ppo))
    label = f"samples of PPO / of SHAC to {MEASURES[study.measure].label} {threshold:g} {MEASURES[study.measure].unit}".strip()
    if math.isinf(theirs):
        theirs, label = Spread.of([result.report["samples"] for result in ppo]).median, f"{label}, at least: PPO does not get there"
    if math.isinf(ours):
        label = f"{label}; SHAC does not get there"
    return Measurement(slug(f"ppo_samples_per_shac_sample_to_{threshold:g}"), label, theirs / ours, at_least=bound)


def _plots(study: Study, results: Mapping[str, Sequence[Result]], tasks: Mapping[str, str]) -> list[Plot]:
    """The measure of the study, and the return of each task, against samples and CPU-seconds: median and quartiles over seeds."""
    groups = [(study.measure, study.measure, list(results))]
    for number, task in enumerate(dict.fromkeys(tasks.values())):
        groups.append((f"return{f'_{number + 1}' if number else ''}", "return", [name for name in results if tasks[name] == task]))
    plots = list[Plot]()
    for stem, measure, algorithms in groups:
        for axis, label in (("samples", "samples (control steps)"), ("cpu_seconds", "CPU-seconds")):
            lines = dict[str, Line]()
            for algorithm in algorithms:
                curves = [result.curve for result in results[algorithm] if measure in result.curve.measures]
                if (line := band([(getattr(curve, axis), curve.measures[measure]) for curve in curves])) is not None:
                    lines[f"{algorithm.upper()}, {len(curves)} seeds"] = line
            unit = f" [{MEASURES[measure].unit}]" if MEASURES[measure].unit else ""
            if lines:
                title = f"{study.name}: median and quartiles over seeds"
                plots.append(Plot(f"{stem}_{axis}", title, label, f"{MEASURES[measure].label}{unit}", lines))
    return plots


def _training_table(study: Study, results: Mapping[str, Sequence[Result]]) -> list[list[str]]:
    """Median and (worst) of each algorithm."""
    measure = MEASURES[study.measure]
    marks = [(threshold, f"{measure.label} {threshold:{measure.spec}} {measure.unit}".strip()) for threshold in study.thresholds]
    heading = [study.name, "seeds", "samples", "CPU-s", "samples per CPU-s"]
    heading += [f"{axis} to {mark}" for _, mark in marks for axis in ("samples", "CPU-s")]
    heading += [f"{MEASURES[name].label} {MEASURES[name].unit}".strip() for name in study.measures] + ["µs of a MuJoCo ant step"]
    rows = [heading]
    for algorithm, runs in results.items():
        reports = [result.report for result in runs]
        row = [algorithm.upper(), str(len(runs)), f"{max(report['samples'] for report in reports):,}"]
        row.append(Spread.of([report["cpu_seconds"] for report in reports], large_is_bad=True).words(",.0f"))
        row.append(Spread.of([report["samples"] / max(report["cpu_seconds"], 1e-9) for report in reports]).words(",.0f"))
        for threshold, _ in marks:
            for axis in ("samples", "cpu_seconds"):
                row.append(Spread.of([result.to(study.measure, threshold, axis) for result in runs], large_is_bad=True).words(",.0f"))
        row += [Spread.of([result.last(name) for result in runs]).words(MEASURES[name].spec) for name in study.measures]
        steps = [math.nan if report["mujoco_ant_step_us"] is None else report["mujoco_ant_step_us"] for report in reports]
        rows.append([*row, Spread.of(steps, large_is_bad=True).words(".1f")])
    return rows


def _variants_table(study: Study, results: Mapping[str, Sequence[Result]]) -> list[list[str]]:
    """The last policies elsewhere: median and (worst)."""
    heading = [f"{study.name}, last policy", "where", *(f"{MEASURES[name].label} {MEASURES[name].unit}".strip() for name in study.measures)]
    rows = [[*heading, "flagged episodes"]]
    for algorithm, runs in results.items():
        for variant in runs[0].report["variants"]:
            cells = [Spread.of([result.last(name, variant) for result in runs]).words(MEASURES[name].spec) for name in study.measures]
            flagged = sum(int(result.last("flagged", variant)) for result in runs)
            rows.append([algorithm.upper(), variant, *cells, str(flagged)])
    return rows


# -- ARS and AGS -------------------------------------------------------------------------------------------------------------------------


def _random_search(setting: Setting) -> Outcome:
    """Evaluations to half of ARS' last reward, with five seeds, whatever --seeds says."""
    if setting.quick or not {"ars", "ags"} <= set(setting.algorithms):
        raise SkippedError("--quick leaves it out" if setting.quick else "--algorithms leaves out ars or ags")
    rows = compare_random_search(tell=lambda line: print(f"  {line}", flush=True))
    by_name, measurements, lines = {(row.environment, row.method): row for row in rows}, list[Measurement](), dict[str, Line]()
    for row in rows:
        if row.method == "ags":
            ars = Spread.of([math.inf if count is None else count for count in by_name[row.environment, "ars"].to_half], large_is_bad=True)
            ags = Spread.of([math.inf if count is None else count for count in row.to_half], large_is_bad=True)
            label = f"{row.environment}: evaluations of ARS / of AGS to half of ARS' last reward"
            key = f"{row.environment}_ars_evaluations_per_ags_evaluation"
            measurements.append(Measurement(f"{key}_median", f"{label}, medians", _quotient(ars.median, ags.median), at_least=3.0))
            measurements.append(Measurement(f"{key}_worst", f"{label}, slowest seed of AGS", _quotient(ars.median, ags.worst)))
        for seed, curve in enumerate(row.curves):
            lines[f"{row.environment}, {row.method.upper()}, seed {seed}"] = Line(*zip(*curve, strict=True))
    plots = list[Plot]()
    for name in dict.fromkeys(row.environment for row in rows):
        mine = {key: line for key, line in lines.items() if key.startswith(name)}
        plots.append(Plot(f"reward_{name}", f"{name}: each seed", "evaluations", "reward", mine))
    cells = [[cell.strip() for cell in line.strip("| ").split("|")] for line in format_rows(rows).splitlines()]
    return Outcome(measurements, plots, tables=[[cells[0], *cells[2:]]])


def _quotient(ars: float, ags: float) -> float:
    return ars / ags if math.isfinite(ags) else 0.0


EXPERIMENTS = (
    *(Experiment(study.name, study.title, functools.partial(_study, study)) for study in STUDIES),
    Experiment("random_search", "ARS and AGS, as in Table VI of the Dojo paper", _random_search),
)
