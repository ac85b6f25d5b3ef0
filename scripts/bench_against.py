#!/usr/bin/env python
"""Compare the speed of this checkout with another commit: forward, forward + backward, and Jacobians.

    scripts/bench_against.py 3a5dfe0
    scripts/bench_against.py HEAD~1 --cases pendulum10 --rounds 2
    scripts/bench_against.py HEAD~1 --cases quadruped --calls
    scripts/build_kernels.py v3 && CXX="g++ -mno-avx512f" scripts/bench_against.py --level v3

With `--calls`, single calls from Python of one settled environment: what stands around a kernel that takes microseconds. With `--level`,
the prebuilt kernel of a level beside the one that $CXX compiles for this CPU, both of this checkout.

Each round starts one process for either version. Both do the same work by turns, call by call, so that other load on the machine falls on
both alike. A time is the least processor time of all calls; a ratio is the quotient of two such times. Forward and backward are rollouts
long enough that Python does not count. Jacobians belong to one step; they are written into new memory and, by versions that can, into
existing memory (`out=`). For both versions, mechanisms and settled states come from bench_cases.py of this checkout.
"""

from __future__ import annotations

import argparse
import gc
import inspect
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
CHOSEN = ("quadruped", "humanoid", "pendulum10", "spheres10", "quadrotor")
KINDS = ("forward", "forward + backward", "jacobians", "jacobians, out=")
CALLS = (
    "step",
    "step, warm",
    "step, warm, 2 of a period",
    "step, warm, of 64",
    "step, warm + backward by z and u",
    "to_minimal",
    "step_minimal",
)
REPEATED = 60  # calls of which the least counts, with --calls


