"""Robots of `planar`, `quadrotors` and `linkages` against MuJoCo's models and Dojo's records; motors of all; drag."""

import importlib.util
import json
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

import torchdojo as td
from conftest import shared_path
from torchdojo import models
from torchdojo import quaternion as quat
from torchdojo.elements.rotors import Rotor, Rotors
from torchdojo.state.layout import split_state

ROOT = (("rootx", 1), ("rootz", 1), ("rooty", -1))
LEG = (("thigh_joint", 1), ("leg_joint", 1), ("foot_joint", 1))
# model -> file, and MuJoCo's joint and the sign of each coordinate
ROBOTS = {
    "hopper": ("hopper.xml", (*ROOT, *LEG)),
    "walker2d": ("walker2d_v5.xml", (*ROOT, *LEG, *((name.replace("_", "_left_"), sign) for name, sign in LEG))),
    "swimmer": ("swimmer.xml", tuple((name, 1) for name in ("slider1", "slider2", "free_body_rot", "motor1_rot", "motor2_rot"))),
    "reacher": ("reacher.xml", (("joint0", 1), ("joint1", 1))),
    "double_pendulum": ("inverted_double_pendulum.xml", (("slider", 1), ("hinge", 1), ("hinge2", 1))),
}
MOTORS = ["half_cheetah", "ant", "humanoid", "quadruped", "raibert_hopper", "fourbar", "quadrotor", *ROBOTS]


@pytest.fixture(params=ROBOTS)
def name(request):
    return request.param


@pytest.fixture
def reference(name, tmp_path, monkeypatch):
    """MuJoCo's model, with parts without a joint merged into their parents."""
    mujoco = pytest.importorskip("mujoco")
    gymnasium = importlib.util.find_spec("gymnasium")
    if gymnasium is None or gymnasium.origin is None:
        pytest.skip("gymnasium, which brings the files, is not installed")
    monkeypatch.chdir(tmp_path)  # MuJoCo writes its warnings to a file in the current folder
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        spec = mujoco.MjSpec.from_file(str(Path(gymnasium.origin).parent / "envs" / "mujoco" / "assets" / ROBOTS[name][0]))
        spec.compiler.fusestatic = True
        model = spec.compile()
    return mujoco, model, mujoco.MjData(model)


def qpos_of(name, model, q):
    """Our coordinates in MuJoCo's order; joints that we do not have stay at qpos0."""
    qpos, qvel_places = model.qpos0.copy(), []
    for value, (joint, sign) in zip(q.tolist(), ROBOTS[name][1], strict=True):
        qpos[model.joint(joint).qposadr[0]] = sign * value
        qvel_places.append((model.joint(joint).dofadr[0], sign))
    return qpos, qvel_places


def test_masses_and_inertias_are_those_of_mujoco(name, reference):
    mujoco, model, data = reference
    mech = models.make(name)
    count = mech.num_bodies  # the reacher's target comes last in the file
    mass, inertia = (torch.stack([getattr(body, key) for body in mech.bodies.values()]) for key in ("mass", "inertia"))
    np.testing.assert_allclose(mass, model.body_mass[1 : count + 1], rtol=1e-9)
    generator = torch.Generator().manual_seed(0)
    for scale in (0.0, 1.0, 1.0):
        q = scale * torch.randn(mech.num_coordinates, generator=generator, dtype=torch.float64)
        pose = split_state(mech.to_maximal(q)).pose
        data.qpos[:] = qpos_of(name, model, q)[0]
        mujoco.mj_kinematics(model, data)
        mujoco.mj_comPos(model, data)
        np.testing.assert_allclose(pose.x, data.xipos[1 : count + 1], rtol=0, atol=1e-9)
        axes, turned = data.ximat[1 : count + 1].reshape(-1, 3, 3), quat.rotation_matrix(pose.q)
        expected = axes @ (model.body_inertia[1 : count + 1, :, None] * axes.transpose(0, 2, 1))
        size = np.abs(expected).max(axis=(1, 2), keepdims=True)
        np.testing.assert_allclose((turned @ inertia @ turned.mT).numpy() / size, expected / size, rtol=0, atol=1e-9)


