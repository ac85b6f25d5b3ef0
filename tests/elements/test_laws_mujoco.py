"""Laws of joints beside MuJoCo's: balls, free bodies, hinges and slides from random states, to the first order of the step."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import torchdojo as td
from torchdojo.io import load_mjcf, mjcf_state, read_mjcf

mujoco = pytest.importorskip("mujoco")

SECONDS = 0.2
STEPS = (0.004, 0.002)
RUBBING = 'frictionloss="0.1" solreffriction="0.0002 1" solimpfriction="0.9999 0.9999 0.001 0.5 2"'  # MuJoCo's hardest
TYPES = {"ball": 'type="ball"', "free": 'type="free"', "hinge": 'type="hinge" axis="1 2 3"', "slide": 'type="slide" axis="1 2 3"'}
LAWS = {"none": "", "damping": 'damping="0.5"', "stiffness": 'stiffness="0.5"', "armature": 'armature="0.02"', "friction": RUBBING}
# MuJoCo's free joint pulls its position towards where the file has it, and warns of a stiffness.
CASES = [(kind, law) for kind in TYPES for law in LAWS if (kind, law) != ("free", "stiffness")]


@pytest.mark.parametrize(("kind", "law"), CASES)
def test_motion_equals_mujoco(kind: str, law: str, tmp_path: Path) -> None:
    path = tmp_path / "body.xml"
    turned = "" if kind == "free" else 'quat=".5 .5 .1 .7"'  # friction of MuJoCo's free joint acts along the axes of the world
    path.write_text(f"""<mujoco><option gravity="0 0 0" timestep="1e-4" integrator="implicit" iterations="200" tolerance="1e-12"/>
      <worldbody><body {turned}><joint name="j" {TYPES[kind]} {LAWS[law]}/>
      <inertial pos=".1 .2 -.1" quat=".3 .4 -.2 .7" mass="1" diaginertia=".02 .03 .04"/></body></worldbody></mujoco>""")
    model, info, mech = mujoco.MjModel.from_xml_path(str(path)), read_mjcf(path), load_mjcf(path, contacts=None)
    mech.options = td.SolverOptions(kappa=1e-9)
    random, errors = np.random.default_rng(0), []
    for _ in range(4):
        data, speed = mujoco.MjData(model), 2 * random.normal(size=model.nv)
        mujoco.mj_integratePos(model, data.qpos, random.normal(size=model.nv), 1.0)
        start, data.qvel[:] = data.qpos.copy(), speed
        for _ in range(round(SECONDS / 1e-4)):
            mujoco.mj_step(model, data)
        there, row = mjcf_state(mech, info, qpos=data.qpos), []
        moved = mech.difference(there, mjcf_state(mech, info, qpos=start))[[0, 1, 2, 6, 7, 8]].norm()
        for h in STEPS:
            mech.timestep = h
            with torch.no_grad():
                run = mech.rollout(mjcf_state(mech, info, qpos=start, qvel=speed), steps=round(SECONDS / h))
            assert not run.status.any()
            row.append(float(mech.difference(run.z[-1], there)[[0, 1, 2, 6, 7, 8]].norm() / moved))
        errors.append(row)
    large, small = np.median(errors, axis=0)
    # Half of it at half the step: the start reads the velocity as that of the step before, half a step early.
    assert small < 0.007 and (small < 0.6 * large or small < 1e-5)
