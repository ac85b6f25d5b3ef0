"""`torchdojo play`: what a trained policy does: numbers, a gait report, MuJoCo beside it, a trajectory file, a page, a video."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchdojo.commands.common import (
    CommandError,
    add_output,
    finite,
    not_negative,
    positive,
    print_columns,
    print_table,
    user_input,
    whole,
    write_report,
)
from torchdojo.commands.drawing import BESIDE, Page, add_page, write_drawing
from torchdojo.envs import Env
from torchdojo.learning.conditions import Conditions
from torchdojo.learning.following import command_of, speeds
from torchdojo.learning.gait import BY_FOOT, GAIT, GaitReport, gait_report
from torchdojo.learning.motors import places, torques
from torchdojo.learning.rollouts import SEED, Evaluation, Recording, evaluate, variants
from torchdojo.learning.runs import load_run
from torchdojo.learning.transfer import transfer as in_mujoco
from torchdojo.viewer.playback import Playback

__all__ = ["add_arguments", "play", "run", "shown"]

FOLDER = "play"  # in the folder of the run, where no other is given
CURVES = 4  # torques that are plotted at most, the largest
SIMULATORS = ("torchdojo", "MuJoCo")
#: rows of the gait report in the table of two simulators
COMPARED = (
    "survival", "speed", "forward_error", "sideways_error", "turning_error", "cost_of_transport", "joint_speed_99", "joint_speed_max",
    "torque_beyond", "slip", "stride_frequency", "regularity", "asymmetry", "duty_factor",
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Evaluate the policy of a run: one deterministic episode of each environment. The episode of the median return is written as a "
        f"trajectory file and a page, into the folder {FOLDER}/ of the run or into --output."
    )
    add = parser.add_argument
    add("folder", type=Path, metavar="RUN", help="folder of `torchdojo train`")
    add("--episodes", type=whole, default=64, metavar="N", help="of each evaluation (default: %(default)s)")
    add("--steps", type=whole, metavar="N", help="control steps of an episode (default: those of the environment)")
    add("--goal", type=float, nargs="+", metavar="X", help="goal of all episodes, instead of drawn ones: a command, a place")
    add("--seed", type=int, default=SEED, metavar="N", help="of the starts (default: %(default)s)")
    add("--report", action="store_true", help="say how the robot moves: speed, errors, power, slip, posture, and whether that is a gait")
    add("--variants", action="store_true", help="evaluate at half the timestep, with harder contact, and from wider starts, too")
    add("--transfer", action="store_true", help="evaluate in MuJoCo, too: one table, and one page with both robots side by side")
    add(
        "--file",
        type=Path,
        metavar="ROBOT.xml",
        help="MJCF of the robot for --transfer (default: Gymnasium's for its environments, else the mechanism written to MJCF)",
    )
    add(
        "--video",
        type=Path,
        metavar="FILE.mp4|.webp|DIR",
        help="write a video of the episode, a moving picture, or a folder of pictures",
    )
    conditions = parser.add_argument_group("conditions", "of all evaluations; two numbers are a range, from which each robot gets its own")
    several: dict[str, Any] = {"nargs": "+", "metavar": "X"}
    conditions.add_argument("--friction", type=not_negative, help="coefficient of the contacts", **several)
    conditions.add_argument("--mass", type=positive, help="factor of masses and inertias", **several)
    conditions.add_argument("--armature", type=not_negative, help="of the driven joints [kg m^2, kg]", **several)
    conditions.add_argument("--joint-friction", type=not_negative, help="Coulomb friction of the driven joints [N m, N]", **several)
    conditions.add_argument("--kicks", type=not_negative, metavar="SPEED", help="push the robot every 3 s [m/s]")
    conditions.add_argument("--delay", type=not_negative, default=0.0, metavar="SECONDS", help="of what the policy sees")
    add_page(parser)
    add_output(parser)


def run(options: argparse.Namespace) -> dict[str, Any]:
    names = ("episodes", "steps", "goal", "seed", "report", "transfer", "file", "video", "output")
    arguments = {name: getattr(options, name) for name in names}
    return play(options.folder, page=Page.of(options), tried=options.variants, conditions=_conditions(options), **arguments)


def _conditions(options: argparse.Namespace) -> Conditions:
    ranges: dict[str, Any] = {}
    for name in ("friction", "mass", "armature", "joint_friction"):
        value = getattr(options, name)
        if value is not None and len(value) > 2:
            raise CommandError(f"--{name.replace('_', '-')}: got {len(value)} numbers; allowed: one, or two for a range, LOW HIGH")
        ranges[name] = None if value is None else value[0] if len(value) == 1 else tuple(value)
    with user_input():
        return Conditions(**ranges, kicks=options.kicks, delay=options.delay, seed=options.seed)


def play(
    folder: Path,
    *,
    episodes: int = 64,
    steps: int | None = None,
    goal: Sequence[float] | None = None,
    seed: int = SEED,
    report: bool = False,
    tried: bool = False,
    transfer: bool = False,
    file: Path | None = None,
    conditions: Conditions | None = None,
    video: Path | None = None,
    output: Path | None = None,
    page: Page = BESIDE,
) -> dict[str, Any]:
    """Evaluate the policy of a run; returns the report.

    Args:
        folder: of the run. episodes, steps: of each evaluation. goal: of all episodes. seed: of the starts.
        report: with the gait. tried: with `variants`. transfer: in MuJoCo, too, with the robot of `file`. conditions: of all evaluations.
        output: folder for report.json, trajectory.npz and its page; None: "play" in the folder of the run. video: file or folder.

    Raises:
        CommandError: no run, no checkpoint, a goal, conditions or a file that do not fit, an extra that is not installed.
    """
    if file is not None and not transfer:
        raise CommandError(f"--file: got {file} without --transfer; allowed: with --transfer, which simulates this robot")
    with user_input():
        trained = load_run(folder)
        conditions = Conditions(seed=seed) if conditions is None else conditions
        policy, config = trained.policy(), trained.config
        more = conditions.options(config.make_env(1, pool=1), config.env_options) if conditions else {}
        makers = variants(config.make_env, episodes, seed, **more)
        output = folder / FOLDER if output is None else output
        output.mkdir(parents=True, exist_ok=True)
        env = conditions.apply(makers["nominal"]())
        command = _goal(env, goal)
        result = evaluate(env, policy, steps, goal=command, record=True)
    numbers: dict[str, Any] = {"run": str(folder), "env": config.env, "algorithm": config.algorithm, **result.summary()}
    print(f"{folder}: {config.env}, {config.algorithm}, {episodes} episodes of {steps or env.episode_length} steps")
    print_table([("return", f"{result.mean_return:.6g}"), ("speed, survival", _line(result))])
    if conditions:
        numbers["conditions"] = conditions.as_dict()
        print_table([("conditions", str(conditions))])
    gait = gait_report(env, result) if report or transfer else None
    if gait is not None:
        numbers["gait"] = gait.as_dict()
    if report and gait is not None:
        print("gait")
        print_table(gait.rows())
    if tried:
        others = {
            name: evaluate(conditions.apply(make()), policy, steps, goal=command) for name, make in makers.items() if name != "nominal"
        }
        numbers["variants"] = {name: other.summary() for name, other in others.items()}
        print("elsewhere")
        print_table([(name, _line(other)) for name, other in others.items()])
    number = _median(result)
    playbacks = [shown(env, result, number)]
    if transfer and gait is not None:
        with user_input():
            twin = makers["nominal"]()  # which draws the same random numbers
            other = in_mujoco(twin, policy, steps, file=file, conditions=conditions, goal=command, record=True)
            theirs = gait_report(twin, other)
        numbers["transfer"] = {**other.summary(), "gait": theirs.as_dict()}
        _print_beside(gait, theirs)
        playbacks.append(shown(twin, other, number, playbacks[0]))
        playbacks = [replace(one, label=f"{name}: {one.label}") for name, one in zip(SIMULATORS, playbacks, strict=True)]
    numbers = finite(numbers)
    write_drawing(playbacks, output, page, side_by_side=transfer, arrays=_goals(result, number))
    if video is not None:
        _write_video(playbacks[0], video)
    write_report(numbers, output)
    return numbers


def _write_video(playback: Playback, path: Path) -> None:
    from torchdojo.viewer.video import write_video

    with user_input():
        try:
            print(f"video: {write_video(playback, path)}")
        except RuntimeError as error:
            raise CommandError(str(error)) from error


def _goal(env: Env, goal: Sequence[float] | None) -> Tensor | None:
    """The goal as a tensor, where it has the size of the environment's."""
    size = env.state.goal.shape[-1]
    if goal is not None and len(goal) != size:
        raise CommandError(f"--goal: got {len(goal)} numbers; allowed for this environment: {size or 'none, it has no goal'}")
    return None if goal is None else torch.tensor(goal, dtype=torch.float64)


