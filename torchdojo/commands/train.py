"""`torchdojo train`: a policy by SHAC, PPO, ARS or AGS, in a folder from which a killed run goes on."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from torchdojo.commands.common import CommandError, add_output, finite, print_table, user_input, whole, write_report
from torchdojo.learning.runs import ALGORITHMS, Run, load_run, process_number, read_config

__all__ = ["add_arguments", "run", "train"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Train a policy as a YAML file describes it. A run that was killed goes on with --resume, to the same weights."
    parser.add_argument("config", type=Path, nargs="?", metavar="CONFIG", help="description (.yaml), such as configs/shac_ant.yaml")
    parser.add_argument("--env", metavar="NAME", help="environment, by name or as module:Class, instead of a description")
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
    add_output(parser, required=True)


def run(options: argparse.Namespace) -> dict[str, Any]:
    names = ("config", "env", "algorithm", "output", "resume", "changes", "processes")
    options.json = options.json and process_number() == 0  # the first process of a run tells for all
    return train(**{name: getattr(options, name) for name in names})


def train(
    config: Path | None = None,
    *,
    output: Path,
    env: str | None = None,
    algorithm: str | None = None,
    resume: bool = False,
    changes: list[str] | tuple[str, ...] = (),
    processes: int = 1,
) -> dict[str, Any]:
    """Train a policy; returns the report.

    Args:
        config: a YAML file with the keys of `RunConfig`; None: `env` with the algorithm's defaults, or (to resume) the folder's.
        output: folder of the run. env, algorithm: instead of a description. changes: KEY=VALUE, of the description.
        processes: of SHAC, on gloo.

    Raises:
        CommandError: bad input, a folder that holds another run, an extra that is not installed.
    """
    if (config is None) == (env is None) and not (resume and config is None):
        raise CommandError("give either a description (CONFIG) or --env; to go on with a run, --resume and its folder are enough")
    with user_input():
        if config is None and env is None:
            this = load_run(output)
        else:
            given: Any = {"env": env, "algorithm": algorithm or "shac"} if config is None else config
            this = Run(output, read_config(given, changes))
        this.process_options(processes)  # refused before the run has a folder
        this.begin(resume)
        numbers = this.train(resume, processes)
    report = finite({"env": this.config.env, "algorithm": this.config.algorithm, "seed": this.config.seed, **numbers})
    if process_number() == 0:
        print_table([(name, f"{value:.6g}" if isinstance(value, float) else str(value)) for name, value in report.items()])
        write_report(report, output)
    return report
