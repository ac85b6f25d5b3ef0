"""Mocap bodies lead what a weld or connect ties to them, as softly as MuJoCo's constraints are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from mjcf_text import quiet
from torch import Tensor

import torchdojo as td
from torchdojo import quaternion as quat
from torchdojo.io import mjcf_state, read_mjcf

mujoco = pytest.importorskip("mujoco")

SHIFT, TURN = torch.tensor([0.3, -0.2, 0.1]), torch.tensor([0.99, 0.02, 0.1, -0.09])
SOFT = 'solref=".1 .8" solimp=".9 .9 .01"'
#: constraint -> its element; the impedance does not vary with the error, which is the part that is approximated
CONSTRAINTS = {
    "weld": f'<weld name="w" body1="mo" body2="hand" {SOFT}/>',
    "weld from the hand": f'<weld name="w" body1="hand" body2="mo" {SOFT}/>',
    "weld with relpose": f'<weld name="w" body1="mo" body2="hand" relpose=".1 0 .02 1 .05 0 0" anchor=".05 0 0" torquescale="1.5" {SOFT}/>',
    "stiffness and damping": '<weld name="w" body1="mo" body2="hand" solref="-150 -20" solimp=".9 .9 .01"/>',
    "connect": f'<connect name="w" body1="mo" body2="hand" anchor=".1 0 .1" {SOFT}/>',
}


@pytest.fixture
def write_hand(tmp_path: Path) -> Callable[[str, float], Path]:
    def write(constraint: str, timestep: float) -> Path:
        path = tmp_path / "hand.xml"
        path.write_text(
            f'<mujoco><option timestep="{timestep}" integrator="implicit"/><worldbody><body name="mo" mocap="true" pos="0 .1 1"/>'
            '<body name="hand" pos="0 0 1" euler="0 10 5"><freejoint/>'
            '<geom type="box" size=".1 .2 .3" pos=".05 .02 .01" contype="0" conaffinity="0"/></body></worldbody>'
            f"<equality>{constraint}</equality></mujoco>"
        )
        return path

    return write


def follow(path: Path, timestep: float) -> tuple[Tensor, Tensor]:
    """States, ours and MuJoCo's, 0.1 s after the mocap body jumps."""
    mech, robot = quiet(path, ground=False), read_mjcf(path)
    model = robot.compiled.model
    data = mujoco.MjData(model)
    position, turn = torch.tensor(data.mocap_pos[0]), quat.normalize(TURN)
    joint = mech.joints["w"]
    joint.parent_anchor = position + SHIFT + quat.rotate(turn, joint.parent_anchor - position)
    joint.orientation_offset = quat.multiply(turn, joint.orientation_offset)
    data.mocap_pos[0] += SHIFT.numpy()
    data.mocap_quat[0] = turn.numpy()  # the file has it at identity
    steps = round(0.1 / timestep)
    mujoco.mj_step(model, data, nstep=steps)
    run = mech.rollout(mech.initial_state(), steps=steps)
    assert (run.status == 0).all()
    return run.z[-1], mjcf_state(mech, robot, qpos=data.qpos, qvel=data.qvel)


@pytest.mark.parametrize("constraint", CONSTRAINTS.values(), ids=CONSTRAINTS)
def test_a_hand_follows_as_in_mujoco(write_hand: Callable[[str, float], Path], constraint: str) -> None:
    """Both integrators are of first order, so the difference halves with h, and the extrapolated one is small: rates are of 1.5."""
    apart = []
    for timestep in (0.002, 0.001):
        ours, theirs = follow(write_hand(constraint, timestep), timestep)
        apart.append(ours - theirs)
    # The rest is of second order, and of the error sin(a/2) of a weld where a spring has a/2: 0.2 % at 0.2 rad.
    assert (2 * apart[1] - apart[0]).abs().max() < 0.01


