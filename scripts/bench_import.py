#!/usr/bin/env python
"""Seconds that `import torchdojo` takes beyond the import of torch, in processes of their own: python scripts/bench_import.py [RUNS]"""

from __future__ import annotations

import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CODE = "import time, torch; started = time.perf_counter(); import torchdojo; print(time.perf_counter() - started)"


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    seconds = [
        float(subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True, cwd=ROOT).stdout)
        for _ in range(runs)
    ]
    print(f"import torchdojo: median {statistics.median(seconds):.3f} s beyond torch, smallest {min(seconds):.3f} s of {runs} runs")


if __name__ == "__main__":
    main()
