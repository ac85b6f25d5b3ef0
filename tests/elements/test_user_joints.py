"""Joints written by users: with and without coordinates, with limits on them, in trees and in loops."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import torchdojo as td
from torchdojo.elements import Pose
from user_elements import Cardan, Slider, TwoAngles, arm, cardan_arm

REFERENCE = td.SolverOptions(backend="reference")


def worst(value: Tensor) -> float:
    return float(value.abs().max())


MECHANISMS: dict[str, Callable[[], td.Mechanism]] = {
    "without coordinates": lambda: cardan_arm(Cardan),
    "two angles": lambda: cardan_arm(TwoAngles),
    "a length": lambda: arm(Slider("a", "b")),
}


@pytest.mark.parametrize("name", MECHANISMS)
def test_states_in_joint_coordinates(name: str) -> None:
    mech = MECHANISMS[name]()
    z = mech.initial_state(hinge=dict(q=0.3, qd=1.0))
    q, qd = mech.to_minimal(z)
    assert worst(mech.joint_errors(z)) < 2e-9  # closed to the solver's residual_tol
    assert abs(float(q[0]) - 0.3) < 1e-12 and abs(float(qd[0]) - 1.0) < 1e-12
    assert worst(mech.to_maximal(q, qd) - z) < 1e-12
    assert worst(mech.close_loops(z) - z) < 1e-12
    path = mech.rollout(z, steps=20)
    # The joint holds at both ends of the first step, so nothing settles: no error grows.
    assert int(path.status.max()) == 0 and worst(mech.joint_errors(path.z)) < 2e-9
    again = mech.to_maximal(*mech.to_minimal(path.z))
    assert worst(again[1:] - path.z[1:]) < 1e-7


def test_names_of_coordinates() -> None:
    free, declared = cardan_arm(Cardan), cardan_arm(TwoAngles)
    assert free.tree_joints == ["hinge", "a_to_b"] and free.num_coordinates == 7
    assert declared.tree_joints == ["hinge", "joint"] and declared.num_coordinates == 3
    # Nothing is added to the mechanism itself.
    assert list(free.joints) == list(declared.joints) == ["hinge", "joint"]
    assert sorted(free.state_dict()) == sorted(declared.state_dict())
    from_world = td.Mechanism({"a": td.Body(1.0, (1, 1, 1))}, {"world_to_a": Cardan(None, "a", (0, 0, 2), (0, 0, 0))})
    assert from_world.tree_joints == ["world_to_a_"]
    assert worst(from_world.joint_errors(from_world.initial_state())) < 2e-9


def test_coordinates_of_a_joint_without_them() -> None:
    mech = cardan_arm(Cardan)
    z = mech.initial_state(hinge=dict(q=0.3), a_to_b=dict(q=(0, 0, -1.0, 0.2, 0, 0)))
    q = mech.to_minimal(z)[0]
    assert worst(mech.joint_errors(z)) < 2e-9 and 0.1 < float(q[4]) < 0.2, "assembled, next to what was given"
    assert worst(mech.close_loops(z, hold="a_to_b") - z) < 1e-12
    with pytest.raises(ValueError, match=r"joint 'joint' closes a loop.*'a_to_b'"):
        mech.initial_state(joint=dict(q=0.1))
    with pytest.raises(ValueError, match=r"unknown name 'b'; joints are \['hinge', 'a_to_b'\]"):
        mech.initial_state(b=dict(position=(0, 0, 1)))


def test_steps_in_minimal_coordinates() -> None:
    mech = cardan_arm(TwoAngles)
    q, qd = torch.tensor((0.3, 0.4, -0.4)), torch.tensor((0.5, 3.0, -2.0))
    out = mech.step_minimal(q, qd)
    assert worst(mech.to_maximal(out.q, out.qd) - mech.step(mech.to_maximal(q, qd)).z) < 1e-8
    jacobian, _ = mech.jacobians_minimal(q, qd)
    y, step = torch.cat((q, qd)), 1e-5
    moved = [torch.cat(mech.step_minimal(*(y + sign * step * torch.eye(6)).chunk(2, -1))[:2], -1) for sign in (1, -1)]
    numeric = ((moved[0] - moved[1]) / (2 * step)).mT
    # Differences of states solved to 1e-9 with velocities of 1e-7.
    assert worst(jacobian - numeric) < 1e-2 * step**0.5


@pytest.mark.slow
def test_limits() -> None:
    mech = cardan_arm(TwoAngles, limits=((-0.5, -math.inf), (0.5, 0.3)))
    assert mech.joints["joint"].limited == ((0,), (0, 1))
    assert mech.impulse_layout["limits.joint"].stop == 5 + 4 + 3
    z = mech.initial_state(hinge=dict(q=0.3), joint=dict(q=(0.4, 0.2), qd=(3.0, 2.0)))
    assert mech.joint_errors(z).shape == (9,), "equations of the two joints, and nothing of the limits"
    path = mech.rollout(z, steps=80)
    q = mech.to_minimal(path.z)[0][:, 1:]
    assert int(path.status.max()) == 0
    assert 0.49 < float(q[:, 0].max()) < 0.5 and 0.29 < float(q[:, 1].max()) < 0.3, "both are reached, and hold"
    reached = int(q[:, 0].argmax())
    td.testing.check_gradients(mech, path.z[reached - 1], parameters=["joints.joint"], tolerance=1e-6)


def test_limited_angles_are_counted_from_their_middle() -> None:
    mech = cardan_arm(TwoAngles, limits=((2.5, -1.0), (3.6, 1.0)))
    z = mech.initial_state(joint=dict(q=(3.5, 0.0), qd=(4.0, 0.0)))
    q = mech.to_minimal(mech.rollout(z, steps=15).z)[0][:, 1] % (2 * math.pi)
    assert 3.58 < float(q.max()) < 3.6


def test_limits_change_in_value_only() -> None:
    joint = TwoAngles("a", "b", (0, 0, 0), (0, 0, 0), limits=(-1.0, 1.0))
    joint.upper = (0.5, 0.6)
    assert joint.limits is not None and joint.limits[1].tolist() == [0.5, 0.6]
    assert "upper" in dict(joint.named_parameters()) and "upper" in joint.fields
    plain = TwoAngles("a", "b", (0, 0, 0), (0, 0, 0))
    assert plain.limits is None and plain.lower is None
    with pytest.raises(ValueError, match=r"TwoAngles\.upper: got 1\.0 for a joint built without limits; build it with limits="):
        plain.upper = 1.0


def test_coupled_to_a_standard_joint() -> None:
    hinge = td.Revolute(None, "a", axis=(0, 1, 0), child_anchor=(0, 0, 0.5))
    joints = {"hinge": hinge, "joint": TwoAngles("a", "b", (0, 0, -0.5), (0, 0, 0.5))}
    gear = td.JointCoupling("hinge", "joint", ratio=-1.0, follower_coordinate=1)
    mech = td.Mechanism({name: td.Body(1.0, (0.1, 0.12, 0.15)) for name in "ab"}, joints, couplings={"gear": gear}, options=REFERENCE)
    z = mech.initial_state(hinge=dict(q=0.3, qd=1.0))
    path = mech.rollout(z, steps=20)
    q = mech.to_minimal(path.z)[0]
    assert int(path.status.max()) == 0 and worst(q[:, 0] + q[:, 2]) < 1e-8 and worst(q[-1, 0] - q[0, 0]) > 1e-2


class Half(td.Joint):
    num_rows, num_coordinates = 5, 1

    def coordinates(self, parent: Pose, child: Pose) -> Tensor:
        return child.x[..., :1]


BAD: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "no displace": (lambda: Half(None, "a"), TypeError, r"Half: got num_coordinates = 1 without displace; .*displace\(q\)"),
    "limits without coordinates": (
        lambda: Cardan(None, "a", (0, 0, 0), (0, 0, 0), limits=(-1, 1)),
        ValueError,
        r"Cardan\.limits: got \(-1, 1\) for a joint without coordinates; declare them, num_coordinates = ",
    ),
    "one limit too many": (
        lambda: TwoAngles(None, "a", (0, 0, 0), (0, 0, 0), limits=((-1, -1, -1), 1)),
        ValueError,
        r"TwoAngles\.lower: got shape \(3,\); allowed: \(\.\.\., 2\)",
    ),
    "coupled without coordinates": (
        lambda: td.Mechanism(
            {"a": td.Body(1.0, (1, 1, 1))},
            {"c": Cardan(None, "a", (0, 0, 0), (0, 0, 0)), "r": td.Revolute(None, "a")},
            couplings={"gear": td.JointCoupling("c", "r")},
        ),
        ValueError,
        r"its leader 'c' is a Cardan, which has no coordinates; allowed: the sixteen joints, and those that declare num_coordinates",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name: str) -> None:
    call, error, message = BAD[name]
    with pytest.raises(error, match=message):
        call()


def test_float32() -> None:
    for kind in (Cardan, TwoAngles):
        mech = cardan_arm(kind).float()
        mech.options = td.SolverOptions(kappa=1e-4, residual_tol=1e-4, backend="reference", dtype=torch.float32)
        z = mech.initial_state(hinge=dict(q=0.3))
        assert z.dtype == torch.float32 and worst(mech.joint_errors(z)) < 2e-5
        assert mech.step(z).z.dtype == torch.float32


# -- dtypes --------------------------------------------------------------------------------------------------------------------------------


class Rod(td.Joint):
    """As it is written where torch's default dtype is float32."""

    num_rows = 1

    def __init__(self, parent: str | None, child: str, length: Tensor) -> None:
        super().__init__(parent, child)
        self.length = torch.nn.Parameter(length)

    def constraint(self, parent: Pose, child: Pose) -> Tensor:
        span = child.point(torch.tensor((0.0, 0.0, 0.125), dtype=torch.float32)) - parent.x
        return 0.5 * (span.square().sum(-1, keepdim=True) - self.length**2)


