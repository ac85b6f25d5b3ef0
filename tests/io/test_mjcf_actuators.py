"""Actuators of MJCF files against MuJoCo's own steps."""

from __future__ import annotations

import math
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from stripped import stripped
from test_mjcf_robots import ROBOTS, path_of
from torch import Tensor

from conftest import shared_path
from torchdojo.io import load, mjcf_state, read_mjcf
from torchdojo.mechanism import Mechanism
from torchdojo.solver.options import SolverOptions, Status

mujoco = pytest.importorskip("mujoco")

# b runs backwards against a; a and s are not at zero where the file draws them
ARM = """<mujoco><compiler angle="radian" autolimits="true"/><option timestep="1e-4" integrator="implicitfast" {option}/><worldbody>
<body pos="0 0 1"><joint name="a" axis="0 1 0" ref=".3" damping=".1" {a}/><geom type="capsule" size=".04" fromto="0 0 0 .5 0 0"/>
<body pos=".5 0 0"><joint name="b" axis="0 -1 0" armature=".01"/><geom type="capsule" size=".03" fromto="0 0 0 .4 0 0"/>
<body pos=".4 0 0"><joint name="s" type="slide" axis="1 0 0" ref="-.1"/><geom type="box" size=".1 .05 .05" pos=".05 0 0"/></body>
</body></body></worldbody><actuator>{actuators}</actuator></mujoco>"""


def write(tmp_path: Path, actuators: str, option: str = "", a: str = "") -> Path:
    path = tmp_path / "arm.xml"
    path.write_text(ARM.format(actuators=actuators, option=option, a=a))
    return path


def quiet(path: Path, **options: Any) -> Mechanism:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return load(path, contacts=None, **options)


def held(path: Path, ctrl: list[float], servos: str = "implicitfast", duration: float = 0.1) -> tuple[float, float, np.ndarray]:
    """Hold a control from rest in a random configuration, in MuJoCo and here.

    Returns the largest differences of coordinates relative to the largest motion, and of rates relative to the largest rate. The forces at
    the end are MuJoCo's.
    """
    mech, info = quiet(path, servos=servos), read_mjcf(path)
    mech.options = SolverOptions(residual_tol=1e-11, kappa=1e-9)
    model = info.compiled.model
    data = mujoco.MjData(model)
    data.qpos[:] = model.qpos0 + np.random.default_rng(0).uniform(-0.3, 0.3, model.nv)
    data.ctrl[:] = ctrl
    z = mjcf_state(mech, info, qpos=data.qpos)
    steps = round(duration / model.opt.timestep)
    for _ in range(steps):
        mujoco.mj_step(model, data)
    controls = torch.tensor(ctrl, dtype=torch.float64)
    path_z = mech.rollout(z, lambda z: mech.actuators(controls, z), steps=steps)
    assert (path_z.status == int(Status.SUCCESS)).all()
    (start, _), (q, qd) = mech.to_minimal(z), mech.to_minimal(path_z.z[-1])
    expected, rates = mech.to_minimal(mjcf_state(mech, info, qpos=data.qpos, qvel=data.qvel))
    error = (q - expected).abs().max() / (expected - start).abs().max()
    return float(error), float((qd - rates).abs().max() / rates.abs().max()), data.actuator_force


MOTORS = (
    '<motor name="ma" joint="a" gear="3" ctrlrange="-1 1"/><motor name="mb" joint="b" gear="-2" armature=".02" damping=".1"/>'
    '<motor name="ms" joint="s" gear="5" forcerange="-1 .5"/>'
)
SERVOS = (
    '<position name="pa" joint="a" gear="3" kp="20" kv="2"/><position name="pb" joint="b" gear="-2" kp="10" kv="1"/>'
    '<position name="ps" joint="s" gear="5" kp="30" kv=".5"/>'
)
VELOCITY = (
    '<velocity name="va" joint="a" gear="3" kv="2"/><velocity name="vb" joint="b" gear="-2" kv=".5"/>'
    '<velocity name="vs" joint="s" gear="5" kv="3"/>'
)
MIXED = (
    '<damper name="da" joint="a" gear="3" kv=".5" ctrlrange="0 2"/><motor name="ma" joint="a" gear="2"/>'
    '<general name="gb" joint="b" gear="-2" gaintype="affine" gainprm="1 2 .1" biastype="affine" biasprm=".5 -3 -.2"/>'
)
CLIPPED = (
    '<position name="pa" joint="a" gear="3" kp="20" kv="2" forcerange="-3 3"/>'
    '<position name="pb" joint="b" gear="-2" kp="10" kv="1" ctrlrange="-.2 .2"/>'
    '<velocity name="vs" joint="s" gear="5" kv="3" forcerange="-2 1"/>'
)


