"""The experiments of `torchdojo evaluate planning`: bounds of quick runs, and MuJoCo's steps and derivatives in the planner."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import torchdojo as td
from torchdojo import planning
from torchdojo.commands.main import main
from torchdojo.evaluation import plots
from torchdojo.evaluation.experiment import Outcome, Setting
from torchdojo.evaluation.mujoco_planning import MujocoDynamics
from torchdojo.evaluation.mujoco_reference import actuated_box_scene, box_scene
from torchdojo.evaluation.planning import EXPERIMENTS, end_distance, iterates, lifted_box, start_by_servos
from torchdojo.planning.dynamics import Nodes
from torchdojo.planning.tasks import TASKS

BY_NAME = {experiment.name: experiment for experiment in EXPERIMENTS}


def check(outcome: Outcome) -> None:
    missed = [f"{m.key} = {m.value:.6g}, bound {m.bound}" for m in outcome.measurements if not m.passed]
    assert outcome.measurements and not missed, "; ".join(missed)


@pytest.mark.parametrize("name", ["box-right", "box-up"])
def test_boxes_keep_their_bounds(name: str) -> None:
    outcome = BY_NAME[name].run(Setting(quick=True))
    check(outcome)
    measured = {m.key: m for m in outcome.measurements}
    assert measured["iterations_median"].published == {"box-right": "30", "box-up": "106"}[name]
    heading, row = outcome.tables[0]
    assert len(heading) == len(row) and row[1] == "2 of 2"
    assert {plot.name for plot in outcome.plots} == {"cost", "violation", "path"}
    assert all(len(line.x) == len(line.y) == measured["iterations_worst"].value for line in outcome.plots[0].lines.values())


@pytest.mark.slow
def test_all_keep_their_bounds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", "planning", "--quick", "--output", str(tmp_path), "--json"]) == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert list(report["experiments"]) == list(BY_NAME) and report["failed"] == []
    assert (tmp_path / "hopper.npz").is_file() and (not plots.available() or (tmp_path / "hopper_cost.png").is_file())


def test_iterates_are_those_of_the_schedule_of_the_plan() -> None:
    plan = planning.solve(TASKS["box_up"].perturbed(2), **TASKS["box_up"].options)
    for problem in range(2):
        records = iterates(plan, problem)
        assert len(records) == int(plan.iterations[problem])
        assert float(records[-1].cost) == pytest.approx(float(plan.cost[problem]), rel=1e-6)
    assert float(end_distance(plan, plan.replay(kappa=1e-6)).max()) < 1e-4


def test_servos_follow_the_reference_better_than_holding_torques() -> None:
    problem = TASKS["quadruped"].make(None)
    held = problem.guess.clone()
    start_by_servos(problem)
    assert problem.guess.shape == held.shape and float((problem.guess - held).abs().max()) > 1.0

    def way(u: torch.Tensor) -> float:
        with torch.no_grad():
            return float(problem.mech.rollout(problem.start[0], u[0]).z[-1, 0])

    assert way(problem.guess) > 0.3 and way(held) < 0.1  # of 0.4 m


# -- MuJoCo --------------------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def box() -> planning.Problem:
    """A box on the ground, on MuJoCo's steps."""
    mujoco = pytest.importorskip("mujoco")
    problem = lifted_box(0.01, torch.zeros(1, 5, 3, dtype=torch.float64))
    scene = actuated_box_scene(half=(0.25,) * 3, mass=1.0, friction=0.5, timestep=0.01)
    problem.dynamics = MujocoDynamics(mujoco, scene, problem)
    return problem


def test_free_flight_is_that_of_torchdojo(box: planning.Problem) -> None:
    z = box.start.clone()
    z[:, 2] = 3.0
    z[:, 3:6] = torch.tensor([0.3, -0.2, 0.5], dtype=torch.float64)
    v = torch.ones(1, 5, 3, dtype=torch.float64)
    path = box.dynamics.rollout(z, v, None, torch.ones(1))
    with torch.no_grad():
        ours = box.mech.rollout(z, box.dynamics.inputs(v)).z
    torch.testing.assert_close(path.z[..., 3:], ours[..., 3:], rtol=0, atol=1e-4)  # contacts repel from afar at kappa 1e-6
    assert bool(path.ok) and float((path.z[..., :3] - ours[..., :3]).abs().max()) < 0.01  # half a step of the acceleration


def test_derivatives_are_those_of_the_steps(box: planning.Problem) -> None:
    dynamics = box.dynamics
    z = box.mech.retract(box.start.expand(2, -1), 0.1 * torch.randn(2, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
    z[:, 2] += 1.0
    x, v = z[None], torch.tensor([[[0.3, 0.1, 2.0]]], dtype=torch.float64)
    nodes = dynamics.evaluate(x, v, None, torch.ones(1))
    A, B = dynamics.linearize(nodes, torch.ones(1), torch.ones(1))
    after, step = nodes.end[0, 0], 1e-6
    for i in range(12):
        moved = dynamics.retract(z[:1], step * torch.eye(12, dtype=torch.float64)[i : i + 1])
        end = dynamics.evaluate(torch.stack((moved, z[1:]), 1), v, None, torch.ones(1)).end[0, 0]
        torch.testing.assert_close(dynamics.difference(end, after) / step, A[0, 0, :, i], rtol=0, atol=1e-4)
    for i in range(3):
        end = dynamics.evaluate(x, v + step * torch.eye(3, dtype=torch.float64)[i], None, torch.ones(1)).end[0, 0]
        torch.testing.assert_close(dynamics.difference(end, after) / step, B[0, 0, :, i], rtol=0, atol=1e-5)


def test_diverged_simulations_are_flagged_and_scenes_must_fit(box: planning.Problem) -> None:
    path = box.dynamics.rollout(box.start, torch.full((1, 5, 3), 1e12, dtype=torch.float64), None, torch.ones(1))
    assert not bool(path.ok)
    nodes = Nodes(*(value if value is path.ok else torch.nan * value for value in path))
    assert not bool(box.dynamics.evaluate(nodes.x, nodes.v, None, torch.ones(1)).ok)
    scene = box_scene(half=(0.25,) * 3, mass=1.0, friction=0.5, timestep=0.01, gravity=(0.0, 0.0, -9.81), cone="pyramidal")
    with pytest.raises(ValueError, match="6 rates and 0 actuators"):
        MujocoDynamics(pytest.importorskip("mujoco"), scene, lifted_box(0.01, torch.zeros(1, 5, 3, dtype=torch.float64)))


def test_a_plan_of_mujoco_is_a_motion_of_mujoco() -> None:
    mujoco = pytest.importorskip("mujoco")
    problem = lifted_box(0.1, torch.zeros(1, 10, 3, dtype=torch.float64))
    scene = actuated_box_scene(half=(0.25,) * 3, mass=1.0, friction=0.5, timestep=0.1)
    problem.dynamics = MujocoDynamics(mujoco, scene, problem)
    plan = td.planning.solve(problem, penalty=10.0, schedule=((1e-8, None),))
    assert bool(plan.solved) and float(plan.cost) == pytest.approx(14.61, abs=0.02)
    model = mujoco.MjModel.from_xml_string(scene)
    data = mujoco.MjData(model)
    for u in plan.u[0].numpy():
        data.ctrl[:] = u
        mujoco.mj_step(model, data)
    assert np.abs(data.qpos[:3] - (0.0, 0.0, 1.25)).max() < 1e-3
