"""Actuators of hand-built mechanisms: the law, its derivatives, batches and errors."""

from __future__ import annotations

import copy
import io
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import torchdojo as td

H = 0.01


def arm(**options: Any) -> td.Mechanism:
    """A hinge, and a slide on it, horizontally: no gravity."""
    bodies = {name: td.Body(mass=1.0, inertia=(0.1, 0.2, 0.1)) for name in ("link", "cart")}
    joints = {
        "hinge": td.Revolute(None, "link", axis=(0, 1, 0), child_anchor=(-0.3, 0, 0), damper=0.1, **options),
        "slide": td.Prismatic("link", "cart", axis=(1, 0, 0), parent_anchor=(0.2, 0, 0)),
    }
    return td.Mechanism(bodies, joints, timestep=H, gravity=(0, 0, 0))


def state(mech: td.Mechanism, *batch: int) -> Tensor:
    return mech.initial_state(batch, hinge=dict(q=0.3, qd=-0.7), slide=dict(q=0.1, qd=0.4))


def test_law() -> None:
    mech = arm()
    affine = td.Actuator("slide", gear=-2.0, gain=(1.0, 2.0, 3.0), bias=(4.0, 5.0, 6.0), length0=0.5)
    servo = td.Actuator.position("hinge", kp=10.0, kv=2.0, gear=3.0)
    td.actuate(mech, {"servo": servo, "affine": affine, "motor": td.Actuator.motor("slide", gear=7.0)}, servos="explicit")
    assert mech.actuators.names == ("servo", "affine", "motor")
    u = mech.actuators(torch.tensor([0.2, 0.6, 0.8], dtype=torch.float64), state(mech))
    length, velocity = 0.5 - 2 * 0.1, -2 * 0.4
    force = (1 + 2 * length + 3 * velocity) * 0.6 + 4 + 5 * length + 6 * velocity
    assert u.tolist() == pytest.approx([3 * (10 * (0.2 - 3 * 0.3) + 2 * 3 * 0.7), -2 * force + 7 * 0.8])


@pytest.mark.parametrize("servos", ["implicit", "implicitfast"])
def test_implicit_and_explicit_servos_are_one_law(servos: Any) -> None:
    """u less what the joint has at the same rate is the same; the steps differ by h."""
    ctrl = torch.tensor([0.4], dtype=torch.float64)
    servo = td.Actuator.position("hinge", kp=10.0, kv=2.0, gear=3.0, forcerange=(-4.0, 9.0))
    implicit, explicit = arm(), arm()
    td.actuate(implicit, {"s": servo}, servos)
    td.actuate(explicit, {"s": servo}, servos="explicit")
    hinge = implicit.joints["hinge"]
    if servos == "implicit":
        assert (float(hinge.damper), float(hinge.servo_damping), float(hinge.servo_stiffness)) == pytest.approx((0.1, 2 * 9, 10 * 9))
        assert (float(hinge.servo_lower), float(hinge.servo_upper)) == (-12.0, 27.0)
    else:
        assert float(hinge.damper) == pytest.approx(0.1 + 2 * 9)
    assert float(explicit.joints["hinge"].damper) == pytest.approx(0.1)
    z = state(implicit)
    ours, theirs = implicit.actuators(ctrl, z), explicit.actuators(ctrl, z)
    if servos == "implicit":
        ours = (ours - torch.tensor([2 * 9 * -0.7, 0.0])).clamp(-12.0, 27.0)
        assert ours.tolist() == pytest.approx(theirs.tolist())
    else:
        assert (ours - theirs).tolist() == pytest.approx([2 * 9 * -0.7, 0.0])
    errors = []
    for h in (1e-3, 1e-4):
        ends = []
        for mech in (implicit, explicit):
            mech.timestep = h
            mech.options = td.SolverOptions(kappa=1e-9)  # the range softens the servo by 2 κ g/(h b²), b half its width
            z = state(mech)
            path = mech.rollout(z, lambda z, mech=mech: mech.actuators(ctrl, z), steps=round(0.02 / h))
            ends.append(mech.to_minimal(path.z[-1])[0])
        errors.append(float((ends[0] - ends[1]).abs().max()))
    assert errors[1] <= 0.15 * errors[0]


def test_implicit_servos_stay_stable() -> None:
    """h kv gear² is 18 times the inertia that moves: explicit, the rate changes its sign and grows."""
    fastest = {}
    for servos in ("implicit", "explicit"):
        mech = arm()
        td.actuate(mech, {"s": td.Actuator.velocity("slide", kv=900.0)}, servos=servos)
        ctrl = torch.zeros(1, dtype=torch.float64)
        path = mech.rollout(state(mech), lambda z, mech=mech, ctrl=ctrl: mech.actuators(ctrl, z), steps=8)
        fastest[servos] = float(mech.to_minimal(path.z)[1][-1].abs().max())
    assert fastest["implicit"] < 0.7
    assert fastest["explicit"] > 1e3


