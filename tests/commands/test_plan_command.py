"""`torchdojo plan`: what it prints and writes, descriptions of robots, and how it refuses bad ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import torchdojo as td
from conftest import REPOSITORY
from torchdojo.commands.main import main

pytest.importorskip("jsonargparse", reason="needs the extra torchdojo[fit]")

from torchdojo.planning.config import PlanConfig, read_config

CONFIGS = REPOSITORY / "configs"
PENDULUM: dict[str, Any] = {
    "robot": "pendulum",
    "timestep": 0.1,
    "steps": 10,
    "goal": {"hinge": {"q": 0.5}},
    "weights": {"u": 0.01},
    "limits": 10.0,
}


def describe(folder: Path, **changes: Any) -> Path:
    path = folder / "plan.yaml"
    path.write_text(json.dumps({key: value for key, value in {**PENDULUM, **changes}.items() if value is not None}))  # JSON is YAML
    return path


def test_reports_and_writes_what_others_can_play(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "out"
    assert main(["plan", str(describe(tmp_path)), "--output", str(output), "--set", "steps=8", "--json"]) == 0
    out = capsys.readouterr().out
    report = json.loads(out.splitlines()[-1])
    assert report == json.loads((output / "report.json").read_text())
    assert report["status"] == "SOLVED" and report["passed"] and report["violation"] <= 1e-4 and report["replay_distance_m"] < 0.01
    for text in ("iteration", "violation", "SOLVED: constraints hold", "replay in steps of 0.01 s at kappa 1e-08", "gains"):
        assert text in out
    with np.load(output / "trajectory.npz") as archive:
        arrays = {name: torch.as_tensor(archive[name]) for name in archive.files if archive[name].dtype == np.float64}
    assert arrays["z"].shape == (9, 13) and arrays["gains"].shape == (8, 1, 2) and len(arrays["cost"]) == report["iterations"]
    # The feedback of the file, as the last line says, with a start beside that of the plan.
    mech = td.models.pendulum(timestep=0.1)
    z = mech.initial_state(hinge={"q": 0.05})
    for t in range(8):
        error = torch.cat(mech.to_minimal(z), -1) - arrays["coordinates"][t]
        with torch.no_grad():
            z = mech.step(z, arrays["input_map"] @ (arrays["v"][t] + arrays["gains"][t] @ error) + arrays["input_offset"]).z
    assert abs(float(mech.to_minimal(z)[0]) - 0.5) < 0.01
    if (output / "trajectory.html").exists():  # needs the extra torchdojo[pages]
        assert (output / "trajectory.html").stat().st_size > 1000
    assert main(["view", str(output / "trajectory.npz"), "--json"]) == 0


def test_an_unsolved_plan_says_why_and_ends_with_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(describe(tmp_path, steps=2, limits=0.1)), "--set", "goal.hinge.q=3.0"]) == 1
    assert "INFEASIBLE: constraints are violated" in capsys.readouterr().out


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("plan_*.yaml")), ids=lambda path: path.stem)
def test_shipped_descriptions_are_read(path: Path) -> None:
    config = read_config(path)
    if config.task != "quadruped":  # its gait and the torques that hold it take half a second
        assert len(config.build().problem) == 1
    assert f"torchdojo plan configs/{path.name}" in path.read_text()


def test_a_robot_file_beside_the_description_swings_up(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(CONFIGS / "plan_arm.yaml"), "--json"]) == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert report["status"] == "SOLVED" and report["cost"] < 8.0 and report["replay_distance_m"] < 0.002


def test_names_of_the_goal_weights_and_inputs_choose_rows() -> None:
    hopper = {"robot": "raibert_hopper", "robot_options": {"actuated_base": True}, "timestep": 0.05, "steps": 4, "inputs": ["leg"]}
    start = {"floating_base": {"q": [0, 0, 0.55, 0, 0, 0]}, "leg": {"q": -0.5}}
    given = {"start": start, "goal": {"leg": {"q": -0.4}}, "weights": {"q": {"leg": 2.0, "others": [0.5]}, "qd": {"floating_base": 0.1}}}
    problem = read_config({**hopper, **given}).build().problem
    assert problem.dynamics.num_inputs == 1 and problem.equalities[0].rows.tolist() == [6, 13]
    assert problem.costs[0].weight[0, 0, 0].tolist() == [0.5] * 6 + [2.0] + [0.1] * 6 + [0.0]
    torch.testing.assert_close(problem.costs[0].target[0, 0, 0, :7], torch.tensor([0, 0, 0.55, 0, 0, 0, -0.4], dtype=torch.float64))
    problem = read_config({**hopper, **given, "reach": ["floating_base.q"]}).build().problem
    assert problem.equalities[0].rows.tolist() == list(range(6))
    given["weights"] = {"q": 1.0, "qd": 0.1}
    problem = read_config({**hopper, **given, "coordinates": "tangent", "reach": ["foot.q"]}).build().problem
    assert problem.costs[0].weight[0, 0, 0, :12].tolist() == [1.0] * 3 + [0.1] * 3 + [1.0] * 3 + [0.1] * 3
    assert problem.equalities[0].rows.tolist() == [12, 13, 14, 18, 19, 20]
    high = {"base": {"q": [0, 0, 1, 0, 0, 0]}}
    rotors = {"robot": "quadrotor", "timestep": 0.05, "steps": 4, "start": high, "goal": high, "controls": True, "limits": 1.0}
    assert read_config(rotors).build().problem.dynamics.num_inputs == 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"step": 3}, "description of a plan: there is no step; allowed: task, "),
        ({"steps": "many"}, 'Parser key "steps"'),
        ({"steps": None}, "steps: missing; a plan of a robot needs timestep"),
        ({"robot": None}, "task, robot: got neither; allowed: one of them"),
        ({"robot": "dog"}, "robot: no built-in mechanism 'dog'; there are: pendulum"),
        ({"robot": "dog.urdf"}, "dog.urdf"),
        ({"robot_options": {"colour": 1}}, "has no option 'colour'"),
        ({"task": "box_up"}, "task, robot: got both"),
        ({"task": "fly", "robot": None}, "task: got 'fly'; allowed: box_right"),
        ({"task": "box_up", "robot": None}, "timestep, steps, goal, weights, limits: the task 'box_up' has its own"),
        ({"method": "shooting"}, "method: got 'shooting'; allowed: 'single', 'multiple'"),
        ({"options": {"iterations": 3}}, "options: there is no iterations; allowed: schedule"),
        ({"options": {"damping": -1}}, "SolveOptions.damping: got -1"),
        ({"options": {"schedule": "fast"}}, "SolveOptions.schedule: got 'fast'; allowed: 'auto'"),
        ({"goal": {"knee": {"q": 1}}}, "unknown name 'knee'"),
        ({"goal": {"hinge": 1}}, "goal.hinge: got 1; allowed: a mapping"),
        ({"reach": ["knee"]}, "reach: got 'knee'; allowed: 'all', or NAME, NAME.q, NAME.qd with the names hinge"),
        ({"weights": {"qdd": 1}}, "weights: there is no qdd; allowed: q, qd, u"),
        ({"weights": {"q": {"knee": 1}}}, "weights.q: there is no knee; allowed: hinge, others"),
        ({"weights": {"q": [1, 2]}}, "weights.q.others: got 2 numbers; allowed: a number, or 1 for 'hinge'"),
        ({"weights": {"q": "much"}}, "weights.q.others: got 'much'; allowed: a number"),
        ({"inputs": ["knee"]}, "inputs: got knee; allowed: hinge"),
        ({"limits": "effort"}, "the joint 'hinge' has no effort limit; allowed: numbers"),
        ({"limits": [[2.0], [1.0]]}, "a least input above the largest"),
        ({"controls": True}, "controls: got true for a robot without actuators"),
        ({"guess": "hold", "inputs": ["hinge"]}, None),
        ({"replay": 0}, "replay: got 0"),
    ],
)
def test_bad_descriptions_are_refused_in_one_line(
    changes: dict[str, Any], message: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = describe(tmp_path, **changes)
    assert main(["plan", str(path), "--output", str(tmp_path / "out")]) == (0 if message is None else 2)
    error = capsys.readouterr().err
    assert message is None or (message in error and len(error.strip().splitlines()) == 1 and not (tmp_path / "out").exists())


def test_other_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "list.yaml").write_text("[1, 2]")
    for arguments, message in (
        ([str(tmp_path / "none.yaml")], "no file"),
        ([str(tmp_path / "list.yaml")], "allowed: a mapping of names and values"),
        ([str(describe(tmp_path)), "--set", "steps"], "allowed: KEY=VALUE"),
    ):
        assert main(["plan", *arguments]) == 2
        assert message in capsys.readouterr().err


def test_defaults_are_those_of_the_task() -> None:
    made = PlanConfig(task="box_up", options={"max_iterations": 7}).build()
    assert made.options.penalty == 10.0 and made.options.max_iterations == 7 and made.lag is None
