"""The `torchdojo` command."""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from torchdojo.commands.common import CommandError, add_output, not_negative, positive, whole

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
    simulate.add_argument("--steps", type=whole, default=200, metavar="N", help="number of steps (default: %(default)s)")
    simulate.add_argument("--timestep", type=positive, default=0.01, metavar="H", help="time step [s] (default: %(default)s)")
    simulate.add_argument("--kappa", type=positive, default=1e-6, metavar="K", help="central-path parameter (default: %(default)s)")
    simulate.add_argument("--fixed-base", action="store_true", help="weld the root of a robot from a file to the world")
    simulate.add_argument("--batch", type=whole, default=1, metavar="N", help="environments, each with other starting velocities")
    simulate.add_argument(
        "--height", type=positive, default=0.1, metavar="M", help="of the lowest contact at the start [m] (default: %(default)s)"
    )
    simulate.add_argument("--friction", type=not_negative, metavar="MU", help="Coulomb coefficient of all contacts")
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
    add_output(simulate)

    for name, summary in (("replay", "roll recorded tosses from their first sample"), ("fit", "identify an object from recordings")):
        module = import_module(f"torchdojo.commands.{name}")
        command = commands.add_parser(name, help=summary)
        module.add_arguments(command)
        command.set_defaults(run=module.run)

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
    add_output(evaluate)
    return parser


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


def _evaluate(options: argparse.Namespace) -> dict[str, Any]:
    from torchdojo.commands.evaluate import evaluate

    return evaluate(options.topic, only=options.only, quick=options.quick, models=options.models, output=options.output)


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    print(f"warning: {' '.join(str(message).split())}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
