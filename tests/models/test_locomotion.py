"""Half-cheetah, ant and humanoid: the numbers of Gymnasium's files as MuJoCo reads them, and steps from the start."""

import importlib.util
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

import torchdojo as td
from torchdojo import models
from torchdojo import quaternion as quat
from torchdojo.models import locomotion, unitree
from torchdojo.state.layout import split_state

TABLES = {"half_cheetah": locomotion.HALF_CHEETAH, "ant": locomotion.ANT, "humanoid": locomotion.HUMANOID}
# bodies, degrees of freedom, inputs, contacts, contacts of the feet
SIZES = {"half_cheetah": (7, 9, 6, 16, 4), "ant": (9, 14, 8, 13, 4), "humanoid": (11, 23, 17, 29, 2)}


def _hinges(name):
    return [hinge for link in TABLES[name] for hinge in link.hinges]


@pytest.fixture(params=TABLES)
def name(request):
    return request.param


@pytest.fixture
def reference(name, tmp_path, monkeypatch):
    """MuJoCo's model of the same robot, parts without a joint merged into their parents."""
    mujoco = pytest.importorskip("mujoco")
    gymnasium = importlib.util.find_spec("gymnasium")
    if gymnasium is None or gymnasium.origin is None:
        pytest.skip("gymnasium, which brings the files, is not installed")
    monkeypatch.chdir(tmp_path)  # MuJoCo writes its warnings to a file in the current folder
    warnings.filterwarnings("ignore", "compiler attribute 'settotalmass' is deprecated")
    spec = mujoco.MjSpec.from_file(str(Path(gymnasium.origin).parent / "envs" / "mujoco" / "assets" / f"{name}.xml"))
    spec.compiler.fusestatic = True
    model = spec.compile()
    return mujoco, model, mujoco.MjData(model)


def _world(mech, z):
    """Centres of mass (nb, 3) [m] and inertias in world axes (nb, 3, 3) [kg·m²]."""
    pose = split_state(z).pose
    rotation = quat.rotation_matrix(pose.q)
    inertia = torch.stack([body.inertia for body in mech.bodies.values()])
    return pose.x.numpy(), (rotation @ inertia @ rotation.mT).numpy()


def _world_of(reference, qpos):
    mujoco, model, data = reference
    data.qpos[:] = qpos
    mujoco.mj_kinematics(model, data)
    mujoco.mj_comPos(model, data)
    rotation = data.ximat[1:].reshape(-1, 3, 3)
    return data.xipos[1:].copy(), rotation @ (model.body_inertia[1:, :, None] * rotation.transpose(0, 2, 1))


def test_sizes(name):
    bodies, freedoms, inputs, contacts, feet = SIZES[name]
    mech = models.make(name)
    assert (mech.num_bodies, mech.num_coordinates, mech.num_inputs, len(mech.contacts)) == (bodies, freedoms, inputs, contacts)
    only_feet = models.make(name, contact_body=False).contacts
    assert len(only_feet) == feet
    assert all("foot" in contact for contact in only_feet)
    assert not models.make(name, contact=False).contacts


def test_masses_poses_and_inertias_are_those_of_mujoco(name, reference):
    """At zero, and with each hinge turned by itself: there our joints of two and three rotations are exactly the hinges of the file."""
    mech = models.make(name)
    mass = np.array([float(body.mass) for body in mech.bodies.values()])
    np.testing.assert_allclose(mass, reference[1].body_mass[1:], rtol=1e-12)
    root = {"half_cheetah": 3}.get(name, 6)
    q0 = torch.zeros(mech.num_coordinates)
    if name == "half_cheetah":
        q0[1] = 0.7  # the file's rootz starts there, at zero
    else:
        q0[2] = float(reference[1].qpos0[2])
    for i, hinge in enumerate([None, *_hinges(name)], start=-1):
        q, qpos = q0.clone(), reference[1].qpos0.copy()
        if hinge is not None:
            q[root + i] = 0.4
            qpos[reference[1].joint(hinge.name).qposadr[0]] = 0.4
        position, inertia = _world(mech, mech.to_maximal(q))
        expected_position, expected_inertia = _world_of(reference, qpos)
        np.testing.assert_allclose(position, expected_position, rtol=0, atol=1e-12)
        scale = np.abs(expected_inertia).max(axis=(1, 2), keepdims=True)
        np.testing.assert_allclose(inertia / scale, expected_inertia / scale, rtol=0, atol=1e-9)


def test_hinges_are_those_of_mujoco(name, reference):
    _, model, _ = reference
    mech = models.make(name)
    for hinge in _hinges(name):
        joint = model.joint(hinge.name)
        np.testing.assert_allclose(np.array(hinge.limits), joint.range, atol=1e-12)
        for ours, theirs in ((hinge.spring, joint.stiffness), (hinge.damper, joint.damping), (hinge.armature, joint.armature)):
            np.testing.assert_allclose(ours, np.ravel(theirs)[0], rtol=1e-12)
        actuator = next(i for i in range(model.nu) if model.actuator_trnid[i, 0] == joint.id)
        np.testing.assert_allclose(hinge.torque, model.actuator_gear[actuator, 0] * model.actuator_ctrlrange[actuator, 1])
    by_joint = [(joint.spring, joint.damper, joint.effort_limit) for joint in list(mech.joints.values())[1:]]
    for column, attribute in enumerate(("spring", "damper", "torque")):
        ours = torch.cat([torch.as_tensor(values[column], dtype=torch.float64) for values in by_joint])
        torch.testing.assert_close(ours, torch.tensor([float(getattr(hinge, attribute)) for hinge in _hinges(name)]))


