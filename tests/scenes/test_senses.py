"""Sites and sensors of parts are in a scene, and read there what they read alone."""

from __future__ import annotations

import pytest
import torch
from test_combine import arm

import torchdojo as td


def sensing_arm() -> td.Mechanism:
    mech = arm()
    lever = torch.tensor([0.0, 0.01, -0.1], dtype=torch.float64, requires_grad=True)
    mech.sites["tip"] = td.Site("lower", lever)
    mech.sites["there"] = td.Site(None, (0.3, 0.0, 0.0))
    mech.sensors["spin"] = td.Sensor("gyro", site="tip", noise=0.1)
    mech.sensors["seen"] = td.Sensor("frame_position", site=td.Site("upper"), reference="there")
    mech.sensors["tip"] = td.Sensor("frame_position", site="tip")
    mech.sensors["bend"] = td.Sensor("joint_velocity", joint="elbow")
    mech.sensors["held"] = td.Sensor("actuator_position", actuator="hold")
    mech.sensors["balance"] = td.Sensor("subtree_center")
    mech.sensors["hand"] = td.Sensor("subtree_center", body="lower")
    return mech


def test_sensors_of_parts_read_what_they_read_alone() -> None:
    left, right = sensing_arm(), sensing_arm()
    scene = td.combine(left=left, right=right, crate=td.Body(1.0, shape=td.Sphere(0.1)), contacts=None)
    assert list(scene.sites) == ["left/tip", "left/there", "right/tip", "right/there"]
    assert list(scene.sensors)[:2] == ["left/spin", "left/seen"] and scene.sensors["left/spin"].noise == 0.1
    rates = ((left, 1.0), (right, -2.0))
    states = [mech.initial_state(shoulder={"q": 0.2, "qd": rate}, elbow={"q": -0.4, "qd": 0.3}) for mech, rate in rates]
    z = torch.cat((*states, scene.initial_state()[26 * 2 :]))
    alone = torch.cat([mech.read_sensors(state) for mech, state in zip((left, right), states, strict=True)])
    torch.testing.assert_close(scene.read_sensors(z), alone, rtol=1e-12, atol=1e-12)
    tip = scene.read_sensors(z, names=["left/tip"])
    assert torch.autograd.grad(tip.sum(), left.sites["tip"].position)[0].abs().max() > 0  # the tensor of the part


def test_sensors_that_a_scene_cannot_have_are_told() -> None:
    two = td.combine(a=td.Body(1.0, shape=td.Sphere(0.1)), b=td.Body(1.0, shape=td.Sphere(0.1)), contacts=None)
    two.sensors["all"] = td.Sensor("subtree_center")
    scene = td.combine(two=two, contacts=None)
    with pytest.raises(ValueError, match=r"'two/all'.*several trees"):
        scene.read_sensors(scene.initial_state(), names=["two/all"])
    parts = {name: sensing_arm() for name in ("left", "right")}
    for i, mech in enumerate(parts.values()):
        mech.sensors["north"] = td.Sensor("magnetometer", site="tip")
        mech.sensors.magnetic = torch.tensor([float(i), 1.0, 0.0], dtype=torch.float64)
    with pytest.raises(ValueError, match="magnetic field differs"):
        td.combine(parts, contacts=None)
