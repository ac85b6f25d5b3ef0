"""The `torchdojo` command."""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from torchdojo.commands.common import CommandError

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns 0, 1 where `evaluate` misses a bound or `simulate --check` fails, or 2 on bad input (130 when interrupted)."""
    options = _parser().parse_args(arguments)
    try:
        torch.set_num_threads(options.threads)
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            report = options.run(options)
    except CommandError as error:
        print(f"torchdojo {options.command}: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"torchdojo {options.command}: interrupted", file=sys.stderr)
        return 130
    if options.json:
        print(json.dumps(report))
    return 0 if report.get("passed", True) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="torchdojo", description="Differentiable rigid-body physics with hard contact.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    simulate = commands.add_parser(
        "simulate",
        help="drop a mechanism and simulate it",
        description="Drop a built-in mechanism or a robot from a file onto the ground, simulate it, and report on the physics.",
    )
    simulate.set_defaults(run=_simulate)
    simulate.add_argument("source", metavar="NAME|FILE", help="a built-in mechanism (quadruped, box, ...) or a robot file (.urdf)")
    simulate.add_argument("--steps", type=_whole, default=200, metavar="N", help="number of steps (default: %(default)s)")
    simulate.add_argument("--timestep", type=_positive, default=0.01, metavar="H", help="time step [s] (default: %(default)s)")
    simulate.add_argument("--kappa", type=_positive, default=1e-6, metavar="K", help="central-path parameter (default: %(default)s)")
    simulate.add_argument("--fixed-base", action="store_true", help="weld the root of a robot from a file to the world")
    simulate.add_argument("--batch", type=_whole, default=1, metavar="N", help="environments, each with other starting velocities")
    simulate.add_argument(
        "--height", type=_positive, default=0.1, metavar="M", help="of the lowest contact at the start [m] (default: %(default)s)"
    )
    simulate.add_argument("--friction", type=_not_negative, metavar="MU", help="Coulomb coefficient of all contacts")
    simulate.add_argument(
        "--contact",
        action="append",
        default=[],
        metavar="LINK:X,Y,Z[,RADIUS]",
        help="a contact point on a link of a robot file, in the link's frame [m]; repeatable; replaces the collision geometry",
    )
    simulate.add_argument(
        "--ignore",
        action="append",
        default=[],
        metavar="JOINT",
        help="a mimic joint (MJCF: an equality constraint) to leave independent; repeatable",
    )
    simulate.add_argument(
        "--check",
        action="store_true",
        help="compare gradients with respect to state, input and parameters with finite differences, in the middle and at the end; exit "
        "status 1 where they differ by more than 1e-6 (kappa below 1e-4: 1e-4) of the largest entry, or where no step could be checked",
    )
    simulate.add_argument("--seed", type=int, default=0, metavar="S", help="of the starting velocities (default: %(default)s)")
    _add_output(simulate)

    replay = commands.add_parser(
        "replay",
        help="roll recorded tosses from their first sample",
        description="Roll every toss of a recorded data set from its first sample and compare with the recording.",
    )
    replay.set_defaults(run=_replay)
    replay.add_argument("file", type=Path, metavar="FILE.npz", help="tosses of a cube in the format of ContactNets' processed data")
    replay.add_argument("--parameters", type=Path, metavar="DIR", help="output folder of `torchdojo fit`: replay the object it has found")
    replay.add_argument("--substeps", type=_whole, metavar="K", help="steps per recorded interval (default: 1, or those of the fit)")
    replay.add_argument("--kappa", type=_positive, metavar="K", help="central-path parameter (default: 1e-06, or that of the fit)")
    replay.add_argument("--batch-limit", type=_whole, metavar="N", help="only the first N tosses")
    replay.add_argument("--friction", type=_not_negative, metavar="MU", help="Coulomb coefficient (default: mu_reported of the file)")
    replay.add_argument("--half-side", type=_positive, metavar="M", help="half the cube's edge [m] (default: half_side of the file)")
    _add_output(replay)

    fit = commands.add_parser(
        "fit",
        help="identify an object from recordings",
        description="Fit parameters of an object to recorded trajectories, stage by stage as a YAML file describes it. A run that was "
        "killed goes on with --resume, to the same parameters, bit for bit.",
    )
    fit.set_defaults(run=_fit)
    fit.add_argument("config", type=Path, metavar="CONFIG", help="description (.yaml), such as configs/identify_cube.yaml")
    fit.add_argument("--data", type=Path, required=True, metavar="FILE", help="recordings (.npz)")
    fit.add_argument(
        "--folds",
        type=_whole,
        metavar="K",
        help="cross-validation: fit K times, each time with another K-th of the throws held back, and report errors on these",
    )
    fit.add_argument("--resume", action="store_true", help="go on with the run in the output folder")
    fit.add_argument(
        "--set",
        dest="changes",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="replace a value of the description, e.g. seed=3 or stages.0.horizon=10 (stages count from 0); repeatable",
    )
    _add_output(fit, required=True)

    evaluate = commands.add_parser(
        "evaluate",
        help="run experiments with known outcomes",
        description="Run the experiments of a topic: what they measure beside bounds, published figures and MuJoCo's (where installed). "
        "Exit status 1 where a bound is missed.",
    )
    evaluate.set_defaults(run=_evaluate)
    evaluate.add_argument("topic", metavar="TOPIC", help="physics or gradients")
    evaluate.add_argument("--quick", action="store_true", help="shorter versions, together under a minute")
    evaluate.add_argument("--only", nargs="+", action="extend", default=[], metavar="NAME", help="only these experiments")
    evaluate.add_argument(
        "--models", type=Path, metavar="DIR", help="folder with robot files (default: $TORCHDOJO_SHARED/models, else ../shared/models)"
    )
    _add_output(evaluate)
    return parser


def _add_output(parser: argparse.ArgumentParser, required: bool = False) -> None:
    # The reference engine works on many small matrices, which more threads only slow down.
    parser.add_argument("--threads", type=_whole, default=1, metavar="N", help="of the CPU (default: %(default)s)")
    parser.add_argument(
        "--output", type=Path, required=required, metavar="DIR", help="write report.json, arrays (.npz) and plots (.png), if any, there"
    )
    parser.add_argument("--json", action="store_true", help="print the report as one JSON object, the last line of stdout")


def _simulate(options: argparse.Namespace) -> dict[str, Any]:
    from torchdojo.commands.simulate import simulate

    return simulate(
        options.source,
        steps=options.steps,
        timestep=options.timestep,
        kappa=options.kappa,
        fixed_base=options.fixed_base,
        batch=options.batch,
        height=options.height,
        friction=options.friction,
        contacts=options.contact,
        ignore=options.ignore,
        check=options.check,
        seed=options.seed,
        output=options.output,
    )


def _replay(options: argparse.Namespace) -> dict[str, Any]:
    from torchdojo.commands.replay import replay

    return replay(
        options.file,
        parameters=options.parameters,
        substeps=options.substeps,
        kappa=options.kappa,
        batch_limit=options.batch_limit,
        friction=options.friction,
        half_side=options.half_side,
        output=options.output,
    )


def _fit(options: argparse.Namespace) -> dict[str, Any]:
    from torchdojo.commands.fit import fit

    return fit(
        options.config, data=options.data, output=options.output, resume=options.resume, changes=options.changes, folds=options.folds
    )


def _evaluate(options: argparse.Namespace) -> dict[str, Any]:
    from torchdojo.commands.evaluate import evaluate

    return evaluate(options.topic, only=options.only, quick=options.quick, models=options.models, output=options.output)


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    print(f"warning: {' '.join(str(message).split())}", file=sys.stderr)


def _whole(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number of 1 or more")
    return number


def _number(text: str, allowed: str, lower: float, inclusive: bool) -> float:
    number = float(text)
    if not (number < float("inf") and (number >= lower if inclusive else number > lower)):
        raise argparse.ArgumentTypeError(f"{text} is not a {allowed} number")
    return number


def _positive(text: str) -> float:
    return _number(text, "positive finite", 0.0, False)


def _not_negative(text: str) -> float:
    return _number(text, "non-negative finite", 0.0, True)


if __name__ == "__main__":
    sys.exit(main())
