"""Robots of files with self-collision: time of loading, number of contacts, and a step beside MuJoCo's on the same file.

    python scripts/compare_self_collision.py MODELS [FILE ...] [--batch 256] [--steps 20] [--repetitions 3] [--near auto all none]

MODELS is a folder of robot files, such as the one of TORCHDOJO_SHARED. Both engines start on the ground with small random velocities, hold
random inputs of a size of 0.1, and take the same timestep, on one thread. MuJoCo gets the ground, too. Rollouts follow one another. Times
are of the processor, per environment and step: the fastest rollout, and the fastest call of one step. A file that MuJoCo refuses has no
time of MuJoCo.
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
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--near", nargs="+", choices=NEAR, default=["auto"])
    options = parser.parse_args()
    torch.set_num_threads(1)
    heads = f"{'bodies':>6s} {'contacts':>8s} {'pairs':>5s} {'us/step':>9s} {'mujoco':>8s} {'ratio':>7s} {'one step':>9s}"
    print(f"{'file':28s} {'near':5s} {'load s':>7s} {heads}")
    for file in options.files:
        reference = mujoco_step(options.models / file, options.batch, options.steps, options.repetitions)
        for near in options.near:
            row(options.models / file, near, options.batch, options.steps, options.repetitions, reference)


def row(path: Path, near: str, batch: int, steps: int, repetitions: int, reference: float) -> None:
    label = f"{path.name:28s} {near:5s}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        start = time.process_time()
        try:
            mech = td.load(path, contacts="all", near=NEAR[near], timestep=TIMESTEP, repair_inertia=True)
        except (ValueError, FileNotFoundError) as error:
            print(f"{label} not loaded: {str(error)[:90]}", flush=True)
            return
        loading = time.process_time() - start
        z = loops.initial_state(mech, (), {}, poses.within_limits(mech))
        z = mech.place(z) if placement.movable(mech, z) else z
    q, qd = mech.to_minimal(z)
    generator = torch.Generator().manual_seed(0)
    z = mech.to_maximal(q.expand(batch, -1), qd + 0.1 * torch.randn(batch, len(qd), generator=generator, dtype=z.dtype))
    u = 0.1 * torch.randn(batch, 1, mech.num_inputs, generator=generator, dtype=z.dtype).expand(-1, steps, -1)
    slots = [contact for contact in mech.named_contacts().values() if isinstance(contact, NearContact)]
    pairs = len({(slot.body, slot.other, *map(id, slot.shapes)) for slot in slots})
    cells = f"{loading:7.2f} {mech.num_bodies:6d} {len(mech.contacts):8d} {pairs:5d}"
    best, alone, flagged, warm = math.inf, math.inf, 0, None
    try:
        with torch.no_grad():
            for _ in range(repetitions):
                start = time.process_time()
                taken = mech.rollout(z, u, warm_start=warm)
                best = min(best, (time.process_time() - start) / steps)
                flagged += int((taken.status != 0).sum())
                z, warm = taken.z[:, -1], taken.solution[:, -1]
            for _ in range(repetitions):
                start = time.process_time()
                out = mech.step(z, u[:, 0], warm_start=warm)
                alone = min(alone, time.process_time() - start)
                z, warm = out.z, out.solution
    except RuntimeError as error:
        print(f"{label} {cells} {str(error)[:80]}", flush=True)
        return
    ours = 1e6 * best / batch
    numbers = f"{ours:9.1f} {reference:8.1f} {ours / reference:7.1f} {1e6 * alone / batch:9.1f}"
    print(f"{label} {cells} {numbers} {flagged} flagged", flush=True)


def mujoco_step(path: Path, batch: int, steps: int, repetitions: int) -> float:
    """Microseconds of `mj_step` per environment; NaN where MuJoCo refuses the file."""
    import mujoco
    import numpy as np

    try:  # meshes that only draw may be missing
        spec: Any = compile_mjcf(path).spec if path.suffix == ".xml" else mujoco.MjSpec.from_file(str(path))
        if not any(geom.type == mujoco.mjtGeom.mjGEOM_PLANE for geom in spec.geoms):
            spec.worldbody.add_geom(type=mujoco.mjtGeom.mjGEOM_PLANE, size=(0, 0, 1))
        model: Any = spec.compile()
    except (ValueError, FileNotFoundError):
        return math.nan
    model.opt.timestep = TIMESTEP
    generator = np.random.default_rng(0)
    data = [mujoco.MjData(model) for _ in range(batch)]
    for one in data:
        rest(model, one)
        one.qvel[:] = 0.1 * generator.standard_normal(model.nv)
        one.ctrl[:] = 0.1 * generator.standard_normal(model.nu)
    best = math.inf
    for _ in range(repetitions):
        start = time.process_time()
        for one in data:
            for _ in range(steps):
                mujoco.mj_step(model, one)
        best = min(best, (time.process_time() - start) / steps)
    return 1e6 * best / batch


def rest(model: Any, data: Any) -> None:
    """Lower a robot that floats until it touches a plane."""
    import mujoco

    free = model.njnt > 0 and model.jnt_type[0] == mujoco.mjtJoint.mjJNT_FREE
    for _ in range(4000 if free else 0):
        mujoco.mj_forward(model, data)
        if any(mujoco.mjtGeom.mjGEOM_PLANE in model.geom_type[contact.geom] for contact in data.contact):
            return
        data.qpos[2] -= 0.001


if __name__ == "__main__":
    main()
