"""Polynomials of springs and dampers: MuJoCo's forces, energies and motions, what energy does, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import torchdojo as td
from mechanics import impulses_on_bodies
from torchdojo.io import load_mjcf, mjcf_state, read_mjcf

LAW = 'stiffness="3 {sign}5 7" damping=".2 .5 .25"'
TYPES = {"hinge": 'type="hinge" axis="0 1 0"', "slide": 'type="slide" axis="1 0 0"'}
WORLD = """<mujoco><option gravity="0 0 0" timestep="{h}" integrator="implicit"/><worldbody>
  <body name="a"><joint name="j" {type} {law} springref="{rest}"/>
    <inertial pos=".1 .2 -.1" mass="1" diaginertia=".2 .3 .4"/>
    <body name="b" pos="0 0 -.4"><joint name="k" type="hinge" axis="1 0 0" stiffness="1 0 4"/>
      <inertial pos="0 .1 -.2" mass=".5" diaginertia=".02 .03 .04"/></body></body></worldbody>
  <tendon><fixed name="t" stiffness="2 3 6" damping=".1 .3 .2" springlength="-.1 .2"><joint joint="j" coef=".7"/>
    <joint joint="k" coef="-.4"/></fixed></tendon>
  <actuator><motor name="m" joint="j" gear="2" damping=".1 .2 .3"/></actuator></mujoco>"""


def written(tmp_path: Path, kind: str, sign: str = "", h: float = 1e-4) -> Path:
    path = tmp_path / "body.xml"
    rest = "20" if kind == "hinge" else ".3"
    path.write_text(WORLD.format(type=TYPES[kind], law=LAW.format(sign=sign), h=h, rest=rest))
    return path


@pytest.mark.parametrize("sign", ["", "-"])
@pytest.mark.parametrize("kind", TYPES)
def test_forces_and_energies_equal_mujoco(kind: str, sign: str, tmp_path: Path) -> None:
    mujoco = pytest.importorskip("mujoco")
    path = written(tmp_path, kind, sign)
    model, info, mech = mujoco.MjModel.from_xml_path(str(path)), read_mjcf(path), load_mjcf(path, contacts=None, tendons=True)
    model.opt.enableflags |= int(mujoco.mjtEnableBit.mjENBL_ENERGY)
    assert not [entry for entry in mech.load_report.entries if entry.effect == "motion"]
    random = np.random.default_rng(0)
    for _ in range(20):
        data = mujoco.MjData(model)
        data.qpos[:], data.qvel[:] = random.normal(size=2), 3 * random.normal(size=2)
        mujoco.mj_forward(model, data)
        z = mjcf_state(mech, info, qpos=data.qpos, qvel=data.qvel)
        assert abs(float(mech.potential_energy(z)) - data.energy[0]) < 1e-10 * (1 + abs(data.energy[0]))
        q, qd = torch.from_numpy(data.qpos.copy()), torch.from_numpy(data.qvel.copy())
        h = mech.timestep[..., None]
        forces = []
        for i, joint in enumerate(mech.joints.values()):
            spring = joint.spring * (joint.rest - q[i : i + 1])
            forces.append(spring + joint.resistance(q[i : i + 1], qd[i : i + 1], spring, h))
        total = torch.cat(forces)
        tendon, arm = mech.tendons["t"], torch.tensor((0.7, -0.4), dtype=torch.float64)
        length, rate = arm @ q, arm @ qd
        stretch = tendon.stretch(length)
        pull = tendon.stiffness * stretch - tendon.damping * rate
        pull = pull - td.elements.curves.curve_force(-stretch, tendon.stiffness_curve) - td.elements.curves.drag(rate, tendon.damping_curve)
        total = total + arm * pull
        wanted = torch.from_numpy(data.qfrc_spring + data.qfrc_damper)
        torch.testing.assert_close(total, wanted, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", TYPES)
def test_motion_equals_mujoco(kind: str, tmp_path: Path) -> None:
    """0.1 s from random states: within 1 % at 1 ms, and half of it at half the step."""
    mujoco = pytest.importorskip("mujoco")
    path = written(tmp_path, kind, h=2e-5)
    model, info, mech = mujoco.MjModel.from_xml_path(str(path)), read_mjcf(path), load_mjcf(path, contacts=None, tendons=True)
    random, errors = np.random.default_rng(1), []
    for _ in range(4):
        data = mujoco.MjData(model)
        data.qpos[:], data.qvel[:] = random.normal(size=2), 3 * random.normal(size=2)
        start, speed = data.qpos.copy(), data.qvel.copy()
        for _ in range(5000):
            mujoco.mj_step(model, data)
        moved, row = np.linalg.norm(data.qpos - start), []
        for h in (1e-3, 5e-4):
            mech.timestep = h
            with torch.no_grad():
                run = mech.rollout(mjcf_state(mech, info, qpos=start, qvel=speed), steps=round(0.1 / h))
            q = mech.to_minimal(run.z[-1])[0].numpy()
            row.append(np.linalg.norm(q - data.qpos) / moved)
        errors.append(row)
    large, small = np.max(errors, axis=0)
    assert large < 0.01 and small < 0.6 * large


def pendulum(**laws: object) -> td.Mechanism:
    body = {"b": td.Body(1.0, (0.2, 0.2, 0.2)), "c": td.Body(0.5, (0.05, 0.03, 0.02))}
    joints = {
        "j": td.Revolute(None, "b", axis=(0, 1, 0.3), child_anchor=(0, 0, 0.2), spring=2.0, rest=0.1, **laws),
        "k": td.Cylindrical("b", "c", axis=(1, 0, 0), child_anchor=(0, 0.1, 0.2), spring=4.0, **laws),
    }
    return td.Mechanism(body, joints, gravity=(0, 0, 0))


def energies(mech: td.Mechanism, h: float, seconds: float = 1.0) -> torch.Tensor:
    """At the steps of rollouts from random states, (steps - 1, 5) [J]."""
    torch.manual_seed(0)
    mech.timestep = h
    n = mech.num_coordinates
    z = mech.to_maximal(0.5 * torch.randn(5, n), torch.randn(5, n))
    with torch.no_grad():
        run = mech.rollout(z, steps=round(seconds / h))
        assert not run.status.any()
        before, after = run.z[..., :-1, :], run.z[..., 1:, :]
        return (mech.kinetic_energy(before, after) + mech.potential_energy(before)).movedim(-1, 0)


def test_springs_keep_energy() -> None:
    """An explicit spring is symplectic: its energy stays within h², and has no drift."""
    deviations = []
    for h in (4e-3, 2e-3):
        energy = energies(pendulum(spring_curve=(3.0, 20.0)), h)
        deviations.append(float(((energy - energy[0]).abs() / energy[0]).max()))
    assert deviations[0] < 2e-3 and deviations[1] < 0.3 * deviations[0]


@pytest.mark.parametrize(
    "laws", [{"damper_curve": (0.5, 0.3)}, {"damper_curve": (0.5, 0.3), "implicit": True, "spring_curve": (3.0, 20.0)}]
)
def test_dampers_take_energy(laws: dict[str, object]) -> None:
    energy = energies(pendulum(**laws), 2e-3)
    assert bool((energy[-1] < 0.9 * energy[0]).all())
    assert float((energy[1:] - energy[:-1]).max()) < 0


def test_dampers_never_do_work() -> None:
    """Power of the polynomial at random rates and numbers."""
    torch.manual_seed(1)
    rate, curve = 10 * torch.randn(1000), 5 * torch.rand(1000, 2)
    assert bool((td.elements.curves.drag(rate, curve) * rate >= 0).all())


def test_force_is_minus_the_slope_of_the_energy() -> None:
    torch.manual_seed(2)
    stretch, curve = torch.randn(100).requires_grad_(), torch.randn(100, 2)
    (slope,) = torch.autograd.grad(td.elements.curves.curve_energy(stretch, curve).sum(), stretch)
    torch.testing.assert_close(slope, td.elements.curves.curve_force(stretch, curve).detach(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_curves_of_tendons_keep_momentum(backend: str) -> None:
    """Their impulse is h times minus the slope of their energy, less a drag that takes power."""
    torch.manual_seed(12)
    h = 0.01
    sites = [td.Site(name, 0.2 * torch.randn(3)) for name in ("a", "b", "a")]
    curves = {"stiffness_curve": (3.0, 7.0), "damping_curve": (0.4, 0.6), "rest": (0.1, 0.3)}
    mech = td.Mechanism(
        {name: td.Body(0.8, (0.10, 0.13, 0.17)) for name in "ab"},
        {
            "base": td.Floating(None, "a", actuated=False),
            "ab": td.Revolute("a", "b", axis=torch.randn(3), child_anchor=(0.1, 0.2, 0.3), actuated=False),
        },
        tendons={"string": td.SpatialTendon(sites, **curves), "sum": td.FixedTendon({"ab": 0.7}, **curves)},
        timestep=h,
        gravity=(0, 0, 0),
    )
    z = mech.to_maximal(torch.randn(4, mech.num_coordinates), torch.randn(4, mech.num_coordinates))
    mech.options = td.SolverOptions(residual_tol=1e-12, max_halvings=0, min_iterations=2, backend=backend)
    with torch.no_grad():
        out = mech.step(z, torch.zeros(4, mech.num_inputs))
    moved = impulses_on_bodies(mech, z, out, tuple("ab"))
    assert moved.unbalanced() < 1e-12
    after = dict(zip("ab", [motion.twist for motion in moved.motions], strict=True))
    for name, tendon in mech.tendons.items():
        length, _ = path = tendon.path(*mech.element_poses(z, tendon))
        rate = path.rate([after[body] for body in tendon.body_names])
        excess = (-tendon.stretch(length)).detach().requires_grad_()
        (slope,) = torch.autograd.grad(td.elements.curves.curve_energy(excess, tendon.stiffness_curve.detach()).sum(), excess)
        drag = -out.impulses[:, mech.impulse_layout[f"tendons.{name}"]][:, 0] / h - slope
        assert float((drag * rate).min()) > 0
        torch.testing.assert_close(drag.detach(), (rate * rate.abs() * (0.4 + 0.6 * rate.abs())).detach(), rtol=0, atol=1e-10)


def test_large_drag_is_stable() -> None:
    """A damper that would explode at the present velocity: h d₃ v² is 1e4 times the inertia."""
    mech = td.Mechanism({"b": td.Body(1.0, (0.1,) * 3)}, {"j": td.Prismatic(None, "b", damper_curve=(0.0, 1e4))}, gravity=(0, 0, 0))
    z = mech.initial_state(j={"qd": 10.0})
    with torch.no_grad():
        run = mech.rollout(z, steps=20)
    speed = mech.to_minimal(run.z)[1][1:, 0]
    assert not run.status.any() and bool((speed[1:] < speed[:-1]).all()) and 0 < float(speed[-1]) < 0.1


@pytest.mark.parametrize(("kind", "laws", "message"), [
    ("Revolute", {"spring_curve": 1.0}, "got shape"),
    ("Revolute", {"spring_curve": (1.0, 2.0, 3.0)}, "the numbers of square and cube"),
    ("Cylindrical", {"damper_curve": ((1.0, 2.0),)}, "two for each free coordinate"),
    ("Revolute", {"damper_curve": (1.0, -2.0)}, "numbers >= 0"),
    ("Revolute", {"spring_curve": (float("nan"), 1.0)}, "finite numbers"),
    ("Spherical", {"spring_curve": (1.0, 2.0)}, "at most one"),
])  # fmt: skip
def test_bad_input(kind: str, laws: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        getattr(td, kind)(None, "b", **laws)


def test_absent_curves() -> None:
    joint = td.Revolute(None, "b", spring=1.0)
    assert joint.spring_curve is None
    with pytest.raises(ValueError, match="build it with spring_curve="):
        joint.spring_curve = (1.0, 2.0)
    with pytest.raises(ValueError, match=r"allowed: \(..., 2\)"):
        td.FixedTendon({"j": 1.0}, stiffness_curve=(1.0,))
    with pytest.raises(ValueError, match="numbers >= 0"):
        td.FixedTendon({"j": 1.0}, damping_curve=(1.0, -1.0))
