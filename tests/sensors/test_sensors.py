"""Sensors of mechanisms: forces at contact, derivatives, batches, precisions, copies, and names that are wrong."""

from __future__ import annotations

import copy
import pickle
from types import SimpleNamespace

import pytest
import torch
from sensor_text import random_tree

import torchdojo as td
from torchdojo.io import load
from torchdojo.sensors.kind import KINDS, Kind, Sensor, register

G = 9.81


def arm():
    """Two links on hinges, the second one with a foot, and sensors of every kind that reads a state or a step."""
    bodies = {name: td.Body(1.0, (0.02, 0.03, 0.01), shape=td.Box((0.1, 0.1, 0.4))) for name in ("upper", "lower")}
    joints = {
        "shoulder": td.Revolute(None, "upper", axis=(1, 0, 0.2), child_anchor=(0, 0, 0.2), limits=(-0.5, 2.0)),
        "elbow": td.Spherical("upper", "lower", parent_anchor=(0, 0, -0.2), child_anchor=(0, 0, 0.2)),
    }
    contacts = {"foot": td.NonlinearContact("lower", point=(0, 0, -0.2), offset=-0.72, friction=0.5)}
    mech = td.Mechanism(bodies, joints, contacts, timestep=0.005)
    td.actuate(mech, {"motor": td.Actuator.position("shoulder", 3.0, 0.2)}, servos="explicit")
    mech.sites["tip"] = td.Site("lower", (0.02, 0.01, -0.1), (0.8, 0.6, 0.0, 0.0), size=0.3)
    mech.sites["eye"] = td.Site("upper", (0.1, 0.0, -0.1), (0.6, 0.0, 0.8, 0.0))
    for kind, rule in KINDS.items():
        needs = {"site": {"site": "tip"}, "joint": {"joint": "elbow" if "ball" in kind else "shoulder"}, "actuator": {"actuator": "motor"}}
        mech.sensors[kind] = td.Sensor(kind, **{key: value for need in rule.needs for key, value in needs[need].items()})
        if "reference" in rule.takes:
            mech.sensors[f"{kind} seen"] = td.Sensor(kind, site="tip", reference="eye")
    return mech


@pytest.fixture(scope="module")
def moving():
    mech = arm()
    torch.manual_seed(0)
    z = mech.initial_state(shoulder={"q": -0.45, "qd": 0.7}, elbow={"q": (0.3, -0.2, 0.4), "qd": (0.5, 0.4, -0.3)})
    return mech, z, torch.tensor([0.4], dtype=torch.float64)


def reading(mech, z, ctrl):
    return mech.read_sensors(z, mech.step(z, ctrl=ctrl), ctrl=ctrl, time=0.3)


