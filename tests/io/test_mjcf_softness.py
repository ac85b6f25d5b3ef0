"""Limits, friction and armature of tendons, and equalities that yield, as MuJoCo has them: deflections, rates and reports."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest
import torch

import torchdojo as td
from torchdojo.io.mjcf.load import load_mjcf

SLIDES = """<mujoco>
  <option timestep="0.002" gravity="0 0 -9.81"><flag contact="disable"/></option>
  <worldbody>
    <site name="hook" pos="0 0.1 1"/>
    <body name="a"><joint name="x" type="slide" axis="0 0 1" {first}/><geom size="0.05" mass="2"/><site name="top" pos="0 0.1 0"/></body>
    <body name="b" pos="1 0 0"><joint name="y" type="slide" axis="0 0 -1"/><geom size="0.05" mass="0.7"/></body>
  </worldbody>
  <tendon>
    <spatial name="string" {string}><site site="hook"/><site site="top"/></spatial>
    <fixed name="left"><joint joint="x" coef="0.5"/></fixed>
    <fixed name="right"><joint joint="y" coef="2"/></fixed>
  </tendon>
  <equality>{equality}</equality>
</mujoco>"""
HELD = 'stiffness="1e5" damping="500"'
CONSTANT = "0.9 0.9 0.001"


def both(folder: Path, steps: int, *, first: str = "", string: str = "", equality: str = "", **load: Any) -> tuple[Any, Any, td.Mechanism]:
    """qpos of MuJoCo and coordinates here after a number of steps from qpos0."""
    path = folder / "model.xml"
    path.write_text(SLIDES.format(first=first, string=string, equality=equality))
    model = mujoco.MjModel.from_xml_path(str(path))
    data = mujoco.MjData(model)
    for _ in range(steps):
        mujoco.mj_step(model, data)
    mech = load_mjcf(path, **load)
    with torch.no_grad():
        out = mech.rollout(mech.initial_state(), steps=steps)
    assert not out.status.any()
    return data.qpos.copy(), mech.to_minimal(out.z[-1])[0].numpy(), mech


@pytest.mark.filterwarnings("ignore:.*what differs")
@pytest.mark.parametrize("softness", [f'solref="0.04 1.2" solimp="{CONSTANT}"', f'solref="-900 -50" solimp="{CONSTANT}"'])
@pytest.mark.parametrize("equality", [
    '<joint joint1="y" joint2="x" polycoef="0.01 0.5 0.2 0 0" {}/>',
    '<joint joint1="y" polycoef="0.1 0 0 0 0" {}/>',
    '<tendon tendon1="right" tendon2="left" polycoef="0.02 0.6 0 0 0" {}/>',
])  # fmt: skip
def test_equalities_yield_as_mujocos(equality: str, softness: str, tmp_path: Path) -> None:
    text = {"first": HELD, "equality": equality.format(softness)}
    theirs, ours, mech = both(tmp_path, 1500, soft=True, **text)
    _, rigid, other = both(tmp_path, 1500, **text)
    moved = theirs - rigid
    assert np.abs(moved).max() > 1e-3 and np.abs(ours - theirs).max() < 0.01 * np.abs(moved).max(), (theirs, ours, rigid)
    kinds = [[entry.kind for entry in m.load_report.entries] for m in (mech, other)]
    assert "equality constraints between joints" in kinds[0] and "solref and solimp of equalities" not in kinds[0]
    assert "equality constraints between joints" not in kinds[1] and "solref and solimp of equalities" in kinds[1]


STRINGS = """<mujoco>
  <option timestep="0.002" gravity="0 0 -9.81"><flag contact="disable"/></option>
  <worldbody>
    <site name="hook" pos="0 0.1 1"/><site name="other hook" pos="1.2 0 1"/><site name="third hook" pos="1 0 0.8"/>
    <geom name="post" type="sphere" size="0.1" pos="1.1 0 0.5" contype="0" conaffinity="0"/>
    <body name="a"><joint name="x" type="slide" axis="0 0 1" {HELD}/><geom size="0.05" mass="2"/><site name="top" pos="0.2 0.1 0"/></body>
    <body name="b" pos="1 0 0"><joint name="y" type="slide" axis="0 0 1" stiffness="30" damping="20"/><geom size="0.05" mass="0.7"/>
      <site name="end"/></body>
  </worldbody>
  <tendon>
    <spatial name="left"><site site="hook"/><site site="top"/></spatial>
    <spatial name="right"><site site="other hook"/><geom geom="post"/><site site="end"/><pulley divisor="2"/><site site="third hook"/>
      <site site="end"/></spatial>
    <fixed name="sum"><joint joint="x" coef="1"/></fixed>
  </tendon>
  <equality>{equality}</equality>
