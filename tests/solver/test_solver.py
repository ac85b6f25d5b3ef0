"""The solver: it lands on the central path from any start, and says so for each environment by itself."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

import torchdojo as td
from torchdojo import quaternion as quat
from torchdojo.dynamics import cones
from torchdojo.dynamics.residual import StepProblem
from torchdojo.elements import path_maps
from torchdojo.gradients.batching import flatten_batch
from torchdojo.native import loader
from torchdojo.solver.continuation import trace_central_path
from torchdojo.solver.interior_point import follow_central_path
from torchdojo.solver.path_newton import onto_path
from torchdojo.state.unknowns import NUM_DATA

CORNERS = [(0.25 * a, 0.25 * b, 0.25 * c) for a in (-1, 1) for b in (-1, 1) for c in (-1, 1)]


def cube(timestep: float, kappa: float, backend: str = "reference", **options: object) -> td.Mechanism:
    """The cube of the design's table: 1 kg, 0.5 m, eight corners with friction 0.5."""
    return td.Mechanism(
        {"box": td.Body(1.0, (1 / 24, 1 / 24, 1 / 24))},
        contacts={f"corner{i}": td.NonlinearContact("box", point=p, friction=0.5) for i, p in enumerate(CORNERS)},
        timestep=timestep,
        options=td.SolverOptions(kappa=kappa, backend=backend, **options),
    )


def throws(mech: td.Mechanism, count: int = 6) -> Tensor:
    spin = torch.randn(count, 3)
    spin = 5 * spin / spin.norm(dim=-1, keepdim=True)
    return mech.initial_state((count,), box=dict(position=(0, 0, 0.6), velocity=(2.0, 1.0, 0.0), angular_velocity=spin))


def on_the_way(mech: td.Mechanism, steps: int, count: int = 6) -> Tensor:
    """States of as many throws, (count, steps + 1, 13): the kernel computes them, where there is one."""
    options = mech.options
    mech.options = dataclasses.replace(options, backend="auto")
    with torch.no_grad():
        z = mech.rollout(throws(mech, count), steps=steps).z
    mech.options = options
    return z


def problem(mech: td.Mechanism, z: Tensor) -> StepProblem:
    system = mech.backends.system
    flat, _ = flatten_batch(system.step_specs(), [*mech.check_inputs(z, None, None), *mech.stacked_parameters()])
    return StepProblem(system, flat[NUM_DATA:], *flat[:NUM_DATA], depenetration_speed=mech.options.depenetration_speed)


#: h, kappa, steps; mean iterations of the reference from cold and from warm starts (6 throws), of the kernel from warm ones (1000 throws).
TABLE = [
    (0.05, 1e-4, 20, 5.8, 4.6, 4.8),
    (0.01, 1e-4, 100, 4.8, 3.1, 3.1),
    (0.01, 1e-6, 100, 5.9, 1.9, 2.1),
    (0.01, 1e-8, 100, 7.1, 1.7, 2.0),
    (0.01, 1e-10, 100, 8.7, 1.8, 2.0),
    (0.002, 1e-6, 200, 5.3, 1.7, 1.8),
]
TABLE_OF_KERNEL = [(*row[:3], row[5]) for row in TABLE]


# The kernel, which takes the same decisions, has all rows.
@pytest.mark.slow
@pytest.mark.parametrize(("timestep", "kappa", "steps", "cold", "warm"), [TABLE[i][:5] for i in (0, 2, 4)])
def test_table_of_the_design(timestep: float, kappa: float, steps: int, cold: float, warm: float) -> None:
    mech = cube(timestep, kappa)
    with torch.no_grad():
        warm_run = mech.rollout(throws(mech), steps=steps)
        cold_run = mech.step(warm_run.z[:, :-1:3])
    assert int((warm_run.status != td.Status.SUCCESS).sum()) == int((cold_run.status != td.Status.SUCCESS).sum()) == 0
    assert int((cold_run.substeps > 1).sum()) == 0
    # Rounding decides which of a few throws need the attempts after the first: 0.1 in the mean.
    assert float(warm_run.iterations.double().mean()) <= warm + 0.3
    assert float(cold_run.iterations.double().mean()) <= cold + 0.3
    assert float(mech.distances(warm_run.z[:, 1:]).min()) > 0


@pytest.mark.skipif(not loader.available(), reason="no compiler for the native kernel")
@pytest.mark.parametrize(("timestep", "kappa", "steps", "warm"), TABLE_OF_KERNEL)
def test_table_of_the_design_in_the_kernel(timestep: float, kappa: float, steps: int, warm: float) -> None:
    mech = cube(timestep, kappa, backend="native")
    with torch.no_grad():
        run = mech.rollout(throws(mech, 1000), steps=steps)
    assert int((run.status != td.Status.SUCCESS).sum()) == 0
    assert int((run.substeps > 1).sum()) <= (10 if timestep == 0.05 else 0)
    assert float(run.iterations.double().mean()) <= warm + 0.3
    assert float(mech.distances(run.z[:, 1:]).min()) > 0


