"""The solver: it lands on the central path from any start, and says so for each environment by itself."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

import torchdojo as td
from torchdojo import quaternion as quat
from torchdojo.autodiff import flatten_batch
from torchdojo.dynamics.residual import StepProblem
from torchdojo.solver import cones
from torchdojo.solver.continuation import trace_central_path
from torchdojo.solver.interior_point import follow_central_path

CORNERS = [(0.25 * a, 0.25 * b, 0.25 * c) for a in (-1, 1) for b in (-1, 1) for c in (-1, 1)]


def cube(timestep: float, kappa: float, **options: object) -> td.Mechanism:
    """The cube of the design's table: 1 kg, 0.5 m, eight corners with friction 0.5."""
    return td.Mechanism(
        {"box": td.Body(1.0, (1 / 24, 1 / 24, 1 / 24))},
        contacts={f"corner{i}": td.NonlinearContact("box", point=p, friction=0.5) for i, p in enumerate(CORNERS)},
        timestep=timestep,
        options=td.SolverOptions(kappa=kappa, **options),
    )


def throws(mech: td.Mechanism) -> Tensor:
    spin = torch.randn(6, 3)
    spin = 5 * spin / spin.norm(dim=-1, keepdim=True)
    return mech.initial_state((6,), box=dict(position=(0, 0, 0.6), velocity=(2.0, 1.0, 0.0), angular_velocity=spin))


def problem(mech: td.Mechanism, z: Tensor) -> StepProblem:
    settings = mech._settings()
    flat, _ = flatten_batch(settings.specs, [*mech._check_inputs(z, None, None), *mech._stacked()])
    return StepProblem(settings.system, flat[3:], *flat[:3])


#: h, kappa, steps, and mean iterations of the design's table for cold and warm starts, which are not to be exceeded by more than one.
TABLE = [(0.05, 1e-4, 20, 8.0, 7.6), (0.01, 1e-4, 100, 8.6, 3.6), (0.01, 1e-6, 100, 10.4, 4.6), (0.01, 1e-8, 100, 10.9, 9.0)]


@pytest.mark.parametrize(("timestep", "kappa", "steps", "cold", "warm"), TABLE)
def test_table_of_the_design(timestep: float, kappa: float, steps: int, cold: float, warm: float) -> None:
    mech = cube(timestep, kappa)
    with torch.no_grad():
        warm_run = mech.rollout(throws(mech), steps=steps)
        cold_run = mech.step(warm_run.z[:, :-1:3])
    assert int((warm_run.status != td.Status.SUCCESS).sum()) == int((cold_run.status != td.Status.SUCCESS).sum()) == 0
    assert int((cold_run.substeps > 1).sum()) == 0
    assert float(warm_run.iterations.double().mean()) <= warm + 1
    assert float(cold_run.iterations.double().mean()) <= cold + 1
    assert float(mech.distances(warm_run.z[:, 1:]).min()) > 0


@pytest.mark.parametrize("kappa", [1e-3, 1e-6, 1e-9])
def test_solutions_lie_on_the_central_path(kappa: float) -> None:
    mech = cube(0.01, kappa)
    with torch.no_grad():
        z = mech.rollout(throws(mech), steps=60).z.flatten(0, 1)
        out = mech.step(z)
        p = problem(mech, z)
        r = p.residual(out.solution)
    own = cones.product_rows(p.system, r)
    gap = (r - kappa * cones.identity_rows(p.system, r)) * own
    assert float((r * (1 - own)).abs().max()) <= 1e-9
    assert float(gap.abs().max()) <= 1e-3 * kappa
    assert bool(cones.interior(p.system, out.solution).all())


def test_warm_and_cold_starts_agree() -> None:
    mech = cube(0.01, 1e-6, residual_tol=1e-11, central_path_tol=1e-8)
    with torch.no_grad():
        z = mech.rollout(throws(mech), steps=60).z[:, 50:]
        before, here = z[:, :-1], z[:, 1:]
        warm = mech.step(here, warm_start=mech.step(before).solution)
        cold = mech.step(here)
    # Both satisfy the equations to 1e-11; velocities follow through a contact stiffness of up to gamma² / kappa = 1e5.
    assert float((warm.z - cold.z).abs().max()) < 1e-6
    assert float(warm.iterations.double().mean()) < float(cold.iterations.double().mean())


def test_tracing_arrives_where_the_solver_does() -> None:
    mech = cube(0.01, 1e-6)
    with torch.no_grad():
        z = mech.rollout(throws(mech), steps=60).z[:, ::10].flatten(0, 1)
        p = problem(mech, z)
        traced, reached, iterations = trace_central_path(p, p.cold_start(1e-1), 1e-1, 1e-6)
        landed = follow_central_path(p, traced, 1e-6, mech.options)
        direct = mech.step(z)
    assert bool(reached.all()) and bool((landed.status == td.Status.SUCCESS).all()) and int(iterations.min()) > 0
    # Both are within the solver's tolerances of one solution: 1e-3 of kappa, seen through the stiffness of contact.
    assert float((landed.w[:, :6] - direct.solution[:, :6]).abs().max()) < 1e-4


