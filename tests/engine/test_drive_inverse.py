"""Activations that give forces on coordinates, and controls that lead to activations."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import torchdojo as td
from torchdojo.engine.drive_inverse import bounded_least_norm

STEP = 1e-3


def arm(**muscle: object) -> td.Mechanism:
    """Two links on hinges without dampers: antagonists along strings at each hinge, a motor, and a fan on the last link."""
    bodies = {name: td.Body(1.0, (0.01, 0.012, 0.013)) for name in ("upper", "fore")}
    joints = {
        "shoulder": td.Revolute(None, "upper", axis=(0, 0, 1), child_anchor=(-0.15, 0, 0)),
        "elbow": td.Revolute("upper", "fore", axis=(0, 0, 1), parent_anchor=(0.15, 0, 0), child_anchor=(-0.15, 0, 0)),
    }
    tendons, drives = {}, {}
    for joint, parent, child, at in (("shoulder", None, "upper", 0.0), ("elbow", "upper", "fore", 0.15)):
        for name, side in (("flexor", 0.04), ("extensor", -0.04)):
            points = [td.Site(parent, (at - 0.1, side, 0)), td.Site(parent, (at, side, 0)), td.Site(child, (-0.05, side, 0))]
            tendons[f"{joint}_{name}"] = td.SpatialTendon(points, actuated=True)
            drives[f"{joint}_{name}"] = td.Drive.muscle(tendon=f"{joint}_{name}", lengths=(0.1, 0.35), force=200.0, **muscle)
    drives["motor"] = td.Drive(joint="elbow", gear=2.0, ctrlrange=(-0.5, 0.5), forcerange=(-0.3, 0.4), bias_numbers=(0.1, -0.2, 0.0))
    drives["fan"] = td.Drive(site=td.Site("fore", (0.1, 0, 0)), gear=(0, 1.0, 0, 0, 0, 0.1), ctrlrange=(-1, 1))
    mech = td.Mechanism(bodies, joints, tendons=tendons, timestep=STEP, gravity=(0, -9.81, 0))
    mech.options = td.SolverOptions(residual_tol=1e-12)
    mech.drives = td.Drives(mech, drives)
    return mech


def motion(count: int = 6) -> tuple[Tensor, Tensor, Tensor]:
    """q, qd and qdd."""
    generator = torch.Generator().manual_seed(0)
    q, qd, qdd = torch.randn(3, count, 2, generator=generator, dtype=torch.float64)
    return 0.4 * q, 0.5 * qd, 10 * qdd


def test_the_map_has_the_forces_of_the_drives() -> None:
    mech = arm()
    q, qd, _ = motion()
    z, drives = mech.to_maximal(q, qd), mech.drives
    forces = drives.force_map(z)
    x = torch.rand(len(q), 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    x = torch.minimum(torch.maximum(x, forces.lower), forces.upper)
    ctrl, act = torch.where(torch.arange(6) < 4, 0.3, x), x[:, :4]
    u, wrench, _ = drives.inputs(ctrl, act, z)
    columns = wrench.unflatten(-1, (2, 6))[:, 1]  # of the fore arm, in whose frame is the torque; turns are about z
    expected = u[:, :2] + (u[:, 2:, None] * mech.tendon_moment_arms(q)).sum(1)
    expected = expected + (mech.point_jacobian(q, "fore") * columns[..., None]).sum(1)
    torch.testing.assert_close((forces.matrix @ x[..., None])[..., 0] + forces.constant, expected, rtol=0, atol=1e-11)


def test_motions_under_the_activations_close_with_the_step() -> None:
    """Accelerations of a step differ from those that were asked for by terms of the order of h."""
    mech, errors = arm(), []
    q, qd, qdd = motion()
    tau = mech.inverse_dynamics(q, qd, qdd)
    for h in (STEP, STEP / 2):
        mech.timestep = h
        z = mech.to_maximal(q, qd)
        found = mech.drives.activations_for(z, tau)
        assert float(found.error.abs().max()) < 1e-10  # of 8 N·m
        after = mech.drives.step(z, found.value, found.value[..., :4]).out.z
        errors.append(float(((mech.to_minimal(after)[1] - qd) / h - qdd).abs().max()))
    assert errors[0] < 0.05  # of 10 rad/s²
    assert errors[1] < 0.6 * errors[0]


@pytest.mark.parametrize("scale", [1.0, 30.0], ids=["possible", "too much"])
def test_results_are_optimal(scale: float) -> None:
    """The conditions of Karush, Kuhn and Tucker of the least norm, or of the least missing force."""
    generator = torch.Generator().manual_seed(2)
    A = torch.randn(40, 3, 7, generator=generator, dtype=torch.float64)
    wanted = scale * (A @ torch.rand(40, 7, 1, generator=generator, dtype=torch.float64))[..., 0]
    lower, upper = torch.zeros(40, 7).double(), torch.full((40, 7), torch.inf).double()
    upper[:, :5] = 1.0
    lower[:, 6] = -torch.inf
    x = bounded_least_norm(A, wanted, lower, upper)
    missing = wanted - (A @ x[..., None])[..., 0]
    assert bool((x >= lower).all() and (x <= upper).all())
    possible = missing.abs().amax(-1) < 1e-9
    assert bool(possible.all()) == (scale == 1.0)
    free = (x > lower) & (x < upper)
    # A force that is missing is along no column that may grow. Where none is, x is along the rows, of the free columns exactly.
    gain = (A.mT @ missing[..., None])[..., 0]
    assert float((gain * free).abs().max()) < 1e-7 * scale
    assert float(torch.where(x >= upper, (-gain).clamp_min(0), 0).max()) < 1e-7
    assert float(torch.where(x <= lower, gain.clamp_min(0), 0).max()) < 1e-7 * scale
    for i in possible.nonzero()[:, 0]:
        if int(free[i].sum()) >= len(A[i]):
            multiplier = torch.linalg.lstsq(A[i][:, free[i]].mT, x[i][free[i]][:, None]).solution[:, 0]
            slope = x[i] - A[i].mT @ multiplier
            assert float(slope[free[i]].abs().max()) < 1e-7
            assert bool((slope[x[i] <= lower[i]] > -1e-7).all() and (slope[x[i] >= upper[i]] < 1e-7).all())


def test_gradients_agree_with_differences() -> None:
    mech = arm()
    q, qd, qdd = (value[:2] for value in motion())
    tau = mech.inverse_dynamics(q, qd, qdd)
    cost = torch.tensor([1.0, 1.0, 2.0, 2.0, 5.0, 5.0], dtype=torch.float64)

    def value(q: Tensor, qd: Tensor, tau: Tensor) -> Tensor:
        return mech.drives.activations_for(mech.to_maximal(q, qd), tau, cost=cost).value

    inputs = tuple(entry.detach().requires_grad_() for entry in (q, qd, tau))
    assert torch.autograd.gradcheck(value, inputs, eps=1e-6, atol=1e-6)


@pytest.mark.parametrize("law", ["integrator", "filter", "filterexact", "muscle"])
def test_controls_lead_to_activations(law: str) -> None:
    mech = arm()
    drive = td.Drive(joint="elbow", dynamics=law, dynamics_numbers=(0.05, 0.06, 0.0))
    drives = mech.drives = td.Drives(mech, {"motor": td.Drive(joint="shoulder"), "slow": drive})
    generator = torch.Generator().manual_seed(3)
    ctrl, act = torch.rand(20, 2, generator=generator).double(), torch.rand(20, 1, generator=generator).double()
    found = drives.controls_for(act, drives.advance(ctrl, act))
    torch.testing.assert_close(found.value[:, 1], ctrl[:, 1], rtol=0, atol=1e-11)
    assert not found.value[:, 0].any()
    assert float(found.error.abs().max()) < 1e-14
    far = drives.controls_for(act, act + 3.0)
    if law == "muscle":  # its control ends at one
        assert float(far.error.min()) < -2.0


def test_what_inverse_problems_refuse() -> None:
    mech = arm(smooth=0.1)
    q, qd, _ = motion(2)
    z, act = mech.to_maximal(q, qd), torch.zeros(2, 4).double()
    with pytest.raises(ValueError, match=r"a smooth switch, of \['shoulder_flexor'.*allowed: integrators, filters, and muscles"):
        mech.drives.controls_for(act, act)
    with pytest.raises(ValueError, match=r"activations_for.tau: got shape \(3,\); allowed: \(\.\.\., 2\)"):
        mech.drives.activations_for(z, torch.zeros(3).double())
    with pytest.raises(ValueError, match=r"activations_for.cost: got -1.0; allowed: a number above 0, or one for each of"):
        mech.drives.activations_for(z, torch.zeros(2).double(), cost=-1.0)
    with pytest.raises(ValueError, match=r"act has shape|act: got"):
        mech.drives.controls_for(act[:, :3], act)
    late = td.Drives(mech, {"late": td.Drive(joint="elbow", delay=0.01)})
    with pytest.raises(ValueError, match=r"controls_for: got drives with a delay, \['late'\]; allowed: delay=0"):
        late.controls_for(torch.zeros(10).double(), torch.zeros(10).double())
    td.actuate(mech, {"plain": td.Actuator.motor("elbow")})
    shared = td.Drives(mech, {"plain": None, "pull": td.Drive(tendon="elbow_flexor")})
    with pytest.raises(ValueError, match=r"force_map: got drives of mech.actuators, \['plain'\]; allowed: drives with laws of their own"):
        shared.force_map(z)
