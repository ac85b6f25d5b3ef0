"""The built-in mechanisms: they build, step, and where Dojo has the same mechanism its published numbers are ours."""

import json
import warnings

import numpy as np
import pytest
import torch

import torchdojo as td
from conftest import shared_path
from torchdojo import models
from torchdojo.elements.joints import JOINT_TYPES
from torchdojo.models import built_in


@pytest.mark.parametrize("name", models.names())
def test_every_model_builds_and_steps_from_its_start(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mech = models.make(name, timestep=0.01)
    z = models.initial_state(name, mech, (2,))
    assert z.shape == (2, 13 * mech.num_bodies)
    torch.testing.assert_close(mech.joint_errors(z), torch.zeros_like(mech.joint_errors(z)), rtol=0, atol=1e-12)
    assert (mech.distances(z) > 0).all()
    out = mech.step(z)
    assert (out.status == td.Status.SUCCESS).all()
    assert torch.isfinite(out.z).all()


def test_make_lists_names_and_options():
    with pytest.raises(ValueError, match=r"no built-in mechanism 'dog'; there are: pendulum, .*quadruped"):
        models.make("dog")
    with pytest.raises(ValueError, match=r"'box' has no option 'colour'; its options: timestep, gravity"):
        models.make("box", colour="red")
    with pytest.raises(ValueError, match="there are:"):
        models.initial_state("dog", models.box())


def test_names_are_attributes_of_the_package():
    for name in models.names():
        assert callable(getattr(models, name))
        assert name in models.__all__


def test_a_decorated_function_is_a_built_in_mechanism(monkeypatch):
    monkeypatch.setattr(built_in, "MODELS", dict(built_in.MODELS))

    @built_in.built_in(ball={"position": (0.0, 0.0, 2.0)})
    def falling_ball(*, timestep=0.01, mass=1.0):
        return td.Mechanism({"ball": td.Body(mass, shape=td.Sphere(0.1))}, timestep=timestep)

    assert models.names()[-1] == "falling_ball"
    z = models.initial_state("falling_ball", models.make("falling_ball", mass=2.0), (3,))
    assert z[:, 2].tolist() == [2.0] * 3
    with pytest.raises(ValueError, match="its options: timestep, mass"):
        models.make("falling_ball", radius=1.0)


@pytest.mark.parametrize("joint", JOINT_TYPES)
def test_snake_takes_every_joint(joint):
    mech = models.snake(3, joint, contact=False, gravity=(0.0, 0.0, 0.0))
    assert mech.num_coordinates == 6 + 2 * sum(JOINT_TYPES[joint])
    out = mech.step(models.initial_state("snake", mech))
    assert out.status == td.Status.SUCCESS


@pytest.mark.parametrize("build", [models.snake, models.npendulum])
@pytest.mark.parametrize("n", [0, -1, 1.5, True])
def test_chains_refuse_impossible_lengths(build, n):
    with pytest.raises(ValueError, match="allowed: a number of bodies, 1 or more"):
        build(n)


def test_snake_refuses_unknown_joints():
    with pytest.raises(ValueError, match="got joint='Hinge'; allowed: Fixed, "):
        models.snake(3, "Hinge")


def test_options_reach_the_mechanism():
    assert models.box(contact=False).contacts.keys() == set()
    assert models.box(friction=0.1).contacts["corner1"].friction == 0.1
    assert models.sphere(radius=0.2).contacts["ground"].radius == 0.2
    assert models.cartpole(actuated_pole=True).num_inputs == 2
    assert models.cartpole().num_inputs == 1
    assert len(models.npendulum(7).bodies) == 7
    assert models.quadruped().num_inputs == 12
    assert models.quadruped(actuated_base=True).num_inputs == 18
    assert list(models.quadruped(contact_body=False).contacts) == ["FR_foot", "FL_foot", "RR_foot", "RL_foot"]


def test_quadruped_limits_only_when_asked():
    assert models.quadruped().joints["FR_calf_joint"].limits is None
    assert models.quadruped(limits=True).joints["FR_calf_joint"].limits == (-2.5, -1.0)
    assert models.quadruped().joints["FR_calf_joint"].velocity_limits is None


def test_speed_of_the_quadruped_under_violent_torques():
    """±30 N·m at random spin legs of 0.17 kg beyond what a step represents, unless their motors have a largest speed."""
    mech = models.quadruped(velocity_limits=True)
    u = 60 * torch.rand(100, 12, generator=torch.Generator().manual_seed(0)) - 30
    with torch.no_grad():
        path = mech.rollout(models.initial_state("quadruped", mech), u)
        speeds = mech.to_minimal(path.z)[1][:, 6:]
    assert not path.status.any() and bool((path.substeps == 1).all())
    assert 20.9 < float(speeds.abs().max()) < 21.0


def _golden(name):
    description = json.loads(shared_path("golden", f"{name}.json").read_text())
    with np.load(shared_path("golden", f"{name}.npz")) as archive:
        return description, {key: torch.from_numpy(archive[key]) for key in archive.files}


def test_quadruped_has_the_numbers_of_dojo():
    description, arrays = _golden("quadruped_drop_h01")
    mech = models.quadruped(actuated_base=True)
    assert {b["name"] for b in description["bodies"]} == set(mech.bodies)
    for entry in description["bodies"]:
        body = mech.bodies[entry["name"]]
        assert body.mass == entry["mass"]
        torch.testing.assert_close(body.inertia, torch.tensor(entry["inertia"]), rtol=0, atol=1e-15)
    assert [j["name"] for j in description["joints"]] == list(mech.joints)
    for entry in description["joints"]:
        joint = mech.joints[entry["name"]]
        assert (joint.parent, joint.child) == (entry["parent"], entry["child"])
        for ours, theirs in ((joint.parent_anchor, "parent_vertex"), (joint.child_anchor, "child_vertex")):
            torch.testing.assert_close(ours, torch.tensor(entry[theirs]), rtol=0, atol=1e-15)
        if joint.num_coordinates == 1:
            torch.testing.assert_close(joint.axis, torch.tensor(entry["axis"]))
            assert joint.damper == entry["damper_rotational"]
            assert joint.rest == entry["spring_offset"]["rotational"][0]
    # The contacts touch at the same distances in every recorded state.
    order = [[b["name"] for b in description["bodies"]].index(name) for name in mech.bodies]
    z = arrays["z_next_k6"].unflatten(-1, (-1, 13))[:, order].flatten(-2)
    ours = mech.distances(z)
    names = {
        f"{leg}_{theirs}_contact": f"{leg}_{name}"
        for leg in ("FR", "FL", "RR", "RL")
        for theirs, name in (("calf", "foot"), ("thigh", "knee"), ("hip", "hip"))
    }
    columns = [list(mech.contacts).index(names[c["name"]]) for c in description["contacts"]]
    torch.testing.assert_close(ours[:, columns], arrays["contact_phi_next_k6"], rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("case", "mech"),
    [
        ("pendulum_free", models.pendulum()),
        ("npendulum5_h01", models.npendulum(5)),
        ("snake3_Revolute", None),
        ("block_nonlinear_h01_a", models.box()),
    ],
)
def test_small_models_have_the_numbers_of_dojo(case, mech):
    description, _ = _golden(case)
    mech = mech or models.snake(3, "Revolute")
    for entry, body in zip(description["bodies"], mech.bodies.values(), strict=True):
        assert body.mass == entry["mass"]
        torch.testing.assert_close(body.inertia, torch.tensor(entry["inertia"]), rtol=1e-12, atol=0)
    joints = [joint for joint in mech.joints.values() if not isinstance(joint, td.Floating)]
    for entry, joint in zip([j for j in description["joints"] if j["type"] != "Floating"], joints, strict=True):
        torch.testing.assert_close(joint.parent_anchor, torch.tensor(entry["parent_vertex"]))
        torch.testing.assert_close(joint.child_anchor, torch.tensor(entry["child_vertex"]))


def test_springs_hold_the_quadruped_up():
    """Two seconds on the ground at h = 0.02 with the rest springs that its docstring recommends."""
    mech = models.quadruped(spring=30.0, damper=0.5, contact_body=False, timestep=0.02)
    z = models.initial_state("quadruped", mech)
    with torch.no_grad():
        out = mech.rollout(z, steps=15)
    assert (out.status == td.Status.SUCCESS).all()
    assert out.z[-1, 2] > 0.2
