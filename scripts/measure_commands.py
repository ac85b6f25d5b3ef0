"""How well a trained robot follows commands: 64 episodes of 20 s with a new command every 4 s, undisturbed, kicked, and with all at once.

python scripts/measure_commands.py outputs/quadruped --episodes 64
"""

from __future__ import annotations

import argparse
import json

import torch

import torchdojo as td
from torchdojo.learning.tracking import track, trials


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="folder of a run of the environment locomotion")
    parser.add_argument("--episodes", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1234, help="of starts, commands and kicks")
    parser.add_argument("--only", help="part of the name of a trial")
    options = parser.parse_args()
    torch.set_num_threads(1)
    run = td.learning.load_run(options.run)
    if run.config.env != "locomotion":
        parser.error(f"{options.run} is a run of {run.config.env!r}; allowed: of locomotion")
    policy = run.policy()
    for name, make in trials(run.config.make_env, options.episodes, options.seed).items():
        if options.only is None or options.only in name:
            print(name, json.dumps({key: round(value, 4) for key, value in track(make(), policy).as_dict().items()}), flush=True)


if __name__ == "__main__":
    main()
