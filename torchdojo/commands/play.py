"""`torchdojo play`: what a trained policy does: numbers, a gait report, a trajectory file, a page, a video."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchdojo.commands.common import CommandError, add_output, finite, print_table, user_input, whole, write_report
from torchdojo.commands.drawing import BESIDE, Page, add_page, write_drawing
from torchdojo.envs import Env
from torchdojo.learning.gait import gait_report
from torchdojo.learning.motors import places, torques
from torchdojo.learning.rollouts import SEED, Evaluation, evaluate, variants
from torchdojo.learning.runs import load_run
from torchdojo.learning.transfer import transfer as on_mujoco
from torchdojo.viewer.playback import Playback

__all__ = ["add_arguments", "play", "run", "shown"]

FOLDER = "play"  # in the folder of the run, where no other is given
CURVES = 4  # torques that are plotted at most, the largest


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
    add("--report", action="store_true", help="say how the robot moves: speed, power, slip, asymmetry, and whether that is a gait")
    add("--variants", action="store_true", help="evaluate at half the timestep, with harder contact, and from wider starts, too")
    add("--transfer", action="store_true", help="evaluate on MuJoCo's model of the same robot, too")
    add("--video", type=Path, metavar="FILE.mp4|DIR", help="write a video of the episode, or a folder of numbered pictures")
    add_page(parser)
    add_output(parser)


def run(options: argparse.Namespace) -> dict[str, Any]:
    names = ("episodes", "steps", "goal", "seed", "report", "transfer", "video", "output")
    return play(options.folder, page=Page.of(options), tried=options.variants, **{name: getattr(options, name) for name in names})


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
    video: Path | None = None,
    output: Path | None = None,
    page: Page = BESIDE,
) -> dict[str, Any]:
    """Evaluate the policy of a run; returns the report.

    Args:
        folder: of the run. episodes, steps: of each evaluation. goal: of all episodes. seed: of the starts.
        report: with the gait. tried: with `variants`. transfer: with MuJoCo's model.
        output: folder for report.json, trajectory.npz and its page; None: "play" in the folder of the run. video: file or folder.

    Raises:
        CommandError: no run, no checkpoint, a goal that does not fit, an extra that is not installed.
    """
    with user_input():
        this = load_run(folder)
        policy, makers = this.policy(), variants(this.config.make_env, episodes, seed)
        output = folder / FOLDER if output is None else output
        output.mkdir(parents=True, exist_ok=True)
        env = makers["nominal"]()
        command = _goal(env, goal)
        result = evaluate(env, policy, steps, goal=command, record=True)
    numbers: dict[str, Any] = {"run": str(folder), "env": this.config.env, "algorithm": this.config.algorithm, **result.summary()}
    print(f"{folder}: {this.config.env}, {this.config.algorithm}, {episodes} episodes of {steps or env.episode_length} steps")
    print_table([("return", f"{result.mean_return:.6g}"), ("speed, survival", _line(result))])
    if report:
        gait = gait_report(env, result)
        numbers["gait"] = gait.as_dict()
        print("gait")
        print_table(gait.rows())
    if tried:
        others = {name: evaluate(make(), policy, steps, goal=command) for name, make in makers.items() if name != "nominal"}
        numbers["variants"] = {name: other.summary() for name, other in others.items()}
        print("elsewhere")
        print_table([(name, _line(other)) for name, other in others.items()])
    if transfer:
        numbers["transfer"] = _transferred(env, policy, steps, report)
    numbers = finite(numbers)
    playback = shown(env, result)
    write_drawing([playback], output, page)
    if video is not None:
        from torchdojo.viewer.video import write_video

        with user_input():
            try:
                print(f"video: {write_video(playback, video)}")
            except RuntimeError as error:
                raise CommandError(str(error)) from error
    write_report(numbers, output)
    return numbers


def _transferred(env: Env, policy: Any, steps: int | None, report: bool) -> dict[str, Any]:
    """The policy on MuJoCo's model."""
    with user_input():
        result = on_mujoco(env, policy, steps, record=report)
    numbers: dict[str, Any] = result.summary()
    print("on MuJoCo's model")
    print_table([("return", f"{result.mean_return:.6g}"), ("speed, survival", _line(result))])
    if report:
        numbers["gait"] = gait_report(env, result).as_dict()
    return numbers


def _goal(env: Env, goal: Sequence[float] | None) -> Tensor | None:
    """The goal as a tensor, where it has the size of the environment's."""
    size = env.state.goal.shape[-1]
    if goal is not None and len(goal) != size:
        raise CommandError(f"--goal: got {len(goal)} numbers; allowed for this environment: {size or 'none, it has no goal'}")
    return None if goal is None else torch.tensor(goal, dtype=torch.float64)


def _line(result: Evaluation) -> str:
    flagged = f", {int(result.flagged.sum())} flagged" if bool(result.flagged.any()) else ""
    return f"{result.speed:.2f} m/s along x, {result.survival:.0%} of episodes last to the end{flagged}"


def shown(env: Env, result: Evaluation) -> Playback:
    """The recorded episode of the median return, with contact forces, speed, and the largest torques as curves."""
    record, mech = result.recording, env.mech
    assert record is not None and mech.actuators is not None
    number = int(result.returns.argsort()[len(result.returns) // 2])
    steps = int(result.lengths[number])
    z, actions, impulses = record.z[: steps + 1, number], record.actions[:steps, number], record.impulses[:steps, number]
    q, qd = mech.to_minimal(z[1:])
    place = places(mech)
    torque = torques(mech, actions, q[:, place], qd[:, place])
    curves = {"speed along x [m/s]": (z[1:, 0] - z[:-1, 0]) / record.period}
    for i in torque.square().mean(0).argsort(descending=True)[:CURVES].tolist():
        curves[f"torque of {mech.actuators.names[i]} [N m]"] = torque[:, i]
    gap = torch.full((1,), torch.nan, dtype=torch.float64)
    after_start = {name: torch.cat((gap, values)) for name, values in curves.items()}
    label = f"{env.name or type(env).__name__}, {float(result.speeds[number]):.2f} m/s"
    playback = Playback.of(mech, z, label=label, repeat=env.repeat, curves=after_start)
    if not len(mech.contacts):
        return playback
    forces = mech.contact_impulses(z[1:], impulses) / record.period
    return replace(playback, contact_forces=torch.cat((torch.zeros_like(forces[:1]), forces)).numpy())
