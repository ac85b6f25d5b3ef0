"""Mechanisms written to MJCF: MuJoCo finds the same masses, energies and gaps, and what cannot be written is refused or told."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import torchdojo as td
from torchdojo.io.mjcf.write import write_mjcf

mujoco = pytest.importorskip("mujoco")


def crane(**bodies: Any) -> td.Mechanism:
    """A cart on a rail with a hinge on it that is turned, a welded tool, and springs."""
    return td.Mechanism(
        bodies={
            "cart": td.Body(2.0, shape=td.Box((0.2, 0.1, 0.1))),
            "boom": td.Body(1.0, torch.tensor([[0.1, 0.01, 0.0], [0.01, 0.2, 0.02], [0.0, 0.02, 0.15]])),
            "tool": td.Body(0.5, (0.01, 0.01, 0.01)),
        },
        joints={
            "rail": td.Prismatic(None, "cart", axis=(0, 1, 0), parent_anchor=(0.1, 0, 1.0), limits=(-2.0, 1.5), damper=0.3),
            "pivot": td.Revolute(
                "cart", "boom", axis=(1, 1, 0), parent_anchor=(0, 0, 0.1), child_anchor=(-0.4, 0, 0), armature=0.05, friction=0.1,
                spring=7.0, rest=0.2, orientation_offset=(0.8, 0.0, 0.6, 0.0),
            ),
            "weld": td.Fixed("boom", "tool", child_anchor=(0, 0.1, 0.0)),
        },
        contacts={
            "tip": td.NonlinearContact("tool", point=(0.0, 0.1, 0.0), radius=0.02, friction=0.7),
            "wall": td.ImpactContact("boom", point=(0.3, 0, 0), normal=(0, 2, 0), offset=-0.5),
            "pair": td.ImpactContact("tool", other="cart"),
        },
        gravity=(0.0, 0.0, -9.0), timestep=1e-6,
    )  # fmt: skip


def test_masses_energies_and_gaps() -> None:
    mech = crane()
    text, left_out = write_mjcf(mech)
    assert left_out == ["pair"]  # told, since a contact of two bodies has no counterpart here
    model = mujoco.MjModel.from_xml_string(text)
    data = mujoco.MjData(model)
    assert [model.joint(i).name for i in range(model.njnt)] == ["rail", "pivot"] and model.opt.gravity[2] == -9.0
    assert model.jnt_range[0].tolist() == [-2.0, 1.5] and model.dof_damping.tolist() == [0.3, 0.0]
    assert model.dof_armature.tolist() == [0.0, 0.05] and model.dof_frictionloss.tolist() == [0.0, 0.1]
    assert model.jnt_stiffness.tolist() == [0.0, 7.0] and model.qpos_spring[1] == 0.2
    q, qd = torch.tensor([0.3, -0.7]), torch.tensor([0.4, 1.1])
    z = mech.to_maximal(q.double(), qd.double())
    data.qpos[:], data.qvel[:] = q.numpy(), qd.numpy()
    mujoco.mj_forward(model, data)
    for name in mech.bodies:
        ours = mech.body_state(z, name)
        assert np.allclose(data.body(name).xipos, ours.x, atol=1e-9)
    full = np.zeros((2, 2))
    if hasattr(data, "qM"):
        mujoco.mj_fullM(model, full, data.qM)
    else:  # MuJoCo 4
        mujoco.mj_fullM(model, data, full)
    assert 0.5 * float(qd.numpy() @ full @ qd.numpy()) == pytest.approx(float(mech.kinetic_energy(z)), rel=1e-6)  # over a step of 1 µs
    for name in ("tip", "wall"):
        geom = data.geom(name).xpos
        gap = geom[2] - 0.02 if name == "tip" else geom[1] + 0.5
        assert gap == pytest.approx(float(mech.distances(z)[list(mech.contacts).index(name)]), abs=1e-9)


def test_several_rotations_are_hinges_in_series() -> None:
    mech = td.Mechanism({"ball": td.Body(1.0, (1, 1, 1))}, {"socket": td.Spherical(None, "ball", child_anchor=(0, 0, 0.3))}, timestep=0.01)
    model = mujoco.MjModel.from_xml_string(write_mjcf(mech)[0])
    assert [model.joint(i).name for i in range(3)] == ["socket_0", "socket_1", "socket_2"]
    assert model.jnt_axis.tolist() == np.eye(3).tolist() and model.jnt_pos[0].tolist() == [0, 0, 0.3]
    td.actuate(mech, {name: td.Actuator.motor("socket", coordinate=i) for i, name in enumerate(("roll", "pitch", "yaw"))})
    assert 'name="pitch"' in write_mjcf(mech)[0]


def test_mechanisms_that_cannot_be_written() -> None:
    two = {name: td.Body(1.0, (1, 1, 1)) for name in ("a", "b")}
    free = {"root": td.Floating(None, "a"), "tether": td.Floating("a", "b")}
    with pytest.raises(
        ValueError, match=r"write_mjcf: got a mechanism with free joints between two bodies, \['tether'\]; allowed: standard"
    ):
        write_mjcf(td.Mechanism(two, free))
    loop = {"x": td.Spherical(None, "a"), "y": td.Spherical("a", "b", parent_anchor=(1, 0, 0)), "z": td.Revolute(None, "b")}
    with pytest.raises(ValueError, match=r"joints other than Spherical and Fixed that close loops, \['z'\]"):
        write_mjcf(td.Mechanism({name: td.Body(1.0, (1, 1, 1)) for name in ("a", "b")}, loop))
    mech = crane()
    mech.bodies["cart"].mass = torch.tensor([1.0, 2.0])
    with pytest.raises(ValueError, match=r"parameters of several environments, \['bodies.cart.mass'\]"):
        write_mjcf(mech)


def test_sites_and_sensors_come_back(tmp_path) -> None:
    mech = crane()
    mech.sites["hook"] = td.Site("tool", (0.0, 0.1, 0.02), (0.8, 0.6, 0.0, 0.0), size=(0.1, 0.2, 0.3), shape="box")
    mech.sites["post"] = td.Site(None, (0.0, 1.0, 0.0))
    mech.sensors["seen"] = td.Sensor("frame_position", site="hook", reference="post", noise=0.01)
    mech.sensors["axis"] = td.Sensor("frame_y_axis", site=td.Site("boom", (0.1, 0.0, 0.0)))
    mech.sensors["imu"] = td.Sensor("gyro", site="hook", cutoff=0.5)
    mech.sensors["turn"] = td.Sensor("joint_velocity", joint="pivot")
    mech.sensors["balance"] = td.Sensor("subtree_linear_velocity", body="cart")
    mech.sensors["scaled"] = td.Sensor("joint_position", joint="pivot", scale=2.0)
    mech.sensors["sum"] = td.Sensor("subtree_linear_momentum")
    text, left_out = write_mjcf(mech)
    assert left_out == ["pair", "sensors.scaled", "sensors.sum"]
    path = tmp_path / "crane.xml"
    path.write_text(text)
    other = td.load(path, merge_fixed_joints=False, contacts=None, timestep=1e-6)
    assert set(other.sites) == {"post", "hook", "axis_site"}
    assert other.sites["hook"].shape == "box" and other.sites["hook"].size.tolist() == [0.1, 0.2, 0.3]
    assert other.sensors["seen"].noise == 0.01 and other.sensors["imu"].cutoff == 0.5
    q, qd = torch.tensor([0.3, -0.7]).double(), torch.tensor([0.4, 1.1]).double()
    names = list(other.sensors)
    assert names == [name for name in mech.sensors if f"sensors.{name}" not in left_out]
    ours, theirs = (one.read_sensors(one.to_maximal(q, qd), names=names) for one in (mech, other))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-7)  # rates over 1 µs have few digits
