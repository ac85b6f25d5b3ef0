"""Times of scenes with near contacts, beside MuJoCo's step of the same scene, and of the search for near terms. One thread.

    python scripts/bench_near_contacts.py [scene ...] [--batch 1 16 256] [--steps 20]

Scenes: stack (ten boxes), dominoes (twelve), hulls (six, poured); none: the search alone. Milliseconds per environment and step, the least
of two repetitions. The search has processor times of its own, by bench_near_search.cpp, which this script compiles.
"""

from __future__ import annotations

import argparse
import itertools
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import torchdojo as td
from torchdojo.geometry.polytopes import polytope_of
from torchdojo.native import header, polytopes

FLOOR = td.Box((4.0, 4.0, 0.2), position=(0.0, 0.0, -0.1))
Start = dict[str, dict[str, tuple[float, ...]]]


def scene(shapes: dict[str, td.Shape], start: Start, slots: int, mass: float = 1.0) -> tuple[td.Mechanism, Tensor]:
    """Bodies that touch each other and the floor."""
    contacts = {}
    for name, shape in shapes.items():
        contacts.update(td.near_contacts(name, shape, None, FLOOR, slots=slots))
    for a, b in itertools.combinations(shapes, 2):
        contacts.update(td.near_contacts(a, shapes[a], b, shapes[b], slots=slots))
    mech = td.Mechanism({name: td.Body(mass, shape=shape) for name, shape in shapes.items()}, (), contacts)
    return mech, mech.initial_state(**start)


def hull(seed: int, count: int = 12, size: float = 0.05) -> td.Hull:
    points = torch.randn(count, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    points = size * points / torch.linalg.vector_norm(points, dim=-1, keepdim=True)
    return td.Hull(points - td.Hull(points).center)


def stack() -> tuple[td.Mechanism, Tensor]:
    box, names = td.Box((0.1, 0.1, 0.1)), [f"box{i}" for i in range(10)]
    return scene(dict.fromkeys(names, box), {name: {"position": (0, 0, 0.0505 + 0.1005 * i)} for i, name in enumerate(names)}, 16)


def dominoes() -> tuple[td.Mechanism, Tensor]:
    box, names = td.Box((0.02, 0.06, 0.12)), [f"domino{i}" for i in range(12)]
    start: Start = {name: {"position": (0.06 * i, 0, 0.0602)} for i, name in enumerate(names)}
    start[names[0]]["angular_velocity"] = (0, 4.0, 0)
    return scene(dict.fromkeys(names, box), start, 16, 0.15)


def hulls() -> tuple[td.Mechanism, Tensor]:
    shapes: dict[str, td.Shape] = {f"hull{i}": hull(i) for i in range(6)}
    start: Start = {name: {"position": (0.01 * i, 0, 0.1 + 0.12 * i), "velocity": (0, 0, -4.0)} for i, name in enumerate(shapes)}
    return scene(shapes, start, 48, 0.3)


def least(run: Callable[[], object], repetitions: int = 2) -> float:
    times = []
    for _ in range(repetitions):
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    return min(times)


def mujoco_step(mech: td.Mechanism, z: Tensor, steps: int) -> float | None:
    """Seconds per step of MuJoCo from this state; None without MuJoCo."""
    try:
        import mujoco
    except ImportError:
        return None
    spec = mujoco.MjSpec()
    spec.option.timestep = float(mech.timestep)
    spec.worldbody.add_geom(type=mujoco.mjtGeom.mjGEOM_BOX, size=[2, 2, 0.1], pos=[0, 0, -0.1])
    for state, (name, body) in zip(z.view(-1, 13), mech.bodies.items(), strict=True):
        there = spec.worldbody.add_body(name=name, pos=state[:3].tolist(), quat=state[6:10].tolist())
        there.add_freejoint()
        shape = body.shapes[0]
        if isinstance(shape, td.Box):
            there.add_geom(type=mujoco.mjtGeom.mjGEOM_BOX, size=(0.5 * shape.size).tolist(), mass=float(body.mass))
        else:
            assert isinstance(shape, td.Hull)
            spec.add_mesh(name=f"{name}_mesh", uservert=shape.vertices.flatten().tolist())
            there.add_geom(type=mujoco.mjtGeom.mjGEOM_MESH, meshname=f"{name}_mesh", mass=float(body.mass))
    model = spec.compile()
    data = mujoco.MjData(model)
    data.qvel[:] = torch.cat([torch.cat((s[3:6], s[10:13])) for s in z.view(-1, 13)]).numpy()
    begin = time.perf_counter()
    mujoco.mj_step(model, data, nstep=steps)
    return (time.perf_counter() - begin) / steps


def search_times() -> None:
    """Microseconds of the search for near terms, per environment: must / aim of issue 39, then what this machine takes."""
    print(
        "must / aim: broad phase of 3,000 pairs 3 / 1.5 us, warm nearest points 1 / 0.3, terms of boxes 4 / 1, of hulls 30 / 8", flush=True
    )
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if compiler is None:
        raise SystemExit("bench_near_contacts: needs a C++ compiler; CXX names one")
    here = Path(__file__).parent
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / header.NAME).write_text(header.text())
        np.array(polytopes.words([polytope_of(td.Box((0.1, 0.1, 0.1))), polytope_of(hull(0, 64))]), dtype=np.int32).tofile(
            f"{folder}/cores"
        )
        program, include = f"{folder}/search", here.parent / "torchdojo" / "native" / "src"
        options = ("-std=c++17", "-O3", "-march=native", f"-I{folder}", f"-I{include}", "-o", program)
        subprocess.run([compiler, *options, str(here / "bench_near_search.cpp")], check=True)
        subprocess.run([program, f"{folder}/cores"], check=True)


def main() -> None:
    scenes = {"stack": stack, "dominoes": dominoes, "hulls": hulls}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenes", nargs="*", metavar="scene", help="default: all")
    parser.add_argument("--batch", nargs="+", type=int, default=[1, 16, 256])
    parser.add_argument("--steps", type=int, default=20)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    search_times()
    for name in [name for name in asked.scenes or scenes if name != "none"]:
        mech, z = scenes[name]()
        beside = mujoco_step(mech, z, asked.steps)
        for batch in asked.batch:
            states = z.expand(batch, -1).contiguous()
            path = mech.rollout(states, steps=asked.steps)
            took = least(lambda states=states, mech=mech: mech.rollout(states, steps=asked.steps))  # type: ignore[misc]
            own = 1e3 * took / (asked.steps * batch)
            text = "" if beside is None else f", MuJoCo {1e3 * beside:.3f} ms, ratio {own / (1e3 * beside):.1f}"
            print(
                f"{name}, batch {batch}: {own:.3f} ms{text}; flagged {int((path.status != 0).sum())} of {path.status.numel()}", flush=True
            )


if __name__ == "__main__":
    main()
