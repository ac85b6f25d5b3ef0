"""Rows of loops that repeat others: found, left out, and refused where they contradict each other too much."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import Tensor

import torchdojo as td
from torchdojo.state.redundancy import LARGEST_MISFIT

UP, DOWN, X = (0.0, 0.0, 0.5), (0.0, 0.0, -0.5), (1.0, 0.0, 0.0)
SIDE = (0.6, 0.0, 0.8)


def rods(names: str) -> dict[str, td.Body]:
    return {name: td.Body(1.0, (0.09, 0.09, 0.01)) for name in names}


def four_bar(closing: str = "Spherical", misfit: float = 0.0, ground: float = 1.0, tilt: float = 0.0) -> td.Mechanism:
    """Three rods of 1 m above each other on hinges of the plane x = 0, from (0, 0) to (0, ground)."""
    offset = {} if closing == "Spherical" else {"axis": X}
    joints = {
        "crank": td.Revolute(None, "a", axis=X, child_anchor=DOWN, damper=0.05),
        "elbow": td.Revolute("a", "b", axis=X, parent_anchor=UP, child_anchor=DOWN, spring=1.0, rest=-1.0, implicit=True),
        "rocker": td.Revolute(None, "c", axis=(1.0, tilt, tilt), parent_anchor=(0.0, 0.0, ground), child_anchor=DOWN),
        "pin": getattr(td, closing)("b", "c", parent_anchor=(misfit, 0.0, 0.5), child_anchor=UP, **offset),
    }
    return td.Mechanism(rods("abc"), joints)


def reordered(joints: str, misfit: float = 0.0, **given: float) -> td.Mechanism:
    """A four-bar whose joints are declared in another order, so another one closes the loop."""
    mech = four_bar(misfit=misfit, **given)
    return td.Mechanism(rods("abc"), {name: mech.joints[name] for name in joints.split()})


def slider_crank() -> td.Mechanism:
    joints = {
        "crank": td.Revolute(None, "a", axis=X, child_anchor=DOWN),
        "elbow": td.Revolute("a", "b", axis=X, parent_anchor=UP, child_anchor=DOWN),
        "wrist": td.Revolute("b", "c", axis=X, parent_anchor=UP),
        "rail": td.Prismatic(None, "c", axis=(0.0, 0.0, 1.0)),
    }
    return td.Mechanism(rods("abc"), joints)


def door(floating: bool = False) -> td.Mechanism:
    """Two hinges on one axis."""
    frame = "frame" if floating else None
    names = ["frame", "door"] if floating else ["door"]
    hinges = {
        name: td.Revolute(frame, "door", axis=SIDE, parent_anchor=anchor, child_anchor=anchor)
        for name, anchor in (("low", (-0.3, 0.2, -0.4)), ("high", (0.3, 0.2, 0.4)))
    }
    return td.Mechanism({name: td.Body(1.0, (0.1, 0.1, 0.1)) for name in names}, hinges)


def spherical_loop(away: float = 0.0) -> td.Mechanism:
    """Three links around the origin, whose hinges all pass through it, with anchors on the hinges away from it."""
    axes = {"one": (0.0, 0.0, 1.0), "two": (1.0, 0.0, 0.0), "three": (0.0, 0.6, 0.8), "four": (0.8, 0.6, 0.0)}
    ends = {"one": (None, "a"), "two": ("a", "b"), "three": ("b", "c"), "four": (None, "c")}
    joints = {}
    for name, axis in axes.items():
        anchor = tuple(away * x for x in axis)
        joints[name] = td.Revolute(*ends[name], axis=axis, parent_anchor=anchor, child_anchor=anchor)
    return td.Mechanism(rods("abc"), joints)


def spatial_loop() -> td.Mechanism:
    """Hinges that are neither parallel nor through one point, and balls."""
    joints = {
        "one": td.Revolute(None, "a", axis=X, child_anchor=DOWN),
        "two": td.Spherical("a", "b", parent_anchor=UP, child_anchor=DOWN),
        "three": td.Revolute(None, "c", axis=(0.0, 1.0, 0.2), parent_anchor=(0.3, 0.0, 1.0), child_anchor=DOWN),
        "close": td.Spherical("b", "c", parent_anchor=UP, child_anchor=UP),
    }
    return td.Mechanism(rods("abc"), joints)


#: loop -> the ranks that its closing joint keeps, of translations and rotations; None where nothing repeats.
KEPT = {
    "ball in a plane": (lambda: four_bar(), "pin", (2, 0)),
    "hinge in a plane": (lambda: four_bar("Revolute"), "pin", (2, 0)),
    "anchors off": (lambda: four_bar("Revolute", misfit=1e-4), "pin", (2, 0)),
    "axes off": (lambda: four_bar("Revolute", tilt=1e-4), "pin", (2, 0)),
    "slider": (slider_crank, "rail", (1, 1)),
    "door": (door, "high", (0, 0)),
    "door of a free frame": (lambda: door(True), "high", (0, 0)),
    "axes through a point": (spherical_loop, "four", (0, 2)),
    "anchors away from the point": (lambda: spherical_loop(0.3), "four", (0, 2)),
    "ball in the tree": (lambda: reordered("crank elbow pin rocker", 1e-5, ground=1.2), "rocker", (2, 2)),
    "in space": (spatial_loop, "close", None),
    "tree": (lambda: td.models.double_pendulum(), "hinge", None),
}


@pytest.mark.parametrize("case", KEPT)
def test_rows_that_repeat_are_found(case: str) -> None:
    build, name, expected = KEPT[case]
    mech = build()
    kept = {key: joint.kept_rows for key, joint in mech.joints.items() if joint.kept_rows is not None}
    assert set(kept) == (set() if expected is None else {name})
    if expected is not None:
        projections = kept[name].matrices(mech.gravity)
        assert tuple(round(float(p.trace())) for p in projections) == expected
        for p in projections:
            torch.testing.assert_close(p @ p, p, rtol=0, atol=1e-11)
    assert [joint.kept_rows for joint in pickle.loads(pickle.dumps(copy.deepcopy(mech))).joints.values()] == [
        joint.kept_rows for joint in mech.joints.values()
    ]


def swing(mech: td.Mechanism, steps: int, h: float = 0.01) -> tuple[Tensor, td.Trajectory]:
    mech.timestep, mech.gravity = h, (0.0, 0.0, 0.0)
    q = torch.tensor([1.0, -1.0, 1.0])
    z = mech.close_loops(mech.to_maximal(q, -2 * q), hold="crank").requires_grad_()
    path = mech.rollout(z, 0.1 * torch.randn(steps, mech.num_inputs))
    assert (path.status == 0).all()
    (gradient,) = torch.autograd.grad(path.z[-1].square().sum(), z)
    assert gradient.isfinite().all()
    return path.z.detach(), path


@pytest.mark.parametrize("closing", ["Spherical", "Revolute"])
@pytest.mark.parametrize("misfit", [1e-9, 1e-6, 1e-4])
def test_inexact_loops_move_as_exact_ones(closing: str, misfit: float) -> None:
    """The parallelogram passes its flat configuration, where other rows of it depend on each other."""
    torch.manual_seed(0)
    exact, _ = swing(four_bar(closing), 150)
    torch.manual_seed(0)
    mech = four_bar(closing, misfit, tilt=misfit)
    z, path = swing(mech, 150)
    assert float(path.iterations.double().mean()) <= 3
    assert float(mech.joint_errors(z).abs().max()) <= max(4 * misfit, 1e-9)
    crank = mech.to_minimal(z)[0][:, 0]
    assert float(crank.min()) < -0.5 < 0.5 < float(crank.max())  # it passes zero, where all rods are on one line
    assert float((z - exact).abs().max()) <= 100 * misfit + 1e-6  # after 1.5 s


INEXACT = {
    "ball in the tree": (lambda: reordered("crank elbow pin rocker", ground=1.2), "rocker", dict(crank=dict(q=-1.1, qd=0.5))),
    "slider": (slider_crank, "rail", dict(crank=dict(q=0.6, qd=1.0))),
    "door": (door, "high", dict(low=dict(q=0.3, qd=1.0))),
    "axes through a point": (lambda: spherical_loop(0.3), "four", dict(one=dict(q=-0.4, qd=-0.5))),
}


@pytest.mark.parametrize("case", INEXACT)
@pytest.mark.parametrize("misfit", [1e-6, 1e-4])
def test_other_inexact_loops(case: str, misfit: float) -> None:
    build, name, start = INEXACT[case]
    bodies, joints = build().bodies, dict(build().joints)
    joint = joints[name]
    free = torch.cat((joint.free_translational_axes, joint.free_rotational_axes))[0]
    joint.child_anchor = joint.child_anchor + misfit * free / torch.linalg.vector_norm(free)
    mech = td.Mechanism(dict(bodies), joints)
    path = mech.rollout(mech.initial_state(**start), torch.zeros(100, mech.num_inputs))
    assert (path.status == 0).all() and float(path.iterations.double().mean()) <= 4
    assert float(mech.joint_errors(path.z).abs().max()) <= 4 * misfit
    assert float(path.z.diff(dim=0).abs().max()) > 1e-3  # it moves


def test_flat_loops_are_finite() -> None:
    """Starts at the flat configuration, with rods that do not fit in the plane, either."""
    for ground in (1.0, 1.0 + 1e-6, 1.0 + 1e-4):
        mech = four_bar("Revolute", 1e-5, ground)
        z = mech.initial_state(crank=dict(q=1e-3)).requires_grad_()
        u = 0.1 * torch.ones(30, mech.num_inputs)
        path = mech.rollout(z, u)
        (gradient,) = torch.autograd.grad(path.z.square().sum(), z)
        assert path.z.isfinite().all() and gradient.isfinite().all() and torch.cat(mech.jacobians(z.detach()), -1).isfinite().all()


@pytest.mark.parametrize("misfit", [1e-9, 1e-4])
def test_gradients_of_inexact_loops(misfit: float) -> None:
    """By state, input and numbers of the joints, impulses included: they are unique."""
    mech = four_bar("Revolute", misfit, ground=1.2)
    z = mech.initial_state(crank=dict(q=-1.1, qd=0.5))
    names = ["joints.pin.parent_anchor", "joints.pin.axis", "joints.crank.child_anchor", "joints.rocker.axis", "timestep", "bodies.b.mass"]
    td.testing.check_gradients(mech, z, torch.randn(mech.num_inputs), parameters=names, directions=4, tolerance=1e-6)


def test_contradictions_are_refused() -> None:
    with pytest.raises(ValueError, match=r"joint 'pin' by 0\.002 m and 0 rad stays open\. Correct .* differ by 0\.001 m and rad"):
        four_bar(misfit=2 * LARGEST_MISFIT)
    anchors = torch.zeros(3, 3) + torch.tensor(UP)
    anchors[1, 0] = 0.1
    with pytest.raises(ValueError, match=r"joint 'pin' by 0\.1 m"):  # in one environment of three
        td.Mechanism(rods("abc"), dict(four_bar().joints) | {"pin": td.Spherical("b", "c", parent_anchor=anchors, child_anchor=UP)})
    mech = four_bar(ground=1.2)
    mech.joints["pin"].parent_anchor = (0.02, 0.0, 0.5)
    with pytest.raises(ValueError, match=r"joint 'pin' by 0\.02 m and 0 rad stays open"):
        mech.initial_state(crank=dict(q=-1.0))


def test_environments_share_what_repeats() -> None:
    anchors = torch.tensor(UP).repeat(3, 1)
    anchors[:, 0] = torch.tensor([0.0, 1e-6, 1e-4])
    pin = td.Spherical("b", "c", parent_anchor=anchors, child_anchor=UP)
    mech = td.Mechanism(rods("abc"), dict(four_bar(ground=1.2).joints) | {"pin": pin})
    path = mech.rollout(mech.initial_state((3,), crank=dict(q=-1.1)), steps=20)
    assert (path.status == 0).all()
    gaps = mech.joint_errors(path.z.transpose(0, 1)).abs().amax((0, 2))
    torch.testing.assert_close(gaps, anchors[:, 0], rtol=0, atol=2e-9)