def test_the_target_is_batched_and_differentiable(write_hand: Callable[[str, float], Path]) -> None:
    mech = quiet(write_hand(CONSTRAINTS["weld"], 0.01), ground=False)
    assert mech.tree_joints == ["floating_base"]
    assert mech.num_inputs == 0
    z = mech.initial_state()
    targets = mech.joints["w"].parent_anchor + torch.tensor([[0.0, 0.0, 0.0], [0.2, 0.0, 0.1], [-0.1, 0.3, 0.0]])
    targets.requires_grad_()
    mech.joints["w"].parent_anchor = targets
    path = mech.rollout(z, steps=150)
    assert (path.status == 0).all()
    error = path.z[:, -1, :3] - targets  # the anchor is where the hand's origin has to be; its center of mass is 5 cm beside it
    assert (error - error[:1]).abs().max() < 1e-4
    (gradient,) = torch.autograd.grad(path.z[:, -1, 0].sum(), targets)
    torch.testing.assert_close(gradient, torch.tensor([1.0, 0.0, 0.0]).expand(3, 3), rtol=0, atol=1e-3)
    still = quiet(write_hand(CONSTRAINTS["weld"], 0.01), ground=False)
    report = td.testing.check_gradients(still, still.rollout(z, steps=3).z[-1], parameters=["joints.w"])
    assert report.max_relative_error < 1e-6
    after = [mech(path.z[:, 5]).detach() for mech.options in (td.SolverOptions(), td.SolverOptions(backend="reference"))]
    torch.testing.assert_close(after[0], after[1], rtol=0, atol=1e-9)


def test_a_mocap_body_that_leads_the_world_is_left_out(write_hand: Callable[[str, float], Path]) -> None:
    mech = quiet(write_hand('<weld name="w" body1="mo"/>', 0.01), ground=False)
    assert "w" not in mech.joints
    assert [entry.kind for entry in mech.load_report.entries if entry.names == ("w",)] == ["equality constraints"]


def test_softness_without_a_floor_of_the_time_constant(write_hand: Callable[[str, float], Path]) -> None:
    """MuJoCo keeps a time constant above two steps (refsafe); k and b follow."""
    stiff, safe = (
        quiet(write_hand(f'<weld name="w" body1="mo" body2="hand" solref="{constant} 1"/>', 0.01), ground=False).joints["w"]
        for constant in (0.001, 0.02)
    )
    torch.testing.assert_close(stiff.spring, safe.spring)
    mass = 48.0
    impedance = 0.95  # MuJoCo's default
    weight = impedance / (1 - impedance) * mass
    np.testing.assert_allclose(safe.spring[:3], weight / (impedance * 0.02**2), rtol=1e-9)
    np.testing.assert_allclose(safe.damper[:3], weight * 2 / (impedance * 0.02), rtol=1e-9)
    np.testing.assert_allclose(safe.armature[:3], weight, rtol=1e-9)


def test_a_hand_on_slides(tmp_path: Path) -> None:
    """MetaWorld's arm: the hand does not turn, so the weld has no inverse inertia there. Each slide has its own mass."""
    path = tmp_path / "slides.xml"
    slides = "".join(
        f'<body name="{name}"><joint type="slide" axis="{axis}"/><geom size=".1" contype="0" conaffinity="0"/>'
        for name, axis in (("x", "1 0 0"), ("y", "0 1 0"), ("hand", "0 0 1"))
    )
    path.write_text(
        f'<mujoco><worldbody><body name="mo" mocap="true"/>{slides}</body></body></body></worldbody>'
        '<equality><weld name="w" body1="mo" body2="hand"/></equality></mujoco>'
    )
    mech = quiet(path, timestep=0.01)
    lead = mech.joints["w"]
    assert not lead.spring[3:].any()
    lead.parent_anchor = target = torch.tensor([0.1, -0.2, 0.3])
    run = mech.rollout(mech.initial_state(), steps=100)
    assert (run.status == 0).all()
    # Gravity pulls the hand down by g m / spring, less than 1 mm here.
    torch.testing.assert_close(mech.body_state(run.z[-1], "hand").x, target, rtol=0, atol=1e-3)
