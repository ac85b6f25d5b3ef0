"""Equality constraints of MJCF files: motion beside MuJoCo, whose constraints are made as hard as its timestep allows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from mjcf_text import Write, quiet
from torch import Tensor

import torchdojo as td
from torchdojo.io.mjcf.description import read_mjcf
from torchdojo.io.mjcf.state import mjcf_state

mujoco = pytest.importorskip("mujoco")

HEAD = """<compiler angle="radian"/>
<option timestep="{timestep}" iterations="200" tolerance="1e-15"><flag contact="disable"/></option>
<default><equality solref="{time} 1" solimp="0.9999 0.9999 0.001"/><geom density="800"/></default>"""
# Two arms side by side, a slide, and a free box that the left arm reaches.
WORLD = """
<body name="left" pos="0 0 1"><joint name="l1" axis="0 1 0" damping="0.05"/><geom type="capsule" fromto="0 0 0 .4 0 0" size=".03"/>
  <body name="left2" pos=".4 0 0"><joint name="l2" axis="0 1 0.2"/><geom type="capsule" fromto="0 0 0 .3 0 0" size=".02"/>
    <site name="grip" pos=".3 0 .02" euler="0.1 0.2 0.3"/></body></body>
<body name="right" pos="0 1 1"><joint name="r1" axis="0 -1 0"/><geom type="capsule" fromto="0 0 0 .4 0 .1" size=".03"/>
  <body name="right2" pos=".4 0 .1"><joint name="r2" axis="0 1 0"/><geom type="capsule" fromto="0 0 0 .3 0 0" size=".02"/></body></body>
<body name="cart" pos="0 2 1"><joint name="s" type="slide" axis="1 0 -.5"/><geom type="box" size=".1 .08 .05"/></body>
<body name="box" pos=".72 .05 1.02"><freejoint/><geom type="box" size=".06 .04 .05"/>
  <site name="handle" pos="-.02 -.05 0" euler="0.1 0.2 0.3"/></body>
"""
TENDONS = """<tendon><fixed name="sum"><joint joint="l1" coef=".5"/><joint joint="r1" coef="-.7"/></fixed>
<fixed name="other"><joint joint="r2" coef=".3"/><joint joint="s" coef="1"/></fixed></tendon>"""


def at(x: float, *coefficients: float) -> float:
    return float(np.polyval(coefficients[::-1], x))


Y = at(0.32, 0, 0.6, 0.5, 0.2)
#: constraint, qpos on it, and the type of mech.couplings["e"] or mech.joints["e"]
CASES = {
    "quartic": ('<joint name="e" joint1="r1" joint2="l1" polycoef="0 .8 .9 -.7 .5"/>',
                {"l1": 0.5, "r1": at(0.5, 0, 0.8, 0.9, -0.7, 0.5)}, td.JointCoupling),
    "quartic with an offset": ('<joint name="e" joint1="s" joint2="l2" polycoef=".1 .1 .4 .2 .3"/>',
                               {"l2": -0.6, "s": at(-0.6, 0.1, 0.1, 0.4, 0.2, 0.3)}, td.JointCoupling),
    "lock": ('<joint name="e" joint1="l2" polycoef=".3 3 2 1 1"/>', {"l2": 0.3}, td.JointLock),
    "lock of a slide": ('<joint name="e" joint1="s"/>', {}, td.JointLock),
    "tendons": ('<tendon name="e" tendon1="sum" tendon2="other" polycoef="0 .6 .5 .2 0"/>',
                {"r2": 0.4, "s": 0.2, "l1": 0.3, "r1": (0.15 - Y) / 0.7}, td.SumCoupling),
    "tendon": ('<tendon name="e" tendon1="sum"/>', {"l1": 0.7, "r1": 0.5}, td.SumCoupling),
    "connect of bodies": ('<connect name="e" body1="left2" body2="box" anchor=".3 0 0"/>', {}, td.Spherical),
    "connect of sites": ('<connect name="e" site1="grip" site2="handle"/>', {}, td.Spherical),
    "connect to the world": ('<connect name="e" body1="box" anchor=".1 .1 0"/>', {}, td.Spherical),
    "weld of bodies": ('<weld name="e" body1="left2" body2="box"/>', {}, td.Fixed),
    "weld with relpose": ('<weld name="e" body1="left2" body2="box" relpose=".32 .05 .02 1 0 0 0" anchor="0 0 0"/>', {}, td.Fixed),
    "weld at an anchor": ('<weld name="e" body1="left2" body2="box" anchor="-.1 .02 0"/>', {}, td.Fixed),
    "weld of sites": ('<weld name="e" site1="grip" site2="handle"/>', {}, td.Fixed),
}  # fmt: skip
QVEL = {"l1": 2.0, "l2": -1.5, "r1": 1.0, "r2": 2.5, "s": 0.8}


def poses(z: Tensor) -> Tensor:
    """Positions and quaternions of the bodies, (nb, 7)."""
    state = z.unflatten(-1, (-1, 13))
    return torch.cat((state[..., :3], state[..., 6:10] * state[..., 6:7].sign()), -1)


def moving(write_mjcf: Write, case: str, timestep: float) -> tuple[Path, object, object]:
    """The file, MuJoCo's model, and its data: on the constraint, with the velocities next to QVEL that stay on it."""
    constraint, places, _ = CASES[case]
    path = write_mjcf(WORLD, HEAD.format(timestep=timestep, time=2 * timestep) + TENDONS + f"<equality>{constraint}</equality>")
    model = read_mjcf(path).compiled.model
    data = mujoco.MjData(model)
    for name, value in places.items():
        data.qpos[model.joint(name).qposadr[0]] = value
    for name, rate in QVEL.items():
        data.qvel[model.joint(name).dofadr[0]] = rate
    mujoco.mj_forward(model, data)
    mass, rows = np.zeros((model.nv, model.nv)), np.zeros((data.nefc, model.nv))
    mujoco.mj_fullM(model, *((mass, data.qM) if hasattr(data, "qM") else (data, mass)))
    for column in range(model.nv):
        product = np.zeros(data.nefc)
        mujoco.mj_mulJacVec(model, data, product, np.eye(model.nv)[column])
        rows[:, column] = product
    assert np.abs(data.efc_pos).max() < 1e-12 and len(rows)
    across = np.linalg.solve(mass, rows.T)
    data.qvel[:] -= across @ np.linalg.solve(rows @ across, rows @ data.qvel)
    return path, model, data


