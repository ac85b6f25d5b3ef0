"""Every law of joints and contacts against the properties of mechanics, for all joints, orientations and motions, on both backends.

The impulses of a law are what changes the momenta of both bodies in a step, less the multipliers of the held directions. So the kernel and
the reference are measured from outside, and in the same way.

| property | what it says |
|---|---|
| reaction | the impulses on both bodies cancel, with their moments |
| passive | impulse times the rate on which it acts is at most zero, coordinate by coordinate |
| power | impulse times the velocity of both bodies is that of the efforts along the axes |
| potential | the impulse is h times the gradient of an energy, so energy errors fall with h² (`test_springs_and_armature_conserve`) |
| ideal | no work on motions that obey the law |

`COVERED` says which law has which row, and a law without a row fails.
"""

from __future__ import annotations

import copy
import dataclasses
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import torchdojo as td
from mechanics import Moved, impulses_on_bodies
from torchdojo import quaternion as quat
from torchdojo.elements import joints as joint_types
from torchdojo.elements.actuators import Actuators
from torchdojo.elements.contact import LAWS as CONTACT_LAWS
from torchdojo.elements.coupling import Coupling
from torchdojo.elements.element import Element, Motion
from torchdojo.elements.joint import pulled_back
from torchdojo.elements.rotors import Rotor, Rotors
from torchdojo.elements.tendon import Tendon

JOINTS = [name for name in joint_types.JOINT_TYPES if name != "Fixed"]
CURVED = [name for name in JOINTS if joint_types.JOINT_TYPES[name][1] < 2]  # may have polynomials
BACKENDS = ("native", "reference")
STATES = 4
STEP = 0.01
ROUNDING = 1e-12  # [N·s, N·m·s, J] of impulses and velocities of order 1, polished to rounding

Rate = Callable[[td.StandardJoint, Moved], Tensor]


def damped(joint: td.StandardJoint, moved: Moved) -> Tensor:
    return joint.damper_rate(moved.motions, moved.timestep)


def mean(joint: td.StandardJoint, moved: Moved) -> Tensor:
    return joint.rate([m.pose for m in moved.motions], [m.next for m in moved.motions], moved.timestep)


def rubbing(joint: td.StandardJoint, moved: Moved) -> Tensor:
    """The mean rate, of three rotations about the axes of the child."""
    return about_child(joint, moved, mean(joint, moved))


def about_child(joint: td.StandardJoint, moved: Moved, value: Tensor) -> Tensor:
    """Numbers along the free directions, those of three rotations along the axes of the child instead."""
    if joint.free_rotations < 3:
        return value
    p = joint.displacement(*[motion.pose for motion in moved.motions])[1]
    return torch.cat((value[:, :-3], quat.inverse_rotate(p, value[:, -3:])), dim=-1)


class Row(NamedTuple):
    """Arguments of the joint; the rate on which the law acts, where it is passive; other properties; the fields that it covers."""

    given: dict[str, Any]
    passive: Rate | None
    properties: str
    covers: str