@pytest.mark.skipif(not loader.available(), reason="no compiler for the native kernel")
@pytest.mark.parametrize("kappa", [pytest.param(1e-4, marks=pytest.mark.slow), 1e-6, pytest.param(1e-8, marks=pytest.mark.slow)])
def test_the_kernel_takes_the_same_decisions(kappa: float) -> None:
    mech = cube(0.01, kappa)
    start = on_the_way(mech, 20, 3)[:, -1]  # just before they hit the ground
    with torch.no_grad():
        wanted = mech.rollout(start, steps=20)
        mech.options = dataclasses.replace(mech.options, backend="native")
        path = mech.rollout(start, steps=20)
    assert bool((mech.distances(wanted.z[:, -1]).amin(-1) < 0.02).all())
    assert bool((path.status == wanted.status).all())
    assert float((path.iterations == wanted.iterations).double().mean()) >= 0.98  # all, but rounding may turn one
    assert float((path.z - wanted.z).abs().max()) < 1e-8


def pairs(mech: td.Mechanism, count: int) -> tuple[StepProblem, Tensor]:
    """Unknowns whose impulses and slacks are anything, inside their cones or not: 1e-4 to 1 in size."""
    p = problem(mech, mech.initial_state((count,)))
    return p, torch.randn(count, p.system.num_unknowns) * 10 ** (4 * torch.rand(count, p.system.num_unknowns) - 4)


@pytest.mark.parametrize("kappa", [1e-3, 1e-6, 1e-9])
def test_on_path(kappa: float) -> None:
    mech = cube(0.01, kappa)
    mech.contacts["plain"] = td.ImpactContact("box")
    mech = td.Mechanism(dict(mech.bodies), {}, dict(mech.contacts), timestep=0.01)
    p, w = pairs(mech, 500)
    level = torch.full((500,), kappa)
    once = onto_path(p, w, level)
    twice = onto_path(p, once, level)
    rows = cones.products(p.system, once)[0]
    wanted = kappa * cones.identity_rows(p.system, w)[cones.products(p.system, once)[1]]
    # Rounding of factors up to 1 (impulses) and 1e3 (slips).
    assert float((rows - wanted).abs().max()) < 1e-13 + 1e-12 * kappa
    assert bool(cones.interior(p.system, once).all())
    assert float(((twice - once).abs() / once.abs().clamp_min(kappa)).max()) < 1e-10
    assert float((twice - once).abs().max()) < 1e-12
    height = 0.5 * once[:, p.system.orthant_index[:8, 0]]
    assert float((once[:, p.system.second_order_index[:, 0, 0]] - height).abs().max()) < 1e-15


def unknown(like: Tensor) -> path_maps.Change:
    """The change since a Newton step before where there was none."""
    return path_maps.Change(torch.full_like(like, torch.nan), torch.full_like(like, torch.nan))


def friction_on_path(slack_tail: Tensor, kappa: float) -> tuple[Tensor, Tensor]:
    """A contact with γ = 1 N·s, μ = 0.5, on a body of 1 kg, for β − η₂₃ = (tail, 0); (impulse, slack)."""
    count = len(slack_tail)
    gamma = torch.ones(count)
    impulse = torch.stack((gamma, 0 * gamma, 0 * gamma, 0 * gamma), dim=-1)
    slack = torch.stack((kappa / gamma, 0 * gamma, -slack_tail, 0 * gamma), dim=-1)
    contact = td.NonlinearContact("box", friction=0.5)
    return contact.on_path(impulse, slack, torch.full((count,), kappa), torch.ones(count, 1), torch.tensor(0.01), unknown(impulse))


def test_on_path_from_stick_to_slip() -> None:
    kappa = 1e-8
    tail = torch.linspace(-1.0, 1.0, 2001)
    impulse, slack = friction_on_path(tail, kappa)
    force, slip = impulse[:, 2], -slack[:, 2]
    # One map takes a part of the sum, and the other takes the rest. Both rise with it, without a jump at the edge |t| = 0.5 of the disc.
    assert float((force + slip - tail).abs().max()) < 1e-14
    assert float(force.diff().min()) > 0 and float(slip.diff().min()) > 0
    assert float(force.diff().max()) < 1.001e-3 and float(slip.diff().max()) < 1.001e-3
    # As κ vanishes: the projection onto the disc.
    assert float((force - tail.clamp(-0.5, 0.5)).abs().max()) < 2 * kappa**0.5


