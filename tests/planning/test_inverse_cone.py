"""Inverse dynamics as a cone solve: motions that a torque holds, simulated steps, and motions that none explains."""

import pytest
import torch

import torchdojo as td
from torchdojo import planning
from torchdojo.planning import PlanStatus, inverse_tasks


@pytest.fixture(scope="module")
def robot():
    return inverse_tasks.standing()


def test_a_standing_robot_has_torques_at_any_kappa():
    mech, z = inverse_tasks.standing(kappa=1e-6)
    found = planning.cone_inverse_dynamics(mech, z, z, gap=1e-2)
    assert found.solved and found.residual < 1e-8


def test_simulated_steps_come_back(robot):
    mech, z = robot
    u = 5 * torch.randn(8, mech.num_inputs, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    after = mech.step(z, u).z
    found = planning.cone_inverse_dynamics(mech, z, after, tolerance=1e-4)
    assert found.solved.all()
    torch.testing.assert_close(mech.step(z, found.value).z, after, rtol=0, atol=1e-5)


def test_a_flying_robot_has_one_torque_and_cannot_jump(robot):
    mech, z = robot
    z = (z.unflatten(-1, (-1, 13)) + torch.tensor([0, 0, 1.0] + [0.0] * 10).double()).flatten()
    u = torch.ones(2, mech.num_inputs).double()
    found = planning.cone_inverse_dynamics(mech, z, mech.step(z, u).z)
    assert found.solved.all()
    torch.testing.assert_close(found.value, u, rtol=0, atol=1e-7)
    assert planning.cone_inverse_dynamics(mech, z, z).status == PlanStatus.INFEASIBLE
    assert planning.cone_inverse_dynamics(mech, torch.full_like(z, torch.nan), z).status == PlanStatus.DIVERGED


def test_errors():
    mech, z = inverse_tasks.sliding_cube()
    with pytest.raises(ValueError, match="no inputs"):
        planning.cone_inverse_dynamics(mech, z, z)
    assert td.planning.ConeInverse is planning.ConeInverse
