"""Springs of files that are too stiff for the timestep become implicit, and the load report says so."""

from __future__ import annotations

import pytest
from mjcf_text import FLOOR, Write, Y, quiet

pytest.importorskip("mujoco")

LEG = f"""<body name="trunk" pos="0 0 1.02"><freejoint/><geom type="box" size=".2 .1 .1" mass="8" contype="0" conaffinity="0"/>
  <body name="thigh" pos="0 0 -.1"><joint name="hip" axis={Y} stiffness="20" damping="1"/>
    <geom type="capsule" fromto="0 0 0 0 0 -.4" size=".03" mass="1" contype="0" conaffinity="0"/>
    <body name="shin" pos="0 0 -.4"><joint name="knee" axis={Y} stiffness="1500" damping=".1"/>
      <geom type="capsule" fromto="0 0 0 .1 0 -.4" size=".02" mass=".5" contype="0" conaffinity="0"/>
      <geom name="foot" size=".04" pos=".1 0 -.44" mass=".2"/></body></body></body>"""


def test_a_leaf_spring(write_mjcf: Write) -> None:
    """The knee of a leg, as stiff as Cassie's leaf springs; the soft hip stays explicit, and no step on the ground is flagged."""
    path = write_mjcf(FLOOR + LEG)
    mech = quiet(path, timestep=0.01)
    (entry,) = mech.load_report.of_kind("joint springs")
    assert (entry.did, entry.effect, entry.names) == ("approximated", "structure", ("knee",))
    assert "h²k/J" in entry.reason and "timestep=" in entry.reason
    assert {name: mech.joints[name].implicit for name in ("hip", "knee")} == {"hip": False, "knee": True}
    assert not (mech.rollout(mech.initial_state(), steps=100).status != 0).any()


def test_short_steps_keep_explicit_springs(write_mjcf: Write) -> None:
    mech = quiet(write_mjcf(FLOOR + LEG), timestep=0.001)
    assert not mech.load_report.of_kind("joint springs")
    assert not any(mech.joints[name].implicit for name in ("hip", "knee"))
