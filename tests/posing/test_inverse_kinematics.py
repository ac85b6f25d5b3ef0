"""Inverse kinematics: targets reached within limits, the least error where none can be, derivatives, batches, bad input."""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import torchdojo as td
from conftest import shared_path
from torchdojo import models
from torchdojo import quaternion as quat

REACH = 1e-6  # [m, rad]


@pytest.fixture(scope="module")
def panda() -> td.Mechanism:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return td.load(shared_path("models", "franka_panda", "panda.xml"), mesh="skip")


def limits(mech: td.Mechanism) -> tuple[Tensor, Tensor]:
    bounds = [mech.joints[name].limits for name in mech.tree_joints]
    return torch.cat([lower for lower, _ in bounds]), torch.cat([upper for _, upper in bounds])


def random_poses(mech: td.Mechanism, body: str, count: int, seed: int) -> td.PoseTarget:
    lower, upper = limits(mech)
    generator = torch.Generator().manual_seed(seed)
    q = lower + (upper - lower) * torch.rand(count, mech.num_coordinates, generator=generator, dtype=torch.float64)
    state = mech.body_state(mech.to_maximal(q), body)
    return td.PoseTarget(body, state.x, state.q)


def check(mech: td.Mechanism, target: td.PoseTarget, found: td.Posture) -> None:
    """Successes are true, and limits are kept."""
    state = mech.body_state(mech.to_maximal(found.q), target.body)
    away = torch.linalg.vector_norm(state.x - target.position, dim=-1)
    angle = torch.linalg.vector_norm(quat.rotation_vector(quat.multiply(quat.conjugate(target.orientation), state.q)), dim=-1)
    assert torch.allclose(away, found.position_error, atol=1e-12)
    assert torch.allclose(angle, found.orientation_error, atol=1e-7)
    assert torch.equal(found.success, (found.position_error <= REACH) & (found.orientation_error <= REACH))
    lower, upper = limits(mech)
    assert bool(((found.q >= lower) & (found.q <= upper)).all())


def test_panda_reaches_random_poses(panda: td.Mechanism) -> None:
    target = random_poses(panda, "link7", 100, 0)
    found = panda.inverse_kinematics(target)
    check(panda, target, found)
    assert float(found.success.double().mean()) >= 0.99
    assert torch.equal(found.q[:, 7:], torch.zeros(100, 2))  # the fingers, which are coupled, stay
    again = panda.inverse_kinematics(target, found.q)
    assert torch.equal(again.q[found.success], found.q[found.success])
    assert int(again.iterations[found.success].sum()) == 0


@pytest.mark.slow
def test_panda_reaches_a_thousand_poses_in_a_millisecond_each(panda: td.Mechanism) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for seed in (1, 2, 3):
        target = random_poses(panda, "link7", 1000, seed)
        start = time.process_time()
        found = panda.inverse_kinematics(target)
        assert time.process_time() - start < 1.0
        check(panda, target, found)
        assert float(found.success.double().mean()) >= 0.99
    torch.set_num_threads(threads)


def test_several_targets_of_a_free_robot() -> None:
    """Four feet stay where they are, and the trunk comes down by 5 cm and leans forward: legs and base move."""
    mech = models.make("quadruped")
    z = mech.initial_state(pose="home")
    q, _ = mech.to_minimal(z)
    feet = [name for name in mech.bodies if "calf" in name or "lower" in name or "foot" in name]
    assert len(feet) == 4
    tip = torch.tensor([[0.0, 0.0, -0.1]], dtype=torch.float64)
    stay = [td.PoseTarget(foot, mech.body_points(z, foot, tip)[0], point=tip[0]) for foot in feet]
    trunk = mech.body_state(z, next(iter(mech.bodies)))
    down = trunk.x - trunk.x.new_tensor((0.0, 0.0, 0.05))
    lean = quat.multiply(quat.exp(trunk.x.new_tensor((0.0, 0.1, 0.0))), trunk.q)
    found = mech.inverse_kinematics([*stay, td.PoseTarget(next(iter(mech.bodies)), down, lean)], q)
    assert bool(found.success)
    after = mech.to_maximal(found.q)
    for target in stay:
        assert float((mech.body_points(after, target.body, tip)[0] - target.position).norm()) <= REACH
    held = mech.inverse_kinematics([stay[0]._replace(position=stay[0].position + 0.02)], q, hold=mech.tree_joints[:1])
    assert bool(held.success)
    assert torch.equal(held.q[:6], q[:6])


def balls() -> td.Mechanism:
    """A ball joint and a universal joint in series, and a slide with limits."""
    bodies = {name: td.Body(1.0, (0.1, 0.1, 0.1)) for name in "abc"}
    at = {"parent_anchor": (0.0, 0.0, 0.3), "child_anchor": (0.0, 0.0, -0.3)}
    slide = td.Prismatic("b", "c", axis=(0, 0, 1), limits=(-0.1, 0.2))
    return td.Mechanism(bodies, {"ball": td.Spherical(None, "a", **at), "cardan": td.Orbital("a", "b", **at), "slide": slide})