def test_joints_and_motors_are_those_of_mujoco(name, reference):
    _, model, _ = reference
    mech = models.make(name)
    places = iter(ROBOTS[name][1])
    driven = {int(model.actuator_trnid[i, 0]): model.actuator_gear[i, 0] * model.actuator_ctrlrange[i] for i in range(model.nu)}
    for label, joint in mech.joints.items():
        for i in range(joint.num_coordinates):
            theirs = model.joint(next(places)[0])
            ours = [0.0 if value is None else value for value in (joint.damper, joint.armature, joint.spring)]
            ours = [torch.as_tensor(value, dtype=torch.float64).expand(joint.num_coordinates)[i] for value in ours]
            np.testing.assert_allclose(ours, [theirs.damping[0], theirs.armature[0], np.ravel(theirs.stiffness)[0]], rtol=1e-9)
            limited = joint.limits is not None
            assert limited == bool(model.jnt_limited[theirs.id])
            if limited:
                np.testing.assert_allclose([float(bound) for bound in joint.limits], theirs.range, rtol=1e-9)
            assert (label in mech.input_layout) == (theirs.id in driven)
            if theirs.id in driven:
                effort = float(torch.as_tensor(joint.effort_limit, dtype=torch.float64).reshape(-1)[i])
                np.testing.assert_allclose([-effort, effort], driven[theirs.id], rtol=1e-9)
    assert len(mech.actuators) == model.nu
    for contact_name, contact in mech.contacts.items():
        geom = model.geom(f"{contact_name.rsplit('_', 1)[0]}_geom").id
        floor = model.geom("floor").id
        assert float(contact.friction) == max(model.geom_friction[geom, 0], model.geom_friction[floor, 0])


@pytest.mark.slow
def test_motion_is_that_of_mujoco(name, reference):
    """0.1 s from random velocities under random controls, without contact; drag of the swimmer included."""
    mujoco, model, data = reference
    h, steps = 5e-4, 200
    contact = {"contact": False} if name in ("hopper", "walker2d") else {}
    mech = models.make(name, timestep=h, limits=False, **contact)
    generator = torch.Generator().manual_seed(1)
    q = mech.to_minimal(models.initial_state(name, mech))[0] + 0.3 * torch.randn(mech.num_coordinates, generator=generator).double()
    qd = torch.randn(mech.num_coordinates, generator=generator, dtype=torch.float64)
    ctrl = 0.2 * (2 * torch.rand(len(mech.actuators), generator=generator, dtype=torch.float64) - 1)
    z = mech.to_maximal(q, qd)
    for _ in range(steps):
        z = mech.step(z, ctrl=ctrl, wrench=models.drag(mech, z) if name == "swimmer" else None).z
    moved = (mech.to_minimal(z)[0] - q).numpy()
    model.opt.timestep, model.opt.disableflags = h, int(mujoco.mjtDisableBit.mjDSBL_CONTACT | mujoco.mjtDisableBit.mjDSBL_LIMIT)
    model.opt.gravity[0] = 0.0
    data.qpos[:], places = qpos_of(name, model, q)
    for value, (place, sign) in zip(qd.tolist(), places, strict=True):
        data.qvel[place] = sign * value
    data.ctrl[:] = ctrl.numpy()
    before = data.qpos.copy()
    for _ in range(steps):
        mujoco.mj_step(model, data)
    expected = [sign * (data.qpos - before)[model.joint(joint).qposadr[0]] for joint, sign in ROBOTS[name][1]]
    np.testing.assert_allclose(moved, expected, rtol=0, atol=0.01 * np.abs(expected).max())


# -- the quadrotor -----------------------------------------------------------------------------------------------------------------------


def test_quadrotor_is_that_of_mujoco():
    pytest.importorskip("mujoco")
    from torchdojo.io import read_mjcf

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        info = read_mjcf(shared_path("models", "skydio_x2", "x2.xml"))
    mech, model = models.quadrotor(), info.compiled.model
    body, center = mech.bodies["x2"], info.bodies["x2"].center
    assert float(body.mass) == pytest.approx(model.body_mass[1], rel=1e-9)
    torch.testing.assert_close(body.inertia, torch.as_tensor(info.bodies["x2"].inertia), rtol=1e-9, atol=1e-12)
    for i, (label, rotor) in enumerate(mech.actuators.rotors.items()):
        assert model.actuator(i).name == label.replace("rotor", "thrust")
        np.testing.assert_allclose(rotor.position, model.site_pos[model.actuator_trnid[i, 0]] - center, atol=1e-9)
        np.testing.assert_allclose((*rotor.axis, 0, 0, rotor.moment), model.actuator_gear[i], atol=1e-12)
        np.testing.assert_allclose(rotor.thrust, model.actuator_ctrlrange[i])