@pytest.mark.parametrize(
    ("actuators", "ctrl"),
    [
        (MOTORS, [2.0, -0.7, 0.3]),
        (SERVOS, [0.5, 0.7, -0.3]),
        (VELOCITY, [0.5, 0.7, -0.3]),
        (SERVOS.replace("/>", ' ctrlrange="-.2 .3"/>'), [0.5, 0.7, -0.3]),
    ],
    ids=["motors", "position", "velocity", "ctrlrange"],
)
def test_like_mujoco(tmp_path: Path, actuators: str, ctrl: list[float]) -> None:
    position, velocity, _ = held(write(tmp_path, actuators), ctrl)
    assert max(position, velocity) <= 1e-4


def test_affine_gains_like_mujoco(tmp_path: Path) -> None:
    """A gain that depends on the velocity is explicit here, as everything is in MuJoCo's integrator "Euler" without joint damping."""
    path = write(tmp_path, MIXED)
    path.write_text(path.read_text().replace("implicitfast", "Euler"))
    assert max(held(path, [1.5, 0.4, 0.7], "explicit")[:2]) <= 1e-4


def test_like_mujoco_where_forces_are_clipped(tmp_path: Path) -> None:
    """Explicit as close as without; implicit servos have h d more inertia there, an error of first order in h."""
    path, ctrl = write(tmp_path, CLIPPED), [0.9, 0.7, -3.0]
    position, velocity, force = held(path, ctrl, "explicit")
    assert force[[0, 2]].tolist() == [-3.0, -2.0]
    assert max(position, velocity) <= 1e-4
    coarse = held(path, ctrl, "implicitfast", duration=0.03)[:2]
    assert max(coarse) <= 6e-3
    path.write_text(path.read_text().replace('"1e-4"', '"2e-5"'))
    fine = held(path, ctrl, "implicitfast", duration=0.03)[:2]
    assert fine[0] == pytest.approx(coarse[0] / 5, rel=0.1)


def test_implicit_servos_converge_to_mujoco(tmp_path: Path) -> None:
    """Forces are clipped or not: position servos at the next configuration differ from MuJoCo's by a first order in h."""
    for actuators in (SERVOS, CLIPPED):
        path, errors = write(tmp_path, actuators), []
        for h in ("4e-4", "1e-4"):
            path.write_text(re.sub(r'timestep="[^"]*"', f'timestep="{h}"', path.read_text()))
            errors.append(max(held(path, [0.5, 0.7, -3.0], "implicit", duration=0.02)[:2]))
        assert errors[0] <= 0.03
        assert errors[1] <= 0.3 * errors[0]


def test_force_range_of_the_joint(tmp_path: Path) -> None:
    pair = '<motor name="a1" joint="a" gear="3"/><position name="a2" joint="a" kp="20"/>'
    path = write(tmp_path, pair, a='actuatorfrcrange="-1 2"')
    assert quiet(path, servos="implicitfast").actuators.inputrange.tolist() == [[-1.0, 2.0]]
    joint = quiet(path).joints["a"]  # MuJoCo clips the sum, and so does the joint
    assert (float(joint.servo_lower), float(joint.servo_upper)) == (-1.0, 2.0)
    position, velocity, force = held(path, [5.0, 1.0])
    assert 3 * force[0] + force[1] > 2
    assert max(position, velocity) <= 1e-4


def test_numbers_of_the_file(tmp_path: Path) -> None:
    info, mech = read_mjcf(write(tmp_path, CLIPPED + MOTORS)), quiet(write(tmp_path, CLIPPED + MOTORS), servos="implicitfast")
    module, signs = mech.actuators, [sign for entries in info.coordinates.values() for _, sign in entries]
    assert module.names == ("pa", "pb", "vs", "ma", "mb", "ms")
    assert module.joints == ("a", "b", "s", "a", "b", "s")
    assert module.gear.tolist() == (np.array([3.0, -2, 5, 3, -2, 5]) * [*signs, *signs]).tolist()
    assert module.gain[:, 0].tolist() == [20.0, 10, 3, 1, 1, 1]
    assert module.bias[:3].tolist() == [[0.0, -20, -2], [0.0, -10, -1], [0.0, 0, -3]]
    assert module.length0.tolist() == pytest.approx([0.9, 0.0, -0.5, 0.9, 0.0, -0.5])
    assert module.ctrlrange[1].tolist() == [-0.2, 0.2]
    assert module.forcerange[[0, 5]].tolist() == [[-3.0, 3.0], [-1.0, 0.5]]
    joints = mech.joints
    assert [float(joints[name].damper) for name in "abs"] == pytest.approx([0.1 + 9 * 2, 4 * 1 + 4 * 0.1, 25 * 3])
    assert float(joints["b"].armature) == pytest.approx(0.01 + 4 * 0.02)
    explicit = quiet(write(tmp_path, CLIPPED + MOTORS), servos="explicit")
    assert [float(explicit.joints[name].damper) for name in "abs"] == pytest.approx([0.1, 4 * 0.1, 0.0])
    with pytest.raises(ValueError, match=r"servos is 'soft'; allowed: 'implicit', 'implicitfast' or 'explicit'"):
        quiet(write(tmp_path, ""), servos="soft")