def _goals(result: Evaluation, number: int) -> dict[str, Any]:
    """Goals of the control steps of an episode, for the trajectory file."""
    goals = None if result.recording is None else result.recording.goals
    return {} if goals is None or not goals.shape[-1] else {"goals": goals[: int(result.lengths[number]), number].numpy()}


def _line(result: Evaluation) -> str:
    flagged = f", {int(result.flagged.sum())} flagged" if bool(result.flagged.any()) else ""
    return f"{result.forward_speed:.2f} m/s along the heading, {result.survival:.0%} of episodes last to the end{flagged}"


def _print_beside(ours: GaitReport, theirs: GaitReport) -> None:
    """One table of two gait reports, and both verdicts."""
    print("in two simulators")
    labels = {name: label for name, label, _ in GAIT}
    columns = [dict(report.rows()) for report in (ours, theirs)]
    chosen = [*(labels[name] for name in COMPARED), *(label for name, label, _, _ in BY_FOOT if name != "feet")]
    rows = [(label, *(_span(column[label]) for column in columns)) for label in chosen]
    print_columns([("", *SIMULATORS), *(row for row in rows if set(row[1:]) != {"-"})])
    print_table([(f"{name}'s verdict", report.verdict) for name, report in zip(SIMULATORS, (ours, theirs), strict=True)])


