"""Costs and bounds of contact forces: derivatives against differences, a ball that is caught, robots, and what is refused."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import torchdojo as td
from torchdojo import planning
from torchdojo.planning.config import read_config
from torchdojo.planning.dynamics import Nodes
from torchdojo.planning.lagrangian import Lagrangian
from torchdojo.planning.plan import PlanStatus

UP = torch.eye(6, dtype=torch.float64)[:, 2:3]  # one input: the vertical force


def ball(contact: type[td.NonlinearContact] | None = td.NonlinearContact, timestep: float = 0.02) -> td.Mechanism:
    contacts = {} if contact is None else {"floor": contact("ball", radius=0.1)}
    joints = {"base": td.Floating(None, "ball", actuated=True)}
    return td.Mechanism({"ball": td.Body(1.0, shape=td.Sphere(0.1))}, joints, contacts, timestep=timestep)


def on_a_slope() -> td.Mechanism:
    contacts = {"slope": td.LinearContact("ball", radius=0.1, normal=(0.3, -0.2, 1.0), friction=0.4)}
    joints = {"base": td.Floating(None, "ball", actuated=True)}
    return td.Mechanism({"ball": td.Body(1.0, shape=td.Sphere(0.1))}, joints, contacts, timestep=0.02)


def box() -> td.Mechanism:
    signs = itertools.product((1, -1), repeat=3)
    corners = {f"corner{i}": td.NonlinearContact("box", point=[0.25 * s for s in sign], friction=0.5) for i, sign in enumerate(signs)}
    joints = {"base": td.Floating(None, "box", actuated=True)}
    return td.Mechanism({"box": td.Body(1.0, shape=td.Box((0.5,) * 3))}, joints, corners, timestep=0.05)


def two_balls() -> td.Mechanism:
    """One lies on the other: the direction of the force between them turns with their places."""
    bodies = {name: td.Body(0.5, shape=td.Sphere(0.1)) for name in ("low", "high")}
    joints = {name: td.Floating(None, name, actuated=True) for name in bodies}
    between = td.NonlinearContact("high", other="low", shape=td.Sphere(0.1), other_shape=td.Sphere(0.1), friction=0.3)
    return td.Mechanism(bodies, joints, {"floor": td.NonlinearContact("low", radius=0.1), "between": between}, timestep=0.02)


def hopper() -> td.Mechanism:
    return td.models.raibert_hopper(timestep=0.05, actuated_base=True)


def walker() -> td.Mechanism:
    """A1 with motors that have servos."""
    mech = td.models.quadruped(timestep=0.05, contact_body=False)
    names = [name for name in mech.coordinate_places() if name.endswith("_joint")]
    td.actuate(mech, {name: td.Actuator.position(name, kp=40.0, kv=1.0) for name in names})
    return mech


def place(mech: td.Mechanism, **joints: Any) -> Tensor:
    return mech.place(mech.initial_state(**joints), clearance=1e-3)


CASES: dict[str, tuple[Callable[[], td.Mechanism], dict[str, Any], str | None, bool]] = {
    "ball": (ball, {"base": {"qd": (0.5, 0.2, -0.3, 0, 0, 1)}}, None, False),
    "ball, tangent": (ball, {"base": {"qd": (0.5, 0.2, -0.3, 0, 0, 1)}}, "tangent", False),
    "slope": (on_a_slope, {"base": {"qd": (0.1, 0.2, -0.4, 0, 1, 0)}}, None, False),
    "box, tangent": (box, {"base": {"q": (0, 0, 0, 0.1, 0.2, 0), "qd": (0.3, 0, -0.5, 0, 0.2, 0)}}, "tangent", False),
    "hopper": (hopper, {"floating_base": {"qd": (0.2, 0, -0.4, 0, 0, 0)}, "leg": {"q": -0.5}}, None, False),
    "hopper, tangent": (hopper, {"floating_base": {"qd": (0.2, 0, -0.4, 0, 0, 0)}, "leg": {"q": -0.5}}, "tangent", False),
    "controls": (walker, {"pose": "home"}, None, True),
}


def setting(case: str, **given: Any) -> tuple[planning.Problem, Tensor, Tensor]:
    """The problem, coordinates x (1, 4, size) of nodes that are not one motion, and inputs v (1, 3, m)."""
    make, joints, coordinates, controls = CASES[case]
    mech, g = make(), torch.Generator().manual_seed(1)
    mech.options = td.SolverOptions(residual_tol=1e-12)
    z = place(mech, **joints)
    given = {"costs": [planning.ContactForce()], **given}
    problem = planning.Problem(mech, z, 3, coordinates=coordinates, controls=controls, **given)
    dynamics = problem.dynamics
    x = dynamics.coordinates(z).expand(1, 4, -1)
    x = dynamics.retract(x, 1e-3 * torch.randn(1, 4, dynamics.size, generator=g, dtype=torch.float64))
    return problem, x, 0.3 * torch.randn(1, 3, dynamics.num_inputs, generator=g, dtype=torch.float64)


KAPPA = torch.tensor([1e-3], dtype=torch.float64)


@pytest.mark.parametrize("quantity", ["normal", "vector"])
@pytest.mark.parametrize("case", CASES)
def test_derivatives_are_those_of_differences(case: str, quantity: str) -> None:
    """The merit is differentiated by states and inputs of all nodes. Its Hessian is that of Gauss and Newton, cross terms included."""
    force = planning.ContactForce(weight=0.3, target=1.5, quantity=quantity)
    bounded = planning.ContactForce(weight=0.1, target=2.0, quantity=quantity, at=[0, 2])
    problem, x, v = setting(case, costs=[force, planning.Input(0.2)], equalities=[bounded], inequalities=[bounded])
    dynamics, merit = problem.dynamics, Lagrangian.of(problem, torch.tensor([0]), 3.0)
    for multiplier in merit.multipliers:
        multiplier += 0.1

    def value(dx: Tensor, dv: Tensor) -> float:
        nodes = dynamics.evaluate(dynamics.retract(x, dx), v + dv, None, KAPPA)
        assert bool(nodes.ok)
        return float(merit.value(Nodes(*(value[:, None] for value in nodes)))[1])

    nodes = dynamics.evaluate(x, v, None, KAPPA)
    forces = merit.force_jacobian(nodes, KAPPA)
    assert forces is not None
    found = merit.expansion(nodes, forces)
    g, step = torch.Generator().manual_seed(2), 2e-6
    for _ in range(3):
        dx = torch.randn(1, 4, dynamics.size, generator=g, dtype=torch.float64)
        dv = torch.randn(1, 3, dynamics.num_inputs, generator=g, dtype=torch.float64)
        slope = (value(step * dx, step * dv) - value(-step * dx, -step * dv)) / (2 * step)
        # the error of the differences, by their step squared, is 1e-7 of the slope for the stiffest case, "controls"
        assert math.isclose(float((found.lx * dx).sum() + (found.lu * dv).sum()), slope, rel_tol=1e-6, abs_tol=1e-6)
    assert found.lux is not None and float(found.lux.abs().max()) > 0
    whole = torch.cat((torch.cat((found.lxx[:, :-1], found.lux.mT), -1), torch.cat((found.lux, found.luu), -1)), -2)
    assert float((whole - whole.mT).abs().max()) <= 1e-12 * float(whole.abs().max())
    assert float(torch.linalg.eigvalsh(whole).min()) > -1e-12 * float(whole.abs().max())
    only = Lagrangian.of(planning.Problem(problem.mech, problem.start[0], 3, costs=[force], controls=dynamics.controls,
                                          coordinates="minimal" if dynamics.minimal else "tangent"), torch.tensor([0]), 1.0)  # fmt: skip
    expected = 2 * 0.3 * forces.mT @ forces
    crossed = only.expansion(nodes, forces).lux
    assert crossed is not None
    torch.testing.assert_close(crossed, expected[..., dynamics.size :, : dynamics.size])


def test_vectors_turn_with_the_bodies() -> None:
    """Between two spheres, the derivative has a part from the direction. Forces are those of `Mechanism.contact_forces`."""
    mech = two_balls()
    mech.options = td.SolverOptions(kappa=1e-3, residual_tol=1e-12)
    z = mech.initial_state(low={"q": (0, 0, 0.101, 0, 0, 0)}, high={"q": (0.05, 0.02, 0.295, 0, 0, 0), "qd": (0, 0, -0.3, 0, 0, 0)})
    problem = planning.Problem(mech, z, 1, costs=[planning.ContactForce("between", quantity="vector")])
    dynamics, rows = problem.dynamics, Lagrangian.of(problem, torch.tensor([0]), 1.0).force_rows
    assert rows.tolist() == [5, 6, 7]
    x, v = dynamics.coordinates(z).expand(1, 2, -1), torch.zeros(1, 1, 12, dtype=torch.float64)

    def forces(x: Tensor) -> Tensor:
        nodes = dynamics.evaluate(x, v, None, KAPPA)
        return dynamics.forces_of(nodes.z[..., :-1, :], nodes.v, nodes.end, nodes.w, rows)[0, 0]

    nodes = dynamics.evaluate(x, v, None, KAPPA)
    out = mech.step(z)
    torch.testing.assert_close(forces(x), mech.contact_forces(out.z, out.impulses)["between"], rtol=1e-7, atol=1e-8)
    found = dynamics.force_jacobian(nodes, KAPPA, rows, torch.tensor([0]))[0, 0]
    for i in range(dynamics.size):
        change = torch.zeros_like(x)
        change[..., i] = 1e-6
        expected = (forces(x + change) - forces(x - change)) / 2e-6
        torch.testing.assert_close(found[:, i], expected, rtol=1e-5, atol=1e-6 * float(found.abs().max()))


# -- plans ---------------------------------------------------------------------------------------------------------------------------------


def catch(*, heights: tuple[float, ...] | float = 0.5, mech: td.Mechanism | None = None, **changes: Any) -> planning.Problem:
    """A ball falls, and is at rest on the floor after 0.5 s, by a vertical force."""
    mech = mech or ball()
    start = [mech.initial_state(base={"q": (0, 0, 0.1 + h, 0, 0, 0)}) for h in (heights if isinstance(heights, tuple) else (heights,))]
    goal = mech.initial_state(base={"q": (0, 0, 0.1, 0, 0, 0)})
    given = {"costs": [planning.Input(1e-2)], **changes}
    given["costs"] = [planning.State(goal, 0.1, at=-1), *given["costs"]]
    z = torch.stack(start) if isinstance(heights, tuple) else start[0]
    return planning.Problem(mech, z, 25, equalities=[planning.State(goal, rows=[2, 8], at=-1)], input_map=UP, **given)


def presses(plan: planning.Plan) -> Tensor:
    """Normal forces (..., T) [N] of the plan's steps, taken again."""
    mech = plan.problem.mech
    out = mech.step(plan.z[..., :-1, :], plan.u)
    return mech.contact_forces(out.z, out.impulses)["floor"][..., 2]