def test_flags_of_the_file(tmp_path: Path) -> None:
    def flagged(flag: str) -> Mechanism:
        path = write(tmp_path, CLIPPED + MOTORS)
        path.write_text(path.read_text().replace("<worldbody>", f'<option><flag {flag}="disable"/></option><worldbody>'))
        return quiet(path, servos="implicitfast")

    assert not torch.isfinite(flagged("clampctrl").actuators.ctrlrange).any()
    assert float(flagged("damper").joints["b"].damper) == 4.0  # that of the servo, which is no passive force
    assert (flagged("actuation").actuators, flagged("actuation").num_inputs) == (None, 0)


def test_what_does_not_act_is_named(tmp_path: Path) -> None:
    rest = (
        '<intvelocity name="i" joint="a" kp="3" actrange="-1 1"/><muscle name="m" joint="b" lengthrange="0 1"/>'
        '<position name="p" joint="b" kp="3" timeconst=".1"/><motor name="off" joint="s" group="3"/><motor name="on" joint="s"/>'
    )
    with pytest.warns(UserWarning) as caught:
        mech = load(write(tmp_path, rest, option='actuatorgroupdisable="3"'), contacts=None)
    text = "\n".join(str(w.message) for w in caught)
    assert "actuators with activations, on tendons and on sites of i, m, p: approximated; they act in mech.drives.step" in text
    assert mech.drives.names == ("i", "m", "p", "on") and mech.drives.activated == ("i", "m", "p")
    assert mech.load_report.of_kind("actuators of disabled groups")[0].names == ("off",)
    assert mech.actuators.names == ("on",)
    assert mech.num_inputs == 3