def test_friction_is_that_of_mujoco(name, reference):
    _, model, _ = reference
    contact = next(iter(models.make(name).contacts.values()))
    floor = model.geom("floor").id
    assert {float(max(mu, model.geom_friction[floor, 0])) for mu in model.geom_friction[:, 0]} == {float(contact.friction)}


def test_start_is_assembled_and_above_the_ground(name):
    mech = models.make(name)
    z = models.initial_state(name, mech)
    assert mech.joint_errors(z).abs().max() <= 1e-14
    distance = mech.distances(z).min()
    assert 0.01 < distance < 0.15


def test_minimal_coordinates_round_trip(name):
    mech = models.make(name)
    q = mech.to_minimal(models.initial_state(name, mech))[0] + 0.3 * torch.randn(5, mech.num_coordinates)
    qd = torch.randn(5, mech.num_coordinates)
    z = mech.to_maximal(q, qd)
    assert mech.joint_errors(z).abs().max() <= 1e-14
    for ours, expected in zip(mech.to_minimal(z), (q, qd), strict=True):
        torch.testing.assert_close(ours, expected, rtol=0, atol=1e-10)


def test_twenty_steps(name):
    """From the start to the first contact of half-cheetah and ant."""
    mech = models.make(name)
    effort = {"ant": 0.001}.get(name, 0.02)  # its torques are for the armature, which it has only when asked for
    limit = torch.cat([torch.as_tensor(j.effort_limit, dtype=torch.float64) for j in mech.joints.values() if j.effort_limit is not None])
    u = effort * limit * (2 * torch.rand(20, mech.num_inputs) - 1)
    path = mech.rollout(models.initial_state(name, mech), u)
    assert (path.status == td.Status.SUCCESS).all()
    assert (path.substeps == 1).all()
    assert mech.joint_errors(path.z).abs().max() <= 1e-8
    assert (mech.distances(path.z) > 0).all()


def test_half_cheetah_root_coordinates_are_forward_height_and_nose_up():
    mech = models.half_cheetah()
    torso = split_state(mech.initial_state(root={"q": (0.3, 0.9, 0.5)})).pose
    x, q = torso.x[0], torso.q[0]
    nose = quat.rotate(q, torch.tensor([1.0, 0.0, 0.0]))
    assert nose[2] > 0.4
    center = torch.tensor([0.3, 0.0, 0.9]) - quat.rotate(q, mech.joints["root"].child_anchor)
    torch.testing.assert_close(x, center)


def test_armature_and_joint_friction_of_the_quadruped_are_those_of_the_menagerie(shared_path):
    """And act: a knee in the air at rest answers a torque inside of its friction not at all, and a larger one less with armature."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = td.load(str(shared_path("models", "unitree_a1", "a1.xml")))
    given = {"armature": unitree.ARMATURE, "joint_friction": unitree.JOINT_FRICTION}
    options = {"gravity": (0.0, 0.0, 0.0), "contact": False, "damper": 0.0}
    full, light, plain = (models.quadruped(**options, **extra) for extra in (given, {"armature": given["armature"]}, {}))
    for name in ("FR_hip_joint", "RL_calf_joint"):
        for field in ("armature", "friction"):
            torch.testing.assert_close(getattr(full.joints[name], field), getattr(theirs.joints[name], field))
    assert plain.joints["FR_hip_joint"].armature is None and plain.joints["FR_hip_joint"].friction is None

    def rate(mech, torque):
        u = torch.zeros(mech.num_inputs)
        u[mech.input_layout["FR_calf_joint"]] = torque
        out = mech.step(mech.initial_state(pose="home"), u)
        return float(mech.to_minimal(out.z)[1][mech.coordinate_places()["FR_calf_joint"]])

    assert abs(rate(full, 0.1)) < 1e-3 < 0.1 < rate(plain, 0.1)
    assert 0.1 < rate(light, 1.0) < 0.5 * rate(plain, 1.0)
    # Friction takes 0.2 of 1 N·m, and a little more, because it holds the thigh against the reaction.
    assert 0.7 < rate(full, 1.0) / rate(light, 1.0) < 0.8


def test_options_reach_the_mechanism():
    assert models.ant(friction=0.2).contacts["torso"].friction == 0.2
    assert models.humanoid(spring=3.0).joints["left_hip"].spring.tolist() == [3.0, 3.0, 3.0]
    assert models.half_cheetah(damper=2.0).joints["bfoot"].damper.tolist() == [2.0]
    mech = models.humanoid(limits=True, armature=True)
    lower, upper = mech.joints["abdomen"].limits
    torch.testing.assert_close(torch.rad2deg(torch.stack((lower, upper))), torch.tensor([[-45.0, -75.0], [45.0, 30.0]]))
    assert mech.joints["right_hip"].armature.tolist() == [0.01, 0.008, 0.01]
