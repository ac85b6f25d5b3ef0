"""Plans whose controls go to drives: derivatives by states, activations and controls; plans of muscles; what is refused."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import torchdojo as td
from torchdojo import planning
from torchdojo.planning.dynamics import Nodes
from torchdojo.planning.lagrangian import Lagrangian

KAPPA = torch.tensor([1e-4], dtype=torch.float64)
STEP = 1e-5  # of central differences; a step whose warm start is within its tolerance of 1e-13 does not move


def finger(*, contact: bool = False) -> td.Mechanism:
    """A muscle, a lagged motor that is early, a fan at a site without activation, and a string with an integrating winch."""
    link = {"mass": 0.1, "inertia": (1e-3, 1e-3, 1e-4)}
    knuckle = td.Revolute(None, "link", axis=(0, 1, 0), child_anchor=(0, 0, 0.1))
    string = td.SpatialTendon([td.Site(None, (0.2, 0, 0.1)), td.Site("link", (0.02, 0, -0.05))], actuated=True)
    contacts = {"tip": td.NonlinearContact("link", point=(0, 0, -0.1), radius=0.02, offset=-0.22)} if contact else {}
    mech = td.Mechanism({"link": td.Body(**link)}, {"knuckle": knuckle}, contacts, tendons={"string": string}, timestep=0.01)
    mech.options = td.SolverOptions(residual_tol=1e-13)
    mech.drives = td.Drives(
        mech,
        {
            "muscle": td.Drive.muscle(joint="knuckle", gear=0.02, lengths=(-0.03, 0.03), force=30.0),
            "lag": td.Drive(joint="knuckle", dynamics="filter", dynamics_numbers=(0.05,), gain_numbers=(0.1, 0.0, 0.0), early=True),
            "fan": td.Drive(site=td.Site("link", (0, 0, -0.1)), gear=(0.5, 0, 0, 0, 0, 0), bias_numbers=(0.0, 0.0, -0.1)),
            "winch": td.Drive(tendon="string", dynamics="integrator", gain_numbers=(2.0, 0.0, 0.0)),
        },
    )
    mech.sensors["feel"] = td.Sensor("accelerometer", site=td.Site("link", (0, 0, -0.05)))
    return mech


def problem_of(mech: td.Mechanism, steps: int = 4, **given: object) -> planning.Problem:
    start = mech.initial_state(knuckle={"q": 0.3, "qd": -0.5})
    goal = mech.initial_state(knuckle={"q": 0.5})
    costs = [planning.State(goal, 1.0), planning.Input(0.1, target=0.2), planning.Activation(0.3, target=0.1)]
    given = {"costs": costs, "controls": True, "start_activation": (0.2, 0.3, -0.1), **given}
    return planning.Problem(mech, start, steps, **given)  # type: ignore[arg-type]


def nodes_of(problem: planning.Problem) -> Nodes:
    v = 0.2 + 0.5 * torch.rand(
        1, problem.steps, problem.dynamics.num_inputs, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    return problem.dynamics.rollout(problem.start, v, None, KAPPA)


@pytest.mark.parametrize("coordinates", ["minimal", "tangent"])
@pytest.mark.parametrize("mapped", [False, True])
def test_linear_steps_agree_with_differences(coordinates: str, mapped: bool) -> None:
    """To 1e-6, by all coordinates, activations and inputs; with a map, of two inputs for four drives."""
    options = {"input_map": torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.3, 0.2], [0.0, 0.5]]), "input_offset": 0.1} if mapped else {}
    problem = problem_of(finger(), coordinates=coordinates, **options)
    dynamics, nodes = problem.dynamics, nodes_of(problem)
    A, B = dynamics.linearize(nodes, KAPPA, KAPPA)
    assert bool(nodes.ok.all()) and A.shape[-1] == dynamics.size == (5 if coordinates == "minimal" else 15)
    for i in range(dynamics.size + dynamics.num_inputs):
        ends = []
        for sign in (STEP, -STEP):
            change = torch.zeros(dynamics.size, dtype=torch.float64)
            v = nodes.v.clone()
            if i < dynamics.size:
                change[i] = sign
            else:
                v[..., i - dynamics.size] += sign
            x = dynamics.retract(nodes.x, change.expand(*nodes.x.shape[:-1], -1))
            ends.append(dynamics.difference(dynamics.evaluate(x, v, nodes.w, KAPPA).end, nodes.end))
        found = A[..., i] if i < dynamics.size else B[..., i - dynamics.size]
        torch.testing.assert_close(found, (ends[0] - ends[1]) / (2 * STEP), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("coordinates", ["minimal", "tangent"])
def test_gradients_of_the_cost_agree_with_differences_and_autograd(coordinates: str) -> None:
    """The expansion's gradient, carried back through A and B, against differences of whole motions; and of `Drives.rollout`."""
    mech = finger()
    problem = problem_of(mech, 6, coordinates=coordinates)
    dynamics, nodes = problem.dynamics, nodes_of(problem)
    lagrangian = Lagrangian.of(problem, torch.tensor([0]), 1.0)
    expansion = lagrangian.expansion(nodes)
    A, B = dynamics.linearize(nodes, KAPPA, KAPPA)
    after, found = expansion.lx[:, -1], []
    for t in reversed(range(6)):
        found.append(expansion.lu[:, t] + (B[:, t].mT @ after[..., None])[..., 0])
        after = expansion.lx[:, t] + (A[:, t].mT @ after[..., None])[..., 0]
    gradient = torch.stack(found[::-1], 1)

    def cost(v: Tensor) -> Tensor:
        moved = dynamics.rollout(problem.start, v, None, KAPPA)
        return lagrangian.value(Nodes(*(value[:, None] for value in moved)))[0].sum()

    for t, i in ((0, 0), (0, 3), (2, 1), (4, 2), (5, 0)):
        change = torch.zeros_like(nodes.v)
        change[0, t, i] = STEP
        assert float(gradient[0, t, i]) == pytest.approx(
            float(cost(nodes.v + change) - cost(nodes.v - change)) / (2 * STEP), rel=1e-6, abs=1e-7
        )
    if coordinates == "minimal":
        mech.options = td.SolverOptions(kappa=float(KAPPA), residual_tol=1e-13)
        v = nodes.v[0].clone().requires_grad_()
        motion = mech.drives.rollout(dynamics.motion(problem.start)[0], v, dynamics.activations(problem.start)[0])
        q, qd = mech.to_minimal(motion.path.z)
        total = ((q - 0.5) ** 2).sum() + (qd**2).sum() + 0.1 * ((v - 0.2) ** 2).sum() + 0.3 * ((motion.act - 0.1) ** 2).sum()
        (by_autograd,) = torch.autograd.grad(total, v)
        torch.testing.assert_close(by_autograd, gradient[0], rtol=1e-6, atol=1e-8)