def test_rotors_push_along_the_axes_of_the_body():
    mech = models.quadrotor(contact=False)
    z = mech.initial_state((3,), base={"q": (0.1, 0.2, 1.0, 0.3, -0.5, 0.4), "qd": (1.0, 0.0, 0.0, 0.5, 2.0, -1.0)})
    ctrl = torch.tensor([[-0.5, 0.3, 0.1, 2.0], [0.0, 0.0, 0.0, 0.0], [-1.0, -1.0, -1.0, -1.0]], dtype=torch.float64)
    thrust = 6.5 * (1 + ctrl.clamp(-1, 1))
    hubs = torch.tensor([rotor.position for rotor in mech.actuators.rotors.values()], dtype=torch.float64)
    spin = torch.tensor([-1.0, 1.0, -1.0, 1.0], dtype=torch.float64) * 0.0201
    along = torch.zeros(3, 3, dtype=torch.float64)
    along[:, 2] = thrust.sum(-1)
    torque = torch.stack((thrust @ hubs[:, 1], -thrust @ hubs[:, 0], thrust @ spin), dim=-1)
    wrench = torch.cat((quat.rotate(split_state(z).pose.q[:, 0], along), torque), dim=-1)
    torch.testing.assert_close(mech.step(z, ctrl=ctrl).z, mech.step(z, wrench=wrench).z, rtol=0, atol=1e-11)


def test_quadrotor_hovers_and_its_controls_have_gradients():
    mech = models.quadrotor(contact=False)
    z, hover = models.initial_state("quadrotor", mech), torch.full((4,), 1.325 * 9.81 / 26.0 - 1.0, dtype=torch.float64)
    moved = z
    for _ in range(20):
        moved = mech.step(moved, ctrl=hover).z
    torch.testing.assert_close(moved, z, rtol=0, atol=1e-9)
    z = mech.initial_state(base={"q": (0.1, 0.2, 1.0, 0.3, -0.5, 0.4), "qd": (1.0, 0.0, 0.0, 0.5, 2.0, -1.0)})
    assert torch.autograd.gradcheck(lambda c: mech.step(z, ctrl=c).z, (hover.clone().requires_grad_(),), eps=1e-5, atol=1e-7)
    other = mech.actuators.on(models.quadrotor())
    torch.testing.assert_close(other(hover, z), mech.actuators(hover, z))
    with pytest.raises(ValueError, match="z: not given"):
        mech.actuators(hover)


def test_rotors_need_a_free_body():
    mech = models.pendulum()
    with pytest.raises(ValueError, match=r"Rotors: got the joint 'hinge'; allowed: a Floating joint"):
        Rotors(mech, "hinge", {"a": Rotor((0, 0, 0), (0, 1))})


# -- motors and home poses of all --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("robot", MOTORS)
def test_a_control_of_one_is_the_effort_limit(robot):
    mech = models.make(robot)
    assert mech.actuators.ctrlrange.tolist() == [[-1.0, 1.0]] * len(mech.actuators)
    if robot == "quadrotor":
        return
    limits = [torch.as_tensor(j.effort_limit, dtype=torch.float64).reshape(-1) for n, j in mech.joints.items() if n in mech.input_layout]
    effort = torch.cat(limits)
    for ctrl in (1.0, -1.0, 3.0, 0.25):
        u = mech.actuators(torch.full((len(mech.actuators),), ctrl, dtype=torch.float64))
        torch.testing.assert_close(u, min(ctrl, 1.0) * effort)


def test_own_actuators_take_the_place_of_the_motors():
    mech = models.quadruped()
    td.actuate(mech, {"knee": td.Actuator.position("FR_calf_joint", kp=30.0)})
    assert mech.actuators.names == ("knee",)
    with pytest.raises(ValueError, match="already has the actuators"):
        td.actuate(mech, {"knee": td.Actuator.motor("FR_calf_joint")})


@pytest.mark.parametrize("robot", ["hopper", "walker2d", "raibert_hopper", "quadrotor"])
def test_they_stand_on_the_ground(robot):
    mech = models.make(robot)
    z = mech.initial_state(pose="home", on="ground")
    assert float(mech.distances(z).min()) == pytest.approx(0.0, abs=1e-12)
    path = mech.rollout(z, steps=20)
    assert (path.status == td.Status.SUCCESS).all()
    assert float(mech.distances(path.z[1:]).min()) > 0


# -- Dojo's linkages ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("case", "names", "mech"),
    [
        (
            "raiberthopper_h05",
            {"body1": "body", "body2": "foot", "joint1": "floating_base", "joint2": "leg"},
            models.raibert_hopper(actuated_base=True, effort=1e3),
        ),
        ("fourbar_a_h01", {}, models.fourbar(actuated=True)),
    ],
)
def test_linkages_have_the_numbers_of_dojo(case, names, mech):
    description = json.loads(shared_path("golden", f"{case}.json").read_text())
    for entry in description["bodies"]:
        body = mech.bodies[names.get(entry["name"], entry["name"])]
        assert float(body.mass) == entry["mass"]
        torch.testing.assert_close(body.inertia, torch.tensor(entry["inertia"]), rtol=3e-6, atol=1e-15)  # the URDF has six digits
    for entry in description["joints"]:
        joint = mech.joints[names.get(entry["name"], entry["name"])]
        assert (joint.parent, joint.child) == tuple(names.get(entry[key], entry[key]) for key in ("parent", "child"))
        for ours, theirs in ((joint.parent_anchor, "parent_vertex"), (joint.child_anchor, "child_vertex")):
            torch.testing.assert_close(ours, torch.tensor(entry[theirs]), rtol=0, atol=1e-15)
        if entry["name"] == "joint24":  # holds the two directions of the plane alone
            continue
        assert joint.num_inputs == entry["input_dim"]
        if joint.num_coordinates == 1:
            assert float(joint.damper) == entry["damper"]
    for entry in description["contacts"]:
        contact = mech.contacts[names[entry["body"]]]
        assert (float(contact.radius), float(contact.friction)) == (entry["radius"], entry["friction"])


