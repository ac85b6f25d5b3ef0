"""Robots of files with self-collision: time of loading, number of contacts, and a step beside MuJoCo's on the same file.

    python scripts/compare_self_collision.py MODELS [FILE ...] [--batch 256] [--steps 5] [--near auto all none]

MODELS is a folder of robot files, such as the one of TORCHDOJO_SHARED. Both engines start above the ground with the same random velocities,
and take the same timestep, on one thread. Times are the fastest step, per environment. A file that MuJoCo refuses has no time of MuJoCo.
"""

from __future__ import annotations

import argparse
import math
import time
import warnings
from pathlib import Path
from typing import Any

import torch

import torchdojo as td
from torchdojo.elements.near_contact import NearContact
from torchdojo.io.mjcf.model import compile_mjcf
from torchdojo.posing import loops, placement, poses

FILES = [
    *("unitree_go1/go1.xml", "unitree_go1/go1.urdf", "unitree_a1/a1.xml", "unitree_a1/a1.urdf", "unitree_h1/h1.xml", "unitree_h1/h1.urdf"),
    *("franka_panda/panda_collision.urdf", "franka_panda/panda.urdf", "ur5/ur5e.xml", "xarm6/xarm6_robot.urdf", "atlas/atlas.urdf"),
    *("youbot/youbot.urdf", "exoskeleton/exoskeleton.urdf", "humanoid/humanoid.xml", "ant/ant.xml"),
]
TIMESTEP = 0.005  # [s]
NEAR = {"auto": "auto", "all": True, "none": False}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", type=Path)
    parser.add_argument("files", nargs="*", default=FILES)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--near", nargs="+", choices=NEAR, default=["auto"])
    options = parser.parse_args()
    torch.set_num_threads(1)
    heads = f"{'bodies':>6s} {'contacts':>8s} {'pairs':>5s} {'us/step':>9s} {'mujoco':>8s} {'ratio':>7s}"
    print(f"{'file':28s} {'near':5s} {'load s':>7s} {heads}")
    for file in options.files:
        reference = mujoco_step(options.models / file, options.batch, options.steps)
        for near in options.near:
            row(options.models / file, near, options.batch, options.steps, reference)


def row(path: Path, near: str, batch: int, steps: int, reference: float) -> None:
    label = f"{path.name:28s} {near:5s}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        start = time.perf_counter()
        try:
            mech = td.load(path, contacts="all", near=NEAR[near], timestep=TIMESTEP, repair_inertia=True)
        except (ValueError, FileNotFoundError) as error:
            print(f"{label} not loaded: {str(error)[:90]}", flush=True)
            return
        loading = time.perf_counter() - start
        z = loops.initial_state(mech, (), {}, poses.within_limits(mech))
        z = mech.place(z, 0.05) if placement.movable(mech, z) else z
    q, qd = mech.to_minimal(z)
    noise = 0.1 * torch.randn(batch, len(qd), generator=torch.Generator().manual_seed(0), dtype=z.dtype)
    z = mech.to_maximal(q.expand(batch, -1), qd + noise)
    slots = [contact for contact in mech.named_contacts().values() if isinstance(contact, NearContact)]
    pairs = len({(slot.body, slot.other, *map(id, slot.shapes)) for slot in slots})
    cells = f"{loading:7.2f} {mech.num_bodies:6d} {len(mech.contacts):8d} {pairs:5d}"
    best, flagged = math.inf, 0
    try:
        with torch.no_grad():
            out = mech.step(z)
            for _ in range(steps):
                start = time.perf_counter()
                out = mech.step(out.z, warm_start=out.solution)
                best = min(best, time.perf_counter() - start)
                flagged += int((out.status != 0).sum())
    except RuntimeError as error:
        print(f"{label} {cells} {str(error)[:80]}", flush=True)
        return
    ours = 1e6 * best / batch
    print(f"{label} {cells} {ours:9.1f} {reference:8.1f} {ours / reference:7.1f} {flagged} flagged", flush=True)


def mujoco_step(path: Path, batch: int, steps: int) -> float:
    """Microseconds of `mj_step` per environment; NaN where MuJoCo refuses the file."""
    import mujoco
    import numpy as np

    try:  # meshes that only draw may be missing
        model: Any = mujoco.MjModel.from_xml_path(str(path)) if path.suffix == ".urdf" else compile_mjcf(path).model
    except (ValueError, FileNotFoundError):
        return math.nan
    model.opt.timestep = TIMESTEP
    generator = np.random.default_rng(0)
    data = [mujoco.MjData(model) for _ in range(batch)]
    for one in data:
        one.qvel[:] = 0.1 * generator.standard_normal(model.nv)
    best = math.inf
    for _ in range(steps + 1):
        start = time.perf_counter()
        for one in data:
            mujoco.mj_step(model, one)
        best = min(best, time.perf_counter() - start)
    return 1e6 * best / batch


if __name__ == "__main__":
    main()