LAWS = {
    "damper": Row({"damper": (0.2, 1.5)}, damped, "reaction axes", "damper"),
    "very strong damper": Row({"damper": (1e3, 2e3)}, damped, "reaction axes", "damper"),
    "friction": Row({"friction": (0.1, 0.5)}, rubbing, "reaction axes", "friction JointFriction"),
    "armature": Row({"armature": (0.05, 0.2)}, None, "reaction axes", "armature"),
    "speed limit": Row({"velocity_limits": (0.2, 0.5)}, mean, "reaction axes", "velocity_limits JointVelocityLimits"),
    "limits": Row({"limits": (-0.2, 0.2)}, None, "reaction", "lower upper JointLimits"),
    "spring": Row({"spring": (1.0, 5.0), "rest": (-0.5, 0.5)}, None, "reaction potential", "spring rest StandardJoint"),
    "implicit spring": Row({"spring": (1.0, 5.0), "implicit": True}, damped, "reaction potential", "spring"),
    "servo": Row({"servo_stiffness": (1.0, 9.0), "servo_damping": (0.1, 0.5)}, damped, "reaction axes", "servo_stiffness servo_damping"),
    "drive": Row({"servo_stiffness": (1.0, 9.0), "servo_range": (-0.3, 0.3)}, mean, "reaction axes", "servo_lower servo_upper JointDrive"),
    "curves": Row({"spring_curve": (1.0, 5.0), "damper_curve": (0.1, 0.5)}, damped, "reaction potential", "spring_curve damper_curve"),
    "input": Row({"actuated": True}, None, "reaction axes power", "Actuators"),
}  # fmt: skip
CONTACTS = {
    "frictionless": (td.ImpactContact, {}, "ImpactContact recovery_speed"),
    "cone": (td.NonlinearContact, {"friction": 0.4}, "NonlinearContact"),
    "pyramid": (td.LinearContact, {"friction": 0.4}, "LinearContact"),
    "couples": (td.NonlinearContact, {"friction": 0.4, "torsional_friction": 0.03, "rolling_friction": 0.02},
                "torsional_friction rolling_friction"),
    "compliant": (td.NonlinearContact, {"friction": 0.4, "stiffness": 500.0, "damping": 2.0}, "stiffness damping"),
    "bouncing": (td.NonlinearContact, {"friction": 0.4, "restitution": 0.6}, "restitution"),
}  # fmt: skip
OTHERS = {
    "test_couplings_are_ideal": "JointCoupling",
    "test_locks_and_sums_are_ideal": "JointLock SumCoupling",
    "test_what_is_switched_off_does_nothing": "active",
    "test_rotors_do_the_work_of_their_thrust": "Rotors",
    "test_near_contacts_keep_momentum_and_take_energy": "NearContact",
    "test_tendons_keep_momentum_and_dampers_take_energy": "FixedTendon SpatialTendon rest_lower rest_upper",
    "test_limits_and_friction_of_tendons_take_energy": "limit_lower limit_upper limit_stiffness limit_time",
    "test_couplings_that_yield_take_energy": "compliance curve",
    "test_string_couplings.py": "StringCoupling",  # a file of its own
    "test_curves.py": "stiffness_curve damping_curve CurvedJoint ConedJoint",  # and test_ball_cones.py
}
#: What has no law of its own: geometry, base classes, and near contacts that read sizes.
GEOMETRY = "axis parent_anchor child_anchor orientation_offset"
BASES = "Element Joint FreePose ServoJoint JointElement Contact FrictionalContact Tendon Coupling LoopJoint SizedContact"


def subclasses(cls: type) -> set[type]:
    return {cls}.union(*(subclasses(sub) for sub in cls.__subclasses__()))


def test_every_law_has_a_row() -> None:
    fields = {*td.StandardJoint.fields, *td.StandardJoint.optional, *CONTACT_LAWS}
    fields |= {*Tendon.fields, *Tendon.optional, *Coupling.optional}
    found = [c for base in (Element, Actuators) for c in subclasses(base) if c.__module__.startswith("torchdojo.")]
    classes = {c.__name__ for c in found if vars(sys.modules[c.__module__]).get(c.__name__) is c}  # other tests make some of their own
    covered = " ".join([GEOMETRY, BASES, *(row.covers for row in LAWS.values()), *(row[2] for row in CONTACTS.values()), *OTHERS.values()])
    missing = (fields | classes) - set(covered.split()) - set(joint_types.JOINT_TYPES)
    assert not missing, f"laws without a row in tests/elements/test_laws.py: {sorted(missing)}"
    assert all(name in globals() or Path(__file__).with_name(name).exists() for name in OTHERS)


# -- joints ------------------------------------------------------------------------------------------------------------------------------


def body() -> td.Body:
    turn = torch.linalg.qr(torch.randn(3, 3)).Q
    return td.Body(mass=0.5 + torch.rand(()), inertia=turn @ torch.diag(torch.tensor((0.10, 0.13, 0.17))) @ turn.T)


