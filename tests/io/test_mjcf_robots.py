"""Published robots in MJCF: masses, inertias, kinematics and accelerations held against MuJoCo's own."""

from __future__ import annotations

import warnings
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from stripped import stripped

from conftest import shared_path
from torchdojo import quaternion as quat
from torchdojo.io import load, mjcf_state, read_mjcf
from torchdojo.io.mjcf.description import MjcfInfo
from torchdojo.mechanism import Mechanism
from torchdojo.solver.options import SolverOptions, Status
from torchdojo.state.layout import split_state

mujoco = pytest.importorskip("mujoco")
pytestmark = pytest.mark.filterwarnings("ignore")  # what each file has that does not act: tested in test_mjcf

# file -> bodies, degrees of freedom, inputs, contacts
ROBOTS = {
    ("ant", "ant.xml"): (9, 14, 8, 21),
    ("ant", "brax_ant.xml"): (9, 14, 8, 4),
    ("classic", "inverted_pendulum.xml"): (2, 2, 1, 0),
    ("classic", "inverted_double_pendulum.xml"): (3, 3, 1, 0),
    ("classic", "reacher.xml"): (3, 4, 2, 0),
    ("classic", "swimmer.xml"): (3, 5, 2, 0),
    ("franka_panda", "panda.xml"): (9, 9, 7, 0),
    ("franka_panda", "mjx_panda_nohand.xml"): (7, 7, 7, 0),
    ("half_cheetah", "half_cheetah.xml"): (7, 9, 6, 16),
    ("half_cheetah", "brax_half_cheetah.xml"): (7, 9, 6, 10),
    ("hopper", "hopper.xml"): (4, 6, 3, 8),
    ("hopper", "brax_hopper.xml"): (4, 6, 3, 2),
    ("humanoid", "humanoid.xml"): (18, 23, 17, 29),  # of 11 links: two or three hinges have one or two light bodies between them
    ("humanoid", "brax_humanoid.xml"): (18, 23, 17, 2),
    ("skydio_x2", "x2.xml"): (1, 6, 0, 28 + 4 * 18),
    ("unitree_a1", "a1.xml"): (13, 18, 12, 96),
    ("unitree_go1", "go1.xml"): (13, 18, 12, 144),
    ("unitree_h1", "h1.xml"): (20, 25, 19, 94),
    ("ur5", "ur5e.xml"): (6, 6, 6, 0),
    ("walker2d", "walker2d_v5.xml"): (7, 9, 6, 14),
    ("walker2d", "brax_walker2d.xml"): (7, 9, 6, 6),
}
FIXED = [robot for robot in ROBOTS if robot[0] in ("classic", "franka_panda", "ur5")]


@pytest.fixture(params=ROBOTS, ids="/".join)
def robot(request: pytest.FixtureRequest) -> tuple[str, str]:
    return request.param


def path_of(robot: tuple[str, str]) -> Path:
    return shared_path("models", *robot)


@cache
def described(robot: tuple[str, str]) -> tuple[MjcfInfo, Mechanism]:
    """The description and the mechanism of a file, for tests that change neither: read once, as large files take a second."""
    return read_mjcf(path_of(robot)), load(path_of(robot), mesh=None)


def groups(info: MjcfInfo) -> dict[str, list[int]]:
    """Our bodies -> MJCF bodies that MuJoCo moves as one."""
    weld = info.compiled.model.body_weldid
    return {name: [b for b in range(1, len(weld)) if weld[b] == t] for name, t in info.tops.items()}


