"""``python -m torchdojo.identification cube FILE``: the fits of `fitting.CUBE` and `fitting.ELBOW`, with what they found."""

from __future__ import annotations

import argparse
import sys

from torchdojo.identification.fitting import CUBE, ELBOW, fit


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m torchdojo.identification", description=__doc__)
    parser.add_argument("object", choices=("cube", "elbow"))
    parser.add_argument("data", help="file of recordings (.npz)")
    parser.add_argument("--limit", type=int, help="use the first throws only")
    arguments = parser.parse_args()
    config = {**(CUBE if arguments.object == "cube" else ELBOW), "data": arguments.data, "limit": arguments.limit}
    report = fit(config, log=lambda line: print(line, file=sys.stderr, flush=True))
    for result in report.fits:
        print(f"{result.iterations} iterations, {result.seconds:.1f} s, cost {result.history[0]:.6g} -> {result.cost:.6g}: {result.reason}")
        for name, value in result.values.items():
            print(f"  {name} = {value.tolist()}, deviation {result.std[name].tolist()}, by throw {result.std_by_throw[name].tolist()}")
    for label, errors in (("nominal", report.nominal), ("fitted", report.fitted)):
        for part, summary in errors.items():
            print(f"{label}, {part}: " + ", ".join(f"{name} {value:.4g}" for name, value in summary.items()))


if __name__ == "__main__":
    main()