def test_clipping_and_its_derivatives() -> None:
    mech = arm()
    ranges = {"ctrlrange": (-1.0, 0.5), "forcerange": (-3.0, 4.0)}
    td.actuate(mech, {"a": td.Actuator.motor("hinge", gain=10.0, gear=2.0, **ranges), "b": td.Actuator.motor("slide", **ranges)})
    mech.actuators.inputrange = [[-math.inf, math.inf], [-0.25, math.inf]]
    ctrl = torch.tensor([[0.2, 0.3], [0.45, 0.9], [-2.0, -0.8]], dtype=torch.float64, requires_grad=True)
    u = mech.actuators(ctrl)
    assert u.tolist() == [[4.0, 0.3], [8.0, 0.5], [-6.0, -0.25]]
    u.sum().backward()
    assert ctrl.grad is not None
    assert ctrl.grad.tolist() == [[20.0, 1.0], [0.0, 0.0], [0.0, 0.0]]  # free, force and control clipped, both and input clipped


def test_derivatives_of_the_law() -> None:
    mech = arm()
    td.actuate(mech, {"a": td.Actuator.position("hinge", kp=5.0, kv=2.0, gear=1.5), "b": td.Actuator.velocity("slide", kv=3.0)})
    base, z = mech.actuators, state(mech)
    fields = {name: getattr(base, name).detach().clone().requires_grad_() for name in ("gear", "gain", "bias", "length0")}

    def law(ctrl: Tensor, delta: Tensor, *values: Tensor) -> Tensor:
        bound = dict(zip(fields, values, strict=True))
        return torch.func.functional_call(base, bound, (ctrl, mech.retract(z, delta)))

    ctrl = torch.tensor([0.2, -0.4], dtype=torch.float64, requires_grad=True)
    delta = torch.zeros(24, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(law, (ctrl, delta, *fields.values()))


def test_gradients_of_a_rollout() -> None:
    """d(final coordinates)/d(ctrl, kp, kv) against central differences; what the joints carry of kp and kv stays."""

    def final(ctrl: Tensor, kp: Tensor, kv: Tensor) -> Tensor:
        mech = arm()
        mech.options = td.SolverOptions(residual_tol=1e-12)
        td.actuate(mech, {"s": td.Actuator.position("hinge", kp=8.0, kv=4.0, gear=2.0), "m": td.Actuator.motor("slide")})
        zero = torch.zeros_like(kp)
        bias = torch.stack((zero, -kp, -kv))
        mech.actuators.gain = torch.stack((torch.stack((kp, zero, zero)), torch.tensor([1.0, 0, 0], dtype=torch.float64)))
        mech.actuators.bias = torch.stack((bias, torch.zeros_like(bias)))
        path = mech.rollout(state(mech), lambda z: mech.actuators(ctrl, z), steps=5)
        return torch.cat(mech.to_minimal(path.z[-1]))

    ctrl = torch.tensor([0.4, 0.3], dtype=torch.float64, requires_grad=True)
    kp, kv = (torch.tensor(value, dtype=torch.float64, requires_grad=True) for value in (7.0, 3.0))
    assert torch.autograd.gradcheck(final, (ctrl, kp, kv), atol=1e-6, rtol=1e-5)


def test_gains_may_carry_a_graph() -> None:
    kp, mech = torch.tensor(3.0, dtype=torch.float64, requires_grad=True), arm()
    td.actuate(mech, {"s": td.Actuator.position("hinge", kp=kp)})
    (slope,) = torch.autograd.grad(mech.actuators(torch.tensor([0.5], dtype=torch.float64), state(mech)).sum(), kp)
    assert float(slope) == pytest.approx(0.5 - 0.3)


def test_batches() -> None:
    mech = arm()
    kp = torch.tensor([[1.0, 2.0, 3.0]], dtype=torch.float64).T  # (3, 1)
    td.actuate(mech, {"s": td.Actuator.position("hinge", kp=kp, kv=kp), "m": td.Actuator.motor("slide")})
    assert mech.actuators.gain.shape == (3, 1, 2, 3)
    ctrl = torch.rand(4, 2, dtype=torch.float64)
    u = mech.actuators(ctrl, state(mech, 3, 4))
    assert u.shape == (3, 4, 2)
    single = arm()
    td.actuate(single, {"s": td.Actuator.position("hinge", kp=2.0, kv=2.0), "m": td.Actuator.motor("slide")})
    torch.testing.assert_close(u[1, 2], single.actuators(ctrl[2], state(single)))
    torch.testing.assert_close(mech.step(state(mech, 3, 4), u).z[1, 2], single.step(state(single), u[1, 2]).z)
    jac = torch.vmap(torch.func.jacrev(lambda c, z: single.actuators(c, z)))(ctrl, state(single, 4))
    torch.testing.assert_close(jac, torch.diag(torch.tensor([2.0, 1.0], dtype=torch.float64)).expand(4, 2, 2))


def test_angles_beyond_a_half_turn_and_joints_with_several_coordinates() -> None:
    bodies = {name: td.Body(mass=1.0, inertia=(0.1, 0.2, 0.1)) for name in "abc"}
    joints = {
        "one": td.Revolute(None, "a", axis=(0, 0, 1), limits=(2.0, 4.5)),
        "two": td.PlanarAxis("a", "b", axis=(0, 0, 1)),
        "three": td.Orbital("b", "c", axis=(0, 0, 1)),
    }
    mech = td.Mechanism(bodies, joints, timestep=H)
    places = [("three", 1), ("one", 0), ("two", 2), ("two", 0), ("three", 0)]
    td.actuate(mech, {f"{name}{i}": td.Actuator.position(name, kp=1.0, coordinate=i) for name, i in places}, servos="explicit")
    q = torch.tensor([3.9, 0.1, 0.2, 0.3, 0.4, -0.5], dtype=torch.float64)
    qd = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], dtype=torch.float64)
    z = mech.to_maximal(q, qd)
    order = [5, 0, 3, 1, 4]
    measured = mech.actuators.measure(z)
    torch.testing.assert_close(measured[0], q[order], rtol=0, atol=1e-12)
    torch.testing.assert_close(measured[1], mech.to_minimal(z)[1][order], rtol=0, atol=1e-11)
    u = mech.actuators(torch.zeros(5, dtype=torch.float64), z)
    torch.testing.assert_close(u, -q * torch.tensor([1, 1, 0, 1, 1, 1]), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("limits", "angle"), [((2.5, math.inf), 4.0), ((-math.inf, -2.5), -4.0), ((-6.2, 6.2), 2.0), (None, -5.0)])
