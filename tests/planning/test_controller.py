"""Receding horizon: a pendulum that is held, failures and what follows them, and a robot that is pushed."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import torchdojo as td
from torchdojo import planning
from torchdojo.planning.standing import PUSHES, pushed, random_pushes, standing


def holding(**changes: Any) -> planning.Problem:
    """A pendulum is to be at 0.5 rad; it starts there, held."""
    mech = td.models.pendulum(timestep=0.05)
    goal = mech.initial_state(hinge={"q": 0.5})
    torque = planning.solve(planning.Problem(mech, goal, 1, costs=[planning.State(goal, 1.0)]), schedule=[(1e-4, None)]).u[0]
    given: dict[str, Any] = {
        "costs": [planning.State(goal, (1.0, 0.01)), planning.Input(1e-4, target=torque)],
        "guess": torque,
        "limits": (-30.0, 30.0),
        **changes,
    }
    return planning.Problem(mech, given.pop("start", goal), 10, **given)


@pytest.mark.parametrize(("period", "shared"), [(None, 1), (0.01, 5)])
def test_a_pendulum_comes_back(period: float | None, shared: int) -> None:
    """In steps of 0.01 s, with a plan at every step of the plan or of the simulation."""
    problem = holding()
    controller = planning.Controller(problem, period=period)
    mech = td.models.pendulum(timestep=0.01)
    z = mech.initial_state(hinge={"q": -0.3, "qd": 2.0})
    for i in range(150):
        u = controller(z, 0.01 * i)
        assert float(u.abs().max()) <= 30.0
        out = mech.step(z, u)
        assert int(out.status) == 0
        z = out.z
    q, qd = mech.to_minimal(z)
    assert math.isclose(float(q), 0.5, abs_tol=0.01) and abs(float(qd)) < 0.05
    report = controller.report
    assert report.samples == 30 * shared and report.failures == 0
    assert 0 < report.mean <= report.worst and math.isclose(report.rate, 1 / report.mean)
    assert f"{report.samples} plans, 0 failed" in str(report)


def test_a_plan_that_fails_is_counted_and_the_settled_one_takes_over() -> None:
    controller = planning.Controller(holding())
    settled = controller.control(controller.settled)
    z = controller.settled
    for bad in (torch.full_like(z, math.nan), torch.cat((z[:10], torch.full((3,), 1e6, dtype=z.dtype)))):
        assert not controller.plan(bad)
        u = controller.control(bad)
        assert bool(torch.isfinite(u).all()) and float(u.abs().max()) <= 30.0
    assert controller.report.failures == 2 == controller.report.samples
    torch.testing.assert_close(controller.control(torch.full_like(z, math.nan)), settled)  # as planned, where the state is not known
    assert controller.plan(z) and controller.report.failures == 2
    torch.testing.assert_close(controller.control(z), settled, atol=1e-3, rtol=0)
    controller.reset()
    assert controller.report.samples == 0


def test_the_problem_and_its_mechanism_stay() -> None:
    problem = holding()
    options, guess = problem.mech.options, problem.guess.clone()
    planning.Controller(problem).plan(problem.start[0])
    assert problem.mech.options is options and torch.equal(problem.guess, guess)


@pytest.mark.parametrize(
    ("problem", "changes", "words"),
    [
        ({"start": td.models.pendulum().initial_state().expand(2, -1)}, {}, "got 2 problems"),
        ({"equalities": [planning.Input()]}, {}, "constraints"),
        ({}, {"period": 0.06}, "period: got 0.06"),
        ({}, {"kappa": 1e-3, "grad_kappa": 1e-4}, "grad_kappa at least kappa"),
        ({}, {"damping": -1.0}, "damping: got -1.0"),
        ({}, {"step_sizes": (0.0,)}, "step_sizes"),
        ({"guess": 1e9, "limits": None}, {}, "start under its guess fails"),
    ],
    ids=["batch", "constraints", "period", "kappa", "damping", "step_sizes", "guess"],
)
def test_what_does_not_fit_is_said(problem: dict[str, Any], changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        planning.Controller(holding(**problem), **changes)


@pytest.mark.slow
def test_a_standing_robot_steps_where_it_is_pushed() -> None:
    """Three pushes of 8 to 12 N·s, and single ones of 12 N·s in random directions; servos alone fall."""
    controller = planning.Controller(standing())
    trials = [pushed(controller, PUSHES)] + [pushed(controller, push, seconds=1.3) for push in random_pushes(4, seed=3)]
    for trial in trials:
        assert trial.flagged == 0 and trial.tilt < math.radians(45) and trial.height > 0.25 and trial.upright
        assert trial.report.failures == 0
    assert math.isclose(trials[0].seconds, 3.0) and trials[0].report.samples == 150
    servos = pushed(None, random_pushes(1, seed=3)[0], seconds=1.3)
    assert not servos.upright and servos.flagged == 0
