"""Conservation without gravity, damping and external forces.

The step conserves momentum to the solver's tolerance, keeps the joints together, and does not let the energy drift. The energy bars come
from the tests of Dojo.
"""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import Tensor

import torchdojo as td
from torchdojo import quaternion as quat
from torchdojo.elements import joints as joint_types

H = 0.01
STEPS = 100
OPTIONS = td.SolverOptions(residual_tol=1e-12)


def link() -> td.Body:
    return td.Body(mass=1.0, inertia=(0.09, 0.08, 0.02))


def free_body(inertia: tuple[float, float, float]) -> td.Mechanism:
    return td.Mechanism({"body": td.Body(mass=1.3, inertia=inertia)}, timestep=H, gravity=(0, 0, 0), options=OPTIONS)


def snake(kind: str, count: int = 5) -> td.Mechanism:
    joints = {"base": td.Floating(None, "b0")}
    for i in range(1, count):
        axis = (1.0, 0.3, -0.2) if i % 2 else (0.1, 1.0, 0.4)
        joints[f"j{i}"] = getattr(td, kind)(f"b{i - 1}", f"b{i}", axis=axis, parent_anchor=(0.1, 0, 0.5), child_anchor=(0, 0.1, -0.5))
    return td.Mechanism({f"b{i}": link() for i in range(count)}, joints, timestep=H, gravity=(0, 0, 0), options=OPTIONS)


def humanoid() -> td.Mechanism:
    """13 bodies in the shape of a person: a trunk of two, a head, legs of three, arms of two; hinges, universal and ball joints."""
    bodies = {"pelvis": td.Body(mass=12.0, inertia=(0.15, 0.12, 0.10)), "chest": td.Body(mass=20.0, inertia=(0.35, 0.30, 0.20))}
    joints: dict[str, td.Joint] = {
        "base": td.Floating(None, "pelvis"),
        "waist": td.Spherical("pelvis", "chest", parent_anchor=(0, 0, 0.15), child_anchor=(0, 0, -0.25)),
        "neck": td.Orbital("chest", "head", parent_anchor=(0, 0, 0.3), child_anchor=(0, 0, -0.12)),
    }
    bodies["head"] = td.Body(mass=4.5, inertia=(0.03, 0.03, 0.02))
    for side, y in (("left", 1.0), ("right", -1.0)):
        for name, mass, inertia in (
            ("thigh", 7.0, (0.11, 0.11, 0.02)),
            ("shin", 3.0, (0.05, 0.05, 0.005)),
            ("foot", 1.0, (0.002, 0.005, 0.005)),
            ("arm", 2.0, (0.015, 0.015, 0.003)),
            ("forearm", 1.5, (0.01, 0.01, 0.002)),
        ):
            bodies[f"{side}_{name}"] = td.Body(mass=mass, inertia=inertia)
        across = dict(axis=(0, 1, 0))
        joints |= {
            f"{side}_hip": td.Spherical("pelvis", f"{side}_thigh", parent_anchor=(0, 0.1 * y, -0.1), child_anchor=(0, 0, 0.2)),
            f"{side}_knee": td.Revolute(f"{side}_thigh", f"{side}_shin", parent_anchor=(0, 0, -0.2), child_anchor=(0, 0, 0.2), **across),
            f"{side}_ankle": td.Orbital(f"{side}_shin", f"{side}_foot", parent_anchor=(0, 0, -0.2), child_anchor=(-0.05, 0, 0.03)),
            f"{side}_shoulder": td.Spherical("chest", f"{side}_arm", parent_anchor=(0, 0.2 * y, 0.25), child_anchor=(0, 0, 0.14)),
            f"{side}_elbow": td.Revolute(
                f"{side}_arm", f"{side}_forearm", parent_anchor=(0, 0, -0.14), child_anchor=(0, 0, 0.12), **across
            ),
        }
    return td.Mechanism(bodies, joints, timestep=H, gravity=(0, 0, 0), options=OPTIONS)


MECHANISMS = {
    "free_cube": lambda: free_body((0.2, 0.2, 0.2)),
    "free_body": lambda: free_body((0.2, 0.3, 0.4)),
    **{f"snake_{kind}": lambda kind=kind: snake(kind) for kind in joint_types.JOINT_TYPES},
    "humanoid": humanoid,
}


@cache
def simulated(name: str) -> tuple[td.Mechanism, Tensor]:
    """The mechanism and its states, (2, STEPS + 2, 13 nb), from random configurations with random velocities of order 1."""
    mechanism = MECHANISMS[name]()
    torch.manual_seed(1)
    n = mechanism.num_coordinates
    z = mechanism.to_maximal(0.3 * torch.randn(2, n), torch.randn(2, n).clamp(-2, 2))
    with torch.no_grad():
        trajectory = mechanism.rollout(z, steps=STEPS + 1)
    assert not trajectory.status.any()
    return mechanism, trajectory.z


