"""`torchdojo plan`: a motion through contact, by a description (configs/plan_*.yaml)."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from torchdojo.commands.common import add_output, finite, print_table, user_input, write_report
from torchdojo.commands.drawing import BESIDE, TRAJECTORY, Page, add_page, write_drawing
from torchdojo.evaluation.planning import end_distance, iterates
from torchdojo.planning import Plan, PlanStatus, Replay, solve
from torchdojo.planning.config import PlanConfig, read_config
from torchdojo.viewer.playback import Playback

__all__ = ["add_arguments", "plan", "run"]

REPLAY_KAPPA = 1e-8
SHOWN_ITERATIONS = 40


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Plan a motion as a YAML file describes it: a task, or a robot with start and goal. The plan is replayed in finer steps with "
        "harder contact. Exit status 1 where the plan is not solved."
    )
    parser.add_argument("config", type=Path, metavar="CONFIG", help="description (.yaml), such as configs/plan_hopper.yaml")
    parser.add_argument(
        "--set",
        dest="changes",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="replace a value of the description, e.g. steps=30 or options.max_iterations=50; repeatable",
    )
    add_page(parser)
    add_output(parser)


def run(options: argparse.Namespace) -> dict[str, Any]:
    return plan(options.config, output=options.output, changes=options.changes, page=Page.of(options))


def plan(config: Path, *, output: Path | None = None, changes: Sequence[str] = (), page: Page = BESIDE) -> dict[str, Any]:
    """Plan a description; returns the report, whose "passed" is False where the plan is not solved.

    Args:
        config: a YAML file with the keys of `PlanConfig`. changes: KEY=VALUE, of the description.
        output: folder for report.json and trajectory.npz, which has states, inputs, gains and the replay. page: that of trajectory.npz.

    Raises:
        CommandError: bad input, an extra that is not installed.
    """
    with user_input():
        description = read_config(config, changes)
        task = description.build()
        if output is not None:
            output.mkdir(parents=True, exist_ok=True)
    start = time.process_time()
    result = solve(task.problem, method=task.method, options=task.options)
    seconds = time.process_time() - start
    h = float(task.problem.mech.timestep)
    replays = {
        name: task.replay(result, description.replay, feedback) for name, feedback in (("with its gains", True), ("open loop", False))
    }
    status = PlanStatus(int(result.status))
    report = finite(
        {
            "config": str(config),
            "task": description.task or description.robot,
            "method": task.method,
            "status": status.name,
            "passed": bool(result.solved),
            "explanation": status.explain,
            "steps": task.problem.steps,
            "timestep_s": h,
            "iterations": int(result.iterations),
            "schedule": int(result.schedule),
            "cost": float(result.cost),
            "violation": float(result.violation),
            "defect": float(result.defect),
            "replay_timestep_s": h / description.replay,
            "replay_kappa": REPLAY_KAPPA,
            "replay_distance_m": float(end_distance(result, replays["with its gains"])),
            "replay_open_loop_distance_m": float(end_distance(result, replays["open loop"])),
            "replay_flagged_steps": sum(int((replay.status != 0).sum()) for replay in replays.values()),
            "cpu_seconds": seconds,
        }
    )
    _print(result, report)
    if output is not None or page.html is not None:
        _save(result, replays["with its gains"], description, output, page)
    write_report(report, output)
    return report


def _print(found: Plan, report: dict[str, Any]) -> None:
    rows = [
        [
            str(number),
            *(f"{float(value):.2e}" for value in (record.kappa, record.grad_kappa)),
            f"{float(record.cost):.6g}",
            f"{float(record.violation):.1e}",
            f"{float(record.step_size):g}" if float(record.step_size) else "none",
        ]
        for number, record in enumerate(iterates(found), start=1)
    ]
    heading = ["iteration", "kappa", "grad_kappa", "cost", "violation", "step size"]
    if len(rows) > SHOWN_ITERATIONS:
        rows = [*rows[: SHOWN_ITERATIONS // 2], ["..."] * len(heading), *rows[-SHOWN_ITERATIONS // 2 :]]
    print(f"{report['task']}: {report['steps']} steps of {report['timestep_s']:g} s, {report['method']} shooting")
    for row in (heading, *rows):
        print("  " + "".join(f"{cell:>12}" for cell in row))
    finer = f"in steps of {report['replay_timestep_s']:g} s at kappa {REPLAY_KAPPA:g}"
    print_table(
        [
            ("status", f"{report['status']}: {report['explanation']}"),
            ("cost", f"{report['cost']:.6g}" if report["cost"] is not None else "not finite"),
            ("largest violation", f"{report['violation']:.2g}" if report["violation"] is not None else "not finite"),
            ("iterations", f"{report['iterations']} ({len(found.log)} until all schedules ended)"),
            ("processor time", f"{report['cpu_seconds']:.2f} s"),
            (f"replay {finer}", f"ends {_centimeters(report['replay_distance_m'])} from the plan with its gains"),
            ("", f"{_centimeters(report['replay_open_loop_distance_m'])} without; {report['replay_flagged_steps']} flagged steps"),
        ]
    )


def _centimeters(distance: float | None) -> str:
    return "not finite" if distance is None else f"{100 * distance:.2g} cm"


def _with_activations(found: Plan) -> torch.Tensor:
    """Coordinates of the plan's states, which have the activations of drives behind them."""
    dynamics = found.problem.dynamics
    return dynamics.coordinates(dynamics.joined(found.z, found.act))


def _save(found: Plan, replay: Replay, description: PlanConfig, output: Path | None, page: Page) -> None:
    """trajectory.npz, its page, and how to use the gains."""
    problem, log = found.problem, iterates(found)
    mech = problem.mech
    cost, violation = ([float(getattr(record, name)) for record in log] for name in ("cost", "violation"))
    arrays = {
        "z": found.z.numpy(),
        "u": found.u.numpy(),
        "v": found.v.numpy(),
        "gains": found.gains.numpy(),
        "coordinates": _with_activations(found).numpy(),
        "input_map": problem.dynamics.map.numpy(),
        "input_offset": problem.dynamics.offset.numpy(),
        "replay_z": replay.z.numpy(),
        "replay_u": replay.u.numpy(),
        "cost": np.array(cost),
        "violation": np.array(violation),
        "timestep": float(mech.timestep),
        "body_names": np.array(list(mech.bodies)),
        "contact_names": np.array(list(mech.contacts)),
    }
    label = f"{description.task or Path(str(description.robot)).stem}: "
    with torch.no_grad():
        playbacks = [Playback.of(mech, z, label=label + name) for name, z in (("plan", found.z), ("replay", replay.z))]
    write_drawing(playbacks, output, page, side_by_side=True, arrays=arrays)
    if output is not None:
        error = "coordinates (q, qd) minus coordinates[t]" if problem.dynamics.minimal else "mech.difference(z, z[t])"
        error += ", with the activations behind both," if problem.dynamics.num_activations else ""
        print(f"{output / TRAJECTORY} has the plan: states z, inputs u, and gains with which a step applies")
        print(f"  input_map @ (v[t] + gains[t] @ error) + input_offset, where error = {error}")
