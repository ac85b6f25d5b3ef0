"""`torchdojo train`: a policy by SHAC, PPO, ARS or AGS, in a folder from which a killed run goes on."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from torchdojo.commands.common import CommandError, add_output, finite, print_columns, print_table, user_input, whole, write_report
from torchdojo.envs import Locomotion
from torchdojo.learning.diagnosis import diagnose
from torchdojo.learning.recipes import recipe
from torchdojo.learning.runs import ALGORITHMS, Run, load_run, process_number, read_config
from torchdojo.runs.versions import versions

__all__ = ["add_arguments", "check", "run", "train"]

#: how a guess is replaced, for whoever reads what was found, or why nothing was
CORRECT = (
    "What is wrong here can be given: --set env_options.feet='[...]' (contacts or bodies), env_options.stance='{joint: rad}', "
    "env_options.gait=walk, env_options.stiffness=40; keywords of td.load by env_options.robot_options='{repair_inertia: true, "
    "floating_base: true}'; --set settings.symmetric=false without mirror images."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Train a policy as a YAML file describes it. A run that was killed goes on with --resume, to the same weights."
    parser.add_argument("config", type=Path, nargs="?", metavar="CONFIG", help="description (.yaml), such as configs/shac_ant.yaml")
    parser.add_argument("--env", metavar="NAME", help="environment, by name or as module:Class, instead of a description")
    parser.add_argument("--robot", metavar="FILE", help="with --env locomotion: a URDF or MJCF file, or the name of a built-in robot")
    parser.add_argument("--algorithm", choices=list(ALGORITHMS), help="with --env (default: shac)")
    parser.add_argument("--resume", action="store_true", help="go on with the run in the output folder")
    parser.add_argument("--processes", type=whole, default=1, metavar="N", help="of SHAC, each with its own environments (default: 1)")
    parser.add_argument(
        "--set",
        dest="changes",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="replace a value of the description, e.g. seed=3 or settings.lr=1e-3; repeatable",
    )
    parser.add_argument(
        "--check", action="store_true", help="do not train: measure gradients, adjoints, servos, contacts and timestep, and print a recipe"
    )
    add_output(parser)


def run(options: argparse.Namespace) -> dict[str, Any]:
    names = ("config", "env", "robot", "algorithm", "output", "resume", "changes", "processes")
    if options.check:
        return check(**{name: getattr(options, name) for name in ("config", "env", "robot", "algorithm", "changes")})
    if options.output is None:
        raise CommandError("--output DIR: got none; allowed: the folder of the run; only --check needs none")
    options.json = options.json and process_number() == 0  # the first process of a run tells for all
    return train(**{name: getattr(options, name) for name in names})


def train(
    config: Path | None = None,
    *,
    output: Path,
    env: str | None = None,
    robot: str | None = None,
    algorithm: str | None = None,
    resume: bool = False,
    changes: list[str] | tuple[str, ...] = (),
    processes: int = 1,
) -> dict[str, Any]:
    """Train a policy; returns the report.

    Args:
        config: a YAML file with the keys of `RunConfig`; None: `env` with the algorithm's defaults, or (to resume) the folder's.
        output: folder of the run. env, algorithm: instead of a description. robot: of "locomotion", a file or a name.
        changes: KEY=VALUE, of the description.
        processes: of SHAC, on gloo.

    Raises:
        CommandError: bad input, a folder that holds another run, an extra that is not installed.
    """
    if (config is None) == (env is None) and not (resume and config is None):
        raise CommandError("give either a description (CONFIG) or --env; to go on with a run, --resume and its folder are enough")
    if robot is not None and env is None:
        raise CommandError(f"--robot {robot}: allowed: with --env locomotion; in a description, it is env_options.robot")
    with user_input():
        if config is None and env is None:
            this = load_run(output)
        else:
            description: Any = config if env is None else recipe(env, algorithm or "shac", robot)
            this = Run(output, read_config(description, changes))
        _describe(this)
        this.process_options(processes)  # refused before the run has a folder
        this.begin(resume)
        numbers = this.train(resume, processes)
    report = finite({"env": this.config.env, "algorithm": this.config.algorithm, "seed": this.config.seed, **numbers})
    if process_number() == 0:
        print_table([(name, f"{value:.6g}" if isinstance(value, float) else str(value)) for name, value in report.items()])
        write_report({**report, "versions": versions()}, output)
    return report


def check(
    config: Path | None = None,
    *,
    env: str | None = None,
    robot: str | None = None,
    algorithm: str | None = None,
    changes: list[str] | tuple[str, ...] = (),
) -> dict[str, Any]:
    """Measure an environment before it is trained, and print what to set; returns the report, whose "passed" is false for a wrong gradient.

    Args:
        config, env, robot, algorithm, changes: as of `train`.

    Raises:
        CommandError: bad input.
    """
    if (config is None) == (env is None):
        raise CommandError("--check: give either a description (CONFIG) or --env")
    with user_input():
        this = read_config(config if env is None else recipe(env, algorithm or "shac", robot), changes)  # type: ignore[arg-type]
        notes = diagnose(this)
    print_columns([(note.verdict, note.name, note.measured) for note in notes])
    advice = [note for note in notes if note.advice]
    print("Recipe:" if advice else "Recipe: the defaults.")
    for note in advice:
        print(f"  - {note.advice}")
    print("Every cause is explained in torchdojo/learning/my_robot_does_not_learn.md.")
    wrong = [note.name for note in notes if note.verdict == "wrong"]
    return {"env": this.env, "passed": not wrong, "wrong": wrong, "checks": [note._asdict() for note in notes]}


def _describe(this: Run) -> None:
    """Print what was found of a robot that is to walk, before it costs anything."""
    if process_number() > 0 or this.config.env != "locomotion":
        return
    try:
        env = this.config.make_env(1, pool=1)
    except ValueError as error:
        raise CommandError(f"{error}\n{CORRECT}") from error
    assert isinstance(env, Locomotion)
    print_table(env.describe())
    print(CORRECT)
