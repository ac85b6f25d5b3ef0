"""Sensors read what MuJoCo's read, at the same state and with the same accelerations."""

from __future__ import annotations

import mujoco
import numpy as np
import pytest
import torch
from mujoco_state import differences, state_and_step
from sensor_text import random_tree

from torchdojo.io.mjcf.description import read_mjcf
from torchdojo.io.mjcf.load import load_mjcf


@pytest.mark.parametrize("seed", [0, 1, 2, 3, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 20))])
def test_sensors_of_random_trees_read_what_mujocos_do(seed, tmp_path):
    path = tmp_path / "tree.xml"
    path.write_text(random_tree(seed))
    mech, robot = load_mjcf(path, contacts=None, servos="explicit"), read_mjcf(path)
    model, rng = robot.compiled.model, np.random.default_rng(seed)
    data = mujoco.MjData(model)
    mujoco.mj_integratePos(model, data.qpos, rng.normal(size=model.nv), 0.4)
    data.qvel[:], data.ctrl[:], data.time = rng.normal(size=model.nv), rng.uniform(-1, 1, model.nu), 0.25
    mujoco.mj_forward(model, data)
    z, out = state_and_step(mech, robot, data)
    options = {"ctrl": torch.as_tensor(data.ctrl)} if mech.actuators is not None else {}
    reading = mech.read_sensors(z, out, time=0.25, **options)
    found = differences(mech, model, data, reading)
    bad = {name: (mech.sensors[name].kind, gap) for name, gap in found.items() if gap > 1e-9}
    assert not bad and len(found) == model.nsensor - len(mech.sensors.left_out) and not mech.sensors.left_out