def test_angles_near_limits(limits: tuple[float, float] | None, angle: float) -> None:
    """One limit or two, limits over two turns, none; next to a joint of the same kind with other ones."""
    bodies = {name: td.Body(mass=1.0, inertia=(0.1, 0.2, 0.1)) for name in "ab"}
    joints = {"one": td.Revolute(None, "a", limits=limits), "two": td.Revolute("a", "b", limits=(-5.0, -2.0))}
    mech = td.Mechanism(bodies, joints, timestep=H)
    td.actuate(mech, {name: td.Actuator.position(name, kp=1.0) for name in joints})
    q = torch.tensor([angle, -4.5], dtype=torch.float64)
    torch.testing.assert_close(mech.actuators.measure(mech.to_maximal(q))[0], q)


def test_rates_are_those_of_the_damper() -> None:
    """A damper that carries a servo's kv is made up for: without control and acceleration u is what it takes away."""
    bodies = {"a": td.Body(mass=1.0, inertia=(0.1, 0.2, 0.3))}
    mech = td.Mechanism(bodies, {"ball": td.Spherical(None, "a", damper=0.0)}, timestep=1e-5, gravity=(0, 0, 0))
    td.actuate(mech, {f"s{i}": td.Actuator.velocity("ball", kv=2.0, forcerange=(0.0, 0.0), coordinate=i) for i in range(3)})
    z = mech.initial_state(ball=dict(q=(0.3, -0.5, 0.8), qd=(1.0, 2.0, -1.0)))
    free = td.Mechanism(bodies, {"ball": td.Spherical(None, "a")}, timestep=1e-5, gravity=(0, 0, 0))
    u = mech.actuators(torch.zeros(3, dtype=torch.float64), z)
    change = mech.step(z, u).z - free.step(z).z
    assert u.abs().max() > 1
    assert change.abs().max() < 1e-7  # force clipped to zero: h d/I times the change of the rate in h


def test_copies_state_dicts_and_precision() -> None:
    mech = arm()
    td.actuate(mech, {"s": td.Actuator.position("hinge", kp=3.0, kv=1.0)})
    clone = copy.deepcopy(mech)
    clone.actuators.gain = torch.zeros(1, 3, dtype=torch.float64)
    ctrl, z = torch.tensor([0.5], dtype=torch.float64), state(mech)
    assert clone.actuators._mechanism is clone
    assert float((mech.actuators(ctrl, z) - clone.actuators(ctrl, z))[0]) == pytest.approx(3.0 * 0.5)
    clone.load_state_dict(mech.state_dict())
    assert torch.equal(mech.actuators(ctrl, z), clone.actuators(ctrl, z))
    saved = io.BytesIO()
    torch.save(mech, saved)
    saved.seek(0)
    assert torch.equal(torch.load(saved, weights_only=False).actuators(ctrl, z), mech.actuators(ctrl, z))
    single = clone.to(torch.float32)
    assert single.actuators(ctrl.float(), z.float()).dtype == torch.float32
    assert single.actuators(ctrl, z.float()).dtype == torch.float64
    with pytest.raises(TypeError, match=r"ctrl: got torch.float16; allowed: torch.float64 or torch.float32; convert it"):
        single.actuators(ctrl.half(), z.float())