class Rounded(Rod):
    def constraint(self, parent: Pose, child: Pose) -> Tensor:
        return super().constraint(parent, child).float()


class Multiplied(Rod):
    def constraint(self, parent: Pose, child: Pose) -> Tensor:
        return (child.x - parent.x) @ torch.ones(3, 1, dtype=torch.float32)


def test_single_precision_in_the_code_of_a_joint() -> None:
    mech = arm(Rod("a", "b", torch.tensor(0.5, dtype=torch.float32)))
    z = torch.zeros(26)
    z[6] = z[19] = 1.0
    z[13:16] = torch.tensor((0.3, 0.0, -0.525))
    with pytest.raises(
        TypeError,
        match=r"joints\.joint: its tensor 'length' is torch\.float32, the mechanism torch\.float64 \(plain numbers of physical modules are "
        r"float64\); convert it before, nn\.Parameter\(torch\.tensor\(1\.0\)\.double\(\)\), or all at once, mech\.to\(torch\.float64\)",
    ):
        mech.step(z)
    out = mech.to(torch.float64).step(z)
    # A constant that float32 holds exactly costs nothing.
    assert out.z.dtype == torch.float64 and int(out.status) == 0
    for kind, text in ((Rounded, r"Rounded: its impulses are .* and its rows torch\.float32"), (Multiplied, r"Multiplied: .*dtype")):
        with pytest.raises(TypeError, match=text + r".*; make the constants in its code of the poses' dtype, parent\.x\.new_tensor"):
            arm(kind("a", "b", torch.tensor(0.5).double())).step(z)