def test_a_cost_softens_the_impact() -> None:
    hard = planning.solve(catch())
    soft = planning.solve(catch(costs=[planning.Input(1e-2), planning.ContactForce(weight=1e-2)]))
    assert bool(hard.solved) and bool(soft.solved)
    assert float(presses(hard).max()) > 60.0 and float(presses(soft).max()) < 25.0


@pytest.mark.parametrize("method", ["single", "multiple"])
def test_a_bound_holds(method: str) -> None:
    """The weight makes the violation relative to the bound of 40 N. The tolerance is 1e-4 of it, and the same steps are taken again."""
    plan = planning.solve(catch(inequalities=[planning.ContactForce("floor", weight=1 / 40, target=40.0)]), method=method)
    assert bool(plan.solved) and float(plan.violation) <= 1e-4
    assert 30.0 < float(presses(plan).max()) <= 40.0 * (1 + 2e-4)


def test_an_equality_asks_for_a_force_at_some_nodes() -> None:
    wanted = torch.tensor([[12.0], [15.0]], dtype=torch.float64)
    mech = ball()
    start = mech.initial_state(base={"q": (0, 0, 0.1001, 0, 0, 0)})
    force = planning.ContactForce(target=wanted, weight=0.1, at=[2, -1])
    problem = planning.Problem(mech, start, 5, costs=[planning.Input(1e-3)], equalities=[force], input_map=UP)
    plan = planning.solve(problem)
    assert bool(plan.solved)
    torch.testing.assert_close(presses(plan)[[2, 4]], wanted[:, 0], rtol=0, atol=2e-3)  # 1e-4 / 0.1 N, and the steps' own tolerance


