"""One robot file, measured in a process of its own: the report is written after every stage, so that a crash leaves what is known."""

from __future__ import annotations

import json
import os
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from torchdojo import testing
from torchdojo.evaluation.corpus_motion import compare_motion
from torchdojo.evaluation.corpus_mujoco import compile_file
from torchdojo.evaluation.experiment import import_mujoco
from torchdojo.io import load
from torchdojo.mechanism import Mechanism

__all__ = ["measure"]

STEPS, PIECE = 200, 20
ENOUGH = 20  # flagged steps, each of which takes as long as hundreds of good ones
RATE = 0.1  # standard deviation of the rates of the start [m/s, rad/s]
#: Steps after which gradients are checked. At the start a contact has a gap of exactly 0, where the damper of a compliant one has a kink:
#: the derivative has one side there, and central differences see both.
CHECKED = (1, 20, 150)


def measure(path: Path, kind: str, output: Path, stages: Sequence[str] = ("motion", "steps", "gradients")) -> None:
    """Measure a file and write the row to `output`."""
    torch.set_num_threads(1)
    path, output = path.resolve(), output.resolve()
    os.chdir(output.parent)  # MuJoCo writes its log where it runs
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)  # MuJoCo and parsers print
    os.dup2(null, 2)
    row: dict[str, Any] = {}

    def stage(name: str, action: Callable[[], dict[str, Any]]) -> None:
        row[name] = {"kind": "unfinished", "text": "unfinished"}
        output.write_text(json.dumps(row))
        start = time.perf_counter()
        try:
            row[name] = action()
        except Exception as error:  # whatever it is, it is what this file shows
            last = traceback.extract_tb(error.__traceback__)[-1]
            row[name] = {"kind": type(error).__name__, "text": f"{error}"[:2000], "at": f"{Path(last.filename).name}:{last.lineno}"}
        row[name]["wall_s"] = time.perf_counter() - start
        output.write_text(json.dumps(row))

    mujoco, loaded = import_mujoco(), []

    def load_ours() -> dict[str, Any]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            mech = load(path)
        loaded.append(mech)
        return {
            "bodies": mech.num_bodies, "contacts": len(mech.contacts), "joints": len(mech.joints), "couplings": len(mech.couplings),
            "timestep_s": float(mech.timestep), "warnings": [str(w.message)[:600] for w in caught],
        }  # fmt: skip

    stage("mujoco", lambda: _mujoco(mujoco, path, kind))
    if row["mujoco"].get("nv") == 0:  # a scene or an object without joints
        return
    stage("load", load_ours)
    if not loaded:
        return
    mech = loaded[0]
    if "motion" in stages and "kind" not in row["mujoco"]:
        stage("motion", lambda: compare_motion(mujoco, path, kind))
    if "steps" in stages:
        states: list[torch.Tensor] = []
        stage("own_steps", lambda: _steps(mech, states))
        if abs(float(mech.timestep) - 0.01) < 1e-9:
            row["steps"] = row["own_steps"]
        else:
            stage("steps", lambda: _steps(_quietly(path, 0.01), []))
        if "gradients" in stages and states:
            stage("gradients", lambda: _gradients(mech, states))


def _mujoco(mujoco: Any, path: Path, kind: str) -> dict[str, Any]:
    model = compile_file(mujoco, path, kind)
    return {"nbody": int(model.nbody), "nv": int(model.nv)}


def _quietly(path: Path, timestep: float) -> Mechanism:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return load(path, timestep=timestep)


@torch.no_grad()
def _steps(mech: Mechanism, states: list[torch.Tensor]) -> dict[str, Any]:
    """200 steps from the ground, or from where the file draws the robot, at small random rates."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        place = "ground"
        try:
            z = mech.initial_state(on="ground")
        except ValueError:
            place, z = "file", mech.initial_state()
        q, qd = mech.to_minimal(z)
        generator = torch.Generator().manual_seed(0)
        moving = mech.to_maximal(q, qd + RATE * torch.randn(qd.shape, generator=generator, dtype=qd.dtype))
        if len(mech.tree_joints) == len(mech.joints) and not len(mech.couplings):
            z = moving
        start = mech.distances(z).min().item() if len(mech.contacts) else None
        ctrl = torch.zeros(PIECE, len(mech.actuators), dtype=z.dtype) if mech.actuators is not None else None
        began, states[:], status, iterations, last = time.perf_counter(), [], [], [], None
        for _ in range(STEPS // PIECE):
            path = mech.rollout(z, ctrl=ctrl, steps=PIECE, warm_start=last)
            z, last = path.z[-1], path.solution[-1]
            states += [*path.z[:-1]]
            status += path.status.tolist()
            iterations += path.iterations.tolist()
            if sum(flag != 0 for flag in status) >= ENOUGH:
                break
        every = torch.stack((*states, z))
    return {
        "place": place,
        "steps": len(status),
        "flagged": sum(flag != 0 for flag in status),
        "first_flagged": next((i for i, flag in enumerate(status) if flag), None),
        "not_finite": int((~torch.isfinite(every)).any(-1).sum()),
        "start_distance_m": start,
        "smallest_distance_m": mech.distances(every).min().item() if len(mech.contacts) else None,
        "largest_iterations": max(iterations),
        "iterations": sum(iterations),
        "rollout_s": time.perf_counter() - began,
    }


def _gradients(mech: Mechanism, states: list[torch.Tensor]) -> dict[str, Any]:
    """Derivatives of single steps by state and input beside central differences; the largest relative error."""
    errors: dict[str, float] = {}
    skipped = []
    for after in CHECKED:
        if after >= len(states):
            continue
        z = states[after]
        try:
            report = testing.check_gradients(mech, z, parameters=False, directions=3)
        except ValueError as error:
            skipped.append(f"step {after}: {error}"[:300])
            continue
        errors |= {f"step {after}: {label}": value for label, value in report.errors.items()}
    if not errors:
        raise ValueError("; ".join(skipped))
    return {"error": max(errors.values()), "errors": errors, "skipped": skipped}
