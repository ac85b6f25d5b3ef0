"""Plans: expansions against autograd, tasks with bounds on what they reach, and what happens to problems that cannot be solved."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

import torchdojo as td
from torchdojo import planning
from torchdojo.planning.dynamics import Nodes
from torchdojo.planning.lagrangian import Lagrangian
from torchdojo.planning.plan import PlanStatus
from torchdojo.planning.tasks import TASKS


def pendulum(steps: int = 10, **changes: Any) -> planning.Problem:
    mech = td.models.pendulum(timestep=0.1)
    goal = mech.initial_state(hinge={"q": 0.5})
    given: dict[str, Any] = {
        "costs": [planning.State(goal, (1.0, 0.1)), planning.Input(1e-2)],
        "equalities": [planning.State(goal, at=-1)],
        **changes,
    }
    start = given.pop("start", mech.initial_state(hinge={"q": 0.0}))
    return planning.Problem(mech, start, steps, **given)


# -- pieces --------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("coordinates", ["minimal", "tangent"])
def test_expansion_is_the_derivative_of_the_merit(coordinates: str) -> None:
    generator = torch.Generator().manual_seed(0)
    mech = td.models.raibert_hopper(timestep=0.05, actuated_base=True)
    z = mech.initial_state(floating_base={"q": (0.1, 0.2, 0.8, 0.3, -0.2, 0.1)}, leg={"q": -0.4, "qd": 0.3}).expand(4, -1)
    goal = mech.initial_state(floating_base={"q": (0.0, 0.0, 0.7, -0.2, 0.5, 0.4)}, leg={"q": -0.5})
    size = 14 if coordinates == "minimal" else 24
    combined = planning.State(goal, 0.2, matrix=torch.randn(3, size, generator=generator, dtype=torch.float64))
    problem = planning.Problem(
        mech,
        z[0],
        3,
        costs=[
            planning.State(goal, 0.7),
            planning.Input(0.3, target=0.1),
            planning.Function(mech.distances, 0.4, target=0.2, at=[1, 3]),
            combined,
        ],
        equalities=[planning.State(goal, rows=[0, 4, 6], weight=2.0, at=-1)],
        inequalities=[planning.Function(mech.distances, at=2)],
        coordinates=coordinates,
    )
    merit = Lagrangian.of(problem, torch.tensor([0]), 3.0)
    for multiplier in merit.multipliers:
        multiplier += 0.2 * torch.rand(multiplier.shape, generator=generator, dtype=torch.float64)
    dynamics = problem.dynamics
    x = dynamics.coordinates(z)[None]
    v = torch.randn(1, 3, 7, generator=generator, dtype=torch.float64)

    def nodes(x: Tensor, v: Tensor) -> Nodes:
        return Nodes(x, dynamics.states(x), v, v[..., :0], x[..., 1:, :], torch.ones(1, dtype=torch.bool))

    def value(dx: Tensor, dv: Tensor) -> Tensor:
        moved = nodes(dynamics.retract(x, dx), v + dv)
        return merit.value(Nodes(*(value[:, None] for value in moved)))[1].sum()

    found = merit.expansion(nodes(x, v))
    step = 1e-6
    for _ in range(3):
        dx = torch.randn(1, 4, dynamics.size, generator=generator, dtype=torch.float64)
        dv = torch.randn(1, 3, 7, generator=generator, dtype=torch.float64)
        slope = float(value(step * dx, step * dv) - value(-step * dx, -step * dv)) / (2 * step)
        assert math.isclose(float((found.lx * dx).sum() + (found.lu * dv).sum()), slope, rel_tol=1e-6, abs_tol=1e-6)
    assert float((found.lxx - found.lxx.mT).abs().max()) < 1e-12
    assert float(torch.linalg.eigvalsh(found.lxx).min()) > -1e-10


def test_difference_and_retract_are_inverse_and_angles_wrap() -> None:
    """Angles count modulo 4π, as in z: a turn more is another state, whose springs and limits are others. Two turns more are none."""
    problem = pendulum()
    x = torch.tensor([[3.0, 0.2]], dtype=torch.float64)
    for turns, expected in ((0.5, math.pi), (1.0, 2 * math.pi), (-1.0, -2 * math.pi), (1.5, -math.pi), (2.0, 0.0)):
        turned = x + torch.tensor([2 * math.pi * turns, 0.0], dtype=torch.float64)
        change = problem.dynamics.difference(turned, x)
        torch.testing.assert_close(change.abs(), torch.tensor([[abs(expected), 0.0]]).double(), atol=1e-12, rtol=0)
        theirs = problem.mech.difference_minimal(*turned.chunk(2, -1), *x.chunk(2, -1))
        torch.testing.assert_close(change, theirs, atol=0, rtol=0)
        miss = problem.dynamics.miss(turned, x)  # of a goal, for which whole turns do not count
        torch.testing.assert_close(miss.abs(), torch.tensor([[math.pi if turns % 1 else 0.0, 0.0]]).double(), atol=1e-12, rtol=0)
    delta = torch.tensor([[0.3, -0.1]], dtype=torch.float64)
    torch.testing.assert_close(problem.dynamics.difference(problem.dynamics.retract(x, delta), x), delta)


# -- tasks ---------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "iterations", "cost"), [("box_right", 20, 14.6), ("box_up", 20, 14.7)])
def test_boxes(name: str, iterations: int, cost: float) -> None:
    """From four guesses with noise; `torchdojo evaluate planning` has ten and all tasks."""
    task = TASKS[name]
    plan = planning.solve(task.perturbed(4), **task.options)
    assert plan.solved.all() and int(plan.iterations.max()) <= iterations
    assert float(plan.cost.max()) <= cost and float(plan.violation.max()) <= 1e-4
    path = plan.replay(timestep=0.01, feedback=False)
    assert int(path.status.max()) == 0
    assert float(100 * (path.z[:, -1, :3] - plan.z[:, -1, :3]).norm(dim=-1).max()) <= 0.2  # [cm]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "cost", "distance"), [("hopper", 9.6, 0.01), ("quadruped", 0.016, 0.01)])
def test_legs(name: str, cost: float, distance: float) -> None:
    """From the guess and three with noise. distance: of a body from its goal after a replay [m]."""
    task = TASKS[name]
    noise = torch.randn(4, *task.make(None).guess.shape[1:], generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    noise[0] = 0.0
    plan = planning.solve(task.make(task.noise * noise), **task.options)
    assert plan.solved.all() and int(plan.iterations[0]) <= 25 and int(plan.iterations.max()) <= 30
    assert float(plan.cost.max()) <= cost and float(plan.violation.max()) <= 1e-4
    path = task.replay(plan)
    gap = (path.nodes[:, -1] - plan.z[:, -1]).unflatten(-1, (-1, 13))[..., :3]
    assert int(path.status.max()) == 0 and float(gap.norm(dim=-1).max()) < distance


@pytest.mark.parametrize("method", ["single", "multiple"])
def test_pendulum_within_limits(method: str) -> None:
    plan = planning.solve(pendulum(limits=(-3.0, 3.0)), method=method)
    assert bool(plan.solved) and float(plan.violation) <= 1e-4 and float(plan.defect) <= 1e-4
    assert float(plan.u.abs().max()) <= 3.0 and plan.z.shape == (11, 13) and plan.gains.shape == (10, 1, 2)
    if method == "single":
        again = plan.problem.mech.rollout(plan.z[0], plan.u)
        torch.testing.assert_close(again.z, plan.z, atol=1e-5, rtol=0)


def test_problems_of_a_batch_are_those_alone() -> None:
    mech = td.models.pendulum(timestep=0.1)
    starts = torch.stack([mech.initial_state(hinge={"q": q}) for q in (0.0, -0.4, 1.0)])
    together = planning.solve(pendulum(start=starts))
    for i, start in enumerate(starts):
        alone = planning.solve(pendulum(start=start))
        assert int(alone.iterations) == int(together.iterations[i])
        torch.testing.assert_close(alone.u, together.u[i], atol=1e-8, rtol=1e-8)


def test_full_steps_come_first_and_others_where_they_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """From a guess that is far off, some full steps overshoot; a rollout of each batch shows which candidates are tried."""
    mech = td.models.cartpole(timestep=0.05, pole_mass=0.2, length=0.5)
    start, goal = mech.initial_state(hinge={"q": math.pi}), mech.initial_state()
    problem = planning.Problem(mech, start, 30, costs=[planning.State(goal), planning.Input(1e-3)], guess=20.0)
    counts: list[int] = []
    rollouts = td.Mechanism.rollout_feedback

    def counted(*arguments: Any, **options: Any) -> Any:
        path = rollouts(*arguments, **options)
        counts.append(path.status[..., 0].numel())
        return path

    monkeypatch.setattr(td.Mechanism, "rollout_feedback", counted)
    plan = planning.solve(problem, schedule=[(1e-6, None)], max_iterations=40, full_steps_first=True)
    assert set(counts) == {5, 10} and counts.count(5) == len(plan.log) and counts.count(10) < len(plan.log)
    sizes = torch.stack([record.step_size for record in plan.log])
    assert bool((sizes == 1).any()) and bool((sizes < 1).any()) and float(plan.cost) < float(plan.log[0].cost)


def test_controls_of_actuators() -> None:
    """A quadrotor rises by 0.1 m: controls of rotors in the place of inputs, and limits that bind."""
    mech = td.models.quadrotor(timestep=0.1, contact=False)
    start, goal = (mech.initial_state(base={"q": (0.0, 0.0, height, 0.0, 0.0, 0.0)}) for height in (1.0, 1.1))
    costs = [planning.State(goal, 0.1), planning.Input(1e-2, target=-0.5)]
    problem = planning.Problem(
        mech, start, 8, costs=costs, equalities=[planning.State(goal, at=-1)], controls=True, guess=-0.5, limits=(-0.9, 0.0)
    )
    plan = planning.solve(problem, schedule=[(1e-6, None)])
    assert bool(plan.solved) and plan.u.shape == (8, 4) and float(plan.u.min()) >= -0.9 and float(plan.u.max()) <= 0.0
    path = mech.rollout(start, ctrl=plan.u)
    torch.testing.assert_close(path.z[-1, :3], goal[:3], atol=1e-3, rtol=0)


def test_several_schedules_are_tried() -> None:
    plan = planning.solve(pendulum(), schedule=[[(1e-6, None)], [(1e-4, None), (1e-6, None)], [(1e-3, None), (1e-6, None)]])
    assert bool(plan.solved) and plan.log[0].kappa.tolist() == [1e-6, 1e-4, 1e-3] and int(plan.schedule) in (0, 1, 2)


def test_an_inequality_holds() -> None:
    mech = td.models.pendulum(timestep=0.1)
    ceiling = planning.Function(lambda z: mech.to_minimal(z)[1], target=0.8)  # rate at most 0.8 rad/s
    free, bounded = planning.solve(pendulum()), planning.solve(pendulum(inequalities=[ceiling]))
    rate = [float(mech.to_minimal(plan.z)[1].max()) for plan in (free, bounded)]
    assert rate[0] > 0.9 and rate[1] <= 0.8 + 1e-4 and bool(bounded.solved)


# -- what goes wrong -----------------------------------------------------------------------------------------------------------------------


def test_goal_out_of_reach_is_infeasible() -> None:
    plan = planning.solve(pendulum(limits=(-0.01, 0.01)))
    assert PlanStatus(int(plan.status)) is PlanStatus.INFEASIBLE
    assert math.isfinite(float(plan.cost)) and 0.01 < float(plan.violation) < 10 and "goal" in PlanStatus.INFEASIBLE.explain


def test_singular_costs_are_solved_by_damping() -> None:
    mech = td.models.cartpole(timestep=0.05)
    z = mech.initial_state(hinge={"q": 0.1})
    plan = planning.solve(planning.Problem(mech, z, 10, costs=[planning.State(z, 0.0), planning.Input(0.0)], guess=0.3))
    assert bool(plan.solved) and float(plan.cost) == 0.0


def test_a_candidate_that_is_nan_is_never_taken() -> None:
    mech = td.models.pendulum(timestep=0.1)

    def fragile(z: Tensor) -> Tensor:
        q = mech.to_minimal(z)[0]
        return torch.where(q > 0.3, torch.nan, q)

    plan = planning.solve(pendulum(costs=[planning.Function(fragile, target=0.6), planning.Input(1e-4)], equalities=[]))
    assert torch.isfinite(plan.z).all() and math.isfinite(float(plan.cost))
    assert float(mech.to_minimal(plan.z)[0].max()) <= 0.3


def test_a_start_that_fails_diverges_beside_those_that_do_not() -> None:
    """A torque of 1e9 N·m is a bad guess, from which the plan is found; under 1e300 N·m no step has a solution."""
    mech = td.models.pendulum(timestep=0.1)
    good = mech.initial_state(hinge={"q": 0.0})
    guess = torch.tensor([0.0, 1e9, 1e300], dtype=torch.float64)[:, None, None].expand(3, 10, 1)
    plan = planning.solve(pendulum(start=good.expand(3, -1), guess=guess), max_iterations=30)
    assert plan.status.tolist() == [PlanStatus.SOLVED, PlanStatus.SOLVED, PlanStatus.DIVERGED]
    assert float(plan.violation[:2].max()) <= 1e-4 and math.isinf(float(plan.violation[2])) and torch.isfinite(plan.z).all()


def test_a_cost_that_is_nan_everywhere_diverges() -> None:
    plan = planning.solve(pendulum(costs=[planning.Function(lambda z: math.nan * z[..., :1])], equalities=[]))
    assert PlanStatus(int(plan.status)) is PlanStatus.DIVERGED and torch.isfinite(plan.z).all()


def test_iteration_limit() -> None:
    plan = planning.solve(pendulum(), max_iterations=1)
    assert PlanStatus(int(plan.status)) is PlanStatus.ITERATION_LIMIT and len(plan.log) == 1


@pytest.mark.parametrize("controls", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("method", ["single", "multiple"])
def test_the_reference_plans(method: str, controls: bool) -> None:
    """Without the kernel, there is no budget of iterations; the plan is the same to the digits that its tolerance leaves."""

    def plan(backend: str) -> planning.Plan:
        problem = pendulum(4)
        if controls:
            td.actuate(problem.mech, {"motor": td.Actuator.motor("hinge", gear=2.0)})
        problem.mech.options = td.SolverOptions(backend=backend)
        goal = problem.mech.initial_state(hinge={"q": 0.2})
        costs, bound = [planning.State(goal, (1.0, 0.1)), planning.Input(1e-2)], (-1.0, 1.0)
        again = planning.Problem(problem.mech, problem.start[0], 4, costs=costs, controls=controls, limits=bound)
        return planning.solve(again, method=method, max_iterations=5)

    reference, kernel = plan("reference"), plan("auto")
    assert reference.status == kernel.status
    torch.testing.assert_close(reference.v, kernel.v, atol=1e-6, rtol=0)


def test_two_plans_of_one_mechanism_at_once() -> None:
    """A plan has its own options, and those of the mechanism never change, whatever another thread plans."""
    mech = pendulum().mech
    problems = [pendulum(30), pendulum(30, costs=[planning.Input(1e-2)])]
    alone = [planning.solve(problem, schedule=[(kappa, kappa)]) for problem, kappa in zip(problems, (1e-6, 1e-3), strict=True)]
    for problem in problems:
        problem.mech = problem.dynamics.mech = mech
    before, seen = mech.options, []

    def watched(problem: planning.Problem, kappa: float) -> planning.Plan:
        plan = planning.solve(problem, schedule=[(kappa, kappa)])
        seen.append(mech.options)
        return plan

    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(watched, problems, (1e-6, 1e-3)))
    assert all(options is before for options in seen) and mech.options is before
    for one, other in zip(alone, together, strict=True):
        assert torch.equal(one.z, other.z) and torch.equal(one.v, other.v)


def test_options_of_the_mechanism_stay() -> None:
    problem = pendulum()
    before = problem.mech.options
    planning.solve(problem)
    assert problem.mech.options is before


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"start": torch.zeros(12, dtype=torch.float64)}, "allowed"),
        ({"costs": []}, "neither"),
        ({"guess": torch.zeros(3, dtype=torch.float64)}, "guess"),
        ({"limits": (1.0, -1.0)}, "least"),
        ({"input_map": torch.zeros(2, 1, dtype=torch.float64)}, "input_map"),
        ({"coordinates": "polar"}, "coordinates"),
        ({"costs": [planning.State(td.models.pendulum().initial_state(), matrix=torch.zeros(1, 3))]}, r"matrix: got shape \(1, 3\)"),
        ({"costs": [planning.Input(-1.0)]}, "weight"),
        ({"costs": [planning.Input(1.0, at=10)]}, "nodes from -10 to 9"),
        ({"costs": [planning.Input(torch.ones(3))]}, "shape"),
        ({"costs": [planning.Function(lambda z: z.sum())]}, "function"),
        ({"guess": math.nan}, "finite"),
    ],
    ids=lambda value: "" if isinstance(value, str) else "-".join(value),
)
def test_bad_problems(changes: dict[str, Any], words: str) -> None:
    if "costs" in changes:
        changes = {"equalities": [], **changes}
    with pytest.raises(ValueError, match=words):
        pendulum(**changes)


@pytest.mark.parametrize(
    "changes",
    [{"method": "direct"}, {"schedule": [(1e-3, 1e-4)]}, {"schedule": "fast"}, {"tolerance": 0.0}, {"step_sizes": ()}],
    ids=lambda c: next(iter(c)),
)
def test_bad_options(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="allowed"):
        planning.solve(pendulum(), **changes)


def test_replay_refuses_odd_timesteps() -> None:
    plan = planning.solve(pendulum(), max_iterations=2)
    with pytest.raises(ValueError, match="divided by a whole number"):
        plan.replay(timestep=0.03)
