"""Equality constraints between spatial tendons: rest, motion and switches beside MuJoCo, whose constraints are nearly hard."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

import torchdojo as td
from torchdojo.io.mjcf.description import read_mjcf
from torchdojo.io.mjcf.load import load_mjcf
from torchdojo.io.mjcf.state import mjcf_state

mujoco = pytest.importorskip("mujoco")

# A pendulum with a string around a post, a slide with a string over a pulley, and a box that flies on a third one.
SCENE = """
<mujoco>
  <compiler angle="radian"/>
  <option timestep="{timestep}" iterations="200" tolerance="1e-15"><flag contact="disable"/></option>
  <default><equality solref="{time} 1" solimp="0.9999 0.9999 0.001"/><joint damping="{damping}"/></default>
  <worldbody>
    <site name="hook" pos="0.3 0.1 1.3"/><site name="other hook" pos="1.2 0 1.2"/><site name="third hook" pos="1 0 0.8"/>
    <geom name="post" type="cylinder" size="0.06 0.3" pos="0.2 0 1.1" euler="1.5708 0 0"/>
    <body name="arm" pos="0 0 1"><joint name="h" axis="0 1 0"/><geom type="capsule" fromto="0 0 0 .4 0 0" size=".03" density="800"/>
      <site name="tip" pos=".35 0 .03"/></body>
    <body name="cart" pos="1 0 0.5"><joint name="s" type="slide" axis="0 0 1"/><geom type="box" size=".1 .08 .05" density="400"/>
      <site name="top" pos="0 0.02 0.05"/></body>
    <body name="box" pos="0.5 -1 1"><joint name="b" type="ball"/><geom type="box" pos="0.1 0 0" size=".16 .04 .05" density="600"/>
      <site name="grip" pos=".25 0 .05"/></body>
    <site name="far" pos="0.9 -1 1.4"/>
  </worldbody>
  <tendon>
    <spatial name="left"><site site="hook"/><geom geom="post"/><site site="tip"/></spatial>
    <spatial name="right"><site site="other hook"/><site site="top"/><pulley divisor="2"/><site site="third hook"/>
      <site site="top"/></spatial>
    <spatial name="third"><site site="far"/><site site="grip"/></spatial>
  </tendon>
  <equality>{equality}</equality>
</mujoco>"""
CASES = {
    "line": '<tendon name="e" tendon1="left" tendon2="right" polycoef="0 0.6 0 0 0"/>',
    "curve": '<tendon name="e" tendon1="right" tendon2="left" polycoef="0 0.8 0.9 -0.7 0.5"/>',
    "constant": '<tendon name="e" tendon1="third"/>',
    "two": '<tendon name="e" tendon1="left" tendon2="third" polycoef="0 -0.5 0.4 0 0"/><tendon name="f" tendon1="right"/>',
}


def written(folder: Path, equality: str, *, timestep: float = 1e-3, damping: float = 0.0) -> Path:
    path = folder / "strings.xml"
    path.write_text(SCENE.format(timestep=timestep, time=2 * timestep, damping=damping, equality=equality))
    return path


def poses(z: Tensor) -> Tensor:
    state = z.unflatten(-1, (-1, 13))
    return torch.cat((state[..., :3], state[..., 6:10] * state[..., 6:7].sign()), -1)


@pytest.mark.filterwarnings("ignore:.*what differs")
@pytest.mark.parametrize("case", CASES)
def test_strings_come_to_rest_where_those_of_mujoco_do(case: str, tmp_path: Path) -> None:
    """After 4 s with dampers, within 10 µm: MuJoCo's constraint, of impedance 0.9999, gives by less than 1 µm."""
    path = written(tmp_path, CASES[case], timestep=2e-3, damping=1.5)
    model = mujoco.MjModel.from_xml_path(str(path))
    data = mujoco.MjData(model)
    mujoco.mj_step(model, data, 2000)
    mech = load_mjcf(path, contacts=None, tendons=True)
    assert isinstance(mech.couplings["e"], td.StringCoupling)
    start = mech.initial_state()
    path_ = mech.rollout(start, steps=2000)
    robot = read_mjcf(path)
    theirs = poses(mjcf_state(mech, robot, qpos=data.qpos, qvel=0 * data.qvel))
    moved, off = (float((poses(z) - theirs).abs().max()) for z in (start, path_.z[-1]))
    print(f"{case}: {off:.1e} of {moved:.1e}")
    assert not path_.status.any() and moved > 0.02 and off < 1e-5
    assert not mech.load_report.of_kind("equality constraints of spatial tendons")


@pytest.mark.filterwarnings("ignore:.*what differs")
@pytest.mark.parametrize("case", CASES)
def test_strings_move_as_those_of_mujoco(case: str, tmp_path: Path) -> None:
    """0.1 s from rest: within 1 % of the motion at h = 1e-3, and half as far apart at half of it."""
    apart = []
    for timestep in (1e-3, 5e-4):
        path, steps = written(tmp_path, CASES[case], timestep=timestep), round(0.1 / timestep)
        mech, robot = load_mjcf(path, contacts=None, tendons=True), read_mjcf(path)
        model = robot.compiled.model
        data = mujoco.MjData(model)
        z = mech.initial_state()
        mujoco.mj_step(model, data, steps)
        out = mech.rollout(z, steps=steps)
        assert not out.status.any()
        theirs = poses(mjcf_state(mech, robot, qpos=data.qpos, qvel=data.qvel))
        moved, off = ((poses(state) - theirs).abs().max() for state in (z, out.z[-1]))
        apart.append(float(off / moved))
    print(f"{case}: {apart[0]:.1e}, {apart[1]:.1e}")
    assert apart[0] < 0.01 and apart[1] < 0.6 * apart[0]


@pytest.mark.filterwarnings("ignore:.*what differs")
def test_strings_can_be_switched(tmp_path: Path) -> None:
    """With `switches`, each has a number, which is the file's; without, inactive ones are not there."""
    equality = CASES["line"] + '<tendon name="off" tendon1="third" active="false"/>'
    path = written(tmp_path, equality)
    mech, plain = (load_mjcf(path, contacts=None, tendons=True, switches=switches) for switches in (True, False))
    assert {name: float(coupling.active) for name, coupling in mech.couplings.items()} == {"e": 1.0, "off": 0.0}
    assert list(plain.couplings) == ["e"] and plain.couplings["e"].active is None
    z = plain.initial_state()
    torch.testing.assert_close(mech.rollout(z, steps=20).z, plain.rollout(z, steps=20).z, rtol=0, atol=1e-8)
    soft = load_mjcf(path, contacts=None, tendons=True, switches=True, soft=True)
    assert soft.couplings["off"].compliance is not None and float(soft.couplings["off"].active) == 0.0