def joint(kind: str, parent: str | None, child: str, **given: Any) -> td.StandardJoint:
    """A joint with a random geometry. A range stands for a number per coordinate; limits and flags stay what they are."""
    n = sum(joint_types.JOINT_TYPES[kind])
    values = {
        key: value[0] + (value[1] - value[0]) * torch.rand((n, 2) if key.endswith("_curve") else (n,))
        if isinstance(value, tuple) and key not in ("limits", "servo_range")
        else value
        for key, value in given.items()
        if kind in CURVED or not key.endswith("_curve")
    }
    anchors = {"parent_anchor": 0.3 * torch.randn(3), "child_anchor": 0.3 * torch.randn(3)}
    offset = quat.normalize(torch.randn(4))
    return getattr(td, kind)(parent, child, axis=torch.randn(3), orientation_offset=offset, **anchors, **({"actuated": False} | values))


@cache
def stepped(law: str, backend: str) -> tuple[td.Mechanism, Tensor, Tensor, td.StepOutput]:
    """A step from random states of pairs of free bodies, a pair for every joint."""
    torch.manual_seed(7)
    bodies, joints = {}, {}
    for kind in JOINTS:
        bodies |= {f"a_{kind}": body(), f"b_{kind}": body()}
        joints[f"base_{kind}"] = td.Floating(None, f"a_{kind}", actuated=False)
        joints[kind] = joint(kind, f"a_{kind}", f"b_{kind}", **LAWS[law].given)
    mech = td.Mechanism(bodies, joints, timestep=STEP, gravity=(0, 0, 0))
    n = mech.num_coordinates
    near = 0.2 if law == "limits" else 1.0
    z = mech.to_maximal(near * torch.randn(STATES, n).clamp(-0.95, 0.95), torch.randn(STATES, n))
    u = torch.randn(STATES, mech.num_inputs)
    return mech, z, u, polished(mech, backend, z, u)


def polished(mech: td.Mechanism, backend: str, z: Tensor, u: Tensor | None = None, **ctrl: Tensor) -> td.StepOutput:
    """A step, with two more Newton steps that leave rounding."""
    mech.options = td.SolverOptions(residual_tol=1e-12, max_halvings=0, backend=backend)
    with torch.no_grad():
        solution = mech.step(z, u, **ctrl).solution
        mech.options = dataclasses.replace(mech.options, min_iterations=2)
        out = mech.step(z, u, warm_start=solution, **ctrl)
    assert not out.status.any()
    return out


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("law", LAWS)
def test_laws_of_joints(law: str, backend: str) -> None:
    mech, z, u, out = stepped(law, backend)
    row = LAWS[law]
    for kind in CURVED if law == "curves" else JOINTS:
        joint = mech.joints[kind]
        moved = impulses_on_bodies(mech, z, out, joint.body_names)
        assert moved.unbalanced() < ROUNDING, kind
        multipliers = out.impulses[:, mech.impulse_layout[f"joints.{kind}"]]
        bare = type(joint)(*joint.body_names, axis=joint.axis, **{name: getattr(joint, name) for name in GEOMETRY.split()[1:]})
        held, _ = bare.residual(moved.motions, multipliers, multipliers[:, :0], torch.zeros(STATES, bare.num_coordinates), moved.timestep)
        wrench = [(f - g, t - s) for (f, t), (g, s) in zip(moved.wrenches, held, strict=True)]
        power = sum((f * m.twist.v).sum(-1) + (t * m.twist.omega).sum(-1) for (f, t), m in zip(wrench, moved.motions, strict=True))
        here = [motion.pose for motion in moved.motions]
        if "potential" in row.properties:
            pull = pulled_back(lambda a, b, joint=joint: -joint.spring_energy(a, b)[..., None], here, torch.tensor([STEP]))
            wrench = [(f - g, t - s) for (f, t), (g, s) in zip(wrench, pull, strict=True)]
            if row.passive is None:
                assert max(float(part.abs().max()) for pair in wrench for part in pair) < ROUNDING, kind
        efforts = efforts_along(joint, here, wrench)
        if row.passive is not None:
            work = (about_child(joint, moved, efforts) if row.passive is rubbing else efforts) * row.passive(joint, moved)
            assert float(work.max()) < ROUNDING, kind
            assert float(work.min()) < -1e-6, kind  # the law acts
            if joint.free_rotations > 1 and row.passive is damped:
                # Joints with several rotations: no energy for the two bodies, coordinate by coordinate and in all.
                assert float((power if "potential" not in row.properties else work.sum(-1)).max()) < ROUNDING, kind
                torch.testing.assert_close(row.passive(joint, moved), joint.velocity(*moved.motions))
        if "axes" in row.properties:
            spread = joint.act(*here, *joint.expanded(efforts))
            apart = [x - y for pair, other in zip(wrench, spread, strict=True) for x, y in zip(pair, other, strict=True)]
            assert max(float(part.abs().max()) for part in apart) < 10 * ROUNDING, kind
        if "power" in row.properties:
            along = STEP * u[:, mech.input_layout[kind]]
            torch.testing.assert_close(power, (along * joint.velocity(*moved.motions)).sum(-1), rtol=0, atol=10 * ROUNDING)