def test_problems_of_a_batch_are_those_alone() -> None:
    heights, costs = (0.3, 0.5), [planning.Input(1e-2), planning.ContactForce(weight=1e-3)]
    both = planning.solve(catch(heights=heights, costs=costs))
    assert both.solved.all()
    for i, height in enumerate(heights):
        alone = planning.solve(catch(heights=height, costs=costs))
        torch.testing.assert_close(both.u[i], alone.u, rtol=1e-6, atol=1e-6)
    weighted = planning.ContactForce(weight=torch.tensor([[[0.0]], [[1e-2]]], dtype=torch.float64))
    each = planning.solve(catch(heights=(0.5, 0.5), costs=[planning.Input(1e-2), weighted]))
    peaks = presses(each).amax(-1)
    assert each.solved.all() and float(peaks[1]) < 0.5 * float(peaks[0])


def test_a_weight_of_zero_changes_nothing() -> None:
    """The cross terms are zero, and the sweep with them gives what it gives without."""
    plain, zero = planning.solve(catch()), planning.solve(catch(costs=[planning.Input(1e-2), planning.ContactForce(weight=0.0)]))
    torch.testing.assert_close(plain.u, zero.u, rtol=0, atol=1e-12)


@pytest.mark.parametrize("contact", [td.ImpactContact, td.LinearContact])
def test_other_contact_laws(contact: Any) -> None:
    plan = planning.solve(catch(mech=ball(contact), inequalities=[planning.ContactForce(weight=1 / 40, target=40.0)]))
    assert bool(plan.solved) and float(presses(plan).max()) <= 40.0 * (1 + 2e-4)