</mujoco>"""


@pytest.mark.filterwarnings("ignore:.*what differs")
@pytest.mark.parametrize("equality", [
    '<tendon name="e" tendon1="right" tendon2="left" polycoef="0.02 -0.6 0 0 0" {}/>',
    '<tendon name="e" tendon1="left" tendon2="right" polycoef="-0.01 0.5 0 0 0" {}/>',
    '<tendon name="e" tendon1="right" polycoef="0.03 0 0 0 0" {}/>',
    '<tendon name="e" tendon1="right" tendon2="left" polycoef="0.02 -0.6 0.3 0.2 -0.1" {}/>',
])  # fmt: skip
def test_equalities_of_strings_yield_as_mujocos(equality: str, tmp_path: Path) -> None:
    path = tmp_path / "strings.xml"
    path.write_text(STRINGS.format(HELD=HELD, equality=equality.format(f'solref="0.04 1.2" solimp="{CONSTANT}"')))
    model = mujoco.MjModel.from_xml_path(str(path))
    data = mujoco.MjData(model)
    mujoco.mj_step(model, data, 1500)
    mech, without = load_mjcf(path, soft=True, tendons=True), load_mjcf(path, tendons=True, ignore=["e"])
    curved = "-0.1" in equality
    assert ("e" in mech.tendons) is not curved and ("e" in mech.couplings) is curved
    assert "e" not in without.tendons and not without.couplings
    ours, free = (m.to_minimal(m.rollout(m.initial_state(), steps=1500).z[-1])[0].numpy() for m in (mech, without))
    held = np.abs(free - data.qpos).max()
    assert held > 1e-2 and np.abs(ours - data.qpos).max() < 1e-3 * held, (data.qpos, ours, free)
    (entry,) = mech.load_report.of_kind("equality constraints of spatial tendons")
    assert entry.did == "approximated" and not without.load_report.of_kind("equality constraints of spatial tendons")


@pytest.mark.filterwarnings("ignore:.*what differs")
@pytest.mark.parametrize(("equality", "load", "reason"), [
    ('tendon1="right" tendon2="sum"', {}, "a sum of coordinates"),
    ('tendon1="right" tendon2="sum"', {"soft": False}, "a sum of coordinates"),
    ('tendon1="right"', {"tendons": False}, r"load\(tendons=True\)"),
])  # fmt: skip
def test_equalities_of_strings_that_are_ignored(equality: str, load: dict[str, bool], reason: str, tmp_path: Path) -> None:
    path = tmp_path / "strings.xml"
    path.write_text(STRINGS.format(HELD="", equality=f'<tendon name="e" {equality}/>'))
    mech = load_mjcf(path, **{"soft": True, "tendons": True, **load})
    (entry,) = (e for e in mech.load_report.entries if e.kind == "equality constraints of spatial tendons")
    assert entry.did == "ignored" and entry.names == ("e",) and re.search(reason, entry.reason) and "e" not in mech.tendons


@pytest.mark.filterwarnings("ignore:.*what differs")
def test_limits_of_tendons_hold_as_mujocos(tmp_path: Path) -> None:
    string = f'limited="true" range="0 1.05" solreflimit="0.05 1" solimplimit="{CONSTANT}"'
    theirs, ours, mech = both(tmp_path, 2000, string=string, tendons=True)
    given = -theirs[0] - 0.05
    assert given > 1e-3 and abs(ours[0] - theirs[0]) < 0.01 * given
    assert "limits of tendons" in [entry.kind for entry in mech.load_report.entries]
    for steps in (55, 75, 100):  # it falls for 50, and the limit catches it without a bounce, sooner than MuJoCo's, which has an inertia
        theirs, ours, _ = both(tmp_path, steps, string=string, tendons=True)
        assert theirs[0] - 1e-4 < ours[0] < -0.05, (steps, theirs, ours)


@pytest.mark.filterwarnings("ignore:.*what differs")
def test_friction_and_armature_of_tendons_act_as_mujocos(tmp_path: Path) -> None:
    hard = 'solreffriction="0.004 1" solimpfriction="0.99 0.99 0.001"'
    theirs, ours, mech = both(tmp_path, 100, string=f'frictionloss="12" armature="1.5" {hard}', tendons=True)
    assert abs(ours[0] - theirs[0]) < 0.02 * abs(theirs[0]) and theirs[0] < -0.03
    tendon = mech.tendons["string"]
    assert float(tendon.friction) == 12 and float(tendon.armature) == 1.5 and tendon.limit_stiffness is None
    held = both(tmp_path, 100, string='frictionloss="25"', tendons=True)[1]
    assert abs(held[0]) < 1e-4 * 0.2 * 1.5