def efforts_along(joint: td.StandardJoint, poses: list[Any], wrench: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Impulses along the free directions, from the impulses on the child."""
    frame = quat.multiply(poses[0].q, joint.orientation_offset)
    force, torque = wrench[1][0], quat.rotate(poses[1].q, wrench[1][1])
    torque = torque - quat.cross(quat.rotate(poses[1].q, joint.child_anchor), force)
    turned = torch.cat((quat.inverse_rotate(frame, force), quat.inverse_rotate(frame, torque)), dim=-1)
    axes = torch.block_diag(*(
        torch.eye(3) if rows is None else rows
        for rows in (joint.directions(joint.free_translations)[0], joint.directions(joint.free_rotations)[0])
    ))  # fmt: skip
    return turned @ axes.T


@pytest.mark.parametrize("kind", JOINTS)
def test_springs_and_armature_conserve(kind: str) -> None:
    """The energy swings by a part of h² and does not drift: a quarter at half the step."""
    torch.manual_seed(3)
    spring = {"spring": (2.0, 8.0), "rest": (-0.3, 0.3), "armature": (0.05, 0.2)}
    mech = td.Mechanism({"a": body(), "b": body()}, {"base": joint(kind, None, "a", **spring), "joint": joint(kind, "a", "b", **spring)},
                        gravity=(0, 0, 0))  # fmt: skip
    n, swings = mech.num_coordinates, []
    q, qd = 0.3 * torch.randn(STATES, n), 0.5 * torch.randn(STATES, n)
    for h in (0.01, 0.005):
        mech.timestep = h
        with torch.no_grad():
            z = mech.rollout(mech.to_maximal(q, qd), steps=round(1 / h)).z.movedim(-2, 0)
            energy = mech.kinetic_energy(z[:-1], z[1:]) + mech.potential_energy(z[:-1])
        swings.append((energy - energy[0]).abs().amax(0))
    assert float((swings[1] / swings[0]).max()) < 0.35 or float(swings[1].max()) < 1e-9


# -- couplings, rotors, actuators --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
def test_couplings_are_ideal(backend: str) -> None:
    """The impulses along both coordinates do no work over the step, and none on momentum."""
    for leader, follower in (("Revolute", "Revolute"), ("Prismatic", "Revolute"), ("Cylindrical", "Spherical"), ("Orbital", "Prismatic")):
        bodies = {"a": body(), "b": body(), "c": body()}
        joints = {"base": td.Floating(None, "a", actuated=False), "leader": joint(leader, "a", "b"), "follower": joint(follower, "b", "c")}
        mech = td.Mechanism(bodies, joints, couplings={"gear": td.JointCoupling("leader", "follower", ratio=0.7)}, timestep=STEP,
                            gravity=(0, 0, 0))  # fmt: skip
        q, qd = 0.3 * torch.randn(STATES, mech.num_coordinates), torch.randn(STATES, mech.num_coordinates)
        first = 6 + sum(joint_types.JOINT_TYPES[leader])
        for value in (q, qd):
            value[:, first] = 0.7 * value[:, 6]
        z = mech.close_loops(mech.to_maximal(q, qd))
        out = polished(mech, backend, z)
        assert impulses_on_bodies(mech, z, out, tuple(bodies)).unbalanced() < 3 * ROUNDING
        impulse = out.impulses[:, mech.impulse_layout["couplings.gear"]].squeeze(-1)
        assert float(impulse.abs().max()) > 1e-4
        change = mech.to_minimal(out.z)[0] - mech.to_minimal(z)[0]
        assert float((impulse * (change[:, first] - 0.7 * change[:, 6]) / STEP).abs().max()) < 1e-9  # impulses times gaps of 1e-9


@pytest.mark.parametrize("backend", BACKENDS)
def test_locks_and_sums_are_ideal(backend: str) -> None:
    """As above: no momentum from a lock and a sum of three coordinates with a curve, and no work where there is none."""
    bodies = {name: body() for name in "abcd"}
    joints = {"base": td.Floating(None, "a", actuated=False), "first": joint("Revolute", "a", "b"),
              "second": joint("Cylindrical", "b", "c"), "third": joint("Prismatic", "c", "d")}  # fmt: skip
    for curve in (None, (0.3, 0.2)):
        couplings = {"sum": td.SumCoupling({"first": 0.5}, {("second", 0): 1.2, "third": 0.4}, ratio=0.7, curve=curve),
                     "lock": td.JointLock("second", 0.2, coordinate=1)}  # fmt: skip
        mech = td.Mechanism(bodies, joints, couplings=copy.deepcopy(couplings), timestep=STEP, gravity=(0, 0, 0))
        z = mech.close_loops(mech.to_maximal(0.3 * torch.randn(STATES, mech.num_coordinates), torch.randn(STATES, mech.num_coordinates)))
        out = polished(mech, backend, z)
        assert impulses_on_bodies(mech, z, out, tuple(bodies)).unbalanced() < 3 * ROUNDING
        change = mech.to_minimal(out.z)[0] - mech.to_minimal(z)[0]
        moved = {"sum": 1.2 * change[:, 7] + 0.4 * change[:, 9] - 0.35 * change[:, 6], "lock": change[:, 8]}
        for name, way in moved.items():
            impulse = out.impulses[:, mech.impulse_layout[f"couplings.{name}"]].squeeze(-1)
            assert float(impulse.abs().max()) > 1e-4
            if curve is None or name == "lock":
                assert float((impulse * way / STEP).abs().max()) < 1e-9


@pytest.mark.parametrize("backend", BACKENDS)
def test_couplings_that_yield_take_energy(backend: str) -> None:
    """The work over the step is at most the energy that the coupling gives back, and momenta are kept."""
    bodies = {"a": body(), "b": body(), "c": body()}
    joints = {"base": td.Floating(None, "a", actuated=False), "one": joint("Revolute", "a", "b"), "two": joint("Prismatic", "b", "c")}
    soft = {"gear": td.JointCoupling("one", "two", ratio=0.7, curve=(0.2,), compliance=0.3, damping=0.5),
            "lock": td.JointLock("one", 0.1, compliance=0.05)}  # fmt: skip
    mech = td.Mechanism(bodies, joints, couplings=soft, timestep=STEP, gravity=(0, 0, 0))
    z = mech.to_maximal(0.3 * torch.randn(STATES, 8), torch.randn(STATES, 8))
    out = polished(mech, backend, z)
    assert impulses_on_bodies(mech, z, out, tuple(bodies)).unbalanced() < ROUNDING
    for name, coupling in soft.items():
        now, after = (mech.element_poses(state, coupling) for state in (z, out.z))
        force = out.impulses[:, mech.impulse_layout[f"couplings.{name}"]][:, 0] / STEP
        work = force * (coupling.constraint(*after) - coupling.constraint(*now))[:, 0]
        taken = coupling.energy(*now) - coupling.energy(*after) - work
        assert float(taken.min()) > -ROUNDING and float(taken.max()) > 1e-5 and float(force.abs().min()) > 1e-3


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_switched_off_does_nothing(backend: str) -> None:
    bodies = {"a": body(), "b": body()}
    joints = {"base": td.Floating(None, "a", actuated=False), "arm": joint("Revolute", "a", "b"), "weld": td.Fixed(None, "b", active=0.0)}
    mech = td.Mechanism(bodies, joints, couplings={"brake": td.JointLock("arm", active=0.0)}, timestep=STEP, gravity=(0, 0, 0))
    z = mech.to_maximal(0.3 * torch.randn(STATES, 7), torch.randn(STATES, 7))
    out = polished(mech, backend, z)
    assert impulses_on_bodies(mech, z, out, tuple(bodies)).unbalanced() < 3 * ROUNDING
    for name in ("joints.weld", "couplings.brake"):
        assert float(out.impulses[:, mech.impulse_layout[name]].abs().max()) < 1e-9


@pytest.mark.parametrize("backend", BACKENDS)
def test_rotors_do_the_work_of_their_thrust(backend: str) -> None:
    mech = td.Mechanism({"b": body()}, {"base": td.Floating(None, "b")}, timestep=STEP, gravity=(0, 0, 0))
    rotors = {"x": Rotor((0.3, 0.1, 0.0), (-2.0, 5.0), 0.02), "y": Rotor((-0.2, 0.2, 0.1), (0.0, 3.0), -0.03, (0.6, 0.0, 0.8))}
    mech.actuators = Rotors(mech, "base", rotors)
    z, ctrl = mech.to_maximal(torch.randn(STATES, 6), torch.randn(STATES, 6)), torch.rand(STATES, 2)
    out = polished(mech, backend, z, ctrl=ctrl)
    moved = impulses_on_bodies(mech, z, out, ("b",))
    ((force, torque),), (motion,) = moved.wrenches, moved.motions
    v, omega = quat.inverse_rotate(motion.pose.q, motion.twist.v), motion.twist.omega
    work = torch.zeros(STATES)
    for i, rotor in enumerate(rotors.values()):
        low, high = rotor.thrust
        axis, thrust = torch.tensor(rotor.axis), 0.5 * (low + high) + 0.5 * (high - low) * ctrl[:, i]
        speed = v + quat.cross(omega, torch.tensor(rotor.position))
        work = work + STEP * thrust * ((axis * speed).sum(-1) + rotor.moment * (axis * omega).sum(-1))
    torch.testing.assert_close((force * motion.twist.v).sum(-1) + (torque * omega).sum(-1), work, rtol=0, atol=ROUNDING)


@pytest.mark.parametrize("kind", JOINTS)
def test_rates_of_actuators_and_coordinates_have_the_axes_of_inputs(kind: str) -> None:
    """u · qd is the power of the input: exactly as h → 0, and to first order in h before."""
    mech = td.Mechanism({"a": body(), "b": body()},
                        {"base": td.Floating(None, "a", actuated=False), "joint": joint(kind, "a", "b", actuated=True)})  # fmt: skip
    n = mech.num_coordinates - 6
    td.actuate(mech, {f"m{i}": td.Actuator.velocity("joint", kv=1.0, coordinate=i) for i in range(n)}, servos="explicit")
    q, qd, apart = torch.randn(STATES, n + 6).clamp(-1, 1), torch.randn(STATES, n + 6), []
    for h in (1e-3, 1e-4):
        mech.timestep = h
        z = mech.to_maximal(q, qd)
        torch.testing.assert_close(mech.actuators.measure(z)[1], qd[:, 6:], rtol=0, atol=1e-9)
        states = mech.element_states(z, mech.joints["joint"])
        motions = [Motion(pose, twist, pose, twist, mech.timestep) for pose, twist in states]
        apart.append((mech.joints["joint"].velocity(*motions) - qd[:, 6:]).abs().amax())
    assert float(apart[1]) < 0.2 * float(apart[0]) or float(apart[1]) < 1e-9


# -- contacts ------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("other", [None, "a"])
@pytest.mark.parametrize("law", CONTACTS)
def test_laws_of_contacts(law: str, other: str | None, backend: str) -> None:
    """Friction opposes the slip, couples oppose the spin, and both bodies get opposite impulses."""
    cls, given, _ = CONTACTS[law]
    bodies = {"b": body()} if other is None else {"a": body(), "b": body()}
    contact = cls("b", point=(0.05, 0.0, -0.1), radius=0.1, other=other, normal=(0.1, -0.2, 1.0), offset=0.05, **given)
    mech = td.Mechanism(bodies, {f"base_{name}": td.Floating(None, name) for name in bodies}, {"tip": contact}, timestep=STEP,
                        gravity=(0, 0, 0))  # fmt: skip
    z = mech.to_maximal(0.4 * torch.randn(STATES, mech.num_coordinates), torch.randn(STATES, mech.num_coordinates))
    start = 13 * (len(bodies) - 1)

    def motions_at(z: Tensor) -> tuple[Motion, ...]:
        states = mech.element_states(z, contact)
        return tuple(Motion(pose, twist, pose, twist, mech.timestep) for pose, twist in states)

    normal = contact.touch(motions_at(z)).normal
    z[:, start : start + 3] += (0.002 - mech.distances(z)) * normal
    now = motions_at(z)  # the surfaces slide, and approach at 1 m/s
    slip = contact.slip(now, contact.touch(now), current=True)
    wanted = quat.cross(normal, torch.randn(STATES, 3)) - normal
    z[:, start + 3 : start + 6] += wanted - slip
    out = polished(mech, backend, z)
    moved = impulses_on_bodies(mech, z, out, ("b",) if other is None else ("b", "a"))
    motions = moved.motions
    if other is not None:
        assert moved.unbalanced() < ROUNDING
    touch = contact.touch(motions)
    force, torque = moved.wrenches[0]
    assert float((force * touch.normal).sum(-1).min()) > 0.01
    tangential = force - (force * touch.normal).sum(-1, keepdim=True) * touch.normal
    sliding = (tangential * contact.slip(motions, touch)).sum(-1)
    couple = quat.rotate(motions[0].next.q if other is None else motions[0].pose.q, torque) - quat.cross(touch.levers[0], force)
    turning = (couple * contact.spin(motions)).sum(-1)
    assert float(sliding.max()) < ROUNDING and float(turning.max()) < ROUNDING
    assert float(sliding.min()) < -1e-3 or law == "frictionless"
    assert float(turning.min()) < -1e-4 or law != "couples"


def test_near_contacts_keep_momentum_and_take_energy() -> None:
    """Boxes that hit each other in free flight, corner, edge or face first."""
    pytest.importorskip("scipy")
    torch.manual_seed(5)
    shapes = td.Box((0.1, 0.08, 0.06)), td.Box((0.07, 0.09, 0.05))
    bodies = {name: td.Body(mass, shape=shape) for name, mass, shape in zip("ab", (1.0, 0.4), shapes, strict=True)}
    contacts = td.near_contacts("a", shapes[0], "b", shapes[1], slots=24, friction=0.4)
    mech = td.Mechanism(bodies, (), contacts, timestep=0.005, gravity=(0.0, 0.0, 0.0), options=td.SolverOptions(residual_tol=1e-12))
    hits = 0
    for _ in range(8):
        qa, qb = torch.nn.functional.normalize(torch.randn(2, 4), dim=-1)
        spins, aside = torch.randn(2, 3), 0.02 * torch.randn(2)
        place = (float(aside[0]), float(aside[1]), 0.14)
        start = {
            "a": {"position": (0, 0, 0), "orientation": qa, "angular_velocity": spins[0]},
            "b": {"position": place, "orientation": qb, "velocity": (0, 0, -1.0), "angular_velocity": spins[1]},
        }
        path = mech.rollout(mech.initial_state(**start), steps=40)
        assert not path.status.any()
        momentum, energy = mech.momentum(path.z), mech.kinetic_energy(path.z)
        torch.testing.assert_close(momentum, momentum[:1].expand_as(momentum), atol=1e-9, rtol=0)
        hits += int(energy[-1] < 0.99 * energy[0])
        assert float((energy[1:] - energy[:-1]).max()) < 1e-6 / 0.005 * 24  # what 24 slots may hold in their barriers, κ/h each
    assert hits >= 4


# -- tendons -----------------------------------------------------------------------------------------------------------------------------


def test_tendons_keep_momentum_and_dampers_take_energy() -> None:
    """Springs, dampers and inputs along strings and sums of coordinates, from random states of three free bodies."""
    torch.manual_seed(11)
    sites = [td.Site(name, 0.2 * torch.randn(3)) for name in ("a", "b", "c", "a", "c")]
    ball = td.Wrap(td.Site("b", 0.1 * torch.randn(3), quat.normalize(torch.randn(4))), 0.3, side=td.Site("a", torch.randn(3)))
    rod = td.Wrap(td.Site("b", 0.1 * torch.randn(3), quat.normalize(torch.randn(4))), 0.2, "cylinder")
    tendons = {
        "string": td.SpatialTendon([sites[0], sites[1], td.Pulley(2.0), sites[2], ball, sites[3]], damping=0.7),
        "sprung": td.SpatialTendon([sites[4], rod, sites[0]], stiffness=20.0, rest=(0.1, 0.4), implicit=True, actuated=True),
        "sum": td.FixedTendon({"ab": 0.3, ("bc", 1): -0.2}, damping=0.5, actuated=True),
    }
    joints = {f"base_{name}": td.Floating(None, name, actuated=False) for name in "a"}
    joints |= {"ab": joint("Revolute", "a", "b"), "bc": joint("Planar", "b", "c")}
    mech = td.Mechanism({name: body() for name in "abc"}, joints, tendons=tendons, timestep=STEP, gravity=(0, 0, 0))
    z = mech.to_maximal(torch.randn(STATES, mech.num_coordinates), torch.randn(STATES, mech.num_coordinates))
    u = torch.randn(STATES, mech.num_inputs)
    out = polished(mech, "reference", z, u)
    moved = impulses_on_bodies(mech, z, out, tuple("abc"))
    assert moved.unbalanced() < ROUNDING
    after = dict(zip("abc", [motion.twist for motion in moved.motions], strict=True))
    for name, tendon in mech.tendons.items():
        path = tendon.path(*mech.element_poses(z, tendon))
        rate = path.rate([after[body] for body in tendon.body_names])
        impulse = out.impulses[:, mech.impulse_layout[f"tendons.{name}"]][:, 0]
        if name in mech.input_layout:
            impulse = impulse - STEP * u[:, mech.input_layout[name]][:, 0]
        stretch = tendon.stretch(path.length)
        gain = tendon.damping + STEP * tendon.stiffness * (stretch != 0) * tendon.implicit
        torch.testing.assert_close(impulse - STEP * tendon.stiffness * stretch, -STEP * gain * rate, rtol=0, atol=ROUNDING)
        assert float((-gain * rate**2).max()) <= 0 and float((gain * rate**2).max()) > 1e-6, name


@pytest.mark.parametrize("backend", BACKENDS)
def test_limits_and_friction_of_tendons_take_energy(backend: str) -> None:
    """The work of friction is negative. That of a limit is at most the energy that the limit gives back."""
    torch.manual_seed(13)
    ends = [td.Site(name, 0.2 * torch.randn(3)) for name in "abc"]
    laws: dict[str, dict[str, Any]] = {"rubbed": {"friction": 0.6}, "limited": {"limits": (0.6, 0.8), "limit_stiffness": 500.0}}
    tendons: dict[str, Tendon] = {name: td.SpatialTendon(ends, **given) for name, given in laws.items()}
    tendons |= {f"{name} sum": td.FixedTendon({"ab": 0.3, "bc": -0.2}, offset=0.7, **given) for name, given in laws.items()}
    joints = {"base": td.Floating(None, "a", actuated=False), "ab": joint("Revolute", "a", "b"), "bc": joint("Prismatic", "b", "c")}
    mech = td.Mechanism({name: body() for name in "abc"}, joints, tendons=tendons, timestep=STEP, gravity=(0, 0, 0))
    z = mech.to_maximal(torch.randn(STATES, mech.num_coordinates), torch.randn(STATES, mech.num_coordinates))
    out = polished(mech, backend, z)
    moved = impulses_on_bodies(mech, z, out, tuple("abc"))
    assert moved.unbalanced() < ROUNDING
    after = dict(zip("abc", [motion.twist for motion in moved.motions], strict=True))
    for name, tendon in tendons.items():
        path = tendon.path(*mech.element_poses(z, tendon))
        rate = path.rate([after[body] for body in tendon.body_names])
        impulse = out.impulses[:, mech.impulse_layout[f"tendons.{name}"]][:, 0]
        if tendon.friction is not None:
            assert float((impulse * rate).max()) < -1e-6 and float(impulse.abs().max()) <= STEP * 0.6
        else:
            energy = [tendon.limit_energy(length) for length in (path.length, path.length + STEP * rate)]
            taken = energy[0] - energy[1] - impulse * rate
            assert float(taken.min()) > -ROUNDING and float(taken.max()) > 1e-5
