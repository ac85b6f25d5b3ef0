"""Angles of single rotations to ±2π: the sign of the relative quaternion counts, in every element that reads a coordinate."""

from __future__ import annotations

import math
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

import torchdojo as td
from torchdojo import quaternion as quat

#: Angles beyond π, next to it and next to the full turn.
ANGLES = [3.1, math.pi, 3.2, 4.0, 6.2, -math.pi, -3.3, -5.0]


def hinged(base: bool = False, **options: Any) -> td.Mechanism:
    """A rod of 1 kg on a hinge, of the world or of a free body. Without gravity."""
    parent = "base" if base else None
    joints = {"hinge": td.Revolute(parent, "rod", axis=(0, 1, 0), child_anchor=(0, 0, 0.5), **options)}
    bodies = {"rod": td.Body(1.0, (0.1, 0.1, 0.01))} | ({"base": td.Body(2.0, (0.2, 0.1, 0.2))} if base else {})
    return td.Mechanism(bodies, joints, timestep=0.01, gravity=(0, 0, 0))


def flipped(z: Tensor, body: int) -> Tensor:
    z = z.clone()
    z[..., 13 * body + 6 : 13 * body + 10] *= -1
    return z


@pytest.mark.parametrize("angle", ANGLES)
def test_springs_and_servos_pull_from_where_the_joint_is(angle: float) -> None:
    """J ω s(ω) = h k (rest − θ), with the inertia about the hinge."""
    stiffness, rest, h, inertia = 3.0, 0.5, 0.01, 0.1 + 0.25
    mech = hinged(spring=stiffness, rest=rest)
    (out,) = mech.step_minimal(torch.tensor([angle]), torch.zeros(1)).qd
    spin = h * stiffness * (rest - angle) / inertia
    assert float(out) == pytest.approx(spin, rel=1e-3)  # the center of mass moves on a chord
    assert float(mech.potential_energy(mech.to_maximal(torch.tensor([angle])))) == pytest.approx(0.5 * stiffness * (rest - angle) ** 2)
    motor = hinged()
    td.actuate(motor, {"servo": td.Actuator.position("hinge", kp=stiffness)})
    u = motor.actuators(torch.tensor([rest]), motor.to_maximal(torch.tensor([angle])))
    assert float(u) == pytest.approx(stiffness * (rest - angle))


def test_a_spring_winds_up_and_down_without_a_jump() -> None:
    """From 5 rad, a spring of the world swings through ±π to −5 rad, and its energy stays."""
    mech = hinged(spring=2.0)
    path = mech.rollout_minimal(torch.tensor([5.0]), torch.zeros(1), steps=250)
    assert float(path.q.min()) < -4.99 and float(path.q.diff(dim=0).abs().max()) < 0.2
    energy = mech.kinetic_energy(path.z[:-1], path.z[1:]) + mech.potential_energy(path.z[:-1])
    assert float((energy / energy[0] - 1).abs().max()) < 2e-3  # swings with h²


@pytest.mark.parametrize("base", [False, True])
@pytest.mark.parametrize("angle", [math.pi, math.pi - 1e-9, -math.pi, 3.3, -5.0])
def test_gradients_at_pi(angle: float, base: bool) -> None:
    """Springs, limits that press, friction: kernel and differences, at π and beyond."""
    mech = hinged(base, spring=3.0, rest=0.5, limits=(angle - 1.0, angle + 0.005), friction=0.01)
    mech.options = td.SolverOptions(kappa=1e-4)
    n = mech.num_coordinates
    q, qd = 0.1 * torch.randn(n), 0.1 * torch.randn(n)
    q[0], qd[0] = angle, 3.0
    z = mech.to_maximal(q, qd)
    with torch.no_grad():
        pressing = mech.step(z).impulses[mech.impulse_layout["limits.hinge"]]
    assert float(pressing[1]) > 1e-2
    names = [f"joints.hinge.{name}" for name in ("lower", "upper", "spring", "rest", "axis", "orientation_offset")]
    td.testing.check_gradients(mech, z, 0.1 * torch.randn(mech.num_inputs), parameters=names, directions=2, tolerance=1e-6)


@pytest.mark.parametrize("backend", ["native", "reference"])
@pytest.mark.parametrize("angle", ANGLES)
def test_minimal_coordinates_and_their_derivatives(angle: float, backend: str) -> None:
    """Both maps are inverse to each other to ±2π, and Jacobians of minimal steps are those of differences."""
    mech = hinged(True, spring=3.0, damper=0.1)
    mech.options = td.SolverOptions(backend=backend, residual_tol=1e-12)
    q, qd = 0.3 * torch.randn(7), 0.3 * torch.randn(7)
    q[0] = angle
    back, rate = mech.to_minimal(mech.to_maximal(q, qd))
    torch.testing.assert_close(back, q, rtol=0, atol=1e-13)
    torch.testing.assert_close(rate, qd, rtol=0, atol=1e-10)

    x, eps = torch.cat((q, qd, torch.randn(1))), 1e-5 * torch.eye(15)
    out = mech.step_minimal(*torch.cat((x + eps, x - eps)).split((7, 7, 1), dim=-1))
    forward, backward = torch.cat((out.q, out.qd), dim=-1).chunk(2)
    numeric = ((forward - backward) / 2e-5).T
    jacobian = torch.cat(mech.jacobians_minimal(x[:7], x[7:14], x[14:]), dim=-1)
    torch.testing.assert_close(jacobian, numeric, rtol=0, atol=1e-6 * float(numeric.abs().max()))


