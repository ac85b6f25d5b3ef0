"""Limits, Coulomb friction and armature of joints: all joint types, every coordinate, gradients, exact solutions, other engines."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchdojo as td
from conftest import shared_path
from golden import GoldenCase, load_case
from torchdojo.elements import joints as joint_types
from torchdojo.elements.element import Pose

JOINTS = [name for name in joint_types.JOINT_TYPES if name != "Fixed"]
COORDINATES = {name: sum(joint_types.JOINT_TYPES[name]) for name in JOINTS}
#: Solutions polished to rounding where numbers are compared.
EXACT = dict(residual_tol=1e-11, central_path_tol=1e-8)


def rod() -> td.Body:
    return td.Body(mass=1.2, inertia=(0.10, 0.13, 0.17))


def held(kind: str, **options: Any) -> td.Mechanism:
    """One body on the world, without gravity."""
    joint = getattr(td, kind)(None, "a", axis=(0.3, 1.0, -0.2), parent_anchor=(0.1, 0.2, 0.3), child_anchor=(0.2, -0.1, 0.3), **options)
    return td.Mechanism({"a": rod()}, {"joint": joint}, timestep=0.01, gravity=(0, 0, 0))


def pair(kind: str, **options: Any) -> td.Mechanism:
    """A free body and one on it."""
    offset = torch.randn(4)
    axes = dict(axis=torch.randn(3), orientation_offset=offset / offset.norm())
    joint = getattr(td, kind)("a", "b", parent_anchor=0.3 * torch.randn(3), child_anchor=0.3 * torch.randn(3), **axes, **options)
    joints = {"base": td.Floating(None, "a", actuated=False), "joint": joint}
    return td.Mechanism({"a": rod(), "b": rod()}, joints, timestep=0.01, gravity=(0, 0, 0))


def pendulum(**options: Any) -> td.Mechanism:
    """A pendulum of 1 kg with its center of mass 0.5 m below the hinge at q = 0."""
    joint = td.Revolute(None, "rod", axis=(0, 1, 0), child_anchor=(0, 0, 0.5), **options)
    return td.Mechanism({"rod": td.Body(1.0, (0.1, 0.1, 0.01))}, {"hinge": joint}, timestep=0.01)


def slider(**options: Any) -> td.Mechanism:
    return td.Mechanism(
        {"cart": td.Body(2.0, (1.0, 1.0, 1.0))}, {"rail": td.Prismatic(None, "cart", axis=(1, 0, 0), **options)}, timestep=0.01
    )


def worst(difference: Tensor) -> float:
    return float(difference.detach().abs().max())


# -- gradients -----------------------------------------------------------------------------------------------------------------------------

#: Coordinates move at −3 rad/s, m/s from 0.3, 0.03 per step.
PHASES: dict[str, dict[str, Any]] = {
    "pressed": dict(limits=(0.29, 1.0), friction=0.4, armature=0.2),
    "apart": dict(limits=(-1.0, 1.0), friction=0.4, armature=0.2),
    "stuck": dict(limits=(-1.0, 1.0), friction=600.0, armature=0.2),
}


# Every joint at its limits; two phases more for the kinds of coordinates there are. The others take minutes and show the same equations.
SHOWN = ("Prismatic", "Revolute", "Orbital", "Spherical", "Floating")
GRADIENTS = [
    pytest.param(kind, phase, marks=() if phase == "pressed" or kind in SHOWN else pytest.mark.slow) for kind in JOINTS for phase in PHASES
]


@pytest.mark.parametrize(("kind", "phase"), GRADIENTS)
def test_gradients(kind: str, phase: str) -> None:
    n = COORDINATES[kind]
    spread = 1 + 0.01 * torch.rand(n)
    (lower, upper), rest = PHASES[phase]["limits"], {k: spread * v for k, v in PHASES[phase].items() if k != "limits"}
    mech = pair(kind, limits=(lower * spread, upper * spread), **rest)
    mech.options = td.SolverOptions(kappa=1e-4)
    q, qd = torch.cat((0.2 * torch.randn(6), torch.full((n,), 0.3))), torch.cat((torch.randn(6), torch.full((n,), -3.0)))
    z, u = mech.to_maximal(q, qd), 0.1 * torch.randn(mech.num_inputs)
    with torch.no_grad():
        impulses = mech.step(z, u).impulses
    pressing = impulses[mech.impulse_layout["limits.joint"]][:n] > 1e-2
    p, q = impulses[mech.impulse_layout["frictions.joint"]].tensor_split(2)
    sliding = torch.minimum(p, q) < 0.1 * torch.maximum(p, q)
    assert bool(pressing.any()) == (phase == "pressed")
    if phase != "pressed":
        assert bool(sliding.all()) == (phase == "apart")
    names = [f"joints.joint.{name}" for name in ("lower", "upper", "friction", "armature", "axis", "orientation_offset", "child_anchor")]
    # As in test_gradients: relative to the largest derivative of the same input.
    report = td.testing.check_gradients(mech, z, u, parameters=[*names, "timestep"], directions=2, tolerance=1e-6)
    assert set(names) <= {label.partition(" ")[0] for label in report.errors}


def test_jacobians_match_autograd() -> None:
    """The same derivative by two formulas, the dependence of armature on the incoming velocity included."""
    mech = pair("Cylindrical", limits=(-0.02, 0.02), friction=(0.3, 0.2), armature=(0.5, 0.1))
    mech.options = td.SolverOptions(kappa=1e-4, **EXACT)
    z, u = mech.to_maximal(torch.zeros(8), torch.randn(8)), torch.randn(2)
    jac_z, jac_u = mech.jacobians(z, u)
    base = mech(z, u).detach()
    auto_z, auto_u = torch.autograd.functional.jacobian(
        lambda d, du: mech.difference(mech(mech.retract(z, d), u + du), base), (torch.zeros(24), torch.zeros(2))
    )
    assert worst(auto_z - jac_z) < 1e-9 * worst(jac_z) and worst(auto_u - jac_u) < 1e-9 * worst(jac_u)


# -- limits --------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", JOINTS)
def test_limits_stop_every_coordinate(kind: str) -> None:
    """Each coordinate by itself, both ways: it comes to the limit and never goes beyond."""
    n = COORDINATES[kind]
    mech = held(kind, limits=(-0.05, 0.06))
    qd = 2 * torch.cat((torch.eye(n), -torch.eye(n)))
    with torch.no_grad():
        path = mech.rollout(mech.to_maximal(torch.zeros(2 * n, n), qd), steps=10)
    assert not path.status.any()
    q = mech.to_minimal(path.z)[0]
    moving = torch.arange(n).repeat(2)[:, None, None].expand(-1, 11, 1)
    own = torch.take_along_dim(q, moving, -1).squeeze(-1)
    assert float(q[:, 1:].min()) > -0.05 and float(q[:, 1:].max()) < 0.06
    # Resting on the limit at κ over its impulse of about 2 N·s.
    assert worst(own[:n].amax(-1) - 0.06) < 1e-4 and worst(own[n:].amin(-1) + 0.05) < 1e-4


def test_limits_around_pi() -> None:
    """Angles of 2.5 to 3.6 rad, those a turn below, and ranges of more than a turn, to 2π."""
    for middle, width in ((3.05, 0.55), (3.05 - 2 * math.pi, 0.55), (0.0, 4.0), (0.0, 2 * math.pi), (5.0, 1.0)):
        mech = pendulum(limits=(middle - width, middle + width))
        mech.gravity = torch.zeros(3)
        with torch.no_grad():
            path = mech.rollout(mech.to_maximal(torch.full((4, 1), middle), torch.tensor([[30.0], [-30.0], [60.0], [-60.0]])), steps=30)
        assert not path.status.any()
        q = mech.to_minimal(path.z)[0].squeeze(-1) - middle
        assert float(q.abs().max()) < width
        assert worst(q[[0, 2]].amax(-1) - width) < 1e-4 and worst(q[[1, 3]].amin(-1) + width) < 1e-4


@pytest.mark.parametrize("limits", [(-1.0, 6.3), (-7.0, math.inf), ((-4.0,), (9.0,)), (-700.0, 700.0)])
def test_limits_beyond_two_turns_are_refused(limits: tuple[Any, Any]) -> None:
    with pytest.raises(ValueError, match=r"Revolute\.limits: got .*angles within ±2π of zero.*turns on has no limits"):
        pendulum(limits=limits)


def test_fast_turn_does_not_pass_a_narrow_gap() -> None:
    """±3.1 rad leave 0.083 rad on the far side: a step of 0.3 rad stops at the limit and does not pass the other limit."""
    mech = pendulum(limits=(-3.1, 3.1))
    with torch.no_grad():
        z = mech.step(mech.to_maximal(torch.tensor([3.0]), torch.tensor([30.0]))).z
    assert 3.0 < float(mech.to_minimal(z)[0]) < 3.1


@pytest.mark.parametrize(("side", "bound", "start"), [("lower", 0.5, 1.0), ("upper", -0.5, -1.0)])
def test_one_sided_limit(side: str, bound: float, start: float) -> None:
    mech = pendulum(limits=(bound, math.inf) if side == "lower" else (-math.inf, bound))
    layout = mech.impulse_layout
    assert layout["limits.hinge"].stop - layout["limits.hinge"].start == 1
    with torch.no_grad():
        path = mech.rollout(mech.initial_state(hinge=dict(q=start)), steps=60)
    assert not path.status.any()
    q = mech.to_minimal(path.z)[0]
    assert float(q.abs().min()) > 0.5 and worst(q[-1] - bound) < 1e-3


@pytest.mark.parametrize("kind", ["Orbital", "Spherical", "Cylindrical", "FreeOrbital"])
def test_wrench_of_limits_is_the_transposed_jacobian(kind: str) -> None:
    joint = held(kind, limits=(-1.0, 1.0)).joints["joint"]
    n = COORDINATES[kind]
    poses = [Pose(torch.randn(3), q / q.norm()) for q in torch.randn(2, 4)]
    if kind == "Cylindrical":  # about one axis, for configurations that the joint allows
        mech = held(kind)
        poses[1] = mech.element_poses(mech.to_maximal(torch.tensor((0.3, 2.9))), joint)[1]
        poses[0] = Pose(torch.zeros(3), torch.tensor((1.0, 0.0, 0.0, 0.0)))
    gamma = torch.randn(n)

    def coordinates(*moves: Tensor) -> Tensor:
        moved = []
        for pose, dx, dphi in zip(poses, moves[::2], moves[1::2], strict=True):
            moved.append(Pose(pose.x + dx, td.quaternion.multiply(pose.q, torch.cat((torch.ones(1), 0.5 * dphi)))))
        return joint.coordinates(*moved)

    jacobians = torch.autograd.functional.jacobian(coordinates, (torch.zeros(3),) * 4)
    acting = joint.act_along(*poses, gamma)
    for impulse, jacobian in zip([part for body in acting for part in body], jacobians, strict=True):
        assert worst(impulse - jacobian.T @ gamma) < 1e-12


def test_limits_that_cannot_be_reached_do_not_act() -> None:
    for kind, limits in {"Revolute": (-math.inf, math.inf), "Spherical": (-4.0, 4.0), "Prismatic": (-math.inf, math.inf)}.items():
        mech = held(kind, limits=limits)
        assert not any("limits" in key for key in mech.impulse_layout)
        assert [float(bound[0]) for bound in mech.joints["joint"].limits] == list(limits)
    mech = held("PlanarAxis", limits=((-1.0, -math.inf, -math.inf), (math.inf, 2.0, math.inf)))
    assert mech.joints["joint"].limited == ((0,), (1,))


def test_limits_per_environment_and_learned() -> None:
    """A batch of limits equals single ones, and the gradient of where the pendulum rests is one."""
    upper = torch.tensor([[0.3], [0.5]], requires_grad=True)
    mech = pendulum(limits=(-1.0, upper), friction=torch.tensor([[0.0], [0.2]]))
    mech.options = td.SolverOptions(kappa=1e-8, **EXACT)
    z, u = mech.initial_state((2,), hinge=dict(q=torch.tensor([[0.299], [0.499]]))), torch.full((2, 1), 6.0)
    path = mech.rollout(z, u[:, None].expand(2, 5, 1))
    q = mech.to_minimal(path.z)[0][:, -1]
    for i in range(2):
        single = pendulum(limits=(-1.0, upper[i].detach()), friction=0.2 * i)
        single.options = mech.options
        assert worst(single.rollout(z[i], u[i].expand(5, 1)).z[-1] - path.z[i, -1]) < 1e-9
    (gradient,) = torch.autograd.grad(q.sum(), upper)
    assert worst(gradient - 1) < 1e-4


# -- friction ------------------------------------------------------------------------------------------------------------------------------


def test_sliding_stops_and_sticks() -> None:
    """2 kg at 1 m/s against 4 N: 2 m/s² less the κ/v [N·s] of the central path, then rest."""
    mech, kappa, b = slider(friction=4.0), 1e-6, 0.04
    mech.options = td.SolverOptions(kappa=kappa, **EXACT)
    with torch.no_grad():
        path = mech.rollout(mech.initial_state(rail=dict(qd=1.0)), steps=60)
    v = mech.to_minimal(path.z)[1].squeeze(-1)
    missing = 2.0 * (v[1:] - v[:-1])[:40] + b  # b − |λ|
    assert bool((missing > 0).all()) and bool((missing < 1.01 * kappa / v[1:41]).all())
    assert worst(v[53:]) < 1e-10


@pytest.mark.parametrize("load", [0.5, 0.95])
def test_holds_a_load(load: float) -> None:
    """Below its friction the slider creeps as fast as the central path says, 2κx/(b(1 − x²)), and no faster; above, it goes."""
    mech, kappa, b = slider(friction=4.0), 1e-6, 0.04
    mech.options = td.SolverOptions(kappa=kappa, **EXACT)
    z = mech.initial_state()
    with torch.no_grad():
        v = mech.to_minimal(mech.rollout(z, torch.full((40, 1), 4.0 * load)).z[-1])[1]
        gone = mech.to_minimal(mech.rollout(z, torch.full((40, 1), 4.0 * 1.5)).z[-1])[1]
    assert float(v) == pytest.approx(2 * kappa * load / (b * (1 - load**2)), rel=1e-6)
    assert float(gone) == pytest.approx(0.4 * 0.5 * 4.0 / 2.0, rel=0.02)


@pytest.mark.parametrize("kind", JOINTS)
def test_friction_takes_energy(kind: str) -> None:
    """Moving in all coordinates, the energy falls every step to that of the creep."""
    mech = held(kind, friction=3.0)
    n = COORDINATES[kind]
    with torch.no_grad():
        path = mech.rollout(mech.to_maximal(0.1 * torch.randn(n), torch.randn(n).clamp(-1, 1)), steps=60)
    assert not path.status.any()
    energy = mech.kinetic_energy(path.z)
    # Speed that a body without friction gains or loses in a step of 0.01 s.
    assert bool((energy[1:] <= energy[:-1] + 1e-3 * energy[0]).all())
    assert float(energy[-1]) < 1e-8 < float(energy[0])


@pytest.mark.parametrize("kind", ["Revolute", "Spherical", "PlanarAxis", "Floating"])
def test_internal_impulses_keep_the_momentum(kind: str) -> None:
    mech = pair(kind, limits=(-0.1, 0.1), friction=0.5, armature=0.3)
    mech.options = td.SolverOptions(residual_tol=1e-12)
    n = mech.num_coordinates
    with torch.no_grad():
        path = mech.rollout(mech.to_maximal(torch.zeros(n), 2 * torch.randn(n)), torch.randn(20, n - 6))
    assert not path.status.any()
    assert float(path.impulses[:, mech.impulse_layout["limits.joint"]].max()) > 1e-2
    momentum = mech.momentum(path.z)
    # 20 steps × residuals of 1e-12, and rounding of the rates of armature, 1e-16/h.
    assert worst(momentum - momentum[:1]) < 1e-10


# -- armature ------------------------------------------------------------------------------------------------------------------------------


def test_period_with_armature() -> None:
    """Small oscillations: q(t+h) − 2q(t) + q(t−h) = −(hω)² q(t) with ω² = m g l/(J + m l² + a), for the leapfrog that the step is."""
    mech = pendulum(armature=0.7)
    with torch.no_grad():
        q = mech.to_minimal(mech.rollout(mech.initial_state(hinge=dict(q=1e-3)), steps=50).z)[0].squeeze(-1)
    expected = 1.0 * 9.81 * 0.5 / (0.1 + 0.25 + 0.7)
    stiffness = -(q[2:] - 2 * q[1:-1] + q[:-2]) @ q[1:-1] / (q[1:-1] @ q[1:-1]) / 0.01**2
    assert float(stiffness) == pytest.approx(expected, rel=1e-6)  # sin q − q is 2e-7 of q


@pytest.mark.parametrize("kind", ["Cylindrical", "PlanarAxis"])
def test_energy_with_armature(kind: str) -> None:
    """Without gravity the energy, that of the armature included, swings by a part in a thousand and does not drift."""
    mech = pair(kind, armature=0.5)
    n = mech.num_coordinates
    with torch.no_grad():
        z = mech.rollout(mech.to_maximal(torch.zeros(n), torch.randn(n)), steps=100).z
    energy = mech.kinetic_energy(z[:-1], z[1:])
    assert float(mech.kinetic_energy(z[:1])) > 0
    assert worst(energy / energy[0] - 1) < 2e-2
    assert abs(float(energy[-50:].mean() / energy[:50].mean()) - 1) < 5e-3


TWO_LINKS = """<mujoco><option gravity="0 0 -9.81" timestep="1e-4" integrator="RK4"/><worldbody>
<body pos="0 0 2"><joint name="first" axis="0 1 0" armature="0.3"/><inertial pos="0 0 -.5" mass="1" diaginertia=".1 .1 .02"/>
<body pos="0 0 -1"><joint name="second" axis="1 0 0" armature="0.1"/><inertial pos="0 0 -.3" mass=".5" diaginertia=".03 .03 .01"/>
</body></body></worldbody></mujoco>"""


def test_armature_is_that_of_mujoco() -> None:
    mujoco = pytest.importorskip("mujoco")
    model = mujoco.MjModel.from_xml_string(TWO_LINKS)
    data = mujoco.MjData(model)
    data.qpos[:], data.qvel[:] = (0.7, -0.4), (1.0, 2.0)
    mujoco.mj_forward(model, data)
    start = torch.tensor(data.qpos), torch.tensor(data.qvel), torch.tensor(data.qacc)
    h = 1e-3
    joints = {
        "first": td.Revolute(None, "a", axis=(0, 1, 0), parent_anchor=(0, 0, 2), child_anchor=(0, 0, 0.5), armature=0.3),
        "second": td.Revolute("a", "b", axis=(1, 0, 0), parent_anchor=(0, 0, -0.5), child_anchor=(0, 0, 0.3), armature=0.1),
    }
    bodies = {"a": td.Body(1.0, (0.1, 0.1, 0.02)), "b": td.Body(0.5, (0.03, 0.03, 0.01))}
    mech = td.Mechanism(bodies, joints, timestep=h, options=td.SolverOptions(residual_tol=1e-11))
    q, qd, qdd = start
    with torch.no_grad():  # a state holds the velocity half a step ago
        moved = mech.to_minimal(mech.rollout(mech.to_maximal(q, qd - 0.5 * h * qdd), steps=100).z[-1])[0]
    for _ in range(1000):
        mujoco.mj_step(model, data)
    # Second order in h on our side (1e-6); without armature the coordinates differ by a tenth of the way.
    assert worst(moved - torch.tensor(data.qpos)) < 1e-5 * worst(moved - q)


# -- golden cases --------------------------------------------------------------------------------------------------------------------------


def golden(name: str) -> GoldenCase:
    return load_case(shared_path("golden"), name)


@pytest.mark.parametrize("exponent", [3, 4, 6])
def test_golden_cartpole(exponent: int) -> None:
    """A translational limit: states, impulses and Jacobians of the original engine at the same κ."""
    case = golden("cartpole_limits")
    case.mechanism.options = td.SolverOptions(kappa=10.0**-exponent, **EXACT)
    z, u = case.arrays["z"][::2], case.arrays["u"][::2] @ case.input_map.T
    with torch.no_grad():
        out = case.mechanism.step(z, u)
    assert not out.status.any()
    # As for contacts: both satisfy products of κ >= 1e-6 to 1e-8 of it.
    assert worst(out.z - case.arrays[f"z_next_k{exponent}"][::2]) <= 1e-6
    ours = out.impulses[:, case.mechanism.impulse_layout["limits.cart_joint"]]
    theirs = case.arrays[f"joint_impulses_k{exponent}"][::2, 2:4]  # after the slacks, upper side first
    assert worst(ours - theirs.flip(-1)) <= 1e-6
    index = case.arrays["jac_index"].long()
    scale = torch.ones(2, 12)
    scale[:, 6:9] = 2  # their attitude is the half-angle vector
    scale = scale.flatten()
    A, B = scale[:, None] * case.arrays[f"A_ift_k{exponent}"] / scale, scale[:, None] * case.arrays[f"B_ift_k{exponent}"] @ case.input_map.T
    jac_z, jac_u = case.mechanism.jacobians(case.arrays["z"][index], case.arrays["u"][index] @ case.input_map.T)
    tolerance = 1e-6 * torch.linalg.matrix_norm(A, torch.inf).clamp_min(1)[:, None, None]
    assert bool(((jac_z - A).abs() <= tolerance).all()) and bool(((jac_u - B).abs() <= tolerance).all())


@pytest.mark.parametrize("name", ["pendulum_limits_h01", "pendulum_limits_h05_input"])
def test_golden_pendulum(name: str) -> None:
    """The original's torque about the axis is L γ, L = ½ cos(θ/2) at the current angle, with γ s = κ; ours is γ. The same step is ours with
    products of L κ, so each record is compared at its own κ."""
    case = golden(name)
    z, u, theirs = (case.arrays[key][::5] for key in ("z", "u", "z_next_k4"))
    active = 0
    for i, lever in enumerate(0.5 * torch.cos(0.5 * case.mechanism.to_minimal(z)[0].squeeze(-1))):
        case.mechanism.options = td.SolverOptions(kappa=1e-4 * float(lever), residual_tol=1e-11, central_path_tol=1e-6)
        with torch.no_grad():
            out = case.mechanism.step(z[i], u[i])
        assert not out.status
        assert worst(out.z - theirs[i]) <= 1e-6
        active += int(out.impulses[case.mechanism.impulse_layout["limits.joint"]].max() > 1e-2)
    assert active >= 3


@pytest.mark.parametrize("name", ["pendulum_limits_h01", "pendulum_limits_h05_input"])
def test_golden_pendulum_at_small_kappa(name: str) -> None:
    """Both levers at κ = 1e-6: the gaps differ by κ/γ (1 − 1/L), the velocities by as much over h."""
    case = golden(name)
    case.mechanism.options = td.SolverOptions(kappa=1e-6, **EXACT)
    z, u, theirs = (case.arrays[key][::5] for key in ("z", "u", "z_next_k6"))
    with torch.no_grad():
        out = case.mechanism.step(z, u)
    assert not out.status.any()
    h, theta = float(case.mechanism.timestep), case.mechanism.to_minimal(z)[0].squeeze(-1)
    gamma = out.impulses[:, case.mechanism.impulse_layout["limits.joint"]].amax(-1)
    gap = 1e-6 / gamma * (1 / (0.5 * torch.cos(0.5 * theta)) - 1).abs()
    # The angle itself, and the joint's use of the angle: 0.5 m to the center of mass.
    moved = (case.mechanism.to_minimal(out.z)[0] - case.mechanism.to_minimal(theirs)[0]).abs().squeeze(-1)
    assert bool((moved <= 1.1 * gap + 1e-6).all())
    assert bool(((out.z - theirs).abs().amax(-1) <= 1.2 * gap / h + 1e-6).all())


# -- parameters ----------------------------------------------------------------------------------------------------------------------------


def test_nothing_is_added_where_nothing_acts() -> None:
    plain, zeros = pendulum(), pendulum(friction=0.0, armature=[0.0], limits=None)
    for mech in (plain, zeros):
        assert list(mech.impulse_layout) == ["joints.hinge"]
        assert mech.joints["hinge"].friction is mech.joints["hinge"].armature is mech.joints["hinge"].limits is None
        assert set(mech.joints["hinge"].fields) == set(td.StandardJoint.fields)
        assert mech.backends.program is not None
    assert list(plain.state_dict()) == list(zeros.state_dict())


def test_parameters_are_one() -> None:
    """Elements read the joint's own values, in copies too, and nothing is listed twice."""
    mech = pendulum(limits=(-0.2, 0.2), friction=0.3, armature=0.1)
    names = [name for name, _ in mech.named_parameters() if "hinge" in name]
    assert len(names) == len(set(names)) == 11
    twin = copy.deepcopy(mech)
    twin.joints["hinge"].limits = (-0.1, 0.1)
    with torch.no_grad():
        mech.joints["hinge"].upper.fill_(0.3)
        for model, upper in ((mech, 0.3), (twin, 0.1)):
            z = model.rollout(model.initial_state(hinge=dict(q=0.09)), torch.full((30, 1), 20.0)).z
            assert float(model.to_minimal(z)[0].max()) == pytest.approx(upper, abs=1e-3)
    single = copy.deepcopy(mech).to(torch.float32)
    assert all(tensor.dtype == torch.float64 for tensor in single.stacked_parameters())
    single.load_state_dict(mech.state_dict())
    single.options = td.SolverOptions(kappa=1e-4, dtype=torch.float32)
    assert not single.step(single.initial_state()).status


