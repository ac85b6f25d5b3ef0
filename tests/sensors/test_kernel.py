"""Sensors of the kernel read what those in PyTorch do, with the same derivatives."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from test_sensors import arm

import torchdojo as td
from torchdojo.native import loader
from torchdojo.native.tables import SensorKind

pytestmark = pytest.mark.skipif(not loader.available(), reason="no compiler for the native kernel")


def walker():
    """A quadruped on the ground with sensors at its trunk and one foot, joints with limits, and a part of the body."""
    mech = td.models.quadruped()
    foot, knee = list(mech.bodies)[-1], list(mech.joints)[-1]
    for name, body, shape, size in (
        ("foot", foot, "capsule", (0.1, 0.3)),
        ("shin", foot, "box", (0.2, 0.3, 0.4)),
        ("toe", foot, "cylinder", (0.2, 0.3)),
        ("ball", foot, "ellipsoid", (0.2, 0.3, 0.4)),
        ("world", None, "sphere", 0.1),
    ):
        mech.sites[name] = td.Site(body, (0.01, 0.02, -0.03), (0.8, 0.0, 0.6, 0.0), shape=shape, size=size)
    for kind in SensorKind:
        name = kind.name.lower()
        if name.startswith("joint"):
            mech.sensors[name] = td.Sensor(name, joint=knee, scale=-2.0, offset=0.3)
        elif name.startswith("subtree"):
            mech.sensors[name] = td.Sensor(name)
            mech.sensors[f"{name} of a leg"] = td.Sensor(name, body=list(mech.bodies)[-3])
        else:
            mech.sensors[name] = td.Sensor(name, site="foot", scale=1.5, cutoff=20.0)
        if name.startswith("frame") and "acceleration" not in name:
            mech.sensors[f"{name} seen"] = td.Sensor(name, site="toe", reference=td.Site(next(iter(mech.bodies)), (0.1, 0, 0)))
            mech.sensors[f"{name} there"] = td.Sensor(name, site="world", reference="shin")
    mech.sensors.update({f"touch at {name}": td.Sensor("touch", site=name) for name in ("shin", "toe", "ball")})
    torch.manual_seed(0)
    z = mech.rollout(td.models.initial_state("quadruped", mech).expand(3, -1), 0.5 * torch.randn(3, 30, mech.num_inputs).double()).z[:, -1]
    return mech, z, {}


def pulled_walker():
    """With a string along the front left leg, and a sum of angles of it; forces above and below them."""
    mech, z, options = walker()
    joints = [name for name in mech.joints if name.startswith("FL")]
    hip, calf = (mech.joints[joints[i]].body_names[-1] for i in (0, -1))
    mech.tendons["string"] = td.SpatialTendon([td.Site(hip, (0, 0, -0.05)), td.Site(calf, (0.03, 0, -0.1))], stiffness=200.0, damping=1.0)
    mech.tendons["sum"] = td.FixedTendon({joints[-1]: 0.02}, limits=(None, -0.02), friction=3.0)
    for kind in ("force", "torque"):
        mech.sensors[f"{kind} of the calf"] = td.Sensor(kind, site=td.Site(calf, (0, 0, 0.1)))
    return mech, z, options


def test_forces_of_bodies_that_tendons_pull_are_the_references():
    mech, z, _ = pulled_walker()
    mech.read_sensors(z, mech.step(z))
    panel = next(iter(mech.sensors._panels.values()))[0]
    assert [name for name in mech.sensors if name not in panel.native] == ["force of the calf", "torque of the calf"]


def loaded_arm():
    mech = arm()
    torch.manual_seed(1)
    z = mech.initial_state(shoulder={"q": -0.6, "qd": 0.7}, elbow={"q": (0.3, -0.2, 0.4), "qd": (0.5, 0.4, -0.3)}).expand(2, 5, -1)
    ctrl = torch.rand(2, 5, 1, dtype=torch.float64)
    return mech, z, {"ctrl": ctrl, "wrench": torch.randn(12, dtype=torch.float64)}


def read_both(mech, read):
    """The result with the kernel, and in PyTorch."""
    results = [read()]
    options = mech.options
    try:
        mech.options = dataclasses.replace(options, backend="reference")
        results.append(read())
    finally:
        mech.options = options
    return results


@pytest.mark.parametrize("case", [walker, loaded_arm, pulled_walker])
def test_readings_and_their_derivatives_are_those_of_the_reference(case):
    mech, z, options = case()
    out = mech.step(z, **options)
    weight = torch.randn(*z.shape[:-1], sum(mech.sensors.sizes.values()), dtype=torch.float64)

    def read():
        changes = [z.new_zeros(*z.shape[:-1], 12 * mech.num_bodies).requires_grad_() for _ in range(2)]
        given = {key: value.clone().requires_grad_() for key, value in options.items()}
        impulses = out.impulses.clone().requires_grad_()
        states = [mech.retract(state, change) for state, change in zip((z, out.z), changes, strict=True)]
        y = mech.read_sensors(states[0], out._replace(z=states[1], impulses=impulses), time=0.3, **given)
        return y, *torch.autograd.grad((weight * y).sum(), [*changes, impulses, *given.values()])

    for ours, theirs in zip(*read_both(mech, read), strict=True):
        gap = (ours - theirs).detach().abs() / theirs.detach().abs().clamp_min(1.0)
        assert float(gap.max()) < 1e-10
    panel = next(iter(mech.sensors._panels.values()))[0]
    left = [mech.sensors[name].kind for name in mech.sensors if name not in panel.native]
    # the kernel takes all of its kinds, but forces where tendons pull
    assert {kind.name.lower() for kind in SensorKind}.isdisjoint(left) or case is pulled_walker


def test_second_derivatives_and_those_of_sites_and_masses_are_the_references():
    mech, z, _ = walker()
    names, z = ["gyro", "frame_position", "velocimeter"], z[0]

    def curvature():
        state = z.clone().requires_grad_()
        (g,) = torch.autograd.grad(mech.read_sensors(state, names=names).square().sum(), state, create_graph=True)
        return torch.autograd.grad((g * torch.arange(len(z))).sum(), state)[0]

    ours, theirs = read_both(mech, curvature)
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)
    before = mech.read_sensors(z, names=["frame_position"])
    mech.sites["foot"].position[0] += 0.1  # in place: the kernel sees it
    moved = mech.read_sensors(z, names=["frame_position"])
    assert float((moved - before).norm()) == pytest.approx(0.1 * 1.5, rel=1e-9)
    lever = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    mech.sites["foot"] = td.Site(list(mech.bodies)[-1], lever)
    assert torch.autograd.grad(mech.read_sensors(z, names=["frame_position"]).sum(), lever)[0].abs().max() > 0


def test_environments_with_numbers_of_their_own():
    mech, z, _ = walker()
    mech.bodies[list(mech.bodies)[-1]].mass = torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64)
    names = [name for name in mech.sensors if "subtree" in name or name in ("force", "torque", "accelerometer")]
    out = mech.step(z)
    ours, theirs = read_both(mech, lambda: mech.read_sensors(z, out, names=names))
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)
    mech.gravity = torch.tensor([[0.0, 0.0, -g] for g in (1.0, 2.0, 3.0)], dtype=torch.float64)
    more, theirs = read_both(
        mech, lambda: mech.read_sensors(z[0], out._replace(z=out.z[0], impulses=out.impulses[0]), names=["accelerometer"])
    )
    assert more.shape == (3, 3)  # parameters have more dimensions than the state
    torch.testing.assert_close(more, theirs, rtol=1e-10, atol=1e-10)