# -- signs of quaternions -----------------------------------------------------------------------------------------------------------------


def test_the_other_sign_is_a_turn_away() -> None:
    mech = hinged()
    z = mech.to_maximal(torch.tensor([0.3]))
    assert float(mech.to_minimal(flipped(z, 0))[0]) == pytest.approx(0.3 - 2 * math.pi)


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("angle", [0.3, 4.0, -5.0])
def test_initial_states_have_the_angle_that_is_asked_for(sign: float, angle: float) -> None:
    """A free body takes any sign of its orientation; the bodies beyond it follow."""
    mech = hinged(True)
    orientation = sign * quat.normalize(torch.randn(3, 4))
    z = mech.initial_state((3,), base=dict(orientation=orientation, position=(0, 0, 1.0)), hinge=dict(q=angle, qd=1.0))
    torch.testing.assert_close(z[:, 19:23], orientation)
    q, qd = mech.to_minimal(z)
    torch.testing.assert_close(q[:, 0], torch.full((3,), angle))
    torch.testing.assert_close(qd[:, 0], torch.ones(3))


def test_a_loop_that_closes_a_turn_away_warns() -> None:
    """A square of four hinges: three exterior angles of π/2 leave 2π − π/2 for the fourth, and the sign of its offset chooses."""
    square = {
        f"h{i}": td.Revolute("abcd"[i], "abcd"[i + 1], axis=(0, 1, 0), parent_anchor=(0, 0, -1), child_anchor=(0, 0, 1)) for i in range(3)
    }
    base = td.Revolute(None, "a", axis=(0, 1, 0))
    angles = {f"h{i}": dict(q=math.pi / 2) for i in range(3)}
    for sign, expected in ((1.0, -1.5 * math.pi), (-1.0, 0.5 * math.pi)):
        last = td.Revolute(
            "d",
            "a",
            axis=(0, 1, 0),
            parent_anchor=(0, 0, -1),
            child_anchor=(0, 0, 1),
            limits=(0.0, 3.0),
            orientation_offset=(sign, 0, 0, 0),
        )
        mech = td.Mechanism({name: td.Body(1.0, (0.1, 0.1, 0.1)) for name in "abcd"}, {"base": base, **square, "last": last})
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            z = mech.initial_state(**angles)
        assert float(last.coordinates(*mech.element_poses(z, last))) == pytest.approx(expected)
        messages = [str(warning.message) for warning in caught]
        assert messages == [] if sign < 0 else "it reads -4.71 rad" in messages[0] and "negate its orientation_offset" in messages[0]


def test_states_with_the_other_sign_warn() -> None:
    mech = hinged(limits=(-1.0, 1.0))
    z = mech.to_maximal(torch.tensor([0.3]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mech.rollout(z, steps=2)
    other = hinged(limits=(-1.0, 1.0))
    with pytest.warns(UserWarning, match=r"joint 'hinge' starts at -5\.98 rad, outside its limits, .* can be 0\.3 rad\. mech\.unwind"):
        other.rollout(flipped(z, 0), steps=1)
    assert torch.equal(other.unwind(flipped(z, 0)), z)


def test_unwind() -> None:
    """Any signs become those of the limits, or of the shorter turn, or of the angles that are asked for."""
    limits = (3.0, 5.0)
    chain = {
        "first": td.Revolute("base", "a", axis=(0, 1, 0), child_anchor=(0, 0, 0.5), limits=limits),
        "ball": td.Spherical("a", "b", child_anchor=(0, 0, 0.5)),
        "last": td.Cylindrical("b", "c", axis=(1, 0, 0), child_anchor=(0, 0, 0.5)),
    }
    mech = td.Mechanism({name: td.Body(1.0, (0.1, 0.1, 0.1)) for name in ("base", "a", "b", "c")}, chain)
    q = torch.cat((torch.tensor([4.0]), 0.5 * torch.randn(3), torch.tensor([0.2, -2.0]), torch.randn(6)))
    z = mech.to_maximal(q, torch.randn(12))
    for number in range(16):
        other = z.clone()
        for body in range(4):
            if number >> body & 1:
                other = flipped(other, body)
        assert float((mech.to_minimal(mech.unwind(other))[0] - q).abs().max()) < 1e-12
        wanted = torch.where(torch.arange(12) == 0, 4.0 - 2 * math.pi, q)
        torch.testing.assert_close(mech.to_minimal(mech.unwind(other, near=wanted))[0], wanted)
    assert torch.equal(mech.unwind(mech.unwind(z)), mech.unwind(z))
    leaf = z.clone().requires_grad_()
    assert torch.equal(torch.autograd.grad(mech.unwind(leaf)[..., 0].sum(), leaf)[0][:1], torch.ones(1))
