"""Robots of files with self-collision: time of loading, number of contacts, and a step beside MuJoCo's on the same file.

    python scripts/compare_self_collision.py MODELS [FILE ...] [--batch 256] [--steps 20] [--repetitions 3] [--near auto all none]

MODELS is a folder of robot files, such as the one of TORCHDOJO_SHARED. Both engines start in the same pose with small random velocities, on
the ground where the robot floats: the first keyframe of the file, with its controls, or coordinates of zero within their limits, without
inputs. MuJoCo gets what our loader adds: the ground, a floating base, mesh files. Both take the same timestep on one thread. After `steps`
steps that are not timed, the next ones are timed several times, from the same states. Times are of the processor, per environment and step:
the fastest rollout, and the fastest call of one step. `touching`: terms of ours that bear, and contacts of MuJoCo, of one environment. A
file that MuJoCo refuses has no time of MuJoCo.
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
from torchdojo.io.robot import clean_name
from torchdojo.posing import loops, placement, poses

FILES = [
    *("unitree_go1/go1.xml", "unitree_go1/go1.urdf", "unitree_a1/a1.xml", "unitree_a1/a1.urdf", "unitree_h1/h1.xml", "unitree_h1/h1.urdf"),
    *("franka_panda/panda_collision.urdf", "franka_panda/panda.urdf", "ur5/ur5e.xml", "xarm6/xarm6_robot.urdf", "atlas/atlas.urdf"),
    *("youbot/youbot.urdf", "exoskeleton/exoskeleton.urdf", "humanoid/humanoid.xml", "ant/ant.xml"),
    *("half_cheetah/half_cheetah.xml", "walker2d/walker2d_v5.xml", "hopper/hopper.xml"),
]
FIXED = ("panda", "xarm", "ur5")  # arms, whose bases do not float
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
    heads = f"{'bodies':>6s} {'contacts':>8s} {'pairs':>5s} {'touching':>11s} {'us/step':>8s} {'mujoco':>7s} {'ratio':>6s} {'one step':>9s}"
    print(f"{'file':28s} {'near':5s} {'load s':>7s} {heads}")
    for file in options.files:
        for near in options.near:
            row(options.models / file, near, options.batch, options.steps, options.repetitions)


def row(path: Path, near: str, batch: int, steps: int, repetitions: int) -> None:
    label = f"{path.name:28s} {near:5s}"
    floats = not any(name in path.name for name in FIXED)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        start = time.process_time()
        try:
            mech = td.load(path, contacts="all", near=NEAR[near], timestep=TIMESTEP, repair_inertia=True, floating_base=floats)
        except (ValueError, FileNotFoundError) as error:
            print(f"{label} not loaded: {str(error)[:90]}", flush=True)
            return
        loading = time.process_time() - start
        pose = {**poses.within_limits(mech), **(next(iter(mech.poses.values())).values if mech.poses else {})}
        z = loops.initial_state(mech, (), {}, pose)
        z = mech.place(z) if placement.movable(mech, z) else z
        ctrl = next(iter(mech.poses.values())).ctrl if mech.poses else None
    q, qd = mech.to_minimal(z)
    generator = torch.Generator().manual_seed(0)
    z = mech.to_maximal(q.expand(batch, -1), qd + 0.1 * torch.randn(batch, len(qd), generator=generator, dtype=z.dtype))
    u = z.new_zeros(batch, steps, mech.num_inputs)
    if ctrl is not None and mech.actuators is not None:
        u = mech.actuators(z.new_tensor(ctrl).expand(batch, -1), z)[:, None].expand(-1, steps, -1)
    slots = [contact for contact in mech.named_contacts().values() if isinstance(contact, NearContact)]
    pairs = len({(slot.body, slot.other, *map(id, slot.shapes)) for slot in slots})
    best, alone, flagged = math.inf, math.inf, 0
    with torch.no_grad():
        first = mech.rollout(z, u)
        z, warm = first.z[:, -1], first.solution[:, -1]
        for _ in range(repetitions):
            start = time.process_time()
            taken = mech.rollout(z, u, warm_start=warm)
            best = min(best, (time.process_time() - start) / steps)
        flagged = int((first.status != 0).sum() + (taken.status != 0).sum())
        for _ in range(repetitions):
            start = time.process_time()
            mech.step(z, u[:, 0], warm_start=warm)
            alone = min(alone, time.process_time() - start)
        out = mech.step(z[:8], u[:8, 0], warm_start=warm[:8])
        touching = float(mech.contact_report(out.z, out).active.sum()) / len(out.z)
    reference, contacts = mujoco_step(path, pose, ctrl, floats, batch, steps, repetitions)
    ours = 1e6 * best / batch
    cells = f"{loading:7.2f} {mech.num_bodies:6d} {len(mech.contacts):8d} {pairs:5d} {touching:5.1f} {contacts:5.1f}"
    print(f"{label} {cells} {ours:8.1f} {reference:7.1f} {ours / reference:6.2f} {1e6 * alone / batch:9.1f} {flagged} flagged", flush=True)


def mujoco_step(path: Path, pose: Any, ctrl: Any, floats: bool, batch: int, steps: int, repetitions: int) -> tuple[float, float]:
    """Microseconds of `mj_step` per environment, and its contacts at the end; NaN where MuJoCo refuses the file."""
    import mujoco
    import numpy as np

    try:
        model: Any = mujoco_model(path, floats)
    except ValueError:
        return math.nan, math.nan
    model.opt.timestep = TIMESTEP
    generator = np.random.default_rng(0)
    data = [mujoco.MjData(model) for _ in range(batch)]
    for one in data:
        if model.nkey:
            mujoco.mj_resetDataKeyframe(model, one, 0)
        else:
            for j in range(model.njnt):
                values = pose.get(clean_name(model.joint(j).name))
                if values is not None and model.jnt_type[j] >= int(mujoco.mjtJoint.mjJNT_SLIDE):
                    one.qpos[model.jnt_qposadr[j]] = np.ravel(values["q"])[0]
        rest(model, one)
        one.qvel[:] = 0.1 * generator.standard_normal(model.nv)
        for _ in range(steps):
            mujoco.mj_step(model, one)
    everything = mujoco.mjtState.mjSTATE_INTEGRATION
    states = [np.empty(mujoco.mj_stateSize(model, everything)) for _ in data]
    for one, state in zip(data, states, strict=True):
        mujoco.mj_getState(model, one, state, everything)
    best = math.inf
    for _ in range(repetitions):
        for one, state in zip(data, states, strict=True):
            mujoco.mj_setState(model, one, state, everything)
        start = time.process_time()
        for one in data:
            for _ in range(steps):
                mujoco.mj_step(model, one)
        best = min(best, (time.process_time() - start) / steps)
    return 1e6 * best / batch, sum(one.ncon for one in data) / batch


def mujoco_model(path: Path, floats: bool) -> Any:
    """The file with a plane and a floating base, where the robot floats, and with the mesh files of its folder."""
    import mujoco

    if path.suffix == ".xml":
        spec: Any = compile_mjcf(path).spec
    else:
        spec = mujoco.MjSpec.from_file(str(path))
        spec.strippath = False
        for mesh in spec.meshes:
            found = sorted(path.parent.rglob(Path(mesh.file).name))
            if found:
                mesh.file = str(found[0].resolve())
            else:  # meshes that only draw may be missing
                for geom in spec.geoms:
                    if geom.meshname == mesh.name:
                        spec.delete(geom)
                spec.delete(mesh)
        if floats:
            spec.worldbody.first_body().add_freejoint()
        spec.compiler.balanceinertia = True
    if floats and not any(geom.type == mujoco.mjtGeom.mjGEOM_PLANE for geom in spec.geoms):
        spec.worldbody.add_geom(type=mujoco.mjtGeom.mjGEOM_PLANE, size=(0, 0, 1))
    return spec.compile()


def rest(model: Any, data: Any) -> None:
    """Lift a robot that floats, and lower it until it touches a plane."""
    import mujoco

    free = model.njnt > 0 and model.jnt_type[0] == mujoco.mjtJoint.mjJNT_FREE
    if free:
        data.qpos[2] += 1.0
    for _ in range(4000 if free else 0):
        mujoco.mj_forward(model, data)
        if any(mujoco.mjtGeom.mjGEOM_PLANE in model.geom_type[contact.geom] for contact in data.contact):
            return
        data.qpos[2] -= 0.001


if __name__ == "__main__":
    main()