def test_forces_and_readings_of_driven_steps_agree_with_differences() -> None:
    """A contact and an accelerometer, whose steps have wrenches of drives."""
    mech = finger(contact=True)
    costs = [planning.ContactForce("tip", weight=0.01), planning.Sensors("feel", weight=0.01), planning.Input(0.1)]
    problem = problem_of(mech, 3, costs=costs)
    dynamics, nodes = problem.dynamics, nodes_of(problem)
    lagrangian = Lagrangian.of(problem, torch.tensor([0]), 1.0)
    found = lagrangian.force_jacobian(nodes, KAPPA)
    assert found is not None
    for i in range(dynamics.size + dynamics.num_inputs):
        ends = []
        for sign in (STEP, -STEP):
            x, v = nodes.x.clone(), nodes.v.clone()
            (x if i < dynamics.size else v)[..., i if i < dynamics.size else i - dynamics.size] += sign
            moved = dynamics.evaluate(x, v, nodes.w, KAPPA)
            ends.append(dynamics.forces_of(moved.z[..., :-1, :], v, moved.end, moved.w, lagrangian.force_rows))
        differences = (ends[0] - ends[1]) / (2 * STEP)
        torch.testing.assert_close(found[..., i], differences, rtol=1e-6, atol=1e-6)


def arm(timestep: float = 0.02) -> td.Mechanism:
    mech = td.envs.MuscleArm(num_envs=1).mech
    mech.timestep = torch.tensor(timestep, dtype=torch.float64)
    return mech