def test_tracking_gains_count_forces() -> None:
    plan = planning.solve(catch(costs=[planning.Input(1e-2), planning.ContactForce(weight=1e-2)]))
    other = planning.solve(catch())
    assert bool(torch.isfinite(plan.tracking_gains()).all()) and float(plan.tracking_gains().abs().max()) > 0
    assert not torch.equal(plan.tracking_gains(), other.tracking_gains())


@pytest.mark.parametrize("period", [None, 0.01])
def test_a_controller_carries_part_of_the_weight(period: float | None) -> None:
    """The ball lies on the floor. A force that lifts it and the normal force have the same cost, so each carries half of its weight."""
    mech = ball()
    rest = mech.initial_state(base={"q": (0, 0, 0.1001, 0, 0, 0)})
    costs = [planning.State(rest, 1.0), planning.Input(1e-3), planning.ContactForce(weight=1e-3)]
    problem = planning.Problem(mech, rest, 10, costs=costs, input_map=UP)
    controller = planning.Controller(problem, period=period, kappa=1e-6)
    z, real = rest, ball(timestep=0.01)
    for i in range(100):
        z = real.step(z, controller(z, 0.01 * i)).z
    u = float(controller(z, 1.0)[2])
    assert controller.report.failures == 0 and controller.F is not None
    assert math.isclose(u, 9.81 / 2, rel_tol=0.02)  # the cost of its place, which floats by 1e-6 N·s·m over the impulse, shifts it


# -- descriptions --------------------------------------------------------------------------------------------------------------------------


def described(**changes: Any) -> planning.Problem:
    robot: dict[str, Any] = {"robot": "quadruped", "robot_options": {"contact_body": False}, "timestep": 0.05, "steps": 3}
    robot |= {"start": {"pose": "home", "on": "ground"}, "goal": {"floating_base": {"q": [0, 0, 0.3, 0, 0, 0]}}}
    return read_config({**robot, **changes}).build().problem