def test_rotation_vectors_and_targets_out_of_reach() -> None:
    mech = balls()
    generator = torch.Generator().manual_seed(0)
    q = 0.5 * torch.randn(20, 6, generator=generator, dtype=torch.float64)
    q[:, 5] = 0.3 * torch.rand(20, generator=generator, dtype=torch.float64) - 0.1
    there = mech.body_state(mech.to_maximal(q), "c")
    found = mech.inverse_kinematics(td.PoseTarget("c", there.x, there.q))
    assert bool(found.success.all())
    # From a joint at (0, 0, 0.3), the center of c is 0.9 m + 0.2 m away at most.
    far = mech.inverse_kinematics(td.PoseTarget("c", (3.0, 0.0, 0.3)), iterations=100)
    assert not bool(far.success)
    assert float(far.position_error) == pytest.approx(3.0 - 1.1, abs=1e-6)
    assert float(far.q[5]) == pytest.approx(0.2, abs=1e-9)


def reached(mech: td.Mechanism, body: str, q: Tensor, **options: object) -> tuple[Callable[..., Tensor], list[Tensor]]:
    """The coordinates next to q as a function of the pose of a body, and this pose."""
    state = mech.body_state(mech.to_maximal(q), body)

    def function(position: Tensor, orientation: Tensor) -> Tensor:
        goal = td.PoseTarget(body, position, orientation / orientation.norm())
        return mech.inverse_kinematics(goal, q, tolerance=1e-11, **options).q

    return function, [state.x.clone().requires_grad_(), state.q.clone().requires_grad_()]


def test_derivatives_by_targets(panda: td.Mechanism) -> None:
    """The result moves with its target as differences say, where no freedom is left: one joint of the Panda is held."""
    q = torch.tensor((0.1, -0.5, 0.2, -1.8, 0.6, 1.9, 0.3, 0.0, 0.0), dtype=torch.float64)
    assert torch.autograd.gradcheck(*reached(panda, "link7", q, hold="joint1"), atol=1e-6, rtol=1e-6)
    free = td.Mechanism({"a": td.Body(1.0, (1, 1, 1))}, {"base": td.Floating(None, "a", child_anchor=(0.1, 0.2, 0.3))})
    q = torch.tensor((0.1, 0.2, 0.3, 0.7, -0.5, 1.0), dtype=torch.float64)
    assert torch.autograd.gradcheck(*reached(free, "a", q), atol=1e-6, rtol=1e-6)


def test_derivatives_by_parameters(panda: td.Mechanism) -> None:
    q = torch.tensor((0.1, -0.5, 0.2, -1.8, 0.6, 1.9, 0.3, 0.0, 0.0), dtype=torch.float64)
    goal = panda.body_state(panda.to_maximal(q), "link7")

    def function(anchor: Tensor) -> Tensor:
        mech = copy.deepcopy(panda)
        mech.joints["joint4"].parent_anchor = anchor
        return mech.inverse_kinematics(td.PoseTarget("link7", goal.x, goal.q), q, hold="joint1", tolerance=1e-11).q

    anchor = panda.joints["joint4"].parent_anchor.detach().clone().requires_grad_()
    assert torch.autograd.gradcheck(function, [anchor], atol=1e-6, rtol=1e-6)


def test_batches_and_dtypes(panda: td.Mechanism) -> None:
    target = random_poses(panda, "link7", 6, 7)
    shaped = td.PoseTarget("link7", target.position.reshape(2, 3, 3), target.orientation.reshape(2, 3, 4))
    found = panda.inverse_kinematics(shaped)
    assert found.q.shape == (2, 3, 9)
    assert found.success.shape == found.iterations.shape == (2, 3)
    start = torch.zeros(2, 1, 9, dtype=torch.float32)
    lowered = panda.inverse_kinematics(shaped, start)
    assert lowered.q.dtype == torch.float32
    assert torch.equal(found.q, panda.inverse_kinematics(shaped).q)  # one seed, one result


def test_bad_input(panda: td.Mechanism) -> None:
    target = td.PoseTarget("link7", (0.4, 0.0, 0.4))
    for wrong, message in (
        ([], "got no target; allowed: one or more"),
        ({"link7": 1}, "got 'link7' as a target; allowed: td.PoseTarget"),
        (td.PoseTarget("hand", (0, 0, 0)), r"got a target for 'hand'; bodies are \['link1'"),
        (td.PoseTarget("link7"), "the target of 'link7' has neither; give a position, an orientation, or both"),
        (td.PoseTarget("link7", (0.4, 0.0)), r"link7.position: got shape \(2,\); allowed: \(..., 3\)"),
        (td.PoseTarget("link7", None, (1.0, 1.0, 0.0, 0.0)), "link7.orientation: .*allowed: unit quaternions"),
        (target._replace(weight=0.0), "'link7' got the weight 0.0; allowed: finite numbers above 0"),
        (td.PoseTarget("left_finger", (0.4, 0.0, 0.4)), r"coupling .* couples coordinates of .*hold these joints, hold="),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            panda.inverse_kinematics(wrong)
    with pytest.raises(ValueError, match=r"got starts=0; allowed: 1 or more"):
        panda.inverse_kinematics(target, starts=0)
    with pytest.raises(ValueError, match=r"got tolerance=0.0; allowed: numbers above 0"):
        panda.inverse_kinematics(target, tolerance=0.0)
    with pytest.raises(ValueError, match=r"hold names 'joint9'; allowed: \['joint1'"):
        panda.inverse_kinematics(target, hold=["joint9"])
    with pytest.raises(RuntimeError, match=r"works inside no torch\.func transform"):
        torch.func.vmap(lambda p: panda.inverse_kinematics(td.PoseTarget("link7", p)).q)(torch.zeros(2, 3))
    fourbar = models.make("fourbar")
    with pytest.raises(ValueError, match="closes a loop or couples coordinates"):
        fourbar.inverse_kinematics(td.PoseTarget(list(fourbar.bodies)[-1], (0.0, 0.0, 0.0)))
