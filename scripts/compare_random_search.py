#!/usr/bin/env python
"""ARS and AGS on half-cheetah and ant from five seeds, beside Table VI of the Dojo paper."""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics

import torch

from torchdojo.evaluation.random_search import TABLE_VI, compare_random_search, format_rows

FEWER = 3.0  # times fewer evaluations of AGS to half of ARS' reward


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--environments", nargs="+", choices=list(TABLE_VI), default=list(TABLE_VI))
    parser.add_argument("--share", type=float, default=1.0, help="of the paper's evaluations, for a quick look")
    parser.add_argument("--json", metavar="FILE", help="write rows and curves")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = compare_random_search(range(options.seeds), options.environments, share=options.share, tell=lambda line: print(line, flush=True))
    print(format_rows(rows))
    for ars, ags in zip(rows[::2], rows[1::2], strict=True):
        reached = [count for count in ags.to_half if count is not None]
        text = f"{ags.environment}: AGS reaches half of ARS' reward in {len(reached)} of {len(ags.to_half)} seeds"
        theirs = [count for count in ars.to_half if count is not None]
        if reached and theirs:
            budget, median = ars.evaluations / max(reached), statistics.median(theirs) / statistics.median(reached)
            text += (
                f", with {budget:.1f} times fewer evaluations than a whole search of ARS (slowest seed; bound {FEWER:g}), and {median:.1f} "
                f"times fewer than ARS needs for this half (medians; slowest AGS, fastest ARS: {min(theirs) / max(reached):.1f})"
            )
        print(text)
    if options.json:
        with open(options.json, "w") as file:
            json.dump([dataclasses.asdict(row) for row in rows], file, indent=1)


if __name__ == "__main__":
    main()