def reaching(mech: td.Mechanism, **given: object) -> planning.Problem:
    start, goal = (mech.initial_state(shoulder={"q": a}, elbow={"q": b}) for a, b in ((0.3, 0.8), (0.9, 1.4)))
    costs = [planning.State(goal, (1.0, 1.0, 0.02, 0.02)), planning.Input(1e-3)]
    options = {"costs": costs, "equalities": [planning.State(goal, at=-1)], "limits": (0.0, 1.0), "start_activation": 0.05}
    return planning.Problem(mech, start, 30, controls=True, **{**options, **given})  # type: ignore[arg-type]


@pytest.mark.parametrize("method", ["single", "multiple"])
def test_muscles_reach(method: str) -> None:
    """The motion is that of `Drives.rollout`; gains act on activations, too, and a replay in finer steps ends nearby."""
    mech = arm()
    plan = planning.solve(reaching(mech), method=method)
    assert bool(plan.solved) and plan.act is not None and plan.act.shape == (31, 4) and plan.gains.shape == (30, 4, 8)
    assert float(plan.u.min()) >= 0.0 and float(plan.u.max()) <= 1.0
    mech.options = td.SolverOptions(kappa=1e-6)
    motion = mech.drives.rollout(plan.z[0], plan.u, plan.act[0])
    torch.testing.assert_close(motion.act, plan.act, rtol=0, atol=1e-4)  # the tolerance of constraints, and of defects
    torch.testing.assert_close(mech.to_minimal(motion.path.z)[0], mech.to_minimal(plan.z)[0], rtol=0, atol=1e-3)
    replay = plan.replay(timestep=0.002)
    assert replay.act is not None and not bool(replay.status.any())
    assert float((mech.to_minimal(replay.nodes[-1])[0] - torch.tensor([0.9, 1.4])).abs().max()) < 0.01
    assert plan.tracking_gains().shape == plan.gains.shape


@pytest.mark.slow
def test_activations_are_bounded_and_problems_have_their_own_starts() -> None:
    mech = arm()
    bound = [planning.Activation(target=0.6, names=["elbow_flexor", "elbow_extensor"])]
    start = mech.initial_state(shoulder={"q": 0.3}, elbow={"q": 0.8})
    free = planning.solve(reaching(mech))
    assert free.act is not None and float(free.act[:, 2:].max()) > 0.61
    problem = reaching(mech, inequalities=bound)
    two = planning.Problem(
        mech, start.expand(2, -1), 30, costs=[planning.Input(1e-2)], controls=True, start_activation=[[0.1] * 4, [0.2] * 4]
    )
    assert two.start[:, -4:].tolist() == [[0.1] * 4, [0.2] * 4]
    plan = planning.solve(problem)
    assert bool(plan.solved) and plan.act is not None and float(plan.act[:, 2:].max()) < 0.6 + 1e-3


def test_states_of_a_guess_have_the_activations_of_its_inputs() -> None:
    mech = arm()
    start = mech.initial_state(shoulder={"q": 0.3}, elbow={"q": 0.8})
    problem = reaching(mech, guess=0.4, guess_states=start.expand(31, -1).contiguous())
    act = mech.drives.rollout(start, torch.full((30, 4), 0.4, dtype=torch.float64), torch.full((4,), 0.05, dtype=torch.float64)).act
    assert problem.guess_states is not None
    torch.testing.assert_close(problem.guess_states[0, :, -4:], act, rtol=0, atol=1e-14)


def test_what_plans_with_drives_refuse() -> None:
    mech = arm()
    for given in ((0.1, 0.2), [[0.1] * 4] * 3, float("nan")):
        with pytest.raises(ValueError, match=r"start_activation: got shape .*; allowed: finite numbers, one, \(4,\) or \(1, 4\)"):
            reaching(mech, start_activation=given)
    with pytest.raises(ValueError, match="allowed: None for a plan without activations"):
        planning.Problem(mech, mech.initial_state(), 3, costs=[planning.Input()], start_activation=0.1)
    with pytest.raises(ValueError, match="an Activation for a plan without activations"):
        planning.Problem(mech, mech.initial_state(), 3, costs=[planning.Activation()])
    with pytest.raises(ValueError, match=r"names: got 'thigh'; allowed: different names of \['shoulder_flexor'"):
        reaching(mech, costs=[planning.Activation(names="thigh")])
    with pytest.raises(ValueError, match=r"matrix: got shape \(1, 8\); allowed: \(d, 4\)"):
        reaching(mech, costs=[planning.State(mech.initial_state(), matrix=torch.ones(1, 8, dtype=torch.float64))])
