"""Random episodes of environments: python scripts/random_episodes.py [--names ant,hopper] [--episodes 1000] [--batch 256] [--length 200]

Actions are uniform in [-1, 1], drawn anew in every control step. The table counts control steps, values that are not finite in what an
environment returns or keeps, steps that the solver flags, those that it splits, and microseconds per control step of one environment.
"""

from __future__ import annotations

import argparse
import time

import torch

import torchdojo as td

COLUMNS = "environment", "episodes", "control steps", "length", "return", "not finite", "flagged", "split", "iterations", "µs"


def row(name: str, episodes: int, batch: int, length: int | None) -> str:
    """A row of the table."""
    env = td.envs.make(name, num_envs=batch, **({} if length is None else {"episode_length": length}))
    generator, bad, seconds = torch.Generator().manual_seed(1), 0, 0.0
    while env.statistics["episodes"] < episodes:
        action = 2.0 * torch.rand(batch, env.num_actions, generator=generator, dtype=torch.float64) - 1.0
        start = time.process_time()
        with torch.no_grad():
            out = env.step(action)
        seconds += time.process_time() - start
        bad += sum(int((~torch.isfinite(value)).sum()) for value in (out.obs, out.final_obs, out.reward, env.state.z))
    s = env.statistics
    cells = [name, s["episodes"], s["steps"], f"{s['mean_length']:.0f}", f"{s['mean_return']:.3g}", bad, s["flagged"], s["split"]]
    return "| " + " | ".join(map(str, [*cells, f"{s['iterations'] / s['steps']:.1f}", f"{1e6 * seconds / s['steps']:.0f}"])) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--names", default=",".join(td.envs.names()))
    parser.add_argument("--episodes", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--length", type=int, default=None, help="control steps after which episodes are truncated")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("| " + " | ".join(COLUMNS) + " |\n" + "|---" * len(COLUMNS) + "|")
    for name in options.names.split(","):
        print(row(name, options.episodes, options.batch, options.length), flush=True)


if __name__ == "__main__":
    main()
