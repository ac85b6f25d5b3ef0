"""Controllers, inverse dynamics and descriptions of mechanisms whose controls go to drives."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

import torchdojo as td
from torchdojo import planning
from torchdojo.commands.plan import plan
from torchdojo.planning.config import read_config

TEXT = """
<mujoco>
  <compiler angle="radian"/>
  <option timestep="0.01" gravity="0 0 0"/>
  <worldbody>
    <body name="link" pos="0 0 0">
      <joint name="hinge" axis="0 1 0" damping="0.05" range="-1.5 1.5"/>
      <inertial pos="0 0 -0.1" mass="0.2" diaginertia="2e-3 2e-3 2e-4"/>
    </body>
  </worldbody>
  <actuator>
    <muscle name="left" joint="hinge" gear="0.03" lengthrange="-0.05 0.05" force="60"/>
    <muscle name="right" joint="hinge" gear="-0.03" lengthrange="-0.05 0.05" force="60"/>
  </actuator>
</mujoco>
"""


def arm() -> td.Mechanism:
    mech = td.envs.MuscleArm(num_envs=1).mech
    mech.timestep = 0.02
    mech.drives = td.Drives(mech, mech.drives.drives)
    return mech


def reaching(mech: td.Mechanism) -> planning.Problem:
    """With some tension in all muscles: at an end of its range, an activation has no derivative."""
    start, goal = (mech.initial_state(shoulder={"q": q}, elbow={"q": 1.0}) for q in (0.5, 0.6))
    costs = [planning.State(goal, (10.0, 10.0, 0.1, 0.1)), planning.Input(1e-2, target=0.3), planning.Activation(1e-2, target=0.3)]
    return planning.Problem(mech, start, 20, costs=costs, limits=(0.0, 1.0), controls=True, start_activation=0.3, guess=0.3)


@pytest.mark.slow
def test_a_controller_of_muscles_reaches_its_goal() -> None:
    """From elsewhere and with a push: it sees the activations, which lag behind its controls."""
    mech = arm()
    controller = planning.Controller(reaching(mech))
    z = mech.initial_state(shoulder={"q": 0.45, "qd": 0.3}, elbow={"q": 1.1})
    act, push = torch.full((4,), 0.2, dtype=torch.float64), torch.zeros(6 * mech.num_bodies, dtype=torch.float64)
    for k in range(80):
        push[1] = 5.0 if 10 <= k < 13 else 0.0
        ctrl = controller(z, 0.02 * k, act)
        assert bool(((ctrl >= 0) & (ctrl <= 1)).all())
        out = mech.drives.step(z, ctrl, act, wrench=push)
        z, act = out.out.z, out.act
    assert controller.report.failures == 0
    q, qd = mech.to_minimal(z)
    assert float((q - torch.tensor([0.6, 1.0], dtype=torch.float64)).abs().max()) < 0.03
    assert float(qd.abs().max()) < 0.1


def test_gains_of_a_controller_see_activations() -> None:
    """Between samples, the law is v + K (x ⊖ x̄) with the activations in x."""
    mech = arm()
    controller = planning.Controller(reaching(mech))
    z, act = controller.settled, torch.full((4,), 0.3, dtype=torch.float64)
    base, change = controller.control(z, act=act), torch.tensor([0.02, 0.0, -0.01, 0.03], dtype=torch.float64)
    v = controller.nodes.v[0, 0] + controller.K[0, 0][:, -4:] @ change
    assert float((base - controller.nodes.v[0, 0]).abs().max()) < 1e-9
    torch.testing.assert_close(controller.control(z, act=act + change), v.clamp(0.0, 1.0), rtol=0, atol=1e-9)


def test_what_a_controller_refuses() -> None:
    mech = arm()
    controller = planning.Controller(reaching(mech))
    z = controller.settled
    with pytest.raises(ValueError, match=r"got no activations; allowed: \(4,\), as mech.drives.step returns them"):
        controller(z, 0.0)
    with pytest.raises(ValueError, match=r"got activations of shape \(3,\)"):
        controller(z, 0.0, torch.zeros(3).double())
    plain = td.models.make("pendulum", timestep=0.02)
    costs = [planning.State(plain.initial_state(), 1.0), planning.Input(1e-2)]
    controller = planning.Controller(planning.Problem(plain, plain.initial_state(), 5, costs=costs))
    with pytest.raises(ValueError, match="allowed: none, since no control has an activation"):
        controller(plain.initial_state(), 0.0, torch.zeros(1).double())


def pushed(laws: dict[str, object] | None = None) -> td.Mechanism:
    """Two links with a motor, a string and a fan, which have no activation, or one that is there at once."""
    link = {"mass": 0.3, "inertia": (2e-3, 2e-3, 2e-4)}
    joints = {
        "first": td.Revolute(None, "a", axis=(0, 1, 0), child_anchor=(0, 0, 0.1), damper=0.01),
        "second": td.Revolute("a", "b", axis=(0, 1, 0), parent_anchor=(0, 0, -0.1), child_anchor=(0, 0, 0.1), damper=0.01),
    }
    string = td.SpatialTendon([td.Site("a", (0.02, 0, 0.05)), td.Site("b", (0.02, 0, 0.05))], actuated=True)
    mech = td.Mechanism({name: td.Body(**link) for name in "ab"}, joints, tendons={"string": string}, timestep=0.01)
    fan = td.Drive(site=td.Site("b", (0, 0, -0.1)), gear=(0.0, 0, 0, 0, 0.2, 0))
    laws = {"dynamics": "filter", "dynamics_numbers": (0.05,), "early": True} if laws is None else laws
    mech.drives = td.Drives(mech, {"pull": td.Drive(tendon="string", gain_numbers=(3.0, 0.5, -0.1), **laws), "fan": fan})
    return mech


@pytest.mark.parametrize("laws", [{}, None], ids=["without activation", "early"])
def test_inverse_dynamics_finds_controls_of_drives(laws: dict[str, object] | None) -> None:
    mech = pushed(laws)
    mech.options = td.SolverOptions(residual_tol=1e-12)
    generator = torch.Generator().manual_seed(0)
    q, ctrl = (torch.randn(5, 2, generator=generator, dtype=torch.float64) for _ in range(2))
    z, act = mech.to_maximal(0.3 * q), torch.rand(5, mech.drives.num_activations, generator=generator, dtype=torch.float64)
    after = mech.drives.step(z, ctrl, act).out.z
    found = planning.inverse_dynamics(mech, z, after, controls=True, activation=act, tolerance=1e-9)
    assert bool(found.solved.all())
    assert found.z.shape == (5, 2, z.shape[-1])
    # The string gives 0.01 rad/s or more per control, and the residual is 1e-9 rad/s.
    assert float((found.value - ctrl).abs().max()) < 1e-6
    again = mech.drives.step(z, found.value, act).out.z
    assert float((again - after).abs().max()) < 1e-8


def test_what_inverse_dynamics_of_drives_refuses() -> None:
    mech = arm()
    z = mech.initial_state()
    with pytest.raises(ValueError, match=r"controls act after the step, \['shoulder_flexor'.*allowed: drives without activation and delay"):
        planning.inverse_dynamics(mech, z, z, controls=True)
    mech = pushed()
    z = mech.initial_state()
    with pytest.raises(ValueError, match=r"activation: got shape \(3,\); allowed: \(\.\.\., 1\), of \['pull'\]"):
        planning.inverse_dynamics(mech, z, z, controls=True, activation=torch.zeros(3).double())
    with pytest.raises(ValueError, match="activation: got activations; allowed: None, but for controls=True"):
        planning.inverse_dynamics(mech, z, z, activation=torch.zeros(1).double())
    mech.drives = td.Drives(mech, {"late": td.Drive(tendon="string", delay=0.02)})
    with pytest.raises(ValueError, match=r"controls act after the step, \['late'\]"):
        planning.inverse_dynamics(mech, z, z, controls=True)


def description(folder: Path) -> dict[str, object]:
    path = folder / "muscles.xml"
    path.write_text(TEXT)
    return {
        "robot": str(path),
        "timestep": 0.01,
        "steps": 30,
        "start": {"hinge": {"q": 0.0}},
        "goal": {"hinge": {"q": 0.4}},
        "controls": True,
        "limits": [[0.0], [1.0]],
        "guess": 0.1,
        "start_activation": 0.1,
        "weights": {"q": 0.1, "qd": 0.01, "u": 1e-2, "activation": [1e-2, 2e-2]},
    }


@pytest.mark.filterwarnings("ignore:.*muscles.xml")
def test_descriptions_plan_drives_of_robot_files(tmp_path: Path) -> None:
    task = read_config(description(tmp_path)).build()
    problem = task.problem
    assert problem.mech.drives.names == ("left", "right")
    torch.testing.assert_close(problem.dynamics.activations(problem.start)[0], torch.full((2,), 0.1, dtype=torch.float64))
    result = planning.solve(problem, method=task.method, options=task.options)
    assert bool(result.solved)
    assert result.act.shape == (31, 2)
    end: Tensor = problem.mech.to_minimal(result.z[-1])[0]
    assert abs(float(end[0]) - 0.4) < 1e-3


@pytest.mark.filterwarnings("ignore:.*muscles.xml")
def test_the_command_writes_activations(tmp_path: Path) -> None:
    import numpy as np
    import yaml

    config = tmp_path / "plan.yaml"
    config.write_text(yaml.safe_dump(description(tmp_path)))
    report = plan(config, output=tmp_path / "out", changes=["inputs=[right]", "limits=[[0.0], [1.0]]", "reach=hinge.q"])
    assert report["passed"]
    arrays = np.load(tmp_path / "out" / "trajectory.npz")
    assert arrays["coordinates"].shape == (31, 4)
    assert arrays["gains"].shape == (30, 1, 4)


@pytest.mark.filterwarnings("ignore:.*muscles.xml")
def test_what_descriptions_of_drives_refuse(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="inputs: got up; allowed: left, right"):
        read_config({**description(tmp_path), "inputs": ["up"]}).build()
    with pytest.raises(ValueError, match=r"start_activation: got 0.1; allowed: None for a plan without activations"):
        read_config({**description(tmp_path), "controls": False, "weights": {}}).build()
