"""Inverse dynamics as a cone solve: motions that a torque holds, simulated steps, and motions that none explains."""

import pytest
import torch

import torchdojo as td
from torchdojo import planning
from torchdojo.planning import PlanStatus, inverse_tasks
from torchdojo.planning.inverse_cone import _solve as solve


@pytest.fixture(scope="module")
def robot():
    return inverse_tasks.standing()


def test_a_standing_robot_has_torques_at_any_kappa():
    mech, z = inverse_tasks.standing(kappa=1e-6)
    found = planning.cone_inverse_dynamics(mech, z, z)
    assert found.solved and found.residual < 1e-8


def test_simulated_steps_come_back(robot):
    mech, z = robot
    u = 5 * torch.randn(20, mech.num_inputs, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    after = mech.step(z, u).z
    found = planning.cone_inverse_dynamics(mech, z, after)
    assert found.solved.all() and found.residual.max() < 1e-6
    # Impulses may lie at the edge of their cones, where a foot creeps at kappa 1e-10: 2e-5 m/s and rad/s are seen.
    torch.testing.assert_close(mech.step(z, found.value).z, after, rtol=0, atol=1e-4)


def test_a_flying_robot_has_one_torque_and_cannot_jump(robot):
    mech, z = robot
    z = (z.unflatten(-1, (-1, 13)) + torch.tensor([0, 0, 1.0] + [0.0] * 10).double()).flatten()
    u = torch.ones(2, mech.num_inputs).double()
    found = planning.cone_inverse_dynamics(mech, z, mech.step(z, u).z)
    assert found.solved.all()
    torch.testing.assert_close(found.value, u, rtol=0, atol=1e-7)
    assert planning.cone_inverse_dynamics(mech, z, z).status == PlanStatus.INFEASIBLE
    assert planning.cone_inverse_dynamics(mech, torch.full_like(z, torch.nan), z).status == PlanStatus.DIVERGED


@pytest.fixture(scope="module")
def cube():
    mech, _ = inverse_tasks.sliding_cube(kappa=1e-10)
    return mech, mech.initial_state(box={"position": (0.0, 0.0, 0.1 + 1e-8)})


def total(mech, z, impulses):
    return mech.contact_impulses(z, impulses).sum(-2)


@pytest.mark.parametrize("speed", [0.0, 2.0], ids=["sticks", "slides"])
def test_impulses_of_a_cube_are_those_of_its_steps(cube, speed):
    mech = cube[0]
    start = mech.initial_state(box={"position": (0.0, 0.0, 0.1 + 1e-8), "velocity": (speed, 0.3 * speed, 0.0)})
    path = mech.rollout(start, steps=6)
    found = planning.cone_inverse_dynamics(mech, path.z[:-1], path.z[1:], tolerance=1e-5)
    assert found.solved.all() and found.value.shape == (6, 0)
    # The sum over the corners is known from the momentum, each corner's part is not. 1e-7 N·s of 0.1: kappa is 1e-10.
    expected = total(mech, path.z[1:], path.impulses)
    torch.testing.assert_close(total(mech, path.z[1:], found.impulses), expected, rtol=0, atol=1e-7)
    for number in range(1, 9):
        piece = mech.impulse_layout[f"contacts.corner{number - 1}"]
        normal, _, *tangent = found.impulses[:, piece].unbind(-1)
        length = torch.stack(tangent, -1).norm(dim=-1)
        assert (normal >= 0).all() and (length <= 0.5 * normal * (1 + 1e-9)).all()
        if mech.contact_points(path.z[1:])[..., number - 1, 2].min() > 0.1:  # an open gap
            assert not found.impulses[:, piece].any()


def test_what_nothing_explains(cube):
    mech, z = cube
    lifted = mech.step(z, wrench=torch.tensor([0, 0, 200.0, 0, 0, 0]).double()).z
    found = planning.cone_inverse_dynamics(mech, z, lifted)
    assert found.status == PlanStatus.INFEASIBLE
    assert abs(float(found.residual) - 2.0) < 1e-6  # 200 N for 0.01 s on 1 kg
    assert not found.impulses.any()  # the floor does not pull
    states = torch.stack((z, torch.full_like(z, torch.inf)))
    found = planning.cone_inverse_dynamics(mech, states[:, None], torch.stack((z, lifted, z)))
    wanted = [[PlanStatus.SOLVED, PlanStatus.INFEASIBLE, PlanStatus.SOLVED], [PlanStatus.DIVERGED] * 3]
    assert found.status.tolist() == [[int(status) for status in row] for row in wanted]
    assert found.impulses[1].isnan().all() and found.impulses[0].isfinite().all()


def test_the_solution_is_optimal_and_too_few_iterations_say_so():
    generator = torch.Generator().manual_seed(0)
    C, b = (torch.randn(20, 24, size, generator=generator, dtype=torch.float64) for size in (18, 1))
    mu = torch.linspace(0.1, 1.0, 6, dtype=torch.float64).expand(20, -1)
    assert not solve(C, b[..., 0], mu, 1)[1].all()
    x, reached = solve(C, b[..., 0], mu, 3000)
    assert reached.all()
    slope = (C.mT @ (C @ x[..., None] + b))[..., 0].unflatten(-1, (-1, 3))
    impulses = x.unflatten(-1, (-1, 3))
    # x is in the cones, its gradient is in their duals, and both are perpendicular (Boyd and Vandenberghe 2004, section 5.9).
    assert (impulses[..., 1:].norm(dim=-1) <= mu * impulses[..., 0] + 1e-12).all()
    assert (mu * slope[..., 1:].norm(dim=-1) <= slope[..., 0] + 1e-7).all()
    assert (impulses * slope).sum((-1, -2)).abs().max() < 1e-7


def test_what_inputs_can_do_alone_needs_no_impulse():
    rod, tip = td.Body(1.0, shape=td.Box((0.05, 0.05, 1.0))), td.NonlinearContact("rod", point=(0.0, 0.0, -0.5))
    mech = td.Mechanism({"rod": rod}, {"base": td.Floating(None, "rod", actuated=True)}, {"tip": tip}, timestep=0.01)
    z = mech.initial_state(base={"q": (0, 0, 0.5 + 1e-8, 0, 0, 0)})
    found = planning.cone_inverse_dynamics(mech, z, z)
    assert found.solved and not found.impulses.any()
    torch.testing.assert_close(found.value, torch.tensor([0, 0, 9.81, 0, 0, 0]).double(), rtol=0, atol=1e-9)


def test_environments_with_timesteps_of_their_own():
    """A batch of timesteps gives what each of them gives alone, the error between poses and velocities included."""

    def hinged(timestep):
        rod, tip = td.Body(1.0, shape=td.Box((0.05, 0.05, 1.0))), td.NonlinearContact("rod", point=(0.0, 0.0, -0.5))
        mech = td.Mechanism({"rod": rod}, {"base": td.Floating(None, "rod", actuated=True)}, {"tip": tip}, timestep=timestep)
        mech.options = td.SolverOptions(kappa=1e-10)  # the open contact has the force kappa / (gap timestep), 1e-7 N
        return mech

    steps = (0.01, 0.02, 0.005)
    starts = [hinged(h).initial_state(base={"q": (0, 0, 0.6, 0.1, 0, 0), "qd": (0.1, 0, 0, 0, 0.2, 0)}) for h in steps]
    u = torch.tensor([1.0, 0.0, 5.0, 0.1, 0.0, 0.2]).double()
    z = torch.stack(starts)
    after = torch.stack([hinged(h).step(start, u).z for h, start in zip(steps, starts, strict=True)])
    after[2, 0] += 1e-5  # a pose that contradicts its velocity by 1e-5 m / 0.005 s
    found = planning.cone_inverse_dynamics(hinged(torch.tensor(steps)), z, after)
    assert found.solved.tolist() == [True, True, False]
    assert float(found.residual[2]) == pytest.approx(1e-5 / 0.005, rel=1e-6)
    torch.testing.assert_close(found.value[:2], u.expand(2, -1), rtol=0, atol=1e-6)
    for i, h in enumerate(steps):
        alone = planning.cone_inverse_dynamics(hinged(h), z[i], after[i])
        torch.testing.assert_close(found.value[i], alone.value, rtol=0, atol=1e-9)


def test_errors(cube):
    mech, z = cube
    with pytest.raises(ValueError, match="must broadcast"):
        planning.cone_inverse_dynamics(mech, z.expand(2, -1), z.expand(3, -1))
    for name in ("gap", "slip", "tolerance", "max_iterations"):
        with pytest.raises(ValueError, match=f"{name}: got 0; allowed"):
            planning.cone_inverse_dynamics(mech, z, z, **{name: 0})
    with pytest.raises(ValueError, match=r"max_iterations: got 2\.5; allowed: positive finite numbers, whole ones"):
        planning.cone_inverse_dynamics(mech, z, z, max_iterations=2.5)
    with pytest.raises(ValueError, match="z_next"):
        planning.cone_inverse_dynamics(mech, z, z[:12])
    bodies, corner = {"ball": td.Body(1.0, shape=td.Sphere(0.1))}, td.LinearContact("ball", radius=0.1)
    pyramid = td.Mechanism(bodies, {}, {"floor": corner}, timestep=0.01)
    above = pyramid.initial_state(ball={"position": (0.0, 0.0, 1.0)})
    with pytest.raises(ValueError, match="LinearContact; allowed"):
        planning.cone_inverse_dynamics(pyramid, above, above)