def test_descriptions() -> None:
    assert not any(bound.of_forces for bound in described().costs) and not described().inequalities
    problem = described(weights={"normal": {"FR_foot": 2.0, "others": 0.5}}, normal_forces={"RL_foot": 70.0})
    names = list(problem.mech.contacts)
    cost, (cap,) = problem.costs[-1], problem.inequalities
    assert cost.of_forces and cost.weight[0, 0, 0].tolist() == [2.0 if name == "FR_foot" else 0.5 for name in names]
    assert cap.rows is not None and cap.rows.tolist() == [names.index("RL_foot")]
    assert float(cap.target[0, 0, 0]) == 70.0 and math.isclose(float(cap.weight[0, 0, 0]), 1 / 70)
    assert described(normal_forces=70).inequalities[0].weight.shape[-1] == len(names)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"weights": {"normal": {"toe": 1.0}}}, "weights.normal: there is no toe; allowed: FR_foot"),
        ({"normal_forces": {"toe": 1.0}}, "normal_forces: there is no toe"),
        ({"normal_forces": -1.0}, "positive numbers"),
        ({"normal_forces": [70.0, 70.0]}, "a number by name"),
    ],
)
def test_descriptions_that_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        described(**changes)


# -- what is refused -----------------------------------------------------------------------------------------------------------------------


class Silent(td.NonlinearContact):
    """A law whose multipliers are its own."""

    force = td.Contact.force


class Twisted(td.NonlinearContact):
    def force(self, normal: Tensor, impulse: Tensor, tangents: Tensor | None = None) -> Tensor:
        return 2 * super().force(normal, impulse, tangents)


@pytest.mark.parametrize(
    ("contact", "given", "words"),
    [
        (td.NonlinearContact, {"contacts": "toe"}, r"costs\[2\].contacts: got 'toe'; allowed: different names of floor"),
        (td.NonlinearContact, {"contacts": []}, "different names of floor"),
        (td.NonlinearContact, {"contacts": ["floor", "floor"]}, "different names of floor"),
        (td.NonlinearContact, {"quantity": "impulse"}, "allowed: 'normal', 'vector'"),
        (td.NonlinearContact, {"target": (1.0, 2.0)}, r"target: got shape \(2,\); allowed: a number, \(1,\), \(25, 1\)"),
        (td.NonlinearContact, {"weight": (1.0, 2.0), "quantity": "vector"}, r"weight: got shape \(2,\); allowed: a number, \(3,\)"),
        (td.NonlinearContact, {"weight": -1.0}, "finite numbers of 0 or more"),
        (td.NonlinearContact, {"at": 25}, "allowed: nodes from -25 to 24"),
        (None, {}, "mechanism without contacts"),
        (Silent, {}, "Silent without `force`"),
        (Twisted, {}, "'floor' is a Twisted with a `force` of its own; allowed: quantity='vector'"),
    ],
)
def test_what_does_not_fit_is_refused(contact: Any, given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        catch(mech=ball(contact), costs=[planning.Input(1e-2), planning.ContactForce(**given)])


def test_a_force_of_its_own_is_allowed_as_a_vector() -> None:
    problem = catch(mech=ball(Twisted), costs=[planning.ContactForce(quantity="vector", weight=(0.0, 0.0, 1e-3))])
    assert problem.costs[-1].of_forces


@pytest.mark.slow
def test_a_gait_with_a_bound_of_70_newtons() -> None:
    """The feet of the A1 press with 77 N without it."""
    task = planning.tasks.TASKS["quadruped"]
    problem = planning.tasks.quadruped(normal_forces=70.0)
    plan = planning.solve(problem, **{**task.options, "penalty": 0.1})
    assert int(plan.status) == int(PlanStatus.SOLVED) and float(plan.violation) <= 1e-4
    out = problem.mech.step(plan.z[:-1], plan.u)
    forces = torch.stack(list(problem.mech.contact_forces(out.z, out.impulses).values()))
    assert float(forces[..., 2].max()) <= 70.0 * (1 + 1e-3)