@pytest.mark.parametrize("name", MECHANISMS)
def test_momentum_is_conserved(name: str) -> None:
    mechanism, z = simulated(name)
    for momentum in (mechanism.momentum(z), mechanism.momentum(z[:, :-1], z[:, 1:])):
        # 100 steps × residuals of 1e-12 per body with levers of 1 m stay below 1e-10 unless they all point one way.
        assert float((momentum - momentum[:, :1]).abs().max()) <= 1e-10


@pytest.mark.parametrize("name", MECHANISMS)
def test_joints_stay_together(name: str) -> None:
    mechanism, z = simulated(name)
    errors = mechanism.joint_errors(z).abs()
    if errors.shape[-1]:
        # The equations hold at every new configuration by themselves, so the solver's tolerance is the error of each step...
        assert float(errors.max()) <= 1e-9
        # ... and they do not grow.
        assert float(errors[:, -10:].max()) <= 1e-12 + float(errors[:, 1:11].max()) * 10
    norms = torch.linalg.vector_norm(z.unflatten(-1, (-1, 13))[..., 6:10], dim=-1)
    assert float((norms - 1).abs().max()) <= 1e-13  # 100 products of unit quaternions


# Energy errors relative to the kinetic energy at the start. Dojo's bars are 1e-8 for a floating block and 2e-3 for the humanoid after 1 s.
# A floating body of any inertia conserves its energy exactly, by the map of Moser and Veselov (1991), up to 100 residuals of 1e-12.
ENERGY_BARS = {"free_cube": 1e-10, "free_body": 1e-10, "humanoid": 2e-3}


@pytest.mark.parametrize("name", ENERGY_BARS)
def test_energy(name: str) -> None:
    mechanism, z = simulated(name)
    energy = mechanism.kinetic_energy(z[:, :-1], z[:, 1:])
    assert energy.shape[-1] == STEPS + 1  # 1 s
    assert float((energy / energy[:, :1] - 1).abs().max()) <= ENERGY_BARS[name]


@pytest.mark.slow
def test_energy_does_not_drift_in_five_seconds() -> None:
    mechanism, z = simulated("humanoid")
    with torch.no_grad():
        z = mechanism.rollout(z[:, 0], steps=500).z
    energy = mechanism.kinetic_energy(z[:, :-1], z[:, 1:])
    # The bar of one second holds for the mean of the fifth second: an explicit or dissipative scheme loses several percent by then.
    assert float((energy[:, -100:].mean(-1) / energy[:, :100].mean(-1) - 1).abs().max()) <= 2e-3
    assert float((mechanism.momentum(z) - mechanism.momentum(z)[:, :1]).abs().max()) <= 5e-10  # five times the bar of 100 steps


@pytest.mark.parametrize("kind", ["Prismatic", "Revolute", "PlanarOrbital", "Floating"])
def test_springs_dampers_and_inputs_conserve_momentum(kind: str) -> None:
    """Whatever acts between two bodies leaves their common momentum alone."""
    mechanism = snake(kind, 3)
    for name, joint in mechanism.joints.items():
        if name != "base":
            joint.spring, joint.damper, joint.rest = 3.0, 0.2, 0.1
    n = mechanism.num_coordinates
    z = mechanism.to_maximal(0.3 * torch.randn(n), torch.randn(n))
    u = torch.randn(30, mechanism.num_inputs)
    u[:, mechanism.input_layout["base"]] = 0
    with torch.no_grad():
        trajectory = mechanism.rollout(z, u)
    assert not trajectory.status.any()
    momentum = mechanism.momentum(trajectory.z)
    # 30 steps × residuals of 1e-12, as above.
    assert float((momentum - momentum[:1]).abs().max()) <= 1e-10
    if kind == "Revolute":  # and it did something
        assert float(quat.rotation_vector(trajectory.z[-1, 6:10]).abs().max()) > 0


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_a_body_too_fast_for_the_step_is_stepped_in_parts(backend: str) -> None:
    """Above √2/h [rad/s] no step of length h has a solution on the motion's branch; shorter steps have, and keep the spin."""
    mech = td.Mechanism({"top": td.Body(1.0, (0.1, 0.1, 0.1))}, timestep=0.01, gravity=(0.0, 0.0, 0.0))
    mech.options = td.SolverOptions(backend=backend)
    for spin, parts in ((140.0, 1), (150.0, 2), (300.0, 4), (4500.0, 32)):
        out = mech.step(mech.initial_state(top=dict(angular_velocity=(0.0, 0.0, spin))))
        assert out.status == 0 and out.substeps == parts
        assert abs(float(out.z[12]) / spin - 1) <= 1e-12
    assert mech.step(mech.initial_state(top=dict(angular_velocity=(0.0, 0.0, 4600.0)))).status == td.Status.INVALID_INPUT