@pytest.mark.filterwarnings("ignore:.*(hinges become one joint|several|left out|touch nothing|do not act|does not act|keep)")
@pytest.mark.parametrize("robot", ROBOTS, ids="/".join)
def test_robots(robot: tuple[str, str]) -> None:
    """All actuators on joints act, no warning names them, and u is MuJoCo's force on the joint less what its damper carries."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        mech, clipped = (load(path_of(robot), contacts=None, servos=servos) for servos in ("implicitfast", "implicit"))
    info = read_mjcf(path_of(robot))
    model = info.compiled.model
    on_joint = [a for a in range(len(model.actuator_trntype)) if model.actuator_trntype[a] == int(mujoco.mjtTrn.mjTRN_JOINT)]
    assert not any("affine" in str(w.message) for w in caught)
    if not on_joint:
        assert mech.actuators is None
        return
    assert len(mech.actuators) == len(on_joint)
    # one coordinate of each joint: those of several hinges are their angles then
    free = {entries[0][0] for entries in info.coordinates.values() if entries}
    generator, data = np.random.default_rng(0), mujoco.MjData(model)
    data.qpos[:], controls = model.qpos0, np.zeros(len(on_joint))
    for j in range(model.njnt):
        if model.joint(j).name in free and model.jnt_type[j] != mujoco.mjtJoint.mjJNT_FREE:
            data.qpos[model.jnt_qposadr[j]] += generator.uniform(-0.2, 0.2)
            data.qvel[model.jnt_dofadr[j]] = generator.uniform(-0.2, 0.2)
    for i, a in enumerate(on_joint):
        controls[i] = data.ctrl[a] = data.qpos[model.jnt_qposadr[model.actuator_trnid[a, 0]]] + generator.uniform(-2, 2)
    for a in set(range(len(model.actuator_trntype))) - set(on_joint):
        model.actuator_gainprm[a] = model.actuator_biasprm[a] = 0
    mujoco.mj_forward(model, data)
    z = mjcf_state(mech, info, qpos=data.qpos, qvel=data.qvel)
    u = mech.actuators(torch.as_tensor(controls), z)
    carried = torch.zeros_like(u).index_add(-1, mech.actuators.input_index, mech.actuators.carried_damping * mech.actuators.measure(z)[1])
    inputs = [entry for name in mech.input_layout for entry in info.coordinates[name]]
    for number, (label, sign) in enumerate(inputs):
        expected = sign * data.qfrc_actuator[model.jnt_dofadr[model.joint(label).id]]
        assert float(u[number] - carried[number]) == pytest.approx(expected, rel=1e-6, abs=1e-6)
    force = clipped.actuators(torch.as_tensor(controls), z) - carried  # at the rates of z, in the range of the joint
    for name, piece in clipped.input_layout.items():
        joint = clipped.joints[name]
        bounded = force[piece] if joint.servo_lower is None else force[piece].clamp(joint.servo_lower, joint.servo_upper)
        torch.testing.assert_close(bounded, (u - carried)[piece], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("robot", "reach"),
    [("unitree_a1/a1.xml", 0.1), ("unitree_go1/go1.xml", 0.1), ("franka_panda/panda.xml", 0.005), ("ur5/ur5e.xml", 0.01)],
)
def test_servos_of_robots_at_the_timestep_of_their_files(robot: str, reach: float, tmp_path: Path) -> None:
    """After half a second without clipped forces, robots agree with MuJoCo's "implicitfast".

    Targets are near the pose of the file's keyframe. The files of A1 and Go1 have another integrator. Soft constraints of MuJoCo are left
    out.
    """
    path = shared_path("models", *robot.split("/"))
    model = read_mjcf(path).compiled.model
    info = read_mjcf(path)
    mech = stripped(quiet(path, servos="implicitfast"), "limits", "friction")
    mech.gravity = (0.0, 0.0, 0.0)
    model.opt.gravity[:] = 0
    model.opt.integrator = int(mujoco.mjtIntegrator.mjINT_IMPLICITFAST)
    model.dof_frictionloss[:] = 0
    for flag in ("CONTACT", "LIMIT", "EQUALITY", "FRICTIONLOSS"):
        model.opt.disableflags |= int(getattr(mujoco.mjtDisableBit, f"mjDSBL_{flag}"))
    data = mujoco.MjData(model)
    mujoco.mj_resetDataKeyframe(model, data, 0)
    generator = np.random.default_rng(0)
    for a in range(len(model.actuator_trntype)):
        if model.actuator_trntype[a] == int(mujoco.mjtTrn.mjTRN_JOINT):
            data.ctrl[a] = data.qpos[model.jnt_qposadr[model.actuator_trnid[a, 0]]] + reach * generator.uniform(-1, 1)
        else:
            model.actuator_gainprm[a] = model.actuator_biasprm[a] = 0
    controls = torch.tensor(data.ctrl[: len(mech.actuators)])
    z = mjcf_state(mech, info, qpos=data.qpos)
    path_z = mech.rollout(z, lambda z: mech.actuators(controls, z), steps=250)
    for _ in range(250):
        mujoco.mj_step(model, data)
    forces = np.abs(data.actuator_force[: len(mech.actuators)])
    assert (forces < model.actuator_forcerange[: len(mech.actuators), 1]).all()
    assert (path_z.status == int(Status.SUCCESS)).all()
    start, moved = (mech.actuators.measure(state)[0] for state in (z, path_z.z[-1]))
    expected = mech.actuators.measure(mjcf_state(mech, info, qpos=data.qpos))[0]
    error = (moved - expected).abs().max() / (expected - start).abs().max()
    assert float(error) <= 1e-3


def test_derivatives_with_respect_to_control_and_kp(tmp_path: Path) -> None:
    """Gradients of a position servo of a file after 5 steps, against central differences."""
    path = write(tmp_path, SERVOS)
    info = read_mjcf(path)

    def final(ctrl: Tensor, kp: Tensor) -> Tensor:
        mech = quiet(path, timestep=0.01)
        mech.options = SolverOptions(residual_tol=1e-12)
        module = mech.actuators
        unit = torch.tensor([[1.0, 0, 0]], dtype=torch.float64)
        module.gain = kp[:, None] * unit
        module.bias = module.bias.detach() * torch.tensor([1.0, 0, 1]) - kp[:, None] * unit.roll(1)
        z = mjcf_state(mech, info, qpos=[0.2, -0.3, 0.1])
        path_z = mech.rollout(z, lambda z: module(ctrl, z), steps=5)
        return torch.cat(mech.to_minimal(path_z.z[-1]))

    ctrl = torch.tensor([0.5, 0.7, -0.3], dtype=torch.float64, requires_grad=True)
    kp = torch.tensor([20.0, 10.0, 30.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(final, (ctrl, kp), atol=1e-6, rtol=1e-5)


def test_infinite_effort_of_unlimited_servos(tmp_path: Path) -> None:
    mech = quiet(write(tmp_path, CLIPPED))
    assert [getattr(mech.joints[name], "effort_limit", None) for name in "abs"] == [[9.0], None, [10.0]]
    assert math.isinf(read_mjcf(write(tmp_path, CLIPPED)).drives["pb"].effort)
