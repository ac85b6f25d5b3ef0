"""The `torchdojo` command.

A command is a row of `COMMANDS`. Its module spells its arguments, `add_arguments(parser)`, and runs them, `run(options)`, which returns the
report. Only the module of the given command is imported, so that `torchdojo --help` stays fast.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import torch

import torchdojo
from torchdojo.commands.common import CommandError
from torchdojo.native import loader

__all__ = ["COMMANDS", "main"]

#: command -> (module, help in one line)
COMMANDS = {
    "simulate": ("torchdojo.commands.simulate", "drop a mechanism and simulate it"),
    "replay": ("torchdojo.commands.replay", "roll recorded tosses from their first sample"),
    "fit": ("torchdojo.commands.fit", "identify an object from recordings"),
    "train": ("torchdojo.commands.train", "learn a policy: SHAC, PPO, ARS, AGS"),
    "plan": ("torchdojo.commands.plan", "plan a motion through contact: a task, or a robot with start and goal"),
    "play": ("torchdojo.commands.play", "see what a trained policy does: numbers, a gait report, a page"),
    "export": ("torchdojo.commands.export", "write a trained policy for robots: TorchScript, ONNX, numpy"),
    "view": ("torchdojo.commands.view", "show trajectory files: a page, a video, a live view"),
    "evaluate": ("torchdojo.commands.evaluate", "run experiments with known outcomes"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns 0, 1 where its report has "passed": False, or 2 on bad input (130 when interrupted)."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if list(arguments) == ["--version"]:
        print(f"torchdojo {torchdojo.__version__}; {loader.describe()}")
        return 0
    options = _parser(arguments[:1]).parse_args(arguments)
    try:
        torch.set_num_threads(options.threads)
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            report: dict[str, Any] = options.run(options)
    except CommandError as error:
        print(f"torchdojo {options.command}: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"torchdojo {options.command}: interrupted", file=sys.stderr)
        return 130
    if options.json:
        print(json.dumps(report))
    return 0 if report.get("passed", True) else 1


def _parser(first: Sequence[str]) -> argparse.ArgumentParser:
    """All commands by name, and the arguments of the one that comes `first`."""
    parser = argparse.ArgumentParser(prog="torchdojo", description="Differentiable rigid-body physics with hard contact.")
    parser.add_argument("--version", action="store_true", help="version, kernel and level of the CPU; alone on the line")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (path, summary) in COMMANDS.items():
        command = commands.add_parser(name, help=summary)
        if name in first:
            module = import_module(path)
            module.add_arguments(command)
            command.set_defaults(run=module.run)
    return parser


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    print(f"warning: {' '.join(str(message).split())}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
