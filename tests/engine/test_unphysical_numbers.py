"""Numbers that no mechanism can have, written in place: flagged in `step`, refused in `mech(z)`, in both backends."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import torchdojo as td
from torchdojo.native import loader

BACKENDS = [
    pytest.param("native", marks=pytest.mark.skipif(not loader.available(), reason="no compiler for the native kernel")),
    "reference",
]


def arm(backend: str) -> tuple[td.Mechanism, Tensor]:
    """A link with every law that has a range, and a box on the ground beside it."""
    joint = td.Revolute(
        None, "link", axis=(0, 1, 0), child_anchor=(0, 0, 0.5), spring=1.0, damper=0.1, armature=0.01, friction=0.1,
        limits=(-1.0, 1.0), velocity_limits=9.0,
    )  # fmt: skip
    ground = td.NonlinearContact("box", radius=0.1, friction=0.5, restitution=0.5, rolling_friction=0.01)
    capsule = td.NonlinearContact("link", other="box", friction=0.5, shape=td.Capsule(0.1, 0.5), other_shape=td.Sphere(0.1))
    mech = td.Mechanism(
        {"link": td.Body(1.0, (0.1, 0.1, 0.1)), "box": td.Body(1.0, (0.1, 0.1, 0.1))},
        {"hinge": joint},
        {"ground": ground, "capsule": capsule},
        timestep=0.01,
        options=td.SolverOptions(backend=backend),
    )
    return mech, mech.initial_state(box={"position": (1.0, 0.0, 0.2)})


#: Field -> impossible value, and the words with which it is refused.
CASES: dict[str, tuple[object, str]] = {
    "timestep": (-0.01, "timestep is -0.01"),
    "bodies.box.mass": (-1.0, "mass of body 'box' is -1.0"),
    "bodies.link.inertia": (torch.zeros(3, 3), "inertia of body 'link' is"),
    "bodies.box.inertia": (torch.tensor([[1.0, 2.0, 0.0], [2.0, 1.0, 0.0], [0.0, 0.0, 1.0]]), "inertia of body 'box' is"),
    "joints.hinge.damper": (-0.1, "Revolute.damper is -0.1"),
    "joints.hinge.friction": (-0.1, "JointFriction.friction is -0.1"),
    "joints.hinge.velocity_limits": (math.nan, "velocity_limits is nan"),
    "contacts.ground.friction": (math.nan, "NonlinearContact.friction is nan"),
    "contacts.ground.restitution": (1.5, "restitution is 1.5"),
    "contacts.capsule.length": (-0.5, "length is -0.5"),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", CASES)
def test_in_place(backend: str, name: str) -> None:
    """A number that all environments share makes all of them invalid. The right number brings the step back."""
    mech, z = arm(backend)
    value, words = CASES[name]
    owner, _, field = name.rpartition(".")
    number = getattr(mech.get_submodule(owner), field)
    before = number.detach().clone()
    good = mech(z)
    number.data.copy_(torch.as_tensor(value).expand(number.shape))
    out = mech.step(z.expand(2, -1))
    assert out.status.tolist() == [int(td.Status.INVALID_INPUT)] * 2 and torch.equal(out.z, z.expand(2, -1))
    with pytest.raises(ValueError, match=f"environment 0 of 2 is invalid: .*{words}"):
        mech(z.expand(2, -1))
    number.data.copy_(before)
    assert torch.equal(mech(z), good)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("trained", [False, True])
def test_one_environment_of_a_batch(backend: str, trained: bool) -> None:
    """The environment with a mass of −1 is flagged and has a gradient of zero. The others keep their bits."""
    mech, z = arm(backend)
    mech.bodies["box"].mass = torch.tensor([1.0, 2.0, 3.0])
    good = mech.step(z.expand(3, -1))
    mass = mech.bodies["box"].mass.requires_grad_(trained)
    mass.data[1] = -1.0
    out = mech.step(z.expand(3, -1))
    assert out.status.tolist() == [0, int(td.Status.INVALID_INPUT), 0]
    assert torch.equal(out.z[[0, 2]], good.z[[0, 2]]) and torch.equal(out.z[1], z)
    if trained:
        out.z.square().sum().backward()
        assert mass.grad is not None and float(mass.grad[1]) == 0 and bool((mass.grad[[0, 2]] != 0).all())
    with pytest.raises(ValueError, match=r"environment 1 of 3 is invalid: mass of body 'box' is -1\.0"):
        mech(z.expand(3, -1))
