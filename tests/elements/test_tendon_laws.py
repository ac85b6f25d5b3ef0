"""Limits, friction and armature of tendons, and couplings that yield: deflections, rates and accelerations that formulas give."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import torchdojo as td
from torchdojo.elements.tendon import LIMIT_TIME, SLIP, SOFTENING
from torchdojo.native import loader

KERNEL = pytest.param("native", marks=pytest.mark.skipif(not loader.available(), reason="no compiler for the native kernel"))
BACKENDS = [KERNEL, "reference"]
LONG = [KERNEL, pytest.param("reference", marks=pytest.mark.slow)]  # many steps
GRAVITY, STEP = 9.81, 0.01


def hung(backend: str, mass: float = 2.0, **laws: Any) -> td.Mechanism:
    """A weight on a vertical rail below a string of length 1 m."""
    string = td.SpatialTendon([td.Site(None, (0, 0, 1.0)), td.Site("weight")], **laws)
    rail = td.Prismatic(None, "weight", axis=(0, 0, 1), actuated=False)
    return td.Mechanism({"weight": td.Body(mass=mass, inertia=(0.1, 0.1, 0.1))}, {"rail": rail}, tendons={"string": string}, timestep=STEP,
                        options=td.SolverOptions(backend=backend))  # fmt: skip


def height_and_rate(mech: td.Mechanism, steps: int, qd: float = 0.0, **step: Any) -> tuple[float, float, td.Trajectory]:
    with torch.no_grad():
        path = mech.rollout(mech.to_maximal(torch.zeros(1).double(), torch.tensor([qd]).double()), steps=steps, **step)
    assert not path.status.any()
    q, rate = mech.to_minimal(path.z[-1])
    return float(q), float(rate), path


@pytest.mark.parametrize("backend", LONG)
def test_a_limit_holds_a_weight(backend: str) -> None:
    """It gives by m g / k, behind the half of the softening, and the impulse is the weight's."""
    mech = hung(backend, limits=(None, 1.0), limit_stiffness=1e4)
    height, rate, path = height_and_rate(mech, 400)
    assert abs(height + 2.0 * GRAVITY / 1e4 + 0.5 * SOFTENING) < 1e-9 and abs(rate) < 1e-8
    assert abs(float(path.impulses[-1, mech.impulse_layout["tendons.string"]]) + 2.0 * GRAVITY * STEP) < 1e-7
    stop = hung(backend, limits=(None, 1.0))
    height, _, path = height_and_rate(stop, 50, qd=-3.0)
    heights = stop.to_minimal(path.z)[0]
    assert float(heights.min()) > -3.1 * STEP and float(heights[3:].max()) < 1e-4 and abs(height) < 3e-5  # no bounce
    soft = hung(backend, limits=(None, 1.0), limit_stiffness=2e4)  # h² k = m, and τ damps critically
    heights = soft.to_minimal(height_and_rate(soft, 50, qd=-3.0)[2].z)[0]
    assert float(heights[2:].max()) < 0.0 and float(heights.min()) > -0.05
    apart = hung(backend, limits=(1.2, 1.5))  # 0.2 m outside: o − (h + τ) L̇ is the force over k
    _, rate, _ = height_and_rate(apart, 1)
    assert abs(0.2 + (STEP + LIMIT_TIME) * rate - 0.5 * SOFTENING + 2.0 * (rate + GRAVITY * STEP) / STEP / 1e6) < 1e-9


@pytest.mark.parametrize("backend", LONG)
def test_friction_holds_below_its_bound_and_slides_above(backend: str) -> None:
    weight = 2.0 * GRAVITY
    for bound in (1.5 * weight, 1e4):
        _, rate, path = height_and_rate(hung(backend, friction=bound), 20, qd=-0.5)
        load = weight / bound
        assert abs(rate + SLIP * load / (1 - load**2) ** 0.5) < 1e-8  # creep: F(rate) = m g
        assert int(path.iterations.max()) < 10
    _, rate, _ = height_and_rate(hung(backend, friction=0.6 * weight), 50)
    assert abs(rate + 0.4 * GRAVITY * 50 * STEP) < 2 * SLIP
    slowed = hung(backend, friction=0.6 * weight)
    assert abs(height_and_rate(slowed, 10, qd=3.0)[1] - 3.0 + 1.6 * GRAVITY * 10 * STEP) < 1e-6


@pytest.mark.parametrize("backend", BACKENDS)
def test_armature_is_an_inertia_along_the_length(backend: str) -> None:
    mech = hung(backend, armature=3.0)
    _, rate, path = height_and_rate(mech, 30, qd=0.4)
    assert abs(rate - 0.4 + 2.0 / 5.0 * GRAVITY * 30 * STEP) < 1e-9
    q, qd = mech.to_minimal(path.z[-1])
    assert abs(float(mech.mass_matrix(q)) - 5.0) < 1e-12
    assert abs(float(mech.kinetic_energy(path.z[-1])) - 2.5 * rate**2) < 1e-9
    with pytest.raises(ValueError, match="whose moment arms change"):
        mech.bias(q, qd)
    torch.testing.assert_close(mech.gravity_forces(q), torch.tensor([2.0 * GRAVITY]).double())