def test_fourbar_moves_as_that_of_dojo_and_stays_closed():
    mech = models.fourbar()
    z = models.initial_state("fourbar", mech)
    torch.testing.assert_close(mech.initial_state(pose="home"), z)
    path = mech.rollout(z, steps=50)
    assert (path.status == td.Status.SUCCESS).all()
    assert float(mech.joint_errors(path.z).abs().max()) < 1e-8
    dojo = td.load(shared_path("models", "fourbar", "fourbar.urdf"), floating_base=False)
    order = [list(mech.bodies).index(name) for name in dojo.bodies]
    again = dojo.rollout(z.unflatten(-1, (-1, 13))[order].flatten(), steps=50)
    theirs, ours = again.z.unflatten(-1, (-1, 13)), path.z.unflatten(-1, (-1, 13))[:, order]
    torch.testing.assert_close(theirs, ours, rtol=0, atol=1e-4)  # the URDF has six digits


# -- drag --------------------------------------------------------------------------------------------------------------------------------


def test_drag_is_that_of_mujoco():
    mujoco = pytest.importorskip("mujoco")
    inertia = 'mass="3" pos="0 0 0" diaginertia=".3 .4 .5"'
    body = f'<body><freejoint/><inertial {inertia}/><geom size=".1" contype="0" conaffinity="0"/></body>'
    model = mujoco.MjModel.from_xml_string(f'<mujoco><option density="900" viscosity=".7"/><worldbody>{body}</worldbody></mujoco>')
    data = mujoco.MjData(model)
    turn = quat.normalize(torch.tensor([0.3, -0.5, 0.7, 0.1], dtype=torch.float64))
    v, w = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64), torch.tensor([3.0, 0.4, -1.0], dtype=torch.float64)
    data.qpos[3:], data.qvel[:3], data.qvel[3:] = turn, v, w
    mujoco.mj_forward(model, data)
    mech = td.Mechanism({"a": td.Body(3.0, (0.3, 0.4, 0.5))})
    z = torch.cat((torch.zeros(3, dtype=torch.float64), v, turn, w))
    np.testing.assert_allclose(models.drag(mech, z, 900.0, 0.7), data.qfrc_passive, rtol=1e-9)
    # a body whose axes are turned against its principal ones has the same drag
    about = quat.normalize(torch.tensor([0.9, 0.1, -0.3, 0.2], dtype=torch.float64))
    rotation = quat.rotation_matrix(about)
    turned = td.Mechanism({"a": td.Body(3.0, rotation.mT @ torch.diag(torch.tensor([0.3, 0.4, 0.5], dtype=torch.float64)) @ rotation)})
    z = torch.cat((torch.zeros(3, dtype=torch.float64), v, quat.multiply(turn, about), quat.inverse_rotate(about, w)))
    force, torque = models.drag(turned, z, 900.0, 0.7).split(3)
    np.testing.assert_allclose(torch.cat((force, quat.rotate(about, torque))), data.qfrc_passive, rtol=1e-9)


def test_swimmer_swims():
    """A wave along the body moves it where there is drag, and leaves its center of mass in place where there is none."""
    mech = models.swimmer(armature=False)  # the file's armature of the root's slides is a mass of its own
    mass = torch.stack([body.mass for body in mech.bodies.values()])[:, None]
    travelled = []
    for medium in (True, False):
        z = start = models.initial_state("swimmer", mech)
        for t in range(150):
            wave = torch.tensor([0.05 * t, 0.05 * t - 2.0], dtype=torch.float64).sin()
            out = mech.step(z, ctrl=wave, wrench=models.drag(mech, z) if medium else None)
            assert out.status == td.Status.SUCCESS
            z = out.z
        moved = (mass * (split_state(z).pose.x - split_state(start).pose.x)).sum(0) / mass.sum()
        travelled.append(float(moved.norm()))
    assert travelled[0] > 0.01
    assert travelled[1] < 1e-9