def test_derivatives_agree_with_differences(moving):
    mech, z, ctrl = moving
    direction = torch.randn(12 * mech.num_bodies, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    smooth = mech.linearize(z, ctrl=ctrl, sensors=[name for name in mech.sensors if name != "clock"])
    names, eps = [name for name in mech.sensors if name != "clock"], 1e-6
    ends = [
        mech.read_sensors(moved, mech.step(moved, ctrl=ctrl), ctrl=ctrl, names=names)
        for moved in (mech.retract(z, sign * eps * direction) for sign in (1, -1))
    ]
    slope = (ends[0] - ends[1]) / (2 * eps)
    gap = (smooth.C @ direction - slope).abs() / slope.abs().clamp_min(1.0)
    assert float(gap.max()) < 1e-6
    by_ctrl = [mech.read_sensors(z, mech.step(z, ctrl=ctrl + d), ctrl=ctrl + d, names=names) for d in (1e-4, -1e-4)]
    slope = (by_ctrl[0] - by_ctrl[1]) / 2e-4
    assert float(((smooth.D[:, 0] - slope).abs() / slope.abs().clamp_min(1.0)).max()) < 1e-6


def test_batches_vmap_float32_and_trajectories_read_the_same(moving):
    mech, z, ctrl = moving
    one = reading(mech, z, ctrl)
    assert one.shape == (sum(mech.sensors.sizes.values()),) == (list(mech.sensors.layout.values())[-1].stop,)
    many = reading(mech, z.expand(3, 2, -1), ctrl)
    torch.testing.assert_close(many, one.expand(3, 2, -1), rtol=1e-9, atol=1e-9)
    names = [name for name, sensor in mech.sensors.items() if not KINDS[sensor.kind].needs_step and "actuator" not in name]
    mapped = torch.func.vmap(lambda state: mech.read_sensors(state, names=names, time=0.3))(z.expand(4, -1))
    torch.testing.assert_close(mapped, mech.read_sensors(z, names=names, time=0.3).expand(4, -1), rtol=1e-12, atol=1e-12)
    low = mech.read_sensors(z.float(), mech.step(z, ctrl=ctrl), names=["gyro", "accelerometer"])
    assert low.dtype == torch.float32
    path = mech.rollout(z, ctrl=ctrl.expand(4, 1))
    over = mech.read_sensors(path.z, path, ctrl=ctrl.expand(4, 1), time=0.3)
    each = torch.stack([mech.read_sensors(path.z[t], _step(path, t), ctrl=ctrl, time=0.3) for t in range(4)])
    torch.testing.assert_close(over, each, rtol=1e-12, atol=1e-12)


def _step(path, t):
    return SimpleNamespace(z=path.z[t + 1], impulses=path.impulses[t])


def test_copies_have_sensors_of_their_own(moving):
    mech, z, ctrl = moving
    for other in (pickle.loads(pickle.dumps(mech)), copy.deepcopy(mech)):
        torch.testing.assert_close(reading(other, z, ctrl), reading(mech, z, ctrl), rtol=0, atol=0)
        other.sites["new"] = td.Site("lower")
        assert "new" not in mech.sites and other.sites._structure is other


def test_a_box_at_rest_feels_its_weight_and_a_beam_its_load():
    mech = td.Mechanism(
        {"box": td.Body(2.0, (0.02, 0.02, 0.02), shape=td.Box((0.2, 0.2, 0.2)))},
        contacts={
            f"c{i}": td.NonlinearContact("box", point=(x, y, -0.1), friction=0.5)
            for i, (x, y) in enumerate([(-0.1, -0.1), (-0.1, 0.1), (0.1, -0.1), (0.1, 0.1)])
        },
        timestep=0.005,
    )
    mech.sites["bottom"] = td.Site("box", (0, 0, -0.1), size=0.5)
    mech.sites["corner"] = td.Site("box", (0.1, 0.1, -0.1), size=0.05)
    mech.sensors.update(
        weight=td.Sensor("touch", site="bottom"),
        share=td.Sensor("touch", site="corner"),
        limited=td.Sensor("touch", site="bottom", cutoff=5.0),
        force=td.Sensor("force", site="bottom"),
        still=td.Sensor("accelerometer", site="bottom"),
    )
    z = mech.initial_state(box={"position": (0, 0, 0.1002)})
    for _ in range(100):
        out = mech.step(z)
        z, before = out.z, z
    # κ = 1e-4 leaves (κ/h per pair) of the weight: measured 1e-3 of it.
    expected = torch.tensor([2 * G, G / 2, 5.0, 0.0, 0.0, 0.0, 0.0, 0.0, G], dtype=torch.float64)
    torch.testing.assert_close(mech.read_sensors(before, out), expected, rtol=2e-3, atol=2e-3)


def test_forces_agree_with_the_given_wrench():
    mech = td.Mechanism({"bar": td.Body(1.0, (0.1, 0.1, 0.1))}, {"weld": td.Fixed(None, "bar")}, timestep=0.01)
    mech.sensors.update(f=td.Sensor("force", site=td.Site("bar", (0.1, 0, 0))), t=td.Sensor("torque", site=td.Site("bar", (0.1, 0, 0))))
    z, wrench = mech.initial_state(), torch.tensor([1.0, 2.0, 3.0, 0.1, 0.2, 0.3], dtype=torch.float64)
    value = mech.read_sensors(z, mech.step(z, wrench=wrench), wrench=wrench)
    lever = torch.tensor([-0.1, 0.0, 0.0], dtype=torch.float64)
    force = torch.tensor([-1.0, -2.0, G - 3.0], dtype=torch.float64)
    torque = -wrench[3:] + torch.linalg.cross(lever, force)
    torch.testing.assert_close(value, torch.cat((force, torque)), rtol=1e-6, atol=1e-6)


WRONG = {
    "site": (lambda m: td.Sensor("gyro", site="nose"), "'nose'.*sites are"),
    "joint": (lambda m: td.Sensor("joint_position", joint="knee"), "'knee'.*joints are"),
    "body": (lambda m: td.Sensor("subtree_center", body="head"), "'head'.*bodies are"),
    "actuator": (lambda m: td.Sensor("actuator_force", actuator="x"), "'x'.*actuators are"),
    "kind": (lambda m: td.Sensor("nose"), "'nose'.*allowed: .*gyro"),
    "lacks": (lambda m: td.Sensor("gyro"), "no site"),
    "extra": (lambda m: td.Sensor("gyro", site="tip", joint="elbow"), "joint='elbow'.*allowed: site"),
    "cutoff": (lambda m: td.Sensor("gyro", site="tip", cutoff=-1.0), "cutoff=-1.0"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_names_are_refused_with_a_remedy(moving, name):
    mech, *_ = moving
    make, message = WRONG[name]
    with pytest.raises(ValueError, match=message):
        mech.sensors["wrong"] = make(mech)
    assert "wrong" not in mech.sensors


def test_readings_without_what_sensors_need_are_refused(moving):
    mech, z, _ = moving
    with pytest.raises(ValueError, match="needs the step that starts at z"):
        mech.read_sensors(z)
    with pytest.raises(ValueError, match="time="):
        mech.read_sensors(z, names=["clock"])
    with pytest.raises(ValueError, match="ctrl="):
        mech.read_sensors(z, names=["actuator_force"])
    with pytest.raises(ValueError, match="sensors are"):
        mech.read_sensors(z, names=["nose"])
    with pytest.raises(TypeError, match="allowed: what step or rollout returned"):
        mech.read_sensors(z, 3)
    with pytest.raises(ValueError, match=r"'head'.*bodies are"):
        mech.sites["head"] = td.Site("head")


def test_files_say_which_sensors_are_left_out_and_why(tmp_path):
    path = tmp_path / "tree.xml"
    text = random_tree(3).replace(
        "</sensor>", '<force name="lost" site="t1"/><subtreecom name="gone" body="w1"/><e_kinetic name="e"/></sensor>'
    )
    path.write_text(text)
    mech = load(path, contacts=None)
    assert set(mech.sensors.left_out) == {"lost", "gone", "e"}
    with pytest.raises(ValueError, match=r"'lost', which the file has.*merge_fixed_joints=False"):
        mech.read_sensors(mech.initial_state(), names=["lost"])
    assert {entry.kind for entry in mech.load_report.entries} >= {"sensors"}
    for wrong in (td.Sensor("gyro", site=td.Site("w1")), td.Sensor("subtree_center", body="w1")):
        with pytest.raises(ValueError, match=r"'w1', which is part of 'b1'.*merge_fixed_joints=False"):
            mech.sensors["wrong"] = wrong
    with pytest.raises(ValueError, match=r"sites\['s'\]: got the body 'w2'.*merge_fixed_joints=False"):
        mech.sites["s"] = td.Site("w2")
    kept = load(path, contacts=None, merge_fixed_joints=False)
    assert set(kept.sensors.left_out) == {"e"}


def test_environments_end_their_observation_with_sensors():
    options = {"num_envs": 3, "seed": 0, "pool": 4}
    plain = td.envs.make("quadrotor", **options)
    env = td.envs.make("quadrotor", sensors=("body_linacc", "body_gyro"), **options)
    action = torch.full((3, 4), -0.4, dtype=torch.float64, requires_grad=True)
    before = env.state.z
    seen, without = env.step(action), plain.step(action)
    torch.testing.assert_close(seen.obs[:, : plain.num_obs], without.obs, rtol=0, atol=0)
    out = env.mech.step(before, ctrl=action, repeat=env.repeat)
    expected = torch.cat(
        (env.mech.read_sensors(before, out, names=["body_linacc"], repeat=env.repeat), env.mech.read_sensors(out.z, names=["body_gyro"])),
        -1,
    )
    torch.testing.assert_close(seen.obs[:, plain.num_obs :], expected, rtol=1e-6, atol=1e-6)
    assert float(torch.autograd.grad(seen.obs[:, -6:-3].sum(), action)[0].abs().min()) > 0
    with pytest.raises(ValueError, match="sensors are"):
        td.envs.make("quadrotor", sensors=("nose",), **options)


def test_noise_and_bias_are_those_of_sensors_by_name():
    options = {"num_envs": 2, "seed": 0, "pool": 2, "sensors": ("body_linacc", "body_gyro")}
    env = td.envs.make("quadrotor", sensor_noise={"noise": {"body_gyro": 0.1}, "bias": {"body_linacc": 2.0}}, **options)
    plain = torch.zeros(2000, env.num_obs, dtype=torch.float64)
    first, carried = env.sensors.begin(plain, env.normal)
    second, _ = env.sensors.read(plain, carried, env.normal(2000, env.sensors.draws))
    assert not first[:, :-6].any() and not second[:, :-6].any()
    torch.testing.assert_close(first[:, -6:-3], second[:, -6:-3], rtol=0, atol=0)  # an episode has one bias
    assert float(first[:, -6:-3].std()) == pytest.approx(2.0, rel=0.1) and float(second[:, -3:].std()) == pytest.approx(0.1, rel=0.1)
    imu = {"imu": td.Sensor("gyro", site="imu", noise=0.5)}
    filed = td.envs.make("quadrotor", sensor_noise="file", **{**options, "sensors": imu})
    assert filed.sensors.noise[-3:].tolist() == [0.5] * 3 and not filed.sensors.noise[:-3].any()
    for given, message in (({"noise": {"nose": 1.0}}, "'nose'.*'body_gyro'"), ({"noise": "robots"}, "allowed: 'file'")):
        with pytest.raises(ValueError, match=message):
            td.envs.make("quadrotor", sensor_noise=given, **options)
    with pytest.raises(ValueError, match="without sensors"):
        td.envs.make("quadrotor", sensor_noise="file", num_envs=1, pool=1)


def test_a_kind_of_ones_own_is_read_with_the_others(moving):
    class Height(Kind):
        size, needs = 1, ("site",)

        def read(self, sensors, at):
            return at.frames([sensor.site for sensor in sensors]).pose.x[..., 2:]

    mech, z, _ = moving
    register("height", Height())
    try:
        other = copy.deepcopy(mech)
        other.sensors["h"] = Sensor("height", site="tip", scale=2.0, offset=1.0)
        place = other.read_sensors(z, names=["frame_position"])
        torch.testing.assert_close(other.read_sensors(z, names=["h"]), 2 * place[2:] + 1, rtol=0, atol=1e-15)
    finally:
        del KINDS["height"]


@pytest.mark.slow
def test_segments_differentiate_sensors_as_the_loop_does():
    grads = []
    for segmented in (True, False):
        foot = td.Sensor("touch", site=td.Site("foot", size=1.0))
        env = td.envs.make("hopper", num_envs=2, seed=0, pool=4, sensors={"touch": foot, "force": td.Sensor("force", site=td.Site("foot"))})
        torch.manual_seed(1)
        policy = torch.nn.Linear(env.num_obs, env.num_actions).double()
        torch.nn.init.normal_(policy.weight, std=1e-3)
        if segmented:
            out = td.envs.Segment(env, policy, 3, compiled=False)()
            total = out.final_obs.sum()
        else:
            obs, total = env.obs, 0.0
            for _ in range(3):
                step = env.step(policy(obs))
                obs, total = step.obs, total + step.final_obs.sum()
        total.backward()
        grads.append(policy.weight.grad.clone())
    torch.testing.assert_close(*grads, rtol=1e-7, atol=1e-7)