def test_urdf(tmp_path: Path) -> None:
    link = '<link name="{}"><inertial><mass value="1"/><inertia ixx="1" iyy="1" izz="1" ixy="0" ixz="0" iyz="0"/></inertial></link>'
    joint = '<joint name="j" type="continuous"><parent link="a"/><child link="b"/><axis xyz="0 0 1"/></joint>'
    path = tmp_path / "robot.urdf"
    path.write_text(f'<robot name="r">{link.format("a")}{link.format("b")}{joint}</robot>')
    mech = td.load(path, timestep=H, floating_base=False)
    assert mech.actuators is None
    td.actuate(mech, {"servo": td.Actuator.position("j", kp=100.0, kv=20.0)})
    target = torch.tensor([0.5], dtype=torch.float64)
    path_z = mech.rollout(mech.initial_state(), lambda z: mech.actuators(target, z), steps=200)
    assert mech.to_minimal(path_z.z[-1])[0].tolist() == pytest.approx([0.5], abs=1e-6)


def test_on_another_mechanism() -> None:
    mech, other = arm(), arm()
    td.actuate(mech, {"s": td.Actuator.position("hinge", kp=3.0, kv=1.0, ctrlrange=(-1, 1))}, servos="explicit")
    other.actuators = mech.actuators.on(other)
    ctrl, z = torch.tensor([2.0], dtype=torch.float64), state(mech)
    assert torch.equal(other.actuators(ctrl, z), mech.actuators(ctrl, z))
    with pytest.raises(ValueError, match=r"on: the mechanism has the inputs \{'slide'.*; allowed: \{'hinge'"):
        mech.actuators.on(arm(actuated=False))


@pytest.mark.parametrize(
    ("actuators", "message"),
    [
        ({}, "Actuators: got none; give at least one"),
        ({"s": td.Actuator("elbow")}, r"actuator 's' drives 'elbow'; joints are \['hinge', 'slide'\]"),
        ({"s": td.Actuator("hinge")}, r"actuator 's' drives 'hinge', which has no input; allowed: \['slide'\]"),
        ({"s": td.Actuator("slide", coordinate=1)}, r"actuator 's' drives coordinate 1 of 'slide', which has 1"),
        ({"s": td.Actuator("slide", gain=(1.0, 2.0))}, r"actuator 's': gain has 2 numbers; allowed: three"),
        ({"s": td.Actuator("slide", ctrlrange=(2.0, 1.0))}, r"Actuators.ctrlrange: got .*; allowed: lower bounds at or below"),
        ({"s": td.Actuator("slide", forcerange=(1.0,))}, r"actuator 's': forcerange is \(1.0,\); allowed: None or a pair"),
        ({"s": td.Actuator("slide", gear=math.nan)}, r"Actuators.gear: got \[nan\]; allowed: finite numbers"),
    ],
)
def test_what_cannot_be_built(actuators: dict[str, td.Actuator], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        td.actuate(arm(actuated=False), actuators)


def test_errors() -> None:
    mech = arm()
    with pytest.raises(ValueError, match=r"servos is 'soft'; allowed: 'implicit', 'implicitfast' or 'explicit'"):
        td.actuate(mech, {"s": td.Actuator("hinge")}, servos="soft")  # type: ignore[arg-type]
    actuators = td.actuate(mech, {"s": td.Actuator.position("hinge", kp=1.0)})
    with pytest.raises(ValueError, match=r"already has the actuators \['s'\]"):
        td.actuate(mech, {"t": td.Actuator("hinge")})
    with pytest.raises(ValueError, match=r"ctrl: got shape \(2,\); allowed: \(..., 1\), one per actuator: \['s'\]"):
        actuators(torch.zeros(2, dtype=torch.float64))
    with pytest.raises(TypeError, match=r"ctrl: got float; allowed: a tensor of shape \(..., 1\)"):
        actuators(0.5)
    with pytest.raises(ValueError, match=r"z: not given; the force of servos depends on it"):
        actuators(torch.zeros(1, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"z: got shape \(13,\); allowed: \(..., 26\)"):
        actuators(torch.zeros(1, dtype=torch.float64), torch.zeros(13, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"Actuators.gain: got shape \(3,\); allowed: at least 2"):
        actuators.gain = torch.ones(3, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"Actuators.gear: got shape \(2,\); allowed: \(..., 1\), actuators: \['s'\]"):
        actuators.gear = torch.ones(2, dtype=torch.float64)