def test_on_path_from_outside_the_disc() -> None:
    """An impulse that Newton's method puts outside its disc comes back while the slip at most doubles, up to RETURN_WEIGHT."""
    kappa, height, mass = torch.full((500,), 1e-12), torch.ones(500), torch.full((500,), 0.1)
    along, across = torch.nn.functional.normalize(torch.randn(500, 2), dim=-1), torch.randn(500, 2)
    impulse, slack = (1 + 3 * torch.rand(500, 1)) * along, across * 10 ** (2 * torch.rand(500, 1) - 1)
    whole = (torch.nn.functional.pad(x, (1, 0), value=1.0) for x in (impulse, slack))
    xi, eta = path_maps.disc_on_path(height, *whole, kappa, mass, unknown(impulse))
    slip, before = torch.linalg.vector_norm(eta[:, 1:], dim=-1), torch.linalg.vector_norm(slack, dim=-1)
    needed = (torch.linalg.vector_norm(impulse, dim=-1) - 1) / before
    free = needed < path_maps.RETURN_WEIGHT * mass
    assert 100 < int(free.sum()) < 400
    # (1e-3: smoothing, √(κ/m) = 3e-6, next to slips from 0.01)
    assert float((slip / before)[free].max()) < 2 + 1e-3
    assert bool((torch.linalg.vector_norm(xi[:, 1:], dim=-1) < 1).all())


def test_on_path_of_far_gaps_and_deep_impulses() -> None:
    contact = td.ImpactContact("box")
    mass, h, kappa = torch.ones(4, 1), torch.tensor(0.01), torch.full((4,), 1e-6)
    c = torch.tensor((-100.0, -1.0, 1.0, 100.0))
    impulse, slack = contact.on_path(c[:, None], torch.zeros(4, 1), kappa, mass, h, unknown(mass))
    weight = 1 / (3 * 0.01)
    assert float((impulse[:, 0] - weight * slack[:, 0] - c).abs().max()) < 1e-13
    assert float((impulse[2:, 0] - c[2:]).abs().max()) < 1e-4 and float((slack[:2, 0] + c[:2] / weight).abs().max()) < 1e-4
    assert float((impulse * slack / 1e-6 - 1).abs().max()) < 1e-14


def test_weights_of_maps_onto_the_path() -> None:
    """The inverse of the mobility that changes show, between once and MOST_WEIGHT times the nominal weight."""
    generator = torch.Generator().manual_seed(0)
    nominal, mobility = torch.full((1000,), 2.0), 10 ** (4 * torch.rand(1000, generator=generator) - 3)
    impulse = torch.randn(1000, 2, generator=generator)
    weight = path_maps.weight_of(nominal, impulse, mobility[:, None] * impulse)
    assert float((weight / (1 / mobility).clamp(2.0, 2.0 * path_maps.MOST_WEIGHT) - 1).abs().max()) < 1e-14  # rounding of two sums
    assert bool((path_maps.weight_of(nominal, impulse, -mobility[:, None] * impulse) == 2.0 * path_maps.OTHER_WEIGHT).all())
    assert bool((path_maps.weight_of(nominal, 0 * impulse, 0 * impulse) == 2.0 * path_maps.OTHER_WEIGHT).all())
    assert bool((path_maps.weight_of(nominal, *unknown(impulse)[:2]) == nominal).all())


def test_known_mobility_leads_to_the_solution_at_once() -> None:
    """Where a contact alone changes, the map leads from a point of slack = s₀ + G impulse to where that line meets the path."""
    kappa, mobility = torch.full((200,), 1e-6), 10 ** (torch.linspace(-1, 0, 200) - 2)
    free = torch.linspace(-1e-3, 1e-3, 200)
    points = torch.tensor((0.3, 0.1))[:, None] * torch.ones(2, 200)
    slacks = free + mobility * points
    mass = 0.5 / mobility * 0.01  # the nominal weight, m/3h, is a sixth of the true one
    change = path_maps.Change(points[1] - points[0], slacks[1] - slacks[0])
    gamma = path_maps.normal_on_path(points[1], slacks[1], kappa, mass, torch.tensor(0.01), change)
    exact = (-free + torch.sqrt(free * free + 4 * mobility * kappa)) / (2 * mobility)
    assert float((gamma / exact - 1).abs().max()) < 1e-9


class Bumper(td.ImpactContact):
    """A contact whose author knows nothing of paths."""

    def on_path(self, *_: Tensor) -> None:
        return None