def top(**options: object) -> tuple[td.Mechanism, Tensor, Tensor]:
    """A ball so fast that a torque takes it past 1/h, where ω √(1 − (h/2)²ω²) has its maximum: no step of this length exists."""
    mech = td.Mechanism({"ball": td.Body(1.0, (1.0, 1.0, 1.0))}, timestep=0.1, gravity=(0, 0, 0), options=td.SolverOptions(**options))
    z = mech.initial_state(ball=dict(angular_velocity=(0.0, 0.0, 13.0)))
    return mech, z, torch.tensor((0.0, 0.0, 0.0, 0.0, 0.0, 5.0))


def test_a_step_without_a_solution_is_halved() -> None:
    mech, z, wrench = top()
    out = mech.step(z, wrench=wrench)
    assert int(out.status) == td.Status.SUCCESS and int(out.substeps) == 2
    by_hand = td.Mechanism({"ball": td.Body(1.0, (1.0, 1.0, 1.0))}, timestep=0.05, gravity=(0, 0, 0))
    expected = by_hand(by_hand(z, wrench=wrench), wrench=wrench)
    assert float((out.z - expected).abs().max()) < 1e-12
    mech.options = dataclasses.replace(mech.options, max_halvings=0)
    flagged = mech.step(z, wrench=wrench)
    assert int(flagged.status) == td.Status.MAX_ITERATIONS and bool((flagged.z == z).all())
    with pytest.warns(UserWarning, match="1 of 1 environments keep their state"):
        mech(z, wrench=wrench)


def test_gradient_through_halved_steps() -> None:
    mech, z, wrench = top(residual_tol=1e-12)
    others = torch.stack((z, mech.initial_state(ball=dict(angular_velocity=(0.0, 1.0, 2.0)))))  # one halved, one not

    def after(delta: Tensor) -> Tensor:
        return mech.difference(mech(mech.retract(others, delta), wrench=wrench), base)

    base = mech(others, wrench=wrench).detach()
    zero = torch.zeros(2, 12)
    analytic = torch.autograd.functional.jacobian(lambda d: after(d).sum(0), zero).movedim(1, 0)
    step = 1e-5
    spin = torch.eye(12)[9:]  # halved steps are slow to find: the derivative along the angular velocity stands for the others
    columns = [(after(zero + step * e) - after(zero - step * e)) / (2 * step) for e in spin]
    numeric = torch.stack(columns, dim=-1)
    analytic = analytic[..., 9:]
    # Central differences of a smooth map: step² of curvature, and 1e-12 / step of the solver.
    assert float((analytic - numeric).abs().max()) < 1e-6 * float(numeric.abs().max())


def test_jacobians_through_halved_steps() -> None:
    _, spun, _ = top()
    joint = td.Mechanism({"ball": td.Body(1.0, (1.0, 1.0, 1.0))}, {"base": td.Floating(None, "ball")}, timestep=0.1, gravity=(0, 0, 0))
    u = torch.tensor((0.0, 0.0, 0.0, 0.0, 0.0, 5.0))
    assert int(joint.step(spun, u).substeps) == 2
    jac_z, jac_u = joint.jacobians(spun, u)
    base = joint(spun, u).detach()

    def after(delta: Tensor, du: Tensor) -> Tensor:
        return joint.difference(joint(joint.retract(spun, delta), u + du), base)

    auto_z, auto_u = torch.autograd.functional.jacobian(after, (torch.zeros(12), torch.zeros(6)))
    assert float((auto_z - jac_z).abs().max()) < 1e-9 * float(jac_z.abs().max())
    assert float((auto_u - jac_u).abs().max()) < 1e-9 * float(jac_u.abs().max())


def test_on_failure_raise() -> None:
    mech, z, wrench = top(on_failure="raise", max_halvings=0)
    with pytest.raises(RuntimeError, match="no start of the solver converged"):
        mech.step(z, wrench=wrench)


def test_scaling_of_cones() -> None:
    tails = torch.randn(2, 50, 2)
    heads = tails.norm(dim=-1, keepdim=True) + torch.rand(2, 50, 1) * torch.logspace(-6, 1, 50)[:, None]
    xi, eta = torch.cat((heads, tails), dim=-1)
    nt = cones.scaling(xi, eta)
    left, right = (nt.weight @ xi[..., None]).squeeze(-1), (nt.inverse @ eta[..., None]).squeeze(-1)
    # W grows with the inverse distance to the boundary, 1e6 here, and loses as many digits.
    assert float((left - right).abs().max()) < 1e-8
    assert float((nt.weight @ nt.inverse - torch.eye(3)).abs().max()) < 1e-8


@pytest.mark.slow
@pytest.mark.parametrize(("timestep", "steps"), [(0.01, 60), (0.002, 120)])
def test_random_drops_of_the_quadruped(timestep: float, steps: int) -> None:
    """60 random orientations and joint angles, legs swinging freely: the states in which folds of the central path were found."""
    mech = td.models.quadruped(timestep=timestep)
    n = mech.num_coordinates
    q = 0.5 * torch.randn(60, n)
    q[:, :3] = 0
    q[:, 3:6] = quat.rotation_vector(quat.normalize(torch.randn(60, 4)))
    q[:, 2] = 0.05 - mech.distances(mech.to_maximal(q)).amin(-1)
    with torch.no_grad():
        run = mech.rollout(mech.to_maximal(q), steps=steps)
    assert int((run.status != td.Status.SUCCESS).sum()) == 0
    assert float(mech.distances(run.z).min()) > 0
