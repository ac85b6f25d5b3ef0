"""Actuators on balls and free joints: MuJoCo's lengths, velocities, moments and forces, files that are written, what is refused."""

from __future__ import annotations

from pathlib import Path

import mujoco
import numpy as np
import pytest
import torch
from test_transmissions import TOLERANCE, ctrl, generalized, none, quiet, randomized, total, with_velocities

import torchdojo as td
from torchdojo.engine.drive_targets import transmission
from torchdojo.io import mjcf_state, read_mjcf
from torchdojo.io.mjcf.write import write_mjcf

LAW = 'gainprm="2" biastype="affine" biasprm="0.1 -3 -0.4"'
TEXT = f"""
<mujoco>
  <compiler angle="radian"/>
  <option timestep="0.001" gravity="0 0 0"/>
  <worldbody>
    <body name="base" pos="0.3 0.1 0.5" quat="0.9 0.1 0.2 0.3">
      <freejoint name="root"/>
      <inertial pos="0.02 0.03 -0.01" mass="2" fullinertia="0.02 0.03 0.04 0.001 0.002 0.003"/>
      <body name="arm" pos="0.1 0.2 0" quat="0.8 0.3 0.1 0.2">
        <joint name="ball" type="ball" pos="0.02 0.01 0.03"/>
        <inertial pos="0.1 0.02 0.03" quat="0.7 0.1 0.3 0.2" mass="1" diaginertia="0.01 0.02 0.015"/>
      </body>
    </body>
    <body name="lone" pos="1 0 0">
      <joint name="pendulum" type="ball"/>
      <inertial pos="0.1 0 0" mass="1" diaginertia="0.01 0.02 0.015"/>
    </body>
    <body name="box">
      <freejoint name="drone"/>
      <inertial pos="0 0 0" mass="1" diaginertia="0.01 0.02 0.015"/>
    </body>
  </worldbody>
  <actuator>
    <general name="in link" joint="ball" gear="0.3 -0.5 0.7" {LAW}/>
    <general name="at rest" jointinparent="ball" gear="0.1 0.6 -0.2" {LAW}/>
    <general name="slow" joint="pendulum" gear="0.3 -0.5 0.7" dyntype="filter" dynprm="0.05"/>
    <general name="torque" joint="root" gear="0 0 0 0.2 0.4 -0.1" {LAW}/>
    <general name="wrench" joint="root" gear="0.3 -0.5 0.7 0.2 0.4 -0.1" {LAW}/>
    <general name="in world" jointinparent="root" gear="0.3 -0.5 0.7 0.2 0.4 -0.1"/>
    <general name="thrust" joint="drone" gear="0 0 1 0 0 0.1"/>
    <general name="thrust in world" jointinparent="drone" gear="0 1 0 0.1 0 0"/>
  </actuator>
</mujoco>
"""


def written(folder: Path) -> Path:
    path = folder / "turns.xml"
    path.write_text(TEXT)
    return path


def compare(mech: td.Mechanism, model: mujoco.MjModel, between_sites: tuple[str, ...] = ()) -> None:
    """The actuators of a model with the drives of these names of a mechanism, whose bodies have the same axes.

    between_sites: those that have a length in the model alone.
    """
    drives, given = mech.drives, [model.actuator(i).name for i in range(model.nu)]
    order = [drives.names.index(name) for name in given]
    for seed in range(10):
        data = randomized(model, seed)
        z, control = mech.initial_state(), torch.zeros(len(drives.names)).double()
        for name in mech.bodies:
            state, number = mech.body_state(z, name), model.body(name).id
            state.x[:], state.q[:] = torch.as_tensor(data.xipos[number].copy()), torch.as_tensor(data.xquat[number].copy())
        z = with_velocities(mech, model, data, z)
        control[order] = ctrl(data)
        force = drives.forces(control, none(drives), z)
        data.actuator_length[[model.actuator(name).id for name in between_sites]] = 0.0
        ours = (*drives.measure(z), force)
        for value, theirs in zip(ours, (data.actuator_length, data.actuator_velocity, data.actuator_force), strict=True):
            assert np.abs(value[order].numpy() - theirs).max() < TOLERANCE
        moment = np.zeros((model.nu, model.nv))
        mujoco.mju_sparse2dense(moment, data.actuator_moment, data.moment_rownnz, data.moment_rowadr, data.moment_colind)
        for name, expected in zip(given, moment, strict=True):
            wrench = torch.zeros(6 * mech.num_bodies).double()
            for body, push, turn in transmission(mech, z, drives.drives[name])[0].wrenches:
                if body is not None:
                    place = 6 * list(mech.bodies).index(body)
                    wrench[place : place + 6] += torch.cat((push, turn))
            assert np.abs(generalized(mech, model, data, z, wrench) - expected).max() < TOLERANCE, name
        if len(order) == len(drives.names):
            all_of_them = generalized(mech, model, data, z, drives.inputs(control, none(drives), z)[1])
            assert np.abs(all_of_them - data.qfrc_actuator).max() < TOLERANCE