def workloads(name: str, batch: int, steps: int) -> dict[str, Callable[[], Any]]:
    """Functions that a process times for a case, by kind."""
    import torch
    from bench_cases import CASES

    torch.set_num_threads(1)
    torch.manual_seed(0)
    case = CASES[name]()
    mech, few = case.mech, max(1, batch // 2)
    with torch.no_grad():
        z = mech.rollout(case.start, case.inputs(batch, case.settle)).z[..., -1, :].contiguous()
        u = case.inputs(batch, steps)
        warm = mech.step(z[:few], u[:few, 0]).solution
    weights = torch.randn(z.shape[-1], dtype=torch.float64)
    z_leaf, u_leaf = z.clone().requires_grad_(), u.clone().requires_grad_()

    def forward() -> None:
        with torch.no_grad():
            mech.rollout(z, u)

    def forward_backward() -> None:
        torch.autograd.grad((mech.rollout(z_leaf, u_leaf).z[..., -1, :] * weights).sum(), (z_leaf, u_leaf), allow_unused=True)

    def jacobians(**memory: Any) -> Any:
        with torch.no_grad():
            return mech.jacobians(z[:few], u[:few, 0], warm_start=warm, **memory)

    calls: dict[str, Callable[[], Any]] = dict(zip(KINDS, (forward, forward_backward, jacobians), strict=False))
    memory = {}
    if "out" in inspect.signature(mech.jacobians).parameters:
        size = 12 * mech.num_bodies
        memory["out"] = torch.empty(few, size, size + mech.num_inputs, dtype=torch.float64)
    return {**calls, KINDS[3]: lambda: jacobians(**memory)}


def single_calls(name: str) -> dict[str, Callable[[], Any]]:
    """Functions that a process times with `--calls`, by kind."""
    import torch
    from bench_cases import CASES

    torch.set_num_threads(1)
    torch.manual_seed(0)
    case = CASES[name]()
    mech = case.mech
    with torch.no_grad():
        z = mech.rollout(case.start, steps=100).z[..., -1, :].reshape(-1).contiguous()
    u = z.new_zeros(mech.num_inputs)
    several, inputs = z.expand(64, -1).contiguous(), u.expand(64, -1).contiguous()
    warm, warms = mech.step(z, u).solution, mech.step(several, inputs).solution
    z_leaf, u_leaf = z.clone().requires_grad_(), u.clone().requires_grad_()
    q, qd = mech.to_minimal(z)
    functions: tuple[Callable[[], Any], ...] = (
        lambda: mech.step(z, u),
        lambda: mech.step(z, u, warm_start=warm),
        lambda: mech.step(z, u, warm_start=warm, repeat=2),
        lambda: mech.step(several, inputs, warm_start=warms),
        lambda: torch.autograd.grad(mech.step(z_leaf, u_leaf, warm_start=warm).z.sum(), (z_leaf, u_leaf)),
        lambda: mech.to_minimal(z),
        lambda: mech.step_minimal(q, qd, u, warm_start=warm),
    )
    return dict(zip(CALLS, functions, strict=True))


def serve(batch: int, steps: int, calls: bool) -> None:
    """Read names of cases and kinds, one pair a line, and answer with the seconds of one call."""
    ready: dict[str, dict[str, Callable[[], Any]]] = {}
    for line in sys.stdin:
        name, kind = json.loads(line)
        if name not in ready:
            ready = {name: single_calls(name) if calls else workloads(name, batch, steps)}  # one case at a time, to save memory
            for run in ready[name].values():
                run()
        gc.collect()
        gc.disable()  # a collection would be a tenth of a short call
        least = math.inf
        for _ in range(REPEATED if calls else 1):
            start = time.process_time()
            ready[name][kind]()
            least = min(least, time.process_time() - start)
        print(least, flush=True)
        gc.enable()


class Version:
    """A process that runs the package of one folder."""

    def __init__(self, folder: Path, level: str, options: argparse.Namespace) -> None:
        own = {"TORCHDOJO_CPU_LEVEL": level, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT / 'scripts'}", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, __file__, "--serve", f"--batch={options.batch}", f"--steps={options.steps}"]
        command += ["--calls"] * options.calls
        self.process = subprocess.Popen(command, env=os.environ | own, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, name: str, kind: str) -> float:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps([name, kind]) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise SystemExit(f"{name}, {kind}: the process of a version ended; what it printed is above")
        return float(answer)

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def compare(folders: tuple[tuple[Path, str], ...], options: argparse.Namespace) -> dict[tuple[str, str], list[float]]:
    """Least seconds of (the other version, this version) for each case and kind. A version is a folder, and the level of its kernel."""
    least = {(name, kind): [math.inf, math.inf] for name in options.cases for kind in (CALLS if options.calls else KINDS)}
    for number in range(options.rounds):
        versions = [Version(*folder, options) for folder in folders]
        for (name, kind), seconds in least.items():
            for _ in range(options.repeats):
                for i, version in enumerate(versions):
                    seconds[i] = min(seconds[i], version.ask(name, kind))
        for version in versions:
            version.close()
        print(f"round {number + 1} of {options.rounds}", file=sys.stderr)
    return least


def compare_commits(options: argparse.Namespace) -> dict[tuple[str, str], list[float]]:
    with tempfile.TemporaryDirectory() as temporary:
        other = Path(temporary, "other")
        subprocess.run(["git", "-C", ROOT, "worktree", "add", "--quiet", "--detach", other, options.commit], check=True)
        try:
            return compare(((other, ""), (ROOT, "")), options)
        finally:
            subprocess.run(["git", "-C", ROOT, "worktree", "remove", "--force", other], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit", nargs="?", default="HEAD", help="what to compare with (default: HEAD, so uncommitted changes are timed)")
    parser.add_argument(
        "--cases", type=lambda text: text.split(","), default=CHOSEN, help=f"of bench_cases.py (default: {','.join(CHOSEN)})"
    )
    parser.add_argument("--batch", type=int, default=512, help="environments; half as many for Jacobians (default: 512)")
    parser.add_argument("--steps", type=int, default=50, help="of a rollout (default: 50)")
    parser.add_argument("--rounds", type=int, default=5, help="pairs of processes (default: 5)")
    parser.add_argument("--repeats", type=int, default=5, help="calls of each process (default: 5)")
    parser.add_argument("--calls", action="store_true", help="single calls of one environment")
    parser.add_argument("--level", help="v2, v3, v4 or neon: compare this prebuilt kernel with a compiled one")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        return serve(options.batch, options.steps, options.calls)
    names = (options.commit, "this checkout")
    if options.level:
        names = ("compiled", options.level)
        least = compare(((ROOT, "native"), (ROOT, options.level)), options)
    else:
        least = compare_commits(options)
    digits = 3 if options.calls else 2
    print(f"| case | kind | {names[0]} [ms] | {names[1]} [ms] | ratio |\n|---|---|---|---|---|")
    for (name, kind), (before, now) in least.items():
        print(f"| {name} | {kind} | {1e3 * before:.{digits}f} | {1e3 * now:.{digits}f} | {now / before:.3f} |")


if __name__ == "__main__":
    main()