def test_parametrized_friction() -> None:
    plain, wrapped = slider(friction=1.0), slider(friction=1.0)

    class Square(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * x

        def right_inverse(self, x: Tensor) -> Tensor:
            return x.sqrt()

    torch.nn.utils.parametrize.register_parametrization(wrapped.joints["rail"], "friction", Square())
    original = wrapped.joints["rail"].parametrizations.friction.original.requires_grad_()
    z = plain.initial_state(rail=dict(qd=1.0))
    plain.joints["rail"].friction.requires_grad_()
    for mech in (plain, wrapped):
        mech(z)[3].backward()
    assert float(original.grad) == pytest.approx(2 * float(plain.joints["rail"].friction.grad), rel=1e-9)


class Hinge(td.Revolute):
    """A joint of a user's own, whose zero is a parameter."""

    def __init__(self, *args: Any, zero: float, **options: Any) -> None:
        super().__init__(*args, **options)
        self.net = nn.Linear(1, 1, bias=False).double()
        nn.init.constant_(self.net.weight, zero)

    def displacement(self, parent: Pose, child: Pose) -> tuple[Tensor, Tensor]:
        d, p = super().displacement(parent, child)
        turn = self.net(torch.ones(1, dtype=d.dtype))
        return d, td.quaternion.multiply(td.quaternion.exp(-turn * self.axis), p)


def test_subclass_written_by_a_user() -> None:
    """Limits and friction see its kinematics, and its weights get their gradients through them."""
    joint = Hinge(None, "rod", zero=0.2, axis=(0, 1, 0), child_anchor=(0, 0, 0.5), limits=(-1.0, 0.1), friction=0.1)
    mech = td.Mechanism({"rod": td.Body(1.0, (0.1, 0.1, 0.01))}, {"hinge": joint}, timestep=0.01)
    mech.options = td.SolverOptions(kappa=1e-4)
    z = pendulum().initial_state(hinge=dict(q=0.29, qd=2.0))
    with torch.no_grad():
        assert float(pendulum().to_minimal(mech(z))[0]) == pytest.approx(0.3, abs=1e-3)
    report = td.testing.check_gradients(mech, z, parameters=["joints.hinge.net", "joints.hinge.upper"], tolerance=1e-6)
    assert worst(report.numeric["joints.hinge.net.weight -> state"]) > 1


def test_functional_call_and_vmap() -> None:
    mech = pendulum(limits=(-1.0, 0.3), friction=0.2)
    mech.options = td.SolverOptions(**EXACT)
    z = mech.initial_state(hinge=dict(q=0.29, qd=3.0))

    def step(upper: Tensor) -> Tensor:
        result: Tensor = torch.func.functional_call(mech, {"joints.hinge.upper": upper}, (z,))
        return result

    values = torch.tensor([[0.3], [0.295]])
    together = torch.func.vmap(step)(values)
    for value, single in zip(values, together, strict=True):
        assert worst(single - step(value)) < 1e-9