def coupled(backend: str, **soft: Any) -> td.Mechanism:
    bodies = {name: td.Body(mass=1.0, inertia=(0.1, 0.1, 0.1)) for name in ("left", "right", "arm")}
    joints = {
        "held": td.Prismatic(None, "left", axis=(0, 0, 1), spring=1e7, implicit=True, actuated=False),
        "slide": td.Prismatic(None, "right", axis=(0, 0, 1), actuated=False),
        "arm": td.Revolute(None, "arm", axis=(0, 1, 0), child_anchor=(0.5, 0, 0), actuated=False),
    }
    couplings = {"gear": td.JointCoupling("held", "slide", ratio=0.5, **soft), "lock": td.JointLock("arm", **soft)}
    return td.Mechanism(bodies, joints, couplings=couplings, timestep=STEP, options=td.SolverOptions(backend=backend))


@pytest.mark.parametrize("backend", LONG)
def test_a_coupling_gives_by_the_force_times_its_compliance(backend: str) -> None:
    mech = coupled(backend, compliance=0.002, damping=30.0)
    z = mech.to_maximal(torch.zeros(3).double())
    with torch.no_grad():
        end = mech.rollout(z, steps=500).z[-1]
    held, slide, arm = mech.to_minimal(end)[0].tolist()
    assert abs(slide - 0.5 * held + GRAVITY * 0.002) < 1e-8
    # The weight has the lever 0.5 cos(arm).
    assert abs(abs(arm) - GRAVITY * 0.5 * torch.cos(torch.tensor(arm).double()) * 0.002) < 1e-8
    stored = float(mech.potential_energy(end) - coupled(backend).potential_energy(end))
    assert abs(stored - ((slide - 0.5 * held) ** 2 + arm**2) / 0.004) < 1e-12


@pytest.mark.parametrize("backend", BACKENDS)
def test_rigid_is_rigid_to_the_bit(backend: str) -> None:
    """Numbers that do nothing change no bit: α of zero alone or beside others, and tendons whose laws are None."""
    rigid, zero, mixed = coupled(backend), coupled(backend, compliance=0.0), coupled(backend, compliance=torch.tensor([0.0, 0.1]))
    assert zero.couplings["gear"].compliance is None
    z = rigid.to_maximal(torch.tensor([0.01, 0.3, 0.2]).double(), torch.tensor([1.0, -1.0, 0.5]).double()).expand(2, -1)
    first, second, third = (mech.step(z) for mech in (rigid, zero, mixed))
    for name in ("z", "impulses"):
        assert torch.equal(getattr(first, name), getattr(second, name))
        assert torch.equal(getattr(first, name)[0], getattr(third, name)[0])
        assert not torch.equal(getattr(first, name)[1], getattr(third, name)[1])
    plain, given = hung(backend, stiffness=9.0), hung(backend, stiffness=9.0, limits=None, friction=None, armature=None)
    assert torch.equal(height_and_rate(plain, 3)[2].z, height_and_rate(given, 3)[2].z)
    near = hung(backend, stiffness=9.0, friction=0.0, armature=0.0, limits=(None, 9.0))  # another way through the solver
    assert abs(height_and_rate(plain, 3)[0] - height_and_rate(near, 3)[0]) < 1e-12


@pytest.mark.parametrize("backend", LONG)
def test_gradients_by_numbers_agree_with_differences(backend: str) -> None:
    """Outside of a limit, sliding, with armature: by all numbers of both tendons; and by those of couplings that yield."""
    laws: dict[str, Any] = {
        "limits": (0.2, 0.5),
        "limit_stiffness": 300.0,
        "limit_time": 0.03,
        "friction": 0.7,
        "damping": 0.4,
        "stiffness": 20.0,
    }
    link = {"mass": 1.0, "inertia": (0.02, 0.03, 0.01)}
    sites = [td.Site(None, (0.1, 0, 0.1)), td.Wrap(td.Site("upper", (0, 0, -0.5)), 0.05), td.Site("lower", (0.04, 0, 0.1))]
    joints = {
        "hip": td.Revolute(None, "upper", axis=(0, 1, 0), child_anchor=(0, 0, 0.5)),
        "knee": td.Revolute("upper", "lower", axis=(0.1, 1, 0), parent_anchor=(0, 0, -0.5), child_anchor=(0, 0, 0.5)),
    }
    mech = td.Mechanism(
        {name: td.Body(**link) for name in ("upper", "lower")}, joints,
        couplings={"gear": td.JointCoupling("hip", "knee", ratio=0.7, compliance=0.05, damping=0.3, curve=(0.2,))},
        tendons={"string": td.SpatialTendon(sites, armature=0.5, **laws), "sum": td.FixedTendon({"hip": 0.3, "knee": -0.2}, **laws)},
        timestep=STEP, options=td.SolverOptions(backend=backend),
    )  # fmt: skip
    z = mech.initial_state(hip={"q": 0.4, "qd": 1.0}, knee={"q": 0.8, "qd": -2.0})
    u = torch.tensor([0.1, -0.2]).double()
    report = td.testing.check_gradients(mech, z, u, parameters=["tendons.string", "tendons.sum", "couplings.gear"], directions=1)
    assert report.max_relative_error < 1e-6, report
