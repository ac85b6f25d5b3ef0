#!/usr/bin/env python
"""Time one step, its gradient and its Jacobian, next to MuJoCo's in the same run.

    scripts/bench_step.py --quick                                 # does everything once, tiny: minutes without the compiled backend
    scripts/bench_step.py --output bench.md                       # all models, batch 1 and 1024, one and two threads
    scripts/bench_step.py --models ant,humanoid --batch 1,64

Both engines simulate the same robot at the same timestep (0.01 s) in float64 with the same number of threads, after settling. Random inputs
are drawn anew for every step and environment, uniform in +-effort times the largest torque of the actuator. Both engines are timed by
turns; the numbers are medians. torchdojo runs `rollout`, which starts each step warm. MuJoCo runs `mujoco.rollout`, many steps of many
environments in one C call. It has its Euler integrator, its Newton solver, pyramidal cones, condim 3, and collisions with the ground only.

The mechanisms, and MuJoCo's models of them, come from bench_cases.py, with the joint limits and the armature of their files. Both engines
write Jacobians into existing memory.

"all parameters trainable" divides two times of forward and backward: with gradients of every parameter, z0 and u, and of z0 and u alone.

A step of torchdojo is in contact if a contact carries more than kappa / 1 mm: on the central path its gap is below 1 mm. In MuJoCo,
a state with ncon > 0 counts. Needs `pip install -e ".[bench]"`; without mujoco, or a file, the columns of MuJoCo stay empty.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import math
import os
import platform
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bench_cases import CASES, TIMESTEP, Case, MissingError
from torch import Tensor

import torchdojo as td

try:
    import mujoco
    import mujoco.rollout
except ImportError:
    mujoco = None

ACTIVE_GAP = 1e-3  # [m]: a contact counts as active below it
SHORTEST = 0.05  # shortest time of one timing [s]
NEVER = "–"
QUICK = ("half_cheetah", "quadruped", "quadrotor", "spheres10")
LONG = ("humanoid", "quadruped", "arm", "quadrotor")  # with a row for a long rollout and one for a single call


class MuJoCo:
    """The workload in MuJoCo: settled states of `batch` environments, and the calls that are timed."""

    def __init__(self, case: Case, batch: int, settle: int) -> None:
        model, qpos = case.mjcf(case)
        model.opt.timestep = TIMESTEP
        model.opt.integrator = mujoco.mjtIntegrator.mjINT_EULER
        model.opt.solver = mujoco.mjtSolver.mjSOL_NEWTON
        model.opt.iterations = 100
        # MuJoCo gets point contacts with plain friction, as torchdojo has them, in its default and fastest setting. Menagerie's A1 asks for
        # rolling friction and an elliptic cone with impratio 100, which takes six times as long.
        model.geom_condim[:] = 3
        model.opt.cone, model.opt.impratio = mujoco.mjtCone.mjCONE_PYRAMIDAL, 1.0
        floor = model.geom_type == mujoco.mjtGeom.mjGEOM_PLANE
        model.geom_contype[:], model.geom_conaffinity[:] = ~floor, floor
        self.model, self.case = model, case
        data = mujoco.MjData(model)
        self.data = [data]  # one per thread
        data.qpos[:] = qpos
        state = np.empty(mujoco.mj_stateSize(model, mujoco.mjtState.mjSTATE_FULLPHYSICS))
        mujoco.mj_getState(model, data, state, mujoco.mjtState.mjSTATE_FULLPHYSICS)
        self.states = np.tile(state, (batch, 1))
        if settle:
            self.states = self.rollout(self.controls(batch, settle), 1)[:, -1].copy()

    def controls(self, batch: int, steps: int) -> np.ndarray:
        scale = np.where(self.model.actuator_ctrllimited, self.model.actuator_ctrlrange[:, 1], 1.0)
        control = self.case.effort * scale * np.random.uniform(-1, 1, (batch, steps, self.model.nu))
        return control if self.case.bias is None else control + (self.case.bias / self.case.strength).numpy()

    def rollout(self, controls: np.ndarray, threads: int) -> np.ndarray:
        """States (batch, steps, n). An environment that diverges, of which MuJoCo warns, repeats its last state."""
        batch = controls.shape[0]
        while len(self.data) < threads:
            self.data.append(mujoco.MjData(self.model))
        states, _ = mujoco.rollout.rollout(self.model, self.data[:threads], self.states[:batch], controls, persistent_pool=True)
        return states

    def contact_fraction(self, states: np.ndarray, most: int = 2000) -> float:
        """Fraction of states with a contact, in a sample of about `most` states."""
        flat = states.reshape(-1, states.shape[-1])
        data, touching = mujoco.MjData(self.model), []
        for state in flat[:: max(1, len(flat) // most)]:
            mujoco.mj_setState(self.model, data, state, mujoco.mjtState.mjSTATE_FULLPHYSICS)
            mujoco.mj_fwdPosition(self.model, data)
            touching.append(data.ncon > 0)
        return float(np.mean(touching))

    def jacobians(self, count: int) -> None:
        """Centered differences of one step for each of `count` environments."""
        n, nu = 2 * self.model.nv + self.model.na, self.model.nu
        A, B, data = np.empty((n, n)), np.empty((n, nu)), self.data[0]
        for state in self.states[:count]:
            mujoco.mj_setState(self.model, data, state, mujoco.mjtState.mjSTATE_FULLPHYSICS)
            mujoco.mjd_transitionFD(self.model, data, 1e-6, True, A, B if nu else None, None, None)


# -- measuring -----------------------------------------------------------------------------------------------------------------------------


@dataclass
class Sizes:
    batches: Sequence[int]
    threads: Sequence[int]
    steps: int
    steps_alone: int  # steps of a single environment: enough that the call itself does not count
    settle: float
    repeats: int
    jacobians: int
    long: int


def by_turns(repeats: int, *runs: Callable[[], Any] | None) -> list[float | None]:
    """Median seconds of each run, one after the other `repeats` times; the first round does not count if there are others.

    A run shorter than `SHORTEST` repeats within its turn until it takes that long. So caches left cold by the other engine do not count.
    """
    seconds: list[list[float]] = [[] for _ in runs]
    for _ in range(repeats + (repeats > 1)):
        for mine, run in zip(seconds, runs, strict=True):
            if run is not None:
                start, elapsed, count = time.perf_counter(), 0.0, 0
                while elapsed < SHORTEST:
                    run()
                    count += 1
                    elapsed = time.perf_counter() - start
                mine.append(elapsed / count)
    return [statistics.median(mine[1:] if repeats > 1 else mine) if mine else None for mine in seconds]


def measure(name: str, case: Case, sizes: Sizes, say: Callable[[str], None]) -> tuple[list[list[str]], list[str]]:
    """Rows of the table of steps, and a row of the table of Jacobians."""
    mech, settle = case.mech, max(1, round(sizes.settle * case.settle))
    batches = sorted({min(batch, case.most) for batch in sizes.batches})
    count = min(sizes.jacobians, max(1, case.most // 8))
    most = max(*batches, count)
    with torch.no_grad():
        z = mech.rollout(case.start, case.inputs(most, settle)).z[..., -1, :].contiguous()
    reference: MuJoCo | None = None
    if mujoco is None:
        say(f"{name}: mujoco is not installed")
    else:
        try:
            reference = MuJoCo(case, most, settle)
        except MissingError as reason:
            say(f"{name}: not in MuJoCo: {reason}")
    rows = [row for batch in batches for row in measure_steps(name, case, sizes, say, z[:batch], reference)]
    torch.set_num_threads(sizes.threads[0])
    return rows, measure_jacobians(name, case, sizes, say, z[:count], reference)


def measure_steps(
    name: str, case: Case, sizes: Sizes, say: Callable[[str], None], z: Tensor, reference: MuJoCo | None
) -> Iterator[list[str]]:
    """Rows of the table of steps for the states z (batch, 13 nb), one for each number of threads."""
    mech, batch = case.mech, len(z)
    steps = sizes.steps_alone if batch == 1 else sizes.steps
    u = case.inputs(batch, steps)
    controls = None if reference is None else reference.controls(batch, steps)
    weights = torch.randn(z.shape[-1], dtype=torch.float64)
    z_leaf, u_leaf = z.clone().requires_grad_(), u.clone().requires_grad_()

    def forward() -> td.Trajectory:
        with torch.no_grad():
            return mech.rollout(z, u)

    def backward(*parameters: Tensor) -> None:
        loss = (mech.rollout(z_leaf, u_leaf).z[..., -1, :] * weights).sum()
        torch.autograd.grad(loss, (z_leaf, u_leaf, *parameters), allow_unused=True)

    def all_trainable() -> None:
        backward(*[p.requires_grad_() for p in mech.parameters()])
        mech.requires_grad_(False)

    path = forward()
    theirs_contact = None
    if reference is not None:
        states = reference.rollout(controls, 1)
        theirs_contact = reference.contact_fraction(states) if mech.contacts else None
        stopped = int((states[:, -1] == states[:, -2]).all(-1).sum()) if steps > 1 else 0
        if stopped:
            say(f"{name}: MuJoCo: {stopped} of {batch} environments diverged and stopped early")
    for threads in sizes.threads:
        torch.set_num_threads(threads)
        run = None if reference is None else functools.partial(reference.rollout, controls, threads)
        ours, theirs, both, trainable = by_turns(sizes.repeats, forward, run, backward, all_trainable)
        unit = 1e6 / (batch * steps)
        row = [
            name, f"{mech.num_bodies}", f"{mech.num_inputs}", f"{len(mech.contacts)}", f"{batch}", f"{threads}",
            _number(ours, unit), _number(theirs, unit), _ratio(theirs, ours), _number(both, unit), _ratio(trainable, both),
            f"{path.iterations.double().mean():.1f}", f"{100 * float((path.status != 0).double().mean()):.1f}",
            _percent(_contact_fraction(mech, path.impulses) if mech.contacts else None), _percent(theirs_contact), f"{case.effort:g}",
        ]  # fmt: skip
        say(f"{name}: batch {batch}, {threads} thread(s): {row[6]} µs, MuJoCo {row[7]} µs per step")
        yield row


def measure_jacobians(name: str, case: Case, sizes: Sizes, say: Callable[[str], None], z: Tensor, reference: MuJoCo | None) -> list[str]:
    """A row of the table of Jacobians, for the states z (count, 13 nb)."""
    mech, count = case.mech, len(z)
    u = case.inputs(count)
    run = None if reference is None else lambda: reference.jacobians(count)
    with torch.no_grad():
        solution = mech.step(z, u).solution  # MuJoCo, too, starts its solver from the last accelerations
    size, size_minimal = 12 * mech.num_bodies, 2 * mech.num_coordinates
    out = torch.empty(count, size, size + mech.num_inputs, dtype=torch.float64)  # MuJoCo, too, writes into existing memory
    q, qd = mech.to_minimal(z)
    out_minimal = torch.empty(count, size_minimal, size_minimal + mech.num_inputs, dtype=torch.float64)
    ours, theirs, minimal = by_turns(
        sizes.repeats,
        lambda: mech.jacobians(z, u, warm_start=solution, out=out),
        run,
        lambda: mech.jacobians_minimal(q, qd, u, warm_start=solution, out=out_minimal),
    )
    freedoms = NEVER if reference is None else f"{2 * reference.model.nv} x {2 * reference.model.nv + reference.model.nu}"
    row = [
        name, f"{count}", f"{size} x {size + mech.num_inputs}", _number(ours, 1e6 / count),
        f"{size_minimal} x {size_minimal + mech.num_inputs}", _number(minimal, 1e6 / count), freedoms, _number(theirs, 1e6 / count),
        _ratio(theirs, ours), _ratio(theirs, minimal),
    ]  # fmt: skip
    say(f"{name}: Jacobian {row[3]} µs, minimal {row[5]} µs, MuJoCo {row[7]} µs")
    return row


def measure_long(name: str, case: Case, sizes: Sizes, say: Callable[[str], None]) -> list[str]:
    """One environment over many steps, with the gradient to the initial state and all inputs."""
    torch.set_num_threads(sizes.threads[0])
    z, u = case.start.clone().requires_grad_(), case.inputs(sizes.long).requires_grad_()

    def run() -> td.Trajectory:
        path = case.mech.rollout(z, u)
        torch.autograd.grad(path.z[..., -1, :].sum(), (z, u))
        return path

    def forward() -> td.Trajectory:
        with torch.no_grad():
            return case.mech.rollout(z, u)

    path = forward()
    alone, both = by_turns(min(sizes.repeats, 3), forward, run)
    flagged = int((path.status != 0).sum())
    say(f"{name}: {sizes.long} steps {_number(both, 1)} s")
    return [name, f"{sizes.long}", _number(alone, 1), _number(both, 1), f"{path.iterations.double().mean():.1f}", f"{flagged}"]


def measure_call(name: str, case: Case, sizes: Sizes, say: Callable[[str], None]) -> list[str]:
    """One call of `mech.step` from Python, alone and with `backward`, of one environment that has settled on the ground."""
    torch.set_num_threads(sizes.threads[0])
    mech = case.mech
    with torch.no_grad():
        z = mech.rollout(case.start, case.inputs(max(1, round(sizes.settle * case.settle)))).z[-1].contiguous()
    leaf = z.clone().requires_grad_()

    def backward() -> None:
        torch.autograd.grad(mech.step(leaf).z.sum(), leaf)

    alone, both = by_turns(sizes.repeats, lambda: mech.step(z), backward)
    lowest = f"{1e3 * float(mech.distances(z).min()):.3f}" if mech.contacts else NEVER
    say(f"{name}: a call {_number(alone, 1e3)} ms, with backward {_number(both, 1e3)} ms")
    return [name, _number(alone, 1e3), _number(both, 1e3), lowest]


def _contact_fraction(mech: td.Mechanism, impulses: Tensor) -> float:
    normal = [mech.impulse_layout[f"contacts.{name}"].start for name in mech.contacts]
    return float((impulses[..., normal] > mech.options.kappa / ACTIVE_GAP).any(-1).double().mean())


def _number(value: float | None, unit: float) -> str:
    if value is None:
        return NEVER
    digits = 2 - math.floor(math.log10(max(value * unit, 1e-9)))
    return f"{value * unit:.{max(0, min(digits, 4))}f}"


def _ratio(theirs: float | None, ours: float | None) -> str:
    return NEVER if theirs is None or ours is None else f"{theirs / ours:.3g}"


def _percent(value: float | None) -> str:
    return NEVER if value is None else f"{100 * value:.0f}" + ("" if value >= 1 / 3 else " (< 33)")


# -- the report ----------------------------------------------------------------------------------------------------------------------------

STEP_COLUMNS = (
    "model", "bodies", "inputs", "contacts", "batch", "threads", "forward [µs]", "MuJoCo [µs]", "MuJoCo / ours", "forward + backward [µs]",
    "all parameters trainable [x]", "iterations", "flagged [%]", "in contact [%]", "MuJoCo's [%]", "effort",
)  # fmt: skip
JACOBIAN_COLUMNS = (
    "model", "environments", "maximal", "ours [µs]", "minimal", "ours [µs]", "MuJoCo's", "transitionFD [µs]", "MuJoCo / maximal",
    "MuJoCo / minimal",
)  # fmt: skip
LONG_COLUMNS = ("model", "steps", "forward [s]", "forward + backward [s]", "iterations", "flagged steps")
CALL_COLUMNS = ("model", "step [ms]", "step + backward [ms]", "smallest distance [mm]")


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[i]) for row in (columns, *rows)) for i in range(len(columns))]
    lines = ["| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in (columns, *rows)]
    return "\n".join([lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]])


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _report(sizes: Sizes, options: argparse.Namespace, tables: dict[str, tuple[Sequence[str], list[list[str]]]], notes: list[str]) -> str:
    solver = td.SolverOptions(backend=options.backend)
    facts = [
        f"- {_cpu()}, {os.cpu_count()} cores; Python {platform.python_version()}, torch {torch.__version__}, "
        f"MuJoCo {mujoco.__version__ if mujoco else 'not installed'}; float64, timestep {TIMESTEP} s, kappa {solver.kappa:g}, "
        f"backend {options.backend}",
        f"- per step and environment, from rollouts of {sizes.steps} steps (batch 1: {sizes.steps_alone}); medians of {sizes.repeats}; "
        f"seed {options.seed}",
        *(f"- {note}" for note in notes),
    ]
    parts = [f"### {title}\n\n{_table(columns, rows)}" for title, (columns, rows) in tables.items() if rows]
    return "\n\n".join(["## One step, next to MuJoCo", "\n".join(facts), *parts]) + "\n"


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    def numbers(text: str) -> list[int]:
        values = [int(part) for part in text.split(",")]
        if min(values) < 1:
            raise argparse.ArgumentTypeError(f"got {text!r}; allowed: numbers of 1 or more, separated by commas")
        return values

    def number(text: str) -> int:
        if int(text) < 1:
            raise argparse.ArgumentTypeError(f"got {text!r}; allowed: 1 or more")
        return int(text)

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", metavar="A,B", help=f"which of {', '.join(CASES)} (default: all; --quick: {', '.join(QUICK)})")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, once: does it run?")
    parser.add_argument("--batch", type=numbers, metavar="N,M", help="environments (default: 1,1024; --quick: 1,4)")
    parser.add_argument("--threads", type=numbers, metavar="N,M", help="threads of both engines (default: 1,2; --quick: 1)")
    parser.add_argument("--steps", type=number, help="steps of a timed rollout (default: 20; --quick: 3)")
    parser.add_argument("--steps-alone", type=number, help="the same for batch 1 (default: 200; --quick: 3)")
    parser.add_argument("--repeats", type=number, help="timings of which the median is taken (default: 7; --quick: 1)")
    parser.add_argument("--jacobians", type=number, help="environments whose Jacobians are taken (default: 64; --quick: 2)")
    parser.add_argument("--long", type=int, help="steps of the long rollouts; 0 leaves them out (default: 1000; --quick: 20)")
    parser.add_argument("--backend", default="auto", help="SolverOptions.backend (default: auto)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the report there too")
    options = parser.parse_args(arguments)
    options.models = options.models.split(",") if options.models else list(QUICK if options.quick else CASES)
    unknown = [name for name in options.models if name not in CASES]
    if unknown:
        parser.error(f"--models: no {', '.join(unknown)}; there are: {', '.join(CASES)}")
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    options = _parse(arguments)
    sizes = Sizes([1, 4], [1], 3, 3, 0.25, 1, 2, 20) if options.quick else Sizes([1, 1024], [1, 2], 20, 200, 1.0, 7, 64, 1000)
    given = {
        "batches": options.batch,
        **{key: getattr(options, key) for key in ("threads", "steps", "steps_alone", "repeats", "jacobians", "long")},
    }
    sizes = dataclasses.replace(sizes, **{key: value for key, value in given.items() if value is not None})
    if mujoco is not None:
        mujoco.set_mju_user_warning(lambda text: None)  # instead of a MUJOCO_LOG.TXT in the current folder
    warnings.filterwarnings("ignore", ".*mesh collision geometry is skipped")
    notes: list[str] = []

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)
        if "MuJoCo:" in text or "not installed" in text:
            notes.append(text)

    steps: list[list[str]] = []
    jacobians: list[list[str]] = []
    long: list[list[str]] = []
    calls: list[list[str]] = []
    for name in options.models:
        torch.manual_seed(options.seed)
        np.random.seed(options.seed)
        try:
            case = CASES[name]()
        except MissingError as reason:
            notes.append(f"{name} left out: {reason}")
            continue
        case.mech.options = td.SolverOptions(backend=options.backend)
        rows, jacobian = measure(name, case, sizes, say)
        steps += rows
        jacobians.append(jacobian)
        if name in LONG and sizes.long:
            long.append(measure_long(name, case, sizes, say))
            calls.append(measure_call(name, case, sizes, say))
    report = _report(
        sizes,
        options,
        {
            "Steps": (STEP_COLUMNS, steps),
            f"Jacobians of one step, {sizes.threads[0]} thread(s)": (JACOBIAN_COLUMNS, jacobians),
            f"Long rollouts, one environment, {sizes.threads[0]} thread(s)": (LONG_COLUMNS, long),
            f"One call from Python, one environment, {sizes.threads[0]} thread(s)": (CALL_COLUMNS, calls),
        },
        notes,
    )
    print(report)
    if options.output:
        options.output.write_text(report)


if __name__ == "__main__":
    main()