SWITCHED = """<joint name="gear" joint1="r1" joint2="l1" polycoef="0 .8 .9 0 0" active="false"/><joint name="lock" joint1="s"/>
<weld name="grasp" body1="left2" body2="box" active="false"/><connect name="pin" body1="right2" anchor=".3 0 0"/>"""


def test_switches(write_mjcf: Write) -> None:
    """All constraints of a file can be switched, as eq_active of MuJoCo; without the option, inactive ones are not there."""
    path = write_mjcf(WORLD, HEAD.format(timestep=1e-3, time=2e-3) + f"<equality>{SWITCHED}</equality>")
    plain, mech, robot = quiet(path), quiet(path, switches=True), read_mjcf(path)
    assert list(plain.couplings) == ["lock"] and "grasp" not in plain.joints and plain.couplings["lock"].active is None
    (entry,) = plain.load_report.of_kind("equality constraints")
    assert set(entry.names) == {"gear", "grasp"} and entry.effect == "none" and "load(switches=True)" in entry.reason
    assert not mech.load_report.of_kind("equality constraints")
    switches = {name: {**mech.couplings, **mech.joints}[name] for name in ("gear", "lock", "grasp", "pin")}
    assert {name: float(element.active) for name, element in switches.items()} == {"gear": 0.0, "lock": 1.0, "grasp": 0.0, "pin": 1.0}
    model = robot.compiled.model
    data = mujoco.MjData(model)
    z = mjcf_state(mech, robot)
    torch.testing.assert_close(mech.rollout(z, steps=20).z, plain.rollout(z, steps=20).z, rtol=0, atol=1e-8)
    for active in ((1, 1, 1, 0), (0, 0, 1, 0), (0, 1, 0, 1)):  # steps of both, with one set after the other
        data.eq_active[:] = active
        for element, on in zip(switches.values(), active, strict=True):
            element.active = float(on)
        for _ in range(20):
            mujoco.mj_step(model, data)
        with torch.no_grad():
            out = mech.rollout(z, steps=20)
        assert not out.status.any()
        theirs = poses(mjcf_state(mech, robot, qpos=data.qpos, qvel=data.qvel))
        moved, off = ((poses(state) - theirs).abs().max() for state in (z, out.z[-1]))
        assert float(off) < 0.05 * float(moved)  # two first-order methods, and a start at rest
        z = out.z[-1]
        data.qpos[:], data.qvel[:] = data.qpos, data.qvel


#: what other cases have in parts
SLOW = ("quartic with an offset", "lock of a slide", "tendon", "connect to the world", "weld with relpose", "weld at an anchor")


@pytest.mark.parametrize("case", [pytest.param(case, marks=[pytest.mark.slow] * (case in SLOW)) for case in CASES])
def test_motion_is_that_of_mujoco(write_mjcf: Write, case: str) -> None:
    """0.1 s: within 1 % of the motion at h = 1e-3, and half as far apart at half of it; no line of the report is about the constraint."""
    apart = []
    for timestep in (1e-3, 5e-4):
        path, model, data = moving(write_mjcf, case, timestep)
        mech, robot, steps = quiet(path), read_mjcf(path), round(0.1 / timestep)
        element = {**mech.couplings, **mech.joints}["e"]
        assert isinstance(element, CASES[case][2])
        assert all("e" not in entry.names or "solref" in entry.kind for entry in mech.load_report.entries)
        z = mjcf_state(mech, robot, qpos=data.qpos, qvel=data.qvel)
        assert float(mech.joint_errors(z).abs().max()) < 1e-9
        with torch.no_grad():
            path_z = mech.rollout(z, steps=steps)
        assert not path_z.status.any()
        for _ in range(steps):
            mujoco.mj_step(model, data)
        theirs = poses(mjcf_state(mech, robot, qpos=data.qpos, qvel=data.qvel))
        moved, off = ((poses(state) - theirs).abs().max() for state in (z, path_z.z[-1]))
        apart.append(float(off / moved))
        free = quiet(path, ignore=("e",))
        assert float((poses(free.rollout(z, steps=steps).z[-1]) - theirs).abs().max()) > 3 * float(off)  # the constraint is felt
    print(f"{case}: {apart[0]:.1e}, {apart[1]:.1e}")
    assert apart[0] < 0.01 and apart[1] < 0.6 * apart[0]