def _span(text: str) -> str:
    """Smallest and largest of numbers by foot, which would make a table too wide; other text as it is."""
    if ", " not in text:
        return text
    values = [float(part.rsplit(" ", 1)[1]) for part in text.split(", ")]
    return f"{min(values):g} to {max(values):g}"


def _median(result: Evaluation) -> int:
    """The episode of the median return."""
    return int(result.returns.argsort()[len(result.returns) // 2])


def _efforts(env: Env, record: Recording, number: int, q: Tensor, qd: Tensor) -> tuple[dict[str, Tensor], list[str]]:
    """Curves of the torques of motors, or of the activations of drives, by name, and the names of the largest."""
    mech, actions = env.mech, record.actions[: len(q), number]
    if env.driving is None:
        place = places(mech)
        torque = torques(mech, actions, q[:, place], qd[:, place])
        named = {f"torque of {name} [N m]": torque[:, i] for i, name in enumerate(env.action_names)}
    else:
        assert record.activations is not None
        torque = record.activations[: len(actions), number]
        named = {f"activation of {name}": torque[:, i] for i, name in enumerate(env.driving.drives.activated)}
    return named, [list(named)[i] for i in torque.square().mean(0).argsort(descending=True)[:CURVES].tolist()]


def shown(env: Env, result: Evaluation, number: int, curves_of: Playback | None = None) -> Playback:
    """A recorded episode, with contact forces, speed, its command, and the largest torques as curves, or those that another one shows."""
    record, mech = result.recording, env.mech
    assert record is not None
    steps = int(result.lengths[number])
    z, impulses = record.z[: steps + 1], record.impulses[:steps]
    q, qd = mech.to_minimal(z[1:, number])
    forward = speeds(mech, record)[:steps, number, 0]
    curves, command = {"speed along the heading [m/s]": forward}, command_of(env, record.goals)
    if command is not None:
        curves["commanded speed [m/s]"] = command[:steps, number, 0]
    named, largest = _efforts(env, record, number, q, qd)
    curves |= {name: named[name] for name in (largest if curves_of is None else curves_of.curves) if name in named}
    gap = torch.full((1,), torch.nan, dtype=torch.float64)
    after_start = {name: torch.cat((gap, values)) for name, values in curves.items()}
    label = f"{env.name or type(env).__name__}, {float(forward.mean()):.2f} m/s"
    # all episodes, because robots may have parameters of their own
    playback = Playback.of(mech, z.movedim(0, 1), label=label, environment=number, repeat=env.repeat, curves=after_start)
    if not len(mech.contacts):
        return playback
    forces = mech.contact_impulses(z[1:], impulses)[:, number] / record.period
    return replace(playback, contact_forces=torch.cat((torch.zeros_like(forces[:1]), forces)).numpy())