def world_of_mujoco(info: MjcfInfo, qpos: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mass (nb,), center of mass (nb, 3) and inertia about it in world axes (nb, 3, 3) of links that move as one."""
    model = info.compiled.model
    data = mujoco.MjData(model)
    data.qpos[:] = qpos
    mujoco.mj_forward(model, data)
    masses, centers, inertias = [], [], []
    for group in groups(info).values():
        mass = model.body_mass[group].sum()
        center = (model.body_mass[group] @ data.xipos[group]) / mass
        inertia = np.zeros((3, 3))
        for b in group:
            axes, d = data.ximat[b].reshape(3, 3), data.xipos[b] - center
            inertia += axes @ np.diag(model.body_inertia[b]) @ axes.T + model.body_mass[b] * (d @ d * np.eye(3) - np.outer(d, d))
        masses.append(mass)
        centers.append(center)
        inertias.append(inertia)
    return np.array(masses), np.array(centers), np.array(inertias)


def world_of(mech: Mechanism, z: torch.Tensor) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    pose = split_state(z).pose
    rotation = quat.rotation_matrix(pose.q)
    inertia = torch.stack([body.inertia for body in mech.bodies.values()])
    return np.array([float(b.mass) for b in mech.bodies.values()]), pose.x.numpy(), (rotation @ inertia @ rotation.mT).numpy()


def random_qpos(info: MjcfInfo, generator: np.random.Generator) -> np.ndarray:
    model = info.compiled.model
    step = generator.uniform(-0.8, 0.8, model.nv)
    qpos = model.qpos0.copy()
    mujoco.mj_integratePos(model, qpos, step, 1.0)
    return qpos


def test_counts(robot: tuple[str, str]) -> None:
    info, mech = described(robot)
    assert (mech.num_bodies, mech.num_coordinates, mech.num_inputs, len(mech.contacts)) == ROBOTS[robot]
    model = info.compiled.model
    assert mech.num_coordinates == model.nv
    assert float(mech.timestep) == model.opt.timestep
    assert mech.gravity.tolist() == model.opt.gravity.tolist()


def test_masses_centres_inertias_and_kinematics(robot: tuple[str, str]) -> None:
    info, mech = described(robot)
    if robot[1] == "panda.xml":  # random coordinates do not satisfy couplings
        info, mech = (read(path_of(robot), ignore="joint_0", mesh=None) for read in (read_mjcf, load))
    generator = np.random.default_rng(0)
    for qpos in (info.compiled.model.qpos0, *(random_qpos(info, generator) for _ in range(4))):
        z = mjcf_state(mech, info, qpos=qpos)
        assert (mech.joint_errors(z).abs() <= 1e-12).all()
        links = [list(mech.bodies).index(name) for name in info.tops]  # without the light bodies between the joints of a link
        (mass, center, inertia), expected = (part[links] for part in world_of(mech, z)), world_of_mujoco(info, qpos)
        np.testing.assert_allclose(mass, expected[0], rtol=1e-12)
        np.testing.assert_allclose(center, expected[1], rtol=0, atol=1e-9)
        scale = np.abs(expected[2]).max(axis=(1, 2), keepdims=True)
        np.testing.assert_allclose(inertia / scale, expected[2] / scale, rtol=0, atol=1e-9)  # the orientations, too


def test_orientations(robot: tuple[str, str]) -> None:
    """An inertia does not see turns by 180 degrees: the frames of all links, from the poses of our bodies."""
    info, mech = described(robot)
    data = mujoco.MjData(info.compiled.model)
    data.qpos[:] = random_qpos(info, np.random.default_rng(1))
    mujoco.mj_kinematics(info.compiled.model, data)
    pose = split_state(mjcf_state(mech, info, qpos=data.qpos)).pose
    rotation = quat.rotation_matrix(pose.q).numpy()
    numbers = {name: i for i, name in enumerate(mech.bodies)}
    for b, link in enumerate(info.links.values(), start=1):
        if link.body is not None:
            i = numbers[link.body]
            np.testing.assert_allclose(rotation[i] @ link.rotation, data.xmat[b].reshape(3, 3), rtol=0, atol=1e-9)
            np.testing.assert_allclose(rotation[i] @ link.position + pose.x[i].numpy(), data.xpos[b], rtol=0, atol=1e-9)


def test_coordinates_are_those_of_the_file(robot: tuple[str, str]) -> None:
    """Each hinge and slide moved by itself is the coordinate that `coordinates` says, times the sign, less qpos0."""
    info, mech = described(robot)
    model = info.compiled.model
    assert mech.initial_state().tolist() == pytest.approx(mjcf_state(mech, info).tolist(), abs=1e-12)
    flat = [entry for name in mech.joints for entry in info.coordinates[name]]
    states, expected = [], []
    for number, (label, sign) in enumerate(flat):
        j = next((j for j in range(model.njnt) if model.joint(j).name == label), None)
        if j is None or model.jnt_type[j] == mujoco.mjtJoint.mjJNT_FREE:
            continue
        qpos = model.qpos0.copy()
        qpos[model.jnt_qposadr[j]] += 0.3
        states.append(mjcf_state(mech, info, qpos=qpos))
        expected.append(0.3 * sign * np.eye(mech.num_coordinates)[number])
    if states:
        np.testing.assert_allclose(mech.to_minimal(torch.stack(states))[0].numpy(), np.stack(expected), rtol=0, atol=1e-9)


def test_options_are_those_of_the_file(robot: tuple[str, str]) -> None:
    info, mech = described(robot)[0], load(path_of(robot), servos="explicit", contacts=None)
    model = info.compiled.model
    for name, joint in mech.joints.items():
        for i, (label, sign) in enumerate(info.coordinates[name]):
            j = next((j for j in range(model.njnt) if model.joint(j).name == label), None)
            if j is None or joint.num_coordinates == 6:
                continue
            dof, zero = model.jnt_dofadr[j], model.qpos0[model.jnt_qposadr[j]]
            assert float(joint.spring[i]) == model.jnt_stiffness[j]
            assert float(joint.damper[i]) == model.dof_damping[dof]
            assert (0.0 if joint.armature is None else float(joint.armature[i])) == model.dof_armature[dof]
            assert (0.0 if joint.friction is None else float(joint.friction[i])) == model.dof_frictionloss[dof]
            if model.jnt_limited[j]:
                limits = sorted(sign * float(bound[i]) for bound in joint.limits)
                assert limits == pytest.approx((model.jnt_range[j] - zero).tolist())
            driven = [a for a in range(model.nu) if model.actuator_trntype[a] == 0 and model.actuator_trnid[a, 0] == j]
            assert joint.actuated or not driven
            if driven and model.actuator_ctrllimited[driven[0]] and model.actuator_biastype[driven[0]] == 0:
                effort = model.actuator_gear[driven[0], 0] * np.abs(model.actuator_ctrlrange[driven[0]]).max()
                assert joint.effort_limit[i] == pytest.approx(effort)


def test_lowest_point(robot: tuple[str, str]) -> None:
    """The smallest distance at qpos0 is that of the lowest point of the geoms that have a contact."""
    info, mech = described(robot)
    if not mech.contacts:
        return
    model, data = info.compiled.model, info.compiled.data
    types, lowest, slack = mujoco.mjtGeom, [], 0.0
    for g in range(model.ngeom):
        label = str(model.geom(g).name) or f"{model.body(model.geom_bodyid[g]).name}_{g - model.body_geomadr[model.geom_bodyid[g]]}"
        if not any(name == label or name.startswith(f"{label}_") for name in mech.contacts):
            continue
        up, size, height = np.abs(data.geom_xmat[g].reshape(3, 3)[2]), model.geom_size[g], data.geom_xpos[g, 2]
        kind = model.geom_type[g]
        if kind == types.mjGEOM_CYLINDER:
            lowest.append(height - up[2] * size[1] - np.hypot(up[0], up[1]) * size[0])
            slack = max(slack, size[0] * (1 - np.cos(np.pi / 4)))  # between two rim points
        else:
            reach = {types.mjGEOM_SPHERE: size[0], types.mjGEOM_CAPSULE: size[0] + up[2] * size[1], types.mjGEOM_BOX: up @ size}
            reach[types.mjGEOM_ELLIPSOID] = np.linalg.norm(up * size)
            lowest.append(height - float(reach[types(int(kind))]))
    smallest = float(mech.distances(mech.initial_state()).min())
    if robot in FIXED:  # there the lowest point of a geom may be one that no joint moves
        assert smallest >= min(lowest) - 1e-9
    else:
        assert min(lowest) - 1e-9 <= smallest <= min(lowest) + 1e-9 + slack


def test_five_steps(robot: tuple[str, str]) -> None:
    mech = stripped(described(robot)[1])  # qpos0 is outside of the limits of some
    path = mech.rollout(mech.initial_state(), steps=5)
    assert (path.status == int(Status.SUCCESS)).all()
    assert (mech.joint_errors(path.z).abs() <= 1e-8).all()


@pytest.mark.parametrize("robot", [r for r in ROBOTS if r[0] not in ("humanoid", "skydio_x2")], ids="/".join)
def test_accelerations_are_those_of_mujoco(robot: tuple[str, str]) -> None:
    """From rest in a random configuration, springs, actuators and armature included; without what MuJoCo makes soft."""
    h = 1e-5
    info, mech = read_mjcf(path_of(robot)), load(path_of(robot), timestep=h, contacts=None, servos="explicit")
    mech = stripped(mech, "limits", "friction")
    # Armature of 1 kg·m² times rates, coordinates to 1e-16 divided by h: 1e-11. Newton's third step goes as far as there is to go.
    mech.options = SolverOptions(residual_tol=1e-10, min_iterations=3, max_halvings=0)
    for joint in mech.joints.values():
        joint.damper = 0.0  # ours is implicit: it slows even a step of h from rest
    model = info.compiled.model
    for name in ("dof_frictionloss", "tendon_frictionloss"):
        getattr(model, name)[:] = 0
    for flag in ("CONTACT", "LIMIT", "EQUALITY", "FRICTIONLOSS"):
        model.opt.disableflags |= int(getattr(mujoco.mjtDisableBit, f"mjDSBL_{flag}"))
    model.opt.density = model.opt.viscosity = 0
    model.actuator_gainprm[:] = 0  # torques are given below
    model.actuator_biasprm[:] = 0
    generator = np.random.default_rng(2)
    data = mujoco.MjData(model)
    data.qpos[:] = random_qpos(info, generator)
    u = 0.05 * torch.as_tensor(generator.uniform(-1, 1, mech.num_inputs))
    moved = mech.to_minimal(mech.step(mjcf_state(mech, info, qpos=data.qpos), u).z)[1] / h
    labels = [entry for name in mech.joints for entry in info.coordinates[name]]
    inputs = [entry for name, joint in mech.joints.items() if joint.actuated for entry in info.coordinates[name]]
    for (label, sign), torque in zip(inputs, u.tolist(), strict=True):
        data.qfrc_applied[model.jnt_dofadr[model.joint(label).id]] = sign * torque
    mujoco.mj_forward(model, data)
    scale = np.abs(data.qacc).max()
    compared = 0
    for number, (label, sign) in enumerate(labels):
        j = next((j for j in range(model.njnt) if model.joint(j).name == label), None)
        if j is not None and model.jnt_type[j] != mujoco.mjtJoint.mjJNT_FREE:
            compared += 1
            # coordinates to 1e-16, divided by h twice
            assert float(moved[number]) == pytest.approx(sign * data.qacc[model.jnt_dofadr[j]], abs=1e-4 * (1 + scale))
    assert compared == sum(model.jnt_type != mujoco.mjtJoint.mjJNT_FREE)


@pytest.mark.slow
@pytest.mark.parametrize("robot", [r for r in ROBOTS if r[0] not in ("humanoid", "skydio_x2")], ids="/".join)
def test_motion_is_that_of_mujoco(robot: tuple[str, str]) -> None:
    """0.1 s at h = 1e-4 from rest in a random configuration, with torques, springs and armature: relative to how far joints move."""
    h, steps = 1e-4, 1000
    info, mech = read_mjcf(path_of(robot)), load(path_of(robot), timestep=h, contacts=None, servos="explicit")
    mech = stripped(mech, "limits", "friction")
    mech.options = SolverOptions(residual_tol=1e-11)
    for joint in mech.joints.values():
        joint.damper = 0.0  # MuJoCo's Euler and ours treat it in different ways, both to first order
    model = info.compiled.model
    for name in ("dof_frictionloss", "tendon_frictionloss", "dof_damping", "actuator_gainprm", "actuator_biasprm"):
        getattr(model, name)[:] = 0
    for flag in ("CONTACT", "LIMIT", "EQUALITY", "FRICTIONLOSS"):
        model.opt.disableflags |= int(getattr(mujoco.mjtDisableBit, f"mjDSBL_{flag}"))
    model.opt.density = model.opt.viscosity = 0
    model.opt.timestep, model.opt.integrator = h, mujoco.mjtIntegrator.mjINT_EULER
    generator = np.random.default_rng(3)
    data = mujoco.MjData(model)
    data.qpos[:] = random_qpos(info, generator)
    start = data.qpos.copy()
    inputs = [entry for name, joint in mech.joints.items() if joint.actuated for entry in info.coordinates[name]]
    u = 0.5 * torch.as_tensor(generator.uniform(-1, 1, mech.num_inputs))
    for (label, sign), torque in zip(inputs, u.tolist(), strict=True):
        data.qfrc_applied[model.jnt_dofadr[model.joint(label).id]] = sign * torque
    path = mech.rollout(mjcf_state(mech, info, qpos=data.qpos), u.expand(steps, -1))
    assert not path.status.any() and bool((path.substeps == 1).all())
    for _ in range(steps):
        mujoco.mj_step(model, data)
    moved = mech.to_minimal(path.z[-1])[0] - mech.to_minimal(path.z[0])[0]
    labels = [entry for name in mech.joints for entry in info.coordinates[name]]
    ours, theirs = [], []
    for number, (label, sign) in enumerate(labels):
        j = next((j for j in range(model.njnt) if model.joint(j).name == label), None)
        if j is not None and model.jnt_type[j] != mujoco.mjtJoint.mjJNT_FREE:
            address = model.jnt_qposadr[j]
            ours.append(float(moved[number]))
            theirs.append(sign * (data.qpos[address] - start[address]))
    assert len(ours) == sum(model.jnt_type != mujoco.mjtJoint.mjJNT_FREE)
    scale = np.abs(theirs).max()
    assert scale > 1e-5 and np.abs(np.array(ours) - theirs).max() <= 1e-4 * scale, np.abs(np.array(ours) - theirs).max() / scale


@pytest.mark.parametrize("robot", [("unitree_a1", "a1.xml"), ("humanoid", "humanoid.xml")], ids="/".join)
def test_floating_base_false(robot: tuple[str, str]) -> None:
    free, held = described(robot)[1], load(path_of(robot), floating_base=False)
    (base,) = set(free.bodies) - set(held.bodies)
    poses = dict(zip(free.bodies, split_state(free.initial_state()).pose.x, strict=True))
    for name, x in zip(held.bodies, split_state(held.initial_state()).pose.x, strict=True):
        torch.testing.assert_close(x, poses[name], rtol=0, atol=1e-12)
    assert all(contact.body != base for contact in held.contacts.values())
    held = stripped(held)  # qpos0 is outside of the limits
    path = held.rollout(held.initial_state(), steps=3)
    assert (path.status == int(Status.SUCCESS)).all()


def test_a1_in_detail() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        mech = load(shared_path("models", "unitree_a1", "a1.xml"))
    assert not any("actuator" in str(w.message) for w in caught)
    assert mech.actuators.names[:3] == ("FR_hip", "FR_thigh", "FR_calf")
    hip = mech.joints["FR_hip_joint"]
    assert (float(hip.servo_lower), float(hip.servo_upper), float(hip.servo_stiffness)) == (-33.5, 33.5, 100.0)
    explicit = load(shared_path("models", "unitree_a1", "a1.xml"), servos="implicitfast")
    assert explicit.actuators.forcerange[0].tolist() == [-33.5, 33.5]
    knee = mech.joints["FL_calf_joint"]
    assert (knee.parent, knee.child) == ("FL_thigh", "FL_calf")
    assert knee.effort_limit == [33.5]
    assert [float(bound) for bound in knee.limits] == pytest.approx([-2.69653, -0.916298])
    assert (float(knee.friction), float(knee.armature)) == (0.2, 0.01)
    feet = {name: contact for name, contact in mech.contacts.items() if contact.friction == 0.8}
    assert {contact.body for contact in feet.values()} == {"FL_calf", "FR_calf", "RL_calf", "RR_calf"}
    assert all(float(contact.radius) == 0.02 for contact in feet.values())


def test_keyframe_of_panda() -> None:
    path = shared_path("models", "franka_panda", "panda.xml")
    info, mech = read_mjcf(path), load(path, mesh=None)
    q, qd = mech.to_minimal(mjcf_state(mech, info, "home"))
    assert q.tolist() == pytest.approx([0, 0, 0, -1.57079, 0, 1.57079, -0.7853, 0.04, 0.04], abs=1e-9)
    assert qd.abs().max() <= 1e-12


@pytest.mark.parametrize("robot", [robot for robot in ROBOTS if robot[1] in ("humanoid.xml", "x2.xml", "a1.xml", "ur5e.xml", "panda.xml")])
def test_keyframes_are_poses(robot: tuple[str, str]) -> None:
    """Centers of mass at a pose are MuJoCo's own at the keyframe; controls are the file's; a base in the world stays where it is drawn."""
    info, mech = described(robot)
    model, data = info.compiled.model, mujoco.MjData(info.compiled.model)
    assert len(mech.poses) == model.nkey > 0
    for number, (name, pose) in enumerate(mech.poses.items()):
        assert name == (model.key(number).name or number)
        mujoco.mj_resetDataKeyframe(model, data, number)
        mujoco.mj_kinematics(model, data)
        centers = np.stack([info.bodies[name].center for name in info.tops])
        ids, links = list(info.tops.values()), [list(mech.bodies).index(name) for name in info.tops]
        rotation = data.xmat.reshape(-1, 3, 3)[ids]
        expected = data.xpos[ids] + (rotation @ centers[..., None])[..., 0]
        x = split_state(mech.initial_state(pose=name)).pose.x[links]
        assert np.abs(x.numpy() - expected).max() <= 1e-9
        if mech.actuators is not None:
            assert pose.ctrl == tuple(data.ctrl[: len(mech.actuators.names)])
    if robot[1] == "a1.xml":
        fixed = load(path_of(robot), floating_base=False)
        hip = fixed.initial_state(pose="home").unflatten(-1, (-1, 13))[0, :3] - fixed.initial_state().unflatten(-1, (-1, 13))[0, :3]
        assert float(hip.abs().max()) <= 1e-12
        home, own = mech.poses["home"].values, fixed.poses["home"].values
        assert own.keys() < home.keys() and all(own[name]["q"] == pytest.approx(home[name]["q"]) for name in own)
