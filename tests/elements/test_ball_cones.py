"""Cones of balls: MuJoCo's angle and axis of the limit, rotations that stay inside, files, and what is refused."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

import torchdojo as td
from torchdojo.io import load_mjcf, mjcf_state, read_mjcf
from torchdojo.io.mjcf.write import write_mjcf

WORLD = """<mujoco><option gravity="0 0 0" timestep="1e-3"/><worldbody><body quat=".5 .5 .1 .7">
  <joint name="j" type="ball" range="0 {degrees}" damping=".01"/><inertial pos=".1 .2 -.1" mass="1" diaginertia=".2 .3 .4"/></body>
  </worldbody></mujoco>"""
ANGLE = 0.7


def ball(angle: float | torch.Tensor = ANGLE, **options: object) -> td.Mechanism:
    joint = td.Spherical(None, "b", child_anchor=(0.1, 0, 0.3), orientation_offset=(0.8, 0, 0.6, 0), cone=angle, **options)
    return td.Mechanism({"b": td.Body(1.0, (0.02, 0.03, 0.015))}, {"j": joint}, timestep=0.005)


def test_angle_and_axis_equal_mujoco(tmp_path: Path) -> None:
    mujoco = pytest.importorskip("mujoco")
    path = tmp_path / "ball.xml"
    path.write_text(WORLD.format(degrees=math.degrees(ANGLE)))
    model, info, mech = mujoco.MjModel.from_xml_path(str(path)), read_mjcf(path), load_mjcf(path, contacts=None)
    assert not [entry for entry in mech.load_report.entries if entry.effect == "motion"]
    joint = mech.joints["j"]
    assert float(joint.cone) == pytest.approx(ANGLE, abs=1e-12)
    random = np.random.default_rng(0)
    for _ in range(20):
        data, axis = mujoco.MjData(model), random.normal(size=3)
        mujoco.mj_integratePos(model, data.qpos, (1 + 0.5 * random.random()) * ANGLE * axis / np.linalg.norm(axis), 1.0)
        mujoco.mj_forward(model, data)
        assert data.nefc == 1
        q = mech.to_minimal(mjcf_state(mech, info, qpos=data.qpos))[0]
        room = joint.cone - joint.measured(q)[0]
        angle = joint.cone * (1 - 2 * room / joint.cone).sqrt()
        assert float(angle) == pytest.approx(ANGLE - data.efc_pos[0], abs=1e-10)
        along = joint.along_cone(q)
        assert np.allclose(-along / along.norm(), data.efc_J.reshape(-1)[:3], atol=1e-10)
    # At the limit, both numbers are MuJoCo's themselves.
    q = torch.tensor([0.3, -0.2, 0.5], dtype=torch.float64)
    q = ANGLE / q.norm() * q
    assert abs(float(joint.cone - joint.measured(q)[0])) < 1e-12 and float(joint.along_cone(q).norm()) == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("backend", ["auto", pytest.param("reference", marks=pytest.mark.slow)])
def test_rotations_stay_inside(backend: str) -> None:
    """Random spins: the angle of every state is at most R, it is reached, and a box would have left room for more."""
    torch.manual_seed(0)
    mech = ball()
    mech.options = td.SolverOptions(backend=backend)
    z = mech.to_maximal(0.2 * torch.randn(8, 3).clamp(-1.5, 1.5), 4 * torch.randn(8, 3))
    with torch.no_grad():
        run = mech.rollout(z, steps=100)
    angles = mech.to_minimal(run.z)[0].norm(dim=-1)
    assert not run.status.any()
    assert float(angles.max()) < ANGLE + 1e-6 and float(angles.amax(-1).min()) > ANGLE - 1e-3


def test_start_outside_comes_back() -> None:
    """What the limit sees falls by h v in the first step, v = 1 rad/s, and the ball is inside in the end."""
    mech = ball()
    mech.gravity = (0, 0, 0)
    mech.options = td.SolverOptions(kappa=1e-9)
    z = mech.to_maximal(torch.tensor([0.5, 0.7, 0.2]), torch.zeros(3))
    with torch.no_grad():
        q = mech.to_minimal(mech.rollout(z, steps=60).z)[0]
    seen = mech.joints["j"].measured(q)[:, 0]
    assert float(q[0].norm()) > 0.88 and float(q[-1].norm()) < ANGLE
    assert float(seen[0] - seen[1]) == pytest.approx(0.005, abs=1e-7)  # the slack κ/γ is on top


def test_turns_about_one_axis_are_those_of_a_box() -> None:
    """There, cone and box are one limit."""
    cone, box = ball(), ball(None, limits=(-ANGLE, ANGLE))
    z = cone.to_maximal(torch.tensor([0.0, 0.5, 0.0]), torch.tensor([0.0, 5.0, 0.0]))
    for mech in (cone, box):
        mech.gravity = (0, 0, 0)
        mech.joints["j"].child_anchor = (0, 0, 0)
        mech.options = td.SolverOptions(kappa=1e-9)  # the forces before the limit differ: their gaps do, to second order
    with torch.no_grad():
        ours, theirs = (mech.to_minimal(mech.rollout(z, steps=40).z)[0] for mech in (cone, box))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)


def test_environments_and_assignment() -> None:
    mech = ball(torch.tensor([0.3, 0.6, 0.9]))
    z = mech.to_maximal(torch.zeros(3, 3), torch.tensor([[5.0, 4.0, 3.0]]).expand(3, -1))
    with torch.no_grad():
        angles = mech.to_minimal(mech.rollout(z, steps=100).z)[0].norm(dim=-1).amax(-1)
    torch.testing.assert_close(angles, torch.tensor([0.3, 0.6, 0.9]), rtol=0, atol=1e-3)
    mech = ball()
    mech.joints["j"].cone = 0.4
    assert float(mech.joints["j"].cone) == 0.4 and float(mech.joints["j"].upper[0]) == 0.4


@pytest.mark.slow
def test_elements() -> None:
    td.testing.check_element(td.Spherical("a", "b", cone=0.7))
    bound = torch.tensor([0.4, 0.5, torch.inf, torch.inf, torch.inf])
    td.testing.check_element(td.PlanarFree("a", "b", cone=0.7, limits=(-bound, bound)))


def test_inverse_kinematics_stays_inside() -> None:
    mech = ball()
    found = mech.inverse_kinematics(td.PoseTarget("b", position=(0.6, -0.4, 0.3)))
    assert 0.1 < float(found.q.norm()) <= ANGLE + 1e-9


def test_file_and_back(tmp_path: Path) -> None:
    pytest.importorskip("mujoco")
    mech = ball(actuated=False, damper=0.02, armature=0.01)
    text, left_out = write_mjcf(mech)
    assert left_out == []
    (tmp_path / "ball.xml").write_text(text)
    other = td.load(tmp_path / "ball.xml", timestep=0.005, contacts=None)
    joint = next(iter(other.joints.values()))
    assert float(joint.cone) == ANGLE
    z = mech.to_maximal(torch.tensor([0.2, 0.3, 0.1]), torch.tensor([2.0, 1.0, -3.0]))
    with torch.no_grad():
        ours, theirs = (one.rollout(z, steps=50).z for one in (mech, other))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9)
    assert write_mjcf(ball(actuated=False, damper=(0.1, 0.2, 0.3)))[1] == ["joints.j.cone"]


@pytest.mark.parametrize(("kind", "options", "message"), [
    ("Spherical", {"cone": -1.0}, "angles above 0"),
    ("Revolute", {"cone": 1.0}, "for three"),
    ("Spherical", {"cone": 1.0, "limits": (-1.0, 1.0)}, "beside cone="),
])  # fmt: skip
def test_bad_input(kind: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        getattr(td, kind)(None, "b", **options)


def test_absent_cone() -> None:
    joint = td.Spherical(None, "b")
    assert joint.cone is None
    with pytest.raises(ValueError, match="build it with cone="):
        joint.cone = 1.0
