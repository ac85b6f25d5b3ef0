"""Switches of joints that close loops, and of couplings: per environment, in the reference and in the kernel."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

import torchdojo as td

H = 0.01


def links(closing: dict[str, td.Joint]) -> td.Mechanism:
    """Two pendulums and a free body, which the `closing` joints tie to each other."""
    body = {"mass": 1.0, "inertia": (0.1, 0.12, 0.15)}
    joints: dict[str, td.Joint] = {
        "left": td.Revolute(None, "a", axis=(0, 1, 0), child_anchor=(0, 0, 0.5)),
        "right": td.Revolute("a", "b", axis=(0.1, 1, 0), parent_anchor=(0, 0, -0.5), child_anchor=(0, 0, 0.4), damper=0.1),
        "free": td.Floating(None, "c", actuated=False),
    }
    bodies = {name: td.Body(**body) for name in "abc"}
    return td.Mechanism(bodies, {**joints, **closing}, timestep=H, options=td.SolverOptions(residual_tol=1e-12))


HELD = {"parent_anchor": (0.1, 0.0, -0.3), "child_anchor": (0, 0.2, 0.1), "actuated": False}
CLOSING = {
    "weld": lambda active: td.Fixed("b", "c", parent_anchor=(0.1, 0.2, -0.3), orientation_offset=(0.8, 0.6, 0, 0), active=active),
    "connect": lambda active: td.Spherical("b", "c", active=active, **HELD),
    "hinge": lambda active: td.Revolute("b", "c", axis=(1, 0, 0.2), active=active, damper=0.1, **HELD),
}


def moving(mech: td.Mechanism, count: int = 3) -> Tensor:
    q, qd = 0.4 * torch.randn(count, mech.num_coordinates), torch.randn(count, mech.num_coordinates)
    return mech.close_loops(mech.to_maximal(q, qd))


@pytest.mark.parametrize("backend", ["native", pytest.param("reference", marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", CLOSING)
def test_a_joint_that_is_off_is_not_there(kind: str, backend: str) -> None:
    torch.manual_seed(0)
    with_it, without = links({"tie": CLOSING[kind](None)}), links({})
    switched = links({"tie": CLOSING[kind](torch.tensor([1.0, 0.0, 1.0]))})
    z = moving(with_it)
    for mech in (with_it, without, switched):
        mech.options = td.SolverOptions(residual_tol=1e-12, backend=backend)
    on, off, both = (mech.rollout(z, steps=5).z for mech in (with_it, without, switched))
    torch.testing.assert_close(both[[0, 2]], on[[0, 2]], rtol=0, atol=1e-9)
    if kind != "hinge":  # whose damper acts, on or off
        torch.testing.assert_close(both[1], off[1], rtol=0, atol=1e-9)
        impulse = switched.step(z).impulses[1, switched.impulse_layout["joints.tie"]]
        assert float(impulse.abs().max()) < 1e-9
    assert float((on[1, -1] - off[1, -1]).abs().max()) > 1e-3


def outcome(mech: td.Mechanism, z: Tensor, backend: str) -> tuple[Tensor, dict[str, Tensor]]:
    mech.options = td.SolverOptions(residual_tol=1e-13, backend=backend)
    leaf = z.clone().requires_grad_()
    named = dict(mech.named_parameters())
    for parameter in named.values():
        parameter.requires_grad_()
    out = mech.step(leaf)
    weights = torch.linspace(-1, 1, out.z.shape[-1]), torch.linspace(1, 2, out.impulses.shape[-1])
    value = (out.z * weights[0]).sum() + (out.impulses * weights[1]).sum()
    found = torch.autograd.grad(value, [leaf, *named.values()], materialize_grads=True, allow_unused=True)
    return out.z.detach(), dict(zip(["z", *named], found, strict=True))


@pytest.mark.parametrize("kind", ["weld", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("connect", "hinge"))])
def test_kernel_and_reference_agree(kind: str) -> None:
    torch.manual_seed(1)
    mech = links({"tie": CLOSING[kind](torch.tensor([1.0, 0.0, 1.0]))})
    z = moving(mech)
    (state, ours), (wanted, theirs) = (outcome(mech, z, backend) for backend in ("native", "reference"))
    torch.testing.assert_close(state, wanted, rtol=0, atol=1e-10)
    for name, value in theirs.items():
        scale = 1 + float(torch.linalg.vector_norm(value))
        assert float(torch.linalg.vector_norm(ours[name] - value)) <= 1e-10 * scale, name


@pytest.mark.slow
@pytest.mark.parametrize("active", [1.0, 0.0])
@pytest.mark.parametrize("kind", CLOSING)
def test_gradients(kind: str, active: float) -> None:
    torch.manual_seed(2)
    mech = links({"tie": CLOSING[kind](active)})
    td.testing.check_gradients(mech, moving(mech, 1)[0], torch.randn(mech.num_inputs), tolerance=1e-6, directions=3)


def test_states_are_assembled_where_the_joint_holds() -> None:
    torch.manual_seed(3)
    mech = links({"tie": CLOSING["weld"](torch.tensor([1.0, 0.0]))})
    open_z = mech.to_maximal(0.4 * torch.randn(2, mech.num_coordinates))
    z = mech.close_loops(open_z)
    gaps = mech.joint_errors(z).abs().amax(-1)
    assert float(gaps[0]) < 1e-9 and float(gaps[1]) > 0.1
    torch.testing.assert_close(z[1], open_z[1], rtol=0, atol=1e-9)


def test_copies_keep_the_switch() -> None:
    mech = links({"tie": CLOSING["weld"](1.0)})
    other = copy.deepcopy(mech)
    other.joints["tie"].active = 0.0
    z = moving(mech)
    assert float(mech.joints["tie"].active) == 1.0
    torch.testing.assert_close(other(z), links({})(z), rtol=0, atol=1e-9)


BAD: dict[str, tuple[Any, str]] = {
    "half": (lambda: td.JointLock("left", active=0.5), r"JointLock\.active: got 0\.5; allowed: 1, where the coupling acts, and 0"),
    "half of a joint": (lambda: td.Fixed("b", "c", active=0.5), r"Fixed\.active: got 0\.5; allowed: 1, where the joint holds, and 0"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_switches(case: str) -> None:
    make, message = BAD[case]
    with pytest.raises(ValueError, match=message):
        make()


def test_joints_of_the_tree_and_elements_without_switch_refuse() -> None:
    bodies = {"a": td.Body(1.0, (0.1, 0.1, 0.1))}
    with pytest.raises(ValueError, match=r"joint 'pin': got active=1\.0 for a joint of the spanning tree.*td\.Floating\(None, 'a', act"):
        td.Mechanism(bodies, {"pin": td.Revolute(None, "a", active=1.0)})
    with pytest.raises(ValueError, match=r"Fixed\.active: got 0\.0 for a joint built without active; build it with active="):
        td.Fixed("a", "b").active = 0.0
    with pytest.raises(ValueError, match=r"JointCoupling\.active: got 0 for a coupling built without active; build it with active="):
        td.JointCoupling("a", "b").active = 0
    td.JointCoupling("a", "b").active = 1.0  # as it is
