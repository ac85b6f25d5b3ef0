#!/usr/bin/env python
"""Stability and accuracy of springs and servos: explicit, implicit, and beside MuJoCo.

    scripts/bench_servos.py               # springs, the standing quadruped, arms beside MuJoCo (needs mujoco and shared models)
    scripts/bench_servos.py --no-mujoco

Springs: largest energy over the energy at the start, and the distance from rest over that at the start after 20 steps, from 0.5 rad.
Quadruped: kp 100, kd 2, 5 s from its start; ± is the range of its servos [N m]. Arms: the base is held without gravity, limits of force
act, and targets of all servos are up to 0.1 rad from the file's keyframe. The number is the largest error of an angle over 0.2 s, relative
to the largest motion, against MuJoCo at h = 1e-4 s.
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import torch

import torchdojo as td
from torchdojo.elements.actuators import Servos

MODES: tuple[Servos, ...] = ("implicit", "implicitfast", "explicit")
ARMS = ("franka_panda/panda.xml", "ur5/ur5e.xml")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--no-mujoco", action="store_true")
    options = parser.parse_args()
    torch.set_default_dtype(torch.float64)
    warnings.simplefilter("ignore")
    bad = springs() + quadrupeds()
    if not options.no_mujoco:
        for arm in ARMS:
            beside_mujoco(Path(os.environ.get("TORCHDOJO_SHARED", "../shared")) / "models" / arm)
    sys.exit(1 if bad else 0)


def springs() -> int:
    print(f"{'spring [N m/rad]':>16} {'inertia':>8} {'h [s]':>6} {'':10} {'energy':>8} {'distance':>9} {'failed':>6}")
    bad = 0
    for stiffness, h in ((1e6, 0.05), (100.0, 0.01), (1.0, 0.002)):
        for implicit in (True, False):
            joint = td.Revolute(None, "body", spring=stiffness, implicit=implicit)
            mech = td.Mechanism({"body": td.Body(1.0, (1e-4, 1e-4, 1e-4))}, {"j": joint}, timestep=h, gravity=(0, 0, 0))
            path = mech.rollout(mech.to_maximal(torch.tensor([0.5])), steps=20)
            energy = mech.kinetic_energy(path.z) + mech.potential_energy(path.z)
            q, failed = mech.to_minimal(path.z)[0].abs(), int((path.status != 0).sum())
            grown, left = float(energy.max() / energy[0]), float(q[-1] / q[0])
            print(f"{stiffness:16g} {1e-4:8g} {h:6g} {'implicit' if implicit else 'explicit':10} {grown:8.2g} {left:9.2g} {failed:6}")
            bad += implicit and (failed > 0 or grown > 1 + 1e-9 or left > 0.5)
    return bad


def quadrupeds() -> int:
    print(f"\n{'quadruped':14} {'±':>5} {'h [s]':>6} {'energy [J]':>10} {'at the end':>10} {'failed':>6} {'iterations':>10}")
    bad = 0
    for bound in (None, 33.5):
        for h in (0.005, 0.02, 0.05):
            for servos in MODES:
                mech = td.models.quadruped()
                mech.timestep = h
                mech.actuators = None
                given: dict[str, Any] = {} if bound is None else {"forcerange": (-bound, bound)}
                td.actuate(mech, {name: td.Actuator.position(name, kp=100.0, kv=2.0, **given) for name in mech.input_layout}, servos)
                z = td.models.initial_state("quadruped", mech)
                targets = mech.actuators.measure(z)[0]
                path = mech.rollout(z, lambda z, m=mech, c=targets: m.actuators(c, z), steps=round(5 / h))
                energy, failed = mech.kinetic_energy(path.z), int((path.status != 0).sum())
                print(
                    f"{servos:14} {bound or 'none':>5} {h:6g} {float(energy.max()):10.3g} {float(energy[-1]):10.1g} {failed:6} "
                    f"{float(path.iterations.double().mean()):10.1f}"
                )
                bad += servos == "implicit" and (failed > 0 or float(energy.max()) > 2 or float(energy[-1]) > 1e-6)
    return bad


def beside_mujoco(path: Path, h: float = 2e-3, duration: float = 0.2, reach: float = 0.1) -> None:
    import mujoco
    import numpy as np

    from torchdojo.io import load, mjcf_state, read_mjcf

    info = read_mjcf(path)

    def path_of_mujoco(step: float) -> tuple[Any, Any]:
        """Positions after every h, and the controls."""
        model = read_mjcf(path).compiled.model
        model.opt.gravity[:], model.opt.timestep, model.dof_frictionloss[:] = 0, step, 0
        model.opt.integrator = int(mujoco.mjtIntegrator.mjINT_IMPLICITFAST)
        for flag in ("CONTACT", "LIMIT", "EQUALITY", "FRICTIONLOSS"):
            model.opt.disableflags |= int(getattr(mujoco.mjtDisableBit, f"mjDSBL_{flag}"))
        data, generator = mujoco.MjData(model), np.random.default_rng(0)
        mujoco.mj_resetDataKeyframe(model, data, 0)
        for a in range(len(model.actuator_trntype)):
            if model.actuator_trntype[a] == int(mujoco.mjtTrn.mjTRN_JOINT):
                data.ctrl[a] = data.qpos[model.jnt_qposadr[model.actuator_trnid[a, 0]]] + reach * generator.uniform(-1, 1)
            else:
                model.actuator_gainprm[a] = model.actuator_biasprm[a] = 0
        positions = [data.qpos.copy()]
        for i in range(1, round(duration / step) + 1):
            mujoco.mj_step(model, data)
            if i % round(h / step) == 0:
                positions.append(data.qpos.copy())
        return positions, data.ctrl

    fine, controls = path_of_mujoco(1e-4)
    coarse, _ = path_of_mujoco(h)
    errors = {}
    for servos in MODES:
        mech = load(path, contacts=None, servos=servos, timestep=h, gravity=(0, 0, 0))
        for joint in mech.joints.values():
            if joint.friction is not None:
                joint.friction = 0.0
        measure = mech.actuators.measure
        ctrl = torch.tensor(controls[: len(mech.actuators)])
        run = mech.rollout(mjcf_state(mech, info, qpos=fine[0]), lambda z, m=mech, c=ctrl: m.actuators(c, z), steps=len(fine) - 1)
        exact, rough = (torch.stack([measure(mjcf_state(mech, info, qpos=q))[0] for q in path]) for path in (fine, coarse))
        largest = (exact - exact[0]).abs().max()
        errors[servos] = float((measure(run.z)[0] - exact).abs().max() / largest)
        errors["MuJoCo"] = float((rough - exact).abs().max() / largest)
    print(f"\n{path.name}, h = {h:g}: " + ", ".join(f"{name} {error:.4f}" for name, error in errors.items()))


if __name__ == "__main__":
    main()
