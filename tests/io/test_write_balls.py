"""Joints with three rotations as balls of MJCF files: the same motion, drives, sensors and keyframes, and when hinges are written."""

from __future__ import annotations

import warnings
from pathlib import Path

import mujoco
import numpy as np
import pytest
import torch

import torchdojo as td
from torchdojo.io.mjcf.load import load_mjcf
from torchdojo.io.mjcf.write import write_mjcf

STEP = 1e-3
LAWS = {"gain_numbers": (2.0, 0.0, 0.0), "bias_numbers": (0.1, -3.0, -0.4)}
EQUAL = {"spring": 0.7, "damper": 0.05, "armature": 1e-3}  # of all three rotations


def swing() -> td.Mechanism:
    """Two links on balls, turned at zero, with a slide below; drives in axes of the child and of the parent."""
    bodies = {name: td.Body(1.0 + i, (0.01, 0.02, 0.015)) for i, name in enumerate(("upper", "lower", "cart", "sphere"))}
    turned = (0.8, 0.36, 0.48, 0.0)
    joints = {
        "shoulder": td.Spherical(None, "upper", parent_anchor=(0, 0, 1), child_anchor=(0, 0.1, 0.2), orientation_offset=turned, **EQUAL),
        "elbow": td.Spherical("upper", "lower", parent_anchor=(0, 0, -0.3), child_anchor=(0.05, 0, 0.2), damper=0.02),
        "rail": td.Prismatic(None, "cart", axis=(1, 0, 0), parent_anchor=(0, 3, 0)),
        "pin": td.Spherical("cart", "sphere", child_anchor=(0, 0, 0.2), friction=0.01),
    }
    mech = td.Mechanism(bodies, joints, timestep=STEP)
    drives = {
        "in child": td.Drive(joint="shoulder", axes="child", gear=(0.3, -0.5, 0.7), **LAWS),
        "in parent": td.Drive(joint="shoulder", axes="parent", gear=(0.1, 0.6, -0.2), **LAWS),
        "elbow": td.Drive(joint="elbow", axes="child", gear=(0.2, 0.1, 0.3), dynamics="filter", dynamics_numbers=(0.05,), **LAWS),
    }
    mech.drives = td.Drives(mech, drives)
    return mech


def loaded(text: str, folder: Path) -> td.Mechanism:
    path = folder / "swing.xml"
    path.write_text(text)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the report says that drives are explicit
        return load_mjcf(path, contacts=None, timestep=STEP)


def test_states_and_forces_come_back(tmp_path: Path) -> None:
    mech = swing()
    text, left_out = write_mjcf(mech)
    other = loaded(text, tmp_path)
    assert left_out == ["inputs.rail", "inputs.pin"]
    assert list(other.joints) == list(mech.joints)
    assert other.drives.names == mech.drives.names
    rng = torch.Generator().manual_seed(0)
    q, qd = (torch.randn(5, mech.num_coordinates, generator=rng).double() for _ in range(2))
    q[:, :3], q[:, 3:6] = 0.5 * q[:, :3], 0.5 * q[:, 3:6]
    z = mech.to_maximal(q, qd)
    ctrl, act = torch.rand(5, 20, 3, generator=rng).double(), torch.rand(5, 1, generator=rng).double()
    force, other_force = (m.drives.forces(ctrl[:, 0], act, m.to_maximal(q, qd)) for m in (mech, other))
    torch.testing.assert_close(other_force, force, rtol=0, atol=1e-10)
    path, other_path = mech.drives.rollout(z, ctrl, act), other.drives.rollout(other.to_maximal(q, qd), ctrl, act)
    assert not path.path.status.any()
    for ours, theirs in zip(mech.to_minimal(path.path.z), other.to_minimal(other_path.path.z), strict=True):
        torch.testing.assert_close(theirs, ours, rtol=0, atol=1e-8)  # rates are differences of angles over 1 ms, solved to 1e-9


def test_sensors_and_keyframes_of_balls_come_back(tmp_path: Path) -> None:
    mech = swing()
    mech.sensors["turn"] = td.Sensor("ball_quaternion", joint="elbow")
    mech.sensors["rate"] = td.Sensor("ball_angular_velocity", joint="elbow")
    mech.poses["bent"] = td.Keyframe({"elbow": {"q": (0.3, -0.8, 0.4), "qd": (1.0, -2.0, 0.5)}, "rail": {"q": 0.2}})
    text, left_out = write_mjcf(mech)
    assert left_out == ["inputs.rail", "inputs.pin"]
    other = loaded(text, tmp_path)
    z, back = mech.initial_state(pose="bent"), other.initial_state(pose="bent")
    for ours, theirs in zip(mech.to_minimal(z), other.to_minimal(back), strict=True):
        torch.testing.assert_close(theirs, ours, rtol=0, atol=1e-9)  # rates are differences of angles over 1 ms
    for name in ("turn", "rate"):
        readings = [m.read_sensors(state, names=[name]) for m, state in ((mech, z), (other, back))]
        torch.testing.assert_close(readings[1], readings[0], rtol=0, atol=1e-9)
    model = mujoco.MjModel.from_xml_string(text)
    data = mujoco.MjData(model)
    mujoco.mj_resetDataKeyframe(model, data, 0)
    mujoco.mj_forward(model, data)
    for name in mech.bodies:
        assert np.abs(data.body(name).xipos - mech.body_state(z, name).x.numpy()).max() < 1e-12


@pytest.mark.parametrize(
    "change",
    ["damper", "rest", "limits", "coordinate", "tendon", "motors"],
)
def test_hinges_are_written_where_a_ball_has_no_such_law(change: str) -> None:
    options = {"damper": {"damper": (0.1, 0.2, 0.1)}, "rest": {"spring": 1.0, "rest": (0.1, 0, 0)}, "limits": {"limits": (-1.0, 1.0)}}
    joints = {"ball": td.Spherical(None, "link", child_anchor=(0, 0, 0.2), **options.get(change, {})), "axle": td.Revolute("link", "wheel")}
    bodies = {name: td.Body(1.0, (0.01, 0.02, 0.015)) for name in ("link", "wheel")}
    tendons = {"sum": td.FixedTendon({("ball", 1): 0.3, "axle": 1.0})} if change == "tendon" else {}
    mech = td.Mechanism(bodies, joints, tendons=tendons, timestep=STEP)
    if change != "motors":
        drives = {"one": td.Drive(joint="ball", coordinate=1)} if change == "coordinate" else {"one": td.Drive(joint="axle")}
        mech.drives = td.Drives(mech, drives)
    text, _ = write_mjcf(mech)
    assert 'type="ball"' not in text
    assert [mujoco.MjModel.from_xml_string(text).joint(i).name for i in range(3)] == ["ball_0", "ball_1", "ball_2"]