def test_lengths_velocities_moments_and_forces_are_mujocos(tmp_path: Path) -> None:
    model, mech = mujoco.MjModel.from_xml_string(TEXT), quiet(written(tmp_path))
    assert mech.drives.names == tuple(model.actuator(i).name for i in range(model.nu))
    assert mech.drives._lowered is not None
    assert mech.drives._lowered.table() is not None
    compare(mech, model)


def test_a_written_file_has_the_same_laws(tmp_path: Path) -> None:
    """Actuators of balls have their joints, or sites where balls become hinges. A force on a body beside its center acts between sites.

    One whose law reads the length is left out, since sites have a length and free joints have none.
    """
    mech = quiet(written(tmp_path))
    for balls in (True, False):
        text, left_out = write_mjcf(mech, balls=balls)
        assert left_out == ["drives.wrench"]
        assert ('joint="ball"' in text, 'jointinparent="ball"' in text) == (balls, balls)
        model = mujoco.MjModel.from_xml_string(text)
        assert {model.actuator(i).name for i in range(model.nu)} == set(mech.drives.names) - {"wrench"}
        compare(mech, model, between_sites=("in world",))


def test_torques_of_a_ball_balance(tmp_path: Path) -> None:
    mech = quiet(written(tmp_path))
    z = mech.to_maximal(0.5 * torch.randn(mech.num_coordinates, generator=torch.Generator().manual_seed(2)).double())
    for name in ("in link", "at rest"):
        force, torque = total(mech, z, transmission(mech, z, mech.drives.drives[name])[0].wrenches)
        assert float(force.abs().max()) == 0.0
        assert float(torque.abs().max()) < 1e-14


def test_motion_halves_its_distance_with_the_step(tmp_path: Path) -> None:
    """Contact-free motion of 0.1 s, beside MuJoCo's with the same actuators."""
    path = written(tmp_path)
    info = read_mjcf(path)
    model = info.compiled.model
    errors = []
    for h in (1e-3, 5e-4):
        model.opt.timestep = h
        data = randomized(model, 3)
        mech = quiet(path)
        mech.timestep = h
        mech.drives = td.Drives(mech, mech.drives.drives)
        z = mjcf_state(mech, info, qpos=data.qpos, qvel=data.qvel)
        count = round(0.1 / h)
        for _ in range(count):
            mujoco.mj_step(model, data)
        path_of = mech.drives.rollout(z, ctrl(data).expand(count, -1))
        expected = mjcf_state(mech, info, qpos=data.qpos)
        places = [mech.body_state(path_of.path.z[-1], name).x - mech.body_state(expected, name).x for name in mech.bodies]
        moved = torch.stack([mech.body_state(z, name).x - mech.body_state(expected, name).x for name in mech.bodies]).norm()
        errors.append(float(torch.stack(places).norm() / moved))
    assert errors[0] < 0.01
    assert errors[1] < 0.6 * errors[0]


def test_what_is_refused() -> None:
    body = {"mass": 1.0, "inertia": (0.1, 0.1, 0.1)}
    joints = {"ball": td.Spherical(None, "a"), "hinge": td.Revolute("a", "b"), "root": td.Floating(None, "c")}
    mech = td.Mechanism({name: td.Body(**body) for name in "abc"}, joints)
    with pytest.raises(ValueError, match=r"got axes='own' for coordinate 0 of a joint; allowed: 'child' or 'parent'"):
        td.Drive(joint="ball", axes="own")
    with pytest.raises(ValueError, match=r"got axes='child' for coordinate 1 of a joint"):
        td.Drive(joint="ball", axes="child", coordinate=1)
    with pytest.raises(ValueError, match=r"got axes='child' for a tendon"):
        td.Drive(tendon="string", axes="child")
    refused = {
        r"got axes='child' for the joint 'hinge', Revolute; allowed: joints with three rotations, \['ball', 'root'\]": (
            "hinge",
            (1, 0, 0),
        ),
        r"got a gear of shape \(\) for the joint 'ball' with axes='child'; allowed: \(\.\.\., 3\), a torque": ("ball", 1.0),
        r"got a gear of shape \(6,\) for the joint 'ball'": ("ball", (1, 0, 0, 0, 0, 0)),
        r"got a gear of shape \(4,\) for the joint 'root' .* or \(\.\.\., 6\), a force and a torque": ("root", (1, 0, 0, 0)),
        r"got the joint 'elbow'; joints are \['ball', 'hinge', 'root'\]": ("elbow", (1, 0, 0)),
    }
    for message, (joint, gear) in refused.items():
        with pytest.raises(ValueError, match=message):
            td.Drives(mech, {"drive": td.Drive(joint=joint, axes="child", gear=gear)})