def test_cones_without_a_path_take_interior_point_warm_starts() -> None:
    def ball(contact: type[td.ImpactContact]) -> td.Trajectory:
        mech = td.Mechanism({"ball": td.Body(1.0, (0.1, 0.1, 0.1))}, contacts={"c": contact("ball", radius=0.1)}, options=options)
        with torch.no_grad():
            return mech.rollout(mech.initial_state(ball=dict(position=(0, 0, 0.12))), steps=30)

    options = td.SolverOptions(backend="reference", residual_tol=1e-12, central_path_tol=1e-9)
    with_path, without = ball(td.ImpactContact), ball(Bumper)
    assert bool((without.status == td.Status.SUCCESS).all())
    assert float((with_path.z - without.z).abs().max()) < 1e-9


@pytest.mark.parametrize("kappa", [1e-3, 1e-6, 1e-9])
def test_solutions_lie_on_the_central_path(kappa: float) -> None:
    mech = cube(0.01, kappa)
    z = on_the_way(mech, 60).flatten(0, 1)
    with torch.no_grad():
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
    z = on_the_way(mech, 60)[:, 50:]
    with torch.no_grad():
        before, here = z[:, :-1], z[:, 1:]
        warm = mech.step(here, warm_start=mech.step(before).solution)
        cold = mech.step(here)
    # Both satisfy the equations to 1e-11; velocities follow through a contact stiffness of up to gamma² / kappa = 1e5.
    assert float((warm.z - cold.z).abs().max()) < 1e-6
    assert float(warm.iterations.double().mean()) < float(cold.iterations.double().mean())


def test_tracing_arrives_where_the_solver_does() -> None:
    mech = cube(0.01, 1e-6)
    z = on_the_way(mech, 60)[:, ::10].flatten(0, 1)
    with torch.no_grad():
        p = problem(mech, z)
        traced, reached, iterations = trace_central_path(p, p.cold_start(1e-1), 1e-1, 1e-6)
        landed = follow_central_path(p, traced, 1e-6, mech.options)
        direct = mech.step(z)
    assert bool(reached.all()) and bool((landed.status == td.Status.SUCCESS).all()) and int(iterations.min()) > 0
    # Both are within the solver's tolerances of one solution: 1e-3 of kappa, seen through the stiffness of contact.
    assert float((landed.w[:, :6] - direct.solution[:, :6]).abs().max()) < 1e-4


def top(backend: str = "reference", **options: object) -> tuple[td.Mechanism, Tensor, Tensor]:
    """A ball so fast that a torque takes it past 1/h, where ω √(1 − (h/2)²ω²) has its maximum: no step of this length exists."""
    mech = td.Mechanism(
        {"ball": td.Body(1.0, (1.0, 1.0, 1.0))}, timestep=0.1, gravity=(0, 0, 0), options=td.SolverOptions(backend=backend, **options)
    )
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
    moved = step * torch.cat((spin, -spin))[:, None]
    with torch.no_grad():
        plus, minus = after(zero + moved).chunk(2)
    numeric = ((plus - minus) / (2 * step)).movedim(0, -1)
    analytic = analytic[..., 9:]
    # Central differences of a smooth map: step² of curvature, and 1e-12 / step of the solver.
    assert float((analytic - numeric).abs().max()) < 1e-6 * float(numeric.abs().max())


def test_jacobians_through_halved_steps() -> None:
    _, spun, _ = top()
    joint = td.Mechanism({"ball": td.Body(1.0, (1.0, 1.0, 1.0))}, {"base": td.Floating(None, "ball")}, timestep=0.1, gravity=(0, 0, 0))
    joint.options = td.SolverOptions(backend="reference")
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
def test_random_drops_of_the_quadruped() -> None:
    """60 random orientations and joint angles, legs swinging freely: the states in which folds of the central path were found.

    tests/native/test_robustness.py drops thousands, at three time steps, on the kernel."""
    mech = td.models.quadruped(timestep=0.01)
    mech.options = td.SolverOptions(backend="reference")
    n = mech.num_coordinates
    q = 0.5 * torch.randn(60, n)
    q[:, :3] = 0
    q[:, 3:6] = quat.rotation_vector(quat.normalize(torch.randn(60, 4)))
    q[:, 2] = 0.05 - mech.distances(mech.to_maximal(q)).amin(-1)
    with torch.no_grad():
        run = mech.rollout(mech.to_maximal(q), steps=30)
    assert int((run.status != td.Status.SUCCESS).sum()) == 0
    assert float(mech.distances(run.z).min()) > 0


def test_no_cone_stops_a_direction_of_zeros() -> None:
    """1/−0.0 is −∞, and a converged step took the branch of short steps and became NaN."""
    mech = cube(0.01, 1e-2)
    p = problem(mech, throws(mech, 2))
    w = p.cold_start(1e-2)
    assert torch.equal(cones.max_step(p.system, w, torch.zeros_like(w)), torch.full((2,), torch.inf))
